//! Related reads and write-back, with roles of their own, from a user's tables and back.

use pcfarm_bench::farm::Server;
use pcfarm_bench::farm::{Farm, LONG, SOON};
use pcfarm_bench::program::Program;
use serde_json::{Value, json};

/// A user's schema, a login role that reads it and a role that writes it. Roles are the whole cluster's: they carry
/// the database's name.
async fn market(farm: &Farm) -> (String, String) {
    let database: String = farm.query("select current_database()::text", &[]).await[0].get(0);
    let (reader, writer) = (format!("{database}_r"), format!("{database}_w"));
    farm.run(&format!(
        "alter database {database} set track_functions = 'all';
         create role {reader} login; create role {writer} nologin;
         create schema market;
         create table market.fare (key text, fare integer);
         insert into market.fare select 'problem ' || i, 10 * i + n
         from generate_series(1, 200) i, generate_series(1, 2) n;
         create table market.solved (key text primary key, digest text not null,
             constraint unlucky check (key <> 'problem 13'));
         create function market.fares(keys text[]) returns setof market.fare language plpgsql stable as $f$
         begin
             if 'bad' = any (keys) then
                 raise exception 'no fares for bad ones';
             elsif 'slow' = any (keys) then
                 perform pg_sleep(60);
             end if;
             return query select * from market.fare f where f.key = any (keys) order by f.fare;
         end $f$;
         grant usage on schema market to {reader}, {writer};
         grant select on market.fare to {reader};
         grant insert on market.solved to {writer};"
    ))
    .await;
    (reader, writer)
}

async fn running(farm: &Farm) -> (Server, Vec<Program>) {
    let server = farm.serving("a", &[]).await;
    let agents = ["one", "two"].map(|name| farm.working(name, &[&server])).into();
    (server, agents)
}

async fn forget_roles(farm: &Farm, roles: &[&str]) {
    for role in roles {
        farm.run(&format!("drop owned by {role} cascade; drop role {role}")).await;
    }
}

#[tokio::test]
async fn reads_run_once_per_checkout_and_fail_for_their_keys_alone() {
    let farm = Farm::new().await;
    let (reader, writer) = market(&farm).await;
    let options = json!({"max_attempts": 2, "read_role": reader, "read_time_limit": "1 second"});
    farm.job_type("related", "related", options).await;
    farm.run("select pcfarm.set_related_read('related', 'rows', 'select key, fare from market.fares($1)')").await;
    let (mut server, mut agents) = running(&farm).await;

    let good = farm.submit_sleeps("related", 200, 1, 20).await;
    assert_eq!(farm.ended(good, LONG).await, "done");
    let rows = farm.query("select key, result from pcfarm.job_problems where job_id = $1", &[&good]).await;
    for row in &rows {
        let (key, solution) = (row.get::<_, &str>(0), row.get::<_, pcfarm_sql::json::RawJson>(1));
        let solution: Value = serde_json::from_slice(&solution.0).expect("solutions are JSON");
        let i: i64 = key.trim_start_matches("problem ").parse().expect("keys are numbered");
        let expected = json!([{"key": key, "fare": 10 * i + 1}, {"key": key, "fare": 10 * i + 2}]);
        assert_eq!(solution["rows"], expected, "{key}");
    }
    let checkouts = farm.number(&format!("select count(*) from pcfarm.checkout where job_id = {good}")).await;
    let calls = "select coalesce(sum(calls), 0)::bigint from pg_stat_user_functions where funcname = 'fares'";
    // Statistics are written when a connection is idle or ends.
    agents.iter_mut().for_each(Program::kill);
    server.program.terminate();
    server.program.ended(SOON).await;
    farm.until(SOON, &format!("select ({calls}) >= {checkouts}")).await;
    assert_eq!(farm.number(calls).await, checkouts, "one query per read and checkout");

    server.start().await;
    agents.iter_mut().for_each(Program::start);
    let names = "select case i when 7 then 'bad' when 33 then 'slow' else 'problem ' || i end as key,
        jsonb_build_object('n', i) as payload from generate_series(1, 40) i";
    let mixed = farm.submit("related", names, 20).await;
    assert_eq!(farm.ended(mixed, LONG).await, "failed");
    let text = "select key, message from pcfarm.job_problems where job_id = $1 and state = 'failed' order by key";
    let rows = farm.query(text, &[&mixed]).await;
    let failed: Vec<(&str, &str)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let bad = format!("related read rows (as role {reader}): no fares for bad ones");
    let slow = format!("related read rows (as role {reader}): it took longer than its time limit of 1 s");
    assert_eq!(failed, [("bad", bad.as_str()), ("slow", slow.as_str())]);
    farm.check(&[]).await;
    drop((server, agents));
    forget_roles(&farm, &[&reader, &writer]).await;
}

#[tokio::test]
async fn what_takes_too_much_memory_fails_alone() {
    let farm = Farm::new().await;
    let (reader, writer) = market(&farm).await;
    let options = json!({"max_attempts": 1, "read_role": reader, "read_time_limit": "30 seconds"});
    farm.job_type("related", "digest", options).await;
    let read = "select key, repeat(''x'', case when key = ''row'' then 2200000 when key like ''problem%'' then 10 else 2000000 end) as text
        from unnest($1::text[]) key
        cross join generate_series(1, case when key = ''rows'' then 40 when key like ''some%'' then 12 else 1 end)";
    farm.run(&format!("select pcfarm.set_related_read('related', 'rows', '{read}')")).await;
    let (server, agents) = running(&farm).await;
    let names = "select case i when 2 then 'row' when 3 then 'rows' else 'problem ' || i end as key,
        jsonb_build_object('n', i) as payload from generate_series(1, 4) i";
    let job = farm.submit("related", names, 4).await;
    assert_eq!(farm.ended(job, LONG).await, "failed");
    // Each of these would fit by itself, and they do not fit together.
    let names = "select 'some ' || i as key, jsonb_build_object('n', i) as payload from generate_series(1, 4) i";
    let together = farm.submit("related", names, 4).await;
    assert_eq!(farm.ended(together, LONG).await, "done");
    let text = "select key, message from pcfarm.job_problems where job_id = $1 and state = 'failed' order by key";
    let rows = farm.query(text, &[&job]).await;
    let failed: Vec<(&str, &str)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(failed.iter().map(|(key, _)| *key).collect::<Vec<_>>(), ["row", "rows"]);
    assert!(failed[0].1.contains("it returned a row of 2200"), "{failed:?}");
    assert!(failed[1].1.contains("the rows of a problem have more than 64 MiB"), "{failed:?}");
    farm.check(&[]).await;
    drop((server, agents));
    forget_roles(&farm, &[&reader, &writer]).await;
}

#[tokio::test]
async fn write_back_commits_with_its_results_and_fails_for_its_problem_alone() {
    let farm = Farm::new().await;
    let (reader, writer) = market(&farm).await;
    farm.job_type("digest", "digest", json!({"max_attempts": 2, "write_role": writer})).await;
    let statement = "insert into market.solved (key, digest)
        select u.key, u.solution ->> 'digest' from unnest($1, $2) as u(key, solution)";
    farm.query("select pcfarm.set_write_back('digest', $1)", &[&statement]).await;
    let (server, agents) = running(&farm).await;
    let job = farm.submit_sleeps("digest", 200, 1, 20).await;
    assert_eq!(farm.ended(job, LONG).await, "failed");
    let text = "select key, attempts, message from pcfarm.job_problems where job_id = $1 and state = 'failed'";
    let rows = farm.query(text, &[&job]).await;
    let failed: Vec<(&str, i32)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(failed, [("problem 13", 2)]);
    let message: &str = rows[0].get(2);
    assert!(message.starts_with("write-back: ") && message.contains("unlucky"), "{message}");
    let differ = format!(
        "select count(*) from market.solved s
         full join (select p.key, r.solution ->> 'digest' as digest from pcfarm.problem p
             join pcfarm.result r on r.job_id = p.job_id and r.problem_id = p.problem_id and not r.failed
             where p.job_id = {job}) r on r.key = s.key and r.digest = s.digest
         where s.key is null or r.key is null"
    );
    assert_eq!(farm.number(&differ).await, 0, "what was written back is what was accepted");
    assert_eq!(farm.number("select count(*) from market.solved").await, 199);
    farm.check(&[job]).await;
    drop((server, agents));
    farm.run("select pcfarm.set_write_back('digest', null)").await;
    forget_roles(&farm, &[&reader, &writer]).await;
}

/// While its related rows are read nobody has told its agent of it, and who solved it would be busy for a minute.
#[tokio::test]
async fn what_is_cancelled_on_its_way_is_not_sent() {
    let farm = Farm::new().await;
    let (reader, writer) = market(&farm).await;
    farm.job_type("slow", "digest", json!({"read_role": reader})).await;
    farm.job_type("quick", "digest", json!({})).await;
    farm.run("select pcfarm.set_related_read('slow', 'rows', 'select key, 1 as one from pg_sleep(4), unnest($1::text[]) key')")
        .await;
    let server = farm.serving("a", &[]).await;
    let agent = farm.working("one", &[&server]);
    let job = farm.submit_sleeps("slow", 40, 60_000, 20).await;
    let reads = format!("exists (select from pg_stat_activity where usename = '{reader}' and state = 'active')");
    farm.until(SOON, &format!("select {reads}")).await;
    farm.query("select pcfarm.cancel_job($1)", &[&job]).await;
    farm.until(SOON, &format!("select not {reads}")).await;
    let other = farm.submit_sleeps("quick", 4, 1, 4).await;
    assert_eq!(farm.ended(other, SOON).await, "done");
    farm.check(&[]).await;
    drop((server, agent));
    forget_roles(&farm, &[&reader, &writer]).await;
}

/// Its text is not too large, so that the agent has no objection.
#[tokio::test]
async fn a_solution_that_is_too_large_as_it_is_stored_fails_alone() {
    let farm = Farm::new().await;
    let (reader, writer) = market(&farm).await;
    farm.job_type("related", "related", json!({"max_attempts": 1, "read_role": reader})).await;
    let read = "select key, case when key = ''problem 7'' then ones end as ones
        from unnest($1::text[]) key, (select jsonb_agg(1) as ones from generate_series(1, 150000)) many";
    farm.run(&format!("select pcfarm.set_related_read('related', 'rows', '{read}')")).await;
    let (server, agents) = running(&farm).await;
    let job = farm.submit_sleeps("related", 20, 1, 20).await;
    assert_eq!(farm.ended(job, LONG).await, "failed");
    let failed = farm
        .query("select key, message from pcfarm.job_problems where job_id = $1 and state = 'failed'", &[&job])
        .await;
    let failed: Vec<(&str, &str)> = failed.iter().map(|row| (row.get(0), row.get(1))).collect();
    let words = "the solution cannot be stored: it takes more than 1 MiB in the database, where numbers take more room \
                 than their text";
    assert_eq!(failed, [("problem 7", words)]);
    farm.check(&[]).await;
    drop((server, agents));
    forget_roles(&farm, &[&reader, &writer]).await;
}
