//! What a controller is, and the problem it is given.
//!
//! Owns the interface between the agent and the code that solves. It never knows of servers or sessions.

use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use anyhow::Context;
use pcfarm_proto::ids::{CheckoutId, JobId, ProblemId};
use pcfarm_proto::v1;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::named::{self, ProblemFile};
use crate::related;
use crate::storable;
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
    /// So a job type with a time limit whose problems run native code that cannot ask belongs in a program of its own
    /// (`exec`), which is ended when it is cancelled.
    fn solve(&self, problem: &Problem<'_, Self::Payload>) -> anyhow::Result<Self::Solution>;
}

/// A problem in a controller's hands.
pub struct Problem<'a, P> {
    pub(crate) checkout: &'a Checkout,
    pub(crate) message: &'a pcfarm_proto::v1::Problem,
    pub(crate) payload: P,
    /// What it brings beside its solution.
    pub(crate) more: &'a Mutex<v1::More>,
}

/// A problem that another one enqueues.
#[derive(Clone, Debug, PartialEq)]
pub struct NewProblem(pub(crate) v1::SubmitProblem);

impl NewProblem {
    /// Of its job's own type. An error if the payload cannot be stored as JSON.
    pub fn new(key: impl Into<String>, payload: &(impl Serialize + ?Sized)) -> anyhow::Result<NewProblem> {
        let key = key.into();
        let payload = storable::json(payload).with_context(|| format!("the payload of problem {key:?}"))?.into();
        Ok(NewProblem(v1::SubmitProblem { key, payload, ..v1::SubmitProblem::default() }))
    }

    pub fn key(&self) -> &str {
        &self.0.key
    }

    pub fn payload<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        Ok(serde_json::from_slice(&self.0.payload)?)
    }

    /// Of another job type than its job's.
    #[must_use]
    pub fn job_type(mut self, name: &str) -> NewProblem {
        self.details().job_type = name.to_owned();
        self
    }

    /// Within the job, highest first.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> NewProblem {
        self.details().priority = priority;
        self
    }

    /// Of those that come together and have one priority, the earliest is first.
    #[must_use]
    pub fn deadline(mut self, deadline: SystemTime) -> NewProblem {
        self.details().deadline = Some(deadline.into());
        self
    }

    /// It is not handed out before.
    #[must_use]
    pub fn not_before(mut self, moment: SystemTime) -> NewProblem {
        self.details().not_before = Some(moment.into());
        self
    }

    /// What it counts against limits by the hour; 1 if it is not said.
    #[must_use]
    pub fn weight(mut self, weight: u32) -> NewProblem {
        self.details().weight = weight;
        self
    }

    /// Those of one group that come together share a convoy.
    #[must_use]
    pub fn group(mut self, group: &str) -> NewProblem {
        self.0.group_key = group.to_owned();
        self
    }

    fn details(&mut self) -> &mut v1::SubmitDetails {
        self.0.details.get_or_insert_default()
    }
}

impl<P> Problem<'_, P> {
    /// What the problem is called in its job. Looked through at every call.
    pub fn key(&self) -> &str {
        self.message.key_text().expect("it was looked at when it came")
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

    /// What is said about the job while it runs, as it was when the checkout was sent, if anything is. Parsed at every
    /// call.
    pub fn info<T: DeserializeOwned>(&self) -> anyhow::Result<Option<T>> {
        if self.checkout.info.is_empty() {
            return Ok(None);
        }
        serde_json::from_slice(&self.checkout.info)
            .map(Some)
            .with_context(|| format!("the info of job {} does not parse", self.job_name()))
    }

    /// Merges an object into the job's info when the solution is stored (JSON merge patch, RFC 7396: null removes a
    /// key). Called again, it adds to the same patch.
    pub fn update_info(&self, patch: &impl Serialize) -> anyhow::Result<()> {
        let given: serde_json::Value = serde_json::from_slice(&storable::json(patch)?)?;
        let serde_json::Value::Object(given) = given else { anyhow::bail!("a patch of a job's info is an object") };
        let mut more = self.more.lock().expect("nothing panics under this lock");
        let mut all: serde_json::Map<String, serde_json::Value> = match more.info.is_empty() {
            true => serde_json::Map::new(),
            false => serde_json::from_slice(&more.info)?,
        };
        all.extend(given);
        more.info = serde_json::to_vec(&all)?.into();
        Ok(())
    }

    /// Puts a problem into this one's job when the solution is stored, in the same transaction: both happen, or neither.
    /// A problem that fails enqueues nothing, and what the farm cannot take fails this problem.
    pub fn enqueue(&self, problem: NewProblem) {
        self.more.lock().expect("nothing panics under this lock").enqueue.push(problem.0);
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

    /// The names of its job type's related reads.
    pub fn related_reads(&self) -> impl Iterator<Item = &str> {
        self.checkout.related().names()
    }

    /// A file by the name that the problem's payload has for it, under `files`, or its job. Waits until it is fetched, if this
    /// agent has not got it: behind the first problem of a job that needs it, all find it there. It is not to be changed, and
    /// may go once the answer is dropped. Parses the payload at every call.
    pub fn file(&self, name: &str) -> anyhow::Result<ProblemFile<'_>> {
        named::file(self.checkout, &self.message.payload, name, &|| self.cancelled())
    }

    /// Whether the work is no longer wanted: its checkout was revoked, or the agent must stop. True as soon
    /// as the agent knows, and to ask is to read one atomic. Long computations ask now and then, and
    /// return early with whatever they like: it is not delivered.
    pub fn cancelled(&self) -> bool {
        self.checkout.is_cancelled()
    }
}

/// The guide's controllers compile.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide.md")]
struct Guide;

/// Those of the page about steps as well.
#[cfg(doctest)]
#[doc = include_str!("../../docs/controllers-in-rust.md")]
struct StepsPage;
