//! Whether the workstation's person is there, and what the agent may do.
//!
//! Owns the thread that asks all sources and the policy, and everybody's view of what came of it. It never waits for the agent, and
//! the agent never for it.
//!
//! ```text
//! evdev ───────┐ at once, and             ┌──► sessions: work, or give back
//! terminals ───┤ every 5 s     policy ────┤
//! helpers ─────┤ ──────────►  (decide)    └──► explain, history, the server's table of workstations
//! /proc, /sys ─┘
//! ```
//!
//! - [`policy`]: the decision, pure. [`signals`]: what it decides by.
//! - [`settings`]: what its owner says, and [`hours`] of the week.
//! - `sources`: all sources of a machine; `helper`: what people's sessions say. `linux`: `evdev` (with `bump`), `terminals`,
//!   `probes`. `elsewhere`: the system's own counts, on macOS with `hid`. `load`: what others compute.
//! - [`wishes`]: what the farm wants, within the owner's limits.
//! - `pause`: the owner's pause. `history`: what it did in the last week.

#[cfg(target_os = "linux")]
mod bump;
#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod evdev;
pub(crate) mod helper;
#[cfg(target_os = "macos")]
mod hid;
pub(crate) mod history;
pub mod hours;
#[cfg(target_os = "linux")]
mod linux;
mod load;
pub(crate) mod pause;
pub mod policy;
#[cfg(target_os = "linux")]
mod probes;
pub mod settings;
pub mod signals;
mod sources;
#[cfg(target_os = "linux")]
mod terminals;
pub mod wishes;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use jiff::Zoned;
use serde_json::{Map, Value};
use tokio::sync::watch;
use tracing::{info, warn};

use self::helper::Helper;
use self::history::{History, Yields};
use self::pause::{Pause, Wish};
use self::policy::{Activity, Policy, State, decide};
use self::settings::Settings;
use self::signals::{Moment, Signals};
use self::sources::Sources;
use self::wishes::{Owner, Setting};
use crate::clock;
use crate::local::message::{About, Holds, Session};
use crate::sleep::Look;
use crate::work::Checkout;

/// The rhythm of heartbeats: nothing wakes an idle machine more often. Input does at once.
const LOOK_EVERY: Duration = Duration::from_secs(5);

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
    /// What was begun, and when.
    computes: Mutex<Vec<(Moment, Weak<Checkout>)>>,
    /// Who works here, for people who ask.
    agent: OnceLock<About>,
    session: Mutex<Option<Session>>,
    /// When a server said that it had woken the PC, until somebody touches it.
    woken: Mutex<Option<Moment>>,
}

struct Known {
    /// What holds, by the owner and the farm, and what the farm wants.
    policy: Policy,
    settings: Arc<[Setting]>,
    wanted: Map<String, Value>,
    state: State,
    signals: Option<Signals>,
    pause: Pause,
    helpers: BTreeMap<u64, Helper>,
    history: History,
    nudged: bool,
    ended: bool,
    /// When all sources were asked last, on the clock that stands still while the machine sleeps.
    looked: Duration,
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
        let (policy, settled) = settled(&owner, &Map::new());
        let known = Known {
            policy,
            settings: settled.into(),
            wanted: Map::new(),
            state,
            signals: None,
            pause: Pause::open(state_dir, now, &Zoned::now()),
            helpers: BTreeMap::new(),
            history: History::open(state_dir),
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
            computes: Mutex::default(),
            agent: OnceLock::new(),
            session: Mutex::default(),
            woken: Mutex::default(),
        });
        let desk = Desk(Arc::clone(&shared));
        let noticed = {
            let desk = desk.clone();
            move || desk.nudge()
        };
        let mut sources = Sources::start(settings, noticed);
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
    }
}

impl Desk {
    pub fn directives(&self) -> watch::Receiver<Directive> {
        self.0.directives.subscribe()
    }

    /// Something is new: look at once.
    fn nudge(&self) {
        self.0.known().nudged = true;
        self.0.nudge.notify_all();
    }

    /// What a helper says on its connection, or that it is gone.
    pub fn hear(&self, connection: u64, helper: Option<Helper>) {
        let mut known = self.0.known();
        match helper {
            Some(helper) => drop(known.helpers.insert(connection, helper)),
            None => drop(known.helpers.remove(&connection)),
        }
        drop(known);
        self.nudge();
    }

    pub fn pause(&self, wish: Option<Wish>) -> io::Result<()> {
        let mut known = self.0.known();
        let kept = match wish {
            Some(wish) => known.pause.begin(wish, clock::now(), &Zoned::now()),
            None => known.pause.end(),
        };
        drop(known);
        self.nudge();
        kept
    }

    /// A checkout is in the cores' hands, until it is dropped.
    pub fn computes(&self, checkout: &Arc<Checkout>) {
        let mut computes = self.0.computes.lock().expect("nothing panics under this lock");
        computes.retain(|(_, held)| held.strong_count() > 0);
        if !computes.iter().any(|(_, held)| std::ptr::eq(held.as_ptr(), Arc::as_ptr(checkout))) {
            computes.push((clock::now(), Arc::downgrade(checkout)));
        }
    }

    pub fn holds(&self, now: Moment) -> Vec<Holds> {
        let computes = self.0.computes.lock().expect("nothing panics under this lock");
        let alive = computes.iter().filter_map(|(since, held)| Some((*since, held.upgrade()?)));
        let holds = |(since, checkout): (Moment, Arc<Checkout>)| Holds {
            job: checkout.job_name.clone(),
            job_type: checkout.job_type.clone(),
            problems: checkout.problems.len(),
            since_seconds: now.saturating_sub(since).as_secs(),
        };
        alive.filter(|(_, checkout)| !checkout.is_cancelled()).map(holds).collect()
    }

    /// Something is in its hands, if only to be delivered.
    pub fn holds_anything(&self) -> bool {
        let computes = self.0.computes.lock().expect("nothing panics under this lock");
        computes.iter().any(|(_, held)| held.strong_count() > 0)
    }

    /// The farm has woken the PC.
    pub fn was_woken(&self) {
        *self.0.woken.lock().expect("nothing panics under this lock") = Some(clock::now());
    }

    /// What keeps the PC awake.
    pub fn looks_for_sleep(&self, now: Moment) -> Look {
        let (deserted, touched) = {
            let known = self.0.known();
            let inputs = known.signals.iter().flat_map(|signals| &signals.input);
            let touched = inputs.filter_map(|reading| Some(reading.says.as_ref().ok()?.last)).max();
            (known.signals.is_some() && known.state.is_deserted(), touched)
        };
        let mut woken = self.0.woken.lock().expect("nothing panics under this lock");
        *woken = woken.filter(|woken| touched.is_none_or(|touched| touched <= *woken));
        let in_session = self.0.session.lock().expect("nothing panics under this lock").is_some();
        Look { now, in_session, holds: self.holds_anything(), deserted, woken: woken.is_some() }
    }

    /// From now on nothing is taken, until somebody comes or [`Desk::wakes`]. False: somebody has come.
    pub fn falls_asleep(&self, reason: &str) -> bool {
        let known = self.0.known();
        let may = known.state.is_deserted();
        if may {
            self.0.directives.send_modify(|directive| {
                (directive.activity, directive.asleep) = (Activity::Rest, true);
                reason.clone_into(&mut directive.reason);
            });
        }
        may
    }

    /// It is as the sources say again.
    pub fn wakes(&self) {
        let known = self.0.known();
        self.0.directives.send_if_modified(|directive| {
            let slept = std::mem::take(&mut directive.asleep);
            if slept {
                (directive.activity, directive.reason) = (known.state.activity, known.state.reason());
            }
            slept
        });
    }

    /// Who works here.
    pub fn introduce(&self, agent: About) {
        let _ = self.0.agent.set(agent); // once
    }

    /// Which server has welcomed the agent, and as which workstation; or none.
    pub fn in_session(&self, session: Option<(String, i64)>) {
        let session = session.map(|(server, id)| Session { server, workstation_id: id.to_string() });
        *self.0.session.lock().expect("nothing panics under this lock") = session;
    }

    pub fn about(&self) -> Option<About> {
        let session = self.0.session.lock().expect("nothing panics under this lock").clone();
        self.0.agent.get().map(|agent| About { session, ..agent.clone() })
    }

    /// For how long nobody has asked the sources.
    pub fn not_looked_for(&self) -> Duration {
        clock::awake().saturating_sub(self.0.known().looked)
    }

    /// No core computes any more: how long that took from the input on.
    pub fn yielded(&self, took: Duration) {
        info!(milliseconds = took.as_millis(), "gave way to the person");
        let yields = {
            let mut known = self.0.known();
            known.history.yielded(took);
            known.history.yields()
        };
        // It goes with whatever is said next: it alone is no reason to tell the farm something.
        self.0.directives.send_if_modified(|directive| {
            directive.yields = yields;
            false
        });
    }

    /// What the farm wants of this desk: a JSON object, or nothing. What makes no sense changes nothing.
    pub fn want(&self, wanted: &[u8]) {
        let wanted = match serde_json::from_slice::<Map<String, Value>>(wanted) {
            Ok(wanted) => wanted,
            Err(_) if wanted.is_empty() => Map::new(),
            Err(error) => return warn!(%error, "what the farm wants of this desk does not parse: it stays as it was"),
        };
        let mut known = self.0.known();
        if known.wanted == wanted {
            return;
        }
        let (policy, settled) = settled(&self.0.owner, &wanted);
        let wants = Value::Object(wanted.clone()).to_string();
        info!(wants, "what the farm wants of this desk has changed");
        for setting in settled.iter().filter(|setting| !setting.refused.is_empty()) {
            warn!(setting = setting.name, why = setting.refused, "a wish of the farm does not hold, or not wholly");
        }
        (known.policy, known.settings, known.wanted) = (policy, settled.into(), wanted);
        let settings = Arc::clone(&known.settings);
        drop(known);
        self.0.directives.send_modify(|directive| directive.settings = settings);
        self.nudge();
    }

    /// What holds, and who has said it.
    pub fn settings(&self) -> Arc<[Setting]> {
        Arc::clone(&self.0.known().settings)
    }

    /// All there is to explain: the policy, where it stands and what it knows.
    pub fn view<T>(&self, with: impl FnOnce(&Policy, &State, Option<&Signals>, &History) -> T) -> T {
        let known = self.0.known();
        with(&known.policy, &known.state, known.signals.as_ref(), &known.history)
    }
}

fn settled(owner: &Settings, wanted: &Map<String, Value>) -> (Policy, Vec<Setting>) {
    let Settings { policy, named, limits, may_be_woken, .. } = owner;
    let owner = Owner { policy, named, limits, may_be_woken: *may_be_woken };
    wishes::settle(&owner, wanted)
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("nothing panics under this lock")
    }

    /// Until it is time to look. False: it is time to end.
    fn wait(&self) -> bool {
        let known = self.known();
        let idle = |known: &mut Known| !known.nudged && !known.ended;
        let waited = self.nudge.wait_timeout_while(known, LOOK_EVERY, idle);
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

    fn look(&self, sources: &mut Sources) {
        let now = clock::now();
        let (policy, helpers, paused) = {
            let known = self.known();
            (known.policy.clone(), known.helpers.clone(), known.pause.now(now))
        };
        let signals = sources.read(&policy, &helpers, paused, now);
        let mut known = self.known();
        let state = decide(&policy, &signals, &known.state, now);
        let before = std::mem::replace(&mut known.state, state.clone());
        if state.activity != before.activity || state.objections != before.objections {
            let reason = state.reason();
            if before.activity != state.activity {
                info!(activity = ?state.activity, reason, "what this agent may do has changed");
            }
            let stopped = before.activity == Activity::Work;
            let by_person = state.weightiest() == Some(policy::Kind::Person);
            let last = |signals: &Signals| {
                let inputs = signals.input.iter().filter_map(|reading| reading.says.as_ref().ok());
                inputs.map(|input| input.last).max()
            };
            let input = if stopped && by_person { last(&signals) } else { None };
            self.directives.send_if_modified(|directive| {
                let input = if state.activity == directive.activity { directive.input } else { input };
                let new = Directive { activity: state.activity, reason, input, asleep: false, ..directive.clone() };
                let is_new = *directive != new;
                *directive = new;
                is_new
            });
            // Behind it: nobody who is back waits for a disk.
            let is_news = (before.activity, before.weightiest()) != (state.activity, state.weightiest());
            if let Some(Err(error)) = is_news.then(|| known.history.note(&state)) {
                warn!(%error, "history is not kept");
            }
        }
        self.tell_signs(policy::signs(&policy, &signals, now));
        known.signals = Some(signals);
        known.looked = clock::awake();
    }
}
