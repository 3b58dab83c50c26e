//! With real processes: what matters here is what is left when one of them is killed.

use std::os::unix::fs::PermissionsExt;

use super::*;

/// Root's temporary directories are closed to PostgreSQL's account, so this one is opened for passing through.
fn temporary() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("pcfarm-cluster-test-")
        .permissions(fs::Permissions::from_mode(0o711))
        .tempdir()
        .expect("temporary directory")
}

fn options(directory: &Path) -> ClusterOptions {
    ClusterOptions { durable: false, start_timeout: Duration::from_secs(60), ..ClusterOptions::new(directory) }
}

async fn value(config: &Config, statement: &str) -> String {
    let (client, _connection) = connect(config).await.expect("connected");
    client.query_one(statement, &[]).await.expect(statement).get(0)
}

#[tokio::test]
async fn a_cluster_is_made_used_stopped_and_started_again() {
    let temporary = temporary();
    let path = temporary.path().join("a deep").join("farm");
    let durable = ClusterOptions { durable: true, ..options(&path) };
    let cluster = Cluster::start(durable.clone()).await.expect("started");
    assert!(!cluster.was_adopted());
    for _ in 0..2 {
        cluster.create_database_if_missing("pc \"farm\"").await.expect("created");
    }
    let mut config = cluster.config();
    config.dbname("pc \"farm\"");
    for (setting, expected) in [
        ("fsync", "on"),
        ("listen_addresses", ""),
        ("server_encoding", "UTF8"),
        ("unix_socket_permissions", "0700"),
        ("max_connections", "100"),
        ("data_checksums", "on"),
        ("max_wal_size", "4GB"),
    ] {
        let shown = value(&config, &format!("select current_setting('{setting}')")).await;
        assert_eq!(shown, expected, "{setting}");
    }
    let (client, _connection) = connect(&config).await.expect("connected");
    client.batch_execute("create table kept as select 7 as n").await.expect("table");
    let socket = cluster.socket_directory().to_owned();
    cluster.stop().await.expect("stopped, although a session is open");
    assert!(!socket.exists(), "{} is left", socket.display());
    assert!(connect(&config).await.is_err());

    let cluster = Cluster::start(durable).await.expect("started again");
    let mut config = cluster.config();
    config.dbname("pc \"farm\"");
    assert_eq!(value(&config, "select n::text from kept").await, "7");
    cluster.stop().await.expect("stopped");
}

#[tokio::test]
async fn a_cluster_left_running_is_adopted() {
    let temporary = temporary();
    let cluster = Cluster::start(options(temporary.path())).await.expect("started");
    let started = value(&cluster.config(), "select pg_postmaster_start_time()::text").await;
    drop(cluster); // all that a killed server leaves: the lock is gone, PostgreSQL is not

    let cluster = Cluster::start(options(temporary.path())).await.expect("adopted");
    assert!(cluster.was_adopted());
    assert_eq!(value(&cluster.config(), "select pg_postmaster_start_time()::text").await, started);
    let socket = cluster.socket_directory().to_owned();
    cluster.stop().await.expect("stopped");
    assert!(!socket.exists());
}

#[tokio::test]
async fn a_directory_has_one_owner() {
    let temporary = temporary();
    let cluster = Cluster::start(options(temporary.path())).await.expect("started");
    let error = Cluster::start(options(temporary.path())).await.expect_err("second owner");
    let ours = std::process::id().to_string();
    assert!(matches!(&error, ClusterError::Owned { owner, .. } if *owner == ours), "{error}");
    cluster.stop().await.expect("stopped");
}

#[tokio::test]
async fn a_killed_postgresql_is_started_again_on_the_same_socket() {
    let temporary = temporary();
    let mut cluster = Cluster::start(options(temporary.path())).await.expect("started");
    let config = cluster.config();
    // A busy backend outlives the postmaster for a while and keeps its shared memory in use.
    let (client, _connection) = connect(&config).await.expect("connected");
    client.batch_execute("create table kept as select 7 as n").await.expect("table");
    cluster.crash().await.expect("crashed");
    cluster.start_again().await.expect("started again");
    assert_eq!(cluster.config(), config);
    assert_eq!(value(&config, "select n::text from kept").await, "7");

    // And by another server, after both were killed.
    cluster.crash().await.expect("crashed");
    drop(cluster);
    let cluster = Cluster::start(options(temporary.path())).await.expect("recovered");
    assert!(!cluster.was_adopted());
    assert_eq!(cluster.config(), config);
    cluster.stop().await.expect("stopped");
}

#[tokio::test]
async fn an_interrupted_initdb_does_no_harm() {
    let temporary = temporary();
    let unfinished = temporary.path().join("data.tmp/base");
    fs::create_dir_all(&unfinished).expect("made");
    fs::write(unfinished.join("half"), "half").expect("written");
    let cluster = Cluster::start(options(temporary.path())).await.expect("started");
    assert!(!temporary.path().join("data.tmp").exists());
    cluster.stop().await.expect("stopped");
}

#[tokio::test]
async fn what_is_in_the_way_is_named() {
    let temporary = temporary();
    fs::create_dir(temporary.path().join("data")).expect("made");
    let error = Cluster::start(options(temporary.path())).await.expect_err("something else");
    assert!(matches!(error, ClusterError::NotACluster { .. }), "{error}");

    let quoted = temporary.path().join("it's");
    let error = Cluster::start(options(&quoted)).await.expect_err("a quote");
    assert!(matches!(error, ClusterError::Path { .. }), "{error}");

    let other = temporary.path().join("other");
    fs::create_dir_all(other.join("data")).expect("made");
    fs::write(other.join("data/PG_VERSION"), "9\n").expect("written");
    let error = Cluster::start(options(&other)).await.expect_err("an old version");
    assert!(error.to_string().contains("apt install postgresql-9"), "{error}");

    let mut nowhere = options(&temporary.path().join("nowhere"));
    nowhere.programs = Some(temporary.path().to_owned());
    let error = Cluster::start(nowhere).await.expect_err("no programs");
    assert!(error.to_string().contains("apt install postgresql"), "{error}");

    if account::we_are_root() {
        let closed = temporary.path().join("closed");
        fs::create_dir(&closed).expect("made");
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).expect("chmod");
        let error = Cluster::start(options(&closed.join("farm"))).await.expect_err("closed");
        assert!(
            matches!(&error, ClusterError::Barred { barred, .. } if *barred == closed.canonicalize().expect("there")),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_stale_pid_file_of_another_process_is_no_obstacle() {
    let temporary = temporary();
    let cluster = Cluster::start(options(temporary.path())).await.expect("started");
    let data = temporary.path().join("data");
    cluster.stop().await.expect("stopped");
    // The number of a live process (this one), from before the machine started.
    let text = format!("{}\n{}\n1000\n5432\n/tmp/none\n\n  1  1\nready\n", std::process::id(), data.display());
    fs::write(data.join("postmaster.pid"), text).expect("written");
    let cluster = Cluster::start(options(temporary.path())).await.expect("started again");
    assert!(!cluster.was_adopted());
    cluster.stop().await.expect("stopped");
}

#[tokio::test]
async fn a_guarded_cluster_goes_with_its_handle() {
    let temporary = temporary();
    let path = temporary.path().join("guarded");
    let guarded = ClusterOptions { dies_with_process: true, ..options(&path) };
    let cluster = Cluster::start(guarded).await.expect("started");
    let pid_file = cluster.site.directory.pid_file().expect("runs");
    let socket = cluster.socket_directory().to_owned();
    drop(cluster);
    assert!(!path.exists() && !socket.exists());
    assert!(!pid_file.is_alive() || pid_file.is_zombie());
}
