//! The helper in a person's session, which tells the agent what only the session knows.
//!
//! Owns that the agent hears at once of input, and every few seconds that there is none. It speaks only for its own session, and says so
//! if it cannot see it. A display, compositor or bus that does not answer is tried again for as long as it takes: it mostly comes back,
//! and with it the person. One that is gone is tried for a minute, which a restart takes; then the session has ended, and the helper with
//! it.

#[cfg(target_os = "linux")]
mod mutter;
mod retry;
#[cfg(target_os = "linux")]
mod wayland;
#[cfg(windows)]
mod windows;
#[cfg(target_os = "linux")]
mod x11;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use self::retry::{Loss, Retry};
use crate::local::message::{Ask, write};
use crate::platform::{self, Connection};

/// How often the agent hears that there is no input. It takes a helper that is silent for ten seconds for one that hangs.
const SPEAK_EVERY: Duration = Duration::from_secs(4);

/// How long a display, compositor or bus may take to answer. Together with [`SPEAK_EVERY`] it is less than what the agent tolerates.
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
pub fn run(sockets: &[PathBuf]) -> ExitCode {
    let mut complained = false;
    let mut session = Session::default();
    loop {
        let ended = match sockets.iter().find_map(|socket| platform::connect(socket, WRITE_WAIT).ok()) {
            None => Ended::NoAgent,
            Some(stream) => watch(&mut session, Agent { stream, has_told: false }),
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
        if retry.is_first() {
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
}

impl Agent {
    pub fn hear(&mut self, sight: &Sight) -> Result<(), Ended> {
        let (idle_ms, error) = match &sight.idle {
            Ok(idle) => (Some(u64::try_from(idle.as_millis()).unwrap_or(u64::MAX)), None),
            Err(why) => (None, Some(why.clone())),
        };
        self.has_told |= sight.idle.is_ok();
        let source = sight.source.to_owned();
        let said = write(&Ask::Session { source, idle_ms, error, full_screen: sight.full_screen });
        self.stream.write_all(&said).map_err(|_| Ended::AgentGone)
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
