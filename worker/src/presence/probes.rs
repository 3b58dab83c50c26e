//! The machine: what others compute on it, its memory, what it runs on, which programs run.
//!
//! Owns the reading of `/proc` and `/sys`. A file that is not there or makes no sense is an answer of its own: unknown, and why.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::load::Sample;
use super::signals::{Memory, Moment, Power};

/// Processes, as one look at `/proc` finds them.
pub struct Processes {
    all: HashMap<u32, Process>,
    me: u32,
    /// Why there may be others.
    hidden: Option<String>,
}

struct Process {
    name: String,
    parent: u32,
    ticks: u64,
}

impl Processes {
    pub fn look(proc: &Path) -> Result<Processes, String> {
        // By that name, for this process may have another number in another container's eyes.
        let me = fs::read_link(proc.join("self")).ok().and_then(|name| name.to_str()?.parse().ok());
        let me = me.ok_or_else(|| format!("{} does not know this process", proc.display()))?;
        let mut all = HashMap::new();
        let mut hidden = None;
        for entry in fs::read_dir(proc).map_err(|error| format!("{}: {error}", proc.display()))? {
            let entry = entry.map_err(|error| format!("{}: {error}", proc.display()))?;
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            let path = entry.path().join("stat");
            match fs::read(&path).map(|line| parse_stat(&line)) {
                Ok(Some(process)) => drop(all.insert(pid, process)),
                Ok(None) => hidden = Some(format!("{} makes no sense", path.display())),
                // It has ended meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound || is_no_process(&error) => {}
                Err(error) => hidden = Some(format!("{}: {error}", path.display())),
            }
        }
        // Who sees only processes of its own does not see the first of all (hidepid).
        if hidden.is_none() && !all.contains_key(&1) {
            hidden = Some(format!("{} does not show other users' processes", proc.display()));
        }
        if all.contains_key(&me) {
            Ok(Processes { all, me, hidden })
        } else {
            Err(format!("{}/{me} is missing", proc.display()))
        }
    }

    /// This one, and all that descends from it.
    fn family(&self) -> HashSet<u32> {
        let mut family = HashSet::from([self.me]);
        loop {
            let before = family.len();
            let children = self.all.iter().filter(|(_, process)| family.contains(&process.parent));
            let children: Vec<u32> = children.map(|(pid, _)| *pid).collect();
            family.extend(children);
            if family.len() == before {
                return family;
            }
        }
    }

    fn own_ticks(&self) -> u64 {
        self.family().iter().filter_map(|pid| self.all.get(pid)).map(|process| process.ticks).sum()
    }

    fn own_memory(&self, proc: &Path) -> u64 {
        let memory = |pid: &u32| {
            let status = fs::read_to_string(proc.join(pid.to_string()).join("status")).unwrap_or_default();
            number(&status, "RssAnon:").unwrap_or(0) << 10
        };
        self.family().iter().map(memory).sum()
    }

    /// Which of these run, beside this one's own. That none does can be said only by who sees them all.
    pub fn running(&self, names: &[String]) -> Result<Vec<String>, String> {
        let family = self.family();
        // The kernel keeps fifteen bytes of a name.
        let is_it = |process: &Process, name: &str| {
            process.name == name || (process.name.len() == 15 && name.starts_with(&process.name))
        };
        let others = || self.all.iter().filter(|(pid, _)| !family.contains(pid)).map(|(_, process)| process);
        let running: Vec<String> =
            names.iter().filter(|name| others().any(|process| is_it(process, name))).cloned().collect();
        match &self.hidden {
            Some(why) if running.is_empty() => Err(why.clone()),
            Some(_) | None => Ok(running),
        }
    }
}

/// What reading of a process says that has ended since its file was opened.
fn is_no_process(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

/// Name, parent, and the time of its own and of its children that have ended.
fn parse_stat(line: &[u8]) -> Option<Process> {
    let text = String::from_utf8_lossy(line);
    let (_, rest) = text.split_once('(')?;
    let (name, rest) = rest.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let ticks = fields.get(11..15)?.iter().map(|field| field.parse::<u64>().ok()).sum::<Option<u64>>()?;
    Some(Process { name: name.to_owned(), parent: fields.get(1)?.parse().ok()?, ticks })
}

/// In the kernel's ticks.
pub fn sample(proc: &Path, processes: &Result<Processes, String>, now: Moment) -> Result<Sample, String> {
    let processes = processes.as_ref().map_err(Clone::clone)?;
    Ok(Sample { at: now, busy: busy_ticks(proc)?, own: processes.own_ticks() })
}

/// Of all cores, whoever used them; waiting for a disk is no use.
fn busy_ticks(proc: &Path) -> Result<u64, String> {
    let path = proc.join("stat");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let fields: Option<Vec<u64>> = text
        .strip_prefix("cpu ")
        .and_then(|rest| rest.lines().next()?.split_ascii_whitespace().map(|field| field.parse().ok()).collect());
    match fields.as_deref() {
        Some([user, nice, system, _, _, irq, softirq, ..]) => Ok(user + nice + system + irq + softirq),
        Some(_) | None => Err(format!("{} makes no sense", path.display())),
    }
}

pub fn memory(proc: &Path, processes: &Result<Processes, String>) -> Result<Memory, String> {
    let path = proc.join("meminfo");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let bytes =
        |name| number(&text, name).map(|kib| kib << 10).ok_or_else(|| format!("{} lacks {name}", path.display()));
    let own_bytes = processes.as_ref().map_err(Clone::clone)?.own_memory(proc);
    Ok(Memory { total_bytes: bytes("MemTotal:")?, available_bytes: bytes("MemAvailable:")?, own_bytes })
}

fn number(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_ascii_whitespace().next()?.parse().ok()
}

/// By `/sys/class/power_supply`. A machine with no battery of its own is on mains; a mouse's does not count.
pub fn power(supplies: &Path) -> Result<Power, String> {
    let broken = |error: std::io::Error| format!("{}: {error}", supplies.display());
    let mut batteries: Vec<(PathBuf, String)> = Vec::new();
    let mut has_mains = false;
    for entry in fs::read_dir(supplies).map_err(broken)? {
        let supply = entry.map_err(broken)?.path();
        let text = |file: &str| fs::read_to_string(supply.join(file)).map(|text| text.trim().to_owned());
        let unknown = |error| format!("{}: {error}", supply.display());
        if text("scope").is_ok_and(|scope| scope == "Device") {
            continue;
        }
        match text("type").map_err(unknown)?.as_str() {
            "Battery" | "UPS" => batteries.push((supply.clone(), text("status").map_err(unknown)?)),
            "Mains" | "USB" | "Wireless" => has_mains |= text("online").map_err(unknown)? != "0",
            _ => {}
        }
    }
    if batteries.is_empty() || has_mains {
        return Ok(Power::Mains);
    }
    // Without a word of mains, a battery that is charged or full says so.
    match batteries.iter().find(|(_, status)| !matches!(status.as_str(), "Charging" | "Full" | "Not charging")) {
        None => Ok(Power::Mains),
        Some((_, status)) if status == "Discharging" => Ok(Power::Battery),
        Some((battery, status)) => Err(format!("{} is {status:?}", battery.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        for (file, text) in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().expect("it has one")).expect("made");
            fs::write(path, text).expect("written");
        }
        dir
    }

    #[test]
    fn power_is_what_the_supplies_say() {
        let battery = |status: &'static str| [("BAT0/type", "Battery\n"), ("BAT0/status", status)];
        let mains = |online: &'static str| [("AC/type", "Mains\n"), ("AC/online", online)];
        let usb = [("usb/type", "USB"), ("usb/online", "1\n")];
        let mouse = [("mouse/type", "Battery"), ("mouse/scope", "Device\n"), ("mouse/status", "Discharging")];
        for (what, files, expected) in [
            ("a desktop", vec![("README", "")], None),
            ("plugged in", [battery("Charging\n"), mains("1\n")].concat(), Some(Power::Mains)),
            ("unplugged", [battery("Discharging\n"), mains("0\n")].concat(), Some(Power::Battery)),
            ("full and plugged in", [battery("Discharging\n"), mains("1\n")].concat(), Some(Power::Mains)),
            ("by USB", [battery("Discharging"), mains("0\n"), usb].concat(), Some(Power::Mains)),
            ("a battery alone", battery("Discharging\n").to_vec(), Some(Power::Battery)),
            ("a battery alone, full", battery("Full\n").to_vec(), Some(Power::Mains)),
            ("who knows", battery("Unknown\n").to_vec(), None),
            ("a battery without a word", vec![("BAT0/type", "Battery\n")], None),
            ("a mouse", [mouse.to_vec(), mains("1").to_vec()].concat(), Some(Power::Mains)),
        ] {
            let dir = tree(&files);
            assert_eq!(power(dir.path()).ok(), expected, "{what}");
        }
        let nothing = tree(&[]);
        assert_eq!(power(nothing.path()), Ok(Power::Mains));
        assert!(power(&nothing.path().join("none")).is_err());
    }

    #[test]
    fn others_are_all_but_this_one_and_its_children() {
        let line = |name: &str, parent: u32, ticks: u32| {
            format!("1 ({name}) S {parent} 1 1 0 -1 4194304 1 1 1 1 {ticks} 2 3 4 20 0 1 0 1 1 1")
        };
        let stat = "cpu  100 20 30 4000 500 6 7 8 9 10\ncpu0 1 2 3\n";
        let files = [
            ("proc/stat", stat.to_owned()),
            ("proc/1/stat", line("init", 0, 0)),
            ("proc/10/stat", line("agent", 1, 5)),
            ("proc/10/status", "RssAnon:\t     100 kB\n".to_owned()),
            ("proc/20/stat", line("a) child", 10, 6)),
            ("proc/20/status", "RssAnon:\t     50 kB\n".to_owned()),
            ("proc/15/stat", line("grandchild", 20, 7)),
            ("proc/30/stat", line("a-game-with-a-l", 1, 8)),
            ("proc/meminfo", "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable: 400 kB\n".to_owned()),
        ];
        let files: Vec<(&str, &str)> = files.iter().map(|(file, text)| (*file, text.as_str())).collect();
        let dir = tree(&files);
        let proc = dir.path().join("proc");
        assert!(Processes::look(&proc).is_err(), "it does not know itself");
        std::os::unix::fs::symlink("10", proc.join("self")).expect("made");
        let processes = Processes::look(&proc);
        let looked = processes.as_ref().map_err(Clone::clone).expect("it is there");
        assert_eq!(looked.own_ticks(), 5 + 6 + 7 + 3 * 9);
        let names = ["a-game-with-a-long-name", "agent", "grandchild", "other"].map(str::to_owned);
        assert_eq!(looked.running(&names), Ok(vec!["a-game-with-a-long-name".to_owned()]));
        assert_eq!(busy_ticks(&proc), Ok(163));
        let expected = Memory { total_bytes: 1000 << 10, available_bytes: 400 << 10, own_bytes: 150 << 10 };
        assert_eq!(memory(&proc, &processes), Ok(expected));
        fs::write(proc.join("meminfo"), "MemTotal:  1000 kB\n").expect("written");
        assert!(memory(&proc, &processes).is_err());
        fs::write(proc.join("stat"), "cpu  1 2\n").expect("written");
        assert!(sample(&proc, &processes, Moment::ZERO).is_err());
    }

    /// As `hidepid` has it, by the number or altogether, and as a broken file would.
    #[test]
    fn that_none_of_them_runs_says_only_who_sees_them_all() {
        let line = |name: &str| format!("1 ({name}) S 1 1 1 0 -1 4194304 1 1 1 1 1 2 3 4 20 0 1 0 1 1 1");
        let (agent, init) = (line("agent"), line("init"));
        let names = ["game".to_owned()];
        for (what, others, expected) in [
            ("all are seen", vec![("1/stat", init.as_str())], Some(Vec::new())),
            (
                "it runs",
                vec![("1/stat", init.as_str()), ("30/stat", "1 (game) S 1 1 1 0 -1 4 1 1 1 1 1 2 3 4 20")],
                Some(vec!["game".to_owned()]),
            ),
            ("one has ended", vec![("1/stat", init.as_str()), ("30/other", "")], Some(Vec::new())),
            ("others' are not there", vec![], None),
            ("one makes no sense", vec![("1/stat", init.as_str()), ("30/stat", "")], None),
            // Even root cannot read a directory.
            ("one cannot be read", vec![("1/stat", init.as_str()), ("30/stat/x", "")], None),
        ] {
            let dir = tree(&[vec![("10/stat", agent.as_str())], others].concat());
            std::os::unix::fs::symlink("10", dir.path().join("self")).expect("made");
            let processes = Processes::look(dir.path()).expect("it sees itself");
            assert_eq!(processes.running(&names).ok(), expected, "{what}");
        }
    }

    #[test]
    fn this_machine_can_be_read() {
        let proc = Path::new("/proc");
        let processes = Processes::look(proc);
        let memory = memory(proc, &processes).expect("it has memory");
        assert!(memory.total_bytes > memory.available_bytes && memory.own_bytes > 0);
        assert!(busy_ticks(proc).is_ok());
    }
}
