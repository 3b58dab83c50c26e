//! Job types as administrators set them: what is not named stays, what is in use is not removed, and no change is lost.

use crate::queue::{Queue, backend, queue};
use pcfarm_proto::ids::JobId;
use pcfarm_sql::job_types::{self, Details};
use pcfarm_sql::json::RawJson;
use pcfarm_sql::sharing::{self, LOST_UPDATE};
use pcfarm_sql::usage;

async fn shown(queue: &Queue, name: &str) -> Details {
    job_types::details(&*queue.server().await, Some(name)).await.expect("read").pop().expect("there")
}

async fn set(queue: &Queue, name: &str, options: &str, anew: bool) -> bool {
    let options = RawJson(options.to_owned().into());
    job_types::set(&*queue.server().await, name, &options, anew, "").await.expect("set")
}

/// The SQLSTATE that a change is refused with; empty: it is not.
fn state<T>(outcome: Result<T, tokio_postgres::Error>) -> String {
    outcome.err().map(|error| error.code().expect("the database's").code().to_owned()).unwrap_or_default()
}

#[tokio::test]
async fn what_is_not_named_stays() {
    let queue = queue().await;
    queue.run("select pcfarm.set_resource('licence', 5); select pcfarm.set_resource('slot', 5)").await;
    let all = r#"{"controller": "solver", "description": "d", "default_priority": 4, "default_duration": "8 hours",
        "max_attempts": 7, "retry_delay": "1 month", "retry_delay_limit": "2 months", "time_limit": "90 seconds", "retry_first": true,
        "keep_results": false, "retention": "90 days", "labels": ["big", "fast"], "resources": {"licence": 2}}"#;
    assert!(set(&queue, "solve", all, false).await, "it is a new one");
    let before = shown(&queue, "solve").await;
    assert_eq!((before.default_duration, before.time_limit, before.max_attempts), (Some(28_800.0), Some(90.0), 7));
    assert!(!set(&queue, "solve", r#"{"max_attempts": 2, "resources": {"slot": 1}}"#, false).await);
    let after = shown(&queue, "solve").await;
    assert_eq!(after.resources, [("licence".to_owned(), 2), ("slot".to_owned(), 1)]);
    assert_ne!(after.version, before.version);
    let same =
        Details { max_attempts: 7, resources: before.resources.clone(), version: before.version.clone(), ..after };
    assert_eq!(format!("{same:?}"), format!("{before:?}"));
    // An interval of the calendar stays one, whatever its seconds are.
    assert_eq!(queue.text("select retry_delay::text from pcfarm.job_type where name = 'solve'").await, "1 mon");
    set(&queue, "solve", r#"{"retention": null, "labels": null, "resources": {"licence": 0}}"#, false).await;
    let after = shown(&queue, "solve").await;
    assert_eq!((after.retention, after.labels.len(), after.resources), (None, 0, vec![("slot".to_owned(), 1)]));
    // Anew, what is not named is as of a new one.
    assert!(!set(&queue, "solve", r#"{"controller": "other"}"#, true).await);
    let after = shown(&queue, "solve").await;
    assert_eq!((after.controller.as_str(), after.max_attempts, after.keep_results), ("other", 3, true));
    assert_eq!((after.default_duration, after.resources.len(), after.description.as_str()), (None, 0, ""));
    // All of it can be asked for later; what stays the same is no event.
    let events = "select count(*) from pcfarm.event where what like 'resources of a job type%' and subject = 'solve'";
    assert_eq!(queue.number(events).await, 4, "two made, two removed");
    set(&queue, "solve", r#"{"controller": "other"}"#, true).await;
    let changes = "select count(*) from pcfarm.event where what like 'job type%' and subject = 'solve'";
    assert_eq!(queue.number(changes).await, 4, "made, and changed three times");
}

#[tokio::test]
async fn whose_rights_its_sql_has_stays() {
    let queue = queue().await;
    queue
        .run(
            "do $$ begin create role pcfarm_types_reader login; exception when duplicate_object or unique_violation then null; end $$;
             do $$ begin create role pcfarm_types_writer nologin; exception when duplicate_object or unique_violation then null; end $$;
             select pcfarm.create_job_type('told', 'c',
                 '{\"read_role\": \"pcfarm_types_reader\", \"read_time_limit\": \"5 seconds\", \"write_role\": \"pcfarm_types_writer\"}');
             select pcfarm.set_related_read('told', 'prices', 'select null::text as key, 1 as price');
             select pcfarm.set_write_back('told', 'select 1')",
        )
        .await;
    for (options, anew) in [(r#"{"max_attempts": 1}"#, false), (r#"{"controller": "d"}"#, true)] {
        set(&queue, "told", options, anew).await;
        let told = shown(&queue, "told").await;
        assert_eq!(told.read_role.as_deref(), Some("pcfarm_types_reader"), "{options}");
        assert_eq!(told.write_role.as_deref(), Some("pcfarm_types_writer"), "{options}");
        assert_eq!((told.read_time_limit, told.reads.len(), told.write_back.as_deref()), (5.0, 1, Some("select 1")));
    }
    // With it goes the function that writes back.
    job_types::delete(&*queue.server().await, "told", "").await.expect("removed");
    assert_eq!(
        queue
            .number(
                "select (select count(*) from pg_proc where pronamespace = 'pcfarm_write_back'::regnamespace)
                    + (select count(*) from pcfarm.related_read)"
            )
            .await,
        0
    );
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_with_what_it_is_about() {
    let queue = queue().await;
    let cases = [
        ("new", "{}", "22023", "job_type_controller"),
        ("no name", r#"{"controller": "c"}"#, "23514", "job_type_name"),
        ("t", r#"{"max_attempts": 0}"#, "23514", "attempts_range"),
        ("t", r#"{"time_limit": "0 seconds"}"#, "23514", "positive_time_limit"),
        ("t", r#"{"resources": {"nothing": 1}}"#, "42704", "job_type_resources"),
        ("t", r#"{"resources": 7}"#, "22023", "job_type_resources"),
        ("t", r#"{"prioirty": 1}"#, "22023", ""),
    ];
    let client = queue.server().await;
    for (name, options, code, constraint) in cases {
        let refused = job_types::set(&client, name, &RawJson(options.to_owned().into()), false, "").await;
        let refused = refused.expect_err(options);
        let said = refused.as_db_error().expect("by the database");
        assert_eq!((said.code().code(), said.constraint().unwrap_or_default()), (code, constraint), "{options}");
    }
    assert_eq!(shown(&queue, "t").await.max_attempts, 3, "it is as it was");
}

#[tokio::test]
async fn what_is_in_use_is_not_removed() {
    let queue = queue().await;
    for name in ["a", "b"] {
        set(&queue, name, r#"{"controller": "c"}"#, false).await;
    }
    queue.run("select pcfarm.set_profile('a', '{}'); select pcfarm.set_user_job_type('{ann}', 'a', '{\"concurrency\": 1}')").await;
    let refused = async |name: &str| {
        let refused = job_types::delete(&*queue.server().await, name, "").await.expect_err("in use");
        let said = refused.as_db_error().expect("by the database").clone();
        (said.code().code().to_owned(), said.message().to_owned())
    };
    let of_b = queue.job_of("b", 1, 1).await;
    // One problem of a job of another type is use enough.
    queue
        .run("select pcfarm.submit('j', 'b', 'select ''k'' as key, to_jsonb(1) as payload, ''a'' as job_type', 1)")
        .await;
    queue.run("select * from pcfarm.subscribe('{\"job_type\": \"a\", \"notify\": \"c\"}')").await;
    queue.run("select pcfarm.set_selection('{pc1}', '{\"job_types\": [\"a\"]}')").await;
    queue
        .run(
            "insert into pcfarm.schedule (owner, name, recurrence, template)
             values ('ann', 'nightly', '@daily', '{\"job_type\": \"a\"}');
             insert into pcfarm.submission (asked, content_type, kept_in) values ('{\"job_type\": \"a\"}', 'text/csv', 'database')",
        )
        .await;
    let mixed = JobId(of_b.0 + 1);
    let expected = format!(
        "job type a is in use: jobs {mixed}; schedules ann/nightly; subscriptions 1; submissions 1; selections of pc1"
    );
    assert_eq!(refused("a").await, ("55000".to_owned(), expected));
    let (_, said) = refused("b").await;
    assert_eq!(said, format!("job type b is in use: jobs {mixed}, {of_b}"));
    assert_eq!(refused("none").await.0, "P0002");
    queue
        .run(
            "delete from pcfarm.schedule; delete from pcfarm.submission; select pcfarm.unsubscribe(1);
             select pcfarm.set_selection('{pc1}', '{\"job_types\": null}');
             update pcfarm.lane set job_type = 'b' where job_type = 'a'",
        )
        .await;
    job_types::delete(&*queue.server().await, "a", "").await.expect("removed");
    assert_eq!(queue.number("select count(*) from pcfarm.profile").await, 0);
    assert_eq!(
        queue.number("select count(*) from pcfarm.event where what = 'job type removed' and subject = 'a'").await,
        1
    );
}

/// Whoever makes a job meanwhile waits, and finds that there is no such type any more.
#[tokio::test]
async fn a_job_that_comes_while_its_type_is_removed_is_refused() {
    let queue = queue().await;
    set(&queue, "a", r#"{"controller": "c"}"#, false).await;
    queue.run("begin; select pcfarm.delete_job_type('a')").await;
    let other = queue.database.client().await;
    let waiting = backend(&other).await;
    let (created, ()) = tokio::join!(other.batch_execute("select pcfarm.create_job('j', 'a')"), async {
        queue.until_blocked(waiting).await;
        queue.run("commit").await;
    });
    assert_eq!(state(created), "23503");
    assert_eq!(queue.number("select count(*) from pcfarm.job").await, 0);
}

/// Nor does a schedule come to be whose job type is not there.
#[tokio::test]
async fn a_schedule_that_comes_while_its_jobs_type_is_removed_is_refused() {
    let queue = queue().await;
    set(&queue, "a", r#"{"controller": "c"}"#, false).await;
    queue.run("begin; select pcfarm.delete_job_type('a')").await;
    let other = queue.database.client().await;
    let waiting = backend(&other).await;
    let create = "select pcfarm.create_schedule('nightly', '@daily',
        '{\"template\": {\"job_type\": \"a\", \"loads\": [{\"query\": \"select 1\"}]}}')";
    let (created, ()) = tokio::join!(other.batch_execute(create), async {
        queue.until_blocked(waiting).await;
        queue.run("commit").await;
    });
    let refused = created.expect_err("refused");
    assert!(
        refused.as_db_error().expect("by the database").message().contains("there is no job type a"),
        "{refused:?}"
    );
    assert_eq!(queue.number("select count(*) from pcfarm.schedule").await, 0);
}

/// Whoever changes one that is being removed does not make another by it.
#[tokio::test]
async fn a_change_of_what_is_removed_makes_nothing() {
    let queue = queue().await;
    set(&queue, "a", r#"{"controller": "c"}"#, false).await;
    queue.run("begin; select pcfarm.delete_job_type('a')").await;
    let other = queue.server().await;
    let waiting = backend(&other).await;
    let options = RawJson(r#"{"controller": "d"}"#.to_owned().into());
    let (changed, ()) = tokio::join!(job_types::set(&other, "a", &options, false, "*"), async {
        queue.until_blocked(waiting).await;
        queue.run("commit").await;
    });
    assert_eq!(state(changed), LOST_UPDATE);
    assert_eq!(queue.number("select count(*) from pcfarm.job_type where name = 'a'").await, 0);
    set(&queue, "a", r#"{"controller": "c"}"#, false).await;
    assert!(!job_types::set(&other, "a", &options, false, "*").await.expect("there is one"));
    assert_eq!(shown(&queue, "a").await.controller, "d");
}

#[tokio::test]
async fn a_change_is_made_to_the_version_that_it_was_meant_for() {
    let queue = queue().await;
    let client = queue.server().await;
    let json = |text: &str| RawJson(text.to_owned().into());
    // A job type, which may be expected not to be there.
    let new = |version: &'static str| {
        let client = &client;
        async move { state(job_types::set(client, "a", &json(r#"{"controller": "c"}"#), true, version).await) }
    };
    assert_eq!(new("0123").await, LOST_UPDATE);
    assert_eq!(new("none").await, "");
    assert_eq!(new("none").await, LOST_UPDATE, "there is one now");
    let seen = shown(&queue, "a").await.version;
    let change = async |version: &str| {
        state(job_types::set(&client, "a", &json(r#"{"max_attempts": 9}"#), false, version).await)
    };
    // Suspending it is no change of it.
    queue.run("select pcfarm.suspend_job_type('a')").await;
    assert_eq!(change(&seen).await, "");
    assert_eq!(change(&seen).await, LOST_UPDATE);
    assert_eq!(state(job_types::delete(&client, "a", &seen).await), LOST_UPDATE);
    // A resource.
    let tokens = async |version: &str| state(sharing::set_resource(&client, "licence", Some(5), "d", version).await);
    assert_eq!(tokens("none").await, "");
    let seen = sharing::resources(&client).await.expect("read").remove(0).version;
    queue.run("select pcfarm.set_resource('licence', 6)").await;
    assert_eq!(tokens(&seen).await, LOST_UPDATE);
    assert_eq!(queue.number("select tokens from pcfarm.resource").await, 6);
    // Limits of a user, of one job type or of all.
    let names = ["ann".to_owned()];
    let limits = json(r#"{"concurrency": 3}"#);
    assert_eq!(state(sharing::set_users(&client, &names, &limits, "none").await), "");
    let seen = sharing::users(&client).await.expect("read").remove(0).version;
    assert_eq!(state(sharing::set_users_of_type(&client, &names, "t", &limits, &seen).await), "");
    assert_eq!(state(sharing::set_users(&client, &names, &limits, &seen).await), LOST_UPDATE);
    let (_, seen) = sharing::default_limits(&client).await.expect("read");
    assert_eq!(state(sharing::set_default_limits(&client, &limits, &seen).await), "");
    assert_eq!(state(sharing::set_default_limits(&client, &limits, &seen).await), LOST_UPDATE);
    // A quota, of whoever has none yet.
    let seen = usage::quotas(&client, Some(&names)).await.expect("read").remove(0).version;
    let quota = json(r#"{"problems": 5}"#);
    assert_eq!(state(usage::set_quotas(&client, &names, "day", &quota, &seen).await), "");
    assert_eq!(state(usage::set_quotas(&client, &names, "month", &quota, &seen).await), LOST_UPDATE);
    queue.check().await;
}

/// Two that have read the same version: the second one waits for the first, and is refused.
#[tokio::test]
async fn of_two_at_the_same_time_one_is_refused() {
    let queue = queue().await;
    let seen = shown(&queue, "t").await.version;
    queue.run("begin; select pcfarm.create_job_type('t', 'c', '{\"max_attempts\": 5}')").await;
    let other = queue.server().await;
    let waiting = backend(&other).await;
    let options = RawJson(r#"{"max_attempts": 6}"#.to_owned().into());
    let (changed, ()) = tokio::join!(job_types::set(&other, "t", &options, false, &seen), async {
        queue.until_blocked(waiting).await;
        queue.run("commit").await;
    });
    assert_eq!(state(changed), LOST_UPDATE);
    assert_eq!(shown(&queue, "t").await.max_attempts, 5);
}
