//! What is written to the agent's disk, on a thread of its own.
//!
//! Owns that a disk that is full, slow or gone keeps nobody from seeing that somebody is back: what it does not take in time is lost,
//! and counted. What is to be kept is there whole or not at all.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use tracing::warn;

use super::aside::Aside;
use crate::platform;

/// What waits for it: some minutes of a person who comes and goes.
const WAITING: usize = 64;

/// Whoever ends waits so long for what is still to be written.
const FLUSH_WAIT: Duration = Duration::from_millis(100);

type Job = Box<dyn FnOnce() + Send>;

pub struct Disk {
    thread: Aside<Job>,
    lost: AtomicU64,
}

impl Disk {
    pub fn start() -> io::Result<Disk> {
        Ok(Disk { thread: Aside::start("pcfarm-disk", WAITING, |job: Job| job())?, lost: AtomicU64::new(0) })
    }

    /// Later, and in order. False: never.
    pub fn give(&self, job: impl FnOnce() + Send + 'static) -> bool {
        let taken = self.thread.give(Box::new(job));
        if !taken {
            let lost = self.lost.fetch_add(1, Ordering::Relaxed) + 1;
            warn!(lost, "the disk of the agent's state does not keep up: something is not kept");
        }
        taken
    }

    /// What was lost so far.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Whether all that was given is written now.
    pub fn flush(&self) -> bool {
        let (sender, done) = channel();
        let marked = self.thread.give(Box::new(move || {
            let _ = sender.send(());
        }));
        marked && done.recv_timeout(FLUSH_WAIT).is_ok()
    }
}

/// What is to be in a file.
pub struct Kept {
    pub file: PathBuf,
    /// Empty: there is to be none.
    pub text: String,
}

impl Kept {
    /// Whole or not at all, whenever the machine loses its power.
    pub fn write(&self) -> io::Result<()> {
        if self.text.is_empty() {
            match fs::remove_file(&self.file) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                removed => removed?,
            }
        } else {
            let aside = self.file.with_extension("new");
            let mut to = fs::File::create(&aside)?;
            to.write_all(self.text.as_bytes())?;
            to.sync_all()?;
            fs::rename(aside, &self.file)?;
        }
        self.file.parent().map_or(Ok(()), platform::sync_dir)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_stalled_disk_is_waited_for_by_nobody_and_what_it_loses_is_counted() {
        let disk = Disk::start().expect("a thread");
        let (stall, stalls) = mpsc::channel::<()>();
        assert!(disk.give(move || {
            let _ = stalls.recv();
        }));
        let taken = (0..2 * WAITING).filter(|_| disk.give(|| {})).count();
        assert!((WAITING - 1..=WAITING).contains(&taken), "{taken}");
        assert_eq!(disk.lost(), (2 * WAITING - taken) as u64);
        assert!(!disk.flush());
        drop(stall);
        while !disk.flush() {}
        assert!(disk.give(|| {}));
    }
}
