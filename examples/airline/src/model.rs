//! What the data does not have: fares, booking curves, no-shows and stops. All of it is modelled, from a seed.
//!
//! Every number is drawn from xoshiro256++ seeded by (seed, what it is about), so it depends neither on how many
//! flights are imported nor on the number of threads. Nothing here claims to be an airline's real figure.

use crate::dataset::Departure;
use crate::history::RECORD;
use crate::random::{Random, mix};
use crate::records::{BANDS, CLASSES, DAYS_BEFORE, PERIODS, POINTS};
use std::sync::LazyLock;

/// Comparable past departures kept for each market.
pub const PAST_DEPARTURES: usize = 6;
/// Days before departure when bookings open.
const OPENING: f64 = 330.0;
/// Demand of a departure, before its season, as a share of its seats.
const DEMAND_PER_SEAT: (f64, f64) = (0.80, 1.25);
/// Dispersion of demand between departures: variance = mean + c mean².
const DISPERSION: (f64, f64) = (0.02, 0.12);
/// Flights at least this long may be modelled with a stop.
const STOP_MILES: u16 = 1500;

/// Codes of the ten classes, dearest first.
pub const CLASS_CODES: [&str; CLASSES] = ["Y", "B", "M", "H", "Q", "K", "L", "V", "T", "X"];
/// Fare of each class as a share of the full fare.
const FARE_FACTOR: [f64; CLASSES] = [1.0, 0.84, 0.71, 0.61, 0.53, 0.46, 0.39, 0.33, 0.27, 0.21];
/// Share of demand of each class.
const DEMAND_SHARE: [f64; CLASSES] = [0.04, 0.05, 0.07, 0.09, 0.11, 0.13, 0.14, 0.14, 0.13, 0.10];
/// No-show rate of each class: the more flexible the ticket, the higher.
const NO_SHOW_RATE: [f64; CLASSES] = [0.14, 0.12, 0.10, 0.09, 0.08, 0.07, 0.06, 0.05, 0.04, 0.04];
/// How many bookings the class's no-show rate is worth against those of the market.
pub const NO_SHOW_WEIGHT: f64 = 40.0;
/// Steepness of the booking curve: the dear classes book late.
const STEEPNESS: [f64; CLASSES] = [14.0, 11.0, 8.6, 6.7, 5.2, 4.1, 3.2, 2.5, 2.0, 1.6];
/// Dollars of the full fare at no distance, and per mile, by distance band.
const FULL_FARE: [(f64, f64); BANDS] = [(110.0, 0.42), (140.0, 0.36), (170.0, 0.33), (230.0, 0.30)];

/// A class in a distance band.
#[derive(Debug, Clone, Copy)]
pub struct FareClass {
    pub band: usize,
    pub class: usize,
    pub fare_fixed: f64,
    pub fare_per_mile: f64,
    pub demand_share: f64,
    pub no_show_rate: f64,
}

pub fn fare_classes() -> impl Iterator<Item = FareClass> {
    let classes = (0..BANDS).flat_map(|band| (0..CLASSES).map(move |class| (band, class)));
    classes.map(|(band, class)| FareClass {
        band,
        class,
        fare_fixed: FULL_FARE[band].0 * FARE_FACTOR[class],
        fare_per_mile: FULL_FARE[band].1 * FARE_FACTOR[class],
        demand_share: DEMAND_SHARE[class],
        no_show_rate: NO_SHOW_RATE[class],
    })
}

/// A stop that a flight is modelled with, and what that makes of its legs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stop {
    pub hub: &'static str,
    pub leg_miles: [u16; 2],
    /// Shares of demand of the first leg, of the whole way, and of the second leg.
    pub share: [f64; 3],
}

/// The stop of a flight, if it is modelled with one: every fourth flight number (by hash) of at least 1,500
/// miles, through the carrier's hub. The real flights are non-stop; the data has no others.
pub fn stop(departure: &Departure) -> Option<Stop> {
    let key = departure.carrier.number() << 16 | u64::from(departure.number);
    if departure.miles < STOP_MILES || !mix(key).is_multiple_of(4) {
        return None;
    }
    let own = match departure.carrier.as_str() {
        "AA" => "DFW",
        "DL" => "MSP",
        "F9" => "DEN",
        "US" => "PHX",
        _ => "ORD",
    };
    let hub = if own == departure.destination.as_str() { "STL" } else { own };
    let mut random = Random::new(key, 0);
    let first = random.between(0.35, 0.55);
    let through = random.between(0.4, 0.6);
    // A stop makes the way some 4 % longer than the great circle.
    let detour = 1.04 * f64::from(departure.miles);
    Some(Stop {
        hub,
        leg_miles: [(detour * first) as u16, (detour * (1.0 - first)) as u16],
        share: [(1.0 - through) / 2.0, through, (1.0 - through) / 2.0],
    })
}

/// Flights that share a booking history: one flight number of one carrier on one route.
#[derive(Debug, Clone, Copy)]
pub struct Market {
    /// Names the market in the model's random streams.
    pub key: u64,
    pub seats: u16,
    /// Demand that flies only one of two legs; none for a flight without a stop.
    pub local_share: f64,
}

pub fn market_key(departure: &Departure) -> u64 {
    let route = departure.origin.number() << 24 | departure.destination.number();
    mix(route) ^ mix(departure.carrier.number() << 16 | u64::from(departure.number))
}

/// Bookings of the market's past departures, written as in [`crate::history`].
pub fn booking_history(market: &Market, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed, market.key);
    // A local passenger of a flight with a stop leaves the other leg free for another one.
    let seats = f64::from(market.seats) / (1.0 - market.local_share / 2.0);
    let demand = seats * random.between(DEMAND_PER_SEAT.0, DEMAND_PER_SEAT.1);
    let dispersion = random.between(DISPERSION.0, DISPERSION.1);
    let no_show_level = random.between(0.7, 1.3);
    let mut bytes = Vec::with_capacity(PAST_DEPARTURES * RECORD);
    for _ in 0..PAST_DEPARTURES {
        let season_percent = random.between(85.0, 125.0) as u8;
        bytes.push(season_percent);
        let mut no_shows = [0; CLASSES];
        for class in 0..CLASSES {
            let level = random.gamma_of_mean_one(1.0 / dispersion);
            let mean = demand * DEMAND_SHARE[class] * level * f64::from(season_percent) / 100.0;
            let mut on_hand = 0u32;
            for share in CURVE_STEPS[class] {
                on_hand = (on_hand + random.poisson(mean * share)).min(255);
                bytes.push(on_hand as u8);
            }
            let rate = NO_SHOW_RATE[class] * no_show_level;
            no_shows[class] = (0..on_hand).map(|_| u8::from(random.uniform() < rate)).sum();
        }
        bytes.extend(no_shows);
    }
    bytes
}

static CURVE_STEPS: LazyLock<[[f64; PERIODS]; CLASSES]> = LazyLock::new(curve_steps);

/// Share of a class's demand that books in each period: the booking curve is ((opening − days) / opening)^a.
fn curve_steps() -> [[f64; PERIODS]; CLASSES] {
    STEEPNESS.map(|steepness| {
        let booked_by = |period: usize| {
            let days = if period < POINTS { f64::from(DAYS_BEFORE[period]) } else { 0.0 };
            libm::pow((OPENING - days) / OPENING, steepness)
        };
        std::array::from_fn(|period| booked_by(period) - if period == 0 { 0.0 } else { booked_by(period - 1) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_depends_on_its_market_and_seed_only() {
        let market = Market { key: 5, seats: 150, local_share: 0.0 };
        assert_eq!(booking_history(&market, 1), booking_history(&market, 1));
        assert_ne!(booking_history(&market, 1), booking_history(&market, 2));
        assert_eq!(booking_history(&market, 1).len(), PAST_DEPARTURES * RECORD);
    }

    #[test]
    fn the_curve_ends_complete_and_demand_shares_sum_to_one() {
        for steps in curve_steps() {
            assert!((steps.iter().sum::<f64>() - 1.0).abs() < 1e-12 && steps.iter().all(|&step| step > 0.0));
        }
        assert!((DEMAND_SHARE.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    }
}
