//! A problem on its way into a job: whether the database will take it. Pure.

use crate::grpc::time;
use pcfarm_proto::v1::{More, SubmitDetails, SubmitProblem};
use pcfarm_proto::{ENQUEUE_LIMIT, PAYLOAD_BYTES_LIMIT};
use prost_types::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;

const KEY_BYTES_LIMIT: usize = 1024;

/// What the database would say against it, if anything.
pub fn wrong(problem: &SubmitProblem) -> Option<String> {
    let SubmitProblem { key, payload, group_key, details } = problem;
    if key.is_empty() {
        Some("has no key".to_owned())
    } else if key.len() > KEY_BYTES_LIMIT {
        Some(format!("has a key of {} bytes, more than {KEY_BYTES_LIMIT}", key.len()))
    } else if key.contains('\0') || group_key.contains('\0') {
        Some("has a NUL character in its key or group key, which the database cannot store".to_owned())
    } else if let Some(wrong) = details.as_ref().and_then(wrong_details) {
        Some(wrong.to_owned())
    } else if payload.len() > PAYLOAD_BYTES_LIMIT {
        Some(format!("has a payload of {} bytes, more than {PAYLOAD_BYTES_LIMIT}", payload.len()))
    } else {
        json(payload).err().map(|wrong| format!("has a payload that cannot be stored: {wrong}"))
    }
}

fn wrong_details(details: &SubmitDetails) -> Option<&'static str> {
    let SubmitDetails { job_type, deadline, not_before, weight, .. } = details;
    let is_time = |stamp: &Option<Timestamp>| stamp.is_none_or(|stamp| time(stamp).is_some());
    if job_type.contains('\0') {
        Some("has a NUL character in its job type")
    } else if !is_time(deadline) || !is_time(not_before) {
        Some("has a time that the database cannot store")
    } else if i32::try_from(*weight).is_err() {
        Some("weighs more than 2147483647")
    } else {
        None
    }
}

/// What a solved problem brings, as `pcfarm.accept` takes it, or what is wrong with it.
pub fn brought(checkout_id: i64, problem_id: i64, more: &More) -> Result<Vec<u8>, String> {
    if more.enqueue.len() > ENQUEUE_LIMIT {
        return Err(too_many(more.enqueue.len()));
    }
    for problem in &more.enqueue {
        if let Some(wrong) = wrong(problem) {
            let key: String = problem.key.chars().take(100).collect();
            return Err(format!("it enqueues a problem (key {key:?}) that {wrong}"));
        }
    }
    let enqueue = more.enqueue.iter().map(enqueued).collect::<Result<Vec<Enqueued<'_>>, String>>()?;
    let info = (!more.info.is_empty()).then(|| raw(&more.info)).transpose();
    let info = info.map_err(|wrong| format!("its patch of the job's info cannot be stored: {wrong}"))?;
    let brought = Brought { checkout_id, problem_id, enqueue, info };
    serde_json::to_vec(&brought).map_err(|error| error.to_string())
}

/// Objection to the number of problems that a solved problem enqueues.
pub fn too_many(problems: usize) -> String {
    format!("it enqueues {problems} problems, more than {ENQUEUE_LIMIT}")
}

#[derive(Serialize)]
struct Brought<'a> {
    checkout_id: i64,
    problem_id: i64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    enqueue: Vec<Enqueued<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    info: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct Enqueued<'a> {
    key: &'a str,
    payload: &'a RawValue,
    group: Option<&'a str>,
    job_type: Option<&'a str>,
    priority: i32,
    /// Seconds since 1970.
    deadline: Option<f64>,
    not_before: Option<f64>,
    weight: Option<u32>,
}

fn enqueued(problem: &SubmitProblem) -> Result<Enqueued<'_>, String> {
    let SubmitProblem { key, payload, group_key, details } = problem;
    let none = SubmitDetails::default();
    let SubmitDetails { priority, deadline, not_before, weight, .. } = details.as_ref().unwrap_or(&none);
    let seconds = |stamp: &Timestamp| stamp.seconds as f64 + f64::from(stamp.nanos) / 1e9;
    let given = |text: &str| !text.is_empty();
    Ok(Enqueued {
        key,
        payload: raw(payload)?,
        group: Some(group_key.as_str()).filter(|group| given(group)),
        job_type: details.as_ref().map(|details| details.job_type.as_str()).filter(|name| given(name)),
        priority: *priority,
        deadline: deadline.as_ref().map(seconds),
        not_before: not_before.as_ref().map(seconds),
        weight: Some(*weight).filter(|weight| *weight > 1),
    })
}

fn raw(bytes: &[u8]) -> Result<&RawValue, String> {
    serde_json::from_str(json(bytes)?).map_err(|error| error.to_string())
}

/// One JSON value in UTF-8, without the escapes that `jsonb` refuses.
pub fn json(bytes: &[u8]) -> Result<&str, String> {
    if bytes.is_empty() {
        return Err("it is empty, and not a JSON value".to_owned());
    }
    let text = std::str::from_utf8(bytes).map_err(|wrong| format!("not UTF-8 after byte {}", wrong.valid_up_to()))?;
    serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(|wrong| format!("not JSON: {wrong}"))?;
    match unstorable_escape(text) {
        Some(escape) => Err(format!("{escape} is no character that the database can store")),
        None => Ok(text),
    }
}

/// `\u0000`, or half of a surrogate pair. The text is valid JSON, so backslashes are inside strings.
fn unstorable_escape(text: &str) -> Option<&str> {
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let escape = &rest[at..];
        if !escape.starts_with("\\u") {
            rest = &escape[2..];
            continue;
        }
        match code_unit(escape)? {
            0 | 0xDC00..=0xDFFF => return escape.get(..6),
            0xD800..=0xDBFF => {
                let low = escape[6..].starts_with("\\u").then(|| code_unit(&escape[6..])).flatten();
                if !matches!(low, Some(0xDC00..=0xDFFF)) {
                    return escape.get(..6);
                }
                rest = &escape[12..];
            }
            _ => rest = &escape[6..],
        }
    }
    None
}

fn code_unit(escape: &str) -> Option<u32> {
    u32::from_str_radix(escape.get(2..6)?, 16).ok()
}
