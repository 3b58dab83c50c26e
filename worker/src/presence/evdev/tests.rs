use std::fs::{self, File};
use std::io::Write;
use std::sync::mpsc;
use std::time::UNIX_EPOCH;

use rustix::fs::Mode;

use super::events::{EVENT_BYTES, Event, events};
use super::watcher::GATHER;
use super::*;

/// Devices that are pipes, with their descriptions in sysfs.
pub(super) struct Desk {
    dir: tempfile::TempDir,
}

impl Desk {
    pub(super) fn new() -> Desk {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("input")).expect("made");
        Desk { dir }
    }

    pub(super) fn places(&self) -> Places {
        Places {
            devices: self.dir.path().join("input"),
            classes: self.dir.path().join("class"),
            ignored: vec!["nobody*".to_owned()],
        }
    }

    /// Plugs a device in. The device reports the bytes that a test writes to the file.
    pub(super) fn plug(&self, event: &str, name: &str, capabilities: &str) -> File {
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

    /// Returns the source's reading once it is the expected one.
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
    // Loudspeakers, jacks, and an ignored device.
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
    // Even root cannot open a file that does not exist.
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

#[test]
fn a_power_button_proves_no_absence_and_a_press_counts() {
    let desk = Desk::new();
    let plug = |event: &str, name: &str, events: &str, keys: &str| {
        let capabilities = desk.dir.path().join("class").join(event).join("device/capabilities");
        fs::create_dir_all(&capabilities).expect("made");
        fs::write(capabilities.join("key"), format!("{keys}\n")).expect("written");
        desk.plug(event, name, events)
    };
    // On kernels of 32 bits as well: these keys are in the highest word.
    let mut button =
        plug("event0", "Power Button", "3", if usize::BITS == 64 { "10000000000000 0" } else { "100000 0 0 0" });
    let watched = Watched::start(&desk);
    let is_no_proof = |says: &Result<Input, String>| says.as_ref().is_ok_and(|input| input.proves == Proves::Presence);
    let last = watched.until("no proof", is_no_proof).expect("it watches").last;
    let notes = watched.evdev.notes();
    assert!(notes[0].contains("\"Power Button\"") && notes[0].contains("unattended = true"), "{notes:?}");
    button.write_all(&event(EV_KEY, 116, 1)).expect("written");
    let _ = watched.until("a press", |says| says.as_ref().is_ok_and(|input| input.last > last));
    // With a keyboard beside it silence proves absence.
    let keyboard = if usize::BITS == 64 { "fffffffffffffffe" } else { "ffffffff fffffffe" };
    let _keyboard = plug("event1", "A keyboard", "120013", keyboard);
    let _ = watched.until("proof", |says| says.as_ref().is_ok_and(|input| input.proves == Proves::Absence));
    assert!(watched.evdev.notes().is_empty());
}
