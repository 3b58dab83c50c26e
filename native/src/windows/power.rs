//! What the PC runs on.

use windows_sys::Win32::System::Power::{GetSystemPowerStatus, SYSTEM_POWER_STATUS};

use super::done;

const OFFLINE: u8 = 0;
const ONLINE: u8 = 1;
const NO_BATTERY: u8 = 128;

#[allow(unsafe_code)]
pub fn is_on_battery() -> Result<bool, String> {
    let mut status = SYSTEM_POWER_STATUS::default();
    // SAFETY: a structure that it fills.
    done(unsafe { GetSystemPowerStatus(&mut status) }).map_err(|error| error.to_string())?;
    match (status.ACLineStatus, status.BatteryFlag) {
        (ONLINE, _) | (_, NO_BATTERY) => Ok(false),
        (OFFLINE, _) => Ok(true),
        (line, battery) => Err(format!("the line is {line}, the battery {battery}")),
    }
}
