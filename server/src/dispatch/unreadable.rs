//! Lanes that cannot be read: for what they hold, or for how long that takes.
//!
//! Each is tried again later, so that it keeps nobody from the others.

use super::reading::TooLarge;
use pcfarm_proto::ids::BatchOrder;
use std::time::Duration;
use tokio::time::Instant;
use tokio_postgres::error::SqlState;

/// Until it is tried again, twice as long each time: to find out that it still cannot be read may take as long as a statement
/// may, and nobody is served meanwhile.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_LIMIT: Duration = Duration::from_secs(600);

/// A lane that cannot be read from where it stands.
pub struct Unreadable {
    at: BatchOrder,
    until: Instant,
    pub pause: Duration,
}

impl Unreadable {
    /// From now on, at this place, for longer than before if it was there.
    pub fn again(before: Option<&Unreadable>, at: BatchOrder) -> Unreadable {
        let before = before.filter(|before| before.at == at);
        let pause = before.map_or(PAUSE, |before| (before.pause * 2).min(PAUSE_LIMIT));
        Unreadable { at, until: Instant::now() + pause, pause }
    }

    /// With others of which some could not be read in time, and perhaps for no fault of its own.
    pub fn for_now(at: BatchOrder) -> Unreadable {
        Unreadable { at, until: Instant::now() + PAUSE, pause: PAUSE }
    }

    /// It is not to be tried from there yet.
    pub fn holds(&self, at: BatchOrder) -> bool {
        self.at == at && Instant::now() < self.until
    }
}

/// It, or a lane that was read with it, has not been read in time.
#[derive(Debug, thiserror::Error)]
#[error("it was not read in time, with others")]
pub struct TooSlow;

/// The database has answered, and what is wrong is what the lane holds, or how long it takes to read that.
pub fn is_of_its_data(error: &anyhow::Error) -> bool {
    let code = error.chain().find_map(|cause| cause.downcast_ref::<tokio_postgres::Error>()?.code());
    error.is::<TooLarge>()
        || error.is::<TooSlow>()
        || code.is_some_and(|code| *code == SqlState::QUERY_CANCELED || matches!(&code.code()[..2], "22" | "54" | "XX"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_left_for_longer_each_time_and_only_where_it_stands() {
        let mut unreadable = Unreadable::again(None, BatchOrder(7));
        for seconds in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600] {
            assert_eq!(unreadable.pause, Duration::from_secs(seconds));
            assert!(unreadable.holds(BatchOrder(7)) && !unreadable.holds(BatchOrder(8)));
            unreadable.until = Instant::now(); // its time is over
            assert!(!unreadable.holds(BatchOrder(7)));
            unreadable = Unreadable::again(Some(&unreadable), BatchOrder(7));
        }
        assert_eq!(Unreadable::again(Some(&unreadable), BatchOrder(8)).pause, PAUSE);
    }
}
