//! Problems of a job: files of them on their way in, and where each is.

use super::extract::{Id, Limit, Params, PathId, Who};
use super::jobs::Submitted;
use super::paging::{self, Page};
use super::problem_details::{Answer, Refusal};
use super::shown::{Problem, Show};
use super::{Api, pace, upload};
use axum::Json as Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use pcfarm_intake::{Asked, Shape};
use pcfarm_proto::v1;
use pcfarm_proto::v1::job_service_server::JobService;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

const CURSOR: &str = "problems";

pub fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list))
}

/// Those that take their time.
pub fn slow_routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(load))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    #[param(inline)]
    state: Option<ProblemState>,
    key: Option<String>,
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<Limit>,
    /// `next` of the page before
    cursor: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
enum ProblemState {
    Waiting,
    InProgress,
    Done,
    Failed,
    Cancelled,
}

/// Problems of a job, by id
#[utoipa::path(get, path = "/api/v1/jobs/{job_id}/problems", tag = "problems",
    params(("job_id" = Id, Path), ListParams), responses((status = 200, body = Page<Problem>)))]
async fn list(
    State(api): State<Api>,
    who: Who,
    PathId(job_id): PathId,
    Params(asked): Params<ListParams>,
) -> Answer<Body<Page<Problem>>> {
    let limit = asked.limit.unwrap_or_default().0;
    let state = match asked.state {
        None => "",
        Some(ProblemState::Waiting) => "waiting",
        Some(ProblemState::InProgress) => "in_progress",
        Some(ProblemState::Done) => "done",
        Some(ProblemState::Failed) => "failed",
        Some(ProblemState::Cancelled) => "cancelled",
    };
    if asked.key.as_ref().is_some_and(String::is_empty) {
        return Err(Refusal::bad_request("key", "a key is not empty"));
    }
    let wanted = v1::ListProblemsRequest {
        job_id,
        state: state.to_owned(),
        key: asked.key.unwrap_or_default(),
        limit,
        after_problem_id: paging::id_place(CURSOR, asked.cursor.as_deref())?,
    };
    let found = api.jobs.list_problems(who.ask(wanted)).await?.into_inner();
    let problems: Vec<Problem> = Show::show(found.problems);
    Ok(Body(Page::new(problems, limit, CURSOR, |problem| problem.problem_id.0.to_string())))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FileParams {
    /// The column or field that is the key; all others are the payload
    key: Option<String>,
    /// The column or field by which problems share convoys
    group: Option<String>,
    /// CSV: every value is a text
    #[serde(default)]
    strings: bool,
    /// Problems per convoy
    #[param(minimum = 1, maximum = 100000)]
    convoy: Option<u32>,
}

impl FileParams {
    pub fn shape(&self) -> Shape {
        Shape { key: self.key.clone(), group: self.group.clone(), strings: self.strings, asked: Asked::Parameters }
    }
}

/// Load a file of problems into a job
///
/// NDJSON, JSON (an array, or an object with `problems`) or CSV, by `Content-Type`. It is read as it comes and loaded in
/// one transaction: all of it, or nothing.
#[utoipa::path(post, path = "/api/v1/jobs/{job_id}/problems", tag = "problems",
    params(("job_id" = Id, Path), FileParams),
    request_body(content((String = "application/x-ndjson"), (Vec<super::jobs::NewProblem> = "application/json"), (String = "text/csv"))),
    responses((status = 201, body = Submitted)))]
async fn load(
    State(api): State<Api>,
    who: Who,
    PathId(job_id): PathId,
    Params(asked): Params<FileParams>,
    request: Request,
) -> Answer<Response> {
    let (parts, body) = request.into_parts();
    if parts.headers.contains_key("Idempotency-Key") {
        let say = "a file is loaded once under a key by /api/v1/submissions; here it would be loaded again";
        return Err(Refusal::bad_request("Idempotency-Key", say));
    }
    let format = upload::format_of(&parts.headers)?;
    let convoy = upload::checked_convoy(asked.convoy)?;
    let header = v1::SubmitHeader { job_id, convoy, ..v1::SubmitHeader::default() };
    let messages = upload::messages(header, pace::pieces(body), format, asked.shape());
    let submitted: Submitted = upload::submit_all(&api, &who, messages).await?.into();
    Ok((StatusCode::CREATED, Body(submitted)).into_response())
}
