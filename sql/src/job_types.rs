//! Job types as the server uses them: read whole, kept in memory, read again when told.

use deadpool_postgres::ClientWrapper;
use std::sync::Arc;
use std::time::Duration;
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
    /// What a workstation must have to run it.
    pub labels: Arc<[Arc<str>]>,
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
                labels: row.try_get::<_, Vec<&str>>("labels")?.into_iter().map(Arc::from).collect(),
                reads: names.into_iter().zip(queries).collect(),
            })
        })
        .collect()
}
