//! A CSV file of enrolments: its first line names the columns, of which `person` and `course` count. It is cut into pieces
//! of whole lines, and each piece is read by itself.

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Read};

/// What is read and enqueued in one step: a few hundred lines.
const PIECE_BYTES: usize = 16 << 10;

/// More than a piece may have for the sake of one long line.
const PIECE_BYTES_LIMIT: usize = 256 << 10;

/// Longer names are nobody's.
const NAME_CHARACTERS_LIMIT: usize = 100;

/// Where a file has its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Columns {
    person: usize,
    course: usize,
}

/// A person who wants to attend a course.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub line: u32,
    pub person: String,
    pub course: String,
}

/// A line that is refused, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    pub line: u32,
    pub refused: String,
}

/// Some whole lines of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub first_line: u32,
    pub text: String,
}

/// Cuts a file, of which no more than a piece is in memory.
pub struct Pieces<R> {
    reader: R,
    next_line: u32,
}

impl<R: BufRead> Pieces<R> {
    pub fn new(reader: R) -> Pieces<R> {
        Pieces { reader, next_line: 1 }
    }

    /// Nothing at the end. A quotation may hold line ends, so it is not cut.
    fn piece(&mut self) -> anyhow::Result<Option<Piece>> {
        let (first_line, mut bytes, mut quoted) = (self.next_line, Vec::new(), false);
        loop {
            let from = bytes.len();
            let mut room = self.reader.by_ref().take((PIECE_BYTES_LIMIT - from) as u64);
            let read = room.read_until(b'\n', &mut bytes)?;
            quoted ^= bytes[from..].iter().filter(|byte| **byte == b'"').count() % 2 == 1;
            self.next_line += u32::from(read > 0 && bytes.ends_with(b"\n"));
            if read == 0 || (bytes.len() >= PIECE_BYTES && bytes.ends_with(b"\n") && !quoted) {
                break;
            }
            let line = self.next_line;
            ensure!(bytes.len() < PIECE_BYTES_LIMIT, "line {line}, or a quotation before it, is too long");
        }
        let text = String::from_utf8(bytes);
        let text = text.with_context(|| format!("somewhere from line {first_line} on the file is not UTF-8"))?;
        Ok((!text.is_empty()).then_some(Piece { first_line, text }))
    }
}

impl<R: BufRead> Iterator for Pieces<R> {
    type Item = anyhow::Result<Piece>;

    fn next(&mut self) -> Option<anyhow::Result<Piece>> {
        self.piece().transpose()
    }
}

/// Reads the lines of a piece, or of a whole file; of the first piece nobody knows the columns yet.
pub struct Lines<'a> {
    reader: csv::Reader<&'a [u8]>,
    text: &'a str,
    /// How far line ends are counted, and which line that is.
    counted: usize,
    line: u32,
    pub columns: Columns,
}

impl<'a> Lines<'a> {
    pub fn new(text: &'a str, first_line: u32, columns: Option<Columns>) -> Result<Lines<'a>, Refused> {
        // Spreadsheets begin their files with a mark.
        let text = if first_line == 1 { text.trim_start_matches('\u{feff}') } else { text };
        let mut options = csv::ReaderBuilder::new();
        options.has_headers(columns.is_none()).flexible(true).trim(csv::Trim::All);
        let mut reader = options.from_reader(text.as_bytes());
        let refused = |refused: String| Refused { line: first_line, refused };
        let columns = match columns {
            Some(columns) => columns,
            None => {
                let header = reader.headers().map_err(|error| refused(error.to_string()))?;
                let place = |name: &str| {
                    let found = header.iter().position(|column| column.eq_ignore_ascii_case(name));
                    found.ok_or_else(|| refused(format!("there is no column {name} in the first line")))
                };
                Columns { person: place("person")?, course: place("course")? }
            }
        };
        Ok(Lines { reader, text, counted: 0, line: first_line, columns })
    }

    /// Where a record begins, behind empty lines. The reader's own count is one behind where lines end as Windows has it.
    fn line_of(&mut self, record: &csv::StringRecord) -> u32 {
        let bytes = self.text.as_bytes();
        let mut at = record.position().map_or(0, |position| usize::try_from(position.byte()).unwrap_or(usize::MAX));
        while matches!(bytes.get(at), Some(b'\r' | b'\n')) {
            at += 1;
        }
        let passed = bytes.get(self.counted..at).unwrap_or_default();
        self.line += u32::try_from(passed.iter().filter(|byte| **byte == b'\n').count()).unwrap_or_default();
        self.counted = at;
        self.line
    }

    fn line(&mut self, record: &csv::StringRecord) -> Result<Line, Refused> {
        let line = self.line_of(record);
        let field = |place: usize, what: &str| match record.get(place) {
            None | Some("") => Err(Refused { line, refused: format!("it names no {what}") }),
            Some(name) if name.chars().count() > NAME_CHARACTERS_LIMIT || name.contains('\0') => {
                Err(Refused { line, refused: format!("there is no such {what}") })
            }
            Some(name) => Ok(name.to_owned()),
        };
        Ok(Line { line, person: field(self.columns.person, "person")?, course: field(self.columns.course, "course")? })
    }
}

impl Iterator for Lines<'_> {
    type Item = Result<Line, Refused>;

    fn next(&mut self) -> Option<Result<Line, Refused>> {
        let mut record = csv::StringRecord::new();
        match self.reader.read_record(&mut record) {
            Ok(true) => Some(self.line(&record)),
            Ok(false) => None,
            Err(error) => Some(Err(Refused { line: self.line, refused: error.to_string() })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(line: u32, person: &str, course: &str) -> Result<Line, Refused> {
        Ok(Line { line, person: person.to_owned(), course: course.to_owned() })
    }

    fn refused(line: u32, refused: &str) -> Result<Line, Refused> {
        Err(Refused { line, refused: refused.to_owned() })
    }

    #[test]
    fn lines_keep_their_numbers() {
        let long = "x".repeat(101);
        let text = format!("\u{feff}Course, person \r\nM1,P1\r\nM2\n\n\"M\n3\",\"P3\"\nM4,{long}\n,P5\nM6, P6");
        let lines = Lines::new(&text, 1, None).expect("columns are named");
        let expected = [
            line(2, "P1", "M1"),
            refused(3, "it names no person"),
            line(5, "P3", "M\n3"),
            refused(7, "there is no such person"),
            refused(8, "it names no course"),
            line(9, "P6", "M6"),
        ];
        assert_eq!(lines.collect::<Vec<_>>(), expected);
        let wrong = Lines::new("name,course\n", 1, None).err().expect("no person");
        assert_eq!(wrong.refused, "there is no column person in the first line");
    }

    #[test]
    fn pieces_together_are_the_file() {
        let mut text = "person,course,remark\n".to_owned();
        for n in 2..8000 {
            // Every seventh line is followed by a line end in a quotation.
            text += &format!("P{n},M{},{}\n", n % 5, if n % 7 == 0 { "\"a\nb\"" } else { "ä" });
        }
        let pieces: Vec<Piece> = Pieces::new(text.as_bytes()).map(|piece| piece.expect("good text")).collect();
        assert!(pieces.len() > 3 && pieces.iter().all(|piece| piece.text.len() < PIECE_BYTES + 100));
        assert_eq!(pieces.iter().map(|piece| piece.text.as_str()).collect::<String>(), text);
        let whole: Vec<_> = Lines::new(&text, 1, None).expect("columns").collect();
        let mut columns = None;
        let mut read = Vec::new();
        for piece in &pieces {
            let lines = Lines::new(&piece.text, piece.first_line, columns).expect("columns");
            columns = Some(lines.columns);
            read.extend(lines);
        }
        assert_eq!(read, whole);
    }

    #[test]
    fn what_is_no_text_of_lines_is_refused_in_little_memory() {
        let endless = std::io::BufReader::new(std::io::repeat(b'a'));
        let error = Pieces::new(endless).next().expect("a piece").expect_err("too long");
        assert!(error.to_string().contains("line 1"), "{error}");
        assert!(Pieces::new(&b"person,course\n\xff"[..]).next().expect("a piece").is_err());
        assert!(Pieces::new(&b""[..]).next().is_none());
    }
}
