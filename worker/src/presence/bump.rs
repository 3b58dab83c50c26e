//! Telling a person from a bumped desk.
//!
//! Owns which movements count. A key, a button or a wheel always does. A pointer that moves a little and not again within a
//! second was a truck, a door or a knee.

use std::time::Duration;

use super::signals::Moment;

/// Events that come so close after the first are the same movement.
const ONE_MOVEMENT: Duration = Duration::from_millis(250);

/// A further movement within this time of the first is a repetition.
const REPEATED_WITHIN: Duration = Duration::from_secs(1);

/// In the device's counts, both axes added: a few millimetres of a desk. More was a hand.
const SMALL: u32 = 40;

/// What a device reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// A key, a button, a wheel, a finger: nothing that a desk can do.
    Deliberate,
    /// Of a pointer, by so many counts.
    Movement(u32),
}

/// The last movement, while it is in doubt.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filter {
    doubtful: Option<Doubtful>,
}

#[derive(Clone, Copy, Debug)]
struct Doubtful {
    began: Moment,
    counts: u32,
}

impl Filter {
    /// Whether it was a person.
    pub fn counts(&mut self, touch: Touch, now: Moment) -> bool {
        let counts = match touch {
            Touch::Deliberate => return self.counted(),
            Touch::Movement(counts) => counts,
        };
        let since = self.doubtful.map(|doubtful| now.saturating_sub(doubtful.began));
        match (self.doubtful, since) {
            (Some(doubtful), Some(since)) if since <= ONE_MOVEMENT => {
                let counts = doubtful.counts.saturating_add(counts);
                self.doubtful = Some(Doubtful { counts, ..doubtful });
                if counts > SMALL { self.counted() } else { false }
            }
            (Some(_), Some(since)) if since <= REPEATED_WITHIN => self.counted(),
            _ if counts > SMALL => self.counted(),
            _ => {
                self.doubtful = Some(Doubtful { began: now, counts });
                false
            }
        }
    }

    /// When the movement began that has not counted.
    pub fn bump(&self) -> Option<Moment> {
        self.doubtful.map(|doubtful| doubtful.began)
    }

    fn counted(&mut self) -> bool {
        self.doubtful = None;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::Touch::{Deliberate, Movement};
    use super::*;

    #[test]
    fn a_bumped_desk_is_no_person() {
        for (what, touches, expected) in [
            ("a key", &[(0, Deliberate)][..], Some(0)),
            ("a bump", &[(0, Movement(2)), (40, Movement(3)), (250, Movement(1))], None),
            ("a large movement", &[(0, Movement(30)), (100, Movement(11))], Some(100)),
            ("a leap", &[(0, Movement(41))], Some(0)),
            ("repeated within a second", &[(0, Movement(1)), (700, Movement(1))], Some(700)),
            ("going on", &[(0, Movement(1)), (200, Movement(1)), (300, Movement(1))], Some(300)),
            ("another bump later", &[(0, Movement(1)), (1001, Movement(1)), (3000, Movement(1))], None),
            ("a bump, and a key", &[(0, Movement(1)), (500, Deliberate)], Some(500)),
        ] {
            let mut filter = Filter::default();
            let at = |ms| Duration::from_secs(60) + Duration::from_millis(ms);
            let counted = touches.iter().find(|(ms, touch)| filter.counts(*touch, at(*ms))).map(|(ms, _)| *ms);
            assert_eq!(counted, expected, "{what}");
            assert_eq!(filter.bump().is_some(), expected.is_none(), "{what}");
        }
    }
}
