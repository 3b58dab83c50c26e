//! PostgreSQL dies or stands still in the middle: nothing is lost or doubled, and no workstation is blamed for it.

use std::time::Duration;

use pcfarm_bench::farm::{Farm, LEASE, LONG, SOON, Server};
use pcfarm_bench::postgres;
use pcfarm_sql::cluster::{Cluster, ClusterOptions};
use pcfarm_sql::testing;
use serde_json::json;

const CHARGED: &str = "select count(*) from pcfarm.requeued where attempts + losses > 0";

async fn cluster() -> Cluster {
    let options = ClusterOptions { durable: true, ..testing::test_cluster_options() };
    Cluster::start(options).await.expect("a private cluster starts")
}

#[tokio::test]
async fn postgresql_is_killed_and_comes_back() {
    let mut cluster = cluster().await;
    let farm = Farm::of(testing::database_on(cluster.config()).await);
    farm.job_type("digest", "digest", json!({})).await;
    let (a, b) = tokio::join!(farm.serving("a", &[]), farm.serving("b", &[]));
    let _agents: Vec<_> = ["one", "two", "three"].map(|name| farm.working(name, &[&a, &b])).into();
    let job = farm.submit_sleeps("digest", 2500, 10, 10).await;
    for finished in [200, 700] {
        farm.finished(job, finished, LONG).await;
        let kept = farm.progress(job).await.0;
        cluster.crash().await.expect("killed");
        tokio::time::sleep(LEASE + Duration::from_millis(500)).await; // an outage longer than the lease is the point
        cluster.start_again().await.expect("started again");
        farm.until(SOON, "select true").await;
        assert!(farm.progress(job).await.0 >= kept, "committed results are gone");
    }
    assert_eq!(farm.ended(job, LONG).await, "done");
    assert_eq!(farm.number(CHARGED).await, 0, "an outage cost problems something");
    assert_eq!(farm.number("select count(*) from pcfarm.workstation where state = 'dead'").await, 0);
    farm.check(&[job]).await;
}

#[tokio::test]
async fn postgresql_stands_still_for_twice_the_lease() {
    let cluster = cluster().await;
    let farm = Farm::of(testing::database_on(cluster.config()).await);
    farm.job_type("digest", "digest", json!({})).await;
    let (a, b) = tokio::join!(farm.serving("a", &[]), farm.serving("b", &[]));
    let _agents: Vec<_> = ["one", "two", "three"].map(|name| farm.working(name, &[&a, &b])).into();
    let job = farm.submit_sleeps("digest", 2500, 10, 10).await;
    farm.finished(job, 200, LONG).await;
    let postgresql = postgres::freeze(cluster.directory()).expect("a running cluster");
    tokio::time::sleep(LEASE * 2).await; // the outage itself
    postgres::thaw(&postgresql);
    assert_eq!(farm.ended(job, LONG).await, "done");
    assert_eq!(farm.number(CHARGED).await, 0, "an outage cost problems something");
    farm.check(&[job]).await;
}

/// Timeouts are no reason to give up a start: nothing but a refusal that lasts is.
#[tokio::test]
async fn server_starts_although_postgresql_stands_still_at_first() {
    let cluster = cluster().await;
    let farm = Farm::of(testing::database_on(cluster.config()).await);
    let Server { program, port } = farm.server("a", &[]);
    let separator = if farm.url().contains('?') { '&' } else { '?' };
    let impatient = format!("{}{separator}connect_timeout=1", farm.url());
    let mut server = Server { program: program.replacing_argument("--database-url", &impatient), port };
    let frozen = postgres::freeze(cluster.directory()).expect("a running cluster");
    server.program.start();
    server.program.says("the database does not answer: trying again", LONG).await;
    assert!(server.program.runs(), "{}", server.program.log());
    postgres::thaw(&frozen);
    server.ready().await;
}

/// A word that nobody could write down is no silence, however short the outage was beside the lease.
#[tokio::test]
async fn silence_marked_just_before_an_outage_does_not_grow_with_it() {
    let cluster = cluster().await;
    let farm = Farm::of(testing::database_on(cluster.config()).await);
    farm.job_type("digest", "digest", json!({})).await;
    let (a, b) = tokio::join!(farm.serving("a", &[]), farm.serving("b", &[]));
    let mut agents: Vec<_> = ["one", "two", "three"].map(|name| farm.working(name, &[&a, &b])).into();
    let job = farm.submit_sleeps("digest", 2500, 10, 10).await;
    farm.finished(job, 200, LONG).await;
    agents.iter_mut().for_each(|agent| agent.freeze());
    farm.until(SOON, "select count(silent_since) = 3 from pcfarm.workstation").await;
    let postgresql = postgres::freeze(cluster.directory()).expect("a running cluster");
    agents.iter_mut().for_each(|agent| agent.thaw());
    tokio::time::sleep(LEASE + LEASE / 2).await; // the outage itself
    postgres::thaw(&postgresql);
    assert_eq!(farm.ended(job, LONG).await, "done");
    assert_eq!(farm.number(CHARGED).await, 0, "an outage cost problems something");
    farm.check(&[job]).await;
}
