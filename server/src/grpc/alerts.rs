//! Who is told of what, and what could not be told.

use super::status_code;
use crate::access::Caller;
use deadpool_postgres::{Object, Pool};
use pcfarm_proto::ids::{AlertId, JobId, SubscriptionId};
use pcfarm_proto::v1::alert_service_server::AlertService;
use pcfarm_proto::v1::subscribe_request::Target;
use pcfarm_proto::v1::{
    Alert, ListAlertsRequest, ListAlertsResponse, ListSubscriptionsRequest, ListSubscriptionsResponse,
    RetryAlertRequest, SubscribeRequest, SubscribeResponse, Subscription, UnsubscribeRequest, UnsubscribeResponse,
};
use pcfarm_sql::alerts::{self, Wanted};
use pcfarm_sql::json::RawJson;
use serde_json::{Map, Value, json};
use tonic::{Request, Response, Status};

const DEFAULT_PAGE: u32 = 100;
const PAGE_LIMIT: u32 = 1000;

pub struct AlertsApi {
    pool: Pool,
}

impl AlertsApi {
    pub fn new(pool: Pool) -> AlertsApi {
        AlertsApi { pool }
    }

    /// On which the caller acts: the database's functions and views show and change what is that user's.
    async fn client(&self, caller: &Caller) -> Result<Object, Status> {
        let client = self.pool.get().await.map_err(status_code::of_pool)?;
        caller.act(&client).await?;
        Ok(client)
    }
}

#[tonic::async_trait]
impl AlertService for AlertsApi {
    async fn subscribe(&self, request: Request<SubscribeRequest>) -> Result<Response<SubscribeResponse>, Status> {
        let caller = Caller::of(&request)?;
        let asked = request.into_inner();
        let job = some_job(asked.job_id);
        let options = options(asked);
        let client = self.client(&caller).await?;
        if let Some(job) = job {
            caller.act_on(&client, job).await?;
        }
        let (id, secret) = alerts::subscribe(&client, &options).await.map_err(status_code::of)?;
        let mut made = alerts::subscriptions(&client, None, Some(id)).await.map_err(status_code::of)?;
        let subscription = made.pop().map(subscription);
        Ok(Response::new(SubscribeResponse { subscription, secret: secret.unwrap_or_default() }))
    }

    async fn list_subscriptions(
        &self,
        request: Request<ListSubscriptionsRequest>,
    ) -> Result<Response<ListSubscriptionsResponse>, Status> {
        let caller = Caller::of(&request)?;
        let job = some_job(request.into_inner().job_id);
        let found = alerts::subscriptions(&*self.client(&caller).await?, job, None).await.map_err(status_code::of)?;
        Ok(Response::new(ListSubscriptionsResponse { subscriptions: found.into_iter().map(subscription).collect() }))
    }

    async fn unsubscribe(&self, request: Request<UnsubscribeRequest>) -> Result<Response<UnsubscribeResponse>, Status> {
        let caller = Caller::of(&request)?;
        let id = SubscriptionId(request.into_inner().subscription_id);
        alerts::unsubscribe(&*self.client(&caller).await?, id).await.map_err(status_code::of)?;
        Ok(Response::new(UnsubscribeResponse {}))
    }

    async fn list_alerts(&self, request: Request<ListAlertsRequest>) -> Result<Response<ListAlertsResponse>, Status> {
        let caller = Caller::of(&request)?;
        let ListAlertsRequest { job_id, undelivered, limit } = request.into_inner();
        let limit = if limit == 0 { DEFAULT_PAGE } else { limit.min(PAGE_LIMIT) };
        let wanted = Wanted { job_id: some_job(job_id), undelivered, only: None, limit: i64::from(limit) };
        let found = alerts::alerts(&*self.client(&caller).await?, wanted).await.map_err(status_code::of)?;
        Ok(Response::new(ListAlertsResponse { alerts: found.into_iter().map(alert).collect() }))
    }

    async fn retry_alert(&self, request: Request<RetryAlertRequest>) -> Result<Response<Alert>, Status> {
        let caller = Caller::of(&request)?;
        let id = AlertId(request.into_inner().alert_id);
        let client = self.client(&caller).await?;
        alerts::retry(&client, id).await.map_err(status_code::of)?;
        let wanted = Wanted { only: Some(id), limit: 1, ..Wanted::default() };
        let mut found = alerts::alerts(&client, wanted).await.map_err(status_code::of)?;
        // Somebody may have unsubscribed meanwhile.
        found
            .pop()
            .map(|one| Response::new(alert(one)))
            .ok_or_else(|| Status::not_found(format!("there is no alert {id}")))
    }
}

fn some_job(id: i64) -> Option<JobId> {
    (id != 0).then_some(JobId(id))
}

/// As `pcfarm.subscribe` takes them.
fn options(asked: SubscribeRequest) -> RawJson {
    let SubscribeRequest { events, job_id, job_type, all_users, failed_share, target, secret, at, time_zone } = asked;
    let mut options = Map::new();
    let mut set = |name: &str, value: Option<Value>| {
        value.map(|value| options.insert(name.to_owned(), value));
    };
    let text = |text: String| (!text.is_empty()).then(|| json!(text));
    set("events", (!events.is_empty()).then(|| json!(events)));
    set("job", (job_id != 0).then(|| json!(job_id)));
    set("job_type", text(job_type));
    set("all_users", all_users.then_some(Value::Bool(true)));
    set("failed_share", failed_share.map(|share| json!(share)));
    match target {
        Some(Target::Webhook(url)) => set("webhook", Some(json!(url))),
        Some(Target::Email(address)) => set("email", Some(json!(address))),
        Some(Target::Notify(channel)) => set("notify", Some(json!(channel))),
        None => {}
    }
    set("secret", text(secret));
    set("at", text(at));
    set("time_zone", text(time_zone));
    RawJson(Value::Object(options).to_string().into())
}

fn subscription(one: alerts::Subscription) -> Subscription {
    Subscription {
        subscription_id: one.subscription_id.0,
        owner: one.owner,
        job_id: one.job_id.map_or(0, |id| id.0),
        job_type: one.job_type.unwrap_or_default(),
        all_users: one.all_users,
        events: one.events,
        failed_share: one.failed_share,
        channel: one.channel.name().to_owned(),
        target: one.target,
        digest_at: one.digest_at.unwrap_or_default(),
        time_zone: one.time_zone.unwrap_or_default(),
        next_digest_at: one.next_digest_at.map(Into::into),
        created_at: Some(one.created_at.into()),
    }
}

fn alert(one: alerts::Alert) -> Alert {
    Alert {
        alert_id: one.alert_id.0,
        subscription_id: one.subscription_id.0,
        owner: one.owner,
        channel: one.channel.name().to_owned(),
        target: one.target,
        what: one.what,
        job_id: one.job_id.map_or(0, |id| id.0),
        job_name: one.job_name.unwrap_or_default(),
        state: one.state,
        message: one.message,
        attempts: one.attempts,
        created_at: Some(one.created_at.into()),
        next_attempt_at: one.next_attempt_at.map(Into::into),
        delivered_at: one.delivered_at.map(Into::into),
        given_up_at: one.given_up_at.map(Into::into),
    }
}
