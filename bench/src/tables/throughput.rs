//! Table `throughput`: no-op problems through server and agent, everything durable and every invariant on, against the
//! same queue pointer in plain SQL.

use crate::context::{Context, Database};
use crate::night::{Measured, Site};
use crate::plot::{Kind, Plot};
use crate::pointer::{self, Taking, Took};
use crate::report::{Figures, Report, median};

/// Connections at which the limit is measured; the best counts.
const LIMIT_CONNECTIONS: [usize; 3] = [3, 4, 5];

/// The same where it takes asynchronously.
const ASYNCHRONOUS_CONNECTIONS: [usize; 2] = [4, 5];

/// Problems that the limit takes at a time.
const LIMIT_AT_ONCE: [u32; 2] = [1000, 100];

/// Problems a checkout, problems a convoy.
type Shape = (u32, u32);

const SHAPES: [Shape; 5] = [(1000, 1), (1000, 30), (1000, 1000), (100, 1), (10_000, 1)];

const BYTES_EACH: u64 = 1_500;

pub async fn run(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let problems = context.scaled(2_000_000, 100_000);
    let warm_up = problems / 10;
    context.need_disk(3 * (warm_up + problems) * BYTES_EACH, "throughput")?;
    report.note(format!("{problems} problems a figure, jsonb of about 100 bytes in and out, one agent on all cores"));
    report.note(format!("each after {warm_up} others on the same connections, the limit too"));
    report.note(
        "limit: queue pointer in SQL, results sent by the client, no PC Farm; measured just before and just after each figure, \
         which is compared with the mean, as machines change from minute to minute",
    );
    report.note(
        "the limit commits durably; taken_asynchronously: it takes as PC Farm hands out, without waiting for the disk, and a crash \
         would lose what it took, where PC Farm hands it out again. What is promised is a share of the durable one; the best of \
         three numbers of connections, and of two where it takes asynchronously",
    );
    report.note(
        "autovacuum leaves problems and results alone meanwhile, the limit's too: it comes by the clock and would take a \
         twentieth of one figure and nothing of the next. The rates leave out what it costs in the long run",
    );
    report.note("every check is on: membership, attempts, counts, heartbeats, recycler; the invariants' queries ran after each run");
    report.note("the aim: 400,000 a second with 1,000 problems a checkout, 250,000 with 100");
    // The first night on a new cluster pays for its files, whoever spends it.
    one_night(context, SHAPES[0], (warm_up, problems)).await?;
    let limit = Limit::load(context, (warm_up, problems)).await?;
    let mut runs = vec![Figures::default(); context.runs];
    let (mut sittings, mut between) = (Vec::new(), Vec::new());
    for (run, figures) in runs.iter_mut().enumerate() {
        // Each run begins with another one: a machine is slower after some work than after other.
        let mut shapes = SHAPES;
        shapes.rotate_left(run % SHAPES.len());
        let mut last: Option<u32> = None;
        for shape in shapes {
            let at_once = at_once(shape);
            // What comes after one figure comes before the next.
            if last != Some(at_once) {
                sittings.push(limit.sit(report, run, at_once).await?);
            }
            let measured = one_night(context, shape, (warm_up, problems)).await?;
            context.progress(&format!("{}: {:.0} a second", name(shape), measured.per_second()));
            measured.add_to(figures, &name(shape));
            report.processed(problems);
            between.push(Between { run, shape, before: sittings.len() - 1 });
            sittings.push(limit.sit(report, run, at_once).await?);
            last = Some(at_once);
        }
    }
    limit.end().await?;
    add_limits(report, &mut runs, &Limits { problems, sittings, between });
    runs.into_iter().for_each(|figures| report.run(figures));
    for shape in SHAPES.into_iter().filter(|shape| shape.0 == 1000) {
        report.promise_at_least(&format!("{}_of_limit_ratio", name(shape)), 0.8);
    }
    let bars = ["limit_1000".to_owned(), "limit_100".to_owned()].into_iter().chain(SHAPES.map(name));
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
    (checkout, convoy): Shape,
    (warm_up, problems): (u64, u64),
) -> anyhow::Result<Measured> {
    let site = Site::start(context, &["--checkout-problems", &checkout.to_string()]).await?;
    context.turn_autovacuum_off(&site.database, &["pcfarm.problem", "pcfarm.result"]).await?;
    let (warming, job) = (site.load(warm_up, convoy).await?, site.load(problems, convoy).await?);
    context.settle(&site.database).await?;
    site.crunch(warming).await?;
    let measured = site.crunch(job).await?;
    site.check(job, problems).await?;
    site.end(context).await?;
    Ok(measured)
}

fn name((checkout, convoy): Shape) -> String {
    format!("checkout_{checkout}_convoy_{convoy}")
}

/// What the limit takes at a time that a figure is compared with.
fn at_once((checkout, _): Shape) -> u32 {
    if LIMIT_AT_ONCE.contains(&checkout) { checkout } else { 1000 }
}

fn connections(durably: bool) -> &'static [usize] {
    if durably { &LIMIT_CONNECTIONS } else { &ASYNCHRONOUS_CONNECTIONS }
}

/// The limit in each way, one after the other.
struct Sitting {
    run: usize,
    took: Vec<(Taking, Took)>,
}

/// A figure, and which sitting came before it; the next one came after it.
struct Between {
    run: usize,
    shape: Shape,
    before: usize,
}

struct Limits {
    problems: u64,
    sittings: Vec<Sitting>,
    between: Vec<Between>,
}

impl Limits {
    /// With so many at once and so many connections: a run, and what it took.
    fn took(&self, at_once: u32, connections: usize, durably: bool) -> impl Iterator<Item = (usize, Took)> {
        let taking = Taking { at_once, connections, durably };
        self.sittings.iter().filter_map(move |sitting| sitting.of(taking).map(|took| (sitting.run, took)))
    }

    fn rate(&self, took: Took) -> f64 {
        took.per_second(self.problems)
    }

    fn microseconds(&self, took: Took) -> f64 {
        took.cpu.as_secs_f64() * 1e6 / self.problems as f64
    }

    /// The number of connections with the best rate over all runs, as the best of each run would be luck, too.
    fn best(&self, at_once: u32, durably: bool) -> usize {
        let overall = |connections: usize| {
            let took = self.took(at_once, connections, durably);
            median(took.map(|(_, took)| self.rate(took)).collect()).unwrap_or_default()
        };
        let best = connections(durably).iter().copied().max_by(|&a, &b| overall(a).total_cmp(&overall(b)));
        best.expect("there are several")
    }

    /// The mean rate before and after a figure.
    fn beside(&self, between: &Between, taking: Taking) -> Option<f64> {
        let rate = |place: usize| self.sittings.get(place)?.of(taking).map(|took| self.rate(took));
        Some(f64::midpoint(rate(between.before)?, rate(between.before + 1)?))
    }
}

impl Sitting {
    fn of(&self, taking: Taking) -> Option<Took> {
        self.took.iter().find(|(with, _)| *with == taking).map(|(_, took)| *took)
    }
}

/// Adds, to each run, the limit with each number of connections, the best of them, and each figure's share of what that
/// came to beside it.
fn add_limits(report: &mut Report, runs: &mut [Figures], limits: &Limits) {
    for at_once in LIMIT_AT_ONCE {
        let [best, asynchronous] = [true, false].map(|durably| limits.best(at_once, durably));
        report.note(format!("limit_{at_once}: with {best} connections, which were the best by their median; asynchronously with {asynchronous}"));
        let named = |connections| (format!("limit_{at_once}_with_{connections}"), connections);
        let ways = LIMIT_CONNECTIONS.map(named).into_iter().chain([(format!("limit_{at_once}"), best)]);
        let durable = ways.map(|(name, connections)| (name, connections, true));
        let taken_asynchronously = (format!("limit_{at_once}_taken_asynchronously"), asynchronous, false);
        for (name, connections, durably) in durable.chain([taken_asynchronously]) {
            for (run, figures) in runs.iter_mut().enumerate() {
                let of_run = |figure: fn(&Limits, Took) -> f64| {
                    let took = limits.took(at_once, connections, durably).filter(|(of, _)| *of == run);
                    median(took.map(|(_, took)| figure(limits, took)).collect())
                };
                if let (Some(rate), Some(cpu)) = (of_run(Limits::rate), of_run(Limits::microseconds)) {
                    figures.add(format!("{name}_per_second"), rate);
                    figures.add(format!("{name}_postgresql_us_each"), cpu);
                }
            }
        }
        for (which, connections, durably) in [("limit", best, true), ("asynchronous_limit", asynchronous, false)] {
            let taking = Taking { at_once, connections, durably };
            for between in &limits.between {
                if let Some(rate) = limits.beside(between, taking) {
                    let (figures, name) = (&mut runs[between.run], name(between.shape));
                    let limit = format!("{name}_{which}_per_second");
                    figures.add(limit.clone(), rate);
                    figures.add_ratio(format!("{name}_of_{which}_ratio"), &format!("{name}_per_second"), &limit);
                }
            }
        }
    }
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
        context.turn_autovacuum_off(&database, &["problem", "result"]).await?;
        context.settle(&database).await?;
        Ok(Limit { context, database, amounts })
    }

    async fn sit(&self, report: &mut Report, run: usize, at_once: u32) -> anyhow::Result<Sitting> {
        let mut took = Vec::new();
        for durably in [true, false] {
            for &connections in connections(durably) {
                let taking = Taking { at_once, connections, durably };
                took.push((taking, self.measure(taking).await?));
                report.processed(self.amounts.1);
            }
        }
        Ok(Sitting { run, took })
    }

    async fn measure(&self, taking: Taking) -> anyhow::Result<Took> {
        let postmaster = self.context.postmaster().await?;
        let took = pointer::run(&self.database, postmaster, self.amounts, taking).await?;
        let rate = took.per_second(self.amounts.1);
        self.context.progress(&format!("limit, {taking:?}: {rate:.0} a second"));
        Ok(took)
    }

    async fn end(self) -> anyhow::Result<()> {
        self.context.drop_database(self.database).await
    }
}
