//! What an agent of Linux knows by itself.
//!
//! Owns that only what matters to the policy is asked, and that what broke is looked for again.

use std::path::PathBuf;
use std::time::Duration;

use rustix::param::clock_ticks_per_second;

use super::evdev::{Evdev, Places};
use super::inhibitors::{self, logind::Own as OwnInhibitors};
use super::load::Load;
use super::network::{Bus, Network};
use super::policy::Policy;
use super::probes::{self, Processes};
use super::remote::{self, Watch};
use super::settings::Settings;
use super::signals::{self, Input, Moment, Noises, Proves, Reading};
use super::sources::{Machine, not_asked};
use super::terminals::Terminals;
use crate::clock;
use crate::missing;

/// A keyboard may be plugged in where there was none.
const RESTART_AFTER: Duration = Duration::from_secs(60);

pub struct Own {
    evdev: Option<Evdev>,
    /// Looks again, where there was nothing to watch or what was there broke.
    restart: Box<dyn Fn() -> Evdev + Send>,
    restarted: Moment,
    terminals: Option<Terminals>,
    /// From when on it matters.
    network: Option<Network>,
    /// Starts that.
    listen: Box<dyn Fn() -> Option<Network> + Send>,
}

impl Own {
    pub fn start(settings: Settings, noticed: impl Fn() + Clone + Send + 'static) -> Own {
        let attended = !settings.policy.unattended;
        let places = Places {
            devices: settings.dev.join("input"),
            classes: settings.sys.join("class/input"),
            ignored: settings.ignore_devices,
        };
        let proves = if settings.trust_terminals { Proves::Absence } else { Proves::Presence };
        let (dev, own) = (settings.dev, settings.own_users);
        let restart = {
            let noticed = noticed.clone();
            Box::new(move || Evdev::start(places.clone(), noticed.clone()))
        };
        let listen = {
            let noticed = noticed.clone();
            Box::new(move || Network::start(Bus::System, noticed.clone()).ok())
        };
        Own {
            network: None,
            listen,
            evdev: attended.then(&restart),
            restart,
            restarted: clock::now(),
            terminals: attended.then(|| Terminals::start(dev, proves, own, noticed)),
        }
    }

    pub fn input(&mut self, now: Moment) -> Vec<Reading<Input>> {
        let is_due = now.saturating_sub(self.restarted) >= RESTART_AFTER;
        if let Some(evdev) = self.evdev.as_mut().filter(|evdev| is_due && evdev.has_ended()) {
            *evdev = (self.restart)();
            self.restarted = now;
        }
        let evdev = self.evdev.as_ref().map(|evdev| evdev.read(now));
        let terminals = self.terminals.as_mut().map(|terminals| terminals.read(now));
        let helpers = missing::desktop().filter(|_| self.terminals.is_some());
        let helpers = helpers.map(|missing| Reading::new("session helpers", now, Err(missing.to_string())));
        evdev.into_iter().chain(terminals).chain(helpers).collect()
    }

    /// Asks sources that answer later to answer now.
    pub fn ask(&self) {
        self.evdev.iter().for_each(Evdev::ask);
    }

    #[cfg(test)]
    pub fn make_old(&self, age: Duration) {
        self.evdev.iter().for_each(|evdev| evdev.make_old(age));
    }

    pub fn has_answered(&self, since: Duration) -> bool {
        self.evdev.as_ref().is_none_or(|evdev| evdev.has_looked(since))
    }

    pub fn noises(&self) -> Noises {
        self.evdev.as_ref().map(Evdev::noises).unwrap_or_default()
    }

    /// Findings about input devices, for people.
    pub fn notes(&self) -> Vec<String> {
        self.evdev.as_ref().map(Evdev::notes).unwrap_or_default()
    }

    pub fn network(&mut self, policy: &Policy, now: Moment) -> Reading<signals::Network> {
        if policy.on_metered {
            return Reading::new("none", now, not_asked());
        }
        if self.network.is_none() {
            self.network = (self.listen)();
        }
        let nobody = || Reading::new("none", now, Err("a thread cannot be started".to_owned()));
        self.network.as_ref().map_or_else(nobody, Network::read)
    }
}

/// The machine itself, as the kernel sees it.
pub struct Probes {
    /// `/proc` and `/sys`.
    proc: PathBuf,
    sys: PathBuf,
    load: Load,
    /// Directory of logind's lists.
    run: PathBuf,
    remote: Watch,
    inhibitors: inhibitors::Since,
    own_inhibitors: OwnInhibitors,
}

impl Probes {
    pub fn new(settings: &Settings) -> Probes {
        Probes {
            proc: settings.proc.clone(),
            sys: settings.sys.clone(),
            load: Load::default(),
            run: settings.run.clone(),
            remote: Watch::new(settings),
            inhibitors: inhibitors::Since::default(),
            own_inhibitors: OwnInhibitors { pid: std::process::id(), service: remote::service_account() },
        }
    }

    pub fn machine(&mut self, policy: &Policy, now: Moment) -> Machine {
        let proc = self.proc.as_path();
        let wants_memory = policy.free_memory.is_some() || policy.memory_limit.is_some();
        let wants_processes = policy.load.is_some() || wants_memory || !policy.programs.is_empty();
        let processes = if wants_processes { Processes::look(proc) } else { not_asked() };
        let load = if policy.load.is_some() {
            self.load.read(probes::sample(proc, &processes, now), clock_ticks_per_second())
        } else {
            not_asked()
        };
        let memory = if wants_memory { probes::memory(proc, &processes) } else { not_asked() };
        let supplies = self.sys.join("class/power_supply");
        let power = if policy.on_battery { not_asked() } else { probes::power(&supplies) };
        let programs = match policy.programs.as_slice() {
            [] => not_asked(),
            names => processes.as_ref().map_err(Clone::clone).and_then(|processes| processes.running(names)),
        };
        let remote = if policy.remote.matter() {
            self.remote.read(&policy.remote, policy.start_after, now)
        } else {
            not_asked()
        };
        let inhibitors = if policy.inhibitors.logind {
            let held = inhibitors::logind::held(&self.run, &self.own_inhibitors);
            held.map(|held| self.inhibitors.read(held, now))
        } else {
            not_asked()
        };
        Machine {
            remote: Reading::new("logind", now, remote),
            inhibitors: Reading::new("logind", now, inhibitors),
            load: Reading::new("proc", now, load),
            memory: Reading::new("proc", now, memory),
            power: Reading::new("power_supply", now, power),
            programs: Reading::new("proc", now, programs),
        }
    }
}
