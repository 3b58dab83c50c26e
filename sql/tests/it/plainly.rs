//! Acceptances that are one statement: they leave what the function leaves, and to the function what they cannot know.

use crate::queue::{Held, Queue, acceptance, acceptance_with_homes, backend, queue};
use pcfarm_sql::checkout;

/// What has become of a checkout and its results, without numbers and times.
async fn left_behind(queue: &Queue, held: &Held) -> String {
    queue
        .text(&format!(
            "select concat_ws(E'\\n', (
                select string_agg((to_jsonb(r) - 'job_id' - 'problem_id' - 'checkout_id' - 'accepted_at')::text, ', ' order by r.problem_id)
                from pcfarm.result r where r.job_id = {job}), (
                select to_jsonb(c) - 'job_id' - 'lane_id' - 'checkout_id' - 'checked_out_at' - 'ended_at' - 'token' - 'deadline'
                from pcfarm.checkout c where c.checkout_id = {id}), (
                select string_agg((to_jsonb(p) - 'job_id' - 'noted_at')::text, ', ' order by p.noted_at)
                from pcfarm.progress p where p.job_id = {job}))",
            job = held.job_id,
            id = held.checkout_id
        ))
        .await
}

/// Whichever of the two ways an acceptance goes, nobody can tell afterwards.
#[tokio::test]
async fn a_plain_acceptance_leaves_what_any_other_leaves() {
    let queue = queue().await;
    queue.run("select pcfarm.create_job_type('forgets', 'c', '{\"keep_results\": false}')").await;
    let line = queue.server().await;
    let ran = "select coalesce(sum(generic_plans + custom_plans) filter (where statement like '%with live as%'), 0)::bigint * 100
        + coalesce(sum(generic_plans + custom_plans) filter (where statement like '%pcfarm.accept(%'), 0)::bigint
        from pg_prepared_statements where statement not like '%pg_prepared_statements%'";
    for (job_type, deliveries) in [
        ("t", vec![(vec![(0, Ok("1")), (1, Ok("[2]")), (2, Ok("{\"a\": 3}"))], true)]),
        ("t", vec![(vec![(2, Ok("1"))], false), (vec![(0, Ok("2")), (1, Ok("3"))], true)]),
        ("t", vec![(vec![(0, Ok("1")), (1, Ok("2"))], true)]),
        ("forgets", vec![(vec![(0, Ok("1")), (1, Ok("2")), (2, Ok("3"))], true)]),
    ] {
        let mut both = Vec::new();
        for plainly in [true, false] {
            let job = queue.job_of(job_type, 3, 3).await;
            let held = queue.take(job, false, 1).await.expect("held");
            let mut verdicts = Vec::new();
            for (told, closing) in &deliveries {
                let delivery = [(&held, &told[..], *closing)];
                let acceptance = if plainly { acceptance(&delivery) } else { acceptance_with_homes(&delivery) };
                let before: i64 = line.query_one(ran, &[]).await.expect("asked").get(0);
                let verdict = checkout::accept(&line, job_type, &acceptance).await.expect("accepted").remove(0);
                let after: i64 = line.query_one(ran, &[]).await.expect("asked").get(0);
                assert_eq!(after - before, if plainly { 100 } else { 1 }, "by the one or by the other");
                verdicts.push((verdict.kind, verdict.reason, verdict.accepted, verdict.refused, verdict.closed));
            }
            queue.check().await;
            both.push((verdicts, left_behind(&queue, &held).await));
            if queue.end(job).await.is_none() {
                queue.run(&format!("select pcfarm.cancel_job({job})")).await;
            }
        }
        assert_eq!(both[0], both[1]);
    }
}

/// One who waits for another's acceptance sees what that has noted, although its statement is older.
#[tokio::test]
async fn a_failed_attempt_that_is_noted_meanwhile_is_forgotten_with_its_checkout() {
    let queue = queue().await;
    for closes in [false, true] {
        let job = queue.job(2, 2).await;
        let held = queue.take(job, false, 1).await.expect("held");
        queue.deliver(&held, &[(1, Ok("1"))], false).await;
        let (first, second) = (queue.server().await, queue.server().await);
        first.batch_execute("begin").await.expect("begun");
        let failure = acceptance(&[(&held, &[(0, Err("no"))], closes)]);
        checkout::accept(&first, "t", &failure).await.expect("noted");
        let waits = backend(&second).await;
        let solved = acceptance(&[(&held, &[(0, Ok("1"))], true)]);
        let (verdicts, ()) = tokio::join!(checkout::accept(&second, "t", &solved), async {
            queue.until_blocked(waits).await;
            first.batch_execute("commit").await.expect("committed");
        });
        assert!(verdicts.expect("accepted")[0].closed);
        assert_eq!(queue.number("select count(*) from pcfarm.failed_attempt").await, 0);
        queue.check().await;
    }
}
