//! A farm for one test: a database of its own, and real programs around it. Waits are polls with a deadline; when a
//! test fails, what the programs wrote is printed.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcfarm_proto::ids::JobId;
use pcfarm_sql::checks;
use pcfarm_sql::connect::{ConnectionTask, connect};
use pcfarm_sql::testing::{self, TestDatabase};
use rand::RngExt;
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Row};
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::program::Program;
use crate::truth;

/// Short, so that tests of what happens after it are.
pub const LEASE: Duration = Duration::from_secs(2);

/// For whatever should happen at once: generous, since tests share their machine.
pub const SOON: Duration = Duration::from_secs(20);

/// For a whole job of these tests.
pub const LONG: Duration = Duration::from_secs(75);

const POLL: Duration = Duration::from_millis(25);

/// A query that takes longer meets a database that stands still.
const QUERY_WAIT: Duration = Duration::from_secs(5);

/// Longest that accounts of millions of problems may take.
const ACCOUNT_WAIT: Duration = Duration::from_secs(900);

/// Lines of each log that a failed test prints.
const LOG_LINES: usize = 60;

/// Below what operating systems give to outgoing connections, so that a server finds its port free when it starts again.
const PORTS: std::ops::Range<u16> = 12_000..32_000;

/// A database and the programs around it.
pub struct Farm {
    url: String,
    config: Config,
    connection: Mutex<Option<(Client, ConnectionTask)>>,
    directory: TempDir,
    _database: Option<TestDatabase>,
}

/// A server, and where it listens.
#[derive(Debug)]
pub struct Server {
    pub program: Program,
    pub port: u16,
}

impl Farm {
    /// On a migrated database of its own.
    pub async fn new() -> Farm {
        Farm::of(testing::database().await)
    }

    /// On this database.
    pub fn of(database: TestDatabase) -> Farm {
        let (url, config) = (database.url(), database.config());
        Farm::with(url, config, Some(database))
    }

    /// Settings of another connection to its database.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// On a database that somebody else minds.
    pub fn at(url: String, config: Config) -> Farm {
        Farm::with(url, config, None)
    }

    /// The same, with its files under this directory.
    pub fn at_in(url: String, config: Config, directory: &Path) -> Farm {
        let directory = tempfile::Builder::new().prefix("farm-").tempdir_in(directory).expect("a directory");
        Farm { url, config, connection: Mutex::new(None), directory, _database: None }
    }

    fn with(url: String, config: Config, database: Option<TestDatabase>) -> Farm {
        let directory = tempfile::Builder::new().prefix("pcfarm-bench-").tempdir().expect("a temporary directory");
        Farm { url, config, connection: Mutex::new(None), directory, _database: database }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// A file or directory of this test's own.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    // Programs

    /// One of the project's programs, not started yet.
    pub fn program(&self, name: &str, executable: &str) -> Program {
        Program::new(name, &executable_path(executable), &self.path(&format!("{name}.log")))
    }

    /// A server, not started yet; later flags win.
    pub fn server(&self, name: &str, flags: &[&str]) -> Server {
        let port = free_port();
        let listen = format!("127.0.0.1:{port}");
        let lease = LEASE.as_secs().to_string();
        let mut arguments = vec!["--database-url", &self.url, "--listen", &listen, "--name", name];
        let mut defaults = vec![
            ("--http-listen", "none"),
            ("--lease", lease.as_str()),
            ("--heartbeat", "0.5"),
            ("--checkout-seconds", "1"),
            ("--pool-size", "13"),
            // Receivers of webhooks are on this machine.
            ("--webhook-networks", "127.0.0.0/8"),
        ];
        defaults.retain(|(flag, _)| !flags.contains(flag));
        arguments.extend(defaults.into_iter().flat_map(|(flag, value)| [flag, value]));
        arguments.extend(flags);
        Server { program: self.program(name, "pcfarm-server").arguments(arguments), port }
    }

    /// A server that answers.
    pub async fn serving(&self, name: &str, flags: &[&str]) -> Server {
        let mut server = self.server(name, flags);
        server.start().await;
        server
    }

    /// `fault-agent` with two cores, not started yet; it knows these servers.
    pub fn agent(&self, name: &str, servers: &[&Server]) -> Program {
        let servers: Vec<String> = servers.iter().map(|server| server.url()).collect();
        self.agent_of(name, &servers)
    }

    /// A fault-agent that knows these addresses, not started yet.
    pub fn agent_of(&self, name: &str, servers: &[String]) -> Program {
        self.program(name, "fault-agent")
            .arguments(["--server", &servers.join(","), "--cores", "2", "--hostname", name])
            .arguments(["--state-dir".as_ref(), self.path(&format!("{name}.state")).as_os_str()])
            .environment("FAULT_AGENT_JOURNAL", self.journal(name))
    }

    /// A running one.
    pub fn working(&self, name: &str, servers: &[&Server]) -> Program {
        let mut agent = self.agent(name, servers);
        agent.start();
        agent
    }

    fn journal(&self, agent: &str) -> PathBuf {
        self.path(&format!("{agent}.journal"))
    }

    /// How often an agent has noted this in its journal: began, solved, cancelled, poisoned.
    pub fn noted(&self, agent: &str, what: &str) -> usize {
        let journal = std::fs::read_to_string(self.journal(agent)).unwrap_or_default();
        journal.lines().filter(|line| line.split(' ').next() == Some(what)).count()
    }

    /// A recycler, not started yet.
    pub fn recycler(&self, name: &str, flags: &[&str]) -> Program {
        let lease = LEASE.as_secs().to_string();
        self.program(name, "pcfarm-recycler")
            .arguments(["--database-url", &self.url, "--lease", &lease])
            .arguments(flags)
    }

    // The database

    /// Runs a query on a connection that is made anew when it is lost.
    pub async fn try_query(&self, text: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, String> {
        let mut connection = self.connection.lock().await;
        let work = async {
            if connection.as_ref().is_none_or(|(client, _)| client.is_closed()) {
                *connection = Some(connect(&self.config).await.map_err(|error| format!("{error:?}"))?);
            }
            let (client, _) = connection.as_ref().expect("just made");
            client.query(text, parameters).await.map_err(|error| format!("{error:?}"))
        };
        match timeout(QUERY_WAIT, work).await {
            Ok(outcome) => outcome,
            Err(_) => {
                // Whatever it is doing, the next query shall not wait for it.
                *connection = None;
                Err(format!("no answer within {QUERY_WAIT:?}"))
            }
        }
    }

    pub async fn query(&self, text: &str, parameters: &[&(dyn ToSql + Sync)]) -> Vec<Row> {
        self.try_query(text, parameters).await.unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// One row of a query that reads whatever a long run has left, on a connection of its own.
    pub async fn account(&self, text: &str) -> Row {
        let (client, _connection) = connect(&self.config).await.expect("the database answers");
        client.batch_execute("set statement_timeout = 0; set work_mem = '256MB'").await.expect("settings");
        let row = timeout(ACCOUNT_WAIT, client.query_one(text, &[])).await;
        let row = row.unwrap_or_else(|_| panic!("{text}: no answer within {ACCOUNT_WAIT:?}"));
        row.unwrap_or_else(|error| panic!("{text}: {error:?}"))
    }

    /// Runs statements, for their effect.
    pub async fn run(&self, statements: &str) {
        let (client, _connection) = connect(&self.config).await.expect("the database answers");
        client.batch_execute(statements).await.unwrap_or_else(|error| panic!("{statements}: {error:?}"));
    }

    /// A query of one bigint.
    pub async fn number(&self, text: &str) -> i64 {
        self.query(text, &[]).await[0].get(0)
    }

    /// Polls until a query says true. The database may be away meanwhile.
    pub async fn until(&self, within: Duration, text: &str) {
        let deadline = Instant::now() + within;
        loop {
            let problem = match self.try_query(text, &[]).await {
                Ok(rows) if rows.first().and_then(|row| row.get::<_, Option<bool>>(0)) == Some(true) => return,
                Ok(_) => "is not true".to_owned(),
                Err(error) => error,
            };
            if Instant::now() > deadline {
                panic!("after {within:?}: {text} {problem}\n{}", self.state().await);
            }
            sleep(POLL).await;
        }
    }

    /// What a person would look at first: of thousands of jobs those that have not ended, and these last, where a log that
    /// was cut still has them.
    pub async fn state(&self) -> String {
        let mut state = String::new();
        for view in [
            "select to_jsonb(v) - 'controllers' - 'system' from pcfarm.workstation_status v limit 100",
            "select to_jsonb(v) from pcfarm.in_progress v order by checkout_id limit 10",
            "select to_jsonb(v) from pcfarm.queue_pointer v join pcfarm.job j on j.job_id = v.job_id
             order by j.ended_at nulls first, v.job_id, v.lane_id limit 20",
            "select to_jsonb(v) from pcfarm.job_progress v order by ended_at desc nulls last limit 20",
        ] {
            let text = format!("select v::text from ({view}) as v(v)");
            match self.try_query(&text, &[]).await {
                Ok(rows) => rows.iter().for_each(|row| state += &format!("{}\n", row.get::<_, &str>(0))),
                Err(error) => state += &format!("{error}\n"),
            }
        }
        state
    }

    // Jobs

    /// Makes a job type of that name.
    pub async fn job_type(&self, name: &str, controller: &str, options: Value) {
        self.query(
            "select pcfarm.create_job_type($1, $2, $3::text::jsonb)",
            &[&name, &controller, &options.to_string()],
        )
        .await;
    }

    /// Submits a job of what the query returns. The query has `i` to make keys and payloads of.
    pub async fn submit(&self, job_type: &str, query: &str, convoy: i32) -> JobId {
        let text = "select pcfarm.submit($1, $2, $3, $4)";
        self.query(text, &[&format!("{job_type} of this test"), &job_type, &query, &convoy]).await[0].get(0)
    }

    /// `count` problems that take so many milliseconds, in convoys.
    pub async fn submit_sleeps(&self, job_type: &str, count: i64, ms: i64, convoy: i32) -> JobId {
        self.submit(job_type, &sleeps(count, ms), convoy).await
    }

    /// Waits until a job has ended, and says how.
    pub async fn ended(&self, job: JobId, within: Duration) -> String {
        self.until(within, &format!("select ended_at is not null from pcfarm.job where job_id = {job}")).await;
        self.query("select state from pcfarm.job where job_id = $1", &[&job]).await[0].get(0)
    }

    /// Waits until so many of a job's problems have ended.
    pub async fn finished(&self, job: JobId, problems: i64, within: Duration) {
        let text = format!("select done + failed >= {problems} from pcfarm.job_progress where job_id = {job}");
        self.until(within, &text).await;
    }

    /// Done, failed, requeued.
    pub async fn progress(&self, job: JobId) -> (i64, i64, i64) {
        let text = "select done, failed, requeued from pcfarm.job_progress where job_id = $1";
        let row = &self.query(text, &[&job]).await[0];
        (row.get(0), row.get(1), row.get(2))
    }

    /// Checks everything that must be true, and that the digests of these jobs are right.
    pub async fn check(&self, jobs: &[JobId]) {
        let (client, _connection) = connect(&self.config).await.expect("the database answers");
        let mut found = truth::violations(&client).await.expect("the invariants are good SQL");
        for job in jobs {
            found.extend(truth::wrong_digests(&client, *job).await.expect("digests can be read"));
        }
        for (name, query) in checks::INVARIANTS {
            let text = format!("select to_jsonb(v)::text from ({query}\n) v limit 5");
            let rows = client.query(&text, &[]).await.expect("the invariants are good SQL");
            found.extend(rows.iter().map(|row| format!("{name}: {}", row.get::<_, &str>(0))));
        }
        assert!(found.is_empty(), "{}\n{}", found.join("\n"), self.state().await);
    }
}

/// The query for `count` problems that take so many milliseconds.
pub fn sleeps(count: i64, ms: i64) -> String {
    format!(
        "select 'problem ' || i as key, jsonb_build_object('n', i, 'ms', {ms}) as payload
         from generate_series(1, {count}) i"
    )
}

impl Server {
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Starts it and waits until it answers.
    pub async fn start(&mut self) {
        self.program.start();
        self.ready().await;
    }

    /// Waits until it answers.
    pub async fn ready(&mut self) {
        let deadline = Instant::now() + SOON;
        while !matches!(timeout(Duration::from_secs(1), self.healthy()).await, Ok(Ok(true))) {
            assert!(self.program.runs(), "{} has ended: {}", self.program.name, self.program.log());
            assert!(Instant::now() < deadline, "{} does not answer", self.program.name);
            sleep(POLL).await;
        }
    }

    /// Waits until it answers that it does not serve.
    pub async fn unwell(&mut self, within: Duration) {
        let deadline = Instant::now() + within;
        while !matches!(timeout(Duration::from_secs(1), self.healthy()).await, Ok(Ok(false))) {
            assert!(self.program.runs(), "{} has ended: {}", self.program.name, self.program.log());
            assert!(Instant::now() < deadline, "{} does not say that it is unwell", self.program.name);
            sleep(POLL).await;
        }
    }

    async fn healthy(&self) -> Result<bool, Box<dyn std::error::Error + Send + Sync>> {
        let channel = Endpoint::from_shared(self.url())?.connect().await?;
        let answer = HealthClient::new(channel).check(HealthCheckRequest { service: String::new() }).await?;
        Ok(answer.into_inner().status() == ServingStatus::Serving)
    }
}

/// Programs are beside the test's executable, or one directory up from it.
pub fn executable_path(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("a process knows its executable");
    let places = own.ancestors().skip(1).take(2).map(|directory| directory.join(name));
    let found = places.into_iter().find(|path| Path::is_file(path));
    found.unwrap_or_else(|| panic!("{name} is not built: cargo build --workspace"))
}

pub fn free_port() -> u16 {
    loop {
        let port = rand::rng().random_range(PORTS);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl Drop for Farm {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let Ok(entries) = std::fs::read_dir(self.directory.path()) else { return };
        let mut logs: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        logs.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
        logs.sort();
        for log in logs {
            let text =
                std::fs::read(&log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let name = log.file_stem().unwrap_or_default().to_string_lossy();
            eprintln!("-- {name}: the last of {} lines", lines.len());
            lines[lines.len().saturating_sub(LOG_LINES)..].iter().for_each(|line| eprintln!("{line}"));
        }
    }
}
