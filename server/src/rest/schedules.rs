//! Schedules. Everything that a scheduler's programs ask: define, change any part, disable, look at one, list them in pages,
//! what it has triggered and when it comes next.

use super::Api;
use super::extract::{Document, Id, Limit, Params, PathId, SomeVersion, Version, Who};
use super::jobs::some;
use super::paging::{self, Page};
use super::problem_details::{Answer, Refusal};
use super::shown::{Json, Show, Time, shown, tagged};
use axum::Json as Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use pcfarm_proto::v1;
use pcfarm_proto::v1::schedule_definition::Target;
use pcfarm_proto::v1::schedules_server::Schedules;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

const CURSOR: &str = "schedules";
const TRIGGERS: &str = "triggers";

pub fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(show, update, remove))
        .routes(routes!(enable))
        .routes(routes!(disable))
        .routes(routes!(trigger))
        .routes(routes!(history))
        .routes(routes!(next_times))
}

/// What is to be done when
#[derive(Clone, Debug, Serialize, ToSchema)]
struct Schedule {
    schedule_id: Id,
    owner: String,
    name: String,
    description: String,
    /// Cron with 5 or 6 fields, @daily and the like, `every 15 minutes`, or `once 2027-01-31T18:00`
    recurrence: String,
    time_zone: String,
    starts_at: Option<Time>,
    ends_at: Option<Time>,
    enabled: bool,
    /// Of due times that no server was there for: skip, once or all
    catch_up: String,
    catch_up_limit: u32,
    jitter_ms: u64,
    payload: Option<Json>,
    /// A trigger enqueues a problem into this job ...
    job_id: Option<Id>,
    /// ... or into the owner's job of this unique_key
    job_key: Option<String>,
    /// ... or makes a job of this template
    template: Option<Json>,
    /// active, disabled, ended or broken
    state: String,
    reason: String,
    next_due_at: Option<Time>,
    /// With its jitter
    next_trigger_at: Option<Time>,
    last_due_at: Option<Time>,
    last_triggered_at: Option<Time>,
    /// So far
    triggers: i64,
    created_at: Option<Time>,
    changed_at: Option<Time>,
}

impl Show<v1::Schedule> for Schedule {
    fn show(from: v1::Schedule) -> Schedule {
        let of = from.definition.unwrap_or_default();
        let (job_id, job_key, template) = match of.target {
            Some(Target::JobId(id)) => (Show::show(id), Show::show(from.job_key), None),
            Some(Target::JobKey(key)) => (None, Some(key), None),
            Some(Target::Template(template)) => (None, None, Show::show(template)),
            None => (None, None, None),
        };
        Schedule {
            schedule_id: Id(from.schedule_id),
            owner: from.owner,
            name: of.name,
            description: of.description,
            recurrence: of.recurrence,
            time_zone: of.time_zone,
            starts_at: Show::show(of.starts_at),
            ends_at: Show::show(of.ends_at),
            enabled: of.enabled.unwrap_or(true),
            catch_up: of.catch_up,
            catch_up_limit: of.catch_up_limit,
            jitter_ms: of.jitter_ms,
            payload: Show::show(of.payload),
            job_id,
            job_key,
            template,
            state: from.state,
            reason: from.reason,
            next_due_at: Show::show(from.next_due_at),
            next_trigger_at: Show::show(from.next_trigger_at),
            last_due_at: Show::show(from.last_due_at),
            last_triggered_at: Show::show(from.last_triggered_at),
            triggers: from.triggers,
            created_at: Show::show(from.created_at),
            changed_at: Show::show(from.changed_at),
        }
    }
}

fn shown_with_tag(schedule: v1::Schedule) -> Response {
    let version = schedule.version.to_string();
    tagged(Schedule::show(schedule), &version)
}

fn by_id(schedule_id: i64) -> v1::ScheduleRequest {
    v1::ScheduleRequest { schedule_id, ..v1::ScheduleRequest::default() }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    owner: Option<String>,
    /// What its name begins with
    name_prefix: Option<String>,
    #[param(inline)]
    state: Option<ScheduleState>,
    #[param(value_type = Option<String>)]
    job_id: Option<Id>,
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<Limit>,
    /// `next` of the page before
    cursor: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum ScheduleState {
    Active,
    Disabled,
    Ended,
    Broken,
}

/// Schedules, by owner and name
#[utoipa::path(get, path = "/api/v1/schedules", tag = "schedules", params(ListParams),
    responses((status = 200, body = Page<Schedule>)))]
async fn list(State(api): State<Api>, who: Who, Params(asked): Params<ListParams>) -> Answer<Body<Page<Schedule>>> {
    let state = match asked.state {
        None => "",
        Some(ScheduleState::Active) => "active",
        Some(ScheduleState::Disabled) => "disabled",
        Some(ScheduleState::Ended) => "ended",
        Some(ScheduleState::Broken) => "broken",
    };
    let wanted = v1::ListSchedulesRequest {
        owner: asked.owner.unwrap_or_default(),
        name_prefix: asked.name_prefix.unwrap_or_default(),
        state: state.to_owned(),
        job_id: asked.job_id.map_or(0, |id| id.0),
        limit: asked.limit.unwrap_or_default().0,
        after: paging::place(CURSOR, asked.cursor.as_deref())?.unwrap_or_default(),
    };
    let found = api.schedules.list(who.ask(wanted)).await?.into_inner();
    let next = Some(found.next).filter(|next| !next.is_empty()).map(|next| paging::cursor(CURSOR, &next));
    Ok(Body(Page { items: Show::show(found.schedules), next, total: None }))
}

/// What a schedule is: of a new one `name`, `recurrence` and one of `job_id`, `job_key` and `template`; of a change, what is
/// to be another. Null is none any more.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Definition {
    #[schema(min_length = 1, max_length = 100, example = "every-night")]
    name: Option<String>,
    description: Option<String>,
    #[schema(example = "0 22 * * mon-fri")]
    recurrence: Option<String>,
    #[schema(example = "Europe/Berlin")]
    time_zone: Option<String>,
    #[serde(default, deserialize_with = "some")]
    #[schema(value_type = Option<Time>)]
    starts_at: Option<Option<Time>>,
    #[serde(default, deserialize_with = "some")]
    #[schema(value_type = Option<Time>)]
    ends_at: Option<Option<Time>>,
    enabled: Option<bool>,
    #[schema(inline)]
    catch_up: Option<CatchUp>,
    catch_up_limit: Option<u32>,
    jitter_ms: Option<u64>,
    #[serde(default, deserialize_with = "some")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Json>,
    job_id: Option<Id>,
    job_key: Option<String>,
    #[schema(value_type = Option<Object>)]
    template: Option<Map<String, Value>>,
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum CatchUp {
    Skip,
    Once,
    All,
}

impl Definition {
    /// As a message, and which of its fields are there.
    fn message(self) -> Answer<(v1::ScheduleDefinition, Vec<String>)> {
        let mut fields = Vec::new();
        let mut there = |name: &str, given: bool| {
            if given {
                fields.push(name.to_owned());
            }
        };
        there("name", self.name.is_some());
        there("description", self.description.is_some());
        there("recurrence", self.recurrence.is_some());
        there("time_zone", self.time_zone.is_some());
        there("starts_at", self.starts_at.is_some());
        there("ends_at", self.ends_at.is_some());
        there("enabled", self.enabled.is_some());
        there("catch_up", self.catch_up.is_some());
        there("catch_up_limit", self.catch_up_limit.is_some());
        there("jitter_ms", self.jitter_ms.is_some());
        there("payload", self.payload.is_some());
        let targets = [self.job_id.is_some(), self.job_key.is_some(), self.template.is_some()];
        let targets = targets.into_iter().filter(|given| *given).count();
        there("target", targets > 0);
        if targets > 1 {
            return Err(Refusal::unprocessable("job_id", "name one of job_id, job_key and template"));
        }
        let template = self.template.map(|template| Target::Template(Value::Object(template).to_string().into()));
        let target = self.job_id.map(|id| Target::JobId(id.0)).or(self.job_key.map(Target::JobKey)).or(template);
        let stamp = |time: Option<Option<Time>>| time.flatten().and_then(|time| time.stamp());
        let catch_up = match self.catch_up {
            None => "",
            Some(CatchUp::Skip) => "skip",
            Some(CatchUp::Once) => "once",
            Some(CatchUp::All) => "all",
        };
        let definition = v1::ScheduleDefinition {
            name: self.name.unwrap_or_default(),
            description: self.description.unwrap_or_default(),
            recurrence: self.recurrence.unwrap_or_default(),
            time_zone: self.time_zone.unwrap_or_default(),
            starts_at: stamp(self.starts_at),
            ends_at: stamp(self.ends_at),
            enabled: self.enabled,
            catch_up: catch_up.to_owned(),
            catch_up_limit: self.catch_up_limit.unwrap_or_default(),
            jitter_ms: self.jitter_ms.unwrap_or_default(),
            payload: self.payload.map(|payload| payload.bytes()).unwrap_or_default(),
            target,
        };
        Ok((definition, fields))
    }
}

/// Make a schedule
#[utoipa::path(post, path = "/api/v1/schedules", tag = "schedules", request_body = Definition,
    responses((status = 201, body = Schedule, headers(("Location" = String)))))]
async fn create(State(api): State<Api>, who: Who, Document(new): Document<Definition>) -> Answer<Response> {
    if new.name.is_none() {
        return Err(Refusal::unprocessable("name", "a schedule has a name"));
    }
    if new.recurrence.is_none() {
        return Err(Refusal::unprocessable("recurrence", "say when it comes"));
    }
    let (definition, _) = new.message()?;
    let asked = v1::CreateScheduleRequest { definition: Some(definition) };
    let made = api.schedules.create(who.ask(asked)).await?.into_inner();
    let location = format!("/api/v1/schedules/{}", made.schedule_id);
    Ok((StatusCode::CREATED, [(LOCATION, location)], shown_with_tag(made)).into_response())
}

/// One schedule
///
/// With its last and next trigger, and how many there were.
#[utoipa::path(get, path = "/api/v1/schedules/{schedule_id}", tag = "schedules", params(("schedule_id" = Id, Path)),
    responses((status = 200, body = Schedule, headers(("ETag" = String)))))]
async fn show(State(api): State<Api>, who: Who, PathId(id): PathId) -> Answer<Response> {
    Ok(shown_with_tag(api.schedules.get(who.ask(by_id(id))).await?.into_inner()))
}

/// Which version, as the service takes it.
fn number(version: &str) -> Answer<i64> {
    if version.is_empty() {
        return Ok(0);
    }
    version.parse().ok().filter(|version| *version > 0).ok_or_else(|| {
        Refusal::about(
            StatusCode::PRECONDITION_FAILED,
            "If-Match",
            "it is not the ETag of any version of this schedule",
        )
    })
}

fn lost_update(status: tonic::Status) -> Refusal {
    match status.code() {
        tonic::Code::Aborted => Refusal::new(StatusCode::PRECONDITION_FAILED, status.message()),
        _ => status.into(),
    }
}

/// Change any part of a schedule
///
/// What is being triggered meanwhile is triggered. `If-Match` says which version the change is meant for.
#[utoipa::path(patch, path = "/api/v1/schedules/{schedule_id}", tag = "schedules",
    params(("schedule_id" = Id, Path), ("If-Match" = String, Header, description = "The ETag of what was read, or *")),
    request_body = Definition, responses((status = 200, body = Schedule)))]
async fn update(
    State(api): State<Api>,
    who: Who,
    PathId(id): PathId,
    Version(version): Version,
    Document(change): Document<Definition>,
) -> Answer<Response> {
    let version = number(&version)?;
    let (definition, fields) = change.message()?;
    if fields.is_empty() {
        return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "nothing says what is to change"));
    }
    let asked = v1::UpdateScheduleRequest { schedule: Some(by_id(id)), version, definition: Some(definition), fields };
    let changed = api.schedules.update(who.ask(asked)).await.map_err(lost_update)?.into_inner();
    Ok(shown_with_tag(changed))
}

/// Remove a schedule; what it has enqueued stays
#[utoipa::path(delete, path = "/api/v1/schedules/{schedule_id}", tag = "schedules",
    params(("schedule_id" = Id, Path), ("If-Match" = Option<String>, Header, description = "The ETag of what was read")),
    responses((status = 204)))]
async fn remove(
    State(api): State<Api>,
    who: Who,
    PathId(id): PathId,
    SomeVersion(version): SomeVersion,
) -> Answer<StatusCode> {
    let asked = v1::DeleteScheduleRequest { schedule: Some(by_id(id)), version: number(&version)? };
    api.schedules.delete(who.ask(asked)).await.map_err(lost_update)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Let a schedule come again from now on
#[utoipa::path(post, path = "/api/v1/schedules/{schedule_id}/enable", tag = "schedules",
    params(("schedule_id" = Id, Path)), responses((status = 200, body = Schedule)))]
async fn enable(State(api): State<Api>, who: Who, PathId(id): PathId) -> Answer<Response> {
    Ok(shown_with_tag(api.schedules.enable(who.ask(by_id(id))).await?.into_inner()))
}

/// Let a schedule come no more
#[utoipa::path(post, path = "/api/v1/schedules/{schedule_id}/disable", tag = "schedules",
    params(("schedule_id" = Id, Path)), responses((status = 200, body = Schedule)))]
async fn disable(State(api): State<Api>, who: Who, PathId(id): PathId) -> Answer<Response> {
    Ok(shown_with_tag(api.schedules.disable(who.ask(by_id(id))).await?.into_inner()))
}

#[derive(Debug, Serialize, ToSchema)]
struct Triggered {
    /// Of this trigger
    sequence: i64,
}

/// Trigger a schedule once more, now; its times stay as they are
#[utoipa::path(post, path = "/api/v1/schedules/{schedule_id}/trigger", tag = "schedules",
    params(("schedule_id" = Id, Path)), responses((status = 200, body = Triggered)))]
async fn trigger(State(api): State<Api>, who: Who, PathId(id): PathId) -> Answer<Body<Triggered>> {
    let sequence = api.schedules.trigger(who.ask(by_id(id))).await?.into_inner().sequence;
    Ok(Body(Triggered { sequence }))
}

shown! {
    /// A time that a schedule came
    Trigger of v1::ScheduleTrigger {
        sequence: i64,
        due_at: Option<Time>,
        triggered_at: Option<Time>,
        lateness_ms: i64,
        /// Of a problem: enqueued, done or failed; of a job: its state; refused; forgotten, with its job
        outcome: String,
        message: Option<String>,
        job_id: Option<Id>,
        problem_id: Option<Id>,
        /// Null: by hand
        server_id: Option<Id>,
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct HistoryParams {
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<Limit>,
    /// `next` of the page before
    cursor: Option<String>,
}

/// When a schedule came, the newest first
#[utoipa::path(get, path = "/api/v1/schedules/{schedule_id}/triggers", tag = "schedules",
    params(("schedule_id" = Id, Path), HistoryParams), responses((status = 200, body = Page<Trigger>)))]
async fn history(
    State(api): State<Api>,
    who: Who,
    PathId(id): PathId,
    Params(asked): Params<HistoryParams>,
) -> Answer<Body<Page<Trigger>>> {
    let limit = asked.limit.unwrap_or_default().0;
    let before_sequence = paging::id_place(TRIGGERS, asked.cursor.as_deref())?;
    let wanted = v1::ScheduleHistoryRequest { schedule: Some(by_id(id)), before_sequence, limit };
    let triggers: Vec<Trigger> = Show::show(api.schedules.history(who.ask(wanted)).await?.into_inner().triggers);
    Ok(Body(Page::new(triggers, limit, TRIGGERS, |trigger| trigger.sequence.to_string())))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct NextParams {
    /// Missing: 10
    #[param(minimum = 1, maximum = 1000)]
    count: Option<u32>,
}

#[derive(Debug, Serialize, ToSchema)]
struct NextTimes {
    times: Vec<Time>,
    time_zone: String,
    /// The recurrence in words
    description: String,
}

/// When a schedule comes next
#[utoipa::path(get, path = "/api/v1/schedules/{schedule_id}/next", tag = "schedules",
    params(("schedule_id" = Id, Path), NextParams), responses((status = 200, body = NextTimes)))]
async fn next_times(
    State(api): State<Api>,
    who: Who,
    PathId(id): PathId,
    Params(asked): Params<NextParams>,
) -> Answer<Body<NextTimes>> {
    if asked.count.is_some_and(|count| !(1..=1000).contains(&count)) {
        return Err(Refusal::bad_request("count", "from 1 to 1000"));
    }
    let wanted =
        v1::NextTimesRequest { schedule: Some(by_id(id)), definition: None, count: asked.count.unwrap_or_default() };
    let v1::NextTimesResponse { times, time_zone, description } =
        api.schedules.next_times(who.ask(wanted)).await?.into_inner();
    Ok(Body(NextTimes { times: Show::show(times), time_zone, description }))
}
