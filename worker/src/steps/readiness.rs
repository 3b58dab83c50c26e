//! Whether something can be used again, for steps that wait without a thread.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Says when a dependency can be used. Shared by those who wait for it and whoever finds out: a client that connects again,
/// a callback, a thread that looks now and then.
#[derive(Clone, Default)]
pub struct Readiness(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    ready: bool,
    waiting: HashMap<u64, Weak<dyn Resume>>,
}

/// Who goes on with what waited.
pub(super) trait Resume: Send + Sync {
    fn resume(&self, parked: u64);
}

impl Readiness {
    /// Not ready yet.
    pub fn new() -> Readiness {
        Readiness::default()
    }

    /// It can be used: all who wait go on, each on the pool of its step.
    pub fn set_ready(&self) {
        let waiting = {
            let mut state = self.state();
            state.ready = true;
            std::mem::take(&mut state.waiting)
        };
        for (parked, resume) in waiting {
            if let Some(resume) = resume.upgrade() {
                resume.resume(parked);
            }
        }
    }

    /// It is out: who waits for it from now on waits until it is ready again. To be called by whoever finds that out, each
    /// time, and before what makes it ready again: else nobody waits.
    pub fn set_out(&self) {
        self.state().ready = false;
    }

    pub fn is_ready(&self) -> bool {
        self.state().ready
    }

    /// How many steps wait for it.
    pub fn waiting(&self) -> usize {
        self.state().waiting.len()
    }

    /// False: it is ready, and nobody is told later.
    pub(super) fn tell_later(&self, parked: u64, whom: Weak<dyn Resume>) -> bool {
        let mut state = self.state();
        if !state.ready {
            state.waiting.insert(parked, whom);
        }
        !state.ready
    }

    pub(super) fn forget(&self, parked: u64) {
        self.state().waiting.remove(&parked);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics under this lock")
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readiness").field("ready", &self.is_ready()).finish_non_exhaustive()
    }
}
