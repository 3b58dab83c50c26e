//! What an agent says of when it worked, on its own clock.

use super::*;

fn traced(id: i64, problems: &[i64]) -> Event {
    Event::Received(In::Checkout(v1::Checkout { traced: true, ..message(id, problems) }))
}

/// The last delivery: of each of its checkouts how long ago it arrived, began and ended, in seconds, and how many problems and
/// seconds of work it was.
fn told(trial: &mut Trial) -> Vec<Option<[i64; 5]>> {
    let actions = trial.inventory.settle(trial.now, 0);
    let delivery = actions.iter().rev().find_map(|action| match action {
        Action::Send(Out::Delivery(delivery)) => Some(delivery),
        _ => None,
    });
    let seconds = |duration: &Option<prost_types::Duration>| duration.as_ref().map_or(-1, |duration| duration.seconds);
    let worked = |worked: &v1::Worked| {
        let [arrived, began, ended] = [&worked.arrived_ago, &worked.began_ago, &worked.ended_ago].map(seconds);
        [arrived, began, ended, worked.problems.into(), seconds(&worked.busy)]
    };
    let parts = &delivery.expect("a delivery").checkouts;
    parts.iter().map(|part| part.worked.as_ref().map(worked)).collect()
}

#[test]
fn the_last_results_of_a_traced_checkout_say_when_it_was_worked_on() {
    let mut trial = Trial::open();
    trial.on(traced(1, &[10, 11]));
    trial.after(2 * SECOND);
    trial.on(started(1));
    trial.now += 3 * SECOND;
    trial.inventory.take(trial.now, solved(1, &[10]));
    assert_eq!(told(&mut trial), [None], "there is more to come");
    trial.now += 4 * SECOND;
    trial.inventory.take(trial.now, solved(1, &[11]));
    assert_eq!(told(&mut trial), [Some([9, 7, 0, 2, 2])]);
    // Said again later, it was longer ago.
    trial.on(Event::Disconnected);
    trial.now += 5 * SECOND;
    trial.on(Event::Connected);
    trial.inventory.take(trial.now, welcome());
    assert_eq!(told(&mut trial), [Some([14, 12, 5, 2, 2])]);
}

#[test]
fn of_one_that_was_never_said_to_begin_its_work_says_when() {
    let mut trial = Trial::open();
    trial.on(traced(1, &[10]));
    trial.now += 3 * SECOND;
    trial.inventory.take(trial.now, solved(1, &[10]));
    assert_eq!(told(&mut trial), [Some([3, 1, 0, 1, 1])]);
}

#[test]
fn nobody_is_told_who_did_not_ask() {
    let mut trial = Trial::open();
    trial.on(checkout(1, &[10]));
    trial.inventory.take(trial.now, solved(1, &[10]));
    assert_eq!(told(&mut trial), [None]);
}
