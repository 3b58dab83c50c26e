//! `scripts/nightly`: the tests of its own pure parts, and the public workflow that runs each of its steps.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use serde_yaml_ng::Value;

use crate::left_out;

/// Longest that a group of steps may take: the public host ends a job after six hours, and the job builds first.
const GROUP_MINUTES: u32 = 320;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the CLI is a folder of the repository").to_owned()
}

/// Output of a program in the repository. None: there is no Python.
fn output(program: &str, arguments: &[&str]) -> Result<Option<Output>> {
    if Command::new("python3").arg("--version").output().is_err() {
        left_out::for_want_of("python3");
        return Ok(None);
    }
    let output = Command::new(program).args(arguments).current_dir(repository()).output();
    output.map(Some).with_context(|| format!("running {program}"))
}

/// Limits of the steps in minutes, as `scripts/nightly --list` shows them.
fn listed() -> Result<Option<BTreeMap<String, u32>>> {
    let Some(output) = output("scripts/nightly", &["--list"])? else { return Ok(None) };
    ensure!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout)?;
    let limit = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next()?.to_owned();
        Some((name, words.find_map(|word| word.parse().ok())?))
    };
    text.lines().map(|line| limit(line).with_context(|| line.to_owned())).collect::<Result<_>>().map(Some)
}

#[test]
fn pure_parts_pass_their_own_tests() -> Result<()> {
    let Some(output) = output("python3", &["-B", "scripts/nightly_checks/tests.py"])? else { return Ok(()) };
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[test]
fn wrong_arguments_are_refused() -> Result<()> {
    for arguments in [["--list", "--only=dance"], ["--list", "--limit=tests"], ["--list", "--dance"]] {
        let Some(output) = output("scripts/nightly", &arguments)? else { return Ok(()) };
        ensure!(output.status.code() == Some(2), "{arguments:?}: {output:?}");
    }
    Ok(())
}

#[test]
fn public_workflow_runs_each_step_within_the_time_of_a_job() -> Result<()> {
    let Some(steps) = listed()? else { return Ok(()) };
    let text = fs::read_to_string(repository().join(".github/workflows/nightly.yml"))?;
    let workflow: Value = serde_yaml_ng::from_str(&text)?;
    let groups = workflow["jobs"]["linux"]["strategy"]["matrix"]["steps"].as_sequence().context("a matrix")?;
    let mut run = Vec::new();
    for group in groups.iter().filter_map(Value::as_str) {
        let names: Vec<&str> = group.split(',').collect();
        let minutes = names.iter().map(|&name| steps.get(name).with_context(|| format!("no step {name}")));
        let minutes: u32 = minutes.sum::<Result<u32>>()?;
        ensure!(minutes <= GROUP_MINUTES, "{group} may take {minutes} minutes");
        run.extend(names);
    }
    run.sort_unstable();
    ensure!(run.iter().copied().eq(steps.keys().map(String::as_str)), "{run:?} of {steps:?}");
    Ok(())
}
