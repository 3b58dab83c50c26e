//! Agents, servers and recyclers that die or stand still in the middle.

use std::time::Duration;

use pcfarm_bench::farm::{Farm, LEASE, LONG, SOON};
use pcfarm_proto::PROTOCOL_VERSION;
use pcfarm_proto::v1::agent_message::Message as Out;
use pcfarm_proto::v1::agent_service_client::AgentServiceClient;
use pcfarm_proto::v1::server_message::Message as In;
use pcfarm_proto::v1::{
    AgentMessage, Checkout, CheckoutResults, Credit, Delivery, Hello, ProblemResult, ServerMessage, Verdict,
    problem_result,
};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

/// Problems that came back and were charged for it: none of them was at fault.
const CHARGED: &str = "select count(*) from pcfarm.requeued where attempts + losses > 0";

#[tokio::test]
async fn a_killed_agents_work_is_done_by_others() {
    let farm = Farm::new().await;
    farm.job_type("digest", "digest", json!({})).await;
    let server = farm.serving("a", &[]).await;
    let mut killed = farm.working("killed", &[&server]);
    let _lives = farm.working("lives", &[&server]);
    let job = farm.submit_sleeps("digest", 400, 20, 10).await;
    farm.finished(job, 50, SOON).await;
    killed.kill();
    farm.until(SOON, "select state = 'dead' from pcfarm.workstation where hostname = 'killed'").await;
    assert_eq!(farm.ended(job, LONG).await, "done");
    assert!(farm.progress(job).await.2 > 0, "nothing was in its hands");
    farm.check(&[job]).await;
}

#[tokio::test]
async fn an_agent_that_slept_past_its_lease_asks_and_works_again() {
    let farm = Farm::new().await;
    farm.job_type("digest", "digest", json!({})).await;
    let server = farm.serving("a", &[]).await;
    let mut sleeper = farm.working("sleeper", &[&server]);
    let _awake = farm.working("awake", &[&server]);
    let job = farm.submit_sleeps("digest", 3000, 20, 10).await;
    farm.finished(job, 50, SOON).await;
    sleeper.freeze();
    farm.until(SOON, "select state = 'dead' from pcfarm.workstation where hostname = 'sleeper'").await;
    let text = "select count(*) = 0 from pcfarm.in_progress where hostname = 'sleeper'";
    farm.until(SOON, text).await;
    let before = farm.noted("sleeper", "solved");
    sleeper.thaw();
    farm.until(SOON, "select state = 'processing' from pcfarm.workstation_status where hostname = 'sleeper'").await;
    farm.until(SOON, &format!("select done > 500 from pcfarm.job_progress where job_id = {job}")).await;
    assert!(farm.noted("sleeper", "solved") > before);
    farm.run(&format!("select pcfarm.hold_job({job})")).await;
    farm.until(SOON, "select count(*) = 0 from pcfarm.in_progress").await;
    farm.check(&[job]).await;
}

/// An agent made by hand, that does as it is told.
struct Puppet {
    out: mpsc::Sender<AgentMessage>,
    messages: Streaming<ServerMessage>,
}

impl Puppet {
    async fn connect(url: String, hello: Hello) -> Puppet {
        let mut client = AgentServiceClient::connect(url).await.expect("the server answers");
        let (out, requests) = mpsc::channel(16);
        let message = |message| AgentMessage { message: Some(message) };
        out.send(message(Out::Hello(hello))).await.expect("room");
        let messages = client.work(ReceiverStream::new(requests)).await.expect("a stream").into_inner();
        let mut puppet = Puppet { out, messages };
        assert!(matches!(puppet.next().await, In::Welcome(_)));
        puppet
    }

    async fn say(&self, message: Out) {
        self.out.send(AgentMessage { message: Some(message) }).await.expect("the stream is open");
    }

    async fn next(&mut self) -> In {
        loop {
            let message = tokio::time::timeout(SOON, self.messages.message()).await.expect("a message comes");
            match message.expect("the stream goes on").and_then(|m| m.message).expect("a message that we know") {
                // The puppet has no lease to keep.
                In::Heard(_) => {}
                message => return message,
            }
        }
    }
}

fn forged(checkout: &Checkout) -> Out {
    let result = |problem_id| ProblemResult {
        problem_id,
        outcome: Some(problem_result::Outcome::Solution(br#"{"digest":"forged"}"#.as_slice().into())),
        more: None,
    };
    Out::Delivery(Delivery {
        delivery_id: 1,
        checkouts: vec![CheckoutResults {
            checkout_id: checkout.checkout_id,
            token: checkout.token,
            results: checkout.problems.iter().map(|p| result(p.problem_id)).collect(),
            finished: true,
            ..CheckoutResults::default()
        }],
    })
}

#[tokio::test]
async fn what_comes_after_a_revocation_is_refused_and_counted() {
    let farm = Farm::new().await;
    farm.job_type("digest", "digest", json!({})).await;
    let server = farm.serving("a", &[]).await;
    let job = farm.submit_sleeps("digest", 20, 1, 5).await;
    let hello = Hello {
        protocol_version: PROTOCOL_VERSION,
        identity: "7b3f9a52-0d0e-4a9c-8f7e-2a5c0f9f0001".to_owned(),
        instance: "7b3f9a52-0d0e-4a9c-8f7e-2a5c0f9f0002".to_owned(),
        hostname: "puppet".to_owned(),
        cores: 1,
        controllers: vec!["digest".to_owned()],
        ..Hello::default()
    };
    let mut puppet = Puppet::connect(server.url(), hello.clone()).await;
    puppet.say(Out::Credit(Credit { checkouts: 1 })).await;
    let In::Checkout(checkout) = puppet.next().await else { panic!("no checkout came") };
    // Silent from here on.
    farm.until(SOON, "select state = 'dead' from pcfarm.workstation where hostname = 'puppet'").await;
    let revoked =
        format!("select ending = 'revoked' from pcfarm.checkout where checkout_id = {}", checkout.checkout_id);
    farm.until(SOON, &revoked).await;

    let mut puppet = Puppet::connect(server.url(), hello).await;
    for verdict in [Verdict::Revoked, Verdict::Unknown] {
        let mut late = checkout.clone();
        late.token = if verdict == Verdict::Unknown { checkout.token ^ 1 } else { checkout.token };
        puppet.say(forged(&late)).await;
        let ack = loop {
            match puppet.next().await {
                In::DeliveryAck(ack) => break ack,
                // The server may say what this connection was not asked about.
                In::Revoke(_) => {}
                other => panic!("{other:?} came instead of an acknowledgement"),
            }
        };
        assert_eq!(ack.verdicts[0].verdict(), verdict, "{ack:?}");
        assert_eq!(ack.verdicts[0].accepted, 0);
    }
    let refused = 2 * checkout.problems.len();
    farm.until(SOON, &format!("select refused_results = {refused} from pcfarm.server")).await;
    let _agent = farm.working("honest", &[&server]);
    assert_eq!(farm.ended(job, LONG).await, "done");
    farm.check(&[job]).await;
}

#[tokio::test]
async fn agents_of_a_killed_server_go_on_with_another_at_once() {
    let farm = Farm::new().await;
    farm.job_type("digest", "digest", json!({})).await;
    let (mut a, b) = tokio::join!(farm.serving("a", &[]), farm.serving("b", &[]));
    let _agents: Vec<_> = ["one", "two", "three", "four"].map(|name| farm.working(name, &[&a, &b])).into();
    let job = farm.submit_sleeps("digest", 1500, 20, 10).await;
    farm.finished(job, 100, SOON).await;
    farm.until(SOON, "select count(*) = 4 from pcfarm.workstation").await;
    a.program.kill();
    // Two seconds on a machine of one's own.
    let moved =
        "select count(*) = 4 from pcfarm.workstation w join pcfarm.server s using (server_id) where s.name = 'b'";
    farm.until(LEASE * 2, moved).await;
    assert_eq!(farm.ended(job, LONG).await, "done");
    assert_eq!(farm.number(CHARGED).await, 0, "a server's death cost problems something");
    assert_eq!(farm.number("select count(*) from pcfarm.workstation where state = 'dead'").await, 0);
    farm.check(&[job]).await;
}

#[tokio::test]
async fn a_lone_server_is_killed_and_comes_back() {
    let farm = Farm::new().await;
    farm.job_type("digest", "digest", json!({})).await;
    let mut server = farm.serving("a", &[]).await;
    let _agents: Vec<_> = ["one", "two"].map(|name| farm.working(name, &[&server])).into();
    let job = farm.submit_sleeps("digest", 800, 20, 10).await;
    for finished in [100, 250] {
        farm.finished(job, finished, SOON).await;
        server.program.kill();
        server.start().await;
    }
    assert_eq!(farm.ended(job, LONG).await, "done");
    assert_eq!(farm.number(CHARGED).await, 0, "a server's death cost problems something");
    farm.check(&[job]).await;
}

#[tokio::test]
async fn a_frozen_server_costs_other_servers_agents_nothing() {
    let farm = Farm::new().await;
    farm.job_type("digest", "digest", json!({})).await;
    let (mut a, b) = tokio::join!(farm.serving("a", &[]), farm.serving("b", &[]));
    let _of_a: Vec<_> = ["one", "two"].map(|name| farm.working(name, &[&a])).into();
    let _of_b: Vec<_> = ["three", "four"].map(|name| farm.working(name, &[&b])).into();
    let job = farm.submit_sleeps("digest", 3000, 10, 10).await;
    farm.finished(job, 100, SOON).await;
    farm.until(SOON, "select count(*) = 4 from pcfarm.workstation").await;
    let frozen_at = farm.query("select clock_timestamp()::text", &[]).await[0].get::<_, String>(0);
    a.program.freeze();
    let over = LEASE.as_secs() * 3;
    farm.until(SOON, &format!("select clock_timestamp() > '{frozen_at}'::timestamptz + interval '{over} s'")).await;
    a.program.thaw();
    assert_eq!(farm.ended(job, LONG).await, "done");
    let wrongly = "select count(*) from pcfarm.checkout c join pcfarm.workstation w using (workstation_id)
        where w.hostname in ('three', 'four') and c.ending = 'revoked'";
    assert_eq!(farm.number(wrongly).await, 0);
    // Those of the frozen server are taken up again.
    let next = farm.submit_sleeps("digest", 3000, 10, 1).await;
    let all = format!("select count(distinct workstation_id) = 4 from pcfarm.checkout where job_id = {next}");
    farm.until(SOON, &all).await;
    assert_eq!(farm.ended(next, LONG).await, "done");
    farm.check(&[job, next]).await;
}

#[tokio::test]
async fn a_recycler_of_its_own_is_killed_and_comes_back_or_comes_now_and_then() {
    let farm = Farm::new().await;
    farm.job_type("digest", "digest", json!({})).await;
    let server = farm.serving("a", &["--no-recycler"]).await;
    let mut recycler = farm.recycler("recycler", &["--every", "1"]);
    recycler.start();
    let mut victims: Vec<_> = ["one", "two", "three"].map(|name| farm.working(name, &[&server])).into();
    let _lives = farm.working("lives", &[&server]);
    let job = farm.submit_sleeps("digest", 2000, 20, 10).await;
    farm.finished(job, 50, SOON).await;
    let dead = |name| format!("select state = 'dead' from pcfarm.workstation where hostname = '{name}'");
    let empty = |name| format!("select count(*) = 0 from pcfarm.in_progress where hostname = '{name}'");

    victims[0].kill();
    farm.until(SOON, &dead("one")).await;
    farm.until(SOON, &empty("one")).await;

    victims[1].kill();
    recycler.kill();
    recycler.start();
    farm.until(SOON, &dead("two")).await;
    farm.until(SOON, &empty("two")).await;

    recycler.kill();
    victims[2].kill();
    let silent = format!(
        "select silent_since < clock_timestamp() - interval '{} s' from pcfarm.workstation where hostname = 'three'",
        LEASE.as_secs()
    );
    farm.until(SOON, &silent).await;
    assert!(!farm.query(&dead("three"), &[]).await[0].get::<_, bool>(0), "somebody else recycles");
    let mut once = farm.recycler("once", &[]);
    once.start();
    let status = once.ended(Duration::from_secs(10)).await;
    assert!(status.success(), "{status}");
    farm.until(Duration::from_secs(1), &dead("three")).await;
    farm.until(Duration::from_secs(1), &empty("three")).await;
    assert_eq!(farm.ended(job, LONG).await, "done");
    farm.check(&[job]).await;
}
