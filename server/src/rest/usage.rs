//! What users have had done, and how much they may load.

use super::Api;
use super::extract::{Document, Params, PathName, SomeVersion, Who};
use super::paging::Page;
use super::problem_details::{Answer, Refusal};
use super::shown::{Quota, Show, shown, tagged};
use axum::Json as Body;
use axum::extract::State;
use axum::response::Response;
use pcfarm_proto::v1;
use pcfarm_proto::v1::farm_service_server::FarmService;
use pcfarm_proto::v1::queue_service_server::QueueService;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(quotas, set_quota))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct UsageParams {
    /// A day; missing: 30 days ago
    #[param(format = Date)]
    since: Option<String>,
    owner: Option<String>,
}

shown! {
    /// What a user has had done on a day, in UTC
    Usage of v1::Usage {
        #[schema(format = Date, example = "2026-03-01")]
        day: String,
        owner: String,
        done: i64,
        failed: i64,
        /// Problems that came back, counted each time
        requeued: i64,
        /// In controllers, summed over cores, as agents say
        cpu_seconds: f64,
        /// Of schedules, that enqueued a problem or made a job
        triggers: i64,
    }
}

/// Usage by day and user, the newest day first
#[utoipa::path(get, path = "/api/v1/usage", tag = "users", params(UsageParams),
    responses((status = 200, body = Page<Usage>)))]
async fn list(State(api): State<Api>, who: Who, Params(asked): Params<UsageParams>) -> Answer<Body<Page<Usage>>> {
    if asked.since.as_ref().is_some_and(|day| day.parse::<jiff::civil::Date>().is_err() || day.len() != 10) {
        return Err(Refusal::bad_request("since", "it is not a day such as 2026-03-01"));
    }
    let wanted =
        v1::ListUsageRequest { since: asked.since.unwrap_or_default(), owner: asked.owner.unwrap_or_default() };
    let found = api.status.list_usage(who.ask(wanted)).await?.into_inner().usage;
    Ok(Body(Page { items: Show::show(found), next: None, total: None }))
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Period {
    Day,
    Month,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewQuota {
    period: Period,
    /// Neither this nor `cpu_seconds`: as much as it likes
    #[schema(minimum = 0)]
    problems: Option<i64>,
    #[schema(minimum = 0)]
    cpu_seconds: Option<f64>,
}

/// What a user may load
#[utoipa::path(get, path = "/api/v1/users/{name}/quota", tag = "users", params(("name" = String, Path)),
    responses((status = 200, body = Page<Quota>, headers(("ETag" = String)))))]
async fn quotas(State(api): State<Api>, who: Who, PathName(name): PathName) -> Answer<Response> {
    let asked = v1::ListQuotasRequest { users: vec![name] };
    Ok(of_one(api.queue.list_quotas(who.ask(asked)).await?.into_inner()))
}

fn of_one(found: v1::ListQuotasResponse) -> Response {
    let v1::UserQuotas { quotas, version, .. } = found.users.into_iter().next().unwrap_or_default();
    let quotas: Vec<Quota> = Show::show(quotas);
    tagged(Page::whole(quotas), &version)
}

/// Say what a user may load
#[utoipa::path(put, path = "/api/v1/users/{name}/quota", tag = "users",
    params(("name" = String, Path), ("If-Match" = Option<String>, Header, description = "The ETag of what was read")),
    request_body = NewQuota, responses((status = 200, body = Page<Quota>)))]
async fn set_quota(
    State(api): State<Api>,
    who: Who,
    PathName(name): PathName,
    SomeVersion(version): SomeVersion,
    Document(new): Document<NewQuota>,
) -> Answer<Response> {
    let period = match new.period {
        Period::Day => "day",
        Period::Month => "month",
    };
    let missing = [("problems", new.problems.is_none()), ("cpu_seconds", new.cpu_seconds.is_none())];
    let asked = v1::SetQuotaRequest {
        users: vec![name],
        period: period.to_owned(),
        problems: new.problems,
        cpu_seconds: new.cpu_seconds,
        reset: missing.into_iter().filter(|(_, missing)| *missing).map(|(name, _)| name.to_owned()).collect(),
        version,
    };
    Ok(of_one(api.queue.set_quota(who.ask(asked)).await?.into_inner()))
}
