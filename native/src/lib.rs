//! What Windows and macOS tell only to code that is `unsafe`, behind functions that are not. **Not yet tested**: it is compiled.
//!
//! Owns every `unsafe` block of the workspace: each is one call of a documented interface, or two, and decides nothing. On other
//! systems there is nothing here.
//!
//! - `windows`: input of a session, clocks, power, precedence, a pipe for the people of a machine, and services.
//! - `macos`: input of the machine, and power.

#[cfg(target_os = "macos")]
pub mod macos;
#[cfg(windows)]
pub mod windows;
