//! What was done in each hour.

use crate::checkout::Queries;
use deadpool_postgres::ClientWrapper;
use std::time::SystemTime;
use tokio_postgres::Error;

/// Most that one call returns.
pub const PAGE_LIMIT: u32 = 10_000;

/// Of one hour, job type and user.
#[derive(Clone, Debug)]
pub struct Statistic {
    /// Its start.
    pub hour: SystemTime,
    pub job_type: String,
    pub owner: String,
    pub done: i64,
    pub failed: i64,
    /// Problems that came back, counted each time.
    pub requeued: i64,
}

/// The newest hours first; `None`: of any.
pub async fn statistics(
    client: &ClientWrapper,
    since: SystemTime,
    job_type: Option<&str>,
    owner: Option<&str>,
    limit: u32,
) -> Result<Vec<Statistic>, Error> {
    let limit = i64::from(limit.min(PAGE_LIMIT));
    let rows = client.run(include_str!("../queries/statistics.sql"), &[&since, &job_type, &owner, &limit]).await?;
    rows.iter()
        .map(|row| {
            Ok(Statistic {
                hour: row.try_get("hour")?,
                job_type: row.try_get("job_type")?,
                owner: row.try_get("owner")?,
                done: row.try_get("done")?,
                failed: row.try_get("failed")?,
                requeued: row.try_get("requeued")?,
            })
        })
        .collect()
}
