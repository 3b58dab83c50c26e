//! Schedules with several servers that are killed: every due time is triggered once.

use std::time::Duration;

use pcfarm_bench::farm::{Farm, LONG, SOON, Server};
use pcfarm_bench::schedules::{self, Account, Due};
use pcfarm_sql::cluster::{Cluster, ClusterOptions};
use pcfarm_sql::testing;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

const COUNT: i64 = 1_000;

/// Some seconds after it is created it comes, whoever slept meanwhile, and a farm without schedules does.
#[tokio::test]
async fn a_new_schedule_wakes_the_sleeping_ticker() {
    let farm = Farm::new().await;
    let _server = farm.serving("a", &[]).await;
    let job = schedules::standing_job(&farm).await;
    let create = format!(
        "select pcfarm.create_schedule('soon', 'once ' || to_char((clock_timestamp() + interval '1 s') at time zone 'UTC',
            'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'), '{{\"job\": {job}, \"payload\": [1]}}')"
    );
    farm.run(&create).await;
    farm.until(SOON, "select count(*) = 1 from pcfarm.problem").await;
    farm.until(SOON, "select state = 'ended' and triggers = 1 from pcfarm.schedule_status").await;
    // What nobody can compute rests, and says why.
    farm.run(&format!("select pcfarm.create_schedule('wrong', '61 * * * *', '{{\"job\": {job}}}')")).await;
    farm.until(SOON, "select state = 'broken' and error like '%no cron expression%' from pcfarm.schedule_status where name = 'wrong'")
        .await;
    farm.run("select pcfarm.update_schedule('wrong', '{\"recurrence\": \"every 1s\"}')").await;
    farm.until(SOON, "select triggers > 1 from pcfarm.schedule_status where name = 'wrong'").await;
    farm.check(&[]).await;
}

#[tokio::test]
#[ignore = "nightly: half a minute of due times and kills"]
async fn servers_killed_at_random_lose_no_due_time_and_double_none() {
    let farm = Farm::new().await;
    let job = schedules::standing_job(&farm).await;
    let mut servers: Vec<Server> = Vec::new();
    for name in ["a", "b", "c"] {
        servers.push(farm.serving(name, &[]).await);
    }
    schedules::make(&farm, job, COUNT, 1, Due::Spread, 2).await;
    let seed = rand::rng().random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for round in 1..=8_i64 {
        // Somewhere in the stream of triggers.
        let so_many = COUNT * round * 2 + random.random_range(0..COUNT);
        farm.until(LONG, &format!("select sum(sequence) >= {so_many} from pcfarm.schedule_next")).await;
        let victim = &mut servers[random.random_range(0..3)];
        victim.program.kill();
        victim.start().await;
    }
    farm.until(LONG, "select min(sequence) > 18 from pcfarm.schedule_next").await;
    schedules::stop(&farm).await;
    let Account { triggers, lost, doubled, miscounted } = schedules::account(&farm, job, 1).await;
    assert_eq!((lost, doubled, miscounted), (0, 0, 0));
    assert!(triggers > 16 * COUNT, "{triggers}");
    farm.check(&[]).await;
}

#[tokio::test]
async fn several_servers_share_what_is_due_at_once() {
    let farm = Farm::new().await;
    let job = schedules::standing_job(&farm).await;
    let _servers = tokio::join!(farm.serving("a", &[]), farm.serving("b", &[]), farm.serving("c", &[]));
    schedules::make(&farm, job, COUNT, 1, Due::AtOnce, 2).await;
    farm.until(LONG, &format!("select sum(sequence) >= {COUNT} * 5 from pcfarm.schedule_next")).await;
    schedules::stop(&farm).await;
    let account = schedules::account(&farm, job, 1).await;
    assert_eq!((account.lost, account.doubled, account.miscounted), (0, 0, 0));
    farm.check(&[]).await;
}

/// Commits whose answers nobody got among them.
#[tokio::test]
#[ignore = "nightly: half a minute of due times around a crash"]
async fn postgresql_killed_in_the_middle_loses_no_due_time_and_doubles_none() {
    let options = ClusterOptions { durable: true, ..testing::test_cluster_options() };
    let mut cluster = Cluster::start(options).await.expect("a private cluster starts");
    let farm = Farm::of(testing::database_on(cluster.config()).await);
    let job = schedules::standing_job(&farm).await;
    let _servers = tokio::join!(farm.serving("a", &[]), farm.serving("b", &[]));
    schedules::make(&farm, job, COUNT, 1, Due::Spread, 2).await;
    for round in 1..=3_i64 {
        farm.until(LONG, &format!("select sum(sequence) >= {} from pcfarm.schedule_next", 2 * COUNT * round)).await;
        cluster.crash().await.expect("killed");
        cluster.start_again().await.expect("started again");
    }
    farm.until(LONG, "select min(sequence) >= 8 from pcfarm.schedule_next").await;
    schedules::stop(&farm).await;
    let account = schedules::account(&farm, job, 1).await;
    assert_eq!((account.lost, account.doubled, account.miscounted), (0, 0, 0));
    farm.check(&[]).await;
}

/// A server that is stopped in the middle of a tick holds up nobody for long, and what it says later has no effect.
#[tokio::test]
async fn a_server_that_stands_still_does_not_double_what_it_had_claimed() {
    let farm = Farm::new().await;
    let job = schedules::standing_job(&farm).await;
    let (mut frozen, _other) = tokio::join!(farm.serving("a", &[]), farm.serving("b", &[]));
    schedules::make(&farm, job, COUNT, 1, Due::Spread, 2).await;
    farm.until(LONG, &format!("select sum(sequence) >= {COUNT} from pcfarm.schedule_next")).await;
    frozen.program.freeze();
    let before = farm.number("select min(sequence) from pcfarm.schedule_next").await;
    // All of them, those in its hands, too: PostgreSQL ends its transaction.
    farm.until(LONG, &format!("select min(sequence) >= {before} + 3 from pcfarm.schedule_next")).await;
    frozen.program.thaw();
    farm.until(LONG, &format!("select min(sequence) >= {before} + 8 from pcfarm.schedule_next")).await;
    schedules::stop(&farm).await;
    let account = schedules::account(&farm, job, 1).await;
    assert_eq!((account.lost, account.doubled, account.miscounted), (0, 0, 0));
    farm.check(&[]).await;
}

#[tokio::test]
async fn jobs_are_made_loaded_and_opened() {
    let farm = Farm::new().await;
    let database: String = farm.query("select current_database()::text", &[]).await[0].get(0);
    let reader = format!("{database}_r");
    farm.run(&format!(
        "create role {reader} login; create schema market; create table market.fare (key text, fare integer);
         insert into market.fare select 'f' || i, i from generate_series(1, 5000) i;
         grant usage on schema market to {reader}; grant select on market.fare to {reader}"
    ))
    .await;
    farm.job_type("nightly", "digest", json!({"read_role": reader})).await;
    let server = farm.serving("a", &[]).await;
    let _agent = farm.working("one", &[&server]);
    let template = json!({"template": {"job_type": "nightly", "loads": [
        {"query": "select key, jsonb_build_object('n', fare, 'ms', 0) as payload from market.fare where fare <= 3000 and $1 <= clock_timestamp();"},
        {"query": "select key, jsonb_build_object('n', fare, 'ms', 0) as payload, 'g' as group_key from market.later", "convoy": 7},
    ]}});
    farm.query("select pcfarm.create_schedule('nightly', 'every 1 day', $1::text::jsonb)", &[&template.to_string()])
        .await;
    farm.run("select pcfarm.trigger_schedule('nightly')").await;
    // One source is not there yet: it is tried again until it is.
    farm.until(
        SOON,
        "select count(*) = 1 from pcfarm.schedule_load where message like '%market.later%' and attempts > 1",
    )
    .await;
    farm.until(SOON, "select count(*) = 1 from pcfarm.schedule_load where problems = 3000").await;
    assert_eq!(farm.number("select count(*) from pcfarm.job where state = 'loading'").await, 1);
    farm.run(&format!(
        "create table market.later as select * from market.fare limit 70; grant select on market.later to {reader}"
    ))
    .await;
    farm.until(LONG, "select state = 'done' and problems = 3070 from pcfarm.job_progress").await;
    // The query cannot write.
    let thief = json!({"template": {"job_type": "nightly", "loads": [{"query": "select 'a' as key, to_jsonb(set_config('role', 'x', false)) as payload from pcfarm.job"}]}});
    farm.query("select pcfarm.create_schedule('thief', 'every 1 day', $1::text::jsonb)", &[&thief.to_string()]).await;
    farm.run("select pcfarm.trigger_schedule('thief')").await;
    farm.until(SOON, "select count(*) = 1 from pcfarm.schedule_load where message like '%permission denied%'").await;
    farm.run("select pcfarm.cancel_job(job_id) from pcfarm.job where state = 'loading'").await;
    farm.check(&[]).await;
    drop(server);
    farm.run(&format!("drop owned by {reader} cascade; drop role {reader}")).await;
}

#[tokio::test]
#[ignore = "nightly: waits until a missing tick counts as a fault"]
async fn a_server_without_a_tick_says_that_it_is_not_well() {
    let options = ClusterOptions { durable: true, ..testing::test_cluster_options() };
    let cluster = Cluster::start(options).await.expect("a private cluster starts");
    let farm = Farm::of(testing::database_on(cluster.config()).await);
    let mut server = farm.serving("a", &[]).await;
    let postgresql = pcfarm_bench::postgres::freeze(cluster.directory()).expect("a running cluster");
    server.unwell(Duration::from_secs(40)).await;
    pcfarm_bench::postgres::thaw(&postgresql);
    server.ready().await;
}
