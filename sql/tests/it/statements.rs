//! Every statement prepares, and the hot ones go by index however old the statistics are.

use crate::queue::{Queue, queue};
use pcfarm_proto::ids::{BatchOrder, JobId};
use pcfarm_sql::connect::connect;
use pcfarm_sql::lanes::{Portion, coming_problems};
use pcfarm_sql::pool::Kept;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tokio_postgres::{AsyncMessage, Client, Config};

fn texts(folder: &str) -> BTreeMap<String, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut texts = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_file() {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            texts.insert(name, fs::read_to_string(&path).expect("text"));
        }
    }
    texts
}

#[tokio::test]
async fn every_statement_prepares() {
    let queue = queue().await;
    let client = queue.server().await;
    let queries = texts("queries");
    assert!(queries.len() > 50);
    client.batch_execute("begin").await.expect("begun");
    client.batch_execute(&queries["stage_problems.sql"]).await.expect("staged");
    for (name, text) in &queries {
        client.prepare(text).await.unwrap_or_else(|error| panic!("{name}: {error:?}"));
    }
}

#[test]
fn every_statement_and_check_is_used() {
    let sources: String = texts("src").into_values().chain(texts("src/jobs").into_values()).collect();
    for folder in ["queries", "checks"] {
        for name in texts(folder).keys() {
            assert!(sources.contains(&format!("{folder}/{name}\"")), "nobody runs {name}");
        }
    }
}

#[tokio::test]
async fn invariants_hold_of_an_empty_farm_and_of_a_new_job() {
    let queue = queue().await;
    queue.check().await;
    queue.job(10, 3).await;
    queue.check().await;
}

/// 100,000 problems, 2,000 of them back on the queue, after an ANALYZE of ten.
async fn large() -> (Queue, i64) {
    let queue = queue().await;
    queue
        .run(
            "alter table pcfarm.problem set (autovacuum_enabled = off);
             alter table pcfarm.requeued set (autovacuum_enabled = off);
             alter table pcfarm.checkout set (autovacuum_enabled = off);
             alter table pcfarm.result set (autovacuum_enabled = off);
             alter table pcfarm.lane set (autovacuum_enabled = off);
             alter table pcfarm.job set (autovacuum_enabled = off)",
        )
        .await;
    let small = queue.job(10, 1).await;
    let first = queue.take(small, false, 1).await.expect("a checkout");
    queue.close(&first, pcfarm_sql::checkout::Closing::Lost).await;
    queue.run("analyze pcfarm.problem, pcfarm.requeued, pcfarm.checkout, pcfarm.result, pcfarm.lane, pcfarm.job").await;
    let job = queue.job(100_000, 10).await;
    queue
        .run(&format!(
            "insert into pcfarm.checkout (job_id, lane_id, from_order, to_order, job_type, problems, workstation_id, token)
             select {job}, l.lane_id, g * 10, g * 10 + 10, 't', 100, 1, 7
             from pcfarm.lane l, generate_series(0, 299) g where l.job_id = {job} and l.kind = 'load';
             select pcfarm.close_checkouts((select array_agg(c.checkout_id) from pcfarm.checkout c
                 where c.job_id = {job} and c.from_order < 200), 'lost', 'lost')"
        ))
        .await;
    assert_eq!(queue.number("select count(*) from pcfarm.requeued").await, 2_001);
    (queue, job.0)
}

async fn explained(client: &Client, text: &str, types: &str, values: &str) -> String {
    let statements = format!("deallocate all; prepare hot{types} as {text}");
    client.batch_execute(&statements).await.unwrap_or_else(|error| panic!("{text}: {error:?}"));
    let rows = client.query(&format!("explain execute hot{values}"), &[]).await.expect("explained");
    rows.iter().map(|row| row.get::<_, &str>(0).to_owned() + "\n").collect()
}

/// Of the tables with a row per problem, none is read from end to end.
fn reads_by_index(name: &str, plan: &str, indexes: &[&str]) {
    for table in ["problem", "requeued", "result"] {
        assert!(!plan.contains(&format!("Seq Scan on {table} ")), "{name} reads all of {table}:\n{plan}");
    }
    for index in indexes {
        assert!(plan.contains(index), "{name} does without {index}:\n{plan}");
    }
}

#[tokio::test]
async fn hot_statements_go_by_index_on_stale_statistics() {
    let (queue, job) = large().await;
    let load = queue.number(&format!("select lane_id from pcfarm.lane where job_id = {job} and kind = 'load'")).await;
    let retry = queue.number(&format!("select lane_id from pcfarm.lane where job_id = {job} and kind = 'retry'")).await;
    let ids = queue
        .text(&format!(
            "select array_agg(c.checkout_id)::text from (select checkout_id from pcfarm.checkout
        where job_id = {job} and ended_at is null order by 1 limit 8) c"
        ))
        .await;
    let out = "(bigint[], bigint[], text[], bigint[], bigint[], integer[], bigint[], bigint[], float8[])";
    let hot: &[(&str, &str, String, &[&str])] = &[
        ("coming_problems", "", format!("({job}, {load}, 3000, 1000, 1900)"), &["problem_in_dispatch_order"]),
        ("coming_large_problems", "", format!("({job}, {load}, 3000, 1000, 1000000)"), &["problem_in_dispatch_order"]),
        (
            "coming_requeued",
            "",
            format!("({job}, {retry}, 0, 1000, 1000000)"),
            &["requeued_pkey", "problem_in_dispatch_order"],
        ),
        (
            "check_out",
            out,
            format!(
                "('{{{job}}}', '{{{load}}}', '{{t}}', '{{3000}}', '{{3010}}', '{{100}}', '{{1}}', '{{7}}', '{{null}}')"
            ),
            &["checkout_after_checkout"],
        ),
        ("held_problems", "", format!("('{ids}')"), &["problem_in_dispatch_order", "requeued_pkey"]),
        ("open_lanes", "", String::new(), &["checkout_after_checkout", "requeued_pkey"]),
        ("end_jobs", "", format!("('{{{job}}}')"), &[]),
        ("checkout_facts", "", format!("('{ids}')"), &[]),
        ("revoked_checkouts", "", format!("('{ids}')"), &[]),
        ("live_checkouts_of", "", "('{1,2}')".into(), &["checkout_live"]),
        ("lost_checkouts", "", "(0, 20)".into(), &[]),
        ("exhaust_lanes", "", format!("('{{{job}}}')"), &["checkout_after_checkout"]),
        ("maybe_empty_jobs", "", format!("('{{{job}}}')"), &[]),
    ];
    let queries = texts("queries");
    for mode in ["force_generic_plan", "force_custom_plan"] {
        queue.run(&format!("set plan_cache_mode = {mode}")).await;
        for (name, types, values, indexes) in hot {
            let text = &queries[&format!("{name}.sql")];
            let plan = explained(&queue.client, text, types, values).await;
            if *name != "lost_checkouts" && *name != "maybe_empty_jobs" {
                reads_by_index(&format!("{name} ({mode})"), &plan, indexes);
            } else {
                assert!(!plan.contains("Seq Scan on problem"), "{plan}");
            }
        }
    }
}

/// Nor is all of a job read for a few of its problems, however much of it has come back.
#[tokio::test]
async fn what_came_back_is_read_one_by_one() {
    let queue = queue().await;
    let job = queue.job(20_000, 10).await;
    queue
        .run(&format!(
            "insert into pcfarm.checkout (job_id, lane_id, from_order, to_order, job_type, problems, workstation_id, token)
             select {job}, l.lane_id, g * 10, g * 10 + 10, 't', 100, 1, 7
             from pcfarm.lane l, generate_series(0, 199) g where l.job_id = {job} and l.kind = 'load';
             select pcfarm.close_checkouts((select array_agg(c.checkout_id) from pcfarm.checkout c), 'lost', 'lost');
             analyze pcfarm.problem, pcfarm.requeued"
        ))
        .await;
    assert_eq!(queue.number("select count(*) from pcfarm.requeued").await, 20_000);
    let pool = pcfarm_sql::pool::pool(queue.database.config(), 1, "statements-test");
    let client = pool.get().await.expect("connected");
    let lane = queue.lane(job, true).await.expect("a retry lane").lane_id;
    let text = &texts("queries")["coming_requeued.sql"];
    for mode in ["force_generic_plan", "force_custom_plan"] {
        client.batch_execute(&format!("set plan_cache_mode = {mode}")).await.expect("set");
        let plan = explained(&client, text, "", &format!("({job}, {lane}, 0, 17, 1000000)")).await;
        assert!(plan.contains("Nested Loop") && !plan.contains("Hash Join"), "{mode}:\n{plan}");
        reads_by_index(mode, &plan, &["problem_in_dispatch_order"]);
    }
}

/// How much is read of a lane says nothing about how to read it, and yet PostgreSQL would plan it anew each time.
#[tokio::test]
async fn what_is_read_ahead_is_planned_once() {
    let (queue, job) = large().await;
    let lane = queue.lane(JobId(job), false).await.expect("a lane");
    // Custom and generic ones.
    let plans = async |client: &Client| {
        let text = "select coalesce(sum(custom_plans), 0)::bigint, coalesce(sum(generic_plans), 0)::bigint
            from pg_prepared_statements where statement like '-- The coming problems of a load lane%'";
        let row = client.query_one(text, &[]).await.expect("counted");
        (row.get::<_, i64>(0), row.get::<_, i64>(1))
    };
    let mut lines = [(Kept::planning_once(queue.pool.clone()), (0, 10)), (Kept::new(queue.pool.clone()), (10, 0))];
    for (line, expected) in &mut lines {
        let client = line.client().await.expect("connected");
        let before = plans(client).await;
        for round in 0..10 {
            let from = BatchOrder(2_000 + 100 * round);
            let portion = Portion { from, problems: 1_000, large: 16, bytes: 1 << 20, only_small: true };
            let coming = coming_problems(client, &lane, portion).await.expect("read");
            assert_eq!((coming.problems.len(), coming.problems[0].batch_order), (1_000, from));
        }
        let after = plans(client).await;
        assert_eq!((after.0 - before.0, after.1 - before.1), *expected);
    }
}

/// The worst that can be planned for: nothing is there yet, and PostgreSQL knows it.
#[tokio::test]
async fn what_was_planned_on_an_empty_farm_goes_by_index() {
    let queue = queue().await;
    queue.run("vacuum (analyze) pcfarm.checkout, pcfarm.problem, pcfarm.requeued, pcfarm.result").await;
    let pool = pcfarm_sql::pool::pool(queue.database.config(), 1, "statements-test");
    let client = pool.get().await.expect("connected");
    client.batch_execute("set plan_cache_mode = force_generic_plan").await.expect("set");
    let out = "(bigint[], bigint[], text[], bigint[], bigint[], integer[], bigint[], bigint[], float8[])";
    let queries = texts("queries");
    for (name, types, values) in [
        ("check_out", out, "('{1}', '{1}', '{t}', '{0}', '{1}', '{1}', '{1}', '{7}', '{null}')"),
        ("coming_problems", "", "(1, 1, 0, 1000, 1900)"),
        ("coming_large_problems", "", "(1, 1, 0, 1000, 1000000)"),
        ("coming_requeued", "", "(1, 1, 0, 1000, 1000000)"),
        ("open_lanes", "", ""),
        ("next_jobs", "", "(9, 2500)"),
        ("exhaust_lanes", "", "('{1}')"),
        ("maybe_empty_jobs", "", "('{1}')"),
        ("checkout_facts", "", "('{1}')"),
        ("held_problems", "", "('{1}')"),
        ("revoked_checkouts", "", "('{1}')"),
        ("stored_results", "(bigint[], bigint[], bigint[])", "('{1}', '{7}', '{1}')"),
        ("live_checkouts_of", "", "('{1}')"),
        ("live_checkouts_of_all", "", "('{1}', 1)"),
        ("lost_checkouts", "", "(0, 20)"),
        ("accept_plainly", "", "(1, 7, 't', true, 1, '{1}', '{1}', 0)"),
        ("submit_plainly", "", "('n', 't', '{}', '{k}', '{1}', 1, null, null, 1, 't', 1, 7, null)"),
        ("submit_plainly_into", "", "(1, '{k}', '{1}', 1, true, null, null, 1, 't', 1, 7, null)"),
    ] {
        let plan = explained(&client, &queries[&format!("{name}.sql")], types, values).await;
        grows_with_nothing(name, &plan);
        for table in ["job", "job_after", "job_info", "job_file", "failed_attempt"] {
            assert!(!plan.contains(&format!("Seq Scan on {table} ")), "{name} reads all of {table}:\n{plan}");
        }
        let reads_all = name.starts_with("submit") && plan.contains("hashed SubPlan");
        assert!(!reads_all, "{name} reads all of something, to hash it:\n{plan}");
    }
    drop(client);
    let accept = "select pcfarm.accept('t', '{1}', '{7}', '{true}', '{1}', '{1}', '{1}', '{}', '{1}', '{}', '{}', '{}',
        '{}', '{}', '{}', '{}', '{}', '{}', false, null)";
    let config = queue.database.config();
    let options = format!("{} {}", config.get_options().unwrap_or_default(), pcfarm_sql::pool::BY_INDEX);
    let plans = plans_of(config.clone().options(options), accept).await;
    assert!(plans.contains("pcfarm.checkout c"), "{plans}");
    grows_with_nothing("accept", &plans);
}

/// Neither a table that grows is read from end to end, nor all that a lane has ever handed out.
fn grows_with_nothing(name: &str, plan: &str) {
    for table in ["checkout", "problem", "requeued", "result"] {
        for scan in ["Seq Scan", "Bitmap Heap Scan"] {
            assert!(!plan.contains(&format!("{scan} on {table} ")), "{name} reads all of {table}:\n{plan}");
        }
    }
    // An index of what is live holds all that has ended, too, while somebody's snapshot is open.
    let lines: Vec<&str> = plan.lines().collect();
    for (line, next) in lines.iter().zip(lines.iter().skip(1)) {
        let indexes = ["checkout_live ", "checkout_live_by_job ", "checkout_overdue "];
        let reads_all = indexes.iter().any(|index| line.contains(index)) && !next.contains("Index Cond: (");
        assert!(!reads_all, "{name} reads all of an index:\n{plan}");
    }
    joins_by_key(name, plan);
}

/// No index of a table that grows is read from end to end, as a merge join does.
fn joins_by_key(name: &str, plan: &str) {
    let lines: Vec<&str> = plan.lines().collect();
    for (line, next) in lines.iter().zip(lines.iter().skip(1)) {
        let grows =
            ["checkout", "problem", "requeued", "result"].iter().any(|table| line.contains(&format!(" on {table} ")));
        let reads_all = grows && line.contains("Scan using ") && !next.contains("Index Cond: (");
        assert!(!reads_all, "{name} reads all of an index:\n{plan}");
    }
}

/// A few thousand checkouts, as after an hour: to read them all looks cheap, and is not cheap a thousand times a second.
#[tokio::test]
async fn accepting_goes_by_key_among_some_thousand_checkouts() {
    let (queue, job) = large().await;
    queue
        .run(&format!(
            "insert into pcfarm.checkout (job_id, lane_id, from_order, to_order, job_type, problems, workstation_id, token,
                 ended_at, ending)
             select {job}, l.lane_id, g * 10, g * 10 + 10, 't', 100, 1, 7, clock_timestamp(), 'accepted'
             from pcfarm.lane l, generate_series(300, 2799) g where l.job_id = {job} and l.kind = 'load';
             analyze pcfarm.checkout"
        ))
        .await;
    let live = eight_live(&queue, job).await;
    let accept = format!(
        "select pcfarm.accept('t', array[c.checkout_id], array[7], '{{true}}', '{{1}}', '{{1}}', array[h.problem_id], '{{}}',
            array['1'], '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', false, null)
         from pcfarm.checkout c
         cross join lateral (select * from pcfarm.held_problem h where h.checkout_id = c.checkout_id limit 1) h
         where c.checkout_id = ({live})[1]"
    );
    let plans = inner_plans(&queue, &accept).await;
    assert!(plans.contains("Update on checkout"), "{plans}");
    joins_by_key("accept", &plans);
    let plain = &texts("queries")["accept_plainly.sql"];
    for mode in ["force_generic_plan", "force_custom_plan"] {
        queue.run(&format!("set plan_cache_mode = {mode}")).await;
        let plan = explained(&queue.client, plain, "", "(1, 7, 't', true, 1, '{1}', '{1}', 0)").await;
        assert!(plan.contains("Update on checkout"), "{plan}");
        grows_with_nothing("accept_plainly", &plan);
    }
}

/// What PostgreSQL did inside a function, as auto_explain tells it.
async fn inner_plans(queue: &Queue, statement: &str) -> String {
    plans_of(&queue.database.config(), statement).await
}

async fn plans_of(config: &Config, statement: &str) -> String {
    let (client, mut connection) = connect(config).await.expect("connected");
    let watch =
        "load 'auto_explain'; set auto_explain.log_min_duration = 0; set auto_explain.log_nested_statements = on;
        set auto_explain.log_analyze = on; set auto_explain.log_timing = off; set client_min_messages = log";
    client.batch_execute(watch).await.expect("PostgreSQL's contrib modules are installed");
    client.batch_execute(statement).await.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
    drop(client);
    let mut plans = String::new();
    while let Some(message) = connection.next().await {
        if let AsyncMessage::Notice(notice) = message {
            plans.push_str(notice.message());
            plans.push('\n');
        }
    }
    assert!(plans.contains("Query Text"), "auto_explain said nothing: {plans}");
    plans
}

/// The largest number of rows that a scan read in vain.
fn most_in_vain(plans: &str) -> i64 {
    let removed = plans.lines().filter_map(|line| line.trim().strip_prefix("Rows Removed by "));
    removed.filter_map(|rest| rest.rsplit(": ").next()?.trim().parse().ok()).max().unwrap_or(0)
}

/// Each minute every server looks for times of a wrong clock. Rows of ended work are many, and it reads none of them.
#[tokio::test]
async fn repairs_of_times_read_no_history() {
    let queue = queue().await;
    queue
        .run(
            "alter table pcfarm.submission set (autovacuum_enabled = off);
             alter table pcfarm.alert set (autovacuum_enabled = off);
             alter table pcfarm.schedule_load set (autovacuum_enabled = off);
             alter table pcfarm.file set (autovacuum_enabled = off);
             alter table pcfarm.checkout set (autovacuum_enabled = off);
             analyze pcfarm.submission, pcfarm.alert, pcfarm.schedule_load, pcfarm.file, pcfarm.checkout;
             insert into pcfarm.submission (asked, content_type, kept_in, state, bytes, sha256, stored_at, ended_at, job_id, problems)
             select '{}', 'x', 'database', 'queued', 1, sha256('1'), now(), now(), 1, 1 from generate_series(1, 3000);
             insert into pcfarm.alert (subscription_id, what, place, body, attempts, next_attempt_at, delivered_at)
             select 1, 'workstation_without_work', 'email', '{}', 1, null, now() from generate_series(1, 3000);
             insert into pcfarm.schedule_load (job_id, number, schedule_id, due_at, query, convoy, time_limit, problems, loaded_at)
             select g, 1, 1, now(), '', 1, '1 minute', 1, now() from generate_series(1, 3000) g;
             insert into pcfarm.file (sha256, bytes) select sha256(g::text::bytea), 1 from generate_series(1, 3000) g;
             insert into pcfarm.checkout (job_id, lane_id, from_order, to_order, job_type, problems, workstation_id, token, ended_at, ending)
             select 1, 1, g, g + 1, 't', 1, 1, 7, now(), 'accepted' from generate_series(1, 3000) g",
        )
        .await;
    let mut config = queue.database.config();
    let options = format!("{} {}", config.get_options().unwrap_or_default(), pcfarm_sql::pool::BY_INDEX);
    config.options(options);
    for part in ["submissions", "alerts", "loads", "files", "checkouts"] {
        let plans = plans_of(&config, &format!("select pcfarm.put_clock_right('{part}', 1000, false)")).await;
        assert!(plans.contains("put_clock_right") && plans.contains("Index"), "{part}: {plans}");
        assert!(most_in_vain(&plans) < 100, "{part} reads history:\n{plans}");
    }
}

/// The planner may expect a single row of a query that returns a million, and would compare each row with each group.
#[tokio::test]
async fn groups_are_hashed_where_one_row_is_expected() {
    let queue = queue().await;
    let unexpected = "create function public.unexpected() returns setof integer language plpgsql rows 1
                      as $$ begin return query select generate_series(1, 100); end $$";
    queue.run(unexpected).await;
    let job = queue.number("select pcfarm.create_job('j', 't')").await;
    let load = format!(
        "select pcfarm.load({job}, 'select n::text as key, ''1''::jsonb as payload, (n % 20)::text as group_key, n as weight
                                    from public.unexpected() n', 30)"
    );
    let plans = plans_of(&queue.database.config(), &load).await;
    let packing = plans.split("Query Text:").find(|plan| plan.contains("with given as")).expect("groups were packed");
    assert!(packing.contains("Hash Join") && packing.contains("HashAggregate"), "{packing}");
    assert!(!packing.contains("Nested Loop"), "{packing}");
    assert_eq!(queue.number("select sum(weight) from pcfarm.problem").await, 5050);
    queue.check().await;
}

async fn eight_live(queue: &Queue, job: i64) -> String {
    let query = format!(
        "select format('%L::bigint[]', array_agg(c.checkout_id order by c.checkout_id)) from (select checkout_id
         from pcfarm.checkout where job_id = {job} and ended_at is null order by 1 limit 8) c"
    );
    queue.text(&query).await
}

#[tokio::test]
async fn accepting_and_closing_go_by_index_on_stale_statistics() {
    let (queue, job) = large().await;
    let live = eight_live(&queue, job).await;
    queue
        .run(&format!(
            "create table public.delivery as
             select h.*, array_position({live}, h.checkout_id) as position
             from pcfarm.held_problem h where h.checkout_id = any ({live})"
        ))
        .await;
    let accept = format!(
        "select pcfarm.accept('t', {live}, array_fill(7, array[8]), array_fill(true, array[8]), array_fill(100, array[8]),
            array_agg(s.position::integer), array_agg(s.problem_id), array_agg(0), array_agg('1'::text),
            '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', CAREFUL, null)
         from public.delivery s"
    );
    // Careful: nothing of it is there already, which it finds out.
    for (careful, live, done) in [("false", "closing", 800), ("true", "closed", 800)] {
        let plans = inner_plans(&queue, &accept.replace("CAREFUL", careful)).await;
        reads_by_index(&format!("accept, {live}"), &plans, &[]);
        assert_eq!(queue.number(&format!("select done from pcfarm.job_progress where job_id = {job}")).await, done);
    }

    for how in ["finished", "lost"] {
        let live = eight_live(&queue, job).await;
        let close = format!("select pcfarm.close_checkouts({live}, '{how}', 'why')");
        let plans = inner_plans(&queue, &close).await;
        reads_by_index("close_checkouts", &plans, &["problem_in_dispatch_order"]);
        assert!(most_in_vain(&plans) < 2_000, "{how} reads {} rows in vain:\n{plans}", most_in_vain(&plans));
    }
    let live = eight_live(&queue, job).await;
    let give_back = format!(
        "select pcfarm.give_back(c.checkout_id, c.token, array(
             select h.problem_id from pcfarm.held_problem h where h.checkout_id = c.checkout_id order by 1 desc limit 20), 'why')
         from pcfarm.checkout c where c.checkout_id = ({live})[1]"
    );
    let plans = inner_plans(&queue, &give_back).await;
    reads_by_index("give_back", &plans, &["problem_in_dispatch_order"]);
    assert!(most_in_vain(&plans) < 2_000, "{} rows read in vain:\n{plans}", most_in_vain(&plans));
    // And of what had come back already.
    queue
        .run(&format!(
            "insert into pcfarm.checkout (job_id, lane_id, from_order, to_order, job_type, problems, workstation_id, token)
             select {job}, q.lane_id, 0, 1, 't', (select count(*) from pcfarm.requeued r where r.job_id = {job} and r.batch_order = 0), 1, 7
             from pcfarm.queue_pointer q where q.job_id = {job} and q.kind = 'retry';
             update pcfarm.checkout set ended_at = clock_timestamp(), ending = 'given_back'
             where job_id = {job} and ended_at is null and lane_id <> (select lane_id from pcfarm.lane where job_id = {job} and kind = 'retry')"
        ))
        .await;
    let live =
        format!("(select array_agg(checkout_id) from pcfarm.checkout where job_id = {job} and ended_at is null)");
    let plans = inner_plans(&queue, &format!("select pcfarm.close_checkouts({live}, 'lost', 'why')")).await;
    reads_by_index("close_checkouts", &plans, &["requeued_pkey"]);
    assert!(most_in_vain(&plans) < 2_000, "{} rows read in vain:\n{plans}", most_in_vain(&plans));
}

/// What a hand-out of `jobs` lanes reads, in pages.
async fn pages_of_a_hand_out(queue: &Queue, jobs: i64) -> i64 {
    let arrays = format!(
        "(select array_agg(l.job_id order by l.job_id) as jobs, array_agg(l.lane_id order by l.job_id) as lanes
          from (select * from pcfarm.lane order by job_id limit {jobs}) l)"
    );
    let row =
        queue.client.query_one(&format!("select jobs::text, lanes::text from {arrays} a"), &[]).await.expect("lanes");
    let (job_ids, lane_ids): (String, String) = (row.get(0), row.get(1));
    let all = |what: &str| format!("array_fill({what}, array[{jobs}])");
    let values = format!(
        "('{job_ids}', '{lane_ids}', {}, {}, {}, {}, {}, {}, {})",
        all("'t'::text"),
        all("0::bigint"),
        all("1::bigint"),
        all("1"),
        all("1::bigint"),
        all("7::bigint"),
        all("null::float8"),
    );
    let types = "(bigint[], bigint[], text[], bigint[], bigint[], integer[], bigint[], bigint[], float8[])";
    let text = &texts("queries")["check_out.sql"];
    queue.run(&format!("deallocate all; set plan_cache_mode = force_generic_plan; prepare hot{types} as {text}")).await;
    queue.run("begin").await;
    let explain = format!("explain (analyze, buffers) execute hot{values}");
    let rows = queue.client.query(&explain, &[]).await.expect("explained");
    queue.run("rollback").await;
    let lines: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert!(lines[0].contains(&format!("rows={jobs} ")), "not all were handed out: {}", lines.join("\n"));
    let pages = lines[1].split_once("shared hit=").expect("pages").1.split(' ').next().expect("a number");
    pages.parse().expect("a number")
}

/// With many jobs each hand-out is of another lane.
#[tokio::test]
async fn a_hand_out_of_many_lanes_costs_each_no_more() {
    let queue = queue().await;
    for _ in 0..48 {
        queue.job(1, 1).await;
    }
    pages_of_a_hand_out(&queue, 48).await; // what is read for the first time
    let (few, many) = (pages_of_a_hand_out(&queue, 6).await, pages_of_a_hand_out(&queue, 48).await);
    assert!(many <= 9 * few, "{few} pages for 6 lanes, {many} for 48");
}
