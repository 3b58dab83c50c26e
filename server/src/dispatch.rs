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
mod look;
pub mod offers;
mod queue;
mod reading;
mod refused;
pub mod requirement;
mod send;
pub mod size;
mod unreadable;

use crate::farm::Farm;
use crate::instruments;
use crate::outgoing::Load;
use crate::session::Session;
use crate::traces::path::{CheckoutTrace, HandOutCall};
use anyhow::ensure;
use choose::Choice;
use convoys::Taken;
use deadpool_postgres::ClientWrapper;
use lanes::{LaneKey, Lanes};
use look::Lookout;
use pcfarm_faults::{Bug, CrashPoint, crash_point, planted};
use pcfarm_proto::files::announced;
use pcfarm_proto::ids::{BatchOrder, CheckoutId};
use pcfarm_sql::checkout::{self, Closing, HandOut};
use pcfarm_sql::job_types::JobType;
use pcfarm_sql::lanes::OpenLane;
use pcfarm_sql::pool::Kept;
use pcfarm_sql::submit::Fresh;
use queue::Queue;
use requirement::RequirementId;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_postgres::error::SqlState;
use tonic::Status;
use tracing::{debug, warn};

/// What wakes the dispatcher.
#[derive(Debug)]
pub enum Event {
    /// An agent has room.
    Credit(Arc<Session>),
    /// There may be more to hand out, or less.
    Work,
    /// Some session may take something else than before.
    Selection,
    /// Problems that this server has just committed, and the epoch in which it did.
    Fresh(Box<Fresh>, u64),
    /// A session that was handed something by a submission.
    Served(Arc<Session>),
}

/// Behind every notification there is a poll.
const POLL: Duration = Duration::from_secs(1);

/// After a limit was met that somebody had locked, no limit is waited for so long; twice as long each time that one is met again.
const IMPATIENT: Duration = Duration::from_secs(5);
const IMPATIENT_LIMIT: Duration = Duration::from_secs(80);

/// With more lanes in sight, fresh ones wait for the next look: what they hold stays in the database meanwhile.
const FRESH_LANES_LIMIT: usize = 64;

/// Longest that an agent may read nothing of what is on its way to it, while others wait for it.
const UNREAD_DEADLINE: Duration = Duration::from_secs(60);

/// After a failure of the database.
const RETRY: Duration = Duration::from_millis(250);

/// Events that wait for the dispatcher.
pub const EVENTS_LIMIT: usize = 4096;

/// Checkouts that one call commits: many share its cost, and none waits long for the others.
const HAND_OUTS_AT_ONCE: usize = 64;

/// Problems that one call commits, unless a single checkout has more: what is read for the next one has to fit in memory.
const PROBLEMS_AT_ONCE: usize = 16_000;

/// Problems that are wanted of lanes while a call commits, unless a single lane has more: who is served next waits for all of
/// them to be read.
const WANTED_AT_ONCE: usize = 4 * PROBLEMS_AT_ONCE;

/// One checkout that has been decided on but not committed. Its credit is spent.
struct Decision {
    session: Arc<Session>,
    choice: Choice,
    lane: Arc<OpenLane>,
    taken: Taken,
    load: Arc<Load>,
    hand_out: HandOut,
    /// It is under a limit.
    limited: bool,
    trace: Option<Box<CheckoutTrace>>,
}

/// What comes of a session's turn.
enum Turn {
    Served(Box<Decision>),
    /// It asks again when it holds less, or nothing where it has to.
    Full,
    /// What is next in the lane is not for it, as is known now that it has been read: who is next is found out anew.
    Anew,
    /// Nothing can be had from the lane now; it is looked at again with the next look at all lanes.
    NothingThere,
    /// The lane is to be read on, for which what is decided need not wait.
    Unread,
}

/// Checkouts that a workstation has, and those that it has been decided to have.
struct InHand {
    all: usize,
    /// What waits for something else takes no room from it.
    of_its_kind: usize,
}

struct Dispatcher {
    farm: Arc<Farm>,
    lanes: Lanes,
    /// Of the database that lanes were read from.
    epoch: u64,
    waiting: Queue,
    /// Of those who are connected, how many have what a requirement wants: as of the last second.
    able: HashMap<RequirementId, usize>,
    /// Somebody may stand in a line that is not its own.
    regroup_due: bool,
    lookout: Lookout,
    /// Until then no limit is waited for that somebody has locked, and for how long that is.
    impatient: (Instant, Duration),
    /// To read ahead on while hand-outs are committed on another.
    reading: Kept,
}

/// Runs until the server stops.
pub async fn run(farm: Arc<Farm>, mut events: mpsc::Receiver<Event>) {
    let mut dispatcher = Dispatcher {
        farm: farm.clone(),
        lanes: Lanes::default(),
        epoch: farm.epoch.number(),
        waiting: Queue::default(),
        able: HashMap::new(),
        regroup_due: false,
        lookout: Lookout::new(farm.clone()),
        impatient: (Instant::now(), IMPATIENT),
        reading: Kept::planning_once(farm.pool.clone()),
    };
    let mut poll = tokio::time::interval(POLL);
    poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = farm.stopping.cancelled() => return,
            _ = poll.tick() => dispatcher.look_everywhere(),
            () = until(dispatcher.next_look()) => {}
            () = dispatcher.lookout.ended() => {}
            () = farm.traffic.has_room(), if dispatcher.is_held_up() => {}
            event = events.recv() => match event {
                Some(event) => dispatcher.note(event),
                None => return,
            },
        }
        farm.rounds.dispatcher.came();
        farm.offers.withdraw();
        while let Ok(event) = events.try_recv() {
            dispatcher.note(event);
        }
        if let Err(error) = dispatcher.serve(&mut events).await {
            warn!(error = format!("{error:#}"), "handing out failed: trying again");
            if planted(Bug::StopsHandingOut) {
                farm.stopping.cancelled().await;
                return;
            }
            dispatcher.forget();
            tokio::time::sleep(RETRY).await;
        }
        dispatcher.offer();
    }
}

impl Dispatcher {
    fn note(&mut self, event: Event) {
        match event {
            Event::Work => self.lookout.ask(),
            Event::Selection => self.regroup_due = true,
            Event::Credit(session) => self.waiting.join(session, self.lanes.requirements()),
            Event::Served(session) => self.waiting.move_last(session, self.lanes.requirements()),
            Event::Fresh(fresh, epoch) if epoch == self.epoch => self.add(*fresh),
            Event::Fresh(..) => self.lookout.ask(),
        }
    }

    /// Takes a fresh lane into sight without looking, if somebody waits for it.
    fn add(&mut self, fresh: Fresh) {
        let in_sight =
            !self.waiting.is_empty() && self.lanes.in_sight() < FRESH_LANES_LIMIT && self.lanes.add(&self.farm, fresh);
        if in_sight {
            self.lookout.put_off();
        } else {
            self.lookout.ask();
        }
    }

    /// Who waits for what there is none of may be handed what comes next by whoever brings it.
    fn offer(&self) {
        if self.lookout.is_at_rest() && !self.farm.traffic.is_full() {
            self.farm.offers.offer(self.epoch, self.waiting.first_idle());
        }
    }

    /// Sessions whose event was lost, lanes that nobody told of.
    fn look_everywhere(&mut self) {
        self.lookout.ask();
        let requirements = self.lanes.requirements();
        self.waiting.regroup(requirements);
        let sessions = self.farm.sessions();
        if self.farm.traffic.is_busy() {
            let reads_nothing = sessions.iter().filter(|session| session.unread.stands_for(UNREAD_DEADLINE));
            reads_nothing.for_each(|session| {
                session.end(Status::deadline_exceeded("the agent does not read what it asked for"))
            });
        }
        self.waiting.prune(sessions.len());
        sessions.into_iter().for_each(|session| self.waiting.join(session, requirements));
        self.able = self.lanes.count_able(&self.farm.sessions());
    }

    /// Hands out until nobody waits or nothing is left for those who do.
    async fn serve(&mut self, events: &mut mpsc::Receiver<Event>) -> anyhow::Result<()> {
        while !self.farm.stopping.is_cancelled() {
            self.farm.rounds.dispatcher.came(); // for hours on end there may be more
            if std::mem::take(&mut self.regroup_due) {
                self.waiting.regroup(self.lanes.requirements());
            }
            self.take_in().await;
            if self.lookout.is_to_begin(&self.lanes) {
                if self.waiting.is_empty() {
                    return Ok(());
                }
                self.lanes.begin_look();
                self.lookout.begin().await;
                self.take_in().await;
            }
            if self.lanes.stale() {
                return Ok(());
            }
            let decisions = self.decide().await?;
            if self.lanes.was_short_of_room() {
                self.lookout.lack_room(&self.lanes);
            }
            if decisions.is_empty() {
                return Ok(());
            }
            self.commit(decisions).await?;
            while let Ok(event) = events.try_recv() {
                self.note(event);
            }
        }
        Ok(())
    }

    /// What a look has found. If it failed, hand-outs go on by what is known: the database has the last word.
    async fn take_in(&mut self) {
        let Some(found) = self.lookout.found().await else { return };
        if self.farm.epoch.number() != self.epoch {
            // It may be of another database than what is known.
            self.forget();
            return;
        }
        let is_to_be_repeated = match found {
            Ok(sight) => {
                let known = self.lanes.requirements().version();
                let troubles = &self.farm.troubles;
                let is_all = self.lanes.end_look(sight, |open| troubles.concern(Some(open.job_id), &open.job_type));
                self.farm.maybe_over.lanes_in_sight(self.lanes.jobs_in_sight());
                if self.lanes.requirements().version() != known {
                    self.waiting.regroup(self.lanes.requirements());
                    self.able = self.lanes.count_able(&self.farm.sessions());
                }
                self.lookout.pause(&self.lanes);
                !is_all
            }
            Err(error) => {
                warn!(error = format!("{error:#}"), "looking for lanes failed: trying again");
                self.lookout.pause_for(RETRY);
                true
            }
        };
        if is_to_be_repeated {
            self.lookout.ask();
        }
    }

    /// Nothing that is remembered or being read can be trusted.
    fn forget(&mut self) {
        self.lookout.forget();
        self.lanes.forget();
        self.epoch = self.farm.epoch.number();
        self.reading.let_go();
    }

    /// Somebody waits, and not for anything that is to be handed out.
    fn is_held_up(&self) -> bool {
        !self.waiting.is_empty() && self.farm.traffic.is_full()
    }

    /// When to look again, if somebody waits.
    fn next_look(&self) -> Option<Instant> {
        if self.waiting.is_empty() { None } else { self.lookout.next(&self.lanes) }
    }

    /// Checkouts for those who wait, each from the lane whose turn it is. None: there is nothing for anybody.
    async fn decide(&mut self) -> anyhow::Result<Vec<Decision>> {
        let mut decisions: Vec<Decision> = Vec::new();
        let (mut problems, mut idle) = (0, HashSet::new());
        while decisions.len() < HAND_OUTS_AT_ONCE && problems < PROBLEMS_AT_ONCE && !self.farm.traffic.is_full() {
            let lanes = &self.lanes;
            let choose = |session: &Session| lanes.choose(session);
            let Some((waiting, choice)) = self.waiting.next(&mut idle, lanes.know_resources(), choose) else { break };
            let (key, session) = (choice.lane(), waiting.session.clone());
            match self.decide_for(&session, choice, &decisions).await {
                Ok(Turn::Served(decision)) => {
                    problems += decision.taken.problems.len();
                    // A checkout that must be alone is the last that it gets, and asks for what follows when it is done.
                    if session.wants_work() && !decision.taken.suspect {
                        self.waiting.put_last(session, self.lanes.requirements());
                    } else {
                        self.waiting.leave(&session);
                    }
                    decisions.push(*decision);
                }
                Ok(Turn::Full) => self.waiting.leave(&session),
                Ok(Turn::Anew) => self.waiting.put_back(waiting),
                Ok(Turn::NothingThere) => {
                    self.waiting.put_back(waiting);
                    self.lanes.remove(&self.farm, &key);
                }
                Ok(Turn::Unread) => {
                    self.waiting.put_back(waiting);
                    break;
                }
                Err(error) => {
                    self.waiting.put_back(waiting);
                    return Err(error);
                }
            }
        }
        if !idle.is_empty() {
            self.lookout.hurry();
        }
        Ok(decisions)
    }

    /// A checkout for this session, whose turn it is, from the lane whose turn it is.
    async fn decide_for(
        &mut self,
        session: &Arc<Session>,
        choice: Choice,
        decided: &[Decision],
    ) -> anyhow::Result<Turn> {
        if !self.farm.traffic.has_room_for(&session.unread) {
            return Ok(Turn::Full);
        }
        let key = choice.lane();
        let job_type = self.lanes.get_mut(&key).and_then(|lane| self.farm.job_type(&lane.open.job_type));
        let Some(job_type) = job_type else { return Ok(Turn::NothingThere) };
        let in_hand = in_hand(session, &job_type, decided);
        let Some(wanted) = self.wanted(session, &choice, &job_type, in_hand.of_its_kind) else {
            return Ok(Turn::Full);
        };
        if self.lanes.get_mut(&key).is_some_and(|lane| !lane.has_ahead(wanted)) {
            if !decided.is_empty() {
                return Ok(Turn::Unread);
            }
            self.lanes.read_ahead(&key, &mut self.reading, wanted).await?;
            self.farm.rounds.dispatcher.came(); // some lanes, one after the other, may each take as long as a statement may
        }
        let room = self.lanes.room(&choice);
        let Some(lane) = self.lanes.get_mut(&key) else { return Ok(Turn::NothingThere) };
        let largest = session.selection().largest_problem;
        if room.is_some_and(|room| !lane.first_convoy_fits(room))
            || largest.is_some_and(|largest| lane.first_payload() > largest)
        {
            return Ok(Turn::Anew);
        }
        if lane.next_is_suspect() && in_hand.all > 0 {
            return Ok(Turn::Full);
        }
        let (from, open) = (lane.next(), lane.open.clone());
        let Some(taken) = lane.take(wanted, room.map_or(u64::MAX, |room| room.weight), largest.unwrap_or(u64::MAX))
        else {
            return Ok(Turn::NothingThere);
        };
        self.lanes.charge(&choice, &taken);
        self.lanes.remove_if_drained(&self.farm, &key);
        session.spend_credit();
        let hand_out = hand_out(&open, from, &taken, session, &job_type, in_hand.of_its_kind);
        let (trace_parent, token) = (open.trace_parent.as_deref(), hand_out.token);
        Ok(Turn::Served(Box::new(Decision {
            session: session.clone(),
            choice,
            load: self.farm.traffic.load(&session.unread, taken.bytes),
            trace: self.farm.traces.of_checkout(trace_parent, open.job_id, token, SystemTime::now),
            lane: open,
            taken,
            hand_out,
            limited: room.is_some(),
        })))
    }

    /// How many problems this workstation should have of that lane. None: it has no room for more.
    fn wanted(&mut self, session: &Session, choice: &Choice, job_type: &JobType, in_hand: usize) -> Option<usize> {
        let remaining = self.lanes.get_mut(&choice.lane())?.remaining();
        let situation = size::Situation {
            aim: self.farm.rhythm.checkout,
            limit: self.farm.rhythm.checkout_problems,
            cores: session.cores,
            measured: session.speed(&job_type.name),
            remaining,
            workstations: self.workstations(choice, announced(&job_type.controller)),
            time_limit: job_type.time_limit,
        };
        let wanted = size::wanted(&situation);
        let most = self.lanes.room(choice).and_then(|room| usize::try_from(room.problems).ok());
        let wanted = most.map_or(wanted, |most| wanted.min(most));
        if in_hand > 0 && !self.lanes.may_be_prefetched(choice) {
            return None;
        }
        size::has_room(&situation, in_hand, session.prefetch, wanted).then_some(wanted)
    }

    /// How many share what is left of a lane.
    fn workstations(&self, choice: &Choice, controller: &str) -> usize {
        let able = choice.candidate.requirement.and_then(|id| self.able.get(&id).copied());
        self.farm.workstations_with(controller).min(able.unwrap_or(usize::MAX))
    }

    /// Commits the decisions and sends what was committed, reading on meanwhile.
    async fn commit(&mut self, decisions: Vec<Decision>) -> anyhow::Result<()> {
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

fn in_hand(session: &Session, job_type: &JobType, decided: &[Decision]) -> InHand {
    let controller = announced(&job_type.controller);
    let its_own = || decided.iter().filter(|decision| decision.session.workstation_id == session.workstation_id);
    let is_of_its_kind =
        |decision: &&Decision| session.are_counted_together(&decision.choice.candidate.controller, controller);
    InHand {
        all: session.holds_unfinished() + its_own().count(),
        of_its_kind: session.holds_beside(controller) + its_own().filter(is_of_its_kind).count(),
    }
}

/// A checkout that is to be sent now.
struct Committed<'a> {
    checkout_id: CheckoutId,
    token: i64,
    session: Arc<Session>,
    lane: &'a OpenLane,
    taken: Taken,
    load: Arc<Load>,
    trace: Option<Box<CheckoutTrace>>,
}

impl Committed<'_> {
    fn ship(self, farm: &Arc<Farm>, call: &HandOutCall) {
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

pub async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

fn hand_out(
    lane: &OpenLane,
    from: BatchOrder,
    taken: &Taken,
    session: &Session,
    job_type: &JobType,
    in_hand: usize,
) -> HandOut {
    let limits = size::time_limits(in_hand, session.prefetch);
    HandOut {
        job_id: lane.job_id,
        lane_id: lane.lane_id,
        job_type: lane.job_type.clone(),
        from,
        to: BatchOrder(taken.to.0 - i64::from(planted(Bug::ShipsMoreThanItChecksOut) && taken.to.0 > from.0 + 1)),
        problems: i32::try_from(taken.problems.len()).expect("a checkout's size is bounded"),
        weight: i64::try_from(taken.weight).unwrap_or(i64::MAX),
        workstation_id: session.workstation_id,
        token: rand::random(),
        seconds: job_type.time_limit.map(|limit| limit.as_secs_f64() * limits as f64),
    }
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
