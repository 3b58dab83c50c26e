//! Related reads: a job type's queries, each run once per checkout with all its keys.
//!
//! They run on connections of the job type's own login role, in a read-only transaction that is rolled back, and are
//! cancelled from outside at their time limit: nothing in their text can lift that.

use bytes::Bytes;
use deadpool_postgres::{Pool, PoolError};
use pcfarm_proto::v1;
use pcfarm_sql::job_types::JobType;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;
use tokio_postgres::config::Host;
use tokio_postgres::{Config, NoTls};
use tracing::warn;

/// Connections per role: reads of this many checkouts at once.
const CONNECTIONS_PER_ROLE: usize = 4;

/// Between tries when it is not the query's fault.
const PAUSE: Duration = Duration::from_millis(500);

/// A row must fit a message, with room for others.
const ROW_BYTES_LIMIT: usize = pcfarm_proto::MESSAGE_BYTES_LIMIT / 2;

/// Each slow key among n takes log2(n) timeouts to find: enough for two of them.
const TIMEOUTS_PER_HALVING: u32 = 2;

/// What the reads of one checkout gave.
#[derive(Debug, Default)]
pub struct Related {
    pub reads: Vec<v1::RelatedRead>,
    /// Problems whose reads failed, by problem id, with the message.
    pub failures: HashMap<i64, String>,
}

/// The password of a role, if one is known: from the password file.
pub type Passwords = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Runs related reads.
pub struct Reads {
    server: Config,
    passwords: Passwords,
    pools: Mutex<HashMap<String, Pool>>,
}

#[derive(Debug, thiserror::Error)]
enum ReadError {
    /// The query's, or its data's.
    #[error("{0}")]
    Query(String),
    #[error("it took longer than its time limit of {} s", .0.as_secs_f64())]
    Time(Duration),
    /// Anything else may pass.
    #[error(transparent)]
    Passing(#[from] anyhow::Error),
}

impl Reads {
    /// Reads go to the server's own database, as other roles.
    pub fn new(server: Config, passwords: Passwords) -> Reads {
        Reads { server, passwords, pools: Mutex::default() }
    }

    fn pool(&self, role: &str) -> Pool {
        let mut pools = self.pools.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        pools
            .entry(role.to_owned())
            .or_insert_with(|| {
                let config = self.login(role);
                pcfarm_sql::pool::pool_for_queries(config, CONNECTIONS_PER_ROLE, "pcfarm related reads")
            })
            .clone()
    }

    /// A connection of that role's.
    pub async fn connection(&self, role: &str) -> Result<deadpool_postgres::Object, PoolError> {
        self.pool(role).get().await
    }

    /// The same database as another role; the server's own password is not for it.
    fn login(&self, role: &str) -> Config {
        let mut config = Config::new();
        for (n, host) in self.server.get_hosts().iter().enumerate() {
            match host {
                Host::Tcp(name) => config.host(name),
                Host::Unix(directory) => config.host_path(directory),
            };
            config.port(self.server.get_ports().get(n).or(self.server.get_ports().first()).copied().unwrap_or(5432));
        }
        for address in self.server.get_hostaddrs() {
            config.hostaddr(*address);
        }
        // Their own time limit is kept from outside.
        config.options("-c statement_timeout=0");
        config.user(role).target_session_attrs(self.server.get_target_session_attrs());
        if let Some(database) = self.server.get_dbname() {
            config.dbname(database);
        }
        if let Some(password) = (self.passwords)(role) {
            config.password(password);
        }
        config
    }

    /// Runs all reads of the job type for these problems.
    pub async fn related(&self, job_type: &JobType, problems: &[v1::Problem]) -> Related {
        let mut related = Related::default();
        if job_type.reads.is_empty() {
            return related;
        }
        let role = job_type.read_role.as_deref().unwrap_or_default();
        let keys: Vec<&str> = problems.iter().map(|p| p.key.as_str()).collect();
        let pool = self.pool(role);
        for (name, query) in &job_type.reads {
            let mut read = v1::RelatedRead { name: name.clone(), rows: Vec::new() };
            let mut failed: HashMap<String, String> = HashMap::new();
            self.read(&pool, query, job_type.read_time_limit, &keys, &mut read.rows, &mut failed).await;
            for problem in problems {
                if let Some(message) = failed.get(&problem.key) {
                    let message = format!("related read {name} (as role {role}): {message}");
                    related.failures.entry(problem.problem_id).or_insert(message);
                }
            }
            related.reads.push(read);
        }
        related
    }

    /// One read; when it fails for some keys, only those fail: halves, until the failing key is alone. The same when it
    /// takes too long, but only so often: one slow key is found, and a database that is slow for all is not asked a
    /// thousand times.
    async fn read(
        &self,
        pool: &Pool,
        query: &str,
        limit: Duration,
        keys: &[&str],
        rows: &mut Vec<v1::RelatedRow>,
        failed: &mut HashMap<String, String>,
    ) {
        let mut left = vec![keys];
        let mut timeouts_left = TIMEOUTS_PER_HALVING * usize::BITS.saturating_sub(keys.len().leading_zeros());
        while let Some(keys) = left.pop() {
            match self.try_read(pool, query, limit, keys).await {
                Ok(found) => rows.extend(found),
                Err(ReadError::Query(_)) if keys.len() > 1 => left.extend(halves(keys)),
                Err(ReadError::Time(_)) if keys.len() > 1 && timeouts_left > 0 => {
                    timeouts_left -= 1;
                    left.extend(halves(keys));
                }
                Err(error) => {
                    let message = format!("{error:#}");
                    failed.extend(keys.iter().map(|&key| (key.to_owned(), message.clone())));
                }
            }
        }
    }

    async fn try_read(
        &self,
        pool: &Pool,
        query: &str,
        limit: Duration,
        keys: &[&str],
    ) -> Result<Vec<v1::RelatedRow>, ReadError> {
        let mut tries = 0_u32;
        loop {
            match run(pool, query, limit, keys).await {
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

/// The second half first, since the last is taken first.
fn halves<'a>(keys: &'a [&'a str]) -> [&'a [&'a str]; 2] {
    let (first, second) = keys.split_at(keys.len() / 2);
    [second, first]
}

async fn run(pool: &Pool, query: &str, limit: Duration, keys: &[&str]) -> Result<Vec<v1::RelatedRow>, ReadError> {
    let mut client = pool.get().await.map_err(|error| match error {
        PoolError::Backend(error) => classify(error),
        other => ReadError::Passing(other.into()),
    })?;
    let cancel = client.cancel_token();
    let reading = async {
        let transaction = client.build_transaction().read_only(true).start().await?;
        // One statement, whose rows come as JSON; the text cannot end the one it stands in.
        let text = format!("select q.key::text, to_jsonb(q)::text from (\n{query}\n) q");
        let statement = transaction.prepare_cached(&text).await?;
        let rows = transaction.query(&statement, &[&keys]).await?;
        transaction.rollback().await?;
        rows.iter()
            .map(|row| {
                let json: &str = row.try_get(1)?;
                Ok(v1::RelatedRow { key: row.try_get(0)?, row: Bytes::copy_from_slice(json.as_bytes()) })
            })
            .collect::<Result<Vec<_>, tokio_postgres::Error>>()
    };
    match tokio::time::timeout(limit, reading).await {
        Ok(Ok(rows)) => match rows.iter().map(|row| row.row.len()).max() {
            Some(longest) if longest > ROW_BYTES_LIMIT => Err(ReadError::Query(format!(
                "it returned a row of {longest} bytes; at most {ROW_BYTES_LIMIT} are sent"
            ))),
            _ => Ok(rows),
        },
        Ok(Err(error)) => Err(classify(error)),
        Err(_) => {
            drop(tokio::time::timeout(Duration::from_secs(5), cancel.cancel_query(NoTls)).await);
            // Whatever state it is in, nobody else gets this connection.
            drop(deadpool_postgres::Object::take(client));
            Err(ReadError::Time(limit))
        }
    }
}

fn classify(error: tokio_postgres::Error) -> ReadError {
    match error.as_db_error() {
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
