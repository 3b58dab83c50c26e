//! Gaps that the owner of a workstation probably did not intend.
//!
//! A range beyond midnight belongs to the day on which it begins. `mon-fri 18:00-07:00` with `sat,sun` therefore leaves out Monday
//! until 7:00, although every other night is covered. This module finds such gaps and suggests a window that closes them.

use std::fmt;

use super::{DAYS, Hours, LocalTime, MINUTES_OF_DAY, Window};

/// Last minute of a day.
const LAST: u16 = MINUTES_OF_DAY - 1;

/// Hours of one day beside a day that is wholly included, left out by an overnight window of which other nights are covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    weekday: usize,
    from: u16,
    to: u16,
}

impl fmt::Display for Gap {
    /// As a window that closes the gap.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clock = |minute: u16| format!("{}:{:02}", minute / 60, minute % 60);
        write!(f, "{} {}-{}", DAYS[self.weekday % 7], clock(self.from), clock(self.to))
    }
}

/// Gaps of these hours, in the order of the week.
pub fn gaps(hours: &Hours) -> Vec<Gap> {
    let mut gaps: Vec<Gap> = Vec::new();
    for window in hours.0.iter().filter(|window| window.is_overnight()) {
        for weekday in 0..7 {
            let found = [morning(hours, window, weekday), evening(hours, window, weekday)];
            for gap in found.into_iter().flatten() {
                if !gaps.contains(&gap) {
                    gaps.push(gap);
                }
            }
        }
    }
    gaps.sort_by_key(|gap| (gap.weekday, gap.from));
    gaps
}

/// A sentence about the gaps, for people; `None` without any.
pub fn warning(hours: &Hours) -> Option<String> {
    let gaps = gaps(hours);
    if gaps.is_empty() {
        return None;
    }
    let windows: Vec<String> = gaps.iter().map(|gap| format!("\"{gap}\"")).collect();
    let windows = windows.join(" and ");
    Some(format!(
        "hours leave out {windows} beside a whole day: a range beyond midnight belongs to the day on which it begins; add {windows} \
         unless that is intended"
    ))
}

/// The day before is included whole, this day's own night begins, and its morning is left out.
fn morning(hours: &Hours, window: &Window, weekday: usize) -> Option<Gap> {
    let is_left_out = window.days[weekday] && !includes(hours, weekday, 0) && is_whole(hours, (weekday + 6) % 7);
    let to = (1..window.to).find(|minute| includes(hours, weekday, *minute)).unwrap_or(window.to);
    is_left_out.then_some(Gap { weekday, from: 0, to })
}

/// The next day is included whole, the night before ended on this day, and this day's evening is left out.
fn evening(hours: &Hours, window: &Window, weekday: usize) -> Option<Gap> {
    let is_left_out =
        window.days[(weekday + 6) % 7] && !includes(hours, weekday, LAST - 1) && is_whole(hours, (weekday + 1) % 7);
    let from = (window.from..LAST).rev().find(|minute| includes(hours, weekday, *minute));
    is_left_out.then_some(Gap { weekday, from: from.map_or(window.from, |minute| minute + 1), to: MINUTES_OF_DAY })
}

/// Many owners write a whole day as `0:00-23:59`, which leaves out its last minute.
fn is_whole(hours: &Hours, weekday: usize) -> bool {
    (0..LAST).all(|minute| includes(hours, weekday, minute))
}

fn includes(hours: &Hours, weekday: usize, minute: u16) -> bool {
    hours.include(LocalTime { weekday, minute })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_beside_whole_days_are_named() {
        for (texts, expected) in [
            (&["mon-fri 18:00-07:00", "sat,sun"][..], &["mon 0:00-7:00"][..]),
            (&["mon-thu 18:00-07:00", "fri-sun"], &["mon 0:00-7:00"]),
            // An owner for whom a night belongs to the day on which it ends makes the same mistake.
            (&["sun-thu 18:00-07:00", "sat,sun"], &["fri 18:00-24:00"]),
            (&["mon,wed 20:00-06:00", "tue,thu"], &["wed 0:00-6:00"]),
            // A whole day up to its last minute.
            (&["mon-fri 18:00-07:00", "sat,sun 0:00-23:59"], &["mon 0:00-7:00"]),
            (&["sun-thu 18:00-07:00", "sat,sun 0:00-23:59"], &["fri 18:00-24:00"]),
            (&["sun-thu 18:00-07:00", "fri 18:00-23:59", "sat,sun 0:00-23:59"], &[]),
            (&["18:00-07:00", "sat,sun 0:00-23:59"], &[]),
            (&["mon-fri 18:00-07:00", "sat,sun 0:00-23:58"], &[]),
            // Part of the morning is included by another window.
            (&["mon-fri 18:00-07:00", "sat,sun", "mon 5:00-7:00"], &["mon 0:00-5:00"]),
            (&["18:00-07:00", "sat,sun"], &[]),
            (&["mon-fri 18:00-07:00", "sat,sun", "mon 0:00-07:00"], &[]),
            (&["sun-thu 18:00-07:00", "fri 18:00-24:00", "sat,sun"], &[]),
            // Without a whole day beside it, the end of the nights is the owner's choice.
            (&["mon-fri 18:00-07:00"], &[]),
            (&["mon-fri 18:00-07:00", "sat"], &[]),
            (&["mon-fri 18:00-07:00", "sat,sun 8:00-20:00"], &[]),
            (&["mon-fri 9:00-17:00", "sat,sun"], &[]),
            (&[], &[]),
        ] {
            let hours = Hours(texts.iter().map(|text| text.parse().expect("hours")).collect());
            let found: Vec<String> = gaps(&hours).iter().map(Gap::to_string).collect();
            assert_eq!(found, expected, "{texts:?}");
            assert_eq!(warning(&hours).is_some(), !expected.is_empty(), "{texts:?}");
        }
    }

    #[test]
    fn suggested_windows_close_the_gap() {
        let mut hours = Hours(["mon-fri 18:00-07:00", "sat,sun"].map(|text| text.parse().expect("hours")).into());
        let warning = warning(&hours).expect("Monday is left out");
        assert!(warning.starts_with("hours leave out \"mon 0:00-7:00\" beside a whole day"), "{warning}");
        let suggested = gaps(&hours)[0].to_string();
        hours.0.push(suggested.parse().expect("it is a window"));
        assert_eq!(gaps(&hours), []);
    }
}
