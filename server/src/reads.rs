//! Related reads: a job type's queries, each run once per checkout with all its keys.
//!
//! They run on connections of the job type's own login role, in a read-only transaction that is rolled back, and are
//! cancelled from outside at their time limit: nothing in their text can lift that.

use crate::outgoing::Load;
use bytes::Bytes;
use deadpool_postgres::{Pool, PoolError};
use futures_util::TryStreamExt;
use pcfarm_proto::v1;
use pcfarm_sql::connect::Target;
use pcfarm_sql::job_types::JobType;
use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio_postgres::CancelToken;
use tokio_postgres::error::SqlState;
use tracing::warn;

/// Connections per role: reads of this many checkouts at once.
const CONNECTIONS_PER_ROLE: usize = 4;

/// Between tries when it is not the query's fault.
const PAUSE: Duration = Duration::from_millis(500);

/// A row must fit a message, with room for others.
const ROW_BYTES_LIMIT: usize = pcfarm_proto::MESSAGE_BYTES_LIMIT / 2;

/// Related rows that go with one checkout; each of several reads may bring an equal part. A read that forgets a condition
/// brings every row for every key.
const CHECKOUT_BYTES_LIMIT: usize = 64 << 20;

/// Each slow key, or one that brings too much, takes log2(n) tries to find among n: enough for two of them.
const TRIES_PER_HALVING: u32 = 2;

/// What the reads of one checkout gave.
#[derive(Debug, Default)]
pub struct Related {
    pub reads: Vec<v1::RelatedRead>,
    /// Problems whose reads failed, by problem id, with the message.
    pub failures: HashMap<i64, String>,
    /// Ids of problems for whose rows there is no room beside those of others.
    pub left_out: HashSet<i64>,
}

/// The password of a role, if one is known: from the password file.
pub type Passwords = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Runs related reads.
pub struct Reads {
    server: Target,
    passwords: Passwords,
    roles: Mutex<HashMap<String, Role>>,
}

/// Who reads.
#[derive(Clone)]
struct Role {
    login: Target,
    pool: Pool,
    /// Who waits for a connection keeps its place: the pool lets nobody wait for long.
    turns: Arc<Semaphore>,
}

#[derive(Debug, thiserror::Error)]
enum ReadError {
    /// The query's, or its data's.
    #[error("{0}")]
    Query(String),
    #[error("it took longer than its time limit of {} s", .0.as_secs_f64())]
    Time(Duration),
    #[error("it returned a row of {0} bytes; at most {ROW_BYTES_LIMIT} are sent")]
    LongRow(i32),
    #[error("the rows of a problem have more than {} MiB: read less for each key", .0 >> 20)]
    TooMuch(usize),
    /// Anything else may pass.
    #[error(transparent)]
    Passing(#[from] anyhow::Error),
}

impl Reads {
    /// Reads go to the server's own database, as other roles.
    pub fn new(server: Target, passwords: Passwords) -> Reads {
        Reads { server, passwords, roles: Mutex::default() }
    }

    fn role(&self, name: &str) -> Role {
        let mut roles = self.roles.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let role = || {
            let login = self.login(name);
            Role {
                login: login.clone(),
                pool: pcfarm_sql::pool::pool_for_queries(login, CONNECTIONS_PER_ROLE, "pcfarm related reads"),
                turns: Arc::new(Semaphore::new(CONNECTIONS_PER_ROLE)),
            }
        };
        roles.entry(name.to_owned()).or_insert_with(role).clone()
    }

    /// A connection of that role's.
    pub async fn connection(&self, role: &str) -> Result<deadpool_postgres::Object, PoolError> {
        self.role(role).pool.get().await
    }

    /// Cancels the statement of a connection that [`Reads::connection`] gave.
    pub async fn cancel(&self, running: &CancelToken) {
        self.server.cancel(running).await;
    }

    /// The same database as another role; the server's own password is not for it.
    fn login(&self, role: &str) -> Target {
        // The reads' own time limit is kept from outside.
        self.server.for_login(role, (self.passwords)(role).as_deref()).with(|config| {
            config.options("-c statement_timeout=0");
        })
    }

    /// Runs all reads of the job type for these problems. What they bring goes with that load.
    pub async fn related(&self, job_type: &JobType, problems: &[v1::Problem], load: &Load) -> Related {
        let mut related = Related::default();
        if job_type.reads.is_empty() {
            return related;
        }
        let role = job_type.read_role.as_deref().unwrap_or_default();
        let mut keys: Vec<&str> = problems.iter().map(key_of).collect();
        let reader = self.role(role);
        let room = CHECKOUT_BYTES_LIMIT / job_type.reads.len();
        for (name, query) in &job_type.reads {
            let query = Query { text: query, limit: job_type.read_time_limit, room };
            let found = reader.read(&query, &keys, load).await;
            let all_good = found.failed.is_empty() && found.left_out.is_empty();
            for problem in problems.iter().filter(|_| !all_good) {
                if let Some(message) = found.failed.get(key_of(problem)) {
                    let message = format!("related read {name} (as role {role}): {message}");
                    related.failures.entry(problem.problem_id).or_insert(message);
                } else if found.left_out.contains(key_of(problem)) {
                    related.left_out.insert(problem.problem_id);
                }
            }
            keys.retain(|key| !found.failed.contains_key(key) && !found.left_out.contains(key));
            related.reads.push(v1::RelatedRead { name: name.clone(), rows: found.rows });
        }
        related
    }
}

fn key_of(problem: &v1::Problem) -> &str {
    problem.key_text().expect("it was read as text")
}

/// One read of a job type.
struct Query<'a> {
    text: &'a str,
    limit: Duration,
    /// Bytes that its rows may have together.
    room: usize,
}

/// What one read gave.
#[derive(Default)]
struct Found<'a> {
    rows: Vec<v1::RelatedRow>,
    /// Keys for which it failed, with the message.
    failed: HashMap<&'a str, String>,
    /// Keys whose rows are too many beside those of others.
    left_out: HashSet<&'a str>,
}

impl Role {
    /// One read; when it fails for some keys, only those fail: halves, until the failing key is alone. The same when it
    /// takes too long or brings too much, but only so often: one such key is found, and a database that is slow for all is not
    /// asked a thousand times. The first key is never left out, so that whatever comes back gets its turn.
    async fn read<'a>(&self, query: &Query<'_>, keys: &[&'a str], load: &Load) -> Found<'a> {
        let mut found = Found::default();
        let mut room = query.room;
        let mut left = if keys.is_empty() { Vec::new() } else { vec![keys] };
        let mut tries_left = TRIES_PER_HALVING * usize::BITS.saturating_sub(keys.len().leading_zeros());
        while let Some(keys) = left.pop() {
            match self.try_read(query, keys, room).await {
                Ok(rows) => {
                    let bytes = rows.iter().map(bytes_of).sum();
                    room = room.saturating_sub(bytes);
                    load.grow(bytes);
                    found.rows.extend(rows);
                }
                Err(ReadError::Query(_) | ReadError::LongRow(_)) if keys.len() > 1 => left.extend(halves(keys)),
                Err(ReadError::Time(_) | ReadError::TooMuch(_)) if keys.len() > 1 && tries_left > 0 => {
                    tries_left -= 1;
                    left.extend(halves(keys));
                }
                Err(ReadError::TooMuch(_)) if keys.len() > 1 || room < query.room => found.left_out.extend(keys),
                Err(error) => {
                    let message = format!("{error:#}");
                    found.failed.extend(keys.iter().map(|&key| (key, message.clone())));
                }
            }
        }
        found
    }

    async fn try_read(&self, query: &Query<'_>, keys: &[&str], room: usize) -> Result<Vec<v1::RelatedRow>, ReadError> {
        let mut tries = 0_u32;
        loop {
            let turn = self.turns.acquire().await.expect("it is never closed");
            let outcome = run(self, query, keys, room).await;
            drop(turn);
            match outcome {
                // Nobody's problem pays for a database that is away: the caller stops when its agent is gone.
                Err(ReadError::Passing(error)) => {
                    tries += 1;
                    warn!(error = format!("{error:#}"), tries, "a related read did not run: trying again");
                    tokio::time::sleep(PAUSE).await;
                }
                outcome => return outcome,
            }
        }
    }
}

/// About what a row takes of memory.
fn bytes_of(row: &v1::RelatedRow) -> usize {
    size_of::<v1::RelatedRow>() + row.row.len() + row.key.as_ref().map_or(0, String::len)
}

/// The second half first, since the last is taken first.
fn halves<'k, 's>(keys: &'k [&'s str]) -> [&'k [&'s str]; 2] {
    let (first, second) = keys.split_at(keys.len() / 2);
    [second, first]
}

/// Rows are dropped as they come where there is no room for them.
async fn run(role: &Role, query: &Query<'_>, keys: &[&str], room: usize) -> Result<Vec<v1::RelatedRow>, ReadError> {
    let mut client = role.pool.get().await.map_err(|error| match error {
        PoolError::Backend(error) => classify(error),
        other => ReadError::Passing(other.into()),
    })?;
    let cancel = client.cancel_token();
    let reading = async {
        let transaction = client.build_transaction().read_only(true).start().await.map_err(classify)?;
        // One statement, whose rows come as JSON; the text cannot end the one it stands in.
        let text = format!(
            "select q.key::text, case when octet_length(j.row) <= {ROW_BYTES_LIMIT} then j.row end, octet_length(j.row)
            from (\n{}\n) q cross join lateral (select to_jsonb(q)::text as row offset 0) j",
            query.text
        );
        let statement = transaction.prepare_cached(&text).await.map_err(classify)?;
        let mut coming = pin!(transaction.query_raw(&statement, [&keys]).await.map_err(classify)?);
        let (mut rows, mut bytes, mut longest) = (Vec::new(), 0, None);
        while let Some(row) = coming.try_next().await.map_err(classify)? {
            let Some(json) = row.try_get::<_, Option<&str>>(1).map_err(classify)? else {
                longest = longest.max(row.try_get::<_, Option<i32>>(2).map_err(classify)?);
                continue;
            };
            let key = row.try_get(0).map_err(classify)?;
            let row = v1::RelatedRow { key, row: Bytes::copy_from_slice(json.as_bytes()) };
            bytes += bytes_of(&row);
            if bytes > room {
                return Err(ReadError::TooMuch(query.room));
            }
            rows.push(row);
        }
        transaction.rollback().await.map_err(classify)?;
        longest.map_or(Ok(rows), |bytes| Err(ReadError::LongRow(bytes)))
    };
    let outcome = tokio::time::timeout(query.limit, reading).await.unwrap_or(Err(ReadError::Time(query.limit)));
    if let Err(ReadError::Time(_) | ReadError::TooMuch(_)) = outcome {
        role.login.cancel(&cancel).await;
        // It may still be at work: nobody else gets this connection.
        drop(deadpool_postgres::Object::take(client));
    }
    outcome
}

fn classify(error: tokio_postgres::Error) -> ReadError {
    match error.as_db_error() {
        // It takes more of the disk than its role may have.
        Some(db) if *db.code() == SqlState::CONFIGURATION_LIMIT_EXCEEDED => ReadError::Query(db.message().to_owned()),
        // Connections, resources, operators: not the query's fault.
        Some(db) if matches!(&db.code().code()[..2], "08" | "53" | "57" | "58" | "XX" | "40") => {
            ReadError::Passing(error.into())
        }
        Some(db) => ReadError::Query(db.message().to_owned()),
        // Not reached, or lost on the way.
        None if error.is_closed() || std::error::Error::source(&error).is_some_and(|s| s.is::<std::io::Error>()) => {
            ReadError::Passing(error.into())
        }
        None => ReadError::Query(format!("{:#}", anyhow::Error::from(error))),
    }
}
