//! Problems in one JSON document: an array of them, or an object with `problems`. Each is read by itself, so a long array
//! needs no more memory than a short one.

use crate::{PIECE_LIMIT, Place, ReadError, Shape, ndjson, text};
use pcfarm_proto::v1::SubmitProblem;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::cell::Cell;
use std::fmt;
use std::io::{self, BufReader, Read};
use std::rc::Rc;

/// Calls `add` with each problem, in order.
pub fn read<E>(
    reader: impl Read,
    shape: &Shape,
    add: &mut dyn FnMut(SubmitProblem) -> Result<(), E>,
) -> Result<(), ReadError<E>> {
    let read_since = Rc::new(Cell::new(0));
    let bounded = BufReader::new(Bounded { reader, read_since: read_since.clone() });
    let mut document = serde_json::Deserializer::from_reader(bounded);
    let mut problems = Problems { shape, add, read_since, number: 0, failed: None };
    let outcome = (&mut problems).deserialize(&mut document).and_then(|()| document.end());
    match (problems.failed, outcome) {
        (Some(failed), _) => Err(failed),
        (None, Ok(())) => Ok(()),
        (None, Err(error)) => {
            let what = error.to_string();
            let what = if error.is_io() { what } else { format!("not as it should be: {}", text::cut(&what, 200)) };
            Err(ReadError::Wrong { place: Place::Problem(problems.number + 1), what })
        }
    }
}

/// Fails when too much is read without a problem coming to its end.
struct Bounded<R> {
    reader: R,
    read_since: Rc<Cell<u64>>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.read_since.get() > PIECE_LIMIT {
            return Err(io::Error::other("the problem is longer than 8 MiB"));
        }
        let read = self.reader.read(buffer)?;
        self.read_since.set(self.read_since.get() + read as u64);
        Ok(read)
    }
}

struct Problems<'a, E> {
    shape: &'a Shape,
    add: &'a mut dyn FnMut(SubmitProblem) -> Result<(), E>,
    read_since: Rc<Cell<u64>>,
    number: u64,
    /// What serde's errors cannot carry.
    failed: Option<ReadError<E>>,
}

impl<'de, E> DeserializeSeed<'de> for &mut Problems<'_, E> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, E> Visitor<'de> for &mut Problems<'_, E> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of problems, or an object with `problems`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut there = false;
        while let Some(name) = map.next_key::<String>()? {
            if name != "problems" || there {
                return Err(A::Error::custom(format!("`{}` where only `problems` is known", text::cut(&name, 40))));
            }
            there = true;
            map.next_value_seed(&mut *self)?;
        }
        if there { Ok(()) } else { Err(A::Error::missing_field("problems")) }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut problems: A) -> Result<(), A::Error> {
        while let Some(raw) = problems.next_element::<Box<RawValue>>()? {
            self.read_since.set(0);
            let taken = ndjson::problem(raw.get(), self.shape)
                .map_err(|what| ReadError::Wrong { place: Place::Problem(self.number + 1), what })
                .and_then(|problem| (self.add)(problem).map_err(ReadError::Stopped));
            if let Err(failed) = taken {
                self.failed = Some(failed);
                return Err(A::Error::custom("stopped"));
            }
            self.number += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &[u8]) -> Result<Vec<String>, String> {
        let mut found = Vec::new();
        let outcome = read(text, &Shape::default(), &mut |problem| {
            found.push(problem.key);
            Ok::<(), String>(())
        });
        outcome.map(|()| found).map_err(|error| error.to_string())
    }

    #[test]
    fn an_array_or_an_object_of_problems_is_read() {
        let two = br#" [{"key": "a", "payload": {"x": [1]}}, {"key": 2, "payload": null}] "#;
        assert_eq!(keys(two).expect("right"), ["a", "2"]);
        assert_eq!(keys(br#"{"problems": [{"key": "a", "payload": 1}]}"#).expect("right"), ["a"]);
        assert_eq!(keys(b"[]").expect("right").len(), 0);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_problem() {
        let cases: [(&[u8], &str); 8] = [
            (b"", "problem 1: not as it should be: EOF"),
            (b"7", "problem 1: not as it should be: invalid type"),
            (b"{}", "problem 1: not as it should be: missing field `problems`"),
            (br#"{"jobs": []}"#, "problem 1: not as it should be: `jobs`"),
            (br#"[{"key": "a", "payload": 1}, {"key": "b"}]"#, "problem 2: no `payload`"),
            (br#"[{"key": "a", "payload": 1}"#, "problem 2: not as it should be: EOF"),
            (br#"[{"key": "a", "payload": 1}] []"#, "problem 2: not as it should be: trailing"),
            (b"[{\"key\": \"\xff\"}]", "problem 1: not as it should be: "),
        ];
        for (text, expected) in cases {
            let said = keys(text).expect_err(expected);
            assert!(said.starts_with(expected), "{said}");
        }
        let mut endless = b"[\"".to_vec();
        endless.resize(2 * PIECE_LIMIT as usize, b'x');
        assert!(keys(&endless).expect_err("endless").contains("longer than 8 MiB"));
    }

    mod fuzz {
        use super::*;

        #[test]
        fn a_document_of_problems() {
            bolero::check!().for_each(|bytes: &[u8]| {
                if let Err(said) = keys(bytes) {
                    assert!(said.starts_with("problem "), "{said}");
                }
            });
        }
    }
}
