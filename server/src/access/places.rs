//! A few places for what takes its time, of which nobody has all: each caller has so many at most, so that whoever is slow,
//! or means ill, leaves some to others.

use super::{Caller, Kind, Peer, network};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::timeout;

/// For whom places are counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    User(Arc<str>),
    /// Who has shown nothing; of IPv6 the network.
    Address(IpAddr),
    /// Nobody knows: all of them together.
    Unknown,
}

impl Holder {
    pub fn of(caller: &Caller, peer: &Peer) -> Holder {
        match (caller.kind(), peer.address) {
            (Kind::Token(_) | Kind::Workstation(_), _) => Holder::User(caller.user().into()),
            (Kind::Anonymous, Some(address)) => Holder::Address(network(address)),
            (Kind::Anonymous, None) => Holder::Unknown,
        }
    }
}

/// Why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// Of its own: others may have some.
    Own(usize),
    /// All are taken.
    All,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_holder: HashMap<Holder, usize>,
}

#[derive(Debug)]
pub struct Places {
    total: usize,
    of_one: usize,
    taken: Mutex<Taken>,
    left: Notify,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub struct Place {
    of: Arc<Places>,
    holder: Holder,
}

impl Places {
    pub fn new(total: usize, of_one: usize) -> Arc<Places> {
        Arc::new(Places { total, of_one, taken: Mutex::default(), left: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn try_take(self: &Arc<Places>, holder: &Holder) -> Result<Place, Full> {
        let mut taken = self.lock();
        let own = taken.by_holder.get(holder).copied().unwrap_or(0);
        if own >= self.of_one {
            return Err(Full::Own(self.of_one));
        }
        if taken.all >= self.total {
            return Err(Full::All);
        }
        taken.all += 1;
        taken.by_holder.insert(holder.clone(), own + 1);
        Ok(Place { of: self.clone(), holder: holder.clone() })
    }

    /// Waits for one, but not for longer than that.
    pub async fn take(self: &Arc<Places>, holder: &Holder, patience: Duration) -> Result<Place, Full> {
        let waiting = async {
            loop {
                // First, so that one that is left in between is not missed.
                let mut left = std::pin::pin!(self.left.notified());
                left.as_mut().enable();
                if let Ok(place) = self.try_take(holder) {
                    return place;
                }
                left.await;
            }
        };
        match timeout(patience, waiting).await {
            Ok(place) => Ok(place),
            Err(_) => self.try_take(holder),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.of.lock();
        taken.all -= 1;
        if let Some(own) = taken.by_holder.get_mut(&self.holder) {
            *own -= 1;
            if *own == 0 {
                taken.by_holder.remove(&self.holder);
            }
        }
        drop(taken);
        self.of.left.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> Holder {
        Holder::User(name.into())
    }

    #[test]
    fn nobody_has_all() {
        let places = Places::new(3, 2);
        let (ana, ben, eve) = (user("ana"), user("ben"), user("eve"));
        let held: Vec<Place> = (0..2).map(|_| places.try_take(&ana).expect("free")).collect();
        assert_eq!(places.try_take(&ana).err(), Some(Full::Own(2)));
        let other = places.try_take(&ben).expect("left to others");
        assert_eq!(places.try_take(&eve).err(), Some(Full::All));
        drop(held);
        drop(other);
        assert!(places.try_take(&ana).is_ok() && places.lock().by_holder.is_empty(), "nothing is remembered");
    }

    #[tokio::test]
    async fn who_waits_gets_the_next() {
        let places = Places::new(1, 1);
        let first = places.try_take(&user("ana")).expect("free");
        assert_eq!(places.take(&user("ben"), Duration::ZERO).await.err(), Some(Full::All));
        let ben = user("ben");
        let next = places.take(&ben, Duration::from_secs(30));
        let (next, ()) = tokio::join!(next, async {
            tokio::task::yield_now().await;
            drop(first);
        });
        assert!(next.is_ok());
    }

    #[test]
    fn who_shows_nothing_is_known_by_its_network() {
        let peer = |text: &str| Peer { address: Some(text.parse().expect("an address")), workstation: None };
        let anonymous = Caller::anonymous(super::super::Scopes::NONE);
        let of = |text| Holder::of(&anonymous, &peer(text));
        assert_eq!(of("2001:db8::1"), of("2001:db8::2"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        let ana = Caller::person("ana", super::super::Scopes::NONE, 1);
        assert_eq!(Holder::of(&ana, &peer("192.0.2.1")), user("ana"), "wherever from");
    }
}
