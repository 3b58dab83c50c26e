//! What was read of the database a moment ago: a second at most, and less when a notification says that something changed.

use super::Caller;
use pcfarm_sql::access::Doors;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Within this a revocation holds on every server, even where notifications are lost.
const HOLDS: Duration = Duration::from_secs(1);

/// Enough for all who call within a second.
const TOKENS: usize = 10_000;

/// When it was asked, so that an answer which a change has overtaken is not kept.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    at: Instant,
    generation: u64,
}

#[derive(Default)]
pub struct Remembered(Mutex<State>);

#[derive(Default)]
struct State {
    generation: u64,
    tokens: HashMap<[u8; 32], (Caller, Instant)>,
    doors: Option<(Doors, Instant)>,
}

impl State {
    fn asked(&self, at: Instant) -> Asked {
        Asked { at, generation: self.generation }
    }
}

impl Remembered {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn forget(&self) {
        let mut state = self.lock();
        state.generation += 1;
        state.tokens.clear();
        state.doors = None;
    }

    pub fn token(&self, hash: &[u8; 32]) -> Result<Caller, Asked> {
        let (state, now) = (self.lock(), Instant::now());
        match state.tokens.get(hash) {
            Some((caller, at)) if now.saturating_duration_since(*at) < HOLDS => Ok(caller.clone()),
            Some(_) | None => Err(state.asked(now)),
        }
    }

    pub fn remember_token(&self, hash: [u8; 32], caller: Caller, asked: Asked) {
        let mut state = self.lock();
        if state.generation != asked.generation {
            return;
        }
        if state.tokens.len() >= TOKENS {
            state.tokens.retain(|_, (_, at)| asked.at.saturating_duration_since(*at) < HOLDS);
            // What was known and is let go is only looked up like any other.
        }
        if state.tokens.len() < TOKENS {
            state.tokens.insert(hash, (caller, asked.at));
        }
    }

    pub fn doors(&self) -> Result<Doors, Asked> {
        let (state, now) = (self.lock(), Instant::now());
        match state.doors {
            Some((known, at)) if now.saturating_duration_since(at) < HOLDS => Ok(known),
            Some(_) | None => Err(state.asked(now)),
        }
    }

    pub fn remember_doors(&self, known: Doors, asked: Asked) {
        let mut state = self.lock();
        if state.generation == asked.generation {
            state.doors = Some((known, asked.at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Role;

    #[test]
    fn what_a_change_has_overtaken_is_not_kept() {
        let remembered = Remembered::default();
        let caller = Caller::person("ana", Role::User.scopes(), 1);
        let asked = remembered.token(&[0; 32]).expect_err("never seen");
        remembered.remember_token([0; 32], caller.clone(), asked);
        assert_eq!(remembered.token(&[0; 32]).expect("known"), caller);
        let asked = remembered.token(&[1; 32]).expect_err("never seen");
        remembered.forget();
        remembered.remember_token([1; 32], caller, asked);
        assert!(remembered.token(&[1; 32]).is_err() && remembered.token(&[0; 32]).is_err());
    }

    #[test]
    fn nothing_is_remembered_for_longer_than_it_holds() {
        let remembered = Remembered::default();
        let closed = Doors { people: true, workstations: true };
        let asked = remembered.doors().expect_err("never asked");
        let earlier = Asked { at: asked.at.checked_sub(HOLDS).expect("this machine runs for longer"), ..asked };
        remembered.remember_doors(closed, earlier);
        assert!(remembered.doors().is_err());
        remembered.remember_doors(closed, asked);
        assert_eq!(remembered.doors().expect("known"), closed);
    }
}
