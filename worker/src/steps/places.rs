//! Who may begin: the places of pools and controllers.
//!
//! A problem takes a place in every pool that it may come to, and one of its controller, all or none, before it begins. So
//! no thread ever waits for room in a queue, queues cannot overflow, and two pools cannot wait for each other. A place is
//! let go as soon as the problem cannot come to its pool any more: what waits for licences behind a database does not keep
//! others from the database.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::wiring::{Set, flow_bit};

/// For how long a controller that was refused counts as held up, so that one that is refused and let in by turns does so
/// steadily.
const HELD_UP: Duration = Duration::from_secs(1);

pub(super) struct Places {
    state: Mutex<State>,
}

struct State {
    /// By bit; 0 where there is nothing.
    limit: Vec<usize>,
    taken: Vec<usize>,
    most: Vec<usize>,
    /// Somebody was refused for lack of these.
    wanted: Set,
    /// By controller: for lack of what it was refused, and when.
    refused: Vec<Option<(usize, Instant)>>,
}

impl Places {
    /// `limits` by bit of a set.
    pub fn new(limits: impl IntoIterator<Item = (Set, usize)>, flows: usize) -> Places {
        let mut limit = vec![0; Set::BITS as usize];
        for (bit, places) in limits {
            limit[bit.trailing_zeros() as usize] = places;
        }
        let none = vec![0; limit.len()];
        let state = State { limit, taken: none.clone(), most: none, wanted: 0, refused: vec![None; flows] };
        Places { state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under this lock")
    }

    /// Takes one of each, or none.
    pub fn take(&self, set: Set) -> bool {
        self.state().take(set).is_ok()
    }

    /// The same, for a problem of that controller to begin. If it is refused, whoever lets go of what it lacked is told.
    pub fn admit(&self, flow: usize, set: Set) -> bool {
        let mut state = self.state();
        match state.take(set | flow_bit(flow)) {
            Ok(()) => true,
            Err(lacking) => {
                state.wanted |= 1 << lacking;
                state.refused[flow] = Some((lacking, Instant::now()));
                false
            }
        }
    }

    /// True if somebody had been refused for lack of one of these.
    pub fn let_go(&self, set: Set) -> bool {
        let mut state = self.state();
        for bit in bits(set) {
            state.taken[bit] -= 1;
        }
        let wanted = state.wanted & set != 0;
        state.wanted &= !set;
        wanted
    }

    /// For lack of what (a bit) that controller was refused a moment ago.
    pub fn held_up_by(&self, flow: usize) -> Option<usize> {
        let (lacking, at) = self.state().refused[flow]?;
        (at.elapsed() < HELD_UP).then_some(lacking)
    }

    pub fn taken(&self, bit: usize) -> usize {
        self.state().taken[bit]
    }

    /// The most that were ever taken.
    pub fn most_taken(&self, bit: usize) -> usize {
        self.state().most[bit]
    }
}

impl State {
    /// The first that is lacking, else.
    fn take(&mut self, set: Set) -> Result<(), usize> {
        if let Some(lacking) = bits(set).find(|bit| self.taken[*bit] >= self.limit[*bit]) {
            return Err(lacking);
        }
        for bit in bits(set) {
            self.taken[bit] += 1;
            self.most[bit] = self.most[bit].max(self.taken[bit]);
        }
        Ok(())
    }
}

fn bits(mut set: Set) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(bit)
    })
}
