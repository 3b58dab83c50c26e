//! Whole jobs, and what people do to them while they run.

use std::time::{Duration, Instant};

use pcfarm_bench::farm::{Farm, LONG, SOON, Server, sleeps};
use pcfarm_proto::ids::JobId;
use pcfarm_proto::v1;
use pcfarm_proto::v1::job_service_client::JobServiceClient;
use pcfarm_proto::v1::submit_request::Part;
use serde_json::json;

#[tokio::test]
async fn a_job_over_two_servers_and_three_agents_is_done_and_right() {
    let farm = Farm::new().await;
    farm.job_type("digest", "digest", json!({})).await;
    let (a, b) = tokio::join!(farm.serving("a", &[]), farm.serving("b", &[]));
    let job = farm.submit_sleeps("digest", 4000, 1, 40).await;
    let _agents: Vec<_> = ["one", "two", "three"].map(|name| farm.working(name, &[&a, &b])).into();
    assert_eq!(farm.ended(job, LONG).await, "done");
    assert_eq!(farm.progress(job).await, (4000, 0, 0));
    let split = farm
        .number(&format!(
            "select count(*) from (
                select from pcfarm.problem p
                join pcfarm.result r on r.job_id = p.job_id and r.problem_id = p.problem_id
                join pcfarm.checkout c on c.checkout_id = r.checkout_id
                where p.job_id = {job} group by p.lane_id, p.batch_order
                having count(distinct c.workstation_id) > 1) s"
        ))
        .await;
    assert_eq!(split, 0, "convoys that were split between workstations");
    let workstations = format!("select count(distinct workstation_id) from pcfarm.checkout where job_id = {job}");
    assert_eq!(farm.number(&workstations).await, 3);
    farm.check(&[job]).await;
}

/// Submits a problem that takes so many milliseconds.
async fn submit_one(server: &Server, ms: u32) -> JobId {
    let header = v1::SubmitHeader {
        name: "one".to_owned(),
        job_type: "digest".to_owned(),
        open: true,
        ..v1::SubmitHeader::default()
    };
    let payload = json!({"n": 1, "ms": ms}).to_string().into();
    let problem = v1::SubmitProblem { key: "one".to_owned(), payload, ..v1::SubmitProblem::default() };
    let parts = [
        Part::Header(header),
        Part::Problems(v1::SubmitProblems { problems: vec![problem] }),
        Part::End(v1::SubmitEnd { problems: 1 }),
    ];
    let messages = parts.map(|part| v1::SubmitRequest { part: Some(part) });
    let mut client = JobServiceClient::connect(server.url()).await.expect("it answers");
    JobId(client.submit(tokio_stream::iter(messages)).await.expect("submitted").into_inner().job_id)
}

#[tokio::test]
async fn a_problem_that_comes_to_an_idle_farm_is_handed_out_by_its_submission() {
    let farm = Farm::new().await;
    farm.job_type("digest", "digest", json!({})).await;
    let server = farm.serving("a", &[]).await;
    let _agents = ["one", "two"].map(|name| farm.working(name, &[&server]));
    farm.until(SOON, "select count(*) = 2 from pcfarm.workstation where state = 'waiting'").await;
    let deadline = Instant::now() + LONG;
    loop {
        let job = submit_one(&server, 300).await;
        let by_its_submission = format!(
            "select count(*) from pcfarm.checkout c join pcfarm.problem p using (job_id, lane_id) \
             where c.job_id = {job} and c.ended_at is null and c.xmin = p.xmin"
        );
        let by_its_submission = farm.number(&by_its_submission).await;
        assert_eq!(farm.ended(job, LONG).await, "done");
        farm.check(&[job]).await;
        if by_its_submission == 1 {
            break;
        }
        // They may not have asked for work yet, or the dispatcher was looking for some.
        assert!(Instant::now() < deadline, "it never was");
    }
    // Who has one is not given the next while others wait.
    let pair = [submit_one(&server, 1000).await, submit_one(&server, 1000).await];
    for job in pair {
        assert_eq!(farm.ended(job, LONG).await, "done");
    }
    let [one, two] = pair;
    let workstations = "select count(distinct workstation_id) from pcfarm.checkout where job_id in";
    assert_eq!(farm.number(&format!("{workstations} ({one}, {two})")).await, 2);
    // What only a look can hand out costs nobody what it has asked for.
    farm.run("select pcfarm.set_profile('digest', '{\"problems_per_checkout\": 1}')").await;
    for _ in 0..10 {
        let job = submit_one(&server, 0).await;
        assert_eq!(farm.ended(job, LONG).await, "done");
    }
    farm.check(&pair).await;
}

#[tokio::test]
async fn a_submission_that_commits_late_keeps_nobody_waiting() {
    let farm = Farm::new().await;
    farm.job_type("digest", "digest", json!({})).await;
    // Longer than a workstation waits for what it was taken along for, and heartbeats that come too late to tell of it.
    farm.run("create function public.dawdle() returns trigger language plpgsql as 'begin perform pg_catalog.pg_sleep(2); return null; end'")
        .await;
    farm.run("create trigger dawdle after insert on pcfarm.job for each statement execute function public.dawdle()")
        .await;
    let server = farm.serving("a", &["--lease", "600", "--heartbeat", "200"]).await;
    // With a single credit.
    let mut agent = farm.agent("one", &[&server]).arguments(["--prefetch", "0"]);
    agent.start();
    farm.until(SOON, "select count(*) = 1 from pcfarm.workstation where state = 'waiting'").await;
    let deadline = Instant::now() + LONG;
    let taken_back = "select count(*) from pcfarm.requeued where message = 'never sent to its workstation'";
    // The first may have come before the agent had asked for work.
    while farm.number(taken_back).await == 0 {
        assert!(Instant::now() < deadline, "none was handed out by its submission");
        let job = submit_one(&server, 0).await;
        assert_eq!(farm.ended(job, LONG).await, "done");
        farm.check(&[job]).await;
    }
    assert_eq!(farm.number("select sum(attempts) from pcfarm.requeued").await, 0, "it cost somebody an attempt");
    farm.run("drop trigger dawdle on pcfarm.job").await;
    // Its workstation has what it asked for as ever.
    for _ in 0..10 {
        let job = submit_one(&server, 0).await;
        assert_eq!(farm.ended(job, LONG).await, "done");
    }
}

#[tokio::test]
async fn two_servers_start_at_once_on_an_empty_database() {
    let farm = Farm::of(pcfarm_sql::testing::empty_database().await);
    let (a, b) = tokio::join!(farm.serving("a", &[]), farm.serving("b", &[]));
    farm.job_type("digest", "digest", json!({})).await;
    let job = farm.submit_sleeps("digest", 50, 1, 5).await;
    let _agents = [farm.working("one", &[&a]), farm.working("two", &[&b])];
    assert_eq!(farm.ended(job, LONG).await, "done");
    farm.check(&[job]).await;
}

#[tokio::test]
async fn a_job_is_held_released_and_loaded_while_it_runs() {
    let farm = Farm::new().await;
    farm.job_type("digest", "digest", json!({})).await;
    let server = farm.serving("a", &[]).await;
    let _agent = farm.working("one", &[&server]);
    let job = farm.submit_sleeps("digest", 500, 10, 10).await;
    farm.finished(job, 20, SOON).await;
    farm.run(&format!("select pcfarm.hold_job({job})")).await;
    let last_hand_out = format!("select coalesce(max(checkout_id), 0) from pcfarm.checkout where job_id = {job}");
    let held_at = farm.number(&last_hand_out).await;
    let quiet = format!("select count(*) = 0 from pcfarm.checkout where job_id = {job} and ended_at is null");
    farm.until(SOON, &quiet).await;
    // Loading wakes dispatchers: a held job is handed out all the same to nobody.
    farm.run(&format!("select pcfarm.load({job}, $q$ {} $q$, 7)", sleeps(300, 1))).await;
    assert_eq!(farm.number(&last_hand_out).await, held_at, "handed out while held");
    farm.run(&format!("select pcfarm.release_job({job})")).await;
    assert_eq!(farm.ended(job, LONG).await, "done");
    assert_eq!(farm.progress(job).await.0, 800);
    farm.check(&[job]).await;
}

#[tokio::test]
async fn a_cancelled_job_stops_at_once_and_for_good() {
    let farm = Farm::new().await;
    farm.job_type("digest", "digest", json!({})).await;
    let server = farm.serving("a", &[]).await;
    let _agents = [farm.working("one", &[&server]), farm.working("two", &[&server])];
    let job = farm.submit_sleeps("digest", 100, 60_000, 1).await;
    let began = async |farm: &Farm| {
        while farm.noted("one", "began") + farm.noted("two", "began") < 4 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, began(&farm)).await.expect("all cores work");
    farm.run(&format!("select pcfarm.cancel_job({job})")).await;
    let told = async |farm: &Farm| {
        while farm.noted("one", "cancelled") + farm.noted("two", "cancelled") < 4 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), told(&farm)).await.expect("all cores hear that it is over");
    // The agents are free for others, and nothing of the first job was kept.
    let next = farm.submit_sleeps("digest", 50, 1, 5).await;
    assert_eq!(farm.ended(next, SOON).await, "done");
    assert_eq!(farm.progress(job).await, (0, 0, 0));
    farm.check(&[job, next]).await;
}

#[tokio::test]
async fn a_terminated_agent_hands_back_what_it_has_not_finished_at_no_cost() {
    let farm = Farm::new().await;
    farm.job_type("digest", "digest", json!({"max_attempts": 1})).await;
    let server = farm.serving("a", &[]).await;
    let mut leaving = farm.agent("leaving", &[&server]).arguments(["--grace", "1"]);
    leaving.start();
    let job = farm.submit_sleeps("digest", 60, 200, 20).await;
    farm.finished(job, 5, SOON).await;
    leaving.terminate();
    let status = leaving.ended(SOON).await;
    assert!(status.success(), "{status}");
    // Nobody had to die for it to come back.
    farm.until(SOON, &format!("select count(*) = 0 from pcfarm.checkout where job_id = {job} and ended_at is null"))
        .await;
    let revoked = format!("select count(*) from pcfarm.checkout where job_id = {job} and ending = 'revoked'");
    assert_eq!(farm.number(&revoked).await, 0);
    assert_eq!(farm.number("select count(*) from pcfarm.requeued where attempts + losses > 0").await, 0);
    let _stays = farm.working("stays", &[&server]);
    assert_eq!(farm.ended(job, LONG).await, "done");
    farm.check(&[job]).await;
}

#[tokio::test]
async fn a_drained_workstation_finishes_and_takes_no_more_until_the_drain_is_over() {
    use pcfarm_proto::v1::DrainWorkstationsRequest;
    use pcfarm_proto::v1::workstation_service_client::WorkstationServiceClient;
    let farm = Farm::new().await;
    farm.job_type("digest", "digest", json!({"max_attempts": 1})).await;
    let server = farm.serving("a", &[]).await;
    let _drained = farm.working("drained", &[&server]);
    let job = farm.submit_sleeps("digest", 300, 20, 5).await;
    farm.finished(job, 10, SOON).await;
    let workstation_id = farm.number("select workstation_id from pcfarm.workstation").await;
    let mut client = WorkstationServiceClient::connect(server.url()).await.expect("the server answers");
    let request = |undo| DrainWorkstationsRequest { workstation_ids: vec![workstation_id], undo, ..Default::default() };
    client.drain_workstations(request(false)).await.expect("drained");
    farm.until(SOON, "select state = 'draining' and checkouts = 0 from pcfarm.workstation_status").await;
    let (done, failed, requeued) = farm.progress(job).await;
    assert!(done < 300, "too late to see anything");
    assert_eq!((failed, requeued), (0, 0), "what it held was finished");
    let _other = farm.working("other", &[&server]);
    farm.finished(job, done + 20, SOON).await;
    client.drain_workstations(request(true)).await.expect("undrained");
    farm.until(
        SOON,
        "select state in ('waiting', 'processing') from pcfarm.workstation_status where hostname = 'drained'",
    )
    .await;
    assert_eq!(farm.ended(job, LONG).await, "done");
    // What it solved has told how fast it is.
    farm.until(LONG, "select exists (select from pcfarm.workstation_speed where problems_per_second > 0)").await;
    farm.check(&[job]).await;
}

#[tokio::test]
async fn what_is_not_finished_at_the_deadline_of_a_drain_is_given_back_at_no_cost() {
    use pcfarm_proto::v1::DrainWorkstationsRequest;
    use pcfarm_proto::v1::workstation_service_client::WorkstationServiceClient;
    let farm = Farm::new().await;
    farm.job_type("digest", "digest", json!({"max_attempts": 1})).await;
    let mut server = farm.serving("a", &[]).await;
    let mut drained = farm.working("drained", &[&server]);
    // One convoy, of which it solves some before and others never: the last would take an hour.
    let query =
        "select i::text as key, jsonb_build_object('n', i, 'ms', case when i < 4 then 1 else 3600000 end) as payload
        from generate_series(1, 6) i";
    let job = farm.submit("digest", query, 6).await;
    farm.finished(job, 3, SOON).await;
    let workstation_id = farm.number("select workstation_id from pcfarm.workstation").await;
    let mut client = WorkstationServiceClient::connect(server.url()).await.expect("the server answers");
    let deadline = Some(prost_types::Duration { seconds: 0, nanos: 500_000_000 });
    let request = DrainWorkstationsRequest { workstation_ids: vec![workstation_id], deadline, ..Default::default() };
    client.drain_workstations(request).await.expect("drained");
    farm.until(SOON, &format!("select count(*) = 0 from pcfarm.checkout where job_id = {job} and ended_at is null"))
        .await;
    let given_back = format!("select count(*) from pcfarm.checkout where job_id = {job} and ending = 'given_back'");
    assert_eq!(farm.number(&given_back).await, 1, "by its agent, and not taken from it");
    let back = format!("select count(*) from pcfarm.requeued where job_id = {job} and attempts + losses = 0");
    assert_eq!((farm.number(&back).await, farm.progress(job).await), (3, (3, 0, 3)));
    // It stays so when both are started anew.
    let session = farm.number("select session from pcfarm.workstation").await;
    drained.kill();
    server.program.kill();
    server.start().await;
    let _again = farm.working("drained", &[&server]);
    let connected = format!("select state = 'draining' and session > {session} from pcfarm.workstation");
    farm.until(SOON, &connected).await;
    assert_eq!(farm.number(&given_back).await, 1);
    farm.check(&[job]).await;
}
