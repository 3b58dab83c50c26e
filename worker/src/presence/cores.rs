//! How many cores the farm wants the agent to use, over restarts.
//!
//! Owns the one wish that holds only from the start of a process on: so many threads it begins with, and so many it names to the
//! servers. It is kept, so that the next process has it before a server says it. What cannot be read is no wish: its owner's number
//! holds, until a server says what is wanted.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use serde_json::{Map, Value};
use tracing::warn;

use super::disk::Kept;
use super::settings::Settings;
use super::settled;

const NAME: &str = "cores";

/// More than any machine has.
const MOST: usize = 65_536;

/// Of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// As many as its owner lets it use.
    pub owners: usize,
    /// As many as it has begun with.
    pub used: usize,
}

impl Cores {
    /// Of one that has begun with as many as it may.
    pub fn of(owners: usize) -> Cores {
        Cores { owners, used: owners }
    }
}

/// Of this machine, as far as the process may have them.
pub fn all() -> usize {
    available_parallelism().map_or(1, usize::from)
}

pub fn are_sensible(cores: &usize) -> bool {
    (1..=MOST).contains(cores)
}

/// How many a process of this owner begins with, by what the farm wanted last.
pub fn begin(settings: &mut Settings, owners: usize, state_dir: &Path) -> usize {
    settings.cores = Cores::of(owners);
    settings.cores.used = settled(settings, &Wish::of(state_dir).wanted()).cores;
    settings.cores.used
}

/// Where it is kept what the farm wants.
#[derive(Clone)]
pub struct Wish {
    file: PathBuf,
}

impl Wish {
    pub fn of(state_dir: &Path) -> Wish {
        Wish { file: state_dir.join(NAME) }
    }

    /// As the farm would say it.
    pub fn wanted(&self) -> Map<String, Value> {
        let kept = self.read().unwrap_or_else(|error| {
            warn!(file = %self.file.display(), %error, "how many cores the farm wants cannot be read: its owner's number holds");
            None
        });
        kept.into_iter().map(|cores| (NAME.to_owned(), cores.into())).collect()
    }

    /// What is wanted now. An error: the next process would not know it.
    pub fn keep(&self, wanted: &Map<String, Value>) -> io::Result<()> {
        let cores = wanted.get(NAME).and_then(|cores| serde_json::from_value(cores.clone()).ok()).filter(are_sensible);
        let is_kept = || self.read().is_ok_and(|kept| kept == cores);
        if is_kept() {
            return Ok(());
        }
        let text = cores.map(|cores| format!("{cores}\n")).unwrap_or_default();
        Kept { file: self.file.clone(), text }.write()?;
        // Who starts anew for it and does not find it would start anew for ever.
        if is_kept() { Ok(()) } else { Err(io::Error::other("what was written is not what is read")) }
    }

    fn read(&self) -> io::Result<Option<usize>> {
        let text = match fs::read_to_string(&self.file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let cores = text.trim().parse().ok().filter(are_sensible);
        cores.map(Some).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it makes no sense"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wanted(cores: Value) -> Map<String, Value> {
        Map::from_iter([(NAME.to_owned(), cores), ("load".to_owned(), json!(0.1))])
    }

    #[test]
    fn what_the_farm_wants_outlives_the_process_within_what_its_owner_allows() {
        let dir = tempfile::tempdir().expect("a directory");
        let begin = |owners| {
            let mut settings = Settings::of_a_desk();
            let used = begin(&mut settings, owners, dir.path());
            assert_eq!(settings.cores, Cores { owners, used });
            used
        };
        assert_eq!(begin(4), 4);
        for (cores, expected) in [(json!(2), 2), (json!(3), 3), (json!(8), 4), (json!(0), 4), (json!("two"), 4)] {
            Wish::of(dir.path()).keep(&wanted(cores.clone())).expect("kept");
            assert_eq!(begin(4), expected, "{cores}");
        }
        Wish::of(dir.path()).keep(&wanted(json!(2))).expect("kept");
        assert_eq!(begin(1), 1, "its owner allows less than before");
        Wish::of(dir.path()).keep(&Map::new()).expect("forgotten");
        assert_eq!((begin(4), fs::read_dir(dir.path()).expect("it is there").count()), (4, 0));
    }

    #[test]
    fn what_cannot_be_read_is_no_wish_and_what_cannot_be_kept_is_no_reason_to_start_anew() {
        let dir = tempfile::tempdir().expect("a directory");
        let wish = Wish::of(dir.path());
        for left in ["", "two", "0", "-1", "2 4", "99999999999999999999"] {
            fs::write(dir.path().join(NAME), left).expect("written");
            assert_eq!(begin(&mut Settings::of_a_desk(), 4, dir.path()), 4, "{left:?}");
            wish.keep(&wanted(json!(2))).expect("kept in its place");
            assert_eq!(begin(&mut Settings::of_a_desk(), 4, dir.path()), 2, "{left:?}");
        }
        fs::remove_file(dir.path().join(NAME)).expect("it is there");
        fs::create_dir(dir.path().join(NAME)).expect("made");
        assert_eq!(begin(&mut Settings::of_a_desk(), 4, dir.path()), 4);
        for wanted in [wanted(json!(2)), Map::new()] {
            assert!(wish.keep(&wanted).is_err(), "{wanted:?}");
        }
    }
}
