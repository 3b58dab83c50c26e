//! How much is read of a lane at a time. Pure.
//!
//! How large payloads are as text, PostgreSQL does not tell before they are read: so a few are read, and then as many as
//! those let expect.

use pcfarm_proto::ids::BatchOrder;
use pcfarm_sql::lanes::{Portion, SMALL_PAYLOAD_BYTES};

/// Most problems that one reading ahead is for, unless a convoy is larger.
pub const PROBLEMS_LIMIT: usize = 20_000;

/// Of problems that are not only small ones, until it is known how large they are.
const LARGE: usize = 16;

/// Of small ones, at least.
const SMALL: usize = 250;

/// A convoy that is larger than this is not handed out: it would not fit anywhere.
const CONVOY_PROBLEMS_LIMIT: usize = 200_000;
const CONVOY_BYTES_LIMIT: usize = 512 << 20;

#[derive(Debug, thiserror::Error)]
#[error("a convoy of more than {CONVOY_PROBLEMS_LIMIT} problems or {CONVOY_BYTES_LIMIT} bytes cannot be handed out")]
pub struct TooLarge;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    problems: usize,
    /// Of problems that are not only small ones.
    large: usize,
    bytes: usize,
    only_small: bool,
}

impl Reading {
    /// So many problems are missing; a portion is so many, of so many bytes, and no more than `most` if all are small ones; a
    /// problem has so many, on average, if any were read that are not only small ones. What came back is never looked through
    /// for small ones.
    pub fn first(
        missing: usize,
        (problems, bytes): (usize, usize),
        most: usize,
        bytes_each: Option<usize>,
        came_back: bool,
    ) -> Reading {
        Reading {
            // One more, by which a convoy that ends there is seen to be whole.
            problems: missing.clamp(problems, PROBLEMS_LIMIT).min(most) + 1,
            large: bytes_each.map_or(LARGE, |each| (bytes / each.max(1)).max(LARGE)) + 1,
            bytes,
            only_small: !came_back && bytes_each.is_none_or(|each| each <= SMALL_PAYLOAD_BYTES as usize),
        }
    }

    pub fn portion(self, from: BatchOrder) -> Portion {
        let Reading { problems, large, bytes, only_small } = self;
        Portion { from, problems: problems as i64, large: large as i64, bytes: bytes as i64, only_small }
    }

    /// Most small ones of the next reading, when so many came of this one. What did not fit, or came behind one that is not
    /// small, was dropped and comes again: then little more is asked for than came, and more by and by.
    pub fn most_next(self, read: usize, by_size: bool, to_the_end: bool) -> Option<usize> {
        match (self.only_small, by_size) {
            (false, _) => None,
            // The first one was not small.
            (true, true) => Some(SMALL),
            (true, false) if read < self.problems && !to_the_end => Some((read + read / 4).max(SMALL)),
            (true, false) => Some(2 * self.problems),
        }
    }

    /// The next, when the first convoy is larger than what was read of it: so many problems, and not only small ones?
    pub fn more(self, read: usize, by_size: bool) -> Result<Reading, TooLarge> {
        if self.only_small {
            // The first of the convoy are small, if nothing else was looked for.
            let large = if by_size { self.large } else { self.large.max(2 * read) };
            return Ok(Reading { large, only_small: false, problems: self.problems.max(large), ..self });
        }
        if read >= CONVOY_PROBLEMS_LIMIT || self.bytes >= CONVOY_BYTES_LIMIT {
            return Err(TooLarge);
        }
        if read < self.problems.min(self.large) {
            return Ok(Reading { bytes: self.bytes * 4, ..self });
        }
        let large = self.large * 4;
        Ok(Reading { large, problems: self.problems.max(large), ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORTION: (usize, usize) = (4_000, 8 << 20);
    const ANY: usize = usize::MAX;

    /// How many rows come for each of 100,000 small ones, each `nth` of which is followed by a large one, if `fit` fit.
    fn rows_each(nth: usize, fit: usize) -> f64 {
        let (mut most, mut at, mut rows) = (ANY, 0, 0);
        while at < 100_000 {
            let reading = Reading::first(1, (16_000, 8 << 20), most, Some(100), false);
            let to_large = nth - at % nth;
            let read =
                if to_large == nth && at > 0 && nth < 100_000 { 0 } else { reading.problems.min(to_large).min(fit) };
            rows += reading.problems;
            most = reading.most_next(read, read == 0, false).expect("only small ones");
            // The large one is read by itself.
            at += read.max(1);
        }
        rows as f64 / 100_000.0
    }

    #[test]
    fn little_is_read_in_vain() {
        assert!(rows_each(100_000, ANY) < 1.2, "all are small");
        assert!(rows_each(100_000, 4_000) < 1.5, "and a quarter of a portion fits");
        assert!(rows_each(100, ANY) < 8.0, "each hundredth is large");
    }

    /// How many of what is not only small.
    fn of_any_size(reading: Reading) -> i64 {
        let portion = reading.portion(BatchOrder(0));
        portion.problems.min(portion.large)
    }

    #[test]
    fn a_few_are_read_and_then_as_many_as_they_let_expect() {
        for came_back in [false, true] {
            let first = Reading::first(100, PORTION, ANY, None, came_back);
            assert_eq!((first.only_small, of_any_size(first)), (!came_back, 17));
            for (each, expected) in [(100, 4_001), (10_000, 839), (1 << 20, 17), (0, 4_001)] {
                let next = Reading::first(100, PORTION, ANY, Some(each), came_back);
                assert_eq!(of_any_size(next), expected, "{each} bytes each");
                assert_eq!(next.only_small, !came_back && each < 1_000);
            }
        }
        assert_eq!(Reading::first(1_000_000, PORTION, ANY, None, false).problems, PROBLEMS_LIMIT + 1);
    }

    /// Reads a convoy of so many problems of so many bytes; returns how many were read in all, and whether it was whole.
    fn read_convoy(convoy: usize, each: usize, is_small: bool) -> (usize, bool) {
        let (mut reading, mut all) = (Reading::first(1, PORTION, ANY, None, false), 0);
        loop {
            let by_size = !reading.only_small || !is_small;
            let limit = if by_size { reading.problems.min(reading.large) } else { reading.problems };
            let read = convoy.min(limit).min(reading.bytes.div_ceil(each));
            all += read;
            if read == convoy && limit > convoy {
                return (all, true);
            }
            match reading.more(read, by_size) {
                Ok(more) => reading = more,
                Err(TooLarge) => return (all, false),
            }
        }
    }

    #[test]
    fn a_convoy_is_read_whole_or_found_to_be_too_large() {
        assert_eq!(read_convoy(4_000, 100, true), (4_000, true));
        // What was read before is read again, with twice and then four times as much each time.
        for (convoy, each, is_small) in [
            (4_001, 100, true),
            (100_000, 100, true),
            (1_000, 100_000, false),
            (100, 1 << 20, false),
            (30, 5_000, false),
        ] {
            let (read, whole) = read_convoy(convoy, each, is_small);
            assert!(whole && read <= 4 * convoy, "{convoy} of {each}: {read}");
        }
        for (convoy, each, is_small) in [(1_000_000, 100, true), (1_000_000, 10, false), (2_000, 1 << 20, false)] {
            assert!(!read_convoy(convoy, each, is_small).1, "{convoy} of {each}");
        }
    }
}
