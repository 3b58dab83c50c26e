//! What is known, for whoever wants to know or to say something.
//!
//! Owns what is said to the agent and by it: helpers, the owner, the farm, who asks. Nobody waits here for a source, nor for a disk.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use jiff::{Timestamp, Zoned};
use serde_json::{Map, Value};
use tokio::sync::{oneshot, watch};
use tracing::{info, warn};

use super::helper::Helper;
use super::history::History;
use super::inhibitors::Held;
use super::pause::{Caller, NotYours, Pauses, TooMany, Wish};
use super::policy::{self, Policy, State};
use super::signals::{Moment, Reading, Signals};
use super::wishes::{Setting, Settled};
use super::{Desk, Directive, Known, settled};
use crate::clock;
use crate::local::message::{About, Holds, Session};
use crate::sleep::Look;
use crate::work::Checkout;

impl Desk {
    pub fn directives(&self) -> watch::Receiver<Directive> {
        self.0.directives.subscribe()
    }

    /// Something is new: look at once.
    pub(super) fn nudge(&self) {
        self.0.known().nudged = true;
        self.0.nudge.notify_all();
    }

    /// What a helper says on its connection, or that it is gone.
    pub fn hear(&self, connection: u64, helper: Option<Helper>) {
        // A message that repeats the last one does not wake the looking thread.
        if self.0.known().helpers.hear(connection, helper, Timestamp::now()) {
            self.nudge();
        }
    }

    /// Programs that keep the screen on, as a helper tells on its connection. None: it is gone.
    pub fn hear_inhibitors(&self, connection: u64, told: Option<(String, Vec<Held>)>) {
        let is_news = match told {
            Some((source, held)) => self.0.known().inhibitors.hear(connection, source, held, clock::now()),
            None => self.0.known().inhibitors.forget(connection, clock::now()),
        };
        if is_news {
            self.nudge();
        }
    }

    /// Holds at once. What is returned tells when it is kept, too.
    pub fn pause(&self, by: u32, wish: Wish) -> Result<oneshot::Receiver<io::Result<()>>, TooMany> {
        let kept = {
            let mut known = self.0.known();
            known.pauses.begin(by, wish, clock::now(), &Zoned::now())?;
            self.keep(&known.pauses)
        };
        self.nudge();
        Ok(kept)
    }

    /// Ends a pause, if its caller may: an error says who may.
    pub fn resume(&self, caller: Caller) -> Result<oneshot::Receiver<io::Result<()>>, NotYours> {
        let kept = {
            let mut known = self.0.known();
            known.pauses.end(caller, clock::now())?;
            self.keep(&known.pauses)
        };
        self.nudge();
        Ok(kept)
    }

    /// In the order in which it is said. Nothing comes of it if the disk is behind.
    fn keep(&self, pauses: &Pauses) -> oneshot::Receiver<io::Result<()>> {
        let (sender, kept) = oneshot::channel();
        let file = pauses.kept();
        self.0.disk.give(move || {
            let _ = sender.send(file.write());
        });
        kept
    }

    /// How much its disk did not take.
    pub fn not_kept(&self) -> u64 {
        self.0.disk.lost()
    }

    /// A checkout is in the cores' hands, until it is dropped.
    pub fn computes(&self, checkout: &Arc<Checkout>) {
        checkout.set_pulse(self.0.pulse.clone());
        let now = clock::now();
        let mut computes = self.0.computes.lock().expect("nothing panics under this lock");
        let was_busy = computes.is_busy(now);
        computes.last = Some(now);
        computes.held.retain(|(_, held)| held.strong_count() > 0);
        if !computes.held.iter().any(|(_, held)| std::ptr::eq(held.as_ptr(), Arc::as_ptr(checkout))) {
            computes.held.push((now, Arc::downgrade(checkout)));
        }
        drop(computes);
        // From now on it looks more often.
        if !was_busy {
            self.nudge();
        }
    }

    pub fn holds(&self, now: Moment) -> Vec<Holds> {
        let computes = self.0.computes.lock().expect("nothing panics under this lock");
        let alive = computes.held.iter().filter_map(|(since, held)| Some((*since, held.upgrade()?)));
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
        computes.held.iter().any(|(_, held)| held.strong_count() > 0)
    }

    /// The farm has woken the PC.
    pub fn was_woken(&self) {
        *self.0.woken.lock().expect("nothing panics under this lock") = Some(clock::now());
    }

    /// What keeps the PC awake.
    pub fn looks_for_sleep(&self, now: Moment) -> Look {
        let (deserted, touched) = {
            let known = self.0.known();
            let touched = known.signals.as_ref().and_then(|signals| policy::touched(signals, now));
            (known.signals.is_some() && known.state.is_deserted(), touched)
        };
        let mut woken = self.0.woken.lock().expect("nothing panics under this lock");
        *woken = woken.filter(|woken| touched.is_none_or(|touched| touched <= *woken));
        let in_session = self.is_in_session();
        Look { now, in_session, holds: self.holds_anything(), deserted, woken: woken.is_some() }
    }

    /// From now on nothing is taken, until somebody comes or [`Desk::wakes`]. False: somebody has come.
    pub fn falls_asleep(&self, reason: &str) -> bool {
        let mut known = self.0.known();
        let may = known.state.is_deserted();
        if may {
            known.sleeps.own = Some(reason.to_owned());
            self.stand(&known);
        }
        may
    }

    /// Ends a sleep of the agent's own: the sources decide again, unless the system sleeps.
    pub fn wakes(&self) {
        let mut known = self.0.known();
        known.sleeps.own = None;
        self.stand(&known);
    }

    /// Takes nothing more, also while a person is present, until [`Desk::system_wakes`].
    pub fn system_sleeps(&self, reason: &str) {
        let mut known = self.0.known();
        known.sleeps.system = Some(reason.to_owned());
        self.stand(&known);
    }

    /// The system has woken, or does not sleep after all.
    pub fn system_wakes(&self) {
        let mut known = self.0.known();
        known.sleeps.system = None;
        self.stand(&known);
    }

    /// Tells sessions of a sleep, or of its end.
    fn stand(&self, known: &Known) {
        let (activity, reason, asleep) = known.standing();
        self.0.directives.send_if_modified(|directive| {
            let is_new = (directive.activity, &directive.reason, directive.asleep) != (activity, &reason, asleep);
            (directive.activity, directive.reason, directive.asleep) = (activity, reason, asleep);
            is_new
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

    pub fn is_in_session(&self) -> bool {
        self.0.session.lock().expect("nothing panics under this lock").is_some()
    }

    /// Why the farm has it take no more, or that it may again.
    pub fn drained(&self, reason: Option<&str>) {
        let drained =
            reason.map(|reason| Reading { source: "the farm".into(), at: clock::now(), says: Ok(reason.to_owned()) });
        *self.0.drained.lock().expect("nothing panics under this lock") = drained;
    }

    /// What the farm said then.
    pub fn drain(&self) -> Option<Reading<String>> {
        self.0.drained.lock().expect("nothing panics under this lock").clone()
    }

    pub fn about(&self) -> Option<About> {
        let session = self.0.session.lock().expect("nothing panics under this lock").clone();
        let gpus = self.0.gpus.lock().expect("nothing panics under this lock").clone();
        self.0.agent.get().map(|agent| About { session, gpus, ..agent.clone() })
    }

    /// Records the GPUs of the machine, each with the reason if the agent hides it from the farm. A driver may hang the thread that asks
    /// it, so another thread looks for them.
    pub fn found_gpus(&self, gpus: Vec<String>) {
        *self.0.gpus.lock().expect("nothing panics under this lock") = gpus;
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
        let Settled { policy, cores, settings } = settled(&self.0.owner, &wanted);
        let wants = Value::Object(wanted.clone()).to_string();
        info!(wants, "what the farm wants of this desk has changed");
        for setting in settings.iter().filter(|setting| !setting.refused.is_empty()) {
            warn!(setting = setting.name, why = setting.refused, "a wish of the farm does not hold, or not wholly");
        }
        self.keep_cores(wanted.clone(), cores);
        (known.policy, known.settings, known.wanted) = (policy, settings.into(), wanted);
        let settings = Arc::clone(&known.settings);
        drop(known);
        self.0.directives.send_modify(|directive| directive.settings = settings);
        self.nudge();
    }

    /// For the next process, which is to begin now if it would use more or fewer than this one. What is not kept is no reason for
    /// that: the next would use as many as this one.
    fn keep_cores(&self, wanted: Map<String, Value>, cores: usize) {
        let (wish, anew, differ) = (self.0.wish.clone(), self.0.anew.clone(), cores != self.0.owner.cores.used);
        self.0.disk.give(move || match wish.keep(&wanted) {
            Ok(()) if differ => anew.cancel(),
            Ok(()) => {}
            Err(error) => warn!(%error, "how many cores the farm wants is not kept: it goes on with as many as it has"),
        });
    }

    /// Until another process is to take the place of this one, with as many cores as the farm wants.
    pub async fn is_to_start_anew(&self) {
        self.0.anew.cancelled().await;
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
