//! The farm at a glance, and what was done.

use super::Api;
use super::extract::{Params, Who};
use super::paging::Page;
use super::problem_details::{Answer, Refusal};
use super::shown::{Clock, FarmStatus, Show, Statistic, Time};
use axum::Json as Body;
use axum::extract::State;
use pcfarm_proto::v1;
use pcfarm_proto::v1::farm_service_server::FarmService;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(show))
        .routes(routes!(statistics))
        .routes(routes!(clock))
        .routes(routes!(accept_clock))
}

/// The farm at a glance
#[utoipa::path(get, path = "/api/v1/status", tag = "farm", responses((status = 200, body = FarmStatus)))]
async fn show(State(api): State<Api>, who: Who) -> Answer<Body<FarmStatus>> {
    let status = api.status.get_status(who.ask(v1::GetStatusRequest {})).await?.into_inner();
    Ok(Body(FarmStatus::show(status)))
}

/// The database's clock, and whether it is proven
#[utoipa::path(get, path = "/api/v1/clock", tag = "farm", responses((status = 200, body = Clock)))]
async fn clock(State(api): State<Api>, who: Who) -> Answer<Body<Clock>> {
    let clock = api.status.get_clock(who.ask(v1::GetClockRequest {})).await?.into_inner();
    Ok(Body(Clock::show(clock)))
}

/// Say that the database's clock is right, so that the farm removes old rows again
#[utoipa::path(post, path = "/api/v1/clock/accept", tag = "farm", responses((status = 200, body = Clock)))]
async fn accept_clock(State(api): State<Api>, who: Who) -> Answer<Body<Clock>> {
    let clock = api.status.accept_clock(who.ask(v1::AcceptClockRequest {})).await?.into_inner();
    Ok(Body(Clock::show(clock)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StatisticsParams {
    /// Missing: a day ago
    #[param(value_type = Option<String>, format = DateTime)]
    since: Option<Time>,
    job_type: Option<String>,
    owner: Option<String>,
    #[param(minimum = 1, maximum = 10000)]
    limit: Option<u32>,
}

/// What was done in each hour, the newest first
#[utoipa::path(get, path = "/api/v1/statistics", tag = "farm", params(StatisticsParams),
    responses((status = 200, body = Page<Statistic>)))]
async fn statistics(
    State(api): State<Api>,
    who: Who,
    Params(asked): Params<StatisticsParams>,
) -> Answer<Body<Page<Statistic>>> {
    if asked.limit.is_some_and(|limit| !(1..=10_000).contains(&limit)) {
        return Err(Refusal::bad_request("limit", "from 1 to 10000"));
    }
    let asked = v1::ListStatisticsRequest {
        since: asked.since.and_then(|time| time.stamp()),
        job_type: asked.job_type.unwrap_or_default(),
        owner: asked.owner.unwrap_or_default(),
        limit: asked.limit.unwrap_or(0),
    };
    let items = Show::show(api.status.list_statistics(who.ask(asked)).await?.into_inner().statistics);
    Ok(Body(Page { items, next: None, total: None }))
}
