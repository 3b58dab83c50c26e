//! Jobs as people see them: listed, shown with the reason of their state, and moved from state to state. Nothing here
//! hands out or accepts. Problems are paged by [`problems`], results streamed by [`results`]; both read ranges of the
//! dispatch index, so that a page costs the same in a long job as in a short one.

pub mod problems;
pub mod reason;
pub mod results;

use crate::checkout::Queries;
use crate::json::RawJson;
use deadpool_postgres::ClientWrapper;
use pcfarm_proto::ids::{JobId, LaneId};
use std::time::SystemTime;
use tokio_postgres::{Error, Row};

/// Most that one page holds.
pub const PAGE_LIMIT: u32 = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    Loading,
    Open,
    Held,
    Done,
    Failed,
    Cancelled,
}

impl JobState {
    pub fn as_str(self) -> &'static str {
        match self {
            JobState::Loading => "loading",
            JobState::Open => "open",
            JobState::Held => "held",
            JobState::Done => "done",
            JobState::Failed => "failed",
            JobState::Cancelled => "cancelled",
        }
    }

    /// Nothing more will happen to it by itself.
    pub fn has_ended(self) -> bool {
        match self {
            JobState::Done | JobState::Failed | JobState::Cancelled => true,
            JobState::Loading | JobState::Open | JobState::Held => false,
        }
    }

    /// The row's CHECK admits these six.
    fn of_row(text: &str) -> JobState {
        match text {
            "open" => JobState::Open,
            "held" => JobState::Held,
            "done" => JobState::Done,
            "failed" => JobState::Failed,
            "cancelled" => JobState::Cancelled,
            _ => JobState::Loading,
        }
    }
}

/// A job, its counts and what decides when it goes on.
#[derive(Clone, Debug)]
pub struct Job {
    pub job_id: JobId,
    pub name: String,
    pub title: String,
    pub job_type: String,
    pub controller: String,
    pub owner: String,
    pub state: JobState,
    pub priority: i32,
    pub deadline: Option<SystemTime>,
    /// The deadline has passed.
    pub late: bool,
    pub created_at: SystemTime,
    pub opened_at: Option<SystemTime>,
    pub ended_at: Option<SystemTime>,
    /// For people, if that is still to come.
    pub starts_at: Option<String>,
    pub standing: bool,
    pub problems: i64,
    pub done: i64,
    pub failed: i64,
    pub in_progress: i64,
    pub waiting: i64,
    pub cancelled: i64,
    pub requeued: i64,
    /// Workstations that hold some of its problems.
    pub workstations: i64,
    pub able: Able,
    /// What keeps it from being handed out, beside that, in words.
    pub obstacles: Vec<String>,
    /// Its own conditions on workstations, and all that its problems have, with those of its type.
    pub require: Vec<String>,
    pub needs: Vec<String>,
    /// Why no workstation that the farm knows, connected or not, could ever run some of its problems. Empty: one could.
    pub nowhere: Vec<String>,
}

/// Workstations that are not dead, run a job's controller and have what it needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Able {
    pub connected: i64,
    /// Neither suspended nor draining.
    pub working: i64,
    /// Of these, those that hold nothing.
    pub idle: i64,
}

/// What is said about a job while it runs, if anything is.
pub async fn info(client: &ClientWrapper, job: JobId) -> Result<Option<RawJson>, Error> {
    let rows = client.run(include_str!("../queries/job_info.sql"), &[&job]).await?;
    rows.first().map(|row| row.try_get(0)).transpose()
}

/// Merges an object into it, and returns all of it.
pub async fn set_info(client: &ClientWrapper, job: JobId, patch: &RawJson) -> Result<RawJson, Error> {
    let rows = client.run(include_str!("../queries/set_info.sql"), &[&job, patch]).await?;
    rows.first().expect("a function returns a row").try_get(0)
}

/// Changes when somebody changes what a job is.
pub async fn version(client: &ClientWrapper, job: JobId) -> Result<Option<String>, Error> {
    client.run(include_str!("../queries/job_version.sql"), &[&job]).await?[0].try_get(0)
}

/// Changes a job, as `pcfarm.update_job` takes it. False: it is not that version any more.
pub async fn update(client: &ClientWrapper, job: JobId, version: &str, options: &RawJson) -> Result<bool, Error> {
    client.run(include_str!("../queries/update_job.sql"), &[&job, &version, options]).await?[0].try_get(0)
}

impl Job {
    /// Why it is in its state and what comes next, for people.
    pub fn reason(&self) -> String {
        reason::of(self)
    }
}

/// One of a job's sequences of batch orders.
#[derive(Clone, Debug)]
pub struct Lane {
    pub lane_id: LaneId,
    pub kind: String,
    pub job_type: String,
    pub next_extraction: i64,
    pub next_insertion: i64,
    pub problems: i64,
}

/// A page of jobs, newest first.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Ended ones, too.
    pub all: bool,
    /// Those with a smaller id.
    pub before: Option<JobId>,
    /// This user's alone.
    pub owner: Option<String>,
    pub limit: u32,
}

pub async fn list(client: &ClientWrapper, wanted: &Wanted) -> Result<Vec<Job>, Error> {
    let Wanted { all, before, owner, limit } = wanted;
    let before = before.unwrap_or(JobId(i64::MAX));
    let limit = i64::from((*limit).min(PAGE_LIMIT));
    let rows = client.run(include_str!("../queries/job_page.sql"), &[all, &before, &limit, owner]).await?;
    let ids: Vec<i64> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    of_ids(client, &ids).await
}

pub async fn get(client: &ClientWrapper, job_id: JobId) -> Result<Option<Job>, Error> {
    Ok(of_ids(client, &[job_id.0]).await?.pop())
}

/// A job's lanes, with their pointers; at most 1,000.
pub async fn lanes(client: &ClientWrapper, job_id: JobId) -> Result<Vec<Lane>, Error> {
    let rows = client.run(include_str!("../queries/job_lanes.sql"), &[&job_id]).await?;
    rows.iter()
        .map(|row| {
            Ok(Lane {
                lane_id: row.try_get("lane_id")?,
                kind: row.try_get("kind")?,
                job_type: row.try_get("job_type")?,
                next_extraction: row.try_get("next_extraction")?,
                next_insertion: row.try_get("next_insertion")?,
                problems: row.try_get("problems")?,
            })
        })
        .collect()
}

/// Just the state: what somebody who waits for a job asks again and again.
pub async fn state(client: &ClientWrapper, job_id: JobId) -> Result<Option<JobState>, Error> {
    let rows = client.run(include_str!("../queries/job_state.sql"), &[&job_id]).await?;
    rows.first().map(|row| row.try_get(0).map(JobState::of_row)).transpose()
}

/// What stands between an open job and its problems being handed out.
#[derive(Clone, Debug, Default)]
pub struct Ahead {
    /// Jobs for the same controller that have work and are served before it.
    pub jobs: i64,
    pub first: Option<String>,
    /// Age of the oldest of its checkouts.
    pub oldest_seconds: Option<i64>,
}

pub async fn ahead(client: &ClientWrapper, job_id: JobId) -> Result<Ahead, Error> {
    let rows = client.run(include_str!("../queries/job_ahead.sql"), &[&job_id]).await?;
    Ok(Ahead {
        jobs: rows[0].try_get("jobs")?,
        first: rows[0].try_get("first")?,
        oldest_seconds: rows[0].try_get("oldest_seconds")?,
    })
}

/// Starts handing out a job that is loading.
pub async fn open(client: &ClientWrapper, job_id: JobId) -> Result<(), Error> {
    client.run(include_str!("../queries/open_job.sql"), &[&job_id]).await.map(drop)
}

/// Hands out no more of it; what is in progress goes on.
pub async fn hold(client: &ClientWrapper, job_id: JobId) -> Result<(), Error> {
    client.run(include_str!("../queries/hold_job.sql"), &[&job_id]).await.map(drop)
}

pub async fn release(client: &ClientWrapper, job_id: JobId) -> Result<(), Error> {
    client.run(include_str!("../queries/release_job.sql"), &[&job_id]).await.map(drop)
}

/// Ends it at once: its live checkouts are revoked.
pub async fn cancel(client: &ClientWrapper, job_id: JobId) -> Result<(), Error> {
    client.run(include_str!("../queries/cancel_job.sql"), &[&job_id]).await.map(drop)
}

/// Puts its failed problems back on the queue. Returns how many.
pub async fn retry(client: &ClientWrapper, job_id: JobId) -> Result<i64, Error> {
    client.run(include_str!("../queries/retry_job.sql"), &[&job_id]).await?[0].try_get(0)
}

async fn of_ids(client: &ClientWrapper, ids: &[i64]) -> Result<Vec<Job>, Error> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let rows = client.run(include_str!("../queries/jobs.sql"), &[&ids]).await?;
    rows.iter().map(of_row).collect()
}

fn of_row(row: &Row) -> Result<Job, Error> {
    Ok(Job {
        job_id: row.try_get("job_id")?,
        name: row.try_get("name")?,
        title: row.try_get("title")?,
        job_type: row.try_get("job_type")?,
        controller: row.try_get("controller")?,
        owner: row.try_get("owner")?,
        state: JobState::of_row(row.try_get("state")?),
        priority: row.try_get("priority")?,
        deadline: row.try_get("deadline")?,
        late: row.try_get("late")?,
        created_at: row.try_get("created_at")?,
        opened_at: row.try_get("opened_at")?,
        ended_at: row.try_get("ended_at")?,
        starts_at: row.try_get("starts_at")?,
        standing: row.try_get("standing")?,
        problems: row.try_get("problems")?,
        done: row.try_get("done")?,
        failed: row.try_get("failed")?,
        in_progress: row.try_get("in_progress")?,
        waiting: row.try_get("waiting")?,
        cancelled: row.try_get("cancelled")?,
        requeued: row.try_get("requeued")?,
        workstations: row.try_get("workstations")?,
        able: Able {
            connected: row.try_get("connected")?,
            working: row.try_get("working")?,
            idle: row.try_get("idle")?,
        },
        obstacles: row.try_get("obstacles")?,
        require: row.try_get("require")?,
        needs: row.try_get("needs")?,
        nowhere: row.try_get("nowhere")?,
    })
}
