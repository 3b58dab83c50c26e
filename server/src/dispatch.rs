//! The dispatcher: hands out convoys to agents that have asked.
//!
//! Wait, decide, act: requests that arrive while a database call is in flight are gathered and served together by the
//! next one. What to hand out is decided by pure functions ([`choose`], [`size`], [`convoys`]) over lanes held in
//! memory; what was handed out is decided by the database, whose unique key lets one server through. It never sends
//! what has not been committed, and never trusts its memory of a lane after a refusal.

pub mod choose;
pub mod convoys;
mod lanes;
mod send;
pub mod size;

use crate::farm::Farm;
use crate::session::Session;
use choose::Candidate;
use convoys::Convoy;
use lanes::{LaneKey, Lanes};
use pcfarm_proto::ids::{BatchOrder, WorkstationId};
use pcfarm_sql::checkout::{self, HandOut};
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tracing::{debug, warn};

/// What wakes the dispatcher.
#[derive(Debug)]
pub enum Event {
    /// An agent has room.
    Credit(Arc<Session>),
    /// There may be more to hand out, or less.
    Work,
}

/// Behind every notification there is a poll.
const POLL: Duration = Duration::from_secs(1);

/// After a failure of the database.
const RETRY: Duration = Duration::from_millis(250);

/// Events that wait for the dispatcher.
pub const EVENTS_LIMIT: usize = 4096;

/// One checkout that has been decided on but not committed.
struct Decision {
    session: Arc<Session>,
    from: BatchOrder,
    convoys: Vec<Convoy>,
    hand_out: HandOut,
}

struct Dispatcher {
    farm: Arc<Farm>,
    lanes: Lanes,
    /// Sessions with credit, in the order in which they asked.
    waiting: VecDeque<Arc<Session>>,
    /// There may be other lanes than those in sight.
    look_due: bool,
}

/// Runs until the server stops.
pub async fn run(farm: Arc<Farm>, mut events: mpsc::Receiver<Event>) {
    let mut dispatcher =
        Dispatcher { farm: farm.clone(), lanes: Lanes::default(), waiting: VecDeque::new(), look_due: true };
    let mut poll = tokio::time::interval(POLL);
    poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let mut look = false;
        tokio::select! {
            () = farm.stopping.cancelled() => return,
            _ = poll.tick() => look = true,
            event = events.recv() => match event {
                Some(event) => look |= dispatcher.note(event),
                None => return,
            },
        }
        while let Ok(event) = events.try_recv() {
            look |= dispatcher.note(event);
        }
        if let Err(error) = dispatcher.serve(look).await {
            warn!(error = format!("{error:#}"), "handing out failed: trying again");
            dispatcher.lanes.forget();
            tokio::time::sleep(RETRY).await;
        }
    }
}

impl Dispatcher {
    /// True if the lanes must be looked at again.
    fn note(&mut self, event: Event) -> bool {
        match event {
            Event::Work => true,
            Event::Credit(session) => {
                if session.enqueue() {
                    self.waiting.push_back(session);
                }
                false
            }
        }
    }

    /// Hands out until nobody waits or nothing is left for those who do.
    async fn serve(&mut self, look: bool) -> anyhow::Result<()> {
        self.look_due |= look;
        self.keep_waiting(|session| !session.ended.is_cancelled());
        if !self.waiting.iter().any(|session| session.wants_work()) {
            return Ok(());
        }
        if self.look_due || self.lanes.stale() {
            self.lanes.look(&self.farm).await?;
            self.look_due = false;
        }
        // Sessions that the lanes in sight have nothing for. Looking again is for the next event.
        let mut unserved: HashSet<WorkstationId> = HashSet::new();
        while let Some(lane) = self.next_lane(&unserved) {
            let (decisions, kept_for_later) = self.decide(&lane, &mut unserved).await?;
            if decisions.is_empty() && kept_for_later {
                continue;
            }
            if decisions.is_empty() {
                // Nothing can be had from it now; it is looked at again with the next look at all lanes.
                self.lanes.remove(&lane);
                continue;
            }
            if !self.commit(&lane, decisions).await? {
                self.lanes.refresh(&self.farm, &lane).await?;
            }
        }
        Ok(())
    }

    /// The lane to serve: the best that somebody who waits can run.
    fn next_lane(&self, unserved: &HashSet<WorkstationId>) -> Option<LaneKey> {
        self.waiting
            .iter()
            .filter(|session| session.wants_work() && !unserved.contains(&session.workstation_id))
            .find_map(|session| choose::choose(self.lanes.candidates(), &session.controllers))
            .map(|Candidate { job_id, lane_id, .. }| (*job_id, *lane_id))
    }

    /// A checkout from this lane for each one who waits and would be served from it, one turn each; and whether
    /// somebody was passed over who must finish what it holds before it can be given what comes next.
    async fn decide(
        &mut self,
        key: &LaneKey,
        unserved: &mut HashSet<WorkstationId>,
    ) -> anyhow::Result<(Vec<Decision>, bool)> {
        let mut kept_for_later = false;
        let farm = self.farm.clone();
        let mut decisions = Vec::new();
        let sessions: Vec<Arc<Session>> = self.waiting.iter().cloned().collect();
        for session in sessions {
            if !session.wants_work() || unserved.contains(&session.workstation_id) {
                continue;
            }
            match choose::choose(self.lanes.candidates(), &session.controllers) {
                None => {
                    unserved.insert(session.workstation_id);
                    continue;
                }
                Some(best) if (best.job_id, best.lane_id) != *key => continue,
                Some(_) => {}
            }
            let Some(lane) = self.lanes.get_mut(key) else { break };
            let Some(job_type) = farm.job_type(&lane.open.job_type) else { break };
            let controller = &job_type.controller;
            let wanted = size::wanted(&size::Situation {
                aim: farm.rhythm.checkout,
                limit: farm.rhythm.checkout_problems,
                cores: session.cores,
                measured: session.speed(&job_type.name),
                remaining: lane.remaining(),
                workstations: farm.able(controller),
                time_limit: job_type.time_limit,
            });
            if session.holds() > 0 && lane.next_is_suspect(&farm, wanted).await? {
                unserved.insert(session.workstation_id);
                kept_for_later = true;
                continue;
            }
            let from = lane.next();
            let convoys = lane.take(&farm, wanted).await?;
            let Some(last) = convoys.last() else { break };
            let problems: usize = convoys.iter().map(|c| c.problems.len()).sum();
            // Problems taken ahead wait for those in the works: their time adds up.
            let seconds = job_type.time_limit.map(|limit| limit.as_secs_f64() * (session.holds() + 1) as f64);
            let to = BatchOrder(last.order.0 + 1);
            let hand_out = HandOut {
                from,
                to,
                problems: i32::try_from(problems).expect("a checkout's size is bounded"),
                workstation_id: session.workstation_id,
                token: rand::random(),
                seconds,
            };
            decisions.push(Decision { session, from, convoys, hand_out });
        }
        Ok((decisions, kept_for_later))
    }

    /// Commits the decisions and sends what was committed. False: somebody was faster, or the job is not open.
    async fn commit(&mut self, key: &LaneKey, decisions: Vec<Decision>) -> anyhow::Result<bool> {
        let Some(lane) = self.lanes.get_mut(key) else { return Ok(false) };
        let hand_outs: Vec<HandOut> = decisions.iter().map(|d| d.hand_out.clone()).collect();
        let outcome = async {
            let client = self.farm.pool.get().await?;
            anyhow::Ok(checkout::check_out(&client, key.0, key.1, &lane.open.job_type, &hand_outs).await?)
        }
        .await;
        let ids = match outcome {
            Ok(ids) if ids.len() == decisions.len() => ids,
            outcome => {
                // Nothing was handed out, or nobody knows: what was is given back as never received. Those who wait
                // wait on, their credit unspent.
                return outcome.map(|_| false);
            }
        };
        let job_type = self.farm.job_type(&lane.open.job_type);
        for (checkout_id, decision) in ids.into_iter().zip(decisions) {
            debug!(%checkout_id, job_id = %key.0, workstation_id = %decision.session.workstation_id,
                problems = decision.hand_out.problems, from = %decision.from, "checked out");
            decision.session.spend_credit();
            if let Some(job_type) = job_type.clone() {
                let shipment = send::Shipment::new(checkout_id, &lane.open, job_type, decision);
                shipment.announce(&self.farm);
                self.farm.tasks.spawn(send::send(self.farm.clone(), shipment));
            }
        }
        self.keep_waiting(Session::asks_for_work);
        Ok(true)
    }

    fn keep_waiting(&mut self, keep: impl Fn(&Session) -> bool) {
        self.waiting.retain(|session| {
            let kept = keep(session);
            if !kept {
                session.dequeued();
            }
            kept
        });
    }
}
