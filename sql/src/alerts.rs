//! Alerts: who wants to be told of what, and what is still to be told. The database writes alerts down; this claims them
//! for whoever delivers them.

use crate::checkout::Queries;
use crate::json::RawJson;
use deadpool_postgres::ClientWrapper;
use pcfarm_proto::ids::{AlertId, JobId, SubscriptionId};
use std::time::{Duration, SystemTime};
use tokio_postgres::{Error, Row};

/// How a subscriber is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    Webhook,
    Email,
    Notify,
}

impl Channel {
    fn named(name: &str) -> Channel {
        match name {
            "webhook" => Channel::Webhook,
            "email" => Channel::Email,
            // The database's CHECK knows no others.
            _ => Channel::Notify,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Channel::Webhook => "webhook",
            Channel::Email => "email",
            Channel::Notify => "notify",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Subscription {
    pub subscription_id: SubscriptionId,
    pub owner: String,
    pub job_id: Option<JobId>,
    pub job_type: Option<String>,
    pub all_users: bool,
    pub events: Vec<String>,
    pub failed_share: Option<f64>,
    pub channel: Channel,
    pub target: String,
    /// Such as 07:00, by the clocks of the zone.
    pub digest_at: Option<String>,
    pub time_zone: Option<String>,
    pub next_digest_at: Option<SystemTime>,
    pub created_at: SystemTime,
}

/// One alert and what has become of it.
#[derive(Clone, Debug)]
pub struct Alert {
    pub alert_id: AlertId,
    pub subscription_id: SubscriptionId,
    pub owner: String,
    pub channel: Channel,
    pub target: String,
    pub what: String,
    pub job_id: Option<JobId>,
    pub job_name: Option<String>,
    /// delivered, waiting or given_up.
    pub state: String,
    pub message: String,
    pub attempts: i32,
    pub created_at: SystemTime,
    pub next_attempt_at: Option<SystemTime>,
    pub delivered_at: Option<SystemTime>,
    pub given_up_at: Option<SystemTime>,
}

/// An alert that is the caller's to deliver, for as long as its lease.
#[derive(Clone)]
pub struct Claimed {
    pub alert_id: AlertId,
    /// What receivers know it by.
    pub message_id: String,
    /// This one is the how manyth.
    pub attempts: i32,
    pub what: String,
    /// What is slow or dead as one.
    pub place: String,
    pub body: RawJson,
    pub created_at: SystemTime,
    pub channel: Channel,
    pub target: String,
    pub secret: Option<String>,
    pub job_id: Option<JobId>,
    /// The job's, if that is traced.
    pub trace_parent: Option<String>,
}

/// Options as `pcfarm.subscribe` takes them. Returns the secret of a webhook, which is told this once.
pub async fn subscribe(client: &ClientWrapper, options: &RawJson) -> Result<(SubscriptionId, Option<String>), Error> {
    let rows = client.run(include_str!("../queries/subscribe.sql"), &[options]).await?;
    Ok((rows[0].try_get(0)?, rows[0].try_get(1)?))
}

pub async fn unsubscribe(client: &ClientWrapper, subscription: SubscriptionId) -> Result<(), Error> {
    client.run(include_str!("../queries/unsubscribe.sql"), &[&subscription]).await.map(drop)
}

/// Tries one that was not delivered again, at once.
pub async fn retry(client: &ClientWrapper, alert: AlertId) -> Result<(), Error> {
    client.run(include_str!("../queries/retry_alert.sql"), &[&alert]).await.map(drop)
}

/// Of a job, that one, or all that the caller may see; the newest first, at most 1,000.
pub async fn subscriptions(
    client: &ClientWrapper,
    job: Option<JobId>,
    only: Option<SubscriptionId>,
) -> Result<Vec<Subscription>, Error> {
    let rows = client.run(include_str!("../queries/subscriptions.sql"), &[&job, &only]).await?;
    rows.iter()
        .map(|row| {
            Ok(Subscription {
                subscription_id: row.try_get("subscription_id")?,
                owner: row.try_get("owner")?,
                job_id: row.try_get("job_id")?,
                job_type: row.try_get("job_type")?,
                all_users: row.try_get("all_users")?,
                events: row.try_get("events")?,
                failed_share: row.try_get("failed_share")?,
                channel: Channel::named(row.try_get("channel")?),
                target: row.try_get("target")?,
                digest_at: row.try_get("digest_at")?,
                time_zone: row.try_get("time_zone")?,
                next_digest_at: row.try_get("next_digest_at")?,
                created_at: row.try_get("created_at")?,
            })
        })
        .collect()
}

/// Which alerts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    pub job_id: Option<JobId>,
    pub undelivered: bool,
    pub only: Option<AlertId>,
    pub limit: i64,
}

/// The newest first.
pub async fn alerts(client: &ClientWrapper, wanted: Wanted) -> Result<Vec<Alert>, Error> {
    let Wanted { job_id, undelivered, only, limit } = wanted;
    let rows = client.run(include_str!("../queries/alerts.sql"), &[&job_id, &undelivered, &limit, &only]).await?;
    rows.iter().map(alert).collect()
}

fn alert(row: &Row) -> Result<Alert, Error> {
    Ok(Alert {
        alert_id: row.try_get("alert_id")?,
        subscription_id: row.try_get("subscription_id")?,
        owner: row.try_get("owner")?,
        channel: Channel::named(row.try_get("channel")?),
        target: row.try_get("target")?,
        what: row.try_get("what")?,
        job_id: row.try_get("job_id")?,
        job_name: row.try_get("job_name")?,
        state: row.try_get("state")?,
        message: row.try_get("message")?,
        attempts: row.try_get("attempts")?,
        created_at: row.try_get("created_at")?,
        next_attempt_at: row.try_get("next_attempt_at")?,
        delivered_at: row.try_get("delivered_at")?,
        given_up_at: row.try_get("given_up_at")?,
    })
}

/// Writes down that jobs are late or have many failures. Looks at some jobs from one on; returns where to go on.
pub async fn sweep(client: &impl Queries, after: JobId) -> Result<JobId, Error> {
    client.run(include_str!("../queries/sweep_alerts.sql"), &[&after]).await?[0].try_get(0)
}

/// Writes the digests that are due. Returns how many; at most 5.
pub async fn make_digests(client: &impl Queries) -> Result<i64, Error> {
    client.run(include_str!("../queries/make_digests.sql"), &[]).await?[0].try_get(0)
}

/// Removes what is a month old. Returns how many rows are gone.
pub async fn forget(client: &impl Queries) -> Result<i64, Error> {
    client.run(include_str!("../queries/forget_alerts.sql"), &[]).await?[0].try_get(0)
}

/// Tells what is to be told on PostgreSQL's channels. Returns how many; at most 100.
pub async fn notify(client: &impl Queries) -> Result<i64, Error> {
    client.run(include_str!("../queries/notify_alerts.sql"), &[]).await?[0].try_get(0)
}

/// Takes alerts to deliver, one of a place and none of these places. Nobody else takes them within the lease.
pub async fn claim(
    client: &impl Queries,
    most: i64,
    not_of: &[String],
    lease: Duration,
) -> Result<Vec<Claimed>, Error> {
    let text = include_str!("../queries/claim_alerts.sql");
    let rows = client.run(text, &[&most, &not_of, &lease.as_secs_f64()]).await?;
    rows.iter()
        .map(|row| {
            Ok(Claimed {
                alert_id: row.try_get("alert_id")?,
                message_id: row.try_get("message_id")?,
                attempts: row.try_get("attempts")?,
                what: row.try_get("what")?,
                place: row.try_get("place")?,
                body: row.try_get("body")?,
                created_at: row.try_get("created_at")?,
                channel: Channel::named(row.try_get("channel")?),
                target: row.try_get("target")?,
                secret: row.try_get("secret")?,
                job_id: row.try_get("job_id")?,
                trace_parent: row.try_get("trace_parent")?,
            })
        })
        .collect()
}

pub async fn delivered(client: &impl Queries, alert: AlertId) -> Result<(), Error> {
    client.run(include_str!("../queries/alert_delivered.sql"), &[&alert]).await.map(drop)
}

/// It is tried again later, unless that would be in vain.
pub async fn not_delivered(
    client: &impl Queries,
    claimed: &Claimed,
    message: &str,
    in_vain: bool,
) -> Result<(), Error> {
    let text = include_str!("../queries/alert_not_delivered.sql");
    client.run(text, &[&claimed.alert_id, &claimed.attempts, &message, &in_vain]).await.map(drop)
}

/// Says of mails why they wait, where nobody can send them.
pub async fn explain_mail(client: &impl Queries, why: &str) -> Result<(), Error> {
    client.run(include_str!("../queries/alerts_without_mail.sql"), &[&why]).await.map(drop)
}
