//! The legs and segments of one flight, with the demand to come and the fare of each segment and class.
//!
//! A flight of one leg has one segment. A flight of several legs sells every pair of stops, and its legs share
//! nothing but through passengers; that is why it stays whole in one problem.

use crate::forecast::Forecast;
use crate::records::{CLASSES, FareBandRow, FlightRow, MAX_LEGS, MAX_SEGMENTS, PERIODS, band_of};
use anyhow::{Context, ensure};

/// The legs that a segment crosses, first and last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    pub first: usize,
    pub last: usize,
}

impl Segment {
    pub fn crosses(self, leg: usize) -> bool {
        (self.first..=self.last).contains(&leg)
    }
}

/// Demand to come for one class of one segment.
#[derive(Debug, Clone, Copy, Default)]
pub struct Demand {
    pub mean: f64,
    pub variance: f64,
}

#[derive(Debug, Clone)]
pub struct Itinerary {
    pub legs: usize,
    pub segments: Vec<Segment>,
    /// Share of the flight's demand, by segment; sums to one.
    pub share: Vec<f64>,
    pub fare: Vec<[f64; CLASSES]>,
    /// Bookings to authorise on each leg, which are the same: one aircraft flies them all.
    pub authorised: u16,
    pub to_come: Vec<[[Demand; CLASSES]; PERIODS]>,
}

impl Itinerary {
    pub fn new(
        flight: &FlightRow,
        fares: &[FareBandRow],
        forecast: &Forecast,
        authorised: u16,
    ) -> anyhow::Result<Self> {
        let legs = flight.leg_miles.len();
        ensure!((1..=MAX_LEGS).contains(&legs), "a flight has one to {MAX_LEGS} legs, not {legs}");
        let segments: Vec<Segment> =
            (0..legs).flat_map(|first| (first..legs).map(move |last| Segment { first, last })).collect();
        let total: f64 = flight.segment_share.iter().sum();
        ensure!(
            flight.segment_share.len() == segments.len() && total > 0.0,
            "{} segment shares for {} segments",
            flight.segment_share.len(),
            segments.len()
        );
        let share: Vec<f64> = flight.segment_share.iter().map(|share| share / total).collect();
        let fare = segments.iter().map(|&segment| segment_fares(flight, fares, segment)).collect::<Result<_, _>>()?;
        let to_come = share.iter().map(|&share| split(forecast, share)).collect();
        Ok(Self { legs, segments, share, fare, authorised, to_come })
    }

    /// The segments that cross a leg.
    pub fn crossing(&self, leg: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.segments.len()).filter(move |&segment| self.segments[segment].crosses(leg))
    }
}

/// A segment of its own mileage pays its own band's fares; the through segment is priced by the flight's
/// distance, so that it costs less than its legs together.
fn segment_fares(flight: &FlightRow, fares: &[FareBandRow], segment: Segment) -> anyhow::Result<[f64; CLASSES]> {
    let legs = flight.leg_miles.len();
    let miles = if segment.first == 0 && segment.last + 1 == legs {
        flight.miles
    } else {
        flight.leg_miles[segment.first..=segment.last].iter().sum()
    };
    let band = band_of(miles);
    let row =
        fares.iter().find(|row| row.band == band).with_context(|| format!("no fares for distance band {band}"))?;
    Ok(std::array::from_fn(|class| row.fare_fixed[class] + row.fare_per_mile[class] * f64::from(miles)))
}

/// A share of a gamma-Poisson demand: the Poisson part is thinned, the common part scales.
fn split(forecast: &Forecast, share: f64) -> [[Demand; CLASSES]; PERIODS] {
    std::array::from_fn(|period| {
        std::array::from_fn(|class| {
            let (mean, variance) = (forecast.mean[class][period], forecast.variance[class][period]);
            let common = (variance - mean).max(0.0);
            Demand { mean: share * mean, variance: share * mean + share * share * common }
        })
    })
}

const _: () = assert!(MAX_SEGMENTS == 3, "the segments of two legs are (0,0), (0,1) and (1,1)");
