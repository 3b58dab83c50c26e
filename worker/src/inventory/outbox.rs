//! Deliveries until they are acknowledged.
//!
//! Owns their order and their ids: they are sent, and sent again, in the order in which they were made, so
//! that the one that closes a checkout comes last.

use std::collections::VecDeque;
use std::time::Duration;

use pcfarm_faults::{Bug, planted};
use pcfarm_proto::ids::CheckoutId;
use pcfarm_proto::v1;

use super::held::{age, bytes_of};
use crate::work::CheckoutKey;

/// Deliveries that wait for acknowledgement at a time. A few hide the round trip; with more, what completes
/// meanwhile would go out in ever smaller pieces instead of together.
const WINDOW: usize = 4;

/// What a server keeps because something stands in its way is delivered again after so long, to another if there is one.
const KEPT_WAIT: Duration = Duration::from_secs(600);

#[derive(Default)]
pub struct Outbox {
    entries: VecDeque<Entry>,
    last_id: u64,
    bytes: usize,
}

struct Entry {
    delivery: v1::Delivery,
    /// When it was sent in this session.
    sent: Option<Duration>,
    /// When the server said that it keeps it until it can be stored.
    kept: Option<Duration>,
    /// What it says of times is as of then.
    as_of: Duration,
}

impl Outbox {
    pub fn has_room(&self) -> bool {
        self.entries.iter().filter(|entry| entry.kept.is_none()).count() < WINDOW
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The server owes an answer to one that was sent longer ago than this. For what it keeps it may take longer.
    pub fn is_unanswered_for(&self, wait: Duration, now: Duration) -> bool {
        self.entries.iter().any(|entry| match (entry.sent, entry.kept) {
            (Some(sent), None) => now >= sent + wait,
            (_, Some(kept)) => now >= kept + wait.max(KEPT_WAIT),
            (None, None) => false,
        })
    }

    /// The server keeps it until it can be stored. Returns what it is about.
    pub fn keep(&mut self, delivery_id: u64, now: Duration) -> Vec<CheckoutKey> {
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.delivery.delivery_id == delivery_id) else {
            return Vec::new();
        };
        entry.kept = Some(now);
        let key =
            |part: &v1::CheckoutResults| CheckoutKey { checkout_id: CheckoutId(part.checkout_id), token: part.token };
        entry.delivery.checkouts.iter().map(key).collect()
    }

    /// Keeps a new delivery, sent now.
    pub fn add(&mut self, checkouts: Vec<v1::CheckoutResults>, now: Duration) -> v1::Delivery {
        self.last_id += 1;
        let delivery = v1::Delivery { delivery_id: self.last_id, checkouts };
        self.bytes += weight(&delivery);
        self.entries.push_back(Entry { delivery: delivery.clone(), sent: Some(now), kept: None, as_of: now });
        delivery
    }

    /// The session is a new one: nothing counts as sent.
    pub fn resend_all(&mut self) {
        if planted(Bug::ForgetsDeliveries) {
            (self.entries, self.bytes) = (VecDeque::new(), 0);
        }
        self.entries.iter_mut().for_each(|entry| (entry.sent, entry.kept) = (None, None));
    }

    /// The first delivery that was not sent in this session; it counts as sent from now on.
    pub fn next_to_send(&mut self, now: Duration) -> Option<v1::Delivery> {
        let entry = self.entries.iter_mut().find(|entry| entry.sent.is_none())?;
        entry.sent = Some(now);
        let by = now.saturating_sub(std::mem::replace(&mut entry.as_of, now));
        entry.delivery.checkouts.iter_mut().filter_map(|part| part.worked.as_mut()).for_each(|worked| age(worked, by));
        Some(entry.delivery.clone())
    }

    /// Hands out the delivery that the server has judged.
    pub fn acknowledge(&mut self, delivery_id: u64) -> Option<v1::Delivery> {
        let index = self.entries.iter().position(|entry| entry.delivery.delivery_id == delivery_id)?;
        let delivery = self.entries.remove(index)?.delivery;
        self.bytes -= weight(&delivery);
        Some(delivery)
    }

    /// Takes what belongs to a revoked checkout out of every delivery.
    pub fn strike(&mut self, key: CheckoutKey) {
        for entry in &mut self.entries {
            self.bytes -= weight(&entry.delivery);
            let of_it = |part: &v1::CheckoutResults| part.checkout_id == key.checkout_id.0 && part.token == key.token;
            entry.delivery.checkouts.retain(|part| !of_it(part));
            self.bytes += weight(&entry.delivery);
        }
        self.entries.retain(|entry| !entry.delivery.checkouts.is_empty());
    }
}

fn weight(delivery: &v1::Delivery) -> usize {
    delivery.checkouts.iter().flat_map(|part| &part.results).map(bytes_of).sum()
}
