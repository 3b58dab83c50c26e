//! The farm as people see it: workstations and what they hold, servers, numbers, and why a workstation has no work.
//! Only reads, and never a problem: everything here is summed from rows that are kept anyway.

use crate::checkout::Queries;
use crate::jobs::reason::{age_of, counted};
use crate::json::RawJson;
use crate::presence::{Signs, Yields};
use deadpool_postgres::ClientWrapper;
use pcfarm_proto::ids::{CheckoutId, JobId, ServerId, WorkstationId};
use std::collections::HashMap;
use std::time::{Duration, SystemTime};
use tokio_postgres::{Error, Row};

/// Most that one page holds.
pub const PAGE_LIMIT: u32 = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkstationState {
    Waiting,
    Processing,
    Suspended,
    Draining,
    /// Its connection has ended without a goodbye, and its lease runs.
    Lost,
    Offline,
    Dead,
}

impl WorkstationState {
    /// By the view's word for it.
    fn of_row(text: &str) -> WorkstationState {
        match text {
            "processing" => WorkstationState::Processing,
            "suspended" => WorkstationState::Suspended,
            "draining" => WorkstationState::Draining,
            "lost" => WorkstationState::Lost,
            "offline" => WorkstationState::Offline,
            "dead" => WorkstationState::Dead,
            _ => WorkstationState::Waiting,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Workstation {
    pub workstation_id: WorkstationId,
    pub hostname: String,
    pub state: WorkstationState,
    pub since: SystemTime,
    pub reason: String,
    pub cores: i32,
    pub memory_bytes: i64,
    /// Name and version, for people.
    pub system: String,
    pub system_name: String,
    pub arch: String,
    pub gpus: Vec<String>,
    pub programs: Vec<String>,
    pub agent_version: String,
    pub controllers: Vec<String>,
    pub labels: Vec<String>,
    /// What it may take, in words. None: whatever it can run.
    pub selection: Option<String>,
    pub last_heard: Option<SystemTime>,
    pub server: Option<String>,
    pub holds: Vec<Held>,
    pub drained: Option<Drained>,
    pub quarantine: Option<Quarantine>,
    /// What administrators want to remember about it.
    pub note: String,
    pub signs: Signs,
    /// What is wanted of its agent's presence, as `pcfarm.set_presence` keeps it.
    pub presence_wanted: Option<RawJson>,
    pub speed: Option<Speed>,
    /// It has said that it goes to sleep.
    pub asleep: bool,
    /// Its owner lets it be woken.
    pub can_be_woken: bool,
    /// When the farm began to wake it last.
    pub woken_at: Option<SystemTime>,
    /// Its agent cannot tell whether a person is present.
    pub cannot_tell: bool,
    /// Its last accepted result, to the hour.
    pub worked_at: Option<SystemTime>,
    /// Days on which it could have worked and did not, if there are as many as the farm's limit; otherwise 0.
    pub idle_days: i32,
}

/// That an administrator lets it take no more.
#[derive(Clone, Debug)]
pub struct Drained {
    pub by: String,
    pub since: SystemTime,
    pub why: String,
    /// When what is not finished is given back.
    pub deadline: Option<SystemTime>,
}

/// What a workstation failed that others solved, as `pcfarm.quarantine_workstations` writes it.
#[derive(Clone, Debug)]
pub struct Quarantine {
    /// Of most of them.
    pub job_type: String,
    pub problems: i64,
    /// Some of them, the newest first.
    pub evidence: Vec<Evidence>,
}

#[derive(Clone, Debug)]
pub struct Evidence {
    pub job_id: i64,
    pub problem_id: i64,
    pub message: String,
    pub solved_on: i64,
}

/// As it was measured last.
#[derive(Clone, Debug)]
pub struct Speed {
    pub job_type: String,
    pub problems_per_second: f64,
    pub measured_at: SystemTime,
}

/// A live checkout.
#[derive(Clone, Debug)]
pub struct Held {
    pub checkout_id: CheckoutId,
    pub job_id: JobId,
    pub job_name: String,
    pub from_order: i64,
    /// Exclusive.
    pub to_order: i64,
    pub problems: i64,
    pub since: SystemTime,
}

/// Workstations with a larger id than `after`; `all`: dead ones, too.
pub async fn workstations(
    client: &ClientWrapper,
    all: bool,
    after: WorkstationId,
    limit: u32,
) -> Result<Vec<Workstation>, Error> {
    read_workstations(client, all, after, limit.min(PAGE_LIMIT), None).await
}

/// These, in the order of their ids; those that are not there are left out.
pub async fn workstations_of(client: &ClientWrapper, ids: &[WorkstationId]) -> Result<Vec<Workstation>, Error> {
    let limit = u32::try_from(ids.len()).unwrap_or(u32::MAX);
    read_workstations(client, true, WorkstationId(0), limit, Some(ids)).await
}

pub async fn workstation(client: &ClientWrapper, id: WorkstationId) -> Result<Option<Workstation>, Error> {
    Ok(workstations_of(client, &[id]).await?.pop())
}

async fn read_workstations(
    client: &ClientWrapper,
    all: bool,
    after: WorkstationId,
    limit: u32,
    only: Option<&[WorkstationId]>,
) -> Result<Vec<Workstation>, Error> {
    let statement = include_str!("../queries/workstations.sql");
    let only: Option<Vec<i64>> = only.map(|ids| ids.iter().map(|id| id.0).collect());
    let rows = client.run(statement, &[&after, &all, &i64::from(limit), &only]).await?;
    let ids: Vec<i64> = rows.iter().map(|row| row.try_get("workstation_id")).collect::<Result<_, _>>()?;
    let mut holds = held_by(client, &ids).await?;
    rows.iter()
        .map(|row| {
            let workstation_id: WorkstationId = row.try_get("workstation_id")?;
            workstation_of_row(row, holds.remove(&workstation_id.0).unwrap_or_default())
        })
        .collect()
}

async fn held_by(client: &ClientWrapper, workstations: &[i64]) -> Result<HashMap<i64, Vec<Held>>, Error> {
    let mut holds: HashMap<i64, Vec<Held>> = HashMap::new();
    if workstations.is_empty() {
        return Ok(holds);
    }
    for row in client.run(include_str!("../queries/held_checkouts.sql"), &[&workstations]).await? {
        holds.entry(row.try_get("workstation_id")?).or_default().push(Held {
            checkout_id: row.try_get("checkout_id")?,
            job_id: row.try_get("job_id")?,
            job_name: row.try_get("job_name")?,
            from_order: row.try_get("from_order")?,
            to_order: row.try_get("to_order")?,
            problems: row.try_get("problems")?,
            since: row.try_get("since")?,
        });
    }
    Ok(holds)
}

fn workstation_of_row(row: &Row, holds: Vec<Held>) -> Result<Workstation, Error> {
    let state = WorkstationState::of_row(row.try_get("state")?);
    let told: String = row.try_get("reason")?;
    let reason = if told.is_empty() { usual_reason(state).to_owned() } else { told };
    Ok(Workstation {
        workstation_id: row.try_get("workstation_id")?,
        hostname: row.try_get("hostname")?,
        state,
        since: row.try_get("since")?,
        reason,
        cores: row.try_get("cores")?,
        memory_bytes: row.try_get("memory_bytes")?,
        system: row.try_get("system")?,
        agent_version: row.try_get("agent_version")?,
        controllers: row.try_get("controllers")?,
        labels: row.try_get("labels")?,
        system_name: row.try_get("system_name")?,
        arch: row.try_get("arch")?,
        gpus: row.try_get("gpus")?,
        programs: row.try_get("programs")?,
        selection: row.try_get("selection")?,
        last_heard: row.try_get("last_heard")?,
        server: row.try_get("server_name")?,
        holds,
        drained: drained_of_row(row)?,
        quarantine: quarantine_of_row(row)?,
        note: row.try_get("note")?,
        signs: signs_of_row(row)?,
        presence_wanted: row.try_get("presence_wanted")?,
        asleep: row.try_get("asleep")?,
        can_be_woken: row.try_get("can_be_woken")?,
        woken_at: row.try_get("woken_at")?,
        cannot_tell: row.try_get("cannot_tell")?,
        worked_at: row.try_get("worked_at")?,
        idle_days: row.try_get("idle_days")?,
        speed: speed_of_row(row)?,
    })
}

fn signs_of_row(row: &Row) -> Result<Signs, Error> {
    let yields = match row.try_get("yields")? {
        Some(count) => {
            Some(Yields { count, p50_ms: row.try_get("yield_p50_ms")?, p99_ms: row.try_get("yield_p99_ms")? })
        }
        None => None,
    };
    let settings = row.try_get("presence")?;
    // Only an explanation reads notes, from the row itself.
    let notes = Vec::new();
    Ok(Signs { idle_source: row.try_get("idle_source")?, power: row.try_get("power")?, yields, settings, notes })
}

fn drained_of_row(row: &Row) -> Result<Option<Drained>, Error> {
    if !row.try_get::<_, bool>("drain")? {
        return Ok(None);
    }
    let by: Option<String> = row.try_get("drained_by")?;
    Ok(Some(Drained {
        by: by.unwrap_or_default(),
        since: row.try_get::<_, Option<SystemTime>>("drained_since")?.map_or_else(|| row.try_get("since"), Ok)?,
        why: row.try_get("drained_why")?,
        deadline: row.try_get("drain_deadline")?,
    }))
}

fn quarantine_of_row(row: &Row) -> Result<Option<Quarantine>, Error> {
    let Some(problems) = row.try_get("quarantine_problems")? else { return Ok(None) };
    let (jobs, problem_ids): (Vec<i64>, Vec<i64>) = (row.try_get("evidence_jobs")?, row.try_get("evidence_problems")?);
    let (messages, solved_on): (Vec<String>, Vec<i64>) =
        (row.try_get("evidence_messages")?, row.try_get("evidence_solved_on")?);
    let evidence = jobs.into_iter().zip(problem_ids).zip(messages.into_iter().zip(solved_on));
    let evidence = evidence
        .map(|((job_id, problem_id), (message, solved_on))| Evidence { job_id, problem_id, message, solved_on })
        .collect();
    let job_type: Option<String> = row.try_get("quarantine_job_type")?;
    Ok(Some(Quarantine { job_type: job_type.unwrap_or_default(), problems, evidence }))
}

fn speed_of_row(row: &Row) -> Result<Option<Speed>, Error> {
    let Some(job_type) = row.try_get("speed_job_type")? else { return Ok(None) };
    Ok(Some(Speed {
        job_type,
        problems_per_second: row.try_get("problems_per_second")?,
        measured_at: row.try_get("speed_measured_at")?,
    }))
}

/// Where the agent gave none: no state is shown without its reason.
fn usual_reason(state: WorkstationState) -> &'static str {
    match state {
        WorkstationState::Waiting => "no work for it",
        WorkstationState::Processing => "crunches what it holds",
        WorkstationState::Suspended => "its agent does not work now and did not say why",
        WorkstationState::Draining => "finishes what it holds and takes no more",
        WorkstationState::Lost => "connection lost",
        WorkstationState::Offline => "stopped in good order",
        WorkstationState::Dead => "not heard of for the lease",
    }
}

/// The farm in numbers.
#[derive(Clone, Debug, Default)]
pub struct Status {
    pub servers: Vec<Server>,
    pub workstations_waiting: i64,
    pub workstations_processing: i64,
    pub workstations_suspended: i64,
    pub workstations_draining: i64,
    pub workstations_offline: i64,
    pub workstations_dead: i64,
    /// Not among the suspended.
    pub workstations_cannot_tell: i64,
    /// Their connections are lost, and their leases run.
    pub workstations_lost: i64,
    /// Their connections stand, and nothing is heard on them. Counted in their states as well, as are the following.
    pub workstations_unheard: i64,
    pub workstations_without_work: i64,
    /// Cores of workstations that are neither lost nor offline nor dead.
    pub cores: i64,
    pub jobs_loading: i64,
    pub jobs_open: i64,
    pub jobs_held: i64,
    pub problems_waiting: i64,
    pub problems_in_progress: i64,
    pub refused_results: i64,
}

#[derive(Clone, Debug)]
pub struct Server {
    pub server_id: ServerId,
    pub name: String,
    pub address: String,
    pub started_at: SystemTime,
    pub heard_at: SystemTime,
    pub live: bool,
}

/// `pulse_limit`: the age up to which a server's pulse counts as running.
pub async fn status(client: &ClientWrapper, pulse_limit: Duration) -> Result<Status, Error> {
    let servers = client.run(include_str!("../queries/servers.sql"), &[&pulse_limit.as_secs_f64()]).await?;
    let counts = client.run(include_str!("../queries/farm_counts.sql"), &[]).await?;
    let counts = &counts[0];
    Ok(Status {
        servers: servers.iter().map(server_of_row).collect::<Result<_, _>>()?,
        workstations_waiting: counts.try_get("workstations_waiting")?,
        workstations_processing: counts.try_get("workstations_processing")?,
        workstations_suspended: counts.try_get("workstations_suspended")?,
        workstations_draining: counts.try_get("workstations_draining")?,
        workstations_offline: counts.try_get("workstations_offline")?,
        workstations_dead: counts.try_get("workstations_dead")?,
        workstations_cannot_tell: counts.try_get("workstations_cannot_tell")?,
        workstations_lost: counts.try_get("workstations_lost")?,
        workstations_unheard: counts.try_get("workstations_unheard")?,
        workstations_without_work: counts.try_get("workstations_without_work")?,
        cores: counts.try_get("cores")?,
        jobs_loading: counts.try_get("jobs_loading")?,
        jobs_open: counts.try_get("jobs_open")?,
        jobs_held: counts.try_get("jobs_held")?,
        problems_waiting: counts.try_get("problems_waiting")?,
        problems_in_progress: counts.try_get("problems_in_progress")?,
        refused_results: counts.try_get("refused_results")?,
    })
}

/// Open jobs whose deadline has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lateness {
    pub jobs: i64,
    /// Of the one whose deadline was first.
    pub seconds: f64,
}

pub async fn lateness(client: &ClientWrapper) -> Result<Lateness, Error> {
    let rows = client.run(include_str!("../queries/lateness.sql"), &[]).await?;
    Ok(Lateness { jobs: rows[0].try_get("jobs")?, seconds: rows[0].try_get("seconds")? })
}

fn server_of_row(row: &Row) -> Result<Server, Error> {
    Ok(Server {
        server_id: row.try_get("server_id")?,
        name: row.try_get("name")?,
        address: row.try_get("address")?,
        started_at: row.try_get("started_at")?,
        heard_at: row.try_get("heard_at")?,
        live: row.try_get("live")?,
    })
}

/// Why a job is not running, or not faster, and what would change that. `None`: there is no such job.
pub async fn explain_job(client: &ClientWrapper, job_id: JobId) -> Result<Option<Vec<String>>, Error> {
    let Some(job) = crate::jobs::get(client, job_id).await? else { return Ok(None) };
    let ahead = crate::jobs::ahead(client, job_id).await?;
    Ok(Some(crate::jobs::reason::explain(&job, &ahead)))
}

/// The same of a workstation, with what is told of it. `None`: it has gone.
pub async fn explain_workstation(
    client: &ClientWrapper,
    workstation: &Workstation,
) -> Result<Option<Vec<String>>, Error> {
    let statement = include_str!("../queries/workstation_prospects.sql");
    let rows = client.run(statement, &[&workstation.workstation_id]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let prospects = Prospects {
        silent: row.try_get("silent")?,
        drain: row.try_get("drain")?,
        could_run: row.try_get("could_run")?,
        may_run: row.try_get("may_run")?,
        have_work: row.try_get("have_work")?,
        loading: row.try_get("loading")?,
        held: row.try_get("held")?,
        wanted_elsewhere: row.try_get::<_, Option<Vec<String>>>("wanted_elsewhere")?.unwrap_or_default(),
        lacks: row.try_get::<_, Option<Vec<String>>>("lacks")?.unwrap_or_default(),
        notes: row.try_get("presence_notes")?,
    };
    Ok(Some(explain(workstation, &prospects, SystemTime::now())))
}

/// What work there is for a workstation, by its controllers.
#[derive(Clone, Debug, Default)]
struct Prospects {
    silent: bool,
    drain: bool,
    /// Jobs that have not ended, of these those that may be handed out, of these those with work left.
    could_run: i64,
    may_run: i64,
    have_work: i64,
    loading: i64,
    held: i64,
    /// Controllers of open jobs that it does not run.
    wanted_elsewhere: Vec<String>,
    /// Conditions of open jobs, whose controllers it runs, that it does not fulfil.
    lacks: Vec<String>,
    /// Findings of its agent about presence sources.
    notes: Vec<String>,
}

/// `now` is for ages in words alone.
fn explain(workstation: &Workstation, prospects: &Prospects, now: SystemTime) -> Vec<String> {
    let id = workstation.workstation_id;
    let since = now.duration_since(workstation.since).unwrap_or_default().as_secs();
    let since = age_of(i64::try_from(since).unwrap_or(i64::MAX));
    let reason = &workstation.reason;
    let mut reasons = Vec::new();
    match workstation.state {
        WorkstationState::Offline if !workstation.asleep => reasons.push(format!(
            "It has been offline for {since}: {reason}. It works again when its \
             agent connects: {}",
            if workstation.can_be_woken {
                format!("`pcfarm wake {id}` wakes the PC.")
            } else {
                "is the PC on?".to_owned()
            }
        )),
        WorkstationState::Offline => {
            let wakes = if workstation.can_be_woken {
                format!("`pcfarm wake {id}` wakes it.")
            } else {
                "Its owner does not let the farm wake it.".to_owned()
            };
            reasons.push(format!("It has been asleep for {since}, as it said: {reason}. {wakes}"));
        }
        WorkstationState::Lost => {
            reasons.push(format!(
                "It has been lost for {since}: {reason}. What it holds stays its own until the lease is over: then it is dead, and the \
                 work comes back. It works again when its agent connects: is the PC on, does pcfarm-worker run, does it reach a server?"
            ));
            if prospects.drain {
                reasons.push(format!("It is drained as well: `pcfarm undrain {id}` lets it take work again."));
            }
        }
        WorkstationState::Dead => reasons.push(format!(
            "It has been dead for {since}: {reason}. What it held is back on the queue. It works again when its agent \
             connects: is the PC on, does pcfarm-worker run, does it reach a server?"
        )),
        WorkstationState::Suspended => reasons.push(format!(
            "It has been suspended for {since}: {reason}. It takes work again when that is over; its agent decides."
        )),
        WorkstationState::Draining if workstation.quarantine.is_some() => {
            reasons.push(format!(
                "It has been in quarantine for {since}: {reason}. When what is wrong with it is mended, `pcfarm undrain --release \
                 {id}` lets it take work again."
            ));
            reasons.extend(workstation.quarantine.iter().flat_map(|quarantine| &quarantine.evidence).map(|one| {
                let Evidence { job_id, problem_id, message, solved_on } = one;
                format!(
                    "Problem {problem_id} of job {job_id} failed here ({message}); workstation {solved_on} solved it."
                )
            }));
        }
        WorkstationState::Draining if prospects.drain => reasons.push(format!(
            "It has been draining for {since}: {reason}. `pcfarm undrain {id}` lets it take work again."
        )),
        WorkstationState::Draining => reasons.push(format!(
            "Its agent has been draining for {since}: {reason}. It takes work again when its agent is started anew."
        )),
        WorkstationState::Processing if reason != usual_reason(WorkstationState::Processing) => {
            reasons.push(format!("Something that its controllers use holds up some of its work: {reason}."));
        }
        WorkstationState::Waiting | WorkstationState::Processing => {}
    }
    reasons.extend(prospects.notes.iter().map(|note| format!("Its agent notes: {note}.")));
    if workstation.cannot_tell {
        reasons.push(
            "Its agent cannot tell whether a person is present, so it does not work: `pcfarm-worker doctor` on the PC names \
             what is missing."
                .to_owned(),
        );
    }
    if workstation.idle_days > 0 {
        reasons.push(format!(
            "It has had no result accepted on {}, though there was work that it could have done.",
            counted(i64::from(workstation.idle_days), "day")
        ));
    }
    if prospects.silent
        && !matches!(workstation.state, WorkstationState::Lost | WorkstationState::Offline | WorkstationState::Dead)
    {
        reasons.push(
            "Its server does not hear it: it gets nothing until it is heard again, and is dead when the lease is over."
                .to_owned(),
        );
    }
    if !workstation.holds.is_empty() {
        let problems: i64 = workstation.holds.iter().map(|held| held.problems).sum();
        let checkouts = workstation.holds.len() as i64;
        reasons.push(format!("It holds {} in {}.", counted(problems, "problem"), counted(checkouts, "checkout")));
    }
    if let Some(selection) = &workstation.selection {
        reasons.push(format!("It takes only some work: {selection}. `pcfarm select` changes that."));
    }
    let may_take = matches!(workstation.state, WorkstationState::Waiting | WorkstationState::Processing);
    if may_take {
        reasons.extend(work(workstation, prospects));
        if !prospects.lacks.is_empty() {
            reasons.push(format!("Some open jobs are not for it: they require {}.", prospects.lacks.join(", ")));
        }
    }
    reasons
}

/// Whether there is work for one that may take some.
fn work(workstation: &Workstation, prospects: &Prospects) -> Option<String> {
    if prospects.have_work > 0 {
        let jobs = counted(prospects.have_work, "open job");
        let idle = workstation.holds.is_empty();
        return idle.then(|| format!("There is work for it in {jobs}: it is handed out within a second or two."));
    }
    if prospects.may_run > 0 {
        return Some(format!(
            "Everything in the {} for its controllers has been handed out: there is more when something comes back.",
            counted(prospects.may_run, "open job")
        ));
    }
    if prospects.could_run > 0 {
        return Some(format!(
            "No job for its controllers may be handed out: {} loading, {} held, {} to start later. \
             `pcfarm jobs` tells what each waits for.",
            prospects.loading,
            prospects.held,
            prospects.could_run - prospects.loading - prospects.held
        ));
    }
    let runs = match workstation.controllers.as_slice() {
        [] => "it runs no controllers".to_owned(),
        controllers => format!("it runs {}", controllers.join(", ")),
    };
    Some(match prospects.wanted_elsewhere.as_slice() {
        [] if !prospects.lacks.is_empty() => format!("There is no open job that it could run; {runs}."),
        [] => format!("There is no open job; {runs}."),
        wanted => format!("Open jobs want {}; {runs}.", wanted.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workstation(state: WorkstationState, holds: i64) -> Workstation {
        let held = Held {
            checkout_id: CheckoutId(1),
            job_id: JobId(7),
            job_name: "night".into(),
            from_order: 0,
            to_order: 2,
            problems: 20,
            since: SystemTime::UNIX_EPOCH,
        };
        Workstation {
            workstation_id: WorkstationId(4),
            hostname: "pc4".into(),
            state,
            since: SystemTime::UNIX_EPOCH,
            reason: "because".into(),
            cores: 8,
            memory_bytes: 1,
            system: "Linux".into(),
            system_name: "linux".into(),
            arch: "x86_64".into(),
            gpus: Vec::new(),
            programs: Vec::new(),
            agent_version: "0".into(),
            controllers: vec!["emsr".into()],
            labels: Vec::new(),
            selection: None,
            last_heard: None,
            server: None,
            drained: None,
            quarantine: None,
            note: String::new(),
            signs: Signs::default(),
            presence_wanted: None,
            asleep: false,
            can_be_woken: false,
            woken_at: None,
            cannot_tell: false,
            worked_at: None,
            idle_days: 0,
            speed: None,
            holds: vec![held; holds as usize],
        }
    }

    #[test]
    fn a_workstation_without_work_is_explained() {
        let none = Prospects::default;
        let cases = [
            (WorkstationState::Dead, 0, none(), "dead for 90 s: because"),
            (WorkstationState::Offline, 0, none(), "offline for 90 s: because"),
            (WorkstationState::Suspended, 0, none(), "suspended for 90 s: because"),
            (WorkstationState::Lost, 2, Prospects { silent: true, ..none() }, "lost for 90 s: because. What it holds"),
            (WorkstationState::Lost, 0, Prospects { drain: true, ..none() }, "`pcfarm undrain 4`"),
            (WorkstationState::Draining, 1, Prospects { drain: true, ..none() }, "`pcfarm undrain 4`"),
            (WorkstationState::Processing, 2, none(), "40 problems in 2 checkouts"),
            (WorkstationState::Processing, 2, none(), "holds up some of its work: because."),
            (WorkstationState::Waiting, 0, Prospects { silent: true, ..none() }, "does not hear it"),
            (
                WorkstationState::Waiting,
                0,
                Prospects { notes: vec!["the session helper x11 ended".into()], ..none() },
                "Its agent notes: the session helper x11 ended.",
            ),
            (WorkstationState::Waiting, 0, none(), "There is no open job; it runs emsr."),
            (
                WorkstationState::Waiting,
                0,
                Prospects { wanted_elsewhere: vec!["x".into()], ..none() },
                "Open jobs want x",
            ),
            (
                WorkstationState::Waiting,
                0,
                Prospects { could_run: 3, held: 1, ..none() },
                "0 loading, 1 held, 2 to start later",
            ),
            (
                WorkstationState::Waiting,
                0,
                Prospects { lacks: vec!["gpu".into(), "memory >= 8 GiB".into()], ..none() },
                "they require gpu, memory >= 8 GiB.",
            ),
            (WorkstationState::Waiting, 0, Prospects { could_run: 1, may_run: 1, ..none() }, "has been handed out"),
            (WorkstationState::Waiting, 0, Prospects { have_work: 1, ..none() }, "within a second or two"),
        ];
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(90);
        for (state, holds, prospects, expected) in cases {
            let reasons = explain(&workstation(state, holds), &prospects, now).join("\n");
            assert!(reasons.contains(expected), "{reasons} / {expected}");
        }
    }
}
