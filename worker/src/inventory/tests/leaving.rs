//! Agents that give way to a person.

use super::*;
use crate::inventory::leaving::{HEARING_WAIT, LATEST};
use crate::presence::policy::Activity;

fn directed(activity: Activity) -> Event {
    Event::Directed(Directive { activity, reason: "somebody is there".to_owned(), ..Directive::work() })
}

/// With a checkout that was begun and one that was not.
fn at_work() -> Trial {
    let mut trial = Trial::open();
    trial.on(checkout(1, &[10, 11]));
    trial.on(started(1));
    trial.on(checkout(2, &[20]));
    trial
}

#[test]
fn what_is_finished_is_delivered_and_the_rest_given_back() {
    let mut trial = at_work();
    trial.inventory.take(trial.now, directed(Activity::Rest));
    // Cores may have finished something a moment ago.
    assert!(trial.inventory.wants_pockets_emptied(trial.now));
    trial.inventory.take(trial.now, solved(1, &[10]));
    let delivery = "delivery 1: 1 [10] finished given back, 2 [] finished given back";
    assert_eq!(trial.settle(), ["cancel 1", "cancel 2", delivery, "state suspended"]);
    assert_eq!(trial.on(solved(1, &[11])), [""; 0]);
    assert_eq!(trial.on(ack(1, &[(1, Accepted), (2, Accepted)])), [""; 0]);
    // One that was on its way.
    assert_eq!(trial.on(checkout(3, &[30])), ["delivery 2: 3 [] finished given back"]);
    assert_eq!(trial.on(ack(2, &[(3, Accepted)])), [""; 0]);
    trial.after(SECOND);
    assert_eq!(trial.on(directed(Activity::Rest)), [""; 0]);
    assert_eq!(trial.on(directed(Activity::Work)), ["state waiting", "credit 2"]);
    assert_eq!(trial.on(checkout(4, &[40])), ["compute 4"]);
}

#[test]
fn what_was_begun_may_be_finished() {
    let mut trial = at_work();
    let begun = trial.inventory.held[&CheckoutId(1)].checkout.take().map(|taken| taken.index);
    assert_eq!(begun, Some(0));
    let actions = trial.on(directed(Activity::Finish));
    assert_eq!(actions, ["cancel 2", "delivery 1: 2 [] finished given back", "state suspended"]);
    assert!(trial.inventory.held[&CheckoutId(1)].checkout.take().is_none());
    assert_eq!(trial.on(solved(1, &[10])), ["cancel 1", "delivery 2: 1 [10] finished given back"]);
}

#[test]
fn what_takes_too_long_to_finish_goes_back() {
    let mut trial = at_work();
    trial.inventory.held[&CheckoutId(1)].checkout.take();
    trial.on(directed(Activity::Finish));
    assert_eq!(trial.on(directed(Activity::Rest)), ["cancel 1", "delivery 2: 1 [] finished given back"]);
}

#[test]
fn a_person_who_returns_while_no_server_is_there_is_given_way_to_all_the_same() {
    let mut trial = at_work();
    trial.on(solved(1, &[10]));
    trial.on(Event::Disconnected);
    assert_eq!(trial.on(directed(Activity::Rest)), ["cancel 1", "cancel 2"]);
    assert_eq!(trial.on(Event::Connected), ["hello suspended [1, 2]"]);
    let delivery = "delivery 1: 1 [10] finished given back, 2 [] finished given back";
    assert_eq!(trial.on(welcome()), [delivery, "state suspended"]);
}

#[test]
fn deaf_controllers_end_with_their_process() {
    for acknowledged in [true, false] {
        let mut trial = at_work();
        trial.on(directed(Activity::Rest));
        trial.revoked_cores = 1;
        if acknowledged {
            trial.on(ack(1, &[(1, Accepted), (2, Accepted)]));
        }
        assert!(trial.inventory.deadline(trial.now) <= trial.now + HEARING_WAIT);
        let expected = if acknowledged { &["replace"][..] } else { &[] };
        assert_eq!(trial.after(HEARING_WAIT), expected);
        let expected = if acknowledged { &[][..] } else { &["replace"] };
        assert_eq!(trial.after(LATEST - HEARING_WAIT), expected);
        // Once is enough, even if nobody does it.
        assert_eq!(trial.after(SECOND), [""; 0]);
    }
}

#[test]
fn controllers_that_hear_are_left_alone() {
    let mut trial = at_work();
    trial.on(directed(Activity::Rest));
    assert_eq!(trial.after(HEARING_WAIT), [""; 0]);
    assert_eq!(trial.after(LATEST), [""; 0]);
}

#[test]
fn the_rest_of_a_convoy_is_begun_when_the_person_has_left_again() {
    let mut trial = at_work();
    let first = Arc::clone(&trial.inventory.held[&CheckoutId(1)].checkout);
    first.take();
    trial.on(directed(Activity::Finish));
    assert!(first.take().is_none());
    assert_eq!(trial.on(directed(Activity::Work)), ["compute 1", "credit 1"]);
    assert_eq!(first.take().map(|taken| taken.index), Some(1));
    trial.on(solved(1, &[10]));
    assert_eq!(trial.on(solved(1, &[11])), ["delivery 2: 1 [10, 11] finished", "credit 1"]);
}

/// One that was computed one by one has an unknown place to go on from.
#[test]
fn one_by_one_the_rest_goes_back_when_the_person_has_left_again() {
    let mut trial = Trial::open();
    let message = v1::Checkout { one_by_one: true, ..message(1, &[10, 11]) };
    trial.on(Event::Received(In::Checkout(message)));
    trial.inventory.held[&CheckoutId(1)].checkout.take();
    trial.on(started(1));
    trial.on(directed(Activity::Finish));
    trial.on(directed(Activity::Work));
    let actions = trial.on(solved(1, &[10]));
    assert_eq!(actions[..2], ["cancel 1", "delivery 1: 1 [10] finished given back"]);
}

/// Two of a program, of which one was begun, and one of a thread that cannot stand still.
fn with_a_program() -> Trial {
    let mut trial = Trial::open();
    for (id, controller) in [(1, "program"), (2, "program"), (3, "echo")] {
        let message = v1::Checkout { controller: controller.to_owned(), ..message(id, &[10 * id, 10 * id + 1]) };
        trial.on(Event::Received(In::Checkout(message)));
    }
    for id in [1, 3] {
        assert!(trial.inventory.held[&CheckoutId(id)].checkout.take().is_some());
        trial.on(started(id));
    }
    trial
}

const OTHERS_GO_BACK: &str = "delivery 1: 2 [] finished given back, 3 [] finished given back";

#[test]
fn what_can_stand_still_does_and_goes_on() {
    let mut trial = with_a_program();
    trial.inventory.take(trial.now, directed(Activity::Freeze));
    assert!(trial.inventory.wants_pockets_emptied(trial.now));
    assert_eq!(trial.settle(), ["pause", "cancel 2", "cancel 3", OTHERS_GO_BACK, "state suspended"]);
    assert!(trial.inventory.reason().ends_with("; what it has begun is frozen"), "{}", trial.inventory.reason());
    let first = Arc::clone(&trial.inventory.held[&CheckoutId(1)].checkout);
    assert!(first.is_frozen() && !first.is_cancelled());
    // It is still held, so that nobody takes it for lost.
    trial.on(ack(1, &[(2, Accepted), (3, Accepted)]));
    assert_eq!(trial.after(5 * SECOND), ["heartbeat 3 [1]"]);
    // What it had finished in that moment is delivered meanwhile.
    assert_eq!(trial.on(solved(1, &[10])), ["delivery 2: 1 [10]"]);
    trial.after(SECOND);
    let actions = trial.on(directed(Activity::Work));
    assert!(actions.contains(&"go on".to_owned()), "{actions:?}");
    assert!(trial.after(SECOND).contains(&"state processing".to_owned()));
    assert!(!first.is_frozen() && first.take().is_some());
    assert_eq!(trial.on(solved(1, &[11])), ["delivery 3: 1 [11] finished", "credit 1"]);
}

#[test]
fn what_stands_still_for_too_long_goes_back() {
    let mut trial = with_a_program();
    trial.on(directed(Activity::Freeze));
    assert_eq!(trial.on(directed(Activity::Rest)), ["go on", "cancel 1", "delivery 2: 1 [] finished given back"]);
}

#[test]
fn nothing_stands_still_until_the_farm_revokes_it() {
    let mut trial = Trial::open();
    let time_limit = Some(prost_types::Duration { seconds: 100, nanos: 0 });
    let message = v1::Checkout { controller: "program".to_owned(), time_limit, ..message(1, &[10]) };
    trial.on(Event::Received(In::Checkout(message)));
    trial.inventory.held[&CheckoutId(1)].checkout.take();
    trial.on(started(1));
    trial.on(directed(Activity::Freeze));
    for _ in 0..17 {
        assert!(trial.after(5 * SECOND).iter().all(|action| action.starts_with("heartbeat")));
    }
    let actions = trial.after(5 * SECOND);
    assert!(actions.contains(&"delivery 1: 1 [] finished given back".to_owned()), "{actions:?}");
}

#[test]
fn an_agent_that_stops_does_not_wait_for_what_stands_still() {
    let mut trial = with_a_program();
    trial.on(directed(Activity::Freeze));
    let actions = trial.on(Event::Stop);
    assert!(actions.contains(&"cancel 1".to_owned()), "{actions:?}");
    let first = "delivery 2: 1 [] finished given back".to_owned();
    assert!(actions.contains(&first), "{actions:?}");
}

#[test]
fn what_is_revoked_while_it_stands_still_is_over() {
    let mut trial = with_a_program();
    trial.on(directed(Activity::Freeze));
    let first = Arc::clone(&trial.inventory.held[&CheckoutId(1)].checkout);
    let waits = std::thread::spawn({
        let first = Arc::clone(&first);
        move || first.stand_still()
    });
    while first.standing_still() == 0 {
        std::thread::yield_now();
    }
    let revocation = v1::Revocation { checkout_id: 1, reason: "overdue".to_owned() };
    trial.on(Event::Received(In::Revoke(v1::Revoke { revoked: vec![revocation] })));
    waits.join().expect("it waits no longer");
    assert_eq!(first.standing_still(), 0);
}

#[test]
fn a_state_that_changes_before_it_is_welcomed_is_told() {
    for (before, hello, after, told) in [
        (Activity::Rest, "hello suspended []", Activity::Work, vec!["state waiting", "credit 2"]),
        (Activity::Work, "hello waiting []", Activity::Rest, vec!["state suspended"]),
        (Activity::Rest, "hello suspended []", Activity::Rest, vec!["state suspended"]),
    ] {
        let mut trial = Trial::new();
        trial.on(directed(before));
        assert_eq!(trial.on(Event::Connected), [hello]);
        trial.on(directed(after));
        assert_eq!(trial.on(welcome()), told, "{before:?}, {after:?}");
    }
}
