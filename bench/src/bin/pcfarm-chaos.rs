//! `pcfarm-chaos`: hurts a farm at random moments, and says whether anything was lost.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use pcfarm_bench::chaos::{Kind, Plan, run};

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
    let seed = arguments.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    eprintln!("seed {seed}");
    let directory = tempfile::Builder::new()
        .prefix("pcfarm-chaos-")
        .permissions(std::fs::Permissions::from_mode(0o711)) // PostgreSQL's account must pass through root's
        .tempdir()
        .context("making a temporary directory")?;
    let kinds = if arguments.kinds.is_empty() { Kind::ALL.to_vec() } else { arguments.kinds };
    let outcome = run(directory.path(), Plan { seed, faults: arguments.faults, kinds }).await;
    if let Some(keep) = &arguments.keep {
        let copied = std::process::Command::new("cp").arg("-a").arg(directory.path()).arg(keep).status();
        copied.with_context(|| format!("keeping {}", keep.display()))?;
    }
    let outcome = outcome?;
    println!("{}", outcome.text());
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string_pretty(&outcome.json()).context("writing JSON")?;
        std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(outcome.judgement.is_clean())
}
