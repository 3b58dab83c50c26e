//! The server's clock, as the agent can know it. Pure: the caller supplies the agent's time.
//!
//! A server says by its own clock when the lease began, and how many messages of the session it had by then. No message comes before
//! it is sent. So the difference of the clocks is no larger than the time when a message came, by the server's clock, less the time
//! when it was sent, by the agent's. The smallest such bound is that of a message that met no queue. A time of the
//! server less that bound is no later than the same moment by the agent's clock. Were the sending of the last message taken for the
//! beginning instead, a queue of two seconds on a slow link would use up a lease of two seconds.

use std::collections::VecDeque;
use std::time::Duration;

use pcfarm_proto::v1;

/// Times of messages are kept this far apart, and so many of them.
const GRAIN: Duration = Duration::from_millis(10);
const TIMES: usize = 512;

/// A bound loosens by this part of the time: a kernel that corrects its clock lets it run faster or slower by half of it.
const DRIFT_PART: i128 = 1000;

/// Both ends of one session.
#[derive(Debug, Default)]
pub struct Clocks {
    posted: Posted,
    bound: Bound,
}

/// Messages of the session that were sent, and the times of some of them.
#[derive(Debug, Default)]
struct Posted {
    messages: u64,
    times: VecDeque<(u64, Duration)>,
}

/// Largest possible difference of the server's clock and the agent's at a time, in microseconds.
#[derive(Debug, Default)]
struct Bound {
    most: Option<i128>,
    at: Duration,
}

impl Clocks {
    /// A message is sent.
    pub fn posted(&mut self, now: Duration) {
        let Posted { messages, times } = &mut self.posted;
        *messages += 1;
        if times.back().is_none_or(|(_, last)| now >= *last + GRAIN) {
            if times.len() == TIMES {
                times.pop_front();
            }
            times.push_back((*messages, now));
        }
    }

    /// Returns a time that is no later than the beginning of the lease. None: nothing is known of the server's clock.
    pub fn lease_since(&mut self, heard: &v1::Heard, now: Duration) -> Option<Duration> {
        let sent = self.posted.sent_by(heard.messages);
        let sample = sent.map(|sent| i128::from(heard.message_us) - micros(sent));
        self.bound.note(sample, now);
        let began = |bound: i128| i128::from(heard.lease_us) - bound;
        let mut since = began(self.bound.most?);
        if since > micros(now) {
            // One of the machines stood still, with its clock.
            self.bound = Bound { most: sample, at: now };
            since = began(sample?);
        }
        let since = since.clamp(0, micros(now));
        u64::try_from(since).ok().map(Duration::from_micros)
    }
}

impl Posted {
    /// A time at or before the sending of the message of this number.
    fn sent_by(&mut self, message: u64) -> Option<Duration> {
        if message > self.messages {
            return None;
        }
        while self.times.get(1).is_some_and(|(number, _)| *number <= message) {
            self.times.pop_front();
        }
        self.times.front().filter(|(number, _)| *number <= message).map(|(_, at)| *at)
    }
}

impl Bound {
    fn note(&mut self, sample: Option<i128>, now: Duration) {
        let loosened = self.most.map(|most| most + micros(now.saturating_sub(self.at)) / DRIFT_PART);
        self.most = loosened.into_iter().chain(sample).min();
        self.at = now;
    }
}

fn micros(time: Duration) -> i128 {
    i128::try_from(time.as_micros()).unwrap_or(i128::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The server's clock is so far ahead of the agent's.
    const AHEAD: u64 = 5_000_000_000;

    fn at(milliseconds: u64) -> Duration {
        1000 * SECOND + Duration::from_millis(milliseconds)
    }

    /// Word of a server that has received so many messages, the last of them at this time by the agent's clock.
    fn heard(messages: u64, milliseconds: u64) -> v1::Heard {
        let us = AHEAD + u64::try_from(at(milliseconds).as_micros()).expect("small");
        v1::Heard { messages, message_us: us, lease_us: us }
    }

    #[test]
    fn a_queue_on_the_link_uses_up_no_lease() {
        let mut clocks = Clocks::default();
        clocks.posted(at(0));
        assert_eq!(clocks.lease_since(&heard(1, 200), at(400)), Some(at(0)), "Hello took 200 ms");
        for (number, sent, came) in [(2, 1000, 2000), (3, 1500, 4000), (4, 4000, 4150), (5, 5000, 9000)] {
            clocks.posted(at(sent));
            let since = clocks.lease_since(&heard(number, came), at(came + 200)).expect("known");
            assert!(since <= at(came) && since >= at(came - 210), "{number}: {since:?}");
        }
    }

    #[test]
    fn a_lease_never_begins_later_than_the_server_says() {
        // Pseudo-random delays on the way to the server, and a queue for each.
        let mut clocks = Clocks::default();
        let (mut seed, mut came) = (7_u64, 0);
        for number in 1..2000_u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let sent = number * 250;
            came = came.max(sent + 5 + (seed >> 33) % 3000);
            clocks.posted(at(sent));
            let since = clocks.lease_since(&heard(number, came), at(came + 5)).expect("known");
            assert!(since <= at(came), "{number}");
        }
    }

    #[test]
    fn a_clock_that_stood_still_is_noticed() {
        let mut clocks = Clocks::default();
        clocks.posted(at(0));
        clocks.lease_since(&heard(1, 1), at(2));
        // The agent's machine stood still for a minute, with its clock.
        clocks.posted(at(1000));
        let mut word = heard(2, 1001);
        (word.message_us, word.lease_us) = (word.message_us + 60_000_000, word.lease_us + 60_000_000);
        assert_eq!(clocks.lease_since(&word, at(1002)), Some(at(1000)));
    }

    #[test]
    fn a_bound_loosens_with_time_as_clocks_drift() {
        let mut clocks = Clocks::default();
        clocks.posted(at(0));
        clocks.lease_since(&heard(1, 0), at(0));
        // Since then each message has waited for a minute.
        clocks.posted(at(600_000));
        let since = clocks.lease_since(&heard(2, 660_000), at(660_000)).expect("known");
        assert_eq!(since, at(660_000 - 660));
    }

    #[test]
    fn nonsense_is_no_time() {
        let mut clocks = Clocks::default();
        assert_eq!(clocks.lease_since(&heard(1, 0), at(1)), None, "nothing was sent");
        clocks.posted(at(0));
        assert_eq!(clocks.lease_since(&v1::Heard { messages: 2, message_us: 1, lease_us: 1 }, at(1)), None);
        let extreme = v1::Heard { messages: 1, message_us: u64::MAX, lease_us: 0 };
        assert_eq!(clocks.lease_since(&extreme, at(1)), Some(Duration::ZERO));
        let extreme = v1::Heard { messages: 1, message_us: 0, lease_us: u64::MAX };
        assert!(clocks.lease_since(&extreme, at(1)).is_none_or(|since| since <= at(1)));
    }

    #[test]
    fn times_of_messages_are_bounded() {
        let mut clocks = Clocks::default();
        (0..100_000).for_each(|n| clocks.posted(at(n)));
        assert_eq!(clocks.posted.times.len(), TIMES);
        assert_eq!(clocks.posted.sent_by(1), None, "too long ago");
        let known = clocks.posted.sent_by(99_995).expect("a moment ago");
        assert!(known <= at(99_994) && known + GRAIN >= at(99_994));
    }
}
