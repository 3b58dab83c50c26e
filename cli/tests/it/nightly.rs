//! `scripts/nightly`: the tests of its own pure parts, the public workflow that runs each of its steps, and the list of its tests.

use std::collections::{BTreeMap, BTreeSet};
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

/// Names and reasons of the tests in a source that run at night.
fn nightly_tests(source: &str) -> Vec<(String, String)> {
    let marked = source.split("#[ignore = \"nightly: ").skip(1);
    let parts = marked.filter_map(|rest| {
        let (reason, rest) = rest.split_once("\"]")?;
        let (_, rest) = rest.split_once("fn ")?;
        Some((rest.split('(').next()?.to_owned(), reason.to_owned()))
    });
    parts.collect()
}

/// Rust sources below a folder, with their module paths.
fn sources(folder: &Path, module: &str, found: &mut Vec<(PathBuf, String)>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_stem().context("a name")?.to_string_lossy().into_owned();
        let module = if module.is_empty() { name } else { format!("{module}::{name}") };
        if path.is_dir() {
            sources(&path, &module, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push((path, module));
        }
    }
    Ok(())
}

#[test]
fn documentation_lists_every_test_of_the_night_with_its_reason() -> Result<()> {
    let mut marked = BTreeSet::new();
    for (folder, binary) in [
        ("bench/tests/it", "pcfarm-bench::it"),
        ("cli/tests/it", "pcfarm::it"),
        ("sql/tests/it", "pcfarm-sql::it"),
        ("worker/src", "pcfarm-worker"),
        ("worker/tests/it", "pcfarm-worker::it"),
    ] {
        let mut found = Vec::new();
        sources(&repository().join(folder), "", &mut found)?;
        for (path, module) in found.iter().filter(|(path, _)| !path.ends_with("cli/tests/it/nightly.rs")) {
            let tests = nightly_tests(&fs::read_to_string(path)?);
            marked.extend(tests.into_iter().map(|(name, why)| format!("| `{binary} {module}::{name}` | {why} |")));
        }
    }
    let text = fs::read_to_string(repository().join("docs/testing.md"))?;
    let listed: BTreeSet<String> =
        text.lines().filter(|line| line.starts_with("| `pcfarm")).map(str::to_owned).collect();
    ensure!(!marked.is_empty() && listed == marked, "listed {listed:#?}, marked {marked:#?}");
    Ok(())
}

/// The first build of a clean clone, with a cargo that builds nothing.
#[test]
fn programs_are_built_into_a_target_folder_that_is_not_there() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let script = "set -euo pipefail; . scripts/setup.sh; cargo() { echo \"cargo $*\"; }; \
                  build_programs quick -p x; echo \"$programs\"";
    let mut bash = Command::new("bash");
    bash.args(["-c", script]).current_dir(repository()).env("CARGO_TARGET_DIR", folder.path().join("none"));
    let output = bash.output()?;
    let stdout = String::from_utf8(output.stdout)?;
    ensure!(output.status.success() && stdout.contains("cargo build --profile quick --locked -p x\n"), "{stdout}");
    ensure!(stdout.ends_with("/none/quick\n"), "{stdout}");
    Ok(())
}
