//! Lines of the service's unit that may keep a program from running, as `systemctl cat` shows them. Pure.
//!
//! - [`Unit`]: the lines, grouped by the setting that they make up together.
//! - [`blockers`]: the rules without which a program runs that does not run under all of them.

use std::fmt;

use crate::service::system::UNIT;

/// Settings that are the agent's own: the service's type, its start, end, directories, and log. A program neither inherits them nor
/// depends on them. A check has a private `/tmp` in any case, and `RemoveIPC=` at its end would take shared memory from programs that
/// run. Every other setting may stop a program.
const OF_THE_AGENT: [&str; 57] = [
    "BusName",
    "CacheDirectory",
    "CacheDirectoryMode",
    "ConfigurationDirectory",
    "ConfigurationDirectoryMode",
    "CoredumpReceive",
    "Delegate",
    "DelegateSubgroup",
    "DynamicUser",
    "ExecCondition",
    "ExecReload",
    "ExecSearchPath",
    "ExecStart",
    "ExecStartPost",
    "ExecStartPre",
    "ExecStop",
    "ExecStopPost",
    "ExitType",
    "FileDescriptorStoreMax",
    "FileDescriptorStorePreserve",
    "FinalKillSignal",
    "GuessMainPID",
    "KillMode",
    "KillSignal",
    "LogExtraFields",
    "LogFilterPatterns",
    "LogLevelMax",
    "LogNamespace",
    "LogRateLimitBurst",
    "LogRateLimitIntervalSec",
    "LogsDirectory",
    "LogsDirectoryMode",
    "NonBlocking",
    "NotifyAccess",
    "OOMPolicy",
    "OpenFile",
    "PIDFile",
    "PrivateTmp",
    "RemainAfterExit",
    "ReloadSignal",
    "RemoveIPC",
    "RootDirectoryStartOnly",
    "RuntimeDirectory",
    "RuntimeDirectoryMode",
    "RuntimeDirectoryPreserve",
    "SendSIGHUP",
    "SendSIGKILL",
    "Sockets",
    "StateDirectory",
    "StateDirectoryMode",
    "SuccessExitStatus",
    "Type",
    "USBFunctionDescriptors",
    "USBFunctionStrings",
    "UtmpIdentifier",
    "UtmpMode",
    "WorkingDirectory",
];

/// Beginnings of names of more settings that are the agent's own.
const FAMILIES_OF_THE_AGENT: [&str; 12] = [
    "ImportCredential",
    "LoadCredential",
    "Restart",
    "RuntimeMax",
    "RuntimeRandom",
    "SetCredential",
    "Standard",
    "StartLimit",
    "Syslog",
    "TTY",
    "Timeout",
    "Watchdog",
];

/// Settings of which several together make up one rule.
const TOGETHER: [(&str, &str); 7] = [
    ("DevicePolicy", "devices"),
    ("DeviceAllow", "devices"),
    ("PrivateDevices", "devices"),
    ("SystemCallFilter", "system calls"),
    ("SystemCallErrorNumber", "system calls"),
    ("SystemCallLog", "system calls"),
    ("TemporaryFileSystem", "files"),
];

/// Groups that the unit adds to its user's: they grant, and a check needs them as programs do.
const GROUPS: &str = "SupplementaryGroups";

/// Settings that make the agent's environment, of which a program has the variables that its owner passes on.
const VARIABLES: [&str; 4] = ["Environment", "EnvironmentFile", "PassEnvironment", "UnsetEnvironment"];

/// A setting of the unit, and the place where an administrator finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub file: String,
    pub number: usize,
    pub name: String,
    pub value: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}={}", self.file, self.number, self.name, self.value)
    }
}

impl Line {
    /// As `systemd-run -p` takes it.
    pub fn property(&self) -> String {
        format!("{}={}", self.name, self.value)
    }
}

/// Lines that hold or are lifted together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub name: String,
    pub lines: Vec<Line>,
}

/// The unit as far as it matters to programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    pub rules: Vec<Rule>,
    pub groups: Vec<Line>,
    pub variables: Vec<Line>,
    /// The user and the group of the service, if the unit names them.
    pub user: Option<String>,
    pub group: Option<String>,
    /// Lines that cannot be tried: a transient unit does not take them.
    pub untried: Vec<Line>,
}

impl Unit {
    /// From the output of `systemctl cat`: the unit's files with their drop-ins, each under a comment with its path.
    pub fn of(cat: &str) -> Unit {
        let mut unit = Unit::default();
        let lines = in_force(Vec::new(), settings(cat));
        let last = |name: &str| lines.iter().rev().find(|line| line.name == name).map(|line| line.value.clone());
        (unit.user, unit.group) = (last("User"), last("Group"));
        for mut line in lines {
            if is_of_the_agent(&line.name) {
                continue;
            }
            match expanded(&line.value) {
                Some(value) => line.value = value,
                None => {
                    unit.untried.push(line);
                    continue;
                }
            }
            unit.add(line);
        }
        unit
    }

    fn add(&mut self, line: Line) {
        if line.name == GROUPS {
            self.groups.push(line);
            return;
        }
        if VARIABLES.contains(&line.name.as_str()) {
            self.variables.push(line);
            return;
        }
        let name = rule_of(&line.name);
        match self.rules.iter_mut().find(|rule| rule.name == name) {
            Some(rule) => rule.lines.push(line),
            None => self.rules.push(Rule { name: name.to_owned(), lines: vec![line] }),
        }
    }

    /// The unit with one more drop-in, as systemd reads it. Settings that a transient unit does not take stay out.
    pub fn with(&self, drop_in: &str) -> Unit {
        let mut unit = Unit { rules: Vec::new(), groups: Vec::new(), variables: Vec::new(), ..self.clone() };
        let rules = self.rules.iter().flat_map(|rule| &rule.lines);
        let before: Vec<Line> = rules.chain(&self.groups).chain(&self.variables).cloned().collect();
        let is_untried = |line: &Line| self.untried.iter().any(|untried| untried.name == line.name);
        let matters = |line: &Line| !is_of_the_agent(&line.name) && !is_untried(line);
        let more = settings(drop_in).into_iter().filter(matters).collect();
        in_force(before, more).into_iter().for_each(|line| unit.add(line));
        unit
    }

    pub fn without(mut self, rules: &[&str]) -> Unit {
        self.rules.retain(|rule| !rules.contains(&rule.name.as_str()));
        self
    }

    /// Gives up a setting that a transient unit does not take. False if there is none of that name.
    pub fn leave_out(&mut self, name: &str) -> bool {
        let before = self.untried.len();
        for rule in &mut self.rules {
            let (out, stays) = rule.lines.drain(..).partition(|line| line.name == name);
            rule.lines = stays;
            self.untried.extend::<Vec<Line>>(out);
        }
        self.rules.retain(|rule| !rule.lines.is_empty());
        self.untried.len() > before
    }
}

/// Name of the rule that a setting belongs to.
pub fn rule_of(setting: &str) -> &str {
    TOGETHER.iter().find(|(name, _)| *name == setting).map_or(setting, |(_, rule)| *rule)
}

fn is_of_the_agent(name: &str) -> bool {
    let is_user = ["User", "Group"].contains(&name);
    // systemd passes over names that begin with X-.
    is_user
        || name.starts_with("X-")
        || OF_THE_AGENT.contains(&name)
        || FAMILIES_OF_THE_AGENT.iter().any(|family| name.starts_with(family))
}

/// The value with its specifiers replaced, because a transient unit takes values as they are. None: it has one whose value depends on
/// the machine or the user.
fn expanded(value: &str) -> Option<String> {
    let (mut expanded, mut characters) = (String::with_capacity(value.len()), value.chars().peekable());
    while let Some(character) = characters.next() {
        // A share, such as 50 %, is none.
        if character != '%' || characters.peek().is_none_or(|next| next.is_whitespace()) {
            expanded.push(character);
            continue;
        }
        expanded.push_str(match characters.next()? {
            '%' => "%",
            'C' => "/var/cache",
            'E' => "/etc",
            'L' => "/var/log",
            'N' | 'p' | 'P' => "pcfarm-worker",
            'S' => "/var/lib",
            'T' => "/tmp",
            'V' => "/var/tmp",
            'n' => UNIT,
            't' => "/run",
            _ => return None,
        });
    }
    Some(expanded)
}

/// Lines that hold after more of them. An empty value takes back the lines of that name before it. For capabilities it is a value of
/// its own: none at all.
fn in_force(mut lines: Vec<Line>, more: Vec<Line>) -> Vec<Line> {
    for line in more {
        if line.value.is_empty() && !line.name.ends_with("Capabilities") && line.name != "CapabilityBoundingSet" {
            lines.retain(|before| before.name != line.name);
        } else {
            lines.push(line);
        }
    }
    lines
}

/// Settings of the section `[Service]` in their order.
fn settings(cat: &str) -> Vec<Line> {
    let (mut lines, mut file, mut number, mut is_service) = (Vec::<Line>::new(), String::new(), 0, false);
    let mut begun: Option<(usize, String)> = None;
    for text in cat.lines() {
        number += 1;
        if let Some(path) = text.strip_prefix("# /").filter(|path| is_unit_file(path)) {
            (file, number, is_service) = (format!("/{path}"), 0, false);
            continue;
        }
        let text = text.trim();
        if text.starts_with(['#', ';']) || (text.is_empty() && begun.is_none()) {
            continue;
        }
        let (first, mut whole) = begun.take().unwrap_or((number, String::new()));
        if let Some(more) = text.strip_suffix('\\') {
            whole.push_str(more);
            begun = Some((first, whole));
            continue;
        }
        whole.push_str(text);
        if whole.starts_with('[') {
            is_service = whole == "[Service]";
            continue;
        }
        let Some((name, value)) = whole.split_once('=').filter(|_| is_service) else { continue };
        let (name, value) = (name.trim().to_owned(), value.trim().to_owned());
        lines.push(Line { file: file.clone(), number: first, name, value });
    }
    lines
}

fn is_unit_file(path: &str) -> bool {
    !path.contains(' ') && [".service", ".conf"].iter().any(|end| path.ends_with(end))
}

/// Rules that have to be lifted together so that the check passes, as few as bisection finds. `passes` runs the check under these rules;
/// under none of them it passes, and under all it does not.
pub fn blockers<'a, E>(
    rules: &'a [Rule],
    passes: &mut impl FnMut(&[&'a Rule]) -> Result<bool, E>,
) -> Result<Vec<&'a Rule>, E> {
    let (mut kept, mut found) = (Vec::new(), Vec::new());
    bisect(rules, &mut kept, &mut found, passes)?;
    Ok(found)
}

fn bisect<'a, E>(
    rules: &'a [Rule],
    kept: &mut Vec<&'a Rule>,
    found: &mut Vec<&'a Rule>,
    passes: &mut impl FnMut(&[&'a Rule]) -> Result<bool, E>,
) -> Result<(), E> {
    if rules.is_empty() {
        return Ok(());
    }
    let tried: Vec<&Rule> = kept.iter().copied().chain(rules).collect();
    if passes(&tried)? {
        kept.extend(rules);
        return Ok(());
    }
    if let [rule] = rules {
        found.push(rule);
        return Ok(());
    }
    let (first, second) = rules.split_at(rules.len() / 2);
    bisect(first, kept, found, passes)?;
    bisect(second, kept, found, passes)
}

#[cfg(test)]
mod tests;
