//! What others compute: the machine's time less this agent's own, over about a minute.

use std::collections::VecDeque;
use std::time::Duration;

use super::signals::Moment;

/// Load is judged over about a minute: a page that loads is no load.
const LOAD_WINDOW: Duration = Duration::from_secs(60);

/// The least that says something.
const LEAST_WINDOW: Duration = Duration::from_secs(10);

/// Whoever did not look for so long was asleep, and knows nothing of the time between.
const LONGEST_GAP: Duration = Duration::from_secs(30);

/// CPU that others use, from one look to the next.
#[derive(Default)]
pub struct Load {
    samples: VecDeque<Sample>,
}

/// Time that was used since some moment, in ticks.
#[derive(Clone, Copy)]
pub struct Sample {
    pub at: Moment,
    /// Of all cores, by everybody.
    pub busy: u64,
    /// By the agent and what it has started.
    pub own: u64,
}

impl Load {
    /// In cores, over about the last minute. After a look that failed it begins anew.
    pub fn read(&mut self, sample: Result<Sample, String>, ticks_per_second: u64) -> Result<f64, String> {
        let sample = sample.inspect_err(|_| self.samples.clear())?;
        self.add(sample, ticks_per_second)
    }

    fn add(&mut self, sample: Sample, ticks_per_second: u64) -> Result<f64, String> {
        if self.samples.back().is_some_and(|last| sample.at.saturating_sub(last.at) > LONGEST_GAP) {
            self.samples.clear();
        }
        self.samples.push_back(sample);
        while self.samples.get(1).is_some_and(|second| sample.at.saturating_sub(second.at) >= LOAD_WINDOW) {
            self.samples.pop_front();
        }
        let first = self.samples[0];
        let time = sample.at.saturating_sub(first.at);
        if time < LEAST_WINDOW {
            return Err(format!("it has looked for less than {} s", LEAST_WINDOW.as_secs()));
        }
        let others = sample.busy.saturating_sub(first.busy).saturating_sub(sample.own.saturating_sub(first.own));
        Ok(others as f64 / ticks_per_second as f64 / time.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_is_of_the_last_minute() {
        let mut load = Load::default();
        let mut add = |at, busy, own| load.add(Sample { at: Duration::from_secs(at), busy, own }, 100).ok();
        assert_eq!(add(0, 0, 0), None);
        assert_eq!(add(5, 1000, 1000), None);
        assert_eq!(add(10, 1500, 1000), Some(0.5));
        assert_eq!(add(30, 1500, 1000), Some(5.0 / 30.0));
        assert_eq!(add(60, 1500, 1000), Some(5.0 / 60.0));
        assert_eq!(add(70, 1500, 1000), Some(0.0));
        // Own time that is noted later than the machine's.
        assert_eq!(add(75, 1500, 2000), Some(0.0));
        // It slept.
        assert_eq!(add(200, 9000, 2000), None);
        assert_eq!(add(210, 9100, 2000), Some(0.1));
    }
}
