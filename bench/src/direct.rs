//! What a department would write without PC Farm: one program that reads problems from PostgreSQL in chunks, solves them
//! on all cores with rayon and writes their results in bulk, durably, all three at once.

use crate::context::Database;
use crate::spin::Spin;
use anyhow::{Context, ensure};
use pcfarm_sql::json::RawJson;
use rayon::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::Client;

const SCHEMA: &str = "
    create schema direct;
    create table direct.problem (n bigint primary key, payload jsonb not null);
    create table direct.result (n bigint primary key, solution jsonb not null)";

/// Of the problems that a job has, in its order.
const LOAD: &str = "
    insert into direct.problem
    select row_number() over (order by p.batch_order, p.problem_id), p.payload
    from pcfarm.problem p where p.job_id = $1";

const READ: &str = "select n, payload from direct.problem where n > $1 and n <= $1 + $2 order by n";

/// As the farm does it, which is the quickest way known.
const STORE: &str = "
    insert into direct.result
    select r.n, r.solution::jsonb from (select unnest($1::bigint[]) as n, unnest($2::text[]) as solution) r";

/// Chunks between reading and solving, and between solving and writing: one in hand, one coming.
const AHEAD: usize = 2;

/// Problems and their numbers.
type Chunk = Vec<(i64, RawJson)>;

/// Copies a job's problems to where [`run`] finds them.
pub async fn load(client: &Client, job: pcfarm_proto::ids::JobId) -> anyhow::Result<()> {
    client.batch_execute(SCHEMA).await.context("making the direct run's tables")?;
    client.execute(LOAD, &[&job]).await.context("copying the job's problems")?;
    Ok(())
}

/// Solves all problems in chunks, on so many threads, and says how long it took.
pub async fn run(database: &Database, chunk: usize, threads: usize) -> anyhow::Result<Duration> {
    let threads = Arc::new(rayon::ThreadPoolBuilder::new().num_threads(threads).build().context("starting threads")?);
    let (reader, _reading) = database.connect().await?;
    let (writer, _writing) = database.connect().await?;
    let began = Instant::now();
    let (to_solve, solve_from) = mpsc::channel(AHEAD);
    let (to_write, write_from) = mpsc::channel(AHEAD);
    // One task: reading and writing wait for the database, solving for its threads. The first failure drops the others
    // with their channels.
    let (read, (), written) = tokio::try_join!(
        read(&reader, chunk, to_solve),
        solve(threads, solve_from, to_write),
        write(&writer, write_from)
    )?;
    ensure!(read == written, "{read} problems were read, {written} results written");
    Ok(began.elapsed())
}

async fn read(client: &Client, chunk: usize, to: mpsc::Sender<Chunk>) -> anyhow::Result<u64> {
    let statement = client.prepare(READ).await?;
    let chunk = chunk as i64;
    let mut read = 0_i64;
    loop {
        let rows = client.query(&statement, &[&read, &chunk]).await.context("reading problems")?;
        if rows.is_empty() {
            return Ok(read.unsigned_abs());
        }
        read += rows.len() as i64;
        let problems = rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
        let problems = problems.collect::<Result<Chunk, tokio_postgres::Error>>()?;
        to.send(problems).await.ok().context("solving has stopped")?;
    }
}

/// Up to two chunks at once, so that no thread is idle while the last problems of one are solved.
async fn solve(
    threads: Arc<rayon::ThreadPool>,
    mut from: mpsc::Receiver<Chunk>,
    to: mpsc::Sender<Chunk>,
) -> anyhow::Result<()> {
    let mut in_hand = VecDeque::new();
    loop {
        let next = if in_hand.len() < AHEAD { from.recv().await } else { None };
        if let Some(problems) = next {
            let (done, solved) = oneshot::channel();
            // The receiver is gone only when the run has failed already.
            threads.spawn(move || drop(done.send(solve_chunk(&problems))));
            in_hand.push_back(solved);
            if in_hand.len() < AHEAD {
                continue;
            }
        }
        let Some(solved) = in_hand.pop_front() else { return Ok(()) };
        let solved = solved.await.context("a solving thread was lost")??;
        to.send(solved).await.ok().context("writing has stopped")?;
    }
}

fn solve_chunk(problems: &Chunk) -> anyhow::Result<Chunk> {
    let solved = problems.par_iter().map(|(n, payload)| {
        let spin: Spin = serde_json::from_slice(&payload.0).context("a payload that is no spin")?;
        Ok((*n, RawJson(serde_json::to_vec(&spin.solve())?.into())))
    });
    solved.collect()
}

async fn write(client: &Client, mut from: mpsc::Receiver<Chunk>) -> anyhow::Result<u64> {
    let statement = client.prepare(STORE).await?;
    let mut written = 0;
    while let Some(solved) = from.recv().await {
        let (numbers, solutions): (Vec<i64>, Vec<RawJson>) = solved.into_iter().unzip();
        // One statement is one transaction.
        written += client.execute(&statement, &[&numbers, &solutions]).await.context("writing results")?;
    }
    Ok(written)
}
