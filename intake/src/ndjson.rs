//! A problem per line, as JSON.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{BufRead, Read};

use pcfarm_proto::v1::SubmitProblem;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{DETAILS, PIECE_LIMIT, ReadError, Shape, checked, details, text};

/// Calls `add` with each problem, in order. Blank lines are skipped.
pub fn read<E>(
    mut reader: impl BufRead,
    shape: &Shape,
    add: &mut dyn FnMut(SubmitProblem) -> Result<(), E>,
) -> Result<(), ReadError<E>> {
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        let mut limited = (&mut reader).take(PIECE_LIMIT + 1);
        let read = limited.read_until(b'\n', &mut line).map_err(ReadError::Read)?;
        if read == 0 {
            break;
        }
        if line.len() as u64 > PIECE_LIMIT {
            return Err(ReadError::line(number, "the line is longer than 8 MiB: is this NDJSON, a value per line?"));
        }
        let text = std::str::from_utf8(&line)
            .map_err(|_| ReadError::line(number, "not UTF-8: convert the file first, for instance with iconv"))?;
        let text = if number == 1 { text.trim_start_matches('\u{feff}') } else { text };
        if text.trim().is_empty() {
            continue;
        }
        add(problem(text, shape).map_err(|what| ReadError::line(number, what))?).map_err(ReadError::Stopped)?;
    }
    Ok(())
}

/// The form without --key.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    #[serde(borrow)]
    key: Option<&'a RawValue>,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
    #[serde(borrow)]
    group_key: Option<&'a RawValue>,
    #[serde(borrow)]
    job_type: Option<&'a RawValue>,
    #[serde(borrow)]
    priority: Option<&'a RawValue>,
    #[serde(borrow)]
    deadline: Option<&'a RawValue>,
    #[serde(borrow)]
    not_before: Option<&'a RawValue>,
    #[serde(borrow)]
    weight: Option<&'a RawValue>,
}

pub(crate) fn problem(text: &str, shape: &Shape) -> Result<SubmitProblem, String> {
    if shape.key.is_some() || shape.group.is_some() {
        return whole_object(text, shape);
    }
    let help = || {
        let key = shape.asked.option("key", "FIELD");
        format!(
            "a problem is {{\"key\": …, \"payload\": …}} and optionally \"group_key\", \"job_type\", \"priority\", \
             \"deadline\", \"not_before\", \"weight\"; with {key} the whole object is the payload"
        )
    };
    let line: Line = serde_json::from_str(text).map_err(|error| format!("{}: {}", json_error(&error), help()))?;
    let key = line.key.ok_or_else(|| format!("no `key`: {}", help()))?;
    // A null payload is a payload, and serde takes it for an absent one.
    let payload = match line.payload {
        Some(payload) => payload.get(),
        None if has_field(text, "payload") => "null",
        None => return Err(format!("no `payload`: {}", help())),
    };
    let group = match line.group_key {
        None => String::new(),
        Some(group) => scalar(group, "group_key")?,
    };
    let mut given = Vec::new();
    for (name, value) in DETAILS.iter().zip([line.job_type, line.priority, line.deadline, line.not_before, line.weight])
    {
        if let Some(value) = value.filter(|value| value.get() != "null") {
            given.push((*name, scalar(value, name)?));
        }
    }
    let details =
        details(|name| given.iter().find(|(known, _)| *known == name).map(|(_, text)| Cow::from(text.as_str())))?;
    checked(scalar(key, "key")?, payload.to_owned(), group, details)
}

fn has_field(text: &str, field: &str) -> bool {
    serde_json::from_str::<BTreeMap<Cow<str>, &RawValue>>(text).is_ok_and(|all| all.contains_key(field))
}

/// The form with --key or --group: fields of the object are named, and all of it is the payload.
fn whole_object(text: &str, shape: &Shape) -> Result<SubmitProblem, String> {
    let fields: BTreeMap<Cow<str>, &RawValue> = serde_json::from_str(text).map_err(|error| {
        format!("{}: with {} each is an object", json_error(&error), shape.asked.option("key", "FIELD"))
    })?;
    let field = |name: &str| {
        let value = fields.get(name).ok_or_else(|| format!("no field `{}`", text::plain(name)))?;
        scalar(value, name)
    };
    let key = field(shape.key.as_deref().unwrap_or("key"))?;
    let group = shape.group.as_deref().map(field).transpose()?.unwrap_or_default();
    checked(key, text.trim().to_owned(), group, None)
}

/// A key or group: a text, or a number as it is written.
fn scalar(value: &RawValue, name: &str) -> Result<String, String> {
    let json = value.get();
    match json.as_bytes().first() {
        Some(b'"') => serde_json::from_str(json).map_err(|error| json_error(&error)),
        Some(b'-' | b'0'..=b'9') => Ok(json.to_owned()),
        _ => Err(format!("`{}` must be a text or a number", text::plain(name))),
    }
}

/// serde_json's words; the line is always its first, so only the column is of use.
fn json_error(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let what = message.split(" at line ").next().unwrap_or(&message);
    if error.column() == 0 { text::plain(what) } else { format!("{} at column {}", text::plain(what), error.column()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str, shape: &Shape) -> Result<Vec<(String, String, String)>, ReadError<std::str::Utf8Error>> {
        let mut found = Vec::new();
        read(text.as_bytes(), shape, &mut |problem| {
            let payload = std::str::from_utf8(&problem.payload)?.to_owned();
            found.push((problem.key, payload, problem.group_key));
            Ok(())
        })?;
        Ok(found)
    }

    fn said(outcome: Result<(), ReadError<()>>) -> String {
        match outcome {
            Err(ReadError::Wrong { place, what }) => format!("{place}: {what}"),
            other => panic!("{other:?}"),
        }
    }

    fn named(key: &str, group: Option<&str>) -> Shape {
        Shape { key: Some(key.into()), group: group.map(str::to_owned), ..Shape::default() }
    }

    #[test]
    fn lines_become_problems() -> Result<(), ReadError<std::str::Utf8Error>> {
        let plain = Shape::default();
        let cases = [
            ("{\"key\":\"a\",\"payload\":{\"x\": 1.10}}\n", &plain, ("a", "{\"x\": 1.10}", "")),
            ("\u{feff}{\"payload\":[1],\"key\":7}", &plain, ("7", "[1]", "")),
            ("\n \r\n{\"key\":\"\\u00e9\",\"payload\":null,\"group_key\":\"g\"}\r\n", &plain, ("é", "null", "g")),
            (
                "{\"id\":12345678901234567890,\"v\":\"w\"}",
                &named("id", None),
                ("12345678901234567890", "{\"id\":12345678901234567890,\"v\":\"w\"}", ""),
            ),
            ("{\"id\":\"a\",\"g\":3}\n", &named("id", Some("g")), ("a", "{\"id\":\"a\",\"g\":3}", "3")),
        ];
        for (text, shape, (key, payload, group)) in cases {
            let expected = (key.to_owned(), payload.to_owned(), group.to_owned());
            assert_eq!(all(text, shape)?, [expected], "{text}");
        }
        assert!(all("", &plain)?.is_empty());
        Ok(())
    }

    #[test]
    fn a_wrong_line_is_named_with_what_to_do() {
        let good = "{\"key\":\"a\",\"payload\":1}\n";
        let plain = Shape::default();
        let cases = [
            ("{\"key\":\"b\"}", &plain, "no `payload`"),
            ("{\"payload\":1}", &plain, "no `key`"),
            ("{\"key\":\"b\",\"payload\":1", &plain, "EOF"),
            ("{\"key\":\"b\",\"payload\":1}{}", &plain, "trailing characters"),
            ("{\"key\":\"b\",\"key\":\"c\",\"payload\":1}", &plain, "duplicate field `key`"),
            ("{\"key\":\"b\",\"payload\":1,\"prio\":2}", &plain, "unknown field `prio`"),
            ("{\"key\":{},\"payload\":1}", &plain, "must be a text or a number"),
            ("{\"key\":\"\",\"payload\":1}", &plain, "key is empty"),
            ("[1]", &plain, "with --key FIELD"),
        ];
        for (line, shape, what) in cases {
            let error = all(&format!("{good}{line}"), shape).expect_err(line).to_string();
            assert!(error.starts_with("line 2: ") && error.contains(what), "{line}: {error}");
        }
        let error = all("{\"a\":1}", &named("id", None)).expect_err("no such field").to_string();
        assert_eq!(error, "line 1: no field `id`");
    }

    #[test]
    fn what_is_not_text_or_endless_is_refused() {
        let mut ignore = |_| Ok::<(), ()>(());
        let latin1 = read(b"\n{\"key\":\"\xe9\"}".as_slice(), &Shape::default(), &mut ignore);
        assert!(said(latin1).starts_with("line 2: not UTF-8"));
        let endless = vec![b' '; PIECE_LIMIT as usize + 10];
        let long = read(endless.as_slice(), &Shape::default(), &mut ignore);
        assert!(said(long).starts_with("line 1: the line is longer"));
    }

    proptest::proptest! {
        /// Whatever it is, it is problems whose payloads are JSON, or an error that names a line.
        #[test]
        fn anything_is_problems_or_a_wrong_line(
            pieces in proptest::collection::vec(proptest::sample::select(vec![
                "{", "}", "\"key\"", "\"payload\"", "\"group_key\"", ":", ",", "1", "\"a\"", "null", "\n", "[", "]", " ",
                "\u{feff}", "\r", "\\", "\"", "1.5e3", "{\"key\":\"a\",\"payload\":1}\n", "\u{0}",
            ]), 0..30),
            noise in proptest::collection::vec(proptest::num::u8::ANY, 0..20),
        ) {
            for bytes in [pieces.concat().into_bytes(), [pieces.concat().as_bytes(), &noise[..]].concat()] {
                for shape in [Shape::default(), Shape { key: Some("key".into()), ..Shape::default() }] {
                    let outcome = read(bytes.as_slice(), &shape, &mut |problem| {
                        assert!(!problem.key.is_empty());
                        serde_json::from_slice::<serde::de::IgnoredAny>(&problem.payload)?;
                        Ok::<(), serde_json::Error>(())
                    });
                    if let Err(error) = outcome {
                        proptest::prop_assert!(error.to_string().starts_with("line"), "{error:#}");
                    }
                }
            }
        }
    }

    mod fuzz {
        use super::*;

        #[test]
        fn a_file_of_problems() {
            bolero::check!().for_each(|bytes: &[u8]| {
                for shape in [Shape::default(), Shape { key: Some("key".into()), ..Shape::default() }] {
                    let outcome = read(bytes, &shape, &mut |problem| {
                        assert!(!problem.key.is_empty());
                        serde_json::from_slice::<serde::de::IgnoredAny>(&problem.payload)?;
                        Ok::<(), serde_json::Error>(())
                    });
                    if let Err(error) = outcome {
                        assert!(error.to_string().starts_with("line"), "{error:#}");
                    }
                }
            });
        }
    }
}
