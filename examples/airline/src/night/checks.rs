//! What must hold after the nights: each check is SQL that returns what is wrong.

use super::FarmRun;
use crate::statements;
use anyhow::{Context, Result};
use tokio_postgres::Client;

/// A promise and whether it was kept.
#[derive(Debug, Clone)]
pub struct Check {
    pub name: &'static str,
    /// What was found instead, if it was not.
    pub fault: Option<String>,
}

/// Problems of job $1 that did not end exactly once with a result of its own; $2 is how many there must be.
const ENDED_ONCE: &str = "
    select format('%s problems, %s done, %s results', count(*), count(*) filter (where p.state = 'done'),
        (select count(*) from pcfarm.result r where r.job_id = $1))
    from pcfarm.job_problems p where p.job_id = $1
    having count(*) <> $2 or count(*) filter (where p.state = 'done') <> $2
        or (select count(*) from pcfarm.result r where r.job_id = $1) <> $2
        or count(distinct p.problem_id) <> $2";

const REVOKED: &str = "
    select format('problem %s was accepted %s after its checkout %s was revoked', r.problem_id,
        r.accepted_at - c.ended_at, c.checkout_id)
    from pcfarm.result r join pcfarm.checkout c on c.checkout_id = r.checkout_id
    where c.ending = 'revoked' and r.accepted_at > c.ended_at and not r.failed limit 1";

const SPLIT: &str = "
    select format('checkouts %s and %s overlap', a.checkout_id, b.checkout_id)
    from pcfarm.checkout a join pcfarm.checkout b on a.job_id = b.job_id and a.lane_id = b.lane_id
        and a.checkout_id < b.checkout_id and a.from_order < b.to_order and b.from_order < a.to_order limit 1";

const COUNTS: &str = "
    select format('job %s counts %s done, its results are %s', p.job_id, p.done, n.n)
    from pcfarm.job_progress p
    cross join lateral (select count(*) as n from pcfarm.result r where r.job_id = p.job_id and not r.failed) n
    where p.job_id = any($1) and (p.done <> n.n or p.state <> 'done') limit 1";

const LEFT_OVER: &str = "select format('checkout %s is still live', checkout_id) from pcfarm.in_progress limit 1";

/// All of them.
pub async fn run(client: &Client, runs: &[&FarmRun]) -> Result<Vec<Check>> {
    let mut checks = Vec::new();
    let mut add = |name, fault: Option<String>| checks.push(Check { name, fault });
    for run in runs {
        let fault = first(client, ENDED_ONCE, &[&run.job_id, &run.problems]).await?;
        let name = match run.killed {
            Some(_) => "every problem of the night with the kill is done exactly once",
            None => "every problem of an undisturbed night is done exactly once",
        };
        add(name, fault);
    }
    let jobs: Vec<i64> = runs.iter().map(|run| run.job_id).collect();
    add("nothing was accepted from a revoked checkout", first(client, REVOKED, &[]).await?);
    add("no convoy was in two checkouts of a lane at once", first(client, SPLIT, &[]).await?);
    add("the kept counts equal the results", first(client, COUNTS, &[&jobs]).await?);
    add("nothing is left in progress", first(client, LEFT_OVER, &[]).await?);
    for run in ["night", "undisturbed", "direct"] {
        let rows = client.query(statements::CHECK_FORECASTS, &[&run]).await.context("checking the forecasts")?;
        let fault = rows.first().map(|row| format!("flight {}: {}", row.get::<_, i64>(0), row.get::<_, &str>(1)));
        add("every flight has its 110 forecasts", fault.map(|fault| format!("run {run}: {fault}")));
    }
    for run in ["night", "undisturbed"] {
        let rows = client.query(statements::CHECK_EQUAL, &[&run, &"direct"]).await.context("comparing runs")?;
        let fault = rows.first().map(|row| format!("run {run}: flight {} differs", row.get::<_, i64>(0)));
        add("the farm's plans equal the direct run's to the last bit", fault);
    }
    Ok(checks)
}

async fn first(
    client: &Client,
    query: &str,
    parameters: &[&(dyn tokio_postgres::types::ToSql + Sync)],
) -> Result<Option<String>> {
    let rows = client.query(query, parameters).await.context("running a check")?;
    Ok(rows.first().map(|row| row.get(0)))
}
