//! Programs under an agent: what they are for, and what hostile ones can do.
#![cfg(target_os = "linux")]

mod farm;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use farm::{RunningAgent, Server, Session, marked, outcomes};
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
        let script = desk.file("puppet.py", include_str!("programs/puppet.py"));
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
        let (programs, work_dir) = (self.programs.clone(), self.work_dir());
        let agent = RunningAgent::start(agent, &[&self.server], |settings: &mut Settings| {
            settings.programs = programs;
            settings.work_dir = work_dir;
            settings.cores = cores;
            settings.grace = Duration::from_millis(500);
            settings.supervisor = Some(env!("CARGO_BIN_EXE_pcfarm-worker").into());
        });
        let (session, _) = self.server.welcomed().await;
        (agent, session)
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
    let mut desk = Desk::new("time_limit = 2\nmemory_mib = 256\nprocesses = 20\ndisk_mib = 64").await;
    let (mut agent, mut session) = desk.agent(1).await;
    let cases = [
        (puppet("refuse"), "no luck; its standard error:\na line on standard error"),
        (
            json!({"do": "exit", "code": 3}),
            "the program exited with code 3 before it answered; its standard error:\nTraceback: it is all over",
        ),
        (json!({"do": "exit", "code": 0}), "exited with code 0 before it answered"),
        (json!({"do": "kill itself", "signal": 11}), "was ended by signal 11 (SIGSEGV) before it answered"),
        (puppet("flood stdout"), "the program wrote more than"),
        (puppet("flood stderr"), "longer than its time limit of 2 s; its standard error ends:\nyyyy"),
        (puppet("loop"), "longer than its time limit of 2 s"),
        (puppet("hog"), "MiB of memory; its limit is 256 MiB"),
        (puppet("hog together"), "MiB of memory; its limit is 256 MiB"),
        (puppet("orphan and exit"), "exited with code 1 before it answered"),
        (puppet("bomb"), "its limit is 20"),
        (puppet("fill the disk"), "to its directory; its limit is 64 MiB"),
        (puppet("no json"), r#"the program's answer is not JSON (expected value at line 1 column 1): "hello world""#),
        (puppet("no answer"), r#"not an object with either "result" or "error": "{\"reslut\": 1}""#),
        (puppet("list"), "not an object with either"),
        (puppet("half"), "ends after 12 bytes without a line end (the program exited with code 0)"),
        (puppet("two lines"), r#"more than one line for one question: "{\"result\": 2}""#),
        (puppet("close"), "closed its standard input or output before it answered"),
        (json!({"do": "close stdin"}), "longer than its time limit of 2 s"),
        (json!({"do": "bytes", "bytes": [b'{', 0xff, 0xfe, b'}', b'\n']}), "the program's answer is not "),
        (json!({"do": "bytes", "bytes": [0, 0, b'\n']}), "the program's answer is not JSON"),
        (json!({"do": "bytes", "bytes": [b'\n']}), "the program's answer is not JSON"),
        (puppet("deep"), "the program's answer is not an object"),
        (puppet("stop itself"), "longer than its time limit of 2 s"),
        (puppet("deaf loop"), "longer than its time limit of 2 s"),
        (puppet("remove its directories"), "exited with code 4 before it answered"),
        (puppet("leave a child with the pipes"), "the program"),
        (json!({"do": "id", "id": "7"}), r#"another question, by its "id""#),
        (puppet("nul"), "the solution cannot be stored: it contains a NUL character"),
        (json!({"do": "large", "bytes": 1 << 20}), "the solution has 1048578 bytes; at most"),
        (json!({"do": "large", "bytes": 8 << 20}), "the program wrote more than"),
    ];
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
async fn a_revoked_problem_is_ended_with_all_it_has_started() {
    let mut desk = Desk::new("").await;
    let (mut agent, mut session) = desk.agent(2).await;
    session.check_out(1, "exec:puppet", [puppet("orphan").to_string(), puppet("loop").to_string()]).await;
    desk.wait_until("it does not start", || desk.processes().len() >= 3).await;
    session.revoke(1).await;
    let results = run(&mut session, 2, "puppet", &[add(&[1]), add(&[2])]).await;
    assert_eq!(results, ["1", "2"]);
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
    desk.nothing_is_left().await;
}

#[tokio::test]
async fn a_supervisor_that_is_frozen_holds_no_core() {
    let mut desk = Desk::new("").await;
    let (mut agent, mut session) = desk.agent(1).await;
    assert_eq!(run(&mut session, 1, "puppet", &[add(&[1])]).await, ["1"]);
    let program = desk.processes()[0];
    let status = fs::read_to_string(format!("/proc/{program}/status")).expect("it is fed");
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).expect("it has one").trim();
    let supervisor = rustix::process::Pid::from_raw(parent.parse().expect("a number")).expect("a process");
    rustix::process::kill_process(supervisor, rustix::process::Signal::STOP).expect("it is ours");
    // More than a pipe holds: nobody reads it.
    let long = json!({"do": "add", "of": [], "more": "x".repeat(1 << 20)});
    session.check_out(2, "exec:puppet", [long.to_string()]).await;
    desk.wait_until("it is not asked", || desk.problems_in_hand() == 1).await;
    session.revoke(2).await;
    assert_eq!(run(&mut session, 3, "puppet", &[add(&[2])]).await, ["2"]);
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
    desk.nothing_is_left().await;
}

#[tokio::test]
async fn programs_end_with_an_agent_that_is_killed() {
    let mut desk = Desk::new("").await;
    let config = desk.dir.path().join("worker.toml");
    let script = desk.dir.path().join("puppet.py").display().to_string();
    let text = format!(
        "state_dir = {:?}\nwork_dir = {:?}\n[[program]]\nname = \"puppet\"\nmode = \"fed\"\npath = \"{PYTHON}\"\nargs = [{script:?}]\n\
         trusted = true\nenv = {{ MARK = {:?} }}\n",
        desk.dir.path().join("state"),
        desk.work_dir(),
        desk.mark,
    );
    fs::write(&config, text).expect("written");
    let start = |server: &Server| {
        Command::new(env!("CARGO_BIN_EXE_pcfarm-worker"))
            .args(["--server", &server.url(), "--cores", "2", "--unattended", "--config"])
            .arg(&config)
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("the agent starts")
    };
    let mut agent = start(&desk.server);
    let (session, hello) = desk.server.welcomed().await;
    assert!(hello.controllers.contains(&"exec:puppet".to_owned()));
    session.check_out(1, "exec:puppet", [puppet("orphan").to_string(), puppet("loop").to_string()]).await;
    desk.wait_until("it does not start", || desk.processes().len() >= 3).await;
    agent.kill().await.expect("it runs");
    desk.wait_until("processes are left", || desk.processes().is_empty()).await;
    drop(session);

    // What it has left on the disk is gone when its successor has started.
    let litter = |dir: &Path| fs::read_dir(dir).map_or(0, |entries| entries.flatten().count());
    let of_programs = |entry: &fs::DirEntry| !entry.file_name().to_string_lossy().ends_with(".files");
    let mut dirs = fs::read_dir(desk.work_dir()).expect("it is there").flatten();
    let base = dirs.find(of_programs).expect("the agent's").path();
    assert!(litter(&base) > 0);
    let mut agent = start(&desk.server);
    let (session, _) = desk.server.welcomed().await;
    assert_eq!(litter(&base), 0);
    let pid = agent.id().and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed())).expect("it runs");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is ours");
    drop(session);
    agent.wait().await.expect("it ends");
    desk.nothing_is_left().await;
}

#[tokio::test]
async fn programs_see_nothing_of_the_agent() {
    see_nothing("trusted = false").await;
}

/// Not even when nothing but the fence keeps them from it.
#[tokio::test]
async fn programs_of_the_agents_user_see_nothing_of_it() {
    let is_root = rustix::process::geteuid().is_root();
    see_nothing(if is_root { "trusted = false\nrun_as = \"root\"" } else { "trusted = false" }).await;
}

async fn see_nothing(more: &str) {
    let mut desk = Desk::new(more).await;
    let secret = desk.file("secret", "hidden by name");
    let open = desk.file("open", "for all");
    // Keys that people press, which the agent may read.
    let dev = desk.dir.path().join("dev");
    let keyboard = dev.join("input/event0");
    fs::create_dir_all(dev.join("input")).expect("made");
    fs::write(&keyboard, "a password").expect("written");
    fs::set_permissions(&keyboard, fs::Permissions::from_mode(0o666)).expect("opened");
    let keyboard = keyboard.display().to_string();
    let (mut agent, mut session) = {
        let (programs, work_dir, hide) = (desk.programs.clone(), desk.work_dir(), vec![PathBuf::from(&secret)]);
        let agent = RunningAgent::start(Agent::new(), &[&desk.server], |settings| {
            fs::write(settings.state_dir.join("workstation.key"), "a key").expect("written");
            settings.programs = programs;
            settings.work_dir = work_dir;
            settings.hide = hide;
            settings.presence.dev = dev.clone();
            settings.cores = 1;
            settings.supervisor = Some(env!("CARGO_BIN_EXE_pcfarm-worker").into());
        });
        let (session, _) = desk.server.welcomed().await;
        (agent, session)
    };
    let state_dir = agent.state_dir().to_owned();
    let key = state_dir.join("workstation.key").display().to_string();
    let through_proc = format!("/proc/{}/root{key}", std::process::id());
    let environ = format!("/proc/{}/environ", std::process::id());
    let payloads = [
        json!({"do": "read", "paths": [key, through_proc, environ, secret, keyboard, open]}),
        puppet("look"),
        json!({"do": "signal", "pids": [std::process::id()]}),
        json!({"do": "write", "path": format!("{}/new", desk.dir.path().display())}),
        puppet("leave a file"),
    ];
    let results = run(&mut session, 1, "puppet", &payloads).await;
    let results: Vec<Value> = results.iter().map(|text| serde_json::from_str(text).expect(text)).collect();
    assert_eq!(results[0][&key], "PermissionError");
    assert_eq!(results[0][&through_proc], "PermissionError");
    assert_eq!(results[0][&environ], "PermissionError");
    assert_eq!(results[0][&secret], "PermissionError");
    assert_eq!(results[0][&keyboard], "PermissionError");
    assert_eq!(results[0][&open], "read 7 bytes");
    let seen = results[1]["environment"].as_object().expect("an object");
    let allowed = ["HOME", "LANG", "LC_ALL", "LC_CTYPE", "MARK", "PATH", "PWD", "TMPDIR", "TZ"];
    assert!(seen.keys().all(|name| allowed.contains(&name.as_str())), "{seen:?}");
    assert_eq!(results[1]["descriptors"], json!([0, 1, 2]));
    assert_eq!(results[2][&std::process::id().to_string()], "PermissionError");
    assert_eq!(results[3], "PermissionError");
    let directory = results[4].as_str().expect("its directory");
    assert!(!Path::new(directory).exists(), "a problem's directory stays");
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

#[tokio::test]
async fn a_one_shot_program_gets_arguments_and_no_shell_sees_them() {
    let mut desk = Desk::empty().await;
    let script = desk.file("args.py", "import json, sys\nprint(json.dumps([sys.argv[1:], sys.stdin.read()]))\n");
    desk.program(&format!(
        "name = \"args\"\nmode = \"one-shot\"\npath = \"{PYTHON}\"\nanswer = \"json\"\nstdin = \"payload\"\n\
         args = [\"{script}\", \"--key={{key}}\", \"--\", \"{{payload.file}}\", \"{{payload.list[]}}\"]"
    ));
    let file = "a b; touch /tmp/x $(id) `id` | > & ' \" \\ *";
    let payload = json!({"file": file, "list": ["-x", "$HOME", 3]});
    let results = desk.solve("args", &[payload.clone(), json!({"file": "f"})]).await;
    let seen: Value = serde_json::from_str(&results[0]).expect("JSON");
    assert_eq!(seen, json!([["--key=0", "--", file, "-x", "$HOME", "3"], payload.to_string()]));
    assert_eq!(results[1], "failed: the payload has no \"list\", which the program's arguments want");
}

#[tokio::test]
async fn a_jobs_files_are_in_each_problems_directory() {
    let mut desk = Desk::empty().await;
    let files = std::sync::Arc::clone(&desk.server.files);
    let script = desk.file(
        "model.py",
        "import json, sys\n\
         for line in sys.stdin:\n\
         \x20   q = json.loads(line)\n\
         \x20   text = open(q['directory'] + '/model.txt').read()\n\
         \x20   try: open(q['directory'] + '/model.txt', 'a'); text = 'written'\n\
         \x20   except OSError: pass\n\
         \x20   print(json.dumps({'result': text[q['payload']]}), flush=True)\n",
    );
    desk.program(&format!("name = \"fed\"\nmode = \"fed\"\npath = \"{PYTHON}\"\nargs = [\"{script}\"]"));
    desk.program(
        "name = \"once\"\nmode = \"one-shot\"\npath = \"/bin/sh\"\nargs = [\"-c\", 'cat \"$1\" large.bin | wc -c', \"sh\", \"{payload}\"]",
    );
    let model = files.put(b"abc");
    let large = files.put(&vec![7; 100_000]);
    let (mut agent, mut session) = desk.agent(2).await;
    let (fed, once) = (["0", "1", "2"].map(str::to_owned), ["\"model.txt\""; 3].map(str::to_owned));
    session.check_out_with_files(1, "exec:fed", fed, &[("model.txt", &model)]).await;
    assert_eq!(closed(&mut session, 1).await, ["\"a\"", "\"b\"", "\"c\""]);
    session.check_out_with_files(2, "exec:once", once.clone(), &[("model.txt", &model), ("large.bin", &large)]).await;
    assert_eq!(closed(&mut session, 2).await, ["\"100003\""; 3]);
    assert_eq!(files.fetches.load(Ordering::Relaxed), 2, "each is fetched once");

    // What is not there, or is no name, fails the problems that need it.
    let nothing = "00".repeat(32);
    session.check_out_with_files(3, "exec:once", once.clone(), &[("model.txt", &nothing)]).await;
    let failed = closed(&mut session, 3).await;
    assert!(failed.iter().all(|one| one.starts_with("failed: the farm does not give file 0000")), "{failed:?}");
    for name in ["../model.txt", "/model.txt", ".model", ""] {
        session.check_out_with_files(4, "exec:once", once[..1].iter().cloned(), &[(name, &model)]).await;
        assert_eq!(closed(&mut session, 4).await, [format!("failed: {name:?} is no name of a file")]);
    }
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
    desk.wait_until("processes are left", || desk.processes().is_empty()).await;
}

/// Counts the bytes of the file that its problem calls `instance`.
struct Weigh;

impl Controller for Weigh {
    const NAME: &'static str = "weigh";
    type Payload = Value;
    type Solution = usize;

    fn solve(&self, problem: &Problem<'_, Value>) -> anyhow::Result<usize> {
        let file = problem.file("instance")?;
        assert_eq!(std::fs::read(file.path())?, file.read()?);
        Ok(file.read()?.len())
    }
}

#[tokio::test]
async fn problems_have_files_of_their_own_and_rust_reads_them_too() {
    let mut desk = Desk::empty().await;
    let files = std::sync::Arc::clone(&desk.server.files);
    desk.program("name = \"once\"\nmode = \"one-shot\"\npath = \"/bin/cat\"\nargs = [\"instance\"]");
    let [a, b, of_job] = [&b"aa"[..], b"b", b"of all"].map(|content| files.put(content));
    let (mut agent, mut session) = desk.agent_of(Agent::new().controller(Weigh), 2).await;
    let own = |hash: &str| json!({"files": {"instance": hash}}).to_string();
    let payloads = [own(&a), own(&b), own(&a), json!({}).to_string(), own(&"00".repeat(32)), own("x")];
    let each = async |session: &mut Session, id, controller: &str| {
        session.check_out_naming_files(id, controller, payloads.clone(), &[("instance", &of_job)]).await;
        closed(session, id).await
    };
    let ended = each(&mut session, 1, "exec:once").await;
    assert_eq!(ended[..4], ["\"aa\"", "\"b\"", "\"aa\"", "\"of all\""]);
    assert!(ended[4].contains("does not give file 0000") && ended[5].contains("is not a SHA-256"), "{ended:?}");
    let ended = each(&mut session, 2, "weigh").await;
    assert_eq!(ended[..4], ["2", "1", "2", "6"]);
    assert!(ended[4].contains("does not give file 0000") && ended[5].contains("is not a SHA-256"), "{ended:?}");
    assert_eq!(
        files.fetches.load(Ordering::Relaxed),
        3 + 2,
        "each is fetched once, by whoever comes first; what is not there is asked for again"
    );
    session.check_out(3, "weigh", [own(&a)]).await;
    let ended = closed(&mut session, 3).await;
    assert_eq!(ended, ["failed: neither the problem nor its job has a file \"instance\""], "its job does not say so");
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
    desk.wait_until("processes are left", || desk.processes().is_empty()).await;
}

/// Writes what a payload says into the problem's directory, and names it as the payload says.
const WRITER: &str = "import json, os, sys\n\
    for line in sys.stdin:\n\
    \x20   q = json.loads(line)\n\
    \x20   p = q['payload']\n\
    \x20   for name, text in p.get('write', {}).items():\n\
    \x20       open(q['directory'] + '/' + name, 'w').write(text * p.get('times', 1))\n\
    \x20   for name, to in p.get('link', {}).items():\n\
    \x20       os.symlink(to, q['directory'] + '/' + name)\n\
    \x20   print(json.dumps({'result': 7, 'files': p['files']}), flush=True)\n";

fn sha256(content: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn files_that_programs_make_are_the_farms() {
    let mut desk = Desk::empty().await;
    let files = std::sync::Arc::clone(&desk.server.files);
    let script = desk.file("writer.py", WRITER);
    desk.program(&format!("name = \"fed\"\nmode = \"fed\"\npath = \"{PYTHON}\"\nargs = [\"{script}\"]"));
    desk.program(
        "name = \"once\"\nmode = \"one-shot\"\npath = \"/bin/sh\"\noutputs = [\"out.txt\", \"part-*\"]\n\
         args = [\"-c\", 'for name in \"$@\"; do echo $name > $name; done; echo done', \"sh\", \"{payload[]}\"]",
    );
    let (mut agent, mut session) = desk.agent(1).await;
    let of_farm = |content: &[u8]| json!({"sha256": sha256(content), "bytes": content.len()});
    let large = "0123456789".repeat(300_000);

    // A fed program names them; what breaks off is sent again, and what is there is not sent.
    files.puts_break_off.store(2, Ordering::Relaxed);
    let there = files.put(b"known");
    let made = json!({"write": {"a.txt": "0123456789"}, "times": 300_000, "files": ["a.txt"]});
    let known = json!({"write": {"b": "known", "not-named": "x"}, "files": ["b"]});
    let results = run(&mut session, 1, "fed", &[made, known, json!({"files": []})]).await;
    let results: Vec<Value> = results.iter().map(|json| serde_json::from_str(json).expect("JSON")).collect();
    assert_eq!(results[0], json!({"result": 7, "files": {"a.txt": of_farm(large.as_bytes())}}));
    assert_eq!(results[1], json!({"result": 7, "files": {"b": {"sha256": there, "bytes": 5}}}));
    assert_eq!(results[2], json!({"result": 7, "files": {}}));
    let outputs = std::mem::take(&mut *files.outputs.lock().expect("no panic"));
    let sent: Vec<(&str, Option<usize>)> =
        outputs.iter().map(|(_, name, content)| (name.as_str(), content.as_ref().map(Vec::len))).collect();
    assert_eq!(sent, [("a.txt", Some(large.len())), ("b", None)]);

    // Of a one-shot program those that its owner lists.
    let results =
        run(&mut session, 2, "once", &[json!(["out.txt", "part-2", "part-1", "rest"]), json!(["part-1"])]).await;
    let first: Value = serde_json::from_str(&results[0]).expect("JSON");
    assert_eq!(first["result"], "done");
    assert_eq!(first["files"].as_object().expect("files").keys().collect::<Vec<_>>(), ["out.txt", "part-1", "part-2"]);
    assert_eq!(results[1], "failed: the program has left no file out.txt in its directory");

    // What is not the program's own, or is no name, or the farm does not take, fails that problem alone.
    let secret = desk.file("secret", "the agent's");
    let refused = tonic::Status::failed_precondition("mia would have too many bytes");
    for (payload, expected) in [
        (json!({"files": ["../../secret"]}), "names a file \"../../secret\""),
        (json!({"files": ["*"]}), "names a file \"*\""),
        (json!({"link": {"s": secret}, "files": ["s"]}), "file s is a link"),
        (json!({"files": ["nothing"]}), "left no file nothing"),
        (json!({"files": 7}), "cannot be used"),
    ] {
        let results = run(&mut session, 3, "fed", &[payload, json!({"files": []})]).await;
        assert!(results[0].starts_with("failed: ") && results[0].contains(expected), "{results:?}");
        assert_eq!(results[1], r#"{"result":7,"files":{}}"#);
    }
    *files.refuses.lock().expect("no panic") = Some(refused);
    let results = run(&mut session, 4, "fed", &[json!({"write": {"c": "c"}, "files": ["c"]})]).await;
    assert_eq!(results, ["failed: file c: the farm does not take it: mia would have too many bytes"]);
    assert!(files.outputs.lock().expect("no panic").iter().all(|(_, name, _)| name != "c"));

    // A farm that cannot take it now is waited for, until the problem is not wanted any more.
    *files.refuses.lock().expect("no panic") = Some(tonic::Status::unavailable("no database"));
    session.check_out(5, "exec:fed", [json!({"write": {"d": "d"}, "files": ["d"]}).to_string()]).await;
    desk.wait_until("it works on it", || desk.problems_in_hand() == 1).await;
    session.revoke(5).await;
    desk.wait_until("it lets go of it", || desk.problems_in_hand() == 0).await;
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
    desk.nothing_is_left().await;
}

#[tokio::test]
async fn a_one_shot_program_ends_well_or_says_how_it_did_not() {
    let mut desk = Desk::empty().await;
    // The owner names a shell, and the problem brings the line.
    let shell = "mode = \"one-shot\"\npath = \"/bin/sh\"\nargs = [\"-c\", \"{payload}\"]\ntime_limit = 2\nmemory_mib = 256\nprocesses = 20\n";
    desk.program(&format!("name = \"text\"\n{shell}"));
    desk.program(&format!("name = \"json\"\nanswer = \"json\"\n{shell}"));
    desk.program(&format!("name = \"report\"\nanswer = \"report\"\nexit_codes = [0, 20]\n{shell}"));
    let (mut agent, mut session) = desk.agent(1).await;
    let cases = [
        ("text", "echo hello; echo noise >&2", "\"hello\""),
        ("text", "exit 7", "failed: the program exited with code 7"),
        ("text", "echo oops >&2; exit 7", "failed: the program exited with code 7; its standard error:\noops"),
        ("text", "kill -9 $$", "failed: the program was ended by signal 9 (SIGKILL)"),
        ("text", "sleep 1000", "failed: the program took longer than its time limit of 2 s"),
        ("text", "yes", "failed: the program wrote more than"),
        ("text", "setsid sleep 1000 & setsid sh -c 'sleep 1000 & sleep 1000' & echo started", "\"started\""),
        ("text", "b() { b | b & b; }; b; sleep 1000", "failed: the program "),
        ("text", "cat; echo end", "\"end\""),
        ("json", "echo '[1, 2]'", "[1, 2]"),
        ("json", "echo '[1, 2'", "failed: the program's output is not JSON"),
        ("report", "echo out; echo err >&2; exit 20", r#"{"exit_code":20,"stderr":"err\n","stdout":"out\n"}"#),
        ("report", "exit 21", "failed: the program exited with code 21"),
    ];
    for (id, (program, line, expected)) in (1..).zip(cases) {
        let results = run(&mut session, id, program, &[json!(line)]).await;
        assert!(results[0].starts_with(expected), "{line}: {}", results[0]);
        assert_eq!(desk.processes(), Vec::<i32>::new(), "{line} left processes");
    }
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

const MINISAT: &str = "/usr/bin/minisat";

/// What users copy from. `scripts/test` installs the solver where it can.
#[tokio::test]
async fn the_examples_run() {
    let mut desk = Desk::empty().await;
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/programs");
    let text = fs::read_to_string(examples.join("worker.toml")).expect("it is there");
    let primes = fs::read_to_string(examples.join("python/primes.py")).expect("it is there");
    let config = desk
        .file("worker.toml", &text.replace("/opt/pcfarm/programs/python/primes.py", &desk.file("primes.py", &primes)));
    desk.programs = Settings::from_arguments(&["worker", "--config", &config]).expect("good settings").programs;
    for program in &mut desk.programs {
        program.env.insert("MARK".to_owned(), desk.mark.clone());
        program.trusted = true;
    }
    let (mut agent, mut session) = desk.agent(2).await;

    let ranges = [json!({"from": 0, "to": 100}), json!({"from": 100, "to": 1000}), json!({"from": 2, "to": 1})];
    let results = run(&mut session, 1, "primes", &ranges).await;
    let expected = [r#"{"primes": 25}"#, r#"{"primes": 143}"#, "failed: ValueError: from 2 to 1 is no range"];
    assert_eq!(results, expected);

    let files = [desk.file("two lines; rm -rf $HOME", "1\n2\n"), desk.file("-n", "3\n")];
    let results = run(&mut session, 2, "lines", &[json!({"files": files}), json!({"files": []})]).await;
    assert_eq!(results, ["3", "0"]);

    if Path::new(MINISAT).exists() {
        let (keys, payloads) = sat_instances(&examples);
        let results = run(&mut session, 3, "minisat", &payloads).await;
        for (n, key) in keys.iter().enumerate() {
            let report: Value = serde_json::from_str(&results[n]).expect(&results[n]);
            let found = match report["exit_code"].as_i64() {
                Some(10) => holds(payloads[n].as_str().expect("DIMACS"), report["stdout"].as_str().expect("a text")),
                _ => false,
            };
            match key.split('-').collect::<Vec<_>>()[..] {
                ["pigeons", _] | ["queens", "3"] | ["colours", "9", "2"] => {
                    assert_eq!(report["exit_code"], 20, "{key}")
                }
                ["random", _] => assert!(found || report["exit_code"] == 20, "{key}: {report}"),
                _ => assert!(found, "{key}: {report}"),
            }
        }
    } else {
        eprintln!("{MINISAT} is not installed: the solver was not run");
    }
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
    desk.nothing_is_left().await;
}

fn sat_instances(examples: &Path) -> (Vec<String>, Vec<Value>) {
    let written = std::process::Command::new(PYTHON).arg(examples.join("sat/instances.py")).output().expect("it runs");
    assert!(written.status.success());
    let text = String::from_utf8(written.stdout).expect("JSON");
    let problem = |line: &str| {
        let mut problem: Value = serde_json::from_str(line).expect("JSON");
        (problem["key"].as_str().expect("a key").to_owned(), problem["payload"].take())
    };
    let (keys, payloads): (Vec<String>, Vec<Value>) = text.lines().map(problem).unzip();
    assert!(keys.len() > 20);
    (keys, payloads)
}

/// Whether what the solver says of an instance is so.
fn holds(dimacs: &str, answer: &str) -> bool {
    let numbers = |line: &str| -> Vec<i32> {
        line.split_ascii_whitespace().map_while(|n| n.parse().ok()).take_while(|&n| n != 0).collect()
    };
    let Some(model) = answer.lines().skip_while(|line| *line != "SAT").nth(1) else { return false };
    let chosen: std::collections::HashSet<i32> = numbers(model).into_iter().collect();
    let consistent = chosen.iter().all(|n| !chosen.contains(&-n));
    consistent && dimacs.lines().skip(1).all(|clause| numbers(clause).iter().any(|n| chosen.contains(n)))
}

/// `cargo test --release -p pcfarm-worker --test exec -- --ignored --nocapture overhead`
#[tokio::test]
#[ignore = "a measurement, not a test"]
async fn overhead_of_a_thousand_runs() {
    let mut desk = Desk::new("").await;
    let script = desk.file("add.py", "import json, sys\nprint(sum(json.load(sys.stdin)['of']))\n");
    desk.program(&format!(
        "name = \"python\"\nmode = \"one-shot\"\npath = \"{PYTHON}\"\nargs = [\"{script}\"]\nstdin = \"payload\"\nanswer = \"json\""
    ));
    desk.program("name = \"true\"\nmode = \"one-shot\"\npath = \"/bin/true\"");
    let (mut agent, mut session) = desk.agent(1).await;
    let payloads: Vec<Value> = (0..1000).map(|n| add(&[n, 1])).collect();
    for (id, (program, what)) in
        (1..).zip([("puppet", "Python, fed"), ("python", "Python, one-shot"), ("true", "/bin/true, one-shot")])
    {
        let began = Instant::now();
        let results = run(&mut session, id, program, &payloads).await;
        assert!(results.iter().all(|result| !result.starts_with("failed")), "{results:?}");
        println!("1,000 problems on one core, {what}: {:?}", began.elapsed());
    }
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}
