//! What the agent holds, owes and may ask for: every decision of a session, without I/O or clock.
//!
//! Owns the checkouts in hand, the deliveries not yet acknowledged, and what the server has been told. It
//! must never wait, and never forget a result that the server has not judged.
//!
//! A checkout's life here:
//!
//! ```text
//! parts arrive ─► Computing ─► Ready ─► Closing ─► gone
//!                     │      all solved,  │    last results     the server acknowledged
//!                     │      or given back│    in the outbox
//!                     └───────────────────┴──────────────────► gone: revoked, or unknown to the server
//! ```
//!
//! - [`held`]: one checkout in hand.
//! - [`outbox`]: deliveries until they are acknowledged; [`pace`]: how much of them is on the link at a time.
//! - `session`: from Hello to the end of a session; `hearing`: what the server says in it.
//! - `telling`: what the server is told, and when; `asking`: what it is asked for.
//! - `stopping`: how it comes to its end; `leaving`: how it gives way to the workstation's person.
//! - `returning`: problems that it returns unbegun because another workstation is idle; `convoys`: where checkouts are cut.
//! - `contact`: contact with the servers, and the end of the lease; `clocks`: the server's clock in the agent's time.
//! - `stuck`: what it does when controllers do not return from revoked work.

mod asking;
mod clocks;
pub mod contact;
mod convoys;
mod hearing;
pub mod held;
mod leaving;
pub mod outbox;
pub mod pace;
mod returning;
mod session;
mod stopping;
mod stuck;
mod telling;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use pcfarm_faults::{CrashPoint, crash_point};
use pcfarm_proto::v1::agent_message::Message as Out;
use pcfarm_proto::v1::server_message::Message as In;
use pcfarm_proto::{PART_BYTES_TARGET, SOLUTION_BYTES_LIMIT, ids::CheckoutId, v1};

use crate::pool::{Batch, Report};
use crate::presence::history::Yields;
use crate::presence::wishes::Setting;
use crate::presence::{Directive, Signs};
use crate::work::lease::LeaseEnd;
use crate::work::{Checkout, CheckoutKey};
use contact::{AfterLease, Contact};
use held::Held;
use outbox::Outbox;
use pace::Pace;

/// What is assumed until the first Welcome says otherwise; the farm's own default.
const LEASE: Duration = Duration::from_secs(20);

/// Longer than any farm's lease or heartbeat: what a server says beyond it is nonsense, and must not overflow anything.
const LONGEST: Duration = Duration::from_secs(7 * 86_400);

/// A server that takes longer to say Welcome is as good as silent: another one may be quicker. A long Hello takes time by itself, an
/// eighth of 64 kbit/s assumed, which slots share.
const WELCOME_WAIT: Duration = Duration::from_secs(10);
const HELLO_BYTES_PER_SECOND: usize = 1 << 10;

/// Bytes of a text for people. A server cuts them to 255 characters.
const TEXT_BYTES_LIMIT: usize = 1_020;

/// A server that leaves a delivery unanswered for so many leases cannot reach its database: try another.
const LEASES_TO_ACKNOWLEDGE: u32 = 3;

/// How often finished results of an unfinished checkout are delivered: what a dying workstation may lose.
const PARTIAL_DELIVERY_EVERY: Duration = Duration::from_secs(1);

/// How often the state may change in the server's eyes: small checkouts must not make it flicker.
const STATE_CHANGE_EVERY: Duration = Duration::from_millis(500);

/// How often what is paused may change in the server's eyes.
const INTAKE_CHANGE_EVERY: Duration = Duration::from_millis(50);

/// Shortest time between two words about GPUs and programs.
const EQUIPMENT_CHANGE_EVERY: Duration = Duration::from_secs(5);

/// How often the reason for a state that stays may change.
const REASON_CHANGE_EVERY: Duration = Duration::from_secs(5);

/// How long it must compute before the server is told so: a row in the database, which the result of a lone small problem
/// would have to wait for.
const PROCESSING_TOLD_AFTER: Duration = Duration::from_millis(100);

/// How long acknowledgements are waited for after the grace period of a stop.
const STOP_ACKNOWLEDGE_WAIT: Duration = Duration::from_secs(5);

/// Cores that are all occupied by revoked work for so long will not be free soon: others may have what waits
/// for them. A controller that looks at all whether it is cancelled looks more often, and a program whose
/// supervisor does not answer is ended after 12 s.
const STUCK_PATIENCE: Duration = Duration::from_secs(15);

/// How long a stopping agent waits for checkouts that were on their way to it, to give them back.
const STOP_LINGER: Duration = Duration::from_millis(200);

/// So many checkouts, or problems of them, may wait to be acknowledged before no more is asked for. They hide the way to the
/// database and back, where a server stores tens of thousands at a time. With more, a quick job's results are no sooner stored,
/// and more of them are lost with the workstation.
const UNACKNOWLEDGED_CHECKOUTS_LIMIT: usize = 256;
const UNACKNOWLEDGED_PROBLEMS_LIMIT: usize = 100_000;

/// Checkouts in hand, also those whose results the server keeps: a Hello and a heartbeat list all of them, and a slow link carries
/// such a list within a few seconds.
const HELD_LIMIT: usize = 1_000;

/// How much work is wanted here beside what is computed, so that fetching the next checkout costs no core's time: many
/// small checkouts, or one that is not.
const WORK_AHEAD: Duration = Duration::from_millis(100);

/// Most checkouts ahead, however small they are.
const PREFETCH_LIMIT: u32 = 63;

/// A heartbeat that lists more checkouts waits while results are on a slow link before it.
const SHORT_LIST: usize = 32;

/// What of a message's limit is left to its frame around one solution.
const FRAME_BYTES: usize = 64 << 10;

/// What happened.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all of them are the large one")]
pub enum Event {
    /// A stream to a server is open.
    Connected,
    Received(In),
    /// The server refuses this session because it cannot reach its database.
    Outage,
    /// The stream has ended.
    Disconnected,
    Computed(Report),
    /// No problem of these was taken, and none will be.
    Withdrawn(Vec<CheckoutKey>),
    /// Controllers whose problems find no room in some pool, and why: all of them.
    HeldUp(BTreeMap<String, String>),
    /// What the workstation's person allows.
    Directed(Directive),
    /// GPUs and programs of the machine.
    Equipped(v1::Equipment),
    /// The agent is to stop in good order.
    Stop,
}

/// What is to be done.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there are a handful at a time, and most are messages")]
pub enum Action {
    Send(Out),
    /// Again with each problem that was released, if it is run one by one.
    Compute(Arc<Checkout>),
    /// No more of it is taken; its controllers have been told already.
    Cancel(Arc<Checkout>),
    /// Answered by [`Event::Withdrawn`].
    WithdrawUnstarted,
    LimitSolutions(usize),
    /// End this stream and open another.
    Reconnect,
    /// Controllers are in a person's way and do not hear: only another process in place of this one ends them.
    Replace,
    /// No problem is taken, or again; those who can stand still have been told already.
    Pause(bool),
    Exit(Ending),
}

/// How an agent ended that was told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Clean,
    /// So many checkouts were left without acknowledgement; the farm takes them back.
    Unacknowledged(usize),
}

/// What an agent says of itself, and what it may hold.
#[derive(Clone, Debug)]
pub struct Profile {
    /// `held` and `state` are filled in at every greeting; its controllers are all that may be computed.
    pub hello: v1::Hello,
    pub prefetch: u32,
    pub grace: Duration,
    pub unacknowledged_bytes: usize,
    /// Controllers whose problems wait for pools of their own and not for the cores: each is asked for by itself.
    pub apart: BTreeSet<String>,
    /// Controllers whose problems can stand still and go on.
    pub freezable: BTreeSet<String>,
    pub after_lease: AfterLease,
}

pub struct Inventory {
    profile: Profile,
    held: BTreeMap<CheckoutId, Held>,
    outbox: Outbox,
    pace: Pace,
    session: Session,
    contact: Contact,
    drain: Drain,
    /// Since the workstation's person is back; none: it may work.
    leaving: Option<leaving::Leaving>,
    /// Cores take no problems.
    paused: bool,
    signs: Signs,
    yields: Option<Yields>,
    settings: Arc<[Setting]>,
    lease: Duration,
    /// End of the lease, for supervisors.
    lease_end: LeaseEnd,
    solution_bytes_limit: usize,
    /// Bytes of a delivery on a link that is not measured, and the most of one on any link.
    part_bytes_target: usize,
    delivery_bytes_limit: usize,
    actions: Vec<Action>,
    revoked: u64,
    /// Time that checkouts of each kind take this workstation, as a moving average.
    typical_checkout: BTreeMap<Kind, Duration>,
    held_up: BTreeMap<String, String>,
    paces: returning::Paces,
    /// Unanswered request of the server to return problems.
    to_return: Option<v1::GiveBack>,
    pockets_emptied: Duration,
    /// GPUs and programs as of the last message to the server, and whether these are the present ones: comparing them is no work for
    /// each turn of the loop.
    equipment_told: v1::Equipment,
    equipment_is_told: bool,
    stuck: stuck::Stuck,
}

/// What problems wait for: a controller that is apart, or else, none, the cores.
type Kind = Option<String>;

#[expect(clippy::large_enum_variant, reason = "each agent has a handful")]
enum Session {
    None,
    /// Hello was sent.
    Greeting {
        since: Duration,
        /// The latest time of the Welcome.
        until: Duration,
        /// As Hello has them.
        state: v1::WorkstationState,
        signs: Signs,
        settings: Arc<[Setting]>,
    },
    Open(Open),
    /// This agent gave it up; its end has not come yet.
    GivenUp,
}

struct Open {
    credit: u32,
    last_sequence: u64,
    heartbeat_every: Duration,
    /// While it holds nothing, which nobody then waits for.
    idle_heartbeat_every: Duration,
    heartbeat_due: Duration,
    /// The last heartbeat that listed all checkouts in hand.
    listed_at: Duration,
    state: v1::WorkstationState,
    state_due: Duration,
    /// Why it is in that state, if there is something to say, and when that may change.
    reason: String,
    asleep: bool,
    signs: Signs,
    settings: Arc<[Setting]>,
    reason_due: Duration,
    /// The server knows what it is to be told of intake; and what it was told last is paused.
    takes_intake: bool,
    paused: BTreeSet<String>,
    intake_due: Duration,
    /// The server knows what Equipment is; and when it may be told of another.
    takes_equipment: bool,
    equipment_due: Duration,
    /// It computes, and that has not been told.
    processing_since: Option<Duration>,
    /// Checkouts whose last part is to come.
    arriving: BTreeMap<CheckoutId, v1::Checkout>,
}

enum Drain {
    No,
    /// The server asked for it.
    Server {
        reason: String,
        /// The time for what is held is over.
        over: bool,
        /// It is to be given back, and has not been yet.
        gives_back: bool,
    },
    /// The agent must stop.
    Stop {
        since: Duration,
        given_back: bool,
    },
}

impl Inventory {
    pub fn new(profile: Profile, now: Duration) -> Inventory {
        Inventory {
            profile,
            held: BTreeMap::new(),
            outbox: Outbox::default(),
            pace: Pace::default(),
            session: Session::None,
            contact: Contact::new(now),
            drain: Drain::No,
            leaving: None,
            paused: false,
            signs: Signs::default(),
            yields: None,
            settings: Arc::default(),
            lease: LEASE,
            lease_end: LeaseEnd::default(),
            solution_bytes_limit: SOLUTION_BYTES_LIMIT,
            part_bytes_target: PART_BYTES_TARGET,
            delivery_bytes_limit: PART_BYTES_TARGET,
            actions: Vec::new(),
            revoked: 0,
            typical_checkout: BTreeMap::new(),
            held_up: BTreeMap::new(),
            paces: returning::Paces::default(),
            to_return: None,
            pockets_emptied: now,
            equipment_told: v1::Equipment::default(),
            equipment_is_told: true,
            stuck: stuck::Stuck::default(),
        }
    }

    /// Takes in one event. What follows from it is decided by [`Inventory::settle`], once per wake-up.
    pub fn take(&mut self, now: Duration, event: Event) {
        match event {
            Event::Connected => self.greet(now),
            Event::Received(message) => self.receive(now, message),
            Event::Outage => self.greeting_answered(),
            Event::Disconnected => self.disconnected(now),
            Event::Computed(Report::Started(key)) => self.started(now, key),
            Event::Computed(Report::Results(batch)) => self.computed(now, batch),
            // The driver's: it has fetched them.
            Event::Computed(Report::Waiting) => {}
            Event::HeldUp(held_up) => self.note_held_up(held_up),
            Event::Withdrawn(keys) => self.give_back(&keys, "the agent is stopping"),
            Event::Directed(directive) => self.directed(directive),
            Event::Equipped(v1::Equipment { gpus, programs }) => {
                (self.profile.hello.gpus, self.profile.hello.programs) = (gpus, programs);
                self.equipment_is_told = self.equipment() == self.equipment_told;
            }
            Event::Stop => self.stop(now),
        }
    }

    /// Decides what is due, and returns everything there is to do, in order. `revoked_cores` are occupied by
    /// work that is cancelled and has not returned yet.
    pub fn settle(&mut self, now: Duration, revoked_cores: u32) -> Vec<Action> {
        self.notice_absence(now);
        self.notice_end_of_lease(now);
        self.end_grace(now);
        self.end_drain();
        self.give_way(now, revoked_cores);
        self.notice_stuck(now, revoked_cores);
        self.return_unbegun(now);
        if matches!(self.session, Session::Open(_)) {
            self.deliver(now);
            self.tell_state(now);
            self.tell_equipment(now);
            self.ask(now, revoked_cores);
            self.beat(now);
        }
        self.give_up_silent_server(now);
        self.exit_if_done(now);
        std::mem::take(&mut self.actions)
    }

    /// When [`Inventory::settle`] has something to do even if nothing happens.
    pub fn deadline(&self, now: Duration) -> Duration {
        // Often enough to notice that the machine slept, before anything that is held is revoked.
        let mut next = now + if self.held.is_empty() { self.lease / 2 } else { self.lease / 4 };
        let mut due = |at: Duration| next = next.min(at);
        match &self.session {
            Session::None | Session::GivenUp => {}
            Session::Greeting { until, .. } => due(*until),
            Session::Open(open) => {
                due(open.heartbeat_due);
                if open.state != self.state() {
                    due(open
                        .processing_since
                        .map_or(open.state_due, |since| open.state_due.max(since + PROCESSING_TOLD_AFTER)));
                }
                if open.intake_due > now && open.paused != self.to_be_paused(open) {
                    due(open.intake_due);
                }
                if open.takes_equipment && !self.equipment_is_told {
                    due(open.equipment_due);
                }
                if open.state == self.state() && (open.reason != self.reason() || self.is_news(open)) {
                    due(open.reason_due);
                }
                if self.outbox.has_room(self.pace.piece()) && self.pace.has_room() {
                    self.held
                        .values()
                        .filter_map(Held::partial_since)
                        .for_each(|since| due(since + PARTIAL_DELIVERY_EVERY));
                }
            }
        }
        if self.held.values().any(Held::is_running) {
            due(self.pockets_emptied + PARTIAL_DELIVERY_EVERY);
        }
        if let Some(at) = self.lease_deadline(next) {
            next = at;
        }
        let mut due = |at: Duration| next = next.min(at);
        if let Some(at) = self.stuck_deadline() {
            due(at);
        }
        if let Some(at) = self.leaving_deadline(now) {
            due(at);
        }
        if let Drain::Stop { since, .. } = self.drain {
            let exit_by = since + self.profile.grace + STOP_ACKNOWLEDGE_WAIT;
            [since + STOP_LINGER, since + self.profile.grace, exit_by].into_iter().filter(|at| *at > now).for_each(due);
        }
        next
    }

    /// Why the farm has it take no more, if it has.
    pub fn drained_by_farm(&self) -> Option<&str> {
        match &self.drain {
            Drain::Server { reason, .. } => Some(reason),
            Drain::No | Drain::Stop { .. } => None,
        }
    }

    /// Whether results are to be fetched that cores have not reported: now and then, and at the last moment.
    pub fn wants_pockets_emptied(&mut self, now: Duration) -> bool {
        let last_moment = match self.drain {
            Drain::Stop { since, given_back } => !given_back && now >= since + self.profile.grace,
            Drain::Server { gives_back, .. } => gives_back,
            Drain::No => false,
        };
        let wanted = last_moment
            || self.lets_go_now()
            || self.to_return.is_some()
            || now >= self.pockets_emptied + PARTIAL_DELIVERY_EVERY;
        if wanted {
            self.pockets_emptied = now;
        }
        wanted
    }

    fn send(&mut self, message: Out) {
        self.actions.push(Action::Send(message));
    }

    fn state(&self) -> v1::WorkstationState {
        if !matches!(self.drain, Drain::No) {
            return v1::WorkstationState::Draining;
        }
        if self.leaving.is_some() {
            return v1::WorkstationState::Suspended;
        }
        if self.held.values().any(Held::is_computing) {
            return v1::WorkstationState::Processing;
        }
        v1::WorkstationState::Waiting
    }

    /// Beside its state and the reason for that.
    fn is_news(&self, open: &Open) -> bool {
        open.signs != self.signs || open.settings != self.settings
    }

    fn started(&mut self, now: Duration, key: CheckoutKey) {
        if let Some(held) = self.held_mut(key) {
            held.start(now);
            let controller = held.checkout.controller.clone();
            self.paces.started(kind_of(&self.profile, &controller), now);
        }
    }

    fn computed(&mut self, now: Duration, batch: Batch) {
        crash_point(CrashPoint::ProblemsSolved);
        let cores = self.profile.hello.cores.max(1);
        let Some(held) = self.held_mut(batch.key).filter(|held| held.is_computing()) else { return };
        let (problems, busy) = (batch.results.len(), batch.busy);
        held.add(batch, now);
        let (took, checkout) = (held.took(), Arc::clone(&held.checkout));
        let kind = kind_of(&self.profile, &checkout.controller);
        self.paces.solved(kind.clone(), &checkout.job_type, problems, busy, now);
        if let Some(took) = took {
            let took = took / cores;
            let typical = self.typical_checkout.entry(kind).or_insert(took);
            *typical = (*typical * 3 + took) / 4;
        }
    }

    /// Checkouts of a kind that are wanted beside the one that is computed.
    fn prefetch(&self, kind: &Kind) -> u32 {
        let wanted = match self.typical_checkout.get(kind) {
            None => 0,
            Some(typical) => WORK_AHEAD.as_nanos().div_ceil(typical.as_nanos().max(1)),
        };
        u32::try_from(wanted).unwrap_or(u32::MAX).min(PREFETCH_LIMIT).max(self.profile.prefetch)
    }

    fn held_mut(&mut self, key: CheckoutKey) -> Option<&mut Held> {
        self.held.get_mut(&key.checkout_id).filter(|held| held.checkout.key == key)
    }
}

fn kind_of(profile: &Profile, controller: &str) -> Kind {
    profile.apart.get(controller).cloned()
}

fn key_of(message: &v1::Checkout) -> CheckoutKey {
    CheckoutKey { checkout_id: CheckoutId(message.checkout_id), token: message.token }
}

fn held_message(key: CheckoutKey) -> v1::HeldCheckout {
    v1::HeldCheckout { checkout_id: key.checkout_id.0, token: key.token }
}

fn settings_message(settings: &[Setting]) -> v1::PresenceSettings {
    let setting = |one: &Setting| v1::PresenceSetting {
        name: one.name.clone(),
        value: short(&one.value),
        by: one.by.name().to_owned(),
        refused: short(&one.refused),
    };
    v1::PresenceSettings { settings: settings.iter().map(setting).collect() }
}

/// A text for people, cut to the bytes that a message may have of it.
fn short(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_BYTES_LIMIT)].to_owned()
}

fn yields_message(yields: Yields) -> v1::Yields {
    let count = u32::try_from(yields.count).unwrap_or(u32::MAX);
    v1::Yields { p50_ms: yields.p50_ms, p99_ms: yields.p99_ms, count }
}
