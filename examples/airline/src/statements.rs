//! The SQL of the airline night, as a job type of PC Farm is given it.

/// Name and text of each related read, the names that [`crate::records`] and the agent know them by.
pub const RELATED: [(&str, &str); 5] = [
    (FLIGHT, include_str!("../sql/related_flight.sql")),
    (AIRCRAFT_TYPE, include_str!("../sql/related_aircraft_type.sql")),
    (FARE_CLASS, include_str!("../sql/related_fare_class.sql")),
    (BOOKING_HISTORY, include_str!("../sql/related_booking_history.sql")),
    (SEASON, include_str!("../sql/related_season.sql")),
];

pub const FLIGHT: &str = "flight";
pub const AIRCRAFT_TYPE: &str = "aircraft_type";
pub const FARE_CLASS: &str = "fare_class";
pub const BOOKING_HISTORY: &str = "booking_history";
pub const SEASON: &str = "season";

/// Schema `airline`; safe to run again.
pub const SCHEMA: &str = include_str!("../sql/schema.sql");
/// The rows of `airline.season`.
pub const SEASONS: &str = include_str!("../sql/season.sql");

/// Load queries of a night called `night`: by leg, by segment, and by leg with a group key. They show what to
/// write; another run's name goes where `night` is.
pub const LOAD: &str = include_str!("../sql/load.sql");
pub const LOAD_BY_SEGMENT: &str = include_str!("../sql/load_by_segment.sql");
pub const LOAD_GROUPED: &str = include_str!("../sql/load_grouped.sql");

/// Takes keys and results of one acceptance.
pub const WRITE_BACK: &str = include_str!("../sql/write_back.sql");

/// Faults of a run; must return no rows.
pub const CHECK_FORECASTS: &str = include_str!("../sql/check_forecasts.sql");
/// Flights that two runs plan differently; must return no rows.
pub const CHECK_EQUAL: &str = include_str!("../sql/check_equal.sql");
