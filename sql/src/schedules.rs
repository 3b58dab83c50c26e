//! Schedules: definitions, the next time of each, what was triggered, and what jobs made by them still wait for. When
//! something comes is not known here: servers compute it, under the locks that [`claim`] takes.

use crate::checkout::Queries;
use crate::json::RawJson;
use crate::pool::Kept;
use crate::submit::{Begun, LoadError, Loading, Target};
use deadpool_postgres::{ClientWrapper, Object};
use pcfarm_faults::{CrashPoint, crash_point};
use pcfarm_proto::ids::{JobId, ProblemId, ScheduleId, ServerId};
use std::time::{Duration, SystemTime};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

/// Most that one page holds.
pub const PAGE_LIMIT: u32 = 1_000;

/// What becomes of due times that nobody was there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CatchUp {
    /// They are missed; one that is late by less than a minute is not.
    Skip,
    /// The last one is triggered.
    Once,
    /// All are, up to a limit.
    All,
}

impl CatchUp {
    pub fn as_str(self) -> &'static str {
        match self {
            CatchUp::Skip => "skip",
            CatchUp::Once => "once",
            CatchUp::All => "all",
        }
    }

    /// The row's CHECK admits these three.
    fn of_row(text: &str) -> CatchUp {
        match text {
            "skip" => CatchUp::Skip,
            "all" => CatchUp::All,
            _ => CatchUp::Once,
        }
    }
}

/// What somebody wants done when.
#[derive(Clone, Debug)]
pub struct Schedule {
    pub schedule_id: ScheduleId,
    pub owner: String,
    pub name: String,
    pub description: String,
    pub recurrence: String,
    pub time_zone: String,
    pub starts_at: Option<SystemTime>,
    pub ends_at: Option<SystemTime>,
    pub enabled: bool,
    pub catch_up: CatchUp,
    pub catch_up_limit: i32,
    pub jitter_ms: i64,
    pub payload: RawJson,
    pub job_id: Option<JobId>,
    pub template: Option<RawJson>,
    pub version: i64,
    pub anchored_at: SystemTime,
    pub error: Option<String>,
    pub created_at: SystemTime,
    pub changed_at: SystemTime,
}

/// A schedule, and where it is.
#[derive(Clone, Debug)]
pub struct Listed {
    pub schedule: Schedule,
    /// Triggers so far.
    pub sequence: i64,
    pub due_at: Option<SystemTime>,
    pub wake_at: Option<SystemTime>,
    pub last_due_at: Option<SystemTime>,
    pub last_triggered_at: Option<SystemTime>,
    /// Of the job that it enqueues into, if that has one.
    pub job_key: Option<String>,
    /// The database's clock.
    pub now: SystemTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Active,
    Disabled,
    /// It comes no more.
    Ended,
    /// Nobody can say when it comes.
    Broken,
}

impl State {
    pub const ALL: [State; 4] = [State::Active, State::Disabled, State::Ended, State::Broken];

    pub fn as_str(self) -> &'static str {
        match self {
            State::Active => "active",
            State::Disabled => "disabled",
            State::Ended => "ended",
            State::Broken => "broken",
        }
    }
}

impl Listed {
    pub fn state(&self) -> State {
        match (&self.schedule.error, self.schedule.enabled, self.due_at, self.wake_at) {
            (Some(_), _, _, _) => State::Broken,
            (None, false, _, _) => State::Disabled,
            (None, true, None, None) => State::Ended,
            (None, true, _, _) => State::Active,
        }
    }
}

/// Which schedules.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub owner: Option<String>,
    pub schedule_id: Option<ScheduleId>,
    pub name: Option<String>,
    pub name_prefix: Option<String>,
    pub job_id: Option<JobId>,
    pub state: Option<State>,
    /// Owner and name of the last one of the page before.
    pub after: Option<(String, String)>,
    pub limit: u32,
}

fn schedule(row: &Row) -> Result<Schedule, Error> {
    Ok(Schedule {
        schedule_id: row.try_get("schedule_id")?,
        owner: row.try_get("owner")?,
        name: row.try_get("name")?,
        description: row.try_get("description")?,
        recurrence: row.try_get("recurrence")?,
        time_zone: row.try_get("time_zone")?,
        starts_at: row.try_get("starts_at")?,
        ends_at: row.try_get("ends_at")?,
        enabled: row.try_get("enabled")?,
        catch_up: CatchUp::of_row(row.try_get("catch_up")?),
        catch_up_limit: row.try_get("catch_up_limit")?,
        jitter_ms: row.try_get("jitter_ms")?,
        payload: row.try_get::<_, Option<RawJson>>("payload")?.unwrap_or_default(),
        job_id: row.try_get("job_id")?,
        template: row.try_get("template")?,
        version: row.try_get("version")?,
        anchored_at: row.try_get("anchored_at")?,
        error: row.try_get("error")?,
        created_at: row.try_get("created_at")?,
        changed_at: row.try_get("changed_at")?,
    })
}

/// By owner and name.
pub async fn list(client: &impl Queries, wanted: &Wanted) -> Result<Vec<Listed>, Error> {
    let (after_owner, after_name) = wanted.after.clone().unzip();
    let state = wanted.state.map(State::as_str);
    let limit = i64::from(wanted.limit.clamp(1, PAGE_LIMIT));
    let Wanted { owner, schedule_id, name, name_prefix, job_id, .. } = wanted;
    let text = include_str!("../queries/schedules.sql");
    let rows = client
        .run(text, &[owner, schedule_id, name, name_prefix, job_id, &state, &after_owner, &after_name, &limit])
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Listed {
                schedule: schedule(row)?,
                sequence: row.try_get("sequence")?,
                due_at: row.try_get("due_at")?,
                wake_at: row.try_get("wake_at")?,
                last_due_at: row.try_get("last_due_at")?,
                last_triggered_at: row.try_get("last_triggered_at")?,
                job_key: row.try_get("job_key")?,
                now: row.try_get("now")?,
            })
        })
        .collect()
}

/// The database's time, and whose session this is.
pub async fn clock(client: &impl Queries) -> Result<(SystemTime, String), Error> {
    let rows = client.run(include_str!("../queries/database_clock.sql"), &[]).await?;
    Ok((rows[0].try_get(0)?, rows[0].try_get(1)?))
}

/// `options`: a JSON object, as `pcfarm.create_schedule` takes it. Without an owner it is the session's user.
pub async fn add(
    client: &impl Queries,
    owner: Option<&str>,
    name: &str,
    recurrence: &str,
    options: &RawJson,
) -> Result<ScheduleId, Error> {
    let text = include_str!("../queries/add_schedule.sql");
    client.run(text, &[&owner, &name, &recurrence, options]).await?[0].try_get(0)
}

/// Changes what the options name. None: the schedule is of another version than that by now.
pub async fn change(
    client: &impl Queries,
    schedule: ScheduleId,
    version: Option<i64>,
    options: &RawJson,
) -> Result<Option<i64>, Error> {
    let text = include_str!("../queries/change_schedule.sql");
    client.run(text, &[&schedule, &version, options]).await?[0].try_get(0)
}

/// False: it is of another version than that by now.
pub async fn remove(client: &impl Queries, schedule: ScheduleId, version: Option<i64>) -> Result<bool, Error> {
    client.run(include_str!("../queries/remove_schedule.sql"), &[&schedule, &version]).await?[0].try_get(0)
}

/// Once more, whatever its times are; a job that it makes is traced under `trace_parent`. Returns the trigger's sequence
/// number.
pub async fn trigger_now(
    client: &impl Queries,
    schedule: ScheduleId,
    trace_parent: Option<&str>,
) -> Result<i64, Error> {
    client.run(include_str!("../queries/trigger_schedule_now.sql"), &[&schedule, &trace_parent]).await?[0].try_get(0)
}

/// One trigger, and what came of it.
#[derive(Clone, Debug)]
pub struct Trigger {
    pub sequence: i64,
    pub due_at: SystemTime,
    pub triggered_at: SystemTime,
    pub job_id: Option<JobId>,
    /// None: a job was made.
    pub problem_id: Option<ProblemId>,
    /// Why nothing came of it.
    pub refusal: Option<String>,
    /// None: by hand.
    pub server_id: Option<ServerId>,
    /// None: the job is forgotten.
    pub job_state: Option<String>,
    /// Of the problem, if it has ended.
    pub failed: Option<bool>,
    /// Why it failed, or why a load is tried again.
    pub message: Option<String>,
}

/// The newest first, those before a sequence number.
pub async fn history(
    client: &impl Queries,
    schedule: ScheduleId,
    before: Option<i64>,
    limit: u32,
) -> Result<Vec<Trigger>, Error> {
    let most = limit.clamp(1, PAGE_LIMIT) as i32;
    let rows = client.run(include_str!("../queries/schedule_history.sql"), &[&schedule, &before, &most]).await?;
    rows.iter()
        .map(|row| {
            Ok(Trigger {
                sequence: row.try_get("sequence")?,
                due_at: row.try_get("due_at")?,
                triggered_at: row.try_get("triggered_at")?,
                job_id: row.try_get("job_id")?,
                problem_id: row.try_get("problem_id")?,
                refusal: row.try_get("refusal")?,
                server_id: row.try_get("server_id")?,
                job_state: row.try_get("job_state")?,
                failed: row.try_get("failed")?,
                message: row.try_get("message")?,
            })
        })
        .collect()
}

/// Removes ticks that are older than that. Returns how many.
pub async fn forget_ticks(client: &ClientWrapper, age: Duration) -> Result<u64, Error> {
    let statement = client.prepare_cached(include_str!("../queries/forget_schedule_ticks.sql")).await?;
    client.execute(&statement, &[&age.as_secs_f64()]).await
}

// Ticking

/// A schedule that is this transaction's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    pub schedule_id: ScheduleId,
    pub version: i64,
    pub sequence: i64,
    /// None: nobody has computed it.
    pub due_at: Option<SystemTime>,
    /// The last due time that a server triggered.
    pub last_due_at: Option<SystemTime>,
    /// Due times in the future that a clock that was ahead triggered.
    pub early: Vec<SystemTime>,
}

/// A schedule that waits, by what its row says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Waiting {
    pub schedule_id: ScheduleId,
    pub sequence: i64,
    pub due_at: Option<SystemTime>,
    pub wake_at: SystemTime,
}

/// Other times for a schedule that waits.
#[derive(Clone, Debug, PartialEq)]
pub struct Sooner {
    pub of: Waiting,
    pub due_at: Option<SystemTime>,
    pub wake_at: SystemTime,
    /// Due times in the future that a clock that was ahead triggered.
    pub early: Vec<SystemTime>,
}

/// Schedules that wait the longest, before a place in that order, and the database's time. None while the clock is behind.
pub async fn waiting_longest(
    client: &impl Queries,
    before: Option<(SystemTime, ScheduleId)>,
    limit: i64,
) -> Result<(SystemTime, Vec<Waiting>), Error> {
    let (wake, id) = before.map_or((None, None), |(wake, id)| (Some(wake), Some(id)));
    let rows = client.run(include_str!("../queries/schedules_waiting_longest.sql"), &[&wake, &id, &limit]).await?;
    let now = match rows.first() {
        Some(row) => row.try_get("now")?,
        None => return Ok((SystemTime::now(), Vec::new())),
    };
    let waiting = rows.iter().map(|row| {
        Ok(Waiting {
            schedule_id: row.try_get("schedule_id")?,
            sequence: row.try_get("sequence")?,
            due_at: row.try_get("due_at")?,
            wake_at: row.try_get("wake_at")?,
        })
    });
    Ok((now, waiting.collect::<Result<_, Error>>()?))
}

/// Lets the intervals of schedules count from a moment, where they count from a later one. Returns the schedules that were changed.
pub async fn anchor(client: &impl Queries, of: &[ScheduleId], at: SystemTime) -> Result<Vec<ScheduleId>, Error> {
    let rows = client.run(include_str!("../queries/anchor_schedules.sql"), &[&of, &at]).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

/// Definitions outside a tick.
pub async fn definitions_of(client: &impl Queries, of: &[ScheduleId]) -> Result<Vec<Schedule>, Error> {
    let rows = client.run(include_str!("../queries/schedule_definitions.sql"), &[&of]).await?;
    rows.iter().map(schedule).collect()
}

/// Due times in the future that have been triggered, of each of these schedules.
pub async fn triggered_early(
    client: &impl Queries,
    of: &[ScheduleId],
) -> Result<Vec<(ScheduleId, Vec<SystemTime>)>, Error> {
    let rows = client.run(include_str!("../queries/schedules_triggered_early.sql"), &[&of]).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// Writes other times, unless a schedule was triggered or changed meanwhile. Returns how many were written.
pub async fn wake_sooner(client: &impl Queries, sooner: &[Sooner]) -> Result<usize, Error> {
    let ids: Vec<ScheduleId> = sooner.iter().map(|one| one.of.schedule_id).collect();
    let sequences: Vec<i64> = sooner.iter().map(|one| one.of.sequence).collect();
    let seen: Vec<SystemTime> = sooner.iter().map(|one| one.of.wake_at).collect();
    let dues: Vec<Option<SystemTime>> = sooner.iter().map(|one| one.due_at).collect();
    let wakes: Vec<SystemTime> = sooner.iter().map(|one| one.wake_at).collect();
    let (early_ids, early): (Vec<ScheduleId>, Vec<SystemTime>) =
        sooner.iter().flat_map(|one| one.early.iter().map(|due| (one.of.schedule_id, *due))).unzip();
    let text = include_str!("../queries/wake_schedules_sooner.sql");
    Ok(client.run(text, &[&ids, &sequences, &seen, &dues, &wakes, &early_ids, &early]).await?.len())
}

/// A look at what is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looked {
    /// The database's time.
    pub now: SystemTime,
    /// All that was to be looked at before this has been claimed, or is another server's.
    pub to: SystemTime,
}

/// What becomes of one.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub due: Due,
    /// Due times that are triggered, the earliest first.
    pub triggers: Vec<SystemTime>,
    pub next_due: Option<SystemTime>,
    pub next_wake: Option<SystemTime>,
}

/// What a tick came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticked {
    pub triggered: i64,
    pub refused: i64,
    pub postponed: i64,
}

/// A tick's transaction. What it has claimed is nobody else's until it is committed or given up; dropped, its connection is
/// closed, so that nobody waits for locks that a pool holds.
pub struct Tick<'a> {
    client: Option<Object>,
    line: &'a mut Kept,
}

impl Drop for Tick<'_> {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            drop(Object::take(client));
        }
    }
}

impl<'a> Tick<'a> {
    pub async fn begin(line: &'a mut Kept) -> Result<Tick<'a>, deadpool_postgres::PoolError> {
        let client = line.take().await?;
        let tick = Tick { client: Some(client), line };
        tick.client().batch_execute("begin").await.map_err(deadpool_postgres::PoolError::Backend)?;
        Ok(tick)
    }

    fn client(&self) -> &Object {
        self.client.as_ref().expect("it is there until the end")
    }

    /// What is due after `floor`, the first of it, and if there is some up to when all of that has been looked at.
    pub async fn claim(&self, floor: Option<SystemTime>, limit: i64) -> Result<(Vec<Due>, Option<Looked>), Error> {
        let text = include_str!("../queries/claim_schedules.sql");
        let floor = floor.map_or(postgres_types::Timestamp::NegInfinity, postgres_types::Timestamp::Value);
        let rows = self.client().run(text, &[&floor, &limit]).await?;
        let looked = rows.last().map(|last| -> Result<Looked, Error> {
            let now = last.try_get("now")?;
            Ok(Looked { now, to: if (rows.len() as i64) < limit { now } else { last.try_get("wake_at")? } })
        });
        let looked = looked.transpose()?;
        let due = rows.iter().map(|row| {
            Ok(Due {
                schedule_id: row.try_get("schedule_id")?,
                version: row.try_get("version")?,
                sequence: row.try_get("sequence")?,
                due_at: row.try_get("due_at")?,
                last_due_at: row.try_get("last_due_at")?,
                early: row.try_get::<_, Option<Vec<SystemTime>>>("early")?.unwrap_or_default(),
            })
        });
        Ok((due.collect::<Result<_, Error>>()?, looked))
    }

    /// Without payloads and templates, which stay in the database.
    pub async fn definitions(&self, of: &[ScheduleId]) -> Result<Vec<Schedule>, Error> {
        let ids: Vec<i64> = of.iter().map(|id| id.0).collect();
        let rows = self.client().run(include_str!("../queries/schedule_definitions.sql"), &[&ids]).await?;
        rows.iter().map(schedule).collect()
    }

    /// Triggers, and writes the next times. Jobs that are made are traced under `trace_parent`.
    pub async fn write(
        &self,
        server: ServerId,
        outcomes: &[Outcome],
        trace_parent: Option<&str>,
    ) -> Result<Ticked, Error> {
        let triggers = || outcomes.iter().flat_map(|o| o.triggers.iter().map(|due| (o.due.schedule_id.0, *due)));
        let (trigger_ids, trigger_dues): (Vec<i64>, Vec<SystemTime>) = triggers().unzip();
        let ids: Vec<i64> = outcomes.iter().map(|o| o.due.schedule_id.0).collect();
        let seen: Vec<i64> = outcomes.iter().map(|o| o.due.sequence).collect();
        let counts: Vec<i32> = outcomes.iter().map(|o| o.triggers.len() as i32).collect();
        let last_dues: Vec<Option<SystemTime>> = outcomes.iter().map(|o| o.triggers.last().copied()).collect();
        let dues: Vec<Option<SystemTime>> = outcomes.iter().map(|o| o.next_due).collect();
        let wakes: Vec<Option<SystemTime>> = outcomes.iter().map(|o| o.next_wake).collect();
        let text = include_str!("../queries/trigger_schedules.sql");
        let parameters: [&(dyn ToSql + Sync); 10] =
            [&server, &trigger_ids, &trigger_dues, &ids, &seen, &counts, &last_dues, &dues, &wakes, &trace_parent];
        let rows = self.client().run(text, &parameters).await?;
        Ok(Ticked {
            triggered: rows[0].try_get("triggered")?,
            refused: rows[0].try_get("refused")?,
            postponed: rows[0].try_get("postponed")?,
        })
    }

    /// Says of schedules why nobody can tell when they come.
    pub async fn break_off(&self, broken: &[(ScheduleId, String)]) -> Result<(), Error> {
        let ids: Vec<i64> = broken.iter().map(|(id, _)| id.0).collect();
        let errors: Vec<&str> = broken.iter().map(|(_, error)| error.as_str()).collect();
        self.client().run(include_str!("../queries/break_schedules.sql"), &[&ids, &errors]).await.map(drop)
    }

    pub async fn commit(mut self) -> Result<(), Error> {
        self.client().batch_execute("commit").await?;
        if let Some(client) = self.client.take() {
            self.line.put(client);
        }
        Ok(())
    }
}

/// The time, and when something is due next, after `floor`.
pub async fn next_wake(
    client: &impl Queries,
    floor: Option<SystemTime>,
) -> Result<(SystemTime, Option<SystemTime>), Error> {
    let floor = floor.map_or(postgres_types::Timestamp::NegInfinity, postgres_types::Timestamp::Value);
    let rows = client.run(include_str!("../queries/next_wake.sql"), &[&floor]).await?;
    Ok((rows[0].try_get("now")?, rows[0].try_get("wake_at")?))
}

// Loading

/// A query whose rows a job that a schedule has made waits for; this caller's for its time limit.
#[derive(Clone, Debug)]
pub struct Load {
    pub job_id: JobId,
    pub number: i32,
    pub due_at: SystemTime,
    pub query: String,
    pub convoy: u32,
    pub time_limit: Duration,
    pub attempts: i32,
    /// Its job is still waiting for it.
    pub wanted: bool,
    /// As whom the query runs.
    pub read_role: Option<String>,
    /// The job's, if that is traced.
    pub trace_parent: Option<String>,
}

pub async fn claim_load(client: &impl Queries) -> Result<Option<Load>, Error> {
    let rows = client.run(include_str!("../queries/claim_schedule_load.sql"), &[]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let convoy: i32 = row.try_get("convoy")?;
    Ok(Some(Load {
        job_id: row.try_get("job_id")?,
        number: row.try_get("number")?,
        due_at: row.try_get("due_at")?,
        query: row.try_get("query")?,
        convoy: convoy.unsigned_abs(),
        time_limit: Duration::try_from_secs_f64(row.try_get("time_limit")?).unwrap_or(Duration::from_secs(300)),
        attempts: row.try_get("attempts")?,
        wanted: row.try_get("wanted")?,
        read_role: row.try_get("read_role")?,
        trace_parent: row.try_get("trace_parent")?,
    }))
}

/// In how many seconds there is something to load, if ever.
pub async fn next_load(client: &impl Queries) -> Result<Option<f64>, Error> {
    client.run(include_str!("../queries/next_schedule_load.sql"), &[]).await?[0].try_get(0)
}

/// It is tried again later.
pub async fn load_failed(client: &impl Queries, load: &Load, message: &str) -> Result<(), Error> {
    let text = include_str!("../queries/schedule_load_failed.sql");
    client.run(text, &[&load.job_id, &load.number, &load.attempts, &message]).await.map(drop)
}

impl Load {
    /// Begins to put problems into its job.
    pub async fn begin(&self, client: ClientWrapper) -> Result<Box<Loading>, LoadError> {
        match Loading::begin(client, &None, &Target::Job(self.job_id), Some(self.convoy)).await? {
            Begun::Loading(loading) => Ok(loading),
            Begun::Repeated(_) => unreachable!("an existing job has no key to repeat"),
        }
    }

    /// Makes them visible, opens the job if this was the last load that it waited for, and commits. False: somebody else has
    /// loaded it, and nothing of this is kept.
    pub async fn finish(&self, mut loading: Box<Loading>) -> Result<bool, LoadError> {
        loading.write().await?;
        let (client, problems) = (loading.client(), loading.problems());
        // Of two loads of a job that end at the same time one waits here for the other, and sees it done.
        client.execute(include_str!("../queries/lock_job.sql"), &[&self.job_id]).await?;
        let done = include_str!("../queries/schedule_load_done.sql");
        if client.query(done, &[&self.job_id, &self.number, &self.attempts, &problems]).await?.is_empty() {
            client.batch_execute("rollback").await?;
            return Ok(false);
        }
        crash_point(CrashPoint::ScheduleLoaded);
        let left = include_str!("../queries/schedule_loads_left.sql");
        let left: bool = client.query_one(left, &[&self.job_id]).await?.try_get(0)?;
        loading.complete(!left).await?;
        Ok(true)
    }
}
