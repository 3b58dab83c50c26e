//! The agent's end of one supervisor.
//!
//! Owns its process and its pipes. It waits for answers in steps, so that who is no longer wanted ends at once.

use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use std::os::unix::process::CommandExt;

use crate::exec::SUPERVISE;
use crate::exec::directory::Place;
use crate::exec::orphans;
use crate::exec::plan::{Plan, Question, Reply, Request, frame, read_frame, write_frame};
use crate::exec::silence::SPEAK_EVERY;
use crate::work::Checkout;

/// How soon a cancelled problem ends.
const STEP: Duration = Duration::from_millis(20);

/// What a supervisor may need beyond a problem's time limit: it ends what may be thousands of processes.
const BEYOND_LIMIT: Duration = Duration::from_secs(20);

/// How long a supervisor may take to end all it has.
const END_WAIT: Duration = Duration::from_secs(12);

pub struct Instance {
    supervisor: Child,
    /// Closed, it ends.
    requests: Option<ChildStdin>,
    replies: ChildStdout,
    /// It answered when it was to stand still, and does so now: for good.
    is_spent: bool,
    has_ended: bool,
    /// Behind the processes: they are gone when it is removed.
    place: Ended,
}

/// A place that is dropped with its instance, and after it.
struct Ended(Place);

/// What became of a question.
pub enum Asked {
    Replied(Reply, Vec<u8>),
    /// It is not wanted any more, and nothing of it runs.
    Cancelled,
    Lost(String),
}

impl Instance {
    pub fn start(binary: &Path, plan: &Plan, place: Place) -> io::Result<Instance> {
        let mut supervisor = Command::new(binary);
        let supervisor = supervisor
            .arg(SUPERVISE)
            .env_clear()
            .current_dir("/")
            // What a terminal sends to the agent is for the agent.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut supervisor = orphans::start(supervisor)?;
        let requests = supervisor.stdin.take().expect("it is piped");
        let replies = supervisor.stdout.take().expect("it is piped");
        let mut instance = Instance {
            supervisor,
            requests: Some(requests),
            replies,
            is_spent: false,
            has_ended: false,
            place: Ended(place),
        };
        let requests = instance.requests.as_mut().expect("just made");
        write_frame(requests, plan, &[])?;
        // From here on nobody waits for a supervisor that does not read without asking whether that is still wanted.
        fcntl_setfl(&*requests, OFlags::NONBLOCK)?;
        Ok(instance)
    }

    pub fn place(&self) -> &Place {
        &self.place.0
    }

    /// Whether it cannot be asked once more.
    pub fn is_spent(&self) -> bool {
        self.is_spent
    }

    /// Whether it has ended, or says that it will: nobody asked it anything that it could answer.
    pub fn has_retired(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.replies, PollFlags::IN)], Some(&at_once)).is_ok_and(|ready| ready > 0)
    }

    /// While the checkout is frozen the program stands still.
    pub fn ask(&mut self, question: Question, body: &[u8], checkout: &Checkout) -> Asked {
        let mut until = question.time_limit_ms.map(|ms| Instant::now() + Duration::from_millis(ms) + BEYOND_LIMIT);
        let Some(requests) = &mut self.requests else { return self.lost("it was ended") };
        let step = Timespec { tv_sec: 0, tv_nsec: i64::from(STEP.subsec_nanos()) };
        let question_lease = question.lease_end_us;
        let frame = match frame(&Request::Question(question), body) {
            Ok(frame) => frame,
            Err(error) => return self.lost(&error.to_string()),
        };
        let mut unwritten = &frame[..];
        // Since when it is asked to stand still.
        let mut freezing = None;
        let mut alive_due = Instant::now() + SPEAK_EVERY;
        let mut lease_told = question_lease;
        let mut came_round = Instant::now();
        loop {
            let polled = if unwritten.is_empty() {
                poll(&mut [PollFd::new(&self.replies, PollFlags::IN)], Some(&step))
            } else {
                poll(&mut [PollFd::new(&*requests, PollFlags::OUT)], Some(&step))
            };
            match polled {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) if unwritten.is_empty() => match read_frame(&mut self.replies) {
                    Ok((Reply::Frozen, _)) => {
                        checkout.stand_still();
                        let stood = freezing.take().map_or(Duration::ZERO, |since: Instant| since.elapsed());
                        until = until.map(|until| until + stood);
                        if !checkout.is_cancelled()
                            && let Err(error) = write_frame(requests, &Request::Thaw, &[])
                        {
                            return self.lost(&error.to_string());
                        }
                    }
                    Ok((reply, body)) => {
                        self.is_spent = freezing.is_some();
                        return Asked::Replied(reply, body);
                    }
                    Err(error) => return self.lost(&error.to_string()),
                },
                Ok(_) => match requests.write(unwritten) {
                    Ok(written) => unwritten = &unwritten[written..],
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                    // A supervisor that has just retired does not read any more, and has said so.
                    Err(error) if error.kind() == ErrorKind::BrokenPipe => unwritten = &[],
                    Err(error) => return self.lost(&error.to_string()),
                },
                Err(error) => return self.lost(&error.to_string()),
            }
            if checkout.is_cancelled() {
                self.end();
                return Asked::Cancelled;
            }
            // While this process was stopped the program stood still as well.
            let away = came_round.elapsed();
            came_round = Instant::now();
            if away > SPEAK_EVERY {
                until = until.map(|until| until + away);
            }
            if until.is_some_and(|until| Instant::now() > until) {
                return self.lost("it does not answer");
            }
            let may_speak = freezing.is_none() && unwritten.is_empty();
            // A look for the person that is late keeps it silent: the supervisor then stops the program.
            let lease_end_us = lease_end_us(checkout);
            let is_due = Instant::now() >= alive_due || lease_end_us != lease_told;
            if may_speak && !checkout.is_frozen() && is_due && checkout.is_watched() {
                alive_due = Instant::now() + SPEAK_EVERY;
                lease_told = lease_end_us;
                match write_frame(requests, &Request::Alive { lease_end_us }, &[]) {
                    // A full pipe holds words enough, and a supervisor that has retired has said so. Short frames are written whole.
                    Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::BrokenPipe) => {
                        return self.lost(&error.to_string());
                    }
                    Ok(()) | Err(_) => {}
                }
            }
            if may_speak && checkout.is_frozen() {
                freezing = Some(Instant::now());
                match write_frame(requests, &Request::Freeze, &[]) {
                    // A supervisor that gets no core has not read its question yet: it is told in the next step. What is as short
                    // as this is written whole or not at all.
                    Err(error) if error.kind() == ErrorKind::WouldBlock => freezing = None,
                    // One that has just retired has said so.
                    Err(error) if error.kind() != ErrorKind::BrokenPipe => return self.lost(&error.to_string()),
                    Ok(()) | Err(_) => {}
                }
            }
        }
    }

    fn lost(&mut self, why: &str) -> Asked {
        let why = match self.end() {
            Some(status) => format!("{why}; {status}"),
            None => why.to_owned(),
        };
        Asked::Lost(format!("the program's supervisor is lost: {why}"))
    }

    /// Lets the supervisor end all it has. Nothing of it runs afterwards, also if somebody has killed it.
    fn end(&mut self) -> Option<std::process::ExitStatus> {
        let status = self.end_supervisor();
        if !std::mem::replace(&mut self.has_ended, true) {
            orphans::ended(&self.supervisor, status);
        }
        status
    }

    fn end_supervisor(&mut self) -> Option<std::process::ExitStatus> {
        self.requests = None;
        let until = Instant::now() + END_WAIT;
        let mut pause = Duration::from_micros(500);
        while Instant::now() < until {
            match self.supervisor.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) => return Some(status),
                Err(_) => return None,
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(STEP);
        }
        // The kernel ends its program with it.
        let _ = self.supervisor.kill();
        self.supervisor.wait().ok()
    }

    /// Tells it to end; dropping it waits until it has.
    pub fn dismiss(&mut self) {
        self.requests = None;
    }
}

/// End of the lease as supervisors are told.
pub fn lease_end_us(checkout: &Checkout) -> Option<u64> {
    checkout.lease_end().map(|end| u64::try_from(end.as_micros()).unwrap_or(u64::MAX))
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.end();
    }
}
