//! Problems to programs, on the cores of the agent.
//!
//! Owns the supervisors of one program, at most one for each core that works on it, and what its answers mean. Like any
//! controller it is called on the agent's cores and asks whether its work is still wanted.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::controller::{Controller, Problem};
use crate::exec::arguments::{Values, fill};
use crate::exec::devices::Devices;
use crate::exec::directory::{Area, ProblemDir};
use crate::exec::instance::{Asked, Instance, lease_end_us};
use crate::exec::outputs::{self, Wanted};
use crate::exec::plan::{Ended, Plan, Question, Reply};
use crate::exec::settings::{AnswerIs, Mode, Program, StdinIs};
use crate::exec::silence;
use crate::fed::failure::{Failure, cite, message};
use crate::fed::lines::{self, storable, text};
use crate::files::{Files, Kept, Made, Uploaded};
use crate::manners::Rank;
use crate::named;
use crate::presence::Directive;
use crate::presence::policy::Activity;
use crate::settings::{Settings, SettingsError};
use crate::solve::Controllers;
use uuid::Uuid;

/// So many problems may fail at once before the next ones are slowed down: a program that cannot work here must not fail a
/// whole job in seconds.
const QUICK_FAILURES: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How often a waiting problem asks whether it is still wanted.
const STEP: Duration = Duration::from_millis(20);

/// A supervisor that retires in the moment of a question is replaced, and one whose directory cannot be made; more often than that
/// it is the workstation that is at fault.
const TRIES: u32 = 3;

/// The programs of an agent. Dropped, they are ended, and nothing of them is left on the disk.
#[derive(Default)]
pub struct Programs {
    all: Vec<Arc<Exec>>,
    _area: Option<Arc<Area>>,
}

impl Programs {
    /// Gives an agent the programs of its owner's list that are installed here.
    pub fn add(
        settings: &Settings,
        identity: Uuid,
        files: Arc<Files>,
        controllers: &mut Controllers,
    ) -> Result<Programs, SettingsError> {
        let programs = settings.checked_programs()?;
        if programs.is_empty() {
            return Ok(Programs::default());
        }
        let supervisor = settings.supervisor.clone().ok_or(SettingsError::NoSupervisor)?;
        let base = settings.work_dir.join(identity.to_string());
        let area = Area::open(&base).map_err(|source| SettingsError::WorkDir { path: base, source })?;
        let mut hidden = settings.hide.clone();
        hidden.extend([settings.state_dir.clone(), area.path().to_owned()]);
        // The agent may read what people type, to know that they do; nobody's program may.
        hidden.extend([settings.presence.dev.join("input"), PathBuf::from("/dev/input")]);
        // Supervisors have another working directory.
        let hidden: Vec<PathBuf> = hidden.into_iter().map(|path| path.canonicalize().unwrap_or(path)).collect();
        let area = Arc::new(area);
        let mut all = Vec::new();
        for program in programs {
            let name = program.controller();
            if let Err(why) = program.installed() {
                warn!(controller = name, why, "program is not installed here: its problems are for other workstations");
                continue;
            }
            let shared = (Arc::clone(&area), Arc::clone(&files));
            let mut exec = Exec::new(program, supervisor.clone(), hidden.clone(), shared);
            exec.is_attended = !settings.presence.policy.unattended;
            if settings.gpu {
                // The fence closes all devices that are not named.
                exec.devices = Devices::of_gpus(Path::new("/"));
            }
            let exec = Arc::new(exec);
            if !controllers.add_as(name.clone(), OnCores(Arc::clone(&exec))) {
                return Err(SettingsError::DuplicateController(name));
            }
            all.push(exec);
        }
        Ok(Programs { all, _area: Some(area) })
    }
}

impl Programs {
    /// Programs that wait for their next problem may compute, and their supervisors look at them: they end when somebody comes.
    /// Never ends.
    pub async fn give_way(&self, mut directives: watch::Receiver<Directive>) {
        loop {
            let rests = directives.borrow_and_update().activity != Activity::Work;
            for exec in &self.all {
                exec.rests.store(rests, Ordering::Relaxed);
            }
            if rests {
                end_idle(&self.all);
            }
            if directives.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// All are told before any is waited for; who waits is a thread of its own.
fn end_idle(all: &[Arc<Exec>]) {
    let mut idle: Vec<Instance> = all.iter().flat_map(|exec| std::mem::take(&mut *exec.idle())).collect();
    idle.iter_mut().for_each(Instance::dismiss);
    if idle.is_empty() {
        return;
    }
    drop(std::thread::Builder::new().name("pcfarm-ending".to_owned()).spawn(move || drop(idle)));
}

impl Drop for Programs {
    /// The cores may hold controllers for a moment longer than the agent does, so that it is done here. All are told before
    /// any is waited for.
    fn drop(&mut self) {
        let mut idle: Vec<Instance> = self.all.iter().flat_map(|exec| std::mem::take(&mut *exec.idle())).collect();
        idle.iter_mut().for_each(Instance::dismiss);
    }
}

/// A program as the agent's cores have it.
struct OnCores(Arc<Exec>);

impl Controller for OnCores {
    const NAME: &'static str = "exec";
    type Payload = Box<RawValue>;
    type Solution = Box<RawValue>;

    fn solve(&self, problem: &Problem<'_, Box<RawValue>>) -> anyhow::Result<Box<RawValue>> {
        self.0.solve(problem)
    }
}

/// One program of the owner's list.
struct Exec {
    program: Program,
    supervisor: PathBuf,
    hidden: Vec<PathBuf>,
    area: Arc<Area>,
    files: Arc<Files>,
    idle: Mutex<Vec<Instance>>,
    /// Somebody is there.
    rests: AtomicBool,
    /// The workstation has a person.
    is_attended: bool,
    devices: Devices,
    failures: Mutex<Failures>,
}

#[derive(Default)]
struct Failures {
    in_a_row: u32,
    has_answered: bool,
    pause_until: Option<Instant>,
}

/// How a problem has ended, as far as it tells of its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Answered,
    /// A process that was to answer more than one problem failed after others.
    Failed,
    /// A process failed that had answered nothing. If it was for this problem alone, the problem may be what is wrong.
    Unanswered {
        alone: bool,
    },
    /// It never came to the program.
    NotStarted,
}

impl Failures {
    /// How long the next problems wait.
    fn note(&mut self, outcome: Outcome) -> Option<Duration> {
        self.has_answered |= outcome == Outcome::Answered;
        let is_of_program = match outcome {
            Outcome::Answered | Outcome::Failed => false,
            Outcome::Unanswered { alone } => !(alone && self.has_answered),
            Outcome::NotStarted => true,
        };
        if !is_of_program {
            self.in_a_row = 0;
            return None;
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        let over = self.in_a_row.checked_sub(QUICK_FAILURES + 1)?;
        Some(FIRST_PAUSE.saturating_mul(1 << over.min(10)).min(LONGEST_PAUSE))
    }
}

impl Exec {
    /// `hidden` is what the program must not read; `supervisor` is this binary.
    pub fn new(
        program: Program,
        supervisor: PathBuf,
        hidden: Vec<PathBuf>,
        (area, files): (Arc<Area>, Arc<Files>),
    ) -> Exec {
        info!(
            program = program.name,
            path = %program.path.display(),
            uid = program.user.map(|user| user.uid),
            memory_mib = program.limits.memory_bytes >> 20,
            fenced = super::fence::available(),
            "program"
        );
        Exec {
            program,
            supervisor,
            hidden,
            area,
            files,
            idle: Mutex::default(),
            rests: AtomicBool::new(false),
            is_attended: false,
            devices: Devices::default(),
            failures: Mutex::default(),
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Instance>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For the next problem; nothing waits for one while somebody is there.
    fn keep(&self, instance: Instance) {
        let mut idle = self.idle();
        if !instance.is_spent() && !self.rests.load(Ordering::Relaxed) {
            idle.push(instance);
            return;
        }
        drop(idle);
        drop(instance);
    }

    fn instance(&self) -> anyhow::Result<Instance> {
        if self.devices.have_changed() {
            let before = std::mem::take(&mut *self.idle());
            drop(before);
        }
        // The lock is not held while one that has retired ends.
        while let Some(instance) = { self.idle().pop() } {
            if !instance.has_retired() {
                return Ok(instance);
            }
        }
        self.new_instance()
    }

    fn new_instance(&self) -> anyhow::Result<Instance> {
        let program = &self.program;
        let place = self.area.place(program.user, program.mode).context("the program's directory")?;
        // Text without placeholders: a fed program's arguments are the same for all problems.
        let payload = Value::Null;
        let nothing = Values { id: 0, key: "", attempt: 0, job: "", directory: "", payload: &payload };
        let args = if program.mode == Mode::Fed { fill(&program.args, &nothing)? } else { Vec::new() };
        let plan = Plan {
            path: program.path.clone(),
            mode: program.mode,
            args,
            environment: program.environment.clone(),
            user: program.user,
            limits: program.limits,
            nice: program.nice,
            is_guest: Rank::of_this_thread() == Rank::Guest,
            hidden: self.hidden.clone(),
            writable: program.writable.iter().cloned().chain(self.devices.now()).collect(),
            network: program.network,
            home: place.home(),
            area: place.path().to_owned(),
            idle_ms: u64::try_from(program.idle.as_millis()).unwrap_or(u64::MAX),
            silence_ms: self.is_attended.then(|| u64::try_from(silence::LIMIT.as_millis()).unwrap_or(u64::MAX)),
        };
        debug!(program = program.name, "supervisor starts");
        Instance::start(&self.supervisor, &plan, place).context("the program's supervisor cannot be started")
    }

    /// Waits, if the last problems failed because of the program itself.
    fn back_off(&self, is_cancelled: impl Fn() -> bool) -> anyhow::Result<()> {
        let until = self.failures.lock().unwrap_or_else(PoisonError::into_inner).pause_until;
        while let Some(left) = until.and_then(|until| until.checked_duration_since(Instant::now())) {
            ensure!(!is_cancelled(), "cancelled");
            std::thread::sleep(left.min(STEP));
        }
        Ok(())
    }

    fn note(&self, outcome: Outcome) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let pause = failures.note(outcome);
        if pause.is_some_and(|pause| pause == FIRST_PAUSE) {
            warn!(program = self.program.name, "it fails again and again without an answer: its problems wait now");
        }
        failures.pause_until = pause.and_then(|pause| Instant::now().checked_add(pause));
    }

    fn question(&self, problem: &Problem<'_, Box<RawValue>>, directory: &str) -> anyhow::Result<(Question, Vec<u8>)> {
        let program = &self.program;
        let (args, body) = match program.mode {
            Mode::Fed => (Vec::new(), lines::question(problem, Some(directory))?),
            Mode::OneShot => {
                let payload: Value = serde_json::from_str(problem.payload().get())?;
                let values = Values {
                    id: problem.problem_id().0,
                    key: problem.key(),
                    attempt: problem.attempt(),
                    job: problem.job_name(),
                    directory,
                    payload: &payload,
                };
                let stdin = match program.stdin {
                    StdinIs::Nothing => Vec::new(),
                    // As it came, big numbers included; a text without its quotes.
                    StdinIs::Payload if payload.is_string() => text(&payload).into_bytes(),
                    StdinIs::Payload => problem.payload().get().as_bytes().to_vec(),
                };
                (fill(&program.args, &values)?, stdin)
            }
        };
        let question = Question {
            id: problem.problem_id().to_string(),
            time_limit_ms: program.time_limit.map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)),
            lease_end_us: lease_end_us(problem.checkout),
            args,
            directory: directory.into(),
            exit_codes: program.exit_codes.clone(),
        };
        Ok((question, body))
    }

    fn replied(
        &self,
        problem: &Problem<'_, Box<RawValue>>,
        (reply, body): (Reply, Vec<u8>),
        directory: &Path,
    ) -> anyhow::Result<Box<RawValue>> {
        let program = &self.program;
        match reply {
            Reply::Answer { exit_code, stderr } => {
                self.note(Outcome::Answered);
                let said = program.keep_stderr.then(|| stderr.clone());
                let (result, wanted) = match program.mode {
                    Mode::Fed => {
                        let answer = lines::answer(problem, &body, &stderr)?;
                        (answer.result, answer.files.map(named_outputs).transpose()?)
                    }
                    Mode::OneShot => {
                        let result = one_shot_answer(program.answer, exit_code, body, stderr)?;
                        (result, Some(program.outputs.clone()).filter(|outputs| !outputs.is_empty()))
                    }
                };
                let sent = wanted.map(|wanted| self.send_outputs(problem, &wanted, directory)).transpose()?;
                match (&sent, &said) {
                    (None, None) => Ok(result),
                    _ => outputs::with_more(&result, sent.as_ref(), said.as_deref()),
                }
            }
            Reply::Failed { failure, stderr, ended } => {
                self.note(match (&failure, ended) {
                    (Failure::NotStarted(_), _) => Outcome::NotStarted,
                    (_, Ended::BeforeAnyAnswer) => Outcome::Unanswered { alone: program.mode == Mode::OneShot },
                    (_, Ended::AfterAnswers) => Outcome::Failed,
                });
                Err(anyhow!(message(&failure.to_string(), &stderr)))
            }
            Reply::Frozen | Reply::Retired => bail!("the program's supervisor retired"),
        }
    }

    /// Sends the files that the program has made, before the solution that names them.
    fn send_outputs(
        &self,
        problem: &Problem<'_, Box<RawValue>>,
        wanted: &[Wanted],
        directory: &Path,
    ) -> anyhow::Result<BTreeMap<String, Uploaded>> {
        let mut sent = BTreeMap::new();
        for (name, file) in outputs::collect(directory, wanted, self.program.user)? {
            let made = Made { of: problem.checkout.key, problem: problem.problem_id(), name };
            let uploaded = self.files.put(&made, file, &|| problem.cancelled())?;
            sent.insert(made.name, uploaded);
        }
        Ok(sent)
    }

    /// The files that a problem and its job have, in the agent's hands for as long as what is returned lives. They are fetched
    /// before the problem's time begins.
    fn fetch(&self, problem: &Problem<'_, Box<RawValue>>) -> anyhow::Result<Vec<(String, Kept<'_>)>> {
        let named = named::files(problem.checkout, problem.payload().get().as_bytes())?;
        let fetched = named.into_iter().map(|(name, hash)| {
            let kept = self.files.get(hash, problem.checkout.key, &|| problem.cancelled())?;
            Ok((name, kept))
        });
        fetched.collect()
    }

    fn solve(&self, problem: &Problem<'_, Box<RawValue>>) -> anyhow::Result<Box<RawValue>> {
        self.back_off(|| problem.cancelled())?;
        let files = self.fetch(problem)?;
        let mut last = None;
        for tried in 1..=TRIES {
            // One that has just been started does not retire.
            let instance = if tried < TRIES { self.instance() } else { self.new_instance() };
            let prepared = instance.and_then(|instance| {
                let directory = self.directory(&instance, problem, &files)?;
                Ok((instance, directory))
            });
            let (mut instance, directory) = match prepared {
                Ok(prepared) => prepared,
                Err(error) => {
                    last = Some(error);
                    continue;
                }
            };
            let (question, body) = self.question(problem, &directory.path().display().to_string())?;
            problem.checkout.stand_still();
            match instance.ask(question, &body, problem.checkout) {
                Asked::Replied(Reply::Retired, _) => debug!(program = self.program.name, "supervisor retired"),
                Asked::Replied(reply, answer) => {
                    let has_failed = matches!(reply, Reply::Failed { .. });
                    let solved = self.replied(problem, (reply, answer), directory.path());
                    drop(directory);
                    // Another program finds nothing of this one's.
                    let is_clean = match self.program.mode {
                        Mode::Fed => !has_failed,
                        Mode::OneShot => instance.place().is_empty(),
                    };
                    if is_clean {
                        self.keep(instance);
                    }
                    return solved;
                }
                Asked::Cancelled => bail!("cancelled"),
                Asked::Lost(why) => {
                    self.note(Outcome::NotStarted);
                    bail!(why)
                }
            }
        }
        self.note(Outcome::NotStarted);
        Err(last.unwrap_or_else(|| anyhow!("the program's supervisors retire again and again")))
    }

    /// Where it works on a problem. A program of the agent's own user may have made something there before, for a problem that is not
    /// its own: it is another's turn then, elsewhere.
    fn directory(
        &self,
        instance: &Instance,
        problem: &Problem<'_, Box<RawValue>>,
        files: &[(String, Kept<'_>)],
    ) -> anyhow::Result<ProblemDir> {
        let directory = instance.place().problem(&problem.problem_id().to_string())?;
        for (name, kept) in files {
            // Read-only: what is behind the link is the agent's.
            symlink(kept.path(), directory.path().join(name)).with_context(|| format!("giving it {name}"))?;
        }
        Ok(directory)
    }
}

/// What an answer names, name by name.
fn named_outputs(names: Vec<String>) -> anyhow::Result<Vec<Wanted>> {
    let exact = |name: String| match Wanted::parse(&name).filter(|_| !name.contains('*')) {
        Some(wanted) => Ok(wanted),
        None => Err(anyhow!("the program's answer names a file {name:?}: letters, digits and _ . - are names")),
    };
    names.into_iter().map(exact).collect()
}

fn one_shot_answer(answer: AnswerIs, exit_code: i32, output: Vec<u8>, stderr: String) -> anyhow::Result<Box<RawValue>> {
    let failed = |reason: String| anyhow!(message(&reason, &stderr));
    let output = String::from_utf8(output).map_err(|error| {
        failed(format!("the program's output is not UTF-8 from byte {} on", error.utf8_error().valid_up_to()))
    })?;
    let without_nul = |text: &str| text.replace('\0', "\u{fffd}");
    match answer {
        AnswerIs::Text => {
            let text = without_nul(output.strip_suffix('\n').unwrap_or(&output));
            Ok(serde_json::value::to_raw_value(&text)?)
        }
        AnswerIs::Json => {
            let parsed: Result<Box<RawValue>, _> = serde_json::from_str(&output);
            let cited = cite(output.as_bytes());
            storable(parsed.map_err(|error| failed(format!("the program's output is not JSON ({error}): {cited}")))?)
        }
        AnswerIs::Report => {
            let report = serde_json::json!({"exit_code": exit_code, "stdout": without_nul(&output), "stderr": stderr});
            Ok(serde_json::value::to_raw_value(&report)?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_never_works_here_is_slowed_down_and_a_bad_problem_slows_nobody() {
        let pauses = |outcomes: &[Outcome]| {
            let mut failures = Failures::default();
            outcomes
                .iter()
                .map(|&outcome| failures.note(outcome).map_or(0, |pause| pause.as_millis()))
                .collect::<Vec<_>>()
        };
        for outcome in [Outcome::NotStarted, Outcome::Unanswered { alone: false }, Outcome::Unanswered { alone: true }]
        {
            assert_eq!(pauses(&[outcome; 10]), [0, 0, 0, 100, 200, 400, 800, 1600, 2000, 2000], "{outcome:?}");
        }
        let mut outcomes = vec![Outcome::Answered];
        outcomes.extend([Outcome::Unanswered { alone: true }; 10]);
        assert!(pauses(&outcomes).iter().all(|&pause| pause == 0), "problems of a program that works may all be bad");
        outcomes[1..].fill(Outcome::Unanswered { alone: false });
        assert_eq!(pauses(&outcomes)[4..6], [100, 200], "it does not work any more");
        assert_eq!(pauses(&[Outcome::Failed; 10]), [0; 10]);
    }

    #[test]
    fn output_becomes_what_was_asked_for() {
        let of = |answer, output: &[u8]| {
            one_shot_answer(answer, 0, output.to_vec(), "noise".to_owned()).map(|json| json.get().to_owned())
        };
        assert_eq!(of(AnswerIs::Text, b"a\n\n").expect("text"), r#""a\n""#);
        assert_eq!(of(AnswerIs::Text, b"a\0").expect("text"), "\"a\u{fffd}\"");
        assert_eq!(
            of(AnswerIs::Json, b" {\"n\": 123456789012345678901234567890}\n").expect("JSON"),
            r#"{"n": 123456789012345678901234567890}"#
        );
        assert_eq!(of(AnswerIs::Report, b"x").expect("a report"), r#"{"exit_code":0,"stderr":"noise","stdout":"x"}"#);
        for (answer, output, expected) in [
            (AnswerIs::Text, &b"ab\xff"[..], "not UTF-8 from byte 2 on; its standard error:\nnoise"),
            (AnswerIs::Json, b"7 8", "not JSON"),
            (AnswerIs::Json, b"\"\\u0000\"", "NUL"),
        ] {
            let error = of(answer, output).expect_err(expected).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
