//! Finding, stopping and ending all that descends from a process.
//!
//! Owns what is known of other processes, by `/proc`. Its root must be the subreaper of its descendants: what loses its parent
//! then becomes the root's child instead of getting lost, in whatever session or group it is.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, FsWord};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait, waitpid};

use crate::exec::space;
use crate::fed::failure::Exit;

/// How long the kernel may take to end what was killed: longer only in an uninterruptible wait for a device.
const END_WAIT: Duration = Duration::from_secs(10);

/// How long all of it may take to stop: longer only if it multiplies.
const STOP_WAIT: Duration = Duration::from_secs(2);

const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// So many processes are no bomb.
const RESTFUL: u32 = 16;

/// More than any program may start; numbers that are used again could make a ring.
const ANCESTORS_LIMIT: usize = 100_000;

/// Kinds of file systems that are memory: tmpfs, which memfds are in, and huge pages. From linux/magic.h.
const IN_MEMORY: [FsWord; 2] = [0x0102_1994, 0x9584_58f6];

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
#[derive(Debug, Default)]
pub struct Usage {
    pub processes: u32,
    /// At most: what several have mapped counts for each.
    pub most_memory_bytes: u64,
    /// Files without a name on a disk.
    pub disk_bytes: u64,
    /// Files without a name in memory, by device and inode, and their bytes.
    nameless: HashMap<(u64, u64), u64>,
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

/// Ends the children of this process but for some, and all that descends from them, and reaps them. False if something is left at
/// the deadline. This process must be a subreaper.
pub fn end_children(of: Pid, but: &HashSet<Pid>, deadline: Instant) -> bool {
    let mut pause = Duration::from_micros(200);
    loop {
        let mut found = 0;
        for child in children(of).into_iter().filter(|child| !but.contains(child)) {
            found += 1;
            // What descends from it is a child, too, as soon as it has ended.
            let _ = kill_process(child, Signal::KILL);
            let _ = waitpid(Some(child), WaitOptions::NOHANG);
        }
        if found == 0 || Instant::now() >= deadline {
            return found == 0;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn children(of: Pid) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| stat(&entry.path()));
    processes.filter(|process| process.parent == Some(of)).map(|process| process.pid).collect()
}

pub fn exists(pid: Pid) -> bool {
    stat_of(pid).is_some()
}

/// A process and those above it, as long as they live.
pub fn ancestors(pid: Pid) -> impl Iterator<Item = Pid> {
    std::iter::successors(Some(pid), |&pid| stat_of(pid)?.parent).take(ANCESTORS_LIMIT)
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

/// How many there are, and what they take. Files that have no name any more, or never had one, are found by who has them open.
pub fn usage(root: Pid) -> Usage {
    let mut usage = Usage::default();
    let mut on_disk = HashMap::new();
    each_descendant(root, |process| {
        if process.is_zombie {
            return;
        }
        usage.processes += 1;
        usage.most_memory_bytes += most_memory(process.pid);
        nameless(process.pid, &mut usage.nameless, &mut on_disk);
    });
    usage.disk_bytes = on_disk.values().sum();
    usage.most_memory_bytes += usage.nameless.values().sum::<u64>();
    usage
}

/// Files that a process has open and nobody can name: those in memory, and those on a disk. Whoever cannot be looked into, since
/// it has forbidden that, has none.
fn nameless(pid: Pid, in_memory: &mut HashMap<(u64, u64), u64>, on_disk: &mut HashMap<(u64, u64), u64>) {
    let descriptors = format!("/proc/{}/fd", pid.as_raw_nonzero());
    for entry in fs::read_dir(descriptors).into_iter().flatten().flatten() {
        let path = entry.path();
        // What is behind the link, whatever the link says.
        let Ok(stat) = rustix::fs::stat(&path) else { continue };
        if stat.st_nlink > 0 || !FileType::from_raw_mode(stat.st_mode).is_file() {
            continue;
        }
        let is_in_memory = rustix::fs::statfs(&path).is_ok_and(|system| IN_MEMORY.contains(&system.f_type));
        let files = if is_in_memory { &mut *in_memory } else { &mut *on_disk };
        files.insert((stat.st_dev, stat.st_ino), space::on_disk(&stat));
    }
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

impl Usage {
    /// The memory by what each process has in proportion, and files in memory as a whole, which is exact and takes the kernel long for
    /// large ones. Of a process that has forbidden to be looked into, all that it shares counts as its own.
    pub fn exact_memory(&self, root: Pid) -> u64 {
        let mut total = 0;
        each_descendant(root, |process| {
            let read = |what| fs::read_to_string(format!("/proc/{}/{what}", process.pid.as_raw_nonzero()));
            match read("smaps_rollup") {
                Ok(text) => {
                    let kib: u64 = ["Pss_Anon:", "Pss_Shmem:", "SwapPss:"].map(|name| number(&text, name)).iter().sum();
                    total += kib << 10;
                }
                // Nothing, if it has ended.
                Err(_) => total += most_memory(process.pid),
            }
            if !self.nameless.is_empty() {
                // These count below, as a whole.
                total = total.saturating_sub(read("smaps").map_or(0, |text| shared_of(&text, &self.nameless)) << 10);
            }
        });
        total + self.nameless.values().sum::<u64>()
    }
}

/// KiB that mappings of these files share, in proportion, by `/proc/PID/smaps`.
fn shared_of(smaps: &str, files: &HashMap<(u64, u64), u64>) -> u64 {
    let mut is_one = false;
    let mut total = 0_u64;
    let kib = |rest: &str| rest.split_ascii_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0);
    for line in smaps.lines() {
        if let Some(rest) = line.strip_prefix("Pss:").filter(|_| is_one) {
            total += kib(rest);
        } else if let Some(rest) = line.strip_prefix("Anonymous:").filter(|_| is_one) {
            // Copies of its own.
            total = total.saturating_sub(kib(rest));
        } else if let Some(file) = mapped(line) {
            is_one = files.contains_key(&file);
        }
    }
    total
}

/// The device and inode in the first line of a mapping: `55a0-55b0 rw-s 00000000 00:01 1042 /memfd:x (deleted)`.
fn mapped(line: &str) -> Option<(u64, u64)> {
    let mut fields = line.split_ascii_whitespace();
    let (_, device, inode) = (fields.next()?.split_once('-')?, fields.nth(2)?, fields.next()?);
    let (major, minor) = device.split_once(':')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    Some((rustix::fs::makedev(number(major)?, number(minor)?), inode.parse().ok()?))
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

fn stat_of(pid: Pid) -> Option<Stat> {
    stat(Path::new(&format!("/proc/{}", pid.as_raw_nonzero())))
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

/// What a process has, and all that it shares: what everybody may read.
fn most_memory(pid: Pid) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap_or_default();
    let kib: u64 = ["RssAnon:", "VmSwap:", "RssShmem:"].map(|name| number(&text, name)).iter().sum();
    kib << 10
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
    fn mappings_of_files_are_found_by_device_and_inode() {
        let smaps = "7f00-7f10 rw-s 00000000 00:01 1042 /memfd:x (deleted)\nRss: 900 kB\nPss:  450 kB\nAnonymous:   10 kB\n\
                     7f10-7f20 rw-p 00000000 00:00 0 \nPss: 77 kB\nAnonymous: 77 kB\nVmFlags: rd wr\n";
        let file = (rustix::fs::makedev(0, 1), 1042);
        assert_eq!(mapped(smaps.lines().next().expect("a line")), Some(file));
        assert_eq!(shared_of(smaps, &HashMap::from([(file, 1 << 20)])), 440);
        assert_eq!(shared_of(smaps, &HashMap::new()), 0);
    }

    #[test]
    fn numbers_are_found_by_their_names() {
        let status = "VmRSS:\t  900 kB\nRssAnon:\t     132 kB\nRssShmem:\t       0 kB\n";
        assert_eq!((number(status, "RssAnon:"), number(status, "RssShmem:"), number(status, "Nothing:")), (132, 0, 0));
    }
}
