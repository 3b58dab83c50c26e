//! A checkout as the agent computes it.
//!
//! Owns the problems of one checkout, who takes which, and whether it is still wanted. It never knows how
//! its results are delivered.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use pcfarm_proto::ids::{CheckoutId, JobId};
use pcfarm_proto::v1;

use crate::named::Store;
use crate::presence::pulse::Pulse;
use crate::related::Related;

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
    next: AtomicUsize,
    /// Problems before this one may be taken.
    released: AtomicUsize,
    cancelled: AtomicBool,
    store: OnceLock<Arc<dyn Store>>,
    pulse: OnceLock<Pulse>,
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

/// What `next` is moved to when a checkout is withdrawn: behind any problem, and far from overflow.
const WITHDRAWN: usize = usize::MAX / 2;

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
            released: AtomicUsize::new(if message.one_by_one { 1 } else { message.problems.len() }),
            one_by_one: message.one_by_one,
            traced: message.traced,
            time_limit: message.time_limit.and_then(|limit| Duration::try_from(limit).ok()),
            problems: message.problems,
            related_reads: Mutex::new(message.related),
            related: OnceLock::new(),
            next: AtomicUsize::new(0),
            cancelled: AtomicBool::new(false),
            store: OnceLock::new(),
            pulse: OnceLock::new(),
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

    /// Whether its agent still looks for its person; a checkout without an agent needs none.
    pub fn is_watched(&self) -> bool {
        self.pulse.get().is_none_or(Pulse::is_felt)
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
        let released = self.released.load(Ordering::Relaxed);
        let following = |next: usize| (next < released).then(|| next + 1);
        let index = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, following).ok()?;
        let problem = self.problems.get(index)?;
        Some(Taken { problem, index, first: index == 0 })
    }

    /// Takes the whole checkout out of the hands of all cores, unless one of them was quicker.
    pub fn withdraw(&self) -> bool {
        self.next.compare_exchange(0, WITHDRAWN, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Lets nobody take another problem, and says how many have been taken.
    pub fn stop_taking(&self) -> usize {
        match self.next.swap(WITHDRAWN, Ordering::Relaxed) {
            // It was withdrawn before.
            WITHDRAWN.. => 0,
            taken => taken.min(self.problems.len()),
        }
    }

    /// How many problems may be taken and nobody has.
    pub fn untaken(&self) -> usize {
        let released = self.released.load(Ordering::Relaxed).min(self.problems.len());
        released.saturating_sub(self.next.load(Ordering::Relaxed))
    }

    /// Of the next problem that somebody will take, if there is one.
    #[cfg(feature = "wasm")]
    pub fn next_batch_order(&self) -> Option<i64> {
        self.problems.get(self.next.load(Ordering::Relaxed)).map(|problem| problem.batch_order)
    }

    /// Whether a problem was taken.
    pub fn is_begun(&self) -> bool {
        self.next.load(Ordering::Relaxed) > 0
    }

    /// Lets so many more problems be taken.
    pub fn release(&self, problems: usize) {
        self.released.fetch_add(problems, Ordering::Relaxed);
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
}
