//! PostgreSQL's processes, for those who stop, freeze and kill them.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// The postmaster of a cluster.
pub fn postmaster(directory: &Path) -> anyhow::Result<Pid> {
    let path = directory.join("data/postmaster.pid");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let pid = text.lines().next().and_then(|line| line.trim().parse().ok()).and_then(Pid::from_raw);
    pid.with_context(|| format!("{} has no process id", path.display()))
}

/// Makes all of it stand still: the postmaster first, so that there are no new ones. Returns whom to wake.
pub fn freeze(directory: &Path) -> anyhow::Result<Vec<Pid>> {
    let postmaster = postmaster(directory)?;
    signal(&[postmaster], Signal::STOP);
    let path = format!("/proc/{0}/task/{0}/children", postmaster.as_raw_nonzero());
    let children = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let children = children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
    let all: Vec<Pid> = std::iter::once(postmaster).chain(children).collect();
    signal(&all, Signal::STOP);
    Ok(all)
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
