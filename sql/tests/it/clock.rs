//! While the clock is unproven nothing is removed for its age; times of a clock that was ahead are computed again.

use crate::queue::{Queue, queue};
use pcfarm_proto::ids::{CheckoutId, ServerId};
use pcfarm_sql::alerts;
use pcfarm_sql::clock::{self, PARTS, PUT_RIGHT_AT_ONCE};
use pcfarm_sql::profiles;
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

/// Right times seem to lie in the future while the clock is behind: each part, hand-outs and offline workstations stay as they are.
#[tokio::test]
async fn a_clock_that_is_behind_changes_no_row() {
    let queue = queue().await;
    let job = queue.job(2, 1).await;
    queue
        .run(&format!(
            "update pcfarm.workstation set state = 'offline', drain = true, since = {FAR}, connected_at = {FAR}, trusted_since = {FAR},
                 drained_since = {FAR}, drain_deadline = {FAR} + interval '1 hour';
             insert into pcfarm.workstation_record (workstation_id, worked_at, looked_at, idle_days) values (1, {FAR}, {FAR}, 1);
             insert into pcfarm.signal (name, value, said_at) values ('load', 1, {FAR});
             insert into pcfarm.file (sha256, bytes, touched_at) values (sha256('1'), 1, {FAR});
             insert into pcfarm.join_token (hash, created_at, expires_at, uses_left) values (sha256('3'), {FAR}, {FAR} + interval '1 day', 1);
             insert into pcfarm.delayed (job_id, problem_id, due_at, home_lane, home_order, grouped, attempts, message)
             select p.job_id, p.problem_id, {FAR}, p.lane_id, p.batch_order, false, 1, 'failed' from pcfarm.problem p where p.job_id = {job};
             insert into pcfarm.alert (subscription_id, what, place, body, next_attempt_at)
             values (1, 'workstation_without_work', 'email', '{{}}', {FAR});
             insert into pcfarm.checkout (job_id, lane_id, from_order, to_order, job_type, problems, workstation_id, token,
                 checked_out_at, deadline)
             select l.job_id, l.lane_id, 0, 1, 't', 1, 1, 7, {FAR}, {FAR} from pcfarm.lane l where l.job_id = {job};
             insert into pcfarm.profile (job_type, weekdays, starts, ends, time_zone, covers, conditions_count, covered_seconds)
             values ('t', '{{1}}', '0:00', '1:00', 'UTC', '{{}}', 0, 0);
             insert into pcfarm.handed_out (profile_id, at, weight, total) select p.profile_id, {FAR}, 7, 7 from pcfarm.profile p"
        ))
        .await;
    let rows = [
        "workstation",
        "workstation_record",
        "signal",
        "file",
        "join_token",
        "delayed",
        "alert",
        "checkout",
        "handed_out",
        "event",
    ]
    .map(|table| format!("(select jsonb_agg(t order by t::text) from pcfarm.{table} t)"));
    let rows = format!("select concat_ws(' ', {})", rows.join(", "));
    let all_right = async || {
        profiles::put_hand_outs_right(&*queue.server().await).await.expect("put right");
        clock::put_leases_right(&*queue.server().await).await.expect("put right");
        put_right(&queue).await
    };
    let before = queue.text(&rows).await;
    for behind in [
        "moved_seconds = -10800, checked_at = clock_timestamp()",
        // No server has found out yet.
        "moved_seconds = 0, checked_at = clock_timestamp() + interval '1 hour'",
    ] {
        queue.run(&format!("update pcfarm.clock set {behind}")).await;
        assert_eq!(all_right().await, 0, "{behind}");
        assert_eq!(queue.text(&rows).await, before, "{behind}");
    }
    queue.run("update pcfarm.clock set checked_at = clock_timestamp()").await;
    assert_eq!(all_right().await, 3 + 1 + 1 + 1 + 1 + 2 + 1 + 1);
    assert_eq!(queue.number("select count(*) from pcfarm.handed_out where at > clock_timestamp()").await, 0);
    assert_eq!(queue.number("select count(*) from pcfarm.workstation where since > clock_timestamp()").await, 0);
}

/// An hour ahead is within the longest delay of many waits, but not within the delay of these.
#[tokio::test]
async fn waits_are_bounded_by_the_attempts_that_were_made() {
    let queue = queue().await;
    queue.run("update pcfarm.job_type set retry_delay = '5 seconds', retry_delay_limit = '1 hour'").await;
    let job = queue.job(9, 3).await;
    // Two convoys whose problems depend on each other, and single ones. In a convoy, one problem has not failed itself.
    let delayed = |order: i64, place: i64, due: &str, grouped: bool, attempts: i64, message: &str| {
        format!(
            "insert into pcfarm.delayed (job_id, problem_id, due_at, home_lane, home_order, grouped, attempts, message)
             select p.job_id, p.problem_id, now() + interval '{due}', p.lane_id, p.batch_order, {grouped},
                 {attempts}, {message}
             from pcfarm.problem p where p.job_id = {job} and p.batch_order = {order} order by p.problem_id offset {place} limit 1;"
        )
    };
    queue
        .run(&format!(
            "begin; {}{}{}{}{}{}{} commit",
            delayed(0, 0, "1 hour 5 seconds", true, 1, "'failed'"),
            delayed(0, 1, "1 hour 5 seconds", true, 0, "null"),
            delayed(0, 2, "1 hour 5 seconds", true, 4, "'failed'"),
            // Each is right: the convoy waits for the longest delay.
            delayed(1, 0, "9 minutes", true, 1, "'failed'"),
            delayed(1, 1, "9 minutes", true, 8, "'failed'"),
            delayed(2, 0, "1 hour 5 seconds", false, 1, "'failed'"),
            delayed(2, 1, "9 minutes", false, 8, "'failed'"),
        ))
        .await;
    let server = queue.server().await;
    assert_eq!(clock::put_right(&*server, "delayed", false).await.expect("put right"), 0);
    assert_eq!(clock::put_right(&*server, "delayed", true).await.expect("put right"), 3 + 1);
    let waits = "select string_agg(w, ', ' order by w) from (
        select format('%s: %s', d.home_order, d.due_at > clock_timestamp() + case d.home_order when 0 then interval '30 seconds'
            else interval '1 second' end and d.due_at < clock_timestamp() + case d.home_order when 0 then interval '51 seconds'
            else interval '7 seconds' end) as w from pcfarm.delayed d) w";
    assert_eq!(queue.text(waits).await, "0: t, 0: t, 0: t, 1: f, 1: f, 2: f, 2: t");
    // Together, so that the convoy comes back whole.
    assert_eq!(queue.number("select count(distinct due_at) from pcfarm.delayed where home_order = 0").await, 1);
    assert_eq!(clock::put_right(&*server, "delayed", true).await.expect("put right"), 0);
}

#[tokio::test]
async fn what_was_never_tried_waits_for_no_time() {
    let queue = queue().await;
    queue
        .run(
            "insert into pcfarm.alert (subscription_id, what, place, body, attempts, next_attempt_at)
             select 1, 'workstation_without_work', 'email', '{}', a, clock_timestamp() + w
             from (values (0, interval '1 hour'), (0, '3 seconds'), (1, '1 hour'), (1, '2 minutes'), (9, '1 hour')) v(a, w);
             insert into pcfarm.submission (asked, content_type, kept_in, state, bytes, sha256, stored_at, attempts, next_attempt_at)
             select '{}', 'x', 'database', 'stored', 1, sha256('1'), clock_timestamp(), a, clock_timestamp() + w
             from (values (0, interval '9 minutes'), (1, '9 minutes'), (1, '50 seconds')) v(a, w);
             insert into pcfarm.submission (asked, content_type, kept_in, touched_at)
             values ('{}', 'x', 'database', clock_timestamp() + interval '9 minutes');
             insert into pcfarm.schedule_load (job_id, number, schedule_id, due_at, query, convoy, time_limit, attempts, next_attempt_at)
             select 1, a + 10 * row_number() over (), 1, clock_timestamp(), '', 1, '1 minute', a, clock_timestamp() + w
             from (values (0, interval '9 minutes'), (1, '9 minutes'), (1, '110 seconds'), (9, '8 minutes'), (9, '9 minutes')) v(a, w)",
        )
        .await;
    let server = queue.server().await;
    for (part, expected) in [("alerts", 3), ("submissions", 3), ("loads", 3)] {
        assert_eq!(clock::put_right(&*server, part, false).await.expect(part), expected, "{part}");
        assert_eq!(clock::put_right(&*server, part, false).await.expect(part), 0, "{part}");
    }
    for late in [
        "select count(*) from pcfarm.alert where attempts = 0 and next_attempt_at > clock_timestamp()",
        "select count(*) from pcfarm.submission where attempts = 0 and greatest(next_attempt_at, touched_at) > clock_timestamp()",
        "select count(*) from pcfarm.schedule_load where attempts = 0 and next_attempt_at > clock_timestamp()",
    ] {
        assert_eq!(queue.number(late).await, 0, "{late}");
    }
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
