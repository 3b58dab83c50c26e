//! pgmq by its SQL functions. It has no worker of its own: here each of a few connections takes messages, looks at them
//! and deletes them, again and again.

use anyhow::{Context as _, ensure};
use clap::{Parser, ValueEnum};
use peer::{Load, Outcome, connect, settle};
use serde::Deserialize;
use std::time::Instant;
use tokio::task::JoinSet;
use tokio_postgres::types::Json;
use tokio_postgres::{Client, Row, Statement};

#[derive(Clone, Parser)]
struct Arguments {
    #[command(flatten)]
    load: Load,
    /// Messages at a time.
    #[arg(long, default_value_t = 100)]
    take: i32,
    #[arg(long, default_value_t = 4)]
    connections: usize,
    #[arg(long, value_enum, default_value_t = Mode::Transaction)]
    mode: Mode,
}

/// Each gives a message back when its worker dies before the deletion is committed.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// `read` in a transaction, `delete` in another, sent together with the next `read`.
    Lease,
    /// `read` and `delete` in one transaction.
    Transaction,
    /// `pop` in a transaction that is committed when the messages are handled.
    Pop,
}

#[derive(Deserialize)]
struct Problem {
    #[allow(dead_code)]
    number: u64,
}

const QUEUE: &str = "problems";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let load = &arguments.load;
    load.one_process()?;
    let client = connect(&load.database_url).await?;
    let version = install(&load.database_url).await.context("installing pgmq's SQL")?;
    client.execute("select pgmq.create($1)", &[&QUEUE]).await?;

    let began = Instant::now();
    for first in (0..load.problems).step_by(10_000) {
        let payloads: Vec<String> =
            (first..load.problems.min(first + 10_000)).map(|number| load.payload(number).to_string()).collect();
        client
            .query("select pgmq.send_batch($1, $2::text[]::jsonb[])", &[&QUEUE, &payloads])
            .await
            .context("sending")?;
    }
    settle(&client).await?;
    let loading = began.elapsed();

    let mut workers = Vec::new();
    for _ in 0..arguments.connections {
        workers.push(Worker::new(&arguments).await?);
    }
    let began = Instant::now();
    let mut running = JoinSet::new();
    for worker in workers {
        running.spawn(worker.run());
    }
    let mut handled = 0;
    while let Some(worker) = running.join_next().await {
        handled += worker?.context("working")?;
    }
    let working = began.elapsed();

    let left: i64 = client.query_one("select count(*) from pgmq.q_problems", &[]).await?.get(0);
    ensure!(left == 0, "{left} messages are left");
    ensure!(handled == load.problems, "{handled} messages were handled of {}", load.problems);
    let mode = match arguments.mode {
        Mode::Lease => "read in one transaction and delete(array) in another",
        Mode::Transaction => "read and delete(array) in one transaction",
        Mode::Pop => "pop in a transaction",
    };
    let settings = format!("{} a time, {mode}, {} connections", arguments.take, arguments.connections);
    Outcome { peer: "pgmq", version: &version, settings, load, loading, working }.print();
    Ok(())
}

/// The crate brings the SQL of the extension along.
async fn install(url: &str) -> anyhow::Result<String> {
    let pool = sqlx::PgPool::connect(url).await?;
    pgmq::install::install_sql_from_embedded(&pool).await?;
    let version = pgmq::install::installed_version(&pool).await?.context("no version is installed")?;
    pool.close().await;
    Ok(version.to_string())
}

struct Worker {
    client: Client,
    mode: Mode,
    take: i32,
    read: Statement,
    delete: Statement,
}

impl Worker {
    async fn new(arguments: &Arguments) -> anyhow::Result<Worker> {
        let client = connect(&arguments.load.database_url).await?;
        let read = client.prepare(match arguments.mode {
            Mode::Pop => "select msg_id, message from pgmq.pop($1, $2)",
            Mode::Lease | Mode::Transaction => "select msg_id, message from pgmq.read($1, 60, $2)",
        });
        let read = read.await?;
        // Counted, so that the identifiers do not travel back.
        let delete = client.prepare("select count(*) from pgmq.delete($1::text, $2::bigint[])").await?;
        Ok(Worker { client, mode: arguments.mode, take: arguments.take, read, delete })
    }

    /// Until nothing is left to take. Says how many messages it has handled.
    async fn run(self) -> anyhow::Result<u64> {
        match self.mode {
            Mode::Lease => self.lease().await,
            Mode::Transaction | Mode::Pop => self.transactions().await,
        }
    }

    async fn lease(&self) -> anyhow::Result<u64> {
        let mut handled = 0;
        let mut messages = self.read().await?;
        while !messages.is_empty() {
            let done = handle(&messages)?;
            let (deleted, next) = futures_util::try_join!(self.delete(&done), self.read())?;
            ensure!(deleted == done.len() as i64, "a message was deleted by another");
            handled += deleted as u64;
            messages = next;
        }
        Ok(handled)
    }

    async fn transactions(&self) -> anyhow::Result<u64> {
        let mut handled = 0;
        self.client.batch_execute("begin").await?;
        loop {
            let messages = self.read().await?;
            let done = handle(&messages)?;
            if self.mode == Mode::Transaction {
                self.delete(&done).await?;
            }
            // One round trip ends this transaction and begins the next.
            self.client.batch_execute("commit; begin").await?;
            handled += done.len() as u64;
            if done.is_empty() {
                return Ok(handled);
            }
        }
    }

    async fn read(&self) -> anyhow::Result<Vec<Row>> {
        Ok(self.client.query(&self.read, &[&QUEUE, &self.take]).await?)
    }

    async fn delete(&self, done: &[i64]) -> anyhow::Result<i64> {
        Ok(self.client.query_one(&self.delete, &[&QUEUE, &done]).await?.get(0))
    }
}

/// What a handler does at the least: it takes its payload apart.
fn handle(messages: &[Row]) -> anyhow::Result<Vec<i64>> {
    messages
        .iter()
        .map(|message| {
            let Json(Problem { .. }) = message.try_get(1)?;
            Ok(message.get(0))
        })
        .collect()
}
