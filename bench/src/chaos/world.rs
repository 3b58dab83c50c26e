//! A whole farm for the harness to hurt: PostgreSQL, servers, agents, recyclers, light agents, clients, and a link that
//! can be disturbed wherever two of them talk.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use pcfarm_proto::v1;
use pcfarm_proto::v1::problem_result::Outcome;
use pcfarm_sql::cluster::{Cluster, ClusterOptions};
use pcfarm_sql::connect::{ConnectionTask, connect};
use pcfarm_sql::testing::url_of;
use serde_json::json;
use tokio_postgres::{Client, Config};

use super::disks::{SmallDisk, small_disks};
use super::faults::Hits;
use super::journal::{Journal, Told, Verdict};
use super::link::{Link, Target};
use super::oracle::{self, Judgement, Void};
use super::planted::Planted;
use super::workload::Workload;
use crate::farm::{Farm, Server};
use crate::light::{self, Herd, Manner, Pace};
use crate::postgres;
use crate::program::Program;
use crate::puzzle::{Puzzle, digest};

type Environment = Vec<(&'static str, OsString)>;

/// Everybody's heartbeat and lease: a tenth of the defaults.
pub const HEARTBEAT: Duration = Duration::from_millis(500);
pub const LEASE: Duration = Duration::from_secs(2);

/// Longest pause of an agent whose identity another agent has, and some time to connect.
const REFUSED_FOR: Duration = Duration::from_secs(100);

const SERVERS: usize = 3;
const AGENTS: usize = 6;
const RECYCLERS: usize = 2;
const LIGHT_AGENTS: usize = 36;
const CLIENTS: usize = 4;

/// Few, so that they run out.
const CONNECTIONS: u32 = 90;

const DATABASE: &str = "chaos";

/// Light agents hold a checkout for about as long as an agent computes one.
const PACE: Pace = Pace { draw: true, spread: Duration::from_millis(500), hold: Duration::from_millis(300) };

/// What clients' job types need: a write-back that counts, since a result that is stored twice cannot be seen in a table
/// with a key.
const SCHEMA: &str = "
    create schema chaos;
    create table chaos.applied (key text primary key, times integer not null, digest text, checkout bigint);
    create role chaos_writer nologin;
    grant usage on schema chaos to chaos_writer;
    grant select, insert, update on chaos.applied to chaos_writer;
    select pcfarm.set_resource('slot', 60);
    select pcfarm.create_job_type('plain', 'digest', '{\"max_attempts\": 100, \"resources\": {\"slot\": 1}}');
    select pcfarm.create_job_type('flaky', 'digest', '{\"max_attempts\": 100, \"retry_delay\": \"200 milliseconds\"}');
    select pcfarm.create_job_type('counted', 'digest', '{\"max_attempts\": 100, \"write_role\": \"chaos_writer\"}');
    select pcfarm.create_job_type('hasty', 'digest', '{\"max_attempts\": 100, \"write_role\": \"chaos_writer\",
        \"time_limit\": \"700 milliseconds\"}');
    select pcfarm.set_write_back(t, $$
        insert into chaos.applied as a (key, times, digest, checkout)
        select k, 1, s ->> 'digest', (s ->> 'checkout')::bigint from unnest($1, $2) as u(k, s)
        on conflict (key) do update set times = a.times + 1 $$)
    from unnest(array['counted', 'hasty']) t";

/// A server between its two links.
pub struct Served {
    pub server: Server,
    /// Between it and the database.
    pub database: Link,
    /// Between it and agents and clients.
    pub door: Link,
    /// Read by its clock, if that can be moved.
    pub clock: Option<PathBuf>,
}

/// What light agents do in a run: they solve puzzles, and write down what became of them.
#[derive(Debug)]
struct Puzzled(Arc<Journal>);

impl light::Work for Puzzled {
    fn controller(&self) -> &'static str {
        "digest"
    }

    fn manner(&self, agent: usize) -> Manner {
        *[Manner::Dawdles, Manner::Forges, Manner::Hoards, Manner::Repeats].get(agent % 12).unwrap_or(&Manner::Honest)
    }

    fn solve(&self, author: &str, checkout_id: i64, problem: &v1::Problem) -> Outcome {
        let text = std::str::from_utf8(&problem.payload).unwrap_or_default();
        let puzzle: Puzzle = serde_json::from_str(text).unwrap_or_default();
        if problem.attempt <= puzzle.fails {
            return Outcome::Failure(format!("no luck in attempt {}", problem.attempt));
        }
        let Ok(key) = problem.key_text() else {
            return Outcome::Failure("the key is not UTF-8".to_owned());
        };
        let digest = digest(key, text);
        let solution = json!({"digest": digest, "checkout": checkout_id, "attempt": problem.attempt, "author": author});
        Outcome::Solution(solution.to_string().into())
    }

    fn told(&self, delivered: light::Delivered, accepted: bool) {
        let light::Delivered { author, checkout_id, solved, at: delivered_at } = delivered;
        let verdict = if accepted { Verdict::Accepted } else { Verdict::Refused };
        self.0.told(Told { author, checkout_id, problems: solved, verdict, delivered_at, at: Instant::now() });
    }
}

/// Controllers that only light agents behind one server's door have.
const LIFE: [&str; SERVERS] = ["life-a", "life-b", "life-c"];

/// Work at one server.
#[derive(Debug)]
struct Life(usize);

impl light::Work for Life {
    fn controller(&self) -> &'static str {
        LIFE[self.0]
    }

    fn solve(&self, _author: &str, _checkout_id: i64, _problem: &v1::Problem) -> Outcome {
        Outcome::Solution("{}".into())
    }

    fn told(&self, _delivered: light::Delivered, _accepted: bool) {}
}

pub struct World {
    pub farm: Farm,
    pub cluster: Cluster,
    /// Straight to the database.
    pub config: Config,
    pub servers: Vec<Served>,
    pub agents: Vec<Program>,
    pub recyclers: Vec<Program>,
    pub herd: Herd,
    pub workload: Workload,
    pub journal: Arc<Journal>,
    /// Of data and of log, or why there are none.
    pub disks: Result<[SmallDisk; 2], String>,
    /// What moves a program's clock, or why nothing does.
    pub clocks: Result<PathBuf, String>,
    /// Times whose acknowledgements an older database has made void.
    pub voids: Vec<Void>,
    /// What was seen to go wrong.
    pub wrong: Vec<String>,
    /// Agents whose credentials another one has had: the two end each other.
    copied: HashSet<String>,
    /// Everybody who has kept a journal.
    solvers: Vec<String>,
    /// What programs are started with beside what they need: a planted bug.
    environment: Environment,
    directory: PathBuf,
}

impl World {
    /// Everything runs when this returns.
    pub async fn start(directory: &Path, seed: u64, planted: Option<&Planted>) -> anyhow::Result<World> {
        let disks = small_disks(directory);
        let clocks = faketime();
        let cluster = start_postgresql(directory, disks.as_ref().ok()).await?;
        cluster.create_database_if_missing(DATABASE).await?;
        let mut config = cluster.config();
        config.dbname(DATABASE);
        {
            let (mut client, _connection) = connect(&config).await?;
            pcfarm_sql::migrate::migrate(&mut client).await.context("migrating")?;
            client.batch_execute(SCHEMA).await.context("making the job types")?;
            if let Some(planted) = planted {
                planted.plant(&client).await.with_context(|| format!("planting {}", planted.name))?;
            }
        }
        let environment = planted.map_or_else(|| Ok(Environment::new()), |planted| environment(planted, directory))?;
        let socket = cluster.socket_directory().join(format!(".s.PGSQL.{}", port_of(&config)));
        let farm = Farm::at_in(url_of(&config), config.clone(), directory);
        let mut servers = Vec::new();
        for name in ["a", "b", "c"].into_iter().take(SERVERS) {
            let around = Around { farm: &farm, library: clocks.as_ref().ok(), environment: &environment };
            servers.push(start_server(around, name, &config, &socket, directory).await?);
        }
        let doors: Vec<String> = servers.iter().map(|served| format!("http://{}", served.door.address)).collect();
        let solvers: Vec<String> = (0..AGENTS).map(|n| format!("agent{n}")).collect();
        let around = Around { farm: &farm, library: clocks.as_ref().ok(), environment: &environment };
        let agents = solvers.iter().map(|name| agent(around, name, &doors)).collect::<anyhow::Result<Vec<_>>>()?;
        let recyclers = (0..RECYCLERS)
            .map(|n| with(farm.recycler(&format!("recycler{n}"), &["--every", "1"]), &environment))
            .collect();
        let journal = Arc::new(Journal::at(&directory.join("journal"))?);
        let herd = Herd::start(&doors, LIGHT_AGENTS, Arc::new(Puzzled(journal.clone())));
        herd.pace(PACE);
        let workload = Workload::start(seed, CLIENTS, &doors, &config, &journal);
        let mut world = World {
            farm,
            cluster,
            config,
            servers,
            agents,
            recyclers,
            herd,
            workload,
            journal,
            disks,
            clocks,
            voids: Vec::new(),
            wrong: Vec::new(),
            copied: HashSet::new(),
            solvers,
            environment,
            directory: directory.to_owned(),
        };
        world.agents.iter_mut().chain(&mut world.recyclers).for_each(Program::start);
        Ok(world)
    }

    pub fn doors(&self) -> Vec<String> {
        self.servers.iter().map(|served| format!("http://{}", served.door.address)).collect()
    }

    pub async fn database(&self) -> anyhow::Result<(Client, ConnectionTask)> {
        connect(&self.config).await.context("connecting to the database")
    }
}

/// The library that moves a program's clock, as Debian's package `faketime` has it.
fn faketime() -> Result<PathBuf, String> {
    let directories = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let found = directories.map(|directory| directory.join("faketime/libfaketimeMT.so.1")).find(|path| path.exists());
    found.ok_or_else(|| "libfaketime is not installed".to_owned())
}

/// Nobody's clock is moved before the harness writes to its file.
fn with_clock(program: Program, library: &Path, clock: &Path) -> anyhow::Result<Program> {
    std::fs::write(clock, "+0").with_context(|| format!("writing {}", clock.display()))?;
    Ok(program
        .environment("LD_PRELOAD", library)
        .environment("FAKETIME_TIMESTAMP_FILE", clock)
        .environment("FAKETIME_NO_CACHE", "1")
        // Deadlines and waits go by this one, on a machine whose clock is set, too.
        .environment("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .environment("DONT_FAKE_MONOTONIC", "1"))
}

async fn start_postgresql(directory: &Path, disks: Option<&[SmallDisk; 2]>) -> anyhow::Result<Cluster> {
    let place = disks.map_or(directory, |[data, _]| data.path.as_path()).join("postgresql");
    let settings = [
        ("max_connections", CONNECTIONS.to_string()),
        ("shared_buffers", "64MB".to_owned()),
        ("max_wal_size", "128MB".to_owned()),
        ("min_wal_size", "64MB".to_owned()),
        // The oracle asks when results and revocations were committed.
        ("track_commit_timestamp", "on".to_owned()),
        // What is dead must be seen to be.
        ("autovacuum_naptime", "5s".to_owned()),
        // Who connects while it starts and then falls silent is waited for by a fast shutdown, up to this (PostgreSQL 15 to 17).
        ("authentication_timeout", "5s".to_owned()),
    ];
    let options = ClusterOptions {
        dies_with_process: true,
        settings: settings.map(|(name, value)| (name.to_owned(), value)).into(),
        ..ClusterOptions::new(place)
    };
    let mut cluster = Cluster::start(options).await.context("starting PostgreSQL")?;
    if let Some([_, log]) = disks {
        // The log moves to a disk of its own while nothing runs.
        cluster.crash().await?;
        let here = cluster.directory().join("data/pg_wal");
        let there = log.path.join("pg_wal");
        let moved = Command::new("mv").arg(&here).arg(&there).status().context("moving the log")?;
        ensure!(moved.success(), "the log could not be moved");
        std::os::unix::fs::symlink(&there, &here).context("pointing to the log")?;
        cluster.start_again().await.context("starting PostgreSQL with its log elsewhere")?;
    }
    Ok(cluster)
}

fn port_of(config: &Config) -> u16 {
    config.get_ports().first().copied().unwrap_or(5432)
}

/// What programs have in common.
#[derive(Clone, Copy)]
struct Around<'a> {
    farm: &'a Farm,
    /// What moves a program's clock.
    library: Option<&'a PathBuf>,
    environment: &'a Environment,
}

fn with(program: Program, environment: &Environment) -> Program {
    environment.iter().fold(program, |program, (name, value)| program.environment(name, value.clone()))
}

/// What programs are started with, to have this bug.
fn environment(planted: &Planted, directory: &Path) -> anyhow::Result<Environment> {
    let (code, statements) = planted.of_programs();
    let path = directory.join("planted-statements");
    std::fs::write(&path, &statements).with_context(|| format!("writing {}", path.display()))?;
    let code = code.map(|name| ("PCFARM_PLANTED_BUG", name.into()));
    let statements = (!statements.is_empty()).then(|| ("PCFARM_PLANTED_STATEMENTS", path.into_os_string()));
    Ok(code.into_iter().chain(statements).collect())
}

async fn start_server(
    around: Around<'_>,
    name: &str,
    config: &Config,
    socket: &Path,
    directory: &Path,
) -> anyhow::Result<Served> {
    let Around { farm, library, environment } = around;
    let database = Link::to(Target::Unix(socket.to_owned())).await?;
    let mut through = Config::new();
    through
        .host(database.address.ip().to_string())
        .port(database.address.port())
        .user(config.get_user().unwrap_or_default())
        .dbname(config.get_dbname().unwrap_or_default());
    let url = url_of(&through);
    let mut server = farm.server(name, &[]);
    server.program = with(server.program.replacing_argument("--database-url", &url), environment);
    let clock = library.map(|_| directory.join(format!("{name}.clock")));
    if let (Some(library), Some(clock)) = (library, &clock) {
        server.program = with_clock(server.program, library, clock)?;
    }
    let door = Link::to(Target::Tcp(([127, 0, 0, 1], server.port).into())).await?;
    server.start().await;
    Ok(Served { server, database, door, clock })
}

fn agent(around: Around<'_>, name: &str, doors: &[String]) -> anyhow::Result<Program> {
    let Around { farm, library, environment } = around;
    let agent = farm
        .program(name, "fault-agent")
        .arguments(["--server", &doors.join(","), "--cores", "2", "--hostname", name])
        .arguments(["--state-dir".as_ref(), farm.path(&format!("{name}.state")).as_os_str()])
        .environment("FAULT_AGENT_JOURNAL", farm.path(&format!("{name}.journal")));
    let agent = with(agent, environment);
    match library {
        Some(library) => with_clock(agent, library, &farm.path(&format!("{name}.clock"))),
        None => Ok(agent),
    }
}

impl World {
    pub fn count(&self, hits: Hits) -> usize {
        match hits {
            Hits::Server => self.servers.len(),
            Hits::Agent => self.agents.len(),
            Hits::Recycler => self.recyclers.len(),
            Hits::Database => 1,
        }
    }

    /// Starts what has ended by itself, as a service manager does, but for those that a fault has hit. Only an agent may
    /// end by itself: when another one has its credentials.
    pub fn supervise(&mut self, busy: &[(Hits, usize)]) {
        let is_free = |hits, place| !busy.contains(&(hits, place));
        for (place, served) in self.servers.iter_mut().enumerate() {
            if is_free(Hits::Server, place) && !served.server.program.runs() {
                self.wrong.push(format!("server {} ended by itself", served.server.program.name));
                served.server.program.start();
            }
        }
        for (place, recycler) in self.recyclers.iter_mut().enumerate() {
            if is_free(Hits::Recycler, place) && !recycler.runs() {
                self.wrong.push(format!("{} ended by itself", recycler.name));
                recycler.start();
            }
        }
        for (place, agent) in self.agents.iter_mut().enumerate() {
            if is_free(Hits::Agent, place) && !agent.runs() {
                if !self.copied.contains(&agent.name) {
                    self.wrong.push(format!("{} ended by itself", agent.name));
                }
                agent.start();
            }
        }
    }

    /// A second agent with the credentials of this one.
    pub fn impostor(&mut self, victim: usize) -> anyhow::Result<Program> {
        let (name, original) = (format!("impostor{}", self.solvers.len()), &self.agents[victim].name);
        let copied = Command::new("cp")
            .arg("-a")
            .arg(self.farm.path(&format!("{original}.state")))
            .arg(self.farm.path(&format!("{name}.state")))
            .status()
            .context("copying an agent's state")?;
        ensure!(copied.success(), "an agent's state could not be copied");
        let around = Around { farm: &self.farm, library: None, environment: &self.environment };
        let mut impostor = agent(around, &name, &self.doors())?;
        impostor.start();
        self.copied.insert(original.clone());
        self.solvers.push(name);
        Ok(impostor)
    }

    /// Kills an agent for good. In its place there is another one, which does not run yet.
    pub fn retire_agent(&mut self, victim: usize) -> anyhow::Result<()> {
        let name = format!("agent{}", self.solvers.len());
        let around = Around { farm: &self.farm, library: self.clocks.as_ref().ok(), environment: &self.environment };
        self.agents[victim] = agent(around, &name, &self.doors())?;
        self.solvers.push(name);
        Ok(())
    }

    pub fn move_server_clock(&self, victim: usize, seconds: i64) -> anyhow::Result<()> {
        let clock = self.servers[victim].clock.as_ref().context("this server's clock cannot be moved")?;
        std::fs::write(clock, format!("{seconds:+}")).context("moving a clock")
    }

    pub fn move_agent_clock(&self, victim: usize, seconds: i64) -> anyhow::Result<()> {
        let clock = self.farm.path(&format!("{}.clock", self.agents[victim].name));
        std::fs::write(clock, format!("{seconds:+}")).context("moving a clock")
    }

    /// Whatever has become of PostgreSQL, it runs when this returns.
    pub async fn postgresql_runs(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.database().await.is_err() {
            ensure!(Instant::now() < deadline, "PostgreSQL does not come back");
            if postgres::postmaster(self.cluster.directory()).is_err() {
                drop(self.cluster.start_again().await);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    fn data(&self) -> [PathBuf; 2] {
        let data = self.cluster.directory().join("data");
        let log = data.join("pg_wal");
        [data, std::fs::canonicalize(&log).unwrap_or(log)]
    }

    /// Copies data and log of a PostgreSQL that has been killed: what a disk would hold after a power failure. Returns a
    /// moment of which everything before is in the copy that was committed, and nothing after.
    pub async fn back_up(&mut self) -> anyhow::Result<Instant> {
        self.cluster.crash().await?;
        let at = Instant::now();
        for (from, name) in self.data().iter().zip(["backup-data", "backup-log"]) {
            copy(from, &self.directory.join(name))?;
        }
        // Agents are served again before this returns.
        self.cluster.start_again().await.context("starting PostgreSQL after a backup")?;
        Ok(at)
    }

    /// Puts the copy in the place of what has come since.
    pub async fn restore(&mut self) -> anyhow::Result<()> {
        self.cluster.crash().await?;
        // What the killed one has left says who it was; the backup's is of another one.
        let left = self.cluster.directory().join("data/postmaster.pid");
        let of_the_killed = std::fs::read(&left).ok();
        for (to, name) in self.data().iter().zip(["backup-data", "backup-log"]) {
            copy(&self.directory.join(name), to)?;
        }
        match of_the_killed {
            Some(text) => std::fs::write(&left, text).context("keeping postmaster.pid")?,
            None => std::fs::remove_file(&left).context("removing the backup's postmaster.pid")?,
        }
        self.cluster.start_again().await.context("starting PostgreSQL on a backup")
    }

    /// Whoever is well works: each server hands out to those who know it alone, and each agent takes part. Says who does
    /// not.
    pub async fn signs_of_life(&mut self, within: Duration) -> Vec<String> {
        self.herd.pace(Pace::default());
        let mut wrong = Vec::new();
        for (place, served) in self.servers.iter().enumerate() {
            let herd = Herd::named(LIFE[place], &[format!("http://{}", served.door.address)], 2, Arc::new(Life(place)));
            herd.pace(Pace { draw: true, ..PACE });
            let query = "select g::text as key, '{}'::jsonb as payload from generate_series(1, 20) g";
            let sent = async {
                let (client, _connection) = self.database().await?;
                let text = "select pcfarm.create_job_type($1, $1, '{}'), pcfarm.submit('a sign of life', $1, $2, 1)";
                anyhow::Ok(client.query_one(text, &[&LIFE[place], &query]).await?.get::<_, i64>(1))
            };
            let done = match sent.await {
                Ok(job) => {
                    self.comes_true(within, &format!("select state = 'done' from pcfarm.job where job_id = {job}"))
                        .await
                }
                Err(error) => {
                    wrong.push(format!("asking for a sign of life: {error:#}"));
                    continue;
                }
            };
            if !done {
                wrong.push(format!("server {} hands out nothing to who knows it alone", served.server.program.name));
            }
        }
        let names: Vec<&str> = self.agents.iter().map(|agent| agent.name.as_str()).collect();
        // An agent that was refused while a copy had its identity asks again after a minute.
        for name in names.iter().filter(|name| self.copied.contains(**name)) {
            let is_back = format!(
                "select exists (select from pcfarm.workstation w where w.hostname = '{name}'
                     and w.state in ('waiting', 'processing') and w.silent_since is null and not w.disconnected)"
            );
            if !self.comes_true(within.max(REFUSED_FOR), &is_back).await {
                wrong.push(format!("{name} does not come back after its copy has gone"));
            }
        }
        let query =
            "select g::text as key, jsonb_build_object('n', g, 'ms', 20) as payload from generate_series(1, 1000) g";
        let sent = async {
            let (client, _connection) = self.database().await?;
            let row = client.query_one("select pcfarm.submit('a sign of life', 'plain', $1, 1)", &[&query]).await?;
            anyhow::Ok(row.get::<_, i64>(0))
        };
        match sent.await {
            Ok(job) => {
                let all = format!("select state = 'done' from pcfarm.job where job_id = {job}");
                if !self.comes_true(within, &all).await {
                    wrong.push("agents do not bring a job to its end".to_owned());
                }
                for name in names {
                    let took_part = format!(
                        "select count(*) > 0 from pcfarm.checkout c join pcfarm.workstation w using (workstation_id)
                         where c.job_id = {job} and w.hostname = '{name}'"
                    );
                    if !self.comes_true(Duration::ZERO, &took_part).await {
                        wrong.push(format!("{name} lives and does not work"));
                    }
                }
            }
            Err(error) => wrong.push(format!("asking for a sign of life: {error:#}")),
        }
        wrong
    }

    async fn comes_true(&self, within: Duration, query: &str) -> bool {
        let deadline = Instant::now() + within;
        loop {
            let answer = async {
                let (client, _connection) = self.database().await.ok()?;
                client.query_one(query, &[]).await.ok()?.try_get::<_, bool>(0).ok()
            };
            if answer.await == Some(true) {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Stops everybody in good order. Says who did not.
    pub async fn stop(&mut self, within: Duration) -> Vec<String> {
        self.herd.pace(Pace::default());
        let mut wrong = std::mem::take(&mut self.wrong);
        let servers = self.servers.iter_mut().map(|served| &mut served.server.program).collect();
        for mut together in [self.agents.iter_mut().collect(), servers, self.recyclers.iter_mut().collect::<Vec<_>>()] {
            together.iter_mut().for_each(|program| program.terminate());
            let deadline = Instant::now() + within;
            for program in together {
                if !program.ended_or_killed(deadline.saturating_duration_since(Instant::now())).await {
                    wrong.push(format!("{} has not stopped within {within:?}", program.name));
                }
                if program.log().contains("panicked at") {
                    wrong.push(format!("{} has panicked", program.name));
                }
            }
        }
        wrong
    }

    /// Whoever asked for a directory to be kept finds logs and journals in it.
    pub fn keep_logs(&self) {
        drop(Command::new("cp").arg("-a").arg(self.farm.path("")).arg(self.directory.join("programs")).status());
    }

    /// Checkouts in hands that have all the time they want.
    pub async fn live(&self) -> anyhow::Result<Vec<i64>> {
        let (client, _connection) = self.database().await?;
        let text = "select checkout_id from pcfarm.checkout where ended_at is null and deadline is null";
        Ok(client.query(text, &[]).await?.iter().map(|row| row.get(0)).collect())
    }

    /// How many were taken from workstations that were taken to be dead: those that were live when the database went away,
    /// and what those workstations got first when it was back.
    pub async fn taken(&self) -> anyhow::Result<i64> {
        let (client, _connection) = self.database().await?;
        let text = "select count(*) from pcfarm.checkout where reason like 'lost with workstation%'";
        Ok(client.query_one(text, &[]).await?.get(0))
    }

    pub async fn judge(&self) -> anyhow::Result<Judgement> {
        let (client, _connection) = self.database().await?;
        let journals: Vec<String> = self
            .solvers
            .iter()
            .map(|name| std::fs::read_to_string(self.farm.path(&format!("{name}.journal"))).unwrap_or_default())
            .collect();
        let (submissions, told) = (self.journal.submissions(), self.journal.verdicts());
        let mut judgement =
            oracle::judge(&client, &submissions, &told, &oracle::solved(&journals), &self.voids).await?;
        judgement.wrong.extend(self.journal.all_odd());
        Ok(judgement)
    }
}

/// Makes `to` what `from` is; a link stays a link.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let output = Command::new("rsync").args(["-a", "--delete"]).arg(from.join("")).arg(to.join("")).output();
    let output = match output {
        Ok(output) => output,
        Err(_) => {
            // Without rsync: all of it anew.
            if to.exists() {
                std::fs::remove_dir_all(to).with_context(|| format!("removing {}", to.display()))?;
            }
            Command::new("cp").arg("-a").arg(from).arg(to).output().context("cp")?
        }
    };
    ensure!(output.status.success(), "copying {}: {}", from.display(), String::from_utf8_lossy(&output.stderr));
    Ok(())
}
