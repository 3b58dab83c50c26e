//! Agents that return unbegun problems because others are idle.

use super::*;
use crate::presence::policy::Activity;

fn give_back(checkouts: &[i64]) -> Event {
    let returnable = |&checkout_id: &i64| v1::Returnable { checkout_id, whole_convoys: false };
    let checkouts = checkouts.iter().map(returnable).collect();
    Event::Received(In::GiveBack(v1::GiveBack { checkouts, problems: 1000 }))
}

impl Trial {
    fn take(&self, id: i64, problems: usize) {
        let checkout = &self.inventory.held[&CheckoutId(id)].checkout;
        for _ in 0..problems {
            let _ = checkout.take().expect("a problem");
        }
    }
}

/// Two cores compute two of six problems, and another checkout waits.
fn at_work() -> Trial {
    let mut trial = Trial::open();
    trial.on(checkout(1, &[10, 11, 12, 13, 14, 15]));
    trial.on(started(1));
    trial.take(1, 2);
    trial.on(checkout(2, &[20, 21]));
    trial
}

#[test]
fn what_is_behind_long_problems_is_returned() {
    let mut trial = at_work();
    trial.inventory.take(trial.now, give_back(&[1, 2]));
    // Cores may have finished something a moment ago.
    assert!(trial.inventory.wants_pockets_emptied(trial.now));
    let both = [
        "cancel 2",
        "delivery 1: 2 [] finished given back, 1 [] returns [12, 13, 14, 15]",
        "state processing",
        "credit 1",
    ];
    trial.now += SECOND;
    assert_eq!(trial.settle(), both);
    assert!(trial.inventory.held[&CheckoutId(1)].checkout.take().is_none());
    assert_eq!(trial.on(give_back(&[1, 2])), [""; 0], "nothing is left");
    assert_eq!(trial.on(ack(1, &[(1, Accepted), (2, Accepted)])), [""; 0]);
    // The others are computed to their end, and close it.
    assert_eq!(trial.on(solved(1, &[11, 10])), ["delivery 2: 1 [11, 10] finished", "credit 1"]);
}

#[test]
fn only_what_is_asked_for_is_returned() {
    let mut trial = at_work();
    trial.now += SECOND;
    assert_eq!(
        trial.on(give_back(&[2, 77])),
        ["cancel 2", "delivery 1: 2 [] finished given back", "state processing", "credit 1"]
    );
    let few = v1::GiveBack { checkouts: vec![v1::Returnable { checkout_id: 1, whole_convoys: false }], problems: 3 };
    assert_eq!(trial.on(Event::Received(In::GiveBack(few))), ["delivery 2: 1 [] returns [13, 14, 15]"]);
    assert_eq!(trial.on(give_back(&[])), [""; 0]);
}

#[test]
fn what_begins_soon_stays() {
    let mut trial = at_work();
    // Half a second each.
    trial.on(solved(1, &[10, 11]));
    trial.take(1, 1);
    let actions = trial.on(give_back(&[1, 2]));
    // One runs, three begin within two seconds of computing time.
    assert_eq!(actions, ["cancel 2", "delivery 1: 2 [] finished given back", "credit 1"]);
}

#[test]
fn what_was_returned_while_no_server_was_there_is_told_to_the_next_one() {
    let mut trial = at_work();
    trial.now += SECOND;
    trial.on(give_back(&[1]));
    trial.on(Event::Disconnected);
    assert_eq!(trial.on(Event::Connected), ["hello processing [1, 2]"]);
    assert_eq!(trial.on(welcome())[0], "delivery 1: 1 [] returns [12, 13, 14, 15]");
    // A request of a server that is gone is void.
    trial.inventory.take(trial.now, give_back(&[2]));
    assert_eq!(trial.on(Event::Disconnected), [""; 0]);
    assert!(trial.inventory.held[&CheckoutId(2)].is_computing());
}

#[test]
fn one_that_gives_way_to_a_person_or_is_drained_goes_by_other_rules() {
    let mut trial = at_work();
    trial.on(Event::Directed(Directive { activity: Activity::Freeze, ..Directive::work() }));
    trial.now += SECOND;
    assert!(!trial.on(give_back(&[1])).iter().any(|action| action.contains("returns")));
}

#[test]
fn a_checkout_that_is_computed_one_by_one_stays() {
    let mut trial = Trial::open();
    let message = v1::Checkout { one_by_one: true, ..message(1, &[10, 11, 12]) };
    trial.on(Event::Received(In::Checkout(message)));
    trial.on(started(1));
    trial.take(1, 1);
    trial.now += SECOND;
    assert!(!trial.on(give_back(&[1])).iter().any(|action| action.contains("returns")));
}
