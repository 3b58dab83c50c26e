//! Input of a Mac: keyboard, mouse and trackpad, in any session and in none. **Not yet tested.**
//!
//! The system notifies nobody of it who has no window, so it is asked, often enough that whoever is back is noticed at once.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use pcfarm_native::macos::idle;
use tracing::warn;

use super::signals::{Input, Moment, Proves, Reading};

const SOURCE: &str = "hid";

/// Half of what a person may wait.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The thread that looks, until it is dropped. Without one input is seen late, and nothing else is lost.
pub struct Hid {
    /// Nothing is ever sent: it ends.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Hid {
    pub fn start(noticed: impl Fn() + Send + 'static) -> Hid {
        let (end, ended) = channel();
        let thread = std::thread::Builder::new().name("pcfarm-hid".to_owned()).spawn(move || {
            let mut before = Duration::ZERO;
            while matches!(ended.recv_timeout(LOOK_EVERY), Err(RecvTimeoutError::Timeout)) {
                let now = idle().unwrap_or_default();
                if now < before {
                    noticed();
                }
                before = now;
            }
        });
        let thread = thread.inspect_err(|error| warn!(%error, "input is noticed late")).ok();
        Hid { end: Some(end), thread }
    }

    pub fn read(&self, now: Moment) -> Reading<Input> {
        let says = idle().map(|idle| Input {
            last: now.saturating_sub(idle),
            proves: Proves::Absence,
            bump: None,
            untold: false,
            at_seat: false,
        });
        Reading::new(SOURCE, now, says)
    }
}

impl Drop for Hid {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
