//! Users and their shares, resources, and what is suspended or parked.

use crate::checkout::Queries;
use crate::json::RawJson;
use deadpool_postgres::ClientWrapper;
use pcfarm_proto::ids::JobId;
use std::sync::Arc;
use std::time::SystemTime;
use tokio_postgres::Error;

/// The SQLSTATE of a change that was meant for another version than that which there is.
pub const LOST_UPDATE: &str = "PF412";

/// A row of `pcfarm.share`: of a user, of what it has of a job type, or, without an owner, of a job type by its resources
/// or by its profile.
#[derive(Clone, Debug)]
pub struct Share {
    pub owner: Option<Arc<str>>,
    pub job_type: Option<Arc<str>>,
    /// Turns in a round. None: those of the user.
    pub allocation: Option<u32>,
    pub prohibited: bool,
    /// Problems that may still be handed out. None: there is no limit.
    pub room: Option<u64>,
    /// The same by weight, of this hour.
    pub weight: Option<u64>,
    /// Most problems of a checkout.
    pub per_checkout: Option<u64>,
    /// Instead of that of its jobs.
    pub priority: Option<i32>,
}

/// Of all users with open jobs, and of all job types that need resources.
pub async fn shares(client: &ClientWrapper) -> Result<Vec<Share>, Error> {
    let statement = client.prepare_cached(include_str!("../queries/shares.sql")).await?;
    let rows = client.query(&statement, &[]).await?;
    rows.iter()
        .map(|row| {
            let room = |column: usize| -> Result<_, Error> {
                Ok(row.try_get::<_, Option<i64>>(column)?.map(|room| room.max(0).unsigned_abs()))
            };
            Ok(Share {
                owner: row.try_get::<_, Option<&str>>(0)?.map(Arc::from),
                job_type: row.try_get::<_, Option<&str>>(1)?.map(Arc::from),
                allocation: row.try_get::<_, Option<i32>>(2)?.map(i32::unsigned_abs),
                prohibited: row.try_get(3)?,
                room: room(4)?,
                weight: room(5)?,
                per_checkout: row.try_get::<_, Option<i32>>(6)?.map(|most| u64::from(most.unsigned_abs())),
                priority: row.try_get(7)?,
            })
        })
        .collect()
}

/// Limits of a user, of what it has of a job type, or of all. None: as the farm has it, or no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Most problems waiting.
    pub queue_limit: Option<i64>,
    /// Most problems in progress.
    pub concurrency: Option<i64>,
    /// Turns in a round.
    pub allocation: Option<i64>,
}

#[derive(Clone, Debug)]
pub struct User {
    pub name: String,
    pub limits: Limits,
    pub prohibited: bool,
    pub waiting: i64,
    pub in_progress: i64,
    pub open_jobs: i64,
    /// By job type.
    pub job_types: Vec<(String, Limits)>,
    /// Of its limits.
    pub version: String,
}

/// By name; at most 10,000.
pub async fn users(client: &ClientWrapper) -> Result<Vec<User>, Error> {
    let rows = client.run(include_str!("../queries/users.sql"), &[]).await?;
    rows.iter()
        .map(|row| {
            let names: Vec<String> = row.try_get("job_types")?;
            let queue_limits: Vec<Option<i64>> = row.try_get("queue_limits")?;
            let concurrencies: Vec<Option<i64>> = row.try_get("concurrencies")?;
            let allocations: Vec<Option<i64>> = row.try_get("allocations")?;
            let limits = queue_limits.into_iter().zip(concurrencies).zip(allocations);
            let limits =
                limits.map(|((queue_limit, concurrency), allocation)| Limits { queue_limit, concurrency, allocation });
            Ok(User {
                name: row.try_get("name")?,
                limits: Limits {
                    queue_limit: row.try_get("queue_limit")?,
                    concurrency: row.try_get("concurrency")?,
                    allocation: row.try_get("allocation")?,
                },
                prohibited: row.try_get("prohibited")?,
                waiting: row.try_get("waiting")?,
                in_progress: row.try_get("in_progress")?,
                open_jobs: row.try_get("open_jobs")?,
                job_types: names.into_iter().zip(limits).collect(),
                version: row.try_get("version")?,
            })
        })
        .collect()
}

/// What users have who have nothing of their own, and its version.
pub async fn default_limits(client: &ClientWrapper) -> Result<(Limits, String), Error> {
    let rows = client.run(include_str!("../queries/default_limits.sql"), &[]).await?;
    let row = &rows[0];
    let limits = Limits { queue_limit: row.try_get(0)?, concurrency: row.try_get(1)?, allocation: row.try_get(2)? };
    Ok((limits, row.try_get(3)?))
}

/// `options`: a JSON object, as `pcfarm.set_user` takes it. `version`: that which it is meant for, as everywhere here; empty:
/// any.
///
/// # Errors
/// [`LOST_UPDATE`] if it is another one by now: nothing is changed.
pub async fn set_users(
    client: &ClientWrapper,
    names: &[String],
    options: &RawJson,
    version: &str,
) -> Result<(), Error> {
    client.run(include_str!("../queries/set_user.sql"), &[&names, options, &version]).await.map(drop)
}

pub async fn set_users_of_type(
    client: &ClientWrapper,
    names: &[String],
    job_type: &str,
    options: &RawJson,
    version: &str,
) -> Result<(), Error> {
    let text = include_str!("../queries/set_user_job_type.sql");
    client.run(text, &[&names, &job_type, options, &version]).await.map(drop)
}

pub async fn set_default_limits(client: &ClientWrapper, options: &RawJson, version: &str) -> Result<(), Error> {
    client.run(include_str!("../queries/set_farm.sql"), &[options, &version]).await.map(drop)
}

#[derive(Clone, Debug)]
pub struct Resource {
    pub name: String,
    pub tokens: i64,
    pub in_use: i64,
    pub description: String,
    /// What each problem in progress of a job type has.
    pub needs: Vec<(String, i64)>,
    pub version: String,
}

/// By name; at most 10,000.
pub async fn resources(client: &ClientWrapper) -> Result<Vec<Resource>, Error> {
    let rows = client.run(include_str!("../queries/resources.sql"), &[]).await?;
    rows.iter()
        .map(|row| {
            let names: Vec<String> = row.try_get("job_types")?;
            let needs: Vec<i64> = row.try_get("needs")?;
            Ok(Resource {
                name: row.try_get("name")?,
                tokens: row.try_get("tokens")?,
                in_use: row.try_get("in_use")?,
                description: row.try_get("description")?,
                needs: names.into_iter().zip(needs).collect(),
                version: row.try_get("version")?,
            })
        })
        .collect()
}

/// Without tokens: there is no such resource any more.
pub async fn set_resource(
    client: &ClientWrapper,
    name: &str,
    tokens: Option<i64>,
    description: &str,
    version: &str,
) -> Result<(), Error> {
    let text = include_str!("../queries/set_resource.sql");
    client.run(text, &[&name, &tokens, &description, &version]).await.map(drop)
}

/// Hands out nothing any more, or nothing of one job type.
pub async fn suspend(client: &ClientWrapper, job_type: Option<&str>, reason: &str) -> Result<(), Error> {
    match job_type {
        Some(job_type) => client.run(include_str!("../queries/suspend_job_type.sql"), &[&job_type, &reason]).await,
        None => client.run(include_str!("../queries/suspend_queue.sql"), &[&reason]).await,
    }
    .map(drop)
}

pub async fn resume(client: &ClientWrapper, job_type: Option<&str>) -> Result<(), Error> {
    match job_type {
        Some(job_type) => client.run(include_str!("../queries/resume_job_type.sql"), &[&job_type]).await,
        None => client.run(include_str!("../queries/resume_queue.sql"), &[]).await,
    }
    .map(drop)
}

/// Which loads.
#[derive(Clone, Debug, Default)]
pub struct Loads {
    pub job: Option<JobId>,
    pub owner: Option<String>,
    pub loaded_from: Option<SystemTime>,
    pub loaded_before: Option<SystemTime>,
}

/// Hands out no more of them, or does so again. Returns how many problems they had.
pub async fn park(client: &ClientWrapper, loads: &Loads, parked: bool) -> Result<i64, Error> {
    let Loads { job, owner, loaded_from, loaded_before } = loads;
    let text = include_str!("../queries/park.sql");
    client.run(text, &[job, owner, loaded_from, loaded_before, &parked]).await?[0].try_get(0)
}
