//! Workstations and slots.

use super::Api;
use super::extract::{Document, Id, Limit, Params, PathId, PathName, PathNames, SomeVersion, Who};
use super::jobs::Reasons;
use super::paging::{self, Page};
use super::problem_details::Answer;
use super::shown::{ForgottenWorkstation, Show, Slot, Workstation, tagged};
use axum::Json as Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use pcfarm_proto::v1;
use pcfarm_proto::v1::workstation_service_server::WorkstationService;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tonic::Status;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

const CURSOR: &str = "workstations";

pub fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(drain, undo_drain))
        .routes(routes!(drain_many))
        .routes(routes!(undrain_many))
        .routes(routes!(note))
        .routes(routes!(wake))
        .routes(routes!(forget))
        .routes(routes!(explain))
        .routes(routes!(selection, select))
        .routes(routes!(presence, set_presence))
        .routes(routes!(slots))
        .routes(routes!(start_slot, stop_slot))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// Dead ones, too
    #[serde(default)]
    all: bool,
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<Limit>,
    /// `next` of the page before
    cursor: Option<String>,
}

/// Workstations, by id
#[utoipa::path(get, path = "/api/v1/workstations", tag = "workstations", params(ListParams),
    responses((status = 200, body = Page<Workstation>)))]
async fn list(State(api): State<Api>, who: Who, Params(asked): Params<ListParams>) -> Answer<Body<Page<Workstation>>> {
    let limit = asked.limit.unwrap_or_default().0;
    let after_workstation_id = paging::id_place(CURSOR, asked.cursor.as_deref())?;
    let wanted = v1::ListWorkstationsRequest { all: asked.all, limit, after_workstation_id };
    let found = api.workstations.list_workstations(who.ask(wanted)).await?.into_inner();
    let workstations: Vec<Workstation> = Show::show(found.workstations);
    Ok(Body(Page::new(workstations, limit, CURSOR, |one| one.workstation_id.0.to_string())))
}

async fn set_drain(api: &Api, who: &Who, asked: v1::DrainWorkstationsRequest) -> Answer<Vec<Workstation>> {
    let drained = api.workstations.drain_workstations(who.ask(asked)).await?.into_inner();
    Ok(Show::show(drained.workstations))
}

async fn set_drain_of_one(api: &Api, who: &Who, asked: v1::DrainWorkstationsRequest) -> Answer<Body<Workstation>> {
    let mut drained = set_drain(api, who, asked).await?;
    drained.pop().map(Body).ok_or_else(|| Status::not_found("the workstation was forgotten meanwhile").into())
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct DrainParams {
    /// Why, for people
    #[serde(default)]
    reason: String,
    /// From now on: what is not finished by then is given back, at no cost. Missing: what it holds is finished
    #[param(minimum = 0)]
    deadline_seconds: Option<u32>,
}

fn seconds(seconds: u32) -> prost_types::Duration {
    prost_types::Duration { seconds: seconds.into(), nanos: 0 }
}

/// Let a workstation finish what it holds, and take no more
#[utoipa::path(put, path = "/api/v1/workstations/{workstation_id}/drain", tag = "workstations",
    params(("workstation_id" = Id, Path), DrainParams), responses((status = 200, body = Workstation)))]
async fn drain(
    State(api): State<Api>,
    who: Who,
    PathId(id): PathId,
    Params(asked): Params<DrainParams>,
) -> Answer<Body<Workstation>> {
    let deadline = asked.deadline_seconds.map(seconds);
    let reason = asked.reason;
    let asked =
        v1::DrainWorkstationsRequest { workstation_ids: vec![id], undo: false, reason, deadline, release: false };
    set_drain_of_one(&api, &who, asked).await
}

/// Let a drained workstation work again
#[utoipa::path(delete, path = "/api/v1/workstations/{workstation_id}/drain", tag = "workstations",
    params(("workstation_id" = Id, Path)), responses((status = 200, body = Workstation)))]
async fn undo_drain(State(api): State<Api>, who: Who, PathId(id): PathId) -> Answer<Body<Workstation>> {
    let asked = v1::DrainWorkstationsRequest { workstation_ids: vec![id], undo: true, ..Default::default() };
    set_drain_of_one(&api, &who, asked).await
}

/// Many at once: all of them or, if one is not there, none
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Draining {
    workstation_ids: Vec<Id>,
    /// Why, for people
    #[serde(default)]
    reason: String,
    /// From now on: what is not finished by then is given back, at no cost. Missing: what they hold is finished
    #[schema(minimum = 0)]
    deadline_seconds: Option<u32>,
}

/// Let workstations finish what they hold, and take no more
#[utoipa::path(post, path = "/api/v1/workstations/drain", tag = "workstations",
    request_body = Draining, responses((status = 200, body = Page<Workstation>)))]
async fn drain_many(
    State(api): State<Api>,
    who: Who,
    Document(asked): Document<Draining>,
) -> Answer<Body<Page<Workstation>>> {
    let Draining { workstation_ids, reason, deadline_seconds } = asked;
    let deadline = deadline_seconds.map(seconds);
    let asked = v1::DrainWorkstationsRequest {
        workstation_ids: numbers(workstation_ids),
        undo: false,
        reason,
        deadline,
        release: false,
    };
    Ok(Body(Page::whole(set_drain(&api, &who, asked).await?)))
}

/// Many at once: all of them or, if one is not there, none
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Undraining {
    workstation_ids: Vec<Id>,
    /// Those in quarantine, too, which stay there otherwise
    #[serde(default)]
    release: bool,
}

/// Let drained workstations work again
#[utoipa::path(post, path = "/api/v1/workstations/undrain", tag = "workstations",
    request_body = Undraining, responses((status = 200, body = Page<Workstation>)))]
async fn undrain_many(
    State(api): State<Api>,
    who: Who,
    Document(Undraining { workstation_ids, release }): Document<Undraining>,
) -> Answer<Body<Page<Workstation>>> {
    let workstation_ids = numbers(workstation_ids);
    let asked = v1::DrainWorkstationsRequest { workstation_ids, undo: true, release, ..Default::default() };
    Ok(Body(Page::whole(set_drain(&api, &who, asked).await?)))
}

/// Many at once: all of them or, if one is not there, none
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Noting {
    workstation_ids: Vec<Id>,
    /// At most 1000 characters; empty: nothing any more
    note: String,
}

/// Say what is to be remembered about workstations
#[utoipa::path(post, path = "/api/v1/workstations/note", tag = "workstations",
    request_body = Noting, responses((status = 200, body = Page<Workstation>)))]
async fn note(
    State(api): State<Api>,
    who: Who,
    Document(Noting { workstation_ids, note }): Document<Noting>,
) -> Answer<Body<Page<Workstation>>> {
    let asked = v1::NoteWorkstationsRequest { workstation_ids: numbers(workstation_ids), note };
    let noted = api.workstations.note_workstations(who.ask(asked)).await?.into_inner().workstations;
    Ok(Body(Page::whole(Show::show(noted))))
}

/// Many at once: all of them or, if one is not there or must not be woken, none
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Waking {
    workstation_ids: Vec<Id>,
}

/// Wake workstations that sleep; with the others there is nothing to do
#[utoipa::path(post, path = "/api/v1/workstations/wake", tag = "workstations",
    request_body = Waking, responses((status = 200, body = Page<Workstation>)))]
async fn wake(
    State(api): State<Api>,
    who: Who,
    Document(Waking { workstation_ids }): Document<Waking>,
) -> Answer<Body<Page<Workstation>>> {
    let asked = v1::WakeWorkstationsRequest { workstation_ids: numbers(workstation_ids) };
    let woken = api.workstations.wake_workstations(who.ask(asked)).await?.into_inner().workstations;
    Ok(Body(Page::whole(Show::show(woken))))
}

/// Many at once: all of them or, if one is not there or neither offline nor dead, none
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Forgetting {
    workstation_ids: Vec<Id>,
    /// Includes workstations that are neither offline nor dead: their unfinished problems come back at no cost
    #[serde(default)]
    force: bool,
}

/// Remove workstations that are gone for good, with their certificates
#[utoipa::path(post, path = "/api/v1/workstations/forget", tag = "workstations",
    request_body = Forgetting, responses((status = 200, body = Page<ForgottenWorkstation>)))]
async fn forget(
    State(api): State<Api>,
    who: Who,
    Document(Forgetting { workstation_ids, force }): Document<Forgetting>,
) -> Answer<Body<Page<ForgottenWorkstation>>> {
    let asked = v1::ForgetWorkstationsRequest { workstation_ids: numbers(workstation_ids), force };
    let forgotten = api.workstations.forget_workstations(who.ask(asked)).await?.into_inner().workstations;
    Ok(Body(Page::whole(Show::show(forgotten))))
}

fn numbers(ids: Vec<Id>) -> Vec<i64> {
    ids.into_iter().map(|id| id.0).collect()
}

/// Why a workstation is not working, and what would change that
#[utoipa::path(get, path = "/api/v1/workstations/{workstation_id}/explain", tag = "workstations",
    params(("workstation_id" = Id, Path)), responses((status = 200, body = Reasons)))]
async fn explain(State(api): State<Api>, who: Who, PathId(workstation_id): PathId) -> Answer<Body<Reasons>> {
    use pcfarm_proto::v1::farm_service_server::FarmService;
    let asked = v1::ExplainRequest { job_id: 0, workstation_id };
    let reasons = api.status.explain(who.ask(asked)).await?.into_inner().reasons;
    Ok(Body(Reasons { reasons }))
}

/// What a workstation may take, beside what its agent can run; an empty list is any
#[derive(Clone, Debug, Serialize, ToSchema)]
struct Selection {
    hostname: String,
    /// Users
    required: Vec<String>,
    excluded: Vec<String>,
    preferred: Vec<String>,
    job_types: Vec<String>,
    /// Beside those that its agent says
    labels: Vec<String>,
    /// Bytes of a payload; 0: any
    largest_problem: i64,
}

impl Show<v1::Selection> for Selection {
    fn show(from: v1::Selection) -> Selection {
        Selection {
            hostname: from.hostname,
            required: from.required,
            excluded: from.excluded,
            preferred: from.preferred,
            job_types: from.job_types,
            labels: from.labels,
            largest_problem: from.largest_problem,
        }
    }
}

async fn selected(api: &Api, who: &Who, hostname: String) -> Answer<Response> {
    let found = api.workstations.get_selection(who.ask(v1::GetSelectionRequest { hostname })).await?.into_inner();
    let version = found.version.clone();
    Ok(tagged(Selection::show(found), &version))
}

/// What a workstation may take
///
/// Of one that has not connected yet, too: it will find this when it does.
#[utoipa::path(get, path = "/api/v1/hosts/{hostname}/selection", tag = "workstations",
    params(("hostname" = String, Path)), responses((status = 200, body = Selection, headers(("ETag" = String)))))]
async fn selection(State(api): State<Api>, who: Who, PathName(hostname): PathName) -> Answer<Response> {
    selected(&api, &who, hostname).await
}

/// What a workstation may take: what is missing stays, and an empty list is none any more.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewSelection {
    /// Users
    required: Option<Vec<String>>,
    excluded: Option<Vec<String>>,
    preferred: Option<Vec<String>>,
    job_types: Option<Vec<String>>,
    /// Beside those that its agent says
    labels: Option<Vec<String>>,
    /// Bytes of a payload; 0: any
    #[schema(minimum = 0)]
    largest_problem: Option<i64>,
}

/// Say what a workstation may take
#[utoipa::path(patch, path = "/api/v1/hosts/{hostname}/selection", tag = "workstations",
    params(("hostname" = String, Path), ("If-Match" = Option<String>, Header, description = "The ETag of what was read")),
    request_body = NewSelection, responses((status = 200, body = Selection, headers(("ETag" = String)))))]
async fn select(
    State(api): State<Api>,
    who: Who,
    PathName(hostname): PathName,
    SomeVersion(version): SomeVersion,
    Document(selection): Document<NewSelection>,
) -> Answer<Response> {
    let names = |list: Option<Vec<String>>| list.map(|names| v1::Names { names });
    let asked = v1::SetSelectionRequest {
        hostnames: vec![hostname.clone()],
        required: names(selection.required),
        excluded: names(selection.excluded),
        preferred: names(selection.preferred),
        job_types: names(selection.job_types),
        labels: names(selection.labels),
        largest_problem: selection.largest_problem,
        version,
    };
    api.workstations.set_selection(who.ask(asked)).await?;
    selected(&api, &who, hostname).await
}

/// What an agent is to go by when it decides whether it may work, by the names of its table `[presence]`; what is missing is as
/// its owner has it
#[derive(Debug, Serialize, ToSchema)]
struct Presence {
    hostname: String,
    #[serde(flatten)]
    #[schema(value_type = Object)]
    settings: Map<String, Value>,
}

async fn wanted_presence(api: &Api, who: &Who, hostname: String) -> Answer<Response> {
    let found = api.workstations.get_presence(who.ask(v1::GetPresenceRequest { hostname })).await?.into_inner();
    let v1::WantedPresence { hostname, settings, version } = found;
    let settings = serde_json::from_slice(&settings).map_err(|error| Status::internal(error.to_string()))?;
    Ok(tagged(Presence { hostname, settings }, &version))
}

/// What a workstation's agent is to go by
///
/// Of one that has not connected yet, too: it will find this when it does. What of it holds, and what its owner refuses, is in the
/// workstation's `presence`.
#[utoipa::path(get, path = "/api/v1/hosts/{hostname}/presence", tag = "workstations",
    params(("hostname" = String, Path)), responses((status = 200, body = Presence, headers(("ETag" = String)))))]
async fn presence(State(api): State<Api>, who: Who, PathName(hostname): PathName) -> Answer<Response> {
    wanted_presence(&api, &who, hostname).await
}

/// What an agent is to go by: what is missing stays, and null is not wanted any more.
#[derive(Debug, Deserialize, ToSchema)]
struct NewPresence {
    #[serde(flatten)]
    #[schema(value_type = Object)]
    settings: Map<String, Value>,
}

/// Make a workstation's agent more careful, or less so where its owner allows that
#[utoipa::path(patch, path = "/api/v1/hosts/{hostname}/presence", tag = "workstations",
    params(("hostname" = String, Path), ("If-Match" = Option<String>, Header, description = "The ETag of what was read")),
    request_body = NewPresence, responses((status = 200, body = Presence, headers(("ETag" = String)))))]
async fn set_presence(
    State(api): State<Api>,
    who: Who,
    PathName(hostname): PathName,
    SomeVersion(version): SomeVersion,
    Document(NewPresence { settings }): Document<NewPresence>,
) -> Answer<Response> {
    let settings = Value::Object(settings).to_string().into();
    let asked = v1::SetPresenceRequest { hostnames: vec![hostname.clone()], settings, version };
    api.workstations.set_presence(who.ask(asked)).await?;
    wanted_presence(&api, &who, hostname).await
}

/// Slots
#[utoipa::path(get, path = "/api/v1/slots", tag = "workstations", responses((status = 200, body = Page<Slot>)))]
async fn slots(State(api): State<Api>, who: Who) -> Answer<Body<Page<Slot>>> {
    let found = api.workstations.list_slots(who.ask(v1::ListSlotsRequest {})).await?.into_inner().slots;
    Ok(Body(Page::whole(Show::show(found))))
}

async fn set_slot(api: &Api, who: &Who, names: PathNames, running: bool) -> Answer<StatusCode> {
    let PathNames(hostname, name) = names;
    let asked = v1::SetSlotRequest { hostnames: vec![hostname], name, running };
    api.workstations.set_slot(who.ask(asked)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Start a slot: a workstation of its own that shares the host's cores
#[utoipa::path(put, path = "/api/v1/hosts/{hostname}/slots/{name}", tag = "workstations",
    params(("hostname" = String, Path), ("name" = String, Path)), responses((status = 204)))]
async fn start_slot(State(api): State<Api>, who: Who, names: PathNames) -> Answer<StatusCode> {
    set_slot(&api, &who, names, true).await
}

/// Stop a slot
#[utoipa::path(delete, path = "/api/v1/hosts/{hostname}/slots/{name}", tag = "workstations",
    params(("hostname" = String, Path), ("name" = String, Path)), responses((status = 204)))]
async fn stop_slot(State(api): State<Api>, who: Who, names: PathNames) -> Answer<StatusCode> {
    set_slot(&api, &who, names, false).await
}
