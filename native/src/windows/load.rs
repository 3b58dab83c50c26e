//! What all cores have done.

use std::io;
use std::time::Duration;

use windows_sys::Win32::Foundation::FILETIME;
use windows_sys::Win32::System::Threading::GetSystemTimes;

use super::done;

/// Of all cores together, since the machine's start.
#[allow(unsafe_code)]
pub fn busy_time() -> io::Result<Duration> {
    let (mut idle, mut kernel, mut user) = (FILETIME::default(), FILETIME::default(), FILETIME::default());
    // SAFETY: three places for the answers.
    done(unsafe { GetSystemTimes(&mut idle, &mut kernel, &mut user) })?;
    // The kernel's time is that of doing nothing, too.
    let hundreds_of_nanoseconds = (number(kernel) + number(user)).saturating_sub(number(idle));
    Ok(Duration::from_nanos(hundreds_of_nanoseconds.saturating_mul(100)))
}

fn number(time: FILETIME) -> u64 {
    u64::from(time.dwHighDateTime) << 32 | u64::from(time.dwLowDateTime)
}
