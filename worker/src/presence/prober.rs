//! Asks probes, on a thread of its own.
//!
//! Owns that nobody waits for them: they go through all processes, on a machine that may be busy, swap or hang. What they said last is
//! always at hand, with its age. Another policy waits for what matters to it, and no longer than that takes where nothing hangs.
//!
//! The thread also owns the rhythm of an idle agent: it asks probes every [`RHYTHM`], and each answer causes one look. A look that
//! asked probes itself would be followed by another at their answer.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::aside::Aside;
#[cfg(not(target_os = "linux"))]
use super::elsewhere::Probes;
#[cfg(target_os = "linux")]
use super::linux::Probes;
use super::policy::Policy;
use super::signals::Moment;
use super::sources::Machine;
use crate::clock;

/// Time between two answers of an idle agent.
pub const RHYTHM: Duration = Duration::from_secs(5);

/// Time after which a look asks for another answer: less than [`RHYTHM`], and not with every key that a person presses.
pub const BELIEVED: Duration = Duration::from_secs(4);

/// What they said.
#[derive(Clone)]
pub struct Probed {
    pub at: Moment,
    /// By which it is to be judged. They were asked what matters to it, unless they hang.
    pub policy: Policy,
    pub machine: Machine,
}

impl Probed {
    pub fn is_fresh(&self, policy: &Policy, now: Moment) -> bool {
        self.policy == *policy && now.saturating_sub(self.at) < BELIEVED
    }
}

pub struct Prober {
    probed: Arc<Mutex<Probed>>,
    /// Since when that is the policy, and when they were asked for it last.
    meant: (Moment, Policy),
    asked: Option<Moment>,
    thread: Aside<Policy>,
}

impl Prober {
    /// Asks once before it returns. Calls `noticed` with each further answer.
    pub fn start(mut probes: Probes, policy: &Policy, noticed: impl Fn() + Send + 'static) -> io::Result<Prober> {
        let mut ask = move |policy: Policy| {
            let at = clock::now();
            let machine = probes.machine(&policy, at);
            Probed { at, policy, machine }
        };
        let probed = Arc::new(Mutex::new(ask(policy.clone())));
        let answers = Arc::clone(&probed);
        let mut last = policy.clone();
        let work = move |policy: Option<Policy>| {
            if let Some(policy) = policy {
                last = policy;
            }
            let answer = ask(last.clone());
            *answers.lock().expect("nothing panics under this lock") = answer;
            noticed();
        };
        Ok(Prober {
            probed,
            meant: (clock::now(), policy.clone()),
            asked: None,
            thread: Aside::with_rhythm("pcfarm-probes", 1, RHYTHM, work)?,
        })
    }

    /// Asks now, however old the last answer is.
    pub fn ask(&mut self, policy: &Policy, now: Moment) {
        self.thread.give(policy.clone());
        self.asked = Some(now);
    }

    #[cfg(all(test, target_os = "linux"))]
    pub fn make_old(&self, age: Duration) {
        let mut probed = self.probed.lock().expect("nothing panics under this lock");
        probed.at = probed.at.saturating_sub(age);
    }

    pub fn has_answered(&self, since: Moment) -> bool {
        self.probed.lock().expect("nothing panics under this lock").at >= since
    }

    /// What they said last. If that is not fresh they are asked. Who changes the policy is obeyed though they hang: what they were
    /// not asked for it is not known, then.
    pub fn read(&mut self, policy: &Policy, now: Moment) -> Probed {
        let probed = self.probed.lock().expect("nothing panics under this lock").clone();
        if self.meant.1 != *policy {
            (self.meant, self.asked) = ((now, policy.clone()), None);
        }
        let is_recent = |at: Moment| now.saturating_sub(at) < BELIEVED;
        if !probed.is_fresh(policy, now) && !self.asked.is_some_and(is_recent) {
            self.ask(policy, now);
        }
        if is_recent(self.meant.0) { probed } else { Probed { policy: policy.clone(), ..probed } }
    }
}
