//! What administrators and the farm itself do with workstations, on real agents.

use std::process::Output;

use pcfarm_bench::farm::{Farm, LONG, SOON, Server};
use pcfarm_bench::program::Program;
use pcfarm_proto::ids::JobId;
use serde_json::{Value, json};

/// Agents of these host names that are connected.
async fn agents(farm: &Farm, server: &Server, names: &[&str]) -> Vec<Program> {
    let started = names.iter().map(|name| farm.working(name, &[server])).collect();
    connected(farm, names.len()).await;
    started
}

async fn connected(farm: &Farm, agents: usize) {
    let text = format!("select count(*) = {agents} from pcfarm.workstation where state = 'waiting'");
    farm.until(SOON, &text).await;
}

/// Problems of a few milliseconds of which some fail so many of their attempts, whoever makes them.
fn flaky(count: i64, fails: &str) -> String {
    format!(
        "select 'problem ' || i as key, jsonb_build_object('n', i, 'ms', 3, 'fails', {fails}) as payload
         from generate_series(1, {count}) i"
    )
}

/// As an administrator at a terminal.
fn pcfarm(farm: &Farm, server: &Server, arguments: &[&str]) -> Output {
    let mut command = std::process::Command::new(farm.program("cli", "pcfarm").path());
    let ran = command.args(["--server", &server.url()]).args(arguments).env("NO_COLOR", "1").output();
    ran.expect("the CLI runs")
}

fn said(farm: &Farm, server: &Server, arguments: &[&str]) -> String {
    let output = pcfarm(farm, server, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

async fn job_of(farm: &Farm, query: &str) -> JobId {
    farm.submit("digest", query, 1).await
}

/// One of three lacks what the others have. Nothing was set: it is found out by what the others solve, which costs no problem
/// its life.
#[tokio::test]
#[ignore = "nightly: waits until failures suffice for a quarantine"]
async fn an_agent_that_fails_what_others_solve_is_quarantined_with_the_evidence() {
    let farm = Farm::new().await;
    farm.job_type("digest", "digest", json!({"max_attempts": 100, "retry_delay": "500 ms"})).await;
    let server = farm.serving("a", &["--checkout-problems", "8"]).await;
    let mut broken = farm.agent("broken", &[&server]).environment("FAULT_AGENT_BROKEN", "no such library");
    broken.start();
    let _others = ["good", "better"].map(|name| farm.working(name, &[&server]));
    connected(&farm, 3).await;
    let job = job_of(&farm, &flaky(1_500, "0")).await;
    assert_eq!(farm.ended(job, LONG).await, "done", "no problem is blamed");
    farm.until(SOON, "select count(*) = 1 from pcfarm.workstation where quarantine is not null").await;

    let table = said(&farm, &server, &["workstations"]);
    assert!(table.contains("quarantined: it failed"), "{table}");
    let shown: Value = serde_json::from_str(&said(&farm, &server, &["workstations", "-o", "json"])).expect("JSON");
    let of = |name: &str| shown["workstations"].as_array().expect("a list").iter().find(|one| one["hostname"] == name);
    let quarantine = &of("broken").expect("it is there")["quarantine"];
    assert_eq!(quarantine["job_type"], "digest", "{shown}");
    assert!(quarantine["problems"].as_i64().is_some_and(|problems| problems >= 20), "{quarantine}");
    assert_eq!(quarantine["evidence"][0]["message"], "no such library");
    let healthy = ["good", "better"].map(|name| of(name).expect("it is there"));
    let solved_on = &quarantine["evidence"][0]["solved_on"];
    assert!(healthy.iter().any(|one| one["workstation_id"] == *solved_on), "{quarantine}");
    assert!(healthy.iter().all(|one| one["quarantine"].is_null() && one["drained"].is_null()), "{shown}");
    let told = said(&farm, &server, &["explain", "workstation", "broken"]);
    assert!(told.contains("failed here (no such library)") && told.contains("undrain --release"), "{told}");

    // The others do the rest without it, and without a failure.
    let next = job_of(&farm, &flaky(300, "0")).await;
    assert_eq!(farm.ended(next, LONG).await, "done");
    let on_it = "select count(*) from pcfarm.checkout c join pcfarm.workstation w using (workstation_id)
        where w.hostname = 'broken' and c.job_id = ";
    assert_eq!(farm.number(&format!("{on_it}{next}")).await, 0);
    assert_eq!(farm.progress(next).await, (300, 0, 0));
    // Mended, it works again.
    said(&farm, &server, &["undrain", "--release", "broken"]);
    farm.until(SOON, "select count(*) = 3 from pcfarm.workstation where state = 'waiting'").await;
    farm.check(&[]).await;
}

/// What fails now and then fails most often on the one that does most. That others solve it then says nothing about it.
#[tokio::test]
async fn whoever_does_most_of_what_fails_now_and_then_is_not_quarantined() {
    let farm = Farm::new().await;
    farm.run("select pcfarm.set_farm('{\"quarantine_after\": 5}')").await;
    farm.job_type("digest", "digest", json!({"max_attempts": 10})).await;
    let server = farm.serving("a", &["--checkout-problems", "4"]).await;
    let mut fast = farm.agent("fast", &[&server]).replacing_argument("--cores", "8");
    fast.start();
    let mut slow = farm.agent("slow", &[&server]).replacing_argument("--cores", "1");
    slow.start();
    connected(&farm, 2).await;
    let job = job_of(&farm, &flaky(1_200, "case when i % 4 = 0 then 1 else 0 end")).await;
    assert_eq!(farm.ended(job, LONG).await, "done");
    let evidence = "select count(distinct f.problem_id) from pcfarm.failed_lately() f
        join pcfarm.result r on r.job_id = f.job_id and r.problem_id = f.problem_id and not r.failed
        join pcfarm.checkout c on c.checkout_id = r.checkout_id and c.workstation_id <> f.failed_on
        join pcfarm.workstation w on w.workstation_id = f.failed_on and w.hostname = 'fast'";
    let evidence = farm.number(evidence).await;
    assert!(evidence >= 5, "the slow one has solved only {evidence} problems that failed on the fast one");
    assert_eq!(farm.number("select pcfarm.quarantine_workstations()").await, 0);
    assert_eq!(farm.number("select count(*) from pcfarm.workstation where drain").await, 0);
    farm.check(&[]).await;
}

#[tokio::test]
async fn what_fails_on_three_workstations_is_the_problems_fault() {
    let farm = Farm::new().await;
    farm.run("select pcfarm.set_farm('{\"quarantine_after\": 5}')").await;
    farm.job_type("digest", "digest", json!({"max_attempts": 100})).await;
    let server = farm.serving("a", &["--checkout-problems", "1"]).await;
    let _agents = agents(&farm, &server, &["one", "two", "three"]).await;
    let job = job_of(&farm, &flaky(300, "case when i % 20 = 0 then 1000 else 0 end")).await;
    assert_eq!(farm.ended(job, LONG).await, "failed");
    assert_eq!((farm.progress(job).await.0, farm.progress(job).await.1), (285, 15));
    let blamed =
        "select count(*) from pcfarm.result where failed and message like 'failed on 3 workstations, the last time: %'";
    assert_eq!(farm.number(blamed).await, 15);
    assert_eq!(farm.number("select pcfarm.quarantine_workstations()").await, 0);
    assert_eq!(farm.number("select count(*) from pcfarm.workstation where drain").await, 0);
    farm.check(&[]).await;
}

/// Its agent is told to go, what it holds costs no attempt, and it comes back as one that nobody knows.
#[tokio::test]
async fn a_connected_agent_that_is_forgotten_by_force_comes_back_as_another() {
    let farm = Farm::new().await;
    farm.job_type("digest", "digest", json!({"max_attempts": 1})).await;
    let server = farm.serving("a", &[]).await;
    let _agents = agents(&farm, &server, &["pc"]).await;
    let before = farm.number("select workstation_id from pcfarm.workstation").await;
    farm.run("update pcfarm.workstation set note = 'of the old one'").await;
    let job = farm.submit_sleeps("digest", 200, 50, 1).await;
    farm.finished(job, 10, SOON).await;

    let refused = pcfarm(&farm, &server, &["forget", "pc", "--yes"]);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && words.contains("is neither offline nor dead"), "{words}");
    assert_eq!(farm.number("select workstation_id from pcfarm.workstation").await, before);
    said(&farm, &server, &["forget", "pc", "--yes", "--force"]);
    let back = format!("select count(*) = 1 from pcfarm.workstation where workstation_id > {before} and note = ''");
    farm.until(SOON, &back).await;
    assert_eq!(farm.number("select count(*) from pcfarm.workstation").await, 1);

    assert_eq!(farm.ended(job, LONG).await, "done", "with the one attempt that it has");
    assert_eq!(farm.progress(job).await.0, 200);
    let its = format!(
        "select count(*) from pcfarm.checkout where workstation_id = {before} and ending = 'revoked'
         and reason = 'its workstation was forgotten'"
    );
    assert!(farm.number(&its).await > 0, "it held nothing");
    assert_eq!(farm.number("select count(*) from pcfarm.requeued where attempts + losses > 0").await, 0);
    farm.check(&[job]).await;
}

/// A program that does not hear that its time is over: what it holds is taken from it ten seconds later, long before its lease
/// is over, and on another workstation at once.
#[tokio::test]
async fn who_does_not_hear_the_end_of_its_drain_has_its_work_taken() {
    let farm = Farm::new().await;
    farm.job_type("digest", "digest", json!({"max_attempts": 1})).await;
    let server = farm.serving("a", &["--lease", "120"]).await;
    let mut deaf = agents(&farm, &server, &["deaf"]).await.remove(0);
    let job = farm.submit_sleeps("digest", 60, 100, 1).await;
    farm.finished(job, 4, SOON).await;
    deaf.freeze();
    farm.until(SOON, "select count(*) > 0 from pcfarm.checkout where ended_at is null").await;
    let helper = farm.working("helper", &[&server]);
    farm.until(SOON, "select count(*) = 2 from pcfarm.workstation where state = 'waiting'").await;
    said(&farm, &server, &["drain", "deaf", "--now", "--reason", "fan"]);
    assert_eq!(farm.ended(job, LONG).await, "done", "with the one attempt that each has");
    assert!(farm.noted("helper", "solved") > 0, "{}", helper.log());
    let taken = "select count(*) from pcfarm.checkout c join pcfarm.workstation w using (workstation_id)
        where w.hostname = 'deaf' and c.ending = 'revoked' and c.reason like 'drained by an administrator: fan%'";
    assert!(farm.number(taken).await > 0);
    assert_eq!(farm.number("select count(*) from pcfarm.workstation where state = 'dead'").await, 0, "its lease runs");
    assert_eq!(farm.number("select count(*) from pcfarm.requeued where attempts + losses > 0").await, 0);
    // What it delivers when it wakes is not stored a second time.
    deaf.thaw();
    farm.check(&[job]).await;
}
