//! A checkout as the agent computes it.
//!
//! Owns the problems of one checkout, who takes which, and whether it is still wanted. It never knows how
//! its results are delivered.

pub mod lease;

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use pcfarm_proto::ids::{CheckoutId, JobId};
use pcfarm_proto::v1;

use crate::named::Store;
use crate::presence::pulse::Pulse;
use crate::related::Related;
use lease::LeaseEnd;

/// What names a checkout for certain: ids repeat after a crash of the database, tokens do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CheckoutKey {
    pub checkout_id: CheckoutId,
    pub token: u64,
}

/// A checkout with all its parts.
pub struct Checkout {
    pub key: CheckoutKey,
    pub job_id: JobId,
    pub job_name: String,
    pub job_type: String,
    pub controller: String,
    pub parameters: Bytes,
    pub info: Bytes,
    /// What its problems need, by name.
    pub files: Vec<v1::JobFile>,
    /// Payloads name more of them.
    pub problem_files: bool,
    pub problems: Vec<v1::Problem>,
    /// Of keys, payloads and related rows, which stay here until all of its results are acknowledged.
    pub bytes: usize,
    /// The next problem is released when the server has acknowledged the last one's result.
    pub one_by_one: bool,
    /// The server wants to know when it was worked on.
    pub traced: bool,
    /// Of one problem; none: no limit.
    pub time_limit: Option<Duration>,
    related_reads: Mutex<Vec<v1::RelatedRead>>,
    related: OnceLock<Related>,
    taking: Taking,
    cancelled: AtomicBool,
    store: OnceLock<Arc<dyn Store>>,
    pulse: OnceLock<Pulse>,
    lease: OnceLock<LeaseEnd>,
    gate: Mutex<Gate>,
    opened: Condvar,
}

/// Whether those who compute it go on.
#[derive(Default)]
struct Gate {
    is_closed: bool,
    /// Threads that stand before it.
    waiting: usize,
}

impl fmt::Debug for Checkout {
    /// Without what it carries: payloads are not for logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkout").field("key", &self.key).finish_non_exhaustive()
    }
}

/// A problem that its taker must solve; `first` if it is the first of its checkout.
pub struct Taken<'a> {
    pub problem: &'a v1::Problem,
    /// Its place among the checkout's problems.
    pub index: usize,
    pub first: bool,
}

/// Place of the next problem to be taken, and end of the problems that may be taken. Both are in one word, so that no problem
/// is taken and returned at the same time.
struct Taking(AtomicU64);

/// Value of `next` in a withdrawn checkout: behind any problem, and far from overflow.
const WITHDRAWN: u32 = u32::MAX / 2;

/// Both numbers.
#[derive(Clone, Copy)]
struct Extent {
    next: u32,
    released: u32,
}

impl Taking {
    fn new(released: usize) -> Taking {
        let released = u32::try_from(released).unwrap_or(WITHDRAWN).min(WITHDRAWN);
        Taking(AtomicU64::new(Extent { next: 0, released }.word()))
    }

    fn now(&self) -> Extent {
        Extent::of(self.0.load(Ordering::Relaxed))
    }

    /// Changes both numbers, unless `change` returns none. Returns the numbers before the change.
    fn change(&self, change: impl Fn(Extent) -> Option<Extent>) -> Option<Extent> {
        let changed = |word| change(Extent::of(word)).map(Extent::word);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed).ok().map(Extent::of)
    }
}

impl Extent {
    fn of(word: u64) -> Extent {
        Extent { next: word as u32, released: (word >> 32) as u32 }
    }

    fn word(self) -> u64 {
        u64::from(self.released) << 32 | u64::from(self.next)
    }
}

impl Checkout {
    pub fn new(message: v1::Checkout) -> Checkout {
        let of_problems = message.problems.iter().map(|problem| problem.key.len() + problem.payload.len());
        let rows = message.related.iter().flat_map(|read| &read.rows);
        let of_rows = rows.map(|row| row.row.len() + row.key.as_ref().map_or(0, String::len));
        Checkout {
            bytes: of_problems.chain(of_rows).sum(),
            key: CheckoutKey { checkout_id: CheckoutId(message.checkout_id), token: message.token },
            job_id: JobId(message.job_id),
            job_name: message.job_name,
            job_type: message.job_type,
            controller: message.controller,
            parameters: message.parameters,
            info: message.info,
            files: message.files,
            problem_files: message.problem_files,
            taking: Taking::new(if message.one_by_one { 1 } else { message.problems.len() }),
            one_by_one: message.one_by_one,
            traced: message.traced,
            time_limit: message.time_limit.and_then(|limit| Duration::try_from(limit).ok()),
            problems: message.problems,
            related_reads: Mutex::new(message.related),
            related: OnceLock::new(),
            cancelled: AtomicBool::new(false),
            store: OnceLock::new(),
            pulse: OnceLock::new(),
            lease: OnceLock::new(),
            gate: Mutex::default(),
            opened: Condvar::new(),
        }
    }

    /// Where its files come from, if controllers may ask. Said once, before any of them sees it.
    pub fn set_store(&self, store: Arc<dyn Store>) {
        let _ = self.store.set(store);
    }

    pub fn store(&self) -> Option<&dyn Store> {
        self.store.get().map(Arc::as_ref)
    }

    /// Pulse of the agent that computes it. Said once.
    pub fn set_pulse(&self, pulse: Pulse) {
        let _ = self.pulse.set(pulse);
    }

    /// True if its agent still looks for its person, or if the checkout has no agent.
    pub fn is_watched(&self) -> bool {
        self.pulse.get().is_none_or(Pulse::is_felt)
    }

    /// Lease of the session that holds it. Said once.
    pub fn set_lease(&self, lease: LeaseEnd) {
        let _ = self.lease.set(lease);
    }

    /// End of the lease, as far as it is known now; none: the work goes on after it.
    pub fn lease_end(&self) -> Option<Duration> {
        self.lease.get().and_then(LeaseEnd::get)
    }

    /// The related rows, indexed by the first core that asks.
    pub fn related(&self) -> &Related {
        self.related.get_or_init(|| {
            let mut reads = self.related_reads.lock().expect("taking a vector does not panic");
            Related::new(std::mem::take(&mut *reads))
        })
    }

    /// The next problem in order, each for one taker only; none once it is cancelled.
    pub fn take(&self) -> Option<Taken<'_>> {
        if self.is_cancelled() {
            return None;
        }
        let following = |now: Extent| (now.next < now.released).then(|| Extent { next: now.next + 1, ..now });
        let index = self.taking.change(following)?.next as usize;
        let problem = self.problems.get(index)?;
        Some(Taken { problem, index, first: index == 0 })
    }

    /// Takes the whole checkout out of the hands of all cores, unless one of them was quicker.
    pub fn withdraw(&self) -> bool {
        self.taking.change(|now| (now.next == 0).then_some(Extent { next: WITHDRAWN, ..now })).is_some()
    }

    /// Withdraws the problems from a place on, and returns their places. No core has taken any of them, and none will, unless they
    /// are [released](Checkout::release) again. `keep` chooses the place, given the places of the problems that may be taken.
    pub fn let_go(&self, keep: impl Fn(Range<usize>) -> usize) -> Range<usize> {
        let end = |now: Extent| {
            let untaken = now.next as usize..(now.released as usize).min(self.problems.len());
            u32::try_from(keep(untaken)).unwrap_or(u32::MAX).max(now.next)
        };
        let cut = |now: Extent| (end(now) < now.released).then(|| Extent { released: end(now), ..now });
        let Some(before) = self.taking.change(cut) else { return 0..0 };
        end(before) as usize..before.released as usize
    }

    /// Lets nobody take another problem, and says how many have been taken.
    pub fn stop_taking(&self) -> usize {
        // None: it was withdrawn before.
        let before = self.taking.change(|now| (now.next < WITHDRAWN).then_some(Extent { next: WITHDRAWN, ..now }));
        before.map_or(0, |before| (before.next as usize).min(self.problems.len()))
    }

    /// Number of problems that have been taken.
    pub fn taken(&self) -> usize {
        let next = self.taking.now().next;
        if next >= WITHDRAWN { 0 } else { (next as usize).min(self.problems.len()) }
    }

    /// How many problems may be taken and nobody has.
    pub fn untaken(&self) -> usize {
        let Extent { next, released } = self.taking.now();
        (released as usize).min(self.problems.len()).saturating_sub(next as usize)
    }

    /// Of the next problem that somebody will take, if there is one.
    #[cfg(feature = "wasm")]
    pub fn next_batch_order(&self) -> Option<i64> {
        self.problems.get(self.taking.now().next as usize).map(|problem| problem.batch_order)
    }

    /// Whether a problem was taken.
    pub fn is_begun(&self) -> bool {
        self.taking.now().next > 0
    }

    /// Lets so many more problems be taken.
    pub fn release(&self, problems: usize) {
        let problems = u32::try_from(problems).unwrap_or(u32::MAX);
        let more = |now: Extent| Some(Extent { released: now.released.saturating_add(problems).min(WITHDRAWN), ..now });
        self.taking.change(more);
    }

    /// Lets nobody take another problem, and tells those who compute one.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        // Who was about to wait has seen it, or hears this.
        drop(self.gate());
        self.opened.notify_all();
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().expect("nothing panics under this lock")
    }

    /// Lets those who compute it stand still, if they can, until it is thawed or cancelled.
    pub fn freeze(&self) {
        self.gate().is_closed = true;
    }

    pub fn thaw(&self) {
        self.gate().is_closed = false;
        self.opened.notify_all();
    }

    pub fn is_frozen(&self) -> bool {
        self.gate().is_closed
    }

    /// Waits while it is frozen. For whoever has nothing left that computes.
    pub fn stand_still(&self) {
        let mut gate = self.gate();
        gate.waiting += 1;
        while gate.is_closed && !self.is_cancelled() {
            gate = self.opened.wait(gate).expect("nothing panics under this lock");
        }
        gate.waiting -= 1;
    }

    /// How many threads do.
    pub fn standing_still(&self) -> usize {
        self.gate().waiting
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_by_one_the_next_waits_for_its_release() {
        let problems = (1..=3).map(|problem_id| v1::Problem { problem_id, ..Default::default() }).collect();
        let checkout = Checkout::new(v1::Checkout { one_by_one: true, problems, ..Default::default() });
        for problem_id in 1..=3 {
            assert_eq!(checkout.untaken(), 1);
            assert_eq!(checkout.take().map(|taken| taken.problem.problem_id), Some(problem_id));
            assert!(checkout.take().is_none() && checkout.untaken() == 0);
            checkout.release(1);
        }
        assert!(checkout.take().is_none() && checkout.untaken() == 0);
    }

    fn of(problems: i64) -> Checkout {
        let problems = (1..=problems).map(|problem_id| v1::Problem { problem_id, ..Default::default() }).collect();
        Checkout::new(v1::Checkout { problems, ..Default::default() })
    }

    #[test]
    fn what_is_let_go_was_not_taken_and_will_not_be() {
        let checkout = of(5);
        assert!(checkout.take().is_some() && checkout.take().is_some());
        assert_eq!(checkout.let_go(|untaken| untaken.start + 1), 3..5);
        assert_eq!(checkout.let_go(|_| 0), 2..3, "never what was taken");
        assert_eq!((checkout.let_go(|_| 0), checkout.untaken()), (0..0, 0));
        assert!(checkout.take().is_none());
        assert_eq!(checkout.stop_taking(), 2);
        let withdrawn = of(5);
        assert!(withdrawn.withdraw() && withdrawn.let_go(|_| 0) == (0..0) && withdrawn.stop_taking() == 0);
    }

    #[test]
    fn each_problem_is_taken_or_let_go_whoever_is_quicker() {
        for _ in 0..200 {
            let checkout = of(64);
            let (taken, let_go) = std::thread::scope(|scope| {
                let takers: Vec<_> =
                    (0..2).map(|_| scope.spawn(|| std::iter::from_fn(|| checkout.take()).count())).collect();
                let let_go = checkout.let_go(|untaken| untaken.start + 3);
                (takers.into_iter().map(|taker| taker.join().expect("took")).sum::<usize>(), let_go)
            });
            assert_eq!(taken + let_go.len(), 64);
        }
    }
}
