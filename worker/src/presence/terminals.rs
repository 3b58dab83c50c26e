//! Terminals: consoles, and those of windows and of logins over the network.
//!
//! Owns the times of access of terminals; `ears` hears from the kernel when a terminal is read. A terminal knows nothing of a
//! graphical desktop beside it, so it proves presence and, unless the owner says that there is nothing else, never absence.
//! Typing and a new terminal are activity; closing a terminal is not. Terminals of the farm's own programs do not count.

mod ears;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tracing::debug;

use self::ears::Ears;
use super::signals::{Input, Moment, Proves, Reading};
use crate::clock;

pub const SOURCE: &str = "tty";

/// Times of access by terminal. The kernel notes them to eight seconds; only a change counts, so that no change of the clock looks
/// like a person or hides one.
pub struct Terminals {
    /// `/dev`.
    devices: PathBuf,
    accessed: Option<Accessed>,
    last: Moment,
    proves: Proves,
    /// Accounts whose terminals belong to programs of the farm.
    own: BTreeSet<u32>,
    ears: Option<Ears>,
}

type Accessed = BTreeMap<PathBuf, (i64, i64)>;

impl Terminals {
    /// Calls `noticed` when somebody may have typed. Where that cannot be had, [`Terminals::read`] finds out when it is called.
    pub fn start(
        devices: PathBuf,
        proves: Proves,
        own: BTreeSet<u32>,
        noticed: impl Fn() + Send + 'static,
    ) -> Terminals {
        let ears = Ears::start(&devices, own.clone(), noticed)
            .inspect_err(|error| debug!(%error, "terminals are only looked at"));
        Terminals { ears: ears.ok(), own, ..Terminals::new(devices, proves, clock::now()) }
    }

    fn new(devices: PathBuf, proves: Proves, now: Moment) -> Terminals {
        Terminals { devices, accessed: None, last: now, proves, own: BTreeSet::new(), ears: None }
    }

    pub fn read(&mut self, now: Moment) -> Reading<Input> {
        let says = self.look().map(|accessed| {
            if self.accessed.as_ref().is_none_or(|before| is_used(before, &accessed)) {
                self.last = now;
            }
            // A time of access does not change within eight seconds of its last change.
            let heard = self.ears.as_ref().map_or(Moment::ZERO, Ears::heard);
            self.last = self.last.max(heard);
            self.accessed = Some(accessed);
            let untold = self.ears.as_ref().is_none_or(Ears::misses_some);
            Input { last: self.last, proves: self.proves, bump: None, untold, at_seat: false }
        });
        if says.is_err() {
            self.accessed = None;
        }
        Reading::new(SOURCE, now, says)
    }

    /// Somebody may sit at one that cannot be looked at: that matters only to what proves that nobody does.
    fn look(&self) -> Result<Accessed, String> {
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
                    Ok(file) if is_own(&self.devices, &path, file.uid(), &self.own) => {}
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

/// True if a terminal was read or opened between two looks.
fn is_used(before: &Accessed, now: &Accessed) -> bool {
    now.iter().any(|(terminal, accessed)| before.get(terminal) != Some(accessed))
}

/// Consoles belong to the account that is logged in there.
fn is_own(devices: &Path, terminal: &Path, user: u32, own: &BTreeSet<u32>) -> bool {
    own.contains(&user) && terminal.parent() != Some(devices)
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
        // A connection that breaks closes its terminal.
        fs::remove_file(dir.path().join("pts/7")).expect("it is there");
        assert_eq!(last(&mut terminals, 70), Ok(at(60)));
        fs::remove_dir_all(dir.path()).expect("it is there");
        assert!(last(&mut terminals, 80).is_err());
        assert_eq!(terminals.read(at(80)).source, SOURCE);
    }

    /// A terminal of the kernel, with the side that types.
    fn a_terminal() -> (std::os::fd::OwnedFd, File) {
        let pair = rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY);
        let types = pair.expect("a terminal");
        rustix::pty::grantpt(&types).expect("granted");
        rustix::pty::unlockpt(&types).expect("unlocked");
        let name = rustix::pty::ptsname(&types, Vec::new()).expect("it has a name");
        let terminal = File::options().read(true).write(true).open(name.to_str().expect("text")).expect("opened");
        (types, terminal)
    }

    fn type_at((types, terminal): &mut (std::os::fd::OwnedFd, File)) {
        rustix::io::write(types, b"x\n").expect("typed");
        std::io::Read::read(terminal, &mut [0; 8]).expect("read");
    }

    /// On the machine's own `/dev/pts`. Programs of others may use terminals meanwhile, so a quiet second is waited for.
    #[test]
    fn looks_do_not_wake_the_ears_and_typing_does() {
        let mut terminal = a_terminal();
        let (sender, noticed) = std::sync::mpsc::channel();
        let mut terminals = Terminals::start("/dev".into(), Proves::Presence, BTreeSet::new(), move || {
            let _ = sender.send(());
        });
        let woken = |terminals: &Terminals| terminals.ears.as_ref().expect("this kernel has inotify").woken();
        let is_quiet = |terminals: &mut Terminals| {
            let before = woken(terminals);
            for _ in 0..20 {
                fs::read_dir("/dev/pts").expect("there are terminals").for_each(drop);
                terminals.read(clock::now()).says.expect("there is one");
                std::thread::sleep(Duration::from_millis(50));
            }
            woken(terminals) == before
        };
        let tries = (0..30).take_while(|_| !is_quiet(&mut terminals)).count();
        assert!(tries < 30, "every second of thirty had events");
        let before = terminals.read(clock::now()).says.expect("there is one").last;
        while noticed.try_recv().is_ok() {}
        type_at(&mut terminal);
        while terminals.read(clock::now()).says.expect("there is one").last <= before {
            noticed.recv_timeout(Duration::from_secs(10)).expect("typing is noticed");
        }
        // A terminal that is opened later is heard as well.
        let mut later = a_terminal();
        noticed.recv_timeout(Duration::from_secs(10)).expect("a new terminal is noticed");
        std::thread::sleep(Duration::from_millis(300));
        while noticed.try_recv().is_ok() {}
        type_at(&mut later);
        noticed.recv_timeout(Duration::from_secs(10)).expect("typing there is noticed");
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
            let mut terminals = Terminals::start(place.clone(), Proves::Presence, BTreeSet::new(), move || {
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

    /// Needs root, as does `run_as`.
    #[test]
    fn terminals_of_the_farms_own_programs_are_nobodys() {
        const PROGRAM: u32 = 65534;
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let pts = dir.path().join("pts");
        fs::create_dir(&pts).expect("made");
        fs::write(pts.join("0"), "x").expect("written");
        let of_program = |name: &str| {
            fs::write(dir.path().join("aside"), "x").expect("written");
            std::os::unix::fs::chown(dir.path().join("aside"), Some(PROGRAM), None).expect("it may");
            fs::rename(dir.path().join("aside"), pts.join(name)).expect("moved");
        };
        of_program("1");
        let (sender, noticed) = std::sync::mpsc::channel();
        let mut terminals =
            Terminals::start(dir.path().to_owned(), Proves::Presence, BTreeSet::from([PROGRAM]), move || {
                let _ = sender.send(());
            });
        let mut last = || terminals.read(clock::now()).says.expect("there is one").last;
        let before = last();
        fs::read(pts.join("1")).expect("it is read");
        of_program("2");
        fs::read(pts.join("2")).expect("it is read");
        assert!(noticed.recv_timeout(Duration::from_millis(300)).is_err());
        assert_eq!(last(), before);
        fs::read(pts.join("0")).expect("it is read");
        noticed.recv_timeout(Duration::from_secs(10)).expect("a person's is heard");
        assert!(last() > before);
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
