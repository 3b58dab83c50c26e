//! How much to hand out at once: pure decisions about sizes.

use std::time::Duration;

/// A checkout is at most this much larger than what its workstation's speed was measured on.
const GROWTH_LIMIT: f64 = 16.0;

/// What is known when a workstation asks.
#[derive(Clone, Copy, Debug)]
pub struct Situation {
    /// What one checkout should be worth.
    pub aim: Duration,
    /// Most problems of one checkout.
    pub limit: usize,
    pub cores: u32,
    pub measured: Option<Speed>,
    /// Problems of the lane that are still to be handed out.
    pub remaining: usize,
    /// Workstations that share what remains.
    pub workstations: usize,
    pub time_limit: Option<Duration>,
}

/// A workstation's speed on one job type.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    pub problems_per_second: f64,
    /// How many problems that was measured on.
    pub problems: usize,
}

/// How many problems the next checkout should hold; the hand-out then goes to the convoy boundary before that, or
/// to the first one.
///
/// Some seconds of work for that workstation; a problem a core before anything is known of it; less as the lane
/// nears its end, so that all finish together; and no more than a quarter of the time limit.
pub fn wanted(situation: &Situation) -> usize {
    let by_speed = match situation.measured {
        None => situation.cores as usize,
        Some(speed) => {
            let aim = match situation.time_limit {
                Some(limit) => situation.aim.min(limit / 4),
                None => situation.aim,
            };
            let worth = speed.problems_per_second * aim.as_secs_f64();
            worth.min(speed.problems as f64 * GROWTH_LIMIT) as usize
        }
    };
    // Each has one checkout in the works and one ahead.
    let share = situation.remaining / (2 * situation.workstations.max(1));
    by_speed.min(share).clamp(1, situation.limit.max(1))
}

/// A moving average of the speed, with the newest checkout weighing a half.
pub fn updated(before: Option<Speed>, problems: usize, busy: Duration, cores: u32) -> Option<Speed> {
    if problems == 0 {
        return before;
    }
    let seconds = busy.as_secs_f64().max(1e-6 * problems as f64) / f64::from(cores.max(1));
    let now = problems as f64 / seconds;
    let rate = before.map_or(now, |speed| (speed.problems_per_second + now) / 2.0);
    Some(Speed { problems_per_second: rate, problems })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn situation() -> Situation {
        Situation {
            aim: Duration::from_secs(15),
            limit: 10_000,
            cores: 4,
            measured: Some(Speed { problems_per_second: 100.0, problems: 1000 }),
            remaining: 1_000_000,
            workstations: 10,
            time_limit: None,
        }
    }

    #[test]
    fn a_checkout_is_worth_some_seconds() {
        assert_eq!(wanted(&situation()), 1500);
    }

    #[test]
    fn an_unknown_workstation_gets_a_problem_a_core() {
        assert_eq!(wanted(&Situation { measured: None, ..situation() }), 4);
    }

    #[test]
    fn sizes_grow_step_by_step() {
        let measured = Some(Speed { problems_per_second: 1e6, problems: 4 });
        assert_eq!(wanted(&Situation { measured, ..situation() }), 64);
    }

    #[test]
    fn the_end_is_shared() {
        assert_eq!(wanted(&Situation { remaining: 400, ..situation() }), 20);
        assert_eq!(wanted(&Situation { remaining: 3, ..situation() }), 1);
    }

    #[test]
    fn a_time_limit_leaves_room() {
        let time_limit = Some(Duration::from_secs(20));
        assert_eq!(wanted(&Situation { time_limit, ..situation() }), 500);
    }

    #[test]
    fn speed_counts_all_cores() {
        let speed = updated(None, 100, Duration::from_secs(10), 2).expect("problems were solved");
        assert!((speed.problems_per_second - 20.0).abs() < 1e-9);
        assert!(updated(None, 0, Duration::ZERO, 2).is_none());
    }
}
