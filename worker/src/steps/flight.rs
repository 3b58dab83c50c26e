//! A problem under way: its steps that are to be run, and its branches that are to join.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use pcfarm_proto::v1;
use pcfarm_proto::v1::ProblemResult;
use pcfarm_proto::v1::problem_result::Outcome;

use super::engine::{Engine, Flow};
use super::next::{Join, Part, Rule, Value};
use super::wiring::Set;
use crate::solve::{failure, weighed};
use crate::work::{Checkout, CheckoutKey};

/// Where a step is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    Core,
    Pool(usize),
}

/// Whose problems they are: a session of the agent.
pub trait Sink: Send + Sync {
    /// The first problem of a checkout is begun.
    fn started(&self, key: CheckoutKey);
    /// Of a problem whose checkout is still wanted. `busy` is the time of cores that it is worth.
    fn ended(&self, key: CheckoutKey, result: ProblemResult, busy: Duration, at: Option<Where>);
    /// A core is to go on with it.
    fn on_cores(&self, task: Task);
    /// There is room for problems that had none.
    fn feed(&self);
    fn solution_bytes_limit(&self) -> usize;
}

/// What all steps of one problem share.
pub struct Flight {
    pub(super) engine: Arc<Engine>,
    pub(super) flow: Arc<Flow>,
    pub(super) sink: Arc<dyn Sink>,
    pub(super) checkout: Arc<Checkout>,
    /// Its index there.
    problem: usize,
    pub(super) more: Mutex<v1::More>,
    pub(super) began: Instant,
    busy_nanos: AtomicU64,
    /// How often, one after the other, it has waited for what was ready.
    vain_waits: AtomicU32,
    /// Its checkout is to be reported as started when it is.
    tells: AtomicBool,
    ended: AtomicBool,
}

impl Flight {
    pub(super) fn new(engine: Arc<Engine>, flow: Arc<Flow>, sink: Arc<dyn Sink>, taken: &TakenProblem) -> Flight {
        Flight {
            engine,
            flow,
            sink,
            checkout: Arc::clone(&taken.checkout),
            problem: taken.index,
            more: Mutex::default(),
            began: Instant::now(),
            busy_nanos: AtomicU64::new(0),
            vain_waits: AtomicU32::new(0),
            tells: AtomicBool::new(taken.index == 0),
            ended: AtomicBool::new(false),
        }
    }

    pub(super) fn message(&self) -> &v1::Problem {
        &self.checkout.problems[self.problem]
    }

    pub(super) fn is_over(&self) -> bool {
        self.checkout.is_cancelled() || self.ended.load(Ordering::Relaxed)
    }

    pub(super) fn begins(&self) {
        if self.tells.load(Ordering::Relaxed) && self.tells.swap(false, Ordering::Relaxed) {
            self.sink.started(self.checkout.key);
        }
    }

    /// A pool that serves fifty does a step in the fiftieth of its time, as far as the farm's sizes of checkouts go, and
    /// all cores together in theirs.
    pub(super) fn add_busy(&self, time: Duration, at: Where) {
        let time = match at {
            Where::Core => time,
            Where::Pool(pool) => time.mul_f64(self.engine.cores_per_thread(pool)),
        };
        self.busy_nanos.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// When it has waited for too long.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.checkout.time_limit.and_then(|limit| self.began.checked_add(limit))
    }

    /// It waits for what is ready. How often it has done so before, and nothing else since.
    pub(super) fn waits_in_vain(&self) -> u32 {
        self.vain_waits.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn goes_on(&self) {
        self.vain_waits.store(0, Ordering::Relaxed);
    }

    pub(super) fn solved(&self, solution: bytes::Bytes, at: Where) {
        let more = std::mem::take(&mut *self.more.lock().expect("nothing panics under this lock"));
        match weighed(solution.len(), more, self.sink.solution_bytes_limit()) {
            Ok(more) => self.end(Outcome::Solution(solution), more, Some(at)),
            Err(error) => self.end(failure(&format!("{error:#}")), None, Some(at)),
        }
    }

    pub(super) fn failed(&self, message: &str, at: Option<Where>) {
        self.end(failure(message), None, at);
    }

    fn end(&self, outcome: Outcome, more: Option<v1::More>, at: Option<Where>) {
        if self.ended.swap(true, Ordering::Relaxed) || self.checkout.is_cancelled() || self.engine.is_closing() {
            return;
        }
        self.begins();
        let result = ProblemResult { problem_id: self.message().problem_id, outcome: Some(outcome), more };
        let busy = Duration::from_nanos(self.busy_nanos.load(Ordering::Relaxed));
        self.sink.ended(self.checkout.key, result, busy, at);
    }
}

impl Drop for Flight {
    /// Whatever went wrong: a problem that was begun ends.
    fn drop(&mut self) {
        if !self.is_over() {
            self.failed("its steps came to no end", None);
        }
    }
}

/// A problem that was taken from its checkout.
pub struct TakenProblem {
    pub checkout: Arc<Checkout>,
    pub index: usize,
}

/// Places that are held until this goes.
pub(super) struct Permit {
    engine: Arc<Engine>,
    set: Set,
}

impl Permit {
    /// The places have been taken.
    pub fn of(engine: Arc<Engine>, set: Set) -> Permit {
        Permit { engine, set }
    }

    /// Lets go of pools that are not among these.
    pub fn keep(&mut self, reach: Set) {
        let gone = self.set & !reach & Engine::ALL_POOLS;
        if gone != 0 {
            self.set &= !gone;
            self.engine.let_go(gone);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.engine.let_go(self.set);
    }
}

/// One step that is to be run.
pub struct Task {
    pub(super) flight: Arc<Flight>,
    pub(super) step: usize,
    pub(super) input: Input,
    pub(super) branch: Option<Branch>,
    /// None: it is one of several branches, and uses the places of what they came from.
    pub(super) permit: Option<Permit>,
}

pub(super) enum Input {
    /// The problem's payload, which is parsed where the first step runs.
    Payload,
    Value(Value),
}

impl Task {
    pub fn checkout(&self) -> &Arc<Checkout> {
        &self.flight.checkout
    }

    /// Nobody wants it any more.
    pub fn is_dead(&self) -> bool {
        self.flight.is_over() || self.branch.as_ref().is_some_and(Branch::is_settled)
    }
}

/// A task's place among the branches of its problem.
pub(super) struct Branch {
    joint: Arc<Joint>,
    index: usize,
}

impl Branch {
    /// Its join goes on without it, or one further up does.
    fn is_settled(&self) -> bool {
        self.joint.state().settled || self.joint.above.as_ref().is_some_and(Branch::is_settled)
    }
}

/// Where branches join.
pub(super) struct Joint {
    join: Join,
    /// The step's index.
    step: usize,
    /// The branch that fanned out, if it was one.
    above: Option<Branch>,
    state: Mutex<JointState>,
}

struct JointState {
    parts: Vec<Option<Part>>,
    left: usize,
    /// Not begun: step and value.
    pending: VecDeque<(usize, usize, Value)>,
    /// What was held by whoever fanned out.
    permit: Option<Permit>,
    settled: bool,
}

/// What follows when a branch has ended.
pub(super) enum Joined {
    /// Others are under way.
    Later,
    /// Another branch begins.
    Begin { branch: Branch, step: usize, value: Value, permit: Option<Permit> },
    /// The join's step comes next, in the branch above if there is one.
    Join { step: usize, parts: Vec<Part>, permit: Option<Permit> },
    /// What fanned out has failed.
    Failed { message: String, permit: Option<Permit> },
}

impl Joint {
    /// `branches`: steps and what they are given.
    pub fn new(
        join: Join,
        step: usize,
        branches: Vec<(usize, Value)>,
        above: Option<Branch>,
        permit: Option<Permit>,
    ) -> Arc<Joint> {
        let state = JointState {
            parts: branches.iter().map(|_| None).collect(),
            left: branches.len(),
            pending: branches.into_iter().enumerate().map(|(index, (step, value))| (index, step, value)).collect(),
            permit,
            settled: false,
        };
        Arc::new(Joint { join, step, above, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, JointState> {
        self.state.lock().expect("no controller's code runs under this lock")
    }

    pub fn gather(&self, parts: Vec<Part>) -> anyhow::Result<Value> {
        (self.join.gather)(parts)
    }

    pub fn above(&self) -> Option<Branch> {
        self.above.as_ref().map(|above| Branch { joint: Arc::clone(&above.joint), index: above.index })
    }

    /// The next branch that has not begun.
    pub fn begin(self: &Arc<Self>) -> Option<(Branch, usize, Value)> {
        let (index, step, value) = self.state().pending.pop_front()?;
        Some((Branch { joint: Arc::clone(self), index }, step, value))
    }

    pub fn has_more(&self) -> bool {
        !self.state().pending.is_empty()
    }

    /// Of no branches at all.
    pub fn join_nothing(&self) -> Joined {
        let mut state = self.state();
        state.settled = true;
        Joined::Join { step: self.step, parts: Vec::new(), permit: state.permit.take() }
    }
}

impl Branch {
    pub fn joint(&self) -> &Arc<Joint> {
        &self.joint
    }

    /// Ends it with its part. `permit` is the branch's own, for the one that begins in its place.
    pub fn end(self, part: Part, permit: Option<Permit>) -> Ended {
        let Branch { joint, index } = self;
        let mut state = joint.state();
        if state.settled {
            drop(state);
            return Ended { joined: Joined::Later, leaves_others: false, never: Vec::new() };
        }
        state.left -= 1;
        let failed = part.as_ref().err().cloned();
        let rule = joint.join.rule;
        let settles = match (rule, &failed) {
            (Rule::All, Some(_)) | (Rule::First, None) => true,
            (Rule::All, None) | (Rule::Each, _) | (Rule::First, Some(_)) => state.left == 0,
        };
        if !settles {
            state.parts[index] = Some(part);
            let begun = state.pending.pop_front();
            drop(state);
            let joined = match begun {
                Some((index, step, value)) => Joined::Begin { branch: Branch { joint, index }, step, value, permit },
                None => Joined::Later,
            };
            return Ended { joined, leaves_others: false, never: Vec::new() };
        }
        state.settled = true;
        let above = state.permit.take();
        let never: Vec<Value> = state.pending.drain(..).map(|(_, _, value)| value).collect();
        let leaves_others = state.left > never.len();
        let parts = match rule {
            Rule::First => vec![part],
            Rule::All | Rule::Each => {
                state.parts[index] = Some(part);
                state.parts.iter_mut().filter_map(Option::take).collect()
            }
        };
        drop(state);
        let joined = match (rule, failed) {
            (Rule::All | Rule::First, Some(message)) => Joined::Failed { message, permit: above },
            (Rule::All | Rule::First, None) | (Rule::Each, _) => {
                Joined::Join { step: joint.step, parts, permit: above }
            }
        };
        Ended { joined, leaves_others, never }
    }
}

/// What the end of a branch comes to.
pub(super) struct Ended {
    pub joined: Joined,
    /// Other branches are under way, for nobody.
    pub leaves_others: bool,
    /// What was never begun, to be dropped where no lock is held.
    pub never: Vec<Value>,
}
