//! What stands in the way of some problems holds up no others.

use pcfarm_bench::farm::{Farm, LONG, SOON, Server};
use pcfarm_sql::connect::connect;
use serde_json::json;
use std::time::{Duration, Instant};

/// As long as a statement of the server may take here: each that does not end takes it all.
const STATEMENT: Duration = Duration::from_secs(4);

/// Many checkouts, each with a delivery of its own.
const PROBLEMS: i64 = 40;

async fn serving(farm: &Farm) -> Server {
    let joint = if farm.url().contains('?') { '&' } else { '?' };
    let limited = format!("{}{joint}options=-c%20statement_timeout%3D{}s", farm.url(), STATEMENT.as_secs());
    let mut server = farm.server("a", &["--checkout-problems", "1"]);
    server.program = server.program.replacing_argument("--database-url", &limited);
    server.start().await;
    server
}

/// Problems of another job come and go, as if there was nothing.
async fn others_end(farm: &Farm) {
    for _ in 0..3 {
        let began = Instant::now();
        let other = farm.submit_sleeps("other", PROBLEMS, 1, 1).await;
        assert_eq!(farm.ended(other, LONG).await, "done");
        eprintln!("another job took {:?}", began.elapsed());
    }
}

#[tokio::test]
async fn a_write_back_that_never_ends_holds_up_its_job_type_alone() {
    let farm = Farm::new().await;
    let writer = format!("{}_w", farm.query("select current_database()::text", &[]).await[0].get::<_, &str>(0));
    farm.run(&format!(
        "create role {writer} nologin;
         create schema written;
         create table written.result (key text);
         create function written.write(keys text[]) returns void language plpgsql as $$ begin
             perform pg_catalog.pg_sleep(600);
         end $$;
         grant usage on schema written to {writer};
         grant insert on written.result to {writer}"
    ))
    .await;
    farm.job_type("hanging", "digest", json!({"max_attempts": 50, "write_role": writer})).await;
    farm.job_type("other", "digest", json!({})).await;
    farm.query("select pcfarm.set_write_back('hanging', $1)", &[&"select written.write($1), $2 is null"]).await;
    let server = serving(&farm).await;
    let agents = ["one", "two"].map(|name| farm.working(name, &[&server]));
    let hanging = farm.submit_sleeps("hanging", PROBLEMS, 1, 1).await;
    let hangs =
        "select exists (select from pg_stat_activity a where a.state = 'active' and a.datname = current_database()
        and a.wait_event = 'PgSleep')";
    farm.until(SOON, hangs).await;
    let began = Instant::now();
    others_end(&farm).await;
    // A statement of a line, and one for each delivery up to the first that was at fault; not one for each.
    let waited = began.elapsed();
    assert!(waited < STATEMENT * PROBLEMS as u32 / 4, "others waited for {waited:?}");
    assert_eq!(farm.progress(hanging).await.0, 0);
    let one_at_a_time = "select count(*) <= 3 from pg_stat_activity a where a.state = 'active'
        and a.datname = current_database() and a.wait_event = 'PgSleep'";
    farm.until(SOON, one_at_a_time).await;
    farm.run(
        "create or replace function written.write(keys text[]) returns void language sql as $$
        insert into written.result select unnest(keys) $$",
    )
    .await;
    assert_eq!(farm.ended(hanging, LONG).await, "done");
    assert_eq!(farm.number("select count(distinct key) from written.result").await, PROBLEMS);
    farm.check(&[]).await;
    drop((server, agents));
    farm.run("select pcfarm.set_write_back('hanging', null)").await;
    farm.run(&format!("drop owned by {writer} cascade; drop role {writer}")).await;
}

#[tokio::test]
async fn a_locked_job_holds_up_no_other() {
    let farm = Farm::new().await;
    farm.job_type("other", "digest", json!({})).await;
    let server = serving(&farm).await;
    let _agents = ["one", "two"].map(|name| farm.working(name, &[&server]));
    let locked = farm.submit_sleeps("other", 400, 50, 1).await;
    farm.finished(locked, 1, SOON).await;
    let (somebody, _connection) = connect(&farm.url().parse().expect("a URL")).await.expect("connected");
    let text = format!(
        "begin; select from pcfarm.progress where job_id = {locked} for update;
         select from pcfarm.job where job_id = {locked} for update"
    );
    somebody.batch_execute(&text).await.expect("locked");
    let began = Instant::now();
    others_end(&farm).await;
    let waited = began.elapsed();
    assert!(waited < Duration::from_secs(60), "others waited for {waited:?}");
    somebody.batch_execute("rollback").await.expect("let go");
    assert_eq!(farm.ended(locked, LONG).await, "done");
    farm.check(&[]).await;
}

#[tokio::test]
async fn a_locked_limit_holds_up_nobody_elses_hand_outs() {
    let farm = Farm::new().await;
    for job_type in ["bound", "other"] {
        farm.job_type(job_type, "digest", json!({})).await;
        farm.run(&format!(
            "select pcfarm.set_resource('of_{job_type}', 8);
             select pcfarm.set_job_type_resources('{job_type}', '{{\"of_{job_type}\": 1}}')"
        ))
        .await;
    }
    let server = serving(&farm).await;
    let _agents = ["one", "two"].map(|name| farm.working(name, &[&server]));
    let (somebody, _connection) = connect(&farm.url().parse().expect("a URL")).await.expect("connected");
    let lock = "begin; select from pcfarm.resource where name = 'of_bound' for update";
    somebody.batch_execute(lock).await.expect("locked");
    let bound = farm.submit_sleeps("bound", PROBLEMS, 1, 1).await;
    let began = Instant::now();
    others_end(&farm).await;
    let waited = began.elapsed();
    assert!(waited < Duration::from_secs(60), "others waited for {waited:?}");
    assert_eq!(farm.progress(bound).await.0, 0);
    assert!(!server.program.log().contains("handing out failed"));
    somebody.batch_execute("rollback").await.expect("let go");
    assert_eq!(farm.ended(bound, LONG).await, "done");
    farm.check(&[]).await;
}
