//! What is known of a workstation and its person, as plain data.
//!
//! Owns the shape of it: whatever is said names who says it and when it was said. It never says more than its source does:
//! who cannot tell says so, and why.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::Duration;

use super::hours::LocalTime;
use super::inhibitors::Inhibitor;
use super::remote::Remote;

/// A moment on [`clock`](crate::clock): the time since the machine's start, sleep included. No change of the wall clock moves it.
pub type Moment = Duration;

/// What a source says, or why it cannot tell.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading<T> {
    pub source: Cow<'static, str>,
    /// When it was last known to be so.
    pub at: Moment,
    pub says: Result<T, String>,
}

impl<T> Reading<T> {
    pub fn new(source: &'static str, at: Moment, says: Result<T, String>) -> Reading<T> {
        Reading { source: Cow::Borrowed(source), at, says }
    }

    /// What it says, unless that is older than `limit`.
    pub fn fresh(&self, now: Moment, limit: Duration) -> Result<&T, String> {
        let age = now.saturating_sub(self.at);
        match &self.says {
            Ok(_) if age > limit => Err(format!("not heard of for more than {} s", limit.as_secs())),
            Ok(says) => Ok(says),
            Err(why) => Err(why.clone()),
        }
    }
}

/// What a source of input has seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Input {
    /// The last that it has seen. A source counts its own start: nobody knows what was before.
    pub last: Moment,
    pub proves: Proves,
    /// A movement since then that was too small and too lonely to be a person.
    pub bump: Option<Moment>,
    /// Some of what it sees does not tell by itself, and is found out by looking.
    pub untold: bool,
    /// The source sees the input devices of this machine through a desktop, which takes noise for input.
    pub at_seat: bool,
}

/// Spans of time in which input devices moved without a person: devices that make noise, and devices that the owner ignores.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Noises(VecDeque<(Moment, Moment)>);

/// Spans that are remembered. A span grows while the noise goes on.
const NOISES_LIMIT: usize = 64;

impl Noises {
    pub fn add(&mut self, from: Moment, to: Moment) {
        if let Some(last) = self.0.back_mut().filter(|last| from <= last.1) {
            *last = (last.0.min(from), last.1.max(to));
            return;
        }
        self.0.push_back((from, to));
        let surplus = self.0.len().saturating_sub(NOISES_LIMIT);
        self.0.drain(..surplus);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if a span is not further from the moment than `about`.
    pub fn cover(&self, moment: Moment, about: Duration) -> bool {
        self.0.iter().any(|(from, to)| from.saturating_sub(about) <= moment && moment <= to.saturating_add(about))
    }
}

/// What follows if a source of input has seen nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proves {
    /// That nobody is there.
    Absence,
    /// Nothing: it does not see everybody who may be there.
    Presence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub total_bytes: u64,
    pub available_bytes: u64,
    /// Taken by the agent and what it has started.
    pub own_bytes: u64,
}

/// What the machine runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    Mains,
    Battery,
}

/// What the network costs by what goes over it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    Metered,
    Unmetered,
    /// Nobody here can tell, and why.
    Untold(String),
}

/// All that the policy decides by.
#[derive(Clone, Debug, PartialEq)]
pub struct Signals {
    pub input: Vec<Reading<Input>>,
    pub noises: Noises,
    /// When the machine woke from its last sleep, if it slept since the agent's start: somebody may have woken it.
    pub woke: Option<Moment>,
    /// CPU that others use, in cores.
    pub load: Reading<f64>,
    pub memory: Reading<Memory>,
    pub power: Reading<Power>,
    /// Those of the owner's list that run.
    pub programs: Reading<Vec<String>>,
    /// Findings about sources, for people: a helper that ended, a device that makes noise. They decide nothing.
    pub notes: Vec<String>,
    /// Whether a program fills a screen, by each who can tell.
    pub full_screen: Vec<Reading<bool>>,
    /// An error: who can tell has not answered yet.
    pub network: Reading<Network>,
    /// Sessions without a terminal.
    pub remote: Reading<Remote>,
    /// Programs that keep the screen on, by logind.
    pub inhibitors: Reading<Vec<Inhibitor>>,
    /// Programs that keep the screen on, by the helpers in people's sessions.
    pub told_inhibitors: Vec<Reading<Vec<Inhibitor>>>,
    /// The owner's pause, until when, in words.
    pub paused: Option<String>,
    pub time: LocalTime,
}
