//! The limit: a queue pointer in SQL and nothing around it. Clients on the database take the next range, read its
//! problems and send results for all of them, each a statement that commits durably by itself: in one transaction they would
//! wait for each other at the pointer. No membership, no attempts, no counts, no leases, no workstations,
//! no convoys: what a durable queue could do on this machine if it had to promise nothing.

use crate::context::Database;
use crate::usage;
use anyhow::{Context, ensure};
use bytes::Bytes;
use pcfarm_sql::connect::ConnectionTask;
use pcfarm_sql::json::RawJson;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio_postgres::Client;

const SCHEMA: &str = "
    create table pointer (job_id bigint primary key, next bigint not null);
    create table problem (job_id bigint, batch_order bigint, payload jsonb not null, primary key (job_id, batch_order));
    create table result (job_id bigint, batch_order bigint, solution jsonb not null, primary key (job_id, batch_order));
    insert into pointer values (1, 0)";

const LOAD: &str =
    "insert into problem select 1, n, public.pcfarm_payload(n) from generate_series(0, $1::bigint - 1) n";

const TAKE: &str = "
    with taken as (update pointer set next = next + $1 where job_id = 1 returning next - $1 as first)
    select first from taken";

/// The same, as a queue may that finds out after a crash what nobody holds: who takes does not wait for the disk.
const TAKE_ASYNCHRONOUSLY: &str = "
    with taken as (update pointer set next = next + $1 where job_id = 1 returning next - $1 as first)
    select first, set_config('synchronous_commit', 'off', true) from taken";

const READ: &str = "
    select batch_order, payload from problem
    where job_id = 1 and batch_order >= $1 and batch_order < $1 + $2 order by batch_order";

const STORE: &str = "
    insert into result
    select 1, r.batch_order, r.solution::jsonb from (select unnest($1::bigint[]) as batch_order, unnest($2::text[]) as solution) r";

/// A payload whose jsonb has about 100 bytes.
pub const PAYLOAD: &str = "
    create function public.pcfarm_payload(n bigint) returns jsonb immutable language sql as
    $$ select jsonb_build_object('n', n, 'text', rpad(md5(n::text), 64, 'x')) $$";

/// Loads that many problems.
pub async fn load(database: &Database, problems: u64) -> anyhow::Result<()> {
    let (client, _connection) = database.connect().await?;
    client.batch_execute(&format!("{SCHEMA}; {PAYLOAD}")).await.context("making the limit's tables")?;
    client.execute(LOAD, &[&(problems as i64)]).await.context("loading the limit's problems")?;
    Ok(())
}

/// What it took.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    pub time: Duration,
    /// Of PostgreSQL, on the cores.
    pub cpu: Duration,
}

impl Took {
    pub fn per_second(&self, problems: u64) -> f64 {
        problems as f64 / self.time.as_secs_f64()
    }
}

/// How problems are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taking {
    pub at_once: u32,
    pub connections: usize,
    /// The pointer's new place is on disk before its problems are read. Results always are.
    pub durably: bool,
}

/// Takes the problems, and measures all but the first ones.
pub async fn run(
    database: &Database,
    postmaster: u32,
    (warm_up, problems): (u64, u64),
    taking: Taking,
) -> anyhow::Result<Took> {
    let mut clients = Vec::new();
    for _ in 0..taking.connections {
        clients.push(database.connect().await?);
    }
    take_until(&mut clients, warm_up, taking).await?;
    let cpu = usage::of_family(postmaster).cpu;
    let began = Instant::now();
    take_until(&mut clients, warm_up + problems, taking).await?;
    let took = Took { time: began.elapsed(), cpu: usage::of_family(postmaster).cpu.saturating_sub(cpu) };
    let (client, _connection) = database.connect().await?;
    let stored: i64 = client.query_one("select count(*) from result", &[]).await?.get(0);
    ensure!(stored as u64 >= warm_up + problems, "the limit stored {stored} results");
    for statement in ["truncate result", "update pointer set next = 0", "vacuum pointer", "checkpoint"] {
        client.batch_execute(statement).await?;
    }
    Ok(took)
}

/// The clients come back, as a backend that has ended is not counted any more.
async fn take_until(clients: &mut Vec<(Client, ConnectionTask)>, problems: u64, taking: Taking) -> anyhow::Result<()> {
    let mut tasks = JoinSet::new();
    for (client, connection) in clients.drain(..) {
        tasks.spawn(async move {
            take(&client, problems, taking).await?;
            anyhow::Ok((client, connection))
        });
    }
    while let Some(ended) = tasks.join_next().await {
        clients.push(ended.context("a client of the limit panicked")??);
    }
    Ok(())
}

async fn take(client: &Client, problems: u64, taking: Taking) -> anyhow::Result<()> {
    let at_once = i64::from(taking.at_once);
    let take = client.prepare(if taking.durably { TAKE } else { TAKE_ASYNCHRONOUSLY }).await?;
    let (read, store) = (client.prepare(READ).await?, client.prepare(STORE).await?);
    while {
        let first: i64 = client.query_one(&take, &[&at_once]).await?.get(0);
        let rows = client.query(&read, &[&first, &at_once]).await?;
        let orders: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        // The solution is the payload, copied as a client would write one.
        let solutions: Vec<RawJson> =
            rows.iter().map(|row| RawJson(Bytes::copy_from_slice(&row.get::<_, RawJson>(1).0))).collect();
        client.execute(&store, &[&orders, &solutions]).await?;
        first + at_once < problems as i64
    } {}
    Ok(())
}
