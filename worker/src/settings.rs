//! What an agent is told: a TOML file, `PCFARM_*` variables and flags, in rising order of precedence.
//!
//! Owns the defaults and their reasons. It checks everything before anything starts.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use pcfarm_proto::labels::{self, LabelError};
use pcfarm_proto::secrets::{JoinToken, Malformed};
use serde::Deserialize;
use tonic::transport::Endpoint;
use uuid::Uuid;

use crate::command::Command;
use crate::credentials::Credentials;
#[cfg(target_os = "linux")]
use crate::exec::settings::{ProgramError, ProgramSettings};
use crate::inventory::contact::AfterLease;
use crate::missing::{MissingFeature, WASM};
use crate::platform::{self, SYSTEM_CONFIG};
use crate::presence::cores::{self, Cores};
use crate::presence::settings as presence;
use crate::sleep::{self, Wake};
#[cfg(feature = "wasm")]
use crate::wasm::settings::{WasmError, WasmSettings};

/// The server's own default, on this machine: a farm of one is tried without any setting.
const DEFAULT_SERVER: &str = "http://127.0.0.1:7070";

/// One checkout beside the one that is computed: enough, since a checkout is some seconds of work, and what
/// is held here cannot be computed elsewhere.
const DEFAULT_PREFETCH: u32 = 1;

/// Shorter than the time that service managers give (90 s) and that people wait for.
const DEFAULT_GRACE: Duration = Duration::from_secs(10);

/// What a workstation spares without noticing, and minutes of results of most jobs.
const DEFAULT_UNACKNOWLEDGED_MIB: usize = 64;

/// What the working directory may hold of files from the farm, for the next problem that needs one of them.
const DEFAULT_FILES_MIB: u64 = 2048;

/// All settings of an agent.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Addresses such as `http://farm:7070`; one suffices, each further one is for when it is away.
    pub servers: Vec<String>,
    /// Where the agent keeps who it is. No two agents can share one.
    pub state_dir: PathBuf,
    /// Cores that the owner lets the agent use.
    pub cores: usize,
    /// What people know this workstation by.
    pub hostname: String,
    /// What it is or has, for job types that want that.
    pub labels: Vec<String>,
    /// Checkouts to hold beyond the one that is computed.
    pub prefetch: u32,
    /// How long a stopping agent goes on with what it has begun.
    pub grace: Duration,
    /// Fate of programs when no server was heard of for a lease.
    pub after_lease: AfterLease,
    /// With more bytes unacknowledged than this, of results, payloads and related rows, no more work is asked for.
    pub unacknowledged_bytes: usize,
    /// What lets this workstation into the farm, once.
    pub join_token: Option<JoinToken>,
    /// File of the token, which is read again as long as a farm demands a certificate that this agent has not.
    pub join_token_file: Option<PathBuf>,
    /// An authority of servers' certificates, beside the farm's own.
    pub ca: Option<PathBuf>,
    /// Programs that problems may be given to: the controllers `exec:NAME`.
    #[cfg(target_os = "linux")]
    pub programs: Vec<ProgramSettings>,
    /// Lets the agent run modules that job types ship: the controller `wasm`.
    #[cfg(feature = "wasm")]
    pub wasm: Option<WasmSettings>,
    /// Where programs work, in a directory that is the agent's alone, and where files from the farm are kept.
    pub work_dir: PathBuf,
    /// Most bytes of those files.
    pub files_bytes: u64,
    /// Programs may use GPUs, and the agent tells the farm of the GPUs that it may open.
    pub gpu: bool,
    /// What programs must not read, beside the agent's own files.
    pub hide: Vec<PathBuf>,
    /// A binary that calls [`supervise_if_asked`](crate::exec::supervise_if_asked) first. [`Agent::run`](crate::Agent::run)
    /// is one.
    pub supervisor: Option<PathBuf>,
    /// When the workstation's person lets it work.
    pub presence: presence::Settings,
    /// Whether the farm may wake the workstation, and when it goes to sleep.
    pub sleep: sleep::Settings,
    /// Where people and their sessions' helpers reach the agent on this machine.
    pub socket: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            servers: vec![DEFAULT_SERVER.to_owned()],
            state_dir: platform::default_state_dir(),
            cores: cores::all(),
            hostname: hostname::get().map_or_else(|_| "unknown".to_owned(), |name| name.to_string_lossy().into_owned()),
            labels: Vec::new(),
            prefetch: DEFAULT_PREFETCH,
            grace: DEFAULT_GRACE,
            after_lease: AfterLease::default(),
            unacknowledged_bytes: DEFAULT_UNACKNOWLEDGED_MIB << 20,
            join_token: None,
            join_token_file: None,
            ca: None,
            #[cfg(target_os = "linux")]
            programs: Vec::new(),
            #[cfg(feature = "wasm")]
            wasm: None,
            work_dir: platform::default_work_dir(),
            files_bytes: DEFAULT_FILES_MIB << 20,
            gpu: false,
            hide: Vec::new(),
            supervisor: None,
            presence: presence::Settings::of_a_desk(),
            sleep: sleep::Settings::default(),
            socket: None,
        }
    }
}

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} is not a configuration of this program")]
    Parse { path: PathBuf, source: toml::de::Error },
    #[error("{server:?} is not the address of a server, such as {DEFAULT_SERVER}: {reason}")]
    Server { server: String, reason: String },
    #[error("cannot read the join token in {path}")]
    JoinTokenFile { path: PathBuf, source: std::io::Error },
    #[error("the join token")]
    JoinToken(#[from] Malformed),
    #[error("no server is named")]
    NoServer,
    #[error("an agent needs at least one core")]
    NoCores,
    #[error(transparent)]
    Label(#[from] LabelError),
    #[error("two controllers are named {0:?}")]
    DuplicateController(String),
    #[cfg(target_os = "linux")]
    #[error("program {name:?}")]
    Program { name: String, source: ProgramError },
    #[cfg(feature = "wasm")]
    #[error("modules")]
    Wasm(#[from] WasmError),
    #[error("the directory of files from the farm, {path}")]
    FilesDir { path: PathBuf, source: std::io::Error },
    #[error("programs need a supervisor: Agent::run is one, and Settings::supervisor names another")]
    NoSupervisor,
    #[error("the working directory of programs, {path}")]
    WorkDir { path: PathBuf, source: std::io::Error },
    #[error("hide names whole paths: {0}")]
    Hide(PathBuf),
    #[error("presence")]
    Presence(#[from] presence::PresenceError),
    #[error("sleep")]
    Sleep(#[from] sleep::SleepError),
    #[cfg(not(target_os = "linux"))]
    #[error("programs run on Linux only, which fences them: leave [[program]] away")]
    NoPrograms,
    #[error("an agent needs at least one controller")]
    NoController,
    /// A setting is of a feature that is not in this agent.
    #[error(transparent)]
    Missing(#[from] MissingFeature),
}

/// An agent of a PC Farm: checks out problems, solves them on this machine's cores, delivers the results.
#[derive(Debug, Default, Parser)]
#[command(version)]
struct Flags {
    /// Address of a server; several by commas or by repeating it [default: http://127.0.0.1:7070]
    #[arg(long, value_name = "URL", env = "PCFARM_SERVER", value_delimiter = ',')]
    server: Vec<String>,
    /// Where the agent keeps its identity
    #[cfg_attr(unix, doc = "[default: /var/lib/pcfarm-worker as root, else ~/.local/state/pcfarm-worker]")]
    #[cfg_attr(windows, doc = r"[default: %LOCALAPPDATA%\pcfarm-worker\state]")]
    #[arg(long, value_name = "DIR", env = "PCFARM_STATE_DIR")]
    state_dir: Option<PathBuf>,
    /// Cores to use [default: all]
    #[arg(long, value_name = "N", env = "PCFARM_CORES")]
    cores: Option<usize>,
    /// A TOML file with settings, named as the flags are but with _ for -
    #[arg(long, value_name = "FILE", env = "PCFARM_WORKER_CONFIG")]
    config: Option<PathBuf>,
    /// What people know this workstation by [default: the system's host name]
    #[arg(long, value_name = "NAME", env = "PCFARM_HOSTNAME")]
    hostname: Option<String>,
    /// What this workstation is or has, such as lab-a or room=12, for jobs that require it; several by commas or by repeating it
    #[arg(long, value_name = "LABEL", env = "PCFARM_LABELS", value_delimiter = ',')]
    label: Vec<String>,
    /// Checkouts to hold beyond the one that is computed [default: 1]
    #[arg(long, value_name = "N", env = "PCFARM_PREFETCH")]
    prefetch: Option<u32>,
    /// How long to go on with what was begun when told to stop [default: 10]
    #[arg(long, value_name = "SECONDS", env = "PCFARM_GRACE")]
    grace: Option<u64>,
    /// Fate of programs when no server was heard of for a lease: other workstations may have their problems by then [default: stop]
    #[arg(long, value_enum, value_name = "WHAT", env = "PCFARM_AFTER_LEASE")]
    after_lease: Option<AfterLease>,
    /// Results that may wait for a server, with what they came of, before no more work is asked for [default: 64]
    #[arg(long, value_name = "MIB", env = "PCFARM_UNACKNOWLEDGED_MIB")]
    unacknowledged_mib: Option<usize>,
    /// A file with the token that lets this workstation into the farm, once; or PCFARM_JOIN_TOKEN is that token
    #[arg(long, value_name = "FILE", env = "PCFARM_JOIN_TOKEN_FILE")]
    join_token_file: Option<PathBuf>,
    /// An authority of servers' certificates, beside the farm's own: a PEM file
    #[arg(long, value_name = "FILE", env = "PCFARM_CA")]
    ca: Option<PathBuf>,
    /// Where programs work; each agent has a directory of its own in it
    #[cfg_attr(unix, doc = "[default: /var/cache/pcfarm-worker as root, else ~/.cache/pcfarm-worker]")]
    #[cfg_attr(windows, doc = r"[default: %LOCALAPPDATA%\pcfarm-worker\work]")]
    #[arg(long, value_name = "DIR", env = "PCFARM_WORK_DIR")]
    work_dir: Option<PathBuf>,
    /// Most that is kept there of files from the farm, modules for instance [default: 2048]
    #[arg(long, value_name = "MIB", env = "PCFARM_FILES_MIB")]
    files_mib: Option<u64>,
    /// Run modules that job types ship: WASI programs in a sandbox without files and network. A table [wasm] in the settings
    /// says so, too
    #[arg(long, env = "PCFARM_WASM", value_parser = clap::builder::FalseyValueParser::new())]
    wasm: bool,
    /// There is no person at this machine: it works at all times, whatever else goes on. Without this an agent works
    /// only while it knows that nobody is there
    #[arg(long, env = "PCFARM_UNATTENDED", value_parser = clap::builder::FalseyValueParser::new())]
    unattended: bool,
    /// Programs may use this machine's GPUs, and the farm is told of those that the agent may open
    #[arg(long, env = "PCFARM_GPU", value_parser = clap::builder::FalseyValueParser::new())]
    gpu: bool,
    /// Where people and their sessions' helpers reach it on this machine
    #[cfg_attr(
        unix,
        doc = "[default: /run/pcfarm-worker/agent.sock for a service of the system, else agent.sock in its state directory]"
    )]
    #[cfg_attr(
        windows,
        doc = r"[default: \\.\pipe\pcfarm-worker for a service of the system, else one by its person's name]"
    )]
    #[arg(long, value_name = "PATH", env = "PCFARM_WORKER_SOCKET")]
    socket: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

/// What a program was asked to do.
pub(crate) struct Asked {
    /// None: to run an agent.
    pub command: Option<Command>,
    pub settings: Result<Settings, SettingsError>,
    /// The file that they are from.
    #[cfg_attr(
        not(all(target_os = "linux", feature = "service")),
        allow(dead_code, reason = "for commands that services have")
    )]
    pub config: Option<PathBuf>,
}

impl Asked {
    /// Wrong usage, and `--help`, end the program.
    pub fn of_program() -> Asked {
        let mut flags = Flags::parse();
        let command = flags.command.take();
        // Whoever asks about the service of the system need not say which file it has.
        if command.as_ref().is_some_and(Command::is_about_the_service) && Path::new(SYSTEM_CONFIG).exists() {
            flags.config.get_or_insert_with(|| SYSTEM_CONFIG.into());
        }
        let config = flags.config.clone();
        Asked { command, settings: Settings::merge(flags), config }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSettings {
    server: Option<OneOrMany>,
    state_dir: Option<PathBuf>,
    cores: Option<usize>,
    hostname: Option<String>,
    label: Option<OneOrMany>,
    prefetch: Option<u32>,
    grace: Option<u64>,
    after_lease: Option<AfterLease>,
    unacknowledged_mib: Option<usize>,
    join_token_file: Option<PathBuf>,
    ca: Option<PathBuf>,
    work_dir: Option<PathBuf>,
    files_mib: Option<u64>,
    #[cfg(feature = "wasm")]
    wasm: Option<WasmSettings>,
    #[cfg(not(feature = "wasm"))]
    wasm: Option<serde::de::IgnoredAny>,
    unattended: Option<bool>,
    gpu: Option<bool>,
    socket: Option<PathBuf>,
    #[serde(default)]
    presence: presence::FileSettings,
    #[serde(default)]
    sleep: sleep::FileSettings,
    #[serde(default)]
    hide: Vec<PathBuf>,
    #[cfg(target_os = "linux")]
    #[serde(default)]
    program: Vec<ProgramSettings>,
    #[cfg(not(target_os = "linux"))]
    program: Option<serde::de::IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl Settings {
    /// From this program's arguments, environment and file. Wrong usage, and `--help`, end the program.
    pub fn from_program() -> Result<Settings, SettingsError> {
        Settings::merge(Flags::parse())
    }

    /// From the text of a file alone, as a service of the system has it.
    #[cfg(all(target_os = "linux", feature = "service"))]
    pub(crate) fn of_service(path: &Path, text: &str) -> Result<Settings, SettingsError> {
        let mut file = parse(path, text)?;
        file.state_dir.get_or_insert_with(|| platform::SYSTEM_STATE_DIR.into());
        file.work_dir.get_or_insert_with(|| platform::SYSTEM_WORK_DIR.into());
        Settings::over(Flags { config: Some(path.to_owned()), ..Flags::default() }, file)
    }

    /// As [`Settings::from_program`], from these arguments (the program's name first).
    pub fn from_arguments<A: Into<OsString> + Clone>(arguments: &[A]) -> Result<Settings, anyhow::Error> {
        Ok(Settings::merge(Flags::try_parse_from(arguments.iter().cloned())?)?)
    }

    fn merge(flags: Flags) -> Result<Settings, SettingsError> {
        let file = flags.config.as_deref().map(read_file).transpose()?.unwrap_or_default();
        Settings::over(flags, file)
    }

    fn over(flags: Flags, file: FileSettings) -> Result<Settings, SettingsError> {
        #[cfg(not(target_os = "linux"))]
        if file.program.is_some() {
            return Err(SettingsError::NoPrograms);
        }
        if cfg!(not(feature = "wasm")) && (flags.wasm || file.wasm.is_some()) {
            return Err(WASM.into());
        }
        let default = Settings::default();
        let all = |given: Option<OneOrMany>, otherwise| match given {
            Some(OneOrMany::One(one)) => vec![one],
            Some(OneOrMany::Many(many)) => many,
            None => otherwise,
        };
        let file_servers = all(file.server, default.servers);
        let file_labels = all(file.label, default.labels);
        let unacknowledged = flags.unacknowledged_mib.or(file.unacknowledged_mib);
        let join_token_file = flags.join_token_file.or(file.join_token_file);
        let whole = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        let own_files = join_token_file.clone().into_iter().chain(flags.config).map(whole);
        let hide = file.hide.into_iter().chain(own_files).collect();
        let unattended = flags.unattended || file.unattended.unwrap_or(false);
        let sleep = file.sleep.checked()?;
        let mut presence = if unattended { presence::Settings::unattended() } else { default.presence };
        presence.may_be_woken = sleep.wake != Wake::Never;
        let owners_cores = flags.cores.or(file.cores);
        let cores = owners_cores.unwrap_or(default.cores);
        presence.cores = Cores::of(cores);
        let mut presence = file.presence.over(presence)?;
        presence.named.extend(owners_cores.map(|_| "cores"));
        let state_dir = flags.state_dir.or(file.state_dir).unwrap_or(default.state_dir);
        let settings = Settings {
            servers: if flags.server.is_empty() { file_servers } else { flags.server },
            cores,
            hostname: flags.hostname.or(file.hostname).unwrap_or(default.hostname),
            labels: if flags.label.is_empty() { file_labels } else { flags.label },
            prefetch: flags.prefetch.or(file.prefetch).unwrap_or(default.prefetch),
            grace: flags.grace.or(file.grace).map_or(default.grace, Duration::from_secs),
            after_lease: flags.after_lease.or(file.after_lease).unwrap_or(default.after_lease),
            unacknowledged_bytes: unacknowledged
                .map_or(default.unacknowledged_bytes, |mib| mib.saturating_mul(1 << 20)),
            join_token: join_token(join_token_file.as_deref(), is_known(&state_dir))?,
            join_token_file,
            state_dir,
            ca: flags.ca.or(file.ca),
            #[cfg(target_os = "linux")]
            programs: file.program,
            #[cfg(feature = "wasm")]
            wasm: file.wasm.or_else(|| flags.wasm.then(WasmSettings::default)),
            files_bytes: flags
                .files_mib
                .or(file.files_mib)
                .map_or(default.files_bytes, |mib| mib.saturating_mul(1 << 20)),
            work_dir: flags.work_dir.or(file.work_dir).unwrap_or(default.work_dir),
            gpu: flags.gpu || file.gpu.unwrap_or(false),
            hide,
            supervisor: None,
            presence,
            sleep,
            socket: flags.socket.or(file.socket),
        };
        settings.endpoints()?;
        #[cfg(target_os = "linux")]
        settings.checked_programs()?;
        #[cfg(feature = "wasm")]
        settings.wasm_limits()?;
        Ok(settings)
    }

    /// What modules may take, if they are run.
    #[cfg(feature = "wasm")]
    pub(crate) fn wasm_limits(&self) -> Result<Option<crate::wasm::settings::Limits>, WasmError> {
        self.wasm.as_ref().map(|wasm| wasm.limits(memory_bytes(), self.cores)).transpose()
    }

    /// The owner's programs, if all of them make sense for an agent that is this process's user.
    #[cfg(target_os = "linux")]
    pub(crate) fn checked_programs(&self) -> Result<Vec<crate::exec::settings::Program>, SettingsError> {
        self.programs_of(rustix::process::geteuid().is_root())
    }

    /// The same for an agent that is root, or is not.
    #[cfg(target_os = "linux")]
    pub(crate) fn programs_of(&self, is_root: bool) -> Result<Vec<crate::exec::settings::Program>, SettingsError> {
        let machine = crate::exec::settings::Machine { memory_bytes: memory_bytes(), cores: self.cores, is_root };
        if let Some(path) = self.hide.iter().find(|path| !path.is_absolute()) {
            return Err(SettingsError::Hide(path.clone()));
        }
        crate::exec::settings::check(&self.programs, &machine)
            .map_err(|(name, source)| SettingsError::Program { name, source })
    }

    pub(crate) fn credentials(&self, identity: Uuid) -> Credentials {
        Credentials::new(&self.state_dir, identity, &self.hostname, self.ca.as_deref())
    }

    /// The servers as the link wants them; checks the rest as well.
    pub(crate) fn endpoints(&self) -> Result<Vec<Endpoint>, SettingsError> {
        if self.cores == 0 {
            return Err(SettingsError::NoCores);
        }
        labels::check(&self.labels)?;
        let named = self.servers.iter().map(|server| server.trim()).filter(|server| !server.is_empty());
        let endpoints: Vec<Endpoint> = named.map(endpoint).collect::<Result<_, _>>()?;
        if endpoints.is_empty() {
            return Err(SettingsError::NoServer);
        }
        Ok(endpoints)
    }
}

/// Of this machine.
pub(crate) fn memory_bytes() -> u64 {
    let memory = sysinfo::RefreshKind::nothing().with_memory(sysinfo::MemoryRefreshKind::nothing().with_ram());
    sysinfo::System::new_with_specifics(memory).map_or(0, |system| system.total_memory())
}

/// Never in an argument, where every process of the machine reads it.
fn join_token(file: Option<&Path>, is_known: bool) -> Result<Option<JoinToken>, SettingsError> {
    let text = match file {
        Some(path) => match std::fs::read_to_string(path) {
            Ok(text) => text,
            // A token is for one use, and its file is often removed after it.
            Err(error) if is_known && error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(source) => return Err(SettingsError::JoinTokenFile { path: path.to_owned(), source }),
        },
        None => std::env::var("PCFARM_JOIN_TOKEN").unwrap_or_default(),
    };
    let text = text.trim();
    if text.is_empty() { Ok(None) } else { Ok(Some(text.parse()?)) }
}

/// True if an agent has used this state directory.
fn is_known(state_dir: &Path) -> bool {
    crate::state_dir::StateDir::peek(state_dir).is_ok_and(|identity| identity.is_some())
}

fn read_file(path: &Path) -> Result<FileSettings, SettingsError> {
    let text = std::fs::read_to_string(path);
    parse(path, &text.map_err(|source| SettingsError::Read { path: path.to_owned(), source })?)
}

fn parse(path: &Path, text: &str) -> Result<FileSettings, SettingsError> {
    toml::from_str(text).map_err(|source| SettingsError::Parse { path: path.to_owned(), source })
}

/// `farm:7070` is taken for `http://farm:7070`.
fn endpoint(server: &str) -> Result<Endpoint, SettingsError> {
    let wrong = |reason: String| SettingsError::Server { server: server.to_owned(), reason };
    let url = if server.contains("://") { server.to_owned() } else { format!("http://{server}") };
    let endpoint = Endpoint::from_shared(url).map_err(|error| wrong(format!("{:#}", anyhow::Error::from(error))))?;
    match (endpoint.uri().scheme_str(), endpoint.uri().host()) {
        (Some("http" | "https"), Some(host)) if !host.is_empty() => Ok(endpoint),
        (Some("http" | "https"), _) => Err(wrong("it has no host".to_owned())),
        (_, _) => Err(wrong("only http and https are spoken".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Settings, String> {
        let arguments = [&["worker"], arguments].concat();
        Settings::from_arguments(&arguments).map_err(|error| format!("{error:#}"))
    }

    #[cfg(not(feature = "wasm"))]
    #[test]
    fn settings_of_a_missing_feature_are_refused_with_its_name() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("worker.toml");
        std::fs::write(&file, "[wasm]\nmemory_mib = 64\n").expect("a file");
        for arguments in [["--wasm"].as_slice(), &["--config", file.to_str().expect("a path of text")]] {
            assert_eq!(parse(arguments).expect_err("refused"), WASM.to_string());
        }
    }

    #[test]
    fn flags_go_before_the_file_and_the_file_before_defaults() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("worker.toml");
        std::fs::write(&file, "server = [\"a:1\", \"b:2\"]\ncores = 3\ngrace = 7\nlabel = \"gpu\"\n").expect("a file");
        let file = file.to_str().expect("a path of text");

        let settings = parse(&["--config", file, "--cores", "5"]).expect("good settings");
        assert_eq!(settings.servers, ["a:1", "b:2"]);
        assert_eq!((settings.cores, settings.grace), (5, Duration::from_secs(7)));
        assert_eq!(settings.labels, ["gpu"]);
        assert!(parse(&["--label", "room=12,lab-a"]).is_ok());
        let refused = parse(&["--label", "two words"]).expect_err("no label");
        assert!(refused.contains("room=12"), "{refused}");
        assert_eq!(settings.prefetch, DEFAULT_PREFETCH);
        let settings = parse(&["--config", file, "--server", "c:3,d:4", "--server", "e:5"]).expect("good settings");
        assert_eq!(settings.servers, ["c:3", "d:4", "e:5"]);
    }

    #[test]
    fn wrong_settings_are_refused_with_their_reason() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("worker.toml");
        std::fs::write(&file, "coers = 3").expect("a file");
        for (arguments, expected) in [
            (vec!["--cores", "0"], "at least one core"),
            (vec!["--cores", "many"], "invalid value"),
            (vec!["--server", "ftp://farm:1"], "only http and https are spoken"),
            (vec!["--server", "http://"], "not the address of a server"),
            (vec!["--server", " , "], "no server"),
            (vec!["--config", "/nowhere/worker.toml"], "cannot read /nowhere/worker.toml"),
            (vec!["--config", file.to_str().expect("a path of text")], "unknown field `coers`"),
        ] {
            let error = parse(&arguments).expect_err(&format!("{arguments:?}"));
            assert!(error.contains(expected), "{arguments:?}: {error}");
        }
    }
}
