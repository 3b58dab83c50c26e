//! Ends connections on which no byte moves.
//!
//! HTTP/2's own keep-alive ends a connection whose pong is late, and a pong waits behind data: on a slow link that is many seconds.
//! Here any byte that comes proves the connection alive, and so does any byte that leaves a full send buffer, because the peer has
//! acknowledged others. HTTP/2's pings only make an idle peer say something.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};

/// Interval of pings to an idle peer.
pub const PING_INTERVAL: Duration = Duration::from_secs(20);

/// Longest time in which nothing moves on a live connection: the interval of pings and the time of an answer over a lossy link.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(40);

/// Pings never end a connection: [`SILENCE_LIMIT`] does.
pub const PONG_WAIT: Duration = Duration::from_secs(86_400);

/// Count of the signs of life on one connection.
#[derive(Clone, Debug, Default)]
pub struct Signs(Arc<AtomicU64>);

impl Signs {
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn more(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Watches over one connection.
pub(super) struct Silence {
    moved: Instant,
    signs: Signs,
    /// The last write found the send buffer full.
    blocked: bool,
    limit: Duration,
    look: Pin<Box<Sleep>>,
}

impl Silence {
    pub(super) fn new(limit: Duration, signs: Signs) -> Silence {
        Silence { moved: Instant::now(), signs, blocked: false, limit, look: Box::pin(sleep(limit)) }
    }

    pub(super) fn received(&mut self) {
        self.moved = Instant::now();
        self.signs.more();
    }

    /// A write that finds room proves nothing by itself: the buffer of a dead connection takes many.
    pub(super) fn wrote(&mut self, is_pending: bool) {
        if !is_pending && self.blocked {
            self.received();
        }
        self.blocked = is_pending;
    }

    /// True when nothing has moved for too long. Otherwise the task is woken when that may be so.
    pub(super) fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        while let Poll::Ready(()) = self.look.as_mut().poll(context) {
            if self.has_lasted(Instant::now()) {
                return true;
            }
            self.look.as_mut().reset(self.moved + self.limit);
        }
        false
    }

    fn has_lasted(&self, now: Instant) -> bool {
        self.moved + self.limit <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// A connection on which something moved a limit ago.
    fn silent() -> Silence {
        let mut silence = Silence::new(LIMIT, Signs::default());
        silence.moved -= LIMIT;
        silence
    }

    #[tokio::test]
    async fn bytes_that_come_prove_a_connection_alive() {
        let mut silence = silent();
        assert!(silence.has_lasted(Instant::now()));
        silence.received();
        assert!(!silence.has_lasted(Instant::now()));
        assert!(silence.has_lasted(Instant::now() + LIMIT));
    }

    #[tokio::test]
    async fn a_write_counts_only_when_the_peer_made_room_for_it() {
        let mut silence = silent();
        silence.wrote(false);
        assert!(silence.has_lasted(Instant::now()), "a buffer with room takes bytes on a dead connection");
        silence.wrote(true);
        assert!(silence.has_lasted(Instant::now()));
        silence.wrote(false);
        assert!(!silence.has_lasted(Instant::now()), "the send buffer was full, and drained");
        assert_eq!(silence.signs.count(), 1);
    }
}
