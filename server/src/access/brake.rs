//! A brake on guessing: whoever fails waits, twice as long each time. In this server's memory alone, and bounded: several
//! servers give a guesser as many times the attempts, which is still nothing.

use super::Refusal;
use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// People mistype.
const FREE: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(15 * 60);

/// After so long without a failure all is forgotten.
const FORGIVEN: Duration = Duration::from_secs(30 * 60);

/// Names and addresses remembered. When there are more, those that have to wait for the shortest are forgotten first.
const REMEMBERED: usize = 10_000;

/// A network's worth of people may share an address: it may fail more often than a name.
const ADDRESS_FREE: u32 = 50;

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    last: Instant,
    /// Nothing is tried before.
    until: Instant,
}

#[derive(Debug)]
struct Waits<K> {
    free: u32,
    by_key: HashMap<K, Failures>,
}

impl<K: Eq + Hash + Clone> Waits<K> {
    fn new(free: u32) -> Waits<K> {
        Waits { free, by_key: HashMap::new() }
    }

    fn wait(&self, key: &K, now: Instant) -> Option<Duration> {
        let failures = self.by_key.get(key)?;
        failures.until.checked_duration_since(now).filter(|wait| !wait.is_zero())
    }

    fn failed(&mut self, key: &K, now: Instant) {
        let before = self.by_key.get(key).filter(|failures| now.saturating_duration_since(failures.last) < FORGIVEN);
        let count = before.map_or(0, |failures| failures.count) + 1;
        let wait = match count.checked_sub(self.free) {
            None | Some(0) => Duration::ZERO,
            Some(beyond) => FIRST_WAIT.saturating_mul(2_u32.saturating_pow(beyond - 1)).min(LONGEST_WAIT),
        };
        if self.by_key.len() >= REMEMBERED && !self.by_key.contains_key(key) {
            self.make_room(now);
        }
        self.by_key.insert(key.clone(), Failures { count, last: now, until: now + wait });
    }

    fn make_room(&mut self, now: Instant) {
        self.by_key.retain(|_, failures| now.saturating_duration_since(failures.last) < FORGIVEN);
        if self.by_key.len() >= REMEMBERED {
            let mut ends: Vec<Instant> = self.by_key.values().map(|failures| failures.until).collect();
            let (_, middle, _) = ends.select_nth_unstable(REMEMBERED / 10);
            let middle = *middle;
            self.by_key.retain(|_, failures| failures.until > middle);
        }
    }
}

/// Of names and of addresses.
#[derive(Debug)]
pub struct Brake(Mutex<(Waits<String>, Waits<IpAddr>)>);

impl Default for Brake {
    fn default() -> Brake {
        Brake(Mutex::new((Waits::new(FREE), Waits::new(ADDRESS_FREE))))
    }
}

impl Brake {
    /// Whether it may be tried now.
    pub fn check(&self, name: Option<&str>, address: Option<IpAddr>) -> Result<(), Refusal> {
        let (waits, now) = (self.0.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
        let of_name = name.and_then(|name| waits.0.wait(&name.to_owned(), now));
        let of_address = address.and_then(|address| waits.1.wait(&network(address), now));
        match of_name.max(of_address) {
            None => Ok(()),
            Some(wait) => Err(Refusal::TooManyAttempts(wait)),
        }
    }

    pub fn failed(&self, name: Option<&str>, address: Option<IpAddr>) {
        let (mut waits, now) = (self.0.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
        if let Some(name) = name {
            waits.0.failed(&name.to_owned(), now);
        }
        if let Some(address) = address {
            waits.1.failed(&network(address), now);
        }
    }

    /// Of the name alone: who knows one password may still guess others from the same address.
    pub fn succeeded(&self, name: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.by_key.remove(name);
    }
}

/// Of IPv6 everybody has 2^64 addresses: what counts is the network.
pub(super) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_and_end() {
        let (mut waits, start) = (Waits::new(FREE), Instant::now());
        let mut waited = Vec::new();
        for _ in 0..18 {
            waits.failed(&"ana", start);
            waited.push(waits.wait(&"ana", start).unwrap_or_default().as_secs());
        }
        assert_eq!(waited[..8], [0, 0, 0, 0, 0, 1, 2, 4]);
        assert_eq!(waited[17], 900, "and no longer than that");
        assert_eq!(waits.wait(&"ana", start + LONGEST_WAIT), None);
        assert_eq!(waits.wait(&"ben", start), None, "others do not wait");
        waits.failed(&"ana", start + LONGEST_WAIT + FORGIVEN);
        assert_eq!(waits.wait(&"ana", start + LONGEST_WAIT + FORGIVEN), None, "all is forgiven");
    }

    #[test]
    fn no_more_is_remembered_than_there_is_room_for() {
        let (mut waits, start) = (Waits::new(FREE), Instant::now());
        (0..10).for_each(|_| waits.failed(&0, start));
        (1..3 * REMEMBERED).for_each(|key| waits.failed(&key, start));
        assert!(waits.by_key.len() <= REMEMBERED);
        assert!(waits.wait(&0, start).is_some(), "who has to wait is not forgotten for those who have not");
    }

    #[test]
    fn a_name_is_braked_wherever_from_and_an_address_whatever_the_name() {
        let brake = Brake::default();
        let address: IpAddr = "2001:db8::1".parse().expect("an address");
        let neighbour: IpAddr = "2001:db8::2".parse().expect("an address");
        (0..=FREE).for_each(|_| brake.failed(Some("ana"), None));
        assert!(matches!(brake.check(Some("ana"), Some(address)), Err(Refusal::TooManyAttempts(_))));
        assert_eq!(brake.check(Some("ben"), Some(address)), Ok(()));
        (0..=ADDRESS_FREE).for_each(|_| brake.failed(None, Some(address)));
        assert!(brake.check(Some("ben"), Some(neighbour)).is_err());
        brake.succeeded("ana");
        assert_eq!(brake.check(Some("ana"), None), Ok(()));
    }
}
