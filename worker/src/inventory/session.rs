//! A session with a server, from Hello to its end.
//!
//! Owns what the agent says of itself when one begins, whether the server is still there, and whether this machine was.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use pcfarm_proto::v1::agent_message::Message as Out;
use pcfarm_proto::{
    MESSAGE_BYTES_LIMIT, PART_BYTES_TARGET, PROTOCOL_VERSION, SOLUTION_BYTES_LIMIT, idle_heartbeat, v1,
};
use prost::Message;
use tracing::{info, warn};

use super::pace::Pace;
use super::{
    Action, FRAME_BYTES, HELLO_BYTES_PER_SECOND, Inventory, LEASE, LEASES_TO_ACKNOWLEDGE, LONGEST, Open, Session,
    WELCOME_WAIT, held_message, settings_message, yields_message,
};

const SECOND: Duration = Duration::from_secs(1);

impl Inventory {
    pub(super) fn greet(&mut self, now: Duration) {
        let hello = v1::Hello {
            protocol_version: PROTOCOL_VERSION,
            held: self.held.values().map(|held| held_message(held.checkout.key)).collect(),
            state: self.state().into(),
            apart: self.profile.apart.iter().cloned().collect(),
            idle_source: self.signs.idle_source.clone(),
            power: self.signs.power.to_owned(),
            yields: self.yields.map(yields_message),
            presence: Some(settings_message(&self.settings)),
            presence_notes: self.signs.notes.clone(),
            ..self.profile.hello.clone()
        };
        let patience =
            WELCOME_WAIT + SECOND * u32::try_from(hello.encoded_len() / HELLO_BYTES_PER_SECOND).unwrap_or(u32::MAX);
        self.session = Session::Greeting {
            since: now,
            until: now.saturating_add(patience.min(LONGEST)),
            state: self.state(),
            signs: self.signs.clone(),
            settings: Arc::clone(&self.settings),
        };
        self.equipment_told = self.equipment();
        self.equipment_is_told = true;
        self.forget_clocks();
        self.send(Out::Hello(hello));
    }

    pub(super) fn welcomed(&mut self, now: Duration, welcome: v1::Welcome) {
        let Session::Greeting { state: state_told, signs: greeted, settings: settings_told, .. } = &self.session else {
            warn!("the server says Welcome twice");
            return;
        };
        let (state_told, greeted, settings_told) = (*state_told, greeted.clone(), Arc::clone(settings_told));
        info!(workstation_id = welcome.workstation_id, server_version = welcome.server_version, "welcomed");
        self.greeting_answered();
        self.lease = duration(welcome.lease).unwrap_or(LEASE);
        self.limit_messages(&welcome);
        self.contact.lost_since = None;
        self.contact.noted = false;
        let heartbeat_every = duration(welcome.heartbeat).unwrap_or(self.lease / 4);
        self.session = Session::Open(Open {
            credit: 0,
            last_sequence: 0,
            heartbeat_every,
            idle_heartbeat_every: idle_heartbeat(heartbeat_every, self.lease),
            heartbeat_due: now + heartbeat_every,
            listed_at: now,
            state: state_told,
            state_due: now,
            reason: String::new(),
            asleep: false,
            signs: greeted,
            settings: settings_told,
            reason_due: now,
            takes_intake: welcome.takes_intake,
            paused: BTreeSet::new(),
            intake_due: now,
            takes_equipment: welcome.takes_equipment,
            equipment_due: now,
            processing_since: None,
            arriving: BTreeMap::new(),
        });
        let why = if welcome.drain_reason.is_empty() { "it is to be drained".to_owned() } else { welcome.drain_reason };
        self.drained_by_server(welcome.draining.then_some(why));
        self.revoke(welcome.revoked);
        self.outbox.resend_all();
        self.held.values_mut().for_each(|held| held.kept = false);
    }

    fn limit_messages(&mut self, welcome: &v1::Welcome) {
        let message = limit(welcome.message_bytes_limit, MESSAGE_BYTES_LIMIT);
        let solution = limit(welcome.solution_bytes_limit, SOLUTION_BYTES_LIMIT);
        self.solution_bytes_limit = solution.min(message.saturating_sub(FRAME_BYTES));
        // A part ends with the result that reaches the target: one more solution must fit.
        self.delivery_bytes_limit = message.saturating_sub(self.solution_bytes_limit + FRAME_BYTES).max(1);
        self.part_bytes_target = PART_BYTES_TARGET.min(self.delivery_bytes_limit);
        self.pace = Pace::of_lease(welcome.takes_parts, self.lease);
        self.actions.push(Action::LimitSolutions(self.solution_bytes_limit));
    }

    pub(super) fn disconnected(&mut self, now: Duration) {
        if let Session::Open(open) = &self.session
            && !open.arriving.is_empty()
        {
            info!(checkouts = open.arriving.len(), "dropped checkouts that had not arrived whole");
        }
        self.session = Session::None;
        self.to_return = None;
        self.pace = Pace::default();
        self.contact.lost_since.get_or_insert(now);
        self.outbox.resend_all();
        self.held.values_mut().for_each(|held| held.kept = false);
    }

    fn give_up_session(&mut self) {
        self.session = Session::GivenUp;
        self.actions.push(Action::Reconnect);
    }

    /// Plain work goes on without contact: the fence of a checkout is its token, not its time. But a machine
    /// that slept asks at once what has become of its checkouts.
    pub(super) fn notice_absence(&mut self, now: Duration) {
        let patience = self.lease * 3 / 4;
        let since = |at: Option<Duration>| at.map_or(Duration::ZERO, |at| now.saturating_sub(at));
        let slept = since(self.contact.settled_at);
        self.contact.settled_at = Some(now);
        if slept > patience && matches!(self.session, Session::Greeting { .. } | Session::Open(_)) {
            warn!(seconds = slept.as_secs(), "the machine slept or stood still: asking anew what is still ours");
            self.give_up_session();
            return;
        }
        if since(self.contact.lost_since) > patience && !self.contact.noted {
            self.contact.noted = true;
            if !self.held.is_empty() {
                let checkouts = self.held.len();
                warn!(checkouts, "out of contact for three quarters of a lease: what is held may be revoked");
            }
        }
    }

    pub(super) fn give_up_silent_server(&mut self, now: Duration) {
        let silent = match &self.session {
            Session::None | Session::GivenUp => false,
            Session::Greeting { until, .. } => now >= *until,
            Session::Open(_) => {
                let wait = self.lease * LEASES_TO_ACKNOWLEDGE;
                self.outbox.is_unanswered_for(wait, self.contact.busy_at, now)
                    || self.pace.oldest().is_some_and(|sent| now >= sent.max(self.contact.busy_at) + wait)
            }
        };
        if silent {
            warn!("the server does not answer: trying another");
            self.give_up_session();
        }
    }
}

fn duration(duration: Option<prost_types::Duration>) -> Option<Duration> {
    let duration = duration.and_then(|duration| Duration::try_from(duration).ok());
    duration.filter(|duration| !duration.is_zero()).map(|duration| duration.min(LONGEST))
}

/// A server's limit, where it states one that is tighter than this build's.
fn limit(stated: u64, ours: usize) -> usize {
    match usize::try_from(stated) {
        Ok(0) | Err(_) => ours,
        Ok(stated) => stated.min(ours),
    }
}
