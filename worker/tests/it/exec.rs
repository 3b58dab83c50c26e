//! Programs under an agent: what they are for, and what hostile ones can do.

mod apart;
mod examples;
mod files;
mod once;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::farm::{RunningAgent, Server, Session, marked, outcomes};
use pcfarm_worker::builtin::Echo;
use pcfarm_worker::exec::settings::ProgramSettings;
use pcfarm_worker::{Agent, Controller, Problem, Settings};
use serde_json::{Value, json};
use tokio::process::Command;

const PYTHON: &str = "/usr/bin/python3";

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// A farm of one agent with programs whose processes are told by a mark in their environment.
struct Desk {
    dir: tempfile::TempDir,
    server: Server,
    mark: String,
    programs: Vec<ProgramSettings>,
}

impl Desk {
    /// With the puppet as program `puppet`, and `more` said of it, in TOML.
    async fn new(more: &str) -> Desk {
        let mut desk = Desk::empty().await;
        let script = desk.file("puppet.py", include_str!("../programs/puppet.py"));
        desk.program(&format!("name = \"puppet\"\nmode = \"fed\"\npath = \"{PYTHON}\"\nargs = [\"{script}\"]\n{more}"));
        desk
    }

    async fn empty() -> Desk {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let dir = tempfile::tempdir().expect("a directory");
        // Programs may run as nobody.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("ours");
        let mark = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Desk { dir, server: Server::start().await, mark, programs: Vec::new() }
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("ours");
        path.display().to_string()
    }

    fn program(&mut self, text: &str) {
        let mut program: ProgramSettings = toml::from_str(text).expect("a program");
        program.env.insert("MARK".to_owned(), self.mark.clone());
        // Not what these tests are about; those that are do without.
        program.trusted |= !text.contains("trusted");
        self.programs.push(program);
    }

    fn work_dir(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    async fn agent(&mut self, cores: usize) -> (RunningAgent, Session) {
        self.agent_of(Agent::new().controller(Echo), cores).await
    }

    async fn agent_of(&mut self, agent: Agent, cores: usize) -> (RunningAgent, Session) {
        let agent = self.start(agent, cores);
        let (session, _) = self.server.welcomed().await;
        (agent, session)
    }

    fn start(&self, agent: Agent, cores: usize) -> RunningAgent {
        let (programs, work_dir) = (self.programs.clone(), self.work_dir());
        RunningAgent::start(agent, &[&self.server], |settings: &mut Settings| {
            settings.programs = programs;
            settings.work_dir = work_dir;
            settings.cores = cores;
            settings.grace = Duration::from_millis(500);
            settings.supervisor = Some(env!("CARGO_BIN_EXE_pcfarm-worker").into());
        })
    }

    /// What becomes of these problems, one after the other on one core, and then of the agent.
    async fn solve(&mut self, program: &str, payloads: &[Value]) -> Vec<String> {
        let (mut agent, mut session) = self.agent(1).await;
        let results = run(&mut session, 1, program, payloads).await;
        agent.stop.cancel();
        drop(session);
        agent.ended().await.expect("nothing is left");
        self.nothing_is_left().await;
        results
    }

    fn processes(&self) -> Vec<i32> {
        marked(&self.mark)
    }

    /// By their directories.
    fn problems_in_hand(&self) -> usize {
        let entries = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        let programs = entries(self.work_dir()).flat_map(entries);
        programs.flat_map(entries).filter(|path| !path.ends_with("home")).count()
    }

    async fn nothing_is_left(&self) {
        self.wait_until("processes are left", || self.processes().is_empty()).await;
        // The cores outlive the agent's last word for a moment.
        let is_empty = || fs::read_dir(self.work_dir()).is_ok_and(|mut entries| entries.next().is_none());
        self.wait_until("directories are left", is_empty).await;
    }

    /// Processes end by themselves: there is nobody who could tell.
    async fn wait_until(&self, otherwise: &str, mut is_so: impl FnMut() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < end, "{otherwise}: {:?}", self.processes());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Hands out a checkout and waits until it is closed.
async fn run(session: &mut Session, id: i64, program: &str, payloads: &[Value]) -> Vec<String> {
    session.check_out(id, &format!("exec:{program}"), payloads.iter().map(Value::to_string)).await;
    closed(session, id).await
}

/// What became of a checkout's problems, once all of them have ended.
async fn closed(session: &mut Session, id: i64) -> Vec<String> {
    let mut results = BTreeMap::new();
    loop {
        let delivery = session.delivery().await;
        session.acknowledge(&delivery).await;
        for part in &delivery.checkouts {
            results.extend(outcomes(part));
            if part.checkout_id == id && part.finished {
                return results.into_values().collect();
            }
        }
    }
}

fn add(of: &[i32]) -> Value {
    json!({"do": "add", "of": of})
}

fn puppet(what: &str) -> Value {
    json!({"do": what})
}

#[tokio::test]
async fn a_fed_program_is_started_once_and_fed_many_problems() {
    let mut desk = Desk::new("").await;
    let payloads: Vec<Value> = (0..50).map(|_| puppet("count")).collect();
    let results = desk.solve("puppet", &payloads).await;
    let counts: Vec<Value> = results.iter().map(|text| serde_json::from_str(text).expect("JSON")).collect();
    for (n, count) in counts.iter().enumerate() {
        assert_eq!(count["answered"], n, "{counts:?}");
        assert_eq!(count["pid"], counts[0]["pid"]);
    }
}

#[tokio::test]
async fn a_fed_program_is_told_all_that_a_controller_may_know() {
    let mut desk = Desk::new("").await;
    let results = desk.solve("puppet", &[json!({"do": "echo", "big": 12345678901234567890u64, "text": "a\nb"})]).await;
    let seen: Value = serde_json::from_str(&results[0]).expect("JSON");
    assert_eq!(seen["payload"], json!({"do": "echo", "big": 12345678901234567890u64, "text": "a\nb"}));
    assert_eq!((&seen["key"], &seen["attempt"], &seen["job"]), (&json!("0"), &json!(1), &json!("test")));
    assert_eq!(seen["id"], "1000");
}

/// Each between two good problems, on one core.
#[tokio::test]
async fn what_a_program_does_wrong_fails_its_problem_alone() {
    let desk = Desk::new("time_limit = 60\nmemory_mib = 256\nprocesses = 20\ndisk_mib = 64").await;
    let cases = [
        (puppet("refuse"), "no luck; its standard error:\na line on standard error"),
        (
            json!({"do": "exit", "code": 3}),
            "the program exited with code 3 before it answered; its standard error:\nTraceback: it is all over",
        ),
        (json!({"do": "exit", "code": 0}), "exited with code 0 before it answered"),
        (json!({"do": "kill itself", "signal": 11}), "was ended by signal 11 (SIGSEGV) before it answered"),
        (puppet("flood stdout"), "the program wrote more than"),
        (puppet("hog"), "MiB of memory; its limit is 256 MiB"),
        (puppet("hog together"), "MiB of memory; its limit is 256 MiB"),
        (puppet("hog a shared memory"), "MiB of memory; its limit is 256 MiB"),
        (puppet("hog files in memory"), "MiB of memory; its limit is 256 MiB"),
        (puppet("share and fill the disk"), "to its directory; its limit is 64 MiB"),
        (puppet("fill the disk without names"), "to its directory; its limit is 64 MiB"),
        (puppet("fill the disk where no path leads"), "to its directory; its limit is 64 MiB"),
        (puppet("dig"), "more than 200 levels of directories"),
        (puppet("orphan and exit"), "exited with code 1 before it answered"),
        (puppet("bomb"), "its limit is 20"),
        (puppet("fill the disk"), "to its directory; its limit is 64 MiB"),
        (puppet("no json"), r#"the program's answer is not JSON (expected value at line 1 column 1): "hello world""#),
        (puppet("no answer"), r#"not an object with either "result" or "error": "{\"reslut\": 1}""#),
        (puppet("list"), "not an object with either"),
        (puppet("half"), "ends after 12 bytes without a line end (the program exited with code 0)"),
        (puppet("two lines"), r#"more than one line for one question: "{\"result\": 2}""#),
        (puppet("close"), "closed its standard input or output before it answered"),
        (json!({"do": "bytes", "bytes": [b'{', 0xff, 0xfe, b'}', b'\n']}), "the program's answer is not "),
        (json!({"do": "bytes", "bytes": [0, 0, b'\n']}), "the program's answer is not JSON"),
        (json!({"do": "bytes", "bytes": [b'\n']}), "the program's answer is not JSON"),
        (puppet("deep"), "the program's answer is not an object"),
        (puppet("remove its directories"), "exited with code 4 before it answered"),
        (json!({"do": "id", "id": "7"}), r#"another question, by its "id""#),
        (puppet("nul"), "the solution cannot be stored: it contains a NUL character"),
        (json!({"do": "large", "bytes": 1 << 20}), "the solution has 1048578 bytes; at most"),
        (json!({"do": "large", "bytes": 8 << 20}), "the program wrote more than"),
    ];
    each_fails_alone(desk, &cases).await;
}

/// The limit of time is short, so that these cases are quick. The others need more on a busy machine.
#[tokio::test]
async fn a_program_that_takes_too_long_fails_its_problem_alone() {
    let desk = Desk::new("time_limit = 2\nmemory_mib = 256\nprocesses = 20\ndisk_mib = 64").await;
    let cases = [
        (puppet("flood stderr"), "longer than its time limit of 2 s; its standard error ends:\nyyyy"),
        (puppet("loop"), "longer than its time limit of 2 s"),
        (json!({"do": "close stdin"}), "longer than its time limit of 2 s"),
        (puppet("stop itself"), "longer than its time limit of 2 s"),
        (puppet("deaf loop"), "longer than its time limit of 2 s"),
        (puppet("leave a child with the pipes"), "the program"),
    ];
    each_fails_alone(desk, &cases).await;
}

/// Runs each of these problems between two good ones, and expects its failure to say this.
async fn each_fails_alone(mut desk: Desk, cases: &[(Value, &str)]) {
    let (mut agent, mut session) = desk.agent(1).await;
    for (id, (bad, expected)) in (1..).zip(cases) {
        let results = run(&mut session, id, "puppet", &[add(&[1, 2]), bad.clone(), add(&[3, 4])]).await;
        assert_eq!((results[0].as_str(), results[2].as_str()), ("3", "7"), "{bad}: {results:?}");
        assert!(results[1].starts_with("failed: ") && results[1].contains(expected), "{bad}: {}", results[1]);
        // One program, for the last problem. All else that was started is gone.
        assert_eq!(desk.processes().len(), 1, "{bad} left processes");
    }
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
    desk.nothing_is_left().await;
}

/// A program that does so before it reads on is replaced, and its home with it.
#[tokio::test]
async fn what_a_program_leaves_in_its_home_is_no_other_programs() {
    let mut desk = Desk::new("disk_mib = 64").await;
    let fill = puppet("answer and fill its home");
    let results = desk.solve("puppet", &[fill.clone(), add(&[1, 2]), fill, puppet("look at its home")]).await;
    assert_eq!(results, ["\"answered\"", "3", "\"answered\"", "[]"]);
}

/// What is shared counts once.
#[tokio::test]
async fn a_program_may_share_what_it_has_with_its_children() {
    let mut desk = Desk::new("memory_mib = 256").await;
    assert_eq!(desk.solve("puppet", &[puppet("share")]).await, ["\"shared\""]);
}

/// One that runs as the agent's user may make what it likes beside its own directory.
#[tokio::test]
async fn a_program_cannot_take_the_place_of_the_next_problem() {
    let mut desk = Desk::new("").await;
    let results = desk.solve("puppet", &[puppet("make other problems' directories"), add(&[1, 2]), add(&[3, 4])]).await;
    assert_eq!(results[1..], ["3", "7"]);
}

#[tokio::test]
async fn a_line_too_many_is_never_another_problems_answer() {
    let mut desk = Desk::new("").await;
    // The first of a program is listened to for a moment, later ones are not.
    let payloads: Vec<Value> =
        (0..5).flat_map(|n| [add(&[n]), puppet("late line"), json!({"do": "add", "of": [n, 1]})]).collect();
    let results = desk.solve("puppet", &payloads).await;
    for (n, three) in results.chunks(3).enumerate() {
        assert_eq!(three, [n.to_string(), "1".to_owned(), (n + 1).to_string()]);
    }
}

#[tokio::test]
async fn what_a_program_says_on_standard_error_goes_with_its_solutions_if_its_owner_wants_that() {
    let mut desk = Desk::new("keep_stderr = true").await;
    let muttering = |bytes: &str| json!({"do": "mutter", "bytes": bytes});
    let results = desk.solve("puppet", &[muttering("reading\n"), muttering(""), muttering("\0\u{e9}")]).await;
    let results: Vec<Value> = results.iter().map(|json| serde_json::from_str(json).expect("JSON")).collect();
    assert_eq!(results[0], json!({"result": 1, "stderr": "reading\n"}));
    assert_eq!(results[1], json!({"result": 1, "stderr": ""}), "each has its own");
    assert_eq!(results[2], json!({"result": 1, "stderr": "\u{fffd}\u{fffd}"}), "it can be stored");
}

#[tokio::test]
async fn an_answer_before_the_question_is_nobodys() {
    let mut desk = Desk::empty().await;
    let script = desk.file("eager.py", "import time\nprint('{\"result\": 1}', flush=True)\ntime.sleep(1000)\n");
    desk.program(&format!("name = \"eager\"\nmode = \"fed\"\npath = \"{PYTHON}\"\nargs = [\"{script}\"]"));
    let results = desk.solve("eager", &[json!(1), json!(2)]).await;
    for result in results {
        assert_eq!(result, r#"failed: the program wrote something before it had read its question: "{\"result\": 1}""#);
    }
}

#[tokio::test]
async fn a_program_that_cannot_start_fails_its_problems_and_one_that_is_not_there_is_not_announced() {
    let mut desk = Desk::empty().await;
    let script = desk.file("script", "#!/nowhere/interpreter\n");
    desk.program(&format!("name = \"broken\"\nmode = \"fed\"\npath = \"{script}\""));
    desk.program(&format!("name = \"broken-once\"\nmode = \"one-shot\"\npath = \"{script}\""));
    desk.program("name = \"missing\"\nmode = \"fed\"\npath = \"/nowhere/program\"");
    let settings_programs = desk.programs.clone();
    let work_dir = desk.work_dir();
    let mut agent = RunningAgent::start(Agent::new(), &[&desk.server], |settings| {
        settings.programs = settings_programs;
        settings.work_dir = work_dir;
        settings.supervisor = Some(env!("CARGO_BIN_EXE_pcfarm-worker").into());
    });
    let (mut session, hello) = desk.server.welcomed().await;
    assert_eq!(hello.controllers, ["exec:broken", "exec:broken-once"]);
    for (id, program) in [(1, "broken"), (2, "broken-once")] {
        let results = run(&mut session, id, program, &[json!(1), json!(2), json!(3), json!(4), json!(5)]).await;
        for result in results {
            assert!(
                result.starts_with(&format!("failed: the program cannot be started: {script}"))
                    && result.contains(": No such file"),
                "{result}"
            );
        }
    }
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
    desk.nothing_is_left().await;
}

#[tokio::test]
async fn a_problem_of_a_program_may_enqueue_others() {
    let mut desk = Desk::new("").await;
    let (mut agent, mut session) = desk.agent(1).await;
    session.check_out(1, "exec:puppet", [puppet("enqueue").to_string()]).await;
    let delivery = session.delivery().await;
    session.acknowledge(&delivery).await;
    let more = delivery.checkouts[0].results[0].more.as_ref().expect("it brings something");
    assert_eq!((more.enqueue[0].key.as_str(), &more.enqueue[0].payload[..]), ("next", &br#"{"n":1}"#[..]));
    assert_eq!(&more.info[..], br#"{"seen":true}"#);
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

#[tokio::test]
async fn a_program_without_problems_ends_and_is_started_again() {
    let mut desk = Desk::new("idle = 0.05").await;
    let (mut agent, mut session) = desk.agent(1).await;
    for id in 1..=3 {
        assert_eq!(run(&mut session, id, "puppet", &[add(&[1]), add(&[2])]).await, ["1", "2"]);
        desk.wait_until("it does not end", || desk.processes().is_empty()).await;
    }
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
    desk.nothing_is_left().await;
}

/// However many have waited for another problem.
#[tokio::test]
async fn programs_that_have_ended_meanwhile_fail_nothing() {
    const CORES: usize = 8;
    let mut desk = Desk::new("idle = 2").await;
    let (mut agent, mut session) = desk.agent(CORES).await;
    let waiting = json!({"do": "wait", "seconds": 10});
    session.check_out(1, "exec:puppet", vec![waiting.to_string(); CORES]).await;
    desk.wait_until("they are not there together", || desk.processes().len() == CORES).await;
    assert_eq!(closed(&mut session, 1).await, vec!["\"waited\""; CORES]);
    desk.wait_until("they do not end", || desk.processes().is_empty()).await;
    assert_eq!(run(&mut session, 2, "puppet", &[add(&[1])]).await, ["1"]);
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
    desk.nothing_is_left().await;
}

#[tokio::test]
async fn an_agent_whose_list_is_wrong_does_not_start() {
    let mut desk = Desk::empty().await;
    desk.program("name = \"a\"\nmode = \"fed\"\npath = \"/bin/cat\"");
    desk.programs.push(desk.programs[0].clone());
    let (programs, work_dir) = (desk.programs.clone(), desk.work_dir());
    let mut agent = RunningAgent::start(Agent::new(), &[&desk.server], |settings| {
        settings.programs = programs;
        settings.work_dir = work_dir;
    });
    let error = agent.ended().await.expect_err("two of one name");
    assert_eq!(error.exit_code(), 2);
}
