//! A queue of its own for a test, and the moves of a server on it.

use deadpool_postgres::{ClientWrapper, Object, Pool};
use pcfarm_proto::ids::{BatchOrder, CheckoutId, JobId, WorkstationId};
use pcfarm_sql::checkout::{self, Acceptance, Accepting, Closed, Closing, Failed, HandOut, Home, Solved, Verdict};
use pcfarm_sql::checks::INVARIANTS;
use pcfarm_sql::json::RawJson;
use pcfarm_sql::lanes::{self, ComingProblem, OpenLane, Portion};
use pcfarm_sql::testing::{TestDatabase, database};
use std::time::{Duration, Instant};
use tokio_postgres::Client;

pub const MAX_ATTEMPTS: i32 = 3;

/// What a test says that a checkout's problem came to.
pub type Told<'a> = Result<&'a str, &'a str>;

pub struct Queue {
    pub client: Client,
    pub pool: Pool,
    pub database: TestDatabase,
}

/// A database with job type `t`, one server and three workstations.
pub async fn queue() -> Queue {
    let database = database().await;
    let client = database.client().await;
    client
        .batch_execute(
            "select pcfarm.create_job_type('t', 'c', '{\"max_attempts\": 3}');
             insert into pcfarm.server (name, address, version) values ('s', 'a', 'v');
             insert into pcfarm.workstation (identity, instance, hostname, cores, memory_bytes, system, agent_version,
                 controllers, session, server_id)
             select gen_random_uuid(), gen_random_uuid(), 'pc' || g, 8, 1, 'Linux', '0', '{c}', 1, 1
             from generate_series(1, 3) g",
        )
        .await
        .expect("a farm");
    let pool = pcfarm_sql::pool::pool(database.config(), 8, "queue-test");
    Queue { client, pool, database }
}

/// A checkout as the server that made it knows it.
#[derive(Clone, Debug)]
pub struct Held {
    pub checkout_id: CheckoutId,
    pub token: i64,
    pub job_id: JobId,
    pub job_type: String,
    pub problems: Vec<ComingProblem>,
}

impl Held {
    pub fn keys(&self) -> Vec<&str> {
        self.problems.iter().map(|p| &*p.key).collect()
    }
}

impl Queue {
    pub async fn server(&self) -> Object {
        self.pool.get().await.expect("connected")
    }

    pub async fn number(&self, query: &str) -> i64 {
        self.client.query_one(query, &[]).await.unwrap_or_else(|error| panic!("{query}: {error:?}")).get(0)
    }

    pub async fn text(&self, query: &str) -> String {
        let row = self.client.query_one(query, &[]).await.unwrap_or_else(|error| panic!("{query}: {error:?}"));
        row.get::<_, Option<String>>(0).unwrap_or_default()
    }

    pub async fn run(&self, statements: &str) {
        self.client.batch_execute(statements).await.unwrap_or_else(|error| panic!("{statements}: {error:?}"));
    }

    /// The SQLSTATE and message that statements are refused with.
    pub async fn refused(&self, statements: &str) -> (String, String) {
        let error = self.client.batch_execute(statements).await.expect_err(statements);
        let said = error.as_db_error().unwrap_or_else(|| panic!("{statements}: {error:?}"));
        (said.code().code().to_owned(), said.message().to_owned())
    }

    /// An open job of type `t` with problems k1, k2, …
    pub async fn job(&self, problems: i64, convoy: i64) -> JobId {
        self.job_of("t", problems, convoy).await
    }

    pub async fn job_of(&self, job_type: &str, problems: i64, convoy: i64) -> JobId {
        let query = format!(
            "select pcfarm.submit('j', '{job_type}',
                 'select ''k'' || g as key, to_jsonb(g) as payload from generate_series(1, {problems}) g', {convoy})"
        );
        JobId(self.number(&query).await)
    }

    pub async fn lane(&self, job_id: JobId, came_back: bool) -> Option<OpenLane> {
        let lanes = lanes::open_lanes(&*self.server().await).await.expect("lanes");
        lanes.into_iter().find(|lane| lane.job_id == job_id && lane.came_back == came_back)
    }

    /// Hands out the next convoys of a lane.
    pub async fn take(&self, job_id: JobId, came_back: bool, convoys: usize) -> Option<Held> {
        let lane = self.lane(job_id, came_back).await?;
        take(&*self.server().await, &lane, convoys, WorkstationId(1)).await
    }

    pub async fn deliver(&self, held: &Held, told: &[(usize, Told<'_>)], closing: bool) -> Verdict {
        let acceptance = acceptance(&[(held, told, closing)]);
        let accepted = checkout::accept(&*self.server().await, &held.job_type, &acceptance).await;
        accepted.expect("accepted").remove(0)
    }

    /// Delivers a solution of everything it holds.
    pub async fn finish(&self, held: &Held) -> Verdict {
        let told: Vec<(usize, Told<'_>)> = (0..held.problems.len()).map(|n| (n, Ok("1"))).collect();
        self.deliver(held, &told, true).await
    }

    pub async fn close(&self, held: &Held, how: Closing) -> Vec<Closed> {
        checkout::close(&*self.server().await, &[held.checkout_id], how, "because").await.expect("closed")
    }

    pub async fn end(&self, job_id: JobId) -> Option<String> {
        pcfarm_sql::upkeep::end_jobs_if_empty(&*self.server().await, &[job_id])
            .await
            .expect("asked")
            .pop()
            .map(|ended| ended.state)
    }

    pub async fn state(&self, job_id: JobId) -> String {
        self.text(&format!("select state from pcfarm.job where job_id = {job_id}")).await
    }

    /// No invariant is broken.
    pub async fn check(&self) {
        for (name, query) in INVARIANTS {
            let rows = self.client.query(&format!("select to_jsonb(v)::text from ({query}\n) v limit 5"), &[]).await;
            let rows = rows.unwrap_or_else(|error| panic!("{name}: {error:?}"));
            let rows: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
            assert!(rows.is_empty(), "{name}: {}", rows.join("\n"));
        }
    }

    /// Returns when a query that counts has come to so many.
    pub async fn eventually(&self, query: &str, count: i64) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.number(query).await < count {
            assert!(Instant::now() < deadline, "{query} has not come to {count}");
            tokio::task::yield_now().await;
        }
    }

    /// Returns when a backend waits for a lock that another holds.
    pub async fn until_blocked(&self, backend: i32) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.number(&format!("select cardinality(pg_blocking_pids({backend}))::bigint")).await == 0 {
            assert!(Instant::now() < deadline, "backend {backend} waits for nothing");
            tokio::task::yield_now().await;
        }
    }
}

pub async fn backend(client: &Client) -> i32 {
    client.query_one("select pg_backend_pid()", &[]).await.expect("a backend").get(0)
}

/// What a server does: reads what comes, cuts at a convoy's end, moves the pointer. Nothing: somebody else did.
pub async fn take(
    client: &ClientWrapper,
    lane: &OpenLane,
    convoys: usize,
    workstation_id: WorkstationId,
) -> Option<Held> {
    let portion =
        Portion { from: lane.next_extraction, problems: 100_000, large: 100_000, bytes: i64::MAX, only_small: true };
    let coming = lanes::coming_problems(client, lane, portion).await.expect("coming");
    let mut problems = coming.problems;
    let mut orders: Vec<i64> = problems.iter().map(|p| p.batch_order.0).collect();
    orders.dedup();
    let alone = orders.iter().position(|&o| problems.iter().any(|p| p.batch_order.0 == o && p.alone));
    // A convoy that is to be alone is so; what comes before it goes first.
    let convoys = alone.map_or(convoys, |first| convoys.min(first.max(1)));
    let last = *orders.get(convoys.min(orders.len()).checked_sub(1)?)?;
    problems.retain(|p| p.batch_order.0 <= last);
    let token = rand_token();
    let hand_out = HandOut {
        job_id: lane.job_id,
        lane_id: lane.lane_id,
        job_type: lane.job_type.clone(),
        from: lane.next_extraction,
        to: BatchOrder(last + 1),
        problems: i32::try_from(problems.len()).expect("few"),
        weight: problems.len() as i64,
        workstation_id,
        token,
        seconds: None,
    };
    let made = checkout::check_out(client, &[hand_out]).await;
    let checkout_id = made.expect("checked out")[0]?;
    Some(Held { checkout_id, token, job_id: lane.job_id, job_type: lane.job_type.to_string(), problems })
}

fn rand_token() -> i64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish().cast_signed()
}

/// A checkout, which of its problems came to what, and whether it is to be closed.
pub type Delivery<'a> = (&'a Held, &'a [(usize, Told<'a>)], bool);

/// As a server makes it: where problems' rows are is said where the job type has a write-back, which only `w` has.
pub fn acceptance(deliveries: &[Delivery<'_>]) -> Acceptance {
    let mut acceptance = acceptance_with_homes(deliveries);
    if deliveries.iter().all(|(held, ..)| held.job_type != "w") {
        acceptance.solved.iter_mut().for_each(|solved| solved.home = None);
    }
    acceptance
}

/// With all that can be said, so that it is never a plain one.
pub fn acceptance_with_homes(deliveries: &[Delivery<'_>]) -> Acceptance {
    let mut acceptance = Acceptance::default();
    for (checkout, &(held, told, closing)) in deliveries.iter().enumerate() {
        acceptance.checkouts.push(Accepting {
            checkout_id: held.checkout_id,
            token: held.token,
            closing,
            busy_seconds: 0.5,
        });
        for (n, told) in told {
            let ComingProblem { problem_id, attempts, home_lane, home_order, key, .. } = held.problems[*n].clone();
            match told {
                Ok(text) => acceptance.solved.push(Solved {
                    checkout,
                    problem_id,
                    attempts,
                    solution: RawJson((*text).to_owned().into()),
                    home: Some(Box::new(Home { lane: home_lane, order: home_order, key: Some(key.to_string()) })),
                    more: None,
                }),
                Err(message) => {
                    let message = (*message).to_owned();
                    acceptance.failed.push(Failed { checkout, problem_id, attempts, home_lane, home_order, message });
                }
            }
        }
    }
    acceptance
}

/// Lets every failure be a last attempt.
pub fn at_last(mut acceptance: Acceptance) -> Acceptance {
    acceptance.failed.iter_mut().for_each(|failed| failed.attempts = MAX_ATTEMPTS - 1);
    acceptance.solved.iter_mut().for_each(|solved| solved.attempts = MAX_ATTEMPTS - 1);
    acceptance
}
