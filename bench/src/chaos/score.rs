//! Does the harness find what is wrong, and nothing else? Each planted bug has a run to be found in, and then a farm
//! without any has some, in which nothing may be found. What has been run is kept, so that this can be interrupted.

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::faults::Kind;
use super::planted::{PLANTED, Planted, SETS};
use super::run::{Plan, run};

/// Together with what a farm takes to start and to recover, a minute.
const FAULTS_FOR: Duration = Duration::from_secs(20);

/// A farm that has a bug may never be done. One that has none has no more time: a slow machine would be a false alarm.
const RECOVERY: Duration = Duration::from_secs(18);

/// Runs without a bug, half of them on seeds that are the same each time.
pub const CLEAN: usize = 20;

/// What became of a run.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Entry {
    /// Of the programs that ran.
    build: String,
    /// None: the farm was without.
    planted: Option<String>,
    number: usize,
    seed: u64,
    faults: usize,
    seconds: f64,
    found: usize,
    /// The first of that.
    first: Option<String>,
}

/// What the harness has come to.
#[derive(Debug, Default)]
pub struct Score {
    entries: Vec<Entry>,
}

/// Runs what has not been run with these programs. `kept` is where runs are written down; `only` are names of bugs, or all
/// of them and the clean runs if there are none.
pub async fn score(kept: &Path, only: &[&'static Planted]) -> anyhow::Result<Score> {
    let build = build()?;
    let before: Vec<Entry> = std::fs::read_to_string(kept)
        .unwrap_or_default()
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(|entry: &Entry| entry.build == build)
        .collect();
    let bugs: Vec<&'static Planted> = if only.is_empty() { PLANTED.iter().collect() } else { only.to_vec() };
    let clean = if only.is_empty() { CLEAN } else { 0 };
    let wanted = bugs.into_iter().map(|planted| (Some(planted), 0)).chain((0..clean).map(|number| (None, number)));
    let mut score = Score::default();
    for (planted, number) in wanted {
        let name = planted.map(|planted| planted.name.to_owned());
        let is_this = |entry: &&Entry| entry.planted == name && entry.number == number;
        let entry = match before.iter().rfind(is_this) {
            Some(entry) => entry.clone(),
            None => {
                let entry = entry(&build, planted, number).await?;
                keep(kept, &entry)?;
                entry
            }
        };
        println!("{}", entry.text());
        score.entries.push(entry);
    }
    Ok(score)
}

async fn entry(build: &str, planted: Option<&'static Planted>, number: usize) -> anyhow::Result<Entry> {
    let seed = match planted {
        Some(planted) => planted.name.bytes().fold(0, |seed: u64, byte| seed.wrapping_mul(31) + u64::from(byte)),
        None if number < CLEAN / 2 => number as u64,
        None => u64::from(rand::random::<u32>()),
    };
    let kinds = match planted {
        Some(planted) => planted.faults,
        // Every other one with what finds the bugs, which must not be found without.
        None if number % 2 == 1 => SETS[number / 2 % SETS.len()],
        None => &[],
    };
    let kinds = if kinds.is_empty() { &Kind::ALL } else { kinds };
    let plan = Plan {
        faults: usize::MAX,
        faults_for: Some(FAULTS_FOR),
        kinds: kinds.to_vec(),
        planted,
        recovery: RECOVERY,
        ..Plan::of(seed)
    };
    let directory = tempfile::Builder::new()
        .prefix("pcfarm-chaos-")
        .permissions(std::fs::Permissions::from_mode(0o711)) // PostgreSQL's account must pass through root's
        .tempdir()
        .context("making a temporary directory")?;
    let began = Instant::now();
    let outcome = Box::pin(run(directory.path(), plan))
        .await
        .with_context(|| format!("a run with {} on seed {seed}", planted.map_or("no bug", |planted| planted.name)))?;
    let found: Vec<&String> = outcome.judgement.found().collect();
    Ok(Entry {
        build: build.to_owned(),
        planted: planted.map(|planted| planted.name.to_owned()),
        number,
        seed,
        faults: outcome.injected(),
        seconds: began.elapsed().as_secs_f64(),
        found: found.len(),
        first: found.first().map(|found| found.chars().take(300).collect()),
    })
}

/// Changes when the programs do.
fn build() -> anyhow::Result<String> {
    let own = std::env::current_exe().context("a process knows its executable")?;
    let mut build = String::new();
    for name in ["pcfarm-chaos", "pcfarm-server", "pcfarm-recycler", "fault-agent"] {
        let path = own.with_file_name(name);
        let metadata = std::fs::metadata(&path).with_context(|| format!("looking at {}", path.display()))?;
        build += &format!("{}.{:09} ", metadata.mtime(), metadata.mtime_nsec());
    }
    Ok(build.trim_end().to_owned())
}

fn keep(kept: &Path, entry: &Entry) -> anyhow::Result<()> {
    let file = std::fs::File::options().create(true).append(true).open(kept);
    let mut file = file.with_context(|| format!("opening {}", kept.display()))?;
    let line = serde_json::to_string(entry).context("writing JSON")? + "\n";
    file.write_all(line.as_bytes()).with_context(|| format!("writing {}", kept.display()))
}

impl Entry {
    fn is_right(&self) -> bool {
        self.planted.is_some() == (self.found > 0)
    }

    fn text(&self) -> String {
        let Entry { planted, seed, faults, seconds, found, first, .. } = self;
        let name = planted.as_deref().unwrap_or("no bug");
        let verdict = match (planted, found) {
            (Some(_), 0) => "MISSED",
            (Some(_), _) => "caught",
            (None, 0) => "clean",
            (None, _) => "FALSE ALARM",
        };
        let first = first.as_ref().map(|first| format!(": {found} found, first {}", first.replace('\n', " ")));
        let first = first.unwrap_or_default();
        format!("{verdict:11} {name} (seed {seed}, {faults} faults, {seconds:.0} s){first}")
    }
}

impl Score {
    pub fn is_perfect(&self) -> bool {
        self.entries.iter().all(Entry::is_right)
    }

    fn of(&self, planted: bool) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| entry.planted.is_some() == planted)
    }

    fn caught(&self) -> usize {
        self.of(true).filter(|entry| entry.is_right()).count()
    }

    fn false_alarms(&self) -> usize {
        self.of(false).filter(|entry| !entry.is_right()).count()
    }

    pub fn json(&self) -> Value {
        json!({
            "table": "planted",
            "planted": self.of(true).count(),
            "caught": self.caught(),
            "clean": self.of(false).count(),
            "false_alarms": self.false_alarms(),
            "seconds": self.entries.iter().map(|entry| entry.seconds).sum::<f64>(),
            "runs": self.entries,
        })
    }

    pub fn text(&self) -> String {
        format!(
            "{} of {} planted bugs caught; {} false alarms in {} runs without a bug",
            self.caught(),
            self.of(true).count(),
            self.false_alarms(),
            self.of(false).count(),
        )
    }
}
