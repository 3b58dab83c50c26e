//! Threads for what may take its time in the kernel: a stalled disk, a busy `/proc`.
//!
//! Owns that nobody ever waits for one of them, neither to give it something nor, for longer than a moment, to end it.

use std::io;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Whoever hangs for longer ends with the process.
const END_WAIT: Duration = Duration::from_millis(100);

/// A thread that does one thing after the other, until it is dropped: then what it was given is still done, if that does not hang.
pub struct Aside<T> {
    jobs: Option<SyncSender<T>>,
    ended: Mutex<Receiver<()>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> Aside<T> {
    /// `room`: for what waits.
    pub fn start(name: &str, room: usize, mut work: impl FnMut(T) + Send + 'static) -> io::Result<Aside<T>> {
        Aside::run(name, room, move |given| given.into_iter().for_each(&mut work))
    }

    /// A thread that also works without a job when it has been given none for so long.
    pub fn with_rhythm(
        name: &str,
        room: usize,
        every: Duration,
        mut work: impl FnMut(Option<T>) + Send + 'static,
    ) -> io::Result<Aside<T>> {
        Aside::run(name, room, move |given| {
            loop {
                match given.recv_timeout(every) {
                    Ok(job) => work(Some(job)),
                    Err(RecvTimeoutError::Timeout) => work(None),
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        })
    }

    fn run(name: &str, room: usize, work: impl FnOnce(Receiver<T>) + Send + 'static) -> io::Result<Aside<T>> {
        let (jobs, given) = sync_channel(room);
        let (alive, ended) = channel();
        let run = move || {
            let _alive = alive; // dropped in the end
            work(given);
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Aside { jobs: Some(jobs), ended: Mutex::new(ended), thread: Some(thread) })
    }

    /// False: there is no room, and what was given is gone.
    pub fn give(&self, job: T) -> bool {
        self.jobs.as_ref().is_some_and(|jobs| jobs.try_send(job).is_ok())
    }
}

impl<T> Drop for Aside<T> {
    fn drop(&mut self) {
        drop(self.jobs.take());
        let ended = self.ended.get_mut().expect("nothing panics under this lock");
        let has_ended = matches!(ended.recv_timeout(END_WAIT), Err(RecvTimeoutError::Disconnected));
        if let Some(thread) = self.thread.take().filter(|_| has_ended) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn nobody_waits_for_one_that_hangs() {
        let (sender, worked) = mpsc::channel();
        let (hang, hangs) = mpsc::channel::<()>();
        let aside = Aside::start("test", 1, move |job: u32| {
            let _ = (sender.send(job), hangs.recv());
        });
        let aside = aside.expect("a thread");
        assert!(aside.give(1));
        assert_eq!(worked.recv(), Ok(1));
        assert!(aside.give(2), "one waits");
        assert!(!aside.give(3), "there is room for no more");
        drop(aside);
        drop(hang);
        assert_eq!(worked.recv(), Ok(2), "what it was given is done");
        assert!(worked.recv().is_err());
    }
}
