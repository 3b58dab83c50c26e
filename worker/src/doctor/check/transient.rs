//! Checks as transient units of systemd: their arguments, and what became of them.

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::run::{Ended, run, tail};
use super::variables::{Environment, EnvironmentFile, Variable, printed};
use super::{Account, QUESTION_LIMIT, RUN_LIMIT, Ran};
use crate::doctor::unit::{Line, Rule, Unit};
use crate::exec::plan::User;
use crate::exec::settings::Program;

/// Beyond it systemd has not answered.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// Prints the variables that it has, with a NUL after each.
const ENV: [&str; 2] = ["/usr/bin/env", "-0"];

/// Reason why a run has no outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoRun {
    /// A transient unit does not take the setting of this name.
    Unknown(String),
    Failed(String),
}

/// Programs of systemd, by absolute paths, and the directory for files that it reads.
#[derive(Clone, Debug)]
pub struct Systemd {
    pub run: PathBuf,
    pub ctl: PathBuf,
    pub runtime: PathBuf,
}

impl Systemd {
    /// By the search path of this process. That of a checked program does not decide what root runs.
    pub fn find() -> Result<Systemd, String> {
        let path = env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
        let find = |name: &str| {
            let mut found = env::split_paths(&path).filter(|dir| dir.is_absolute()).map(|dir| dir.join(name));
            found.find(|file| is_executable(file)).ok_or_else(|| format!("{name} is not in the search path"))
        };
        Ok(Systemd { run: find("systemd-run")?, ctl: find("systemctl")?, runtime: "/run".into() })
    }

    pub fn ask(&self, arguments: &[&str]) -> Result<Ended, String> {
        let mut systemctl = Command::new(&self.ctl);
        systemctl.args(arguments).env("LC_ALL", "C");
        run(systemctl.process_group(0), QUESTION_LIMIT, &|| {})
    }

    /// Variables of the agent: a unit with its variables prints them.
    pub fn variables(&self, unit: &Unit, account: &Account) -> Result<Vec<Variable>, String> {
        let properties = unit.variables.iter().map(Line::property).collect();
        let (ended, _) = self.start(&Start { account, properties, command: ENV.map(str::to_owned).to_vec() })?;
        match ended.code {
            Some(0) => Ok(printed(&ended.out)),
            _ => Err(format!("{}: {}", ENV[0], ended.says())),
        }
    }

    /// Runs the check of a program under these rules.
    pub fn check(&self, check: &Check<'_>, unit: &Unit, rules: &[&Rule]) -> Result<Ran, NoRun> {
        let Check { program, account, environment } = check;
        let variables = EnvironmentFile::write(&self.runtime, &new_name(), &environment.set);
        let variables = variables.map_err(|error| NoRun::Failed(format!("{}: {error}", self.runtime.display())))?;
        let start = Start {
            account,
            properties: properties(&unit.groups, rules, environment, &variables.path),
            command: command(program),
        };
        let (ended, shown) = self.start(&start).map_err(NoRun::Failed)?;
        judged(program, ended, shown.as_ref())
    }

    /// The end of a transient unit, and its state if it failed.
    fn start(&self, start: &Start<'_>) -> Result<(Ended, Option<Shown>), String> {
        let name = format!("{}.service", new_name());
        // Without the variables of the program: they would act on systemd-run.
        let mut command = Command::new(&self.run);
        command.args(start.arguments(&name)).env("LC_ALL", "C");
        let ended = run(&mut command, ANSWER_LIMIT, &|| drop(self.ask(&["kill", "--signal=KILL", &name])))?;
        if ended.code == Some(0) {
            return Ok((ended, None));
        }
        let shown = self.ask(&["show", "--property=LoadState,Result,ExecMainCode,ExecMainStatus", &name]);
        let shown = shown.ok().filter(|shown| shown.code == Some(0)).map(|shown| Shown::of(&shown.out));
        // A unit that has failed stays until then.
        let _ = self.ask(&["reset-failed", &name]);
        Ok((ended, shown))
    }
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

fn new_name() -> String {
    format!("pcfarm-worker-check-{}-{}", std::process::id(), uuid::Uuid::new_v4().simple())
}

/// A program's check.
pub struct Check<'a> {
    pub program: &'a Program,
    pub account: &'a Account,
    pub environment: &'a Environment,
}

/// A transient unit.
pub struct Start<'a> {
    pub account: &'a Account,
    pub properties: Vec<String>,
    pub command: Vec<String>,
}

impl Start<'_> {
    /// Arguments of `systemd-run`.
    pub fn arguments(&self, name: &str) -> Vec<String> {
        // Not collected: a unit that has failed says why.
        let mut arguments: Vec<String> = ["--wait", "--pipe", "--quiet"].map(str::to_owned).into_iter().collect();
        arguments.push(format!("--unit={name}"));
        let mut property = |text: String| arguments.extend(["-p".to_owned(), text]);
        match self.account {
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
        self.properties.iter().cloned().for_each(&mut property);
        // These belong to the check: a private place to write to, and its end.
        property("PrivateTmp=yes".to_owned());
        property("WorkingDirectory=/tmp".to_owned());
        property(format!("RuntimeMaxSec={}", RUN_LIMIT.as_secs()));
        property("TimeoutStopSec=1".to_owned());
        arguments.push("--".to_owned());
        arguments.extend(self.command.iter().cloned());
        arguments
    }
}

/// Properties of a check under these rules.
pub fn properties(groups: &[Line], rules: &[&Rule], environment: &Environment, variables: &Path) -> Vec<String> {
    let lines = groups.iter().chain(rules.iter().flat_map(|rule| &rule.lines));
    let mut properties: Vec<String> = lines.map(Line::property).collect();
    properties.push(format!("EnvironmentFile={}", variables.display()));
    if !environment.unset.is_empty() {
        properties.push(format!("UnsetEnvironment={}", environment.unset.join(" ")));
    }
    properties
}

/// The command of a check. systemd replaces `$NAME` in arguments, and the agent does not.
pub fn command(program: &Program) -> Vec<String> {
    let arguments = program.check.iter().flatten().map(|argument| argument.replace('$', "$$"));
    std::iter::once(program.path.display().to_string()).chain(arguments).collect()
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
