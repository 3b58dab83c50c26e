//! Schedules: what is to be done when. Every server ticks; PostgreSQL's locks give each due schedule to one of them.
//!
//! - when a recurrence comes: [`recurrence`]; what that means for a schedule at a given time: [`plan`]. Both are pure.
//! - taking what is due, and writing what becomes of it: [`ticker`]
//! - loading what made jobs wait for: [`loads`]
//! - finding those that sleep for longer than their recurrence says: [`far`]
//!
//! Nothing here holds a schedule's state: a server that dies between two statements has changed nothing.

pub mod far;
pub mod loads;
pub mod plan;
pub mod recurrence;
pub mod ticker;

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// A server that has not ticked for this long says that it is not well.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(20);

/// What the ticker shares with the rest of a server.
#[derive(Debug)]
pub struct Ticking {
    /// Something may be due sooner than was known.
    pub wake: Notify,
    /// A job was made, and waits for its loads.
    pub loads: Notify,
    last: Mutex<Instant>,
}

impl Default for Ticking {
    fn default() -> Ticking {
        Ticking { wake: Notify::new(), loads: Notify::new(), last: Mutex::new(Instant::now()) }
    }
}

impl Ticking {
    /// A tick has come to its end: what was due then is another server's or done.
    pub fn ticked(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    pub fn silent_for(&self) -> Duration {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// What health checks tell.
    pub fn is_healthy(&self) -> bool {
        self.silent_for() <= SILENCE_LIMIT
    }
}
