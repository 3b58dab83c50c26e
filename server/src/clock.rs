//! Watches the database's clock, and repairs the times that a wrong clock wrote.
//!
//! - meaning of a look, and when the clock is proven again: [`verdict`], which is pure
//! - looks, every few seconds: [`watch`]
//! - repair of wrong times, after a step and every minute: [`repair`]
//! - differences of time zone rules and collations, at start: [`data`]

pub mod data;
mod repair;
pub mod verdict;
pub mod watch;
