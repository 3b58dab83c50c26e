//! What the peers in Rust share: their command line, loading's and waiting's SQL, and the one line that they print.

use anyhow::{Context as _, ensure};
use std::time::{Duration, Instant};
use tokio_postgres::{Client, NoTls};

/// The part of the command line that is the same for every peer. Each adds its own settings, whose defaults are the best
/// that were found; the options are there for those who doubt it.
#[derive(Clone, Debug, clap::Args)]
pub struct Load {
    /// An existing and empty database.
    #[arg(long)]
    pub database_url: String,
    #[arg(long)]
    pub problems: u64,
    /// Of each problem's JSON.
    #[arg(long, default_value_t = 100)]
    pub payload_bytes: usize,
    #[arg(long, default_value_t = 1)]
    pub processes: u32,
}

impl Load {
    /// For peers whose one process already uses every core.
    pub fn one_process(&self) -> anyhow::Result<()> {
        ensure!(self.processes == 1, "this peer is driven by one process: leave --processes at 1");
        Ok(())
    }

    /// A JSON object of exactly the wanted length, if that is long enough for its number.
    pub fn payload(&self, number: u64) -> serde_json::Value {
        let bare = serde_json::json!({ "number": number, "filler": "" });
        let filler = self.payload_bytes.saturating_sub(bare.to_string().len());
        serde_json::json!({ "number": number, "filler": "x".repeat(filler) })
    }
}

/// What a run came to.
pub struct Outcome<'a> {
    pub peer: &'a str,
    pub version: &'a str,
    pub settings: String,
    pub load: &'a Load,
    pub loading: Duration,
    pub working: Duration,
}

impl Outcome<'_> {
    /// The one line on standard output.
    pub fn print(&self) {
        let line = serde_json::json!({
            "peer": self.peer,
            "version": self.version,
            "settings": self.settings,
            "problems": self.load.problems,
            "seconds": self.working.as_secs_f64(),
            "per_second": self.load.problems as f64 / self.working.as_secs_f64(),
            "load_seconds": self.loading.as_secs_f64(),
            "durable": true,
            "processes": self.load.processes,
        });
        println!("{line}");
    }
}

/// One connection, driven by a task that ends with it. Refuses a server that may lose what it acknowledged.
pub async fn connect(url: &str) -> anyhow::Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.context("connecting to the database")?;
    tokio::spawn(connection);
    for setting in ["fsync", "synchronous_commit", "full_page_writes"] {
        let value: String = client.query_one("select current_setting($1)", &[&setting]).await?.get(0);
        ensure!(value == "on", "{setting} is {value}: the figures are worth something only when it is on");
    }
    Ok(client)
}

/// Loading is not measured: what it leaves to be written or vacuumed must not be paid for by the workers.
pub async fn settle(client: &Client) -> anyhow::Result<()> {
    client.batch_execute("vacuum (analyze)").await.context("vacuuming")?;
    client.batch_execute("checkpoint").await.context("writing a checkpoint")
}

/// Waits for `done` to be true, asked every few milliseconds, and fails when it has not come to that in time. Returns when
/// the question was asked that was answered with yes: what it takes to answer is not the peer's time.
pub async fn wait_until(
    what: &str,
    patience: Duration,
    mut done: impl AsyncFnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<Instant> {
    let began = Instant::now();
    loop {
        let asked = Instant::now();
        if done().await? {
            return Ok(asked);
        }
        ensure!(began.elapsed() < patience, "after {patience:?} still waiting for {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
