//! What users have had done, and how much they may load.

use super::Api;
use super::extract::{Document, Params, PathName, Who};
use super::paging::Page;
use super::problem_details::{Answer, Refusal};
use super::shown::{Show, shown};
use crate::grpc::status_code;
use axum::Json as Body;
use axum::extract::State;
use pcfarm_proto::v1;
use pcfarm_proto::v1::farm_service_server::FarmService;
use pcfarm_sql::usage;
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

/// What a user may load in each day or month, in UTC
#[derive(Clone, Debug, Serialize, ToSchema)]
struct Quota {
    /// day or month
    period: String,
    problems: Option<i64>,
    /// Nothing is loaded any more once so many are used
    cpu_seconds: Option<f64>,
    /// Problems loaded in this period, since it is counted
    used: i64,
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
    responses((status = 200, body = Page<Quota>)))]
async fn quotas(State(api): State<Api>, who: Who, PathName(name): PathName) -> Answer<Body<Page<Quota>>> {
    if !who.caller()?.sees(&name) {
        return Err(Refusal::not_found(format!("there is no user {name:?}")));
    }
    let client = api.farm.pool.get().await.map_err(status_code::of_pool)?;
    let found = usage::quotas(&client, &name).await.map_err(status_code::of)?.into_iter().map(|of| {
        let usage::Quota { period, problems, cpu_seconds, used } = of;
        Quota { period, problems, cpu_seconds, used }
    });
    Ok(Body(Page::whole(found.collect())))
}

/// Say what a user may load
#[utoipa::path(put, path = "/api/v1/users/{name}/quota", tag = "users", params(("name" = String, Path)),
    request_body = NewQuota, responses((status = 200, body = Page<Quota>)))]
async fn set_quota(
    State(api): State<Api>,
    who: Who,
    PathName(name): PathName,
    Document(new): Document<NewQuota>,
) -> Answer<Body<Page<Quota>>> {
    if !(1..=63).contains(&name.len()) {
        return Err(Refusal::not_found("a user's name has from 1 to 63 bytes"));
    }
    let period = match new.period {
        Period::Day => "day",
        Period::Month => "month",
    };
    let client = api.farm.pool.get().await.map_err(status_code::of_pool)?;
    who.caller()?.act(&client).await?;
    let set = usage::set_quota(&client, &name, period, new.problems, new.cpu_seconds).await;
    set.map_err(status_code::of)?;
    drop(client);
    quotas(State(api), who, PathName(name)).await
}
