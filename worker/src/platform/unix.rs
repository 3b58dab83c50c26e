//! What Linux and macOS do in the same way, and Windows otherwise. `windows.rs` has the same surface.
//!
//! Owns places, permissions, signals, the socket on this machine, and what a service manager hears.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{Signal, SignalKind, signal};

pub const SYSTEM_STATE_DIR: &str = "/var/lib/pcfarm-worker";
pub const SYSTEM_WORK_DIR: &str = "/var/cache/pcfarm-worker";

/// Of an agent that is a service of the system.
pub const SYSTEM_CONFIG: &str = "/etc/pcfarm/worker.toml";

/// Where services of the system have their socket.
pub const SYSTEM_SOCKET: &str = "/run/pcfarm-worker/agent.sock";

const DIR_NAME: &str = "pcfarm-worker";
const SOCKET_FILE: &str = "agent.sock";

/// What puts a PC to sleep: on Linux by logind, which refuses while somebody has asked it not to.
pub const SLEEP_COMMAND: &[&str] = if cfg!(target_os = "macos") {
    &["pmset", "sleepnow"]
} else {
    &["systemctl", "suspend", "--check-inhibitors=yes"]
};

pub fn default_state_dir() -> PathBuf {
    default_dir("STATE_DIRECTORY", SYSTEM_STATE_DIR, "XDG_STATE_HOME", ".local/state")
}

/// Apart from the state, which programs must not see; and for root where other users may pass through.
pub fn default_work_dir() -> PathBuf {
    default_dir("CACHE_DIRECTORY", SYSTEM_WORK_DIR, "XDG_CACHE_HOME", ".cache")
}

fn default_dir(managers: &str, system: &str, variable: &str, in_home: &str) -> PathBuf {
    if let Some(made) = made_by_manager(managers) {
        return made;
    }
    if rustix::process::geteuid().is_root() {
        return system.into();
    }
    let from = |variable| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    from(variable)
        .or_else(|| from("HOME").map(|home| home.join(in_home)))
        .unwrap_or_else(std::env::temp_dir)
        .join(DIR_NAME)
}

/// A directory that a service manager has made for its service. It may have made several, which it separates by colons.
fn made_by_manager(variable: &str) -> Option<PathBuf> {
    let made = std::env::var(variable).unwrap_or_default();
    made.split(':').next().filter(|first| !first.is_empty()).map(PathBuf::from)
}

/// And those above it. What is in it is nobody else's business, credentials least of all. One that is there stays as it is.
pub fn make_private_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// A file that was not there. `everybody`: who may pass through its directory reads it.
pub fn create_new(path: &Path, everybody: bool) -> io::Result<File> {
    let mode = if everybody { 0o644 } else { 0o600 };
    File::options().write(true).create_new(true).mode(mode).open(path)
}

/// Programs of other users may pass through it, to what they know the name of.
pub fn let_pass(dir: &Path) -> io::Result<()> {
    fs::set_permissions(dir, Permissions::from_mode(0o711))
}

/// Nobody writes to it any more, and programs of other users read it.
pub fn seal(file: &Path) -> io::Result<()> {
    fs::set_permissions(file, Permissions::from_mode(0o444))
}

/// What was renamed in it stays so after a crash.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// What tells a program to stop.
pub struct Stops {
    terminate: Signal,
    interrupt: Signal,
}

impl Stops {
    pub fn new() -> io::Result<Stops> {
        Ok(Stops { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Whether a process can be replaced.
pub const REPLACES: bool = true;

/// Puts this program, anew, in the place of this process: all its threads end at once, whatever they do. It keeps its number, so
/// that nobody who watches it takes it for dead. Returns only why that could not be done.
pub fn replace_this_process(variable: &str, value: Option<&str>) -> io::Error {
    let this = if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() };
    let again = |this: PathBuf| {
        let mut arguments = std::env::args_os();
        let name: OsString = arguments.next().unwrap_or_default();
        let mut command = Command::new(this);
        match value {
            Some(value) => command.env(variable, value),
            None => command.env_remove(variable),
        };
        command.arg0(name).args(arguments).exec()
    };
    this.map_or_else(|error| error, again)
}

/// What a service manager hears.
pub mod manager {
    use super::{Duration, NotifyState, io};

    pub fn listens() -> bool {
        std::env::var_os("NOTIFY_SOCKET").is_some()
    }

    pub fn ready() -> io::Result<()> {
        sd_notify::notify(&[NotifyState::Ready])
    }

    pub fn beat() -> io::Result<()> {
        sd_notify::notify(&[NotifyState::Watchdog])
    }

    pub fn stopping(limit: Duration) -> io::Result<()> {
        let microseconds = u32::try_from(limit.as_micros()).unwrap_or(u32::MAX);
        sd_notify::notify(&[NotifyState::Stopping, NotifyState::ExtendTimeoutUsec(microseconds)])
    }

    /// Who is silent for longer is taken for hung; none: nobody minds.
    pub fn limit() -> Option<Duration> {
        sd_notify::watchdog_enabled()
    }
}

/// Those whom the agent tells apart by their number at its socket.
pub const CALLERS: &str = "user";

pub fn own_number() -> Option<u32> {
    Some(rustix::process::geteuid().as_raw())
}

/// One who may do anything with this agent: root, or its own user.
pub fn is_administrator(caller: u32) -> bool {
    caller == 0 || own_number() == Some(caller)
}

/// Where an agent with this state directory has its socket.
pub fn socket(state_dir: &Path) -> PathBuf {
    if let Some(directory) = made_by_manager("RUNTIME_DIRECTORY") {
        return directory.join(SOCKET_FILE);
    }
    if rustix::process::geteuid().is_root() && state_dir == Path::new(SYSTEM_STATE_DIR) {
        return SYSTEM_SOCKET.into();
    }
    state_dir.join(SOCKET_FILE)
}

/// The socket, which is gone when this is.
pub struct Listener {
    listener: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// In place of one that a killed agent has left. Never in place of one that lives.
    pub fn open(path: PathBuf) -> io::Result<Listener> {
        if std::os::unix::net::UnixStream::connect(&path).is_ok() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another agent has it"));
        }
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o666))?;
        Ok(Listener { listener, path })
    }

    /// The next who calls.
    pub async fn accept(&mut self) -> io::Result<UnixStream> {
        self.listener.accept().await.map(|(stream, _)| stream)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

pub type Stream = UnixStream;

/// Whether a problem's program is at the other end of it. Who has ended by now and cannot be known is taken for one.
#[cfg(target_os = "linux")]
pub fn is_of_program(stream: &Stream) -> bool {
    let peer = stream.peer_cred().ok().and_then(|peer| rustix::process::Pid::from_raw(peer.pid()?));
    peer.is_none_or(crate::exec::orphans::is_of_program)
}

/// Programs are run on Linux only.
#[cfg(not(target_os = "linux"))]
pub fn is_of_program(_stream: &Stream) -> bool {
    false
}

pub fn number_of(stream: &Stream) -> io::Result<u32> {
    stream.peer_cred().map(|peer| peer.uid())
}

/// The other end of it, for a program that does nothing else meanwhile.
pub type Connection = std::os::unix::net::UnixStream;

/// `wait`: for each answer, and for room to ask.
pub fn connect(socket: &Path, wait: Duration) -> io::Result<Connection> {
    let stream = Connection::connect(socket)?;
    stream.set_read_timeout(Some(wait))?;
    stream.set_write_timeout(Some(wait))?;
    Ok(stream)
}
