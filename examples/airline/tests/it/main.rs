//! Integration tests of the airline example, in one binary.

mod database;
mod plan;
