//! What runs the steps of an agent's controllers: one for all its sessions.
//!
//! Owns the pools, who may begin, and what waits without a thread. It never blocks: whoever hands it a task goes on at
//! once, and queues are bounded because places are taken before a problem begins.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use tracing::warn;

use super::budget::Idleness;
use super::declare::{Declaration, Erased};
use super::flight::{Branch, Ended, Flight, Input, Joined, Joint, Permit, Sink, TakenProblem, Task, Where};
use super::next::{Part, Target, Value, Wait};
use super::places::Places;
use super::pool::{PoolReport, StepPool};
use super::readiness::{Readiness, Resume};
use super::wiring::{FlowPlan, Place, Set, StepPlan, WiringError, flow_bit, pool_bit, wire};
use crate::controller::Problem;
use crate::solve::panic_text;
use crate::work::Checkout;

/// How often pools' sizes are looked at. A test need not wait for minutes until a pool has grown.
const TEND_EVERY: Duration = if cfg!(test) { Duration::from_millis(100) } else { Duration::from_secs(1) };

/// A step that waits for what is ready, and comes back to wait again, is out of step with it: it pauses for so long, and
/// twice as long each time, so that it does not keep a thread from others.
const VAIN_PAUSE: Duration = Duration::from_millis(5);

/// So often at most its pause is doubled.
const VAIN_DOUBLINGS: u32 = 7;

/// A wired controller.
pub struct Flow {
    declaration: Declaration,
    plan: FlowPlan,
    index: usize,
}

impl Flow {
    fn step(&self, step: usize) -> &StepPlan {
        &self.plan.steps[step]
    }

    /// The first step is some pool's: no core is needed to begin a problem.
    pub fn begins_in_pool(&self) -> bool {
        matches!(self.step(self.plan.first).place, Place::Pool(_))
    }

    /// Some step is some pool's.
    pub fn has_pools(&self) -> bool {
        self.step(self.plan.first).reach != 0
    }

    fn index_of(&self, from: usize, name: &str) -> anyhow::Result<usize> {
        let (steps, of) = (&self.declaration.steps, self.declaration.name);
        let next = self.step(from).then.iter().find(|next| steps[**next].name == name);
        next.copied().ok_or_else(|| {
            anyhow::anyhow!(
                "step {} of {of} goes on with {name}, which it was not declared to be followed by",
                steps[from].name
            )
        })
    }
}

pub struct Engine {
    me: Weak<Engine>,
    flows: HashMap<&'static str, Arc<Flow>>,
    pools: Vec<Arc<StepPool>>,
    places: Places,
    cores: usize,
    /// What pools may use of them while all compute, in seconds of a core for each second.
    pools_rate: f64,
    /// Shifts of cores that are running or waiting for a thread, of all sessions.
    shifts: AtomicUsize,
    /// Though all cores have something to do, this machine has not.
    is_idle: AtomicBool,
    sessions: Mutex<Vec<Weak<dyn Sink>>>,
    /// Which session is fed first.
    turn: AtomicUsize,
    parked: Mutex<Parked>,
    due: Condvar,
    closing: AtomicBool,
}

/// What waits without a thread.
#[derive(Default)]
struct Parked {
    tasks: HashMap<u64, Waiting>,
    due: BTreeSet<(Instant, u64)>,
    last: u64,
}

impl Parked {
    fn is_dead(&self, number: u64) -> bool {
        self.tasks.get(&number).is_some_and(|waiting| waiting.task.is_dead())
    }
}

struct Waiting {
    task: Task,
    for_what: Option<Readiness>,
    due: Option<Instant>,
}

/// Runs steps until this goes: then its threads end as soon as they return.
pub struct Running(Arc<Engine>);

impl Running {
    /// Wires the controllers and starts what they need. Warnings are logged. `pools_share`: see
    /// [`Agent::pools_share`](crate::Agent::pools_share).
    pub fn start(declarations: &[Declaration], cores: usize, pools_share: f64) -> Result<Running, WiringError> {
        let plan = wire(declarations)?;
        for warning in &plan.warnings {
            warn!("{warning}");
        }
        let (count, pools_rate) = (plan.pools.len(), pools_share * cores as f64);
        let pools: Vec<Arc<StepPool>> = (plan.pools.into_iter().enumerate())
            .map(|(index, pool)| Arc::new(StepPool::new(pool.name, pool.bound, index, count, pools_rate)))
            .collect();
        let of_pools = pools.iter().enumerate().map(|(index, pool)| (pool_bit(index), pool.bound.places()));
        let of_flows = declarations.iter().enumerate().map(|(index, flow)| (flow_bit(index), flow.in_flight));
        let places = Places::new(of_pools.chain(of_flows), declarations.len());
        let flows = declarations.iter().zip(plan.flows).enumerate().map(|(index, (declaration, plan))| {
            (declaration.name, Arc::new(Flow { declaration: declaration.clone(), plan, index }))
        });
        let engine = Arc::new_cyclic(|me| Engine {
            me: me.clone(),
            flows: flows.collect(),
            pools,
            places,
            cores,
            pools_rate,
            shifts: AtomicUsize::new(0),
            is_idle: AtomicBool::new(false),
            sessions: Mutex::default(),
            turn: AtomicUsize::new(0),
            parked: Mutex::default(),
            due: Condvar::new(),
            closing: AtomicBool::new(false),
        });
        if !engine.flows.is_empty() {
            let ticking = Arc::clone(&engine);
            // It ends when the engine is closed, and runs no controller's code.
            let clock = std::thread::Builder::new().name("pcfarm-steps-clock".to_owned()).spawn(move || ticking.tick());
            clock.map_err(|error| WiringError(vec![format!("a thread could not be started: {error}")]))?;
        }
        Ok(Running(engine))
    }

    pub fn engine(&self) -> &Arc<Engine> {
        &self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Engine {
    pub(super) const ALL_POOLS: Set = u64::MAX as Set;

    pub fn flow(&self, controller: &str) -> Option<&Arc<Flow>> {
        self.flows.get(controller)
    }

    pub fn controllers(&self) -> impl Iterator<Item = (&'static str, &Arc<Flow>)> {
        self.flows.iter().map(|(name, flow)| (*name, flow))
    }

    /// A session that takes part; it is fed while it lives.
    pub fn join(&self, session: Weak<dyn Sink>) {
        self.sessions.lock().expect("nothing panics under this lock").push(session);
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    pub(super) fn pools_rate(&self) -> f64 {
        self.pools_rate
    }

    /// So many more cores are to work, or so many less.
    pub fn shifts_begin(&self, count: usize) {
        self.shifts.fetch_add(count, Ordering::Relaxed);
    }

    pub fn shift_ends(&self) {
        self.shifts.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whatever pools use of the cores is taken from a computation.
    pub(super) fn cores_compute(&self) -> bool {
        cfg!(target_os = "linux") && self.have_all_cores_work() && !self.is_idle.load(Ordering::Relaxed)
    }

    fn have_all_cores_work(&self) -> bool {
        self.shifts.load(Ordering::Relaxed) >= self.cores
    }

    pub(super) fn cores_per_thread(&self, pool: usize) -> f64 {
        self.cores as f64 / self.pools[pool].size() as f64
    }

    // Beginning

    /// Room for one problem of that controller, until it has ended.
    pub fn admit(&self, flow: &Flow) -> Option<Admission> {
        let reach = flow.step(flow.plan.first).reach;
        let engine = self.me.upgrade().filter(|_| !self.is_closing())?;
        let admitted = self.places.admit(flow.index, reach);
        admitted.then(|| Admission(Permit::of(engine, reach | flow_bit(flow.index))))
    }

    pub(super) fn let_go(&self, set: Set) {
        if self.places.let_go(set) && !self.is_closing() {
            let sessions: Vec<Arc<dyn Sink>> = {
                let mut sessions = self.sessions.lock().expect("nothing panics under this lock");
                sessions.retain(|session| session.strong_count() > 0);
                sessions.iter().filter_map(Weak::upgrade).collect()
            };
            let first = self.turn.fetch_add(1, Ordering::Relaxed);
            for index in 0..sessions.len() {
                sessions[(first + index) % sessions.len()].feed();
            }
        }
    }

    /// The first step of a problem.
    pub fn task(&self, flow: &Arc<Flow>, sink: Arc<dyn Sink>, taken: &TakenProblem, admission: Admission) -> Task {
        let engine = self.me.upgrade().expect("whoever calls this has it");
        let flight = Arc::new(Flight::new(engine, Arc::clone(flow), sink, taken));
        Task { flight, step: flow.plan.first, input: Input::Payload, branch: None, permit: Some(admission.0) }
    }

    /// To where its step belongs.
    pub fn send(&self, task: Task) {
        match task.flight.flow.step(task.step).place {
            Place::Pool(pool) => {
                if let Some(engine) = self.me.upgrade() {
                    self.pools[pool].push(&engine, task);
                }
            }
            Place::Anywhere | Place::Cores => Arc::clone(&task.flight.sink).on_cores(task),
        }
    }

    // Running

    /// Runs a task, and what follows it for as long as that belongs here: in a loop, however long the chain is.
    pub fn run(&self, task: Task, at: Where) {
        let mut next = Some(task);
        while let Some(task) = next {
            let belongs = match task.flight.flow.step(task.step).place {
                Place::Anywhere => true,
                Place::Cores => at == Where::Core,
                Place::Pool(pool) => at == Where::Pool(pool),
            };
            if task.is_dead() {
                return;
            }
            if !belongs {
                return self.send(task);
            }
            next = self.step(task, at);
        }
    }

    fn step(&self, task: Task, at: Where) -> Option<Task> {
        let Task { flight, step, input, branch, permit } = task;
        flight.begins();
        let began = Instant::now();
        let run = || {
            let value = match input {
                Input::Payload => (flight.flow.declaration.parse)(&flight.message().payload)?,
                Input::Value(value) => value,
            };
            let problem =
                Problem { checkout: &flight.checkout, message: flight.message(), payload: (), more: &flight.more };
            let next = (flight.flow.declaration.run[step])(&problem, value)?;
            Turned::of(&flight.flow, step, next)
        };
        // What a panic may leave half done is the value that was handed on, which nobody sees again, and what the
        // controller shares across problems: its locks are poisoned then.
        let turned = catch_unwind(AssertUnwindSafe(run));
        flight.add_busy(began.elapsed(), at);
        let message = match turned {
            Ok(Ok(turned)) => {
                return self.turn(Task { flight, step, input: Input::Payload, branch, permit }, turned, at);
            }
            Ok(Err(error)) => format!("{error:#}"),
            Err(panic) => {
                format!("step {} panicked: {}", flight.flow.declaration.steps[step].name, panic_text(&*panic))
            }
        };
        self.fail(&flight, branch, permit, message, at)
    }

    /// What follows `task`, which has been run.
    fn turn(&self, task: Task, turned: Turned, at: Where) -> Option<Task> {
        let Task { flight, branch, mut permit, .. } = task;
        if !matches!(turned, Turned::Wait(..)) {
            flight.goes_on();
        }
        match turned {
            Turned::Solved(solution) => {
                match &branch {
                    None => flight.solved(solution, at),
                    Some(_) => {
                        let message = "a branch ended with a solution: branches end with a part".to_owned();
                        return self.fail(&flight, branch, permit, message, at);
                    }
                }
                None
            }
            Turned::To(step, value) => {
                if let Some(permit) = &mut permit {
                    permit.keep(kept(&flight.flow, step, branch.as_ref()));
                }
                Some(Task { flight, step, input: Input::Value(value), branch, permit })
            }
            Turned::Part(part) => match branch {
                Some(branch) => self.ended(&flight, branch, Ok(part), permit, at),
                None => {
                    flight.failed("it ended with a part, and is no branch", Some(at));
                    None
                }
            },
            Turned::Wait(wait, step, value) => {
                self.wait(Task { flight, step, input: Input::Value(value), branch, permit }, wait)
            }
            Turned::FanOut(branches, join, step) => {
                let reach = branches.iter().fold(0, |all, (step, _)| all | flight.flow.step(*step).reach);
                if let Some(permit) = &mut permit {
                    permit.keep(reach | kept(&flight.flow, step, branch.as_ref()));
                }
                let joint = Joint::new(join, step, branches, branch, permit);
                self.fan_out(&flight, &joint, reach, at)
            }
        }
    }

    /// Begins as many branches as there is room for; the rest begins when these end. There is always room for one: what its
    /// problem holds.
    fn fan_out(&self, flight: &Arc<Flight>, joint: &Arc<Joint>, reach: Set, at: Where) -> Option<Task> {
        let Some((branch, step, value)) = joint.begin() else {
            let joined = joint.join_nothing();
            return self.joined(flight, joint, joined, at);
        };
        let first =
            Task { flight: Arc::clone(flight), step, input: Input::Value(value), branch: Some(branch), permit: None };
        let mut more = if reach == 0 { self.cores.saturating_sub(1) } else { usize::MAX };
        while more > 0 && joint.has_more() && self.places.take(reach) {
            more -= 1;
            let permit = self.me.upgrade().map(|engine| Permit::of(engine, reach));
            let Some((branch, step, value)) = joint.begin() else { break };
            let flight = Arc::clone(flight);
            self.send(Task { flight, step, input: Input::Value(value), branch: Some(branch), permit });
        }
        Some(first)
    }

    /// The problem fails, or the branch does.
    fn fail(
        &self,
        flight: &Arc<Flight>,
        branch: Option<Branch>,
        permit: Option<Permit>,
        message: String,
        at: Where,
    ) -> Option<Task> {
        match branch {
            None => {
                flight.failed(&message, Some(at));
                None
            }
            Some(branch) => self.ended(flight, branch, Err(message), permit, at),
        }
    }

    fn ended(
        &self,
        flight: &Arc<Flight>,
        branch: Branch,
        part: Part,
        permit: Option<Permit>,
        at: Where,
    ) -> Option<Task> {
        let joint = Arc::clone(branch.joint());
        let Ended { joined, leaves_others, never } = branch.end(part, permit);
        if leaves_others {
            // Branches that nobody waits for must not stand in queues beside what comes next.
            self.sweep();
        }
        drop(never);
        self.joined(flight, &joint, joined, at)
    }

    fn joined(&self, flight: &Arc<Flight>, joint: &Arc<Joint>, joined: Joined, at: Where) -> Option<Task> {
        match joined {
            Joined::Later => None,
            Joined::Begin { branch, step, value, permit } => {
                let flight = Arc::clone(flight);
                Some(Task { flight, step, input: Input::Value(value), branch: Some(branch), permit })
            }
            Joined::Join { step, parts, mut permit } => match joint.gather(parts) {
                Ok(value) => {
                    let branch = joint.above();
                    if let Some(permit) = &mut permit {
                        permit.keep(kept(&flight.flow, step, branch.as_ref()));
                    }
                    Some(Task { flight: Arc::clone(flight), step, input: Input::Value(value), branch, permit })
                }
                Err(error) => self.fail(flight, joint.above(), permit, format!("{error:#}"), at),
            },
            Joined::Failed { message, permit } => self.fail(flight, joint.above(), permit, message, at),
        }
    }

    // Waiting

    fn parked(&self) -> MutexGuard<'_, Parked> {
        self.parked.lock().expect("no controller's code runs under this lock")
    }

    /// None: it goes on later.
    fn wait(&self, task: Task, mut wait: Wait) -> Option<Task> {
        if wait.until.as_ref().is_some_and(Readiness::is_ready) {
            wait.until = None;
            match task.flight.waits_in_vain() {
                // It may have become ready just now. Behind others, as if it had waited.
                0 => {
                    self.send(task);
                    return None;
                }
                times => {
                    let pause = VAIN_PAUSE * 2u32.pow((times - 1).min(VAIN_DOUBLINGS));
                    wait.at_most = Some(wait.at_most.map_or(pause, |time| time.min(pause)));
                }
            }
        } else {
            task.flight.goes_on();
        }
        let at_most = wait.at_most.and_then(|time| Instant::now().checked_add(time));
        let due = at_most.into_iter().chain(task.flight.deadline()).min();
        let number = {
            let mut parked = self.parked();
            parked.last += 1;
            let number = parked.last;
            parked.tasks.insert(number, Waiting { task, for_what: wait.until.clone(), due });
            parked.due.extend(due.map(|due| (due, number)));
            number
        };
        if due.is_some() {
            self.due.notify_one();
        }
        // Whoever has closed this, or cancelled it while its step ran, may have looked before it was here.
        if self.is_closing() || self.parked().is_dead(number) {
            drop(self.unpark(number));
        } else if let Some(ready) = wait.until {
            let me: Weak<dyn Resume> = self.me.clone();
            if !ready.tell_later(number, me) {
                self.go_on(number);
            } else if !self.parked().tasks.contains_key(&number) {
                // The clock was quicker: what it took from here is not to be told.
                ready.forget(number);
            }
        }
        None
    }

    fn unpark(&self, number: u64) -> Option<Task> {
        let waiting = {
            let mut parked = self.parked();
            let waiting = parked.tasks.remove(&number)?;
            if let Some(due) = waiting.due {
                parked.due.remove(&(due, number));
            }
            waiting
        };
        if let Some(ready) = waiting.for_what {
            ready.forget(number);
        }
        Some(waiting.task)
    }

    fn go_on(&self, number: u64) {
        if let Some(task) = self.unpark(number) {
            self.send(task);
        }
    }

    /// The clock: goes on with what has waited long enough, and tends the pools.
    fn tick(&self) {
        let mut tended = Instant::now();
        let mut idleness = Idleness::default();
        while !self.is_closing() {
            let now = Instant::now();
            let due: Vec<u64> = {
                let parked = self.parked();
                let due = parked.due.iter().take_while(|(due, _)| *due <= now);
                due.map(|(_, number)| *number).collect()
            };
            for number in due {
                let Some(task) = self.unpark(number) else { continue };
                if task.flight.deadline().is_some_and(|deadline| deadline <= now) {
                    let limit = task.flight.checkout.time_limit.unwrap_or_default();
                    let step = task.flight.flow.declaration.steps[task.step].name;
                    task.flight
                        .failed(&format!("it waited for step {step} until its time limit of {limit:?} was over"), None);
                } else {
                    self.send(task);
                }
            }
            if tended.elapsed() >= TEND_EVERY {
                tended = Instant::now();
                if let Some(engine) = self.me.upgrade() {
                    self.is_idle.store(idleness.look(self.have_all_cores_work()), Ordering::Relaxed);
                    let active = self.pools.iter().filter(|pool| pool.is_active()).count();
                    self.pools.iter().for_each(|pool| pool.tend(&engine, active));
                }
            }
            let parked = self.parked();
            let first = parked.due.first().map_or(TEND_EVERY, |(due, _)| due.saturating_duration_since(Instant::now()));
            let wait = first.min(TEND_EVERY.saturating_sub(tended.elapsed()));
            drop(self.due.wait_timeout(parked, wait).expect("no controller's code runs under this lock"));
        }
    }

    // Ending

    /// Lets go of whatever nobody wants any more: of checkouts that were cancelled since.
    pub fn sweep(&self) {
        let mut dead: Vec<Task> = self.pools.iter().flat_map(|pool| pool.sweep()).collect();
        let numbers: Vec<u64> = {
            let parked = self.parked();
            parked.tasks.iter().filter(|(_, waiting)| waiting.task.is_dead()).map(|(number, _)| *number).collect()
        };
        dead.extend(numbers.into_iter().filter_map(|number| self.unpark(number)));
        drop(dead);
    }

    fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        let mut left: Vec<Task> = self.pools.iter().flat_map(|pool| pool.close()).collect();
        let waiting = std::mem::take(&mut *self.parked());
        left.extend(waiting.tasks.into_values().map(|waiting| waiting.task));
        self.due.notify_all();
        drop(left);
    }

    // What people are told

    pub fn report(&self) -> Vec<PoolReport> {
        let report = |(index, pool): (usize, &Arc<StepPool>)| {
            pool.report(self.places.taken(index), self.places.most_taken(index))
        };
        self.pools.iter().enumerate().map(report).collect()
    }

    /// How many steps wait without a thread.
    pub fn waiting(&self) -> usize {
        self.parked().tasks.len()
    }

    /// Controllers that have found no room for a problem lately, and what they lack, in words that do not change while it
    /// lasts.
    pub fn held_up(&self) -> BTreeMap<String, String> {
        let of = |flow: &Arc<Flow>| {
            let lacking = self.places.held_up_by(flow.index)?;
            let name = flow.declaration.name;
            let why = match self.pools.get(lacking) {
                Some(pool) => format!("{name} waits for {}, which serves {} at a time", pool.name, pool.bound.most),
                None => format!("{name} has as many problems under way as it allows, {}", flow.declaration.in_flight),
            };
            Some((name.to_owned(), why))
        };
        self.flows.values().filter_map(of).collect()
    }
}

/// Places that a problem was given, for [`Engine::task`].
pub struct Admission(Permit);

impl Resume for Engine {
    fn resume(&self, parked: u64) {
        self.go_on(parked);
    }
}

/// What a step has returned, with steps by index.
enum Turned {
    Solved(bytes::Bytes),
    To(usize, Value),
    FanOut(Vec<(usize, Value)>, super::next::Join, usize),
    Part(Value),
    Wait(Wait, usize, Value),
}

impl Turned {
    fn of(flow: &Flow, from: usize, next: Erased) -> anyhow::Result<Turned> {
        let to = |target: Target| anyhow::Ok((flow.index_of(from, target.step)?, target.value));
        Ok(match next {
            Erased::Solved(solution) => Turned::Solved(solution),
            Erased::Part(part) => Turned::Part(part),
            Erased::To(target) => {
                let (step, value) = to(target)?;
                Turned::To(step, value)
            }
            Erased::Wait { wait, target } => {
                // It may try itself again without having said so.
                let itself = flow.declaration.steps[from].name == target.step;
                let (step, value) = if itself { (from, target.value) } else { to(target)? };
                Turned::Wait(wait, step, value)
            }
            Erased::FanOut { branches, join } => {
                let step = flow.index_of(from, join.step)?;
                Turned::FanOut(branches.into_iter().map(to).collect::<Result<_, _>>()?, join, step)
            }
        })
    }
}

/// The pools that a task at this step may still come to.
fn kept(flow: &Flow, step: usize, branch: Option<&Branch>) -> Set {
    // A branch's own places are for all branches of its join: the next one may begin with them.
    match branch {
        None => flow.step(step).reach,
        Some(_) => Engine::ALL_POOLS,
    }
}

/// A checkout's problem, for tests and [`crate::trial`].
pub fn taken(checkout: &Arc<Checkout>) -> Option<TakenProblem> {
    let index = checkout.take()?.index;
    Some(TakenProblem { checkout: Arc::clone(checkout), index })
}
