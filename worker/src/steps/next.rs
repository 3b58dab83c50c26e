//! What a step returns: which comes next.

use std::any::{Any, type_name};
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use super::readiness::Readiness;

pub(super) type Value = Box<dyn Any + Send>;

/// The name of a step that takes a `T`. Usually a constant.
pub struct Step<T> {
    pub(super) name: &'static str,
    takes: PhantomData<fn(T)>,
}

impl<T> Step<T> {
    pub const fn named(name: &'static str) -> Step<T> {
        Step { name, takes: PhantomData }
    }

    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl<T> Clone for Step<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Step<T> {}

impl<T> fmt::Debug for Step<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Step({})", self.name)
    }
}

/// What comes after a step of a controller whose solutions are `S`.
#[derive(Debug)]
pub struct Next<S>(pub(super) Turn<S>);

#[derive(Debug)]
pub(super) enum Turn<S> {
    Solved(S),
    To(Target),
    FanOut { branches: Vec<Target>, join: Join },
    Part(Value),
    Wait { wait: Wait, target: Target },
}

/// A step, and what it is given.
#[derive(Debug)]
pub(super) struct Target {
    pub step: &'static str,
    pub value: Value,
}

impl Target {
    fn new<T: Send + 'static>(step: Step<T>, value: T) -> Target {
        Target { step: step.name, value: Box::new(value) }
    }
}

impl<S> Next<S> {
    /// The problem ends here, with its solution. An error ends it as well: as a failure.
    pub fn solved(solution: S) -> Next<S> {
        Next(Turn::Solved(solution))
    }

    /// Goes on with that step. It must be among those that this one was declared to be followed by.
    pub fn step<T: Send + 'static>(step: Step<T>, value: T) -> Next<S> {
        Next(Turn::To(Target::new(step, value)))
    }

    /// Goes on with several steps, each a branch of its own that ends with [`Next::part`], and then with the join. Branches
    /// may fan out themselves.
    pub fn fan_out(branches: impl IntoIterator<Item = Branch>, join: Join) -> Next<S> {
        Next(Turn::FanOut { branches: branches.into_iter().map(|branch| branch.0).collect(), join })
    }

    /// This branch ends here, with its part of what the join takes.
    pub fn part<R: Send + 'static>(part: R) -> Next<S> {
        Next(Turn::Part(Box::new(part)))
    }

    /// Goes on with that step when the wait is over. It costs no thread meanwhile, but a place in the pools that are still
    /// to come. A job type's time limit bounds it: a problem that waits for longer fails.
    pub fn wait<T: Send + 'static>(wait: Wait, step: Step<T>, value: T) -> Next<S> {
        Next(Turn::Wait { wait, target: Target::new(step, value) })
    }
}

/// One of several steps that come next.
#[derive(Debug)]
pub struct Branch(pub(super) Target);

impl Branch {
    pub fn new<T: Send + 'static>(step: Step<T>, value: T) -> Branch {
        Branch(Target::new(step, value))
    }
}

/// How the branches of one problem come together again.
pub struct Join {
    pub(super) rule: Rule,
    pub(super) step: &'static str,
    /// Of what branches ended with, in their order.
    pub(super) gather: fn(Vec<Part>) -> anyhow::Result<Value>,
}

/// What one branch ended with.
pub(super) type Part = Result<Value, String>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    All,
    Each,
    First,
}

impl fmt::Debug for Join {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Join({:?}, {})", self.rule, self.step)
    }
}

impl Join {
    /// When all branches have ended, that step gets their parts, in the order of the branches. If one fails, the problem
    /// fails, and what of the others has not begun never does.
    pub fn all<R: Send + 'static>(step: Step<Vec<R>>) -> Join {
        let gather = |parts: Vec<Part>| {
            let parts: Vec<R> =
                parts.into_iter().map(|part| typed(part.map_err(anyhow::Error::msg)?)).collect::<Result<_, _>>()?;
            Ok(Box::new(parts) as Value)
        };
        Join { rule: Rule::All, step: step.name, gather }
    }

    /// The same, but that step also gets the messages of those that failed.
    pub fn each<R: Send + 'static>(step: Step<Vec<Result<R, String>>>) -> Join {
        let gather = |parts: Vec<Part>| {
            let each = |part: Part| match part {
                Ok(value) => typed(value).map(Ok),
                Err(message) => Ok(Err(message)),
            };
            let parts: Vec<Result<R, String>> = parts.into_iter().map(each).collect::<Result<_, _>>()?;
            Ok(Box::new(parts) as Value)
        };
        Join { rule: Rule::Each, step: step.name, gather }
    }

    /// That step gets the first part that comes; what of the other branches has not begun never does. If all of them fail,
    /// the problem fails with the last one's message.
    pub fn first<R: Send + 'static>(step: Step<R>) -> Join {
        let gather = |parts: Vec<Part>| {
            let part = parts.into_iter().next().unwrap_or_else(|| Err("there was no branch to wait for".to_owned()));
            Ok(Box::new(typed::<R>(part.map_err(anyhow::Error::msg)?)?) as Value)
        };
        Join { rule: Rule::First, step: step.name, gather }
    }
}

fn typed<R: 'static>(part: Value) -> anyhow::Result<R> {
    match part.downcast() {
        Ok(part) => Ok(*part),
        Err(_) => {
            anyhow::bail!("a branch ended with a part of another type than {}, which its join takes", type_name::<R>())
        }
    }
}

/// Until when a step waits.
#[derive(Clone, Debug)]
pub struct Wait {
    pub(super) until: Option<Readiness>,
    pub(super) at_most: Option<Duration>,
}

impl Wait {
    /// Until somebody says that it is ready; at once if it is. A step that then waits for it again, though nobody has
    /// [said that it is out](Readiness::set_out), is tried again after some milliseconds, and less and less often.
    pub fn until(ready: &Readiness) -> Wait {
        Wait { until: Some(ready.clone()), at_most: None }
    }

    /// For so long.
    pub fn pause(time: Duration) -> Wait {
        Wait { until: None, at_most: Some(time) }
    }

    /// The step is tried again after so long at the latest, whatever anybody says.
    #[must_use]
    pub fn at_most(mut self, time: Duration) -> Wait {
        self.at_most = Some(time);
        self
    }
}
