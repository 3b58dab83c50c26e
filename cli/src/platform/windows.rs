//! What Windows does otherwise than Linux and macOS. **Not yet tested.** `unix.rs` has the same surface.
//!
//! What is private here is what is in a person's own directories, which Windows closes to others.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use console::Term;
use tokio::signal::windows::{CtrlBreak, CtrlC, ctrl_break, ctrl_c};

/// Columns and rows of the terminal that is standard output, if it is one.
pub fn terminal_size() -> Option<(u16, u16)> {
    Term::stdout().size_checked().map(|(rows, columns)| (columns, rows))
}

/// A line from the terminal, which does not show it.
pub fn read_silently() -> Result<String> {
    Term::stderr().read_secure_line().context("reading the terminal")
}

pub fn machine_name() -> String {
    hostname::get().map_or_else(|_| "unknown".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Where a person's settings are.
pub fn configuration() -> Option<PathBuf> {
    std::env::var_os("APPDATA").map(PathBuf::from).filter(|path| path.is_absolute())
}

/// And those above it.
pub fn make_private_dir(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)
}

/// One that was not there.
pub fn create_private(file: &Path) -> io::Result<File> {
    File::options().write(true).create_new(true).open(file)
}

/// Files have the permissions of their directory.
pub fn make_ordinary(_: &mut tempfile::Builder<'_, '_>) {}

/// What tells a program to stop.
pub struct Stops {
    interrupt: CtrlC,
    also: CtrlBreak,
}

impl Stops {
    pub fn new() -> io::Result<Stops> {
        Ok(Stops { interrupt: ctrl_c()?, also: ctrl_break()? })
    }

    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.also.recv() => {}
        }
    }
}
