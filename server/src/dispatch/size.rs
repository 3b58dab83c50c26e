//! How much to hand out at once: pure decisions about sizes.

use std::time::Duration;

/// A checkout is at most this much larger than what its workstation's speed was measured on.
const GROWTH_LIMIT: f64 = 16.0;

/// Work that is not split any more, so that all finish together: what each checkout costs would be more than what is won.
const NOT_SPLIT: Duration = Duration::from_millis(100);

/// What a workstation holds beside the usual should be done within this, or a quarter of the time limit.
const AHEAD: Duration = Duration::from_secs(1);

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
/// nears its end, so that all finish together, unless what is left is done in no time; and no more than a quarter of the
/// time limit.
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
    // Half of what is left: there is a next time, at which more is known.
    let share = situation.remaining / (2 * situation.workstations.max(1));
    let small = situation.measured.map_or(0, |speed| (speed.problems_per_second * NOT_SPLIT.as_secs_f64()) as usize);
    by_speed.min(share.max(small)).clamp(1, situation.limit.max(1))
}

/// May a workstation that holds `in_hand` checkouts be given one more, of so many problems? It gave credit for many when
/// they were short: those that are long, or nobody knows, would pile up there while others have nothing to do.
pub fn has_room(situation: &Situation, in_hand: usize, prefetch: Option<usize>, problems: usize) -> bool {
    if prefetch.is_none_or(|prefetch| in_hand <= prefetch) {
        return true;
    }
    let Some(speed) = situation.measured else { return false };
    let ahead = (in_hand * problems) as f64 / speed.problems_per_second;
    ahead <= situation.time_limit.map_or(AHEAD, |limit| AHEAD.min(limit / 4)).as_secs_f64()
}

/// Checkouts wait for those in the works, and their time limits add up: for how many of them a new one has time. What is
/// held beside the usual takes a part of one's time, see [`has_room`].
pub fn time_limits(in_hand: usize, prefetch: Option<usize>) -> usize {
    1 + in_hand.min(prefetch.map_or(usize::MAX, |prefetch| prefetch.saturating_add(1)))
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
        assert_eq!(wanted(&Situation { remaining: 3, ..situation() }), 10, "a tenth of a second");
        assert_eq!(wanted(&Situation { remaining: 3, measured: None, ..situation() }), 1);
    }

    #[test]
    fn a_time_limit_leaves_room() {
        let time_limit = Some(Duration::from_secs(20));
        assert_eq!(wanted(&Situation { time_limit, ..situation() }), 500);
    }

    #[test]
    fn credit_for_short_checkouts_is_none_for_long_ones() {
        let rate = |problems_per_second| Some(Speed { problems_per_second, problems: 1000 });
        let short = Situation { measured: rate(100_000.0), ..situation() };
        assert!(has_room(&short, 31, Some(1), 1000), "a third of a second");
        assert!(!has_room(&short, 31, Some(1), 10_000));
        assert!(has_room(&short, 1, Some(1), 10_000), "as many as it wants in any case");
        assert!(has_room(&short, 31, None, 10_000), "as many as it says");
        let tight = Situation { time_limit: Some(Duration::from_secs(1)), ..short };
        assert!(!has_room(&tight, 31, Some(1), 1000));
        let unknown = Situation { measured: None, ..situation() };
        assert!(has_room(&unknown, 1, Some(1), 4) && !has_room(&unknown, 2, Some(1), 4));
    }

    #[test]
    fn time_adds_up_for_what_is_usually_ahead() {
        assert_eq!([0, 1, 2, 31].map(|in_hand| time_limits(in_hand, Some(1))), [1, 2, 3, 3]);
        assert_eq!(time_limits(31, None), 32);
    }

    #[test]
    fn speed_counts_all_cores() {
        let speed = updated(None, 100, Duration::from_secs(10), 2).expect("problems were solved");
        assert!((speed.problems_per_second - 20.0).abs() < 1e-9);
        assert!(updated(None, 0, Duration::ZERO, 2).is_none());
    }
}
