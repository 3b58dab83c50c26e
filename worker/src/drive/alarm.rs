//! Alarm of the agent's loop: a long wait that costs one wake-up.
//!
//! tokio keeps timers in a wheel. A timer that is more than four seconds away wakes its thread up to twice before it is due, to move
//! to a finer wheel. An idle agent would wake three times as often for that, so on Linux the kernel keeps its long waits. The
//! kernel's clock runs on while the machine sleeps, so that an alarm in that time is due when the machine wakes.

use std::time::Duration;

/// Shorter waits are tokio's.
const LONG: Duration = Duration::from_secs(2);

#[derive(Default)]
pub struct Alarm {
    #[cfg(target_os = "linux")]
    kernel: Option<kernel::Timer>,
}

impl Alarm {
    /// Waits for so long, and sometimes for less.
    pub async fn after(&mut self, wait: Duration) {
        #[cfg(target_os = "linux")]
        if wait >= LONG
            && let Some(timer) = self.timer(wait)
        {
            return timer.rings().await;
        }
        #[cfg(not(target_os = "linux"))]
        let _ = LONG;
        tokio::time::sleep(wait).await;
    }

    /// None: the kernel has no more timers.
    #[cfg(target_os = "linux")]
    fn timer(&mut self, wait: Duration) -> Option<&kernel::Timer> {
        if self.kernel.is_none() {
            self.kernel = kernel::Timer::new().ok();
        }
        let timer = self.kernel.as_mut()?;
        timer.set(wait).ok()?;
        Some(timer)
    }
}

#[cfg(target_os = "linux")]
mod kernel {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use rustix::io::Errno;
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
    };
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    use crate::clock;

    pub struct Timer {
        file: AsyncFd<OwnedFd>,
        /// An earlier alarm than the one wanted is left as it is: a busy loop sets none anew.
        due: Option<Duration>,
    }

    impl Timer {
        pub fn new() -> io::Result<Timer> {
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            let file = timerfd_create(TimerfdClockId::Boottime, flags)?;
            #[allow(deprecated, reason = "its successor is unsafe, for types that are no owned descriptor")]
            let file = AsyncFd::with_interest(file, Interest::READABLE)?;
            Ok(Timer { file, due: None })
        }

        pub fn set(&mut self, wait: Duration) -> io::Result<()> {
            let now = clock::now();
            let due = now.saturating_add(wait);
            if self.due.is_some_and(|set| now < set && set <= due) {
                return Ok(());
            }
            let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
            let tv_sec = i64::try_from(wait.as_secs()).unwrap_or(i64::MAX);
            let it_value = Timespec { tv_sec, tv_nsec: i64::from(wait.subsec_nanos()) };
            timerfd_settime(
                self.file.get_ref(),
                TimerfdTimerFlags::empty(),
                &Itimerspec { it_interval: zero, it_value },
            )?;
            self.due = Some(due);
            Ok(())
        }

        pub async fn rings(&self) {
            loop {
                // Without a reactor there is nothing to wait for any more.
                let Ok(mut ready) = self.file.readable().await else { return };
                let read = ready.try_io(|file| {
                    let mut times = [0; 8];
                    rustix::io::read(file.get_ref(), &mut times).map_err(io::Error::from)
                });
                match read {
                    // It was set anew meanwhile.
                    Err(_) => {}
                    Ok(Err(error)) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => {}
                    Ok(_) => return,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[tokio::test]
    async fn a_long_wait_ends_at_its_time_and_an_earlier_alarm_is_kept() {
        let mut alarm = Alarm::default();
        let began = clock::now();
        let given_up = tokio::time::timeout(Duration::from_millis(10), alarm.after(LONG)).await;
        assert!(given_up.is_err());
        // The loop has another round meanwhile, and wants a later one.
        alarm.after(LONG * 2).await;
        let took = clock::now() - began;
        assert!(took >= LONG, "{took:?}");
        alarm.after(LONG).await;
        assert!(clock::now() - began >= LONG * 2);
        alarm.after(Duration::ZERO).await;
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_long_wait_wakes_its_thread_once() {
        let switches = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").expect("this is Linux");
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            line.and_then(|count| count.trim().parse::<u64>().ok()).expect("a number")
        };
        let mut alarm = Alarm::default();
        let mut counts = Vec::new();
        // A loaded machine may make the thread wait for memory. Boundaries of the wheel are four seconds apart.
        while counts.len() < 3 && !counts.contains(&1) {
            let before = switches();
            alarm.after(Duration::from_millis(5_050)).await;
            counts.push(switches() - before);
        }
        assert!(counts.contains(&1), "{counts:?}");
    }
}
