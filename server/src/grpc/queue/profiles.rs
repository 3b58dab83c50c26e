//! Entries of profiles and signals, as messages.

use super::super::status_code;
use super::only_known;
use deadpool_postgres::Object;
use pcfarm_proto::v1::{
    Condition, DeleteProfileRequest, ListProfilesResponse, ListSignalsResponse, Profile, SetProfileRequest,
    SetSignalRequest, Signal,
};
use pcfarm_sql::json::RawJson;
use pcfarm_sql::profiles;
use serde_json::{Map, Value, json};
use std::time::SystemTime;
use tonic::{Response, Status};

const WEEKDAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// What can be reset.
const RESET: [&str; 4] = ["problems_per_hour", "problems_per_checkout", "priority", "when"];

pub async fn list(
    client: &Object,
    job_type: &str,
    at: Option<SystemTime>,
) -> Result<Response<ListProfilesResponse>, Status> {
    let found = profiles::profiles(client, job_type, at).await.map_err(status_code::of)?;
    Ok(Response::new(ListProfilesResponse { profiles: found.into_iter().map(message).collect() }))
}

pub async fn set(client: &Object, asked: SetProfileRequest) -> Result<Response<ListProfilesResponse>, Status> {
    let profile_id = (asked.profile_id != 0).then_some(asked.profile_id);
    let options = options(&asked)?;
    let set = profiles::set_profile(client, &asked.job_type, &options, profile_id, &asked.version).await;
    set.map_err(status_code::of)?;
    list(client, &asked.job_type, None).await
}

pub async fn delete(client: &Object, asked: DeleteProfileRequest) -> Result<Response<ListProfilesResponse>, Status> {
    profiles::delete_profile(client, asked.profile_id, &asked.version).await.map_err(status_code::of)?;
    list(client, "", None).await
}

pub async fn signals(client: &Object) -> Result<Response<ListSignalsResponse>, Status> {
    let found = profiles::signals(client).await.map_err(status_code::of)?;
    let message = |signal: profiles::Signal| Signal {
        name: signal.name,
        value: signal.value,
        said_at: Some(signal.said_at.into()),
        holds_for_seconds: signal.holds_for,
        known: signal.known,
    };
    Ok(Response::new(ListSignalsResponse { signals: found.into_iter().map(message).collect() }))
}

pub async fn set_signal(client: &Object, asked: SetSignalRequest) -> Result<Response<ListSignalsResponse>, Status> {
    let SetSignalRequest { name, value, holds_for_seconds } = asked;
    profiles::set_signal(client, &name, value, holds_for_seconds).await.map_err(status_code::of)?;
    signals(client).await
}

/// As `pcfarm.set_profile` takes them.
fn options(asked: &SetProfileRequest) -> Result<RawJson, Status> {
    let mut options = only_known(&asked.reset, &RESET)?;
    let given = [
        ("weekdays", asked.weekdays.as_ref().map(|days| json!(days))),
        ("from", asked.from.as_ref().map(|time| json!(time))),
        ("to", asked.to.as_ref().map(|time| json!(time))),
        ("time_zone", asked.time_zone.as_ref().map(|zone| json!(zone))),
        ("problems_per_hour", asked.problems_per_hour.map(|most| json!(most))),
        ("problems_per_checkout", asked.problems_per_checkout.map(|most| json!(most))),
        ("priority", asked.priority.map(|priority| json!(priority))),
        ("when", (!asked.when.is_empty()).then(|| conditions(&asked.when))),
    ];
    options.extend(given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    Ok(RawJson(Value::Object(options).to_string().into()))
}

/// As `{"signal": {"at_least": 1, "below": 2}}`.
fn conditions(when: &[Condition]) -> Value {
    let bounds = |condition: &Condition| {
        let bounds = [("at_least", condition.at_least), ("below", condition.below)];
        Value::Object(bounds.into_iter().filter_map(|(name, bound)| Some((name.to_owned(), json!(bound?)))).collect())
    };
    Value::Object(when.iter().map(|condition| (condition.signal.clone(), bounds(condition))).collect())
}

fn message(one: profiles::Profile) -> Profile {
    let day = |day: &i16| usize::try_from(day - 1).ok().and_then(|day| WEEKDAYS.get(day)).map(|&day| day.to_owned());
    let conditions: Map<String, Value> = serde_json::from_slice(&one.conditions.0).unwrap_or_default();
    Profile {
        profile_id: one.profile_id,
        job_type: one.job_type,
        weekdays: one.weekdays.iter().filter_map(day).collect(),
        from: one.from,
        to: one.to,
        time_zone: one.time_zone,
        problems_per_hour: one.problems_per_hour,
        problems_per_checkout: one.problems_per_checkout,
        priority: one.priority,
        when: conditions
            .into_iter()
            .map(|(signal, bounds)| Condition {
                signal,
                at_least: bounds["at_least"].as_f64(),
                below: bounds["below"].as_f64(),
            })
            .collect(),
        holds: one.holds,
        reason: one.reason,
        used: one.used,
        version: one.version,
    }
}
