//! Problems that kill agents, fail, panic or never end: each costs itself, and nobody else.

use std::time::Duration;

use pcfarm_bench::farm::{Farm, LONG, SOON};
use pcfarm_bench::program::Program;
use pcfarm_proto::ids::JobId;
use serde_json::json;

/// Starts agents again when they die, as a service manager does, until the job has ended.
async fn ended_under_supervision(farm: &Farm, agents: &mut [Program], job: JobId) -> String {
    let supervise = async {
        loop {
            agents.iter_mut().filter(|agent| agent.pid().is_some()).for_each(|agent| {
                if !agent.runs() {
                    agent.start();
                }
            });
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        never = supervise => never,
        state = farm.ended(job, LONG) => state,
    }
}

const PUZZLES: &str = "select 'problem ' || i as key, 'group ' || (i / 10) as group_key,
    jsonb_build_object('n', i, 'ms', 2, 'poison', i = 117) as payload from generate_series(1, 200) i";

async fn poison_is_contained(load: &str) {
    let farm = Farm::new().await;
    farm.job_type("poison", "poison", json!({"max_attempts": 3})).await;
    let server = farm.serving("a", &[]).await;
    let mut agents: Vec<Program> = ["one", "two"].map(|name| farm.working(name, &[&server])).into();
    let job: JobId = farm.query("select pcfarm.create_job('poisoned', 'poison')", &[]).await[0].get(0);
    farm.run(&load.replace("$job", &job.to_string())).await;
    farm.run(&format!("select pcfarm.open_job({job})")).await;
    assert_eq!(ended_under_supervision(&farm, &mut agents, job).await, "failed");
    let rows = farm
        .query("select key, attempts, message from pcfarm.job_problems where job_id = $1 and state = 'failed'", &[&job])
        .await;
    let failed: Vec<(String, i32, String)> = rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    assert_eq!(failed.len(), 1, "innocents failed: {failed:?}");
    let (key, attempts, message) = &failed[0];
    assert_eq!((key.as_str(), *attempts), ("problem 117", 3));
    assert!(message.starts_with("lost "), "{message}");
    let deaths = farm.noted("one", "poisoned") + farm.noted("two", "poisoned");
    assert!(deaths <= 8, "it killed {deaths} agents before it was found out");
    farm.check(&[job]).await;
}

/// As text it would be larger than anything that PostgreSQL makes. Its server says so, now and then, and goes on.
#[tokio::test]
async fn what_cannot_be_read_keeps_nobody_from_the_rest() {
    let farm = Farm::new().await;
    farm.job_type("digest", "digest", json!({})).await;
    let query = "select 'k' as key, jsonb_agg('1e131071'::jsonb) as payload from generate_series(1, 8300)";
    let unreadable = farm.submit("digest", query, 1).await;
    let server = farm.serving("a", &[]).await;
    let _agent = farm.working("one", &[&server]);
    let readable = farm.submit_sleeps("digest", 100, 1, 1).await;
    assert_eq!(farm.ended(readable, LONG).await, "done");
    let log = server.program.log();
    assert!(log.contains("cannot be read on"), "{log}");
    assert_eq!(farm.number(&format!("select count(*) from pcfarm.checkout where job_id = {unreadable}")).await, 0);
    farm.check(&[readable]).await;
}

#[tokio::test]
async fn a_poisonous_problem_ends_failed_and_alone() {
    poison_is_contained(&format!("select pcfarm.load($job, $q$ select key, payload from ({PUZZLES}) p $q$, 50)")).await;
}

#[tokio::test]
async fn a_poisonous_problem_among_dependent_ones_ends_failed_and_alone() {
    poison_is_contained(&format!("select pcfarm.load($job, $q$ {PUZZLES} $q$, 50)")).await;
}

#[tokio::test]
async fn a_poisonous_problem_with_a_batch_order_of_its_own_ends_failed_and_alone() {
    poison_is_contained(&format!(
        "insert into pcfarm.problem (job_id, key, payload, batch_order)
         select $job, key, payload, 1000 * ((payload ->> 'n')::bigint / 50) from ({PUZZLES}) p"
    ))
    .await;
}

#[tokio::test]
async fn errors_and_panics_fail_their_problem_with_their_message() {
    let farm = Farm::new().await;
    farm.job_type("digest", "digest", json!({"max_attempts": 3})).await;
    let server = farm.serving("a", &[]).await;
    let _agent = farm.working("one", &[&server]);
    let query = "select 'problem ' || i as key, jsonb_build_object('n', i, 'panic', i % 2 = 0,
            'fails', case when i in (10, 11) then 99 when i in (20, 21) then 1 else 0 end) as payload
        from generate_series(1, 100) i";
    let job = farm.submit("digest", query, 20).await;
    assert_eq!(farm.ended(job, LONG).await, "failed");
    let rows = farm
        .query(
            "select key, attempts, message from pcfarm.job_problems where job_id = $1 and state = 'failed' order by key",
            &[&job],
        )
        .await;
    let failed: Vec<(&str, i32, &str)> = rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    assert_eq!(
        failed,
        [
            ("problem 10", 3, "the controller panicked: no attempt like attempt 3"),
            ("problem 11", 3, "no luck in attempt 3"),
        ]
    );
    let again = format!("select count(*) from pcfarm.result where job_id = {job} and not failed and attempts = 2");
    assert_eq!(farm.number(&again).await, 2, "two succeed the second time");
    let once = format!("select count(*) from pcfarm.result where job_id = {job} and not failed and attempts = 1");
    assert_eq!(farm.number(&once).await, 96);
    farm.check(&[job]).await;
}

/// A thread cannot be killed: a deaf problem keeps its core until it returns, and what it then returns is not
/// delivered. The other cores work on.
#[tokio::test]
async fn a_problem_that_hangs_is_taken_away_and_the_rest_goes_on() {
    let farm = Farm::new().await;
    farm.job_type("digest", "digest", json!({"max_attempts": 2, "time_limit": "1 second"})).await;
    let server = farm.serving("a", &[]).await;
    let _agents: Vec<_> = ["one", "two"].map(|name| farm.working(name, &[&server])).into();
    let query = "select 'problem ' || i as key, jsonb_build_object('n', i, 'deaf', i = 30,
            'ms', case i when 20 then 600000 when 30 then 5000 else 10 end) as payload
        from generate_series(1, 100) i";
    let job = farm.submit("digest", query, 1).await;
    assert_eq!(farm.ended(job, LONG).await, "failed");
    let rows = farm
        .query(
            "select key, attempts, message from pcfarm.job_problems where job_id = $1 and state = 'failed' order by key",
            &[&job],
        )
        .await;
    let failed: Vec<(String, i32)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(failed, [("problem 20".to_owned(), 2), ("problem 30".to_owned(), 2)]);
    for row in &rows {
        let message: &str = row.get(2);
        assert!(message.contains("time limit was over"), "{message}");
    }
    assert_eq!(farm.number("select count(*) from pcfarm.workstation where state = 'dead'").await, 0);
    let told = farm.noted("one", "cancelled") + farm.noted("two", "cancelled");
    assert!(told >= 2, "the one that listens was told {told} times");
    // The cores are there again, those with a deaf problem once it has returned.
    let next = farm.submit_sleeps("digest", 100, 10, 1).await;
    assert_eq!(farm.ended(next, SOON).await, "done");
    farm.check(&[job, next]).await;
}
