//! What stands in the way of some problems holds up no others.

use pcfarm_bench::farm::{Farm, LONG, Server};
use pcfarm_sql::connect::connect;
use serde_json::json;
use std::time::{Duration, Instant};

/// As long as a statement of the server may take here, and as it may wait for a lock.
const STATEMENT: Duration = Duration::from_secs(4);
const LOCK: Duration = Duration::from_secs(2);

const PROBLEMS: i64 = 40;

/// What others may wait at first, until it is known what stands in the way; far less than it takes to try it with each.
const AT_FIRST: Duration = Duration::from_secs(30);

async fn serving(farm: &Farm, flags: &[&str]) -> Server {
    let joint = if farm.url().contains('?') { '&' } else { '?' };
    let settings = format!("-c statement_timeout={}s -c lock_timeout={}s", STATEMENT.as_secs(), LOCK.as_secs());
    let settings = settings.replace(' ', "%20").replace('=', "%3D");
    let mut server = farm.server("a", flags);
    let address = format!("{}{joint}options={settings}", farm.url());
    server.program = server.program.replacing_argument("--database-url", &address);
    server.start().await;
    server
}

/// Problems of other jobs come and go, as if there was nothing, for so long.
async fn others_end(farm: &Farm, until: Duration) {
    let began = Instant::now();
    let mut longest = Duration::ZERO;
    for job in 0.. {
        let since = Instant::now();
        let other = farm.submit_sleeps("other", PROBLEMS, 1, 1).await;
        assert_eq!(farm.ended(other, LONG).await, "done");
        if job == 0 {
            assert!(since.elapsed() < AT_FIRST, "others waited for {:?}", since.elapsed());
        } else {
            longest = longest.max(since.elapsed());
        }
        if began.elapsed() > until {
            break;
        }
    }
    // A second job like it would have waited as the first did.
    assert!(longest < AT_FIRST / 2, "later ones waited for {longest:?}");
}

/// Role and table that a write-back writes to.
async fn written(farm: &Farm) -> String {
    let writer = format!("{}_w", farm.query("select current_database()::text", &[]).await[0].get::<_, &str>(0));
    farm.run(&format!(
        "create role {writer} nologin;
         create schema written;
         create table written.result (key text);
         create function written.write(keys text[]) returns void language sql as $$
             insert into written.result select unnest(keys) $$;
         grant usage on schema written to {writer};
         grant insert on written.result to {writer}"
    ))
    .await;
    farm.job_type("writing", "digest", json!({"max_attempts": 50, "write_role": writer})).await;
    farm.job_type("other", "digest", json!({})).await;
    farm.query("select pcfarm.set_write_back('writing', $1)", &[&"select written.write($1), $2 is null"]).await;
    writer
}

async fn forget(farm: &Farm, writer: &str) {
    farm.run("select pcfarm.set_write_back('writing', null)").await;
    farm.run(&format!("drop owned by {writer} cascade; drop role {writer}")).await;
}

#[tokio::test]
#[ignore = "nightly: waits for several statement timeouts"]
async fn a_write_back_that_never_ends_holds_up_its_job_type_alone() {
    let farm = Farm::new().await;
    let writer = written(&farm).await;
    farm.run(
        "create or replace function written.write(keys text[]) returns void language plpgsql as $$ begin
            perform pg_catalog.pg_sleep(600);
        end $$",
    )
    .await;
    // More than one result in a delivery: what it is that takes so long is looked for.
    let mut server = serving(&farm, &["--checkout-problems", "8"]).await;
    let agents = ["one", "two"].map(|name| farm.working(name, &[&server]));
    let hanging = farm.submit_sleeps("writing", PROBLEMS, 1, 1).await;
    server.program.says("nothing is handed out", LONG).await;
    others_end(&farm, STATEMENT * 6).await;
    assert_eq!(farm.progress(hanging).await.0, 0);
    farm.run(
        "create or replace function written.write(keys text[]) returns void language sql as $$
        insert into written.result select unnest(keys) $$",
    )
    .await;
    assert_eq!(farm.ended(hanging, LONG).await, "done");
    assert_eq!(farm.number("select count(distinct key) from written.result").await, PROBLEMS);
    assert_eq!(farm.number("select count(*) from written.result").await, PROBLEMS, "each once");
    farm.check(&[]).await;
    drop((server, agents));
    forget(&farm, &writer).await;
}

#[tokio::test]
#[ignore = "nightly: waits for a dozen statement timeouts"]
async fn one_result_that_is_never_written_back_fails_and_the_others_are_stored() {
    let farm = Farm::new().await;
    let writer = written(&farm).await;
    farm.run(
        "create or replace function written.write(keys text[]) returns void language plpgsql as $$ begin
            if keys && '{problem 3,problem 5,problem 14}' then
                perform pg_catalog.pg_sleep(600);
            end if;
            insert into written.result select unnest(keys);
        end $$;
        update pcfarm.job_type set max_attempts = 1 where name = 'writing'",
    )
    .await;
    let server = serving(&farm, &["--checkout-problems", "16"]).await;
    let agent = farm.working("one", &[&server]);
    let job = farm.submit_sleeps("writing", 16, 1, 16).await;
    assert_eq!(farm.ended(job, LONG * 2).await, "failed");
    let failed = "select count(*) from pcfarm.job_problems where state = 'failed'
        and message like '%statement timeout%' and key in ('problem 3', 'problem 5', 'problem 14')";
    assert_eq!(farm.number(failed).await, 3);
    // Two were found; with the third a few may have failed.
    let stored = farm.number("select count(*) from written.result").await;
    assert!((9..=13).contains(&stored), "{stored} were stored");
    assert_eq!(farm.progress(job).await.0, stored);
    farm.check(&[]).await;
    drop((server, agent));
    forget(&farm, &writer).await;
}

#[tokio::test]
#[ignore = "nightly: waits for lock timeouts and back-off"]
async fn a_job_whose_results_meet_a_lock_holds_up_no_other() {
    let farm = Farm::new().await;
    let writer = written(&farm).await;
    let mut server = serving(&farm, &["--checkout-problems", "1"]).await;
    let agents = ["one", "two"].map(|name| farm.working(name, &[&server]));
    let (somebody, _connection) = connect(&farm.url().parse().expect("a URL")).await.expect("connected");
    somebody.batch_execute("begin; lock table written.result in share mode").await.expect("locked");
    let locked = farm.submit_sleeps("writing", 400, 1, 1).await;
    server.program.says("nothing is handed out", LONG).await;
    others_end(&farm, LOCK * 8).await;
    assert_eq!(farm.progress(locked).await.0, 0);
    somebody.batch_execute("rollback").await.expect("let go");
    assert_eq!(farm.ended(locked, LONG).await, "done");
    assert_eq!(farm.number("select count(*) from written.result").await, 400);
    let charged = "select count(*) from pcfarm.requeued where attempts + losses > 0";
    assert_eq!(farm.number(charged).await, 0, "a lock cost problems something");
    farm.check(&[]).await;
    drop((server, agents));
    forget(&farm, &writer).await;
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
    let server = serving(&farm, &["--checkout-problems", "1"]).await;
    let _agents = ["one", "two"].map(|name| farm.working(name, &[&server]));
    let (somebody, _connection) = connect(&farm.url().parse().expect("a URL")).await.expect("connected");
    let lock = "begin; select from pcfarm.resource where name = 'of_bound' for update";
    somebody.batch_execute(lock).await.expect("locked");
    let bound = farm.submit_sleeps("bound", PROBLEMS, 1, 1).await;
    others_end(&farm, Duration::from_secs(8)).await;
    assert_eq!(farm.progress(bound).await.0, 0);
    assert!(!server.program.log().contains("handing out failed"));
    somebody.batch_execute("rollback").await.expect("let go");
    assert_eq!(farm.ended(bound, LONG).await, "done");
    farm.check(&[]).await;
}

/// Each is tried before the first is tried again.
#[tokio::test]
async fn a_thousand_jobs_that_somebody_has_locked_hold_up_none_behind_them() {
    const JOBS: i64 = 1_100;
    let farm = Farm::new().await;
    farm.job_type("other", "digest", json!({})).await;
    // On a slow machine all at once would take longer than a query may.
    for first in (1..=JOBS).step_by(100) {
        farm.query(
            "select pcfarm.submit('locked ' || n, 'other', 'select ''p'' as key, ''{\"ms\": 1}''::jsonb as payload', 1)
             from generate_series($1::bigint, $1 + 99) n",
            &[&first],
        )
        .await;
    }
    let (mut client, _connection) = connect(&farm.url().parse().expect("a URL")).await.expect("connected");
    let locking = client.transaction().await.expect("begun");
    locking.execute("select from pcfarm.job for update", &[]).await.expect("locked");
    let behind = farm.submit_sleeps("other", PROBLEMS, 1, 1).await;
    let server = serving(&farm, &[]).await;
    let agent = farm.working("one", &[&server]);
    assert_eq!(farm.ended(behind, LONG).await, "done");
    assert_eq!(farm.number("select count(*) from pcfarm.job where state = 'open'").await, JOBS);
    locking.rollback().await.expect("let go");
    farm.until(LONG * 2, "select count(*) = 0 from pcfarm.job where state <> 'done'").await;
    farm.check(&[]).await;
    drop((server, agent));
}

/// Looks at all lanes read more than hand-outs do.
#[tokio::test]
async fn what_is_known_is_handed_out_while_nobody_can_tell_what_else_there_is() {
    let farm = Farm::new().await;
    farm.job_type("other", "digest", json!({})).await;
    let mut server = serving(&farm, &["--checkout-problems", "1"]).await;
    let agent = farm.working("one", &[&server]);
    let known = farm.submit_sleeps("other", 8_000, 1, 1).await;
    farm.until(LONG, "select count(*) > 0 from pcfarm.result").await;
    let (somebody, _connection) = connect(&farm.url().parse().expect("a URL")).await.expect("connected");
    somebody.batch_execute("begin; lock table pcfarm.job_info in access exclusive mode").await.expect("locked");
    let unknown = farm.submit_sleeps("other", PROBLEMS, 1, 1).await;
    server.program.says("looking for lanes failed", LONG).await;
    assert_eq!(farm.ended(known, LONG).await, "done");
    assert_eq!(farm.progress(unknown).await.0, 0);
    somebody.batch_execute("rollback").await.expect("let go");
    assert_eq!(farm.ended(unknown, LONG).await, "done");
    farm.check(&[]).await;
    drop((server, agent));
}
