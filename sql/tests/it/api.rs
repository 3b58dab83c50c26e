//! What the API has of its own in the database: requests that are done once, versions, submissions, usage and quotas.

use crate::queue::{Queue, queue};
use deadpool_postgres::ClientWrapper;
use pcfarm_proto::ids::{JobId, ServerId};
use pcfarm_sql::jobs;
use pcfarm_sql::json::RawJson;
use pcfarm_sql::requests::{self, Claim, Id, Kept};
use pcfarm_sql::submissions::{self, Attempt, Ended, KeptIn, Room, ToLoad};
use std::time::Duration;

fn request(server: i64) -> Id {
    Id { owner: "mia".to_owned(), key: "k".to_owned(), server_id: ServerId(server) }
}

#[tokio::test]
async fn a_request_is_begun_once_and_answered_again() {
    let queue = queue().await;
    let client = queue.server().await;
    let claim =
        async |server, digest: &[u8]| requests::claim(&client, &request(server), digest).await.expect("claimed");
    assert!(matches!(claim(1, b"a").await, Claim::New));
    assert!(matches!(claim(1, b"a").await, Claim::Running));
    assert!(matches!(claim(1, b"b").await, Claim::Different));
    // Its server is gone: another one does it, and what the first one says now is not heard.
    queue.run("insert into pcfarm.server (name, address, version) values ('s2', 'a', 'v')").await;
    queue.run("update pcfarm.server set stopped_at = clock_timestamp() where server_id = 1").await;
    assert!(matches!(claim(2, b"a").await, Claim::New));
    let kept = |body: &str| Kept { status: 201, media: None, location: None, etag: None, body: body.into() };
    requests::answered(&client, &request(1), &kept("late")).await.expect("not heard");
    requests::answered(&client, &request(2), &kept("made")).await.expect("kept");
    let Claim::Answered(answer) = claim(1, b"a").await else { panic!("answered") };
    assert_eq!((answer.status, answer.body), (201, b"made".to_vec()));
    // Another user's key is another one.
    let other = Id { owner: "ana".to_owned(), ..request(2) };
    assert!(matches!(requests::claim(&client, &other, b"a").await.expect("claimed"), Claim::New));
    requests::released(&client, &other).await.expect("released");
    assert!(matches!(requests::claim(&client, &other, b"z").await.expect("claimed"), Claim::New));
    queue.run("update pcfarm.request set begun_at = begun_at - interval '2 days'").await;
    requests::forget(&client).await.expect("forgotten");
    assert_eq!(queue.number("select count(*) from pcfarm.request").await, 0);
}

#[tokio::test]
async fn a_change_is_made_to_the_version_that_it_was_meant_for() {
    let queue = queue().await;
    let client = queue.server().await;
    let job = queue.job(3, 1).await;
    let version = jobs::version(&client, job).await.expect("read").expect("there");
    let change = async |version: &str, options: &str| {
        jobs::update(&client, job, version, &RawJson(options.to_owned().into())).await
    };
    assert!(change(&version, r#"{"priority": 5}"#).await.expect("changed"));
    assert!(!change(&version, r#"{"priority": 6}"#).await.expect("another version"));
    assert!(change("", r#"{"info": {"a": 1}, "deadline": null}"#).await.expect("any version"));
    assert_eq!(queue.number("select priority::bigint from pcfarm.job").await, 5);
    // Work on the job is no change of it.
    let version = jobs::version(&client, job).await.expect("read");
    let held = queue.take(job, false, 3).await.expect("handed out");
    queue.deliver(&held, &[(0, Ok("1")), (1, Ok("1")), (2, Ok("1"))], true).await;
    assert_eq!(jobs::version(&client, job).await.expect("read"), version);
    assert_eq!(jobs::version(&client, JobId(999)).await.expect("read"), None);
}

const LEASE: Duration = Duration::from_secs(60);

/// What a server with so much room claims.
async fn claim(client: &ClientWrapper, small: usize, large: usize) -> Vec<ToLoad> {
    let room = Room { small, large, of_an_owner: 2 };
    submissions::claim(client, room, ServerId(1), LEASE).await.expect("looked")
}

#[tokio::test]
async fn a_submission_is_loaded_once() {
    let queue = queue().await;
    let client = queue.server().await;
    let asked = RawJson(r#"{"name": "x", "job_type": "t", "form": "csv"}"#.into());
    let begin =
        async |key| submissions::begin(&client, &asked, "text/csv", KeptIn::Database, key).await.expect("begun");
    let first = begin(Some("k")).await;
    submissions::add_piece(&client, first, 0, b"key\na\n").await.expect("written");
    assert!(claim(&client, 9, 9).await.is_empty(), "it is not whole");
    for _ in 0..2 {
        // Who has not heard the answer asks again.
        assert_eq!(submissions::stored(&client, first, b"hash", 6).await.expect("stored"), Ended::Stored);
    }
    assert_eq!(submissions::stored(&client, 999, b"hash", 6).await.expect("looked"), Ended::GivenUp);
    for (hash, same) in [(b"hash", true), (b"else", false)] {
        let again = begin(Some("k")).await;
        let ended = submissions::stored(&client, again, hash, 6).await.expect("ended");
        assert_eq!(ended, Ended::Before { id: first, same });
        submissions::drop_unfinished(&*client, again).await.expect("dropped");
    }
    submissions::set_intake(&client, true, "tonight").await.expect("paused");
    assert!(claim(&client, 9, 9).await.is_empty());
    submissions::set_intake(&client, false, "").await.expect("goes on");
    let claimed = claim(&client, 9, 9).await.remove(0);
    let attempt = claimed.attempt;
    assert_eq!((attempt.id, claimed.sha256.as_slice()), (first, b"hash".as_slice()));
    assert!(claim(&client, 9, 9).await.is_empty(), "somebody is at it");
    let job = queue.job(1, 1).await;
    submissions::loaded(&client, attempt, job, 1).await.expect("marked");
    assert!(
        submissions::renew(&client, &[attempt], LEASE).await.expect("asked").is_empty(),
        "it is over, and not lost"
    );
    let twice = submissions::loaded(&client, attempt, job, 1).await.expect_err("by somebody else");
    assert_eq!(twice.code().map(|code| code.code()), Some("40001"));
    // What is kept no longer is removed, and the row stays.
    queue.run("update pcfarm.intake set keep = '0'").await;
    let old = submissions::old(&*client, KeptIn::Database, 0, 10).await.expect("found");
    submissions::are_gone(&*client, &old).await.expect("forgotten");
    assert_eq!(queue.number("select count(*) from pcfarm.submission_piece").await, 0);
    let one =
        submissions::submissions(&client, None, Some(first), None, None, 1).await.expect("read").pop().expect("there");
    assert!(one.removed_at.is_some() && one.job_id == Some(job));
}

#[tokio::test]
async fn an_attempt_that_was_taken_over_is_not_heard_any_more() {
    let queue = queue().await;
    let client = queue.server().await;
    stored(&queue, "ana", &[1]).await;
    let first = claim(&client, 9, 9).await.remove(0).attempt;
    assert!(submissions::renew(&client, &[first], LEASE).await.expect("renewed").is_empty());
    // Its server says nothing for too long.
    queue.run("update pcfarm.submission set next_attempt_at = clock_timestamp()").await;
    let second = claim(&client, 9, 9).await.remove(0).attempt;
    assert_eq!(second, Attempt { number: first.number + 1, ..first });
    assert_eq!(submissions::renew(&client, &[first], LEASE).await.expect("asked"), [first.id], "it is told");
    let job = queue.job(1, 1).await;
    let late = submissions::loaded(&client, first, job, 1).await.expect_err("another one is at it");
    assert_eq!(late.code().map(|code| code.code()), Some("40001"));
    submissions::refused(&client, first, "no").await.expect("not heard");
    submissions::postponed(&client, first, "later", 0.0).await.expect("not heard");
    assert!(claim(&client, 9, 9).await.is_empty(), "it is the second one's");
    submissions::loaded(&client, second, job, 1).await.expect("marked");
    assert_eq!(queue.number("select count(*) from pcfarm.submission where state = 'queued'").await, 1);
}

/// So many megabytes each, in this order.
async fn stored(queue: &Queue, owner: &str, megabytes: &[i64]) {
    let insert = format!(
        "insert into pcfarm.submission (owner, asked, content_type, kept_in, state, bytes, sha256, stored_at, next_attempt_at)
         select '{owner}', '{{}}', 'text/csv', 'database', 'stored', m.megabytes << 20, 'x', now(),
             now() - interval '1 hour' + m.number * interval '1 second'
         from unnest(array{megabytes:?}::bigint[]) with ordinality as m(megabytes, number)"
    );
    queue.run(&insert).await;
}

#[tokio::test]
async fn owners_take_turns_and_small_ones_do_not_wait_for_large_ones() {
    let queue = queue().await;
    let client = queue.server().await;
    let (small, large) = (1, 100);
    stored(&queue, "ana", &[large, large, large, small, small, small, small]).await;
    stored(&queue, "ben", &[large]).await;
    stored(&queue, "eve", &[small]).await;
    let owners = |claimed: &[ToLoad], is_large: bool| {
        let mut owners: Vec<String> =
            claimed.iter().filter(|one| one.is_large == is_large).map(|one| one.owner.clone()).collect();
        owners.sort();
        owners
    };
    // All of whom it is, although ana's were there first, and came in numbers.
    let claimed = claim(&client, 2, 2).await;
    assert_eq!(owners(&claimed, false), ["ana", "eve"]);
    assert_eq!(owners(&claimed, true), ["ana", "ben"]);
    // Of what is left, no more than one owner's share; what others load counts.
    let more = claim(&client, 9, 9).await;
    assert_eq!(owners(&more, false), ["ana"]);
    assert_eq!(owners(&more, true), [""; 0]);
    let attempts: Vec<Attempt> = claimed.iter().chain(&more).map(|one| one.attempt).collect();
    let first_large = claimed.iter().find(|one| one.is_large && one.owner == "ana").expect("claimed").attempt;
    let oldest = queue.number("select min(submission_id) from pcfarm.submission where owner = 'ana'").await;
    assert_eq!(first_large.id, oldest, "the one that waits for longest comes first");
    for attempt in attempts {
        submissions::refused(&client, attempt, "done with").await.expect("ended");
    }
    let claimed = claim(&client, 9, 1).await;
    assert_eq!((owners(&claimed, false).len(), owners(&claimed, true).len()), (2, 1));
    assert!(claim(&client, 0, 0).await.is_empty());
}

#[tokio::test]
async fn what_agents_say_that_it_took_is_summed_by_day_and_user() {
    let queue = queue().await;
    let client = queue.server().await;
    let job = queue.job(4, 1).await;
    for _ in 0..2 {
        let held = queue.take(job, false, 2).await.expect("handed out");
        queue.deliver(&held, &[(0, Ok("1")), (1, Ok("1"))], true).await;
    }
    pcfarm_sql::upkeep::count_progress(&*client).await.expect("counted");
    let usage = pcfarm_sql::usage::usage(&client, "2026-01-01", None).await.expect("read");
    assert_eq!((usage.len(), usage[0].done, usage[0].cpu_seconds), (1, 4, 1.0));
    assert!(pcfarm_sql::usage::usage(&client, "2026-01-01", Some("nobody")).await.expect("read").is_empty());
}

/// Work was accepted while the clock was ahead. It counts when its hour comes, and not each day until then.
#[tokio::test]
async fn cpu_seconds_of_hours_in_the_future_are_not_used_yet() {
    let queue = queue().await;
    let client = queue.server().await;
    let me = queue.text("select session_user::text").await;
    let options = RawJson(r#"{"cpu_seconds": 10}"#.to_owned().into());
    pcfarm_sql::usage::set_quotas(&client, &[me], "day", &options, "").await.expect("set");
    let accepted = "insert into pcfarm.statistic (hour, job_type, owner, done, failed, requeued, busy_seconds)
        select date_trunc('hour', clock_timestamp(), 'UTC') + ahead, 't', session_user, 1, 0, 0, 2000";
    queue.run(&format!("{accepted} from (values (interval '1 hour'), ('3 years')) v(ahead)")).await;
    queue.job(1, 1).await;
    queue.run(&format!("{accepted} from (values (interval '0')) v(ahead)")).await;
    let load = "select pcfarm.submit('j', 't', 'select ''a'' as key, to_jsonb(1) as payload', 1)";
    assert_eq!(queue.refused(load).await.0, "53400");
}

#[tokio::test]
async fn a_quota_holds_for_loads_that_are_committed() {
    let queue = queue().await;
    let client = queue.server().await;
    let me = queue.text("select session_user::text").await;
    let names = ["ann".to_owned(), me.clone()];
    let set = async |options: &str| {
        let options = RawJson(options.to_owned().into());
        pcfarm_sql::usage::set_quotas(&client, &names, "day", &options, "").await.expect("set");
    };
    set(r#"{"problems": 5}"#).await;
    queue.job(4, 1).await;
    let load =
        "select pcfarm.submit('j', 't', 'select ''a'' as key, to_jsonb(1) as payload from generate_series(1, 2)', 1)";
    let (state, said) = queue.refused(load).await;
    assert!(state == "53400" && said.contains("quota"), "{state} {said}");
    queue.job(1, 1).await;
    let mine = &pcfarm_sql::usage::quotas(&client, Some(&names[1..])).await.expect("read")[0].quotas;
    assert_eq!((mine[0].used, mine[0].problems, mine[0].cpu_seconds), (5, Some(5), None));
    set(r#"{"cpu_seconds": 0}"#).await;
    let all = pcfarm_sql::usage::quotas(&client, None).await.expect("read");
    assert_eq!((all.len(), all[0].user.as_str()), (2, "ann"));
    assert!(all.iter().all(|of| of.quotas[0].problems == Some(5) && of.quotas[0].cpu_seconds == Some(0.0)), "{all:?}");
    set(r#"{"problems": null}"#).await;
    assert_eq!(queue.refused(load).await.0, "53400", "none of its time is left");
    queue.run(&format!("select pcfarm.set_quota('{me}', 'day', null, null)")).await;
    queue.run(load).await;
    let left = pcfarm_sql::usage::quotas(&client, None).await.expect("read");
    assert_eq!((left.len(), left[0].user.as_str()), (1, "ann"));
    assert_eq!(queue.refused("select pcfarm.set_quotas('{ann}', 'week', '{\"problems\": 1}')").await.0, "22023");
    assert_eq!(queue.refused("select pcfarm.set_quotas('{ann}', 'day', '{\"problems\": -1}')").await.0, "23514");
}
