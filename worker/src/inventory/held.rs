//! One checkout in hand: what of it is solved, and what of that has been delivered.
//!
//! Owns results until they are cut into a delivery. It never decides whether the session allows one.
//!
//! A checkout that is run *one by one* has at most one problem on its way: computed, delivered, and then
//! acknowledged before the next one starts. So if a problem kills the agent, the server knows which it was:
//! the first one without a result.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use pcfarm_proto::v1::problem_result::Outcome;
use pcfarm_proto::{RETURNED_LIMIT, v1};
use prost::Message;

use super::PARTIAL_DELIVERY_EVERY;
use super::convoys::cut_place;
use crate::pool::Batch;
use crate::work::Checkout;

/// What a result weighs in a message beside its solution: ids, tags and lengths.
pub const RESULT_FRAME_BYTES: usize = 24;

/// Most bytes of a returned problem's id in a message.
const RETURNED_BYTES: usize = 10;

/// Weight of a checkout in a delivery beside its results, its returned problems and texts: id, token, time, tags and lengths.
pub const PART_FRAME_BYTES: usize = 40;

/// Weight of [`v1::Worked`].
const WORKED_BYTES: usize = 64;

/// How much of its time limit a checkout may have used up while it stands still; the rest is for giving it back.
const WAITS_PART_OF_LIMIT: f64 = 0.9;

pub struct Held {
    pub checkout: Arc<Checkout>,
    pub stage: Stage,
    /// Problems without a result.
    unsolved: usize,
    /// Results that are in no delivery yet.
    pending: Vec<v1::ProblemResult>,
    pending_bytes: usize,
    /// Returned problems that are in no delivery yet, the reason, and the number of all returned problems.
    returning: Vec<i64>,
    return_reason: String,
    returned: usize,
    /// When results were cut off last, or the checkout arrived.
    cut_at: Duration,
    busy: Duration,
    /// Time in the controller so far, summed over cores.
    spent: Duration,
    /// No core takes another problem.
    stopped: Option<Stopped>,
    /// The server keeps a delivery of it until it can be stored: what comes waits for the end of the checkout, or of that.
    pub kept: bool,
    times: Times,
}

/// A checkout of which the problems that have begun are finished, and no others.
struct Stopped {
    /// Number of the problems that have begun.
    begun: usize,
    /// Places of the problems that wait here: the rest of a convoy that has begun.
    untaken: Range<usize>,
}

/// When what happened to it, for whoever traces it.
struct Times {
    arrived: Duration,
    began: Option<Duration>,
    /// Its newest result was there.
    ended: Duration,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Stage {
    Computing {
        started: bool,
    },
    /// No more results will come.
    Ready {
        give_back_reason: String,
    },
    /// The last of it is in the outbox.
    Closing,
}

impl Held {
    pub fn new(checkout: Checkout, now: Duration) -> Held {
        let unsolved = checkout.problems.len();
        let stage = match unsolved {
            0 => Stage::Ready { give_back_reason: String::new() },
            _ => Stage::Computing { started: false },
        };
        Held {
            checkout: Arc::new(checkout),
            stage,
            unsolved,
            pending: Vec::new(),
            pending_bytes: 0,
            returning: Vec::new(),
            return_reason: String::new(),
            returned: 0,
            cut_at: now,
            busy: Duration::ZERO,
            spent: Duration::ZERO,
            stopped: None,
            kept: false,
            times: Times { arrived: now, began: None, ended: now },
        }
    }

    pub fn is_computing(&self) -> bool {
        matches!(self.stage, Stage::Computing { .. })
    }

    pub fn is_running(&self) -> bool {
        self.stage == Stage::Computing { started: true }
    }

    pub fn is_waiting(&self) -> bool {
        self.stage == Stage::Computing { started: false }
    }

    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    /// From when on the time counts until results of this unfinished checkout are delivered.
    pub fn partial_since(&self) -> Option<Duration> {
        let has_news = !self.pending.is_empty() || !self.returning.is_empty();
        (self.is_computing() && has_news && !self.kept).then_some(self.cut_at)
    }

    pub fn partial_is_due(&self, now: Duration, bytes_target: usize) -> bool {
        let full = self.pending_bytes >= bytes_target || self.checkout.one_by_one;
        // An idle workstation waits for returned problems.
        let is_urgent = full || !self.returning.is_empty();
        self.partial_since().is_some_and(|since| is_urgent || now >= since + PARTIAL_DELIVERY_EVERY)
    }

    pub fn start(&mut self, now: Duration) {
        if self.is_waiting() {
            self.times.began = Some(now);
            self.stage = Stage::Computing { started: true };
        }
    }

    /// Lets no core take another problem. Problems that were taken are finished.
    pub fn finish_begun(&mut self) {
        if !self.is_computing() || self.stopped.is_some() {
            return;
        }
        if self.checkout.one_by_one {
            self.stopped = Some(Stopped { begun: self.checkout.stop_taking(), untaken: 0..0 });
            return;
        }
        let untaken = self.checkout.let_go(|untaken| untaken.start);
        self.stopped = Some(Stopped { begun: self.checkout.taken(), untaken });
    }

    /// Lets cores take the problems again that have waited since [`Held::finish_begun`]. Returns the checkout if there are any.
    pub fn take_again(&mut self) -> Option<Arc<Checkout>> {
        let stopped = self.stopped.take_if(|stopped| !stopped.untaken.is_empty())?;
        self.checkout.release(stopped.untaken.len());
        Some(Arc::clone(&self.checkout))
    }

    /// Takes problems away from the cores to return them, and returns their places: behind the first `kept` of the problems that
    /// have not begun, `most` at most, and whole convoys only if these must stay whole.
    pub fn let_go(&mut self, kept: usize, most: usize, whole_convoys: bool) -> Range<usize> {
        let problems = &self.checkout.problems;
        let place = |untaken: Range<usize>| {
            let kept = untaken.start.saturating_add(kept);
            cut_place(problems.get(..untaken.end).unwrap_or_default(), kept, most, whole_convoys)
        };
        let Some(stopped) = &mut self.stopped else { return self.checkout.let_go(place) };
        let place = place(stopped.untaken.clone()).clamp(stopped.untaken.start, stopped.untaken.end);
        let returned = place..stopped.untaken.end;
        stopped.untaken.end = place;
        returned
    }

    /// Until when it may stand still: some time before the farm revokes it.
    pub fn waits_until(&self) -> Option<Duration> {
        self.checkout.time_limit.map(|limit| self.times.arrived + limit.mul_f64(WAITS_PART_OF_LIMIT))
    }

    pub fn cannot_wait(&self, now: Duration) -> bool {
        self.waits_until().is_some_and(|until| now >= until)
    }

    pub fn has_finished_begun(&self) -> bool {
        self.stopped.as_ref().is_some_and(|stopped| self.solved() >= stopped.begun)
    }

    fn solved(&self) -> usize {
        self.checkout.problems.len().saturating_sub(self.unsolved + self.returned)
    }

    /// Number of problems that have begun and have no result.
    pub fn running(&self) -> usize {
        self.checkout.taken().saturating_sub(self.solved())
    }

    /// Time of one of its problems, if some are solved.
    pub fn pace(&self) -> Option<Duration> {
        self.spent.checked_div(u32::try_from(self.solved()).ok()?)
    }

    /// True if some of its problems may be returned while others are computed.
    pub fn may_return(&self) -> bool {
        self.is_computing() && !self.checkout.one_by_one && !self.kept
    }

    /// Returns the problems at these places, which no core has taken.
    pub fn return_problems(&mut self, places: Range<usize>, reason: &str) {
        let problems = self.checkout.problems.get(places).unwrap_or_default();
        self.returning.extend(problems.iter().map(|problem| problem.problem_id));
        self.return_reason = reason.to_owned();
        self.returned += problems.len();
        self.unsolved = self.unsolved.saturating_sub(problems.len());
        if self.unsolved == 0 && self.is_computing() {
            self.stage = Stage::Ready { give_back_reason: String::new() };
        }
    }

    /// Results that come after it was given back are too late.
    pub fn add(&mut self, batch: Batch, now: Duration) {
        if !self.is_computing() {
            return;
        }
        // Of the quickest nobody says that they have begun.
        self.start(now.saturating_sub(batch.busy).max(self.times.arrived));
        self.times.ended = now;
        self.unsolved = self.unsolved.saturating_sub(batch.results.len());
        self.pending_bytes += batch.results.iter().map(bytes_of).sum::<usize>();
        self.busy += batch.busy;
        self.spent += batch.busy;
        self.pending.extend(batch.results);
        if self.unsolved == 0 {
            self.stage = Stage::Ready { give_back_reason: String::new() };
        }
    }

    /// Time that it took all cores together, once all of it is solved.
    pub fn took(&self) -> Option<Duration> {
        (self.unsolved == 0 && !self.is_computing()).then_some(self.spent)
    }

    pub fn give_back(&mut self, reason: &str) {
        if self.is_computing() {
            self.stage = Stage::Ready { give_back_reason: reason.to_owned() };
        }
    }

    /// True if the next result, or the end alone, adds no more than `room` bytes to a delivery.
    pub fn begins_within(&self, room: usize) -> bool {
        let returned = if self.returning.is_empty() { 0 } else { RETURNED_BYTES };
        let next = returned.max(self.pending.first().map_or(0, bytes_of));
        self.frame_bytes() + next <= room
    }

    /// True if all results and returned problems add no more than `room` bytes to a delivery.
    pub fn fits_within(&self, room: usize) -> bool {
        self.frame_bytes() + ids_bytes(&self.returning) + self.pending_bytes <= room
    }

    /// Weight of the next part of a delivery beside its results and its returned problems, or a little more.
    fn frame_bytes(&self) -> usize {
        let end = match &self.stage {
            Stage::Ready { give_back_reason } => give_back_reason.len(),
            Stage::Computing { .. } | Stage::Closing => 0,
        };
        let worked = if self.checkout.traced { WORKED_BYTES } else { 0 };
        PART_FRAME_BYTES + worked + end.max(self.return_reason.len())
    }

    /// Cuts off the returned problems and the results that fit into `room` bytes, at least one if there are any. Returns the weight,
    /// too. The server returns all problems of a part at once: more than it takes at a time would be neither computed here nor
    /// anywhere else until the end of the checkout.
    pub fn cut(&mut self, room: usize, now: Duration) -> (v1::CheckoutResults, usize) {
        let room = room.saturating_sub(self.frame_bytes());
        let most = (room / RETURNED_BYTES).clamp(1, RETURNED_LIMIT);
        let given_back: Vec<i64> = self.returning.drain(..most.min(self.returning.len())).collect();
        let (count, bytes) = fitting(&self.pending, room.saturating_sub(ids_bytes(&given_back)), true);
        // Speed is measured on each piece by itself.
        let busy = self.busy.mul_f64(count as f64 / self.pending.len().max(1) as f64);
        self.busy = self.busy.saturating_sub(busy);
        let results = if count == self.pending.len() {
            std::mem::take(&mut self.pending)
        } else {
            self.pending.drain(..count).collect()
        };
        self.pending_bytes -= bytes;
        self.cut_at = now;
        let mut part = v1::CheckoutResults {
            checkout_id: self.checkout.key.checkout_id.0,
            token: self.checkout.key.token,
            results,
            finished: false,
            give_back_reason: String::new(),
            busy: prost_types::Duration::try_from(busy).ok(),
            worked: None,
            given_back,
        };
        if !part.given_back.is_empty() {
            part.give_back_reason.clone_from(&self.return_reason);
        }
        if self.pending.is_empty()
            && let Stage::Ready { give_back_reason } = &mut self.stage
        {
            part.finished = true;
            if !give_back_reason.is_empty() {
                part.give_back_reason = std::mem::take(give_back_reason);
            }
            self.stage = Stage::Closing;
            // The end of a checkout returns all problems without a result.
            self.returning.clear();
            part.worked = self.checkout.traced.then(|| self.worked(now));
        }
        let frame = frame_of(&part);
        (part, bytes + frame)
    }

    fn worked(&self, now: Duration) -> v1::Worked {
        let ago = |at: Duration| prost_types::Duration::try_from(now.saturating_sub(at)).ok();
        let problems = self.solved();
        v1::Worked {
            arrived_ago: ago(self.times.arrived),
            began_ago: self.times.began.and_then(ago),
            ended_ago: ago(self.times.ended),
            problems: u32::try_from(problems).unwrap_or(u32::MAX),
            busy: prost_types::Duration::try_from(self.spent).ok(),
        }
    }
}

/// What was sent in vain says of an earlier time how long ago it was.
pub fn age(worked: &mut v1::Worked, by: Duration) {
    for ago in [&mut worked.arrived_ago, &mut worked.began_ago, &mut worked.ended_ago] {
        let before = ago.take().and_then(|ago| Duration::try_from(ago).ok());
        *ago = before.and_then(|before| prost_types::Duration::try_from(before.saturating_add(by)).ok());
    }
}

/// Number and bytes of the first results that fit into `room`. A delivery is packed and cut by this rule alone, so that no packed
/// delivery is cut again.
pub fn fitting(results: &[v1::ProblemResult], room: usize, at_least_one: bool) -> (usize, usize) {
    let mut bytes = 0;
    let fits = |(n, result): &(usize, &v1::ProblemResult)| {
        let all = bytes + bytes_of(result);
        let fits = all <= room || (*n == 0 && at_least_one);
        if fits {
            bytes = all;
        }
        fits
    };
    let count = results.iter().enumerate().take_while(fits).count();
    (count, bytes)
}

/// Weight of a part of a delivery.
pub fn part_bytes(part: &v1::CheckoutResults) -> usize {
    frame_of(part) + part.results.iter().map(bytes_of).sum::<usize>()
}

/// Weight of a part of a delivery beside its results.
pub fn frame_of(part: &v1::CheckoutResults) -> usize {
    let worked = if part.worked.is_some() { WORKED_BYTES } else { 0 };
    PART_FRAME_BYTES + worked + part.give_back_reason.len() + ids_bytes(&part.given_back)
}

fn ids_bytes(ids: &[i64]) -> usize {
    ids.iter().map(|id| id_bytes(*id)).sum()
}

/// Encoded length of an id in a list.
pub fn id_bytes(id: i64) -> usize {
    usize::try_from(id).map_or(10, prost::length_delimiter_len)
}

pub fn bytes_of(result: &v1::ProblemResult) -> usize {
    let outcome = match &result.outcome {
        Some(Outcome::Solution(solution)) => solution.len(),
        Some(Outcome::Failure(message)) => message.len(),
        // The result went ahead in parts.
        Some(Outcome::Streamed(_) | Outcome::StreamedResult(_)) | None => 0,
    };
    outcome + result.more.as_ref().map_or(0, Message::encoded_len) + RESULT_FRAME_BYTES
}
