//! Problems from files: CSV, NDJSON or JSON, read piece by piece, checked as far as that needs no database. For the CLI
//! and for servers, so that both take the same and say the same of what is wrong.
//!
//! Memory does not grow with the input: nothing is kept but the piece that is being read.

pub mod csv;
pub mod json;
pub mod ndjson;
pub mod text;

use pcfarm_proto::v1::{SubmitDetails, SubmitProblem};
use prost_types::Timestamp;
use std::borrow::Cow;
use std::fmt;
use std::io;

/// No record, line or value is longer: a payload of the largest size, its key, and room for escapes of both.
pub(crate) const PIECE_LIMIT: u64 = 8 << 20;

/// How lines become problems.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    pub key: Option<String>,
    pub group: Option<String>,
    pub strings: bool,
    pub asked: Asked,
}

/// How the shape was told: what is wrong with it is said in those words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Asked {
    #[default]
    Flags,
    Parameters,
}

impl Asked {
    /// `--key COLUMN`, or `key=COLUMN` in a URL.
    pub(crate) fn option(self, name: &str, value: &str) -> String {
        match self {
            Asked::Flags => format!("--{name} {value}"),
            Asked::Parameters => format!("{name}={value}"),
        }
    }
}

/// Where in the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Line(u64),
    /// Of a JSON document, whose lines say nothing.
    Problem(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line(line) => write!(f, "line {line}"),
            Place::Problem(number) => write!(f, "problem {number}"),
        }
    }
}

/// Why reading stopped before the end. `E`: what whoever takes the problems said.
#[derive(Debug, thiserror::Error)]
pub enum ReadError<E> {
    #[error("{place}: {what}")]
    Wrong { place: Place, what: String },
    #[error("reading")]
    Read(#[source] io::Error),
    #[error("{0}")]
    Stopped(E),
}

impl<E> ReadError<E> {
    fn line(line: u64, what: impl fmt::Display) -> ReadError<E> {
        ReadError::Wrong { place: Place::Line(line), what: what.to_string() }
    }
}

/// What a problem may have beside its key and payload, as a text that came with it.
pub(crate) const DETAILS: [&str; 5] = ["job_type", "priority", "deadline", "not_before", "weight"];

/// `get`: what the input has under that name, if anything.
pub(crate) fn details<'a>(get: impl Fn(&str) -> Option<Cow<'a, str>>) -> Result<Option<SubmitDetails>, String> {
    let given = |name: &str| get(name).filter(|text| !text.is_empty());
    let wrong = |name: &str, text: &str, what: &str| format!("{name} is {}, and not {what}", text::cut(text, 40));
    let time = |name: &str| {
        given(name)
            .map(|text| match text.parse::<jiff::Timestamp>() {
                Ok(time) => Ok(Timestamp { seconds: time.as_second(), nanos: time.subsec_nanosecond() }),
                Err(_) => Err(wrong(name, &text, "a time such as 2026-03-01T18:00:00Z")),
            })
            .transpose()
    };
    let priority = given("priority").map(|text| {
        text.parse::<i32>().map_err(|_| wrong("priority", &text, "a whole number from -2147483648 to 2147483647"))
    });
    let weight = given("weight").map(|text| {
        let weight = text.parse::<i32>().ok().filter(|weight| *weight > 0);
        weight.map(i32::unsigned_abs).ok_or_else(|| wrong("weight", &text, "a whole number from 1 to 2147483647"))
    });
    let details = SubmitDetails {
        job_type: given("job_type").unwrap_or_default().into_owned(),
        priority: priority.transpose()?.unwrap_or_default(),
        deadline: time("deadline")?,
        not_before: time("not_before")?,
        weight: weight.transpose()?.unwrap_or_default(),
    };
    Ok((details != SubmitDetails::default()).then_some(details))
}

/// What every reader makes sure of, whatever the form of its input.
pub(crate) fn checked(
    key: String,
    payload: String,
    group_key: String,
    details: Option<SubmitDetails>,
) -> Result<SubmitProblem, String> {
    if key.is_empty() {
        return Err("the key is empty: every problem needs one".to_owned());
    }
    if key.contains('\0') || group_key.contains('\0') {
        return Err("the key or group holds a NUL character, which the database cannot store".to_owned());
    }
    if payload.len() > pcfarm_proto::PAYLOAD_BYTES_LIMIT {
        return Err(format!(
            "the payload has {}, more than the {} a problem may carry",
            text::bytes(payload.len() as u64),
            text::bytes(pcfarm_proto::PAYLOAD_BYTES_LIMIT as u64)
        ));
    }
    if has_nul_escape(&payload) {
        return Err("the payload holds \\u0000, which the database cannot store".to_owned());
    }
    Ok(SubmitProblem { key, payload: payload.into_bytes().into(), group_key, details })
}

/// `\u0000` in JSON, and not the six characters after an escaped backslash.
fn has_nul_escape(json: &str) -> bool {
    json.match_indices("\\u0000").any(|(at, _)| {
        let backslashes = json.as_bytes()[..at].iter().rev().take_while(|byte| **byte == b'\\').count();
        backslashes.is_multiple_of(2)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_database_can_store_is_found() {
        let cases = [
            ("k", r#""fine""#, true),
            ("", "1", false),
            ("a\0b", "1", false),
            ("k", r#""\u0000""#, false),
            ("k", r#""\\u0000""#, true),
            ("k", r#""\\\u0000""#, false),
        ];
        for (key, payload, right) in cases {
            let problem = checked(key.to_owned(), payload.to_owned(), String::new(), None);
            assert_eq!(problem.is_ok(), right, "{key:?} {payload}");
        }
        let large = format!("\"{}\"", "x".repeat(pcfarm_proto::PAYLOAD_BYTES_LIMIT));
        assert!(checked("k".into(), large, String::new(), None).is_err());
    }
}
