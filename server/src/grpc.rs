//! The gRPC edge: nothing behind it knows about messages of the wire's services.

pub mod access;
pub mod agent;
pub mod alerts;
pub mod farm;
pub mod files;
pub mod health;
pub mod jobs;
pub mod join;
pub mod queue;
pub mod schedules;
pub mod serve;
pub mod status_code;
pub mod workstations;

use prost_types::Timestamp;
use std::time::SystemTime;
use tonic::Status;
use tonic::metadata::MetadataValue;

/// A status that says that somebody else has changed what was to be changed.
pub(crate) const LOST_UPDATE: &str = "pcfarm-lost-update";
/// In the metadata of a status: what was sent came too slowly.
pub(crate) const TOO_SLOW: &str = "pcfarm-too-slow";
/// The field of the request that a status is about.
pub(crate) const FIELD: &str = "pcfarm-field";

/// What came, came too slowly.
pub(crate) fn too_slow(message: &str) -> Status {
    let mut status = Status::deadline_exceeded(message);
    status.metadata_mut().insert(TOO_SLOW, MetadataValue::from_static("true"));
    status
}

pub(crate) fn about_field(field: &'static str, message: String) -> Status {
    let mut status = Status::invalid_argument(format!("{field}: {message}"));
    status.metadata_mut().insert(FIELD, MetadataValue::from_static(field));
    status
}

/// Years that PostgreSQL, everybody's calendar and a `SystemTime` know: 1970 to 9999.
const SECONDS_LIMIT: i64 = 253_402_300_800;

/// None: a time that the database cannot store.
pub(crate) fn time(stamp: Timestamp) -> Option<SystemTime> {
    (0..SECONDS_LIMIT).contains(&stamp.seconds).then(|| SystemTime::try_from(stamp).ok())?
}
