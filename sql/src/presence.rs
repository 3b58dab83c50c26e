//! Who is there: servers and their pulse, workstations and their connections.

use crate::checkout::Queries;
use crate::json::RawJson;
use deadpool_postgres::ClientWrapper;
use pcfarm_proto::ids::{CheckoutId, ServerId, WorkstationId};
use std::time::{Duration, SystemTime};
use tokio_postgres::{Error, Row};
use uuid::Uuid;

pub async fn start_server(client: &ClientWrapper, name: &str, address: &str, version: &str) -> Result<ServerId, Error> {
    let rows = client.run(include_str!("../queries/start_server.sql"), &[&name, &address, &version]).await?;
    rows[0].try_get(0)
}

/// Says that this server runs. `gap_seconds`: a longer silence than this means that it has not been hearing;
/// `stalled`: it knows so itself. `idle`: some of its idle workstations. Returns those of the other servers.
pub async fn pulse(
    client: &ClientWrapper,
    server_id: ServerId,
    gap_seconds: f64,
    refused_results: i64,
    stalled: bool,
    idle: &[WorkstationId],
) -> Result<Vec<WorkstationId>, Error> {
    let idle: Vec<i64> = idle.iter().map(|workstation| workstation.0).collect();
    let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
        [&server_id, &gap_seconds, &refused_results, &stalled, &idle];
    let rows = client.run(include_str!("../queries/pulse.sql"), &parameters).await?;
    let Some(row) = rows.first() else { return Ok(Vec::new()) };
    let others: Vec<i64> = row.try_get("idle")?;
    Ok(others.into_iter().map(WorkstationId).collect())
}

pub async fn stop_server(client: &ClientWrapper, server_id: ServerId) -> Result<(), Error> {
    client.run(include_str!("../queries/stop_server.sql"), &[&server_id]).await.map(drop)
}

/// What an agent says of its workstation.
#[derive(Clone, Debug)]
pub struct Introduction {
    pub identity: Uuid,
    pub instance: Uuid,
    pub hostname: String,
    pub cores: i32,
    pub memory_bytes: i64,
    /// Name and version, for people.
    pub system: String,
    /// As requirements name them: `linux`, `x86_64`; empty if it did not say.
    pub system_name: String,
    pub arch: String,
    /// Of each its vendor and its name.
    pub gpus: Vec<String>,
    /// That problems may use, of each its name and, where it is known, its version.
    pub programs: Vec<String>,
    pub agent_version: String,
    pub controllers: Vec<String>,
    pub labels: Vec<String>,
    /// `waiting`, `suspended` or `draining`.
    pub state: &'static str,
    pub signs: Signs,
    /// None: its owner does not let it be woken.
    pub waking: Option<Waking>,
    /// Machine to which the identity is bound. None: nothing identifies it.
    pub machine: Option<MachineDigest>,
    /// Machines to which the identity was bound before its owner has bound it anew.
    pub machines_before: Vec<MachineDigest>,
}

/// Digest of a machine: SHA-256.
pub type MachineDigest = [u8; 32];

/// How a workstation can be woken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waking {
    /// Its network card: `52:54:00:12:34:56`.
    pub card: String,
    /// The address that all hear in the card's network, if its agent knows.
    pub broadcast: Option<String>,
}

/// What an agent says about its workstation's person, for people; empty where it has said nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    /// What it tells by that nobody is there.
    pub idle_source: String,
    /// `mains` or `battery`.
    pub power: String,
    /// None: its agent never had to give way.
    pub yields: Option<Yields>,
    /// What it goes by, if it says so: an array of objects, as `pcfarm.workstation` has it.
    pub settings: Option<RawJson>,
    /// Findings about presence sources, at most 16.
    pub notes: Vec<String>,
}

/// How quickly an agent gave way to its workstation's person: of so many times, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Yields {
    pub count: i32,
    pub p50_ms: i64,
    pub p99_ms: i64,
}

/// A workstation's connection, as registered.
#[derive(Clone, Debug)]
pub struct Connection {
    pub workstation_id: WorkstationId,
    /// Grows with every connection; what is done under an older one has no effect on the workstation's row.
    pub session: i64,
    pub drain: bool,
    /// By whom and why, if it is to be drained.
    pub drain_reason: String,
    /// The program that spoke for it before is the same run of the same program.
    pub same_instance: bool,
    pub was_dead: bool,
    /// What it may take, as `pcfarm.set_selection` keeps it.
    pub selection: Option<RawJson>,
    /// What is wanted of its agent's presence, as `pcfarm.set_presence` keeps it.
    pub presence: Option<RawJson>,
    /// It was being woken.
    pub woken: bool,
    /// What its agent is to run beside it.
    pub slots: Vec<String>,
}

/// Reason why an identity is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The identity belongs to another machine.
    AnotherMachine,
    /// Its owner has bound it to this machine while an agent is connected from the other one.
    InUse,
    /// This agent names no machine, the identity belongs to one, and an agent is connected under it.
    NoMachine,
    /// Two agents on machines that cannot be told apart have it, and the other one is connected.
    TwoAgents,
}

impl Refusal {
    fn named(text: &str) -> Refusal {
        match text {
            "another machine" => Refusal::AnotherMachine,
            "bound anew while in use" => Refusal::InUse,
            "no machine" => Refusal::NoMachine,
            // The statement makes no others.
            _ => Refusal::TwoAgents,
        }
    }
}

/// An identity that is refused, and the workstation that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    pub workstation_id: WorkstationId,
    pub why: Refusal,
    /// Session of the agent that stays.
    pub session: i64,
    /// The agent that stays has answered its server a moment ago.
    pub answered: bool,
}

impl Refused {
    /// The refusal holds only if the connected agent is alive, and its server has not asked it lately.
    pub fn depends_on_an_answer(&self) -> bool {
        match self.why {
            Refusal::AnotherMachine => false,
            Refusal::InUse | Refusal::NoMachine | Refusal::TwoAgents => !self.answered,
        }
    }
}

/// Registers these workstations, in one transaction; answers in the same order. An identity may come only once.
pub async fn connect(
    client: &ClientWrapper,
    all: &[&Introduction],
    server_id: ServerId,
) -> Result<Vec<Result<Connection, Refused>>, Error> {
    fn each<T>(all: &[&Introduction], what: impl Fn(&Introduction) -> T) -> Vec<T> {
        all.iter().map(|who| what(who)).collect()
    }
    fn pairs<'a>(all: &[&'a Introduction], names: fn(&Introduction) -> &Vec<String>) -> (Vec<i32>, Vec<&'a str>) {
        let of =
            |(position, who): (i32, &&'a Introduction)| names(who).iter().map(move |name| (position, name.as_str()));
        (1..).zip(all).flat_map(of).unzip()
    }
    let (positions, controllers) = pairs(all, |who| &who.controllers);
    let (label_positions, labels) = pairs(all, |who| &who.labels);
    let (gpu_positions, gpus) = pairs(all, |who| &who.gpus);
    let (program_positions, programs) = pairs(all, |who| &who.programs);
    let (before_positions, before): (Vec<i32>, Vec<&[u8]>) = (1..)
        .zip(all)
        .flat_map(|(position, who): (i32, _)| {
            who.machines_before.iter().map(move |digest| (position, digest.as_slice()))
        })
        .unzip();
    let (note_positions, notes) = pairs(all, |who| &who.signs.notes);
    let rows = client
        .run(
            include_str!("../queries/connect_workstations.sql"),
            &[
                &each(all, |who| who.identity),
                &each(all, |who| who.instance),
                &each(all, |who| who.hostname.clone()),
                &each(all, |who| who.cores),
                &each(all, |who| who.memory_bytes),
                &each(all, |who| who.system.clone()),
                &each(all, |who| who.agent_version.clone()),
                &each(all, |who| who.state),
                &server_id,
                &positions,
                &controllers,
                &label_positions,
                &labels,
                &each(all, |who| who.system_name.clone()),
                &each(all, |who| who.arch.clone()),
                &gpu_positions,
                &gpus,
                &program_positions,
                &programs,
                &each(all, |who| who.signs.idle_source.clone()),
                &each(all, |who| who.signs.power.clone()),
                &each(all, |who| who.signs.yields.map(|yields| yields.count)),
                &each(all, |who| who.signs.yields.map(|yields| yields.p50_ms)),
                &each(all, |who| who.signs.yields.map(|yields| yields.p99_ms)),
                &each(all, |who| who.signs.settings.clone()),
                &each(all, |who| who.waking.as_ref().map(|waking| waking.card.clone())),
                &each(all, |who| who.waking.as_ref().and_then(|waking| waking.broadcast.clone())),
                &each(all, |who| who.machine.map(Vec::from)),
                &before_positions,
                &before,
                &note_positions,
                &notes,
            ],
        )
        .await?;
    rows.iter()
        .map(|row| match row.try_get::<_, Option<&str>>("refused")? {
            Some(why) => Ok(Err(Refused {
                workstation_id: row.try_get("workstation_id")?,
                why: Refusal::named(why),
                session: row.try_get("session")?,
                answered: row.try_get("answered")?,
            })),
            None => connection_of_row(row).map(Ok),
        })
        .collect()
}

fn connection_of_row(row: &Row) -> Result<Connection, Error> {
    Ok(Connection {
        workstation_id: row.try_get("workstation_id")?,
        session: row.try_get("session")?,
        drain: row.try_get("drain")?,
        drain_reason: row.try_get("drain_reason")?,
        same_instance: row.try_get("same_instance")?,
        was_dead: row.try_get("was_dead")?,
        woken: row.try_get("woken")?,
        selection: row.try_get("selection")?,
        presence: row.try_get("presence")?,
        slots: row.try_get("slots")?,
    })
}

/// Records that an identity was found on two machines. `every`: how often the same details are news; none: once. Returns
/// whether they were.
pub async fn note_clone(
    client: &ClientWrapper,
    workstation: WorkstationId,
    details: &RawJson,
    every: Option<Duration>,
) -> Result<bool, Error> {
    let every = every.map(|every| every.as_secs_f64());
    client.run(include_str!("../queries/note_clone.sql"), &[&workstation, details, &every]).await?[0].try_get(0)
}

/// The workstation with this identity, and its newest session.
pub async fn workstation_of(client: &ClientWrapper, identity: Uuid) -> Result<Option<(WorkstationId, i64)>, Error> {
    let rows = client.run(include_str!("../queries/workstation_of_identity.sql"), &[&identity]).await?;
    rows.first().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).transpose()
}

/// Asks the server that holds this session whether its agent answers. Servers listen for it.
pub async fn challenge(client: &ClientWrapper, workstation: WorkstationId, session: i64) -> Result<(), Error> {
    client.run(include_str!("../queries/challenge_workstation.sql"), &[&workstation, &session]).await.map(drop)
}

/// Returns the workstation and the session that a notification challenges.
pub fn challenged(payload: &str) -> Option<(WorkstationId, i64)> {
    let (workstation, session) = payload.strip_prefix("challenge ")?.split_once(' ')?;
    Some((WorkstationId(workstation.parse().ok()?), session.parse().ok()?))
}

/// Records that the agent of this session answers its server.
pub async fn note_answer(client: &ClientWrapper, workstation: WorkstationId, session: i64) -> Result<(), Error> {
    client.run(include_str!("../queries/answered_workstation.sql"), &[&workstation, &session]).await.map(drop)
}

/// Live checkout of a workstation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveCheckout {
    pub token: i64,
    pub job_type: String,
    /// Problems without a result or a failed attempt.
    pub problems_left: usize,
}

/// Returns the workstations' live checkouts.
pub async fn live_checkouts(
    client: &ClientWrapper,
    workstations: &[WorkstationId],
) -> Result<Vec<(WorkstationId, CheckoutId, LiveCheckout)>, Error> {
    let ids: Vec<i64> = workstations.iter().map(|w| w.0).collect();
    let rows = client.run(include_str!("../queries/live_checkouts_of.sql"), &[&ids]).await?;
    rows.iter()
        .map(|row| {
            let problems_left: i64 = row.try_get("problems_left")?;
            let live = LiveCheckout {
                token: row.try_get("token")?,
                job_type: row.try_get("job_type")?,
                problems_left: usize::try_from(problems_left).unwrap_or(0),
            };
            Ok((row.try_get("workstation_id")?, row.try_get("checkout_id")?, live))
        })
        .collect()
}

/// Live checkouts of these workstations, older than a grace.
pub async fn live_checkouts_older_than(
    client: &ClientWrapper,
    workstations: &[WorkstationId],
    grace_seconds: f64,
) -> Result<Vec<(CheckoutId, WorkstationId)>, Error> {
    let ids: Vec<i64> = workstations.iter().map(|w| w.0).collect();
    let rows = client.run(include_str!("../queries/live_checkouts_of_all.sql"), &[&ids, &grace_seconds]).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// Marks workstations as not heard, with the seconds since their last word, under the session given with each. `ended`: their
/// connections have ended.
pub async fn mark_silent(
    client: &ClientWrapper,
    silent: &[(WorkstationId, i64, f64)],
    ended: bool,
) -> Result<(), Error> {
    let ids: Vec<i64> = silent.iter().map(|s| s.0.0).collect();
    let sessions: Vec<i64> = silent.iter().map(|s| s.1).collect();
    let ages: Vec<f64> = silent.iter().map(|s| s.2).collect();
    client.run(include_str!("../queries/silent_workstations.sql"), &[&ids, &sessions, &ages, &ended]).await.map(drop)
}

/// The last word of an agent that ends in good order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Goodbye {
    pub reason: String,
    /// The workstation goes to sleep.
    pub asleep: bool,
}

/// Records that agents have ended in good order, under the session given with each. Returns workstations whose rows are locked: that
/// of these is not recorded.
pub async fn mark_offline(
    client: &ClientWrapper,
    ended: &[(WorkstationId, i64, Goodbye)],
) -> Result<Vec<WorkstationId>, Error> {
    let ids: Vec<i64> = ended.iter().map(|e| e.0.0).collect();
    let sessions: Vec<i64> = ended.iter().map(|e| e.1).collect();
    let reasons: Vec<&str> = ended.iter().map(|e| e.2.reason.as_str()).collect();
    let asleep: Vec<bool> = ended.iter().map(|e| e.2.asleep).collect();
    let text = include_str!("../queries/goodbye_workstations.sql");
    let rows = client.run(text, &[&ids, &sessions, &reasons, &asleep]).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

/// Marks workstations whose rows name this server but that are not connected to it, unless they have only just
/// connected.
pub async fn mark_unconnected(
    client: &ClientWrapper,
    server_id: ServerId,
    connected: &[WorkstationId],
    grace_seconds: f64,
) -> Result<(), Error> {
    let ids: Vec<i64> = connected.iter().map(|w| w.0).collect();
    let text = include_str!("../queries/unconnected_workstations.sql");
    client.run(text, &[&server_id, &ids, &grace_seconds]).await.map(drop)
}

/// Takes the mark back. Returns workstations whose rows are locked: these keep it.
pub async fn mark_heard(client: &ClientWrapper, heard: &[(WorkstationId, i64)]) -> Result<Vec<WorkstationId>, Error> {
    let ids: Vec<i64> = heard.iter().map(|s| s.0.0).collect();
    let sessions: Vec<i64> = heard.iter().map(|s| s.1).collect();
    let rows = client.run(include_str!("../queries/heard_workstations.sql"), &[&ids, &sessions]).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

/// What an agent says of itself.
#[derive(Clone, Debug)]
pub struct StateChange {
    /// `waiting`, `suspended` or `draining`.
    pub state: &'static str,
    pub reason: String,
    /// It goes to sleep: its silence will not mean that something is wrong.
    pub asleep: bool,
    pub signs: Signs,
}

pub async fn change_state(
    client: &ClientWrapper,
    workstation_id: WorkstationId,
    session: i64,
    change: &StateChange,
) -> Result<(), Error> {
    let StateChange { state, reason, asleep, signs } = change;
    let Signs { idle_source, power, yields, settings, notes } = signs;
    let count = yields.map(|yields| yields.count);
    let (p50, p99) = (yields.map(|yields| yields.p50_ms), yields.map(|yields| yields.p99_ms));
    let statement = include_str!("../queries/change_workstation_state.sql");
    client
        .run(
            statement,
            &[
                &workstation_id,
                &session,
                state,
                reason,
                idle_source,
                power,
                &count,
                &p50,
                &p99,
                settings,
                asleep,
                notes,
            ],
        )
        .await
        .map(drop)
}

/// Notes GPUs and programs of a workstation, if this is still its session.
pub async fn equip(
    client: &ClientWrapper,
    workstation_id: WorkstationId,
    session: i64,
    gpus: &[String],
    programs: &[String],
) -> Result<(), Error> {
    let statement = include_str!("../queries/equip_workstation.sql");
    client.run(statement, &[&workstation_id, &session, &gpus, &programs]).await.map(drop)
}

/// What became of a workstation in the meantime.
#[derive(Clone, Debug)]
pub struct SessionState {
    pub workstation_id: WorkstationId,
    /// The newest connection's number.
    pub session: i64,
    pub dead: bool,
    pub drain: bool,
    /// By whom and why, if it is to be drained.
    pub drain_reason: String,
    /// How long until what it has not finished is to be given back, in seconds; negative: since when. None: it is not.
    pub drain_left: Option<f64>,
    /// What it may take, as `pcfarm.set_selection` keeps it.
    pub selection: Option<RawJson>,
    /// What is wanted of its agent's presence.
    pub presence: Option<RawJson>,
    /// What its agent is to run beside it.
    pub slots: Vec<String>,
}

pub async fn session_states(
    client: &ClientWrapper,
    workstations: &[WorkstationId],
) -> Result<Vec<SessionState>, Error> {
    let ids: Vec<i64> = workstations.iter().map(|w| w.0).collect();
    let rows = client.run(include_str!("../queries/session_states.sql"), &[&ids]).await?;
    rows.iter()
        .map(|row| {
            Ok(SessionState {
                workstation_id: row.try_get("workstation_id")?,
                session: row.try_get("session")?,
                dead: row.try_get("dead")?,
                drain: row.try_get("drain")?,
                drain_reason: row.try_get("drain_reason")?,
                drain_left: row.try_get("drain_left")?,
                selection: row.try_get("selection")?,
                presence: row.try_get("presence")?,
                slots: row.try_get("slots")?,
            })
        })
        .collect()
}

/// What workstations of these names may take. `options`: a JSON object, as `pcfarm.set_selection` takes it. `version`: the one
/// that it is meant for, of one workstation alone; empty: any.
pub async fn set_selection(
    client: &ClientWrapper,
    hostnames: &[String],
    options: &RawJson,
    version: &str,
) -> Result<(), Error> {
    client.run(include_str!("../queries/set_selection.sql"), &[&hostnames, options, &version]).await.map(drop)
}

/// What workstations of this name may take, as `pcfarm.set_selection` keeps it, and of which version that is.
pub async fn selection(client: &ClientWrapper, hostname: &str) -> Result<(RawJson, String), Error> {
    let row = &client.run(include_str!("../queries/selection.sql"), &[&hostname]).await?[0];
    Ok((row.try_get("selection")?, row.try_get("version")?))
}

/// What agents of these names are to go by. `settings`: a JSON object, as `pcfarm.set_presence` takes it. `version`: the one that it
/// is meant for, of one workstation alone; empty: any.
pub async fn set_presence(
    client: &ClientWrapper,
    hostnames: &[String],
    settings: &RawJson,
    version: &str,
) -> Result<(), Error> {
    client.run(include_str!("../queries/set_presence.sql"), &[&hostnames, settings, &version]).await.map(drop)
}

/// What agents of this name are to go by, as `pcfarm.set_presence` keeps it, and of which version that is.
pub async fn wanted(client: &ClientWrapper, hostname: &str) -> Result<(RawJson, String), Error> {
    let row = &client.run(include_str!("../queries/presence.sql"), &[&hostname]).await?[0];
    Ok((row.try_get("wanted")?, row.try_get("version")?))
}

/// Tells every server to look: `work`, `revoked`, `drain`, `selection` or `job_type`.
pub async fn notify(client: &ClientWrapper, what: &str) -> Result<(), Error> {
    client.run(include_str!("../queries/notify.sql"), &[&what]).await.map(drop)
}

/// A slot of an agent, which is a workstation of its own.
#[derive(Clone, Debug)]
pub struct Slot {
    pub hostname: String,
    pub name: String,
    pub started_at: SystemTime,
    /// None: it has not connected yet.
    pub state: Option<String>,
    /// What it may take, for people.
    pub selection: Option<String>,
}

pub async fn slots(client: &ClientWrapper) -> Result<Vec<Slot>, Error> {
    let rows = client.run(include_str!("../queries/slots.sql"), &[]).await?;
    rows.iter()
        .map(|row| {
            Ok(Slot {
                hostname: row.try_get("hostname")?,
                name: row.try_get("name")?,
                started_at: row.try_get("started_at")?,
                state: row.try_get("state")?,
                selection: row.try_get("selection")?,
            })
        })
        .collect()
}

/// Lets agents of these names run a slot, or ends it.
pub async fn set_slot(client: &ClientWrapper, hostnames: &[String], name: &str, running: bool) -> Result<(), Error> {
    let text = match running {
        true => include_str!("../queries/start_slot.sql"),
        false => include_str!("../queries/stop_slot.sql"),
    };
    client.run(text, &[&hostnames, &name]).await.map(drop)
}

/// How long ago a server was last heard by the database; `None`: it is not on record as running.
pub async fn pulse_age(client: &impl Queries, server: ServerId) -> Result<Option<Duration>, Error> {
    let rows = client.run(include_str!("../queries/pulse_age.sql"), &[&server]).await?;
    let seconds = rows.first().map(|row| row.try_get::<_, f64>(0)).transpose()?;
    Ok(seconds.map(|seconds| Duration::from_secs_f64(seconds.max(0.0))))
}
