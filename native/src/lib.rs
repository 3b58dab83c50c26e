//! System interfaces that need `unsafe` code, behind safe functions. The parts of Windows and macOS are **not yet tested**: they are
//! compiled.
//!
//! Owns every `unsafe` block of the workspace: each is one call of a documented interface, or two, and decides nothing.
//!
//! - `linux`: axes of input devices, and whether a program keeps a device for itself.
//! - `windows`: input of a session, clocks, power, precedence, a pipe for the people of a machine, and services.
//! - `macos`: input of the machine, and power.

#[cfg(target_os = "linux")]
pub mod linux;
#[cfg(target_os = "macos")]
pub mod macos;
#[cfg(windows)]
pub mod windows;
