//! How an agent comes to its end, or is drained: what it gives back, and when it may go.

use std::sync::Arc;
use std::time::Duration;

use tracing::info;

use super::{Action, Drain, Ending, Inventory, STOP_ACKNOWLEDGE_WAIT, STOP_LINGER, Session};
use crate::work::{Checkout, CheckoutKey};

impl Inventory {
    pub(super) fn drained_by_server(&mut self, reason: Option<String>) {
        self.drain = match (std::mem::replace(&mut self.drain, Drain::No), reason) {
            (stop @ Drain::Stop { .. }, _) => stop,
            (Drain::No, Some(reason)) => {
                info!(reason, "draining: taking no more");
                Drain::Server { reason, over: false, gives_back: false }
            }
            (Drain::Server { .. }, Some(reason)) => Drain::Server { reason, over: false, gives_back: false },
            (Drain::Server { .. }, None) => {
                info!("no longer draining");
                Drain::No
            }
            (Drain::No, None) => Drain::No,
        };
    }

    pub(super) fn stop(&mut self, now: Duration) {
        if matches!(self.drain, Drain::Stop { .. }) {
            return;
        }
        info!(checkouts = self.held.len(), grace_seconds = self.profile.grace.as_secs(), "stopping in good order");
        self.drain = Drain::Stop { since: now, given_back: false };
        self.actions.push(Action::WithdrawUnstarted);
        if let Session::Open(open) = &mut self.session {
            for (_, part) in std::mem::take(&mut open.arriving) {
                self.arrived(now, Checkout::new(part));
            }
        }
    }

    /// What could not be finished in the time that an administrator gave goes back to the queue.
    pub(super) fn end_drain(&mut self) {
        let Drain::Server { reason, gives_back, .. } = &mut self.drain else {
            return;
        };
        if std::mem::take(gives_back) {
            let reason = reason.clone();
            self.give_back(&self.unfinished(), &reason);
        }
    }

    /// What could not be finished within the grace period goes back to the queue; what is frozen at once.
    pub(super) fn end_grace(&mut self, now: Duration) {
        let grace = if self.is_frozen() { Duration::ZERO } else { self.profile.grace };
        let Drain::Stop { since, given_back } = &mut self.drain else {
            return;
        };
        if *given_back || now < *since + grace {
            return;
        }
        *given_back = true;
        self.give_back(&self.unfinished(), "the agent is stopping");
    }

    fn unfinished(&self) -> Vec<CheckoutKey> {
        self.held.values().filter(|held| held.is_computing()).map(|held| held.checkout.key).collect()
    }

    pub(super) fn give_back(&mut self, keys: &[CheckoutKey], reason: &str) {
        for &key in keys {
            let Some(held) = self.held_mut(key) else {
                continue;
            };
            held.give_back(reason);
            let checkout = Arc::clone(&held.checkout);
            info!(checkout_id = %key.checkout_id, reason, "giving a checkout back");
            self.cancel(checkout);
        }
    }

    pub(super) fn exit_if_done(&mut self, now: Duration) {
        let Drain::Stop { since, .. } = self.drain else {
            return;
        };
        let lingers = match &self.session {
            Session::Open(open) => open.credit > 0 && now < since + STOP_LINGER,
            Session::None | Session::Greeting { .. } | Session::GivenUp => false,
        };
        if self.held.is_empty() && !lingers {
            self.actions.push(Action::Exit(Ending::Clean));
        } else if now >= since + self.profile.grace + STOP_ACKNOWLEDGE_WAIT {
            self.actions.push(Action::Exit(Ending::Unacknowledged(self.held.len())));
        }
    }
}
