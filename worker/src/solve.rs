//! One problem to one outcome, whatever its controller does.
//!
//! Owns the border to the controllers' code: parsing, panics, messages and solutions that cannot be stored
//! all end here, as the failure of one problem.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use anyhow::Context;
use bytes::{BufMut, BytesMut};
use pcfarm_proto::files::announced;
use pcfarm_proto::v1::problem_result::Outcome;
use pcfarm_proto::{ENQUEUE_LIMIT, v1};
use prost::Message;

use crate::controller::{Controller, Problem};
use crate::named::Store;
use crate::storable;
use crate::work::Checkout;

/// Most bytes of a failure's message: enough for a chain of causes, and little in a table of a million.
const FAILURE_BYTES_LIMIT: usize = 4096;

/// A controller of any kind.
pub trait Solve: Send + Sync {
    /// Solves a problem, and says what it brings beside; the solution's bytes are cut from `buffer`.
    fn solve(&self, task: &Task<'_>, buffer: &mut BytesMut) -> (Outcome, Option<v1::More>);
}

/// A problem, and what its solution may weigh.
pub struct Task<'a> {
    pub checkout: &'a Checkout,
    pub problem: &'a v1::Problem,
    pub solution_bytes_limit: usize,
}

/// The controllers of an agent by name.
#[derive(Clone, Default)]
pub struct Controllers {
    by_name: HashMap<String, Arc<dyn Solve>>,
    /// For those that ask for files by their names.
    pub store: Option<Arc<dyn Store>>,
}

impl Controllers {
    /// False if there is one of that name already.
    pub fn add<C: Controller>(&mut self, controller: C) -> bool {
        self.add_as(C::NAME.to_owned(), controller)
    }

    /// The same under another name, for a kind of controllers that the agent's owner names.
    pub fn add_as<C: Controller>(&mut self, name: String, controller: C) -> bool {
        self.by_name.insert(name, Arc::new(Typed(controller))).is_none()
    }

    pub fn get(&self, name: &str) -> Option<&dyn Solve> {
        self.by_name.get(announced(name)).map(Arc::as_ref)
    }

    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.by_name.keys().cloned().collect();
        names.sort();
        names
    }
}

struct Typed<C>(C);

impl<C: Controller> Solve for Typed<C> {
    fn solve(&self, task: &Task<'_>, buffer: &mut BytesMut) -> (Outcome, Option<v1::More>) {
        buffer.clear();
        // What a panic may leave half done is the buffer, cleared before its next use, and the controller's
        // own state: a controller that shares some across problems poisons its locks itself.
        let result = catch_unwind(AssertUnwindSafe(|| try_solve(&self.0, task, buffer)));
        match result {
            Ok(Ok(more)) => (Outcome::Solution(buffer.split().freeze()), more),
            Ok(Err(error)) => (failure(&format!("{error:#}")), None),
            Err(panic) => (failure(&format!("the controller panicked: {}", panic_text(&*panic))), None),
        }
    }
}

/// Leaves the solution in `buffer`. The controller's panics are the caller's.
pub fn try_solve<C: Controller>(
    controller: &C,
    task: &Task<'_>,
    buffer: &mut BytesMut,
) -> anyhow::Result<Option<v1::More>> {
    let payload = serde_json::from_slice(&task.problem.payload).context("the payload does not parse")?;
    let more = Mutex::default();
    let problem = Problem { checkout: task.checkout, message: task.problem, payload, more: &more };
    let solution = controller.solve(&problem)?;
    storable::check(&solution).context("the solution cannot be stored")?;
    serde_json::to_writer(buffer.writer(), &solution).context("the solution cannot be written as JSON")?;
    let more = more.into_inner().expect("nothing panics under this lock");
    weighed(buffer.len(), more, task.solution_bytes_limit)
}

/// What a solution of so many bytes brings beside it, if the farm can store both.
pub fn weighed(bytes: usize, more: v1::More, limit: usize) -> anyhow::Result<Option<v1::More>> {
    anyhow::ensure!(bytes <= limit, "the solution has {bytes} bytes; at most {limit} can be stored");
    let problems = more.enqueue.len();
    anyhow::ensure!(problems <= ENQUEUE_LIMIT, "it enqueues {problems} problems; at most {ENQUEUE_LIMIT} can be");
    let brought = more.encoded_len();
    anyhow::ensure!(
        bytes + brought <= limit,
        "the solution has {bytes} bytes and what it brings {brought}; together at most {limit} can be stored"
    );
    Ok((brought > 0).then_some(more))
}

pub fn failure(text: &str) -> Outcome {
    Outcome::Failure(message(text))
}

/// A failure's message as the farm can store it.
fn message(text: &str) -> String {
    let end = text.floor_char_boundary(FAILURE_BYTES_LIMIT);
    text[..end].replace('\0', "\u{fffd}")
}

pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&'static str>() {
        return text;
    }
    panic.downcast_ref::<String>().map_or("without a message", String::as_str)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    /// Does what its payload says.
    struct Puppet;

    #[derive(serde::Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Order {
        Return(serde_json::Value),
        NotFinite,
        Fail(String),
        Panic(String),
        Long(usize),
        Related(String),
        Parameters,
    }

    impl Controller for Puppet {
        const NAME: &'static str = "puppet";
        type Payload = Order;
        type Solution = Answer;

        fn solve(&self, problem: &Problem<'_, Order>) -> anyhow::Result<Answer> {
            Ok(match problem.payload() {
                Order::Return(value) => Answer::Json(value.clone()),
                Order::NotFinite => Answer::Number(f64::INFINITY),
                Order::Fail(text) => return Err(anyhow::anyhow!("the cause").context(text.clone())),
                Order::Panic(text) => panic!("{text}"),
                Order::Long(bytes) => Answer::Json("x".repeat(*bytes).into()),
                Order::Related(read) => Answer::Json(problem.related::<serde_json::Value>(read)?.into()),
                Order::Parameters => Answer::Json(problem.parameters()?.unwrap_or_default()),
            })
        }
    }

    #[derive(serde::Serialize)]
    #[serde(untagged)]
    enum Answer {
        Json(serde_json::Value),
        Number(f64),
    }

    fn solve(payload: &str) -> Outcome {
        let row = v1::RelatedRow { key: Some("k".to_owned()), row: Bytes::from_static(b"{\"a\":1}") };
        let checkout = Checkout::new(v1::Checkout {
            job_name: "night".to_owned(),
            parameters: Bytes::from_static(b"[1]"),
            related: vec![v1::RelatedRead { name: "fares".to_owned(), rows: vec![row] }],
            problems: vec![v1::Problem {
                key: "k".into(),
                payload: Bytes::from(payload.to_owned()),
                ..Default::default()
            }],
            ..Default::default()
        });
        let mut controllers = Controllers::default();
        assert!(controllers.add(Puppet));
        assert!(!controllers.add(Puppet));
        let task = Task { checkout: &checkout, problem: &checkout.problems[0], solution_bytes_limit: 5000 };
        controllers.get("puppet").expect("just added").solve(&task, &mut BytesMut::new()).0
    }

    fn solution(text: &str) -> Outcome {
        Outcome::Solution(Bytes::from(text.to_owned()))
    }

    fn failure(text: &str) -> Outcome {
        Outcome::Failure(text.to_owned())
    }

    #[test]
    fn every_way_to_end_is_an_outcome() {
        for (payload, expected) in [
            (r#"{"return": {"b": [1, null]}}"#, solution(r#"{"b":[1,null]}"#)),
            (r#"{"fail": "no luck"}"#, failure("no luck: the cause")),
            (r#"{"panic": "at\u0000the disco"}"#, failure("the controller panicked: at\u{fffd}the disco")),
            (
                r#""not_finite""#,
                failure("the solution cannot be stored: it contains a number that is not finite (inf)"),
            ),
            (r#"{"return": "\u0000"}"#, failure("the solution cannot be stored: it contains a NUL character")),
            (r#"{"long": 4998}"#, solution(&format!("\"{}\"", "x".repeat(4998)))),
            (r#"{"long": 4999}"#, failure("the solution has 5001 bytes; at most 5000 can be stored")),
            (r#"{"related": "fares"}"#, solution(r#"[{"a":1}]"#)),
            (r#"{"related": "seats"}"#, failure("job type has no related read \"seats\"; it has fares")),
            (r#""parameters""#, solution("[1]")),
        ] {
            assert_eq!(solve(payload), expected, "{payload}");
        }
    }

    #[test]
    fn a_payload_that_does_not_parse_says_so() {
        let Outcome::Failure(text) = solve("{") else { panic!("half an object was parsed") };
        assert!(text.starts_with("the payload does not parse: "), "{text}");
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let Outcome::Failure(text) = solve(&format!(r#"{{"fail": "a{}"}}"#, "ä".repeat(5000))) else {
            panic!("a failure was solved")
        };
        assert_eq!(text.len(), FAILURE_BYTES_LIMIT - 1);
    }
}
