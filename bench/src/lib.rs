//! The fault harness: real servers, agents and recyclers over a real PostgreSQL, and what must be true whatever
//! happens to them. Nothing here is part of a farm.
//!
//! - [`farm`]: a database and programs around it, for one test; [`program`]: one process that can be killed, frozen
//!   and started again
//! - [`puzzle`]: the problems that tests load, what `fault-agent` makes of them, and the same computed directly
//! - [`truth`]: what must be true of the database at any time, and when jobs have ended
//! - [`nemesis`]: faults at random moments, from a seed

pub mod farm;
pub mod nemesis;
pub mod program;
pub mod puzzle;
pub mod truth;
