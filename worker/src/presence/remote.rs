//! Sessions without a terminal: remote editors, VNC, RDP. They have no input device and type into no terminal.
//!
//! Owns the rule by which such a session counts as presence: it does until `after` since it last used the CPU. [`logind`] lists the
//! sessions, [`cpu`] notices their use, [`watch`] joins both.

#[cfg(target_os = "linux")]
mod cpu;
#[cfg(target_os = "linux")]
pub mod logind;
#[cfg(target_os = "linux")]
mod typed;
#[cfg(target_os = "linux")]
mod watch;

use std::time::Duration;

use serde::Deserialize;

use super::policy::span;
use super::signals::Moment;
#[cfg(target_os = "linux")]
pub use watch::{Watch, service_account};

/// A reader of a long text, or a meeting, pauses for that long without the session's programs doing anything.
const AFTER: Duration = Duration::from_secs(2 * 3600);

/// Seconds of CPU per minute, 2 % of one core. A person who types, scrolls or saves causes more: a language server looks at each change,
/// a VNC server encodes each frame. Idle ones cause less: file watchers, keep-alives and a fetch of `git` every few minutes. With
/// 0.3 s a remote editor that is left open may keep the PC from work all night: the documentation leaves that to the owner.
const CPU_PER_MINUTE: f64 = 1.0;

/// The table `[presence.remote]` of the file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRules {
    count: Option<bool>,
    after: Option<f64>,
    cpu: Option<f64>,
    #[serde(default)]
    ignored_users: Vec<String>,
    #[serde(default)]
    services: Vec<String>,
}

/// Sessions that count, and for how long.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    pub count: bool,
    /// How long a session counts after its last use of the CPU.
    pub after: Duration,
    /// Seconds of CPU per minute that are a use.
    pub cpu: f64,
    /// Users whose sessions never count, such as that of a backup.
    pub ignored_users: Vec<String>,
    /// Services in which people work, such as `jupyter.service`: their use counts like a session's.
    pub services: Vec<String>,
}

impl Rules {
    pub fn of_a_desk() -> Rules {
        Rules { count: true, after: AFTER, cpu: CPU_PER_MINUTE, ignored_users: Vec::new(), services: Vec::new() }
    }

    pub fn unattended() -> Rules {
        Rules { count: false, ..Rules::of_a_desk() }
    }

    /// True if the agent must look for sessions or services at all.
    pub fn matter(&self) -> bool {
        self.count || !self.services.is_empty()
    }
}

impl FileRules {
    /// The first setting that makes no sense.
    pub fn wrong(&self) -> Option<&'static str> {
        let is_time = |seconds: f64| (0.0..=7.0 * 86_400.0).contains(&seconds);
        let is_use = |seconds: f64| seconds > 0.0 && seconds <= 60.0;
        let is_path = |service: &String| !service.is_empty() && !service.split('/').any(|part| part == "..");
        let checks = [
            ("remote.after", self.after.is_none_or(is_time)),
            ("remote.cpu", self.cpu.is_none_or(is_use)),
            ("remote.services", self.services.iter().all(is_path)),
        ];
        checks.into_iter().find(|(_, is_good)| !is_good).map(|(name, _)| name)
    }

    /// Fills in the defaults.
    pub fn over(self, default: Rules) -> Rules {
        Rules {
            count: self.count.unwrap_or(default.count),
            after: self.after.map_or(default.after, Duration::from_secs_f64),
            cpu: self.cpu.unwrap_or(default.cpu),
            ignored_users: self.ignored_users,
            services: self.services,
        }
    }
}

/// Sessions and services of one look.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Remote {
    /// Reason why this machine has no list.
    pub unlisted: Option<&'static str>,
    pub uses: Vec<Use>,
}

/// A session or a service in which a person may work.
#[derive(Clone, Debug, PartialEq)]
pub struct Use {
    /// Name for people of this PC, such as `session 3 of alice by sshd, since Mon 13:05`.
    pub what: String,
    /// Name for the farm, without the user's.
    pub by: String,
    /// Last use of the CPU, or the reason why it is unknown. `None`: no use since it began.
    pub last: Result<Option<Moment>, String>,
    /// How long the session counts after its last use.
    pub counts_for: Duration,
}

impl Use {
    pub fn counts(&self, now: Moment) -> bool {
        match &self.last {
            Ok(last) => last.is_some_and(|last| now.saturating_sub(last) < self.counts_for),
            // A person may use it as long as it exists.
            Err(_) => true,
        }
    }
}

impl Remote {
    /// Returns the reason why a person works here. The text does not change while the session lasts.
    pub fn objection(&self, now: Moment) -> Option<String> {
        let counted = self.uses.iter().find(|used| used.counts(now))?;
        let by = &counted.by;
        Some(match &counted.last {
            Ok(_) => {
                let after = span(counted.counts_for);
                format!("its person works here without a terminal, or did less than {after} ago ({by})")
            }
            Err(why) => format!("its person may work here without a terminal ({by}: {why})"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_session_counts_for_two_hours_after_its_last_use() {
        let used = |last| Use { what: String::new(), by: "session 3".to_owned(), last, counts_for: AFTER };
        let now = 100 * HOUR;
        for (what, last, expected) in [
            ("in use", Ok(Some(now)), true),
            ("a moment less than two hours", Ok(Some(now - 2 * HOUR + Duration::from_secs(1))), true),
            ("two hours", Ok(Some(now - 2 * HOUR)), false),
            ("never", Ok(None), false),
            ("unknown", Err("no cgroup".to_owned()), true),
        ] {
            assert_eq!(used(last.clone()).counts(now), expected, "{what}");
            let remote = Remote { unlisted: None, uses: vec![used(Ok(None)), used(last)] };
            assert_eq!(remote.objection(now).is_some_and(|text| text.contains("session 3")), expected, "{what}");
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for (text, expected) in [
            ("", None),
            ("after = 0\ncpu = 60", None),
            ("after = -1", Some("remote.after")),
            ("after = nan", Some("remote.after")),
            ("cpu = 0", Some("remote.cpu")),
            ("cpu = inf", Some("remote.cpu")),
            ("services = [\"../../etc\"]", Some("remote.services")),
            ("services = [\"\"]", Some("remote.services")),
        ] {
            let rules: FileRules = toml::from_str(text).expect("it parses");
            assert_eq!(rules.wrong(), expected, "{text}");
        }
    }
}
