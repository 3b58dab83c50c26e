//! Integration tests of the CLI, of REST, of the documentation and of `deploy/`, in one binary.

// Shared by the tests.
#[allow(dead_code, reason = "tests of the statements use the rest")]
#[path = "../../../sql/tests/it/bouncer.rs"]
mod bouncer;
mod helps;
#[path = "../../../bench/src/left_out.rs"]
mod left_out;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../../sql/tests/it/network.rs"]
mod network;
mod real;
mod script;
mod swift;

// The CLI: alone, against a scripted server, on a farm.
mod database;
mod farm;
mod modules;
mod no_server;
mod schedules;
mod types;
mod up;
mod with_server;

// REST.
mod originals_s3;
mod rest;
mod rest_settings;
mod routes;
mod uploads;

// Documentation, deployment and the nightly run.
#[cfg(target_os = "linux")]
mod controllers;
mod deploy;
mod docs;
mod nightly;
