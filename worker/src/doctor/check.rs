//! Checks of the owner's programs: each is run as the service would run it, and as it runs without the unit's rules.
//!
//! A check is a transient unit of systemd with the properties of the installed unit. When it fails there and passes without them,
//! [`unit::blockers`] finds the lines to change. Without systemd the check runs directly, and the finding says so.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::geteuid;

use super::unit::{self, Line, Rule, Unit};
use super::{Finding, Step};
use crate::exec::plan::User;
use crate::exec::settings::Program;
use crate::service::system;
use crate::settings::Settings;

/// One run of a check; a check that needs longer is none.
const RUN_LIMIT: Duration = Duration::from_secs(10);
/// One question to systemd.
const QUESTION_LIMIT: Duration = Duration::from_secs(10);
/// Beyond it systemd has not answered.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// All runs of one program's check.
const SEARCH_LIMIT: Duration = Duration::from_secs(120);

/// Output that is kept, and the end of it that is shown.
const OUTPUT_BYTES: u64 = 64 << 10;
const SHOWN_CHARS: usize = 300;

/// Outcome of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ran {
    passed: bool,
    /// The exit status and the end of the output, for people.
    says: String,
}

/// Reason why a run has no outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NoRun {
    /// A transient unit does not take the setting of this name.
    Unknown(String),
    Failed(String),
}

/// Account of the user that a check runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Account {
    /// The user of this process.
    Own,
    Ids(User),
    /// The unit's own, by name.
    Named { user: String, group: Option<String> },
}

/// Where checks run.
enum Place {
    /// Transient units, with the rules of this unit.
    Systemd(Unit),
    /// No unit: the reason.
    Here(String),
}

/// A finding for each program that names a check.
pub fn checks(settings: &Settings, programs: &[Program]) -> Vec<Finding> {
    let wanted: Vec<&Program> = programs.iter().filter(|one| one.check.is_some() && one.installed().is_ok()).collect();
    if wanted.is_empty() {
        return Vec::new();
    }
    let place = place();
    let named = match &place {
        Place::Systemd(unit) => unit.user.clone().map(|user| (user, unit.group.clone())),
        Place::Here(_) => None,
    };
    let owner = fs::metadata(&settings.state_dir).ok().map(|state| User { uid: state.uid(), gid: state.gid() });
    match account(owner, named, geteuid().as_raw()) {
        Ok(account) => wanted.into_iter().map(|program| check(program, &account, &place)).collect(),
        Err(says) => vec![Finding::skipped(Step::Programs, says)],
    }
}

/// Returns the account for checks: that of the owner of the agent's state, or the unit's before the agent's first start. Never
/// root in place of a user that is not known.
fn account(owner: Option<User>, unit: Option<(String, Option<String>)>, own: u32) -> Result<Account, &'static str> {
    let account = match (owner, unit) {
        (Some(owner), _) if owner.uid == own => return Ok(Account::Own),
        (Some(owner), _) => Account::Ids(owner),
        (None, Some((user, group))) => Account::Named { user, group },
        (None, None) if own == 0 => {
            return Err("checks of programs run as the agent's user, which its state directory shows: start the agent once");
        }
        (None, None) => return Ok(Account::Own),
    };
    match own {
        0 => Ok(account),
        _ => Err("checks of programs run as the agent's user: sudo pcfarm-worker doctor"),
    }
}

fn place() -> Place {
    if !system::is_run_by_systemd() {
        return Place::Here("systemd does not run here".to_owned());
    }
    match ask_systemd(&["cat", "--no-pager", system::UNIT]) {
        Ok(Ended { code: Some(0), text, .. }) => Place::Systemd(Unit::of(&text)),
        Ok(Ended { over: true, .. }) => {
            Place::Here(format!("systemctl has not answered within {} s", QUESTION_LIMIT.as_secs()))
        }
        Ok(_) => Place::Here(format!("there is no unit {} here", system::UNIT)),
        Err(why) => Place::Here(why),
    }
}

fn ask_systemd(arguments: &[&str]) -> Result<Ended, String> {
    let mut systemctl = Command::new("systemctl");
    systemctl.args(arguments).env("LC_ALL", "C");
    run(systemctl.process_group(0), QUESTION_LIMIT, &|| {})
}

fn check(program: &Program, account: &Account, place: &Place) -> Finding {
    let name = program.controller();
    let account = program.user.map_or_else(|| account.clone(), Account::Ids);
    match place {
        Place::Here(why) => here(&name, why, direct(program, &account)),
        Place::Systemd(unit) => under_rules(&name, unit, &mut |unit, rules| transient(program, &account, unit, rules)),
    }
}

/// Searches with every rule that a transient unit takes, and names the others.
fn under_rules(
    name: &str,
    unit: &Unit,
    run: &mut impl FnMut(&Unit, &[&Rule]) -> Result<Ran, NoRun>,
) -> Finding {
    let mut unit = unit.clone();
    let mut finding = loop {
        match search(&unit, &mut |rules| run(&unit, rules)) {
            Err(NoRun::Unknown(setting)) => {
                if !unit.leave_out(&setting) {
                    break finding(name, Err(format!("systemd-run does not take {setting}")));
                }
            }
            Err(NoRun::Failed(why)) => break finding(name, Err(why)),
            Ok(found) => break finding(name, Ok(found)),
        }
    };
    if !unit.untried.is_empty() {
        let lines: Vec<String> = unit.untried.iter().map(Line::to_string).collect();
        finding.says = format!("{}; not tried, because a transient unit does not take them: {}", finding.says, lines.join(", "));
    }
    finding
}

/// Outcome of the runs of a check, before it becomes a finding.
#[derive(Debug, PartialEq, Eq)]
enum Found<'a> {
    Passes,
    /// The check fails without the unit's rules, too.
    Broken(Ran),
    Blocked(Ran, Vec<&'a Rule>),
}

/// Decides by runs of the check under rules of the unit.
fn search<'a>(unit: &'a Unit, run: &mut impl FnMut(&[&'a Rule]) -> Result<Ran, NoRun>) -> Result<Found<'a>, NoRun> {
    let all: Vec<&Rule> = unit.rules.iter().collect();
    let inside = run(&all)?;
    if inside.passed {
        return Ok(Found::Passes);
    }
    let outside = run(&[])?;
    if !outside.passed {
        return Ok(Found::Broken(outside));
    }
    let until = Instant::now() + SEARCH_LIMIT;
    let blockers = unit::blockers(&unit.rules, &mut |rules| {
        if Instant::now() > until {
            let why = format!("the lines that block it were not found within {} s", SEARCH_LIMIT.as_secs());
            return Err(NoRun::Failed(why));
        }
        run(rules).map(|ran| ran.passed)
    })?;
    Ok(Found::Blocked(inside, blockers))
}

fn finding(name: &str, found: Result<Found<'_>, String>) -> Finding {
    match found {
        Ok(Found::Passes) => Finding::ok(Step::Programs, format!("{name}: its check passes under the unit's rules")),
        Ok(Found::Broken(ran)) => Finding::failed(
            Step::Programs,
            format!("{name}: its check fails, also without the unit's rules: {}", ran.says),
            "the unit is not the cause: run the check by hand as the agent's user",
        ),
        Ok(Found::Blocked(ran, blockers)) if blockers.is_empty() => Finding::failed(
            Step::Programs,
            format!("{name}: its check passes at some times and fails at others: {}", ran.says),
            "run it again; a check must not depend on the load of the machine",
        ),
        Ok(Found::Blocked(ran, blockers)) => {
            let lines: Vec<String> = blockers.iter().flat_map(|rule| &rule.lines).map(Line::to_string).collect();
            let says = format!(
                "{name}: its check fails under the unit's rules ({}); these lines block it: {}",
                ran.says,
                lines.join(", ")
            );
            Finding::failed(Step::Programs, says, unit::advice(&blockers))
        }
        Err(why) => Finding::skipped(Step::Programs, format!("{name}: its check could not be run: {why}")),
    }
}

fn here(name: &str, why: &str, ran: Result<Ran, String>) -> Finding {
    let without = format!("{why}, so the check ran without the unit's rules");
    match ran {
        Ok(ran) if ran.passed => Finding::ok(Step::Programs, format!("{name}: its check passes ({without})")),
        Ok(ran) => Finding::failed(
            Step::Programs,
            format!("{name}: its check fails: {} ({without})", ran.says),
            "run the check by hand as the agent's user",
        ),
        Err(error) => {
            Finding::skipped(Step::Programs, format!("{name}: its check could not be run: {error} ({without})"))
        }
    }
}

fn direct(program: &Program, account: &Account) -> Result<Ran, String> {
    let mut command = Command::new(&program.path);
    command.args(program.check.iter().flatten()).env_clear().envs(environment(program)).current_dir("/tmp");
    match account {
        Account::Own => {}
        Account::Ids(User { uid, gid }) => drop(command.uid(*uid).gid(*gid)),
        Account::Named { user, .. } => return Err(format!("{user} is the unit's user, and there is no unit here")),
    }
    let ended = run(command.process_group(0), RUN_LIMIT, &|| {})?;
    Ok(ended.ran(program))
}

fn environment(program: &Program) -> impl Iterator<Item = (String, String)> + '_ {
    program.environment.iter().cloned().chain(["HOME", "TMPDIR"].map(|name| (name.to_owned(), "/tmp".to_owned())))
}

/// Arguments of `systemd-run` for a check under these rules.
fn arguments(program: &Program, account: &Account, groups: &[Line], rules: &[&Rule], name: &str) -> Vec<String> {
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

fn transient(program: &Program, account: &Account, unit: &Unit, rules: &[&Rule]) -> Result<Ran, NoRun> {
    let name = format!("pcfarm-worker-check-{}-{}.service", std::process::id(), uuid::Uuid::new_v4().simple());
    let mut command = Command::new("systemd-run");
    command.args(arguments(program, account, &unit.groups, rules, &name)).envs(environment(program));
    let ended = run(&mut command, ANSWER_LIMIT, &|| drop(system::systemctl(&["kill", "--signal=KILL", &name])));
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
struct Shown {
    is_loaded: bool,
    result: String,
    /// Exit status of the program, if it has ended by itself.
    status: Option<i32>,
}

impl Shown {
    fn of(text: &str) -> Shown {
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
fn judged(program: &Program, ended: Ended, unit: Option<&Shown>) -> Result<Ran, NoRun> {
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

/// End of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ended {
    code: Option<i32>,
    signal: Option<i32>,
    /// Its time was over, and it was killed.
    over: bool,
    limit: Duration,
    text: String,
}

impl Ended {
    fn ran(self, program: &Program) -> Ran {
        Ran { passed: self.code.is_some_and(|code| program.exit_codes.contains(&code)), says: self.says() }
    }

    fn says(&self) -> String {
        let ended = match (self.code, self.signal) {
            _ if self.over => format!("no end within {} s", self.limit.as_secs()),
            (Some(code), _) => format!("exit status {code}"),
            (None, Some(signal)) => format!("ended by signal {signal}"),
            (None, None) => "ended".to_owned(),
        };
        format!("{ended}{}", tail(&self.text))
    }
}

/// Runs a command within limits of time and output. When the time is over, `stop` ends processes outside the command's process
/// group.
fn run(command: &mut Command, limit: Duration, stop: &dyn Fn()) -> Result<Ended, String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    let (sender, output) = mpsc::channel();
    read(child.stdout.take(), sender.clone());
    read(child.stderr.take(), sender);
    let status = wait(&mut child, Instant::now() + limit)?;
    if status.is_none() {
        stop();
        // With all that it has started, if it has a process group of its own.
        let _ = rustix::process::kill_process_group(
            rustix::process::Pid::from_child(&child),
            rustix::process::Signal::KILL,
        );
        let _ = child.kill();
        let _ = child.wait();
    }
    // A descendant may keep a pipe open for ever.
    let text: String = (0..2).filter_map(|_| output.recv_timeout(Duration::from_secs(1)).ok()).collect();
    let (code, signal) = (status.and_then(|status| status.code()), status.and_then(|status| status.signal()));
    Ok(Ended { code, signal, over: status.is_none(), limit, text })
}

fn wait(child: &mut Child, until: Instant) -> Result<Option<ExitStatus>, String> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(Some(status)),
            Ok(None) if Instant::now() > until => return Ok(None),
            Ok(None) => thread::sleep(Duration::from_millis(20)),
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Reads to the end and keeps the first bytes.
fn read(pipe: Option<impl Read + Send + 'static>, sender: mpsc::Sender<String>) {
    let Some(mut pipe) = pipe else { return };
    thread::spawn(move || {
        let mut kept = Vec::new();
        let _ = (&mut pipe).take(OUTPUT_BYTES).read_to_end(&mut kept);
        let _ = std::io::copy(&mut pipe, &mut std::io::sink());
        let _ = sender.send(String::from_utf8_lossy(&kept).into_owned());
    });
}

/// The end of an output on one line, without control characters.
fn tail(text: &str) -> String {
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let shown: Vec<char> = line.chars().filter(|c| !c.is_control()).collect();
    let from = shown.len().saturating_sub(SHOWN_CHARS);
    match shown.is_empty() {
        true => String::new(),
        false => format!(": {}{}", if from > 0 { "… " } else { "" }, shown[from..].iter().collect::<String>()),
    }
}

#[cfg(test)]
mod tests;
