//! One connection outside the pool: for LISTEN and session locks, which need their own, for migrations and for tests.
//! This is the only place that drives a tokio-postgres connection by hand.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, Socket};

/// For a configuration without a limit of its own: name look-up, connecting and logging in together.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Notifications are hints behind a poll, so a few hundred waiting are as good as all.
const MESSAGES_HELD: usize = 256;

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("cannot connect to {place}")]
    Postgres { place: String, source: tokio_postgres::Error },
    #[error("{place} did not answer within {} s", within.as_secs())]
    Timeout { place: String, within: Duration },
}

/// The task that moves a connection's bytes. The connection ends when this is dropped.
#[derive(Debug)]
pub struct ConnectionTask {
    task: JoinSet<Result<(), tokio_postgres::Error>>,
    messages: mpsc::Receiver<AsyncMessage>,
    missed: Arc<AtomicU64>,
}

impl ConnectionTask {
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

/// Connects and starts moving the connection's bytes, within the configuration's `connect_timeout`.
pub async fn connect(config: &Config) -> Result<(Client, ConnectionTask), ConnectError> {
    let place = || crate::settings::redacted(config);
    let each = config.get_connect_timeout().copied().unwrap_or(LOGIN_TIMEOUT);
    // The limit of the configuration is for each host in turn, and covers the socket only.
    let within = each.saturating_mul(config.get_hosts().len().max(1) as u32);
    let connecting = tokio::time::timeout(within, config.connect(NoTls)).await;
    let (client, connection) = connecting
        .map_err(|_| ConnectError::Timeout { place: place(), within })?
        .map_err(|source| ConnectError::Postgres { place: place(), source })?;

    let (sender, messages) = mpsc::channel(MESSAGES_HELD);
    let missed = Arc::new(AtomicU64::new(0));
    let mut task = JoinSet::new();
    task.spawn(drive(connection, sender, missed.clone()));
    Ok((client, ConnectionTask { task, messages, missed }))
}

type Connection = tokio_postgres::Connection<Socket, tokio_postgres::tls::NoTlsStream>;

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
