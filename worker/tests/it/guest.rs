//! Agents on desks whose persons come and go: what they do with what they hold, and what they say of it.
//!
//! Input devices are pipes, and power supplies are files, in directories of a test's own.

mod conditions;
mod frozen;
#[cfg(feature = "desktop")]
mod logind;
#[cfg(feature = "desktop")]
mod sessions;
#[cfg(feature = "desktop")]
mod suspend;
mod terminals;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::farm::{RunningAgent, Server, Session, outcomes};
use crate::left_out;
use pcfarm_proto::v1;
use pcfarm_proto::v1::WorkstationState as State;
use pcfarm_proto::v1::server_message::Message as ToAgent;
use pcfarm_worker::builtin::{Echo, Sleep};
use pcfarm_worker::presence::policy::OnReturn;
use pcfarm_worker::presence::settings::Settings as Presence;
use pcfarm_worker::{Agent, Settings};
use tokio::process::{Child, Command};

/// A desk with a keyboard, on mains.
struct Desk {
    dir: tempfile::TempDir,
    keyboard: File,
}

impl Desk {
    fn new() -> Desk {
        let dir = tempfile::tempdir().expect("a temporary directory");
        fs::create_dir_all(dir.path().join("dev/input")).expect("made");
        let keyboard = plug(dir.path(), "event0", "A keyboard", "120013");
        let desk = Desk { dir, keyboard };
        desk.power("1\n", "Charging\n");
        desk
    }

    /// What is written to the file is what that device reports.
    fn plug(&self, event: &str, name: &str, events: &str) -> File {
        plug(self.dir.path(), event, name, events)
    }

    fn power(&self, mains: &str, battery: &str) {
        let supplies = self.dir.path().join("sys/class/power_supply");
        for (file, text) in
            [("AC/type", "Mains\n"), ("AC/online", mains), ("BAT0/type", "Battery\n"), ("BAT0/status", battery)]
        {
            let path = supplies.join(file);
            fs::create_dir_all(path.parent().expect("it has one")).expect("made");
            fs::write(path, text).expect("written");
        }
    }

    fn press_a_key(&mut self) {
        let mut event = vec![0; 2 * size_of::<usize>()];
        event.extend(1_u16.to_ne_bytes());
        event.extend(30_u16.to_ne_bytes());
        event.extend(1_i32.to_ne_bytes());
        self.keyboard.write_all(&event).expect("pressed");
    }

    /// Whoever touches nothing for a tenth of a second has left. What else this machine does is nobody's business.
    fn presence(&self) -> Presence {
        let mut presence = Presence::of_a_desk();
        presence.dev = self.dir.path().join("dev");
        presence.sys = self.dir.path().join("sys");
        presence.run = self.dir.path().join("run");
        presence.policy.start_after = Duration::from_millis(100);
        presence.policy.resume_after = Duration::from_millis(100);
        presence.policy.load = None;
        presence.policy.free_memory = None;
        presence
    }

    /// The same in a file, for an agent that is a program.
    fn config(&self) -> PathBuf {
        let path = self.dir.path().join("worker.toml");
        let text = format!(
            "[presence]\nstart_after = 0.1\nresume_after = 0.1\nload = inf\nfree_memory = 0\ndev = {:?}\nsys = {:?}\nrun = {:?}\n",
            self.dir.path().join("dev"),
            self.dir.path().join("sys"),
            self.dir.path().join("run"),
        );
        fs::write(&path, text).expect("written");
        path
    }

    async fn agent(&self, adjust: impl FnOnce(&mut Settings)) -> (Server, RunningAgent, Session) {
        let mut server = Server::start().await;
        let agent = Agent::new().controller(Echo).controller(Sleep);
        let agent = RunningAgent::start(agent, &[&server], |settings| {
            settings.presence = self.presence();
            adjust(settings);
        });
        let (session, _) = server.welcomed().await;
        (server, agent, session)
    }
}

fn plug(dir: &Path, event: &str, name: &str, events: &str) -> File {
    let described = dir.join("sys/class/input").join(event).join("device");
    fs::create_dir_all(described.join("capabilities")).expect("made");
    fs::write(described.join("name"), format!("{name}\n")).expect("written");
    fs::write(described.join("capabilities/ev"), format!("{events}\n")).expect("written");
    let event = dir.join("dev/input").join(event);
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &event, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
    File::options().read(true).write(true).open(event).expect("its other end")
}

/// One that takes no time, and one that takes for ever unless it is cancelled.
fn quick_and_long() -> [String; 2] {
    [r#"{"ms": 0}"#, r#"{"ms": 600000}"#].map(str::to_owned)
}

const PERSON: &str = "its person is here, or left less than 0.1 s ago (evdev)";

#[tokio::test]
async fn what_is_finished_is_delivered_and_the_rest_given_back_when_somebody_returns() {
    let mut desk = Desk::new();
    let (_server, mut agent, mut session) = desk.agent(|_| {}).await;
    session.credit().await;
    session.check_out(1, "sleep", quick_and_long()).await;
    session.until_state(State::Processing).await;
    desk.press_a_key();
    let (mut solved, mut reason) = (Vec::new(), String::new());
    while reason.is_empty() {
        let delivery = session.delivery().await;
        for part in &delivery.checkouts {
            solved.extend(outcomes(part));
            reason.clone_from(&part.give_back_reason);
        }
        session.acknowledge(&delivery).await;
    }
    assert_eq!(solved, [(1000, r#"{"ms":0}"#.to_owned())]);
    assert_eq!(reason, PERSON);
    assert_eq!(session.until_state(State::Suspended).await, PERSON);
    // What was on its way comes back as well.
    session.check_out(2, "echo", ["1".to_owned()]).await;
    let delivery = session.delivery().await;
    assert_eq!((delivery.checkouts[0].give_back_reason.as_str(), delivery.checkouts[0].results.len()), (PERSON, 0));
    session.acknowledge(&delivery).await;

    // And when nobody has touched anything for long enough, it goes on.
    assert_eq!(session.until_state(State::Waiting).await, "");
    session.check_out(3, "echo", ["1".to_owned()]).await;
    let delivery = session.delivery().await;
    assert_eq!(outcomes(&delivery.checkouts[0]), [(3000, "1".to_owned())]);
    session.acknowledge(&delivery).await;
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

const AWAY: Duration = Duration::from_secs(4);

#[tokio::test]
async fn what_was_begun_is_finished_if_the_owner_wants_it_so() {
    let mut desk = Desk::new();
    let finish = |settings: &mut Settings| {
        settings.cores = 1;
        settings.presence.policy.on_return = OnReturn::Finish;
        // Longer than it takes to finish.
        (settings.presence.policy.start_after, settings.presence.policy.resume_after) = (AWAY, AWAY);
    };
    let (_server, mut agent, mut session) = desk.agent(finish).await;
    session.credit().await;
    let second = r#"{"ms": 2000}"#;
    session.check_out(1, "sleep", [r#"{"ms": 0}"#, second, second].map(str::to_owned)).await;
    session.until_state(State::Processing).await;
    desk.press_a_key();
    let mut solved = Vec::new();
    loop {
        let delivery = session.delivery().await;
        let part = &delivery.checkouts[0];
        solved.extend(outcomes(part));
        session.acknowledge(&delivery).await;
        if part.finished {
            assert_eq!(part.give_back_reason, PERSON.replace("0.1 s", "4 s"));
            break;
        }
    }
    assert_eq!(solved, [(1000, r#"{"ms":0}"#.to_owned()), (1001, r#"{"ms":2000}"#.to_owned())]);
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

#[tokio::test]
async fn a_source_that_breaks_stands_for_a_person() {
    let desk = Desk::new();
    let (_server, mut agent, mut session) = desk.agent(|_| {}).await;
    session.credit().await;
    fs::remove_dir_all(desk.dir.path().join("dev/input")).expect("it is there");
    let reason = session.until_state(State::Suspended).await;
    assert!(reason.starts_with("no source can tell whether somebody is there (evdev: "), "{reason}");
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

#[tokio::test]
async fn on_battery_it_does_not_work() {
    let desk = Desk::new();
    let (_server, mut agent, mut session) = desk.agent(|_| {}).await;
    session.credit().await;
    desk.power("0\n", "Discharging\n");
    assert_eq!(session.until_state(State::Suspended).await, "on battery");
    desk.power("1\n", "Charging\n");
    session.until_state(State::Waiting).await;
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

#[tokio::test]
async fn it_does_not_work_on_a_supply_of_unknown_state() {
    let desk = Desk::new();
    let (_server, mut agent, mut session) = desk.agent(|_| {}).await;
    session.credit().await;
    fs::remove_file(desk.dir.path().join("sys/class/power_supply/BAT0/status")).expect("it is there");
    let reason = session.until_state(State::Suspended).await;
    assert!(reason.starts_with("cannot tell whether it is on battery"), "{reason}");
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

/// Says a line to the agent of this state directory.
fn say(state_dir: &Path, line: &str) -> UnixStream {
    let mut stream = UnixStream::connect(state_dir.join("agent.sock")).expect("the agent listens");
    stream.write_all(line.as_bytes()).expect("said");
    stream
}

#[tokio::test]
async fn a_helper_is_believed_that_somebody_is_there() {
    let desk = Desk::new();
    let (_server, mut agent, mut session) = desk.agent(|_| {}).await;
    session.credit().await;
    let line = "{\"version\":1,\"ask\":\"session\",\"source\":\"test\",\"idle_ms\":0}\n";
    let helper = say(agent.state_dir(), line);
    let reason = session.until_state(State::Suspended).await;
    assert!(reason.ends_with(&format!("(test of user {})", rustix::process::geteuid().as_raw())), "{reason}");
    drop(helper);
    session.until_state(State::Waiting).await;
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

/// Asks as another user, if these tests may be one; the answer.
fn asked_by_nobody(state_dir: &Path, line: &str) -> Option<String> {
    let nobody = rustix::process::Uid::from_raw(65534);
    if !rustix::process::geteuid().is_root() {
        left_out::here("only root can be another user");
        return None;
    }
    let (socket, line) = (state_dir.join("agent.sock"), line.to_owned());
    // Of this thread alone, which ends with it.
    let asking = std::thread::spawn(move || {
        // Nobody passes through a test's own directories.
        let common = std::env::temp_dir();
        for directory in
            socket.ancestors().skip(1).filter(|directory| **directory != common && directory.starts_with(&common))
        {
            let through = std::os::unix::fs::PermissionsExt::from_mode(0o711);
            fs::set_permissions(directory, through).expect("it may");
        }
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("it may");
        let mut stream = UnixStream::connect(socket).expect("the agent listens");
        stream.write_all(line.as_bytes()).expect("said");
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).expect("an answer");
        answer
    });
    Some(asking.join().expect("it answers"))
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_ends_the_pause_of_another() {
    let desk = Desk::new();
    let (_server, mut agent, mut session) = desk.agent(|_| {}).await;
    session.credit().await;
    let resume = "{\"version\":1,\"ask\":\"resume\"}\n";
    let pause = "{\"version\":1,\"ask\":\"pause\",\"for\":\"1h\"}\n";
    let owners = say(agent.state_dir(), pause);
    session.until_state(State::Suspended).await;
    let Some(refused) = asked_by_nobody(agent.state_dir(), resume) else { return };
    assert!(refused.contains("only who has paused it ends that"), "{refused}");
    // Nor by a shorter one of their own.
    for line in [pause, resume] {
        let answer = asked_by_nobody(agent.state_dir(), line).expect("it was before");
        assert!(answer.contains("paused by its owner until"), "{answer}");
    }
    drop(owners);
    let administrators = say(agent.state_dir(), resume);
    session.until_state(State::Waiting).await;
    drop(administrators);
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

#[tokio::test]
async fn nonsense_on_the_socket_is_answered_and_harms_nobody() {
    let desk = Desk::new();
    let (_server, mut agent, mut session) = desk.agent(|_| {}).await;
    session.credit().await;
    let long = format!("{}\n", "x".repeat(5000));
    let old = "{\"version\":0,\"ask\":\"explain\"}\n";
    let pause = "{\"version\":1,\"ask\":\"pause\",\"for\":\"ever\"}\n";
    let said = [
        ("{}\n", "missing field"),
        (old, "version 1 is spoken"),
        (&long, "at most 4096 bytes"),
        (pause, "is no pause"),
    ];
    for (line, expected) in said {
        let stream = say(agent.state_dir(), line);
        let answer = tokio::task::spawn_blocking(move || {
            let mut answer = String::new();
            BufReader::new(stream).read_line(&mut answer).expect("an answer");
            answer
        });
        let answer = answer.await.expect("it is read");
        assert!(answer.contains(expected), "{line}: {answer}");
    }
    session.check_out(1, "echo", ["1".to_owned()]).await;
    let delivery = session.delivery().await;
    session.acknowledge(&delivery).await;
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

fn program(desk: &Desk, arguments: &[&str]) -> Command {
    program_by(desk, &desk.config(), arguments)
}

/// The same with other settings.
fn program_by(desk: &Desk, config: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pcfarm-worker"));
    for variable in ["PCFARM_UNATTENDED", "PCFARM_SERVER", "RUNTIME_DIRECTORY"] {
        command.env_remove(variable);
    }
    let state = desk.dir.path().join("state");
    command.arg("--config").arg(config).arg("--state-dir").arg(state).args(arguments);
    command.kill_on_drop(true);
    command
}

fn start(desk: &Desk, server: &Server, arguments: &[&str]) -> Child {
    let url = server.url();
    let arguments = [&["--server", &url, "--cores", "1"], arguments].concat();
    program(desk, &arguments).stderr(Stdio::null()).spawn().expect("the agent starts")
}

#[tokio::test]
async fn a_deaf_controller_ends_with_its_process_which_another_replaces() {
    let mut desk = Desk::new();
    let mut server = Server::start().await;
    let mut agent = start(&desk, &server, &[]);
    let (mut session, first) = server.welcomed().await;
    session.credit().await;
    session.check_out(1, "sleep", [r#"{"ms": 0}"#, r#"{"ms": 600000, "deaf": true}"#].map(str::to_owned)).await;
    session.until_state(State::Processing).await;
    desk.press_a_key();
    let mut solved = Vec::new();
    loop {
        let delivery = session.delivery().await;
        let part = &delivery.checkouts[0];
        solved.extend(outcomes(part));
        session.acknowledge(&delivery).await;
        if part.finished {
            assert_eq!(part.give_back_reason, PERSON);
            break;
        }
    }
    assert_eq!(solved, [(1000, r#"{"ms":0}"#.to_owned())]);
    // The same process with another program in it, which is the same workstation and the same agent to the farm.
    let pid = agent.id();
    let (mut session, second) = server.welcomed().await;
    assert_eq!((&second.identity, &second.instance), (&first.identity, &first.instance));
    assert_eq!((second.state(), second.held.len()), (State::Suspended, 0));
    assert_eq!((agent.id(), agent.try_wait().expect("it can be asked")), (pid, None));
    // And works when nobody is there.
    session.until_state(State::Waiting).await;
    session.check_out(2, "echo", ["1".to_owned()]).await;
    let delivery = session.delivery().await;
    assert_eq!(outcomes(&delivery.checkouts[0]), [(2000, "1".to_owned())]);
    session.acknowledge(&delivery).await;
}

/// What a command says, and its exit code.
async fn run(desk: &Desk, arguments: &[&str]) -> (i32, String) {
    let output = program(desk, arguments).output().await.expect("it runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().expect("it ends by itself"), String::from_utf8(text).expect("text"))
}

#[tokio::test]
async fn the_owner_asks_and_pauses_without_being_an_administrator() {
    let desk = Desk::new();
    let (code, text) = run(&desk, &["explain"]).await;
    assert!(code == 3 && text.contains("no agent answers at"), "{text}");
    assert!(text.contains("evdev") && text.contains("does not work"), "{text}");
    assert_eq!(run(&desk, &["pause", "1h"]).await.0, 3);
    assert_eq!(run(&desk, &["pause", "for ever"]).await.0, 2);

    let mut server = Server::start().await;
    let _agent = start(&desk, &server, &["--unattended"]);
    let (mut session, hello) = server.welcomed().await;
    assert_eq!(hello.state(), State::Waiting);
    session.credit().await;
    session.check_out(1, "sleep", [r#"{"ms": 600000}"#.to_owned()]).await;
    session.until_state(State::Processing).await;
    let (code, text) = run(&desk, &["explain"]).await;
    assert_eq!(code, 0, "{text}");
    for expected in ["The agent works", "nobody sits here (unattended)", "1 problem of job test"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let (code, text) = run(&desk, &["pause", "1h"]).await;
    assert_eq!(code, 0, "{text}");
    let delivery = session.delivery().await;
    session.acknowledge(&delivery).await;
    let reason = session.until_state(State::Suspended).await;
    assert!(reason.starts_with("paused by its owner until 2"), "{reason}");
    assert_eq!((delivery.checkouts[0].finished, &delivery.checkouts[0].give_back_reason), (true, &reason));
    let (code, text) = run(&desk, &["explain", "--output", "json"]).await;
    let explained: serde_json::Value = serde_json::from_str(&text).expect("a document");
    assert_eq!((code, &explained["activity"], &explained["reasons"][0]), (0, &"rests".into(), &reason.as_str().into()));
    assert_eq!(run(&desk, &["resume"]).await.0, 0);
    session.until_state(State::Waiting).await;

    // And of the farm.
    session.send(ToAgent::Drain(v1::Drain { reason: "new memory".to_owned(), give_back: false })).await;
    session.until_state(State::Draining).await;
    let (_, text) = run(&desk, &["explain", "--output", "json"]).await;
    let explained: serde_json::Value = serde_json::from_str(&text).expect("a document");
    assert_eq!(explained["activity"], "drains");
    assert_eq!(explained["reasons"], serde_json::json!(["the farm has it take no more: new memory"]));
    let signals = explained["signals"].as_array().expect("a list");
    let drain = signals.iter().find(|signal| signal["signal"] == "drain").expect("it is said");
    assert_eq!((&drain["source"], &drain["says"]), (&"the farm".into(), &"new memory".into()));
    assert!(run(&desk, &["explain"]).await.1.starts_with("The agent finishes what it has, and takes no more"));
    let (code, text) = run(&desk, &["history"]).await;
    assert_eq!(code, 0, "{text}");
    let lines: Vec<&str> = text.lines().filter_map(|line| line.split_once("  ")).map(|(_, what)| what).collect();
    assert_eq!(lines, ["works", &format!("does not work: {reason}"), "works"]);
}
