//! Who is declared dead, and what becomes of what they held.

use deadpool_postgres::Pool;
use pcfarm_recycler::{DEFAULT_LEASE, Recycled, pulse_limit, recycle};
use pcfarm_sql::checks::INVARIANTS;
use pcfarm_sql::testing::{TestDatabase, database};
use pcfarm_sql::upkeep;
use tokio_postgres::Client;

struct Farm {
    client: Client,
    pool: Pool,
    database: TestDatabase,
}

async fn farm() -> Farm {
    let database = database().await;
    let client = database.client().await;
    client.batch_execute("select pcfarm.create_job_type('t', 'c', '{\"max_attempts\": 2}')").await.expect("a job type");
    let mut config = database.config();
    config.options("-c lock_timeout=50ms");
    let pool = pcfarm_sql::pool::pool(config, 4, "recycler-test");
    Farm { client, pool, database }
}

impl Farm {
    async fn run(&self, statements: &str) {
        self.client.batch_execute(statements).await.unwrap_or_else(|error| panic!("{statements}: {error:?}"));
    }

    async fn number(&self, query: &str) -> i64 {
        self.client.query_one(query, &[]).await.unwrap_or_else(|error| panic!("{query}: {error:?}")).get(0)
    }

    async fn recycle(&self) -> Recycled {
        recycle(&self.pool, DEFAULT_LEASE).await.expect("recycled")
    }

    /// Servers and workstations anew. A server: seconds since its pulse, and since when it hears; a workstation: its
    /// server's number, and seconds of silence as that server marked it.
    async fn set(&self, servers: &[(f64, f64)], workstations: &[(i64, Option<f64>)]) {
        self.run("truncate pcfarm.server, pcfarm.workstation restart identity").await;
        for (heard, hearing) in servers {
            self.run(&format!(
                "insert into pcfarm.server (name, address, version, heard_at, hearing_since)
                 values ('s', 'a', 'v', clock_timestamp() - interval '{heard} s', clock_timestamp() - interval '{hearing} s')"
            ))
            .await;
        }
        for (server, silent) in workstations {
            let silent = silent.map_or("null".to_owned(), |s| format!("clock_timestamp() - interval '{s} s'"));
            self.run(&format!(
                "insert into pcfarm.workstation (identity, instance, hostname, cores, memory_bytes, system, agent_version,
                     controllers, session, server_id, silent_since)
                 values (gen_random_uuid(), gen_random_uuid(), 'pc', 8, 1, 'Linux', '0', '{{c}}', 1, {server}, {silent})"
            ))
            .await;
        }
    }

    async fn dead(&self) -> Vec<i64> {
        let client = self.pool.get().await.expect("connected");
        let limit = pulse_limit(DEFAULT_LEASE).as_secs_f64();
        let dead = upkeep::declare_dead(&*client, DEFAULT_LEASE.as_secs_f64(), limit);
        let mut dead: Vec<i64> = dead.await.expect("declared").iter().map(|(id, _)| id.0).collect();
        dead.sort_unstable();
        dead
    }

    /// An open job of so many problems, each a convoy.
    async fn job(&self, problems: i64) -> i64 {
        let query = format!(
            "select pcfarm.submit('j', 't', 'select g::text as key, ''1''::jsonb as payload from generate_series(1, {problems}) g', 1)"
        );
        self.number(&query).await
    }

    /// The next problems of a job's load lane, in a workstation's hands.
    async fn check_out(&self, job: i64, workstation: i64, problems: i64, deadline: &str) -> i64 {
        let query = format!(
            "insert into pcfarm.checkout (job_id, lane_id, job_type, from_order, to_order, problems, workstation_id, token, deadline)
             select job_id, lane_id, job_type, next_extraction, next_extraction + {problems}, {problems}, {workstation}, 7, {deadline}
             from pcfarm.queue_pointer where job_id = {job} and kind = 'load' returning checkout_id"
        );
        self.number(&query).await
    }

    /// The first of what a checkout holds is solved.
    async fn solve_first(&self, checkout: i64) {
        self.run(&format!(
            "select pcfarm.accept('t', '{{{checkout}}}', '{{7}}', '{{f}}', '{{1}}', '{{1}}', array[h.problem_id], '{{0}}',
                 array['1'::text], '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', false, null)
             from pcfarm.held_problem h where h.checkout_id = {checkout} order by h.problem_id limit 1"
        ))
        .await;
    }

    async fn check(&self) {
        for (name, query) in INVARIANTS {
            let rows = self.client.query(*query, &[]).await.unwrap_or_else(|error| panic!("{name}: {error:?}"));
            assert!(rows.is_empty(), "{name}: {} rows", rows.len());
        }
    }
}

#[tokio::test]
async fn who_is_declared_dead() {
    let farm = farm().await;
    let (now, long) = (0.5, 100.0);
    #[rustfmt::skip]
    type Case<'a> = (&'a str, &'a [(f64, f64)], &'a [(i64, Option<f64>)], &'a [i64]);
    let table: &[Case<'_>] = &[
        ("its server marked it", &[(now, long)], &[(1, Some(25.0)), (1, Some(15.0)), (1, None)], &[1]),
        ("its server is gone, another runs", &[(30.0, long), (now, long)], &[(1, None), (2, None)], &[1]),
        ("gone for less than the lease", &[(10.0, long), (now, long)], &[(1, None), (1, Some(15.0))], &[]),
        ("marked before its server went", &[(10.0, long), (now, long)], &[(1, Some(25.0)), (1, None)], &[1]),
        ("the other has not run for a lease", &[(30.0, long), (now, 5.0)], &[(1, None), (1, Some(300.0))], &[]),
        ("gone long ago, the other runs for a lease", &[(300.0, 900.0), (now, 25.0)], &[(1, None)], &[1]),
        ("all servers are gone", &[(30.0, long), (60.0, long)], &[(1, None), (2, Some(90.0))], &[]),
        ("after an outage: a full lease", &[(now, 5.0)], &[(1, Some(300.0)), (1, None)], &[]),
        ("all came back from it", &[(now, 5.0), (now, 19.0)], &[(1, Some(300.0)), (2, Some(300.0))], &[]),
        ("and a lease later", &[(now, 21.0)], &[(1, Some(300.0)), (1, None)], &[1]),
        (
            "its server could not write until now, another heard all the time",
            &[(now, 5.0), (now, long)],
            &[(1, Some(25.0)), (1, None), (2, Some(25.0))],
            &[3],
        ),
        ("that was a lease ago", &[(now, 21.0), (now, long)], &[(1, Some(25.0)), (1, None)], &[1]),
        ("a pulse that is just late", &[(3.0, long)], &[(1, Some(25.0))], &[1]),
        ("a pulse that is too late, of the only server", &[(5.0, long)], &[(1, Some(25.0))], &[]),
    ];
    for (case, servers, workstations, expected) in table {
        farm.set(servers, workstations).await;
        assert_eq!(farm.dead().await, *expected, "{case}");
        assert!(farm.dead().await.is_empty(), "{case}: once");
    }
    // A server that said good-bye is gone at once, but its workstations have a lease from its last word.
    for (heard, expected) in [(30.0, &[1_i64][..]), (10.0, &[])] {
        farm.set(&[(heard, long), (now, long)], &[(1, None)]).await;
        farm.run("update pcfarm.server set stopped_at = heard_at where server_id = 1").await;
        assert_eq!(farm.dead().await, expected);
    }
    // Whatever it does.
    farm.set(&[(now, long)], &[(1, Some(25.0)), (1, Some(25.0)), (1, Some(25.0))]).await;
    farm.run("update pcfarm.workstation set state = (array['suspended', 'draining', 'dead'])[workstation_id]").await;
    assert_eq!(farm.dead().await, [1, 2]);
    // One whose row is locked is left for the next time, and keeps nobody waiting.
    farm.set(&[(now, long)], &[(1, Some(25.0)), (1, Some(25.0))]).await;
    let other = farm.database.client().await;
    other
        .batch_execute("begin; select from pcfarm.workstation where workstation_id = 1 for update")
        .await
        .expect("locked");
    assert_eq!(farm.dead().await, [2]);
    other.batch_execute("rollback").await.expect("released");
    assert_eq!(farm.dead().await, [1]);
}

#[tokio::test]
async fn what_dead_workstations_held_comes_back_and_nothing_else() {
    let farm = farm().await;
    farm.set(&[(0.5, 100.0)], &[(1, Some(25.0)), (1, None)]).await;
    let job = farm.job(20).await;
    let lost = farm.check_out(job, 1, 5, "null").await;
    farm.solve_first(lost).await;
    let kept = farm.check_out(job, 2, 5, "null").await;
    let overdue = farm.check_out(job, 2, 3, "clock_timestamp() - interval '1 s'").await;
    farm.check_out(job, 2, 1, "clock_timestamp() + interval '1 h'").await;
    farm.solve_first(overdue).await;
    let done = farm.recycle().await;
    assert_eq!(done, Recycled { dead: 1, revoked: 2, requeued: 4 + 2, ..Recycled::default() });
    assert_eq!(farm.number("select count(*) from pcfarm.requeued").await, 6);
    let unfinished =
        "select count(*) from pcfarm.job_problems where state = 'waiting' and attempts = 0 and message like";
    assert_eq!(farm.number(&format!("{unfinished} 'lost with workstation 1 (pc)%'")).await, 4);
    assert_eq!(farm.number(&format!("{unfinished} 'revoked from workstation 2 (pc): %time limit%'")).await, 2);
    assert_eq!(
        farm.number(&format!("select count(*) from pcfarm.checkout where checkout_id = {kept} and ended_at is null"))
            .await,
        1
    );
    farm.check().await;
    assert_eq!(farm.recycle().await, Recycled::default(), "nothing is left to do");

    // Handed to a workstation that is dead already: found by the next pass.
    farm.check_out(job, 1, 1, "null").await;
    let done = farm.recycle().await;
    assert_eq!((done.dead, done.revoked, done.requeued), (0, 1, 1));
    // One problem, but not sent out to be run alone: others in those hands may have been to blame.
    let marked = "select count(*) from pcfarm.requeued where attempts = 0 and losses = 1 and alone";
    assert_eq!(farm.number(marked).await, 4 + 2 + 1);
    farm.check().await;
}

#[tokio::test]
async fn recyclers_take_turns() {
    let farm = farm().await;
    farm.set(&[(0.5, 100.0)], &[(1, Some(25.0))]).await;
    let job = farm.job(300).await;
    for _ in 0..150 {
        farm.check_out(job, 1, 2, "null").await;
    }
    let other = farm.database.client().await;
    other.batch_execute("begin; select pg_advisory_xact_lock(7402310, 1)").await.expect("locked");
    assert_eq!(farm.recycle().await, Recycled { passed: true, ..Recycled::default() });
    other.batch_execute("rollback").await.expect("released");
    // Two at once: what one does the other does not, and one of them may do all.
    let (one, two) = tokio::join!(farm.recycle(), farm.recycle());
    assert_eq!((one.dead + two.dead, one.revoked + two.revoked, one.requeued + two.requeued), (1, 150, 300));
    farm.check().await;

    // Without the lock, as when one was frozen for long, it does no harm either.
    farm.set(&[(0.5, 100.0)], &[(1, Some(25.0)), (1, None)]).await;
    let job = farm.job(40).await;
    let checkouts: Vec<i64> =
        [farm.check_out(job, 1, 20, "null").await, farm.check_out(job, 1, 20, "null").await].into();
    let close = format!("select pcfarm.close_checkouts('{{{},{}}}', 'lost', 'x')", checkouts[1], checkouts[0]);
    other.batch_execute(&format!("begin; {close}")).await.expect("closed");
    assert_eq!(farm.recycle().await.skipped, 2);
    other.batch_execute("commit").await.expect("committed");
    assert_eq!(farm.recycle().await, Recycled::default());
    assert_eq!(farm.number(&format!("select count(*) from pcfarm.requeued where job_id = {job}")).await, 40);
    farm.check().await;
}

#[tokio::test]
async fn a_locked_checkout_is_passed_over_and_reported() {
    let farm = farm().await;
    farm.set(&[(0.5, 100.0)], &[(1, Some(25.0))]).await;
    let job = farm.job(10).await;
    farm.check_out(job, 1, 2, "null").await;
    let locked = farm.check_out(job, 1, 2, "null").await;
    farm.check_out(job, 1, 2, "null").await;
    let other = farm.database.client().await;
    other
        .batch_execute(&format!("begin; select from pcfarm.checkout where checkout_id = {locked} for update"))
        .await
        .expect("locked");
    let done = farm.recycle().await;
    assert_eq!(done, Recycled { dead: 1, revoked: 2, requeued: 4, skipped: 1, ..Recycled::default() });
    farm.check().await;
    other.batch_execute("rollback").await.expect("released");
    let done = farm.recycle().await;
    assert_eq!(done, Recycled { revoked: 1, requeued: 2, ..Recycled::default() });
    farm.check().await;
}

/// The agent said that it goes to sleep, and no server has recorded its goodbye.
#[tokio::test]
async fn checkouts_of_a_sleeping_workstation_come_back_after_one_lease_of_silence() {
    let farm = farm().await;
    let (now, long) = (0.5, 100.0);
    // Marked by its server, and left behind by a server that was killed.
    for (servers, silent) in [(&[(now, long)][..], Some(25.0)), (&[(30.0, long), (now, long)][..], None)] {
        farm.set(servers, &[(1, silent)]).await;
        farm.run("update pcfarm.workstation set asleep = true").await;
        let job = farm.job(10).await;
        farm.check_out(job, 1, 5, "null").await;
        let done = farm.recycle().await;
        assert_eq!(done, Recycled { dead: 1, revoked: 1, requeued: 5, ..Recycled::default() }, "{silent:?}");
        assert_eq!(farm.number("select count(*) from pcfarm.workstation where state = 'offline'").await, 1);
    }
    // A goodbye is a word: the lease begins with it.
    farm.set(&[(now, long)], &[(1, Some(25.0))]).await;
    let job = farm.job(10).await;
    farm.check_out(job, 1, 5, "null").await;
    let client = farm.pool.get().await.expect("connected");
    let goodbye = "select w.session from pcfarm.workstation w where w.workstation_id = 1";
    let session = farm.number(goodbye).await;
    client
        .execute(
            include_str!("../../../sql/queries/goodbye_workstations.sql"),
            &[&vec![1_i64], &vec![session], &vec!["stopped"], &vec![false]],
        )
        .await
        .expect("said");
    assert_eq!(farm.recycle().await, Recycled::default());
    farm.run(
        "update pcfarm.workstation set since = since - interval '25 s', silent_since = silent_since - interval '25 s'",
    )
    .await;
    assert_eq!(farm.recycle().await, Recycled { revoked: 1, requeued: 5, ..Recycled::default() });
    farm.check().await;
}

/// The clock was three years ahead when the workstation ended.
#[tokio::test]
async fn checkouts_of_a_workstation_that_ended_in_the_future_come_back_after_a_lease() {
    let farm = farm().await;
    farm.set(&[(0.5, 100.0)], &[(1, None)]).await;
    let job = farm.job(10).await;
    farm.check_out(job, 1, 5, "null").await;
    farm.run(
        "update pcfarm.workstation set state = 'offline', since = clock_timestamp() + interval '3 years',
             silent_since = clock_timestamp() + interval '3 years'",
    )
    .await;
    assert_eq!(farm.recycle().await, Recycled::default());
    let ahead = "select count(*) from pcfarm.workstation where greatest(since, silent_since) > clock_timestamp()";
    assert_eq!(farm.number(ahead).await, 0);
    farm.run(
        "update pcfarm.workstation set since = since - interval '25 s', silent_since = silent_since - interval '25 s'",
    )
    .await;
    assert_eq!(farm.recycle().await, Recycled { revoked: 1, requeued: 5, ..Recycled::default() });
    farm.check().await;
}

/// After a step back, another transaction holds a row whose times lie in the future. Everything else goes on.
#[tokio::test]
async fn a_locked_row_of_a_wrong_clock_keeps_nobody_else_waiting() {
    let farm = farm().await;
    farm.set(&[(0.5, 100.0), (0.5, 100.0)], &[(1, Some(-7200.0)), (1, Some(25.0)), (1, Some(-7200.0))]).await;
    farm.run("update pcfarm.server set heard_at = clock_timestamp() + interval '2 hours' where server_id = 2").await;
    let job = farm.job(10).await;
    farm.check_out(job, 2, 5, "null").await;
    let other = farm.database.client().await;
    other
        .batch_execute(
            "begin; select from pcfarm.workstation where workstation_id = 1 for update;
             select from pcfarm.server where server_id = 2 for update",
        )
        .await
        .expect("locked");
    assert_eq!(farm.recycle().await, Recycled { dead: 1, revoked: 1, requeued: 5, ..Recycled::default() });
    let ahead = "select sum(workstation_id)::bigint from pcfarm.workstation where silent_since > clock_timestamp()";
    assert_eq!(farm.number(ahead).await, 1);
    other.batch_execute("rollback").await.expect("released");
    assert_eq!(farm.recycle().await, Recycled::default());
    let ahead = "select (select count(*) from pcfarm.workstation where silent_since > clock_timestamp())
        + (select count(*) from pcfarm.server where heard_at > clock_timestamp())";
    assert_eq!(farm.number(ahead).await, 0);
    farm.check().await;
}
