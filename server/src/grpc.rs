//! The gRPC edge: nothing behind it knows about messages of the wire's services.

pub mod accept;
pub mod agent;
pub mod farm;
pub mod jobs;
pub mod serve;
pub mod status_code;
pub mod workstations;
