//! Which jobs may be over, as far as this server knows: those of which it closed a checkout and has nothing to hand out. It may
//! not know all, so that now and then each job is looked at.

use pcfarm_proto::ids::JobId;
use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// So many are named; whoever comes after them is found when all are looked at.
const NAMED_LIMIT: usize = 10_000;

#[derive(Debug, Default)]
pub struct MaybeOver {
    known: Mutex<Known>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Known {
    /// Jobs from which something is still to be handed out.
    in_sight: HashMap<JobId, InSight>,
    named: BTreeSet<JobId>,
    any: bool,
}

#[derive(Debug, Default)]
struct InSight {
    lanes: usize,
    /// A checkout of it was closed meanwhile.
    closed: bool,
}

impl Known {
    /// They may be over. True if that was not known.
    fn name(&mut self, jobs: impl IntoIterator<Item = JobId>) -> bool {
        let mut news = false;
        for job in jobs {
            let fits = self.named.len() < NAMED_LIMIT || self.named.contains(&job);
            news |= if fits { self.named.insert(job) } else { !mem::replace(&mut self.any, true) };
        }
        news
    }
}

impl MaybeOver {
    /// The jobs of all lanes from which something is still to be handed out.
    pub fn lanes_in_sight(&self, jobs: impl Iterator<Item = JobId>) {
        let mut known = self.known();
        let before = mem::take(&mut known.in_sight);
        for job in jobs {
            known.in_sight.entry(job).or_default().lanes += 1;
        }
        let mut gone = Vec::new();
        for (job, _) in before.into_iter().filter(|(_, in_sight)| in_sight.closed) {
            match known.in_sight.get_mut(&job) {
                Some(in_sight) => in_sight.closed = true,
                None => gone.push(job),
            }
        }
        self.tell(known, gone);
    }

    pub fn lane_in_sight(&self, job: JobId) {
        self.known().in_sight.entry(job).or_default().lanes += 1;
    }

    pub fn lane_out_of_sight(&self, job: JobId) {
        let mut known = self.known();
        let Some(in_sight) = known.in_sight.get_mut(&job) else { return };
        in_sight.lanes = in_sight.lanes.saturating_sub(1);
        if in_sight.lanes == 0 {
            let closed = known.in_sight.remove(&job).is_some_and(|in_sight| in_sight.closed);
            self.tell(known, closed.then_some(job));
        }
    }

    /// A checkout of this job was closed: it may be over, or will be when it is out of sight.
    pub fn checkout_closed(&self, job: JobId) {
        let mut known = self.known();
        match known.in_sight.get_mut(&job) {
            Some(in_sight) => in_sight.closed = true,
            None => self.tell(known, [job]),
        }
    }

    /// This one may be over.
    pub fn name(&self, job: JobId) {
        self.tell(self.known(), [job]);
    }

    /// So may these still be, which were looked at: the next sweep is soon enough.
    pub fn name_again(&self, jobs: impl IntoIterator<Item = JobId>) {
        self.known().name(jobs);
    }

    /// Any of them may be.
    pub fn any(&self) {
        self.known().any = true;
        self.changed.notify_one();
    }

    pub fn is_any(&self) -> bool {
        self.known().any
    }

    /// Takes those that are named.
    pub fn take_named(&self) -> Vec<JobId> {
        mem::take(&mut self.known().named).into_iter().collect()
    }

    /// The next ones of all are about to be looked at.
    pub fn forget_any(&self) {
        self.known().any = false;
    }

    /// Returns when another may be over, also if that was before now and nobody has waited since.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    fn tell(&self, mut known: MutexGuard<'_, Known>, jobs: impl IntoIterator<Item = JobId>) {
        if known.name(jobs) {
            self.changed.notify_one();
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: JobId = JobId(1);
    const TWO: JobId = JobId(2);

    #[tokio::test]
    async fn jobs_are_named_once_and_who_finds_no_room_is_one_of_all() {
        let over = MaybeOver::default();
        over.name(TWO);
        over.name(ONE);
        over.name(TWO);
        over.changed().await;
        assert_eq!(over.take_named(), [ONE, TWO]);
        assert!(over.take_named().is_empty() && !over.is_any());

        let many: Vec<JobId> = (1..).map(JobId).take(NAMED_LIMIT).collect();
        over.name_again(many.clone());
        over.name_again(many.clone());
        assert!(!over.is_any());
        over.name(JobId(0));
        assert!(over.is_any());
        assert_eq!(over.take_named(), many);
        over.forget_any();
        assert!(!over.is_any());
        over.any();
        assert!(over.is_any());
    }

    #[test]
    fn a_job_of_which_a_checkout_was_closed_is_named_when_nothing_of_it_is_in_sight() {
        let over = MaybeOver::default();
        over.lanes_in_sight([ONE, ONE, TWO].into_iter());
        over.checkout_closed(ONE);
        over.lane_out_of_sight(ONE);
        assert!(over.take_named().is_empty(), "there is another lane");
        over.lane_out_of_sight(ONE);
        assert_eq!(over.take_named(), [ONE]);
        over.checkout_closed(ONE);
        assert_eq!(over.take_named(), [ONE]);

        // Of the other one nothing was closed.
        over.lane_out_of_sight(TWO);
        over.lane_out_of_sight(TWO);
        assert!(over.take_named().is_empty());

        // What another server has handed out leaves sight with the next look.
        over.lane_in_sight(ONE);
        over.checkout_closed(ONE);
        over.lanes_in_sight([ONE, TWO].into_iter());
        assert!(over.take_named().is_empty());
        over.lanes_in_sight([TWO].into_iter());
        assert_eq!(over.take_named(), [ONE]);
    }
}
