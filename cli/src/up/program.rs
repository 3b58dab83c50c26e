//! One program that `pcfarm up` has started: its log, its end, and ending it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use super::Stops;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::text;

/// How much of a log's end is shown when its program fails.
const TAIL_BYTES: u64 = 4 << 10;
const TAIL_LINES: usize = 12;

/// A killed program is gone at once, unless the kernel holds it.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

pub struct Program {
    name: String,
    command: Command,
    log: PathBuf,
    child: Option<Child>,
}

impl Program {
    pub fn new(name: &str, binary: &Path, log: &Path) -> Program {
        Program { name: name.to_owned(), command: Command::new(binary), log: log.to_owned(), child: None }
    }

    pub fn arg(&mut self, arg: impl AsRef<OsStr>) -> &mut Program {
        self.command.arg(arg);
        self
    }

    /// In a process group of its own: a terminal's Ctrl-C must reach us alone, or the order of stopping is lost.
    pub fn start(&mut self) -> Result<()> {
        let starting = || format!("starting {}", self.name);
        let log = File::options().create(true).append(true).open(&self.log);
        let log = log.with_context(|| format!("opening {}", self.log.display()))?;
        self.command
            .stdin(Stdio::null())
            .stdout(log.try_clone().with_context(starting)?)
            .stderr(log)
            .process_group(0)
            .kill_on_drop(true);
        self.child = Some(self.command.spawn().with_context(starting)?);
        Ok(())
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Waits for its end. Cancel-safe.
    pub async fn ended(&mut self) -> Result<ExitStatus> {
        match &mut self.child {
            Some(child) => child.wait().await.with_context(|| format!("waiting for {}", self.name)),
            None => std::future::pending().await,
        }
    }

    pub fn has_ended(&mut self) -> Result<Option<ExitStatus>> {
        match &mut self.child {
            Some(child) => child.try_wait().with_context(|| format!("waiting for {}", self.name)),
            None => Ok(None),
        }
    }

    /// Why it ended by itself, in its own last words.
    pub fn failure(&self, status: ExitStatus) -> anyhow::Error {
        let words = tail(&self.log).unwrap_or_default();
        let log = self.log.display();
        let exit = match status.code() {
            Some(3) => Exit::NotReachable,
            Some(5) => Exit::NotAllowed,
            _ => Exit::Failed,
        };
        Failure::of(exit, format!("the {} ended ({status}). Its log is {log}, and ends:\n{words}", self.name))
    }

    pub fn terminate(&self) {
        // An id is gone only after we have waited for it, so it cannot be another process's by now.
        let pid = self.child.as_ref().and_then(Child::id).and_then(|pid| Pid::from_raw(pid.cast_signed()));
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::TERM); // it may have ended meanwhile
        }
    }

    /// Until the deadline or an impatient signal; then it is killed.
    pub async fn wait_or_kill(&mut self, deadline: Instant, stops: &mut Stops) {
        let Some(child) = &mut self.child else { return };
        tokio::select! {
            _ = child.wait() => return,
            () = tokio::time::sleep_until(deadline.into()) => {
                output::note(&format!("warning: the {} does not stop; killing it", self.name));
            }
            () = stops.next() => {}
        }
        let _ = child.start_kill(); // it may have ended meanwhile
        let _ = tokio::time::timeout(KILL_TIMEOUT, child.wait()).await;
    }
}

/// Beside this program, where a package puts them, else where a shell would look.
pub fn find(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().and_then(Path::parent).map(|directory| directory.join(name));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|directory| directory.join(name));
    beside.into_iter().chain(on_path).find(|candidate| is_program(candidate)).ok_or_else(|| {
        Failure::of(
            Exit::NotFound,
            format!("{name} is neither beside this program nor on PATH: install it, or build the workspace"),
        )
    })
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

fn tail(log: &Path) -> io::Result<String> {
    let mut file = File::open(log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let words = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = words.lines().collect();
    let last = &lines[lines.len().saturating_sub(TAIL_LINES)..];
    Ok(text::plain_lines(&last.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_are_few_and_harmless() -> Result<()> {
        let log = tempfile::NamedTempFile::new()?;
        let words: String = (0..1_000).map(|i| format!("line {i}\u{1b}\n")).collect();
        fs::write(log.path(), words)?;
        let last = tail(log.path())?;
        assert_eq!(last.lines().count(), TAIL_LINES);
        assert!(last.ends_with("line 999\\u{1b}"), "{last}");
        Ok(())
    }
}
