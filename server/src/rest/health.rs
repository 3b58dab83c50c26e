//! Whether this server lives (`/healthz`), whether it can serve (`/readyz`), and what it measures (`/metrics`). Without
//! credentials: a probe has none, and nothing here says what anybody computes. So whoever likes may ask, and costs the
//! database no more than one probe a second does.

use super::Api;
use super::problem_details::Refusal;
use crate::instruments;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::time::Duration;

/// A probe asks again soon: better no than late.
const READY_LIMIT: Duration = Duration::from_secs(3);

pub fn routes() -> Router<Api> {
    Router::new().route("/healthz", get(alive)).route("/readyz", get(ready)).route("/metrics", get(metrics))
}

async fn alive() -> &'static str {
    "alive\n"
}

/// The database answers, and this server's pulse has been written lately.
async fn ready(State(api): State<Api>) -> Response {
    if api.farm.stopping.is_cancelled() {
        return Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the server is stopping").into_response();
    }
    let farm = api.farm.clone();
    let look = async move {
        let look = async {
            let client = farm.pool.get().await.ok()?;
            pcfarm_sql::presence::pulse_age(&*client, farm.server_id).await.ok()?
        };
        tokio::time::timeout(READY_LIMIT, look).await.ok().flatten()
    };
    let limit = pcfarm_recycler::pulse_limit(api.farm.rhythm.lease);
    match api.pulse_age.get(&api.farm.tasks, look).await.flatten() {
        Some(_) if !api.farm.ticking.is_healthy() => {
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "schedules have not been looked at for too long")
                .into_response()
        }
        Some(age) if age <= limit => "ready\n".into_response(),
        Some(age) => {
            let say = format!("the database has not heard from this server for {} s", age.as_secs());
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, say).into_response()
        }
        None => Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the database does not answer").into_response(),
    }
}

async fn metrics(State(api): State<Api>) -> Response {
    let farm = api.farm.clone();
    let look = async move { instruments::rendered(&farm).await };
    let Some(text) = api.measures.get(&api.farm.tasks, look).await else {
        return Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the measures could not be written").into_response();
    };
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}
