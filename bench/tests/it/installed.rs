//! The agent as a service of the system: installed, looked at by its doctor, packaged, rolled out, upgraded and taken away,
//! below directories of a test's own, against real servers.
//!
//! Who is not root cannot give files to the service's user: those tests say that they are left out.

mod doctor;
mod package;
mod rollout;
mod service;
mod site;
