//! Table `peers`: other queues, each at the best settings that were found for it, and PC Farm, with no-op problems on the
//! same PostgreSQL in the same run. `bench/peers` has their programs, and says what was tried.

use crate::context::Context;
use crate::installed::{self, Installed, Kind};
use crate::night::Site;
use crate::plot::{self, Plot};
use crate::report::{Figures, Report, median, shown};
use anyhow::{Context as _, ensure};
use serde::Deserialize;

const BYTES_EACH: u64 = 1_500;

/// What the table knows of a peer before it runs. Counts are such that a run takes some seconds.
#[derive(Debug)]
struct Known {
    name: &'static str,
    problems: u64,
    /// It runs handlers by itself; the others are SQL that something must call.
    has_worker: bool,
    /// Others have a half of its rate at most: without it nobody can say which peer is the best.
    may_be_best: bool,
}

const KNOWN: [Known; 13] = [
    Known { name: "graphile-worker-rust", problems: 400_000, has_worker: true, may_be_best: true },
    Known { name: "graphile-worker-node", problems: 400_000, has_worker: true, may_be_best: true },
    Known { name: "graphile-worker-node-2", problems: 400_000, has_worker: true, may_be_best: true },
    Known { name: "awa", problems: 200_000, has_worker: true, may_be_best: false },
    Known { name: "pg-boss", problems: 100_000, has_worker: true, may_be_best: false },
    Known { name: "pgqueuer", problems: 100_000, has_worker: true, may_be_best: false },
    Known { name: "pgmq-read-100", problems: 400_000, has_worker: false, may_be_best: false },
    Known { name: "pgmq-read-1000", problems: 400_000, has_worker: false, may_be_best: false },
    Known { name: "pgmq-pop-100", problems: 400_000, has_worker: false, may_be_best: false },
    Known { name: "pgmq-pop-1000", problems: 1_000_000, has_worker: false, may_be_best: false },
    Known { name: "skip-locked", problems: 400_000, has_worker: false, may_be_best: false },
    Known { name: "celery", problems: 20_000, has_worker: true, may_be_best: false },
    Known { name: "dask", problems: 20_000, has_worker: true, may_be_best: false },
];

const PC_FARM: &str = "pc_farm_per_second";
const BEST: &str = "best_durable_peer_with_a_worker_per_second";

/// A peer that is installed.
#[derive(Debug)]
struct Peer {
    known: &'static Known,
    installed: Installed,
}

/// What a peer's program prints.
#[derive(Debug, Deserialize)]
struct Outcome {
    peer: String,
    version: String,
    settings: String,
    problems: u64,
    seconds: f64,
    durable: bool,
    processes: u32,
}

impl Outcome {
    fn per_second(&self) -> f64 {
        self.problems as f64 / self.seconds
    }
}

pub async fn run(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let problems = context.scaled(2_000_000, 100_000);
    context.need_disk(2 * problems * BYTES_EACH, "peers")?;
    let mut peers = set_up(report).await?;
    report.note("PC Farm is to do four times the best durable peer with a worker of its own; five times is the aim");
    report.note("each in a database of its own, loaded, vacuumed and checkpointed before the clock starts; payloads of about 100 bytes; autovacuum is on for all");
    report.note("each run begins with another one, as a machine is slower after some work than after other");
    report.note(format!("PC Farm: {problems} problems, 1,000 a checkout, results of about 100 bytes, every check on; its controller copies the payload unparsed"));
    report.note("what PC Farm hands out is committed asynchronously: a crash forgets the last of it, and it is handed out again. Its results, as all that durable peers commit, are on disk before they are acknowledged");
    // The first night on a new cluster pays for its files, whoever spends it.
    pc_farm(context, problems / 4).await?;
    let (mut runs, mut with_worker) = (Vec::new(), Vec::new());
    for run in 0..context.runs {
        let mut figures = Figures::default();
        let mut failed = Vec::new();
        let mut turns: Vec<Option<&Peer>> = peers.iter().map(Some).chain([None]).collect();
        let first = run * turns.len() / context.runs;
        turns.rotate_left(first);
        for turn in turns {
            let Some(peer) = turn else {
                figures.add("pc_farm_problems", problems as f64);
                figures.add(PC_FARM, pc_farm(context, problems).await?);
                report.processed(problems);
                continue;
            };
            match measure(context, peer).await {
                Ok(outcome) => {
                    let name = figure(peer.known.name, outcome.durable);
                    context.progress(&format!("{name}: {}", shown(outcome.per_second())));
                    if outcome.durable && peer.known.has_worker && !with_worker.contains(&name) {
                        with_worker.push(name.clone());
                    }
                    figures.add(format!("{}_problems", peer.known.name.replace('-', "_")), outcome.problems as f64);
                    figures.add(name, outcome.per_second());
                    report.note(describe(peer.known.name, &outcome));
                    report.processed(outcome.problems);
                }
                // The others can still be measured; this one would most likely fail again.
                Err(error) => {
                    report.skip(peer.known.name, format!("its program failed: {error:#}"));
                    failed.push(peer.known.name);
                }
            }
        }
        peers.retain(|peer| !failed.contains(&peer.known.name));
        runs.push(figures);
    }
    let missing: Vec<&str> = KNOWN
        .iter()
        .filter(|known| known.may_be_best && runs.iter().any(|run| run.get(&figure(known.name, true)).is_none()))
        .map(|known| known.name)
        .collect();
    if !missing.is_empty() {
        report.note(format!(
            "not compared with the best peer, which may be one that was not measured: {}",
            missing.join(", ")
        ));
    }
    // The best by its median: the best of each run would be luck, too.
    let rate = |name: &String| median(runs.iter().filter_map(|run| run.get(name)).collect()).unwrap_or_default();
    let best = with_worker.into_iter().filter(|_| missing.is_empty()).max_by(|a, b| rate(a).total_cmp(&rate(b)));
    for mut figures in runs {
        if let Some(value) = best.as_ref().and_then(|best| figures.get(best)) {
            figures.add(BEST, value);
        }
        figures.add_ratio("pc_farm_over_best_durable_peer_with_a_worker_ratio", PC_FARM, BEST);
        report.run(figures);
    }
    report.promise_at_least("pc_farm_over_best_durable_peer_with_a_worker_ratio", 4.0);
    let names = [PC_FARM.to_owned()].into_iter();
    let names = names.chain(KNOWN.iter().flat_map(|known| [figure(known.name, true), figure(known.name, false)]));
    let bars = names.filter_map(|name| Some((name.trim_end_matches("_per_second").to_owned(), report.median(&name)?)));
    report.plot(Plot {
        name: "rate".to_owned(),
        title: "No-op problems a second on the same machine".to_owned(),
        y: "problems a second".to_owned(),
        kind: plot::Kind::Bars(bars.collect()),
    });
    Ok(())
}

/// A rate that a power failure could take back says so in its name.
fn figure(name: &str, durable: bool) -> String {
    let name = name.replace('-', "_");
    if durable { format!("{name}_per_second") } else { format!("{name}_not_durable_per_second") }
}

fn describe(name: &str, outcome: &Outcome) -> String {
    let Outcome { peer, version, settings, problems, processes, .. } = outcome;
    let processes = if *processes == 1 { String::new() } else { format!(", {processes} processes") };
    let durable = if outcome.durable { "" } else { "; not durable, for orientation" };
    format!("{name}: {peer} {version}, {problems} jobs{processes}; {settings}{durable}")
}

async fn set_up(report: &mut Report) -> anyhow::Result<Vec<Peer>> {
    let known = |installed: Installed| {
        let known = KNOWN.iter().find(|known| known.name == installed.name);
        let known = known.with_context(|| format!("setup knows a peer {}, this table does not", installed.name))?;
        Ok(Peer { known, installed })
    };
    installed::set_up(Kind::Queues, report).await?.into_iter().map(known).collect()
}

async fn measure(context: &Context, peer: &Peer) -> anyhow::Result<Outcome> {
    let problems = context.scaled(peer.known.problems, peer.known.problems / 20);
    let outcome: Outcome = peer.installed.run(context, &["--problems", &problems.to_string()]).await?;
    ensure!(outcome.problems == problems && outcome.seconds > 0.0, "it measured something else: {outcome:?}");
    Ok(outcome)
}

/// A farm of its own that crunches one job.
async fn pc_farm(context: &Context, problems: u64) -> anyhow::Result<f64> {
    let site = Site::start(context, &["--checkout-problems", "1000"]).await?;
    let job = site.load(problems, 1).await?;
    context.settle(&site.database).await?;
    let measured = site.crunch(job).await?;
    context.progress(&format!("PC Farm: {}", shown(measured.per_second())));
    site.check(job, problems).await?;
    site.end(context).await?;
    Ok(measured.per_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_durable_is_named_so() {
        assert_eq!(figure("graphile-worker-node-2", true), "graphile_worker_node_2_per_second");
        assert_eq!(figure("dask", false), "dask_not_durable_per_second");
    }
}
