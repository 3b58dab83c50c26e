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
    let user = user(settings);
    if user.is_some() && !geteuid().is_root() {
        let says = "checks of programs run as the agent's user: sudo pcfarm-worker doctor";
        return vec![Finding::skipped(Step::Programs, says)];
    }
    let place = place();
    wanted.into_iter().map(|program| check(program, user, &place)).collect()
}

/// The owner of the agent's state, if that is another user than this process's.
fn user(settings: &Settings) -> Option<User> {
    let state = fs::metadata(&settings.state_dir).ok()?;
    (state.uid() != geteuid().as_raw()).then(|| User { uid: state.uid(), gid: state.gid() })
}

fn place() -> Place {
    if !system::is_run_by_systemd() {
        return Place::Here("systemd does not run here".to_owned());
    }
    let cat = Command::new("systemctl").args(["cat", "--no-pager", system::UNIT]).stdin(Stdio::null()).output();
    match cat {
        Ok(cat) if cat.status.success() => Place::Systemd(Unit::of(&String::from_utf8_lossy(&cat.stdout))),
        Ok(_) => Place::Here(format!("there is no unit {} here", system::UNIT)),
        Err(error) => Place::Here(format!("systemctl: {error}")),
    }
}

fn check(program: &Program, user: Option<User>, place: &Place) -> Finding {
    let name = program.controller();
    let user = program.user.or(user);
    let found = match place {
        Place::Here(why) => return here(&name, why, direct(program, user)),
        Place::Systemd(unit) => search(unit, &mut |rules| transient(program, user, &unit.groups, rules)),
    };
    finding(&name, found)
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
fn search<'a>(unit: &'a Unit, run: &mut impl FnMut(&[&'a Rule]) -> Result<Ran, String>) -> Result<Found<'a>, String> {
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
            return Err(format!("the lines that block it were not found within {} s", SEARCH_LIMIT.as_secs()));
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

fn direct(program: &Program, user: Option<User>) -> Result<Ran, String> {
    let mut command = Command::new(&program.path);
    command.args(program.check.iter().flatten()).env_clear().envs(environment(program)).current_dir("/tmp");
    if let Some(User { uid, gid }) = user {
        command.uid(uid).gid(gid);
    }
    outcome(program, command.process_group(0), RUN_LIMIT, &|| {})
}

fn environment(program: &Program) -> impl Iterator<Item = (String, String)> + '_ {
    program.environment.iter().cloned().chain(["HOME", "TMPDIR"].map(|name| (name.to_owned(), "/tmp".to_owned())))
}

/// Arguments of `systemd-run` for a check under these rules.
fn arguments(program: &Program, user: Option<User>, groups: &[Line], rules: &[&Rule], name: &str) -> Vec<String> {
    let mut arguments: Vec<String> =
        ["--wait", "--pipe", "--collect", "--quiet"].map(str::to_owned).into_iter().collect();
    arguments.push(format!("--unit={name}"));
    let mut property = |text: String| arguments.extend(["-p".to_owned(), text]);
    if let Some(User { uid, gid }) = user {
        property(format!("User={uid}"));
        property(format!("Group={gid}"));
    }
    for line in groups.iter().chain(rules.iter().flat_map(|rule| &rule.lines)) {
        property(line.property());
    }
    // Both belong to the check: a private place to write to, and its end.
    property("PrivateTmp=yes".to_owned());
    property("WorkingDirectory=/tmp".to_owned());
    property(format!("RuntimeMaxSec={}", RUN_LIMIT.as_secs()));
    // By name: values may be secret, and arguments are not.
    arguments.extend(environment(program).map(|(name, _)| format!("--setenv={name}")));
    arguments.push("--".to_owned());
    arguments.push(program.path.display().to_string());
    arguments.extend(program.check.iter().flatten().cloned());
    arguments
}

fn transient(program: &Program, user: Option<User>, groups: &[Line], rules: &[&Rule]) -> Result<Ran, String> {
    let name = format!("pcfarm-worker-check-{}-{}", std::process::id(), uuid::Uuid::new_v4().simple());
    let mut command = Command::new("systemd-run");
    command.args(arguments(program, user, groups, rules, &name)).envs(environment(program));
    let ran = outcome(program, &mut command, ANSWER_LIMIT, &|| drop(system::systemctl(&["stop", &name])))?;
    // Its own failures are none of the program's.
    let refusals = ["Failed to ", "Unknown assignment", "Unit name"];
    match refusals.iter().any(|refusal| ran.says.contains(refusal)) && ran.says.starts_with("exit status 1") {
        true => Err(format!("systemd-run: {}", ran.says)),
        false => Ok(ran),
    }
}

/// Runs a command within limits of time and output. When the time is over, `stop` ends processes outside the command's process
/// group.
fn outcome(program: &Program, command: &mut Command, limit: Duration, stop: &dyn Fn()) -> Result<Ran, String> {
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
    let passed = status.is_some_and(|status| status.code().is_some_and(|code| program.exit_codes.contains(&code)));
    let ended = status.map_or_else(|| format!("no end within {} s", limit.as_secs()), ended);
    Ok(Ran { passed, says: format!("{ended}{}", tail(&text)) })
}

fn ended(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
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
