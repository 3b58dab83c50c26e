//! What jobs that schedules have made wait for: queries of an administrator, run on connections of the job type's own login
//! role in a read-only transaction, and cancelled from outside at their time limit. Rows are stored by the server, in one
//! transaction with the note that this load is done. What fails is tried again, later and later, until it succeeds or its
//! job is cancelled.

use crate::dispatch;
use crate::farm::Farm;
use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use deadpool_postgres::Object;
use futures_util::TryStreamExt;
use jiff::Timestamp;
use pcfarm_sql::json::RawJson;
use pcfarm_sql::schedules::{self, Load};
use pcfarm_sql::submit::{Details, Loading, NewProblem};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::MissedTickBehavior;
use tokio_postgres::types::{ToSql, Type};
use tracing::{info, warn};

/// Behind every notification there is this.
const LOOK: Duration = Duration::from_secs(5);

/// In seconds: what is due and somebody else's is not asked for again and again.
const SOONEST: f64 = 0.2;

/// Rows that are in memory at a time.
const PORTION: usize = 2_000;

/// Loads until the server stops: one at a time on each server.
pub async fn run(farm: Arc<Farm>) {
    let mut tick = tokio::time::interval(LOOK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let soon = match work(&farm).await {
            Ok(next) => {
                next.map_or(LOOK, |seconds| Duration::from_secs_f64(seconds.clamp(SOONEST, LOOK.as_secs_f64())))
            }
            Err(error) => {
                warn!(error = format!("{error:#}"), "looking for what schedules have to load failed: trying again");
                LOOK
            }
        };
        tokio::select! {
            () = farm.stopping.cancelled() => return,
            _ = tick.tick() => {}
            () = tokio::time::sleep(soon) => {}
            () = farm.ticking.loads.notified() => {}
        }
    }
}

/// Loads what is due. Returns in how many seconds there is more.
async fn work(farm: &Farm) -> anyhow::Result<Option<f64>> {
    while !farm.stopping.is_cancelled() {
        let client = farm.pool.get().await.context("getting a connection")?;
        let Some(load) = schedules::claim_load(&*client).await.context("claiming a load")? else {
            return schedules::next_load(&*client).await.context("asking for the next load");
        };
        drop(client);
        if !load.wanted {
            continue;
        }
        let mut span = farm.traces.under(farm.traces.of_job(load.trace_parent.as_deref(), load.job_id), "load");
        span.set("pcfarm.job.id", load.job_id.0).set("pcfarm.attempt", i64::from(load.attempts));
        let outcome = farm.stopping.run_until_cancelled(attempt(farm, &load)).await;
        if let Some(Err(error)) = &outcome {
            span.failed(format!("{error:#}"));
        }
        drop(span);
        let (job_id, number, attempts) = (load.job_id, load.number, load.attempts);
        match outcome {
            // The next server has it when its time is over.
            None => return Ok(None),
            Some(Ok(true)) => {
                info!(%job_id, number, attempts, "loaded for a schedule");
                drop(farm.dispatcher.try_send(dispatch::Event::Work));
                // An empty job may be over.
                farm.maybe_over.name(job_id);
            }
            Some(Ok(false)) => info!(%job_id, number, "another server has loaded this"),
            Some(Err(error)) => {
                let message = format!("{error:#}");
                warn!(%job_id, number, attempts, error = message, "a schedule's load failed: trying again");
                let client = farm.pool.get().await.context("getting a connection")?;
                schedules::load_failed(&*client, &load, &message).await.context("noting a load that failed")?;
            }
        }
    }
    Ok(None)
}

async fn attempt(farm: &Farm, load: &Load) -> anyhow::Result<bool> {
    let role = load.read_role.as_deref().context("its job type has no read_role any more: give it one")?;
    let source = farm.reads.connection(role).await.with_context(|| format!("connecting as role {role}"))?;
    let cancel = source.cancel_token();
    let outcome = tokio::time::timeout(load.time_limit, copy(farm, load, &source)).await;
    if let Ok(Ok(loaded)) = outcome {
        return Ok(loaded);
    }
    // Whatever state it is in, nobody else gets this connection.
    let of_its_own = Object::take(source);
    match outcome {
        Ok(outcome) => outcome.with_context(|| format!("load {} (as role {role})", load.number)),
        Err(_) => {
            farm.reads.cancel(&cancel).await;
            drop(of_its_own);
            bail!("load {} (as role {role}) took longer than its time limit of {:?}", load.number, load.time_limit)
        }
    }
}

/// From the query's connection to ours, a portion at a time. A transaction is begun only when there are rows: nobody's
/// vacuum waits for a slow query.
async fn copy(farm: &Farm, load: &Load, source: &Object) -> anyhow::Result<bool> {
    source.batch_execute("begin transaction read only").await?;
    let query = load.query.trim_end().trim_end_matches(';');
    // One statement, whose rows come as JSON; the text cannot end the one it stands in.
    let text = format!("select to_jsonb(q)::text from (\n{query}\n) q");
    let statement = source.prepare_typed(&text, &[Type::TIMESTAMPTZ]).await?;
    let due: SystemTime = load.due_at;
    let parameters: &[&(dyn ToSql + Sync)] = if statement.params().is_empty() { &[] } else { &[&due] };
    ensure!(statement.params().len() <= 1, "the query has more parameters than $1, the due time");
    let mut rows = pin!(source.query_raw(&statement, parameters.iter().copied()).await?);
    let mut loading: Option<Box<Loading>> = None;
    loop {
        let mut problems = Vec::new();
        while problems.len() < PORTION
            && let Some(row) = rows.try_next().await?
        {
            problems.push(problem(row.try_get(0)?).context("a row of the query")?);
        }
        let last = problems.len() < PORTION;
        if loading.is_none() {
            loading = Some(begin(farm, load).await?);
        }
        loading.as_mut().expect("begun").add(problems).await?;
        if last {
            break;
        }
    }
    source.batch_execute("rollback").await?;
    let loading = loading.expect("begun with the first portion");
    Ok(load.finish(loading).await?)
}

async fn begin(farm: &Farm, load: &Load) -> anyhow::Result<Box<Loading>> {
    let client = farm.pool.get().await.context("getting a connection")?;
    Ok(load.begin(Object::take(client)).await?)
}

/// A row, as `pcfarm.load` takes it.
#[derive(Deserialize)]
struct Loaded<'a> {
    key: Value,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
    #[serde(default)]
    group_key: Value,
    job_type: Option<String>,
    priority: Option<i32>,
    deadline: Option<String>,
    not_before: Option<String>,
    weight: Option<i32>,
}

fn problem(row: &str) -> anyhow::Result<NewProblem> {
    let row: Loaded<'_> = serde_json::from_str(row).context("it has no key, or columns of other types than wanted")?;
    let time = |text: Option<String>| -> anyhow::Result<Option<SystemTime>> {
        text.map(|text| Ok(text.parse::<Timestamp>().with_context(|| format!("{text:?} is no time"))?.into()))
            .transpose()
    };
    let details = Details {
        job_type: row.job_type,
        priority: row.priority.unwrap_or(0),
        deadline: time(row.deadline)?,
        not_before: time(row.not_before)?,
        weight: row.weight,
    };
    let payload = row.payload.context("it has no payload")?.get();
    Ok(NewProblem {
        key: word(row.key).context("it has no key")?,
        payload: RawJson(Bytes::copy_from_slice(payload.as_bytes())),
        group_key: word(row.group_key),
        details: (details != Details::default()).then(|| Box::new(details)),
    })
}

fn word(value: Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text),
        other => Some(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_as_a_load_reads_them() {
        let plain = problem(r#"{"key": "a", "payload": {"big": 12345678901234567890, "exact": 1.10}}"#).expect("a row");
        assert!(plain.is_plain());
        assert_eq!(&plain.payload.0[..], br#"{"big": 12345678901234567890, "exact": 1.10}"#);
        let rich = r#"{"key": 7, "payload": null, "group_key": 3, "priority": 2, "deadline": "2027-01-01T00:00:00+00:00", "other": 1}"#;
        let rich = problem(rich);
        assert!(rich.is_err(), "SQL's null is no payload");
        let rich = r#"{"key": 7, "payload": 1, "group_key": 3, "priority": 2, "deadline": "2027-01-01T00:00:00+00:00", "other": 1}"#;
        let rich = problem(rich).expect("a row");
        assert_eq!((rich.key.as_str(), rich.group_key.as_deref()), ("7", Some("3")));
        let details = rich.details.expect("details");
        assert_eq!(details.priority, 2);
        assert!(details.deadline.is_some() && details.not_before.is_none());
        for wrong in
            [r#"{"payload": 1}"#, r#"{"key": null, "payload": 1}"#, r#"{"key": "a", "payload": 1, "priority": "x"}"#]
        {
            assert!(problem(wrong).is_err(), "{wrong}");
        }
    }
}
