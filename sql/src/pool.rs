//! The pool of connections, with a deadline on everything that can wait, and the check of the server behind it.
//! The settings of its sessions are in [`crate::connect::session`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use deadpool_postgres::{
    ClientWrapper, Connect, Hook, HookError, Manager, ManagerConfig, Object, Pool, PoolBuilder, PoolError, QueueMode,
    RecyclingMethod, Runtime,
};
use futures_util::future::BoxFuture;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_postgres::config::LoadBalanceHosts;
use tokio_postgres::{Client, Config};

pub use crate::connect::session::BY_INDEX;
use crate::connect::session::Session;
use crate::connect::{HOST_TIMEOUT, Target};
use crate::upkeep::recognise_database;

/// Longer, and the callers wait for a database that does not keep up: better to refuse and be asked again.
const WAIT_TIMEOUT: Duration = Duration::from_secs(5);
const CREATE_TIMEOUT: Duration = Duration::from_secs(10);
const RECYCLE_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that vanished without a word is noticed within about half a minute, from both ends.
const SILENCE: Duration = Duration::from_secs(30);

/// For statements that would be planned anew each time, if what PostgreSQL expects of them depends on their parameters.
const PLANNED_ONCE: &str = "set plan_cache_mode = force_generic_plan";

/// Run on a connection before it is handed out again. The first statement fails, and so discards the connection, when a
/// cancelled caller left a transaction open: only then is now() older than the statement. `reset role` returns to the
/// default role of the login or the database, which the statement before it drops and `reset all` leaves out. Deallocating
/// is missing, as the statement cache lives on.
const RECYCLE: &str = "select 1 / (pg_catalog.now() operator(pg_catalog.=) pg_catalog.statement_timestamp())::int4; \
     close all; set session authorization default; reset role; reset all; unlisten *; \
     select pg_catalog.pg_advisory_unlock_all(); discard temp; discard sequences";

/// The target with our session settings: for connections beside the pool.
pub fn session_config(target: impl Into<Target>, application_name: &str) -> Target {
    with_session(target.into(), application_name, false)
}

/// The target with settings that the public SQL functions need in a user's own session. It has no others, so that the user's
/// query means the same as in psql.
pub fn session_of_user(target: Target) -> Target {
    let session = Session::of_user(target.config().get_options().unwrap_or(""));
    target.with_session(session)
}

fn with_session(target: Target, application_name: &str, by_index: bool) -> Target {
    let session = Session::new(target.config().get_options().unwrap_or(""), by_index);
    target.with(|config| tune(config, application_name)).with_session(session)
}

fn tune(config: &mut Config, application_name: &str) {
    if config.get_application_name().is_none() {
        config.application_name(application_name);
    }
    // tokio-postgres's own default of two hours is longer than any night's work can wait.
    if config.get_keepalives_idle() >= Duration::from_secs(7200) {
        config.keepalives_idle(Duration::from_secs(10));
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_interval(Duration::from_secs(5));
    }
    if config.get_keepalives_retries().is_none() {
        config.keepalives_retries(4);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(SILENCE);
    }
    if config.get_hosts().len().max(config.get_hostaddrs().len()) > 1 {
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(HOST_TIMEOUT);
        }
        // Not always the same first: it may be a primary that was, which is refused only once it has answered.
        config.load_balance_hosts(LoadBalanceHosts::Random);
    }
}

/// For our own statements. Connects lazily: building it never fails for want of a server. Nothing is sent on a connection
/// before the PostgreSQL at its other end was recognised.
pub fn pool(target: impl Into<Target>, size: usize, application_name: &str) -> Pool {
    pool_with_epoch(target, size, application_name).0
}

/// A pool like that of [`pool`], and a number for callers that remember results: they compare it before they use them.
pub fn pool_with_epoch(target: impl Into<Target>, size: usize, application_name: &str) -> (Pool, Epoch) {
    let target = with_session(target.into(), application_name, true);
    let late = Late::default();
    let recogniser = Recogniser { late: late.clone(), ..Recogniser::default() };
    let epoch = recogniser.epoch.clone();
    let recognise = Hook::async_fn(move |client: &mut ClientWrapper, _| {
        let recogniser = recogniser.clone();
        Box::pin(async move { recogniser.look(client).await })
    });
    (builder(target, late, size).post_create(recognise).build().expect(RUNTIME_IS_SET), epoch)
}

/// Grows when a pool's connections come to lead to another database, before anything is asked of that: what was read from
/// the one before need not be true of it, and ids may have been given anew.
#[derive(Clone, Debug, Default)]
pub struct Epoch(Arc<AtomicU64>);

impl Epoch {
    pub fn number(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// For an administrator's queries, which harm nothing on a standby.
pub fn pool_for_queries(target: impl Into<Target>, size: usize, application_name: &str) -> Pool {
    let target = session_config(target, application_name);
    builder(target, Late::default(), size).build().expect(RUNTIME_IS_SET)
}

const RUNTIME_IS_SET: &str = "a runtime is set, which is all that timeouts need";

fn builder(target: Target, late: Late, size: usize) -> PoolBuilder {
    let recycling_method = RecyclingMethod::Custom(RECYCLE.to_owned());
    let connector = PoolConnector { target: target.clone(), late: late.clone() };
    let manager = Manager::from_connect(target.config().clone(), connector, ManagerConfig { recycling_method });
    let settle_again = Hook::async_fn(move |client: &mut ClientWrapper, _| {
        let late = late.clone();
        Box::pin(async move { late.send(client).await.map_err(HookError::Backend) })
    });
    Pool::builder(manager)
        .max_size(size.max(1))
        // In turn each of them would have been used so long ago that its process has nothing left in the processor's caches.
        .queue_mode(QueueMode::Lifo)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(WAIT_TIMEOUT))
        // A longer `connect_timeout` of several hosts leaves time for the last of them.
        .create_timeout(Some(CREATE_TIMEOUT.max(target.limit_of_all_hosts())))
        .recycle_timeout(Some(RECYCLE_TIMEOUT))
        .post_recycle(settle_again)
}

/// Statement of [`Session::settle`], once a connection needed it. Code that resets a connection's settings sends it again.
#[derive(Clone, Debug, Default)]
struct Late(Arc<Mutex<Option<String>>>);

impl Late {
    fn keep(&self, statement: Option<String>) {
        if statement.is_some() {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = statement;
        }
    }

    async fn send(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        let statement = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match statement {
            Some(statement) => client.batch_execute(&statement).await,
            None => Ok(()),
        }
    }
}

struct PoolConnector {
    target: Target,
    late: Late,
}

impl Connect for PoolConnector {
    #[expect(
        clippy::disallowed_methods,
        reason = "the pool keeps the task's handle, and aborts it with its connection"
    )]
    fn connect(&self, _: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), tokio_postgres::Error>> {
        Box::pin(async move {
            let (client, connection) = self.target.open().await?;
            let task = tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::warn!(error = %error, "a connection to the database ended");
                }
            });
            self.late.keep(self.target.settle(&client).await?);
            Ok((client, task))
        })
    }
}

/// Which PostgreSQL a pool's connections lead to. Another one, or the same after a promotion, has not got everything that
/// was handed out: its checkouts are revoked before anything else is asked of it.
#[derive(Clone, Debug, Default)]
struct Recogniser {
    /// System identifier and timeline.
    known: Arc<Mutex<Option<(i64, i64)>>>,
    epoch: Epoch,
    late: Late,
}

impl Recogniser {
    async fn look(&self, client: &ClientWrapper) -> Result<(), HookError> {
        // The pool has a limit for connecting, but none for this.
        let facts = tokio::time::timeout(CREATE_TIMEOUT, facts(client));
        let facts = facts.await.map_err(|_| HookError::message("the database does not answer"))?;
        let (identifier, timeline, is_ours) = facts.map_err(HookError::Backend)?;
        let Some(timeline) = timeline else {
            return Err(HookError::message("the database server is a standby in recovery"));
        };
        if *self.known() == Some((identifier, timeline)) {
            return Ok(());
        }
        self.must_not_be_older(identifier, timeline)?;
        if is_ours {
            // However many checkouts a restored copy brings.
            client.batch_execute("set statement_timeout = 0").await.map_err(HookError::Backend)?;
            let revoked = recognise_database(client, identifier, timeline).await.map_err(HookError::Backend)?;
            client.batch_execute("reset statement_timeout").await.map_err(HookError::Backend)?;
            self.late.send(client).await.map_err(HookError::Backend)?;
            if revoked > 0 {
                tracing::warn!(
                    revoked,
                    timeline,
                    "this database is a restored copy or a promoted standby: checkouts given before were revoked"
                );
            }
        }
        // Another connection may have come to a newer one meanwhile.
        self.must_not_be_older(identifier, timeline)?;
        if self.known().replace((identifier, timeline)).is_some_and(|known| known != (identifier, timeline)) {
            self.epoch.0.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    /// The primary that was: what it takes is lost.
    fn must_not_be_older(&self, identifier: i64, timeline: i64) -> Result<(), HookError> {
        match *self.known() {
            Some((known, newer)) if known == identifier && newer > timeline => {
                Err(HookError::message("the database server is one whose standby has been promoted"))
            }
            _ => Ok(()),
        }
    }

    fn known(&self) -> MutexGuard<'_, Option<(i64, i64)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// System identifier, timeline unless it is in recovery, and whether our schema is there.
async fn facts(client: &ClientWrapper) -> Result<(i64, Option<i64>, bool), tokio_postgres::Error> {
    let row = client.query_one(include_str!("server_facts.sql"), &[]).await?;
    let is_ours = client.query_one(IS_OURS, &[]).await?.try_get(0)?;
    Ok((row.try_get("system_identifier")?, row.try_get("timeline")?, is_ours))
}

/// Has it our schema? A test's pool may come before it.
const IS_OURS: &str = "select to_regprocedure('pcfarm.recognise_database(bigint, bigint)') is not null";

/// A connection of the pool that one task keeps, so that it does not pay for a reset at each use. Only for what runs our
/// own statements alone: nobody cleans up after an administrator's SQL.
#[derive(Debug)]
pub struct Kept {
    pool: Pool,
    client: Option<Object>,
    plans_once: bool,
}

impl Kept {
    pub fn new(pool: Pool) -> Kept {
        Kept { pool, client: None, plans_once: false }
    }

    /// For statements whose plan is the same whatever their parameters are.
    pub fn planning_once(pool: Pool) -> Kept {
        Kept { plans_once: true, ..Kept::new(pool) }
    }

    /// The connection; another one after [`Kept::let_go`] or when it is closed.
    pub async fn client(&mut self) -> Result<&Object, PoolError> {
        self.client = match self.client.take().filter(|client| !client.is_closed()) {
            Some(client) => Some(client),
            None => Some(self.new_client().await?),
        };
        Ok(self.client.as_ref().expect("just put there"))
    }

    async fn new_client(&self) -> Result<Object, PoolError> {
        let client = self.pool.get().await?;
        if self.plans_once {
            client.batch_execute(PLANNED_ONCE).await.map_err(PoolError::Backend)?;
        }
        Ok(client)
    }

    /// The connection itself, to be given back by [`Kept::put`]: who does not has left something on it.
    pub async fn take(&mut self) -> Result<Object, PoolError> {
        self.client().await?;
        Ok(self.client.take().expect("just put there"))
    }

    pub fn put(&mut self, client: Object) {
        self.client = Some(client);
    }

    /// After an error: the pool looks at it before anybody has it again.
    pub fn let_go(&mut self) {
        self.client = None;
    }

    /// The same, when something may still be under way on it: nobody has it again.
    pub fn close(&mut self) {
        drop(self.client.take().map(Object::take));
    }
}

/// Connections that submissions, hand-outs and acceptances share, which are short statements of our own. Nobody pays for a
/// reset at each use, and whoever comes has the one that was used last: a problem's submission, hand-out and acceptance
/// follow each other, and where one process of PostgreSQL serves them all, its memory is in the processor's caches.
///
/// So many are kept as its users take at the same time. Who finds none waits for one that comes back or one of the pool.
#[derive(Clone, Debug)]
pub struct Lines {
    pool: Pool,
    most: usize,
    state: Arc<Mutex<LinesState>>,
    /// One has come back.
    back: Arc<Notify>,
}

#[derive(Debug, Default)]
struct LinesState {
    idle: Vec<Object>,
    /// When one was taken or put back last.
    used_at: Option<Instant>,
}

impl Lines {
    pub fn new(pool: Pool, most: usize) -> Lines {
        Lines { pool, most, state: Arc::default(), back: Arc::default() }
    }

    /// The one that was put back last. Who does not put it back has failed on it: then the pool looks at it before anybody
    /// has it again.
    pub async fn take(&self) -> Result<Object, PoolError> {
        loop {
            while let Some(client) = self.used().idle.pop() {
                if !client.is_closed() {
                    return Ok(client);
                }
            }
            tokio::select! {
                client = self.pool.get() => {
                    let client = client?;
                    client.batch_execute(PLANNED_ONCE).await.map_err(PoolError::Backend)?;
                    return Ok(client);
                }
                () = self.back.notified() => {}
            }
        }
    }

    pub fn put(&self, client: Object) {
        let mut state = self.used();
        if state.idle.len() < self.most {
            state.idle.push(client);
            self.back.notify_one();
        }
    }

    /// How long none was taken or put back: a submission is followed by its hand-out, and that by results, and what can wait
    /// would be in their way.
    pub fn quiet_for(&self) -> Duration {
        self.state().used_at.map_or(Duration::MAX, |used_at| used_at.elapsed())
    }

    fn used(&self) -> MutexGuard<'_, LinesState> {
        let mut state = self.state();
        state.used_at = Some(Instant::now());
        state
    }

    fn state(&self) -> MutexGuard<'_, LinesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const OLDEST: i32 = 15;
const NEWEST: i32 = 18;

/// What the server is. `system_identifier` and `timeline` change when a copy was restored or a standby promoted: checkouts
/// given before are then not to be trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFacts {
    pub version: String,
    pub version_num: i32,
    pub system_identifier: i64,
    pub timeline: i64,
    pub max_connections: i32,
    /// For the log and the operator: what works, but not as promised.
    pub warnings: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("cannot ask the database server what it is")]
    Query(#[source] tokio_postgres::Error),
    #[error("PostgreSQL {version} is too old: PC Farm needs version {OLDEST} to {NEWEST}")]
    TooOld { version: String },
    #[error(
        "the database server is a standby in recovery: name the primary, or all hosts with target_session_attrs=primary"
    )]
    InRecovery,
    #[error(
        "the database's encoding is {encoding}: create one with `createdb --encoding=UTF8 --template=template0 NAME`"
    )]
    Encoding { encoding: String },
    #[error(
        "{name} is {value} in new sessions, with which PC Farm's functions do something else. A superuser can change it: \
         `alter database … reset {name}`, or `alter role … reset {name}`"
    )]
    Unusual { name: &'static str, value: String },
}

/// Asks once, at start, on the kind of connection that will be used.
pub async fn check_server(client: &Client) -> Result<ServerFacts, ServerError> {
    let statement = include_str!("server_facts.sql");
    let row = client.query_one(statement, &[]).await.map_err(ServerError::Query)?;
    let observed = Observed {
        version: row.try_get("version").map_err(ServerError::Query)?,
        version_num: row.try_get("version_num").map_err(ServerError::Query)?,
        in_recovery: row.try_get("in_recovery").map_err(ServerError::Query)?,
        encoding: row.try_get("server_encoding").map_err(ServerError::Query)?,
        fsync: row.try_get("fsync").map_err(ServerError::Query)?,
        full_page_writes: row.try_get("full_page_writes").map_err(ServerError::Query)?,
        synchronous_commit: row.try_get("synchronous_commit").map_err(ServerError::Query)?,
        max_connections: row.try_get("max_connections").map_err(ServerError::Query)?,
        session_replication_role: row.try_get("session_replication_role").map_err(ServerError::Query)?,
        variable_conflict: row.try_get("variable_conflict").map_err(ServerError::Query)?,
        system_identifier: row.try_get("system_identifier").map_err(ServerError::Query)?,
        timeline: row.try_get("timeline").map_err(ServerError::Query)?,
    };
    judge(observed)
}

#[derive(Debug, Clone)]
struct Observed {
    version: String,
    version_num: i32,
    in_recovery: bool,
    encoding: String,
    fsync: bool,
    full_page_writes: bool,
    synchronous_commit: String,
    max_connections: i32,
    session_replication_role: String,
    variable_conflict: String,
    system_identifier: i64,
    timeline: Option<i64>,
}

fn judge(observed: Observed) -> Result<ServerFacts, ServerError> {
    let major = observed.version_num / 10_000;
    if major < OLDEST {
        return Err(ServerError::TooOld { version: observed.version });
    }
    let Some(timeline) = observed.timeline.filter(|_| !observed.in_recovery) else {
        return Err(ServerError::InRecovery);
    };
    if observed.encoding != "UTF8" {
        return Err(ServerError::Encoding { encoding: observed.encoding });
    }
    for (name, value, usual) in [
        ("session_replication_role", observed.session_replication_role, "origin"),
        ("plpgsql.variable_conflict", observed.variable_conflict, "error"),
    ] {
        if value != usual {
            return Err(ServerError::Unusual { name, value });
        }
    }
    let mut warnings = Vec::new();
    if major > NEWEST {
        warnings.push(format!(
            "PostgreSQL {} is newer than PC Farm was tested with ({OLDEST} to {NEWEST})",
            observed.version
        ));
    }
    if !observed.fsync {
        warnings.push(
            "fsync is off: a crash of the database server's machine can lose and corrupt everything; set fsync = on"
                .to_owned(),
        );
    }
    if !observed.full_page_writes {
        warnings.push(
            "full_page_writes is off: a power failure can corrupt the database unless its file system writes whole pages; \
             set full_page_writes = on"
                .to_owned(),
        );
    }
    if matches!(observed.synchronous_commit.as_str(), "off" | "local") {
        warnings.push(format!(
            "synchronous_commit is {} on this connection: what is acknowledged may be lost in a crash; \
             set synchronous_commit = on",
            observed.synchronous_commit
        ));
    }
    Ok(ServerFacts {
        version: observed.version,
        version_num: observed.version_num,
        system_identifier: observed.system_identifier,
        timeline,
        max_connections: observed.max_connections,
        warnings,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Observed {
        Observed {
            version: "17.2".to_owned(),
            version_num: 170_002,
            in_recovery: false,
            encoding: "UTF8".to_owned(),
            fsync: true,
            full_page_writes: true,
            synchronous_commit: "on".to_owned(),
            max_connections: 100,
            session_replication_role: "origin".to_owned(),
            variable_conflict: "error".to_owned(),
            system_identifier: 7,
            timeline: Some(1),
        }
    }

    #[test]
    fn a_server_is_taken_warned_about_or_refused() {
        type Change = fn(&mut Observed);
        let table: &[(Change, &str)] = &[
            (|_| (), ""),
            (|o| o.version_num = 140_009, "too old"),
            (|o| o.version_num = 190_000, "newer"),
            (|o| o.fsync = false, "fsync is off"),
            (|o| o.full_page_writes = false, "full_page_writes is off"),
            (|o| o.synchronous_commit = "off".to_owned(), "synchronous_commit is off"),
            (|o| o.synchronous_commit = "remote_apply".to_owned(), ""),
            (|o| o.in_recovery = true, "standby"),
            (|o| o.encoding = "LATIN1".to_owned(), "LATIN1"),
            (|o| o.session_replication_role = "replica".to_owned(), "reset session_replication_role"),
            (|o| o.variable_conflict = "use_column".to_owned(), "reset plpgsql.variable_conflict"),
        ];
        for (change, expected) in table {
            let mut observed = good();
            change(&mut observed);
            let said = match judge(observed) {
                Ok(facts) => facts.warnings.join("\n"),
                Err(error) => error.to_string(),
            };
            assert!(said.contains(expected) && said.is_empty() == expected.is_empty(), "{expected}: {said}");
        }
    }

    #[tokio::test]
    async fn sessions_have_our_settings_and_keep_them() {
        let database = crate::testing::database().await;
        let mut config = database.config();
        config.options("-c statement_timeout=7s -c synchronous_commit=off");
        let pool = pool(config, 1, "pool-test");
        let client = pool.get().await.expect("connected");
        let show = async |name: &str| -> String {
            let statement = "select pg_catalog.current_setting($1)";
            client.query_one(statement, &[&name]).await.expect("setting").get(0)
        };
        for round in ["fresh", "after RESET ALL"] {
            assert_eq!(show("statement_timeout").await, "7s", "{round}");
            assert_eq!(show("synchronous_commit").await, "on", "{round}");
            assert_eq!(show("idle_in_transaction_session_timeout").await, "10s", "{round}");
            assert_eq!(show("search_path").await, "pg_catalog,pg_temp", "{round}");
            assert_eq!(show("TimeZone").await, "UTC", "{round}");
            assert_eq!(show("default_transaction_isolation").await, "read committed", "{round}");
            assert_eq!(show("application_name").await, "pool-test", "{round}");
            client
                .batch_execute(
                    "set synchronous_commit = off; set statement_timeout = 0; set search_path = public; reset all",
                )
                .await
                .expect("reset");
        }
        let facts = check_server(&client).await.expect("a good server");
        assert!(facts.timeline >= 1 && facts.system_identifier != 0, "{facts:?}");
    }

    #[tokio::test]
    async fn a_connection_left_in_a_transaction_is_not_handed_out_again() {
        let database = crate::testing::database().await;
        let pool = pool(database.config(), 1, "pool-test");
        let backend = async |statements: &str| -> i32 {
            let client = pool.get().await.expect("connected");
            let pid = client.query_one("select pg_backend_pid()", &[]).await.expect("pid");
            client.batch_execute(statements).await.expect("run");
            pid.get(0)
        };
        let first = backend("set application_name = 'x'; create temp table t (); select pg_advisory_lock(1)").await;
        let second = backend("do $$ begin assert to_regclass('pg_temp.t') is null; end $$; begin").await;
        assert_eq!(first, second, "a clean connection is kept");
        let third = backend("begin; savepoint a").await;
        assert_ne!(second, third, "an open transaction is discarded");
        let client = pool.get().await.expect("connected");
        let locks = "select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())";
        let held: i64 = client.query_one(locks, &[]).await.expect("locks").get(0);
        assert_eq!(held, 0);
    }
}
