//! The process that compiles a module first.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use super::*;

/// A module with a function of so many bytes, of loops among a thousand variables.
fn maze(bytes: usize) -> Vec<u8> {
    let number = |value: usize| {
        let low = u8::try_from(value & 0x7f).expect("seven bits") | 0x80;
        let middle = u8::try_from(value >> 7 & 0x7f).expect("seven bits") | 0x80;
        [low, middle, u8::try_from(value >> 14).expect("short")]
    };
    let mut any = 12345_u32;
    let mut variable = || {
        any = any.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        number((any >> 8) as usize % 1000)
    };
    let mut body = [&[1][..], &number(1000), &[0x7f]].concat();
    while body.len() < bytes {
        body.extend([0x03, 0x40, 0x03, 0x40, 0x03, 0x40]);
        for (operation, then) in [(0x20, None), (0x20, Some(0x6a)), (0x21, None)] {
            body.push(operation);
            body.extend(variable());
            body.extend(then);
        }
        for _ in 0..3 {
            body.push(0x20);
            body.extend(variable());
            body.extend([0x0d, 0, 0x0b]);
        }
    }
    body.push(0x0b);
    let section = |id: u8, content: &[u8]| [&[id][..], &number(content.len()), content].concat();
    let code = [&[1][..], &number(body.len()), &body].concat();
    let sections = [section(1, &[1, 0x60, 0, 0]), section(3, &[1, 0]), section(10, &code)].concat();
    [b"\0asm\x01\0\0\0", &sections[..]].concat()
}

/// A process of this one that compiles a module, when there is one.
async fn compiler_of(parent: u32) -> Pid {
    let its = |process: PathBuf| -> Option<Pid> {
        let pid = process.file_name()?.to_str()?.parse().ok()?;
        let status = fs::read_to_string(process.join("status")).ok()?;
        let above: u32 = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()?;
        let command = fs::read(process.join("cmdline")).ok()?;
        let is_compiler = command.split(|&byte| byte == 0).any(|word| word == b"__pcfarm-compile");
        (above == parent && is_compiler).then(|| Pid::from_raw(pid))?
    };
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        assert!(Instant::now() < end, "nothing compiles");
        let mut processes = fs::read_dir("/proc").expect("this is Linux").flatten().map(|entry| entry.path());
        if let Some(found) = processes.find_map(its) {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
#[ignore = "nightly: compiles a large module for a minute"]
async fn a_compiler_that_was_killed_says_nothing_of_its_module() {
    let mut desk = Desk::new(None).await;
    let hash = desk.server.files.put(&maze(40_000));
    let (agent, mut session) = desk.agent(1).await;
    session.check_out(1, &format!("wasm:{hash}"), [json!(1).to_string()]).await;
    let compiler = compiler_of(std::process::id()).await;
    kill_process(compiler, Signal::KILL).expect("it works");
    let interrupted = results(&mut session, 1).await;
    assert!(interrupted[0].contains("compiler was ended by signal 9, from outside"), "{interrupted:?}");
    // All that is wrong with it.
    let compiled = run(&mut session, 2, &hash, &[json!(1)]).await;
    assert!(compiled[0].starts_with("failed: the module has no function _start"), "{compiled:?}");
    stopped(agent, session).await;
}

/// It has a minute of a core, and nobody who waits for it.
#[tokio::test]
async fn a_compiler_ends_with_an_agent_that_is_killed() {
    let mut desk = Desk::new(None).await;
    let hash = desk.server.files.put(&maze(500_000));
    let dir = desk.dir.path();
    let mut agent = tokio::process::Command::new(env!("CARGO_BIN_EXE_pcfarm-worker"))
        .args(["--server", &desk.server.url(), "--cores", "1", "--unattended", "--wasm", "--state-dir"])
        .arg(dir.join("state"))
        .arg("--work-dir")
        .arg(dir.join("work"))
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("the agent starts");
    let (session, _) = desk.server.welcomed().await;
    session.check_out(1, &format!("wasm:{hash}"), [json!(1).to_string()]).await;
    let compiler = compiler_of(agent.id().expect("it runs")).await;
    // It has read its module, and computes.
    let compiles = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", compiler.as_raw_nonzero())).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').collect();
        fields.get(11).and_then(|ticks| ticks.parse::<u64>().ok()).is_some_and(|ticks| ticks > 50)
    };
    while !compiles() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    agent.kill().await.expect("it runs");
    let end = Instant::now() + Duration::from_secs(10);
    let is_there =
        || fs::read(format!("/proc/{}/cmdline", compiler.as_raw_nonzero())).is_ok_and(|words| !words.is_empty());
    while is_there() {
        assert!(Instant::now() < end, "the compiler outlives its agent");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The process that compiles it first, with less time than it has: for a minute of a core nobody waits here.
#[test]
fn a_module_that_takes_its_compiler_too_long_is_found_out() {
    let compile = |module: &[u8], seconds: &str| {
        let mut compiler = Command::new(env!("CARGO_BIN_EXE_pcfarm-worker"));
        compiler.args(["__pcfarm-compile", seconds, &std::process::id().to_string()]).stdin(Stdio::piped());
        let mut compiler = compiler.spawn().expect("it starts");
        compiler.stdin.take().expect("it is piped").write_all(module).expect("it reads all");
        compiler.wait().expect("it ends")
    };
    let stopped = compile(&maze(500_000), "1");
    assert_eq!(stopped.signal(), Some(Signal::XCPU.as_raw()));
    assert!(compile(&maze(300), "60").success());
    assert!(compile(b"not a module", "60").success(), "that is for the agent to say");
}
