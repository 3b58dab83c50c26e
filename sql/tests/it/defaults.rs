//! Databases and roles with unusual defaults: our sessions work all the same, and the public functions work or say what to set.

use pcfarm_sql::checkout::Closing;
use pcfarm_sql::pool;
use tokio_postgres::Client;

use crate::queue::{Queue, queue};

const UNUSUAL: &[(&str, &str)] = &[
    ("default_transaction_isolation", "serializable"),
    ("default_transaction_read_only", "on"),
    ("default_transaction_deferrable", "on"),
    ("statement_timeout", "1ms"),
    ("lock_timeout", "1ms"),
    ("idle_in_transaction_session_timeout", "1ms"),
    ("idle_session_timeout", "1ms"),
    ("search_path", "\"$user\""),
    ("standard_conforming_strings", "off"),
    ("DateStyle", "SQL, DMY"),
    ("IntervalStyle", "sql_standard"),
    ("bytea_output", "escape"),
    ("TimeZone", "Asia/Kathmandu"),
    ("extra_float_digits", "-15"),
    ("client_encoding", "LATIN1"),
    ("row_security", "off"),
    ("synchronous_commit", "off"),
    ("transform_null_equals", "on"),
    ("array_nulls", "off"),
    ("quote_all_identifiers", "on"),
    ("exit_on_error", "on"),
    ("enable_indexscan", "off"),
    ("enable_nestloop", "off"),
    ("plan_cache_mode", "force_custom_plan"),
    ("client_min_messages", "error"),
    ("plpgsql.extra_errors", "all"),
    ("jit_above_cost", "0"),
    ("transaction_timeout", "1ms"), // not before 17
];

/// For sessions that begin from now on, of whichever role.
async fn set(queue: &Queue, settings: &[(&str, &str)]) {
    for (name, value) in settings {
        let value = if *name == "search_path" { (*value).to_owned() } else { format!("'{value}'") };
        let statement = format!("alter database {} set {name} = {value}", queue.database.name);
        match queue.client.batch_execute(&statement).await {
            Err(_) if *name == "transaction_timeout" => (),
            done => done.unwrap_or_else(|error| panic!("{statement}: {error:?}")),
        }
    }
}

async fn solves(queue: &Queue) {
    let server = queue.server().await;
    let submit = "select pcfarm.submit('j', 't', 'select g::text as key, to_jsonb(g) as payload from pg_catalog.generate_series(1, 4) g')";
    let job: i64 = server.query_one(submit, &[]).await.expect("submitted").get(0);
    drop(server);
    let job = pcfarm_proto::ids::JobId(job);
    let held = queue.take(job, false, 1).await.expect("handed out");
    queue.close(&held, Closing::Lost).await;
    while let Some(held) = queue.take(job, true, 4).await {
        let verdict = queue.finish(&held).await;
        assert_eq!(usize::try_from(verdict.accepted).expect("some"), held.problems.len(), "{verdict:?}");
    }
    assert_eq!(queue.end(job).await.as_deref(), Some("done"));
    queue.check().await;
}

#[tokio::test]
async fn our_sessions_work_with_any_defaults_of_the_database() {
    let mut queue = queue().await;
    // One at a time, to find the setting at fault, and all at once.
    for settings in UNUSUAL.chunks(1).chain([UNUSUAL]) {
        set(&queue, settings).await;
        queue.pool = pool::pool(queue.database.config(), 4, "unusual");
        solves(&queue).await;
        if settings.len() == 1 {
            queue.run(&format!("alter database {} reset all", queue.database.name)).await;
        }
    }
    let server = queue.server().await;
    for (name, expected) in [
        ("transaction_isolation", "read committed"),
        ("transaction_read_only", "off"),
        ("statement_timeout", "30s"),
        ("standard_conforming_strings", "on"),
        ("client_encoding", "UTF8"),
        ("TimeZone", "UTC"),
        ("plpgsql.extra_errors", "none"),
        ("idle_session_timeout", "0"),
    ] {
        let shown: String = server.query_one("select current_setting($1)", &[&name]).await.expect("shown").get(0);
        assert_eq!(shown, expected, "{name}");
    }
    pool::check_server(&server).await.expect("a good server");
    drop(server);
    // Settings that our sessions cannot change.
    for (name, value) in [("session_replication_role", "replica"), ("plpgsql.variable_conflict", "use_column")] {
        set(&queue, &[(name, value)]).await;
        let (client, _connection) =
            pool::session_config(queue.database.config(), "unusual").connect().await.expect("connected");
        let error = pool::check_server(&client).await.expect_err(name).to_string();
        assert!(error.contains(&format!("reset {name}")), "{error}");
        queue.run(&format!("alter database {} reset all", queue.database.name)).await;
    }
}

/// All in turn, as a user's program would call them.
async fn calls(client: &Client) -> Result<(), tokio_postgres::Error> {
    let job: i64 = client
        .query_one("select pcfarm.create_job('mine', 't', '{\"require\": [\"memory >= 1.5 GB\"]}')", &[])
        .await?
        .get(0);
    let load = "select pcfarm.load($1, 'select g::text as key, to_jsonb(g) as payload from generate_series(1, 3) g; -- all', 2)";
    client.query_one(load, &[&job]).await?;
    for call in ["open_job", "hold_job", "release_job", "cancel_job"] {
        client.execute(&format!("select pcfarm.{call}($1)"), &[&job]).await?;
    }
    client.query_one("select pcfarm.retry_job($1)", &[&job]).await.map(drop).or_else(only_state)?;
    let submit = "select pcfarm.submit('more', 't', 'select 1::text as key, to_jsonb(1) as payload')";
    client.query_one(submit, &[]).await?;
    Ok(())
}

/// A job in the wrong state is no matter of settings.
fn only_state(error: tokio_postgres::Error) -> Result<(), tokio_postgres::Error> {
    if error.code() == Some(&tokio_postgres::error::SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE) {
        Ok(())
    } else {
        Err(error)
    }
}

#[tokio::test]
async fn public_functions_work_or_say_what_to_set() {
    let queue = queue().await;
    for &(name, value) in UNUSUAL {
        let advice = match name {
            "default_transaction_isolation" => Some("begin isolation level read committed"),
            "default_transaction_read_only" => Some("begin read write"),
            // PostgreSQL names the setting itself, or ends the session as told.
            "statement_timeout"
            | "lock_timeout"
            | "idle_in_transaction_session_timeout"
            | "idle_session_timeout"
            | "transaction_timeout"
            | "client_encoding"
            | "plpgsql.extra_errors"
            | "exit_on_error" => continue,
            _ => None,
        };
        set(&queue, &[(name, value)]).await;
        let outcome = calls(&queue.database.client().await).await;
        queue.run(&format!("alter database {} reset all", queue.database.name)).await;
        match (outcome, advice) {
            (Ok(()), None) => (),
            (Err(error), Some(advice)) => {
                let error = error.as_db_error().unwrap_or_else(|| panic!("{name}: {error:?}"));
                let hint = error.hint().unwrap_or_else(|| panic!("{name}: {error:?}"));
                assert!(hint.contains(advice), "{name}: {hint}");
            }
            (outcome, _) => panic!("{name} = {value}: {outcome:?}"),
        }
    }
    set(&queue, &[("default_transaction_isolation", "repeatable read"), ("default_transaction_read_only", "on")]).await;
    let target = pool::session_of_user(queue.database.config().into());
    let (client, _connection) = target.connect().await.expect("connected");
    calls(&client).await.expect("the CLI's sessions set what is needed");
    queue.run(&format!("alter database {} reset all", queue.database.name)).await;
}

#[tokio::test]
async fn each_public_function_that_writes_says_what_to_set() {
    let queue = queue().await;
    let public = "select p.proname, format('select pcfarm.%I(%s)', p.proname, coalesce((
                select string_agg(format('null::%s', format_type(a.type, null)), ', ' order by a.n)
                from unnest(p.proargtypes) with ordinality as a(type, n)), ''))
         from pg_proc p
         where p.pronamespace = 'pcfarm'::regnamespace and p.prokind = 'f' and p.provolatile = 'v'
             and obj_description(p.oid, 'pg_proc') is not null order by p.proname";
    let functions = queue.client.query(public, &[]).await.expect("asked");
    let names: Vec<String> = functions.iter().map(|row| row.get(0)).collect();
    for known in ["create_job_type", "subscribe", "create_schedule", "park", "set_user", "accept_clock", "resume_queue"]
    {
        assert!(names.iter().any(|name| name == known), "{known}: {names:?}");
    }
    for (begin, advice) in [
        ("begin read only", "begin read write"),
        ("begin isolation level serializable", "begin isolation level read committed"),
    ] {
        for function in &functions {
            let call: String = function.get(1);
            queue.run(begin).await;
            let error = queue.client.batch_execute(&call).await.map(drop).expect_err(&call);
            queue.run("rollback").await;
            let error = error.as_db_error().unwrap_or_else(|| panic!("{call}: {error:?}"));
            assert!(error.hint().is_some_and(|hint| hint.contains(advice)), "{begin}: {call}: {error:?}");
        }
    }
}

#[tokio::test]
async fn default_role_outlives_the_recycling_of_a_connection() {
    let queue = queue().await;
    let name = &queue.database.name;
    let (login, owner) = (format!("login_{name}"), format!("owner_{name}"));
    queue.run(&format!("create role {login} login; create role {owner}; grant {owner} to {login}")).await;
    queue.run(&format!("alter role {login} set role = {owner}")).await;
    let mut by_role = queue.database.config();
    by_role.user(&login);
    let mut by_option = queue.database.config();
    by_option.options(format!("-c role={owner}"));
    for config in [by_role, by_option] {
        let pool = pool::pool_for_queries(config, 1, "with a default role");
        for when in ["at first", "when it comes again", "a third time"] {
            let client = pool.get().await.expect("connected");
            let role: String = client.query_one("select current_user::text", &[]).await.expect("asked").get(0);
            assert_eq!(role, owner, "{when}");
            client.batch_execute("set role none").await.expect("left");
        }
    }
    queue.run(&format!("drop role {login}, {owner}")).await;
}
