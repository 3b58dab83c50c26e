//! Table `snapshot`: the rate while somebody's transaction has been open for a hundred thousand hand-outs, and stays so. No
//! row version that hand-outs leave can be removed meanwhile: the field's classic disease.

use crate::context::{Context, Database};
use crate::night::Site;
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

const BYTES_EACH: u64 = 1_200;

pub async fn run(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let hand_outs = context.scaled(100_000, 3_000);
    let problems = context.scaled(2_000_000, 100_000);
    let minutes = Duration::from_secs(context.scaled(600, 10));
    context.need_disk((2 * problems + hand_outs * SMALL) * BYTES_EACH, "snapshot")?;
    report.note(format!(
        "an idle REPEATABLE READ transaction that has read, open during {hand_outs} hand-outs of {SMALL} problems, which come \
         evenly over {} s, and then {problems} problems at 1,000 a checkout, with a few before them that do not count",
        minutes.as_secs()
    ));
    report.note(
        "without: the same hand-outs, one after the other, and the same problems, with no such transaction; each on a database of its own",
    );
    let amounts = Amounts { hand_outs, problems, minutes };
    for run in 0..context.runs {
        let mut figures = Figures::default();
        // A machine is slower after some work than after other: neither is always the second.
        let order = if run % 2 == 0 { [Snapshot::None, Snapshot::Open] } else { [Snapshot::Open, Snapshot::None] };
        let mut lines = Vec::new();
        for snapshot in order {
            lines.push((snapshot, night(context, &amounts, snapshot, &mut figures).await?));
            report.processed(problems + hand_outs * SMALL);
        }
        figures.add_ratio("with_of_without_ratio", "with_per_second", "without_per_second");
        figures.add_ratio("last_of_first_tenth_ratio", "with_last_tenth_per_second", "with_first_tenth_per_second");
        figures.add_ratio("last_tenth_of_without_ratio", "with_last_tenth_per_second", "without_last_tenth_per_second");
        context.progress(&format!("with and without a snapshot: {:?}", figures.get("with_of_without_ratio")));
        if report.plots().is_empty() {
            lines.sort_by_key(|(snapshot, _)| *snapshot);
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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

/// Many small hand-outs, and then large ones at full speed, whose rate is taken: the rates of its tenths.
async fn night(
    context: &Context,
    amounts: &Amounts,
    snapshot: Snapshot,
    figures: &mut Figures,
) -> anyhow::Result<Vec<f64>> {
    let name = snapshot.prefix();
    let mut site = Site::start(context, &["--checkout-problems", &SMALL.to_string()]).await?;
    let mut pieces = Vec::new();
    for _ in 0..PIECES {
        pieces.push(site.load(amounts.hand_outs * SMALL / PIECES, 1).await?);
    }
    context.settle(&site.database).await?;
    let open = match snapshot {
        Snapshot::None => None,
        Snapshot::Open => Some(open_snapshot(&site.database).await?),
    };
    let mut seconds = 0.0;
    let mut pace = tokio::time::interval(amounts.minutes / PIECES as u32);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for piece in pieces {
        if snapshot == Snapshot::Open {
            pace.tick().await;
        }
        seconds += site.crunch(piece).await?.seconds;
    }
    let given: i64 = site.farm.number("select count(*) from pcfarm.checkout").await;
    figures.add(format!("{name}_small_hand_outs"), given as f64);
    figures.add(format!("{name}_small_hand_outs_per_second"), given as f64 / seconds);
    site.restart_server(&["--checkout-problems", LARGE]).await;
    let warming = site.load(amounts.problems / 20, 1).await?;
    let large = site.load(amounts.problems, 1).await?;
    context.settle(&site.database).await?;
    site.crunch(warming).await?;
    site.crunch(large).await?.add_to(figures, name);
    let tenths = tenths(&site, large, figures, name).await?;
    if let Some((client, _connection)) = open {
        still_open(&client).await?;
    }
    site.check(large, amounts.problems).await?;
    site.end(context).await?;
    Ok(tenths)
}

async fn tenths(site: &Site, job: JobId, figures: &mut Figures, name: &str) -> anyhow::Result<Vec<f64>> {
    let tenths = site.tenths(job).await?;
    if let [first, .., last] = tenths[..] {
        figures.add(format!("{name}_first_tenth_per_second"), first);
        figures.add(format!("{name}_last_tenth_per_second"), last);
    }
    Ok(tenths)
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
