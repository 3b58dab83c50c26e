//! One process of a farm: started, killed, frozen, started again. Its output goes to a file. It never outlives its
//! value.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::links::namespace::Namespace;
use rustix::process::{Pid, Signal, kill_process};

/// Shorter than anything that a test measures.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A program and how it is called; perhaps running.
#[derive(Debug)]
pub struct Program {
    pub name: String,
    path: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(String, OsString)>,
    log: PathBuf,
    child: Option<Child>,
}

impl Program {
    /// Not started yet. `log` gets what it writes, one run after the other.
    pub fn new(name: &str, path: &Path, log: &Path) -> Program {
        Program {
            name: name.to_owned(),
            path: path.to_owned(),
            arguments: Vec::new(),
            environment: Vec::new(),
            log: log.to_owned(),
            child: None,
        }
    }

    #[must_use]
    pub fn arguments<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Program {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Gives the flag another value.
    #[must_use]
    pub fn replacing_argument(mut self, flag: &str, value: &str) -> Program {
        if let Some(place) = self.arguments.iter().position(|argument| argument == flag) {
            self.arguments[place + 1] = value.into();
        }
        self
    }

    /// Runs it in a network namespace.
    #[must_use]
    pub fn within(mut self, namespace: &Namespace) -> Program {
        let entering = namespace.enter().into_iter().map(OsString::from);
        let own = std::mem::take(&mut self.arguments);
        self.arguments = entering.chain([self.path.clone().into_os_string()]).chain(own).collect();
        self.path = "ip".into();
        self
    }

    #[must_use]
    pub fn environment(mut self, name: &str, value: impl Into<OsString>) -> Program {
        self.environment.push((name.to_owned(), value.into()));
        self
    }

    #[must_use]
    pub fn without_environment(mut self, name: &str) -> Program {
        self.environment.retain(|(given, _)| given != name);
        self
    }

    /// Starts it, as often as one likes, one at a time.
    pub fn start(&mut self) {
        assert!(!self.runs(), "{} runs already", self.name);
        let log = File::options().create(true).append(true).open(&self.log).expect("the log can be written");
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).stdin(Stdio::null());
        // Whoever runs the tests has settings of their own.
        for (name, _) in std::env::vars_os() {
            let ours =
                name.to_str().is_some_and(|n| n.starts_with("PCFARM_") || n.starts_with("PG") || n == "DATABASE_URL");
            if ours {
                command.env_remove(&name);
            }
        }
        // Nobody sits here: agents are to work.
        command
            .env("NO_COLOR", "1")
            .env("PCFARM_UNATTENDED", "true")
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdout(log.try_clone().expect("one more descriptor")).stderr(log);
        let child = command.spawn().unwrap_or_else(|error| panic!("{} does not start: {error}", self.path.display()));
        self.child = Some(child);
    }

    /// What it has written.
    pub fn log(&self) -> String {
        std::fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Of the executable.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// False once it has ended, by itself or not.
    pub fn runs(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    fn signal(&mut self, signal: Signal) {
        assert!(self.runs(), "{} has ended: {}", self.name, self.log());
        let pid = self.pid().and_then(|pid| Pid::from_raw(pid.cast_signed())).expect("a running child has an id");
        kill_process(pid, signal).expect("a child that was not waited for takes signals");
    }

    /// As a power failure: at once, without a word. Fine if it is not running.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stands still, as a machine that sleeps or swaps.
    pub fn freeze(&mut self) {
        self.signal(Signal::STOP);
    }

    pub fn thaw(&mut self) {
        self.signal(Signal::CONT);
    }

    /// Asks it to stop in good order.
    pub fn terminate(&mut self) {
        self.signal(Signal::TERM);
    }

    /// Waits until it has ended.
    pub async fn ended(&mut self, within: Duration) -> ExitStatus {
        let deadline = Instant::now() + within;
        loop {
            let child = self.child.as_mut().expect("a program that was started");
            if let Some(status) = child.try_wait().expect("children can be asked") {
                return status;
            }
            assert!(Instant::now() < deadline, "{} has not ended within {within:?}", self.name);
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until it has ended, and kills it when that takes too long. True: it ended by itself.
    pub async fn ended_or_killed(&mut self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        while self.runs() {
            if Instant::now() > deadline {
                self.kill();
                return false;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        true
    }

    /// Waits until it has written this.
    pub async fn says(&mut self, text: &str, within: Duration) {
        let deadline = Instant::now() + within;
        while !self.log().contains(text) {
            assert!(Instant::now() < deadline, "{} has not said {text:?} within {within:?}", self.name);
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}
