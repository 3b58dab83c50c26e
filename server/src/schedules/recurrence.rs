//! When something recurs: a pure function of a text, a time zone and a time. Knows no clock and no schedule.
//!
//! - **Cron**, 5 fields or 6 with seconds first, or a nickname. One fixed time of day that a clock's change skips comes when
//!   the skipped hour ends, and one that the change repeats comes once, the first time. Anything that comes more often than
//!   once a day goes by what the wall clock shows: nothing in the skipped hour, twice in the repeated one.
//! - **Every** so many seconds, minutes or hours: elapsed time, which no change of a clock touches. Every so many days or
//!   weeks: the same wall clock time each; a skipped one comes as much later as the clock was put forward, a repeated one
//!   the first time.
//! - **Once**, at a time of the zone's wall clock, by the same rule, or at an instant.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Span, Timestamp, ToSpan};
use std::fmt;

/// Ten years.
const LONGEST_DAYS: i64 = 3660;

/// A cron expression that comes no more before then never comes.
const HORIZON_YEARS: i64 = 50;

/// A gap that is longer is searched behind; no zone has had two such days in fifty years.
const LEAP: SignedDuration = SignedDuration::from_hours(2);
const LEAPS: usize = 4;

/// Text that is no recurrence, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    #[error("{0:?} is no time zone: write a name of the IANA database, such as Europe/Berlin, or UTC")]
    Zone(String),
    #[error(
        "{text:?} is no cron expression: {why}. It has 5 fields (minute, hour, day of month, month, day of week), or 6 with \
         seconds first, or is one of @yearly, @monthly, @weekly, @daily and @hourly"
    )]
    Cron { text: String, why: String },
    #[error("{0:?} is no interval: write 'every 90 seconds', 'every 15m', 'every 1h30m', 'every 2 weeks'")]
    Interval(String),
    #[error("{0:?}: let an interval be of seconds, minutes and hours, or of days and weeks: those go by the calendar")]
    MixedInterval(String),
    #[error("{0:?}: an interval is from 1 second to 10 years")]
    IntervalRange(String),
    #[error("{0:?} is no time: write 'once 2027-01-31T18:00', by the zone's clocks, or 'once 2027-01-31T18:00:00Z'")]
    Once(String),
}

#[derive(Clone, Debug)]
enum Kind {
    Cron(Box<Cron>),
    Elapsed(SignedDuration),
    Days(i64),
    Once(Timestamp),
}

/// A recurrence in its zone.
#[derive(Clone, Debug)]
pub struct Recurrence {
    kind: Kind,
    zone: TimeZone,
}

/// A recurrence between two times, and where its intervals count from.
#[derive(Clone, Debug)]
pub struct Series {
    pub recurrence: Recurrence,
    /// No due time is before; the first due time of an interval.
    pub starts_at: Option<Timestamp>,
    /// Without a start the first due time of an interval is one interval after this, and no due time is before.
    pub anchored_at: Timestamp,
    /// No due time is after.
    pub ends_at: Option<Timestamp>,
}

impl Recurrence {
    pub fn parse(text: &str, zone: &str) -> Result<Recurrence, Wrong> {
        let zone = TimeZone::get(zone).map_err(|_| Wrong::Zone(zone.to_owned()))?;
        let text = text.trim();
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let kind = match word.to_ascii_lowercase().as_str() {
            "every" | "@every" => interval(rest.trim())?,
            "once" | "at" => Kind::Once(instant(rest.trim(), &zone)?),
            _ => Kind::Cron(Box::new(cron(text)?)),
        };
        Ok(Recurrence { kind, zone })
    }

    pub fn zone(&self) -> &TimeZone {
        &self.zone
    }

    pub fn is_once(&self) -> bool {
        matches!(self.kind, Kind::Once(_))
    }
}

fn cron(text: &str) -> Result<Cron, Wrong> {
    let wrong = |why: String| Wrong::Cron { text: text.to_owned(), why };
    let fields = text.split_whitespace().count();
    if !text.starts_with('@') && !(5..=6).contains(&fields) {
        return Err(wrong(format!("it has {fields} field{}", if fields == 1 { "" } else { "s" })));
    }
    // The parser takes no number for an item, and a field of none is looked for in every second of a year.
    if let Some(field) = text.split_whitespace().find(|field| field.split(',').any(str::is_empty)) {
        return Err(wrong(format!("{field:?} has a comma with nothing before or behind it")));
    }
    let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
    parser.parse(text).map_err(|error| wrong(error.to_string().trim_end_matches('.').to_owned()))
}

/// Numbers, each with its unit.
fn interval(text: &str) -> Result<Kind, Wrong> {
    let not_one = || Wrong::Interval(text.to_owned());
    let (mut seconds, mut days) = (0_i64, 0_i64);
    let (mut timed, mut dated) = (false, false);
    let mut rest = text;
    // "every minute" is "every 1 minute".
    let implied = !rest.starts_with(|c: char| c.is_ascii_digit());
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number: i64 = if implied { 1 } else { rest[..digits].parse().map_err(|_| not_one())? };
        rest = rest[digits..].trim_start();
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let unit = match rest[..letters].to_ascii_lowercase().as_str() {
            "s" | "sec" | "secs" | "second" | "seconds" => Ok(1),
            "m" | "min" | "mins" | "minute" | "minutes" => Ok(60),
            "h" | "hour" | "hours" => Ok(3600),
            "d" | "day" | "days" => Err(1),
            "w" | "week" | "weeks" => Err(7),
            _ => return Err(not_one()),
        };
        match unit {
            Ok(unit) => {
                timed = true;
                seconds = number.checked_mul(unit).and_then(|more| seconds.checked_add(more)).ok_or_else(not_one)?;
            }
            Err(unit) => {
                dated = true;
                days = number.checked_mul(unit).and_then(|more| days.checked_add(more)).ok_or_else(not_one)?;
            }
        }
        rest = rest[letters..].trim_start();
        if implied && !rest.is_empty() {
            return Err(not_one());
        }
    }
    match (timed, dated) {
        (true, true) => Err(Wrong::MixedInterval(text.to_owned())),
        (false, false) => Err(not_one()),
        (true, false) if (1..=LONGEST_DAYS * 86_400).contains(&seconds) => {
            Ok(Kind::Elapsed(SignedDuration::from_secs(seconds)))
        }
        (false, true) if (1..=LONGEST_DAYS).contains(&days) => Ok(Kind::Days(days)),
        _ => Err(Wrong::IntervalRange(text.to_owned())),
    }
}

fn instant(text: &str, zone: &TimeZone) -> Result<Timestamp, Wrong> {
    if let Ok(instant) = text.parse::<Timestamp>() {
        return Ok(instant);
    }
    let civil: DateTime = text.parse().map_err(|_| Wrong::Once(text.to_owned()))?;
    // A skipped time later, a repeated one the first time.
    zone.to_ambiguous_zoned(civil).compatible().map(|zoned| zoned.timestamp()).map_err(|_| Wrong::Once(text.to_owned()))
}

impl Series {
    /// The first due time after this one.
    pub fn after(&self, time: Timestamp) -> Option<Timestamp> {
        // Nothing is due before the start; a due time at the very start counts.
        let start = self.starts_at.map(|start| start.saturating_sub(SignedDuration::from_nanos(1)).unwrap_or(start));
        let from = start.map_or(time, |start| start.max(time));
        let next = match &self.recurrence.kind {
            Kind::Cron(cron) => cron_after(cron, from, &self.recurrence.zone),
            Kind::Elapsed(every) => self.elapsed_after(*every, from),
            Kind::Days(days) => self.day_after(*days, from),
            Kind::Once(instant) => (*instant > from).then_some(*instant),
        };
        next.filter(|next| self.ends_at.is_none_or(|end| *next <= end))
    }

    /// The next ones.
    pub fn times(&self, after: Timestamp, count: usize) -> Vec<Timestamp> {
        std::iter::successors(self.after(after), |due| self.after(*due)).take(count).collect()
    }

    /// The first of all.
    pub fn first(&self) -> Option<Timestamp> {
        self.after(self.anchored_at)
    }

    /// The last due time that is not later than `now`, from a known one on: found from behind, so that it does not matter how
    /// long nobody looked.
    pub fn latest(&self, known: Timestamp, now: Timestamp) -> Timestamp {
        let mut window = SignedDuration::from_secs(1);
        while now.duration_since(known) > window {
            if let Ok(from) = now.checked_sub(window)
                && let Some(found) = self.after(from).filter(|found| *found <= now)
            {
                return self.last_from(found, now);
            }
            window = window.saturating_mul(2);
        }
        self.last_from(known, now)
    }

    fn last_from(&self, mut known: Timestamp, now: Timestamp) -> Timestamp {
        while let Some(next) = self.after(known).filter(|next| *next <= now) {
            known = next;
        }
        known
    }

    fn elapsed_after(&self, every: SignedDuration, from: Timestamp) -> Option<Timestamp> {
        let first = match self.starts_at {
            Some(start) => start,
            None => self.anchored_at.checked_add(every).ok()?,
        };
        let passed = from.duration_since(first);
        if passed.is_negative() {
            return Some(first);
        }
        let times = passed.as_nanos() / every.as_nanos() + 1;
        let times = i64::try_from(times).ok()?;
        let seconds = every.as_secs().checked_mul(times)?;
        first.checked_add(SignedDuration::from_secs(seconds)).ok()
    }

    fn day_after(&self, days: i64, from: Timestamp) -> Option<Timestamp> {
        let zone = &self.recurrence.zone;
        let (anchor, skipped) = match self.starts_at {
            Some(start) => (start, 0),
            None => (self.anchored_at, 1),
        };
        let civil = zone.to_datetime(anchor);
        // One too few, whatever the clocks have done in between.
        let passed = from.duration_since(anchor).as_secs().max(0) / (days * 86_400);
        let mut times = (passed - 1).max(skipped);
        loop {
            let span: Span = times.checked_mul(days).and_then(|days| Span::new().try_days(days).ok())?;
            let due = zone.to_ambiguous_zoned(civil.checked_add(span).ok()?).compatible().ok()?.timestamp();
            if due > from {
                return Some(due);
            }
            times += 1;
        }
    }
}

/// What croner finds, kept strictly after `from`. It does not look further than two hours for the end of a gap: where a
/// zone has left out a day, the search goes on behind that.
fn cron_after(cron: &Cron, from: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    let horizon = from.to_zoned(TimeZone::UTC).checked_add(HORIZON_YEARS.years()).ok()?.timestamp();
    let (mut start, mut inclusive) = (from, false);
    for _ in 0..LEAPS {
        match cron.find_next_occurrence(&start.to_zoned(zone.clone()), inclusive) {
            Ok(found) if found.timestamp() > from => {
                return Some(found.timestamp()).filter(|found| *found <= horizon);
            }
            Ok(_) => (start, inclusive) = (start.checked_add(SignedDuration::from_secs(1)).ok()?, false),
            Err(_) => (start, inclusive) = (behind_a_leap(start, horizon, zone)?, true),
        }
    }
    None
}

/// The next time at which clocks are put forward by more than croner bridges.
fn behind_a_leap(start: Timestamp, horizon: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    let mut offset = zone.to_offset(start);
    for change in zone.following(start).take_while(|change| change.timestamp() <= horizon) {
        if change.offset().duration_since(offset) > LEAP {
            return Some(change.timestamp());
        }
        offset = change.offset();
    }
    None
}

impl fmt::Display for Recurrence {
    /// For people: what it comes to.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Cron(cron) => write!(f, "{}", cron.describe().trim_end_matches('.')),
            Kind::Elapsed(every) => write!(f, "every {every:#}"),
            Kind::Days(1) => write!(f, "every day"),
            Kind::Days(days) => write!(f, "every {days} days"),
            Kind::Once(instant) => write!(f, "once at {instant}"),
        }
    }
}

#[cfg(test)]
mod tests;
