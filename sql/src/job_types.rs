//! Job types: as the server uses them, read whole, kept in memory, read again when told; and as administrators see and set
//! them.

use crate::checkout::Queries;
use crate::json::RawJson;
use deadpool_postgres::ClientWrapper;
use std::time::{Duration, SystemTime};
use tokio_postgres::Error;

/// How a kind of problem runs.
#[derive(Clone, Debug)]
pub struct JobType {
    pub name: String,
    pub controller: String,
    pub max_attempts: i32,
    pub time_limit: Option<Duration>,
    pub read_role: Option<String>,
    pub read_time_limit: Duration,
    pub writes_back: bool,
    /// Name and query of each related read.
    pub reads: Vec<(String, String)>,
}

pub async fn job_types(client: &ClientWrapper) -> Result<Vec<JobType>, Error> {
    let statement = client.prepare_cached(include_str!("../queries/job_types.sql")).await?;
    let rows = client.query(&statement, &[]).await?;
    rows.iter()
        .map(|row| {
            let names: Vec<String> = row.try_get("read_names")?;
            let queries: Vec<String> = row.try_get("read_queries")?;
            Ok(JobType {
                name: row.try_get("name")?,
                controller: row.try_get("controller")?,
                max_attempts: row.try_get("max_attempts")?,
                time_limit: row.try_get::<_, Option<f64>>("time_limit_seconds")?.map(Duration::from_secs_f64),
                read_role: row.try_get("read_role")?,
                read_time_limit: Duration::from_secs_f64(row.try_get("read_time_limit_seconds")?),
                writes_back: row.try_get("writes_back")?,
                reads: names.into_iter().zip(queries).collect(),
            })
        })
        .collect()
}

/// All that is said about a job type. Lengths of time are in seconds.
#[derive(Clone, Debug)]
pub struct Details {
    pub name: String,
    pub controller: String,
    pub description: String,
    pub default_priority: i32,
    pub default_duration: Option<f64>,
    pub max_attempts: i32,
    pub time_limit: Option<f64>,
    pub retry_delay: Option<f64>,
    pub retry_delay_limit: f64,
    pub retry_first: bool,
    pub keep_results: bool,
    pub retention: Option<f64>,
    pub labels: Vec<String>,
    /// Conditions on workstations.
    pub require: Vec<String>,
    /// Tokens that each problem in progress has.
    pub resources: Vec<(String, i64)>,
    pub read_role: Option<String>,
    pub read_time_limit: f64,
    /// Name and query of each related read.
    pub reads: Vec<(String, String)>,
    pub write_role: Option<String>,
    pub write_back: Option<String>,
    pub suspended_since: Option<SystemTime>,
    pub suspended_reason: String,
    pub version: String,
}

/// By name, at most 10,000; or the one that is named.
pub async fn details(client: &ClientWrapper, name: Option<&str>) -> Result<Vec<Details>, Error> {
    let rows = client.run(include_str!("../queries/job_type_details.sql"), &[&name]).await?;
    rows.iter()
        .map(|row| {
            let resources: Vec<String> = row.try_get("resources")?;
            let tokens: Vec<i64> = row.try_get("tokens")?;
            let read_names: Vec<String> = row.try_get("read_names")?;
            let read_queries: Vec<String> = row.try_get("read_queries")?;
            Ok(Details {
                name: row.try_get("name")?,
                controller: row.try_get("controller")?,
                description: row.try_get("description")?,
                default_priority: row.try_get("default_priority")?,
                default_duration: row.try_get("default_duration")?,
                max_attempts: row.try_get("max_attempts")?,
                time_limit: row.try_get("time_limit")?,
                retry_delay: row.try_get("retry_delay")?,
                retry_delay_limit: row.try_get("retry_delay_limit")?,
                retry_first: row.try_get("retry_first")?,
                keep_results: row.try_get("keep_results")?,
                retention: row.try_get("retention")?,
                labels: row.try_get("labels")?,
                require: row.try_get("require")?,
                resources: resources.into_iter().zip(tokens).collect(),
                read_role: row.try_get("read_role")?,
                read_time_limit: row.try_get("read_time_limit")?,
                reads: read_names.into_iter().zip(read_queries).collect(),
                write_role: row.try_get("write_role")?,
                write_back: row.try_get("write_back")?,
                suspended_since: row.try_get("suspended_since")?,
                suspended_reason: row.try_get("suspended_reason")?,
                version: row.try_get("version")?,
            })
        })
        .collect()
}

/// Makes a job type, or changes one. `options`: a JSON object, as `pcfarm.set_job_type` takes it. `anew`: what it does not name
/// is as of a new one. `version`: that which it is meant for; empty: any; `*`: any, but there must be one; `none`: there must be
/// none yet. True: there was none.
///
/// # Errors
/// [`crate::sharing::LOST_UPDATE`] if it is of another version by now: nothing is changed.
pub async fn set(
    client: &ClientWrapper,
    name: &str,
    options: &RawJson,
    anew: bool,
    version: &str,
) -> Result<bool, Error> {
    let text = include_str!("../queries/set_job_type.sql");
    client.run(text, &[&name, options, &anew, &version]).await?[0].try_get(0)
}

/// # Errors
/// There is none, or it is in use.
pub async fn delete(client: &ClientWrapper, name: &str, version: &str) -> Result<(), Error> {
    client.run(include_str!("../queries/delete_job_type.sql"), &[&name, &version]).await.map(drop)
}
