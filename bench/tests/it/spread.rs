//! Unbegun problems do not wait beside an idle workstation.

use std::time::Duration;

use pcfarm_bench::farm::{Farm, LONG, SOON, Server};
use pcfarm_bench::program::Program;
use pcfarm_proto::ids::JobId;
use serde_json::json;
use tokio::time::{Instant, sleep};

/// An agent with so many cores.
fn working(farm: &Farm, name: &str, cores: u32, servers: &[&Server]) -> Program {
    let servers: Vec<String> = servers.iter().map(|server| server.url()).collect();
    let mut agent = farm
        .program(name, "fault-agent")
        .arguments(["--server", &servers.join(","), "--cores", &cores.to_string(), "--hostname", name])
        .arguments(["--state-dir".as_ref(), farm.path(&format!("{name}.state")).as_os_str()])
        .environment("FAULT_AGENT_JOURNAL", farm.path(&format!("{name}.journal")));
    agent.start();
    agent
}

async fn a_farm() -> Farm {
    let farm = Farm::new().await;
    for name in ["digest", "other"] {
        farm.job_type(name, "digest", json!({})).await;
    }
    farm
}

/// Problems that take so many milliseconds, in this order.
fn of_lengths(ms: &[i64]) -> String {
    format!(
        "select 'problem ' || i as key, jsonb_build_object('n', i, 'ms', ms) as payload
         from unnest('{{{}}}'::integer[]) with ordinality as l(ms, i)",
        ms.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    )
}

/// Names of the workstations that solved problems of a job whose length meets the condition.
async fn solvers(farm: &Farm, job: JobId, condition: &str) -> Vec<String> {
    let text = format!(
        "select distinct w.hostname from pcfarm.problem p
         join pcfarm.result r on r.job_id = p.job_id and r.problem_id = p.problem_id
         join pcfarm.checkout c on c.checkout_id = r.checkout_id
         join pcfarm.workstation w on w.workstation_id = c.workstation_id
         where p.job_id = $1 and (p.payload ->> 'ms')::integer {condition} order by 1"
    );
    farm.query(&text, &[&job]).await.iter().map(|row| row.get(0)).collect()
}

/// True if all short problems ended before the first long one.
async fn short_ones_ended_first(farm: &Farm) -> bool {
    let text = "
        select max(r.accepted_at) filter (where (p.payload ->> 'ms')::integer < 1000)
            < min(r.accepted_at) filter (where (p.payload ->> 'ms')::integer >= 1000)
        from pcfarm.problem p join pcfarm.result r on r.job_id = p.job_id and r.problem_id = p.problem_id";
    farm.query(text, &[]).await[0].get(0)
}

async fn nothing_was_charged(farm: &Farm) {
    assert_eq!(farm.number("select count(*) from pcfarm.requeued where attempts + losses > 0").await, 0);
    assert_eq!(farm.number("select count(*) from pcfarm.result where attempts <> 1").await, 0);
}

#[tokio::test]
async fn long_problems_are_not_kept_behind_long_ones() {
    let farm = a_farm().await;
    let server = farm.serving("a", &[]).await;
    let _agents = ["one", "two"].map(|name| working(&farm, name, 1, &[&server]));
    farm.until(SOON, "select count(*) = 2 from pcfarm.workstation_status where state = 'waiting'").await;
    let job = farm.submit("digest", &of_lengths(&[6000, 1, 6000, 1]), 1).await;
    assert_eq!(farm.ended(job, LONG).await, "done");
    assert_eq!(solvers(&farm, job, ">= 1000").await, ["one", "two"], "one each");
    nothing_was_charged(&farm).await;
    farm.check(&[job]).await;
}

/// Problems that do not depend on each other, in one convoy.
#[tokio::test]
async fn what_is_left_of_a_checkout_is_computed_by_others() {
    let farm = a_farm().await;
    let server = farm.serving("a", &[]).await;
    let _agents = ["one", "two", "three"].map(|name| working(&farm, name, 1, &[&server]));
    farm.until(SOON, "select count(*) = 3 from pcfarm.workstation_status where state = 'waiting'").await;
    let job = farm.submit("digest", &of_lengths(&[8000, 100, 100, 100, 100, 100, 100, 100]), 8).await;
    assert_eq!(farm.ended(job, LONG).await, "done");
    assert!(short_ones_ended_first(&farm).await, "{}", farm.state().await);
    assert!(farm.progress(job).await.2 >= 7, "those that had not begun came back");
    nothing_was_charged(&farm).await;
    farm.check(&[job]).await;
}

/// A workstation holds a checkout of another job for later.
async fn what_is_held_for_later_is_computed_by_one_that_comes(farm: &Farm, first: &Server, second: &Server) {
    let _one = working(farm, "one", 1, &[first]);
    let long = farm.submit("digest", &of_lengths(&[9000]), 1).await;
    let begun = || farm.noted("one", "began") > 0;
    until(begun, "the long one begins").await;
    let short = farm.submit("other", &of_lengths(&[10, 10, 10]), 3).await;
    farm.until(SOON, &format!("select count(*) = 1 from pcfarm.in_progress where job_id = {short}")).await;
    let _two = working(farm, "two", 1, &[second]);
    for job in [short, long] {
        assert_eq!(farm.ended(job, LONG).await, "done");
    }
    assert!(short_ones_ended_first(farm).await, "{}", farm.state().await);
    assert_eq!(
        (solvers(farm, long, ">= 0").await, solvers(farm, short, ">= 0").await),
        (vec!["one".to_owned()], vec!["two".to_owned()])
    );
    nothing_was_charged(farm).await;
    farm.check(&[short, long]).await;
}

#[tokio::test]
async fn a_job_does_not_wait_behind_a_problem_of_another_one() {
    let farm = a_farm().await;
    let server = farm.serving("a", &[]).await;
    what_is_held_for_later_is_computed_by_one_that_comes(&farm, &server, &server).await;
}

#[tokio::test]
async fn nor_if_the_idle_workstation_is_another_servers() {
    let farm = a_farm().await;
    let (first, second) = (farm.serving("a", &[]).await, farm.serving("b", &[]).await);
    what_is_held_for_later_is_computed_by_one_that_comes(&farm, &first, &second).await;
}

/// A long problem has begun; seven short ones of its convoy wait behind it.
async fn behind_a_long_problem(farm: &Farm) -> JobId {
    let job = farm.submit("digest", &of_lengths(&[12_000, 10, 10, 10, 10, 10, 10, 10]), 8).await;
    until(|| farm.noted("one", "began") > 0, "the long one begins").await;
    job
}

/// The new server knows the holder's checkouts from the database alone.
#[tokio::test]
async fn what_was_held_before_a_server_started_again_is_computed_by_others() {
    let farm = a_farm().await;
    let mut server = farm.serving("a", &["--lease", "20"]).await;
    let _one = working(&farm, "one", 1, &[&server]);
    let job = behind_a_long_problem(&farm).await;
    server.program.kill();
    server.start().await;
    let _two = working(&farm, "two", 1, &[&server]);
    assert_eq!(farm.ended(job, LONG).await, "done");
    assert!(short_ones_ended_first(&farm).await, "{}", farm.state().await);
    assert_eq!(solvers(&farm, job, "< 1000").await, ["two"]);
    nothing_was_charged(&farm).await;
    farm.check(&[job]).await;
}

#[tokio::test]
async fn what_a_drained_workstation_has_not_begun_is_computed_by_others() {
    let farm = a_farm().await;
    let server = farm.serving("a", &[]).await;
    let _one = working(&farm, "one", 1, &[&server]);
    let job = behind_a_long_problem(&farm).await;
    let drain =
        "update pcfarm.workstation set drain = true, drained_by = 'ana', drained_since = now() where hostname = 'one'";
    farm.run(drain).await;
    farm.until(SOON, "select count(*) = 1 from pcfarm.workstation_status where state = 'draining'").await;
    let _two = working(&farm, "two", 1, &[&server]);
    assert_eq!(farm.ended(job, LONG).await, "done");
    assert!(short_ones_ended_first(&farm).await, "{}", farm.state().await);
    assert_eq!(solvers(&farm, job, "< 1000").await, ["two"]);
    assert_eq!(solvers(&farm, job, ">= 1000").await, ["one"]);
    nothing_was_charged(&farm).await;
    farm.check(&[job]).await;
}

#[tokio::test]
async fn a_convoy_of_dependent_problems_stays_whole() {
    let farm = a_farm().await;
    let server = farm.serving("a", &[]).await;
    let _agents = ["one", "two"].map(|name| working(&farm, name, 1, &[&server]));
    farm.until(SOON, "select count(*) = 2 from pcfarm.workstation_status where state = 'waiting'").await;
    let query = format!("select q.*, 'together' as group_key from ({}) q", of_lengths(&[5000, 10, 10]));
    let job = farm.submit("digest", &query, 3).await;
    assert_eq!(farm.ended(job, LONG).await, "done");
    assert_eq!((solvers(&farm, job, ">= 0").await.len(), farm.progress(job).await.2), (1, 0));
    farm.check(&[job]).await;
}

/// Each problem comes with a checkout of its own, and takes long.
#[tokio::test]
async fn problems_of_their_own_convoys_fill_all_cores() {
    let farm = a_farm().await;
    let server = farm.serving("a", &[]).await;
    let _agent = working(&farm, "one", 4, &[&server]);
    let job = farm.submit("digest", &of_lengths(&[3000; 12]), 1).await;
    until(|| farm.noted("one", "began") >= 8, "two a core").await;
    let solved = farm.noted("one", "solved");
    assert!(solved < 6, "{solved} were solved before so many had begun");
    assert_eq!(farm.ended(job, LONG).await, "done");
    farm.check(&[job]).await;
}

async fn until(mut holds: impl FnMut() -> bool, what: &str) {
    let deadline = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}
