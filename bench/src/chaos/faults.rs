//! What can go wrong with a farm, how it is brought about, and how it is made good again.

use std::time::Duration;

use anyhow::{Context, ensure};
use pcfarm_sql::connect::{ConnectionTask, connect};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::{Pid, Signal};
use tokio_postgres::{Client, SimpleQueryMessage};

use super::link::Weather;
use super::oracle::Void;
use super::world::{HEARTBEAT, LEASE, World};
use crate::postgres;
use crate::program::Program;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    // Processes
    KillServer,
    FreezeServer,
    RestartServer,
    KillAgent,
    FreezeAgent,
    RestartAgent,
    /// Killed, and never heard of again: another workstation takes its place.
    RetireAgent,
    KillRecycler,
    FreezeRecycler,
    /// A second agent with the credentials of one that runs.
    CopiedCredentials,
    // PostgreSQL
    /// An immediate stop: nobody tidies up.
    CrashPostgresql,
    KillPostmaster,
    /// At which PostgreSQL ends all others and starts anew.
    KillBackend,
    RestartPostgresql,
    /// For twice the lease.
    FreezePostgresql,
    TerminateBackends,
    /// Everybody's connections are ended and somebody else takes all of them.
    TakeConnections,
    LockJobs,
    /// A transaction that has read and does nothing any more.
    KeepSnapshot,
    FillDataDisk,
    FillLogDisk,
    /// All servers lose the database for twice the lease, and recyclers do not.
    PartServersFromDatabase,
    /// What was committed since is gone; the same farm goes on with an older database.
    RestoreBackup,
    // Links
    CutDatabaseLink,
    SilenceDatabaseLink,
    SlowDatabaseLink,
    RefuseDatabaseLink,
    /// A commit whose reply is eaten.
    EatReplies,
    CutDoor,
    SilenceToServer,
    SilenceFromServer,
    SlowDoor,
    RefuseDoor,
    // Clocks
    MoveServerClock,
    MoveAgentClock,
}

impl Kind {
    pub const ALL: [Kind; 35] = [
        Kind::KillServer,
        Kind::FreezeServer,
        Kind::RestartServer,
        Kind::KillAgent,
        Kind::FreezeAgent,
        Kind::RestartAgent,
        Kind::RetireAgent,
        Kind::KillRecycler,
        Kind::FreezeRecycler,
        Kind::CopiedCredentials,
        Kind::CrashPostgresql,
        Kind::KillPostmaster,
        Kind::KillBackend,
        Kind::RestartPostgresql,
        Kind::FreezePostgresql,
        Kind::TerminateBackends,
        Kind::TakeConnections,
        Kind::LockJobs,
        Kind::KeepSnapshot,
        Kind::FillDataDisk,
        Kind::FillLogDisk,
        Kind::PartServersFromDatabase,
        Kind::RestoreBackup,
        Kind::CutDatabaseLink,
        Kind::SilenceDatabaseLink,
        Kind::SlowDatabaseLink,
        Kind::RefuseDatabaseLink,
        Kind::EatReplies,
        Kind::CutDoor,
        Kind::SilenceToServer,
        Kind::SilenceFromServer,
        Kind::SlowDoor,
        Kind::RefuseDoor,
        Kind::MoveServerClock,
        Kind::MoveAgentClock,
    ];

    /// In lower case with hyphens, as reports and the command line have it.
    pub fn name(self) -> String {
        let mut name = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.push(letter.to_ascii_lowercase());
        }
        name
    }

    fn hits(self) -> Hits {
        match self {
            Kind::KillServer
            | Kind::FreezeServer
            | Kind::RestartServer
            | Kind::CutDatabaseLink
            | Kind::SilenceDatabaseLink
            | Kind::SlowDatabaseLink
            | Kind::RefuseDatabaseLink
            | Kind::EatReplies
            | Kind::CutDoor
            | Kind::SilenceToServer
            | Kind::SilenceFromServer
            | Kind::SlowDoor
            | Kind::RefuseDoor
            | Kind::MoveServerClock => Hits::Server,
            Kind::KillAgent
            | Kind::FreezeAgent
            | Kind::RestartAgent
            | Kind::RetireAgent
            | Kind::CopiedCredentials
            | Kind::MoveAgentClock => Hits::Agent,
            Kind::KillRecycler | Kind::FreezeRecycler => Hits::Recycler,
            Kind::CrashPostgresql
            | Kind::KillPostmaster
            | Kind::KillBackend
            | Kind::RestartPostgresql
            | Kind::FreezePostgresql
            | Kind::TerminateBackends
            | Kind::TakeConnections
            | Kind::LockJobs
            | Kind::KeepSnapshot
            | Kind::FillDataDisk
            | Kind::FillLogDisk
            | Kind::PartServersFromDatabase
            | Kind::RestoreBackup => Hits::Database,
        }
    }
}

/// Whom a kind of fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hits {
    Server,
    Agent,
    Recycler,
    Database,
}

/// One fault of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    pub kind: Kind,
    /// Which of those that it may hit.
    pub victim: usize,
    pub length: Duration,
    /// Until the next one.
    pub pause: Duration,
    /// Anything else that it has to choose.
    pub luck: u32,
}

impl Fault {
    /// Two faults of one target wait for each other.
    pub fn target(&self) -> (Hits, usize) {
        (self.kind.hits(), self.victim)
    }
}

/// From well under a heartbeat to twice the lease, in milliseconds.
const LENGTH_MS: std::ops::Range<u64> = 50..4_500;
const PAUSE_MS: std::ops::Range<u64> = 300..2_500;

/// Some silences are longer than anybody's patience: whoever can must have left by then.
const LONG: Duration = Duration::from_secs(11);
const LONG_ONE_IN: u32 = 4;

/// Faults from a seed: the same seed, the same faults in the same order.
#[derive(Debug)]
pub struct Nemesis {
    random: StdRng,
    kinds: Vec<Kind>,
    /// Kinds that have not had their turn: each has one before any has a second.
    left: Vec<Kind>,
}

impl Nemesis {
    pub fn new(seed: u64, kinds: &[Kind]) -> Nemesis {
        Nemesis { random: StdRng::seed_from_u64(seed), kinds: kinds.to_vec(), left: Vec::new() }
    }

    pub fn next(&mut self, count: impl Fn(Hits) -> usize) -> Fault {
        if self.left.is_empty() {
            self.left.clone_from(&self.kinds);
        }
        let place = self.random.random_range(0..self.left.len());
        let kind = self.left.swap_remove(place);
        let victim = self.random.random_range(0..count(kind.hits()).max(1));
        let length = Duration::from_millis(self.random.random_range(LENGTH_MS));
        let pause = Duration::from_millis(self.random.random_range(PAUSE_MS));
        let luck: u32 = self.random.random();
        let length = match kind {
            Kind::FreezePostgresql | Kind::PartServersFromDatabase => LEASE * 2,
            Kind::RestoreBackup => length.max(LEASE),
            // It has to say hello first.
            Kind::CopiedCredentials => length.max(HEARTBEAT * 3),
            Kind::FreezeServer
            | Kind::FreezeAgent
            | Kind::FreezeRecycler
            | Kind::SilenceDatabaseLink
            | Kind::SilenceToServer
            | Kind::SilenceFromServer
            | Kind::LockJobs
                if luck.is_multiple_of(LONG_ONE_IN) =>
            {
                length + LONG
            }
            _ => length,
        };
        Fault { kind, victim, length, pause, luck }
    }
}

/// How a fault is made good again.
pub enum Remedy {
    Nothing,
    StartServer(usize),
    StartAgent(usize),
    StartRecycler(usize),
    ThawServer(usize),
    ThawAgent(usize),
    ThawRecycler(usize),
    StartPostgresql,
    ThawPostgresql(Vec<Pid>),
    /// What was held is let go.
    LetGo(Vec<(Client, ConnectionTask)>),
    EndImpostor(Box<Program>),
    EmptyDisk(usize),
    /// With what was committed since the backup void.
    RestoreBackup(std::time::Instant),
    ClearDatabaseLink(usize),
    /// All of them.
    ClearDatabaseLinks,
    ClearDoor(usize),
    /// Of so many replies.
    StopEating(usize, u32),
    ServerClock(usize),
    AgentClock(usize),
}

/// What a fault came to.
pub enum Struck {
    Done(Remedy),
    /// This machine cannot do that, and why.
    Skipped(String),
}

/// What a remedy found.
pub enum Remedied {
    Well,
    /// The fault has hit nothing, and why: it does not count.
    NothingHadHappened(&'static str),
}

/// How long a program may take to end in good order.
const STOP_WAIT: Duration = Duration::from_secs(20);

fn done(remedy: Remedy) -> anyhow::Result<Struck> {
    Ok(Struck::Done(remedy))
}

fn skipped(why: &str) -> anyhow::Result<Struck> {
    Ok(Struck::Skipped(why.to_owned()))
}

/// Brings it about.
pub async fn strike(world: &mut World, fault: &Fault) -> anyhow::Result<Struck> {
    match fault.kind.hits() {
        Hits::Server => strike_server(world, fault).await,
        Hits::Agent => strike_agent(world, fault),
        Hits::Recycler => strike_recycler(world, fault),
        Hits::Database => strike_database(world, fault).await,
    }
}

/// A server, or its links to agents and to the database.
async fn strike_server(world: &mut World, fault: &Fault) -> anyhow::Result<Struck> {
    let victim = fault.victim;
    let delay = Duration::from_millis(u64::from(fault.luck % 300) + 5);
    let site = &mut world.servers[victim];
    match fault.kind {
        Kind::KillServer => {
            site.server.program.kill();
            done(Remedy::StartServer(victim))
        }
        Kind::FreezeServer => {
            site.server.program.freeze();
            done(Remedy::ThawServer(victim))
        }
        Kind::RestartServer => {
            site.server.program.terminate();
            if !site.server.program.ended_or_killed(STOP_WAIT).await {
                let name = site.server.program.name.clone();
                world.wrong.push(format!("server {name} has not stopped within {STOP_WAIT:?}"));
            }
            done(Remedy::StartServer(victim))
        }
        Kind::CutDatabaseLink => match site.database.cut() {
            0 => skipped("there was no connection to cut"),
            _ => done(Remedy::Nothing),
        },
        Kind::SilenceDatabaseLink => {
            let (silent_up, silent_down) = [(true, true), (true, false), (false, true)][fault.luck as usize % 3];
            let weather = Weather { silent_up, silent_down, ..Weather::default() };
            site.database.weather(weather);
            done(Remedy::ClearDatabaseLink(victim))
        }
        Kind::SlowDatabaseLink => {
            site.database.weather(Weather { delay, ..Weather::default() });
            done(Remedy::ClearDatabaseLink(victim))
        }
        Kind::RefuseDatabaseLink => {
            site.database.weather(Weather { closed: true, ..Weather::default() });
            _ = site.database.cut();
            done(Remedy::ClearDatabaseLink(victim))
        }
        Kind::EatReplies => {
            let count = 1 + fault.luck % 8;
            site.database.swallow_replies(count);
            done(Remedy::StopEating(victim, count))
        }
        Kind::CutDoor => match site.door.cut() {
            0 => skipped("there was no connection to cut"),
            _ => done(Remedy::Nothing),
        },
        Kind::SilenceToServer => {
            site.door.weather(Weather { silent_up: true, ..Weather::default() });
            done(Remedy::ClearDoor(victim))
        }
        Kind::SilenceFromServer => {
            site.door.weather(Weather { silent_down: true, ..Weather::default() });
            done(Remedy::ClearDoor(victim))
        }
        Kind::SlowDoor => {
            site.door.weather(Weather { delay, ..Weather::default() });
            done(Remedy::ClearDoor(victim))
        }
        Kind::RefuseDoor => {
            site.door.weather(Weather { closed: true, ..Weather::default() });
            _ = site.door.cut();
            done(Remedy::ClearDoor(victim))
        }
        Kind::MoveServerClock => {
            if let Err(why) = &world.clocks {
                return Ok(Struck::Skipped(why.clone()));
            }
            world.move_server_clock(victim, clock_shift(fault))?;
            done(Remedy::ServerClock(victim))
        }
        _ => unreachable!("{:?} does not hit servers", fault.kind),
    }
}

fn strike_agent(world: &mut World, fault: &Fault) -> anyhow::Result<Struck> {
    let victim = fault.victim;
    match fault.kind {
        Kind::KillAgent => {
            world.agents[victim].kill();
            done(Remedy::StartAgent(victim))
        }
        Kind::FreezeAgent => {
            world.agents[victim].freeze();
            done(Remedy::ThawAgent(victim))
        }
        Kind::RestartAgent => {
            world.agents[victim].terminate();
            done(Remedy::StartAgent(victim))
        }
        Kind::RetireAgent => {
            world.retire_agent(victim)?;
            done(Remedy::StartAgent(victim))
        }
        Kind::CopiedCredentials => done(Remedy::EndImpostor(Box::new(world.impostor(victim)?))),
        Kind::MoveAgentClock => {
            if let Err(why) = &world.clocks {
                return Ok(Struck::Skipped(why.clone()));
            }
            world.move_agent_clock(victim, clock_shift(fault))?;
            done(Remedy::AgentClock(victim))
        }
        _ => unreachable!("{:?} does not hit agents", fault.kind),
    }
}

/// In seconds.
fn clock_shift(fault: &Fault) -> i64 {
    const SHIFTS: [i64; 6] = [-86_400, -3_600, -5, 5, 3_600, 86_400];
    SHIFTS[fault.luck as usize % SHIFTS.len()]
}

fn strike_recycler(world: &mut World, fault: &Fault) -> anyhow::Result<Struck> {
    let victim = fault.victim;
    match fault.kind {
        Kind::KillRecycler => {
            world.recyclers[victim].kill();
            done(Remedy::StartRecycler(victim))
        }
        Kind::FreezeRecycler => {
            world.recyclers[victim].freeze();
            done(Remedy::ThawRecycler(victim))
        }
        _ => unreachable!("{:?} does not hit recyclers", fault.kind),
    }
}

async fn strike_database(world: &mut World, fault: &Fault) -> anyhow::Result<Struck> {
    match fault.kind {
        Kind::CrashPostgresql => stop_postgresql(world, Signal::QUIT).await,
        Kind::KillPostmaster => {
            let postmaster = postgres::postmaster(world.cluster.directory())?;
            postgres::signal(&[postmaster], Signal::KILL);
            done(Remedy::StartPostgresql)
        }
        Kind::KillBackend => {
            let (client, _connection) = world.database().await?;
            let text =
                "select pid from pg_stat_activity where pid <> pg_backend_pid() and backend_type = 'client backend'
                order by pid";
            let backends = client.query(text, &[]).await.context("looking for backends")?;
            let Some(row) = backends.get(fault.luck as usize % backends.len().max(1)) else {
                return skipped("nobody is connected to the database");
            };
            let backend = Pid::from_raw(row.get(0)).context("a process id")?;
            postgres::signal(&[backend], Signal::KILL);
            done(Remedy::Nothing)
        }
        Kind::RestartPostgresql => stop_postgresql(world, Signal::INT).await,
        Kind::FreezePostgresql => done(Remedy::ThawPostgresql(postgres::freeze(world.cluster.directory())?)),
        Kind::TerminateBackends => {
            terminate_backends(world).await?;
            done(Remedy::Nothing)
        }
        Kind::TakeConnections => {
            let mut taken = Vec::new();
            terminate_backends(world).await?;
            while let Ok(Ok(one)) = tokio::time::timeout(HEARTBEAT, connect(&world.config)).await {
                taken.push(one);
            }
            done(Remedy::LetGo(taken))
        }
        Kind::LockJobs => {
            let one = world.database().await?;
            let lock = "begin; select from pcfarm.job where ended_at is null order by random() limit 3 for update";
            let locked = one.0.simple_query(lock).await.context("locking jobs")?;
            if !locked.iter().any(|message| matches!(message, SimpleQueryMessage::Row(_))) {
                return skipped("no job was open");
            }
            done(Remedy::LetGo(vec![one]))
        }
        Kind::KeepSnapshot => {
            let one = world.database().await?;
            one.0.batch_execute("begin isolation level repeatable read; select count(*) from pcfarm.result").await?;
            done(Remedy::LetGo(vec![one]))
        }
        Kind::FillDataDisk => fill_disk(world, 0),
        Kind::FillLogDisk => fill_disk(world, 1),
        Kind::PartServersFromDatabase => {
            for served in &world.servers {
                served.database.weather(Weather { closed: true, ..Weather::default() });
                _ = served.database.cut();
            }
            done(Remedy::ClearDatabaseLinks)
        }
        Kind::RestoreBackup => {
            if !world.workload.pause(STOP_WAIT).await {
                world.workload.resume();
                return skipped("clients were not done in time");
            }
            done(Remedy::RestoreBackup(world.back_up().await?))
        }
        _ => unreachable!("{:?} does not hit the database", fault.kind),
    }
}

async fn stop_postgresql(world: &World, how: Signal) -> anyhow::Result<Struck> {
    let postmaster = postgres::postmaster(world.cluster.directory())?;
    postgres::signal(&[postmaster], how);
    ensure!(postgres::gone(postmaster, STOP_WAIT).await, "PostgreSQL has not stopped within {STOP_WAIT:?}");
    done(Remedy::StartPostgresql)
}

async fn terminate_backends(world: &World) -> anyhow::Result<()> {
    let (client, _connection) = world.database().await?;
    let text = "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and backend_type = 'client backend'";
    client.query(text, &[]).await.context("terminating backends")?;
    Ok(())
}

fn fill_disk(world: &World, which: usize) -> anyhow::Result<Struck> {
    match &world.disks {
        Err(why) => Ok(Struck::Skipped(why.clone())),
        Ok(disks) => {
            disks[which].fill()?;
            done(Remedy::EmptyDisk(which))
        }
    }
}

/// Makes it good again.
pub async fn remedy(world: &mut World, remedy: Remedy) -> anyhow::Result<Remedied> {
    match remedy {
        Remedy::Nothing => {}
        Remedy::StartServer(victim) => world.servers[victim].server.program.start(),
        Remedy::StartAgent(victim) => {
            world.agents[victim].ended_or_killed(STOP_WAIT).await;
            world.agents[victim].start();
        }
        Remedy::StartRecycler(victim) => world.recyclers[victim].start(),
        Remedy::ThawServer(victim) => world.servers[victim].server.program.thaw(),
        Remedy::ThawAgent(victim) => world.agents[victim].thaw(),
        Remedy::ThawRecycler(victim) => world.recyclers[victim].thaw(),
        Remedy::StartPostgresql => world.cluster.start_again().await?,
        Remedy::ThawPostgresql(processes) => postgres::thaw(&processes),
        Remedy::LetGo(held) => drop(held),
        Remedy::EndImpostor(mut impostor) => impostor.kill(),
        Remedy::EmptyDisk(which) => {
            if let Ok(disks) = &world.disks {
                disks[which].empty();
            }
            // A full log disk ends PostgreSQL.
            world.postgresql_runs().await?;
        }
        Remedy::RestoreBackup(from) => {
            world.restore().await?;
            world.voids.push(Void { from, to: std::time::Instant::now() });
            world.workload.resume();
        }
        Remedy::ClearDatabaseLink(victim) => world.servers[victim].database.weather(Weather::default()),
        Remedy::ClearDatabaseLinks => {
            world.servers.iter().for_each(|served| served.database.weather(Weather::default()));
        }
        Remedy::ClearDoor(victim) => world.servers[victim].door.weather(Weather::default()),
        Remedy::StopEating(victim, count) => {
            if world.servers[victim].database.stop_swallowing() == count {
                return Ok(Remedied::NothingHadHappened("no reply came to be eaten"));
            }
        }
        Remedy::ServerClock(victim) => world.move_server_clock(victim, 0)?,
        Remedy::AgentClock(victim) => world.move_agent_clock(victim, 0)?,
    }
    Ok(Remedied::Well)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_seed_says_it_all_and_every_kind_has_its_turn() {
        let faults = |seed| {
            let mut nemesis = Nemesis::new(seed, &Kind::ALL);
            (0..64).map(|_| nemesis.next(|_| 3)).collect::<Vec<_>>()
        };
        assert_eq!(faults(1), faults(1));
        assert_ne!(faults(1), faults(2));
        let kinds: HashSet<Kind> = faults(3)[..Kind::ALL.len()].iter().map(|fault| fault.kind).collect();
        assert_eq!(kinds.len(), Kind::ALL.len());
    }

    #[test]
    fn kinds_have_names() {
        assert_eq!(Kind::EatReplies.name(), "eat-replies");
        let names: HashSet<String> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), Kind::ALL.len());
    }
}
