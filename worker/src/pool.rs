//! The cores: a rayon pool that problems are handed to in order.
//!
//! Owns the queue of checkouts to compute and who computes. It reports through one bounded channel and
//! knows nothing of sessions, deliveries or time limits.
//!
//! A core works in *shifts*: a rayon task that takes problem after problem for a few milliseconds, reports
//! its results in one piece and goes to the end of rayon's queue. Short enough that a controller which uses
//! rayon itself never waits long for a thread that took a shift in between; long enough that the cost of a
//! report does not show. Until then results are in the core's *pocket*; the agent empties all pockets about
//! every second, for a quick result may have a problem of hours behind it. There is no barrier between
//! checkouts: a shift that finds the first one empty goes on with the next.
//!
//! A controller that does not return keeps its thread, and nothing here can change that: shifts of other
//! threads pass it by, and nobody waits for its thread, not even to exit.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use pcfarm_proto::SOLUTION_BYTES_LIMIT;
use pcfarm_proto::v1::ProblemResult;
use tokio::sync::mpsc;

use crate::solve::{Controllers, Task};
use crate::work::{Checkout, CheckoutKey};

/// How long a core takes problems before it reports.
const SHIFT: Duration = Duration::from_millis(10);

/// Room for solutions that a shift starts with; it grows to what they need.
const SHIFT_BUFFER_BYTES: usize = 4096;

/// Reports that may wait for the agent: a few per core, so that cores block only if it is stuck.
const REPORTS_WAITING: usize = 1024;

/// What the cores tell the agent.
#[derive(Debug)]
pub enum Report {
    /// The first problem of a checkout was taken.
    Started(CheckoutKey),
    Results(Batch),
}

/// Results of one core.
#[derive(Debug)]
pub struct Batch {
    pub key: CheckoutKey,
    pub results: Vec<ProblemResult>,
    /// Time that it spent in the controller.
    pub busy: Duration,
}

/// The cores of an agent, which its slots share.
pub fn threads(cores: usize) -> anyhow::Result<Arc<rayon::ThreadPool>> {
    let threads = rayon::ThreadPoolBuilder::new()
        .num_threads(cores)
        .thread_name(|index| format!("pcfarm-core-{index}"))
        .build()?;
    Ok(Arc::new(threads))
}

/// What one session computes on them.
pub struct Pool {
    threads: Arc<rayon::ThreadPool>,
    shared: Arc<Shared>,
}

struct Shared {
    controllers: Controllers,
    queue: Mutex<Queue>,
    solution_bytes_limit: AtomicUsize,
    cores: Vec<Core>,
    reports: mpsc::Sender<Report>,
}

/// What others may know of a core. Its locks are nearly always free.
#[derive(Default)]
struct Core {
    pocket: Mutex<Vec<Batch>>,
    /// What it works on: more than one checkout if a controller's own rayon let another shift in between.
    at: Mutex<Vec<Arc<Checkout>>>,
}

#[derive(Default)]
struct Queue {
    checkouts: VecDeque<Arc<Checkout>>,
    /// Shifts that are running or waiting for a thread; never more than cores.
    shifts: usize,
}

impl Pool {
    pub fn new(threads: Arc<rayon::ThreadPool>, controllers: Controllers) -> (Pool, mpsc::Receiver<Report>) {
        let (reports, receiver) = mpsc::channel(REPORTS_WAITING);
        let cores = threads.current_num_threads();
        let shared = Shared {
            controllers,
            queue: Mutex::default(),
            solution_bytes_limit: AtomicUsize::new(SOLUTION_BYTES_LIMIT),
            cores: (0..cores).map(|_| Core::default()).collect(),
            reports,
        };
        (Pool { threads, shared: Arc::new(shared) }, receiver)
    }

    /// Puts a checkout behind those that wait, or before them if it was begun before them and is run one by
    /// one.
    pub fn compute(&self, checkout: Arc<Checkout>) {
        let mut queue = self.shared.queue();
        let new_shifts = checkout.untaken().min(self.shared.cores.len() - queue.shifts);
        queue.shifts += new_shifts;
        if checkout.is_begun() {
            queue.checkouts.push_front(checkout);
        } else {
            queue.checkouts.push_back(checkout);
        }
        drop(queue);
        for _ in 0..new_shifts {
            let shared = Arc::clone(&self.shared);
            self.threads.spawn_fifo(move || shared.shift());
        }
    }

    /// Stops a checkout: no more of it is taken, and its controllers are told.
    pub fn cancel(&self, checkout: &Checkout) {
        checkout.cancel();
        self.shared.queue().checkouts.retain(|waiting| waiting.key != checkout.key);
    }

    /// Takes out the checkouts of which no problem has been taken.
    pub fn withdraw_unstarted(&self) -> Vec<CheckoutKey> {
        let mut withdrawn = Vec::new();
        self.shared.queue().checkouts.retain(|waiting| {
            let taken_out = waiting.withdraw();
            withdrawn.extend(taken_out.then_some(waiting.key));
            !taken_out
        });
        withdrawn
    }

    /// Results that no core has reported yet.
    pub fn empty_pockets(&self) -> Vec<Batch> {
        self.shared.cores.iter().flat_map(|core| std::mem::take(&mut *locked(&core.pocket))).collect()
    }

    /// How many cores are in the hands of a controller whose work is cancelled. When one returns, its report
    /// comes after it is no longer counted here.
    pub fn revoked_cores(&self) -> u32 {
        let is_revoked = |core: &&Core| locked(&core.at).iter().any(|checkout| checkout.is_cancelled());
        u32::try_from(self.shared.cores.iter().filter(is_revoked).count()).unwrap_or(u32::MAX)
    }

    pub fn limit_solutions(&self, bytes: usize) {
        self.shared.solution_bytes_limit.store(bytes, Ordering::Relaxed);
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no controller runs under this lock")
    }

    fn shift(self: Arc<Self>) {
        let end = Instant::now() + SHIFT;
        let mut buffer = BytesMut::with_capacity(SHIFT_BUFFER_BYTES);
        while let Some(checkout) = self.first() {
            if self.work_on(&checkout, end, &mut buffer) == ShiftIs::Over {
                break;
            }
        }
        // The decision to end and its record are under one lock: a checkout that comes now is either seen
        // here, or it sees that there is one shift less.
        let mut queue = self.queue();
        if queue.checkouts.is_empty() {
            queue.shifts -= 1;
            return;
        }
        drop(queue);
        rayon::spawn_fifo(move || self.shift());
    }

    /// The first checkout that has problems to take.
    fn first(&self) -> Option<Arc<Checkout>> {
        let mut queue = self.queue();
        loop {
            let first = queue.checkouts.front()?;
            if first.untaken() > 0 && !first.is_cancelled() {
                return Some(Arc::clone(first));
            }
            queue.checkouts.pop_front();
        }
    }

    fn work_on(&self, checkout: &Arc<Checkout>, end: Instant, buffer: &mut BytesMut) -> ShiftIs {
        let core = &self.cores[rayon::current_thread_index().expect("shifts run on the pool's threads")];
        locked(&core.at).push(Arc::clone(checkout));
        let solution_bytes_limit = self.solution_bytes_limit.load(Ordering::Relaxed);
        let controller = self.controllers.get(&checkout.controller).expect("only known controllers come here");
        let mut now = Instant::now();
        let mut shift_is = ShiftIs::Over;
        while now < end {
            let Some(taken) = checkout.take() else {
                shift_is = ShiftIs::Running;
                break;
            };
            if taken.first {
                self.report(Report::Started(checkout.key));
            }
            let task = Task { checkout, problem: taken.problem, solution_bytes_limit };
            let (outcome, more) = controller.solve(&task, buffer);
            let began = std::mem::replace(&mut now, Instant::now());
            let result = ProblemResult { problem_id: taken.problem.problem_id, outcome: Some(outcome), more };
            pocket_result(&mut locked(&core.pocket), checkout.key, result, now - began);
        }
        locked(&core.at).pop();
        let batches = std::mem::take(&mut *locked(&core.pocket));
        batches.into_iter().for_each(|batch| self.report(Report::Results(batch)));
        shift_is
    }

    /// Waits for room. An agent that is gone has no use for reports.
    fn report(&self, report: Report) {
        let _ = self.reports.blocking_send(report);
    }
}

fn locked<T>(of_a_core: &Mutex<T>) -> MutexGuard<'_, T> {
    of_a_core.lock().expect("no controller runs under this lock")
}

/// Several checkouts share a pocket only if a controller's own rayon let a second shift in between.
fn pocket_result(pocket: &mut Vec<Batch>, key: CheckoutKey, result: ProblemResult, busy: Duration) {
    match pocket.last_mut() {
        Some(batch) if batch.key == key => {
            batch.results.push(result);
            batch.busy += busy;
        }
        Some(_) | None => pocket.push(Batch { key, results: vec![result], busy }),
    }
}

#[derive(PartialEq, Eq)]
enum ShiftIs {
    Running,
    Over,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pcfarm_proto::v1;

    use super::*;
    use crate::builtin::{Echo, Sleep};

    fn checkout(id: i64, controller: &str, payload: &'static str, problems: i64) -> Arc<Checkout> {
        let problem = |problem_id| v1::Problem { problem_id, payload: payload.into(), ..Default::default() };
        Arc::new(Checkout::new(v1::Checkout {
            checkout_id: id,
            controller: controller.to_owned(),
            problems: (0..problems).map(problem).collect(),
            ..Default::default()
        }))
    }

    fn pool(cores: usize) -> (Pool, mpsc::Receiver<Report>) {
        let mut controllers = Controllers::default();
        controllers.add(Echo);
        controllers.add(Sleep);
        Pool::new(threads(cores).expect("threads can be started"), controllers)
    }

    /// Counts results by checkout until there are so many.
    fn results(reports: &mut mpsc::Receiver<Report>, count: usize) -> BTreeMap<i64, usize> {
        let mut counts = BTreeMap::new();
        while counts.values().sum::<usize>() < count {
            if let Report::Results(batch) = reports.blocking_recv().expect("the pool is alive") {
                *counts.entry(batch.key.checkout_id.0).or_default() += batch.results.len();
            }
        }
        counts
    }

    #[test]
    fn every_problem_is_reported_once() {
        let (pool, mut reports) = pool(3);
        for id in 1..=50 {
            pool.compute(checkout(id, "echo", "1", id));
        }
        let expected: BTreeMap<i64, usize> = (1..=50).zip(1..).collect();
        assert_eq!(results(&mut reports, 50 * 51 / 2), expected);
        // The pool went to sleep; it wakes up again.
        pool.compute(checkout(99, "echo", "1", 1));
        assert_eq!(results(&mut reports, 1), BTreeMap::from([(99, 1)]));
    }

    #[test]
    fn what_waits_can_be_withdrawn_and_what_runs_can_be_cancelled() {
        let (pool, mut reports) = pool(1);
        let long = checkout(1, "sleep", r#"{"ms": 600000}"#, 2);
        pool.compute(Arc::clone(&long));
        assert!(matches!(reports.blocking_recv(), Some(Report::Started(key)) if key == long.key));
        let waiting = checkout(2, "echo", "1", 5);
        pool.compute(Arc::clone(&waiting));
        assert_eq!(pool.withdraw_unstarted(), [waiting.key]);
        pool.cancel(&long);
        // Its sleeper wakes up, its second problem is dropped, and the core is free.
        pool.compute(checkout(3, "echo", "1", 1));
        assert_eq!(results(&mut reports, 2), BTreeMap::from([(1, 1), (3, 1)]));
    }

    #[test]
    fn one_by_one_the_next_goes_before_what_waits() {
        let (pool, mut reports) = pool(1);
        let message = v1::Checkout {
            checkout_id: 1,
            controller: "echo".to_owned(),
            problems: vec![v1::Problem { payload: "1".into(), ..Default::default() }; 2],
            one_by_one: true,
            ..Default::default()
        };
        let careful = Arc::new(Checkout::new(message));
        pool.compute(Arc::clone(&careful));
        assert_eq!(results(&mut reports, 1), BTreeMap::from([(1, 1)]));
        let long = checkout(2, "sleep", r#"{"ms": 600000}"#, 1);
        pool.compute(Arc::clone(&long));
        assert!(matches!(reports.blocking_recv(), Some(Report::Started(key)) if key == long.key));
        pool.compute(checkout(3, "sleep", r#"{"ms": 600000}"#, 1));
        careful.release(1);
        pool.compute(Arc::clone(&careful));
        pool.cancel(&long);
        assert_eq!(results(&mut reports, 2), BTreeMap::from([(1, 1), (2, 1)]));
    }

    #[test]
    fn a_deaf_core_is_counted_until_it_returns_and_the_others_go_on() {
        let (pool, mut reports) = pool(2);
        let deaf = checkout(1, "sleep", r#"{"ms": 300, "deaf": true}"#, 1);
        pool.compute(Arc::clone(&deaf));
        assert!(matches!(reports.blocking_recv(), Some(Report::Started(_))));
        assert_eq!(pool.revoked_cores(), 0);
        pool.cancel(&deaf);
        assert_eq!(pool.revoked_cores(), 1);
        pool.compute(checkout(2, "echo", "1", 100));
        assert_eq!(results(&mut reports, 101), BTreeMap::from([(1, 1), (2, 100)]));
        assert_eq!(pool.revoked_cores(), 0);
    }

    #[test]
    fn a_quick_result_is_in_a_pocket_while_a_slow_problem_runs() {
        let (pool, mut reports) = pool(1);
        let mut message = v1::Checkout { controller: "sleep".to_owned(), ..Default::default() };
        for payload in [r#"{"ms": 0}"#, r#"{"ms": 600000}"#] {
            message.problems.push(v1::Problem { payload: payload.into(), ..Default::default() });
        }
        let checkout = Arc::new(Checkout::new(message));
        pool.compute(Arc::clone(&checkout));
        let mut solved = 0;
        while solved == 0 {
            solved += pool.empty_pockets().iter().map(|batch| batch.results.len()).sum::<usize>();
            // A core that was slow to begin ends its shift after the first problem.
            if let Ok(Report::Results(batch)) = reports.try_recv() {
                solved += batch.results.len();
            }
            std::thread::yield_now();
        }
        assert_eq!(solved, 1);
        pool.cancel(&checkout);
    }

    /// `cargo test --release -p pcfarm-worker -- --ignored --nocapture overhead`
    #[test]
    #[ignore = "a measurement, not a test"]
    fn overhead_of_the_pool() {
        for cores in [1, 2] {
            let (pool, mut reports) = pool(cores);
            let checkouts: Vec<_> = (1..=100).map(|id| checkout(id, "echo", "1", 20_000)).collect();
            let began = Instant::now();
            checkouts.into_iter().for_each(|checkout| pool.compute(checkout));
            results(&mut reports, 2_000_000);
            println!("{cores} cores: {:?} a no-op problem", began.elapsed() / 2_000_000);
        }
    }
}
