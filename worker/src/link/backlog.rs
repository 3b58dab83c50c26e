//! Bytes that the kernel may hold unsent for a connection. Pure: the caller supplies the time and sets the limit.
//!
//! On a slow link, heartbeats wait behind them. On a fast link, an agent whose cores are busy does not refill a small buffer before
//! it has run empty.

use std::time::Duration;

/// Limit on a link that has proven nothing.
pub const SMALL_BYTES: u32 = 256 << 10;

/// Limit on a fast link: 8 ms at 1 Gbit/s.
const LARGE_BYTES: u32 = 1 << 20;

/// A link is fast if it carries so many bytes in so short a time: 80 Mbit/s.
const SPAN_BYTES: usize = 1 << 20;
const SPAN: Duration = Duration::from_millis(100);

/// Rate of writing.
#[derive(Debug, Default)]
pub struct Backlog {
    bytes: usize,
    since: Duration,
    is_fast: bool,
}

impl Backlog {
    /// Notes written bytes. Returns the new limit if it changes.
    pub fn wrote(&mut self, bytes: usize, now: impl FnOnce() -> Duration) -> Option<u32> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes < SPAN_BYTES {
            return None;
        }
        let now = now();
        let is_fast = now.saturating_sub(self.since) < SPAN;
        (self.bytes, self.since) = (0, now);
        let changes = std::mem::replace(&mut self.is_fast, is_fast) != is_fast;
        changes.then_some(if is_fast { LARGE_BYTES } else { SMALL_BYTES })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_follows_the_rate_of_writing() {
        let mut backlog = Backlog::default();
        let ms = Duration::from_millis;
        let mut at = |now: u64| backlog.wrote(SPAN_BYTES, || ms(now));
        assert_eq!(at(1000), None, "the first bytes prove nothing");
        assert_eq!(at(1050), Some(LARGE_BYTES));
        assert_eq!(at(1060), None);
        assert_eq!(at(9000), Some(SMALL_BYTES), "the link has become slow, or had nothing to carry");
        assert_eq!(at(9050), Some(LARGE_BYTES));
        let mut little = Backlog::default();
        assert!((0..100).all(|_| little.wrote(1000, || unreachable!("no clock is read")).is_none()));
    }
}
