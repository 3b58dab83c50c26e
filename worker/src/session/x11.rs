//! An X11 session: since when nobody touched anything, by the screensaver extension, and the first touch after that, by an alarm
//! on the server's idle counter.
//!
//! Owns the connection to the display. It asks the display about once a second while somebody is there, and sleeps while nobody is.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use x11rb::connection::{Connection, RequestConnection};
use x11rb::errors::ReplyError;
use x11rb::protocol::Event;
use x11rb::protocol::screensaver::{self, ConnectionExt as _};
use x11rb::protocol::sync::{self, ConnectionExt as _, CreateAlarmAux, Int64, TESTTYPE, VALUETYPE};
use x11rb::protocol::xproto::{Atom, AtomEnum, ConnectionExt as _, GetPropertyReply, Window};
use x11rb::rust_connection::RustConnection;

use super::{Agent, Ended, Never, SPEAK_EVERY, Sight};

pub const SOURCE: &str = "x11";

/// While somebody is there.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Without an alarm: what is noticed later is noticed too late.
const ASK_OFTEN: Duration = Duration::from_millis(250);

/// After so long somebody has paused, and the alarm tells of the next touch. It rings when the counter falls below a second.
const PAUSED: Duration = Duration::from_secs(5);
const ALARM_BELOW_MS: u32 = 1000;

pub struct Display {
    connection: RustConnection,
    root: Window,
    has_alarm: bool,
    active_window: Atom,
    window_state: Atom,
    fills_screen: Atom,
}

impl Display {
    /// The one that the environment names.
    pub fn open() -> Result<Display, String> {
        let (connection, screen) = x11rb::connect(None).map_err(|error| error.to_string())?;
        let root = connection.setup().roots.get(screen).ok_or("it has no screen")?.root;
        let can =
            connection.extension_information(screensaver::X11_EXTENSION_NAME).map_err(|error| error.to_string())?;
        if can.is_none() {
            return Err("it does not have the screensaver extension".to_owned());
        }
        let failed = |error: ReplyError| error.to_string();
        let has_alarm = set_alarm(&connection).unwrap_or(false);
        let atom = |name: &str| -> Result<Atom, ReplyError> {
            Ok(connection.intern_atom(false, name.as_bytes())?.reply()?.atom)
        };
        let active_window = atom("_NET_ACTIVE_WINDOW").map_err(failed)?;
        let window_state = atom("_NET_WM_STATE").map_err(failed)?;
        let fills_screen = atom("_NET_WM_STATE_FULLSCREEN").map_err(failed)?;
        Ok(Display { connection, root, has_alarm, active_window, window_state, fills_screen })
    }

    pub fn tell(&self, agent: &mut Agent) -> Result<Never, Ended> {
        let mut spoke: Option<Duration> = None;
        loop {
            let idle = self.idle().map_err(|error| Ended::SessionGone(format!("the display is gone: {error}")))?;
            let now = crate::clock::now();
            let is_there = idle < PAUSED;
            if is_there || spoke.is_none_or(|spoke| now.saturating_sub(spoke) >= SPEAK_EVERY) {
                agent.hear(&Sight { source: SOURCE, idle: Ok(idle), full_screen: self.full_screen().ok() })?;
                spoke = Some(now);
            }
            let wait = match (is_there, self.has_alarm) {
                (true, _) => ASK_EVERY,
                (false, true) => SPEAK_EVERY,
                (false, false) => ASK_OFTEN,
            };
            self.wait(wait).map_err(|why| Ended::SessionGone(format!("the display is gone: {why}")))?;
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
            let stream = self.connection.stream().as_fd();
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

/// Whether there is one that rings when the idle counter falls.
fn set_alarm(connection: &RustConnection) -> Result<bool, ReplyError> {
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
