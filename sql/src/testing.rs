//! For the tests of every crate: a database of their own, cloned from a template that has the migrations, in
//! milliseconds.
//!
//! The server is the one that `PCFARM_TEST_DATABASE_URL` names (as someone who may create databases), which
//! `pcfarm-test-cluster run -- COMMAND` sets; without it each test process starts a private, non-durable cluster that dies
//! with the process. Databases go when their `TestDatabase` is dropped; templates stay, named by their migrations.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio_postgres::config::Host;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config};

use crate::cluster::{Cluster, ClusterOptions};
use crate::connect::{ConnectionTask, connect};
use crate::migrate::{fingerprint, migrate};

pub const TEST_DATABASE_URL: &str = "PCFARM_TEST_DATABASE_URL";

/// "PC Farm template", for everyone who makes one on this server.
const TEMPLATE_LOCK: i64 = 0x5043_4661_726d_7465;
const BUSY_RETRIES: u32 = 100;

/// One database of its own, dropped with this.
#[derive(Debug)]
pub struct TestDatabase {
    pub name: String,
    config: Config,
    admin: Config,
    connections: Mutex<Vec<ConnectionTask>>,
}

impl TestDatabase {
    pub fn config(&self) -> Config {
        self.config.clone()
    }

    /// With these settings of its sessions, where the database's own are unusual.
    pub fn with_options(mut self, options: &str) -> TestDatabase {
        self.config.options(options);
        self
    }

    /// For programs that are started with `--database-url`.
    pub fn url(&self) -> String {
        url_of(&self.config)
    }

    /// A connection that lives as long as this does.
    pub async fn client(&self) -> Client {
        let (client, connection) = connect(&self.config).await.expect("the test database is there");
        self.connections.lock().expect("no test panics here").push(connection);
        client
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        if let Ok(connections) = self.connections.get_mut() {
            connections.clear();
        }
        let (admin, name) = (self.admin.clone(), self.name.clone());
        // A runtime of its own: the test's may be the very one that runs this drop.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let work = async {
                let (client, _connection) = connect(&admin).await.ok()?;
                let statement = format!("drop database if exists {name} with (force)");
                client.batch_execute(&statement).await.ok()
            };
            runtime.ok()?.block_on(async { tokio::time::timeout(Duration::from_secs(10), work).await.ok()? })
        });
        let _ = dropping.join(); // best effort: a test may have killed the server
    }
}

/// A migrated database, for this test alone.
pub async fn database() -> TestDatabase {
    database_on(server().await).await
}

/// An empty one, for tests of migrations.
pub async fn empty_database() -> TestDatabase {
    clone_of("template0", server().await).await
}

/// A migrated database on a given server, such as a whole cluster that the test will kill.
pub async fn database_on(admin: Config) -> TestDatabase {
    let template = template(&admin).await;
    clone_of(&template, admin).await
}

/// A whole private cluster, for tests that kill PostgreSQL. It dies with the process and is not durable in the sense of a
/// power failure; a killed PostgreSQL loses nothing.
pub async fn cluster_for_tests() -> Cluster {
    Cluster::start(test_cluster_options()).await.expect("a private cluster starts")
}

/// What `cluster_for_tests` starts, to be changed before.
pub fn test_cluster_options() -> ClusterOptions {
    ClusterOptions {
        durable: false,
        dies_with_process: true,
        start_timeout: Duration::from_secs(60),
        ..ClusterOptions::new(temporary_directory())
    }
}

/// The cluster's guard removes it. Root's must let PostgreSQL's account through.
fn temporary_directory() -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    tempfile::Builder::new()
        .prefix("pcfarm-test-")
        .permissions(fs::Permissions::from_mode(0o711))
        .tempdir()
        .expect("a temporary directory can be made")
        .keep()
}

/// `postgresql://` for a configuration, password included: for handing to a child process only.
pub fn url_of(config: &Config) -> String {
    let mut url = format!("postgresql://{}", percent_encoded(config.get_user().unwrap_or("").as_bytes()));
    if let Some(password) = config.get_password() {
        url = format!("{url}:{}", percent_encoded(password));
    }
    let ports = config.get_ports();
    let hosts: Vec<String> = config
        .get_hosts()
        .iter()
        .enumerate()
        .map(|(index, host)| {
            let port = ports.get(index).or(ports.first()).copied().unwrap_or(5432);
            let host = match host {
                Host::Tcp(name) if name.contains(':') => format!("[{name}]"),
                Host::Tcp(name) => percent_encoded(name.as_bytes()),
                Host::Unix(directory) => percent_encoded(directory.as_os_str().as_encoded_bytes()),
            };
            format!("{host}:{port}")
        })
        .collect();
    let database = percent_encoded(config.get_dbname().unwrap_or("").as_bytes());
    format!("{url}@{}/{database}", hosts.join(","))
}

fn percent_encoded(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => text.push(char::from(*byte)),
            other => text.push_str(&format!("%{other:02X}")),
        }
    }
    text
}

/// The administrator's configuration of the server that tests use.
pub async fn server() -> Config {
    if let Ok(url) = std::env::var(TEST_DATABASE_URL) {
        return crate::settings::DatabaseSettings::resolve(Some(&url))
            .expect("PCFARM_TEST_DATABASE_URL is a connection string")
            .target
            .config()
            .clone();
    }
    // Statics are not dropped: the cluster's guard notices the end of the process.
    static OWN: OnceCell<Cluster> = OnceCell::const_new();
    OWN.get_or_init(cluster_for_tests).await.config()
}

/// Names that no other test process on this server takes.
fn fresh_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let random = RandomState::new().build_hasher().finish();
    format!("pcfarm_test_{}_{}_{random:016x}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

async fn clone_of(template: &str, admin: Config) -> TestDatabase {
    let name = fresh_name();
    let (client, _connection) = connect(&admin).await.expect("the test server answers");
    let statement = format!("create database {name} template {template} encoding 'UTF8'");
    until_not_busy(&client, &statement).await;
    let mut config = admin.clone();
    config.dbname(&name);
    TestDatabase { name, config, admin, connections: Mutex::new(Vec::new()) }
}

/// Another session may still be leaving the database: PostgreSQL then refuses to copy or rename it.
async fn until_not_busy(client: &Client, statement: &str) {
    for attempt in 0.. {
        match client.batch_execute(statement).await {
            Ok(()) => return,
            Err(error) if error.code() == Some(&SqlState::OBJECT_IN_USE) && attempt < BUSY_RETRIES => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(error) => panic!("{statement}: {error:?}"),
        }
    }
}

/// Makes the template unless it is there. It gets its name only when it is finished, so that a process killed in the
/// middle leaves nothing that looks like one.
async fn template(admin: &Config) -> String {
    let name: String = format!("pcfarm_template_{}", fingerprint())
        .to_lowercase()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .take(50)
        .collect();
    let (client, _connection) = connect(admin).await.expect("the test server answers");
    let exists = async || {
        let statement = "select from pg_catalog.pg_database where datname = $1";
        client.query_opt(statement, &[&name]).await.expect("the catalogue answers").is_some()
    };
    if exists().await {
        return name;
    }
    client.execute("select pg_catalog.pg_advisory_lock($1)", &[&TEMPLATE_LOCK]).await.expect("the template's lock"); // goes with the connection
    if exists().await {
        return name;
    }
    let unfinished = format!("{name}_unfinished");
    let execute = async |statement: String| client.batch_execute(&statement).await.expect(&statement);
    execute(format!("drop database if exists {unfinished} with (force)")).await;
    execute(format!("create database {unfinished} template template0 encoding 'UTF8'")).await;
    let mut config = admin.clone();
    config.dbname(&unfinished);
    let (mut migrating, connection) = connect(&config).await.expect("the new template answers");
    migrate(&mut migrating).await.expect("the migrations run on an empty database");
    drop(migrating);
    connection.ended().await.expect("the connection ends well");
    until_not_busy(&client, &format!("alter database {unfinished} rename to {name}")).await;
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn databases_are_apart_and_go_with_their_handle() {
        let first = database().await;
        let (second, third) = tokio::join!(database(), database());
        assert!(first.name != second.name && second.name != third.name);
        let client = first.client().await;
        client.batch_execute("create table only_here ()").await.expect("created");
        let elsewhere = second.client().await;
        let row = elsewhere.query_one("select to_regclass('only_here') is null", &[]).await.expect("asked");
        assert!(row.get::<_, bool>(0));

        let settings = crate::settings::DatabaseSettings::resolve(Some(&first.url())).expect("a URL of ours");
        assert_eq!(settings.target.config().get_dbname(), Some(first.name.as_str()));
        settings.target.connect().await.expect("reached by URL");

        let gone = first.name.clone();
        drop(first);
        let left = "select from pg_database where datname = $1";
        assert!(elsewhere.query_opt(left, &[&gone]).await.expect("asked").is_none());
    }

    #[tokio::test]
    async fn notifications_arrive_and_an_untaken_flood_blocks_nothing() {
        let database = database().await;
        let (listener, mut connection) = connect(&database.config()).await.expect("connected");
        listener.batch_execute("listen bell").await.expect("listening");
        database.client().await.batch_execute("notify bell, 'one'").await.expect("notified");
        match connection.next().await {
            Some(tokio_postgres::AsyncMessage::Notification(bell)) => {
                assert_eq!(bell.payload(), "one")
            }
            other => panic!("{other:?}"),
        }
        let flood = "do $$ begin for i in 1..1000 loop perform pg_notify('bell', i::text); end loop; end $$";
        listener.batch_execute(flood).await.expect("not blocked");
        listener.batch_execute("select 1").await.expect("still not");
        assert!(connection.take_missed() > 0);
        assert_eq!(connection.take_missed(), 0);

        database.client().await.batch_execute("select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and datname = current_database()").await.expect("terminated");
        while connection.next().await.is_some() {}
        assert!(connection.ended().await.is_err(), "the end has its reason");
    }
}
