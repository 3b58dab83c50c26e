//! GPUs and programs of this machine, which come and go while an agent runs: a driver is updated, a program is removed.
//!
//! Owns the times of the looks at the machine: at each connection and every ten minutes. A look runs on a thread of its own, so
//! that sessions never wait for it: a program may lie on a network file system that does not answer.

use std::sync::Arc;
use std::time::Duration;

use pcfarm_proto::v1;
use tokio::sync::{Notify, watch};
use tracing::{info, warn};

pub const LOOK_EVERY: Duration = Duration::from_secs(600);

type Look = dyn Fn() -> v1::Equipment + Send + Sync;

/// Looks at the machine's GPUs and programs, for all sessions of an agent.
pub struct Lookout {
    look: Arc<Look>,
    known: watch::Sender<v1::Equipment>,
    again: Notify,
}

impl Lookout {
    /// Looks once.
    pub fn new(look: impl Fn() -> v1::Equipment + Send + Sync + 'static) -> Arc<Lookout> {
        let known = watch::Sender::new(look());
        Arc::new(Lookout { look: Arc::new(look), known, again: Notify::new() })
    }

    /// Has the machine looked at soon.
    pub fn look_again(&self) {
        self.again.notify_one();
    }

    pub fn known(&self) -> watch::Receiver<v1::Equipment> {
        self.known.subscribe()
    }

    /// Looks for ever, one look at a time. While a look hangs, the result of the last one stays. The agent passes [`LOOK_EVERY`].
    pub async fn keep(&self, every: Duration) {
        loop {
            let _ = tokio::time::timeout(every, self.again.notified()).await;
            let look = Arc::clone(&self.look);
            match tokio::task::spawn_blocking(move || look()).await {
                Ok(seen) => {
                    let changed = |known: &mut v1::Equipment| {
                        let changed = *known != seen;
                        if changed {
                            info!(gpus = seen.gpus.len(), programs = seen.programs.len(), "equipment changed");
                            known.clone_from(&seen);
                        }
                        changed
                    };
                    self.known.send_if_modified(changed);
                }
                Err(error) => warn!(%error, "cannot look at GPUs and programs"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    use tokio::task::JoinSet;

    fn with_gpus(count: usize) -> v1::Equipment {
        let gpu = v1::Gpu { vendor: "amd".to_owned(), name: "card".to_owned() };
        v1::Equipment { gpus: vec![gpu; count], programs: Vec::new() }
    }

    #[tokio::test]
    async fn the_machine_is_looked_at_when_asked_and_regularly() {
        let there = Arc::new(Mutex::new(0));
        let seen = Arc::clone(&there);
        let lookout = Lookout::new(move || with_gpus(*seen.lock().expect("a count")));
        let mut known = lookout.known();
        assert_eq!(*known.borrow_and_update(), with_gpus(0));

        let kept = Arc::clone(&lookout);
        let mut rarely = JoinSet::new();
        rarely.spawn(async move { kept.keep(Duration::from_secs(600)).await });
        *there.lock().expect("a count") = 1;
        lookout.look_again();
        known.changed().await.expect("the lookout lives");
        assert_eq!(*known.borrow_and_update(), with_gpus(1));
        rarely.shutdown().await;

        let kept = Arc::clone(&lookout);
        let mut often = JoinSet::new();
        often.spawn(async move { kept.keep(Duration::from_millis(10)).await });
        *there.lock().expect("a count") = 2;
        known.changed().await.expect("the lookout lives");
        assert_eq!(*known.borrow_and_update(), with_gpus(2));
        often.shutdown().await;
    }
}
