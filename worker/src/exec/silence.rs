//! Silence of the agent: a program stands still while its agent cannot stop it.
//!
//! Owns one rule. On an attended workstation the agent speaks to the supervisor every second while a program computes a problem.
//! An agent that is stopped, or that no longer looks for its person, is silent. After [`LIMIT`] the supervisor stops the
//! program's processes. They go on at the agent's next message, which may tell them to stand still or to end.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use rustix::process::{Pid, getpid};

use crate::exec::tree;

/// How often the agent speaks.
pub const SPEAK_EVERY: Duration = Duration::from_secs(1);

/// Silence after which the program stands still.
pub const LIMIT: Duration = Duration::from_secs(3);

pub struct Silence {
    /// None: the workstation has no person.
    limit: Option<Duration>,
    heard: Instant,
    stopped: Option<Stopped>,
}

struct Stopped {
    since: Instant,
    processes: HashSet<Pid>,
}

impl Silence {
    pub fn new(limit: Option<Duration>) -> Silence {
        Silence { limit, heard: Instant::now(), stopped: None }
    }

    /// Stops the program if the agent has been silent for too long. True: the program stands still.
    pub fn check(&mut self) -> bool {
        if self.stopped.is_none() && is_too_long(self.limit, self.heard.elapsed()) {
            let processes = tree::stop(getpid());
            eprintln!("the agent is silent: its program stands still");
            self.stopped = Some(Stopped { since: Instant::now(), processes });
        }
        self.stopped.is_some()
    }

    /// Time until the program is to stand still.
    pub fn left(&self) -> Duration {
        self.limit.map_or(Duration::MAX, |limit| limit.saturating_sub(self.heard.elapsed()))
    }

    /// The agent has spoken. Returns for how long the program stood still.
    pub fn broken(&mut self) -> Duration {
        self.heard = Instant::now();
        let stopped = self.stopped.take();
        stopped.map_or(Duration::ZERO, |stopped| {
            tree::go_on(&stopped.processes);
            stopped.since.elapsed()
        })
    }
}

fn is_too_long(limit: Option<Duration>, silence: Duration) -> bool {
    limit.is_some_and(|limit| silence >= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_attended_workstation_minds_silence() {
        for (limit, silence, expected) in [
            (Some(LIMIT), Duration::ZERO, false),
            (Some(LIMIT), SPEAK_EVERY * 2, false),
            (Some(LIMIT), LIMIT, true),
            (None, Duration::MAX, false),
        ] {
            assert_eq!(is_too_long(limit, silence), expected, "{limit:?} {silence:?}");
        }
    }
}
