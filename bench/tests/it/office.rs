//! The faculty office on a farm: its mailings, its files of enrolments, and a job of each type, to a real SMTP server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::postbox::{self, has, header, mails};
use pcfarm_bench::farm::{Farm, LONG, SOON, Server};
use pcfarm_bench::program::Program;
use pcfarm_office::statements;
use pcfarm_proto::ids::JobId;
use serde_json::{Value, json};

/// For a mailing of some hours, which are short.
const LONGEST: Duration = Duration::from_secs(90);

/// The office's schema and job types, an SMTP server, and its URL.
async fn office() -> (Farm, Program, String) {
    let farm = Farm::new().await;
    for text in [statements::SCHEMA, statements::JOB_TYPES, statements::SAMPLE] {
        farm.run(text).await;
    }
    let port = farm.server("port", &[]).port;
    let mut smtp = postbox::smtp(&farm, port, false);
    postbox::start(&mut smtp, port);
    (farm, smtp, format!("smtp://127.0.0.1:{port}"))
}

fn agent(farm: &Farm, name: &str, server: &Server, smtp_url: &str) -> Program {
    let mut agent = farm
        .program(name, "office-agent")
        .arguments(["--server", &server.url(), "--cores", "4", "--hostname", name])
        .arguments(["--state-dir".as_ref(), farm.path(&format!("{name}.state")).as_os_str()])
        .environment("OFFICE_SMTP_URL", smtp_url)
        .environment("OFFICE_MAIL_FROM", "Office <office@example.org>");
    agent.start();
    agent
}

/// An hour takes so many seconds, and the mailing has this entry alone.
async fn mailing_profile(farm: &Farm, hour_seconds: u32, per_hour: i64, per_checkout: i64) {
    let database: String = farm.query("select current_database()::text", &[]).await[0].get(0);
    let entry = json!({"problems_per_hour": per_hour, "problems_per_checkout": per_checkout});
    farm.run(&format!(
        "alter database {database} set pcfarm.hour = '{hour_seconds} s';
         select pcfarm.delete_profile(profile_id) from pcfarm.profile;
         select pcfarm.set_profile('mailing', '{entry}')"
    ))
    .await;
}

/// A mailing to p1, p2, …
async fn mailing(farm: &Farm, recipients: i64, options: Value) -> JobId {
    farm.run(&format!(
        "insert into office.mailing_recipient (mailing_id, recipient_id, email)
         select 9, n, 'p' || n || '@example.org' from generate_series(1, {recipients}) n"
    ))
    .await;
    let text = "select pcfarm.submit('mailing', 'mailing', $$
        select '9/0' as key, '{}'::jsonb as payload, 'mailing_recipients' as job_type $$, 1, $1::text::jsonb)";
    farm.query(text, &[&json!({"parameters": options}).to_string()]).await[0].get(0)
}

/// The most that any hour has had, by what they weigh.
async fn most_in_an_hour(farm: &Farm, hour_seconds: u32) -> i64 {
    farm.number(&format!(
        "select max(n)::bigint from (
             select sum(weight) over (order by checked_out_at range between current row and interval '{hour_seconds} s' following) as n
             from (select c.checked_out_at, sum(coalesce(p.weight, 1)) as weight
                 from pcfarm.checkout c join pcfarm.held_problem h on h.checkout_id = c.checkout_id
                 join pcfarm.problem p on p.job_id = h.job_id and p.problem_id = h.problem_id
                 where c.job_type = 'mailing' group by c.checkout_id, c.checked_out_at) w) o"
    ))
    .await
}

/// Message ids by recipient; of one that got several mails there are as many.
fn received(farm: &Farm) -> BTreeMap<String, Vec<String>> {
    let mut received: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for mail in mails(&farm.path("")) {
        let id = header(&mail, "Message-ID").expect("each has an id");
        for to in header(&mail, "X-RcptTo").expect("the server notes it").split(", ") {
            received.entry(to.to_owned()).or_default().push(id.to_owned());
        }
    }
    received
}

#[tokio::test]
#[ignore = "nightly: half a minute of a mailing with hourly limits"]
async fn the_published_mailing_keeps_its_hours() {
    const HOUR_SECONDS: u32 = 5;
    const RECIPIENTS: i64 = 5_000;
    let (farm, _smtp, url) = office().await;
    // A Monday at noon and at three in the morning, and a Friday, by the clocks there.
    for (moment, per_hour, per_checkout) in
        [("2027-01-04 12:00+03:30", 5, 1), ("2027-01-04 03:00+03:30", 1000, 5), ("2027-01-08 12:00+03:30", 1000, 5)]
    {
        let text = "select problems_per_hour::bigint, problems_per_checkout::bigint
            from pcfarm.explain_profile('mailing', $1::text::timestamptz) where holds";
        let row = &farm.query(text, &[&moment]).await[0];
        assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (per_hour, per_checkout), "{moment}");
    }
    mailing_profile(&farm, HOUR_SECONDS, 1000, 5).await;
    let options = json!({"subject": "News", "body": "None.", "recipients_per_message": 5});
    let job = mailing(&farm, RECIPIENTS, options).await;
    let server = farm.serving("a", &[]).await;
    let mut agents = ["one", "two"].map(|name| agent(&farm, name, &server, &url));
    farm.finished(job, 300, LONGEST).await;
    agents[0].kill();
    assert_eq!(farm.ended(job, LONGEST).await, "done");
    assert!(most_in_an_hour(&farm, HOUR_SECONDS).await <= 1000, "{}", most_in_an_hour(&farm, HOUR_SECONDS).await);
    assert!(farm.number("select max(problems)::bigint from pcfarm.checkout where job_type = 'mailing'").await <= 5);
    let info = "select (info ->> 'recipients')::bigint from pcfarm.job_info";
    assert_eq!(farm.number(info).await, RECIPIENTS);

    let received = received(&farm);
    assert_eq!(received.len(), RECIPIENTS as usize, "everybody got it");
    let repeated: Vec<_> = received.values().filter(|ids| ids.len() > 1).collect();
    println!("{} recipients got it again after an agent was killed", repeated.len());
    assert!(repeated.iter().all(|ids| ids.iter().all(|id| *id == ids[0])), "repetitions can be recognised");
    let lost = farm
        .number("select coalesce(sum(problems - delivered), 0)::bigint from pcfarm.checkout where ending = 'revoked'")
        .await;
    assert!(repeated.len() as i64 <= 5 * lost, "{} came again, {lost} were lost", repeated.len());
    farm.check(&[]).await;
}

#[tokio::test]
async fn by_day_a_mailing_has_five_an_hour_and_one_at_a_time() {
    const HOUR_SECONDS: u32 = 2;
    let (farm, _smtp, url) = office().await;
    mailing_profile(&farm, HOUR_SECONDS, 5, 1).await;
    let options = json!({"subject": "News", "body": "None.", "recipients_per_message": 2});
    let job = mailing(&farm, 8, options).await;
    let server = farm.serving("a", &[]).await;
    let _agent = agent(&farm, "one", &server, &url);
    assert_eq!(farm.ended(job, LONG).await, "done");
    assert_eq!(most_in_an_hour(&farm, HOUR_SECONDS).await, 4, "a message counts as many as it has recipients");
    assert_eq!(farm.number("select max(problems)::bigint from pcfarm.checkout where job_type = 'mailing'").await, 1);
    assert!(received(&farm).len() == 8 && received(&farm).values().all(|ids| ids.len() == 1));
    assert_eq!(mails(&farm.path("")).len(), 4);
    farm.check(&[]).await;
}

/// Lines of a file, and what must become of them: nothing, or why they are refused.
fn lines() -> Vec<(String, Option<String>)> {
    let mut lines = vec![("course,person".to_owned(), None)];
    for n in 1..=3_000 {
        let (person, course) = (format!("P{}", 1 + n % 200), ["MATH1", "PHYS1", "SEM"][n / 200 % 3]);
        lines.push(match n {
            300 => ("MATH1".to_owned(), Some("it names no person".to_owned())),
            301..=310 => (format!("MATH1,Q{n}"), Some(format!("there is no person Q{n}"))),
            2_900..=2_910 => (format!("MAGIC{n},{person}"), Some(format!("there is no course MAGIC{n}"))),
            _ => (format!("{course},{person}"), None),
        });
    }
    lines
}

#[tokio::test]
async fn a_file_is_enrolled_line_by_line_whoever_is_killed() {
    let (farm, _smtp, url) = office().await;
    farm.run("update office.course set capacity = 200 where course_id <> 'SEM'").await;
    let text: String = lines().iter().map(|(line, _)| format!("{line}\n")).collect();
    std::fs::write(farm.path("term.csv"), &text).expect("written");
    let path = farm.path("term.csv");
    let mut submit = farm
        .program("submit", "office-submit")
        .arguments(["--database-url", farm.url(), "queued", "--submitter", "teacher@example.org"])
        .arguments([path.as_os_str()]);
    submit.start();
    assert!(submit.ended(SOON).await.success(), "{}", submit.log());
    let said: Value = serde_json::from_str(&submit.log()).expect("JSON");
    let job = JobId(said["job"].as_i64().expect("a job"));

    let server = farm.serving("a", &[]).await;
    let mut first = agent(&farm, "one", &server, &url);
    farm.finished(job, 700, LONG).await;
    first.kill();
    let _second = agent(&farm, "two", &server, &url);
    assert_eq!(farm.ended(job, LONG).await, "done");
    farm.until(LONG, "select bool_and(state = 'done') from pcfarm.job").await;

    every_line_has_its_outcome(&farm).await;
    the_error_report_came(&farm).await;
    let info = "select (info ->> 'lines_read')::bigint from pcfarm.job_info where info ->> 'whole_file_read' = 'true'";
    assert_eq!(farm.number(info).await, 3_000);
    farm.check(&[]).await;
}

async fn every_line_has_its_outcome(farm: &Farm) {
    let rows = farm.query("select line, refused from office.line_outcome", &[]).await;
    let outcomes: BTreeMap<i32, Option<String>> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!((rows.len(), outcomes.len()), (3_000, 3_000));
    let mut wanted: BTreeSet<String> = BTreeSet::new();
    for (n, (line, refused)) in (1..).zip(lines()).skip(1) {
        let outcome = &outcomes[&n];
        match refused {
            Some(refused) => assert_eq!(outcome.as_deref(), Some(refused.as_str()), "line {n}"),
            None => {
                let known =
                    outcome.as_deref().is_none_or(|why| why.ends_with("already") || why == "course SEM is full");
                assert!(known, "line {n}: {outcome:?}");
                wanted.extend((!line.starts_with("SEM")).then_some(line));
            }
        }
    }
    let text = "select course_id || ',' || person_id from office.enrolment where course_id <> 'SEM'";
    let enrolled: Vec<String> = farm.query(text, &[]).await.iter().map(|row| row.get(0)).collect();
    assert_eq!(enrolled.len(), wanted.len(), "each once");
    assert_eq!(enrolled.into_iter().collect::<BTreeSet<_>>(), wanted);
    let seminar = "select count(*) from office.enrolment where course_id = 'SEM'";
    assert_eq!(farm.number(seminar).await, 5, "and not one more");
    let differ = "select count(*) from office.course c where c.enrolled <> (
        select count(*) from office.enrolment e where e.course_id = c.course_id)";
    assert_eq!(farm.number(differ).await, 0);
    let lines = "select count(*) from office.line_outcome where refused is null";
    assert_eq!(farm.number(lines).await, wanted.len() as i64 + 5, "each by one line");
}

async fn the_error_report_came(farm: &Farm) {
    let all = mails(&farm.path(""));
    let ids: BTreeSet<_> = all.iter().map(|mail| header(mail, "Message-ID")).collect();
    assert_eq!(ids.len(), 1, "{all:?}");
    let refused = farm.number("select count(*) from office.line_outcome where refused is not null").await;
    let summary = format!("term.csv: {} of 3000 lines are enrolled, {refused} are refused.\n", 3_000 - refused);
    let rest = format!("\nand {} more.\n", refused - 1000);
    let lines = ["\nline 301: it names no person\n", "\nline 311: there is no person Q310\n"];
    has(
        &all[0],
        &["Subject: Your enrolments: term.csv\n", "To: teacher@example.org\n", &summary, lines[0], lines[1], &rest],
    );
}

#[tokio::test]
async fn a_job_of_each_type_runs_by_configuration_and_these_controllers() {
    let (farm, _smtp, url) = office().await;
    // Whatever the hour is.
    farm.run("select pcfarm.delete_profile(profile_id) from pcfarm.profile").await;
    for text in statements::SUBMITS {
        farm.run(text).await;
    }
    let types = "select count(distinct job_type) from pcfarm.job where job_type <> 'enrolment_errors'";
    assert_eq!(farm.number(types).await, 7);
    let server = farm.serving("a", &[]).await;
    let _agent = agent(&farm, "one", &server, &url);
    farm.until(LONG, "select bool_and(ended_at is not null) from pcfarm.job").await;
    let text = "select string_agg(key || ': ' || message, '; ') from pcfarm.job_problems where state = 'failed'";
    assert_eq!(farm.query(text, &[]).await[0].get::<_, Option<&str>>(0), None);
    assert_eq!(farm.number("select count(*) from pcfarm.job where state = 'done'").await, 8);
    let copied = "select count(*) from office.offering where term = '2027 spring'";
    assert_eq!(farm.number(copied).await, 3);
    assert_eq!(farm.number("select count(*) from office.enrolment").await, 12);
    let all = mails(&farm.path(""));
    assert_eq!(all.len(), 200 + 4);
    let of = |subject: &str| {
        all.iter().find(|mail| header(mail, "Subject") == Some(subject)).unwrap_or_else(|| panic!("{subject}"))
    };
    has(of("Room 12"), &["To: dean@example.org\n", "\nThe room is free on Monday.\n"]);
    has(of("News of the faculty"), &["\nThe term begins on Saturday.\n"]);
    has(of("The week in our courses"), &["Physics 1 (PHYS1): 0 of 100 places, 0 in this week\n"]);
    has(of("Yesterday's log-ons"), &["Person 7 (P7): 1\n"]);
    has(of("Your enrolments: small.csv"), &[" of 3 lines are enrolled", "\nline 4: there is no course MAGIC9\n"]);
    farm.check(&[]).await;
}

#[tokio::test]
async fn an_address_that_is_gone_holds_up_nobody_else() {
    let (farm, _smtp, url) = office().await;
    farm.run("select pcfarm.delete_profile(profile_id) from pcfarm.profile").await;
    farm.job_type("mailing", "message", json!({"max_attempts": 2})).await;
    farm.run("insert into office.mailing_recipient values (9, 0, 'gone@example.org')").await;
    let options = json!({"subject": "News", "body": "None.", "recipients_per_message": 20});
    farm.run("update office.mailing_recipient set recipient_id = 7000").await;
    let job = mailing(&farm, 30, options).await;
    let server = farm.serving("a", &[]).await;
    let _agent = agent(&farm, "one", &server, &url);
    assert_eq!(farm.ended(job, LONG).await, "failed");
    assert_eq!(received(&farm).len(), 30);
    let text = "select key, message from pcfarm.job_problems where job_id = $1 and state = 'failed'";
    let rows = farm.query(text, &[&job]).await;
    let failed: Vec<(&str, &str)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert!(failed.len() == 1 && failed[0].0 == "gone@example.org", "{failed:?}");
    assert!(failed[0].1.contains("5.1.1 no such mailbox"), "{failed:?}");
    farm.check(&[]).await;
}
