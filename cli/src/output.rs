//! What goes to standard output: tables for people, one JSON document for programs.
//!
//! JSON has the names of `pcfarm.v1`. Ids and batch orders are strings, because many programs read numbers
//! as doubles; counts are numbers; times are RFC 3339 in UTC; what is not there is null.

use std::io::{self, IsTerminal, Write};

use anyhow::{Context, Result};
use bytes::Bytes;
use clap::ValueEnum;
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::exit::{self, Failure};
use crate::platform;

/// No table is wider, whatever the terminal.
pub const WIDTH: u16 = 100;

/// Between two columns.
const GAP: u16 = 2;

/// A reason in less is hard to read.
const REASON_WIDTH: u16 = 20;

/// How results are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// One JSON document
    Json,
    /// A JSON object per line (`job results` only)
    Ndjson,
    /// Comma-separated values (`job results` only)
    Csv,
}

/// The two that every verb knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    Table,
    Json,
}

impl Output {
    pub fn from_flag(flag: Option<Format>) -> Result<Output> {
        match flag {
            None | Some(Format::Table) => Ok(Output::Table),
            Some(Format::Json) => Ok(Output::Json),
            Some(Format::Ndjson | Format::Csv) => {
                Err(Failure::usage("only `pcfarm job results` writes ndjson and csv; use --output json"))
            }
        }
    }

    /// Writes one thing in either form; only the form asked for is made.
    pub fn print<J: Serialize>(self, json: impl FnOnce() -> J, text: impl FnOnce() -> String) -> Result<()> {
        match self {
            Output::Table => print(&text()),
            Output::Json => print_json(&json()),
        }
    }
}

/// Writes text and a line end. Never `println!`, which panics when the reader has gone.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    exit::written(writeln!(out, "{}", text.trim_end_matches('\n')).and_then(|()| out.flush()))
}

pub fn print_json<J: Serialize>(document: &J) -> Result<()> {
    print(&serde_json::to_string_pretty(document).context("writing JSON")?)
}

/// A remark beside the output: to standard error, and nothing happens if that is closed.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// A column's heading and alignment.
#[derive(Clone, Copy)]
pub enum Column {
    Text(&'static str),
    Number(&'static str),
    /// Text that tells why: it gets what width is left, but never less than some words' width.
    Reason(&'static str),
}

/// A table without borders that fits [`WIDTH`]; `none` is what is said instead of an empty one.
pub fn table(columns: &[Column], rows: Vec<Vec<String>>, none: &str) -> String {
    table_in(terminal_width().into(), columns, rows, none)
}

/// The same in so many columns of a terminal.
pub fn table_in(width: usize, columns: &[Column], rows: Vec<Vec<String>>, none: &str) -> String {
    if rows.is_empty() {
        return none.to_owned();
    }
    let width = u16::try_from(width).unwrap_or(u16::MAX);
    let reason_width = reason_width(columns, &rows, width);
    let mut table = Table::new();
    table
        .load_style(comfy_table::presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(width);
    table.set_header(columns.iter().map(|column| match column {
        Column::Text(name) | Column::Number(name) | Column::Reason(name) => *name,
    }));
    table.add_rows(rows);
    for (column, drawn) in columns.iter().zip(table.column_iter_mut()) {
        drawn.set_padding((0, GAP));
        match column {
            Column::Text(_) => {}
            Column::Number(_) => drawn.set_cell_alignment(CellAlignment::Right),
            Column::Reason(_) => {
                drawn.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(reason_width + GAP)));
            }
        }
    }
    table.trim_fmt()
}

/// What the other columns leave for the reason, which is the longest text of most tables. Left to itself the
/// arrangement would give each column the same share, and nobody the rest of it.
fn reason_width(columns: &[Column], rows: &[Vec<String>], width: u16) -> u16 {
    let widest = |i: usize, heading: &str| {
        let cells = rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count());
        cells.chain([heading.chars().count()]).max().unwrap_or(0)
    };
    let (mut others, mut wanted) = (0, 0);
    for (i, column) in columns.iter().enumerate() {
        match column {
            Column::Text(heading) | Column::Number(heading) => others += widest(i, heading) + usize::from(GAP),
            Column::Reason(heading) => wanted = wanted.max(widest(i, heading)),
        }
    }
    let left = usize::from(width).saturating_sub(others + usize::from(GAP));
    u16::try_from(left.min(wanted)).unwrap_or(width).max(REASON_WIDTH)
}

/// With columns that could be left out beside it, a reason has at least this.
const REASON_WIDTH_BESIDE: u16 = 30;

/// Whether a column more leaves some words' width to the reason behind it.
pub fn has_room(columns: &[(Column, Vec<String>)], more: &[String]) -> bool {
    has_room_in(terminal_width().into(), columns, more)
}

pub fn has_room_in(room: usize, columns: &[(Column, Vec<String>)], more: &[String]) -> bool {
    let width = |cells: &[String]| cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
    let heading = |column: &Column| match column {
        Column::Text(name) | Column::Number(name) | Column::Reason(name) => name.len(),
    };
    let taken: usize = columns.iter().map(|(column, cells)| width(cells).max(heading(column)) + usize::from(GAP)).sum();
    taken + width(more) + usize::from(2 * GAP + REASON_WIDTH_BESIDE) <= room
}

/// Lines of `name  value`, as for one thing shown in full.
pub fn fields(rows: &[(&str, String)]) -> String {
    let rows = rows
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| vec![(*name).to_owned(), value.clone()])
        .collect();
    let mut table = table(&[Column::Text(""), Column::Reason("")], rows, "");
    // The heading is there for the arrangement only.
    if let Some(end) = table.find('\n') {
        table.drain(..=end);
    }
    table
}

/// The width of a terminal on which a table falls apart.
pub fn narrow() -> Option<usize> {
    let (columns, _) = io::stdout().is_terminal().then(platform::terminal_size).flatten()?;
    (20..80).contains(&columns).then(|| columns.into())
}

/// Text in lines of at most so many characters, each behind this; words are broken only if they are longer than a line.
pub fn wrapped(text: &str, before: &str, width: usize) -> String {
    let room = width.saturating_sub(before.len()).max(1);
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let mut rest: Vec<char> = word.chars().collect();
        let used = lines.last().map_or(room, |line| line.chars().count());
        if used > 0 && used + 1 + rest.len() <= room {
            let line = lines.last_mut().expect("it is used");
            line.push(' ');
            line.extend(rest);
            continue;
        }
        while !rest.is_empty() {
            lines.push(rest.drain(..rest.len().min(room)).collect());
        }
    }
    lines.iter().map(|line| format!("{before}{line}\n")).collect()
}

/// The terminal's width up to [`WIDTH`], but what can still hold a table: in less, words and numbers fall apart.
fn terminal_width() -> u16 {
    match io::stdout().is_terminal().then(platform::terminal_size).flatten() {
        Some((columns, _)) if columns > 0 => columns.clamp(80, WIDTH),
        _ => WIDTH,
    }
}

/// All of the terminal's width. Whatever reads it where there is none takes lines of any length.
pub fn whole_width() -> usize {
    match io::stdout().is_terminal().then(platform::terminal_size).flatten() {
        Some((columns, _)) if columns > 0 => columns.into(),
        _ => u16::MAX.into(),
    }
}

/// A 64-bit id as JSON: a string, and null for the 0 that stands for none.
pub fn id(id: i64) -> Option<String> {
    (id != 0).then(|| id.to_string())
}

/// A JSON value from the farm as it is, digit for digit; bytes that are no JSON become a string.
pub fn raw(json: &Bytes) -> Option<Box<RawValue>> {
    if json.is_empty() {
        return None;
    }
    let text = String::from_utf8_lossy(json).into_owned();
    RawValue::from_string(text).or_else(|_| serde_json::value::to_raw_value(&String::from_utf8_lossy(json))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_fit_and_numbers_stay_whole() {
        let columns =
            [Column::Number("JOB"), Column::Text("NAME"), Column::Number("PROBLEMS"), Column::Reason("REASON")];
        let row = vec![
            "9223372036854775807".to_owned(),
            "東".repeat(40),
            "1,000,000,000".to_owned(),
            "waits for somebody ".repeat(20),
        ];
        let text = table(&columns, vec![row], "none");
        for line in text.lines() {
            assert!(width(line) <= usize::from(WIDTH), "{line}");
        }
        assert!(text.contains("9223372036854775807"), "{text}");
        assert!(text.contains("1,000,000,000"), "{text}");
        let long = "in progress on four workstations, the last of them since an hour";
        let row = ["1", "night", "7", long].map(str::to_owned).to_vec();
        let text = table(&columns, vec![row], "none");
        assert!(text.contains(long), "the reason has what width there is: {text}");
        assert_eq!(table(&columns, vec![], "none"), "none");
    }

    #[test]
    fn fields_have_no_heading_and_no_empty_ones() {
        let text = fields(&[("job", "7".to_owned()), ("title", String::new())]);
        assert_eq!(text, "job  7");
    }

    #[test]
    fn long_text_is_wrapped_at_words() {
        let cases = [
            ("", ""),
            ("one two three", "  one two\n  three\n"),
            ("1234567890123", "  12345678\n  90123\n"),
            ("a 1234567890123 b", "  a\n  12345678\n  90123 b\n"),
            ("12345678 x", "  12345678\n  x\n"),
        ];
        for (text, expected) in cases {
            assert_eq!(wrapped(text, "  ", 10), expected, "{text}");
        }
    }

    #[test]
    fn json_keeps_every_digit() {
        let value = raw(&Bytes::from_static(br#"{"n":12345678901234567890.10}"#)).expect("there");
        assert_eq!(value.get(), r#"{"n":12345678901234567890.10}"#);
        assert!(raw(&Bytes::new()).is_none());
        let broken = raw(&Bytes::from_static(b"\xff{")).expect("there");
        assert_eq!(broken.get(), "\"\u{fffd}{\"");
    }

    /// Columns on a terminal, for the characters of these tests.
    fn width(line: &str) -> usize {
        line.chars().map(|c| if c >= '\u{1100}' { 2 } else { 1 }).sum()
    }
}
