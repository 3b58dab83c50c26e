//! Agents on links as they are outside a laboratory: results arrive, and no workstation is declared dead that works. All rates,
//! delays and losses are measured by table `links`.

use std::sync::atomic::Ordering;
use std::time::Duration;

use pcfarm_bench::farm::{Farm, LONG, SOON, Server};
use pcfarm_bench::left_out;
use pcfarm_bench::links::{Link, Shape};
use pcfarm_bench::program::Program;
use serde_json::json;

/// Checks that this machine can make network namespaces and shape their links.
pub fn can_shape() -> bool {
    if !rustix::process::geteuid().is_root() {
        left_out::here("network namespaces need root");
        return false;
    }
    for program in ["ip", "tc", "nft", "conntrack"] {
        if std::process::Command::new(program).arg("-V").output().is_err() {
            left_out::for_want_of(program);
            return false;
        }
    }
    true
}

struct Site {
    farm: Farm,
    server: Server,
}

impl Site {
    async fn start(flags: &[&str]) -> Site {
        let farm = Farm::new().await;
        let mut all = vec!["--checkout-problems", "16"];
        all.extend(flags);
        let server = farm.serving("server", &all).await;
        farm.job_type("blob", "blob", json!({})).await;
        Site { farm, server }
    }

    async fn agent(&self, name: &str, link: &Link) -> Program {
        let mut agent = self.farm.agent_of(name, &[link.url()]).within(&link.namespace);
        agent.start();
        let there = format!("select exists (select from pcfarm.workstation where hostname = '{name}')");
        self.farm.until(SOON, &there).await;
        agent
    }

    async fn submit(&self, results: u32, bytes: u32) -> pcfarm_proto::ids::JobId {
        let query = format!(
            "select i::text as key, jsonb_build_object('bytes', {bytes}) as payload from generate_series(1, {results}) i"
        );
        self.farm.submit("blob", &query, 1).await
    }

    /// Checkouts that were taken from their workstations. One that was on its way when its connection broke is no loss.
    async fn revoked(&self) -> i64 {
        let text =
            "select count(*) from pcfarm.checkout where ending = 'revoked' and reason not like 'never received%'";
        self.farm.number(text).await
    }
}

#[tokio::test]
async fn results_that_take_longer_than_the_lease_arrive_over_slow_links() {
    if !can_shape() {
        return;
    }
    let site = Site::start(&["--lease", "2"]).await;
    // A solution takes a lease of each, and all of them several.
    for (kbit, results, bytes) in [(64, 3, 20_000), (1_000, 3, 250_000)] {
        let link = Link::up(Shape { kbit: Some(kbit), ..Shape::default() }, &site.server).await.expect("a link");
        let _agent = site.agent(&format!("at-{kbit}"), &link).await;
        let job = site.submit(results, bytes).await;
        assert_eq!(site.farm.ended(job, LONG).await, "done");
        assert_eq!(site.revoked().await, 0, "nobody is taken for dead at {kbit} kbit/s");
        assert_eq!(link.relay().connections(), 1, "no connection is given up at {kbit} kbit/s");
        let sent = link.relay().to_server_bytes();
        let stored = u64::from(results * bytes);
        assert!(sent < stored * 5 / 4, "{sent} bytes for {stored} at {kbit} kbit/s: something was sent again");
    }
}

/// The link carries 300 kB in ten seconds, and an agent waits for three leases, six seconds, for an answer.
#[tokio::test]
async fn all_that_a_result_brings_arrives_over_a_slow_link() {
    if !can_shape() {
        return;
    }
    let site = Site::start(&["--lease", "2"]).await;
    let link = Link::up(Shape { kbit: Some(256), ..Shape::default() }, &site.server).await.expect("a link");
    let _agent = site.agent("slow", &link).await;
    // A job's info has at most 64 KiB.
    let query = "select 'all' as key, '{\"bytes\": 100, \"enqueue\": 250, \"info\": 50000}'::jsonb as payload";
    let job = site.farm.submit("blob", query, 1).await;
    site.farm.finished(job, 1, LONG).await;
    assert_eq!(site.farm.progress(job).await.1, 0, "it failed");
    assert_eq!(site.farm.number(&format!("select count(*) from pcfarm.problem where job_id = {job}")).await, 251);
    assert_eq!(site.revoked().await, 0);
    assert_eq!(link.relay().connections(), 1, "no connection is given up");
    let sent = link.relay().to_server_bytes();
    assert!(sent < 400_000, "{sent} bytes: something was sent again");
}

#[tokio::test]
async fn results_arrive_from_afar_with_losses() {
    if !can_shape() {
        return;
    }
    let site = Site::start(&[]).await;
    let shape = Shape { kbit: Some(2_000), delay: Duration::from_millis(300), loss_percent: 2 };
    let link = Link::up(shape, &site.server).await.expect("a link");
    let _agent = site.agent("far", &link).await;
    let job = site.submit(10, 100_000).await;
    assert_eq!(site.farm.ended(job, LONG).await, "done");
    assert_eq!((site.revoked().await, link.relay().connections()), (0, 1));
}

/// The agent leaves connections on which nothing can be heard, and does not send stored results again.
#[tokio::test]
async fn a_changed_address_and_a_nat_that_forgets_cost_a_reconnection() {
    if !can_shape() {
        return;
    }
    let site = Site::start(&["--lease", "30", "--heartbeat", "5"]).await;
    let mut links = Vec::new();
    let (mut agents, mut jobs) = (Vec::new(), Vec::new());
    for name in ["vpn", "nat"] {
        let link = Link::up(Shape { kbit: Some(1_000), ..Shape::default() }, &site.server).await.expect("a link");
        agents.push(site.agent(name, &link).await);
        links.push(link);
    }
    links[1].namespace.forget_idle_connections(2).expect("a NAT");
    // From now on the NAT drops packets of the connections that it knew.
    links[1].namespace.inside_run("conntrack -F").expect("conntrack is there");
    jobs.push(site.submit(8, 100_000).await);
    links[0].namespace.change_address().expect("another address");
    for job in jobs {
        assert_eq!(site.farm.ended(job, LONG).await, "done");
    }
    assert_eq!(site.revoked().await, 0);
    for link in &links {
        let connections = link.relay().connections();
        assert!((2..=6).contains(&connections), "{connections} connections");
    }
}

/// A restart during which the address changes leaves a connection that is half open on the server. The new instance does not wait
/// until the lease has ended it.
#[tokio::test]
async fn an_agent_that_restarts_with_another_address_is_back_at_once() {
    if !can_shape() {
        return;
    }
    let site = Site::start(&["--lease", "600", "--heartbeat", "200"]).await;
    let link = Link::up(Shape::default(), &site.server).await.expect("a link");
    let mut agent = site.agent("vpn", &link).await;
    let session = site.farm.number("select session from pcfarm.workstation where silent_since is null").await;
    link.namespace.change_address().expect("another address");
    agent.kill();
    agent.start();
    let is_back = format!("select session > {session} and silent_since is null from pcfarm.workstation");
    site.farm.until(SOON, &is_back).await;
    assert_eq!(site.farm.number("select count(*) from pcfarm.event where what = 'workstation cloned'").await, 0);
}

#[tokio::test]
#[ignore = "nightly: 180 kB on a link of 64 kbit/s"]
async fn agents_that_share_a_slow_link_are_not_dead() {
    if !can_shape() {
        return;
    }
    let site = Site::start(&["--lease", "5", "--heartbeat", "1"]).await;
    let link = Link::up(Shape { kbit: Some(64), ..Shape::default() }, &site.server).await.expect("a link");
    let mut agents = Vec::new();
    for name in ["one", "two", "three"] {
        agents.push(site.agent(name, &link).await);
    }
    let job = site.submit(9, 20_000).await;
    assert_eq!(site.farm.ended(job, LONG).await, "done");
    assert_eq!(site.revoked().await, 0);
    let dead = "select count(*) from pcfarm.event where what = 'workstation dead'";
    assert_eq!(site.farm.number(dead).await, 0);
    // An agent may find a connection silent while others have the link; then it asks what is stored.
    assert!(link.relay().connections() <= 6, "{} connections", link.relay().connections());
}

#[tokio::test]
#[ignore = "nightly: a piece has half a minute before it is given up"]
async fn bytes_that_trickle_do_not_hold_work() {
    if !can_shape() {
        return;
    }
    let site = Site::start(&[]).await;
    let shape = Shape { kbit: Some(1_000), ..Shape::default() };
    let link = Link::up(shape, &site.server).await.expect("a link");
    let _agent = site.agent("trickling", &link).await;
    let job = site.submit(30, 100_000).await;
    site.farm.finished(job, 1, LONG).await;
    // The relay passes one byte a second of the agent's other results.
    link.relay().passed.trickle.store(1, Ordering::Relaxed);
    site.farm.until(LONG, "select exists (select from pcfarm.checkout where ending = 'revoked')").await;
    let healthy = Link::up(Shape::default(), &site.server).await.expect("a link");
    let _other = site.agent("healthy", &healthy).await;
    assert_eq!(site.farm.ended(job, LONG).await, "done");
}
