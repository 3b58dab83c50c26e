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
//! Controllers of several steps begin here if their first step needs a core, and come back for steps that do; what begins in
//! a pool of its own goes there at once, and needs no core for that. A checkout that finds no room in a pool holds up nobody:
//! those behind it go on.
//!
//! A controller that does not return keeps its thread, and nothing here can change that: shifts of other
//! threads pass it by, and nobody waits for its thread, not even to exit.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use pcfarm_proto::SOLUTION_BYTES_LIMIT;
use pcfarm_proto::v1::ProblemResult;
use tokio::sync::mpsc;
use tracing::error;

use crate::manners::Rank;
use crate::solve::{Controllers, Task};
use crate::steps::{self, Admission, Engine, Flow, Sink, Where};
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
    /// Pools have results, to be fetched by [`Pool::fetch`].
    Waiting,
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
pub fn threads(cores: usize, rank: Rank) -> anyhow::Result<Arc<rayon::ThreadPool>> {
    let threads = rayon::ThreadPoolBuilder::new()
        .num_threads(cores)
        .thread_name(|index| format!("pcfarm-core-{index}"))
        .start_handler(move |_| rank.take())
        .build()?;
    Ok(Arc::new(threads))
}

/// What one session computes on them.
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    me: Weak<Shared>,
    threads: Arc<rayon::ThreadPool>,
    controllers: Controllers,
    engine: Arc<Engine>,
    queue: Mutex<Queue>,
    solution_bytes_limit: AtomicUsize,
    /// As the queue has it, for cores that take problem after problem.
    paused: AtomicBool,
    cores: Vec<Core>,
    /// Results of pools' threads, and whether the agent has been told of them: one word for all that come until it looks.
    of_pools: Mutex<Vec<Batch>>,
    told: AtomicBool,
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
    /// Those whose problems begin in pools, by controller: what finds no room holds up only what is behind it.
    pooled: BTreeMap<String, VecDeque<Arc<Checkout>>>,
    /// Whose problem has begun in a pool last: of several that share one, each has its turn.
    begun: String,
    /// Steps that go on on a core.
    tasks: VecDeque<steps::Task>,
    /// Shifts that are running or waiting for a thread; never more than cores.
    shifts: usize,
    /// No problem is taken.
    paused: bool,
}

impl Queue {
    fn all(&mut self) -> impl Iterator<Item = &mut VecDeque<Arc<Checkout>>> {
        std::iter::once(&mut self.checkouts).chain(self.pooled.values_mut())
    }

    /// What begins in pools, from behind the controller whose problem has begun last.
    fn in_turn(&mut self) -> Vec<(&String, &mut VecDeque<Arc<Checkout>>)> {
        let mut lines: Vec<_> = self.pooled.iter_mut().collect();
        let next = lines.partition_point(|(controller, _)| **controller <= self.begun);
        lines.rotate_left(next);
        lines
    }

    /// How many problems and steps there are to take, as far as matters.
    fn untaken(&self, most: usize) -> usize {
        let takes = if self.paused { 0 } else { self.checkouts.len() };
        let counts = self.checkouts.iter().take(takes).map(|checkout| checkout.untaken());
        counts.fold(most.min(self.tasks.len()), |all, untaken| most.min(all + untaken))
    }
}

/// What a core does next.
enum Work {
    Problems(Arc<Checkout>),
    /// Of a controller of several steps; there is room for the first.
    Begin(Arc<Checkout>, Arc<Flow>, Admission),
    Step(steps::Task),
}

impl Pool {
    pub fn new(
        threads: Arc<rayon::ThreadPool>,
        controllers: Controllers,
        engine: Arc<Engine>,
    ) -> (Pool, mpsc::Receiver<Report>) {
        let (reports, receiver) = mpsc::channel(REPORTS_WAITING);
        let cores = threads.current_num_threads();
        let shared = Arc::new_cyclic(|me: &Weak<Shared>| Shared {
            me: me.clone(),
            threads,
            controllers,
            engine,
            queue: Mutex::default(),
            solution_bytes_limit: AtomicUsize::new(SOLUTION_BYTES_LIMIT),
            paused: AtomicBool::new(false),
            cores: (0..cores).map(|_| Core::default()).collect(),
            of_pools: Mutex::default(),
            told: AtomicBool::new(false),
            reports,
        });
        let session: Weak<dyn Sink> = shared.me.clone();
        shared.engine.join(session);
        (Pool { shared }, receiver)
    }

    /// Puts a checkout behind those that wait, or before them if it was begun before them: it is run one by one, or has problems to
    /// take again.
    pub fn compute(&self, checkout: Arc<Checkout>) {
        if let Some(store) = &self.shared.controllers.store {
            checkout.set_store(Arc::clone(store));
        }
        let in_pools = self.shared.engine.flow(&checkout.controller).is_some_and(|flow| flow.begins_in_pool());
        let mut queue = self.shared.queue();
        let line = match in_pools {
            true => queue.pooled.entry(checkout.controller.clone()).or_default(),
            false => &mut queue.checkouts,
        };
        if !checkout.is_begun() {
            line.push_back(checkout);
        } else if line.iter().all(|waiting| waiting.key != checkout.key) {
            line.push_front(checkout);
        }
        self.shared.begin_shifts(queue);
        if in_pools {
            self.shared.begin_in_pools();
        }
    }

    /// Stops a checkout: no more of it is taken, and its controllers are told.
    pub fn cancel(&self, checkout: &Checkout) {
        checkout.cancel();
        let dropped: VecDeque<steps::Task> = {
            let mut queue = self.shared.queue();
            queue.all().for_each(|line| line.retain(|waiting| waiting.key != checkout.key));
            let (dead, alive) = std::mem::take(&mut queue.tasks).into_iter().partition(steps::Task::is_dead);
            queue.tasks = alive;
            dead
        };
        drop(dropped);
        self.shared.engine.sweep();
    }

    /// Takes out the checkouts of which no problem has been taken.
    pub fn withdraw_unstarted(&self) -> Vec<CheckoutKey> {
        let mut withdrawn = Vec::new();
        let mut queue = self.shared.queue();
        for line in queue.all() {
            line.retain(|waiting| {
                let taken_out = waiting.withdraw();
                withdrawn.extend(taken_out.then_some(waiting.key));
                !taken_out
            });
        }
        withdrawn
    }

    /// Controllers whose problems find no room, and why.
    pub fn held_up(&self) -> BTreeMap<String, String> {
        self.shared.engine.held_up()
    }

    /// Results that no core has reported yet.
    pub fn empty_pockets(&self) -> Vec<Batch> {
        let of_cores = self.shared.cores.iter().flat_map(|core| std::mem::take(&mut *locked(&core.pocket)));
        of_cores.chain(self.fetch()).collect()
    }

    /// Results of pools, when they are [`Report::Waiting`].
    pub fn fetch(&self) -> Vec<Batch> {
        self.shared.told.store(false, Ordering::SeqCst);
        std::mem::take(&mut *locked(&self.shared.of_pools))
    }

    /// How many cores are in the hands of a controller whose work is cancelled. When one returns, its report
    /// comes after it is no longer counted here.
    pub fn revoked_cores(&self) -> u32 {
        let is_revoked = |core: &&Core| locked(&core.at).iter().any(|checkout| checkout.is_cancelled());
        u32::try_from(self.shared.cores.iter().filter(is_revoked).count()).unwrap_or(u32::MAX)
    }

    /// How many cores are in the hands of a controller that does not stand still.
    pub fn busy_cores(&self) -> usize {
        let mut standing: BTreeMap<*const Checkout, usize> = BTreeMap::new();
        let mut in_hand = 0;
        for core in &self.shared.cores {
            let at = locked(&core.at);
            in_hand += usize::from(!at.is_empty());
            standing.extend(at.iter().map(|checkout| (Arc::as_ptr(checkout), checkout.standing_still())));
        }
        in_hand.saturating_sub(standing.values().sum())
    }

    /// Lets no problem be taken, or all that wait again. Steps of problems that are under way go on.
    pub fn pause(&self, paused: bool) {
        let mut queue = self.shared.queue();
        queue.paused = paused;
        self.shared.paused.store(paused, Ordering::Relaxed);
        if !paused {
            self.shared.begin_shifts(queue);
            self.shared.begin_in_pools();
        }
    }

    pub fn limit_solutions(&self, bytes: usize) {
        self.shared.solution_bytes_limit.store(bytes, Ordering::Relaxed);
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no controller runs under this lock")
    }

    /// As many more as there are cores for what waits.
    fn begin_shifts(&self, mut queue: MutexGuard<'_, Queue>) {
        let free = self.cores.len() - queue.shifts;
        let new_shifts = queue.untaken(free);
        queue.shifts += new_shifts;
        self.engine.shifts_begin(new_shifts);
        drop(queue);
        for _ in 0..new_shifts {
            if let Some(shared) = self.me.upgrade() {
                self.threads.spawn_fifo(move || shared.shift());
            }
        }
    }

    fn shift(self: Arc<Self>) {
        let end = Instant::now() + SHIFT;
        let mut buffer = BytesMut::with_capacity(SHIFT_BUFFER_BYTES);
        loop {
            let Some(work) = self.next_work() else { return };
            if self.work_on(work, end, &mut buffer) == ShiftIs::Over {
                break;
            }
        }
        // The decision to end and its record are under one lock: a checkout that comes now is either seen
        // here, or it sees that there is one shift less.
        let mut queue = self.queue();
        if queue.untaken(1) == 0 {
            queue.shifts -= 1;
            self.engine.shift_ends();
            return;
        }
        drop(queue);
        rayon::spawn_fifo(move || self.shift());
    }

    /// The first that can be done: steps of problems that are under way, or a checkout that has problems to take for which
    /// there is room. None: there is a shift less.
    fn next_work(&self) -> Option<Work> {
        let mut queue = self.queue();
        if let Some(task) = queue.tasks.pop_front() {
            return Some(Work::Step(task));
        }
        let mut index = if queue.paused { queue.checkouts.len() } else { 0 };
        while let Some(checkout) = queue.checkouts.get(index) {
            if checkout.untaken() == 0 || checkout.is_cancelled() {
                queue.checkouts.remove(index);
                continue;
            }
            match self.engine.flow(&checkout.controller) {
                None => return Some(Work::Problems(Arc::clone(checkout))),
                Some(flow) => {
                    if let Some(admission) = self.engine.admit(flow) {
                        return Some(Work::Begin(Arc::clone(checkout), Arc::clone(flow), admission));
                    }
                }
            }
            index += 1;
        }
        // Whatever comes, or finds room, from here on begins a shift.
        queue.shifts -= 1;
        self.engine.shift_ends();
        None
    }

    fn work_on(&self, work: Work, end: Instant, buffer: &mut BytesMut) -> ShiftIs {
        let core = &self.cores[rayon::current_thread_index().expect("shifts run on the pool's threads")];
        let checkout = match &work {
            Work::Problems(checkout) | Work::Begin(checkout, ..) => Arc::clone(checkout),
            Work::Step(task) => Arc::clone(task.checkout()),
        };
        locked(&core.at).push(Arc::clone(&checkout));
        let shift_is = match work {
            Work::Problems(_) => self.solve(&checkout, core, end, buffer),
            Work::Begin(_, flow, admission) => self.begin(&checkout, &flow, admission, end),
            Work::Step(task) => {
                self.run(task);
                if Instant::now() < end { ShiftIs::Running } else { ShiftIs::Over }
            }
        };
        locked(&core.at).pop();
        let batches = std::mem::take(&mut *locked(&core.pocket));
        batches.into_iter().for_each(|batch| self.report(Report::Results(batch)));
        shift_is
    }

    /// Problem after problem.
    fn solve(&self, checkout: &Arc<Checkout>, core: &Core, end: Instant, buffer: &mut BytesMut) -> ShiftIs {
        let solution_bytes_limit = self.solution_bytes_limit.load(Ordering::Relaxed);
        let controller = self.controllers.get(&checkout.controller).expect("only known controllers come here");
        let mut now = Instant::now();
        while now < end {
            let is_paused = self.paused.load(Ordering::Relaxed);
            let Some(taken) = (!is_paused).then(|| checkout.take()).flatten() else {
                return ShiftIs::Running;
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
        ShiftIs::Over
    }

    /// Problem after problem in steps, each as far as it belongs on a core.
    fn begin(&self, checkout: &Arc<Checkout>, flow: &Arc<Flow>, first: Admission, end: Instant) -> ShiftIs {
        let mut admission = Some(first);
        while Instant::now() < end {
            let Some(admission) = admission.take().or_else(|| self.engine.admit(flow)) else {
                return ShiftIs::Running;
            };
            let Some(task) = self.first_step(checkout, flow, admission) else {
                return ShiftIs::Running;
            };
            self.run(task);
        }
        ShiftIs::Over
    }

    fn first_step(&self, checkout: &Arc<Checkout>, flow: &Arc<Flow>, admission: Admission) -> Option<steps::Task> {
        let session = self.me.upgrade()?;
        let taken = steps::taken(checkout)?;
        Some(self.engine.task(flow, session, &taken, admission))
    }

    fn run(&self, task: steps::Task) {
        // Steps' own panics have ended in their problems by then; what is left are destructors.
        if catch_unwind(AssertUnwindSafe(|| self.engine.run(task, Where::Core))).is_err() {
            error!("something panicked that a step left behind");
        }
    }

    /// Hands problems to the pools that they begin in, as many as there is room for.
    fn begin_in_pools(&self) {
        while let Some((checkout, flow, admission)) = self.next_for_pools() {
            if let Some(task) = self.first_step(&checkout, &flow, admission) {
                self.engine.send(task);
            }
        }
    }

    fn next_for_pools(&self) -> Option<(Arc<Checkout>, Arc<Flow>, Admission)> {
        let mut queue = self.queue();
        if queue.paused {
            return None;
        }
        let mut begins = None;
        for (controller, line) in queue.in_turn() {
            while line.front().is_some_and(|first| first.untaken() == 0 || first.is_cancelled()) {
                line.pop_front();
            }
            let Some(first) = line.front() else { continue };
            let flow = self.engine.flow(controller).expect("what is here begins in a pool");
            if let Some(admission) = self.engine.admit(flow) {
                begins = Some((controller.clone(), Arc::clone(first), Arc::clone(flow), admission));
                break;
            }
        }
        let (controller, first, flow, admission) = begins?;
        queue.begun = controller;
        Some((first, flow, admission))
    }

    /// Waits for room. An agent that is gone has no use for reports.
    fn report(&self, report: Report) {
        let _ = self.reports.blocking_send(report);
    }
}

impl Sink for Shared {
    fn started(&self, key: CheckoutKey) {
        self.report(Report::Started(key));
    }

    fn ended(&self, key: CheckoutKey, result: ProblemResult, busy: Duration, at: Option<Where>) {
        let core = rayon::current_thread_index().filter(|_| at == Some(Where::Core));
        match core {
            Some(core) => pocket_result(&mut locked(&self.cores[core].pocket), key, result, busy),
            None => {
                let mut of_pools = locked(&self.of_pools);
                if of_pools.len() >= REPORTS_WAITING {
                    // The agent is stuck: this thread waits for it, as cores do.
                    drop(of_pools);
                    return self.report(Report::Results(Batch { key, results: vec![result], busy }));
                }
                pocket_result(&mut of_pools, key, result, busy);
                drop(of_pools);
                if !self.told.swap(true, Ordering::SeqCst) {
                    self.report(Report::Waiting);
                }
            }
        }
    }

    fn on_cores(&self, task: steps::Task) {
        let mut queue = self.queue();
        queue.tasks.push_back(task);
        self.begin_shifts(queue);
    }

    fn feed(&self) {
        self.begin_in_pools();
        self.begin_shifts(self.queue());
    }

    fn solution_bytes_limit(&self) -> usize {
        self.solution_bytes_limit.load(Ordering::Relaxed)
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
        let running = steps::Running::start(&[], cores, steps::POOLS_SHARE).expect("nothing can be wrong with nothing");
        Pool::new(
            threads(cores, Rank::AsStarted).expect("threads can be started"),
            controllers,
            running.engine().clone(),
        )
    }

    #[test]
    fn controllers_that_begin_in_pools_take_turns() {
        let mut queue = Queue::default();
        queue.pooled.extend(["a", "b", "c"].map(|name| (name.to_owned(), VecDeque::new())));
        let mut order = |begun: &str| {
            queue.begun = begun.to_owned();
            queue.in_turn().into_iter().map(|(name, _)| name.clone()).collect::<String>()
        };
        assert_eq!([order(""), order("a"), order("bb"), order("c")], ["abc", "bca", "cab", "abc"]);
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
