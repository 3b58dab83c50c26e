//! Contact with the servers, and the end of the lease.
//!
//! Owns the moment of the last word. A server declares a workstation dead after a lease of silence, and hands its problems to others.
//! The fence of a checkout is its token: results of a late agent have no effect in the farm. A program's effects outside the farm have
//! no such fence, so an agent that has heard of no server for a lease stops its programs, unless its owner says otherwise. Controllers
//! inside the agent have no effects outside it, and go on.

use std::time::Duration;

use serde::Deserialize;
use tracing::warn;

use super::held::Held;
use super::{Inventory, Session};
use crate::work::CheckoutKey;

/// Controllers whose problems run in programs of the owner's choice.
const PROGRAMS: &str = "exec:";

/// More bytes from a server than pings and their answers have: a message is on its way.
const MESSAGE_BYTES: u64 = 4 << 10;

/// Fate of programs when the lease has ended without a word from a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum AfterLease {
    /// The agent stops them and gives their problems back.
    #[default]
    Stop,
    /// Programs go on. Other workstations may compute the same problems meanwhile.
    Continue,
}

/// Signs of life from the servers.
pub struct Contact {
    pub(super) lost_since: Option<Duration>,
    pub(super) noted: bool,
    pub(super) settled_at: Option<Duration>,
    /// The last byte of any server came.
    heard_at: Duration,
    /// The last time that a large message was on its way here: answers wait behind it.
    pub(super) busy_at: Duration,
    /// Bytes of this connection as of then, or of the last message.
    received_bytes: u64,
}

impl Contact {
    pub(super) fn new(now: Duration) -> Contact {
        Contact {
            lost_since: Some(now),
            noted: false,
            settled_at: None,
            heard_at: now,
            busy_at: Duration::ZERO,
            received_bytes: 0,
        }
    }
}

impl Inventory {
    /// The connection has received so many bytes, the last of them at that time.
    pub fn heard(&mut self, at: Duration, received_bytes: u64) {
        let contact = &mut self.contact;
        contact.heard_at = contact.heard_at.max(at);
        let news = received_bytes.checked_sub(contact.received_bytes);
        if news.is_none_or(|news| news >= MESSAGE_BYTES) {
            contact.received_bytes = received_bytes;
            contact.busy_at = if news.is_some() { at } else { contact.busy_at };
        }
    }

    /// A whole message has come, after so many bytes of the connection. Bytes before it are no longer a message on its way.
    pub fn message_came(&mut self, received_bytes: u64) {
        self.contact.received_bytes = received_bytes;
    }

    /// End of the lease. None while a session is open: the link ends a connection on which no byte moves.
    fn lease_ends(&self) -> Option<Duration> {
        let is_open = matches!(self.session, Session::Open(_));
        (!is_open).then(|| self.contact.heard_at + self.lease)
    }

    /// Stops programs when the lease has ended. Finished results stay, and are delivered when there is a server again.
    pub(super) fn notice_end_of_lease(&mut self, now: Duration) {
        if self.profile.after_lease == AfterLease::Continue || self.lease_ends().is_none_or(|end| now < end) {
            return;
        }
        let keys: Vec<CheckoutKey> =
            self.held.values().filter(|held| is_program(held)).map(|held| held.checkout.key).collect();
        if !keys.is_empty() {
            warn!(checkouts = keys.len(), "no word from a server for a lease: stopping programs (see after_lease)");
            self.give_back(&keys, "the workstation was out of contact for a lease");
        }
    }

    pub(super) fn lease_deadline(&self) -> Option<Duration> {
        // Mostly no lease can end. The walk over all checkouts would cost each turn of the loop.
        let stops = || self.profile.after_lease == AfterLease::Stop && self.held.values().any(is_program);
        self.lease_ends().filter(|_| stops())
    }
}

fn is_program(held: &Held) -> bool {
    held.is_computing() && held.checkout.controller.starts_with(PROGRAMS)
}
