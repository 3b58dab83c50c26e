//! Seats of the flights whose registry entry is missing or cannot be right, and which rule supplied them.
//!
//! Rules, the first that has a donor: the median of the same carrier, flight number and route; of the same
//! carrier and route; of the same carrier in the same distance band; of all carriers in that band. Medians are
//! the lower ones, so that every imputed number is a seat count that flies. All flights of the data are donors,
//! whichever are imported, so a flight's seats do not depend on how many others are.

use crate::dataset::Departure;
use crate::records::band_of;
use std::collections::HashMap;
use std::hash::Hash;

/// Fewer seats than this are a registry error on a scheduled airline flight (2-seaters and the like, matched by
/// a reused tail number): they are neither believed nor donors.
pub const FEWEST_BELIEVED: u16 = 20;

/// Where a seat count comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    Registry,
    FlightNumberMedian,
    RouteMedian,
    CarrierBandMedian,
    BandMedian,
}

impl Source {
    /// The name of the rule in the database and in every output; none for a real number.
    pub fn rule(self) -> Option<&'static str> {
        match self {
            Self::Registry => None,
            Self::FlightNumberMedian => Some("median of flight number"),
            Self::RouteMedian => Some("median of carrier and route"),
            Self::CarrierBandMedian => Some("median of carrier and distance band"),
            Self::BandMedian => Some("median of distance band"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Seats {
    pub seats: u16,
    pub source: Source,
    /// What the registry said, believed or not.
    pub registry: Option<u16>,
}

/// The seats of every departure, in the same order.
pub fn impute(departures: &[Departure]) -> Vec<Seats> {
    let needs = |departure: &&Departure| believed(departure).is_none();
    let by_number = medians(departures, departures.iter().filter(needs).map(number_key), number_key);
    let by_route = medians(departures, departures.iter().filter(needs).map(route_key), route_key);
    let by_carrier = medians(departures, departures.iter().filter(needs).map(carrier_band_key), carrier_band_key);
    let by_band = medians(departures, departures.iter().filter(needs).map(band_key), band_key);
    let seats_of = |departure: &Departure| {
        let registry = departure.seats;
        let (seats, source) = believed(departure)
            .map(|seats| (seats, Source::Registry))
            .or_else(|| Some((*by_number.get(&number_key(departure))?, Source::FlightNumberMedian)))
            .or_else(|| Some((*by_route.get(&route_key(departure))?, Source::RouteMedian)))
            .or_else(|| Some((*by_carrier.get(&carrier_band_key(departure))?, Source::CarrierBandMedian)))
            .or_else(|| Some((*by_band.get(&band_key(departure))?, Source::BandMedian)))
            // Only a file without a single believable seat count gets here.
            .unwrap_or((FEWEST_BELIEVED, Source::BandMedian));
        Seats { seats, source, registry }
    };
    departures.iter().map(seats_of).collect()
}

fn believed(departure: &Departure) -> Option<u16> {
    departure.seats.filter(|&seats| seats >= FEWEST_BELIEVED)
}

fn number_key(departure: &Departure) -> (u64, u16, u64, u64) {
    let (carrier, origin, destination) = route_key(departure);
    (carrier, departure.number, origin, destination)
}

fn route_key(departure: &Departure) -> (u64, u64, u64) {
    (departure.carrier.number(), departure.origin.number(), departure.destination.number())
}

fn carrier_band_key(departure: &Departure) -> (u64, usize) {
    (departure.carrier.number(), band_of(departure.miles))
}

fn band_key(departure: &Departure) -> usize {
    band_of(departure.miles)
}

/// Medians of the groups that are wanted, and of no others.
fn medians<K: Hash + Eq>(
    departures: &[Departure],
    wanted: impl Iterator<Item = K>,
    key: impl Fn(&Departure) -> K,
) -> HashMap<K, u16> {
    let mut donors: HashMap<K, Vec<u16>> = wanted.map(|key| (key, Vec::new())).collect();
    for departure in departures {
        let Some(seats) = believed(departure) else {
            continue;
        };
        if let Some(donors) = donors.get_mut(&key(departure)) {
            donors.push(seats);
        }
    }
    let median = |mut seats: Vec<u16>| {
        let middle = seats.len().checked_sub(1)? / 2;
        Some(*seats.select_nth_unstable(middle).1)
    };
    donors.into_iter().filter_map(|(key, seats)| Some((key, median(seats)?))).collect()
}
