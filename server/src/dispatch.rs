//! The dispatcher: hands out convoys to agents that have asked.
//!
//! Wait, decide, act: requests that arrive while a database call is in flight are gathered and served together by the
//! next one, and while that one is in flight, what comes after it is read. What to hand out is decided by pure functions
//! ([`choose`], [`size`], [`convoys`]) over lanes held in memory; what was handed out is decided by the database, whose
//! unique key lets one server through. It never sends what has not been committed, and never trusts its memory of a lane
//! after a refusal.

pub mod choose;
pub mod convoys;
mod lanes;
mod queue;
mod send;
pub mod size;

use crate::farm::Farm;
use crate::session::Session;
use anyhow::ensure;
use convoys::Taken;
use lanes::{LaneKey, Lanes};
use pcfarm_faults::{Bug, CrashPoint, crash_point, planted};
use pcfarm_proto::ids::{BatchOrder, CheckoutId};
use pcfarm_sql::checkout::{self, HandOut};
use pcfarm_sql::pool::Kept;
use pcfarm_sql::submit::Fresh;
use queue::Queue;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{debug, warn};

/// What wakes the dispatcher.
#[derive(Debug)]
pub enum Event {
    /// An agent has room.
    Credit(Arc<Session>),
    /// There may be more to hand out, or less.
    Work,
    /// Problems that this server has just committed, and the epoch in which it did.
    Fresh(Box<Fresh>, u64),
}

/// Behind every notification there is a poll.
const POLL: Duration = Duration::from_secs(1);

/// Between two looks, for each lane in sight: a look at a lane takes about 10 µs of PostgreSQL's time, so that however many
/// jobs there are, looking at them takes a twentieth of it, and with few of them nobody waits.
const LOOK_PAUSE_EACH: Duration = Duration::from_micros(200);

/// Before a look for a lane that was refused: its job may be in somebody's hands for as long as they think.
const REFUSED_PAUSE: Duration = Duration::from_millis(2);

/// How much longer a look at all lanes may wait when what it would find first is known.
const FRESH_PAUSE: Duration = Duration::from_millis(5);

/// With more lanes in sight, fresh ones wait for the next look: what they hold stays in the database meanwhile.
const FRESH_LANES_LIMIT: usize = 64;

/// After a failure of the database.
const RETRY: Duration = Duration::from_millis(250);

/// Events that wait for the dispatcher.
pub const EVENTS_LIMIT: usize = 4096;

/// Checkouts that one call commits: many share its cost, and none waits long for the others.
const HAND_OUTS_AT_ONCE: usize = 64;

/// Problems that one call commits, unless a single checkout has more: what is read for the next one has to fit in memory.
const PROBLEMS_AT_ONCE: usize = 16_000;

/// One checkout that has been decided on but not committed. Its credit is spent.
struct Decision {
    session: Arc<Session>,
    from: BatchOrder,
    taken: Taken,
    hand_out: HandOut,
}

struct Dispatcher {
    farm: Arc<Farm>,
    lanes: Lanes,
    /// Of the database that lanes were read from.
    epoch: u64,
    waiting: Queue,
    /// There may be other lanes than those in sight.
    look_due: bool,
    /// When they may be looked at again.
    look_from: Instant,
    /// One connection to commit on, one to read ahead on meanwhile.
    committing: Kept,
    reading: Kept,
}

/// Runs until the server stops.
pub async fn run(farm: Arc<Farm>, mut events: mpsc::Receiver<Event>) {
    let mut dispatcher = Dispatcher {
        farm: farm.clone(),
        lanes: Lanes::default(),
        epoch: farm.epoch.number(),
        waiting: Queue::default(),
        look_due: true,
        look_from: Instant::now(),
        committing: Kept::for_hand_outs(farm.pool.clone()),
        reading: Kept::new(farm.pool.clone()),
    };
    let mut poll = tokio::time::interval(POLL);
    poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = farm.stopping.cancelled() => return,
            _ = poll.tick() => dispatcher.look_everywhere(),
            () = tokio::time::sleep_until(dispatcher.look_from), if dispatcher.look_due && !dispatcher.waiting.is_empty() => {}
            event = events.recv() => match event {
                Some(event) => dispatcher.note(event),
                None => return,
            },
        }
        while let Ok(event) = events.try_recv() {
            dispatcher.note(event);
        }
        if let Err(error) = dispatcher.serve(&mut events).await {
            warn!(error = format!("{error:#}"), "handing out failed: trying again");
            if planted(Bug::StopsHandingOut) {
                farm.stopping.cancelled().await;
                return;
            }
            dispatcher.lanes.forget();
            dispatcher.epoch = farm.epoch.number();
            dispatcher.committing.let_go();
            dispatcher.reading.let_go();
            tokio::time::sleep(RETRY).await;
        }
    }
}

impl Dispatcher {
    fn note(&mut self, event: Event) {
        match event {
            Event::Work => self.look_due = true,
            Event::Credit(session) => self.waiting.join(session),
            Event::Fresh(fresh, epoch) if epoch == self.epoch => self.add(*fresh),
            Event::Fresh(..) => self.look_due = true,
        }
    }

    /// Takes a fresh lane into sight without looking, if somebody waits for it.
    fn add(&mut self, fresh: Fresh) {
        let in_sight =
            !self.waiting.is_empty() && self.lanes.in_sight() < FRESH_LANES_LIMIT && self.lanes.add(&self.farm, fresh);
        if !in_sight {
            self.look_due = true;
            return;
        }
        if !self.look_due {
            // Its own notification is on its way, and can wait.
            self.look_from = self.look_from.max(Instant::now() + FRESH_PAUSE);
        }
    }

    /// Sessions whose event was lost, lanes that nobody told of.
    fn look_everywhere(&mut self) {
        self.look_due = true;
        let sessions = self.farm.sessions();
        self.waiting.prune(sessions.len());
        sessions.into_iter().for_each(|session| self.waiting.join(session));
    }

    /// Hands out until nobody waits or nothing is left for those who do.
    async fn serve(&mut self, events: &mut mpsc::Receiver<Event>) -> anyhow::Result<()> {
        loop {
            if self.lanes.stale() || (self.look_due && Instant::now() >= self.look_from) {
                if self.waiting.is_empty() {
                    return Ok(());
                }
                self.look_due = false;
                self.lanes.look(&self.farm, &mut self.reading).await?;
                let lanes = u32::try_from(self.lanes.in_sight()).unwrap_or(u32::MAX);
                self.look_from = Instant::now() + LOOK_PAUSE_EACH.saturating_mul(lanes).min(POLL);
            }
            let lanes = &self.lanes;
            let Some((lane, kinds)) = self.waiting.turn(|controllers| lanes.best(controllers)) else { return Ok(()) };
            let decisions = self.decide(&lane, &kinds).await?;
            if decisions.is_empty() {
                continue;
            }
            if !self.commit(&lane, decisions).await? {
                // Somebody else has moved the lane on, or its job is locked or not open any more.
                self.lanes.remove(&self.farm, &lane);
                self.look_due = true;
                self.look_from = self.look_from.max(Instant::now() + REFUSED_PAUSE);
            }
            while let Ok(event) = events.try_recv() {
                self.note(event);
            }
        }
    }

    /// Checkouts from this lane for those who wait and would be served from it: one turn each, round by round. None if
    /// the lane has come to its end, which is then out of sight, or if nobody could take what comes next.
    async fn decide(&mut self, key: &LaneKey, kinds: &[Arc<str>]) -> anyhow::Result<Vec<Decision>> {
        let farm = self.farm.clone();
        let job_type = self.lanes.get_mut(key).and_then(|lane| farm.job_type(&lane.open.job_type));
        let (Some(job_type), Some(lane)) = (job_type, self.lanes.get_mut(key)) else {
            self.lanes.remove(&farm, key);
            return Ok(Vec::new());
        };
        let workstations = farm.workstations_with(&job_type.controller);
        let mut decisions: Vec<Decision> = Vec::new();
        let mut problems = 0;
        while decisions.len() < HAND_OUTS_AT_ONCE && problems < PROBLEMS_AT_ONCE {
            let Some(waiting) = self.waiting.pop(kinds) else { break };
            let session = &waiting.session;
            let situation = size::Situation {
                aim: farm.rhythm.checkout,
                limit: farm.rhythm.checkout_problems,
                cores: session.cores,
                measured: session.speed(&job_type.name),
                remaining: lane.remaining(),
                workstations,
                time_limit: job_type.time_limit,
            };
            let wanted = size::wanted(&situation);
            let is_its_own = |d: &Decision| d.session.workstation_id == session.workstation_id;
            let in_hand = session.holds() + decisions.iter().filter(|d| is_its_own(d)).count();
            if !size::has_room(&situation, in_hand, session.prefetch, wanted) {
                // It asks again when it holds less.
                self.waiting.leave(session);
                continue;
            }
            if !lane.has_ahead(wanted) {
                if !decisions.is_empty() {
                    // What is decided need not wait for the reading.
                    self.waiting.put_back(waiting);
                    break;
                }
                if let Err(error) = lane.read_ahead(&mut self.reading, wanted).await {
                    self.waiting.put_back(waiting);
                    return Err(error);
                }
            }
            if lane.next_is_suspect() && in_hand > 0 {
                // It asks again when it holds nothing.
                self.waiting.leave(session);
                continue;
            }
            let from = lane.next();
            let Some(taken) = lane.take(wanted) else {
                // Nothing can be had from it now; it is looked at again with the next look at all lanes.
                self.waiting.put_back(waiting);
                if decisions.is_empty() {
                    self.lanes.remove(&farm, key);
                }
                break;
            };
            problems += taken.problems.len();
            let limits = size::time_limits(in_hand, session.prefetch);
            let hand_out = HandOut {
                from,
                to: BatchOrder(
                    taken.to.0 - i64::from(planted(Bug::ShipsMoreThanItChecksOut) && taken.to.0 > from.0 + 1),
                ),
                problems: i32::try_from(taken.problems.len()).expect("a checkout's size is bounded"),
                workstation_id: session.workstation_id,
                token: rand::random(),
                seconds: job_type.time_limit.map(|limit| limit.as_secs_f64() * limits as f64),
            };
            session.spend_credit();
            // A checkout that must be alone is the last that it gets, and asks for what follows when it is done.
            if session.wants_work() && !taken.suspect {
                self.waiting.put_last(session.clone());
            } else {
                self.waiting.leave(session);
            }
            decisions.push(Decision { session: waiting.session, from, taken, hand_out });
        }
        Ok(decisions)
    }

    /// Commits the decisions and sends what was committed, reading on meanwhile. False: somebody was faster, or the job is
    /// not open.
    async fn commit(&mut self, key: &LaneKey, decisions: Vec<Decision>) -> anyhow::Result<bool> {
        let Some(lane) = self.lanes.get_mut(key) else { return Ok(false) };
        let hand_outs: Vec<HandOut> = decisions.iter().map(|d| d.hand_out.clone()).collect();
        let handed_out: usize = decisions.iter().map(|d| d.taken.problems.len()).sum();
        let job_type = lane.open.job_type.clone();
        let committing = async {
            let client = self.committing.client().await?;
            // What was read may be of a database that this one is not.
            ensure!(self.farm.epoch.number() == self.epoch, "this is another database than before");
            anyhow::Ok(checkout::check_out(client, key.0, key.1, &job_type, &hand_outs).await?)
        };
        let reading = async {
            // As much again will be wanted soon, if anybody still waits.
            if self.waiting.wants(lane.controller()) && !lane.has_ahead(handed_out / 2) {
                lane.read_ahead(&mut self.reading, handed_out).await?;
            }
            anyhow::Ok(())
        };
        crash_point(CrashPoint::CheckOutDecided);
        let (outcome, read) = tokio::join!(committing, reading);
        crash_point(CrashPoint::CheckOutCommitted);
        let ids = match outcome {
            Ok(ids) if ids.len() == decisions.len() => ids,
            outcome => {
                // Nothing was handed out, or nobody knows: what was is given back as never received. Those who wait
                // wait on, their credit unspent.
                for decision in &decisions {
                    decision.session.add_credit(1);
                    self.waiting.join(decision.session.clone());
                }
                return outcome.map(|_| false);
            }
        };
        self.ship(key, ids, decisions);
        self.lanes.remove_if_drained(&self.farm, key);
        read.map(|()| true)
    }

    fn ship(&mut self, key: &LaneKey, ids: Vec<CheckoutId>, decisions: Vec<Decision>) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        // A job type that is gone meanwhile: what was handed out comes back as never received.
        let Some(job_type) = self.farm.job_type(&lane.open.job_type) else { return };
        for (checkout_id, decision) in ids.into_iter().zip(decisions) {
            debug!(%checkout_id, job_id = %key.0, workstation_id = %decision.session.workstation_id,
                problems = decision.hand_out.problems, from = %decision.from, "checked out");
            let shipment = send::Shipment::new(checkout_id, &lane.open, job_type.clone(), decision);
            shipment.announce(&self.farm);
            self.farm.tasks.spawn(send::send(self.farm.clone(), shipment));
        }
    }
}
