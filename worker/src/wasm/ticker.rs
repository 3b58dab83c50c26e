//! What makes instances give their core back: a hundred ticks a second, while one runs.
//!
//! Owns a thread that sleeps without an instance to watch, so that an idle workstation stays idle.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Between two looks at whether an instance is still wanted.
pub const TICK: Duration = Duration::from_millis(10);

/// How long nothing runs until what waits is told so.
const IDLE: Duration = Duration::from_secs(2);

pub struct Ticker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    running: usize,
    ended: bool,
}

/// Something runs while this lives.
pub struct Watched<'a>(&'a Shared);

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ticker {
    /// Calls `tick` while something runs, and `idle` when nothing has run for a while.
    pub fn start(tick: impl Fn() + Send + 'static, idle: impl Fn() + Send + 'static) -> std::io::Result<Ticker> {
        let shared = Arc::<Shared>::default();
        let its = Arc::clone(&shared);
        let thread = thread::Builder::new().name("pcfarm-ticker".to_owned()).spawn(move || {
            let mut is_told = true;
            let mut state = its.state();
            while !state.ended {
                if state.running > 0 {
                    is_told = false;
                    state = its.changed.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner).0;
                    tick();
                } else if is_told {
                    state = its.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                } else {
                    let (after, wait) = its.changed.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
                    state = after;
                    if wait.timed_out() && state.running == 0 {
                        is_told = true;
                        drop(state);
                        idle();
                        state = its.state();
                    }
                }
            }
        })?;
        Ok(Ticker { shared, thread: Some(thread) })
    }

    pub fn watch(&self) -> Watched<'_> {
        let mut state = self.shared.state();
        state.running += 1;
        if state.running == 1 {
            self.shared.changed.notify_one();
        }
        Watched(&self.shared)
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.0.state().running -= 1;
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.state().ended = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn it_ticks_while_something_runs_and_then_says_so() {
        let (ticks, ticked) = mpsc::channel();
        let (idles, idled) = mpsc::channel();
        let ticker = Ticker::start(
            move || ticks.send(()).expect("the test waits"),
            move || idles.send(()).expect("the test waits"),
        )
        .expect("a thread");
        for _ in 0..2 {
            let watched = ticker.watch();
            (0..3).for_each(|_| ticked.recv().expect("it ticks"));
            drop(watched);
            idled.recv().expect("it is idle");
            while ticked.try_recv().is_ok() {}
        }
        drop(ticker);
        assert!(ticked.recv().is_err(), "its thread has ended, and did not tick while nothing ran");
    }
}
