//! Keyboards and pointing devices, as the kernel sees them: `/dev/input/event*`.
//!
//! Owns one thread that sleeps until a person touches a device, with any display or none. It must never miss a device: one that
//! it cannot watch makes the whole source useless, and the source names it. A new device is activity. Removing one is not,
//! because radios lose their devices at night as well.
//!
//! Devices that make noise, or that the owner ignores, do not wake the thread of an idle agent: the thread reads them when it is
//! asked. The times of their events matter all the same, because a desktop takes such an event for input (`Noises`).

mod description;
mod device;
mod events;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::io::Errno;
use tracing::{debug, warn};

use self::description::{Description, fits};
use self::device::{Device, Touches, next_probe};
use super::bump::{Filter, Touch};
use super::signals::{Input, Moment, Noises, Proves, Reading};
use crate::clock;

pub const SOURCE: &str = super::policy::DEVICES;

/// After something was seen the thread lets this much gather: somebody who types costs ten wake-ups a second, not a thousand.
const GATHER: Duration = Duration::from_millis(100);

/// It is not asked more often.
const ASK_EVERY: Duration = Duration::from_millis(900);

/// An agent at work asks more often than that. Then noisy devices wake the thread as well: the kernel's buffer of a device holds less
/// than a tenth of a second of a noisy stick, and the press of a button must not be lost in it.
const ASKED_AT_WORK: Duration = Duration::from_secs(2);

// Types and codes of linux/input-event-codes.h.
const EV_KEY: u16 = 1;
const EV_REL: u16 = 2;
const EV_ABS: u16 = 3;
const EV_SW: u16 = 5;
const REL_WHEELS: [u16; 4] = [6, 8, 11, 12];
const SW_LID: u64 = 1;

/// Axes below are those of sticks, pedals, hats and pointers; fingers and sliders are above.
const ABS_OF_STICKS: u16 = 0x1d;

/// Devices that are named in notes.
const NOTES_LIMIT: usize = 8;

const NO_DEVICES: &str = "there are no keyboards and no pointing devices; what permits work: \
                          unattended = true for a machine without a person, trust_terminals = true in [presence] where people only use terminals";

/// Where devices are, and what is known of them.
#[derive(Clone, Debug)]
pub struct Places {
    /// `/dev/input`.
    pub devices: PathBuf,
    /// `/sys/class/input`.
    pub classes: PathBuf,
    /// Patterns for names of devices to ignore.
    pub ignored: Vec<String>,
}

/// The thread, until it is dropped.
pub struct Evdev {
    seen: Arc<Mutex<Seen>>,
    /// Its thread is asked by it whether it looks, and ends when it is closed.
    ask: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

struct Seen {
    /// When the thread has last looked at all devices, on the clock that stands still while the machine sleeps.
    looked: Duration,
    last: Moment,
    filter: Filter,
    /// Whether all devices are watched, or why not.
    watching: Result<(), String>,
    /// Another program has one of them for itself.
    misses_some: bool,
    /// Noisy and grabbed devices.
    notes: Vec<String>,
    noises: Noises,
    /// The thread sleeps until one of its files has something to read.
    asleep: Option<Asleep>,
    /// The thread is to be asked from then on, for a probe or for devices that do not wake it.
    due: Moment,
}

struct Asleep {
    devices: Vec<Arc<File>>,
    changes: Arc<OwnedFd>,
}

impl Asleep {
    /// Returns true if the thread would read nothing. Then it need not be woken for that.
    fn has_nothing_to_read(&self) -> bool {
        let mut watched = vec![PollFd::new(&self.changes, PollFlags::IN)];
        watched.extend(self.devices.iter().map(|device| PollFd::new(device, PollFlags::IN)));
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut watched, Some(&at_once)) == Ok(0)
    }
}

impl Evdev {
    /// Calls `noticed` whenever there is something new to read. What there is already can be read at once.
    pub fn start(places: Places, noticed: impl Fn() + Send + 'static) -> Evdev {
        let looked = clock::awake();
        let seen = Seen {
            looked,
            last: clock::now(),
            filter: Filter::default(),
            watching: Err("it does not look".to_owned()),
            misses_some: false,
            notes: Vec::new(),
            noises: Noises::default(),
            asleep: None,
            due: Moment::ZERO,
        };
        let seen = Arc::new(Mutex::new(seen));
        let watcher = Watcher { places, devices: BTreeMap::new(), seen: Arc::clone(&seen), asked: None, noticed };
        match watcher.start() {
            Ok((ask, thread)) => Evdev { seen, ask: Some(ask), thread: Some(thread) },
            Err(why) => {
                locked(&seen).watching = Err(why);
                Evdev { seen, ask: None, thread: None }
            }
        }
    }

    /// It does not look any more, and will not by itself.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Noisy and grabbed devices, for people.
    pub fn notes(&self) -> Vec<String> {
        locked(&self.seen).notes.clone()
    }

    /// Times at which devices moved without a person.
    pub fn noises(&self) -> Noises {
        locked(&self.seen).noises.clone()
    }

    /// Asks the thread to look now.
    pub fn ask(&self) {
        if let Some(ask) = &self.ask {
            let _ = rustix::io::write(ask, b"?"); // full: it has been asked often enough
        }
    }

    #[cfg(test)]
    pub fn make_old(&self, age: Duration) {
        let mut seen = locked(&self.seen);
        (seen.looked, seen.asleep) = (seen.looked.saturating_sub(age), None);
    }

    /// Returns true if the thread has looked since, or never will.
    pub fn has_looked(&self, since: Duration) -> bool {
        self.has_ended() || locked(&self.seen).looked >= since
    }

    /// As old as the last moment at which nothing was left to read. While the thread sleeps, a glance at its files shows that. Otherwise
    /// the thread is asked to look, without waiting for it.
    pub fn read(&self, now: Moment) -> Reading<Input> {
        let mut seen = locked(&self.seen);
        if now < seen.due && seen.asleep.as_ref().is_some_and(Asleep::has_nothing_to_read) {
            seen.looked = clock::awake();
        }
        let age = clock::awake().saturating_sub(seen.looked);
        let says = match &seen.watching {
            Err(why) => Err(why.clone()),
            Ok(()) if self.has_ended() => Err("its thread has ended".to_owned()),
            Ok(()) => Ok(Input {
                last: seen.last,
                proves: if seen.misses_some { Proves::Presence } else { Proves::Absence },
                bump: seen.filter.bump(),
                untold: false,
                at_seat: false,
            }),
        };
        drop(seen);
        if age >= ASK_EVERY {
            self.ask();
        }
        Reading::new(SOURCE, now.saturating_sub(age), says)
    }
}

impl Drop for Evdev {
    fn drop(&mut self) {
        drop(self.ask.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn locked(seen: &Mutex<Seen>) -> std::sync::MutexGuard<'_, Seen> {
    seen.lock().expect("nothing panics under this lock")
}

struct Woken {
    /// It is time to end.
    ended: bool,
    /// Devices have come or gone.
    changed: bool,
    /// A device has events.
    by_device: bool,
}

struct Watcher<N> {
    places: Places,
    devices: BTreeMap<String, Device>,
    seen: Arc<Mutex<Seen>>,
    asked: Option<Asked>,
    noticed: N,
}

/// The last question whether the thread looks.
struct Asked {
    at: Duration,
    /// The question followed another within [`ASKED_AT_WORK`].
    is_at_work: bool,
}

impl<N: Fn() + Send + 'static> Watcher<N> {
    /// What it is asked and ended by, and its thread.
    fn start(mut self) -> Result<(OwnedFd, JoinHandle<()>), String> {
        let changes = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)
            .map_err(|error| format!("cannot watch for devices: {error}"))?;
        // Permissions come a moment after the device.
        let wanted = inotify::WatchFlags::CREATE
            | inotify::WatchFlags::DELETE
            | inotify::WatchFlags::MOVE
            | inotify::WatchFlags::ATTRIB
            | inotify::WatchFlags::DELETE_SELF
            | inotify::WatchFlags::ONLYDIR;
        let directory = &self.places.devices;
        inotify::add_watch(&changes, directory, wanted).map_err(|error| match error {
            // The kernel makes the directory for the first device.
            Errno::NOENT => NO_DEVICES.to_owned(),
            error => format!("{}: {error}", directory.display()),
        })?;
        let flags = rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK;
        let (asked, ask) = rustix::pipe::pipe_with(flags).map_err(|error| format!("cannot make a pipe: {error}"))?;
        self.look_for_devices();
        let changes = Arc::new(changes);
        let run = move || {
            if let Err(why) = self.watch(&asked, &changes) {
                warn!(why, "input devices cannot be watched");
                locked(&self.seen).watching = Err(why);
                (self.noticed)();
            }
        };
        let thread = std::thread::Builder::new().name("pcfarm-input".to_owned()).spawn(run);
        Ok((ask, thread.map_err(|error| format!("cannot start a thread: {error}"))?))
    }

    /// Until the other end of `asked` is closed. An error: nothing can be seen from now on.
    fn watch(&mut self, asked: &OwnedFd, changes: &Arc<OwnedFd>) -> Result<(), String> {
        loop {
            let devices = self.devices.values().map(|device| Arc::clone(&device.file)).collect();
            locked(&self.seen).asleep = Some(Asleep { devices, changes: Arc::clone(changes) });
            let woken = self.wait(asked, changes);
            locked(&self.seen).asleep = None;
            let Woken { ended, changed, by_device } = woken?;
            if ended {
                return Ok(());
            }
            let looked = clock::awake();
            if drain(asked) {
                let is_at_work = self.asked.as_ref().is_some_and(|last| looked.saturating_sub(last.at) < ASKED_AT_WORK);
                self.asked = Some(Asked { at: looked, is_at_work });
            }
            let touched = self.read_devices();
            locked(&self.seen).looked = looked;
            if changed {
                drain(changes);
                if !self.places.devices.is_dir() {
                    return Err(format!("{} is gone", self.places.devices.display()));
                }
                self.look_for_devices();
            }
            if touched || changed {
                (self.noticed)();
            }
            if by_device || changed {
                let gather = if self.hears_noise() { GATHER / 2 } else { GATHER };
                let pause = Timespec { tv_sec: 0, tv_nsec: i64::from(gather.subsec_nanos()) };
                // Only its end, and no question, cuts that short.
                let _ = poll(&mut [PollFd::new(asked, PollFlags::empty())], Some(&pause));
            }
        }
    }

    /// Noisy devices wake the thread while the agent works.
    fn hears_noise(&self) -> bool {
        let is_at_work = self.asked.as_ref().is_some_and(|asked| asked.is_at_work);
        is_at_work && self.devices.values().any(Device::is_noisy)
    }

    fn wait(&self, asked: &OwnedFd, changes: &OwnedFd) -> Result<Woken, String> {
        let mut watched = vec![PollFd::new(asked, PollFlags::IN), PollFd::new(changes, PollFlags::IN)];
        let hears_noise = self.hears_noise();
        let heard = self.devices.values().filter(|device| hears_noise || !device.is_noisy());
        watched.extend(heard.map(|device| PollFd::new(&device.file, PollFlags::IN)));
        match poll(&mut watched, None) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Woken { ended: false, changed: false, by_device: false }),
            Err(error) => return Err(format!("cannot wait for input: {error}")),
        }
        let ended = watched[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
        let by_device = watched[2..].iter().any(|device| !device.revents().is_empty());
        Ok(Woken { ended, changed: !watched[1].revents().is_empty(), by_device })
    }

    /// Reads all devices. True if a person touched one. Forgets devices that have gone.
    fn read_devices(&mut self) -> bool {
        let now = clock::now();
        let mut any = false;
        let mut gone = Vec::new();
        for (name, device) in &mut self.devices {
            match device.read(now) {
                Some(Touches { counted, noise_since }) => {
                    any |= take(&self.seen, counted, now);
                    if let Some(since) = noise_since {
                        locked(&self.seen).noises.add(since, now);
                    }
                }
                None => gone.push(name.clone()),
            }
        }
        if !gone.is_empty() {
            for name in gone {
                debug!(device = name, "an input device is gone");
                self.devices.remove(&name);
            }
            self.look_for_devices();
        }
        self.probe(now);
        self.note();
        any
    }

    /// Probes at most one device, for a probe takes some milliseconds in which nothing is read.
    fn probe(&mut self, now: Moment) {
        let mut counted: Vec<&mut Device> = self.devices.values_mut().filter(|device| !device.is_noisy()).collect();
        let times: Vec<_> = counted.iter().map(|device| device.times()).collect();
        if let Some((_, place)) = next_probe(&times).filter(|(due, _)| *due <= now) {
            counted[place].probe(now);
        }
        let times: Vec<_> = counted.iter().map(|device| device.times()).collect();
        let probe = next_probe(&times).map_or(Moment::MAX, |(due, _)| due);
        let is_noisy = self.devices.values().any(Device::is_noisy);
        locked(&self.seen).due = if is_noisy { Moment::ZERO } else { probe };
    }

    fn note(&self) {
        let notes = self.devices.iter().filter_map(|(event, device)| device.note(event)).take(NOTES_LIMIT).collect();
        let mut seen = locked(&self.seen);
        seen.misses_some = self.devices.values().any(Device::is_grabbed);
        seen.notes = notes;
    }

    /// Opens what is new, forgets what has gone, and says whether all that there is can be seen.
    fn look_for_devices(&mut self) {
        let now = clock::now();
        let found = match event_files(&self.places.devices) {
            Ok(found) => found,
            Err(error) => {
                locked(&self.seen).watching = Err(format!("{}: {error}", self.places.devices.display()));
                return;
            }
        };
        self.devices.retain(|name, _| found.contains(name));
        let mut is_new = false;
        let mut failures = Vec::new();
        for name in found {
            let described = Description::read(&self.places.classes.join(&name).join("device"));
            if self.devices.contains_key(&name) || !described.is_of_people() {
                continue;
            }
            let is_ignored = self.is_ignored(&described);
            match Device::open(&self.places.devices.join(&name), described.name.clone(), is_ignored, now) {
                Ok(device) => {
                    debug!(device = name, named = described.name, is_ignored, "watching an input device");
                    self.devices.insert(name, device);
                    is_new |= !is_ignored;
                }
                // Without the times of its events a desktop may take it for a person.
                Err(error) if is_ignored => debug!(device = name, %error, "an ignored input device is not seen"),
                // The device is being removed, and its file goes next.
                Err(error) if is_gone(&error) => {}
                Err(error) => failures.push(format!("{name} ({}): {error}", described.name)),
            }
        }
        let mut seen = locked(&self.seen);
        let watching = match (failures.first(), self.devices.values().any(Device::counts)) {
            (Some(first), _) => Err(format!("cannot open {first}")),
            (None, false) => Err(NO_DEVICES.to_owned()),
            (None, true) => Ok(()),
        };
        // Input before a device was opened is not known; and a person has plugged it in.
        if is_new || seen.watching.is_err() {
            seen.last = now;
        }
        seen.watching = watching;
    }

    fn is_ignored(&self, described: &Description) -> bool {
        self.places.ignored.iter().any(|pattern| fits(pattern, &described.name))
    }
}

/// Whether any of them counts: of each how long ago it was. From the first of them on its person waits.
fn take(seen: &Mutex<Seen>, touches: impl IntoIterator<Item = (Touch, Duration)>, now: Moment) -> bool {
    let mut seen = locked(seen);
    let (mut any, before) = (false, seen.filter.bump());
    for (touch, age) in touches {
        if seen.filter.counts(touch, now) && !std::mem::replace(&mut any, true) {
            seen.last = seen.last.max(now.saturating_sub(age));
        }
    }
    // A movement in doubt is told, too: others may have seen it.
    any || seen.filter.bump() != before
}

fn is_gone(error: &std::io::Error) -> bool {
    let number = error.raw_os_error();
    [Errno::NODEV, Errno::NXIO].iter().any(|gone| number == Some(gone.raw_os_error()))
}

fn event_files(directory: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let is_one = |name: &&str| name.strip_prefix("event").is_some_and(|rest| rest.parse::<u32>().is_ok());
        names.extend(name.to_str().filter(is_one).map(str::to_owned));
    }
    Ok(names)
}

/// Returns true if there was something to read.
fn drain(pipe: &OwnedFd) -> bool {
    let mut buffer = [0; 4096];
    let mut any = false;
    while rustix::io::read(pipe, &mut buffer).is_ok_and(|bytes| bytes > 0) {
        any = true;
    }
    any
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::mpsc;
    use std::time::UNIX_EPOCH;

    use rustix::fs::Mode;

    use super::events::{EVENT_BYTES, Event, events};
    use super::*;

    /// Devices that are pipes, and what sysfs would say of them.
    struct Desk {
        dir: tempfile::TempDir,
    }

    impl Desk {
        fn new() -> Desk {
            let dir = tempfile::tempdir().expect("a directory");
            fs::create_dir(dir.path().join("input")).expect("made");
            Desk { dir }
        }

        fn places(&self) -> Places {
            Places {
                devices: self.dir.path().join("input"),
                classes: self.dir.path().join("class"),
                ignored: vec!["nobody*".to_owned()],
            }
        }

        /// Plugs a device in; what is written to the file is what it reports.
        fn plug(&self, event: &str, name: &str, capabilities: &str) -> File {
            let described = self.dir.path().join("class").join(event).join("device");
            fs::create_dir_all(described.join("capabilities")).expect("made");
            fs::write(described.join("name"), format!("{name}\n")).expect("written");
            fs::write(described.join("capabilities/ev"), format!("{capabilities}\n")).expect("written");
            let path = self.dir.path().join("input").join(event);
            rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
                .expect("a pipe");
            File::options().read(true).write(true).open(path).expect("its end")
        }
    }

    fn event(kind: u16, code: u16, value: i32) -> Vec<u8> {
        let mut bytes = vec![0; EVENT_BYTES - 8];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(code.to_ne_bytes());
        bytes.extend(value.to_ne_bytes());
        bytes
    }

    struct Watched {
        evdev: Evdev,
        noticed: mpsc::Receiver<()>,
    }

    impl Watched {
        fn start(desk: &Desk) -> Watched {
            let (sender, noticed) = mpsc::channel();
            let evdev = Evdev::start(desk.places(), move || {
                let _ = sender.send(());
            });
            Watched { evdev, noticed }
        }

        /// What it says as soon as that is what is expected.
        fn until(&self, what: &str, expected: impl Fn(&Result<Input, String>) -> bool) -> Result<Input, String> {
            loop {
                let says = self.evdev.read(clock::now()).says;
                if expected(&says) {
                    return says;
                }
                if self.noticed.recv_timeout(Duration::from_secs(2)).is_err() {
                    let says = self.evdev.read(clock::now()).says;
                    assert!(expected(&says), "not {what}: {says:?}");
                    return says;
                }
            }
        }

        fn last(&self) -> Moment {
            self.until("watching", Result::is_ok).expect("just said").last
        }
    }

    #[test]
    fn whoever_touches_something_is_seen() {
        let desk = Desk::new();
        let keyboard = desk.plug("event0", "A keyboard", "120013");
        let mouse = desk.plug("event1", "A mouse", "17");
        let watched = Watched::start(&desk);
        let mut last = watched.last();
        for (what, mut device, events) in [
            ("a key", &keyboard, event(EV_KEY, 30, 1)),
            ("a button", &mouse, event(EV_KEY, 0x110, 1)),
            ("a wheel", &mouse, event(EV_REL, 8, 1)),
            ("a movement", &mouse, [event(EV_REL, 0, 30), event(EV_REL, 1, -20)].concat()),
            ("half an event", &keyboard, vec![0; 5]),
        ] {
            device.write_all(&events).expect("written");
            let says = watched.until(what, |says| says.as_ref().is_ok_and(|input| input.last > last));
            last = says.expect("it watches").last;
        }
    }

    #[test]
    fn a_touch_is_as_old_as_the_kernel_says() {
        let read = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let stamped = |seconds: usize, micros: usize| {
            let mut bytes = [seconds.to_ne_bytes(), micros.to_ne_bytes()].concat();
            bytes.extend_from_slice(&event(EV_KEY, 30, 1)[EVENT_BYTES - 8..]);
            bytes
        };
        for (bytes, expected) in [
            (stamped(999_999_999, 920_000), 80),
            (stamped(1_000_000_000, 0), 0),
            // Not stamped, before the clock was changed in either direction, and no time at all.
            (stamped(0, 0), 0),
            (stamped(999_999_998, 999_999), 0),
            (stamped(1_000_000_001, 0), 0),
            (stamped(usize::MAX, usize::MAX), 0),
            (vec![1; 5], 0),
        ] {
            assert_eq!(events(&bytes, read), [(Event::Deliberate, Duration::from_millis(expected))], "{bytes:?}");
        }
    }

    #[test]
    fn lamps_and_bumps_are_nobody() {
        let desk = Desk::new();
        let mut keyboard = desk.plug("event0", "A keyboard", "120013");
        let mut mouse = desk.plug("event1", "A mouse", "17");
        let watched = Watched::start(&desk);
        let last = watched.last();
        keyboard.write_all(&[event(0x11, 0, 1), event(0, 0, 0), event(4, 4, 30)].concat()).expect("written");
        mouse.write_all(&event(EV_REL, 0, 3)).expect("written");
        let says = watched.until("a bump", |says| says.as_ref().is_ok_and(|input| input.bump.is_some()));
        assert_eq!(says.expect("it watches").last, last);
    }

    #[test]
    fn devices_come_and_go() {
        let desk = Desk::new();
        let watched = Watched::start(&desk);
        let nobody = |says: &Result<Input, String>| says.as_ref().is_err_and(|why| why.contains("no keyboards"));
        let _ = watched.until("nothing to watch", nobody);
        // Loudspeakers, jacks, and what its owner named.
        let _speaker = desk.plug("event3", "A loudspeaker", "40001");
        let _jack = desk.plug("event4", "A jack", "21");
        let _ignored = desk.plug("event5", "Nobody's", "120013");
        let mut keyboard = desk.plug("event10", "A keyboard", "120013");
        let last = watched.last();
        keyboard.write_all(&event(EV_KEY, 30, 0)).expect("written");
        let _ = watched.until("a key", |says| says.as_ref().is_ok_and(|input| input.last > last));
        // To unplug one is no activity.
        let second = desk.plug("event11", "Another keyboard", "120013");
        let _ = watched.until("the second", |says| says.as_ref().is_ok_and(|input| input.last > last));
        std::thread::sleep(GATHER * 3);
        let before = watched.last();
        fs::remove_file(desk.dir.path().join("input/event11")).expect("it is there");
        drop(second);
        std::thread::sleep(GATHER * 3);
        assert_eq!(watched.last(), before);
        fs::remove_file(desk.dir.path().join("input/event10")).expect("it is there");
        let _ = watched.until("nothing to watch", nobody);
        let _mouse = desk.plug("event12", "A mouse", "17");
        let _ = watched.until("a mouse", Result::is_ok);
        fs::remove_dir_all(desk.dir.path().join("input")).expect("it is there");
        let _ = watched.until("nowhere to look", |says| says.as_ref().is_err_and(|why| !why.contains("no keyboards")));
    }

    #[test]
    fn a_device_that_cannot_be_opened_makes_it_useless() {
        let desk = Desk::new();
        let _keyboard = desk.plug("event0", "A keyboard", "120013");
        // Even root cannot open what is not there.
        std::os::unix::fs::symlink("nowhere", desk.dir.path().join("input/event1")).expect("made");
        let watched = Watched::start(&desk);
        let says = watched.until("a failure", |says| says.as_ref().is_err_and(|why| why.contains("event1")));
        assert!(says.expect_err("just said").starts_with("cannot open event1 (unknown)"));
    }

    #[test]
    fn a_thread_that_does_not_look_any_more_sees_nobody() {
        let desk = Desk::new();
        let _keyboard = desk.plug("event0", "A keyboard", "120013");
        let watched = Watched::start(&desk);
        let _ = watched.last();
        watched.evdev.make_old(Duration::from_secs(20));
        let reading = watched.evdev.read(clock::now());
        assert!(clock::now().saturating_sub(reading.at) >= Duration::from_secs(20), "it is as old as that");
        // The read asked the thread to look, and the thread answers.
        let is_fresh = || clock::now().saturating_sub(watched.evdev.read(clock::now()).at) < Duration::from_secs(10);
        let answered = (0..200).any(|_| {
            std::thread::sleep(GATHER);
            is_fresh()
        });
        assert!(answered, "its thread answers");
    }

    #[test]
    fn without_a_directory_it_says_so() {
        let dir = tempfile::tempdir().expect("a directory");
        let places = Places { devices: dir.path().join("none"), classes: dir.path().join("none"), ignored: Vec::new() };
        let evdev = Evdev::start(places, || {});
        assert!(evdev.has_ended());
        let says = evdev.read(clock::now()).says;
        assert_eq!(says, Err(NO_DEVICES.to_owned()), "it names the settings that permit work");
    }

    impl Watched {
        fn ask_and_wait(&self) {
            let since = clock::awake();
            self.evdev.ask();
            let has_looked = (0..1000).any(|_| {
                std::thread::sleep(Duration::from_millis(5));
                self.evdev.has_looked(since)
            });
            assert!(has_looked);
        }

        fn has_news(&self) -> bool {
            std::thread::sleep(GATHER);
            self.noticed.try_iter().count() > 0
        }
    }

    #[test]
    fn a_bump_is_told_once() {
        let desk = Desk::new();
        let mut mouse = desk.plug("event1", "A mouse", "17");
        let watched = Watched::start(&desk);
        watched.last();
        mouse.write_all(&event(EV_REL, 0, 3)).expect("written");
        let _ = watched.until("a bump", |says| says.as_ref().is_ok_and(|input| input.bump.is_some()));
        watched.has_news();
        for _ in 0..3 {
            watched.ask_and_wait();
            assert!(!watched.has_news(), "nothing has happened since");
        }
    }

    #[test]
    fn an_ignored_device_wakes_nobody_and_the_times_of_its_events_are_known() {
        let desk = Desk::new();
        let _keyboard = desk.plug("event0", "A keyboard", "120013");
        let mut ignored = desk.plug("event1", "Nobody's", "120013");
        let watched = Watched::start(&desk);
        let last = watched.last();
        watched.ask_and_wait();
        watched.has_news();
        let (before, since) = (clock::now(), clock::awake());
        ignored.write_all(&event(EV_KEY, 30, 1)).expect("written");
        std::thread::sleep(GATHER * 2);
        assert!(!watched.evdev.has_looked(since), "its thread sleeps");
        assert!(!watched.evdev.noises().cover(before, Duration::ZERO));
        watched.ask_and_wait();
        assert!(watched.evdev.noises().cover(before, Duration::ZERO));
        assert!(!watched.has_news());
        assert_eq!(watched.last(), last, "it is no input");
    }

    #[test]
    fn ignored_devices_alone_are_no_devices() {
        let desk = Desk::new();
        let _ignored = desk.plug("event1", "Nobody's", "120013");
        let watched = Watched::start(&desk);
        assert_eq!(watched.evdev.read(clock::now()).says, Err(NO_DEVICES.to_owned()));
    }
}
