//! Bytes of a session's connection, whether or not they make a message yet.
//!
//! A slow link carries a message for many seconds. Its bytes prove that the workstation lives, but only for [`piece_deadline`]
//! after the last whole message. An agent cuts its messages into pieces of about a second. Bytes that trickle more slowly than on
//! any usable link must not hold a workstation's checkouts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// Least bytes within a time that prove anything. Pings and their answers have fewer.
const PROVES_BYTES: usize = 512;
const PROVES_WITHIN: Duration = Duration::from_secs(10);

/// Time for an agent whose link has become ten times slower in the middle of a piece.
const SHORTEST_PIECE_DEADLINE: Duration = Duration::from_secs(30);

/// Time for which bytes of an unfinished message prove a workstation alive.
pub fn piece_deadline(lease: Duration) -> Duration {
    (lease * 2).max(SHORTEST_PIECE_DEADLINE)
}

static BASE: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Fixes the base, before any time that is measured from it.
pub fn start_clock() {
    LazyLock::force(&BASE);
}

/// Microseconds from the base to a time; 0: a time before the base.
pub(super) fn micros(at: Instant) -> u64 {
    u64::try_from(at.saturating_duration_since(*BASE).as_micros()).unwrap_or(u64::MAX)
}

/// Time of the last bytes of one connection that prove anything, in microseconds since the base; 0: none yet.
#[derive(Debug, Default)]
pub struct Progress(AtomicU64);

impl Progress {
    pub(super) fn came_at(&self, now: Instant) {
        self.0.store(micros(now).max(1), Ordering::Relaxed);
    }

    /// Time of the last sign of life, given the time of the last message.
    pub fn heard(&self, message: Instant, deadline: Duration) -> Instant {
        match self.0.load(Ordering::Relaxed) {
            0 => message,
            since => heard(message, *BASE + Duration::from_micros(since), deadline),
        }
    }
}

fn heard(message: Instant, bytes: Instant, deadline: Duration) -> Instant {
    message.max(bytes.min(message + deadline))
}

/// Counts what a connection receives.
#[derive(Debug)]
pub struct Meter {
    progress: Arc<Progress>,
    bytes: usize,
    began: Instant,
}

impl Meter {
    pub fn new(progress: Arc<Progress>, now: Instant) -> Meter {
        Meter { progress, bytes: 0, began: now }
    }

    pub fn received(&mut self, bytes: usize, now: Instant) {
        if now.saturating_duration_since(self.began) > PROVES_WITHIN {
            (self.bytes, self.began) = (0, now);
        }
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes >= PROVES_BYTES {
            self.progress.came_at(now);
            (self.bytes, self.began) = (0, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_frame_is_progress_and_pings_are_none() {
        let began = Instant::now();
        let after = |seconds| began + Duration::from_secs(seconds);
        let progress = Arc::<Progress>::default();
        let mut meter = Meter::new(progress.clone(), began);
        let heard = || progress.heard(began, Duration::from_secs(1000));
        for second in (0..300).step_by(5) {
            meter.received(34, after(second));
        }
        assert!(heard() < after(1));
        // Three connections share a link of 64 kbit/s.
        for second in 300..310 {
            meter.received(2_600, after(second));
            assert!(heard() >= after(second) - Duration::from_millis(1), "at {second} s");
        }
    }

    #[test]
    fn bytes_of_an_unfinished_message_count_until_its_deadline() {
        let message = Instant::now();
        let after = |seconds| message + Duration::from_secs(seconds);
        let deadline = Duration::from_secs(30);
        for (bytes, expected) in [(0, 0), (7, 7), (30, 30), (31, 30), (500, 30)] {
            assert_eq!(heard(message, after(bytes), deadline), after(expected), "{bytes}");
        }
        assert_eq!(heard(after(9), message, deadline), after(9), "bytes of an earlier message prove nothing");
    }
}
