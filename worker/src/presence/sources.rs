//! All sources of one machine.
//!
//! Owns which of them there are, and asks only those whose answer matters to the policy.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Zoned;

#[cfg(not(target_os = "linux"))]
use super::elsewhere::Own;
use super::helper::Helper;
#[cfg(target_os = "linux")]
use super::linux::Own;
use super::policy::Policy;
use super::settings::Settings;
use super::signals::{LocalTime, Memory, Moment, Power, Reading, Signals};
use crate::clock;

/// The two clocks run apart by more than this only while the machine sleeps.
const SLEPT: Duration = Duration::from_secs(1);

const NOT_ASKED: &str = "not asked, for it does not matter here";

pub struct Sources {
    own: Own,
    trust_sessions: bool,
    asleep: Duration,
    woke: Option<Moment>,
}

/// What an agent knows by itself of its machine.
pub struct Machine {
    pub load: Reading<f64>,
    pub memory: Reading<Memory>,
    pub power: Reading<Power>,
    pub programs: Reading<Vec<String>>,
}

impl Sources {
    /// Calls `noticed` when somebody touches something.
    pub fn start(settings: Settings, noticed: impl Fn() + Clone + Send + 'static) -> Sources {
        let trust_sessions = settings.trust_sessions;
        Sources { own: Own::start(settings, noticed), trust_sessions, asleep: asleep(), woke: None }
    }

    /// What matters to this policy.
    pub fn read(
        &mut self,
        policy: &Policy,
        helpers: &BTreeMap<u64, Helper>,
        paused: Option<String>,
        now: Moment,
    ) -> Signals {
        self.notice_sleep(now);
        let mut input = self.own.input(now);
        input.extend(helpers.values().map(|helper| helper.input(self.trust_sessions)));
        let full_screen = helpers.values().filter_map(Helper::full_screen).collect();
        let Machine { load, memory, power, programs } = self.own.machine(policy, now);
        Signals {
            input,
            woke: self.woke,
            load,
            memory,
            power,
            programs,
            full_screen,
            metered: Reading::new("none", now, Err("nothing here can tell".to_owned())),
            paused,
            time: local_time(),
        }
    }

    /// While the machine sleeps one clock stands still.
    fn notice_sleep(&mut self, now: Moment) {
        let asleep = asleep();
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
    let now = Zoned::now();
    let weekday = usize::try_from(now.weekday().to_monday_zero_offset()).unwrap_or(0);
    let minute = u16::try_from(i32::from(now.hour()) * 60 + i32::from(now.minute())).unwrap_or(0);
    LocalTime { weekday, minute }
}
