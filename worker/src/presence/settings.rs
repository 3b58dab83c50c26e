//! What the owner says about the workstation's person.
//!
//! Owns the defaults, which suit an office, and their reasons.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::cores::{self, Cores};
use super::hours::{Hours, NoHours, Window};
use super::inhibitors;
use super::policy::{OnReturn, Policy};
use super::remote;
use super::wishes::Limits;

/// Whoever has not touched anything for so long has left.
const START_AFTER: Duration = Duration::from_secs(15 * 60);

/// Whoever has come back for a moment has left sooner.
const RESUME_AFTER: Duration = Duration::from_secs(5 * 60);

/// What waits for longer had better be solved elsewhere.
const GIVE_BACK_AFTER: Duration = Duration::from_secs(10 * 60);

/// An idle desktop uses less, and a compiler, a video or a backup more.
const LOAD: f64 = 0.3;

/// Part of the memory that stays free, so that what the person left open is not swapped out.
const FREE_MEMORY: f64 = 0.1;

/// All that the agent knows of its workstation's person.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub policy: Policy,
    /// How far the farm may go beyond it.
    pub limits: Limits,
    pub cores: Cores,
    /// What of it its owner has said.
    pub named: BTreeSet<&'static str>,
    /// The farm may wake the PC.
    pub may_be_woken: bool,
    /// Terminals prove that nobody is there: there is no graphical desktop.
    pub trust_terminals: bool,
    /// What helpers of other users say proves that nobody is there: each session has one.
    pub trust_sessions: bool,
    /// Patterns for names of input devices to ignore.
    pub ignore_devices: Vec<String>,
    /// Accounts in which programs of the farm run: their terminals are no person's.
    pub own_users: BTreeSet<u32>,
    /// Where `/dev`, `/proc` and `/sys` are, as a container may see them.
    pub dev: PathBuf,
    pub proc: PathBuf,
    pub sys: PathBuf,
    /// Directory of logind's lists.
    pub run: PathBuf,
}

impl Settings {
    /// For a PC with a person.
    pub fn of_a_desk() -> Settings {
        let policy = Policy {
            unattended: false,
            start_after: START_AFTER,
            resume_after: RESUME_AFTER,
            give_back_after: GIVE_BACK_AFTER,
            on_return: OnReturn::default(),
            load: Some(LOAD),
            free_memory: Some(FREE_MEMORY),
            memory_limit: None,
            on_battery: false,
            on_metered: false,
            beside_full_screen: false,
            hours: Hours::default(),
            farm_hours: Hours::default(),
            programs: Vec::new(),
            remote: remote::Rules::of_a_desk(),
            inhibitors: inhibitors::Rules::of_a_desk(),
        };
        Settings {
            policy,
            limits: Limits::default(),
            cores: Cores::of(cores::all()),
            named: BTreeSet::new(),
            may_be_woken: false,
            trust_terminals: false,
            trust_sessions: false,
            ignore_devices: Vec::new(),
            own_users: BTreeSet::new(),
            dev: "/dev".into(),
            proc: "/proc".into(),
            sys: "/sys".into(),
            run: "/run".into(),
        }
    }

    /// For a machine without one: nothing keeps it from work unless its owner says so.
    pub fn unattended() -> Settings {
        let desk = Settings::of_a_desk();
        let policy = Policy {
            unattended: true,
            load: None,
            free_memory: None,
            on_battery: true,
            on_metered: true,
            beside_full_screen: true,
            remote: remote::Rules::unattended(),
            inhibitors: inhibitors::Rules::unattended(),
            ..desk.policy
        };
        Settings { policy, ..desk }
    }
}

/// The table `[presence]` of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSettings {
    start_after: Option<f64>,
    resume_after: Option<f64>,
    give_back_after: Option<f64>,
    on_return: Option<OnReturn>,
    load: Option<f64>,
    free_memory: Option<f64>,
    memory_limit_mib: Option<u64>,
    on_battery: Option<bool>,
    on_metered: Option<bool>,
    beside_full_screen: Option<bool>,
    #[serde(default)]
    hours: Vec<String>,
    #[serde(default)]
    programs: Vec<String>,
    trust_terminals: Option<bool>,
    trust_sessions: Option<bool>,
    #[serde(default)]
    limits: Limits,
    #[serde(default)]
    remote: remote::FileRules,
    #[serde(default)]
    inhibitors: inhibitors::FileRules,
    /// Called `ignored_devices` before.
    #[serde(default, alias = "ignored_devices")]
    ignore_devices: Vec<String>,
    dev: Option<PathBuf>,
    proc: Option<PathBuf>,
    sys: Option<PathBuf>,
    run: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum PresenceError {
    #[error("{name} is a time in seconds, at most a week")]
    Seconds { name: &'static str },
    #[error("load is how many cores others may use: more than 0, inf for any")]
    Load,
    #[error("free_memory is a part of the memory, from 0 to 0.9")]
    FreeMemory,
    #[error("{0} is wrong: it takes what the setting of that name takes")]
    Limit(&'static str),
    #[error(
        "{0} is out of range: times are seconds, at most a week; cpu is seconds per minute; services are names or paths of cgroups"
    )]
    Rule(&'static str),
    #[error(transparent)]
    Hours(#[from] NoHours),
}

const WEEK: f64 = 7.0 * 86_400.0;

impl FileSettings {
    /// What the farm may change, as far as the file says it.
    fn named(&self) -> BTreeSet<&'static str> {
        let said = [
            ("start_after", self.start_after.is_some()),
            ("resume_after", self.resume_after.is_some()),
            ("give_back_after", self.give_back_after.is_some()),
            ("on_return", self.on_return.is_some()),
            ("load", self.load.is_some()),
            ("free_memory", self.free_memory.is_some()),
            ("memory_limit_mib", self.memory_limit_mib.is_some()),
            ("on_battery", self.on_battery.is_some()),
            ("on_metered", self.on_metered.is_some()),
            ("beside_full_screen", self.beside_full_screen.is_some()),
            ("hours", !self.hours.is_empty()),
        ];
        said.into_iter().filter(|(_, is_said)| *is_said).map(|(name, _)| name).collect()
    }

    /// Over the defaults of such a machine.
    pub fn over(self, default: Settings) -> Result<Settings, PresenceError> {
        let time = |name, seconds: Option<f64>, default| match seconds {
            None => Ok(default),
            Some(seconds) if (0.0..=WEEK).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
            Some(_) => Err(PresenceError::Seconds { name }),
        };
        if self.load.is_some_and(|load| load.is_nan() || load <= 0.0) {
            return Err(PresenceError::Load);
        }
        if self.free_memory.is_some_and(|part| !(0.0..=0.9).contains(&part)) {
            return Err(PresenceError::FreeMemory);
        }
        if let Some(wrong) = self.limits.wrong() {
            return Err(PresenceError::Limit(wrong));
        }
        if let Some(wrong) = self.remote.wrong().or(self.inhibitors.wrong()) {
            return Err(PresenceError::Rule(wrong));
        }
        let named = self.named();
        let windows: Result<Vec<Window>, NoHours> = self.hours.iter().map(|text| text.parse()).collect();
        let old = default.policy;
        let policy = Policy {
            unattended: old.unattended,
            start_after: time("start_after", self.start_after, old.start_after)?,
            resume_after: time("resume_after", self.resume_after, old.resume_after)?,
            give_back_after: time("give_back_after", self.give_back_after, old.give_back_after)?,
            on_return: self.on_return.unwrap_or(old.on_return),
            load: self.load.or(old.load).filter(|load| load.is_finite()),
            free_memory: self.free_memory.or(old.free_memory).filter(|part| *part > 0.0),
            memory_limit: self.memory_limit_mib.map(|mib| mib.saturating_mul(1 << 20)).or(old.memory_limit),
            on_battery: self.on_battery.unwrap_or(old.on_battery),
            on_metered: self.on_metered.unwrap_or(old.on_metered),
            beside_full_screen: self.beside_full_screen.unwrap_or(old.beside_full_screen),
            hours: Hours(windows?),
            farm_hours: Hours::default(),
            programs: self.programs,
            remote: self.remote.over(old.remote),
            inhibitors: self.inhibitors.over(old.inhibitors),
        };
        Ok(Settings {
            policy,
            limits: self.limits,
            cores: default.cores,
            named,
            may_be_woken: default.may_be_woken,
            trust_terminals: self.trust_terminals.unwrap_or(default.trust_terminals),
            trust_sessions: self.trust_sessions.unwrap_or(default.trust_sessions),
            ignore_devices: self.ignore_devices,
            own_users: default.own_users,
            dev: self.dev.unwrap_or(default.dev),
            proc: self.proc.unwrap_or(default.proc),
            sys: self.sys.unwrap_or(default.sys),
            run: self.run.unwrap_or(default.run),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Settings, String> {
        let file: FileSettings = toml::from_str(text).map_err(|error| error.to_string())?;
        file.over(Settings::of_a_desk()).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_said_is_the_default() {
        assert_eq!(parse(""), Ok(Settings::of_a_desk()));
        let settings = parse("start_after = 60\non_return = \"finish\"\nhours = [\"mon-fri 18:00-7:00\"]\nload = 1.5")
            .expect("good settings");
        assert_eq!(settings.policy.start_after, Duration::from_secs(60));
        assert_eq!(settings.policy.on_return, OnReturn::Finish);
        assert_eq!((settings.policy.load, settings.policy.free_memory), (Some(1.5), Some(FREE_MEMORY)));
        assert_eq!(settings.policy.hours.to_string(), "mon-fri 18:00-7:00");
        let any = parse("load = inf\nfree_memory = 0").expect("good settings").policy;
        assert_eq!((any.load, any.free_memory), (None, None));
    }

    #[test]
    fn nonsense_is_refused() {
        for (text, expected) in [
            ("start_after = -1", "start_after is a time in seconds"),
            ("give_back_after = 1e9", "give_back_after is a time in seconds"),
            ("resume_after = nan", "resume_after is a time in seconds"),
            ("load = 0", "load is how many cores"),
            ("free_memory = 10", "free_memory is a part"),
            ("hours = [\"always\"]", "are no hours"),
            ("on_return = \"run away\"", "unknown variant"),
            ("lod = 0.3", "unknown field"),
            ("[limits]\nlod = 0.3", "unknown field"),
            ("[limits]\nload = -1", "limits.load is wrong"),
            ("[remote]\nafter = -1", "remote.after is out of range"),
            ("[inhibitors]\nlimit = 1e9", "inhibitors.limit is out of range"),
            ("[inhibitors]\nlogin = true", "unknown field"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
