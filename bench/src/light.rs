//! Light agents: thousands of workstations in this process, each with a connection of its own, over the public
//! protocol. They beat, ask, hold what they get for a while and deliver it; they compute nothing and keep nothing but
//! what they hold. They connect again as agents do: at once, then ever more slowly.

use pcfarm_proto::v1::agent_message::Message as Out;
use pcfarm_proto::v1::agent_service_client::AgentServiceClient;
use pcfarm_proto::v1::problem_result::Outcome;
use pcfarm_proto::v1::server_message::Message as In;
use pcfarm_proto::{PROTOCOL_VERSION, idle_heartbeat, v1};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant as Moment, sleep, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;
use uuid::Uuid;

/// As the agent's link has it.
const CONNECT_WAIT: Duration = Duration::from_secs(3);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_WAIT: Duration = Duration::from_secs(5);
const FIRST_DELAY: Duration = Duration::from_millis(50);
const LONGEST_DELAY: Duration = Duration::from_secs(5);

/// A checkout of a few problems fits; more would only be room that nobody uses.
const WINDOW_BYTES: u32 = 64 << 10;

/// A beat, a credit and a delivery.
const OUTBOUND_WAITING: usize = 4;

/// Said of each result, so that a checkout worth the default 15 s is a single problem.
const BUSY: Duration = Duration::from_secs(15);

/// Until a first Welcome says otherwise.
const HEARTBEAT: Duration = Duration::from_secs(5);
const LEASE: Duration = Duration::from_secs(20);

/// How the agents draw work.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// They ask; if not, they only deliver what they hold.
    pub draw: bool,
    /// The first time they ask is spread over this.
    pub spread: Duration,
    /// How long a checkout is held, give or take a half.
    pub hold: Duration,
}

/// What all of them have seen.
#[derive(Debug, Default)]
pub struct Book {
    connected: AtomicI64,
    hand_outs: AtomicU64,
    /// Results that were acknowledged, and those that were not taken, whatever the reason.
    accepted: AtomicU64,
    refused: AtomicU64,
    /// Credit sent to checkout received, milliseconds, since it was last asked for.
    waits_ms: Mutex<Vec<f64>>,
}

impl Book {
    /// Welcomed, and not gone since.
    pub fn connected(&self) -> usize {
        usize::try_from(self.connected.load(Ordering::Relaxed)).unwrap_or(0)
    }

    pub fn hand_outs(&self) -> u64 {
        self.hand_outs.load(Ordering::Relaxed)
    }

    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// The waits since the last call.
    pub fn waits_ms(&self) -> Vec<f64> {
        std::mem::take(&mut *self.waits())
    }

    fn waits(&self) -> std::sync::MutexGuard<'_, Vec<f64>> {
        self.waits_ms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How an agent behaves. None but the first is as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    Honest,
    /// It takes its time, and delivers what was revoked meanwhile all the same.
    Dawdles,
    /// It delivers each checkout under a wrong token first, and then with a result for a problem that is not its.
    Forges,
    /// It keeps checkouts that have a time limit until they are revoked.
    Hoards,
    /// Delivers the first half of a checkout by itself and returns the last quarter, and then delivers the others.
    Repeats,
}

/// How much longer those who dawdle hold what they have.
const DAWDLE: u32 = 8;

/// The ids of a delivery that must not be accepted, and of one that is repeated. Others have a checkout's.
const FORGERY: u64 = u64::MAX;
const HALF: u64 = u64::MAX - 1;

/// What light agents make of problems.
pub trait Work: std::fmt::Debug + Send + Sync + 'static {
    fn controller(&self) -> &'static str;

    /// Of the agent of this number.
    fn manner(&self, _agent: usize) -> Manner {
        Manner::Honest
    }

    /// `author` names the agent and the checkout.
    fn solve(&self, author: &str, checkout_id: i64, problem: &v1::Problem) -> Outcome;

    /// What became of a checkout that was delivered whole: stored, or refused for good.
    fn told(&self, delivered: Delivered, accepted: bool);
}

/// A checkout that was delivered whole.
#[derive(Clone, Debug)]
pub struct Delivered {
    pub author: String,
    pub checkout_id: i64,
    /// Its problems that were solved and did not fail.
    pub solved: Vec<i64>,
    /// When it was delivered, the last time if it was more than once.
    pub at: Instant,
}

/// Nothing: every problem's solution is `true`.
#[derive(Debug)]
pub struct Nothing;

impl Work for Nothing {
    fn controller(&self) -> &'static str {
        "echo"
    }

    fn solve(&self, _author: &str, _checkout_id: i64, _problem: &v1::Problem) -> Outcome {
        Outcome::Solution(bytes::Bytes::from_static(b"true"))
    }

    fn told(&self, _delivered: Delivered, _accepted: bool) {}
}

/// Light agents that live as long as this value.
#[derive(Debug)]
pub struct Herd {
    pub book: Arc<Book>,
    pace: watch::Sender<Pace>,
    silenced: Vec<CancellationToken>,
    _agents: JoinSet<()>,
}

impl Herd {
    /// So many agents, all of which connect at once, to one of these servers each.
    pub fn start(urls: &[String], agents: usize, work: Arc<dyn Work>) -> Herd {
        Herd::named("light", urls, agents, work)
    }

    /// The same; their host names begin with this.
    pub fn named(name: &str, urls: &[String], agents: usize, work: Arc<dyn Work>) -> Herd {
        let book = Arc::<Book>::default();
        let (pace, paces) = watch::channel(Pace::default());
        let endpoint = |url: &String| {
            Endpoint::from_shared(url.clone())
                .expect("a server's address")
                .connect_timeout(CONNECT_WAIT)
                .tcp_nodelay(true)
                .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
                .keep_alive_timeout(KEEPALIVE_WAIT)
                .keep_alive_while_idle(true)
                .buffer_size(1)
                .initial_stream_window_size(WINDOW_BYTES)
                .initial_connection_window_size(WINDOW_BYTES)
        };
        let endpoints: Arc<[Endpoint]> = urls.iter().map(endpoint).collect();
        let mut tasks = JoinSet::new();
        let silenced: Vec<CancellationToken> = (0..agents).map(|_| CancellationToken::new()).collect();
        for (number, silenced) in silenced.iter().cloned().enumerate() {
            let agent = Agent {
                number,
                hostname: format!("{name}-{number}"),
                silenced,
                identity: Uuid::new_v4(),
                instance: Uuid::new_v4(),
                held: Vec::new(),
                asked: None,
                sequence: 0,
                heartbeat: HEARTBEAT,
                idle_heartbeat: HEARTBEAT,
                longest_delay: LONGEST_DELAY,
                manner: work.manner(number),
                elsewhere: None,
                work: work.clone(),
            };
            tasks.spawn(agent.live(endpoints.clone(), paces.clone(), book.clone()));
        }
        Herd { book, pace, silenced, _agents: tasks }
    }

    pub fn agents(&self) -> usize {
        self.silenced.len()
    }

    /// This agent says no more and hears no more, for good; its connection stays open.
    pub fn silence(&self, agent: usize) {
        self.silenced[agent].cancel();
    }

    /// Tells all of them how to draw work.
    pub fn pace(&self, pace: Pace) {
        self.pace.send_replace(pace);
    }

    /// Waits until so many are connected, and says how long that took.
    pub async fn connected(&self, agents: usize, within: Duration) -> anyhow::Result<Duration> {
        let began = Instant::now();
        while self.book.connected() < agents {
            anyhow::ensure!(
                began.elapsed() < within,
                "after {within:?} {} of {agents} light agents are connected",
                self.book.connected()
            );
            sleep(Duration::from_millis(10)).await;
        }
        Ok(began.elapsed())
    }
}

/// A checkout in an agent's hands.
#[derive(Debug)]
struct Held {
    checkout_id: i64,
    token: u64,
    /// Each with what was made of it.
    problems: Vec<(i64, Outcome)>,
    /// When it is to be delivered, if it is whole.
    due: Option<Moment>,
    /// When it was delivered; it has not been acknowledged.
    delivered: Option<Moment>,
    /// What comes before an honest delivery has been said.
    prefaced: bool,
}

struct Agent {
    number: usize,
    hostname: String,
    silenced: CancellationToken,
    identity: Uuid,
    instance: Uuid,
    held: Vec<Held>,
    /// When credit was sent that no checkout has come for.
    asked: Option<Instant>,
    sequence: u64,
    heartbeat: Duration,
    idle_heartbeat: Duration,
    longest_delay: Duration,
    manner: Manner,
    /// A problem that it had before, and has not any more.
    elsewhere: Option<i64>,
    work: Arc<dyn Work>,
}

/// Counts a connection for as long as it lives.
struct Connected<'a>(&'a Book);

impl<'a> Connected<'a> {
    fn new(book: &'a Book) -> Connected<'a> {
        book.connected.fetch_add(1, Ordering::Relaxed);
        Connected(book)
    }
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.0.connected.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Agent {
    async fn live(mut self, endpoints: Arc<[Endpoint]>, mut paces: watch::Receiver<Pace>, book: Arc<Book>) {
        let mut failures = 0;
        let mut turn = self.number;
        loop {
            if self.session(&endpoints[turn % endpoints.len()], &mut paces, &book).await {
                failures = 0;
            }
            turn += 1;
            let full = FIRST_DELAY.saturating_mul(2_u32.saturating_pow(failures)).min(self.longest_delay);
            let luck: f64 = rand::random();
            sleep(full.mul_f64(1.0 - luck / 2.0)).await;
            failures += 1;
        }
    }

    /// One connection. True if it came to a Welcome.
    async fn session(&mut self, endpoint: &Endpoint, paces: &mut watch::Receiver<Pace>, book: &Book) -> bool {
        if self.silenced.is_cancelled() {
            return std::future::pending().await;
        }
        let Ok(Ok(channel)) = timeout(CONNECT_WAIT, endpoint.connect()).await else { return false };
        let (out, requests) = mpsc::channel(OUTBOUND_WAITING);
        if out.try_send(self.hello()).is_err() {
            return false;
        }
        let Ok(response) = AgentServiceClient::new(channel).work(ReceiverStream::new(requests)).await else {
            return false;
        };
        let mut incoming = response.into_inner();
        // What was under way on the old connection is delivered again on this one.
        self.held.iter_mut().for_each(|held| held.delivered = None);
        (self.asked, self.sequence) = (None, 0);
        let mut connected = None;
        let mut beat = Moment::now() + self.heartbeat.mul_f64(rand::random());
        let mut ask = None;
        paces.mark_changed();
        loop {
            let due = self.held.iter().filter(|h| h.delivered.is_none()).filter_map(|h| h.due).min();
            let wake = [Some(beat), due, ask].into_iter().flatten().min().expect("there is always a beat");
            let silenced = self.silenced.clone();
            let said = tokio::select! {
                () = silenced.cancelled() => std::future::pending().await,
                message = incoming.message() => match message {
                    Ok(Some(v1::ServerMessage { message: Some(message) })) => {
                        if let In::Welcome(welcome) = &message {
                            connected.get_or_insert_with(|| Connected::new(book));
                            self.learn(welcome);
                        }
                        if matches!(message, In::Checkout(_)) {
                            beat = beat.min(Moment::now() + self.heartbeat);
                        }
                        let pace = *paces.borrow();
                        self.receive(message, pace, book)
                    }
                    Ok(_) | Err(_) => return connected.is_some(),
                },
                Ok(()) = paces.changed(), if connected.is_some() => {
                    let pace = *paces.borrow_and_update();
                    let wait = pace.spread.mul_f64(rand::random());
                    ask = (pace.draw && self.asked.is_none() && self.held.is_empty()).then(|| Moment::now() + wait);
                    None
                }
                () = sleep_until(wake) => {
                    let now = Moment::now();
                    if now >= beat {
                        beat = now + if self.held.is_empty() { self.idle_heartbeat } else { self.heartbeat };
                        Some(self.heartbeat())
                    } else if ask.take_if(|ask| now >= *ask).is_some() {
                        Some(self.ask())
                    } else {
                        self.deliver(now)
                    }
                }
            };
            // The next is asked for when this one is on its way, as an agent whose hands are empty does.
            let again = matches!(said, Some(Out::Delivery(_))) && paces.borrow().draw && self.asked.is_none();
            let said = said.into_iter().chain(again.then(|| self.ask()));
            for message in said {
                if out.send(v1::AgentMessage { message: Some(message) }).await.is_err() {
                    return connected.is_some();
                }
            }
        }
    }

    fn hello(&self) -> v1::AgentMessage {
        let hello = v1::Hello {
            protocol_version: PROTOCOL_VERSION,
            identity: self.identity.to_string(),
            instance: self.instance.to_string(),
            hostname: self.hostname.clone(),
            cores: 1,
            memory_bytes: 1 << 30,
            system: "light".to_owned(),
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            controllers: vec![self.work.controller().to_owned()],
            held: self.holds(),
            state: v1::WorkstationState::Waiting.into(),
            ..v1::Hello::default()
        };
        v1::AgentMessage { message: Some(Out::Hello(hello)) }
    }

    /// The farm's rhythm: back before a lease is over.
    fn learn(&mut self, welcome: &v1::Welcome) {
        let length = |length: Option<prost_types::Duration>| length.and_then(|l| Duration::try_from(l).ok());
        let lease = length(welcome.lease).unwrap_or(LEASE);
        self.heartbeat = length(welcome.heartbeat).unwrap_or(HEARTBEAT);
        self.idle_heartbeat = idle_heartbeat(self.heartbeat, lease);
        self.longest_delay = LONGEST_DELAY.min(lease / 4);
    }

    fn holds(&self) -> Vec<v1::HeldCheckout> {
        self.held.iter().map(|h| v1::HeldCheckout { checkout_id: h.checkout_id, token: h.token }).collect()
    }

    fn heartbeat(&self) -> Out {
        Out::Heartbeat(v1::Heartbeat { held: self.holds(), last_sequence: self.sequence })
    }

    fn ask(&mut self) -> Out {
        self.asked = Some(Instant::now());
        Out::Credit(v1::Credit { checkouts: 1 })
    }

    fn receive(&mut self, message: In, pace: Pace, book: &Book) -> Option<Out> {
        match message {
            In::Welcome(welcome) => self.forget(welcome.revoked.iter().map(|r| r.checkout_id)),
            In::Slots(_)
            | In::Presence(_)
            | In::DeliveryKept(_)
            | In::GiveBack(_)
            | In::PartReceived(_)
            | In::Stored(_) => {}
            In::Revoke(_) if self.manner == Manner::Dawdles => {}
            In::Revoke(revoke) => {
                self.forget(revoke.revoked.iter().map(|r| r.checkout_id));
                return (pace.draw && self.asked.is_none() && self.held.is_empty()).then(|| self.ask());
            }
            In::Checkout(part) => self.hold(part, pace.hold, book),
            In::DeliveryAck(ack) if matches!(ack.delivery_id, FORGERY | HALF) => {}
            In::DeliveryAck(ack) => {
                for verdict in &ack.verdicts {
                    let refused = match verdict.verdict() {
                        v1::Verdict::Accepted => u64::from(verdict.refused),
                        // A repetition, whose first time counts.
                        v1::Verdict::AlreadyAccepted => 0,
                        v1::Verdict::Unspecified | v1::Verdict::Revoked | v1::Verdict::Unknown => 1,
                    };
                    book.accepted.fetch_add(u64::from(verdict.accepted), Ordering::Relaxed);
                    book.refused.fetch_add(refused, Ordering::Relaxed);
                    self.tell(verdict);
                }
                self.forget(ack.verdicts.iter().map(|v| v.checkout_id));
            }
            In::Drain(_) => {}
            In::Probe(_) => return Some(self.heartbeat()),
            In::Heard(_) => {}
        }
        None
    }

    /// The token is in it: a database that was restored gives ids again.
    fn author(&self, checkout_id: i64, token: u64) -> String {
        format!("light-{}/{checkout_id}/{token:x}", self.number)
    }

    /// Says what became of a checkout, if that is certain.
    fn tell(&self, verdict: &v1::CheckoutVerdict) {
        let accepted = match verdict.verdict() {
            v1::Verdict::Accepted if verdict.refused == 0 => true,
            v1::Verdict::AlreadyAccepted => true,
            v1::Verdict::Revoked | v1::Verdict::Unknown => false,
            v1::Verdict::Accepted | v1::Verdict::Unspecified => return,
        };
        let Some(held) = self.held.iter().find(|held| held.checkout_id == verdict.checkout_id) else { return };
        let Some(at) = held.delivered else { return };
        let (author, checkout_id) = (self.author(held.checkout_id, held.token), held.checkout_id);
        let solved = held.problems.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Solution(_)));
        let solved = solved.map(|(problem_id, _)| *problem_id).collect();
        self.work.told(Delivered { author, checkout_id, solved, at: at.into_std() }, accepted);
    }

    fn forget(&mut self, gone: impl Iterator<Item = i64>) {
        for id in gone {
            let held = self.held.iter().find(|held| held.checkout_id == id);
            self.elsewhere = held.and_then(|held| Some(held.problems.first()?.0)).or(self.elsewhere);
            self.held.retain(|held| held.checkout_id != id);
        }
    }

    fn hold(&mut self, part: v1::Checkout, hold: Duration, book: &Book) {
        self.sequence = part.sequence;
        let author = self.author(part.checkout_id, part.token);
        let solved = |p: &v1::Problem| (p.problem_id, self.work.solve(&author, part.checkout_id, p));
        let problems: Vec<_> = part.problems.iter().map(solved).collect();
        match self.held.iter_mut().find(|held| held.checkout_id == part.checkout_id) {
            Some(held) => held.problems.extend(problems),
            None => self.held.push(Held {
                checkout_id: part.checkout_id,
                token: part.token,
                problems,
                due: None,
                delivered: None,
                prefaced: !matches!(self.manner, Manner::Forges | Manner::Repeats),
            }),
        }
        if part.more {
            return;
        }
        if let Some(asked) = self.asked.take() {
            book.waits().push(asked.elapsed().as_secs_f64() * 1e3);
        }
        book.hand_outs.fetch_add(1, Ordering::Relaxed);
        if self.manner == Manner::Hoards && part.time_limit.is_some() {
            return;
        }
        let hold = if self.manner == Manner::Dawdles { hold * DAWDLE } else { hold };
        let due = Moment::now() + hold.mul_f64(0.5 + rand::random::<f64>());
        let held = self.held.iter_mut().find(|held| held.checkout_id == part.checkout_id);
        held.expect("just put there").due = Some(due);
    }

    /// Of a checkout that is due: some of it, or all under a wrong token. Whatever the answer to that is, it must not have
    /// been accepted.
    fn preface(&mut self, now: Moment) -> Option<Out> {
        let held = self.held.iter_mut().find(|h| !h.prefaced && h.due.is_some_and(|due| due <= now))?;
        held.prefaced = true;
        if self.manner == Manner::Repeats {
            return half(held);
        }
        let (checkout_id, token) = (held.checkout_id, held.token ^ 1);
        let author = format!("forger-{}/{checkout_id}/{token:x}", self.number);
        let forged = |(problem_id, outcome): &(i64, Outcome)| {
            let problem = v1::Problem { problem_id: *problem_id, attempt: u32::MAX, ..v1::Problem::default() };
            let outcome = match outcome {
                Outcome::Solution(_) => self.work.solve(&author, checkout_id, &problem),
                Outcome::Failure(_) | Outcome::Streamed(_) | Outcome::StreamedResult(_) => outcome.clone(),
            };
            v1::ProblemResult { problem_id: *problem_id, outcome: Some(outcome), more: None }
        };
        let results: Vec<_> = held.problems.iter().map(forged).collect();
        let solved = held.problems.iter().map(|(problem_id, _)| *problem_id).collect();
        self.work.told(Delivered { author, checkout_id, solved, at: now.into_std() }, false);
        let checkouts = vec![v1::CheckoutResults { checkout_id, token, results, ..v1::CheckoutResults::default() }];
        Some(Out::Delivery(v1::Delivery { delivery_id: FORGERY, checkouts }))
    }

    /// A result for a problem that this agent does not hold.
    fn of_elsewhere(&self, checkout_id: i64) -> Option<v1::ProblemResult> {
        let problem_id = self.elsewhere.filter(|_| self.manner == Manner::Forges)?;
        let author = format!("forger-{}/{checkout_id}", self.number);
        let problem = v1::Problem { problem_id, attempt: u32::MAX, ..v1::Problem::default() };
        let outcome = Some(self.work.solve(&author, checkout_id, &problem));
        Some(v1::ProblemResult { problem_id, outcome, more: None })
    }

    /// Whatever is due, all results at once.
    fn deliver(&mut self, now: Moment) -> Option<Out> {
        if let Some(preface) = self.preface(now) {
            return Some(preface);
        }
        let due: Vec<usize> = (0..self.held.len())
            .filter(|&place| self.held[place].delivered.is_none() && self.held[place].due.is_some_and(|due| due <= now))
            .collect();
        let checkouts: Vec<_> = due
            .into_iter()
            .map(|place| {
                let elsewhere = self.of_elsewhere(self.held[place].checkout_id);
                let held = &mut self.held[place];
                held.delivered = Some(now);
                let result = |(problem_id, outcome): &(i64, Outcome)| v1::ProblemResult {
                    problem_id: *problem_id,
                    outcome: Some(outcome.clone()),
                    more: None,
                };
                v1::CheckoutResults {
                    checkout_id: held.checkout_id,
                    token: held.token,
                    results: held.problems.iter().map(result).chain(elsewhere).collect(),
                    finished: true,
                    give_back_reason: String::new(),
                    busy: (BUSY * u32::try_from(held.problems.len()).unwrap_or(u32::MAX)).try_into().ok(),
                    worked: None,
                    given_back: Vec::new(),
                }
            })
            .collect();
        let delivery_id = checkouts.first()?.checkout_id.unsigned_abs();
        Some(Out::Delivery(v1::Delivery { delivery_id, checkouts }))
    }
}

/// Half of the results. A quarter of the problems is returned unbegun with them.
fn half(held: &mut Held) -> Option<Out> {
    let kept = held.problems.len() - (held.problems.len() / 4).max(usize::from(held.problems.len() > 1));
    let given_back: Vec<i64> = held.problems.drain(kept..).map(|(problem_id, _)| problem_id).collect();
    let some = held.problems.len() / 2;
    let result = |(problem_id, outcome): &(i64, Outcome)| v1::ProblemResult {
        problem_id: *problem_id,
        outcome: Some(outcome.clone()),
        more: None,
    };
    let part = v1::CheckoutResults {
        checkout_id: held.checkout_id,
        token: held.token,
        results: held.problems[..some].iter().map(result).collect(),
        give_back_reason: if given_back.is_empty() { String::new() } else { "not begun".to_owned() },
        given_back,
        ..v1::CheckoutResults::default()
    };
    let is_something = some > 0 || !part.given_back.is_empty();
    is_something.then(|| Out::Delivery(v1::Delivery { delivery_id: HALF, checkouts: vec![part] }))
}
