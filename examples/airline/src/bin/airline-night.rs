//! The airline night as a demonstration: what `scripts/demo` runs. Exits 0 when the night is done and every check held.

use anyhow::{Context, Result};
use clap::Parser;
use pcfarm_airline::night::farm::Farm;
use pcfarm_airline::night::{self, Night, Plan, kept, report, say};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tempfile::TempDir;
use tokio::signal::unix::{Signal, SignalKind, signal};
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
        return kept::stop().await.map(|()| true);
    }
    // Whatever can be refused is refused before anything runs.
    if arguments.keep {
        kept::can_keep()?;
    }
    if let Some(file) = &arguments.json {
        check_writable(file)?;
    }
    let mut signals = Signals::watch()?;
    let programs = std::env::current_exe().context("finding this program")?;
    let programs = programs.parent().map(Path::to_owned).unwrap_or_default();
    let directory = tempfile::Builder::new().prefix(kept::DIRECTORY_PREFIX).tempdir().context("making a directory")?;
    let plan = Plan {
        flights: arguments.flights as usize,
        keep: arguments.keep,
        programs,
        directory: directory.path().to_owned(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
    };
    say(&format!(
        "PC Farm's main job. Lease: {} s (default 20 s), so that nobody waits long for the recycler.",
        night::farm::LEASE.as_secs()
    ));
    say(&format!("Database, logs and agents are in {}", plan.directory.display()));
    let Some(night) = through_the_night(&plan, directory, &mut signals).await? else {
        say("Stopped; nothing is left running.");
        return Ok(false);
    };
    if let Some(file) = &arguments.json {
        let json = serde_json::to_string_pretty(&report::json(&night))?;
        std::fs::write(file, json + "\n").with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(report::all_held(&night))
}

/// Starts a farm, runs the night, and stops the farm however that went, unless it is to be kept. `None` if a signal came.
async fn through_the_night(plan: &Plan, directory: TempDir, signals: &mut Signals) -> Result<Option<Night>> {
    // A signal that comes meanwhile is waiting below: what has been started is stopped in order.
    let mut farm = match Farm::start(&plan.programs, &plan.directory).await {
        Ok(farm) => farm,
        Err(error) => return Err(error.context(format!("the logs are kept in {}", directory.keep().display()))),
    };
    let outcome = tokio::select! {
        outcome = night::run(plan, &mut farm) => outcome,
        () = signals.any() => {
            say("\nStopping …");
            farm.stop().await?;
            return Ok(None);
        }
    };
    let night = match outcome {
        Ok(night) => night,
        Err(error) => {
            let error = match farm.stop().await {
                Ok(()) => error,
                Err(stopping) => error.context(format!("stopping the farm failed, too: {stopping:#}")),
            };
            return Err(error.context(format!("the logs are kept in {}", directory.keep().display())));
        }
    };
    let text = report::text(&night, &farm);
    if plan.keep {
        farm.leave_running().await?;
        let _kept = directory.keep();
    } else {
        farm.stop().await?;
    }
    say(text.trim_end_matches('\n'));
    Ok(Some(night))
}

/// Leaves the file as it was.
fn check_writable(file: &Path) -> Result<()> {
    let is_new = file.symlink_metadata().is_err();
    let opened = std::fs::File::options().create(true).append(true).open(file);
    opened.with_context(|| format!("{} cannot be written", file.display()))?;
    if is_new {
        std::fs::remove_file(file).with_context(|| format!("removing {}", file.display()))?;
    }
    Ok(())
}

/// Ctrl-C, SIGTERM, and the closing of the terminal.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl Signals {
    fn watch() -> Result<Signals> {
        let watch = |kind| signal(kind).context("watching for signals");
        let hangup = if hangup_is_ignored() { None } else { Some(watch(SignalKind::hangup())?) };
        Ok(Signals { interrupt: watch(SignalKind::interrupt())?, terminate: watch(SignalKind::terminate())?, hangup })
    }

    async fn any(&mut self) {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => (),
            _ = self.terminate.recv() => (),
            _ = hangup => (),
        }
    }
}

/// As under nohup; watching would undo that.
fn hangup_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}
