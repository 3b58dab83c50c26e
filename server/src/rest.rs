//! REST under `/api/v1`, for programs and people's scripts: a thin translation. What may be done, by whom and with what
//! outcome is decided by the services of [`crate::grpc`], which are called in this process; so the rules are the same.

mod accounts;
mod alerts;
#[cfg(feature = "api-browser")]
mod browser;
#[cfg(not(feature = "api-browser"))]
#[path = "rest/browser_missing.rs"]
mod browser;
mod events;
mod extract;
mod files;
mod health;
mod idempotency;
mod job_types;
mod jobs;
mod listener;
mod openapi;
pub(crate) mod pace;
mod paging;
mod problem_details;
mod problems;
mod profiles;
mod queue;
mod recent;
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

use crate::access::lasting::{self, Ending, Going, Over};
use crate::access::places::{Full, Holder, Place, Places};
use crate::access::{self, Caller, Peer};
use crate::farm::Farm;
use crate::files::Files;
use crate::grpc::access::AccessApi;
use crate::grpc::alerts::AlertsApi;
use crate::grpc::farm::FarmApi;
use crate::grpc::files::FilesApi;
use crate::grpc::jobs::JobsApi;
use crate::grpc::queue::QueueApi;
use crate::grpc::schedules::SchedulesApi;
use crate::grpc::workstations::WorkstationsApi;
use crate::originals::Originals;
use crate::traces::{self, calls};
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing};
use problem_details::{Refusal, no_route, other_method};
use recent::Recent;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tonic::Status;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;

/// Requests that are answered at once, at a time: each needs a connection to the database for a moment, and there are few.
const REQUESTS: usize = 128;
/// Those that wait for a job, or stream in or out, until the last of their answer is sent.
const SLOW_REQUESTS: usize = 512;
/// Of these, what one user has, or one address without a token: others have the rest.
const REQUESTS_OF_ONE: usize = 64;
const SLOW_REQUESTS_OF_ONE: usize = 128;

/// Who waits for a place among them is told by then whose fault it is that there is none.
const PATIENCE: Duration = Duration::from_secs(20);
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
    pub files: FilesApi,
    pub originals: Arc<Originals>,
    quick: Arc<Places>,
    slow: Arc<Places>,
    /// For whoever asks for health and measures: how old the pulse is, and the measures.
    pulse_age: Recent<Option<Duration>>,
    measures: Recent<String>,
}

pub type Api = Arc<Services>;

impl Services {
    pub fn new(
        farm: Arc<Farm>,
        (jobs, files): (Arc<JobsApi>, Arc<Files>),
        originals: Arc<Originals>,
        warnings: Vec<String>,
    ) -> Api {
        let pool = farm.pool.clone();
        Arc::new(Services {
            jobs,
            queue: QueueApi::new(pool.clone()),
            access: AccessApi::new(farm.clone()),
            schedules: SchedulesApi::new(pool.clone()),
            alerts: AlertsApi::new(pool.clone()),
            workstations: WorkstationsApi::new(pool.clone()),
            status: FarmApi::new(pool, farm.rhythm.lease, warnings),
            files: FilesApi::new(farm.clone(), files),
            originals,
            quick: Places::new(REQUESTS, REQUESTS_OF_ONE),
            slow: Places::new(SLOW_REQUESTS, SLOW_REQUESTS_OF_ONE),
            pulse_age: Recent::default(),
            measures: Recent::default(),
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
        .merge(job_types::routes())
        .merge(profiles::routes())
        .merge(workstations::routes())
        .merge(events::routes())
        .merge(queue::routes())
        .merge(alerts::routes())
        .merge(status::routes())
        .merge(submissions::routes())
        .merge(schedules::routes())
        .merge(usage::routes())
        .merge(files::routes())
        .route_layer(middleware::from_fn_with_state(api.clone(), idempotency::once))
        .route_layer(middleware::from_fn_with_state(api.clone(), in_time))
        .route_layer(middleware::from_fn_with_state(api.clone(), admitted));
    let slow = OpenApiRouter::new()
        .merge(jobs::slow_routes())
        .merge(problems::slow_routes())
        .merge(results::slow_routes())
        .merge(events::slow_routes())
        .merge(submissions::slow_routes())
        .merge(files::slow_routes())
        .route_layer(middleware::from_fn_with_state(api.clone(), in_turn))
        .route_layer(middleware::from_fn_with_state(api.clone(), admitted));
    let (router, document) = OpenApiRouter::with_openapi(openapi::heading()).merge(quick).merge(slow).split_for_parts();
    let document = Arc::new(openapi::completed(document));
    let router = router
        .merge(openapi::routes(document.clone()))
        .merge(browser::routes())
        .merge(health::routes())
        .route("/", routing::get(|| async { axum::response::Redirect::to("/api/docs/") }))
        .fallback(no_route)
        .method_not_allowed_fallback(other_method)
        .layer(middleware::from_fn(unread::read))
        .layer(middleware::from_fn_with_state(api.clone(), measured))
        .with_state(api);
    (router, document)
}

/// Who calls, and whether that caller may, now and as long as it lasts: what the gate is for gRPC. What is not in the table is
/// refused.
async fn admitted(State(api): State<Api>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let (caller, need) = match caller_of(&api, &parts).await {
        Ok(known) => known,
        Err(refused) => return Refusal::from(Status::from(refused)).into_response(),
    };
    let mut over = Over::of(&api.farm.access, &caller, need);
    parts.extensions.insert(caller);
    tokio::select! {
        biased;
        mut answer = next.run(Request::from_parts(parts, body)) => {
            let place: Option<Arc<Place>> = answer.extensions_mut().remove();
            answer.map(|body| Body::new(Going::new(body, over, Ending::Cut, place)))
        }
        () = &mut over => Refusal::from(lasting::ended()).into_response(),
    }
}

async fn caller_of(api: &Services, request: &Parts) -> Result<(Caller, access::table::Need), access::Refusal> {
    let method = if request.method == Method::HEAD { "GET" } else { request.method.as_str() };
    let route = request.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let need = access::table::of_route(method, route).ok_or(access::Refusal::NoSuchMethod)?;
    if need == access::table::Need::Nothing {
        return Ok((Caller::anonymous(access::Scopes::NONE), need));
    }
    let access = &api.farm.access;
    let caller = access.authenticate(access::gate::bearer(&request.headers)?, &peer(request)).await?;
    access::may(&caller, need)?;
    Ok((caller, need))
}

fn peer(request: &Parts) -> Peer {
    request.extensions.get::<Peer>().copied().unwrap_or_default()
}

/// For whom places are counted; the request has been admitted.
fn holder(request: &Parts) -> Holder {
    let caller = request.extensions.get::<Caller>();
    caller.map_or(Holder::Unknown, |caller| Holder::of(caller, &peer(request)))
}

/// One of the few at a time, and not for long.
async fn in_time(State(api): State<Api>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let served = async {
        match api.quick.take(&holder(&parts), PATIENCE).await {
            Ok(_place) => next.run(Request::from_parts(parts, body)).await,
            Err(full) => busy(full),
        }
    };
    timeout(REQUEST_LIMIT, served).await.unwrap_or_else(|_| busy(Full::All))
}

async fn in_turn(State(api): State<Api>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    match api.slow.try_take(&holder(&parts)) {
        Ok(place) => {
            let mut answer = next.run(Request::from_parts(parts, body)).await;
            // Kept until the last of it is sent.
            answer.extensions_mut().insert(Arc::new(place));
            answer
        }
        Err(full) => busy(full),
    }
}

fn busy(full: Full) -> Response {
    match full {
        Full::All => {
            let say = "this server has as many requests as it can serve: try again";
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, say)
        }
        Full::Own(most) => {
            let say =
                format!("at most {most} such requests of one user, or of one address, at a time: wait for some to end");
            Refusal::new(StatusCode::TOO_MANY_REQUESTS, say)
        }
    }
    .into_response()
}

/// Counts requests by route, never by what is in a path, and traces them.
async fn measured(State(api): State<Api>, request: Request, next: Next) -> Response {
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
    let mut span = calls::of_route(&api.farm.traces, method, &route, request.headers());
    let response = traces::within(&mut span, next.run(request)).await;
    calls::answered_with(&mut span, response.status().as_u16());
    drop(span);
    let status = response.status().as_str().to_owned();
    metrics::counter!("pcfarm_http_requests_total", "method" => method, "route" => route.clone(), "status" => status)
        .increment(1);
    metrics::histogram!("pcfarm_http_request_seconds", "route" => route).record(began.elapsed().as_secs_f64());
    response
}
