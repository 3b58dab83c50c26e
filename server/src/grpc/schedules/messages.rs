//! Between the wire's messages and schedules as the database has them.

use crate::grpc;
use crate::problem;
use crate::schedules::plan::{Definition, Done, timestamp};
use pcfarm_proto::ids::ScheduleId;
use pcfarm_proto::v1::schedule_definition::Target;
use pcfarm_proto::v1::{Schedule, ScheduleDefinition, ScheduleTrigger};
use pcfarm_sql::json::RawJson;
use pcfarm_sql::schedules::{self, CatchUp, Listed, State, Trigger};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};
use tonic::Status;

const DEFAULT_CATCH_UP_LIMIT: i32 = 1000;

/// Later than this, somebody should look.
const LATE: Duration = Duration::from_secs(10);

/// A definition as the ticker would see it.
pub(super) fn schedule_of(
    owner: String,
    definition: &ScheduleDefinition,
    now: SystemTime,
) -> Result<schedules::Schedule, Status> {
    let time = |what: &str, stamp: Option<prost_types::Timestamp>| match stamp {
        None => Ok(None),
        Some(stamp) => grpc::time(stamp)
            .map(Some)
            .ok_or_else(|| Status::invalid_argument(format!("{what} is not a time from 1970 to 9999"))),
    };
    let catch_up = match definition.catch_up.as_str() {
        "skip" => CatchUp::Skip,
        "" | "once" => CatchUp::Once,
        "all" => CatchUp::All,
        other => return Err(Status::invalid_argument(format!("{other:?} is no way to catch up: skip, once or all"))),
    };
    let zone = if definition.time_zone.is_empty() { "UTC" } else { &definition.time_zone };
    let number = |what: &str| Status::invalid_argument(format!("{what} is too large"));
    let catch_up_limit = match i32::try_from(definition.catch_up_limit).map_err(|_| number("catch_up_limit"))? {
        0 => DEFAULT_CATCH_UP_LIMIT,
        limit => limit,
    };
    Ok(schedules::Schedule {
        schedule_id: ScheduleId(0),
        owner,
        name: definition.name.clone(),
        description: definition.description.clone(),
        recurrence: definition.recurrence.trim().to_owned(),
        time_zone: zone.to_owned(),
        starts_at: time("starts_at", definition.starts_at)?,
        ends_at: time("ends_at", definition.ends_at)?,
        enabled: definition.enabled.unwrap_or(true),
        catch_up,
        catch_up_limit,
        jitter_ms: i64::try_from(definition.jitter_ms).map_err(|_| number("jitter_ms"))?,
        payload: RawJson(definition.payload.clone()),
        job_id: None,
        template: None,
        version: 0,
        anchored_at: now,
        error: None,
        created_at: now,
        changed_at: now,
    })
}

/// What is there, with those fields of what is given that say when it comes.
pub(super) fn merged(before: &schedules::Schedule, given: schedules::Schedule, fields: &[&str]) -> schedules::Schedule {
    let has = |field: &str| fields.contains(&field);
    let mut after = before.clone();
    if has("recurrence") {
        after.recurrence = given.recurrence;
    }
    if has("time_zone") {
        after.time_zone = given.time_zone;
    }
    if has("starts_at") {
        after.starts_at = given.starts_at;
    }
    if has("ends_at") {
        after.ends_at = given.ends_at;
    }
    if has("enabled") {
        after.enabled = given.enabled;
    }
    if has("jitter_ms") {
        after.jitter_ms = given.jitter_ms;
    }
    after
}

/// As `pcfarm.create_schedule` takes them.
pub(super) fn options(definition: &ScheduleDefinition, fields: &[&str]) -> Result<RawJson, Status> {
    // What is not said is as it is by default, which is what an update of all fields means.
    let schedule = schedule_of(String::new(), definition, SystemTime::UNIX_EPOCH)?;
    let time = |time: Option<SystemTime>| time.and_then(|time| timestamp(time).ok()).map(|time| time.to_string());
    // Digit for digit: what is parsed and written again may have lost some.
    let given = |what: &str, bytes: &[u8]| -> Result<Box<RawValue>, Status> {
        let text = problem::json(bytes).map_err(|wrong| Status::invalid_argument(format!("{what}: {wrong}")))?;
        RawValue::from_string(text.to_owned()).map_err(|wrong| Status::invalid_argument(format!("{what}: {wrong}")))
    };
    let mut options: BTreeMap<&str, Box<RawValue>> = BTreeMap::new();
    for field in fields {
        let (name, value) = match *field {
            "name" => ("name", raw(&schedule.name)?),
            "description" => ("description", raw(&schedule.description)?),
            "recurrence" => ("recurrence", raw(&schedule.recurrence)?),
            "time_zone" => ("time_zone", raw(&schedule.time_zone)?),
            "starts_at" => ("starts_at", raw(&time(schedule.starts_at))?),
            "ends_at" => ("ends_at", raw(&time(schedule.ends_at))?),
            "enabled" => ("enabled", raw(&schedule.enabled)?),
            "catch_up" => ("catch_up", raw(&schedule.catch_up.as_str())?),
            "catch_up_limit" => ("catch_up_limit", raw(&schedule.catch_up_limit)?),
            "jitter_ms" => ("jitter_ms", raw(&schedule.jitter_ms)?),
            "payload" if definition.payload.is_empty() => ("payload", raw(&())?),
            "payload" => ("payload", given("the payload", &definition.payload)?),
            // The target.
            _ => match &definition.target {
                Some(Target::JobId(job)) => ("job", raw(job)?),
                Some(Target::JobKey(key)) => ("job_key", raw(key)?),
                Some(Target::Template(template)) => ("template", given("the template", template)?),
                None => continue,
            },
        };
        options.insert(name, value);
    }
    Ok(RawJson(raw(&options)?.get().to_owned().into()))
}

fn raw(value: &impl Serialize) -> Result<Box<RawValue>, Status> {
    to_raw_value(value).map_err(|wrong| Status::invalid_argument(wrong.to_string()))
}

pub(super) fn message(listed: Listed) -> Schedule {
    let state = listed.state();
    // Not written yet: it will be what the ticker computes.
    let preview = || {
        let definition = Definition::of(&listed.schedule).ok()?;
        let last = listed.last_due_at.and_then(|last| timestamp(last).ok());
        let plan = definition.plan(None, &Done { last, early: Vec::new() }, timestamp(listed.now).ok()?);
        Some((plan.due.map(SystemTime::from), plan.wake.map(SystemTime::from)))
    };
    let (due, wake) = match (state, listed.due_at) {
        (State::Active, None) => preview().unwrap_or_default(),
        (State::Active, due) => (due, listed.wake_at),
        (State::Disabled | State::Ended | State::Broken, _) => (None, None),
    };
    let reason = reason(&listed, state, due);
    let definition = definition(&listed);
    Schedule {
        schedule_id: listed.schedule.schedule_id.0,
        owner: listed.schedule.owner,
        definition: Some(definition),
        job_key: listed.job_key.unwrap_or_default(),
        version: listed.schedule.version,
        state: state.as_str().to_owned(),
        reason,
        next_due_at: due.map(Into::into),
        next_trigger_at: wake.map(Into::into),
        last_due_at: listed.last_due_at.map(Into::into),
        last_triggered_at: listed.last_triggered_at.map(Into::into),
        triggers: listed.sequence,
        created_at: Some(listed.schedule.created_at.into()),
        changed_at: Some(listed.schedule.changed_at.into()),
    }
}

fn reason(listed: &Listed, state: State, due: Option<SystemTime>) -> String {
    match state {
        State::Active => match due {
            Some(due) if listed.now.duration_since(due).is_ok_and(|late| late > LATE) => {
                "its time has come, and no server has triggered it: does one run?".to_owned()
            }
            Some(_) => "waits for its next time".to_owned(),
            None => "its next time is being computed".to_owned(),
        },
        State::Disabled => format!("disabled: `pcfarm schedules enable {}` lets it go on", listed.schedule.name),
        State::Ended => format!("{} comes no more", listed.schedule.recurrence),
        State::Broken => listed.schedule.error.clone().unwrap_or_default(),
    }
}

pub(super) fn definition(listed: &Listed) -> ScheduleDefinition {
    let of = &listed.schedule;
    let job = of.job_id.map(|job| Target::JobId(job.0));
    ScheduleDefinition {
        name: of.name.clone(),
        description: of.description.clone(),
        recurrence: of.recurrence.clone(),
        time_zone: of.time_zone.clone(),
        starts_at: of.starts_at.map(Into::into),
        ends_at: of.ends_at.map(Into::into),
        enabled: Some(of.enabled),
        catch_up: of.catch_up.as_str().to_owned(),
        catch_up_limit: of.catch_up_limit.unsigned_abs(),
        jitter_ms: of.jitter_ms.unsigned_abs(),
        payload: of.payload.0.clone(),
        target: job.or_else(|| of.template.as_ref().map(|template| Target::Template(template.0.clone()))),
    }
}

/// With the job's key, where it has one: ids are a farm's own.
pub(super) fn portable(listed: &Listed) -> ScheduleDefinition {
    let definition = definition(listed);
    let key = listed.job_key.clone().map(Target::JobKey);
    ScheduleDefinition { target: key.or(definition.target.clone()), ..definition }
}

pub(super) fn trigger_message(trigger: Trigger) -> ScheduleTrigger {
    let outcome = match (&trigger.refusal, &trigger.job_state, trigger.problem_id, trigger.failed) {
        (Some(_), _, _, _) => "refused",
        (None, None, _, _) => "forgotten",
        (None, Some(state), None, _) => state.as_str(),
        (None, Some(_), Some(_), Some(true)) => "failed",
        (None, Some(_), Some(_), Some(false)) => "done",
        (None, Some(_), Some(_), None) => "enqueued",
    };
    let lateness = trigger.triggered_at.duration_since(trigger.due_at).unwrap_or_default();
    ScheduleTrigger {
        sequence: trigger.sequence,
        due_at: Some(trigger.due_at.into()),
        triggered_at: Some(trigger.triggered_at.into()),
        lateness_ms: i64::try_from(lateness.as_millis()).unwrap_or(i64::MAX),
        outcome: outcome.to_owned(),
        message: trigger.refusal.or(trigger.message).unwrap_or_default(),
        job_id: trigger.job_id.map_or(0, |id| id.0),
        problem_id: trigger.problem_id.map_or(0, |id| id.0),
        server_id: trigger.server_id.map_or(0, |id| id.0),
    }
}
