//! Table `throughput`: no-op problems through server and agent, everything durable and every invariant on, against the
//! same queue pointer in plain SQL.

use crate::context::Context;
use crate::night::{Measured, Site};
use crate::plot::{Kind, Plot};
use crate::pointer;
use crate::report::{Figures, Report};
use std::time::Duration;

/// Connections at which the limit is measured; the best counts.
const LIMIT_CONNECTIONS: [usize; 3] = [2, 3, 4];

/// Problems a checkout, problems a convoy.
const SHAPES: [(u32, u32); 5] = [(1000, 1), (1000, 30), (1000, 1000), (100, 1), (10_000, 1)];

const BYTES_EACH: u64 = 1_500;

pub async fn run(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let problems = context.scaled(2_000_000, 100_000);
    let warm_up = problems / 10;
    context.need_disk(2 * (warm_up + problems) * BYTES_EACH, "throughput")?;
    report.note(format!("{problems} problems a figure, jsonb of about 100 bytes in and out, one agent on all cores"));
    report.note(format!("each after {warm_up} others on the same connections, the limit too"));
    report.note(
        "limit: queue pointer in SQL, results sent by the client, no PC Farm; the best of 2, 3 and 4 connections",
    );
    report.note("every check is on: membership, attempts, counts, heartbeats, recycler; the invariants' queries ran after each run");
    // The first night on a new cluster pays for its files, whoever spends it.
    one_night(context, SHAPES[0], (warm_up, problems)).await?;
    for run in 0..context.runs {
        let mut figures = Figures::default();
        limits(context, report, &mut figures, (warm_up, problems)).await?;
        // Each run begins with another one: a machine is slower after some work than after other.
        let mut shapes = SHAPES;
        shapes.rotate_left(run % SHAPES.len());
        for (checkout, convoy) in shapes {
            let measured = one_night(context, (checkout, convoy), (warm_up, problems)).await?;
            context.progress(&format!("{}: {:.0} a second", name(checkout, convoy), measured.per_second()));
            measured.add_to(&mut figures, &name(checkout, convoy));
            report.processed(problems);
        }
        for (checkout, convoy) in SHAPES {
            let name = name(checkout, convoy);
            let limit = if checkout == 100 { "limit_100_per_second" } else { "limit_1000_per_second" };
            figures.add_ratio(format!("{name}_of_limit_ratio"), &format!("{name}_per_second"), limit);
        }
        report.run(figures);
    }
    for (checkout, convoy) in SHAPES.into_iter().filter(|shape| shape.0 == 1000) {
        report.promise_at_least(&format!("{}_of_limit_ratio", name(checkout, convoy)), 0.8);
    }
    let bars = ["limit_1000".to_owned(), "limit_100".to_owned()].into_iter().chain(SHAPES.map(|(k, c)| name(k, c)));
    let bars = bars.filter_map(|name| Some((name.clone(), report.median(&format!("{name}_per_second"))?))).collect();
    report.plot(Plot {
        name: "rate".to_owned(),
        title: "No-op problems a second, durable, on one machine".to_owned(),
        y: "problems a second".to_owned(),
        kind: Kind::Bars(bars),
    });
    Ok(())
}

/// A farm of its own that crunches a job, checked, after a shorter one.
async fn one_night(
    context: &Context,
    (checkout, convoy): (u32, u32),
    (warm_up, problems): (u64, u64),
) -> anyhow::Result<Measured> {
    let site = Site::start(context, &["--checkout-problems", &checkout.to_string()]).await?;
    let (warming, job) = (site.load(warm_up, convoy).await?, site.load(problems, convoy).await?);
    context.settle(&site.database).await?;
    site.crunch(warming).await?;
    let measured = site.crunch(job).await?;
    site.check(job, problems).await?;
    site.end(context).await?;
    Ok(measured)
}

fn name(checkout: u32, convoy: u32) -> String {
    format!("checkout_{checkout}_convoy_{convoy}")
}

/// The limit at 1,000 and at 100 a time, each at its best number of connections.
async fn limits(
    context: &Context,
    report: &mut Report,
    figures: &mut Figures,
    (warm_up, problems): (u64, u64),
) -> anyhow::Result<()> {
    let database = context.empty_database().await?;
    pointer::load(&database, warm_up + problems).await?;
    context.settle(&database).await?;
    let postmaster = context.postmaster().await?;
    for at_once in [1000, 100] {
        let (mut best, mut postgresql): (f64, _) = (0.0, Duration::ZERO);
        for connections in LIMIT_CONNECTIONS {
            let took = pointer::run(&database, postmaster, (warm_up, problems), at_once, connections).await?;
            let rate = problems as f64 / took.time.as_secs_f64();
            context.progress(&format!("limit at {at_once}, {connections} connections: {rate:.0} a second"));
            report.processed(problems);
            if rate > best {
                (best, postgresql) = (rate, took.cpu);
            }
        }
        figures.add(format!("limit_{at_once}_per_second"), best);
        figures.add(format!("limit_{at_once}_postgresql_us_each"), postgresql.as_secs_f64() * 1e6 / problems as f64);
    }
    context.drop_database(database).await
}
