//! Table `throughput`: no-op problems through server and agent, everything durable and every invariant on, against the
//! same queue pointer in plain SQL.

use crate::context::Context;
use crate::night::{Measured, Site};
use crate::plot::{Kind, Plot};
use crate::pointer;
use crate::report::{Figures, Report, median};

/// Connections at which the limit is measured; the best counts.
const LIMIT_CONNECTIONS: [usize; 3] = [2, 3, 4];

/// Problems that the limit takes at a time.
const LIMIT_AT_ONCE: [u64; 2] = [1000, 100];

/// Problems a checkout, problems a convoy.
const SHAPES: [(u32, u32); 5] = [(1000, 1), (1000, 30), (1000, 1000), (100, 1), (10_000, 1)];

const BYTES_EACH: u64 = 1_500;

pub async fn run(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let problems = context.scaled(2_000_000, 100_000);
    let warm_up = problems / 10;
    context.need_disk(2 * (warm_up + problems) * BYTES_EACH, "throughput")?;
    report.note(format!("{problems} problems a figure, jsonb of about 100 bytes in and out, one agent on all cores"));
    report.note(format!("each after {warm_up} others on the same connections, the limit too"));
    report.note("limit: queue pointer in SQL, results sent by the client, no PC Farm");
    report.note("every check is on: membership, attempts, counts, heartbeats, recycler; the invariants' queries ran after each run");
    // The first night on a new cluster pays for its files, whoever spends it.
    one_night(context, SHAPES[0], (warm_up, problems)).await?;
    let mut runs = Vec::new();
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
        runs.push(figures);
    }
    for at_once in LIMIT_AT_ONCE {
        let connections = best_connections(&runs, at_once);
        report.note(format!("limit_{at_once}: with {connections} connections, which were the best by their median"));
        for figures in &mut runs {
            for of in ["per_second", "postgresql_us_each"] {
                if let Some(value) = figures.get(&limit_figure(at_once, connections, of)) {
                    figures.add(format!("limit_{at_once}_{of}"), value);
                }
            }
        }
    }
    for mut figures in runs {
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

fn limit_figure(at_once: u64, connections: usize, of: &str) -> String {
    format!("limit_{at_once}_with_{connections}_{of}")
}

/// The number of connections whose median rate is the best: the best of each run would be luck, too.
fn best_connections(runs: &[Figures], at_once: u64) -> usize {
    let rate = |connections: usize| {
        let name = limit_figure(at_once, connections, "per_second");
        median(runs.iter().filter_map(|run| run.get(&name)).collect()).unwrap_or_default()
    };
    let best = LIMIT_CONNECTIONS.into_iter().max_by(|&a, &b| rate(a).total_cmp(&rate(b)));
    best.expect("there are several")
}

/// The limit at 1,000 and at 100 a time, with several numbers of connections.
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
    for at_once in LIMIT_AT_ONCE {
        for connections in LIMIT_CONNECTIONS {
            let took = pointer::run(&database, postmaster, (warm_up, problems), at_once, connections).await?;
            let rate = problems as f64 / took.time.as_secs_f64();
            context.progress(&format!("limit at {at_once}, {connections} connections: {rate:.0} a second"));
            report.processed(problems);
            figures.add(limit_figure(at_once, connections, "per_second"), rate);
            let each = took.cpu.as_secs_f64() * 1e6 / problems as f64;
            figures.add(limit_figure(at_once, connections, "postgresql_us_each"), each);
        }
    }
    context.drop_database(database).await
}
