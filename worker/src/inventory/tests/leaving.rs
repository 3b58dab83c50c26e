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
