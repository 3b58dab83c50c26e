//! What a helper in somebody's session says.
//!
//! Owns how far it is believed. Whoever says that somebody is there is always believed. That nobody is there follows from what it
//! says only if the agent runs as the same user, or the owner has said that every session has a helper.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::policy::ANSWER_LIMIT;
use super::signals::{Input, Moment, Proves, Reading};

/// A helper tells for how long there was no input, so the same input comes out at slightly different moments.
const JITTER: Duration = Duration::from_millis(250);

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
    /// The session has a seat, so that its input comes from devices that the agent sees, too.
    pub at_seat: bool,
}

impl Helper {
    pub fn input(&self, trusted: bool) -> Reading<Input> {
        let proves = if self.is_own || trusted { Proves::Absence } else { Proves::Presence };
        let says =
            self.last.clone().map(|last| Input { last, proves, bump: None, untold: false, at_seat: self.at_seat });
        Reading { source: Cow::Owned(self.source.clone()), at: self.at, says }
    }

    pub fn full_screen(&self) -> Option<Reading<bool>> {
        let says = Ok(self.full_screen?);
        Some(Reading { source: Cow::Owned(self.source.clone()), at: self.at, says })
    }
}

/// Sources that are remembered after their helpers ended: more tell nothing new.
const GONE_LIMIT: usize = 64;

/// Helpers that ended and are named in `explain`.
const ENDED_LIMIT: usize = 16;

/// Connected helpers by their connections, and the last input that others saw before they ended. A person who was seen a moment ago is not
/// forgotten with the helper: the sessions of others know nothing of that person.
///
/// A connected helper that told once and cannot tell any more, or is silent, is not a source less: its last answer grows stale, which
/// the policy takes for an unknown.
#[derive(Clone, Debug, Default)]
pub struct Helpers {
    here: BTreeMap<u64, Here>,
    /// The last input that each source has seen.
    gone: BTreeMap<String, Gone>,
    /// By source, the newest last.
    ended: Vec<Ended>,
}

#[derive(Clone, Debug)]
struct Here {
    helper: Helper,
    /// The last message that told when input was.
    told: Option<Told>,
}

#[derive(Clone, Copy, Debug)]
struct Told {
    at: Moment,
    last: Moment,
}

#[derive(Clone, Copy, Debug, Default)]
struct Gone {
    last: Moment,
    at_seat: bool,
}

/// A helper whose connection ended.
#[derive(Clone, Debug, PartialEq)]
struct Ended {
    source: String,
    at: Timestamp,
    /// Its last words, if it could not tell.
    why: Option<String>,
}

impl Helpers {
    /// A message of a helper, or none at the end of its connection. True if it is news that the policy must hear at once.
    pub fn hear(&mut self, connection: u64, says: Option<Helper>, wall: Timestamp) -> bool {
        let before = self.here.remove(&connection);
        match says {
            None => before.map(|here| self.end(here, wall)).is_some(),
            Some(helper) => {
                // Another session of the same user, which already had a helper, says nothing about the one that ended.
                if before.is_none() {
                    self.ended.retain(|ended| ended.source != helper.source);
                }
                let told = helper.last.as_ref().ok().map(|last| Told { at: helper.at, last: *last });
                let told = told.or(before.as_ref().and_then(|before| before.told));
                let is_news = before.is_none_or(|before| is_news(&before.helper, &helper));
                self.here.insert(connection, Here { helper, told });
                is_news
            }
        }
    }

    fn end(&mut self, here: Here, wall: Timestamp) {
        let Here { helper, told } = here;
        if let Some(told) = told {
            let known = self.gone.entry(helper.source.clone()).or_default();
            if told.last >= known.last {
                *known = Gone { last: told.last, at_seat: helper.at_seat };
            }
        }
        // The latest input keeps the agent from work for longest.
        while self.gone.len() > GONE_LIMIT {
            let oldest = self.gone.iter().min_by_key(|(_, gone)| gone.last).map(|(source, _)| source.clone());
            oldest.and_then(|source| self.gone.remove(&source));
        }
        self.ended.retain(|ended| ended.source != helper.source);
        self.ended.push(Ended { source: helper.source, at: wall, why: helper.last.err() });
        let surplus = self.ended.len().saturating_sub(ENDED_LIMIT);
        self.ended.drain(..surplus);
    }

    /// Returns true if every connected helper has told something lately.
    pub fn are_heard(&self, now: Moment) -> bool {
        self.here.values().all(|here| now.saturating_sub(here.helper.at) <= ANSWER_LIMIT)
    }

    /// Forgets sources of helpers that ended and have seen no input for so long.
    pub fn forget(&mut self, now: Moment, after: Duration) {
        self.gone.retain(|_, gone| now.saturating_sub(gone.last) < after);
    }

    pub fn input(&self, trusted: bool, now: Moment) -> Vec<Reading<Input>> {
        let mut input: Vec<Reading<Input>> = Vec::new();
        for Here { helper, told } in self.here.values() {
            input.push(helper.input(trusted));
            if let (Err(_), Some(told)) = (&helper.last, told) {
                // The helper proves no absence any more. Its last input still counts, as of its time, so that its silence counts,
                // too.
                let before = Helper { at: told.at, last: Ok(told.last), is_own: false, ..helper.clone() };
                input.push(before.input(false));
            }
        }
        input.extend(self.gone.iter().map(|(source, Gone { last, at_seat })| {
            let (last, at_seat) = (*last, *at_seat);
            let says = Ok(Input { last, proves: Proves::Presence, bump: None, untold: false, at_seat });
            Reading { source: Cow::Owned(format!("{source}, gone")), at: now, says }
        }));
        input
    }

    pub fn full_screen(&self) -> Vec<Reading<bool>> {
        self.here.values().filter_map(|here| here.helper.full_screen()).collect()
    }

    /// Helpers that ended, for people where the workstation is.
    pub fn notes(&self, zone: &TimeZone) -> Vec<String> {
        let note = |Ended { source, at, why }: &Ended| {
            let at = at.to_zoned(zone.clone());
            let why = why.as_deref().map_or_else(String::new, |why| format!(": {why}"));
            format!("the session helper {source} ended at {}{why}", at.strftime("%a %F %H:%M"))
        };
        self.ended.iter().map(note).collect()
    }
}

/// The first message after input, after a silence or of another kind. All others repeat that nothing happened.
fn is_news(before: &Helper, now: &Helper) -> bool {
    let is_later = match (&before.last, &now.last) {
        (Ok(before), Ok(now)) => now.saturating_sub(*before) > JITTER,
        (Ok(_), Err(_)) | (Err(_), Ok(_)) => true,
        (Err(before), Err(now)) => before != now,
    };
    is_later || before.full_screen != now.full_screen || now.at.saturating_sub(before.at) > ANSWER_LIMIT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(source: &str, last: Result<u64, &str>) -> Option<Helper> {
        let last = last.map(Duration::from_secs).map_err(str::to_owned);
        let source = source.to_owned();
        Some(Helper { source, is_own: false, at: Duration::from_secs(1000), last, full_screen: None, at_seat: false })
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
            for (connection, says) in words {
                helpers.hear(connection, says, Timestamp::UNIX_EPOCH);
            }
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
            helpers.hear(number, seen(&format!("x{number}"), Ok(500 + number)), Timestamp::UNIX_EPOCH);
            helpers.hear(number, None, Timestamp::UNIX_EPOCH);
        }
        let input = helpers.input(false, Duration::from_secs(1000));
        let last = |reading: &Reading<Input>| reading.says.as_ref().map(|input| input.last).expect("it is known");
        assert_eq!((input.len(), input.iter().map(last).max()), (64, Some(Duration::from_secs(699))));
    }

    #[test]
    fn a_helper_that_cannot_tell_any_more_leaves_an_answer_that_grows_stale() {
        let mut helpers = Helpers::default();
        helpers.hear(1, seen("x11", Ok(10)), Timestamp::UNIX_EPOCH);
        let mut deaf = seen("x11", Err("its display does not answer")).expect("just made");
        deaf.at = Duration::from_secs(1007);
        helpers.hear(1, Some(deaf), Timestamp::UNIX_EPOCH);
        let input = helpers.input(true, Duration::from_secs(1020));
        assert_eq!(input.len(), 2);
        assert!(input[0].says.is_err() && input[0].at == Duration::from_secs(1007));
        assert!(input[1].says.is_ok() && input[1].at == Duration::from_secs(1000));
        // One that never told is no source.
        let mut helpers = Helpers::default();
        helpers.hear(1, seen("x11", Err("no display")), Timestamp::UNIX_EPOCH);
        assert_eq!(helpers.input(true, Duration::from_secs(1020)).len(), 1);
    }

    #[test]
    fn a_helper_that_ended_is_named_until_its_session_has_another() {
        let mut helpers = Helpers::default();
        let notes = |helpers: &Helpers| helpers.notes(&TimeZone::UTC);
        helpers.hear(1, seen("x11 of user 7", Ok(990)), Timestamp::UNIX_EPOCH);
        assert!(helpers.hear(1, None, Timestamp::UNIX_EPOCH), "its end is news");
        assert_eq!(notes(&helpers), ["the session helper x11 of user 7 ended at Thu 1970-01-01 00:00"]);
        helpers.hear(2, seen("x11 of user 7", Err("the display is gone")), Timestamp::UNIX_EPOCH);
        assert!(notes(&helpers).is_empty());
        // Another session of the same user says nothing about the one whose helper ended.
        helpers.hear(3, seen("x11 of user 7", Ok(990)), Timestamp::UNIX_EPOCH);
        helpers.hear(2, None, Timestamp::UNIX_EPOCH);
        helpers.hear(3, seen("x11 of user 7", Ok(994)), Timestamp::UNIX_EPOCH);
        assert!(notes(&helpers)[0].ends_with("00:00: the display is gone"));
        helpers.hear(2, seen("x11 of user 7", Err("the display is gone")), Timestamp::UNIX_EPOCH);
        assert!(notes(&helpers).is_empty());
        helpers.hear(3, None, Timestamp::UNIX_EPOCH);
        helpers.hear(2, None, Timestamp::UNIX_EPOCH);
        assert!(notes(&helpers)[0].ends_with("00:00: the display is gone"));
        for number in 0..100 {
            helpers.hear(number, seen(&format!("x{number}"), Ok(1)), Timestamp::UNIX_EPOCH);
            helpers.hear(number, None, Timestamp::UNIX_EPOCH);
        }
        assert_eq!(notes(&helpers).len(), ENDED_LIMIT);
        assert!(!helpers.hear(500, None, Timestamp::UNIX_EPOCH), "it was no helper");
    }

    #[test]
    fn only_news_is_heard_at_once() {
        let at = |at, last: Result<u64, &str>| {
            let last = last.map(Duration::from_millis).map_err(str::to_owned);
            let at = Duration::from_secs(at);
            Helper { source: "x11".to_owned(), is_own: false, at, last, full_screen: None, at_seat: false }
        };
        for (what, before, now, expected) in [
            ("nothing happened", at(1000, Ok(990_000)), at(1004, Ok(990_003)), false),
            ("input", at(1000, Ok(990_000)), at(1004, Ok(1_004_000)), true),
            ("it cannot tell", at(1000, Ok(990_000)), at(1004, Err("silence")), true),
            ("it still cannot", at(1000, Err("silence")), at(1004, Err("silence")), false),
            ("it answers again", at(1000, Ok(990_000)), at(1030, Ok(990_000)), true),
        ] {
            assert_eq!(is_news(&before, &now), expected, "{what}");
        }
    }
}
