//! The airline night as a demonstration: what `scripts/demo` runs. Exits 0 when the night is done and every check held.

use anyhow::{Context, Result};
use clap::Parser;
use pcfarm_airline::night::{self, Plan, farm::Farm, report};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::LocalSet;

#[derive(Debug, Parser)]
#[command(name = "scripts/demo", about = "Runs PC Farm's main job: a night of real flights, with an accident")]
struct Arguments {
    /// How many of the 336,776 real departures; 2000 is a quick try
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(200..=336_776))]
    flights: u32,
    /// Leave the farm running to look around; `scripts/demo --stop` ends it
    #[arg(long)]
    keep: bool,
    /// Stop what an earlier --keep left running
    #[arg(long, exclusive = true)]
    stop: bool,
    /// Write figures and checks to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("starting: {error}");
            return ExitCode::FAILURE;
        }
    };
    match LocalSet::new().block_on(&runtime, run(arguments)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<bool> {
    if arguments.stop {
        return night::farm::stop_kept().await.map(|()| true);
    }
    let mut interrupt = signal(SignalKind::interrupt()).context("watching for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("watching for SIGTERM")?;
    let programs = std::env::current_exe().context("finding this program")?;
    let programs = programs.parent().map(Path::to_owned).unwrap_or_default();
    let directory = tempfile::Builder::new().prefix("pcfarm-demo-").tempdir().context("making a directory")?;
    let plan = Plan {
        flights: arguments.flights as usize,
        keep: arguments.keep,
        programs,
        directory: directory.path().to_owned(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
    };
    println!(
        "PC Farm's main job. Lease: {} s (default 20 s), so that nobody waits long for the recycler.",
        night::farm::LEASE.as_secs()
    );
    println!("Database, logs and agents are in {}", plan.directory.display());
    // A signal that comes meanwhile is waiting below: what has been started is stopped in order.
    let mut farm = Farm::start(&plan.programs, &plan.directory).await?;
    let outcome = tokio::select! {
        outcome = night::run(&plan, &mut farm) => Some(outcome),
        _ = interrupt.recv() => None,
        _ = terminate.recv() => None,
    };
    let Some(outcome) = outcome else {
        println!("\nStopping …");
        farm.stop().await?;
        return stopped();
    };
    let night = match outcome {
        Ok(night) => night,
        Err(error) => {
            farm.stop().await?;
            return Err(error.context(format!("the logs are kept in {}", directory.keep().display())));
        }
    };
    print!("{}", report::text(&night, &farm));
    if let Some(file) = &arguments.json {
        let json = serde_json::to_string_pretty(&report::json(&night))?;
        std::fs::write(file, json + "\n").with_context(|| format!("writing {}", file.display()))?;
    }
    if arguments.keep {
        farm.leave_running()?;
        let _kept = directory.keep();
    } else {
        farm.stop().await?;
    }
    Ok(report::all_held(&night))
}

fn stopped() -> Result<bool> {
    println!("Stopped; nothing is left running.");
    Ok(false)
}
