//! Workstations that come and go: identities on two machines, goodbyes, lost connections, and workstations that do not work.

use crate::queue::{Queue, queue};
use pcfarm_proto::ids::{CheckoutId, ServerId, WorkstationId};
use pcfarm_sql::farm::{self, WorkstationState};
use pcfarm_sql::fleet::{self, Reported};
use pcfarm_sql::json::RawJson;
use pcfarm_sql::presence::{self, Goodbye, Introduction, MachineDigest, Refusal, Refused, Signs, StateChange};
use pcfarm_sql::upkeep::{self, Loss};
use std::time::Duration;
use uuid::Uuid;

const A: Option<MachineDigest> = Some([0xa; 32]);
const B: Option<MachineDigest> = Some([0xb; 32]);
const LEASE: f64 = 20.0;

fn agent(instance: u128, machine: Option<MachineDigest>, before: &[Option<MachineDigest>]) -> Introduction {
    Introduction {
        identity: Uuid::from_u128(1),
        instance: Uuid::from_u128(instance),
        hostname: "desk".to_owned(),
        cores: 8,
        memory_bytes: 1,
        system: "Linux".to_owned(),
        system_name: "linux".to_owned(),
        arch: "x86_64".to_owned(),
        gpus: Vec::new(),
        programs: Vec::new(),
        agent_version: "0".to_owned(),
        labels: Vec::new(),
        controllers: vec!["c".to_owned()],
        state: "waiting",
        signs: Signs::default(),
        waking: None,
        machine,
        machines_before: before.iter().copied().flatten().collect(),
    }
}

/// The number of its session, or why it is refused.
async fn connects(queue: &Queue, who: Introduction) -> Result<(WorkstationId, i64), Refusal> {
    let client = queue.server().await;
    let answer = presence::connect(&client, &[&who], ServerId(1)).await.expect("asked").remove(0);
    answer.map(|connection| (connection.workstation_id, connection.session)).map_err(|Refused { why, .. }| why)
}

async fn says_goodbye(queue: &Queue, (workstation, session): (WorkstationId, i64)) {
    let goodbye = Goodbye { reason: "stopped in good order".to_owned(), asleep: false };
    presence::mark_offline(&*queue.server().await, &[(workstation, session, goodbye)]).await.expect("recorded");
}

async fn shown(queue: &Queue, workstation: WorkstationId) -> farm::Workstation {
    farm::workstation(&*queue.server().await, workstation).await.expect("read").expect("there")
}

#[tokio::test]
async fn an_identity_belongs_to_the_machine_that_registered_it() {
    let queue = queue().await;
    let first = connects(&queue, agent(1, A, &[])).await.expect("new");
    connects(&queue, agent(1, A, &[])).await.expect("the same agent");
    let again = connects(&queue, agent(1, A, &[])).await.expect("connects again");
    assert!(again.0 == first.0 && again.1 > first.1);
    assert_eq!(connects(&queue, agent(2, A, &[])).await, Err(Refusal::TwoAgents), "the connected agent stays");
    let lost = presence::mark_silent(&*queue.server().await, &[(again.0, again.1, 0.0)], true).await;
    lost.expect("its connection ended");
    let restarted = connects(&queue, agent(2, A, &[])).await.expect("started again");
    assert!(restarted.0 == first.0 && restarted.1 > again.1);
    for (case, who, why) in [
        ("a copy", agent(3, B, &[]), Refusal::AnotherMachine),
        ("a copy of another machine's", agent(3, B, &[Some([0xc; 32])]), Refusal::AnotherMachine),
        ("an agent that names no machine", agent(4, None, &[]), Refusal::NoMachine),
        ("an owner's wish while the other works", agent(5, B, &[A]), Refusal::InUse),
        ("the instance before", agent(1, A, &[]), Refusal::TwoAgents),
    ] {
        assert_eq!(connects(&queue, who).await, Err(why), "{case}");
    }
    let session = queue.number("select session from pcfarm.workstation where hostname = 'desk'").await;
    assert_eq!(session, restarted.1, "the original stays");

    says_goodbye(&queue, restarted).await;
    assert_eq!(connects(&queue, agent(3, B, &[])).await, Err(Refusal::AnotherMachine), "also while it is switched off");
    let kept = connects(&queue, agent(5, B, &[Some([0xc; 32]), A])).await.expect("its owner has bound it anew");
    assert_eq!(kept.0, first.0);
    assert_eq!(connects(&queue, agent(6, A, &[])).await, Err(Refusal::AnotherMachine), "the machine before");
    says_goodbye(&queue, kept).await;
    connects(&queue, agent(7, None, &[])).await.expect("nobody is heard: an older version");
}

#[tokio::test]
async fn a_newcomer_is_refused_for_good_only_while_the_connected_agent_answers() {
    let queue = queue().await;
    let client = queue.server().await;
    let (workstation, session) = connects(&queue, agent(1, A, &[])).await.expect("new");
    let newcomer = agent(2, A, &[]);
    let asks = async || presence::connect(&client, &[&newcomer], ServerId(1)).await.expect("asked").remove(0);
    let refused = asks().await.expect_err("an agent is connected");
    assert_eq!((refused.session, refused.answered, refused.depends_on_an_answer()), (session, false, true));
    presence::note_answer(&client, workstation, session + 1).await.expect("noted");
    assert!(asks().await.expect_err("refused").depends_on_an_answer(), "the answer of another session");
    presence::note_answer(&client, workstation, session).await.expect("noted");
    assert!(!asks().await.expect_err("refused").depends_on_an_answer());
    for age in ["11 seconds", "-11 seconds"] {
        queue.run(&format!("update pcfarm.workstation set answered_at = clock_timestamp() - interval '{age}'")).await;
        assert!(asks().await.expect_err("refused").depends_on_an_answer(), "{age}");
    }
    let copy = presence::connect(&client, &[&agent(3, B, &[])], ServerId(1)).await.expect("asked").remove(0);
    assert!(!copy.expect_err("refused").depends_on_an_answer(), "another machine is refused in any case");
}

#[tokio::test]
async fn sessions_of_a_server_that_has_stopped_keep_no_newcomer_out() {
    let queue = queue().await;
    // The database did not answer for a minute: no server has a newer pulse.
    queue.run("update pcfarm.server set heard_at = clock_timestamp() - interval '60 seconds'").await;
    let server = async |age: f64, stopped: bool| {
        let text = format!(
            "insert into pcfarm.server (name, address, version, heard_at, stopped_at)
             values ('s', 'a', 'v', clock_timestamp() - {age} * interval '1 second', case when {stopped} then clock_timestamp() end)
             returning server_id"
        );
        ServerId(queue.number(&text).await)
    };
    let (living, behind, stopped) = (server(60.0, false).await, server(70.0, false).await, server(60.0, true).await);
    let client = queue.server().await;
    for (number, (case, of, stays)) in
        (10..).zip([("it runs", living, true), ("no pulse", behind, false), ("stopped", stopped, false)])
    {
        let one = |instance| Introduction { identity: Uuid::from_u128(number), ..agent(instance, A, &[]) };
        let answer = presence::connect(&client, &[&one(1)], of).await.expect("asked").remove(0);
        answer.expect("new");
        assert_eq!(connects(&queue, one(2)).await.is_err(), stays, "{case}");
    }
}

#[test]
fn a_challenge_is_read_as_it_is_written() {
    assert_eq!(presence::challenged("challenge 7 12"), Some((WorkstationId(7), 12)));
    for other in ["work", "challenge", "challenge 7", "challenge 7 x", "challenge 7 1 2"] {
        assert_eq!(presence::challenged(other), None, "{other}");
    }
}

#[tokio::test]
async fn a_refusal_spoils_no_other_registration_and_is_news_once() {
    let queue = queue().await;
    let client = queue.server().await;
    connects(&queue, agent(1, A, &[])).await.expect("new");
    let other = Introduction { identity: Uuid::from_u128(2), hostname: "other".to_owned(), ..agent(1, B, &[]) };
    let copy = agent(2, B, &[]);
    let answers = presence::connect(&client, &[&copy, &other], ServerId(1)).await.expect("asked");
    assert!(answers[0].is_err() && answers[1].is_ok(), "{answers:?}");
    let workstation = answers[0].as_ref().expect_err("refused").workstation_id;
    queue.run(r#"select pcfarm.subscribe('{"events": ["workstations"], "notify": "fleet"}')"#).await;
    let details = |copy: &str| RawJson(format!("{{\"copy\": \"{copy}\"}}").into());
    let day = Some(Duration::from_secs(86_400));
    let other = queue.server().await;
    let (x, y) = (details("x"), details("x"));
    let (x, y) = tokio::join!(
        presence::note_clone(&client, workstation, &x, day),
        presence::note_clone(&other, workstation, &y, day)
    );
    assert!(x.expect("noted") ^ y.expect("noted"), "once, however many servers");
    assert!(presence::note_clone(&client, workstation, &details("y"), day).await.expect("noted"), "another copy");
    queue
        .run("update pcfarm.event set happened_at = now() - interval '2 days' where what = 'workstation cloned'")
        .await;
    assert!(presence::note_clone(&client, workstation, &details("x"), day).await.expect("noted"), "a day later");
    assert!(!presence::note_clone(&client, workstation, &details("x"), None).await.expect("noted"), "once ever");
    assert_eq!(queue.number("select count(*) from pcfarm.alert where what = 'workstation_cloned'").await, 1);
    // All of that was told by a clock that was ahead: it holds nothing back.
    queue
        .run(
            "insert into pcfarm.event (what, workstation_id, subject, details)
             select e.what, e.workstation_id, e.subject, e.details
             from generate_series(1, 100), (select e.* from pcfarm.event e where e.what = 'workstation cloned' limit 1) e;
             update pcfarm.event set happened_at = now() + interval '3 years' where what = 'workstation cloned';
             update pcfarm.alert set created_at = now() + interval '3 years'",
        )
        .await;
    assert!(presence::note_clone(&client, workstation, &details("x"), day).await.expect("noted"));
    assert_eq!(queue.number("select count(*) from pcfarm.alert where what = 'workstation_cloned'").await, 2);
}

#[tokio::test]
async fn a_locked_row_holds_up_no_other_workstation() {
    let queue = queue().await;
    let (client, other) = (queue.server().await, queue.server().await);
    let named = |identity: u128| Introduction {
        identity: Uuid::from_u128(identity),
        hostname: format!("desk-{identity}"),
        ..agent(1, A, &[])
    };
    let mut here = Vec::new();
    for identity in 1..=3 {
        here.push(connects(&queue, named(identity)).await.expect("new"));
    }
    let silent = |row: &(WorkstationId, i64)| (row.0, row.1, 3.0);
    let lock = "begin; select from pcfarm.workstation where hostname = 'desk-2' for update";
    let names = |condition: &str| {
        format!(
            "select coalesce(string_agg(hostname, ' ' order by hostname), '') from pcfarm.workstation where {condition}"
        )
    };
    let marked: Vec<_> = here.iter().map(silent).collect();

    other.batch_execute(lock).await.expect("locked");
    presence::mark_silent(&client, &marked, false).await.expect("marked");
    let is_marked = names("silent_since is not null and hostname like 'desk-%'");
    assert_eq!(queue.text(&is_marked).await, "desk-1 desk-3");
    other.batch_execute("rollback").await.expect("unlocked");
    presence::mark_silent(&client, &marked, false).await.expect("marked");
    assert_eq!(queue.text(&is_marked).await, "desk-1 desk-2 desk-3");

    other.batch_execute(lock).await.expect("locked");
    assert_eq!(presence::mark_heard(&client, &here).await.expect("heard"), [here[1].0]);
    assert_eq!(queue.text(&is_marked).await, "desk-2");
    other.batch_execute("rollback").await.expect("unlocked");
    assert_eq!(presence::mark_heard(&client, &here).await.expect("heard"), []);
    assert_eq!(queue.text(&is_marked).await, "");

    other.batch_execute(lock).await.expect("locked");
    let goodbye = Goodbye { reason: "stopped in good order".to_owned(), asleep: false };
    let goodbyes: Vec<_> = here.iter().map(|row| (row.0, row.1, goodbye.clone())).collect();
    assert_eq!(presence::mark_offline(&client, &goodbyes).await.expect("recorded"), [here[1].0]);
    let is_offline = names("state = 'offline'");
    assert_eq!(queue.text(&is_offline).await, "desk-1 desk-3", "the others are offline at once");
    other.batch_execute("rollback").await.expect("unlocked");
    assert_eq!(presence::mark_offline(&client, &goodbyes).await.expect("recorded"), []);
    assert_eq!(queue.text(&is_offline).await, "desk-1 desk-2 desk-3");

    queue.run("update pcfarm.workstation set state = 'waiting', silent_since = null, connected_at = now() - interval '1 day'").await;
    other.batch_execute(lock).await.expect("locked");
    presence::mark_unconnected(&client, ServerId(1), &[], 1.0).await.expect("marked");
    assert_eq!(queue.text(&is_marked).await, "desk-1 desk-3");
}

#[tokio::test]
async fn a_goodbye_makes_offline_at_once_and_its_work_comes_back_after_the_lease_at_no_cost() {
    let queue = queue().await;
    let client = queue.server().await;
    let job = queue.job(2, 2).await;
    let held = queue.take(job, false, 1).await.expect("handed out");
    let (of, session) = (WorkstationId(1), 1);
    says_goodbye(&queue, (of, session + 1)).await;
    assert_eq!(shown(&queue, of).await.state, WorkstationState::Processing, "another session's goodbye");
    says_goodbye(&queue, (of, session)).await;
    let one = shown(&queue, of).await;
    assert_eq!((one.state, one.reason.as_str()), (WorkstationState::Offline, "stopped in good order"));
    // The end of its connection, a word on its way and the lease change nothing.
    presence::mark_silent(&client, &[(of, session, 3.0)], true).await.expect("marked");
    presence::mark_heard(&client, &[(of, session)]).await.expect("marked");
    let signs = Signs::default();
    let late = StateChange { state: "waiting", reason: String::new(), asleep: false, signs };
    presence::change_state(&client, of, session, &late).await.expect("changed");
    upkeep::declare_dead(&*client, 0.0, 1_000_000.0).await.expect("looked");
    assert_eq!(shown(&queue, of).await.state, WorkstationState::Offline);
    assert_eq!(
        queue.number("select count(*) from pcfarm.event where what = 'workstation dead' and workstation_id = 1").await,
        0
    );
    let lost = |lost: Vec<upkeep::LostCheckout>| lost.iter().map(|one| (one.checkout_id, one.loss)).collect::<Vec<_>>();
    let left = upkeep::lost_checkouts(&*client, CheckoutId(0), LEASE).await.expect("read");
    assert_eq!(lost(left), [], "its last deliveries may wait for their acceptance");
    queue.run("update pcfarm.workstation set since = since - interval '21 seconds' where workstation_id = 1").await;
    let left = upkeep::lost_checkouts(&*client, CheckoutId(0), LEASE).await.expect("read");
    assert_eq!(lost(left), [(held.checkout_id, Loss::Offline)]);
    queue.check().await;
}

#[tokio::test]
async fn a_lost_connection_is_shown_and_a_silent_one_is_told_apart() {
    let queue = queue().await;
    let client = queue.server().await;
    let job = queue.job(2, 2).await;
    queue.take(job, false, 1).await.expect("handed out");
    for (workstation, ended) in [(1, true), (2, false)] {
        presence::mark_silent(&client, &[(WorkstationId(workstation), 1, 12.0)], ended).await.expect("marked");
    }
    let one = shown(&queue, WorkstationId(1)).await;
    assert_eq!(one.state, WorkstationState::Lost);
    let told = one.reason.strip_prefix("connection lost 1").and_then(|told| told.split_once(" s ago; "));
    assert_eq!(told.map(|(_, holds)| holds), Some("holds what it had"), "{}", one.reason);
    let silent_for = one.since.elapsed().expect("it was silent before");
    assert!(silent_for >= Duration::from_secs(12), "since the connection was lost: {silent_for:?}");
    let silent = shown(&queue, WorkstationId(2)).await;
    assert_eq!(silent.state, WorkstationState::Waiting);
    assert!(silent.reason.starts_with("last heard 1"), "it may be heard again");
    let counts = async || {
        let status = farm::status(&client, Duration::from_secs(60)).await.expect("read");
        let apart = (status.workstations_lost, status.workstations_unheard);
        (apart, (status.workstations_waiting, status.workstations_processing), status.cores)
    };
    assert_eq!(counts().await, ((1, 1), (2, 0), 16));
    // The end of a connection that was silent before.
    presence::mark_silent(&client, &[(WorkstationId(2), 1, 0.0)], true).await.expect("marked");
    let two = shown(&queue, WorkstationId(2)).await;
    assert_eq!(two.state, WorkstationState::Lost);
    assert!(two.reason.starts_with("connection lost 1") && two.reason.ends_with("dead when the lease is over"));
    assert_eq!(counts().await, ((2, 0), (1, 0), 8));
    let able = pcfarm_sql::jobs::get(&client, job).await.expect("read").expect("it is there").able;
    assert_eq!((able.connected, able.idle), (1, 1), "reasons of jobs count it out, too");
    assert_eq!(
        queue.text("select string_agg(state, ',') from pcfarm.workstation where workstation_id <= 2").await,
        "waiting,waiting",
        "the lease is not over"
    );
    presence::mark_heard(&client, &[(WorkstationId(2), 1)]).await.expect("marked");
    assert_eq!(shown(&queue, WorkstationId(2)).await.reason, "no work for it");
    assert_eq!(counts().await, ((1, 0), (2, 0), 16));
    // A suspended workstation that is lost is counted as lost alone.
    let suspended = "update pcfarm.workstation set state = 'suspended', reason = 'no answer', idle_source = 'none' where workstation_id = 1";
    queue.run(suspended).await;
    let one = shown(&queue, WorkstationId(1)).await;
    assert!(one.state == WorkstationState::Lost && !one.cannot_tell, "{one:?}");
    assert!(one.reason.ends_with(" s ago; was suspended: no answer"), "{}", one.reason);
    let status = farm::status(&client, Duration::from_secs(60)).await.expect("read");
    assert_eq!((status.workstations_suspended, status.workstations_cannot_tell, status.workstations_lost), (0, 0, 1));
}

async fn looks(queue: &Queue) -> (i64, i64) {
    let Reported { without_work, cannot_tell } = fleet::report_idle(&*queue.server().await).await.expect("looked");
    (without_work, cannot_tell)
}

#[tokio::test]
async fn agents_that_cannot_tell_are_counted_apart_and_reported_once_after_a_day() {
    let queue = queue().await;
    let client = queue.server().await;
    queue
        .run("update pcfarm.workstation set state = 'suspended', reason = 'somebody is there' where workstation_id = 2")
        .await;
    let change = |source: &str| StateChange {
        state: "suspended",
        reason: "no source can tell".to_owned(),
        asleep: false,
        signs: Signs { idle_source: source.to_owned(), ..Signs::default() },
    };
    presence::change_state(&client, WorkstationId(1), 1, &change("none")).await.expect("changed");
    let status = farm::status(&client, Duration::from_secs(60)).await.expect("read");
    assert_eq!((status.workstations_cannot_tell, status.workstations_suspended), (1, 1));
    assert_eq!(looks(&queue).await, (0, 0), "for a moment");
    queue.run("update pcfarm.workstation set cannot_tell_since = now() - interval '25 hours' where cannot_tell_since is not null").await;
    let other = queue.server().await;
    let (x, y) = tokio::join!(fleet::report_idle(&*client), fleet::report_idle(&*other));
    assert_eq!(x.expect("looked").cannot_tell + y.expect("looked").cannot_tell, 1, "once, however many servers");
    assert_eq!(looks(&queue).await, (0, 0), "once");
    assert_eq!(
        queue.text("select string_agg(subject, ',') from pcfarm.event where what = 'workstation cannot tell'").await,
        "pc1"
    );
    // A source answers, and stops to.
    presence::change_state(&client, WorkstationId(1), 1, &change("evdev")).await.expect("changed");
    presence::change_state(&client, WorkstationId(1), 1, &change("none")).await.expect("changed");
    assert_eq!(
        queue
            .number("select count(*) from pcfarm.workstation where cannot_tell_since > now() - interval '1 minute'")
            .await,
        1
    );
    assert_eq!(looks(&queue).await, (0, 0));
}

/// As if a day had passed since the last look.
async fn a_day_passes(queue: &Queue) {
    queue
        .run(
            "update pcfarm.workstation_record set looked_at = looked_at - interval '1 day', idle_on = idle_on - 1,
                 worked_at = worked_at - interval '1 day';
             update pcfarm.workstation set registered_at = registered_at - interval '1 day'",
        )
        .await;
}

#[tokio::test]
async fn a_workstation_that_has_not_worked_on_seven_days_with_work_is_reported_once() {
    let queue = queue().await;
    let client = queue.server().await;
    queue.run("update pcfarm.workstation set state = 'suspended' where workstation_id = 1").await;
    queue.run("update pcfarm.workstation set drain = true, state = 'draining' where workstation_id = 2").await;
    a_day_passes(&queue).await;
    a_day_passes(&queue).await;
    for _ in 0..9 {
        assert_eq!(looks(&queue).await, (0, 0), "without work no day counts");
        a_day_passes(&queue).await;
    }
    let job = queue.job(1, 1).await;
    // The workstation takes only another user's jobs.
    queue.run(r#"select pcfarm.set_selection('{pc3}', '{"required": ["nobody"]}')"#).await;
    for day in 1..=6 {
        assert_eq!(looks(&queue).await, (0, 0), "{day}");
        assert_eq!(looks(&queue).await, (0, 0), "{day}, again");
        a_day_passes(&queue).await;
    }
    // A day on which a limit held the work up.
    queue
        .run(
            "select pcfarm.set_resource('licence', 0); insert into pcfarm.job_type_resource values ('t', 'licence', 1)",
        )
        .await;
    assert_eq!(looks(&queue).await, (0, 0));
    a_day_passes(&queue).await;
    queue.run("delete from pcfarm.job_type_resource").await;
    assert_eq!(looks(&queue).await, (1, 0));
    assert_eq!(
        queue.text("select string_agg(subject, ',') from pcfarm.event where what = 'workstation without work'").await,
        "pc1"
    );
    a_day_passes(&queue).await;
    assert_eq!(looks(&queue).await, (0, 0), "once");
    let one = shown(&queue, WorkstationId(1)).await;
    assert_eq!(one.idle_days, 8);
    let told = farm::explain_workstation(&client, &one).await.expect("asked").expect("there").join("\n");
    assert!(told.contains("no result accepted on 8 days"), "{told}");
    assert_eq!(farm::status(&client, Duration::from_secs(60)).await.expect("read").workstations_without_work, 1);
    fleet::note_worked(&*client, &[WorkstationId(1)]).await.expect("noted");
    let one = shown(&queue, WorkstationId(1)).await;
    assert!(one.idle_days == 0 && one.worked_at.is_some());

    queue.run("select pcfarm.set_farm('{\"idle_after_days\": null}')").await;
    for _ in 0..9 {
        a_day_passes(&queue).await;
        assert_eq!(looks(&queue).await, (0, 0), "switched off");
    }
    let _ = job;
}
