//! REST under `/api/v1`, for programs and people's scripts: a thin translation. What may be done, by whom and with what
//! outcome is decided by the services of [`crate::grpc`], which are called in this process; so the rules are the same.
//!
//! A listener of its own, because browsers must not be asked for agents' certificates.

mod accounts;
mod alerts;
mod events;
mod extract;
mod health;
mod idempotency;
mod jobs;
mod listener;
mod openapi;
mod paging;
mod problem_details;
mod problems;
mod profiles;
mod queue;
mod resources;
mod results;
mod schedules;
mod shown;
mod status;
mod submissions;
mod tokens;
mod unread;
pub mod upload;
mod usage;
mod users;
mod workstations;

pub use listener::serve;

use crate::access::{self, Caller, Peer};
use crate::farm::Farm;
use crate::grpc::access::AccessApi;
use crate::grpc::alerts::AlertsApi;
use crate::grpc::farm::FarmApi;
use crate::grpc::jobs::JobsApi;
use crate::grpc::queue::QueueApi;
use crate::grpc::schedules::SchedulesApi;
use crate::grpc::workstations::WorkstationsApi;
use crate::originals::Originals;
use axum::extract::{MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing};
use problem_details::{Refusal, no_route, other_method};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tonic::Status;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;

/// Requests that are answered at once, at a time: each needs a connection to the database for a moment, and there are few.
const REQUESTS: usize = 128;
/// Those that wait for a job, or stream in or out.
const SLOW_REQUESTS: usize = 256;

/// What is answered at once has been by then.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);

/// What requests are served with.
pub struct Services {
    pub farm: Arc<Farm>,
    pub jobs: Arc<JobsApi>,
    pub queue: QueueApi,
    pub access: AccessApi,
    pub schedules: SchedulesApi,
    pub alerts: AlertsApi,
    pub workstations: WorkstationsApi,
    pub status: FarmApi,
    pub originals: Arc<Originals>,
    quick: Semaphore,
    slow: Semaphore,
}

pub type Api = Arc<Services>;

impl Services {
    pub fn new(farm: Arc<Farm>, jobs: Arc<JobsApi>, originals: Arc<Originals>, warnings: Vec<String>) -> Api {
        let pool = farm.pool.clone();
        Arc::new(Services {
            jobs,
            queue: QueueApi::new(pool.clone()),
            access: AccessApi::new(farm.clone()),
            schedules: SchedulesApi::new(pool.clone()),
            alerts: AlertsApi::new(pool.clone()),
            workstations: WorkstationsApi::new(pool.clone()),
            status: FarmApi::new(pool, farm.rhythm.lease, warnings),
            originals,
            quick: Semaphore::new(REQUESTS),
            slow: Semaphore::new(SLOW_REQUESTS),
            farm,
        })
    }
}

/// All routes, and the document that describes them.
pub fn router(api: Api) -> (Router, Arc<OpenApi>) {
    let quick = OpenApiRouter::new()
        .merge(jobs::routes())
        .merge(problems::routes())
        .merge(users::routes())
        .merge(accounts::routes())
        .merge(tokens::routes())
        .merge(resources::routes())
        .merge(profiles::routes())
        .merge(workstations::routes())
        .merge(events::routes())
        .merge(queue::routes())
        .merge(alerts::routes())
        .merge(status::routes())
        .merge(submissions::routes())
        .merge(schedules::routes())
        .merge(usage::routes())
        .route_layer(middleware::from_fn_with_state(api.clone(), idempotency::once))
        .route_layer(middleware::from_fn_with_state(api.clone(), in_time))
        .route_layer(middleware::from_fn_with_state(api.clone(), admitted));
    let slow = OpenApiRouter::new()
        .merge(jobs::slow_routes())
        .merge(problems::slow_routes())
        .merge(results::slow_routes())
        .merge(events::slow_routes())
        .merge(submissions::slow_routes())
        .route_layer(middleware::from_fn_with_state(api.clone(), in_turn))
        .route_layer(middleware::from_fn_with_state(api.clone(), admitted));
    let (router, document) = OpenApiRouter::with_openapi(openapi::heading()).merge(quick).merge(slow).split_for_parts();
    let document = Arc::new(openapi::completed(document));
    let router = router
        .merge(openapi::routes(document.clone()))
        .merge(health::routes())
        .route("/", routing::get(|| async { axum::response::Redirect::to("/api/docs/") }))
        .fallback(no_route)
        .method_not_allowed_fallback(other_method)
        .layer(middleware::from_fn(unread::read))
        .layer(middleware::from_fn(measured))
        .with_state(api);
    (router, document)
}

/// Who calls, and whether that caller may: what the gate is for gRPC. What is not in the table is refused.
async fn admitted(State(api): State<Api>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    match caller_of(&api, &parts).await {
        Ok(caller) => {
            parts.extensions.insert(caller);
            next.run(Request::from_parts(parts, body)).await
        }
        Err(refused) => Refusal::from(Status::from(refused)).into_response(),
    }
}

async fn caller_of(api: &Services, request: &Parts) -> Result<Caller, access::Refusal> {
    let method = if request.method == Method::HEAD { "GET" } else { request.method.as_str() };
    let route = request.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let need = access::table::of_route(method, route).ok_or(access::Refusal::NoSuchMethod)?;
    if need == access::table::Need::Nothing {
        return Ok(Caller::anonymous(access::Scopes::NONE));
    }
    let peer = request.extensions.get::<Peer>().copied().unwrap_or_default();
    let access = &api.farm.access;
    let caller = access.authenticate(access::gate::bearer(&request.headers)?, &peer).await?;
    access::may(&caller, need)?;
    Ok(caller)
}

/// One of the few at a time, and not for long.
async fn in_time(State(api): State<Api>, request: Request, next: Next) -> Response {
    let served = async {
        match api.quick.acquire().await {
            Ok(_turn) => next.run(request).await,
            Err(_) => busy(),
        }
    };
    timeout(REQUEST_LIMIT, served).await.unwrap_or_else(|_| busy())
}

async fn in_turn(State(api): State<Api>, request: Request, next: Next) -> Response {
    match api.slow.try_acquire() {
        Ok(_turn) => next.run(request).await,
        Err(_) => busy(),
    }
}

fn busy() -> Response {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "this server has as many requests as it can serve: try again")
        .into_response()
}

/// Counts requests by route: never by what is in a path.
async fn measured(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let method = match *request.method() {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "other",
    };
    let began = Instant::now();
    let response = next.run(request).await;
    let status = response.status().as_str().to_owned();
    metrics::counter!("pcfarm_http_requests_total", "method" => method, "route" => route.clone(), "status" => status)
        .increment(1);
    metrics::histogram!("pcfarm_http_request_seconds", "route" => route).record(began.elapsed().as_secs_f64());
    response
}
