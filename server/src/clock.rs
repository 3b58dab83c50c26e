//! The database's clock: found out when it is wrong, and put right what it has written meanwhile.
//!
//! - what a look at it means, and when it is proven again: [`verdict`], which is pure
//! - looking, every few seconds: [`watch`]
//! - differences of time zone rules and collations, at start: [`data`]

pub mod data;
pub mod verdict;
pub mod watch;
