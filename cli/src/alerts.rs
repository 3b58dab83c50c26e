//! Who is told of what, and what could not be told.

use std::path::Path;

use anyhow::Result;
use pcfarm_proto::v1::subscribe_request::Target;
use pcfarm_proto::v1::{
    Alert, ListAlertsRequest, ListSubscriptionsRequest, RetryAlertRequest, SubscribeRequest, SubscribeResponse,
    Subscription, UnsubscribeRequest,
};
use serde::Serialize;

use crate::args::{AlertsVerb, SubscribeArgs};
use crate::exit::{Exit, Failure};
use crate::farm::Farm;
use crate::output::{self, Column, Output};
use crate::text::{self, cut, plain};

pub async fn run(farm: &Farm, verb: AlertsVerb, output: Output) -> Result<()> {
    let mut client = farm.alerts();
    match verb {
        AlertsVerb::Subscribe(args) => {
            let made = farm.call("subscribing", client.subscribe(farm.request(request(*args)?))).await?;
            let json = || MadeJson {
                subscription: made.subscription.as_ref().map(subscription_json),
                secret: some(&made.secret),
            };
            output.print(json, || made_text(&made))
        }
        AlertsVerb::Subscriptions { job } => {
            let request = ListSubscriptionsRequest { job_id: job.map_or(0, |job| job.0) };
            let call = client.list_subscriptions(farm.request(request));
            let found = farm.call("listing subscriptions", call).await?.subscriptions;
            let json = || SubscriptionsJson { subscriptions: found.iter().map(subscription_json).collect() };
            output.print(json, || subscriptions(&found))
        }
        AlertsVerb::Unsubscribe { subscription: id } => {
            let call = client.unsubscribe(farm.request(UnsubscribeRequest { subscription_id: id }));
            farm.call("unsubscribing", call).await?;
            let json = || UnsubscribedJson { subscription_id: id.to_string() };
            output.print(json, || format!("subscription {id} is gone: it tells no more"))
        }
        AlertsVerb::List { job, undelivered, limit } => {
            let request = ListAlertsRequest { job_id: job.map_or(0, |job| job.0), undelivered, limit };
            let found = farm.call("listing alerts", client.list_alerts(farm.request(request))).await?.alerts;
            output.print(|| AlertsJson { alerts: found.iter().map(alert_json).collect() }, || alerts(&found))
        }
        AlertsVerb::Retry { alert: alert_id } => {
            let call = client.retry_alert(farm.request(RetryAlertRequest { alert_id }));
            let alert = farm.call(&format!("retrying alert {alert_id}"), call).await?;
            output.print(|| alert_json(&alert), || format!("alert {alert_id} is {}", alert.state))
        }
    }
}

fn request(args: SubscribeArgs) -> Result<SubscribeRequest> {
    let target = args.webhook.map(Target::Webhook);
    let target = target.or(args.email.map(Target::Email)).or(args.notify.map(Target::Notify));
    Ok(SubscribeRequest {
        events: args.on,
        job_id: args.job.map_or(0, |job| job.0),
        job_type: args.job_type.unwrap_or_default(),
        all_users: args.all_users,
        failed_share: args.failed_share,
        target,
        secret: args.secret_file.map_or(Ok(String::new()), |path| secret(&path))?,
        at: args.at.unwrap_or_default(),
        time_zone: args.zone.unwrap_or_default(),
    })
}

/// From a file: what is on a command line is seen by everybody.
fn secret(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::of(Exit::NotFound, format!("reading {}: {error}", path.display())))?;
    Ok(text.trim().to_owned())
}

fn made_text(made: &SubscribeResponse) -> String {
    let subscription = made.subscription.clone().unwrap_or_default();
    let told = subscription.events.join(", ");
    let mut lines = format!(
        "subscription {}: {} {} is told of {}: {told}",
        subscription.subscription_id,
        subscription.channel,
        plain(&subscription.target),
        of(&subscription)
    );
    if !made.secret.is_empty() {
        lines.push_str(&format!("\nits secret, which is not shown again: {}", plain(&made.secret)));
    }
    lines
}

fn of(subscription: &Subscription) -> String {
    if subscription.events == ["workstations"] {
        return "workstations".to_owned();
    }
    match (subscription.job_id, &*subscription.job_type, subscription.all_users) {
        (0, _, _) if !subscription.digest_at.is_empty() => {
            format!("the farm, daily at {} {}", subscription.digest_at, plain(&subscription.time_zone))
        }
        (0, "", false) => format!("jobs of {}", cut(&subscription.owner, 20)),
        (0, "", true) => "all jobs".to_owned(),
        (0, job_type, false) => format!("{} of {}", cut(job_type, 20), cut(&subscription.owner, 20)),
        (0, job_type, true) => format!("{} of all", cut(job_type, 20)),
        (job, _, _) => format!("job {job}"),
    }
}

fn subscriptions(found: &[Subscription]) -> String {
    let columns =
        [Column::Number("ID"), Column::Text("OF"), Column::Text("TOLD"), Column::Text("HOW"), Column::Reason("WHERE")];
    let row = |one: &Subscription| {
        let share = one.failed_share.map(|share| format!(" {share}")).unwrap_or_default();
        vec![
            one.subscription_id.to_string(),
            of(one),
            cut(&format!("{}{share}", one.events.join(",")), 28),
            one.channel.clone(),
            cut(&one.target, 60),
        ]
    };
    let none = "nobody is told of anything: `pcfarm alerts subscribe` asks for it";
    output::table(&columns, found.iter().map(row).collect(), none)
}

fn alerts(found: &[Alert]) -> String {
    let columns = [
        Column::Number("ID"),
        Column::Text("WHEN"),
        Column::Text("OF"),
        Column::Text("STATE"),
        Column::Number("TRIES"),
        Column::Text("WHERE"),
        Column::Reason("WHY"),
    ];
    let row = |one: &Alert| {
        let of = if one.job_id == 0 { one.what.clone() } else { format!("job {} {}", one.job_id, one.what) };
        vec![
            one.alert_id.to_string(),
            when(one),
            of,
            one.state.clone(),
            one.attempts.to_string(),
            cut(&one.target, 24),
            cut(&one.message, 200),
        ]
    };
    output::table(&columns, found.iter().map(row).collect(), "no alerts")
}

/// To the second, which is enough for people.
fn when(alert: &Alert) -> String {
    let stamp = alert.created_at.map(|stamp| prost_types::Timestamp { nanos: 0, ..stamp });
    text::rfc3339(stamp.as_ref()).unwrap_or_default()
}

#[derive(Serialize)]
struct MadeJson<'a> {
    subscription: Option<SubscriptionJson<'a>>,
    secret: Option<&'a str>,
}

#[derive(Serialize)]
struct SubscriptionsJson<'a> {
    subscriptions: Vec<SubscriptionJson<'a>>,
}

#[derive(Serialize)]
struct UnsubscribedJson {
    subscription_id: String,
}

#[derive(Serialize)]
struct SubscriptionJson<'a> {
    subscription_id: String,
    owner: &'a str,
    job_id: Option<String>,
    job_type: Option<&'a str>,
    all_users: bool,
    events: &'a [String],
    failed_share: Option<f64>,
    channel: &'a str,
    target: &'a str,
    digest_at: Option<&'a str>,
    time_zone: Option<&'a str>,
    next_digest_at: Option<String>,
    created_at: Option<String>,
}

#[derive(Serialize)]
struct AlertsJson<'a> {
    alerts: Vec<AlertJson<'a>>,
}

#[derive(Serialize)]
struct AlertJson<'a> {
    alert_id: String,
    subscription_id: String,
    owner: &'a str,
    channel: &'a str,
    target: &'a str,
    what: &'a str,
    job_id: Option<String>,
    job_name: Option<&'a str>,
    state: &'a str,
    message: &'a str,
    attempts: i32,
    created_at: Option<String>,
    next_attempt_at: Option<String>,
    delivered_at: Option<String>,
    given_up_at: Option<String>,
}

fn some(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

fn subscription_json(one: &Subscription) -> SubscriptionJson<'_> {
    SubscriptionJson {
        subscription_id: one.subscription_id.to_string(),
        owner: &one.owner,
        job_id: output::id(one.job_id),
        job_type: some(&one.job_type),
        all_users: one.all_users,
        events: &one.events,
        failed_share: one.failed_share,
        channel: &one.channel,
        target: &one.target,
        digest_at: some(&one.digest_at),
        time_zone: some(&one.time_zone),
        next_digest_at: text::rfc3339(one.next_digest_at.as_ref()),
        created_at: text::rfc3339(one.created_at.as_ref()),
    }
}

fn alert_json(one: &Alert) -> AlertJson<'_> {
    AlertJson {
        alert_id: one.alert_id.to_string(),
        subscription_id: one.subscription_id.to_string(),
        owner: &one.owner,
        channel: &one.channel,
        target: &one.target,
        what: &one.what,
        job_id: output::id(one.job_id),
        job_name: some(&one.job_name),
        state: &one.state,
        message: &one.message,
        attempts: one.attempts,
        created_at: text::rfc3339(one.created_at.as_ref()),
        next_attempt_at: text::rfc3339(one.next_attempt_at.as_ref()),
        delivered_at: text::rfc3339(one.delivered_at.as_ref()),
        given_up_at: text::rfc3339(one.given_up_at.as_ref()),
    }
}
