//! What users have had done, and how much they may load.

use crate::checkout::Queries;
use deadpool_postgres::ClientWrapper;
use tokio_postgres::Error;

/// What a user has had done on a day.
#[derive(Clone, Debug)]
pub struct Usage {
    pub day: String,
    pub owner: String,
    pub done: i64,
    pub failed: i64,
    pub requeued: i64,
    /// In controllers, summed over cores, as agents say.
    pub cpu_seconds: f64,
}

/// Days since one (`2026-03-01`), of a user or of all, the newest first; at most 10,000.
pub async fn usage(client: &ClientWrapper, since: &str, owner: Option<&str>) -> Result<Vec<Usage>, Error> {
    let rows = client.run(include_str!("../queries/usage.sql"), &[&since, &owner]).await?;
    rows.iter()
        .map(|row| {
            Ok(Usage {
                day: row.try_get("day")?,
                owner: row.try_get("owner")?,
                done: row.try_get("done")?,
                failed: row.try_get("failed")?,
                requeued: row.try_get("requeued")?,
                cpu_seconds: row.try_get("cpu_seconds")?,
            })
        })
        .collect()
}

/// What a user may load in a period.
#[derive(Clone, Debug)]
pub struct Quota {
    /// day or month, in UTC.
    pub period: String,
    pub problems: Option<i64>,
    pub cpu_seconds: Option<f64>,
    /// Problems that were loaded in this period, since it is counted.
    pub used: i64,
}

pub async fn quotas(client: &ClientWrapper, owner: &str) -> Result<Vec<Quota>, Error> {
    let rows = client.run(include_str!("../queries/quotas.sql"), &[&owner]).await?;
    rows.iter()
        .map(|row| {
            Ok(Quota {
                period: row.try_get("period")?,
                problems: row.try_get("problems")?,
                cpu_seconds: row.try_get("cpu_seconds")?,
                used: row.try_get("used")?,
            })
        })
        .collect()
}

/// With neither there is none any more.
pub async fn set_quota(
    client: &ClientWrapper,
    owner: &str,
    period: &str,
    problems: Option<i64>,
    cpu_seconds: Option<f64>,
) -> Result<(), Error> {
    client.run(include_str!("../queries/set_quota.sql"), &[&owner, &period, &problems, &cpu_seconds]).await.map(drop)
}
