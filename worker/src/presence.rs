//! Whether the workstation's person is there, and what the agent may do.
//!
//! Owns the thread that asks all sources and the policy, and everybody's view of what came of it. It never waits for the agent, nor
//! for a disk, and the agent never for it.
//!
//! ```text
//! evdev ───────┐ at once, and every 5 s,  ┌──► sessions: work, or give back
//! terminals ───┤ at work 1 s   policy ────┤
//! helpers ─────┤ ──────────►  (decide)    └──► explain, history, the server's table of workstations
//! /proc, /sys ─┘
//! ```
//!
//! - [`policy`]: the decision, pure. [`signals`]: what it decides by.
//! - [`settings`]: what its owner says, and [`hours`] of the week.
//! - `sources`: all sources of a machine; `helper`: what people's sessions say. `linux`: `evdev` (with `bump` and `noise`), `terminals`,
//!   `probes`, `network`. `prober`: asks what takes time. `elsewhere`: the system's own counts, on macOS with `hid`. `load`: what others compute.
//! - [`remote`]: sessions without a terminal. [`inhibitors`]: programs that keep the screen on.
//! - [`wishes`]: what the farm wants, within the owner's limits; [`cores`]: of that, what the next process begins with.
//! - `pulse`: whether the thread still looks and the agent obeys, for programs that run on without it.
//! - `desk`: what is said to it and by it. `pause`: the owner's pause. `history`: what it did in the last week. `disk`: writes both.

mod aside;
#[cfg(target_os = "linux")]
mod bump;
pub mod cores;
mod desk;
mod disk;
#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod evdev;
pub(crate) mod helper;
#[cfg(target_os = "macos")]
mod hid;
pub(crate) mod history;
pub mod hours;
pub mod inhibitors;
#[cfg(target_os = "linux")]
mod linux;
mod load;
#[cfg(all(target_os = "linux", feature = "desktop"))]
mod network;
#[cfg(all(target_os = "linux", not(feature = "desktop")))]
#[path = "presence/network_missing.rs"]
mod network;
#[cfg(target_os = "linux")]
mod noise;
pub(crate) mod pause;
pub mod policy;
mod prober;
#[cfg(target_os = "linux")]
mod probes;
pub(crate) mod pulse;
pub mod remote;
pub mod settings;
pub mod signals;
mod sources;
#[cfg(target_os = "linux")]
mod terminals;
pub mod wishes;

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use jiff::Zoned;
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::info;

use self::cores::Wish;
use self::disk::Disk;
use self::helper::Helpers;
use self::history::{History, Yields};
use self::inhibitors::Told;
use self::pause::Pauses;
use self::policy::{ANSWER_LIMIT, Activity, Policy, State, decide};
use self::pulse::Pulse;
use self::settings::Settings;
use self::signals::{Input, Moment, Reading, Signals};
use self::sources::{Heard, Look, Sources};
use self::wishes::{Owner, Setting, Settled};
use crate::clock;
use crate::local::message::{About, Session};
use crate::work::Checkout;

/// The rhythm of an idle agent: the thread of `prober` wakes every so often and causes a look. Nothing else does, but input at once.
const LOOK_EVERY: Duration = prober::RHYTHM;

/// A look that no answer of probes causes: they hang. Sources still answer within their limit then.
const LOOK_AT_LATEST: Duration = Duration::from_secs(7);

/// While something is in the cores' hands: that the machine slept, nobody tells but its clocks, and whoever woke it is not to wait.
const LOOK_AT_WORK_EVERY: Duration = Duration::from_secs(1);

/// The same, where somebody may type whom nobody tells of: half of what a person may wait.
const LOOK_CLOSELY_EVERY: Duration = Duration::from_millis(500);

/// How long a look waits at most for answers that it asked for.
const ANSWERS_WAIT: Duration = Duration::from_millis(200);

/// Time in which the agent's loop stops what cores compute.
const OBEYED_WITHIN: Duration = Duration::from_secs(1);

/// What sessions are to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Directive {
    pub activity: Activity,
    /// Why it is not to work.
    pub reason: String,
    /// The input that ended its work, if that was what did.
    pub input: Option<Moment>,
    /// The PC is about to sleep.
    pub asleep: bool,
    pub signs: Signs,
    /// How quickly it gave way so far.
    pub yields: Option<Yields>,
    /// What it goes by.
    pub settings: Arc<[Setting]>,
}

/// What the server is told of the workstation's person, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    /// What it tells by that nobody is there; empty: nobody watches.
    pub idle_source: String,
    /// `mains` or `battery`; empty: unknown, or it does not matter.
    pub power: &'static str,
    /// Findings about its sources, for people.
    pub notes: Vec<String>,
}

impl Directive {
    /// Of an agent that nobody watches.
    pub fn work() -> Directive {
        Directive {
            activity: Activity::Work,
            reason: String::new(),
            input: None,
            asleep: false,
            signs: Signs::default(),
            yields: None,
            settings: Arc::default(),
        }
    }
}

/// The thread, until it is dropped.
pub struct Presence {
    pub desk: Desk,
    thread: Option<JoinHandle<()>>,
}

/// What is known, for whoever wants to know or to say something.
#[derive(Clone)]
pub struct Desk(Arc<Shared>);

struct Shared {
    /// What its owner says.
    owner: Settings,
    known: Mutex<Known>,
    nudge: Condvar,
    directives: watch::Sender<Directive>,
    disk: Arc<Disk>,
    /// How many cores the farm wants, for the next process; and that it is to begin now.
    wish: Wish,
    anew: CancellationToken,
    computes: Mutex<Computes>,
    pulse: Pulse,
    /// Who works here, for people who ask.
    agent: OnceLock<About>,
    session: Mutex<Option<Session>>,
    /// GPUs, for people who ask.
    gpus: Mutex<Vec<String>>,
    /// That the farm has it take no more.
    drained: Mutex<Option<Reading<String>>>,
    /// When a server said that it had woken the PC, until somebody touches it.
    woken: Mutex<Option<Moment>>,
}

/// What is in the cores' hands.
#[derive(Default)]
struct Computes {
    /// What was begun, and when.
    held: Vec<(Moment, Weak<Checkout>)>,
    /// When something was there last.
    last: Option<Moment>,
}

impl Computes {
    /// Something is there, or may be again in a moment.
    fn is_busy(&self, now: Moment) -> bool {
        let is_recent = self.last.is_some_and(|last| now.saturating_sub(last) < LOOK_EVERY);
        is_recent || self.held.iter().any(|(_, checkout)| checkout.strong_count() > 0)
    }
}

struct Known {
    /// What holds, by the owner and the farm, and what the farm wants.
    policy: Policy,
    settings: Arc<[Setting]>,
    wanted: Map<String, Value>,
    state: State,
    sleeps: Sleeps,
    signals: Option<Signals>,
    pauses: Pauses,
    helpers: Helpers,
    inhibitors: Told,
    history: History,
    nudged: bool,
    ended: bool,
    /// When all sources were asked last, on the clock that stands still while the machine sleeps.
    looked: Duration,
}

/// Reasons of a sleep that is about to come.
#[derive(Default)]
struct Sleeps {
    /// The agent puts the PC to sleep, unless a person comes.
    own: Option<String>,
    /// The system sleeps, also while a person is present.
    system: Option<String>,
}

impl Known {
    /// Activity of sessions, its reason, and whether the PC is about to sleep.
    fn standing(&self) -> (Activity, String, bool) {
        match self.sleeps.own.as_ref().or(self.sleeps.system.as_ref()) {
            Some(reason) => (Activity::Rest, reason.clone(), true),
            None => (self.state.activity, self.state.reason(), false),
        }
    }
}

/// How an agent comes to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Fresh,
    /// In place of one that was in the way of a person.
    Interrupted,
}

impl Presence {
    /// Looks once before it returns: who may work does so at once.
    pub fn start(settings: Settings, state_dir: &Path, start: Start) -> io::Result<Presence> {
        let now = clock::now();
        let state = match start {
            Start::Fresh => State::new(now),
            Start::Interrupted => State::interrupted(now),
        };
        let owner = settings.clone();
        let wish = Wish::of(state_dir);
        let wanted = wish.wanted();
        let Settled { policy, settings: settled, .. } = settled(&owner, &wanted);
        let disk = Arc::new(Disk::start()?);
        let known = Known {
            policy,
            settings: settled.into(),
            wanted,
            state,
            sleeps: Sleeps::default(),
            signals: None,
            pauses: Pauses::open(state_dir, now, &Zoned::now()),
            helpers: Helpers::default(),
            inhibitors: Told::default(),
            history: History::open(state_dir, Arc::clone(&disk)),
            nudged: false,
            ended: false,
            looked: clock::awake(),
        };
        let yields = known.history.yields();
        let settled = Arc::clone(&known.settings);
        let first = Directive { activity: Activity::Rest, yields, settings: settled, ..Directive::work() };
        let directives = watch::Sender::new(first);
        let shared = Arc::new(Shared {
            owner,
            known: Mutex::new(known),
            nudge: Condvar::new(),
            directives,
            disk,
            wish,
            anew: CancellationToken::new(),
            computes: Mutex::default(),
            pulse: Pulse::new(),
            agent: OnceLock::new(),
            session: Mutex::default(),
            gpus: Mutex::default(),
            drained: Mutex::default(),
            woken: Mutex::default(),
        });
        let desk = Desk(Arc::clone(&shared));
        let noticed = {
            let desk = desk.clone();
            move || desk.nudge()
        };
        let policy = shared.known().policy.clone();
        let mut sources = Sources::start(settings, &policy, noticed)?;
        shared.look(&mut sources);
        let thread = std::thread::Builder::new().name("pcfarm-presence".to_owned()).spawn(move || {
            while shared.wait() {
                shared.look(&mut sources);
            }
        })?;
        Ok(Presence { desk, thread: Some(thread) })
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.desk.0.known().ended = true;
        self.desk.0.nudge.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.desk.0.disk.flush();
    }
}

fn settled(owner: &Settings, wanted: &Map<String, Value>) -> Settled {
    let Settings { policy, named, limits, cores, may_be_woken, .. } = owner;
    let owner = Owner { policy, named, limits, cores: *cores, may_be_woken: *may_be_woken };
    wishes::settle(&owner, wanted)
}

/// How long it waits at most until it looks again.
fn rhythm(is_busy: bool, signals: Option<&Signals>) -> Duration {
    let untold = |input: &Reading<Input>| input.says.as_ref().is_ok_and(|input| input.untold);
    match signals.is_some_and(|signals| signals.input.iter().any(untold)) {
        _ if !is_busy => LOOK_AT_LATEST,
        false => LOOK_AT_WORK_EVERY,
        true => LOOK_CLOSELY_EVERY,
    }
}

/// Waits until that is so, a moment at most.
fn wait_for(is_so: impl Fn() -> bool) {
    let began = clock::awake();
    while !is_so() && clock::awake().saturating_sub(began) < ANSWERS_WAIT {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns false if cores go on though the agent's loop was told to stop them: it hangs, and the supervisors of programs are to
/// stop them without it.
fn is_obeyed(state: &State, computes: bool, now: Moment) -> bool {
    match state.activity {
        Activity::Work | Activity::Finish => true,
        Activity::Freeze | Activity::Rest => !computes || now.saturating_sub(state.since) <= OBEYED_WITHIN,
    }
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("nothing panics under this lock")
    }

    /// Until it is time to look. False: it is time to end.
    fn wait(&self) -> bool {
        let is_busy = self.computes.lock().expect("nothing panics under this lock").is_busy(clock::now());
        let known = self.known();
        let rhythm = rhythm(is_busy, known.signals.as_ref());
        let idle = |known: &mut Known| !known.nudged && !known.ended;
        let waited = self.nudge.wait_timeout_while(known, rhythm, idle);
        let (mut known, _) = waited.expect("nothing panics under this lock");
        known.nudged = false;
        !known.ended
    }

    /// What has changed of these alone is no news for whoever gives way.
    fn tell_signs(&self, signs: Signs) {
        self.directives.send_if_modified(|directive| {
            let is_new = directive.signs != signs;
            directive.signs = signs;
            is_new
        });
    }

    /// By what probes said last: whoever is back does not wait for them. But nothing begins by what is old.
    fn look(&self, sources: &mut Sources) {
        if self.stood_still() {
            self.await_answers(sources);
        }
        let (mut now, mut look) = self.read(sources);
        let works = self.known().state.activity == Activity::Work;
        if works && policy::may_be_noise(&look.signals) {
            let awake = clock::awake();
            sources.ask_devices();
            wait_for(|| sources.devices_have_answered(awake));
            (now, look) = self.read(sources);
        }
        let Look { signals, policy, is_fresh } = look;
        let computes = self.computes();
        let mut known = self.known();
        let state = decide(&policy, &signals, &known.state, now);
        let begins = state.activity == Activity::Work && known.state.activity != Activity::Work;
        if is_fresh || !begins {
            self.take(&mut known, &policy, signals, state, now);
        }
        known.looked = clock::awake();
        if is_obeyed(&known.state, computes, now) {
            self.pulse.beat();
        }
    }

    fn read(&self, sources: &mut Sources) -> (Moment, Look) {
        let now = clock::now();
        let (policy, heard) = {
            let mut known = self.known();
            let remembers = known.policy.start_after.max(known.policy.resume_after);
            known.helpers.forget(now, remembers);
            let start_after = known.policy.start_after;
            known.inhibitors.expire(now, start_after);
            (
                known.policy.clone(),
                Heard {
                    helpers: known.helpers.clone(),
                    inhibitors: known.inhibitors.clone(),
                    paused: known.pauses.now(now),
                },
            )
        };
        (now, sources.read(&policy, &heard, now))
    }

    /// This process was stopped, or got no core: all answers are older than allowed, though their sources are there.
    fn stood_still(&self) -> bool {
        clock::awake().saturating_sub(self.known().looked) > ANSWER_LIMIT
    }

    /// Asks all sources and waits for their answers, a moment at most.
    fn await_answers(&self, sources: &mut Sources) {
        let (now, awake) = (clock::now(), clock::awake());
        let policy = self.known().policy.clone();
        sources.ask(&policy, now);
        wait_for(|| sources.have_answered(now, awake) && self.known().helpers.are_heard(clock::now()));
    }

    /// A checkout is in the hands of cores, and nothing has stopped it.
    fn computes(&self) -> bool {
        let computes = self.computes.lock().expect("nothing panics under this lock");
        let held = computes.held.iter().filter_map(|(_, held)| held.upgrade());
        held.into_iter().any(|checkout| !checkout.is_cancelled() && !checkout.is_frozen())
    }

    /// Where it stands now, for everybody who wants to know.
    fn take(&self, known: &mut Known, policy: &Policy, signals: Signals, state: State, now: Moment) {
        let before = std::mem::replace(&mut known.state, state.clone());
        if state.activity != before.activity || state.objections != before.objections {
            let reason = state.reason();
            if before.activity != state.activity {
                info!(activity = ?state.activity, reason, "what this agent may do has changed");
            }
            let stopped = before.activity == Activity::Work;
            let by_person = state.weightiest() == Some(policy::Kind::Person);
            // A person who works or watches without input stops the work as well. An older input says nothing about how quickly
            // the agent gave way.
            let touched = policy::touched(&signals, now);
            let input = touched.filter(|last| stopped && by_person && *last > before.since);
            known.sleeps.own = None;
            let (activity, reason, asleep) = known.standing();
            self.directives.send_if_modified(|directive| {
                let input = if activity == directive.activity { directive.input } else { input };
                let new = Directive { activity, reason, input, asleep, ..directive.clone() };
                let is_new = *directive != new;
                *directive = new;
                is_new
            });
            if (before.activity, before.weightiest()) != (state.activity, state.weightiest()) {
                known.history.note(&state);
            }
        }
        self.tell_signs(policy::signs(policy, &state, &signals, now));
        known.signals = Some(signals);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
