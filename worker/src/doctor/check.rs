//! Checks of the owner's programs: each is run as the service would run it, and as it runs without the unit's rules.
//!
//! A check is a transient unit of systemd with the properties of the installed unit and the variables that the agent gives the program.
//! When it fails there and passes without the properties, [`unit::blockers`] finds the lines to change, and [`drop_ins`] the documented
//! drop-in, if one helps. Without systemd the check runs directly, and the finding says so.

mod run;
mod transient;
mod variables;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::geteuid;

use run::{Ended, run};
use transient::{Check, NoRun, Systemd};
use variables::{Environment, Variable, with_places};

use super::drop_ins::{self, Opening};
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
/// All runs that find the lines that block one program's check.
const SEARCH_LIMIT: Duration = Duration::from_secs(120);
/// All runs that try drop-ins for it.
const TRIAL_LIMIT: Duration = Duration::from_secs(60);

/// Outcome of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ran {
    passed: bool,
    /// The exit status and the end of the output, for people.
    says: String,
}

/// Account of the user that a check runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Account {
    /// The user of this process.
    Own,
    Ids(User),
    /// The unit's own, by name.
    Named {
        user: String,
        group: Option<String>,
    },
}

/// Where checks run.
enum Place {
    /// Transient units, with the rules of this unit.
    Systemd(Systemd, Unit),
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
        Place::Systemd(_, unit) => unit.user.clone().map(|user| (user, unit.group.clone())),
        Place::Here(_) => None,
    };
    let owner = fs::metadata(&settings.state_dir).ok().map(|state| User { uid: state.uid(), gid: state.gid() });
    match account(owner, named, geteuid().as_raw()) {
        Ok(account) => {
            // Not those of this process: an administrator's shell has others than the service.
            let of_agent = match &place {
                Place::Systemd(systemd, unit) => systemd.variables(unit, &account),
                Place::Here(_) => Ok(Vec::new()),
            };
            wanted.into_iter().map(|program| check(program, &account, &place, &of_agent)).collect()
        }
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
            return Err(
                "checks of programs run as the agent's user, which its state directory shows: start the agent once",
            );
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
    let systemd = match Systemd::find() {
        Ok(systemd) => systemd,
        Err(why) => return Place::Here(why),
    };
    match systemd.ask(&["cat", "--no-pager", system::UNIT]) {
        Ok(Ended { code: Some(0), out, .. }) => Place::Systemd(systemd, Unit::of(&out)),
        Ok(Ended { over: true, .. }) => {
            Place::Here(format!("systemctl has not answered within {} s", QUESTION_LIMIT.as_secs()))
        }
        Ok(_) => Place::Here(format!("there is no unit {} here", system::UNIT)),
        Err(why) => Place::Here(why),
    }
}

fn check(program: &Program, account: &Account, place: &Place, of_agent: &Result<Vec<Variable>, String>) -> Finding {
    let name = program.controller();
    let account = &program.user.map_or_else(|| account.clone(), Account::Ids);
    let (systemd, unit) = match place {
        Place::Here(why) => return here(&name, why, direct(program, account)),
        Place::Systemd(systemd, unit) => (systemd, unit),
    };
    match of_agent {
        Err(why) => finding(&name, Err(format!("the agent's variables are not known: {why}"))),
        Ok(of_agent) => {
            let check = Check { program, account, environment: &Environment::of(program, of_agent) };
            under_rules(&name, unit, &mut |unit, rules| systemd.check(&check, unit, rules))
        }
    }
}

/// Searches with every rule that a transient unit takes, and names the others.
fn under_rules(name: &str, unit: &Unit, run: &mut impl FnMut(&Unit, &[&Rule]) -> Result<Ran, NoRun>) -> Finding {
    let mut unit = unit.clone();
    let mut finding = loop {
        match search(&unit, run) {
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
        finding.says =
            format!("{}; not tried, because a transient unit does not take them: {}", finding.says, lines.join(", "));
    }
    finding
}

/// Outcome of the runs of a check, before it becomes a finding.
#[derive(Debug, PartialEq, Eq)]
enum Found<'a> {
    Passes,
    /// The check fails without the unit's rules, too.
    Broken(Ran),
    Blocked(Ran, Vec<&'a Rule>, Opening<'a>),
}

/// Decides by runs of the check under rules of the unit.
fn search<'a>(unit: &'a Unit, run: &mut impl FnMut(&Unit, &[&Rule]) -> Result<Ran, NoRun>) -> Result<Found<'a>, NoRun> {
    let all: Vec<&Rule> = unit.rules.iter().collect();
    let inside = run(unit, &all)?;
    if inside.passed {
        return Ok(Found::Passes);
    }
    let outside = run(unit, &[])?;
    if !outside.passed {
        return Ok(Found::Broken(outside));
    }
    let until = Instant::now() + SEARCH_LIMIT;
    let blockers = unit::blockers(&unit.rules, &mut |rules| {
        if Instant::now() > until {
            let why = format!("the lines that block it were not found within {} s", SEARCH_LIMIT.as_secs());
            return Err(NoRun::Failed(why));
        }
        run(unit, rules).map(|ran| ran.passed)
    })?;
    // A drop-in that was not tried, for its time or for a setting that no transient unit takes, is not advised.
    let until = Instant::now() + TRIAL_LIMIT;
    let opening = drop_ins::opening(unit, &blockers, &mut |open| {
        Instant::now() <= until && run(open, &open.rules.iter().collect::<Vec<_>>()).is_ok_and(|ran| ran.passed)
    });
    Ok(Found::Blocked(inside, blockers, opening))
}

fn finding(name: &str, found: Result<Found<'_>, String>) -> Finding {
    match found {
        Ok(Found::Passes) => Finding::ok(Step::Programs, format!("{name}: its check passes under the unit's rules")),
        Ok(Found::Broken(ran)) => Finding::failed(
            Step::Programs,
            format!("{name}: its check fails, also without the unit's rules: {}", ran.says),
            "the unit is not the cause: run the check by hand as the agent's user",
        ),
        Ok(Found::Blocked(ran, blockers, _)) if blockers.is_empty() => Finding::failed(
            Step::Programs,
            format!("{name}: its check passes at some times and fails at others: {}", ran.says),
            "run it again; a check must not depend on the load of the machine",
        ),
        Ok(Found::Blocked(ran, blockers, opening)) => {
            let lines: Vec<String> = blockers.iter().flat_map(|rule| &rule.lines).map(Line::to_string).collect();
            let says = format!(
                "{name}: its check fails under the unit's rules ({}); these lines block it: {}",
                ran.says,
                lines.join(", ")
            );
            Finding::failed(Step::Programs, says, drop_ins::advice(&opening))
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
    let environment = with_places(program.environment.clone());
    command.args(program.check.iter().flatten()).env_clear().envs(environment).current_dir("/tmp");
    match account {
        Account::Own => {}
        Account::Ids(User { uid, gid }) => drop(command.uid(*uid).gid(*gid)),
        Account::Named { user, .. } => return Err(format!("{user} is the unit's user, and there is no unit here")),
    }
    let ended = run(command.process_group(0), RUN_LIMIT, &|| {})?;
    Ok(ended.ran(program))
}

#[cfg(test)]
mod tests;
