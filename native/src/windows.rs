//! Windows: a module for each of its parts.

mod clock;
mod input;
mod load;
pub mod pipe;
mod power;
mod precedence;
pub mod service;

pub use clock::{awake, since_start};
pub use input::{idle, leave_own_console, own_session, program_fills_screen};
pub use load::busy_time;
pub use power::is_on_battery;
pub use precedence::{fall_behind, give_precedence};

use std::io;

use windows_sys::core::BOOL;

/// What a call says that answers whether it has done it.
fn done(answer: BOOL) -> io::Result<()> {
    if answer == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
