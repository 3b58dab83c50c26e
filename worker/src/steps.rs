//! Controllers of several steps, each on the threads of what it depends on.
//!
//! After the job-based architecture, whose idea is that *a thread pool is a parameter*: a job is cut into steps that declare
//! what they depend on; whatever can serve only so many at a time gets a pool with as many threads; a step with such a
//! dependency runs there, and one without goes on on the thread that finished the step before. So a bottleneck is on its
//! own, whoever does not need it goes on, and a chain without bottlenecks never changes threads. (It was published as a
//! draft, without measured results; `scripts/bench pools` measures it here.)
//!
//! ```
//! use pcfarm_worker::steps::{Dependency, Next, Step, StepController, Steps};
//! use pcfarm_worker::Problem;
//!
//! /// Looks a flight's demand up, which the database does for twenty at a time, and then computes.
//! struct Overbooking {
//!     database: Dependency,
//! }
//!
//! const DEMAND: Step<u32> = Step::named("demand");
//! const LIMIT: Step<f64> = Step::named("limit");
//!
//! impl StepController for Overbooking {
//!     const NAME: &'static str = "overbooking";
//!     type Payload = u32;
//!     type Solution = u64;
//!
//!     fn steps(&self, steps: &mut Steps<Self>) {
//!         steps.first(DEMAND).uses(&self.database).then(LIMIT).run(Self::demand);
//!         steps.step(LIMIT).uses(&Dependency::cores()).run(Self::limit);
//!     }
//! }
//!
//! impl Overbooking {
//!     fn demand(&self, _: &Problem<'_, ()>, flight: u32) -> anyhow::Result<Next<u64>> {
//!         let mean = f64::from(flight); // a query, say
//!         Ok(Next::step(LIMIT, mean))
//!     }
//!
//!     fn limit(&self, _: &Problem<'_, ()>, mean: f64) -> anyhow::Result<Next<u64>> {
//!         Ok(Next::solved((mean * 1.1) as u64))
//!     }
//! }
//!
//! # let agent =
//! pcfarm_worker::Agent::new().steps(Overbooking { database: Dependency::bounded("database", 20) });
//! # let _ = agent;
//! ```
//!
//! What happens
//!
//! - **at start**: what cannot work is refused, all of it at once: dependencies that use each other in a circle, one of
//!   size 0, two of one name that differ, a step that goes on with one that is not there or takes something else. A step
//!   that needs two pools is a warning that names both and how it comes to them: it runs on the smaller one, and the other
//!   one does not count it.
//! - **where there is no room**: a problem takes a place in every pool that it may come to before it begins (its size and
//!   its queue are the places there are), so no queue overflows and no thread waits for room in one. Its checkout waits; the
//!   agent asks for no more problems of that controller, goes on asking for others, and says in its log and to `pcfarm
//!   explain` which dependency it is.
//! - **when a checkout is revoked or cancelled**: no step of it begins any more, those that wait or are queued are dropped,
//!   and one that runs is told by [`Problem::cancelled`](crate::Problem::cancelled). One that does not return keeps its thread.
//! - **when a step panics or fails**: its problem fails, alone. In a branch, its [`Join`] decides.
//! - **when it waits** ([`Next::wait`]): it holds no thread. If the job type has a time limit, it fails when that is over.
//! - **when the agent stops**: steps go on for the grace period; then what is not finished goes back, and nobody waits for a
//!   step that does not return.
//!
//! The modules, in reading order: `dependency` and `declare`, what is said; `next` and `readiness`, what a step returns;
//! `wiring`, what follows from the declarations; `engine`, which runs it: `flight`, a problem under way, `places`, who may
//! begin, `pool`, one dependency's threads, `climb`, how many, and `budget`, how much of the cores they
//! may use beside computations.

mod budget;
mod climb;
mod declare;
mod dependency;
mod engine;
mod flight;
mod next;
mod places;
mod pool;
mod readiness;
#[cfg(test)]
mod tests;
mod wiring;

pub use declare::{StepBuilder, StepController, Steps};
pub use dependency::{Dependency, Uses};
pub use next::{Branch, Join, Next, Step, Wait};
pub use pool::PoolReport;
pub use readiness::Readiness;
pub use wiring::WiringError;

pub(crate) use budget::POOLS_SHARE;
pub(crate) use declare::Declaration;
pub(crate) use engine::{Admission, Engine, Flow, Running, taken};
pub(crate) use flight::{Sink, Task, Where};
