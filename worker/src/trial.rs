//! Problems without a farm, for controllers' own tests.
//!
//! Owns nothing of the agent: [`Trial`] hands one problem to a controller just as a core would, and [`Rig`] runs many on
//! an agent's cores and pools.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::{Bytes, BytesMut};
use pcfarm_proto::files::FileHash;
use pcfarm_proto::ids::CheckoutId;
use pcfarm_proto::v1::problem_result::Outcome;
use pcfarm_proto::{SOLUTION_BYTES_LIMIT, v1};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::agent::{Agent, AgentError};
use crate::controller::{Controller, NewProblem};
use crate::manners::Rank;
use crate::named::{ProblemFile, Store};
use crate::pool::{self, Batch, Pool, Report};
use crate::solve::{Task, try_solve};
use crate::steps::{PoolReport, Running};
use crate::work::{Checkout, CheckoutKey};

/// A problem to be solved here and now.
///
/// ```
/// use pcfarm_worker::builtin::Echo;
/// use pcfarm_worker::trial::Trial;
///
/// let solution = Trial::new("flight 7").solve(&Echo, &[1, 2])?;
/// assert_eq!(solution, serde_json::json!([1, 2]));
/// # anyhow::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct Trial {
    key: String,
    checkout: v1::Checkout,
    cancelled: bool,
    files: Vec<PathBuf>,
}

impl Trial {
    pub fn new(key: &str) -> Trial {
        Trial { key: key.to_owned(), checkout: v1::Checkout::default(), cancelled: false, files: Vec::new() }
    }

    /// The job's `options.parameters`.
    #[must_use]
    pub fn parameters(mut self, parameters: &impl Serialize) -> Trial {
        self.checkout.parameters = json(parameters);
        self
    }

    /// A row of a related read, for the problem of this key or, without one, for all.
    #[must_use]
    pub fn related(mut self, read: &str, key: Option<&str>, row: &impl Serialize) -> Trial {
        let row = v1::RelatedRow { key: key.map(str::to_owned), row: json(row) };
        self.checkout.related.push(v1::RelatedRead { name: read.to_owned(), rows: vec![row] });
        self
    }

    /// The job's info.
    #[must_use]
    pub fn info(mut self, info: &impl Serialize) -> Trial {
        self.checkout.info = json(info);
        self
    }

    /// A file of the problem or its job, by this name.
    #[must_use]
    pub fn file(mut self, name: &str, path: impl Into<PathBuf>) -> Trial {
        let hash = Given::hash(self.files.len());
        self.checkout.files.push(v1::JobFile { name: name.to_owned(), sha256: hash.0.to_vec().into() });
        self.files.push(path.into());
        self
    }

    /// As if the checkout had been revoked.
    #[must_use]
    pub fn cancelled(mut self) -> Trial {
        self.cancelled = true;
        self
    }

    /// What the farm would store, or why the problem would fail. Panics are the caller's.
    pub fn solve<C: Controller>(&self, controller: &C, payload: &impl Serialize) -> anyhow::Result<serde_json::Value> {
        Ok(self.solve_whole(controller, payload)?.solution)
    }

    /// The same, with what it brings beside its solution.
    pub fn solve_whole<C: Controller>(&self, controller: &C, payload: &impl Serialize) -> anyhow::Result<Solved> {
        let problem =
            v1::Problem { key: self.key.clone().into(), payload: json(payload), attempt: 1, ..v1::Problem::default() };
        let checkout = Checkout::new(v1::Checkout { problems: vec![problem], ..self.checkout.clone() });
        checkout.set_store(Arc::new(Given(self.files.clone())));
        if self.cancelled {
            checkout.cancel();
        }
        let task =
            Task { checkout: &checkout, problem: &checkout.problems[0], solution_bytes_limit: SOLUTION_BYTES_LIMIT };
        let mut solution = BytesMut::new();
        let more = try_solve(controller, &task, &mut solution)?.unwrap_or_default();
        let info = (!more.info.is_empty()).then(|| serde_json::from_slice(&more.info)).transpose()?;
        let enqueued = more.enqueue.into_iter().map(NewProblem).collect();
        Ok(Solved { solution: serde_json::from_slice(&solution)?, enqueued, info })
    }
}

/// The files of a trial. None of them is fetched, so that any names will do where a farm has hashes.
struct Given(Vec<PathBuf>);

impl Given {
    fn hash(index: usize) -> FileHash {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&(index as u64).to_le_bytes());
        FileHash(hash)
    }
}

impl Store for Given {
    fn get(&self, hash: FileHash, _: CheckoutKey, _: &dyn Fn() -> bool) -> anyhow::Result<ProblemFile<'_>> {
        let path = (0..).zip(&self.0).find_map(|(index, path)| (Given::hash(index) == hash).then_some(path));
        Ok(ProblemFile::new(path.context("the trial has no such file")?.clone(), Box::new(())))
    }
}

/// What the farm would store of a problem.
#[derive(Clone, Debug)]
pub struct Solved {
    pub solution: serde_json::Value,
    pub enqueued: Vec<NewProblem>,
    /// A patch for the job's info.
    pub info: Option<serde_json::Value>,
}

/// An agent's cores and pools, without a farm: checkouts go in, outcomes come out as they are reached.
///
/// ```
/// use pcfarm_worker::Agent;
/// use pcfarm_worker::builtin::Echo;
/// use pcfarm_worker::trial::Rig;
///
/// let mut rig = Rig::start(Agent::new().controller(Echo), 2)?;
/// rig.check_out("echo", ["1", "[2]"]);
/// let mut solutions = [rig.next().outcome, rig.next().outcome].map(|outcome| outcome.expect("echo solves all"));
/// solutions.sort_by_key(|solution| solution.to_string());
/// assert_eq!(solutions, [serde_json::json!(1), serde_json::json!([2])]);
/// # anyhow::Ok(())
/// ```
pub struct Rig {
    pool: Pool,
    reports: mpsc::Receiver<Report>,
    outcomes: VecDeque<Ended>,
    /// By number: those of which something is to end, and of how many problems.
    checkouts: HashMap<usize, (Arc<Checkout>, usize)>,
    handed_in: usize,
    running: Running,
}

impl Drop for Rig {
    /// Nobody wants the rest: cores and pools are idle as soon as they return.
    fn drop(&mut self) {
        self.checkouts.values().for_each(|(checkout, _)| checkout.cancel());
    }
}

/// How a problem of a [`Rig`] ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Which checkout it is of, in the order in which they were handed in, from 0; and its place there.
    pub checkout: usize,
    pub problem: usize,
    /// The solution, or the message of the failure.
    pub outcome: Result<serde_json::Value, String>,
}

impl Rig {
    /// Or why an agent with these controllers could not be started.
    pub fn start(agent: Agent, cores: usize) -> Result<Rig, AgentError> {
        let (controllers, running) = agent.parts(cores)?;
        let threads = pool::threads(cores, Rank::AsStarted).map_err(AgentError::Failed)?;
        let (pool, reports) = Pool::new(threads, controllers, Arc::clone(running.engine()));
        Ok(Rig { pool, reports, outcomes: VecDeque::new(), checkouts: HashMap::new(), handed_in: 0, running })
    }

    /// Hands in a checkout of problems with these payloads, which are JSON. Returns its number.
    pub fn check_out<'a>(&mut self, controller: &str, payloads: impl IntoIterator<Item = &'a str>) -> usize {
        self.check_out_within(controller, payloads, None)
    }

    /// The same, with a time limit for each problem.
    pub fn check_out_within<'a>(
        &mut self,
        controller: &str,
        payloads: impl IntoIterator<Item = &'a str>,
        time_limit: Option<Duration>,
    ) -> usize {
        let number = self.handed_in;
        self.handed_in += 1;
        let problem = |(index, payload): (usize, &str)| v1::Problem {
            problem_id: i64::try_from(index).expect("few problems"),
            key: index.to_string().into(),
            payload: Bytes::copy_from_slice(payload.as_bytes()),
            attempt: 1,
            ..v1::Problem::default()
        };
        let checkout = Arc::new(Checkout::new(v1::Checkout {
            checkout_id: i64::try_from(number).expect("few checkouts"),
            controller: controller.to_owned(),
            problems: payloads.into_iter().enumerate().map(problem).collect(),
            time_limit: time_limit.and_then(|limit| prost_types::Duration::try_from(limit).ok()),
            ..v1::Checkout::default()
        }));
        self.checkouts.insert(number, (Arc::clone(&checkout), checkout.problems.len()));
        self.pool.compute(checkout);
        number
    }

    /// As if it had been revoked: what of it ends from now on may or may not be told.
    pub fn cancel(&mut self, checkout: usize) {
        if let Some((checkout, _)) = self.checkouts.remove(&checkout) {
            self.pool.cancel(&checkout);
        }
    }

    /// The next that has ended. Waits for it; not to be called from asynchronous code.
    ///
    /// # Panics
    ///
    /// Never: cores and pools live as long as this.
    #[expect(clippy::should_implement_trait, reason = "there is no end to it")]
    pub fn next(&mut self) -> Ended {
        loop {
            if let Some(ended) = self.outcomes.pop_front() {
                return ended;
            }
            let report = self.reports.blocking_recv().expect("the pool is alive");
            self.take(report);
        }
    }

    /// The same, for asynchronous code.
    pub async fn ended(&mut self) -> Ended {
        loop {
            if let Some(ended) = self.outcomes.pop_front() {
                return ended;
            }
            let report = self.reports.recv().await.expect("the pool is alive");
            self.take(report);
        }
    }

    /// The next that has ended, if there is one already.
    pub fn try_next(&mut self) -> Option<Ended> {
        if self.outcomes.is_empty() {
            while let Ok(report) = self.reports.try_recv() {
                self.take(report);
            }
        }
        self.outcomes.pop_front()
    }

    /// Problems of a checkout that nobody has begun.
    pub fn untaken(&self, checkout: usize) -> usize {
        self.checkouts.get(&checkout).map_or(0, |(checkout, _)| checkout.untaken())
    }

    pub fn pools(&self) -> Vec<PoolReport> {
        self.running.engine().report()
    }

    /// Steps that wait without a thread.
    pub fn waiting(&self) -> usize {
        self.running.engine().waiting()
    }

    /// What keeps a controller's problems from being begun.
    pub fn held_up(&self, controller: &str) -> Option<String> {
        self.pool.held_up().remove(controller)
    }

    fn take(&mut self, report: Report) {
        let batches = match report {
            Report::Started(_) => return,
            Report::Results(batch) => vec![batch],
            Report::Waiting => self.pool.fetch(),
        };
        batches.into_iter().for_each(|batch| self.take_batch(batch));
    }

    fn take_batch(&mut self, batch: Batch) {
        let CheckoutKey { checkout_id: CheckoutId(number), .. } = batch.key;
        let checkout = usize::try_from(number).expect("numbers are given above");
        if let Some((_, left)) = self.checkouts.get_mut(&checkout) {
            *left = left.saturating_sub(batch.results.len());
            if *left == 0 {
                self.checkouts.remove(&checkout);
            }
        }
        let ended = batch.results.into_iter().map(|result| Ended {
            checkout,
            problem: usize::try_from(result.problem_id).expect("ids are given above"),
            outcome: match result.outcome {
                Some(Outcome::Solution(solution)) => Ok(serde_json::from_slice(&solution).expect("solutions are JSON")),
                Some(Outcome::Failure(message)) => Err(message),
                Some(Outcome::Streamed(_) | Outcome::StreamedResult(_)) => unreachable!("only the outbox streams"),
                None => Err("a result without an outcome".to_owned()),
            },
        });
        self.outcomes.extend(ended);
    }
}

fn json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).expect("values of a trial are JSON").into()
}
