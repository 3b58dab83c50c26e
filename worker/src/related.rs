//! Rows that were read for the problems of a checkout.
//!
//! Owns the index from a read's name and a problem's key to rows. It never parses a row.

use std::collections::HashMap;

use bytes::Bytes;
use pcfarm_proto::v1;

/// The related reads of one checkout, indexed once.
#[derive(Default)]
pub struct Related {
    reads: HashMap<String, Read>,
}

#[derive(Default)]
struct Read {
    rows: Vec<Bytes>,
    /// Indexes into `rows`, rising.
    for_all: Vec<u32>,
    by_key: HashMap<String, Vec<u32>>,
}

/// A controller asked for a read that its job type does not have.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("job type has no related read {asked:?}; it has {}", list(.known))]
pub struct UnknownRead {
    pub asked: String,
    pub known: Vec<String>,
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    names.join(", ")
}

impl Related {
    /// Indexes the reads of a checkout. A read may come in several pieces, one per part of the checkout.
    pub fn new(pieces: impl IntoIterator<Item = v1::RelatedRead>) -> Related {
        let mut related = Related::default();
        for piece in pieces {
            let read = related.reads.entry(piece.name).or_default();
            for row in piece.rows {
                read.push(row);
            }
        }
        related
    }

    /// The rows of `read` for the problem `key`, those for every problem included, in the order read.
    pub fn rows<'a>(&'a self, read: &str, key: &str) -> Result<impl Iterator<Item = &'a [u8]> + use<'a>, UnknownRead> {
        let read = self.reads.get(read).ok_or_else(|| self.unknown(read))?;
        let own = read.by_key.get(key).map_or(&[][..], Vec::as_slice);
        Ok(Merged { left: &read.for_all, right: own }.map(|index| read.rows[index as usize].as_ref()))
    }

    fn unknown(&self, asked: &str) -> UnknownRead {
        let mut known: Vec<String> = self.reads.keys().cloned().collect();
        known.sort();
        UnknownRead { asked: asked.to_owned(), known }
    }
}

impl Read {
    fn push(&mut self, row: v1::RelatedRow) {
        let index = u32::try_from(self.rows.len()).expect("a checkout is smaller than 2^32 rows");
        self.rows.push(row.row);
        match row.key {
            Some(key) => self.by_key.entry(key).or_default().push(index),
            None => self.for_all.push(index),
        }
    }
}

/// Two rising sequences as one.
struct Merged<'a> {
    left: &'a [u32],
    right: &'a [u32],
}

impl Iterator for Merged<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let left_first = match (self.left.first(), self.right.first()) {
            (Some(left), Some(right)) => left < right,
            (Some(_), None) => true,
            (None, _) => false,
        };
        let side = if left_first { &mut self.left } else { &mut self.right };
        let (first, rest) = side.split_first()?;
        *side = rest;
        Some(*first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, rows: &[(Option<&str>, &'static str)]) -> v1::RelatedRead {
        let row = |&(key, row): &(Option<&str>, &'static str)| v1::RelatedRow {
            key: key.map(str::to_owned),
            row: Bytes::from_static(row.as_bytes()),
        };
        v1::RelatedRead { name: name.to_owned(), rows: rows.iter().map(row).collect() }
    }

    fn rows(related: &Related, name: &str, key: &str) -> Vec<String> {
        let text = |row: &[u8]| String::from_utf8(row.to_vec()).expect("rows of this test are text");
        related.rows(name, key).expect("a known read").map(text).collect()
    }

    #[test]
    fn rows_are_the_keys_own_and_everyones_in_order() {
        let related = Related::new([
            read("fares", &[(Some("a"), "1"), (None, "2"), (Some("b"), "3")]),
            read("fares", &[(Some("a"), "4"), (None, "5")]),
            read("empty", &[]),
        ]);
        for (name, key, expected) in [
            ("fares", "a", &["1", "2", "4", "5"][..]),
            ("fares", "b", &["2", "3", "5"]),
            ("fares", "c", &["2", "5"]),
            ("empty", "a", &[]),
        ] {
            assert_eq!(rows(&related, name, key), expected, "{name} {key}");
        }
    }

    #[test]
    fn an_unknown_read_names_the_ones_there_are() {
        let related = Related::new([read("b", &[]), read("a", &[])]);
        let error = related.rows("c", "k").map(|_| ()).expect_err("there is no read c");
        assert_eq!(error.to_string(), "job type has no related read \"c\"; it has a, b");
        let error = Related::default().rows("c", "k").map(|_| ()).expect_err("there is no read at all");
        assert_eq!(error.to_string(), "job type has no related read \"c\"; it has none");
    }
}
