//! An agent with a controller of several steps, against a server that the test scripts.

use std::sync::{Arc, Condvar, Mutex};

use crate::farm::{RunningAgent, Server, outcomes};
use pcfarm_proto::v1::agent_message::Message as FromAgent;
use pcfarm_worker::builtin::Echo;
use pcfarm_worker::steps::{Dependency, Next, Step, StepController, Steps};
use pcfarm_worker::{Agent, AgentError};

/// Two at a time, once the test lets them.
struct Asking {
    gate: Arc<(Mutex<bool>, Condvar)>,
}

const ASK: Step<u32> = Step::named("ask");

impl StepController for Asking {
    const NAME: &'static str = "asking";
    type Payload = u32;
    type Solution = u32;

    fn steps(&self, steps: &mut Steps<Self>) {
        let database = Dependency::bounded("database", 2).queue(1);
        steps.first(ASK).uses(&database).run(|asking, _, n| {
            let open = asking.gate.0.lock().expect("no panic here");
            drop(asking.gate.1.wait_while(open, |open| !*open).expect("no panic here"));
            Ok(Next::solved(n))
        });
    }
}

fn numbers(count: u32) -> impl Iterator<Item = String> {
    (0..count).map(|n| n.to_string())
}

#[tokio::test]
async fn an_agent_asks_for_other_work_while_a_pool_is_full() {
    let mut server = Server::start().await;
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let agent = Agent::new().controller(Echo).steps(Asking { gate: Arc::clone(&gate) });
    let mut agent = RunningAgent::start(agent, &[&server], |_| {});
    let (mut session, hello) = server.welcomed().await;
    assert_eq!(
        (hello.controllers, hello.apart),
        (vec!["asking".to_owned(), "echo".to_owned()], vec!["asking".to_owned()])
    );
    for id in [1, 2] {
        session.check_out(id, "asking", numbers(10)).await;
    }
    let paused =
        session.next(|message| if let FromAgent::Intake(intake) = message { Some(intake.paused) } else { None });
    // One of them is begun, so there might be room for two more: it is paused when the other waits behind it.
    assert_eq!(paused.await, ["asking"]);
    for id in [3, 4] {
        session.check_out(id, "echo", numbers(100)).await;
        let delivery = session.delivery().await;
        assert_eq!(delivery.checkouts.iter().map(|part| part.checkout_id).collect::<Vec<_>>(), [id]);
        session.acknowledge(&delivery).await;
    }
    // What is taken back leaves its room to what waits.
    session.revoke(1).await;
    session.check_out(5, "echo", numbers(1)).await;
    let delivery = session.delivery().await;
    assert_eq!(delivery.checkouts[0].checkout_id, 5, "the revocation has been heard before it");
    session.acknowledge(&delivery).await;
    *gate.0.lock().expect("no panic here") = true;
    gate.1.notify_all();
    let mut solved = Vec::new();
    while solved.len() < 10 {
        let delivery = session.delivery().await;
        for part in &delivery.checkouts {
            assert_eq!(part.checkout_id, 2, "the other one was revoked");
            solved.extend(outcomes(part));
        }
        session.acknowledge(&delivery).await;
    }
    solved.sort();
    assert_eq!(solved, (0..10).map(|n| (2000 + n, n.to_string())).collect::<Vec<_>>());
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

#[tokio::test]
async fn an_agent_that_stops_gives_back_what_hangs_in_a_pool() {
    let mut server = Server::start().await;
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let agent = Agent::new().steps(Asking { gate: Arc::clone(&gate) });
    let mut agent =
        RunningAgent::start(agent, &[&server], |settings| settings.grace = std::time::Duration::from_millis(50));
    let (mut session, _) = server.welcomed().await;
    session.check_out(1, "asking", numbers(10)).await;
    session.state().await;
    agent.stop.cancel();
    let delivery = session.delivery().await;
    let part = &delivery.checkouts[0];
    assert!(part.finished && part.results.is_empty(), "{part:?}");
    assert_eq!(part.give_back_reason, "the agent is stopping");
    session.acknowledge(&delivery).await;
    agent.ended().await.expect("the threads that hang hold up nobody");
    *gate.0.lock().expect("no panic here") = true;
    gate.1.notify_all();
}

#[tokio::test]
async fn an_agent_whose_steps_cannot_work_does_not_start() {
    struct Broken;
    impl StepController for Broken {
        const NAME: &'static str = "broken";
        type Payload = u32;
        type Solution = u32;

        fn steps(&self, steps: &mut Steps<Self>) {
            steps.first(ASK).then(Step::<u32>::named("nowhere")).run(|_, _, n| Ok(Next::solved(n)));
        }
    }
    let server = Server::start().await;
    let mut agent = RunningAgent::start(Agent::new().steps(Broken), &[&server], |_| {});
    let error = agent.ended().await.expect_err("it cannot work");
    assert!(matches!(error, AgentError::Steps(_)), "{error}");
    assert!(error.to_string().contains("step ask of broken goes on with nowhere, which is no step of it"), "{error}");
}
