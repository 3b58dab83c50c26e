//! Programs that keep the screen on: films, video calls, presentations. Their person may watch without touching anything.
//!
//! Owns the rule by which an inhibitor counts as presence: as long as a program holds it, but no longer than `limit` after both its
//! beginning and the last input. [`logind`] lists those of the system; helpers in sessions tell of those of desktops and compositors.

#[cfg(target_os = "linux")]
pub mod logind;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::policy::ANSWER_LIMIT;
use super::signals::{Moment, Reading};

/// A film lasts for three hours. A player that plays on all night without a person does not keep the PC from work until morning.
const LIMIT: Duration = Duration::from_secs(4 * 3600);

/// The most that one helper tells of.
pub const HELD_LIMIT: usize = 16;

/// List that names an inhibitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    Logind,
    /// The session manager of GNOME and its relatives, or the power manager of KDE, Xfce and others.
    Desktop,
    /// The compositor of Wayland.
    Wayland,
}

impl Place {
    pub fn name(self) -> &'static str {
        match self {
            Place::Logind => "logind",
            Place::Desktop => "desktop",
            Place::Wayland => "wayland",
        }
    }
}

/// The table `[presence.inhibitors]` of the file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRules {
    logind: Option<bool>,
    desktop: Option<bool>,
    wayland: Option<bool>,
    limit: Option<f64>,
}

/// Which of them count, and for how long.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    pub logind: bool,
    pub desktop: bool,
    pub wayland: bool,
    pub limit: Duration,
}

impl Rules {
    pub fn of_a_desk() -> Rules {
        Rules { logind: true, desktop: true, wayland: true, limit: LIMIT }
    }

    pub fn unattended() -> Rules {
        Rules { logind: false, desktop: false, wayland: false, limit: LIMIT }
    }

    pub fn count(&self, place: Place) -> bool {
        match place {
            Place::Logind => self.logind,
            Place::Desktop => self.desktop,
            Place::Wayland => self.wayland,
        }
    }
}

impl FileRules {
    /// The first setting that makes no sense.
    pub fn wrong(&self) -> Option<&'static str> {
        let is_good = self.limit.is_none_or(|seconds| (0.0..=7.0 * 86_400.0).contains(&seconds));
        (!is_good).then_some("inhibitors.limit")
    }

    /// Fills in the defaults.
    pub fn over(self, default: Rules) -> Rules {
        Rules {
            logind: self.logind.unwrap_or(default.logind),
            desktop: self.desktop.unwrap_or(default.desktop),
            wayland: self.wayland.unwrap_or(default.wayland),
            limit: self.limit.map_or(default.limit, Duration::from_secs_f64),
        }
    }
}

/// A program that keeps the screen on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Held {
    pub place: Place,
    /// The name that it gave itself.
    pub by: String,
}

/// A program that keeps the screen on, with the moment when the agent first saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct Inhibitor {
    pub held: Held,
    pub since: Moment,
}

impl Inhibitor {
    /// `touched`: the last input.
    pub fn counts(&self, rules: &Rules, touched: Option<Moment>, now: Moment) -> bool {
        let from = touched.map_or(self.since, |touched| touched.max(self.since));
        rules.count(self.held.place) && now.saturating_sub(from) < rules.limit
    }

    /// Reason for people.
    pub fn objection(&self) -> String {
        let Held { place, by } = &self.held;
        format!("its person may be watching: {by} keeps the screen on ({})", place.name())
    }
}

/// Inhibitors of one list, from one look to the next.
#[derive(Clone, Debug, Default)]
pub struct Since(BTreeMap<Held, Moment>);

impl Since {
    pub fn read(&mut self, held: Vec<Held>, now: Moment) -> Vec<Inhibitor> {
        let mut before = std::mem::take(&mut self.0);
        for held in held {
            let since = before.remove(&held).unwrap_or(now);
            self.0.insert(held, since);
        }
        self.all()
    }

    fn all(&self) -> Vec<Inhibitor> {
        self.0.iter().map(|(held, since)| Inhibitor { held: held.clone(), since: *since }).collect()
    }
}

/// Inhibitors of people's sessions, by the connections of their helpers.
#[derive(Clone, Debug, Default)]
pub struct Told(BTreeMap<u64, Teller>);

#[derive(Clone, Debug)]
struct Teller {
    source: String,
    at: Moment,
    since: Since,
}

impl Told {
    /// Records a message of a helper. True if it is news: another list, or the first after a silence.
    pub fn hear(&mut self, connection: u64, source: String, held: Vec<Held>, now: Moment) -> bool {
        let is_first = !self.0.contains_key(&connection);
        let teller = self.0.entry(connection).or_insert_with(|| Teller { source, at: now, since: Since::default() });
        let was_silent = now.saturating_sub(std::mem::replace(&mut teller.at, now)) > ANSWER_LIMIT;
        let before = teller.since.all();
        teller.since.read(held, now) != before || is_first || was_silent
    }

    /// Forgets the list of a helper that ended. True if there was one.
    pub fn forget(&mut self, connection: u64) -> bool {
        self.0.remove(&connection).is_some()
    }

    pub fn read(&self) -> Vec<Reading<Vec<Inhibitor>>> {
        let reading = |teller: &Teller| Reading {
            source: teller.source.clone().into(),
            at: teller.at,
            says: Ok(teller.since.all()),
        };
        self.0.values().map(reading).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn held(by: &str) -> Held {
        Held { place: Place::Desktop, by: by.to_owned() }
    }

    #[test]
    fn a_film_counts_for_four_hours_without_input() {
        let rules = Rules::of_a_desk();
        let film = Inhibitor { held: held("a player"), since: 100 * HOUR };
        for (touched, now, expected) in [
            (None, 103 * HOUR, true),
            (Some(90 * HOUR), 103 * HOUR, true),
            (None, 104 * HOUR, false),
            (Some(103 * HOUR), 106 * HOUR, true),
            (Some(103 * HOUR), 107 * HOUR, false),
        ] {
            assert_eq!(film.counts(&rules, touched, now), expected, "{touched:?} {now:?}");
        }
        let off = Rules { desktop: false, ..rules };
        assert!(!film.counts(&off, None, 101 * HOUR));
    }

    #[test]
    fn an_inhibitor_begins_when_it_is_first_seen() {
        let mut since = Since::default();
        assert_eq!(since.read(vec![held("a")], HOUR)[0].since, HOUR);
        let both = since.read(vec![held("a"), held("b"), held("b")], 2 * HOUR);
        assert_eq!(both.iter().map(|one| one.since).collect::<Vec<_>>(), [HOUR, 2 * HOUR]);
        since.read(Vec::new(), 3 * HOUR);
        assert_eq!(since.read(vec![held("a")], 4 * HOUR)[0].since, 4 * HOUR);
    }

    #[test]
    fn messages_of_a_helper_are_kept_until_it_ends() {
        let mut told = Told::default();
        let mut hear = |held, now| told.hear(1, "session of user 1000".to_owned(), held, now);
        let second = Duration::from_secs(1);
        assert!(hear(Vec::new(), HOUR - second), "the first message");
        assert!(hear(vec![held("a")], HOUR), "another list");
        assert!(!hear(vec![held("a")], HOUR + second), "nothing is new");
        assert!(hear(vec![held("a")], 2 * HOUR), "it was silent");
        let reading = &told.read()[0];
        assert_eq!((reading.at, reading.says.as_ref().map(|all| all[0].since)), (2 * HOUR, Ok(HOUR)));
        told.forget(1);
        assert!(told.read().is_empty());
    }
}
