//! End of the lease under which a checkout is computed, as its session knows it. Supervisors need it: an agent that is stopped cannot stop
//! its programs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// No lease ends the work.
const NEVER: u64 = u64::MAX;

/// Shared by all checkouts of a session. Times are [`crate::clock::now`].
#[derive(Clone, Debug)]
pub struct LeaseEnd(Arc<AtomicU64>);

impl Default for LeaseEnd {
    fn default() -> LeaseEnd {
        LeaseEnd(Arc::new(AtomicU64::new(NEVER)))
    }
}

impl LeaseEnd {
    /// None: work goes on after the lease.
    pub fn set(&self, end: Option<Duration>) {
        let micros = end.map_or(NEVER, |end| u64::try_from(end.as_micros()).unwrap_or(NEVER));
        self.0.store(micros, Ordering::Relaxed);
    }

    pub fn get(&self) -> Option<Duration> {
        Some(self.0.load(Ordering::Relaxed)).filter(|end| *end != NEVER).map(Duration::from_micros)
    }
}
