//! Finding, stopping and ending all that descends from a process.
//!
//! Owns what is known of other processes, by `/proc`. Its root must be the subreaper of its descendants: what loses its parent
//! then becomes the root's child instead of getting lost, in whatever session or group it is.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};

use crate::fed::failure::Exit;

/// How long the kernel may take to end what was killed: longer only in an uninterruptible wait for a device.
const END_WAIT: Duration = Duration::from_secs(10);

/// How long all of it may take to stop: longer only if it multiplies.
const STOP_WAIT: Duration = Duration::from_secs(2);

const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// So many processes are no bomb.
const RESTFUL: u32 = 16;

/// A process as `/proc/PID/stat` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    pid: Pid,
    parent: Option<Pid>,
    is_zombie: bool,
    /// By a signal, or by whoever traces it.
    is_stopped: bool,
    /// In a wait that no signal ends: it does not run, and stops when that is over.
    is_stuck: bool,
}

/// What a tree takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub processes: u32,
    pub memory_bytes: u64,
}

/// Tells of the children of this process that have ended. True if it has no others.
pub fn reap(mut ended: impl FnMut(Pid, Exit)) -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => {
                if let Some(code) = status.exit_status() {
                    ended(pid, Exit::Code(code));
                } else if let Some(signal) = status.terminating_signal() {
                    ended(pid, Exit::Signal(signal));
                }
            }
            Ok(None) => return false,
            Err(Errno::INTR) => {}
            Err(_) => return true,
        }
    }
}

/// Ends all that descends from this process, and reaps it. False if something is left after a while.
///
/// What was killed starts nothing more, so that each look finds fewer: those who were started behind the look's back. A look that
/// finds nobody proves nothing, since who forks and exits all the time is never where it looks. That there are no children does:
/// whoever descends from here has an ancestor that is a child, or is one.
pub fn end(root: Pid, mut reaped: impl FnMut(Pid, Exit)) -> bool {
    let deadline = Instant::now() + END_WAIT;
    let mut pause = Duration::from_micros(200);
    while !reap(&mut reaped) {
        let mut found = 0;
        each_descendant(root, |process| {
            if !process.is_zombie {
                found += 1;
                // It may have ended meanwhile.
                let _ = kill_process(process.pid, Signal::KILL);
            }
        });
        if Instant::now() >= deadline {
            return false;
        }
        // Many are found quicker than they multiply only if nobody rests.
        if found <= RESTFUL {
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
    true
}

/// Stops all that descends from this process, and returns what ran until then. What is stopped starts nothing more, so that looks
/// find fewer and fewer, as in [`end`].
pub fn stop(root: Pid) -> HashSet<Pid> {
    let deadline = Instant::now() + STOP_WAIT;
    let mut stopped = HashSet::new();
    let mut pause = Duration::from_micros(200);
    loop {
        let mut running = 0;
        each_descendant(root, |process| {
            let waits = process.is_stuck && stopped.contains(&process.pid);
            if process.is_zombie || process.is_stopped || waits {
                return;
            }
            running += 1;
            // It may have ended meanwhile.
            if kill_process(process.pid, Signal::STOP).is_ok() {
                stopped.insert(process.pid);
            }
        });
        if running == 0 || Instant::now() >= deadline {
            return stopped;
        }
        if running <= RESTFUL {
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Lets go on what [`stop`] has stopped, as long as nobody has reaped any of it.
pub fn go_on(stopped: &HashSet<Pid>) {
    for process in stopped {
        // It may have been killed.
        let _ = kill_process(*process, Signal::CONT);
    }
}

/// How many there are, and the memory that is theirs alone: what they have mapped and others have, too, counts once.
pub fn usage(root: Pid) -> Usage {
    let mut usage = Usage::default();
    let mut most_shared = 0;
    each_descendant(root, |process| {
        if process.is_zombie {
            return;
        }
        usage.processes += 1;
        let memory = memory(process.pid);
        usage.memory_bytes += memory.own_bytes;
        most_shared = most_shared.max(memory.shared_bytes);
    });
    usage.memory_bytes += most_shared;
    usage
}

/// Processes and threads of a user, on the whole machine.
pub fn tasks_of_user(uid: u32) -> u64 {
    let of = |entry: fs::DirEntry| {
        entry.file_name().to_str()?.parse::<i32>().ok()?;
        let status = fs::read_to_string(entry.path().join("status")).ok()?;
        (number(&status, "Uid:") == u64::from(uid)).then(|| number(&status, "Threads:"))
    };
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(of).sum()
}

/// The memory by what each process has in proportion, which is exact and takes the kernel long for large ones.
pub fn exact_memory(root: Pid) -> Option<u64> {
    let mut total = 0;
    let mut all = true;
    each_descendant(root, |process| {
        match fs::read_to_string(format!("/proc/{process}/smaps_rollup", process = process.pid.as_raw_nonzero())) {
            Ok(text) => total += number(&text, "Pss_Anon:") + number(&text, "Pss_Shmem:"),
            // It has ended, or nobody may look.
            Err(_) => all &= process.is_zombie,
        }
    });
    all.then_some(total << 10)
}

/// In the order in which they were started, mostly, so that a parent is known before its children; whose parent is not known
/// yet is found by the next look, as its parent is killed and it becomes the root's child.
fn each_descendant(root: Pid, mut with: impl FnMut(Stat)) {
    let mut family = HashSet::from([root]);
    let mut others = Vec::new();
    let Ok(entries) = fs::read_dir("/proc") else { return };
    for entry in entries.flatten() {
        let Some(process) = stat(&entry.path()) else { continue };
        if process.parent.is_some_and(|parent| family.contains(&parent)) {
            family.insert(process.pid);
            with(process);
        } else {
            others.push(process);
        }
    }
    // Numbers start over when they have run out.
    loop {
        let before = others.len();
        others.retain(|process| {
            let is_one = process.parent.is_some_and(|parent| family.contains(&parent));
            if is_one {
                family.insert(process.pid);
                with(*process);
            }
            !is_one
        });
        if others.len() == before {
            return;
        }
    }
}

fn stat(dir: &Path) -> Option<Stat> {
    dir.file_name()?.to_str()?.parse::<i32>().ok()?;
    parse_stat(&fs::read(dir.join("stat")).ok()?)
}

/// The name, in parentheses, may contain anything: what follows it is behind the last of them.
fn parse_stat(line: &[u8]) -> Option<Stat> {
    let text = String::from_utf8_lossy(line);
    let (pid, _) = text.split_once(' ')?;
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    Some(Stat {
        pid: Pid::from_raw(pid.parse().ok()?)?,
        parent: Pid::from_raw(parent),
        is_zombie: matches!(state, "Z" | "X"),
        is_stopped: matches!(state, "T" | "t"),
        is_stuck: state == "D",
    })
}

#[derive(Default)]
struct Memory {
    own_bytes: u64,
    shared_bytes: u64,
}

fn memory(pid: Pid) -> Memory {
    let text = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap_or_default();
    Memory { own_bytes: number(&text, "RssAnon:") << 10, shared_bytes: number(&text, "RssShmem:") << 10 }
}

fn number(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_understood_whatever_its_name() {
        let line = b"4242 (evil) S 1 (x\n) Z 17 4242 4242 0 -1 4194304";
        let expected = Stat {
            pid: Pid::from_raw(4242).expect("a number"),
            parent: Pid::from_raw(17),
            is_zombie: true,
            is_stopped: false,
            is_stuck: false,
        };
        assert_eq!(parse_stat(line), Some(expected));
        assert!(parse_stat(b"7 (x) T 1 7 7").is_some_and(|stopped| stopped.is_stopped && !stopped.is_zombie));
        for wrong in [&b""[..], b"x (y) S 1", b"1 (y) S", b"1 y S 1", b"0 (y) S 1"] {
            assert_eq!(parse_stat(wrong), None);
        }
    }

    #[test]
    fn numbers_are_found_by_their_names() {
        let status = "VmRSS:\t  900 kB\nRssAnon:\t     132 kB\nRssShmem:\t       0 kB\n";
        assert_eq!((number(status, "RssAnon:"), number(status, "RssShmem:"), number(status, "Nothing:")), (132, 0, 0));
    }
}
