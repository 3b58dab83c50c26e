//! While the clock is unproven nothing is removed for its age; times of a clock that was ahead are computed again.

use crate::queue::{Queue, queue};
use pcfarm_proto::ids::{CheckoutId, ServerId};
use pcfarm_sql::alerts;
use pcfarm_sql::clock::{self, PARTS, PUT_RIGHT_AT_ONCE};
use pcfarm_sql::upkeep::{self, Loss};

const OLD: &str = "
    update pcfarm.job_type t set retention = '1 hour';
    update pcfarm.job j set ended_at = now() - interval '2 hours' where j.ended_at is not null;
    insert into pcfarm.statistic (hour, job_type, owner, done, failed, requeued)
    values (now() - interval '900 days', 't', 'pcfarm', 1, 0, 0);
    insert into pcfarm.schedule_tick (ticked_at, schedule_ids, sequences, due_ats, previous, job_ids, problem_ids, refusals)
    values (now() - interval '9 days', '{}', '{}', '{}', '{}', '{}', '{}', '{}')";

/// Rows that are older than they are kept.
const LEFT: &str = "select (select count(*) from pcfarm.job j where j.ended_at < now() - interval '1 hour')
    + (select count(*) from pcfarm.statistic) + (select count(*) from pcfarm.schedule_tick)";

fn query(name: &str) -> String {
    let path = format!("{}/queries/{name}.sql", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).expect("a query")
}

/// Repairs all parts once. Returns how many rows were changed.
async fn put_right(queue: &Queue) -> i64 {
    let server = queue.server().await;
    let mut changed = 0;
    for part in PARTS {
        changed += clock::put_right(&*server, part, true).await.expect(part);
    }
    changed
}

async fn removal(queue: &Queue) {
    queue.run("do $$ begin for i in 1 .. 20 loop perform pcfarm.forget_old_job(); end loop; end $$").await;
    queue.run(&query("forget_statistics")).await;
    queue.run(&query("forget_schedule_ticks").replace("$1", "604800")).await;
}

#[tokio::test]
async fn nothing_is_removed_while_the_clock_is_unproven() {
    let queue = queue().await;
    let job = queue.job(3, 1).await;
    queue.run(&format!("select pcfarm.cancel_job({job})")).await;
    queue.run(OLD).await;
    assert_eq!(queue.number(LEFT).await, 3);
    for unproven in [
        "update pcfarm.clock set unproven_since = now(), step_until = now() + interval '10 minutes', checked_at = clock_timestamp()",
        // A step that no server has seen yet: the last look is of another time.
        "update pcfarm.clock set unproven_since = null, step_until = null, checked_at = clock_timestamp() - interval '2 hours'",
        "update pcfarm.clock set checked_at = clock_timestamp() + interval '2 hours'",
    ] {
        queue.run(unproven).await;
        removal(&queue).await;
        assert_eq!(queue.number(LEFT).await, 3, "{unproven}");
    }
    queue.run("update pcfarm.clock set checked_at = clock_timestamp()").await;
    removal(&queue).await;
    assert_eq!(queue.number(LEFT).await, 0);
}

#[tokio::test]
async fn an_accepted_clock_is_proven_and_only_administrators_accept() {
    let queue = queue().await;
    queue
        .run("update pcfarm.clock set unproven_since = now(), stored_until = now() + interval '1 hour', newest = now() + interval '9 days'")
        .await;
    assert_eq!(queue.number("select pcfarm.clock_is_proven()::integer::bigint").await, 0);
    queue.run("create role stranger_to_the_clock; grant usage on schema pcfarm to stranger_to_the_clock").await;
    let (state, _) = queue.refused("set role stranger_to_the_clock; select pcfarm.accept_clock()").await;
    assert_eq!(state, "42501");
    queue.run("reset role; drop owned by stranger_to_the_clock; drop role stranger_to_the_clock").await;
    queue.run("select pcfarm.accept_clock()").await;
    assert_eq!(queue.number("select pcfarm.clock_is_proven()::integer::bigint").await, 1);
    let events = queue
        .text("select string_agg(e.what, ', ' order by e.event_id) from pcfarm.event e where e.what ~ '^clock'")
        .await;
    assert_eq!(events, "clock unproven, clock accepted");
}

#[tokio::test]
async fn waits_of_a_clock_that_was_ahead_are_as_long_as_they_can_be_from_now() {
    let queue = queue().await;
    queue.run("update pcfarm.job_type t set retry_delay = '1 second', retry_delay_limit = '1 minute'").await;
    let job = queue.job(4, 1).await;
    queue
        .run(&format!(
            "insert into pcfarm.delayed (job_id, problem_id, due_at, home_lane, home_order, grouped, attempts, message)
             select p.job_id, p.problem_id, now() + interval '3 years', p.lane_id, p.batch_order, false, p.batch_order,
                 case when p.batch_order > 0 then 'failed' end
             from pcfarm.problem p where p.job_id = {job};
             insert into pcfarm.checkout (job_id, lane_id, from_order, to_order, job_type, problems, workstation_id, token,
                 checked_out_at, deadline)
             select l.job_id, l.lane_id, 0, 1, 't', 1, 1, 7, now() + interval '2 hours', now() + interval '3 hours'
             from pcfarm.lane l where l.job_id = {job}
             union all
             select l.job_id, l.lane_id, 1, 2, 't', 1, 1, 7, now() + interval '2 hours', null
             from pcfarm.lane l where l.job_id = {job};
             update pcfarm.workstation w set woken_at = now() + interval '2 hours', silent_since = now() + interval '2 hours';
             update pcfarm.server s set heard_at = now() + interval '2 hours', hearing_since = now() + interval '2 hours'"
        ))
        .await;
    put_right(&queue).await;
    queue.run(&query("put_leases_right")).await;
    // A problem that was loaded with a time of its own keeps its time.
    assert_eq!(
        queue.number("select count(*) from pcfarm.delayed where due_at > now() + interval '2 minutes'").await,
        1
    );
    let late =
        "select count(*) from pcfarm.checkout where deadline > now() + interval '61 minutes' or checked_out_at > now()";
    assert_eq!(queue.number(late).await, 0);
    // No time limit remains no time limit.
    assert_eq!(queue.number("select count(*) from pcfarm.checkout where deadline is null").await, 1);
    for late in [
        "select count(*) from pcfarm.workstation where woken_at > now() or silent_since > now()",
        "select count(*) from pcfarm.server where heard_at > now() or hearing_since > now()",
    ] {
        assert_eq!(queue.number(late).await, 0, "{late}");
    }
    assert_eq!(put_right(&queue).await, 0);
}

const FAR: &str = "(clock_timestamp() + interval '3 years')";

#[tokio::test]
async fn starts_that_lie_in_the_future_move_to_now() {
    let queue = queue().await;
    queue
        .run(&format!(
            "update pcfarm.workstation set connected_at = {FAR}, cannot_tell_since = {FAR}, trusted_since = {FAR};
             insert into pcfarm.workstation_record (workstation_id, worked_at, looked_at, idle_days, idle_on)
             values (1, {FAR}, {FAR}, 1, ({FAR} at time zone 'UTC')::date), (2, null, {FAR}, 0, null);
             insert into pcfarm.signal (name, value, said_at) values ('load', 1, {FAR});
             insert into pcfarm.farm_user (name) values ('eva') on conflict do nothing;
             insert into pcfarm.account (user_name) values ('eva');
             insert into pcfarm.api_token (user_name, name, hash, scopes, created_at, expires_at)
             values ('eva', 'long', sha256('1'), '{{submit}}', {FAR}, {FAR} + interval '1 day'),
                 ('eva', 'right', sha256('2'), '{{submit}}', clock_timestamp(), clock_timestamp() + interval '1 day');
             insert into pcfarm.join_token (hash, created_at, expires_at, uses_left) values (sha256('3'), {FAR}, {FAR} + interval '1 day', 1)"
        ))
        .await;
    assert_eq!(put_right(&queue).await, 3 + 2 + 1 + 2);
    for ahead in [
        "select count(*) from pcfarm.workstation where greatest(connected_at, cannot_tell_since, trusted_since) > clock_timestamp()",
        "select count(*) from pcfarm.workstation_record where greatest(worked_at, looked_at) > clock_timestamp() or idle_on is not null",
        "select count(*) from pcfarm.signal where said_at > clock_timestamp()",
        "select count(*) from pcfarm.api_token where created_at > clock_timestamp()",
        "select count(*) from pcfarm.join_token where created_at > clock_timestamp()",
    ] {
        assert_eq!(queue.number(ahead).await, 0, "{ahead}");
    }
    let named = "select string_agg(coalesce(t ->> 'name', 'join'), ', ') from pcfarm.event e,
        jsonb_array_elements(e.details -> 'tokens') t where e.what = 'tokens outlive their time'";
    assert_eq!(queue.text(named).await, "long, join");
    assert_eq!(put_right(&queue).await, 0);
}

/// Neither a row that another transaction holds nor a number of rows stops the repair of the others.
#[tokio::test]
async fn repairs_pass_over_locked_rows_and_go_on_batch_by_batch() {
    let queue = queue().await;
    let job = queue.job(2_500, 1).await;
    queue
        .run(&format!(
            "insert into pcfarm.checkout (job_id, lane_id, from_order, to_order, job_type, problems, workstation_id, token, checked_out_at)
             select l.job_id, l.lane_id, g, g + 1, 't', 1, 1, 7, {FAR}
             from pcfarm.lane l, generate_series(0, 2499) g where l.job_id = {job};
             update pcfarm.workstation set connected_at = {FAR}"
        ))
        .await;
    let other = queue.database.client().await;
    other
        .batch_execute(
            "begin; select from pcfarm.checkout where from_order = 7 for update;
             select from pcfarm.workstation where workstation_id = 1 for update",
        )
        .await
        .expect("locked");
    let server = queue.server().await;
    let mut batches = Vec::new();
    loop {
        let changed = clock::put_right(&*server, "checkouts", false).await.expect("put right");
        batches.push(changed);
        if changed < i64::from(PUT_RIGHT_AT_ONCE) {
            break;
        }
    }
    assert_eq!(batches, [1000, 1000, 499]);
    assert_eq!(clock::put_right(&*server, "workstations", false).await.expect("put right"), 2);
    other.batch_execute("rollback").await.expect("released");
    assert_eq!(put_right(&queue).await, 2);

    // A part that another server is at is left to that server.
    queue.run(&format!("update pcfarm.workstation set connected_at = {FAR}")).await;
    other.batch_execute("begin; select pcfarm.put_clock_right('workstations')").await.expect("put right");
    assert_eq!(clock::put_right(&*server, "workstations", false).await.expect("passed over"), 0);
    other.batch_execute("commit").await.expect("committed");
}

/// Failed problems of a job type with short delays, beside a job type with long ones.
#[tokio::test]
async fn a_thorough_repair_finds_waits_that_only_another_job_type_could_have() {
    let queue = queue().await;
    queue.run("update pcfarm.job_type set retry_delay = '1 second', retry_delay_limit = '1 minute'").await;
    queue.run("select pcfarm.create_job_type('slow', 'c', '{\"retry_delay\": \"1 day\", \"retry_delay_limit\": \"9 days\"}')").await;
    let job = queue.job(1, 1).await;
    queue
        .run(&format!(
            "insert into pcfarm.delayed (job_id, problem_id, due_at, home_lane, home_order, grouped, attempts, message)
             select p.job_id, p.problem_id, clock_timestamp() + interval '3 days', p.lane_id, p.batch_order, false, 1, 'failed'
             from pcfarm.problem p where p.job_id = {job}"
        ))
        .await;
    let server = queue.server().await;
    assert_eq!(clock::put_right(&*server, "delayed", false).await.expect("put right"), 0);
    assert_eq!(clock::put_right(&*server, "delayed", true).await.expect("put right"), 1);
    assert_eq!(
        queue
            .number("select count(*) from pcfarm.delayed where due_at > clock_timestamp() + interval '2 minutes'")
            .await,
        0
    );
}

/// A difference between clocks, stored times that cannot be, and a farm that was off do not keep hung checkouts alive. A step does.
#[tokio::test]
async fn time_limits_hold_unless_the_clock_has_stepped() {
    let queue = queue().await;
    let job = queue.job(1, 1).await;
    let lane = queue.number(&format!("select lane_id from pcfarm.lane where job_id = {job}")).await;
    queue
        .run(&format!(
            "insert into pcfarm.checkout (job_id, lane_id, from_order, to_order, job_type, problems, workstation_id, token,
                 checked_out_at, deadline)
             values ({job}, {lane}, 0, 1, 't', 1, 1, 7, clock_timestamp() - interval '3 hours', clock_timestamp() - interval '1 hour')"
        ))
        .await;
    let proven = "update pcfarm.clock set checked_at = clock_timestamp(), unproven_since = null, step_until = null,
        difference_until = null, stored_until = null, stepped_at = null, stepped_seconds = 0";
    let hour = "clock_timestamp() + interval '1 hour'";
    let stepped = |seconds: u32, ago: u32| {
        format!(
            "stored_until = {hour}, stepped_at = clock_timestamp() - interval '{ago} hours', stepped_seconds = {seconds}"
        )
    };
    let cases = [
        (format!("difference_until = {hour}"), 1),
        (format!("stored_until = {hour}"), 1),
        (format!("step_until = {hour}"), 0),
        // No server looks any more.
        (format!("stored_until = {hour}, checked_at = clock_timestamp() - interval '2 minutes'"), 0),
        // Handed out before the clock stepped ahead by two hours: an hour is left.
        (stepped(7200, 2), 0),
        // By half an hour: the time limit ended half an hour ago.
        (stepped(1800, 2), 1),
        // Handed out after the step.
        (stepped(7200, 4), 1),
    ];
    for (set, overdue) in cases {
        queue.run(proven).await;
        queue.run(&format!("update pcfarm.clock set unproven_since = clock_timestamp(), {set}")).await;
        let lost = upkeep::lost_checkouts(&*queue.server().await, CheckoutId(0), 20.0).await.expect("lost checkouts");
        assert!(lost.iter().all(|one| one.loss == Loss::Overdue));
        assert_eq!(lost.len(), overdue, "{set}");
    }
}

#[tokio::test]
async fn a_clock_that_no_server_looks_at_is_shown_as_unproven() {
    let queue = queue().await;
    let server = queue.server().await;
    for (checked, expected) in [("0", (true, true)), ("-2", (false, false)), ("2", (false, false))] {
        queue
            .run(&format!("update pcfarm.clock set checked_at = clock_timestamp() + {checked} * interval '1 minute'"))
            .await;
        let clock = clock::read(&*server).await.expect("read");
        assert_eq!((clock.proven, clock.watched), expected, "{checked}");
        assert_eq!(clock.time_limits_hold, clock.watched);
    }
}

/// A server that was killed has not said that it stopped.
#[tokio::test]
async fn a_look_tells_whether_the_server_that_differed_runs_and_what_is_newest() {
    let queue = queue().await;
    queue
        .run(
            "update pcfarm.server set heard_at = clock_timestamp();
             update pcfarm.clock set difference_server = 1;
             truncate pcfarm.event;
             insert into pcfarm.event (what, happened_at)
             values ('clock unproven', clock_timestamp() + interval '3 years'), ('x', clock_timestamp() - interval '9 days')",
        )
        .await;
    for (set, runs) in [
        ("heard_at = clock_timestamp()", true),
        ("heard_at = clock_timestamp() - interval '2 minutes'", false),
        ("heard_at = clock_timestamp(), stopped_at = clock_timestamp()", false),
    ] {
        queue.run(&format!("update pcfarm.server set {set}")).await;
        let looked = clock::look(&*queue.server().await, ServerId(1), true).await.expect("looked");
        assert_eq!(looked.difference_server_runs, runs, "{set}");
        let (newest, until_now) = (looked.newest.expect("newest"), looked.newest_until_now.expect("newest until now"));
        assert!(newest > looked.now && until_now < looked.now, "{newest:?} {until_now:?}");
    }
}

#[tokio::test]
async fn mail_is_not_given_up_by_a_clock_that_is_ahead() {
    let queue = queue().await;
    queue
        .run(
            "insert into pcfarm.alert (subscription_id, what, place, body, begun_at, next_attempt_at, message)
             select 1, 'workstation_without_work', 'email', '{}', now() - interval '2 days', now() - interval '2 minutes', m
             from unnest(array['', 'no relay']) m;
             update pcfarm.clock set checked_at = now(), unproven_since = now(), step_until = now() + interval '10 minutes'",
        )
        .await;
    let given_up = "select count(*) from pcfarm.alert where given_up_at is not null";
    alerts::explain_mail(&*queue.server().await, "no mail here").await.expect("explained");
    assert_eq!(queue.number(given_up).await, 0);
    assert_eq!(queue.number("select count(*) from pcfarm.alert where message = 'no mail here'").await, 1);
    queue.run("select pcfarm.accept_clock()").await;
    alerts::explain_mail(&*queue.server().await, "no mail here").await.expect("explained");
    assert_eq!(queue.number(given_up).await, 2);
}

#[tokio::test]
async fn collation_without_a_recorded_version_is_not_reported() {
    let queue = queue().await;
    let found = async || pcfarm_sql::clock::changed_collations(&*queue.server().await).await.expect("asked");
    queue
        .run(
            "create collation pcfarm.changed (provider = icu, locale = 'en');
             create table pcfarm.sorted (name text collate pcfarm.changed)",
        )
        .await;
    let record = async |version: &str| {
        queue.run(&format!("update pg_collation set collversion = {version} where collname = 'changed'")).await;
    };
    record("'0.1'").await;
    assert_eq!(found().await.len(), 1);
    queue.run(&found().await[0].refresh).await;
    assert_eq!(found().await.len(), 0);
    // As pg_upgrade leaves it: there is nothing to compare with, and nothing to refresh.
    record("null").await;
    assert_eq!(found().await.len(), 0);
}

#[tokio::test]
async fn zones_of_the_database_are_compared_without_case() {
    let queue = queue().await;
    queue.run(&format!("alter database {} set timezone = 'Asia/Kathmandu'", queue.database.name)).await;
    let server = queue.server().await;
    let zones = pcfarm_sql::clock::zones_in_use(&*server).await.expect("asked");
    assert!(zones.iter().any(|zone| zone == "Asia/Kathmandu") && zones.len() >= 2, "{zones:?}");
    let at = [("ASIA/kathmandu", 1_700_000_000), ("europe/vienna", 1_743_296_399), ("europe/vienna", 1_743_296_400)];
    let asked: Vec<(String, i64)> = at.iter().map(|(zone, at)| ((*zone).to_owned(), *at)).collect();
    let mut found = pcfarm_sql::clock::zone_offsets(&*server, &asked).await.expect("asked");
    found.sort_by_key(|offset| offset.at);
    let seconds: Vec<Option<i64>> = found.iter().map(|offset| offset.seconds).collect();
    assert_eq!(seconds, [Some(20_700), Some(3_600), Some(7_200)]);
}
