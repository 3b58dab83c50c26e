//! Ears: a thread that sleeps until a terminal is read, which is how typing shows.
//!
//! Owns one rule for all watches of the kernel: **the agent's own looks must not wake it.** A watch for `IN_ACCESS` on a
//! directory also reports each listing of the directory, and the agent lists `/dev/pts` at every look. So the watch on the
//! directory asks only for terminals that come and go, and each terminal has a watch of its own for reads.
//!
//! A terminal that the agent may not open for reading is deaf. The agent looks at its time of access instead, every half second
//! at work. A watch for `IN_ACCESS` on the directory would not help there: reads of special files no longer reach it since Linux
//! 6.18.

use std::collections::BTreeSet;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use tracing::debug;

use super::numbered;
use crate::clock;
use crate::presence::signals::Moment;

/// Time for further events to gather: typing wakes the agent ten times a second at most.
const GATHER: Duration = Duration::from_millis(100);

/// The thread, until it is dropped.
pub struct Ears {
    known: Arc<Mutex<Known>>,
    end: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Known {
    heard: Moment,
    /// Terminals that cannot be watched.
    deaf: BTreeSet<PathBuf>,
    /// Wake-ups that an event of a terminal caused.
    #[cfg(test)]
    woken: u64,
}

/// Meaning of an event.
#[derive(Debug, PartialEq, Eq)]
enum Meaning {
    Nothing,
    /// A terminal was read.
    Typed,
    /// A terminal was opened: a person opened a window or logged in.
    New(String),
    /// A terminal was closed. A connection that breaks at night closes one, too, so closing is no activity: a person who closes a terminal
    /// has typed or clicked a moment before.
    Closed(String),
    /// Events were lost: anything may have happened.
    Lost,
}

fn meaning(flags: ReadFlags, is_of_directory: bool, name: Option<&str>) -> Meaning {
    if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
        return Meaning::Lost;
    }
    if flags.contains(ReadFlags::ISDIR) {
        return Meaning::Nothing;
    }
    match (is_of_directory, name) {
        (false, _) if flags.contains(ReadFlags::ACCESS) => Meaning::Typed,
        (true, Some(name)) if name.parse::<u32>().is_ok() => match flags {
            _ if flags.contains(ReadFlags::CREATE) => Meaning::New(name.to_owned()),
            _ if flags.contains(ReadFlags::DELETE) => Meaning::Closed(name.to_owned()),
            _ => Meaning::Nothing,
        },
        (true | false, _) => Meaning::Nothing,
    }
}

impl Ears {
    pub fn start(devices: &Path, own: BTreeSet<u32>, noticed: impl Fn() + Send + 'static) -> std::io::Result<Ears> {
        let known = Arc::new(Mutex::new(Known::default()));
        let mut listener = Listener::new(devices, own, Arc::clone(&known))?;
        let (until, end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let listen = move || {
            while listener.hears_something(&until) {
                noticed();
                let pause = Timespec { tv_sec: 0, tv_nsec: i64::from(GATHER.subsec_nanos()) };
                let _ = poll(&mut [PollFd::new(&until, PollFlags::IN)], Some(&pause));
            }
        };
        let thread = std::thread::Builder::new().name("pcfarm-terminals".to_owned()).spawn(listen)?;
        Ok(Ears { known, end: Some(end), thread: Some(thread) })
    }

    /// True if the thread may miss the use of a terminal.
    pub fn misses_some(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished) || !locked(&self.known).deaf.is_empty()
    }

    pub fn heard(&self) -> Moment {
        locked(&self.known).heard
    }

    #[cfg(test)]
    pub fn woken(&self) -> u64 {
        locked(&self.known).woken
    }
}

impl Drop for Ears {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn locked(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().expect("nothing panics under this lock")
}

struct Listener {
    events: OwnedFd,
    /// `/dev/pts`, and the number of its watch if it has one.
    directory: PathBuf,
    watch: Option<i32>,
    /// Accounts whose terminals belong to programs of the farm.
    own: BTreeSet<u32>,
    known: Arc<Mutex<Known>>,
}

impl Listener {
    fn new(devices: &Path, own: BTreeSet<u32>, known: Arc<Mutex<Known>>) -> std::io::Result<Listener> {
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let directory = devices.join("pts");
        // The directory of all devices has no watch: some devices are read all the time.
        for console in numbered(devices, "tty")? {
            listen_at(&events, console, &known)?;
        }
        let changes = WatchFlags::CREATE | WatchFlags::DELETE;
        let watch = match inotify::add_watch(&events, &directory, changes) {
            Ok(watch) => Some(watch),
            Err(Errno::NOENT) => None,
            Err(Errno::ACCESS | Errno::PERM) => {
                locked(&known).deaf.insert(directory.clone());
                None
            }
            Err(error) => return Err(error.into()),
        };
        let listener = Listener { events, directory, watch, own, known };
        listener.listen_at_all();
        Ok(listener)
    }

    fn listen_at_all(&self) {
        // Without that directory there are no terminals of windows or networks.
        for terminal in numbered(&self.directory, "").unwrap_or_default() {
            self.listen_at(terminal);
        }
    }

    /// Returns false for a terminal of a program of the farm.
    fn listen_at(&self, terminal: PathBuf) -> bool {
        if fs::metadata(&terminal).is_ok_and(|file| self.own.contains(&file.uid())) {
            return false;
        }
        if let Err(error) = listen_at(&self.events, terminal.clone(), &self.known) {
            debug!(%error, terminal = %terminal.display(), "terminal is only looked at");
            locked(&self.known).deaf.insert(terminal);
        }
        true
    }

    /// Waits for activity. False: it is time to end.
    fn hears_something(&mut self, until: &OwnedFd) -> bool {
        loop {
            let mut watched = [PollFd::new(until, PollFlags::IN), PollFd::new(&self.events, PollFlags::IN)];
            match poll(&mut watched, None) {
                Ok(_) if !watched[0].revents().is_empty() => return false,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return false,
            }
            let Ok(meanings) = self.read() else { return false };
            let mut is_news = false;
            for meaning in meanings {
                is_news |= self.take(meaning);
            }
            if is_news {
                let mut known = locked(&self.known);
                known.heard = clock::now();
                #[cfg(test)]
                {
                    known.woken += 1;
                }
                return true;
            }
        }
    }

    fn read(&self) -> Result<Vec<Meaning>, Errno> {
        let mut buffer = [const { MaybeUninit::uninit() }; 4096];
        let mut events = inotify::Reader::new(&self.events, &mut buffer);
        let mut meanings = Vec::new();
        loop {
            match events.next() {
                Ok(event) => {
                    let name = event.file_name().and_then(|name| name.to_str().ok());
                    meanings.push(meaning(event.events(), Some(event.wd()) == self.watch, name));
                }
                Err(Errno::AGAIN | Errno::INTR) => return Ok(meanings),
                Err(error) => return Err(error),
            }
        }
    }

    /// Follows an event. Returns true if it is activity.
    fn take(&self, meaning: Meaning) -> bool {
        match meaning {
            Meaning::Nothing => false,
            Meaning::Typed => true,
            Meaning::New(name) => self.listen_at(self.directory.join(name)),
            Meaning::Closed(name) => {
                locked(&self.known).deaf.remove(&self.directory.join(name));
                false
            }
            Meaning::Lost => {
                self.listen_at_all();
                true
            }
        }
    }
}

/// A terminal that is gone makes no sound; one that may not be opened is deaf.
fn listen_at(events: &OwnedFd, terminal: PathBuf, known: &Mutex<Known>) -> std::io::Result<()> {
    match inotify::add_watch(events, &terminal, WatchFlags::ACCESS) {
        Ok(_) => drop(locked(known).deaf.remove(&terminal)),
        Err(Errno::NOENT) => {}
        Err(Errno::ACCESS | Errno::PERM) => {
            debug!(terminal = %terminal.display(), "terminal is only looked at");
            locked(known).deaf.insert(terminal);
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reads_and_new_terminals_are_activity() {
        let (read, listed) = (ReadFlags::ACCESS, ReadFlags::ACCESS | ReadFlags::ISDIR);
        for (what, flags, is_of_directory, name, expected) in [
            ("a terminal with its own watch is read", read, false, None, Meaning::Typed),
            ("the directory is listed", listed, true, None, Meaning::Nothing),
            ("the directory is read, without a mark", read, true, None, Meaning::Nothing),
            ("a window shows output", read, true, Some("ptmx"), Meaning::Nothing),
            ("a directory within", listed, true, Some("7"), Meaning::Nothing),
            ("a terminal is opened", ReadFlags::CREATE, true, Some("7"), Meaning::New("7".to_owned())),
            ("something else is made", ReadFlags::CREATE, true, Some("x"), Meaning::Nothing),
            ("a terminal is closed", ReadFlags::DELETE, true, Some("7"), Meaning::Closed("7".to_owned())),
            ("its watch ends", ReadFlags::IGNORED, false, None, Meaning::Nothing),
            ("the queue is full", ReadFlags::QUEUE_OVERFLOW, false, None, Meaning::Lost),
        ] {
            assert_eq!(meaning(flags, is_of_directory, name), expected, "{what}");
        }
    }
}
