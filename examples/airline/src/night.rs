//! The main job, from an empty machine to figures: what `scripts/demo` runs.
//!
//! It does what a department would: starts a farm of real programs, loads the night with SQL, watches it with SQL. It
//! also does what fate would: kills an agent in the middle. It owns every process that it starts and stops them all,
//! whatever happens.

pub mod checks;
pub mod farm;
pub mod kept;
pub mod progress;
pub mod report;

use crate::direct::{DirectOptions, DirectRun, run_direct};
use crate::import::{self, ImportSummary};
use crate::records::Variant;
use crate::{dataset, statements};
use anyhow::{Context, Result};
use farm::Farm;
use progress::Progress;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio_postgres::Client;

/// Seed of everything that is modelled.
const SEED: u64 = 2013;

/// Flights per convoy: a handful, so that checkouts can be of any size.
const CONVOY: i32 = 20;

/// How far the night is when the agent is killed.
const KILL_AT: f64 = 0.35;

/// A night that makes no progress for this long has failed.
const STALL: Duration = Duration::from_secs(120);

/// Between looks at how far the night is: they take from the cores as well.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What to run.
#[derive(Debug, Clone)]
pub struct Plan {
    pub flights: usize,
    /// Leave the farm running.
    pub keep: bool,
    /// Where PC Farm's programs are.
    pub programs: PathBuf,
    /// Where the database and the logs go.
    pub directory: PathBuf,
    /// Cores for the agents, and for the direct run.
    pub cores: usize,
}

/// One run of the night through the farm.
#[derive(Debug, Clone)]
pub struct FarmRun {
    pub job_id: i64,
    pub problems: i64,
    pub loading: Duration,
    /// From the job's opening to its end, by the database's clock.
    pub took: Duration,
    pub requeued: i64,
    pub checkouts: i64,
    pub killed: Option<Killed>,
}

/// What happened after the kill.
#[derive(Debug, Clone)]
pub struct Killed {
    pub workstation_id: i64,
    pub held: i64,
    /// From SIGKILL until its work was back on the queue.
    pub requeued_after: Duration,
}

/// Everything that the report is made from.
#[derive(Debug)]
pub struct Night {
    pub plan: Plan,
    pub import: ImportSummary,
    pub with_kill: FarmRun,
    pub undisturbed: FarmRun,
    pub by_segment: FarmRun,
    pub direct: DirectRun,
    pub checks: Vec<checks::Check>,
}

/// Runs it all on a farm that is up.
pub async fn run(plan: &Plan, farm: &mut Farm) -> Result<Night> {
    let mut client = farm.client().await?;
    say("Importing real flights and modelling their bookings …");
    let import = import::import(&mut client, dataset::NYC_FLIGHTS_2013, plan.flights, SEED).await?;
    say(&format!("  {} flights in {:.1?}; {} seat counts are imputed", import.flights, import.took, import.imputed()));
    register(&client).await?;

    say("The night, with an accident: one agent is killed with SIGKILL in the middle");
    farm.start_agents(plan.cores).await?;
    let with_kill = farm_run(&client, farm, "night", Variant::Leg, true).await?;

    say("The same night undisturbed, by leg");
    let undisturbed = farm_run(&client, farm, "undisturbed", Variant::Leg, false).await?;

    say("A tenth of it with the other variant of inventory control, by segment");
    let by_segment = farm_run(&client, farm, "segment", Variant::Segment, false).await?;
    farm.stop_agents().await?;

    say("The same controller without PC Farm, on the same cores");
    let mean_checkout = (plan.flights as i64 / undisturbed.checkouts.max(1)).max(1) as usize;
    let options = DirectOptions {
        run: "direct".to_owned(),
        variant: Variant::Leg,
        checkout_size: mean_checkout,
        threads: plan.cores,
    };
    let direct = run_direct(&farm.config(), &options).await.context("running the controller directly")?;
    say(&format!("  {} flights in {:.1?}", direct.flights, direct.took));

    say("Checking");
    let checks = checks::run(&client, &[&with_kill, &undisturbed, &by_segment]).await?;
    if plan.keep {
        farm.start_agents(plan.cores).await?;
    }
    Ok(Night { plan: plan.clone(), import, with_kill, undisturbed, by_segment, direct, checks })
}

/// Makes the airline's job type known, with its roles, related reads and write-back.
pub async fn register(client: &Client) -> Result<()> {
    client.batch_execute(include_str!("../sql/job_type.sql")).await.context("creating the airline's job type")?;
    for (name, query) in statements::RELATED {
        client.execute("select pcfarm.set_related_read('airline', $1, $2)", &[&name, &query]).await?;
    }
    client.execute("select pcfarm.set_write_back('airline', $1)", &[&statements::WRITE_BACK]).await?;
    Ok(())
}

async fn farm_run(client: &Client, farm: &mut Farm, run: &str, variant: Variant, kill: bool) -> Result<FarmRun> {
    let started = Instant::now();
    let (variant, part) = match variant {
        Variant::Leg => ("leg", ""),
        Variant::Segment => ("segment", " where key::bigint % 10 = 0"),
    };
    let job_id: i64 = client
        .query_one("select pcfarm.create_job('airline ' || $1::text, 'airline')", &[&run])
        .await
        .context("creating the job")?
        .get(0);
    let query = format!("select key, payload from airline.problem('{run}', '{variant}'){part}");
    let load = "select pcfarm.load($1, $2, $3)";
    let problems: i64 = client.query_one(load, &[&job_id, &query, &CONVOY]).await.context("loading the night")?.get(0);
    client.execute("select pcfarm.open_job($1)", &[&job_id]).await.context("opening the job")?;
    let loading = started.elapsed();
    say(&format!("  job {job_id}: {problems} problems loaded in {loading:.2?}"));

    let mut killed = None;
    let mut progress = Progress::new(problems.unsigned_abs());
    let mut last_change = (Instant::now(), 0);
    loop {
        let row = client
            .query_one("select state, done + failed, requeued from pcfarm.job_progress where job_id = $1", &[&job_id])
            .await
            .context("asking how far the night is")?;
        let (state, ended): (String, i64) = (row.get(0), row.get(1));
        progress.show(ended.unsigned_abs());
        if !matches!(state.as_str(), "open" | "held") {
            break;
        }
        if ended != last_change.1 {
            last_change = (Instant::now(), ended);
        }
        anyhow::ensure!(last_change.0.elapsed() < STALL, "the night has made no progress for {STALL:?}");
        if kill && killed.is_none() && ended as f64 >= KILL_AT * problems as f64 {
            killed = Some(kill_one(client, farm, &mut progress).await?);
        }
        farm.check_alive()?;
        tokio::time::sleep(LOOK_EVERY).await;
    }
    progress.finish();
    let row = client
        .query_one(
            "select extract(epoch from p.ended_at - p.opened_at)::float8, p.requeued,
                 (select count(*) from pcfarm.checkout c where c.job_id = p.job_id)
             from pcfarm.job_progress p where p.job_id = $1",
            &[&job_id],
        )
        .await?;
    let run = FarmRun {
        job_id,
        problems,
        loading,
        took: Duration::from_secs_f64(row.get(0)),
        requeued: row.get(1),
        checkouts: row.get(2),
        killed,
    };
    say(&format!("  done in {:.1?}: {:.0} flights/s", run.took, problems as f64 / run.took.as_secs_f64()));
    Ok(run)
}

/// SIGKILL, then wait until the recycler has put its work back, then another PC takes its place.
async fn kill_one(client: &Client, farm: &mut Farm, progress: &mut Progress) -> Result<Killed> {
    let at = Instant::now();
    let pid = farm.kill_agent()?;
    let busiest = "select w.workstation_id, w.problems from pcfarm.workstation_status w
        where w.hostname = $1 order by w.workstation_id desc limit 1";
    let row = client.query_one(busiest, &[&farm.killed_hostname()]).await.context("finding the killed workstation")?;
    let (workstation_id, held): (i64, i64) = (row.get(0), row.get::<_, Option<i64>>(1).unwrap_or(0));
    progress.say(&format!(
        "  agent {pid} (workstation {workstation_id}) was killed with SIGKILL; it held {held} problems, its lease is {} s",
        farm::LEASE.as_secs()
    ));
    let lost =
        "select w.state = 'dead' and w.checkouts = 0, (select coalesce(sum(requeued), 0)::bigint from pcfarm.progress)
        from pcfarm.workstation_status w where w.workstation_id = $1";
    loop {
        let row = client.query_one(lost, &[&workstation_id]).await?;
        if row.get(0) {
            let requeued_after = at.elapsed();
            let requeued: i64 = row.get(1);
            progress.say(&format!(
                "  the recycler declared it dead and requeued {requeued} problems after {:.1} s; another PC takes its place",
                requeued_after.as_secs_f64()
            ));
            farm.start_agent().await?;
            return Ok(Killed { workstation_id, held, requeued_after });
        }
        anyhow::ensure!(at.elapsed() < STALL, "the recycler did not requeue the killed agent's work");
        let done = client.query_one("select coalesce(sum(done + failed), 0)::bigint from pcfarm.progress", &[]).await?;
        progress.show(done.get::<_, i64>(0).unsigned_abs());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// A line to whoever listens: a terminal that was closed, or a pipe, must not keep us from stopping what we started.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
