//! Bytes that the kernel may hold unsent for a connection. Pure: the caller supplies the time and sets the limit.
//!
//! Heartbeats wait behind them on a slow link. A write that finds the buffer full, and later has room, proves that the server has
//! acknowledged bytes: on a slow link, the limit must be small enough for that to happen. On a fast link, an agent whose cores are busy
//! does not refill a small buffer before it has run empty.

use std::time::Duration;

/// Time for which the link carries the bytes at the rate of writing.
const TIME: Duration = Duration::from_millis(50);

/// Limit on a link that has proven nothing, and the largest one: 8 ms at 1 Gbit/s.
pub const SMALL_BYTES: u32 = 4 << 10;
const LARGE_BYTES: u32 = 1 << 20;

/// The rate is measured over so many times the limit.
const SPAN: usize = 4;

/// Measurement of the rate of writing.
#[derive(Debug)]
pub struct Backlog {
    limit: u32,
    bytes: usize,
    since: Duration,
}

impl Default for Backlog {
    fn default() -> Backlog {
        Backlog { limit: SMALL_BYTES, bytes: 0, since: Duration::ZERO }
    }
}

impl Backlog {
    /// Notes written bytes. Returns the new limit if it changes much.
    pub fn wrote(&mut self, bytes: usize, now: impl FnOnce() -> Duration) -> Option<u32> {
        self.bytes = self.bytes.saturating_add(bytes);
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        if self.bytes < limit.saturating_mul(SPAN) {
            return None;
        }
        let now = now();
        let time = now.saturating_sub(self.since).max(Duration::from_micros(1));
        let fitting = self.bytes as f64 * TIME.as_secs_f64() / time.as_secs_f64();
        (self.bytes, self.since) = (0, now);
        let fitting = (fitting as u32).clamp(SMALL_BYTES, LARGE_BYTES);
        let changes = fitting >= self.limit.saturating_mul(2) || fitting <= self.limit / 2;
        changes.then(|| {
            self.limit = fitting;
            fitting
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Limit after some seconds of writing pieces at this rate, in bytes a second.
    fn after(backlog: &mut Backlog, began: u64, seconds: u64, rate: f64) -> u32 {
        let mut limit = backlog.limit;
        let piece = 4096.0;
        let mut at = began as f64;
        while at < (began + seconds) as f64 {
            at += piece / rate;
            limit = backlog.wrote(4096, || Duration::from_secs_f64(at)).unwrap_or(limit);
        }
        limit
    }

    #[test]
    fn the_limit_is_a_moment_of_the_rate() {
        for (kbit, least, most) in [(64, 4 << 10, 4 << 10), (1_000, 4 << 10, 12 << 10), (10_000, 32 << 10, 126 << 10)] {
            let limit = after(&mut Backlog::default(), 100, 20, f64::from(kbit) * 125.0);
            assert!((least..=most).contains(&limit), "{limit} at {kbit} kbit/s");
        }
        let mut backlog = Backlog::default();
        assert!(after(&mut backlog, 100, 1, 125e6) > 500 << 10, "a gigabit");
        assert_eq!(after(&mut backlog, 101, 600, 8e3), SMALL_BYTES, "the link has become slow");
        assert!(after(&mut backlog, 1000, 1, 125e6) > 500 << 10);
    }
}
