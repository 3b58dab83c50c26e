//! The booking history of a market as bytes: how a past departure is written and read.
//!
//! `airline.booking_history.bookings` holds one record per comparable past departure, oldest first, one byte a
//! number: the season factor of that departure in percent, then for each class the bookings on hand at each of
//! the 11 data-collection points and at departure, then the no-shows of each class. Bytes because a night reads
//! this once per flight: as arrays of numbers in JSON it would be most of what the farm carries.

use crate::records::{CLASSES, PERIODS};
use anyhow::{Context, bail};

/// Bytes of one past departure.
pub const RECORD: usize = 1 + CLASSES * PERIODS + CLASSES;

/// One past departure.
#[derive(Debug, Clone, Copy)]
pub struct PastDeparture<'a>(&'a [u8]);

impl<'a> PastDeparture<'a> {
    /// Demand of its season against an ordinary week.
    pub fn season_factor(self) -> f64 {
        f64::from(self.0[0].max(1)) / 100.0
    }

    /// Bookings on hand of a class at the 11 points and, last, at departure.
    pub fn on_hand(self, class: usize) -> &'a [u8] {
        &self.0[1 + class * PERIODS..][..PERIODS]
    }

    pub fn final_bookings(self, class: usize) -> u8 {
        self.on_hand(class)[PERIODS - 1]
    }

    pub fn no_shows(self, class: usize) -> u8 {
        self.0[1 + CLASSES * PERIODS + class]
    }
}

/// The past departures in `bytes`, oldest first.
pub fn departures(bytes: &[u8]) -> impl ExactSizeIterator<Item = PastDeparture<'_>> + Clone {
    bytes.chunks_exact(RECORD).map(PastDeparture)
}

/// Reads the hexadecimal text that the related read delivers.
pub fn decode(hexadecimal: &str) -> anyhow::Result<Vec<u8>> {
    let digits = hexadecimal.as_bytes();
    if digits.is_empty() || !digits.len().is_multiple_of(2 * RECORD) {
        bail!("booking history of {} digits is not a number of departures of {}", digits.len(), 2 * RECORD);
    }
    digits
        .chunks_exact(2)
        .map(|pair| Some(value(pair[0])? << 4 | value(pair[1])?))
        .collect::<Option<Vec<u8>>>()
        .context("booking history is not hexadecimal")
}

fn value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_was_written() {
        let bytes: Vec<u8> = (0..2 * RECORD).map(|i| i as u8).collect();
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(decode(&text).expect("it was written well"), bytes);
        let second = departures(&bytes).nth(1).expect("there are two");
        assert_eq!(second.on_hand(0)[0], bytes[RECORD + 1]);
        assert_eq!(second.no_shows(CLASSES - 1), bytes[2 * RECORD - 1]);
    }

    #[test]
    fn refuses_what_is_no_history() {
        assert!(decode("").is_err());
        assert!(decode("00").is_err());
        assert!(decode(&"zz".repeat(RECORD)).is_err());
    }
}
