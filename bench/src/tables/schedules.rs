//! Table `schedules`: how late triggers are, and whether all of them come once. From SQL alone: due times against the commit
//! of what was enqueued.

use crate::context::Context;
use crate::farm::{Farm, LONG, Server};
use crate::installed::{self, Kind};
use crate::report::{Figures, Report};
use crate::schedules::{self, Account, Due};
use anyhow::{Context as _, ensure};
use pcfarm_sql::cluster::Cluster;
use pcfarm_sql::testing::url_of;
use serde::Deserialize;
use std::time::Duration;

/// As published.
const SCHEDULES: u64 = 40_000;
const QUICK_SCHEDULES: u64 = 1_000;
pub const EVERY_SECONDS: i64 = 5;

const SECONDS: u64 = 900;
const QUICK_SECONDS: u64 = 30;

/// Servers are killed so often.
const KILL_EVERY: Duration = Duration::from_secs(20);

/// What a trigger may be late by, of 99 %.
pub const SPREAD_MS: f64 = 500.0;
pub const AT_ONCE_MS: f64 = 2_000.0;

/// Of a peer, from its first trigger on.
const PEER_SECONDS: u64 = 60;

/// With its index entries and history.
const BYTES_EACH: u64 = 500;

/// The first due time is then, and later where there are more schedules: it takes its time to make them, some 10,000 a second.
const LEAD_SECONDS: u64 = 5;

fn lead_seconds(count: u64) -> u64 {
    LEAD_SECONDS + count.saturating_sub(SCHEDULES) / 8_000
}

pub async fn run(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let count = context.scaled(SCHEDULES, QUICK_SCHEDULES);
    let seconds = context.scaled(SECONDS, QUICK_SECONDS);
    context.need_disk(2 * BYTES_EACH * count * seconds / EVERY_SECONDS as u64, "schedules")?;
    notes(report, count, seconds);
    for run in 0..context.runs {
        let mut figures = Figures::default();
        for (name, due) in [("spread", Due::Spread), ("at_once", Due::AtOnce)] {
            let taken = measure(context, Load { count, due, seconds, servers: 1, kill: false }).await?;
            report.processed(taken.account.triggers as u64);
            context.progress(&format!("{name}: {taken:?}"));
            taken.add(name, &mut figures);
        }
        if !context.quick {
            let load = Load { count, due: Due::Spread, seconds: seconds / 3, servers: 3, kill: true };
            let taken = measure(context, load).await?;
            report.processed(taken.account.triggers as u64);
            taken.add("killed", &mut figures);
        }
        if run == 0 {
            peers(context, report, &mut figures).await?;
        }
        report.run(figures);
    }
    for name in ["spread", "at_once"].into_iter().chain((!context.quick).then_some("killed")) {
        report.promise_always_at_most(&format!("{name}_lost"), 0.0);
        report.promise_always_at_most(&format!("{name}_doubled"), 0.0);
    }
    report.promise_at_most("spread_p99_ms", SPREAD_MS);
    report.promise_at_most("at_once_p99_ms", AT_ONCE_MS);
    if context.quick {
        report.skip("killed servers", "--quick");
    }
    Ok(())
}

fn notes(report: &mut Report, count: u64, seconds: u64) {
    report.note(format!(
        "{count} schedules of {EVERY_SECONDS} s for {seconds} s: each trigger enqueues one problem into one standing job; \
         nobody solves them. PostgreSQL and the servers share the machine"
    ));
    report.note(
        "lateness: from the due time to the commit of the problem, by PostgreSQL's own clock (track_commit_timestamp)",
    );
    report.note("lost: due times up to the last one of their schedule without a problem, and schedules that have not come for 10 s; doubled: problems of a due time that has another");
    report.note(
        "as published, on other machines: a replicated scheduler in Java 2,050 a second with one replica and about twice that \
         with seven; Celery's scheduler 1,403",
    );
}

#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub count: u64,
    pub due: Due,
    pub seconds: u64,
    pub servers: usize,
    pub kill: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    pub account: Account,
    /// Schedules that have not come for long, while others have.
    starved: i64,
    p50_ms: f64,
    p99_ms: f64,
    most_ms: f64,
    /// 99 % of what was due in a second, in the middle one of all seconds: not that of the second that the machine stood still.
    pub usual_p99_ms: f64,
    per_second: f64,
    ticks_per_second: f64,
}

impl Taken {
    fn add(&self, name: &str, figures: &mut Figures) {
        figures.add(format!("{name}_per_second"), self.per_second);
        figures.add(format!("{name}_p50_ms"), self.p50_ms);
        figures.add(format!("{name}_p99_ms"), self.p99_ms);
        figures.add(format!("{name}_most_ms"), self.most_ms);
        figures.add(format!("{name}_ticks_per_second"), self.ticks_per_second);
        figures.add(format!("{name}_lost"), (self.account.lost + self.starved) as f64);
        figures.add(format!("{name}_doubled"), self.account.doubled as f64);
    }
}

pub async fn measure(context: &Context, load: Load) -> anyhow::Result<Taken> {
    let cluster = context.cluster_with(&[("track_commit_timestamp", "on")]).await?;
    let taken = on(context, &cluster, load).await;
    // Its files go with it.
    cluster.stop().await.context("stopping PostgreSQL")?;
    taken
}

async fn on(context: &Context, cluster: &Cluster, load: Load) -> anyhow::Result<Taken> {
    cluster.create_database_if_missing("schedules").await?;
    let mut config = cluster.config();
    config.dbname("schedules");
    let farm = Farm::at(url_of(&config), config);
    let mut servers: Vec<Server> = Vec::new();
    for n in 0..load.servers {
        servers.push(farm.serving(&format!("server{n}"), &["--lease", "20", "--heartbeat", "5"]).await);
    }
    let job = schedules::standing_job(&farm).await;
    let lead = lead_seconds(load.count);
    schedules::make(&farm, job, load.count as i64, EVERY_SECONDS, load.due, lead as i64).await;
    farm.run("analyze pcfarm.schedule, pcfarm.schedule_next").await;
    let mut left = Duration::from_secs(load.seconds + lead);
    let mut victim = 0;
    while !left.is_zero() {
        let nap = if load.kill { KILL_EVERY.min(left) } else { left };
        tokio::time::sleep(nap).await; // the time of the measurement
        left -= nap;
        if load.kill && !left.is_zero() {
            victim = (victim + 1) % servers.len();
            context.progress(&format!("killing {}", servers[victim].program.name));
            servers[victim].program.kill();
            servers[victim].start().await;
        }
    }
    // All at once: while hundreds of thousands of schedules were disabled, the others would come on for a quarter of a minute.
    for server in &mut servers {
        server.program.terminate();
    }
    for server in &mut servers {
        ensure!(server.program.ended(LONG).await.success(), "{} did not stop cleanly", server.program.name);
    }
    let account = schedules::account(&farm, job, EVERY_SECONDS).await;
    ensure!(account.miscounted == 0, "{} schedules count wrong", account.miscounted);
    // Everything that was due a while before the end has come, unless more was due than can be.
    let starved = farm
        .number(&format!(
            "select count(*) from pcfarm.schedule_next x
             where x.last_due_at < (select max(last_due_at) from pcfarm.schedule_next) - interval '{} s'",
            2 * EVERY_SECONDS
        ))
        .await;
    let row = farm
        .account(
            "with late as materialized (
                 select u.due_at, extract(epoch from pg_xact_commit_timestamp(k.xmin) - u.due_at)::float8 * 1000 as ms
                 from pcfarm.schedule_tick k cross join lateral unnest(k.due_ats) as u(due_at)),
             of_second as (
                 select percentile_disc(0.99) within group (order by l.ms) as ms
                 from late l group by date_trunc('second', l.due_at))
             select percentile_disc(array[0.5, 0.99, 1]) within group (order by l.ms), count(*),
                 (select count(*) from pcfarm.schedule_tick),
                 (select extract(epoch from max(k.ticked_at) - min(k.ticked_at))::float8 from pcfarm.schedule_tick k),
                 (select percentile_disc(0.5) within group (order by o.ms) from of_second o)
             from late l",
        )
        .await;
    let quantiles: Option<Vec<f64>> = row.get(0);
    let quantiles = quantiles.context("nothing was triggered")?;
    let (triggers, ticks, seconds): (i64, i64, Option<f64>) = (row.get(1), row.get(2), row.get(3));
    let seconds = seconds.unwrap_or(0.0).max(1.0);
    Ok(Taken {
        account,
        starved,
        p50_ms: quantiles[0],
        p99_ms: quantiles[1],
        most_ms: quantiles[2],
        usual_p99_ms: row.get::<_, Option<f64>>(4).context("nothing was triggered")?,
        per_second: triggers as f64 / seconds,
        ticks_per_second: ticks as f64 / seconds,
    })
}

/// What a scheduler's program prints.
#[derive(Debug, Deserialize)]
struct Outcome {
    peer: String,
    version: String,
    settings: String,
    triggers: u64,
    per_second: f64,
}

/// Other schedulers with as many schedules, and with as few as they may like. How late they are is not told: those that do not
/// come to all that is due are the later the longer they run.
async fn peers(context: &Context, report: &mut Report, figures: &mut Figures) -> anyhow::Result<()> {
    let seconds = context.scaled(PEER_SECONDS, PEER_SECONDS / 6).to_string();
    for peer in installed::set_up(Kind::Schedulers, report).await? {
        for count in [QUICK_SCHEDULES, context.scaled(SCHEDULES, QUICK_SCHEDULES)] {
            let arguments = ["--schedules", &count.to_string(), "--every-seconds", &EVERY_SECONDS.to_string()];
            match peer.run::<Outcome>(context, &[&arguments[..], &["--seconds", &seconds]].concat()).await {
                Ok(outcome) => {
                    let Outcome { peer: name, version, settings, triggers, per_second } = outcome;
                    report.note(format!("{}: {name} {version}; {settings}", peer.name));
                    report.processed(triggers);
                    figures.add(format!("{}_of_{count}_per_second", peer.name.replace('-', "_")), per_second);
                }
                Err(error) => report.skip(&peer.name, format!("its program failed: {error:#}")),
            }
        }
    }
    Ok(())
}
