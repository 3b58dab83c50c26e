//! One agent's connection, as the rest of the server sees it: what it may be given, what it has been sent, when it
//! was last heard. Never touches the database or the wire itself.

mod holding;
pub mod progress;
mod proof;
mod selecting;
mod word;

pub use selecting::Chosen;

use crate::accept::Signs;
use crate::dispatch::choose::Selection;
use crate::dispatch::requirement::{Facts, Requirements};
use crate::dispatch::size::{self, Ahead, Speed};
use crate::outgoing::{self, Unread};
use holding::Holding;
use pcfarm_proto::ids::{CheckoutId, WorkstationId};
use pcfarm_proto::{idle_heartbeat, v1};
use pcfarm_sql::json::RawJson;
use pcfarm_sql::presence::Connection;
use progress::{Progress, piece_deadline};
use selecting::Selecting;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant, SystemTime};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use uuid::Uuid;
use word::Words;

/// Most checkouts that an agent may ask for at once.
const CREDIT_LIMIT: u32 = 64;

/// Words about equipment in a session: so many at once, as after a link that stood still, and one every so many seconds.
const EQUIPMENTS_AT_ONCE: u64 = 10;
const EQUIPMENT_SECONDS: u64 = 5;

/// A speed that differs by less is not written down anew.
const SPEED_CHANGE: f64 = 0.1;

/// Where a session meets its connection.
#[derive(Clone, Debug)]
pub struct Edge {
    pub out: outgoing::Sender,
    /// Bytes of the session's own stream.
    pub progress: Arc<Progress>,
    /// Signs of life on the connection.
    pub signs: Signs,
}

/// An agent's connection.
#[derive(Debug)]
pub struct Session {
    pub workstation_id: WorkstationId,
    pub number: i64,
    /// Whose certificate its connection has shown, and until when that holds. None: it came without.
    pub credential: Option<(Uuid, SystemTime)>,
    pub cores: u32,
    pub controllers: BTreeSet<String>,
    /// What its agent says that it has.
    facts: RwLock<Facts>,
    /// Controllers of which what is held is counted by itself.
    apart: BTreeSet<String>,
    selecting: RwLock<Selecting>,
    /// Checkouts that it always wants beside the one in the works. None: it has not said, and means its credit.
    pub prefetch: Option<usize>,
    /// The agent can return problems that it has not begun.
    gives_back: bool,
    pub out: outgoing::Sender,
    /// Checkouts on their way to it.
    pub unread: Arc<Unread>,
    /// Ends the connection.
    pub ended: CancellationToken,
    /// Bytes that have come, of whole messages and others.
    progress: Arc<Progress>,
    signs: Signs,
    piece_deadline: Duration,
    lease: Duration,
    /// Some of its cores have nothing to do.
    free: Arc<AtomicBool>,
    state: Mutex<State>,
}

/// What follows for a session from what an administrator wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    AsBefore,
    /// It takes no more, or for another reason than it was told.
    Finishes,
    /// What it has not finished is to go back now.
    GivesBack,
    /// It was told so then.
    OverSince(Instant),
    Undone,
}

/// How long a workstation may be silent before that is written down: one that holds checkouts, and one that does not, which
/// says half as often that it lives.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub holding: Duration,
    pub idle: Duration,
}

impl Limits {
    /// A beat may be late by half of its time.
    pub fn of(heartbeat: Duration, lease: Duration) -> Limits {
        let limit = |every: Duration| every.mul_f64(1.5).min(lease);
        Limits { holding: limit(heartbeat), idle: limit(idle_heartbeat(heartbeat, lease)) }
    }
}

/// What a session's silence comes to.
#[derive(Clone, Copy, Debug)]
pub enum Listened {
    /// It is not too long before then.
    Heard { until: Instant },
    /// Bytes have come since it was marked as silent, and its row may still have the mark.
    HeardAgain { until: Instant },
    /// For so many seconds.
    Silent { age: f64 },
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Instant,
    sequence: u64,
}

/// Part of a delivery that the database has judged.
#[derive(Clone, Copy, Debug, Default)]
pub struct Judged<'a> {
    /// Results.
    pub problems: usize,
    /// Job type and the cores' time, if these are known.
    pub measured: Option<(&'a str, Duration)>,
    /// The agent is done with the checkout.
    pub finished: bool,
    /// Problems that came back unbegun, if the agent returned any, or all that were left.
    pub returned: Option<usize>,
    /// The workstation does not hold the checkout any more.
    pub over: bool,
}

#[derive(Debug)]
struct Report {
    at: Instant,
    last_sequence: u64,
    held: HashSet<CheckoutId>,
}

#[derive(Debug)]
struct State {
    credit: u32,
    began: Instant,
    /// Words about equipment.
    equipped: u64,
    /// Somebody is about to hand something to it: until then it wants nothing else.
    claimed: bool,
    /// What its agent was told to run beside it.
    slots: Vec<String>,
    /// What it was told to go by.
    presence: Option<RawJson>,
    /// The dispatcher has it in its queue.
    queued: bool,
    suspended: bool,
    /// The agent is about to stop.
    leaving: bool,
    /// An administrator wants it to stop.
    drained: bool,
    /// Why, as its agent was told.
    drain_reason: String,
    /// Since when its agent was told that the time for what it holds is over.
    drain_is_over: Option<Instant>,
    heard: Instant,
    /// Words to its agent about its lease.
    words: Words,
    /// Marked in the database as not heard.
    silent: bool,
    /// The row may still have that mark: it was not recorded that the agent was heard again.
    mark_may_stay: bool,
    sequence: u64,
    /// Checkouts given to this session, and the number of the last message of each, once that is on its way.
    sent: HashMap<CheckoutId, Option<Sent>>,
    /// The controllers of those of them that are counted by themselves.
    sent_apart: HashMap<CheckoutId, String>,
    /// Those of them that are delivered and cannot be stored for now.
    aside: HashSet<CheckoutId>,
    /// Those of them that must be alone in the workstation's hands.
    alone: HashSet<CheckoutId>,
    /// What the agent's last heartbeat said it holds.
    reported: Option<Report>,
    /// Problems left in its unfinished checkouts.
    holding: Holding,
    /// Results so far of checkouts that are not finished, and the cores' time that they took.
    measuring: HashMap<CheckoutId, (usize, Duration)>,
    speeds: HashMap<String, Speed>,
    /// Results of it were accepted, and that was not taken yet.
    worked: bool,
    /// What it solved last, and what has been written down of that.
    newest_speed: Option<(String, f64)>,
    noted_speed: Option<(String, f64)>,
}

impl State {
    fn wants_work(&self) -> bool {
        let able = !self.suspended && !self.leaving && !self.drained;
        able && self.credit > 0 && !self.claimed && self.alone.is_empty()
    }

    /// Results have come, which took the cores so long. A checkout is measured as a whole, when it is finished: how much
    /// the next one may grow depends on its size.
    fn measured(
        &mut self,
        checkout: CheckoutId,
        (job_type, cores): (&str, u32),
        problems: usize,
        busy: Duration,
        finished: bool,
    ) {
        self.worked |= problems > 0;
        let (all, spent) = self.measuring.entry(checkout).or_default();
        *all += problems;
        *spent += busy;
        if !finished {
            return;
        }
        let (problems, busy) = self.measuring.remove(&checkout).unwrap_or_default();
        let before = self.speeds.get(job_type).copied();
        if let Some(speed) = size::updated(before, problems, busy, cores) {
            self.speeds.insert(job_type.to_owned(), speed);
            self.newest_speed = Some((job_type.to_owned(), speed.problems_per_second));
        }
    }

    fn forget(&mut self, checkout: CheckoutId, now: Instant) -> bool {
        self.alone.remove(&checkout);
        self.aside.remove(&checkout);
        self.measuring.remove(&checkout);
        self.holding.ends(checkout, now);
        self.sent_apart.remove(&checkout);
        self.sent.remove(&checkout).is_some()
    }
}

impl Session {
    pub fn new(
        connection: &Connection,
        hello: &v1::Hello,
        credential: Option<(Uuid, SystemTime)>,
        Edge { out, progress, signs }: Edge,
        ended: CancellationToken,
        lease: Duration,
    ) -> Session {
        let controllers: BTreeSet<String> = hello.controllers.iter().cloned().collect();
        let facts = Facts::of(hello);
        let selecting = Selecting::new(&controllers, &facts, connection.selection.as_ref(), BTreeSet::new());
        let holding = Holding::new(hello.cores.max(1), Instant::now());
        Session {
            workstation_id: connection.workstation_id,
            number: connection.session,
            credential,
            cores: hello.cores.max(1),
            controllers,
            facts: RwLock::new(facts),
            apart: hello.apart.iter().cloned().collect(),
            selecting: RwLock::new(selecting),
            prefetch: hello.prefetch.and_then(|prefetch| usize::try_from(prefetch).ok()),
            gives_back: hello.gives_back,
            out,
            unread: Arc::default(),
            ended,
            progress,
            signs,
            piece_deadline: piece_deadline(lease),
            lease,
            free: holding.free(),
            state: Mutex::new(State {
                credit: 0,
                began: Instant::now(),
                equipped: 0,
                claimed: false,
                slots: Vec::new(),
                presence: None,
                queued: false,
                suspended: hello.state() == v1::WorkstationState::Suspended,
                leaving: hello.state() == v1::WorkstationState::Draining,
                drained: connection.drain,
                drain_reason: connection.drain_reason.clone(),
                drain_is_over: None,
                heard: Instant::now(),
                words: Words::new(Instant::now()),
                silent: false,
                mark_may_stay: false,
                sequence: 0,
                sent: HashMap::new(),
                sent_apart: HashMap::new(),
                aside: HashSet::new(),
                alone: HashSet::new(),
                reported: None,
                holding,
                measuring: HashMap::new(),
                speeds: HashMap::new(),
                worked: false,
                newest_speed: None,
                noted_speed: None,
            }),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it holds a session's state")
    }

    /// Takes note of what its agent is to run beside it. True if that is something else than it was told.
    pub fn set_slots(&self, slots: &[String]) -> bool {
        let mut state = self.state();
        let changed = state.slots != slots;
        if changed {
            state.slots = slots.to_vec();
        }
        changed
    }

    /// Takes note of what its agent is to go by. True if that is something else than it was told.
    pub fn set_presence(&self, wanted: Option<&RawJson>) -> bool {
        let mut state = self.state();
        let changed = state.presence.as_ref() != wanted;
        if changed {
            state.presence = wanted.cloned();
        }
        changed
    }

    fn selecting(&self) -> RwLockReadGuard<'_, Selecting> {
        self.selecting.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn selecting_anew(&self) -> RwLockWriteGuard<'_, Selecting> {
        self.selecting.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn selection(&self) -> Arc<Selection> {
        self.selecting().selection.clone()
    }

    /// The same for all that may be given the same.
    pub fn kind(&self) -> Arc<str> {
        self.selecting().kind.clone()
    }

    /// Finds out which of these it meets, as far as it is not known: it is handed nothing else that requires something.
    pub fn judge(&self, requirements: &Requirements) {
        if !self.selecting().is_judged(requirements) {
            self.selecting_anew().judge(requirements);
        }
    }

    /// Takes note of what an administrator wants it to be given. True if that is something else than before.
    pub fn select(&self, chosen: Option<&RawJson>) -> bool {
        // It is asked of every session, all the time.
        let as_before = self.selecting().is_chosen(chosen);
        !as_before && self.selecting_anew().select(&self.controllers, &self.facts(), chosen)
    }

    /// Takes note of what its agent has enough of. True if that is something else than before.
    pub fn pause(&self, paused: BTreeSet<String>) -> bool {
        self.selecting_anew().pause(&self.controllers, &self.facts(), paused)
    }

    fn facts(&self) -> RwLockReadGuard<'_, Facts> {
        self.facts.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a word about equipment. False: there were too many in this session.
    pub fn may_equip(&self) -> bool {
        let mut state = self.state();
        let most = EQUIPMENTS_AT_ONCE.saturating_add(state.began.elapsed().as_secs() / EQUIPMENT_SECONDS);
        state.equipped += 1;
        state.equipped <= most
    }

    /// Takes note of what its agent has now. True if that is something else than before.
    pub fn equip(&self, equipment: &v1::Equipment) -> bool {
        // Locks are taken in the order of `select`.
        let mut selecting = self.selecting_anew();
        let mut facts = self.facts.write().unwrap_or_else(PoisonError::into_inner);
        let now = facts.equipped(equipment);
        let changed = *facts != now;
        if changed {
            *facts = now;
            selecting.equip(&self.controllers, &facts);
        }
        changed
    }

    /// A word from the agent. True if it had been marked silent.
    pub fn heard(&self) -> bool {
        let mut state = self.state();
        state.heard = Instant::now();
        let heard = state.heard;
        state.words.message_came(heard);
        let was_silent = std::mem::take(&mut state.silent);
        state.mark_may_stay |= was_silent;
        was_silent
    }

    /// Has it been silent for too long? If so, its next word is to be written down.
    pub fn listen(&self, now: Instant, limits: &Limits) -> Listened {
        let mut state = self.state();
        let heard = self.progress.heard(state.heard, self.piece_deadline);
        let holding = state.sent.values().flatten().map(|sent| sent.at.max(heard) + limits.holding);
        let until = holding.fold(heard + limits.idle, Instant::min);
        if now < until {
            let again = state.silent || state.mark_may_stay;
            return if again { Listened::HeardAgain { until } } else { Listened::Heard { until } };
        }
        state.silent = true;
        Listened::Silent { age: now.saturating_duration_since(heard).as_secs_f64() }
    }

    /// The row has no mark of silence. Until this is known, each pulse takes the mark back: a live workstation whose row kept it
    /// would be declared dead after a lease.
    pub fn is_unmarked(&self) {
        let mut state = self.state();
        (state.silent, state.mark_may_stay) = (false, false);
    }

    /// A statement about marks of silence failed or was given up, and may still have an effect.
    pub fn distrust_mark(&self) {
        self.state().mark_may_stay = true;
    }

    /// That it was heard again could not be written down: to be said with the next word.
    pub fn word_unrecorded(&self) {
        self.state().silent = true;
    }

    pub fn silence(&self) -> Duration {
        self.progress.heard(self.state().heard, self.piece_deadline).elapsed()
    }

    /// The server itself was standing still, or has no room for what it said: it was not silent.
    pub fn excuse_silence(&self) {
        self.state().heard = Instant::now();
    }

    pub fn add_credit(&self, checkouts: u32) {
        let mut state = self.state();
        state.credit = state.credit.saturating_add(checkouts).min(CREDIT_LIMIT);
    }

    /// May it be handed something now? Not while it holds what must be alone.
    pub fn wants_work(&self) -> bool {
        self.state().wants_work() && !self.ended.is_cancelled()
    }

    /// Enters the dispatcher's queue. False if it is there already, or wants nothing.
    pub fn enter_queue(&self) -> bool {
        let mut state = self.state();
        let enters = !state.queued && state.wants_work() && !self.ended.is_cancelled();
        state.queued |= enters;
        enters
    }

    pub fn is_queued(&self) -> bool {
        self.state().queued
    }

    /// It wants work and holds nothing: nobody else hands it anything before [`Session::end_claim`].
    pub fn claim(&self) -> bool {
        let mut state = self.state();
        let is_idle = state.wants_work() && state.sent.is_empty() && !self.ended.is_cancelled();
        state.claimed |= is_idle;
        is_idle
    }

    /// It was handed something, or not.
    pub fn end_claim(&self, served: bool) {
        let mut state = self.state();
        state.claimed = false;
        state.credit = state.credit.saturating_sub(u32::from(served));
    }

    /// It is not in the dispatcher's queue any more.
    pub fn leave_queue(&self) {
        self.state().queued = false;
    }

    pub fn spend_credit(&self) {
        let mut state = self.state();
        state.credit = state.credit.saturating_sub(1);
    }

    pub fn set_suspended(&self, suspended: bool) {
        let mut state = self.state();
        if std::mem::replace(&mut state.suspended, suspended) != suspended {
            state.holding.pauses_or_resumes(Instant::now());
        }
    }

    pub fn set_leaving(&self, leaving: bool) {
        self.state().leaving = leaving;
    }

    /// Takes note of what an administrator wants. `left`: the time that is left for what it holds, in seconds, if that is to end.
    pub fn set_drained(&self, drained: bool, reason: &str, left: Option<f64>) -> Drained {
        let mut state = self.state();
        let was = std::mem::replace(&mut state.drained, drained);
        if !drained {
            return if was { Drained::Undone } else { Drained::AsBefore };
        }
        if left.is_some_and(|left| left <= 0.0) {
            let before = state.drain_is_over;
            let since = *state.drain_is_over.get_or_insert_with(Instant::now);
            return if before.is_none() { Drained::GivesBack } else { Drained::OverSince(since) };
        }
        if state.drain_is_over.take().is_some() {
            // It was given more time: what it gave back is gone, and it holds nothing that this would help.
            state.drain_reason.clear();
        }
        if was && state.drain_reason == reason {
            return Drained::AsBefore;
        }
        reason.clone_into(&mut state.drain_reason);
        Drained::Finishes
    }

    /// Checkouts in its hands or on their way.
    pub fn holds(&self) -> usize {
        self.state().sent.len()
    }

    /// The same without those that are delivered and kept aside.
    pub fn holds_unfinished(&self) -> usize {
        let state = self.state();
        state.sent.len() - state.aside.len()
    }

    /// The same, of those that wait for what problems of this controller wait for.
    pub fn holds_beside(&self, controller: &str) -> usize {
        let state = self.state();
        let is_held = |id: &CheckoutId| !state.aside.contains(id);
        let apart = || state.sent_apart.iter().filter(|(id, _)| is_held(id));
        match self.apart.contains(controller) {
            true => apart().filter(|(_, other)| *other == controller).count(),
            false => state.sent.len() - state.aside.len() - apart().count(),
        }
    }

    /// True if problems of this controller wait for a pool of their own and not for the cores.
    pub fn is_apart(&self, controller: &str) -> bool {
        self.apart.contains(controller)
    }

    /// Do problems of both wait for the same?
    pub fn are_counted_together(&self, one: &str, other: &str) -> bool {
        one == other || !(self.apart.contains(one) || self.apart.contains(other))
    }

    /// So few of them that there may be something that it had no room for.
    pub fn holds_little(&self) -> bool {
        !self.apart.is_empty() || self.holds_unfinished() <= self.prefetch.unwrap_or(0)
    }

    pub fn held(&self) -> Vec<CheckoutId> {
        self.state().sent.keys().copied().collect()
    }

    /// Notes a checkout that is on its way, with the number of its problems, until [`Session::sent`] its last part. `alone`: nothing else may be handed to the workstation
    /// beside it.
    pub fn announce(&self, checkout: CheckoutId, (job_type, controller): (&str, &str), problems: usize, alone: bool) {
        let is_apart = self.apart.contains(controller);
        let mut state = self.state();
        state.sent.insert(checkout, None);
        if is_apart {
            state.sent_apart.insert(checkout, controller.to_owned());
        }
        state.holding.begins(checkout, job_type, is_apart, problems, Instant::now());
        if alone {
            state.alone.insert(checkout);
        }
    }

    /// It is delivered, and something stands in the way of its results: it takes no room from others.
    pub fn set_aside(&self, checkout: CheckoutId) {
        let mut state = self.state();
        if state.sent.contains_key(&checkout) {
            state.aside.insert(checkout);
            state.alone.remove(&checkout);
            state.holding.ends(checkout, Instant::now());
        }
    }

    /// Notes a judged part of a delivery. Returns true if a core has become free since the last call.
    pub fn judged(&self, checkout: CheckoutId, delivered: &Judged) -> bool {
        let now = Instant::now();
        let mut state = self.state();
        if let Some((job_type, busy)) = delivered.measured {
            state.measured(checkout, (job_type, self.cores), delivered.problems, busy, delivered.finished);
        }
        state.holding.progresses(checkout, delivered.problems, now);
        if let Some(returned) = delivered.returned {
            state.holding.returns(checkout, returned, now);
        }
        if delivered.over {
            state.forget(checkout, now);
        }
        state.holding.take_freed()
    }

    /// Its speed at this job type, and the work of its cores before they begin a problem of this controller. Without that work, such
    /// a problem does not wait for the cores.
    pub fn speed_and_ahead(&self, job_type: &str, controller: &str) -> (Option<Speed>, Option<Ahead>) {
        let state = self.state();
        let speed = |job_type: &str| state.speeds.get(job_type).copied();
        let ahead = (!self.apart.contains(controller)).then(|| state.holding.ahead(speed, Instant::now()));
        (speed(job_type), ahead)
    }

    /// True if some of its cores have nothing to do.
    pub fn is_free(&self) -> bool {
        self.free.load(Ordering::Relaxed)
    }

    /// True if it wants work and some of its cores have had nothing to do for that long.
    pub fn is_idle_for(&self, time: Duration) -> bool {
        let state = self.state();
        state.wants_work() && state.holding.is_free_for(time, Instant::now()) && !self.ended.is_cancelled()
    }

    /// Returns checkouts that have been there for `time` and may have unbegun problems, `most` at most, and how many problems the
    /// workstation holds beyond those that it computes. None: it has none to spare, got a request a moment ago, or cannot return any.
    /// A workstation that gives way to a person, is drained, or stops is asked like any other.
    pub fn surplus(&self, time: Duration, most: usize) -> Option<(Vec<CheckoutId>, usize)> {
        if !self.gives_back || self.ended.is_cancelled() {
            return None;
        }
        let state = self.state();
        // A problem that must run alone is never moved.
        if !state.alone.is_empty() {
            return None;
        }
        state.holding.surplus(!state.suspended, (time, most), Instant::now())
    }

    /// Time of the last look for problems to return.
    pub fn looked_at(&self) -> Option<Instant> {
        self.state().holding.looked_at()
    }

    /// Notes that the server found no problem among the checkouts from `oldest` on that an idle workstation could take.
    pub fn looked(&self, oldest: Option<CheckoutId>) {
        self.state().holding.looked(oldest, Instant::now());
    }

    /// Notes a request to return problems of the checkouts from `oldest` on.
    pub fn asked(&self, oldest: Option<CheckoutId>) {
        self.state().holding.asked(oldest, Instant::now());
    }

    /// Its last part, the message of this number, is on its way.
    pub fn sent(&self, checkout: CheckoutId, sequence: u64) {
        if let Some(sent) = self.state().sent.get_mut(&checkout) {
            *sent = Some(Sent { at: Instant::now(), sequence });
        }
    }

    /// Tells the agent that a checkout is over, and that nobody wants its results. One that does not know it lets that pass.
    pub fn revoke(&self, checkout: CheckoutId, reason: String) {
        let revoke = v1::Revoke { revoked: vec![v1::Revocation { checkout_id: checkout.0, reason }] };
        let message = v1::ServerMessage { message: Some(v1::server_message::Message::Revoke(revoke)) };
        if self.out.try_send(Ok(message).into()).is_err() {
            self.end(Status::resource_exhausted("the agent does not read"));
        }
    }

    /// Notes a checkout that the workstation held when it connected, with the number of its problems that are left, as the database
    /// has it.
    pub fn brought(&self, checkout: CheckoutId, (job_type, controller): (&str, &str), problems: usize) {
        self.announce(checkout, (job_type, controller), problems, false);
        self.sent(checkout, 0);
    }

    /// It is on its way or in its hands.
    pub fn has(&self, checkout: CheckoutId) -> bool {
        self.state().sent.contains_key(&checkout)
    }

    /// True if it was on its way or in its hands.
    pub fn forget(&self, checkout: CheckoutId) -> bool {
        self.state().forget(checkout, Instant::now())
    }

    pub fn next_sequence(&self) -> u64 {
        let mut state = self.state();
        state.sequence += 1;
        state.sequence
    }

    /// What a heartbeat says: what it holds, and the number of the last message of a checkout that it has read.
    pub fn report(&self, held: HashSet<CheckoutId>, last_sequence: u64) {
        self.state().reported = Some(Report { at: Instant::now(), last_sequence, held });
    }

    /// Did a live checkout of this workstation never arrive? Only a heartbeat that came well after it was sent, and
    /// does not name it, says so. A checkout that this session knows nothing of came from another server.
    pub fn never_received(&self, checkout: CheckoutId, grace: Duration) -> bool {
        let state = self.state();
        let Some(report) = &state.reported else { return false };
        if report.held.contains(&checkout) {
            return false;
        }
        match state.sent.get(&checkout) {
            // Not before the agent has read as far: a slow link may still carry it.
            Some(Some(sent)) => report.last_sequence >= sent.sequence && report.at > sent.at + grace,
            Some(None) => false,
            None => true,
        }
    }

    /// What it solved last and how fast, if that is another job type, or a tenth faster or slower, than what was taken before.
    pub fn take_speed(&self) -> Option<(String, f64)> {
        let mut state = self.state();
        let (job_type, rate) = state.newest_speed.as_ref()?;
        let same = |(of, noted): &(String, f64)| of == job_type && (rate / noted - 1.0).abs() < SPEED_CHANGE;
        if state.noted_speed.as_ref().is_some_and(same) {
            return None;
        }
        let changed = state.newest_speed.clone();
        state.noted_speed.clone_from(&changed);
        changed
    }

    /// Returns whether results of it were accepted since the last call.
    pub fn take_worked(&self) -> bool {
        std::mem::take(&mut self.state().worked)
    }

    /// What was taken last is not known to anybody else: it is taken again.
    pub fn forget_speed(&self) {
        self.state().noted_speed = None;
    }

    /// Ends the connection with a reason for the agent.
    pub fn end(&self, status: Status) {
        // A full queue means that the agent does not read: it will notice the end by itself.
        drop(self.out.try_send(Err(status).into()));
        self.ended.cancel();
    }
}

#[cfg(test)]
impl Session {
    /// Without a connection.
    fn of_test(id: i64, hello: &v1::Hello, drain: bool, drain_reason: String) -> Session {
        let connection = Connection {
            workstation_id: WorkstationId(id),
            session: 1,
            drain,
            drain_reason,
            same_instance: false,
            was_dead: false,
            woken: false,
            selection: None,
            presence: None,
            slots: Vec::new(),
        };
        let out = tokio::sync::mpsc::channel(1).0;
        let edge = Edge { out, progress: Arc::default(), signs: Signs::default() };
        Session::new(&connection, hello, None, edge, CancellationToken::new(), Duration::from_secs(20))
    }

    /// A checkout for that controller is on its way; `None` until its last part is written.
    pub fn sending(&self, checkout: CheckoutId, controller: &str) {
        let mut state = self.state();
        state.sent.insert(checkout, None);
        if self.apart.contains(controller) {
            state.sent_apart.insert(checkout, controller.to_owned());
        }
    }

    /// With the other end of its messages.
    pub fn that_listens(id: i64, hello: &v1::Hello) -> (Session, tokio::sync::mpsc::Receiver<outgoing::Outgoing>) {
        let (out, messages) = tokio::sync::mpsc::channel(4);
        (Session { out, ..Session::of_test(id, hello, false, String::new()) }, messages)
    }

    /// Asks for one checkout.
    pub fn that_waits(id: i64, hello: &v1::Hello) -> Session {
        let session = Session::of_test(id, hello, false, String::new());
        session.add_credit(1);
        session
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(drained: bool) -> Session {
        let reason = if drained { "fan".to_owned() } else { String::new() };
        Session::of_test(1, &v1::Hello::default(), drained, reason)
    }

    #[test]
    fn a_drain_is_told_once_and_ended_when_its_time_is_over() {
        let one = session(false);
        assert_eq!(one.set_drained(false, "", None), Drained::AsBefore);
        assert_eq!(one.set_drained(true, "fan", Some(5.0)), Drained::Finishes);
        assert_eq!(one.set_drained(true, "fan", Some(4.0)), Drained::AsBefore);
        assert_eq!(one.set_drained(true, "disk", Some(3.0)), Drained::Finishes);
        assert_eq!(one.set_drained(true, "disk", Some(0.0)), Drained::GivesBack);
        let Drained::OverSince(since) = one.set_drained(true, "disk", Some(-1.0)) else { panic!("it was told") };
        assert_eq!(one.set_drained(true, "disk", Some(-2.0)), Drained::OverSince(since));
        // Somebody gives it more time.
        assert_eq!(one.set_drained(true, "disk", None), Drained::Finishes);
        assert_eq!(one.set_drained(false, "", None), Drained::Undone);
        // One that comes drained has been told why, but not that its time is over.
        assert_eq!(session(true).set_drained(true, "fan", None), Drained::AsBefore);
        assert_eq!(session(true).set_drained(true, "fan", Some(-9.0)), Drained::GivesBack);
    }

    #[test]
    fn who_holds_something_may_be_silent_for_less_long() {
        let one = session(false);
        let in_seconds = |seconds| Instant::now() + Duration::from_secs(seconds);
        let limits = Limits::of(Duration::from_secs(5), Duration::from_secs(20));
        let is_silent = |now| matches!(one.listen(now, &limits), Listened::Silent { .. });
        assert!(!is_silent(in_seconds(14)));
        // What has not been sent yet it has nothing to say of.
        one.sending(CheckoutId(1), "echo");
        assert!(!is_silent(in_seconds(14)));
        assert!(!one.heard());
        one.sent(CheckoutId(1), 1);
        assert!(!is_silent(in_seconds(7)) && is_silent(in_seconds(8)));
        assert!(one.heard(), "its next word is written down");
        one.forget(CheckoutId(1));
        assert!(!is_silent(in_seconds(14)) && is_silent(in_seconds(15)));
    }

    #[test]
    fn bytes_of_a_long_message_are_heard_for_a_while() {
        let one = session(false);
        let began = Instant::now();
        let in_seconds = |seconds| began + Duration::from_secs(seconds);
        let limits = Limits::of(Duration::from_secs(5), Duration::from_secs(20));
        assert!(matches!(one.listen(in_seconds(16), &limits), Listened::Silent { .. }));
        one.progress.came_at(in_seconds(17));
        assert!(matches!(one.listen(in_seconds(18), &limits), Listened::HeardAgain { .. }));
        one.is_unmarked();
        assert!(matches!(one.listen(in_seconds(31), &limits), Listened::Heard { .. }));
        // Two leases after the last whole message, bytes are no word any more.
        one.progress.came_at(in_seconds(100));
        assert!(matches!(one.listen(in_seconds(54), &limits), Listened::Heard { .. }));
        let Listened::Silent { age } = one.listen(in_seconds(100), &limits) else { panic!("it trickles") };
        assert!((59.0..61.0).contains(&age), "{age}");
    }

    #[test]
    fn a_mark_of_silence_is_owed_until_its_end_is_recorded() {
        let one = session(false);
        let began = Instant::now();
        let in_seconds = |seconds| began + Duration::from_secs(seconds);
        let limits = Limits::of(Duration::from_secs(5), Duration::from_secs(20));
        let again = |seconds| matches!(one.listen(in_seconds(seconds), &limits), Listened::HeardAgain { .. });
        assert!(matches!(one.listen(in_seconds(16), &limits), Listened::Silent { .. }));
        one.progress.came_at(in_seconds(17));
        assert!(again(18) && again(19), "the statement hung: it is tried again");
        one.is_unmarked();
        assert!(!again(20));
        // The registrar's statement may hang, too.
        assert!(matches!(one.listen(in_seconds(40), &limits), Listened::Silent { .. }));
        assert!(one.heard() && !one.heard(), "it is said once");
        one.progress.came_at(in_seconds(41));
        assert!(again(42));
        one.is_unmarked();
        one.distrust_mark();
        assert!(again(43), "a statement that was given up may have marked it");
    }

    #[test]
    fn a_speed_is_news_if_it_is_another() {
        let one = session(false);
        let solve = |job_type: &str, problems: usize| {
            let measured = Some((job_type, Duration::from_secs(1)));
            one.judged(CheckoutId(1), &Judged { problems, measured, finished: true, ..Judged::default() });
            one.take_speed()
        };
        assert_eq!(one.take_speed(), None);
        assert_eq!(solve("a", 100), Some(("a".to_owned(), 100.0)));
        assert_eq!(solve("a", 105), None);
        assert_eq!(solve("b", 100), Some(("b".to_owned(), 100.0)));
        assert_eq!(solve("b", 200), Some(("b".to_owned(), 150.0)));
    }
}
