//! When a lost display, compositor or bus is tried again, and for how long: pure.

use std::time::{Duration, Instant};

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A compositor or a bus that is started again takes less.
const GONE_FOR_GOOD: Duration = Duration::from_secs(60);

/// How a session was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The session does not answer. It exists, and its person may come back.
    Silent,
    /// The session cannot be reached any more.
    Gone,
    /// The session never tells, because it lacks the means.
    Unable,
}

impl Loss {
    /// Loss of a session that two ways failed to see: the loss that leaves more hope.
    #[cfg(target_os = "linux")]
    pub fn or(self, other: Loss) -> Loss {
        match (self, other) {
            (Loss::Silent, _) | (_, Loss::Silent) => Loss::Silent,
            (Loss::Gone, _) | (_, Loss::Gone) => Loss::Gone,
            (Loss::Unable, Loss::Unable) => Loss::Unable,
        }
    }
}

/// Attempts since the session could be seen.
#[derive(Debug, Default)]
pub struct Retry {
    failures: u32,
    gone: Option<Instant>,
}

impl Retry {
    /// The pause before the next attempt; none: there is no use.
    pub fn after(&mut self, loss: Loss, now: Instant) -> Option<Duration> {
        let gone = match loss {
            Loss::Unable => return None,
            Loss::Silent => {
                self.gone = None;
                None
            }
            Loss::Gone => Some(*self.gone.get_or_insert(now)),
        };
        if gone.is_some_and(|gone| now.saturating_duration_since(gone) >= GONE_FOR_GOOD) {
            return None;
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(5)).min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        Some(pause)
    }

    pub fn is_first(&self) -> bool {
        self.failures == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_outlasted_and_a_session_that_is_gone_is_not() {
        let now = Instant::now();
        let pauses = |losses: &[Loss]| {
            let (mut retry, mut now) = (Retry::default(), now);
            let mut after = |loss: &Loss| {
                let pause = retry.after(*loss, now);
                now += pause.unwrap_or_default();
                pause.map(|pause| pause.as_secs())
            };
            losses.iter().map(&mut after).collect::<Vec<_>>()
        };
        use Loss::{Gone, Silent, Unable};
        let silent = [1, 2, 4, 8, 16, 30, 30, 30].map(Some);
        assert_eq!(pauses(&[Silent; 8]), silent);
        assert_eq!(pauses(&[Gone; 8])[..7], [Some(1), Some(2), Some(4), Some(8), Some(16), Some(30), None]);
        assert_eq!(pauses(&[Gone, Gone, Gone, Gone, Gone, Silent, Gone])[6], Some(30), "it has answered in between");
        assert_eq!(pauses(&[Unable]), [None]);
    }
}
