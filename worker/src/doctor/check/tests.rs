use super::super::Outcome;
use super::*;

fn program(path: &str, check: &str) -> Program {
    #[derive(serde::Deserialize)]
    struct File {
        program: Vec<crate::exec::settings::ProgramSettings>,
    }
    let text = format!(
        "[[program]]\nname = \"a\"\npath = {path:?}\nmode = \"fed\"\ntrusted = true\ncheck = {check}\nenv = {{SECRET = \"hidden\"}}"
    );
    let file: File = toml::from_str(&text).expect("a list");
    let machine = crate::exec::settings::Machine { memory_bytes: 16 << 30, cores: 4, is_root: false };
    crate::exec::settings::check(&file.program, &machine).expect("a good list").remove(0)
}

fn shell(script: &str) -> Program {
    program("/bin/sh", &format!("[\"-c\", {script:?}]"))
}

fn unit() -> Unit {
    Unit::of(
        "# /lib/systemd/system/pcfarm-worker.service\n[Service]\nSupplementaryGroups=input\nSystemCallArchitectures=native\nRestrictNamespaces=yes\n",
    )
}

fn ran(passed: bool, says: &str) -> Ran {
    Ran { passed, says: says.to_owned() }
}

/// The finding of a check that fails under these rules, and always if there is a `*`.
fn told(stop: &[&str]) -> Finding {
    let unit = unit();
    let found = search(&unit, &mut |rules| {
        let stops = stop.contains(&"*") || rules.iter().any(|rule| stop.contains(&rule.name.as_str()));
        Ok(ran(!stops, "exit status 126: Exec format error"))
    });
    finding("exec:a", found)
}

#[test]
fn the_line_to_change_is_named() {
    let fine = told(&[]);
    assert_eq!((fine.outcome, fine.says.as_str()), (Outcome::Ok, "exec:a: its check passes under the unit's rules"));
    let blocked = told(&["SystemCallArchitectures"]);
    assert_eq!(
        blocked.says,
        "exec:a: its check fails under the unit's rules (exit status 126: Exec format error); these lines block it: \
         /lib/systemd/system/pcfarm-worker.service:3: SystemCallArchitectures=native"
    );
    assert!(blocked.has_failed() && blocked.advice.contains("32-bit.conf"), "{blocked:?}");
    let broken = told(&["*"]);
    assert!(broken.has_failed() && broken.says.contains("also without the unit's rules"), "{broken:?}");
}

#[test]
fn a_check_that_systemd_cannot_start_is_no_failure_of_the_program() {
    let unit = unit();
    let finding = finding("exec:a", search(&unit, &mut |_| Err("systemd-run: Failed to connect to bus".to_owned())));
    assert_eq!(finding.outcome, Outcome::Skipped);
    assert!(finding.says.contains("could not be run: systemd-run: Failed to connect to bus"), "{finding:?}");
}

#[test]
fn a_transient_unit_has_the_units_rules_and_shows_no_secret() {
    let unit = unit();
    let rules: Vec<&Rule> = unit.rules.iter().collect();
    let arguments = arguments(
        &program("/bin/cat", "[\"--version\"]"),
        Some(User { uid: 991, gid: 990 }),
        &unit.groups,
        &rules,
        "x",
    );
    let text = arguments.join(" ");
    for part in [
        "--wait --pipe --collect",
        "-p User=991 -p Group=990",
        "-p SupplementaryGroups=input",
        "-p SystemCallArchitectures=native -p RestrictNamespaces=yes",
        "-p RuntimeMaxSec=10",
        "--setenv=SECRET",
        "-- /bin/cat --version",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("hidden"), "{text}");
}

#[test]
fn without_systemd_the_check_runs_directly_and_says_so() {
    let why = "systemd does not run here";
    let passes = here("exec:a", why, direct(&shell("echo $LC_ALL; test \"$SECRET\" = hidden"), None));
    assert_eq!(passes.outcome, Outcome::Ok);
    assert_eq!(
        passes.says,
        "exec:a: its check passes (systemd does not run here, so the check ran without the unit's rules)"
    );
    let fails = here("exec:a", why, direct(&shell("echo no licence >&2; exit 3"), None));
    assert!(fails.has_failed() && fails.says.contains("exit status 3: no licence"), "{fails:?}");
    let missing = here("exec:a", why, direct(&program("/nowhere/at/all", "[]"), None));
    assert_eq!(missing.outcome, Outcome::Skipped, "{missing:?}");
}

#[test]
fn time_and_output_of_a_check_are_bounded() {
    let talks = shell("yes | head -c 1000000");
    let ran = direct(&talks, None).expect("it runs");
    assert!(ran.passed && ran.says.chars().count() < SHOWN_CHARS + 50, "{}", ran.says.len());
    let stays = shell("sleep 1000");
    let mut command = Command::new(&stays.path);
    command.args(stays.check.iter().flatten());
    let ran = outcome(&stays, command.process_group(0), Duration::from_millis(100), &|| {}).expect("it runs");
    assert!(!ran.passed && ran.says.starts_with("no end within"), "{ran:?}");
    let line = tail("a\u{1b}[31m\tb\n\nc");
    assert_eq!(line, ": a[31m b c");
}
