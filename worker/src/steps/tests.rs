//! Steps on an agent's own cores and pools. Nothing here is timed: what must not happen is kept from happening by latches.

mod branches;
mod chains;
mod pressure;
mod wires;

use std::sync::{Arc, Condvar, Mutex};

use crate::agent::Agent;
use crate::trial::{Ended, Rig};

/// Keeps those who come from going on, until it is opened.
#[derive(Clone, Default)]
struct Latch(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    open: bool,
    waiting: usize,
    most_waiting: usize,
}

impl Latch {
    fn pass(&self) {
        let mut state = self.0.0.lock().expect("no panic here");
        state.waiting += 1;
        state.most_waiting = state.most_waiting.max(state.waiting);
        self.0.1.notify_all();
        while !state.open {
            state = self.0.1.wait(state).expect("no panic here");
        }
        state.waiting -= 1;
    }

    fn open(&self) {
        self.0.0.lock().expect("no panic here").open = true;
        self.0.1.notify_all();
    }

    /// Waits until so many wait.
    fn until_waiting(&self, count: usize) {
        let mut state = self.0.0.lock().expect("no panic here");
        while state.waiting < count {
            state = self.0.1.wait(state).expect("no panic here");
        }
    }

    fn most_waiting(&self) -> usize {
        self.0.0.lock().expect("no panic here").most_waiting
    }
}

fn rig(agent: Agent, cores: usize) -> Rig {
    Rig::start(agent, cores).expect("it can work")
}

fn ended(rig: &mut Rig, count: usize) -> Vec<Ended> {
    (0..count).map(|_| rig.next()).collect()
}

/// Until something is so that nobody tells of.
fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        std::thread::yield_now();
    }
}

/// Sooner or later all places are free.
fn until_empty(rig: &Rig) {
    until(|| {
        rig.pools().iter().all(|pool| pool.taken == 0 && pool.queued == 0 && pool.busy == 0) && rig.waiting() == 0
    });
}

fn ones(count: usize) -> impl Iterator<Item = &'static str> {
    std::iter::repeat_n("1", count)
}
