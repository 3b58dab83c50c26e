//! PostgreSQL's processes, for those who stop, freeze and kill them.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// The postmaster of a cluster.
pub fn postmaster(directory: &Path) -> anyhow::Result<Pid> {
    let path = directory.join("data/postmaster.pid");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let pid = text.lines().next().and_then(|line| line.trim().parse().ok()).and_then(Pid::from_raw);
    pid.with_context(|| format!("{} has no process id", path.display()))
}

/// Longest that a process takes to stand still once it was told to, on a busy machine.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Makes all of it stand still: the postmaster first, so that there are no new ones. Returns whom to wake; after an error nobody
/// has to.
pub fn freeze(directory: &Path) -> anyhow::Result<Vec<Pid>> {
    let mut told = Vec::new();
    match freeze_all(postmaster(directory)?, &mut told) {
        Ok(()) => Ok(told),
        Err(error) => {
            thaw(&told);
            Err(error)
        }
    }
}

/// Adds all who were told to.
fn freeze_all(postmaster: Pid, told: &mut Vec<Pid>) -> anyhow::Result<()> {
    let path = format!("/proc/{0}/task/{0}/children", postmaster.as_raw_nonzero());
    let mut more = vec![postmaster];
    // While some of them end, the list may leave out others.
    while !more.is_empty() {
        signal(&more, Signal::STOP);
        told.extend(&more);
        for pid in &more {
            stands_still(*pid)?;
        }
        let children = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        let children = children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
        more = children.filter(|pid| !told.contains(pid)).collect();
    }
    Ok(())
}

/// Waits for that: one that runs on another core goes on for a moment, and may start a process meanwhile.
fn stands_still(pid: Pid) -> anyhow::Result<()> {
    let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let deadline = Instant::now() + STOP_LIMIT;
    loop {
        // Who has ended stands still, too.
        let stat = std::fs::read_to_string(&path).unwrap_or_default();
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        if state.is_none_or(|state| "TtZX".contains(state)) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "process {pid:?} goes on after SIGSTOP");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn thaw(processes: &[Pid]) {
    signal(processes, Signal::CONT);
}

/// To whoever is still there: backends come and go.
pub fn signal(processes: &[Pid], signal: Signal) {
    for pid in processes {
        let _ = kill_process(*pid, signal);
    }
}

/// Waits until a process is gone. Not a zombie: its parent has to look.
pub async fn gone(pid: Pid, within: Duration) -> bool {
    let deadline = Instant::now() + within;
    while test_kill_process(pid).is_ok() {
        if Instant::now() > deadline {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    true
}
