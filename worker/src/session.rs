//! The helper in a person's session, which tells the agent what only the session knows.
//!
//! Owns that the agent hears at once when somebody touches something, and every minute that nobody does. It only ever speaks for its
//! own session, and says so if it cannot see it.

#[cfg(target_os = "linux")]
mod x11;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::local::message::{Ask, write};

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
        let ended = match sockets.iter().find_map(|socket| UnixStream::connect(socket).ok()) {
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

/// Why there is nothing to tell, or nobody.
pub enum Ended {
    NoAgent,
    AgentGone,
    SessionGone(String),
}

/// The agent's end of a connection.
pub struct Agent {
    stream: UnixStream,
}

impl Agent {
    pub fn hear(&mut self, sight: &Sight) -> Result<(), Ended> {
        let (idle_ms, error) = match &sight.idle {
            Ok(idle) => (Some(u64::try_from(idle.as_millis()).unwrap_or(u64::MAX)), None),
            Err(why) => (None, Some(why.clone())),
        };
        let source = sight.source.to_owned();
        let said = write(&Ask::Session { source, idle_ms, error, full_screen: sight.full_screen });
        let told = self.stream.set_write_timeout(Some(WRITE_WAIT)).and_then(|()| self.stream.write_all(&said));
        told.map_err(|_| Ended::AgentGone)
    }
}

#[cfg(target_os = "linux")]
fn tell(mut agent: Agent) -> Ended {
    let ended = match x11::Display::open() {
        Ok(display) => display.tell(&mut agent),
        Err(why) => Err(Ended::SessionGone(format!("no display of X11 can be watched: {why}"))),
    };
    let Err(ended) = ended;
    if let Ended::SessionGone(why) = &ended {
        // The agent is to know why it is alone.
        let _ = agent.hear(&Sight { source: x11::SOURCE, idle: Err(why.clone()), full_screen: None });
    }
    ended
}

#[cfg(not(target_os = "linux"))]
fn tell(_: Agent) -> Ended {
    Ended::SessionGone("sessions of this system cannot be watched yet".to_owned())
}
