//! One line of JSON in, one line of JSON out: how problems are put to programs and modules, and what their answers mean.

use std::collections::BTreeMap;

use anyhow::{anyhow, bail, ensure};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::controller::{NewProblem, Problem};
use crate::fed::failure::{Failure, cite, message};

/// What a program reads of a problem.
#[derive(Serialize)]
struct Line<'a> {
    key: &'a str,
    payload: &'a RawValue,
    attempt: u32,
    /// The problem's, a 64-bit number.
    id: String,
    job: &'a str,
    job_type: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    directory: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    info: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    related: BTreeMap<&'a str, Vec<Box<RawValue>>>,
}

/// A problem as a line, without its end; with the directory that is its own, if it has one.
pub fn question(problem: &Problem<'_, Box<RawValue>>, directory: Option<&str>) -> anyhow::Result<Vec<u8>> {
    let mut related = BTreeMap::new();
    for read in problem.related_reads() {
        related.insert(read, problem.related(read)?);
    }
    let mut line = serde_json::to_vec(&Line {
        key: problem.key(),
        payload: problem.payload(),
        attempt: problem.attempt(),
        id: problem.problem_id().to_string(),
        job: problem.job_name(),
        job_type: problem.job_type(),
        directory,
        parameters: problem.parameters()?,
        info: problem.info()?,
        related,
    })?;
    // Between its parts JSON may have line ends, and within texts it has none.
    line.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')).for_each(|byte| *byte = b' ');
    Ok(line)
}

/// What a program says. That it has one of the first two has been seen before.
#[derive(Deserialize)]
struct FedAnswer {
    #[serde(default)]
    result: Option<Box<RawValue>>,
    #[serde(default)]
    error: Option<Value>,
    #[serde(default)]
    enqueue: Vec<Enqueued>,
    #[serde(default)]
    info: Option<serde_json::Map<String, Value>>,
    #[serde(default)]
    files: Option<Vec<String>>,
}

/// What a problem has come to.
pub struct Answer {
    pub result: Box<RawValue>,
    /// Names of files that it has made, if it says so.
    pub files: Option<Vec<String>>,
}

/// A problem that it enqueues.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Enqueued {
    key: String,
    payload: Value,
    #[serde(default)]
    job_type: Option<String>,
    #[serde(default)]
    priority: Option<i32>,
    #[serde(default)]
    weight: Option<u32>,
    #[serde(default)]
    group: Option<String>,
}

/// The solution that an answer is, with what it brings beside it; or why the problem fails.
pub fn answer(problem: &Problem<'_, Box<RawValue>>, line: &[u8], stderr: &str) -> anyhow::Result<Answer> {
    let wrong = |error| anyhow!(message(&format!("the program's answer cannot be used: {error}"), stderr));
    let answer: FedAnswer = serde_json::from_slice(line).map_err(wrong)?;
    if let Some(error) = answer.error {
        bail!(message(&text(&error), stderr));
    }
    for enqueued in answer.enqueue {
        problem.enqueue(enqueued.problem()?);
    }
    if let Some(patch) = answer.info {
        problem.update_info(&patch)?;
    }
    Ok(Answer { result: storable(answer.result.unwrap_or_else(null))?, files: answer.files })
}

fn null() -> Box<RawValue> {
    RawValue::from_string("null".to_owned()).expect("it is JSON")
}

impl Enqueued {
    fn problem(self) -> anyhow::Result<NewProblem> {
        let mut problem = NewProblem::new(self.key, &self.payload)?;
        if let Some(job_type) = self.job_type {
            problem = problem.job_type(&job_type);
        }
        if let Some(priority) = self.priority {
            problem = problem.priority(priority);
        }
        if let Some(weight) = self.weight {
            problem = problem.weight(weight);
        }
        if let Some(group) = self.group {
            problem = problem.group(&group);
        }
        Ok(problem)
    }
}

#[derive(Debug, PartialEq)]
pub enum Kind {
    Answer,
    Progress,
}

/// Reads a line only as far as it must to know what it is. Who says which question it answers must be right.
pub fn kind(line: &[u8], id: &str) -> Result<Kind, Failure> {
    /// A null is something, too.
    fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<IgnoredAny>, D::Error> {
        IgnoredAny::deserialize(deserializer).map(Some)
    }
    #[derive(Deserialize)]
    struct Peek {
        #[serde(default, deserialize_with = "present")]
        result: Option<IgnoredAny>,
        #[serde(default, deserialize_with = "present")]
        error: Option<IgnoredAny>,
        #[serde(default, deserialize_with = "present")]
        progress: Option<IgnoredAny>,
        id: Option<serde_json::Value>,
    }
    if let Err(why) = serde_json::from_slice::<IgnoredAny>(line) {
        return Err(Failure::NotJson { why: why.to_string(), cited: cite(line) });
    }
    // A list would be taken for the fields in order.
    let is_object = line.trim_ascii_start().starts_with(b"{");
    let peek = serde_json::from_slice::<Peek>(line).ok().filter(|_| is_object);
    let peek = peek.ok_or_else(|| Failure::NotAnAnswer(cite(line)))?;
    let given = peek.id.map(|given| text(&given));
    if given.is_some_and(|given| given != id) {
        return Err(Failure::OtherQuestion(cite(line)));
    }
    match (peek.result, peek.error, peek.progress) {
        (Some(_), None, _) | (None, Some(_), _) => Ok(Kind::Answer),
        (None, None, Some(_)) => Ok(Kind::Progress),
        (Some(_), Some(_), _) | (None, None, None) => Err(Failure::NotAnAnswer(cite(line))),
    }
}

/// A text as it is, anything else as JSON.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// JSON as it was written, unless a text in it has a NUL character, which no database can hold.
pub fn storable(json: Box<RawValue>) -> anyhow::Result<Box<RawValue>> {
    ensure!(!has_nul(json.get()), "the solution cannot be stored: it contains a NUL character");
    Ok(json)
}

/// Whether an escaped NUL is in one of the texts: `\u0000`, with nothing that makes its backslash a character.
fn has_nul(json: &str) -> bool {
    json.match_indices("\\u0000")
        .any(|(at, _)| json[..at].bytes().rev().take_while(|&byte| byte == b'\\').count() % 2 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_an_answer_or_progress_or_wrong() {
        for (line, expected) in [
            (r#"{"result": null}"#, Ok(Kind::Answer)),
            (r#"{"result": [1], "info": {}}"#, Ok(Kind::Answer)),
            (r#"{"error": "no"}"#, Ok(Kind::Answer)),
            (r#"{"progress": 0.5}"#, Ok(Kind::Progress)),
            (r#"{"id": "7", "result": 1}"#, Ok(Kind::Answer)),
            (r#"{"id": 7, "result": 1}"#, Ok(Kind::Answer)),
            (r#"{"id": "8", "result": 1}"#, Err("another question")),
            (r#"{"result": 1, "error": "no"}"#, Err("either")),
            (r#"{}"#, Err("either")),
            (r#"[1]"#, Err("either")),
            (r#"7"#, Err("either")),
            (r#"{"result": 1} x"#, Err("not JSON")),
            (r#"{"result": NaN}"#, Err("not JSON")),
            ("", Err("not JSON")),
            ("Solver 1.0", Err("not JSON")),
        ] {
            match (kind(line.as_bytes(), "7"), expected) {
                (Ok(kind), Ok(expected)) => assert_eq!(kind, expected, "{line}"),
                (Err(failure), Err(expected)) => assert!(failure.to_string().contains(expected), "{line}: {failure}"),
                (other, expected) => panic!("{line}: {other:?}, not {expected:?}"),
            }
        }
    }

    #[test]
    fn a_nul_is_found_behind_any_number_of_backslashes() {
        for (json, expected) in [
            (r#""\u0000""#, true),
            (r#""\\u0000""#, false),
            (r#""\\\u0000""#, true),
            (r#"["a", "\u0001"]"#, false),
            (r#"{"\u0000": 1}"#, true),
        ] {
            assert_eq!(has_nul(json), expected, "{json}");
        }
    }
}
