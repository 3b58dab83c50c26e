//! Accepting what agents deliver: results are stored in bulk, under live checkouts, and acknowledged once committed.
//!
//! A few lines store at a time, each on a connection of its own: while one waits for the disk, the others work. What
//! arrives while all are busy shares a transaction, and while one of them is, few results wait for more, though not long.
//! What concerns one checkout is stored in the order in which it came, unless the database refuses it: what is then put
//! [`aside`] may be overtaken, and if its checkout is closed meanwhile, comes back as any other problem without a result. That
//! a problem belongs to its checkout is checked here, against what was handed out, which never changes; that the checkout
//! is live is decided by the database, under the checkout's lock. Nothing is acknowledged before its commit is known.

mod accept;
pub mod aside;
mod batch;
mod store;
pub mod streamed;

use crate::dispatch;
use crate::farm::Farm;
use crate::session::Session;
use accept::{AsideOutcome, PutAside, accept_all, accept_aside, troubles_of};
use aside::{Aside, Kept, Tried};
use pcfarm_proto::ids::CheckoutId;
use pcfarm_proto::v1::problem_result::Outcome;
use pcfarm_proto::{RETURNED_LIMIT, v1};
use prost::Message;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tracing::{info, warn};

/// A delivery and where its acknowledgement goes.
#[derive(Debug)]
pub struct Delivered {
    pub session: Arc<Session>,
    pub delivery: v1::Delivery,
    /// Made by the server itself (a related read failed): nobody waits for an acknowledgement.
    pub from_agent: bool,
    pub came: SystemTime,
    /// Arrival by a clock that does not step.
    arrived: Instant,
    size: Size,
}

/// What it takes of a transaction.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    /// As so many results that are only stored.
    results: usize,
    bytes: usize,
}

impl Delivered {
    pub fn new(farm: &Farm, session: Arc<Session>, delivery: v1::Delivery, from_agent: bool) -> Delivered {
        let writes_back = |results: &v1::CheckoutResults| {
            let held = farm.recall(CheckoutId(results.checkout_id));
            held.and_then(|held| farm.job_type(&held.job_type)).is_some_and(|job_type| job_type.writes_back)
        };
        let mut size = Size::default();
        for results in &delivery.checkouts {
            let writes_back = writes_back(results);
            for result in &results.results {
                size.results += if writes_back || result.more.is_some() { RESULTS_AT_ONCE / SLOW_AT_ONCE } else { 1 };
                size.bytes += bytes_of(result);
            }
            let returned = results.given_back.len();
            size.results += returned.min(RETURNED_LIMIT);
            size.bytes += returned * size_of::<i64>();
        }
        Delivered { session, delivery, from_agent, came: SystemTime::now(), arrived: Instant::now(), size }
    }
}

fn bytes_of(result: &v1::ProblemResult) -> usize {
    let outcome = match &result.outcome {
        Some(Outcome::Solution(solution)) => solution.len(),
        Some(Outcome::Failure(message)) => message.len(),
        // The session has put the result in its place.
        Some(Outcome::Streamed(_) | Outcome::StreamedResult(_)) | None => 0,
    };
    size_of::<v1::ProblemResult>() + outcome + result.more.as_ref().map_or(0, Message::encoded_len)
}

/// Deliveries on their way to the acceptor, and those that wait there for a line. Each is bounded by the message size.
pub const INBOX_LIMIT: usize = 8;
const WAITING_LIMIT: usize = 64;

/// Transactions at a time. Two do as well on two cores; a third one works while others wait for the disk, and with more,
/// they wait for each other: the table that they all append to grows one at a time.
pub const LINES: usize = 3;

/// Results of one transaction, and bytes of them, unless a single delivery brings more: with fewer, cores go more often from
/// one process of PostgreSQL to another, of whose memory they have nothing in their caches.
const RESULTS_AT_ONCE: usize = 20_000;
const BYTES_AT_ONCE: usize = 8 << 20;

/// The same of results for which more is run than an insertion: what an administrator's statement does with them, or what
/// they bring. Checkouts and jobs are locked meanwhile, and others wait.
const SLOW_AT_ONCE: usize = 5_000;

/// Fewer results than this do not get a free line while others work: what a call costs by itself is shared by all of its
/// results. But they wait no longer than this for more, once a line is free, whatever the others do.
const WORTH_A_LINE: usize = 10_000;
const GATHER_LIMIT: Duration = Duration::from_millis(20);

/// Runs until the server stops and what has come is stored.
pub async fn run(farm: Arc<Farm>, mut inbox: mpsc::Receiver<Delivered>) {
    let mut acceptor = Acceptor {
        free: LINES,
        farm: farm.clone(),
        waiting: VecDeque::new(),
        aside: Aside::new(),
        working: JoinSet::new(),
        busy: HashSet::new(),
        gathers_until: None,
    };
    let mut stopping = false;
    loop {
        let again = acceptor.gathers_until.into_iter().chain(acceptor.aside.next_from()).min();
        tokio::select! {
            biased;
            Some(ended) = acceptor.working.join_next() => acceptor.free(ended),
            Some(delivered) = inbox.recv(), if acceptor.waiting.len() < WAITING_LIMIT => acceptor.take(delivered),
            () = dispatch::until(again), if again.is_some() => {}
            () = farm.stopping.cancelled(), if !stopping => stopping = true,
            else => return,
        }
        while acceptor.waiting.len() < WAITING_LIMIT
            && let Ok(delivered) = inbox.try_recv()
        {
            acceptor.take(delivered);
        }
        acceptor.store();
        // What is aside stays with its agents.
        if stopping && acceptor.free == LINES {
            return;
        }
    }
}

/// Who stores what.
struct Acceptor {
    farm: Arc<Farm>,
    /// Lines that it may take, beside those that it has.
    free: usize,
    waiting: VecDeque<Delivered>,
    aside: Aside<Delivered>,
    working: JoinSet<Ended>,
    /// Checkouts that a line works on.
    busy: HashSet<CheckoutId>,
    /// Until then what waits, waits for more.
    gathers_until: Option<tokio::time::Instant>,
}

/// What has become of what was to be stored.
enum Ended {
    Line { checkouts: Vec<CheckoutId>, aside: Vec<PutAside> },
    Aside { outcome: AsideOutcome, tried: Tried },
}

impl Acceptor {
    /// Takes in what has come.
    fn take(&mut self, delivered: Delivered) {
        if self.aside.is_quiet() {
            return self.waiting.push_back(delivered);
        }
        let (about, told) = (troubles_of(&self.farm, &delivered), Told::of(&delivered));
        match self.aside.keep(delivered, about) {
            Some(delivered) => self.waiting.push_back(delivered),
            None => told.tell(&self.farm),
        }
    }

    /// Lets those who hand out know what has come to be, or is over.
    fn tell(&mut self) {
        self.farm.troubles.set_full(!self.aside.has_room());
        let Some(troubles) = self.aside.take_news() else { return };
        let before = self.farm.troubles.set(troubles.clone());
        for trouble in troubles.difference(&before) {
            warn!("nothing is handed out, until a result of it could be stored, of {trouble}");
        }
        for trouble in before.difference(&troubles) {
            info!("handed out as before: {trouble}");
        }
        // Full: there is a poll behind it.
        drop(self.farm.dispatcher.try_send(dispatch::Event::Work));
    }

    /// Gives every free line what it can store, and tries what is aside.
    fn store(&mut self) {
        while let Some((delivered, tried)) = self.aside.next(tokio::time::Instant::now()) {
            let farm = self.farm.clone();
            self.working.spawn(async move {
                let outcome = accept_aside(&farm, delivered, &tried).await;
                Ended::Aside { outcome, tried }
            });
        }
        self.tell();
        self.gathers_until = self.gathers_until.filter(|_| self.free > 0);
        while self.free > 0 && !self.gathers() {
            let deliveries = next_batch(&mut self.waiting, &self.busy);
            if deliveries.is_empty() {
                return;
            }
            self.free -= 1;
            let checkouts: Vec<CheckoutId> = deliveries.iter().flat_map(Delivered::checkouts).collect();
            self.busy.extend(&checkouts);
            let farm = self.farm.clone();
            self.working.spawn(async move {
                let mut aside = Vec::new();
                accept_all(&farm, deliveries, &mut aside).await;
                Ended::Line { checkouts, aside }
            });
        }
    }

    /// Whether what waits is to wait for more.
    fn gathers(&mut self) -> bool {
        let now = tokio::time::Instant::now();
        let has_waited = self.gathers_until.is_some_and(|until| until <= now);
        let gathers = !has_waited && self.free < LINES && is_little(&self.waiting);
        self.gathers_until = gathers.then(|| self.gathers_until.unwrap_or(now + GATHER_LIMIT));
        gathers
    }

    fn free(&mut self, ended: Result<Ended, JoinError>) {
        let now = tokio::time::Instant::now();
        match ended {
            Ok(Ended::Line { checkouts, aside }) => {
                for checkout in checkouts {
                    self.busy.remove(&checkout);
                }
                self.free += 1;
                for PutAside { delivered, trouble, untried } in aside {
                    Told::of(&delivered).tell(&self.farm);
                    match trouble {
                        Some(trouble) if untried => self.aside.wait(delivered, trouble, now),
                        trouble => self.aside.put(delivered, trouble, now),
                    }
                }
            }
            Ok(Ended::Aside { outcome: AsideOutcome::Failed(delivered), tried }) => {
                self.aside.failed(delivered, tried, now)
            }
            Ok(Ended::Aside { outcome: AsideOutcome::Settled, tried }) => self.aside.settled(&tried),
            Ok(Ended::Aside { outcome: AsideOutcome::Stored, tried }) => {
                // They came before all that waits.
                self.aside.stored(&tried).into_iter().rev().for_each(|delivered| self.waiting.push_front(delivered));
            }
            // A bug, on which the server stops, to be started whole again.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

impl Kept for Delivered {
    fn bytes(&self) -> usize {
        self.size.bytes
    }

    /// Its agent keeps it, and delivers it again.
    fn is_over(&self) -> bool {
        self.session.ended.is_cancelled()
    }
}

/// Whom to tell that a delivery is kept aside: it takes none of the room there is for others, here and at its agent.
struct Told {
    session: Arc<Session>,
    delivery_id: Option<u64>,
    finished: Vec<CheckoutId>,
}

impl Told {
    fn of(delivered: &Delivered) -> Told {
        let finished = delivered.delivery.checkouts.iter().filter(|results| results.finished);
        Told {
            session: delivered.session.clone(),
            delivery_id: delivered.from_agent.then_some(delivered.delivery.delivery_id),
            finished: finished.map(|results| CheckoutId(results.checkout_id)).collect(),
        }
    }

    fn tell(self, farm: &Farm) {
        self.finished.into_iter().for_each(|checkout| self.session.set_aside(checkout));
        if let Some(delivery_id) = self.delivery_id {
            let kept = v1::server_message::Message::DeliveryKept(v1::DeliveryKept { delivery_id });
            let message = v1::ServerMessage { message: Some(kept) };
            // Full: it delivers again, in the end.
            drop(self.session.out.try_send(Ok(message).into()));
        }
        if self.session.wants_work() {
            drop(farm.dispatcher.try_send(dispatch::Event::Credit(self.session)));
        }
    }
}

/// Not worth a line of its own, and there is room for more.
fn is_little<D: AboutCheckouts>(waiting: &VecDeque<D>) -> bool {
    let results: usize = waiting.iter().map(D::results).sum();
    let bytes: usize = waiting.iter().map(D::bytes).sum();
    results > 0 && results < WORTH_A_LINE && bytes < BYTES_AT_ONCE && waiting.len() < WAITING_LIMIT
}

/// What may share a transaction, in order. A delivery waits for those before it that are about a checkout of its own.
fn next_batch<D: AboutCheckouts>(waiting: &mut VecDeque<D>, busy: &HashSet<CheckoutId>) -> Vec<D> {
    let (mut results, mut bytes, mut batch, mut left) = (0, 0, Vec::new(), VecDeque::new());
    let mut behind: HashSet<CheckoutId> = HashSet::new();
    for delivery in waiting.drain(..) {
        let has_room = results < RESULTS_AT_ONCE && bytes < BYTES_AT_ONCE;
        let is_free = |checkout: CheckoutId| !busy.contains(&checkout) && !behind.contains(&checkout);
        if has_room && delivery.checkouts().all(is_free) {
            results += delivery.results();
            bytes += delivery.bytes();
            batch.push(delivery);
        } else {
            behind.extend(delivery.checkouts());
            left.push_back(delivery);
        }
    }
    *waiting = left;
    batch
}

/// What decides which deliveries share a transaction.
trait AboutCheckouts {
    fn checkouts(&self) -> impl Iterator<Item = CheckoutId>;
    fn results(&self) -> usize;
    fn bytes(&self) -> usize;
}

impl AboutCheckouts for Delivered {
    fn checkouts(&self) -> impl Iterator<Item = CheckoutId> {
        self.delivery.checkouts.iter().map(|c| CheckoutId(c.checkout_id))
    }

    fn results(&self) -> usize {
        self.size.results
    }

    fn bytes(&self) -> usize {
        self.size.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Delivery(&'static str, &'static [i64], usize, usize);

    impl AboutCheckouts for Delivery {
        fn checkouts(&self) -> impl Iterator<Item = CheckoutId> {
            self.1.iter().map(|&id| CheckoutId(id))
        }

        fn results(&self) -> usize {
            self.2
        }

        fn bytes(&self) -> usize {
            self.3
        }
    }

    /// What goes next, and what stays.
    fn batch(busy: &[i64], deliveries: Vec<Delivery>) -> (String, String) {
        let mut waiting = VecDeque::from(deliveries);
        let busy = busy.iter().map(|&id| CheckoutId(id)).collect();
        let names = |of: &mut dyn Iterator<Item = &Delivery>| of.map(|d| d.0).collect::<String>();
        let next = next_batch(&mut waiting, &busy);
        (names(&mut next.iter()), names(&mut waiting.iter()))
    }

    #[test]
    fn a_few_results_wait_for_more_as_long_as_there_is_room() {
        for (what, deliveries, each, bytes, little) in [
            ("nothing", 0, 0, 1, false),
            ("what brings no result has nothing to share", 3, 0, 1, false),
            ("one", 1, 1, 1, true),
            ("nearly enough", 1, WORTH_A_LINE - 1, 1, true),
            ("enough", 2, WORTH_A_LINE / 2, 1, false),
            ("few large ones", 2, 1, BYTES_AT_ONCE / 2, false),
            ("no more would come", WAITING_LIMIT, 1, 1, false),
        ] {
            let waiting = (0..deliveries).map(|_| Delivery("a", &[1], each, bytes)).collect();
            assert_eq!(is_little(&waiting), little, "{what}");
        }
    }

    #[test]
    fn what_is_about_one_checkout_stays_in_order() {
        let shape = |next: &str, left: &str| (next.to_owned(), left.to_owned());
        let few = |name, checkouts| Delivery(name, checkouts, 10, 10);
        // Nothing in the way: they share.
        assert_eq!(batch(&[], vec![few("a", &[1]), few("b", &[1, 2]), few("c", &[3])]), shape("abc", ""));
        // Checkout 1 is being stored: its own wait, and who comes behind them for another of theirs.
        assert_eq!(
            batch(&[1], vec![few("a", &[1, 2]), few("b", &[2, 3]), few("c", &[3]), few("d", &[4])]),
            shape("d", "abc")
        );
        // No room is no reason for the next part of a checkout to overtake.
        let many = |name, checkouts| Delivery(name, checkouts, RESULTS_AT_ONCE, 10);
        assert_eq!(batch(&[], vec![many("a", &[1]), few("b", &[2]), few("c", &[2])]), shape("a", "bc"));
        let heavy = |name, checkouts| Delivery(name, checkouts, 1, BYTES_AT_ONCE);
        assert_eq!(batch(&[], vec![heavy("a", &[1]), few("b", &[2])]), shape("a", "b"));
        assert_eq!(batch(&[1], vec![few("a", &[1])]), shape("", "a"));
    }
}
