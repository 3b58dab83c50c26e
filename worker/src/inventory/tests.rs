//! A table of sessions: what happens, and what the agent does about it.

use bytes::Bytes;
use pcfarm_proto::v1::problem_result::Outcome;

use super::*;

mod lease;
mod leaving;
mod links;
mod returning;
mod worked;

const SECOND: Duration = Duration::from_secs(1);

/// An inventory and its clock.
struct Trial {
    inventory: Inventory,
    now: Duration,
    revoked_cores: u32,
}

impl Trial {
    fn new() -> Trial {
        let hello =
            v1::Hello { controllers: vec!["echo".to_owned(), "program".to_owned()], cores: 2, ..Default::default() };
        let profile = Profile {
            hello,
            prefetch: 1,
            grace: 10 * SECOND,
            unacknowledged_bytes: 1000,
            apart: BTreeSet::new(),
            freezable: BTreeSet::from(["program".to_owned()]),
            after_lease: AfterLease::Stop,
        };
        let now = 1000 * SECOND;
        Trial { inventory: Inventory::new(profile, now), now, revoked_cores: 0 }
    }

    /// Welcomed with nothing in hand, and two checkouts asked for.
    fn open() -> Trial {
        let mut trial = Trial::new();
        assert_eq!(trial.on(Event::Connected), ["hello waiting []"]);
        assert_eq!(trial.on(welcome()), ["credit 2"]);
        trial
    }

    fn on(&mut self, event: Event) -> Vec<String> {
        self.inventory.take(self.now, event);
        self.settle()
    }

    fn after(&mut self, time: Duration) -> Vec<String> {
        self.now += time;
        self.settle()
    }

    fn settle(&mut self) -> Vec<String> {
        let actions = self.inventory.settle(self.now, self.revoked_cores);
        for action in &actions {
            if let Action::Compute(checkout) = action {
                assert!(checkout.problems.iter().all(|problem| problem.key_text().is_ok()), "controllers take text");
            }
        }
        actions.iter().filter_map(tell).collect()
    }
}

/// One line of text per action.
fn tell(action: &Action) -> Option<String> {
    Some(match action {
        Action::Send(Out::Hello(hello)) => {
            format!("hello {} {}", state(hello.state), held(&hello.held))
        }
        Action::Send(Out::Credit(credit)) => format!("credit {}", credit.checkouts),
        Action::Send(Out::Delivery(delivery)) => {
            let parts: Vec<String> = delivery.checkouts.iter().map(part).collect();
            format!("delivery {}: {}", delivery.delivery_id, parts.join(", "))
        }
        Action::Send(Out::ResultPart(part)) => {
            format!("part {}:{} {}+{}", part.checkout_id, part.problem_id, part.offset, part.content.len())
        }
        Action::Send(Out::StoredRequest(request)) => format!("stored {}?", request.delivery_id),
        Action::Send(Out::Heartbeat(beat)) => {
            format!("heartbeat {} {}", beat.last_sequence, held(&beat.held))
        }
        Action::Send(Out::StateChange(change)) => format!("state {}", state(change.state)),
        Action::Send(Out::Intake(intake)) => format!("intake without {:?}", intake.paused),
        Action::Send(Out::Equipment(equipment)) => {
            let programs: Vec<&str> = equipment.programs.iter().map(|program| program.name.as_str()).collect();
            format!("equipment {} {programs:?}", equipment.gpus.len())
        }
        Action::Send(Out::Goodbye(_)) => "goodbye".to_owned(),
        Action::Compute(checkout) => format!("compute {}", checkout.key.checkout_id),
        Action::Cancel(checkout) => format!("cancel {}", checkout.key.checkout_id),
        Action::WithdrawUnstarted => "withdraw".to_owned(),
        Action::LimitSolutions(_) => return None,
        Action::Replace => "replace".to_owned(),
        Action::Pause(paused) => (if *paused { "pause" } else { "go on" }).to_owned(),
        Action::Reconnect => "reconnect".to_owned(),
        Action::Exit(ending) => format!("exit {ending:?}"),
    })
}

fn state(state: i32) -> String {
    let state = v1::WorkstationState::try_from(state).expect("a state of the protocol");
    state.as_str_name().trim_start_matches("WORKSTATION_STATE_").to_lowercase()
}

fn held(held: &[v1::HeldCheckout]) -> String {
    format!("{:?}", held.iter().map(|held| held.checkout_id).collect::<Vec<_>>())
}

fn part(part: &v1::CheckoutResults) -> String {
    let ids: Vec<i64> = part.results.iter().map(|result| result.problem_id).collect();
    let finished = if part.finished { " finished" } else { "" };
    let reason = if part.finished && !part.give_back_reason.is_empty() { " given back" } else { "" };
    let returned = if part.given_back.is_empty() { String::new() } else { format!(" returns {:?}", part.given_back) };
    assert!(part.given_back.is_empty() || !part.give_back_reason.is_empty(), "whatever comes back has a reason");
    format!("{} {ids:?}{returned}{finished}{reason}", part.checkout_id)
}

fn welcome() -> Event {
    Event::Received(In::Welcome(v1::Welcome {
        workstation_id: 7,
        lease: Some(prost_types::Duration { seconds: 20, nanos: 0 }),
        heartbeat: Some(prost_types::Duration { seconds: 5, nanos: 0 }),
        ..Default::default()
    }))
}

fn message(id: i64, problems: &[i64]) -> v1::Checkout {
    let problem = |&problem_id: &i64| v1::Problem { problem_id, ..Default::default() };
    v1::Checkout {
        checkout_id: id,
        token: 100,
        controller: "echo".to_owned(),
        problems: problems.iter().map(problem).collect(),
        sequence: id.unsigned_abs(),
        ..Default::default()
    }
}

fn checkout(id: i64, problems: &[i64]) -> Event {
    Event::Received(In::Checkout(message(id, problems)))
}

fn key(id: i64) -> CheckoutKey {
    CheckoutKey { checkout_id: CheckoutId(id), token: 100 }
}

fn started(id: i64) -> Event {
    Event::Computed(Report::Started(key(id)))
}

fn solved(id: i64, problems: &[i64]) -> Event {
    sized(id, problems, 2)
}

fn sized(id: i64, problems: &[i64], bytes: usize) -> Event {
    let solution = Bytes::from(vec![b'1'; bytes]);
    let result = |&problem_id: &i64| v1::ProblemResult {
        problem_id,
        outcome: Some(Outcome::Solution(solution.clone())),
        more: None,
    };
    let results = problems.iter().map(result).collect();
    Event::Computed(Report::Results(Batch { key: key(id), results, busy: SECOND }))
}

fn ack(delivery_id: u64, checkouts: &[(i64, v1::Verdict)]) -> Event {
    let verdict = |&(checkout_id, verdict): &(i64, v1::Verdict)| v1::CheckoutVerdict {
        checkout_id,
        verdict: verdict.into(),
        ..Default::default()
    };
    Event::Received(In::DeliveryAck(v1::DeliveryAck {
        delivery_id,
        verdicts: checkouts.iter().map(verdict).collect(),
        took: None,
    }))
}

fn revoke(checkout_id: i64) -> Event {
    let revocation = v1::Revocation { checkout_id, reason: "overdue".to_owned() };
    Event::Received(In::Revoke(v1::Revoke { revoked: vec![revocation] }))
}

use v1::Verdict::{Accepted, AlreadyAccepted, Revoked, Unknown};

#[test]
fn a_checkout_is_computed_delivered_and_closed() {
    let mut trial = Trial::open();
    assert_eq!(trial.on(checkout(1, &[10, 11])), ["compute 1"]);
    assert_eq!(trial.on(started(1)), [""; 0]);
    assert!(trial.inventory.deadline(trial.now) <= trial.now + PROCESSING_TOLD_AFTER);
    assert_eq!(trial.after(PROCESSING_TOLD_AFTER), ["state processing"]);
    assert_eq!(trial.on(checkout(2, &[20])), ["compute 2"]);
    // The second is begun while the first has a tail: room for a third.
    assert_eq!(trial.on(started(2)), ["credit 1"]);
    assert_eq!(trial.on(solved(2, &[20])), ["delivery 1: 2 [20] finished"]);
    assert_eq!(trial.on(solved(1, &[11, 10])), ["delivery 2: 1 [11, 10] finished", "credit 1"]);
    assert_eq!(trial.on(ack(1, &[(2, Accepted)])), [""; 0]);
    assert_eq!(trial.on(ack(2, &[(1, AlreadyAccepted)])), [""; 0]);
    assert_eq!(trial.after(SECOND), ["state waiting"]);
    assert_eq!(trial.after(4 * SECOND), ["heartbeat 2 []"]);
}

#[test]
fn a_lone_quick_problem_changes_no_state() {
    let mut trial = Trial::open();
    assert_eq!(trial.on(checkout(1, &[10])), ["compute 1"]);
    assert_eq!(trial.on(solved(1, &[10])), ["delivery 1: 1 [10] finished", "credit 1"]);
    assert_eq!(trial.on(ack(1, &[(1, Accepted)])), [""; 0]);
    assert_eq!(trial.after(SECOND), [""; 0]);
}

#[test]
fn results_of_a_long_checkout_go_out_about_every_second() {
    let mut trial = Trial::open();
    trial.on(checkout(1, &[10, 11, 12, 13]));
    trial.on(started(1));
    assert_eq!(trial.on(solved(1, &[10])), [""; 0]);
    assert!(trial.inventory.deadline(trial.now) <= trial.now + SECOND);
    assert_eq!(trial.after(SECOND), ["delivery 1: 1 [10]", "state processing"]);
    assert_eq!(trial.on(solved(1, &[11])), [""; 0]);
    assert_eq!(trial.on(solved(1, &[12])), [""; 0]);
    assert_eq!(trial.after(SECOND), ["delivery 2: 1 [11, 12]"]);
    assert_eq!(trial.on(ack(1, &[(1, Accepted)])), [""; 0]);
    let last = trial.on(solved(1, &[13]));
    assert_eq!(last, ["delivery 3: 1 [13] finished", "state waiting", "credit 1"]);
}

#[test]
fn what_completes_while_the_window_is_full_shares_a_delivery() {
    let mut trial = Trial::open();
    trial.inventory.profile.unacknowledged_bytes = usize::MAX;
    for id in 1..=6 {
        trial.on(checkout(id, &[id * 10]));
        trial.on(solved(id, &[id * 10]));
    }
    let shared = trial.on(ack(1, &[(1, Accepted)]));
    assert_eq!(shared, ["delivery 5: 5 [50] finished, 6 [60] finished"]);
}

#[test]
fn a_checkout_with_a_key_that_is_no_text_is_given_back() {
    let mut trial = Trial::open();
    let mut wrong = message(1, &[10, 11]);
    wrong.problems[1].key = Bytes::from_static(b"\xff");
    assert_eq!(trial.on(Event::Received(In::Checkout(wrong))), ["delivery 1: 1 [] finished given back", "credit 1"]);
    assert_eq!(trial.on(checkout(2, &[20])), ["compute 2"]);
    let first = v1::Checkout { more: true, ..message(3, &[30]) };
    assert_eq!(trial.on(Event::Received(In::Checkout(first))), [""; 0]);
    let mut second = message(3, &[31]);
    second.problems[0].key = Bytes::from_static(b"\xff");
    let given_back = trial.on(Event::Received(In::Checkout(second)));
    assert_eq!(given_back.first().map(String::as_str), Some("delivery 2: 3 [] finished given back"));
}

fn kept(delivery_id: u64) -> Event {
    Event::Received(In::DeliveryKept(v1::DeliveryKept { delivery_id }))
}

fn checkout_of(job_type: &str, id: i64, problems: &[i64]) -> Event {
    Event::Received(In::Checkout(v1::Checkout { job_type: job_type.to_owned(), ..message(id, problems) }))
}

#[test]
fn a_delivery_is_of_one_job_type() {
    let mut trial = Trial::open();
    trial.inventory.profile.unacknowledged_bytes = usize::MAX;
    for (id, job_type) in (1..=7).zip(["a", "a", "a", "a", "a", "b", "a"]) {
        trial.on(checkout_of(job_type, id, &[id * 10]));
        trial.on(solved(id, &[id * 10]));
    }
    assert_eq!(trial.on(ack(1, &[(1, Accepted)])), ["delivery 5: 5 [50] finished, 7 [70] finished"]);
    assert_eq!(trial.on(ack(2, &[(2, Accepted)])), ["delivery 6: 6 [60] finished"]);
}

#[test]
fn what_the_server_keeps_holds_up_nothing_else() {
    let mut trial = Trial::open();
    trial.inventory.profile.unacknowledged_bytes = usize::MAX;
    for id in 1..=6 {
        trial.on(checkout_of("a", id, &[id * 10]));
        trial.on(solved(id, &[id * 10]));
    }
    assert_eq!(trial.on(kept(1)), ["delivery 5: 5 [50] finished, 6 [60] finished"]);
    for id in 2..=5 {
        trial.on(kept(id));
    }
    // Of a long one a part is kept: what follows comes with its end.
    trial.on(checkout_of("a", 7, &[70, 71, 72]));
    trial.on(started(7));
    trial.on(solved(7, &[70]));
    assert!(trial.after(SECOND).contains(&"delivery 6: 7 [70]".to_owned()));
    trial.on(kept(6));
    trial.on(solved(7, &[71]));
    let sent = |did: &[String]| did.iter().any(|did| did.starts_with("delivery"));
    assert!(!sent(&trial.after(3 * SECOND)));
    assert!(trial.inventory.wants_pockets_emptied(trial.now));
    assert!(trial.inventory.deadline(trial.now) > trial.now, "there is nothing to do now");
    assert!(trial.on(solved(7, &[72])).contains(&"delivery 7: 7 [71, 72] finished".to_owned()));
    // It lives, and owes no answer for long.
    trial.on(kept(7));
    let gives_up = |trial: &mut Trial, minutes: u32| {
        (0..12 * minutes).any(|_| trial.after(5 * SECOND).contains(&"reconnect".to_owned()))
    };
    assert!(!gives_up(&mut trial, 9));
    assert!(gives_up(&mut trial, 2), "but it does owe one");
}

#[test]
fn a_large_checkout_is_delivered_in_parts_and_closed_by_the_last() {
    let mut trial = Trial::open();
    trial.inventory.profile.unacknowledged_bytes = usize::MAX;
    trial.inventory.part_bytes_target = 210;
    trial.on(checkout(1, &[10, 11, 12]));
    let sent = trial.on(sized(1, &[10, 11, 12], 60));
    assert_eq!(sent[..2], ["delivery 1: 1 [10, 11]", "delivery 2: 1 [12] finished"]);
}

#[test]
fn no_more_is_asked_for_while_too_much_is_unacknowledged() {
    let mut trial = Trial::open();
    trial.on(checkout(1, &[10]));
    assert_eq!(trial.on(sized(1, &[10], 2000)), ["delivery 1: 1 [10] finished"]);
    assert_eq!(trial.on(ack(1, &[(1, Accepted)])), ["credit 1"]);
}

#[test]
fn no_more_is_asked_for_while_too_many_problems_are_unacknowledged() {
    let mut trial = Trial::open();
    trial.inventory.profile.unacknowledged_bytes = usize::MAX;
    trial.inventory.part_bytes_target = usize::MAX;
    let problems: Vec<i64> = (0..UNACKNOWLEDGED_PROBLEMS_LIMIT as i64 / 2).collect();
    trial.on(checkout(1, &problems));
    assert!(trial.on(solved(1, &problems)).contains(&"credit 1".to_owned()));
    trial.on(checkout(2, &problems));
    assert!(!trial.on(solved(2, &problems)).contains(&"credit 1".to_owned()));
    assert_eq!(trial.on(ack(1, &[(1, Accepted)])), ["credit 1"]);
}

#[test]
fn no_more_is_asked_for_while_the_payloads_of_what_is_unacknowledged_are_too_much() {
    let mut trial = Trial::open();
    let mut large = message(1, &[10]);
    large.problems[0].payload = vec![b' '; 1000].into();
    trial.on(Event::Received(In::Checkout(large)));
    assert_eq!(trial.on(solved(1, &[10])), ["delivery 1: 1 [10] finished"]);
    assert_eq!(trial.on(ack(1, &[(1, Accepted)])), ["credit 1"]);
}

#[test]
fn no_more_is_asked_for_while_the_server_has_not_answered_for_half_a_lease() {
    let mut trial = Trial::open();
    trial.on(checkout(1, &[10]));
    assert_eq!(trial.on(solved(1, &[10])), ["delivery 1: 1 [10] finished", "credit 1"]);
    trial.after(10 * SECOND);
    trial.on(checkout(2, &[20]));
    assert_eq!(trial.on(solved(2, &[20])), ["delivery 2: 2 [20] finished"]);
    assert_eq!(trial.on(ack(1, &[(1, Accepted)])), ["credit 1"]);
}

#[test]
fn after_a_reconnect_the_unacknowledged_is_held_and_sent_again() {
    let mut trial = Trial::open();
    trial.on(checkout(1, &[10]));
    trial.on(checkout(2, &[20, 21]));
    trial.on(solved(1, &[10]));
    assert_eq!(trial.on(Event::Disconnected), [""; 0]);
    // Work goes on meanwhile.
    assert_eq!(trial.on(solved(2, &[20, 21])), [""; 0]);
    assert_eq!(trial.on(Event::Connected), ["hello waiting [1, 2]"]);
    let sent = ["delivery 1: 1 [10] finished", "delivery 2: 2 [20, 21] finished", "credit 2"];
    assert_eq!(trial.on(welcome()), sent);
    assert_eq!(trial.on(ack(1, &[(1, AlreadyAccepted)])), [""; 0]);
    assert_eq!(trial.on(ack(2, &[(2, Accepted)])), [""; 0]);
}

#[test]
fn who_holds_nothing_says_half_as_often_that_it_lives() {
    let mut trial = Trial::open();
    assert_eq!(trial.after(5 * SECOND), ["heartbeat 0 []"]);
    assert_eq!(trial.after(9 * SECOND), [""; 0]);
    assert_eq!(trial.after(SECOND), ["heartbeat 0 []"]);
    assert_eq!(trial.after(SECOND), [""; 0]);
    assert_eq!(trial.on(checkout(1, &[10])), ["compute 1"]);
    assert_eq!(trial.after(5 * SECOND), ["state processing", "heartbeat 1 [1]"]);
    assert_eq!(trial.after(5 * SECOND), ["heartbeat 1 [1]"]);
}

#[test]
fn a_checkout_that_had_not_arrived_whole_is_dropped_with_its_session() {
    let mut trial = Trial::open();
    let first = v1::Checkout { more: true, ..message(1, &[10]) };
    assert_eq!(trial.on(Event::Received(In::Checkout(first.clone()))), [""; 0]);
    assert_eq!(trial.after(5 * SECOND), ["heartbeat 1 [1]"]);
    trial.on(Event::Disconnected);
    assert_eq!(trial.on(Event::Connected), ["hello waiting []"]);
    assert_eq!(trial.on(welcome()), ["credit 2"]);
    trial.on(Event::Received(In::Checkout(first)));
    assert_eq!(trial.on(checkout(1, &[11])), ["compute 1"]);
    assert_eq!(trial.on(solved(1, &[10, 11])), ["delivery 1: 1 [10, 11] finished", "credit 1"]);
}

#[test]
fn what_is_revoked_is_cancelled_and_never_delivered() {
    for how in ["revoke", "welcome", "verdict", "unknown"] {
        let mut trial = Trial::open();
        trial.on(checkout(1, &[10, 11]));
        trial.on(solved(1, &[10]));
        trial.after(SECOND);
        let event = match how {
            "revoke" => revoke(1),
            "verdict" => ack(1, &[(1, Revoked)]),
            "unknown" => ack(1, &[(1, Unknown)]),
            _ => {
                trial.on(Event::Disconnected);
                trial.on(Event::Connected);
                let revocation = v1::Revocation { checkout_id: 1, reason: String::new() };
                Event::Received(In::Welcome(v1::Welcome { revoked: vec![revocation], ..Default::default() }))
            }
        };
        let actions = trial.on(event);
        assert_eq!(actions[0], "cancel 1", "{how}");
        assert!(!actions.iter().any(|action| action.starts_with("delivery")), "{how}: {actions:?}");
        assert_eq!(trial.on(solved(1, &[11])), [""; 0], "{how}");
    }
}

#[test]
fn a_verdict_on_an_old_token_leaves_the_new_checkout_alone() {
    let mut trial = Trial::open();
    trial.on(checkout(1, &[10]));
    trial.on(solved(1, &[10]));
    let again = v1::Checkout { token: 200, ..message(1, &[30]) };
    let actions = trial.on(Event::Received(In::Checkout(again)));
    assert_eq!(actions[..2], ["cancel 1", "compute 1"]);
    assert_eq!(trial.on(ack(1, &[(1, Unknown)])), [""; 0]);
    // Nor do results of the old one count for it.
    assert_eq!(trial.on(solved(1, &[30])), [""; 0]);
    assert!(trial.inventory.held[&CheckoutId(1)].is_computing());
}

#[test]
fn an_unknown_controller_gives_the_checkout_back() {
    let mut trial = Trial::open();
    let other = v1::Checkout { controller: "other".to_owned(), ..message(1, &[10]) };
    let actions = trial.on(Event::Received(In::Checkout(other)));
    assert_eq!(actions, ["delivery 1: 1 [] finished given back", "credit 1"]);
}

#[test]
fn a_stopping_agent_gives_back_what_it_cannot_finish() {
    let mut trial = Trial::open();
    trial.on(checkout(1, &[10, 11]));
    trial.on(started(1));
    trial.on(checkout(2, &[20]));
    assert_eq!(trial.on(Event::Stop), ["withdraw", "state draining"]);
    let actions = trial.on(Event::Withdrawn(vec![key(2)]));
    assert_eq!(actions, ["cancel 2", "delivery 1: 2 [] finished given back"]);
    trial.on(solved(1, &[10]));
    trial.on(ack(1, &[(2, Accepted)]));
    // One that was on its way.
    assert_eq!(trial.on(checkout(3, &[30])), ["delivery 2: 3 [] finished given back"]);
    trial.on(ack(2, &[(3, Accepted)]));
    assert_eq!(trial.after(9 * SECOND), ["delivery 3: 1 [10]", "heartbeat 3 [1]"]);
    assert_eq!(trial.after(SECOND), ["cancel 1", "delivery 4: 1 [] finished given back"]);
    trial.on(ack(3, &[(1, Accepted)]));
    assert_eq!(trial.on(ack(4, &[(1, Accepted)])), ["exit Clean"]);
}

#[test]
fn a_stopping_agent_does_not_wait_for_ever() {
    let mut trial = Trial::open();
    trial.on(checkout(1, &[10]));
    trial.on(Event::Disconnected);
    assert_eq!(trial.on(Event::Stop), ["withdraw"]);
    assert_eq!(trial.after(10 * SECOND), ["cancel 1"]);
    assert_eq!(trial.after(5 * SECOND), ["exit Unacknowledged(1)"]);

    let mut idle = Trial::new();
    assert_eq!(idle.on(Event::Stop), ["withdraw", "exit Clean"]);
}

#[test]
fn a_drained_agent_takes_no_more_until_a_welcome_says_otherwise() {
    let mut trial = Trial::open();
    trial.on(checkout(1, &[10]));
    let drain = Event::Received(In::Drain(v1::Drain { reason: "new memory".to_owned(), give_back: false }));
    assert_eq!(trial.on(drain), ["state draining"]);
    assert_eq!(trial.on(solved(1, &[10])), ["delivery 1: 1 [10] finished"]);
    assert_eq!(trial.on(ack(1, &[(1, Accepted)])), [""; 0]);
    trial.on(Event::Disconnected);
    assert_eq!(trial.on(Event::Connected), ["hello draining []"]);
    assert_eq!(trial.on(welcome()), ["state waiting", "credit 2"]);
}

#[test]
fn what_is_not_finished_when_the_time_is_over_is_given_back() {
    let drained = |give_back| Event::Received(In::Drain(v1::Drain { reason: "new memory".to_owned(), give_back }));
    let mut trial = Trial::open();
    trial.on(checkout(1, &[10, 11]));
    assert_eq!(trial.on(drained(false)), ["state draining"]);
    trial.inventory.take(trial.now, drained(true));
    // Cores may have finished something a moment ago.
    assert!(trial.inventory.wants_pockets_emptied(trial.now));
    trial.inventory.take(trial.now, solved(1, &[10]));
    assert_eq!(trial.settle(), ["cancel 1", "delivery 1: 1 [10] finished given back"]);
    assert_eq!(trial.on(ack(1, &[(1, Accepted)])), [""; 0]);
    // One that was on its way.
    assert_eq!(trial.on(checkout(2, &[20])), ["delivery 2: 2 [] finished given back"]);
    assert_eq!(trial.on(ack(2, &[(2, Accepted)])), [""; 0]);
    // Once: it has nothing more.
    assert!(!trial.inventory.wants_pockets_emptied(trial.now));
    assert_eq!(trial.on(drained(true)), [""; 0]);
}

#[test]
fn what_absence_is_told_by_is_told_on() {
    use crate::presence::Signs;
    let signs = |power| Signs { idle_source: "evdev".to_owned(), power, notes: Vec::new() };
    let directed = |power| Event::Directed(Directive { signs: signs(power), ..Directive::work() });
    let mut trial = Trial::new();
    trial.inventory.take(trial.now, directed("mains"));
    trial.on(Event::Connected);
    // Hello has said it.
    assert_eq!(trial.on(welcome()), ["credit 2"]);
    assert_eq!(trial.on(directed("mains")), [""; 0]);
    trial.after(SECOND);
    assert_eq!(trial.on(directed("battery")), ["state waiting"]);
    // Not more often than every few seconds.
    assert_eq!(trial.on(directed("mains")), [""; 0]);
    assert_eq!(trial.after(5 * SECOND).first().map(String::as_str), Some("state waiting"));
}

#[test]
fn a_server_that_does_not_answer_is_left() {
    let mut greeting = Trial::new();
    greeting.on(Event::Connected);
    assert_eq!(greeting.after(9 * SECOND), [""; 0]);
    assert_eq!(greeting.after(SECOND), ["reconnect"]);
    assert_eq!(greeting.on(welcome()), [""; 0]);

    let mut delivering = Trial::open();
    delivering.on(checkout(1, &[10]));
    delivering.on(solved(1, &[10]));
    for _ in 0..11 {
        assert_eq!(delivering.after(5 * SECOND).last().map(String::as_str), Some("heartbeat 1 [1]"));
    }
    assert_eq!(delivering.after(5 * SECOND).last().map(String::as_str), Some("reconnect"));
}

#[test]
fn a_machine_that_slept_asks_before_it_goes_on() {
    let mut trial = Trial::open();
    trial.on(checkout(1, &[10]));
    assert_eq!(trial.after(3600 * SECOND), ["reconnect"]);
    trial.on(Event::Disconnected);
    assert_eq!(trial.on(Event::Connected), ["hello processing [1]"]);
}

#[test]
fn the_state_does_not_flicker() {
    let mut trial = Trial::open();
    trial.inventory.profile.unacknowledged_bytes = usize::MAX;
    let mut changes = 0;
    for id in 1..=100 {
        for event in [checkout(id, &[id]), solved(id, &[id])] {
            changes += trial.on(event).iter().filter(|action| action.starts_with("state")).count();
            trial.now += Duration::from_millis(5);
        }
        trial.on(ack(id.unsigned_abs(), &[(id, Accepted)]));
    }
    assert!(changes <= 3, "{changes} changes in a second");
}

fn one_by_one(id: i64, problems: &[i64]) -> Event {
    Event::Received(In::Checkout(v1::Checkout { one_by_one: true, ..message(id, problems) }))
}

fn untaken(trial: &Trial, id: i64) -> usize {
    trial.inventory.held[&CheckoutId(id)].checkout.untaken()
}

fn take_one(trial: &Trial, id: i64) -> i64 {
    let checkout = &trial.inventory.held[&CheckoutId(id)].checkout;
    checkout.take().expect("one is released").problem.problem_id
}

#[test]
fn one_by_one_each_result_is_acknowledged_before_the_next_problem_starts() {
    let mut trial = Trial::open();
    assert_eq!(trial.on(one_by_one(1, &[10, 11, 12])), ["compute 1"]);
    assert_eq!(take_one(&trial, 1), 10);
    trial.on(started(1));
    // Delivered at once, and nothing starts however long the answer takes.
    assert_eq!(trial.on(solved(1, &[10])), ["delivery 1: 1 [10]"]);
    assert_eq!(trial.after(2 * SECOND), ["state processing"]);
    assert_eq!(untaken(&trial, 1), 0);
    // Others run beside it.
    assert_eq!(trial.on(checkout(2, &[20, 21])), ["compute 2"]);
    trial.on(started(2));
    assert_eq!(trial.on(solved(2, &[20, 21])), ["delivery 2: 2 [20, 21] finished"]);
    assert_eq!(trial.on(ack(2, &[(2, Accepted)])), [""; 0]);
    assert_eq!(untaken(&trial, 1), 0);

    assert_eq!(trial.on(ack(1, &[(1, Accepted)])), ["compute 1"]);
    assert_eq!(untaken(&trial, 1), 1);
    assert_eq!(take_one(&trial, 1), 11);
    assert_eq!(trial.on(solved(1, &[11])), ["delivery 3: 1 [11]"]);
    // The same acknowledgement again releases nothing.
    assert_eq!(trial.on(ack(1, &[(1, Accepted)])), [""; 0]);
    // Without a session the next waits for the next session's acknowledgement.
    trial.on(Event::Disconnected);
    assert_eq!(trial.after(SECOND), [""; 0]);
    assert_eq!(trial.on(Event::Connected), ["hello processing [1]"]);
    assert_eq!(trial.on(welcome())[0], "delivery 3: 1 [11]");
    assert_eq!(untaken(&trial, 1), 0);
    assert_eq!(trial.on(ack(3, &[(1, Accepted)])), ["compute 1"]);
    assert_eq!(take_one(&trial, 1), 12);
    assert_eq!(trial.on(solved(1, &[12]))[0], "delivery 4: 1 [12] finished");
    assert_eq!(trial.on(ack(4, &[(1, Accepted)])), [""; 0]);
    assert!(trial.inventory.held.is_empty());
}

#[test]
fn one_by_one_nothing_starts_once_it_is_revoked_or_given_back() {
    for how in ["verdict", "stop"] {
        let mut trial = Trial::open();
        trial.on(one_by_one(1, &[10, 11]));
        take_one(&trial, 1);
        trial.on(started(1));
        trial.on(solved(1, &[10]));
        let actions = if how == "stop" {
            trial.on(Event::Stop);
            assert_eq!(trial.after(10 * SECOND)[..2], ["cancel 1", "delivery 2: 1 [] finished given back"]);
            trial.on(ack(1, &[(1, Accepted)]))
        } else {
            trial.on(ack(1, &[(1, Revoked)]))
        };
        assert!(!actions.iter().any(|action| action.starts_with("compute")), "{how}: {actions:?}");
    }
}

#[test]
fn a_controller_is_told_of_a_revocation_before_anything_is_decided() {
    let mut trial = Trial::open();
    trial.on(checkout(1, &[10, 11]));
    let running = Arc::clone(&trial.inventory.held[&CheckoutId(1)].checkout);
    assert!(running.take().is_some());
    trial.inventory.take(trial.now, revoke(1));
    assert!(running.is_cancelled());
    assert!(running.take().is_none());
}

#[test]
fn nothing_is_asked_for_while_every_core_is_occupied_by_revoked_work() {
    for (revoked_cores, expected) in
        [(0, &["cancel 1", "credit 1"][..]), (1, &["cancel 1", "credit 1"]), (2, &["cancel 1"])]
    {
        let mut trial = Trial::open();
        trial.on(checkout(1, &[10, 11]));
        trial.on(started(1));
        trial.revoked_cores = revoked_cores;
        assert_eq!(trial.on(revoke(1)), expected, "{revoked_cores}");
        // One returns: its report, of no interest by itself, wakes the agent.
        trial.revoked_cores = revoked_cores.saturating_sub(1);
        let asked = trial.on(solved(1, &[10]));
        assert_eq!(asked.contains(&"credit 1".to_owned()), revoked_cores == 2, "{revoked_cores}: {asked:?}");
    }
}

#[test]
fn what_waits_behind_deaf_controllers_goes_back() {
    let mut trial = Trial::open();
    trial.on(checkout(1, &[10, 11]));
    trial.on(started(1));
    trial.on(checkout(2, &[20]));
    trial.on(checkout(4, &[40, 41]));
    take_one(&trial, 4);
    trial.on(started(4));
    trial.revoked_cores = 2;
    assert_eq!(trial.on(revoke(1)), ["cancel 1"]);
    // Another workstation can begin at once what nothing here has begun.
    assert!(trial.inventory.deadline(trial.now) <= trial.now + SECOND);
    assert_eq!(trial.after(SECOND)[..2], ["cancel 2", "delivery 1: 2 [] finished given back"]);
    trial.on(ack(1, &[(2, Accepted)]));
    assert!(trial.inventory.stuck_deadline() > Some(trial.now), "nothing is due");
    trial.after(STUCK_PATIENCE - 2 * SECOND);
    assert_eq!(trial.after(SECOND)[..2], ["cancel 4", "delivery 2: 4 [] finished given back"]);
    trial.on(ack(2, &[(4, Accepted)]));
    // One that was on its way follows at once.
    assert_eq!(trial.on(checkout(3, &[30])), ["compute 3", "cancel 3", "delivery 3: 3 [] finished given back"]);
    // Neither a stop nor a core's return is held up.
    trial.on(ack(3, &[(3, Accepted)]));
    trial.revoked_cores = 1;
    assert_eq!(trial.after(SECOND).last().map(String::as_str), Some("credit 2"));
    trial.revoked_cores = 2;
    trial.on(Event::Stop);
    assert_eq!(trial.after(STOP_LINGER), ["exit Clean"]);
}

/// Something that a server might say, or that only a broken one would.
fn any_message() -> impl proptest::strategy::Strategy<Value = Event> {
    use proptest::prelude::*;
    let id = 0..4_i64;
    let duration = || {
        prop_oneof![
            Just(None),
            (any::<i64>(), any::<i32>()).prop_map(|(seconds, nanos)| Some(prost_types::Duration { seconds, nanos })),
            (0..30_i64).prop_map(|seconds| Some(prost_types::Duration { seconds, nanos: 0 })),
        ]
    };
    let part = (id.clone(), 99..102_u64, prop::collection::vec(0..30_i64, 0..4), any::<(bool, bool, u64)>());
    let part = part.prop_map(|(id, token, problems, (more, one_by_one, sequence))| {
        let part = v1::Checkout { token, more, one_by_one, sequence, ..message(id, &problems) };
        Event::Received(In::Checkout(part))
    });
    let verdict = (id.clone(), -1..6_i32).prop_map(|(checkout_id, verdict)| v1::CheckoutVerdict {
        checkout_id,
        verdict,
        ..Default::default()
    });
    let ack = (0..6_u64, prop::collection::vec(verdict, 0..3)).prop_map(|(delivery_id, verdicts)| {
        Event::Received(In::DeliveryAck(v1::DeliveryAck { delivery_id, verdicts, took: None }))
    });
    let welcome = (duration(), duration(), any::<(u64, u64, bool)>()).prop_map(
        |(lease, heartbeat, (message, solution, draining))| {
            Event::Received(In::Welcome(v1::Welcome {
                lease,
                heartbeat,
                message_bytes_limit: message,
                solution_bytes_limit: solution,
                draining,
                ..Default::default()
            }))
        },
    );
    prop_oneof![
        6 => part,
        4 => ack,
        2 => welcome,
        2 => id.clone().prop_map(revoke),
        4 => (id.clone(), prop::collection::vec(0..30_i64, 0..4)).prop_map(|(id, problems)| solved(id, &problems)),
        2 => id.prop_map(started),
        1 => Just(()).prop_map(|()| Event::Disconnected),
        1 => Just(()).prop_map(|()| Event::Connected),
        1 => Just(()).prop_map(|()| Event::Received(In::Drain(v1::Drain::default()))),
    ]
}

proptest::proptest! {
    /// Whatever it is told, it goes on, keeps what it holds within bounds and wakes again.
    #[test]
    fn nothing_that_a_server_says_confuses_it(
        events in proptest::collection::vec((any_message(), 0..3_000_u64), 1..60),
    ) {
        let mut trial = Trial::new();
        trial.on(Event::Connected);
        for (event, pause) in events {
            trial.on(event);
            trial.after(Duration::from_millis(pause));
            proptest::prop_assert!(trial.inventory.held.len() <= 4);
            proptest::prop_assert!(trial.inventory.deadline(trial.now) <= trial.now.saturating_add(Duration::MAX / 2));
        }
    }
}

mod fuzz {
    use super::*;
    use prost::Message;

    /// Messages one after the other, each with its length: whatever a server says, the agent goes on, keeps what it holds
    /// within bounds and wakes again.
    #[test]
    fn what_a_server_says() {
        bolero::check!().for_each(|mut bytes: &[u8]| {
            let mut trial = Trial::new();
            trial.on(Event::Connected);
            while let Ok(v1::ServerMessage { message: Some(message) }) =
                v1::ServerMessage::decode_length_delimited(&mut bytes)
            {
                trial.on(Event::Received(message));
                trial.after(SECOND);
                assert!(trial.inventory.held.len() <= 4);
                assert!(trial.inventory.deadline(trial.now) <= trial.now.saturating_add(Duration::MAX / 2));
            }
        });
    }
}

/// An agent with a controller `echo` for the cores and two that wait for pools of their own, and a server that understands.
fn with_pools() -> Trial {
    let mut trial = Trial::new();
    let controllers = ["echo", "fares", "seats"].map(str::to_owned);
    trial.inventory.profile.hello.controllers = controllers.to_vec();
    trial.inventory.profile.apart = controllers[1..].iter().cloned().collect();
    assert_eq!(trial.on(Event::Connected), ["hello waiting []"]);
    let Event::Received(In::Welcome(first)) = welcome() else { panic!("a welcome") };
    let welcome = v1::Welcome { takes_intake: true, ..first };
    assert_eq!(trial.on(Event::Received(In::Welcome(welcome))), ["credit 2"]);
    trial
}

fn checkout_for(controller: &str, id: i64, problems: &[i64]) -> Event {
    Event::Received(In::Checkout(v1::Checkout { controller: controller.to_owned(), ..message(id, problems) }))
}

#[test]
fn each_kind_of_work_is_asked_for_by_itself() {
    let mut trial = with_pools();
    assert_eq!(trial.on(checkout_for("fares", 1, &[1, 2])), ["compute 1", "credit 1"]);
    // There is room for two of echo and of seats, and for none of fares.
    assert_eq!(trial.on(checkout_for("fares", 2, &[3, 4])), ["compute 2", r#"intake without ["fares"]"#, "credit 1"]);
    assert_eq!(trial.on(checkout_for("echo", 3, &[5])), ["compute 3", "credit 1"]);
    // The change has to wait, and nothing is asked for meanwhile that might be of the wrong kind.
    assert_eq!(trial.on(checkout_for("echo", 4, &[6])), ["compute 4"]);
    assert_eq!(trial.inventory.deadline(trial.now), trial.now + INTAKE_CHANGE_EVERY);
    assert_eq!(trial.after(INTAKE_CHANGE_EVERY), [r#"intake without ["echo", "fares"]"#, "credit 1"]);
    trial.now += INTAKE_CHANGE_EVERY;
    assert_eq!(trial.on(checkout_for("seats", 5, &[7])), ["compute 5", "state processing"]);
    // Of all of them there is enough: no word of that is needed.
    assert_eq!(trial.on(checkout_for("seats", 6, &[8])), ["compute 6"]);
    assert_eq!(trial.after(SECOND), [""; 0]);
    // The first of fares is done while the second waits.
    assert_eq!(trial.on(started(1)), [""; 0]);
    let done = trial.on(solved(1, &[1, 2]));
    assert!(done.contains(&r#"intake without ["echo", "seats"]"#.to_owned()), "{done:?}");
    assert_eq!(done.last().map(String::as_str), Some("credit 1"));
}

#[test]
fn a_server_that_knows_no_intake_is_told_nothing_of_it() {
    let mut trial = with_pools();
    trial.on(Event::Disconnected);
    trial.on(Event::Connected);
    assert_eq!(trial.on(welcome()), ["credit 2"]);
    assert_eq!(trial.on(checkout_for("fares", 1, &[1])), ["compute 1"]);
    assert_eq!(trial.on(checkout_for("fares", 2, &[2])), ["compute 2"]);
}

fn equipped(gpus: usize, programs: &[&str]) -> Event {
    let program = |name: &&str| v1::Program { name: (*name).to_owned(), version: String::new() };
    let gpu = v1::Gpu { vendor: "amd".to_owned(), name: String::new() };
    Event::Equipped(v1::Equipment { gpus: vec![gpu; gpus], programs: programs.iter().map(program).collect() })
}

#[test]
fn a_change_of_equipment_is_told_once_and_not_too_often() {
    let mut trial = Trial::new();
    assert_eq!(trial.on(equipped(1, &["minizinc"])), [""; 0]);
    assert_eq!(trial.on(Event::Connected), ["hello waiting []"]);
    // The equipment changes while the server has not answered.
    assert_eq!(trial.on(equipped(2, &["minizinc"])), [""; 0]);
    let Event::Received(In::Welcome(first)) = welcome() else { panic!("a welcome") };
    let knows = Event::Received(In::Welcome(v1::Welcome { takes_equipment: true, ..first }));
    assert_eq!(trial.on(knows), [r#"equipment 2 ["minizinc"]"#, "credit 2"]);
    assert_eq!(trial.on(equipped(2, &["minizinc"])), [""; 0]);
    assert_eq!(trial.on(equipped(0, &[])), [""; 0]);
    assert!(trial.inventory.deadline(trial.now) <= trial.now + EQUIPMENT_CHANGE_EVERY);
    assert_eq!(trial.on(equipped(1, &[])), [""; 0]);
    let told = trial.after(EQUIPMENT_CHANGE_EVERY);
    assert_eq!(told.iter().filter(|line| line.starts_with("equipment")).collect::<Vec<_>>(), ["equipment 1 []"]);
    // Another connection begins with what there is.
    trial.on(Event::Disconnected);
    trial.on(Event::Connected);
    assert_eq!(trial.on(welcome()), ["credit 2"]);
    assert_eq!(trial.on(equipped(3, &[])), [""; 0], "this server does not know what that is");
}

#[test]
fn a_bottleneck_is_told_while_work_waits_for_it() {
    let mut trial = with_pools();
    trial.on(checkout_for("fares", 1, &[1, 2]));
    assert_eq!(trial.after(STATE_CHANGE_EVERY), ["state processing"]);
    let held_up = |why: &str| {
        Event::HeldUp(BTreeMap::from([("fares".to_owned(), why.to_owned()), ("seats".to_owned(), "x".to_owned())]))
    };
    trial.now += REASON_CHANGE_EVERY;
    trial.inventory.take(trial.now, held_up("fares waits for database"));
    assert_eq!(trial.inventory.reason(), "fares waits for database", "nothing of seats is here");
    let told = trial.settle();
    assert!(told.contains(&"state processing".to_owned()), "{told:?}");
    // It goes on, or changes by and by: not with every word.
    trial.inventory.take(trial.now, Event::HeldUp(BTreeMap::new()));
    assert_eq!(trial.settle(), [""; 0]);
    let told = trial.after(REASON_CHANGE_EVERY);
    assert!(told.contains(&"state processing".to_owned()), "{told:?}");
    assert_eq!(trial.inventory.reason(), "");
}
