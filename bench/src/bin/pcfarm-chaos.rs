//! `pcfarm-chaos`: hurts a farm at random moments, and says whether anything was lost.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use pcfarm_bench::chaos::{Kind, PLANTED, Plan, Planted, run, score};
use serde_json::Value;

/// Hurts a farm at random moments: a PostgreSQL, three servers, agents, recyclers and clients, all on this machine. Then
/// makes everybody well again and compares what the database says with what clients and agents wrote down meanwhile.
#[derive(Debug, Parser)]
#[command(name = "scripts/chaos", version)]
struct Arguments {
    /// Chooses the faults; the same seed, the same faults [default: another one each time]
    #[arg(long)]
    seed: Option<u64>,
    /// How many
    #[arg(long, default_value_t = 150)]
    faults: usize,
    /// Only these kinds, by name
    #[arg(long, value_delimiter = ',', value_name = "KIND", value_parser = kind)]
    kinds: Vec<Kind>,
    /// Plant known bugs instead, one after the other, and say which are found; then run without any
    #[arg(long)]
    planted: bool,
    /// Only these bugs, by name, and no runs without
    #[arg(long, value_delimiter = ',', value_name = "BUG", value_parser = bug, requires = "planted")]
    bugs: Vec<&'static Planted>,
    /// Where runs with planted bugs are written down: what is there already is not run again with the same programs
    #[arg(long, value_name = "FILE", env = "PCFARM_PLANTED_RUNS", default_value = "pcfarm-planted.jsonl")]
    runs: PathBuf,
    /// Where to write the report as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep journals and logs here
    #[arg(long, value_name = "DIRECTORY")]
    keep: Option<PathBuf>,
}

fn kind(name: &str) -> Result<Kind, String> {
    let known = Kind::ALL.into_iter().find(|kind| kind.name() == name);
    known.ok_or_else(|| {
        let names: Vec<String> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        format!("there is no such fault; there are {}", names.join(", "))
    })
}

fn bug(name: &str) -> Result<&'static Planted, String> {
    Planted::named(name).ok_or_else(|| {
        let names: Vec<&str> = PLANTED.iter().map(|planted| planted.name).collect();
        format!("there is no such bug; there are {}", names.join(", "))
    })
}

#[tokio::main]
async fn main() -> ExitCode {
    match hurt(Arguments::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("scripts/chaos: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// True if nothing was found.
async fn hurt(arguments: Arguments) -> anyhow::Result<bool> {
    if arguments.planted {
        let score = score(&arguments.runs, &arguments.bugs).await?;
        println!("{}", score.text());
        write(arguments.json.as_deref(), &score.json())?;
        return Ok(score.is_perfect());
    }
    let seed = arguments.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    eprintln!("seed {seed}");
    let directory = tempfile::Builder::new()
        .prefix("pcfarm-chaos-")
        .permissions(std::fs::Permissions::from_mode(0o711)) // PostgreSQL's account must pass through root's
        .tempdir()
        .context("making a temporary directory")?;
    let kinds = if arguments.kinds.is_empty() { Kind::ALL.to_vec() } else { arguments.kinds };
    let outcome = run(directory.path(), Plan { faults: arguments.faults, kinds, ..Plan::of(seed) }).await;
    if let Some(keep) = &arguments.keep {
        let copied = std::process::Command::new("cp").arg("-a").arg(directory.path()).arg(keep).status();
        copied.with_context(|| format!("keeping {}", keep.display()))?;
    }
    let outcome = outcome?;
    println!("{}", outcome.text());
    write(arguments.json.as_deref(), &outcome.json())?;
    Ok(outcome.judgement.is_clean())
}

fn write(path: Option<&Path>, report: &Value) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let text = serde_json::to_string_pretty(report).context("writing JSON")?;
    std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))
}
