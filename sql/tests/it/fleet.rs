//! What administrators do with many workstations at once.

use crate::queue::{self, Queue, queue};
use pcfarm_proto::ids::{CheckoutId, JobId, ServerId, WorkstationId};
use pcfarm_sql::checkout::Closing;
use pcfarm_sql::fleet::{self, Drain, Unknown};
use pcfarm_sql::json::RawJson;
use pcfarm_sql::presence::{self, Introduction, Signs, StateChange, Yields};
use pcfarm_sql::upkeep::{self, Loss};
use pcfarm_sql::{farm, jobs};
use std::time::Duration;
use uuid::Uuid;

fn ids(ids: &[i64]) -> Vec<WorkstationId> {
    ids.iter().map(|&id| WorkstationId(id)).collect()
}

async fn states(queue: &Queue) -> String {
    let text = "select string_agg(concat_ws(' ', hostname, state, nullif(reason, '')), ', ' order by workstation_id)
        from pcfarm.workstation";
    queue.text(text).await
}

#[tokio::test]
async fn many_are_drained_or_none() {
    let queue = queue().await;
    let client = queue.server().await;
    let untouched = states(&queue).await;
    let fan = Drain { why: "fan".to_owned(), deadline: None };
    for (asked, missing) in [(&[1, 99][..], &[99][..]), (&[98, 99], &[98, 99])] {
        let unknown = Err(Unknown(ids(missing)));
        assert_eq!(fleet::drain(&client, &ids(asked), &fan).await.expect("asked"), unknown);
        assert_eq!(fleet::undrain(&client, &ids(asked), false).await.expect("asked"), unknown);
        assert_eq!(fleet::note(&client, &ids(asked), "x").await.expect("asked"), unknown);
    }
    assert_eq!(states(&queue).await, untouched);

    queue.run("update pcfarm.workstation set state = 'dead' where workstation_id = 2").await;
    // Named twice is once.
    assert_eq!(fleet::drain(&client, &ids(&[2, 1, 1]), &fan).await.expect("drained"), Ok(()));
    let drained = "pc1 draining drained by an administrator: fan, pc2 dead, pc3 waiting";
    assert_eq!(states(&queue).await, drained);
    let since = queue.text("select drained_since::text from pcfarm.workstation where workstation_id = 1").await;
    // What is not said again stays, but for the deadline that is new.
    let soon = Drain { why: String::new(), deadline: Some(Duration::from_secs(600)) };
    assert_eq!(fleet::drain(&client, &ids(&[1]), &soon).await.expect("drained"), Ok(()));
    assert_eq!(queue.text("select drained_since::text from pcfarm.workstation where workstation_id = 1").await, since);
    let one = farm::workstation(&client, WorkstationId(1)).await.expect("read").expect("there");
    let told = one.drained.expect("drained");
    assert_eq!((told.by.as_str(), told.why.as_str()), ("an administrator", "fan"));
    assert!(told.deadline.is_some_and(|deadline| deadline > told.since));
    assert!(one.reason.starts_with("drained by an administrator: fan; what is not finished at 20"), "{}", one.reason);

    // It is remembered of the dead, too; and undone, both are as others.
    assert_eq!(queue.number("select count(*) from pcfarm.workstation where drain").await, 2);
    assert_eq!(fleet::undrain(&client, &ids(&[1, 2, 3]), true).await.expect("undone"), Ok(()));
    assert_eq!(states(&queue).await, "pc1 waiting, pc2 dead, pc3 waiting");
    let left =
        "select count(*) from pcfarm.workstation where drain or drained_by is not null or drained_since is not null
        or drained_why <> '' or drain_deadline is not null";
    assert_eq!(queue.number(left).await, 0);
    let events = "select string_agg(what || ' ' || subject, ', ' order by event_id) from pcfarm.event
        where what like 'workstation drain%'";
    let told = "workstation drained pc1, workstation drained pc2, workstation drained pc1, \
                workstation drain undone pc1, workstation drain undone pc2";
    assert_eq!(queue.text(events).await, told, "and once more with its deadline");
}

#[tokio::test]
async fn a_user_who_drains_is_named_and_a_text_that_is_too_long_refused() {
    let queue = queue().await;
    let client = queue.server().await;
    client.batch_execute("select set_config('pcfarm.user', 'ana', false)").await.expect("set");
    let moving = Drain { why: "moving".to_owned(), deadline: None };
    assert_eq!(fleet::drain(&client, &ids(&[3]), &moving).await.expect("drained"), Ok(()));
    assert!(states(&queue).await.ends_with("pc3 draining drained by ana: moving"));
    let long = Drain { why: "x".repeat(201), deadline: None };
    let refused = fleet::drain(&client, &ids(&[3]), &long).await.expect_err("too long");
    assert_eq!(refused.as_db_error().and_then(|error| error.constraint()), Some("drain_reason_at_most_200"));
    let refused = fleet::note(&client, &ids(&[3]), &"x".repeat(1001)).await.expect_err("too long");
    assert_eq!(refused.as_db_error().and_then(|error| error.constraint()), Some("note_at_most_1000"));
}

#[tokio::test]
async fn a_drain_outlives_its_agent_and_the_agents_word() {
    let queue = queue().await;
    let client = queue.server().await;
    let who = Introduction {
        identity: Uuid::from_u128(1),
        instance: Uuid::from_u128(2),
        hostname: "pc".to_owned(),
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
        machine: None,
        machines_before: Vec::new(),
    };
    let first = presence::connect(&client, &[&who], ServerId(1)).await.expect("connected").remove(0).expect("accepted");
    let pc = [first.workstation_id];
    let fan = Drain { why: "fan".to_owned(), deadline: Some(Duration::ZERO) };
    assert_eq!(fleet::drain(&client, &pc, &fan).await.expect("drained"), Ok(()));
    let row = presence::session_states(&client, &pc).await.expect("read").remove(0);
    assert!(row.drain && row.drain_left.is_some_and(|left| left <= 0.0), "{row:?}");
    assert!(row.drain_reason.starts_with("drained by an administrator: fan; "), "{row:?}");
    queue.run("update pcfarm.workstation set state = 'dead', reason = 'not heard of'").await;
    let another = Introduction { instance: Uuid::from_u128(3), ..who };
    let second =
        presence::connect(&client, &[&another], ServerId(1)).await.expect("connected").remove(0).expect("accepted");
    assert_eq!((second.workstation_id, second.drain, second.drain_reason), (pc[0], true, row.drain_reason.clone()));
    let yields = Some(Yields { count: 7, p50_ms: 40, p99_ms: 390 });
    let signs = Signs {
        idle_source: "evdev".to_owned(),
        power: "battery".to_owned(),
        yields,
        settings: None,
        notes: Vec::new(),
    };
    for state in ["waiting", "draining"] {
        let change = StateChange { state, reason: "of the agent".to_owned(), asleep: false, signs: signs.clone() };
        presence::change_state(&client, pc[0], second.session, &change).await.expect("changed");
    }
    let one = farm::workstation(&client, pc[0]).await.expect("read").expect("there");
    assert_eq!((one.state, one.reason, one.signs), (farm::WorkstationState::Draining, row.drain_reason, signs));
    assert!(one.drained.is_some());
}

#[tokio::test]
async fn what_is_said_beside_a_state_changes_no_moment() {
    let queue = queue().await;
    let client = queue.server().await;
    let since = queue.text("select since::text from pcfarm.workstation where workstation_id = 1").await;
    for power in ["mains", "battery"] {
        let signs = Signs {
            idle_source: "evdev".to_owned(),
            power: power.to_owned(),
            yields: None,
            settings: None,
            notes: Vec::new(),
        };
        let change =
            StateChange { state: "waiting", reason: "low on licences".to_owned(), asleep: false, signs: signs.clone() };
        presence::change_state(&client, WorkstationId(1), 1, &change).await.expect("changed");
        let one = farm::workstation(&client, WorkstationId(1)).await.expect("read").expect("there");
        assert_eq!(one.signs, signs);
    }
    assert_eq!(queue.text("select since::text from pcfarm.workstation where workstation_id = 1").await, since);
}

#[tokio::test]
async fn notes_of_an_agent_are_explained_until_it_has_none() {
    let queue = queue().await;
    let client = queue.server().await;
    let note = "the session helper x11 of user 7 ended at Mon 2026-11-30 14:03".to_owned();
    for (notes, expected) in [(vec![note.clone()], true), (Vec::new(), false)] {
        let signs = Signs { notes, ..Signs::default() };
        let change = StateChange { state: "waiting", reason: String::new(), asleep: false, signs };
        presence::change_state(&client, WorkstationId(1), 1, &change).await.expect("changed");
        let one = farm::workstation(&client, WorkstationId(1)).await.expect("read").expect("there");
        let told = farm::explain_workstation(&client, &one).await.expect("asked").expect("there").join("\n");
        assert_eq!(told.contains(&note), expected, "{told}");
    }
}

#[tokio::test]
async fn who_is_forgotten_is_gone_and_what_it_did_is_not() {
    let queue = queue().await;
    let client = queue.server().await;
    queue
        .run("update pcfarm.workstation set gpus = '{nvidia x}', note = 'in the cellar' where workstation_id = 1")
        .await;
    queue
        .run(
            "insert into pcfarm.workstation_credential (identity, hostname, key, serial, expires_at)
             select w.identity, w.hostname, sha256('k'), 's', 'infinity' from pcfarm.workstation w",
        )
        .await;
    fleet::note_speeds(&client, &[(WorkstationId(1), "t".to_owned(), 5.0), (WorkstationId(9), "t".to_owned(), 1.0)])
        .await
        .expect("noted");
    assert_eq!(queue.number("select count(*) from pcfarm.workstation_speed").await, 1, "of one that is there");
    let job = queue.job(4, 2).await;
    queue
        .run(&format!("update pcfarm.job set requirement = pcfarm.requirement('[\"gpu\"]') where job_id = {job}"))
        .await;
    let done = queue.take(job, false, 1).await.expect("handed out");
    queue.finish(&done).await;
    let held = queue.take(job, false, 1).await.expect("handed out");
    let nowhere = async || jobs::get(&*queue.server().await, job).await.expect("read").expect("there").nowhere;
    assert!(nowhere().await.is_empty());

    for (asked, force, words) in [
        (&[1, 3][..], false, "pc1, pc3 is neither offline nor dead: who is forgotten is gone for good"),
        (&[1, 77, 78], true, "there is no workstation 77, 78"),
    ] {
        let refused = fleet::forget(&client, &ids(asked), force).await.expect_err("refused");
        assert_eq!(refused.as_db_error().map(|error| error.message()), Some(words));
    }
    assert_eq!(queue.number("select count(*) from pcfarm.workstation").await, 3);
    queue.run("update pcfarm.workstation set state = 'dead' where workstation_id = 2").await;
    let gone = fleet::forget(&client, &ids(&[2]), false).await.expect("forgotten");
    assert_eq!(gone, [(WorkstationId(2), "pc2".to_owned())]);
    let gone = fleet::forget(&client, &ids(&[1]), true).await.expect("forgotten");
    assert_eq!(gone, [(WorkstationId(1), "pc1".to_owned())]);

    // What it held comes back at no cost.
    let ending =
        format!("select ending || ': ' || reason from pcfarm.checkout where checkout_id = {}", held.checkout_id);
    assert_eq!(queue.text(&ending).await, "revoked: its workstation was forgotten");
    assert_eq!(queue.number("select count(*) from pcfarm.requeued where attempts + losses = 0").await, 2);
    // Nothing could run the job any more, and no certificate of it lets anybody in.
    assert_eq!(nowhere().await, ["no workstation has gpu: none has any"]);
    assert_eq!(queue.text("select string_agg(hostname, ',') from pcfarm.workstation_credential").await, "pc3");
    assert_eq!(queue.number("select count(*) from pcfarm.workstation_speed").await, 0);
    // What it did still has a name.
    let history = "select string_agg(concat_ws(' ', g.hostname, g.note, c.ending), ', ' order by c.checkout_id)
        from pcfarm.checkout c join pcfarm.forgotten_workstation g using (workstation_id)";
    assert_eq!(queue.text(history).await, "pc1 in the cellar accepted, pc1 in the cellar revoked");
    let events = "select string_agg(what, ', ' order by event_id) from pcfarm.event where workstation_id = 1";
    assert!(queue.text(events).await.ends_with("workstation note, workstation forgotten"));

    // What was handed out to it meanwhile is found.
    let late = queue.take(job, true, 1).await.expect("handed out");
    let lost = upkeep::lost_checkouts(&*client, CheckoutId(0), 20.0).await.expect("read");
    let lost: Vec<_> = lost.iter().map(|lost| (lost.checkout_id, lost.hostname.as_str(), lost.loss)).collect();
    assert_eq!(lost, [(late.checkout_id, "pc1", Loss::Forgotten)]);
    queue.check().await;
}

/// Problems fail on one workstation, each time with a message, or are solved there.
async fn turn(queue: &Queue, job: JobId, came_back: bool, on: i64, told: Result<&str, &str>) {
    let lane = queue.lane(job, came_back).await.expect("a lane");
    let held = queue::take(&*queue.server().await, &lane, 1, WorkstationId(on)).await.expect("handed out");
    let told: Vec<_> = (0..held.problems.len()).map(|n| (n, told)).collect();
    queue.deliver(&held, &told, false).await;
    queue.close(&held, Closing::Finished).await;
}

#[tokio::test]
async fn who_fails_what_others_solve_is_quarantined_until_it_is_released() {
    let queue = queue().await;
    queue.run("select pcfarm.set_farm('{\"quarantine_after\": 5}')").await;
    let client = queue.server().await;
    let job = queue.job(20, 10).await;
    turn(&queue, job, false, 1, Err("no such library")).await;
    assert_eq!(fleet::quarantine(&*client).await.expect("looked"), 0, "nobody has solved any of it");
    for solved in 0..10 {
        // What it tries itself again says nothing of others.
        let on = if solved == 0 { 1 } else { 2 };
        turn(&queue, job, true, on, Ok("1")).await;
        let expected = i64::from(solved == 5);
        assert_eq!(fleet::quarantine(&*client).await.expect("looked"), expected, "{solved}");
    }
    let one = farm::workstation(&client, WorkstationId(1)).await.expect("read").expect("there");
    let evidence = one.quarantine.expect("quarantined");
    assert_eq!((evidence.problems, evidence.evidence.len(), evidence.job_type.as_str()), (5, 5, "t"));
    let first = &evidence.evidence[0];
    assert_eq!((first.job_id, first.message.as_str(), first.solved_on), (job.0, "no such library", 2));
    assert_eq!(one.reason, "drained by the farm: quarantined: it failed 5 problems that others solved");
    let one = farm::workstation(&client, WorkstationId(1)).await.expect("asked").expect("there");
    let told = farm::explain_workstation(&client, &one).await.expect("asked").expect("there").join("\n");
    assert!(told.contains("`pcfarm undrain --release 1`") && told.contains("failed here (no such library)"), "{told}");
    let row = presence::session_states(&client, &ids(&[1])).await.expect("read").remove(0);
    assert!(row.drain && row.drain_left.is_some_and(|left| left <= 0.0), "what it holds is given back: {row:?}");

    let all = ids(&[1, 2, 3]);
    assert_eq!(fleet::undrain(&client, &all, false).await.expect("asked"), Ok(()));
    assert_eq!(queue.number("select count(*) from pcfarm.workstation where drain").await, 1, "it stays");
    assert_eq!(fleet::undrain(&client, &all, true).await.expect("asked"), Ok(()));
    assert_eq!(queue.number("select count(*) from pcfarm.workstation where drain").await, 0);
    assert_eq!(fleet::quarantine(&*client).await.expect("looked"), 0, "what was before is not held against it");
    let events = "select string_agg(what || ' ' || workstation_id, ', ' order by event_id) from pcfarm.event
        where what in ('workstation quarantined', 'workstation released')";
    assert_eq!(queue.text(events).await, "workstation quarantined 1, workstation released 1");
    queue.check().await;
}

/// Failures of a clock that was ahead would be held against a workstation again after each release, until their time comes.
#[tokio::test]
async fn failures_in_the_future_quarantine_nobody() {
    let queue = queue().await;
    queue.run("select pcfarm.set_farm('{\"quarantine_after\": 5}')").await;
    let client = queue.server().await;
    let job = queue.job(20, 10).await;
    turn(&queue, job, false, 1, Err("no such library")).await;
    queue.run("update pcfarm.requeued set requeued_at = clock_timestamp() + interval '3 years'").await;
    for _ in 0..10 {
        turn(&queue, job, true, 2, Ok("1")).await;
    }
    assert_eq!(fleet::quarantine(&*client).await.expect("looked"), 0);
    queue.run("update pcfarm.requeued set requeued_at = clock_timestamp()").await;
    assert_eq!(fleet::quarantine(&*client).await.expect("looked"), 1);
}

#[tokio::test]
async fn what_fails_here_and_there_quarantines_nobody() {
    let queue = queue().await;
    queue.run("select pcfarm.set_farm('{\"quarantine_after\": 5}')").await;
    let client = queue.server().await;
    // Each of two fails some of what the other one solves: they are no worse than each other.
    let job = queue.job(12, 6).await;
    turn(&queue, job, false, 1, Err("flaky")).await;
    turn(&queue, job, false, 2, Err("flaky")).await;
    for solved in 0..12 {
        turn(&queue, job, true, if solved < 6 { 2 } else { 1 }, Ok("1")).await;
    }
    assert_eq!(fleet::quarantine(&*client).await.expect("looked"), 0);
    // The same, had only one of them failed; but not where it is never done.
    queue.run("update pcfarm.requeued set failed_on = 1 where failed_on = 2").await;
    queue.run("update pcfarm.result r set checkout_id = (select max(c.checkout_id) filter (where c.workstation_id = 2) from pcfarm.checkout c)").await;
    for after in ["null", "13"] {
        queue.run(&format!("select pcfarm.set_farm('{{\"quarantine_after\": {after}}}')")).await;
        assert_eq!(fleet::quarantine(&*client).await.expect("looked"), 0);
    }
    queue.run("select pcfarm.set_farm('{\"quarantine_after\": 12}')").await;
    assert_eq!(fleet::quarantine(&*client).await.expect("looked"), 1);
}

/// Problems of one checkout: the first few fail, the others are solved.
async fn turn_with_failures(queue: &Queue, job: JobId, on: i64, convoys: usize, failures: usize) {
    let lane = queue.lane(job, false).await.expect("a lane");
    let held = queue::take(&*queue.server().await, &lane, convoys, WorkstationId(on)).await.expect("handed out");
    let told = |n| (n, if n < failures { Err("flaky") } else { Ok("1") });
    let told: Vec<_> = (0..held.problems.len()).map(told).collect();
    queue.deliver(&held, &told, false).await;
    queue.close(&held, Closing::Finished).await;
}

#[tokio::test]
async fn who_does_most_fails_most_and_is_not_quarantined_for_it() {
    let queue = queue().await;
    queue.run("select pcfarm.set_farm('{\"quarantine_after\": 5}')").await;
    let client = queue.server().await;
    // One solves a hundred times as much as the other, and the same of a hundred fails there; the slow one solves all of that.
    let job = queue.job(404, 1).await;
    turn_with_failures(&queue, job, 1, 400, 20).await;
    turn_with_failures(&queue, job, 2, 4, 0).await;
    for _ in 0..20 {
        turn(&queue, job, true, 2, Ok("1")).await;
    }
    assert_eq!(queue.number("select problems from pcfarm.suspects(5)").await, 20);
    assert_eq!(fleet::quarantine(&*client).await.expect("looked"), 0, "of a hundred it fails no more than anybody may");
    // Had the other one solved as much without a failure, it would be.
    let more = queue.job(400, 1).await;
    turn_with_failures(&queue, more, 2, 400, 0).await;
    assert_eq!(fleet::quarantine(&*client).await.expect("looked"), 1);
    assert_eq!(queue.number("select count(*) from pcfarm.workstation where drain and workstation_id = 1").await, 1);
}

#[tokio::test]
async fn who_solves_in_the_end_what_failed_there_is_not_quarantined() {
    let queue = queue().await;
    queue.run("select pcfarm.set_farm('{\"quarantine_after\": 5}')").await;
    let client = queue.server().await;
    // What it needed was away for a while, when nobody else was there: since then it solves as well as the others.
    let job = queue.job(60, 1).await;
    turn_with_failures(&queue, job, 1, 20, 20).await;
    turn_with_failures(&queue, job, 2, 40, 0).await;
    for solved in 0..20 {
        turn(&queue, job, true, if solved % 2 == 0 { 1 } else { 2 }, Ok("1")).await;
    }
    let rates = "select count(*) from pcfarm.fails_more_than_others() where workstation_id = 1";
    assert_eq!(queue.number(rates).await, 1, "by how much fails there it would be");
    assert_eq!(fleet::quarantine(&*client).await.expect("looked"), 0);
}

#[tokio::test]
async fn at_most_a_quarter_of_the_living_is_in_quarantine() {
    let queue = queue().await;
    queue.run("select pcfarm.set_farm('{\"quarantine_after\": 5}')").await;
    let client = queue.server().await;
    queue
        .run(
            "insert into pcfarm.workstation (identity, instance, hostname, cores, memory_bytes, system, agent_version,
                 controllers, session, server_id)
             select gen_random_uuid(), gen_random_uuid(), 'pc' || g, 8, 1, 'Linux', '0', '{c}', 1, 1
             from generate_series(4, 8) g",
        )
        .await;
    let job = queue.job(218, 1).await;
    for (on, convoys, failures) in [(1, 5, 5), (2, 7, 7), (3, 6, 6), (4, 200, 0)] {
        turn_with_failures(&queue, job, on, convoys, failures).await;
    }
    for _ in 0..18 {
        turn(&queue, job, true, 4, Ok("1")).await;
    }
    let quarantined =
        "select string_agg(hostname, ' ' order by hostname) from pcfarm.workstation where quarantine is not null";
    assert_eq!(queue.text(quarantined).await, "");
    for expected in [2, 0] {
        assert_eq!(fleet::quarantine(&*client).await.expect("looked"), expected);
        assert_eq!(queue.text(quarantined).await, "pc2 pc3", "the worst two of eight");
    }
    queue.run("update pcfarm.workstation set state = 'dead' where workstation_id > 4").await;
    assert_eq!(fleet::quarantine(&*client).await.expect("looked"), 0, "a fourth of fewer is less");
}

#[tokio::test]
async fn a_problem_that_fails_wherever_it_goes_is_failed() {
    let queue = queue().await;
    queue.run("select pcfarm.set_farm('{\"quarantine_after\": 5}')").await;
    let client = queue.server().await;
    queue.run("select pcfarm.create_job_type('patient', 'c', '{\"max_attempts\": 20}')").await;
    let job = queue.job_of("patient", 1, 1).await;
    turn(&queue, job, false, 1, Err("first")).await;
    // Twice on the same one is one workstation.
    for (on, message) in [(1, "again"), (2, "second"), (3, "third")] {
        assert_eq!(queue.number("select count(*) from pcfarm.result").await, 0, "before {message}");
        turn(&queue, job, true, on, Err(message)).await;
    }
    let ended = "select concat_ws(' ', attempts, failed, message) from pcfarm.result";
    assert_eq!(queue.text(ended).await, "4 t failed on 3 workstations, the last time: third");
    assert_eq!(queue.end(job).await.as_deref(), Some("failed"));
    assert_eq!(fleet::quarantine(&*client).await.expect("looked"), 0);
    // With fresh attempts it begins anew.
    queue.run(&format!("select pcfarm.retry_job({job})")).await;
    turn(&queue, job, true, 3, Err("once more")).await;
    assert_eq!(queue.number("select count(*) from pcfarm.result").await, 0);
    turn(&queue, job, true, 1, Ok("1")).await;
    assert_eq!(queue.end(job).await.as_deref(), Some("done"));
    queue.check().await;
}

#[tokio::test]
async fn what_is_wanted_of_presence_is_checked_and_kept_by_name() {
    let queue = queue().await;
    let client = queue.server().await;
    for (settings, why) in [
        (r#"{"colour": 1}"#, "colour"),
        (r#"{"start_after": "soon"}"#, "start_after: "),
        (r#"{"resume_after": 604801}"#, "resume_after: 604801|at most a week"),
        (r#"{"load": 0}"#, "load: 0|more than 0"),
        (r#"{"free_memory": 1}"#, "free_memory"),
        (r#"{"memory_limit_mib": 1.5}"#, "memory_limit_mib"),
        (r#"{"cores": 0}"#, "a whole number of cores"),
        (r#"{"cores": 1.5}"#, "a whole number of cores"),
        (r#"{"cores": "two"}"#, "a whole number of cores"),
        (r#"{"on_battery": "no"}"#, "true or false"),
        (r#"{"on_return": "run"}"#, "give-back, finish or freeze"),
        (r#"{"hours": ["always"]}"#, "18:00-07:00"),
        (r#"{"hours": "sat"}"#, "18:00-07:00"),
    ] {
        let (_, message) = queue.refused(&format!("select pcfarm.set_presence('{{pc}}', '{settings}')")).await;
        assert!(message.contains(why.split('|').next_back().expect("something")), "{settings}: {message}");
    }
    assert_eq!(queue.number("select count(*) from pcfarm.presence").await, 0);
    let names = ["pc".to_owned(), "later".to_owned()];
    let set = async |settings: &'static str| {
        presence::set_presence(&client, &names, &RawJson(settings.into()), "").await.expect("set");
    };
    set(r#"{"start_after": 1800, "hours": ["mon-fri 18:00-7:00", "sat,sun", "22:00-24:00"], "on_return": "freeze"}"#)
        .await;
    set(r#"{"start_after": 60, "hours": null, "load": 0.1, "on_battery": true, "memory_limit_mib": 100, "cores": 2}"#)
        .await;
    let wanted =
        queue.text("select string_agg(hostname || ' ' || wanted, ' ' order by hostname) from pcfarm.presence").await;
    let expected = r#"{"load": 0.1, "cores": 2, "on_return": "freeze", "on_battery": true, "start_after": 60, "memory_limit_mib": 100}"#;
    assert_eq!(wanted, format!("later {expected} pc {expected}"));
    set(r#"{"start_after": null, "load": null, "on_return": null, "on_battery": null}"#).await;
    set(r#"{"memory_limit_mib": null, "cores": null}"#).await;
    assert_eq!(queue.number("select count(*) from pcfarm.presence").await, 0);
}
