//! Loading with SQL: what people call, what it refuses, and with whose rights it runs.

use crate::queue::{Queue, backend, queue, take};
use pcfarm_proto::ids::{JobId, WorkstationId};
use pcfarm_sql::checkout::Closing;
use pcfarm_sql::connect::connect;
use pcfarm_sql::{lanes, upkeep};
use tokio_postgres::{Client, SimpleQueryMessage};

async fn all(client: &Client, query: &str) -> Vec<String> {
    let rows = client.simple_query(query).await.unwrap_or_else(|error| panic!("{query}: {error:?}"));
    let rows = rows.iter().filter_map(|row| match row {
        SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or("").to_owned()),
        _ => None,
    });
    rows.collect()
}

/// `order:key key …` of each convoy of a job, lane after lane.
async fn convoys(queue: &Queue, job: i64) -> Vec<String> {
    let query = format!(
        "select p.batch_order || ':' || string_agg(p.key, ' ' order by p.problem_id) from pcfarm.problem p
         where p.job_id = {job} group by p.lane_id, p.batch_order order by p.lane_id, p.batch_order"
    );
    all(&queue.client, &query).await
}

#[tokio::test]
async fn jobs_are_created_once_per_key_and_owner() {
    let queue = queue().await;
    for (call, code, part) in [
        ("create_job('j', 'nope')", "42704", "no job type 'nope'"),
        ("create_job('j', null)", "42704", "no job type null"),
        ("create_job('', 't')", "23514", "job_name_length"),
        ("create_job(null, 't')", "23502", "name"),
        ("create_job('j', 't', '[]')", "22023", "object"),
        ("create_job('j', 't', '{\"prority\": 1}')", "22023", "'prority'"),
        ("create_job('j', 't', '{\"priority\": \"much\"}')", "22P02", "much"),
        ("create_job('j', 't', '{\"deadline\": \"soon\"}')", "22007", "soon"),
    ] {
        let (found, message) = queue.refused(&format!("select pcfarm.{call}")).await;
        assert!(found == code && message.contains(part), "{call}: {found} {message}");
    }
    let create = "select pcfarm.create_job('j', 't', '{\"idempotency_key\": \"k\", \"priority\": 7}')";
    let first = queue.number(create).await;
    assert_eq!(queue.number(create).await, first);
    assert_eq!(queue.number("select priority::bigint from pcfarm.job").await, 7);
    let (code, message) = queue.refused(&create.replace('7', "8")).await;
    assert!(code == "23505" && message.contains("different one"), "{code} {message}");
    // A null key is none.
    let keyless = "select pcfarm.create_job('j', 't', '{\"idempotency_key\": null}')";
    assert_ne!(queue.number(keyless).await, queue.number(keyless).await);

    // Two calls at once: the second waits for the first, and gets its job.
    let (one, two) = (queue.database.client().await, queue.database.client().await);
    one.batch_execute("begin").await.expect("begun");
    let again = create.replace("\"k\"", "\"k2\"");
    let made: i64 = one.query_one(&again, &[]).await.expect("made").get(0);
    let waits = backend(&two).await;
    let (second, ()) =
        tokio::join!(async { two.query_one(&again, &[]).await.expect("found").get::<_, i64>(0) }, async {
            queue.until_blocked(waits).await;
            one.batch_execute("commit").await.expect("committed");
        });
    assert_eq!(made, second);

    // The same key of another owner is another key.
    let other = login(&queue, "pcfarm_loader").await;
    let theirs: i64 = other.client.query_one(create, &[]).await.expect("made").get(0);
    assert_ne!(theirs, first);
    other.gone(&queue).await;
    queue.check().await;
}

#[tokio::test]
async fn convoys_keep_the_querys_order_or_the_one_asked_for() {
    let queue = queue().await;
    let load = async |query: &str, convoy: i64| {
        let job = queue.number("select pcfarm.create_job('j', 't')").await;
        let load = "select pcfarm.load($1, $2, $3)";
        let convoy = i32::try_from(convoy).expect("small");
        queue
            .client
            .query_one(load, &[&job, &query, &convoy])
            .await
            .unwrap_or_else(|error| panic!("{query}: {error:?}"));
        convoys(&queue, job).await
    };
    let five = "from (values ('a', 1, 5), ('b', 3, 1), ('c', null, 2), ('d', 3, null), ('e', 1, 4)) as v(key, p, d)";
    let plain = format!("select key, '{{}}'::jsonb as payload {five}");
    for (query, convoy, expected) in [
        (plain.clone(), 2, vec!["0:a b", "1:c d", "2:e"]),
        (format!("{plain};"), 5, vec!["0:a b c d e"]),
        (format!("{plain} -- that is all"), 100, vec!["0:a b c d e"]),
        (format!("{plain} ; -- that is not; all\n"), 100, vec!["0:a b c d e"]),
        (format!("{plain} ;\n -- one\n -- two\n"), 100, vec!["0:a b c d e"]),
        (format!("-- first\n{plain} /* last */"), 100, vec!["0:a b c d e"]),
        (format!("with x as ({plain}) select * from x order by key desc"), 2, vec!["0:e d", "1:c b", "2:a"]),
        (format!("select key, '{{}}'::json as payload, p as priority {five}"), 2, vec!["0:b d", "0:a e", "0:c"]),
        (
            format!("select key, '1'::jsonb as payload, p as priority, now() + d * interval '1s' as deadline {five}"),
            2,
            vec!["0:b d", "0:e a", "0:c"],
        ),
        // Groups: whole, at the place of their first row; one by itself when it is too large.
        (
            "select g::text as key, '1'::jsonb as payload, (g % 3)::text as group_key from generate_series(1, 9) g"
                .into(),
            4,
            vec!["0:1 4 7", "1:2 5 8", "2:3 6 9"],
        ),
        (
            "select g::text as key, '1'::jsonb as payload, (g % 3)::text as group_key from generate_series(1, 9) g"
                .into(),
            6,
            vec!["0:1 4 7 2 5 8", "1:3 6 9"],
        ),
        (
            "select g::text as key, '1'::jsonb as payload, case when g > 3 then 'x' end as group_key
             from generate_series(1, 9) g"
                .into(),
            2,
            vec!["0:1 2", "1:3", "2:4 5 6 7 8 9"],
        ),
        (
            "select g::text as key, '1'::jsonb as payload, (g % 2)::text as group_key, g as priority
             from generate_series(1, 5) g"
                .into(),
            1,
            vec!["0:5 3 1", "0:4 2"],
        ),
        // Those of one lane in the order of their deadlines.
        (
            "select v.key, '1'::jsonb as payload, g as group_key, now() + d * interval '1s' as deadline
             from (values ('a', 'y', 9), ('b', 'x', 5), ('c', 'z', 2), ('d', 'x', 1), ('e', null, 4)) as v(key, g, d)"
                .into(),
            2,
            vec!["0:d b", "1:c e", "2:a"],
        ),
        // A text that looks like ours stays what it is.
        ("select 'over (order by 1)' as key, '1'::jsonb as payload".into(), 1, vec!["0:over (order by 1)"]),
        (
            "select 'over (order by 1)' as key, '1'::jsonb as payload, 'g' as group_key".into(),
            1,
            vec!["0:over (order by 1)"],
        ),
        ("select '%s $1 %1$s' as key, '1'::jsonb as payload, 'g' as group_key".into(), 1, vec!["0:%s $1 %1$s"]),
        ("select key, payload from pcfarm.problem where false".into(), 1, vec![]),
    ] {
        assert_eq!(load(&query, convoy).await, expected, "{query}");
    }
    queue.check().await;
}

#[tokio::test]
async fn what_cannot_be_loaded_is_refused_and_leaves_nothing() {
    let queue = queue().await;
    queue
        .run(
            "create table public.ran (n integer);
             create function public.touch() returns integer language sql as 'insert into public.ran values (1) returning n'",
        )
        .await;
    let job = queue.number("select pcfarm.create_job('j', 't')").await;
    let good = "select ''a'' as key, ''{}''::jsonb as payload";
    let one_key = "select ''a''::text as key";
    for (arguments, code, part) in [
        (format!("null, '{good}', 1"), "P0002", "no job null"),
        (format!("999, '{good}', 1"), "P0002", "no job 999"),
        (format!("{job}, '{good}', 0"), "22023", "convoy of 0"),
        (format!("{job}, '{good}', -1"), "22023", "convoy of -1"),
        (format!("{job}, '{good}', null"), "22023", "convoy of null"),
        (format!("{job}, '{good}', 100001"), "22023", "convoy of 100001"),
        (format!("{job}, null, 1"), "22023", "empty"),
        (format!("{job}, ' ', 1"), "22023", "empty"),
        (format!("{job}, '{one_key}', 1"), "22023", "not key and payload"),
        (format!("{job}, 'select ''{{}}''::jsonb as payload', 1"), "22023", "not key and payload"),
        (format!("{job}, '{one_key}, 1 as payload', 1"), "42804", "payload is integer"),
        (format!("{job}, '{good}, ''1'' as priority', 1"), "42804", "priority is text"),
        (format!("{job}, '{good}, current_date as deadline', 1"), "42804", "deadline is date"),
        (format!("{job}, '{good}, ''x'' as job_type', 1"), "42704", "there is no job type 'x'"),
        (format!("{job}, '{good}, 0 as weight', 1"), "23514", "positive_weight"),
        (format!("{job}, 'select null::text as key, ''1''::jsonb as payload', 1"), "23502", "row without a key"),
        (format!("{job}, '{one_key}, null::jsonb as payload', 1"), "23502", "row without a payload"),
        (format!("{job}, 'select repeat(''x'', 1025) as key, ''1''::jsonb as payload', 1"), "23514", "key_at_most"),
        (
            format!(
                "{job}, 'select (1 / (3 - g))::text as key, ''1''::jsonb as payload from generate_series(1, 5) g', 1"
            ),
            "22012",
            "zero",
        ),
        (format!("{job}, '{good}; {good}', 1"), "42601", ""),
        (format!("{job}, 'select 1', 1"), "22023", "not key and payload"),
        (format!("{job}, 'delete from public.ran returning ''a'' as key, ''1''::jsonb as payload', 1"), "42601", ""),
        (
            format!(
                "{job}, 'with d as (delete from public.ran returning n) select n::text as key, ''1''::jsonb as payload from d', 1"
            ),
            "0A000",
            "",
        ),
        (format!("{job}, '{good}) q; drop table public.ran; select * from ({good}', 1"), "42601", ""),
        (format!("{job}, 'drop table public.ran', 1"), "42601", ""),
    ] {
        let (found, message) = queue.refused(&format!("select pcfarm.load({arguments})")).await;
        assert!(found == code && message.contains(part), "{arguments}: {found} {message}");
    }
    // A null in somebody else's table is not a problem without a key.
    queue.run("create table public.strict (n integer not null);
        create function public.sly() returns text language sql as 'insert into public.strict values (null) returning ''x''::text'").await;
    let (_, message) = queue
        .refused(&format!("select pcfarm.load({job}, 'select public.sly() as key, ''1''::jsonb as payload', 1)"))
        .await;
    assert!(message.contains("strict"), "{message}");
    assert_eq!(queue.number("select count(*) from pcfarm.problem").await, 0);
    assert_eq!(queue.number("select count(*) from pcfarm.lane where kind = 'load'").await, 0);

    // An ended job is refused before its query runs.
    queue.run(&format!("select pcfarm.cancel_job({job})")).await;
    let touching =
        format!("select pcfarm.load({job}, 'select public.touch()::text as key, ''1''::jsonb as payload', 1)");
    let (code, message) = queue.refused(&touching).await;
    assert!(code == "55000" && message.contains("has ended (cancelled)"), "{message}");
    // A sequence shows what a rollback would hide.
    queue.run("create sequence public.runs").await;
    queue
        .refused(&format!(
            "select pcfarm.load({job}, 'select nextval(''public.runs'')::text as key, ''1''::jsonb as payload', 1)"
        ))
        .await;
    assert_eq!(queue.number("select nextval('public.runs')").await, 1, "the query did not run");
    queue.check().await;
}

#[tokio::test]
async fn orders_of_ones_own_belong_to_loading_jobs() {
    let queue = queue().await;
    let job = queue.number("select pcfarm.create_job('j', 't')").await;
    let insert = |key: &str, order: &str| {
        format!("insert into pcfarm.problem (job_id, key, payload, batch_order) values ({job}, '{key}', '1', {order})")
    };
    queue.run(&format!("{}; {}; {}", insert("a", "70"), insert("b", "5"), insert("c", "70"))).await;
    queue.refused(&insert("x", "-1")).await;
    // Opened in the transaction that copied: what it copies later is too late, and is told so.
    let (code, message) = queue
        .refused(&format!("begin; {}; select pcfarm.open_job({job}); {}; commit", insert("d", "1"), insert("e", "2")))
        .await;
    assert!(code == "55000" && message.contains("is open"), "{code} {message}");
    queue.run("rollback").await;
    queue.run(&format!("select pcfarm.open_job({job})")).await;
    let (code, _) = queue.refused(&insert("f", "80")).await;
    assert_eq!(code, "55000");
    let (code, _) = queue.refused(&format!("select pcfarm.assign_batch_order({job}, 2)")).await;
    assert_eq!(code, "55000");
    queue.check().await;
    let mut seen = Vec::new();
    while let Some(held) = queue.take(JobId(job), false, 1).await {
        seen.push(held.keys().join(" "));
        queue.finish(&held).await;
    }
    assert_eq!(seen, ["b", "a c"]);
    assert_eq!(queue.end(JobId(job)).await.as_deref(), Some("done"));

    // Orders assigned, and assigned anew.
    let job = queue.number("select pcfarm.create_job('j', 't')").await;
    let copy = format!(
        "insert into pcfarm.problem (job_id, key, payload) select {job}, g::text, jsonb_build_object('g', g % 3) from generate_series(1, 7) g"
    );
    queue.run(&copy).await;
    let (code, message) = queue.refused(&format!("select pcfarm.open_job({job})")).await;
    assert!(code == "55000" && message.starts_with("7 of job"), "{message}");
    assert_eq!(queue.number(&format!("select pcfarm.assign_batch_order({job}, 3)")).await, 7);
    assert_eq!(convoys(&queue, job).await, ["0:1 2 3", "1:4 5 6", "2:7"]);
    queue.number(&format!("select pcfarm.assign_batch_order({job}, 3, 'payload ->> ''g''')")).await;
    assert_eq!(convoys(&queue, job).await, ["0:1 4 7", "1:2 5", "2:3 6"]);
    let (code, _) = queue.refused(&format!("select pcfarm.assign_batch_order({job}, 3, 'nonsense')")).await;
    assert_eq!(code, "42703");
    queue.run(&format!("select pcfarm.open_job({job})")).await;
    queue.check().await;
}

#[tokio::test]
async fn problems_are_analysed_once_after_a_large_load() {
    let queue = queue().await;
    let server = queue.server().await;
    let times = "select s.analyze_count from pg_stat_user_tables s where s.relid = 'pcfarm.problem'::regclass";
    queue.run("alter table pcfarm.problem set (autovacuum_enabled = off)").await;
    let analysed_after_upkeep = async || {
        upkeep::analyze_problems(&*server).await.expect("asked");
        queue.number(times).await
    };
    queue.job(9_999, 100).await;
    assert_eq!(analysed_after_upkeep().await, 0);
    // A load does so itself.
    queue.job(10_000, 100).await;
    assert_eq!(queue.number(times).await, 1);
    assert_eq!(analysed_after_upkeep().await, 1);

    // A copy does not, here a while after that load.
    let copied = async || {
        let job = queue.number("select pcfarm.create_job('j', 't')").await;
        queue
            .run(&format!(
                "insert into pcfarm.problem (job_id, key, payload, batch_order)
                 select {job}, g::text, '1', g / 100 from generate_series(0, 9999) g;
                 select pcfarm.open_job({job});
                 update pcfarm.lane set loaded_at = loaded_at + interval '1 minute' where job_id = {job}"
            ))
            .await;
        job
    };
    let job = copied().await;
    assert_eq!(analysed_after_upkeep().await, 2);
    queue
        .run(&format!("update pcfarm.lane set loaded_at = loaded_at - interval '1 minute' where job_id = {job}"))
        .await;
    assert_eq!(analysed_after_upkeep().await, 2);

    // Among so many others as many change nothing.
    queue.job(100_000, 1000).await;
    assert_eq!(queue.number(times).await, 3);
    copied().await;
    assert_eq!(analysed_after_upkeep().await, 3);
    queue.check().await;
}

#[tokio::test]
async fn a_copy_and_an_opening_never_miss_each_other() {
    let queue = queue().await;
    let (copier, opener) = (queue.database.client().await, queue.database.client().await);
    let insert = |job: i64| {
        format!(
            "insert into pcfarm.problem (job_id, key, payload, batch_order) select {job}, g::text, '1', g from generate_series(1, 50) g"
        )
    };

    // The copy comes first: opening waits for it, and sees it.
    let job = queue.number("select pcfarm.create_job('j', 't')").await;
    copier.batch_execute(&format!("begin; {}", insert(job))).await.expect("copied");
    let waits = backend(&opener).await;
    let open = format!("select pcfarm.open_job({job})");
    let (opened, ()) = tokio::join!(opener.batch_execute(&open), async {
        queue.until_blocked(waits).await;
        copier.batch_execute("commit").await.expect("committed");
    });
    opened.expect("opened");
    assert_eq!(queue.number(&format!("select problems from pcfarm.job_progress where job_id = {job}")).await, 50);

    // Opening comes first: the copy waits, and is refused whole.
    let job = queue.number("select pcfarm.create_job('j', 't')").await;
    opener.batch_execute(&format!("begin; select pcfarm.open_job({job})")).await.expect("opened");
    let waits = backend(&copier).await;
    let text = insert(job);
    let (copied, ()) = tokio::join!(copier.batch_execute(&text), async {
        queue.until_blocked(waits).await;
        opener.batch_execute("commit").await.expect("committed");
    });
    assert!(copied.is_err());
    assert_eq!(queue.number(&format!("select count(*) from pcfarm.problem where job_id = {job}")).await, 0);
    queue.check().await;
}

#[tokio::test]
async fn an_open_loader_blocks_nobody_and_a_rollback_leaves_no_gap() {
    let queue = queue().await;
    let job = queue.job(10, 2).await;
    let loader = queue.database.client().await;
    let more = |key: &str| {
        format!(
            "select pcfarm.load({job}, 'select ''{key}'' || g as key, ''1''::jsonb as payload from generate_series(1, 4) g', 2)"
        )
    };
    loader.batch_execute(&format!("begin; {}", more("open"))).await.expect("loaded");
    // Everybody else would wait for ever: the time limit is the assertion.
    queue.run("set lock_timeout = '2s'").await;
    queue.run(&more("second")).await;
    let held = queue.take(job, false, 2).await.expect("handed out");
    assert_eq!(queue.close(&held, Closing::Lost).await[0].requeued, 4);
    assert!(queue.take(job, true, 1).await.is_some(), "what came back goes out");
    loader.batch_execute("rollback").await.expect("rolled back");
    loader.batch_execute(&format!("begin; {}", more("late"))).await.expect("loaded");
    queue.run(&more("third")).await;
    loader.batch_execute("commit").await.expect("committed");
    let mut seen = Vec::new();
    // Lanes in order, whenever they were committed.
    while let Some(held) = queue.take(job, false, 100).await {
        seen.push(held.keys().join(" "));
        queue.finish(&held).await;
    }
    let expected = [
        "k5 k6 k7 k8 k9 k10",
        "second1 second2 second3 second4",
        "late1 late2 late3 late4",
        "third1 third2 third3 third4",
    ];
    assert_eq!(seen, expected);
    queue.check().await;
}

#[tokio::test]
async fn one_submit_per_key_loads() {
    let queue = queue().await;
    let options = "{\"idempotency_key\": \"k\"}";
    // Its query takes as long as somebody holds a lock.
    let submit = format!(
        "select pcfarm.submit('j', 't', 'select ''a'' as key, ''1''::jsonb as payload from pg_advisory_xact_lock(42)', 1, '{options}')"
    );
    // The key is that of a job that was created empty, and two submits come at once.
    let job = queue.number(&format!("select pcfarm.create_job('j', 't', '{options}')")).await;
    let (one, two) = (queue.database.client().await, queue.database.client().await);
    queue.run("select pg_advisory_lock(42)").await;
    let waits = (backend(&one).await, backend(&two).await);
    let (first, second, ()) = tokio::join!(one.query_one(&submit, &[]), two.query_one(&submit, &[]), async {
        queue.until_blocked(waits.0).await;
        queue.until_blocked(waits.1).await;
        queue.run("select pg_advisory_unlock(42)").await;
    });
    for found in [first, second] {
        assert_eq!(found.expect("submitted").get::<_, i64>(0), job);
    }
    assert_eq!(queue.number(&submit).await, job);
    assert_eq!(queue.number("select count(*) from pcfarm.problem").await, 1);
    assert_eq!(queue.state(JobId(job)).await, "open");
    queue.check().await;
}

#[tokio::test]
async fn states_change_as_the_diagram_says() {
    let queue = queue().await;
    let states = ["loading", "open", "held", "done", "failed", "cancelled"];
    // What each call makes of each state; nothing: refused.
    let table: &[(&str, [Option<&str>; 6])] = &[
        ("open_job", [Some("open"), Some("open"), Some("held"), None, None, None]),
        ("hold_job", [None, Some("held"), Some("held"), None, None, None]),
        ("release_job", [None, Some("open"), Some("open"), None, None, None]),
        ("cancel_job", [Some("cancelled"), Some("cancelled"), Some("cancelled"), None, None, Some("cancelled")]),
        ("retry_job", [None, Some("open"), Some("held"), None, Some("failed"), None]),
    ];
    for (call, outcomes) in table {
        for (state, outcome) in states.iter().zip(outcomes) {
            let job = queue.number("select pcfarm.create_job('j', 't')").await;
            queue
                .run(&format!(
                    "update pcfarm.job set state = '{state}', opened_at = now(),
                         ended_at = case when '{state}' in ('done', 'failed', 'cancelled') then now() end where job_id = {job}"
                ))
                .await;
            let text = format!("select pcfarm.{call}({job})");
            match outcome {
                Some(expected) => {
                    queue.run(&text).await;
                    assert_eq!(queue.state(JobId(job)).await, *expected, "{call} of a job that is {state}");
                }
                None => {
                    let (code, message) = queue.refused(&text).await;
                    assert!(code == "55000" && message.contains(state), "{call} of {state}: {code} {message}");
                }
            }
        }
        let (code, _) = queue.refused(&format!("select pcfarm.{call}(999999)")).await;
        assert_eq!(code, "P0002");
        queue.refused(&format!("select pcfarm.{call}(null)")).await;
    }
}

#[tokio::test]
async fn a_rerun_is_a_new_job_with_other_convoys() {
    let queue = queue().await;
    let job = queue.job(6, 2).await;
    let again = queue.number(&format!("select pcfarm.rerun_job({job}, 4)")).await;
    assert_eq!(convoys(&queue, again).await, ["0:k1 k2 k3 k4", "1:k5 k6"]);
    let grouped = queue.number(&format!("select pcfarm.rerun_job({job}, 2, '(payload::int % 2)')")).await;
    assert_eq!(convoys(&queue, grouped).await, ["0:k1 k3 k5", "1:k2 k4 k6"]);
    let (code, _) = queue.refused("select pcfarm.rerun_job(999, 4)").await;
    assert_eq!(code, "P0002");
    queue.check().await;
}

#[tokio::test]
async fn views_show_the_order_in_which_problems_are_handed_out() {
    let queue = queue().await;
    queue.run("select pcfarm.create_job_type('first', 'c', '{\"retry_first\": true}')").await;
    for (name, job_type, options) in [
        ("low", "t", "{\"priority\": 1}"),
        ("late", "first", "{\"priority\": 5, \"deadline\": \"2040-01-01\"}"),
        ("soon", "t", "{\"priority\": 5, \"deadline\": \"2030-01-01\"}"),
        ("not yet", "t", "{\"priority\": 9, \"not_before\": \"2090-01-01\"}"),
    ] {
        let submit = format!(
            "select pcfarm.submit('{name}', '{job_type}', 'select ''{name}'' || g as key, ''1''::jsonb as payload from generate_series(1, 12) g', 3, '{options}')"
        );
        let job = queue.number(&submit).await;
        if name != "not yet" {
            queue.number(&format!("select pcfarm.load({job}, 'select ''{name}+'' || g as key, ''1''::jsonb as payload from generate_series(1, 3) g', 2)")).await;
            let held = queue.take(JobId(job), false, 2).await.expect("some");
            queue.deliver(&held, &[(0, Err("no")), (2, Ok("1"))], false).await;
            queue.close(&held, Closing::Finished).await;
        }
    }
    queue.check().await;
    let shown = all(
        &queue.client,
        "select key from pcfarm.problems_ordered order by job_position, priority desc, lane_rank, lane_id, batch_order, problem_id",
    )
    .await;
    assert_eq!(shown.len(), 3 * (15 - 1));
    let mut dispatched = Vec::new();
    let client = queue.server().await;
    loop {
        let lanes = lanes::open_lanes(&client).await.expect("lanes");
        let Some(job) = lanes.first().map(|lane| lane.job_id) else { break };
        // As the dispatcher does: retries first if the job type says so, else last.
        let mut lanes: Vec<_> = lanes.into_iter().filter(|lane| lane.job_id == job).collect();
        lanes.sort_by_key(|lane| {
            (
                if lane.first {
                    0
                } else if lane.came_back {
                    2
                } else {
                    1
                },
                lane.lane_id,
            )
        });
        let held = take(&client, &lanes[0], 1, WorkstationId(1)).await.expect("handed out");
        dispatched.extend(held.keys().into_iter().map(str::to_owned));
    }
    assert_eq!(shown, dispatched);
    queue.check().await;
}

/// A login role with one grant and nothing else.
struct Login {
    name: String,
    client: Client,
}

async fn login(queue: &Queue, grant: &str) -> Login {
    let name = format!("{}_{grant}", queue.database.name);
    queue.run(&format!("create role {name} login password 'trial'; grant {grant} to {name}")).await;
    let mut config = queue.database.config();
    config.user(&name).password("trial");
    let (client, connection) = connect(&config).await.expect("logged in");
    // Its task lives as long as the test.
    std::mem::forget(connection);
    Login { name, client }
}

impl Login {
    async fn may(&self, text: &str) {
        self.client.batch_execute(text).await.unwrap_or_else(|error| panic!("{text}: {error:?}"));
    }

    async fn may_not(&self, text: &str) {
        let error = self.client.batch_execute(text).await.expect_err(text);
        let code = error.as_db_error().expect("an answer").code().code().to_owned();
        assert_eq!(code, "42501", "{text}: {error:?}");
    }

    async fn gone(self, queue: &Queue) {
        drop(self.client);
        // Roles outlive databases.
        queue.run(&format!("drop owned by {0} cascade; drop role {0}", self.name)).await;
    }
}

#[tokio::test]
async fn loaders_can_load_and_nothing_else() {
    let queue = queue().await;
    queue.run("create table public.secret (s text); insert into public.secret values ('x')").await;
    let loader = login(&queue, "pcfarm_loader").await;
    let job = queue.number("select pcfarm.create_job('theirs', 't')").await;
    let load =
        "'select g::text as key, to_jsonb(g) as payload, (g % 2)::text as group_key from generate_series(1, 4) g', 2";
    for text in [
        "select pcfarm.create_job('j', 't', '{\"idempotency_key\": \"k\"}')".to_owned(),
        format!("select pcfarm.load({job}, {load})"),
        "create temp table mine as select pcfarm.create_job('own', 't') as id".into(),
        "insert into pcfarm.problem (job_id, key, payload, batch_order) select id, 'a', '1', 7 from mine".into(),
        "insert into pcfarm.problem (job_id, key, payload) select id, g::text, '1' from mine, generate_series(1, 5) g".into(),
        "select pcfarm.assign_batch_order(id, 2, 'key') from mine".into(),
        "select pcfarm.open_job(id) from mine".into(),
        "select pcfarm.hold_job(id) from mine; select pcfarm.release_job(id) from mine".into(),
        "select pcfarm.rerun_job(id, 3, 'payload') from mine".into(),
        "select pcfarm.retry_job(id) from mine; select pcfarm.cancel_job(id) from mine".into(),
        format!("select pcfarm.submit('s', 't', {load}, '{{\"idempotency_key\": \"s\"}}')"),
        "table pcfarm.queue_pointer; table pcfarm.workstation_status; table pcfarm.jobs_ordered; table pcfarm.problems_ordered;
         table pcfarm.job_progress; table pcfarm.in_progress; table pcfarm.job_problems".into(),
    ] {
        loader.may(&text).await;
    }
    for text in [
        "table pcfarm.checkout",
        "table pcfarm.server",
        "table pcfarm.workstation",
        "table pcfarm.failed_attempt",
        "table pcfarm.held_problem",
        "update pcfarm.job set priority = 9",
        "insert into pcfarm.job (name, job_type, priority) values ('j', 't', 1)",
        "delete from pcfarm.job",
        "update pcfarm.problem set payload = '2'",
        "update pcfarm.problem set key = 'x'",
        "delete from pcfarm.problem",
        "truncate pcfarm.problem",
        "insert into pcfarm.lane (job_id, lane_id, kind, job_type, next_insertion) values (1, 99, 'load', 't', 1)",
        "insert into pcfarm.result (job_id, problem_id, checkout_id, attempts, failed) values (1, 1, 1, 1, false)",
        "update pcfarm.job_type set write_back = 'select 1'",
        "insert into pcfarm.requeued values (1, 1, 1, 1, 1, 1, 0, 0, false, false, '')",
        "select pcfarm.close_checkouts('{1}', 'lost', 'x')",
        "select pcfarm.accept('t', '{1}', '{1}', '{t}', '{0}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', false, null)",
        "select pcfarm.end_job_if_empty(1)",
        "select pcfarm.create_job_type('x', 'c')",
        "select pcfarm.set_related_read('t', 'r', 'select 1')",
        "select pcfarm.set_write_back('t', 'select 1')",
        "select pcfarm.write_back('t', '{1}', '{a}', '{1}')",
        "select pcfarm.lock_job(1)",
        "create table pcfarm.mine ()",
        "create function pcfarm.mine() returns int language sql as 'select 1'",
        "create function pcfarm_write_back.mine() returns int language sql as 'select 1'",
        "alter table pcfarm.problem disable trigger all",
        "table pcfarm_migration.applied",
        "table public.secret",
    ] {
        loader.may_not(text).await;
    }
    // The query's rights, and an expression's, are the caller's.
    for text in [
        format!("select pcfarm.load({job}, 'select s as key, ''1''::jsonb as payload from public.secret', 1)"),
        format!(
            "select pcfarm.load({job}, 'select checkout_id::text as key, ''1''::jsonb as payload from pcfarm.checkout', 1)"
        ),
        "create temp table free as select pcfarm.create_job('free', 't') as id;
         insert into pcfarm.problem (job_id, key, payload) select id, 'a', '1' from free;
         select pcfarm.assign_batch_order(id, 1, '(select s from public.secret)') from free"
            .into(),
        format!("select pcfarm.rerun_job({job}, 1, '(select s from public.secret)')"),
        "select pcfarm.submit('s', 't', 'select s as key, ''1''::jsonb as payload from public.secret', 1)".into(),
    ] {
        loader.may_not(&text).await;
    }
    // A search path of one's own changes nothing of what runs with the owner's rights.
    loader
        .may(
            "create function pg_temp.clock_timestamp() returns timestamptz language plpgsql as $$ begin raise 'hijacked as %', current_user; end $$;
             create function pg_temp.pg_notify(text, text) returns void language plpgsql as $$ begin raise 'hijacked as %', current_user; end $$;
             set search_path = pg_temp, public;
             select pcfarm.create_job('path', 't'); select pcfarm.hold_job(pcfarm.submit('p', 't', 'select ''a'' as key, ''1''::jsonb as payload', 1))",
        )
        .await;
    queue.check().await;

    let stranger = login(&queue, "pg_monitor").await;
    for text in ["table pcfarm.job", "select pcfarm.create_job('j', 't')", "select pcfarm.cancel_job(1)"] {
        stranger.may_not(text).await;
    }
    stranger.gone(&queue).await;
    loader.gone(&queue).await;
}

#[tokio::test]
async fn whatever_runs_with_the_owners_rights_pins_its_search_path_and_is_nobodys_by_default() {
    let queue = queue().await;
    let loose = all(
        &queue.client,
        "select p.oid::regprocedure::text from pg_proc p
         where p.pronamespace in ('pcfarm'::regnamespace, 'pcfarm_write_back'::regnamespace)
             and ((p.prosecdef and not coalesce(array_to_string(p.proconfig, ',') like '%search_path=pg_catalog, pg_temp%', false))
                 or has_function_privilege('public', p.oid, 'execute'))",
    )
    .await;
    assert!(loose.is_empty(), "{loose:?}");
}

#[tokio::test]
async fn large_loads_tell_the_planner_and_wait_for_nobody() {
    let queue = queue().await;
    let loader = login(&queue, "pcfarm_loader").await;
    let other = queue.database.client().await;
    other.batch_execute("set lock_timeout = '5s'").await.expect("set");
    let job = queue.number("select pcfarm.create_job('large', 't')").await;
    let load = |prefix: &str| {
        format!(
            "select pcfarm.load({job}, 'select ''{prefix}'' || g as key, ''1''::jsonb as payload,
                 (g % 3000)::text as group_key from generate_series(1, 10000) g', 7)"
        )
    };
    // Two in one transaction; somebody else's meanwhile finds the lock of ANALYZE taken, and does without.
    loader.may("begin").await;
    loader.may(&load("a")).await;
    loader.may(&load("b")).await;
    other.batch_execute(&load("c")).await.expect("loaded");
    loader.may("commit").await;
    assert_eq!(
        queue.number("select reltuples::bigint from pg_class where oid = 'pcfarm.problem'::regclass").await,
        20_000
    );
    assert_eq!(queue.number("select count(*) from pcfarm.problem").await, 30_000);
    // A thousand groups of four, each a convoy by itself but the last, and two thousand of three, by two.
    assert_eq!(queue.number("select count(*) from pcfarm.lane where grouped and next_insertion = 2000").await, 3);
    queue.check().await;
    loader.gone(&queue).await;
}

#[tokio::test]
async fn a_convoy_too_large_to_hand_out_is_refused() {
    let queue = queue().await;
    let rows = "from generate_series(1, 100002) g";
    let load = async |group: &str| {
        let job = queue.number("select pcfarm.create_job('j', 't')").await;
        let text = format!(
            "select pcfarm.load({job}, 'select g::text as key, ''1''::jsonb as payload, {group} as group_key {rows}', 10)"
        );
        (job, text)
    };
    let (job, text) = load("(g = 1)::text").await;
    let (code, message) = queue.refused(&text).await;
    assert_eq!((code.as_str(), message), ("54000", format!("job {job}: batch order 1 holds 100001 problems")));
    let (_, text) = load("(g % 2)::text").await;
    queue.run(&text).await;

    let job = queue.number("select pcfarm.create_job('own', 't')").await;
    queue
        .run(&format!(
            "insert into pcfarm.problem (job_id, key, payload, batch_order)
             select {job}, g::text, '1', case when g < 3 then g else 7 end {rows}"
        ))
        .await;
    queue.run(&format!("delete from pcfarm.problem where job_id = {job} and batch_order = 1")).await;
    queue
        .run(&format!("insert into pcfarm.problem (job_id, key, payload, batch_order) values ({job}, 'x', '1', 7)"))
        .await;
    let open = format!("select pcfarm.open_job({job})");
    let (code, message) = queue.refused(&open).await;
    assert_eq!((code.as_str(), message), ("54000", format!("job {job}: batch order 7 holds 100001 problems")));
    queue.run(&format!("update pcfarm.problem set batch_order = 8 where job_id = {job} and key = 'x'")).await;
    queue.run(&open).await;
    queue.check().await;
}
