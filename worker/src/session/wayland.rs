//! A session of Wayland: since when nobody touched anything, as its compositor notifies of it (ext-idle-notify, or the protocol of
//! KDE that older compositors have).
//!
//! Owns the connection to the compositor. The compositor tells that nobody has touched a seat for some seconds, and of the first touch
//! after that; the helper only asks whether it still answers, since a compositor that hangs never tells of a touch.
//!
//! A program that keeps the screen on (idle-inhibit) holds back the notification of an idle seat. Version 2 of ext-idle-notify also
//! notifies of input alone: a seat that has no input and is not idle is kept awake by a program. Older compositors do not tell the two
//! apart: there a film counts as input.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wayland_client::backend::WaylandError;
use wayland_client::globals::{GlobalListContents, registry_queue_init};
use wayland_client::protocol::wl_callback::{self, WlCallback};
use wayland_client::protocol::wl_registry::{self, WlRegistry};
use wayland_client::protocol::wl_seat::WlSeat;
use wayland_client::{Connection, Dispatch, DispatchError, EventQueue, Proxy, QueueHandle, delegate_noop};
use wayland_protocols::ext::idle_notify::v1::client::ext_idle_notification_v1::{self, ExtIdleNotificationV1};
use wayland_protocols::ext::idle_notify::v1::client::ext_idle_notifier_v1::ExtIdleNotifierV1;
use wayland_protocols_plasma::idle::client::org_kde_kwin_idle::OrgKdeKwinIdle;
use wayland_protocols_plasma::idle::client::org_kde_kwin_idle_timeout::{self, OrgKdeKwinIdleTimeout};

use super::retry::Loss;
use super::{ANSWER_WAIT, Agent, Ended, Never, SPEAK_EVERY, Sight};
use crate::clock;

pub const SOURCE: &str = "wayland";

/// The two notifications of a seat do not come at the same moment.
const NOTIFIED_WITHIN: Duration = Duration::from_secs(2);

/// After so long somebody has paused. Until then the compositor says nothing, and it is as if there were input all the time.
const PAUSED: Duration = Duration::from_secs(3);
const PAUSED_MS: u32 = 3_000;

/// How often that is said.
const SAY_EVERY: Duration = Duration::from_secs(1);

const SILENT: &str = "its compositor does not answer";

pub struct Compositor {
    connection: Connection,
    queue: EventQueue<Seats>,
    seats: Seats,
}

/// Who watches the seats.
enum Notifier {
    Ext(ExtIdleNotifierV1),
    Kde(OrgKdeKwinIdle),
}

/// The compositor's promise to tell of one seat.
enum Notification {
    Ext(ExtIdleNotificationV1),
    Kde(OrgKdeKwinIdleTimeout),
}

struct Seat {
    seat: WlSeat,
    notification: Notification,
    /// Notification of an idle seat, from compositors that notify of input alone as well.
    idle: Option<ExtIdleNotificationV1>,
    /// Since when nobody has touched it, if that is long enough for the compositor to tell.
    untouched: Option<Duration>,
    is_idle: bool,
}

impl Seat {
    /// Tells whether a program keeps the screen on.
    fn is_inhibited(&self, now: Duration) -> bool {
        self.idle.is_some() && is_kept_awake(self.untouched, self.is_idle, now)
    }
}

fn is_kept_awake(untouched: Option<Duration>, is_idle: bool, now: Duration) -> bool {
    !is_idle && untouched.is_some_and(|since| now.saturating_sub(since) >= PAUSED + NOTIFIED_WITHIN)
}

/// Subject of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Input,
    /// Held back by programs that keep the screen on.
    Idle,
}

struct Seats {
    notifier: Notifier,
    /// By the numbers of their globals.
    seats: BTreeMap<u32, Seat>,
    /// Something came that its agent has not heard.
    news: bool,
    /// How often it was asked whether it answers, and has.
    asked: u64,
    answered: u64,
}

/// Opens connections, one at a time: an attempt that hangs is waited for again, so that attempts do not pile up.
#[derive(Default)]
pub struct Opener {
    opening: Option<mpsc::Receiver<Result<Compositor, (Loss, String)>>>,
}

impl Opener {
    pub fn open(&mut self) -> Result<Compositor, (Loss, String)> {
        let opening = match self.opening.take() {
            Some(opening) => opening,
            None => begin().map_err(|error| (Loss::Silent, format!("cannot start a thread: {error}")))?,
        };
        match opening.recv_timeout(ANSWER_WAIT) {
            Ok(opened) => opened,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                self.opening = Some(opening);
                Err((Loss::Silent, SILENT.to_owned()))
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => Err((Loss::Gone, "connecting to it failed".to_owned())),
        }
    }
}

/// On a thread of its own, for connecting has no deadline.
fn begin() -> std::io::Result<mpsc::Receiver<Result<Compositor, (Loss, String)>>> {
    let (sender, opening) = mpsc::channel();
    let open = move || {
        let _ = sender.send(Compositor::connect());
    };
    std::thread::Builder::new().name("pcfarm-wayland".to_owned()).spawn(open)?;
    Ok(opening)
}

impl Compositor {
    /// Connects to the compositor that the environment names.
    fn connect() -> Result<Compositor, (Loss, String)> {
        let lost = |error: &dyn std::fmt::Display| (Loss::Gone, error.to_string());
        let connection = Connection::connect_to_env().map_err(|error| lost(&error))?;
        let (globals, mut queue) = registry_queue_init::<Seats>(&connection).map_err(|error| lost(&error))?;
        let handle = queue.handle();
        let notifier = globals
            .bind(&handle, 1..=2, ())
            .map(Notifier::Ext)
            .or_else(|_| globals.bind(&handle, 1..=1, ()).map(Notifier::Kde))
            .map_err(|_| {
                (Loss::Unable, "its compositor has neither ext-idle-notify nor KDE's idle protocol".to_owned())
            })?;
        let mut seats = Seats { notifier, seats: BTreeMap::new(), news: true, asked: 0, answered: 0 };
        for global in globals.contents().clone_list() {
            if global.interface == WlSeat::interface().name {
                seats.watch(globals.registry(), global.name, &handle);
            }
        }
        queue.roundtrip(&mut seats).map_err(|error| lost(&error))?;
        Ok(Compositor { connection, queue, seats })
    }

    pub fn tell(mut self, agent: &mut Agent) -> Result<Never, Ended> {
        let mut spoke = Duration::ZERO;
        let (mut answers, mut is_new) = (true, true);
        loop {
            let now = clock::now();
            let idle = if answers { self.seats.idle(now) } else { Err(SILENT.to_owned()) };
            agent.is_inhibited(answers && self.seats.is_inhibited(now));
            let is_there = idle.as_ref().is_ok_and(Duration::is_zero);
            let rhythm = if is_there { SAY_EVERY } else { SPEAK_EVERY };
            if std::mem::take(&mut self.seats.news) || is_new || now.saturating_sub(spoke) >= rhythm {
                agent.hear(&Sight { source: SOURCE, idle, full_screen: None })?;
                spoke = now;
            }
            self.wait(if is_there { SAY_EVERY } else { SPEAK_EVERY }).map_err(gone)?;
            // What it tells is told on before anything is asked.
            let still_answers = self.seats.news || self.answers().map_err(gone)?;
            is_new = std::mem::replace(&mut answers, still_answers) != still_answers;
        }
    }

    /// Asks whether it does, unless that has been asked already, and waits for a while.
    fn answers(&mut self) -> Result<bool, String> {
        if self.seats.answered == self.seats.asked {
            let _ = self.connection.display().sync(&self.queue.handle(), ());
            self.seats.asked += 1;
        }
        let until = clock::awake() + ANSWER_WAIT;
        while self.seats.answered < self.seats.asked {
            let left = until.saturating_sub(clock::awake());
            if left.is_zero() {
                return Ok(false);
            }
            self.wait(left)?;
        }
        Ok(true)
    }

    /// Until something comes, or so long.
    fn wait(&mut self, time: Duration) -> Result<(), String> {
        let failed = |error: WaylandError| error.to_string();
        let dispatched = |outcome: Result<usize, DispatchError>| outcome.map_err(|error| error.to_string());
        if dispatched(self.queue.dispatch_pending(&mut self.seats))? > 0 {
            return Ok(());
        }
        match self.connection.flush() {
            Ok(()) => {}
            Err(WaylandError::Io(error)) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(failed(error)),
        }
        let Some(guard) = self.queue.prepare_read() else { return Ok(()) };
        let time = Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: i64::from(time.subsec_nanos()) };
        let fd = guard.connection_fd();
        let mut watched = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        match poll(&mut watched, Some(&time)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(error.to_string()),
        }
        // What an end of the connection looks like, too.
        match guard.read() {
            Ok(_) => {}
            Err(WaylandError::Io(error)) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(failed(error)),
        }
        dispatched(self.queue.dispatch_pending(&mut self.seats)).map(|_| ())
    }
}

fn gone(why: String) -> Ended {
    Ended::Session(Loss::Gone, format!("the compositor is gone: {why}"))
}

impl Seats {
    fn watch(&mut self, registry: &WlRegistry, name: u32, handle: &QueueHandle<Seats>) {
        let seat: WlSeat = registry.bind(name, 1, handle, ());
        let notification = match &self.notifier {
            Notifier::Ext(notifier) if notifier.version() >= 2 => {
                Notification::Ext(notifier.get_input_idle_notification(PAUSED_MS, &seat, handle, (name, Of::Input)))
            }
            Notifier::Ext(notifier) => {
                Notification::Ext(notifier.get_idle_notification(PAUSED_MS, &seat, handle, (name, Of::Input)))
            }
            Notifier::Kde(idle) => Notification::Kde(idle.get_idle_timeout(&seat, PAUSED_MS, handle, name)),
        };
        let idle = match &self.notifier {
            Notifier::Ext(notifier) if notifier.version() >= 2 => {
                Some(notifier.get_idle_notification(PAUSED_MS, &seat, handle, (name, Of::Idle)))
            }
            Notifier::Ext(_) | Notifier::Kde(_) => None,
        };
        // Whether somebody touched it lately is not known yet: somebody did.
        self.seats.insert(name, Seat { seat, notification, idle, untouched: None, is_idle: false });
        self.news = true;
    }

    fn forget(&mut self, name: u32) {
        let Some(gone) = self.seats.remove(&name) else { return };
        match gone.notification {
            Notification::Ext(notification) => notification.destroy(),
            Notification::Kde(timeout) => timeout.release(),
        }
        if let Some(idle) = gone.idle {
            idle.destroy();
        }
        drop(gone.seat);
        self.news = true;
    }

    fn changed(&mut self, name: u32, is_touched: bool) {
        let Some(seat) = self.seats.get_mut(&name) else { return };
        seat.untouched = (!is_touched).then(|| clock::now().saturating_sub(PAUSED));
        self.news = true;
    }

    /// Records that the seat is idle, or is not.
    fn changed_idle(&mut self, name: u32, is_idle: bool) {
        if let Some(seat) = self.seats.get_mut(&name) {
            seat.is_idle = is_idle;
        }
    }

    /// Tells whether a program keeps the screen on.
    fn is_inhibited(&self, now: Duration) -> bool {
        self.seats.values().any(|seat| seat.is_inhibited(now))
    }

    /// Since somebody touched any of them.
    fn idle(&self, now: Duration) -> Result<Duration, String> {
        let idle = |seat: &Seat| seat.untouched.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        self.seats.values().map(idle).min().ok_or_else(|| "its compositor has no seat to watch".to_owned())
    }
}

impl Dispatch<WlRegistry, GlobalListContents> for Seats {
    fn event(
        seats: &mut Seats,
        registry: &WlRegistry,
        event: wl_registry::Event,
        _: &GlobalListContents,
        _: &Connection,
        handle: &QueueHandle<Seats>,
    ) {
        match event {
            wl_registry::Event::Global { name, interface, .. } if interface == WlSeat::interface().name => {
                seats.watch(registry, name, handle);
            }
            wl_registry::Event::GlobalRemove { name } => seats.forget(name),
            _ => {}
        }
    }
}

impl Dispatch<ExtIdleNotificationV1, (u32, Of)> for Seats {
    fn event(
        seats: &mut Seats,
        _: &ExtIdleNotificationV1,
        event: ext_idle_notification_v1::Event,
        (name, of): &(u32, Of),
        _: &Connection,
        _: &QueueHandle<Seats>,
    ) {
        match (event, of) {
            (ext_idle_notification_v1::Event::Idled, Of::Input) => seats.changed(*name, false),
            (ext_idle_notification_v1::Event::Resumed, Of::Input) => seats.changed(*name, true),
            (ext_idle_notification_v1::Event::Idled, Of::Idle) => seats.changed_idle(*name, true),
            (ext_idle_notification_v1::Event::Resumed, Of::Idle) => seats.changed_idle(*name, false),
            _ => {}
        }
    }
}

impl Dispatch<OrgKdeKwinIdleTimeout, u32> for Seats {
    fn event(
        seats: &mut Seats,
        _: &OrgKdeKwinIdleTimeout,
        event: org_kde_kwin_idle_timeout::Event,
        name: &u32,
        _: &Connection,
        _: &QueueHandle<Seats>,
    ) {
        match event {
            org_kde_kwin_idle_timeout::Event::Idle => seats.changed(*name, false),
            org_kde_kwin_idle_timeout::Event::Resumed => seats.changed(*name, true),
            _ => {}
        }
    }
}

impl Dispatch<WlCallback, ()> for Seats {
    fn event(
        seats: &mut Seats,
        _: &WlCallback,
        _: wl_callback::Event,
        (): &(),
        _: &Connection,
        _: &QueueHandle<Seats>,
    ) {
        seats.answered += 1;
    }
}

delegate_noop!(Seats: ignore WlSeat);
delegate_noop!(Seats: ExtIdleNotifierV1);
delegate_noop!(Seats: OrgKdeKwinIdle);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_without_input_that_is_not_idle_is_kept_awake() {
        let now = Duration::from_secs(1000);
        for (what, untouched, is_idle, expected) in [
            ("a person", None, false, false),
            ("the other notification comes in a moment", Some(now - PAUSED), false, false),
            ("a film", Some(now - Duration::from_secs(60)), false, true),
            ("nobody, and nothing plays", Some(now - Duration::from_secs(60)), true, false),
        ] {
            assert_eq!(is_kept_awake(untouched, is_idle, now), expected, "{what}");
        }
    }
}
