//! Schedules on real PostgreSQL: a due time is one server's, a trigger is enqueued with the next time or not at all, and
//! neither a change nor a trigger is lost when both come at once.

use crate::queue::{Queue, queue};
use pcfarm_proto::ids::{JobId, ScheduleId, ServerId};
use pcfarm_sql::json::RawJson;
use pcfarm_sql::pool::Kept;
use pcfarm_sql::schedules::{self, CatchUp, Due, Listed, Outcome, Sooner, State, Tick, Ticked, Waiting, Wanted};
use pcfarm_sql::submit::NewProblem;
use std::time::{Duration, SystemTime};

const SERVER: ServerId = ServerId(1);

/// Minutes from an hour ago on, so that much is due.
fn minute(n: u64) -> SystemTime {
    let hour = 3600;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
    SystemTime::UNIX_EPOCH + Duration::from_secs(now / hour * hour - hour + 60 * n)
}

async fn standing(queue: &Queue) -> JobId {
    let job =
        queue.number("select pcfarm.create_job('standing', 't', '{\"standing\": true, \"unique_key\": \"k\"}')").await;
    queue.run(&format!("select pcfarm.open_job({job})")).await;
    JobId(job)
}

/// One that was due at that minute.
async fn due(queue: &Queue, name: &str, options: &str, at: SystemTime) -> ScheduleId {
    let create = format!("select pcfarm.create_schedule('{name}', 'every 1 minute', '{options}')");
    let id = ScheduleId(queue.number(&create).await);
    let text = "update pcfarm.schedule_next set due_at = $2, wake_at = $2 where schedule_id = $1";
    queue.client.execute(text, &[&id, &at]).await.expect("set");
    id
}

fn line(queue: &Queue) -> Kept {
    Kept::new(queue.pool.clone())
}

/// What a server would do with what it has claimed: one trigger each, the next a minute later.
fn minutely(due: &[Due]) -> Vec<Outcome> {
    due.iter()
        .map(|due| {
            let at = due.due_at.expect("due");
            let next = Some(SystemTime::now() + Duration::from_secs(60));
            Outcome { due: due.clone(), triggers: vec![at], next_due: next, next_wake: next }
        })
        .collect()
}

async fn tick(queue: &Queue) -> (usize, Ticked) {
    let mut line = line(queue);
    let tick = Tick::begin(&mut line).await.expect("begun");
    let (due, _) = tick.claim(None, 1000).await.expect("claimed");
    let ticked = tick.write(SERVER, &minutely(&due), None).await.expect("written");
    tick.commit().await.expect("committed");
    (due.len(), ticked)
}

async fn listed(queue: &Queue, id: ScheduleId) -> Listed {
    let wanted = Wanted { schedule_id: Some(id), limit: 1, ..Wanted::default() };
    schedules::list(&*queue.server().await, &wanted).await.expect("listed").remove(0)
}

#[tokio::test]
async fn what_makes_no_sense_is_refused() {
    let queue = queue().await;
    let job = standing(&queue).await.0;
    let other = queue.number("select pcfarm.create_job('ends', 't', '{}')").await;
    let create = |options: &str| format!("select pcfarm.create_schedule('a', '@daily', '{options}')");
    let template = |template: &str| create(&format!("{{\"template\": {template}}}"));
    let cases = [
        (create("{}"), "nothing that it does"),
        (create("{\"job\": 4711}"), "there is no job 4711"),
        (create(&format!("{{\"job\": {other}}}")), "not standing"),
        (create(&format!("{{\"job\": {job}, \"jobb\": 1}}")), "no such option: 'jobb'"),
        (create(&format!("{{\"job\": {job}, \"template\": {{}}}}")), "a job and a template"),
        (create("{\"job_key\": \"nobody\"}"), "has no job of unique key nobody"),
        (create(&format!("{{\"job\": {job}, \"catch_up\": \"twice\"}}")), "schedule_catch_up"),
        (
            create(&format!("{{\"job\": {job}, \"starts_at\": \"2027-01-02Z\", \"ends_at\": \"2027-01-01Z\"}}")),
            "schedule_ends_after",
        ),
        (template("{}"), "no job_type"),
        (template("{\"job_type\": \"none\"}"), "there is no job type none"),
        (template("{\"job_type\": \"t\"}"), "has no read_role"),
        (format!("select pcfarm.create_schedule('7', '@daily', '{{\"job\": {job}}}')"), "schedule_name"),
        (format!("select pcfarm.create_schedule('a/b', '@daily', '{{\"job\": {job}}}')"), "schedule_name"),
        ("select pcfarm.delete_schedule('nobody')".to_owned(), "there is no schedule 'nobody'"),
    ];
    for (statement, expected) in cases {
        let (_, message) = queue.refused(&statement).await;
        assert!(message.contains(expected), "{statement}: {message}");
    }
    queue.run(&create(&format!("{{\"job\": {job}}}"))).await;
    assert_eq!(queue.refused(&create(&format!("{{\"job\": {job}}}"))).await.0, "23505");
    // Of another user it is another one; and nobody enqueues into somebody else's job.
    let others = "select pcfarm.add_schedule('somebody', 'a', '@daily', '{\"job\": JOB}')";
    let (_, message) = queue.refused(&others.replace("JOB", &job.to_string())).await;
    assert!(message.contains("is another user's"), "{message}");
    queue.run("update pcfarm.job set owner = 'somebody' where name = 'standing'").await;
    queue.run(&others.replace("JOB", &job.to_string())).await;
}

#[tokio::test]
async fn a_due_schedule_is_one_servers_and_free_again_when_that_dies() {
    let queue = queue().await;
    let job = standing(&queue).await;
    let options = format!("{{\"job\": {job}, \"payload\": {{\"n\": 1.10}}}}");
    let id = due(&queue, "a", &options, minute(3)).await;
    let (mut first_line, mut second_line) = (line(&queue), line(&queue));
    let first = Tick::begin(&mut first_line).await.expect("begun");
    assert_eq!(first.claim(None, 10).await.expect("claimed").0.len(), 1);
    let second = Tick::begin(&mut second_line).await.expect("begun");
    assert_eq!(second.claim(None, 10).await.expect("claimed").0, []);
    second.commit().await.expect("nothing to do");
    // The server is gone, its connection with it.
    drop(first);
    queue.run("select from pcfarm.schedule_next for update").await;
    assert_eq!(tick(&queue).await, (1, Ticked { triggered: 1, refused: 0, postponed: 0 }));
    assert_eq!(tick(&queue).await.0, 0);
    let payload = queue.text("select payload::text from pcfarm.problem").await;
    assert!(payload.contains("\"payload\": {\"n\": 1.10}") && payload.contains("\"schedule\": \"a\""), "{payload}");
    assert!(payload.contains("\"sequence\": 1") && payload.contains(":03:00+00:00\""), "{payload}");
    let now = listed(&queue, id).await;
    assert_eq!((now.sequence, now.last_due_at, now.state()), (1, Some(minute(3)), State::Active));
    queue.check().await;
}

#[tokio::test]
async fn what_was_not_committed_was_not_triggered() {
    let queue = queue().await;
    let job = standing(&queue).await;
    due(&queue, "a", &format!("{{\"job\": {job}}}"), minute(3)).await;
    let mut line = line(&queue);
    let lost = Tick::begin(&mut line).await.expect("begun");
    let (claimed, _) = lost.claim(None, 10).await.expect("claimed");
    assert_eq!(lost.write(SERVER, &minutely(&claimed), None).await.expect("written").triggered, 1);
    drop(lost);
    queue.run("select from pcfarm.schedule_next for update").await;
    assert_eq!(queue.number("select count(*) from pcfarm.problem").await, 0);
    // What another has triggered meanwhile is not triggered once more by whoever has seen it before.
    let stale = Tick::begin(&mut line).await.expect("begun");
    let again = minutely(&[Due { sequence: 7, ..claimed[0].clone() }]);
    let error = stale.write(SERVER, &again, None).await.expect_err("it is at 0");
    assert_eq!(error.code().map(|code| code.code()), Some("40001"));
    drop(stale);
    assert_eq!(tick(&queue).await.1.triggered, 1);
    queue.check().await;
}

#[tokio::test]
async fn a_change_in_the_middle_of_a_trigger_loses_neither() {
    let queue = queue().await;
    let job = standing(&queue).await;
    let id = due(&queue, "a", &format!("{{\"job\": {job}}}"), minute(3)).await;
    let mut line = line(&queue);
    let tick = Tick::begin(&mut line).await.expect("begun");
    let (claimed, _) = tick.claim(None, 10).await.expect("claimed");
    let client = queue.server().await;
    let options = RawJson("{\"recurrence\": \"every 1h\", \"payload\": 2}".into());
    let changing = schedules::change(&*client, id, Some(1), &options);
    let triggering = async {
        let waiting = "select count(*) from pg_stat_activity
            where datname = current_database() and wait_event_type = 'Lock' and query like '%change_schedule%'";
        while queue.number(waiting).await == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(tick.write(SERVER, &minutely(&claimed), None).await.expect("written").triggered, 1);
        tick.commit().await.expect("committed");
    };
    let (changed, ()) = tokio::join!(changing, triggering);
    assert_eq!(changed.expect("changed"), Some(2));
    let now = listed(&queue, id).await;
    assert_eq!((now.sequence, now.schedule.version, now.schedule.recurrence.as_str()), (1, 2, "every 1h"));
    // To be computed anew, and at once.
    assert_eq!((now.due_at, now.wake_at.is_some()), (None, true));
    // Whoever has looked before that is told.
    assert_eq!(schedules::change(&*client, id, Some(1), &options).await.expect("asked"), None);
    assert!(!schedules::remove(&*client, id, Some(1)).await.expect("asked"));
    queue.check().await;
}

#[tokio::test]
async fn a_change_keeps_what_is_due_and_not_triggered_yet() {
    let queue = queue().await;
    let job = standing(&queue).await;
    let id = due(&queue, "a", &format!("{{\"job\": {job}}}"), minute(3)).await;
    queue.run("select pcfarm.update_schedule('a', '{\"recurrence\": \"every 1h\", \"payload\": 5}')").await;
    assert_eq!(listed(&queue, id).await.due_at, Some(minute(3)));
    assert_eq!(tick(&queue).await.1.triggered, 1);
    assert_eq!(queue.number("select (payload -> 'payload')::bigint from pcfarm.problem").await, 5);
    // What is to come is moved.
    queue.run("select pcfarm.update_schedule('a', '{\"recurrence\": \"every 2h\"}')").await;
    assert_eq!(listed(&queue, id).await.due_at, None);
    // And nothing of one that is disabled.
    queue.run("update pcfarm.schedule_next set due_at = clock_timestamp() - interval '1 s', wake_at = clock_timestamp() - interval '1 s'").await;
    queue.run("select pcfarm.update_schedule('a', '{\"enabled\": false}')").await;
    let now = listed(&queue, id).await;
    assert_eq!((now.state(), now.due_at, now.wake_at), (State::Disabled, None, None));
    assert_eq!(tick(&queue).await.0, 0);
    queue.check().await;
}

#[tokio::test]
async fn a_job_in_somebodys_hands_holds_up_nobody_elses_schedules() {
    let queue = queue().await;
    let (busy, free) =
        (standing(&queue).await, queue.number("select pcfarm.create_job('free', 't', '{\"standing\": true}')").await);
    let id = due(&queue, "busy", &format!("{{\"job\": {busy}}}"), minute(1)).await;
    due(&queue, "free", &format!("{{\"job\": {free}}}"), minute(2)).await;
    let holder = queue.database.client().await;
    holder
        .batch_execute(&format!("begin; select from pcfarm.job where job_id = {busy} for update"))
        .await
        .expect("held");
    assert_eq!(tick(&queue).await, (2, Ticked { triggered: 1, refused: 0, postponed: 1 }));
    assert_eq!((listed(&queue, id).await.sequence, listed(&queue, id).await.due_at), (0, Some(minute(1))));
    holder.batch_execute("rollback").await.expect("let go");
    queue.run("update pcfarm.schedule_next set wake_at = clock_timestamp() where due_at < clock_timestamp()").await;
    assert_eq!(tick(&queue).await, (1, Ticked { triggered: 1, refused: 0, postponed: 0 }));
    queue.check().await;
}

#[tokio::test]
async fn what_cannot_be_enqueued_is_refused_and_said() {
    let queue = queue().await;
    let job = standing(&queue).await;
    let id = due(&queue, "a", &format!("{{\"job\": {job}}}"), minute(1)).await;
    queue.run("select pcfarm.set_user(array[session_user], '{\"queue_limit\": 0}')").await;
    assert_eq!(tick(&queue).await.1, Ticked { triggered: 0, refused: 1, postponed: 0 });
    queue.run("update pcfarm.farm_user set queue_limit = null").await;
    let again = "update pcfarm.schedule_next set due_at = due_at - interval '1 h', wake_at = due_at - interval '1 h'";
    queue.run(again).await;
    assert_eq!(tick(&queue).await.1.triggered, 1);
    queue.run(&format!("select pcfarm.cancel_job({job})")).await;
    queue.run(again).await;
    assert_eq!(tick(&queue).await.1, Ticked { triggered: 0, refused: 1, postponed: 0 });
    let history = schedules::history(&*queue.server().await, id, None, 10).await.expect("read");
    let said: Vec<(i64, &str)> =
        history.iter().map(|one| (one.sequence, one.refusal.as_deref().unwrap_or_default())).collect();
    assert_eq!((said[0].0, said[1], said[2].0), (3, (2, ""), 1), "{said:?}");
    assert!(said[0].1.contains("has ended (cancelled)") && said[2].1.contains("the limit is 0"), "{said:?}");
    queue.check().await;
}

/// Two jobs of each of two users, one of whom may load one problem more.
#[tokio::test]
async fn who_is_over_a_limit_holds_up_nobody_elses_schedules() {
    let queue = queue().await;
    let mut jobs = Vec::new();
    for (n, owner) in ["ann", "ann", "ben", "ben"].into_iter().enumerate() {
        let job = queue.number("select pcfarm.create_job('s', 't', '{\"standing\": true}')").await;
        queue
            .run(&format!(
                "select pcfarm.open_job({job}); update pcfarm.job set owner = '{owner}' where job_id = {job}"
            ))
            .await;
        let add = format!("select pcfarm.add_schedule('{owner}', 's{n}', 'every 1 minute', '{{\"job\": {job}}}')");
        queue.number(&add).await;
        jobs.push(job);
    }
    for (minutes, limit) in [
        (60, "select pcfarm.set_quota('ann', 'day', 1, null)"),
        (
            30,
            "select pcfarm.set_quota('ann', 'day', null, null); select pcfarm.set_user('{ann}', '{\"queue_limit\": 2}')",
        ),
    ] {
        queue.run(limit).await;
        let due = format!("date_trunc('minute', now()) - interval '{minutes} min'");
        queue.run(&format!("update pcfarm.schedule_next set due_at = {due}, wake_at = {due}")).await;
        assert_eq!(tick(&queue).await.1, Ticked { triggered: 3, refused: 1, postponed: 0 }, "{limit}");
    }
    let waiting = async |owner: &str| queue.number(&format!("select pcfarm.waiting_of('{owner}')")).await;
    assert_eq!([waiting("ann").await, waiting("ben").await], [2, 4]);
    queue.check().await;
}

#[tokio::test]
async fn history_goes_from_tick_to_tick() {
    let queue = queue().await;
    let job = standing(&queue).await;
    let options = format!("{{\"job\": {job}, \"catch_up\": \"all\"}}");
    let id = due(&queue, "a", &options, minute(0)).await;
    let other = due(&queue, "b", &options, minute(0)).await;
    assert_eq!(listed(&queue, id).await.schedule.catch_up, CatchUp::All);
    for round in 0..4_u64 {
        let mut line = line(&queue);
        let tick = Tick::begin(&mut line).await.expect("begun");
        let (claimed, _) = tick.claim(None, 10).await.expect("claimed");
        // Three of one, one of the other.
        let outcomes: Vec<Outcome> = claimed
            .iter()
            .map(|due| {
                let count = if due.schedule_id == id { 3 } else { 1 };
                let triggers = (0..count).map(|n| minute(3 * round + n)).collect();
                let next = Some(minute(3 * round + 3));
                Outcome { due: due.clone(), triggers, next_due: next, next_wake: next }
            })
            .collect();
        assert_eq!(tick.write(SERVER, &outcomes, None).await.expect("written").triggered, 4);
        tick.commit().await.expect("committed");
    }
    let client = queue.server().await;
    let sequences = async |id, before, limit| -> Vec<i64> {
        let found = schedules::history(&*client, id, before, limit).await.expect("read");
        found.iter().map(|one| one.sequence).collect()
    };
    assert_eq!(sequences(id, None, 100).await, (1..=12).rev().collect::<Vec<_>>());
    assert_eq!(sequences(id, None, 2).await, [12, 11]);
    assert_eq!(sequences(id, Some(11), 5).await, [10, 9, 8, 7, 6]);
    assert_eq!(sequences(other, None, 100).await, [4, 3, 2, 1]);
    // By hand, and what is old is forgotten.
    assert_eq!(schedules::trigger_now(&*client, id, None).await.expect("triggered"), 13);
    queue.run("update pcfarm.schedule_tick set ticked_at = ticked_at - interval '8 days' where tick_id < 4").await;
    assert_eq!(schedules::forget_ticks(&client, Duration::from_secs(7 * 86_400)).await.expect("forgotten"), 3);
    assert_eq!(sequences(id, None, 100).await, [13, 12, 11, 10]);
    assert_eq!(queue.number("select count(*) from pcfarm.problem").await, 17);
    queue.check().await;
}

#[tokio::test]
async fn a_job_is_made_once_for_a_due_time_and_opens_when_all_is_loaded() {
    let queue = queue().await;
    queue.run("select pcfarm.create_job_type('made', 'c', '{\"read_role\": \"reader\", \"default_duration\": \"1 hour\"}')").await;
    let template =
        "{\"template\": {\"job_type\": \"made\", \"name\": \"nightly\", \"priority\": 3, \"parameters\": {\"a\": 1},
        \"require\": [\"gpu\"], \"deadline_after\": \"2 hours\",
        \"loads\": [{\"query\": \"one\"}, {\"query\": \"two\", \"convoy\": 7}]}, \"payload\": 9}";
    let id = due(&queue, "a", template, minute(3)).await;
    assert_eq!(tick(&queue).await.1.triggered, 1);
    let made = queue
        .text("select name || ' ' || state || ' ' || priority || ' ' || parameters::text || ' ' || unique_key from pcfarm.job")
        .await;
    assert!(made.starts_with("nightly loading 3 "), "{made}");
    assert_eq!(queue.text("select pcfarm.conditions(requirement)::text from pcfarm.job").await, "{gpu}");
    // What its jobs could not require is refused when the schedule is made.
    let wrong = template.replace("gpu", "memory >= 8").replace('\'', "''");
    let (_, message) = queue.refused(&format!("select pcfarm.create_schedule('wrong', '0 2 * * *', '{wrong}')")).await;
    assert!(message.contains("8 is no size"), "{message}");
    assert!(
        made.contains("\"a\": 1") && made.contains("\"payload\": 9") && made.contains(&format!("schedule {id} at ")),
        "{made}"
    );
    let late =
        "select extract(epoch from deadline)::bigint - extract(epoch from $1::timestamptz)::bigint from pcfarm.job";
    let late: i64 = queue.client.query_one(late, &[&minute(3)]).await.expect("read").get(0);
    assert_eq!(late, 7200);
    // The same due time once more, as if somebody had turned the clock back: no second job.
    queue.run("update pcfarm.schedule_next set due_at = last_due_at, wake_at = last_due_at").await;
    tick(&queue).await;
    assert_eq!(queue.number("select count(*) from pcfarm.job").await, 1);
    queue.run("delete from pcfarm.schedule_load l where not exists (select from pcfarm.job j where j.job_id = l.job_id);
        delete from pcfarm.schedule_tick where tick_id = 2; update pcfarm.schedule_next set last_tick = 1, sequence = 1").await;

    let client = queue.server().await;
    let first = schedules::claim_load(&*client).await.expect("claimed").expect("one");
    let second = schedules::claim_load(&*client).await.expect("claimed").expect("another");
    assert!(schedules::claim_load(&*client).await.expect("claimed").is_none(), "both are somebody's");
    assert_eq!((first.wanted, first.due_at, second.convoy), (true, minute(3), 7));
    schedules::load_failed(&*client, &first, "no table").await.expect("noted");
    let history = schedules::history(&*client, id, None, 1).await.expect("read");
    assert_eq!((history[0].message.as_deref(), history[0].job_state.as_deref()), (Some("no table"), Some("loading")));
    let problems = |count: usize| -> Vec<NewProblem> {
        (0..count)
            .map(|n| NewProblem { key: format!("k{n}"), payload: RawJson("1".into()), group_key: None, details: None })
            .collect()
    };
    let load = async |load: &schedules::Load, count| {
        let own = deadpool_postgres::Object::take(queue.server().await);
        let mut loading = load.begin(own).await.expect("begun");
        loading.add(problems(count)).await.expect("added");
        load.finish(loading).await.expect("finished")
    };
    assert!(load(&second, 20).await);
    // Whoever was too slow has loaded nothing.
    assert!(!load(&second, 20).await);
    assert_eq!(queue.text("select state from pcfarm.job").await, "loading");
    queue.run("update pcfarm.schedule_load set next_attempt_at = now() where loaded_at is null").await;
    let retried = schedules::claim_load(&*client).await.expect("claimed").expect("again");
    assert_eq!((retried.number, retried.attempts), (first.number, 2));
    assert!(!load(&first, 5).await, "its time was over, and another has it");
    assert!(load(&retried, 5).await);
    assert_eq!(queue.text("select state from pcfarm.job").await, "open");
    assert_eq!(queue.number("select count(*) from pcfarm.problem").await, 25);
    assert_eq!(schedules::next_load(&*client).await.expect("asked"), None);
    queue.check().await;
}

#[tokio::test]
async fn a_cancelled_job_is_not_loaded() {
    let queue = queue().await;
    queue.run("select pcfarm.create_job_type('made', 'c', '{\"read_role\": \"reader\"}')").await;
    due(&queue, "a", "{\"template\": {\"job_type\": \"made\", \"loads\": [{\"query\": \"one\"}]}}", minute(3)).await;
    tick(&queue).await;
    queue.run("select pcfarm.cancel_job(job_id) from pcfarm.job").await;
    let client = queue.server().await;
    let load = schedules::claim_load(&*client).await.expect("claimed").expect("one");
    assert!(!load.wanted);
    assert!(schedules::claim_load(&*client).await.expect("claimed").is_none());
    assert_eq!(schedules::next_load(&*client).await.expect("asked"), None);
}

#[tokio::test]
async fn lists_are_read_in_pages_and_by_condition() {
    let queue = queue().await;
    let job = standing(&queue).await;
    for name in ["b", "a", "ab", "c"] {
        queue.run(&format!("select pcfarm.create_schedule('{name}', '@daily', '{{\"job_key\": \"k\"}}')")).await;
    }
    queue.run("select pcfarm.update_schedule('c', '{\"enabled\": false}')").await;
    let client = queue.server().await;
    let names = async |wanted: Wanted| -> Vec<String> {
        let found = schedules::list(&*client, &wanted).await.expect("listed");
        found.into_iter().map(|one| one.schedule.name).collect()
    };
    let all = Wanted { limit: 10, ..Wanted::default() };
    assert_eq!(names(all.clone()).await, ["a", "ab", "b", "c"]);
    assert_eq!(names(Wanted { name_prefix: Some("a".into()), ..all.clone() }).await, ["a", "ab"]);
    assert_eq!(names(Wanted { state: Some(State::Disabled), ..all.clone() }).await, ["c"]);
    assert_eq!(names(Wanted { job_id: Some(JobId(job.0 + 1)), ..all.clone() }).await, [""; 0]);
    assert_eq!(names(Wanted { owner: Some("nobody".into()), ..all.clone() }).await, [""; 0]);
    let owner = queue.text("select session_user::text").await;
    assert_eq!(names(Wanted { after: Some((owner, "ab".into())), limit: 1, ..all }).await, ["b"]);
}

/// Under a snapshot, what has been due is still in the index: ticks read some seconds of it, and not all.
#[tokio::test]
async fn a_tick_reads_what_is_due_and_not_what_was() {
    let queue = queue().await;
    let job = standing(&queue).await;
    for n in 0..5 {
        due(&queue, &format!("s{n}"), &format!("{{\"job\": {job}}}"), minute(n)).await;
    }
    let text =
        include_str!("../../queries/claim_schedules.sql").replace("$1", "now() - interval '2 s'").replace("$2", "10");
    let options =
        format!("{} {}", queue.database.config().get_options().unwrap_or_default(), pcfarm_sql::pool::BY_INDEX);
    let mut config = queue.database.config();
    let (client, _connection) = pcfarm_sql::connect::connect(config.options(options)).await.expect("connected");
    let rows = client.query(&format!("explain {text}"), &[]).await.expect("explained");
    let plan: String = rows.iter().map(|row| row.get::<_, &str>(0).to_owned() + "\n").collect();
    assert!(plan.contains("Index Scan using schedule_wake") && plan.contains("Index Cond: ((wake_at >"), "{plan}");
    assert!(!plan.contains("Sort"), "{plan}");
}

/// Whoever asks for usage sees them at once, and again when they have been added up; what was refused is none.
#[tokio::test]
async fn triggers_are_counted_by_day_and_user() {
    let queue = queue().await;
    let client = queue.server().await;
    let job = standing(&queue).await;
    for name in ["a", "b"] {
        due(&queue, name, &format!("{{\"job\": {job}}}"), minute(3)).await;
    }
    assert_eq!(tick(&queue).await.1.triggered, 2);
    queue.run("select pcfarm.trigger_schedule('a')").await;
    let me = queue.text("select session_user::text").await;
    let usage = async || {
        let usage = pcfarm_sql::usage::usage(&client, "2026-01-01", Some(&me)).await.expect("read");
        usage.into_iter().map(|day| day.triggers).collect::<Vec<_>>()
    };
    assert_eq!(usage().await, [3]);
    for _ in 0..2 {
        pcfarm_sql::upkeep::count_triggers(&*client).await.expect("counted");
        assert_eq!(usage().await, [3]);
    }
    assert_eq!(queue.number("select count(*) from pcfarm.trigger_count").await, 0);
    queue.run("select pcfarm.trigger_schedule('b')").await;
    pcfarm_sql::upkeep::count_triggers(&*client).await.expect("counted");
    queue.run(&format!("select pcfarm.cancel_job({job}); select pcfarm.trigger_schedule('b')")).await;
    assert_eq!(usage().await, [4], "a job that has ended takes nothing");
    // A day is one of UTC, whatever the zone of whoever asks.
    queue.run("update pcfarm.trigger_statistic set hour = '2026-03-01T23:00Z'").await;
    for zone in ["America/New_York", "UTC", "Asia/Tokyo"] {
        queue.run(&format!("set timezone = '{zone}'")).await;
        assert_eq!(queue.text("select day::text from pcfarm.usage").await, "2026-03-01", "{zone}");
    }
    queue.run("update pcfarm.trigger_statistic set hour = hour - interval '900 days'").await;
    pcfarm_sql::upkeep::forget_statistics(&*client).await.expect("forgotten");
    assert_eq!(usage().await, [0_i64; 0]);
}

/// A clock that was ahead triggered due times that are still to come. They are kept until the schedule is past them.
#[tokio::test]
async fn due_times_that_were_triggered_early_are_kept_until_they_are_past() {
    let queue = queue().await;
    let job = standing(&queue).await;
    let id = due(&queue, "a", &format!("{{\"job\": {job}}}"), minute(3)).await;
    let now = SystemTime::now();
    let minutes = |count: u64| now + Duration::from_secs(60 * count);
    queue
        .run(
            "update pcfarm.schedule_next set due_at = now() + interval '9 hours', wake_at = now() + interval '9 hours'",
        )
        .await;
    let client = queue.server().await;
    let (_, waiting) = schedules::waiting_longest(&*client, None, 10).await.expect("read");
    let one = |of: Waiting, wake_at, early: &[SystemTime]| Sooner {
        of,
        due_at: Some(minute(3)),
        wake_at,
        early: early.to_vec(),
    };
    let first = one(waiting[0], minutes(1), &[minutes(20), minutes(10)]);
    assert_eq!(schedules::wake_sooner(&*client, &[first]).await.expect("written"), 1);
    let (_, waiting) = schedules::waiting_longest(&*client, None, 10).await.expect("read");
    let second = one(waiting[0], minute(3), &[minutes(10)]);
    assert_eq!(schedules::wake_sooner(&*client, &[second]).await.expect("written"), 1);
    let mut kept = line(&queue);
    let claimed = Tick::begin(&mut kept).await.expect("begun").claim(None, 10).await.expect("claimed").0;
    assert_eq!(claimed[0].early.len(), 2);
    assert!(claimed[0].early.is_sorted() && claimed[0].last_due_at.is_none(), "{claimed:?}");
    queue.run("select from pcfarm.schedule_next for update").await;
    // Triggered by hand, a schedule forgets neither them nor its last due time.
    schedules::trigger_now(&*client, id, None).await.expect("triggered");
    assert_eq!(listed(&queue, id).await.last_due_at, None);
    let left = "select coalesce(cardinality(early), 0)::bigint from pcfarm.schedule_next";
    assert_eq!(queue.number(left).await, 2);
    // The next due time is a minute away, and then an hour.
    tick(&queue).await;
    assert_eq!((queue.number(left).await, listed(&queue, id).await.last_due_at), (2, Some(minute(3))));
    queue.run("update pcfarm.schedule_next set due_at = now() - interval '1 minute', wake_at = now() - interval '1 minute'").await;
    let tick = Tick::begin(&mut kept).await.expect("begun");
    let (claimed, _) = tick.claim(None, 10).await.expect("claimed");
    let outcomes: Vec<Outcome> = minutely(&claimed)
        .into_iter()
        .map(|of| Outcome { next_due: Some(minutes(60)), next_wake: Some(minutes(60)), ..of })
        .collect();
    tick.write(SERVER, &outcomes, None).await.expect("written");
    tick.commit().await.expect("committed");
    assert_eq!(queue.number(left).await, 0);
}

/// To a clock that is behind all schedules seem to wait for too long.
#[tokio::test]
async fn no_schedule_waits_for_too_long_while_the_clock_is_behind() {
    let queue = queue().await;
    let job = standing(&queue).await;
    due(&queue, "a", &format!("{{\"job\": {job}}}"), SystemTime::now() + Duration::from_secs(3600)).await;
    let client = queue.server().await;
    for (set, expected) in [
        ("moved_seconds = -10800", 0),
        ("moved_seconds = 0, checked_at = clock_timestamp() + interval '1 hour'", 0),
        ("checked_at = clock_timestamp()", 1),
    ] {
        queue.run(&format!("update pcfarm.clock set {set}")).await;
        let (_, waiting) = schedules::waiting_longest(&*client, None, 10).await.expect("read");
        assert_eq!(waiting.len(), expected, "{set}");
    }
}
