//! A desk with a keyboard, for agents that are guests: its input device is a pipe in a directory of its own, and what computes
//! there is counted as the kernel does it.

use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::collections::{HashMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Between two looks at what is used.
const LOOK: Duration = Duration::from_millis(10);

/// The same of whoever waits that something computes.
const PACE: Duration = Duration::from_millis(200);

/// Of the time between two looks: less is the agent's own, which delivers and looks around.
const COMPUTES: f64 = 0.2;

/// Nothing has computed for so long: it has ended.
const QUIET: Duration = Duration::from_millis(500);

/// The same of whoever has used only so much of a core, on average, for so long.
const RESTS: f64 = 0.05;
const LONG: Duration = Duration::from_secs(1);

/// What an agent uses at least of a core while [`spins_until`] does, however many others want one.
pub const SPINS: f64 = 0.25;

/// What an agent's settings say of a program `spin`, which computes until this file is there.
pub fn spins_until(file: &Path) -> String {
    let script = format!("while [ ! -e {} ]; do :; done; echo done", file.display());
    format!(
        "[[program]]\nname = \"spin\"\nmode = \"one-shot\"\npath = \"/bin/sh\"\nargs = [\"-c\", {script:?}]\nanswer = \"text\"\n\
         trusted = true\n"
    )
}

pub struct Desk {
    directory: PathBuf,
    keyboard: File,
}

impl Desk {
    /// In a directory that is there.
    pub fn new(directory: &Path) -> io::Result<Desk> {
        let described = directory.join("sys/class/input/event0/device");
        fs::create_dir_all(described.join("capabilities"))?;
        fs::write(described.join("name"), "A keyboard\n")?;
        fs::write(described.join("capabilities/ev"), "120013\n")?;
        fs::create_dir_all(directory.join("dev/input"))?;
        let event = directory.join("dev/input/event0");
        mknodat(CWD, &event, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        let keyboard = File::options().read(true).write(true).open(event)?;
        Ok(Desk { directory: directory.to_owned(), keyboard })
    }

    pub fn press_a_key(&mut self) -> io::Result<()> {
        let mut event = vec![0; 2 * size_of::<usize>()];
        event.extend(1_u16.to_ne_bytes());
        event.extend(30_u16.to_ne_bytes());
        event.extend(1_i32.to_ne_bytes());
        self.keyboard.write_all(&event)
    }

    /// What the agent takes for `/dev`.
    pub fn dev(&self) -> PathBuf {
        self.directory.join("dev")
    }

    /// Takes every input device away.
    pub fn unplug(&self) -> io::Result<()> {
        fs::remove_dir_all(self.dev().join("input"))
    }

    /// A device that is elsewhere: its node, and what sysfs says of it. Before it there is none.
    pub fn plug(&self, node: &Path, described: &Path) -> io::Result<()> {
        let classes = self.directory.join("sys/class/input");
        fs::remove_dir_all(&classes)?;
        for (directory, target) in [(self.dev().join("input"), node), (classes, described)] {
            fs::create_dir_all(&directory)?;
            symlink(target, directory.join(target.file_name().unwrap_or_default()))?;
        }
        Ok(())
    }

    /// Settings for an agent that begins when nobody has touched anything for `away`, whatever else this machine does. `presence` is
    /// what is said beside that in the table, and `more` what follows it.
    pub fn config(&self, away: Duration, presence: &str, more: &str) -> io::Result<PathBuf> {
        let path = self.directory.join("worker.toml");
        let text = format!(
            "[presence]\nstart_after = {away}\nresume_after = {away}\nload = inf\nfree_memory = 0\non_battery = true\n\
             dev = {:?}\nsys = {:?}\n{presence}\n{more}\n",
            self.dev(),
            self.directory.join("sys"),
            away = away.as_secs_f64(),
        );
        fs::write(&path, text)?;
        Ok(path)
    }
}

/// What a process and all that descends from it have used of the cores.
pub struct Tree {
    root: u32,
    /// By process and thread, in nanoseconds.
    used: HashMap<(u32, u32), u64>,
    looked: Instant,
}

impl Tree {
    pub fn of(root: u32) -> Tree {
        Tree { root, used: threads(root), looked: Instant::now() }
    }

    /// How many cores it has used since the last look.
    pub fn cores(&mut self) -> f64 {
        let now = threads(self.root);
        let before = |thread: &(u32, u32)| self.used.get(thread).copied().unwrap_or(0);
        let nanoseconds: u64 = now.iter().map(|(thread, used)| used.saturating_sub(before(thread))).sum();
        let looked = std::mem::replace(&mut self.looked, Instant::now());
        self.used = now;
        nanoseconds as f64 / (self.looked - looked).as_nanos().max(1) as f64
    }

    /// One that uses so many cores, or nothing, if none does `within` that time. Two looks in a row say so: what an agent does
    /// itself, when it begins something, is over by the second.
    pub async fn that_uses(root: u32, cores: f64, within: Duration) -> Option<Tree> {
        let mut tree = Tree::of(root);
        let (began, mut used_before) = (Instant::now(), false);
        while began.elapsed() < within {
            tokio::time::sleep(PACE).await;
            let uses = tree.cores() >= cores;
            if uses && used_before {
                return Some(tree);
            }
            used_before = uses;
        }
        None
    }

    /// How long it goes on computing, at most `patience`.
    pub fn until_quiet(&mut self, patience: Duration) -> Duration {
        let began = Instant::now();
        let mut last = began;
        self.cores();
        // By moment: how much had been used by then.
        let mut looks = VecDeque::from([(self.looked, 0.0)]);
        let mut used = 0.0;
        while last.elapsed() < QUIET && began.elapsed() < patience {
            std::thread::sleep(LOOK);
            let before = self.looked;
            let cores = self.cores();
            used += cores * (self.looked - before).as_secs_f64();
            if cores > COMPUTES {
                last = self.looked;
            }
            looks.push_back((self.looked, used));
            while looks.get(1).is_some_and(|(moment, _)| moment.elapsed() >= LONG) {
                looks.pop_front();
            }
            // An agent whose messages take it long is above that now and then, and uses little all the same: at the worst all of it
            // at once, at the beginning.
            let (moment, then) = looks[0];
            if moment.elapsed() >= LONG && used - then < RESTS * LONG.as_secs_f64() {
                return moment - began + LONG.mul_f64(RESTS);
            }
        }
        last - began
    }
}

/// How often the threads of a process have gone to sleep so far, to be woken again.
pub fn wakes(process: u32) -> u64 {
    let of = |thread: u32| -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{process}/task/{thread}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().parse().ok()
    };
    numbered(&PathBuf::from(format!("/proc/{process}/task"))).into_iter().filter_map(of).sum()
}

fn threads(root: u32) -> HashMap<(u32, u32), u64> {
    let mut parents: HashMap<u32, u32> = HashMap::new();
    for process in numbered(Path::new("/proc")) {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().nth(1)?.parse().ok());
        parents.extend(parent.map(|parent| (process, parent)));
    }
    let is_of_tree = |mut process: u32| loop {
        match process {
            process if process == root => return true,
            0 | 1 => return false,
            _ => process = parents.get(&process).copied().unwrap_or(0),
        }
    };
    let mut used = HashMap::new();
    for process in parents.keys().copied().filter(|process| is_of_tree(*process)) {
        for thread in numbered(&PathBuf::from(format!("/proc/{process}/task"))) {
            let path = format!("/proc/{process}/task/{thread}/schedstat");
            let text = fs::read_to_string(path).unwrap_or_default();
            let time = text.split_ascii_whitespace().next().and_then(|time| time.parse().ok());
            used.extend(time.map(|time: u64| ((process, thread), time)));
        }
    }
    used
}

fn numbered(directory: &Path) -> Vec<u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}
