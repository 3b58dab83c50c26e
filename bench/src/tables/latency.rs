//! Table `latency`: one problem at a time on an idle farm, from its submission to its stored result, beside queues that have
//! no farm; and from the commit of a load in SQL to the first hand-out.

use crate::context::Context;
use crate::installed::{self, Installed, Kind};
use crate::night::Site;
use crate::plot::{self, Plot};
use crate::report::{Figures, Report, quantile, shown};
use anyhow::{Context as _, bail, ensure};
use pcfarm_proto::v1;
use pcfarm_proto::v1::job_service_client::JobServiceClient;
use pcfarm_proto::v1::submit_request::Part;
use serde::Deserialize;
use std::time::{Duration, Instant, SystemTime};
use tonic::transport::Channel;

/// Between two submissions: the farm is idle again, with the job's end noted.
const PAUSE: Duration = Duration::from_millis(10);

/// Longest that any of them may take.
const LONGEST: Duration = Duration::from_secs(10);

const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)];

/// Looking costs the farm's own cores something, and what is looked for carries its time.
const POLL: Duration = Duration::from_millis(1);

/// Before the first look, so that it does not get in the way of what it looks for.
const FIRST_LOOK: Duration = Duration::from_millis(4);

/// What is submitted, and when the next is.
#[derive(Clone, Copy, Debug)]
struct Rhythm {
    /// Problems of this standing job, and not a job each.
    standing: Option<i64>,
    /// After a pause, in which caches become cold and cores fall asleep; or as soon as the last one's result has been seen.
    rested: bool,
}

impl Rhythm {
    fn prefix(self) -> &'static str {
        match (self.rested, self.standing) {
            (false, None) => "",
            (false, Some(_)) => "standing_",
            (true, None) => "rested_",
            (true, Some(_)) => "rested_standing_",
        }
    }

    fn first_look(self) -> Duration {
        if self.rested { FIRST_LOOK } else { POLL }
    }

    fn pause(self) -> Duration {
        if self.rested { PAUSE } else { Duration::ZERO }
    }
}

pub async fn run(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let submissions = context.scaled(1_000, 50);
    let loads = context.scaled(200, 20);
    report.note(format!(
        "{submissions} submissions of a job of one problem over gRPC, one at a time, from the call to the result's commit: \
         when the accepting transaction has closed the checkout, by the same machine's clock, and then a commit's time, of \
         the same quantile (commit, measured beside it, in the same rhythm, from the statement's own clock to its answer); as many \
         of one problem to a standing job (standing); each as soon as the last one's result was seen, as graphile-worker's own test \
         of latency does it; and the same again 10 ms later each (rested); a tenth as many come before each that do not count; {loads} \
         loads in SQL, from commit to hand-out"
    ));
    report.note(format!(
        "other queues, on the same PostgreSQL and in the same rhythms: {submissions} jobs, one at a time, from the call that adds one \
         to the start of its handler, and to the answer to the statement that completes it. Handlers run in the very process \
         that asks the database, and there is no result. Their next job is added as soon as that is known, or 10 ms later; PC \
         Farm's a millisecond or two after, as its result is looked for"
    ));
    let mut peers = if context.quick {
        report.skip("other queues", "a quick look installs nothing");
        Vec::new()
    } else {
        installed::set_up(Kind::Latency, report).await.unwrap_or_else(|error| {
            report.skip("other queues", format!("{error:#}"));
            Vec::new()
        })
    };
    for _ in 0..context.runs {
        let site = Site::start(context, &[]).await?;
        let mut figures = Figures::default();
        let (client, _connection) = site.database.connect().await?;
        let standing = "select pcfarm.create_job('standing', 'noop', '{\"standing\": true}')";
        let job: i64 = client.query_one(standing, &[]).await?.get(0);
        client.execute("select pcfarm.open_job($1)", &[&job]).await?;
        for rested in [true, false] {
            let commits = commits(&site, rested, &mut figures).await?;
            for standing in [None, Some(job)] {
                submit(&site, submissions, Rhythm { standing, rested }, &commits, &mut figures).await?;
            }
        }
        client.execute("select pcfarm.cancel_job($1)", &[&job]).await?;
        load(&site, loads, &mut figures).await?;
        site.end(context).await?;
        report.processed(4 * submissions + loads);
        let mut failed = Vec::new();
        for peer in &peers {
            if let Err(error) = compare(context, peer, submissions, &mut figures, report).await {
                // The others can still be measured; this one would most likely fail again.
                report.skip(&peer.name, format!("its program failed: {error:#}"));
                failed.push(peer.name.clone());
            }
        }
        peers.retain(|peer| !failed.contains(&peer.name));
        report.run(figures);
    }
    for rhythm in ["", "standing_"] {
        report.promise_at_most(&format!("{rhythm}submit_to_result_p50_ms"), 2.0);
        report.promise_at_most(&format!("{rhythm}submit_to_result_p99_ms"), 6.0);
        report.promise_at_most(&format!("rested_{rhythm}submit_to_result_p50_ms"), 2.0);
        report.promise_at_most(&format!("rested_{rhythm}submit_to_result_p99_ms"), 6.0);
    }
    report.promise_at_most("load_to_hand_out_p99_ms", 50.0);
    let names = [
        "submit_to_acknowledged_p50_ms",
        "submit_to_result_p50_ms",
        "submit_to_result_p99_ms",
        "rested_submit_to_result_p50_ms",
        "rested_submit_to_result_p99_ms",
        "standing_submit_to_result_p50_ms",
        "standing_submit_to_result_p99_ms",
        "load_to_hand_out_p50_ms",
        "load_to_hand_out_p99_ms",
        "graphile_worker_rust_add_to_completed_p50_ms",
        "graphile_worker_node_add_to_completed_p50_ms",
        "rested_graphile_worker_rust_add_to_completed_p50_ms",
        "rested_graphile_worker_node_add_to_completed_p50_ms",
    ];
    let bars = names.iter().filter_map(|name| Some(((*name).to_owned(), report.median(name)?))).collect();
    report.plot(Plot {
        name: "latency".to_owned(),
        title: "One problem on an idle farm".to_owned(),
        y: "milliseconds".to_owned(),
        kind: plot::Kind::Bars(bars),
    });
    Ok(())
}

/// What durable commits of next to nothing take: from the statement's own clock, as an acceptance's, to its answer.
async fn commits(site: &Site, rested: bool, figures: &mut Figures) -> anyhow::Result<Vec<f64>> {
    let (client, _connection) = site.database.connect().await?;
    let durable =
        client.prepare("select clock_timestamp(), pg_logical_emit_message(true, 'pcfarm-bench', 'commit')").await?;
    let mut times = Vec::new();
    for _ in 0..200 {
        let began: SystemTime = client.query_one(&durable, &[]).await?.get(0);
        times.push(began.elapsed().unwrap_or_default().as_secs_f64() * 1e3);
        // As between submissions: a machine that has nothing to do takes longer for all that wakes it up.
        tokio::time::sleep(if rested { PAUSE } else { POLL }).await;
    }
    add(figures, if rested { "rested_commit" } else { "commit" }, &times, &[]);
    Ok(times)
}

async fn submit(site: &Site, count: u64, rhythm: Rhythm, commits: &[f64], figures: &mut Figures) -> anyhow::Result<()> {
    let mut jobs = JobServiceClient::new(Channel::from_shared(site.server.url())?.connect().await?);
    let (client, _connection) = site.database.connect().await?;
    // Closed by the transaction that stores the result, as its last act.
    let stored = "select c.ended_at, c.checkout_id from pcfarm.checkout c \
                  where c.job_id = $1 and c.checkout_id > $2 and c.ending = 'accepted'";
    let stored = client.prepare(stored).await?;
    let (mut acknowledged, mut results) = (Vec::new(), Vec::new());
    let newest = "select coalesce(max(c.checkout_id), 0) from pcfarm.checkout c";
    let mut last: i64 = client.query_one(newest, &[]).await?.get(0);
    let warm_up = count / 10;
    for n in 0..warm_up + count {
        let messages = [header(rhythm.standing), problem(n), end()].map(|part| v1::SubmitRequest { part: Some(part) });
        let (began, clock) = (Instant::now(), SystemTime::now());
        let answer = jobs.submit(tokio_stream::iter(messages)).await.context("submitting")?.into_inner();
        let answered = began.elapsed();
        let deadline = began + LONGEST;
        tokio::time::sleep(rhythm.first_look().saturating_sub(began.elapsed())).await;
        let at: SystemTime = loop {
            tokio::time::sleep(POLL).await;
            if let Some(row) = client.query_opt(&stored, &[&answer.job_id, &last]).await? {
                last = row.get(1);
                break row.get(0);
            }
            if Instant::now() > deadline {
                let state = site.farm.state().await;
                bail!("no result of a single problem within {LONGEST:?}; its submission took {answered:?}\n{state}");
            }
        };
        if n >= warm_up {
            acknowledged.push(answered.as_secs_f64() * 1e3);
            results.push(at.duration_since(clock).unwrap_or_default().as_secs_f64() * 1e3);
        }
        tokio::time::sleep(rhythm.pause()).await;
    }
    let prefix = rhythm.prefix();
    add(figures, &format!("{prefix}submit_to_acknowledged"), &acknowledged, &[]);
    add(figures, &format!("{prefix}submit_to_result"), &results, commits);
    Ok(())
}

fn header(standing: Option<i64>) -> Part {
    Part::Header(match standing {
        Some(job_id) => v1::SubmitHeader { job_id, ..v1::SubmitHeader::default() },
        None => v1::SubmitHeader {
            name: "one".to_owned(),
            job_type: "noop".to_owned(),
            open: true,
            ..v1::SubmitHeader::default()
        },
    })
}

fn problem(n: u64) -> Part {
    let payload = format!("{{\"n\": {n}, \"text\": \"{}\"}}", "x".repeat(64)).into();
    let problem = v1::SubmitProblem { key: n.to_string(), payload, ..v1::SubmitProblem::default() };
    Part::Problems(v1::SubmitProblems { problems: vec![problem] })
}

fn end() -> Part {
    Part::End(v1::SubmitEnd { problems: 1 })
}

async fn load(site: &Site, count: u64, figures: &mut Figures) -> anyhow::Result<()> {
    let (client, _connection) = site.database.connect().await?;
    let submit = client
        .prepare("select pcfarm.submit('one', 'noop', 'select ''k'' as key, public.pcfarm_payload(1::bigint) as payload', 1)")
        .await?;
    let mut waits = Vec::new();
    for _ in 0..count {
        let job: i64 = client.query_one(&submit, &[]).await?.get(0);
        let committed = SystemTime::now();
        let deadline = Instant::now() + LONGEST;
        let at: SystemTime = loop {
            tokio::time::sleep(POLL).await;
            let text = "select c.checked_out_at from pcfarm.checkout c where c.job_id = $1";
            if let Some(row) = client.query_opt(text, &[&job]).await? {
                break row.get(0);
            }
            ensure!(Instant::now() < deadline, "a load was not handed out within {LONGEST:?}");
        };
        waits.push(at.duration_since(committed).unwrap_or_default().as_secs_f64() * 1e3);
        tokio::time::sleep(PAUSE).await;
    }
    add(figures, "load_to_hand_out", &waits, &[]);
    Ok(())
}

/// What a peer's program prints.
#[derive(Debug, Deserialize)]
struct Outcome {
    peer: String,
    version: String,
    settings: String,
    started_ms: Vec<f64>,
    completed_ms: Vec<f64>,
}

async fn compare(
    context: &Context,
    peer: &Installed,
    jobs: u64,
    figures: &mut Figures,
    report: &mut Report,
) -> anyhow::Result<()> {
    let name = peer.name.replace('-', "_");
    for (prefix, rest) in [("rested_", PAUSE), ("", Duration::ZERO)] {
        let arguments = ["--problems", &jobs.to_string(), "--rest-ms", &rest.as_millis().to_string()];
        let Outcome { peer, version, settings, started_ms, completed_ms } = peer.run(context, &arguments).await?;
        let measured = [&started_ms, &completed_ms].map(|times| times.len() as u64);
        ensure!(measured == [jobs; 2], "it measured {measured:?} jobs instead of {jobs}");
        add(figures, &format!("{prefix}{name}_add_to_start"), &started_ms, &[]);
        add(figures, &format!("{prefix}{name}_add_to_completed"), &completed_ms, &[]);
        let completed = quantile(&completed_ms, 0.5).unwrap_or_default();
        context.progress(&format!("{prefix}{name}: {} ms", shown(completed)));
        report.note(format!("{name}: {peer} {version}; {settings}"));
        report.processed(jobs);
    }
    Ok(())
}

/// Adds quantiles, each with the same one of what comes behind.
fn add(figures: &mut Figures, name: &str, values: &[f64], behind: &[f64]) {
    for (label, at) in QUANTILES {
        if let Some(value) = quantile(values, at) {
            figures.add(format!("{name}_{label}_ms"), value + quantile(behind, at).unwrap_or(0.0));
        }
    }
}
