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
mod watcher;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::watcher::Watcher;
use super::bump::Filter;
use super::signals::{Input, Moment, Noises, Proves, Reading};
use crate::clock;

pub const SOURCE: &str = super::policy::DEVICES;

/// It is not asked more often.
const ASK_EVERY: Duration = Duration::from_millis(900);

// Types and codes of linux/input-event-codes.h.
const EV_KEY: u16 = 1;
const EV_REL: u16 = 2;
const EV_ABS: u16 = 3;
const EV_SW: u16 = 5;
const REL_WHEELS: [u16; 4] = [6, 8, 11, 12];
const SW_LID: u16 = 0;

/// Axes below are those of sticks, pedals, hats and pointers; fingers and sliders are above.
const ABS_OF_STICKS: u16 = 0x1d;

const NO_DEVICES: &str = "there are no keyboards and no pointing devices; what permits work: \
                          unattended = true for a machine without a person, trust_terminals = true in [presence] where people only use terminals";

/// Paths of devices and of their descriptions.
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
    /// For people: a PC without a keyboard and a pointing device, as a headless one with a power button.
    no_keyboard: Option<String>,
    /// Noisy and grabbed devices.
    notes: Vec<String>,
    noises: Noises,
    /// The thread sleeps until one of its files has something to read.
    asleep: Option<Asleep>,
    /// The thread is to be asked from then on, for a probe or for devices that do not wake it.
    due: Moment,
}

impl Seen {
    fn proves(&self) -> Proves {
        if self.misses_some || self.no_keyboard.is_some() { Proves::Presence } else { Proves::Absence }
    }
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
    /// Calls `noticed` when there is something new to read. Readings work at once.
    pub fn start(places: Places, noticed: impl Fn() + Send + 'static) -> Evdev {
        let seen = Evdev::unseen(clock::awake());
        let seen = Arc::new(Mutex::new(seen));
        match Watcher::new(places, Arc::clone(&seen), noticed).start() {
            Ok((ask, thread)) => Evdev { seen, ask: Some(ask), thread: Some(thread) },
            Err(why) => {
                locked(&seen).watching = Err(why);
                Evdev { seen, ask: None, thread: None }
            }
        }
    }

    fn unseen(looked: Duration) -> Seen {
        Seen {
            looked,
            last: clock::now(),
            filter: Filter::default(),
            watching: Err("it does not look".to_owned()),
            misses_some: false,
            no_keyboard: None,
            notes: Vec::new(),
            noises: Noises::default(),
            asleep: None,
            due: Moment::ZERO,
        }
    }

    /// It does not look any more, and will not by itself.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Noisy and grabbed devices, and the lack of a keyboard, for people.
    pub fn notes(&self) -> Vec<String> {
        let seen = locked(&self.seen);
        seen.no_keyboard.iter().chain(&seen.notes).cloned().collect()
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
                proves: seen.proves(),
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

#[cfg(test)]
mod tests;
