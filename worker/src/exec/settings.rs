//! The owner's list of programs, as it is written in the agent's settings.
//!
//! Owns what may be written there, and that it makes sense. It starts nothing.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcfarm_proto::version::Version;
use serde::Deserialize;

use crate::exec::arguments::{Template, TemplateError};
use crate::exec::fence;
use crate::exec::outputs::Wanted;
use crate::exec::plan::{Limits, User};
use crate::exec::variables::Variables;

/// What job types call the controller of a program by: this and its name.
pub const PREFIX: &str = "exec:";

/// Room for helpers and threads of a solver, and little for a fork bomb.
const DEFAULT_PROCESSES: u32 = 64;

/// What a temporary file may need, and a disk of a workstation spares.
const DEFAULT_DISK_MIB: u64 = 1024;

/// Behind whatever the workstation's person does.
const DEFAULT_NICE: i32 = 10;

/// A program without problems gives its memory back.
const DEFAULT_IDLE: Duration = Duration::from_secs(60);

/// A check is a command that fits a line.
const CHECK_ARGUMENTS: usize = 32;
const CHECK_BYTES: usize = 4096;

/// As whom programs run on an agent that is root, unless its owner says otherwise.
const NOBODY: &str = "nobody";

/// A program that problems may be given to.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ProgramSettings {
    /// Job types call it `exec:NAME`.
    pub name: String,
    /// Absolute: no search path decides what is run.
    pub path: PathBuf,
    #[serde(default)]
    pub args: Vec<String>,
    pub mode: Mode,
    /// Which it is, as in 2.8.5: jobs may require one that is new enough.
    pub version: Option<String>,
    /// What a one-shot program finds on its standard input.
    #[serde(default)]
    pub stdin: StdinIs,
    /// What becomes of a one-shot program's output.
    #[serde(default)]
    pub answer: AnswerIs,
    /// Exit codes of a one-shot program that are not failures. SAT solvers say 10 and 20.
    #[serde(default = "only_zero", rename = "exit_codes")]
    pub exit_codes: Vec<i32>,
    /// Files that a one-shot program leaves in its directory for the farm: names, or forms of names with `*`.
    #[serde(default)]
    pub outputs: Vec<String>,
    /// The end of what it wrote to standard error goes with solutions, too.
    #[serde(default, rename = "keep_stderr")]
    pub keep_stderr: bool,
    /// Seconds for one problem; without it only the job type's limit holds.
    #[serde(rename = "time_limit")]
    pub time_limit: Option<f64>,
    /// Of all its processes together; three quarters of the machine's by default, shared by the cores.
    #[serde(rename = "memory_mib")]
    pub memory_mib: Option<u64>,
    /// Of each process: its address space. Programs that reserve more than they use do not start under it.
    #[serde(rename = "address_space_mib")]
    pub address_space_mib: Option<u64>,
    pub processes: Option<u32>,
    /// What its working directory may hold.
    #[serde(rename = "disk_mib")]
    pub disk_mib: Option<u64>,
    /// Arguments with which the program proves quickly that it runs here, such as `--version`: `pcfarm-worker doctor` starts it so.
    #[serde(default)]
    pub check: Option<Vec<String>>,
    /// Its environment, beside a few harmless variables.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Variables of the agent that it gets too.
    #[serde(default, rename = "pass_env")]
    pub pass_env: Vec<String>,
    /// A user's name or `uid:gid`; needs an agent that is root.
    #[serde(rename = "run_as")]
    pub run_as: Option<String>,
    /// Where else it may write.
    #[serde(default)]
    pub writable: Vec<PathBuf>,
    /// Whether it may make and take TCP connections.
    #[serde(default = "yes")]
    pub network: bool,
    pub nice: Option<i32>,
    /// Seconds without a problem after which a fed program is ended.
    pub idle: Option<f64>,
    /// Its owner lets it run although nothing can hide the agent's key from it.
    #[serde(default)]
    pub trusted: bool,
}

fn yes() -> bool {
    true
}

fn only_zero() -> Vec<i32> {
    vec![0]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Started once per core: a line of JSON in, a line of JSON out.
    Fed,
    /// Started for each problem.
    OneShot,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StdinIs {
    #[default]
    Nothing,
    /// The payload as JSON; a payload that is a text, as it is.
    Payload,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AnswerIs {
    /// A text, without its last line end.
    #[default]
    Text,
    Json,
    /// An object of `exit_code`, `stdout` and `stderr`.
    Report,
}

/// Why a program cannot be on the list.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error("a name has 1 to 58 letters, digits and _ . -")]
    Name,
    #[error("there are two of that name")]
    Twice,
    #[error("path is absolute")]
    Path,
    #[error("a version has up to six numbers with dots between them, as 2.8.5 has three, and not {0:?}")]
    Version(String),
    #[error("argument {0:?}: {1}")]
    Argument(String, TemplateError),
    #[error("a fed program is not started for a problem: {0:?} has no meaning in its arguments")]
    FedArgument(String),
    #[error("{0} is for one-shot programs")]
    OneShotOnly(&'static str),
    #[error("outputs: {0:?} is neither a file's name (letters, digits and _ . -, at most 100) nor one with * in it")]
    Output(String),
    #[error("{0} is more than zero")]
    Positive(&'static str),
    #[error("check has at most {CHECK_ARGUMENTS} arguments, of {CHECK_BYTES} bytes together, without NUL")]
    Check,
    #[error("PCFARM_* variables are not for programs")]
    Environment,
    #[error("there is no user {0:?} in /etc/passwd")]
    NoUser(String),
    #[error("run_as needs an agent that is root")]
    NotRoot,
    #[error(
        "nothing would hide the agent's key from it: this system has no Landlock, and it would run as the agent's own user. \
         Give it a user of its own (run_as, on an agent that is root), or say trusted = true"
    )]
    Unprotected,
}

/// A program that is ready to be run.
#[derive(Clone, Debug)]
pub struct Program {
    pub name: String,
    pub path: PathBuf,
    pub args: Vec<Template>,
    pub mode: Mode,
    pub stdin: StdinIs,
    pub answer: AnswerIs,
    pub exit_codes: Vec<i32>,
    pub outputs: Vec<Wanted>,
    pub keep_stderr: bool,
    pub time_limit: Option<Duration>,
    pub limits: Limits,
    /// Arguments of its check, instead of `args`.
    pub check: Option<Vec<String>>,
    /// Environment under this process. Elsewhere `variables` decides it.
    pub environment: Vec<(String, String)>,
    pub variables: Variables,
    pub user: Option<User>,
    pub writable: Vec<PathBuf>,
    pub network: bool,
    pub nice: i32,
    pub idle: Duration,
}

impl Program {
    pub fn controller(&self) -> String {
        format!("{PREFIX}{}", self.name)
    }

    /// Whether it is installed here, and if not, why it cannot be run.
    pub fn installed(&self) -> Result<(), String> {
        installed(&self.path)
    }
}

/// The reason for which a program cannot be run, if there is one.
pub fn installed(path: &Path) -> Result<(), String> {
    let shown = path.display();
    match fs::metadata(path) {
        Err(error) => Err(format!("{shown}: {error}")),
        Ok(file) if !file.is_file() => Err(format!("{shown} is not a file")),
        Ok(file) if file.permissions().mode() & 0o111 == 0 => Err(format!("{shown} is not executable")),
        Ok(_) => Ok(()),
    }
}

/// What programs share: the machine, and how many may run at a time.
pub struct Machine {
    pub memory_bytes: u64,
    pub cores: usize,
    pub is_root: bool,
}

/// Checks the whole list, so that an agent starts with all of it or says what is wrong.
pub fn check(list: &[ProgramSettings], machine: &Machine) -> Result<Vec<Program>, (String, ProgramError)> {
    let mut programs: Vec<Program> = Vec::new();
    for settings in list {
        let program = ready(settings, machine).map_err(|error| (settings.name.clone(), error))?;
        if programs.iter().any(|other| other.name == program.name) {
            return Err((program.name, ProgramError::Twice));
        }
        programs.push(program);
    }
    Ok(programs)
}

fn ready(settings: &ProgramSettings, machine: &Machine) -> Result<Program, ProgramError> {
    let s = settings;
    let sensible = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    if !(1..=58).contains(&s.name.len()) || !s.name.bytes().all(sensible) {
        return Err(ProgramError::Name);
    }
    if !s.path.is_absolute() || !s.writable.iter().all(|path| path.is_absolute()) {
        return Err(ProgramError::Path);
    }
    if let Some(version) = s.version.as_ref().filter(|version| Version::of(version).is_none()) {
        return Err(ProgramError::Version(version.clone()));
    }
    let user = user(s, machine)?;
    if user.is_none() && !s.trusted && !fence::available() {
        return Err(ProgramError::Unprotected);
    }
    check_mode(s)?;
    let variables = variables(s)?;
    Ok(Program {
        name: s.name.clone(),
        path: s.path.clone(),
        args: arguments(s)?,
        mode: s.mode,
        stdin: s.stdin,
        answer: s.answer,
        exit_codes: s.exit_codes.clone(),
        outputs: outputs(s)?,
        keep_stderr: s.keep_stderr,
        time_limit: s.time_limit.map(|seconds| duration(seconds, "time_limit")).transpose()?,
        limits: limits(s, machine)?,
        check: checked(s)?,
        environment: variables.environment(|name| std::env::var(name).ok()),
        variables,
        user,
        writable: s.writable.clone(),
        network: s.network,
        nice: s.nice.unwrap_or(DEFAULT_NICE),
        idle: s.idle.map_or(Ok(DEFAULT_IDLE), |seconds| duration(seconds, "idle"))?,
    })
}

fn check_mode(s: &ProgramSettings) -> Result<(), ProgramError> {
    if s.mode == Mode::OneShot {
        return Ok(());
    }
    for (name, differs) in [
        ("stdin", s.stdin != StdinIs::default()),
        ("answer", s.answer != AnswerIs::default()),
        ("exit_codes", s.exit_codes != only_zero()),
        ("outputs", !s.outputs.is_empty()),
    ] {
        if differs {
            return Err(ProgramError::OneShotOnly(name));
        }
    }
    Ok(())
}

fn arguments(s: &ProgramSettings) -> Result<Vec<Template>, ProgramError> {
    let parse = |text: &String| {
        let template = Template::parse(text).map_err(|error| ProgramError::Argument(text.clone(), error))?;
        match s.mode {
            Mode::Fed if !template.is_literal() => Err(ProgramError::FedArgument(text.clone())),
            Mode::Fed | Mode::OneShot => Ok(template),
        }
    };
    s.args.iter().map(parse).collect()
}

fn checked(s: &ProgramSettings) -> Result<Option<Vec<String>>, ProgramError> {
    let Some(check) = &s.check else { return Ok(None) };
    let bytes: usize = check.iter().map(String::len).sum();
    let fits = check.len() <= CHECK_ARGUMENTS && bytes <= CHECK_BYTES && !check.iter().any(|one| one.contains('\0'));
    if fits { Ok(Some(check.clone())) } else { Err(ProgramError::Check) }
}

fn outputs(s: &ProgramSettings) -> Result<Vec<Wanted>, ProgramError> {
    s.outputs.iter().map(|text| Wanted::parse(text).ok_or_else(|| ProgramError::Output(text.clone()))).collect()
}

fn limits(s: &ProgramSettings, machine: &Machine) -> Result<Limits, ProgramError> {
    let mib = |given: u64, name| match given {
        0 => Err(ProgramError::Positive(name)),
        mib => Ok(mib.saturating_mul(1 << 20)),
    };
    let share = machine.memory_bytes / 4 * 3 / u64::try_from(machine.cores.max(1)).unwrap_or(u64::MAX);
    let processes = s.processes.unwrap_or(DEFAULT_PROCESSES);
    if processes == 0 {
        return Err(ProgramError::Positive("processes"));
    }
    Ok(Limits {
        memory_bytes: s.memory_mib.map_or(Ok(share.max(256 << 20)), |given| mib(given, "memory_mib"))?,
        address_space_bytes: s.address_space_mib.map(|given| mib(given, "address_space_mib")).transpose()?,
        processes,
        // The supervisor's look comes first.
        tasks: u64::from(processes).saturating_mul(2 * machine.cores as u64).saturating_add(256),
        disk_bytes: mib(s.disk_mib.unwrap_or(DEFAULT_DISK_MIB), "disk_mib")?,
    })
}

fn duration(seconds: f64, name: &'static str) -> Result<Duration, ProgramError> {
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        Ok(_) | Err(_) => Err(ProgramError::Positive(name)),
    }
}

fn variables(s: &ProgramSettings) -> Result<Variables, ProgramError> {
    let named = s.pass_env.iter().chain(s.env.keys());
    if named.clone().any(|name| name.starts_with("PCFARM_") || name.is_empty() || name.contains(['=', '\0'])) {
        return Err(ProgramError::Environment);
    }
    Ok(Variables::new(&s.pass_env, &s.env))
}

/// Nobody in particular for an agent that is root; the agent's own user otherwise.
fn user(s: &ProgramSettings, machine: &Machine) -> Result<Option<User>, ProgramError> {
    match (&s.run_as, machine.is_root) {
        (Some(_), false) => Err(ProgramError::NotRoot),
        (None, false) => Ok(None),
        (Some(name), true) if name == "root" => match s.trusted || fence::available() {
            true => Ok(None),
            false => Err(ProgramError::Unprotected),
        },
        (name, true) => {
            let name = name.as_deref().unwrap_or(NOBODY);
            let passwd = fs::read_to_string(Path::new("/etc/passwd")).unwrap_or_default();
            find_user(name, &passwd).map(Some).ok_or_else(|| ProgramError::NoUser(name.to_owned()))
        }
    }
}

/// By a name of `passwd`, or numbers: `uid:gid`.
fn find_user(name: &str, passwd: &str) -> Option<User> {
    let user = |uid: &str, gid: &str| Some(User { uid: uid.parse().ok()?, gid: gid.parse().ok()? });
    if let Some((uid, gid)) = name.split_once(':') {
        return user(uid, gid).filter(|user| user.uid != 0);
    }
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then_some(())?;
        user(fields.nth(1)?, fields.next()?).filter(|user| user.uid != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: Machine = Machine { memory_bytes: 16 << 30, cores: 4, is_root: false };

    fn checked(text: &str) -> Result<Program, String> {
        #[derive(Deserialize)]
        struct File {
            program: Vec<ProgramSettings>,
        }
        let file: File = toml::from_str(&format!("[[program]]\nname = \"a\"\n{text}")).map_err(|e| e.to_string())?;
        let mut programs = check(&file.program, &MACHINE).map_err(|(name, error)| format!("{name}: {error}"))?;
        Ok(programs.remove(0))
    }

    #[test]
    fn a_program_needs_little_said_of_it() {
        let program = checked("path = \"/bin/cat\"\nmode = \"fed\"\ntrusted = true").expect("a good program");
        assert_eq!(program.controller(), "exec:a");
        assert_eq!(program.limits.memory_bytes, 3 << 30);
        assert_eq!((program.limits.processes, program.nice), (64, 10));
        assert!(program.environment.iter().any(|(name, _)| name == "PATH"));
        assert!(program.installed().is_ok());
    }

    #[test]
    fn programs_have_a_utf8_locale_unless_the_settings_name_another() {
        let locale = |more: &str| {
            let program = checked(&format!("path = \"/bin/cat\"\nmode = \"fed\"\ntrusted = true\n{more}"));
            let environment = program.expect("a good program").environment;
            let of = |name: &str| environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
            (of("LANG").unwrap_or_default(), of("LC_ALL").unwrap_or_default(), of("LC_NUMERIC").unwrap_or_default())
        };
        let all = |lang: &str, lc_all: &str, numeric: &str| (lang.to_owned(), lc_all.to_owned(), numeric.to_owned());
        assert_eq!(locale(""), all("C.UTF-8", "C.UTF-8", ""));
        assert_eq!(locale("env = {LANG = \"de_DE.UTF-8\"}"), all("de_DE.UTF-8", "", ""));
        assert_eq!(locale("env = {LC_ALL = \"C\"}"), all("C.UTF-8", "C", ""));
        assert_eq!(locale("env = {LC_CTYPE = \"C\", LC_NUMERIC = \"de_DE\"}"), all("C.UTF-8", "", "de_DE"));
        assert_eq!(locale("env = {LC_NUMERIC = \"de_DE\"}"), all("C.UTF-8", "", "de_DE"));
    }

    #[test]
    fn checks_are_short() {
        let with =
            |check: &str| checked(&format!("path = \"/bin/cat\"\nmode = \"fed\"\ntrusted = true\ncheck = {check}"));
        assert_eq!(with("[\"--version\"]").expect("a check").check, Some(vec!["--version".to_owned()]));
        assert_eq!(with("[]").expect("a check without arguments").check, Some(Vec::new()));
        for wrong in
            [format!("[{}]", "\"a\",".repeat(33)), format!("[\"{}\"]", "a".repeat(4097)), "[\"\\u0000\"]".to_owned()]
        {
            assert!(with(&wrong).expect_err("refused").contains("check has at most 32"), "{wrong}");
        }
    }

    #[test]
    fn wrong_programs_are_refused_with_their_reason() {
        for (text, expected) in [
            ("path = \"cat\"\nmode = \"fed\"", "path is absolute"),
            ("path = \"/bin/cat\"\nmode = \"shell\"", "unknown variant"),
            ("path = \"/bin/cat\"\nmode = \"fed\"\nmemory = 3", "unknown field"),
            ("path = \"/bin/cat\"\nmode = \"fed\"\ntrusted = true\nargs = [\"{key}\"]", "no meaning in its arguments"),
            ("path = \"/bin/cat\"\nmode = \"fed\"\ntrusted = true\nanswer = \"json\"", "answer is for one-shot"),
            ("path = \"/bin/cat\"\nmode = \"one-shot\"\ntrusted = true\nargs = [\"{kye}\"]", "no placeholder"),
            ("path = \"/bin/cat\"\nmode = \"fed\"\ntrusted = true\noutputs = [\"a\"]", "outputs is for one-shot"),
            ("path = \"/bin/cat\"\nmode = \"one-shot\"\ntrusted = true\noutputs = [\"../a\"]", "neither a file's name"),
            ("path = \"/bin/cat\"\nmode = \"fed\"\ntrusted = true\ntime_limit = 0", "time_limit is more than zero"),
            ("path = \"/bin/cat\"\nmode = \"fed\"\ntrusted = true\nmemory_mib = 0", "memory_mib is more than zero"),
            ("path = \"/bin/cat\"\nmode = \"fed\"\ntrusted = true\nversion = \"new\"", "as 2.8.5 has three, and not"),
            ("path = \"/bin/cat\"\nmode = \"fed\"\nrun_as = \"nobody\"", "needs an agent that is root"),
            ("path = \"/bin/cat\"\nmode = \"fed\"\ntrusted = true\npass_env = [\"PCFARM_JOIN_TOKEN\"]", "PCFARM_*"),
        ] {
            let error = checked(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn users_are_found_by_name_or_number_and_root_is_none() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nsolver:x:991:990::/:/usr/sbin/nologin\n";
        for (name, expected) in [
            ("solver", Some(User { uid: 991, gid: 990 })),
            ("61000:61001", Some(User { uid: 61000, gid: 61001 })),
            ("toor", None),
            ("root", None),
            ("0:0", None),
            ("5:x", None),
        ] {
            assert_eq!(find_user(name, passwd), expected, "{name}");
        }
    }
}
