//! Who may be told of what, what is written down and how often, and who delivers it.

use crate::queue::{Queue, queue};
use pcfarm_proto::ids::{AlertId, JobId};
use pcfarm_sql::alerts::{self, Claimed, Wanted};
use pcfarm_sql::connect::{ConnectionTask, connect};
use std::time::Duration;
use tokio_postgres::Client;

const LEASE: Duration = Duration::from_secs(60);

async fn subscribe(queue: &Queue, options: &str) -> i64 {
    queue.number(&format!("select subscription from pcfarm.subscribe('{options}')")).await
}

/// As `what job state`, in the order in which they were written down.
async fn told(queue: &Queue) -> String {
    queue
        .text("select string_agg(format('%s %s', a.what, coalesce(a.job_id::text, '-')), ', ' order by a.alert_id) from pcfarm.alert a")
        .await
}

async fn sweep(queue: &Queue) {
    let mut after = JobId(0);
    loop {
        after = alerts::sweep(&*queue.server().await, after).await.expect("swept");
        if after == JobId(0) {
            return;
        }
    }
}

async fn claim(queue: &Queue, most: i64, not_of: &[String]) -> Vec<Claimed> {
    alerts::claim(&*queue.server().await, most, not_of, LEASE).await.expect("claimed")
}

/// A login that may load, of this database alone.
async fn loader(queue: &Queue) -> (Client, ConnectionTask, String) {
    let name = format!("{}_loader", queue.database.name);
    queue.run(&format!("create role {name} login; grant pcfarm_loader to {name}")).await;
    let mut config = queue.database.config();
    config.user(&name);
    let (client, connection) = connect(&config).await.expect("it may log in");
    (client, connection, name)
}

async fn forget(queue: &Queue, role: &str, client: Client) {
    drop(client);
    queue.run(&format!("drop owned by {role}; drop role {role}")).await;
}

async fn refused(client: &Client, statement: &str) -> (String, String) {
    let error = client.batch_execute(statement).await.expect_err(statement);
    let said = error.as_db_error().unwrap_or_else(|| panic!("{statement}: {error:?}"));
    (said.code().code().to_owned(), said.message().to_owned())
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_with_a_hint() {
    let queue = queue().await;
    let cases = [
        ("{}", "one of webhook, email and notify"),
        ("{\"email\": \"a@b.c\", \"notify\": \"x\"}", "one of webhook, email and notify"),
        ("{\"email\": \"a@b.c\", \"events\": [\"started\"]}", "no such event: ''started''"),
        ("{\"email\": \"a@b.c\", \"events\": []}", "no event is named"),
        ("{\"email\": \"a@b.c\", \"whenever\": 1}", "no such option: ''whenever''"),
        ("{\"email\": \"a@b.c, d@e.f\"}", "is no address"),
        ("{\"email\": \"a@b.c\\nBcc: d@e.f\"}", "is no address"),
        ("{\"webhook\": \"ftp://host/x\"}", "what is given is no webhook"),
        ("{\"webhook\": \"https://me:secret@host/x\"}", "is no webhook"),
        ("{\"webhook\": \"https://host/x y\"}", "is no webhook"),
        ("{\"webhook\": \"https://host/x\", \"secret\": \"guess\"}", "its secret is none"),
        ("{\"notify\": \"pcfarm\"}", "is no channel for you"),
        ("{\"notify\": \"PCFARM\"}", "is no channel for you"),
        ("{\"notify\": \"a b\"}", "is no channel for you"),
        ("{\"notify\": \"x\", \"secret\": \"y\"}", "a secret is of a webhook"),
        ("{\"notify\": \"x\", \"failed_share\": 0.5}", "of the event failures"),
        ("{\"notify\": \"x\", \"events\": [\"failures\"], \"failed_share\": 2}", "a failed_share of 2"),
        ("{\"notify\": \"x\", \"at\": \"07:00\"}", "are of a digest"),
        ("{\"notify\": \"x\", \"events\": [\"digest\"]}", "mailed or posted"),
        ("{\"email\": \"a@b.c\", \"events\": [\"digest\", \"late\"]}", "of its own"),
        ("{\"email\": \"a@b.c\", \"events\": [\"digest\"], \"time_zone\": \"Mars\"}", "no time zone"),
        ("{\"notify\": \"x\", \"job\": 1, \"job_type\": \"t\"}", "of one job, or of all of a type"),
    ];
    for (options, problem) in cases {
        let (code, message) = queue.refused(&format!("select pcfarm.subscribe('{options}')")).await;
        assert!(code == "22023" && message.contains(&problem.replace("''", "'")), "{options}: {code} {message}");
    }
    assert_eq!(queue.refused("select pcfarm.subscribe('{\"notify\": \"x\", \"job\": 99}')").await.0, "P0002");
    assert_eq!(queue.refused("select pcfarm.subscribe('{\"notify\": \"x\", \"job_type\": \"u\"}')").await.0, "42704");
    assert_eq!(queue.refused("select pcfarm.unsubscribe(99)").await.0, "P0002");
    assert_eq!(queue.refused("select pcfarm.retry_alert(99)").await.0, "P0002");
    let ended = queue.job(1, 1).await;
    queue.run(&format!("select pcfarm.cancel_job({ended})")).await;
    let of_ended = format!("select pcfarm.subscribe('{{\"notify\": \"x\", \"job\": {ended}}}')");
    assert_eq!(queue.refused(&of_ended).await.0, "55000");
    for target in ["https://host", "http://10.0.0.1:8080/a?b=c", "https://[::1]:8443/x"] {
        subscribe(&queue, &format!("{{\"webhook\": \"{target}\"}}")).await;
    }
    let places = queue.text("select string_agg(place, ' ' order by place) from pcfarm.subscription").await;
    assert_eq!(places, "http://10.0.0.1:8080 https://[::1]:8443 https://host");
}

#[tokio::test]
async fn ends_are_told_to_those_who_asked_and_in_the_transaction_that_ends() {
    let queue = queue().await;
    queue.run("select pcfarm.create_job_type('u', 'c', '{\"max_attempts\": 1}')").await;
    let (first, second) = (queue.job(1, 1).await, queue.job_of("u", 2, 1).await);
    for options in [
        "{\"notify\": \"everything\"}",
        "{\"notify\": \"type_u\", \"job_type\": \"u\", \"events\": [\"ended\", \"failed\"]}",
        "{\"notify\": \"failed\", \"events\": [\"failed\"]}",
    ] {
        subscribe(&queue, options).await;
    }
    subscribe(&queue, &format!("{{\"notify\": \"job_1\", \"job\": {first}}}")).await;
    while let Some(held) = queue.take(second, false, 1).await {
        let told = if held.keys() == ["k1"] { Ok("1") } else { Err("no") };
        queue.deliver(&held, &[(0, told)], true).await;
        queue.close(&held, pcfarm_sql::checkout::Closing::Finished).await;
    }
    assert_eq!(queue.end(second).await.as_deref(), Some("failed"));
    assert_eq!(told(&queue).await, format!("failed {second}, failed {second}, failed {second}"));
    queue.run(&format!("begin; select pcfarm.cancel_job({first}); rollback")).await;
    assert_eq!(queue.number("select count(*) from pcfarm.alert").await, 3);
    queue.run(&format!("select pcfarm.cancel_job({first})")).await;
    let of_first = format!(
        "select string_agg(s.target, ' ' order by s.target) from pcfarm.alert a join pcfarm.subscription s using (subscription_id) where a.job_id = {first} and a.what = 'cancelled'"
    );
    assert_eq!(queue.text(&of_first).await, "everything failed job_1");
    let body = queue.text(&format!("select body::text from pcfarm.alert where job_id = {second} limit 1")).await;
    for part in [
        "\"problems\": 2",
        "\"done\": 1",
        "\"failed\": 1",
        "\"state\": \"failed\"",
        &format!("\"job_id\": \"{second}\""),
    ] {
        assert!(body.contains(part), "{part}: {body}");
    }
    // It ends once more.
    queue.run(&format!("select pcfarm.retry_job({second}); select pcfarm.cancel_job({second})")).await;
    assert_eq!(queue.number(&format!("select count(*) from pcfarm.alert where job_id = {second}")).await, 6);
    queue.check().await;
}

#[tokio::test]
async fn deadlines_and_shares_of_failures_are_told_once() {
    let queue = queue().await;
    queue.run("select pcfarm.create_job_type('u', 'c', '{\"max_attempts\": 1}')").await;
    let options = "{\"notify\": \"x\", \"events\": [\"late\", \"failures\"], \"failed_share\": 0.5}";
    subscribe(&queue, options).await;
    let (job, early) = (queue.job_of("u", 4, 1).await, queue.job(1, 1).await);
    sweep(&queue).await;
    assert_eq!(told(&queue).await, "");
    queue.run(&format!("update pcfarm.job set deadline = now() - interval '1 s' where job_id = {job}")).await;
    let fail = async || {
        let held = queue.take(job, false, 1).await.expect("there is more");
        queue.deliver(&held, &[(0, Err("no"))], true).await;
        queue.close(&held, pcfarm_sql::checkout::Closing::Finished).await;
        sweep(&queue).await;
        sweep(&queue).await;
    };
    fail().await;
    assert_eq!(told(&queue).await, format!("late {job}"));
    fail().await;
    fail().await;
    assert_eq!(told(&queue).await, format!("late {job}, failures {job}"));
    // What no sweep has seen is told at the end.
    queue
        .run(&format!(
            "update pcfarm.job set deadline = now() where job_id = {early}; select pcfarm.cancel_job({early})"
        ))
        .await;
    queue.run(&format!("select pcfarm.cancel_job({job})")).await;
    sweep(&queue).await;
    assert_eq!(told(&queue).await, format!("late {job}, failures {job}, late {early}"));
}

#[tokio::test]
async fn a_sweep_waits_for_nobody_and_looks_at_all_jobs_bit_by_bit() {
    let queue = queue().await;
    subscribe(&queue, "{\"notify\": \"x\", \"events\": [\"failures\", \"late\"]}").await;
    let (mut jobs, server) = (Vec::new(), queue.server().await);
    for _ in 0..5 {
        jobs.push(queue.job(1, 1).await);
    }
    queue.run("insert into pcfarm.progress (job_id, job_type, failed) select job_id, 't', 1 from pcfarm.job").await;
    server.batch_execute(&format!("begin; select pcfarm.hold_job({})", jobs[1])).await.expect("held");
    let mut places = Vec::new();
    let mut after = 0;
    loop {
        after = queue.number(&format!("select pcfarm.sweep_alerts({after}, 2)")).await;
        places.push(after);
        if after == 0 {
            break;
        }
    }
    assert_eq!(places, [jobs[1].0, jobs[3].0, 0]);
    assert_eq!(queue.number("select count(*) from pcfarm.alert").await, 4, "one is being changed");
    server.batch_execute("commit").await.expect("committed");
    sweep(&queue).await;
    assert_eq!(queue.number("select count(*) from pcfarm.alert where what = 'failures'").await, 5);
}

#[tokio::test]
async fn loaders_are_told_of_their_own_jobs_and_see_their_own_alerts() {
    let queue = queue().await;
    let (ann, _connection, name) = loader(&queue).await;
    let of_all = subscribe(&queue, "{\"notify\": \"all\", \"all_users\": true}").await;
    subscribe(&queue, "{\"notify\": \"mine\"}").await;
    let mine: i64 = ann
        .query_one("select pcfarm.create_job('mine', 't', '{\"alerts\": [{\"notify\": \"its_own\"}]}')", &[])
        .await
        .expect("created")
        .get(0);
    let row = ann.query_one("select secret from pcfarm.subscribe('{\"webhook\": \"https://host/x\"}')", &[]).await;
    assert!(row.expect("subscribed").get::<_, &str>(0).starts_with("whsec_"));
    let others = queue.job(1, 1).await;
    for (statement, code) in [
        (format!("select pcfarm.subscribe('{{\"notify\": \"x\", \"job\": {others}}}')"), "42501"),
        ("select pcfarm.subscribe('{\"notify\": \"x\", \"all_users\": true}')".to_owned(), "42501"),
        ("select pcfarm.subscribe('{\"email\": \"a@b.c\", \"events\": [\"digest\"]}')".to_owned(), "42501"),
        (format!("select pcfarm.unsubscribe({of_all})"), "P0002"),
        ("select secret from pcfarm.subscription".to_owned(), "42501"),
        ("select * from pcfarm.alert".to_owned(), "42501"),
        ("select pcfarm.tell_of(j) from pcfarm.job j".to_owned(), "42501"),
    ] {
        assert_eq!(refused(&ann, &statement).await.0, code, "{statement}");
    }
    queue.run(&format!("select pcfarm.cancel_job({mine}); select pcfarm.cancel_job({others})")).await;
    let all =
        "select string_agg(format('%s %s', target, job_id), ', ' order by target, job_id) from pcfarm.alert_status";
    assert_eq!(
        queue.text(all).await,
        format!("all {mine}, all {others}, https://host/x {mine}, its_own {mine}, mine {others}")
    );
    let seen: String = ann.query_one(all, &[]).await.expect("a view").get(0);
    assert_eq!(seen, format!("https://host/x {mine}, its_own {mine}"));
    let alert: i64 = ann.query_one("select min(alert_id) from pcfarm.alert_status", &[]).await.expect("a view").get(0);
    ann.batch_execute(&format!("select pcfarm.retry_alert({alert})")).await.expect("its own");
    let not_its_own = queue.number("select alert_id from pcfarm.alert_status where target = 'mine'").await;
    assert_eq!(refused(&ann, &format!("select pcfarm.retry_alert({not_its_own})")).await.0, "P0002");
    let seen: i64 = ann.query_one("select count(*) from pcfarm.subscription_status", &[]).await.expect("a view").get(0);
    assert_eq!(seen, 2);
    forget(&queue, &name, ann).await;
}

#[tokio::test]
async fn secrets_are_written_nowhere_else() {
    let queue = queue().await;
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8G";
    let alerts = format!("[{{\"webhook\": \"https://host/hidden\", \"secret\": \"{secret}\"}}]");
    let create = format!("select pcfarm.create_job('j', 't', '{{\"idempotency_key\": \"k\", \"alerts\": {alerts}}}')");
    let job = queue.number(&create).await;
    assert_eq!(queue.number(&create).await, job, "the same again");
    assert_eq!(queue.number("select count(*) from pcfarm.subscription").await, 1);
    let other = create.replace("hidden", "elsewhere");
    let error = queue.client.batch_execute(&other).await.expect_err("another job");
    let said = format!("{:?}", error.as_db_error());
    assert!(said.contains("was used for job") && !said.contains(secret) && !said.contains("hidden"), "{said}");
    subscribe(&queue, &format!("{{\"webhook\": \"https://host/hidden\", \"secret\": \"{secret}\"}}")).await;
    for table in ["job", "event", "alert", "subscription_status"] {
        let rows = queue.text(&format!("select string_agg(to_jsonb(x)::text, ' ') from pcfarm.{table} x")).await;
        assert!(!rows.contains(secret), "{table}");
        assert!(table == "subscription_status" || !rows.contains("hidden"), "{table}");
    }
    let without = create.replace(&format!(", \"secret\": \"{secret}\""), "").replace("\"k\"", "\"other\"");
    assert!(queue.refused(&without).await.1.contains("needs its secret"));
    assert_eq!(queue.number("select count(*) from pcfarm.job").await, 1, "nothing is made by halves");
}

/// So many alerts of each of these places, the oldest of the first.
async fn waiting(queue: &Queue, places: &[(&str, i64)]) {
    for (place, count) in places {
        queue
            .run(&format!(
                "with s as (insert into pcfarm.subscription (events, channel, target, place, secret)
                     values ('{{ended}}', 'webhook', '{place}/x', '{place}', 'whsec_x') returning subscription_id)
                 insert into pcfarm.alert (subscription_id, job_id, what, place, body)
                 select subscription_id, g, 'done', '{place}', '{{}}' from s, generate_series(1, {count}) g"
            ))
            .await;
    }
}

#[tokio::test]
async fn of_each_place_one_is_claimed_and_nobody_claims_it_again() {
    let queue = queue().await;
    waiting(&queue, &[("a", 2000), ("b", 1), ("c", 2)]).await;
    let first = claim(&queue, 10, &[]).await;
    let mut places: Vec<&str> = first.iter().map(|one| one.place.as_str()).collect();
    places.sort_unstable();
    assert_eq!(places, ["a", "b", "c"], "two thousand of one do not stand before the others");
    assert!(first.iter().all(|one| one.attempts == 1 && one.target == format!("{}/x", one.place)));
    let second = claim(&queue, 10, &["a".to_owned()]).await;
    assert_eq!(second.iter().map(|one| one.place.as_str()).collect::<Vec<_>>(), ["c"]);
    assert!(claim(&queue, 10, &["a".to_owned()]).await.is_empty());
    // Two servers at once.
    let (x, y) = tokio::join!(claim_all(&queue), claim_all(&queue));
    let mut ids: Vec<AlertId> = [x, y].concat();
    assert_eq!(ids.len(), 1999);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 1999, "each is claimed by one of them");
    // The lease of one that was never heard of again is over.
    queue.run("update pcfarm.alert set next_attempt_at = now() where place = 'b'").await;
    let again = claim(&queue, 10, &[]).await;
    assert_eq!(
        (again.len(), again[0].attempts, &again[0].message_id),
        (1, 2, &first[1..].iter().find(|one| one.place == "b").or(first.first()).expect("it was").message_id)
    );
}

async fn claim_all(queue: &Queue) -> Vec<AlertId> {
    let mut all = Vec::new();
    loop {
        let some = claim(queue, 10, &[]).await;
        if some.is_empty() {
            return all;
        }
        all.extend(some.into_iter().map(|one| one.alert_id));
    }
}

#[tokio::test]
async fn what_fails_is_tried_again_later_and_given_up_after_a_day() {
    let queue = queue().await;
    waiting(&queue, &[("a", 1)]).await;
    let server = queue.server().await;
    // There was no server for long: its day begins with the first attempt.
    queue.run("update pcfarm.alert set begun_at = now() - interval '3 days'").await;
    let waits = "select extract(epoch from next_attempt_at - now())::bigint from pcfarm.alert";
    for attempt in 1..=12 {
        let claimed = claim(&queue, 1, &[]).await.remove(0);
        assert_eq!(claimed.attempts, attempt);
        alerts::not_delivered(&*server, &claimed, "it is away", false).await.expect("noted");
        let seconds = (15i64 << (attempt - 1).min(8)).min(3600);
        let wait = queue.number(waits).await;
        assert!((seconds * 3 / 4 - 1..=seconds * 5 / 4 + 1).contains(&wait), "{attempt}: {wait} for {seconds}");
        queue.run("update pcfarm.alert set next_attempt_at = now()").await;
    }
    let seen =
        alerts::alerts(&server, Wanted { undelivered: true, limit: 10, ..Wanted::default() }).await.expect("seen");
    assert_eq!((seen[0].state.as_str(), seen[0].message.as_str()), ("waiting", "it is away"));
    // Somebody else's claim is over: it has nothing to say, unless it has delivered.
    let old = claim(&queue, 1, &[]).await.remove(0);
    queue.run("update pcfarm.alert set next_attempt_at = now()").await;
    let new = claim(&queue, 1, &[]).await.remove(0);
    alerts::not_delivered(&*server, &old, "too late", true).await.expect("ignored");
    queue.run("update pcfarm.alert set begun_at = now() - interval '25 hours'").await;
    alerts::not_delivered(&*server, &new, "still away", false).await.expect("noted");
    let state = "select format('%s %s %s', state, message, attempts) from pcfarm.alert_status";
    assert_eq!(queue.text(state).await, "given_up still away 14");
    assert_eq!(queue.number("select count(*) from pcfarm.event where what = 'alert given up'").await, 1);
    queue.run("select pcfarm.retry_alert((select alert_id from pcfarm.alert))").await;
    let again = claim(&queue, 1, &[]).await.remove(0);
    assert_eq!((again.attempts, &again.message_id), (1, &new.message_id));
    queue.run("update pcfarm.alert set next_attempt_at = now()").await;
    let taken = claim(&queue, 1, &[]).await.remove(0);
    alerts::delivered(&*server, again.alert_id).await.expect("it was");
    alerts::not_delivered(&*server, &taken, "no", true).await.expect("ignored");
    assert_eq!(queue.text(state).await, "delivered  2");
    assert_eq!(queue.refused("select pcfarm.retry_alert((select alert_id from pcfarm.alert))").await.0, "55000");
}

#[tokio::test]
async fn mails_say_why_they_wait_where_nobody_can_send_them() {
    let queue = queue().await;
    subscribe(&queue, "{\"email\": \"ops@example.org\"}").await;
    let job = queue.job(1, 1).await;
    queue.run(&format!("select pcfarm.cancel_job({job})")).await;
    let server = queue.server().await;
    let state = "select format('%s %s', state, message) from pcfarm.alert_status";
    for (setting, expected) in [
        ("", "waiting "),
        ("next_attempt_at = now() - interval '2 minutes'", "waiting no mail"),
        ("begun_at = now() - interval '25 hours'", "given_up no mail"),
    ] {
        if !setting.is_empty() {
            queue.run(&format!("update pcfarm.alert set {setting}")).await;
        }
        alerts::explain_mail(&*server, "no mail").await.expect("said");
        assert_eq!(queue.text(state).await, expected);
    }
}

#[tokio::test]
async fn channels_are_told_by_the_transaction_that_says_so() {
    let queue = queue().await;
    let (listener, mut messages) = connect(&queue.database.config()).await.expect("connected");
    listener.batch_execute("listen night; listen pcfarm").await.expect("listening");
    subscribe(&queue, "{\"notify\": \"night\"}").await;
    let job = queue.job(1, 1).await;
    queue.run(&format!("select pcfarm.cancel_job({job})")).await;
    assert_eq!(alerts::notify(&*queue.server().await).await.expect("told"), 1);
    assert_eq!(alerts::notify(&*queue.server().await).await.expect("nothing"), 0);
    let mut payloads = Vec::new();
    while payloads.len() < 4 {
        if let Some(tokio_postgres::AsyncMessage::Notification(said)) = messages.next().await {
            payloads.push(format!("{} {}", said.channel(), said.payload()));
        }
    }
    assert!(payloads.contains(&"pcfarm alert".to_owned()), "servers are woken: {payloads:?}");
    let told = payloads.iter().find(|one| one.starts_with("night ")).expect("told");
    assert!(told.contains("\"type\": \"job.cancelled\"") && told.contains(&format!("\"job_id\": \"{job}\"")), "{told}");
    assert_eq!(queue.text("select state from pcfarm.alert_status").await, "delivered");
}

#[tokio::test]
async fn digests_come_once_a_day_and_have_each_event_once() {
    let queue = queue().await;
    subscribe(&queue, "{\"email\": \"ops@example.org\", \"events\": [\"digest\"], \"at\": \"06:30\", \"time_zone\": \"Europe/Berlin\"}").await;
    let slow = queue.server().await;
    slow.batch_execute("begin; select pcfarm.set_resource('slow', 1)").await.expect("begun");
    let late = queue.job(2, 1).await;
    queue
        .run(&format!("update pcfarm.job set deadline = now() where job_id = {late}; select pcfarm.cancel_job({late})"))
        .await;
    queue.run("select pcfarm.set_resource('licence', 1); update pcfarm.workstation set state = 'dead' where hostname = 'pc2'").await;
    let due = "update pcfarm.subscription set next_digest_at = now() - interval '3 days'";
    queue.run(due).await;
    let (x, y) = (queue.server().await, queue.server().await);
    let (x, y) = tokio::join!(alerts::make_digests(&*x), alerts::make_digests(&*y));
    assert_eq!(x.expect("made") + y.expect("made"), 1, "one, however many servers and days");
    assert_eq!(queue.number("select count(*) from pcfarm.subscription where next_digest_at > now()").await, 1);
    let body = |part: &str| format!("select body #>> '{{{part}}}' from pcfarm.alert order by alert_id desc limit 1");
    for (part, expected) in [
        ("jobs,0,job_type", "t"),
        ("jobs,0,cancelled", "1"),
        ("late", "1"),
        ("late_jobs,0,job_id", &late.to_string()),
        ("workstations_died", "1"),
        ("dead,0", "pc2"),
        ("settings,0,what", "resource made"),
        ("settings,0,subjects,0", "licence"),
        ("alerts_given_up", "0"),
    ] {
        assert_eq!(queue.text(&body(part)).await, expected, "{part}");
    }
    slow.batch_execute("commit").await.expect("committed");
    queue.run(due).await;
    assert_eq!(alerts::make_digests(&*slow).await.expect("made"), 1);
    assert_eq!(queue.number("select count(*) from pcfarm.alert").await, 1, "one a day: this day's is there");
    queue.run("update pcfarm.subscription set next_digest_at = now() - interval '2 days', digested = (select digested from pcfarm.subscription limit 1)").await;
    queue.run("select pcfarm.set_resource('quick', 1)").await;
    assert_eq!(alerts::make_digests(&*slow).await.expect("made"), 1);
    let subjects = queue.text(&body("settings,0,subjects")).await;
    assert!(subjects.contains("quick") && !subjects.contains("licence"), "{subjects}");
}

#[tokio::test]
async fn a_digest_has_what_was_under_way_at_the_last_one() {
    let queue = queue().await;
    subscribe(&queue, "{\"email\": \"ops@example.org\", \"events\": [\"digest\"]}").await;
    let slow = queue.server().await;
    slow.batch_execute("begin; select pcfarm.set_resource('slow', 1)").await.expect("begun");
    for (day, expected) in [("3 days", "{quick}"), ("2 days", "{slow}"), ("1 day", "")] {
        if day == "3 days" {
            queue.run("select pcfarm.set_resource('quick', 1)").await;
        } else if day == "2 days" {
            slow.batch_execute("commit").await.expect("committed");
        }
        queue.run(&format!("update pcfarm.subscription set next_digest_at = now() - interval '{day}'")).await;
        assert_eq!(alerts::make_digests(&*queue.server().await).await.expect("made"), 1);
        let resources = "select coalesce(array(select jsonb_array_elements_text(s -> 'subjects') from pcfarm.alert a, jsonb_array_elements(a.body -> 'settings') s where s ->> 'what' = 'resource made' and a.alert_id = (select max(alert_id) from pcfarm.alert))::text, '')";
        let expected = if expected.is_empty() { "{}" } else { expected };
        assert_eq!(queue.text(resources).await, expected, "{day}");
    }
    // A copy in another cluster counts transactions anew.
    queue.run("update pcfarm.subscription set digested = '9000000000:9000000000:', digested_at = now() - interval '1 h', next_digest_at = now() - interval '5 days'").await;
    assert_eq!(alerts::make_digests(&*queue.server().await).await.expect("made"), 1);
    assert_eq!(queue.text("select s ->> 'times' from pcfarm.alert a, jsonb_array_elements(a.body -> 'settings') s where s ->> 'what' = 'resource made' order by a.alert_id desc limit 1").await, "2");
}

#[tokio::test]
async fn the_time_of_a_digest_is_that_of_the_clocks_of_its_zone() {
    let queue = queue().await;
    let cases = [
        ("07:00", "2027-01-10 05:59:59+00", "2027-01-10 06:00:00+00"),
        ("07:00", "2027-01-10 06:00:00+00", "2027-01-11 06:00:00+00"),
        ("07:00", "2027-03-27 06:00:00+00", "2027-03-28 05:00:00+00"),
        // Clocks go from 02:00 to 03:00, and in October from 03:00 to 02:00.
        ("02:30", "2027-03-27 01:30:00+00", "2027-03-28 01:30:00+00"),
        ("02:30", "2027-03-28 01:30:00+00", "2027-03-29 00:30:00+00"),
        ("02:30", "2027-10-30 00:30:00+00", "2027-10-31 01:30:00+00"),
        ("02:30", "2027-10-31 01:30:00+00", "2027-11-01 01:30:00+00"),
        ("00:00", "2027-07-01 21:59:59+00", "2027-07-01 22:00:00+00"),
    ];
    for (at, after, expected) in cases {
        let next = format!(
            "select (pcfarm.next_digest('{at}', 'Europe/Berlin', '{after}') at time zone 'UTC')::text || '+00'"
        );
        assert_eq!(queue.text(&next).await, expected, "{at} after {after}");
    }
}

#[tokio::test]
async fn what_is_old_is_forgotten_and_what_is_not_told_yet_is_not() {
    let queue = queue().await;
    queue.run("select pcfarm.create_job_type('t', 'c', '{\"retention\": \"0\"}')").await;
    let job = queue.number("select pcfarm.create_job('j', 't', '{\"alerts\": [{\"notify\": \"x\"}]}')").await;
    queue.run(&format!("select pcfarm.cancel_job({job})")).await;
    while queue.number("select pcfarm.forget_old_job()").await > 0 {}
    let server = queue.server().await;
    assert_eq!(alerts::forget(&*server).await.expect("forgotten"), 0);
    assert_eq!(alerts::notify(&*server).await.expect("told"), 1, "the job is gone, the alert is not");
    queue.run("update pcfarm.alert set created_at = now() - interval '31 days'").await;
    assert_eq!(alerts::forget(&*server).await.expect("forgotten"), 2);
    assert_eq!(queue.number("select count(*) from pcfarm.subscription").await, 0);
}

#[tokio::test]
async fn whoever_unsubscribes_is_told_no_more_and_holds_nobody_up() {
    let queue = queue().await;
    waiting(&queue, &[("a", 2)]).await;
    queue
        .run("insert into pcfarm.alert (subscription_id, job_id, what, place, body, next_attempt_at) values (99, 1, 'done', 'a', '{}', now() - interval '1 h')")
        .await;
    assert_eq!(claim(&queue, 10, &[]).await.len(), 1, "one whose subscription is gone is passed over");
    queue.run("select pcfarm.unsubscribe((select subscription_id from pcfarm.subscription))").await;
    assert!(claim(&queue, 10, &[]).await.is_empty());
    assert_eq!(queue.number("select count(*) from pcfarm.alert").await, 1);
}
