//! Jobs.

use super::extract::{Document, Id, Limit, Params, PathId, Version, Who};
use super::paging::{self, Page};
use super::problem_details::{Answer, Refusal};
use super::shown::{Job, Json, Show, Time, tagged};
use super::{Api, upload};
use axum::Json as Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use pcfarm_proto::v1;
use pcfarm_proto::v1::job_service_server::JobService;
use pcfarm_proto::v1::submit_request::Part;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

const CURSOR: &str = "jobs";

/// Longest that a request waits for a job.
const WAIT_LIMIT: u32 = 300;

pub fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(show, update))
        .routes(routes!(open))
        .routes(routes!(hold))
        .routes(routes!(release))
        .routes(routes!(cancel))
        .routes(routes!(retry))
        .routes(routes!(explain))
}

/// Those that take their time.
pub fn slow_routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(wait))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// Ended jobs, too
    #[serde(default)]
    all: bool,
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<Limit>,
    /// `next` of the page before
    cursor: Option<String>,
}

/// Jobs, the newest first
#[utoipa::path(get, path = "/api/v1/jobs", tag = "jobs", params(ListParams), responses((status = 200, body = Page<Job>)))]
async fn list(State(api): State<Api>, who: Who, Params(asked): Params<ListParams>) -> Answer<Body<Page<Job>>> {
    let limit = asked.limit.unwrap_or_default().0;
    let before_job_id = paging::id_place(CURSOR, asked.cursor.as_deref())?;
    let wanted = v1::ListJobsRequest { all: asked.all, limit, before_job_id };
    let found = api.jobs.list_jobs(who.ask(wanted)).await?.into_inner();
    let jobs: Vec<Job> = Show::show(found.jobs);
    Ok(Body(Page::new(jobs, limit, CURSOR, |job| job.job_id.0.to_string())))
}

/// A job to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewJob {
    #[schema(min_length = 1, max_length = 200, example = "airline night")]
    name: String,
    #[schema(example = "airline")]
    job_type: String,
    title: Option<String>,
    /// Missing: the job type's
    priority: Option<i32>,
    /// Missing: the job type's duration from now
    deadline: Option<Time>,
    /// Handed out from then on
    not_before: Option<Time>,
    /// Stays open when it is empty
    #[serde(default)]
    standing: bool,
    /// Handed to controllers with every checkout
    parameters: Option<Json>,
    /// Conditions that workstations must fulfil to run it, beside those of its job type
    #[serde(default)]
    #[schema(max_items = 20, example = json!(["memory >= 8 GiB", "gpu"]))]
    require: Vec<String>,
    /// What its problems need beside their payloads: SHA-256 of files that are there, by the names that programs find them under
    #[serde(default)]
    files: BTreeMap<String, String>,
    /// Payloads name files of single problems, too, under `files`, in the same way
    #[serde(default)]
    problem_files: bool,
    /// What its controllers and people say about it, an object
    #[schema(value_type = Option<Object>)]
    info: Option<Map<String, Value>>,
    /// Jobs that must be done before
    #[serde(default)]
    after: Vec<Id>,
    /// Jobs that must have ended before, in any way
    #[serde(default)]
    after_ended: Vec<Id>,
    /// You have one job of each
    unique_key: Option<String>,
    /// `return` (the first job of that unique_key) or `refuse`
    on_duplicate: Option<OnDuplicate>,
    /// Problems per convoy
    #[schema(minimum = 1, maximum = 100000)]
    convoy: Option<u32>,
    /// Open it at once; missing: if it comes with problems
    open: Option<bool>,
    /// A few problems; many are streamed to `/jobs/{job_id}/problems`
    #[serde(default)]
    problems: Vec<NewProblem>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum OnDuplicate {
    Return,
    Refuse,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewProblem {
    #[schema(min_length = 1, max_length = 1024, example = "FRA-JFK")]
    key: String,
    payload: Json,
    /// Problems with the same one share a convoy
    group_key: Option<String>,
    /// Another than its job's
    job_type: Option<String>,
    /// Highest first
    priority: Option<i32>,
    deadline: Option<Time>,
    not_before: Option<Time>,
    /// What it counts against limits by the hour
    #[schema(minimum = 1, maximum = 2147483647)]
    weight: Option<i32>,
}

impl NewProblem {
    fn message(self, number: usize) -> Answer<v1::SubmitProblem> {
        let weight = match self.weight {
            None => 0,
            Some(weight @ 1..) => weight.unsigned_abs(),
            Some(_) => {
                let field = format!("problems.{number}.weight");
                return Err(Refusal::unprocessable(&field, "a whole number from 1 to 2147483647"));
            }
        };
        let stamp = |time: Option<Time>| time.and_then(|time| time.stamp());
        let details = v1::SubmitDetails {
            job_type: self.job_type.unwrap_or_default(),
            priority: self.priority.unwrap_or_default(),
            deadline: stamp(self.deadline),
            not_before: stamp(self.not_before),
            weight,
        };
        Ok(v1::SubmitProblem {
            key: self.key,
            payload: self.payload.bytes(),
            group_key: self.group_key.unwrap_or_default(),
            details: (details != v1::SubmitDetails::default()).then_some(details),
        })
    }
}

/// What a submission has made.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Submitted {
    pub job_id: Id,
    /// Problems loaded by this request
    pub problems: i64,
    /// There was such a job already, by its unique_key or Idempotency-Key: nothing was loaded
    pub repeated: bool,
}

impl From<v1::SubmitResponse> for Submitted {
    fn from(from: v1::SubmitResponse) -> Submitted {
        Submitted { job_id: Id(from.job_id), problems: from.problems, repeated: from.repeated }
    }
}

/// Make a job
///
/// With its problems, if they are few. Without, it is `loading` until it is opened.
#[utoipa::path(post, path = "/api/v1/jobs", tag = "jobs", request_body = NewJob,
    responses((status = 201, body = Submitted, headers(("Location" = String)))))]
async fn create(
    State(api): State<Api>,
    key: super::idempotency::Key,
    who: Who,
    Document(job): Document<NewJob>,
) -> Answer<Response> {
    let options = options(&job, key.of_job());
    let open = job.open.unwrap_or(!job.problems.is_empty());
    if job.convoy == Some(0) {
        return Err(Refusal::unprocessable("convoy", "a convoy holds from 1 to 100000 problems"));
    }
    let header = v1::SubmitHeader {
        job_id: 0,
        name: job.name,
        job_type: job.job_type,
        options: Value::Object(options).to_string().into(),
        convoy: job.convoy.unwrap_or(0),
        open,
    };
    let problems =
        job.problems.into_iter().enumerate().map(|(i, problem)| problem.message(i)).collect::<Answer<Vec<_>>>()?;
    let submitted: Submitted = submit(&api, &who, header, problems).await?.into();
    let location = format!("/api/v1/jobs/{}", submitted.job_id.0);
    Ok((StatusCode::CREATED, [(LOCATION, location)], Body(submitted)).into_response())
}

async fn submit(
    api: &Api,
    who: &Who,
    header: v1::SubmitHeader,
    problems: Vec<v1::SubmitProblem>,
) -> Answer<v1::SubmitResponse> {
    let end = v1::SubmitEnd { problems: problems.len() as i64 };
    let parts = [Part::Header(header), Part::Problems(v1::SubmitProblems { problems }), Part::End(end)];
    let messages = stream::iter(parts.map(|part| Ok(v1::SubmitRequest { part: Some(part) })));
    upload::submit_all(api, who, messages.boxed()).await
}

/// As `pcfarm.create_job` takes them.
fn options(job: &NewJob, key: Option<(String, String)>) -> Map<String, Value> {
    let ids = |ids: &[Id]| Some(Value::from(ids.iter().map(|id| id.0).collect::<Vec<_>>())).filter(|_| !ids.is_empty());
    let json = |json: &Json| serde_json::from_str(json.0.get()).unwrap_or(Value::Null);
    let time = |time: &Time| serde_json::to_value(time).unwrap_or(Value::Null);
    let (key, digest) = key.unzip();
    let given = [
        ("title", job.title.as_deref().map(Value::from)),
        ("priority", job.priority.map(Value::from)),
        ("deadline", job.deadline.as_ref().map(time)),
        ("not_before", job.not_before.as_ref().map(time)),
        ("standing", job.standing.then_some(Value::Bool(true))),
        ("parameters", job.parameters.as_ref().map(json)),
        ("require", Some(Value::from(job.require.clone())).filter(|_| !job.require.is_empty())),
        ("files", Some(json!(job.files)).filter(|_| !job.files.is_empty())),
        ("problem_files", job.problem_files.then_some(Value::Bool(true))),
        ("info", job.info.clone().map(Value::Object)),
        ("after", ids(&job.after)),
        ("after_ended", ids(&job.after_ended)),
        ("unique_key", job.unique_key.as_deref().map(Value::from)),
        ("on_duplicate", job.on_duplicate.map(|word| serde_json::to_value(word).unwrap_or(Value::Null))),
        ("idempotency_key", key.map(Value::from)),
        ("idempotency_digest", digest.map(Value::from)),
    ];
    given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// One job
#[utoipa::path(get, path = "/api/v1/jobs/{job_id}", tag = "jobs", params(("job_id" = Id, Path)),
    responses((status = 200, body = Job, headers(("ETag" = String, description = "Of what can be updated")))))]
async fn show(State(api): State<Api>, who: Who, PathId(job_id): PathId) -> Answer<Response> {
    let job = api.jobs.get_job(who.ask(v1::GetJobRequest { job_id })).await?.into_inner();
    Ok(shown(job))
}

fn shown(job: v1::Job) -> Response {
    let version = job.version.clone();
    tagged(Job::show(job), &version)
}

/// What is to change of a job.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct JobUpdate {
    title: Option<String>,
    priority: Option<i32>,
    /// Null: none any more
    #[serde(default, deserialize_with = "some")]
    #[schema(value_type = Option<Time>)]
    deadline: Option<Option<Time>>,
    /// Merged with what is there (RFC 7396)
    #[schema(value_type = Option<Object>)]
    info: Option<Map<String, Value>>,
    /// All conditions on workstations; empty: none any more
    #[schema(max_items = 20)]
    require: Option<Vec<String>>,
}

/// Tells null from nothing.
pub fn some<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Change a job
///
/// What is missing stays. `If-Match` says which version the change is meant for: if somebody else has changed the job
/// since, nothing is done (412).
#[utoipa::path(patch, path = "/api/v1/jobs/{job_id}", tag = "jobs",
    params(("job_id" = Id, Path), ("If-Match" = String, Header, description = "The ETag of what was read, or *")),
    request_body = JobUpdate, responses((status = 200, body = Job)))]
async fn update(
    State(api): State<Api>,
    who: Who,
    PathId(job_id): PathId,
    Version(version): Version,
    Document(change): Document<JobUpdate>,
) -> Answer<Response> {
    let no_deadline = matches!(change.deadline, Some(None));
    let info = change.info.map(|info| Value::Object(info).to_string().into());
    let asked = v1::UpdateJobRequest {
        job_id,
        version,
        title: change.title,
        priority: change.priority,
        deadline: change.deadline.flatten().and_then(|time| time.stamp()),
        no_deadline,
        info: info.unwrap_or_default(),
        require: change.require.map(|conditions| v1::Conditions { conditions }),
    };
    let job = api.jobs.update_job(who.ask(asked)).await?.into_inner();
    Ok(shown(job))
}

macro_rules! action {
    ($name:ident, $rpc:ident, $path:literal, $summary:literal) => {
        #[doc = $summary]
        #[utoipa::path(post, path = $path, tag = "jobs", params(("job_id" = Id, Path)),
                                                                            responses((status = 200, body = Job)))]
        async fn $name(State(api): State<Api>, who: Who, PathId(job_id): PathId) -> Answer<Response> {
            let job = api.jobs.$rpc(who.ask(v1::JobRequest { job_id })).await?.into_inner();
            Ok(shown(job))
        }
    };
}
action!(open, open_job, "/api/v1/jobs/{job_id}/open", "Hand out a job that is loading");
action!(hold, hold_job, "/api/v1/jobs/{job_id}/hold", "Hand out no more of a job; what is in progress goes on");
action!(release, release_job, "/api/v1/jobs/{job_id}/release", "Hand out a held job again");
action!(cancel, cancel_job, "/api/v1/jobs/{job_id}/cancel", "End a job at once");
action!(retry, retry_job, "/api/v1/jobs/{job_id}/retry", "Put failed problems back on the queue");

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WaitParams {
    /// Seconds; missing: 30
    #[param(minimum = 0, maximum = 300)]
    timeout: Option<u32>,
}

/// Wait for a job's end
///
/// Answers when it has ended, or with the job as it is when the time is over: `state` tells.
#[utoipa::path(get, path = "/api/v1/jobs/{job_id}/wait", tag = "jobs", params(("job_id" = Id, Path), WaitParams),
    responses((status = 200, body = Job)))]
async fn wait(
    State(api): State<Api>,
    who: Who,
    PathId(job_id): PathId,
    Params(asked): Params<WaitParams>,
) -> Answer<Response> {
    let timeout = asked.timeout.unwrap_or(30);
    if timeout > WAIT_LIMIT {
        return Err(Refusal::bad_request("timeout", format!("at most {WAIT_LIMIT} seconds: ask again then")));
    }
    let mut request = who.ask(v1::JobRequest { job_id });
    request.set_timeout(Duration::from_secs(timeout.into()));
    let job = match api.jobs.wait_job(request).await {
        Ok(job) => job.into_inner(),
        Err(status) if status.code() == tonic::Code::DeadlineExceeded => {
            api.jobs.get_job(who.ask(v1::GetJobRequest { job_id })).await?.into_inner()
        }
        Err(status) => return Err(status.into()),
    };
    Ok(shown(job))
}

/// Why something does not run.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Reasons {
    pub reasons: Vec<String>,
}

/// Why a job is not running, and what would change that
#[utoipa::path(get, path = "/api/v1/jobs/{job_id}/explain", tag = "jobs", params(("job_id" = Id, Path)),
    responses((status = 200, body = Reasons)))]
async fn explain(State(api): State<Api>, who: Who, PathId(job_id): PathId) -> Answer<Body<Reasons>> {
    use pcfarm_proto::v1::farm_service_server::FarmService;
    let asked = v1::ExplainRequest { job_id, workstation_id: 0 };
    let reasons = api.status.explain(who.ask(asked)).await?.into_inner().reasons;
    Ok(Body(Reasons { reasons }))
}
