//! What is on its way to agents: messages that wait to be written, and how much of the server's memory checkouts take until
//! they are.

use pcfarm_proto::v1;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc};
use tonic::Status;

/// Messages that wait to be written to one agent. Checkouts are bounded by credit and by [`Traffic`]; this bounds everything.
pub const MESSAGES_LIMIT: usize = 256;

/// Bytes of checkouts on their way to all agents, unless a single one has more. Beyond that nothing is handed out: networks
/// are slower than databases, and ten thousand agents ask at once.
const BYTES_LIMIT: usize = 256 << 20;

/// From here on an agent that has not read what it was sent gets no more, unless that is little.
const BYTES_BUSY: usize = BYTES_LIMIT / 2;
const UNREAD_LITTLE: usize = 1 << 20;

/// An agent that has not read this much gets no more in any case, so that a few slow ones do not take it all.
const UNREAD_LIMIT: usize = 32 << 20;

/// A message to an agent, or how its call ends.
#[derive(Debug)]
pub struct Outgoing {
    message: Result<v1::ServerMessage, Status>,
    /// Goes when the last part of a checkout is written.
    load: Option<Arc<Load>>,
}

pub type Sender = mpsc::Sender<Outgoing>;

impl Outgoing {
    pub fn part_of(load: &Arc<Load>, message: v1::ServerMessage) -> Outgoing {
        Outgoing { message: Ok(message), load: Some(load.clone()) }
    }

    /// It is written now.
    pub fn written(self) -> Result<v1::ServerMessage, Status> {
        if let Some(load) = self.load {
            load.unread.move_on();
        }
        self.message
    }
}

impl From<Result<v1::ServerMessage, Status>> for Outgoing {
    fn from(message: Result<v1::ServerMessage, Status>) -> Outgoing {
        Outgoing { message, load: None }
    }
}

/// Checkouts that are decided on and not written to their agents.
#[derive(Debug, Default)]
pub struct Traffic {
    bytes: AtomicUsize,
    eased: Notify,
}

/// Those of them for one agent.
#[derive(Debug)]
pub struct Unread(Mutex<State>);

#[derive(Debug)]
struct State {
    /// None: its connection has ended.
    bytes: Option<usize>,
    /// Checkouts of which it is to read.
    begun: usize,
    /// When anything was written to it, or there was nothing to write.
    moved: Instant,
}

/// One of them, for as long as this lives.
#[derive(Debug)]
pub struct Load {
    traffic: Arc<Traffic>,
    unread: Arc<Unread>,
    bytes: AtomicUsize,
    begun: AtomicBool,
}

impl Traffic {
    pub fn load(self: &Arc<Traffic>, unread: &Arc<Unread>, bytes: usize) -> Arc<Load> {
        let (traffic, unread) = (self.clone(), unread.clone());
        let load = Load { traffic, unread, bytes: AtomicUsize::new(0), begun: AtomicBool::new(false) };
        load.grow(bytes);
        Arc::new(load)
    }

    pub fn is_full(&self) -> bool {
        self.bytes.load(Ordering::SeqCst) >= BYTES_LIMIT
    }

    pub fn is_busy(&self) -> bool {
        self.bytes.load(Ordering::SeqCst) >= BYTES_BUSY
    }

    /// Does an agent that has not read so much get more?
    pub fn has_room_for(&self, unread: &Unread) -> bool {
        let limit = if self.is_busy() { UNREAD_LITTLE } else { UNREAD_LIMIT };
        unread.lock().bytes.is_none_or(|bytes| bytes < limit)
    }

    /// Waits until it is not full.
    pub async fn has_room(&self) {
        loop {
            let eased = self.eased.notified();
            if !self.is_full() {
                return;
            }
            eased.await;
        }
    }

    /// An agent's connection has ended: what it has not read keeps nobody waiting, however long its messages live.
    pub fn end(&self, unread: &Unread) {
        let bytes = unread.lock().bytes.take();
        self.ease(bytes.unwrap_or_default());
    }

    fn ease(&self, bytes: usize) {
        let before = self.bytes.fetch_sub(bytes, Ordering::SeqCst);
        if before >= BYTES_LIMIT && before - bytes < BYTES_LIMIT {
            self.eased.notify_waiters();
        }
    }
}

impl Default for Unread {
    fn default() -> Unread {
        Unread(Mutex::new(State { bytes: Some(0), begun: 0, moved: Instant::now() }))
    }
}

impl Unread {
    /// Has it read nothing for so long, though there was something?
    pub fn stands_for(&self, wait: Duration) -> bool {
        let state = self.lock();
        state.bytes.is_some() && state.begun > 0 && state.moved.elapsed() >= wait
    }

    fn move_on(&self) {
        self.lock().moved = Instant::now();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Load {
    /// More goes with it.
    pub fn grow(&self, bytes: usize) {
        let mut state = self.unread.lock();
        let Some(unread) = &mut state.bytes else { return };
        *unread += bytes;
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
        self.traffic.bytes.fetch_add(bytes, Ordering::SeqCst);
    }

    /// From now on its agent is to read it.
    pub fn begin(&self) {
        if !self.begun.swap(true, Ordering::SeqCst) {
            let mut state = self.unread.lock();
            if state.begun == 0 {
                state.moved = Instant::now();
            }
            state.begun += 1;
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let mut state = self.unread.lock();
        state.begun -= usize::from(*self.begun.get_mut());
        if let Some(unread) = &mut state.bytes {
            let bytes = *self.bytes.get_mut();
            *unread -= bytes;
            self.traffic.ease(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn there_is_room_again_when_enough_of_it_is_written() {
        let (traffic, [one, other]) = (Arc::new(Traffic::default()), [(); 2].map(|()| Arc::<Unread>::default()));
        let half = traffic.load(&one, BYTES_BUSY);
        assert!(!one.stands_for(Duration::ZERO), "nothing was sent to it");
        half.begin();
        assert!(traffic.is_busy() && !traffic.is_full());
        assert!(!traffic.has_room_for(&one) && traffic.has_room_for(&other));
        traffic.has_room().await;
        let last = traffic.load(&other, BYTES_BUSY);
        last.begin();
        assert!(traffic.is_full() && other.stands_for(Duration::ZERO));
        let [first_part, last_part] = [0, 1].map(|_| Outgoing::part_of(&last, v1::ServerMessage::default()));
        drop(last);
        let written = async {
            first_part.written().expect("a message");
            assert!(traffic.has_room().now_or_never().is_none(), "the other part is not written");
            last_part.written().expect("a message");
        };
        tokio::join!(traffic.has_room(), written);
        assert!(!other.stands_for(Duration::ZERO) && one.stands_for(Duration::ZERO));
        assert!(!one.stands_for(Duration::from_secs(60)));
        // An agent that reads nothing until its connection ends.
        traffic.end(&one);
        assert!(!traffic.is_busy() && !one.stands_for(Duration::ZERO));
        let much = traffic.load(&other, UNREAD_LIMIT / 2);
        assert!(traffic.has_room_for(&other));
        much.grow(UNREAD_LIMIT / 2);
        assert!(!traffic.is_busy() && !traffic.has_room_for(&other));
        let late = traffic.load(&one, BYTES_LIMIT);
        assert!(!traffic.is_busy());
        drop((half, late, much));
        assert!(traffic.has_room_for(&other));
        traffic.end(&one);
        assert_eq!(traffic.bytes.load(Ordering::SeqCst), 0);
    }
}
