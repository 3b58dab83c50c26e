//! A problem per CSV record, with the names of its values in the first one.

use std::borrow::Cow;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use csv::StringRecord;
use pcfarm_proto::v1::SubmitProblem;
use serde_json::value::RawValue;

use crate::{DETAILS, PIECE_LIMIT, ReadError, Shape, checked, details, text};

/// What a record may take: a quote that is never closed would otherwise take the rest of the file.
const RECORD_LIMIT: u64 = PIECE_LIMIT;

/// Digits that a double holds exactly. A longer number is an identifier more often than a quantity.
const NUMBER_DIGITS: usize = 15;

/// Calls `add` with each problem, in order.
pub fn read<E>(
    reader: impl Read,
    shape: &Shape,
    add: &mut dyn FnMut(SubmitProblem) -> Result<(), E>,
) -> Result<(), ReadError<E>> {
    let since_record = Arc::new(AtomicU64::new(0));
    let bounded = Bounded { reader, since_record: since_record.clone() };
    let mut reader = csv::ReaderBuilder::new().from_reader(bounded);
    let header = reader.headers().map_err(|error| csv_error(1, &error))?.clone();
    let columns = Columns::new(&header, shape).map_err(|what| ReadError::line(1, what))?;
    let mut record = StringRecord::new();
    loop {
        since_record.store(0, Ordering::Relaxed);
        let line = reader.position().line();
        if !reader.read_record(&mut record).map_err(|error| csv_error(line, &error))? {
            return Ok(());
        }
        let line = record.position().map_or(line, csv::Position::line);
        add(columns.problem(&record).map_err(|what| ReadError::line(line, what))?).map_err(ReadError::Stopped)?;
    }
}

/// Fails when too much is read without a record coming to its end.
struct Bounded<R> {
    reader: R,
    since_record: Arc<AtomicU64>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.since_record.load(Ordering::Relaxed) > RECORD_LIMIT {
            return Err(io::Error::other("the record is longer than 8 MiB: is a closing quote missing?"));
        }
        let read = self.reader.read(buffer)?;
        self.since_record.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

fn csv_error<E>(line: u64, error: &csv::Error) -> ReadError<E> {
    let line = error.position().map_or(line, csv::Position::line);
    match error.kind() {
        csv::ErrorKind::Utf8 { .. } => {
            ReadError::line(line, "not UTF-8: convert the file first, for instance with iconv")
        }
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => ReadError::line(
            line,
            format!("{len} cells where the header has {expected_len}: is a quote or a comma missing?"),
        ),
        csv::ErrorKind::Io(error) => ReadError::line(line, error),
        _ => ReadError::line(line, text::plain(&error.to_string())),
    }
}

/// What each column is for.
struct Columns {
    key: usize,
    group: Option<usize>,
    /// Beside a column `payload`; without one, what has these names is data.
    details: Vec<(&'static str, usize)>,
    payload: Payload,
}

enum Payload {
    /// This column holds it as JSON.
    Column(usize),
    /// An object of these columns: their names as JSON, and where they are.
    Object { fields: Vec<(String, usize)>, strings: bool },
}

impl Columns {
    fn new(header: &StringRecord, shape: &Shape) -> Result<Columns, String> {
        let at = |name: &str| header.iter().position(|column| column == name);
        if let Some((i, _)) = header.iter().enumerate().find(|(i, name)| at(name) != Some(*i)) {
            return Err(format!("column `{}` is there twice", text::cut(&header[i], 60)));
        }
        let named = |name: &str, option: &str| {
            at(name).ok_or_else(|| {
                let columns: Vec<String> = header.iter().map(|name| text::cut(name, 40)).collect();
                let columns = columns.join(", ");
                let option = shape.asked.option(option, "COLUMN");
                format!("no column `{}`; name it with {option}. Columns: {columns}", text::plain(name))
            })
        };
        let key = named(shape.key.as_deref().unwrap_or("key"), "key")?;
        let group = match &shape.group {
            Some(group) => Some(named(group, "group")?),
            None => at("group_key"),
        };
        let mut details = Vec::new();
        let payload = match at("payload").filter(|column| *column != key) {
            Some(column) => {
                details = DETAILS.iter().filter_map(|name| Some((*name, at(name)?))).collect();
                Payload::Column(column)
            }
            None => {
                // A group that was named by flag is data as well; `group_key` is there for us.
                let ours = if shape.group.is_none() { group } else { None };
                let fields = header
                    .iter()
                    .enumerate()
                    .filter(|(i, _)| *i != key && Some(*i) != ours)
                    .map(|(i, name)| (json_text(name), i))
                    .collect();
                Payload::Object { fields, strings: shape.strings }
            }
        };
        Ok(Columns { key, group, details, payload })
    }

    fn problem(&self, record: &StringRecord) -> Result<SubmitProblem, String> {
        let group = self.group.map_or("", |group| &record[group]);
        let details = details(|name| {
            let (_, column) = self.details.iter().find(|(known, _)| *known == name)?;
            Some(Cow::from(&record[*column]))
        })?;
        checked(record[self.key].to_owned(), self.payload.of(record)?, group.to_owned(), details)
    }
}

impl Payload {
    fn of(&self, record: &StringRecord) -> Result<String, String> {
        match self {
            Payload::Column(column) => {
                let json = &record[*column];
                serde_json::from_str::<&RawValue>(json)
                    .map_err(|_| format!("column `payload` is not JSON: {}", text::cut(json, 60)))?;
                Ok(json.trim().to_owned())
            }
            Payload::Object { fields, strings } => {
                let cells: usize = fields.iter().map(|(name, column)| name.len() + record[*column].len() + 4).sum();
                let mut object = String::with_capacity(cells + 2);
                object.push('{');
                for (i, (name, column)) in fields.iter().enumerate() {
                    if i > 0 {
                        object.push(',');
                    }
                    object.push_str(name);
                    object.push(':');
                    let cell = &record[*column];
                    if *strings { push_text(&mut object, cell) } else { push_value(&mut object, cell) }
                }
                object.push('}');
                Ok(object)
            }
        }
    }
}

fn json_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Most cells are texts without anything to escape.
fn push_text(object: &mut String, text: &str) {
    if text.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
        object.push('"');
        object.push_str(text);
        object.push('"');
    } else {
        object.push_str(&json_text(text));
    }
}

/// A cell's value by the rules that `pcfarm job load --help` tells.
fn push_value(object: &mut String, cell: &str) {
    match cell {
        "" => object.push_str("null"),
        "true" | "false" => object.push_str(cell),
        _ if is_number(cell) => object.push_str(cell),
        _ => push_text(object, cell),
    }
}

/// As JSON writes numbers, without an exponent (12E5 is a part number), and exact in a double.
fn is_number(cell: &str) -> bool {
    let digits = cell.strip_prefix('-').unwrap_or(cell);
    let (whole, fraction) = match digits.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (digits, None),
    };
    let all_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    all_digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && fraction.is_none_or(all_digits)
        && whole.len() + fraction.map_or(0, str::len) <= NUMBER_DIGITS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Asked;

    fn all(text: &str, shape: &Shape) -> Result<Vec<(String, String, String)>, ReadError<std::str::Utf8Error>> {
        let mut found = Vec::new();
        read(text.as_bytes(), shape, &mut |problem| {
            let payload = std::str::from_utf8(&problem.payload)?.to_owned();
            found.push((problem.key, payload, problem.group_key));
            Ok(())
        })?;
        Ok(found)
    }

    fn shape(key: Option<&str>, group: Option<&str>, strings: bool) -> Shape {
        Shape { key: key.map(str::to_owned), group: group.map(str::to_owned), strings, asked: Asked::Flags }
    }

    #[test]
    fn cells_become_values() {
        let cases = [
            ("", "null"),
            ("true", "true"),
            ("TRUE", "\"TRUE\""),
            ("null", "\"null\""),
            ("0", "0"),
            ("-12.50", "-12.50"),
            ("007", "\"007\""),
            ("+1", "\"+1\""),
            ("1.", "\"1.\""),
            (".5", "\".5\""),
            ("-", "\"-\""),
            ("12E5", "\"12E5\""),
            ("999999999999999", "999999999999999"),
            ("1234567890123456", "\"1234567890123456\""),
            (" 1", "\" 1\""),
            ("NaN", "\"NaN\""),
            ("say \"hi\"\n", "\"say \\\"hi\\\"\\n\""),
            ("١", "\"١\""),
        ];
        for (cell, expected) in cases {
            let mut value = String::new();
            push_value(&mut value, cell);
            assert_eq!(value, expected, "{cell}");
            let parsed = serde_json::from_str::<serde_json::Value>(expected);
            assert!(parsed.is_ok(), "{cell}");
        }
    }

    #[test]
    fn records_become_problems() -> Result<(), ReadError<std::str::Utf8Error>> {
        let cases = [
            ("key,a,b\nk,1,x\n", shape(None, None, false), ("k", r#"{"a":1,"b":"x"}"#, "")),
            ("key,a,b\r\nk,1,\r\n", shape(None, None, true), ("k", r#"{"a":"1","b":""}"#, "")),
            ("\u{feff}key\nk\n", shape(None, None, false), ("k", "{}", "")),
            ("a,id\n2,k\n", shape(Some("id"), None, false), ("k", r#"{"a":2}"#, "")),
            ("key,route,n\nk,r,1\n", shape(None, Some("route"), false), ("k", r#"{"route":"r","n":1}"#, "r")),
            ("key,group_key,n\nk,g,1\n", shape(None, None, false), ("k", r#"{"n":1}"#, "g")),
            ("key,payload,n\nk,\"{\"\"x\"\": [1]}\",1\n", shape(None, None, false), ("k", r#"{"x": [1]}"#, "")),
            ("key,a\nk,\"two\nlines\"\n", shape(None, None, false), ("k", r#"{"a":"two\nlines"}"#, "")),
        ];
        for (text, shape, (key, payload, group)) in cases {
            let expected = (key.to_owned(), payload.to_owned(), group.to_owned());
            assert_eq!(all(text, &shape)?, [expected], "{text}");
        }
        assert!(all("key,a\n", &Shape::default())?.is_empty());
        Ok(())
    }

    #[test]
    fn a_wrong_record_is_named_with_what_to_do() {
        let cases = [
            ("", "line 1: no column `key`"),
            ("id,a\n1,2\n", "line 1: no column `key`; name it with --key COLUMN. Columns: id, a"),
            ("key,a,a\n", "line 1: column `a` is there twice"),
            ("key,a\nk,1\nl\n", "line 3: 1 cells where the header has 2"),
            ("key,a\nk,\"x\ny\"\n,1\n", "line 4: the key is empty"),
            ("key,payload\nk,1\nl,{x\n", "line 3: column `payload` is not JSON: {x"),
            ("key,payload\nk,\n", "line 2: column `payload` is not JSON"),
        ];
        for (text, expected) in cases {
            let error = all(text, &Shape::default()).expect_err(text).to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_not_text_or_endless_is_refused() {
        let mut ignore = |_| Ok::<(), ()>(());
        let latin1 = read(b"key,a\nk,1\nl,\xe9\n".as_slice(), &Shape::default(), &mut ignore);
        let ReadError::Wrong { place, what } = latin1.expect_err("not UTF-8") else { panic!("a wrong line") };
        let error = format!("{place}: {what}");
        assert!(error.starts_with("line 3: not UTF-8"), "{error}");
        let mut endless = b"key,a\nk,1\nl,\"".to_vec();
        endless.resize(2 * RECORD_LIMIT as usize, b'x');
        let long = read(endless.as_slice(), &Shape::default(), &mut ignore);
        let ReadError::Wrong { place, what } = long.expect_err("too long") else { panic!("a wrong line") };
        let error = format!("{place}: {what}");
        assert!(error.starts_with("line 3: the record is longer than 8 MiB"), "{error}");
    }

    proptest::proptest! {
        /// Whatever it is, it is problems whose payloads are JSON, or an error that names a line.
        #[test]
        fn anything_is_problems_or_a_wrong_line(
            pieces in proptest::collection::vec(proptest::sample::select(vec![
                "key", "payload", ",", "\n", "\"", "\"\"", "\r\n", "1", "1.50", "{}", "[1]", "a", " ", "\u{feff}", "key,payload\n", "\u{0}",
                "group",
            ]), 0..30),
            noise in proptest::collection::vec(proptest::num::u8::ANY, 0..20),
        ) {
            for bytes in [pieces.concat().into_bytes(), [pieces.concat().as_bytes(), &noise[..]].concat()] {
                for shape in [Shape::default(), Shape { key: Some("key".into()), group: None, ..Shape::default() }] {
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
                for shape in [Shape::default(), Shape { key: Some("key".into()), strings: true, ..Shape::default() }] {
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
