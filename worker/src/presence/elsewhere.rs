//! What an agent of Windows or macOS knows by itself. **Not yet tested.**
//!
//! Owns that only what matters to the policy is asked. On Windows nothing is known here of input: a service sees none, and helpers tell.

use std::time::Duration;

use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};

#[cfg(target_os = "macos")]
use super::hid::Hid;
use super::load::{Load, Sample};
use super::policy::Policy;
use super::remote::Remote;
use super::settings::Settings;
use super::signals::{Input, Memory, Moment, Network, Noises, Power, Reading};
use super::sources::{Machine, not_asked};

const SOURCE: &str = "system";

/// Who looks again sooner is told what was found last: over less time the system counts nothing.
const LEAST_TIME: Duration = Duration::from_secs(1);

const MILLISECONDS: u64 = 1000;

pub struct Own {
    #[cfg(target_os = "macos")]
    hid: Option<Hid>,
}

impl Own {
    pub fn start(settings: Settings, noticed: impl Fn() + Clone + Send + 'static) -> Own {
        #[cfg(windows)]
        let _ = (settings, noticed);
        Own {
            #[cfg(target_os = "macos")]
            hid: (!settings.policy.unattended).then(|| Hid::start(noticed)),
        }
    }

    #[cfg(target_os = "macos")]
    pub fn input(&mut self, now: Moment) -> Vec<Reading<Input>> {
        self.hid.iter().map(|hid| hid.read(now)).collect()
    }

    #[cfg(windows)]
    pub fn input(&mut self, now: Moment) -> Vec<Reading<Input>> {
        let why = "on Windows only a session's helper sees its input: pcfarm-worker session";
        vec![Reading::new(SOURCE, now, Err(why.to_owned()))]
    }

    /// All sources answer at once here.
    pub fn ask(&self) {}

    pub fn has_answered(&self, _since: std::time::Duration) -> bool {
        true
    }

    /// Not known here.
    pub fn noises(&self) -> Noises {
        Noises::default()
    }

    /// Findings about sources, for people.
    pub fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    pub fn network(&mut self, _policy: &Policy, now: Moment) -> Reading<Network> {
        Reading::new("none", now, Ok(Network::Untold("nothing here can tell".to_owned())))
    }
}

/// The machine itself, as the system counts it.
pub struct Probes {
    system: Result<System, String>,
    me: Pid,
    load: Load,
    /// When it was counted last, and what came of it.
    counted: Option<(Moment, Result<f64, String>)>,
    /// Of all cores, so far.
    #[cfg(target_os = "macos")]
    busy_ms: f64,
}

impl Probes {
    pub fn new(_settings: &Settings) -> Probes {
        Probes {
            system: System::new().map_err(|error| error.to_string()),
            me: Pid::from_u32(std::process::id()),
            load: Load::default(),
            counted: None,
            #[cfg(target_os = "macos")]
            busy_ms: 0.0,
        }
    }

    pub fn machine(&mut self, policy: &Policy, now: Moment) -> Machine {
        let wants_memory = policy.free_memory.is_some() || policy.memory_limit.is_some();
        let load = if policy.load.is_some() { self.load(now) } else { not_asked() };
        let memory = if wants_memory { self.memory() } else { not_asked() };
        let power = if policy.on_battery { not_asked() } else { power() };
        let programs = if policy.programs.is_empty() { not_asked() } else { self.running(&policy.programs) };
        Machine {
            remote: Reading::new(SOURCE, now, Ok(Remote { unlisted: Some("not known here"), uses: Vec::new() })),
            inhibitors: Reading::new(SOURCE, now, Ok(Vec::new())),
            load: Reading::new(SOURCE, now, load),
            memory: Reading::new(SOURCE, now, memory),
            power: Reading::new(SOURCE, now, power),
            programs: Reading::new(SOURCE, now, programs),
        }
    }

    fn load(&mut self, now: Moment) -> Result<f64, String> {
        if let Some((at, found)) = &self.counted
            && now.saturating_sub(*at) < LEAST_TIME
        {
            return found.clone();
        }
        let sample = self.sample(now);
        let found = self.load.read(sample, MILLISECONDS);
        self.counted = Some((now, found.clone()));
        found
    }

    fn sample(&mut self, now: Moment) -> Result<Sample, String> {
        let busy = self.busy_ms(now)?;
        let system = self.system.as_mut().map_err(|error| error.clone())?;
        Ok(Sample { at: now, busy, own: this_process(system, self.me)?.accumulated_cpu_time() })
    }

    #[cfg(windows)]
    fn busy_ms(&mut self, _: Moment) -> Result<u64, String> {
        let busy = pcfarm_native::windows::busy_time().map_err(|error| error.to_string())?;
        Ok(u64::try_from(busy.as_millis()).unwrap_or(u64::MAX))
    }

    /// The system says which part of its cores was used since it was asked last, and 0 if it cannot count: as it is asked, it never
    /// does nothing.
    #[cfg(target_os = "macos")]
    fn busy_ms(&mut self, now: Moment) -> Result<u64, String> {
        let system = self.system.as_mut().map_err(|error| error.clone())?;
        system.refresh_cpu_usage();
        let cores_used = f64::from(system.global_cpu_usage()) / 100.0 * system.cpus().len() as f64;
        if let Some((at, _)) = &self.counted {
            if cores_used == 0.0 {
                return Err("the system counts no use of its cores".to_owned());
            }
            self.busy_ms += cores_used * now.saturating_sub(*at).as_secs_f64() * MILLISECONDS as f64;
        }
        Ok(self.busy_ms as u64)
    }

    fn memory(&mut self) -> Result<Memory, String> {
        let system = self.system.as_mut().map_err(|error| error.clone())?;
        system.refresh_memory();
        let (total_bytes, available_bytes) = (system.total_memory(), system.available_memory());
        if total_bytes == 0 {
            return Err("the system does not say how much memory there is".to_owned());
        }
        Ok(Memory { total_bytes, available_bytes, own_bytes: this_process(system, self.me)?.memory() })
    }

    /// Which of these run, with or without what Windows has behind a program's name.
    fn running(&mut self, names: &[String]) -> Result<Vec<String>, String> {
        let system = self.system.as_mut().map_err(|error| error.clone())?;
        system.refresh_processes_specifics(ProcessesToUpdate::All, true, ProcessRefreshKind::nothing());
        if system.process(self.me).is_none() {
            return Err("the system does not tell which programs run".to_owned());
        }
        let plain = |name: &str| {
            let name = if cfg!(windows) { name.to_ascii_lowercase() } else { name.to_owned() };
            name.strip_suffix(".exe").map_or(name.clone(), str::to_owned)
        };
        let others = system.processes().iter().filter(|(pid, _)| **pid != self.me);
        let others: Vec<String> = others.map(|(_, process)| plain(&process.name().to_string_lossy())).collect();
        Ok(names.iter().filter(|name| others.contains(&plain(name))).cloned().collect())
    }
}

fn this_process(system: &mut System, me: Pid) -> Result<&sysinfo::Process, String> {
    let what = ProcessRefreshKind::nothing().with_cpu().with_memory();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[me]), true, what);
    system.process(me).ok_or_else(|| "the system does not know this process".to_owned())
}

fn power() -> Result<Power, String> {
    #[cfg(target_os = "macos")]
    let is_on_battery = pcfarm_native::macos::is_on_battery();
    #[cfg(windows)]
    let is_on_battery = pcfarm_native::windows::is_on_battery();
    is_on_battery.map(|is_on_battery| if is_on_battery { Power::Battery } else { Power::Mains })
}
