//! PostgreSQL dies and its standby is promoted under load. With synchronous replication nothing that was acknowledged is
//! lost; without it something is, and what was handed out before is refused.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pcfarm_bench::asking::Asked;
use pcfarm_bench::farm::{Farm, LONG, SOON};
use pcfarm_sql::cluster::{Cluster, ClusterOptions};
use pcfarm_sql::connect::connect;
use pcfarm_sql::testing;
use serde_json::json;
use tokio::time::{Instant, sleep};
use tokio_postgres::Config;

/// A primary, and a standby that follows it.
struct Pair {
    primary: Cluster,
    standby: Cluster,
    farm: Farm,
}

async fn execute(config: &Config, statements: &[&str]) {
    let (client, _connection) = connect(config).await.expect("it answers");
    for statement in statements {
        client.execute(*statement, &[]).await.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
    }
}

async fn until(config: &Config, query: &str) {
    let deadline = Instant::now() + SOON;
    let (client, _connection) = connect(config).await.expect("it answers");
    while !client.query_one(query, &[]).await.expect("a good query").get::<_, bool>(0) {
        assert!(Instant::now() < deadline, "not {query}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Copies a running cluster to where another one is to be, as its standby.
fn copy(primary: &Cluster, directory: &Path) {
    // Beside the others, wherever links to those may be.
    let initdb = primary.programs().directory.join("initdb").canonicalize().expect("the programs are there");
    let program = initdb.with_file_name("pg_basebackup");
    let data = directory.join("data");
    let copied = Command::new(program)
        .args(["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--username", "pcfarm"])
        .arg("--host")
        .arg(primary.socket_directory())
        .arg("--pgdata")
        .arg(&data)
        .output()
        .expect("pg_basebackup runs");
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    // It belongs to whom PostgreSQL runs as.
    let owner = format!("--reference={}", primary.directory().join("data").display());
    assert!(Command::new("chown").arg("-R").arg(owner).arg(&data).status().expect("chown runs").success());
}

impl Pair {
    async fn start(synchronous: bool) -> Pair {
        let options = || ClusterOptions {
            durable: true,
            settings: [("wal_level", "replica"), ("max_wal_senders", "4"), ("hot_standby", "on")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ..testing::test_cluster_options()
        };
        let primary = Cluster::start(options()).await.expect("a primary");
        primary.create_database_if_missing("farm").await.expect("a database");
        let mut own = primary.config();
        own.dbname("farm");
        {
            let (mut client, _connection) = connect(&own).await.expect("it answers");
            pcfarm_sql::migrate::migrate(&mut client).await.expect("migrated");
        }
        let following = options();
        copy(&primary, &following.directory);
        let standby = Cluster::start(following).await.expect("a standby");
        until(&own, "select count(*) = 1 from pg_stat_replication where state = 'streaming'").await;
        if synchronous {
            execute(&own, &["alter system set synchronous_standby_names = '*'", "select pg_reload_conf()"]).await;
            until(&own, "select count(*) = 1 from pg_stat_replication where sync_state = 'sync'").await;
        }
        let hosts = format!("{},{}", primary.socket_directory().display(), standby.socket_directory().display());
        let url = format!("host={hosts} user=pcfarm dbname=farm target_session_attrs=read-write");
        let config: Config = url.parse().expect("a connection string");
        let farm = Farm::at(url, config);
        Pair { primary, standby, farm }
    }

    fn standby_config(&self) -> Config {
        let mut config = self.standby.config();
        config.dbname("farm");
        config
    }

    /// The primary is gone, and the standby takes its place.
    async fn fail_over(&self) {
        self.primary.crash().await.expect("killed");
        execute(&self.standby_config(), &["select pg_promote()"]).await;
    }
}

fn asked(key: &str) -> Asked {
    Asked::new(key, "digest", 5, (0..50).map(|n| json!({"n": n, "ms": 10})).collect(), false)
}

async fn check(farm: &Farm) {
    farm.until(LONG, "select count(*) = 0 from pcfarm.job where ended_at is null").await;
    farm.check(&[]).await;
    let failed = "select count(*) from pcfarm.job where state <> 'done'";
    assert_eq!(farm.number(failed).await, 0, "a failover cost problems something\n{}", farm.state().await);
}

const PROMOTED: &str = "select count(*) from pcfarm.checkout where ending = 'revoked' and reason = 'the database was restored or promoted'";

#[tokio::test]
async fn nothing_acknowledged_is_lost_with_a_synchronous_standby() {
    let pair = Pair::start(true).await;
    let farm = &pair.farm;
    farm.job_type("digest", "digest", json!({"max_attempts": 1})).await;
    let (a, b) = tokio::join!(farm.serving("a", &[]), farm.serving("b", &[]));
    let _agents: Vec<_> = ["one", "two", "three"].map(|name| farm.working(name, &[&a, &b])).into();
    farm.submit_sleeps("digest", 2000, 10, 5).await;
    let mut jobs: Vec<Asked> = (0..20).map(|n| asked(&format!("job {n}"))).collect();
    for (n, job) in jobs.iter_mut().enumerate() {
        job.ask(&[&a, &b][n % 2].url()).await;
        if n == 12 {
            pair.fail_over().await;
        }
    }
    assert!(jobs.iter().filter(|asked| asked.job.is_some()).count() > 12, "hardly any job was taken");
    for job in &mut jobs {
        job.ask_again(&a.url(), LONG).await;
    }
    check(farm).await;
    assert_eq!(farm.number("select count(*) from pcfarm.job").await, jobs.len() as i64 + 1);
    assert!(farm.number(PROMOTED).await > 0, "nothing was in anybody's hands");
    assert_eq!(farm.number("select timeline from pcfarm.database").await, 2);
}

#[tokio::test]
async fn what_an_asynchronous_standby_has_not_got_is_refused_and_done_again() {
    let pair = Pair::start(false).await;
    let farm = &pair.farm;
    farm.job_type("digest", "digest", json!({"max_attempts": 1})).await;
    let server = farm.serving("a", &[]).await;
    let _agents: Vec<_> = ["one", "two"].map(|name| farm.working(name, &[&server])).into();
    let (mut kept, mut lost) = (asked("kept"), asked("lost"));
    assert!(kept.ask(&server.url()).await, "not taken");
    let running = farm.submit_sleeps("digest", 4000, 10, 5).await;
    farm.finished(running, 50, SOON).await;
    let had = "select count(*) > 0 from pcfarm.result";
    until(&pair.standby_config(), had).await;
    execute(&pair.standby_config(), &["alter system set primary_conninfo = ''", "select pg_reload_conf()"]).await;
    until(&pair.standby_config(), "select count(*) = 0 from pg_stat_wal_receiver").await;
    assert!(lost.ask(&server.url()).await, "not taken");
    let before = farm.progress(running).await.0;
    farm.finished(running, before + 100, SOON).await;
    pair.fail_over().await;
    farm.until(SOON, "select timeline = 2 from pcfarm.database").await;
    let gone = format!(
        "select count(*) from pcfarm.job where job_id = {} and idempotency_key = 'lost'",
        lost.job.expect("taken")
    );
    assert_eq!(farm.number(&gone).await, 0, "the standby had it after all");
    check(farm).await;
    assert_eq!(farm.progress(running).await.0, 4000);
    let done =
        format!("select count(*) from pcfarm.job where job_id = {} and state = 'done'", kept.job.expect("taken"));
    assert_eq!(farm.number(&done).await, 1);
    assert!(farm.number(PROMOTED).await > 0, "nothing was in anybody's hands");
    // Who asks again with the same key has it done after all.
    assert!(lost.ask(&server.url()).await, "not taken");
    check(farm).await;
}
