//! All sources of one machine.
//!
//! Owns which of them there are, and asks only those whose answer matters to the policy.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Zoned;

#[cfg(target_os = "linux")]
use super::evdev::{Evdev, Places};
use super::helper::Helper;
use super::policy::Policy;
#[cfg(target_os = "linux")]
use super::probes::{self, Load, Processes};
use super::settings::Settings;
use super::signals::{Input, LocalTime, Moment, Proves, Reading, Signals};
#[cfg(target_os = "linux")]
use super::terminals::Terminals;
use crate::clock;

/// The two clocks run apart by more than this only while the machine sleeps.
const SLEPT: Duration = Duration::from_secs(1);

/// A keyboard may be plugged in where there was none.
#[cfg(target_os = "linux")]
const RESTART_AFTER: Duration = Duration::from_secs(60);

const NOT_ASKED: &str = "not asked, for it does not matter here";

pub struct Sources {
    settings: Settings,
    #[cfg(target_os = "linux")]
    evdev: Option<Evdev>,
    /// Looks again, where there was nothing to watch or what was there broke.
    #[cfg(target_os = "linux")]
    restart: Box<dyn Fn() -> Evdev + Send>,
    #[cfg(target_os = "linux")]
    restarted: Moment,
    #[cfg(target_os = "linux")]
    terminals: Option<Terminals>,
    #[cfg(target_os = "linux")]
    load: Load,
    asleep: Duration,
    woke: Option<Moment>,
}

impl Sources {
    /// Calls `noticed` when somebody touches something.
    pub fn start(settings: Settings, noticed: impl Fn() + Clone + Send + 'static) -> Sources {
        let attended = !settings.policy.unattended;
        #[cfg(target_os = "linux")]
        {
            let places = Places {
                devices: settings.dev.join("input"),
                classes: settings.sys.join("class/input"),
                ignored: settings.ignored_devices.clone(),
            };
            let proves = if settings.trust_terminals { Proves::Absence } else { Proves::Presence };
            let dev = settings.dev.clone();
            let restart = {
                let noticed = noticed.clone();
                Box::new(move || Evdev::start(places.clone(), noticed.clone()))
            };
            Sources {
                evdev: attended.then(&restart),
                restart,
                restarted: clock::now(),
                terminals: attended.then(|| Terminals::start(dev, proves, noticed)),
                load: Load::default(),
                asleep: asleep(),
                woke: None,
                settings,
            }
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = (attended, noticed);
            Sources { asleep: asleep(), woke: None, settings }
        }
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
        let mut input = self.own_input(now);
        input.extend(helpers.values().map(|helper| helper.input(self.settings.trust_sessions)));
        let full_screen = helpers.values().filter_map(Helper::full_screen).collect();
        Signals { input, full_screen, woke: self.woke, paused, time: local_time(), ..self.machine(policy, now) }
    }

    /// While the machine sleeps one clock stands still.
    fn notice_sleep(&mut self, now: Moment) {
        let asleep = asleep();
        if asleep.saturating_sub(self.asleep) > SLEPT {
            self.woke = Some(now);
        }
        self.asleep = asleep;
    }

    #[cfg(target_os = "linux")]
    fn own_input(&mut self, now: Moment) -> Vec<Reading<Input>> {
        let is_due = now.saturating_sub(self.restarted) >= RESTART_AFTER;
        if let Some(evdev) = self.evdev.as_mut().filter(|evdev| is_due && evdev.has_ended()) {
            *evdev = (self.restart)();
            self.restarted = now;
        }
        let evdev = self.evdev.as_ref().map(|evdev| evdev.read(now));
        let terminals = self.terminals.as_mut().map(|terminals| terminals.read(now));
        evdev.into_iter().chain(terminals).collect()
    }

    #[cfg(target_os = "linux")]
    fn machine(&mut self, policy: &Policy, now: Moment) -> Signals {
        let proc = self.settings.proc.as_path();
        let wants_memory = policy.free_memory.is_some() || policy.memory_limit.is_some();
        let wants_processes = policy.load.is_some() || wants_memory || !policy.programs.is_empty();
        let processes = if wants_processes { Processes::look(proc) } else { not_asked() };
        let load = if policy.load.is_some() { self.load.read(proc, &processes, now) } else { not_asked() };
        let memory = if wants_memory { probes::memory(proc, &processes) } else { not_asked() };
        let supplies = self.settings.sys.join("class/power_supply");
        let power = if policy.on_battery { not_asked() } else { probes::power(&supplies) };
        let programs = match policy.programs.as_slice() {
            [] => not_asked(),
            names => processes.as_ref().map(|processes| processes.running(names)).map_err(Clone::clone),
        };
        Signals {
            load: Reading::new("proc", now, load),
            memory: Reading::new("proc", now, memory),
            power: Reading::new("power_supply", now, power),
            programs: Reading::new("proc", now, programs),
            ..unknown(now)
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn own_input(&mut self, now: Moment) -> Vec<Reading<Input>> {
        vec![Reading::new("system", now, Err("nothing is known of input on this system".to_owned()))]
    }

    #[cfg(not(target_os = "linux"))]
    fn machine(&mut self, _: &Policy, now: Moment) -> Signals {
        unknown(now)
    }
}

fn unknown(now: Moment) -> Signals {
    fn nothing<T>(now: Moment) -> Reading<T> {
        Reading::new("none", now, Err("nothing here can tell".to_owned()))
    }
    Signals {
        input: Vec::new(),
        woke: None,
        load: nothing(now),
        memory: nothing(now),
        power: nothing(now),
        programs: nothing(now),
        full_screen: Vec::new(),
        metered: nothing(now),
        paused: None,
        time: local_time(),
    }
}

fn not_asked<T>() -> Result<T, String> {
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
