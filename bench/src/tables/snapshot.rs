//! Table `snapshot`: the rate while somebody's transaction has been open for a hundred thousand hand-outs, and stays so. No
//! row version that hand-outs leave can be removed meanwhile: the field's classic disease.

use crate::context::{Context, Database};
use crate::night::{Measured, Site};
use crate::plot::{Kind, Plot};
use crate::report::{Figures, Report};
use anyhow::Context as _;
use pcfarm_proto::ids::JobId;
use pcfarm_sql::connect::ConnectionTask;
use std::time::Duration;
use tokio::time::MissedTickBehavior;
use tokio_postgres::Client;

/// Problems of one of the many small checkouts.
const SMALL: u64 = 10;

const LARGE: &str = "1000";

/// Jobs that the small ones come in, evenly over the snapshot's time.
const PIECES: u64 = 100;

/// Of each, at full speed.
const SITTINGS: u64 = 2;

const BYTES_EACH: u64 = 1_200;

pub async fn run(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let hand_outs = context.scaled(100_000, 3_000);
    let problems = context.scaled(2_000_000, 100_000);
    let minutes = Duration::from_secs(context.scaled(600, 10));
    context.need_disk((2 * SITTINGS * problems + 2 * hand_outs * SMALL) * BYTES_EACH, "snapshot")?;
    report.note(format!(
        "an idle REPEATABLE READ transaction that has read, open during {hand_outs} hand-outs of {SMALL} problems, which come \
         evenly over {} s, and then {problems} problems at 1,000 a checkout, with a few before them that do not count",
        minutes.as_secs()
    ));
    report.note(
        "without: the same hand-outs in the same time, turn about with the others, and the same problems, on a database of its \
         own, which that transaction keeps nothing in",
    );
    report.note(
        "the two are measured one after the other, and then again the other way round; a run's figure is the mean",
    );
    report.note(
        "the first tenth contains the start, and in the last nothing more is handed out: late_of_early compares the eighth and ninth \
         with the second and third, a third of a second each",
    );
    let amounts = Amounts { hand_outs, problems, minutes };
    for run in 0..context.runs {
        let mut figures = Figures::default();
        let mut nights = Vec::new();
        for snapshot in [Snapshot::None, Snapshot::Open] {
            nights.push(Night::begin(context, &amounts, snapshot).await?);
        }
        small_hand_outs(&mut nights, &amounts).await?;
        for sitting in 0..SITTINGS {
            // A machine is slower after some work than after other: neither is always the second.
            let order = if (run as u64 + sitting).is_multiple_of(2) { [0, 1] } else { [1, 0] };
            for night in order {
                nights[night].sit(context, &amounts).await?;
                report.processed(problems);
            }
        }
        let mut lines = Vec::new();
        for night in nights {
            lines.push((night.snapshot, night.tenths()));
            night.end(context, &mut figures).await?;
            report.processed(hand_outs * SMALL);
        }
        figures.add_ratio("with_of_without_ratio", "with_per_second", "without_per_second");
        figures.add_ratio("last_of_first_tenth_ratio", "with_last_tenth_per_second", "with_first_tenth_per_second");
        figures.add_ratio("last_tenth_of_without_ratio", "with_last_tenth_per_second", "without_last_tenth_per_second");
        context.progress(&format!("with and without a snapshot: {:?}", figures.get("with_of_without_ratio")));
        if report.plots().is_empty() {
            let points = |rates: Vec<f64>| (1..).map(f64::from).zip(rates).collect();
            report.plot(Plot {
                name: "tenths".to_owned(),
                title: "Problems a second, by tenths of two million".to_owned(),
                y: "problems a second".to_owned(),
                kind: Kind::Lines {
                    x: "tenth".to_owned(),
                    logarithmic: false,
                    series: lines.into_iter().map(|(kind, rates)| (kind.title().to_owned(), points(rates))).collect(),
                },
            });
        }
        report.run(figures);
    }
    report.promise_at_least("with_of_without_ratio", 0.95);
    report.promise_at_least("last_of_first_tenth_ratio", 0.95);
    report.promise_at_least("last_tenth_of_without_ratio", 0.95);
    Ok(())
}

struct Amounts {
    hand_outs: u64,
    problems: u64,
    /// For so long the snapshot has been open before its rate is taken.
    minutes: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Snapshot {
    None,
    Open,
}

impl Snapshot {
    fn prefix(self) -> &'static str {
        match self {
            Snapshot::None => "without",
            Snapshot::Open => "with",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Snapshot::None => "without a snapshot",
            Snapshot::Open => "under a snapshot",
        }
    }
}

/// Many small hand-outs, and then large ones at full speed, whose rate is taken.
struct Night {
    snapshot: Snapshot,
    site: Site,
    /// Jobs of the small hand-outs.
    pieces: Vec<JobId>,
    small_seconds: f64,
    small_hand_outs: i64,
    open: Option<(Client, ConnectionTask)>,
    /// Each with the rates of its tenths.
    sittings: Vec<(Measured, Vec<f64>)>,
}

/// Of both, turn about, evenly over the time.
async fn small_hand_outs(nights: &mut [Night], amounts: &Amounts) -> anyhow::Result<()> {
    let mut pace = tokio::time::interval(amounts.minutes / PIECES as u32);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for piece in 0..PIECES as usize {
        pace.tick().await;
        for night in &mut *nights {
            night.small_seconds += night.site.crunch(night.pieces[piece]).await?.seconds;
        }
    }
    for night in nights {
        night.small_hand_outs = night.site.farm.number("select count(*) from pcfarm.checkout").await;
        night.site.restart_server(&["--checkout-problems", LARGE]).await;
    }
    Ok(())
}

impl Night {
    async fn begin(context: &Context, amounts: &Amounts, snapshot: Snapshot) -> anyhow::Result<Night> {
        let site = Site::start(context, &["--checkout-problems", &SMALL.to_string()]).await?;
        let mut pieces = Vec::new();
        for _ in 0..PIECES {
            pieces.push(site.load(amounts.hand_outs * SMALL / PIECES, 1).await?);
        }
        context.settle(&site.database).await?;
        let open = match snapshot {
            Snapshot::None => None,
            Snapshot::Open => Some(open_snapshot(&site.database).await?),
        };
        Ok(Night { snapshot, site, pieces, small_seconds: 0.0, small_hand_outs: 0, open, sittings: Vec::new() })
    }

    /// At full speed, once.
    async fn sit(&mut self, context: &Context, amounts: &Amounts) -> anyhow::Result<()> {
        let site = &self.site;
        let warming = site.load(amounts.problems / 20, 1).await?;
        let large = site.load(amounts.problems, 1).await?;
        context.settle(&site.database).await?;
        site.crunch(warming).await?;
        let measured = site.crunch(large).await?;
        context.progress(&format!("{}: {:.0} a second", self.snapshot.title(), measured.per_second()));
        self.sittings.push((measured, site.tenths(large).await?));
        site.check(large, amounts.problems).await
    }

    /// Means over the sittings.
    fn tenths(&self) -> Vec<f64> {
        let of = |tenth: usize| self.sittings.iter().filter_map(move |(_, tenths)| tenths.get(tenth));
        (0..10).map(|tenth| of(tenth).sum::<f64>() / self.sittings.len() as f64).collect()
    }

    async fn end(self, context: &Context, figures: &mut Figures) -> anyhow::Result<()> {
        let name = self.snapshot.prefix();
        figures.add(format!("{name}_small_hand_outs"), self.small_hand_outs as f64);
        figures.add(format!("{name}_small_hand_outs_per_second"), self.small_hand_outs as f64 / self.small_seconds);
        let tenths = self.tenths();
        let sittings = self.sittings.into_iter().map(|(measured, _)| measured);
        sittings.reduce(Measured::and).context("nothing was measured")?.add_to(figures, name);
        if let [first, second, third, .., eighth, ninth, last] = tenths[..] {
            figures.add(format!("{name}_first_tenth_per_second"), first);
            figures.add(format!("{name}_last_tenth_per_second"), last);
            figures.add(format!("{name}_late_of_early_ratio"), (eighth + ninth) / (second + third));
        }
        if let Some((client, _connection)) = self.open {
            still_open(&client).await?;
        }
        self.site.end(context).await
    }
}

/// As an analyst's forgotten transaction: it has read, and does nothing any more.
async fn open_snapshot(database: &Database) -> anyhow::Result<(Client, ConnectionTask)> {
    let (client, connection) = database.connect().await?;
    client.batch_execute("begin isolation level repeatable read").await?;
    client.query("select count(*) from pcfarm.checkout", &[]).await.context("reading in the snapshot")?;
    Ok((client, connection))
}

async fn still_open(client: &Client) -> anyhow::Result<()> {
    let row =
        client.query_one("select count(*) from pcfarm.checkout", &[]).await.context("the snapshot was not kept")?;
    anyhow::ensure!(row.get::<_, i64>(0) == 0, "the snapshot has seen what came after it");
    client.batch_execute("rollback").await.context("ending the snapshot")
}
