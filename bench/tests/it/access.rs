//! Who may do what: every method with every role, two users who try to touch each other's things, and what is revoked.

mod caller;
mod joining;

use std::time::Duration;

use caller::{Connection, account, call_empty, connect, end_of_stream};
use pcfarm_bench::farm::{Farm, LONG, SOON};
use pcfarm_proto::secrets::Token;
use pcfarm_proto::v1::access_service_client::AccessServiceClient;
use pcfarm_proto::v1::alert_service_client::AlertServiceClient;
use pcfarm_proto::v1::farm_service_client::FarmServiceClient;
use pcfarm_proto::v1::job_service_client::JobServiceClient;
use pcfarm_proto::v1::queue_service_client::QueueServiceClient;
use pcfarm_proto::v1::submit_request::Part;
use pcfarm_proto::v1::subscribe_request::Target;
use pcfarm_proto::v1::workstation_service_client::WorkstationServiceClient;
use pcfarm_proto::v1::{
    CreateAccountRequest, CreateTokenRequest, ExplainRequest, GetJobRequest, JobRequest, ListAlertsRequest,
    ListEventsRequest, ListJobsRequest, ListProblemsRequest, ListStatisticsRequest, ListSubscriptionsRequest,
    ListTokensRequest, ListUsersRequest, ListWorkstationsRequest, LoginRequest, RegisterRequest, RetryAlertRequest,
    RevokeTokenRequest, SetInfoRequest, SetPasswordRequest, SubmitEnd, SubmitHeader, SubmitProblem, SubmitProblems,
    SubmitRequest, SubscribeRequest, UnsubscribeRequest, WhoAmIRequest,
};
use pcfarm_server::access::table::{METHODS, Need};
use pcfarm_server::access::{Role, Scope, Scopes};
use serde_json::json;
use tokio::time::{Instant, sleep};
use tokio_stream::StreamExt;
use tonic::{Code, Status};

/// A server that asks everybody.
const ASKS: &[&str] = &["--authentication", "required"];

fn is_refused(code: Code) -> bool {
    matches!(code, Code::Unauthenticated | Code::PermissionDenied)
}

#[tokio::test]
async fn every_method_asks_every_role_for_its_scope() {
    let farm = Farm::new().await;
    let server = farm.serving("a", ASKS).await;
    let roles = [
        ("nobody", None, Scopes::NONE),
        ("ana", Some(account(&farm, "ana", "user", &["submit"]).await), Role::User.scopes()),
        ("ben", Some(account(&farm, "ben", "user", &["submit"]).await), Role::User.scopes()),
        ("ops", Some(account(&farm, "ops", "operator", &["operate"]).await), Role::Operator.scopes()),
        ("root", Some(account(&farm, "root", "administrator", &["administer"]).await), Role::Administrator.scopes()),
        ("agent", Some(account(&farm, "root", "administrator", &["work"]).await), Scopes::NONE.with(Scope::Work)),
        // A scope that the role has not got is none, whatever the row says.
        ("sly", Some(account(&farm, "sly", "user", &["administer", "work"]).await), Role::User.scopes()),
        ("made up", Some(Token([7; 32]).reveal()), Scopes::NONE),
    ];
    for (role, token, scopes) in &roles {
        let connection = connect(&server.url(), token.as_deref()).await;
        // Who revokes the token that asks is nobody any more.
        let is_last = |method: &str| method.ends_with("/RevokeToken");
        let (last, first): (Vec<_>, Vec<_>) = METHODS.iter().partition(|(method, _)| is_last(method));
        // More guesses than this from one address are braked.
        let count = if *role == "made up" { 20 } else { METHODS.len() };
        for &(method, need) in first.into_iter().chain(last).take(count) {
            let code = call_empty(&connection, method).await;
            let known = *scopes != Scopes::NONE;
            let may = match need {
                Need::Nothing => true,
                Need::Caller => known,
                Need::Scope(scope) => scopes.includes(scope),
            };
            let what = format!("{role} calls {method}, which needs {need:?}: {code:?}");
            match (need, may, known) {
                // It is called without anything that would be let in by what it brings itself.
                (Need::Nothing, ..) => assert_ne!(code, Code::Unimplemented, "{what}"),
                (_, true, _) => assert!(!is_refused(code) && code != Code::Unimplemented, "{what}"),
                (_, false, true) => assert_eq!(code, Code::PermissionDenied, "{what}"),
                (_, false, false) => assert_eq!(code, Code::Unauthenticated, "{what}"),
            }
        }
        let unheard_of = call_empty(&connection, "/pcfarm.v1.JobService/Nothing").await; // whoever asks
        assert_eq!(unheard_of, Code::Unimplemented, "{role}");
    }
}

fn submission(header: SubmitHeader, keys: &[&str]) -> Vec<SubmitRequest> {
    let problem = |key: &&str| SubmitProblem {
        key: (*key).to_owned(),
        payload: "{\"secret\": \"of ana\"}".into(),
        ..SubmitProblem::default()
    };
    let parts = [
        Part::Header(header),
        Part::Problems(SubmitProblems { problems: keys.iter().map(problem).collect() }),
        Part::End(SubmitEnd { problems: keys.len() as i64 }),
    ];
    parts.into_iter().map(|part| SubmitRequest { part: Some(part) }).collect()
}

async fn submit(connection: &Connection, header: SubmitHeader, keys: &[&str]) -> Result<i64, Status> {
    let stream = tokio_stream::iter(submission(header, keys));
    Ok(JobServiceClient::new(connection.clone()).submit(stream).await?.into_inner().job_id)
}

fn new_job(name: &str, options: &str) -> SubmitHeader {
    SubmitHeader {
        name: name.into(),
        job_type: "echo".into(),
        options: options.to_owned().into(),
        open: true,
        ..SubmitHeader::default()
    }
}

/// What a caller is told of a job by each method that names one.
async fn touched(connection: &Connection, job_id: i64) -> Vec<(&'static str, Result<(), Status>)> {
    let mut jobs = JobServiceClient::new(connection.clone());
    let mut farm = FarmServiceClient::new(connection.clone());
    let mut alerts = AlertServiceClient::new(connection.clone());
    let job = JobRequest { job_id };
    let to_it = SubmitHeader { job_id, ..SubmitHeader::default() };
    let after = new_job("after", &format!("{{\"after\": [{job_id}]}}"));
    let subscription =
        SubscribeRequest { job_id, target: Some(Target::Email("b@example.org".into())), ..Default::default() };
    vec![
        ("GetJob", jobs.get_job(GetJobRequest { job_id }).await.map(drop)),
        ("OpenJob", jobs.open_job(job).await.map(drop)),
        ("HoldJob", jobs.hold_job(job).await.map(drop)),
        ("ReleaseJob", jobs.release_job(job).await.map(drop)),
        ("CancelJob", jobs.cancel_job(job).await.map(drop)),
        ("RetryJob", jobs.retry_job(job).await.map(drop)),
        ("WaitJob", jobs.wait_job(job).await.map(drop)),
        ("SetInfo", jobs.set_info(SetInfoRequest { job_id, patch: "{}".into() }).await.map(drop)),
        ("ListProblems", jobs.list_problems(ListProblemsRequest { job_id, ..Default::default() }).await.map(drop)),
        ("Results", jobs.results(job).await.map(drop)),
        ("Explain", farm.explain(ExplainRequest { job_id, workstation_id: 0 }).await.map(drop)),
        ("Subscribe", alerts.subscribe(subscription).await.map(drop)),
        ("Submit, a little", submit(connection, to_it.clone(), &["k"]).await.map(drop)),
        ("Submit, an upload", submit(connection, to_it, &["k"; 600]).await.map(drop)),
        ("Submit, after it", submit(connection, after.clone(), &["k"]).await.map(drop)),
        ("Submit, an upload after it", submit(connection, after, &["k"; 600]).await.map(drop)),
    ]
}

#[tokio::test]
async fn what_is_not_yours_is_not_there() {
    let farm = Farm::new().await;
    farm.job_type("echo", "echo", json!({})).await;
    let server = farm.serving("a", ASKS).await;
    let ana = connect(&server.url(), Some(&account(&farm, "ana", "user", &["submit"]).await)).await;
    let ben = connect(&server.url(), Some(&account(&farm, "ben", "user", &["submit"]).await)).await;
    let ops = connect(&server.url(), Some(&account(&farm, "ops", "operator", &["operate"]).await)).await;
    let job = submit(&ana, new_job("of ana", "{}"), &["a", "b"]).await.expect("submitted");
    let large = submit(&ana, new_job("of ana, large", "{}"), &["x"; 600]).await.expect("uploaded");
    let never = large + 1_000_000;
    for id in [job, large] {
        let owner = farm.query("select owner::text from pcfarm.job where job_id = $1", &[&id]).await;
        assert_eq!(owner[0].get::<_, &str>(0), "ana");
    }
    let mut mail = SubscribeRequest { target: Some(Target::Email("a@example.org".into())), ..Default::default() };
    mail.job_id = job;
    let mut alerts = AlertServiceClient::new(ana.clone());
    let subscription = alerts.subscribe(mail).await.expect("subscribed").into_inner().subscription.expect("one");

    // Of what is there and not his, and of what is not there at all, Ben is told the same.
    let state = || farm.query("select to_jsonb(j)::text from pcfarm.job j order by job_id", &[]);
    let before: Vec<String> = state().await.iter().map(|row| row.get(0)).collect();
    for ((what, of_anas), (_, of_none)) in touched(&ben, job).await.into_iter().zip(touched(&ben, never).await) {
        let (of_anas, of_none) = (of_anas.expect_err(what), of_none.expect_err(what));
        assert_eq!(of_anas.code(), Code::NotFound, "{what}: {of_anas:?}");
        let said = of_anas.message().replace(&job.to_string(), "N");
        assert_eq!(said, of_none.message().replace(&never.to_string(), "N"), "{what}");
        assert!(!of_anas.message().contains("ana"), "{what}: {of_anas:?}");
    }
    let after: Vec<String> = state().await.iter().map(|row| row.get(0)).collect();
    assert_eq!(before, after, "nothing of it was touched, and nothing else was made");

    let mut alerts = AlertServiceClient::new(ben.clone());
    let gone = UnsubscribeRequest { subscription_id: subscription.subscription_id };
    assert_eq!(alerts.unsubscribe(gone).await.expect_err("not his").code(), Code::NotFound);
    assert_eq!(alerts.retry_alert(RetryAlertRequest { alert_id: 1 }).await.expect_err("none").code(), Code::NotFound);
    let listed = alerts.list_subscriptions(ListSubscriptionsRequest { job_id: 0 }).await.expect("listed").into_inner();
    assert_eq!(listed.subscriptions, []);
    assert_eq!(alerts.list_alerts(ListAlertsRequest::default()).await.expect("listed").into_inner().alerts, []);
    let mut all = SubscribeRequest { target: Some(Target::Email("b@example.org".into())), ..Default::default() };
    all.all_users = true;
    assert_eq!(alerts.subscribe(all).await.expect_err("everybody's").code(), Code::PermissionDenied);

    // Nothing that lists tells Ben of Ana.
    let of_ben = listed_to(&ben).await;
    assert!(!of_ben.contains("ana"), "{of_ben}");
    let of_ana = listed_to(&ana).await;
    assert!(of_ana.contains("of ana, large") && !of_ana.contains("ben"), "{of_ana}");
    let of_ops = listed_to(&ops).await;
    assert!(of_ops.contains("of ana, large") && of_ops.contains("ben"), "{of_ops}");

    // Ana may do what Ben may not, and operators may, too.
    let mut jobs = JobServiceClient::new(ana.clone());
    jobs.hold_job(JobRequest { job_id: job }).await.expect("hers");
    jobs.get_job(GetJobRequest { job_id: job }).await.expect("hers");
    let mut jobs = JobServiceClient::new(ops.clone());
    jobs.release_job(JobRequest { job_id: job }).await.expect("an operator's, as everybody's");
    let who = "select who::text from pcfarm.event where job_id = $1 and what in ('job held', 'job released') order by event_id";
    let who: Vec<String> = farm.query(who, &[&job]).await.iter().map(|row| row.get(0)).collect();
    assert_eq!(who, ["ana", "ops"], "events say who did it");

    // The same idempotency key is another job for another user.
    let keyed = new_job("keyed", "{\"idempotency_key\": \"k\"}");
    let hers = submit(&ana, keyed.clone(), &["a"]).await.expect("submitted");
    assert_eq!(submit(&ana, keyed.clone(), &["a"]).await.expect("repeated"), hers);
    assert_ne!(submit(&ben, keyed, &["a"]).await.expect("submitted"), hers);
}

/// Everything that lists, as text.
async fn listed_to(connection: &Connection) -> String {
    let mut jobs = JobServiceClient::new(connection.clone());
    let mut farm = FarmServiceClient::new(connection.clone());
    let mut queue = QueueServiceClient::new(connection.clone());
    let mut workstations = WorkstationServiceClient::new(connection.clone());
    let mut alerts = AlertServiceClient::new(connection.clone());
    let mut access = AccessServiceClient::new(connection.clone());
    let all = ListJobsRequest { all: true, ..ListJobsRequest::default() };
    let open = ListJobsRequest::default();
    format!(
        "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
        jobs.list_jobs(all).await.expect("listed").into_inner(),
        jobs.list_jobs(open).await.expect("listed").into_inner(),
        farm.list_events(ListEventsRequest { limit: 1000, ..Default::default() })
            .await
            .expect("listed")
            .into_inner()
            .events,
        farm.list_statistics(ListStatisticsRequest { owner: "ana".into(), ..Default::default() })
            .await
            .expect("listed")
            .into_inner(),
        queue.list_users(ListUsersRequest {}).await.expect("listed").into_inner(),
        workstations.list_workstations(ListWorkstationsRequest::default()).await.expect("listed").into_inner(),
        alerts.list_subscriptions(ListSubscriptionsRequest { job_id: 0 }).await.expect("listed").into_inner(),
        access.list_tokens(ListTokensRequest::default()).await.expect("listed").into_inner(),
    )
}

#[tokio::test]
async fn a_token_that_is_revoked_is_worth_nothing_on_any_server() {
    let farm = Farm::new().await;
    let one = farm.serving("one", ASKS).await;
    let other = farm.serving("other", ASKS).await;
    let root = connect(&one.url(), Some(&account(&farm, "root", "administrator", &["administer"]).await)).await;
    let mut root = AccessServiceClient::new(root);
    let ana = CreateAccountRequest { user: "ana".into(), ..Default::default() };
    root.create_account(ana).await.expect("an account");
    let asked = CreateTokenRequest { user: "ana".into(), name: "script".into(), ..Default::default() };
    let made = root.create_token(asked.clone()).await.expect("a token").into_inner();
    let id = made.token.expect("told").token_id;
    let ana = connect(&other.url(), Some(&made.secret)).await;
    let mut there = AccessServiceClient::new(ana.clone());
    assert_eq!(there.who_am_i(WhoAmIRequest {}).await.expect("known").into_inner().user, "ana");

    // She cannot give herself more, nor touch what is not hers.
    let more = CreateTokenRequest { name: "more".into(), scopes: vec!["operate".into()], ..Default::default() };
    assert_eq!(there.create_token(more).await.expect_err("more").code(), Code::InvalidArgument);
    let of_root = CreateTokenRequest { user: "root".into(), name: "x".into(), ..Default::default() };
    assert_eq!(there.create_token(of_root).await.expect_err("root's").code(), Code::NotFound);
    assert_eq!(
        there.revoke_token(RevokeTokenRequest { token_id: 1 }).await.expect_err("root's").code(),
        Code::NotFound
    );

    root.revoke_token(RevokeTokenRequest { token_id: id }).await.expect("revoked");
    let (began, deadline) = (Instant::now(), Instant::now() + SOON);
    while let Ok(answer) = there.who_am_i(WhoAmIRequest {}).await {
        assert!(Instant::now() < deadline, "it is still {answer:?}");
        sleep(Duration::from_millis(10)).await;
    }
    println!("revoked on the other server after {:?}", began.elapsed());
    let code = there.who_am_i(WhoAmIRequest {}).await.expect_err("revoked").code();
    assert_eq!(code, Code::Unauthenticated);
    let held = farm.query("select last_used_on = current_date from pcfarm.api_token where token_id = $1", &[&id]).await;
    assert!(held[0].get::<_, bool>(0), "the day of its last use is known");
}

#[tokio::test]
async fn what_a_token_has_made_ends_with_it() {
    let farm = Farm::new().await;
    let server = farm.serving("a", ASKS).await;
    let root = connect(&server.url(), Some(&account(&farm, "root", "administrator", &["administer"]).await)).await;
    let mut root = AccessServiceClient::new(root);
    let ana = CreateAccountRequest { user: "ana".into(), password: "the word of ana".into(), ..Default::default() };
    root.create_account(ana).await.expect("an account");
    let mut anybody = AccessServiceClient::new(connect(&server.url(), None).await);
    let day = |days: i64| Some(prost_types::Duration { seconds: days * 24 * 3600, nanos: 0 });
    let login =
        LoginRequest { user: "ana".into(), password: "the word of ana".into(), lifetime: day(2), ..Default::default() };
    let login = anybody.login(login).await.expect("known").into_inner();
    let mut hers = AccessServiceClient::new(connect(&server.url(), Some(&login.secret)).await);
    let asked = |name: &str, lifetime| CreateTokenRequest { name: name.into(), lifetime, ..Default::default() };
    let longer = hers.create_token(asked("longer", day(3))).await.expect_err("it ends before");
    assert!(longer.code() == Code::InvalidArgument && longer.message().contains("ends before"), "{longer:?}");
    let child = hers.create_token(asked("child", None)).await.expect("a token").into_inner();
    let ends = |made: &pcfarm_proto::v1::NewToken| made.token.as_ref().expect("told").expires_at;
    assert_eq!(ends(&child), ends(&login), "with it, where nothing else is asked for");
    let mut young = AccessServiceClient::new(connect(&server.url(), Some(&child.secret)).await);
    let grandchild = young.create_token(asked("grandchild", day(1))).await.expect("a token").into_inner();
    assert!(ends(&grandchild).expect("some day").seconds < ends(&login).expect("some day").seconds);
    // What an administrator makes for others is not bound to its own token.
    let given = CreateTokenRequest { user: "ana".into(), ..asked("given", None) };
    let given = root.create_token(given).await.expect("a token").into_inner();
    assert_eq!(ends(&given), None);

    hers.revoke_token(RevokeTokenRequest { token_id: 0 }).await.expect("revoked, and told so");
    for secret in [&login.secret, &child.secret, &grandchild.secret] {
        let mut client = AccessServiceClient::new(connect(&server.url(), Some(secret)).await);
        let refused = client.who_am_i(WhoAmIRequest {}).await.expect_err("revoked");
        assert_eq!(refused.code(), Code::Unauthenticated);
    }
    let mut given = AccessServiceClient::new(connect(&server.url(), Some(&given.secret)).await);
    given.who_am_i(WhoAmIRequest {}).await.expect("not hers");
}

#[tokio::test]
async fn calls_that_last_end_with_the_right_to_make_them() {
    const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let farm = Farm::new().await;
    farm.job_type("echo", "echo", json!({})).await;
    let one = farm.serving("one", ASKS).await;
    let other = farm.serving("other", ASKS).await;
    let root = connect(&one.url(), Some(&account(&farm, "root", "administrator", &["administer"]).await)).await;
    let ana = connect(&other.url(), Some(&account(&farm, "ana", "user", &["submit"]).await)).await;
    let ben = connect(&other.url(), Some(&account(&farm, "ben", "operator", &["operate"]).await)).await;
    let job = submit(&ana, new_job("nobody works", "{}"), &["a"]).await.expect("submitted");
    let wait = async |connection: &Connection| {
        let mut jobs = JobServiceClient::new(connection.clone());
        jobs.wait_job(JobRequest { job_id: job }).await.map(drop)
    };
    let upload = async |connection: &Connection| {
        let header = SubmitRequest { part: Some(Part::Header(new_job("never comes", "{}"))) };
        let messages = tokio_stream::once(header).chain(tokio_stream::pending());
        JobServiceClient::new(connection.clone()).submit(messages).await.map(drop)
    };
    let revoke = async {
        // They have begun.
        farm.until(
            SOON,
            "select count(*) = 1 from pg_stat_activity where datname = current_database()
            and application_name = 'pcfarm-server' and state = 'idle in transaction'",
        )
        .await;
        farm.run("update pcfarm.api_token set revoked_at = now() where user_name = 'ana'").await;
        // One that loses some of its rights has none of what it was begun with.
        farm.run("update pcfarm.account set role = 'user' where user_name = 'ben'").await;
    };
    let ending = async {
        tokio::join!(
            wait(&ana),
            upload(&ana),
            end_of_stream(&ana, REFLECTION),
            wait(&ben),
            end_of_stream(&ben, REFLECTION),
            revoke
        )
    };
    let (a, b, c, d, e, ()) = tokio::time::timeout(LONG, ending).await.expect("they end");
    for (what, ended) in [("wait", a), ("upload", b), ("stream", c), ("ben's wait", d), ("ben's stream", e)] {
        assert_eq!(ended.expect_err(what).code(), Code::Unauthenticated, "{what}");
    }
    assert_eq!(farm.number("select count(*) from pcfarm.job where name = 'never comes'").await, 0);
    // What is not theirs goes on.
    JobServiceClient::new(root).get_job(GetJobRequest { job_id: job }).await.expect("there");
}

#[tokio::test]
async fn passwords_are_not_guessed() {
    let farm = Farm::new().await;
    let server = farm.serving("a", ASKS).await;
    let root = connect(&server.url(), Some(&account(&farm, "root", "administrator", &["administer"]).await)).await;
    let mut root = AccessServiceClient::new(root);
    for user in ["ana", "ben"] {
        let password = format!("the word of {user}");
        let asked = CreateAccountRequest { user: user.into(), password, ..Default::default() };
        root.create_account(asked).await.expect("an account");
    }
    let short = CreateAccountRequest { user: "cem".into(), password: "short".into(), ..Default::default() };
    assert_eq!(root.create_account(short).await.expect_err("short").code(), Code::InvalidArgument);
    let mut anybody = AccessServiceClient::new(connect(&server.url(), None).await);
    let mut login = async |user: &str, password: &str| {
        let asked = LoginRequest { user: user.into(), password: password.into(), ..Default::default() };
        anybody.login(asked).await.map(tonic::Response::into_inner)
    };
    let unknown = login("nobody", "whatever it is").await.expect_err("unknown");
    let wrong = login("ana", "whatever it is").await.expect_err("wrong");
    assert_eq!((unknown.code(), unknown.message()), (wrong.code(), wrong.message()), "names are not told");
    let secret = login("ana", "the word of ana").await.expect("right").secret;
    // People mistype; then everybody waits who says this name, also with the right word.
    let mut refused = None;
    for _ in 0..20 {
        let status = login("ana", "a guess of many").await.expect_err("wrong");
        if status.code() == Code::ResourceExhausted {
            refused = Some(status);
            break;
        }
    }
    assert!(refused.expect("braked").message().contains("try again in"));
    assert_eq!(login("ana", "the word of ana").await.expect_err("braked").code(), Code::ResourceExhausted);
    login("ben", "the word of ben").await.expect("others are not");

    // A new password ends what logins gave, but for the one that asks; and it takes the old one.
    let mut hers = AccessServiceClient::new(connect(&server.url(), Some(&secret)).await);
    hers.who_am_i(WhoAmIRequest {}).await.expect("a token is not braked");
    let ben = login("ben", "the word of ben").await.expect("right").secret;
    let second = login("ben", "the word of ben").await.expect("right").secret;
    let mut his = AccessServiceClient::new(connect(&server.url(), Some(&ben)).await);
    let change = |old: &str| SetPasswordRequest {
        old_password: old.into(),
        new_password: "another word of ben".into(),
        ..Default::default()
    };
    assert_eq!(his.set_password(change("not his word")).await.expect_err("wrong").code(), Code::Unauthenticated);
    his.set_password(change("the word of ben")).await.expect("changed");
    his.who_am_i(WhoAmIRequest {}).await.expect("it asked");
    let mut other = AccessServiceClient::new(connect(&server.url(), Some(&second)).await);
    assert_eq!(other.who_am_i(WhoAmIRequest {}).await.expect_err("revoked").code(), Code::Unauthenticated);
    login("ben", "another word of ben").await.expect("the new one");
    let of_ana =
        SetPasswordRequest { user: "ana".into(), new_password: "taken over by ben".into(), ..Default::default() };
    assert_eq!(his.set_password(of_ana).await.expect_err("not his").code(), Code::NotFound);
    let hashes = farm.number("select count(*) from pcfarm.account where password_hash like '%word%'").await;
    assert_eq!(hashes, 0, "nothing of a password is kept");
}

#[tokio::test]
async fn nobody_becomes_more_than_they_are() {
    let farm = Farm::new().await;
    let server = farm.serving("a", &[ASKS, &["--registration"]].concat()).await;
    // An administrator without a password, and a token of hers that may only submit.
    let weak = account(&farm, "root", "administrator", &["submit"]).await;
    let mut weak = AccessServiceClient::new(connect(&server.url(), Some(&weak)).await);
    let take = || SetPasswordRequest { new_password: "all that she may".into(), ..Default::default() };
    assert_eq!(weak.set_password(take()).await.expect_err("less than she may").code(), Code::PermissionDenied);
    let strong = account(&farm, "rita", "administrator", &["administer"]).await;
    let mut strong = AccessServiceClient::new(connect(&server.url(), Some(&strong)).await);
    strong.set_password(take()).await.expect("all that she may");

    // Whose jobs are there already by SQL is nobody's to register as.
    farm.job_type("t", "echo", json!({})).await;
    farm.query("select pcfarm.create_job('nightly', 't')", &[]).await;
    farm.run("update pcfarm.job set owner = 'etl'").await;
    let role: String = farm.query("select session_user::text", &[]).await[0].get(0);
    let mut anybody = AccessServiceClient::new(connect(&server.url(), None).await);
    for (user, code) in [("etl", Code::AlreadyExists), (&role, Code::AlreadyExists), ("newcomer", Code::Ok)] {
        let asked = RegisterRequest { user: user.into(), password: "the word of whoever".into() };
        let outcome = anybody.register(asked).await;
        assert_eq!(outcome.map_or_else(|status| status.code(), |_| Code::Ok), code, "{user}");
    }
}

#[tokio::test]
async fn the_first_account_closes_the_door() {
    let farm = Farm::new().await;
    farm.job_type("work", "digest", json!({})).await;
    let server = farm.serving("a", &[]).await;
    let anybody = connect(&server.url(), None).await;
    let mut access = AccessServiceClient::new(anybody.clone());
    let mut jobs = JobServiceClient::new(anybody);
    jobs.list_jobs(ListJobsRequest::default()).await.expect("nobody is asked yet");
    let root = CreateAccountRequest { user: "root".into(), role: "administrator".into(), ..Default::default() };
    access.create_account(root).await.expect("the first");
    let closed = jobs.list_jobs(ListJobsRequest::default()).await.expect_err("closed");
    assert_eq!(closed.code(), Code::Unauthenticated, "{closed:?}");
    assert!(closed.message().contains("pcfarm login"), "{closed:?}");
    // Agents of this machine still work.
    let _agent = farm.working("pc1", &[&server]);
    let job = farm.submit_sleeps("work", 3, 1, 1).await;
    assert_eq!(farm.ended(job, LONG).await, "done");
}
