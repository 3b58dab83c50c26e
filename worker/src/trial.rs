//! A problem without a farm, for controllers' own tests.
//!
//! Owns nothing of the agent: it hands one problem to a controller just as a core would.

use bytes::{Bytes, BytesMut};
use pcfarm_proto::{SOLUTION_BYTES_LIMIT, v1};
use serde::Serialize;

use crate::controller::{Controller, NewProblem};
use crate::solve::{Task, try_solve};
use crate::work::Checkout;

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
}

impl Trial {
    pub fn new(key: &str) -> Trial {
        Trial { key: key.to_owned(), checkout: v1::Checkout::default(), cancelled: false }
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
            v1::Problem { key: self.key.clone(), payload: json(payload), attempt: 1, ..v1::Problem::default() };
        let checkout = Checkout::new(v1::Checkout { problems: vec![problem], ..self.checkout.clone() });
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

/// What the farm would store of a problem.
#[derive(Clone, Debug)]
pub struct Solved {
    pub solution: serde_json::Value,
    pub enqueued: Vec<NewProblem>,
    /// A patch for the job's info.
    pub info: Option<serde_json::Value>,
}

fn json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).expect("values of a trial are JSON").into()
}
