//! What keeps programs and their agent apart, whichever of them ends, stands still or is hostile.

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::Child;

use super::*;

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
async fn programs_are_stopped_when_the_lease_has_ended_without_a_server() {
    let mut desk = Desk::new("").await;
    let _agent = desk.start(Agent::new().controller(Echo), 1);
    let (session, _) = desk.server.greeted().await;
    session.welcome_for(2).await;
    session.check_out(1, "exec:puppet", [puppet("loop").to_string()]).await;
    desk.wait_until("it does not start", || desk.problems_in_hand() == 1).await;
    // Longer than the lease: a server that is there need not say anything.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(desk.problems_in_hand(), 1);
    drop(session);
    desk.server.end().await;
    desk.wait_until("it goes on", || desk.problems_in_hand() == 0).await;
}

#[tokio::test]
async fn a_supervisor_that_is_frozen_holds_no_core() {
    let mut desk = Desk::new("").await;
    let (mut agent, mut session) = desk.agent(1).await;
    assert_eq!(run(&mut session, 1, "puppet", &[add(&[1])]).await, ["1"]);
    kill_process(parent_of(desk.processes()[0]), Signal::STOP).expect("it is ours");
    // More than a pipe holds: nobody reads it.
    let long = json!({"do": "add", "of": [], "more": "x".repeat(1 << 20)});
    session.check_out(2, "exec:puppet", [long.to_string()]).await;
    desk.wait_until("it is not asked", || desk.problems_in_hand() == 1).await;
    session.revoke(2).await;
    // While the core is held, the agent asks for no problems and returns those that come.
    let mut came = Vec::new();
    for id in 3..100 {
        came = run(&mut session, id, "puppet", &[add(&[2])]).await;
        if !came.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(came, ["2"]);
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
    desk.nothing_is_left().await;
}

#[tokio::test]
async fn programs_end_with_an_agent_that_is_killed() {
    let mut desk = Desk::new("").await;
    let mut agent = process(&desk);
    let (session, hello) = desk.server.welcomed().await;
    assert!(hello.controllers.contains(&"exec:puppet".to_owned()));
    session.check_out(1, "exec:puppet", [puppet("orphan").to_string(), puppet("loop").to_string()]).await;
    desk.wait_until("it does not start", || desk.processes().len() >= 3).await;
    agent.kill().await.expect("it runs");
    desk.wait_until("processes are left", || desk.processes().is_empty()).await;
    drop(session);

    // What it has left on the disk is gone when its successor has started.
    let litter = |dir: &Path| fs::read_dir(dir).map_or(0, |entries| entries.flatten().count());
    let of_programs = |entry: &fs::DirEntry| !entry.file_name().to_string_lossy().contains('.');
    let mut dirs = fs::read_dir(desk.work_dir()).expect("it is there").flatten();
    let base = dirs.find(of_programs).expect("the agent's").path();
    assert!(litter(&base) > 0);
    let agent = process(&desk);
    let (session, _) = desk.server.welcomed().await;
    assert_eq!(litter(&base), 0);
    stop(agent, session).await;
    desk.nothing_is_left().await;
}

/// An agent that is a process of its own.
fn process(desk: &Desk) -> Child {
    started(desk, "", &mut Command::new(env!("CARGO_BIN_EXE_pcfarm-worker")))
}

/// With more said of its program, in TOML.
fn started(desk: &Desk, more: &str, agent: &mut Command) -> Child {
    let config = desk.dir.path().join("worker.toml");
    let script = desk.dir.path().join("puppet.py").display().to_string();
    let text = format!(
        "state_dir = {:?}\nwork_dir = {:?}\n[[program]]\nname = \"puppet\"\nmode = \"fed\"\npath = \"{PYTHON}\"\nargs = [{script:?}]\n\
         trusted = true\nenv = {{ MARK = {:?} }}\n{more}\n",
        desk.dir.path().join("state"),
        desk.work_dir(),
        desk.mark,
    );
    fs::write(&config, text).expect("written");
    agent
        .args(["--server", &desk.server.url(), "--cores", "2", "--unattended", "--config"])
        .arg(&config)
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("the agent starts")
}

async fn stop(mut agent: Child, session: Session) {
    let pid = agent.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).expect("it runs");
    kill_process(pid, Signal::TERM).expect("it is ours");
    drop(session);
    agent.wait().await.expect("it ends");
}

fn parent_of(process: i32) -> Pid {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it is fed");
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).expect("it has one").trim();
    Pid::from_raw(parent.parse().expect("a number")).expect("a process")
}

#[tokio::test]
async fn what_a_killed_supervisor_leaves_is_ended() {
    let mut desk = Desk::new("").await;
    let agent = process(&desk);
    let (mut session, _) = desk.server.welcomed().await;
    session.check_out(1, "exec:puppet", [puppet("orphan and wait").to_string()]).await;
    desk.wait_until("it does not start", || desk.processes().len() == 2).await;
    kill_process(parent_of(desk.processes()[0]), Signal::KILL).expect("it is ours");
    let results = closed(&mut session, 1).await;
    assert!(results[0].contains("supervisor is lost"), "{results:?}");
    desk.wait_until("processes are left", || desk.processes().is_empty()).await;
    assert_eq!(run(&mut session, 2, "puppet", &[add(&[1])]).await, ["1"]);
    stop(agent, session).await;
    desk.nothing_is_left().await;
}

/// Root's supervisor may look into everything; that of an agent with an account of its own may not.
#[tokio::test]
async fn memory_counts_that_nobody_may_look_into() {
    const NOBODY: u32 = 65534;
    let mut desk = Desk::new("").await;
    // Where this was built may be root's alone.
    let binary = desk.dir.path().join("pcfarm-worker");
    fs::copy(env!("CARGO_BIN_EXE_pcfarm-worker"), &binary).expect("there is room");
    let mut agent = Command::new(&binary);
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(desk.dir.path(), Some(NOBODY), Some(NOBODY)).expect("root may");
        agent.uid(NOBODY).gid(NOBODY);
    }
    let agent = started(&desk, "memory_mib = 256", &mut agent);
    let (mut session, _) = desk.server.welcomed().await;
    let results = run(&mut session, 1, "puppet", &[puppet("hog out of sight"), add(&[1, 2])]).await;
    assert!(results[0].contains("MiB of memory; its limit is 256 MiB"), "{results:?}");
    assert_eq!(results[1], "3");
    stop(agent, session).await;
    desk.nothing_is_left().await;
}

#[tokio::test]
async fn no_program_is_heard_at_the_agents_socket() {
    let mut desk = Desk::new("").await;
    let agent = process(&desk);
    let (mut session, _) = desk.server.welcomed().await;
    let socket = desk.dir.path().join("state/agent.sock");
    desk.wait_until("there is no socket", || socket.exists()).await;
    // As a service has it: for whoever has an account.
    fs::set_permissions(socket.parent().expect("its directory"), fs::Permissions::from_mode(0o755)).expect("ours");
    let mut own = UnixStream::connect(&socket).await.expect("it is there");
    own.write_all(b"anything\n").await.expect("it listens");
    let mut heard = [0; 1];
    own.read_exact(&mut heard).await.expect("it answers others");
    assert_eq!(run(&mut session, 1, "puppet", &[json!({"do": "call", "path": socket})]).await, ["\"\""]);
    stop(agent, session).await;
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
        json!({"do": "link", "path": key}),
        json!({"do": "truncate", "path": key}),
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
    // Into another directory, which the fence takes for another file system.
    assert!(["PermissionError", "OSError"].contains(&results[5].as_str().expect("a word")), "{}", results[5]);
    assert_eq!(results[6], "PermissionError");
    assert_eq!(fs::read_to_string(&key).expect("it is the agent's"), "a key");
    let directory = results[4].as_str().expect("its directory");
    assert!(!Path::new(directory).exists(), "a problem's directory stays");
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
    desk.nothing_is_left().await;
}
