//! The thread that waits for input, reads and probes devices, and finds those that come and go.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::io::Errno;
use tracing::{debug, warn};

use super::description::{Description, fits};
use super::device::{Device, Touches, next_probe};
use super::{Asleep, NO_DEVICES, Places, Seen, locked};
use crate::clock;
use crate::presence::bump::Touch;
use crate::presence::signals::Moment;

/// Pause after input. A person who types causes ten wake-ups per second, not a thousand.
pub(super) const GATHER: Duration = Duration::from_millis(100);

/// An agent at work asks more often than that. Then noisy devices wake the thread as well: the kernel's buffer of a device holds less
/// than a tenth of a second of a noisy stick, and the press of a button must not be lost in it.
const ASKED_AT_WORK: Duration = Duration::from_secs(2);

/// Devices that are named in notes.
const NOTES_LIMIT: usize = 8;

/// Devices that one note names.
const NAMES_LIMIT: usize = 4;

struct Woken {
    /// It is time to end.
    ended: bool,
    /// Devices have come or gone.
    changed: bool,
    /// A device has events.
    by_device: bool,
}

pub(super) struct Watcher<N> {
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
    pub(super) fn new(places: Places, seen: Arc<Mutex<Seen>>, noticed: N) -> Watcher<N> {
        Watcher { places, devices: BTreeMap::new(), seen, asked: None, noticed }
    }

    /// Starts the thread. Returns the pipe that asks it to look; the thread ends when the pipe is closed.
    pub(super) fn start(mut self) -> Result<(OwnedFd, JoinHandle<()>), String> {
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
        if let Some((_, name)) = self.next_probe().filter(|(due, _)| *due <= now)
            && let Some(device) = self.devices.get_mut(&name)
        {
            device.probe(now);
        }
        self.plan_probe();
    }

    /// Lets the thread be asked when the next probe is due.
    fn plan_probe(&self) {
        let is_noisy = self.devices.values().any(Device::is_noisy);
        let probe = self.next_probe().map_or(Moment::MAX, |(due, _)| due);
        locked(&self.seen).due = if is_noisy { Moment::ZERO } else { probe };
    }

    fn next_probe(&self) -> Option<(Moment, String)> {
        let counted: Vec<_> = self.devices.iter().filter(|(_, device)| !device.is_noisy()).collect();
        let times: Vec<_> = counted.iter().map(|(_, device)| device.times()).collect();
        next_probe(&times).map(|(due, place)| (due, counted[place].0.clone()))
    }

    fn note(&self) {
        let notes = self.devices.iter().filter_map(|(event, device)| device.note(event)).take(NOTES_LIMIT).collect();
        let mut seen = locked(&self.seen);
        seen.misses_some = self.devices.values().any(Device::is_grabbed);
        seen.notes = notes;
    }

    /// Opens new devices, forgets removed ones, and notes whether every device can be watched.
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
            match Device::open(&self.places.devices.join(&name), &described, is_ignored, now) {
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
        if is_new {
            self.plan_probe();
        }
        let mut seen = locked(&self.seen);
        let watching = match (failures.first(), self.devices.values().any(Device::counts)) {
            (Some(first), _) => Err(format!("cannot open {first}")),
            (None, false) => Err(NO_DEVICES.to_owned()),
            (None, true) => Ok(()),
        };
        seen.no_keyboard = no_keyboard(self.devices.values());
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

/// For people, if there are devices whose input counts, but no keyboard and no pointing device among them.
fn no_keyboard<'a>(devices: impl Iterator<Item = &'a Device> + Clone) -> Option<String> {
    if devices.clone().any(Device::proves_absence) {
        return None;
    }
    let names: Vec<_> =
        devices.filter(|device| device.counts()).map(|device| format!("\"{}\"", device.named)).collect();
    let named = names.iter().take(NAMES_LIMIT).map(String::as_str).collect::<Vec<_>>().join(", ");
    (!names.is_empty()).then(|| format!("beside {named} {NO_DEVICES}"))
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
    use super::super::tests::Desk;
    use super::*;
    use crate::presence::evdev::Evdev;

    #[test]
    fn a_new_device_is_probed_after_a_quiet_minute() {
        let desk = Desk::new();
        let seen = Arc::new(Mutex::new(Evdev::unseen(clock::awake())));
        let mut watcher = Watcher::new(desk.places(), Arc::clone(&seen), || {});
        let _keyboard = desk.plug("event0", "A keyboard", "120013");
        // All others were probed a moment ago.
        locked(&seen).due = clock::now() + Duration::from_secs(600);
        watcher.look_for_devices();
        assert!(locked(&seen).due <= clock::now() + super::super::device::QUIET);
    }
}
