//! Problems that bring more than their solution: problems that they enqueue and patches of their job's info, stored with it
//! or not at all.

use crate::queue::{self, Held, Queue, Told, acceptance_with_homes, queue};
use pcfarm_proto::ids::JobId;
use pcfarm_sql::checkout::{self, Acceptance, Closing, Verdict, VerdictKind};
use pcfarm_sql::json::RawJson;

/// Solutions of a checkout's problems, each with what it brings: members of a JSON object, or nothing.
fn bringing(held: &Held, brought: &[(usize, &str)], closing: bool) -> Acceptance {
    let told: Vec<(usize, Told<'_>)> = brought.iter().map(|(n, _)| (*n, Ok("1"))).collect();
    let mut acceptance = acceptance_with_homes(&[(held, &told, closing)]);
    for (solved, (_, members)) in acceptance.solved.iter_mut().zip(brought).filter(|(_, (_, text))| !text.is_empty()) {
        let (checkout, problem) = (held.checkout_id, solved.problem_id);
        let text = format!("{{\"checkout_id\": {checkout}, \"problem_id\": {problem}, {members}}}");
        solved.more = Some(Box::new(RawJson(text.into())));
    }
    acceptance
}

async fn bring(queue: &Queue, held: &Held, brought: &[(usize, &str)], closing: bool) -> Verdict {
    let acceptance = bringing(held, brought, closing);
    checkout::accept(&*queue.server().await, &held.job_type, &acceptance).await.expect("accepted").remove(0)
}

/// Keys of what waits, of one job type, in the order in which it is handed out.
async fn waiting(queue: &Queue, job_type: &str) -> String {
    let text =
        "select string_agg(key, ' ' order by job_position, priority desc, lane_rank, lane_id, batch_order, problem_id)
        from pcfarm.problems_ordered where job_type = ";
    queue.text(&format!("{text} '{job_type}'")).await
}

/// What failed, by key.
async fn messages(queue: &Queue, job: JobId) -> Vec<String> {
    let text = "select key || ': ' || message from pcfarm.job_problems where job_id = $1 and attempts > 0 and state <> 'done' order by key";
    queue.client.query(text, &[&job]).await.expect("asked").iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn what_is_enqueued_stands_in_its_order() {
    let queue = queue().await;
    queue.run("select pcfarm.create_job_type('u', 'c')").await;
    let job = queue.job(1, 1).await;
    let held = queue.take(job, false, 1).await.expect("some");
    let enqueue = r#""enqueue": [
        {"key": "a", "payload": {"n": 1}}, {"key": "b", "payload": null, "priority": 5},
        {"key": "c", "payload": 1, "priority": 5, "deadline": 2000000001}, {"key": "e", "payload": 1, "job_type": "u"},
        {"key": "d", "payload": 1, "priority": 5, "deadline": 2000000000}, {"key": "f", "payload": 1, "group": "g"},
        {"key": "h", "payload": 1}, {"key": "i", "payload": 1, "group": "g"}, {"key": "j", "payload": 1, "weight": 7},
        {"key": "w", "payload": 1, "not_before": 4000000000}, {"key": "p", "payload": 1, "not_before": 1}]"#;
    assert!(bring(&queue, &held, &[(0, enqueue)], true).await.closed);
    assert_eq!(waiting(&queue, "t").await, "d c b a h j p f i");
    assert_eq!(waiting(&queue, "u").await, "e");
    assert_eq!(queue.number("select weight::bigint from pcfarm.problem where key = 'j'").await, 7);
    assert_eq!(queue.text("select payload::text from pcfarm.problem where key = 'b'").await, "null");
    assert_eq!(queue.number("select count(*) from pcfarm.delayed").await, 1);
    let convoy = "select count(distinct batch_order) from pcfarm.problem where key in ('f', 'i')";
    assert_eq!(queue.number(convoy).await, 1, "a group is one convoy");
    queue.check().await;
}

#[tokio::test]
async fn a_job_ends_when_what_was_enqueued_is_done_and_held_it_waits() {
    let queue = queue().await;
    let job = queue.job(1, 1).await;
    let held = queue.take(job, false, 1).await.expect("some");
    queue.run(&format!("select pcfarm.hold_job({job})")).await;
    bring(&queue, &held, &[(0, r#""enqueue": [{"key": "a", "payload": 1}]"#)], true).await;
    assert!(queue.lane(job, false).await.is_none(), "it is held");
    queue.run(&format!("select pcfarm.release_job({job})")).await;
    assert_eq!(queue.end(job).await, None);
    let next = queue.take(job, false, 1).await.expect("what was enqueued");
    assert_eq!((next.keys(), queue.end(job).await), (vec!["a"], None));
    queue.finish(&next).await;
    assert_eq!(queue.end(job).await.as_deref(), Some("done"));
    queue.check().await;
}

#[tokio::test]
async fn a_repeated_delivery_enqueues_once() {
    let queue = queue().await;
    let job = queue.job(3, 3).await;
    let held = queue.take(job, false, 1).await.expect("some");
    let of = |key: &str| format!(r#""enqueue": [{{"key": "{key}", "payload": 1}}], "info": {{"{key}": 1}}"#);
    let (first, second) = (of("a"), of("b"));
    bring(&queue, &held, &[(0, &first)], false).await;
    bring(&queue, &held, &[(0, &first)], false).await;
    assert_eq!(waiting(&queue, "t").await, "a");
    // With something new, and something that brings nothing.
    let verdict = bring(&queue, &held, &[(0, &first), (1, &second), (2, "")], true).await;
    assert_eq!((verdict.accepted, verdict.refused, verdict.closed), (2, 1, true));
    let verdict = bring(&queue, &held, &[(0, &first), (1, &second), (2, "")], true).await;
    assert_eq!(verdict.kind, VerdictKind::AlreadyAccepted);
    assert_eq!(waiting(&queue, "t").await, "a b");
    assert_eq!(queue.text("select info::text from pcfarm.job_info").await, r#"{"a": 1, "b": 1}"#);
    queue.check().await;
}

#[tokio::test]
async fn what_cannot_be_enqueued_fails_its_problem_alone() {
    let queue = queue().await;
    let job = queue.job(6, 6).await;
    let held = queue.take(job, false, 1).await.expect("some");
    queue.run("select pcfarm.set_user(array[session_user::name], '{\"queue_limit\": 20}')").await;
    let many: Vec<String> = (0..30).map(|n| format!(r#"{{"key": "m{n}", "payload": 1}}"#)).collect();
    let long = "x".repeat(1025);
    let brought = [
        r#""enqueue": [{"key": "a", "payload": 1}, {"key": "b", "payload": 1, "job_type": "x"}]"#,
        &format!(r#""enqueue": [{{"key": "{long}", "payload": 1}}], "info": {{"gone": 1}}"#),
        r#""enqueue": [{"key": "good", "payload": 1}], "info": {"kept": 1}"#,
        &format!(r#""enqueue": [{}]"#, many.join(",")),
        r#""enqueue": [{"key": "light", "payload": 1, "weight": -1}]"#,
        "",
    ];
    let brought: Vec<(usize, &str)> = brought.into_iter().enumerate().collect();
    let verdict = bring(&queue, &held, &brought, true).await;
    assert_eq!((verdict.accepted, verdict.closed), (6, false));
    queue.close(&held, Closing::Finished).await;
    let messages = messages(&queue, job).await;
    let expected = [
        "k1: what it brings cannot be stored: there is no job type 'x'",
        "k2: what it brings cannot be stored: new row for relation \"problem\" violates check constraint",
        "k4: what it brings cannot be stored: 30 problems more would be more than user",
        "k5: what it brings cannot be stored: new row for relation \"problem\" violates check constraint \"positive_weight\"",
    ];
    assert_eq!(messages.len(), expected.len(), "{messages:?}");
    for (message, expected) in messages.iter().zip(expected) {
        assert!(message.starts_with(expected), "{message}");
    }
    assert_eq!(waiting(&queue, "t").await, "good k1 k2 k4 k5");
    assert_eq!(queue.text("select info::text from pcfarm.job_info").await, r#"{"kept": 1}"#);
    assert_eq!(queue.number("select max(attempts)::bigint from pcfarm.requeued").await, 1);
    queue.check().await;
}

#[tokio::test]
async fn after_the_last_attempt_the_problem_has_failed() {
    let queue = queue().await;
    let job = queue.job(1, 1).await;
    let held = queue.take(job, false, 1).await.expect("some");
    let last =
        queue::at_last(bringing(&held, &[(0, r#""enqueue": [{"key": "a", "payload": 1, "job_type": "x"}]"#)], true));
    let verdict = checkout::accept(&*queue.server().await, "t", &last).await.expect("accepted").remove(0);
    assert!(verdict.closed);
    assert_eq!(queue.end(job).await.as_deref(), Some("failed"));
    assert!(messages(&queue, job).await[0].contains("there is no job type 'x'"));
    queue.check().await;
}

#[tokio::test]
async fn a_write_back_that_fails_takes_back_what_was_enqueued() {
    let queue = queue().await;
    let role = format!("{}_writer", queue.database.name);
    queue
        .run(&format!(
            "create role {role} nologin;
             create table public.answer (key text primary key);
             insert into public.answer values ('k2');
             grant insert on public.answer to {role};
             select pcfarm.create_job_type('w', 'c', '{{\"write_role\": \"{role}\"}}');
             select pcfarm.set_write_back('w', 'insert into public.answer select * from unnest($1)')"
        ))
        .await;
    let job = queue.job_of("w", 4, 4).await;
    let held = queue.take(job, false, 1).await.expect("some");
    let of = |key: &str| format!(r#""enqueue": [{{"key": "{key}", "payload": 1}}], "info": {{"{key}": 1}}"#);
    let (good, bad) = (of("a"), of("b"));
    bring(&queue, &held, &[(0, &good), (1, &bad), (2, ""), (3, "")], true).await;
    queue.close(&held, Closing::Finished).await;
    assert_eq!(queue.text("select string_agg(key, ' ' order by key) from public.answer").await, "k1 k2 k3 k4");
    assert_eq!(waiting(&queue, "w").await, "a k2");
    assert_eq!(queue.text("select info::text from pcfarm.job_info").await, r#"{"a": 1}"#);
    let messages = messages(&queue, job).await;
    assert!(messages.len() == 1 && messages[0].starts_with("k2: write-back: duplicate key"), "{messages:?}");
    queue.check().await;
    queue.run(&format!("drop owned by {role} cascade; drop role {role}")).await;
}

#[tokio::test]
async fn patches_of_the_info_merge_in_order_and_are_bounded() {
    let queue = queue().await;
    let job = queue.job(4, 4).await;
    queue.run(&format!("select pcfarm.set_info({job}, '{{\"a\": {{\"x\": 1, \"y\": 2}}, \"b\": [1, 2]}}')")).await;
    queue
        .run(
            "create table public.written (info jsonb);
             create function public.note_written() returns trigger language plpgsql as $$
                 begin insert into public.written values (new.info); return null; end $$;
             create trigger note_written after insert or update on pcfarm.job_info
                 for each row execute function public.note_written()",
        )
        .await;
    let held = queue.take(job, false, 1).await.expect("some");
    let large = format!(r#""info": {{"c": "{}"}}"#, "x".repeat(70_000));
    let brought = [
        (0, r#""info": {"a": {"x": null, "z": {"deep": null, "n": 1}}, "b": null}"#),
        (1, large.as_str()),
        (2, r#""info": {"a": {"y": [3]}, "d": "last"}"#),
        (3, r#""info": 7"#),
    ];
    bring(&queue, &held, &brought, true).await;
    let info = r#"{"a": {"y": [3], "z": {"n": 1}}, "d": "last"}"#;
    assert_eq!(queue.text("select info::text from pcfarm.job_info").await, info);
    assert_eq!(queue.text("select string_agg(info::text, ' and ') from public.written").await, info, "once");
    queue.close(&held, Closing::Finished).await;
    let messages = messages(&queue, job).await;
    assert!(messages.len() == 2 && messages[0].contains("may have 65536"), "{messages:?}");
    assert!(messages[1].contains("a JSON object is wanted"), "{messages:?}");
    let (code, _) = queue.refused("select pcfarm.set_info(999, '{}')").await;
    assert_eq!(code, "P0002");
    queue.check().await;
}

#[tokio::test]
async fn a_cancelled_job_gets_nothing_more() {
    let queue = queue().await;
    let job = queue.job(2, 1).await;
    let held = queue.take(job, false, 1).await.expect("some");
    queue.run(&format!("select pcfarm.cancel_job({job})")).await;
    let verdict =
        bring(&queue, &held, &[(0, r#""enqueue": [{"key": "a", "payload": 1}], "info": {"a": 1}"#)], true).await;
    assert_eq!((verdict.kind, verdict.accepted), (VerdictKind::Revoked, 0));
    assert_eq!(queue.number("select count(*) from pcfarm.problem where key = 'a'").await, 0);
    assert_eq!(queue.number("select count(*) from pcfarm.job_info").await, 0);
    queue.check().await;
}

#[tokio::test]
async fn two_who_enqueue_and_patch_wait_for_each_other_and_both_are_stored() {
    let queue = queue().await;
    let job = queue.job(2, 1).await;
    let (one, two) = (queue.take(job, false, 1).await.expect("some"), queue.take(job, false, 1).await.expect("some"));
    let of = |key: &str| format!(r#""enqueue": [{{"key": "{key}", "payload": 1}}], "info": {{"{key}": 1}}"#);
    let (first, second) = (queue.server().await, queue.server().await);
    first.batch_execute("begin").await.expect("begun");
    checkout::accept(&first, "t", &bringing(&one, &[(0, &of("a"))], true)).await.expect("accepted");
    let backend = queue::backend(&second).await;
    let text = of("b");
    let other = bringing(&two, &[(0, &text)], true);
    let (accepted, ()) = tokio::join!(checkout::accept(&second, "t", &other), async {
        queue.until_blocked(backend).await;
        first.batch_execute("commit").await.expect("committed");
    });
    assert!(accepted.expect("accepted")[0].closed);
    assert_eq!(queue.text("select info::text from pcfarm.job_info").await, r#"{"a": 1, "b": 1}"#);
    assert_eq!(waiting(&queue, "t").await, "a b");
    queue.check().await;
}
