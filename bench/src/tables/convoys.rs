//! Table `convoys`: the airline night in convoys of several sizes, handed out one at a time and in checkouts that follow
//! the workstation's speed. It names the best, as one would look for it by hand.

use crate::context::{Context, Database};
use crate::farm::Farm;
use crate::plot::{Kind, Plot};
use crate::report::{Figures, Report};
use anyhow::{Context as _, ensure};
use pcfarm_airline::{dataset, import, night, statements};
use pcfarm_proto::ids::JobId;
use std::time::Duration;
use tokio_postgres::Client;

const SIZES: [u32; 5] = [1, 5, 20, 100, 500];

/// Of everything that is modelled; any would do.
const SEED: u64 = 2013;

const LONGEST: Duration = Duration::from_secs(1800);

/// Plans take some 2 kB, twice in the log's worst case.
const BYTES_EACH: u64 = 6_000;

#[derive(Clone, Copy)]
enum Checkouts {
    /// Of one convoy.
    Fixed,
    Adaptive,
}

impl Checkouts {
    fn name(self) -> &'static str {
        match self {
            Checkouts::Fixed => "fixed",
            Checkouts::Adaptive => "adaptive",
        }
    }
}

pub async fn run(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let flights = context.scaled(20_000, 2_000);
    context.need_disk(flights * BYTES_EACH * 2 * SIZES.len() as u64, "convoys")?;
    report.note(format!("{flights} flights of the airline night, one agent on all cores"));
    report
        .note("fixed: a checkout is one convoy; adaptive: as many convoys as make 15 s of work, less at the job's end");
    for _ in 0..context.runs {
        let mut figures = Figures::default();
        let database = context.farm_database().await?;
        let (mut client, _connection) = database.connect().await?;
        client.batch_execute("set statement_timeout = 0").await?;
        import::import(&mut client, dataset::NYC_FLIGHTS_2013, flights as usize, SEED).await?;
        night::register(&client).await?;
        for checkouts in [Checkouts::Fixed, Checkouts::Adaptive] {
            for size in SIZES {
                let name = name(size, checkouts);
                let seconds = measure(context, &database, &client, size, checkouts)
                    .await
                    .with_context(|| format!("measuring {name}"))?;
                figures.add(format!("{name}_seconds"), seconds);
                report.processed(flights);
            }
        }
        context.drop_database(database).await?;
        report.run(figures);
    }
    conclude(report);
    Ok(())
}

fn name(size: u32, checkouts: Checkouts) -> String {
    format!("convoy_{size}_{}", checkouts.name())
}

/// One night, until its last checkout was closed, by the database's clock.
async fn measure(
    context: &Context,
    database: &Database,
    client: &Client,
    size: u32,
    checkouts: Checkouts,
) -> anyhow::Result<f64> {
    let run = name(size, checkouts);
    let job: JobId = client.query_one("select pcfarm.create_job($1, 'airline')", &[&run]).await?.get(0);
    let query = format!("select key, payload from airline.problem('{run}', 'leg')");
    client.execute("select pcfarm.load($1, $2, $3)", &[&job, &query, &(size as i32)]).await.context("loading")?;
    context.settle(database).await?;
    let farm: Farm = context.farm(database);
    let limit = size.to_string();
    let mut flags = vec!["--lease", "20", "--heartbeat", "5", "--checkout-seconds", "15"];
    if let Checkouts::Fixed = checkouts {
        flags.extend(["--checkout-problems", &limit]);
    }
    let server = farm.serving("server", &flags).await;
    let mut agent = farm
        .program("agent", "airline-agent")
        .arguments(["--server", &server.url(), "--hostname", "agent"])
        .arguments(["--state-dir".as_ref(), farm.path("agent.state").as_os_str()]);
    agent.start();
    farm.until(Duration::from_secs(20), "select exists (select from pcfarm.workstation where state = 'waiting')").await;
    farm.query("select pcfarm.open_job($1)", &[&job]).await;
    let state = farm.ended(job, LONGEST).await;
    ensure!(state == "done", "the night ended as {state}");
    let faults = client.query(statements::CHECK_FORECASTS, &[&run]).await.context("checking the forecasts")?;
    ensure!(faults.is_empty(), "{} flights have faults", faults.len());
    let text = "select extract(epoch from max(c.ended_at) - j.opened_at)::float8
        from pcfarm.job j join pcfarm.checkout c using (job_id) where j.job_id = $1 group by j.opened_at";
    Ok(client.query_one(text, &[&job]).await?.get(0))
}

/// Names the best, and draws all.
fn conclude(report: &mut Report) {
    let mut series = Vec::new();
    let mut best: Option<(f64, u32, Checkouts)> = None;
    for checkouts in [Checkouts::Fixed, Checkouts::Adaptive] {
        let mut points = Vec::new();
        for size in SIZES {
            let Some(seconds) = report.median(&format!("{}_seconds", name(size, checkouts))) else { continue };
            points.push((f64::from(size), seconds));
            if best.is_none_or(|(least, ..)| seconds < least) {
                best = Some((seconds, size, checkouts));
            }
        }
        series.push((checkouts.name().to_owned(), points));
    }
    if let Some((seconds, size, checkouts)) = best {
        report.note(format!("best: convoys of {size} in {} checkouts, {seconds:.1} s", checkouts.name()));
    }
    report.plot(Plot {
        name: "seconds".to_owned(),
        title: "The airline night by the size of its convoys".to_owned(),
        y: "seconds".to_owned(),
        kind: Kind::Lines { x: "flights a convoy".to_owned(), logarithmic: true, series },
    });
}
