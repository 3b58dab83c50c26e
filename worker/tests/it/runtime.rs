//! Agents against a server that the test scripts.

use std::collections::HashSet;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::farm::{RunningAgent, Server, outcomes, settings};
use pcfarm_proto::v1;
use pcfarm_proto::v1::agent_message::Message as FromAgent;
use pcfarm_worker::builtin::{Echo, Fail, Sleep};
use pcfarm_worker::{Agent, Controller, Problem};
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// Tells the test what it has begun, and ends when the test says so or it is cancelled.
struct Gate {
    begun: mpsc::UnboundedSender<String>,
    passes: Arc<Mutex<HashSet<String>>>,
}

impl Gate {
    fn new() -> (Gate, mpsc::UnboundedReceiver<String>, Arc<Mutex<HashSet<String>>>) {
        let (begun, receiver) = mpsc::unbounded_channel();
        let passes = Arc::new(Mutex::new(HashSet::new()));
        (Gate { begun, passes: Arc::clone(&passes) }, receiver, passes)
    }
}

impl Controller for Gate {
    const NAME: &'static str = "gate";
    type Payload = String;
    type Solution = &'static str;

    fn solve(&self, problem: &Problem<'_, String>) -> anyhow::Result<&'static str> {
        let name = problem.payload();
        self.begun.send(name.clone())?;
        loop {
            if self.passes.lock().expect("no panic here").contains(name) {
                return Ok("passed");
            }
            if problem.cancelled() {
                self.begun.send(format!("{name} cancelled"))?;
                anyhow::bail!("cancelled");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn names<const N: usize>(names: [&str; N]) -> [String; N] {
    names.map(|name| format!("{name:?}"))
}

fn allow(passes: &Mutex<HashSet<String>>, name: &str) {
    passes.lock().expect("no panic here").insert(name.to_owned());
}

#[tokio::test]
async fn unacknowledged_results_are_delivered_to_another_server() {
    let mut first = Server::start().await;
    let mut second = Server::start().await;
    let mut agent = RunningAgent::start(Agent::new().controller(Echo), &[&first, &second], |_| {});
    // The agent chooses: whichever it is, the other is `second` from here on.
    let ((mut session, _), chose_first) = tokio::select! {
        session = first.welcomed() => (session, true),
        session = second.welcomed() => (session, false),
    };
    if !chose_first {
        std::mem::swap(&mut first, &mut second);
    }
    session.check_out(5, "echo", ["1".to_owned(), "[2]".to_owned()]).await;
    let lost = session.delivery().await;
    drop(session);
    let stopped = Instant::now();
    first.stop().await;

    let (mut session, hello) = second.welcomed().await;
    assert!(stopped.elapsed() < Duration::from_secs(2), "moved after {:?}", stopped.elapsed());
    let held = v1::HeldCheckout { checkout_id: 5, token: 35 };
    assert_eq!(hello.held, [held]);
    let again = session.delivery().await;
    assert_eq!(again, lost);
    assert!(again.checkouts[0].finished);
    assert_eq!(outcomes(&again.checkouts[0]), [(5000, "1".to_owned()), (5001, "[2]".to_owned())]);
    session.acknowledge(&again).await;
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

#[tokio::test]
async fn a_revoked_checkout_is_stopped_and_not_delivered() {
    let mut server = Server::start().await;
    let (gate, mut begun, _) = Gate::new();
    let mut agent = RunningAgent::start(Agent::new().controller(gate).controller(Echo), &[&server], |_| {});
    let (mut session, _) = server.welcomed().await;
    session.check_out(1, "gate", names(["a", "b", "c", "d"])).await;
    let mut first = [begun.recv().await, begun.recv().await].map(|name| name.expect("two cores begin"));
    first.sort();
    assert_eq!(first, ["a", "b"]);

    session.revoke(1).await;
    let mut ended = [begun.recv().await, begun.recv().await].map(|name| name.expect("both are told"));
    ended.sort();
    assert_eq!(ended, ["a cancelled", "b cancelled"]);
    // The cores are free for the next, and it is all that is delivered.
    session.check_out(2, "echo", ["1".to_owned()]).await;
    let delivery = session.delivery().await;
    assert_eq!(delivery.checkouts.iter().map(|part| part.checkout_id).collect::<Vec<_>>(), [2]);
    session.acknowledge(&delivery).await;
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
    assert!(begun.recv().await.is_none(), "c or d was begun");
}

struct Panics;

impl Controller for Panics {
    const NAME: &'static str = "panics";
    type Payload = u32;
    type Solution = u32;

    fn solve(&self, problem: &Problem<'_, u32>) -> anyhow::Result<u32> {
        assert!(problem.payload() % 2 == 0, "{} is odd", problem.payload());
        Ok(problem.payload() / 2)
    }
}

#[tokio::test]
async fn panics_and_errors_fail_their_own_problem_alone() {
    let mut server = Server::start().await;
    let _agent = RunningAgent::start(Agent::new().controller(Panics).controller(Fail), &[&server], |_| {});
    let (mut session, hello) = server.welcomed().await;
    assert_eq!(hello.controllers, ["fail", "panics"]);
    session.check_out(1, "panics", ["2", "3", "true", "8"].map(str::to_owned)).await;
    let delivery = session.delivery().await;
    session.acknowledge(&delivery).await;
    let results = outcomes(&delivery.checkouts[0]);
    assert_eq!(results[0], (1000, "1".to_owned()));
    assert_eq!(results[1], (1001, "failed: the controller panicked: 3 is odd".to_owned()));
    assert!(results[2].1.starts_with("failed: the payload does not parse: invalid type"), "{results:?}");
    assert_eq!(results[3], (1003, "4".to_owned()));

    session.check_out(2, "fail", [r#"{"message": "no luck"}"#.to_owned()]).await;
    let delivery = session.delivery().await;
    assert_eq!(outcomes(&delivery.checkouts[0]), [(2000, "failed: no luck".to_owned())]);
}

#[tokio::test]
async fn a_stopping_agent_finishes_what_it_can_and_gives_back_the_rest() {
    let mut server = Server::start().await;
    let (gate, mut begun, passes) = Gate::new();
    let agent = Agent::new().controller(gate).controller(Sleep);
    let mut agent = RunningAgent::start(agent, &[&server], |settings| settings.grace = Duration::from_millis(300));
    let (mut session, _) = server.welcomed().await;
    session.check_out(1, "gate", names(["a", "b", "c"])).await;
    session.check_out(2, "sleep", [r#"{"ms": 1}"#.to_owned()]).await;
    begun.recv().await.expect("a core begins");
    begun.recv().await.expect("the other begins");
    // Whether the second has arrived by now or is on its way: it goes back.
    agent.stop.cancel();
    while session.state().await != v1::WorkstationState::Draining {}
    allow(&passes, "a");

    let (mut solved, mut finished) = (Vec::new(), Vec::new());
    while let Some(message) = session.any().await {
        let FromAgent::Delivery(delivery) = message else {
            continue;
        };
        for part in &delivery.checkouts {
            solved.extend(outcomes(part));
            if part.finished {
                finished.push((part.checkout_id, part.give_back_reason.clone()));
            }
        }
        session.acknowledge(&delivery).await;
    }
    assert_eq!(solved, [(1000, "\"passed\"".to_owned())]);
    let reason = "the agent is stopping".to_owned();
    assert_eq!(finished, [(2, reason.clone()), (1, reason)]);
    drop(session);
    agent.ended().await.expect("everything was acknowledged");
}

#[tokio::test]
async fn two_agents_cannot_share_a_state_directory() {
    let mut server = Server::start().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let settings = settings(&[&server], dir.path());
    let shared = settings.state_dir.clone();
    let mut first =
        RunningAgent::start(Agent::new().controller(Echo), &[&server], |settings| settings.state_dir = shared);
    let (session, _) = server.welcomed().await;
    let second = Agent::new().controller(Echo).run_with(settings, CancellationToken::new()).await;
    let error = second.expect_err("the first holds the lock");
    assert!(error.to_string().contains("--state-dir"), "{error}");
    assert_eq!(error.exit_code(), 1);
    first.stop.cancel();
    drop(session);
    first.ended().await.expect("it had nothing");
}

#[tokio::test]
async fn an_agent_whose_identity_is_in_use_waits_and_stops_when_it_is_told() {
    let mut server = Server::start().await;
    let mut agent = RunningAgent::start(Agent::new().controller(Echo), &[&server], |_| {});
    let (session, _) = server.greeted().await;
    session.to_agent.send(Err(Status::already_exists("connected from desk 9"))).await.expect("the agent listens");
    let again = tokio::time::timeout(Duration::from_secs(1), server.greeted()).await;
    assert!(again.is_err(), "it must not fight for its identity");
    // The other agent may be one that was about to end.
    let again = tokio::time::timeout(Duration::from_secs(20), server.greeted()).await;
    drop(again.expect("it asks again soon"));
    agent.stop.cancel();
    agent.ended().await.expect("it holds nothing");
}

#[tokio::test]
async fn the_next_checkout_starts_while_the_last_one_has_a_tail() {
    let mut server = Server::start().await;
    let (gate, mut begun, passes) = Gate::new();
    let mut agent = RunningAgent::start(Agent::new().controller(gate), &[&server], |_| {});
    let (mut session, _) = server.welcomed().await;
    assert_eq!(session.credit().await, 2);
    session.check_out(1, "gate", names(["a", "b"])).await;
    session.check_out(2, "gate", names(["c", "d"])).await;
    begun.recv().await.expect("a core begins");
    begun.recv().await.expect("the other begins");
    allow(&passes, "a");
    // No result of the first has been delivered, and its b still runs.
    assert_eq!(begun.recv().await.as_deref(), Some("c"));
    assert_eq!(session.credit().await, 1);
    for name in ["b", "c", "d"] {
        allow(&passes, name);
    }
    let mut closed = 0;
    while closed < 2 {
        let delivery = session.delivery().await;
        closed += delivery.checkouts.iter().filter(|part| part.finished).count();
        session.acknowledge(&delivery).await;
    }
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

#[tokio::test]
async fn one_by_one_the_next_problem_starts_when_the_last_is_acknowledged() {
    let mut server = Server::start().await;
    let (gate, mut begun, passes) = Gate::new();
    let mut agent = RunningAgent::start(Agent::new().controller(gate), &[&server], |_| {});
    let (mut session, _) = server.welcomed().await;
    session.check_out_one_by_one(1, "gate", names(["a", "b", "c"])).await;
    assert_eq!(begun.recv().await.as_deref(), Some("a"));
    allow(&passes, "a");
    let first = session.delivery().await;
    assert_eq!(outcomes(&first.checkouts[0]), [(1000, "\"passed\"".to_owned())]);

    // Both cores are for others meanwhile, and rather idle than begin the next.
    session.check_out(2, "gate", names(["x", "y"])).await;
    let mut beside = [begun.recv().await, begun.recv().await].map(|name| name.expect("two cores begin"));
    beside.sort();
    assert_eq!(beside, ["x", "y"]);
    allow(&passes, "x");
    allow(&passes, "y");
    let mut closed = false;
    while !closed {
        let delivery = session.delivery().await;
        closed = delivery.checkouts[0].finished;
        assert_eq!(delivery.checkouts[0].checkout_id, 2);
        session.acknowledge(&delivery).await;
    }
    assert!(begun.try_recv().is_err(), "b was begun before a was acknowledged");

    session.acknowledge(&first).await;
    for (name, problem_id) in [("b", 1001), ("c", 1002)] {
        assert_eq!(begun.recv().await.as_deref(), Some(name));
        allow(&passes, name);
        let delivery = session.delivery().await;
        assert_eq!(outcomes(&delivery.checkouts[0]), [(problem_id, "\"passed\"".to_owned())]);
        assert_eq!(delivery.checkouts[0].finished, name == "c");
        assert!(begun.try_recv().is_err());
        session.acknowledge(&delivery).await;
    }
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

/// A checkout whose first result tells that its second problem runs, or will in a moment, and never ends.
fn deaf() -> [String; 2] {
    [r#"{"ms": 0}"#, r#"{"ms": 600000, "deaf": true}"#].map(str::to_owned)
}

#[tokio::test]
async fn a_deaf_controller_costs_its_core_and_nothing_else() {
    let mut server = Server::start().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut agent = Command::new(env!("CARGO_BIN_EXE_pcfarm-worker"))
        .args([
            "--server",
            &server.url(),
            "--cores",
            "2",
            "--prefetch",
            "0",
            "--grace",
            "1",
            "--unattended",
            "--state-dir",
        ])
        .arg(dir.path())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("the agent starts");
    let (mut session, _) = server.welcomed().await;
    assert_eq!(session.credit().await, 1);
    session.check_out(1, "sleep", deaf()).await;
    let delivery = session.delivery().await;
    session.acknowledge(&delivery).await;
    session.revoke(1).await;
    // One core is left: it asks for work, and does it.
    assert_eq!(session.credit().await, 1);
    session.check_out(2, "echo", ["1", "2"].map(str::to_owned)).await;
    let delivery = session.delivery().await;
    assert_eq!(outcomes(&delivery.checkouts[0]), [(2000, "1".to_owned()), (2001, "2".to_owned())]);
    session.acknowledge(&delivery).await;

    // With none left, and one of them not even revoked, it ends all the same after its grace period.
    session.check_out(3, "sleep", deaf()).await;
    let delivery = session.delivery().await;
    session.acknowledge(&delivery).await;
    let pid = agent.id().and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed())).expect("it runs");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is ours");
    let delivery = session.delivery().await;
    let last = &delivery.checkouts[0];
    assert_eq!((last.checkout_id, last.finished, last.results.len()), (3, true, 0));
    session.acknowledge(&delivery).await;
    while session.any().await.is_some() {}
    drop(session);
    let status = agent.wait().await.expect("it can be waited for");
    assert_eq!(status.code(), Some(0));
}

/// Runs `checkouts` × `problems` echoes through an agent, and counts what comes back.
async fn echo(checkouts: i64, problems: i64, prefetch: u32) -> Duration {
    let mut server = Server::start().await;
    let adjust = |settings: &mut pcfarm_worker::Settings| settings.prefetch = prefetch;
    let mut agent = RunningAgent::start(Agent::new().controller(Echo), &[&server], adjust);
    let (mut session, _) = server.welcomed().await;
    let began = Instant::now();
    let (mut next, mut closed, mut seen) = (1, 0, HashSet::new());
    while closed < checkouts {
        match session.any().await.expect("the agent is still there") {
            FromAgent::Credit(credit) => {
                for _ in 0..credit.checkouts {
                    if next <= checkouts {
                        session.check_out(next * 1000, "echo", (0..problems).map(|n| n.to_string())).await;
                        next += 1;
                    }
                }
            }
            FromAgent::Delivery(delivery) => {
                for part in &delivery.checkouts {
                    closed += i64::from(part.finished);
                    for result in &part.results {
                        assert!(seen.insert(result.problem_id), "{} came twice", result.problem_id);
                    }
                }
                session.acknowledge(&delivery).await;
            }
            FromAgent::Hello(_)
            | FromAgent::Heartbeat(_)
            | FromAgent::StateChange(_)
            | FromAgent::Intake(_)
            | FromAgent::Equipment(_)
            | FromAgent::Goodbye(_)
            | FromAgent::ResultPart(_)
            | FromAgent::StoredRequest(_) => {}
        }
    }
    let took = began.elapsed();
    assert_eq!(seen.len(), usize::try_from(checkouts * problems).expect("few problems"));
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
    took
}

#[tokio::test]
async fn many_tiny_problems_come_back_once_each() {
    echo(200, 100, 4).await;
}

/// `cargo test --release -p pcfarm-worker -- --ignored --nocapture overhead`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement, not a test"]
async fn overhead_of_an_agent() {
    let (checkouts, problems) = (100, 20_000);
    let took = echo(checkouts, problems, 2).await;
    let count = u32::try_from(checkouts * problems).expect("few problems");
    println!("{count} no-op problems in {took:?}: {:?} each with the scripted server's share", took / count);
}

/// Keeps a core busy for a millisecond of its own time.
struct Spin;

impl Controller for Spin {
    const NAME: &'static str = "spin";
    type Payload = u32;
    type Solution = u32;

    fn solve(&self, problem: &Problem<'_, u32>) -> anyhow::Result<u32> {
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(1) {
            std::hint::spin_loop();
        }
        Ok(*problem.payload())
    }
}

/// How much of its one core an agent spends in the controller; the other is for the server and the test.
#[tokio::test]
#[ignore = "a measurement, not a test"]
async fn overhead_on_problems_of_a_millisecond() {
    let mut server = Server::start().await;
    let agent = Agent::new().controller(Spin);
    let _agent = RunningAgent::start(agent, &[&server], |settings| settings.cores = 1);
    let (mut session, _) = server.welcomed().await;
    let (mut next, mut closed, mut busy) = (1, 0, Duration::ZERO);
    let began = Instant::now();
    while closed < 20 {
        match session.any().await.expect("the agent is still there") {
            FromAgent::Credit(credit) => {
                for _ in 0..credit.checkouts {
                    session.check_out(next, "spin", (0..200).map(|n: u32| n.to_string())).await;
                    next += 1;
                }
            }
            FromAgent::Delivery(delivery) => {
                for part in &delivery.checkouts {
                    closed += u32::from(part.finished);
                    busy += part.busy.map_or(Duration::ZERO, |busy| busy.try_into().expect("a time"));
                }
                session.acknowledge(&delivery).await;
            }
            FromAgent::Hello(_)
            | FromAgent::Heartbeat(_)
            | FromAgent::StateChange(_)
            | FromAgent::Intake(_)
            | FromAgent::Equipment(_)
            | FromAgent::Goodbye(_)
            | FromAgent::ResultPart(_)
            | FromAgent::StoredRequest(_) => {}
        }
    }
    let took = began.elapsed();
    println!("busy {busy:?} of {took:?}: {:.2} %", 100.0 * busy.as_secs_f64() / took.as_secs_f64());
}
