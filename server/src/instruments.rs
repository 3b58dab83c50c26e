//! What is measured, for Prometheus. Never labelled by job, user or host: a farm has too many of them.

use crate::farm::Farm;
use crate::traces;
use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use pcfarm_sql::farm;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tracing::warn;

/// What counters and histograms are kept in: the library knows one for the process.
static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();

/// From a statement that finds everything in memory to one at its time limit.
const SECONDS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];

/// What the database is asked for when somebody scrapes has come by then, or is left out.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// Begins to measure.
pub fn install() {
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
        .expect("there are buckets");
    let recorder = builder.build_recorder();
    let handle = recorder.handle();
    if metrics::set_global_recorder(recorder).is_ok() {
        drop(RECORDER.set(handle));
        describe();
    }
}

fn describe() {
    describe_gauge!("pcfarm_problems_waiting", "Problems that wait to be handed out");
    describe_gauge!("pcfarm_problems_in_progress", "Problems handed out and not ended");
    describe_gauge!("pcfarm_jobs", "Jobs that have not ended, by state");
    describe_gauge!("pcfarm_jobs_late", "Open jobs whose deadline has passed");
    describe_gauge!("pcfarm_lateness_seconds_max", Unit::Seconds, "By how much the latest open job is late");
    describe_gauge!("pcfarm_workstations", "Workstations, by state");
    describe_gauge!("pcfarm_cores", "Cores of workstations that are neither lost nor offline nor dead");
    describe_gauge!("pcfarm_connected_workstations", "Workstations connected to this server");
    describe_gauge!("pcfarm_database_connections", "Connections of this server's pool, by state");
    describe_counter!("pcfarm_checkouts_total", "Checkouts handed out by this server");
    describe_counter!("pcfarm_handed_out_problems_total", "Problems handed out by this server");
    describe_counter!("pcfarm_results_total", "Results that this server has stored");
    describe_counter!("pcfarm_refused_results_total", "Results refused by this server");
    describe_histogram!("pcfarm_database_seconds", Unit::Seconds, "Time of hot statements, waiting included");
    describe_counter!(
        "pcfarm_trace_spans_total",
        "Spans of traces: sent, not_sent (the collector was away) or dropped"
    );
    describe_counter!("pcfarm_http_requests_total", "Requests of REST, by route");
    describe_histogram!("pcfarm_http_request_seconds", Unit::Seconds, "Time to the beginning of an answer, by route");
}

/// A hot statement came back.
pub fn timed(statement: &'static str, began: Instant) {
    let took = began.elapsed();
    histogram!("pcfarm_database_seconds", "statement" => statement).record(took.as_secs_f64());
    traces::note_statement(statement, took);
}

/// Checkouts of so many problems each.
pub fn handed_out(problems: impl Iterator<Item = i32>) {
    let (mut checkouts, mut total) = (0, 0);
    for problems in problems {
        checkouts += 1;
        total += u64::from(problems.unsigned_abs());
    }
    counter!("pcfarm_checkouts_total").increment(checkouts);
    counter!("pcfarm_handed_out_problems_total").increment(total);
}

/// Results that were stored.
pub fn accepted(results: impl Iterator<Item = i32>) {
    counter!("pcfarm_results_total").increment(results.map(|accepted| u64::from(accepted.unsigned_abs())).sum());
}

/// All of it, as text. What only the database knows is asked for now.
pub async fn rendered(farm: &Farm) -> String {
    match timeout(LOOK_LIMIT, look(farm)).await {
        Ok(Ok(())) => gauge!("pcfarm_database_up").set(1.0),
        Ok(Err(error)) => {
            warn!(error = format!("{error:#}"), "the farm's counts were not read for metrics");
            gauge!("pcfarm_database_up").set(0.0);
        }
        Err(_) => gauge!("pcfarm_database_up").set(0.0),
    }
    let refused = farm.refused_results.load(Ordering::Relaxed);
    counter!("pcfarm_refused_results_total").absolute(refused.unsigned_abs());
    gauge!("pcfarm_connected_workstations").set(farm.sessions().len() as f64);
    let pool = farm.pool.status();
    gauge!("pcfarm_database_connections", "state" => "idle").set(pool.available as f64);
    gauge!("pcfarm_database_connections", "state" => "in_use").set(pool.size.saturating_sub(pool.available) as f64);
    gauge!("pcfarm_database_connections", "state" => "awaited").set(pool.waiting as f64);
    RECORDER.get().map(PrometheusHandle::render).unwrap_or_default()
}

async fn look(of: &Farm) -> anyhow::Result<()> {
    let client = of.pool.get().await?;
    let status = farm::status(&client, pcfarm_recycler::pulse_limit(of.rhythm.lease)).await?;
    let late = farm::lateness(&client).await?;
    drop(client);
    gauge!("pcfarm_problems_waiting").set(status.problems_waiting as f64);
    gauge!("pcfarm_problems_in_progress").set(status.problems_in_progress as f64);
    gauge!("pcfarm_cores").set(status.cores as f64);
    for (state, count) in [("loading", status.jobs_loading), ("open", status.jobs_open), ("held", status.jobs_held)] {
        gauge!("pcfarm_jobs", "state" => state).set(count as f64);
    }
    for (state, count) in [
        ("waiting", status.workstations_waiting),
        ("processing", status.workstations_processing),
        ("suspended", status.workstations_suspended),
        ("draining", status.workstations_draining),
        ("cannot_tell", status.workstations_cannot_tell),
        ("lost", status.workstations_lost),
        ("offline", status.workstations_offline),
        ("dead", status.workstations_dead),
    ] {
        gauge!("pcfarm_workstations", "state" => state).set(count as f64);
    }
    gauge!("pcfarm_jobs_late").set(late.jobs as f64);
    gauge!("pcfarm_lateness_seconds_max").set(late.seconds);
    Ok(())
}
