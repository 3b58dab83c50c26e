//! An agent as a service of the system: put there, looked at and taken away again.
//!
//! Owns what is where, and that nothing is half there. On Linux, with systemd: an agent that cannot join is not installed, and what a
//! failed installation has made it takes away. It never changes a file that a person may have written.
//!
//! - Linux: [`install`], [`uninstall`] and [`status`]. [`system`]: places, the user, systemd.
//! - `elsewhere`: the same commands on Windows (`windows`) and macOS (`macos`), thin and not yet tested.

#[cfg(not(target_os = "linux"))]
pub mod elsewhere;
#[cfg(target_os = "linux")]
pub mod install;
#[cfg(target_os = "macos")]
mod macos;
#[cfg(target_os = "linux")]
pub mod status;
#[cfg(target_os = "linux")]
pub mod system;
#[cfg(target_os = "linux")]
pub mod uninstall;
#[cfg(windows)]
pub mod windows;
