//! Table `efficiency`: the time that a direct program takes, with rayon on the same cores, over the time through the farm.
//! Problems of pure computation, and the airline night.

use crate::context::{Context, Database};
use crate::direct;
use crate::farm::Farm;
use crate::plot::{Kind, Plot};
use crate::report::{Figures, Report};
use crate::spin;
use crate::{truth, usage};
use anyhow::{Context as _, ensure};
use pcfarm_proto::ids::JobId;
use serde_json::Value;
use std::time::Duration;

/// Name, and how long one problem takes.
const SIZES: [(&str, Duration); 2] = [("ms_1", Duration::from_millis(1)), ("us_100", Duration::from_micros(100))];

/// Short against the job, and as long as agents gather results.
const CHECKOUT_SECONDS: &str = "1";

const LONGEST: Duration = Duration::from_secs(1800);

const LOOK_EVERY: Duration = Duration::from_millis(500);

const BYTES_EACH: u64 = 2_000;

pub async fn run(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let cores = context.machine.cores;
    let seconds = context.scaled(15, 3);
    let flights = context.scaled(50_000, 2_000);
    let most = seconds as u128 * cores as u128 * 1_000_000 / SIZES.map(|(_, size)| size.as_micros())[1];
    context.need_disk(most as u64 * BYTES_EACH + flights * 20_000, "efficiency")?;
    report.note("efficiency: wall time of the direct program over that of the farm, on all cores, which PostgreSQL, server and agent share");
    report.note(format!(
        "ms_1 and us_100: problems of one millisecond and of 100 µs, of pure computation, about {seconds} s of them; a checkout is \
         worth {CHECKOUT_SECONDS} s, and not the 15 of a long night"
    ));
    report.note("direct: one program, in chunks of the farm's mean checkout; reading, solving on all cores and durable writing overlap");
    report.note(format!("airline: {flights} flights by scripts/demo's program, undisturbed, against its direct run"));
    for _ in 0..context.runs {
        let mut figures = Figures::default();
        for (name, size) in SIZES {
            let problems = (u128::from(seconds) * cores as u128 * 1_000_000 / size.as_micros()) as u64;
            pure(context, &mut figures, name, size, problems).await.with_context(|| format!("measuring {name}"))?;
            report.processed(2 * problems);
        }
        night(context, &mut figures, flights).await.context("measuring the airline night")?;
        report.processed(3 * flights);
        report.run(figures);
    }
    report.promise_at_least("ms_1_efficiency_ratio", 0.97);
    report.promise_at_least("us_100_efficiency_ratio", 0.90);
    report.promise_at_least("airline_efficiency_ratio", 0.95);
    let bars = ["ms_1", "us_100", "airline"].into_iter();
    let bars = bars.filter_map(|name| Some((name.to_owned(), report.median(&format!("{name}_efficiency_ratio"))?)));
    let bars = bars.collect();
    report.plot(Plot {
        name: "efficiency".to_owned(),
        title: "Efficiency: the direct program's time over the farm's".to_owned(),
        y: "efficiency".to_owned(),
        kind: Kind::Bars(bars),
    });
    Ok(())
}

/// One job of pure computation through the farm, then the same directly.
async fn pure(
    context: &Context,
    figures: &mut Figures,
    name: &str,
    size: Duration,
    problems: u64,
) -> anyhow::Result<()> {
    let database = context.farm_database().await?;
    let (client, _connection) = database.connect().await?;
    client.batch_execute("set statement_timeout = 0").await?;
    client.execute("select pcfarm.create_job_type('spin', 'spin')", &[]).await?;
    let rounds = spin::calibrate(size);
    let job: JobId = client.query_one("select pcfarm.create_job('spins', 'spin')", &[]).await?.get(0);
    let query = format!(
        "select n::text as key, jsonb_build_object('seed', n, 'rounds', {rounds}) as payload
         from generate_series(1, {problems}) n"
    );
    client.execute("select pcfarm.load($1, $2)", &[&job, &query]).await.context("loading")?;
    direct::load(&client, job).await?;
    context.settle(&database).await?;
    let farm_seconds = through_the_farm(context, &database, job, figures, name, problems).await?;
    let row = client.query_one("select count(*) from pcfarm.checkout where job_id = $1", &[&job]).await?;
    let checkouts = row.get::<_, i64>(0).max(1).unsigned_abs();
    context.settle(&database).await?;
    let direct_seconds =
        direct::run(&database, (problems / checkouts).max(1) as usize, context.machine.cores).await?.as_secs_f64();
    let different = "select count(*) from direct.problem d
        join pcfarm.problem p on p.job_id = $1 and p.problem_id % 10000000000 = d.n
        join direct.result r on r.n = d.n
        left join pcfarm.result f on f.job_id = p.job_id and f.problem_id = p.problem_id
        where f.solution is distinct from r.solution";
    let different: i64 = client.query_one(different, &[&job]).await?.get(0);
    ensure!(different == 0, "{different} results differ from the direct program's");
    figures.add(format!("{name}_direct_seconds"), direct_seconds);
    figures.add(format!("{name}_farm_seconds"), farm_seconds);
    figures.add(format!("{name}_checkouts"), checkouts as f64);
    figures.add_ratio(
        format!("{name}_efficiency_ratio"),
        &format!("{name}_direct_seconds"),
        &format!("{name}_farm_seconds"),
    );
    context.drop_database(database).await
}

/// From the job's opening until its last checkout was closed, by the database's clock.
async fn through_the_farm(
    context: &Context,
    database: &Database,
    job: JobId,
    figures: &mut Figures,
    name: &str,
    problems: u64,
) -> anyhow::Result<f64> {
    let farm = context.farm(database);
    let flags = ["--lease", "20", "--heartbeat", "5", "--checkout-seconds", CHECKOUT_SECONDS];
    let server = farm.serving("server", &flags).await;
    let mut agent = farm
        .program("agent", "spin-agent")
        .arguments(["--server", &server.url(), "--hostname", "agent"])
        .arguments(["--state-dir".as_ref(), farm.path("agent.state").as_os_str()]);
    agent.start();
    farm.until(Duration::from_secs(20), "select exists (select from pcfarm.workstation)").await;
    let postmaster = context.postmaster().await?;
    let pids = [server.program.pid(), agent.pid()];
    let used = || {
        let programs = pids.map(|pid| pid.map(usage::of).unwrap_or_default().cpu);
        [usage::of_family(postmaster).cpu, programs[0], programs[1]]
    };
    let before = used();
    open(&farm, job).await;
    // Seldom: who asks takes from the cores as well. The time is the database's.
    let state = loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let state: String = farm.query("select state from pcfarm.job where job_id = $1", &[&job]).await[0].get(0);
        if state != "open" {
            break state;
        }
    };
    ensure!(state == "done", "the measured job ended as {state}");
    let after = used();
    for ((who, before), after) in ["postgresql", "server", "agent"].into_iter().zip(before).zip(after) {
        let each = after.saturating_sub(before).as_secs_f64() * 1e6 / problems as f64;
        figures.add(format!("{name}_{who}_us_each"), each);
    }
    let (client, _connection) = database.connect().await?;
    client.batch_execute("set statement_timeout = 0; analyze").await?;
    let found = truth::violations(&client).await.map_err(|error| anyhow::anyhow!("{error:?}"))?;
    ensure!(found.is_empty(), "invariants are broken: {}", found.join("; "));
    let text = "select extract(epoch from max(c.ended_at) - j.opened_at)::float8
        from pcfarm.job j join pcfarm.checkout c using (job_id) where j.job_id = $1 group by j.opened_at";
    Ok(client.query_one(text, &[&job]).await?.get(0))
}

async fn open(farm: &Farm, job: JobId) {
    farm.query("select pcfarm.open_job($1)", &[&job]).await;
}

/// The demonstration's program, on a farm of its own.
async fn night(context: &Context, figures: &mut Figures, flights: u64) -> anyhow::Result<()> {
    // Only for its directory and to find the program.
    let database = context.empty_database().await?;
    let farm = context.farm(&database);
    let json = farm.path("night.json");
    let mut program = farm
        .program("night", "airline-night")
        .arguments(["--flights", &flights.to_string()])
        .arguments(["--json".as_ref(), json.as_os_str()]);
    program.start();
    let status = program.ended(LONGEST).await;
    ensure!(status.success(), "the airline night: {status}: {}", program.log());
    let text = std::fs::read(&json).context("reading what the airline night measured")?;
    let document: Value = serde_json::from_slice(&text).context("reading what the airline night measured")?;
    ensure!(document["all_checks_held"] == true, "a check of the airline night failed: {}", program.log());
    for (name, figure) in [
        ("airline_direct_seconds", "wall_seconds_direct"),
        ("airline_farm_seconds", "wall_seconds"),
        ("airline_checkouts", "checkouts"),
        ("airline_efficiency_ratio", "efficiency"),
    ] {
        let value = document["figures"][figure].as_f64();
        figures.add(name, value.with_context(|| format!("the airline night has no figure {figure}"))?);
    }
    drop(farm);
    context.drop_database(database).await
}
