//! graphile_worker, one job at a time: from the call that adds it to the start of its handler, and to the answer to the
//! statement that completes it.

use anyhow::{Context as _, bail};
use clap::Parser;
use graphile_worker::tokio_postgres::TokioPostgresDatabase;
use graphile_worker::{
    IntoTaskHandlerResult, JobComplete, LocalQueueConfig, TaskHandler, Worker, WorkerContext, WorkerOptions,
};
use peer::{Load, connect};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    load: Load,
    /// From a job's completion to the next one's addition.
    #[arg(long, default_value_t = 0)]
    rest_ms: u64,
    #[arg(long, default_value_t = 1)]
    concurrency: usize,
    /// Jobs that one fetch takes into a local queue; 0 for none.
    #[arg(long, default_value_t = 0)]
    local_queue: usize,
    #[arg(long, default_value_t = 1_000)]
    poll_interval_ms: u64,
    #[arg(long, default_value_t = 10)]
    connections: usize,
    /// Through sqlx, or else through tokio-postgres.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    sqlx: bool,
}

const WARMING: u64 = 100;

/// A static, as nothing else is looked up for a job.
static STARTED: OnceLock<UnboundedSender<Instant>> = OnceLock::new();

#[derive(Deserialize, Serialize)]
struct Problem {
    number: u64,
    filler: String,
}

impl TaskHandler for Problem {
    const IDENTIFIER: &'static str = "problem";

    async fn run(self, _context: WorkerContext) -> impl IntoTaskHandlerResult {
        let _ = STARTED.get().expect("it is set before the worker runs").send(Instant::now());
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let load = &arguments.load;
    load.one_process()?;
    let client = connect(&load.database_url).await?;
    let (started, mut starts) = unbounded_channel();
    STARTED.set(started).expect("it is set here alone");
    let (completed, mut completions) = unbounded_channel();
    let worker = Arc::new(worker(&arguments, completed).await?);
    let mut running = tokio::spawn({
        let worker = worker.clone();
        async move { worker.run().await }
    });

    let add = client.prepare("select graphile_worker.add_job('problem', $1::json)").await?;
    let (mut to_start, mut to_completion) = (Vec::new(), Vec::new());
    for number in 0..WARMING + load.problems {
        let payload = load.payload(number);
        let began = Instant::now();
        client.execute(&add, &[&payload]).await.context("adding a job")?;
        let mut next = async || {
            let started = starts.recv().await.context("the worker has stopped")?;
            anyhow::Ok((started, completions.recv().await.context("the worker has stopped")?))
        };
        let (started, completed): (Instant, Instant) = tokio::select! {
            ended = &mut running => bail!("the worker has stopped: {:?}", ended?),
            both = tokio::time::timeout(Duration::from_secs(10), next()) => both.context("no job was completed for ten seconds")??,
        };
        if number >= WARMING {
            to_start.push((started - began).as_secs_f64() * 1e3);
            to_completion.push((completed - began).as_secs_f64() * 1e3);
        }
        if arguments.rest_ms > 0 {
            tokio::time::sleep(Duration::from_millis(arguments.rest_ms)).await;
        }
    }
    worker.request_shutdown();
    running.await?.context("running the worker")?;
    let line = serde_json::json!({
        "peer": "graphile_worker (Rust)",
        "version": "0.14.1",
        "settings": format!(
            "local queue {}, concurrency {}, polled every {} ms beside being notified, {} connections, {}",
            arguments.local_queue,
            arguments.concurrency,
            arguments.poll_interval_ms,
            arguments.connections,
            if arguments.sqlx { "sqlx" } else { "tokio-postgres" },
        ),
        "started_ms": to_start,
        "completed_ms": to_completion,
    });
    println!("{line}");
    Ok(())
}

async fn worker(arguments: &Arguments, completed: UnboundedSender<Instant>) -> anyhow::Result<Worker> {
    let options = WorkerOptions::default();
    let options = if arguments.sqlx {
        options.database_url(&arguments.load.database_url).max_pg_conn(arguments.connections as u32)
    } else {
        options.database(TokioPostgresDatabase::from_url(&arguments.load.database_url, arguments.connections)?)
    };
    let options = match arguments.local_queue {
        0 => options,
        size => options.local_queue(LocalQueueConfig::builder().size(size).build()),
    };
    options
        .concurrency(arguments.concurrency)
        .poll_interval(Duration::from_millis(arguments.poll_interval_ms))
        .define_job::<Problem>()
        .on(JobComplete, move |_context| {
            let completed = completed.clone();
            async move {
                let _ = completed.send(Instant::now());
            }
        })
        .init()
        .await
        .context("starting the worker")
}
