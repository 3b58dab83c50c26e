//! What people see of jobs, problems and workstations, on a job in every state.

use deadpool_postgres::Pool;
use pcfarm_proto::ids::{JobId, ProblemId, WorkstationId};
use pcfarm_sql::jobs::problems::{ProblemState, Wanted, page};
use pcfarm_sql::jobs::results::Results;
use pcfarm_sql::jobs::{self, JobState};
use pcfarm_sql::testing::{TestDatabase, database};
use pcfarm_sql::{farm, fleet};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio_postgres::Client;

const STATES: [ProblemState; 5] = [
    ProblemState::Waiting,
    ProblemState::InProgress,
    ProblemState::Done,
    ProblemState::Failed,
    ProblemState::Cancelled,
];

struct World {
    database: TestDatabase,
    client: Client,
    pool: Pool,
}

async fn world() -> World {
    let database = database().await;
    let client = database.client().await;
    client
        .batch_execute(
            "select pcfarm.create_job_type('t', 'emsr', '{\"max_attempts\": 2}');
             insert into pcfarm.server (name, address, version) values ('s', 'a', 'v');
             insert into pcfarm.workstation (identity, instance, hostname, cores, memory_bytes, system, agent_version,
                 controllers, session, server_id)
             values (gen_random_uuid(), gen_random_uuid(), 'pc1', 8, 1, 'Linux', '0', '{emsr}', 1, 1)",
        )
        .await
        .expect("a farm");
    let pool = pcfarm_sql::pool::pool(database.config(), 2, "jobs-test");
    World { database, client, pool }
}

impl World {
    async fn job(&self, sql: &str) -> JobId {
        self.client.query_one(sql, &[]).await.expect(sql).get(0)
    }

    /// 10 problems of one's own in an order that is not that of their ids, and two loads of 50 in convoys of 4.
    async fn mixed_job(&self) -> JobId {
        let job = self.job("select pcfarm.create_job('mixed', 't')").await;
        let statements = format!(
            "insert into pcfarm.problem (job_id, key, payload, batch_order)
                 select {job}, 'own' || g, '{{}}', 100 - g * 7 from generate_series(1, 10) g;
             select pcfarm.load({job}, 'select ''a'' || g as key, to_jsonb(g) as payload from generate_series(1, 50) g', 4);
             select pcfarm.load({job}, 'select ''b'' || g as key, to_jsonb(g) as payload, (g % 7)::text as group_key
                 from generate_series(1, 50) g', 4);
             select pcfarm.open_job({job})"
        );
        self.client.batch_execute(&statements).await.expect("loaded");
        job
    }

    /// A checkout of batch orders of the n-th lane of a kind.
    async fn check_out(&self, job: JobId, lane: i64, from: i64, to: i64) -> i64 {
        let statement = "insert into pcfarm.checkout (job_id, lane_id, job_type, from_order, to_order, problems,
                 workstation_id, token)
             select $1, l.lane_id, 't', $3, $4, (select count(*) from (
                 select from pcfarm.problem p where p.job_id = $1 and p.lane_id = l.lane_id and p.batch_order >= $3 and p.batch_order < $4
                 union all
                 select from pcfarm.requeued r where r.job_id = $1 and r.lane_id = l.lane_id and r.batch_order >= $3 and r.batch_order < $4) n),
                 1, 5
             from pcfarm.lane l where l.job_id = $1 order by l.lane_id offset $2 limit 1 returning checkout_id";
        self.client.query_one(statement, &[&job, &lane, &from, &to]).await.expect("checked out").get(0)
    }

    /// Every third problem that it holds fails for good or for now, the others are done.
    async fn finish(&self, checkout: i64, last_attempt: bool) {
        let statement = "select pcfarm.accept('t', array[$1::bigint], array[5::bigint],
                 array[cardinality(f.ids) = 0 or $2::boolean], array[cardinality(s.ids)],
                 array_fill(1, array[cardinality(s.ids)]), s.ids, s.attempts, s.solutions, '{}', '{}', '{}',
                 array_fill(1, array[cardinality(f.ids)]), f.ids, f.attempts, f.lanes, f.orders, f.messages, false, null)
             from (select coalesce(array_agg(h.problem_id), '{}') as ids, coalesce(array_agg(h.attempts), '{}') as attempts,
                     coalesce(array_agg('{\"r\": 1}'::text), '{}') as solutions
                 from pcfarm.held_problem h where h.checkout_id = $1 and h.problem_id % 3 <> 0) s,
                 (select coalesce(array_agg(h.problem_id), '{}') as ids,
                     coalesce(array_agg(case when $2 then 2 else h.attempts end), '{}') as attempts,
                     coalesce(array_agg(h.home_lane), '{}') as lanes, coalesce(array_agg(h.home_order), '{}') as orders,
                     coalesce(array_agg('bad'::text), '{}') as messages
                 from pcfarm.held_problem h where h.checkout_id = $1 and h.problem_id % 3 = 0) f";
        self.client.query(statement, &[&checkout, &last_attempt]).await.expect("accepted");
        let close = "select pcfarm.close_checkouts(array[$1::bigint], 'finished', 'finished')";
        self.client.query(close, &[&checkout]).await.expect("closed");
    }

    /// What the view says, which reads everything.
    async fn expected(&self, job: JobId, state: Option<&str>) -> Vec<Seen> {
        let query = "select problem_id, key, state, attempts, message, checkout_id, workstation_id, result is not null
             from pcfarm.job_problems where job_id = $1 and ($2::text is null or state = $2) order by problem_id";
        let rows = self.client.query(query, &[&job, &state]).await.expect("asked");
        rows.iter()
            .map(|row| Seen {
                problem_id: row.get(0),
                key: row.get(1),
                state: row.get(2),
                attempts: row.get(3),
                message: row.get(4),
                checkout_id: row.get(5),
                workstation_id: row.get(6),
                has_result: row.get(7),
            })
            .collect()
    }

    async fn pages(&self, job_id: JobId, state: Option<ProblemState>, key: Option<&str>, limit: u32) -> Vec<Seen> {
        let client = self.pool.get().await.expect("connected");
        let mut seen = Vec::new();
        let mut after = ProblemId(0);
        loop {
            let wanted = Wanted { job_id, state, key: key.map(str::to_owned), after, limit };
            let found = page(&client, &wanted).await.expect("a page");
            let Some(last) = found.last() else { return seen };
            assert!(found.len() <= limit as usize);
            after = last.problem_id;
            seen.extend(found.into_iter().map(|problem| Seen {
                problem_id: problem.problem_id.0,
                key: problem.key,
                state: problem.state.as_str().to_owned(),
                attempts: problem.attempts,
                message: problem.message,
                checkout_id: problem.checkout_id.map(|id| id.0),
                workstation_id: problem.workstation_id.map(|id| id.0),
                has_result: problem.result.is_some(),
            }));
        }
    }

    async fn check_pages(&self, job: JobId) -> BTreeSet<String> {
        let mut states = BTreeSet::new();
        for state in STATES.map(Some).into_iter().chain([None]) {
            let expected = self.expected(job, state.map(ProblemState::as_str)).await;
            states.extend(expected.iter().map(|problem| problem.state.clone()));
            for limit in [1, 7, 1_000] {
                assert_eq!(self.pages(job, state, None, limit).await, expected, "{state:?} by {limit}");
            }
            for key in ["own3", "a7", "b50"] {
                let of_key: Vec<Seen> = expected.iter().filter(|problem| problem.key == key).cloned().collect();
                assert_eq!(self.pages(job, state, Some(key), 2).await, of_key, "{state:?} {key}");
            }
        }
        states
    }

    async fn check_results(&self, job: JobId) -> usize {
        let query = "select r.problem_id, p.key, r.message from pcfarm.result r join pcfarm.problem p using (job_id, problem_id)
             where r.job_id = $1 order by r.problem_id";
        let rows = self.client.query(query, &[&job]).await.expect("asked");
        let expected: Vec<(i64, String, Option<String>)> =
            rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
        let client = self.pool.get().await.expect("connected");
        let mut results = Results::of_job(&client, job).await.expect("begun");
        let mut seen = Vec::new();
        while let Some(piece) = results.next(&client).await.expect("a piece") {
            seen.extend(piece.into_iter().map(|one| (one.problem_id.0, one.key, one.solution.err())));
        }
        assert_eq!(seen, expected);
        seen.len()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    problem_id: i64,
    key: String,
    state: String,
    attempts: i32,
    message: Option<String>,
    checkout_id: Option<i64>,
    workstation_id: Option<i64>,
    has_result: bool,
}

#[tokio::test]
async fn pages_and_results_say_what_the_view_says_throughout_a_job() {
    let world = world().await;
    let job = world.mixed_job().await;
    assert_eq!(world.check_pages(job).await.len(), 1, "all wait");
    assert_eq!(world.check_results(job).await, 0);
    // Lanes by id: own, two loads, and retry from the first that comes back.
    let own = world.check_out(job, 0, 0, 60).await;
    let first = world.check_out(job, 1, 0, 5).await;
    let second = world.check_out(job, 1, 5, 9).await;
    let grouped = world.check_out(job, 2, 0, 2).await;
    world.check_pages(job).await;
    world.finish(own, true).await;
    world.finish(first, false).await;
    let mut states = world.check_pages(job).await;
    assert!(world.check_results(job).await > 10);
    world.check_out(job, 3, 0, 2).await; // some of what came back
    states.extend(world.check_pages(job).await);
    world.finish(grouped, true).await;
    world.finish(second, true).await;
    world.check_pages(job).await;
    world.check_results(job).await;

    let client = world.pool.get().await.expect("connected");
    let shown = jobs::get(&client, job).await.expect("asked").expect("there");
    assert_eq!(shown.state, JobState::Open);
    assert_eq!((shown.problems, shown.workstations), (110, 1));
    assert_eq!(shown.done + shown.failed, world.check_results(job).await as i64);
    assert!(shown.reason().contains("in progress on 1 workstation"), "{}", shown.reason());
    assert_eq!(jobs::lanes(&client, job).await.expect("asked").len(), 4);

    assert!(jobs::retry(&client, job).await.expect("retried") > 0);
    world.check_pages(job).await;
    world.check_results(job).await;
    jobs::cancel(&client, job).await.expect("cancelled");
    states.extend(world.check_pages(job).await);
    world.check_results(job).await;
    assert_eq!(states.len(), 5, "every state was seen: {states:?}");
    assert_eq!(jobs::state(&client, job).await.expect("asked"), Some(JobState::Cancelled));
}

#[tokio::test]
async fn problems_without_a_batch_order_are_listed() {
    let world = world().await;
    let job = world.job("select pcfarm.create_job('own', 't')").await;
    let copy = format!(
        "insert into pcfarm.problem (job_id, key, payload) select {job}, 'k' || g, '{{}}' from generate_series(1, 5) g"
    );
    world.client.batch_execute(&copy).await.expect("copied");
    assert_eq!(world.check_pages(job).await.into_iter().collect::<Vec<_>>(), ["waiting"]);
    assert_eq!(world.check_results(job).await, 0);
}

#[tokio::test]
async fn large_problems_come_in_short_pages() {
    let world = world().await;
    let job = world.job("select pcfarm.create_job('large', 't')").await;
    let load = format!(
        "select pcfarm.load({job}, 'select g::text as key, to_jsonb(repeat(''x'', 900000)) as payload from generate_series(1, 9) g', 2)"
    );
    world.client.batch_execute(&load).await.expect("loaded");
    let client = world.pool.get().await.expect("connected");
    let wanted = Wanted { job_id: job, state: None, key: None, after: ProblemId(0), limit: 100 };
    let short = page(&client, &wanted).await.expect("a page");
    assert!((1..9).contains(&short.len()), "{}", short.len());
    drop((client, short));
    assert_eq!(world.pages(job, None, None, 100).await.len(), 9);
}

#[tokio::test]
async fn jobs_are_listed_newest_first_and_moved() {
    let world = world().await;
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(world.job(&format!("select pcfarm.create_job('n{n}', 't')")).await);
    }
    let client = world.pool.get().await.expect("connected");
    jobs::cancel(&client, ids[3]).await.expect("cancelled");
    let listed = async |all, before, limit| -> Vec<i64> {
        let found = jobs::list(&client, &jobs::Wanted { all, before, owner: None, limit }).await.expect("listed");
        found.iter().map(|job| job.job_id.0).collect()
    };
    let id = |n: usize| ids[n].0;
    assert_eq!(listed(false, None, 100).await, [id(4), id(2), id(1), id(0)]);
    assert_eq!(listed(true, None, 2).await, [id(4), id(3)]);
    assert_eq!(listed(true, Some(ids[3]), 2).await, [id(2), id(1)]);
    assert_eq!(listed(false, Some(ids[0]), 2).await, [0; 0]);

    let load = format!("select pcfarm.load({}, 'select ''k'' as key, ''1''::jsonb as payload', 1)", ids[0]);
    world.client.batch_execute(&load).await.expect("loaded");
    let told = async |what: &str| {
        let job = jobs::get(&client, ids[0]).await.expect("asked").expect("there");
        assert!(job.reason().contains(what), "{} / {what}", job.reason());
        let told = farm::explain_job(&client, ids[0]).await.expect("asked").expect("there");
        assert!(told[0].contains(what), "{told:?}");
    };
    told("open it with `pcfarm job open").await;
    jobs::open(&client, ids[0]).await.expect("opened");
    told("about to be handed out to workstations that run controller emsr").await;
    jobs::hold(&client, ids[0]).await.expect("held");
    told("`pcfarm job release").await;
    jobs::release(&client, ids[0]).await.expect("released");
    world.client.batch_execute("update pcfarm.workstation set state = 'suspended'").await.expect("suspended");
    told("each is suspended or draining").await;
    world.client.batch_execute("update pcfarm.job set not_before = '2999-01-01'").await.expect("later");
    told("starts at 2999-01-01 00:00:00 UTC").await;

    let error = jobs::open(&client, JobId(99)).await.expect_err("none");
    assert_eq!(error.code(), Some(&tokio_postgres::error::SqlState::NO_DATA_FOUND));
    assert!(jobs::get(&client, JobId(99)).await.expect("asked").is_none());
    assert!(farm::explain_job(&client, JobId(99)).await.expect("asked").is_none());
    assert!(jobs::state(&client, JobId(99)).await.expect("asked").is_none());
}

#[tokio::test]
async fn the_farm_is_told_in_numbers_and_workstations_by_what_they_hold() {
    let world = world().await;
    let job = world.mixed_job().await;
    let checkout = world.check_out(job, 1, 0, 5).await;
    let client = world.pool.get().await.expect("connected");
    let status = farm::status(&client, Duration::from_secs(4)).await.expect("asked");
    assert_eq!((status.workstations_processing, status.workstations_waiting, status.cores), (1, 0, 8));
    assert_eq!((status.jobs_open, status.problems_in_progress, status.problems_waiting), (1, 20, 90));
    assert_eq!(status.servers.iter().map(|server| server.live).collect::<Vec<_>>(), [true]);

    let found = farm::workstations(&client, false, WorkstationId(0), 10).await.expect("listed");
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].state, farm::WorkstationState::Processing);
    let held = &found[0].holds[0];
    assert_eq!((held.checkout_id.0, held.job_id, held.problems), (checkout, job, 20));
    assert!(farm::workstations(&client, true, found[0].workstation_id, 10).await.expect("listed").is_empty());
    let explained = async || {
        let one = farm::workstation(&client, found[0].workstation_id).await.expect("asked").expect("there");
        let told = farm::explain_workstation(&client, &one).await.expect("asked").expect("there");
        told.join("\n")
    };
    assert!(explained().await.contains("20 problems in 1 checkout"));
    let drained = fleet::drain(&client, &[found[0].workstation_id], &fleet::Drain::default()).await.expect("drained");
    assert_eq!(drained, Ok(()));
    assert!(explained().await.contains("`pcfarm undrain"));
    world.client.batch_execute("update pcfarm.workstation set state = 'dead'").await.expect("died");
    assert!(farm::workstations(&client, false, WorkstationId(0), 10).await.expect("listed").is_empty());
    assert!(explained().await.contains("dead for"));
    assert!(farm::workstation(&client, WorkstationId(99)).await.expect("asked").is_none());
    drop(world.database);
}
