//! Jobs that wait for others, keys of which there is one, what is written down, and what is forgotten.

use crate::queue::{self, Queue, queue};
use pcfarm_proto::ids::JobId;
use pcfarm_sql::checkout::Closing;
use pcfarm_sql::events::{self, Wanted};
use pcfarm_sql::upkeep;

async fn created(queue: &Queue, options: &str) -> JobId {
    let job = queue.number(&format!("select pcfarm.create_job('j', 't', '{options}')")).await;
    queue
        .run(&format!(
            "select pcfarm.load({job}, 'select ''k'' as key, ''1''::jsonb as payload'); select pcfarm.open_job({job})"
        ))
        .await;
    JobId(job)
}

async fn solve(queue: &Queue, job: JobId, outcome: Result<&str, &str>) {
    for came_back in [false, true, true] {
        if let Some(held) = queue.take(job, came_back, 1).await {
            queue.deliver(&held, &[(0, outcome)], true).await;
            queue.close(&held, Closing::Finished).await;
        }
    }
    queue.end(job).await;
}

#[tokio::test]
async fn a_job_waits_until_those_before_it_are_done_or_have_ended() {
    let queue = queue().await;
    let (first, second) = (created(&queue, "{}").await, created(&queue, "{}").await);
    let after = created(&queue, &format!("{{\"after\": [{first}], \"after_ended\": [{second}]}}")).await;
    let ordered = "select coalesce(string_agg(job_id::text, ' ' order by position), '') from pcfarm.jobs_ordered";
    assert!(queue.lane(after, false).await.is_none());
    assert_eq!(queue.text(ordered).await, format!("{first} {second}"));
    let why = queue.text(&format!("select string_agg(o, '; ') from pcfarm.job_obstacles({after}) o")).await;
    assert!(
        why.contains(&format!("it comes after job {first} (j), which is open; it comes after job {second} (j)")),
        "{why}"
    );
    solve(&queue, first, Err("no")).await;
    assert_eq!(queue.state(first).await, "failed");
    queue.run(&format!("select pcfarm.cancel_job({second})")).await;
    assert!(queue.lane(after, false).await.is_none(), "the first is not done");
    let why = queue.text(&format!("select string_agg(o, '; ') from pcfarm.job_obstacles({after}) o")).await;
    assert_eq!(
        why,
        format!("it comes after job {first} (j), which is failed: `pcfarm job retry {first}`, or cancel this one")
    );
    queue.run(&format!("select pcfarm.retry_job({first})")).await;
    solve(&queue, first, Ok("1")).await;
    assert_eq!(queue.state(first).await, "done");
    assert!(queue.lane(after, false).await.is_some());
    solve(&queue, after, Ok("1")).await;
    queue.check().await;
}

#[tokio::test]
async fn an_empty_job_does_not_end_before_those_it_waits_for_and_circles_are_refused() {
    let queue = queue().await;
    let first = created(&queue, "{}").await;
    let empty = queue.number(&format!("select pcfarm.create_job('gate', 't', '{{\"after\": [{first}]}}')")).await;
    queue.run(&format!("select pcfarm.open_job({empty})")).await;
    assert!(upkeep::maybe_empty_jobs(&*queue.server().await, &[first, JobId(empty)]).await.expect("asked").is_empty());
    assert_eq!(queue.end(JobId(empty)).await, None);
    let last = queue.number(&format!("select pcfarm.create_job('last', 't', '{{\"after\": [{empty}]}}')")).await;
    let (code, message) = queue.refused(&format!("select pcfarm.run_after({first}, {last})")).await;
    assert_eq!(
        (code.as_str(), message),
        ("22023", format!("job {first} cannot run after job {last}, which itself runs after it"))
    );
    queue.refused(&format!("select pcfarm.run_after({first}, {first})")).await;
    assert_eq!(queue.refused("select pcfarm.create_job('x', 't', '{\"after\": [999]}')").await.0, "P0002");
    let server = queue.server().await;
    assert_eq!(upkeep::next_jobs(&*server, JobId(i64::MAX), 2).await.expect("read"), [JobId(last), JobId(empty)]);
    assert_eq!(upkeep::next_jobs(&*server, JobId(empty), 2).await.expect("read"), [first]);
    let held = queue.take(first, false, 1).await.expect("held");
    queue.finish(&held).await;
    assert_eq!(upkeep::exhaust_lanes(&*server, &[JobId(last)]).await.expect("asked"), 0, "it is another job's");
    assert_eq!(upkeep::exhaust_lanes(&*server, &[first]).await.expect("exhausted"), 1);
    let ended = upkeep::end_jobs_if_empty(&*server, &[first]).await.expect("ended").remove(0);
    assert_eq!((ended.job_id, ended.state.as_str()), (first, "done"));
    assert_eq!(ended.waiting, [JobId(empty)]);
    assert_eq!(upkeep::maybe_empty_jobs(&*server, &ended.waiting).await.expect("asked"), ended.waiting);
    drop(server);
    assert_eq!(queue.end(JobId(empty)).await.as_deref(), Some("done"));
    assert!(queue.refused(&format!("select pcfarm.run_after({first}, {last})")).await.1.contains("has ended"));
}

#[tokio::test]
async fn of_a_unique_key_there_is_one_job() {
    let queue = queue().await;
    let submit = |name: &str, more: &str| {
        format!(
            "select pcfarm.submit('{name}', 't', 'select ''k'' as key, ''1''::jsonb as payload', 1, '{{\"unique_key\": \"night\"{more}}}')"
        )
    };
    let first = queue.number(&submit("one", "")).await;
    assert_eq!(queue.number(&submit("two", "")).await, first, "whatever else it asks for");
    assert_eq!(queue.number("select count(*) from pcfarm.problem").await, 1);
    let (code, message) = queue.refused(&submit("three", ", \"on_duplicate\": \"refuse\"")).await;
    assert_eq!(code, "23505");
    assert!(message.contains(&format!("'night' already: job {first} (open)")), "{message}");
    assert_eq!(queue.refused(&submit("four", ", \"on_duplicate\": \"wait\"")).await.0, "22023");
    queue.check().await;
}

/// As `what of-job`.
async fn happened(queue: &Queue, wanted: &Wanted) -> Vec<String> {
    let (found, _) = events::events(&*queue.server().await, wanted).await.expect("events");
    found.into_iter().map(|event| format!("{} {}", event.what, event.subject.unwrap_or_default())).collect()
}

#[tokio::test]
async fn what_people_may_ask_about_is_written_down() {
    let queue = queue().await;
    let job = created(&queue, "{}").await;
    queue
        .run(&format!(
            "select pcfarm.hold_job({job}); select pcfarm.release_job({job}); select pcfarm.park(job => {job})"
        ))
        .await;
    queue.run(&format!("select pcfarm.park(job => {job}, parked => false)")).await;
    solve(&queue, job, Ok("1")).await;
    let of_job = Wanted { job_id: Some(job), limit: 100, ..Wanted::default() };
    assert_eq!(
        happened(&queue, &of_job).await,
        [
            "job created j",
            "job opened j",
            "job held j",
            "job released j",
            "load parked ",
            "load unparked ",
            "job done j"
        ]
    );
    queue
        .run(
            "select pcfarm.set_user('{ann}', '{\"allocation\": 3}'); select pcfarm.set_user('{ann}', '{\"allocation\": 3}');
             select pcfarm.suspend_queue('x'); select pcfarm.set_resource('licence', 3);
             select pcfarm.set_selection('{pc1}', '{\"required\": [\"ann\"]}'); select pcfarm.set_profile('t', '{}');
             update pcfarm.workstation set state = 'dead', reason = 'not heard of' where hostname = 'pc2'",
        )
        .await;
    let newest = Wanted { limit: 7, ..Wanted::default() };
    assert_eq!(
        happened(&queue, &newest).await,
        [
            "user made ann",
            "user changed ann",
            "farm changed true",
            "resource made licence",
            "selection made pc1",
            "profile entry made t",
            "workstation dead pc2"
        ]
    );
    let details = queue.text("select details::text from pcfarm.event where what = 'user changed'").await;
    assert_eq!(details, "{\"allocation\": [null, 3]}");
}

#[tokio::test]
async fn whoever_follows_events_misses_none() {
    let queue = queue().await;
    let (slow, quick) = (queue.server().await, queue.server().await);
    let what = |name: &str| format!("select pcfarm.set_resource('{name}', 1)");
    let (_, mut after) = events::events(&quick, &Wanted { limit: 1, ..Wanted::default() }).await.expect("events");
    slow.batch_execute("begin").await.expect("begun");
    slow.batch_execute(&what("slow")).await.expect("made");
    for name in ["quick", "quicker", "quickest"] {
        quick.batch_execute(&what(name)).await.expect("made");
    }
    let mut seen = Vec::new();
    // In pages of two, of which the first is cut.
    for step in 0..3 {
        let place = after.to_string().parse().expect("as it is printed");
        let wanted = Wanted { after: Some(place), what: "resource".to_owned(), limit: 2, ..Wanted::default() };
        let (found, next) = events::events(&quick, &wanted).await.expect("events");
        seen.extend(found.into_iter().map(|event| event.subject.unwrap_or_default()));
        after = next;
        if step == 0 {
            slow.batch_execute("commit").await.expect("committed");
        }
    }
    assert_eq!(seen, ["quick", "quicker", "quickest", "slow"], "nobody waits for one that is under way");
}

#[tokio::test]
async fn ended_jobs_are_forgotten_bit_by_bit_when_their_time_is_over() {
    let queue = queue().await;
    queue.run("select pcfarm.create_job_type('t', 'c', '{\"retention\": \"1 hour\", \"max_attempts\": 3}')").await;
    let (old, recent, open) = (queue.job(5, 2).await, queue.job(2, 2).await, queue.job(3, 1).await);
    for job in [old, recent] {
        while let Some(held) = queue.take(job, false, 1).await {
            queue.finish(&held).await;
        }
        queue.end(job).await;
    }
    queue.run(&format!("update pcfarm.job set ended_at = now() - interval '2 h' where job_id = {old}")).await;
    upkeep::count_progress(&*queue.server().await).await.expect("counted");
    let mut steps = 0;
    loop {
        let gone = queue.number("select pcfarm.forget_old_job(2)").await;
        queue.check().await;
        if gone == 0 {
            break;
        }
        assert!(gone <= 2);
        steps += 1;
        assert!(steps < 20, "it comes to an end");
    }
    for table in ["job", "lane", "problem", "result", "checkout", "requeued", "progress"] {
        let text = format!("select count(*) from pcfarm.{table} where job_id = {old}");
        assert_eq!(queue.number(&text).await, 0, "{table}");
    }
    assert_eq!(queue.number("select count(*) from pcfarm.job").await, 2);
    assert_eq!(queue.number(&format!("select count(*) from pcfarm.result where job_id = {recent}")).await, 2);
    assert_eq!(queue.number(&format!("select count(*) from pcfarm.problem where job_id = {open}")).await, 3);
    assert_eq!(queue.number("select count(*) from pcfarm.forgotten").await, 0);
}

#[tokio::test]
async fn statistics_have_what_was_done_in_its_hour_once() {
    let queue = queue().await;
    queue.run("select pcfarm.create_job_type('t', 'c', '{\"retention\": \"0\", \"max_attempts\": 1}')").await;
    let job = created(&queue, "{}").await;
    solve(&queue, job, Err("no")).await;
    assert_eq!(queue.state(job).await, "failed");
    assert_eq!(queue.number("select pcfarm.forget_old_job()").await, 0, "what it did is not counted yet");
    let server = queue.server().await;
    for _ in 0..2 {
        upkeep::count_progress(&*server).await.expect("counted");
    }
    // The next hour.
    queue.run("update pcfarm.statistic set hour = hour - interval '1 h'").await;
    queue.run(&format!("select pcfarm.retry_job({job})")).await;
    solve(&queue, job, Ok("1")).await;
    upkeep::count_progress(&*server).await.expect("counted");
    let hours =
        "select string_agg(format('%s done, %s failed', done, failed), '; ' order by hour) from pcfarm.statistic";
    assert_eq!(queue.text(hours).await, "0 done, 1 failed; 1 done, 0 failed", "it failed then, whatever came of it");
    while queue.number("select pcfarm.forget_old_job()").await > 0 {}
    assert_eq!(queue.number("select count(*) from pcfarm.progress").await, 0);
    assert_eq!(queue.number("select sum(done)::bigint from pcfarm.statistic").await, 1);
}

/// Loads of a standing job: some solved at once, one after a failure, one after a loss, one with a last failure, one whose
/// problems waited for their time; one that is not done yet, and one that is young.
#[tokio::test]
async fn what_ended_in_a_standing_job_is_forgotten_load_by_load() {
    let queue = queue().await;
    queue.run("select pcfarm.create_job_type('t', 'c', '{\"retention\": \"1 hour\", \"max_attempts\": 3}')").await;
    let job = JobId(queue.number("select pcfarm.create_job('s', 't', '{\"standing\": true}')").await);
    queue.run(&format!("select pcfarm.open_job({job})")).await;
    let load = async |problems: i64, more: &str| {
        let text = format!(
            "select pcfarm.load({job}, $$select 'k' || g as key, to_jsonb(g) as payload {more}
                 from generate_series(1, {problems}) g$$, 2)"
        );
        queue.run(&text).await;
    };
    let finish_all = async || {
        for came_back in [false, true, true] {
            while let Some(held) = queue.take(job, came_back, 1).await {
                queue.finish(&held).await;
            }
        }
    };
    load(5, "").await;
    let failed = queue.take(job, false, 1).await.expect("held");
    queue.deliver(&failed, &[(0, Ok("1")), (1, Err("no"))], true).await;
    queue.close(&failed, Closing::Finished).await;
    let lost = queue.take(job, false, 1).await.expect("held");
    queue.close(&lost, Closing::Lost).await;
    finish_all().await;
    load(2, "").await;
    let held = queue.take(job, false, 1).await.expect("held");
    let acceptance = queue::at_last(queue::acceptance(&[(&held, &[(0, Ok("1")), (1, Err("no"))], true)]));
    pcfarm_sql::checkout::accept(&*queue.server().await, "t", &acceptance).await.expect("accepted");
    load(3, ", now() + interval '500 ms' as not_before").await;
    while upkeep::move_due(&*queue.server().await).await.expect("moved") == 0 {}
    finish_all().await;
    load(4, "").await;
    let half = queue.take(job, false, 1).await.expect("held");
    queue.finish(&half).await;
    let held_still = queue.take(job, false, 1).await.expect("held");
    upkeep::exhaust_lanes(&*queue.server().await, &[job]).await.expect("exhausted");
    queue
        .run(
            "update pcfarm.result set accepted_at = accepted_at - interval '2 h';
             update pcfarm.checkout set checked_out_at = checked_out_at - interval '2 h', ended_at = ended_at - interval '2 h';
             update pcfarm.lane set loaded_at = loaded_at - interval '2 h'",
        )
        .await;
    load(2, "").await;
    finish_all().await;
    // Each problem that has ended has made a file.
    queue
        .run(
            "insert into pcfarm.file (sha256, bytes) values (sha256(''), 0);
             insert into pcfarm.output select r.job_id, r.problem_id, 'f', sha256(''), 1, 'mia' from pcfarm.result r",
        )
        .await;
    upkeep::exhaust_lanes(&*queue.server().await, &[job]).await.expect("exhausted");
    upkeep::count_progress(&*queue.server().await).await.expect("counted");
    queue.check().await;
    let statistics = "select sum(done)::bigint from pcfarm.statistic";
    let done = queue.number(statistics).await;
    // Another server is at it: this one passes by.
    let other = queue.server().await;
    other.batch_execute("begin; select from pcfarm.forget_old_problems(0, 0, 1)").await.expect("begun");
    let meanwhile = "select gone from pcfarm.forget_old_problems(0, 0, 1)";
    let second = queue.number(meanwhile).await;
    other.batch_execute("commit").await.expect("committed");
    queue.check().await;
    let first = queue.number("select 10 + 4 + 2 - (select count(*) from pcfarm.problem)").await - second;
    assert_eq!((first, second), (1, 2), "of the first load's end, and of the next");
    let (mut after, mut gone, mut rounds) = (("0".to_owned(), "0".to_owned()), 0, 0);
    while rounds < 3 {
        let (job, lane) = &after;
        let text =
            format!("select concat_ws('/', to_job, to_lane, gone) from pcfarm.forget_old_problems({job}, {lane}, 2)");
        let told = queue.text(&text).await;
        queue.check().await;
        let told: Vec<&str> = told.split('/').collect();
        gone += told.last().expect("how many").parse::<i64>().expect("a number");
        match told[..] {
            [job, lane, _] => after = (job.to_owned(), lane.to_owned()),
            _ => (after, rounds) = (("0".to_owned(), "0".to_owned()), rounds + 1),
        }
    }
    assert_eq!(first + second + gone, 5 + 2 + 3);
    let count = async |table: &str| queue.number(&format!("select count(*) from pcfarm.{table}")).await;
    assert_eq!([count("problem").await, count("result").await, count("requeued").await], [4 + 2, 2 + 2, 0]);
    assert_eq!(count("output").await, 2 + 2);
    assert_eq!(queue.number("select sum(bytes)::bigint from pcfarm.file_usage where owner = 'mia'").await, 2 + 2);
    let lanes = "select string_agg(concat_ws(chr(47), kind, problems), chr(32) order by lane_id) from pcfarm.lane";
    assert_eq!(queue.text(lanes).await, "retry/0 load/4 load/2");
    assert_eq!(queue.number("select done from pcfarm.job_progress").await, 4);
    upkeep::count_progress(&*queue.server().await).await.expect("counted");
    assert_eq!(queue.number(statistics).await, done, "what was done in an hour stays so");
    queue.finish(&held_still).await;
    load(1, "").await;
    let again = queue.take(job, false, 1).await.expect("held");
    queue.deliver(&again, &[(0, Err("no"))], true).await;
    queue.close(&again, Closing::Finished).await;
    finish_all().await;
    queue.check().await;
}
