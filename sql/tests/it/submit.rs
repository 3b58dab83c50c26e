//! Loading: all or nothing, once per idempotency key, packed as pcfarm.load packs.

use deadpool_postgres::{ClientWrapper, Object, Pool};
use pcfarm_proto::ids::{BatchOrder, JobId, ServerId};
use pcfarm_sql::access::Rights;
use pcfarm_sql::connect::connect;
use pcfarm_sql::json::RawJson;
use pcfarm_sql::lanes::{Portion, coming_problems, open_lanes};
use pcfarm_sql::submit::{
    Begun, By, LoadError, Loading, NewProblem, Small, Submission, Submitted, Target, at_once, by_query, work_of,
};
use pcfarm_sql::testing::{TestDatabase, database};
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client};

async fn farm() -> (TestDatabase, Client, Pool) {
    let database = database().await;
    let client = database.client().await;
    client.batch_execute("select pcfarm.create_job_type('t', 'c')").await.expect("a job type");
    let pool = pcfarm_sql::pool::pool(database.config(), 4, "submit-test");
    (database, client, pool)
}

fn new_job(options: &str) -> Target {
    Target::New { name: "n".into(), job_type: "t".into(), options: options.into() }
}

fn problem(key: &str, group: Option<&str>) -> NewProblem {
    NewProblem {
        key: key.into(),
        payload: RawJson(format!("{{\"k\": \"{key}\"}}").into()),
        group_key: group.map(str::to_owned),
        details: None,
    }
}

async fn begin(pool: &Pool, target: &Target, convoy: u32) -> Begun {
    let client = Object::take(pool.get().await.expect("connected"));
    Loading::begin(client, &None, target, Some(convoy)).await.expect("begun")
}

async fn loading(pool: &Pool, target: &Target, convoy: u32) -> Box<Loading> {
    match begin(pool, target, convoy).await {
        Begun::Loading(loading) => loading,
        Begun::Repeated(job) => panic!("repeated as {job}"),
    }
}

async fn convoys(client: &Client, job: JobId) -> Vec<(i64, i64, String)> {
    let query = "select p.batch_order, p.problem_id - p.lane_id * 10000000000, p.key from pcfarm.problem p \
                 join pcfarm.lane l using (job_id, lane_id) where p.job_id = $1 order by p.lane_id, 1, 2";
    let rows = client.query(query, &[&job]).await.expect("asked");
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
}

async fn count(client: &Client, query: &str) -> i64 {
    client.query_one(query, &[]).await.expect("asked").get(0)
}

#[tokio::test]
async fn problems_are_loaded_in_convoys_and_seen_only_when_all_are_there() {
    let (_database, client, pool) = farm().await;
    let mut load = loading(&pool, &new_job("{}"), 3).await;
    // More than one COPY.
    for piece in 0..12 {
        load.add((0..1_000).map(|n| problem(&(piece * 1_000 + n).to_string(), None)).collect()).await.expect("added");
    }
    assert_eq!(load.problems(), 12_000);
    assert_eq!(count(&client, "select count(*) from pcfarm.job").await, 0);
    let done = load.finish(true).await.expect("loaded");
    assert_eq!((done.problems, done.repeated), (12_000, false));
    let loaded = convoys(&client, done.job).await;
    assert_eq!(loaded.len(), 12_000);
    for (n, (order, number, key)) in (0_i64..).zip(&loaded) {
        assert_eq!((*order, *number, key.as_str()), (n / 3, n + 1, n.to_string().as_str()));
    }
    let lane = "select next_insertion, problems, grouped from pcfarm.lane where kind = 'load'";
    let lane = client.query_one(lane, &[]).await.expect("a lane");
    assert_eq!((lane.get::<_, i64>(0), lane.get::<_, i64>(1), lane.get::<_, bool>(2)), (4_000, 12_000, false));

    let mut more = loading(&pool, &Target::Job(done.job), 100).await;
    more.add(vec![problem("last", None)]).await.expect("added");
    assert_eq!(more.finish(false).await.expect("loaded").job, done.job);
    assert_eq!(convoys(&client, done.job).await.len(), 12_001);
}

#[tokio::test]
async fn groups_are_packed_as_the_sql_load_packs_them() {
    let (_database, client, pool) = farm().await;
    let rows =
        [("a", "x"), ("b", "y"), ("c", ""), ("d", "x"), ("e", "z"), ("f", "z"), ("g", "z"), ("h", "y"), ("i", "")];
    let mut load = loading(&pool, &new_job("{}"), 2).await;
    let problems = rows.map(|(key, group)| problem(key, (!group.is_empty()).then_some(group)));
    let (first, second) = problems.split_at(4);
    load.add(first.to_vec()).await.expect("added");
    load.add(second.to_vec()).await.expect("added");
    let ours = load.finish(false).await.expect("loaded").job;
    let values: Vec<String> = rows.iter().map(|(key, group)| format!("('{key}', nullif('{group}', ''))")).collect();
    let query = format!(
        "select v.key, to_jsonb(v) as payload, v.g as group_key from (values {}) as v(key, g)",
        values.join(", ")
    );
    let submission = Submission { target: new_job("{}"), query, convoy: Some(2), open: false };
    let theirs = by_query(&client, &submission).await.expect("loaded").job;
    assert_eq!(convoys(&client, ours).await, convoys(&client, theirs).await);
    assert_eq!(convoys(&client, ours).await.len(), rows.len());
    assert_eq!(count(&client, "select count(*) from pcfarm.lane where grouped").await, 2);
}

#[tokio::test]
async fn a_group_key_may_come_late() {
    let (_database, client, pool) = farm().await;
    let mut load = loading(&pool, &new_job("{}"), 2).await;
    load.add(vec![problem("a", None)]).await.expect("added");
    load.add(vec![problem("b", None), problem("c", Some("g")), problem("d", None), problem("e", Some("g"))])
        .await
        .expect("added");
    let job = load.finish(true).await.expect("loaded").job;
    let keys: Vec<(i64, String)> =
        convoys(&client, job).await.into_iter().map(|(order, _, key)| (order, key)).collect();
    let expected = [(0, "a"), (0, "b"), (0, "c"), (0, "e"), (1, "d")];
    assert_eq!(keys, expected.map(|(order, key)| (order, key.to_owned())), "plain ones in their lane, then the others");
}

#[tokio::test]
async fn what_the_database_refuses_is_named() {
    let (_database, client, pool) = farm().await;
    for group in [None, Some("g")] {
        let mut load = loading(&pool, &new_job("{}"), 2).await;
        let mut problems: Vec<NewProblem> = (0..6_000).map(|n| problem(&n.to_string(), group)).collect();
        problems[5_500].payload = RawJson("{\"half\": ".into());
        let outcome = match load.add(problems).await {
            Ok(()) => load.finish(true).await.map(drop),
            Err(error) => Err(error),
        };
        let error = outcome.expect_err("not JSON");
        assert!(matches!(&error, LoadError::Refused { number: 5_501, key, .. } if key == "5500"), "{error:?}");
        assert_eq!(count(&client, "select count(*) from pcfarm.job").await, 0);
    }
    let mut load = loading(&pool, &new_job("{}"), 2).await;
    // Small numbers take more room in the database than as text.
    let numbers = vec!["1"; 200_000].join(",");
    load.add(vec![NewProblem { payload: RawJson(format!("[{numbers}]").into()), ..problem("k", None) }])
        .await
        .expect("buffered");
    match load.finish(false).await {
        Err(LoadError::Refused { number: 1, source, .. }) => {
            assert_eq!(source.code(), Some(&SqlState::CHECK_VIOLATION))
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_dropped_load_leaves_nothing_and_its_connection_is_closed() {
    let (_database, client, pool) = farm().await;
    let mut load = loading(&pool, &new_job("{}"), 2).await;
    load.add((0..6_000).map(|n| problem(&n.to_string(), None)).collect()).await.expect("added");
    assert_eq!(pool.status().size, 0, "the connection is out of the pool");
    drop(load);
    let open = "select count(*) from pg_stat_activity where application_name = 'submit-test' \
                and datname = current_database()";
    for _ in 0..200 {
        if count(&client, open).await == 0 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(25)).await; // a connection's end has no signal
    }
    assert_eq!(count(&client, open).await, 0);
    assert_eq!(count(&client, "select count(*) from pcfarm.job").await, 0);
}

#[tokio::test]
async fn an_idempotency_key_loads_once() {
    let (_database, client, pool) = farm().await;
    let target = new_job(r#"{"idempotency_key": "k"}"#);
    let mut first = loading(&pool, &target, 2).await;
    first.add(vec![problem("a", None)]).await.expect("added");
    // The second waits for the first to end.
    let (second, first) = tokio::join!(begin(&pool, &target, 2), async {
        let waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' \
                       and application_name = 'submit-test' and datname = current_database()";
        while count(&client, waiting).await == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        first.finish(false).await.expect("loaded")
    });
    assert!(matches!(second, Begun::Repeated(job) if job == first.job));
    let submission = Submission { target, query: "select 1".into(), convoy: None, open: true };
    let again = by_query(&client, &submission).await.expect("repeated");
    assert_eq!(again, Submitted { job: first.job, problems: 0, repeated: true });
    assert_eq!(convoys(&client, first.job).await.len(), 1);

    let other =
        Target::New { name: "other".into(), job_type: "t".into(), options: r#"{"idempotency_key": "k"}"#.into() };
    let client = Object::take(pool.get().await.expect("connected"));
    match Loading::begin(client, &None, &other, None).await {
        Err(LoadError::Database(error)) => assert_eq!(error.code(), Some(&SqlState::UNIQUE_VIOLATION)),
        _ => panic!("another job under the same key"),
    }
}

#[tokio::test]
async fn of_two_loads_into_a_job_created_empty_under_a_key_one_loads() {
    let (_database, client, pool) = farm().await;
    let target = new_job(r#"{"idempotency_key": "k"}"#);
    let empty = loading(&pool, &target, 2).await.finish(false).await.expect("created");
    assert_eq!(empty.problems, 0);
    let one = async || match begin(&pool, &target, 2).await {
        Begun::Repeated(_) => true,
        Begun::Loading(mut load) => {
            load.add(vec![problem("a", None)]).await.expect("added");
            load.finish(false).await.expect("loaded");
            false
        }
    };
    let (a, b, c) = tokio::join!(one(), one(), one());
    assert_eq!([a, b, c].iter().filter(|repeated| !**repeated).count(), 1);
    assert_eq!(convoys(&client, empty.job).await.len(), 1);
}

#[tokio::test]
async fn jobs_that_have_ended_or_are_not_there_are_refused_first() {
    let (_database, client, pool) = farm().await;
    let job: i64 = client.query_one("select pcfarm.create_job('n', 't')", &[]).await.expect("created").get(0);
    client.execute("select pcfarm.cancel_job($1)", &[&job]).await.expect("cancelled");
    let cases = [(job, SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE), (77, SqlState::NO_DATA_FOUND)];
    for (job, expected) in cases {
        let connection = Object::take(pool.get().await.expect("connected"));
        match Loading::begin(connection, &None, &Target::Job(JobId(job)), None).await {
            Err(LoadError::Database(error)) => assert_eq!(error.code(), Some(&expected)),
            _ => panic!("job {job} was not refused"),
        }
        let submission =
            Submission { target: Target::Job(JobId(job)), query: "select 1".into(), convoy: None, open: false };
        let error = by_query(&client, &submission).await.expect_err("refused");
        assert_eq!(error.code(), Some(&expected));
    }
    let connection = Object::take(pool.get().await.expect("connected"));
    assert!(matches!(
        Loading::begin(connection, &None, &new_job("{}"), Some(100_001)).await,
        Err(LoadError::Convoy(100_001))
    ));
    // The caller's connection is out of its transaction again.
    client.batch_execute("create table later ()").await.expect("usable");
}

const SERVER: ServerId = ServerId(1);

fn small<'a>(target: &'a Target, convoy: Option<u32>, open: bool, problems: &'a [NewProblem]) -> Small<'a> {
    Small { by: &None, target, convoy, open, problems, taker: None }
}

#[tokio::test]
async fn a_few_are_loaded_at_once_and_what_cannot_be_is_left_to_a_load() {
    let (_database, client, pool) = farm().await;
    let line = pool.get().await.expect("connected");
    let keyed = new_job(r#"{"idempotency_key": "k"}"#);
    let few: Vec<NewProblem> = (0..7).map(|n| problem(&n.to_string(), None)).collect();
    let (done, fresh) =
        at_once(&line, SERVER, &small(&keyed, Some(3), true, &few)).await.expect("asked").expect("loaded");
    assert_eq!((done.problems, done.repeated), (7, false));
    // A server that hands it out without looking sees what it would have seen.
    let fresh = fresh.expect("open, so to be handed out");
    let [seen] = &open_lanes(&line).await.expect("looked")[..] else { panic!("one lane is open") };
    assert_eq!(format!("{:?}", fresh.lane), format!("{seen:?}"));
    let portion = Portion { from: BatchOrder(0), problems: 100, large: 100, bytes: 1 << 20, only_small: true };
    let coming = coming_problems(&line, seen, portion).await.expect("read");
    assert!(coming.to_the_end);
    assert_eq!(format!("{:?}", fresh.problems), format!("{:?}", coming.problems));
    let mut load = loading(&pool, &new_job("{}"), 3).await;
    load.add(few.clone()).await.expect("added");
    let theirs = load.finish(true).await.expect("loaded").job;
    assert_eq!(convoys(&client, done.job).await, convoys(&client, theirs).await);
    // One that nobody can have created before is open from the start: nobody can tell.
    let (unkeyed, fresh) =
        at_once(&line, SERVER, &small(&new_job("{}"), Some(3), true, &few)).await.expect("asked").expect("loaded");
    assert!(fresh.is_some(), "it is open");
    assert_eq!(convoys(&client, unkeyed.job).await, convoys(&client, theirs).await);
    assert_eq!(life(&client, unkeyed.job).await, life(&client, theirs).await);
    let (again, fresh) =
        at_once(&line, SERVER, &small(&keyed, Some(3), true, &few)).await.expect("asked").expect("repeated");
    assert_eq!(again, Submitted { job: done.job, problems: 0, repeated: true });
    assert!(fresh.is_none());
    let (more, fresh) = at_once(&line, SERVER, &small(&Target::Job(done.job), None, false, &few))
        .await
        .expect("asked")
        .expect("loaded");
    assert_eq!((more.job, convoys(&client, more.job).await.len()), (done.job, 14));
    assert!(fresh.is_some(), "its job is open");
    let (_, fresh) =
        at_once(&line, SERVER, &small(&new_job("{}"), None, false, &few)).await.expect("asked").expect("loaded");
    assert!(fresh.is_none(), "its job is loading");

    let before = count(&client, "select count(*) from pcfarm.job").await;
    let broken = [NewProblem { payload: RawJson("{".into()), ..problem("b", None) }];
    assert!(at_once(&line, SERVER, &small(&new_job("{}"), None, true, &broken)).await.expect("left").is_none());
    // Somebody who is slow has the key.
    let slow = loading(&pool, &new_job(r#"{"idempotency_key": "slow"}"#), 3).await;
    let taken = new_job(r#"{"idempotency_key": "slow"}"#);
    assert!(at_once(&line, SERVER, &small(&taken, None, true, &few)).await.expect("left").is_none());
    drop(slow);
    assert_eq!(count(&client, "select count(*) from pcfarm.job").await, before);
    match at_once(&line, SERVER, &small(&Target::Job(JobId(77)), None, true, &few)).await {
        Err(LoadError::Database(error)) => assert_eq!(error.code(), Some(&SqlState::NO_DATA_FOUND)),
        other => panic!("{other:?}"),
    }
}

/// Whoever has submitted something small to a server need not wait for that to be told of it; others have no other way.
#[tokio::test]
async fn of_a_small_submission_only_other_servers_are_told() {
    let (database, client, pool) = farm().await;
    let (listener, mut messages) = connect(&database.config()).await.expect("connected");
    listener.batch_execute("listen pcfarm").await.expect("listening");
    let starts = "insert into pcfarm.server (name, address, version) values ('s', 'a', 'v')";
    let line = pool.get().await.expect("connected");
    let mut submit = async |target: &Target, server: ServerId| -> String {
        let few = [problem("a", None)];
        at_once(&line, server, &small(target, None, true, &few)).await.expect("asked").expect("loaded");
        client.batch_execute("notify pcfarm, 'nothing more'").await.expect("told");
        let mut told = Vec::new();
        loop {
            match messages.next().await {
                Some(AsyncMessage::Notification(said)) if said.payload() == "nothing more" => return told.join(", "),
                Some(AsyncMessage::Notification(said)) => told.push(said.payload().to_owned()),
                Some(_) => {}
                None => panic!("the connection ended"),
            }
        }
    };
    let keyed = |n: i32| new_job(&format!("{{\"idempotency_key\": \"{n}\"}}"));
    let empty: i64 = client.query_one("select pcfarm.create_job('n', 't')", &[]).await.expect("created").get(0);
    client.batch_execute(starts).await.expect("a server");
    for target in [new_job("{}"), keyed(1), Target::Job(JobId(empty)), Target::Job(JobId(empty))] {
        assert_eq!(submit(&target, SERVER).await, "", "nobody else runs");
    }
    client.batch_execute(starts).await.expect("another server");
    for target in [new_job("{}"), keyed(2), Target::Job(JobId(empty))] {
        assert_eq!(submit(&target, SERVER).await, work_of(SERVER));
    }
    for ends in
        ["stopped_at = clock_timestamp()", "stopped_at = null, heard_at = clock_timestamp() - interval '1 hour'"]
    {
        client.batch_execute(&format!("update pcfarm.server set {ends} where server_id <> 1")).await.expect("it ended");
        assert_eq!(submit(&new_job("{}"), SERVER).await, "", "nobody else runs any more: {ends}");
    }
}

/// What is said of a job, but for when and which: its state and what happened to it.
async fn life(client: &Client, job: JobId) -> String {
    let text = "select concat_ws('; ', j.state, j.opened_at between j.created_at and clock_timestamp(), (
            select string_agg(concat_ws(' ', e.what, e.subject, e.details), ', ' order by e.event_id)
            from pcfarm.event e where e.job_id = j.job_id))
        from pcfarm.job j where j.job_id = $1";
    client.query_one(text, &[&job]).await.expect("a job").get(0)
}

/// All that a submission leaves behind, without numbers and times.
async fn traces_of(client: &Client, job: JobId) -> String {
    let text = "select concat_ws(E'\\n', (
            select to_jsonb(j) - 'job_id' - 'created_at' - 'opened_at' - 'deadline' - 'idempotency_key'
                || jsonb_build_object('deadline', case when j.deadline > '2900-01-01' then j.deadline::text
                    else date_trunc('second', j.deadline - j.created_at)::text end, 'opened', j.opened_at between j.created_at and clock_timestamp(),
                    'key', j.idempotency_key is not null)
            from pcfarm.job j where j.job_id = $1), (
            select string_agg((to_jsonb(l) - 'job_id' - 'lane_id' - 'loaded_at')::text, ', ' order by l.lane_id)
            from pcfarm.lane l where l.job_id = $1), (
            select string_agg((to_jsonb(p) - 'job_id' - 'lane_id' - 'problem_id')::text, ', ' order by p.problem_id)
            from pcfarm.problem p where p.job_id = $1), (
            select string_agg(concat_ws(' ', e.what, e.who, e.subject, e.details - 'deadline'), ', ' order by e.event_id)
            from pcfarm.event e where e.job_id = $1))";
    client.query_one(text, &[&job]).await.expect("a job").get(0)
}

/// How often a line has run the function, and how often a plain statement.
async fn ways(line: &ClientWrapper) -> (i64, i64) {
    let text = "select coalesce(sum(generic_plans + custom_plans) filter (where statement like '%pcfarm.submit_problems($1%'), 0)::bigint,
            coalesce(sum(generic_plans + custom_plans) filter (where statement like '%job as %plan as %'
                or statement like '%plan as %job as %'), 0)::bigint
        from pg_prepared_statements where statement not like '%pg_prepared_statements%'";
    let row = line.query_one(text, &[]).await.expect("asked");
    (row.get(0), row.get(1))
}

/// Whichever of the two ways a submission goes, nobody can tell afterwards.
#[tokio::test]
async fn a_plain_submission_leaves_what_any_other_leaves() {
    let (_database, client, pool) = farm().await;
    let line = pool.get().await.expect("connected");
    let run = async |text: &str| client.batch_execute(text).await.unwrap_or_else(|error| panic!("{text}: {error:?}"));
    run("update pcfarm.job_type set default_priority = 3, default_duration = '1 day';
         insert into pcfarm.farm_user (name) values (session_user), ('ann'), ('bob')")
    .await;
    // A limit that nobody meets is not plain.
    let limit = async |limited: bool| {
        run(&format!("update pcfarm.farm set queue_limit = {}", if limited { "1000000" } else { "null" })).await;
    };
    let few: Vec<NewProblem> = (0..7).map(|n| problem(&n.to_string(), None)).collect();
    let place = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let options = [
        "{}".to_owned(),
        r#"{"title": "Night", "priority": 7, "deadline": "2999-01-01T00:00:00Z", "parameters": {"a": [1]}}"#.to_owned(),
        r#"{"standing": true, "title": null, "parameters": null}"#.to_owned(),
        format!(r#"{{"idempotency_key": "KEY", "idempotency_digest": "d", "trace_parent": "{place}"}}"#),
    ];
    let users: [By; 3] = [None, Some(("ann".to_owned(), Rights::Own)), Some(("bob".to_owned(), Rights::All))];
    let (mut plain, mut not_plain) = (0, 0);
    for (options, by) in options.iter().flat_map(|options| users.iter().map(move |by| (options, by))) {
        let mut jobs = Vec::new();
        for way in ["plainly", "otherwise"] {
            limit(way == "otherwise").await;
            let target = new_job(&options.replace("KEY", way));
            let small = Small { by, ..small(&target, Some(3), true, &few) };
            let (done, fresh) = at_once(&line, SERVER, &small).await.expect("asked").expect("loaded");
            assert!(fresh.is_some(), "it is open");
            // Into it, by its owner and by somebody else.
            let into = Target::Job(done.job);
            let small = Small { target: &into, convoy: Some(2), open: false, ..small };
            let (more, fresh) = at_once(&line, SERVER, &small).await.expect("asked").expect("loaded");
            assert_eq!((more.job, more.problems, fresh.is_some()), (done.job, 7, true));
            let others = Some(("cat".to_owned(), Rights::Own));
            let outcome = at_once(&line, SERVER, &Small { by: &others, ..small }).await;
            assert!(outcome.is_err(), "it is not theirs");
            jobs.push(traces_of(&client, done.job).await.replace("otherwise", "plainly"));
            match way {
                "plainly" => plain += 2,
                // Each is asked of the plain statement first.
                _ => (plain, not_plain) = (plain + 2, not_plain + 2),
            }
            (plain, not_plain) = (plain + 1, not_plain + 1);
            assert_eq!(ways(&line).await, (not_plain, plain), "{way} {options}");
            if options.contains("KEY") {
                let small = Small { by, ..self::small(&target, Some(3), true, &few) };
                let (again, _) = at_once(&line, SERVER, &small).await.expect("asked").expect("repeated");
                assert_eq!(again, Submitted { job: done.job, problems: 0, repeated: true });
                (plain, not_plain) = (plain + 1, not_plain + 1);
                run(&format!("update pcfarm.job set idempotency_key = job_id::text where job_id = {}", done.job)).await;
            }
        }
        assert_eq!(jobs[0], jobs[1]);
        assert!(options.contains("deadline") || jobs[0].contains(r#""deadline": "1 day"#), "{}", jobs[0]);
        let owner = by.as_ref().map_or_else(|| "pcfarm".to_owned(), |(name, _)| name.clone());
        assert!(jobs[0].contains(&format!(r#""owner": "{owner}""#)), "{}", jobs[0]);
    }
    limit(false).await;
    // Of what stands against handing it out a look is told nothing, whichever way it went.
    for against in [
        "update pcfarm.job set not_before = now() + interval '1 hour' where job_id = JOB",
        "update pcfarm.job set requirement = '[]' where job_id = JOB",
        "insert into pcfarm.job_after (job_id, after_job, ended) select JOB, min(job_id), false from pcfarm.job",
        "insert into pcfarm.job_info (job_id, info) values (JOB, '{}')",
        "select pcfarm.hold_job(JOB)",
        "update pcfarm.job_type set suspended_since = now()",
    ] {
        let target = new_job("{}");
        let (done, _) =
            at_once(&line, SERVER, &small(&target, None, true, &few)).await.expect("asked").expect("loaded");
        run(&against.replace("JOB", &done.job.to_string())).await;
        for limited in [false, true] {
            limit(limited).await;
            let into = Target::Job(done.job);
            let (more, fresh) =
                at_once(&line, SERVER, &small(&into, None, false, &few)).await.expect("asked").expect("loaded");
            assert_eq!((more.problems, fresh.is_some()), (7, false), "{against}");
        }
        limit(false).await;
    }
    run("update pcfarm.job_type set suspended_since = null").await;
    // What is not plain, or wrong, is the function's.
    let more = r#"{"info": {"a": 1}, "after": []}"#;
    let (job, _) =
        at_once(&line, SERVER, &small(&new_job(more), None, true, &few)).await.expect("asked").expect("loaded");
    assert_eq!(count(&client, &format!("select count(*) from pcfarm.job_info where job_id = {}", job.job)).await, 1);
    for wrong in [r#"{"priority": "high"}"#, r#"{"no such": 1}"#, "[]", "7"] {
        let asked = at_once(&line, SERVER, &small(&new_job(wrong), None, true, &few)).await;
        assert!(asked.expect("left").is_none(), "{wrong}");
    }
    run(&format!("select pcfarm.cancel_job({})", job.job)).await;
    let ended = Target::Job(job.job);
    assert!(at_once(&line, SERVER, &small(&ended, None, false, &few)).await.is_err(), "it has ended");
}

#[tokio::test]
async fn two_uploads_may_open_one_job() {
    let (_database, client, pool) = farm().await;
    let job: i64 = client.query_one("select pcfarm.create_job('n', 't')", &[]).await.expect("created").get(0);
    let target = Target::Job(JobId(job));
    let few: Vec<NewProblem> = (0..7).map(|n| problem(&n.to_string(), None)).collect();
    for _ in 0..10 {
        let (mut one, mut other) = (loading(&pool, &target, 3).await, loading(&pool, &target, 3).await);
        one.add(few.clone()).await.expect("added");
        other.add(few.clone()).await.expect("added");
        let (one, other) = tokio::join!(one.finish(true), other.finish(true));
        assert_eq!((one.expect("loaded").problems, other.expect("loaded").problems), (7, 7));
    }
}
