//! Two kinds of problems, for table `pools`: one holds a connection to a database for a while, one needs a core.
//!
//! Both as an agent with step pools has them, and with one pool for all steps, where any thread runs any step.

use crate::spin::Spin;
use anyhow::Context as _;
use pcfarm_sql::connect::ConnectionTask;
use pcfarm_worker::steps::{Dependency, Next, Readiness, Step, StepController, Steps, Wait};
use pcfarm_worker::{Agent, Controller, Problem};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio_postgres::{Client, Statement};

/// As published.
pub const CONNECTIONS: usize = 50;

/// The database: so many connections, and whether it answers.
pub struct Database {
    hold: Duration,
    free: Mutex<Vec<Connection>>,
    freed: Condvar,
    out: AtomicBool,
    /// Calls that have not returned.
    calls: AtomicUsize,
    back: Readiness,
}

/// One of its connections.
pub enum Connection {
    /// To a database elsewhere, which costs this machine nothing but a thread that waits.
    Elsewhere,
    /// To PostgreSQL.
    Real(Box<Real>),
}

pub struct Real {
    pub client: Client,
    pub statement: Statement,
    /// What reads and writes for it.
    pub runtime: Handle,
    pub _task: ConnectionTask,
}

impl Connection {
    /// Holds it for so long.
    fn ask(&self, hold: Duration) -> anyhow::Result<()> {
        match self {
            Connection::Elsewhere => std::thread::sleep(hold),
            Connection::Real(real) => {
                let Real { client, statement, runtime, .. } = &**real;
                runtime.block_on(client.query_one(statement, &[&hold.as_secs_f64()])).context("pg_sleep")?;
            }
        }
        Ok(())
    }
}

impl Database {
    /// Each call holds a connection for so long.
    pub fn new(hold: Duration, connections: Vec<Connection>) -> Arc<Database> {
        let back = Readiness::new();
        back.set_ready();
        Arc::new(Database {
            hold,
            free: Mutex::new(connections),
            freed: Condvar::new(),
            out: AtomicBool::new(false),
            calls: AtomicUsize::new(0),
            back,
        })
    }

    pub fn hold(&self) -> Duration {
        self.hold
    }

    /// From now on it does not answer, or does again.
    pub fn set_out(&self, out: bool) {
        let free = self.free.lock().expect("nothing panics here");
        self.out.store(out, Ordering::Relaxed);
        if out {
            self.back.set_out();
        }
        drop(free);
        if !out {
            self.freed.notify_all();
            self.back.set_ready();
        }
    }

    /// Waits for a connection, and for the database if it is out, as a call that hangs; holds it, and gives it back.
    fn ask(&self) -> anyhow::Result<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let answer = self.answer();
        self.calls.fetch_sub(1, Ordering::Relaxed);
        answer
    }

    /// Until nobody calls: what an earlier measurement has left.
    pub async fn quiet(&self) {
        while self.calls.load(Ordering::Relaxed) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn answer(&self) -> anyhow::Result<()> {
        let mut free = self.free.lock().expect("nothing panics here");
        let connection = loop {
            match (self.out.load(Ordering::Relaxed), free.pop()) {
                (false, Some(connection)) => break connection,
                (true, Some(connection)) => free.push(connection),
                (_, None) => {}
            }
            free = self.freed.wait(free).expect("nothing panics here");
        };
        drop(free);
        let answer = connection.ask(self.hold);
        self.free.lock().expect("nothing panics here").push(connection);
        self.freed.notify_one();
        answer
    }
}

/// What becomes of a call while the database is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Out {
    /// It hangs, and its thread with it.
    Hangs,
    /// The step notices, and waits without a thread.
    Waits,
}

/// Whose threads run steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pools {
    /// Each dependency's own, and the cores.
    Steps(Out),
    /// One pool of so many, for all.
    Shared(usize),
}

/// Holds a connection, and then says so.
struct Ask {
    database: Arc<Database>,
    uses: Dependency,
    then_uses: Option<Dependency>,
    out: Out,
    in_flight: usize,
}

const ASK: Step<u64> = Step::named("ask");
const SAY: Step<u64> = Step::named("say");

impl StepController for Ask {
    const NAME: &'static str = "ask";
    type Payload = u64;
    type Solution = u64;

    fn steps(&self, steps: &mut Steps<Self>) {
        steps.in_flight(self.in_flight);
        steps.first(ASK).uses(&self.uses).then(SAY).run(|ask, _, n| {
            if ask.out == Out::Waits && ask.database.out.load(Ordering::Relaxed) {
                return Ok(Next::wait(Wait::until(&ask.database.back), ASK, n));
            }
            ask.database.ask()?;
            Ok(Next::step(SAY, n))
        });
        let say = steps.step(SAY);
        let say = if let Some(uses) = &self.then_uses { say.uses(uses) } else { say };
        say.run(|_, _, n| Ok(Next::solved(n)));
    }
}

/// Needs a core: the payload is how many rounds.
struct Think;

impl Controller for Think {
    const NAME: &'static str = "think";
    type Payload = u64;
    type Solution = u64;

    fn solve(&self, problem: &Problem<'_, u64>) -> anyhow::Result<u64> {
        Ok(think(*problem.payload()))
    }
}

fn think(rounds: u64) -> u64 {
    Spin { seed: rounds, rounds }.solve().digest.len() as u64
}

/// The same as a step of a shared pool.
struct ThinkAnywhere {
    uses: Dependency,
    in_flight: usize,
}

const THINK: Step<u64> = Step::named("think");

impl StepController for ThinkAnywhere {
    const NAME: &'static str = "think";
    type Payload = u64;
    type Solution = u64;

    fn steps(&self, steps: &mut Steps<Self>) {
        steps.in_flight(self.in_flight);
        steps.first(THINK).uses(&self.uses).run(|_, _, rounds| Ok(Next::solved(think(rounds))));
    }
}

/// An agent for both kinds, of which so many are under way together.
pub fn agent(database: &Arc<Database>, pools: Pools, in_flight: usize) -> Agent {
    let database = Arc::clone(database);
    match pools {
        Pools::Steps(out) => {
            let uses = Dependency::bounded("database", CONNECTIONS);
            let ask = Ask { database, uses, then_uses: None, out, in_flight };
            Agent::new().controller(Think).steps(ask)
        }
        Pools::Shared(threads) => {
            // Whatever there is waits in its queue, in the order in which it came.
            let uses = Dependency::bounded("everything", threads).queue(in_flight);
            let ask = Ask { database, uses: uses.clone(), then_uses: Some(uses.clone()), out: Out::Hangs, in_flight };
            Agent::new().steps(ThinkAnywhere { uses, in_flight }).steps(ask)
        }
    }
}
