//! Slow links, connections that end in the middle of a delivery, and leases that end without a word.

use super::*;
use crate::presence::policy::Activity;

/// A Welcome of a server that takes solutions in parts.
fn measured() -> Event {
    let Event::Received(In::Welcome(welcome)) = welcome() else { unreachable!("it is one") };
    Event::Received(In::Welcome(v1::Welcome { takes_parts: true, ..welcome }))
}

fn open() -> Trial {
    let mut trial = Trial::new();
    trial.inventory.profile.unacknowledged_bytes = 10 << 20;
    trial.on(Event::Connected);
    trial.on(measured());
    trial
}

fn received(checkout_id: i64, problem_id: i64, received: u64) -> Event {
    Event::Received(In::PartReceived(v1::PartReceived { checkout_id, problem_id, received }))
}

fn stored(delivery_id: u64, checkout_id: i64, problem_ids: &[i64]) -> Event {
    let problem_ids = problem_ids.to_vec();
    let checkouts = vec![v1::DeliveredProblems { checkout_id, token: 100, problem_ids }];
    Event::Received(In::Stored(v1::Stored { delivery_id, checkouts }))
}

#[test]
fn a_solution_larger_than_a_piece_goes_in_parts_behind_which_its_delivery_comes() {
    let mut trial = open();
    trial.on(checkout(1, &[10]));
    // A quarter of the first limit each, until that is full.
    let sent = trial.on(sized(1, &[10], 20 << 10));
    assert_eq!(sent[..4], ["part 1:10 0+4096", "part 1:10 4096+4096", "part 1:10 8192+4096", "part 1:10 12288+4096"]);
    assert_eq!(trial.on(received(1, 10, 4096)), ["part 1:10 16384+4096", "delivery 1: 1 [10] finished"]);
    for end in [8192, 12288, 16384, 20480] {
        assert_eq!(trial.on(received(1, 10, end)), [""; 0], "a receipt acknowledges nothing");
    }
    assert_eq!(trial.on(ack(1, &[(1, Accepted)])), [""; 0]);
    assert!(trial.inventory.held.is_empty());
}

/// Answers each message after half a second, as over a slow link, until nothing more is sent. Returns the most bytes by which a
/// message exceeds a piece, the number of parts of results, and the parts of deliveries.
fn carried(trial: &mut Trial, first: Event) -> (usize, usize, Vec<v1::CheckoutResults>) {
    let (mut excess, mut parts, mut came) = (0, 0, Vec::new());
    let mut events = std::collections::VecDeque::from([first]);
    while let Some(event) = events.pop_front() {
        trial.now += SECOND / 2;
        trial.inventory.take(trial.now, event);
        let piece = trial.inventory.pace.piece().expect("the link is measured");
        for action in trial.inventory.settle(trial.now, 0) {
            let Action::Send(message) = action else { continue };
            let bytes = message.encoded_len();
            match message {
                Out::ResultPart(part) => {
                    parts += 1;
                    let end = part.offset + part.content.len() as u64;
                    events.push_back(received(part.checkout_id, part.problem_id, end));
                }
                Out::Delivery(delivery) => {
                    let verdicts: Vec<_> = delivery.checkouts.iter().map(|part| (part.checkout_id, Accepted)).collect();
                    events.push_back(ack(delivery.delivery_id, &verdicts));
                    came.extend(delivery.checkouts);
                }
                _ => continue,
            }
            excess = excess.max(bytes.saturating_sub(piece));
        }
    }
    (excess, parts, came)
}

/// Ids, offsets and lengths around the content of a piece.
const FRAME: usize = 64;

#[test]
fn results_with_all_that_they_bring_are_cut_to_pieces() {
    let solution = || Some(Outcome::Solution(Bytes::from_static(b"1")));
    let problem = v1::SubmitProblem { payload: Bytes::from(vec![b'1'; 1000]), ..Default::default() };
    let enqueues = v1::More { enqueue: vec![problem; 300], ..Default::default() };
    let informs = v1::More { info: Bytes::from(vec![b'1'; 300_000]), ..Default::default() };
    let large = Some(Outcome::Solution(Bytes::from(vec![b'1'; 100_000])));
    let failure = Some(Outcome::Failure("no".repeat(3_000)));
    for (what, outcome, more) in [
        ("enqueued problems", solution(), Some(enqueues.clone())),
        ("info", solution(), Some(informs)),
        ("a solution and enqueued problems", large, Some(enqueues)),
        ("a failure", failure, None),
    ] {
        let mut trial = open();
        trial.on(checkout(1, &[10, 11]));
        let mut results = vec![v1::ProblemResult { problem_id: 10, outcome, more }];
        results.push(v1::ProblemResult { problem_id: 11, outcome: solution(), more: None });
        let solved = Event::Computed(Report::Results(Batch { key: key(1), results, busy: SECOND }));
        let (excess, parts, came) = carried(&mut trial, solved);
        assert!(excess <= FRAME && parts > 1, "{what}: a message exceeds a piece by {excess} bytes");
        let ids: Vec<i64> = came.iter().flat_map(|part| &part.results).map(|result| result.problem_id).collect();
        assert_eq!(ids, [10, 11], "{what}");
        assert!(trial.inventory.held.is_empty() && trial.inventory.unacknowledged_bytes() == 0, "{what}");
    }
}

#[test]
fn returned_problems_and_checkouts_are_cut_to_pieces() {
    let mut trial = open();
    let problems: Vec<i64> = ((1 << 40)..(1 << 40) + 5_000).collect();
    trial.on(checkout(1, &problems));
    trial.on(started(1));
    let key = key(1);
    let places = trial.inventory.held[&key.checkout_id].checkout.let_go(|_| 2);
    let held = trial.inventory.held_mut(key).expect("it is here");
    held.return_problems(places, "another workstation is idle");
    let (excess, _, came) = carried(&mut trial, solved(1, &problems[..1]));
    assert!(excess <= FRAME, "a message exceeds a piece by {excess} bytes");
    let returned: Vec<i64> = came.iter().flat_map(|part| &part.given_back).copied().collect();
    assert_eq!(returned, problems[2..]);
    // The end of a checkout returns all others, without their ids.
    let (_, _, came) = carried(&mut trial, solved(1, &problems[1..2]));
    assert!(came.last().is_some_and(|part| part.finished) && trial.inventory.held.is_empty());
    // Many checkouts at once.
    let mut trial = open();
    for id in 1..=300 {
        trial.on(checkout(id, &[id * 10]));
    }
    let directive =
        Directive { activity: Activity::Rest, reason: "the keyboard was used".to_owned(), ..Directive::work() };
    let (excess, _, came) = carried(&mut trial, Event::Directed(directive));
    assert!(excess <= FRAME, "a message exceeds a piece by {excess} bytes");
    assert_eq!(came.iter().filter(|part| part.finished).count(), 300);
}

#[test]
fn a_long_hello_has_time() {
    let mut trial = Trial::new();
    let program = |n| v1::Program { name: format!("{n:060}"), ..Default::default() };
    trial.inventory.profile.hello.programs = (0..500).map(program).collect();
    trial.on(Event::Connected);
    // Three agents share 64 kbit/s.
    let waited = (0..).take_while(|_| !trial.after(SECOND).contains(&"reconnect".to_owned())).count();
    assert!((40..45).contains(&waited), "{waited} s");
}

#[test]
fn lists_of_checkouts_are_bounded() {
    let mut trial = open();
    trial.inventory.profile.unacknowledged_bytes = usize::MAX;
    let mut asked = 0;
    for id in 1..=1_200 {
        let mut did = trial.on(checkout(id, &[id * 10]));
        did.extend(trial.on(solved(id, &[id * 10])));
        // The server keeps each delivery, because something stands in its way.
        let delivery = did.iter().find_map(|action| action.strip_prefix("delivery ")?.split(':').next());
        if let Some(delivery) = delivery {
            did.extend(trial.on(kept(delivery.parse().expect("an id"))));
        }
        asked += did.iter().filter(|action| action.starts_with("credit")).count();
    }
    assert!((900..=1_000).contains(&asked), "{asked} checkouts asked for");
}

#[test]
fn deliveries_are_pieces_of_whole_results() {
    let mut trial = open();
    trial.on(checkout(1, &[10, 11, 12, 13, 14, 15, 16, 17]));
    let sent = trial.on(sized(1, &[10, 11, 12, 13, 14, 15, 16, 17], 3 << 10));
    // As many as the link has room for, and one that exceeds it.
    for (place, problem) in (0..6).zip(10..) {
        assert_eq!(sent[place], format!("delivery {}: 1 [{problem}]", place + 1));
    }
    assert_eq!(trial.on(ack(1, &[(1, Accepted)])), ["delivery 7: 1 [16]"]);
    assert_eq!(trial.on(ack(2, &[(1, Accepted)])), ["delivery 8: 1 [17] finished"]);
}

#[test]
fn full_deliveries_are_not_cut_again_and_fill_the_link() {
    let mut trial = open();
    let problems: Vec<i64> = (10..24).collect();
    trial.on(checkout(1, &problems));
    let sent = trial.on(sized(1, &problems, 1500));
    let deliveries: Vec<&String> = sent.iter().filter(|action| action.starts_with("delivery")).collect();
    // Two of them fit a piece, and six pieces of this weight the link.
    assert_eq!(
        deliveries,
        [
            "delivery 1: 1 [10, 11]",
            "delivery 2: 1 [12, 13]",
            "delivery 3: 1 [14, 15]",
            "delivery 4: 1 [16, 17]",
            "delivery 5: 1 [18, 19]",
            "delivery 6: 1 [20, 21]",
        ]
    );
    // Deliveries that are not full wait for others, whatever room the link has.
    let mut trial = open();
    for id in 1..=6 {
        trial.on(checkout(id, &[id * 10]));
        trial.on(sized(id, &[id * 10], 1000));
    }
    assert_eq!(trial.on(ack(1, &[(1, Accepted)]))[0], "delivery 5: 5 [50] finished, 6 [60] finished");
}

#[test]
fn stored_results_are_not_sent_again() {
    let mut trial = open();
    trial.on(checkout(1, &[10, 11, 12]));
    trial.on(sized(1, &[10, 11, 12], 4032));
    trial.on(Event::Disconnected);
    trial.on(Event::Connected);
    let asked = trial.on(measured());
    assert_eq!(asked[..3], ["stored 1?", "stored 2?", "stored 3?"].map(str::to_owned));
    assert!(!asked.iter().any(|action| action.contains("delivery")), "{asked:?}");
    assert_eq!(trial.on(stored(1, 1, &[10])), [""; 0], "the order stays");
    assert_eq!(trial.on(stored(2, 1, &[])), ["delivery 2: 1 [11]"]);
    assert_eq!(trial.on(stored(3, 1, &[])), ["delivery 3: 1 [12] finished"]);
    // A delivery whose results are all stored still closes its checkout.
    let mut trial = open();
    trial.on(checkout(1, &[10]));
    trial.on(sized(1, &[10], 6 << 10));
    trial.on(Event::Disconnected);
    trial.on(Event::Connected);
    trial.on(measured());
    assert_eq!(trial.on(stored(1, 1, &[10])), ["delivery 1: 1 [] finished"]);
    trial.on(ack(1, &[(1, AlreadyAccepted)]));
    assert!(trial.inventory.held.is_empty());
}

fn results_of(count: i64, bytes: usize) -> v1::CheckoutResults {
    let solution = Bytes::from(vec![b'1'; bytes]);
    let result =
        |problem_id| v1::ProblemResult { problem_id, outcome: Some(Outcome::Solution(solution.clone())), more: None };
    v1::CheckoutResults { checkout_id: 1, token: 100, results: (0..count).map(result).collect(), ..Default::default() }
}

/// An outbox with one delivery that a fast link has carried, after a reconnection.
fn carried_by_a_fast_link(results: v1::CheckoutResults) -> outbox::Outbox {
    let mut outbox = outbox::Outbox::default();
    let weight = held::part_bytes(&results);
    outbox.add(vec![results], weight, SECOND);
    assert!(matches!(outbox.next_to_send(Some(1 << 20), SECOND), Some(outbox::Next::Delivery(..))));
    outbox.resend_all();
    outbox
}

#[test]
fn questions_are_short_enough_for_a_slow_link() {
    let piece = 4 << 10;
    let mut outbox = carried_by_a_fast_link(results_of(5_000, 100));
    let (mut asked, mut questions) = (0, 0);
    while let Some(outbox::Next::Ask(question, bytes)) = outbox.next_to_send(Some(piece), SECOND) {
        assert!(bytes <= piece, "{bytes}");
        asked += question.checkouts.iter().map(|part| part.problem_ids.len()).sum::<usize>();
        questions += 1;
    }
    assert!(asked > 4_950 && questions < 50, "{questions} questions about {asked} results");
    // Small results are sent again, in pieces: their ids would be nearly as long.
    let mut outbox = carried_by_a_fast_link(results_of(5_000, 2));
    let Some(outbox::Next::Delivery(delivery, bytes)) = outbox.next_to_send(Some(piece), SECOND) else {
        panic!("it asks")
    };
    assert!(bytes <= piece && delivery.checkouts[0].results.len() > 100, "{bytes}");
}

#[test]
fn questions_are_under_way_until_they_are_answered() {
    let mut trial = open();
    trial.on(checkout(1, &[10]));
    trial.on(sized(1, &[10], 4032));
    trial.on(Event::Disconnected);
    trial.on(Event::Connected);
    trial.on(measured());
    assert_eq!(trial.inventory.pace.oldest(), Some(trial.now));
    trial.on(stored(1, 1, &[10]));
    trial.on(ack(1, &[(1, AlreadyAccepted)]));
    assert_eq!(trial.inventory.pace.oldest(), None);
}

#[test]
fn returned_problems_outlive_a_reconnection() {
    let mut part = results_of(100, 100);
    part.given_back = vec![500, 501];
    let mut outbox = carried_by_a_fast_link(part);
    assert!(matches!(outbox.next_to_send(Some(1 << 20), SECOND), Some(outbox::Next::Ask(..))));
    let problem_ids = (0..100).collect();
    let checkouts = vec![v1::DeliveredProblems { checkout_id: 1, token: 100, problem_ids }];
    assert_eq!(outbox.stored(v1::Stored { delivery_id: 1, checkouts }).len(), 1);
    let Some(outbox::Next::Delivery(delivery, _)) = outbox.next_to_send(Some(1 << 20), SECOND) else {
        panic!("the returned problems are lost")
    };
    assert_eq!(delivery.checkouts[0].given_back, [500, 501]);
}

#[test]
fn parts_begin_anew_with_a_session_and_end_with_their_checkout() {
    let mut trial = open();
    trial.on(checkout(1, &[10]));
    trial.on(sized(1, &[10], 60 << 10));
    trial.on(Event::Disconnected);
    trial.on(Event::Connected);
    let again = trial.on(measured());
    assert!(again.contains(&"part 1:10 0+4096".to_owned()), "{again:?}");
    trial.on(revoke(1));
    for end in [4096, 8192, 12288, 16384] {
        assert_eq!(trial.on(received(1, 10, end)), [""; 0]);
    }
    assert_eq!(trial.inventory.unacknowledged_bytes(), 0);
}

#[test]
fn a_server_that_is_sending_may_answer_later() {
    let mut trial = open();
    trial.on(checkout(1, &[10]));
    trial.on(solved(1, &[10]));
    for second in 1..100 {
        trial.inventory.heard(trial.now + SECOND, second * 8000);
        assert!(!trial.after(SECOND).contains(&"reconnect".to_owned()), "its answer may be behind other bytes");
    }
    for _ in 0..59 {
        trial.inventory.heard(trial.now + SECOND, 99 * 8000 + 17);
        assert!(!trial.after(SECOND).contains(&"reconnect".to_owned()));
    }
    assert!(trial.after(2 * SECOND).contains(&"reconnect".to_owned()), "pings are no answer");
}

#[test]
fn whole_messages_do_not_excuse_a_missing_answer() {
    let mut trial = open();
    trial.on(checkout(1, &[10]));
    trial.on(solved(1, &[10]));
    let mut ends = false;
    for second in 1..70 {
        trial.inventory.message_came(second * 8000);
        trial.inventory.heard(trial.now + SECOND, second * 8000 + 100);
        ends |= trial.after(SECOND).contains(&"reconnect".to_owned());
    }
    assert!(ends, "the server sends work, and does not answer for three leases");
}

#[test]
fn long_lists_do_not_fill_a_slow_link() {
    let mut trial = open();
    for id in 1..=40 {
        trial.on(checkout(id, &[id * 10]));
    }
    trial.on(sized(1, &[10], 3000));
    // Signs of life while a delivery is under way, and a list after a lease.
    let beats: Vec<String> = (0..30)
        .flat_map(|_| trial.after(SECOND))
        .filter(|action| action.starts_with("heartbeat") || action == "credit 0")
        .map(|action| action.split(' ').take(2).collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(beats, ["credit 0", "credit 0", "credit 0", "heartbeat 40", "credit 0", "credit 0"]);
    trial.on(ack(1, &[(1, Accepted)]));
    assert!(trial.after(5 * SECOND).iter().any(|action| action.starts_with("heartbeat")));
}
