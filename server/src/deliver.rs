//! Accepting what agents deliver: results are stored in bulk, under live checkouts, and acknowledged once committed.
//!
//! A few lines store at a time, each on a connection of its own: while one waits for the disk, the others work. What
//! arrives while all are busy shares a transaction, and while one of them is, few results wait for more, though not long.
//! What concerns one checkout is stored in the order in which it came, unless the database refuses it: what is then put
//! [`aside`] may be overtaken, and if its checkout is closed meanwhile, comes back as any other problem without a result. That
//! a problem belongs to its checkout is checked here, against what was handed out, which never changes; that the checkout
//! is live is decided by the database, under the checkout's lock. Nothing is acknowledged before its commit is known.

pub mod aside;
mod batch;
mod store;

use crate::dispatch;
use crate::farm::{Farm, Held};
use crate::members::{Listed, Members};
use crate::session::Session;
use crate::traces::path::{self, AcceptCall};
use anyhow::Context;
use aside::{Aside, Kept, Tried, Trouble};
use batch::Batch;
use deadpool_postgres::ClientWrapper;
use pcfarm_faults::{Bug, CrashPoint, crash_point, planted};
use pcfarm_proto::ids::CheckoutId;
use pcfarm_proto::v1;
use pcfarm_proto::v1::problem_result::Outcome;
use pcfarm_sql::checkout::{self, Closing, HeldProblem, Verdict, VerdictKind};
use pcfarm_sql::job_types::JobType;
use prost::Message;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio_postgres::error::SqlState;
use tracing::{debug, error, info, warn};

/// A delivery and where its acknowledgement goes.
#[derive(Debug)]
pub struct Delivered {
    pub session: Arc<Session>,
    pub delivery: v1::Delivery,
    /// Made by the server itself (a related read failed): nobody waits for an acknowledgement.
    pub from_agent: bool,
    pub came: SystemTime,
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
        }
        Delivered { session, delivery, from_agent, came: SystemTime::now(), size }
    }
}

fn bytes_of(result: &v1::ProblemResult) -> usize {
    let outcome = match &result.outcome {
        Some(Outcome::Solution(solution)) => solution.len(),
        Some(Outcome::Failure(message)) => message.len(),
        None => 0,
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

/// Pauses between tries while the database does not answer.
const RETRY: [Duration; 4] =
    [Duration::from_millis(50), Duration::from_millis(200), Duration::from_millis(500), Duration::from_secs(1)];

/// Tries of a delivery that the database refuses before it is put aside.
const TRIES_IN_LINE: usize = 3;

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

/// What has become of what was tried aside.
enum AsideOutcome {
    /// Some of its results.
    Stored,
    /// It is answered, and that says nothing of others.
    Settled,
    /// It is to be tried again.
    Failed(Delivered),
}

/// A delivery that does not hold up a line any longer.
struct PutAside {
    delivered: Delivered,
    trouble: Option<Trouble>,
    /// Another one has met the same trouble, and this one was not tried.
    untried: bool,
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

/// Stores and acknowledges. Goes on trying while the database is away; agents keep what is not acknowledged, so giving
/// up, when the server stops, loses nothing. `aside`: what the database refuses, and others need not wait for.
async fn accept_all(farm: &Arc<Farm>, deliveries: Vec<Delivered>, aside: &mut Vec<PutAside>) {
    let mut deliveries = leave_out(farm, deliveries, aside).await;
    if deliveries.is_empty() {
        return;
    }
    let mut tries = 0;
    crash_point(CrashPoint::ResultsCame);
    if planted(Bug::AcknowledgesBeforeCommit) {
        deliveries.iter().for_each(acknowledge_unstored);
        tokio::time::sleep(RETRY[1]).await;
    }
    loop {
        let began = Instant::now();
        match try_accept_all(farm, &deliveries, Place::Line).await {
            Ok(verdicts) => {
                acknowledge(farm, deliveries, &verdicts, began.elapsed()).await;
                return crash_point(CrashPoint::ResultsAcknowledged);
            }
            Err(error) if is_outdated(&error) && tries < TRIES_IN_LINE => {
                debug!(error = format!("{error:#}"), "the job types have changed");
                if let Err(error) = farm.reload_job_types().await {
                    warn!(error = format!("{error:#}"), "job types were not read");
                }
                tries += 1;
            }
            Err(error) if is_refusal(&error) && deliveries.len() > 1 => {
                // One of them is at fault, and the others need not wait for it.
                for delivered in deliveries {
                    Box::pin(accept_all(farm, vec![delivered], aside)).await;
                }
                return;
            }
            Err(error)
                if is_refusal(&error)
                    && (tries >= TRIES_IN_LINE || is_locked(&error) || is_slow(&error))
                    && !farm.troubles.is_full() =>
            {
                let delivered = deliveries.pop().expect("a delivery that failed");
                warn!(error = format!("{error:#}"), workstation_id = %delivered.session.workstation_id,
                    "a delivery that cannot be stored is put aside");
                let trouble = trouble_of(farm, &delivered, &error);
                return aside.push(PutAside { delivered, trouble, untried: false });
            }
            Err(error) => {
                warn!(error = format!("{error:#}"), tries, "results were not stored: trying again");
                if farm.stopping.is_cancelled() && tries > RETRY.len() {
                    return;
                }
                tokio::time::sleep(RETRY[tries.min(RETRY.len() - 1)]).await;
                tries += 1;
            }
        }
    }
}

/// Leaves out what has to do with trouble that others have met: it came before that was known, or again, to be recalled first.
async fn leave_out(farm: &Arc<Farm>, deliveries: Vec<Delivered>, aside: &mut Vec<PutAside>) -> Vec<Delivered> {
    let known = farm.troubles.now();
    if (known.is_empty() && aside.is_empty()) || farm.troubles.is_full() {
        return deliveries;
    }
    if let Err(error) = recall_unknown(farm, &deliveries).await {
        debug!(error = format!("{error:#}"), "what was handed out is not known yet");
    }
    let mut left = Vec::new();
    for delivered in deliveries {
        let met = |trouble: &Trouble| aside.iter().any(|put| put.trouble.as_ref() == Some(trouble));
        match troubles_of(farm, &delivered).into_iter().find(|trouble| known.contains(trouble) || met(trouble)) {
            Some(trouble) => aside.push(PutAside { delivered, trouble: Some(trouble), untried: true }),
            None => left.push(delivered),
        }
    }
    left
}

/// Tries a delivery that is aside, without holding up others. Only of one that has failed by itself is it looked for what it is:
/// that may take many minutes.
async fn accept_aside(farm: &Arc<Farm>, delivered: Delivered, tried: &Tried) -> AsideOutcome {
    let place = match tried {
        Tried::Waiting(_) => Place::Line,
        Tried::Alone => Place::Aside,
    };
    // For a failure nothing is written back.
    let solves = |results: &v1::CheckoutResults| {
        results.results.iter().any(|result| matches!(result.outcome, Some(Outcome::Solution(_))))
    };
    let solves = delivered.delivery.checkouts.iter().any(solves);
    let alone = [delivered];
    let began = Instant::now();
    match try_accept_all(farm, &alone, place).await {
        Ok(verdicts) => {
            let is_stored = |verdict: &Verdict| verdict.kind == VerdictKind::Accepted && verdict.accepted > 0;
            let is_stored = solves && verdicts.values().any(is_stored);
            acknowledge(farm, alone.into(), &verdicts, began.elapsed()).await;
            if is_stored { AsideOutcome::Stored } else { AsideOutcome::Settled }
        }
        Err(error) => {
            warn!(error = format!("{error:#}"), "a delivery cannot be stored: trying again");
            if is_outdated(&error)
                && let Err(error) = farm.reload_job_types().await
            {
                warn!(error = format!("{error:#}"), "job types were not read");
            }
            let [delivered] = alone;
            AsideOutcome::Failed(delivered)
        }
    }
}

/// Where deliveries are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Others wait: what takes too long is put aside.
    Line,
    /// What it is that takes too long is looked for.
    Aside,
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

/// What a delivery may have to do with.
fn troubles_of(farm: &Farm, delivered: &Delivered) -> Vec<Trouble> {
    let held = delivered.checkouts().filter_map(|id| farm.recall(id));
    held.flat_map(|held| [Trouble::JobType(held.job_type.as_str().into()), Trouble::Job(held.job_id)]).collect()
}

/// What others that fail like this one have to do with as well, where that can be told: somebody's lock or statement is in the
/// way, and all of it is of one job, or job type.
fn trouble_of(farm: &Farm, delivered: &Delivered, error: &anyhow::Error) -> Option<Trouble> {
    if !is_locked(error) && !is_slow(error) {
        return None;
    }
    let held: Vec<Arc<Held>> = delivered.checkouts().filter_map(|id| farm.recall(id)).collect();
    let first = held.first()?;
    let writes_back = farm.job_type(&first.job_type).is_some_and(|job_type| job_type.writes_back);
    if is_slow(error) && writes_back {
        let is_of_one = held.iter().all(|held| held.job_type == first.job_type);
        return is_of_one.then(|| Trouble::JobType(first.job_type.as_str().into()));
    }
    held.iter().all(|held| held.job_id == first.job_id).then_some(Trouble::Job(first.job_id))
}

/// The database has answered, and the answer was no: others may fare better. When it is away, shutting down, or out of
/// disk or memory, nobody does.
fn is_refusal(error: &anyhow::Error) -> bool {
    state_of(error).is_some_and(|code| {
        *code == SqlState::QUERY_CANCELED || !matches!(&code.code()[..2], "08" | "53" | "57" | "58")
    })
}

/// Somebody's transaction is in its way, and has been for as long as locks are waited for: others need not wait as well.
fn is_locked(error: &anyhow::Error) -> bool {
    state_of(error) == Some(&SqlState::LOCK_NOT_AVAILABLE)
}

/// It takes longer than a statement may.
fn is_slow(error: &anyhow::Error) -> bool {
    state_of(error) == Some(&SqlState::QUERY_CANCELED)
}

/// The server's copy of a job type is older than the database's.
fn is_outdated(error: &anyhow::Error) -> bool {
    state_of(error) == Some(&SqlState::T_R_SERIALIZATION_FAILURE)
}

/// What the database answered.
fn state_of(error: &anyhow::Error) -> Option<&SqlState> {
    error.chain().find_map(|cause| cause.downcast_ref::<tokio_postgres::Error>()?.code())
}

/// By checkout and token: of two deliveries that name one checkout, one may be of another database's.
type Verdicts = HashMap<(CheckoutId, i64), Verdict>;

async fn try_accept_all(farm: &Arc<Farm>, deliveries: &[Delivered], place: Place) -> anyhow::Result<Verdicts> {
    recall_unknown(farm, deliveries).await?;
    let mut verdicts = Verdicts::new();
    // One job type per transaction: its write-back is in it.
    let mut batches: HashMap<String, (Arc<JobType>, Batch)> = HashMap::new();
    for results in deliveries.iter().flat_map(|d| &d.delivery.checkouts) {
        let checkout_id = CheckoutId(results.checkout_id);
        let fits = |held: &Arc<Held>| held.token == results.token.cast_signed() || planted(Bug::AcceptsAnyToken);
        let Some(held) = farm.recall(checkout_id).filter(fits) else {
            verdicts.insert((checkout_id, results.token.cast_signed()), unknown(checkout_id, results.results.len()));
            continue;
        };
        if !batches.contains_key(&held.job_type) {
            if farm.job_type(&held.job_type).is_none() {
                farm.reload_job_types().await?;
            }
            let job_type = farm.job_type(&held.job_type).context("the checkout's job type is gone")?;
            batches.insert(held.job_type.clone(), (job_type, Batch::default()));
        }
        let (job_type, batch) = batches.get_mut(&held.job_type).expect("just put there");
        batch.add(checkout_id, &held, results, job_type.writes_back);
    }
    for (job_type, mut batch) in batches.into_values() {
        let mut accepted = store::store(farm, &job_type, &mut batch, place).await?;
        crash_point(CrashPoint::ResultsCommitted);
        for verdict in &mut accepted {
            let strangers = batch.refused(verdict.checkout_id);
            if strangers > 0 {
                error!(checkout_id = %verdict.checkout_id, refused = strangers, "results for problems of another checkout");
                farm.refused_results.fetch_add(i64::from(strangers), Ordering::Relaxed);
                verdict.refused += strangers;
            }
        }
        finish(farm, &batch, &mut accepted).await?;
        verdicts.extend(accepted.into_iter().map(|v| ((v.checkout_id, batch.token(v.checkout_id)), v)));
    }
    Ok(verdicts)
}

fn unknown(checkout_id: CheckoutId, results: usize) -> Verdict {
    Verdict {
        checkout_id,
        kind: VerdictKind::Unknown,
        reason: "no such checkout, or not this token".to_owned(),
        accepted: 0,
        refused: i32::try_from(results).unwrap_or(i32::MAX),
        closed: false,
    }
}

/// Reads what other servers handed out, or this one before it was restarted; and keys that a write-back wants which is
/// younger than the checkout.
async fn recall_unknown(farm: &Farm, deliveries: &[Delivered]) -> anyhow::Result<()> {
    // Another token: ids are given again after a restore or a failover.
    let is_known = |results: &&v1::CheckoutResults| {
        farm.recall(CheckoutId(results.checkout_id)).is_some_and(|held| {
            let has_keys =
                held.members.has_keys() || !farm.job_type(&held.job_type).is_some_and(|job_type| job_type.writes_back);
            held.token == results.token.cast_signed() && has_keys
        })
    };
    let mut ids: Vec<CheckoutId> = deliveries
        .iter()
        .flat_map(|d| &d.delivery.checkouts)
        .filter(|results| !is_known(results))
        .map(|results| CheckoutId(results.checkout_id))
        .collect();
    if ids.is_empty() {
        return Ok(());
    }
    ids.sort_unstable();
    ids.dedup();
    let client = farm.pool.get().await?;
    let facts = checkout::facts(&client, &ids).await?;
    let mut members: HashMap<CheckoutId, Vec<(Listed, String)>> = HashMap::new();
    for problem in checkout::held_problems(&client, &ids).await? {
        let HeldProblem { checkout_id, problem_id, attempts, home_lane, home_order, key } = problem;
        let listed = Listed { problem_id, attempts, home_lane, home_order };
        members.entry(checkout_id).or_default().push((listed, key));
    }
    for fact in facts {
        let held = Held {
            token: fact.token,
            job_id: fact.job_id,
            job_type: fact.job_type,
            workstation_id: fact.workstation_id,
            trace: farm
                .traces
                .of_checkout(fact.trace_parent.as_deref(), fact.job_id, fact.token, || fact.checked_out_at),
            members: Members::listed(members.remove(&fact.checkout_id).unwrap_or_default()),
        };
        farm.remember(fact.checkout_id, held);
    }
    Ok(())
}

/// Closes the checkouts whose agents are done with them but which have not got a result for every problem.
async fn finish(farm: &Farm, batch: &Batch, verdicts: &mut [Verdict]) -> anyhow::Result<()> {
    let mut by_reason: BTreeMap<&str, Vec<&mut Verdict>> = BTreeMap::new();
    for verdict in verdicts {
        let is_open = verdict.kind == VerdictKind::Accepted || planted(Bug::ClosesWhatIsRevoked);
        if is_open
            && !verdict.closed
            && let Some(reason) = batch.finished(verdict.checkout_id)
        {
            by_reason.entry(reason).or_default().push(verdict);
        }
    }
    if by_reason.is_empty() {
        return Ok(());
    }
    let client = farm.pool.get().await?;
    for (reason, verdicts) in by_reason {
        let ids: Vec<CheckoutId> = verdicts.iter().map(|verdict| verdict.checkout_id).collect();
        if ids.len() > 1 && close(&client, &ids, reason).await.is_ok() {
            verdicts.into_iter().for_each(|verdict| verdict.closed = true);
            continue;
        }
        // Somebody is in the way of one of them: those that come before it are closed without it.
        for verdict in verdicts {
            close(&client, &[verdict.checkout_id], reason).await?;
            verdict.closed = true;
        }
    }
    Ok(())
}

async fn close(client: &ClientWrapper, ids: &[CheckoutId], reason: &str) -> anyhow::Result<()> {
    for closed in checkout::close(client, ids, Closing::Finished, reason).await? {
        debug!(checkout_id = %closed.checkout_id, job_id = %closed.job_id, requeued = closed.requeued,
            failed = closed.failed, reason, "checkout handed back");
    }
    crash_point(CrashPoint::CheckoutHandedBack);
    Ok(())
}

fn acknowledge_unstored(delivered: &Delivered) {
    let accepted = |results: &v1::CheckoutResults| v1::CheckoutVerdict {
        checkout_id: results.checkout_id,
        verdict: v1::Verdict::Accepted.into(),
        ..v1::CheckoutVerdict::default()
    };
    let Delivered { session, delivery, .. } = delivered;
    let verdicts = delivery.checkouts.iter().map(accepted).collect();
    let ack = v1::DeliveryAck { delivery_id: delivery.delivery_id, verdicts };
    let message = v1::ServerMessage { message: Some(v1::server_message::Message::DeliveryAck(ack)) };
    drop(session.out.try_send(Ok(message).into()));
}

/// Tells agents what became of their deliveries, which the database took so long for, and forgets what is over.
async fn acknowledge(farm: &Arc<Farm>, deliveries: Vec<Delivered>, verdicts: &Verdicts, database: Duration) {
    let call = farm.traces.are_on().then(|| {
        let results = deliveries.iter().flat_map(|delivered| &delivered.delivery.checkouts);
        AcceptCall { database, traced: path::traced(farm, results) }
    });
    for Delivered { session, delivery, from_agent, came, .. } in deliveries {
        let mut answers = Vec::new();
        for results in &delivery.checkouts {
            let id = CheckoutId(results.checkout_id);
            let Some(verdict) = verdicts.get(&(id, results.token.cast_signed())) else { continue };
            measure(farm, &session, results);
            if let Some(call) = &call {
                path::delivered(farm, results, verdict, came, call);
            }
            if verdict.kind != VerdictKind::Accepted && !results.results.is_empty() {
                let refused = i64::try_from(results.results.len()).unwrap_or(i64::MAX);
                if verdict.kind != VerdictKind::AlreadyAccepted {
                    farm.refused_results.fetch_add(refused, Ordering::Relaxed);
                }
                info!(checkout_id = %id, workstation_id = %session.workstation_id, refused, verdict = ?verdict.kind,
                    reason = verdict.reason, "results refused");
            }
            // Its id may have been given anew, after a crash of PostgreSQL: then another is known by it.
            let is_another = farm.recall(id).is_some_and(|held| held.token != results.token.cast_signed());
            if (verdict.closed || verdict.kind != VerdictKind::Accepted) && !is_another {
                session.forget(id);
                match farm.forget(id) {
                    Some(held) => farm.checkout_closed(held.job_id),
                    None => farm.upkeep.notify_one(),
                }
                if session.holds_little() && session.wants_work() {
                    // Now it can be given what it had no room for, or what must be alone. Full: there is a poll behind it.
                    drop(farm.dispatcher.try_send(dispatch::Event::Credit(session.clone())));
                }
            }
            answers.push(v1::CheckoutVerdict {
                checkout_id: id.0,
                verdict: match verdict.kind {
                    VerdictKind::Accepted => v1::Verdict::Accepted,
                    VerdictKind::AlreadyAccepted => v1::Verdict::AlreadyAccepted,
                    VerdictKind::Revoked => v1::Verdict::Revoked,
                    VerdictKind::Unknown => v1::Verdict::Unknown,
                }
                .into(),
                accepted: verdict.accepted.unsigned_abs(),
                refused: verdict.refused.unsigned_abs(),
                reason: verdict.reason.clone(),
            });
        }
        if from_agent {
            let ack = v1::DeliveryAck { delivery_id: delivery.delivery_id, verdicts: answers };
            let message = v1::ServerMessage { message: Some(v1::server_message::Message::DeliveryAck(ack)) };
            if session.out.try_send(Ok(message).into()).is_err() {
                // It will deliver again after reconnecting, and be told the same.
                session.end(tonic::Status::resource_exhausted("the agent does not read its acknowledgements"));
            }
        }
    }
}

fn measure(farm: &Farm, session: &Session, results: &v1::CheckoutResults) {
    let busy = results.busy.and_then(|busy| Duration::try_from(busy).ok());
    if let (Some(held), Some(busy)) = (farm.recall(CheckoutId(results.checkout_id)), busy) {
        let checkout = CheckoutId(results.checkout_id);
        session.measured(checkout, &held.job_type, results.results.len(), busy, results.finished);
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
