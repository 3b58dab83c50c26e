//! A whole farm for a test: a database of its own, the real server, real agents.

pub mod http;
pub mod line;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use pcfarm_sql::testing::{TestDatabase, database};
use serde_json::Value;
use tempfile::TempDir;
use tokio_postgres::Client;

/// For anything that takes a moment, on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(30);
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Ends with the test: agents first, then the server, then its database.
pub struct Farm {
    agents: Vec<Running>,
    pub server: Running,
    pub url: String,
    /// Of REST.
    pub rest: String,
    /// The test's own eyes.
    pub sql: Client,
    pub database: TestDatabase,
    pub directory: TempDir,
    extra: Extra,
}

/// What a farm's servers are told beside the usual.
#[derive(Clone, Default)]
pub struct Extra {
    pub flags: Vec<String>,
    pub environment: Vec<(String, String)>,
    /// Where servers find the database, if not at its socket.
    pub database_url: Option<String>,
}

/// A program that is killed when nobody holds it any more.
pub struct Running(pub Child);

impl Running {
    pub fn runs(&mut self) -> bool {
        self.0.try_wait().is_ok_and(|ended| ended.is_none())
    }

    /// Most memory that it has had so far: bytes.
    pub fn peak(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM")?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kib << 10)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended
        let _ = self.0.wait();
    }
}

impl Farm {
    /// With job types `echo`, `nap` and `fail`, and no agent yet.
    pub async fn start() -> Result<Farm> {
        Farm::start_with(Extra::default()).await
    }

    pub async fn start_with(extra: Extra) -> Result<Farm> {
        Farm::start_on(database().await, extra).await
    }

    /// On this database.
    pub async fn start_on(database: TestDatabase, extra: Extra) -> Result<Farm> {
        let command = server_of(&database, &extra)?;
        let (server, address, rest) = tokio::task::spawn_blocking(move || start_server(command)).await??;
        let sql = database.client().await;
        sql.batch_execute(
            "select pcfarm.create_job_type('echo', 'echo', '{}');
             select pcfarm.create_job_type('nap', 'sleep', '{}');
             select pcfarm.create_job_type('fail', 'fail', '{\"max_attempts\": 1}')",
        )
        .await?;
        let url = format!("http://{address}");
        Ok(Farm {
            agents: Vec::new(),
            server,
            url,
            rest: format!("http://{rest}"),
            sql,
            database,
            directory: tempfile::tempdir()?,
            extra,
        })
    }

    /// Another server on the same database, in place of one that has gone.
    pub async fn start_server_again(&mut self) -> Result<()> {
        let command = server_of(&self.database, &self.extra)?;
        let (server, address, rest) = tokio::task::spawn_blocking(move || start_server(command)).await??;
        (self.server, self.url, self.rest) = (server, format!("http://{address}"), format!("http://{rest}"));
        Ok(())
    }

    /// Comes back when the farm knows the agent.
    pub async fn with_agent(mut self) -> Result<Farm> {
        let state = self.directory.path().join("agent");
        std::fs::create_dir_all(&state)?;
        let log = std::fs::File::create(self.directory.path().join("agent.log"))?;
        let mut command = program("pcfarm-worker")?;
        command.args(["--server", &self.url, "--cores", "2", "--hostname", "pc1", "--state-dir"]).arg(state);
        self.agents.push(Running(command.stdout(Stdio::null()).stderr(log).spawn()?));
        self.until("select count(*) from pcfarm.workstation where hostname = 'pc1'", 1).await?;
        Ok(self)
    }

    pub fn kill_agents(&mut self) {
        self.agents.clear();
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pcfarm"));
        without_settings(&mut command);
        command.args(arguments).stdin(Stdio::null()).env("PCFARM_SERVER", &self.url);
        command
    }

    /// Runs the program to its end, off this runtime's threads.
    pub async fn run(&self, line: &str) -> Result<Ran> {
        self.run_all(&line.split_whitespace().collect::<Vec<_>>()).await
    }

    /// For arguments with spaces.
    pub async fn run_all(&self, arguments: &[&str]) -> Result<Ran> {
        let mut command = self.command(arguments);
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        Ok(Ran::from(output))
    }

    /// What it says, when it must end with this code.
    pub async fn ends(&self, code: i32, line: &str) -> Result<String> {
        let ran = self.run(line).await?;
        ensure!(ran.code == Some(code), "{line}: {code} expected of {ran:?}");
        Ok(if code == 0 { ran.stdout } else { ran.stderr })
    }

    /// One document, with what programs rely on.
    pub async fn json(&self, line: &str) -> Result<Value> {
        let ran = self.run(&format!("{line} --output json")).await?;
        let document: Value = serde_json::from_str(&ran.stdout).with_context(|| format!("{line}: {ran:?}"))?;
        ensure!(document.is_object(), "{line}: {document}");
        ids_are_strings(&document).with_context(|| line.to_owned())?;
        Ok(document)
    }

    /// A file of a load.
    pub fn file(&self, name: &str, text: impl AsRef<[u8]>) -> Result<String> {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text)?;
        Ok(path.to_string_lossy().into_owned())
    }

    pub async fn number(&self, query: &str) -> Result<i64> {
        Ok(self.sql.query_one(query, &[]).await.context(query.to_owned())?.try_get(0)?)
    }

    /// Waits for a query's number.
    pub async fn until(&self, query: &str, expected: i64) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.number(query).await?;
            if found == expected {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{query} stays at {found}, and not {expected}");
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    }

    /// Waits until an upload is in the middle of its transaction.
    pub async fn until_uploading(&self) -> Result<()> {
        let query = "select count(*) from pg_stat_activity where datname = current_database() \
             and application_name = 'pcfarm-server' and state = 'idle in transaction' \
             and xact_start < clock_timestamp() - interval '50 ms'";
        self.until(query, 1).await
    }

    /// Waits until the server has no transaction open, so that what an upload did is done or undone.
    pub async fn until_no_upload(&self) -> Result<()> {
        let query = "select count(*) from pg_stat_activity where datname = current_database() \
             and application_name = 'pcfarm-server' and xact_start is not null";
        self.until(query, 0).await
    }

    /// Everything that a load could leave behind.
    pub async fn loaded(&self) -> Result<(i64, i64, i64)> {
        let row = "select (select count(*) from pcfarm.job), (select count(*) from pcfarm.problem), \
             (select count(*) from pcfarm.lane)";
        let row = self.sql.query_one(row, &[]).await?;
        Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))
    }

    /// What was loaded last into a job, and how.
    pub async fn newest_lane(&self, job_id: i64) -> Result<String> {
        let row = "select format('%s %s %s %s', l.grouped, l.next_insertion, l.problems, array_agg(
                 (p.batch_order, p.problem_id - l.lane_id * 10000000000, p.key, p.payload) order by p.problem_id))
             from pcfarm.lane l join pcfarm.problem p using (job_id, lane_id)
             where l.job_id = $1 group by l.job_id, l.lane_id order by l.lane_id desc limit 1";
        Ok(self.sql.query_one(row, &[&job_id]).await?.try_get(0)?)
    }
}

#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Ends a program as a service manager does.
pub fn terminate(child: &Child) -> Result<()> {
    ensure!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status()?.success());
    Ok(())
}

/// Its end, or an error when that takes too long.
pub async fn ended_within(child: &mut Child, limit: Duration) -> Result<Option<i32>> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code());
        }
        ensure!(Instant::now() < deadline, "still running after {limit:?}");
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
}

/// A program of the workspace: beside this test, in the profile's folder.
pub fn program(name: &str) -> Result<Command> {
    let test = std::env::current_exe()?;
    let path: PathBuf = test.ancestors().nth(2).context("a test lies in deps")?.join(name);
    if !path.is_file() {
        bail!("{} is missing: run `cargo build --workspace` first, with this test's profile", path.display());
    }
    let mut command = Command::new(path);
    without_settings(&mut command);
    command.stdin(Stdio::null());
    Ok(command)
}

/// Nothing of the environment's may change what a test sees.
fn without_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["PCFARM_", "AWS_", "XDG_", "PG", "DATABASE_URL", "RUST_LOG"].iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    // Nobody sits here: agents are to work.
    command.env("HOME", "/nowhere").env("NO_COLOR", "1").env("PCFARM_UNATTENDED", "true");
}

pub fn server_of(database: &TestDatabase, extra: &Extra) -> Result<Command> {
    let mut command = program("pcfarm-server")?;
    let url = extra.database_url.clone().unwrap_or_else(|| database.url());
    command.args(["--database-url", &url, "--listen", "127.0.0.1:0", "--heartbeat", "1s"]);
    command.args(&extra.flags).envs(extra.environment.iter().cloned());
    Ok(command)
}

/// Reads the address from the log, and then the rest of it, lest the server's standard error fill.
fn start_server(mut command: Command) -> Result<(Running, String, String)> {
    let mut server = Running(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?);
    let log = BufReader::new(server.0.stderr.take().context("it is a pipe")?);
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        for line in log.lines().map_while(Result::ok) {
            let _ = tell.send(line); // nobody listens once the address is known
        }
    });
    let (mut seen, mut http) = (String::new(), String::new());
    let first = |rest: &str| rest.split(' ').next().unwrap_or(rest).to_owned();
    let deadline = Instant::now() + PATIENCE;
    while let Ok(line) = told.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        if let Some((_, rest)) = line.split_once("serving address=") {
            return Ok((server, first(rest), http));
        }
        if let Some((_, rest)) = line.split_once("REST address=") {
            http = first(rest);
        }
        seen.push_str(&line);
        seen.push('\n');
    }
    bail!("the server does not serve; if it is older than this test, run `cargo build --workspace` first:\n{seen}")
}

fn ids_are_strings(value: &Value) -> Result<()> {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let is_id = name.ends_with("_id") || name.ends_with("_order") || name.starts_with("next_");
                ensure!(!is_id || field.is_string() || field.is_null(), "{name}: {field}");
                ids_are_strings(field)?;
            }
        }
        Value::Array(all) => all.iter().try_for_each(ids_are_strings)?,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    Ok(())
}
