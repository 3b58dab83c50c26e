//! What processes use: time on the cores and memory, of one program or of all whose parent it is.

use std::time::Duration;
use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};

/// Time on the cores and resident memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub cpu: Duration,
    pub memory_bytes: u64,
}

/// Of one process.
pub fn of(pid: u32) -> Usage {
    let Ok(mut system) = System::new() else { return Usage::default() };
    let pid = Pid::from_u32(pid);
    refresh(&mut system, ProcessesToUpdate::Some(&[pid]));
    system.process(pid).map_or_else(Usage::default, usage)
}

/// Of a process and its children, such as PostgreSQL's; those that have ended are forgotten.
pub fn of_family(pid: u32) -> Usage {
    let Ok(mut system) = System::new() else { return Usage::default() };
    refresh(&mut system, ProcessesToUpdate::All);
    let pid = Pid::from_u32(pid);
    let family = system.processes().values().filter(|p| p.pid() == pid || p.parent() == Some(pid));
    family
        .filter(|p| p.thread_kind().is_none())
        .map(usage)
        .fold(Usage::default(), |a, b| Usage { cpu: a.cpu + b.cpu, memory_bytes: a.memory_bytes + b.memory_bytes })
}

/// Memory that a process has for itself: a backend's resident memory counts every shared buffer that it has touched. Only
/// Linux tells.
pub fn private_bytes(pid: u32) -> Option<u64> {
    status_bytes(pid, "RssAnon:")
}

/// The most resident memory that a process has had. Only Linux tells.
pub fn peak_bytes(pid: u32) -> Option<u64> {
    status_bytes(pid, "VmHWM:")
}

fn status_bytes(pid: u32, field: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

fn refresh(system: &mut System, which: ProcessesToUpdate<'_>) {
    system.refresh_processes_specifics(which, true, ProcessRefreshKind::nothing().with_cpu().with_memory());
}

fn usage(process: &sysinfo::Process) -> Usage {
    Usage { cpu: Duration::from_millis(process.accumulated_cpu_time()), memory_bytes: process.memory() }
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_process_has_used_something() {
        let usage = super::of(std::process::id());
        assert!(usage.memory_bytes > 1 << 20, "{usage:?}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_it_has_had_at_most_is_no_less_than_what_it_has() {
        let pid = std::process::id();
        let (private, peak) = (super::private_bytes(pid), super::peak_bytes(pid));
        assert!(private > Some(0) && peak >= private, "{private:?} {peak:?}");
    }
}
