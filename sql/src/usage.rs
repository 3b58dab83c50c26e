//! What users have had done, and how much they may load.

use crate::checkout::Queries;
use crate::json::RawJson;
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
    /// Of its schedules, that enqueued a problem or made a job.
    pub triggers: i64,
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
                triggers: row.try_get("triggers")?,
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

/// Of a user, by period.
#[derive(Clone, Debug)]
pub struct UserQuotas {
    pub user: String,
    pub quotas: Vec<Quota>,
    pub version: String,
}

/// Of the users that are named, or of all that have one, by name; at most 10,000.
pub async fn quotas(client: &ClientWrapper, users: Option<&[String]>) -> Result<Vec<UserQuotas>, Error> {
    let rows = client.run(include_str!("../queries/quotas.sql"), &[&users]).await?;
    let mut all: Vec<UserQuotas> = Vec::new();
    for row in &rows {
        let user: String = row.try_get("owner")?;
        if all.last().is_none_or(|last| last.user != user) {
            all.push(UserQuotas { user, quotas: Vec::new(), version: row.try_get("version")? });
        }
        let (Some(of), Some(period)) = (all.last_mut(), row.try_get("period")?) else { continue };
        of.quotas.push(Quota {
            period,
            problems: row.try_get("problems")?,
            cpu_seconds: row.try_get("cpu_seconds")?,
            used: row.try_get("used")?,
        });
    }
    Ok(all)
}

/// `options`: a JSON object, as `pcfarm.set_quotas` takes it. `version`: that which it is meant for; empty: any.
pub async fn set_quotas(
    client: &ClientWrapper,
    users: &[String],
    period: &str,
    options: &RawJson,
    version: &str,
) -> Result<(), Error> {
    client.run(include_str!("../queries/set_quota.sql"), &[&users, &period, options, &version]).await.map(drop)
}
