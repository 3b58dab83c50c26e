//! Job types as messages. Whose rights their SQL has, and what that SQL is, is shown here and never taken: who administers
//! the farm does not thereby choose roles of its database.

use super::super::{about_field, status_code};
use crate::access::{Caller, Scope};
use deadpool_postgres::Object;
use pcfarm_proto::v1::{
    DeleteJobTypeRequest, DeleteJobTypeResponse, JobType, JobTypeRead, ListJobTypesResponse, SetJobTypeRequest,
    SetJobTypeResponse,
};
use pcfarm_sql::job_types::{self, Details};
use pcfarm_sql::json::RawJson;
use serde_json::{Map, Value, json};
use tonic::{Response, Status};

/// Seconds that a length of time may have: a thousand years.
const LENGTH_LIMIT: f64 = 1000.0 * 365.25 * 86_400.0;

/// A field of the request, and the option of `pcfarm.set_job_type` that it is.
const OPTIONS: [(&str, &str); 14] = [
    ("controller", "controller"),
    ("description", "description"),
    ("default_priority", "default_priority"),
    ("default_duration_seconds", "default_duration"),
    ("max_attempts", "max_attempts"),
    ("time_limit_seconds", "time_limit"),
    ("retry_delay_seconds", "retry_delay"),
    ("retry_delay_limit_seconds", "retry_delay_limit"),
    ("retry_first", "retry_first"),
    ("keep_results", "keep_results"),
    ("retention_seconds", "retention"),
    ("resources", "resources"),
    ("labels", "labels"),
    ("require", "require"),
];

pub async fn list(caller: &Caller, client: &Object, name: &str) -> Result<Response<ListJobTypesResponse>, Status> {
    let found = job_types::details(client, (!name.is_empty()).then_some(name)).await.map_err(status_code::of)?;
    if found.is_empty() && !name.is_empty() {
        return Err(none(name));
    }
    let job_types = found.into_iter().map(|one| message(caller, one)).collect();
    Ok(Response::new(ListJobTypesResponse { job_types }))
}

pub async fn set(
    caller: &Caller,
    client: &Object,
    asked: SetJobTypeRequest,
) -> Result<Response<SetJobTypeResponse>, Status> {
    let options = options(&asked)?;
    let SetJobTypeRequest { name, anew, version, .. } = asked;
    let created = job_types::set(client, &name, &options, anew, &version).await.map_err(status_code::of)?;
    let made = job_types::details(client, Some(&name)).await.map_err(status_code::of)?.pop();
    // Somebody may have removed it meanwhile.
    let job_type = made.map(|one| message(caller, one)).ok_or_else(|| none(&name))?;
    Ok(Response::new(SetJobTypeResponse { job_type: Some(job_type), created }))
}

pub async fn delete(client: &Object, asked: DeleteJobTypeRequest) -> Result<Response<DeleteJobTypeResponse>, Status> {
    let DeleteJobTypeRequest { name, version } = asked;
    job_types::delete(client, &name, &version).await.map_err(status_code::of)?;
    Ok(Response::new(DeleteJobTypeResponse {}))
}

fn none(name: &str) -> Status {
    Status::not_found(format!("there is no job type {name:?}"))
}

/// As `pcfarm.set_job_type` takes them.
fn options(asked: &SetJobTypeRequest) -> Result<RawJson, Status> {
    let mut options = Map::new();
    for name in &asked.reset {
        let known = OPTIONS.iter().find(|(field, _)| field == name && *field != "controller");
        let (_, option) = known.ok_or_else(|| {
            let known: Vec<&str> = OPTIONS[1..].iter().map(|(field, _)| *field).collect();
            Status::invalid_argument(format!("{name:?} cannot be reset: {} can", known.join(", ")))
        })?;
        options.insert((*option).to_owned(), Value::Null);
    }
    if let Some((resource, tokens)) = asked.resources.iter().find(|(_, tokens)| **tokens < 0) {
        return Err(about_field("resources", format!("{tokens} tokens of {resource:?}: none or more are wanted")));
    }
    let resources = (!asked.resources.is_empty()).then(|| json!(asked.resources));
    let given = [
        asked.controller.as_ref().map(|name| json!(name)),
        asked.description.as_ref().map(|text| json!(text)),
        asked.default_priority.map(|priority| json!(priority)),
        length("default_duration_seconds", asked.default_duration_seconds)?,
        asked.max_attempts.map(|most| json!(most)),
        length("time_limit_seconds", asked.time_limit_seconds)?,
        length("retry_delay_seconds", asked.retry_delay_seconds)?,
        length("retry_delay_limit_seconds", asked.retry_delay_limit_seconds)?,
        asked.retry_first.map(|first| json!(first)),
        asked.keep_results.map(|keep| json!(keep)),
        length("retention_seconds", asked.retention_seconds)?,
        resources,
        (!asked.labels.is_empty()).then(|| json!(asked.labels)),
        (!asked.require.is_empty()).then(|| json!(asked.require)),
    ];
    for ((_, option), value) in OPTIONS.iter().zip(given) {
        value.map(|value| options.insert((*option).to_owned(), value));
    }
    if options.is_empty() && !asked.anew {
        return Err(Status::invalid_argument("nothing says what is to change"));
    }
    Ok(RawJson(Value::Object(options).to_string().into()))
}

/// An interval of the database.
fn length(field: &'static str, seconds: Option<f64>) -> Result<Option<Value>, Status> {
    match seconds {
        None => Ok(None),
        Some(seconds) if (0.0..=LENGTH_LIMIT).contains(&seconds) => Ok(Some(json!(format!("{seconds} seconds")))),
        Some(_) => Err(about_field(field, "from 0 seconds to a thousand years".to_owned())),
    }
}

fn message(caller: &Caller, one: Details) -> JobType {
    // SQL and roles may tell more than what a job type does.
    let shows_sql = caller.may(Scope::Operate);
    let text = |text: Option<String>| text.filter(|_| shows_sql).unwrap_or_default();
    let reads = if shows_sql { one.reads } else { Vec::new() };
    JobType {
        name: one.name,
        controller: one.controller,
        description: one.description,
        default_priority: one.default_priority,
        default_duration_seconds: one.default_duration,
        max_attempts: one.max_attempts,
        time_limit_seconds: one.time_limit,
        retry_delay_seconds: one.retry_delay,
        retry_delay_limit_seconds: one.retry_delay_limit,
        retry_first: one.retry_first,
        keep_results: one.keep_results,
        retention_seconds: one.retention,
        resources: one.resources.into_iter().collect(),
        labels: one.labels,
        require: one.require,
        read_role: text(one.read_role),
        read_time_limit_seconds: one.read_time_limit,
        reads: reads.into_iter().map(|(name, query)| JobTypeRead { name, query }).collect(),
        write_role: text(one.write_role),
        write_back: text(one.write_back),
        suspended_since: one.suspended_since.map(Into::into),
        suspended_reason: one.suspended_reason,
        version: one.version,
    }
}
