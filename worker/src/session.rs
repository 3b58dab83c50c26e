//! The helper in a person's session, which tells the agent what only the session knows.
//!
//! Reports input to the agent at once, and every few seconds that there is none. The helper speaks only for its own session, and
//! reports if it cannot see it. It retries for ever a display, compositor or bus that does not answer: mostly it comes back, and
//! with it the person. The helper retries one that is gone for a minute, which a restart takes. Then the session has ended, and
//! the helper ends, too.

#[cfg(target_os = "linux")]
mod autostart;
#[cfg(target_os = "linux")]
mod inhibitors;
#[cfg(target_os = "linux")]
mod mutter;
mod retry;
#[cfg(target_os = "linux")]
mod seat;
#[cfg(target_os = "linux")]
mod wayland;
#[cfg(windows)]
mod windows;
#[cfg(target_os = "linux")]
mod x11;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use self::retry::{Loss, Retry};
use crate::local::message::{Ask, write};
use crate::platform::{self, Connection};
use crate::presence::inhibitors::{Held, Place};
use crate::presence::policy::ANSWER_LIMIT;

/// How often the agent hears that there is no input. It takes a helper that is silent for ten seconds for one that hangs.
const SPEAK_EVERY: Duration = Duration::from_secs(4);

/// Time after which the helper repeats an unchanged list of inhibitors, with its next message.
const REPEAT_AFTER: Duration = Duration::from_millis(3_500);

/// How long a display, compositor or bus may take to answer. Together with [`SPEAK_EVERY`] it is less than the silence that the
/// agent tolerates.
const ANSWER_WAIT: Duration = Duration::from_secs(3);

/// Before a lost agent is looked for again.
const RETRY_AFTER: Duration = Duration::from_secs(5);

const WRITE_WAIT: Duration = Duration::from_secs(5);

/// A look at a session.
#[derive(Clone, Debug, PartialEq)]
pub struct Sight {
    pub source: &'static str,
    /// Time without input.
    pub idle: Result<Duration, String>,
    pub full_screen: Option<bool>,
}

/// Runs until the session ends, which ends it. Without an agent it waits for one.
#[cfg(target_os = "linux")]
pub fn run(sockets: &[PathBuf], is_autostart: bool) -> ExitCode {
    let inhibited = Arc::new(Inhibited::default());
    if is_autostart {
        return accompany(sockets, &inhibited);
    }
    inhibitors::start(Arc::clone(&inhibited));
    follow(sockets, &inhibited)
}

#[cfg(windows)]
pub fn run(sockets: &[PathBuf], _is_autostart: bool) -> ExitCode {
    follow(sockets, &Arc::new(Inhibited::default()))
}

fn connect(sockets: &[PathBuf]) -> Option<Connection> {
    sockets.iter().find_map(|socket| platform::connect(socket, WRITE_WAIT).ok())
}

/// Runs for a desktop that started the helper with the session: prints nothing and never fails.
#[cfg(target_os = "linux")]
fn accompany(sockets: &[PathBuf], inhibited: &Arc<Inhibited>) -> ExitCode {
    let (mut wait, mut is_known) = (RETRY_AFTER, false);
    let mut session = Session { is_quiet: true, ..Session::default() };
    // An upgrade restarts the agent, and a removal ends it: before each agent the helper looks for its own program.
    while autostart::follow_upgrade() {
        let Some(stream) = connect(sockets) else {
            if !(is_known || autostart::is_enabled()) {
                break;
            }
            std::thread::sleep(wait);
            wait = autostart::next_wait(wait);
            continue;
        };
        if !std::mem::replace(&mut is_known, true) {
            inhibitors::start(Arc::clone(inhibited));
        }
        if matches!(watch(&mut session, Agent::new(stream, inhibited)), Ended::Session(..)) {
            break;
        }
        wait = RETRY_AFTER;
        // Mostly an upgrade or a removal has replaced the file before the agent goes.
        if autostart::follow_upgrade() {
            std::thread::sleep(wait);
        }
    }
    ExitCode::SUCCESS
}

/// Runs for a person who started the helper, and prints why it waits or ends.
fn follow(sockets: &[PathBuf], inhibited: &Arc<Inhibited>) -> ExitCode {
    let mut complained = false;
    let mut session = Session::default();
    loop {
        let ended = match connect(sockets) {
            None => Ended::NoAgent,
            Some(stream) => watch(&mut session, Agent::new(stream, inhibited)),
        };
        let why = match ended {
            Ended::Session(_, why) => {
                eprintln!("{why}");
                return ExitCode::FAILURE;
            }
            Ended::NoAgent => "no agent listens here; waiting for one",
            Ended::AgentGone => "the agent has gone; waiting for it",
        };
        if !std::mem::replace(&mut complained, true) {
            eprintln!("{why}");
        }
        std::thread::sleep(RETRY_AFTER);
    }
}

/// Tells one agent about the session, over all losses of the display that it survives.
fn watch(session: &mut Session, mut agent: Agent) -> Ended {
    let mut retry = Retry::default();
    loop {
        agent.has_told = false;
        let (source, Err(ended)) = session.tell(&mut agent);
        // A compositor that is lost holds nothing any more.
        agent.is_inhibited(false);
        let Ended::Session(loss, why) = ended else { return ended };
        if agent.has_told {
            retry = Retry::default();
        }
        let now = Instant::now();
        let pause = retry.after(loss, now);
        let sight = Sight { source, idle: Err(why.clone()), full_screen: None };
        let Some(until) = pause.map(|pause| now + pause) else {
            // The agent is to know why it is alone.
            let _ = agent.hear(&sight);
            return Ended::Session(loss, why);
        };
        if retry.is_first() && !session.is_quiet {
            eprintln!("{why}; trying again");
        }
        if let Err(ended) = agent.hear_until(until, &sight) {
            return ended;
        }
    }
}

/// Never made: telling ends only with a reason.
type Never = std::convert::Infallible;

/// Why there is nothing to tell, or no agent.
pub enum Ended {
    NoAgent,
    AgentGone,
    Session(Loss, String),
}

/// The agent's end of a connection.
pub struct Agent {
    stream: Connection,
    /// The session could be seen since the last attempt began.
    has_told: bool,
    inhibited: Arc<Inhibited>,
    /// The last list of inhibitors that the agent heard.
    told: Option<(Instant, Vec<Held>)>,
    #[cfg(target_os = "linux")]
    seat: seat::Seat,
}

/// Programs that keep the session's screen on. A thread of its own asks the desktop for them.
#[derive(Default)]
pub struct Inhibited {
    compositor: AtomicBool,
    desktop: Mutex<Option<(Instant, Vec<Held>)>>,
}

impl Inhibited {
    #[cfg(target_os = "linux")]
    fn by_desktop(&self, held: Vec<Held>) {
        *self.desktop.lock().expect("nothing panics under this lock") = Some((Instant::now(), held));
    }

    /// None: the thread that asks the desktop does not answer.
    fn held(&self) -> Option<Vec<Held>> {
        let known = self.desktop.lock().expect("nothing panics under this lock").clone();
        let (at, mut held) = known?;
        if self.compositor.load(Ordering::Relaxed) {
            held.push(Held { place: Place::Wayland, by: "a program".to_owned() });
        }
        (at.elapsed() <= ANSWER_LIMIT).then_some(held)
    }
}

impl Agent {
    fn new(stream: Connection, inhibited: &Arc<Inhibited>) -> Agent {
        Agent {
            stream,
            has_told: false,
            inhibited: Arc::clone(inhibited),
            told: None,
            #[cfg(target_os = "linux")]
            seat: seat::Seat::of_session(),
        }
    }

    /// Records whether the compositor reports a program that keeps the screen on.
    pub fn is_inhibited(&self, inhibited: bool) {
        self.inhibited.compositor.store(inhibited, Ordering::Relaxed);
    }

    /// Takes note of the console of the display. A display without one has no seat.
    #[cfg(target_os = "linux")]
    pub fn has_console(&mut self, has_console: bool) {
        self.seat = self.seat.clone().with_display(has_console);
    }

    #[cfg(target_os = "linux")]
    fn seat(&self) -> Option<String> {
        self.seat.name().map(str::to_owned)
    }

    /// Other systems have no seats.
    #[cfg(not(target_os = "linux"))]
    fn seat(&self) -> Option<String> {
        None
    }

    pub fn hear(&mut self, sight: &Sight) -> Result<(), Ended> {
        let (idle_ms, error) = match &sight.idle {
            Ok(idle) => (Some(u64::try_from(idle.as_millis()).unwrap_or(u64::MAX)), None),
            Err(why) => (None, Some(why.clone())),
        };
        self.has_told |= sight.idle.is_ok();
        let source = sight.source.to_owned();
        let (full_screen, seat) = (sight.full_screen, self.seat());
        let mut said = write(&Ask::Session { source, idle_ms, error, full_screen, seat });
        // Both go with one write, so that they wake the agent once.
        if let Some(held) = self.news_of_inhibitors() {
            said.extend(write(&Ask::Inhibitors { held }));
        }
        self.stream.write_all(&said).map_err(|_| Ended::AgentGone)
    }

    /// The list of inhibitors, if it is another than the agent knows, or if the agent is to hear that it is still the same.
    fn news_of_inhibitors(&mut self) -> Option<Vec<Held>> {
        let held = self.inhibited.held()?;
        let is_known = |(at, told): &(Instant, Vec<Held>)| *told == held && at.elapsed() < REPEAT_AFTER;
        if self.told.as_ref().is_some_and(is_known) {
            return None;
        }
        self.told = Some((Instant::now(), held.clone()));
        Some(held)
    }

    /// Repeats it until then.
    fn hear_until(&mut self, until: Instant, sight: &Sight) -> Result<(), Ended> {
        loop {
            self.hear(sight)?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(SPEAK_EVERY));
        }
    }
}

/// State between two attempts to see the session.
#[derive(Default)]
struct Session {
    /// Prints nothing.
    is_quiet: bool,
    #[cfg(target_os = "linux")]
    wayland: wayland::Opener,
}

#[cfg(target_os = "linux")]
impl Session {
    fn tell(&mut self, agent: &mut Agent) -> (&'static str, Result<Never, Ended>) {
        if is_wayland() { of_wayland(&mut self.wayland, agent) } else { of_x11(agent) }
    }
}

/// Such a session has an X11 display, too, for programs that know nothing else; what is done in other windows never shows there.
#[cfg(target_os = "linux")]
fn is_wayland() -> bool {
    let says = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    says("WAYLAND_DISPLAY").is_some()
        || says("WAYLAND_SOCKET").is_some()
        || says("XDG_SESSION_TYPE").is_some_and(|kind| kind == "wayland")
}

#[cfg(target_os = "linux")]
fn of_wayland(opener: &mut wayland::Opener, agent: &mut Agent) -> (&'static str, Result<Never, Ended>) {
    let (loss, why) = match opener.open() {
        Ok(compositor) => return (wayland::SOURCE, compositor.tell(agent)),
        Err(lost) => lost,
    };
    // GNOME's own compositor has not always known that protocol.
    match mutter::tell(agent) {
        // The bus was lost after it had answered.
        Err(ended @ Ended::Session(..)) if agent.has_told => (mutter::SOURCE, Err(ended)),
        Err(Ended::Session(others, other)) => {
            let why = format!("this session of Wayland cannot be watched: {why}; {other}");
            (wayland::SOURCE, Err(Ended::Session(loss.or(others), why)))
        }
        ended => (mutter::SOURCE, ended),
    }
}

#[cfg(target_os = "linux")]
fn of_x11(agent: &mut Agent) -> (&'static str, Result<Never, Ended>) {
    let ended = match x11::Display::open() {
        Ok(display) => display.tell(agent),
        Err((loss, why)) => Err(Ended::Session(loss, format!("no display of X11 can be watched: {why}"))),
    };
    (x11::SOURCE, ended)
}

#[cfg(windows)]
impl Session {
    fn tell(&mut self, agent: &mut Agent) -> (&'static str, Result<Never, Ended>) {
        (windows::SOURCE, windows::tell(agent))
    }
}
