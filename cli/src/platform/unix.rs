//! What Linux and macOS do in the same way, and Windows otherwise. `windows.rs` has the same surface.

use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Columns and rows of the terminal that is standard output, if it is one. A terminal may say 0.
pub fn terminal_size() -> Option<(u16, u16)> {
    tcgetwinsize(io::stdout()).ok().map(|size| (size.ws_col, size.ws_row))
}

/// A line from the terminal, which does not show it.
pub fn read_silently() -> Result<String> {
    let stdin = io::stdin();
    let before = tcgetattr(&stdin).context("asking the terminal")?;
    let mut silent = before.clone();
    silent.local_modes.remove(LocalModes::ECHO);
    tcsetattr(&stdin, OptionalActions::Flush, &silent).context("silencing the terminal")?;
    let mut line = String::new();
    let read = stdin.read_line(&mut line);
    tcsetattr(&stdin, OptionalActions::Flush, &before).context("letting the terminal speak again")?;
    read.context("reading the terminal")?;
    Ok(line)
}

pub fn machine_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Where a person's settings are.
pub fn configuration() -> Option<PathBuf> {
    let configured = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".config"));
    configured.filter(|path| path.is_absolute()).or(home)
}

/// And those above it.
pub fn make_private_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// One that was not there, and that nobody else reads.
pub fn create_private(file: &Path) -> io::Result<File> {
    File::options().write(true).create_new(true).mode(0o600).open(file)
}

/// The mode of a file made in the ordinary way: the process's umask is taken off.
pub fn make_ordinary(builder: &mut tempfile::Builder<'_, '_>) {
    builder.permissions(Permissions::from_mode(0o666));
}

/// What tells a program to stop.
pub struct Stops {
    interrupt: Signal,
    terminate: Signal,
}

impl Stops {
    pub fn new() -> io::Result<Stops> {
        Ok(Stops { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
