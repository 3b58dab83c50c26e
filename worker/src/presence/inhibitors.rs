//! Programs that keep the screen on: films, video calls, presentations. Their person may watch without touching anything.
//!
//! Owns the rule by which an inhibitor counts as presence: as long as a program holds it, but no longer than `limit` after both its
//! beginning and the last input. [`logind`] lists those of the system; helpers in sessions tell of those of desktops and compositors.

#[cfg(target_os = "linux")]
pub mod logind;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::policy::ANSWER_LIMIT;
use super::signals::{Moment, Reading};

/// A film lasts for three hours. A player that plays on all night without a person does not keep the PC from work until morning.
const LIMIT: Duration = Duration::from_secs(4 * 3600);

/// A shorter time without an inhibitor is a pause between two films.
const GAP: Duration = Duration::from_secs(60);

/// Bound of the remembered helpers that ended.
const GONE_LIMIT: usize = 64;

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

/// A program that keeps the screen on, and since when the agent has seen one there.
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

/// Inhibitors of one list, from one look to the next. The time of a place begins with its first inhibitor and runs on while programs
/// release one and take the next, as a player does between two films.
#[derive(Clone, Debug, Default)]
pub struct Since {
    places: BTreeMap<Place, Span>,
    held: BTreeSet<Held>,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    since: Moment,
    /// Beginning of a gap without any inhibitor.
    released: Option<Moment>,
}

impl Since {
    pub fn read(&mut self, held: Vec<Held>, now: Moment) -> Vec<Inhibitor> {
        self.held = held.into_iter().collect();
        let is_over = |released: Moment| now.saturating_sub(released) >= GAP;
        for (place, span) in &mut self.places {
            match self.held.iter().any(|held| held.place == *place) {
                false => drop(span.released.get_or_insert(now)),
                true if span.released.is_some_and(is_over) => *span = Span { since: now, released: None },
                true => span.released = None,
            }
        }
        self.places.retain(|_, span| !span.released.is_some_and(is_over));
        for held in &self.held {
            self.places.entry(held.place).or_insert(Span { since: now, released: None });
        }
        self.all()
    }

    fn all(&self) -> Vec<Inhibitor> {
        let since = |held: &Held| self.places.get(&held.place).map(|span| span.since);
        self.held.iter().filter_map(|held| Some(Inhibitor { held: held.clone(), since: since(held)? })).collect()
    }
}

/// Inhibitors of people's sessions, by the connections of their helpers.
#[derive(Clone, Debug, Default)]
pub struct Told {
    here: BTreeMap<u64, Teller>,
    /// By source, those whose helper ended while programs kept the screen on: the film goes on without the helper.
    gone: BTreeMap<String, Gone>,
}

#[derive(Clone, Debug)]
struct Teller {
    source: String,
    at: Moment,
    since: Since,
}

#[derive(Clone, Debug)]
struct Gone {
    at: Moment,
    held: Vec<Inhibitor>,
    since: Since,
}

impl Told {
    /// Records a message of a helper. True if it is news: another list, or the first after a silence.
    pub fn hear(&mut self, connection: u64, source: String, held: Vec<Held>, now: Moment) -> bool {
        let is_first = !self.here.contains_key(&connection);
        let teller = self.here.entry(connection).or_insert_with(|| {
            // A helper that starts again tells of the same film.
            let since = self.gone.get(&source).map(|gone| gone.since.clone()).unwrap_or_default();
            Teller { source, at: now, since }
        });
        let was_silent = now.saturating_sub(std::mem::replace(&mut teller.at, now)) > ANSWER_LIMIT;
        let before = teller.since.all();
        teller.since.read(held, now) != before || is_first || was_silent
    }

    /// The helper ended. True if it had told anything.
    pub fn forget(&mut self, connection: u64, now: Moment) -> bool {
        let Some(Teller { source, mut since, .. }) = self.here.remove(&connection) else { return false };
        let held = since.all();
        if !held.is_empty() {
            since.read(Vec::new(), now);
            self.gone.insert(source, Gone { at: now, held, since });
        }
        while self.gone.len() > GONE_LIMIT {
            let oldest = self.gone.iter().min_by_key(|(_, gone)| gone.at).map(|(source, _)| source.clone());
            oldest.and_then(|source| self.gone.remove(&source));
        }
        true
    }

    /// Forgets lists of helpers that ended so long ago.
    pub fn expire(&mut self, now: Moment, after: Duration) {
        self.gone.retain(|_, gone| now.saturating_sub(gone.at) < after);
    }

    pub fn read(&self, now: Moment) -> Vec<Reading<Vec<Inhibitor>>> {
        let reading = |teller: &Teller| Reading {
            source: teller.source.clone().into(),
            at: teller.at,
            says: Ok(teller.since.all()),
        };
        let of_gone = |(source, gone): (&String, &Gone)| Reading {
            source: format!("{source}, gone").into(),
            at: now,
            says: Ok(gone.held.clone()),
        };
        self.here.values().map(reading).chain(self.gone.iter().map(of_gone)).collect()
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
    fn the_time_of_a_playlist_runs_on_between_two_films() {
        let mut since = Since::default();
        let second = Duration::from_secs(1);
        let mut begins = |held: &[Held], now| {
            let all = since.read(held.to_vec(), now);
            all.iter().map(|one| one.since).collect::<Vec<_>>()
        };
        assert_eq!(begins(&[held("a")], HOUR), [HOUR]);
        assert_eq!(begins(&[held("a"), held("b"), held("b")], 2 * HOUR), [HOUR, HOUR]);
        assert!(begins(&[], 3 * HOUR).is_empty());
        assert_eq!(begins(&[held("c")], 3 * HOUR + 59 * second), [HOUR], "the next film");
        assert!(begins(&[], 4 * HOUR).is_empty());
        assert_eq!(begins(&[held("a")], 4 * HOUR + 60 * second), [4 * HOUR + 60 * second], "a film of another evening");
        let of_compositor = Held { place: Place::Wayland, by: "x".to_owned() };
        assert_eq!(begins(&[held("a"), of_compositor], 5 * HOUR), [4 * HOUR + 60 * second, 5 * HOUR]);
    }

    #[test]
    fn a_film_outlives_its_helper_for_some_time() {
        let mut told = Told::default();
        let minute = Duration::from_secs(60);
        let source = || "session of user 1000".to_owned();
        told.hear(1, source(), vec![held("a")], HOUR);
        told.hear(2, "session of user 7".to_owned(), Vec::new(), HOUR);
        assert!(told.forget(1, 2 * HOUR) && told.forget(2, 2 * HOUR) && !told.forget(3, 2 * HOUR));
        let now = 2 * HOUR + 14 * minute;
        told.expire(now, 15 * minute);
        let readings = told.read(now);
        assert_eq!(readings.len(), 1, "a session without a film is forgotten");
        assert_eq!((&*readings[0].source, readings[0].at), ("session of user 1000, gone", now));
        assert_eq!(readings[0].says.as_ref().map(|all| all[0].since), Ok(HOUR));
        told.expire(2 * HOUR + 15 * minute, 15 * minute);
        assert!(told.read(now).is_empty());
        // A helper that starts again does not begin the film anew.
        told.hear(4, source(), vec![held("a")], 3 * HOUR);
        told.forget(4, 4 * HOUR);
        told.hear(5, source(), vec![held("a")], 4 * HOUR + minute / 2);
        assert!(
            told.read(4 * HOUR + minute / 2)
                .iter()
                .all(|reading| { reading.says.as_ref().is_ok_and(|all| all[0].since == 3 * HOUR) })
        );
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
        let reading = &told.read(2 * HOUR)[0];
        assert_eq!((reading.at, reading.says.as_ref().map(|all| all[0].since)), (2 * HOUR, Ok(HOUR)));
        assert!(told.hear(1, String::new(), Vec::new(), 2 * HOUR + second), "the film is over");
        told.forget(1, 2 * HOUR + second);
        assert!(told.read(2 * HOUR).is_empty());
    }
}
