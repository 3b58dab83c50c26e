//! A clock that runs on while the machine sleeps, so that a laptop that slept knows it.

use std::time::Duration;

/// The time since some moment before this program's start.
pub fn now() -> Duration {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(time.tv_sec).expect("the time since boot is positive");
        let nanoseconds = u32::try_from(time.tv_nsec).expect("nanoseconds are less than a second");
        Duration::new(seconds, nanoseconds)
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    {
        static START: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
        START.elapsed()
    }
}

/// The same without the time that the machine slept.
pub fn awake() -> Duration {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let seconds = u64::try_from(time.tv_sec).expect("the time since boot is positive");
        let nanoseconds = u32::try_from(time.tv_nsec).expect("nanoseconds are less than a second");
        Duration::new(seconds, nanoseconds)
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    now()
}
