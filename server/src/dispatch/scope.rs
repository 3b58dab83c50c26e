//! How many lanes a look brings. Pure.
//!
//! Nobody is served from a user's thousandth job while there are others before it: a look that brings them all would cost ever
//! more with the jobs that are open, and hand-outs wait for it. So it brings those that come first, of each user, job type and
//! requirement; and all of them once those leave somebody without work, for as long as that finds some.

use std::time::Duration;
use tokio::time::Instant;

/// So many come first: a look at them takes some 10 ms.
const FIRST_LANES: usize = 1_000;

/// All that are looked at.
const ALL_LANES: usize = 10_000;

/// After a look at all that found nothing for anybody; twice as long each time, as for workstations that none of them suits.
const PAUSE: Duration = Duration::from_secs(10);
const PAUSE_LIMIT: Duration = Duration::from_secs(160);

#[derive(Debug)]
pub struct Scope {
    all: bool,
    /// The last look brought so many, and there were more.
    brought: usize,
    cut: bool,
    /// Since then somebody found nothing, and somebody was served from a lane that does not come first.
    leaves_idle: bool,
    serves: bool,
    /// When all are looked at again for those who find nothing, and how long it is left after that.
    all_from: Instant,
    pause: Duration,
}

impl Scope {
    pub fn new(now: Instant) -> Scope {
        Scope { all: false, brought: 0, cut: false, leaves_idle: false, serves: false, all_from: now, pause: PAUSE }
    }

    /// How many lanes the look that begins now is to bring, with so many still in sight.
    pub fn begin(&mut self, now: Instant, in_sight: usize) -> usize {
        if self.all && self.serves {
            self.pause = PAUSE;
        } else if self.all {
            self.all_from = now + self.pause;
            self.pause = (self.pause * 2).min(PAUSE_LIMIT);
            self.all = false;
        } else {
            self.all = self.should_widen(now, in_sight);
        }
        (self.leaves_idle, self.serves) = (false, false);
        if self.all { ALL_LANES } else { FIRST_LANES }
    }

    /// What the look has brought.
    pub fn end(&mut self, in_sight: usize, cut: bool) {
        (self.brought, self.cut) = (in_sight, cut);
    }

    /// Were there more than were asked for?
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Somebody found nothing.
    pub fn note_idle(&mut self) {
        self.leaves_idle = true;
    }

    /// Somebody was served from the lane of this rank.
    pub fn note_served(&mut self, rank: usize) {
        self.serves |= rank >= FIRST_LANES;
    }

    /// Should somebody who finds nothing be looked for at once, further on? Not again and again if that was in vain, unless what
    /// comes first has been handed out.
    pub fn should_widen(&self, now: Instant, in_sight: usize) -> bool {
        let runs_dry = 2 * in_sight <= self.brought;
        !self.all && self.cut && self.leaves_idle && (now >= self.all_from || runs_dry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn look(scope: &mut Scope, now: Instant, lanes: usize) -> usize {
        let most = scope.begin(now, scope.brought);
        scope.end(lanes.min(most), lanes >= most);
        most
    }

    #[test]
    fn all_lanes_are_looked_at_only_where_the_first_leave_somebody_without_work() {
        let now = Instant::now();
        let mut scope = Scope::new(now);
        assert_eq!(look(&mut scope, now, 5_000), FIRST_LANES);
        assert_eq!(look(&mut scope, now, 5_000), FIRST_LANES, "everybody has work");
        scope.note_idle();
        assert!(scope.should_widen(now, FIRST_LANES));
        assert_eq!(look(&mut scope, now, 5_000), ALL_LANES);
        scope.note_served(FIRST_LANES);
        assert_eq!(look(&mut scope, now, 5_000), ALL_LANES, "they are needed");
        scope.note_served(FIRST_LANES - 1);
        assert_eq!(look(&mut scope, now, 5_000), FIRST_LANES);
    }

    #[test]
    fn there_is_nothing_further_on_if_a_look_brought_all() {
        let now = Instant::now();
        let mut scope = Scope::new(now);
        look(&mut scope, now, FIRST_LANES - 1);
        scope.note_idle();
        assert!(!scope.should_widen(now, 0));
    }

    #[test]
    fn whom_nothing_suits_costs_ever_fewer_looks() {
        let mut now = Instant::now();
        let mut scope = Scope::new(now);
        let mut widened = Vec::new();
        for second in 0..1_000 {
            if look(&mut scope, now, 5_000) == ALL_LANES {
                widened.push(second);
            }
            scope.note_idle();
            now += SECOND;
        }
        assert_eq!(widened, [1, 12, 33, 74, 155, 316, 477, 638, 799, 960]);
    }

    #[test]
    fn what_has_been_handed_out_is_looked_for_further_on_at_once() {
        let now = Instant::now();
        let mut scope = Scope::new(now);
        look(&mut scope, now, 5_000);
        scope.note_idle();
        look(&mut scope, now, 5_000);
        look(&mut scope, now, 5_000); // in vain
        scope.note_idle();
        assert!(!scope.should_widen(now, FIRST_LANES));
        assert!(scope.should_widen(now, FIRST_LANES / 2), "half of them is gone");
    }
}
