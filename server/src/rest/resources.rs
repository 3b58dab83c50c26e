//! Resources: what problems in progress share, such as licences.

use super::Api;
use super::extract::{Document, Params, PathName, SomeVersion, Who};
use super::paging::{self, Page};
use super::problem_details::{Answer, Refusal};
use super::shown::{Resource, Show, tagged};
use super::users::PageParams;
use axum::Json as Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use pcfarm_proto::v1;
use pcfarm_proto::v1::queue_service_server::QueueService;
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

const CURSOR: &str = "resources";

pub fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(show, set, remove))
}

/// Resources, by name
#[utoipa::path(get, path = "/api/v1/resources", tag = "resources", params(PageParams),
    responses((status = 200, body = Page<Resource>)))]
async fn list(State(api): State<Api>, who: Who, Params(asked): Params<PageParams>) -> Answer<Body<Page<Resource>>> {
    let after = paging::place(CURSOR, asked.cursor.as_deref())?;
    let mut all: Vec<Resource> = Show::show(all(&api, &who).await?);
    all.sort_by(|a, b| a.name.cmp(&b.name));
    let limit = asked.limit.unwrap_or_default().0;
    Ok(Body(Page::part(all, after.as_deref(), limit, CURSOR, |resource| resource.name.clone())))
}

async fn all(api: &Api, who: &Who) -> Answer<Vec<v1::Resource>> {
    Ok(api.queue.list_resources(who.ask(v1::ListResourcesRequest {})).await?.into_inner().resources)
}

fn one(all: Vec<v1::Resource>, name: &str) -> Answer<Response> {
    let found = all.into_iter().find(|resource| resource.name == name);
    let found = found.ok_or_else(|| Refusal::not_found(format!("there is no resource {name:?}")))?;
    let version = found.version.clone();
    Ok(tagged(Resource::show(found), &version))
}

/// One resource
#[utoipa::path(get, path = "/api/v1/resources/{name}", tag = "resources", params(("name" = String, Path)),
    responses((status = 200, body = Resource, headers(("ETag" = String)))))]
async fn show(State(api): State<Api>, who: Who, PathName(name): PathName) -> Answer<Response> {
    one(all(&api, &who).await?, &name)
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewResource {
    #[schema(minimum = 0)]
    tokens: i64,
    #[serde(default)]
    description: String,
}

/// Make a resource, or change it
#[utoipa::path(put, path = "/api/v1/resources/{name}", tag = "resources",
    params(("name" = String, Path), ("If-Match" = Option<String>, Header, description = "The ETag of what was read"),
        ("If-None-Match" = Option<String>, Header, description = "*: only if there is none yet")),
    request_body = NewResource, responses((status = 200, body = Resource)))]
async fn set(
    State(api): State<Api>,
    who: Who,
    PathName(name): PathName,
    SomeVersion(version): SomeVersion,
    Document(new): Document<NewResource>,
) -> Answer<Response> {
    let NewResource { tokens, description } = new;
    let asked = v1::SetResourceRequest { name: name.clone(), tokens: Some(tokens), description, version };
    let found = api.queue.set_resource(who.ask(asked)).await?.into_inner();
    one(found.resources, &name)
}

/// Remove a resource
#[utoipa::path(delete, path = "/api/v1/resources/{name}", tag = "resources",
    params(("name" = String, Path), ("If-Match" = Option<String>, Header, description = "The ETag of what was read")),
    responses((status = 204)))]
async fn remove(
    State(api): State<Api>,
    who: Who,
    PathName(name): PathName,
    SomeVersion(version): SomeVersion,
) -> Answer<StatusCode> {
    drop(one(all(&api, &who).await?, &name)?);
    let asked = v1::SetResourceRequest { name, tokens: None, description: String::new(), version };
    api.queue.set_resource(who.ask(asked)).await?;
    Ok(StatusCode::NO_CONTENT)
}
