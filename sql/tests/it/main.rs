//! Integration tests of the statements on a real PostgreSQL, in one binary. Each test has a database of its own.
#![cfg(feature = "testing")]

// Shared by the tests.
mod bouncer;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../../bench/src/left_out.rs"]
mod left_out;
mod network;
mod queue;
mod version_1;

// Databases that others administer.
mod defaults;
mod impostor;
mod pooler;
mod rights;
mod tls;

// All statements, and the queries behind the API.
mod api;
mod growth;
mod jobs;
mod statements;

// Submitting and loading.
mod files;
mod loading;
mod submit;

// Handing out and accepting.
mod bringing;
mod ordering;
mod plainly;
mod requirements;
mod returning;
mod transitions;

// Limits and settings.
mod job_types;
mod profiles;
mod sharing;

// Workstations.
mod fleet;
mod presence;
mod waking;

// Background work.
mod alerts;
mod attendance;
mod clock;
mod history;
mod schedules;

// Concurrent sessions and random operations.
mod interleaved;
mod model;
mod together;
