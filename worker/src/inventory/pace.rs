//! Bytes under way to the server, kept to about a second of the link's rate.
//!
//! Owns the ledger of these bytes. The server says with each acknowledgement how long storing took. The rest of the round trip is
//! the link's time. When parcels wait for more than [`LONG_WAIT`] before the link carries them, the limit shrinks to a wait of
//! [`WAIT`], so that heartbeats and pings behind them are never late. When parcels wait for less than [`SHORT_WAIT`], and there
//! was more to send, the limit grows, as in TCP's slow start: from [`FIRST_LIMIT`] to the need of the largest links within ten
//! round trips.

use std::collections::VecDeque;
use std::time::Duration;

use pcfarm_proto::PART_BYTES_TARGET;

/// A limit that every link carries within seconds: 64 kbit/s in two, and in six if three slots share it.
const FIRST_LIMIT: usize = 16 << 10;

/// A second at 64 kbit/s.
const LEAST_LIMIT: usize = 8 << 10;

/// With a shorter lease a session begins with [`LEAST_LIMIT`].
const SHORT_LEASE: Duration = Duration::from_secs(5);

/// Limit on a local network. During an outage of the database a server holds so much of each agent.
const NEAR_LIMIT: usize = 4 * PART_BYTES_TARGET;

/// Limit on links whose round trip takes longer than [`FAR`], and on a local network while the server stores within [`QUICK`]: at
/// 1 Gbit/s, [`NEAR_LIMIT`] is under way for less time than gathering and a commit take. A busy server lowers the limit again.
const FULL_LIMIT: usize = 2 * NEAR_LIMIT;
const FAR: Duration = Duration::from_millis(50);
const QUICK: Duration = Duration::from_millis(200);

/// Pieces under way at a time while a piece is smaller than [`PIECE_LIMIT`].
const PIECES: usize = 4;

/// Largest piece. A larger one would come back as room too late, and hold up other deliveries on the server.
const PIECE_LIMIT: usize = PART_BYTES_TARGET;

/// The longest round trip that is taken for distance, and not for a queue.
const FARTHEST: Duration = Duration::from_millis(700);

/// A longer distance is learnt after such a time.
const DISTANCE_SPAN: Duration = Duration::from_secs(30);

const SECOND: Duration = Duration::from_secs(1);

/// The limit grows while parcels wait for less than the first. It shrinks to a wait of the second when they wait for more than
/// the third.
const SHORT_WAIT: Duration = Duration::from_millis(500);
const WAIT: Duration = Duration::from_millis(1000);
const LONG_WAIT: Duration = Duration::from_millis(1500);

/// Least bytes of a parcel that proves the link's rate, and the largest factor by which one parcel lets the limit grow.
const PROVES_BYTES: usize = 8 << 10;
const GROWTH: usize = 4;

/// A message on its way, of which the server will say that it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parcel {
    Delivery(u64),
    /// A question about the results of a delivery.
    Question(u64),
    /// A part of a solution, up to this byte.
    Part {
        checkout_id: i64,
        problem_id: i64,
        end: u64,
    },
}

#[derive(Debug)]
struct UnderWay {
    parcel: Parcel,
    bytes: usize,
    sent: Duration,
    /// Nothing else was under way.
    alone: bool,
}

/// Measurement of one parcel.
#[derive(Clone, Copy, Debug)]
struct Trip {
    bytes: usize,
    sent: Duration,
    /// Round trip without the server's time.
    trip: Duration,
    /// Time of the server.
    took: Duration,
    /// At least half of the limit was under way.
    was_full: bool,
    /// Nothing else was under way when it was sent.
    alone: bool,
}

/// The shortest round trip without the server's time.
#[derive(Debug, Default)]
struct Distance {
    shortest: Option<Duration>,
    since: Duration,
    /// The shortest round trip in this span of a parcel that was alone under way: it met no queue of this agent.
    alone: Option<Duration>,
}

impl Distance {
    /// Notes a round trip. Returns the distance. It grows when all parcels of a span that met no queue say so: another route may be
    /// longer for good.
    fn of(&mut self, trip: Duration, was_alone: bool, now: Duration) -> Duration {
        if now >= self.since + DISTANCE_SPAN {
            self.shortest = self.alone.take().or(self.shortest);
            self.since = now;
        }
        if was_alone {
            self.alone = Some(self.alone.map_or(trip, |alone| alone.min(trip)));
        }
        let shortest = self.shortest.map_or(trip, |shortest| shortest.min(trip));
        self.shortest = Some(shortest);
        shortest
    }
}

/// Bytes that the link has carried.
#[derive(Debug, Default)]
struct Carried {
    since: Duration,
    bytes: usize,
    last_second: usize,
}

impl Carried {
    fn add(&mut self, bytes: usize, now: Duration) {
        let time = now.saturating_sub(self.since);
        if time >= SECOND {
            self.last_second = (self.bytes as f64 / time.as_secs_f64()) as usize;
            (self.since, self.bytes) = (now, 0);
        }
        self.bytes += bytes;
    }
}

/// Bytes under way in one session, and their limit.
#[derive(Debug, Default)]
pub struct Pace {
    /// Limit in bytes. None: the server does not say how long it takes, and nothing can be measured.
    limit: Option<usize>,
    under_way: VecDeque<UnderWay>,
    bytes: usize,
    distance: Distance,
    carried: Carried,
    /// When the limit shrank last. Parcels sent before say nothing of the limit that holds now.
    shrunk: Duration,
}

impl Pace {
    /// The same with a lease that is not short.
    #[cfg(test)]
    pub fn of_session(is_measured: bool) -> Pace {
        Pace::of_lease(is_measured, SHORT_LEASE)
    }

    /// Starts anew: a new session may have another link. The server's words about the lease may wait until acknowledgements have passed
    /// the queue, so the first bytes of the slowest link must not take as long as a short lease.
    pub fn of_lease(is_measured: bool, lease: Duration) -> Pace {
        let first = if lease < SHORT_LEASE { LEAST_LIMIT } else { FIRST_LIMIT };
        Pace { limit: is_measured.then_some(first), ..Pace::default() }
    }

    /// True if the link has room for another message. A piece may exceed the room that is left.
    pub fn has_room(&self) -> bool {
        self.limit.is_none_or(|limit| self.bytes < limit)
    }

    /// Bytes of one piece; none: as many as a message may have.
    pub fn piece(&self) -> Option<usize> {
        self.limit.map(|limit| (limit / PIECES).min(PIECE_LIMIT))
    }

    pub fn sent(&mut self, parcel: Parcel, bytes: usize, now: Duration) {
        if self.limit.is_some() {
            let alone = self.under_way.is_empty();
            self.bytes += bytes;
            self.under_way.push_back(UnderWay { parcel, bytes, sent: now, alone });
        }
    }

    /// A parcel has come, `took` before this was known; none: how long that was, is not known.
    pub fn carried(&mut self, parcel: Parcel, took: Option<Duration>, now: Duration) {
        let Some(place) = self.under_way.iter().position(|under_way| under_way.parcel == parcel) else { return };
        let Some(UnderWay { bytes, sent, alone, .. }) = self.under_way.remove(place) else { return };
        self.carried.add(bytes, now);
        let was_full = self.limit.is_some_and(|limit| self.bytes * 2 >= limit);
        self.bytes -= bytes;
        if let (Some(limit), Some(took)) = (self.limit, took) {
            let trip = now.saturating_sub(sent).saturating_sub(took);
            self.limit = Some(self.adapted(limit, &Trip { bytes, sent, trip, took, was_full, alone }, now));
        }
    }

    fn adapted(&mut self, limit: usize, parcel: &Trip, now: Duration) -> usize {
        let Trip { bytes, sent, trip, took, was_full, alone } = *parcel;
        let distance = self.distance.of(trip, alone, now).min(FARTHEST);
        let most = if distance > FAR || took <= QUICK { FULL_LIMIT } else { NEAR_LIMIT };
        let wait = trip.saturating_sub(distance);
        if wait > LONG_WAIT && sent >= self.shrunk {
            self.shrunk = now;
            // Parcels in the server's hands are under way, too.
            let fitting = limit as f64 * (WAIT + distance + took).as_secs_f64() / (trip + took).as_secs_f64();
            // The link carries at least what it has just carried.
            return (fitting as usize).max(limit / 2).max(self.carried.last_second).min(limit).max(LEAST_LIMIT);
        }
        let grown = if wait < SHORT_WAIT && was_full { limit + bytes } else { limit };
        grown.max(proven(limit, bytes, trip).min(NEAR_LIMIT)).min(most).max(LEAST_LIMIT)
    }

    /// When the oldest parcel under way was sent.
    pub fn oldest(&self) -> Option<Duration> {
        self.under_way.front().map(|under_way| under_way.sent)
    }
}

/// Bytes a second that a parcel proves. A parcel of a few kilobytes proves nothing: it may have passed on a burst that the link
/// allows.
fn proven(limit: usize, bytes: usize, trip: Duration) -> usize {
    if bytes < PROVES_BYTES {
        return 0;
    }
    let in_a_second = bytes as f64 * WAIT.as_secs_f64() / trip.max(Duration::from_micros(1)).as_secs_f64();
    limit.saturating_mul(GROWTH).min(in_a_second as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link of this rate, in bytes a second, and this delay both ways, on which an agent always has more to send.
    fn after_a_minute(rate: f64, delay: Duration, server: Duration) -> (Pace, Duration, f64) {
        let mut pace = Pace::of_session(true);
        let (mut now, mut free_at) = (Duration::ZERO, Duration::ZERO);
        let mut arriving: VecDeque<(Duration, Parcel)> = VecDeque::new();
        let (mut id, mut carried, mut longest) = (0, 0, Duration::ZERO);
        while now < Duration::from_secs(60) {
            while pace.has_room() {
                id += 1;
                let bytes = pace.piece().expect("it is measured");
                pace.sent(Parcel::Delivery(id), bytes, now);
                free_at = free_at.max(now) + Duration::from_secs_f64(bytes as f64 / rate);
                arriving.push_back((free_at + delay + server, Parcel::Delivery(id)));
                carried += bytes;
            }
            let (at, parcel) = arriving.pop_front().expect("something is under way");
            now = at;
            pace.carried(parcel, Some(server), now);
            if now > Duration::from_secs(20) {
                longest = longest.max(free_at.saturating_sub(now));
            }
        }
        (pace, longest, carried as f64 / now.as_secs_f64() / rate)
    }

    #[test]
    fn the_limit_follows_the_link() {
        for (kbit, delay_ms) in
            [(64, 0), (64, 300), (256, 0), (1_000, 0), (1_000, 300), (10_000, 300), (100_000, 0), (100_000, 300)]
        {
            let rate = f64::from(kbit) * 125.0;
            for server_ms in [0, 20] {
                let (delay, server) = (Duration::from_millis(delay_ms), Duration::from_millis(server_ms));
                let (pace, queue, used) = after_a_minute(rate, delay, server);
                let case = format!("{kbit} kbit/s, {delay_ms} ms, {server_ms} ms: {pace:?}");
                assert!(queue <= Duration::from_millis(2_100), "{queue:?} of data in front of a heartbeat at {case}");
                assert!(used > 0.85, "{used} of the rate at {case}");
            }
        }
    }

    #[test]
    fn a_near_link_is_known_by_the_first_pieces() {
        let mut pace = Pace::of_session(true);
        for id in 0..4 {
            pace.sent(Parcel::Delivery(id), 8 << 10, Duration::from_secs(id));
            pace.carried(
                Parcel::Delivery(id),
                Some(Duration::ZERO),
                Duration::from_secs(id) + Duration::from_millis(1),
            );
        }
        assert_eq!(pace.limit, Some(NEAR_LIMIT));
    }

    #[test]
    fn a_slow_server_does_not_slow_the_link() {
        let (pace, _, _) = after_a_minute(125e6, Duration::ZERO, Duration::from_secs(3));
        assert_eq!(pace.limit, Some(NEAR_LIMIT));
    }

    #[test]
    fn a_gigabit_link_is_filled_while_the_server_commits() {
        let (pace, _, used) = after_a_minute(125e6, Duration::ZERO, Duration::from_millis(50));
        assert!(used > 0.95 && pace.limit == Some(FULL_LIMIT), "{used} of the rate: {pace:?}");
        assert_eq!(pace.piece(), Some(PIECE_LIMIT));
    }

    #[test]
    fn a_slow_server_does_not_leave_a_slow_link_idle() {
        let (pace, queue, used) = after_a_minute(125e3, Duration::ZERO, Duration::from_secs(2));
        assert!(used > 0.85, "{used} of the rate: {pace:?}");
        assert!(queue <= Duration::from_millis(2_100), "{queue:?} of data in front of a heartbeat: {pace:?}");
    }

    #[test]
    fn a_server_that_becomes_slow_holds_no_more_than_before() {
        let mut pace = after_a_minute(125e6, Duration::ZERO, Duration::from_millis(50)).0;
        let now = Duration::from_secs(100);
        pace.sent(Parcel::Delivery(0), PIECE_LIMIT, now);
        pace.carried(Parcel::Delivery(0), Some(Duration::from_secs(2)), now + Duration::from_secs(2));
        assert_eq!(pace.limit, Some(NEAR_LIMIT));
    }

    #[test]
    fn a_longer_route_is_learnt() {
        let mut distance = Distance::default();
        let (ms, second) = (Duration::from_millis, Duration::from_secs(1));
        assert_eq!(distance.of(ms(10), true, 40 * second), ms(10));
        for now in 41..200 {
            assert_eq!(distance.of(ms(900), false, now * second), ms(10), "it may have met a queue");
        }
        for now in 200..220 {
            assert_eq!(distance.of(ms(500), true, now * second), ms(10));
        }
        assert_eq!(distance.of(ms(510), true, 220 * second), ms(500));
        assert_eq!(distance.of(ms(20), false, 221 * second), ms(20));
    }

    #[test]
    fn the_limit_never_shrinks_below_what_the_link_carries() {
        let mut pace = after_a_minute(1.25e6, Duration::ZERO, Duration::ZERO).0;
        let before = pace.limit.expect("measured");
        // One parcel waits for lost packets while others pass.
        let now = Duration::from_secs(100);
        pace.sent(Parcel::Delivery(0), 10_000, now);
        for piece in 1..=24 {
            pace.sent(Parcel::Delivery(piece), 100_000, now);
            pace.carried(Parcel::Delivery(piece), None, now + Duration::from_millis(100 * piece));
        }
        pace.carried(Parcel::Delivery(0), Some(Duration::ZERO), now + Duration::from_millis(2_500));
        let after = pace.limit.expect("measured");
        assert!(after >= before.min(900_000), "{before} {after}");
    }

    #[test]
    fn who_sends_little_keeps_the_limit() {
        let mut pace = Pace::of_session(true);
        for id in 0..100 {
            let now = Duration::from_secs(id);
            pace.sent(Parcel::Delivery(id), 100, now);
            pace.carried(Parcel::Delivery(id), Some(Duration::ZERO), now + Duration::from_millis(1));
        }
        assert_eq!((pace.limit, pace.bytes), (Some(FIRST_LIMIT), 0));
    }

    #[test]
    fn an_old_server_is_not_measured() {
        let mut pace = Pace::of_session(false);
        pace.sent(Parcel::Delivery(1), 1 << 30, Duration::ZERO);
        assert!(pace.has_room() && pace.piece().is_none());
        pace.carried(Parcel::Delivery(1), None, Duration::from_secs(9));
        pace.carried(Parcel::Delivery(7), None, Duration::from_secs(9));
        assert!(pace.has_room());
    }
}
