//! Files in the database: put once, by whom, who may fetch them, and when they go.

use crate::queue::{self, Held, Queue, queue};
use deadpool_postgres::ClientWrapper;
use files::Output;
use pcfarm_proto::files::FileHash;
use pcfarm_proto::ids::{JobId, ProblemId};
use pcfarm_sql::access::Rights;
use pcfarm_sql::files;

fn hash(n: u8) -> FileHash {
    FileHash([n; 32])
}

/// A file of this hash in two pieces; nothing here looks at what they are. Whether it had been there before.
async fn put(client: &ClientWrapper, n: u8) -> bool {
    let file = coming(client, n).await;
    files::is_whole(client, file, hash(n), 5, "a file").await.expect("put").expect("not given up")
}

async fn coming(client: &ClientWrapper, n: u8) -> i64 {
    let file = files::begin(client).await.expect("begun");
    for (number, piece) in (0..).zip([[n; 3].as_slice(), &[n; 2]]) {
        assert!(files::add_piece(client, file, number, piece).await.expect("added"));
    }
    file
}

async fn module(queue: &Queue, job_type: &str, n: u8) {
    queue.run(&format!("select pcfarm.create_job_type('{job_type}', 'wasm:{}')", hash(n))).await;
}

async fn number_of_files(queue: &Queue) -> (i64, i64) {
    let pieces = queue.number("select count(*) from pcfarm.file_piece").await;
    (queue.number("select count(*) from pcfarm.file").await, pieces)
}

async fn act_as(client: &ClientWrapper, user: &str) {
    pcfarm_sql::access::act_as(client, user, Rights::All, None).await.expect("acting");
}

#[tokio::test]
async fn a_file_is_kept_once_for_all_who_have_put_it() {
    let queue = queue().await;
    let client = queue.server().await;
    act_as(&client, "mia").await;
    assert!(!put(&client, 1).await);
    assert!(put(&client, 1).await, "again");
    act_as(&client, "ana").await;
    assert!(put(&client, 1).await, "by somebody else");
    assert!(!put(&client, 2).await);
    assert_eq!(number_of_files(&queue).await, (2, 4));
    let of = async |owner: Option<&str>, before, only| {
        let found = files::files(&client, owner, before, only, 100).await.expect("listed");
        found.into_iter().map(|file| (file.holder_id, file.owner, file.hash)).collect::<Vec<_>>()
    };
    let all = of(None, None, None).await;
    let seen: Vec<(&str, FileHash)> = all.iter().map(|(_, owner, hash)| (owner.as_str(), *hash)).collect();
    assert_eq!(seen, [("ana", hash(2)), ("ana", hash(1)), ("mia", hash(1))]);
    assert_eq!(of(Some("mia"), None, None).await, all[2..]);
    assert_eq!(of(None, Some(all[0].0), None).await, all[1..]);
    assert_eq!(of(Some("mia"), None, Some(hash(2))).await, []);

    // Who lets go of it has it no more, and others have.
    files::let_go(&client, all[1].0).await.expect("gone");
    assert_eq!(of(None, None, Some(hash(1))).await, all[2..]);

    // What is not whole is nobody's, and has no name.
    let unfinished = coming(&client, 3).await;
    assert_eq!(of(None, None, Some(hash(3))).await, []);
    files::drop_unfinished(&client, unfinished).await.expect("dropped");
    assert!(!files::add_piece(&client, unfinished, 2, b"late").await.expect("asked"));
    assert_eq!(files::is_whole(&client, unfinished, hash(3), 9, "late").await.expect("asked"), None);

    // Nobody has more than may be.
    queue.run("update pcfarm.intake set most_file_bytes = 7").await;
    let one_too_many = coming(&client, 4).await;
    files::is_whole(&client, one_too_many, hash(4), 5, "x").await.expect_err("ana has five bytes already");
    files::drop_unfinished(&client, one_too_many).await.expect("dropped");
    assert_eq!(number_of_files(&queue).await, (2, 4));
}

/// Whoever is second waits for the first, whether that one commits or not.
#[tokio::test]
async fn two_who_put_the_same_at_once_have_one() {
    for commits in [true, false] {
        let queue = queue().await;
        let second = queue.server().await;
        let (ours, theirs) = (coming(&second, 1).await, coming(&second, 1).await);
        let text = format!("select * from pcfarm.file_is_whole({ours}, decode('{}', 'hex'), 5, 'first')", hash(1));
        queue.run("begin").await;
        queue.run(&text).await;
        let backend = queue::backend(&second).await;
        let (repeated, ()) = tokio::join!(files::is_whole(&second, theirs, hash(1), 5, "second"), async {
            queue.until_blocked(backend).await;
            queue.run(if commits { "commit" } else { "rollback" }).await;
        });
        assert_eq!(repeated.expect("put"), Some(commits));
        let whole = queue.number("select count(*) from pcfarm.file where sha256 is not null").await;
        assert_eq!(whole, 1, "committed: {commits}");
    }
}

#[tokio::test]
async fn a_checkout_lets_its_module_be_fetched_and_nothing_else() {
    let queue = queue().await;
    let client = queue.server().await;
    for n in 1..=3 {
        put(&client, n).await;
    }
    let (code, message) = queue.refused(&format!("select pcfarm.create_job_type('m', 'wasm:{}')", hash(9))).await;
    assert_eq!((code.as_str(), message), ("22023", format!("there is no file {}", hash(9))));
    for wrong in ["wasm:", "wasm:x", &format!("wasm:{}", "A".repeat(64)), &format!("wasm:{}0", hash(1))] {
        let (code, _) = queue.refused(&format!("select pcfarm.create_job_type('m', '{wrong}')")).await;
        assert_eq!(code, "23514", "{wrong}");
    }
    module(&queue, "m", 1).await;
    module(&queue, "other", 3).await;
    let job = queue.job_of("m", 4, 1).await;
    let held = queue.take(job, false, 1).await.expect("a checkout");
    let fetches = async |token, n| {
        files::for_checkout(&client, held.checkout_id, token, hash(n)).await.expect("asked").map(|found| found.bytes)
    };
    assert_eq!(fetches(held.token, 1).await, Some(5));
    assert_eq!(fetches(held.token ^ 1, 1).await, None, "another token");
    assert_eq!(fetches(held.token, 2).await, None, "a file that it does not need");
    assert_eq!(fetches(held.token, 3).await, None, "another job type's");
    // Checkouts from before a change go on with what they were handed out with.
    module(&queue, "m", 2).await;
    assert_eq!((fetches(held.token, 1).await, fetches(held.token, 2).await), (Some(5), Some(5)));
    queue.run("select pcfarm.create_job_type('m', 'echo')").await;
    assert_eq!((fetches(held.token, 1).await, fetches(held.token, 2).await), (Some(5), Some(5)));
    queue.finish(&held).await;
    assert_eq!(fetches(held.token, 1).await, None, "a closed checkout");
}

#[tokio::test]
async fn what_nothing_needs_goes_after_its_time() {
    let queue = queue().await;
    let client = queue.server().await;
    for n in 1..=3 {
        put(&client, n).await;
    }
    let unfinished = coming(&client, 4).await;
    module(&queue, "m", 1).await;
    let forget = async || files::forget(&client).await.expect("forgotten");
    let age = async |what: &str| {
        queue.run(&format!("update pcfarm.file set touched_at = touched_at - interval '{what}'")).await;
        queue.run(&format!("update pcfarm.job_type_module set replaced_at = replaced_at - interval '{what}'")).await;
    };
    assert_eq!(forget().await, 0);
    age("2 hours").await;
    assert_eq!(forget().await, 1, "what nobody goes on sending");
    assert!(!files::add_piece(&client, unfinished, 2, b"late").await.expect("asked"));
    age("5 days").await;
    assert!(put(&client, 3).await, "put again, it is kept for its time");
    age("3 days").await;
    assert_eq!(forget().await, 1);
    assert_eq!(files::files(&client, None, None, None, 10).await.expect("listed").len(), 2, "the second is gone");
    age("8 days").await;
    assert_eq!(forget().await, 1);

    // The module outlives the job type's change by its time.
    queue.run("select pcfarm.create_job_type('m', 'echo')").await;
    assert_eq!((forget().await, number_of_files(&queue).await), (0, (1, 2)));
    age("2 days").await;
    assert_eq!(forget().await, 0);
    assert_eq!(queue.number("select count(*) from pcfarm.job_type_module").await, 0);
    age("6 days").await;
    assert_eq!(forget().await, 1);
    assert_eq!(number_of_files(&queue).await, (0, 0));
}

#[tokio::test]
async fn a_job_names_files_that_its_owner_has_and_its_checkouts_fetch_them() {
    let queue = queue().await;
    let client = queue.server().await;
    act_as(&client, "mia").await;
    put(&client, 1).await;
    act_as(&client, "ana").await;
    put(&client, 2).await;
    let files = |files: &str| format!("select pcfarm.create_job('j', 't', '{{\"files\": {files}}}')");
    for (wrong, expected) in [
        (format!("{{\"a\": \"{}\"}}", hash(3)), "22023"),
        ("[]".to_owned(), "22023"),
        ("{\"a\": 1}".to_owned(), "22023"),
        ("{\"a\": \"x\"}".to_owned(), "22023"),
        (format!("{{\"../a\": \"{}\"}}", hash(1)), "23514"),
        (format!("{{\"\": \"{}\"}}", hash(1)), "23514"),
    ] {
        assert_eq!(queue.refused(&files(&wrong)).await.0, expected, "{wrong}");
    }
    let both = format!("{{\"a.bin\": \"{}\", \"b\": \"{}\"}}", hash(1), hash(2));
    pcfarm_sql::access::act_as(&client, "ana", Rights::Own, None).await.expect("acting");
    client.batch_execute(&files(&both)).await.expect_err("one of them is another user's");
    pcfarm_sql::access::act_as(&client, "ana", Rights::All, None).await.expect("acting");
    let job = JobId(client.query_one(&files(&both), &[]).await.expect("made").get(0));
    queue
        .run(&format!(
            "select pcfarm.load({job}, 'select g::text as key, to_jsonb(g) as payload from generate_series(1, 3) g', 1);
             select pcfarm.open_job({job})"
        ))
        .await;
    let lane = queue.lane(job, false).await.expect("it is open");
    assert!(lane.has_files && !lane.has_info);
    let named = files::of_job(&client, job).await.expect("read");
    assert_eq!(named, [("a.bin".to_owned(), hash(1)), ("b".to_owned(), hash(2))]);
    let held = queue.take(job, false, 1).await.expect("a checkout");
    for (n, expected) in [(1, Some(5)), (2, Some(5)), (3, None)] {
        let found = files::for_checkout(&client, held.checkout_id, held.token, hash(n)).await.expect("asked");
        assert_eq!(found.map(|found| found.bytes), expected);
    }
    // They stay while the job does, and then for their time.
    let age = "update pcfarm.file set touched_at = touched_at - interval '8 days'";
    queue.run(age).await;
    assert_eq!(files::forget(&client).await.expect("forgotten"), 0);
    queue.run(&format!("select pcfarm.cancel_job({job})")).await;
    queue.run("update pcfarm.job_type set retention = '0' where name = 't'").await;
    queue.run("update pcfarm.progress set counted = true").await;
    assert_eq!(queue.number("select pcfarm.forget_old_job()").await, 1);
    assert_eq!(files::forget(&client).await.expect("forgotten"), 0);
    queue.run(age).await;
    assert_eq!(files::forget(&client).await.expect("forgotten"), 2);
    assert_eq!(number_of_files(&queue).await, (0, 0));
}

#[tokio::test]
async fn problems_name_files_of_their_own_which_stay_while_they_do() {
    let queue = queue().await;
    let client = queue.server().await;
    for n in 1..=3 {
        act_as(&client, if n == 3 { "mia" } else { "ana" }).await;
        put(&client, n).await;
    }
    act_as(&client, "ana").await;
    let create = "select pcfarm.create_job('j', 't', '{\"problem_files\": true}')";
    let job = JobId(client.query_one(create, &[]).await.expect("made").get(0));
    let load = |job: JobId, files: &str| {
        format!(
            "select pcfarm.load({job}, $$select g::text as key, jsonb_build_object('files', {files}) as payload
             from generate_series(1, 2) g$$, 1)"
        )
    };
    for wrong in [
        format!("jsonb_build_object('a', '{}')", hash(3)),
        format!("jsonb_build_object('a', '{}')", hash(4)),
        format!("jsonb_build_object('../a', '{}')", hash(1)),
        "'[]'::jsonb".to_owned(),
        "'{\"a\": 1}'::jsonb".to_owned(),
        "'{\"a\": \"x\"}'::jsonb".to_owned(),
    ] {
        let error = client.batch_execute(&load(job, &wrong)).await.expect_err(&wrong);
        assert_eq!(error.code().map(|code| code.code()), Some("22023"), "{wrong}: {error}");
    }
    // Each of its own: the first problem the first file, the second the second.
    let own = format!("jsonb_build_object('a', case g when 1 then '{}' else '{}' end)", hash(1), hash(2));
    client.batch_execute(&load(job, &own)).await.expect("loaded");
    client.batch_execute(&format!("select pcfarm.open_job({job})")).await.expect("opened");
    assert_eq!(queue.number("select count(*) from pcfarm.problem_file").await, 2);
    let lane = queue.lane(job, false).await.expect("it is open");
    assert!(lane.problem_files && !lane.has_files);
    let held = queue.take(job, false, 1).await.expect("a checkout");
    for (n, expected) in [(1, Some(5)), (2, None), (3, None)] {
        let found = files::for_checkout(&client, held.checkout_id, held.token, hash(n)).await.expect("asked");
        assert_eq!(found.map(|found| found.bytes), expected, "a checkout gets what its own problems name");
    }
    // A job that does not say so names nothing, whatever its payloads look like.
    let other = JobId(client.query_one("select pcfarm.create_job('k', 't')", &[]).await.expect("made").get(0));
    client.batch_execute(&load(other, "'7'::jsonb")).await.expect("loaded");
    assert_eq!(queue.number("select count(*) from pcfarm.problem_file").await, 2);
    // Run again, it needs them again.
    client.batch_execute(&format!("select pcfarm.rerun_job({job})")).await.expect("run again");
    assert_eq!(queue.number("select count(*) from pcfarm.problem_file").await, 4);
    queue.run(&format!("select pcfarm.cancel_job(j.job_id) from pcfarm.job j where j.job_id <> {other}")).await;
    // They stay while problems that name them do, and then for their time.
    let age = "update pcfarm.file set touched_at = touched_at - interval '8 days'";
    queue.run(age).await;
    assert_eq!(files::forget(&client).await.expect("forgotten"), 1, "the one that nothing names");
    queue.run("update pcfarm.job_type set retention = '0' where name = 't'").await;
    queue.run("update pcfarm.progress set counted = true").await;
    while queue.number("select pcfarm.forget_old_job()").await > 0 {}
    assert_eq!(queue.number("select count(*) from pcfarm.problem_file").await, 0);
    queue.run(age).await;
    assert_eq!(files::forget(&client).await.expect("forgotten"), 2);
}

fn output(held: &Held, name: &str, n: u8) -> Output {
    let problem = ProblemId(held.problems[0].problem_id.0);
    let (checkout, token) = (held.checkout_id, held.token);
    Output { checkout, token, problem, name: name.to_owned(), hash: hash(n), bytes: 5 }
}

/// Offers it, and sends it if it is wanted. Whether it was; none: the checkout is not live.
async fn make(client: &ClientWrapper, output: &Output, n: u8) -> Option<bool> {
    let wanted = files::begin_output(client, output).await.expect("offered")?;
    if wanted {
        let file = coming(client, n).await;
        assert!(files::output_is_whole(client, file, output).await.expect("put"));
    }
    Some(wanted)
}

#[tokio::test]
async fn what_problems_make_is_their_owners_and_goes_with_them() {
    let queue = queue().await;
    let client = queue.server().await;
    act_as(&client, "ana").await;
    put(&client, 1).await;
    act_as(&client, "mia").await;
    put(&client, 2).await;
    let job = JobId(client.query_one("select pcfarm.create_job('j', 't')", &[]).await.expect("made").get(0));
    queue
        .run(&format!(
            "select pcfarm.load({job}, 'select g::text as key, to_jsonb(g) as payload from generate_series(1, 2) g', 1);
             select pcfarm.open_job({job})"
        ))
        .await;
    let [held, other] =
        [queue.take(job, false, 1).await, queue.take(job, false, 1).await].map(|held| held.expect("held"));
    let sees = async |owner: &str, n| files::made(&client, Some(owner), hash(n)).await.expect("asked").is_some();

    // Whose content another has put there must send it: to know a hash is not to have the file.
    assert_eq!(make(&client, &output(&held, "a", 1), 1).await, Some(true));
    assert_eq!(make(&client, &output(&other, "a", 1), 1).await, Some(false), "her own job has made it before");
    assert_eq!(make(&client, &output(&held, "b", 2), 2).await, Some(false), "she has put it there herself");
    assert_eq!(make(&client, &output(&held, "c", 3), 3).await, Some(true));
    assert_eq!(number_of_files(&queue).await, (3, 6), "kept once");
    assert!(sees("mia", 1).await && sees("mia", 3).await && !sees("ana", 3).await);
    assert_eq!(queue.number("select sum(bytes)::bigint from pcfarm.file_usage where owner = 'mia'").await, 5 + 4 * 5);

    // A later attempt's stands.
    assert_eq!(make(&client, &output(&held, "c", 4), 4).await, Some(true));
    let made = "select string_agg(name || get_byte(sha256, 0), chr(32) order by problem_id, name) from pcfarm.output";
    assert_eq!(queue.text(made).await, "a1 b2 c4 a1");
    let wrong_token = Output { token: held.token ^ 1, ..output(&held, "d", 5) };
    assert_eq!(make(&client, &wrong_token, 5).await, None);
    let not_its_own = Output { problem: other.problems[0].problem_id, ..output(&held, "d", 5) };
    assert_eq!(make(&client, &not_its_own, 5).await, None);

    // Nobody has more than may be, by either way.
    queue.run("update pcfarm.intake set most_file_bytes = 27").await;
    let too_many = coming(&client, 5).await;
    let refused = files::output_is_whole(&client, too_many, &output(&held, "d", 5)).await.expect_err("too many bytes");
    assert!(refused.as_db_error().expect("a refusal").message().contains("mia would have 30 bytes"), "{refused:?}");
    files::begin_output(&client, &output(&held, "d", 2)).await.expect_err("what is there counts, too");
    files::drop_unfinished(&client, too_many).await.expect("dropped");
    assert_eq!(make(&client, &output(&held, "c", 3), 3).await, Some(true), "in another's place");

    // A checkout that is not live makes nothing any more, even what was on its way.
    let late = coming(&client, 6).await;
    queue.finish(&held).await;
    assert!(!files::output_is_whole(&client, late, &output(&held, "late", 6)).await.expect("asked"));
    assert_eq!(files::begin_output(&client, &output(&held, "late", 6)).await.expect("asked"), None);
    files::drop_unfinished(&client, late).await.expect("dropped");
    queue.finish(&other).await;

    // They stay while the job does, and then for their time.
    let age = "update pcfarm.file set touched_at = touched_at - interval '8 days'";
    assert_eq!(files::forget(&client).await.expect("forgotten"), 0);
    queue.run(age).await;
    assert_eq!(files::forget(&client).await.expect("forgotten"), 1, "what c was for a while");
    queue
        .run("update pcfarm.job_type set retention = '0' where name = 't'; update pcfarm.progress set counted = true")
        .await;
    queue
        .run(&format!(
            "update pcfarm.job set state = 'done', ended_at = now() where job_id = {job} and ended_at is null"
        ))
        .await;
    while queue.number("select pcfarm.forget_old_job()").await > 0 {}
    assert_eq!(queue.number("select count(*) from pcfarm.output").await, 0);
    assert_eq!(files::forget(&client).await.expect("forgotten"), 0);
    queue.run(age).await;
    files::forget(&client).await.expect("forgotten");
    assert_eq!(number_of_files(&queue).await, (0, 0));
    let usage = "select count(*) from pcfarm.file_usage where bytes <> 0";
    files::forget(&client).await.expect("folded");
    assert_eq!(queue.number(usage).await, 0);
    assert_eq!(queue.number("select count(*) from pcfarm.file_usage").await, 2, "a row for each user");
}

/// Of two problems that have made the same each goes while the other is still seen.
#[tokio::test]
async fn of_two_that_let_go_of_a_file_at_once_neither_waits_and_it_is_not_kept_for_ever() {
    let queue = queue().await;
    let second = queue.server().await;
    act_as(&second, "mia").await;
    put(&second, 1).await;
    for problem in [1, 2] {
        queue
            .run(&format!(
                "insert into pcfarm.output (job_id, problem_id, name, sha256, bytes, owner)
                 values (1, {problem}, 'a', decode('{}', 'hex'), 5, 'mia')",
                hash(1)
            ))
            .await;
    }
    let kept = "select count(*) from pcfarm.file where touched_at = 'infinity'";
    queue.run("begin; delete from pcfarm.output where problem_id = 1").await;
    second.batch_execute("delete from pcfarm.output where problem_id = 2").await.expect("deleted");
    files::forget(&second).await.expect("forgotten");
    assert_eq!(queue.number(kept).await, 1, "one of them may stay");
    queue.run("commit").await;
    files::forget(&second).await.expect("forgotten");
    assert_eq!(queue.number(kept).await, 0);
}

/// Both add to what the user has: the second counts what the first has put.
#[tokio::test]
async fn two_at_a_time_cannot_have_more_than_one_may() {
    let queue = queue().await;
    let second = queue.server().await;
    queue.run("update pcfarm.intake set most_file_bytes = 7").await;
    let (ours, theirs) = (coming(&second, 1).await, coming(&second, 2).await);
    queue.run("begin").await;
    queue.run(&format!("select * from pcfarm.file_is_whole({ours}, decode('{}', 'hex'), 5, 'first')", hash(1))).await;
    let backend = queue::backend(&second).await;
    let (put, ()) = tokio::join!(files::is_whole(&second, theirs, hash(2), 5, "second"), async {
        queue.until_blocked(backend).await;
        queue.run("commit").await;
    });
    put.expect_err("ten bytes of seven");
}
