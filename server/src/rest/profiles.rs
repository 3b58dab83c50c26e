//! Profiles, and the signals that they ask for.

use super::Api;
use super::extract::{Document, Id, Params, PathId, PathName, SomeVersion, Who};
use super::jobs::some;
use super::paging::Page;
use super::problem_details::{Answer, Refusal};
use super::shown::{Profile, Show, Signal, Time, tagged};
use axum::Json as Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use pcfarm_proto::v1;
use pcfarm_proto::v1::queue_service_server::QueueService;
use serde::Deserialize;
use std::collections::HashSet;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(show, update, remove))
        .routes(routes!(signals))
        .routes(routes!(set_signal, forget_signal))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    job_type: Option<String>,
    /// Which of them hold then; missing: now
    at: Option<Time>,
}

/// Entries of profiles
///
/// Those of a job type the most specific first.
#[utoipa::path(get, path = "/api/v1/profiles", tag = "profiles", params(ListParams),
    responses((status = 200, body = Page<Profile>)))]
async fn list(State(api): State<Api>, who: Who, Params(asked): Params<ListParams>) -> Answer<Body<Page<Profile>>> {
    let at = asked.at.and_then(|time| time.stamp());
    Ok(Body(Page::whole(Show::show(all(&api, &who, asked.job_type.unwrap_or_default(), at).await?))))
}

async fn all(api: &Api, who: &Who, job_type: String, at: Option<prost_types::Timestamp>) -> Answer<Vec<v1::Profile>> {
    let asked = v1::ListProfilesRequest { job_type, at };
    Ok(api.queue.list_profiles(who.ask(asked)).await?.into_inner().profiles)
}

async fn one(api: &Api, who: &Who, id: i64) -> Answer<v1::Profile> {
    let found = all(api, who, String::new(), None).await?.into_iter().find(|profile| profile.profile_id == id);
    found.ok_or_else(|| Refusal::not_found(format!("there is no entry {id} of a profile")))
}

/// One entry
#[utoipa::path(get, path = "/api/v1/profiles/{profile_id}", tag = "profiles", params(("profile_id" = Id, Path)),
    responses((status = 200, body = Profile, headers(("ETag" = String)))))]
async fn show(State(api): State<Api>, who: Who, PathId(id): PathId) -> Answer<Response> {
    one(&api, &who, id).await.map(shown)
}

fn shown(profile: v1::Profile) -> Response {
    let version = profile.version.clone();
    tagged(Profile::show(profile), &version)
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewCondition {
    signal: String,
    at_least: Option<f64>,
    below: Option<f64>,
}

/// What is missing is as in a week without limits, or stays.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ProfileEntry {
    /// Of a new entry
    job_type: Option<String>,
    /// Days such as `sat-wed` or `mon,tue`
    weekdays: Option<String>,
    /// A time of day such as 07:00
    from: Option<String>,
    to: Option<String>,
    time_zone: Option<String>,
    #[serde(default, deserialize_with = "some")]
    #[schema(value_type = Option<i64>, minimum = 0)]
    problems_per_hour: Option<Option<i64>>,
    #[serde(default, deserialize_with = "some")]
    #[schema(value_type = Option<i32>, minimum = 0)]
    problems_per_checkout: Option<Option<i32>>,
    #[serde(default, deserialize_with = "some")]
    #[schema(value_type = Option<i32>)]
    priority: Option<Option<i32>>,
    /// All of them; null: none
    #[serde(default, deserialize_with = "some")]
    #[schema(value_type = Option<Vec<NewCondition>>)]
    when: Option<Option<Vec<NewCondition>>>,
}

impl ProfileEntry {
    fn request(self, profile_id: i64, job_type: String, version: String) -> v1::SetProfileRequest {
        let none = |when: &Option<Vec<NewCondition>>| when.as_ref().is_none_or(Vec::is_empty);
        let reset = [
            ("problems_per_hour", matches!(self.problems_per_hour, Some(None))),
            ("problems_per_checkout", matches!(self.problems_per_checkout, Some(None))),
            ("priority", matches!(self.priority, Some(None))),
            ("when", self.when.as_ref().is_some_and(none)),
        ];
        let condition =
            |one: NewCondition| v1::Condition { signal: one.signal, at_least: one.at_least, below: one.below };
        v1::SetProfileRequest {
            profile_id,
            job_type,
            weekdays: self.weekdays,
            from: self.from,
            to: self.to,
            time_zone: self.time_zone,
            problems_per_hour: self.problems_per_hour.flatten(),
            problems_per_checkout: self.problems_per_checkout.flatten(),
            priority: self.priority.flatten(),
            when: self.when.flatten().unwrap_or_default().into_iter().map(condition).collect(),
            reset: reset.into_iter().filter(|(_, reset)| *reset).map(|(name, _)| name.to_owned()).collect(),
            version,
        }
    }
}

/// Make an entry
#[utoipa::path(post, path = "/api/v1/profiles", tag = "profiles", request_body = ProfileEntry,
    responses((status = 201, body = Profile, headers(("Location" = String)))))]
async fn create(State(api): State<Api>, who: Who, Document(mut entry): Document<ProfileEntry>) -> Answer<Response> {
    let job_type = entry.job_type.take();
    let job_type = job_type.ok_or_else(|| Refusal::unprocessable("job_type", "of which job type is it?"))?;
    let known = all(&api, &who, job_type.clone(), None).await?;
    let known: HashSet<i64> = known.into_iter().map(|profile| profile.profile_id).collect();
    let found = api.queue.set_profile(who.ask(entry.request(0, job_type, String::new()))).await?.into_inner().profiles;
    // The newest of those that were not there.
    let made = found.into_iter().filter(|one| !known.contains(&one.profile_id)).max_by_key(|one| one.profile_id);
    let made = made.ok_or_else(|| Refusal::new(StatusCode::CONFLICT, "somebody has removed it already"))?;
    let location = format!("/api/v1/profiles/{}", made.profile_id);
    Ok((StatusCode::CREATED, [(LOCATION, location)], shown(made)).into_response())
}

/// Change an entry
#[utoipa::path(patch, path = "/api/v1/profiles/{profile_id}", tag = "profiles",
    params(("profile_id" = Id, Path), ("If-Match" = Option<String>, Header, description = "The ETag of what was read")),
    request_body = ProfileEntry, responses((status = 200, body = Profile)))]
async fn update(
    State(api): State<Api>,
    who: Who,
    PathId(id): PathId,
    SomeVersion(version): SomeVersion,
    Document(mut entry): Document<ProfileEntry>,
) -> Answer<Response> {
    let is = one(&api, &who, id).await?.job_type;
    if entry.job_type.take().is_some_and(|wanted| wanted != is) {
        return Err(Refusal::unprocessable("job_type", "an entry stays with its job type: make another one"));
    }
    api.queue.set_profile(who.ask(entry.request(id, is, version))).await?;
    one(&api, &who, id).await.map(shown)
}

/// Remove an entry
#[utoipa::path(delete, path = "/api/v1/profiles/{profile_id}", tag = "profiles",
    params(("profile_id" = Id, Path), ("If-Match" = Option<String>, Header, description = "The ETag of what was read")),
    responses((status = 204)))]
async fn remove(
    State(api): State<Api>,
    who: Who,
    PathId(profile_id): PathId,
    SomeVersion(version): SomeVersion,
) -> Answer<StatusCode> {
    api.queue.delete_profile(who.ask(v1::DeleteProfileRequest { profile_id, version })).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Signals that profiles may ask for
#[utoipa::path(get, path = "/api/v1/signals", tag = "profiles", responses((status = 200, body = Page<Signal>)))]
async fn signals(State(api): State<Api>, who: Who) -> Answer<Body<Page<Signal>>> {
    let found = api.queue.list_signals(who.ask(v1::ListSignalsRequest {})).await?.into_inner().signals;
    Ok(Body(Page::whole(Show::show(found))))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SignalValue {
    value: f64,
    /// Missing: five minutes
    #[schema(exclusive_minimum = 0.0)]
    holds_for_seconds: Option<f64>,
}

/// Say what a signal is now
#[utoipa::path(put, path = "/api/v1/signals/{name}", tag = "profiles", params(("name" = String, Path)),
    request_body = SignalValue, responses((status = 200, body = Signal)))]
async fn set_signal(
    State(api): State<Api>,
    who: Who,
    PathName(name): PathName,
    Document(said): Document<SignalValue>,
) -> Answer<Body<Signal>> {
    let SignalValue { value, holds_for_seconds } = said;
    let asked = v1::SetSignalRequest { name: name.clone(), value: Some(value), holds_for_seconds };
    let found = api.queue.set_signal(who.ask(asked)).await?.into_inner().signals;
    let found = found.into_iter().find(|signal| signal.name == name);
    found.map(|signal| Body(Signal::show(signal))).ok_or_else(|| Refusal::not_found("somebody has removed it already"))
}

/// Forget a signal
#[utoipa::path(delete, path = "/api/v1/signals/{name}", tag = "profiles", params(("name" = String, Path)),
    responses((status = 204)))]
async fn forget_signal(State(api): State<Api>, who: Who, PathName(name): PathName) -> Answer<StatusCode> {
    let asked = v1::SetSignalRequest { name, value: None, holds_for_seconds: None };
    api.queue.set_signal(who.ask(asked)).await?;
    Ok(StatusCode::NO_CONTENT)
}
