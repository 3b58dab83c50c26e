//! An agent as a service of the system: put there, looked at and taken away again.
//!
//! Owns what is where, and that nothing is half there. On Linux, with systemd: an agent that cannot join is not installed, and what a
//! failed installation has made it takes away. It never changes a file that a person may have written.
//!
//! - Linux, with the feature `service`: `install`, `uninstall` and `status`. `system`: places, the user, systemd.
//! - `elsewhere`: the same commands on Windows (`windows`) and macOS (`macos`), thin and not yet tested.

#[cfg(not(target_os = "linux"))]
pub mod elsewhere;
#[cfg(all(target_os = "linux", feature = "service"))]
pub mod install;
#[cfg(target_os = "macos")]
mod macos;
#[cfg(all(target_os = "linux", feature = "service"))]
pub mod status;
#[cfg(all(target_os = "linux", feature = "service"))]
pub mod system;
#[cfg(all(target_os = "linux", feature = "service"))]
pub mod uninstall;
#[cfg(windows)]
pub mod windows;
