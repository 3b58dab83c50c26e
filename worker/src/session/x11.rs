//! An X11 session: since when nobody touched anything, by the screensaver extension, and the first touch after that, by an alarm
//! on the server's idle counter.
//!
//! Owns the connection to the display. It asks the display about once a second while somebody is there, and while nobody is, whether it
//! still answers: from one that hangs nobody ever hears of a touch. No answer is waited for longer than a few seconds.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use x11rb::connection::{Connection, RequestConnection};
use x11rb::errors::{ConnectError, ConnectionError, ReplyError};
use x11rb::protocol::Event;
use x11rb::protocol::screensaver::{self, ConnectionExt as _};
use x11rb::protocol::sync::{self, ConnectionExt as _, CreateAlarmAux, Int64, TESTTYPE, VALUETYPE};
use x11rb::protocol::xproto::{Atom, AtomEnum, ConnectionExt as _, GetPropertyReply, Window};
use x11rb::reexports::x11rb_protocol::parse_display::parse_display;
use x11rb::reexports::x11rb_protocol::xauth::get_auth;
use x11rb::rust_connection::{DefaultStream, PollMode, RustConnection, Stream};
use x11rb::utils::RawFdContainer;

use super::retry::Loss;
use super::{ANSWER_WAIT, Agent, Ended, Never, SPEAK_EVERY, Sight};

pub const SOURCE: &str = "x11";

/// While somebody is there.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Without an alarm: what is noticed later is noticed too late.
const ASK_OFTEN: Duration = Duration::from_millis(250);

/// After so long somebody has paused, and the alarm tells of the next touch. It rings when the counter falls below a second.
const PAUSED: Duration = Duration::from_secs(5);
const ALARM_BELOW_MS: u32 = 1000;

pub struct Display {
    connection: RustConnection<Patient>,
    root: Window,
    has_alarm: bool,
    active_window: Atom,
    window_state: Atom,
    fills_screen: Atom,
    /// The display has a console, so that a person may sit at it.
    has_console: bool,
}

impl Display {
    /// The one that the environment names.
    pub fn open() -> Result<Display, (Loss, String)> {
        let (connection, screen) = connect()?;
        let unable = |why: &str| (Loss::Unable, why.to_owned());
        let failed = |error: ReplyError| {
            let loss = if is_silence(&error) { Loss::Silent } else { Loss::Gone };
            (loss, error.to_string())
        };
        let root = connection.setup().roots.get(screen).ok_or_else(|| unable("it has no screen"))?.root;
        let can = connection.extension_information(screensaver::X11_EXTENSION_NAME);
        if can.map_err(|error| failed(error.into()))?.is_none() {
            return Err(unable("it does not have the screensaver extension"));
        }
        let has_alarm = set_alarm(&connection).unwrap_or(false);
        let atom = |name: &str| -> Result<Atom, ReplyError> {
            Ok(connection.intern_atom(false, name.as_bytes())?.reply()?.atom)
        };
        let active_window = atom("_NET_ACTIVE_WINDOW").map_err(failed)?;
        let window_state = atom("_NET_WM_STATE").map_err(failed)?;
        let fills_screen = atom("_NET_WM_STATE_FULLSCREEN").map_err(failed)?;
        let has_console = has_console(&connection, root).map_err(failed)?;
        Ok(Display { connection, root, has_alarm, active_window, window_state, fills_screen, has_console })
    }

    pub fn tell(&self, agent: &mut Agent) -> Result<Never, Ended> {
        let gone = |why: &dyn std::fmt::Display| Ended::Session(Loss::Gone, format!("the display is gone: {why}"));
        let mut spoke: Option<(Duration, Sight)> = None;
        agent.has_console(self.has_console);
        loop {
            let idle = match self.idle() {
                Ok(idle) => Ok(idle),
                Err(error) if is_silence(&error) => Err("its display does not answer".to_owned()),
                Err(error) => return Err(gone(&error)),
            };
            let now = crate::clock::now();
            let is_there = idle.as_ref().is_ok_and(|idle| *idle < PAUSED);
            let wait = match (&idle, self.has_alarm) {
                (Ok(_), _) if is_there => ASK_EVERY,
                (Ok(_), true) => SPEAK_EVERY,
                (Ok(_), false) => ASK_OFTEN,
                // It has been waited for.
                (Err(_), _) => Duration::ZERO,
            };
            let full_screen = idle.is_ok().then(|| self.full_screen().ok()).flatten();
            let sight = Sight { source: SOURCE, idle, full_screen };
            let is_news = |(at, said): &(Duration, Sight)| {
                let differs = said.idle.is_ok() != sight.idle.is_ok() || said.full_screen != sight.full_screen;
                differs || now.saturating_sub(*at) >= SPEAK_EVERY
            };
            if is_there || spoke.as_ref().is_none_or(is_news) {
                agent.hear(&sight)?;
                spoke = Some((now, sight));
            }
            self.wait(wait).map_err(|why| gone(&why))?;
        }
    }

    fn idle(&self) -> Result<Duration, ReplyError> {
        let info = self.connection.screensaver_query_info(self.root)?.reply()?;
        Ok(Duration::from_millis(info.ms_since_user_input.into()))
    }

    /// Whether the window in front fills the screen, where a window manager says so.
    fn full_screen(&self) -> Result<bool, ReplyError> {
        let property = |window: Window, property: Atom, kind: AtomEnum| -> Result<GetPropertyReply, ReplyError> {
            self.connection.get_property(false, window, property, kind, 0, 64)?.reply()
        };
        let active = property(self.root, self.active_window, AtomEnum::WINDOW)?;
        let Some(window) = active.value32().and_then(|mut windows| windows.next()).filter(|window| *window != 0) else {
            return Ok(false);
        };
        let states = property(window, self.window_state, AtomEnum::ATOM)?;
        Ok(states.value32().is_some_and(|mut states| states.any(|state| state == self.fills_screen)))
    }

    /// Until the alarm rings, or so long.
    fn wait(&self, time: Duration) -> Result<(), String> {
        let deadline = crate::clock::now() + time;
        loop {
            while let Some(event) = self.connection.poll_for_event().map_err(|error| error.to_string())? {
                if matches!(event, Event::SyncAlarmNotify(_)) {
                    return Ok(());
                }
            }
            let left = deadline.saturating_sub(crate::clock::now());
            if left.is_zero() {
                return Ok(());
            }
            let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: i64::from(left.subsec_nanos()) };
            let stream = self.connection.stream().0.as_fd();
            let mut watched = [PollFd::from_borrowed_fd(stream, PollFlags::IN)];
            match poll(&mut watched, Some(&left)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.to_string()),
            }
            if watched[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
                return Err("it has hung up".to_owned());
            }
        }
    }
}

/// Xorg names its console at the root window. Servers for remote desktops have none.
fn has_console(connection: &RustConnection<Patient>, root: Window) -> Result<bool, ReplyError> {
    let name = connection.intern_atom(true, b"XFree86_VT")?.reply()?.atom;
    if name == u32::from(AtomEnum::NONE) {
        return Ok(false);
    }
    let console = connection.get_property(false, root, name, AtomEnum::ANY, 0, 1)?.reply()?;
    Ok(console.type_ != u32::from(AtomEnum::NONE))
}

/// To the one that the environment names, and its screen.
fn connect() -> Result<(RustConnection<Patient>, usize), (Loss, String)> {
    let display = parse_display(None).map_err(|error| (Loss::Unable, error.to_string()))?;
    let screen = usize::from(display.screen);
    let mut failed = (Loss::Unable, "it has no address".to_owned());
    for address in display.connect_instruction() {
        let (stream, (family, host)) = match DefaultStream::connect(&address) {
            Ok(connected) => connected,
            Err(error) => {
                failed = (Loss::Gone, error.to_string());
                continue;
            }
        };
        // Who cannot prove anything may be let in all the same.
        let (name, data) = get_auth(family, &host, display.display).ok().flatten().unwrap_or_default();
        let connection = RustConnection::connect_to_stream_with_auth_info(Patient(stream), screen, name, data);
        let connection = connection.map_err(|error| {
            let is_silence = matches!(&error, ConnectError::IoError(error) if error.kind() == io::ErrorKind::TimedOut);
            (if is_silence { Loss::Silent } else { Loss::Gone }, error.to_string())
        });
        return Ok((connection?, screen));
    }
    Err(failed)
}

/// A connection on which nothing is waited for longer than an answer may take.
struct Patient(DefaultStream);

impl Stream for Patient {
    fn poll(&self, mode: PollMode) -> io::Result<()> {
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, mode.readable());
        events.set(PollFlags::OUT, mode.writable());
        let limit = Timespec { tv_sec: ANSWER_WAIT.as_secs().cast_signed(), tv_nsec: 0 };
        match poll(&mut [PollFd::from_borrowed_fd(self.0.as_fd(), events)], Some(&limit)) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer")),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn read(&self, buffer: &mut [u8], descriptors: &mut Vec<RawFdContainer>) -> io::Result<usize> {
        self.0.read(buffer, descriptors)
    }

    fn write(&self, buffer: &[u8], descriptors: &mut Vec<RawFdContainer>) -> io::Result<usize> {
        self.0.write(buffer, descriptors)
    }

    fn write_vectored(&self, buffers: &[IoSlice<'_>], descriptors: &mut Vec<RawFdContainer>) -> io::Result<usize> {
        self.0.write_vectored(buffers, descriptors)
    }
}

/// What was asked is answered later, if at all: the connection stays as it is.
fn is_silence(error: &ReplyError) -> bool {
    matches!(error, ReplyError::ConnectionError(ConnectionError::IoError(error)) if error.kind() == io::ErrorKind::TimedOut)
}

/// Whether there is one that rings when the idle counter falls.
fn set_alarm(connection: &RustConnection<Patient>) -> Result<bool, ReplyError> {
    if connection.extension_information(sync::X11_EXTENSION_NAME)?.is_none() {
        return Ok(false);
    }
    connection.sync_initialize(3, 1)?.reply()?;
    let counters = connection.sync_list_system_counters()?.reply()?.counters;
    let Some(idle) = counters.iter().find(|counter| counter.name == b"IDLETIME") else {
        return Ok(false);
    };
    let Ok(alarm) = connection.generate_id() else { return Ok(false) };
    let nothing = Int64 { hi: 0, lo: 0 };
    let falls = CreateAlarmAux::new()
        .counter(idle.counter)
        .value_type(VALUETYPE::ABSOLUTE)
        .value(Int64 { hi: 0, lo: ALARM_BELOW_MS })
        .test_type(TESTTYPE::NEGATIVE_TRANSITION)
        .delta(nothing)
        .events(1);
    connection.sync_create_alarm(alarm, &falls)?.check()?;
    Ok(true)
}
