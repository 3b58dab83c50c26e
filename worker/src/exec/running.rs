//! A program that runs, its pipes and its tree.
//!
//! Owns the moving of bytes, without ever waiting for one pipe while another is full, and the look at limits. What the bytes
//! mean is its supervisor's business.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::fchown;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::ioctl_fionread;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

use crate::exec::LAUNCH;
use crate::exec::plan::{Launch, Limits, Plan, Question, write_frame};
use crate::exec::{space, tree};
use crate::fed::ANSWER_BYTES_LIMIT;
use crate::fed::failure::{Exit, Failure, Tail};

/// Most bytes that one turn takes from a pipe, so that a flood on one does not drown the others.
const GULP: usize = 64 << 10;

/// Between looks at the tree: short beside what a process can do to a workstation, and a look reads all of `/proc`.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// Looks take this part of a core at most, however many processes the machine has.
const LOOK_SHARE: u32 = 20;

/// Between looks at the disk.
const BETWEEN_DISK_LOOKS: Duration = Duration::from_secs(1);

/// This binary, even if its file was replaced meanwhile.
const THIS_BINARY: &str = "/proc/self/exe";

pub struct Running {
    pid: Pid,
    pidfd: OwnedFd,
    stdin: Option<File>,
    stdout: Option<File>,
    stderr: Option<File>,
    pending: Vec<u8>,
    written: usize,
    /// A one-shot program's input ends with what there is of it.
    close_stdin: bool,
    /// What it has written and nobody has taken.
    pub out: Vec<u8>,
    pub tail: Tail,
    pub exit: Option<Exit>,
    pub answers: u64,
    /// To the question at hand.
    pub answer: Vec<u8>,
    nonce: String,
    limits: Limits,
    look_at: Instant,
    disk_look_at: Instant,
}

/// How long something may go on.
#[derive(Clone, Copy)]
pub struct Until(pub Option<Instant>);

impl Until {
    pub fn after(limit_ms: Option<u64>) -> Until {
        Until(limit_ms.and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms))))
    }

    /// What stood still has so much more time.
    pub fn extend(&mut self, by: Duration) {
        self.0 = self.0.and_then(|end| end.checked_add(by));
    }

    pub fn left(self) -> Duration {
        self.0.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()))
    }
}

/// What a turn has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Perhaps nothing.
    Done,
    /// The agent has said something, or has gone. Nothing was done.
    AgentSpoke,
}

impl Running {
    /// Starts the program for a question, by way of a launcher. That it cannot be started shows when the launcher ends.
    pub fn start(plan: &Plan, question: &Question, tasks_of_user: u64) -> io::Result<Running> {
        let fed = plan.mode == super::settings::Mode::Fed;
        let mut nonce = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut nonce)?;
        let launch = Launch {
            plan: plan.clone(),
            args: if fed { plan.args.clone() } else { question.args.clone() },
            directory: if fed { plan.home.clone() } else { question.directory.clone() },
            tasks_of_user,
            supervisor: getpid().as_raw_nonzero().get(),
            nonce: format!("{:032x}: ", u128::from_le_bytes(nonce)),
        };
        let mut pending = Vec::new();
        write_frame(&mut pending, &launch, &[])?;
        let mut child = Command::new(THIS_BINARY)
            .arg(LAUNCH)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(user) = plan.user {
            // It may open them by name: /dev/stdin, /dev/stdout.
            let pipes = [child.stdin.as_ref().map(AsFd::as_fd), child.stdout.as_ref().map(AsFd::as_fd)];
            for pipe in pipes.into_iter().chain([child.stderr.as_ref().map(AsFd::as_fd)]).flatten() {
                fchown(pipe, Some(user.uid), Some(user.gid))?;
            }
        }
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(ErrorKind::InvalidData)?;
        let ours = |pipe: Option<OwnedFd>| -> io::Result<Option<File>> {
            let pipe = pipe.expect("all three are piped");
            fcntl_setfl(&pipe, fcntl_getfl(&pipe)? | OFlags::NONBLOCK)?;
            Ok(Some(File::from(pipe)))
        };
        let now = Instant::now();
        Ok(Running {
            pid,
            pidfd: pidfd_open(pid, PidfdFlags::empty())?,
            stdin: ours(child.stdin.take().map(OwnedFd::from))?,
            stdout: ours(child.stdout.take().map(OwnedFd::from))?,
            stderr: ours(child.stderr.take().map(OwnedFd::from))?,
            pending,
            written: 0,
            close_stdin: !fed,
            out: Vec::new(),
            tail: Tail::default(),
            exit: None,
            answers: 0,
            answer: Vec::new(),
            nonce: launch.nonce,
            limits: plan.limits,
            look_at: now + BETWEEN_LOOKS,
            disk_look_at: now + BETWEEN_DISK_LOOKS,
        })
    }

    /// Puts bytes behind what it has not yet been given.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.pending.drain(..std::mem::take(&mut self.written));
        self.pending.extend_from_slice(bytes);
    }

    /// Bytes that it was to read and has not.
    pub fn unread(&self) -> u64 {
        let on_the_way = self.stdin.as_ref().and_then(|stdin| ioctl_fionread(stdin).ok()).unwrap_or(0);
        on_the_way + (self.pending.len() - self.written) as u64
    }

    pub fn stdout_is_closed(&self) -> bool {
        self.stdout.is_none()
    }

    pub fn stdin_is_closed(&self) -> bool {
        self.stdin.is_none()
    }

    /// Waits until something can be done, at most for `wait`, and does it.
    pub fn turn(&mut self, requests: BorrowedFd<'_>, wait: Duration) -> io::Result<Turn> {
        let has_pending = self.written < self.pending.len();
        if self.close_stdin && !has_pending {
            self.stdin = None;
        }
        let (agent_spoke, is_deaf) = self.wait(requests, wait)?;
        if agent_spoke {
            return Ok(Turn::AgentSpoke);
        }
        if is_deaf {
            self.stdin = None;
        }
        self.reap();
        self.write();
        self.read_stdout();
        self.read_stderr();
        Ok(Turn::Done)
    }

    /// Whether the agent has spoken, and whether nobody can read what the program is given.
    fn wait(&self, requests: BorrowedFd<'_>, wait: Duration) -> io::Result<(bool, bool)> {
        let wants = |wanted: bool, flags| if wanted { flags } else { PollFlags::empty() };
        let mut watched = vec![PollFd::from_borrowed_fd(requests, PollFlags::IN)];
        if let Some(stdin) = &self.stdin {
            watched.push(PollFd::new(stdin, wants(self.written < self.pending.len(), PollFlags::OUT)));
        }
        // An ended process stays readable.
        if self.exit.is_none() {
            watched.push(PollFd::new(&self.pidfd, PollFlags::IN));
        }
        if let Some(stdout) = self.stdout.as_ref().filter(|_| self.out.len() <= ANSWER_BYTES_LIMIT) {
            watched.push(PollFd::new(stdout, PollFlags::IN));
        }
        if let Some(stderr) = &self.stderr {
            watched.push(PollFd::new(stderr, PollFlags::IN));
        }
        let timeout = Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        match poll(&mut watched, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_deaf = self.stdin.is_some() && watched[1].revents().contains(PollFlags::ERR);
        Ok((!watched[0].revents().is_empty(), is_deaf))
    }

    fn reap(&mut self) {
        let Running { pid: own, exit: how, .. } = self;
        tree::reap(|pid, exit| {
            if pid == *own {
                *how = Some(exit);
            }
        });
    }

    fn write(&mut self) {
        while let Some(stdin) = self.stdin.as_mut().filter(|_| self.written < self.pending.len()) {
            match stdin.write(&self.pending[self.written..]) {
                Ok(bytes) => self.written += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // It does not want to read. A one-shot program may well not.
                Err(_) => self.stdin = None,
            }
        }
    }

    fn read_stdout(&mut self) {
        if self.out.len() > ANSWER_BYTES_LIMIT {
            return;
        }
        let Running { stdout, out, .. } = self;
        read_into(stdout, |bytes| out.extend_from_slice(bytes));
    }

    fn read_stderr(&mut self) {
        let Running { stderr, tail, .. } = self;
        read_into(stderr, |bytes| tail.push(bytes));
    }

    /// Takes what is in the pipes of a program that has ended: what it has written is there, and others may still write.
    pub fn drain(&mut self) {
        self.read_stdout();
        self.read_stderr();
    }

    /// What is wrong with what it takes, if it is time to look.
    pub fn over_limit(&mut self, area: &Path) -> Option<Failure> {
        let now = Instant::now();
        if now < self.look_at {
            return None;
        }
        let usage = tree::usage(getpid());
        // Each is looked at whatever the one before costs to find out.
        let over = self.over_processes(&usage).or_else(|| self.over_memory(&usage));
        let over = over.or_else(|| self.over_disk(area, &usage));
        self.look_at = Instant::now() + BETWEEN_LOOKS.max(now.elapsed() * LOOK_SHARE);
        over
    }

    fn over_processes(&self, usage: &tree::Usage) -> Option<Failure> {
        let limit = self.limits.processes;
        (usage.processes > limit).then_some(Failure::Processes { started: usage.processes, limit })
    }

    fn over_memory(&self, usage: &tree::Usage) -> Option<Failure> {
        let limit = self.limits.memory_bytes;
        if usage.most_memory_bytes <= limit {
            return None;
        }
        let used = usage.exact_memory(getpid());
        (used > limit).then_some(Failure::Memory { used, limit })
    }

    fn over_disk(&mut self, area: &Path, usage: &tree::Usage) -> Option<Failure> {
        let began = Instant::now();
        if began < self.disk_look_at {
            return None;
        }
        let limit = self.limits.disk_bytes;
        let used = space::used(area, limit);
        self.disk_look_at = Instant::now() + BETWEEN_DISK_LOOKS.max(began.elapsed() * LOOK_SHARE);
        match used.map(|used| used + usage.disk_bytes) {
            Ok(used) => (used > limit).then_some(Failure::Disk { used, limit }),
            Err(failure) => Some(failure),
        }
    }

    pub fn next_look(&self) -> Duration {
        self.look_at.saturating_duration_since(Instant::now())
    }

    /// Ends the whole tree. What it has still said on standard error is in the tail.
    pub fn end(&mut self) -> bool {
        let (pid, mut exit) = (self.pid, self.exit);
        let all = tree::end(getpid(), |ended, how| {
            if ended == pid {
                exit = exit.or(Some(how));
            }
        });
        self.exit = exit;
        self.read_stderr();
        all
    }

    /// Lets a program end by itself: it has nothing more to read.
    pub fn say_goodbye(&mut self, patience: Duration) {
        self.stdin = None;
        self.exit_within(patience);
    }

    /// How it has ended, if it does so soon: one that has closed its pipes mostly does.
    pub fn exit_within(&mut self, patience: Duration) -> Option<Exit> {
        let end = Instant::now() + patience;
        while self.exit.is_none() && Instant::now() < end {
            let timeout = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
            let _ = poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&timeout));
            self.reap();
            self.drain();
        }
        self.exit
    }

    /// Why the launcher could not start it, if that is so; and what it has said on standard error otherwise.
    pub fn last_words(&mut self) -> Result<String, Failure> {
        let text = self.tail.take();
        match text.split_once(&self.nonce) {
            Some((_, why)) => Err(Failure::NotStarted(why.trim_end().to_owned())),
            None => Ok(text),
        }
    }
}

/// At most [`GULP`] bytes. A pipe that has ended is closed.
fn read_into(pipe: &mut Option<File>, mut with: impl FnMut(&[u8])) {
    let Some(file) = pipe else { return };
    let mut buffer = [0; GULP];
    match file.read(&mut buffer) {
        Ok(0) => *pipe = None,
        Ok(bytes) => with(&buffer[..bytes]),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
        Err(_) => *pipe = None,
    }
}
