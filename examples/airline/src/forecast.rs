//! Demand to come: additive (classical) pickup with exponential smoothing.
//!
//! Method: L'Heureux (1986), "A new twist in forecasting short-term passenger pickup", AGIFORS Symposium 26; in
//! the comparison of Weatherford and Kimes (2003), "A comparison of forecasting methods for hotel revenue
//! management", International Journal of Forecasting 19(3), pickup and exponential smoothing were among the most
//! robust. The pickup of a past departure at a point is what it still booked from there to departure; the
//! forecast is the smoothed pickup of comparable departures, with the season taken out of theirs and put into
//! ours. (The system that inspired this job used a proprietary neural network, which nobody outside can repeat.)
//!
//! Confidence is a standard deviation of the demand itself plus that of the estimate. Six departures are too few
//! for a variance at each of 110 places, so one dispersion c per class is pooled over the points: the variance of
//! a pickup of mean m is m + c m², that of a gamma-Poisson (negative binomial) variable.
//!
//! The modelled history is of unconstrained demand, so there is no unconstraining step here; with real bookings
//! there would have to be one (Weatherford and Pölt, 2002).

use crate::history::PastDeparture;
use crate::records::{ByClass, CLASSES, PERIODS};

/// Weight of a departure against the one before it: recent enough to follow a trend, old enough to average.
const SMOOTHING: f64 = 0.2;
/// A class's own dispersion counts half, that of all classes together the other half.
const OWN_DISPERSION: f64 = 0.5;
/// Keeps the gamma shape at 1 or more; a larger dispersion from six departures is noise.
const MAX_DISPERSION: f64 = 0.9;

/// Demand to come, by class, at the opening of bookings (index 0) and at the 11 data-collection points (1..=11).
#[derive(Debug, Clone)]
pub struct Forecast {
    pub mean: ByClass<f64, PERIODS>,
    pub variance: ByClass<f64, PERIODS>,
    /// c of `variance = mean + c mean²`, the uncertainty of the estimate included.
    pub dispersion: [f64; CLASSES],
}

/// Forecasts a flight whose season multiplies demand by `season_factor`.
pub fn forecast<'a>(
    departures: impl ExactSizeIterator<Item = PastDeparture<'a>> + Clone,
    season_factor: f64,
) -> Forecast {
    let mut mean = ByClass::<f64, PERIODS>::default();
    let mut square = ByClass::<f64, PERIODS>::default();
    let mut squared_weights = 0.0;
    for (departure, weight) in departures.clone().zip(weights(departures.len())) {
        squared_weights += weight * weight;
        let deseasoned = 1.0 / departure.season_factor();
        for class in 0..CLASSES {
            let on_hand = departure.on_hand(class);
            for period in 0..PERIODS {
                let booked = if period == 0 { 0 } else { on_hand[period - 1] };
                let pickup = f64::from(on_hand[PERIODS - 1].saturating_sub(booked)) * deseasoned;
                mean[class][period] += weight * pickup;
                square[class][period] += weight * pickup * pickup;
            }
        }
    }
    let dispersion = dispersions(&mean, &square, squared_weights);
    project(mean, dispersion, squared_weights, season_factor)
}

/// Exponentially falling weights, oldest departure first, that sum to one.
fn weights(departures: usize) -> impl Iterator<Item = f64> {
    let weight = move |age: usize| (0..age).fold(1.0, |weight, _| weight * (1.0 - SMOOTHING));
    let total: f64 = (0..departures).map(weight).sum();
    (0..departures).rev().map(move |age| weight(age) / total)
}

/// The method of moments, pooled over the points: what the variance has beyond a Poisson one, against m².
fn dispersions(mean: &ByClass<f64, PERIODS>, square: &ByClass<f64, PERIODS>, squared_weights: f64) -> [f64; CLASSES] {
    let unbiased = 1.0 / (1.0 - squared_weights).max(0.1);
    let excess_and_square: [(f64, f64); CLASSES] = std::array::from_fn(|class| {
        let points = mean[class].iter().zip(&square[class]);
        points.fold((0.0, 0.0), |(excess, squares), (m, s)| (excess + (s - m * m) * unbiased - m, squares + m * m))
    });
    let ratio = |(excess, squares): (f64, f64)| {
        if squares > 0.0 { (excess / squares).clamp(0.0, MAX_DISPERSION) } else { 0.0 }
    };
    let pooled = ratio(excess_and_square.iter().fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1)));
    excess_and_square.map(|own| OWN_DISPERSION * ratio(own) + (1.0 - OWN_DISPERSION) * pooled)
}

/// Puts the season in, and the uncertainty of the estimated mean on top of that of the demand.
fn project(
    mut mean: ByClass<f64, PERIODS>,
    mut dispersion: [f64; CLASSES],
    squared_weights: f64,
    season_factor: f64,
) -> Forecast {
    let mut variance = ByClass::<f64, PERIODS>::default();
    for class in 0..CLASSES {
        let c = dispersion[class];
        for (mean, variance) in mean[class].iter_mut().zip(&mut variance[class]) {
            let of_estimate = squared_weights * (*mean + c * *mean * *mean) * season_factor * season_factor;
            *mean *= season_factor;
            *variance = *mean + c * *mean * *mean + of_estimate;
        }
        let (whole, spread) = (mean[class][0], variance[class][0]);
        if whole > 0.0 {
            dispersion[class] = ((spread - whole) / (whole * whole)).clamp(0.0, 1.0);
        }
    }
    Forecast { mean, variance, dispersion }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{RECORD, departures};
    use crate::model;
    use proptest::prelude::*;

    #[test]
    fn identical_departures_are_forecast_exactly() {
        let mut record = [0u8; RECORD];
        record[0] = 100;
        record[1..=PERIODS].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        let bytes = record.repeat(4);
        let forecast = forecast(departures(&bytes), 1.5);
        let expected: Vec<f64> = (1..=12).rev().map(|to_come| 1.5 * f64::from(to_come)).collect();
        for (got, expected) in forecast.mean[0].iter().zip(expected) {
            assert!((got - expected).abs() < 1e-9);
        }
        assert_eq!(forecast.mean[1], [0.0; PERIODS]);
    }

    #[test]
    fn the_weights_sum_to_one_and_favour_the_recent() {
        let weights: Vec<f64> = weights(6).collect();
        assert!((weights.iter().sum::<f64>() - 1.0).abs() < 1e-12 && weights.is_sorted());
    }

    proptest! {
        #[test]
        fn demand_and_deviation_shrink_towards_departure(key: u64, seats in 2u16..450, factor in 0.5f64..2.0) {
            let bytes = model::booking_history(&model::Market { key, seats, local_share: 0.0 }, 2013);
            let forecast = forecast(departures(&bytes), factor);
            for class in 0..CLASSES {
                let falling = |row: &[f64; PERIODS]| row.windows(2).all(|pair| pair[0] >= pair[1] && pair[1] >= 0.0);
                prop_assert!(falling(&forecast.mean[class]) && falling(&forecast.variance[class]));
                prop_assert!((0.0..=1.0).contains(&forecast.dispersion[class]));
            }
        }
    }
}
