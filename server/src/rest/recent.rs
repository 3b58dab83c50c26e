//! What costs queries and is asked for by whoever likes, without credentials: looked up once a second at most, by one at a
//! time. All who ask meanwhile get the same answer.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

const HOLDS: Duration = Duration::from_secs(1);

pub struct Recent<T>(Arc<Mutex<Option<(Instant, T)>>>);

impl<T> Default for Recent<T> {
    fn default() -> Recent<T> {
        Recent(Arc::default())
    }
}

impl<T: Clone + Send + 'static> Recent<T> {
    /// What was found within the last second, or is found now: in a task of its own, which comes to its end when whoever
    /// asked has gone, so that nobody begins another look beside it. None: it panicked.
    pub async fn get(&self, tasks: &TaskTracker, look: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let mut held = self.0.clone().lock_owned().await;
        if let Some((at, found)) = &*held
            && at.elapsed() < HOLDS
        {
            return Some(found.clone());
        }
        let looked = tasks.spawn(async move {
            let found = look.await;
            *held = Some((Instant::now(), found.clone()));
            found
        });
        looked.await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use futures_util::future::join_all;
    use std::sync::atomic::{AtomicU32, Ordering};
    use tokio::sync::Semaphore;

    #[tokio::test]
    async fn many_who_ask_cost_one_look() {
        let (recent, tasks, looks) = (Recent::default(), TaskTracker::new(), Arc::new(AtomicU32::new(0)));
        let go_on = Arc::new(Semaphore::new(0));
        let ask = || {
            let (looks, go_on) = (looks.clone(), go_on.clone());
            recent.get(&tasks, async move {
                go_on.acquire().await.expect("never closed").forget();
                looks.fetch_add(1, Ordering::SeqCst)
            })
        };
        // The first goes before it is answered; what it has begun goes on.
        assert!(ask().now_or_never().is_none());
        go_on.add_permits(1);
        let answers = join_all((0..20).map(|_| ask())).await;
        assert!(answers.iter().all(|answer| *answer == Some(0)), "{answers:?}");
        // Of a while ago it is looked at again.
        if let Some((at, _)) = &mut *recent.0.lock().await {
            *at = at.checked_sub(HOLDS).expect("this machine runs for longer");
        }
        go_on.add_permits(1);
        assert_eq!(ask().await, Some(1));
    }
}
