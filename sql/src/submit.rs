//! Putting problems into a job: what a query returns ([`by_query`], on the user's own connection and with the user's
//! rights), or what arrives from elsewhere ([`at_once`], or [`Loading`] piece by piece). Each is one transaction: a job is
//! loaded whole or not at all, and a repeated idempotency key loads nothing.

use crate::access::{self, Rights};
use crate::json::RawJson;
use crate::lanes::{ComingProblem, OpenLane};
use crate::submissions::Attempt;
use deadpool_postgres::ClientWrapper;
use pcfarm_faults::{Bug, CrashPoint, crash_point, planted};
use pcfarm_proto::ids::{BatchOrder, CheckoutId, JobId, LaneId, ProblemId, ServerId, WorkstationId};
use postgres_types::{ToSql, Type};
use std::pin::pin;
use std::time::SystemTime;
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error, Row};

/// Problems per convoy where none are given.
pub const DEFAULT_CONVOY: u32 = 100;
const CONVOY_LIMIT: u32 = 100_000;

/// The user whom a server acts for, and what that one sees. None: the database role itself.
pub type By = Option<(String, Rights)>;

/// Which job gets the problems.
#[derive(Clone, Debug)]
pub enum Target {
    Job(JobId),
    /// `options` is a JSON object, as `pcfarm.create_job` takes it.
    New {
        name: String,
        job_type: String,
        options: String,
    },
}

/// Problems that a query returns.
#[derive(Clone, Debug)]
pub struct Submission {
    pub target: Target,
    pub query: String,
    pub convoy: Option<u32>,
    pub open: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    pub job: JobId,
    pub problems: i64,
    /// The idempotency key had been used for a job that is loaded; nothing was added.
    pub repeated: bool,
}

/// Creates, loads and opens in one transaction. A caller that gives up must drop the client, or roll back.
pub async fn by_query(client: &Client, submission: &Submission) -> Result<Submitted, Error> {
    client.batch_execute("begin").await?;
    let outcome = query_in_transaction(client, submission).await;
    match outcome {
        Ok(submitted) => client.batch_execute("commit").await.map(|()| submitted),
        Err(error) => {
            // What went wrong is told; a rollback that fails means that the connection is gone.
            let _ = client.batch_execute("rollback").await;
            Err(error)
        }
    }
}

async fn query_in_transaction(client: &Client, submission: &Submission) -> Result<Submitted, Error> {
    let (job, repeated) = find_target(client, &submission.target).await?;
    if repeated {
        return Ok(Submitted { job, problems: 0, repeated });
    }
    let convoy = i32::try_from(submission.convoy.unwrap_or(DEFAULT_CONVOY)).unwrap_or(i32::MAX);
    let load = include_str!("../queries/load.sql");
    let problems = client.query_one(load, &[&job, &submission.query, &convoy]).await?.try_get(0)?;
    if submission.open {
        client.execute(include_str!("../queries/open_job.sql"), &[&job]).await?;
    }
    Ok(Submitted { job, problems, repeated })
}

/// The job, and whether it was loaded under its idempotency key before. Of two submits with one key the second waits
/// for the first to end.
async fn find_target(client: &Client, target: &Target) -> Result<(JobId, bool), Error> {
    let (name, job_type, options) = match target {
        Target::Job(job) => {
            client.execute(include_str!("../queries/check_loadable.sql"), &[job]).await?;
            return Ok((*job, false));
        }
        Target::New { name, job_type, options } => (name, job_type, options),
    };
    let options = RawJson(options.clone().into());
    let create = include_str!("../queries/create_job.sql");
    let job: JobId = client.query_one(create, &[name, job_type, &options]).await?.try_get(0)?;
    client.execute(include_str!("../queries/claim_load.sql"), &[&job.0]).await?;
    let is_loaded = pcfarm_faults::statement(include_str!("../queries/is_loaded.sql"));
    let loaded = client.query_one(&*is_loaded, &[&job]).await?.try_get(0)?;
    Ok((job, loaded))
}

/// What a load holds before it is written: small beside the message limit, and enough that a COPY costs little.
const BUFFER_BYTES: usize = 512 << 10;
const BUFFER_PROBLEMS: usize = 5_000;

/// Fewer change nothing that the planner should know, as `pcfarm.analyze_after_load` has it.
const ANALYZE_FROM: i64 = 10_000;

/// Problem ids hold this many in a lane.
const LANE_PROBLEMS_LIMIT: i64 = 10_000_000_000;

/// For whoever has the upload; the caller's own deadline between pieces is shorter. It ends the transaction of a caller
/// that hangs: an open one keeps the whole database from being vacuumed. Waiting for a submit with the same idempotency
/// key takes longer than locks usually may.
const BEGIN: &str = "begin; set local idle_in_transaction_session_timeout = '120s'; \
     set local statement_timeout = '300s'; set local lock_timeout = '20s'";

/// A problem as it arrives. Its payload is known to be JSON.
#[derive(Clone, Debug)]
pub struct NewProblem {
    pub key: String,
    pub payload: RawJson,
    pub group_key: Option<String>,
    /// What most problems do not have.
    pub details: Option<Box<Details>>,
}

/// What orders a problem within its job, and when it may be handed out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// Another than its job's.
    pub job_type: Option<String>,
    /// Highest first.
    pub priority: i32,
    /// Of one priority, earliest first.
    pub deadline: Option<SystemTime>,
    pub not_before: Option<SystemTime>,
    /// What it counts against limits by the hour, if not 1.
    pub weight: Option<i32>,
}

impl NewProblem {
    /// Nothing but a key and a payload: it goes where it comes.
    pub fn is_plain(&self) -> bool {
        self.group_key.is_none() && self.details.is_none()
    }
}

/// Why a load was not done. Nothing of it is in the database.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("a convoy of {0} problems: it holds from 1 to {CONVOY_LIMIT}")]
    Convoy(u32),
    #[error("more than {LANE_PROBLEMS_LIMIT} problems in one load")]
    TooMany,
    #[error("problem {number} (key {key:?}) was refused by the database")]
    Refused { number: i64, key: String, source: Error },
    #[error("the submit with the same idempotency key is not done yet: ask again")]
    Busy(#[source] Error),
    #[error("loading problems")]
    Database(#[from] Error),
}

impl LoadError {
    /// What goes wrong before any problem is looked at.
    fn of_target(error: Error) -> LoadError {
        match error.code() {
            Some(&SqlState::LOCK_NOT_AVAILABLE) => LoadError::Busy(error),
            _ => LoadError::Database(error),
        }
    }
}

fn sensible(convoy: Option<u32>) -> Result<u32, LoadError> {
    let convoy = convoy.unwrap_or(DEFAULT_CONVOY);
    if (1..=CONVOY_LIMIT).contains(&convoy) { Ok(convoy) } else { Err(LoadError::Convoy(convoy)) }
}

/// Are so many problems in one convoy of that size?
pub fn are_one_convoy(problems: usize, convoy: Option<u32>) -> bool {
    problems <= convoy.unwrap_or(DEFAULT_CONVOY) as usize
}

/// A lane that was just committed, and all that is in it.
#[derive(Clone, Debug)]
pub struct Fresh {
    pub lane: OpenLane,
    pub problems: Vec<ComingProblem>,
    /// It was handed out whole.
    pub checkout: Option<CheckoutId>,
}

/// Which workstation is to have them at once, as a checkout of this token, if they are of this type and nobody has to look at
/// anything first. They must be one convoy ([`are_one_convoy`]): others need a look at how they are to be divided.
#[derive(Clone, Copy, Debug)]
pub struct Taker<'a> {
    pub workstation_id: WorkstationId,
    pub token: i64,
    pub job_type: &'a str,
    /// Seconds that the workstation has.
    pub seconds: Option<f64>,
}

/// A few plain problems.
#[derive(Clone, Copy, Debug)]
pub struct Small<'a> {
    pub by: &'a By,
    pub target: &'a Target,
    pub convoy: Option<u32>,
    pub open: bool,
    pub problems: &'a [NewProblem],
    pub taker: Option<Taker<'a>>,
}

/// Loads a few plain problems in one call, or in two, where [`Loading`] takes a connection of its own and a dozen. None:
/// nothing was loaded, because the database refused a problem, or because somebody else is in the way. [`Loading`] says
/// which problem it was, and waits. With it comes the new lane, if it may be handed out now, or was. Other servers than this
/// one are told that there is work ([`work_of`]), unless it has gone out already.
pub async fn at_once(
    client: &ClientWrapper,
    server_id: ServerId,
    small: &Small<'_>,
) -> Result<Option<(Submitted, Option<Fresh>)>, LoadError> {
    let Small { by, target, open, problems, .. } = small;
    let convoy = sensible(small.convoy)? as i32;
    if planted(Bug::AnswersBeforeCommit) {
        return Ok(None);
    }
    let (job, name, job_type, options) = match target {
        Target::Job(job) => (Some(job), None, None, None),
        Target::New { name, job_type, options } => {
            (None, Some(name), Some(job_type), Some(RawJson(options.clone().into())))
        }
    };
    let keys: Vec<&str> = problems.iter().map(|problem| problem.key.as_str()).collect();
    let payloads: Vec<&RawJson> = problems.iter().map(|problem| &problem.payload).collect();
    crash_point(CrashPoint::SubmissionCame);
    let (user, rights) = by.as_ref().map(|(user, rights)| (user, rights.name())).unzip();
    let taker = small.taker.filter(|_| are_one_convoy(problems.len(), small.convoy));
    let of_type = taker.map(|taker| taker.job_type);
    let (workstation, token) = taker.map(|taker| (taker.workstation_id, taker.token)).unzip();
    let seconds = taker.and_then(|taker| taker.seconds);
    #[rustfmt::skip]
    let parameters: [&(dyn ToSql + Sync); 15] = [
        &job, &name, &job_type, &options, &keys, &payloads, &convoy, &open, &user, &rights, &server_id, &of_type, &workstation,
        &token, &seconds,
    ];
    let outcome = submit_problems(client, small, parameters).await;
    crash_point(CrashPoint::SubmissionCommitted);
    match outcome {
        Ok(row) => {
            let (job, repeated) = (row.try_get(0)?, row.try_get(1)?);
            let fresh = if row.try_get("ready")? { Some(fresh(job, &row, &keys, convoy.into())?) } else { None };
            let problems = if repeated { 0 } else { problems.len() as i64 };
            Ok(Some((Submitted { job, problems, repeated }, fresh)))
        }
        Err(error) if may_be_one_of_them(&error) || error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => Ok(None),
        Err(error) => Err(LoadError::Database(error)),
    }
}

/// The plain statement, and where that does nothing, the function. The parameters are the function's; each statement is asked
/// with those that it has.
async fn submit_problems(
    client: &ClientWrapper,
    small: &Small<'_>,
    parameters: [&(dyn ToSql + Sync); 15],
) -> Result<Row, Error> {
    #[rustfmt::skip]
    let [job, name, job_type, options, keys, payloads, convoy, open, user, rights, server, of_type, workstation, token, seconds] =
        parameters;
    #[rustfmt::skip]
    let plain: Option<(_, Vec<&(dyn ToSql + Sync)>)> = match small.target {
        Target::New { .. } if small.open => Some((
            include_str!("../queries/submit_plainly.sql"),
            vec![name, job_type, options, keys, payloads, convoy, user, rights, server, of_type, workstation, token, seconds],
        )),
        Target::New { .. } => None,
        Target::Job(_) => Some((
            include_str!("../queries/submit_plainly_into.sql"),
            vec![job, keys, payloads, convoy, open, user, rights, server, of_type, workstation, token, seconds],
        )),
    };
    if let Some((text, parameters)) = plain {
        let statement = client.prepare_cached(text).await?;
        if let Some(row) = client.query_opt(&statement, &parameters).await? {
            return Ok(row);
        }
    }
    let statement = client.prepare_cached(include_str!("../queries/submit_problems.sql")).await?;
    client.query_one(&statement, &parameters).await
}

/// What other servers are notified of after a small submission to this one.
pub fn work_of(server_id: ServerId) -> String {
    format!("work of {server_id}")
}

fn fresh(job: JobId, row: &Row, keys: &[&str], convoy: i64) -> Result<Fresh, Error> {
    let lane: LaneId = row.try_get("into_lane")?;
    let payloads: Vec<RawJson> = row.try_get("stored")?;
    let problem = |(number, (key, payload)): (i64, (&&str, RawJson))| {
        let batch_order = BatchOrder(number / convoy);
        ComingProblem {
            problem_id: ProblemId(lane.0 * LANE_PROBLEMS_LIMIT + number + 1),
            batch_order,
            key: (*key).into(),
            payload,
            weight: 1,
            attempts: 0,
            alone: false,
            grouped: false,
            home_lane: lane,
            home_order: batch_order,
        }
    };
    let problems: Vec<ComingProblem> = (0..).zip(keys.iter().zip(payloads)).map(problem).collect();
    let lane = OpenLane {
        job_id: job,
        owner: row.try_get::<_, &str>("owner")?.into(),
        job_name: row.try_get("name")?,
        priority: row.try_get("priority")?,
        deadline: row.try_get("deadline")?,
        late: false,
        parameters: row.try_get("parameters")?,
        urgency: 0,
        lane_id: lane,
        job_type: row.try_get::<_, &str>("job_type")?.into(),
        of_type: None,
        came_back: false,
        first: false,
        next_extraction: BatchOrder(0),
        next_insertion: BatchOrder(problems.last().map_or(0, |last| last.batch_order.0 + 1)),
        problems: problems.len() as i64,
        requirement: None,
        // With one of these, only a look takes it into sight.
        has_info: false,
        has_files: false,
        problem_files: false,
        trace_parent: row.try_get("trace_parent")?,
    };
    Ok(Fresh { lane, problems, checkout: row.try_get("checkout")? })
}

/// Data that is invalid, violates a constraint or goes beyond a limit.
fn may_be_one_of_them(error: &Error) -> bool {
    error.code().is_some_and(|state| matches!(&state.code()[..2], "22" | "23" | "54"))
}

/// How a load begins.
pub enum Begun {
    /// Nothing is to be loaded: the key had been used.
    Repeated(JobId),
    Loading(Box<Loading>),
}

/// A load under way, on a connection of its own: dropped, it closes that and nothing has happened.
pub struct Loading {
    client: ClientWrapper,
    job: JobId,
    lane: LaneId,
    convoy: i64,
    /// From the first problem on that is not plain, all wait in a table of their own, to be ordered when all are there.
    staging: bool,
    grouped: bool,
    /// Not written yet.
    buffer: Vec<NewProblem>,
    buffered_bytes: usize,
    /// Into the lane, and into the table.
    copied: i64,
    staged: i64,
    /// Of which stored submission this is an attempt, to be marked as loaded by the same transaction.
    submission: Option<Attempt>,
}

impl Loading {
    /// Takes a connection that is out of its pool (`Object::take`): it may be left in an open transaction.
    pub async fn begin(
        client: ClientWrapper,
        by: &By,
        target: &Target,
        convoy: Option<u32>,
    ) -> Result<Begun, LoadError> {
        let convoy = sensible(convoy)?;
        client.batch_execute(BEGIN).await?;
        if let Some((user, rights)) = by {
            access::act_as(&client, user, *rights, None).await?;
        }
        let (job, repeated) = find_target(&client, target).await.map_err(LoadError::of_target)?;
        if repeated {
            return Ok(Begun::Repeated(job));
        }
        let lane = client.query_one(include_str!("../queries/lane_number.sql"), &[]).await?.try_get(0)?;
        Ok(Begun::Loading(Box::new(Loading {
            client,
            job,
            lane,
            convoy: convoy.into(),
            staging: false,
            grouped: false,
            buffer: Vec::new(),
            buffered_bytes: 0,
            copied: 0,
            staged: 0,
            submission: None,
        })))
    }

    /// This is a stored submission: it is marked as loaded by the same transaction, which fails if somebody else has made
    /// another attempt meanwhile.
    pub fn is_submission(&mut self, attempt: Attempt) {
        self.submission = Some(attempt);
    }

    /// How many problems came before.
    pub fn problems(&self) -> i64 {
        self.copied + self.staged + self.buffer.len() as i64
    }

    /// Takes problems; returns when there is room for more.
    pub async fn add(&mut self, problems: Vec<NewProblem>) -> Result<(), LoadError> {
        for problem in problems {
            if !self.staging && !problem.is_plain() {
                // Those before it are in their convoys, which no other belongs to.
                self.write().await?;
                self.client.batch_execute(include_str!("../queries/stage_problems.sql")).await?;
                self.staging = true;
            }
            if self.problems() + 1 >= LANE_PROBLEMS_LIMIT {
                return Err(LoadError::TooMany);
            }
            self.grouped |= problem.group_key.is_some();
            self.buffered_bytes += problem.key.len() + problem.payload.0.len();
            self.buffer.push(problem);
            if self.buffered_bytes >= BUFFER_BYTES || self.buffer.len() >= BUFFER_PROBLEMS {
                self.write().await?;
            }
        }
        Ok(())
    }

    /// One COPY of what has been gathered. Several small ones instead of a single long one, because an error of a COPY is
    /// only told at its end, and because PostgreSQL has a limit for a client that is idle, but not for one that copies.
    pub(crate) async fn write(&mut self) -> Result<(), LoadError> {
        let problems = std::mem::take(&mut self.buffer);
        self.buffered_bytes = 0;
        if problems.is_empty() {
            return Ok(());
        }
        let copied = if self.staging { self.stage(&problems).await } else { self.copy(&problems).await };
        copied.map_err(|error| self.refused(&problems, error))?;
        *(if self.staging { &mut self.staged } else { &mut self.copied }) += problems.len() as i64;
        Ok(())
    }

    async fn copy(&self, problems: &[NewProblem]) -> Result<u64, Error> {
        const TYPES: [Type; 6] = [Type::INT8, Type::INT8, Type::INT8, Type::INT8, Type::TEXT, Type::JSONB];
        let statement = self.client.prepare_cached(include_str!("../queries/copy_problems.sql")).await?;
        let sink = self.client.copy_in(&statement).await?;
        let mut writer = pin!(BinaryCopyInWriter::new(sink, &TYPES));
        for (number, problem) in (self.copied..).zip(problems) {
            let problem_id = self.lane.0 * LANE_PROBLEMS_LIMIT + number + 1;
            let batch_order = number / self.convoy;
            let row: [&(dyn ToSql + Sync); 6] =
                [&self.job, &self.lane, &problem_id, &batch_order, &problem.key, &problem.payload];
            writer.as_mut().write(&row).await?;
        }
        writer.finish().await
    }

    async fn stage(&self, problems: &[NewProblem]) -> Result<u64, Error> {
        const TYPES: [Type; 9] = [
            Type::INT8,
            Type::TEXT,
            Type::TEXT,
            Type::JSONB,
            Type::TEXT,
            Type::INT4,
            Type::TIMESTAMPTZ,
            Type::TIMESTAMPTZ,
            Type::INT4,
        ];
        let nothing = Details::default();
        let statement = self.client.prepare_cached(include_str!("../queries/copy_staged.sql")).await?;
        let sink = self.client.copy_in(&statement).await?;
        let mut writer = pin!(BinaryCopyInWriter::new(sink, &TYPES));
        for (number, problem) in (self.copied + self.staged + 1..).zip(problems) {
            let member_of = match &problem.group_key {
                Some(group) => format!("g{group}"),
                None => format!("r{number}"),
            };
            let details = problem.details.as_deref().unwrap_or(&nothing);
            let Details { job_type, priority, deadline, not_before, weight } = details;
            let NewProblem { key, payload, .. } = problem;
            let row: [&(dyn ToSql + Sync); 9] =
                [&number, &member_of, key, payload, job_type, priority, deadline, not_before, weight];
            writer.as_mut().write(&row).await?;
        }
        writer.finish().await
    }

    /// Which problem the database did not take, if it says so.
    fn refused(&self, problems: &[NewProblem], error: Error) -> LoadError {
        let line = error.as_db_error().and_then(|said| line_of(said.where_()?));
        let problem = line.and_then(|line| Some((line, problems.get(line.checked_sub(1)?)?)));
        match problem {
            Some((line, problem)) => {
                let number = self.copied + self.staged + line as i64;
                LoadError::Refused { number, key: problem.key.clone(), source: error }
            }
            None => LoadError::Database(error),
        }
    }

    /// Makes all problems visible at once, and commits.
    pub async fn finish(mut self, open: bool) -> Result<Submitted, LoadError> {
        self.write().await?;
        self.complete(open).await
    }

    /// For what belongs into the same transaction.
    pub(crate) fn client(&self) -> &ClientWrapper {
        &self.client
    }

    /// The end, once all is written.
    pub(crate) async fn complete(self, open: bool) -> Result<Submitted, LoadError> {
        let problems = self.problems();
        let client = &self.client;
        let mut lanes = vec![PackedLane::of_copied(self.lane, self.copied, self.convoy)];
        if self.staging {
            let convoy = i32::try_from(self.convoy).unwrap_or(i32::MAX);
            let pack = include_str!("../queries/pack_staged.sql");
            let rows = client.query(pack, &[&self.job, &convoy, &self.grouped]).await?;
            for row in rows {
                lanes.push(PackedLane::of_row(&row)?);
            }
        }
        if open {
            // Before it is shared: of two loads that share it neither could open it.
            client.execute(include_str!("../queries/lock_job.sql"), &[&self.job]).await?;
        }
        register(client, self.job, &lanes, self.grouped).await?;
        if open {
            client.execute(include_str!("../queries/open_job.sql"), &[&self.job]).await?;
        }
        if let Some(submission) = self.submission {
            let statement = include_str!("../queries/submission_is_loaded.sql");
            client.execute(statement, &[&submission.id, &submission.number, &self.job, &problems]).await?;
        }
        crash_point(CrashPoint::UploadLoaded);
        if planted(Bug::AnswersBeforeCommit) {
            let submitted = Submitted { job: self.job, problems, repeated: false };
            #[expect(clippy::disallowed_methods, reason = "a planted bug: nobody waits for it")]
            tokio::spawn(async move {
                tokio::time::sleep(std::time::Duration::from_millis(300)).await;
                self.client.batch_execute("commit").await
            });
            return Ok(submitted);
        }
        client.batch_execute("commit").await?;
        crash_point(CrashPoint::UploadCommitted);
        if problems >= ANALYZE_FROM {
            let analyzed = client.execute(include_str!("../queries/analyze_after_load.sql"), &[&problems]).await;
            if let Err(error) = analyzed {
                // The load stands; autovacuum analyzes later.
                tracing::warn!(job_id = %self.job, error = &error as &dyn std::error::Error, "problems were not analyzed after a load");
            }
        }
        Ok(Submitted { job: self.job, problems, repeated: false })
    }
}

/// A lane that was filled, as it is registered.
struct PackedLane {
    lane: LaneId,
    /// Another than its job's.
    job_type: Option<String>,
    priority: i32,
    later: bool,
    problems: i64,
    orders: i64,
}

impl PackedLane {
    fn of_copied(lane: LaneId, problems: i64, convoy: i64) -> PackedLane {
        let orders = (problems + convoy - 1) / convoy;
        PackedLane { lane, job_type: None, priority: 0, later: false, problems, orders }
    }

    fn of_row(row: &Row) -> Result<PackedLane, Error> {
        Ok(PackedLane {
            lane: row.try_get("lane_id")?,
            job_type: row.try_get("job_type")?,
            priority: row.try_get("priority")?,
            later: row.try_get("later")?,
            problems: row.try_get("problems")?,
            orders: row.try_get("orders")?,
        })
    }
}

/// Makes them visible; those without problems are passed over.
async fn register(client: &Client, job: JobId, lanes: &[PackedLane], grouped: bool) -> Result<(), Error> {
    let column = |value: fn(&PackedLane) -> i64| lanes.iter().map(value).collect::<Vec<i64>>();
    let job_types: Vec<&Option<String>> = lanes.iter().map(|lane| &lane.job_type).collect();
    let priorities: Vec<i32> = lanes.iter().map(|lane| lane.priority).collect();
    let later: Vec<bool> = lanes.iter().map(|lane| lane.later).collect();
    let (ids, problems, orders) = (column(|l| l.lane.0), column(|l| l.problems), column(|l| l.orders));
    let statement = include_str!("../queries/register_lanes.sql");
    client.execute(statement, &[&job, &ids, &job_types, &priorities, &later, &problems, &orders, &grouped]).await?;
    Ok(())
}

/// `COPY problem, line 5, column payload: …`, in any language that keeps the first number there.
fn line_of(context: &str) -> Option<usize> {
    let line = context.lines().find(|line| line.contains("COPY "))?;
    let digits = line.split(|c: char| !c.is_ascii_digit()).find(|part| !part.is_empty())?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_copy_is_read() {
        let cases = [
            ("COPY problem, line 5, column payload", Some(5)),
            ("JSON data, line 1: x\nCOPY pcfarm_staged, line 12, column payload", Some(12)),
            ("SQL statement \"select 1\"", None),
        ];
        for (context, expected) in cases {
            assert_eq!(line_of(context), expected, "{context}");
        }
    }
}
