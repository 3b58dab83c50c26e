//! The end of the lease, by the agent's own clock.

use std::collections::VecDeque;

use super::*;

fn program(id: i64) -> Event {
    Event::Received(In::Checkout(v1::Checkout {
        controller: "exec:solver".to_owned(),
        ..message(id, &[10 * id, 11 * id])
    }))
}

/// A session with a lease of these seconds, and its clock a million seconds behind the server's.
struct Leased {
    trial: Trial,
    messages: u64,
}

const BEHIND: u64 = 1_000_000;

fn welcome_for(seconds: i64) -> Event {
    let duration =
        |millis: i64| prost_types::Duration { seconds: millis / 1000, nanos: (millis % 1000) as i32 * 1_000_000 };
    Event::Received(In::Welcome(v1::Welcome {
        lease: Some(duration(seconds * 1000)),
        heartbeat: Some(duration(seconds * 250)),
        ..Default::default()
    }))
}

impl Leased {
    /// Computes a program and a problem inside the agent.
    fn computing(seconds: i64) -> Leased {
        let mut leased = Leased::idle(seconds);
        leased.on(program(1));
        leased.on(checkout(2, &[20]));
        leased.on(started(1));
        leased
    }

    fn idle(seconds: i64) -> Leased {
        let mut trial = Trial::new();
        trial.inventory.profile.hello.controllers.push("exec:solver".to_owned());
        let mut leased = Leased { trial, messages: 0 };
        leased.connects(seconds);
        leased
    }

    fn connects(&mut self, seconds: i64) {
        self.messages = 0;
        self.on(Event::Connected);
        self.on(welcome_for(seconds));
        let now = self.trial.now;
        self.told(now);
    }

    /// All messages are sent at once.
    fn on(&mut self, event: Event) -> Vec<String> {
        let told = self.trial.on(event);
        self.sent(told)
    }

    fn after(&mut self, time: Duration) -> Vec<String> {
        let told = self.trial.after(time);
        self.sent(told)
    }

    fn sent(&mut self, told: Vec<String>) -> Vec<String> {
        let is_message = |word: &&String| {
            ["hello", "credit", "delivery", "heartbeat", "state"].iter().any(|kind| word.starts_with(kind))
        };
        for _ in told.iter().filter(is_message) {
            self.messages += 1;
            self.trial.inventory.posted(self.trial.now);
        }
        told
    }

    /// The server has heard everything by this time of the agent's clock.
    fn told(&mut self, heard: Duration) -> Vec<String> {
        let word = self.word(self.messages, heard);
        self.on(Event::Received(In::Heard(word)))
    }

    /// Word of a server that has received so many messages by this time of the agent's clock.
    fn word(&self, messages: u64, heard: Duration) -> v1::Heard {
        let us = BEHIND * 1_000_000 + u64::try_from(heard.as_micros()).expect("small");
        v1::Heard { messages, message_us: us, lease_us: us }
    }

    fn end(&self) -> Option<Duration> {
        self.trial.inventory.lease_end.get()
    }
}

fn is_stopped(told: &[String]) -> bool {
    told.contains(&"cancel 1".to_owned())
}

#[test]
fn programs_stop_at_the_end_of_a_lease_of_any_length_while_the_connection_is_open() {
    for seconds in [2, 5, 12, 20, 600] {
        let mut leased = Leased::computing(seconds);
        let (lease, heard) = (Duration::from_secs(seconds.unsigned_abs()), leased.trial.now);
        leased.told(heard);
        // The link carries nothing more, and no end of the connection is seen.
        let mut stopped = None;
        while stopped.is_none() && leased.trial.now < heard + lease * 2 {
            let due = leased.trial.inventory.deadline(leased.trial.now);
            let told = leased.after(due.saturating_sub(leased.trial.now).max(lease / 1000));
            assert!(!told.contains(&"cancel 2".to_owned()), "what has no effects outside goes on");
            stopped = is_stopped(&told).then_some(leased.trial.now);
        }
        let stopped = stopped.expect("stopped") - heard;
        assert!(stopped <= lease && stopped >= lease * 9 / 10, "{stopped:?} of {lease:?}");
    }
}

#[test]
fn bytes_of_the_server_renew_no_lease() {
    let mut leased = Leased::computing(20);
    let heard = leased.trial.now;
    let mut stopped = false;
    for second in 1..=20 {
        // Pings, and their answers.
        leased.trial.inventory.heard(leased.trial.now + SECOND, second * 34);
        stopped |= is_stopped(&leased.after(SECOND));
    }
    assert!(stopped && leased.trial.now <= heard + 20 * SECOND);
}

#[test]
fn a_server_that_hears_the_agent_renews_its_lease() {
    for seconds in [2, 5, 20] {
        let mut leased = Leased::computing(seconds);
        let quarter = Duration::from_secs(seconds.unsigned_abs()) / 4;
        // Each message waits on the link for two leases, and each word for half a lease.
        let mut sent = VecDeque::from([1; 8]);
        let mut words = VecDeque::from([leased.word(1, leased.trial.now); 2]);
        for _ in 0..100 {
            assert!(!is_stopped(&leased.after(quarter)));
            sent.push_back(leased.messages);
            words.push_back(leased.word(sent.pop_front().expect("eight"), leased.trial.now));
            let word = words.pop_front().expect("two");
            assert!(!is_stopped(&leased.on(Event::Received(In::Heard(word)))));
        }
        assert!(leased.end().is_some_and(|end| end > leased.trial.now));
    }
}

#[test]
fn a_large_message_on_its_way_here_renews_the_lease() {
    let mut leased = Leased::computing(20);
    for second in 1..100 {
        leased.trial.inventory.heard(leased.trial.now + SECOND, second * 8000);
        assert!(!is_stopped(&leased.after(SECOND)), "words about the lease wait behind it");
    }
    assert!((0..20).any(|_| is_stopped(&leased.after(SECOND))));
}

#[test]
fn refusals_renew_no_lease() {
    let mut leased = Leased::computing(20);
    let heard = leased.trial.now;
    leased.on(Event::Disconnected);
    let mut stopped = false;
    for attempt in 1..=5 {
        leased.after(4 * SECOND - Duration::from_millis(200));
        leased.on(Event::Connected);
        // The handshake and the refusal of a certificate that is revoked.
        leased.trial.inventory.heard(leased.trial.now, attempt * 3000);
        stopped |= is_stopped(&leased.after(Duration::from_millis(100)));
        stopped |= is_stopped(&leased.on(Event::Disconnected));
    }
    stopped |= is_stopped(&leased.after(SECOND));
    assert!(stopped && leased.trial.now <= heard + 21 * SECOND);
}

#[test]
fn an_outage_of_the_database_stops_no_program() {
    let mut leased = Leased::computing(20);
    leased.on(Event::Disconnected);
    for _ in 0..20 {
        assert!(!is_stopped(&leased.after(5 * SECOND)));
        leased.on(Event::Connected);
        leased.on(Event::Outage);
        assert!(!is_stopped(&leased.on(Event::Disconnected)));
    }
    leased.connects(20);
    assert!(!is_stopped(&leased.after(5 * SECOND)));
}

#[test]
fn a_lease_begins_with_the_hello_and_not_with_its_answer() {
    let mut leased = Leased::computing(20);
    leased.on(Event::Disconnected);
    leased.after(10 * SECOND);
    leased.on(Event::Connected);
    let hello = leased.trial.now;
    leased.after(5 * SECOND);
    leased.on(welcome_for(20));
    leased.on(Event::Disconnected);
    assert_eq!(leased.trial.inventory.lease_deadline(Duration::MAX), Some(hello + Duration::from_millis(19_500)));
    assert!(!is_stopped(&leased.after(14 * SECOND)));
    assert!(is_stopped(&leased.after(Duration::from_millis(500))));
}

#[test]
fn controllers_with_dependencies_stop_with_the_lease() {
    let mut leased = Leased::idle(5);
    leased.trial.inventory.profile.hello.controllers.push("database".to_owned());
    leased.trial.inventory.profile.apart.insert("database".to_owned());
    let message = v1::Checkout { controller: "database".to_owned(), ..message(3, &[30, 31]) };
    leased.on(Event::Received(In::Checkout(message)));
    leased.on(checkout(2, &[20]));
    leased.on(started(3));
    let told = leased.after(5 * SECOND);
    assert!(told.contains(&"cancel 3".to_owned()) && !told.contains(&"cancel 2".to_owned()), "{told:?}");
}

#[test]
fn the_owner_can_let_programs_go_on() {
    let mut leased = Leased::computing(20);
    leased.trial.inventory.profile.after_lease = AfterLease::Continue;
    leased.on(Event::Disconnected);
    for _ in 0..100 {
        assert_eq!(leased.after(SECOND), [""; 0]);
    }
    assert_eq!(leased.end(), None, "its supervisor, too, lets the program run");
}

#[test]
fn a_program_that_arrives_after_an_idle_time_renews_the_lease_at_once() {
    let mut leased = Leased::idle(2);
    leased.after(Duration::from_millis(990));
    let told = leased.on(program(1));
    assert!(told.iter().any(|word| word.starts_with("heartbeat")), "{told:?}");
    let now = leased.trial.now;
    leased.told(now);
    let told = leased.on(program(2));
    assert!(!told.iter().any(|word| word.starts_with("heartbeat")), "{told:?}");
}

#[test]
fn a_silent_connection_is_left_before_a_short_lease_ends() {
    let usual = 12 * SECOND;
    for (seconds, expected) in [(2, 3), (5, 3), (10, 6), (20, 12), (600, 12)] {
        let leased = Leased::computing(seconds);
        assert_eq!(leased.trial.inventory.silence_limit(usual), expected * SECOND, "{seconds}");
        assert_eq!(Leased::idle(seconds).trial.inventory.silence_limit(usual), usual, "{seconds}");
    }
}

#[test]
fn with_an_older_server_a_lease_ends_without_its_bytes() {
    let mut trial = Trial::new();
    trial.inventory.profile.hello.controllers.push("exec:solver".to_owned());
    trial.on(Event::Connected);
    trial.on(welcome());
    trial.on(program(1));
    trial.on(started(1));
    // While its connection is there, it says little.
    for _ in 0..30 {
        assert!(!is_stopped(&trial.after(SECOND)));
        let end = trial.inventory.lease_end.get().expect("an agent that stands still stops its programs");
        assert!(end > trial.now + 17 * SECOND && end <= trial.now + 20 * SECOND);
    }
    trial.inventory.heard(trial.now, 117);
    trial.now += 10 * SECOND;
    trial.on(Event::Disconnected);
    assert!(!is_stopped(&trial.after(9 * SECOND)));
    assert!(is_stopped(&trial.after(SECOND)));
}
