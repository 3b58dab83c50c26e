//! Integration tests of agents, in one binary: each agent runs against a server that its test scripts.

// Shared by the tests.
mod farm;
#[path = "../../../bench/src/left_out.rs"]
mod left_out;

mod runtime;
mod steps;

// Controllers that run programs and modules.
#[cfg(target_os = "linux")]
mod exec;
#[cfg(feature = "wasm")]
mod wasm;

// Agents on workstations that people use.
#[cfg(target_os = "linux")]
mod guest;
