//! Tells people what they asked to be told. The database writes alerts down; every server takes some of those that are due,
//! delivers them and says how it went. One that was taken and not heard of again is taken by another when its lease is
//! over: so each is delivered at least once, and receivers know one that comes twice by its id.

mod desk;
#[cfg(feature = "mail")]
pub mod mail;
#[cfg(not(feature = "mail"))]
#[path = "alerts/mail_missing.rs"]
pub mod mail;
#[cfg_attr(not(feature = "mail"), allow(dead_code, reason = "most of it is in mails"))]
mod text;
mod webhook;

use crate::farm::Farm;
use crate::outward::Outward;
use crate::traces::context::Place;
use crate::traces::{SpanKind, Traces};
use anyhow::Context;
use deadpool_postgres::{Object, Pool};
use desk::Desk;
use mail::Mailer;
use pcfarm_faults::{CrashPoint, crash_point};
use pcfarm_proto::ids::JobId;
use pcfarm_sql::alerts::{self, Channel, Claimed};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior};
use tracing::{debug, error, info, warn};
use webhook::Poster;

/// A notification wakes at once; behind it is this, which also finds what no statement brings about.
const LOOK: Duration = Duration::from_secs(2);

const FORGET: Duration = Duration::from_secs(600);

/// For one delivery, from its connection to its answer.
const DEADLINE: Duration = Duration::from_secs(10);

/// A relay may look into a mail before it takes it; who does not wait for its word sends it again and again.
const MAIL_DEADLINE: Duration = Duration::from_secs(60);

/// Longer than a delivery and its word to a slow database.
const LEASE: Duration = Duration::from_secs(120);

/// For deliveries under way when the server stops; what is not done then comes again.
const LAST_DEADLINE: Duration = Duration::from_secs(5);

const NO_MAIL: &str = "no server has --smtp-url and --mail-from, so none can send mail";

/// Why something was not delivered.
#[derive(Debug)]
enum Failure {
    /// Another time it may be.
    Again(String),
    /// There is no point in trying.
    InVain(String),
}

/// Delivers until the server stops.
pub async fn run(farm: Arc<Farm>, mailer: Option<Arc<Mailer>>, outward: Outward) {
    let (pool, traces) = (farm.pool.clone(), farm.traces.clone());
    let courier = Arc::new(Courier { pool, poster: Poster::new(outward), mailer, traces });
    let mut deliveries = Deliveries::default();
    let mut rounds = Rounds::default();
    let mut tick = tokio::time::interval(LOOK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let looks = tokio::select! {
            () = farm.stopping.cancelled() => break,
            _ = tick.tick() => true,
            () = farm.alerts.notified() => false,
            Some(ended) = deliveries.tasks.join_next_with_id() => {
                deliveries.ended(ended);
                false
            }
        };
        if looks {
            rounds.look(&courier).await;
        }
        if let Err(error) = deliveries.begin(&courier).await {
            warn!(error = format!("{error:#}"), "alerts were not taken up: trying again");
        }
    }
    let rest = async { while deliveries.tasks.join_next().await.is_some() {} };
    drop(tokio::time::timeout(LAST_DEADLINE, rest).await);
}

/// What is done now and then.
#[derive(Default)]
struct Rounds {
    looked_to: Option<JobId>,
    forgot: Option<Instant>,
}

impl Rounds {
    /// Each step by itself: what fails keeps none of the others from being done.
    async fn look(&mut self, courier: &Courier) {
        let told = |outcome: anyhow::Result<()>| {
            if let Err(error) = outcome {
                warn!(error = format!("{error:#}"), "looking for what there is to tell failed: trying again");
            }
        };
        told(self.sweep(courier).await);
        told(write_digests(courier).await);
        if courier.mailer.is_none() {
            told(explain_mail(courier).await);
        }
        if self.forgot.is_none_or(|forgot| forgot.elapsed() > FORGET) {
            self.forgot = Some(Instant::now());
            told(forget(courier).await);
        }
    }

    async fn sweep(&mut self, courier: &Courier) -> anyhow::Result<()> {
        let looked_to = self.looked_to.unwrap_or(JobId(0));
        let client = courier.client().await?;
        self.looked_to = Some(alerts::sweep(&*client, looked_to).await.context("looking at jobs")?);
        Ok(())
    }
}

async fn write_digests(courier: &Courier) -> anyhow::Result<()> {
    let digests = alerts::make_digests(&*courier.client().await?).await.context("writing digests")?;
    if digests > 0 {
        info!(digests, "digests written");
    }
    Ok(())
}

async fn explain_mail(courier: &Courier) -> anyhow::Result<()> {
    alerts::explain_mail(&*courier.client().await?, NO_MAIL).await.context("saying why mails wait")
}

async fn forget(courier: &Courier) -> anyhow::Result<()> {
    alerts::forget(&*courier.client().await?).await.context("forgetting old alerts").map(drop)
}

/// What is being delivered, and where to.
#[derive(Default)]
struct Deliveries {
    tasks: JoinSet<bool>,
    places: HashMap<Id, String>,
    desk: Desk,
}

impl Deliveries {
    /// Takes up what is due, as far as there is room.
    async fn begin(&mut self, courier: &Arc<Courier>) -> anyhow::Result<()> {
        let client = courier.client().await?;
        if let Err(error) = notify(&client).await {
            warn!(error = format!("{error:#}"), "alerts were not told on channels: trying again");
        }
        while self.desk.room() > 0 {
            let mut closed = self.desk.closed();
            if courier.mailer.is_none() {
                closed.push(Channel::Email.name().to_owned());
            }
            let claimed = alerts::claim(&*client, self.desk.room(), &closed, LEASE).await.context("taking alerts")?;
            if claimed.is_empty() {
                break;
            }
            crash_point(CrashPoint::AlertsClaimed);
            for alert in claimed {
                self.desk.begin(&alert.place);
                let place = alert.place.clone();
                let task = self.tasks.spawn(deliver(courier.clone(), alert));
                self.places.insert(task.id(), place);
            }
        }
        Ok(())
    }

    /// One that panicked is tried again when its lease is over.
    fn ended(&mut self, ended: Result<(Id, bool), JoinError>) {
        let (id, worked) = match ended {
            Ok(ended) => ended,
            Err(error) => {
                error!(error = %error, "a delivery ended before its time");
                (error.id(), false)
            }
        };
        if let Some(place) = self.places.remove(&id) {
            self.desk.ended(&place, worked);
        }
    }
}

struct Courier {
    pool: Pool,
    poster: Poster,
    mailer: Option<Arc<Mailer>>,
    traces: Traces,
}

/// Delivers one and notes how that went. False: its place does not work as it should.
async fn deliver(courier: Arc<Courier>, alert: Claimed) -> bool {
    let deadline = if alert.channel == Channel::Email { MAIL_DEADLINE } else { DEADLINE };
    let place = alert.job_id.and_then(|job| courier.traces.of_job(alert.trace_parent.as_deref(), job));
    let mut span = courier.traces.under(place, format!("alert {}", alert.channel.name())).of_kind(SpanKind::Client);
    let outcome = match tokio::time::timeout(deadline, courier.carry(&alert, span.place())).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Failure::Again(format!("no answer within {} s", deadline.as_secs()))),
    };
    span.set("pcfarm.alert.id", alert.alert_id.0)
        .set("pcfarm.alert.what", alert.what.clone())
        .set("pcfarm.attempt", i64::from(alert.attempts));
    if let Err(Failure::Again(message) | Failure::InVain(message)) = &outcome {
        span.failed(message.clone());
    }
    drop(span);
    crash_point(CrashPoint::AlertDelivered);
    if let Err(error) = courier.note(&alert, &outcome).await {
        warn!(alert_id = %alert.alert_id, error = format!("{error:#}"), "what came of an alert was not noted: it comes again");
    }
    !matches!(outcome, Err(Failure::Again(_)))
}

async fn notify(client: &Object) -> anyhow::Result<()> {
    while alerts::notify(&**client).await.context("telling on channels")? > 0 {}
    Ok(())
}

impl Courier {
    async fn client(&self) -> anyhow::Result<Object> {
        self.pool.get().await.context("getting a connection")
    }

    /// `place`: what the receiver's own trace may go on from.
    async fn carry(&self, alert: &Claimed, place: Option<Place>) -> Result<(), Failure> {
        match (alert.channel, &self.mailer, &alert.secret) {
            (Channel::Webhook, _, Some(secret)) => self.poster.post(alert, secret, place).await,
            (Channel::Email, Some(mailer), _) => mailer.send(alert).await,
            (Channel::Email, None, _) => Err(Failure::Again(NO_MAIL.to_owned())),
            (Channel::Webhook, _, None) | (Channel::Notify, _, _) => {
                Err(Failure::InVain("this server does not know how".to_owned()))
            }
        }
    }

    async fn note(&self, alert: &Claimed, outcome: &Result<(), Failure>) -> anyhow::Result<()> {
        let client = self.client().await?;
        let (alert_id, attempts) = (alert.alert_id, alert.attempts);
        match outcome {
            Ok(()) => {
                debug!(%alert_id, attempts, "alert delivered");
                alerts::delivered(&*client, alert_id).await?;
            }
            Err(Failure::Again(message)) => {
                warn!(%alert_id, attempts, message, "an alert was not delivered: trying again");
                alerts::not_delivered(&*client, alert, message, false).await?;
            }
            Err(Failure::InVain(message)) => {
                error!(%alert_id, attempts, message, "an alert cannot be delivered");
                alerts::not_delivered(&*client, alert, message, true).await?;
            }
        }
        Ok(())
    }
}
