//! Statements that run now and then: the recycler's, and the sweep that ends jobs. All of them may be repeated,
//! skipped or interrupted at any point.

use crate::checkout::Queries;
use pcfarm_proto::ids::{CheckoutId, JobId, LaneId, WorkstationId};
use std::time::SystemTime;
use tokio_postgres::{Error, Row};

/// Revokes every checkout if this is another PostgreSQL than the one that handed them out: a restored copy, or a
/// promoted standby. Returns how many.
pub async fn recognise_database(client: &impl Queries, system_identifier: i64, timeline: i64) -> Result<i32, Error> {
    client.run(include_str!("../queries/recognise_database.sql"), &[&system_identifier, &timeline]).await?[0].try_get(0)
}

/// True if this transaction is the one recycler for as long as it lasts.
pub async fn lock_recycler(client: &impl Queries) -> Result<bool, Error> {
    client.run(include_str!("../queries/recycler_lock.sql"), &[]).await?[0].try_get(0)
}

/// Declares workstations dead that were not heard of for the lease; at most 1,000. `pulse_seconds`: the age up to
/// which a server's pulse counts as running.
pub async fn declare_dead(
    client: &impl Queries,
    lease_seconds: f64,
    pulse_seconds: f64,
) -> Result<Vec<(WorkstationId, String)>, Error> {
    let rows = client.run(include_str!("../queries/declare_dead.sql"), &[&lease_seconds, &pulse_seconds]).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// A live checkout that is to be revoked.
#[derive(Clone, Debug)]
pub struct LostCheckout {
    pub checkout_id: CheckoutId,
    pub workstation_id: WorkstationId,
    pub hostname: String,
    pub loss: Loss,
}

/// What has become of a checkout that nobody will end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Its workstation is dead.
    Dead,
    /// Its workstation's agent has ended in good order, and has not delivered it within the lease.
    Offline,
    /// It was handed out while its workstation was being forgotten: nothing that it holds is to blame.
    Forgotten,
    /// Its time ran out.
    Overdue,
}

/// Live checkouts in dead or forgotten hands, of workstations that have been offline for the lease, and overdue ones, with a
/// larger id, oldest first; at most 200.
pub async fn lost_checkouts(
    client: &impl Queries,
    after: CheckoutId,
    lease_seconds: f64,
) -> Result<Vec<LostCheckout>, Error> {
    let rows = client.run(include_str!("../queries/lost_checkouts.sql"), &[&after, &lease_seconds]).await?;
    rows.iter()
        .map(|row| {
            Ok(LostCheckout {
                checkout_id: row.try_get("checkout_id")?,
                workstation_id: row.try_get("workstation_id")?,
                hostname: row.try_get("hostname")?,
                loss: match (row.try_get::<_, bool>("forgotten")?, row.try_get::<_, Option<bool>>("dead")?) {
                    (true, _) => Loss::Forgotten,
                    (false, Some(true)) => Loss::Dead,
                    (false, _) if row.try_get::<_, Option<bool>>("offline")?.unwrap_or(false) => Loss::Offline,
                    (false, Some(false) | None) => Loss::Overdue,
                },
            })
        })
        .collect()
}

/// Moves problems whose time has come to where they are handed out from. Returns how many; at most 10,000.
pub async fn move_due(client: &impl Queries) -> Result<i32, Error> {
    client.run(include_str!("../queries/move_due.sql"), &[]).await?[0].try_get(0)
}

/// The newest jobs before that one, by their ids, that have not ended, newest first; fewer than `limit` if there are no more.
pub async fn next_jobs(client: &impl Queries, before: JobId, limit: usize) -> Result<Vec<JobId>, Error> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = client.run(include_str!("../queries/next_jobs.sql"), &[&before, &limit]).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

/// Most lanes that [`exhaust_lanes`] takes out of sight at once.
pub const EXHAUSTED_AT_ONCE: usize = 1_000;

/// Takes lanes of these jobs that have been handed out to their end out of the dispatcher's sight. Returns how many.
pub async fn exhaust_lanes(client: &impl Queries, jobs: &[JobId]) -> Result<usize, Error> {
    Ok(client.run(include_str!("../queries/exhaust_lanes.sql"), &[&jobs]).await?.len())
}

/// Those of the jobs that may be over.
pub async fn maybe_empty_jobs(client: &impl Queries, jobs: &[JobId]) -> Result<Vec<JobId>, Error> {
    let rows = client.run(include_str!("../queries/maybe_empty_jobs.sql"), &[&jobs]).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

/// A job that has just ended.
#[derive(Clone, Debug)]
pub struct EndedJob {
    pub job_id: JobId,
    pub state: String,
    /// Jobs that run after it.
    pub waiting: Vec<JobId>,
}

/// Ends those of the jobs that are empty.
pub async fn end_jobs_if_empty(client: &impl Queries, jobs: &[JobId]) -> Result<Vec<EndedJob>, Error> {
    let rows = client.run(include_str!("../queries/end_jobs.sql"), &[&jobs]).await?;
    let ended = |row: &Row| {
        Ok(EndedJob { job_id: row.try_get("job_id")?, state: row.try_get("state")?, waiting: row.try_get("waiting")? })
    };
    rows.iter().map(ended).collect()
}

/// Tells the planner how problems are spread, if it was not told since the last large load and nobody else is at it.
pub async fn analyze_problems(client: &impl Queries) -> Result<(), Error> {
    client.run(include_str!("../queries/analyze_problems.sql"), &[]).await.map(drop)
}

/// Removes a part of a job whose retention is over. Returns how many rows are gone; 0: there is none.
pub async fn forget_old_job(client: &impl Queries) -> Result<i64, Error> {
    client.run(include_str!("../queries/forget_old_job.sql"), &[]).await?[0].try_get(0)
}

/// How far lanes of standing jobs have been looked at for what may be forgotten.
pub type LookedTo = Option<(JobId, LaneId)>;

/// Removes problems of standing jobs that ended before their job types' retention, in some lanes behind `after`; about 10,000
/// at most. Returns where to go on, none from the start, and how many are gone.
pub async fn forget_old_problems(client: &impl Queries, after: LookedTo) -> Result<(LookedTo, i64), Error> {
    let (job, lane) = after.unzip();
    let row = &client.run(include_str!("../queries/forget_old_problems.sql"), &[&job, &lane]).await?[0];
    let to_job: Option<JobId> = row.try_get(0)?;
    Ok((to_job.zip(row.try_get(1)?), row.try_get(2)?))
}

/// Adds what was done to the statistics of its hour; at most 20,000 transactions' worth. Returns the jobs that it was of.
pub async fn count_progress(client: &impl Queries) -> Result<Vec<JobId>, Error> {
    let rows = client.run(include_str!("../queries/count_progress.sql"), &[]).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

/// Adds how often schedules came to the statistics of its hour; at most 20,000 rows.
pub async fn count_triggers(client: &impl Queries) -> Result<(), Error> {
    client.run(include_str!("../queries/count_triggers.sql"), &[]).await.map(drop)
}

pub async fn forget_statistics(client: &impl Queries) -> Result<(), Error> {
    client.run(include_str!("../queries/forget_statistics.sql"), &[]).await.map(drop)
}

/// Folds what has been counted of these jobs.
pub async fn fold_progress(client: &impl Queries, jobs: &[JobId]) -> Result<(), Error> {
    client.run(include_str!("../queries/fold_progress.sql"), &[&jobs]).await.map(drop)
}

/// Writes events of jobs that no workstation could ever run, and of those of which that is not so any more. Returns how many.
pub async fn note_nowhere(client: &impl Queries) -> Result<i64, Error> {
    client.run(include_str!("../queries/note_nowhere.sql"), &[]).await?[0].try_get(0)
}

/// A job that has ended and whose path is traced.
#[derive(Clone, Debug)]
pub struct EndedTrace {
    pub job_id: JobId,
    pub name: String,
    pub job_type: String,
    pub state: String,
    pub trace_parent: String,
    pub created_at: SystemTime,
    pub opened_at: Option<SystemTime>,
    pub ended_at: SystemTime,
}

/// Those of these jobs, by id.
pub async fn ended_traces(client: &impl Queries, of: &[JobId]) -> Result<Vec<EndedTrace>, Error> {
    let ids: Vec<i64> = of.iter().map(|job| job.0).collect();
    let rows = client.run(include_str!("../queries/ended_traces.sql"), &[&ids]).await?;
    rows.iter()
        .map(|row| {
            Ok(EndedTrace {
                job_id: row.try_get("job_id")?,
                name: row.try_get("name")?,
                job_type: row.try_get("job_type")?,
                state: row.try_get("state")?,
                trace_parent: row.try_get("trace_parent")?,
                created_at: row.try_get("created_at")?,
                opened_at: row.try_get("opened_at")?,
                ended_at: row.try_get("ended_at")?,
            })
        })
        .collect()
}
