//! Profiles: what limits job types by weekday, time of day and conditions, and the signals that conditions ask for.

use crate::checkout::Queries;
use crate::json::RawJson;
use deadpool_postgres::ClientWrapper;
use std::time::SystemTime;
use tokio_postgres::Error;

/// An entry of a job type's profile.
#[derive(Clone, Debug)]
pub struct Profile {
    pub profile_id: i64,
    pub job_type: String,
    /// 1 is Monday.
    pub weekdays: Vec<i16>,
    /// As `07:00`.
    pub from: String,
    pub to: String,
    pub time_zone: String,
    pub problems_per_hour: Option<i64>,
    pub problems_per_checkout: Option<i32>,
    pub priority: Option<i32>,
    /// `{"signal": {"at_least": 1, "below": 2}}`
    pub conditions: RawJson,
    /// Of all entries of its job type, it is the one that holds.
    pub holds: bool,
    /// Why, or why not.
    pub reason: String,
    /// Weight that was handed out under it within an hour.
    pub used: i64,
    pub version: String,
}

/// Of one job type, or of all if its name is empty, the most specific first; at most 10,000. Which of them hold at a moment,
/// or now.
///
/// # Errors
/// There is no such job type.
pub async fn profiles(client: &ClientWrapper, job_type: &str, at: Option<SystemTime>) -> Result<Vec<Profile>, Error> {
    let rows = client.run(include_str!("../queries/profiles.sql"), &[&job_type, &at]).await?;
    rows.iter()
        .map(|row| {
            Ok(Profile {
                profile_id: row.try_get("profile_id")?,
                job_type: row.try_get("job_type")?,
                weekdays: row.try_get("weekdays")?,
                from: row.try_get("starts")?,
                to: row.try_get("ends")?,
                time_zone: row.try_get("time_zone")?,
                problems_per_hour: row.try_get("problems_per_hour")?,
                problems_per_checkout: row.try_get("problems_per_checkout")?,
                priority: row.try_get("priority")?,
                conditions: row.try_get("conditions")?,
                holds: row.try_get("holds")?,
                reason: row.try_get("reason")?,
                used: row.try_get("used")?,
                version: row.try_get("version")?,
            })
        })
        .collect()
}

/// Adds an entry, or changes one. `options`: a JSON object, as `pcfarm.set_profile` takes it. `version`: that which a change is
/// meant for; empty: any. Returns its id.
pub async fn set_profile(
    client: &ClientWrapper,
    job_type: &str,
    options: &RawJson,
    profile_id: Option<i64>,
    version: &str,
) -> Result<i64, Error> {
    let text = include_str!("../queries/set_profile.sql");
    client.run(text, &[&job_type, options, &profile_id, &version]).await?[0].try_get(0)
}

pub async fn delete_profile(client: &ClientWrapper, profile_id: i64, version: &str) -> Result<(), Error> {
    client.run(include_str!("../queries/delete_profile.sql"), &[&profile_id, &version]).await.map(drop)
}

#[derive(Clone, Debug)]
pub struct Signal {
    pub name: String,
    pub value: f64,
    pub said_at: SystemTime,
    /// Seconds after which it is not known any more.
    pub holds_for: f64,
    pub known: bool,
}

/// By name; at most 10,000.
pub async fn signals(client: &ClientWrapper) -> Result<Vec<Signal>, Error> {
    let rows = client.run(include_str!("../queries/signals.sql"), &[]).await?;
    rows.iter()
        .map(|row| {
            Ok(Signal {
                name: row.try_get("name")?,
                value: row.try_get("value")?,
                said_at: row.try_get("said_at")?,
                holds_for: row.try_get("holds_for")?,
                known: row.try_get("known")?,
            })
        })
        .collect()
}

/// Without a value: forgets it. `holds_for`: seconds; five minutes if it is missing.
pub async fn set_signal(
    client: &ClientWrapper,
    name: &str,
    value: Option<f64>,
    holds_for: Option<f64>,
) -> Result<(), Error> {
    client.run(include_str!("../queries/set_signal.sql"), &[&name, &value, &holds_for]).await.map(drop)
}

/// Says the signals that a server knows, if some profile asks for them.
pub async fn sample_signals(client: &ClientWrapper) -> Result<(), Error> {
    client.run(include_str!("../queries/sample_signals.sql"), &[]).await.map(drop)
}

/// Forgets of what was handed out what no limit looks at any more, and came no earlier than `since`: 10,000 rows at most.
/// Returns until when it came, none if there was nothing.
pub async fn forget_hand_outs(client: &impl Queries, since: Option<SystemTime>) -> Result<Option<SystemTime>, Error> {
    client.run(include_str!("../queries/forget_hand_outs.sql"), &[&since]).await?[0].try_get(0)
}

/// What was handed out by a clock that was ahead counts from now on, if that clock was put right since.
pub async fn put_hand_outs_right(client: &impl Queries) -> Result<(), Error> {
    client.run(include_str!("../queries/put_hand_outs_right.sql"), &[]).await.map(drop)
}
