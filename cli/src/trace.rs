//! Which trace a command belongs to: the one that its caller is in (`TRACEPARENT`, as other tools have it), or one that
//! `--trace` begins. The server makes the spans; this tells it where they belong.

use anyhow::Result;
use std::collections::BTreeMap;
use uuid::Uuid;

use serde_json::value::{RawValue, to_raw_value};

use crate::args::Global;
use crate::output;

/// The name in a call's metadata.
pub const TRACE_PARENT: &str = "traceparent";

/// What is said with every call. What is no `traceparent` is as none, here as at the server.
pub fn wanted(global: &Global) -> Option<String> {
    let given = std::env::var("TRACEPARENT").ok().filter(|text| is_one(text));
    if !global.trace {
        return given;
    }
    let parent = given.unwrap_or_else(begun);
    output::note(&format!("trace {}", &parent[3..35]));
    Some(parent)
}

/// The form alone: whoever reads it looks closer.
fn is_one(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    lengths == [2, 32, 16, 2] && parts.concat().bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

fn begun() -> String {
    let (trace, span) = (Uuid::new_v4().simple().to_string(), Uuid::new_v4().simple().to_string());
    format!("00-{trace}-{}-01", &span[..16])
}

/// Options of a job that is made in the database itself.
pub fn in_options(options: String, parent: Option<&str>) -> Result<String> {
    let Some(parent) = parent else { return Ok(options) };
    let mut fields: BTreeMap<String, Box<RawValue>> = serde_json::from_str(&options)?;
    if !fields.contains_key("trace_parent") {
        fields.insert("trace_parent".to_owned(), to_raw_value(parent)?);
    }
    Ok(serde_json::to_string(&fields)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_begins_is_a_trace_parent() {
        let (one, other) = (begun(), begun());
        assert!(is_one(&one) && is_one(&other), "{one}");
        assert_ne!(one[3..35], other[3..35]);
        for wrong in ["", "00-x-y-01", &one.to_uppercase(), &one[1..], &format!("{one}-"), &format!("{one}\n")] {
            assert!(!is_one(wrong), "{wrong}");
        }
    }

    #[test]
    fn options_say_it_once() -> Result<()> {
        assert_eq!(in_options("{\"a\":1.10}".to_owned(), None)?, "{\"a\":1.10}");
        assert_eq!(in_options("{\"a\":1.10}".to_owned(), Some("x"))?, "{\"a\":1.10,\"trace_parent\":\"x\"}");
        let own = "{\"trace_parent\":\"own\"}";
        assert_eq!(in_options(own.to_owned(), Some("x"))?, own);
        Ok(())
    }
}
