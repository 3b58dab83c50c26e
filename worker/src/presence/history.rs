//! What the agent did in the last week, for its owner.
//!
//! Owns a file that never grows beyond a bound, and how long it took to give way. Nobody waits until something is in it.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::disk::Disk;
use super::policy::{Activity, State};

const FILE: &str = "history";

/// Some weeks of a desk, and little on any disk.
const FILE_BYTES_LIMIT: u64 = 256 << 10;

const KEPT_FOR_SECONDS: i64 = 7 * 86_400;

/// Of how many times the quantiles are.
const YIELDS: usize = 1000;

/// How quickly it gave way: of so many times, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Yields {
    pub p50_ms: u64,
    pub p99_ms: u64,
    pub count: usize,
}

/// One line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Seconds of the Unix epoch.
    pub at: i64,
    #[serde(flatten)]
    pub event: Event,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    Works,
    Stops {
        why: String,
    },
    /// So long after the input no core computed any more.
    Yielded {
        milliseconds: u64,
    },
}

pub struct History {
    book: Book,
    disk: Arc<Disk>,
    yields: VecDeque<u64>,
    last: Option<Event>,
}

impl History {
    /// A line that makes no sense is passed over.
    pub fn open(state_dir: &Path, disk: Arc<Disk>) -> History {
        let book = Book { file: state_dir.join(FILE) };
        let entries = book.entries();
        let mut history = History { book, disk, yields: VecDeque::new(), last: None };
        for entry in entries {
            if let Event::Yielded { milliseconds } = entry.event {
                history.remember(milliseconds);
            }
        }
        history
    }

    pub fn note(&mut self, state: &State) {
        let event = match state.activity {
            Activity::Work => Event::Works,
            Activity::Finish | Activity::Freeze | Activity::Rest => Event::Stops { why: state.reason() },
        };
        if self.last.as_ref() != Some(&event) {
            self.last = Some(event.clone());
            self.append(event);
        }
    }

    pub fn yielded(&mut self, took: Duration) {
        let milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.remember(milliseconds);
        self.append(Event::Yielded { milliseconds });
    }

    /// Of the last thousand; none: it never had to.
    pub fn yields(&self) -> Option<Yields> {
        let mut sorted: Vec<u64> = self.yields.iter().copied().collect();
        sorted.sort_unstable();
        let at = |part: f64| sorted.get(((sorted.len() as f64 * part).ceil() as usize).saturating_sub(1)).copied();
        Some(Yields { p50_ms: at(0.5)?, p99_ms: at(0.99)?, count: sorted.len() })
    }

    /// To be read by whoever can wait.
    pub fn book(&self) -> Book {
        self.book.clone()
    }

    fn remember(&mut self, milliseconds: u64) {
        if self.yields.len() == YIELDS {
            self.yields.pop_front();
        }
        self.yields.push_back(milliseconds);
    }

    fn append(&self, event: Event) {
        let (book, entry) = (self.book.clone(), Entry { at: now(), event });
        self.disk.give(move || {
            let _ = book.append(&entry).inspect_err(|error| warn!(%error, "history is not kept"));
        });
    }
}

/// The file.
#[derive(Clone)]
pub struct Book {
    file: PathBuf,
}

impl Book {
    /// The oldest first.
    pub fn entries(&self) -> Vec<Entry> {
        let oldest = now() - KEPT_FOR_SECONDS;
        let text = fs::read_to_string(&self.file).unwrap_or_default();
        let entries = text.lines().filter_map(|line| serde_json::from_str::<Entry>(line).ok());
        entries.filter(|entry| entry.at >= oldest).collect()
    }

    fn append(&self, entry: &Entry) -> io::Result<()> {
        // Who only looks, without an agent, leaves no trace.
        if !self.file.parent().is_some_and(Path::is_dir) {
            return Ok(());
        }
        if fs::metadata(&self.file).is_ok_and(|file| file.len() > FILE_BYTES_LIMIT) {
            self.halve()?;
        }
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        fs::File::options().create(true).append(true).open(&self.file)?.write_all(&line)
    }

    fn halve(&self) -> io::Result<()> {
        let text = fs::read_to_string(&self.file)?;
        let middle = text.floor_char_boundary(text.len() / 2);
        let rest = text[middle..].split_once('\n').map_or("", |(_, rest)| rest);
        let aside = self.file.with_extension("new");
        fs::write(&aside, rest)?;
        fs::rename(aside, &self.file)
    }
}

fn now() -> i64 {
    Timestamp::now().as_second()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_was_and_stays_small() {
        let dir = tempfile::tempdir().expect("a directory");
        let disk = Arc::new(Disk::start().expect("a thread"));
        let mut history = History::open(dir.path(), Arc::clone(&disk));
        assert_eq!(history.yields(), None);
        let mut works = State::new(Duration::ZERO);
        works.activity = Activity::Work;
        history.note(&State::new(Duration::ZERO));
        history.note(&works);
        history.note(&works);
        for milliseconds in 1..=200 {
            history.yielded(Duration::from_millis(milliseconds));
            while !disk.flush() {}
        }
        assert_eq!(history.yields(), Some(Yields { p50_ms: 100, p99_ms: 198, count: 200 }));
        let again = History::open(dir.path(), disk);
        assert_eq!(again.yields(), history.yields());
        let events: Vec<Event> = again.book().entries().into_iter().map(|entry| entry.event).take(3).collect();
        assert_eq!(events, [Event::Stops { why: String::new() }, Event::Works, Event::Yielded { milliseconds: 1 }]);

        let book = history.book();
        let long = Entry { at: now(), event: Event::Stops { why: "x".repeat(1000) } };
        for _ in 0..1000 {
            book.append(&long).expect("kept");
        }
        let size = fs::metadata(dir.path().join(FILE)).expect("it is there").len();
        assert!(size <= FILE_BYTES_LIMIT + 2000, "{size}");
        assert!(book.entries().len() > 50);
        let old = Entry { at: 0, event: Event::Works };
        book.append(&old).expect("kept");
        assert!(!book.entries().contains(&old));
    }
}
