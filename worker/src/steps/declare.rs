//! A controller of several steps, as its author declares it.

use std::any::{TypeId, type_name};
use std::sync::Arc;

use anyhow::Context;
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::dependency::{Dependency, Uses};
use super::next::{Join, Next, Step, Target, Turn, Value, Wait};
use crate::controller::Problem;
use crate::storable;

/// How many problems of one controller may be under way at once, waiting ones included, if it does not say.
const IN_FLIGHT: usize = 1024;

/// Solves one kind of problem in steps, some of which use something that serves only so many at a time.
///
/// A step is a function of the problem and of what the step before it has handed on. It returns which comes
/// [next](Next). What it uses is declared, and so is what may follow it; the agent then runs each step where it belongs:
///
/// - with one bounded dependency, in the end, on that one's own threads, of which there are as many as it can serve;
/// - with none on the thread that finished the step before, so that a chain without bottlenecks never changes threads;
///   the first one on a core.
///
/// So what is slow keeps nobody from the cores, and what computes keeps nobody from what is slow. See the
/// [module](crate::steps) for what becomes of problems that are cancelled, panic or find no room.
pub trait StepController: Send + Sync + Sized + 'static {
    /// The name that job types call it by.
    const NAME: &'static str;
    /// What a problem's JSON payload is parsed into, for the first step.
    type Payload: DeserializeOwned + Send + 'static;
    /// What becomes the problem's JSON solution.
    type Solution: Serialize;

    /// Declares its steps. Called once, before anything starts.
    fn steps(&self, steps: &mut Steps<Self>);
}

/// The steps of a controller.
pub struct Steps<C: StepController> {
    first: Option<&'static str>,
    in_flight: usize,
    steps: Vec<(Declared, Run<C>)>,
}

/// A step without its types.
type Run<C> =
    Arc<dyn Fn(&C, &Problem<'_, ()>, Value) -> anyhow::Result<Next<<C as StepController>::Solution>> + Send + Sync>;

/// What is declared of a step.
#[derive(Clone, Debug)]
pub(super) struct Declared {
    pub name: &'static str,
    pub takes: Taken,
    pub uses: Vec<Dependency>,
    pub then: Vec<(&'static str, Taken)>,
}

/// The type of what a step is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    id: TypeId,
    pub name: &'static str,
}

impl Taken {
    pub fn of<T: 'static>() -> Taken {
        Taken { id: TypeId::of::<T>(), name: type_name::<T>() }
    }
}

/// A step that is being declared. It counts once [`run`](StepBuilder::run) has said what it does.
pub struct StepBuilder<'a, C: StepController, T> {
    steps: &'a mut Steps<C>,
    step: Step<T>,
    uses: Vec<Dependency>,
    then: Vec<(&'static str, Taken)>,
}

impl<C: StepController> Steps<C> {
    fn new() -> Steps<C> {
        Steps { first: None, in_flight: IN_FLIGHT, steps: Vec::new() }
    }

    /// The step that every problem begins with.
    pub fn first(&mut self, step: Step<C::Payload>) -> StepBuilder<'_, C, C::Payload> {
        self.first = Some(step.name);
        self.step(step)
    }

    pub fn step<T: Send + 'static>(&mut self, step: Step<T>) -> StepBuilder<'_, C, T> {
        StepBuilder { steps: self, step, uses: Vec::new(), then: Vec::new() }
    }

    /// How many problems may be under way at once, those that wait included; 1024 if it is not said.
    pub fn in_flight(&mut self, problems: usize) {
        self.in_flight = problems;
    }
}

impl<C: StepController, T: Send + 'static> StepBuilder<'_, C, T> {
    /// What it uses.
    #[must_use]
    pub fn uses(mut self, dependency: &(impl Uses + ?Sized)) -> Self {
        self.uses.push(dependency.dependency());
        self
    }

    /// What may come next: steps that it goes on with, those of its branches, and where they join.
    #[must_use]
    pub fn then<U: 'static>(mut self, step: Step<U>) -> Self {
        self.then.push((step.name, Taken::of::<U>()));
        self
    }

    /// What it does. An error, or a panic, fails the problem; in a branch it is the join that decides.
    pub fn run<F>(self, does: F)
    where
        F: Fn(&C, &Problem<'_, ()>, T) -> anyhow::Result<Next<C::Solution>> + Send + Sync + 'static,
    {
        let StepBuilder { steps, step, uses, then } = self;
        let run: Run<C> = Arc::new(move |controller, problem, value| {
            let value = value.downcast().map_err(|_| anyhow::anyhow!("it was not handed a {}", type_name::<T>()))?;
            does(controller, problem, *value)
        });
        steps.steps.push((Declared { name: step.name, takes: Taken::of::<T>(), uses, then }, run));
    }
}

/// A controller of several steps, without its types.
#[derive(Clone)]
pub struct Declaration {
    pub(super) name: &'static str,
    pub(super) first: Option<&'static str>,
    pub(super) in_flight: usize,
    pub(super) steps: Vec<Declared>,
    pub(super) parse: Arc<Parse>,
    pub(super) run: Vec<Arc<ErasedRun>>,
}

pub(super) type Parse = dyn Fn(&[u8]) -> anyhow::Result<Value> + Send + Sync;

pub(super) type ErasedRun = dyn Fn(&Problem<'_, ()>, Value) -> anyhow::Result<Erased> + Send + Sync;

/// What comes after a step.
pub(super) enum Erased {
    /// The solution as JSON that can be stored.
    Solved(Bytes),
    To(Target),
    FanOut {
        branches: Vec<Target>,
        join: Join,
    },
    Part(Value),
    Wait {
        wait: Wait,
        target: Target,
    },
}

impl Declaration {
    pub fn of<C: StepController>(controller: C) -> Declaration {
        let mut steps = Steps::<C>::new();
        controller.steps(&mut steps);
        let controller = Arc::new(controller);
        let (declared, runs): (Vec<Declared>, Vec<Run<C>>) = steps.steps.into_iter().unzip();
        let erased = |run: Run<C>| -> Arc<ErasedRun> {
            let controller = Arc::clone(&controller);
            Arc::new(move |problem, value| erase(run(&controller, problem, value)?))
        };
        Declaration {
            name: C::NAME,
            first: steps.first,
            in_flight: steps.in_flight,
            steps: declared,
            parse: Arc::new(|payload| {
                let payload: C::Payload = serde_json::from_slice(payload).context("the payload does not parse")?;
                Ok(Box::new(payload))
            }),
            run: runs.into_iter().map(erased).collect(),
        }
    }

    pub fn name(&self) -> &'static str {
        self.name
    }
}

fn erase<S: Serialize>(next: Next<S>) -> anyhow::Result<Erased> {
    Ok(match next.0 {
        Turn::Solved(solution) => {
            storable::check(&solution).context("the solution cannot be stored")?;
            let bytes = serde_json::to_vec(&solution).context("the solution cannot be written as JSON")?;
            Erased::Solved(bytes.into())
        }
        Turn::To(target) => Erased::To(target),
        Turn::FanOut { branches, join } => Erased::FanOut { branches, join },
        Turn::Part(part) => Erased::Part(part),
        Turn::Wait { wait, target } => Erased::Wait { wait, target },
    })
}
