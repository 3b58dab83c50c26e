//! Silence of the agent: a program stands still while its agent cannot stop it.
//!
//! Owns two rules. On an attended workstation the agent speaks to the supervisor every second while a program computes a problem.
//! An agent that is stopped, or that no longer looks for its person, is silent. After [`LIMIT`] the supervisor stops the
//! program's processes. On any workstation the agent tells when its lease ends, unless its owner lets programs go on after it. When
//! that time comes without a later one, the supervisor stops the processes, too: another workstation may begin their problem. They go on
//! at the agent's next message, which may tell them to stand still or to end, but not before the lease is renewed.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use rustix::process::{Pid, getpid};

use crate::clock;
use crate::exec::tree;

/// How often the agent speaks.
pub const SPEAK_EVERY: Duration = Duration::from_secs(1);

/// Silence after which the program stands still.
pub const LIMIT: Duration = Duration::from_secs(3);

pub struct Silence {
    /// None: the workstation has no person.
    limit: Option<Duration>,
    heard: Instant,
    /// End of the agent's lease, by [`clock::now`]; none: the program goes on after it.
    lease_end: Option<Duration>,
    stopped: Option<Stopped>,
}

struct Stopped {
    since: Instant,
    processes: HashSet<Pid>,
}

impl Silence {
    pub fn new(limit: Option<Duration>) -> Silence {
        Silence { limit, heard: Instant::now(), lease_end: None, stopped: None }
    }

    /// Stops the program if the agent has been silent for too long, or its lease has ended. True: the program stands still.
    pub fn check(&mut self) -> bool {
        let is_over = is_over(self.lease_end, clock::now());
        if self.stopped.is_none() && (is_over || is_too_long(self.limit, self.heard.elapsed())) {
            let processes = tree::stop(getpid());
            let why = if is_over { "the agent's lease has ended" } else { "the agent is silent" };
            eprintln!("{why}: its program stands still");
            self.stopped = Some(Stopped { since: Instant::now(), processes });
        }
        self.stopped.is_some()
    }

    /// Time until the program is to stand still.
    pub fn left(&self) -> Duration {
        let of_limit = self.limit.map_or(Duration::MAX, |limit| limit.saturating_sub(self.heard.elapsed()));
        of_limit.min(self.lease_end.map_or(Duration::MAX, |end| end.saturating_sub(clock::now())))
    }

    /// The agent has spoken, and named the end of its lease. Returns for how long the program stood still until now.
    pub fn spoke(&mut self, lease_end_us: Option<u64>) -> Duration {
        self.lease_end = lease_end_us.map(Duration::from_micros);
        if !is_over(self.lease_end, clock::now()) {
            return self.broken();
        }
        self.heard = Instant::now();
        let since = self.stopped.as_mut().map(|stopped| std::mem::replace(&mut stopped.since, Instant::now()));
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// The agent has spoken of something else. Returns for how long the program stood still.
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

fn is_over(lease_end: Option<Duration>, now: Duration) -> bool {
    lease_end.is_some_and(|end| now >= end)
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

    #[test]
    fn a_lease_ends_at_its_time_unless_the_owner_lets_programs_go_on() {
        let end = Duration::from_secs(100);
        for (lease_end, now, expected) in [
            (Some(end), end - SPEAK_EVERY, false),
            (Some(end), end, true),
            (Some(end), end * 2, true),
            (None, Duration::MAX, false),
        ] {
            assert_eq!(is_over(lease_end, now), expected, "{lease_end:?} {now:?}");
        }
    }

    #[test]
    fn a_program_does_not_go_on_before_the_lease_is_renewed() {
        let micros = |at: Duration| u64::try_from(at.as_micros()).ok();
        let mut silence = Silence::new(None);
        assert_eq!(silence.left(), Duration::MAX);
        // There is no process to stop in this test.
        silence.stopped = Some(Stopped { since: Instant::now(), processes: HashSet::new() });
        silence.spoke(micros(clock::now()));
        assert!(silence.check(), "the lease has ended");
        silence.spoke(micros(clock::now() + LIMIT));
        assert!(silence.stopped.is_none() && silence.left() <= LIMIT);
        silence.spoke(None);
        assert_eq!(silence.left(), Duration::MAX);
    }
}
