//! Limits of users and resources hold whoever hands out; what is suspended or parked waits.

use crate::queue::{Queue, backend, queue};
use pcfarm_proto::ids::{BatchOrder, CheckoutId, JobId, WorkstationId};
use pcfarm_sql::checkout::{self, HandOut};
use pcfarm_sql::lanes::OpenLane;
use pcfarm_sql::sharing;
use tokio_postgres::error::SqlState;

/// So many convoys of a problem each, from the start of a lane.
fn hand_outs(lane: &OpenLane, sizes: &[i64]) -> Vec<HandOut> {
    let mut next = lane.next_extraction.0;
    sizes
        .iter()
        .map(|size| {
            let from = next;
            next += size;
            HandOut {
                job_id: lane.job_id,
                lane_id: lane.lane_id,
                job_type: lane.job_type.clone(),
                from: BatchOrder(from),
                to: BatchOrder(next),
                problems: i32::try_from(*size).expect("small"),
                weight: *size,
                workstation_id: WorkstationId(1),
                token: 5,
                seconds: None,
            }
        })
        .collect()
}

async fn made(queue: &Queue, hand_outs: &[HandOut]) -> Vec<Option<CheckoutId>> {
    checkout::check_out_within_limits(&*queue.server().await, hand_outs, true).await.expect("told")
}

fn counts(made: &[Option<CheckoutId>]) -> Vec<bool> {
    made.iter().map(Option::is_some).collect()
}

async fn of_user(queue: &Queue, user: &str, problems: i64) -> (JobId, OpenLane) {
    let job = queue.job(problems, 1).await;
    queue
        .run(&format!(
            "update pcfarm.job set owner = '{user}' where job_id = {job}; select pcfarm.set_user('{{{user}}}', '{{}}')"
        ))
        .await;
    (job, queue.lane(job, false).await.expect("a lane"))
}

/// As `owner/type: room`.
async fn rooms(queue: &Queue) -> Vec<String> {
    let shares = sharing::shares(&*queue.server().await).await.expect("shares");
    let mut rooms: Vec<String> = shares
        .into_iter()
        .filter_map(|share| {
            let room = share.room?;
            Some(format!(
                "{}/{}: {room}",
                share.owner.as_deref().unwrap_or("*"),
                share.job_type.as_deref().unwrap_or("*")
            ))
        })
        .collect();
    rooms.sort();
    rooms
}

#[tokio::test]
async fn a_users_concurrency_holds_over_all_of_its_jobs() {
    let queue = queue().await;
    queue.run("select pcfarm.set_user('{ann}', '{\"concurrency\": 5}')").await;
    let (_, one) = of_user(&queue, "ann", 20).await;
    let (_, two) = of_user(&queue, "ann", 20).await;
    let (_, other) = of_user(&queue, "ben", 20).await;
    let wanted = [hand_outs(&one, &[3, 1, 3]), hand_outs(&two, &[1]), hand_outs(&other, &[9])].concat();
    let ids = made(&queue, &wanted).await;
    assert_eq!(counts(&ids), [true, true, false, false, true], "3 and 1 of 5, then none after one that does not fit");
    assert_eq!(rooms(&queue).await, ["ann/*: 1"]);
    assert_eq!(counts(&made(&queue, &hand_outs(&two, &[2])).await), [false]);
    assert_eq!(counts(&made(&queue, &hand_outs(&two, &[1])).await), [true]);
    assert_eq!(rooms(&queue).await, ["ann/*: 0"]);
    queue.run(&format!("select pcfarm.close_checkouts(array[{}], 'finished', 'done')", ids[0].expect("made"))).await;
    assert_eq!(rooms(&queue).await, ["ann/*: 3"]);
    queue.run("select pcfarm.set_user('{ann}', '{\"concurrency\": 0}')").await;
    let next = queue.lane(two.job_id, false).await.expect("a lane");
    assert_eq!(counts(&made(&queue, &hand_outs(&next, &[1])).await), [false], "0 stops a user");
    queue.run("select pcfarm.set_user('{ann}', '{\"concurrency\": null}'); select pcfarm.set_farm('{\"concurrency\": 11}')").await;
    assert_eq!(rooms(&queue).await, ["ann/*: 9", "ben/*: 2"], "the farm's, for those who have none of their own");
    queue.check().await;
}

#[tokio::test]
async fn limits_of_a_job_type_hold_beside_the_users() {
    let queue = queue().await;
    queue.run("select pcfarm.create_job_type('u', 'c')").await;
    queue.run("select pcfarm.set_user_job_type('{ann, ben}', 't', '{\"concurrency\": 2}'); select pcfarm.set_user('{ann}', '{\"concurrency\": 3}')").await;
    let (_, lane) = of_user(&queue, "ann", 20).await;
    let other = queue.job_of("u", 20, 1).await;
    queue.run(&format!("update pcfarm.job set owner = 'ann' where job_id = {other}")).await;
    let of_other = queue.lane(other, false).await.expect("a lane");
    let wanted = [hand_outs(&lane, &[1, 1, 1]), hand_outs(&of_other, &[1])].concat();
    assert_eq!(counts(&made(&queue, &wanted).await), [true, true, false, false], "both count what was asked for");
    assert_eq!(counts(&made(&queue, &hand_outs(&of_other, &[1, 1])).await), [true, false]);
    assert_eq!(rooms(&queue).await, ["ann/*: 0", "ann/t: 0"]);
    queue.check().await;
}

#[tokio::test]
async fn tokens_of_a_resource_are_never_more_than_there_are() {
    let queue = queue().await;
    queue
        .run(
            "select pcfarm.set_resource('licence', 7, 'of the solver'); select pcfarm.set_resource('slot', 4);
             select pcfarm.create_job_type('t', 'c', '{\"resources\": {\"licence\": 2}}');
             select pcfarm.create_job_type('u', 'c', '{\"resources\": {\"licence\": 1, \"slot\": 2}}')",
        )
        .await;
    let (_, lane) = of_user(&queue, "ann", 20).await;
    assert_eq!(rooms(&queue).await, ["*/t: 3", "*/u: 2"]);
    assert_eq!(counts(&made(&queue, &hand_outs(&lane, &[2, 2])).await), [true, false], "4 of 7, then 8");
    assert_eq!(rooms(&queue).await, ["*/t: 1", "*/u: 2"]);
    let other = queue.job_of("u", 20, 1).await;
    let of_other = queue.lane(other, false).await.expect("a lane");
    assert_eq!(counts(&made(&queue, &hand_outs(&of_other, &[1, 1, 1])).await), [true, true, false], "2 slots each");
    assert_eq!(rooms(&queue).await, ["*/t: 0", "*/u: 0"]);
    let (code, message) =
        queue.refused("select pcfarm.create_job_type('v', 'c', '{\"resources\": {\"license\": 1}}')").await;
    assert_eq!((code.as_str(), message.as_str()), ("42704", "job type v: there is no resource 'license'"));
    let (code, message) = queue.refused("select pcfarm.set_resource('licence', null)").await;
    assert_eq!((code.as_str(), message.as_str()), ("55000", "resource licence is needed by job types: t, u"));
    assert_eq!(queue.refused("select pcfarm.set_resource('license', null)").await.0, "P0002");
}

/// A job of type u whose problems are of type t.
#[tokio::test]
async fn limits_of_the_problems_type_and_of_its_jobs_both_hold() {
    let queue = queue().await;
    queue
        .run(
            "select pcfarm.set_resource('licence', 9); select pcfarm.set_resource('slot', 4);
             select pcfarm.create_job_type('t', 'c', '{\"resources\": {\"licence\": 2}}');
             select pcfarm.create_job_type('u', 'c', '{\"resources\": {\"licence\": 3, \"slot\": 1}}')",
        )
        .await;
    let mixed = async |problems: i64| {
        let job = queue.number("select pcfarm.create_job('mixed', 'u')").await;
        queue
            .run(&format!(
                "select pcfarm.load({job}, $$select i::text as key, '1'::jsonb as payload, 't' as job_type
                     from generate_series(1, {problems}) i$$, 1); select pcfarm.open_job({job})"
            ))
            .await;
        queue.lane(JobId(job), false).await.expect("a lane")
    };
    let lane = mixed(20).await;
    assert_eq!((&*lane.job_type, lane.of_type.as_deref()), ("t", Some("u")));
    assert_eq!(counts(&made(&queue, &hand_outs(&lane, &[1, 1, 2])).await), [true, true, false], "3 of 9 licences each");
    assert_eq!(queue.number("select pcfarm.tokens_in_use('licence')").await, 6, "the more of the two, not both");
    assert_eq!(queue.number("select pcfarm.tokens_in_use('slot')").await, 2);
    assert_eq!(rooms(&queue).await, ["*/t: 1", "*/u: 1"]);
    queue
        .run(
            "select pcfarm.create_job_type('t', 'c', '{\"resources\": {}}'); select pcfarm.create_job_type('u', 'c', '{\"resources\": {}}');
             select pcfarm.set_profile('u', '{\"problems_per_hour\": 3, \"problems_per_checkout\": 2}');
             select pcfarm.set_profile('t', '{\"problems_per_hour\": 5}')",
        )
        .await;
    let lane = queue.lane(lane.job_id, false).await.expect("a lane");
    assert_eq!(counts(&made(&queue, &hand_outs(&lane, &[3])).await), [false], "two a checkout");
    assert_eq!(
        counts(&made(&queue, &hand_outs(&lane, &[2, 2])).await),
        [true, false],
        "three an hour of the job's type"
    );
    let plain = queue.job(20, 1).await;
    let plain = queue.lane(plain, false).await.expect("a lane");
    assert_eq!(
        counts(&made(&queue, &hand_outs(&plain, &[3, 1])).await),
        [true, false],
        "five an hour of the problem's"
    );
    let owner = queue.text("select owner::text from pcfarm.job limit 1").await;
    queue
        .run(&format!(
            "select pcfarm.delete_profile(profile_id) from pcfarm.profile;
             select pcfarm.set_user_job_type('{{{owner}}}', 'u', '{{\"concurrency\": 5, \"queue_limit\": 30}}')"
        ))
        .await;
    assert_eq!(queue.number(&format!("select pcfarm.in_progress_of('{owner}', 'u')")).await, 4);
    assert_eq!(queue.number(&format!("select pcfarm.waiting_of('{owner}', 'u')")).await, 16);
    let lane = queue.lane(lane.job_id, false).await.expect("a lane");
    assert_eq!(counts(&made(&queue, &hand_outs(&lane, &[1, 1])).await), [true, false]);
    let (code, message) = queue
        .refused(
            "select pcfarm.load(pcfarm.create_job('more', 'u'), $$select i::text as key, '1'::jsonb as payload, 't' as job_type
                 from generate_series(1, 16) i$$, 1)",
        )
        .await;
    assert_eq!(code, "53400", "{message}");
    let lane_is_seen = async || queue.lane(lane.job_id, false).await.is_some();
    queue.run(&format!("select pcfarm.set_user_job_type('{{{owner}}}', 'u', '{{\"concurrency\": null}}')")).await;
    let one = hand_outs(&lane, &[1]);
    queue.run("select pcfarm.suspend_job_type('u')").await;
    assert!(!lane_is_seen().await);
    assert_eq!(counts(&made(&queue, &one).await), [false]);
    let why = queue.text(&format!("select string_agg(o, '; ') from pcfarm.job_obstacles({}) o", lane.job_id)).await;
    assert!(why.contains("job type u is suspended"), "{why}");
    queue.check().await;
}

#[tokio::test]
async fn of_two_servers_the_second_sees_what_the_first_has_handed_out() {
    let queue = queue().await;
    queue.run("select pcfarm.set_user('{ann}', '{\"concurrency\": 5}')").await;
    let (_, one) = of_user(&queue, "ann", 20).await;
    let (_, two) = of_user(&queue, "ann", 20).await;
    let (first, second) = (queue.server().await, queue.server().await);
    first.batch_execute("begin").await.expect("begun");
    let ids = checkout::check_out_within_limits(&first, &hand_outs(&one, &[3]), true).await.expect("told");
    assert_eq!(counts(&ids), [true]);
    let waits = backend(&second).await;
    let wanted = hand_outs(&two, &[1, 2]);
    let (ids, ()) = tokio::join!(checkout::check_out_within_limits(&second, &wanted, true), async {
        queue.until_blocked(waits).await;
        first.batch_execute("commit").await.expect("committed");
    });
    assert_eq!(counts(&ids.expect("told")), [true, false], "3 and 1 of 5, and 2 more do not fit");
    queue.check().await;
}

#[tokio::test]
async fn a_limit_that_somebody_has_locked_keeps_its_own_and_nobody_else_from_being_handed_out() {
    let queue = queue().await;
    queue
        .run(
            "select pcfarm.set_user('{ann,ben}', '{\"concurrency\": 9}'); select pcfarm.set_resource('licence', 9);
             select pcfarm.create_job_type(name, 'echo') from unnest('{bound,timed}'::text[]) name;
             select pcfarm.set_job_type_resources('bound', '{\"licence\": 1}');
             select pcfarm.set_profile('timed', '{\"problems_per_hour\": 9}')",
        )
        .await;
    let (_, ann) = of_user(&queue, "ann", 9).await;
    let (_, ben) = of_user(&queue, "ben", 9).await;
    let mut lanes = vec![ann, ben];
    for job_type in ["bound", "timed"] {
        let job = queue.job_of(job_type, 9, 1).await;
        queue.run(&format!("update pcfarm.job set owner = 'ben' where job_id = {job}")).await;
        lanes.push(queue.lane(job, false).await.expect("a lane"));
    }
    let (somebody, server) = (queue.database.client().await, queue.server().await);
    for (what, expected) in [
        ("from pcfarm.farm_user where name = 'ann'", [false, true, true, true]),
        ("from pcfarm.resource where name = 'licence'", [true, true, false, true]),
        ("from pcfarm.job_type where name = 'timed'", [true, true, true, false]),
        ("from pcfarm.farm_user where name = 'ben'", [true, false, false, false]),
    ] {
        let wanted: Vec<HandOut> = lanes.iter().flat_map(|lane| hand_outs(lane, &[1])).collect();
        somebody.batch_execute(&format!("begin; select {what} for update")).await.expect("locked");
        let told = checkout::check_out_within_limits(&server, &wanted, true).await.expect_err("locked");
        assert_eq!(told.code(), Some(&SqlState::LOCK_NOT_AVAILABLE), "{what}");
        let ids = checkout::check_out_within_limits(&server, &wanted, false).await.expect("told");
        assert_eq!(counts(&ids), expected, "{what}");
        somebody.batch_execute("rollback").await.expect("let go");
        for lane in &mut lanes {
            *lane = queue.lane(lane.job_id, false).await.expect("a lane");
        }
    }
    let live = "select count(*) from pcfarm.checkout where ended_at is null and owner = 'ben'";
    assert_eq!(queue.number(live).await, 7);
    let wanted = hand_outs(&lanes[1], &[1, 1, 1]);
    let ids = checkout::check_out_within_limits(&server, &wanted, false).await.expect("told");
    assert_eq!(counts(&ids), [true, true, false], "limits hold as ever");
}

#[tokio::test]
async fn a_load_over_the_queue_limit_is_refused_whole() {
    let queue = queue().await;
    queue.run("select pcfarm.set_user(array[session_user], '{\"queue_limit\": 10}')").await;
    let job = queue.job(6, 2).await;
    let load = |n: i64| {
        format!(
            "select pcfarm.load({job}, 'select g::text as key, to_jsonb(g) as payload from generate_series(1, {n}) g', 2)"
        )
    };
    let (code, message) = queue.refused(&load(5)).await;
    assert_eq!(code, "53400");
    assert!(
        message.contains("5 problems more would be more than user") && message.contains("6 are, and the limit is 10"),
        "{message}"
    );
    queue.run(&load(4)).await;
    let held = queue.take(job, false, 2).await.expect("work");
    assert_eq!(held.problems.len(), 4);
    queue.run(&load(4)).await;
    queue.deliver(&held, &[(0, Ok("1")), (1, Ok("1"))], false).await;
    queue.refused(&load(1)).await;
    queue.finish(&held).await;
    queue.refused(&load(1)).await;
    queue.run("select pcfarm.set_user(array[session_user], '{\"queue_limit\": null}')").await;
    queue.run(&load(100)).await;
    queue.run("select pcfarm.set_user_job_type(array[session_user], 't', '{\"queue_limit\": 111}')").await;
    let (_, message) = queue.refused(&load(2)).await;
    assert!(message.contains("of job type t: 110 are, and the limit is 111"), "{message}");
    queue.run(&load(1)).await;
    queue.check().await;
}

#[tokio::test]
async fn what_is_suspended_or_parked_is_not_handed_out_and_loads_go_on() {
    let queue = queue().await;
    let job = queue.job(6, 1).await;
    let lane = queue.lane(job, false).await.expect("a lane");
    queue.run("select pcfarm.suspend_queue('the database is moved')").await;
    assert!(queue.lane(job, false).await.is_none());
    let one = hand_outs(&lane, &[1]);
    let server = queue.server().await;
    assert_eq!(counts(&checkout::check_out(&server, &one).await.expect("told")), [false]);
    assert_eq!(counts(&made(&queue, &one).await), [false]);
    let other = queue.job(3, 1).await;
    queue.run("select pcfarm.resume_queue(); select pcfarm.suspend_job_type('t', 'a bug')").await;
    assert!(queue.lane(other, false).await.is_none());
    queue.run("select pcfarm.resume_job_type('t')").await;
    assert!(queue.lane(other, false).await.is_some());

    assert_eq!(queue.number(&format!("select pcfarm.park(job => {job})")).await, 6);
    assert!(queue.lane(job, false).await.is_none() && queue.lane(other, false).await.is_some());
    assert_eq!(queue.end(job).await, None, "it waits");
    assert_eq!(queue.number(&format!("select pcfarm.park(job => {job}, parked => false)")).await, 6);
    let between = "loaded_from => now() - interval '1 h', loaded_before => now()";
    assert_eq!(queue.number(&format!("select pcfarm.park(owner => session_user, {between})")).await, 9);
    queue.run(&format!("select pcfarm.load({job}, 'select ''late'' as key, ''{{}}''::jsonb as payload')")).await;
    let held = queue.take(job, false, 1).await.expect("what came later");
    assert_eq!(held.keys(), ["late"]);
    assert_eq!(queue.refused("select pcfarm.park()").await.0, "22023");
    queue.check().await;
}

/// Lanes of batch orders of one's own have the same number in every job.
#[tokio::test]
async fn jobs_with_orders_of_their_own_are_not_mixed_up() {
    let queue = queue().await;
    let mut lanes = Vec::new();
    for key in ["a", "b", "c"] {
        let job = queue.number(&format!("select pcfarm.create_job('{key}', 't')")).await;
        queue
            .run(&format!(
                "insert into pcfarm.problem (job_id, key, payload, batch_order)
                 select {job}, '{key}' || g, '1', g from generate_series(0, 9) g; select pcfarm.open_job({job})"
            ))
            .await;
        lanes.push(queue.lane(JobId(job), false).await.expect("a lane"));
    }
    // The second is not where it was.
    made(&queue, &hand_outs(&lanes[1], &[1])).await;
    for within_limits in [false, true] {
        let wanted: Vec<HandOut> = lanes.iter().flat_map(|lane| hand_outs(lane, &[1, 2])).collect();
        let server = queue.server().await;
        let ids = match within_limits {
            false => checkout::check_out(&server, &wanted).await,
            true => checkout::check_out_within_limits(&server, &wanted, true).await,
        };
        let ids = ids.expect("told");
        assert_eq!(counts(&ids), [true, true, false, false, true, true]);
        for (hand_out, id) in wanted.iter().zip(&ids) {
            let Some(id) = id else { continue };
            let job = queue.number(&format!("select job_id from pcfarm.checkout where checkout_id = {id}")).await;
            assert_eq!(job, hand_out.job_id.0);
        }
        queue.check().await;
        for lane in &mut lanes {
            let next = queue.lane(lane.job_id, false).await.expect("a lane").next_extraction;
            lane.next_extraction = if lane.job_id.0 == 2 { BatchOrder(0) } else { next };
        }
    }
}

/// What a server has in sight may be a second old: the statement that looks at no limits hands out nothing that is under one.
#[tokio::test]
async fn a_limit_that_a_server_has_not_seen_yet_holds() {
    let queue = queue().await;
    let (job, lane) = of_user(&queue, "ann", 20).await;
    let one = hand_outs(&lane, &[1]);
    let refused = async || {
        let server = queue.server().await;
        counts(&checkout::check_out(&server, &one).await.expect("told")) == [false]
    };
    for (limit, lifted) in [
        (
            "select pcfarm.set_user('{ann}', '{\"concurrency\": 5}')",
            "select pcfarm.set_user('{ann}', '{\"concurrency\": null}')",
        ),
        (
            "select pcfarm.set_user_job_type('{ann}', 't', '{\"concurrency\": 5}')",
            "select pcfarm.set_user_job_type('{ann}', 't', '{\"concurrency\": null}')",
        ),
        (
            "select pcfarm.set_profile('t', '{\"problems_per_hour\": 5}')",
            "select pcfarm.delete_profile(max(profile_id)) from pcfarm.profile",
        ),
        ("select pcfarm.suspend_job_type('t')", "select pcfarm.resume_job_type('t')"),
        ("select pcfarm.park(owner => 'ann')", "select pcfarm.park(owner => 'ann', parked => false)"),
        (
            "select pcfarm.run_after(1, pcfarm.create_job('first', 't'))",
            "select pcfarm.cancel_job(2); delete from pcfarm.job_after",
        ),
    ] {
        queue.run(limit).await;
        assert!(refused().await, "{limit}");
        queue.run(lifted).await;
    }
    // One that sets no limit is none.
    queue.run("select pcfarm.set_profile('t', '{\"priority\": 5}')").await;
    assert!(!refused().await);
    assert_eq!(job, JobId(1));
    queue.check().await;
}

#[tokio::test]
async fn what_comes_back_to_a_parked_job_is_parked_and_what_never_fits_is_explained() {
    let queue = queue().await;
    let job = queue.job(2, 2).await;
    let held = queue.take(job, false, 1).await.expect("work");
    queue.run(&format!("select pcfarm.park(job => {job})")).await;
    queue.close(&held, pcfarm_sql::checkout::Closing::Finished).await;
    assert!(queue.lane(job, true).await.is_none());
    queue.run(&format!("select pcfarm.park(job => {job}, parked => false)")).await;
    assert!(queue.lane(job, true).await.is_some());

    queue.run("select pcfarm.set_profile('t', '{\"problems_per_hour\": 40}')").await;
    let heavy = queue.number("select pcfarm.create_job('heavy', 't')").await;
    queue
        .run(&format!(
            "select pcfarm.load({heavy}, 'select ''k'' as key, ''1''::jsonb as payload, 50 as weight'); select pcfarm.open_job({heavy})"
        ))
        .await;
    let why = queue.text(&format!("select string_agg(o, '; ') from pcfarm.job_obstacles({heavy}) o")).await;
    assert!(why.contains("its next convoy of job type t weighs 50, and profile entry"), "{why}");
    for (options, said) in
        [("{\"largest_problem\": \"1000\"}", "a number of bytes"), ("{\"required\": \"ann\"}", "a list of names")]
    {
        let (_, message) = queue.refused(&format!("select pcfarm.set_selection('{{pc1}}', '{options}')")).await;
        assert!(message.contains(said), "{message}");
    }
    assert_eq!(queue.refused("select pcfarm.set_signal('x', 1, '300000 years')").await.0, "23514");
    queue.check().await;
}
