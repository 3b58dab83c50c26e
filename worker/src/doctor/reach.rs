//! From a server's name to its answer, step by step, on one connection.
//!
//! Owns the deadlines: nothing that is silent is waited for longer than [`WAIT`] at each step. A join token is told to nobody who
//! has not shown a certificate of the authority that it names.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hyper_util::rt::TokioIo;
use pcfarm_proto::PROTOCOL_VERSION;
use pcfarm_proto::secrets::JoinToken;
use pcfarm_proto::v1::agent_service_client::AgentServiceClient;
use pcfarm_proto::v1::join_service_client::JoinServiceClient;
use pcfarm_proto::v1::{CheckJoinTokenRequest, CheckJoinTokenResponse, CheckRequest, CheckResponse};
use rustls::ClientConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use uuid::Uuid;

use super::witness::{Described, Seen, Trust, Verdict, Witness};
use super::{Finding, Outcome, Step};

/// A server on the same campus answers in milliseconds, one on the other side of the world in less than one second.
const WAIT: Duration = Duration::from_secs(5);

/// The farm makes certificates valid from so long before: a clock that is further behind than that refuses a new one.
const CLOCK_LIMIT: Duration = Duration::from_secs(300);

/// What an agent goes to a server with.
pub struct Visitor {
    pub trust: Trust,
    /// Its certificate and key, as PEM, if it has joined.
    pub credentials: Option<(String, String)>,
    /// What it is to join with, if it has not.
    pub token: Option<JoinToken>,
    pub identity: Uuid,
}

impl Visitor {
    /// One that has not joined. It knows the farm by its token alone.
    pub fn with_token(token: JoinToken, identity: Uuid) -> Visitor {
        Visitor { trust: Trust::Fingerprint(token.authority), credentials: None, token: Some(token), identity }
    }
}

/// Why the steps end: the rest cannot be known.
struct End;

/// What was found on the way to one server.
struct Way<'a> {
    visitor: &'a Visitor,
    findings: Vec<Finding>,
}

/// All steps of one server. Those that cannot be known any more are skipped.
pub async fn visit(server: &Endpoint, visitor: &Visitor) -> Vec<Finding> {
    let mut way = Way { visitor, findings: Vec::new() };
    let _ = way.walk(server).await;
    let steps = [Step::Name, Step::Route, Step::Port, Step::Tls].into_iter();
    let steps = steps.chain(visitor.token.is_some().then_some(Step::Token)).chain([Step::Answer]);
    for step in steps.chain([Step::Credentials, Step::Version, Step::Clock]) {
        if !way.findings.iter().any(|finding| finding.step == step) {
            way.findings.push(Finding::skipped(step, "not known, for what fails above"));
        }
    }
    let server = server.uri().to_string();
    way.findings.into_iter().map(|finding| Finding { server: Some(server.clone()), ..finding }).collect()
}

impl Way<'_> {
    fn ok(&mut self, step: Step, says: impl Into<String>) {
        self.findings.push(Finding::ok(step, says));
    }

    fn fail(&mut self, step: Step, says: impl Into<String>, advice: impl Into<String>) -> End {
        self.findings.push(Finding::failed(step, says, advice));
        End
    }

    async fn walk(&mut self, server: &Endpoint) -> Result<(), End> {
        let uri = server.uri();
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let is_tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let addresses = self.resolve(&host, port).await?;
        let stream = self.connect(&addresses, port).await?;
        let answer = if is_tls {
            let (stream, seen) = self.handshake(&host, stream).await?;
            let time_is_in_question = self.judge(&host, &seen);
            if self.findings.last().is_some_and(Finding::has_failed) && !time_is_in_question {
                return Err(End);
            }
            let channel = channel(server, stream).await;
            if let Some(token) = &self.visitor.token {
                self.show(token, &channel, time_is_in_question).await;
            }
            self.ask(channel).await?
        } else {
            self.findings.push(Finding::skipped(Step::Tls, "http: what is said is in the clear"));
            if self.visitor.token.is_some() {
                let advice = "name the server by https://…: a join token is told only by TLS";
                self.fail(Step::Token, "nobody joins a farm by http", advice);
            }
            self.ask(channel(server, stream).await).await?
        };
        self.compare(&answer);
        Ok(())
    }

    async fn resolve(&mut self, host: &str, port: u16) -> Result<Vec<SocketAddr>, End> {
        let advice = "is the name right, and does this machine know a name server that knows it? (getent hosts NAME)";
        match timeout(WAIT, tokio::net::lookup_host((host, port))).await {
            Ok(Ok(addresses)) => {
                let addresses: Vec<SocketAddr> = addresses.collect();
                let mut ips: Vec<String> = addresses.iter().map(|address| address.ip().to_string()).collect();
                ips.dedup();
                self.ok(Step::Name, format!("{host} is {}", ips.join(", ")));
                Ok(addresses)
            }
            Ok(Err(error)) => Err(self.fail(Step::Name, format!("{host}: {error}"), advice)),
            Err(_) => Err(self.fail(Step::Name, format!("{host}: no answer within {} s", WAIT.as_secs()), advice)),
        }
    }

    /// To the first address that lets it.
    async fn connect(&mut self, addresses: &[SocketAddr], port: u16) -> Result<TcpStream, End> {
        let (mut no_route, mut no_port) = (Vec::new(), Vec::new());
        for address in addresses {
            match timeout(WAIT, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    let from = stream.local_addr().map_or_else(|_| "?".to_owned(), |local| local.ip().to_string());
                    self.ok(Step::Route, format!("from {from} to {}", address.ip()));
                    self.ok(Step::Port, format!("{port} takes connections"));
                    return Ok(stream);
                }
                Ok(Err(error)) if is_unreachable(&error) => no_route.push(format!("{}: {error}", address.ip())),
                Ok(Err(error)) => no_port.push(format!("{address}: {error}")),
                Err(_) => no_port.push(format!("{address}: nothing answers within {} s", WAIT.as_secs())),
            }
        }
        if no_port.is_empty() {
            let advice = "is this machine on the network, and does it know a way there? (ip route get ADDRESS)";
            return Err(self.fail(Step::Route, no_route.join("; "), advice));
        }
        self.ok(Step::Route, "there is one");
        let advice = "does the server run and listen on that port on an address that others reach (--listen), and lets every \
                      firewall between pass?";
        Err(self.fail(Step::Port, no_port.join("; "), advice))
    }

    async fn handshake(
        &mut self,
        host: &str,
        stream: TcpStream,
    ) -> Result<(tokio_rustls::client::TlsStream<TcpStream>, Seen), End> {
        let witness = Arc::new(Witness::new(self.visitor.trust.clone()));
        let prepared =
            self.configure(witness.clone()).and_then(|config| Ok((config, ServerName::try_from(host.to_owned())?)));
        let (config, name) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                let advice = "remove certificate.pem and key.pem in the state directory, and join anew";
                return Err(self.fail(Step::Tls, format!("this workstation's own certificate: {error:#}"), advice));
            }
        };
        let not_tls =
            "is this the port of the agents' protocol, and does the server have --tls? Without TLS it is http://…";
        match timeout(WAIT, tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream)).await {
            Ok(Ok(stream)) => match witness.seen() {
                Some(seen) => Ok((stream, seen)),
                None => Err(self.fail(Step::Tls, "the server showed no certificate", not_tls)),
            },
            Ok(Err(error)) => Err(self.fail(
                Step::Tls,
                format!("what listens there does not speak TLS as servers do: {error}"),
                not_tls,
            )),
            Err(_) => {
                let says = format!("what listens there says nothing within {} s", WAIT.as_secs());
                Err(self.fail(Step::Tls, says, "is it the server that listens there, and does it hang?"))
            }
        }
    }

    fn configure(&self, witness: Arc<Witness>) -> anyhow::Result<ClientConfig> {
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(witness);
        let mut config = match &self.visitor.credentials {
            Some((certificate, key)) => {
                let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect();
                config.with_client_auth_cert(chain?, PrivateKeyDer::from_pem_slice(key.as_bytes())?)?
            }
            None => config.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }

    /// Whether it failed, but only for the time.
    fn judge(&mut self, host: &str, seen: &Seen) -> bool {
        use rustls::CertificateError::{NotValidForName, NotValidForNameContext, UnknownIssuer};
        let unknown = Described {
            issuer: "?".to_owned(),
            names: Vec::new(),
            from: "?".to_owned(),
            until: "?".to_owned(),
            until_seconds: 0,
        };
        let certificate = seen.certificate.as_ref().unwrap_or(&unknown);
        let Described { issuer, from, until, .. } = certificate;
        match &seen.verdict {
            Verdict::Good => {
                self.ok(Step::Tls, format!("its certificate is signed by {issuer:?} and valid until {until}"))
            }
            Verdict::AtAnotherTime => {
                let now = jiff::Timestamp::now().strftime("%F %H:%M UTC");
                let says =
                    format!("its certificate is valid from {from} until {until}, and this machine's clock says {now}");
                let advice = "see below whether the clock is wrong; if it is right, the server needs another certificate \
                              (pcfarm-server init)";
                self.fail(Step::Tls, says, advice);
                return true;
            }
            Verdict::Bad(rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) => {
                let says = format!("its certificate is not for {host}, but for {}", certificate.names.join(", "));
                self.fail(
                    Step::Tls,
                    says,
                    "name the server as its certificate does, or add this name: pcfarm-server init --name",
                );
            }
            Verdict::Bad(rustls::Error::InvalidCertificate(UnknownIssuer)) if self.visitor.token.is_some() => {
                self.ok(Step::Tls, format!("its certificate is signed by {issuer:?} and valid until {until}"));
                let says =
                    "it is another farm's: the server shows no certificate of the authority that the join token names";
                let advice = "is it the farm's server, and the token one that `pcfarm join-token create` has made there, since \
                              the farm has this authority?";
                self.fail(Step::Token, says, advice);
            }
            Verdict::Bad(rustls::Error::InvalidCertificate(UnknownIssuer)) => {
                let says = format!("its certificate is signed by {issuer:?}, whom this workstation does not trust");
                let advice = "is it the farm's server? A farm's own authority is learnt by joining; another one's is named by \
                              `ca` in the settings";
                self.fail(Step::Tls, says, advice);
            }
            Verdict::Bad(error) => {
                let advice =
                    "is it the farm's server, and are its certificate and its authority's the ones in its --tls?";
                self.fail(Step::Tls, format!("its certificate (signed by {issuer:?}): {error}"), advice);
            }
        }
        false
    }

    /// Whether the join token would let this workstation in.
    async fn show(&mut self, token: &JoinToken, channel: &Result<Channel, Status>, time_is_in_question: bool) {
        if time_is_in_question {
            self.findings.push(Finding::skipped(Step::Token, "not told while it is not certain who listens"));
            return;
        }
        // What keeps this one from being made is said with the answer.
        let Ok(channel) = channel else { return };
        let request = CheckJoinTokenRequest { join_token: token.reveal() };
        let asked = timeout(WAIT, JoinServiceClient::new(channel.clone()).check_join_token(request)).await;
        match asked.map(|answer| answer.map(tonic::Response::into_inner)) {
            Ok(Ok(fate)) => self.ok(Step::Token, lets_in(&fate)),
            Ok(Err(status)) if matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied) => {
                let advice = "ask whoever administers the farm for another; `pcfarm join-token list` shows what became of this one";
                self.fail(Step::Token, status.message(), advice);
            }
            Ok(Err(status)) if status.code() == Code::Unimplemented => {
                let says =
                    "this farm's; the server is older than this agent, and tells only who joins whether it still holds";
                self.findings.push(Finding::skipped(Step::Token, says));
            }
            Ok(Err(status)) => {
                let says =
                    format!("this farm's; whether it still holds the server does not tell: {}", status.message());
                self.findings.push(Finding::skipped(Step::Token, says));
            }
            Err(_) => {} // it says nothing to the next question either
        }
    }

    /// On the very connection of the steps before.
    async fn ask(&mut self, channel: Result<Channel, Status>) -> Result<Answer, End> {
        let asked = SystemTime::now();
        let outcome = timeout(WAIT, self.check(channel)).await;
        let took = asked.elapsed().unwrap_or_default();
        let status = match outcome {
            Ok(Ok(response)) => {
                let version = &response.server_version;
                self.ok(Step::Answer, format!("a server, version {version}, within {} ms", took.as_millis()));
                self.ok(Step::Credentials, self.credentials());
                return Ok(Answer { response, at: asked + took / 2, took });
            }
            Ok(Err(status)) => status,
            Err(_) => {
                let says = format!("no answer within {} s", WAIT.as_secs());
                return Err(self.fail(Step::Answer, says, "does the server hang? Its log says more"));
            }
        };
        Err(match status.code() {
            Code::Unauthenticated | Code::PermissionDenied if self.visitor.token.is_some() => {
                self.ok(Step::Answer, "a server");
                self.findings.push(Finding::skipped(Step::Credentials, "none yet: they come with joining"));
                for step in [Step::Version, Step::Clock] {
                    self.findings.push(Finding::skipped(step, "told to workstations that have joined"));
                }
                End
            }
            Code::Unauthenticated | Code::PermissionDenied => {
                self.ok(Step::Answer, "a server");
                let advice = match &self.visitor.credentials {
                    Some(_) => {
                        "an operator sees it with `pcfarm credentials list`. One that was cut off stays so: uninstall with \
                         --purge, and join as a new workstation"
                    }
                    None => "this workstation has not joined: pcfarm-worker install --token-file FILE",
                };
                self.fail(Step::Credentials, status.message(), advice)
            }
            Code::Unimplemented => {
                self.ok(Step::Answer, "a server");
                self.fail(
                    Step::Version,
                    "the server is older than this agent, and cannot be asked",
                    "update the server",
                )
            }
            _ => {
                let says = format!("{} {}", status.code(), with_sources(&status));
                let advice = "does it speak the agents' protocol, and TLS if and only if its address begins with https? Its log \
                              says more";
                match self.expired() {
                    Some(until) => {
                        let says =
                            format!("this workstation's certificate ended at {until}, and the server does not take it");
                        let advice =
                            "a running agent renews it: is the service running? After a month away it joins anew";
                        self.fail(Step::Credentials, says, advice)
                    }
                    None => self.fail(Step::Answer, says, advice),
                }
            }
        })
    }

    async fn check(&self, channel: Result<Channel, Status>) -> Result<CheckResponse, Status> {
        let request = CheckRequest { identity: self.visitor.identity.to_string() };
        Ok(AgentServiceClient::new(channel?).check(request).await?.into_inner())
    }

    fn credentials(&self) -> String {
        match self.visitor.credentials.as_ref().and_then(|(certificate, _)| Described::of_pem(certificate)) {
            Some(certificate) => format!("accepted; the certificate is valid until {}", certificate.until),
            None => "none are asked for".to_owned(),
        }
    }

    /// Until when its own certificate was valid, if it is so no more.
    fn expired(&self) -> Option<String> {
        let (certificate, _) = self.visitor.credentials.as_ref()?;
        let described = Described::of_pem(certificate)?;
        (described.until_seconds < jiff::Timestamp::now().as_second()).then_some(described.until)
    }

    fn compare(&mut self, answer: &Answer) {
        let (theirs, ours) = (answer.response.protocol_version, PROTOCOL_VERSION);
        if theirs == ours {
            self.ok(Step::Version, format!("both speak version {ours} of the agents' protocol"));
        } else {
            let says = format!("the server speaks version {theirs} of the agents' protocol, this agent version {ours}");
            let advice = if theirs > ours { "update this agent" } else { "update the server" };
            self.fail(Step::Version, says, advice);
        }
        let Some(now) = answer.response.now.and_then(|now| SystemTime::try_from(now).ok()) else {
            self.findings.push(Finding::skipped(Step::Clock, "the server does not tell its time"));
            return;
        };
        let (difference, which) = match now.duration_since(answer.at) {
            Ok(behind) => (behind, "behind"),
            Err(ahead) => (ahead.duration(), "ahead of"),
        };
        let about = format!(
            "{:.1} s {which} the server's, give or take {:.1} s",
            difference.as_secs_f64(),
            answer.took.as_secs_f64() / 2.0
        );
        if difference.saturating_sub(answer.took) > CLOCK_LIMIT {
            self.fail(
                Step::Clock,
                format!("this machine's is {about}"),
                "set it by the network (timedatectl set-ntp true)",
            );
            // A certificate that seems to have ended is a consequence, and not the fault.
            let of_time = |finding: &&mut Finding| finding.step == Step::Tls && finding.has_failed();
            if let Some(tls) = self.findings.iter_mut().find(of_time) {
                (tls.outcome, tls.advice) = (Outcome::Skipped, String::new());
            }
        } else {
            self.ok(Step::Clock, format!("this machine's is {about}"));
        }
    }
}

/// Over a connection that is there already, encrypted or not.
async fn channel<S>(server: &Endpoint, stream: S) -> Result<Channel, Status>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let authority = server.uri().authority().map(ToString::to_string).unwrap_or_default();
    let endpoint = Endpoint::from_shared(format!("http://{authority}"));
    let endpoint = endpoint.map_err(|error| Status::internal(error.to_string()))?;
    let mut stream = Some(TokioIo::new(stream));
    let connector = tower::service_fn(move |_| {
        let stream = stream.take().ok_or_else(|| io::Error::other("the connection has ended"));
        std::future::ready(stream)
    });
    let connecting = endpoint.connect_with_connector(connector);
    match timeout(WAIT, connecting).await {
        Ok(connected) => connected.map_err(|error| Status::unavailable(with_sources(&error))),
        Err(_) => Err(Status::deadline_exceeded("no answer in time")),
    }
}

fn lets_in(fate: &CheckJoinTokenResponse) -> String {
    let until = fate.expires_at.and_then(|until| jiff::Timestamp::from_second(until.seconds).ok());
    let until = until.map_or_else(|| "?".to_owned(), |until| until.strftime("%F %H:%M UTC").to_string());
    let workstations = if fate.uses_left == 1 { "workstation" } else { "workstations" };
    format!("this farm's; lets {} {workstations} more in until {until}", fate.uses_left)
}

struct Answer {
    response: CheckResponse,
    /// When the server must have said it, by this machine's clock.
    at: SystemTime,
    took: Duration,
}

fn is_unreachable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkDown
    )
}

fn with_sources(error: &dyn std::error::Error) -> String {
    crate::agent::chain(error)
}
