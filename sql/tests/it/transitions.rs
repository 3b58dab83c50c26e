//! A checkout's life under races: one of two hand-outs wins, a result counts once, and what was not finished comes back
//! at the right cost.

use crate::queue::{Held, Queue, Told, acceptance, at_last, backend, queue, take};
use pcfarm_proto::ids::{BatchOrder, CheckoutId, JobId, ServerId, WorkstationId};
use pcfarm_sql::checkout::{self, Closing, HandOut, VerdictKind};
use pcfarm_sql::json::RawJson;
use pcfarm_sql::lanes::{self, OpenLane};
use pcfarm_sql::pool::Lines;
use pcfarm_sql::submit::{Fresh, NewProblem, Small, Taker, Target, at_once};
use std::collections::BTreeMap;
use tokio_postgres::Client;

fn hand_out(lane: &OpenLane, from: i64, to: i64, problems: i32) -> HandOut {
    HandOut {
        job_id: lane.job_id,
        lane_id: lane.lane_id,
        job_type: lane.job_type.clone(),
        from: BatchOrder(from),
        to: BatchOrder(to),
        problems,
        weight: i64::from(problems),
        workstation_id: WorkstationId(1),
        token: 5,
        seconds: None,
    }
}

/// How many were made, of those that were wanted.
fn made(outcome: Result<Vec<Option<CheckoutId>>, tokio_postgres::Error>) -> (usize, usize) {
    let ids = outcome.expect("told");
    (ids.iter().flatten().count(), ids.len())
}

/// Runs one statement while another transaction stands at `begun`, and lets that one commit once the statement waits.
async fn against(queue: &Queue, begun: &str, statement: &str) -> Result<(), String> {
    let (first, second) = (queue.database.client().await, queue.database.client().await);
    first.batch_execute(&format!("begin; {begun}")).await.unwrap_or_else(|error| panic!("{begun}: {error:?}"));
    let waits = backend(&second).await;
    let (outcome, ()) = tokio::join!(second.batch_execute(statement), async {
        queue.until_blocked(waits).await;
        first.batch_execute("commit").await.expect("committed");
    });
    outcome.map_err(|error| error.as_db_error().map_or_else(|| error.to_string(), |said| said.message().to_owned()))
}

fn accept_sql(held: &Held, told: &str) -> String {
    let list =
        |of: &dyn Fn(&lanes::ComingProblem) -> String| held.problems.iter().map(of).collect::<Vec<_>>().join(",");
    let n = held.problems.len();
    format!(
        "select pcfarm.accept('{}', '{{{}}}', '{{{}}}', '{{t}}', array[{n}], array_fill(1, array[{n}]), '{{{}}}', '{{{}}}',
             array_fill('{told}'::text, array[{n}]), '{{{}}}', '{{{}}}', '{{{}}}',
             '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', false, null)",
        held.job_type,
        held.checkout_id,
        held.token,
        list(&|p| p.problem_id.to_string()),
        list(&|p| p.attempts.to_string()),
        list(&|p| p.key.to_string()),
        list(&|p| p.home_lane.to_string()),
        list(&|p| p.home_order.to_string()),
    )
}

fn new_job(options: &str) -> Target {
    Target::New { name: "n".into(), job_type: "t".into(), options: options.into() }
}

/// What has become of two problems of convoys of that size, which are submitted for a workstation that waits.
async fn submit_to_waiting(queue: &Queue, target: &Target, convoy: u32, job_type: &str) -> Option<Fresh> {
    let problem =
        |key: &str| NewProblem { key: key.into(), payload: RawJson("1".into()), group_key: None, details: None };
    let problems = ["one", "two"].map(problem);
    let taker = Some(Taker { workstation_id: WorkstationId(2), token: 77, job_type, seconds: Some(60.0) });
    let small = Small { by: &None, target, convoy: Some(convoy), open: true, problems: &problems, taker };
    let line = queue.server().await;
    let submitted = at_once(&line, ServerId(1), &small).await;
    submitted.expect("asked").expect("loaded").1
}

/// Handed out by the transaction that loads it.
#[tokio::test]
async fn what_is_submitted_for_a_workstation_that_waits_is_in_its_hands() {
    let queue = queue().await;
    let standing = queue.number(r#"select pcfarm.create_job('s', 't', '{"standing": true}')"#).await;
    queue.run(&format!("select pcfarm.open_job({standing})")).await;
    let keyed = r#"{"idempotency_key": "k"}"#;
    for target in [new_job("{}"), new_job(keyed), Target::Job(JobId(standing))] {
        let fresh = submit_to_waiting(&queue, &target, 2, "t").await.expect("open");
        let checkout_id = fresh.checkout.expect("handed out");
        let facts = format!(
            "select concat_ws(' ', c.job_type, c.owner = session_user, c.from_order, c.to_order, c.problems, c.workstation_id, c.token, \
                 c.deadline between now() and now() + interval '60s', c.xmin = l.xmin) \
             from pcfarm.checkout c join pcfarm.lane l using (job_id, lane_id) where c.checkout_id = {checkout_id}"
        );
        assert_eq!(queue.text(&facts).await, "t t 0 1 2 2 77 t t");
        let OpenLane { job_id, .. } = fresh.lane;
        let held = Held { checkout_id, token: 77, job_id, job_type: "t".into(), problems: fresh.problems };
        assert!(queue.take(job_id, false, 1).await.is_none(), "nothing is left of it");
        queue.check().await;
        let verdict = queue.finish(&held).await;
        assert_eq!((verdict.kind, verdict.accepted, verdict.closed), (VerdictKind::Accepted, 2, true));
    }
    let again = submit_to_waiting(&queue, &new_job(keyed), 2, "t").await;
    assert!(again.is_none(), "it was submitted before");
    assert_eq!(queue.number("select count(*) from pcfarm.checkout").await, 3);
    queue.check().await;
}

/// Then it is as any other: whoever hands it out looks first.
#[tokio::test]
async fn what_is_submitted_for_a_workstation_waits_for_a_look_where_anything_may_stand_against_it() {
    let queue = queue().await;
    let job = queue.job(1, 1).await;
    let after = format!("{{\"after\": [{job}]}}");
    let submissions = [
        ("{}", 1, "t"),
        // Another type than what the workstation was taken for.
        ("{}", 2, "u"),
        (r#"{"require": ["gpu"]}"#, 2, "t"),
        (&*after, 2, "t"),
        (r#"{"not_before": "2100-01-01T00:00:00Z"}"#, 2, "t"),
        (r#"{"info": {}}"#, 2, "t"),
    ];
    for (options, convoy, job_type) in submissions {
        let fresh = submit_to_waiting(&queue, &new_job(options), convoy, job_type).await;
        assert!(fresh.is_none_or(|fresh| fresh.checkout.is_none()), "{options}, {convoy} a convoy, {job_type}");
    }
    let held = queue.number(r#"select pcfarm.create_job('h', 't', '{"standing": true}')"#).await;
    queue.run(&format!("select pcfarm.open_job({held}); select pcfarm.hold_job({held})")).await;
    assert!(submit_to_waiting(&queue, &Target::Job(JobId(held)), 2, "t").await.is_none(), "its job is held");
    // What was there before it has to be told of.
    let own = queue.number(r#"select pcfarm.create_job('o', 't', '{"idempotency_key": "o"}')"#).await;
    queue
        .run(&format!("insert into pcfarm.problem (job_id, batch_order, key, payload) values ({own}, 0, 'own', '1')"))
        .await;
    let fresh = submit_to_waiting(&queue, &Target::Job(JobId(own)), 2, "t").await.expect("open");
    assert!(fresh.checkout.is_none());
    let me = "array[session_user]";
    let settings = [
        ("suspend_queue('x')", "resume_queue()"),
        ("suspend_job_type('t', 'x')", "resume_job_type('t')"),
        (r#"set_job_type('t', '{"labels": ["x"]}')"#, r#"set_job_type('t', '{"labels": null}')"#),
        (r#"set_farm('{"concurrency": 100}')"#, r#"set_farm('{"concurrency": null}')"#),
        (r#"set_farm('{"allocation": 0}')"#, r#"set_farm('{"allocation": 1}')"#),
        (r#"set_user($me, '{"concurrency": 100}')"#, r#"set_user($me, '{"concurrency": null}')"#),
        (r#"set_user($me, '{"allocation": 0}')"#, r#"set_user($me, '{"allocation": null}')"#),
        (r#"set_user($me, '{"prohibited": true}')"#, r#"set_user($me, '{"prohibited": false}')"#),
        (
            r#"set_user_job_type($me, 't', '{"allocation": 3}')"#,
            r#"set_user_job_type($me, 't', '{"allocation": null}')"#,
        ),
        (r#"set_job_type_resources('t', '{"disk": 1}')"#, "set_job_type_resources('t', '{}')"),
        ("set_profile('t', '{}')", "delete_profile(1)"),
    ];
    queue.run("select pcfarm.set_resource('disk', 9)").await;
    for (sets, resets) in settings {
        queue.run(&format!("select pcfarm.{}", sets.replace("$me", me))).await;
        let fresh = submit_to_waiting(&queue, &new_job("{}"), 2, "t").await;
        assert!(fresh.is_none_or(|fresh| fresh.checkout.is_none()), "{sets}");
        queue.run(&format!("select pcfarm.{}", resets.replace("$me", me))).await;
    }
    assert_eq!(queue.number("select count(*) from pcfarm.checkout").await, 0);
    let loaded = 2 + 2 * (submissions.len() + 2 + settings.len()) as i64;
    assert_eq!(queue.number("select count(*) from pcfarm.problem").await, loaded);
    let fresh = submit_to_waiting(&queue, &new_job("{}"), 2, "t").await.expect("open");
    assert!(fresh.checkout.is_some(), "nothing stands against it any more");
    queue.check().await;
}

/// Of what shares a connection hand-outs alone may be forgotten in a crash.
#[tokio::test]
async fn submissions_hand_outs_and_acceptances_share_a_connection_and_only_hand_outs_do_not_wait_for_the_disk() {
    let queue = queue().await;
    queue
        .run(
            "create table public.commits (what text, how text);
             create function public.note_commit() returns trigger language plpgsql as $$
             begin
                 insert into public.commits values (tg_table_name, current_setting('synchronous_commit'));
                 return null;
             end $$;
             create trigger note_commit after insert on pcfarm.job for each row execute function public.note_commit();
             create trigger note_commit after insert on pcfarm.checkout for each row execute function public.note_commit();
             create trigger note_commit after insert on pcfarm.result for each row execute function public.note_commit();",
        )
        .await;
    let lines = Lines::new(queue.pool.clone(), 2);
    let mut backends = Vec::new();
    for _ in 0..2 {
        let line = lines.take().await.expect("a line");
        backends.push(backend(&line).await);
        let target = Target::New { name: "n".into(), job_type: "t".into(), options: "{}".into() };
        let problem = NewProblem { key: "k".into(), payload: RawJson("1".into()), group_key: None, details: None };
        let small = Small { by: &None, target: &target, convoy: None, open: true, problems: &[problem], taker: None };
        let submitted = at_once(&line, ServerId(1), &small).await;
        let (submitted, fresh) = submitted.expect("asked").expect("loaded");
        lines.put(line);

        let line = lines.take().await.expect("a line");
        backends.push(backend(&line).await);
        let held = take(&line, &fresh.expect("open").lane, 1, WorkstationId(1)).await.expect("handed out");
        lines.put(line);

        let line = lines.take().await.expect("a line");
        backends.push(backend(&line).await);
        let verdicts = checkout::accept(&line, "t", &acceptance(&[(&held, &[(0, Ok("1"))], true)])).await;
        assert!(verdicts.expect("accepted")[0].closed);
        lines.put(line);
        assert_eq!(queue.end(submitted.job).await.as_deref(), Some("done"));
    }
    assert_eq!(backends, [backends[0]; 6]);
    let commits = queue
        .text("select string_agg(distinct what || ' ' || how, ', ' order by what || ' ' || how) from public.commits");
    assert_eq!(commits.await, "checkout off, job on, result on");

    // Under limits, of which none must be given out twice, they do wait.
    let job = queue.job(1, 1).await;
    let lane = queue.lane(job, false).await.expect("a lane");
    queue.run("truncate public.commits").await;
    let line = lines.take().await.expect("a line");
    assert_eq!(made(checkout::check_out_within_limits(&line, &[hand_out(&lane, 0, 1, 1)], true).await), (1, 1));
    lines.put(line);
    assert_eq!(queue.text("select string_agg(what || ' ' || how, ', ') from public.commits").await, "checkout on");

    // Of those that two have at a time both are kept, and the one used last is the next; one that is closed is nobody's.
    let (one, two) = (lines.take().await.expect("a line"), lines.take().await.expect("another"));
    let ids = (backend(&one).await, backend(&two).await);
    lines.put(one);
    lines.put(two);
    let next = lines.take().await.expect("a line");
    assert_eq!(backend(&next).await, ids.1);
    let ends = next.batch_execute("select pg_terminate_backend(pg_backend_pid())").await;
    ends.expect_err("it is gone");
    while !next.is_closed() {
        tokio::task::yield_now().await;
    }
    lines.put(next);
    let next = lines.take().await.expect("a line");
    assert_eq!(backend(&next).await, ids.0);
    // Back in the pool it is planned for as ever.
    drop(next);
    let back = queue.server().await;
    assert_eq!(backend(&back).await, ids.0);
    let mode = back.query_one("show plan_cache_mode", &[]).await.expect("asked");
    assert_eq!(mode.get::<_, &str>(0), "auto");
    queue.check().await;
}

#[tokio::test]
async fn of_two_hand_outs_at_one_place_one_wins() {
    let queue = queue().await;
    let job = queue.job(100, 1).await;
    let lane = queue.lane(job, false).await.expect("a lane");
    let (one, two) = (queue.server().await, queue.server().await);
    one.batch_execute("begin").await.expect("begun");
    assert_eq!(made(checkout::check_out(&one, &[hand_out(&lane, 0, 3, 3)]).await), (1, 1));
    let waits = backend(&two).await;
    let hand_outs = [hand_out(&lane, 0, 2, 2), hand_out(&lane, 2, 4, 2)];
    let (second, ()) = tokio::join!(checkout::check_out(&two, &hand_outs), async {
        queue.until_blocked(waits).await;
        one.batch_execute("commit").await.expect("committed");
    });
    assert_eq!(made(second), (0, 2), "all or none");
    // At the place that it was told of, whatever it looked at before; and not before or behind it.
    for (from, count) in [(0, 0), (2, 0), (4, 0), (3, 1)] {
        let outcome = checkout::check_out(&two, &[hand_out(&lane, from, from + 2, 2)]).await;
        assert_eq!(made(outcome).0, count, "from {from}");
    }
    // One that rolls back has moved nothing.
    one.batch_execute("begin").await.expect("begun");
    checkout::check_out(&one, &[hand_out(&lane, 5, 6, 1)]).await.expect("made");
    let hand_outs = [hand_out(&lane, 5, 9, 4)];
    let (second, ()) = tokio::join!(checkout::check_out(&two, &hand_outs), async {
        queue.until_blocked(waits).await;
        one.batch_execute("rollback").await.expect("rolled back");
    });
    assert_eq!(made(second), (1, 1));
    queue.check().await;
}

#[tokio::test]
async fn three_servers_hand_out_without_gap_or_overlap() {
    let queue = queue().await;
    let job = queue.job(1_200, 1).await;
    let work = async |seed: usize| {
        let client = queue.server().await;
        let mut made = 0;
        loop {
            let lanes = lanes::open_lanes(&client).await.expect("lanes");
            let Some(lane) = lanes.first() else { return made };
            made += usize::from(take(&client, lane, 1 + (made * 7 + seed) % 11, WorkstationId(1)).await.is_some());
        }
    };
    let (one, two, three) = tokio::join!(work(1), work(2), work(3));
    assert!(one + two + three >= 200, "{one} {two} {three}");
    let held = queue
        .number(&format!("select count(distinct h.problem_id) from pcfarm.held_problem h where job_id = {job}"))
        .await;
    assert_eq!(held, 1_200);
    queue.check().await;
}

#[tokio::test]
async fn nothing_is_handed_out_of_a_job_that_is_held_or_cancelled() {
    let queue = queue().await;
    for change in ["hold_job", "cancel_job"] {
        // The change comes first: the hand-out finds nothing, and does not wait, for other jobs are behind it.
        let job = queue.job(10, 1).await;
        let lane = queue.lane(job, false).await.expect("a lane");
        let (one, two) = (queue.database.client().await, queue.server().await);
        one.batch_execute(&format!("begin; select pcfarm.{change}({job})")).await.expect("changed");
        for end in ["", "commit"] {
            let outcome = checkout::check_out(&two, &[hand_out(&lane, 0, 1, 1)]).await;
            assert_eq!(made(outcome), (0, 1), "{change}");
            one.batch_execute(end).await.expect("ended");
        }
        let outcome = checkout::check_out(&two, &[hand_out(&lane, 0, 1, 1)]).await;
        assert_eq!(made(outcome), (0, 1), "{change}");

        // The hand-out comes first: the change waits for it, and cancel revokes it.
        let job = queue.job(10, 1).await;
        let lane = queue.lane(job, false).await.expect("a lane");
        let (one, two) = (queue.server().await, queue.database.client().await);
        one.batch_execute("begin").await.expect("begun");
        checkout::check_out(&one, &[hand_out(&lane, 0, 1, 1)]).await.expect("made");
        let waits = backend(&two).await;
        let text = format!("select pcfarm.{change}({job})");
        let (changed, ()) = tokio::join!(two.batch_execute(&text), async {
            queue.until_blocked(waits).await;
            one.batch_execute("commit").await.expect("committed");
        });
        changed.expect("changed");
        let live = format!("select count(*) from pcfarm.checkout where job_id = {job} and ended_at is null");
        assert_eq!(queue.number(&live).await, i64::from(change == "hold_job"), "{change}");
        queue.check().await;
    }
}

#[tokio::test]
async fn results_are_accepted_once_under_the_right_token() {
    let queue = queue().await;
    let job = queue.job(10, 10).await;
    let held = queue.take(job, false, 1).await.expect("held");
    let forged = Held { token: held.token ^ 1, ..held.clone() };
    assert_eq!(queue.finish(&forged).await.kind, VerdictKind::Unknown);
    let elsewhere = Held { checkout_id: CheckoutId(9_999), ..held.clone() };
    assert_eq!(queue.finish(&elsewhere).await.kind, VerdictKind::Unknown);
    assert_eq!(queue.number("select count(*) from pcfarm.result").await, 0);

    // In part, the same twice, and a problem twice in one delivery.
    let verdict = queue.deliver(&held, &[(0, Ok("1")), (1, Ok("1")), (0, Ok("2"))], false).await;
    assert_eq!((verdict.kind, verdict.accepted, verdict.refused, verdict.closed), (VerdictKind::Accepted, 2, 1, false));
    queue.check().await;
    let verdict = queue.deliver(&held, &[(1, Ok("3")), (2, Err("no")), (2, Err("no"))], false).await;
    assert_eq!((verdict.kind, verdict.refused), (VerdictKind::Accepted, 1));
    queue.check().await;
    // Told that this is all, but one problem has failed for now: it must come back.
    let rest: Vec<(usize, Told<'_>)> = (3..10).map(|n| (n, Ok("1"))).collect();
    let verdict = queue.deliver(&held, &rest, true).await;
    assert_eq!((verdict.accepted, verdict.closed), (7, false), "one has no result");
    let closed = queue.close(&held, Closing::Finished).await;
    assert_eq!((closed[0].requeued, closed[0].failed), (1, 0));
    assert!(queue.close(&held, Closing::Lost).await.is_empty(), "closed once");
    assert_eq!(queue.finish(&held).await.kind, VerdictKind::AlreadyAccepted);
    queue.check().await;

    for attempt in 1..=3 {
        let again = queue.take(job, true, 1).await.expect("back");
        assert_eq!((again.keys(), again.problems[0].attempts), (vec!["k3"], attempt));
        let verdict = queue.deliver(&again, &[(0, Err("still no"))], true).await;
        assert_eq!(verdict.closed, attempt == 2, "the last attempt ends it");
        queue.check().await;
        if attempt == 2 {
            break;
        }
        assert_eq!(queue.close(&again, Closing::Finished).await[0].requeued, 1);
    }
    let failed = queue.text("select message || attempts from pcfarm.result where failed").await;
    assert_eq!(failed, "still no3");
    assert_eq!(queue.text("select solution::text from pcfarm.result order by problem_id limit 1").await, "1");
    assert_eq!(queue.end(job).await.as_deref(), Some("failed"));
    queue.check().await;

    // Tried anew.
    assert_eq!(queue.number(&format!("select pcfarm.retry_job({job})")).await, 1);
    queue.check().await;
    let again = queue.take(job, true, 1).await.expect("back");
    assert_eq!(again.problems[0].attempts, 0);
    assert!(queue.finish(&again).await.closed);
    assert_eq!(queue.end(job).await.as_deref(), Some("done"));
    queue.check().await;
}

#[tokio::test]
async fn one_problem_in_two_checkouts_of_one_acceptance_counts_once() {
    let queue = queue().await;
    let job = queue.job(2, 2).await;
    let one = queue.take(job, false, 1).await.expect("held");
    // A second copy, as of a straggler: the same problem waits again.
    queue
        .run(&format!(
            "select pcfarm.lock_retry_lanes(array[({job}, 't', 0)::pcfarm.retry_lane]);
             insert into pcfarm.requeued (job_id, lane_id, batch_order, problem_id, home_lane, home_order, attempts, losses, alone, grouped)
             select h.job_id, l.lane_id, 0, h.problem_id, h.home_lane, h.home_order, 0, 0, false, false
             from pcfarm.held_problem h join pcfarm.lane l on l.job_id = h.job_id and l.kind = 'retry' where h.checkout_id = {}",
            one.checkout_id
        ))
        .await;
    let two = queue.take(job, true, 1).await.expect("held");
    let told: &[(usize, Told<'_>)] = &[(0, Ok("1")), (1, Ok("1"))];
    let both = acceptance(&[(&one, told, true), (&two, told, true)]);
    let verdicts = checkout::accept(&*queue.server().await, "t", &both).await.expect("accepted");
    assert_eq!((verdicts[0].accepted, verdicts[1].accepted, verdicts[1].refused), (2, 0, 2));
    assert_eq!(queue.number("select sum(done)::bigint from pcfarm.progress").await, 2);
    assert!(queue.close(&two, Closing::Finished).await[0].requeued == 0);
    assert_eq!(queue.end(job).await.as_deref(), Some("done"));
}

#[tokio::test]
async fn accepting_and_revoking_race_and_one_of_them_counts() {
    let queue = queue().await;
    let close = |held: &Held| format!("select pcfarm.close_checkouts('{{{}}}', 'lost', 'lost')", held.checkout_id);
    for (case, results) in
        [("accept first", 4), ("close first", 0), ("cancel first", 0), ("accept, then cancel", 4), ("accept twice", 4)]
    {
        let job = queue.job(4, 4).await;
        let held = queue.take(job, false, 1).await.expect("held");
        let accept = accept_sql(&held, "1");
        let cancel = format!("select pcfarm.cancel_job({job})");
        let (begun, statement) = match case {
            "accept first" => (accept, close(&held)),
            "close first" => (close(&held), accept),
            "cancel first" => (cancel, accept),
            "accept, then cancel" => (accept, cancel),
            _ => (accept_sql(&held, "2"), accept),
        };
        against(&queue, &begun, &statement).await.expect(case);
        let stored = queue.number(&format!("select count(*) from pcfarm.result where job_id = {job}")).await;
        assert_eq!(stored, results, "{case}");
        let back = queue.number(&format!("select count(*) from pcfarm.requeued where job_id = {job}")).await;
        assert_eq!(back, if case == "close first" { 4 } else { 0 }, "{case}");
        let late = queue.finish(&held).await.kind;
        let expected = if results == 0 { VerdictKind::Revoked } else { VerdictKind::AlreadyAccepted };
        assert_eq!(late, expected, "{case}");
        queue.check().await;
    }
}

#[tokio::test]
async fn what_comes_back_is_appended_one_close_after_the_other() {
    let queue = queue().await;
    let job = queue.job(8, 4).await;
    let one = queue.take(job, false, 1).await.expect("held");
    let two = queue.take(job, false, 1).await.expect("held");
    let close = |held: &Held| format!("select pcfarm.close_checkouts('{{{}}}', 'lost', 'x')", held.checkout_id);
    // The second waits: at the place that it had seen before, a pointer might have passed by.
    against(&queue, &close(&one), &close(&two)).await.expect("closed");
    let orders = queue.number("select count(distinct batch_order) from pcfarm.requeued").await;
    assert_eq!(orders, 8);
    queue.check().await;
}

#[tokio::test]
async fn a_poisonous_problem_is_soon_alone_and_the_innocent_never_fail() {
    let queue = queue().await;
    let job = queue.job(1_000, 1_000).await;
    let mut sizes = BTreeMap::<usize, usize>::new();
    let mut losses = 0;
    let mut came_back = false;
    loop {
        let lane = queue.lane(job, came_back).await;
        if lane.is_none() {
            if came_back {
                break;
            }
            came_back = true;
            continue;
        }
        let held = queue.take(job, came_back, usize::MAX).await.expect("held");
        *sizes.entry(held.problems.len()).or_default() += 1;
        if held.keys().contains(&"k777") {
            losses += 1;
            queue.close(&held, Closing::Lost).await;
        } else {
            queue.finish(&held).await;
        }
    }
    assert_eq!(queue.end(job).await.as_deref(), Some("failed"));
    let failed = queue.text("select string_agg(p.key || ' ' || r.attempts || ' ' || r.message, ',') from pcfarm.result r join pcfarm.problem p using (job_id, problem_id) where r.failed").await;
    assert_eq!(failed, "k777 3 because");
    assert_eq!(sizes.iter().next_back(), Some((&1_000, &1)));
    assert_eq!(sizes.get(&125), Some(&8), "{sizes:?}");
    assert!(losses <= 7, "{losses} losses: {sizes:?}");
    queue.check().await;
}

#[tokio::test]
async fn dependent_problems_stay_together_and_the_first_one_left_is_blamed() {
    let queue = queue().await;
    let job = JobId(
        queue
            .number(
                "select pcfarm.submit('j', 't', 'select ''k'' || g as key, to_jsonb(g) as payload, ''x'' as group_key from generate_series(1, 9) g', 3)",
            )
            .await,
    );
    let held = queue.take(job, false, 1).await.expect("held");
    assert_eq!(held.problems.len(), 9, "never split");
    // Two done, one failed, and then the workstation dies: the rest stays together, whoever paid for what.
    queue.deliver(&held, &[(0, Ok("1")), (1, Ok("1")), (2, Err("no"))], false).await;
    assert_eq!(queue.close(&held, Closing::Lost).await[0].requeued, 7);
    queue.check().await;
    for attempts in [0, 1] {
        // k3 used an attempt by failing; then it is the first one left, and to blame.
        let held = queue.take(job, true, usize::MAX).await.expect("held");
        assert_eq!(held.keys(), ["k3", "k4", "k5", "k6", "k7", "k8", "k9"]);
        assert!(held.problems.iter().all(|p| p.grouped) && held.problems.iter().any(|p| p.alone));
        let used: Vec<i32> = held.problems.iter().map(|p| p.attempts).collect();
        assert_eq!(used, [1 + attempts, 0, 0, 0, 0, 0, 0]);
        queue.close(&held, Closing::Lost).await;
        queue.check().await;
    }
    let failed = queue
        .text("select p.key from pcfarm.result r join pcfarm.problem p using (job_id, problem_id) where r.failed")
        .await;
    assert_eq!(failed, "k3");
    let held = queue.take(job, true, usize::MAX).await.expect("held");
    assert_eq!(held.keys(), ["k4", "k5", "k6", "k7", "k8", "k9"]);
    // The first is done, so the second was being run.
    queue.deliver(&held, &[(0, Ok("1"))], false).await;
    queue.close(&held, Closing::Lost).await;
    let held = queue.take(job, true, usize::MAX).await.expect("held");
    assert_eq!(held.problems.iter().map(|p| p.attempts).collect::<Vec<_>>(), [1, 0, 0, 0, 0]);
    queue.finish(&held).await;
    assert_eq!(queue.end(job).await.as_deref(), Some("failed"));
    queue.check().await;
}

#[tokio::test]
async fn handing_back_in_good_order_costs_nothing() {
    let queue = queue().await;
    let job = queue.job(12, 4).await;
    for how in [Closing::Finished, Closing::Unreceived, Closing::Finished, Closing::Unreceived] {
        let came_back = queue.lane(job, false).await.is_none();
        let held = queue.take(job, came_back, usize::MAX).await.expect("held");
        assert_eq!(held.problems.len(), 12);
        assert!(held.problems.iter().all(|p| p.attempts == 0 && !p.alone));
        let convoys: std::collections::BTreeSet<_> = held.problems.iter().map(|p| p.batch_order).collect();
        assert_eq!(convoys.len(), 3, "convoys stay what they were");
        assert_eq!(queue.close(&held, how).await[0].requeued, 12);
        queue.check().await;
    }
    // Cancelled: nothing comes back, whatever is closed later.
    let held = queue.take(job, true, 1).await.expect("held");
    queue.run(&format!("select pcfarm.cancel_job({job})")).await;
    assert!(queue.close(&held, Closing::Lost).await.is_empty());
    assert_eq!(queue.finish(&held).await.kind, VerdictKind::Revoked);
    assert_eq!(queue.number("select cancelled from pcfarm.job_progress").await, 12);
    queue.check().await;
}

#[tokio::test]
async fn a_failed_problem_in_live_hands_is_not_retried_twice() {
    let queue = queue().await;
    let job = queue.job(2, 2).await;
    let held = queue.take(job, false, 1).await.expect("held");
    let last = at_last(acceptance(&[(&held, &[(0, Err("no"))], false)]));
    checkout::accept(&*queue.server().await, "t", &last).await.expect("accepted");
    queue.check().await;
    assert_eq!(queue.number(&format!("select pcfarm.retry_job({job})")).await, 0, "it is in somebody's hands");
    queue.check().await;
    queue.close(&held, Closing::Finished).await;
    assert_eq!(queue.number(&format!("select pcfarm.retry_job({job})")).await, 1);
    queue.check().await;
}

#[tokio::test]
async fn a_job_ends_when_it_is_empty_and_never_before() {
    let queue = queue().await;
    let job = queue.job(4, 2).await;
    assert_eq!(queue.end(job).await, None, "waiting");
    let one = queue.take(job, false, 1).await.expect("held");
    let two = queue.take(job, false, 1).await.expect("held");
    assert_eq!(queue.end(job).await, None, "in hands");
    queue.finish(&one).await;
    assert_eq!(queue.end(job).await, None, "one is in hands");
    queue.close(&two, Closing::Finished).await;
    assert_eq!(queue.end(job).await, None, "come back");
    let two = queue.take(job, true, 1).await.expect("held");

    // Whoever has the job's row decides later: ending passes it over.
    let loader = queue.database.client().await;
    let load = format!("begin; select pcfarm.load({job}, 'select ''new'' as key, ''1''::jsonb as payload', 1)");
    loader.batch_execute(&load).await.expect("loaded");
    queue.finish(&two).await;
    assert_eq!(queue.end(job).await, None, "a load is under way");
    loader.batch_execute("commit").await.expect("committed");
    assert_eq!(queue.end(job).await, None, "it brought a problem");
    let three = queue.take(job, false, 1).await.expect("held");
    // A requeue under way: its checkout is live until it commits.
    loader
        .batch_execute(&format!("begin; select pcfarm.close_checkouts('{{{}}}', 'lost', 'x')", three.checkout_id))
        .await
        .expect("closed");
    assert_eq!(queue.end(job).await, None, "it is about to come back");
    loader.batch_execute("commit").await.expect("committed");
    assert_eq!(queue.end(job).await, None, "it came back");
    let three = queue.take(job, true, 1).await.expect("held");
    // An acceptance under way.
    loader.batch_execute(&format!("begin; {}", accept_sql(&three, "1"))).await.expect("accepted");
    assert_eq!(queue.end(job).await, None, "not committed");
    loader.batch_execute("commit").await.expect("committed");
    // Ending comes first: a load waits, and is refused.
    let load = format!("select pcfarm.load({job}, 'select ''late'' as key, ''1''::jsonb as payload', 1)");
    let refused = against(&queue, &format!("select pcfarm.end_job_if_empty({job})"), &load).await;
    assert!(refused.expect_err("refused").contains("has ended (done)"));
    assert_eq!(queue.state(job).await, "done");
    queue.check().await;

    let standing = JobId(queue.number("select pcfarm.submit('s', 't', 'select ''a'' as key, ''1''::jsonb as payload', 1, '{\"standing\": true}')").await);
    let held = queue.take(standing, false, 1).await.expect("held");
    queue.finish(&held).await;
    assert_eq!(queue.end(standing).await, None, "a standing job stays");
    let held = JobId(
        queue
            .number("select pcfarm.submit('h', 't', 'select ''a'' as key, ''1''::jsonb as payload where false', 1)")
            .await,
    );
    queue.run(&format!("select pcfarm.hold_job({held})")).await;
    assert_eq!(queue.end(held).await, None, "a held job stays");
    queue.run(&format!("select pcfarm.release_job({held})")).await;
    assert_eq!(queue.end(held).await.as_deref(), Some("done"));
    queue.check().await;
}

/// A job type whose solutions go to `public.answer`, with the rights of a role of its own.
async fn with_write_back(queue: &Queue, statement: &str, options: &str) -> String {
    let role = format!("{}_writer", queue.database.name);
    queue
        .run(&format!(
            "create role {role} nologin;
             create table public.answer (key text primary key, solution jsonb, writer text default current_user);
             grant insert, select, update on public.answer to {role};
             select pcfarm.create_job_type('w', 'c', '{{\"write_role\": \"{role}\", \"max_attempts\": 3{options}}}');
             select pcfarm.set_write_back('w', $text${statement}$text$)"
        ))
        .await;
    role
}

async fn drop_role(queue: &Queue, role: &str) {
    queue.run(&format!("drop owned by {role} cascade; drop role {role}")).await;
}

const INSERT: &str = "insert into public.answer (key, solution) select * from unnest($1, $2)";

#[tokio::test]
async fn write_back_shares_the_transaction_and_costs_only_the_failing_problem() {
    let queue = queue().await;
    let role = with_write_back(&queue, INSERT, ", \"keep_results\": false").await;
    queue.run("alter table public.answer add check (key <> 'k3')").await;
    let job = queue.job_of("w", 8, 8).await;
    let held = queue.take(job, false, 1).await.expect("held");
    let verdict = queue.finish(&held).await;
    assert!(!verdict.closed && verdict.accepted == 8, "{verdict:?}");
    assert_eq!(queue.number("select count(*) from public.answer").await, 7);
    assert_eq!(queue.text("select string_agg(distinct writer, ',') from public.answer").await, role);
    assert_eq!(
        queue.number("select count(*) from pcfarm.result where solution is null").await,
        7,
        "kept by its user alone"
    );
    queue.check().await;
    assert_eq!(queue.close(&held, Closing::Finished).await[0].requeued, 1);
    for attempts in [1, 2] {
        let held = queue.take(job, true, 1).await.expect("back");
        assert_eq!((held.keys(), held.problems[0].attempts), (vec!["k3"], attempts));
        let verdict = queue.finish(&held).await;
        assert_eq!(verdict.closed, attempts == 2);
        queue.close(&held, Closing::Finished).await;
        queue.check().await;
    }
    let message = queue.text("select message from pcfarm.result where failed").await;
    assert!(message.starts_with("write-back: ") && message.contains("check constraint"), "{message}");
    assert_eq!(queue.end(job).await.as_deref(), Some("failed"));

    // A result that is not stored is not written back; one whose transaction fails is not either.
    let job = queue.job_of("w", 1, 1).await;
    queue.run("truncate public.answer").await;
    let held = queue.take(job, false, 1).await.expect("held");
    let one = queue.database.client().await;
    one.batch_execute(&format!("begin; {}; rollback", accept_sql(&held, "1"))).await.expect("rolled back");
    assert_eq!(queue.number("select count(*) from public.answer").await, 0);
    queue.finish(&held).await;
    queue.finish(&held).await;
    assert_eq!(queue.number("select count(*) from public.answer").await, 1);
    queue.check().await;
    drop_role(&queue, &role).await;
}

#[tokio::test]
async fn write_back_has_its_roles_rights_and_leaves_no_setting() {
    let queue = queue().await;
    let role = with_write_back(&queue, "select 1", "").await;
    let job = queue.job_of("w", 40, 1).await;
    // With a message that it fails with, or none.
    for (statement, part) in [
        ("select count(*) from pcfarm.problem", "permission denied for schema pcfarm"),
        ("select count(*) from pcfarm.job_progress", "permission denied for schema pcfarm"),
        ("select pcfarm.cancel_job(1)", "permission denied for schema pcfarm"),
        ("set role postgres", "cannot set parameter \"role\""),
        ("select set_config('role', 'none', false)", "cannot set parameter \"role\""),
        ("do $$ begin assert false, 'asserted'; end $$", "asserted"),
        ("do $$ begin commit; end $$", "invalid transaction termination"),
        ("set synchronous_commit = off", ""),
        (
            "select set_config('synchronous_commit', 'off', false), set_config('search_path', 'public', false), set_config('statement_timeout', '1ms', false)",
            "",
        ),
        ("set session characteristics as transaction isolation level serializable", ""),
        ("create temporary table job (state text)", ""),
    ] {
        queue.run("delete from pcfarm.result where failed").await;
        queue.run(&format!("select pcfarm.set_write_back('w', $text${statement}$text$)")).await;
        let held = queue.take(job, false, 1).await.expect("held");
        let client = queue.server().await;
        client.batch_execute("begin").await.expect("begun");
        let told: &[(usize, Told<'_>)] = &[(0, Ok("1"))];
        let delivery = at_last(acceptance(&[(&held, told, true)]));
        let outcome = checkout::accept(&client, "w", &delivery).await.expect(statement);
        let shown = client.query_one(
            "select current_setting('synchronous_commit'), current_setting('search_path'), current_setting('statement_timeout'), current_user = session_user",
            &[],
        );
        let row = shown.await.expect("settings");
        let settings: (&str, &str, &str, bool) = (row.get(0), row.get(1), row.get(2), row.get(3));
        assert_eq!(settings, ("on", "pg_catalog,pg_temp", "30s", true), "{statement}");
        client.batch_execute("commit").await.expect("committed");
        let message = queue
            .text(&format!("select message from pcfarm.result where job_id = {job} order by problem_id desc limit 1"))
            .await;
        assert!(message.contains(part) && message.is_empty() == part.is_empty(), "{statement}: {message} {outcome:?}");
    }
    // A statement that leaves its brackets.
    for text in ["select 1 /*", "select 1; $$", "select"] {
        let call = format!("select pcfarm.set_write_back('w', $text${text}$text$)");
        assert!(queue.client.batch_execute(&call).await.is_err() || text == "select", "{text}");
    }
    queue.run("select pcfarm.set_write_back('w', 'select 1; -- the end')").await;
    let held = queue.take(job, false, 1).await.expect("held");
    assert!(queue.finish(&held).await.closed);
    drop_role(&queue, &role).await;
}

#[tokio::test]
async fn deferred_triggers_of_the_users_tables_fire_with_their_roles_rights() {
    let queue = queue().await;
    let role = with_write_back(&queue, INSERT, "").await;
    queue
        .run(
            "create table public.seen (fired_as text);
             grant insert on public.seen to public;
             create function public.note() returns trigger language plpgsql as $$
             begin
                 insert into public.seen values (current_user);
                 if new.key = 'k2' then raise 'deferred refusal'; end if;
                 return null;
             end $$;
             create constraint trigger note after insert on public.answer deferrable initially deferred
                 for each row execute function public.note()",
        )
        .await;
    let job = queue.job_of("w", 3, 3).await;
    let held = queue.take(job, false, 1).await.expect("held");
    let verdict = queue.finish(&held).await;
    assert_eq!(verdict.kind, VerdictKind::Accepted);
    assert_eq!(queue.text("select string_agg(distinct fired_as, ',') from public.seen").await, role);
    // And what it refuses is one problem's failure, not the transaction's.
    assert_eq!(queue.text("select string_agg(key, ' ' order by key) from public.answer").await, "k1 k3");
    assert_eq!(queue.close(&held, Closing::Finished).await[0].requeued, 1);
    queue.check().await;
    drop_role(&queue, &role).await;
}

async fn code_of(client: &Client, text: &str) -> String {
    let error = client.batch_execute(text).await.expect_err(text);
    error.as_db_error().expect("an answer").code().code().to_owned()
}

#[tokio::test]
async fn a_deadlock_or_a_lock_is_not_the_problems_fault() {
    let queue = queue().await;
    let role = with_write_back(&queue, INSERT, "").await;
    let job = queue.job_of("w", 2, 2).await;
    let held = queue.take(job, false, 1).await.expect("held");
    let other = queue.database.client().await;
    other.batch_execute("begin; insert into public.answer values ('k2')").await.expect("inserted");
    let ours = queue.database.client().await;
    let accept = accept_sql(&held, "1");
    ours.batch_execute("set lock_timeout = '50ms'").await.expect("set");
    assert_eq!(code_of(&ours, &accept).await, "55P03");
    // The other one wants what the acceptance has locked: it does not matter who of them is told.
    ours.batch_execute("set lock_timeout = '20s'; set deadlock_timeout = '1s'").await.expect("set");
    other.batch_execute("set deadlock_timeout = '10s'").await.expect("set");
    let waits = backend(&ours).await;
    let close = format!("select pcfarm.close_checkouts('{{{}}}', 'lost', 'x')", held.checkout_id);
    let (accepted, closed) = tokio::join!(ours.batch_execute(&accept), async {
        queue.until_blocked(waits).await;
        other.batch_execute(&close).await
    });
    let codes: Vec<String> = [accepted, closed]
        .into_iter()
        .filter_map(|outcome| Some(outcome.err()?.as_db_error()?.code().code().to_owned()))
        .collect();
    assert_eq!(codes, ["40P01"]);
    drop(other.batch_execute("rollback").await);
    for text in ["raise sqlstate '40001'", "raise sqlstate '53100'", "raise sqlstate '57P01'"] {
        queue
            .run(&format!("select pcfarm.set_write_back('w', 'do $$ begin {} ; end $$')", text.replace('\'', "''")))
            .await;
        code_of(&ours, &accept).await;
    }
    assert_eq!(queue.number("select count(*) from pcfarm.failed_attempt").await, 0);
    assert_eq!(queue.number("select count(*) from pcfarm.result").await, 0);
    queue.run(&format!("select pcfarm.set_write_back('w', $text${INSERT}$text$)")).await;
    assert!(queue.finish(&held).await.closed);
    queue.check().await;
    drop_role(&queue, &role).await;
}

#[tokio::test]
async fn a_lone_problem_is_not_blamed_until_it_was_run_alone() {
    let queue = queue().await;
    let job = queue.job(1, 1).await;
    let mut came_back = false;
    // What else those hands held is not known the first time; and good order neither blames nor forgets.
    for (how, alone, attempts, losses) in [
        (Closing::Lost, false, 0, 0),
        (Closing::Unreceived, true, 0, 1),
        (Closing::Lost, true, 0, 1),
        (Closing::Finished, true, 1, 1),
        (Closing::Lost, true, 1, 1),
    ] {
        let held = queue.take(job, came_back, 1).await.expect("held");
        let problem = &held.problems[0];
        assert_eq!((problem.alone, problem.attempts), (alone, attempts), "{how:?}");
        if came_back {
            let newest = "select losses::bigint from pcfarm.requeued order by batch_order desc limit 1";
            assert_eq!(queue.number(newest).await, losses);
        }
        assert_eq!(queue.close(&held, how).await[0].requeued, 1);
        queue.check().await;
        came_back = true;
    }
    let held = queue.take(job, true, 1).await.expect("held");
    assert_eq!(queue.close(&held, Closing::Lost).await[0].failed, 1);
    assert_eq!(queue.text("select attempts || message from pcfarm.result").await, "3because");
    queue.check().await;
}

#[tokio::test]
async fn what_is_tried_anew_keeps_its_dependent_problems_together() {
    let queue = queue().await;
    let job = JobId(queue.number("select pcfarm.create_job('j', 't')").await);
    for group in [", (g % 2)::text as group_key", ""] {
        queue
            .run(&format!(
                "select pcfarm.load({job}, 'select ''k'' || g as key, to_jsonb(g) as payload{group} from generate_series(1, 6) g', 3)"
            ))
            .await;
    }
    queue.run(&format!("select pcfarm.open_job({job})")).await;
    while let Some(held) = queue.take(job, false, 1).await {
        let told: Vec<(usize, Told<'_>)> = (0..3).map(|n| (n, Err("no"))).collect();
        let last = at_last(acceptance(&[(&held, &told, true)]));
        checkout::accept(&*queue.server().await, "t", &last).await.expect("accepted");
    }
    assert_eq!(queue.end(job).await.as_deref(), Some("failed"));
    assert_eq!(queue.number(&format!("select pcfarm.retry_job({job})")).await, 12);
    queue.check().await;
    let mut again = Vec::new();
    while let Some(held) = queue.take(job, true, 1).await {
        assert!(held.problems.iter().all(|p| p.attempts == 0 && !p.alone));
        assert!(held.problems.iter().all(|p| p.grouped == (held.problems.len() == 3)));
        again.push(held.keys().join(" "));
        queue.finish(&held).await;
    }
    assert_eq!(again, ["k1 k3 k5", "k2 k4 k6", "k1", "k2", "k3", "k4", "k5", "k6"]);
    assert_eq!(queue.end(job).await.as_deref(), Some("done"));
    queue.check().await;
}

#[tokio::test]
async fn a_problem_that_failed_and_is_solved_after_all_keeps_no_failed_attempt() {
    let queue = queue().await;
    let job = queue.job(4, 2).await;
    // In several deliveries, and with nothing but the failure in the first.
    for first in [vec![(0, Err("no"))], vec![(0, Err("no")), (1, Ok("1"))]] {
        let held = queue.take(job, false, 1).await.expect("held");
        queue.deliver(&held, &first, false).await;
        assert_eq!(queue.number("select count(*) from pcfarm.failed_attempt").await, 1);
        let rest: Vec<_> =
            (0..2).filter(|n| first.iter().all(|f| f.0 != *n || f.1.is_err())).map(|n| (n, Ok("1"))).collect();
        assert!(queue.deliver(&held, &rest, true).await.closed);
        queue.check().await;
    }
}

#[tokio::test]
async fn a_cancelled_job_keeps_no_failed_attempts() {
    let queue = queue().await;
    let (job, other) = (queue.job(2, 2).await, queue.job(2, 2).await);
    for job in [job, other] {
        let held = queue.take(job, false, 1).await.expect("held");
        queue.deliver(&held, &[(0, Err("no"))], false).await;
    }
    queue.run(&format!("select pcfarm.cancel_job({job})")).await;
    assert_eq!(queue.number("select job_id from pcfarm.failed_attempt").await, other.0);
    queue.check().await;
}

#[tokio::test]
async fn a_job_type_defined_anew_keeps_its_roles_while_they_are_needed() {
    let queue = queue().await;
    let role = with_write_back(&queue, INSERT, "").await;
    let other = format!("{}_other", queue.database.name);
    queue.run(&format!("create role {other} nologin; grant insert on public.answer to {other}")).await;
    let (code, message) = queue.refused("select pcfarm.create_job_type('w', 'c')").await;
    assert!(code == "22023" && message.contains("write-back, but no write_role"), "{code} {message}");

    // Another role: the statement has its rights from now on.
    let owner = "select proowner::regrole::text from pg_proc where pronamespace = 'pcfarm_write_back'::regnamespace";
    assert_eq!(queue.text(owner).await, role);
    for named in [&role, &other, &other] {
        queue.run(&format!("select pcfarm.create_job_type('w', 'c', '{{\"write_role\": \"{named}\"}}')")).await;
        assert_eq!(queue.text(owner).await, *named);
    }
    let job = queue.job_of("w", 1, 1).await;
    let held = queue.take(job, false, 1).await.expect("held");
    assert!(queue.finish(&held).await.closed);
    assert_eq!(queue.text("select writer from public.answer").await, other);
    queue.run("select pcfarm.set_write_back('w', null); select pcfarm.create_job_type('w', 'c')").await;

    let with_reads = format!("select pcfarm.create_job_type('w', 'c', '{{\"read_role\": \"{role}\"}}')");
    queue.run(&format!("{with_reads}; select pcfarm.set_related_read('w', 'r', 'select 1')")).await;
    let (code, message) = queue.refused("select pcfarm.create_job_type('w', 'd')").await;
    assert!(code == "22023" && message.contains("related reads, but no read_role"), "{code} {message}");
    assert_eq!(queue.text("select controller from pcfarm.job_type where name = 'w'").await, "c");
    queue.run(&with_reads).await;
    queue.run("select pcfarm.set_related_read('w', 'r', null); select pcfarm.create_job_type('w', 'd')").await;
    queue.check().await;
    drop_role(&queue, &role).await;
    drop_role(&queue, &other).await;
}
