//! The connection to one of the farm's servers, kept up for ever.
//!
//! Owns which server is tried when, and the stream's two ends. What is said on the stream is none of its
//! business, but for one thing: a Welcome proves a server good.

mod backlog;
pub(crate) mod wire;

use std::convert::Infallible;
use std::time::Duration;

use pcfarm_proto::v1;
use pcfarm_proto::v1::agent_service_client::AgentServiceClient;
use pcfarm_proto::v1::server_message::Message as In;
use pcfarm_proto::{MESSAGE_BYTES_LIMIT, OUTAGE};
use rand::RngExt;
use rand::seq::SliceRandom;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tracing::{debug, error, info, warn};

use crate::credentials::Credentials;
use crate::entrance::{Attempt, Entrance};
use crate::sleep::Wake;
pub use wire::Wire;

/// A server on the same campus answers in milliseconds: with three, rotating past a dead one stays quick. When every server has been
/// tried, the link may be slow or lossy: TCP and TLS need several round trips and repetitions.
const CONNECT_WAIT: Duration = Duration::from_secs(3);
const PATIENT_CONNECT_WAIT: Duration = Duration::from_secs(10);

/// A server that says nothing is pinged after the first of these, and left when no byte has moved for the second. A server hears an
/// agent that computes every 5 s, so the agent has left a frozen server before its lease of 20 s ends. An answer has 4 s: at a
/// round trip of 300 ms TCP has repeated a lost packet twice by then. More pings would wake an idle PC more often.
const PING_INTERVAL: Duration = Duration::from_secs(8);
pub const SILENCE_LIMIT: Duration = Duration::from_secs(12);

/// Pings never end a connection: [`SILENCE_LIMIT`] does.
const PONG_WAIT: Duration = Duration::from_secs(86_400);

/// The first retries are quick: when one server of several stops, work moves to another within two seconds.
const FIRST_DELAY: Duration = Duration::from_millis(50);

/// An agent is back this soon after an outage; some hundred agents at this pace are nothing to a server.
const LONGEST_DELAY: Duration = Duration::from_secs(5);

/// Seconds after refusals of an identity that another agent uses, the last one from then on. The first are short, because the other
/// agent may be one that is about to end; the last is long, because an administrator or the owner must act.
const IN_USE_DELAYS: [u64; 6] = [2, 5, 10, 20, 40, 60];

/// Room for a part of a checkout, several times over: fewer round trips for window updates.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;

/// Messages under way to the stream. Deliveries are the large ones, and the inventory bounds those.
const OUTBOUND_WAITING: usize = 16;

/// Events of a link, in order: opened, received, ended, and again. Before the end it may tell of an outage.
#[allow(clippy::large_enum_variant, reason = "nearly all of them are the large one")]
pub enum LinkEvent {
    Opened(Stream),
    Received(In),
    /// The server refuses the session because it cannot reach its database.
    Outage,
    Ended,
}

/// The agent's end of a stream. To drop `outbound` ends it in good order; `give_up` ends it at once.
pub struct Stream {
    /// Whose it is.
    pub server: String,
    /// What it is to be told of how this workstation can be woken.
    pub waking: Option<v1::Waking>,
    pub outbound: mpsc::Sender<v1::AgentMessage>,
    pub give_up: CancellationToken,
    /// The bytes of its connection.
    pub wire: Arc<Wire>,
}

pub struct Link {
    endpoints: Vec<Endpoint>,
    credentials: Arc<Credentials>,
    entrance: Option<Arc<Entrance>>,
    wake: Wake,
    events: mpsc::Sender<LinkEvent>,
    /// A quarter of the farm's lease if that is less than [`LONGEST_DELAY`]: back before it is over. Milliseconds.
    longest_delay_ms: AtomicU64,
}

/// How a session, or the attempt at one, came to its end.
#[derive(Debug)]
enum End {
    /// It had been welcomed.
    Served(Cause),
    /// It never came to a Welcome.
    Failed(Cause),
}

#[derive(Debug)]
enum Cause {
    /// Another server may be better.
    Rotate(anyhow::Error),
    /// This agent is at fault, or too new or too old: retrying quickly helps nobody.
    Refused(Status),
    /// Another agent has connected with this workstation's identity, or the identity belongs to another machine.
    IdentityInUse(String),
}

impl Link {
    /// The servers are tried in random order, so that agents spread over them.
    pub fn new(
        mut endpoints: Vec<Endpoint>,
        credentials: Arc<Credentials>,
        wake: Wake,
        events: mpsc::Sender<LinkEvent>,
    ) -> Link {
        endpoints.shuffle(&mut rand::rng());
        let tuned = |endpoint: Endpoint| {
            endpoint
                .http2_keep_alive_interval(PING_INTERVAL)
                .keep_alive_timeout(PONG_WAIT)
                .keep_alive_while_idle(true)
                .initial_stream_window_size(STREAM_WINDOW_BYTES)
                .initial_connection_window_size(STREAM_WINDOW_BYTES)
        };
        Link {
            endpoints: endpoints.into_iter().map(tuned).collect(),
            credentials,
            entrance: None,
            wake,
            events,
            longest_delay_ms: AtomicU64::new(u64::try_from(LONGEST_DELAY.as_millis()).expect("seconds")),
        }
    }

    pub fn entering_by(self, entrance: Option<Arc<Entrance>>) -> Link {
        Link { entrance, ..self }
    }

    /// Connects and connects again until the token is cancelled.
    pub async fn keep_up(self, stop: CancellationToken) {
        if let Some(never) = stop.run_until_cancelled(self.rotate()).await {
            match never {}
        }
    }

    async fn rotate(&self) -> Infallible {
        let (mut failures, mut refusals) = (0, 0);
        for endpoint in self.endpoints.iter().cycle() {
            let end = self.session(endpoint, connect_wait(self.endpoints.len(), failures)).await;
            debug!(server = %endpoint.uri(), ?end, "session ended");
            let cause = match end {
                End::Served(cause) => {
                    (failures, refusals) = (0, 0);
                    cause
                }
                End::Failed(cause) => cause,
            };
            let delay = match cause {
                Cause::Rotate(error) => {
                    note_failure(failures, endpoint, &error);
                    delay(failures, self.longest_delay(), rand::rng().random())
                }
                Cause::Refused(status) => {
                    let (code, reason) = (status.code(), status.message());
                    error!(server = %endpoint.uri(), %code, reason, "the server refuses this agent");
                    match self.enter(endpoint, code).await {
                        Attempt::Joined => FIRST_DELAY,
                        Attempt::Nothing => LONGEST_DELAY,
                        Attempt::Reported => {
                            refusals += 1;
                            spread(in_use_delay(refusals - 1))
                        }
                    }
                }
                Cause::IdentityInUse(reason) => {
                    let delay = in_use_delay(refusals);
                    refusals += 1;
                    error!(
                        server = %endpoint.uri(), reason, retry_seconds = delay.as_secs(),
                        "another agent has this workstation's identity (a copied state directory?)"
                    );
                    spread(delay)
                }
            };
            failures += 1;
            sleep(delay).await;
        }
        unreachable!("settings name at least one server")
    }

    /// After a refusal for want of a certificate.
    async fn enter(&self, endpoint: &Endpoint, code: Code) -> Attempt {
        match &self.entrance {
            Some(entrance) if code == Code::Unauthenticated => entrance.attempt(endpoint).await,
            Some(_) | None => Attempt::Nothing,
        }
    }

    fn longest_delay(&self) -> Duration {
        Duration::from_millis(self.longest_delay_ms.load(Ordering::Relaxed))
    }

    /// A Welcome proves a server good, and tells the lease.
    fn welcomed(&self, welcome: &v1::Welcome) {
        let lease = welcome.lease.and_then(|lease| Duration::try_from(lease).ok()).unwrap_or(Duration::MAX);
        let longest = LONGEST_DELAY.min(lease / 4).as_millis();
        self.longest_delay_ms.store(u64::try_from(longest).expect("seconds"), Ordering::Relaxed);
    }

    async fn session(&self, endpoint: &Endpoint, wait: Duration) -> End {
        // With the certificate that it has now.
        let endpoint = match self.credentials.tune(endpoint.clone().connect_timeout(wait)) {
            Ok(endpoint) => endpoint,
            Err(error) => return End::Failed(Cause::Rotate(error)),
        };
        match timeout(wait, wire::connect(&endpoint, wait)).await {
            Ok(Ok((channel, wire))) => {
                info!(server = %endpoint.uri(), "connected");
                let waking = timeout(CONNECT_WAIT, self.wake.by(endpoint.uri())).await.unwrap_or_default();
                self.converse(endpoint.uri().to_string(), waking, channel, wire).await
            }
            Ok(Err(error)) => End::Failed(Cause::Rotate(error.into())),
            Err(_) => End::Failed(Cause::Rotate(anyhow::anyhow!("not connected within {} s", wait.as_secs()))),
        }
    }

    async fn converse(&self, server: String, waking: Option<v1::Waking>, channel: Channel, wire: Arc<Wire>) -> End {
        let (outbound, requests) = mpsc::channel(OUTBOUND_WAITING);
        let give_up = CancellationToken::new();
        let stream = Stream { server, waking, outbound, give_up: give_up.clone(), wire };
        self.tell(LinkEvent::Opened(stream)).await;
        let mut welcomed = false;
        let cause = tokio::select! {
            cause = self.listen(channel, requests, &mut welcomed) => cause,
            // The loop watches the wire: its waits cost no timer more.
            () = give_up.cancelled() => Cause::Rotate(anyhow::anyhow!("given up by this agent")),
        };
        if let Cause::Rotate(error) = &cause
            && !welcomed
            && is_outage(error)
        {
            self.tell(LinkEvent::Outage).await;
        }
        self.tell(LinkEvent::Ended).await;
        if welcomed { End::Served(cause) } else { End::Failed(cause) }
    }

    async fn listen(&self, channel: Channel, requests: mpsc::Receiver<v1::AgentMessage>, welcomed: &mut bool) -> Cause {
        let mut client = AgentServiceClient::new(channel)
            .max_decoding_message_size(MESSAGE_BYTES_LIMIT)
            .max_encoding_message_size(MESSAGE_BYTES_LIMIT);
        let mut messages = match client.work(ReceiverStream::new(requests)).await {
            Ok(response) => response.into_inner(),
            Err(status) => return cause(status),
        };
        loop {
            match messages.message().await {
                Ok(Some(v1::ServerMessage { message: Some(message) })) => {
                    if let In::Welcome(welcome) = &message {
                        *welcomed = true;
                        self.welcomed(welcome);
                    }
                    self.tell(LinkEvent::Received(message)).await;
                }
                Ok(Some(v1::ServerMessage { message: None })) => {
                    debug!("a message newer than this agent")
                }
                Ok(None) => return Cause::Rotate(anyhow::anyhow!("the server ended the stream")),
                Err(status) => return cause(status),
            }
        }
    }

    /// An agent that is gone has no use for events; its token ends this link.
    async fn tell(&self, event: LinkEvent) {
        let _ = self.events.send(event).await;
    }
}

fn connect_wait(servers: usize, failures: u32) -> Duration {
    let has_tried_all = usize::try_from(failures).is_ok_and(|failures| failures >= servers);
    if servers <= 1 || has_tried_all { PATIENT_CONNECT_WAIT } else { CONNECT_WAIT }
}

/// True if a server has said so. An error of the connection has no metadata.
fn is_outage(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Status>().is_some_and(|status| status.metadata().contains_key(OUTAGE))
}

fn cause(status: Status) -> Cause {
    match status.code() {
        Code::AlreadyExists => Cause::IdentityInUse(status.message().to_owned()),
        Code::FailedPrecondition
        | Code::InvalidArgument
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::Unimplemented => Cause::Refused(status),
        _ => Cause::Rotate(status.into()),
    }
}

/// Warns at the first failure and then ever more rarely: 1, 2, 4, 8…
fn note_failure(failures: u32, endpoint: &Endpoint, error: &anyhow::Error) {
    let (server, attempt) = (endpoint.uri(), failures + 1);
    if attempt.is_power_of_two() {
        warn!(%server, attempt, error = format!("{error:#}"), "no session with this server, trying again");
    } else {
        debug!(%server, attempt, error = format!("{error:#}"), "no session with this server, trying again");
    }
}

/// So that agents do not come in step.
fn spread(delay: Duration) -> Duration {
    delay.mul_f64(0.75 + rand::rng().random::<f64>() / 2.0)
}

fn in_use_delay(refusals: usize) -> Duration {
    Duration::from_secs(IN_USE_DELAYS[refusals.min(IN_USE_DELAYS.len() - 1)])
}

/// Doubles with each failure; `luck` in 0..1 takes off up to half, so that agents do not come in step.
fn delay(failures: u32, longest: Duration, luck: f64) -> Duration {
    let full = FIRST_DELAY.saturating_mul(2_u32.saturating_pow(failures)).min(longest);
    full.mul_f64(1.0 - luck / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_limit_and_are_spread() {
        for (failures, luck, milliseconds) in
            [(0, 0.0, 50), (0, 1.0, 25), (1, 0.0, 100), (4, 0.0, 800), (6, 0.0, 3200), (7, 0.0, 5000), (7, 1.0, 2500)]
        {
            assert_eq!(delay(failures, LONGEST_DELAY, luck), Duration::from_millis(milliseconds), "{failures} {luck}");
        }
        assert_eq!(delay(u32::MAX, LONGEST_DELAY, 0.0), LONGEST_DELAY);
        assert_eq!(delay(9, Duration::from_millis(500), 0.0), Duration::from_millis(500), "a short lease");
    }

    #[test]
    fn servers_have_more_time_to_connect_when_each_has_been_tried() {
        for (servers, failures, seconds) in
            [(1, 0, 10), (3, 0, 3), (3, 2, 3), (3, 3, 10), (3, u32::MAX, 10), (2, 2, 10)]
        {
            assert_eq!(connect_wait(servers, failures), Duration::from_secs(seconds), "{servers} {failures}");
        }
    }

    #[test]
    fn a_copied_identity_is_asked_for_soon_and_then_ever_more_rarely() {
        let delays: Vec<u64> = [0, 1, 2, 5, 6, 1000].map(|refusals| in_use_delay(refusals).as_secs()).to_vec();
        assert_eq!(delays, [2, 5, 10, 60, 60, 60]);
    }

    #[test]
    fn only_a_copied_identity_waits_for_long() {
        assert!(matches!(cause(Status::already_exists("x")), Cause::IdentityInUse(_)));
        assert!(matches!(cause(Status::failed_precondition("x")), Cause::Refused(_)));
        assert!(matches!(cause(Status::unavailable("x")), Cause::Rotate(_)));
        assert!(matches!(cause(Status::unknown("x")), Cause::Rotate(_)));
    }

    #[test]
    fn the_manual_has_the_true_times_of_silence() {
        let manual = include_str!("../../docs/workstations.md");
        let (ping, silence) = (PING_INTERVAL.as_secs(), SILENCE_LIMIT.as_secs());
        assert!(manual.contains(&format!("a server on which nothing has moved for {silence} s")));
        assert!(manual.contains(&format!("keeps an idle connection\nfor {ping} s or more")));
        assert!(manual.contains(&format!("connects again {silence} s\nafter the last byte")));
    }

    #[test]
    fn only_a_server_tells_of_an_outage() {
        let local = Status::unavailable("the connection was refused");
        assert!(!is_outage(&local.clone().into()));
        let mut told = local;
        told.metadata_mut().insert(OUTAGE, tonic::metadata::MetadataValue::from_static("true"));
        assert!(matches!(cause(told), Cause::Rotate(error) if is_outage(&error)));
    }
}
