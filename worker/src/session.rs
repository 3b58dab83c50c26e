//! The helper in a person's session, which tells the agent what only the session knows.
//!
//! Owns that the agent hears at once when somebody touches something, and every minute that nobody does. It only ever speaks for its
//! own session, and says so if it cannot see it.

#[cfg(target_os = "linux")]
mod mutter;
#[cfg(target_os = "linux")]
mod wayland;
#[cfg(windows)]
mod windows;
#[cfg(target_os = "linux")]
mod x11;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::local::message::{Ask, write};
use crate::platform::{self, Connection};

/// Well within what the agent takes for silence.
const SPEAK_EVERY: Duration = Duration::from_secs(50);

/// Before a display or an agent that has gone is looked for again.
const RETRY_AFTER: Duration = Duration::from_secs(5);

const WRITE_WAIT: Duration = Duration::from_secs(5);

/// What is seen of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct Sight {
    pub source: &'static str,
    /// Since somebody touched something.
    pub idle: Result<Duration, String>,
    pub full_screen: Option<bool>,
}

/// Runs until the session ends, which ends it. Without an agent it waits for one.
pub fn run(sockets: &[PathBuf]) -> ExitCode {
    let mut complained = false;
    loop {
        let ended = match sockets.iter().find_map(|socket| platform::connect(socket, WRITE_WAIT).ok()) {
            None => Ended::NoAgent,
            Some(stream) => tell(Agent { stream }),
        };
        let why = match ended {
            Ended::SessionGone(why) => {
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

/// Never made: telling ends only with a reason.
type Never = std::convert::Infallible;

/// Why there is nothing to tell, or nobody.
pub enum Ended {
    NoAgent,
    AgentGone,
    SessionGone(String),
}

/// The agent's end of a connection.
pub struct Agent {
    stream: Connection,
}

impl Agent {
    pub fn hear(&mut self, sight: &Sight) -> Result<(), Ended> {
        let (idle_ms, error) = match &sight.idle {
            Ok(idle) => (Some(u64::try_from(idle.as_millis()).unwrap_or(u64::MAX)), None),
            Err(why) => (None, Some(why.clone())),
        };
        let source = sight.source.to_owned();
        let said = write(&Ask::Session { source, idle_ms, error, full_screen: sight.full_screen });
        self.stream.write_all(&said).map_err(|_| Ended::AgentGone)
    }
}

#[cfg(target_os = "linux")]
fn tell(mut agent: Agent) -> Ended {
    let (source, Err(ended)) = if is_wayland() { of_wayland(&mut agent) } else { of_x11(&mut agent) };
    if let Ended::SessionGone(why) = &ended {
        // The agent is to know why it is alone.
        let _ = agent.hear(&Sight { source, idle: Err(why.clone()), full_screen: None });
    }
    ended
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
fn of_wayland(agent: &mut Agent) -> (&'static str, Result<Never, Ended>) {
    let why = match wayland::Compositor::open() {
        Ok(compositor) => return (wayland::SOURCE, compositor.tell(agent)),
        Err(why) => why,
    };
    // GNOME's own compositor has not always known that protocol.
    match mutter::tell(agent) {
        Err(Ended::SessionGone(other)) => {
            let why = format!("this session of Wayland cannot be watched: {why}; {other}");
            (wayland::SOURCE, Err(Ended::SessionGone(why)))
        }
        ended => (mutter::SOURCE, ended),
    }
}

#[cfg(target_os = "linux")]
fn of_x11(agent: &mut Agent) -> (&'static str, Result<Never, Ended>) {
    let ended = match x11::Display::open() {
        Ok(display) => display.tell(agent),
        Err(why) => Err(Ended::SessionGone(format!("no display of X11 can be watched: {why}"))),
    };
    (x11::SOURCE, ended)
}

#[cfg(windows)]
fn tell(mut agent: Agent) -> Ended {
    let Err(ended) = windows::tell(&mut agent);
    if let Ended::SessionGone(why) = &ended {
        let _ = agent.hear(&Sight { source: windows::SOURCE, idle: Err(why.clone()), full_screen: None });
    }
    ended
}
