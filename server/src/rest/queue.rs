//! What is handed out at all.

use super::Api;
use super::extract::{Document, Id, PathName, Who};
use super::problem_details::Answer;
use super::shown::Time;
use axum::Json as Body;
use axum::extract::State;
use axum::http::StatusCode;
use pcfarm_proto::v1;
use pcfarm_proto::v1::queue_service_server::QueueService;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(suspend, resume))
        .routes(routes!(suspend_type, resume_type))
        .routes(routes!(park))
        .routes(routes!(unpark))
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Suspension {
    /// For people
    #[serde(default)]
    reason: String,
}

async fn set(api: &Api, who: &Who, job_type: String, reason: String, undo: bool) -> Answer<StatusCode> {
    api.queue.suspend(who.ask(v1::SuspendRequest { job_type, reason, undo })).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Hand out nothing any more; submits go on
#[utoipa::path(put, path = "/api/v1/queue/suspension", tag = "queue", request_body = Suspension, responses((status = 204)))]
async fn suspend(State(api): State<Api>, who: Who, Document(asked): Document<Suspension>) -> Answer<StatusCode> {
    set(&api, &who, String::new(), asked.reason, false).await
}

/// Hand out again
#[utoipa::path(delete, path = "/api/v1/queue/suspension", tag = "queue", responses((status = 204)))]
async fn resume(State(api): State<Api>, who: Who) -> Answer<StatusCode> {
    set(&api, &who, String::new(), String::new(), true).await
}

/// Hand out no more problems of a job type
#[utoipa::path(put, path = "/api/v1/job-types/{name}/suspension", tag = "queue", params(("name" = String, Path)),
    request_body = Suspension, responses((status = 204)))]
async fn suspend_type(
    State(api): State<Api>,
    who: Who,
    PathName(name): PathName,
    Document(asked): Document<Suspension>,
) -> Answer<StatusCode> {
    set(&api, &who, name, asked.reason, false).await
}

/// Hand out problems of a job type again
#[utoipa::path(delete, path = "/api/v1/job-types/{name}/suspension", tag = "queue", params(("name" = String, Path)),
    responses((status = 204)))]
async fn resume_type(State(api): State<Api>, who: Who, PathName(name): PathName) -> Answer<StatusCode> {
    set(&api, &who, name, String::new(), true).await
}

/// Which loads: all conditions that are given hold for them.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Loads {
    job_id: Option<Id>,
    owner: Option<String>,
    loaded_from: Option<Time>,
    loaded_before: Option<Time>,
}

#[derive(Debug, Serialize, ToSchema)]
struct Parked {
    /// That those loads had
    problems: i64,
}

async fn set_parked(api: &Api, who: &Who, loads: Loads, undo: bool) -> Answer<Body<Parked>> {
    let stamp = |time: Option<Time>| time.and_then(|time| time.stamp());
    let asked = v1::ParkRequest {
        job_id: loads.job_id.map_or(0, |id| id.0),
        owner: loads.owner.unwrap_or_default(),
        loaded_from: stamp(loads.loaded_from),
        loaded_before: stamp(loads.loaded_before),
        undo,
    };
    Ok(Body(Parked { problems: api.queue.park(who.ask(asked)).await?.into_inner().problems }))
}

/// Hand out no more of some loads
#[utoipa::path(post, path = "/api/v1/queue/park", tag = "queue", request_body = Loads, responses((status = 200, body = Parked)))]
async fn park(State(api): State<Api>, who: Who, Document(loads): Document<Loads>) -> Answer<Body<Parked>> {
    set_parked(&api, &who, loads, false).await
}

/// Hand out parked loads again
#[utoipa::path(post, path = "/api/v1/queue/unpark", tag = "queue", request_body = Loads, responses((status = 200, body = Parked)))]
async fn unpark(State(api): State<Api>, who: Who, Document(loads): Document<Loads>) -> Answer<Body<Parked>> {
    set_parked(&api, &who, loads, true).await
}
