//! The connection to a server: its deadlines, and calls whose errors say what was tried and where.

use std::future::Future;
use std::time::Duration;

use anyhow::{Context, Result};
use pcfarm_proto::v1::access_service_client::AccessServiceClient;
use pcfarm_proto::v1::alert_service_client::AlertServiceClient;
use pcfarm_proto::v1::farm_service_client::FarmServiceClient;
use pcfarm_proto::v1::file_service_client::FileServiceClient;
use pcfarm_proto::v1::job_service_client::JobServiceClient;
use pcfarm_proto::v1::queue_service_client::QueueServiceClient;
use pcfarm_proto::v1::schedules_client::SchedulesClient;
use pcfarm_proto::v1::workstation_service_client::WorkstationServiceClient;
use pcfarm_proxy::{Connector, Limits, Proxies};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Response, Status};

use crate::exit::{self, Exit, Failure};
use crate::settings::Settings;
use crate::text;
use crate::trace::TRACE_PARENT;

/// For one question and one answer; a person is waiting.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// A server that takes longer to accept a connection is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Calls may be silent for long, but not their connection: pings find a server that died without a word.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(20);
/// A long time: on a slow uplink a ping waits behind bytes that the system has already taken to send.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(60);

/// Shows the token with every call, and what it is a part of.
#[derive(Clone)]
pub struct Bearer {
    token: Option<MetadataValue<Ascii>>,
    trace: Option<MetadataValue<Ascii>>,
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.token {
            request.metadata_mut().insert("authorization", value.clone());
        }
        if let Some(value) = &self.trace {
            request.metadata_mut().insert(TRACE_PARENT, value.clone());
        }
        Ok(request)
    }
}

type Shown = InterceptedService<Channel, Bearer>;

/// A server and how long to wait for it.
pub struct Farm {
    channel: Shown,
    server: String,
    /// Host and port of the proxy on the way.
    proxy: Option<String>,
    timeout: Option<Duration>,
}

impl Farm {
    pub async fn connect(settings: &Settings) -> Result<Farm> {
        let limit = settings.timeout.map_or(CONNECT_TIMEOUT, |timeout| timeout.min(CONNECT_TIMEOUT));
        let endpoint = Endpoint::from_shared(settings.server.clone())
            .map_err(|error| Failure::usage(format!("`{}` is not a server: {error}", settings.server)))?
            .connect_timeout(limit)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .tcp_nodelay(true);
        let endpoint = if settings.server.starts_with("https://") {
            endpoint.tls_config(trust(settings)?).context("preparing TLS")?
        } else {
            endpoint
        };
        settings.proxies.proxy_of(endpoint.uri()).map_err(|error| Failure::usage(error.to_string()))?;
        let proxy = settings.proxies.name_of(endpoint.uri());
        // The limit above is for one address; a name may have several, and resolving it takes time, too.
        let connecting = async {
            match &proxy {
                None => endpoint.connect().await,
                Some(_) => endpoint.connect_with_connector(tunnel(&settings.proxies, limit)).await,
            }
        };
        let not_there = |why: &str| not_there(&settings.server, proxy.as_deref(), why);
        let channel = match tokio::time::timeout(limit * 2, connecting).await {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => return Err(not_there(&innermost(&error))),
            Err(_) => return Err(not_there("it does not answer")),
        };
        let token = settings.token.as_ref().map(|token| {
            let value: Result<MetadataValue<Ascii>, _> = format!("Bearer {}", token.reveal()).parse();
            let mut value = value.expect("a token is ASCII");
            value.set_sensitive(true);
            value
        });
        let trace = settings.trace.as_ref().and_then(|trace| trace.parse().ok());
        let channel = InterceptedService::new(channel, Bearer { token, trace });
        Ok(Farm { channel, server: settings.server.clone(), proxy, timeout: settings.timeout })
    }

    pub fn jobs(&self) -> JobServiceClient<Shown> {
        JobServiceClient::new(self.channel.clone()).max_decoding_message_size(pcfarm_proto::MESSAGE_BYTES_LIMIT * 4)
    }

    pub fn workstations(&self) -> WorkstationServiceClient<Shown> {
        WorkstationServiceClient::new(self.channel.clone())
            .max_decoding_message_size(pcfarm_proto::MESSAGE_BYTES_LIMIT * 4)
    }

    pub fn status(&self) -> FarmServiceClient<Shown> {
        FarmServiceClient::new(self.channel.clone())
    }

    pub fn queue(&self) -> QueueServiceClient<Shown> {
        QueueServiceClient::new(self.channel.clone()).max_decoding_message_size(pcfarm_proto::MESSAGE_BYTES_LIMIT * 4)
    }

    pub fn alerts(&self) -> AlertServiceClient<Shown> {
        AlertServiceClient::new(self.channel.clone()).max_decoding_message_size(pcfarm_proto::MESSAGE_BYTES_LIMIT * 4)
    }

    pub fn files(&self) -> FileServiceClient<Shown> {
        FileServiceClient::new(self.channel.clone()).max_decoding_message_size(pcfarm_proto::MESSAGE_BYTES_LIMIT)
    }

    pub fn access(&self) -> AccessServiceClient<Shown> {
        AccessServiceClient::new(self.channel.clone())
    }

    pub fn schedules(&self) -> SchedulesClient<Shown> {
        SchedulesClient::new(self.channel.clone()).max_decoding_message_size(pcfarm_proto::MESSAGE_BYTES_LIMIT * 4)
    }

    pub fn server(&self) -> &str {
        &self.server
    }

    /// The limit that the user set for the whole of a verb.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// One question, one answer. `doing` completes "error: …": `showing job 7`.
    pub async fn call<T>(&self, doing: &str, call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T> {
        let limit = self.timeout.unwrap_or(CALL_TIMEOUT);
        match tokio::time::timeout(limit, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(self.refused(doing, &status)),
            Err(_) => Err(self.timed_out(doing, limit)),
        }
    }

    /// A call that lasts as long as there is something to say: limited only by the user.
    pub async fn unhurried<T>(&self, doing: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
        match self.timeout {
            None => work.await,
            Some(limit) => {
                tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(self.timed_out(doing, limit)))
            }
        }
    }

    /// Comes when the user's limit for the whole of a verb has passed, and never without one.
    pub async fn time_is_over(&self, doing: &str) -> anyhow::Error {
        match self.timeout {
            None => std::future::pending().await,
            Some(limit) => {
                tokio::time::sleep(limit).await;
                self.timed_out(doing, limit)
            }
        }
    }

    /// A request that tells the server when nobody waits for its answer any more.
    pub fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.timeout.unwrap_or(CALL_TIMEOUT));
        request
    }

    pub fn refused(&self, doing: &str, status: &Status) -> anyhow::Error {
        let exit = exit::of_status(status);
        let message = match status.message() {
            "" => status.code().description().to_owned(),
            message => message.to_owned(),
        };
        match exit {
            Exit::NotReachable => {
                Failure::of(exit, format!("{doing}: the server at {} cannot be reached: {message}", self.way()))
            }
            Exit::TimedOut => self.timed_out(doing, self.timeout.unwrap_or(CALL_TIMEOUT)),
            Exit::Done | Exit::Failed | Exit::Usage | Exit::NotFound | Exit::NotAllowed | Exit::ProblemsFailed => {
                Failure::of(exit, format!("{doing}: {message}"))
            }
        }
    }

    /// The server, and the proxy on the way to it.
    fn way(&self) -> String {
        match &self.proxy {
            None => self.server.clone(),
            Some(proxy) => through(&self.server, proxy),
        }
    }

    pub fn timed_out(&self, doing: &str, limit: Duration) -> anyhow::Error {
        Failure::of(
            Exit::TimedOut,
            format!(
                "{doing}: no answer from {} within {}. A longer --timeout waits longer",
                self.way(),
                text::duration(limit)
            ),
        )
    }
}

/// A tunnel through a proxy, in which the connection has its own TLS.
fn tunnel(proxies: &Proxies, limit: Duration) -> Connector {
    let limits = Limits { nodelay: true, connect_timeout: Some(limit), ..Limits::default() };
    Connector::new(proxies.clone(), limits).tunnel_all()
}

/// The authority that the settings name, or those that this system trusts.
fn trust(settings: &Settings) -> Result<ClientTlsConfig> {
    let tls = ClientTlsConfig::new();
    match &settings.ca {
        None => Ok(tls.with_native_roots()),
        Some(file) => {
            let pem = std::fs::read(file)
                .map_err(|error| Failure::usage(format!("reading the authority {}: {error}", file.display())))?;
            Ok(tls.ca_certificate(Certificate::from_pem(pem)))
        }
    }
}

/// `proxy`: host and port of the proxy on the way.
fn not_there(server: &str, proxy: Option<&str>, why: &str) -> anyhow::Error {
    let text = match proxy {
        None => format!(
            "no PC Farm server answers at {server}: {why}. \
             Start one with `pcfarm up` or name another with --server"
        ),
        Some(proxy) => format!(
            "no PC Farm server answers at {}: {why}. \
             Name another proxy with --proxy, or connect directly with `--proxy none`",
            through(server, proxy)
        ),
    };
    Failure::of(Exit::NotReachable, text)
}

fn through(server: &str, proxy: &str) -> String {
    format!("{server} through the proxy {proxy}")
}

/// What the operating system said; the layers above it only say "transport error".
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let text = cause.to_string().to_lowercase();
    match text.split_once(" (os error") {
        Some((words, _)) => words.to_owned(),
        None => text,
    }
}
