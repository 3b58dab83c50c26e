//! Contact with the servers, and the end of the lease.
//!
//! A server declares a workstation dead after a lease of silence, and hands its problems to others. The fence of a checkout is its
//! token: results of a late agent have no effect in the farm. A program's effects outside the farm have no such fence, nor do those
//! of a controller with dependencies, such as a database or a licence server. So an agent whose lease has ended stops both, unless its
//! owner says otherwise. Other controllers inside the agent have no effects outside, and go on.
//!
//! The lease begins when the server has last heard the agent, not when the agent has last heard the server, and the agent's end is never
//! later than the server's:
//!
//! - a Welcome proves that the Hello had come: the lease begins no earlier than the Hello was sent;
//! - [`v1::Heard`] names the beginning by the server's clock, which [`Clocks`] turns into the agent's;
//! - bytes of a large message that is on its way here prove that the server still has the agent's acknowledgements of earlier bytes;
//! - a refusal because of an outage of the database proves that no server can declare anybody dead.
//!
//! Nothing else counts, least of all bytes of a refusal. A server of an earlier version does not send Heard: while a session with it is
//! open, any byte counts.

use std::time::Duration;

use pcfarm_proto::v1;
use serde::Deserialize;
use tracing::warn;

use super::clocks::Clocks;
use super::held::Held;
use super::{Inventory, Profile, Session};
use crate::work::CheckoutKey;

/// Controllers whose problems run in programs of the owner's choice.
const PROGRAMS: &str = "exec:";

/// More bytes from a server than pings and their answers have: a message is on its way.
const MESSAGE_BYTES: u64 = 4 << 10;

/// Time to stop programs before the lease ends: a part of the lease, up to a limit.
const STOP_PART_OF_LEASE: u32 = 20;
const LONGEST_STOP: Duration = Duration::from_millis(500);

/// Bytes of a large message were under way for up to this part of the lease.
const BUSY_PART_OF_LEASE: u32 = 4;

/// An end of the lease that moves by less than this part of it is not told anew.
const TOLD_PART_OF_LEASE: u32 = 8;

/// Heartbeats of an agent whose programs depend on the lease: so many in a lease at least.
const BEATS_A_LEASE: u32 = 4;

/// Shortest silence after which a connection is given up, so that packets that were lost can be repeated.
const SHORTEST_SILENCE: Duration = Duration::from_secs(3);

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
    /// The lease began then or later.
    heard_at: Duration,
    /// The server of this session says when the lease begins.
    is_told: bool,
    clocks: Clocks,
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
            is_told: false,
            clocks: Clocks::default(),
            busy_at: Duration::ZERO,
            received_bytes: 0,
        }
    }
}

impl Inventory {
    /// A message to the server is sent.
    pub fn posted(&mut self, now: Duration) {
        self.contact.clocks.posted(now);
    }

    /// The connection has received so many bytes, the last of them at that time.
    pub fn heard(&mut self, at: Duration, received_bytes: u64) {
        let is_open = matches!(self.session, Session::Open(_));
        let contact = &mut self.contact;
        let news = received_bytes.checked_sub(contact.received_bytes);
        let is_large = news.is_some_and(|news| news >= MESSAGE_BYTES);
        if is_large {
            contact.busy_at = at;
        }
        if is_large || news.is_none() {
            contact.received_bytes = received_bytes;
        }
        let since = match contact.is_told {
            false => Some(at),
            true => is_large.then(|| at.saturating_sub(self.lease / BUSY_PART_OF_LEASE)),
        };
        if let Some(since) = since.filter(|_| is_open) {
            contact.heard_at = contact.heard_at.max(since);
        }
    }

    /// A whole message has come, after so many bytes of the connection. Bytes before it are no longer a message on its way.
    pub fn message_came(&mut self, received_bytes: u64) {
        self.contact.received_bytes = received_bytes;
    }

    /// The server has named the beginning of the lease.
    pub(super) fn told_of_lease(&mut self, heard: &v1::Heard, now: Duration) {
        if !matches!(self.session, Session::Open(_)) {
            return;
        }
        if let Some(since) = self.contact.clocks.lease_since(heard, now) {
            self.contact.is_told = true;
            self.contact.heard_at = self.contact.heard_at.max(since);
        }
    }

    /// A new session begins. Another server may have another clock.
    pub(super) fn forget_clocks(&mut self) {
        (self.contact.is_told, self.contact.clocks) = (false, Clocks::default());
    }

    /// The answer to this session's Hello proves that the lease began no earlier than the Hello was sent.
    pub(super) fn greeting_answered(&mut self) {
        if let Session::Greeting { since, .. } = &self.session {
            self.contact.heard_at = self.contact.heard_at.max(*since);
        }
    }

    /// End of the lease, less the time to stop programs. None: a server of an earlier version says nothing of it while a session is open.
    fn lease_ends(&self) -> Option<Duration> {
        let is_older = matches!(self.session, Session::Open(_)) && !self.contact.is_told;
        let margin = (self.lease / STOP_PART_OF_LEASE).min(LONGEST_STOP);
        (!is_older).then(|| self.contact.heard_at + self.lease.saturating_sub(margin))
    }

    /// Stops programs when the lease has ended. Finished results stay, and are delivered when there is a server again.
    pub(super) fn notice_end_of_lease(&mut self, now: Duration) {
        if self.profile.after_lease == AfterLease::Continue {
            return self.lease_end.set(None);
        }
        let end = self.lease_ends();
        self.tell_end_of_lease(end, now);
        if end.is_none_or(|end| now < end) {
            return;
        }
        let acts = |held: &&Held| held.is_computing() && acts_outside(&self.profile, &held.checkout.controller);
        let keys: Vec<CheckoutKey> = self.held.values().filter(acts).map(|held| held.checkout.key).collect();
        if !keys.is_empty() {
            warn!(checkouts = keys.len(), "the lease has ended: stopping programs (see after_lease)");
            self.give_back(&keys, "the workstation was out of contact for a lease");
        }
    }

    /// Publishes the end of the lease for supervisors. With a server of an earlier version a lease ends when this process stands still for
    /// its length.
    fn tell_end_of_lease(&self, end: Option<Duration>, now: Duration) {
        let latest = now + self.lease;
        let is_long = |told: Duration| told <= latest && told + self.lease / TOLD_PART_OF_LEASE >= latest;
        match end {
            Some(end) => self.lease_end.set(Some(end)),
            None if self.lease_end.get().is_some_and(is_long) => {}
            None => self.lease_end.set(Some(latest)),
        }
    }

    /// Time of the end of the lease if it is before `next` and something is to be stopped then.
    pub(super) fn lease_deadline(&self, next: Duration) -> Option<Duration> {
        // Mostly no lease ends so soon. The walk over all checkouts would cost each turn of the loop.
        self.lease_ends().filter(|end| *end < next && self.depends_on_lease())
    }

    /// True if something that is computed is stopped at the end of the lease.
    fn depends_on_lease(&self) -> bool {
        let acts = |held: &Held| held.is_computing() && acts_outside(&self.profile, &held.checkout.controller);
        self.profile.after_lease == AfterLease::Stop && self.held.values().any(acts)
    }

    /// True if a heartbeat is due because a checkout arrives whose lease has not been renewed for long.
    pub(super) fn must_renew_for(&self, controller: &str, now: Duration) -> bool {
        self.profile.after_lease == AfterLease::Stop
            && self.contact.is_told
            && now >= self.contact.heard_at + self.lease / BEATS_A_LEASE
            && acts_outside(&self.profile, controller)
    }

    /// Interval of heartbeats, given the server's.
    pub(super) fn beat_interval(&self, told: Duration) -> Duration {
        let own = self.lease / BEATS_A_LEASE;
        if own < told && self.contact.is_told && self.depends_on_lease() { own } else { told }
    }

    /// Silence after which a connection is given up, at most `usual`. While programs depend on a short lease, the server says something
    /// several times in a lease, and another server may be reached before the lease ends.
    pub fn silence_limit(&self, usual: Duration) -> Duration {
        let short = self.lease * 3 / 5;
        let Session::Open(open) = &self.session else { return usual };
        if short >= usual || !self.contact.is_told || !self.depends_on_lease() {
            return usual;
        }
        short.max(open.heartbeat_every * 2).max(SHORTEST_SILENCE).min(usual)
    }
}

/// True if problems of this controller may have effects outside the farm: they run in programs of the owner's choice, or wait for
/// dependencies.
fn acts_outside(profile: &Profile, controller: &str) -> bool {
    controller.starts_with(PROGRAMS) || profile.apart.contains(controller)
}
