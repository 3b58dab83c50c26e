//! Several job types in one job, the order of problems within a job, reading them, and problems that wait for their time.

use crate::queue::{Queue, queue};
use deadpool_postgres::Object;
use pcfarm_proto::ids::{BatchOrder, JobId};
use pcfarm_sql::checkout::Closing;
use pcfarm_sql::json::RawJson;
use pcfarm_sql::lanes::{Portion, coming_problems};
use pcfarm_sql::submit::{Begun, Details, Loading, NewProblem, Target};
use pcfarm_sql::upkeep;
use std::time::{Duration, SystemTime};
use tokio_postgres::Row;

const ORDERED: &str = "select string_agg(key, ' ' order by job_position, priority desc, lane_rank, lane_id, batch_order, problem_id) \
                       from pcfarm.problems_ordered";

/// Job `t` has problems that its query returns, as rows of (key, job type, priority, seconds until the deadline).
fn load(job: JobId, rows: &str, convoy: i64) -> String {
    format!(
        "select pcfarm.load({job}, $$ select key, to_jsonb(key) as payload, job_type, priority, now() + due::integer * interval '1 s' as deadline
             from (values {rows}) as v(key, job_type, priority, due) $$, {convoy})"
    )
}

async fn two_types() -> (Queue, JobId) {
    let queue = queue().await;
    queue.run("select pcfarm.create_job_type('mail', 'c')").await;
    let job = JobId(queue.number("select pcfarm.create_job('j', 't')").await);
    (queue, job)
}

#[tokio::test]
async fn priority_comes_first_then_the_deadline_and_a_convoy_has_one_job_type() {
    let (queue, job) = two_types().await;
    let rows = "('a', null, null, 9), ('b', 'mail', 2, 5), ('c', null, 2, 7), ('d', 'mail', 2, null), ('e', null, 2, 6), \
                ('f', null, -1, 1), ('g', null, 0, 8)";
    assert_eq!(queue.number(&load(job, rows, 2)).await, 7);
    queue.run(&format!("select pcfarm.open_job({job})")).await;
    assert_eq!(queue.text(ORDERED).await, "b d e c g a f");
    let convoys = "select string_agg(k, ' | ' order by priority desc, lane_id, batch_order) from (
        select l.priority, l.lane_id, p.batch_order, l.job_type || ': ' || string_agg(p.key, ' ' order by p.problem_id) as k
        from pcfarm.problem p join pcfarm.lane l using (job_id, lane_id) group by 1, 2, 3, l.job_type) c";
    assert_eq!(queue.text(convoys).await, "mail: b d | t: e c | t: g a | t: f");
    assert_eq!(
        queue.text("select string_agg(key || ' ' || job_type, ', ' order by key) from pcfarm.job_problems").await,
        "a t, b mail, c t, d mail, e t, f t, g t"
    );
    queue.check().await;
}

#[tokio::test]
async fn what_is_urgent_and_comes_later_is_served_first_and_so_is_its_retry() {
    let (queue, job) = two_types().await;
    queue.run(&load(job, "('a', null, 0, null), ('b', null, 0, null)", 1)).await;
    queue.run(&format!("select pcfarm.open_job({job})")).await;
    queue.run(&load(job, "('u', null, 9, null), ('v', null, 9, null)", 1)).await;
    assert_eq!(queue.text(ORDERED).await, "u v a b");
    let urgent = queue.take(job, false, 1).await.expect("work");
    assert_eq!(urgent.keys(), ["u"]);
    queue.deliver(&urgent, &[(0, Err("no luck"))], true).await;
    queue.close(&urgent, Closing::Finished).await;
    assert_eq!(queue.text(ORDERED).await, "v u a b", "before what is less urgent");
    let plain = queue.take(job, false, 1).await.expect("work");
    assert_eq!(plain.keys(), ["v"]);
    queue.close(&plain, Closing::Unreceived).await;
    assert_eq!(queue.text(ORDERED).await, "u v a b");
    queue.check().await;
}

#[tokio::test]
async fn a_group_is_as_urgent_as_its_most_urgent_member() {
    let (queue, job) = two_types().await;
    queue
        .run(&format!(
            "select pcfarm.load({job}, $$ select key, to_jsonb(key) as payload, g as group_key, priority
                 from (values ('a', 'x', 0), ('b', 'y', 1), ('c', 'x', 5), ('d', 'z', 0)) as v(key, g, priority) $$, 10);
             select pcfarm.open_job({job})"
        ))
        .await;
    assert_eq!(queue.text(ORDERED).await, "c a b d");
    let first = queue.take(job, false, 1).await.expect("work");
    assert_eq!(first.keys(), ["c", "a"]);
}

#[tokio::test]
async fn a_load_with_too_many_classes_or_an_unknown_job_type_is_refused_whole() {
    let (queue, job) = two_types().await;
    let many = format!(
        "select pcfarm.load({job}, $$ select g::text as key, to_jsonb(g) as payload, g as priority from generate_series(1, 101) g $$, 10)"
    );
    let (code, message) = queue.refused(&many).await;
    assert_eq!((code.as_str(), message.as_str()), ("54000", "a load with 101 different job types and priorities"));
    let (code, message) = queue.refused(&load(job, "('a', 'male', 0, 1)", 1)).await;
    assert_eq!((code.as_str(), message.as_str()), ("42704", "there is no job type 'male'"));
    assert_eq!(queue.number("select count(*) from pcfarm.problem").await, 0);
}

#[tokio::test]
async fn a_problem_waits_for_its_time_and_its_job_for_the_problem() {
    let (queue, job) = two_types().await;
    queue
        .run(&format!(
            "select pcfarm.load({job}, $$ select key, to_jsonb(key) as payload, g as group_key, now() + due * interval '1 s' as not_before
                 from (values ('a', 'x', 0.5), ('b', 'x', 3600), ('c', 'y', null), ('d', 'z', -5), ('e', 'w', 0.3), ('f', 'v', 0.3))
                 as v(key, g, due) $$, 2);
             select pcfarm.open_job({job})"
        ))
        .await;
    assert_eq!(queue.text(ORDERED).await, "c d");
    let now = queue.take(job, false, 9).await.expect("work");
    assert_eq!(now.keys(), ["c", "d"]);
    queue.finish(&now).await;
    assert_eq!(queue.end(job).await, None, "some wait");
    assert_eq!(
        queue.text("select string_agg(key, ' ' order by key) from pcfarm.job_problems where state = 'waiting' and message like 'not before %'").await,
        "a b e f"
    );
    queue.check().await;
    queue.eventually("select count(*) from pcfarm.delayed where due_at <= clock_timestamp()", 2).await;
    assert_eq!(upkeep::move_due(&*queue.server().await).await.expect("moved"), 2);
    queue.check().await;
    let later = queue.take(job, true, 1).await.expect("one convoy");
    assert_eq!(later.keys(), ["e", "f"], "as they were loaded");
    assert_eq!(later.problems[0].attempts, 0);
    queue.finish(&later).await;
    queue.run("update pcfarm.delayed set due_at = now() where due_at > now() + interval '1 min'").await;
    assert_eq!(upkeep::move_due(&*queue.server().await).await.expect("moved"), 2, "a group waits for its last");
    let last = queue.take(job, true, 1).await.expect("one convoy");
    assert_eq!(last.keys(), ["a", "b"]);
    queue.finish(&last).await;
    assert_eq!(queue.end(job).await.as_deref(), Some("done"));
    queue.check().await;
}

#[tokio::test]
async fn a_failed_problem_waits_twice_as_long_each_time() {
    let queue = queue().await;
    queue
        .run("select pcfarm.create_job_type('patient', 'c', '{\"max_attempts\": 4, \"retry_delay\": \"10 s\", \"retry_delay_limit\": \"25 s\"}')")
        .await;
    let job = queue.job_of("patient", 1, 1).await;
    let delay = "select extract(epoch from due_at - clock_timestamp())::float8 from pcfarm.delayed";
    for expected in [10.0, 20.0, 25.0] {
        let held = match queue.take(job, false, 1).await {
            Some(held) => held,
            None => queue.take(job, true, 1).await.expect("it came back"),
        };
        queue.deliver(&held, &[(0, Err("no luck"))], true).await;
        let closed = queue.close(&held, Closing::Finished).await;
        assert_eq!(closed[0].requeued, 1);
        queue.check().await;
        assert_eq!(queue.end(job).await, None);
        let seconds: f64 = queue.client.query_one(delay, &[]).await.expect("it waits").get(0);
        assert!((expected * 0.75 - 1.0..expected * 1.25).contains(&seconds), "{seconds} of about {expected}");
        assert_eq!(queue.text("select message from pcfarm.job_problems").await, "no luck");
        assert_eq!(upkeep::move_due(&*queue.server().await).await.expect("nothing is due"), 0);
        queue.run("update pcfarm.delayed set due_at = clock_timestamp()").await;
        assert_eq!(upkeep::move_due(&*queue.server().await).await.expect("moved"), 1);
    }
    let held = queue.take(job, true, 1).await.expect("its last attempt");
    queue.deliver(&held, &[(0, Err("no luck"))], true).await;
    assert_eq!(queue.end(job).await.as_deref(), Some("failed"));
    queue.check().await;
}

#[tokio::test]
async fn a_cancelled_job_waits_for_nothing_and_a_retried_one_keeps_its_job_types() {
    let (queue, job) = two_types().await;
    queue.run("select pcfarm.create_job_type('t', 'c', '{\"max_attempts\": 1}'); select pcfarm.create_job_type('mail', 'c', '{\"max_attempts\": 1}')").await;
    queue.run(&load(job, "('a', null, 1, null), ('b', 'mail', 2, null), ('c', null, 2, null)", 5)).await;
    queue.run(&format!("select pcfarm.open_job({job})")).await;
    while let Some(held) = queue.take(job, false, 1).await {
        queue.deliver(&held, &[(0, Err("no luck"))], true).await;
    }
    assert_eq!(queue.end(job).await.as_deref(), Some("failed"));
    assert_eq!(queue.number(&format!("select pcfarm.retry_job({job})")).await, 3);
    assert_eq!(queue.text(ORDERED).await, "b c a");
    let types = "select string_agg(job_type || priority, ' ' order by priority desc, job_type) from pcfarm.lane where kind = 'retry'";
    assert_eq!(queue.text(types).await, "mail2 t2 t1");
    queue.check().await;
    let again = JobId(queue.number(&format!("select pcfarm.rerun_job({job}, 1)")).await);
    let kinds = format!(
        "select string_agg(job_type || priority, ' ' order by priority desc, job_type) from pcfarm.lane where job_id = {again}"
    );
    assert_eq!(queue.text(&kinds).await, "mail2 t2 t1");
    queue
        .run(&format!(
            "select pcfarm.load({again}, $$ select 'z' as key, 'null'::jsonb as payload, now() + interval '1 h' as not_before $$);
             select pcfarm.cancel_job({again})"
        ))
        .await;
    assert_eq!(queue.number("select count(*) from pcfarm.delayed").await, 0);
    queue.check().await;
}

#[tokio::test]
async fn an_upload_is_ordered_as_a_query_is() {
    let (queue, _) = two_types().await;
    let hour = SystemTime::now() + Duration::from_secs(3600);
    let new = |key: &str, group: Option<&str>, details: Option<Details>| NewProblem {
        key: key.into(),
        payload: RawJson("{}".into()),
        group_key: group.map(str::to_owned),
        details: details.map(Box::new),
    };
    let target = Target::New { name: "n".into(), job_type: "t".into(), options: "{}".into() };
    let client = Object::take(queue.server().await);
    let Begun::Loading(mut load) = Loading::begin(client, &None, &target, Some(2)).await.expect("begun") else {
        panic!("new")
    };
    let urgent = Details { priority: 3, ..Details::default() };
    load.add(vec![new("a", None, None), new("b", None, None), new("c", None, None)]).await.expect("added");
    load.add(vec![
        new("d", None, Some(Details { deadline: Some(hour), ..Details::default() })),
        new("e", None, Some(Details { deadline: Some(hour - Duration::from_secs(60)), ..Details::default() })),
        new("f", Some("g"), Some(urgent.clone())),
        new("h", None, Some(Details { job_type: Some("mail".into()), weight: Some(20), ..urgent.clone() })),
        new("i", None, Some(Details { not_before: Some(hour), ..Details::default() })),
        new("k", Some("g"), None),
    ])
    .await
    .expect("added");
    let submitted = load.finish(true).await.expect("loaded");
    assert_eq!(submitted.problems, 9);
    assert_eq!(queue.text(ORDERED).await, "h f k a b c e d");
    assert_eq!(queue.text("select key || weight from pcfarm.problem where weight is not null").await, "h20");
    assert_eq!(
        queue.text("select p.key from pcfarm.delayed d join pcfarm.problem p using (job_id, problem_id)").await,
        "i"
    );
    assert_eq!(
        queue.number(&format!("select problems from pcfarm.job_progress where job_id = {}", submitted.job)).await,
        9
    );
    queue.check().await;
}

/// All that a lane has, as a server reads on: convoy by convoy, and more at once if not one is whole.
async fn read_through(queue: &Queue, job: JobId, at_once: i64) -> Vec<String> {
    let lane = queue.lane(job, false).await.expect("a lane");
    let client = queue.server().await;
    let (mut read, mut from, mut problems, mut only_small) = (Vec::new(), lane.next_extraction, at_once, true);
    loop {
        let portion = Portion { from, problems, large: problems, bytes: 1 << 20, only_small };
        let coming = coming_problems(&client, &lane, portion).await;
        let coming = coming.expect("read");
        let last = coming.problems.last().expect("at least one, if there is one").batch_order;
        let whole = coming.problems.iter().filter(|p| coming.to_the_end || p.batch_order < last);
        let before = read.len();
        read.extend(
            whole.clone().map(|p| format!("{:?} {} {}", p.key, String::from_utf8_lossy(&p.payload.0), p.weight)),
        );
        match whole.last() {
            _ if coming.to_the_end => return read,
            Some(last) => (from, problems, only_small) = (BatchOrder(last.batch_order.0 + 1), at_once, true),
            None if only_small => only_small = false,
            None => problems *= 4,
        }
        assert!(read.len() > before || problems < 1000, "it goes on");
    }
}

/// What 100 kB are stored in is a thousandth of that, or less.
#[tokio::test]
async fn no_more_is_read_than_there_is_room_for_as_text() {
    let queue = queue().await;
    for (what, payload) in [("compressed", "to_jsonb(repeat('x', 100000))"), ("one number", "'1e100000'::jsonb")] {
        let query = format!("select g::text as key, {payload} as payload from generate_series(1, 50) g");
        let job = queue.number(&format!("select pcfarm.submit('j', 't', $q${query}$q$, 1)")).await;
        let lane = queue.lane(JobId(job), false).await.expect("a lane");
        let client = queue.server().await;
        for (only_small, large, bytes, expected) in
            [(true, 50, 250_000, 3), (false, 50, 250_000, 3), (false, 2, i64::MAX, 2), (true, 51, i64::MAX, 50)]
        {
            let portion = Portion { from: lane.next_extraction, problems: 51, large, bytes, only_small };
            let coming = coming_problems(&client, &lane, portion).await.expect("read");
            let (read, whole) = (coming.problems.len(), expected == 50);
            assert_eq!((read, coming.to_the_end), (expected, whole), "{what}, {only_small} {large} {bytes}");
        }
    }
    queue.check().await;
}

#[tokio::test]
async fn whatever_a_problem_looks_like_it_is_read_as_it_is() {
    let queue = queue().await;
    // Nothing, what separates lines and fields, what JSON escapes, what is longer as text than it is stored, what is stored
    // elsewhere.
    let problems = r#"
        select v.key, v.payload, v.weight from (values
            (1, '', 'null'::jsonb, null), (2, e'a\nb', '"\n\u001f\\\""', 7), (3, e'\x1f', '{"ü": [1e40, ""]}', null),
            (4, 'compressed', to_jsonb(repeat('x', 100000)), 2), (5, 'long', '1e100000', 3),
            (6, 'elsewhere', (select jsonb_agg(md5(g::text)) from generate_series(1, 500) g), null),
            (7, ' ü ', '0', 4), (8, 'i', '[]', 5), (9, 'j', '{}', null)) as v(n, key, payload, weight)
        order by n"#;
    let rows = queue.client.query(problems, &[]).await.expect("rows");
    let row = |row: &Row| {
        let (key, payload, weight): (&str, RawJson, Option<i32>) = (row.get(0), row.get(1), row.get(2));
        format!("{key:?} {} {}", String::from_utf8_lossy(&payload.0), weight.unwrap_or(1))
    };
    let rows: Vec<String> = rows.iter().map(row).collect();
    for convoy in [1, 2, 4] {
        let job = queue.number(&format!("select pcfarm.submit('j', 't', $q${problems}$q$, {convoy})")).await;
        for portion in [1, 2, 3, 9, 100] {
            assert_eq!(
                read_through(&queue, JobId(job), portion).await,
                rows,
                "{portion} at a time, convoys of {convoy}"
            );
        }
    }
    queue.check().await;
}
