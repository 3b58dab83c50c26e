//! A process between the agent and one program, which it starts as often as it must.
//!
//! Owns the program's tree: nothing of it is left when the supervisor ends, and the supervisor ends when the agent does. It
//! has no secrets and knows of no farm. One problem at a time.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::exit;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{DumpableBehavior, getpid, getuid, set_child_subreaper, set_dumpable_behavior};

use crate::exec::plan::{Ended, Plan, Question, Reply, Request, read_frame, write_frame};
use crate::exec::running::{Running, Turn, Until};
use crate::exec::settings::Mode;
use crate::exec::silence::Silence;
use crate::exec::tree;
use crate::fed::ANSWER_BYTES_LIMIT;
use crate::fed::failure::{Exit, Failure, Milliseconds, cite};
use crate::fed::lines::{Kind, kind};
use crate::manners::go_ahead;

/// How long a program without a problem may take to end by itself.
const GOODBYE_WAIT: Duration = Duration::from_millis(500);

/// How long a program that has just answered for the first time is listened to for a second line. Whoever writes one at
/// all writes it each time.
const SETTLE_WAIT: Duration = Duration::from_millis(10);

/// Between counts of a user's tasks, and how many more there may be by the next.
const BETWEEN_COUNTS: Duration = Duration::from_secs(10);
const ROOM_OF_OTHERS: u64 = 1024;

/// How long a program may take to end that has closed its pipes.
const EXIT_WAIT: Duration = Duration::from_millis(100);

/// A program that waits for its question has read it after so many looks without a pause; then they come at longer and longer
/// intervals.
const QUICK_LOOKS: u32 = 30;
const FIRST_PAUSE: Duration = Duration::from_micros(50);

/// How often a program without a problem is looked at: what it does now is nobody's problem, but the workstation's.
const IDLE_LOOK: Duration = Duration::from_millis(500);

/// Before the programs it must end, on a machine that they keep busy. Only root may.
const NICE: i32 = -5;

pub fn run() -> ! {
    match serve() {
        Ok(()) => exit(0),
        Err(error) => {
            // To the agent's log.
            eprintln!("a program's supervisor failed: {error}");
            tree::end(getpid(), |_, _| ());
            exit(1)
        }
    }
}

/// The agent has gone, or wants it all to end.
struct Left;

/// How a part of a conversation ended.
enum Heard {
    All,
    Not(Failure),
    /// The program has something to do with the question before, and ends: what it leaves in its home is for nobody.
    Retire,
    Left,
}

struct Supervisor {
    plan: Plan,
    requests: File,
    replies: File,
    program: Option<Running>,
    census: Census,
    silence: Silence,
}

/// How many tasks the program's user has: counted now and then, as it reads all of `/proc`.
#[derive(Default)]
struct Census {
    counted: Option<(Instant, u64)>,
}

impl Census {
    /// Most tasks that the user may have while the program runs. What else its user starts meanwhile, perhaps a person, needs
    /// room, too; without any such limit a fork bomb would be larger than the machine before it is seen.
    fn most_tasks(&mut self, plan: &Plan) -> u64 {
        let uid = plan.user.map_or_else(|| getuid().as_raw(), |user| user.uid);
        let is_fresh = |(at, _): &(Instant, u64)| at.elapsed() < BETWEEN_COUNTS;
        let now = || (Instant::now(), tree::tasks_of_user(uid));
        let (_, tasks) = *self.counted.insert(self.counted.filter(is_fresh).unwrap_or_else(now));
        tasks.saturating_add(plan.limits.tasks).saturating_add(ROOM_OF_OTHERS)
    }
}

fn serve() -> io::Result<()> {
    set_child_subreaper(Some(getpid()))?;
    // Its memory is nobody's to look at.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    go_ahead(NICE);
    // Without buffers, so that what can be read can be seen from outside.
    let mut requests = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let replies = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let (plan, _) = match read_frame(&mut requests) {
        Ok(first) => first,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
        Err(error) => return Err(error),
    };
    let plan: Plan = plan;
    let silence = Silence::new(plan.silence_ms.map(Duration::from_millis));
    let mut supervisor = Supervisor { plan, requests, replies, program: None, census: Census::default(), silence };
    loop {
        if !supervisor.idle()? {
            write_frame(&mut supervisor.replies, &Reply::Retired, &[])?;
            return Ok(());
        }
        let (question, body) = match read_frame(&mut supervisor.requests) {
            Ok((Request::Question(question), body)) => (question, body),
            // What was asked before has just been answered.
            Ok((Request::Freeze, _)) => {
                supervisor.silence.broken();
                match stand_still(&mut supervisor.requests, &mut supervisor.replies)? {
                    Ok(_) => continue,
                    Err(Left) => {
                        tree::end(getpid(), |_, _| ());
                        return Ok(());
                    }
                }
            }
            Ok((Request::Alive { lease_end_us }, _)) => {
                supervisor.silence.spoke(lease_end_us);
                continue;
            }
            Ok((Request::Thaw, _)) => continue,
            Err(_) => {
                supervisor.farewell();
                return Ok(());
            }
        };
        supervisor.silence.spoke(question.lease_end_us);
        let answered = match supervisor.plan.mode {
            Mode::Fed => supervisor.ask(&question, body)?,
            Mode::OneShot => supervisor.run_once(&question, &body)?,
        };
        match answered {
            Ok((Reply::Retired, _)) => {
                tree::end(getpid(), |_, _| ());
                write_frame(&mut supervisor.replies, &Reply::Retired, &[])?;
                return Ok(());
            }
            Ok((reply, answer)) => write_frame(&mut supervisor.replies, &reply, &answer)?,
            Err(Left) => {
                tree::end(getpid(), |_, _| ());
                return Ok(());
            }
        }
    }
}

impl Supervisor {
    /// Waits for the agent. False when it has waited long enough, or the program has ended meanwhile, takes too much or speaks without
    /// being asked: the next question is for another, with a home of its own. A program that waits for long stands still as well: an agent
    /// that is stopped cannot end it.
    fn idle(&mut self) -> io::Result<bool> {
        let end = Instant::now() + Duration::from_millis(self.plan.idle_ms);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.farewell();
                return Ok(false);
            }
            let Some(program) = &mut self.program else {
                let timeout = timespec(left);
                match poll(&mut [PollFd::new(&self.requests, PollFlags::IN)], Some(&timeout)) {
                    Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                    Ok(_) => return Ok(true),
                    Err(error) => return Err(error.into()),
                }
            };
            self.silence.check();
            if program.turn(self.requests.as_fd(), left.min(IDLE_LOOK))? == Turn::AgentSpoke {
                return Ok(true);
            }
            if !is_quiet(program) || program.over_limit(&self.plan.area).is_some() {
                program.end();
                self.program = None;
                return Ok(false);
            }
        }
    }

    fn farewell(&mut self) {
        self.silence.broken();
        if let Some(program) = &mut self.program {
            program.say_goodbye(GOODBYE_WAIT);
        }
        tree::end(getpid(), |_, _| ());
        self.program = None;
    }

    /// A line in, a line out.
    fn ask(&mut self, question: &Question, mut line: Vec<u8>) -> io::Result<Result<(Reply, Vec<u8>), Left>> {
        let mut until = Until::after(question.time_limit_ms);
        let end = line.pop().into_iter().chain([b'\n']).collect::<Vec<u8>>();
        let outcome = match self.make_listen(question, &line, &mut until)? {
            Heard::All => self.hear(question, &end, &mut until)?,
            other => other,
        };
        Ok(match (outcome, &mut self.program) {
            (Heard::Left, _) => Err(Left),
            (Heard::Retire, _) => Ok((Reply::Retired, Vec::new())),
            (Heard::Not(failure), _) => Ok((self.failed(failure), Vec::new())),
            (Heard::All, None) => Ok((self.failed(Failure::Closed), Vec::new())),
            (Heard::All, Some(program)) => {
                program.answers += 1;
                program.drain();
                let answer = std::mem::take(&mut program.answer);
                Ok((Reply::Answer { exit_code: 0, stderr: program.tail.take() }, answer))
            }
        })
    }

    /// Gives the program its question without the last byte, and waits until it has read that: so it has done with the one
    /// before, and whatever it has written up to here is no answer to this one, which it cannot know yet. What goes wrong until then
    /// is not this question's, if the program has been used: another is asked. A new one fails the problem.
    fn make_listen(&mut self, question: &Question, line: &[u8], until: &mut Until) -> io::Result<Heard> {
        let is_used = self.program.is_some();
        if let Some(program) = &mut self.program {
            // What it said on standard error before is about problems that have ended well.
            program.tail.take();
            program.feed(line);
        }
        for look in 0.. {
            let program = match &mut self.program {
                Some(program) => program,
                None => match Running::start(&self.plan, question, self.census.most_tasks(&self.plan)) {
                    Ok(started) => {
                        let program = self.program.insert(started);
                        program.feed(line);
                        program
                    }
                    Err(error) => return Ok(Heard::Not(Failure::NotStarted(error.to_string()))),
                },
            };
            let has_read = program.unread() == 0;
            // After that look: what was written before it is there.
            if turn(program, &self.requests, &mut self.silence, pause(look), until)? == Turn::AgentSpoke {
                match obey(&mut self.requests, &mut self.replies, &mut self.silence, until)? {
                    Ok(()) => continue,
                    Err(Left) => return Ok(Heard::Left),
                }
            }
            program.drain();
            if is_quiet(program) && has_read {
                return Ok(Heard::All);
            }
            if !is_quiet(program) && !is_used {
                return Ok(Heard::Not(self.eager()));
            }
            if !is_quiet(program) {
                eprintln!("a program wrote a line too many, or ended, between its problems; another is started");
                return Ok(Heard::Retire);
            }
            match limits(program, &self.plan, question, *until) {
                Some(failure) if is_used => {
                    eprintln!("{failure}, before it had read its next problem; another is started");
                    return Ok(Heard::Retire);
                }
                Some(failure) => return Ok(Heard::Not(failure)),
                None => {}
            }
        }
        unreachable!("it looks as long as it must")
    }

    /// What is wrong with a program that has ended or spoken before it knew its question.
    fn eager(&mut self) -> Failure {
        let Some(program) = &mut self.program else { return Failure::Closed };
        let exit = if program.out.is_empty() { program.exit_within(EXIT_WAIT) } else { None };
        match exit {
            _ if !program.out.is_empty() => Failure::Unread(cite(&program.out)),
            Some(exit) => Failure::EndedUnanswered(exit),
            None => Failure::Closed,
        }
    }

    /// Gives it the end of its question and waits for the answer.
    fn hear(&mut self, question: &Question, end: &[u8], until: &mut Until) -> io::Result<Heard> {
        let Some(program) = &mut self.program else { return Ok(Heard::Not(Failure::Closed)) };
        program.feed(end);
        loop {
            match next_line(program, &question.id) {
                Ok(Some(Line::Progress)) => continue,
                Ok(Some(Line::Answer(answer))) => {
                    program.answer = answer;
                    return settled(program, self.requests.as_fd());
                }
                Ok(None) => {}
                Err(failure) => return Ok(Heard::Not(failure)),
            }
            if let Some(exit) = program.exit {
                // All that it has said is in the pipe, or here.
                let before = program.out.len();
                program.drain();
                if program.out.len() > before {
                    continue;
                }
                let how = format!("the program {exit}");
                return Ok(Heard::Not(unanswered(&program.out, &how, Failure::EndedUnanswered(exit))));
            }
            let is_deaf = program.stdin_is_closed() && program.unread() > 0;
            if program.stdout_is_closed() || is_deaf {
                if program.exit_within(EXIT_WAIT).is_some() {
                    continue;
                }
                let how = "it closed its standard input or output";
                return Ok(Heard::Not(unanswered(&program.out, how, Failure::Closed)));
            }
            if let Some(failure) = limits(program, &self.plan, question, *until) {
                return Ok(Heard::Not(failure));
            }
            let wait = program.next_look();
            if turn(program, &self.requests, &mut self.silence, wait, until)? == Turn::AgentSpoke
                && let Err(Left) = obey(&mut self.requests, &mut self.replies, &mut self.silence, until)?
            {
                return Ok(Heard::Left);
            }
        }
    }

    /// A process for the problem.
    fn run_once(&mut self, question: &Question, input: &[u8]) -> io::Result<Result<(Reply, Vec<u8>), Left>> {
        let mut until = Until::after(question.time_limit_ms);
        let tasks = self.census.most_tasks(&self.plan);
        let program = match Running::start(&self.plan, question, tasks) {
            Ok(program) => self.program.insert(program),
            Err(error) => return Ok(Ok((not_started(&error), Vec::new()))),
        };
        program.feed(input);
        let outcome = loop {
            if program.out.len() > ANSWER_BYTES_LIMIT {
                break Err(Failure::TooMuchOutput(ANSWER_BYTES_LIMIT));
            }
            if let Some(exit) = program.exit {
                // Others may hold the pipe open: what is in it now is what the program has written.
                let before = program.out.len();
                program.drain();
                if program.out.len() > before {
                    continue;
                }
                break match exit {
                    Exit::Code(code) if question.exit_codes.contains(&code) => Ok(code),
                    Exit::Code(_) | Exit::Signal(_) => Err(Failure::Exited(exit)),
                };
            }
            if let Some(failure) = limits(program, &self.plan, question, until) {
                break Err(failure);
            }
            let wait = program.next_look();
            if turn(program, &self.requests, &mut self.silence, wait, &until)? == Turn::AgentSpoke
                && let Err(left) = obey(&mut self.requests, &mut self.replies, &mut self.silence, &mut until)?
            {
                return Ok(Err(left));
            }
        };
        let exit_code = match outcome {
            Ok(exit_code) => exit_code,
            Err(failure) => return Ok(Ok((self.failed(failure), Vec::new()))),
        };
        // Whatever it has left behind goes.
        program.end();
        let output = std::mem::take(&mut program.out);
        let words = program.last_words();
        self.program = None;
        Ok(Ok(match words {
            Ok(stderr) => (Reply::Answer { exit_code, stderr }, output),
            Err(failure) => {
                (Reply::Failed { failure, stderr: String::new(), ended: Ended::BeforeAnyAnswer }, Vec::new())
            }
        }))
    }

    /// Ends the program; the next problem gets another.
    fn failed(&mut self, failure: Failure) -> Reply {
        let Some(mut program) = self.program.take() else {
            return Reply::Failed { failure, stderr: String::new(), ended: Ended::BeforeAnyAnswer };
        };
        if !program.end() {
            eprintln!("a program's processes do not end: the kernel waits for something");
        }
        let ended = if program.answers == 0 { Ended::BeforeAnyAnswer } else { Ended::AfterAnswers };
        match program.last_words() {
            Ok(stderr) => Reply::Failed { failure, stderr, ended },
            Err(failure) => Reply::Failed { failure, stderr: String::new(), ended: Ended::BeforeAnyAnswer },
        }
    }
}

/// A turn of a program with a question. While the program stands still there is nothing to do but to wait for the agent's next word.
fn turn(
    program: &mut Running,
    requests: &File,
    silence: &mut Silence,
    wait: Duration,
    until: &Until,
) -> io::Result<Turn> {
    if silence.check() {
        while let Err(rustix::io::Errno::INTR) = poll(&mut [PollFd::new(requests, PollFlags::IN)], None) {}
        return Ok(Turn::AgentSpoke);
    }
    program.turn(requests.as_fd(), wait.min(until.left()).min(silence.left()))
}

/// Words of the agent while there is a question: that it is alive, that all is to stand still for a while, or, if it is gone, that it is to
/// end.
fn obey(
    requests: &mut File,
    replies: &mut File,
    silence: &mut Silence,
    until: &mut Until,
) -> io::Result<Result<(), Left>> {
    match read_frame(requests) {
        Ok((Request::Freeze, _)) => {
            until.extend(silence.broken());
            let stood = stand_still(requests, replies)?;
            silence.broken();
            Ok(stood.map(|stood| until.extend(stood)))
        }
        Ok((Request::Alive { lease_end_us }, _)) => {
            until.extend(silence.spoke(lease_end_us));
            Ok(Ok(()))
        }
        Ok((Request::Thaw, _)) => Ok(Ok(())),
        Ok((Request::Question(_), _)) | Err(_) => Ok(Err(Left)),
    }
}

/// Stops the whole tree until the agent wants it to go on, and returns for how long. It sleeps meanwhile, and an agent that is gone
/// leaves nothing behind that is stopped.
fn stand_still(requests: &mut File, replies: &mut File) -> io::Result<Result<Duration, Left>> {
    let since = Instant::now();
    let stopped = tree::stop(getpid());
    write_frame(replies, &Reply::Frozen, &[])?;
    loop {
        match read_frame(requests) {
            Ok((Request::Alive { .. }, _)) => {}
            Ok((Request::Thaw, _)) => {
                tree::go_on(&stopped);
                return Ok(Ok(since.elapsed()));
            }
            Ok((Request::Freeze | Request::Question(_), _)) | Err(_) => return Ok(Err(Left)),
        }
    }
}

fn not_started(error: &io::Error) -> Reply {
    let failure = Failure::NotStarted(error.to_string());
    Reply::Failed { failure, stderr: String::new(), ended: Ended::BeforeAnyAnswer }
}

fn timespec(wait: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX), tv_nsec: i64::from(wait.subsec_nanos()) }
}

/// It lives and has said nothing.
fn is_quiet(program: &Running) -> bool {
    program.exit.is_none() && program.out.is_empty() && !program.stdout_is_closed() && !program.stdin_is_closed()
}

fn limits(program: &mut Running, plan: &Plan, question: &Question, until: Until) -> Option<Failure> {
    match question.time_limit_ms {
        Some(ms) if until.left().is_zero() => Some(Failure::TimedOut(Milliseconds(ms))),
        Some(_) | None => program.over_limit(&plan.area),
    }
}

/// Before the next look at what a program has read. Who waits for it reads at once; who starts takes its time.
fn pause(look: u32) -> Duration {
    match look.checked_sub(QUICK_LOOKS) {
        None => {
            std::thread::yield_now();
            Duration::ZERO
        }
        Some(more) => FIRST_PAUSE.saturating_mul(1 << more.min(10)).min(SETTLE_WAIT),
    }
}

enum Line {
    Answer(Vec<u8>),
    Progress,
}

/// Takes a line out of what the program has written, if there is a whole one.
fn next_line(program: &mut Running, id: &str) -> Result<Option<Line>, Failure> {
    let end = program.out.iter().position(|&byte| byte == b'\n');
    if end.unwrap_or(program.out.len()) > ANSWER_BYTES_LIMIT {
        return Err(Failure::TooMuchOutput(ANSWER_BYTES_LIMIT));
    }
    let Some(end) = end else { return Ok(None) };
    let mut line: Vec<u8> = program.out.drain(..=end).collect();
    line.pop();
    match kind(&line, id)? {
        Kind::Progress => Ok(Some(Line::Progress)),
        Kind::Answer => Ok(Some(Line::Answer(line))),
    }
}

/// Nothing may follow an answer.
fn settled(program: &mut Running, requests: BorrowedFd<'_>) -> io::Result<Heard> {
    if program.answers == 0 && program.out.is_empty() && program.exit.is_none() {
        program.turn(requests, SETTLE_WAIT)?;
    }
    Ok(if program.out.is_empty() { Heard::All } else { Heard::Not(Failure::ExtraOutput(cite(&program.out))) })
}

fn unanswered(out: &[u8], how: &str, otherwise: Failure) -> Failure {
    if out.is_empty() { otherwise } else { Failure::HalfLine { bytes: out.len(), how: how.to_owned() } }
}
