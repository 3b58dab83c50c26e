//! One batch of deliveries: stored, acknowledged, and what stands in the way of it found out.

use super::aside::{Tried, Trouble};
use super::batch::Batch;
use super::{AboutCheckouts, Delivered, store};
use crate::dispatch;
use crate::farm::{Farm, Held};
use crate::members::{Listed, Members};
use crate::session::Judged;
use crate::traces::path::{self, AcceptCall};
use anyhow::Context;
use deadpool_postgres::ClientWrapper;
use pcfarm_faults::{Bug, CrashPoint, crash_point, planted};
use pcfarm_proto::ids::CheckoutId;
use pcfarm_proto::v1;
use pcfarm_proto::v1::problem_result::Outcome;
use pcfarm_sql::checkout::{self, Closing, HeldProblem, Verdict, VerdictKind};
use pcfarm_sql::job_types::JobType;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio_postgres::error::SqlState;
use tracing::{debug, error, info, warn};

/// Pauses between tries while the database does not answer.
const RETRY: [Duration; 4] =
    [Duration::from_millis(50), Duration::from_millis(200), Duration::from_millis(500), Duration::from_secs(1)];

/// Tries of a delivery that the database refuses before it is put aside.
const TRIES_IN_LINE: usize = 3;

/// What has become of what was tried aside.
pub(super) enum AsideOutcome {
    /// Some of its results.
    Stored,
    /// It is answered, and that says nothing of others.
    Settled,
    /// It is to be tried again.
    Failed(Delivered),
}

/// A delivery that does not hold up a line any longer.
pub(super) struct PutAside {
    pub delivered: Delivered,
    pub trouble: Option<Trouble>,
    /// Another one has met the same trouble, and this one was not tried.
    pub untried: bool,
}

/// Stores and acknowledges. Goes on trying while the database is away; agents keep what is not acknowledged, so giving
/// up, when the server stops, loses nothing. `aside`: what the database refuses, and others need not wait for.
pub(super) async fn accept_all(farm: &Arc<Farm>, deliveries: Vec<Delivered>, aside: &mut Vec<PutAside>) {
    let mut deliveries = leave_out(farm, deliveries, aside).await;
    if deliveries.is_empty() {
        return;
    }
    let mut tries = 0;
    crash_point(CrashPoint::ResultsCame);
    if planted(Bug::AcknowledgesBeforeCommit) {
        deliveries.iter().for_each(acknowledge_unstored);
        tokio::time::sleep(RETRY[1]).await;
    }
    loop {
        let began = Instant::now();
        match try_accept_all(farm, &deliveries, Place::Line).await {
            Ok(verdicts) => {
                acknowledge(farm, deliveries, &verdicts, began.elapsed()).await;
                return crash_point(CrashPoint::ResultsAcknowledged);
            }
            Err(error) if is_outdated(&error) && tries < TRIES_IN_LINE => {
                debug!(error = format!("{error:#}"), "the job types have changed");
                if let Err(error) = farm.reload_job_types().await {
                    warn!(error = format!("{error:#}"), "job types were not read");
                }
                tries += 1;
            }
            Err(error) if is_refusal(&error) && deliveries.len() > 1 => {
                // One of them is at fault, and the others need not wait for it.
                for delivered in deliveries {
                    Box::pin(accept_all(farm, vec![delivered], aside)).await;
                }
                return;
            }
            Err(error)
                if is_refusal(&error)
                    && (tries >= TRIES_IN_LINE || is_locked(&error) || is_slow(&error))
                    && !farm.troubles.is_full() =>
            {
                let delivered = deliveries.pop().expect("a delivery that failed");
                warn!(error = format!("{error:#}"), workstation_id = %delivered.session.workstation_id,
                    "a delivery that cannot be stored is put aside");
                let trouble = trouble_of(farm, &delivered, &error);
                return aside.push(PutAside { delivered, trouble, untried: false });
            }
            Err(error) => {
                warn!(error = format!("{error:#}"), tries, "results were not stored: trying again");
                if farm.stopping.is_cancelled() && tries > RETRY.len() {
                    return;
                }
                tokio::time::sleep(RETRY[tries.min(RETRY.len() - 1)]).await;
                tries += 1;
            }
        }
    }
}

/// Leaves out what has to do with trouble that others have met: it came before that was known, or again, to be recalled first.
async fn leave_out(farm: &Arc<Farm>, deliveries: Vec<Delivered>, aside: &mut Vec<PutAside>) -> Vec<Delivered> {
    let known = farm.troubles.now();
    if (known.is_empty() && aside.is_empty()) || farm.troubles.is_full() {
        return deliveries;
    }
    if let Err(error) = recall_unknown(farm, &deliveries).await {
        debug!(error = format!("{error:#}"), "what was handed out is not known yet");
    }
    let mut left = Vec::new();
    for delivered in deliveries {
        let met = |trouble: &Trouble| aside.iter().any(|put| put.trouble.as_ref() == Some(trouble));
        match troubles_of(farm, &delivered).into_iter().find(|trouble| known.contains(trouble) || met(trouble)) {
            Some(trouble) => aside.push(PutAside { delivered, trouble: Some(trouble), untried: true }),
            None => left.push(delivered),
        }
    }
    left
}

/// Tries a delivery that is aside, without holding up others. Only of one that has failed by itself is it looked for what it is:
/// that may take many minutes.
pub(super) async fn accept_aside(farm: &Arc<Farm>, delivered: Delivered, tried: &Tried) -> AsideOutcome {
    let place = match tried {
        Tried::Waiting(_) => Place::Line,
        Tried::Alone => Place::Aside,
    };
    // For a failure nothing is written back.
    let solves = |results: &v1::CheckoutResults| {
        results.results.iter().any(|result| matches!(result.outcome, Some(Outcome::Solution(_))))
    };
    let solves = delivered.delivery.checkouts.iter().any(solves);
    let alone = [delivered];
    let began = Instant::now();
    match try_accept_all(farm, &alone, place).await {
        Ok(verdicts) => {
            let is_stored = |verdict: &Verdict| verdict.kind == VerdictKind::Accepted && verdict.accepted > 0;
            let is_stored = solves && verdicts.values().any(is_stored);
            acknowledge(farm, alone.into(), &verdicts, began.elapsed()).await;
            if is_stored { AsideOutcome::Stored } else { AsideOutcome::Settled }
        }
        Err(error) => {
            warn!(error = format!("{error:#}"), "a delivery cannot be stored: trying again");
            if is_outdated(&error)
                && let Err(error) = farm.reload_job_types().await
            {
                warn!(error = format!("{error:#}"), "job types were not read");
            }
            let [delivered] = alone;
            AsideOutcome::Failed(delivered)
        }
    }
}

/// Where deliveries are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Others wait: what takes too long is put aside.
    Line,
    /// What it is that takes too long is looked for.
    Aside,
}

/// What a delivery may have to do with.
pub(super) fn troubles_of(farm: &Farm, delivered: &Delivered) -> Vec<Trouble> {
    let held = delivered.checkouts().filter_map(|id| farm.recall(id));
    held.flat_map(|held| [Trouble::JobType(held.job_type.as_str().into()), Trouble::Job(held.job_id)]).collect()
}

/// What others that fail like this one have to do with as well, where that can be told: somebody's lock or statement is in the
/// way, and all of it is of one job, or job type.
fn trouble_of(farm: &Farm, delivered: &Delivered, error: &anyhow::Error) -> Option<Trouble> {
    if !is_locked(error) && !is_slow(error) {
        return None;
    }
    let held: Vec<Arc<Held>> = delivered.checkouts().filter_map(|id| farm.recall(id)).collect();
    let first = held.first()?;
    let writes_back = farm.job_type(&first.job_type).is_some_and(|job_type| job_type.writes_back);
    if is_slow(error) && writes_back {
        let is_of_one = held.iter().all(|held| held.job_type == first.job_type);
        return is_of_one.then(|| Trouble::JobType(first.job_type.as_str().into()));
    }
    held.iter().all(|held| held.job_id == first.job_id).then_some(Trouble::Job(first.job_id))
}

/// The database has answered, and the answer was no: others may fare better. When it is away, shutting down, or out of
/// disk or memory, nobody does.
fn is_refusal(error: &anyhow::Error) -> bool {
    state_of(error).is_some_and(|code| {
        *code == SqlState::QUERY_CANCELED || !matches!(&code.code()[..2], "08" | "53" | "57" | "58")
    })
}

/// Somebody's transaction is in its way, and has been for as long as locks are waited for: others need not wait as well.
fn is_locked(error: &anyhow::Error) -> bool {
    state_of(error) == Some(&SqlState::LOCK_NOT_AVAILABLE)
}

/// It takes longer than a statement may.
fn is_slow(error: &anyhow::Error) -> bool {
    state_of(error) == Some(&SqlState::QUERY_CANCELED)
}

/// The server's copy of a job type is older than the database's.
fn is_outdated(error: &anyhow::Error) -> bool {
    state_of(error) == Some(&SqlState::T_R_SERIALIZATION_FAILURE)
}

/// What the database answered.
fn state_of(error: &anyhow::Error) -> Option<&SqlState> {
    error.chain().find_map(|cause| cause.downcast_ref::<tokio_postgres::Error>()?.code())
}

/// By checkout and token: of two deliveries that name one checkout, one may be of another database's.
type Verdicts = HashMap<(CheckoutId, i64), Verdict>;

async fn try_accept_all(farm: &Arc<Farm>, deliveries: &[Delivered], place: Place) -> anyhow::Result<Verdicts> {
    recall_unknown(farm, deliveries).await?;
    let mut verdicts = Verdicts::new();
    // One job type per transaction: its write-back is in it.
    let mut batches: HashMap<String, (Arc<JobType>, Batch)> = HashMap::new();
    for results in deliveries.iter().flat_map(|d| &d.delivery.checkouts) {
        let checkout_id = CheckoutId(results.checkout_id);
        let fits = |held: &Arc<Held>| held.token == results.token.cast_signed() || planted(Bug::AcceptsAnyToken);
        let Some(held) = farm.recall(checkout_id).filter(fits) else {
            verdicts.insert((checkout_id, results.token.cast_signed()), unknown(checkout_id, results.results.len()));
            continue;
        };
        if !batches.contains_key(&held.job_type) {
            if farm.job_type(&held.job_type).is_none() {
                farm.reload_job_types().await?;
            }
            let job_type = farm.job_type(&held.job_type).context("the checkout's job type is gone")?;
            batches.insert(held.job_type.clone(), (job_type, Batch::default()));
        }
        let (job_type, batch) = batches.get_mut(&held.job_type).expect("just put there");
        batch.add(checkout_id, &held, results, job_type.writes_back);
    }
    for (job_type, mut batch) in batches.into_values() {
        let mut accepted = store::store(farm, &job_type, &mut batch, place).await?;
        crash_point(CrashPoint::ResultsCommitted);
        for verdict in &mut accepted {
            let strangers = batch.refused(verdict.checkout_id);
            if strangers > 0 {
                error!(checkout_id = %verdict.checkout_id, refused = strangers, "results for problems of another checkout");
                farm.refused_results.fetch_add(i64::from(strangers), Ordering::Relaxed);
                verdict.refused += strangers;
            }
        }
        take_back_returned(farm, &batch, &accepted).await?;
        finish(farm, &batch, &mut accepted).await?;
        verdicts.extend(accepted.into_iter().map(|v| ((v.checkout_id, batch.token(v.checkout_id)), v)));
    }
    Ok(verdicts)
}

fn unknown(checkout_id: CheckoutId, results: usize) -> Verdict {
    Verdict {
        checkout_id,
        kind: VerdictKind::Unknown,
        reason: "no such checkout, or not this token".to_owned(),
        accepted: 0,
        refused: i32::try_from(results).unwrap_or(i32::MAX),
        closed: false,
    }
}

/// Reads what other servers handed out, or this one before it was restarted; and keys that a write-back wants which is
/// younger than the checkout.
async fn recall_unknown(farm: &Farm, deliveries: &[Delivered]) -> anyhow::Result<()> {
    // Another token: ids are given again after a restore or a failover.
    let is_known = |results: &&v1::CheckoutResults| {
        farm.recall(CheckoutId(results.checkout_id)).is_some_and(|held| {
            let has_keys =
                held.members.has_keys() || !farm.job_type(&held.job_type).is_some_and(|job_type| job_type.writes_back);
            held.token == results.token.cast_signed() && has_keys
        })
    };
    let mut ids: Vec<CheckoutId> = deliveries
        .iter()
        .flat_map(|d| &d.delivery.checkouts)
        .filter(|results| !is_known(results))
        .map(|results| CheckoutId(results.checkout_id))
        .collect();
    if ids.is_empty() {
        return Ok(());
    }
    ids.sort_unstable();
    ids.dedup();
    let client = farm.pool.get().await?;
    let facts = checkout::facts(&client, &ids).await?;
    let mut members: HashMap<CheckoutId, Vec<(Listed, String)>> = HashMap::new();
    for problem in checkout::held_problems(&client, &ids).await? {
        let HeldProblem { checkout_id, problem_id, attempts, home_lane, home_order, key } = problem;
        let listed = Listed { problem_id, attempts, home_lane, home_order };
        members.entry(checkout_id).or_default().push((listed, key));
    }
    for fact in facts {
        let held = Held {
            token: fact.token,
            job_id: fact.job_id,
            job_type: fact.job_type,
            workstation_id: fact.workstation_id,
            trace: farm
                .traces
                .of_checkout(fact.trace_parent.as_deref(), fact.job_id, fact.token, || fact.checked_out_at),
            members: Members::listed(members.remove(&fact.checkout_id).unwrap_or_default()),
        };
        farm.remember(fact.checkout_id, held);
    }
    Ok(())
}

/// Puts problems back into the queue that agents return unbegun while they go on with the others of a checkout. A repetition
/// has no effect: problems that the checkout does not hold are passed over.
async fn take_back_returned(farm: &Farm, batch: &Batch, verdicts: &[Verdict]) -> anyhow::Result<()> {
    let live = verdicts.iter().filter(|verdict| verdict.kind == VerdictKind::Accepted && !verdict.closed);
    let returned: Vec<_> = live.filter_map(|verdict| Some((verdict, batch.returned(verdict.checkout_id)?))).collect();
    if returned.is_empty() {
        return Ok(());
    }
    let client = farm.pool.get().await?;
    for (verdict, (token, problems, why)) in returned {
        let requeued = checkout::give_back(&*client, verdict.checkout_id, token, problems, why).await?;
        debug!(checkout_id = %verdict.checkout_id, requeued, why, "problems handed back unbegun");
        crash_point(CrashPoint::ProblemsHandedBack);
    }
    Ok(())
}

/// Closes the checkouts whose agents are done with them but which have not got a result for every problem.
async fn finish(farm: &Farm, batch: &Batch, verdicts: &mut [Verdict]) -> anyhow::Result<()> {
    let mut by_reason: BTreeMap<&str, Vec<&mut Verdict>> = BTreeMap::new();
    for verdict in verdicts {
        let is_open = verdict.kind == VerdictKind::Accepted || planted(Bug::ClosesWhatIsRevoked);
        if is_open
            && !verdict.closed
            && let Some(reason) = batch.finished(verdict.checkout_id)
        {
            by_reason.entry(reason).or_default().push(verdict);
        }
    }
    if by_reason.is_empty() {
        return Ok(());
    }
    let client = farm.pool.get().await?;
    for (reason, verdicts) in by_reason {
        let ids: Vec<CheckoutId> = verdicts.iter().map(|verdict| verdict.checkout_id).collect();
        if ids.len() > 1 && close(&client, &ids, reason).await.is_ok() {
            verdicts.into_iter().for_each(|verdict| verdict.closed = true);
            continue;
        }
        // Somebody is in the way of one of them: those that come before it are closed without it.
        for verdict in verdicts {
            close(&client, &[verdict.checkout_id], reason).await?;
            verdict.closed = true;
        }
    }
    Ok(())
}

async fn close(client: &ClientWrapper, ids: &[CheckoutId], reason: &str) -> anyhow::Result<()> {
    for closed in checkout::close(client, ids, Closing::Finished, reason).await? {
        debug!(checkout_id = %closed.checkout_id, job_id = %closed.job_id, requeued = closed.requeued,
            failed = closed.failed, reason, "checkout handed back");
    }
    crash_point(CrashPoint::CheckoutHandedBack);
    Ok(())
}

fn acknowledge_unstored(delivered: &Delivered) {
    let accepted = |results: &v1::CheckoutResults| v1::CheckoutVerdict {
        checkout_id: results.checkout_id,
        verdict: v1::Verdict::Accepted.into(),
        ..v1::CheckoutVerdict::default()
    };
    let Delivered { session, delivery, .. } = delivered;
    let verdicts = delivery.checkouts.iter().map(accepted).collect();
    let ack = v1::DeliveryAck { delivery_id: delivery.delivery_id, verdicts, took: None };
    let message = v1::ServerMessage { message: Some(v1::server_message::Message::DeliveryAck(ack)) };
    drop(session.out.try_send(Ok(message).into()));
}

/// Tells agents what became of their deliveries, which the database took so long for, and forgets what is over.
async fn acknowledge(farm: &Arc<Farm>, deliveries: Vec<Delivered>, verdicts: &Verdicts, database: Duration) {
    let call = farm.traces.are_on().then(|| {
        let results = deliveries.iter().flat_map(|delivered| &delivered.delivery.checkouts);
        AcceptCall { database, traced: path::traced(farm, results) }
    });
    // Several deliveries of a checkout share its verdict: the checkout ends with the last of them.
    let mut parts: HashMap<(CheckoutId, i64), usize> = HashMap::new();
    for results in deliveries.iter().flat_map(|delivered| &delivered.delivery.checkouts) {
        *parts.entry((CheckoutId(results.checkout_id), results.token.cast_signed())).or_default() += 1;
    }
    for Delivered { session, delivery, from_agent, came, arrived, .. } in deliveries {
        let mut answers = Vec::new();
        for results in &delivery.checkouts {
            let id = CheckoutId(results.checkout_id);
            let key = (id, results.token.cast_signed());
            let Some(verdict) = verdicts.get(&key) else { continue };
            let left = parts.entry(key).and_modify(|left| *left -= 1).or_default();
            let is_last = *left == 0;
            let held = farm.recall(id);
            // Its id may have been given anew, after a crash of PostgreSQL: then another is known by it.
            let is_another = held.as_ref().is_some_and(|held| held.token != results.token.cast_signed());
            let over = (verdict.closed || verdict.kind != VerdictKind::Accepted) && !is_another && is_last;
            let freed = session.judged(id, &judged(results, verdict, held.as_deref(), over));
            if let Some(call) = &call {
                path::delivered(farm, (results, is_last), verdict, came, call);
            }
            if verdict.kind != VerdictKind::Accepted && !results.results.is_empty() {
                let refused = i64::try_from(results.results.len()).unwrap_or(i64::MAX);
                if verdict.kind != VerdictKind::AlreadyAccepted {
                    farm.refused_results.fetch_add(refused, Ordering::Relaxed);
                }
                info!(checkout_id = %id, workstation_id = %session.workstation_id, refused, verdict = ?verdict.kind,
                    reason = verdict.reason, "results refused");
            }
            if over {
                match farm.forget(id) {
                    Some(held) => farm.maybe_over.checkout_closed(held.job_id),
                    None => farm.maybe_over.any(),
                }
            }
            if (freed || (over && session.holds_little())) && session.wants_work() {
                // The workstation may have room now. A full queue loses nothing: the dispatcher also polls.
                drop(farm.dispatcher.try_send(dispatch::Event::Credit(session.clone())));
            }
            answers.push(v1::CheckoutVerdict {
                checkout_id: id.0,
                verdict: match verdict.kind {
                    VerdictKind::Accepted => v1::Verdict::Accepted,
                    VerdictKind::AlreadyAccepted => v1::Verdict::AlreadyAccepted,
                    VerdictKind::Revoked => v1::Verdict::Revoked,
                    VerdictKind::Unknown => v1::Verdict::Unknown,
                }
                .into(),
                accepted: verdict.accepted.unsigned_abs(),
                refused: verdict.refused.unsigned_abs(),
                reason: verdict.reason.clone(),
            });
        }
        if from_agent {
            let took = prost_types::Duration::try_from(arrived.elapsed()).ok();
            let ack = v1::DeliveryAck { delivery_id: delivery.delivery_id, verdicts: answers, took };
            let message = v1::ServerMessage { message: Some(v1::server_message::Message::DeliveryAck(ack)) };
            if session.out.try_send(Ok(message).into()).is_err() {
                // It will deliver again after reconnecting, and be told the same.
                session.end(tonic::Status::resource_exhausted("the agent does not read its acknowledgements"));
            }
        }
    }
}

fn judged<'a>(results: &v1::CheckoutResults, verdict: &Verdict, held: Option<&'a Held>, over: bool) -> Judged<'a> {
    let busy = results.busy.and_then(|busy| Duration::try_from(busy).ok());
    let has_returned = !results.given_back.is_empty() || (results.finished && !results.give_back_reason.is_empty());
    // Results that came a second time, after a reconnection, leave no fewer problems. Several deliveries may share the verdict.
    let stored = usize::try_from(verdict.accepted).unwrap_or(0);
    Judged {
        problems: results.results.len().min(stored),
        measured: held.map(|held| held.job_type.as_str()).zip(busy),
        finished: results.finished,
        returned: has_returned.then_some(results.given_back.len()),
        over,
    }
}
