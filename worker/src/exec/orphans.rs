//! What a supervisor leaves behind that has itself been killed.
//!
//! Owns who the agent's supervisors are. An agent that is a process of its own is the subreaper above them: whoever loses a
//! supervisor becomes the agent's child, and is ended. What else the agent starts for a moment, it starts on its way to sleep, when
//! no program runs.

use std::collections::HashSet;
use std::io;
use std::process::{Child, Command, ExitStatus};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, getpid, set_child_subreaper};
use tracing::warn;

use crate::exec::tree;

/// How long the kernel may take to end what was killed.
const END_WAIT: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Known {
    supervisors: HashSet<Pid>,
    /// What loses its parent comes to this process.
    is_above: bool,
}

static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

/// Held while a supervisor is started, which is a stranger until it is known, and while strangers are ended.
static STRANGERS: Mutex<()> = Mutex::new(());

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn strangers() -> MutexGuard<'static, ()> {
    STRANGERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on whoever loses a supervisor comes to this process; and what has come to it before it replaced itself ends. For a
/// process that is an agent and nothing else.
pub fn adopt() -> io::Result<()> {
    set_child_subreaper(Some(getpid()))?;
    known().is_above = true;
    end();
    Ok(())
}

/// Starts a supervisor.
pub fn start(command: &mut Command) -> io::Result<Child> {
    let _nobody_ends_it = strangers();
    let child = command.spawn()?;
    known().supervisors.extend(pid_of(&child));
    Ok(child)
}

/// A supervisor has ended and was waited for. One that did not end by itself has left what it had.
pub fn ended(supervisor: &Child, status: Option<ExitStatus>) {
    if let Some(pid) = pid_of(supervisor) {
        known().supervisors.remove(&pid);
    }
    if !status.is_some_and(|status| status.success()) {
        end();
    }
}

/// Whether a process is one of a problem's: a supervisor, or what descends from one. While there are any, so is who has ended and
/// cannot be known any more.
pub fn is_of_program(pid: Pid) -> bool {
    let supervisors = known().supervisors.clone();
    !supervisors.is_empty()
        && (!tree::exists(pid) || tree::ancestors(pid).any(|ancestor| supervisors.contains(&ancestor)))
}

fn pid_of(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()).ok()?)
}

/// Ends who has come to this process, and theirs.
fn end() {
    let _nobody_is_new = strangers();
    let (supervisors, is_above) = {
        let known = known();
        (known.supervisors.clone(), known.is_above)
    };
    if is_above && !tree::end_children(getpid(), &supervisors, Instant::now() + END_WAIT) {
        warn!("what a program has left does not end: the kernel waits for something");
    }
}
