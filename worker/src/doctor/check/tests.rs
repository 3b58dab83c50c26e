use super::super::Outcome;
use super::run::{Ended, SHOWN_CHARS, run, tail};
use super::transient::{NoRun, Shown, Start, command, judged, properties};
use super::*;

fn program(path: &str, check: &str) -> Program {
    program_with(path, check, "env = {SECRET = \"hidden\"}")
}

fn program_with(path: &str, check: &str, more: &str) -> Program {
    #[derive(serde::Deserialize)]
    struct File {
        program: Vec<crate::exec::settings::ProgramSettings>,
    }
    let text =
        format!("[[program]]\nname = \"a\"\npath = {path:?}\nmode = \"fed\"\ntrusted = true\ncheck = {check}\n{more}");
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
    under_rules("exec:a", &unit(), &mut |_, rules| {
        let is_open = |rule: &Rule| rule.lines.iter().any(|line| line.value == "native x86");
        let stops =
            stop.contains(&"*") || rules.iter().any(|rule| stop.contains(&rule.name.as_str()) && !is_open(rule));
        Ok(ran(!stops, "exit status 126: Exec format error"))
    })
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
    let other = told(&["RestrictNamespaces"]);
    assert!(other.advice.contains("a drop-in with another RestrictNamespaces="), "{other:?}");
    assert!(!other.advice.contains(".conf"), "no drop-in helps: {other:?}");
    let broken = told(&["*"]);
    assert!(broken.has_failed() && broken.says.contains("also without the unit's rules"), "{broken:?}");
}

#[test]
fn a_check_that_systemd_cannot_start_is_no_failure_of_the_program() {
    let failed = || NoRun::Failed("systemd-run: Failed to connect to bus".to_owned());
    let finding = under_rules("exec:a", &unit(), &mut |_, _| Err(failed()));
    assert_eq!(finding.outcome, Outcome::Skipped);
    assert!(finding.says.contains("could not be run: systemd-run: Failed to connect to bus"), "{finding:?}");
}

fn ended(code: i32, text: &str) -> Ended {
    Ended { code: Some(code), text: text.to_owned(), ..Ended::default() }
}

fn failed(result: &str, status: i32) -> Option<Shown> {
    Some(Shown { is_loaded: true, result: result.to_owned(), status: (status >= 0).then_some(status) })
}

/// A check may print anything, and end with any status. Only a unit that was never made is a failure of systemd-run.
#[test]
fn failures_of_the_program_are_told_from_those_of_systemd_run() {
    let sandbox =
        "Failed to move to new namespace: PID namespaces supported, but failed: errno = Operation not permitted";
    let bus = "Failed to connect to bus: No such file or directory";
    let gone = Some(Shown::default());
    let mut one = shell("true");
    one.exit_codes = vec![0, 1];
    for (case, end, unit, outcome) in [
        (
            "a browser's sandbox",
            ended(133, sandbox),
            failed("exit-code", 133),
            Ok((false, "exit status 133: Failed to move")),
        ),
        (
            "the same with 12",
            ended(12, sandbox),
            failed("exit-code", 12),
            Ok((false, "exit status 12: Failed to move")),
        ),
        ("the same, nothing known", ended(12, sandbox), None, Ok((false, "exit status 12: Failed to move"))),
        ("a program's own bus", ended(1, bus), failed("exit-code", 1), Ok((true, "exit status 1: Failed to connect"))),
        (
            "no bus for systemd-run",
            ended(1, bus),
            None,
            Err(NoRun::Failed(format!("systemd-run: exit status 1: {bus}"))),
        ),
        (
            "1 is no failure here",
            ended(1, "no licence"),
            failed("exit-code", 1),
            Ok((true, "exit status 1: no licence")),
        ),
        ("over its time", ended(1, "x"), failed("timeout", -1), Ok((false, "no end within 10 s: x"))),
        ("out of memory", ended(1, ""), failed("oom-kill", -1), Ok((false, "ended with the result oom-kill"))),
        ("a signal", ended(255, ""), failed("signal", -1), Ok((false, "ended with the result signal"))),
        (
            "no such setting",
            ended(1, "Unknown assignment: PrivatePIDs=yes"),
            gone.clone(),
            Err(NoRun::Unknown("PrivatePIDs".to_owned())),
        ),
        (
            "none of a transient unit",
            ended(1, "Failed to start transient service unit: Cannot set property Fancy, or unknown property."),
            gone,
            Err(NoRun::Unknown("Fancy".to_owned())),
        ),
        (
            "a program that says so",
            ended(1, "Unknown assignment: a=b"),
            failed("exit-code", 1),
            Ok((true, "exit status 1: Unknown assignment")),
        ),
    ] {
        match (judged(&one, end, unit.as_ref()), outcome) {
            (Ok(ran), Ok((passed, says))) => {
                assert!(ran.passed == passed && ran.says.starts_with(says), "{case}: {ran:?}");
            }
            (judged, outcome) => assert_eq!(judged.err(), outcome.err(), "{case}"),
        }
    }
}

#[test]
fn the_state_of_a_failed_unit_is_read() {
    let text = "Result=exit-code\nExecMainCode=1\nExecMainStatus=203\nLoadState=loaded\n";
    assert_eq!(Some(Shown::of(text)), failed("exit-code", 203));
    let killed = "Result=timeout\nExecMainCode=2\nExecMainStatus=9\nLoadState=loaded\n";
    assert_eq!(Some(Shown::of(killed)), failed("timeout", -1));
    assert!(!Shown::of("Result=success\nLoadState=not-found\n").is_loaded);
}

#[test]
fn a_setting_that_no_transient_unit_takes_is_left_out_and_named() {
    let unit = Unit::of("# /etc/a.service\n[Service]\nFancy=1\nRestrictNamespaces=yes\nBindPaths=/run/user/%U\n");
    let found = under_rules("exec:a", &unit, &mut |_, rules| match rules.iter().any(|rule| rule.name == "Fancy") {
        true => Err(NoRun::Unknown("Fancy".to_owned())),
        false => Ok(ran(rules.is_empty(), "exit status 1")),
    });
    assert!(
        found.says.contains("these lines block it: /etc/a.service:3: RestrictNamespaces=yes; not tried"),
        "{found:?}"
    );
    assert!(found.says.ends_with("/etc/a.service:4: BindPaths=/run/user/%U, /etc/a.service:2: Fancy=1"), "{found:?}");
    // Never without end.
    let found = under_rules("exec:a", &unit, &mut |_, _| Err(NoRun::Unknown("Other".to_owned())));
    assert_eq!(found.outcome, Outcome::Skipped);
}

#[test]
fn checks_never_run_as_root_because_the_agents_user_is_not_known() {
    let ids = |uid| User { uid, gid: uid };
    let named = || Some(("pcfarm-worker".to_owned(), None));
    let of_unit = || Account::Named { user: "pcfarm-worker".to_owned(), group: None };
    for (case, owner, unit, own, expected) in [
        ("as the service's user", Some(ids(991)), named(), 0, Some(Account::Ids(ids(991)))),
        ("before its first start", None, named(), 0, Some(of_unit())),
        ("an agent of root", Some(ids(0)), named(), 0, Some(Account::Own)),
        ("an agent of a user", Some(ids(1000)), None, 1000, Some(Account::Own)),
        ("no state and no unit", None, None, 0, None),
        ("no state and no unit, a user", None, None, 1000, Some(Account::Own)),
        ("another user's agent", Some(ids(991)), named(), 1000, None),
        ("the unit's, and no root", None, named(), 1000, None),
    ] {
        assert_eq!(account(owner, unit, own).ok(), expected, "{case}");
    }
}

#[test]
fn a_transient_unit_has_the_units_rules_and_shows_no_secret() {
    let unit = unit();
    let rules: Vec<&Rule> = unit.rules.iter().collect();
    let one = program("/bin/cat", "[\"--version\", \"$HOME\"]");
    let of_agent = ["SECRET", "USER"].map(|name| (name.to_owned(), "agent's".to_owned()));
    let environment = Environment::of(&one, &of_agent);
    let start = Start {
        account: &Account::Ids(User { uid: 991, gid: 990 }),
        properties: properties(&unit.groups, &rules, &environment, std::path::Path::new("/run/x.env")),
        command: command(&one),
    };
    let text = start.arguments("x").join(" ");
    for part in [
        "--wait --pipe --quiet",
        "-p User=991 -p Group=990",
        "-p SupplementaryGroups=input",
        "-p SystemCallArchitectures=native -p RestrictNamespaces=yes",
        "-p EnvironmentFile=/run/x.env -p UnsetEnvironment=USER ",
        "-p RuntimeMaxSec=10 -p TimeoutStopSec=1",
        "-- /bin/cat --version $$HOME",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("hidden") && !text.contains("SECRET"), "{text}");
}

/// A program in place of `systemd-run` that does what matters of it: it starts from the manager's environment, reads files of variables,
/// takes variables away, and refuses `/bin/sh` under device rules that do not allow fuse.
const SYSTEMD_RUN: &str = r#"#!/bin/sh
here=$(dirname "$0")
if [ -z "$MANAGER" ]; then
    /usr/bin/env >"$here/environment"
    echo "$*" >>"$here/arguments"
    exec /usr/bin/env -i MANAGER=1 USER=agent PATH=/usr/bin:/bin "$0" "$@"
fi
set -a
while [ $# -gt 0 ]; do
    case $1 in
        --) shift; break ;;
        -p) shift
            case $1 in
                EnvironmentFile=*) files="$files ${1#*=}" ;;
                Environment=*) eval "${1#*=}" ;;
                UnsetEnvironment=*) gone="$gone ${1#*=}" ;;
                DevicePolicy=closed) is_closed=1 ;;
                DeviceAllow=/dev/fuse*) is_closed= ;;
            esac ;;
    esac
    shift
done
for file in $files; do . "$file"; done
unset $gone
if [ -n "$is_closed" ] && [ "$1" = /bin/sh ] && [ -n "$FUSE" ]; then echo "/dev/fuse: Operation not permitted"; exit 1; fi
set +a
unset files gone here is_closed
# As systemd does it.
for argument; do set -- "$@" "$(printf %s "$argument" | /bin/sed 's/[$][$]/$/g')"; shift; done
exec "$@"
"#;

/// Programs in place of systemd's.
struct Stage {
    dir: tempfile::TempDir,
    systemd: Systemd,
}

impl Stage {
    fn new() -> Stage {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, text) in [("run", SYSTEMD_RUN), ("ctl", "#!/bin/sh\nexit 1\n")] {
            fs::write(dir.path().join(name), text).expect("written");
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(dir.path().join(name), mode).expect("it is ours");
        }
        fs::create_dir(dir.path().join("runtime")).expect("made");
        let of = |name: &str| dir.path().join(name);
        let systemd = Systemd { run: of("run"), ctl: of("ctl"), runtime: of("runtime") };
        Stage { dir, systemd }
    }

    /// The finding about a program under a unit with these lines.
    fn finding(&self, unit: &str, program: &Program) -> Finding {
        let unit = Unit::of(&format!("# /etc/systemd/system/pcfarm-worker.service\n[Service]\n{unit}"));
        let of_agent = self.systemd.variables(&unit, &Account::Own);
        check(program, &Account::Own, &Place::Systemd(self.systemd.clone(), unit), &of_agent)
    }

    fn said(&self, name: &str) -> String {
        fs::read_to_string(self.dir.path().join(name)).expect("the program has run")
    }
}

#[test]
fn a_check_has_the_variables_that_the_agent_gives_its_program() {
    let stage = Stage::new();
    let licence = "Environment=LICENSE=27000@lic\n";
    let file = stage.dir.path().join("default");
    fs::write(&file, "LICENSE=28000@lic\n").expect("written");
    let of_file = format!("EnvironmentFile={}\n", file.display());
    let passed = "pass_env = [\"LICENSE\"]";
    for (case, unit, more, test, outcome) in [
        ("of the unit", licence, passed, "\"$LICENSE\" = 27000@lic", Outcome::Ok),
        ("of its file", &of_file, passed, "\"$LICENSE\" = 28000@lic", Outcome::Ok),
        ("not passed on", licence, "", "-z \"$LICENSE\"", Outcome::Ok),
        ("not passed on, but needed", licence, "", "-n \"$LICENSE\"", Outcome::Failed),
        ("of no unit", "", passed, "-n \"$LICENSE\"", Outcome::Failed),
        ("the owner's word, before the file's", &of_file, "env = {LICENSE = \"1@x\"}", "$LICENSE = 1@x", Outcome::Ok),
        (
            "of the service, and not of the doctor's shell",
            "",
            "pass_env = [\"PATH\"]",
            "$PATH = /usr/bin:/bin",
            Outcome::Ok,
        ),
        ("of the service alone", "", "", "-z \"$USER\"", Outcome::Ok),
        ("a time zone", "Environment=TZ=Asia/Tokyo\n", "", "$TZ = Asia/Tokyo", Outcome::Ok),
        ("a locale", "Environment=LANG=de_DE\n", "", "$LANG$LC_ALL = C.UTF-8C.UTF-8", Outcome::Ok),
        ("a place", "", "", "$HOME$TMPDIR = /tmp/tmp", Outcome::Ok),
        ("its own home", "", "env = {HOME = \"/srv\"}", "$HOME = /srv", Outcome::Ok),
    ] {
        let found =
            stage.finding(unit, &program_with("/bin/sh", &format!("[\"-c\", {:?}]", format!("test {test}")), more));
        assert_eq!(found.outcome, outcome, "{case}: {found:?}");
    }
    let broken = Stage::new();
    fs::write(broken.dir.path().join("run"), "#!/bin/sh\necho no such file >&2\nexit 1\n").expect("written");
    let found = broken.finding(licence, &program_with("/bin/sh", "[]", passed));
    assert!(found.outcome == Outcome::Skipped && found.says.contains("variables are not known"), "{found:?}");
}

#[test]
fn variables_of_a_program_do_not_act_on_systemd_run() {
    let stage = Stage::new();
    let more = "env = {PATH = \"/opt/fluids/bin\", LD_LIBRARY_PATH = \"/opt/conda/lib\", LD_PRELOAD = \"\", DBUS_SYSTEM_BUS_ADDRESS = \
                \"unix:path=/x\", SECRET = \"a $b 'c'\"}";
    let test = "test \"$PATH$LD_LIBRARY_PATH\" = /opt/fluids/bin/opt/conda/lib && test \"$SECRET\" = \"a \\$b 'c'\"";
    let found = stage.finding("", &program_with("/bin/sh", &format!("[\"-c\", {test:?}]"), more));
    assert_eq!(found.outcome, Outcome::Ok, "{found:?}");
    let environment = stage.said("environment");
    for of_program in ["/opt/fluids", "/opt/conda", "DBUS_SYSTEM_BUS_ADDRESS", "SECRET"] {
        assert!(!environment.contains(of_program), "{of_program}: {environment}");
        assert!(!stage.said("arguments").replace("$$SECRET", "").contains(&format!("{of_program}=")), "{of_program}");
    }
    let left = fs::read_dir(stage.dir.path().join("runtime")).expect("it is there").count();
    assert_eq!(left, 0, "files of variables are removed");
}

#[test]
fn a_drop_in_that_does_not_help_is_not_advised() {
    let stage = Stage::new();
    let needs_fuse = program_with("/bin/sh", "[\"-c\", \"true\"]", "env = {FUSE = \"1\"}");
    let rules = "DevicePolicy=closed\nDeviceAllow=char-input r\nSystemCallArchitectures=native\n";
    let found = stage.finding(rules, &needs_fuse);
    assert!(found.has_failed() && found.says.contains("these lines block it: "), "{found:?}");
    assert!(
        found.advice.contains("a drop-in with another DeviceAllow=") && !found.advice.contains("gpu.conf"),
        "{found:?}"
    );
    let open = stage.finding(&format!("{rules}DeviceAllow=/dev/fuse rw\n"), &needs_fuse);
    assert_eq!(open.outcome, Outcome::Ok, "{open:?}");
}

#[test]
fn without_systemd_the_check_runs_directly_and_says_so() {
    let why = "systemd does not run here";
    let passes = here("exec:a", why, direct(&shell("echo $LC_ALL; test \"$SECRET\" = hidden"), &Account::Own));
    assert_eq!(passes.outcome, Outcome::Ok);
    assert_eq!(
        passes.says,
        "exec:a: its check passes (systemd does not run here, so the check ran without the unit's rules)"
    );
    let fails = here("exec:a", why, direct(&shell("echo no licence >&2; exit 3"), &Account::Own));
    assert!(fails.has_failed() && fails.says.contains("exit status 3: no licence"), "{fails:?}");
    let missing = here("exec:a", why, direct(&program("/nowhere/at/all", "[]"), &Account::Own));
    assert_eq!(missing.outcome, Outcome::Skipped, "{missing:?}");
}

#[test]
fn time_and_output_of_a_check_are_bounded() {
    let talks = shell("yes | head -c 1000000");
    let ran = direct(&talks, &Account::Own).expect("it runs");
    assert!(ran.passed && ran.says.chars().count() < SHOWN_CHARS + 50, "{}", ran.says.len());
    let stays = shell("sleep 1000");
    let mut command = Command::new(&stays.path);
    command.args(stays.check.iter().flatten());
    let ended = run(command.process_group(0), Duration::from_millis(100), &|| {}).expect("it runs");
    let ran = ended.ran(&stays);
    assert!(!ran.passed && ran.says.starts_with("no end within"), "{ran:?}");
    let line = tail("a\u{1b}[31m\tb\n\nc");
    assert_eq!(line, ": a[31m b c");
}
