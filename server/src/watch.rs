//! Watching over connections: the server's pulse, silent workstations, checkouts revoked elsewhere or never received.
//!
//! Liveness costs one row a server: a workstation's own row is written only when it falls silent or is heard again.

use crate::dispatch;
use crate::dispatch::spread;
use crate::farm::Farm;
use crate::registrar::contest;
use crate::session::progress;
use crate::session::{Drained, Limits, Listened, Session};
use crate::traces::path;
use anyhow::Context;
use pcfarm_faults::{Bug, CrashPoint, crash_point, planted};
use pcfarm_proto::ids::{CheckoutId, WorkstationId};
use pcfarm_proto::v1::{self, server_message};
use pcfarm_recycler::pulse_limit;
use pcfarm_sql::access;
use pcfarm_sql::checkout::{self, Closing};
use pcfarm_sql::connect::Target;
use pcfarm_sql::json::RawJson;
use pcfarm_sql::pool::Kept;
use pcfarm_sql::presence;
use pcfarm_sql::submit;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};
use tokio::time::MissedTickBehavior;
use tokio_postgres::AsyncMessage;
use tonic::Status;
use tracing::{info, warn};
use uuid::Uuid;

/// How often a server says that it lives: so many times before it would be taken to have stopped.
const PULSES_A_LIMIT: u32 = 4;

/// Longer, and the pulse is tried on another connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often a server looks at its sessions' rows and checkouts without having been told to. It reads a row of each: with
/// thousands of them a look takes a while, so that after one nothing is looked at for some times as long.
const LOOK: Duration = Duration::from_secs(5);
const LOOK_PAUSE_FACTOR: u32 = 10;
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// How long an agent has to give back what it holds once its time is over.
const GIVE_BACK_WAIT: Duration = Duration::from_secs(10);

/// A deadline is looked at so long after it.
const DRAIN_MARGIN: Duration = Duration::from_millis(20);

/// Pulses until the server stops.
pub async fn pulse(farm: Arc<Farm>) {
    // A pause of this length means that the process stood still, or the database did: then nobody could have recorded a
    // word.
    let stall = pulse_limit(farm.rhythm.lease);
    progress::start_clock();
    let mut tick = tokio::time::interval(stall / PULSES_A_LIMIT);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_tick = Instant::now();
    let mut stalled = false;
    let mut listen_at = last_tick;
    // Its own: who waits for one of the pool is late.
    let mut line = Kept::new(farm.pool.clone());
    loop {
        tokio::select! {
            () = farm.stopping.cancelled() => return,
            _ = tick.tick() => {}
        }
        farm.rounds.pulse.came();
        // The monotonic clock ran on while this process was stopped: what agents said is unread, not unsaid.
        if last_tick.elapsed() > stall {
            warn!(seconds = last_tick.elapsed().as_secs(), "this server stood still: everybody gets a full lease");
            farm.sessions().iter().for_each(|session| session.excuse_silence());
            stalled = true;
        }
        last_tick = Instant::now();
        if farm.registering_for() > stall {
            warn!("more workstations connect than can be registered: everybody gets a full lease");
            stalled = true;
        }
        let began = Instant::now();
        let beat = tokio::time::timeout(PATIENCE, beat(&farm, &mut line, stalled, &mut listen_at)).await;
        match beat.unwrap_or_else(|_| Err(anyhow::anyhow!("the database does not answer"))) {
            Ok(()) => {
                stalled = false;
                farm.rounds.pulsed(Some(began));
            }
            Err(error) => {
                line.let_go();
                // A statement that was given up may still have an effect: the next pulse takes marks back from all that are heard.
                farm.sessions().iter().for_each(|session| session.distrust_mark());
                listen_at = Instant::now();
                farm.rounds.pulsed(None);
                warn!(error = format!("{error:#}"), "the pulse was not written: trying again");
            }
        }
    }
}

async fn beat(farm: &Farm, line: &mut Kept, stalled: bool, listen_at: &mut Instant) -> anyhow::Result<()> {
    let client = line.client().await.context("getting a connection")?;
    let refused = farm.refused_results.load(Ordering::Relaxed);
    let stall = pulse_limit(farm.rhythm.lease).as_secs_f64();
    let idle = spread::idle_here(farm);
    let elsewhere = presence::pulse(client, farm.server_id, stall, refused, stalled, &idle).await?;
    farm.idle_elsewhere.set(elsewhere);
    crash_point(CrashPoint::Pulsed);
    let limits = Limits::of(farm.rhythm.heartbeat, farm.rhythm.lease);
    let listened = Instant::now();
    let Heard { silent, again } = who_is_heard(|| farm.sessions(), listened, &limits, listen_at);
    if !again.is_empty() {
        let numbers: Vec<_> = again.iter().map(|session| (session.workstation_id, session.number)).collect();
        let locked = presence::mark_heard(client, &numbers).await.context("taking marks of silence back")?;
        again
            .iter()
            .filter(|session| !locked.contains(&session.workstation_id))
            .for_each(|session| session.is_unmarked());
    }
    if silent.is_empty() {
        return Ok(());
    }
    presence::mark_silent(client, &silent, false).await.context("marking silent workstations")?;
    crash_point(CrashPoint::SilenceMarked);
    // A word that came while the mark was being written may have been recorded before it.
    let is_heard = |session: &Arc<Session>| session.silence() < listened.elapsed();
    let of_mark = |(id, number, _): &(WorkstationId, i64, f64)| farm.session(*id).filter(|s| s.number == *number);
    let heard: Vec<_> = silent.iter().filter_map(of_mark).filter(is_heard).collect();
    if !heard.is_empty() {
        heard.iter().for_each(|session| session.distrust_mark());
        let numbers: Vec<_> = heard.iter().map(|session| (session.workstation_id, session.number)).collect();
        presence::mark_heard(client, &numbers).await.context("taking marks of silence back")?;
    }
    Ok(())
}

/// Sessions whose rows change.
#[derive(Default)]
struct Heard {
    /// Silent for too long, with the seconds of silence.
    silent: Vec<(WorkstationId, i64, f64)>,
    /// Marked as silent, with bytes since then.
    again: Vec<Arc<Session>>,
}

/// Asks every session whether it has been silent for too long. None is before the moment to which it moves `listen_at`: with
/// thousands of workstations it costs to ask them all.
fn who_is_heard(
    sessions: impl FnOnce() -> Vec<Arc<Session>>,
    now: Instant,
    limits: &Limits,
    listen_at: &mut Instant,
) -> Heard {
    let Heard { mut silent, mut again } = Heard::default();
    if now < *listen_at {
        return Heard { silent, again };
    }
    // Who holds nothing now may do so in a moment.
    let mut next = now + limits.holding;
    for session in sessions() {
        match session.listen(now, limits) {
            Listened::Heard { until } => next = next.min(until),
            Listened::HeardAgain { until } => {
                next = next.min(until);
                again.push(session);
            }
            Listened::Silent { age } => silent.push((session.workstation_id, session.number, age)),
        }
    }
    // All of them with every pulse: one that is marked already is not written again.
    *listen_at = if silent.is_empty() && again.is_empty() { next } else { now };
    Heard { silent, again }
}

/// Tells agents what was revoked elsewhere, drains and ends sessions whose rows say so, and takes back what never
/// arrived. Woken by notifications, with a poll behind them.
pub async fn sessions(farm: Arc<Farm>) {
    let mut tick = tokio::time::interval(LOOK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut next = None;
    loop {
        tokio::select! {
            () = farm.stopping.cancelled() => return,
            _ = tick.tick() => {}
            () = farm.look_at_sessions.notified() => {}
            () = tokio::time::sleep(next.unwrap_or(LOOK)), if next.is_some() => {}
        }
        let began = Instant::now();
        next = look(&farm).await.unwrap_or_else(|error| {
            warn!(error = format!("{error:#}"), "looking after sessions failed: trying again");
            None
        });
        let pause = (began.elapsed() * LOOK_PAUSE_FACTOR).min(LOOK_PAUSE);
        farm.stopping.run_until_cancelled(tokio::time::sleep(pause)).await;
    }
}

/// Returns when to look again, if that is before it would be anyway.
async fn look(farm: &Arc<Farm>) -> anyhow::Result<Option<Duration>> {
    let sessions = farm.sessions();
    farm.reload_job_types().await.context("reading the job types")?;
    mark_unconnected(farm, &sessions).await?;
    farm.forget_strangers();
    if sessions.is_empty() {
        return Ok(None);
    }
    let client = farm.pool.get().await.context("getting a connection")?;
    let mut owners: HashMap<CheckoutId, WorkstationId> = HashMap::new();
    for session in &sessions {
        owners.extend(session.held().into_iter().map(|id| (id, session.workstation_id)));
    }
    if !owners.is_empty() {
        let ids: Vec<CheckoutId> = owners.keys().copied().collect();
        for (id, reason) in checkout::revoked(&client, &ids).await.context("reading what was revoked")? {
            path::revoked(farm, id, &reason);
            if let Some(session) = owners.get(&id).and_then(|w| farm.session(*w)) {
                session.forget(id);
                session.revoke(id, reason);
            }
        }
    }
    look_at_credentials(&client, &sessions).await?;
    let next = look_at_rows(farm, &client, &sessions).await?;
    take_back_unreceived(farm, &client, &sessions).await?;
    Ok(next)
}

/// Workstations whose rows name this server but that are not connected to it: their end could not be written down when
/// it came, and nobody else looks after them.
async fn mark_unconnected(farm: &Farm, sessions: &[Arc<Session>]) -> anyhow::Result<()> {
    let client = farm.pool.get().await.context("getting a connection")?;
    let connected: Vec<WorkstationId> = sessions.iter().map(|s| s.workstation_id).collect();
    let grace = farm.rhythm.heartbeat * 2;
    presence::mark_unconnected(&client, farm.server_id, &connected, grace.as_secs_f64())
        .await
        .context("marking workstations that are not connected")
}

/// Cuts off workstations whose certificates are worth nothing any more, and ends connections that have outlived theirs: who
/// has renewed it connects again.
async fn look_at_credentials(client: &deadpool_postgres::Object, sessions: &[Arc<Session>]) -> anyhow::Result<()> {
    let now = SystemTime::now();
    let mut by_identity: HashMap<Uuid, Vec<&Arc<Session>>> = HashMap::new();
    for session in sessions {
        match session.credential {
            Some((_, until)) if until <= now => {
                session.end(Status::unavailable("the certificate of this connection has expired: connect again"));
            }
            Some((identity, _)) => by_identity.entry(identity).or_default().push(session),
            None => {}
        }
    }
    if by_identity.is_empty() {
        return Ok(());
    }
    let identities: Vec<Uuid> = by_identity.keys().copied().collect();
    for identity in access::revoked_credentials(client, &identities).await.context("reading revoked credentials")? {
        for session in by_identity.remove(&identity).unwrap_or_default() {
            warn!(workstation_id = %session.workstation_id, %identity, "a workstation was cut off");
            session.end(Status::unauthenticated("this workstation was cut off by an administrator"));
        }
    }
    Ok(())
}

/// Returns how long it is until the next one's time to finish is over, if that is before the next look.
async fn look_at_rows(
    farm: &Farm,
    client: &deadpool_postgres::Object,
    sessions: &[Arc<Session>],
) -> anyhow::Result<Option<Duration>> {
    let ids: Vec<WorkstationId> = sessions.iter().map(|s| s.workstation_id).collect();
    let mut known = HashSet::new();
    let mut next = f64::INFINITY;
    for row in presence::session_states(client, &ids).await.context("reading the workstations' rows")? {
        known.insert(row.workstation_id);
        let Some(session) = farm.session(row.workstation_id) else { continue };
        tell_slots(&session, &row.slots);
        tell_presence(&session, row.presence.as_ref());
        if row.session > session.number {
            session.end(Status::unavailable("the workstation has connected elsewhere"));
        } else if row.dead {
            // It lives after all: it connects again, and is told that its checkouts are gone.
            session.end(Status::unavailable("the workstation had been declared dead: connect again"));
        } else {
            if session.select(row.selection.as_ref()) {
                info!(workstation_id = %row.workstation_id, "selection changed");
                drop(farm.dispatcher.try_send(dispatch::Event::Selection));
            }
            let drained = session.set_drained(row.drain, &row.drain_reason, row.drain_left);
            // A lane that somebody has locked keeps back neither the others nor this one's next look.
            if let Err(error) = look_at_drain(farm, client, &session, &row, drained).await {
                warn!(workstation_id = %row.workstation_id, error = format!("{error:#}"), "not drained yet");
            }
            next = next.min(row.drain_left.filter(|left| *left > 0.0).unwrap_or(f64::INFINITY));
        }
    }
    for session in sessions.iter().filter(|session| !known.contains(&session.workstation_id)) {
        session.end(Status::unavailable("this workstation was forgotten by an administrator: connect again"));
    }
    // A little later: it must have passed by the database's clock.
    Ok((next < LOOK.as_secs_f64()).then(|| Duration::from_secs_f64(next) + DRAIN_MARGIN))
}

async fn look_at_drain(
    farm: &Farm,
    client: &deadpool_postgres::Object,
    session: &Session,
    row: &presence::SessionState,
    drained: Drained,
) -> anyhow::Result<()> {
    let tell = |give_back| {
        info!(workstation_id = %row.workstation_id, give_back, row.drain_reason, "draining");
        let drain = v1::Drain { reason: row.drain_reason.clone(), give_back };
        let message = v1::ServerMessage { message: Some(server_message::Message::Drain(drain)) };
        if session.out.try_send(Ok(message).into()).is_err() {
            session.end(Status::resource_exhausted("the agent does not read"));
        }
    };
    match drained {
        Drained::AsBefore => {}
        Drained::Finishes => tell(false),
        Drained::GivesBack => tell(true),
        Drained::OverSince(told) if told.elapsed() > GIVE_BACK_WAIT && session.holds() > 0 => {
            // It did not hear, or is of a version that does not know: then without its word, at no cost either. It is told
            // by the next look.
            for closed in checkout::close(&**client, &session.held(), Closing::Unreceived, &row.drain_reason).await? {
                warn!(checkout_id = %closed.checkout_id, workstation_id = %closed.workstation_id,
                    requeued = closed.requeued, "taken back: its workstation is drained, and did not give it back");
                path::revoked(farm, closed.checkout_id, &row.drain_reason);
            }
        }
        Drained::OverSince(_) => {}
        Drained::Undone => {
            info!(workstation_id = %row.workstation_id, "the drain is over");
            session.end(Status::unavailable("the drain is over: connect again"));
        }
    }
    Ok(())
}

/// Tells an agent what it is to run beside this session, if that has changed.
fn tell_slots(session: &Session, slots: &[String]) {
    if session.set_slots(slots) {
        let slots = v1::Slots { names: slots.to_vec() };
        let message = v1::ServerMessage { message: Some(server_message::Message::Slots(slots)) };
        if session.out.try_send(Ok(message).into()).is_err() {
            session.end(Status::resource_exhausted("the agent does not read"));
        }
    }
}

/// Tells an agent what it is to go by, if that has changed.
fn tell_presence(session: &Session, wanted: Option<&RawJson>) {
    if session.set_presence(wanted) {
        let presence = v1::Presence { wanted: wanted.cloned().unwrap_or_default().0 };
        let message = v1::ServerMessage { message: Some(server_message::Message::Presence(presence)) };
        if session.out.try_send(Ok(message).into()).is_err() {
            session.end(Status::resource_exhausted("the agent does not read"));
        }
    }
}

/// A server may die between a hand-out's commit and its sending: what an agent does not hold comes back at no cost.
async fn take_back_unreceived(
    farm: &Farm,
    client: &deadpool_postgres::Object,
    sessions: &[Arc<Session>],
) -> anyhow::Result<()> {
    let grace = farm.rhythm.heartbeat * 2;
    let ids: Vec<WorkstationId> = sessions.iter().map(|s| s.workstation_id).collect();
    let live = presence::live_checkouts_older_than(client, &ids, grace.as_secs_f64()).await?;
    let lost: Vec<CheckoutId> = live
        .into_iter()
        .filter(|(id, w)| farm.session(*w).is_some_and(|session| session.never_received(*id, grace)))
        .map(|(id, _)| id)
        .collect();
    if lost.is_empty() || planted(Bug::NeverTakesBack) {
        return Ok(());
    }
    for closed in checkout::close(&**client, &lost, Closing::Unreceived, "never received by its workstation").await? {
        warn!(checkout_id = %closed.checkout_id, workstation_id = %closed.workstation_id, requeued = closed.requeued,
            "a checkout was never received: requeued");
        if let Some(session) = farm.session(closed.workstation_id)
            && session.forget(closed.checkout_id)
        {
            // The agent still waits for the checkout that its credit was spent on; should it come after all, it is
            // void.
            let revoke = v1::Revocation { checkout_id: closed.checkout_id.0, reason: "never received".to_owned() };
            let revoke = server_message::Message::Revoke(v1::Revoke { revoked: vec![revoke] });
            drop(session.out.try_send(Ok(v1::ServerMessage { message: Some(revoke) }).into()));
            session.add_credit(1);
            drop(farm.dispatcher.try_send(dispatch::Event::Credit(session)));
        }
        path::revoked(farm, closed.checkout_id, "never received by its workstation");
    }
    crash_point(CrashPoint::UnreceivedTakenBack);
    Ok(())
}

/// Listens for notifications on a connection of its own, and turns them into nudges. They are hints: everything they
/// hasten is also polled for.
pub async fn listen(farm: Arc<Farm>, target: Target) {
    loop {
        tokio::select! {
            () = farm.stopping.cancelled() => return,
            outcome = listen_once(&farm, &target) => {
                if let Err(error) = outcome {
                    warn!(error = format!("{error:#}"), "not listening for notifications: trying again");
                }
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn listen_once(farm: &Arc<Farm>, target: &Target) -> anyhow::Result<()> {
    let (client, mut messages) = target.connect().await?;
    client.batch_execute("listen pcfarm").await?;
    let its_own = submit::work_of(farm.server_id);
    // What happened while nobody listened.
    nudge(
        farm,
        &HashSet::from([
            "work",
            "job_type",
            "revoked",
            "drain",
            "selection",
            "alert",
            "access",
            "schedule",
            "schedule_load",
        ]),
    )
    .await;
    while let Some(message) = messages.next().await {
        let AsyncMessage::Notification(notification) = message else { continue };
        if let Some(challenge) = presence::challenged(notification.payload()) {
            contest::challenged(farm, challenge);
            continue;
        }
        // Its own submissions come to the dispatcher by themselves.
        if notification.payload() != its_own {
            nudge(farm, &HashSet::from([notification.payload()])).await;
        }
    }
    anyhow::bail!("the connection ended")
}

async fn nudge(farm: &Farm, what: &HashSet<&str>) {
    if what.contains("job_type")
        && let Err(error) = farm.reload_job_types().await
    {
        warn!(error = format!("{error:#}"), "job types were not read");
    }
    if ["revoked", "drain", "selection", "access"].iter().any(|payload| what.contains(payload)) {
        farm.look_at_sessions.notify_one();
    }
    if what.contains("alert") {
        farm.alerts.notify_one();
    }
    if what.contains("access") {
        farm.access.forget();
    }
    if what.contains("schedule") {
        farm.ticking.wake.notify_one();
    }
    if what.contains("schedule_load") {
        farm.ticking.loads.notify_one();
    }
    if what.iter().any(|payload| !["drain", "alert", "access", "schedule", "schedule_load"].contains(payload)) {
        // Full means that the dispatcher has been told often enough.
        drop(farm.dispatcher.try_send(dispatch::Event::Work));
        farm.maybe_over.any();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_asked_before_somebody_can_be_silent() {
        let limits = Limits::of(Duration::from_secs(5), Duration::from_secs(20));
        let one = Arc::new(Session::that_waits(1, &v1::Hello::default()));
        let began = Instant::now();
        let mut listen_at = began;
        let mut asked = |seconds: u64| {
            let mut is_asked = false;
            let sessions = || {
                is_asked = true;
                vec![one.clone()]
            };
            let heard = who_is_heard(sessions, began + Duration::from_secs(seconds), &limits, &mut listen_at);
            (is_asked, heard.silent.len())
        };
        assert_eq!(asked(0), (true, 0));
        // It holds nothing, but may do so at any time.
        assert_eq!(asked(7), (false, 0));
        assert_eq!(asked(8), (true, 0));
        assert_eq!(asked(14), (false, 0));
        assert_eq!(asked(16), (true, 1));
        assert_eq!(asked(17), (true, 1), "whose mark was not written is named again");
        one.excuse_silence();
        assert!(asked(17).0);
    }
}
