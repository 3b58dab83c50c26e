//! What a helper in somebody's session says.
//!
//! Owns how far it is believed. Whoever says that somebody is there is always believed. That nobody is there follows from what it
//! says only if the agent runs as the same user, or the owner has said that every session has a helper.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use super::signals::{Input, Moment, Proves, Reading};

#[derive(Clone, Debug, PartialEq)]
pub struct Helper {
    /// Such as `x11`.
    pub source: String,
    /// The helper's user is the agent's.
    pub is_own: bool,
    pub at: Moment,
    /// When the session's person touched something last; or why that is not known.
    pub last: Result<Moment, String>,
    pub full_screen: Option<bool>,
}

impl Helper {
    pub fn input(&self, trusted: bool) -> Reading<Input> {
        let proves = if self.is_own || trusted { Proves::Absence } else { Proves::Presence };
        let says = self.last.clone().map(|last| Input { last, proves, bump: None, untold: false, looked: false });
        Reading { source: Cow::Owned(self.source.clone()), at: self.at, says }
    }

    pub fn full_screen(&self) -> Option<Reading<bool>> {
        let says = Ok(self.full_screen?);
        Some(Reading { source: Cow::Owned(self.source.clone()), at: self.at, says })
    }
}

/// What is remembered of more of them tells nothing new.
const GONE_LIMIT: usize = 64;

/// Those that are connected, by their connections, and what those have seen that are not, or do not see any more. A person who has just
/// been seen is not forgotten with who saw them: the sessions of others know nothing of that one.
#[derive(Clone, Debug, Default)]
pub struct Helpers {
    here: BTreeMap<u64, Helper>,
    /// The last touch that each source has seen.
    gone: BTreeMap<String, Moment>,
}

impl Helpers {
    /// What one says on its connection, or that it is gone.
    pub fn hear(&mut self, connection: u64, says: Option<Helper>) {
        let sees = says.as_ref().is_some_and(|helper| helper.last.is_ok());
        let before = match says {
            Some(helper) => self.here.insert(connection, helper),
            None => self.here.remove(&connection),
        };
        if let Some(Helper { source, last: Ok(last), .. }) = before.filter(|_| !sees) {
            let known = self.gone.entry(source).or_default();
            *known = last.max(*known);
        }
        // What was seen later says that somebody is there for longer.
        while self.gone.len() > GONE_LIMIT {
            let oldest = self.gone.iter().min_by_key(|(_, last)| **last).map(|(source, _)| source.clone());
            oldest.and_then(|source| self.gone.remove(&source));
        }
    }

    /// Whoever has touched nothing for so long is not remembered.
    pub fn forget(&mut self, now: Moment, after: Duration) {
        self.gone.retain(|_, last| now.saturating_sub(*last) < after);
    }

    pub fn input(&self, trusted: bool, now: Moment) -> Vec<Reading<Input>> {
        let here = self.here.values().map(|helper| helper.input(trusted));
        let gone = self.gone.iter().map(|(source, last)| {
            let says = Ok(Input { last: *last, proves: Proves::Presence, bump: None, untold: false, looked: false });
            Reading { source: Cow::Owned(format!("{source}, gone")), at: now, says }
        });
        here.chain(gone).collect()
    }

    pub fn full_screen(&self) -> Vec<Reading<bool>> {
        self.here.values().filter_map(Helper::full_screen).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(source: &str, last: Result<u64, &str>) -> Option<Helper> {
        let last = last.map(Duration::from_secs).map_err(str::to_owned);
        let source = source.to_owned();
        Some(Helper { source, is_own: false, at: Duration::from_secs(1000), last, full_screen: None })
    }

    #[test]
    fn who_has_just_been_seen_is_remembered_when_their_helper_is_gone() {
        let (now, quarter) = (Duration::from_secs(1000), Duration::from_secs(900));
        for (what, words, expected) in [
            ("both are here", vec![(1, seen("x11", Ok(990))), (2, seen("wayland", Ok(10)))], vec!["x11", "wayland"]),
            (
                "one logs out",
                vec![(1, seen("x11", Ok(990))), (2, seen("wayland", Ok(10))), (1, None)],
                vec!["wayland", "x11, gone"],
            ),
            (
                "it says why first",
                vec![(1, seen("x11", Ok(990))), (1, seen("x11", Err("gone"))), (1, None)],
                vec!["x11, gone"],
            ),
            ("one that never knew", vec![(1, seen("x11", Err("no display"))), (1, None)], vec![]),
            ("long ago", vec![(1, seen("x11", Ok(100))), (1, None)], vec![]),
        ] {
            let mut helpers = Helpers::default();
            words.into_iter().for_each(|(connection, says)| helpers.hear(connection, says));
            helpers.forget(now, quarter);
            let input = helpers.input(true, now);
            let sources: Vec<&str> = input.iter().map(|reading| &*reading.source).collect();
            assert_eq!(sources, expected, "{what}");
            for reading in input.iter().filter(|reading| reading.source.ends_with("gone")) {
                let says = reading.says.as_ref().expect("it is known");
                assert_eq!((says.last, says.proves, reading.at), (Duration::from_secs(990), Proves::Presence, now));
            }
        }
    }

    #[test]
    fn whoever_comes_and_goes_all_the_time_takes_nobodys_place() {
        let mut helpers = Helpers::default();
        for number in 0..200 {
            helpers.hear(number, seen(&format!("x{number}"), Ok(500 + number)));
            helpers.hear(number, None);
        }
        let input = helpers.input(false, Duration::from_secs(1000));
        let last = |reading: &Reading<Input>| reading.says.as_ref().map(|input| input.last).expect("it is known");
        assert_eq!((input.len(), input.iter().map(last).max()), (64, Some(Duration::from_secs(699))));
    }
}
