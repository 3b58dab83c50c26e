//! People are told, by real servers: webhooks, mail through a real SMTP server, and notifications.

use crate::postbox::{self, has, mails};
use crate::receiver::{Answer, Certificate, Receiver, SECRET};
use pcfarm_bench::farm::{Farm, LONG, SOON, Server};
use pcfarm_proto::ids::JobId;
use pcfarm_sql::connect::connect;
use pcfarm_sql::settings::DatabaseSettings;
use serde_json::{Value, json};
use tokio_postgres::AsyncMessage;

async fn farm() -> Farm {
    let farm = Farm::new().await;
    farm.job_type("plain", "digest", json!({})).await;
    farm
}

/// A subscription to all jobs, unless the options say otherwise.
async fn subscribe(farm: &Farm, options: Value) {
    farm.query("select pcfarm.subscribe($1::text::jsonb)", &[&options.to_string()]).await;
}

async fn posted_to(farm: &Farm, url: &str, events: &[&str]) {
    subscribe(farm, json!({"webhook": url, "secret": SECRET, "events": events})).await;
}

/// A job that has ended at once, for no agent is there.
async fn cancelled(farm: &Farm) -> JobId {
    let job = farm.submit_sleeps("plain", 3, 1, 1).await;
    farm.query("select pcfarm.cancel_job($1)", &[&job]).await;
    job
}

/// What would be some seconds later.
async fn time_passes(farm: &Farm) {
    farm.run(
        "update pcfarm.alert set next_attempt_at = now() where next_attempt_at is not null; notify pcfarm, 'alert'",
    )
    .await;
}

async fn until_delivered(farm: &Farm, count: i64) {
    farm.until(LONG, &format!("select count(*) = {count} from pcfarm.alert_status where state = 'delivered'")).await;
}

#[tokio::test]
async fn a_webhook_is_posted_until_it_is_taken() {
    let farm = farm().await;
    let mut receiver = Receiver::start(&[Answer::Status(500), Answer::Status(302), Answer::Silence]).await;
    posted_to(&farm, &format!("{}/hook?of=night", receiver.url), &["ended"]).await;
    let mut server = farm.serving("a", &[]).await;
    let job = cancelled(&farm).await;
    let first = receiver.next().await;
    assert_eq!((first.path.as_str(), &first.body["type"]), ("/hook", &json!("job.cancelled")));
    assert_eq!(first.trace_parent, "", "nothing is traced here");
    let data = &first.body["data"];
    assert_eq!((&data["job_id"], &data["problems"], &data["done"]), (&json!(job.to_string()), &json!(3), &json!(0)));
    let refused = "select message like '%answered 500%' and state = 'waiting' from pcfarm.alert_status";
    farm.until(SOON, refused).await;
    time_passes(&farm).await;
    assert_eq!(receiver.next().await.id, first.id, "receivers know what they have seen");
    farm.until(SOON, "select message like '%answered 302%' from pcfarm.alert_status").await;
    time_passes(&farm).await;
    assert_eq!(receiver.next().await.id, first.id);
    // Its server dies while it waits for the answer: another takes it up when the lease is over.
    server.program.kill();
    let _other = farm.serving("b", &[]).await;
    time_passes(&farm).await;
    assert_eq!(receiver.next().await.id, first.id);
    until_delivered(&farm, 1).await;
    assert_eq!(farm.number("select attempts::bigint from pcfarm.alert").await, 4);
}

#[tokio::test]
async fn a_receiver_that_is_gone_is_left_alone_until_somebody_asks() {
    let farm = farm().await;
    let mut receiver = Receiver::start(&[Answer::Status(410)]).await;
    posted_to(&farm, &receiver.url, &["failed"]).await;
    let _server = farm.serving("a", &[]).await;
    cancelled(&farm).await;
    let first = receiver.next().await;
    farm.until(SOON, "select state = 'given_up' and message like '%410%' from pcfarm.alert_status").await;
    farm.run("select pcfarm.retry_alert(alert_id) from pcfarm.alert").await;
    assert_eq!(receiver.next().await.id, first.id);
    until_delivered(&farm, 1).await;
}

#[tokio::test]
async fn targets_that_hang_hold_nobody_up() {
    let farm = farm().await;
    let mut hanging = Receiver::start(&[Answer::Silence; 1000]).await;
    let mut quick = Receiver::start(&[]).await;
    for n in 0..20 {
        posted_to(&farm, &format!("{}/{n}", hanging.url), &["ended"]).await;
    }
    posted_to(&farm, &quick.url, &["ended"]).await;
    let _server = farm.serving("a", &[]).await;
    for _ in 0..5 {
        cancelled(&farm).await;
        quick.next().await;
        hanging.next().await;
    }
    let delivered = "select count(*) = 5 from pcfarm.alert_status where state = 'delivered'";
    farm.until(SOON, delivered).await;
    assert_eq!(farm.number("select count(*) from pcfarm.alert where delivered_at is null").await, 100);
}

#[tokio::test]
async fn webhooks_are_posted_to_those_whom_the_system_trusts() {
    let farm = farm().await;
    let (trusted, stranger) = (Certificate::new(), Certificate::new());
    trusted.write(&farm.path("trusted.pem"), &farm.path("key.pem"));
    let mut receiver = Receiver::encrypted(&trusted).await;
    let unknown = Receiver::encrypted(&stranger).await;
    posted_to(&farm, &receiver.url, &["ended"]).await;
    posted_to(&farm, &unknown.url, &["ended"]).await;
    let Server { program, port } = farm.server("a", &[]);
    let mut server = Server { program: program.environment("SSL_CERT_FILE", farm.path("trusted.pem")), port };
    server.start().await;
    cancelled(&farm).await;
    receiver.next().await;
    until_delivered(&farm, 1).await;
    farm.until(
        SOON,
        "select count(*) = 1 from pcfarm.alert_status where state = 'waiting' and message like '%certificate%'",
    )
    .await;
}

#[tokio::test]
async fn servers_share_what_is_to_be_told() {
    let farm = farm().await;
    let mut receiver = Receiver::start(&[]).await;
    posted_to(&farm, &receiver.url, &["ended"]).await;
    for _ in 0..60 {
        cancelled(&farm).await;
    }
    let _servers: [Server; 2] = [farm.serving("a", &[]).await, farm.serving("b", &[]).await];
    assert_eq!(receiver.different(60).await, 60, "none twice, for nobody died");
    until_delivered(&farm, 60).await;
    assert_eq!(farm.number("select sum(attempts)::bigint from pcfarm.alert").await, 60);
}

#[tokio::test]
async fn jobs_that_end_are_late_or_have_failures_are_told_of_on_a_channel() {
    let farm = Farm::new().await;
    farm.job_type("plain", "digest", json!({"max_attempts": 1})).await;
    let server = farm.serving("a", &[]).await;
    let _agent = farm.working("agent", &[&server]);
    let config = DatabaseSettings::resolve(Some(farm.url())).expect("its own URL").target.config().clone();
    let (listener, mut messages) = connect(&config).await.expect("connected");
    listener.batch_execute("listen night").await.expect("listening");
    subscribe(&farm, json!({"notify": "night", "events": ["ended", "late", "failures"], "failed_share": 0.3})).await;
    let fails = "select 'problem ' || i as key, jsonb_build_object('n', i, 'ms', 1, 'fails', i % 2) as payload from generate_series(1, 10) i";
    let job = farm.submit("plain", fails, 1).await;
    let late = farm.query("select pcfarm.create_job('late', 'plain', '{\"deadline\": \"2020-01-01\"}')", &[]).await;
    let late: JobId = late[0].get(0);
    let mut told = Vec::new();
    while told.len() < 3 {
        let message = tokio::time::timeout(LONG, messages.next()).await.expect("nothing came");
        if let Some(AsyncMessage::Notification(said)) = message {
            let said: Value = serde_json::from_str(said.payload()).expect("JSON");
            told.push((
                said["type"].as_str().unwrap_or_default().to_owned(),
                said["job_id"].as_str().unwrap_or_default().to_owned(),
            ));
        }
    }
    told.sort();
    let expected = [("job.failed", job), ("job.failures", job), ("job.late", late)];
    assert_eq!(told, expected.map(|(what, job)| (what.to_owned(), job.to_string())));
    farm.check(&[]).await;
}

#[tokio::test]
async fn mails_wait_for_their_relay_and_say_what_to_do() {
    let farm = farm().await;
    subscribe(&farm, json!({"email": "ops@example.org"})).await;
    // A server that cannot mail, while no other can.
    let mut poor = farm.serving("poor", &[]).await;
    let first = cancelled(&farm).await;
    farm.run("update pcfarm.alert set next_attempt_at = now() - interval '2 minutes'").await;
    farm.until(SOON, "select message like '%--smtp-url%' and attempts = 0 from pcfarm.alert_status").await;
    poor.program.kill();

    let relay = farm.server("port", &[]).port;
    let url = format!("smtp://127.0.0.1:{relay}?tls=required");
    Certificate::new().write(&farm.path("trusted.pem"), &farm.path("key.pem"));
    // A private authority, by the setting.
    let flags = ["--mail-from", "PC Farm <farm@example.org>", "--mail-hello", "farm.example.org"];
    let Server { program, port } = farm.server("a", &flags);
    let program =
        program.environment("PCFARM_SMTP_URL", url).environment("PCFARM_OUTGOING_CA", farm.path("trusted.pem"));
    let mut server = Server { program, port };
    server.start().await;
    farm.until(LONG, "select message like '%onnection%' and attempts = 1 from pcfarm.alert_status").await;
    let mut smtp = postbox::smtp(&farm, relay, true);
    postbox::start(&mut smtp, relay);
    time_passes(&farm).await;
    until_delivered(&farm, 1).await;
    let id = farm.query("select message_id::text from pcfarm.alert", &[]).await[0].get::<_, String>(0);
    let all = mails(&farm.path(""));
    assert_eq!(all.len(), 1);
    assert_eq!(postbox::hello(&farm.path("")), "farm.example.org");
    has(
        &all[0],
        &[
            &format!("Subject: [PC Farm] job {first} (plain of this test) was cancelled\n"),
            "From: \"PC Farm\" <farm@example.org>\n",
            "To: ops@example.org\n",
            &format!("Message-ID: <{id}@example.org>\n"),
            "Auto-Submitted: auto-generated\n",
            &format!("\n    pcfarm job show {first}\n"),
            "problems   3",
        ],
    );
    a_digest_and_a_refusal(&farm).await;
}

async fn a_digest_and_a_refusal(farm: &Farm) {
    subscribe(farm, json!({"email": "boss@example.org", "events": ["digest"], "time_zone": "Europe/Berlin"})).await;
    subscribe(farm, json!({"email": "gone@example.org", "job_type": "plain"})).await;
    cancelled(farm).await;
    farm.until(
        SOON,
        "select count(*) = 1 from pcfarm.alert_status where state = 'given_up' and message like '%no such mailbox%'",
    )
    .await;
    until_delivered(farm, 2).await;
    farm.run("select pcfarm.set_resource('licence', 3); update pcfarm.subscription set next_digest_at = now() where next_digest_at is not null").await;
    until_delivered(farm, 3).await;
    let all = mails(&farm.path(""));
    assert_eq!(all.len(), 3);
    has(
        &all[0],
        &[
            "Subject: [PC Farm] digest: 0 jobs done, 0 failed\n",
            "To: boss@example.org\n",
            "    plain: 0 done, 0 failed, 1 cancelled; 0 problems done, 0 failed\n",
            "resource made by ",
            ": licence\n",
            "Alerts not delivered: 1 given up",
        ],
    );
}
