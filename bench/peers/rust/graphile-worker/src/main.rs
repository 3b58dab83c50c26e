//! graphile_worker, the port of graphile-worker to Rust.

use anyhow::{Context as _, ensure};
use clap::Parser;
use graphile_worker::tokio_postgres::TokioPostgresDatabase;
use graphile_worker::{IntoTaskHandlerResult, LocalQueueConfig, TaskHandler, Worker, WorkerContext, WorkerOptions};
use peer::{Load, Outcome, connect, settle, wait_until};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    load: Load,
    /// Handlers at a time.
    #[arg(long, default_value_t = 16)]
    concurrency: usize,
    /// Jobs that one fetch takes.
    #[arg(long, default_value_t = 5_000)]
    local_queue: usize,
    /// Fetchers side by side.
    #[arg(long, default_value_t = 2)]
    local_queues: usize,
    /// How long completions are gathered for one statement.
    #[arg(long, default_value_t = 5)]
    complete_delay_ms: u64,
    #[arg(long, default_value_t = 10)]
    connections: usize,
    #[arg(long, default_value_t = 1)]
    workers: usize,
    #[arg(long)]
    sqlx: bool,
    /// Times are the worker's, not the database's.
    #[arg(long)]
    local_time: bool,
    /// Hear of jobs by polling alone.
    #[arg(long)]
    no_notifications: bool,
    /// One of several processes: works from its first line on standard input until there is no more, and says how many
    /// handlers ran.
    #[arg(long, hide = true)]
    follows: bool,
}

/// Counted in a static: a lookup of the context's extensions for each job would cost more than the handler.
static HANDLED: AtomicU64 = AtomicU64::new(0);

/// The library parses all of the payload; the handler needs no more of it.
#[derive(Deserialize, Serialize)]
struct Problem {
    number: u64,
}

impl TaskHandler for Problem {
    const IDENTIFIER: &'static str = "problem";

    async fn run(self, _context: WorkerContext) -> impl IntoTaskHandlerResult {
        HANDLED.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let load = &arguments.load;
    if arguments.follows {
        return follow(&arguments).await;
    }
    let client = connect(&load.database_url).await?;

    let mut workers = Vec::new();
    for _ in 0..arguments.workers {
        workers.push(Arc::new(worker(&arguments).await?)); // the first installs the schema
    }

    let began = Instant::now();
    for first in (0..load.problems).step_by(10_000) {
        let payloads: Vec<String> =
            (first..load.problems.min(first + 10_000)).map(|number| load.payload(number).to_string()).collect();
        client.execute(LOAD, &[&payloads]).await.context("adding jobs")?;
    }
    settle(&client).await?;
    let loading = began.elapsed();

    let mut others = (1..load.processes).map(|_| Other::start()).collect::<anyhow::Result<Vec<_>>>()?;
    others.iter_mut().try_for_each(Other::ready)?;

    let began = Instant::now();
    others.iter_mut().try_for_each(Other::begin)?;
    let running: Vec<_> =
        workers.iter().cloned().map(|worker| tokio::spawn(async move { worker.run().await })).collect();
    if others.is_empty() {
        wait_until("the handlers", Duration::from_secs(600), async || {
            Ok(HANDLED.load(Ordering::Relaxed) >= load.problems)
        })
        .await?;
    }
    let ended = wait_until("the last completion", Duration::from_secs(600), async || {
        Ok(!client.query_one("select exists (select from graphile_worker._private_jobs)", &[]).await?.get::<_, bool>(0))
    })
    .await?;
    let working = ended - began;

    for worker in &workers {
        worker.request_shutdown();
    }
    for worker in running {
        worker.await?.context("running the worker")?;
    }
    let mut handled = HANDLED.load(Ordering::Relaxed);
    for other in others {
        handled += other.end()?;
    }
    ensure!(handled == load.problems, "{handled} handlers ran for {} jobs", load.problems);
    Outcome {
        peer: "graphile_worker (Rust)",
        version: "0.14.1",
        settings: format!(
            "local queue {} x {}, concurrency {}, completions gathered for {} ms, polled every 5 ms, {} connections",
            arguments.local_queues,
            arguments.local_queue,
            arguments.concurrency,
            arguments.complete_delay_ms,
            arguments.connections,
        ),
        load,
        loading,
        working,
    }
    .print();
    Ok(())
}

/// Another process of this program, with workers of its own.
struct Other {
    child: Child,
    /// Closed when it shall end.
    begins: Option<ChildStdin>,
    says: BufReader<ChildStdout>,
}

impl Other {
    fn start() -> anyhow::Result<Other> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(std::env::args_os().skip(1)).arg("--follows").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("starting another process")?;
        let (begins, says) = (child.stdin.take(), child.stdout.take().context("its standard output")?);
        Ok(Other { child, begins, says: BufReader::new(says) })
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        ensure!(self.says.read_line(&mut line)? > 0, "another process has ended");
        Ok(line.trim().to_owned())
    }

    fn ready(&mut self) -> anyhow::Result<()> {
        self.line().map(drop)
    }

    fn begin(&mut self) -> anyhow::Result<()> {
        let begins = self.begins.as_mut().context("its standard input")?;
        writeln!(begins).context("letting another process begin")
    }

    /// How many handlers ran there.
    fn end(mut self) -> anyhow::Result<u64> {
        drop(self.begins.take());
        let handled = self.line()?.parse().context("what another process says")?;
        ensure!(self.child.wait()?.success(), "another process failed");
        Ok(handled)
    }
}

async fn follow(arguments: &Arguments) -> anyhow::Result<()> {
    let mut workers = Vec::new();
    for _ in 0..arguments.workers {
        workers.push(Arc::new(worker(arguments).await?));
    }
    println!("ready");
    std::io::stdin().read_line(&mut String::new())?;
    let running: Vec<_> =
        workers.iter().cloned().map(|worker| tokio::spawn(async move { worker.run().await })).collect();
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
    workers.iter().for_each(|worker| worker.request_shutdown());
    for worker in running {
        worker.await?.context("running the worker")?;
    }
    println!("{}", HANDLED.load(Ordering::Relaxed));
    Ok(())
}

/// The function that the library itself calls to add many jobs.
const LOAD: &str = "select count(*) from graphile_worker.add_jobs(array(
    select ('problem', payload::json, null, null, null, null, null, null)::graphile_worker.job_spec
    from unnest($1::text[]) payload))";

async fn worker(arguments: &Arguments) -> anyhow::Result<Worker> {
    let options = WorkerOptions::default();
    let options = if arguments.sqlx {
        options.database_url(&arguments.load.database_url).max_pg_conn(arguments.connections as u32)
    } else {
        options.database(TokioPostgresDatabase::from_url(&arguments.load.database_url, arguments.connections)?)
    };
    options
        .concurrency(arguments.concurrency)
        .use_local_time(arguments.local_time)
        .use_notification_delivery(!arguments.no_notifications)
        .poll_interval(Duration::from_millis(5))
        .complete_job_batch_delay(Duration::from_millis(arguments.complete_delay_ms))
        .fail_job_batch_delay(Duration::from_millis(arguments.complete_delay_ms))
        .local_queue(
            LocalQueueConfig::builder().size(arguments.local_queue).queue_count(arguments.local_queues).build(),
        )
        .define_job::<Problem>()
        .init()
        .await
        .context("starting the worker")
}
