//! Problems that are returned unbegun because another workstation is idle.
//!
//! Rule: no problem that has not begun waits here while another workstation is idle. It holds for an agent that computes, is frozen,
//! finishes its begun problems for a person, is drained, or stops. The agent always answers the server's request, with all problems
//! that would not begin here within about a second, by its own measurements. An agent that gives way to a person begins none.
//!
//! Problems that have begun are never returned, and a convoy of dependent problems is never cut. Only the server knows whether
//! the problems of a convoy depend on each other, so without a request an agent returns whole convoys alone.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use pcfarm_proto::ids::CheckoutId;
use pcfarm_proto::v1;
use tracing::info;

use super::held::Held;
use super::{Inventory, Kind, kind_of};
use crate::work::CheckoutKey;

/// Problems that begin within this time stay here.
const SOON: Duration = Duration::from_secs(1);

/// Job types whose pace is remembered.
const PACES_LIMIT: usize = 256;

pub(super) const IDLE_ELSEWHERE: &str = "another workstation is idle";

/// Time that problems take here.
#[derive(Default)]
pub(super) struct Paces {
    /// Time of one problem by job type, as a moving average.
    by_job_type: BTreeMap<String, Duration>,
    /// Moment of the last result or start, by kind.
    progress: BTreeMap<Kind, Duration>,
}

impl Paces {
    pub(super) fn started(&mut self, kind: Kind, now: Duration) {
        self.progress.insert(kind, now);
    }

    pub(super) fn solved(&mut self, kind: Kind, job_type: &str, problems: usize, busy: Duration, now: Duration) {
        self.progress.insert(kind, now);
        let Some(each) = u32::try_from(problems).ok().and_then(|problems| busy.checked_div(problems)) else { return };
        if let Some(pace) = self.by_job_type.get_mut(job_type) {
            *pace = (*pace * 3 + each) / 4;
        } else if self.by_job_type.len() < PACES_LIMIT {
            self.by_job_type.insert(job_type.to_owned(), each);
        }
    }

    fn of(&self, job_type: &str) -> Option<Duration> {
        self.by_job_type.get(job_type).copied()
    }

    fn is_silent(&self, kind: &Kind, now: Duration) -> bool {
        self.progress.get(kind).is_none_or(|last| now >= *last + SOON)
    }
}

/// Computing time within [`SOON`] that is left for the next problems of a kind.
struct Budget(Duration);

impl Budget {
    /// `running`: paces and numbers of the problems that have begun. If no result has come for a while, none may come soon. No
    /// threads: nothing begins.
    fn new(threads: usize, running: impl Iterator<Item = (Option<Duration>, usize)>, is_silent: bool) -> Budget {
        let all = SOON.saturating_mul(u32::try_from(threads).unwrap_or(u32::MAX));
        let mut budget = Budget(if is_silent { Duration::ZERO } else { all });
        running.for_each(|(pace, problems)| budget.spend(pace, problems));
        budget
    }

    fn spend(&mut self, pace: Option<Duration>, problems: usize) {
        if problems > 0 {
            let time =
                pace.map_or(Duration::MAX, |pace| pace.saturating_mul(u32::try_from(problems).unwrap_or(u32::MAX)));
            self.0 = self.0.saturating_sub(time);
        }
    }

    /// Returns how many of these problems begin soon.
    fn take(&mut self, pace: Option<Duration>, problems: usize) -> usize {
        if self.0.is_zero() || problems == 0 {
            return 0;
        }
        let begin = pace.map_or(1, |pace| {
            usize::try_from(self.0.as_nanos().div_ceil(pace.as_nanos().max(1))).unwrap_or(usize::MAX)
        });
        let begin = begin.min(problems);
        self.spend(pace, begin);
        begin
    }
}

impl Inventory {
    /// Keeps a request of the server. [`Inventory::return_unbegun`] answers it after the cores' unreported results are fetched.
    pub(super) fn asked_to_return(&mut self, request: v1::GiveBack) {
        self.to_return = Some(request);
    }

    /// Answers the server's request, if there is one.
    pub(super) fn return_unbegun(&mut self, now: Duration) {
        let Some(request) = self.to_return.take() else { return };
        let whole_convoys: BTreeMap<CheckoutId, bool> =
            request.checkouts.iter().map(|one| (CheckoutId(one.checkout_id), one.whole_convoys)).collect();
        let mut most = usize::try_from(request.problems).unwrap_or(usize::MAX);
        for (key, soon) in self.begun_soon(now) {
            let Some(&whole_convoys) = whole_convoys.get(&key.checkout_id) else { continue };
            let Some(held) = self.held_mut(key).filter(|held| held.may_return()) else { continue };
            let returned = held.let_go(soon, most, whole_convoys);
            most = most.saturating_sub(returned.len());
            self.returned(key, returned, IDLE_ELSEWHERE);
        }
    }

    /// Returns whole convoys of the checkouts of these kinds of which nothing has begun. Nothing here will begin them soon.
    pub(super) fn return_whole_convoys(&mut self, kinds: impl Fn(&Kind) -> bool, reason: &str) {
        let is_meant = |held: &Held| held.may_return() && kinds(&kind_of(&self.profile, &held.checkout.controller));
        let keys: Vec<CheckoutKey> =
            self.held.values().filter(|held| is_meant(held)).map(|held| held.checkout.key).collect();
        for key in keys {
            let Some(held) = self.held_mut(key) else { continue };
            let returned = held.let_go(0, usize::MAX, true);
            self.returned(key, returned, reason);
        }
    }

    fn returned(&mut self, key: CheckoutKey, places: Range<usize>, reason: &str) {
        if places.is_empty() {
            return;
        }
        if places.start == 0 {
            return self.give_back(&[key], reason);
        }
        let Some(held) = self.held_mut(key) else { return };
        info!(checkout_id = %key.checkout_id, problems = places.len(), reason, "returning problems");
        held.return_problems(places, reason);
    }

    /// For each checkout, in the order in which they are computed: the number of its untaken problems that begin soon.
    fn begun_soon(&self, now: Duration) -> Vec<(CheckoutKey, usize)> {
        let mut by_kind: BTreeMap<Kind, Vec<&Held>> = BTreeMap::new();
        for held in self.held.values().filter(|held| held.is_computing()) {
            by_kind.entry(kind_of(&self.profile, &held.checkout.controller)).or_default().push(held);
        }
        let mut soon = Vec::new();
        for (kind, all) in by_kind {
            let pace = |held: &Held| held.pace().or_else(|| self.paces.of(&held.checkout.job_type));
            let running = || all.iter().map(|held| (pace(held), held.running()));
            let threads = match kind {
                _ if self.leaving.is_some() => 0,
                None => usize::try_from(self.profile.hello.cores.max(1)).unwrap_or(usize::MAX),
                // A pool's places are unknown here: as many as its problems under way.
                Some(_) => running().map(|(_, problems)| problems).sum(),
            };
            let mut budget = Budget::new(threads, running(), self.paces.is_silent(&kind, now));
            soon.extend(all.iter().map(|held| (held.checkout.key, budget.take(pace(held), held.checkout.untaken()))));
        }
        soon
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn what_begins_within_a_second_stays() {
        for (what, threads, running, is_silent, waiting, expected) in [
            ("the next tenths of a second", 1, vec![(Some(MS(100)), 1)], false, vec![(Some(MS(100)), 30)], vec![9]),
            ("on two cores", 2, vec![(Some(MS(100)), 2)], false, vec![(Some(MS(100)), 30)], vec![18]),
            ("behind a long one", 1, vec![(Some(MS(40_000)), 1)], false, vec![(Some(MS(1)), 30)], vec![0]),
            (
                "one that takes longer than it should",
                1,
                vec![(Some(MS(100)), 1)],
                true,
                vec![(Some(MS(100)), 30)],
                vec![0],
            ),
            ("behind one of unknown length", 1, vec![(None, 1)], false, vec![(Some(MS(1)), 30)], vec![0]),
            ("a free core begins one", 2, vec![(Some(MS(100)), 1)], false, vec![(None, 3)], vec![1]),
            (
                "one checkout after the other",
                1,
                vec![(Some(MS(100)), 1)],
                false,
                vec![(Some(MS(300)), 2), (Some(MS(200)), 9)],
                vec![2, 2],
            ),
            ("very quick ones", 1, vec![(Some(MS(0)), 1)], false, vec![(Some(MS(0)), 30)], vec![30]),
        ] {
            let mut budget = Budget::new(threads, running.into_iter(), is_silent);
            let begin: Vec<usize> = waiting.into_iter().map(|(pace, problems)| budget.take(pace, problems)).collect();
            assert_eq!(begin, expected, "{what}");
        }
    }
}
