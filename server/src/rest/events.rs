//! What happened: read, or followed as server-sent events.

use super::Api;
use super::extract::{Id, Limit, Params, Who};
use super::paging::{self, Page};
use super::problem_details::{Answer, Refusal};
use super::shown::{Event, Show, Time};
use axum::Json as Body;
use axum::body::{Body as Stream, Bytes};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use pcfarm_proto::v1;
use pcfarm_proto::v1::farm_service_server::FarmService;
use serde::Deserialize;
use std::time::Duration;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

const CURSOR: &str = "events";

/// Between two looks for whoever follows; a comment is sent when there is nothing, so that a gone reader is noticed.
const FOLLOW_POLL: Duration = Duration::from_secs(1);
const FOLLOW_COMMENT_EVERY: u32 = 15;

pub fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list))
}

/// Those that take their time.
pub fn slow_routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(follow))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    #[param(value_type = Option<String>)]
    job_id: Option<Id>,
    #[param(value_type = Option<String>)]
    workstation_id: Option<Id>,
    /// Whose name begins so, such as `job`
    what: Option<String>,
    #[param(value_type = Option<String>, format = DateTime)]
    since: Option<Time>,
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<Limit>,
    /// `next` of the page before. Missing: the newest, or the oldest since `since`
    cursor: Option<String>,
}

impl ListParams {
    fn request(self) -> Answer<v1::ListEventsRequest> {
        let what = self.what.unwrap_or_default();
        Ok(v1::ListEventsRequest {
            job_id: self.job_id.map_or(0, |id| id.0),
            workstation_id: self.workstation_id.map_or(0, |id| id.0),
            what,
            since: self.since.and_then(|time| time.stamp()),
            after: paging::place(CURSOR, self.cursor.as_deref())?.unwrap_or_default(),
            limit: self.limit.unwrap_or_default().0,
        })
    }
}

/// What happened, oldest first
///
/// `next` is always there: send it again later for what will have happened.
#[utoipa::path(get, path = "/api/v1/events", tag = "events", params(ListParams),
    responses((status = 200, body = Page<Event>)))]
async fn list(State(api): State<Api>, who: Who, Params(asked): Params<ListParams>) -> Answer<Body<Page<Event>>> {
    let found = api.status.list_events(who.ask(asked.request()?)).await?.into_inner();
    let next = Some(paging::cursor(CURSOR, &found.after));
    Ok(Body(Page { items: Show::show(found.events), next, total: None }))
}

/// Follow what happens
///
/// Server-sent events, whose `id` is a cursor: a reader that comes back with `Last-Event-ID` misses nothing.
#[utoipa::path(get, path = "/api/v1/events/stream", tag = "events", params(ListParams),
    responses((status = 200, body = String, content_type = "text/event-stream")))]
async fn follow(
    State(api): State<Api>,
    who: Who,
    Params(asked): Params<ListParams>,
    headers: HeaderMap,
) -> Answer<Response> {
    let mut asked = asked.request()?;
    if let Some(last) = headers.get("Last-Event-ID") {
        let last =
            last.to_str().map_err(|_| Refusal::bad_request("Last-Event-ID", "it is not an id of these events"))?;
        asked.after = paging::place(CURSOR, Some(last))?.unwrap_or_default();
    }
    // What is wrong with the request is told before the stream begins.
    let first = api.status.list_events(who.ask(asked.clone())).await?.into_inner();
    let state = Following { api, who, asked, silent: 0, coming: Some(first) };
    let lines = futures_util::stream::unfold(state, |mut state| async move {
        let found = state.look().await?;
        Some((Ok::<_, std::convert::Infallible>(found), state))
    });
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    Ok((headers, Stream::from_stream(lines)).into_response())
}

struct Following {
    api: Api,
    who: Who,
    asked: v1::ListEventsRequest,
    silent: u32,
    coming: Option<v1::ListEventsResponse>,
}

impl Following {
    /// What comes next; `None`: the server stops, and the reader comes back.
    async fn look(&mut self) -> Option<Bytes> {
        loop {
            let found = match self.coming.take() {
                Some(found) => found,
                None => {
                    let stopping = &self.api.farm.stopping;
                    stopping.run_until_cancelled(tokio::time::sleep(FOLLOW_POLL)).await?;
                    self.api.status.list_events(self.who.ask(self.asked.clone())).await.ok()?.into_inner()
                }
            };
            self.asked.after.clone_from(&found.after);
            self.asked.since = None;
            if !found.events.is_empty() {
                self.silent = 0;
                let id = paging::cursor(CURSOR, &found.after);
                return Some(told(found.events, &id));
            }
            self.silent += 1;
            if self.silent % FOLLOW_COMMENT_EVERY == 1 {
                return Some(Bytes::from_static(b":\n\n"));
            }
        }
    }
}

/// Only the last one has the id behind all of them: who is cut off in between sees some of them twice.
fn told(events: Vec<v1::Event>, id: &str) -> Bytes {
    let mut text = String::new();
    let last = events.len().saturating_sub(1);
    for (i, event) in events.into_iter().enumerate() {
        let json = serde_json::to_string(&Event::show(event)).expect("it is plain data");
        if i == last {
            text.push_str(&format!("id: {id}\n"));
        }
        text.push_str(&format!("data: {json}\n\n"));
    }
    text.into()
}
