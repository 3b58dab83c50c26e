//! A clock that runs on while the machine sleeps, so that a laptop that slept knows it.

use std::time::Duration;

/// The time since some moment before this program's start.
pub fn now() -> Duration {
    #[cfg(target_os = "linux")]
    return of_kernel(rustix::time::ClockId::Boottime);
    // That of macOS runs on.
    #[cfg(target_os = "macos")]
    return of_kernel(rustix::time::ClockId::Monotonic);
    #[cfg(windows)]
    return pcfarm_native::windows::since_start();
}

/// The same without the time that the machine slept. The two are from different moments on, and only their difference's growth tells
/// anything.
pub fn awake() -> Duration {
    #[cfg(target_os = "linux")]
    return of_kernel(rustix::time::ClockId::Monotonic);
    // By CLOCK_UPTIME_RAW, which stands still.
    #[cfg(target_os = "macos")]
    {
        static START: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
        START.elapsed()
    }
    #[cfg(windows)]
    return pcfarm_native::windows::awake();
}

#[cfg(unix)]
fn of_kernel(clock: rustix::time::ClockId) -> Duration {
    let time = rustix::time::clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).expect("the time since boot is positive");
    let nanoseconds = u32::try_from(time.tv_nsec).expect("nanoseconds are less than a second");
    Duration::new(seconds, nanoseconds)
}
