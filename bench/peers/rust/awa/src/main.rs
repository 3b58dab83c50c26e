//! awa, on its queue-storage engine.

use anyhow::{Context as _, ensure};
use awa::{
    Client, InsertOpts, JobArgs, JobResult, PartitionedQueue, QueueConfig, QueueStorage, QueueStorageConfig,
    insert::params_with, migrations,
};
use clap::Parser;
use peer::{Load, Outcome, connect, settle, wait_until};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    load: Load,
    /// Handlers at a time, over all queues.
    #[arg(long, default_value_t = 1024)]
    concurrency: u32,
    #[arg(long, default_value_t = 2)]
    claimers: u16,
    #[arg(long, default_value_t = 512)]
    claim_batch: usize,
    #[arg(long, default_value_t = 4)]
    shards: i16,
    #[arg(long, default_value_t = 1)]
    stripes: usize,
    /// Physical queues behind the logical one.
    #[arg(long, default_value_t = 1)]
    partitions: usize,
    #[arg(long, default_value_t = 20)]
    connections: u32,
    #[arg(long, default_value_t = 0)]
    deadline_s: u64,
    #[arg(long, default_value_t = 1000)]
    rotate_ms: u64,
}

static HANDLED: AtomicU64 = AtomicU64::new(0);

#[derive(Deserialize, Serialize, JobArgs)]
struct Problem {
    number: u64,
    filler: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let load = &arguments.load;
    load.one_process()?;
    let client = connect(&load.database_url).await?;
    let pool = PgPoolOptions::new().max_connections(arguments.connections).connect(&load.database_url).await?;
    let queue = PartitionedQueue::new("problems", arguments.partitions)?;
    let config = QueueStorageConfig { queue_stripe_count: arguments.stripes, ..QueueStorageConfig::default() };
    let storage = QueueStorage::new(config.clone())?;
    install(&arguments, &pool, &queue, &storage).await.context("installing the schema")?;

    let began = Instant::now();
    enqueue(load, &pool, &queue, &storage).await.context("enqueueing")?;
    settle(&client).await?;
    let loading = began.elapsed();

    let rotate = Duration::from_millis(arguments.rotate_ms);
    let worker = Client::builder(pool.clone())
        .partitioned_queue(
            &queue,
            QueueConfig {
                max_workers: arguments.concurrency / arguments.partitions as u32,
                claimers: arguments.claimers,
                claim_batch_size: arguments.claim_batch,
                poll_interval: Duration::from_millis(10),
                deadline_duration: Duration::from_secs(arguments.deadline_s),
                ..QueueConfig::default()
            },
        )
        .queue_storage(config, rotate, rotate)
        .register::<Problem, _, _>(|_problem, _context| async {
            HANDLED.fetch_add(1, Ordering::Relaxed);
            Ok(JobResult::Completed)
        })
        .build()?;

    let began = Instant::now();
    worker.start().await.context("starting the worker")?;
    wait_until("the handlers", Duration::from_secs(900), async || Ok(HANDLED.load(Ordering::Relaxed) >= load.problems))
        .await?;
    let ended = wait_until("the last completion", Duration::from_secs(60), async || {
        Ok(client.query_one(COMPLETED, &[]).await?.get::<_, i64>(0) as u64 == load.problems)
    })
    .await?;
    let working = ended - began;

    let handled = HANDLED.load(Ordering::Relaxed);
    let mut left = 0;
    for physical in queue.physical_queues() {
        let counts = storage.queue_counts(&pool, physical).await?;
        left += counts.available + counts.running;
    }
    ensure!(left == 0, "{left} jobs are left");
    ensure!(handled == load.problems, "{handled} handlers ran for {} jobs", load.problems);
    Outcome {
        peer: "awa",
        version: "0.6.9",
        settings: format!(
            "queue storage, {} partitions, {} shards, {} claimers x {}, concurrency {}, polled every 10 ms, no deadline, rotation every {} ms, {} connections",
            arguments.partitions,
            arguments.shards,
            arguments.claimers,
            arguments.claim_batch,
            arguments.concurrency,
            arguments.rotate_ms,
            arguments.connections,
        ),
        load,
        loading,
        working,
    }
    .print();
    worker.shutdown(Duration::from_secs(1)).await;
    Ok(())
}

/// What the library's own exact count adds up for completed jobs, without its check of every job that is still there,
/// which takes seconds.
const COMPLETED: &str = "select (
        (select coalesce(sum(completed_count), 0) from awa.receipt_completion_batches)
        + (select count(*) from awa.done_entries where state = 'completed')
        + (select coalesce(sum(pruned_completed_count), 0) from awa.queue_terminal_rollups)
    )::int8";

async fn install(
    arguments: &Arguments,
    pool: &PgPool,
    queue: &PartitionedQueue,
    storage: &QueueStorage,
) -> anyhow::Result<()> {
    migrations::run(pool).await?;
    storage.install(pool).await?;
    for physical in queue.physical_queues() {
        sqlx::query(
            "insert into awa.queue_meta (queue, enqueue_shards) values ($1, $2)
            on conflict (queue) do update set enqueue_shards = excluded.enqueue_shards",
        )
        .bind(physical)
        .bind(arguments.shards)
        .execute(pool)
        .await?;
    }
    Ok(())
}

/// By COPY, the fastest way that the library has.
async fn enqueue(load: &Load, pool: &PgPool, queue: &PartitionedQueue, storage: &QueueStorage) -> anyhow::Result<()> {
    for (batch, first) in (0..load.problems).step_by(5_000).enumerate() {
        let options = queue.route_opts_by_index(InsertOpts::default(), batch);
        let jobs = (first..load.problems.min(first + 5_000))
            .map(|number| {
                params_with(&serde_json::from_value::<Problem>(load.payload(number))?, options.clone())
                    .map_err(anyhow::Error::from)
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        storage.enqueue_params_copy(pool, &jobs).await?;
    }
    Ok(())
}
