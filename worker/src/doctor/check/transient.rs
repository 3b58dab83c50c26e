//! Checks as transient units of systemd: their arguments, and what became of them.

use std::process::Command;
use std::time::Duration;

use super::run::{Ended, run, tail};
use super::{Account, RUN_LIMIT, Ran, ask_systemd, environment};
use crate::doctor::unit::{Line, Rule, Unit};
use crate::exec::plan::User;
use crate::exec::settings::Program;

/// Beyond it systemd has not answered.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// Reason why a run has no outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoRun {
    /// A transient unit does not take the setting of this name.
    Unknown(String),
    Failed(String),
}

/// Arguments of `systemd-run` for a check under these rules.
pub fn arguments(program: &Program, account: &Account, groups: &[Line], rules: &[&Rule], name: &str) -> Vec<String> {
    // Not collected: a unit that has failed says why.
    let mut arguments: Vec<String> = ["--wait", "--pipe", "--quiet"].map(str::to_owned).into_iter().collect();
    arguments.push(format!("--unit={name}"));
    let mut property = |text: String| arguments.extend(["-p".to_owned(), text]);
    match account {
        Account::Own => {}
        Account::Ids(User { uid, gid }) => {
            property(format!("User={uid}"));
            property(format!("Group={gid}"));
        }
        Account::Named { user, group } => {
            property(format!("User={user}"));
            group.iter().for_each(|group| property(format!("Group={group}")));
        }
    }
    for line in groups.iter().chain(rules.iter().flat_map(|rule| &rule.lines)) {
        property(line.property());
    }
    // These belong to the check: a private place to write to, and its end.
    property("PrivateTmp=yes".to_owned());
    property("WorkingDirectory=/tmp".to_owned());
    property(format!("RuntimeMaxSec={}", RUN_LIMIT.as_secs()));
    property("TimeoutStopSec=1".to_owned());
    // By name: values may be secret, and arguments are not.
    arguments.extend(environment(program).map(|(name, _)| format!("--setenv={name}")));
    arguments.push("--".to_owned());
    arguments.push(program.path.display().to_string());
    arguments.extend(program.check.iter().flatten().cloned());
    arguments
}

pub fn transient(program: &Program, account: &Account, unit: &Unit, rules: &[&Rule]) -> Result<Ran, NoRun> {
    let name = format!("pcfarm-worker-check-{}-{}.service", std::process::id(), uuid::Uuid::new_v4().simple());
    let mut command = Command::new("systemd-run");
    command.args(arguments(program, account, &unit.groups, rules, &name)).envs(environment(program));
    let ended = run(&mut command, ANSWER_LIMIT, &|| drop(ask_systemd(&["kill", "--signal=KILL", &name])));
    let ended = ended.map_err(NoRun::Failed)?;
    if ended.code == Some(0) {
        return Ok(ended.ran(program));
    }
    let shown = ask_systemd(&["show", "--property=LoadState,Result,ExecMainCode,ExecMainStatus", &name]);
    let shown = shown.ok().filter(|shown| shown.code == Some(0)).map(|shown| Shown::of(&shown.text));
    // A unit that has failed stays until then.
    let _ = ask_systemd(&["reset-failed", &name]);
    judged(program, ended, shown.as_ref())
}

/// State of a unit that has failed, as `systemctl show` has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    pub is_loaded: bool,
    pub result: String,
    /// Exit status of the program, if it has ended by itself.
    pub status: Option<i32>,
}

impl Shown {
    pub fn of(text: &str) -> Shown {
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        // CLD_EXITED.
        let has_exited = value("ExecMainCode") == Some("1");
        Shown {
            is_loaded: value("LoadState") == Some("loaded"),
            result: value("Result").unwrap_or_default().to_owned(),
            status: value("ExecMainStatus").filter(|_| has_exited).and_then(|status| status.parse().ok()),
        }
    }
}

/// Tells failures of the program from those of `systemd-run`, whose exit status is 1 also if the unit had no end of its own.
pub fn judged(program: &Program, ended: Ended, unit: Option<&Shown>) -> Result<Ran, NoRun> {
    match unit.filter(|unit| unit.is_loaded) {
        Some(unit) if unit.result == "exit-code" && unit.status == ended.code => Ok(ended.ran(program)),
        Some(unit) if unit.result == "success" => Ok(ended.ran(program)),
        Some(unit) => {
            let why = match unit.result.as_str() {
                "timeout" => format!("no end within {} s", RUN_LIMIT.as_secs()),
                result => format!("ended with the result {result}"),
            };
            Ok(Ran { passed: false, says: format!("{why}{}", tail(&ended.text)) })
        }
        None => match (unknown_setting(&ended), is_own_failure(&ended)) {
            (Some(unknown), _) => Err(NoRun::Unknown(unknown)),
            (None, true) => Err(NoRun::Failed(format!("systemd-run: {}", ended.says()))),
            (None, false) => Ok(ended.ran(program)),
        },
    }
}

/// Beginnings of what `systemd-run` says when it starts no unit.
const OWN_FAILURES: [&str; 5] = [
    "Failed to start transient service unit",
    "Failed to connect to bus",
    "Failed to parse",
    "Failed to set unit properties",
    "Unknown assignment",
];

fn is_own_failure(ended: &Ended) -> bool {
    ended.code == Some(1) && OWN_FAILURES.iter().any(|failure| ended.text.trim_start().starts_with(failure))
}

/// Name of the setting that `systemd-run`, or systemd for a transient unit, does not take.
fn unknown_setting(ended: &Ended) -> Option<String> {
    let text = ended.text.trim_start();
    let refused = "Failed to start transient service unit: Cannot set property ";
    let named = text.strip_prefix("Unknown assignment: ").or_else(|| text.strip_prefix(refused));
    let name: String = named?.chars().take_while(char::is_ascii_alphanumeric).collect();
    (ended.code == Some(1) && !name.is_empty()).then_some(name)
}
