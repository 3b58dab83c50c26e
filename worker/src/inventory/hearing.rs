//! What the server says once a session is open: checkouts, acknowledgements, revocations.
//!
//! Owns what becomes of a checkout that arrives, and when one is gone. What was not judged by a server is never forgotten here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pcfarm_faults::{CrashPoint, crash_point};
use pcfarm_proto::files::announced;
use pcfarm_proto::ids::CheckoutId;
use pcfarm_proto::v1;
use pcfarm_proto::v1::server_message::Message as In;
use tracing::{debug, warn};

use super::held::Held;
use super::pace::Parcel;
use super::{Action, Drain, Inventory, Session, key_of};
use crate::work::{Checkout, CheckoutKey};

impl Inventory {
    pub(super) fn receive(&mut self, now: Duration, message: In) {
        if matches!(self.session, Session::None | Session::GivenUp) {
            return;
        }
        match message {
            In::Welcome(welcome) => self.welcomed(now, welcome),
            In::Checkout(part) => self.part(now, part),
            In::DeliveryAck(ack) => self.acknowledged(now, ack),
            In::PartReceived(part) => {
                let v1::PartReceived { checkout_id, problem_id, received: end } = part;
                self.pace.carried(Parcel::Part { checkout_id, problem_id, end }, Some(Duration::ZERO), now);
            }
            In::Stored(stored) => {
                // The server does not say how long it took to look.
                self.pace.carried(Parcel::Question(stored.delivery_id), None, now);
                for (key, results) in self.outbox.stored(stored) {
                    self.release_next(key, results);
                }
            }
            In::DeliveryKept(kept) => self.kept(now, kept.delivery_id),
            In::Revoke(revoke) => self.revoke(revoke.revoked),
            // The driver's: they are sessions of their own.
            In::Slots(_) | In::Presence(_) => {}
            In::Heard(heard) => self.told_of_lease(&heard, now),
            In::GiveBack(request) => self.asked_to_return(request),
            In::Probe(v1::Probe {}) => {
                if let Session::Open(open) = &mut self.session {
                    open.heartbeat_due = now;
                }
            }
            In::Drain(drain) => {
                self.drained_by_server(Some(drain.reason));
                if let Drain::Server { over, gives_back, .. } = &mut self.drain {
                    (*over, *gives_back) = (drain.give_back, drain.give_back);
                }
            }
        }
    }

    fn part(&mut self, now: Duration, part: v1::Checkout) {
        let must_renew = self.must_renew_for(&part.controller, now);
        let Session::Open(open) = &mut self.session else {
            warn!(checkout_id = part.checkout_id, "the server sends a checkout before its Welcome: left to it");
            return;
        };
        open.last_sequence = part.sequence;
        let heartbeat_within = if must_renew { Duration::ZERO } else { open.heartbeat_every };
        open.heartbeat_due = open.heartbeat_due.min(now + heartbeat_within);
        let key = key_of(&part);
        if self.held.get(&key.checkout_id).is_some_and(|held| held.checkout.key == key) {
            debug!(checkout_id = %key.checkout_id, "a part of a checkout that is here already");
            return;
        }
        let more = part.more;
        let whole = match open.arriving.remove(&key.checkout_id) {
            Some(earlier) if earlier.token == key.token => joined(earlier, part),
            Some(_) | None => {
                open.credit = open.credit.saturating_sub(1);
                part
            }
        };
        if more {
            open.arriving.insert(key.checkout_id, whole);
        } else {
            crash_point(CrashPoint::CheckoutReceived);
            self.arrived(now, Checkout::new(whole));
        }
    }

    pub(super) fn arrived(&mut self, now: Duration, checkout: Checkout) {
        let key = checkout.key;
        // The same id with another token: the database has forgotten the one in hand.
        self.forget(key.checkout_id, "its id was given to another checkout");
        debug!(checkout_id = %key.checkout_id, job_id = %checkout.job_id, problems = checkout.problems.len(), "checked out");
        let known = self.profile.hello.controllers.iter().any(|name| name == announced(&checkout.controller));
        let refusal = match &self.drain {
            Drain::Stop { .. } => Some("the agent is stopping".to_owned()),
            Drain::Server { reason, over: true, .. } => Some(reason.clone()),
            Drain::No | Drain::Server { .. } if !known => {
                Some(format!("the agent has no controller {:?}", checkout.controller))
            }
            Drain::No | Drain::Server { .. } if checkout.problems.iter().any(|problem| problem.key_text().is_err()) => {
                Some("a key is not UTF-8".to_owned())
            }
            Drain::No | Drain::Server { .. } => self.leaving.as_ref().map(|leaving| leaving.reason.clone()),
        };
        checkout.set_lease(self.lease_end.clone());
        let mut held = Held::new(checkout, now);
        match refusal {
            Some(reason) => {
                warn!(checkout_id = %key.checkout_id, reason, "giving a checkout back");
                held.give_back(&reason);
            }
            None if held.is_computing() => self.actions.push(Action::Compute(Arc::clone(&held.checkout))),
            None => {}
        }
        self.held.insert(key.checkout_id, held);
    }

    fn kept(&mut self, now: Duration, delivery_id: u64) {
        self.pace.carried(Parcel::Delivery(delivery_id), None, now);
        for key in self.outbox.keep(delivery_id, now) {
            self.held_mut(key).into_iter().for_each(|held| held.kept = true);
        }
    }

    fn acknowledged(&mut self, now: Duration, ack: v1::DeliveryAck) {
        let took = ack.took.and_then(|took| Duration::try_from(took).ok());
        self.pace.carried(Parcel::Delivery(ack.delivery_id), took, now);
        let Some(delivery) = self.outbox.acknowledge(ack.delivery_id) else {
            debug!(delivery_id = ack.delivery_id, "an acknowledgement of nothing that is held");
            return;
        };
        crash_point(CrashPoint::AcknowledgementCame);
        let verdicts: BTreeMap<i64, v1::CheckoutVerdict> =
            ack.verdicts.into_iter().map(|verdict| (verdict.checkout_id, verdict)).collect();
        for part in delivery.checkouts {
            let key = CheckoutKey { checkout_id: CheckoutId(part.checkout_id), token: part.token };
            if self.held.get(&key.checkout_id).is_none_or(|held| held.checkout.key != key) {
                continue;
            }
            self.held_mut(key).into_iter().for_each(|held| held.kept = false);
            let verdict = verdicts.get(&part.checkout_id).cloned().unwrap_or_default();
            self.judged(key.checkout_id, &verdict, part.finished);
            self.release_next(key, part.results.len());
        }
    }

    /// Of a checkout that is computed one by one: what was waited for is acknowledged.
    fn release_next(&mut self, key: CheckoutKey, acknowledged: usize) {
        let Some(held) = self.held_mut(key).filter(|held| held.checkout.one_by_one && held.is_computing()) else {
            return;
        };
        let checkout = Arc::clone(&held.checkout);
        checkout.release(acknowledged);
        self.actions.push(Action::Compute(checkout));
    }

    fn judged(&mut self, checkout_id: CheckoutId, verdict: &v1::CheckoutVerdict, finished: bool) {
        if verdict.refused > 0 {
            warn!(%checkout_id, refused = verdict.refused, "results were refused");
        }
        match verdict.verdict() {
            v1::Verdict::Accepted | v1::Verdict::AlreadyAccepted => {
                if finished {
                    debug!(%checkout_id, accepted = verdict.accepted, "closed");
                    self.held.remove(&checkout_id);
                }
            }
            v1::Verdict::Revoked => self.forget(checkout_id, &verdict.reason),
            v1::Verdict::Unknown => self.forget(checkout_id, "the server does not know it"),
            v1::Verdict::Unspecified => self.forget(checkout_id, "the server gave no verdict"),
        }
    }

    pub(super) fn revoke(&mut self, revoked: Vec<v1::Revocation>) {
        for revocation in revoked {
            if let Session::Open(open) = &mut self.session {
                open.arriving.remove(&CheckoutId(revocation.checkout_id));
            }
            self.forget(CheckoutId(revocation.checkout_id), &revocation.reason);
        }
    }

    /// Nothing of it is computed or delivered from now on.
    pub(super) fn forget(&mut self, checkout_id: CheckoutId, reason: &str) {
        let Some(held) = self.held.remove(&checkout_id) else {
            return;
        };
        self.revoked += 1;
        warn!(%checkout_id, reason, revoked_so_far = self.revoked, "a checkout was revoked");
        self.outbox.strike(held.checkout.key);
        self.cancel(held.checkout);
    }

    /// Its controllers are told at once: whether cores are free is judged before the action is done.
    pub(super) fn cancel(&mut self, checkout: Arc<Checkout>) {
        checkout.cancel();
        self.actions.push(Action::Cancel(checkout));
    }
}

/// What the first part says of the job holds for all.
fn joined(mut whole: v1::Checkout, part: v1::Checkout) -> v1::Checkout {
    whole.problems.extend(part.problems);
    whole.related.extend(part.related);
    whole
}
