//! Peers that `bench/peers/setup` has installed, and what their programs print.

use crate::context::{Context, Database, repository};
use crate::report::Report;
use anyhow::{Context as _, bail, ensure};
use rustix::process::{Pid, Signal};
use serde::de::DeserializeOwned;
use std::process::{Output, Stdio};
use std::time::Duration;
use tokio::process::Command;

/// Building and installing all of them, the first time.
const LONGEST_SETUP: Duration = Duration::from_secs(3600);

/// One run of one peer, its loading included.
const LONGEST_RUN: Duration = Duration::from_secs(1200);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Queues,
    /// Of queues, the programs that measure one job at a time.
    Latency,
    Schedulers,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    pub name: String,
    command: Vec<String>,
}

/// Those of a kind that this machine lets be installed; of the others the report says why not.
pub async fn set_up(kind: Kind, report: &mut Report) -> anyhow::Result<Vec<Installed>> {
    let program = repository().join("bench/peers/setup");
    let kind = match kind {
        Kind::Queues => "queues",
        Kind::Latency => "latency",
        Kind::Schedulers => "schedulers",
    };
    let mut command = Command::new(&program);
    command.arg(kind).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = tokio::time::timeout(LONGEST_SETUP, output_of(command))
        .await
        .with_context(|| format!("{} took longer than {LONGEST_SETUP:?}", program.display()))?
        .with_context(|| format!("running {}", program.display()))?;
    ensure!(output.status.success(), "{} ended with {}", program.display(), output.status);
    let text = String::from_utf8(output.stdout).context("reading what setup says")?;
    let mut peers = Vec::new();
    for line in text.lines() {
        match parse(line)? {
            Ok(peer) => peers.push(peer),
            Err((name, why)) => report.skip(name, why),
        }
    }
    Ok(peers)
}

/// Runs it in a process group of its own, of which nothing is left afterwards, or when nobody waits any longer.
async fn output_of(mut command: Command) -> std::io::Result<Output> {
    let child = command.stdout(Stdio::piped()).process_group(0).spawn()?;
    let _group = Group(child.id().and_then(|id| Pid::from_raw(id.cast_signed())));
    child.wait_with_output().await
}

/// Killed when it is dropped: what is left of it would be measured beside.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // Most often nothing is left to be killed.
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
    }
}

/// A line of `setup`: a peer, or the name of one that is skipped and why.
fn parse(line: &str) -> anyhow::Result<Result<Installed, (&str, &str)>> {
    let mut parts = line.splitn(3, ' ');
    let (Some(verdict), Some(name), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
        bail!("setup said {line:?}");
    };
    match verdict {
        "ok" => {
            let command = rest.split_whitespace().map(str::to_owned).collect();
            Ok(Ok(Installed { name: name.to_owned(), command }))
        }
        "skipped" => Ok(Err((name, rest))),
        _ => bail!("setup said {line:?}"),
    }
}

impl Installed {
    /// Runs it on an empty database. Returns the line that it prints, of JSON.
    pub async fn run<T: DeserializeOwned>(&self, context: &Context, arguments: &[&str]) -> anyhow::Result<T> {
        let (program, own) = self.command.split_first().context("setup gave no command")?;
        let database = context.empty_database().await?;
        let mut command = Command::new(program);
        command.args(own).args(["--database-url", &database.url]).args(arguments).stdin(Stdio::null());
        command.stderr(Stdio::piped());
        let output = tokio::time::timeout(LONGEST_RUN, output_of(command)).await;
        let weakened = weakened(&database).await;
        context.drop_database(database).await?;
        let Output { status, stdout, stderr } =
            output.with_context(|| format!("it took longer than {LONGEST_RUN:?}"))??;
        let said = String::from_utf8_lossy(&stderr);
        let last = said.trim().lines().next_back().unwrap_or("nothing on standard error");
        ensure!(status.success(), "{status}: {last}");
        if let Some(weakened) = weakened? {
            bail!("what it stores is not durable, which would be no comparison: {weakened}");
        }
        serde_json::from_slice(&stdout).context("reading its line")
    }
}

/// What a peer has left in its database that a crash could take more from than PostgreSQL's settings say.
async fn weakened(database: &Database) -> anyhow::Result<Option<String>> {
    let (client, _connection) = database.connect().await?;
    let text = "
        select string_agg(what, ', ')
        from (
            -- An empty one had nothing to lose, as pgmq's for notifications that are held back.
            select 'table ' || c.oid::regclass || ' is not logged' as what from pg_class c
            where c.relpersistence = 'u' and c.relkind = 'r' and pg_relation_size(c.oid) > 0
            union all
            select 'a role or this database has ' || array_to_string(s.setconfig, ' ') from pg_db_role_setting s
            where array_to_string(s.setconfig, ' ') ~ 'synchronous_commit=(off|local)'
                and s.setdatabase in (0, (select d.oid from pg_database d where d.datname = current_database()))
            union all
            select 'function ' || p.oid::regprocedure || ' is about synchronous_commit' from pg_proc p
            where p.pronamespace <> 'pg_catalog'::regnamespace
                and (array_to_string(p.proconfig, ' ') ~ 'synchronous_commit' or p.prosrc ~* 'synchronous_commit')) w";
    Ok(client.query_one(text, &[]).await.context("looking at what a peer has left")?.get(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags};

    #[tokio::test]
    async fn nothing_is_left_of_what_takes_too_long() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("alive");
        let mut command = Command::new("sh");
        // Whoever holds the pipe open lives; the child of the shell does after the shell itself is gone.
        command.args(["-c", "mkfifo \"$0\"; { exec 3<>\"$0\"; echo >&3; sleep 600; } & wait"]).arg(&fifo);
        let waiting = tokio::time::timeout(Duration::from_secs(2), output_of(command)).await;
        assert!(waiting.is_err());
        // Without anybody at the other end it cannot be opened for writing.
        let writable = || rustix::fs::open(&fifo, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()).is_ok();
        let began = std::time::Instant::now();
        while writable() {
            assert!(began.elapsed() < Duration::from_secs(20), "a child of what was given up lives on");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[test]
    fn setup_is_understood() {
        let peer = parse("ok pgmq-pop-100 /a/peer-pgmq --take 100").unwrap().unwrap();
        assert_eq!(peer.name, "pgmq-pop-100");
        assert_eq!(peer.command, ["/a/peer-pgmq", "--take", "100"]);
        assert_eq!(
            parse("skipped celery redis-server is not installed").unwrap().unwrap_err().1,
            "redis-server is not installed"
        );
        for wrong in ["ok pgmq-pop-100", "perhaps dask /a"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
