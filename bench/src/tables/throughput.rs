//! Table `throughput`: no-op problems through server and agent, everything durable and every invariant on, against the
//! same queue pointer in plain SQL.

use crate::context::{Context, Database};
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
    context.need_disk(3 * (warm_up + problems) * BYTES_EACH, "throughput")?;
    report.note(format!("{problems} problems a figure, jsonb of about 100 bytes in and out, one agent on all cores"));
    report.note(format!("each after {warm_up} others on the same connections, the limit too"));
    report.note(
        "limit: queue pointer in SQL, results sent by the client, no PC Farm; just before each figure that is compared with it, \
         as machines change from minute to minute",
    );
    report.note(
        "problems and results, the limit's too, are vacuumed before a figure and not while it is measured: autovacuum, which \
         comes by the clock, would take a twentieth of one figure and nothing of the next",
    );
    report.note("every check is on: membership, attempts, counts, heartbeats, recycler; the invariants' queries ran after each run");
    // The first night on a new cluster pays for its files, whoever spends it.
    one_night(context, SHAPES[0], (warm_up, problems)).await?;
    let limit = Limit::load(context, (warm_up, problems)).await?;
    let mut runs = vec![Figures::default(); context.runs];
    for figures in &mut runs {
        for at_once in LIMIT_AT_ONCE {
            for connections in LIMIT_CONNECTIONS {
                limit.measure(report, figures, (at_once, connections), &limit_name(at_once, connections)).await?;
            }
        }
    }
    let best = LIMIT_AT_ONCE.map(|at_once| (at_once, best_connections(&runs, at_once)));
    for (at_once, connections) in best {
        report.note(format!(
            "the limit at {at_once} a time: with {connections} connections, which were the best by their median"
        ));
    }
    for (run, figures) in runs.iter_mut().enumerate() {
        // Each run begins with another one: a machine is slower after some work than after other.
        let mut shapes = SHAPES;
        shapes.rotate_left(run % SHAPES.len());
        for (checkout, convoy) in shapes {
            let name = name(checkout, convoy);
            let (beside, rate) = (format!("{name}_limit"), format!("{name}_per_second"));
            limit.measure(report, figures, best[usize::from(checkout == 100)], &beside).await?;
            let measured = one_night(context, (checkout, convoy), (warm_up, problems)).await?;
            context.progress(&format!("{name}: {:.0} a second", measured.per_second()));
            measured.add_to(figures, &name);
            figures.add_ratio(format!("{name}_of_limit_ratio"), &rate, &format!("{beside}_per_second"));
            report.processed(problems);
        }
        for of in ["per_second", "postgresql_us_each"] {
            add_limit(figures, 1000, of);
            add_limit(figures, 100, of);
        }
    }
    limit.end().await?;
    runs.into_iter().for_each(|figures| report.run(figures));
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
    context.no_autovacuum(&site.database, &["pcfarm.problem", "pcfarm.result"]).await?;
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

/// The limit of a run: the median of what was measured beside figures.
fn add_limit(figures: &mut Figures, at_once: u64, of: &str) {
    let beside = SHAPES.iter().filter(|shape| (shape.0 == 100) == (at_once == 100));
    let values =
        beside.filter_map(|&(checkout, convoy)| figures.get(&format!("{}_limit_{of}", name(checkout, convoy))));
    if let Some(value) = median(values.collect()) {
        figures.add(format!("limit_{at_once}_{of}"), value);
    }
}

fn limit_name(at_once: u64, connections: usize) -> String {
    format!("limit_{at_once}_with_{connections}")
}

/// The number of connections whose median rate is the best: the best of each run would be luck, too.
fn best_connections(runs: &[Figures], at_once: u64) -> usize {
    let rate = |connections: usize| {
        let name = format!("{}_per_second", limit_name(at_once, connections));
        median(runs.iter().filter_map(|run| run.get(&name)).collect()).unwrap_or_default()
    };
    let best = LIMIT_CONNECTIONS.into_iter().max_by(|&a, &b| rate(a).total_cmp(&rate(b)));
    best.expect("there are several")
}

/// The limit's tables, with as many problems as a figure has.
struct Limit<'a> {
    context: &'a Context,
    database: Database,
    amounts: (u64, u64),
}

impl<'a> Limit<'a> {
    async fn load(context: &'a Context, amounts: (u64, u64)) -> anyhow::Result<Limit<'a>> {
        let database = context.empty_database().await?;
        pointer::load(&database, amounts.0 + amounts.1).await?;
        context.no_autovacuum(&database, &["problem", "result"]).await?;
        context.settle(&database).await?;
        Ok(Limit { context, database, amounts })
    }

    /// So many at a time over so many connections, as figures of this name.
    async fn measure(
        &self,
        report: &mut Report,
        figures: &mut Figures,
        (at_once, connections): (u64, usize),
        name: &str,
    ) -> anyhow::Result<()> {
        let (_, problems) = self.amounts;
        let postmaster = self.context.postmaster().await?;
        let took = pointer::run(&self.database, postmaster, self.amounts, at_once, connections).await?;
        let rate = problems as f64 / took.time.as_secs_f64();
        self.context.progress(&format!("{name}: {rate:.0} a second"));
        report.processed(problems);
        figures.add(format!("{name}_per_second"), rate);
        figures.add(format!("{name}_postgresql_us_each"), took.cpu.as_secs_f64() * 1e6 / problems as f64);
        Ok(())
    }

    async fn end(self) -> anyhow::Result<()> {
        self.context.drop_database(self.database).await
    }
}
