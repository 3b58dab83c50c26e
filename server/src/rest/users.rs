//! Users and their limits.

use super::Api;
use super::extract::{Document, Limit, Params, PathName, PathNames, SomeVersion, Who};
use super::jobs::some;
use super::paging::{self, Page};
use super::problem_details::{Answer, Refusal};
use super::shown::{Limits, Show, User, tagged};
use axum::Json as Body;
use axum::extract::State;
use axum::response::Response;
use pcfarm_proto::v1;
use pcfarm_proto::v1::queue_service_server::QueueService;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

const CURSOR: &str = "users";

pub fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(set))
        .routes(routes!(set_of_type))
        .routes(routes!(defaults, set_defaults))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PageParams {
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    pub limit: Option<Limit>,
    /// `next` of the page before
    pub cursor: Option<String>,
}

/// Users, by name
#[utoipa::path(get, path = "/api/v1/users", tag = "users", params(PageParams), responses((status = 200, body = Page<User>)))]
async fn list(State(api): State<Api>, who: Who, Params(asked): Params<PageParams>) -> Answer<Body<Page<User>>> {
    let after = paging::place(CURSOR, asked.cursor.as_deref())?;
    let found = api.queue.list_users(who.ask(v1::ListUsersRequest {})).await?.into_inner();
    let mut users: Vec<User> = Show::show(found.users);
    users.sort_by(|a, b| a.name.cmp(&b.name));
    let limit = asked.limit.unwrap_or_default().0;
    Ok(Body(Page::part(users, after.as_deref(), limit, CURSOR, |user| user.name.clone())))
}

/// One user
#[utoipa::path(get, path = "/api/v1/users/{name}", tag = "users", params(("name" = String, Path)),
    responses((status = 200, body = User, headers(("ETag" = String, description = "Of its limits")))))]
async fn show(State(api): State<Api>, who: Who, PathName(name): PathName) -> Answer<Response> {
    let found = api.queue.list_users(who.ask(v1::ListUsersRequest {})).await?.into_inner();
    one(found, &name)
}

fn one(found: v1::ListUsersResponse, name: &str) -> Answer<Response> {
    let user = found.users.into_iter().find(|user| user.name == name);
    let user = user.ok_or_else(|| Refusal::not_found(format!("there is no user {name:?}")))?;
    let version = user.version.clone();
    Ok(tagged(User::show(user), &version))
}

/// Limits that are to change: what is missing stays, and null is as the defaults have it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewLimits {
    /// Most problems waiting
    #[serde(default, deserialize_with = "some")]
    #[schema(value_type = Option<i64>, minimum = 0)]
    queue_limit: Option<Option<i64>>,
    /// Most problems in progress; 0 stops a user
    #[serde(default, deserialize_with = "some")]
    #[schema(value_type = Option<i64>, minimum = 0)]
    concurrency: Option<Option<i64>>,
    /// Turns in a round; 0 takes a user out of the ring
    #[serde(default, deserialize_with = "some")]
    #[schema(value_type = Option<i64>, minimum = 0)]
    allocation: Option<Option<i64>>,
    /// Served only by workstations that require it by name; of a user
    prohibited: Option<bool>,
}

impl NewLimits {
    fn request(self, users: Vec<String>, job_type: String, version: String) -> v1::SetLimitsRequest {
        let reset = [
            ("queue_limit", matches!(self.queue_limit, Some(None))),
            ("concurrency", matches!(self.concurrency, Some(None))),
            ("allocation", matches!(self.allocation, Some(None))),
        ];
        v1::SetLimitsRequest {
            users,
            job_type,
            limits: Some(v1::Limits {
                queue_limit: self.queue_limit.flatten(),
                concurrency: self.concurrency.flatten(),
                allocation: self.allocation.flatten(),
            }),
            reset: reset.into_iter().filter(|(_, reset)| *reset).map(|(name, _)| name.to_owned()).collect(),
            prohibited: self.prohibited,
            version,
        }
    }
}

/// Change a user's limits
#[utoipa::path(patch, path = "/api/v1/users/{name}/limits", tag = "users",
    params(("name" = String, Path), ("If-Match" = Option<String>, Header, description = "The user's ETag")),
    request_body = NewLimits, responses((status = 200, body = User)))]
async fn set(
    State(api): State<Api>,
    who: Who,
    PathName(name): PathName,
    SomeVersion(version): SomeVersion,
    Document(limits): Document<NewLimits>,
) -> Answer<Response> {
    let asked = limits.request(vec![name.clone()], String::new(), version);
    one(api.queue.set_limits(who.ask(asked)).await?.into_inner(), &name)
}

/// Change what a user may have of a job type
#[utoipa::path(patch, path = "/api/v1/users/{name}/job-types/{job_type}/limits", tag = "users",
    params(("name" = String, Path), ("job_type" = String, Path),
        ("If-Match" = Option<String>, Header, description = "The user's ETag")),
    request_body = NewLimits, responses((status = 200, body = User)))]
async fn set_of_type(
    State(api): State<Api>,
    who: Who,
    PathNames(name, job_type): PathNames,
    SomeVersion(version): SomeVersion,
    Document(limits): Document<NewLimits>,
) -> Answer<Response> {
    let asked = limits.request(vec![name.clone()], job_type, version);
    one(api.queue.set_limits(who.ask(asked)).await?.into_inner(), &name)
}

/// What users have who have nothing of their own
#[utoipa::path(get, path = "/api/v1/limits", tag = "users",
    responses((status = 200, body = Limits, headers(("ETag" = String)))))]
async fn defaults(State(api): State<Api>, who: Who) -> Answer<Response> {
    let found = api.queue.list_users(who.ask(v1::ListUsersRequest {})).await?.into_inner();
    Ok(tagged(Limits::show(found.defaults.unwrap_or_default()), &found.version))
}

/// Change what users have who have nothing of their own
#[utoipa::path(patch, path = "/api/v1/limits", tag = "users", request_body = NewLimits,
    params(("If-Match" = Option<String>, Header, description = "The ETag of what was read")),
    responses((status = 200, body = Limits)))]
async fn set_defaults(
    State(api): State<Api>,
    who: Who,
    SomeVersion(version): SomeVersion,
    Document(limits): Document<NewLimits>,
) -> Answer<Response> {
    let asked = limits.request(Vec::new(), String::new(), version);
    let found = api.queue.set_limits(who.ask(asked)).await?.into_inner();
    Ok(tagged(Limits::show(found.defaults.unwrap_or_default()), &found.version))
}
