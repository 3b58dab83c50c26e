//! What a controller is, and the problem it is given.
//!
//! Owns the interface between the agent and the code that solves. It never knows of servers or sessions.

use std::sync::Arc;

use anyhow::Context;
use pcfarm_proto::ids::{CheckoutId, JobId, ProblemId};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::related;
use crate::work::Checkout;

/// Solves one kind of problem.
///
/// One value serves all cores at once, so what is shared is prepared when it is made. What [`solve`]
/// returns as an error, or panics with, fails that problem alone, with the message; the farm then decides
/// whether to try it again.
///
/// [`solve`]: Controller::solve
pub trait Controller: Send + Sync + 'static {
    /// The name that job types call it by.
    const NAME: &'static str;
    /// What a problem's JSON payload is parsed into.
    type Payload: DeserializeOwned;
    /// What becomes the problem's JSON solution. A number that is not finite, a NUL character, or more
    /// bytes than the farm stores fails the problem.
    type Solution: Serialize;

    /// Solves one problem, on one core. It may use rayon: idle cores of the agent help.
    ///
    /// Where one problem can take long, its loops ask [`Problem::cancelled`] about every second: nothing can
    /// stop a thread from outside. A controller that never asks and does not return is *deaf*: once its
    /// checkout is revoked, by a time limit for instance, the server gives the problem to another agent, but
    /// the core stays lost to this one until it is restarted. With all its cores lost, an agent asks for
    /// nothing, gives back what it holds and says so in its log. A stopping agent does not wait for a deaf
    /// controller beyond its grace period.
    ///
    /// So a job type with a time limit whose problems run native code that cannot ask belongs in a process of
    /// its own: the controller starts it, waits in steps, and kills it when it is cancelled.
    fn solve(&self, problem: &Problem<'_, Self::Payload>) -> anyhow::Result<Self::Solution>;
}

/// A problem in a controller's hands.
pub struct Problem<'a, P> {
    pub(crate) checkout: &'a Checkout,
    pub(crate) message: &'a pcfarm_proto::v1::Problem,
    pub(crate) payload: P,
}

impl<P> Problem<'_, P> {
    /// What the problem is called in its job.
    pub fn key(&self) -> &str {
        &self.message.key
    }

    pub fn payload(&self) -> &P {
        &self.payload
    }

    /// 1 for the first attempt.
    pub fn attempt(&self) -> u32 {
        self.message.attempt
    }

    pub fn problem_id(&self) -> ProblemId {
        ProblemId(self.message.problem_id)
    }

    pub fn job_id(&self) -> JobId {
        self.checkout.job_id
    }

    pub fn job_name(&self) -> &str {
        &self.checkout.job_name
    }

    pub fn job_type(&self) -> &str {
        &self.checkout.job_type
    }

    pub fn checkout_id(&self) -> CheckoutId {
        self.checkout.key.checkout_id
    }

    /// The job's `options.parameters`, if it has any. Parsed at every call.
    pub fn parameters<T: DeserializeOwned>(&self) -> anyhow::Result<Option<T>> {
        if self.checkout.parameters.is_empty() {
            return Ok(None);
        }
        serde_json::from_slice(&self.checkout.parameters)
            .map(Some)
            .with_context(|| format!("the parameters of job {} do not parse", self.job_name()))
    }

    /// The rows of a related read that are for this problem or for every problem, in the order read.
    /// Parsed at every call. An error if the job type has no such read.
    pub fn related<T: DeserializeOwned>(&self, read: &str) -> anyhow::Result<Vec<T>> {
        self.checkout.related().rows(read, self.key())?.map(|row| related::parse(read, row)).collect()
    }

    /// The rows of a related read that are for every problem, in the order read, without those that have a
    /// key. Parsed once for all problems of a checkout, so that a table of seasons costs a problem of some
    /// microseconds next to nothing. An error if the job type has no such read.
    pub fn related_shared<T>(&self, read: &str) -> anyhow::Result<Arc<Vec<T>>>
    where
        T: DeserializeOwned + Send + Sync + 'static,
    {
        self.checkout.related().shared(read)
    }

    /// Whether the work is no longer wanted: its checkout was revoked, or the agent must stop. True as soon
    /// as the agent knows, and to ask is to read one atomic. Long computations ask now and then, and
    /// return early with whatever they like: it is not delivered.
    pub fn cancelled(&self) -> bool {
        self.checkout.is_cancelled()
    }
}
