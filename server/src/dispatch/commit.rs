//! Commits what was decided and sends what was committed, and reads on meanwhile.

use super::convoys::Taken;
use super::decide::{Decision, PROBLEMS_AT_ONCE};
use super::lanes::LaneKey;
use super::{Dispatcher, IMPATIENT, send};
use crate::farm::Farm;
use crate::instruments;
use crate::outgoing::Load;
use crate::session::Session;
use crate::traces::path::{CheckoutTrace, HandOutCall};
use anyhow::ensure;
use deadpool_postgres::ClientWrapper;
use pcfarm_faults::{CrashPoint, crash_point};
use pcfarm_proto::ids::CheckoutId;
use pcfarm_sql::checkout::{self, Closing, HandOut};
use pcfarm_sql::lanes::OpenLane;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_postgres::error::SqlState;
use tracing::{debug, warn};

/// Problems that are wanted of lanes while a call commits, unless a single lane has more: who is served next waits for all of
/// them to be read.
const WANTED_AT_ONCE: usize = 4 * PROBLEMS_AT_ONCE;

/// Longest that no limit is waited for, however often one was met that somebody had locked.
const IMPATIENT_LIMIT: Duration = Duration::from_secs(80);

impl Dispatcher {
    /// Commits the decisions and sends what was committed, reading on meanwhile.
    pub(super) async fn commit(&mut self, decisions: Vec<Decision>) -> anyhow::Result<()> {
        // Those of one lane are consecutive; what is under limits is decided by another statement.
        let (mut limited, mut free): (Vec<Decision>, Vec<Decision>) = decisions.into_iter().partition(|d| d.limited);
        let unread = self.wanted_ahead(free.iter().chain(&limited));
        let (mut refused, mut handed_out) = (Vec::new(), Vec::new());
        let waits = Instant::now() >= self.impatient.0;
        let mut met_lock = None;
        // What is committed is sent at once, whatever others wait for: limits for locks, and reading for a slow table.
        let committing = async {
            let client = self.farm.lines.take().await?;
            // What was read may be of a database that this one is not.
            ensure!(self.farm.epoch.number() == self.epoch, "this is another database than before");
            for (decisions, within_limits) in [(&mut free, false), (&mut limited, true)] {
                if decisions.is_empty() {
                    continue;
                }
                let began = Instant::now();
                let mut outcome = check_out(&client, decisions, within_limits.then_some(waits)).await;
                if waits && within_limits {
                    met_lock = Some(outcome.as_ref().is_err_and(is_locked));
                }
                if met_lock == Some(true) {
                    outcome = check_out(&client, decisions, Some(false)).await;
                }
                let ids = match outcome {
                    // Another server's hand-outs of the same lane are not committed.
                    Err(error) if within_limits && is_locked(&error) => vec![None; decisions.len()],
                    outcome => outcome?,
                };
                crash_point(CrashPoint::CheckOutCommitted);
                handed_out
                    .extend(decisions.iter().zip(&ids).filter(|(_, id)| id.is_some()).map(|(d, _)| d.choice.lane()));
                refused.extend(ship(&self.farm, decisions.drain(..).zip(ids).collect(), began.elapsed()));
            }
            self.farm.lines.put(client);
            anyhow::Ok(())
        };
        let reading = self.lanes.read_on(&unread, &mut self.reading);
        crash_point(CrashPoint::CheckOutDecided);
        let (committed, read) = tokio::join!(committing, reading);
        match met_lock {
            Some(true) => {
                let (_, pause) = self.impatient;
                self.impatient = (Instant::now() + pause, (pause * 2).min(IMPATIENT_LIMIT));
            }
            Some(false) => self.impatient.1 = IMPATIENT,
            None => {}
        }
        self.lanes.moved_on(handed_out.into_iter());
        // Nobody knows what became of these: what was handed out is given back as never received.
        for decision in free.into_iter().chain(limited) {
            self.undo(decision);
        }
        // The last first, so that what is put back stands in order.
        for mut decision in refused.into_iter().rev() {
            // Somebody else has moved the lane on, or its job is locked or not open any more, or there is no room.
            let problems = std::mem::take(&mut decision.taken.problems);
            self.lanes.set_aside(&self.farm, &decision.choice.lane(), decision.hand_out.from, problems);
            self.undo(decision);
        }
        committed.and(read)
    }

    /// Lanes that are to be read on while these are committed, and how much will be wanted: as much again will be soon, by
    /// who still waits or by those who are served now.
    fn wanted_ahead<'a>(&mut self, decisions: impl Iterator<Item = &'a Decision>) -> HashMap<LaneKey, usize> {
        let mut handed_out: HashMap<LaneKey, usize> = HashMap::new();
        let (mut largest, mut served) = (1, HashSet::new());
        for decision in decisions {
            served.insert(&*decision.choice.candidate.controller);
            largest = largest.max(decision.taken.problems.len());
            *handed_out.entry(decision.choice.lane()).or_default() += decision.taken.problems.len();
        }
        let to_read = self.lanes.to_read(largest, handed_out.values().sum());
        handed_out.retain(|key, problems| {
            self.lanes.get_mut(key).is_some_and(|lane| !lane.has_ahead((*problems).div_ceil(2)))
        });
        for key in &to_read {
            let wanted = handed_out.entry(*key).or_default();
            *wanted = (*wanted).max(2 * largest);
        }
        let is_wanted = |controller: &str| served.contains(controller) || self.waiting.wants(controller);
        handed_out.retain(|key, _| self.lanes.get_mut(key).is_some_and(|lane| is_wanted(lane.controller())));
        as_many_as_are_read(handed_out, &to_read)
    }

    /// Its session waits on, its credit unspent.
    fn undo(&mut self, decision: Decision) {
        self.lanes.refund(&decision.choice, decision.taken.convoys);
        decision.session.add_credit(1);
        self.waiting.join(decision.session, self.lanes.requirements());
    }
}

/// Of what is wanted of lanes, as much as is read in one go: the most urgent lanes first.
fn as_many_as_are_read(mut wanted: HashMap<LaneKey, usize>, urgent: &[LaneKey]) -> HashMap<LaneKey, usize> {
    let others: Vec<LaneKey> = wanted.keys().copied().collect();
    let (mut read, mut problems) = (HashMap::new(), 0);
    for key in urgent.iter().chain(&others) {
        if problems < WANTED_AT_ONCE
            && let Some(wanted) = wanted.remove(key)
        {
            problems += wanted;
            read.insert(*key, wanted);
        }
    }
    read
}

/// A checkout that is to be sent now.
pub struct Committed<'a> {
    pub checkout_id: CheckoutId,
    pub token: i64,
    pub session: Arc<Session>,
    pub lane: &'a OpenLane,
    pub taken: Taken,
    pub load: Arc<Load>,
    pub trace: Option<Box<CheckoutTrace>>,
}

impl Committed<'_> {
    pub fn ship(self, farm: &Arc<Farm>, call: &HandOutCall) {
        let Some(job_type) = farm.job_type(&self.lane.job_type) else {
            // It is gone meanwhile.
            self.session.add_credit(1);
            take_back_unsent(farm, self.checkout_id, farm.epoch.number());
            return;
        };
        debug!(checkout_id = %self.checkout_id, job_id = %self.lane.job_id, workstation_id = %self.session.workstation_id,
            problems = self.taken.problems.len(), to = %self.taken.to, "checked out");
        if let Some(trace) = &self.trace {
            farm.traces.handed_out(trace, self.taken.problems.len(), call);
        }
        let shipment = send::Shipment::new(self, job_type);
        shipment.announce(farm);
        farm.tasks.spawn(send::send(farm.clone(), shipment));
    }
}

/// Sends those of one call that were committed, and returns the others.
fn ship(farm: &Arc<Farm>, decisions: Vec<(Decision, Option<CheckoutId>)>, database: Duration) -> Vec<Decision> {
    let traced = decisions.iter().filter_map(|(decision, _)| Some(decision.trace.as_ref()?.checkout)).collect();
    let call = HandOutCall { checkouts: decisions.len(), database, traced };
    let mut refused = Vec::new();
    for (decision, id) in decisions {
        match id {
            Some(id) => {
                let Decision { session, lane, taken, load, hand_out, trace, .. } = decision;
                let (lane, token) = (&*lane, hand_out.token);
                Committed { checkout_id: id, token, session, lane, taken, load, trace }.ship(farm, &call);
            }
            None => refused.push(decision),
        }
    }
    refused
}

/// Takes back at once what was committed in this epoch and is not going to be sent; whoever hands out hears of it. If that fails,
/// it comes back like what was sent and never arrived: later, when its workstation's heartbeat does not name it.
pub fn take_back_unsent(farm: &Arc<Farm>, id: CheckoutId, epoch: u64) {
    let this = farm.clone();
    let closing = async move {
        let client = this.pool.get().await?;
        ensure!(this.epoch.number() == epoch, "this is another database than before");
        anyhow::Ok(checkout::close(&*client, &[id], Closing::Unreceived, "never sent to its workstation").await?)
    };
    farm.tasks.spawn(async move {
        match closing.await {
            Ok(closed) => closed.iter().for_each(|closed| {
                warn!(checkout_id = %id, workstation_id = %closed.workstation_id, requeued = closed.requeued,
                    "a checkout was not sent: requeued");
            }),
            Err(error) => {
                let error = format!("{error:#}");
                warn!(checkout_id = %id, error, "a checkout that was not sent was not taken back yet");
            }
        }
    });
}

fn is_locked(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE)
}

/// `within_limits`: are limits waited for that somebody has locked?
async fn check_out(
    client: &ClientWrapper,
    decisions: &[Decision],
    within_limits: Option<bool>,
) -> Result<Vec<Option<CheckoutId>>, tokio_postgres::Error> {
    let hand_outs: Vec<HandOut> = decisions.iter().map(|d| d.hand_out.clone()).collect();
    let began = Instant::now();
    let ids = match within_limits {
        Some(waits) => checkout::check_out_within_limits(client, &hand_outs, waits).await?,
        None => checkout::check_out(client, &hand_outs).await?,
    };
    instruments::timed("check_out", began);
    let handed_out = ids.iter().zip(&hand_outs).filter(|(id, _)| id.is_some()).map(|(_, hand_out)| hand_out.problems);
    instruments::handed_out(handed_out);
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcfarm_proto::ids::{JobId, LaneId};

    #[test]
    fn of_what_is_wanted_the_most_urgent_is_read_and_no_more_than_there_is_time_for() {
        let lane = |n: i64| (JobId(n), LaneId(n));
        let wanted = |lanes: i64, each: usize| (0..lanes).map(|n| (lane(n), each)).collect::<HashMap<_, _>>();
        assert_eq!(as_many_as_are_read(wanted(30, 2_000), &[]).len(), 30, "there is time for all");
        let read = as_many_as_are_read(wanted(32, 20_000), &[lane(31), lane(7), lane(99)]);
        assert_eq!(read.len(), WANTED_AT_ONCE.div_ceil(20_000));
        assert!(read.contains_key(&lane(31)) && read.contains_key(&lane(7)) && !read.contains_key(&lane(99)));
        assert_eq!(as_many_as_are_read(wanted(2, 100_000), &[lane(1)]).into_keys().collect::<Vec<_>>(), [lane(1)]);
    }
}
