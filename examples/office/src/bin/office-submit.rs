//! Submits a CSV file of enrolments, through the queue or, to compare with, without it. Prints what it did as JSON.

use anyhow::Context;
use clap::{Parser, Subcommand};
use pcfarm_office::submit;
use serde_json::{Value, json};
use std::path::PathBuf;
use tokio_postgres::{Client, Config, NoTls};

#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    /// Where schemas office and pcfarm are
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database_url: Config,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Put a file into the queue, and return
    Queued {
        file: PathBuf,
        /// Who is mailed what became of it
        #[arg(long, value_name = "ADDRESS", default_value = "office@example.org")]
        submitter: String,
    },
    /// Enrol every line here and now
    Direct { file: PathBuf },
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let Arguments { database_url, command } = Arguments::parse();
    let (mut client, connection) = database_url.connect(NoTls).await.context("connecting to PostgreSQL")?;
    let work = async {
        let done = done(&mut client, &command).await;
        drop(client);
        done
    };
    let (done, connection) = tokio::join!(work, connection);
    let mut done = done?;
    connection.context("leaving PostgreSQL")?;
    done["peak_memory_kib"] = json!(peak_memory_kib());
    println!("{done}");
    Ok(())
}

async fn done(client: &mut Client, command: &Command) -> anyhow::Result<Value> {
    Ok(match command {
        Command::Queued { file, submitter } => serde_json::to_value(submit::queued(client, file, submitter).await?)?,
        Command::Direct { file } => serde_json::to_value(submit::direct(client, file).await?)?,
    })
}

/// The most that this process ever had in memory, where Linux tells.
fn peak_memory_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}
