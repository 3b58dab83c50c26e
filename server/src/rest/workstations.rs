//! Workstations and slots.

use super::Api;
use super::extract::{Document, Id, Limit, Params, PathId, PathName, PathNames, Who};
use super::jobs::Reasons;
use super::paging::{self, Page};
use super::problem_details::Answer;
use super::shown::{Show, Slot, Workstation};
use axum::Json as Body;
use axum::extract::State;
use axum::http::StatusCode;
use pcfarm_proto::v1;
use pcfarm_proto::v1::workstation_service_server::WorkstationService;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

const CURSOR: &str = "workstations";

pub fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(drain, undo_drain))
        .routes(routes!(explain))
        .routes(routes!(select))
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

async fn set_drain(api: &Api, who: &Who, workstation_id: i64, undo: bool) -> Answer<Body<Workstation>> {
    let asked = v1::DrainWorkstationRequest { workstation_id, undo };
    let drained = api.workstations.drain_workstation(who.ask(asked)).await?.into_inner();
    Ok(Body(Workstation::show(drained)))
}

/// Let a workstation finish what it holds, and take no more
#[utoipa::path(put, path = "/api/v1/workstations/{workstation_id}/drain", tag = "workstations",
    params(("workstation_id" = Id, Path)), responses((status = 200, body = Workstation)))]
async fn drain(State(api): State<Api>, who: Who, PathId(id): PathId) -> Answer<Body<Workstation>> {
    set_drain(&api, &who, id, false).await
}

/// Let a drained workstation work again
#[utoipa::path(delete, path = "/api/v1/workstations/{workstation_id}/drain", tag = "workstations",
    params(("workstation_id" = Id, Path)), responses((status = 200, body = Workstation)))]
async fn undo_drain(State(api): State<Api>, who: Who, PathId(id): PathId) -> Answer<Body<Workstation>> {
    set_drain(&api, &who, id, true).await
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

/// What a workstation may take: what is missing stays, and an empty list is none any more.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Selection {
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
    params(("hostname" = String, Path)), request_body = Selection, responses((status = 204)))]
async fn select(
    State(api): State<Api>,
    who: Who,
    PathName(hostname): PathName,
    Document(selection): Document<Selection>,
) -> Answer<StatusCode> {
    let names = |list: Option<Vec<String>>| list.map(|names| v1::Names { names });
    let asked = v1::SetSelectionRequest {
        hostnames: vec![hostname],
        required: names(selection.required),
        excluded: names(selection.excluded),
        preferred: names(selection.preferred),
        job_types: names(selection.job_types),
        labels: names(selection.labels),
        largest_problem: selection.largest_problem,
    };
    api.workstations.set_selection(who.ask(asked)).await?;
    Ok(StatusCode::NO_CONTENT)
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
