//! Pulse: whether the agent still looks for its person.
//!
//! Owns one number that the looking thread writes, to be read without a lock. A thread that hangs, or a process that was
//! stopped and has just been continued, has no pulse: until the next look it is unknown whether the person is there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock;

/// Several looks of an agent at work.
const LIMIT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct Pulse(Arc<AtomicU64>);

impl Pulse {
    pub fn new() -> Pulse {
        let pulse = Pulse(Arc::default());
        pulse.beat();
        pulse
    }

    /// All sources have been read.
    pub fn beat(&self) {
        self.0.store(milliseconds(clock::awake()), Ordering::Relaxed);
    }

    pub fn is_felt(&self) -> bool {
        is_recent(self.0.load(Ordering::Relaxed), milliseconds(clock::awake()))
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn is_recent(last_ms: u64, now_ms: u64) -> bool {
    now_ms.saturating_sub(last_ms) < milliseconds(LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_is_felt_for_some_seconds() {
        for (last, now, expected) in [(1000, 1000, true), (1000, 5999, true), (1000, 6000, false), (5000, 1000, true)] {
            assert_eq!(is_recent(last, now), expected, "{last} {now}");
        }
        assert!(Pulse::new().is_felt());
    }
}
