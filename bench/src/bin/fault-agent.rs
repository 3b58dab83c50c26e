//! An agent whose controllers misbehave as their payloads say, for tests of the farm. It keeps a journal, outside
//! the farm, of what it began, solved and saw cancelled, in the file that `FAULT_AGENT_JOURNAL` names.

use std::fs::File;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use pcfarm_bench::puzzle::{Puzzle, Solution, digest};
use pcfarm_worker::{Agent, Controller, NewProblem, Problem};
use serde_json::value::RawValue;

/// How soon a sleeping problem notices that it was cancelled.
const STEP: Duration = Duration::from_millis(10);

/// One line per event, each in one write, so that a killed agent leaves whole lines.
#[derive(Clone)]
struct Journal(Option<Arc<File>>);

impl Journal {
    fn open() -> Journal {
        let path = std::env::var_os("FAULT_AGENT_JOURNAL");
        Journal(path.map(|path| {
            Arc::new(File::options().create(true).append(true).open(path).expect("the journal can be written"))
        }))
    }

    fn note<P>(&self, what: &str, problem: &Problem<'_, P>) {
        if let Some(file) = &self.0 {
            let line = format!("{what} {} {} {}\n", problem.checkout_id(), problem.attempt(), problem.key());
            (&**file).write_all(line.as_bytes()).expect("the journal can be written");
        }
    }
}

/// Sleeps and computes as long as the puzzle says. False: cancelled.
fn spend<P>(puzzle: &Puzzle, problem: &Problem<'_, P>) -> bool {
    let end = Instant::now() + Duration::from_millis(puzzle.ms);
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        if problem.cancelled() && !puzzle.deaf {
            return false;
        }
        std::thread::sleep(left.min(STEP));
    }
    let end = Instant::now() + Duration::from_millis(puzzle.cpu_ms);
    while Instant::now() < end {
        std::hint::spin_loop();
    }
    true
}

/// `digest`: a hash of key and payload, after some time; fails or panics in its first attempts if it is told to, and always on a
/// workstation that lacks something, as `FAULT_AGENT_BROKEN` says in words.
struct Digest(Journal);
/// `poison`: kills its agent if it is told to, else like `digest`.
struct Poison(Digest);

impl Digest {
    fn solve(&self, problem: &Problem<'_, Box<RawValue>>) -> anyhow::Result<Solution> {
        let text = problem.payload().get();
        let puzzle: Puzzle = serde_json::from_str(text).context("the payload is no puzzle")?;
        self.0.note("began", problem);
        if let Ok(lacking) = std::env::var("FAULT_AGENT_BROKEN") {
            anyhow::bail!(lacking);
        }
        if problem.attempt() <= puzzle.fails {
            assert!(!puzzle.panic, "no attempt like attempt {}", problem.attempt());
            anyhow::bail!("no luck in attempt {}", problem.attempt());
        }
        if !spend(&puzzle, problem) {
            self.0.note("cancelled", problem);
            anyhow::bail!("cancelled");
        }
        self.0.note("solved", problem);
        Ok(Solution {
            digest: digest(problem.key(), text),
            checkout: problem.checkout_id().0,
            attempt: problem.attempt(),
        })
    }
}

impl Controller for Digest {
    const NAME: &'static str = "digest";
    type Payload = Box<RawValue>;
    type Solution = Solution;

    fn solve(&self, problem: &Problem<'_, Box<RawValue>>) -> anyhow::Result<Solution> {
        Digest::solve(self, problem)
    }
}

impl Controller for Poison {
    const NAME: &'static str = "poison";
    type Payload = Box<RawValue>;
    type Solution = Solution;

    fn solve(&self, problem: &Problem<'_, Box<RawValue>>) -> anyhow::Result<Solution> {
        let puzzle: Puzzle = serde_json::from_str(problem.payload().get()).context("the payload is no puzzle")?;
        if puzzle.poison {
            self.0.0.note("poisoned", problem);
            std::process::abort();
        }
        self.0.solve(problem)
    }
}

/// `blob`: a solution of so many bytes, from a payload of a few.
struct Blob;

const BLOCK_BYTES: usize = 1024;

#[derive(serde::Deserialize)]
struct Bytes {
    bytes: usize,
    /// Problems that it enqueues, with payloads of about 1 kB.
    #[serde(default)]
    enqueue: usize,
    /// Bytes that it puts into the job's info.
    #[serde(default)]
    info: usize,
}

impl Controller for Blob {
    const NAME: &'static str = "blob";
    type Payload = Bytes;
    type Solution = String;

    fn solve(&self, problem: &Problem<'_, Bytes>) -> anyhow::Result<String> {
        let letter = |_| char::from(rand::random_range(b'a'..=b'z'));
        let block: String = (0..BLOCK_BYTES).map(letter).collect();
        // Two bytes are quotes.
        let bytes = problem.payload().bytes.saturating_sub(2);
        let mut solution = block.repeat(bytes.div_ceil(BLOCK_BYTES));
        solution.truncate(bytes);
        for n in 0..problem.payload().enqueue {
            let payload = serde_json::json!({"bytes": 2, "ballast": block.as_str()});
            problem.enqueue(NewProblem::new(format!("{}.{n}", problem.key()), &payload)?);
        }
        if problem.payload().info > 0 {
            let text = block.repeat(problem.payload().info / BLOCK_BYTES);
            problem.update_info(&serde_json::json!({"text": text}))?;
        }
        Ok(solution)
    }
}

/// `related`: the rows of the read `rows` that are for it, and of `all`.
struct Related(Journal);

#[derive(serde::Serialize)]
struct Rows {
    rows: Vec<serde_json::Value>,
    checkout: i64,
}

impl Controller for Related {
    const NAME: &'static str = "related";
    type Payload = Puzzle;
    type Solution = Rows;

    fn solve(&self, problem: &Problem<'_, Puzzle>) -> anyhow::Result<Rows> {
        self.0.note("began", problem);
        spend(problem.payload(), problem);
        Ok(Rows { rows: problem.related("rows")?, checkout: problem.checkout_id().0 })
    }
}

/// `bringing`: a tree. A problem enqueues as many as the job's info says, until there is no depth left, and says in the info
/// how deep it was. A leaf whose key ends in 0 fails once, after it has enqueued a ghost.
struct Bringing(Journal);

#[derive(serde::Deserialize, serde::Serialize)]
struct Node {
    depth: u32,
}

#[derive(serde::Deserialize)]
struct Tree {
    width: u32,
}

impl Controller for Bringing {
    const NAME: &'static str = "bringing";
    type Payload = Node;
    type Solution = u32;

    fn solve(&self, problem: &Problem<'_, Node>) -> anyhow::Result<u32> {
        self.0.note("began", problem);
        let depth = problem.payload().depth;
        if depth == 0 && problem.attempt() == 1 && problem.key().ends_with('0') {
            problem.enqueue(NewProblem::new("ghost", &Node { depth: 0 })?);
            anyhow::bail!("not yet");
        }
        let tree: Tree = problem.info()?.context("the job says nothing")?;
        for n in 0..if depth == 0 { 0 } else { tree.width } {
            let child = NewProblem::new(format!("{}.{n}", problem.key()), &Node { depth: depth - 1 })?;
            problem.enqueue(if depth == 1 { child.job_type("leaf").priority(7).weight(2) } else { child });
        }
        problem.update_info(&serde_json::json!({"depth of": {problem.key(): depth}}))?;
        Ok(depth)
    }
}

fn main() -> ExitCode {
    let journal = Journal::open();
    Agent::new()
        .controller(Digest(journal.clone()))
        .controller(Poison(Digest(journal.clone())))
        .controller(Related(journal.clone()))
        .controller(Blob)
        .controller(Bringing(journal))
        .run()
}
