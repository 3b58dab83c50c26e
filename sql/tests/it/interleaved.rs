//! Every interleaving of the steps of each pair of the queue's core statements, in two sessions: whatever comes between, no
//! invariant is broken, nobody deadlocks, and the job can be brought to its end.
//!
//! A step is a statement inside a function: before each, the function stops at a gate, until it is let through. A session
//! that waits for the other one's lock is passed over until it has it.

use crate::queue::{self, Held, Queue, Told, acceptance, acceptance_with_homes, backend, queue, take};
use deadpool_postgres::Object;
use pcfarm_proto::ids::{JobId, WorkstationId};
use pcfarm_sql::checkout::{self, Closing};
use pcfarm_sql::checks::INVARIANTS;
use pcfarm_sql::json::RawJson;
use pcfarm_sql::{lanes, upkeep};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

/// A session's name is its number, and its gates are numbered from 1.
const GATES: &str = "
    create schema stepping;
    create function stepping.step() returns void language plpgsql as $$
    declare
        session integer := nullif(current_setting('stepping.session', true), '')::integer;
        gate    integer := coalesce(nullif(current_setting('stepping.gate', true), ''), '0')::integer + 1;
    begin
        if session is not null then
            perform set_config('stepping.gate', gate::text, false);
            perform pg_advisory_lock(session, gate);
            perform pg_advisory_unlock(session, gate);
        end if;
    end $$";

/// More than any function has.
const MOST_GATES: i32 = 24;

const STEPPED: [&str; 10] = [
    "pcfarm.accept",
    "pcfarm.close_checkouts",
    "pcfarm.give_back",
    "pcfarm.end_job_if_empty",
    "pcfarm.cancel_job",
    "pcfarm.hold_job",
    "pcfarm.retry_job",
    "pcfarm.add_lanes",
    "pcfarm.lock_retry_lanes",
    "pcfarm.move_due",
];

/// What a result brings is there if it is, and never without it.
const BROUGHT_WITH_ITS_RESULT: &str = "
    select format('%s results have brought %s problems, %s infos', r, p, i)
    from (select (select count(*) from pcfarm.result where solution = '4') as r,
        (select count(*) from pcfarm.problem where key = 'brought') as p, (select count(*) from pcfarm.job_info) as i) n
    where r <> p or r <> i";

const PATIENCE: Duration = Duration::from_secs(20);

/// Where several statements that touch nothing shared follow one another, one gate is enough.
fn has_gate(line: &str) -> bool {
    let line = line.trim_start();
    let begins = ["perform from", "select ", "with ", "insert ", "update ", "delete ", "return query", "locked :="];
    let idle = ["select t.*", "select count(*) into", "select p.batch_order"];
    begins.iter().any(|word| line.starts_with(word)) && !idle.iter().any(|text| line.starts_with(text))
}

/// A function's text with a gate before each statement.
fn stepped(definition: &str) -> String {
    let (mut text, mut in_body, mut before) = (String::new(), false, String::new());
    for line in definition.lines() {
        let begins_statement = [";", "then", "else", "begin"].iter().any(|end| before.ends_with(end));
        if in_body && begins_statement && has_gate(line) {
            text += "perform stepping.step();\n";
        }
        text += line;
        text += "\n";
        let code = line.split("--").next().unwrap_or_default().trim_end();
        if !code.trim().is_empty() {
            in_body |= code == "begin";
            before = code.to_owned();
        }
    }
    text
}

async fn stepping() -> Queue {
    let queue = queue().await;
    queue.run(GATES).await;
    for name in STEPPED {
        let definition = queue.text(&format!("select pg_get_functiondef('{name}'::regproc)")).await;
        let with_gates = stepped(&definition);
        assert!(with_gates.contains("stepping.step()"), "{name} has no gate");
        queue.run(&with_gates).await;
    }
    queue
}

/// What a session does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    CheckOut,
    CheckOutWhatCameBack,
    AcceptSome,
    AcceptAll,
    /// By one statement, or by the function where that does nothing.
    AcceptPlainly,
    /// A result that enqueues a problem and patches the job's info.
    Bring,
    CloseLost,
    CloseFinished,
    CloseAnother,
    /// A problem, while the checkout goes on with another one.
    ReturnOfAnother,
    /// All that is left.
    ReturnRest,
    End,
    Cancel,
    Hold,
    Retry,
    Load,
}

/// A job in the middle of its life: something waits, something came back, something is in hand, something has failed.
#[derive(Clone)]
struct Scene {
    job: JobId,
    held: Held,
    another: Held,
}

async fn scene(queue: &Queue) -> Scene {
    queue.run("delete from pcfarm.problem; delete from pcfarm.result; delete from pcfarm.checkout; delete from pcfarm.requeued; delete from pcfarm.delayed;
        delete from pcfarm.failed_attempt; delete from pcfarm.progress; delete from pcfarm.job_info; delete from pcfarm.lane; delete from pcfarm.job").await;
    let job = queue.job(10, 2).await;
    let back = queue.take(job, false, 1).await.expect("some");
    queue.close(&back, Closing::Unreceived).await;
    let failing = queue.take(job, false, 1).await.expect("some");
    let told: Vec<(usize, Told<'_>)> = vec![(0, Err("no")), (1, Ok("1"))];
    let last = queue::at_last(acceptance(&[(&failing, &told[..], true)]));
    checkout::accept(&*queue.server().await, "t", &last).await.expect("accepted");
    let held = queue.take(job, false, 1).await.expect("some");
    let another = queue.take(job, false, 1).await.expect("some");
    queue.deliver(&held, &[(0, Ok("1"))], false).await;
    Scene { job, held, another }
}

impl Act {
    const ALL: [Act; 16] = [
        Act::CheckOut,
        Act::CheckOutWhatCameBack,
        Act::AcceptSome,
        Act::AcceptAll,
        Act::AcceptPlainly,
        Act::Bring,
        Act::CloseLost,
        Act::CloseFinished,
        Act::CloseAnother,
        Act::ReturnOfAnother,
        Act::ReturnRest,
        Act::End,
        Act::Cancel,
        Act::Hold,
        Act::Retry,
        Act::Load,
    ];

    /// An error's code, if there was one.
    async fn perform(self, client: &Object, scene: &Scene) -> Result<(), String> {
        let Scene { job, held, another } = scene;
        let code = |error: tokio_postgres::Error| {
            error.code().map_or_else(|| format!("{error:?}"), |code| code.code().to_owned())
        };
        let call = |text: String| async move { client.batch_execute(&text).await };
        let closing = |held: &Held, how| {
            let id = held.checkout_id;
            async move { checkout::close(&**client, &[id], how, "because").await.map(drop) }
        };
        let returning = |held: &Held| {
            let (id, token, problems) = (held.checkout_id, held.token, [held.problems[1].problem_id]);
            async move { checkout::give_back(&**client, id, token, &problems, "because").await.map(drop) }
        };
        let accept = |told: Vec<(usize, Told<'static>)>, closing| async move {
            checkout::accept(client, "t", &acceptance_with_homes(&[(held, &told[..], closing)])).await.map(drop)
        };
        let outcome = match self {
            Act::CheckOut | Act::CheckOutWhatCameBack => {
                let came_back = self == Act::CheckOutWhatCameBack;
                // Read, think, and then move the pointer.
                step(client).await;
                let lanes = lanes::open_lanes(client).await.map_err(code)?;
                step(client).await;
                let lane = lanes.into_iter().find(|lane| lane.job_id == *job && lane.came_back == came_back);
                if let Some(lane) = lane {
                    take(client, &lane, 1, WorkstationId(2)).await;
                }
                Ok(())
            }
            Act::AcceptSome => accept(vec![(1, Ok("2"))], false).await,
            Act::AcceptAll => accept(vec![(1, Ok("3"))], true).await,
            Act::AcceptPlainly => {
                step(client).await;
                checkout::accept(client, "t", &acceptance(&[(held, &[(1, Ok("5"))], true)])).await.map(drop)
            }
            Act::Bring => {
                let mut acceptance = acceptance_with_homes(&[(held, &[(1, Ok("4"))], true)]);
                let (checkout, problem) = (held.checkout_id, acceptance.solved[0].problem_id);
                let more = format!(
                    "{{\"checkout_id\": {checkout}, \"problem_id\": {problem}, \"info\": {{\"brought\": 1}},
                       \"enqueue\": [{{\"key\": \"brought\", \"payload\": 1}}]}}"
                );
                acceptance.solved[0].more = Some(Box::new(RawJson(more.into())));
                checkout::accept(client, "t", &acceptance).await.map(drop)
            }
            Act::CloseLost => closing(held, Closing::Lost).await,
            Act::CloseFinished => closing(held, Closing::Finished).await,
            Act::CloseAnother => closing(another, Closing::Lost).await,
            Act::ReturnOfAnother => returning(another).await,
            Act::ReturnRest => returning(held).await,
            Act::End => upkeep::end_jobs_if_empty(&**client, &[*job]).await.map(drop),
            Act::Cancel => call(format!("select pcfarm.cancel_job({job})")).await,
            Act::Hold => call(format!("select pcfarm.hold_job({job})")).await,
            Act::Retry => call(format!("select pcfarm.retry_job({job})")).await,
            Act::Load => {
                step(client).await;
                let query = "select ''n'' || g as key, ''1''::jsonb as payload from generate_series(1, 4) g";
                call(format!("select pcfarm.load({job}, '{query}', 2)")).await
            }
        };
        outcome.map_err(code)
    }

    /// What an act may meet: the job is not what it was. And a result that is there already fails a plain insert, on which a
    /// server comes again in another transaction.
    fn may_fail(self, code: &str) -> bool {
        match self {
            Act::AcceptSome | Act::AcceptAll | Act::AcceptPlainly | Act::Bring => matches!(code, "23505" | "25P02"),
            Act::Cancel | Act::Hold | Act::Retry | Act::Load => code == "55000",
            _ => false,
        }
    }
}

/// A gate outside any function.
async fn step(client: &Object) {
    client.batch_execute("select stepping.step()").await.expect("a gate");
}

#[derive(Debug)]
enum Place {
    /// It waits at a gate.
    Gate,
    /// It waits for the other session.
    Blocked,
    /// The statement is over, its transaction is not.
    Returned,
    Ended,
}

struct Session {
    number: i32,
    backend: i32,
    /// The other one's.
    other: i32,
    act: Act,
    client: Option<Object>,
    task: Option<JoinHandle<(Object, Result<(), String>)>>,
    place: Place,
    next_gate: i32,
    /// How many steps it has taken.
    steps: usize,
}

impl Session {
    /// Begins, and stops at its first gate.
    async fn begin(watch: &Client, number: i32, client: Object, other: i32, act: Act, scene: &Scene) -> Session {
        let text = format!(
            "set lock_timeout = 0; set statement_timeout = 0; set deadlock_timeout = '100ms';
             set stepping.session = '{number}'; set stepping.gate = '0'; begin"
        );
        client.batch_execute(&text).await.expect("begun");
        let backend = backend(&client).await;
        let own = scene.clone();
        #[expect(clippy::disallowed_methods, reason = "its session awaits it")]
        let task = tokio::spawn(async move {
            let outcome = act.perform(&client, &own).await;
            (client, outcome)
        });
        let mut session = Session {
            number,
            backend,
            other,
            act,
            client: None,
            task: Some(task),
            place: Place::Gate,
            next_gate: 1,
            steps: 0,
        };
        session.settle(watch).await;
        session
    }

    /// Waits until it waits for something else, or for nothing any more.
    async fn settle(&mut self, watch: &Client) {
        let deadline = Instant::now() + PATIENCE;
        let text = "select exists (select from pg_locks where pid = $1 and locktype = 'advisory' and not granted
                and classid = $2::integer::oid and objid = $3::integer::oid),
            $4 = any (pg_blocking_pids($1))";
        let text = watch.prepare(text).await.expect("prepared");
        loop {
            let Some(task) = &mut self.task else { return };
            if task.is_finished() {
                let (client, outcome) = task.await.expect("it does not panic");
                if let Err(code) = outcome {
                    assert!(self.act.may_fail(&code), "{:?} failed with {code}", self.act);
                }
                (self.client, self.task, self.place) = (Some(client), None, Place::Returned);
                return;
            }
            // Whoever else makes it wait, as a vacuum may for a moment, ends by itself.
            let asked: [&(dyn ToSql + Sync); 4] = [&self.backend, &self.number, &self.next_gate, &self.other];
            let row = watch.query_one(&text, &asked).await.expect("asked");
            if row.get(0) {
                self.place = Place::Gate;
                return;
            }
            if row.get(1) {
                self.place = Place::Blocked;
                return;
            }
            assert!(Instant::now() < deadline, "{:?} neither waits nor ends", self.act);
            tokio::task::yield_now().await;
        }
    }

    fn can_go(&self) -> bool {
        matches!(self.place, Place::Gate | Place::Returned)
    }

    fn has_ended(&self) -> bool {
        matches!(self.place, Place::Ended)
    }

    /// One step.
    async fn go(&mut self, watch: &Client) {
        self.steps += 1;
        match self.place {
            Place::Gate => {
                let text = format!("select pg_advisory_unlock({}, {})", self.number, self.next_gate);
                watch.batch_execute(&text).await.expect("a gate opens");
                self.next_gate += 1;
                self.settle(watch).await;
            }
            Place::Returned => {
                let client = self.client.take().expect("it has returned");
                // Of a transaction that has failed this makes a rollback.
                client.batch_execute("commit; reset all").await.expect("ended");
                self.place = Place::Ended;
            }
            Place::Blocked | Place::Ended => {}
        }
    }
}

/// One interleaving: whose turn it is, until both have ended. A session that cannot go is passed over. Returns the steps
/// of each.
async fn run(queue: &Queue, watch: &Client, acts: [Act; 2], turns: &[usize]) -> [usize; 2] {
    let scene = scene(queue).await;
    let gates = format!(
        "select pg_advisory_unlock_all(); select pg_advisory_lock(s, g) from generate_series(1, 2) s, generate_series(1, {MOST_GATES}) g"
    );
    watch.batch_execute(&gates).await.expect("gates");
    let (first, second) = (queue.server().await, queue.server().await);
    let backends = [backend(&first).await, backend(&second).await];
    let mut sessions = [
        Session::begin(watch, 1, first, backends[1], acts[0], &scene).await,
        Session::begin(watch, 2, second, backends[0], acts[1], &scene).await,
    ];
    let mut turns = turns.iter().copied();
    while !sessions.iter().all(Session::has_ended) {
        let turn = turns.next().unwrap_or_else(|| usize::from(!sessions[0].can_go()));
        if !sessions[turn].can_go() && !sessions[1 - turn].can_go() {
            panic!("{acts:?}: both wait: {:?} and {:?}", sessions[0].place, sessions[1].place);
        }
        let turn = if sessions[turn].can_go() { turn } else { continue };
        sessions[turn].go(watch).await;
        if matches!(sessions[1 - turn].place, Place::Blocked) {
            sessions[1 - turn].settle(watch).await;
        }
    }
    watch.batch_execute("select pg_advisory_unlock_all()").await.expect("gates");
    check(queue, &scene, acts).await;
    [sessions[0].steps, sessions[1].steps]
}

/// Nothing is broken, and the job comes to its end.
async fn check(queue: &Queue, scene: &Scene, acts: [Act; 2]) {
    let job = scene.job;
    invariants(queue, acts).await;
    for held in [&scene.held, &scene.another] {
        queue.close(held, Closing::Finished).await;
    }
    let state = queue.state(job).await;
    if state == "held" {
        queue.run(&format!("select pcfarm.release_job({job})")).await;
    }
    let others = "select coalesce(array_agg(checkout_id), '{}') from pcfarm.checkout where ended_at is null";
    queue.run(&format!("select pcfarm.close_checkouts(({others}), 'unreceived', 'over')")).await;
    for came_back in [false, true, true] {
        while let Some(held) = queue.take(job, came_back, usize::MAX).await {
            assert!(queue.finish(&held).await.closed, "{acts:?}");
        }
    }
    queue.end(job).await;
    let state = queue.state(job).await;
    assert!(["done", "failed", "cancelled"].contains(&state.as_str()), "{acts:?}: {state}");
    invariants(queue, acts).await;
}

async fn invariants(queue: &Queue, acts: [Act; 2]) {
    let each = INVARIANTS.iter().map(|(name, query)| {
        format!("select '{name}: ' || to_jsonb(v)::text from (select * from ({query}\n) q limit 3) v")
    });
    let mut each: Vec<String> = each.collect();
    each.push(BROUGHT_WITH_ITS_RESULT.to_owned());
    let text = each.join("\nunion all\n");
    let rows = queue.client.query(&text, &[]).await.expect("the invariants can be asked");
    let found: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    assert!(found.is_empty(), "{acts:?}: {}", found.join("\n"));
}

/// All orders of so many turns of the first and of the second.
fn orders(first: usize, second: usize) -> Vec<Vec<usize>> {
    match (first, second) {
        (0, n) => vec![vec![1; n]],
        (n, 0) => vec![vec![0; n]],
        _ => {
            let with = |turn: usize, rest: Vec<Vec<usize>>| {
                rest.into_iter().map(move |mut order| {
                    order.insert(0, turn);
                    order
                })
            };
            with(0, orders(first - 1, second)).chain(with(1, orders(first, second - 1))).collect()
        }
    }
}

/// Most orders per pair; of more, an even choice. `PCFARM_ORDERS` replaces it: `scripts/nightly` takes 260.
const MOST_ORDERS: usize = 15;

fn most_orders() -> usize {
    std::env::var("PCFARM_ORDERS").map_or(MOST_ORDERS, |text| text.parse().expect("a number"))
}

async fn with_each_other(act: Act) {
    let queue = stepping().await;
    let watch = queue.database.client().await;
    watch.batch_execute("set lock_timeout = 0").await.expect("set");
    let place = Act::ALL.iter().position(|one| *one == act).expect("one of them");
    for &other in &Act::ALL[place..] {
        let acts = [act, other];
        let [first, second] = run(&queue, &watch, acts, &[]).await;
        // One after the other may have taken fewer steps than side by side.
        let all = orders(first, second.max(1));
        let each = all.len().div_ceil(most_orders());
        for turns in all.iter().step_by(each) {
            run(&queue, &watch, acts, turns).await;
        }
    }
}

macro_rules! interleaved {
    ($($name:ident: $act:ident;)+) => {
        $(#[tokio::test]
        async fn $name() {
            with_each_other(Act::$act).await;
        })+
    };
}

interleaved! {
    a_hand_out: CheckOut;
    a_hand_out_of_what_came_back: CheckOutWhatCameBack;
    some_results: AcceptSome;
    all_results: AcceptAll;
    plain_results: AcceptPlainly;
    a_result_that_brings_more: Bring;
    a_lost_checkout: CloseLost;
    a_checkout_handed_back: CloseFinished;
    another_lost_checkout: CloseAnother;
    a_problem_that_is_returned: ReturnOfAnother;
    the_rest_that_is_returned: ReturnRest;
    an_end: End;
    a_cancellation: Cancel;
    a_hold: Hold;
    a_retry: Retry;
    a_load: Load;
}
