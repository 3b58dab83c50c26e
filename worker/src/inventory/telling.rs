//! What the server is told once a session is open: results, state, credit, heartbeats.
//!
//! Owns when each of these is due. It never changes what is held, but for what it cuts into deliveries.

use std::sync::Arc;
use std::time::Duration;

use pcfarm_proto::v1;
use pcfarm_proto::v1::agent_message::Message as Out;

use super::held::{Held, Stage};
use super::outbox::Next;
use super::pace::Parcel;
use super::{
    Drain, EQUIPMENT_CHANGE_EVERY, Inventory, PARTIAL_DELIVERY_EVERY, PROCESSING_TOLD_AFTER, REASON_CHANGE_EVERY,
    SHORT_LIST, STATE_CHANGE_EVERY, Session, Signs, held_message, key_of, settings_message, short, yields_message,
};
use crate::work::Checkout;

impl Inventory {
    pub(super) fn deliver(&mut self, now: Duration) {
        while self.pace.has_room() {
            if let Some(next) = self.outbox.next_to_send(self.pace.piece(), now) {
                self.put_on_the_link(next, now);
                continue;
            }
            if !self.outbox.has_room(self.pace.piece()) {
                return;
            }
            let (parts, bytes) = self.pack(now);
            if parts.is_empty() {
                return;
            }
            self.outbox.add(parts, bytes, now);
        }
    }

    fn put_on_the_link(&mut self, next: Next, now: Duration) {
        let message = match next {
            Next::Ask(question, bytes) => {
                self.pace.sent(Parcel::Question(question.delivery_id), bytes, now);
                Out::StoredRequest(question)
            }
            Next::Part(part) => {
                let end = part.offset + part.content.len() as u64;
                let parcel = Parcel::Part { checkout_id: part.checkout_id, problem_id: part.problem_id, end };
                self.pace.sent(parcel, part.content.len(), now);
                Out::ResultPart(part)
            }
            Next::Delivery(delivery, bytes) => {
                self.pace.sent(Parcel::Delivery(delivery.delivery_id), bytes, now);
                Out::Delivery(delivery)
            }
        };
        self.send(message);
    }

    /// Bytes of results that one delivery should have.
    pub(super) fn delivery_bytes_target(&self) -> usize {
        self.pace.piece().map_or(self.part_bytes_target, |piece| piece.min(self.delivery_bytes_limit))
    }

    /// One delivery's worth of what is due: complete checkouts first. Of one job type, so that what stands in the way of its
    /// results keeps no others from being stored. Returns its weight, too.
    pub(super) fn pack(&mut self, now: Duration) -> (Vec<v1::CheckoutResults>, usize) {
        let target = self.delivery_bytes_target();
        let mut room = target;
        let (mut parts, mut weight) = (Vec::new(), 0);
        let mut first: Option<Arc<Checkout>> = None;
        let late = self.has_waited_long(now);
        for complete in [!late, late] {
            for held in self.held.values_mut() {
                let due = match &held.stage {
                    Stage::Ready { .. } => complete,
                    Stage::Computing { .. } => !complete && held.partial_is_due(now, target),
                    Stage::Closing => false,
                };
                // A complete one is not cut in two, if it fits a delivery: the second piece would have to wait for the first.
                let has_room = |held: &Held| match complete {
                    true => held.fits_within(room),
                    false => held.begins_within(room),
                };
                let fits = parts.is_empty() || has_room(held);
                let is_alike = first.as_ref().is_none_or(|first| first.job_type == held.checkout.job_type);
                if due && room > 0 && fits && is_alike {
                    first.get_or_insert_with(|| Arc::clone(&held.checkout));
                    let (part, bytes) = held.cut(room, now);
                    room = room.saturating_sub(bytes);
                    weight += bytes;
                    parts.push(part);
                }
            }
        }
        (parts, weight)
    }

    /// Is a part of a checkout due for so long that complete ones of another job type must not go before it?
    fn has_waited_long(&self, now: Duration) -> bool {
        let has_waited = |held: &Held| {
            held.partial_since()
                .is_some_and(|since| held.checkout.one_by_one || now >= since + 2 * PARTIAL_DELIVERY_EVERY)
        };
        self.held.values().any(has_waited)
    }

    pub(super) fn equipment(&self) -> v1::Equipment {
        let hello = &self.profile.hello;
        v1::Equipment { gpus: hello.gpus.clone(), programs: hello.programs.clone() }
    }

    /// Tells the server of GPUs and programs after a change.
    pub(super) fn tell_equipment(&mut self, now: Duration) {
        let is_told = self.equipment_is_told;
        let Session::Open(open) = &mut self.session else { return };
        if !open.takes_equipment || is_told || now < open.equipment_due {
            return;
        }
        open.equipment_due = now + EQUIPMENT_CHANGE_EVERY;
        self.equipment_told = self.equipment();
        self.equipment_is_told = true;
        self.send(Out::Equipment(self.equipment_told.clone()));
    }

    pub(super) fn tell_state(&mut self, now: Duration) {
        let state = self.state();
        let reason = self.reason();
        let asleep = self.falls_asleep();
        let Session::Open(open) = &mut self.session else {
            return;
        };
        let draining = state == v1::WorkstationState::Draining;
        let urgent = draining || state == v1::WorkstationState::Suspended;
        let untold = state == v1::WorkstationState::Processing && state != open.state;
        open.processing_since = untold.then(|| open.processing_since.unwrap_or(now));
        let too_early = open.processing_since.is_some_and(|since| now < since + PROCESSING_TOLD_AFTER);
        let new_settings = (self.settings != open.settings).then(|| settings_message(&self.settings));
        let is_news = reason != open.reason || self.signs != open.signs || new_settings.is_some();
        let says_why = state == open.state && is_news && now >= open.reason_due;
        // Before its sleep there may not be another chance. A PC that stays awake after all needs no packet that wakes it.
        let wakes_or_sleeps = asleep != open.asleep;
        if !says_why && !wakes_or_sleeps && (state == open.state || ((now < open.state_due || too_early) && !urgent)) {
            return;
        }
        open.state = state;
        open.asleep = asleep;
        open.reason.clone_from(&reason);
        open.signs.clone_from(&self.signs);
        open.settings = Arc::clone(&self.settings);
        open.reason_due = now + REASON_CHANGE_EVERY;
        open.processing_since = None;
        open.state_due = now + STATE_CHANGE_EVERY;
        let Signs { idle_source, power, notes } = self.signs.clone();
        self.send(Out::StateChange(v1::StateChange {
            state: state.into(),
            reason: short(&reason),
            idle_source,
            power: power.to_owned(),
            yields: self.yields.map(yields_message),
            presence: new_settings,
            asleep,
            presence_notes: notes,
        }));
    }

    /// Why it is in the state that it is in, if there is anything to say.
    pub(super) fn reason(&self) -> String {
        match &self.drain {
            Drain::No => match &self.leaving {
                None => self.bottlenecks(),
                Some(leaving) if self.is_frozen() && self.held.values().any(Held::is_computing) => {
                    format!("{}; what it has begun is frozen", leaving.reason)
                }
                Some(leaving) => leaving.reason.clone(),
            },
            Drain::Server { reason, .. } => reason.clone(),
            Drain::Stop { .. } => "the agent is stopping".to_owned(),
        }
    }

    pub(super) fn unacknowledged_bytes(&self) -> usize {
        self.outbox.bytes() + self.held.values().map(Held::pending_bytes).sum::<usize>()
    }

    pub(super) fn beat(&mut self, now: Duration) {
        let interval = match &self.session {
            Session::Open(open) if now >= open.heartbeat_due => self.beat_interval(open.heartbeat_every),
            Session::Open(_) | Session::None | Session::Greeting { .. } | Session::GivenUp => return,
        };
        let Session::Open(open) = &mut self.session else {
            return;
        };
        let is_idle = self.held.is_empty() && open.arriving.is_empty();
        open.heartbeat_due = now + if is_idle { open.idle_heartbeat_every } else { interval };
        let is_long = self.held.len() + open.arriving.len() > SHORT_LIST;
        let is_behind = self.pace.oldest().is_some_and(|sent| sent <= open.listed_at);
        if is_long && is_behind && now < open.listed_at + self.lease {
            // The list before is still on its way. A slow link would soon carry nothing but lists: the shortest message says as well
            // that the agent lives.
            return self.send(Out::Credit(v1::Credit { checkouts: 0 }));
        }
        open.listed_at = now;
        // What is arriving is in this agent's hands as far as the server can tell.
        let arriving = open.arriving.values().map(|part| held_message(key_of(part)));
        let heartbeat = v1::Heartbeat {
            held: self.held.values().map(|held| held_message(held.checkout.key)).chain(arriving).collect(),
            last_sequence: open.last_sequence,
        };
        self.send(Out::Heartbeat(heartbeat));
    }
}
