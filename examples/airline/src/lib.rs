//! The airline night: revenue management for every departure of a year, as a user of PC Farm would write it.
//!
//! - [`records`]: what goes into a flight's problem and what comes out
//! - [`controller`]: plans one flight, from
//!   [`history`], [`forecast`], [`no_show`], [`itinerary`], [`emsr`], [`inventory`] and [`simulation`]
//! - [`random`], [`normal`]: numbers that are the same on every machine
//! - [`dataset`], [`seats`], [`model`], [`import`]: real, imputed and modelled data into PostgreSQL
//! - [`statements`]: the SQL files, as PC Farm is given them
//! - [`agent`]: the controller behind the SDK's trait
//! - [`direct`]: the same night without PC Farm, to compare with
//! - [`night`]: the main job as a demonstration, on a farm of its own

pub mod records;

pub mod controller;
pub mod emsr;
pub mod forecast;
pub mod history;
pub mod inventory;
pub mod itinerary;
pub mod no_show;
pub mod simulation;

pub mod normal;
pub mod random;

pub mod dataset;
pub mod import;
pub mod model;
pub mod seats;

pub mod agent;
pub mod direct;
pub mod night;
pub mod statements;
