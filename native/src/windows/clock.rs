//! Two clocks: one that runs on while the machine sleeps, and one that does not.

use std::time::Duration;

use windows_sys::Win32::System::SystemInformation::GetTickCount64;
use windows_sys::Win32::System::WindowsProgramming::QueryUnbiasedInterruptTime;

/// Of the machine, sleep included; in steps of about 16 ms.
#[allow(unsafe_code)]
pub fn since_start() -> Duration {
    // SAFETY: it takes nothing.
    Duration::from_millis(unsafe { GetTickCount64() })
}

/// The same without the time that it slept.
#[allow(unsafe_code)]
pub fn awake() -> Duration {
    let mut hundreds_of_nanoseconds = 0;
    // SAFETY: a place for its answer, which it fills; it fails only without one.
    unsafe { QueryUnbiasedInterruptTime(&mut hundreds_of_nanoseconds) };
    Duration::from_nanos(hundreds_of_nanoseconds.saturating_mul(100))
}
