//! The helper in a person's session, in an agent that was built without the feature `desktop`: it says so.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::missing::DESKTOP;

/// Wrong usage, as everywhere.
const WRONG_USAGE: u8 = 2;

pub fn run(_sockets: &[PathBuf], is_autostart: bool) -> ExitCode {
    if is_autostart {
        return ExitCode::SUCCESS;
    }
    eprintln!("{DESKTOP}");
    ExitCode::from(WRONG_USAGE)
}
