//! Noise of input devices: axes that move by themselves. Pure.
//!
//! Owns the rule, which docs/workstations.md states: **a device is noise after six quiet windows in a row.** A window takes ten
//! seconds. It is quiet if every axis stayed within a tiny range, without a key, a button or a wheel. Windows without events do
//! not count. The tiny range is a few millimetres of a desk for a relative axis, and a sixteenth of its range for an absolute
//! one. A drifting stick and a jittering mouse keep to it for ever; a hand leaves it within moments. Movements of such a device
//! do not count, until an axis leaves the tiny range or a button is pressed: then a person has it, and the rule begins anew.

use std::collections::BTreeMap;
use std::time::Duration;

use super::signals::Moment;

const WINDOW: Duration = Duration::from_secs(10);
const WINDOWS: u32 = 6;

/// In counts of the device.
const TINY_MOVEMENT: i64 = 40;

/// Part of an absolute axis's range, and the tiny range of an axis that does not tell its own.
const TINY_PART: i64 = 16;
const TINY_VALUES: i64 = 16;

/// More axes than a device has: further ones count as activity.
const AXES_LIMIT: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Axis {
    /// Its events are movements.
    Relative(u16),
    /// Its events are positions.
    Absolute(u16),
}

/// Range of an absolute axis that still is noise, by the least and the greatest value that the device names.
pub fn tiny(range: Option<(i32, i32)>) -> i64 {
    let span = range.map_or(0, |(least, greatest)| i64::from(greatest) - i64::from(least));
    if span > 0 { (span / TINY_PART).max(1) } else { TINY_VALUES }
}

/// Movements of one device.
#[derive(Clone, Debug, Default)]
pub struct Noise {
    axes: BTreeMap<Axis, Span>,
    /// Begin of the window.
    window: Option<Moment>,
    /// Windows in a row that stayed within the tiny range.
    tiny_windows: u32,
}

/// Positions of an axis in the window.
#[derive(Clone, Copy, Debug)]
struct Span {
    at: i64,
    least: i64,
    greatest: i64,
}

impl Span {
    fn here(at: i64) -> Span {
        Span { at, least: at, greatest: at }
    }

    fn goes_to(&mut self, at: i64) {
        *self = Span { at, least: self.least.min(at), greatest: self.greatest.max(at) };
    }
}

impl Noise {
    pub fn is_noise(&self) -> bool {
        self.tiny_windows >= WINDOWS
    }

    /// A key, a button or a wheel.
    pub fn is_used(&mut self) {
        (self.tiny_windows, self.window) = (0, None);
    }

    /// Returns true if a movement is noise. `tiny` is the result of [`tiny`] for an absolute axis; relative axes have their own
    /// range.
    pub fn moved(&mut self, axis: Axis, value: i32, tiny: i64, now: Moment) -> bool {
        self.begin_window(now);
        if !self.axes.contains_key(&axis) && self.axes.len() >= AXES_LIMIT {
            return false;
        }
        let value = i64::from(value);
        let span = self.axes.entry(axis).or_insert_with(|| match axis {
            Axis::Relative(_) => Span::here(0),
            Axis::Absolute(_) => Span::here(value),
        });
        let (at, tiny) = match axis {
            Axis::Relative(_) => (span.at.saturating_add(value), TINY_MOVEMENT),
            Axis::Absolute(_) => (value, tiny),
        };
        span.goes_to(at);
        if span.greatest.saturating_sub(span.least) > tiny {
            self.is_used();
            return false;
        }
        self.is_noise()
    }

    /// A window that is over has stayed within the tiny range, for otherwise it had been given up.
    fn begin_window(&mut self, now: Moment) {
        match self.window {
            Some(began) if now.saturating_sub(began) < WINDOW => return,
            Some(_) => self.tiny_windows = self.tiny_windows.saturating_add(1),
            None => {}
        }
        self.window = Some(now);
        for (axis, span) in &mut self.axes {
            *span = match axis {
                Axis::Relative(_) => Span::here(0),
                Axis::Absolute(_) => Span::here(span.at),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: Axis = Axis::Relative(0);
    const STICK: Axis = Axis::Absolute(1);

    /// Second, axis, value.
    type Events = Vec<(u64, Axis, i32)>;

    fn each_second(seconds: std::ops::Range<u64>, event: impl Fn(u64) -> (Axis, i32)) -> Events {
        seconds.map(|second| (second, event(second).0, event(second).1)).collect()
    }

    /// The first second in which a movement is noise, and whether the device is at the end.
    fn outcome(events: &Events, range: (i32, i32)) -> (Option<u64>, bool) {
        let mut noise = Noise::default();
        let at = |second| Duration::from_secs(1000 + second);
        let is_noise = |(second, axis, value): &(u64, Axis, i32)| {
            noise.moved(*axis, *value, tiny(Some(range)), at(*second)).then_some(*second)
        };
        let all: Vec<Option<u64>> = events.iter().map(is_noise).collect();
        (all.into_iter().flatten().next(), noise.is_noise())
    }

    #[test]
    fn a_device_whose_movements_stay_tiny_for_a_minute_is_noise() {
        let jitter = |second: u64| (X, if second.is_multiple_of(2) { 1 } else { -1 });
        let drift = |second: u64| (STICK, i32::try_from(second).expect("small"));
        let stick = (-32_768, 32_767);
        for (what, events, range, expected) in [
            ("a mouse that jitters", each_second(0..120, jitter), (0, 0), (Some(60), true)),
            ("for less than a minute", each_second(0..59, jitter), (0, 0), (None, false)),
            ("a stick that drifts", each_second(0..120, drift), stick, (Some(60), true)),
            ("a coarse stick that drifts", each_second(0..120, drift), (0, 255), (Some(60), true)),
            ("seldom", each_second(0..20, |n| (STICK, n as i32 % 3)), (0, 255), (None, false)),
            (
                "once in twenty seconds",
                (0..10).map(|n| (n * 20, STICK, 127 + n as i32 % 2)).collect(),
                (0, 255),
                (Some(120), true),
            ),
            ("a hand", each_second(0..120, |_| (X, 9)), (0, 0), (None, false)),
            ("a stick that is moved", each_second(0..120, |n| (STICK, (n as i32 % 4) * 60)), (0, 255), (None, false)),
            (
                "a hand on a mouse that jitters",
                [each_second(0..100, jitter), vec![(100, X, 41)]].concat(),
                (0, 0),
                (Some(60), false),
            ),
            (
                "a stick that jumps between windows",
                [each_second(0..100, |_| (STICK, 127)), vec![(115, STICK, 255)]].concat(),
                (0, 255),
                (Some(60), false),
            ),
        ] {
            assert_eq!(outcome(&events, range), expected, "{what}");
        }
    }

    #[test]
    fn a_button_makes_a_noisy_device_a_persons() {
        let mut noise = Noise::default();
        for second in 0..120 {
            noise.moved(X, 1 - 2 * (second % 2), 0, Duration::from_secs(second.unsigned_abs().into()));
        }
        assert!(noise.is_noise());
        noise.is_used();
        assert!(!noise.is_noise());
        assert!(!noise.moved(X, 1, 0, Duration::from_secs(121)), "it has a minute again");
    }

    #[test]
    fn the_tiny_range_of_an_axis_is_a_part_of_its_own() {
        let table = [
            (Some((0, 255)), 15),
            (Some((-32_768, 32_767)), 4095),
            (Some((0, 1)), 1),
            (Some((i32::MIN, i32::MAX)), 268_435_455),
        ];
        for (range, expected) in table {
            assert_eq!(tiny(range), expected);
        }
        for unknown in [None, Some((0, 0)), Some((5, 1))] {
            assert_eq!(tiny(unknown), TINY_VALUES);
        }
    }
}
