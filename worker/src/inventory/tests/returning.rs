//! Agents that return unbegun problems because others are idle.

use pcfarm_proto::RETURNED_LIMIT;

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

fn directed(activity: Activity) -> Event {
    Event::Directed(Directive { activity, reason: "somebody is there".to_owned(), ..Directive::work() })
}

fn drained() -> Event {
    Event::Received(In::Drain(v1::Drain { reason: "new memory".to_owned(), give_back: false }))
}

/// A program has begun the first problem of a convoy of three; another convoy follows.
fn with_a_long_program() -> Trial {
    let mut trial = Trial::open();
    let mut message = v1::Checkout { controller: "program".to_owned(), ..message(1, &[10, 11, 12, 13, 14]) };
    message.problems.iter_mut().skip(3).for_each(|problem| problem.batch_order = 1);
    trial.on(Event::Received(In::Checkout(message)));
    trial.on(started(1));
    trial.take(1, 1);
    trial
}

/// Without a request the agent does not know whether problems of a convoy depend on each other.
#[test]
fn one_that_gives_way_to_a_person_returns_whole_convoys_at_once_and_the_rest_when_others_are_idle() {
    for activity in [Activity::Freeze, Activity::Finish] {
        let mut trial = with_a_long_program();
        let actions = trial.on(directed(activity));
        assert!(actions.contains(&"delivery 1: 1 [] returns [13, 14]".to_owned()), "{activity:?}: {actions:?}");
        trial.on(ack(1, &[(1, Accepted)]));
        let dependent = v1::Returnable { checkout_id: 1, whole_convoys: true };
        let request = v1::GiveBack { checkouts: vec![dependent], problems: 1000 };
        assert_eq!(trial.on(Event::Received(In::GiveBack(request))), [""; 0], "{activity:?}: it would be cut");
        assert_eq!(trial.on(give_back(&[1])), ["delivery 2: 1 [] returns [11, 12]"], "{activity:?}");
        trial.on(ack(2, &[(1, Accepted)]));
        trial.on(directed(Activity::Work));
        let delivery = "delivery 3: 1 [10] finished".to_owned();
        assert!(trial.on(solved(1, &[10])).contains(&delivery), "{activity:?}");
    }
}

/// Even problems that began soon when cores still took problems.
#[test]
fn one_that_gives_way_to_a_person_keeps_no_problem_for_later() {
    for activity in [Activity::Freeze, Activity::Finish] {
        let mut trial = with_a_long_program();
        trial.on(solved(1, &[10]));
        trial.take(1, 1);
        trial.on(directed(activity));
        let actions = trial.on(give_back(&[1]));
        assert!(actions.iter().any(|action| action.ends_with("returns [12]")), "{activity:?}: {actions:?}");
    }
}

#[test]
fn one_that_is_drained_or_stops_returns_what_is_behind_long_problems() {
    for ends in [drained(), Event::Stop] {
        let case = format!("{ends:?}");
        let mut trial = at_work();
        trial.on(ends);
        trial.now += SECOND;
        let actions = trial.on(give_back(&[1]));
        assert!(actions.iter().any(|action| action.contains("1 [] returns [12, 13, 14, 15]")), "{case}: {actions:?}");
    }
}

#[test]
fn a_large_checkout_is_returned_with_any_number_of_requests() {
    let mut trial = Trial::open();
    trial.inventory.profile.unacknowledged_bytes = usize::MAX;
    trial.on(checkout(1, &(0..5000).collect::<Vec<_>>()));
    trial.on(started(1));
    trial.take(1, 1);
    trial.now += SECOND;
    let mut returned = Vec::new();
    for delivery in 1..=5 {
        returned.extend(given_back(&trial.request(1000)));
        trial.on(ack(delivery, &[(1, Accepted)]));
    }
    assert_eq!(returned.len(), 4999);
    returned.sort_unstable();
    assert!(returned.iter().eq(&(1..5000).collect::<Vec<_>>()), "each once, and not what has begun");
}

/// A slow link holds up the answers.
#[test]
fn no_delivery_returns_more_problems_than_a_server_takes() {
    let mut trial = Trial::open();
    let problems: Vec<i64> = (0..3 * i64::try_from(RETURNED_LIMIT).expect("small")).collect();
    trial.on(checkout(1, &problems));
    trial.on(started(1));
    trial.take(1, 1);
    trial.on(Event::Disconnected);
    trial.inventory.held.get_mut(&CheckoutId(1)).expect("held").return_problems(2..problems.len(), "idle");
    trial.on(Event::Connected);
    let actions = trial.inventory.take_and_settle(trial.now, welcome());
    let parts = deliveries(&actions);
    assert!(parts.iter().all(|part| part.given_back.len() <= RETURNED_LIMIT && !part.give_back_reason.is_empty()));
    let returned: Vec<i64> = parts.iter().flat_map(|part| part.given_back.clone()).collect();
    assert_eq!(returned, problems[2..]);
}

impl Trial {
    fn request(&mut self, problems: u32) -> Vec<Action> {
        let checkouts = vec![v1::Returnable { checkout_id: 1, whole_convoys: false }];
        let request = v1::GiveBack { checkouts, problems };
        self.inventory.take_and_settle(self.now, Event::Received(In::GiveBack(request)))
    }
}

impl Inventory {
    fn take_and_settle(&mut self, now: Duration, event: Event) -> Vec<Action> {
        self.take(now, event);
        self.settle(now, 0)
    }
}

fn deliveries(actions: &[Action]) -> Vec<v1::CheckoutResults> {
    let delivered = actions.iter().filter_map(|action| match action {
        Action::Send(Out::Delivery(delivery)) => Some(delivery.checkouts.clone()),
        _ => None,
    });
    delivered.flatten().collect()
}

fn given_back(actions: &[Action]) -> Vec<i64> {
    deliveries(actions).into_iter().flat_map(|part| part.given_back).collect()
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
