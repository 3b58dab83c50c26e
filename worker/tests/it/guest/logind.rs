//! Sessions without a terminal, and programs that keep the screen on, as logind itself lists them.
//!
//! systemd's logind runs here with a `/run` and a bus of its own. In place of systemd, which is no process here, the test makes the
//! cgroups.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use pcfarm_proto::v1::WorkstationState as State;
use pcfarm_proto::v1::agent_message::Message as FromAgent;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use zbus::message::Type;
use zbus::{Connection, Message, MessageStream, ObjectPath, OwnedVariant, Variant};

use super::Desk;
use crate::left_out;

const LOGIND: &str = "/lib/systemd/systemd-logind";
const MANAGER: &str = "org.freedesktop.login1.Manager";
const HIERARCHIES: [&str; 2] = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];

/// An account that every machine has.
const NOBODY: u32 = 65534;

struct Logind {
    run: tempfile::TempDir,
    bus: Connection,
    programs: [Child; 2],
    _systemd: JoinSet<()>,
}

impl Logind {
    /// None: systemd-logind is not there, or the test does not run as root.
    async fn start() -> Option<Logind> {
        if !rustix::process::geteuid().is_root() || !Path::new(LOGIND).exists() {
            left_out::for_want_of("systemd-logind and root's rights");
            return None;
        }
        let run = tempfile::tempdir().expect("a directory");
        for dir in ["dbus", "systemd/system"] {
            fs::create_dir_all(run.path().join(dir)).expect("made");
        }
        let config = run.path().join("bus.conf");
        let policy = "<policy context='default'><allow user='*'/><allow own='*'/><allow send_destination='*'/>\
            <allow receive_sender='*'/></policy>";
        let listens = "<type>system</type><listen>unix:path=/run/dbus/system_bus_socket</listen><auth>EXTERNAL</auth>";
        fs::write(&config, format!("<busconfig>{listens}{policy}</busconfig>")).expect("written");
        let script = format!("mount --bind {} /run && exec \"$@\"", run.path().display());
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh", "dbus-daemon", "--nofork"]);
        let daemon = quiet(command.arg("--config-file=/run/bus.conf"));
        let socket = run.path().join("dbus/system_bus_socket");
        until(|| socket.exists()).await;
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", daemon.id().expect("it runs"))).arg(LOGIND);
        let address = format!("unix:path={}", socket.display());
        let (bus, systemd) = systemd(&address).await;
        let logind = quiet(&mut command);
        let names = zbus::fdo::DBusProxy::new(&bus).await.expect("it answers");
        let name = zbus::names::BusName::try_from("org.freedesktop.login1").expect("a name");
        while !names.name_has_owner(name.clone()).await.expect("it answers") {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Some(Logind { run, bus, programs: [daemon, logind], _systemd: systemd })
    }

    /// Returns the answer. Its file descriptor keeps the session alive until the message is dropped.
    async fn call<B: serde::Serialize + zbus::DynamicType>(&self, method: &str, body: &B) -> Message {
        let name = Some("org.freedesktop.login1");
        let called = self.bus.call_method(name, "/org/freedesktop/login1", Some(MANAGER), method, body);
        tokio::time::timeout(Duration::from_secs(30), called).await.expect("in time").expect("it may")
    }

    /// As sshd begins it for a remote editor. Its leader is `leader`.
    async fn begin_session(&self, leader: &Child) -> Message {
        let leader = leader.id().expect("it runs");
        let more: Vec<(&str, zbus::Variant<'_>)> = Vec::new();
        let body = (NOBODY, leader, "sshd", "tty", "user", "", "", 0_u32, "", "", true, "", "192.0.2.7", more);
        self.call("CreateSession", &body).await
    }

    /// Another program than the agent, whose own inhibitors do not count.
    fn inhibit(&self, wishes: &[&str]) -> Child {
        let bus = format!("unix:path={}", self.run.path().join("dbus/system_bus_socket").display());
        quiet(Command::new("systemd-inhibit").args(wishes).args(["sleep", "60"]).env("DBUS_SYSTEM_BUS_ADDRESS", bus))
    }

    /// Lets logind find that the machine can be suspended, also under a kernel that cannot. False: its file cannot be covered.
    async fn may_suspend(&self) -> bool {
        let states = self.run.path().join("power-states");
        fs::write(&states, "freeze mem disk\n").expect("written");
        let namespace = format!("--mount=/proc/{}/ns/mnt", self.programs[0].id().expect("it runs"));
        let mut command = Command::new("nsenter");
        command.arg(namespace).args(["mount", "--bind"]).arg(states).arg("/sys/power/state");
        quiet(&mut command).wait().await.expect("it ends").success()
    }

    fn sessions(&self) -> Vec<String> {
        let dir = fs::read_dir(self.run.path().join("systemd/sessions")).expect("it is there");
        let names = dir.map(|entry| entry.expect("it is there").file_name().into_string().expect("text"));
        names.filter(|name| !name.contains('.')).collect()
    }
}

fn quiet(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    command.spawn().expect("it starts")
}

async fn until(is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), wait).await.expect("in time");
}

/// Name, mode and properties of a unit, and other units.
type Transient = (String, String, Vec<(String, OwnedVariant)>, Vec<(String, Vec<(String, OwnedVariant)>)>);

/// Says of each unit that it has been started.
async fn systemd(address: &str) -> (Connection, JoinSet<()>) {
    // The socket exists a moment before the bus listens there.
    let connected = async {
        loop {
            match zbus::connection::Builder::address(address).build().await {
                Ok(bus) => return bus,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let bus = tokio::time::timeout(Duration::from_secs(30), connected).await.expect("it answers in time");
    bus.request_name("org.freedesktop.systemd1").await.expect("nobody has it");
    let (mut calls, served) = (MessageStream::from(&bus), bus.clone());
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let mut number = 0_u32;
        while let Some(Ok(call)) = calls.next().await {
            let header = call.header();
            let member = header.member().map(|member| member.to_string()).unwrap_or_default();
            if call.message_type() != Type::MethodCall {
                continue;
            }
            let body = call.body();
            let asked = body.deserialize::<(String, String)>();
            if member == "Get" && asked.is_ok_and(|(_, property)| property == "LoadState") {
                let _ = served.reply(&header, &Variant::from("loaded")).await;
                continue;
            }
            if !matches!(member.as_str(), "StartUnit" | "StartTransientUnit" | "StopUnit") {
                let _ = served.reply(&header, &()).await;
                continue;
            }
            let unit = match member.as_str() {
                "StartTransientUnit" => body.deserialize::<Transient>().map(|unit| unit.0),
                _ => body.deserialize::<(String, String)>().map(|unit| unit.0),
            };
            let unit = unit.expect("logind names the unit");
            number += 1;
            let job = ObjectPath::try_from(format!("/org/freedesktop/systemd1/job/{number}")).expect("a path");
            let _ = served.reply(&header, &job).await;
            let done = (number, &job, &unit, "done");
            let (place, manager) = ("/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager");
            let signal = served.emit_signal(None::<&str>, place, manager, "JobRemoved", &done);
            let _ = signal.await;
        }
    });
    (bus, serving)
}

/// A cgroup of a session, which is gone when this is.
struct Scope {
    dir: PathBuf,
    busy: Child,
}

fn busy() -> Child {
    quiet(Command::new("sh").args(["-c", "while :; do :; done"]))
}

impl Scope {
    /// None: this machine's cgroups cannot be changed.
    async fn start(session: &str) -> Option<Scope> {
        let hierarchy = HIERARCHIES.iter().find(|dir| Path::new(dir).join("cgroup.procs").exists())?;
        let user = Path::new(hierarchy).join(format!("user.slice/user-{NOBODY}.slice"));
        let dir = user.join(format!("session-{session}.scope"));
        fs::create_dir_all(&dir).ok()?;
        let busy = busy();
        fs::write(dir.join("cgroup.procs"), busy.id().expect("it runs").to_string()).ok()?;
        Some(Scope { dir, busy })
    }

    async fn rest(&mut self) {
        self.busy.kill().await.expect("it is there");
    }

    /// Another program of the session computes.
    fn compute(&mut self) {
        self.busy = busy();
        let pid = self.busy.id().expect("it runs").to_string();
        fs::write(self.dir.join("cgroup.procs"), pid).expect("it was made so");
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        let _ = self.busy.start_kill();
        let dir = self.dir.clone();
        // As soon as the kernel has let go of its process.
        for _ in 0..100 {
            if fs::remove_dir(&dir).is_ok() || !dir.exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = dir.parent().map(fs::remove_dir);
    }
}

#[tokio::test]
async fn a_remote_editor_counts_until_some_time_after_its_last_use() {
    let Some(logind) = Logind::start().await else { return };
    let desk = Desk::new();
    fs::create_dir_all(desk.dir.path().join("sys/fs")).expect("made");
    std::os::unix::fs::symlink("/sys/fs/cgroup", desk.dir.path().join("sys/fs/cgroup")).expect("made");
    let (_server, mut agent, mut session) = desk
        .agent(|settings| {
            settings.presence.run = logind.run.path().to_owned();
            settings.presence.policy.remote.after = Duration::from_secs(2);
            settings.presence.policy.remote.cpu = 0.2;
        })
        .await;
    session.until_state(State::Waiting).await;
    let leader = quiet(Command::new("sleep").arg("600"));
    let begun = logind.begin_session(&leader).await;
    let ids = logind.sessions();
    let [id] = ids.as_slice() else { panic!("{ids:?}") };
    let Some(mut scope) = Scope::start(id).await else { return left_out::for_want_of("cgroups that can be made") };
    let began = format!("(session {id} by sshd, since ");
    let expected = "its person works here without a terminal, or did less than 2 s ago ";
    // Before its cgroup was made its use was unknown.
    let mut reason = String::new();
    while !(reason.starts_with(expected) && reason.contains(&began)) {
        reason = session.until_state(State::Suspended).await;
    }
    scope.rest().await;
    session.until_state(State::Waiting).await;
    // The user logs out, and leaves a program behind that computes.
    drop(begun);
    until(|| {
        fs::read_to_string(logind.run.path().join("systemd/sessions").join(id))
            .is_ok_and(|text| text.contains("STATE=closing"))
    })
    .await;
    scope.compute();
    // Longer than from one look at the list to the next.
    let suspended = tokio::time::timeout(Duration::from_secs(7), session.until_state(State::Suspended)).await;
    assert!(suspended.is_err(), "a program that its user left behind is no person: {suspended:?}");
    agent.stop.cancel();
    drop((session, scope));
    agent.ended().await.expect("nothing is left");
}

#[tokio::test]
async fn beside_a_program_that_keeps_the_screen_on_it_does_not_work() {
    let Some(logind) = Logind::start().await else { return };
    let desk = Desk::new();
    let (_server, mut agent, mut session) =
        desk.agent(|settings| settings.presence.run = logind.run.path().to_owned()).await;
    session.until_state(State::Waiting).await;
    // Programs that delay sleep are no sign of a person.
    let _asked = logind.inhibit(&["--what=sleep", "--who=a manager of networks", "--mode=delay"]);
    let mut film =
        logind.inhibit(&["--what=sleep:idle", "--who=A player of films", "--why=Film läuft", "--mode=block"]);
    let reason = session.until_state(State::Suspended).await;
    assert_eq!(reason, "its person may be watching: A player of films keeps the screen on (logind)");
    film.kill().await.expect("it is there");
    session.until_state(State::Waiting).await;
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

/// logind asks systemd for its unit `suspend.target`, which a test's systemd only says to have started.
#[tokio::test]
async fn a_sleep_waits_until_the_farm_knows_of_it() {
    let Some(logind) = Logind::start().await else { return };
    if !logind.may_suspend().await {
        return left_out::for_want_of("a file of the kernel that can be covered");
    }
    let desk = Desk::new();
    let (_server, mut agent, mut session) =
        desk.agent(|settings| settings.presence.run = logind.run.path().to_owned()).await;
    session.until_state(State::Waiting).await;
    let inhibitors = || {
        let listed = fs::read_dir(logind.run.path().join("systemd/inhibit")).into_iter().flatten().flatten();
        // Opening a pipe would hang.
        listed.filter(|entry| entry.path().is_file()).filter_map(|entry| fs::read_to_string(entry.path()).ok())
    };
    let delays = |text: String| text.contains("WHO=pcfarm-worker") && text.contains("MODE=delay");
    until(|| inhibitors().any(delays)).await;
    logind.call("Suspend", &false).await;
    let told = |wanted| {
        move |message: FromAgent| match message {
            FromAgent::StateChange(change) if change.asleep == wanted => Some(change.reason),
            _ => None,
        }
    };
    assert_eq!(session.next(told(true)).await, "asleep: its system goes to sleep");
    session.next(told(false)).await;
    until(|| inhibitors().any(delays)).await;
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}
