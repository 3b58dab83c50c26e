//! An agent as a service of the system, of systemd: put there, looked at and taken away again.
//!
//! Owns what is where, and that nothing is half there: an agent that cannot join is not installed, and what a failed
//! installation has made it takes away. It never changes a file that a person may have written.
//!
//! - [`install`], [`uninstall`] and [`status`]. [`system`]: places, the user, systemd.

pub mod install;
pub mod status;
pub mod system;
pub mod uninstall;
