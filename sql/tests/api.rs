//! What the API has of its own in the database: requests that are done once, versions, submissions, usage and quotas.
#![cfg(feature = "testing")]

mod queue;

use pcfarm_proto::ids::{JobId, ServerId};
use pcfarm_sql::jobs;
use pcfarm_sql::json::RawJson;
use pcfarm_sql::requests::{self, Claim, Id, Kept};
use pcfarm_sql::submissions::{self, Ended, KeptIn};
use queue::queue;

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

#[tokio::test]
async fn a_submission_is_loaded_once() {
    let queue = queue().await;
    let client = queue.server().await;
    let asked = RawJson(r#"{"name": "x", "job_type": "t", "form": "csv"}"#.into());
    let begin =
        async |key| submissions::begin(&client, &asked, "text/csv", KeptIn::Database, key).await.expect("begun");
    let first = begin(Some("k")).await;
    submissions::add_piece(&client, first, 0, b"key\na\n").await.expect("written");
    assert!(submissions::claim(&client).await.expect("looked").is_none(), "it is not whole");
    assert_eq!(submissions::stored(&client, first, b"hash", 6).await.expect("stored"), Ended::Stored);
    for (hash, same) in [(b"hash", true), (b"else", false)] {
        let again = begin(Some("k")).await;
        let ended = submissions::stored(&client, again, hash, 6).await.expect("ended");
        assert_eq!(ended, Ended::Before { id: first, same });
        submissions::drop_unfinished(&client, again).await.expect("dropped");
    }
    submissions::set_intake(&client, true, "tonight").await.expect("paused");
    assert!(submissions::claim(&client).await.expect("looked").is_none());
    submissions::set_intake(&client, false, "").await.expect("goes on");
    let claimed = submissions::claim(&client).await.expect("looked").expect("one");
    assert_eq!((claimed.id, claimed.sha256.as_slice()), (first, b"hash".as_slice()));
    assert!(submissions::claim(&client).await.expect("looked").is_none(), "somebody is at it");
    let job = queue.job(1, 1).await;
    submissions::loaded(&client, first, job, 1).await.expect("marked");
    let twice = submissions::loaded(&client, first, job, 1).await.expect_err("by somebody else");
    assert_eq!(twice.code().map(|code| code.code()), Some("40001"));
    // What is kept no longer is removed, and the row stays.
    queue.run("update pcfarm.intake set keep = '0'").await;
    submissions::forget(&*client).await.expect("forgotten");
    assert_eq!(queue.number("select count(*) from pcfarm.submission_piece").await, 0);
    let one =
        submissions::submissions(&client, None, Some(first), None, None, 1).await.expect("read").pop().expect("there");
    assert!(one.removed_at.is_some() && one.job_id == Some(job));
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

#[tokio::test]
async fn a_quota_holds_for_loads_that_are_committed() {
    let queue = queue().await;
    let client = queue.server().await;
    let me = queue.text("select session_user::text").await;
    pcfarm_sql::usage::set_quota(&client, &me, "day", Some(5), None).await.expect("set");
    queue.job(4, 1).await;
    let load =
        "select pcfarm.submit('j', 't', 'select ''a'' as key, to_jsonb(1) as payload from generate_series(1, 2)', 1)";
    let (state, said) = queue.refused(load).await;
    assert!(state == "53400" && said.contains("quota"), "{state} {said}");
    queue.job(1, 1).await;
    let quotas = pcfarm_sql::usage::quotas(&client, &me).await.expect("read");
    assert_eq!((quotas[0].used, quotas[0].problems), (5, Some(5)));
    pcfarm_sql::usage::set_quota(&client, &me, "day", None, Some(0.0)).await.expect("set");
    assert_eq!(queue.refused(load).await.0, "53400");
    pcfarm_sql::usage::set_quota(&client, &me, "day", None, None).await.expect("none any more");
    queue.run(load).await;
}
