//! `pcfarm-recycler`: the recycler as a program of its own, once or every so many seconds.

use anyhow::Context;
use clap::Parser;
use pcfarm_recycler::{DEFAULT_LEASE, recycle};
use pcfarm_sql::connect::pooler::{self, PoolerError};
use pcfarm_sql::connect::{ConnectError, Target};
use pcfarm_sql::pool;
use pcfarm_sql::settings::DatabaseSettings;
use sd_notify::NotifyState;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;

/// One for the turn, one for the work.
const CONNECTIONS: usize = 2;

/// Beats for each of the service manager's limits, between passes.
const BEATS_A_LIMIT: u32 = 3;
const NEVER: Duration = Duration::from_secs(86_400);

#[derive(Debug, Parser)]
#[command(name = "pcfarm-recycler", version)]
/// Declares workstations dead that have not been heard of for the lease, and requeues what dead workstations and
/// overdue checkouts had not finished. Servers do this by themselves, unless started with --no-recycler.
struct Arguments {
    /// The database [default: PCFARM_DATABASE_URL, DATABASE_URL or libpq's PG* variables]
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
    /// How long a workstation may be silent, in seconds; the same as the servers'
    #[arg(long, env = "PCFARM_LEASE", value_name = "SECONDS", default_value_t = DEFAULT_LEASE.as_secs_f64(), value_parser = seconds)]
    lease: f64,
    /// Go on, every so many seconds, instead of once
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    every: Option<f64>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('s').parse::<f64>() {
        Ok(seconds) if seconds.is_finite() && seconds > 0.0 && seconds < 1e6 => Ok(seconds),
        _ => Err("a number of seconds, such as 20".to_owned()),
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
    match run(&arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pcfarm-recycler: {error:#}");
            let unreachable =
                error.chain().any(|cause| cause.is::<deadpool_postgres::PoolError>() || cause.is::<ConnectError>());
            ExitCode::from(if unreachable { 3 } else { 1 })
        }
    }
}

async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let located = DatabaseSettings::resolve(arguments.database_url.as_deref()).context("finding the database")?;
    info!(database = %located, lease_seconds = arguments.lease, "recycling");
    for warning in &located.warnings {
        warn!("{warning}");
    }
    let target = pool::session_config(located.target.clone(), "pcfarm-recycler");
    let pool = pool::pool(located.target, CONNECTIONS, "pcfarm-recycler");
    let mut is_checked = false;
    let lease = Duration::from_secs_f64(arguments.lease);
    let Some(every) = arguments.every else {
        pooler::refuse_transaction_pooling(&target).await?;
        info!(result = ?recycle(&pool, lease).await?, "recycled once");
        return Ok(());
    };
    let mut terminate = signal(SignalKind::terminate()).context("watching for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("watching for SIGINT")?;
    let mut tick = tokio::time::interval(Duration::from_secs_f64(every));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // A pass that takes longer than the service manager's limit is hung, or waits for a database that stands still: a new
    // recycler does no harm then, since nobody is connected to one. Failed passes are none of that.
    let limit = sd_notify::watchdog_enabled();
    let mut beat = tokio::time::interval(limit.map_or(NEVER, |limit| limit / BEATS_A_LIMIT));
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    tell(NotifyState::Ready);
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = beat.tick() => {
                tell(NotifyState::Watchdog);
                continue;
            }
            _ = tick.tick() => {}
        }
        // Once, as soon as the database answers.
        match pooler_checked(&target, &mut is_checked).await {
            Ok(()) => (),
            Err(error) if error.is_lasting() => return Err(error.into()),
            Err(error) => {
                warn!(
                    error = format!("{:#}", anyhow::Error::from(error)),
                    "the database does not answer: trying again"
                );
                continue;
            }
        }
        match recycle(&pool, lease).await {
            Ok(recycled) => info!(?recycled, "recycled"),
            Err(error) => warn!(error = format!("{:#}", anyhow::Error::from(error)), "recycling failed: trying again"),
        }
    }
    tell(NotifyState::Stopping);
    Ok(())
}

async fn pooler_checked(target: &Target, is_checked: &mut bool) -> Result<(), PoolerError> {
    if !*is_checked {
        pooler::refuse_transaction_pooling(target).await?;
        *is_checked = true;
    }
    Ok(())
}

fn tell(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        warn!(%error, "the service manager was not told");
    }
}
