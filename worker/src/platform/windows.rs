//! What Windows does otherwise than Linux and macOS. **Not yet tested.** `unix.rs` has the same surface.
//!
//! Owns places, what tells a program to stop, and the pipe on this machine. Permissions are those of the directories: a service's are
//! closed by its installation, and a person's own are closed by Windows.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcfarm_native::windows::{own_session, pipe};
use tokio::net::windows::named_pipe::NamedPipeServer;
use tokio::signal::windows::{
    CtrlBreak, CtrlC, CtrlClose, CtrlShutdown, ctrl_break, ctrl_c, ctrl_close, ctrl_shutdown,
};
use tokio::sync::Notify;

pub const SYSTEM_STATE_DIR: &str = r"C:\ProgramData\PC Farm\worker\state";
pub const SYSTEM_WORK_DIR: &str = r"C:\ProgramData\PC Farm\worker\work";

/// Of an agent that is a service of the system.
pub const SYSTEM_CONFIG: &str = r"C:\ProgramData\PC Farm\worker.toml";

/// Where services of the system have their pipe.
pub const SYSTEM_SOCKET: &str = r"\\.\pipe\pcfarm-worker";

const DIR_NAME: &str = "pcfarm-worker";

/// What puts a PC to sleep, as far as its settings let it: where hibernation is on, it hibernates.
pub const SLEEP_COMMAND: &[&str] = &["rundll32.exe", "powrprof.dll,SetSuspendState", "0,1,0"];

pub fn default_state_dir() -> PathBuf {
    of_this_person("state")
}

pub fn default_work_dir() -> PathBuf {
    of_this_person("work")
}

/// Closed to others by Windows. A service is told its own.
fn of_this_person(name: &str) -> PathBuf {
    let local = std::env::var_os("LOCALAPPDATA").filter(|value| !value.is_empty()).map(PathBuf::from);
    local.unwrap_or_else(std::env::temp_dir).join(DIR_NAME).join(name)
}

/// And those above it. Who may look into it is what the directory above it says.
pub fn make_private_dir(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)
}

/// A file that was not there. Who reads it is what its directory says.
pub fn create_new(path: &Path, _everybody: bool) -> io::Result<File> {
    File::options().write(true).create_new(true).open(path)
}

/// There are no programs of other users here.
pub fn let_pass(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Not read-only: such files cannot be removed.
pub fn seal(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Directories cannot be synced; NTFS keeps the order of its names.
pub fn sync_dir(_: &Path) -> io::Result<()> {
    Ok(())
}

/// The word of the service manager, which comes on a thread of its own.
static SERVICE_STOPS: Notify = Notify::const_new();

/// The service that this process is shall end.
pub fn stop_service() {
    SERVICE_STOPS.notify_one();
}

/// What tells a program to stop.
pub struct Stops {
    interrupt: CtrlC,
    also: CtrlBreak,
    close: CtrlClose,
    shutdown: CtrlShutdown,
}

impl Stops {
    pub fn new() -> io::Result<Stops> {
        Ok(Stops { interrupt: ctrl_c()?, also: ctrl_break()?, close: ctrl_close()?, shutdown: ctrl_shutdown()? })
    }

    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.also.recv() => {}
            _ = self.close.recv() => {}
            _ = self.shutdown.recv() => {}
            () = SERVICE_STOPS.notified() => {}
        }
    }
}

/// Whether a process can be replaced.
pub const REPLACES: bool = false;

/// Another process cannot take the place of this one here: it ends, with all its threads, and its service manager starts the next.
pub fn replace_this_process(_variable: &str, _value: Option<&str>) -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "on Windows no process takes another's place: this one ends, and the service manager starts the next",
    )
}

/// What a service manager hears: here it is told by the service's own thread, and minds no watchdog.
pub mod manager {
    use super::{Duration, io};

    pub fn listens() -> bool {
        false
    }

    pub fn ready() -> io::Result<()> {
        Ok(())
    }

    pub fn beat() -> io::Result<()> {
        Ok(())
    }

    pub fn stopping(_: Duration) -> io::Result<()> {
        Ok(())
    }

    pub fn limit() -> Option<Duration> {
        None
    }
}

/// Those whom the agent tells apart by their number at its pipe.
pub const CALLERS: &str = "session";

/// A service's session has nobody: nothing that is said to it comes from its own.
pub fn own_number() -> Option<u32> {
    own_session().ok().filter(|session| *session != 0)
}

/// Sessions do not say who is an administrator: the agent's own session is.
pub fn is_administrator(caller: u32) -> bool {
    own_number() == Some(caller)
}

/// Where an agent with this state directory has its pipe.
pub fn socket(state_dir: &Path) -> PathBuf {
    if state_dir == Path::new(SYSTEM_STATE_DIR) {
        return SYSTEM_SOCKET.into();
    }
    let person = std::env::var("USERNAME").unwrap_or_default();
    format!("{SYSTEM_SOCKET}-{}", person.replace(['\\', '/'], "-")).into()
}

/// The pipe.
pub struct Listener {
    path: PathBuf,
    next: NamedPipeServer,
}

impl Listener {
    /// Never in place of one that lives.
    pub fn open(path: PathBuf) -> io::Result<Listener> {
        let next = pipe::listen(path.as_os_str(), true)?;
        Ok(Listener { path, next })
    }

    /// The next who calls.
    pub async fn accept(&mut self) -> io::Result<NamedPipeServer> {
        // Who has gone before it was its turn leaves an end that somebody else can have.
        self.next.connect().await.inspect_err(|_| drop(self.next.disconnect()))?;
        // Before this one is served: a pipe without an end to connect to is not there.
        let next = pipe::listen(self.path.as_os_str(), false)?;
        Ok(std::mem::replace(&mut self.next, next))
    }
}

pub type Stream = NamedPipeServer;

/// Programs are run on Linux only.
pub fn is_of_program(_stream: &Stream) -> bool {
    false
}

pub fn number_of(stream: &Stream) -> io::Result<u32> {
    pipe::session_of_client(stream)
}

/// The other end of it, for a program that does nothing else meanwhile.
pub type Connection = File;

/// Pipes that are files know no limit: an agent that has hung is waited for.
pub fn connect(socket: &Path, _wait: Duration) -> io::Result<Connection> {
    pipe::connect(socket)
}
