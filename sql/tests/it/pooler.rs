//! PgBouncer between us and PostgreSQL: session mode works, and the modes that split sessions are refused by name.

use pcfarm_sql::connect::pooler::{PoolerError, refuse_transaction_pooling};
use pcfarm_sql::pool;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use crate::bouncer::Bouncer;
use crate::queue::{Queue, queue};

async fn show(client: &Client, name: &str) -> String {
    client.query_one("select current_setting($1)", &[&name]).await.expect("shown").get(0)
}

const EXPECTED: [(&str, &str); 6] = [
    ("search_path", "pg_catalog,pg_temp"),
    ("statement_timeout", "7s"),
    ("idle_in_transaction_session_timeout", "10s"),
    ("enable_seqscan", "off"),
    ("TimeZone", "UTC"),
    ("work_mem", "8MB"),
];

async fn has_settings(client: &Client, when: &str) {
    for (name, expected) in EXPECTED {
        assert_eq!(show(client, name).await, expected, "{name} {when}");
    }
}

async fn session_mode(more: &str) {
    let mut queue: Queue = queue().await;
    let Some(bouncer) = Bouncer::start(&queue.database.config(), more).await else { return };
    let mut config = bouncer.config("session");
    refuse_transaction_pooling(&config.clone().into()).await.expect("session mode is no obstacle");
    config.options("-c statement_timeout=7s -c work_mem=8MB");
    queue.pool = pool::pool(config.clone(), 1, "through a pooler");
    let role = queue.text("select 'pooled_' || pg_backend_pid()").await;
    queue
        .run(&format!(
            "create role {role}; create table public.answer (key text); grant insert on public.answer to {role};
             select pcfarm.create_job_type('w', 'c', '{{\"write_role\": \"{role}\"}}');
             select pcfarm.set_write_back('w', 'insert into public.answer select * from unnest($1)')"
        ))
        .await;
    {
        let client = queue.server().await;
        has_settings(&client, "at first").await;
        client.batch_execute("set search_path = public; set statement_timeout = 0").await.expect("set");
    }
    has_settings(&**queue.server().await, "when it comes again").await;
    // An acceptance with a write-back resets what its text may have set; on the same connection the settings are there.
    let job = queue.job_of("w", 3, 1).await;
    let client = queue.server().await;
    for held in [queue_take(&client, &queue, job).await] {
        let told: Vec<(usize, Result<&str, &str>)> = (0..held.problems.len()).map(|n| (n, Ok("1"))).collect();
        let acceptance = crate::queue::acceptance(&[(&held, &told, true)]);
        let verdicts = pcfarm_sql::checkout::accept(&client, &held.job_type, &acceptance).await.expect("accepted");
        assert_eq!(verdicts.len(), 1);
    }
    has_settings(&client, "after a write-back").await;
    assert_eq!(queue.number("select count(*) from public.answer").await, 3);
    drop(client);
    queue.check().await;

    let (listener, mut messages) = pool::session_config(config, "listening").connect().await.expect("connected");
    listener.batch_execute("listen bell").await.expect("listening");
    queue.run("notify bell, 'one'").await;
    assert!(matches!(messages.next().await, Some(tokio_postgres::AsyncMessage::Notification(_))));
    let role = format!("drop owned by {role}; drop role {role}");
    queue.run(&role).await;
}

async fn queue_take(
    client: &deadpool_postgres::ClientWrapper,
    queue: &Queue,
    job: pcfarm_proto::ids::JobId,
) -> crate::queue::Held {
    let lanes = pcfarm_sql::lanes::open_lanes(client).await.expect("lanes");
    let lane = lanes.into_iter().find(|lane| lane.job_id == job).expect("its lane");
    let _ = queue;
    crate::queue::take(client, &lane, 10, pcfarm_proto::ids::WorkstationId(1)).await.expect("handed out")
}

#[tokio::test]
async fn session_mode_works_where_startup_options_are_refused() {
    session_mode("").await;
}

#[tokio::test]
async fn session_mode_works_where_startup_options_are_ignored() {
    session_mode("ignore_startup_parameters = options,extra_float_digits").await;
}

/// All settings of a session that are not its defaults, as another client of the pool sees them.
async fn changed_settings(client: &Client) -> Vec<String> {
    // The pooler itself sets what every client tells it.
    let look = "select name || '=' || setting from pg_settings where source = 'session' \
         and name not in ('application_name', 'client_encoding', 'DateStyle', 'TimeZone', 'standard_conforming_strings', \
             'IntervalStyle', 'in_hot_standby', 'default_transaction_read_only', 'scram_iterations', 'search_path')
         union all select 'search_path=' || s from current_setting('search_path') s where s <> '\"$user\", public'
         union all select 'pcfarm.session=' || s from current_setting('pcfarm.session', true) s where s <> ''";
    let rows = client.simple_query(look).await.expect("asked");
    let value = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    };
    rows.iter().filter_map(value).collect()
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "the connection ends with the client, which the test drops")]
async fn refused_start_leaves_no_settings_to_other_clients_of_the_pool() {
    let queue = queue().await;
    for more in ["", "ignore_startup_parameters = options", "server_round_robin = 1"] {
        let Some(bouncer) = Bouncer::start(&queue.database.config(), more).await else { return };
        for mode in ["transaction", "statement"] {
            let mut config = bouncer.config(mode);
            config.options("-c statement_timeout=7s");
            for target in [
                pool::session_config(config.clone(), "checking"),
                pool::session_of_user(config.clone().into()),
                config.clone().into(),
            ] {
                refuse_transaction_pooling(&target).await.expect_err(mode);
            }
            let others = futures_util::future::join_all((0..4).map(|_| async {
                let (client, connection) = bouncer.config(mode).connect(NoTls).await.expect("connected");
                tokio::spawn(connection);
                client
            }))
            .await;
            // At the same time, so that each has another connection of the pool.
            let seen = futures_util::future::join_all(others.iter().map(|client| async {
                client.simple_query("select pg_sleep(0.1)").await.expect("asked");
                changed_settings(client).await
            }));
            assert_eq!(seen.await.concat(), [""; 0], "{more} {mode}");
        }
    }
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "the connection ends with the client, which the test drops")]
async fn modes_that_split_sessions_are_refused_by_name() {
    let queue = queue().await;
    for more in ["", "server_round_robin = 1", "ignore_startup_parameters = options"] {
        let Some(bouncer) = Bouncer::start(&queue.database.config(), more).await else { return };
        for mode in ["transaction", "statement"] {
            // Idle connections of others, which the pooler may give out instead.
            let others: Vec<_> = futures_util::future::join_all((0..4).map(|_| async {
                let (client, connection) = bouncer.config(mode).connect(NoTls).await.expect("connected");
                tokio::spawn(connection);
                client.simple_query("select pg_sleep(0.05)").await.expect("asked");
                client
            }))
            .await;
            let target = pool::session_config(bouncer.config(mode), "checking");
            let error = refuse_transaction_pooling(&target).await.expect_err(mode);
            assert!(matches!(error, PoolerError::Splits { name: "PgBouncer", .. }), "{more} {mode}: {error}");
            let said = error.to_string();
            assert!(said.contains(mode) && said.contains("pool_mode = session"), "{more} {mode}: {said}");
            drop(others);
        }
    }
}

/// PgBouncer turns clients without TLS away by another code than PostgreSQL.
#[tokio::test]
async fn allow_encrypts_when_the_pooler_demands_it() {
    let queue = queue().await;
    let itself = crate::network::self_signed("localhost");
    let directory = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .tempdir()
        .expect("a directory");
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let (certificate, key) = (file("own.crt", &itself.certificate), file("own.key", &itself.key));
    let more = format!("client_tls_sslmode = allow\nclient_tls_cert_file = {certificate}\nclient_tls_key_file = {key}");
    let Some(bouncer) = Bouncer::start(&queue.database.config(), &more).await else { return };
    bouncer.demand_tls().await;
    for mode in ["allow", "prefer", "require"] {
        let url = format!("postgresql://anybody@127.0.0.1:{}/session?sslmode={mode}", bouncer.port);
        let settings = crate::network::settings_at(directory.path(), &url, &[]).expect("read");
        for target in [settings.target.clone(), pool::session_config(settings.target, "encrypted")] {
            let (client, _connection) = target.connect().await.unwrap_or_else(|error| panic!("{mode}: {error:?}"));
            client.simple_query("select 1").await.expect("asked");
        }
    }
}
