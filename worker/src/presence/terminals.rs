//! Terminals: consoles, and those of people who came by the network.
//!
//! Owns what their times of access say, and one thread that sleeps until somebody reads from one. A terminal knows nothing of a
//! graphical desktop beside it, so that it proves who is there and, unless the owner says that there is nothing else, never
//! that nobody is. Consoles belong to whoever is logged in there: an agent that may not listen at one is to look at it.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use tracing::debug;

use super::signals::{Input, Moment, Proves, Reading};
use crate::clock;

pub const SOURCE: &str = "tty";

/// As for input devices: somebody who types wakes nobody more often.
const GATHER: Duration = Duration::from_millis(100);

/// What it remembers of terminals. The kernel notes times of access to eight seconds; only that one has changed is used, so that
/// no change of the clock looks like a person or hides one.
pub struct Terminals {
    /// `/dev`.
    devices: PathBuf,
    accessed: Option<BTreeMap<PathBuf, (i64, i64)>>,
    last: Moment,
    proves: Proves,
    ears: Option<Ears>,
}

impl Terminals {
    /// Calls `noticed` when somebody may have typed. Where that cannot be had, [`Terminals::read`] finds out when it is called.
    pub fn start(devices: PathBuf, proves: Proves, noticed: impl Fn() + Send + 'static) -> Terminals {
        let ears = Ears::start(&devices, noticed).inspect_err(|error| debug!(%error, "terminals are only looked at"));
        Terminals { ears: ears.ok(), ..Terminals::new(devices, proves, clock::now()) }
    }

    fn new(devices: PathBuf, proves: Proves, now: Moment) -> Terminals {
        Terminals { devices, accessed: None, last: now, proves, ears: None }
    }

    pub fn read(&mut self, now: Moment) -> Reading<Input> {
        let says = self.look().map(|accessed| {
            // One that is gone was closed by somebody.
            if self.accessed.as_ref() != Some(&accessed) {
                self.last = now;
            }
            // Within eight seconds of the one before, a time of access does not change.
            let heard = self.ears.as_ref().map_or(Moment::ZERO, Ears::heard);
            self.last = self.last.max(heard);
            self.accessed = Some(accessed);
            let untold = self.ears.as_ref().is_none_or(Ears::misses_some);
            Input { last: self.last, proves: self.proves, bump: None, untold, looked: true }
        });
        if says.is_err() {
            self.accessed = None;
        }
        Reading::new(SOURCE, now, says)
    }

    /// Somebody may sit at one that cannot be looked at: that matters only to what proves that nobody does.
    fn look(&self) -> Result<BTreeMap<PathBuf, (i64, i64)>, String> {
        let mut all = BTreeMap::new();
        let mut trouble = None;
        for (directory, prefix) in [(self.devices.clone(), "tty"), (self.devices.join("pts"), "")] {
            let found = match numbered(&directory, prefix) {
                Ok(found) => found,
                // There is no such directory where there are no networks and no windows.
                Err(error) if error.kind() == ErrorKind::NotFound && prefix.is_empty() => continue,
                Err(error) => {
                    trouble = Some(format!("{}: {error}", directory.display()));
                    continue;
                }
            };
            for path in found {
                match fs::metadata(&path) {
                    Ok(file) => {
                        all.insert(path, (file.atime(), file.atime_nsec()));
                    }
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => trouble = Some(format!("{}: {error}", path.display())),
                }
            }
        }
        match trouble {
            Some(why) if all.is_empty() || self.proves == Proves::Absence => Err(why),
            None if all.is_empty() => Err("there are no terminals".to_owned()),
            Some(_) | None => Ok(all),
        }
    }
}

/// The thread, until it is dropped.
struct Ears {
    heard: Arc<Mutex<Moment>>,
    /// It may not listen at all of them.
    misses_some: bool,
    end: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Ears {
    fn start(devices: &Path, noticed: impl Fn() + Send + 'static) -> std::io::Result<Ears> {
        let reads = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let changes = WatchFlags::ACCESS | WatchFlags::CREATE | WatchFlags::DELETE;
        // Not the directory of all devices: some of them are read all the time.
        let mut misses_some = false;
        for console in numbered(devices, "tty")? {
            misses_some |= !listen_at(&reads, &console, WatchFlags::ACCESS)?;
        }
        misses_some |= !listen_at(&reads, &devices.join("pts"), changes)?;
        let (until, end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let heard = Arc::new(Mutex::new(Moment::ZERO));
        let shared = Arc::clone(&heard);
        let listen = move || {
            while somebody_reads(&reads, &until) {
                *shared.lock().expect("nothing panics under this lock") = clock::now();
                noticed();
                let pause = Timespec { tv_sec: 0, tv_nsec: i64::from(GATHER.subsec_nanos()) };
                let _ = poll(&mut [PollFd::new(&until, PollFlags::IN)], Some(&pause));
            }
        };
        let thread = std::thread::Builder::new().name("pcfarm-terminals".to_owned()).spawn(listen)?;
        Ok(Ears { heard, misses_some, end: Some(end), thread: Some(thread) })
    }

    /// Of what somebody does at a terminal it may not be told.
    fn misses_some(&self) -> bool {
        self.misses_some || self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn heard(&self) -> Moment {
        *self.heard.lock().expect("nothing panics under this lock")
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

/// False: it may not. What is not there makes no sound.
fn listen_at(reads: &OwnedFd, what: &Path, sounds: WatchFlags) -> std::io::Result<bool> {
    match inotify::add_watch(reads, what, sounds) {
        Ok(_) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::ACCESS | Errno::PERM) => {
            debug!(what = %what.display(), "it is only looked at");
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

/// Waits until somebody does. False: it is time to end.
fn somebody_reads(reads: &OwnedFd, until: &OwnedFd) -> bool {
    loop {
        let mut watched = [PollFd::new(until, PollFlags::IN), PollFd::new(reads, PollFlags::IN)];
        match poll(&mut watched, None) {
            Ok(_) if !watched[0].revents().is_empty() => return false,
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return false,
        }
        let mut buffer = [const { MaybeUninit::uninit() }; 4096];
        let mut events = inotify::Reader::new(reads, &mut buffer);
        let mut any = false;
        loop {
            let event = match events.next() {
                Ok(event) => event,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(_) => return false,
            };
            // The side of a window's terminal that shows what was written is `ptmx`.
            let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
            any |= name.is_none_or(|name| name.parse::<u32>().is_ok()) && !event.events().contains(ReadFlags::IGNORED);
        }
        if any {
            return true;
        }
    }
}

fn numbered(directory: &Path, prefix: &str) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let number =
            name.to_str().and_then(|name| name.strip_prefix(prefix)).filter(|rest| rest.parse::<u32>().is_ok());
        // `tty0` is whichever console is in front.
        paths.extend(number.filter(|number| *number != "0" || prefix.is_empty()).map(|_| entry.path()));
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use std::fs::{File, FileTimes};
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn whoever_types_is_seen_and_no_clock_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = Duration::from_secs;
        let mut terminals = Terminals::new(dir.path().to_owned(), Proves::Presence, at(1));
        let last = |terminals: &mut Terminals, now| terminals.read(at(now)).says.map(|input| input.last);
        assert_eq!(last(&mut terminals, 2), Err("there are no terminals".to_owned()));
        fs::create_dir(dir.path().join("pts")).expect("made");
        let touched = |name: &str, seconds| {
            let file = File::options().create(true).append(true).open(dir.path().join(name)).expect("a file");
            let when = SystemTime::UNIX_EPOCH + at(seconds);
            file.set_times(FileTimes::new().set_accessed(when)).expect("set");
        };
        for name in ["tty1", "tty0", "ttyS0", "pts/0", "pts/ptmx"] {
            touched(name, 1_000_000);
        }
        assert_eq!(last(&mut terminals, 10), Ok(at(10)));
        assert_eq!(last(&mut terminals, 20), Ok(at(10)));
        for name in ["tty0", "ttyS0", "pts/ptmx"] {
            touched(name, 2_000_000);
        }
        assert_eq!(last(&mut terminals, 30), Ok(at(10)));
        touched("pts/0", 2_000_000);
        assert_eq!(last(&mut terminals, 40), Ok(at(40)));
        // A clock that was set back.
        touched("tty1", 500);
        assert_eq!(last(&mut terminals, 50), Ok(at(50)));
        touched("pts/7", 500);
        assert_eq!(last(&mut terminals, 60), Ok(at(60)));
        fs::remove_file(dir.path().join("pts/7")).expect("it is there");
        assert_eq!(last(&mut terminals, 70), Ok(at(70)));
        fs::remove_dir_all(dir.path()).expect("it is there");
        assert!(last(&mut terminals, 80).is_err());
        assert_eq!(terminals.read(at(80)).source, SOURCE);
    }

    /// On a terminal of its own, as the kernel has them.
    #[test]
    fn whoever_types_is_noticed_at_once() {
        let pair = rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY);
        let controller = pair.expect("a terminal");
        rustix::pty::grantpt(&controller).expect("granted");
        rustix::pty::unlockpt(&controller).expect("unlocked");
        let name = rustix::pty::ptsname(&controller, Vec::new()).expect("it has a name");
        let mut terminal = File::options().read(true).write(true).open(name.to_str().expect("text")).expect("opened");
        let (sender, noticed) = std::sync::mpsc::channel();
        let mut terminals = Terminals::start("/dev".into(), Proves::Presence, move || {
            let _ = sender.send(());
        });
        assert!(terminals.ears.is_some(), "this kernel cannot be asked to say who reads");
        let before = terminals.read(clock::now()).says.expect("there is one").last;
        rustix::io::write(&controller, b"x\n").expect("typed");
        std::io::Read::read(&mut terminal, &mut [0; 8]).expect("read");
        // Others may read from terminals of theirs meanwhile.
        while terminals.read(clock::now()).says.expect("there is one").last <= before {
            noticed.recv_timeout(Duration::from_secs(10)).expect("it is noticed");
        }
    }

    /// As a service is: consoles belong to root, or to whoever is logged in there.
    #[test]
    fn who_may_not_listen_at_consoles_looks_at_them_and_hears_all_others() {
        let dir = tempfile::tempdir().expect("a directory");
        let pts = dir.path().join("pts");
        fs::create_dir(&pts).expect("made");
        let closed = std::os::unix::fs::PermissionsExt::from_mode(0o000);
        for name in ["tty1", "pts/0"] {
            fs::write(dir.path().join(name), "x").expect("written");
        }
        fs::set_permissions(dir.path().join("tty1"), closed).expect("it may");
        let nobody = rustix::process::Uid::from_raw(65534);
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            for ours in [dir.path().to_owned(), pts.clone(), pts.join("0")] {
                rustix::fs::chown(ours, Some(nobody), None).expect("it may");
            }
        }
        let place = dir.path().to_owned();
        let (sender, noticed) = std::sync::mpsc::channel();
        // Of this thread alone, which ends with it.
        let unprivileged = std::thread::spawn(move || {
            if is_root {
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("it may");
            }
            let mut terminals = Terminals::start(place.clone(), Proves::Presence, move || {
                let _ = sender.send(());
            });
            let input = terminals.read(clock::now()).says.expect("there are some");
            assert!(input.untold, "one of them makes no sound");
            fs::read(place.join("pts/0")).expect("it is read");
            noticed.recv_timeout(Duration::from_secs(10)).expect("it is heard");
            assert!(terminals.read(clock::now()).says.expect("there are some").last > input.last);
        });
        unprivileged.join().expect("all is well");
    }

    #[test]
    fn what_cannot_be_looked_at_proves_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("tty1"), "").expect("written");
        let says = |proves| {
            let mut terminals = Terminals::new(dir.path().to_owned(), proves, Moment::ZERO);
            terminals.read(Duration::from_secs(1)).says
        };
        assert!(says(Proves::Absence).is_ok(), "there are no networks and no windows");
        // What even root cannot list, or look at.
        fs::write(dir.path().join("pts"), "").expect("written");
        assert!(says(Proves::Absence).is_err_and(|why| why.contains("pts: Not a directory")));
        assert!(says(Proves::Presence).is_ok(), "who sits at a console is still there");
        fs::remove_file(dir.path().join("pts")).expect("it is there");
        fs::create_dir(dir.path().join("pts")).expect("made");
        std::os::unix::fs::symlink("0", dir.path().join("pts/0")).expect("made");
        assert!(says(Proves::Absence).is_err_and(|why| why.contains("pts/0: ")));
        assert!(says(Proves::Presence).is_ok());
    }
}
