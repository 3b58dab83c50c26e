//! Who is told of what.

use super::Api;
use super::extract::{Document, Id, Limit, Params, PathId, Who};
use super::paging::Page;
use super::problem_details::{Answer, Refusal};
use super::shown::{Alert, Show, Subscription};
use axum::Json as Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use pcfarm_proto::v1;
use pcfarm_proto::v1::alert_service_server::AlertService;
use pcfarm_proto::v1::subscribe_request::Target;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(subscriptions, subscribe))
        .routes(routes!(unsubscribe))
        .routes(routes!(list))
        .routes(routes!(retry))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SubscriptionParams {
    #[param(value_type = Option<String>)]
    job_id: Option<Id>,
}

/// Subscriptions, the newest first, at most 1000
#[utoipa::path(get, path = "/api/v1/subscriptions", tag = "alerts", params(SubscriptionParams),
    responses((status = 200, body = Page<Subscription>)))]
async fn subscriptions(
    State(api): State<Api>,
    who: Who,
    Params(asked): Params<SubscriptionParams>,
) -> Answer<Body<Page<Subscription>>> {
    let asked = v1::ListSubscriptionsRequest { job_id: asked.job_id.map_or(0, |id| id.0) };
    let found = api.alerts.list_subscriptions(who.ask(asked)).await?.into_inner().subscriptions;
    Ok(Body(Page::whole(Show::show(found))))
}

/// Whom to tell of what: one of webhook, email and notify.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewSubscription {
    /// ended, failed, late, failures, digest; none: ended
    #[serde(default)]
    events: Vec<String>,
    /// Of this job alone
    job_id: Option<Id>,
    /// Of jobs of this type
    job_type: Option<String>,
    #[serde(default)]
    all_users: bool,
    #[schema(minimum = 0.0, maximum = 1.0)]
    failed_share: Option<f64>,
    /// A URL that is posted to
    webhook: Option<String>,
    email: Option<String>,
    /// A channel of PostgreSQL's LISTEN
    notify: Option<String>,
    /// Of a webhook: whsec_ and base64; missing: one is made
    secret: Option<String>,
    /// Of a digest: a time of day such as 07:00
    at: Option<String>,
    time_zone: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
struct Subscribed {
    subscription: Subscription,
    /// What a webhook's receiver checks signatures with. It is not shown again
    secret: Option<String>,
}

/// Subscribe
#[utoipa::path(post, path = "/api/v1/subscriptions", tag = "alerts", request_body = NewSubscription,
    responses((status = 201, body = Subscribed)))]
async fn subscribe(State(api): State<Api>, who: Who, Document(new): Document<NewSubscription>) -> Answer<Response> {
    let target = match (new.webhook, new.email, new.notify) {
        (Some(url), None, None) => Target::Webhook(url),
        (None, Some(address), None) => Target::Email(address),
        (None, None, Some(channel)) => Target::Notify(channel),
        _ => return Err(Refusal::unprocessable("webhook", "name one of webhook, email and notify")),
    };
    let asked = v1::SubscribeRequest {
        events: new.events,
        job_id: new.job_id.map_or(0, |id| id.0),
        job_type: new.job_type.unwrap_or_default(),
        all_users: new.all_users,
        failed_share: new.failed_share,
        target: Some(target),
        secret: new.secret.unwrap_or_default(),
        at: new.at.unwrap_or_default(),
        time_zone: new.time_zone.unwrap_or_default(),
    };
    let made = api.alerts.subscribe(who.ask(asked)).await?.into_inner();
    let subscription = made.subscription.ok_or_else(|| Refusal::new(StatusCode::CONFLICT, "it was removed already"))?;
    let made = Subscribed { subscription: Show::show(subscription), secret: Show::show(made.secret) };
    Ok((StatusCode::CREATED, Body(made)).into_response())
}

/// Tell no more
#[utoipa::path(delete, path = "/api/v1/subscriptions/{subscription_id}", tag = "alerts",
    params(("subscription_id" = Id, Path)), responses((status = 204)))]
async fn unsubscribe(State(api): State<Api>, who: Who, PathId(subscription_id): PathId) -> Answer<StatusCode> {
    api.alerts.unsubscribe(who.ask(v1::UnsubscribeRequest { subscription_id })).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    #[param(value_type = Option<String>)]
    job_id: Option<Id>,
    /// Those alone that wait or were given up
    #[serde(default)]
    undelivered: bool,
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<Limit>,
}

/// Alerts, the newest first
#[utoipa::path(get, path = "/api/v1/alerts", tag = "alerts", params(ListParams),
    responses((status = 200, body = Page<Alert>)))]
async fn list(State(api): State<Api>, who: Who, Params(asked): Params<ListParams>) -> Answer<Body<Page<Alert>>> {
    let asked = v1::ListAlertsRequest {
        job_id: asked.job_id.map_or(0, |id| id.0),
        undelivered: asked.undelivered,
        limit: asked.limit.unwrap_or_default().0,
    };
    let items = Show::show(api.alerts.list_alerts(who.ask(asked)).await?.into_inner().alerts);
    Ok(Body(Page { items, next: None, total: None }))
}

/// Try an alert that was not delivered again
#[utoipa::path(post, path = "/api/v1/alerts/{alert_id}/retry", tag = "alerts", params(("alert_id" = Id, Path)),
    responses((status = 200, body = Alert)))]
async fn retry(State(api): State<Api>, who: Who, PathId(alert_id): PathId) -> Answer<Body<Alert>> {
    let alert = api.alerts.retry_alert(who.ask(v1::RetryAlertRequest { alert_id })).await?.into_inner();
    Ok(Body(Alert::show(alert)))
}
