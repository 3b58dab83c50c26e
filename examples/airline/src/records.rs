//! What goes into a flight's problem and what comes out: the payload, the rows of the five related reads, and
//! the result. The names are those of the SQL files beside `src`.

use serde::{Deserialize, Serialize};

/// Booking classes, in falling order of fare.
pub const CLASSES: usize = 10;
/// Data-collection points before departure. 10 classes × 11 points are 110 forecasts a flight, which matches the
/// published ratio of 11 million forecasts for 100,000 flights.
pub const POINTS: usize = 11;
/// Days before departure of each data-collection point.
pub const DAYS_BEFORE: [u16; POINTS] = [120, 90, 60, 45, 30, 21, 14, 10, 7, 3, 1];
/// Booking periods: from the opening to the first point, between the points, and from the last to departure.
pub const PERIODS: usize = POINTS + 1;
/// Bands of distance that have fares of their own.
pub const BANDS: usize = 4;
/// Legs that a flight can be modelled with.
pub const MAX_LEGS: usize = 2;
/// Segments (pairs of boarding and landing) of a flight with that many legs.
pub const MAX_SEGMENTS: usize = MAX_LEGS * (MAX_LEGS + 1) / 2;

/// One number per class, for each of some moments of the booking horizon.
pub type ByClass<T, const N: usize> = [[T; N]; CLASSES];

/// How inventory is controlled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    Leg,
    Segment,
}

/// What is loaded as a problem; its key is the flight's id.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Payload {
    /// The night this belongs to: results of different runs stand side by side.
    pub run: String,
    pub variant: Variant,
}

/// A row of `related_flight.sql`.
#[derive(Debug, Clone, Deserialize)]
pub struct FlightRow {
    pub miles: u16,
    /// Modelled miles of each leg; one leg for a flight that is modelled as it flew.
    pub leg_miles: Vec<u16>,
    /// Modelled share of the demand of each segment: (0,0), (0,1), (1,1) for two legs.
    pub segment_share: Vec<f64>,
}

/// A row of `related_aircraft_type.sql`.
#[derive(Debug, Clone, Deserialize)]
pub struct AircraftTypeRow {
    pub seats: u16,
    /// By which rule the seats were imputed; nothing when the registry had them.
    pub imputed_by: Option<String>,
}

/// A row of `related_fare_class.sql`: all classes of a distance band. These rows serve every flight.
#[derive(Debug, Clone, Deserialize)]
pub struct FareBandRow {
    pub band: usize,
    pub fare_fixed: [f64; CLASSES],
    pub fare_per_mile: [f64; CLASSES],
    pub no_show_rate: [f64; CLASSES],
    pub no_show_weight: f64,
}

/// A row of `related_booking_history.sql`: comparable past departures, oldest first (see [`crate::history`]).
#[derive(Debug, Clone, Deserialize)]
pub struct BookingHistoryRow {
    pub bookings: String,
}

/// A row of `related_season.sql`: a season or event that the flight falls in.
#[derive(Debug, Clone, Deserialize)]
pub struct SeasonRow {
    pub demand_factor: f64,
}

/// Everything the controller is given for one flight.
#[derive(Debug, Clone, Copy)]
pub struct FlightInput<'a> {
    pub flight_id: i64,
    pub payload: &'a Payload,
    pub flight: &'a FlightRow,
    pub aircraft_type: &'a AircraftTypeRow,
    pub fares: &'a [FareBandRow],
    pub history: &'a BookingHistoryRow,
    pub seasons: &'a [SeasonRow],
}

/// The distance band of a number of miles.
pub fn band_of(miles: u16) -> usize {
    [500, 1000, 1700].iter().filter(|&&limit| miles >= limit).count()
}

/// The result as it is stored: arrays are PostgreSQL array literals in a JSON string, because casting one such
/// text is several times cheaper for the database than taking a JSON array apart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlightResult {
    pub run: String,
    pub variant: Variant,
    pub seats: u16,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub seats_imputed_by: Option<String>,
    pub authorised: u16,
    /// Demand to come, class by class, at each point.
    pub demand: String,
    pub deviation: String,
    pub no_show: String,
    /// Leg by leg.
    pub protection: String,
    /// Segment by segment, class by class, at the opening of bookings.
    pub booking_limit: String,
    pub revenue: f64,
    pub standard_error: f64,
}

/// Writes numbers as an array literal, rounded to hundredths.
pub fn array_of_hundredths<'a>(numbers: impl Iterator<Item = &'a f64>) -> String {
    literal(numbers, |text, number| {
        let hundredths = (number * 100.0).round() as i64;
        push_integer(text, hundredths / 100);
        match hundredths % 100 {
            0 => {}
            rest if rest % 10 == 0 => text.extend(['.', digit(rest / 10)]),
            rest => text.extend(['.', digit(rest / 10), digit(rest % 10)]),
        }
    })
}

/// Writes whole numbers as an array literal.
pub fn array_of_integers<'a>(numbers: impl Iterator<Item = &'a i32>) -> String {
    literal(numbers, |text, &number| push_integer(text, i64::from(number)))
}

fn literal<T>(numbers: impl Iterator<Item = T>, push: impl Fn(&mut String, T)) -> String {
    let mut text = String::with_capacity(8 + 6 * numbers.size_hint().1.unwrap_or(CLASSES * POINTS));
    text.push('{');
    for number in numbers {
        if text.len() > 1 {
            text.push(',');
        }
        push(&mut text, number);
    }
    text.push('}');
    text
}

// By hand because `format!` of 230 numbers would cost more than their forecast. Negative numbers do not occur.
fn push_integer(text: &mut String, number: i64) {
    if number >= 10 {
        push_integer(text, number / 10);
    }
    text.push(digit(number % 10));
}

fn digit(value: i64) -> char {
    char::from(b'0' + value.clamp(0, 9) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals() {
        assert_eq!(array_of_hundredths([0.0, 1.5, 12.345, 0.05, 199.999].iter()), "{0,1.5,12.35,0.05,200}");
        assert_eq!(array_of_integers([0, 7, 1234].iter()), "{0,7,1234}");
        assert_eq!(array_of_integers([].iter()), "{}");
    }

    #[test]
    fn bands() {
        assert_eq!([17, 499, 500, 999, 1000, 1700, 4983].map(band_of), [0, 0, 1, 1, 2, 3, 3]);
    }
}
