//! How much to hand out at once: pure decisions about sizes.

use std::time::Duration;

/// A checkout is at most this much larger than what its workstation's speed was measured on.
const GROWTH_LIMIT: f64 = 16.0;

/// Work that is not split any more, so that all finish together: what each checkout costs would be more than what is won.
const NOT_SPLIT: Duration = Duration::from_millis(100);

/// What a workstation holds beside the usual should be done within this, or a quarter of the time limit.
const AHEAD: Duration = Duration::from_secs(1);

/// Work that begins within this time is handed out in advance, even while another workstation is free: the wait is too short
/// to matter.
const SOON: Duration = Duration::from_secs(1);

/// Work of a workstation's cores before they begin something new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ahead {
    /// Problems without a result.
    pub problems: usize,
    /// Time that they take by the workstation's speed, and at least the time since its last result. None: the speed is unknown.
    pub takes: Option<Duration>,
    /// The workstation returned problems that it would not have begun soon, and has had no result since.
    pub gave_back: bool,
}

impl Ahead {
    /// Adds problems that were decided on and have not been sent.
    pub fn and(self, problems: usize, speed: Option<Speed>) -> Ahead {
        if problems == 0 {
            return self;
        }
        let more =
            speed.and_then(|speed| Duration::try_from_secs_f64(problems as f64 / speed.problems_per_second).ok());
        let takes = self.takes.zip(more).map(|(takes, more)| takes.saturating_add(more));
        Ahead { problems: self.problems.saturating_add(problems), takes, ..self }
    }

    fn begins_soon(&self) -> bool {
        self.takes.is_some_and(|takes| takes <= SOON)
    }
}

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
    /// Problems that other lanes have at least.
    pub elsewhere: usize,
    /// Workstations that share what remains.
    pub workstations: usize,
    pub time_limit: Option<Duration>,
    /// None: the lane's problems wait for a pool of their own and not for the cores.
    pub ahead: Option<Ahead>,
}

impl Situation {
    fn cores(&self) -> usize {
        usize::try_from(self.cores).unwrap_or(usize::MAX)
    }

    /// Cores that have nothing to do.
    fn free_cores(&self) -> usize {
        self.ahead.map_or(0, |ahead| self.cores().saturating_sub(ahead.problems))
    }

    /// True if so few problems are left that a workstation which shares them will soon have nothing to do.
    fn is_scarce(&self) -> bool {
        let enough = self.workstations.saturating_mul(2).saturating_mul(self.cores());
        self.workstations > 1 && self.remaining.saturating_add(self.elsewhere) < enough
    }
}

/// A workstation's speed on one job type.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    pub problems_per_second: f64,
    /// How many problems that was measured on.
    pub problems: usize,
}

/// Returns how many problems the next checkout should hold. The hand-out then ends at the convoy boundary before that, or at the
/// first one.
///
/// Some seconds of work for that workstation, at least a problem for each free core, and no more than a quarter of the time
/// limit. A problem for each core before its speed is known. Less as the lane nears its end, so that all workstations finish
/// together, unless the rest takes no time.
pub fn wanted(situation: &Situation) -> usize {
    let by_speed = match situation.measured {
        None => situation.cores as usize,
        Some(speed) => {
            let aim = match situation.time_limit {
                Some(limit) => situation.aim.min(limit / 4),
                None => situation.aim,
            };
            let worth = speed.problems_per_second * aim.as_secs_f64();
            (worth.min(speed.problems as f64 * GROWTH_LIMIT) as usize).max(situation.free_cores())
        }
    };
    // Half of what is left: there is a next time, at which more is known.
    let share = situation.remaining / (2 * situation.workstations.max(1));
    let small = situation.measured.map_or(0, |speed| (speed.problems_per_second * NOT_SPLIT.as_secs_f64()) as usize);
    by_speed.min(share.max(small)).clamp(1, situation.limit.max(1))
}

/// May a workstation that holds `in_hand` checkouts be given one more, of so many problems?
///
/// Yes while it has free cores, however many checkouts keep the others busy. Work that it would not begin soon stays in the queue
/// near the end of a lane, for the workstation that is free first. A workstation may have given credit for many checkouts when
/// they were short. Checkouts of long or unknown problems would pile up there while other workstations have nothing to do.
pub fn has_room(situation: &Situation, in_hand: usize, prefetch: Option<usize>, problems: usize) -> bool {
    if let Some(ahead) = situation.ahead
        && in_hand > 0
    {
        if ahead.problems < situation.cores() {
            return true;
        }
        if ahead.gave_back || (situation.is_scarce() && !ahead.begins_soon()) {
            return false;
        }
    }
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
            elsewhere: 0,
            workstations: 10,
            time_limit: None,
            ahead: None,
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

    /// Prefetch follows the length of problems.
    #[test]
    fn long_work_is_handed_out_in_advance_only_while_there_is_enough_for_all() {
        let ahead = |problems, takes: Option<u64>, gave_back| {
            Some(Ahead { problems, takes: takes.map(Duration::from_millis), gave_back })
        };
        let (plenty, scarce) = (80, 79);
        for (what, ahead, in_hand, remaining, workstations, has_room) in [
            ("free cores", ahead(3, None, false), 3, scarce, 10, true),
            ("free cores of one that returned problems", ahead(3, Some(90_000), true), 3, scarce, 10, true),
            ("nothing in hand", ahead(0, None, false), 0, scarce, 10, true),
            ("begins soon", ahead(4, Some(1000), false), 1, scarce, 10, true),
            ("does not", ahead(4, Some(1001), false), 1, scarce, 10, false),
            ("of unknown length", ahead(4, None, false), 1, scarce, 10, false),
            ("enough for all", ahead(4, None, false), 1, plenty, 10, true),
            ("enough for all, but it returned problems", ahead(4, None, true), 1, plenty, 10, false),
            ("nobody else", ahead(4, None, false), 1, scarce, 1, true),
            ("more than it prefetches", ahead(4, None, false), 2, plenty, 1, false),
            ("a pool", None, 1, scarce, 10, true),
        ] {
            let situation = Situation { ahead, remaining, workstations, measured: None, ..situation() };
            assert_eq!(super::has_room(&situation, in_hand, Some(1), 1), has_room, "{what}");
        }
        let many_jobs =
            Situation { ahead: ahead(4, None, false), remaining: 1, elsewhere: 79, measured: None, ..situation() };
        assert!(super::has_room(&many_jobs, 1, Some(1), 1), "many jobs of one problem");
    }

    #[test]
    fn long_problems_fill_the_free_cores() {
        let measured = Some(Speed { problems_per_second: 0.1, problems: 4 });
        let ahead = |problems| Some(Ahead { problems, ..Ahead::default() });
        let wanted = |problems| wanted(&Situation { measured, ahead: ahead(problems), ..situation() });
        assert_eq!([0, 1, 3, 4, 9].map(wanted), [4, 3, 1, 1, 1]);
    }

    #[test]
    fn what_was_decided_on_counts_as_ahead() {
        let speed = Some(Speed { problems_per_second: 2.0, problems: 4 });
        let one = Ahead { problems: 1, takes: Some(Duration::from_secs(1)), gave_back: false };
        assert_eq!(one.and(4, speed), Ahead { problems: 5, takes: Some(Duration::from_secs(3)), gave_back: false });
        assert_eq!(one.and(4, None).takes, None);
        assert_eq!(one.and(0, None), one);
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
