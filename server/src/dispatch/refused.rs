//! Lanes of which a hand-out was refused: somebody else has moved them on, or has locked their job or a limit of it.

use super::lanes::LaneKey;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// Until a lane is looked at again, twice as long each time: whoever has locked its job may think for as long as they like, and
/// each try costs a look and a call.
const PAUSE: Duration = Duration::from_millis(2);
const PAUSE_LIMIT: Duration = Duration::from_millis(256);

/// For each lane that is refused, so that the last is tried before the first is again; but not until nobody remembers.
const PAUSE_EACH: Duration = Duration::from_millis(4);
const PAUSE_OF_ALL_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub struct Refused(HashMap<LaneKey, (Instant, Duration)>);

impl Refused {
    pub fn add(&mut self, key: LaneKey, now: Instant) {
        let pause = self.0.get(&key).map_or(PAUSE, |(_, pause)| (*pause * 2).min(PAUSE_LIMIT));
        let all = PAUSE_EACH.saturating_mul(u32::try_from(self.0.len()).unwrap_or(u32::MAX));
        let pause = pause.max(all.min(PAUSE_OF_ALL_LIMIT));
        self.0.insert(key, (now + pause, pause));
    }

    /// Something of it was handed out.
    pub fn remove(&mut self, key: &LaneKey) {
        self.0.remove(key);
    }

    /// It is not to be looked at yet.
    pub fn holds(&self, key: &LaneKey, now: Instant) -> bool {
        self.0.get(key).is_some_and(|(from, _)| now < *from)
    }

    /// When the next one is to be looked at that was not at this moment.
    pub fn next_from(&self, looked_at: Instant) -> Option<Instant> {
        self.0.values().map(|(from, _)| *from).filter(|from| *from > looked_at).min()
    }

    /// Those that have not been refused again in all that time are as any other.
    pub fn tidy(&mut self, now: Instant) {
        self.0.retain(|_, (from, pause)| now < *from + PAUSE_LIMIT.max(*pause));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcfarm_proto::ids::{JobId, LaneId};

    #[test]
    fn a_lane_is_left_for_longer_each_time_until_something_of_it_is_handed_out() {
        let (one, other) = ((JobId(1), LaneId(1)), (JobId(2), LaneId(2)));
        let began = Instant::now();
        let (mut now, mut refused) = (began, Refused::default());
        assert_eq!(refused.next_from(now), None);
        for milliseconds in [2, 4, 8, 16, 32, 64, 128, 256, 256] {
            refused.add(one, now);
            let from = now + Duration::from_millis(milliseconds);
            assert_eq!(refused.next_from(now), Some(from));
            assert!(refused.holds(&one, now) && !refused.holds(&one, from) && !refused.holds(&other, now));
            now = from;
            assert_eq!(refused.next_from(now), None, "it is looked at now");
            refused.tidy(now);
        }
        refused.add(one, now);
        refused.add(other, now);
        assert_eq!(refused.next_from(now), Some(now + PAUSE_EACH), "the sooner of two");
        refused.remove(&one);
        refused.add(one, now);
        assert!(!refused.holds(&one, now + PAUSE_EACH), "as if for the first time");
        refused.tidy(now + PAUSE_LIMIT * 2);
        assert!(refused.0.is_empty());
    }

    #[test]
    fn of_very_many_the_last_is_tried_before_the_first_is_again() {
        const LANES: u32 = 1_000;
        let key = |lane: u32| (JobId(1), LaneId(lane.into()));
        let (mut now, mut refused, mut tried) = (Instant::now(), Refused::default(), 0);
        while !refused.holds(&key(LANES - 1), now) {
            let first = (0..LANES).find(|lane| !refused.holds(&key(*lane), now)).expect("one is left");
            refused.add(key(first), now);
            tried += 1;
            now += PAUSE;
        }
        assert!(tried < 3 * LANES, "{tried}");
    }
}
