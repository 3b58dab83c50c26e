//! A whole farm on a database that others administer: over TLS alone, and behind a pooler.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pcfarm_sql::testing::{TestDatabase, database, database_on};

use crate::bouncer::Bouncer;
use crate::network::{Authority, Network};
use crate::real::{Extra, Farm, program, server_of};

type Test = Result<()>;

/// A short night: a load by query, related reads, write-back, a recycler.
async fn night(farm: Farm, url: &str, read_role: Option<&str>) -> Result<Farm> {
    let role = format!("{}_writer", farm.database.name);
    let reads = match read_role {
        Some(reader) => format!("\"read_role\": \"{reader}\", "),
        None => String::new(),
    };
    farm.sql
        .batch_execute(&format!(
            "create role {role}; create table public.answer (key text); grant insert on public.answer to {role};
             select pcfarm.create_job_type('told', 'echo', '{{{reads}\"write_role\": \"{role}\"}}');
             select pcfarm.set_write_back('told', 'insert into public.answer select * from unnest($1)')"
        ))
        .await?;
    if read_role.is_some() {
        farm.sql
            .batch_execute("select pcfarm.set_related_read('told', 'r', 'select unnest($1::text[]) as key, 1 as one')")
            .await?;
    }
    let farm = farm.with_agent().await?;
    let query = "select g::text as key, to_jsonb(g) as payload from generate_series(1, 200) g";
    let load =
        ["job", "load", "--database-url", url, "--type", "told", "--name", "night", "--convoy", "10", "--query", query];
    let ran = farm.run_all(&load).await?;
    ensure!(ran.code == Some(0), "{ran:?}");
    farm.until("select count(*) from pcfarm.job where state = 'done'", 1).await?;
    assert_eq!(farm.number("select count(*) from public.answer").await?, 200);
    let mut recycler = program("pcfarm-recycler")?;
    recycler.args(["--database-url", url]);
    let ended = tokio::task::spawn_blocking(move || recycler.output()).await??;
    ensure!(ended.status.success(), "{ended:?}");
    farm.sql.batch_execute(&format!("drop owned by {role}; drop role {role}")).await?;
    Ok(farm)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_farm_works_over_tls_alone() -> Test {
    let network = Network::start_default().await;
    let authority = Authority::new("the department");
    network.serve(&authority.issue("db", &["db.example.org"], false), &authority).await;
    network.let_in("hostssl all all all scram-sha-256").await;
    let administrator = network.administrator().await;
    administrator
        .batch_execute("alter role pcfarm password 'hush'; create role desk_reader login password 'reads'")
        .await?;
    let root = network.at_home("root.crt", &authority.certificate);
    let passwords = network.at_home("pgpass", "*:*:*:desk_reader:reads\n");
    let database = database_on(network.cluster.config()).await;
    let url = format!(
        "postgresql://pcfarm:hush@db.example.org:5432/{}?hostaddr={}&sslmode=verify-full&sslrootcert={root}",
        database.name, network.address
    );
    let environment = vec![("PGPASSFILE".to_owned(), passwords)];
    let extra = Extra { environment, database_url: Some(url.clone()), ..Extra::default() };
    let farm = Farm::start_on(database, extra).await?;
    let farm = night(farm, &url, Some("desk_reader")).await?;
    let sessions = "select count(*) from pg_stat_ssl s join pg_stat_activity a using (pid) \
         where a.datname = current_database() and a.client_addr is not null";
    assert!(farm.number(&format!("{sessions} and s.ssl")).await? >= 3, "pool, listener, reads");
    assert_eq!(farm.number(&format!("{sessions} and not s.ssl")).await?, 0);

    // A wrong name ends a start at once, with the reason.
    let wrong = url.replace("db.example.org", "elsewhere.example.org");
    let extra = Extra { database_url: Some(wrong.clone()), ..Extra::default() };
    let said = refused(&farm.database, &extra).await?;
    ensure!(said.contains("not for elsewhere.example.org but for"), "{said}");
    let load = ["job", "load", "--database-url", &wrong, "--type", "told", "--name", "n", "--query", "select 1"];
    let ran = farm.run_all(&load).await?;
    ensure!(ran.code == Some(3) && ran.stderr.contains("not for elsewhere.example.org but for"), "{ran:?}");
    Ok(())
}

/// Standard error of a server that does not start.
async fn refused(database: &TestDatabase, extra: &Extra) -> Result<String> {
    let mut server = server_of(database, extra)?;
    let running = tokio::task::spawn_blocking(move || server.output());
    let output = tokio::time::timeout(Duration::from_secs(25), running).await.context("it goes on trying")???;
    ensure!(!output.status.success(), "it ended well");
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_farm_works_behind_a_pooler_in_session_mode_and_refuses_others() -> Test {
    let database = database().await;
    let Some(bouncer) = Bouncer::start(&database.config(), "default_pool_size = 40").await else { return Ok(()) };
    let url = |mode: &str| format!("postgresql://anybody@127.0.0.1:{}/{mode}", bouncer.port);
    for mode in ["transaction", "statement"] {
        let extra = Extra { database_url: Some(url(mode)), ..Extra::default() };
        let said = refused(&database, &extra).await?;
        ensure!(said.contains("PgBouncer") && said.contains(mode) && said.contains("pool_mode=session"), "{said}");
        let mut recycler = program("pcfarm-recycler")?;
        recycler.args(["--database-url", &url(mode)]);
        let ended = tokio::task::spawn_blocking(move || recycler.output()).await??;
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        ensure!(!ended.status.success() && said.contains("pool_mode=session"), "{said}");
    }
    let extra = Extra { database_url: Some(url("session")), ..Extra::default() };
    let farm = Farm::start_on(database, extra).await?;
    let farm = night(farm, &url("session"), None).await?;
    let load =
        ["job", "load", "--database-url", &url("transaction"), "--type", "echo", "--name", "n", "--query", "select 1"];
    let ran = farm.run_all(&load).await?;
    ensure!(ran.code == Some(1) && ran.stderr.contains("pool_mode=session"), "{ran:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_farm_works_on_a_database_with_unusual_defaults() -> Test {
    let database = database().await;
    let client = database.client().await;
    for setting in [
        "default_transaction_isolation = 'serializable'",
        "default_transaction_read_only = on",
        "statement_timeout = '1ms'",
        "lock_timeout = '1ms'",
        "idle_in_transaction_session_timeout = '1ms'",
        "idle_session_timeout = '1ms'",
        "standard_conforming_strings = off",
        "datestyle = 'SQL, DMY'",
        "intervalstyle = 'sql_standard'",
        "bytea_output = 'escape'",
        "timezone = 'Asia/Kathmandu'",
        "search_path = '$user'",
        "client_encoding = 'LATIN1'",
    ] {
        client.batch_execute(&format!("alter database {} set {setting}", database.name)).await?;
    }
    drop(client);
    // The test's own sessions.
    let options = "-c default_transaction_isolation=read\\ committed -c default_transaction_read_only=off -c statement_timeout=0 \
         -c lock_timeout=0 -c idle_in_transaction_session_timeout=0 -c idle_session_timeout=0";
    let plain = database.url();
    let database = database.with_options(options);
    let extra = Extra { database_url: Some(plain.clone()), ..Extra::default() };
    let farm = Farm::start_on(database, extra).await?;
    night(farm, &plain, None).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_administrators_sql_is_printed_without_a_database() -> Test {
    let mut server = program("pcfarm-server")?;
    server.args(["init", "--print-sql", "--database-url", "postgresql://farm@nowhere.example.org/jobs"]);
    let output = tokio::task::spawn_blocking(move || server.output()).await??;
    ensure!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), pcfarm_sql::migrate::rights::setup("farm", "jobs"));

    // A start without rights prints the statements that grant them.
    let database = pcfarm_sql::testing::empty_database().await;
    let client = database.client().await;
    let role = format!("{}_bare", database.name);
    client.batch_execute(&format!("create role {role} login")).await?;
    let url = database.url().replacen("postgresql://pcfarm@", &format!("postgresql://{role}@"), 1);
    let said = refused(&database, &Extra { database_url: Some(url), ..Extra::default() }).await?;
    ensure!(said.contains(&format!("grant create on database \"{}\" to \"{role}\";", database.name)), "{said}");
    client.batch_execute(&format!("drop role {role}")).await?;
    Ok(())
}
