//! The gRPC edge: nothing behind it knows about messages of the wire's services.

pub mod accept;
pub mod agent;
pub mod alerts;
pub mod farm;
pub mod health;
pub mod jobs;
pub mod queue;
pub mod schedules;
pub mod serve;
pub mod status_code;
pub mod workstations;

use prost_types::Timestamp;
use std::time::SystemTime;

/// Years that PostgreSQL, everybody's calendar and a `SystemTime` know: 1970 to 9999.
const SECONDS_LIMIT: i64 = 253_402_300_800;

/// None: a time that the database cannot store.
pub(crate) fn time(stamp: Timestamp) -> Option<SystemTime> {
    (0..SECONDS_LIMIT).contains(&stamp.seconds).then(|| SystemTime::try_from(stamp).ok())?
}
