//! The one place that sends SQL: the schema's migrations, and every statement behind a typed function.
//!
//! - where the database is and how to reach it: [`settings`], [`tls`], [`connect`], [`pool`], [`cluster`]
//! - its schema: [`migrate`]
//! - handing out: [`lanes`], [`job_types`]; accepting and closing: [`checkout`]
//! - who works: [`presence`]; what administrators do with many workstations: [`fleet`]; what runs now and then: [`upkeep`]
//! - what people are told: [`alerts`]; what is to be done when: [`schedules`]
//! - who may come: [`access`]; whether the database's clock is right: [`clock`]
//! - what must hold at every moment: [`checks`]

pub mod access;
pub mod alerts;
pub mod checkout;
pub mod checks;
pub mod clock;
pub mod events;
pub mod farm;
pub mod files;
pub mod fleet;
pub mod job_types;
pub mod jobs;
pub mod json;
pub mod lanes;
pub mod migrate;
pub mod presence;
pub mod schedules;
pub mod statistics;
pub mod submissions;
pub mod submit;
pub mod upkeep;
pub mod usage;

pub mod settings;
pub mod sharing;

pub mod connect;
pub mod tls;

pub mod pool;
pub mod profiles;
pub mod requests;

#[cfg(unix)]
pub mod cluster;

#[cfg(all(unix, any(test, feature = "testing")))]
pub mod testing;
