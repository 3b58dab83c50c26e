//! No-shows: the rate expected of each class, and how far to overbook because of them.
//!
//! The rate is a beta-binomial posterior mean: the prior of the class (a rate, worth as many bookings as its
//! weight) meets the no-shows of comparable departures. A class with few bookings keeps the prior; the method is
//! usual shrinkage of the historical-rate models that Lawrence, Hong and Cherrier (2003), "Passenger-based
//! predictive modeling of airline no-show rates", take as their base line.
//!
//! Overbooking follows the static binomial model with a type-1 service level (Talluri and van Ryzin, 2004,
//! section 4.2.1) in its normal approximation.

use crate::history::PastDeparture;
use crate::records::CLASSES;

/// Standard normal quantile of the wanted 95 % of departures without a denied boarding.
const SERVICE_QUANTILE: f64 = 1.644_853_626_951_472_2;

/// The expected no-show rate of each class.
pub fn rates<'a>(
    departures: impl Iterator<Item = PastDeparture<'a>>,
    prior_rate: &[f64; CLASSES],
    prior_weight: f64,
) -> [f64; CLASSES] {
    let mut booked = [0u32; CLASSES];
    let mut missing = [0u32; CLASSES];
    for departure in departures {
        for class in 0..CLASSES {
            booked[class] += u32::from(departure.final_bookings(class));
            missing[class] += u32::from(departure.no_shows(class));
        }
    }
    std::array::from_fn(|class| {
        let posterior = prior_rate[class] * prior_weight + f64::from(missing[class]);
        posterior / (prior_weight + f64::from(booked[class])).max(f64::MIN_POSITIVE)
    })
}

/// The most bookings to authorise on `seats` seats when each shows up with probability `show_rate`: the largest
/// number whose show-ups stay within the seats on 95 % of departures.
pub fn authorised(seats: u16, show_rate: f64) -> u16 {
    // n·q + z·sqrt(n·q·(1−q)) = seats + ½ is a quadratic in sqrt(n).
    let room = f64::from(seats) + 0.5;
    let spread = SERVICE_QUANTILE * (show_rate * (1.0 - show_rate)).sqrt();
    let root = (-spread + (spread * spread + 4.0 * show_rate * room).sqrt()) / (2.0 * show_rate);
    ((root * root) as u16).max(seats)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{RECORD, departures};
    use crate::records::PERIODS;

    #[test]
    fn few_bookings_keep_the_prior_and_many_leave_it() {
        let mut record = vec![0u8; RECORD];
        record[PERIODS] = 200;
        record[1 + CLASSES * PERIODS] = 40;
        let rates = rates(departures(&record), &[0.1; CLASSES], 20.0);
        assert!((rates[0] - 42.0 / 220.0).abs() < 1e-12);
        assert_eq!(rates[1], 0.1);
    }

    #[test]
    fn overbooking_is_moderate() {
        assert_eq!(authorised(150, 1.0), 150);
        let authorised_at = authorised(150, 0.9);
        assert!((155..167).contains(&authorised_at), "{authorised_at}");
        assert!(authorised(2, 0.9) >= 2);
    }
}
