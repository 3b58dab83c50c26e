//! How an agent gives way to the workstation's person: what it keeps, what goes back, what stands still, and what it does about
//! controllers that do not hear.
//!
//! Owns that nothing is computed and nothing taken while somebody is there. It never forgets what is finished.

use std::sync::Arc;
use std::time::Duration;

use tracing::{error, info, warn};

use super::held::Held;
use super::{Action, Inventory};
use crate::presence::Directive;
use crate::presence::policy::Activity;
use crate::work::CheckoutKey;
use pcfarm_proto::files::announced;

/// How long controllers have to notice that their work is cancelled. Those that look often enough need a few milliseconds.
pub(super) const HEARING_WAIT: Duration = Duration::from_millis(400);

/// And how long acknowledgements are waited for after that: less than a second after the input no core computes.
pub(super) const LATEST: Duration = Duration::from_millis(700);

/// Since the person is back.
pub struct Leaving {
    activity: Activity,
    pub reason: String,
    /// When what was held was let go.
    let_go: Option<Duration>,
    /// It has been said that controllers are deaf.
    deaf: bool,
    /// Not for a person, but because the PC is about to sleep.
    asleep: bool,
}

impl Inventory {
    pub(super) fn directed(&mut self, directive: Directive) {
        let Directive { activity, reason, asleep, signs, yields, settings, .. } = directive;
        (self.signs, self.yields, self.settings) = (signs, yields, settings);
        if activity == Activity::Work {
            if self.leaving.take().is_some() {
                info!("nobody is there: takes work again");
                self.held.values().for_each(|held| held.checkout.thaw());
                let again = self.held.values_mut().filter_map(Held::take_again);
                self.actions.extend(again.map(Action::Compute));
            }
            return;
        }
        let is_new = self.leaving.is_none();
        let before = self.leaving.take().filter(|before| before.activity == activity);
        let (let_go, deaf) = before.map_or((None, false), |before| (before.let_go, before.deaf));
        if is_new {
            info!(reason, checkouts = self.held.len(), "gives way");
        }
        if is_new && activity == Activity::Finish {
            self.held.values_mut().for_each(Held::finish_begun);
            self.return_whole_convoys(|_| true, &reason);
        }
        self.leaving = Some(Leaving { activity, reason, let_go, deaf, asleep });
    }

    /// Gives back what is not to be computed any more. Results that are in cores' pockets have been fetched before.
    pub(super) fn give_way(&mut self, now: Duration, revoked_cores: u32) {
        self.pause_cores();
        let Some(leaving) = &mut self.leaving else {
            // A checkout that is computed one by one does not go on after it was to be finished.
            return self.give_back_where("its person was here meanwhile", Held::has_finished_begun);
        };
        let reason = leaving.reason.clone();
        match (leaving.activity, leaving.let_go) {
            (Activity::Work, _) => {}
            (Activity::Finish, _) => self.give_back_where(&reason, Held::has_finished_begun),
            (Activity::Rest, None) => {
                leaving.let_go = Some(now);
                self.give_back_where(&reason, |_| true);
            }
            (Activity::Freeze, None) => {
                leaving.let_go = Some(now);
                self.freeze(&reason);
            }
            (Activity::Rest, Some(since)) => self.notice_deaf(now, since, revoked_cores),
            (Activity::Freeze, Some(since)) => {
                // The farm would take it back, and count that against its problems.
                self.give_back_where("its time limit does not let it wait for longer", |held| held.cannot_wait(now));
                self.notice_deaf(now, since, revoked_cores);
            }
        }
    }

    /// Freezes controllers that can stand still, and gives back the checkouts of all others. Checkouts and whole convoys that have
    /// not begun are returned at once, the rest of a convoy when the server asks for it.
    fn freeze(&mut self, reason: &str) {
        let freezable = self.profile.freezable.clone();
        self.give_back_where(reason, |held| {
            !freezable.contains(announced(&held.checkout.controller)) || held.checkout.withdraw()
        });
        self.return_whole_convoys(|_| true, reason);
        self.held.values().filter(|held| held.is_computing()).for_each(|held| held.checkout.freeze());
    }

    fn pause_cores(&mut self) {
        let paused = self.is_frozen();
        if self.paused != paused {
            self.paused = paused;
            self.actions.push(Action::Pause(paused));
        }
    }

    /// What was begun stands still.
    pub(super) fn is_frozen(&self) -> bool {
        self.leaving.as_ref().is_some_and(|leaving| leaving.activity == Activity::Freeze)
    }

    /// The PC is about to sleep.
    pub(super) fn falls_asleep(&self) -> bool {
        self.leaving.as_ref().is_some_and(|leaving| leaving.asleep)
    }

    fn give_back_where(&mut self, reason: &str, which: impl Fn(&Held) -> bool) {
        let keys: Vec<CheckoutKey> = self
            .held
            .values()
            .filter(|held| held.is_computing() && which(held))
            .map(|held| held.checkout.key)
            .collect();
        for key in keys {
            let Some(held) = self.held_mut(key) else { continue };
            held.give_back(reason);
            let checkout = Arc::clone(&held.checkout);
            self.cancel(checkout);
        }
    }

    /// A thread that does not return cannot be ended, but the process that it is part of can be replaced. By then what it has is
    /// delivered and given back, if a server was there to take it.
    fn notice_deaf(&mut self, now: Duration, since: Duration, revoked_cores: u32) {
        let Some(leaving) = self.leaving.as_mut().filter(|leaving| !leaving.deaf) else {
            return;
        };
        if revoked_cores == 0 || now < since + HEARING_WAIT {
            return;
        }
        let unacknowledged = self.held.len();
        if unacknowledged > 0 && now < since + LATEST {
            return;
        }
        leaving.deaf = true;
        if unacknowledged > 0 {
            error!(checkouts = unacknowledged, "no server has acknowledged what is given up now");
        }
        warn!(revoked_cores, "a controller does not hear that its work is cancelled");
        self.actions.push(Action::Replace);
    }

    /// When there is something to do, although nothing happens.
    pub(super) fn leaving_deadline(&self, now: Duration) -> Option<Duration> {
        let leaving = self.leaving.as_ref().filter(|leaving| leaving.activity != Activity::Finish)?;
        let since = leaving.let_go.unwrap_or(now);
        let deaf = [since + HEARING_WAIT, since + LATEST].into_iter().find(|at| *at > now && !leaving.deaf);
        let limits = self.held.values().filter(|held| held.is_computing() && self.is_frozen());
        limits.filter_map(Held::waits_until).chain(deaf).min()
    }

    /// Whether cores are about to lose what they have in hand.
    pub(super) fn lets_go_now(&self) -> bool {
        let lets_go = |leaving: &Leaving| leaving.activity != Activity::Finish && leaving.let_go.is_none();
        self.leaving.as_ref().is_some_and(lets_go)
    }
}
