//! All sources of one machine.
//!
//! Owns which of them there are, and asks only those whose answer matters to the policy.

use std::time::Duration;

use jiff::Zoned;
use jiff::tz::TimeZone;

#[cfg(not(target_os = "linux"))]
use super::elsewhere::{Own, Probes};
use super::helper::Helpers;
use super::hours::{self, LocalTime};
use super::inhibitors::{Inhibitor, Told};
#[cfg(target_os = "linux")]
use super::linux::{Own, Probes};
use super::policy::Policy;
use super::prober::Prober;
use super::remote::Remote;
use super::settings::Settings;
use super::signals::{Memory, Moment, Power, Reading, Signals};
use crate::clock;

/// The two clocks run apart by more than this only while the machine sleeps.
const SLEPT: Duration = Duration::from_secs(1);

const NOT_ASKED: &str = "not asked, for it does not matter here";

pub struct Sources {
    own: Own,
    trust_sessions: bool,
    asleep: Duration,
    woke: Option<Moment>,
    prober: Prober,
}

/// What others have said.
pub struct Heard {
    pub helpers: Helpers,
    pub inhibitors: Told,
    pub paused: Option<String>,
}

/// What is known.
pub struct Look {
    pub signals: Signals,
    /// By which it is to be judged: another one holds as soon as what matters to it has been asked, or should have been.
    pub policy: Policy,
    /// That is the one that was meant, and nothing is old.
    pub is_fresh: bool,
}

/// What an agent knows by itself of its machine.
#[derive(Clone)]
pub struct Machine {
    pub load: Reading<f64>,
    pub memory: Reading<Memory>,
    pub power: Reading<Power>,
    pub programs: Reading<Vec<String>>,
    pub remote: Reading<Remote>,
    pub inhibitors: Reading<Vec<Inhibitor>>,
}

impl Sources {
    /// Calls `noticed` when somebody touches something, or when more is known.
    pub fn start(
        settings: Settings,
        policy: &Policy,
        noticed: impl Fn() + Clone + Send + 'static,
    ) -> std::io::Result<Sources> {
        let trust_sessions = settings.trust_sessions;
        let prober = Prober::start(Probes::new(&settings), policy, noticed.clone())?;
        Ok(Sources { own: Own::start(settings, noticed), trust_sessions, asleep: asleep(), woke: None, prober })
    }

    /// Asks all sources that answer later to answer now.
    pub fn ask(&mut self, policy: &Policy, now: Moment) {
        self.ask_devices();
        self.prober.ask(policy, now);
    }

    /// Asks the source of input devices.
    pub fn ask_devices(&self) {
        self.own.ask();
    }

    pub fn devices_have_answered(&self, since: Duration) -> bool {
        self.own.has_answered(since)
    }

    /// Returns true if all of them have answered since, on both clocks.
    pub fn have_answered(&self, since: Moment, since_awake: Duration) -> bool {
        self.devices_have_answered(since_awake) && self.prober.has_answered(since)
    }

    /// Makes all answers older.
    #[cfg(all(test, target_os = "linux"))]
    pub fn make_old(&self, age: Duration) {
        self.own.make_old(age);
        self.prober.make_old(age);
    }

    /// What is seen now, and what probes said last.
    pub fn read(&mut self, policy: &Policy, heard: &Heard, now: Moment) -> Look {
        let probed = self.prober.read(policy, now);
        let is_fresh = probed.is_fresh(policy, now);
        let signals = self.signals(&probed.policy, probed.machine, heard, now);
        Look { signals, policy: probed.policy, is_fresh }
    }

    fn signals(&mut self, policy: &Policy, machine: Machine, heard: &Heard, now: Moment) -> Signals {
        self.notice_sleep(now, asleep());
        let mut input = self.own.input(now);
        input.extend(heard.helpers.input(self.trust_sessions, now));
        let Machine { load, memory, power, programs, remote, inhibitors } = machine;
        Signals {
            input,
            noises: self.own.noises(),
            woke: self.woke,
            load,
            memory,
            power,
            programs,
            notes: self.own.notes().into_iter().chain(heard.helpers.notes(&TimeZone::system())).collect(),
            full_screen: heard.helpers.full_screen(),
            network: self.own.network(policy, now),
            remote,
            inhibitors,
            told_inhibitors: heard.inhibitors.read(now),
            paused: heard.paused.clone(),
            time: local_time(),
        }
    }

    /// While the machine sleeps one clock stands still.
    fn notice_sleep(&mut self, now: Moment, asleep: Duration) {
        if asleep.saturating_sub(self.asleep) > SLEPT {
            self.woke = Some(now);
        }
        self.asleep = asleep;
    }
}

pub fn not_asked<T>() -> Result<T, String> {
    Err(NOT_ASKED.to_owned())
}

/// How long the machine has slept so far.
fn asleep() -> Duration {
    clock::now().saturating_sub(clock::awake())
}

fn local_time() -> LocalTime {
    hours::local_time(&Zoned::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_of_the_clock_that_runs_on_in_sleep_is_a_waking() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut settings = Settings::unattended();
        settings.proc = dir.path().to_owned();
        let policy = settings.policy.clone();
        let mut sources = Sources::start(settings, &policy, || {}).expect("it starts");
        let at = Duration::from_secs;
        let slept = sources.asleep;
        for (now, asleep, woke) in [
            (at(1000), slept, None),
            (at(1001), slept + Duration::from_millis(900), None),
            // An hour, and a look as soon as it is over.
            (at(4602), slept + at(3600), Some(at(4602))),
            (at(4603), slept + at(3600), Some(at(4602))),
            (at(4700), slept + at(3602), Some(at(4700))),
        ] {
            sources.notice_sleep(now, asleep);
            assert_eq!(sources.woke, woke, "{now:?}");
        }
    }
}
