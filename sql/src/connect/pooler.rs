//! Recognises a pooler that gives a session's statements to several connections of the server: PgBouncer in transaction or
//! statement mode, and its like. LISTEN, prepared statements, advisory locks and settings need one connection for as long as a
//! session lasts; a server behind such a pooler would start, and then hang.

use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::{ConnectError, Target};

/// A few milliseconds for each; a pooler whose pool is exhausted lets us wait.
const LIMIT: Duration = Duration::from_secs(10);
const ROUNDS: usize = 3;
/// The session may have a default's or a user's timeouts. Nothing is set for longer than the transaction.
const BEGIN: &str = "begin; set local idle_in_transaction_session_timeout = '10s'; \
     select pg_catalog.set_config('transaction_timeout', '0', true) \
     where pg_catalog.current_setting('transaction_timeout', true) is not null";

#[derive(Debug, thiserror::Error)]
pub enum PoolerError {
    #[error(
        "{place} is behind {name} in {mode} mode, in which sessions lose their settings, prepared statements, locks and \
         notifications: set pool_mode = session for this database or user (in pgbouncer.ini: `{database} = … pool_mode=session`), \
         or connect to PostgreSQL itself"
    )]
    Splits { place: String, name: &'static str, mode: &'static str, database: String },
    #[error("connecting to the database")]
    Connect(#[from] ConnectError),
    #[error("asking the database which connection serves this session")]
    Query(#[from] tokio_postgres::Error),
    #[error(
        "{place} did not give two sessions at a time within {} s: behind a pooler, default_pool_size must cover the server's \
         connections", LIMIT.as_secs()
    )]
    Timeout { place: String },
}

impl PoolerError {
    /// True if trying again cannot help.
    pub fn is_lasting(&self) -> bool {
        match self {
            PoolerError::Splits { .. } => true,
            PoolerError::Connect(error) => error.is_lasting(),
            PoolerError::Query(_) | PoolerError::Timeout { .. } => false,
        }
    }
}

/// Refuses a database behind a pooler that is not in session mode. It opens two sessions, and must come before any other: a
/// session's settings would stay on connections that the pooler gives to its other clients.
pub async fn refuse_transaction_pooling(target: &Target) -> Result<(), PoolerError> {
    let place = crate::settings::redacted(&target.config);
    // Connecting has a limit of its own, for each host in turn.
    let (first, _first) = target.connect_unsettled().await?;
    let (second, _second) = target.connect_unsettled().await?;
    let Some(mode) = tokio::time::timeout(LIMIT, splitting_mode(&first, &second))
        .await
        .map_err(|_| PoolerError::Timeout { place: place.clone() })??
    else {
        return Ok(());
    };
    let database = target.config.get_dbname().unwrap_or_default().to_owned();
    Err(PoolerError::Splits { place, name: name_of(target).await, mode, database })
}

/// The mode's name if statements of one session reach different server processes.
///
/// While the second session has a transaction open, the pooler cannot give its process to the first one. So either the two
/// share a process, or the first one moves to another, wherever the pool takes its connections from.
async fn splitting_mode(first: &Client, second: &Client) -> Result<Option<&'static str>, PoolerError> {
    let home = process(first).await?;
    for _ in 0..ROUNDS {
        if process(first).await? != home {
            return Ok(Some("transaction or statement"));
        }
        match second.batch_execute(BEGIN).await {
            Ok(()) => (),
            // PgBouncer's "transaction blocks not allowed in statement pooling mode".
            Err(error) if error.code() == Some(&SqlState::PROTOCOL_VIOLATION) => return Ok(Some("statement")),
            Err(error) => return Err(error.into()),
        }
        if process(second).await? == home || process(first).await? != home {
            return Ok(Some("transaction"));
        }
        second.batch_execute("rollback").await?;
    }
    Ok(None)
}

async fn process(client: &Client) -> Result<Option<String>, tokio_postgres::Error> {
    let answer = client.simple_query("select pg_catalog.pg_backend_pid()").await?;
    Ok(answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.try_get(0).ok().flatten().map(str::to_owned),
        _ => None,
    }))
}

/// PgBouncer has a database of its own, from which it turns strangers away by itself. PostgreSQL has none of that name.
async fn name_of(target: &Target) -> &'static str {
    let console = Target::new(target.config.clone(), target.encryption.clone()).with(|config| {
        config.dbname("pgbouncer");
    });
    let answer = tokio::time::timeout(LIMIT, console.open()).await;
    match answer {
        Ok(Ok(_)) => "PgBouncer",
        Ok(Err(error)) if error.code().is_some_and(|code| *code != SqlState::INVALID_CATALOG_NAME) => "PgBouncer",
        _ => "a pooler",
    }
}
