//! Connections. A [`Target`] has the hosts, the login, the encryption and the settings. [`Target::connect`] makes a connection
//! outside the pool: for LISTEN and session locks, which need their own, for migrations and for tests. This is the only place
//! that drives a tokio-postgres connection by hand.

mod hosts;
pub mod pooler;
pub(crate) mod session;

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, CancelToken, Client, Config, Socket};

use crate::tls::{Connector, Encryption, Mode, Stream, TlsFailure, with_cause};
use hosts::{each_host, log_in_as, number_of_hosts, without_login};
use session::Session;

/// For a configuration without a limit of its own: name look-up, connecting and logging in together.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(10);
/// For each of several hosts in a configuration without a limit: a silent one leaves time for the next.
pub(crate) const HOST_TIMEOUT: Duration = Duration::from_secs(3);
/// Time for a cancel request to reach the database.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);
/// Notifications are hints behind a poll, so a few hundred waiting are as good as all.
const MESSAGES_HELD: usize = 256;

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("cannot connect to {place}")]
    Postgres { place: String, source: tokio_postgres::Error },
    #[error("{place} did not answer within {} s", within.as_secs())]
    Timeout { place: String, within: Duration },
    #[error(
        "cannot connect to {place}: the server does not speak TLS, which sslmode={mode} demands. Set ssl = on in its \
         postgresql.conf, or use sslmode=prefer on a network that you trust"
    )]
    NoTls { place: String, mode: Mode },
    #[error(
        "cannot connect to {place}: the server demands a client certificate. Name it and its key by sslcert and sslkey"
    )]
    NoClientCertificate { place: String, source: tokio_postgres::Error },
}

/// A database: hosts and login, encryption, and the settings of its sessions.
#[derive(Debug, Clone)]
pub struct Target {
    config: Config,
    encryption: Encryption,
    session: Option<Session>,
}

/// A private cluster's or a test's, over a Unix socket: without encryption.
impl From<Config> for Target {
    fn from(config: Config) -> Target {
        Target::new(config, Encryption::off())
    }
}

impl ConnectError {
    /// True if trying again cannot help: encryption is missing or refused, on one of the two sides.
    pub fn is_lasting(&self) -> bool {
        let source: &(dyn std::error::Error + 'static) = match self {
            ConnectError::NoTls { .. } | ConnectError::NoClientCertificate { .. } => return true,
            ConnectError::Timeout { .. } => return false,
            ConnectError::Postgres { source, .. } => source,
        };
        std::iter::successors(Some(source), |error| error.source())
            .any(|error| error.downcast_ref::<TlsFailure>().is_some_and(|failure| failure.is_lasting))
    }
}

impl Target {
    pub fn new(config: Config, encryption: Encryption) -> Target {
        Target { config, encryption, session: None }
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn encryption(&self) -> &Encryption {
        &self.encryption
    }

    /// This server and database for another login.
    pub fn for_login(&self, user: &str, password: Option<&str>) -> Target {
        let mut config = without_login(&self.config, 0..usize::MAX);
        config.user(user);
        if let Some(password) = password {
            config.password(password);
        }
        Target::new(config, self.encryption.clone())
    }

    /// With a change of its configuration.
    pub fn with(mut self, change: impl FnOnce(&mut Config)) -> Target {
        change(&mut self.config);
        self
    }

    /// With these settings in place of the configuration's `options`, which they contain.
    pub(crate) fn with_session(self, session: Session) -> Target {
        let mut config = without_login(&self.config, 0..usize::MAX);
        log_in_as(&mut config, &self.config);
        Target { config, encryption: self.encryption, session: Some(session) }
    }

    /// Connects, starts moving the connection's bytes and settles its settings, within the configuration's `connect_timeout`.
    pub async fn connect(&self) -> Result<(Client, ConnectionTask), ConnectError> {
        self.connect_and(async |client| self.settle(client).await.map(drop)).await
    }

    /// Connects without [`Target::settle`]: its settings would stay on a connection that a pooler gives to others.
    pub(crate) async fn connect_unsettled(&self) -> Result<(Client, ConnectionTask), ConnectError> {
        self.connect_and(async |_| Ok(())).await
    }

    async fn connect_and(
        &self,
        prepare: impl AsyncFnOnce(&Client) -> Result<(), tokio_postgres::Error>,
    ) -> Result<(Client, ConnectionTask), ConnectError> {
        let attempts = u32::try_from(self.encryption.mode.attempts().len()).unwrap_or(u32::MAX);
        let within = self.limit_of_all_hosts().saturating_mul(attempts);
        let connecting = async {
            let (client, connection) = self.open().await?;
            let task = ConnectionTask::spawn(connection);
            prepare(&client).await?;
            Ok((client, task))
        };
        match tokio::time::timeout(within, connecting).await {
            Ok(connected) => connected.map_err(|source| self.explain(source)),
            Err(_) => Err(ConnectError::Timeout { place: crate::settings::redacted(&self.config), within }),
        }
    }

    /// Limit for a host. tokio-postgres applies it to the socket only.
    fn limit(&self) -> Duration {
        self.config.get_connect_timeout().copied().unwrap_or(LOGIN_TIMEOUT)
    }

    /// Longest time until the last of the hosts has been tried once.
    pub(crate) fn limit_of_all_hosts(&self) -> Duration {
        self.limit().saturating_mul(u32::try_from(number_of_hosts(&self.config).max(1)).unwrap_or(u32::MAX))
    }

    /// A logged-in connection, whose bytes do not move yet. Boxed inside: the state of a handshake is larger than that of most callers.
    pub(crate) async fn open(&self) -> Result<(Client, Connection), tokio_postgres::Error> {
        let Some(session) = &self.session else {
            return Box::pin(self.open_with(&self.config)).await;
        };
        let mut config = self.config.clone();
        config.options(session.options());
        match Box::pin(self.open_with(&config)).await {
            // `settle` sends them later.
            Err(error) if is_refusal_of_options(&error) => Box::pin(self.open_with(&self.config)).await,
            opened => opened,
        }
    }

    /// Tries the hosts one after the other, as libpq does: each with the ways of its mode, and within its own limit, so that a
    /// silent host leaves time for the next. The last one has the caller's limit.
    async fn open_with(&self, config: &Config) -> Result<(Client, Connection), tokio_postgres::Error> {
        let mut hosts = each_host(config);
        let last = hosts.pop();
        let mut failed = None;
        for host in hosts {
            match tokio::time::timeout(self.limit(), self.open_host(host)).await {
                Ok(Ok(opened)) => return Ok(opened),
                Ok(Err(error)) => failed = Some(more_telling(failed, error)),
                Err(_) => tracing::debug!("a host of the database did not answer in time: trying the next one"),
            }
        }
        self.open_host(last.unwrap_or_else(|| config.clone())).await.map_err(|error| more_telling(failed, error))
    }

    /// See [`Session::settle`].
    pub(crate) async fn settle(&self, client: &Client) -> Result<Option<String>, tokio_postgres::Error> {
        match &self.session {
            Some(session) => session.settle(client).await,
            None => Ok(None),
        }
    }

    /// Tries the mode's ways in turn. If both fail, returns the failure with TLS, which says what to do.
    async fn open_host(&self, mut config: Config) -> Result<(Client, Connection), tokio_postgres::Error> {
        let mut failed: Option<(SslMode, tokio_postgres::Error)> = None;
        for &mode in self.encryption.mode.attempts() {
            config.ssl_mode(mode);
            let opened = match mode {
                SslMode::Disable => config.connect(Connector::off()).await,
                _ => config.connect(self.encryption.connector().await).await,
            };
            let error = match opened {
                Ok(opened) => return Ok(opened),
                Err(error) => error,
            };
            let again = may_be_encryption(&error) || (mode == SslMode::Disable && is_of_pooler(&error));
            if mode == SslMode::Prefer && again {
                tracing::warn!(
                    error = with_cause(&error),
                    "no TLS to the database: trying without, as sslmode=prefer says"
                );
            }
            failed = match failed {
                Some((SslMode::Prefer, first)) => Some((SslMode::Prefer, first)),
                _ => Some((mode, error)),
            };
            if !again {
                break;
            }
        }
        Err(failed.expect("each mode has a way to connect").1)
    }

    fn explain(&self, source: tokio_postgres::Error) -> ConnectError {
        let place = crate::settings::redacted(&self.config);
        let cause = std::error::Error::source(&source).map(ToString::to_string).unwrap_or_default();
        if cause == "server does not support TLS" {
            return ConnectError::NoTls { place, mode: self.encryption.mode };
        }
        if cause.contains("valid client certificate") {
            return ConnectError::NoClientCertificate { place, source };
        }
        ConnectError::Postgres { place, source }
    }

    /// Asks the database to cancel the statement of a connection to this target. Best effort, within a few seconds.
    pub async fn cancel(&self, running: &CancelToken) {
        let cancelling = async {
            let connector = match self.encryption.mode {
                Mode::Disable => Connector::off(),
                _ => self.encryption.connector().await,
            };
            running.cancel_query(connector).await
        };
        if let Ok(Err(error)) = tokio::time::timeout(CANCEL_TIMEOUT, cancelling).await {
            tracing::debug!(error = with_cause(&error), "a cancel request did not reach the database");
        }
    }
}

/// Of the failures of two hosts the one that says more: an answer, rather than that none came.
fn more_telling(before: Option<tokio_postgres::Error>, error: tokio_postgres::Error) -> tokio_postgres::Error {
    match before {
        Some(before) if is_out_of_reach(&error) => before,
        _ => error,
    }
}

/// True if encryption, or the lack of it, may be the reason of a failure: a refused login (`pg_hba.conf` tells `hostssl` from
/// `hostnossl`) or a handshake that failed, but neither a server that is out of reach nor one that says what else is wrong.
fn may_be_encryption(error: &tokio_postgres::Error) -> bool {
    match error.code() {
        Some(code) => *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
        None => !is_out_of_reach(error),
    }
}

fn is_out_of_reach(error: &tokio_postgres::Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|cause| {
        matches!(
            cause.kind(),
            io::ErrorKind::ConnectionRefused
                | io::ErrorKind::HostUnreachable
                | io::ErrorKind::NetworkUnreachable
                | io::ErrorKind::NotFound
                | io::ErrorKind::PermissionDenied
                | io::ErrorKind::TimedOut
        )
    })
}

/// True if a pooler refuses options, since its connections to the server exist already: PgBouncer as a protocol violation, others
/// as a missing feature.
fn is_refusal_of_options(error: &tokio_postgres::Error) -> bool {
    matches!(error.code(), Some(&(SqlState::PROTOCOL_VIOLATION | SqlState::FEATURE_NOT_SUPPORTED)))
}

/// True of PgBouncer's "SSL required". PostgreSQL itself refuses such a login by `pg_hba.conf`.
fn is_of_pooler(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::PROTOCOL_VIOLATION)
}

/// Connects without encryption: to a private cluster, and in tests.
pub async fn connect(config: &Config) -> Result<(Client, ConnectionTask), ConnectError> {
    Target::from(config.clone()).connect().await
}

pub(crate) type Connection = tokio_postgres::Connection<Socket, Stream>;

/// The task that moves a connection's bytes. The connection ends when this is dropped.
#[derive(Debug)]
pub struct ConnectionTask {
    task: JoinSet<Result<(), tokio_postgres::Error>>,
    messages: mpsc::Receiver<AsyncMessage>,
    missed: Arc<AtomicU64>,
}

impl ConnectionTask {
    fn spawn(connection: Connection) -> ConnectionTask {
        let (sender, messages) = mpsc::channel(MESSAGES_HELD);
        let missed = Arc::new(AtomicU64::new(0));
        let mut task = JoinSet::new();
        task.spawn(drive(connection, sender, missed.clone()));
        ConnectionTask { task, messages, missed }
    }

    /// The next notice or notification; `None` once the connection has ended. Cancel-safe, for `select!`.
    pub async fn next(&mut self) -> Option<AsyncMessage> {
        self.messages.recv().await
    }

    /// How many messages were dropped since the last call because nobody took them. Who must not miss one looks at the
    /// tables itself when this is not zero.
    pub fn take_missed(&self) -> u64 {
        self.missed.swap(0, Ordering::Relaxed)
    }

    /// Waits for the connection's end, and says why it ended. A dropped client ends it well.
    pub async fn ended(mut self) -> Result<(), tokio_postgres::Error> {
        self.messages.close();
        match self.task.join_next().await {
            Some(Ok(result)) => result,
            // Only an abort, which our drop alone does, or a panic of tokio-postgres leaves no result.
            Some(Err(_)) | None => Ok(()),
        }
    }
}

async fn drive(
    mut connection: Connection,
    messages: mpsc::Sender<AsyncMessage>,
    missed: Arc<AtomicU64>,
) -> Result<(), tokio_postgres::Error> {
    while let Some(message) = poll_fn(|context| connection.poll_message(context)).await.transpose()? {
        if let AsyncMessage::Notice(notice) = &message {
            tracing::debug!(severity = notice.severity(), message = notice.message(), "notice of PostgreSQL");
        }
        // Never wait here: a query on this connection could not be answered while nobody takes its notifications.
        if messages.try_send(message).is_err() {
            missed.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}
