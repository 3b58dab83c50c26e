//! Hundreds of light agents on one server: killed and started again under all of them, and more of them than it takes.

use std::time::Duration;

use pcfarm_bench::farm::{Farm, LONG, SOON};
use pcfarm_bench::light::{Herd, Nothing, Pace};
use pcfarm_sql::connect::connect;
use serde_json::json;
use tokio::time::{Instant, sleep};

const HERD: usize = 300;

/// Longer than anybody needs to come back, so that a slow machine does not make a death of it.
const LEASE: &str = "15";

/// Polls until this is true.
async fn until(what: &str, is_true: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_true() {
        assert!(Instant::now() < deadline, "after {LONG:?}: not {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_herd_is_back_after_its_server_was_killed_and_nobody_is_dead() {
    let farm = Farm::new().await;
    farm.job_type("noop", "echo", json!({})).await;
    let mut server = farm.serving("a", &["--lease", LEASE, "--checkout-problems", "4"]).await;
    let herd = Herd::start(&[server.url()], HERD, std::sync::Arc::new(Nothing));
    herd.connected(HERD, LONG).await.expect("a herd");
    let job =
        farm.submit("noop", "select i::text as key, to_jsonb(i) as payload from generate_series(1, 4000) i", 1).await;
    let hold = Duration::from_millis(300);
    herd.pace(Pace { draw: true, spread: hold, hold });
    until("at work", || herd.book.accepted() > 500).await;
    server.program.kill();
    until("everybody gone", || herd.book.connected() == 0).await;
    server.start().await;
    herd.connected(HERD, LONG).await.expect("everybody back");
    assert_eq!(farm.ended(job, LONG).await, "done");
    farm.until(SOON, "select count(*) = 0 from pcfarm.in_progress").await;
    assert!(!server.program.log().contains("declared dead"));
    assert_eq!(farm.number("select count(*) from pcfarm.workstation").await, HERD as i64);
    let charged = "select count(*) from pcfarm.requeued where attempts + losses > 0";
    assert_eq!(farm.number(charged).await, 0, "a restart cost problems something");
    assert_eq!(herd.book.refused(), 0);
    farm.check(&[]).await;
}

/// A server reads nothing more of an agent whose results it has no room for, and cannot hear its heartbeats.
#[tokio::test]
#[ignore = "nightly: waits for longer than a lease"]
async fn who_is_kept_waiting_by_a_full_server_is_not_silent() {
    let farm = Farm::new().await;
    farm.job_type("noop", "echo", json!({})).await;
    let lease = Duration::from_secs(8);
    let server = farm.serving("a", &["--lease", "8", "--checkout-problems", "1"]).await;
    let herd = Herd::start(&[server.url()], HERD, std::sync::Arc::new(Nothing));
    herd.connected(HERD, LONG).await.expect("a herd");
    let problems = format!("select i::text as key, to_jsonb(i) as payload from generate_series(1, {}) i", 2 * HERD);
    let job = farm.submit("noop", &problems, 1).await;
    let (somebody, _connection) = connect(&farm.url().parse().expect("a URL")).await.expect("connected");
    somebody.batch_execute("begin; lock table pcfarm.result in access exclusive mode").await.expect("locked");
    herd.pace(Pace { draw: true, ..Pace::default() });
    until("at work", || herd.book.hand_outs() >= HERD as u64).await;
    // Whoever was to be declared dead would be by then.
    sleep(lease * 2).await;
    assert_eq!(herd.book.accepted(), 0);
    somebody.batch_execute("rollback").await.expect("let go");
    assert_eq!(farm.ended(job, LONG).await, "done");
    assert!(!server.program.log().contains("declared dead"));
    let charged = "select count(*) from pcfarm.requeued where attempts + losses > 0";
    assert_eq!(farm.number(charged).await, 0, "a lock cost problems something");
    assert_eq!(herd.book.refused(), 0);
    farm.check(&[]).await;
}

#[tokio::test]
async fn one_address_gets_its_connections_and_no_more() {
    let farm = Farm::new().await;
    let mut server = farm.serving("a", &["--connections-per-address", "20"]).await;
    let herd = Herd::start(&[server.url()], 30, std::sync::Arc::new(Nothing));
    server.program.says("too many connections", SOON).await;
    herd.connected(20, LONG).await.expect("as many as may");
    assert_eq!(herd.book.connected(), 20);
    drop(herd);
    // Their places are free again.
    let herd = Herd::start(&[server.url()], 20, std::sync::Arc::new(Nothing));
    herd.connected(20, LONG).await.expect("as many as before");
}
