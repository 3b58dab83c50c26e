//! Rows that were read for the problems of a checkout.
//!
//! Owns the index from a read's name and a problem's key to rows, and what was parsed for all problems. It
//! never knows of problems.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use anyhow::Context;
use bytes::Bytes;
use pcfarm_proto::v1;
use serde::de::DeserializeOwned;

/// The related reads of one checkout, indexed once.
#[derive(Default)]
pub struct Related {
    reads: HashMap<String, Read>,
}

#[derive(Default)]
struct Read {
    rows: Vec<Bytes>,
    /// Indexes into `rows`, rising.
    for_all: Vec<u32>,
    by_key: HashMap<String, Vec<u32>>,
    /// The rows `for_all`, as `Vec<T>` by T: one entry per type that a controller asks for, nearly always one.
    parsed: RwLock<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
}

/// A controller asked for a read that its job type does not have.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("job type has no related read {asked:?}; it has {}", list(.known))]
pub struct UnknownRead {
    pub asked: String,
    pub known: Vec<String>,
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    names.join(", ")
}

impl Related {
    /// Indexes the reads of a checkout. A read may come in several pieces, one per part of the checkout.
    pub fn new(pieces: impl IntoIterator<Item = v1::RelatedRead>) -> Related {
        let mut related = Related::default();
        for piece in pieces {
            let read = related.reads.entry(piece.name).or_default();
            for row in piece.rows {
                read.push(row);
            }
        }
        related
    }

    /// The rows of `read` for the problem `key`, those for every problem included, in the order read.
    pub fn rows<'a>(&'a self, read: &str, key: &str) -> Result<impl Iterator<Item = &'a [u8]> + use<'a>, UnknownRead> {
        let read = self.read(read)?;
        let own = read.by_key.get(key).map_or(&[][..], Vec::as_slice);
        Ok(Merged { left: &read.for_all, right: own }.map(|index| read.rows[index as usize].as_ref()))
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.reads.keys().map(String::as_str)
    }

    /// The rows of `read` that are for every problem, in the order read; parsed by the first who asks.
    pub fn shared<T: DeserializeOwned + Send + Sync + 'static>(&self, read: &str) -> anyhow::Result<Arc<Vec<T>>> {
        let rows = self.read(read)?;
        let of_type = TypeId::of::<T>();
        // A panic in T's parser leaves the map as it was.
        let parsed = rows.parsed.read().unwrap_or_else(PoisonError::into_inner).get(&of_type).cloned();
        let parsed = match parsed {
            Some(parsed) => parsed,
            None => {
                let mut cache = rows.parsed.write().unwrap_or_else(PoisonError::into_inner);
                match cache.get(&of_type) {
                    Some(parsed) => Arc::clone(parsed),
                    None => {
                        let values: Vec<T> = rows.for_all().map(|row| parse(read, row)).collect::<Result<_, _>>()?;
                        let parsed: Arc<dyn Any + Send + Sync> = Arc::new(values);
                        cache.insert(of_type, Arc::clone(&parsed));
                        parsed
                    }
                }
            }
        };
        Ok(parsed.downcast().expect("it was put there as this type"))
    }

    fn read(&self, name: &str) -> Result<&Read, UnknownRead> {
        self.reads.get(name).ok_or_else(|| {
            let mut known: Vec<String> = self.reads.keys().cloned().collect();
            known.sort();
            UnknownRead { asked: name.to_owned(), known }
        })
    }
}

pub fn parse<T: DeserializeOwned>(read: &str, row: &[u8]) -> anyhow::Result<T> {
    serde_json::from_slice(row).with_context(|| format!("a row of related read {read:?} does not parse"))
}

impl Read {
    fn for_all(&self) -> impl Iterator<Item = &[u8]> {
        self.for_all.iter().map(|&index| self.rows[index as usize].as_ref())
    }

    fn push(&mut self, row: v1::RelatedRow) {
        let index = u32::try_from(self.rows.len()).expect("a checkout is smaller than 2^32 rows");
        self.rows.push(row.row);
        match row.key {
            Some(key) => self.by_key.entry(key).or_default().push(index),
            None => self.for_all.push(index),
        }
    }
}

/// Two rising sequences as one.
struct Merged<'a> {
    left: &'a [u32],
    right: &'a [u32],
}

impl Iterator for Merged<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let left_first = match (self.left.first(), self.right.first()) {
            (Some(left), Some(right)) => left < right,
            (Some(_), None) => true,
            (None, _) => false,
        };
        let side = if left_first { &mut self.left } else { &mut self.right };
        let (first, rest) = side.split_first()?;
        *side = rest;
        Some(*first)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn read(name: &str, rows: &[(Option<&str>, &'static str)]) -> v1::RelatedRead {
        let row = |&(key, row): &(Option<&str>, &'static str)| v1::RelatedRow {
            key: key.map(str::to_owned),
            row: Bytes::from_static(row.as_bytes()),
        };
        v1::RelatedRead { name: name.to_owned(), rows: rows.iter().map(row).collect() }
    }

    fn rows(related: &Related, name: &str, key: &str) -> Vec<String> {
        let text = |row: &[u8]| String::from_utf8(row.to_vec()).expect("rows of this test are text");
        related.rows(name, key).expect("a known read").map(text).collect()
    }

    #[test]
    fn rows_are_the_keys_own_and_everyones_in_order() {
        let related = Related::new([
            read("fares", &[(Some("a"), "1"), (None, "2"), (Some("b"), "3")]),
            read("fares", &[(Some("a"), "4"), (None, "5")]),
            read("empty", &[]),
        ]);
        for (name, key, expected) in [
            ("fares", "a", &["1", "2", "4", "5"][..]),
            ("fares", "b", &["2", "3", "5"]),
            ("fares", "c", &["2", "5"]),
            ("empty", "a", &[]),
        ] {
            assert_eq!(rows(&related, name, key), expected, "{name} {key}");
        }
    }

    /// Counts how often it is parsed.
    #[derive(Debug, PartialEq)]
    struct Counted(u32);

    static PARSED: AtomicUsize = AtomicUsize::new(0);

    impl<'de> serde::Deserialize<'de> for Counted {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Counted, D::Error> {
            PARSED.fetch_add(1, Ordering::Relaxed);
            u32::deserialize(deserializer).map(Counted)
        }
    }

    #[test]
    fn rows_for_everyone_are_parsed_once_for_all_and_once_for_each_type() {
        let related = Related::new([
            read("seasons", &[(None, "1"), (Some("a"), "2"), (None, "3")]),
            read("fares", &[(None, "-1")]),
        ]);
        let ask = || related.shared::<Counted>("seasons").expect("numbers");
        let answers: Vec<Arc<Vec<Counted>>> = std::thread::scope(|scope| {
            let askers: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
            askers.into_iter().map(|asker| asker.join().expect("it does not panic")).collect()
        });
        assert!(answers.iter().all(|answer| **answer == [Counted(1), Counted(3)]));
        assert_eq!(PARSED.load(Ordering::Relaxed), 2);
        assert_eq!(*related.shared::<i64>("seasons").expect("the same as another type"), [1, 3]);

        // A failure is everyone's, and another type may still fit.
        for _ in 0..2 {
            let error = related.shared::<Counted>("fares").expect_err("less than zero");
            assert_eq!(error.to_string(), "a row of related read \"fares\" does not parse");
        }
        assert_eq!(*related.shared::<i64>("fares").expect("a number"), [-1]);
        assert!(related.shared::<i64>("seats").is_err());
    }

    #[test]
    fn an_unknown_read_names_the_ones_there_are() {
        let related = Related::new([read("b", &[]), read("a", &[])]);
        let error = related.rows("c", "k").map(|_| ()).expect_err("there is no read c");
        assert_eq!(error.to_string(), "job type has no related read \"c\"; it has a, b");
        let error = Related::default().rows("c", "k").map(|_| ()).expect_err("there is no read at all");
        assert_eq!(error.to_string(), "job type has no related read \"c\"; it has none");
    }

    /// `cargo test --release -p pcfarm-worker -- --ignored --nocapture overhead`
    #[test]
    #[ignore = "a measurement, not a test"]
    fn overhead_of_rows_for_everyone() {
        #[derive(serde::Deserialize)]
        #[expect(dead_code, reason = "it is parsed, not looked at")]
        struct Season {
            name: String,
            first_day: u32,
            demand: f64,
        }
        let row = (None, r#"{"name": "high summer", "first_day": 181, "demand": 1.25}"#);
        let related = Related::new([read("seasons", &[row; 8])]);
        let problems = 100_000;
        let began = std::time::Instant::now();
        for _ in 0..problems {
            let rows = related.rows("seasons", "k").expect("a known read");
            let parsed: Vec<Season> = rows.map(|row| parse("seasons", row).expect("a season")).collect();
            assert_eq!(std::hint::black_box(parsed).len(), 8);
        }
        println!("8 rows parsed for each problem: {:?}", began.elapsed() / problems);
        let began = std::time::Instant::now();
        for _ in 0..problems {
            let parsed = related.shared::<Season>("seasons").expect("a known read");
            assert_eq!(std::hint::black_box(parsed).len(), 8);
        }
        println!("8 rows parsed once: {:?}", began.elapsed() / problems);
    }
}
