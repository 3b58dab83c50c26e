//! Job types: how kinds of problems run. Whose rights their SQL has is not said here, but in the database.

use super::Api;
use super::extract::{Document, Params, PathName, SomeVersion, Version, Who};
use super::jobs::some;
use super::paging::{self, Page};
use super::problem_details::{Answer, Refusal};
use super::shown::{JobType, Show, tagged};
use super::users::PageParams;
use axum::Json as Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use pcfarm_proto::v1;
use pcfarm_proto::v1::queue_service_server::QueueService;
use serde::Deserialize;
use std::collections::BTreeMap;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

const CURSOR: &str = "job types";

pub fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(show, define, update, remove))
}

/// Job types, by name
#[utoipa::path(get, path = "/api/v1/job-types", tag = "job types", params(PageParams),
    responses((status = 200, body = Page<JobType>)))]
async fn list(State(api): State<Api>, who: Who, Params(asked): Params<PageParams>) -> Answer<Body<Page<JobType>>> {
    let after = paging::place(CURSOR, asked.cursor.as_deref())?;
    let wanted = v1::ListJobTypesRequest { name: String::new() };
    let mut all: Vec<JobType> = Show::show(api.queue.list_job_types(who.ask(wanted)).await?.into_inner().job_types);
    all.sort_by(|a, b| a.name.cmp(&b.name));
    let limit = asked.limit.unwrap_or_default().0;
    Ok(Body(Page::part(all, after.as_deref(), limit, CURSOR, |job_type| job_type.name.clone())))
}

/// One job type
#[utoipa::path(get, path = "/api/v1/job-types/{name}", tag = "job types", params(("name" = String, Path)),
    responses((status = 200, body = JobType, headers(("ETag" = String)))))]
async fn show(State(api): State<Api>, who: Who, PathName(name): PathName) -> Answer<Response> {
    let none = || Refusal::not_found(format!("there is no job type {name:?}"));
    // An empty name would be all of them.
    let asked = v1::ListJobTypesRequest { name: Some(name.clone()).filter(|name| !name.is_empty()).ok_or_else(none)? };
    let found = api.queue.list_job_types(who.ask(asked)).await?.into_inner().job_types;
    found.into_iter().next().map(shown).ok_or_else(none)
}

fn shown(job_type: v1::JobType) -> Response {
    let version = job_type.version.clone();
    tagged(JobType::show(job_type), &version)
}

/// How problems of a type run. Null is as of a new one.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Definition {
    /// What solves its problems; a new one needs it
    #[schema(example = "echo")]
    controller: Option<String>,
    #[serde(default, deserialize_with = "some")]
    #[schema(value_type = Option<String>)]
    description: Option<Option<String>>,
    #[serde(default, deserialize_with = "some")]
    #[schema(value_type = Option<i32>)]
    default_priority: Option<Option<i32>>,
    /// A job's deadline is its creation and this
    #[serde(default, deserialize_with = "some")]
    #[schema(value_type = Option<f64>, exclusive_minimum = 0.0, maximum = 31557600000.0)]
    default_duration_seconds: Option<Option<f64>>,
    #[serde(default, deserialize_with = "some")]
    #[schema(value_type = Option<i32>, minimum = 1, maximum = 100)]
    max_attempts: Option<Option<i32>>,
    /// Longest that a checkout may be in a workstation's hands
    #[serde(default, deserialize_with = "some")]
    #[schema(value_type = Option<f64>, exclusive_minimum = 0.0, maximum = 31557600000.0)]
    time_limit_seconds: Option<Option<f64>>,
    /// After a failed attempt a problem waits for about this, twice as long each time
    #[serde(default, deserialize_with = "some")]
    #[schema(value_type = Option<f64>, exclusive_minimum = 0.0, maximum = 31557600000.0)]
    retry_delay_seconds: Option<Option<f64>>,
    #[serde(default, deserialize_with = "some")]
    #[schema(value_type = Option<f64>, exclusive_minimum = 0.0, maximum = 31557600000.0)]
    retry_delay_limit_seconds: Option<Option<f64>>,
    /// What is tried again is served first
    #[serde(default, deserialize_with = "some")]
    #[schema(value_type = Option<bool>)]
    retry_first: Option<Option<bool>>,
    #[serde(default, deserialize_with = "some")]
    #[schema(value_type = Option<bool>)]
    keep_results: Option<Option<bool>>,
    /// Its jobs are removed when they ended this long ago
    #[serde(default, deserialize_with = "some")]
    #[schema(value_type = Option<f64>, minimum = 0.0, maximum = 31557600000.0)]
    retention_seconds: Option<Option<f64>>,
    /// Tokens that each problem in progress has, by resource; a change is one of those that it names, and 0 or null is none
    #[serde(default, deserialize_with = "some")]
    #[schema(value_type = Option<BTreeMap<String, i64>>)]
    resources: Option<Option<BTreeMap<String, Option<i64>>>>,
    /// What a workstation must have to run it: all of them
    #[serde(default, deserialize_with = "some")]
    #[schema(value_type = Option<Vec<String>>)]
    labels: Option<Option<Vec<String>>>,
    /// Conditions that a workstation must fulfil, beside those labels: all of them
    #[serde(default, deserialize_with = "some")]
    #[schema(value_type = Option<Vec<String>>, max_items = 20, example = json!(["memory >= 8 GiB", "gpu"]))]
    require: Option<Option<Vec<String>>>,
}

impl Definition {
    fn request(self, name: String, anew: bool, version: String) -> v1::SetJobTypeRequest {
        let null = [
            ("description", matches!(self.description, Some(None))),
            ("default_priority", matches!(self.default_priority, Some(None))),
            ("default_duration_seconds", matches!(self.default_duration_seconds, Some(None))),
            ("max_attempts", matches!(self.max_attempts, Some(None))),
            ("time_limit_seconds", matches!(self.time_limit_seconds, Some(None))),
            ("retry_delay_seconds", matches!(self.retry_delay_seconds, Some(None))),
            ("retry_delay_limit_seconds", matches!(self.retry_delay_limit_seconds, Some(None))),
            ("retry_first", matches!(self.retry_first, Some(None))),
            ("keep_results", matches!(self.keep_results, Some(None))),
            ("retention_seconds", matches!(self.retention_seconds, Some(None))),
            ("resources", matches!(self.resources, Some(None))),
            ("labels", self.labels.as_ref().is_some_and(|labels| labels.as_ref().is_none_or(Vec::is_empty))),
            ("require", self.require.as_ref().is_some_and(|require| require.as_ref().is_none_or(Vec::is_empty))),
        ];
        let resources = self.resources.flatten().unwrap_or_default();
        v1::SetJobTypeRequest {
            name,
            controller: self.controller,
            description: self.description.flatten(),
            default_priority: self.default_priority.flatten(),
            default_duration_seconds: self.default_duration_seconds.flatten(),
            max_attempts: self.max_attempts.flatten(),
            time_limit_seconds: self.time_limit_seconds.flatten(),
            retry_delay_seconds: self.retry_delay_seconds.flatten(),
            retry_delay_limit_seconds: self.retry_delay_limit_seconds.flatten(),
            retry_first: self.retry_first.flatten(),
            keep_results: self.keep_results.flatten(),
            retention_seconds: self.retention_seconds.flatten(),
            resources: resources.into_iter().map(|(name, tokens)| (name, tokens.unwrap_or_default())).collect(),
            labels: self.labels.flatten().unwrap_or_default(),
            require: self.require.flatten().unwrap_or_default(),
            reset: null.into_iter().filter(|(_, null)| *null).map(|(name, _)| name.to_owned()).collect(),
            anew,
            version,
        }
    }
}

/// Define a job type, whether there is one of this name or not
///
/// What is missing is as of a new one; what is set in SQL alone stays.
#[utoipa::path(put, path = "/api/v1/job-types/{name}", tag = "job types",
    params(("name" = String, Path), ("If-Match" = Option<String>, Header, description = "The ETag of what was read"),
        ("If-None-Match" = Option<String>, Header, description = "*: only if there is none yet")),
    request_body = Definition,
    responses((status = 200, body = JobType), (status = 201, body = JobType, headers(("Location" = String)))))]
async fn define(
    State(api): State<Api>,
    who: Who,
    PathName(name): PathName,
    SomeVersion(version): SomeVersion,
    Document(definition): Document<Definition>,
) -> Answer<Response> {
    let asked = definition.request(name.clone(), true, version);
    let made = api.queue.set_job_type(who.ask(asked)).await?.into_inner();
    let shown = shown(made.job_type.unwrap_or_default());
    // The database has let it through: such a name is plain ASCII.
    let location = format!("/api/v1/job-types/{name}");
    Ok(if made.created { (StatusCode::CREATED, [(LOCATION, location)], shown).into_response() } else { shown })
}

/// Change a job type
///
/// What is missing stays. `If-Match` says which version the change is meant for.
#[utoipa::path(patch, path = "/api/v1/job-types/{name}", tag = "job types",
    params(("name" = String, Path), ("If-Match" = String, Header, description = "The ETag of what was read, or *")),
    request_body = Definition, responses((status = 200, body = JobType)))]
async fn update(
    State(api): State<Api>,
    who: Who,
    PathName(name): PathName,
    Version(version): Version,
    Document(change): Document<Definition>,
) -> Answer<Response> {
    // There has to be one: only PUT makes another.
    let found = v1::ListJobTypesRequest { name: name.clone() };
    let found = api.queue.list_job_types(who.ask(found)).await?.into_inner().job_types;
    if found.iter().all(|job_type| job_type.name != name) {
        return Err(Refusal::not_found(format!("there is no job type {name:?}")));
    }
    // And it may have been removed since.
    let version = if version.is_empty() { "*".to_owned() } else { version };
    let made = api.queue.set_job_type(who.ask(change.request(name, false, version))).await?.into_inner();
    Ok(shown(made.job_type.unwrap_or_default()))
}

/// Remove a job type
///
/// Refused while jobs, schedules, subscriptions, submissions or selections name it, which are told.
#[utoipa::path(delete, path = "/api/v1/job-types/{name}", tag = "job types",
    params(("name" = String, Path), ("If-Match" = Option<String>, Header, description = "The ETag of what was read")),
    responses((status = 204)))]
async fn remove(
    State(api): State<Api>,
    who: Who,
    PathName(name): PathName,
    SomeVersion(version): SomeVersion,
) -> Answer<StatusCode> {
    api.queue.delete_job_type(who.ask(v1::DeleteJobTypeRequest { name, version })).await?;
    Ok(StatusCode::NO_CONTENT)
}
