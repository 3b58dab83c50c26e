//! The server: hands out convoys, accepts results, recycles, answers people. PostgreSQL is the truth; a server can be
//! killed at any moment and another one, or the next one, goes on.
//!
//! - what it is told: [`settings`]; how it starts and stops: [`run`]; how many files it may open: [`descriptors`]
//! - what it was built without: [`missing`]
//! - what its parts share: [`farm`], [`session`]
//! - handing out: [`dispatch`], [`reads`]; taking back: [`deliver`]; what the database takes: [`problem`]
//! - who comes and goes: [`registrar`]; watching over who is there: [`watch`]; ending jobs and recycling: [`upkeep`]; waking those
//!   that sleep: `waking`
//! - what is measured: [`instruments`]; what became of a submission: [`traces`]; what the service manager is told: [`watchdog`]
//! - whether the database's clock is right: [`clock`]
//! - what is stored before it is loaded: [`originals`], and where: [`s3`]; files by their hashes: [`files`]
//! - telling people what they asked to be told: [`alerts`]; others by HTTP: [`outward`]; what is to be done when: [`schedules`]
//! - who may do what: [`access`]; certificates: [`authority`], [`init`]; who connects: [`accept`]; the edges: [`grpc`], and
//!   [`rest`] over it

pub mod accept;
pub mod access;
pub mod alerts;
pub mod authority;
pub mod clock;
pub mod deliver;
pub mod descriptors;
pub mod dispatch;
pub mod farm;
pub mod files;
pub mod grpc;
pub mod init;
pub mod instruments;
pub mod members;
pub mod missing;
pub mod originals;
pub mod outgoing;
mod outward;
pub mod problem;
pub mod reads;
pub mod registrar;
pub mod rest;
pub mod run;
#[cfg(feature = "object-store")]
pub mod s3;
#[cfg(not(feature = "object-store"))]
#[path = "s3/missing.rs"]
pub mod s3;
pub mod schedules;
pub mod session;
pub mod settings;
#[cfg(feature = "traces")]
pub mod traces;
#[cfg(not(feature = "traces"))]
#[path = "traces/missing.rs"]
pub mod traces;
pub mod upkeep;
mod waking;
pub mod watch;
pub mod watchdog;
