//! Modules under an agent: what they are for, and what hostile ones can do.

#[cfg(target_os = "linux")]
mod compiler;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::farm::{RunningAgent, Server, Session, module_of_c, outcomes, puppet_module};
use crate::left_out;
use pcfarm_worker::wasm::settings::WasmSettings;
use pcfarm_worker::{Agent, Settings};
use serde_json::{Value, json};

/// A farm of one agent that runs modules.
struct Desk {
    dir: tempfile::TempDir,
    server: Server,
    wasm: WasmSettings,
    files_bytes: u64,
}

impl Desk {
    async fn new(time_limit: Option<f64>) -> Desk {
        let wasm = WasmSettings { time_limit, memory_mib: Some(64) };
        let dir = tempfile::tempdir().expect("a directory");
        Desk { dir, server: Server::start().await, wasm, files_bytes: 64 << 20 }
    }

    async fn agent(&mut self, cores: usize) -> (RunningAgent, Session) {
        let (work_dir, wasm, files_bytes) = (self.dir.path().join("work"), self.wasm.clone(), self.files_bytes);
        // The files of a workstation are those of its identity.
        let identity = self.dir.path().join("identity");
        let agent = RunningAgent::start(Agent::new(), &[&self.server], |settings: &mut Settings| {
            if let Ok(known) = fs::read(&identity) {
                fs::write(settings.state_dir.join("identity"), known).expect("written");
            }
            settings.work_dir = work_dir;
            settings.wasm = Some(wasm);
            settings.supervisor = Some(env!("CARGO_BIN_EXE_pcfarm-worker").into());
            settings.files_bytes = files_bytes;
            settings.cores = cores;
            settings.grace = Duration::from_millis(500);
        });
        let (session, hello) = self.server.welcomed().await;
        assert_eq!(hello.controllers, ["wasm"]);
        fs::write(&identity, &hello.identity).expect("written");
        (agent, session)
    }

    /// The cores outlive an agent's last word for a moment, and its lock with them.
    async fn nobody_is_left(&self) {
        let is_lock = |entry: fs::DirEntry| entry.path().extension().is_some_and(|extension| extension == "lock");
        while fs::read_dir(self.dir.path().join("work")).is_ok_and(|entries| entries.flatten().any(is_lock)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The files that the agent keeps, and whatever else is where they are.
    fn kept(&self) -> Vec<PathBuf> {
        let of_agents = fs::read_dir(self.dir.path().join("work")).map(|all| all.flatten().map(|entry| entry.path()));
        let mut kept: Vec<PathBuf> = of_agents
            .into_iter()
            .flatten()
            .flat_map(fs::read_dir)
            .flatten()
            .flatten()
            .map(|file| file.path())
            .collect();
        kept.sort();
        kept
    }
}

async fn stopped(mut agent: RunningAgent, session: Session) {
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

/// Waits until a checkout is closed.
async fn results(session: &mut Session, id: i64) -> Vec<String> {
    let mut results = BTreeMap::new();
    loop {
        let delivery = session.delivery().await;
        session.acknowledge(&delivery).await;
        for part in &delivery.checkouts {
            if part.checkout_id == id {
                results.extend(outcomes(part));
                if part.finished {
                    return results.into_values().collect();
                }
            }
        }
    }
}

async fn run(session: &mut Session, id: i64, hash: &str, payloads: &[Value]) -> Vec<String> {
    session.check_out(id, &format!("wasm:{hash}"), payloads.iter().map(Value::to_string)).await;
    results(session, id).await
}

fn puppet(what: &str) -> Value {
    json!({"do": what, "n": 1})
}

fn double(n: i64) -> Value {
    json!({"do": "double", "n": n})
}

/// Each between two good problems, on one core.
#[tokio::test]
async fn what_a_module_does_wrong_fails_its_problem_alone() {
    let Some(module) = puppet_module() else { return };
    let mut desk = Desk::new(Some(1.0)).await;
    let hash = desk.server.files.put(&module);
    let (agent, mut session) = desk.agent(1).await;
    let cases = [
        (puppet("refuse"), "failed: no luck; its standard error:\na line on standard error"),
        (puppet("loop"), "failed: the program took longer than its time limit of 1 s"),
        (puppet("loop slowly"), "failed: the program took longer than its time limit of 1 s"),
        (puppet("flood"), "failed: the program wrote more than"),
        (
            puppet("flood stderr"),
            "failed: the program took longer than its time limit of 1 s; its standard error ends:\n",
        ),
        (puppet("hog"), "MiB of memory; its limit is 64 MiB; its standard error:\nno more than"),
        (puppet("recurse"), "failed: the program has crashed: "),
        (puppet("out of bounds"), "failed: the program has crashed: out of bounds memory access"),
        (puppet("divide"), "failed: the program has crashed: integer divide by zero"),
        (puppet("abort"), "unreachable` instruction executed; its standard error:\nit is all over"),
        (json!({"do": "exit", "n": 3}), "failed: the program exited with code 3 before it answered"),
        (json!({"do": "exit", "n": 0}), "failed: the program exited with code 0 before it answered"),
        (puppet("close"), "failed: the program exited with code 3 before it answered"),
        (
            puppet("no json"),
            r#"failed: the program's answer is not JSON (expected value at line 1 column 1): "hello world""#,
        ),
        (puppet("no answer"), r#"not an object with either "result" or "error": "{\"reslut\": 1}""#),
        (puppet("half"), "ends after 12 bytes without a line end (the program exited with code 0)"),
        (puppet("half and on"), "ends after 12 bytes without a line end (it asks for its next question)"),
        (puppet("two lines"), r#"more than one line for one question: "{\"result\": 2}""#),
        (puppet("nothing"), "failed: the program asked for its next question before it answered this one"),
        (puppet("wrong id"), r#"another question, by its "id""#),
        (puppet("nul"), "the solution cannot be stored: it contains a NUL character"),
        (json!({"do": "large", "n": 1 << 20}), "the solution has 1048578 bytes; at most"),
        (json!({"do": "large", "n": 8 << 20}), "failed: the program wrote more than"),
    ];
    for (id, (bad, expected)) in (1..).zip(cases) {
        let results = run(&mut session, id, &hash, &[double(4), bad.clone(), double(-1)]).await;
        assert_eq!((results[0].as_str(), results[2].as_str()), ("8", "-2"), "{bad}: {results:?}");
        assert!(results[1].starts_with("failed: ") && results[1].contains(expected), "{bad}: {}", results[1]);
    }
    stopped(agent, session).await;
}

#[tokio::test]
async fn a_module_is_told_all_that_a_program_is_and_has_nothing_of_the_workstation() {
    let Some(module) = puppet_module() else { return };
    let mut desk = Desk::new(None).await;
    let hash = desk.server.files.put(&module);
    let (agent, mut session) = desk.agent(1).await;
    let payloads = [
        json!({"do": "echo", "big": 12345678901234567890u64, "text": "a\nb"}),
        puppet("look"),
        json!({"do": "flood progress", "n": 200_000}),
        json!({"do": "have", "n": 40 << 20}),
        puppet("answer and exit"),
        double(21),
    ];
    let results = run(&mut session, 1, &hash, &payloads).await;
    let seen: Value = serde_json::from_str(&results[0]).expect(&results[0]);
    let expected =
        json!({"key": "0", "payload": payloads[0], "attempt": 1, "id": "1000", "job": "test", "job_type": ""});
    assert_eq!(seen, expected, "as a program, but without a directory");
    let seen: Value = serde_json::from_str(&results[1]).expect(&results[1]);
    let expected = json!({"argc": 1, "argv": "module", "environment": false, "reads": false, "writes": false,
        "clock": true, "coarse": true, "random": true});
    assert_eq!(seen, expected);
    assert_eq!(results[2..], ["200000", "7", "1", "42"]);

    session.check_out(2, &format!("wasm:{hash}"), [puppet("enqueue").to_string()]).await;
    let delivery = session.delivery().await;
    session.acknowledge(&delivery).await;
    let more = delivery.checkouts[0].results[0].more.as_ref().expect("it brings something");
    assert_eq!((more.enqueue[0].key.as_str(), &more.enqueue[0].payload[..]), ("next", &br#"{"n":1}"#[..]));
    assert_eq!(&more.info[..], br#"{"seen":true}"#);
    stopped(agent, session).await;
}

#[tokio::test]
async fn each_convoy_begins_afresh() {
    let Some(module) = puppet_module() else { return };
    let mut desk = Desk::new(None).await;
    let hash = desk.server.files.put(&module);
    let (agent, mut session) = desk.agent(1).await;
    let of = |order: i64, what: &str| (order, puppet(what).to_string());
    let many = "how many";
    // The crash in the third convoy ends its instance, and nobody else's.
    let problems =
        [of(1, many), of(1, many), of(1, many), of(2, many), of(3, many), of(3, "divide"), of(3, many), of(4, many)];
    session.check_out_convoys(1, &format!("wasm:{hash}"), &problems).await;
    let solved = results(&mut session, 1).await;
    assert_eq!([&solved[..5], &solved[6..]].concat(), ["1", "2", "3", "1", "1", "1", "1"], "{solved:?}");
    // A batch order of another checkout is another convoy.
    session.check_out_convoys(2, &format!("wasm:{hash}"), &[of(4, many)]).await;
    assert_eq!(results(&mut session, 2).await, ["1"]);
    stopped(agent, session).await;
}

/// So that a convoy of many problems is solved on all of them.
#[tokio::test]
async fn each_core_that_works_on_a_convoy_has_an_instance_of_its_own() {
    let Some(module) = puppet_module() else { return };
    let mut desk = Desk::new(None).await;
    let hash = desk.server.files.put(&module);
    let (agent, mut session) = desk.agent(2).await;
    let problem = |convoy: i64| (convoy, json!({"do": "walk and say how many", "n": 20_000_000}).to_string());
    let problems: Vec<(i64, String)> = [1, 2].into_iter().flat_map(|convoy| vec![problem(convoy); 8]).collect();
    session.check_out_convoys(1, &format!("wasm:{hash}"), &problems).await;
    let counts: Vec<usize> =
        results(&mut session, 1).await.iter().map(|count| count.parse().expect("a number")).collect();
    for convoy in counts.chunks(8) {
        let instances = convoy.iter().filter(|&&count| count == 1).count();
        assert!((1..=2).contains(&instances), "{counts:?}");
        // Each of them counts what it has solved, and nothing else.
        let solved = (1..=8).map(|nth| convoy.iter().filter(|&&count| count == nth).count());
        assert!(solved.is_sorted_by(|a, b| a >= b), "{counts:?}");
    }
    stopped(agent, session).await;
}

/// No time limit ends these loops, and there is one core.
#[tokio::test]
async fn a_loop_ends_when_nobody_wants_it_any_more() {
    let Some(module) = puppet_module() else { return };
    let mut desk = Desk::new(None).await;
    let hash = desk.server.files.put(&module);
    let (mut agent, mut session) = desk.agent(1).await;
    assert_eq!(run(&mut session, 1, &hash, &[double(1)]).await, ["2"]);
    for (id, what) in [(2, "loop"), (4, "loop slowly"), (6, "flood stderr")] {
        session.check_out(id, &format!("wasm:{hash}"), [puppet(what).to_string()]).await;
        session.revoke(id).await;
        assert_eq!(run(&mut session, id + 1, &hash, &[double(2)]).await, ["4"], "{what}");
    }
    session.check_out(8, &format!("wasm:{hash}"), [puppet("loop").to_string()]).await;
    // An agent that must stop does, and gives back what it has not finished.
    agent.stop.cancel();
    let delivery = session.delivery().await;
    let part = &delivery.checkouts[0];
    assert!(part.checkout_id == 8 && part.finished && part.results.is_empty(), "{part:?}");
    session.acknowledge(&delivery).await;
    drop(session);
    agent.ended().await.expect("nothing is left");
}

/// A module that imports `module`.`name`, a function without parameters, and exports nothing.
fn importing(module: &str, name: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).expect("short")], text.as_bytes()].concat();
    let import = [&[1][..], &text(module), &text(name), &[0, 0]].concat();
    let types: &[u8] = &[1, 4, 1, 0x60, 0, 0];
    [b"\0asm\x01\0\0\0", types, &[2, u8::try_from(import.len()).expect("short")], &import].concat()
}

/// The same with a `_start` and a memory, so that its import is all that is wrong with it.
fn command_importing(module: &str, name: &str) -> Vec<u8> {
    let functions: &[u8] = &[3, 2, 1, 0];
    let memory: &[u8] = &[5, 3, 1, 0, 1];
    let exports: &[u8] = b"\x07\x13\x02\x06_start\0\x01\x06memory\x02\0";
    let code: &[u8] = &[10, 4, 1, 2, 0, 0x0b];
    [importing(module, name), functions.to_vec(), memory.to_vec(), exports.to_vec(), code.to_vec()].concat()
}

/// A command with a table of so many entries, and a function that is called before its `_start`: an endless loop.
fn looping_before_start(entries: [u8; 4]) -> Vec<u8> {
    let types_and_functions: &[u8] = &[1, 4, 1, 0x60, 0, 0, 3, 2, 1, 0];
    let table = [&[4, 7, 1, 0x70, 0][..], &entries].concat();
    let memory: &[u8] = &[5, 3, 1, 0, 1];
    let exports: &[u8] = b"\x07\x13\x02\x06_start\0\0\x06memory\x02\0";
    let start_and_code: &[u8] = &[8, 1, 0, 10, 9, 1, 7, 0, 0x03, 0x40, 0x0c, 0, 0x0b, 0x0b];
    [b"\0asm\x01\0\0\0", types_and_functions, &table, memory, exports, start_and_code].concat()
}

#[tokio::test]
async fn limits_hold_before_a_module_begins() {
    let mut desk = Desk::new(Some(1.0)).await;
    let files = std::sync::Arc::clone(&desk.server.files);
    let (agent, mut session) = desk.agent(1).await;
    // 1, and 16 Mi, of 8 bytes each.
    for (id, entries, expected) in [
        (1, [0x81, 0x80, 0x80, 0x00], "failed: the program took longer than its time limit of 1 s"),
        (2, [0x80, 0x80, 0x80, 0x08], "failed: the program wanted 129 MiB of memory; its limit is 64 MiB"),
    ] {
        let hash = files.put(&looping_before_start(entries));
        let results = run(&mut session, id, &hash, &[json!(1)]).await;
        assert!(results[0].starts_with(expected), "{results:?}");
    }
    stopped(agent, session).await;
}

#[tokio::test]
async fn what_is_no_module_says_so() {
    let mut desk = Desk::new(None).await;
    let files = std::sync::Arc::clone(&desk.server.files);
    let (agent, mut session) = desk.agent(1).await;
    let mut cut = command_importing("wasi_snapshot_preview1", "sched_yield");
    cut.truncate(cut.len() - 3);
    let no_memory_of_that_size = [b"\0asm\x01\0\0\0\x05\x06\x01\0", &[0xff, 0xff, 0x07, 0][..]].concat();
    let cases: [(&[u8], &str); 9] = [
        (b"#!/bin/sh\necho no\n", "failed: the file is not a WebAssembly module"),
        (b"", "failed: the file is not a WebAssembly module"),
        (b"\0asm\x0d\0\x01\0", "failed: the module cannot be compiled: "),
        (b"\0asm\x01\0\0\0", "failed: the module has no function _start to begin with: build it as a command"),
        (&cut, "failed: the module cannot be compiled: "),
        (&no_memory_of_that_size, "failed: the module cannot be compiled: "),
        (
            &command_importing("env", "launch"),
            "failed: the module imports env.launch, and modules are given nothing but WASI preview 1",
        ),
        (
            &command_importing("wasi_snapshot_preview1", "launch"),
            "failed: the module imports wasi_snapshot_preview1.launch, and",
        ),
        // There is such a function, and it has parameters.
        (&command_importing("wasi_snapshot_preview1", "fd_read"), "failed: the module cannot be linked: "),
    ];
    for (id, (content, expected)) in (1..).zip(cases) {
        let hash = files.put(content);
        for result in run(&mut session, id, &hash, &[json!(1), json!(2)]).await {
            assert!(result.starts_with(expected), "{result}");
        }
    }
    let results = run(&mut session, 100, "0badc0de", &[json!(1)]).await;
    assert!(results[0].starts_with("failed: \"0badc0de\" is not a SHA-256"), "{results:?}");
    stopped(agent, session).await;
}

#[tokio::test]
async fn a_module_is_fetched_once_and_kept() {
    let Some(module) = puppet_module() else { return };
    let mut desk = Desk::new(None).await;
    let files = std::sync::Arc::clone(&desk.server.files);
    let hash = files.put(&module);
    // Streams break off again and again, and are gone on with where they were.
    files.breaks_after.store(20, Ordering::Relaxed);
    let (agent, mut session) = desk.agent(2).await;
    let payloads: Vec<Value> = (0..50).map(double).collect();
    let expected: Vec<String> = (0..50).map(|n| (2 * n).to_string()).collect();
    assert_eq!(run(&mut session, 1, &hash, &payloads).await, expected);
    let pieces = module.len().div_ceil(4096) as u64;
    assert_eq!(files.fetches.load(Ordering::Relaxed), pieces.div_ceil(20), "each piece came once");
    assert_eq!(desk.kept().len(), 1);
    stopped(agent, session).await;

    // The next agent finds it, and removes what the last one has not finished.
    let kept = desk.kept().remove(0);
    fs::write(kept.with_extension("part"), "half of something").expect("written");
    let fetches = files.fetches.load(Ordering::Relaxed);
    let (agent, mut session) = desk.agent(2).await;
    assert_eq!(run(&mut session, 2, &hash, &payloads).await, expected);
    assert_eq!((files.fetches.load(Ordering::Relaxed), desk.kept()), (fetches, vec![kept.clone()]));
    stopped(agent, session).await;

    // What a disk has spoilt is not run, but fetched again.
    let mut spoilt = module.clone();
    spoilt[1000] ^= 1;
    fs::write(&kept, &spoilt).expect("written");
    files.breaks_after.store(0, Ordering::Relaxed);
    let (agent, mut session) = desk.agent(2).await;
    assert_eq!(run(&mut session, 3, &hash, &payloads).await, expected);
    assert_eq!(files.fetches.load(Ordering::Relaxed), fetches + 1);
    assert!(fs::read(&kept).expect("it is there") == module);
    stopped(agent, session).await;

    // With another state directory it is another workstation, and what the one before has kept is nobody's.
    fs::remove_file(desk.dir.path().join("identity")).expect("it is there");
    desk.nobody_is_left().await;
    assert_eq!(desk.kept(), [kept]);
    let (agent, session) = desk.agent(2).await;
    assert_eq!(desk.kept(), Vec::<PathBuf>::new());
    stopped(agent, session).await;
}

#[tokio::test]
async fn what_the_farm_does_not_have_or_mixes_up_fails_with_its_reason() {
    let mut desk = Desk::new(None).await;
    let files = std::sync::Arc::clone(&desk.server.files);
    desk.files_bytes = 10_000;
    let (agent, mut session) = desk.agent(1).await;
    let other = [7; 32];
    files.put_as(&other, b"not what its name says");
    let other = "07".repeat(32);
    let large = files.put(&[b"\0asm".as_slice(), &[0; 20_000]].concat());
    for (id, (hash, expected)) in (1..).zip([
        ("00".repeat(32), format!("failed: the farm does not give file {}: no such file", "00".repeat(32))),
        (other.clone(), format!("failed: the farm sent something else as file {other}")),
        (large.clone(), format!("failed: file {large} has 0 MiB; this agent keeps at most 0 MiB")),
    ]) {
        assert_eq!(run(&mut session, id, &hash, &[json!(1)]).await, [expected]);
        assert_eq!(desk.kept(), Vec::<PathBuf>::new());
    }
    // Of small ones the last used stay.
    for n in 0..4_u8 {
        let hash = files.put(&[n; 4000]);
        let results = run(&mut session, 10 + i64::from(n), &hash, &[json!(1)]).await;
        assert_eq!(results, ["failed: the file is not a WebAssembly module"]);
        assert_eq!(desk.kept().len(), usize::from(n + 1).min(2));
        assert!(desk.kept().iter().any(|path| path.ends_with(&hash)));
    }
    stopped(agent, session).await;
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/programs")
}

fn ranges() -> Vec<Value> {
    let mut ranges: Vec<Value> = (0..20).map(|n| json!({"from": 100 * n, "to": 100 * n + 150})).collect();
    ranges.extend([json!({"from": 2, "to": 1}), json!({"from": "a"}), json!({"to": 10, "from": -10})]);
    ranges
}

fn primes(question: &Value) -> String {
    let is_prime = |n: i64| n >= 2 && (2..n).all(|f| n % f != 0);
    match (question["from"].as_i64(), question["to"].as_i64()) {
        (Some(from), Some(to)) if from > to => format!("failed: from {from} to {to} is no range"),
        (Some(from), Some(to)) => format!("{{\"primes\": {}}}", (from..to).filter(|&n| is_prime(n)).count()),
        _ => "failed: from and to are wanted, two whole numbers".to_owned(),
    }
}

/// A source in Rust as a module; none where the compiler does not have that target.
fn module_of_rust(source: &Path) -> Option<Vec<u8>> {
    let out = tempfile::NamedTempFile::new().expect("a file");
    let made = Command::new("rustc")
        .args(["--edition", "2024", "--target", "wasm32-wasip1", "-O", "-o"])
        .arg(out.path())
        .arg(source)
        .output();
    match made {
        Ok(made) if made.status.success() => Some(fs::read(out.path()).expect("it was made")),
        Ok(_) | Err(_) => {
            left_out::for_want_of("rustc's target wasm32-wasip1 (rustup target add wasm32-wasip1)");
            None
        }
    }
}

/// The same once more, for the agent itself.
#[cfg(target_os = "linux")]
struct Primes;

#[cfg(target_os = "linux")]
impl pcfarm_worker::Controller for Primes {
    const NAME: &'static str = "primes";
    type Payload = Value;
    type Solution = Value;

    fn solve(&self, problem: &pcfarm_worker::Problem<'_, Value>) -> anyhow::Result<Value> {
        let bound = |name: &str| problem.payload()[name].as_i64();
        let (Some(from), Some(to)) = (bound("from"), bound("to")) else {
            anyhow::bail!("from and to are wanted, two whole numbers");
        };
        anyhow::ensure!(from <= to, "from {from} to {to} is no range");
        let is_prime = |n: i64| n >= 2 && (2..).take_while(|f| f * f <= n).all(|f| n % f != 0);
        Ok(json!({"primes": (from..to).filter(|&n| is_prime(n)).count()}))
    }
}

/// What users copy from: one source, as a module and as a program; and a controller in Rust beside them.
#[tokio::test]
async fn modules_programs_and_controllers_in_rust_give_the_same() {
    let (c, rust) = (examples().join("c/primes.c"), examples().join("rust/primes.rs"));
    let ranges = ranges();
    let expected: Vec<String> = ranges.iter().map(primes).collect();
    let mut desk = Desk::new(Some(5.0)).await;
    let files = std::sync::Arc::clone(&desk.server.files);
    let (agent, mut session) = desk.agent(2).await;
    for (id, module) in (1..).zip([module_of_c(&c), module_of_rust(&rust)]) {
        let Some(module) = module else { continue };
        let hash = files.put(&module);
        assert_eq!(run(&mut session, id, &hash, &ranges).await, expected);
    }
    stopped(agent, session).await;
    #[cfg(target_os = "linux")]
    natively(&c, &rust, &ranges, &expected).await;
}

/// The same sources as fed programs.
#[cfg(target_os = "linux")]
async fn natively(c: &Path, rust: &Path, ranges: &[Value], expected: &[String]) {
    use std::os::unix::fs::PermissionsExt;

    let dir = tempfile::tempdir().expect("a directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    let (of_c, of_rust) = (dir.path().join("of-c"), dir.path().join("of-rust"));
    let mut compilers = [Command::new("cc"), Command::new("rustc")];
    compilers[0].args(["-O2", "-o"]).arg(&of_c).arg(c);
    compilers[1].args(["--edition", "2024", "-O", "-o"]).arg(&of_rust).arg(rust);
    for compiler in &mut compilers {
        let made = compiler.output().expect("it is what builds these tests");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    let program = |name: &str, path: &Path| {
        let text = format!("name = {name:?}\nmode = \"fed\"\npath = {path:?}\ntrusted = true");
        toml::from_str(&text).expect("a program")
    };
    let programs = vec![program("c", &of_c), program("rust", &of_rust)];
    let mut server = Server::start().await;
    let agent = RunningAgent::start(Agent::new().controller(Primes), &[&server], |settings| {
        settings.programs = programs;
        settings.work_dir = dir.path().join("work");
        settings.supervisor = Some(env!("CARGO_BIN_EXE_pcfarm-worker").into());
    });
    let (mut session, _) = server.welcomed().await;
    // Spaces between tokens are a program's own.
    let value = |text: &String| serde_json::from_str(text).unwrap_or_else(|_| json!(text));
    session.check_out(3, "primes", ranges.iter().map(Value::to_string)).await;
    let of_agent: Vec<Value> = results(&mut session, 3).await.iter().map(value).collect();
    assert_eq!(of_agent, expected.iter().map(value).collect::<Vec<Value>>());
    for (id, controller) in [(1, "exec:c"), (2, "exec:rust")] {
        session.check_out(id, controller, ranges.iter().map(Value::to_string)).await;
        assert_eq!(results(&mut session, id).await, expected, "{controller}");
    }
    stopped(agent, session).await;
}
