//! Controllers of several steps on a farm: an agent with two kinds of work, one of which needs a dependency that the test
//! holds shut.

use std::sync::{Arc, Condvar, Mutex};

use pcfarm_bench::farm::{Farm, LONG, SOON, Server};
use pcfarm_worker::builtin::Echo;
use pcfarm_worker::steps::{Dependency, Next, Readiness, Step, StepController, Steps, Wait};
use pcfarm_worker::{Agent, AgentError, Settings};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// What a step passes only when it is open.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn pass(&self) {
        let open = self.0.0.lock().expect("no panic here");
        drop(self.0.1.wait_while(open, |open| !*open).expect("no panic here"));
    }

    fn open(&self) {
        *self.0.0.lock().expect("no panic here") = true;
        self.0.1.notify_all();
    }
}

/// Asks a database that serves three at a time, and doubles what it says.
struct Asking {
    database: Dependency,
    gate: Gate,
}

const ASK: Step<u32> = Step::named("ask");
const DOUBLE: Step<u32> = Step::named("double");

impl StepController for Asking {
    const NAME: &'static str = "asking";
    type Payload = u32;
    type Solution = u32;

    fn steps(&self, steps: &mut Steps<Self>) {
        steps.first(ASK).uses(&self.database).then(DOUBLE).run(|asking, _, n| {
            asking.gate.pass();
            Ok(Next::step(DOUBLE, n))
        });
        steps.step(DOUBLE).run(|_, _, n| Ok(Next::solved(2 * n)));
    }
}

/// Waits, without a thread, for something that never comes.
struct Hoping(Readiness);

impl StepController for Hoping {
    const NAME: &'static str = "hoping";
    type Payload = u32;
    type Solution = u32;

    fn steps(&self, steps: &mut Steps<Self>) {
        let service = Dependency::bounded("service", 2).queue(3);
        steps.first(ASK).uses(&service).run(|hoping, _, n| Ok(Next::wait(Wait::until(&hoping.0), ASK, n)));
    }
}

struct Running {
    stop: CancellationToken,
    tasks: JoinSet<Result<(), AgentError>>,
}

impl Running {
    /// In this process, so that the test can hold its gate.
    fn start(farm: &Farm, server: &Server, agent: Agent) -> Running {
        let settings = Settings {
            servers: vec![server.url()],
            state_dir: farm.path("agent.state"),
            cores: 2,
            hostname: "desk".to_owned(),
            presence: pcfarm_worker::presence::settings::Settings::unattended(),
            ..Settings::default()
        };
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(agent.run_with(settings, stop.clone()));
        Running { stop, tasks }
    }

    async fn ended(mut self) {
        self.stop.cancel();
        self.tasks.join_next().await.expect("it was started").expect("it does not panic").expect("it ends well");
    }
}

fn numbers(count: i64) -> String {
    format!("select 'problem ' || i as key, to_jsonb(i) as payload from generate_series(1, {count}) i")
}

#[tokio::test(flavor = "multi_thread")]
async fn work_for_the_cores_goes_on_while_a_database_does_not_answer() {
    let farm = Farm::new().await;
    for controller in ["asking", "echo"] {
        farm.job_type(controller, controller, json!({})).await;
    }
    let gate = Gate::default();
    let database = Dependency::bounded("database", 3).queue(5);
    let agent = Agent::new().controller(Echo).steps(Asking { database, gate: gate.clone() });
    let server = farm.serving("a", &[]).await;
    let running = Running::start(&farm, &server, agent);
    // The older job is the one that is stuck: all there is room for is its own.
    let stuck = farm.submit("asking", &numbers(1_000), 10).await;
    let told = "select exists (select from pcfarm.workstation_status
        where state = 'processing' and reason = 'asking waits for database, which serves 3 at a time')";
    farm.until(SOON, told).await;
    for _ in 0..3 {
        let quick = farm.submit("echo", &numbers(2_000), 20).await;
        assert_eq!(farm.ended(quick, LONG).await, "done");
    }
    let results = format!("select count(*) from pcfarm.result where job_id = {stuck}");
    assert_eq!(farm.number(&results).await, 0, "it is stuck");
    let held = format!(
        "select coalesce(sum(problems), 0)::bigint from pcfarm.checkout where job_id = {stuck} and ended_at is null"
    );
    assert!(farm.number(&held).await < 1_000, "no more is taken than fits");

    gate.open();
    assert_eq!(farm.ended(stuck, LONG).await, "done");
    let wrong = format!(
        "select count(*) from pcfarm.job_problems where job_id = {stuck}
             and (result #>> '{{}}')::int is distinct from 2 * (payload #>> '{{}}')::int"
    );
    assert_eq!(farm.number(&wrong).await, 0);
    running.ended().await;
    farm.check(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_a_dependency_ends_with_its_time_limit() {
    let farm = Farm::new().await;
    farm.job_type("hoping", "hoping", json!({"max_attempts": 1, "time_limit": "1 second"})).await;
    farm.job_type("echo", "echo", json!({})).await;
    let server = farm.serving("a", &[]).await;
    let running = Running::start(&farm, &server, Agent::new().controller(Echo).steps(Hoping(Readiness::new())));
    let hopeless = farm.submit("hoping", &numbers(4), 1).await;
    assert_eq!(farm.ended(hopeless, LONG).await, "failed");
    let messages = "select message from pcfarm.job_problems where job_id = $1 and state = 'failed'";
    let rows = farm.query(messages, &[&hopeless]).await;
    assert_eq!(rows.len(), 4);
    for row in &rows {
        let message: &str = row.get(0);
        // Whoever is first says it: the agent, or the server that takes it back.
        assert!(message.contains("time limit"), "{message}");
    }
    let quick = farm.submit("echo", &numbers(100), 5).await;
    assert_eq!(farm.ended(quick, LONG).await, "done");
    running.ended().await;
    farm.check(&[]).await;
}
