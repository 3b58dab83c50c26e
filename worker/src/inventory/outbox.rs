//! Deliveries until they are acknowledged.
//!
//! Owns their order and their ids. They are sent, and sent again, in the order in which they were made, so that the delivery that
//! closes a checkout comes last. After a reconnection the agent asks the server which results of larger deliveries are stored, and
//! sends only the others again.
//!
//! **On a measured link no message is larger than a piece**, the bytes that the link carries in a moment.
//! Everything that a delivery carries has a weight. A delivery is cut between checkouts, returned problems and results. A single
//! result that weighs more goes ahead of its delivery in parts, with the problems that it enqueues, its info, or its failure.

mod pieces;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use pcfarm_faults::{Bug, planted};
use pcfarm_proto::ids::CheckoutId;
use pcfarm_proto::v1;
use prost::Message;

use self::pieces::{Split, Streaming};
use super::held::{age, part_bytes};
use crate::work::CheckoutKey;

/// Deliveries that wait for acknowledgement at a time. A few hide the round trip. With more, results that complete meanwhile would
/// go out in ever smaller deliveries.
const WINDOW: usize = 4;

/// The same on a measured link, where the bytes under way have a limit, while deliveries have half a piece on average: a window of
/// a few would leave such a link idle.
const WIDE_WINDOW: usize = 16;

/// What a server keeps because something stands in its way is delivered again after so long, to another if there is one.
const KEPT_WAIT: Duration = Duration::from_secs(600);

/// A delivery that weighs less is sent again without a question, and so is one whose results weigh less on average: their ids would
/// be a large part of them.
const WORTH_ASKING_BYTES: usize = 4 << 10;
const WORTH_ASKING_BYTES_EACH: usize = 64;

/// Pieces that one question is about. With [`WORTH_ASKING_BYTES_EACH`], its ids are shorter than a piece.
const ASKED_PIECES: usize = 4;

#[derive(Default)]
pub struct Outbox {
    entries: VecDeque<Entry>,
    last_id: u64,
}

struct Entry {
    delivery: v1::Delivery,
    /// Weight of the delivery in bytes. Kept up to date: a walk over all results for each message costs more than the message.
    weight: usize,
    stage: Stage,
    /// An earlier session has sent it: it may be stored.
    is_doubtful: bool,
    /// When the server said that it keeps it until it can be stored.
    kept: Option<Duration>,
    /// What it says of times is as of then.
    as_of: Duration,
}

impl Entry {
    fn is_worth_asking(&self) -> bool {
        let results = || self.delivery.checkouts.iter().map(|part| part.results.len()).sum::<usize>();
        let is_short = |results| results > 0 && self.weight >= results * WORTH_ASKING_BYTES_EACH;
        self.is_doubtful && self.stage == Stage::Waiting && self.weight >= WORTH_ASKING_BYTES && is_short(results())
    }
}

/// Progress of a delivery in this session.
#[derive(Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    /// Its only result goes ahead in parts.
    Streaming(Streaming),
    /// The agent has asked the server which results of the delivery are stored.
    Asking {
        since: Duration,
    },
    Sent {
        at: Duration,
    },
}

/// The next message to send; a question and a delivery with their weights in bytes.
#[derive(Debug)]
pub enum Next {
    Ask(v1::StoredRequest, usize),
    Part(v1::ResultPart),
    Delivery(v1::Delivery, usize),
}

impl Outbox {
    /// True if another delivery may be added. `piece` as for [`Outbox::next_to_send`].
    pub fn has_room(&self, piece: Option<usize>) -> bool {
        let (mut count, mut bytes) = (0, 0);
        for entry in self.entries.iter().filter(|entry| entry.kept.is_none()) {
            count += 1;
            bytes += entry.weight;
        }
        let is_wide = || piece.is_some_and(|piece| count < WIDE_WINDOW && bytes >= count * (piece / 2));
        count < WINDOW || is_wide()
    }

    pub fn bytes(&self) -> usize {
        self.entries.iter().map(|entry| entry.weight).sum()
    }

    /// The server owes an answer to something that was sent longer ago than this. A delivery that the server keeps may take longer.
    /// The link carried something else until `busy`.
    pub fn is_unanswered_for(&self, wait: Duration, busy: Duration, now: Duration) -> bool {
        self.entries.iter().any(|entry| match (&entry.stage, entry.kept) {
            (_, Some(kept)) => now >= kept + wait.max(KEPT_WAIT),
            (Stage::Sent { at } | Stage::Asking { since: at }, None) => now >= (*at).max(busy) + wait,
            (Stage::Waiting | Stage::Streaming(_), None) => false,
        })
    }

    /// The server keeps it until it can be stored. Returns what it is about.
    pub fn keep(&mut self, delivery_id: u64, now: Duration) -> Vec<CheckoutKey> {
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.delivery.delivery_id == delivery_id) else {
            return Vec::new();
        };
        entry.kept = Some(now);
        entry.delivery.checkouts.iter().map(key_of).collect()
    }

    /// Keeps a new delivery of this weight, to be sent.
    pub fn add(&mut self, checkouts: Vec<v1::CheckoutResults>, weight: usize, now: Duration) {
        self.last_id += 1;
        let delivery = v1::Delivery { delivery_id: self.last_id, checkouts };
        let (stage, is_doubtful, kept) = (Stage::Waiting, false, None);
        self.entries.push_back(Entry { delivery, weight, stage, is_doubtful, kept, as_of: now });
    }

    /// The session is a new one: nothing counts as sent.
    pub fn resend_all(&mut self) {
        if planted(Bug::ForgetsDeliveries) {
            self.entries.clear();
        }
        for entry in &mut self.entries {
            entry.is_doubtful |= matches!(entry.stage, Stage::Sent { .. });
            (entry.stage, entry.kept) = (Stage::Waiting, None);
        }
    }

    /// Returns the next message of the deliveries that this session has not sent. `piece` is the bytes that the link carries in a
    /// moment; none: the server knows deliveries alone.
    pub fn next_to_send(&mut self, piece: Option<usize>, now: Duration) -> Option<Next> {
        if let Some(piece) = piece
            && let Some(place) = self.entries.iter().position(Entry::is_worth_asking)
        {
            // A question about megabytes of small results would itself be more than a slow link carries in a moment.
            self.split(place, piece.saturating_mul(ASKED_PIECES));
            let entry = &mut self.entries[place];
            entry.stage = Stage::Asking { since: now };
            let question = question(&entry.delivery);
            let bytes = question.encoded_len();
            return Some(Next::Ask(question, bytes));
        }
        let place = self.entries.iter().position(|entry| !matches!(entry.stage, Stage::Sent { .. }))?;
        if matches!(self.entries[place].stage, Stage::Asking { .. }) {
            return None;
        }
        if let Some(part) = piece.and_then(|piece| self.next_part(place, piece)) {
            return Some(Next::Part(part));
        }
        let entry = &mut self.entries[place];
        let by = now.saturating_sub(std::mem::replace(&mut entry.as_of, now));
        entry.delivery.checkouts.iter_mut().filter_map(|part| part.worked.as_mut()).for_each(|worked| age(worked, by));
        let delivery = match std::mem::replace(&mut entry.stage, Stage::Sent { at: now }) {
            Stage::Streaming(streaming) => {
                let delivery = streaming.behind(&entry.delivery);
                let bytes = weight(&delivery);
                return Some(Next::Delivery(delivery, bytes));
            }
            Stage::Waiting | Stage::Asking { .. } | Stage::Sent { .. } => entry.delivery.clone(),
        };
        Some(Next::Delivery(delivery, entry.weight))
    }

    /// Cuts a delivery to one piece. Returns the next part of its only result, if that is larger than a piece and not sent whole.
    fn next_part(&mut self, place: usize, piece: usize) -> Option<v1::ResultPart> {
        if self.entries[place].weight <= piece && self.entries[place].stage == Stage::Waiting {
            return None;
        }
        if self.entries[place].stage == Stage::Waiting {
            self.split(place, piece);
            let entry = &mut self.entries[place];
            if entry.weight > piece
                && let Some(streaming) = Streaming::of(&entry.delivery)
            {
                entry.stage = Stage::Streaming(streaming);
            }
        }
        match &mut self.entries[place].stage {
            // A result that has begun in parts goes on in parts, even on a link that has become faster.
            Stage::Streaming(streaming) => streaming.next(piece),
            Stage::Waiting | Stage::Asking { .. } | Stage::Sent { .. } => None,
        }
    }

    /// Cuts a delivery to one piece, which has at least one result or returned problem, and puts the rest behind it.
    fn split(&mut self, place: usize, piece: usize) {
        let entry = &mut self.entries[place];
        if entry.weight <= piece {
            return;
        }
        if let Some(Split { mut first, added }) = pieces::split(&mut entry.delivery, piece) {
            self.last_id += 1;
            first.delivery_id = std::mem::replace(&mut entry.delivery.delivery_id, self.last_id);
            let weight = weight(&first);
            entry.weight = (entry.weight + added).saturating_sub(weight);
            let (is_doubtful, as_of) = (entry.is_doubtful, entry.as_of);
            let stage = Stage::Waiting;
            self.entries.insert(place, Entry { delivery: first, weight, stage, is_doubtful, kept: None, as_of });
        }
    }

    /// Takes out the results that the server has stored. Returns their number for each checkout.
    pub fn stored(&mut self, stored: v1::Stored) -> Vec<(CheckoutKey, usize)> {
        let is_it = |entry: &Entry| {
            entry.delivery.delivery_id == stored.delivery_id && matches!(entry.stage, Stage::Asking { .. })
        };
        let Some(place) = self.entries.iter().position(is_it) else { return Vec::new() };
        let entry = &mut self.entries[place];
        (entry.stage, entry.is_doubtful) = (Stage::Waiting, false);
        let known: BTreeMap<i64, BTreeSet<i64>> =
            stored.checkouts.into_iter().map(|of| (of.checkout_id, of.problem_ids.into_iter().collect())).collect();
        let mut taken = Vec::new();
        for part in &mut entry.delivery.checkouts {
            let Some(known) = known.get(&part.checkout_id) else { continue };
            let before = part.results.len();
            part.results.retain(|result| !known.contains(&result.problem_id));
            taken.push((key_of(part), before - part.results.len()));
        }
        // A part that closes its checkout, or returns problems, stays: its verdict is to come.
        let says_more = |part: &v1::CheckoutResults| part.finished || !part.given_back.is_empty();
        entry.delivery.checkouts.retain(|part| says_more(part) || !part.results.is_empty());
        entry.weight = weight(&entry.delivery);
        if entry.delivery.checkouts.is_empty() {
            self.entries.remove(place);
        }
        taken
    }

    /// Hands out the delivery that the server has judged.
    pub fn acknowledge(&mut self, delivery_id: u64) -> Option<v1::Delivery> {
        let index = self.entries.iter().position(|entry| entry.delivery.delivery_id == delivery_id)?;
        Some(self.entries.remove(index)?.delivery)
    }

    /// Takes what belongs to a revoked checkout out of every delivery.
    pub fn strike(&mut self, key: CheckoutKey) {
        for entry in &mut self.entries {
            let before = entry.delivery.checkouts.len();
            entry.delivery.checkouts.retain(|part| key_of(part) != key);
            if entry.delivery.checkouts.len() == before {
                continue;
            }
            if matches!(entry.stage, Stage::Streaming(_)) {
                // The parts may have been of it.
                entry.stage = Stage::Waiting;
            }
            entry.weight = weight(&entry.delivery);
        }
        self.entries.retain(|entry| !entry.delivery.checkouts.is_empty());
    }
}

fn key_of(part: &v1::CheckoutResults) -> CheckoutKey {
    CheckoutKey { checkout_id: CheckoutId(part.checkout_id), token: part.token }
}

fn question(delivery: &v1::Delivery) -> v1::StoredRequest {
    let asked = |part: &v1::CheckoutResults| v1::DeliveredProblems {
        checkout_id: part.checkout_id,
        token: part.token,
        problem_ids: part.results.iter().map(|result| result.problem_id).collect(),
    };
    let checkouts = delivery.checkouts.iter().filter(|part| !part.results.is_empty()).map(asked).collect();
    v1::StoredRequest { delivery_id: delivery.delivery_id, checkouts }
}

fn weight(delivery: &v1::Delivery) -> usize {
    delivery.checkouts.iter().map(part_bytes).sum()
}
