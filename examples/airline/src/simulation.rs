//! What a plan is expected to earn: a Monte Carlo simulation of the bookings of one flight.
//!
//! Each run draws the demand of each class as a gamma-Poisson variable with the forecast's mean and variance, spreads
//! the requests over the booking periods and segments in proportion to the forecast, and sells period by period
//! under the controls of that period: an airline optimises again at every data-collection point. Inside a period
//! the cheaper classes come first, as Littlewood's rule assumes. At departure each booking shows up or not; who
//! finds no seat is paid off. The fare counts when booked and is not refunded.
//!
//! The seed is the flight's id: a result is the same, to the bit, on any workstation and any number of threads.

use crate::forecast::Forecast;
use crate::inventory::Controls;
use crate::itinerary::Itinerary;
use crate::random::{Alias, Random};
use crate::records::{CLASSES, MAX_LEGS, MAX_SEGMENTS, PERIODS};

/// Runs per flight: brings the standard error to about half a percent of revenue, and the flight to about a
/// millisecond of one core, the measure that the night's figures are given for.
pub const RUNS: u32 = 330;
/// A denied boarding costs this many times the flight's dearest fare (compensation and rebooking; modelled).
const DENIED_BOARDING: f64 = 1.5;
/// Keeps the simulation's stream apart from those of the modelled data.
const SEED: u64 = 0x51b0_0c1f_a7e5_0001;
/// Below this a class is taken as plain Poisson.
const LEAST_DISPERSION: f64 = 1e-6;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Simulated {
    pub mean_revenue: f64,
    pub standard_error: f64,
}

/// Everything that stays the same from run to run.
pub struct Simulation<'a> {
    pub itinerary: &'a Itinerary,
    pub forecast: &'a Forecast,
    pub controls: &'a [Controls],
    pub no_show: &'a [f64; CLASSES],
    pub seats: u16,
}

impl Simulation<'_> {
    pub fn run(&self, flight_id: i64, runs: u32) -> Simulated {
        let mut random = Random::new(SEED, flight_id as u64);
        let request_slots: Vec<Option<Alias>> = (0..CLASSES).map(|class| self.request_slots(class)).collect();
        // Welford's update: no catastrophic cancellation, and one pass.
        let (mut mean, mut squares) = (0.0, 0.0);
        for run in 1..=runs {
            let requests = self.requests(&request_slots, &mut random);
            let revenue = self.sell(&requests, &mut random);
            let delta = revenue - mean;
            mean += delta / f64::from(run);
            squares += delta * (revenue - mean);
        }
        let variance = squares / f64::from(runs.max(2) - 1);
        Simulated { mean_revenue: mean, standard_error: (variance / f64::from(runs.max(1))).sqrt() }
    }

    /// Where the requests of a class fall, as a distribution over period and segment.
    fn request_slots(&self, class: usize) -> Option<Alias> {
        let to_come = &self.forecast.mean[class];
        let mut weights = [0.0; PERIODS * MAX_SEGMENTS];
        for period in 0..PERIODS {
            let later = to_come.get(period + 1).copied().unwrap_or(0.0);
            for (segment, share) in self.itinerary.share.iter().enumerate() {
                weights[period * MAX_SEGMENTS + segment] = (to_come[period] - later).max(0.0) * share;
            }
        }
        Alias::new(&weights)
    }

    fn requests(&self, slots: &[Option<Alias>], random: &mut Random) -> Requests {
        let mut requests = [[0; PERIODS * MAX_SEGMENTS]; CLASSES];
        for (class, slots) in slots.iter().enumerate() {
            let Some(slots) = slots else { continue };
            let dispersion = self.forecast.dispersion[class];
            let level = if dispersion > LEAST_DISPERSION { random.gamma_of_mean_one(1.0 / dispersion) } else { 1.0 };
            for _ in 0..random.poisson(self.forecast.mean[class][0] * level) {
                requests[class][slots.draw(random)] += 1;
            }
        }
        requests
    }

    /// Sells one run's requests and returns what is left after denied boardings.
    fn sell(&self, requests: &Requests, random: &mut Random) -> f64 {
        let mut left = [i32::from(self.itinerary.authorised); MAX_LEGS];
        let mut sold = [[0u32; CLASSES]; MAX_SEGMENTS];
        for (period, controls) in self.controls.iter().enumerate() {
            for class in (0..CLASSES).rev() {
                for (segment, legs) in self.itinerary.segments.iter().enumerate() {
                    let wanted = i32::from(requests[class][period * MAX_SEGMENTS + segment]);
                    if wanted == 0 {
                        continue;
                    }
                    let accepted = controls.for_sale(self.itinerary, &left, segment, class).clamp(0, wanted);
                    left[legs.first..=legs.last].iter_mut().for_each(|left| *left -= accepted);
                    sold[segment][class] += accepted as u32;
                }
            }
        }
        self.fares(&sold) - self.compensation(&sold, random)
    }

    fn fares(&self, sold: &[[u32; CLASSES]; MAX_SEGMENTS]) -> f64 {
        let segments = self.itinerary.fare.iter().zip(sold);
        segments.flat_map(|(fares, sold)| fares.iter().zip(sold)).map(|(fare, &sold)| fare * f64::from(sold)).sum()
    }

    fn compensation(&self, sold: &[[u32; CLASSES]; MAX_SEGMENTS], random: &mut Random) -> f64 {
        let mut boarding = [0u32; MAX_LEGS];
        for (segment, legs) in self.itinerary.segments.iter().enumerate() {
            for (class, &rate) in self.no_show.iter().enumerate() {
                let threshold = (rate * f64::from(u32::MAX)) as u32;
                let sold = sold[segment][class];
                let missing: u32 = (0..sold).map(|_| u32::from((random.next_u64() as u32) < threshold)).sum();
                boarding[legs.first..=legs.last].iter_mut().for_each(|boarding| *boarding += sold - missing);
            }
        }
        let denied: u32 = boarding.iter().map(|boarding| boarding.saturating_sub(u32::from(self.seats))).sum();
        let dearest = self.itinerary.fare.iter().map(|fares| fares[0]).fold(0.0, f64::max);
        f64::from(denied) * DENIED_BOARDING * dearest
    }
}

/// Requests of one run by class, then by period and segment.
type Requests = [[u16; PERIODS * MAX_SEGMENTS]; CLASSES];
