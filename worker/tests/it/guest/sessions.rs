//! What helpers see in people's sessions: of X11, of a compositor of Wayland, and of GNOME's.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pcfarm_proto::v1::WorkstationState as State;
use tokio::process::{Child, Command};
use tokio_stream::StreamExt;
use x11rb::connection::Connection as _;
use x11rb::protocol::xproto::{AtomEnum, ConnectionExt as _, CreateWindowAux, PropMode, WindowClass};
use x11rb::wrapper::ConnectionExt as _;

use super::{Desk, program};
use crate::left_out;

/// If not, the test says so, and is none.
fn are_there(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |program: &&&str| std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    let missing: Vec<&str> = programs.iter().filter(|program| !is_there(program)).copied().collect();
    if !missing.is_empty() {
        left_out::for_want_of(&missing.join(", "));
    }
    missing.is_empty()
}

/// It ends with its test.
fn unheard(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    command.spawn().expect("it starts")
}

/// The same, once it has said a line.
async fn told_by(command: &mut Command) -> (Child, String) {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let mut child = command.spawn().expect("it starts");
    let mut line = String::new();
    let mut said = tokio::io::BufReader::new(child.stdout.take().expect("a pipe"));
    tokio::io::AsyncBufReadExt::read_line(&mut said, &mut line).await.expect("it says a line");
    (child, line)
}

/// A session with nobody before it yet.
trait Seat {
    const SOURCE: &'static str;
    /// What a program in it is told of it.
    fn environment(&self) -> Vec<(&'static str, String)>;
    async fn press_a_key(&mut self);
    /// Who would answer.
    fn process(&self) -> &Child;
    async fn end(&mut self);
}

/// A display without a screen, and nobody before it.
struct Display {
    name: String,
    server: Child,
}

impl Display {
    /// None: what it takes is not installed.
    async fn start() -> Option<Display> {
        if !are_there(&["Xvfb", "xdotool"]) {
            return None;
        }
        let mut command = Command::new("Xvfb");
        command.args(["-displayfd", "1", "-screen", "0", "640x480x24", "-nolisten", "tcp"]);
        let (server, number) = told_by(&mut command).await;
        Some(Display { name: format!(":{}", number.trim()), server })
    }
}

impl Seat for Display {
    const SOURCE: &'static str = "x11";

    fn environment(&self) -> Vec<(&'static str, String)> {
        vec![("DISPLAY", self.name.clone())]
    }

    async fn press_a_key(&mut self) {
        let pressed = Command::new("xdotool").args(["key", "a"]).env("DISPLAY", &self.name).status().await;
        assert!(pressed.expect("it runs").success());
    }

    fn process(&self) -> &Child {
        &self.server
    }

    async fn end(&mut self) {
        self.server.kill().await.expect("it is there");
    }
}

/// A compositor without a screen. It does not run as root, and the tests may.
struct Sway {
    runtime: tempfile::TempDir,
    socket: String,
    compositor: Child,
}

impl Sway {
    /// None: what it takes is not installed.
    async fn start() -> Option<Sway> {
        if !are_there(&["sway", "wtype", "setpriv"]) {
            return None;
        }
        let runtime = tempfile::tempdir().expect("a temporary directory");
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            let nobody = (rustix::process::Uid::from_raw(65534), rustix::process::Gid::from_raw(65534));
            rustix::fs::chown(runtime.path(), Some(nobody.0), Some(nobody.1)).expect("it may");
        }
        let mut command = Command::new(if is_root { "setpriv" } else { "sway" });
        if is_root {
            command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "sway"]);
        }
        command
            .args(["--config", "/dev/null"])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("XDG_RUNTIME_DIR", runtime.path())
            .envs([("WLR_BACKENDS", "headless"), ("WLR_RENDERER", "pixman"), ("WLR_LIBINPUT_NO_DEVICES", "1")]);
        let compositor = unheard(&mut command);
        let socket = socket_in(runtime.path()).await;
        Some(Sway { runtime, socket, compositor })
    }
}

/// As soon as a compositor listens there, its name.
async fn socket_in(runtime: &Path) -> String {
    let search = async {
        loop {
            let names = fs::read_dir(runtime).expect("it is there").flatten().map(|entry| entry.file_name());
            let names = names.filter_map(|name| name.into_string().ok());
            if let Some(name) = names.into_iter().find(|name| name.starts_with("wayland-") && !name.ends_with(".lock"))
            {
                return name;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), search).await.expect("it listens in time")
}

impl Seat for Sway {
    const SOURCE: &'static str = "wayland";

    fn environment(&self) -> Vec<(&'static str, String)> {
        let runtime = self.runtime.path().to_str().expect("text").to_owned();
        vec![("XDG_RUNTIME_DIR", runtime), ("WAYLAND_DISPLAY", self.socket.clone())]
    }

    async fn press_a_key(&mut self) {
        let pressed = Command::new("wtype").arg("a").envs(self.environment()).status().await;
        assert!(pressed.expect("it runs").success());
    }

    fn process(&self) -> &Child {
        &self.compositor
    }

    async fn end(&mut self) {
        self.compositor.kill().await.expect("it is there");
    }
}

/// GNOME's compositor on a bus of its own.
struct Mutter {
    runtime: tempfile::TempDir,
    address: String,
    socket: String,
    bus: Child,
    compositor: Child,
}

#[zbus::proxy(
    interface = "org.gnome.Mutter.RemoteDesktop",
    default_service = "org.gnome.Mutter.RemoteDesktop",
    default_path = "/org/gnome/Mutter/RemoteDesktop"
)]
trait RemoteDesktop {
    fn create_session(&self) -> zbus::Result<zbus::OwnedObjectPath>;
}

#[zbus::proxy(interface = "org.gnome.Mutter.RemoteDesktop.Session", default_service = "org.gnome.Mutter.RemoteDesktop")]
trait RemoteDesktopSession {
    fn start(&self) -> zbus::Result<()>;
    fn notify_keyboard_keycode(&self, code: u32, pressed: bool) -> zbus::Result<()>;
    fn stop(&self) -> zbus::Result<()>;
}

impl Mutter {
    /// None: what it takes is not installed.
    async fn start() -> Option<Mutter> {
        if !are_there(&["mutter", "dbus-daemon"]) {
            return None;
        }
        let runtime = tempfile::tempdir().expect("a temporary directory");
        let address = format!("unix:path={}", runtime.path().join("bus").display());
        let mut command = Command::new("dbus-daemon");
        command.args(["--session", "--nofork", "--print-address=1", "--address", &address]);
        let (bus, _) = told_by(&mut command).await; // it listens
        let mut command = Command::new("mutter");
        command.args(["--headless", "--wayland", "--no-x11", "--virtual-monitor", "640x480"]);
        command.env("XDG_RUNTIME_DIR", runtime.path()).env("DBUS_SESSION_BUS_ADDRESS", &address);
        let compositor = unheard(&mut command);
        let socket = socket_in(runtime.path()).await;
        Some(Mutter { runtime, address, socket, bus, compositor })
    }
}

impl Seat for Mutter {
    const SOURCE: &'static str = "mutter";

    fn environment(&self) -> Vec<(&'static str, String)> {
        let runtime = self.runtime.path().to_str().expect("text").to_owned();
        vec![
            ("XDG_RUNTIME_DIR", runtime),
            ("WAYLAND_DISPLAY", self.socket.clone()),
            ("DBUS_SESSION_BUS_ADDRESS", self.address.clone()),
        ]
    }

    async fn press_a_key(&mut self) {
        let bus = zbus::connection::Builder::address(self.address.as_str());
        let bus = bus.build().await.expect("it answers");
        let desktop = RemoteDesktopProxy::new(&bus).await.expect("it is there");
        let session = desktop.create_session().await.expect("it may");
        let session = RemoteDesktopSessionProxy::new(&bus, session).await.expect("it is there");
        session.start().await.expect("it starts");
        for pressed in [true, false] {
            session.notify_keyboard_keycode(30, pressed).await.expect("it takes keys");
        }
        session.stop().await.expect("it ends");
    }

    fn process(&self) -> &Child {
        &self.compositor
    }

    async fn end(&mut self) {
        self.compositor.kill().await.expect("it is there");
        self.bus.kill().await.expect("it is there");
    }
}

/// A helper of this agent, in no session yet.
fn helper(desk: &Desk, socket: &Path) -> Command {
    let mut helper = program(desk, &["session"]);
    for other in ["DISPLAY", "WAYLAND_DISPLAY", "WAYLAND_SOCKET", "XDG_SESSION_TYPE", "DBUS_SESSION_BUS_ADDRESS"] {
        helper.env_remove(other);
    }
    helper.env("PCFARM_WORKER_SOCKET", socket);
    helper
}

/// The same in that session.
fn helper_in(desk: &Desk, seat: &impl Seat, socket: &Path) -> Child {
    let mut helper = helper(desk, socket);
    helper.envs(seat.environment()).stderr(Stdio::null()).spawn().expect("it starts")
}

/// It works while nobody is there, gives way to a key, works again, and does nothing when it cannot tell any more.
async fn tells_when_its_person_is_there<S: Seat>(mut seat: S) {
    let desk = Desk::new();
    // Its helper is the only one who knows anything.
    fs::remove_dir_all(desk.dir.path().join("dev/input")).expect("it is there");
    let (_server, mut agent, mut session) = desk.agent(|_| {}).await;
    let mut helper = helper_in(&desk, &seat, &agent.state_dir().join("agent.sock"));
    session.credit().await;
    seat.press_a_key().await;
    let reason = session.until_state(State::Suspended).await;
    let expected = format!("({} of user {})", S::SOURCE, rustix::process::geteuid().as_raw());
    assert!(reason.starts_with("its person is here") && reason.ends_with(&expected), "{reason}");
    session.until_state(State::Waiting).await;
    seat.end().await;
    let reason = session.until_state(State::Suspended).await;
    assert!(reason.starts_with("no source can tell"), "{reason}");
    // A restart of the display is waited for.
    assert!(helper.try_wait().expect("it can be asked").is_none());
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

#[tokio::test]
async fn a_session_of_x11_tells_when_its_person_is_there() {
    if let Some(display) = Display::start().await {
        tells_when_its_person_is_there(display).await;
    }
}

#[tokio::test]
async fn a_session_of_wayland_tells_when_its_person_is_there() {
    if let Some(sway) = Sway::start().await {
        tells_when_its_person_is_there(sway).await;
    }
}

#[tokio::test]
async fn a_session_of_gnome_tells_when_its_person_is_there() {
    if let Some(mutter) = Mutter::start().await {
        tells_when_its_person_is_there(mutter).await;
    }
}

/// It said that nobody is there, and will not say anything else as long as it hangs.
async fn does_not_prove_that_nobody_is_there_when_it_hangs<S: Seat>(seat: S, expected: &str) {
    let desk = Desk::new();
    fs::remove_dir_all(desk.dir.path().join("dev/input")).expect("it is there");
    let (_server, mut agent, mut session) = desk.agent(|_| {}).await;
    let _helper = helper_in(&desk, &seat, &agent.state_dir().join("agent.sock"));
    session.until_state(State::Waiting).await;
    signal(seat.process(), rustix::process::Signal::STOP);
    let reason = session.until_state(State::Suspended).await;
    assert!(reason.contains(expected), "{reason}");
    signal(seat.process(), rustix::process::Signal::CONT);
    session.until_state(State::Waiting).await;
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

#[tokio::test]
#[ignore = "nightly: waits for the deadline of a compositor"]
async fn a_compositor_that_hangs_does_not_prove_that_nobody_is_there() {
    if let Some(sway) = Sway::start().await {
        does_not_prove_that_nobody_is_there_when_it_hangs(sway, "its compositor does not answer").await;
    }
}

#[tokio::test]
async fn a_display_that_hangs_does_not_prove_that_nobody_is_there() {
    if let Some(display) = Display::start().await {
        does_not_prove_that_nobody_is_there_when_it_hangs(display, "its display does not answer").await;
    }
}

fn signal(process: &Child, signal: rustix::process::Signal) {
    let pid = process.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed()));
    rustix::process::kill_process(pid.expect("it runs"), signal).expect("it may");
}

/// The bus hangs for longer than an answer may take. A helper that a desktop started connects anew, and prints nothing.
#[tokio::test]
#[ignore = "nightly: waits for deadlines of a bus"]
async fn a_bus_that_hangs_for_a_while_does_not_end_the_helper() {
    let Some(mutter) = Mutter::start().await else { return };
    let desk = Desk::new();
    fs::remove_dir_all(desk.dir.path().join("dev/input")).expect("it is there");
    let (_server, mut agent, mut session) = desk.agent(|_| {}).await;
    let mut helper = autostarted(&desk, &mutter.environment(), &agent.state_dir().join("agent.sock"));
    session.until_state(State::Waiting).await;
    signal(&mutter.bus, rustix::process::Signal::STOP);
    let reason = session.until_state(State::Suspended).await;
    assert!(reason.contains("Mutter's idle monitor does not answer"), "{reason}");
    tokio::time::sleep(Duration::from_secs(5)).await;
    signal(&mutter.bus, rustix::process::Signal::CONT);
    session.until_state(State::Waiting).await;
    assert!(helper.try_wait().expect("it can be asked").is_none());
    helper.start_kill().expect("it runs");
    assert_silent(helper).await;
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

/// A helper that hangs may be the only one who sees its session's person, so no other source outweighs it.
#[tokio::test]
async fn a_helper_that_hangs_counts_as_a_person_within_seconds_and_is_named() {
    let Some(display) = Display::start().await else { return };
    let desk = Desk::new();
    let (_server, mut agent, mut session) = desk.agent(|_| {}).await;
    let mut helper = helper_in(&desk, &display, &agent.state_dir().join("agent.sock"));
    let user = rustix::process::geteuid().as_raw();
    session.credit().await;
    until_explained(&desk, &agent, &format!("x11 of user {user}")).await;
    session.check_out(1, "sleep", [r#"{"ms": 600000}"#.to_owned()]).await;
    session.until_state(State::Processing).await;
    signal(&helper, rustix::process::Signal::STOP);
    let delivery = session.delivery().await;
    let reason = &delivery.checkouts[0].give_back_reason;
    assert!(reason.starts_with(&format!("no answer for more than 10 s from x11 of user {user}")), "{reason}");
    session.acknowledge(&delivery).await;
    until_explained(&desk, &agent, &format!("x11 of user {user} has not answered since ")).await;
    signal(&helper, rustix::process::Signal::CONT);
    session.until_state(State::Waiting).await;
    // `explain` names the user and the time when a helper ends.
    helper.kill().await.expect("it runs");
    until_explained(&desk, &agent, &format!("the session helper x11 of user {user} ended at ")).await;
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

/// Asks until `explain` says this.
async fn until_explained(desk: &Desk, agent: &crate::farm::RunningAgent, expected: &str) {
    let mut last = String::new();
    for _ in 0..300 {
        let mut explain = program(desk, &["explain"]);
        explain.env("PCFARM_WORKER_SOCKET", agent.state_dir().join("agent.sock"));
        last = String::from_utf8(explain.output().await.expect("it runs").stdout).expect("text");
        if last.contains(expected) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("not {expected}: {last}");
}

/// A display and a compositor that have never answered, and never will.
#[tokio::test]
async fn a_helper_that_is_not_answered_at_all_says_so_and_tries_again() {
    let desk = Desk::new();
    let (_server, mut agent, session) = desk.agent(|_| {}).await;
    let runtime = desk.dir.path().join("runtime");
    fs::create_dir(&runtime).expect("made");
    let silent = runtime.join("silent");
    let _silent = std::os::unix::net::UnixListener::bind(&silent).expect("it listens");
    // Displays of other machines begin at this port.
    let silent_display = std::net::TcpListener::bind("127.0.0.1:0").expect("it listens");
    let port = silent_display.local_addr().expect("it has one").port();
    let display = format!("127.0.0.1:{}", port.checked_sub(6000).expect("those above are free"));
    for (variable, value, expected) in [
        ("DISPLAY", display.as_str(), "no display of X11 can be watched: it does not answer"),
        ("WAYLAND_DISPLAY", "silent", "this session of Wayland cannot be watched: its compositor does not answer; "),
    ] {
        let mut helper = helper(&desk, &agent.state_dir().join("agent.sock"));
        helper.env("XDG_RUNTIME_DIR", &runtime).env(variable, value).stderr(Stdio::piped());
        let mut helper = helper.spawn().expect("it starts");
        let mut said = tokio::io::BufReader::new(helper.stderr.take().expect("a pipe"));
        let mut line = String::new();
        let read = tokio::io::AsyncBufReadExt::read_line(&mut said, &mut line);
        tokio::time::timeout(Duration::from_secs(60), read).await.expect("in time").expect("it says a line");
        assert!(line.contains(expected) && line.ends_with("; trying again\n"), "{variable}: {line}");
        assert!(helper.try_wait().expect("it can be asked").is_none());
    }
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

/// What a window manager says: which window is in front, and that it fills the screen.
#[tokio::test]
async fn beside_a_program_that_fills_the_screen_of_x11_it_does_not_work() {
    let Some(mut display) = Display::start().await else { return };
    let (x11, screen) = x11rb::connect(Some(&display.name)).expect("it answers");
    let root = x11.setup().roots[screen].root;
    let window = x11.generate_id().expect("there are some");
    let input = CreateWindowAux::new();
    let made = x11.create_window(0, window, root, 0, 0, 640, 480, 0, WindowClass::INPUT_OUTPUT, 0, &input);
    made.expect("sent").check().expect("made");
    let atom = |name: &str| x11.intern_atom(false, name.as_bytes()).expect("sent").reply().expect("known").atom;
    let set = |on: u32, property: &str, kind: AtomEnum, values: &[u32]| {
        let set = x11.change_property32(PropMode::REPLACE, on, atom(property), kind, values);
        set.expect("sent").check().expect("set");
    };
    let fills = [atom("_NET_WM_STATE_ABOVE"), atom("_NET_WM_STATE_FULLSCREEN")];
    set(window, "_NET_WM_STATE", AtomEnum::ATOM, &fills);
    set(root, "_NET_ACTIVE_WINDOW", AtomEnum::WINDOW, &[window]);

    let desk = Desk::new();
    let (_server, mut agent, mut session) = desk.agent(|_| {}).await;
    session.until_state(State::Waiting).await;
    let _helper = helper_in(&desk, &display, &agent.state_dir().join("agent.sock"));
    let expected = format!("a program fills the screen (x11 of user {})", rustix::process::geteuid().as_raw());
    while session.until_state(State::Suspended).await != expected {}
    // It does not any more, or another is in front, or none.
    set(window, "_NET_WM_STATE", AtomEnum::ATOM, &fills[..1]);
    display.press_a_key().await;
    session.until_state(State::Waiting).await;
    set(window, "_NET_WM_STATE", AtomEnum::ATOM, &fills);
    while session.until_state(State::Suspended).await != expected {}
    set(root, "_NET_ACTIVE_WINDOW", AtomEnum::WINDOW, &[0]);
    session.until_state(State::Waiting).await;
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

/// Plays the session manager of GNOME: a program keeps the session from idleness while `held` says so.
async fn session_manager(address: &str, held: Arc<AtomicBool>) -> (zbus::Connection, tokio::task::JoinSet<()>) {
    let bus = zbus::connection::Builder::address(address).build().await.expect("it answers");
    bus.request_name("org.gnome.SessionManager").await.expect("nobody has it");
    let (mut calls, served) = (zbus::MessageStream::from(&bus), bus.clone());
    let mut serving = tokio::task::JoinSet::new();
    serving.spawn(async move {
        while let Some(Ok(call)) = calls.next().await {
            let header = call.header();
            let member = header.member().map(|member| member.to_string()).unwrap_or_default();
            let place = zbus::ObjectPath::try_from("/org/gnome/SessionManager/Inhibitor1").expect("a path");
            let replied = match member.as_str() {
                "IsInhibited" => served.reply(&header, &held.load(Ordering::SeqCst)).await,
                "GetInhibitors" => served.reply(&header, &vec![place]).await,
                "GetFlags" => served.reply(&header, &8_u32).await,
                "GetAppId" => served.reply(&header, &"a-player").await,
                _ => continue,
            };
            replied.expect("it is heard");
        }
    });
    (bus, serving)
}

#[tokio::test]
async fn beside_a_program_that_keeps_a_desktop_awake_it_does_not_work() {
    if !are_there(&["dbus-daemon"]) {
        return;
    }
    let Some(display) = Display::start().await else { return };
    let runtime = tempfile::tempdir().expect("a temporary directory");
    let address = format!("unix:path={}", runtime.path().join("bus").display());
    let mut command = Command::new("dbus-daemon");
    command.args(["--session", "--nofork", "--print-address=1", "--address", &address]);
    let (_bus, _) = told_by(&mut command).await;
    let held = Arc::new(AtomicBool::new(true));
    let _manager = session_manager(&address, Arc::clone(&held)).await;
    let desk = Desk::new();
    let (_server, mut agent, mut session) = desk.agent(|_| {}).await;
    session.until_state(State::Waiting).await;
    let mut helper = helper(&desk, &agent.state_dir().join("agent.sock"));
    helper.envs(display.environment()).env("DBUS_SESSION_BUS_ADDRESS", &address);
    let _helper = unheard(&mut helper);
    let expected = "its person may be watching: a-player keeps the screen on (desktop)";
    while session.until_state(State::Suspended).await != expected {}
    held.store(false, Ordering::SeqCst);
    session.until_state(State::Waiting).await;
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

/// Starts a helper as a desktop does. Its output is kept.
fn autostarted(desk: &Desk, environment: &[(&'static str, String)], socket: &Path) -> Child {
    let mut helper = helper(desk, socket);
    helper.arg("--autostart").envs(environment.iter().cloned()).kill_on_drop(true);
    helper.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

/// Waits for its end, and returns whether it succeeded.
async fn assert_silent(helper: Child) -> bool {
    let ended = tokio::time::timeout(Duration::from_secs(120), helper.wait_with_output()).await.expect("in time");
    let ended = ended.expect("it runs");
    assert!(ended.stderr.is_empty() && ended.stdout.is_empty(), "{ended:?}");
    ended.status.success()
}

/// A helper that a desktop starts prints nothing and never fails: without an agent, and without a session that it can see.
#[tokio::test]
async fn a_helper_that_a_desktop_starts_ends_quietly() {
    let desk = Desk::new();
    let wanted = Path::new("/etc/systemd/system/multi-user.target.wants/pcfarm-worker.service");
    if !wanted.is_symlink() {
        let alone = autostarted(&desk, &[], &desk.dir.path().join("no-agent.sock"));
        assert!(assert_silent(alone).await);
    }
    let (_server, mut agent, session) = desk.agent(|_| {}).await;
    let blind = autostarted(&desk, &[], &agent.state_dir().join("agent.sock"));
    assert!(assert_silent(blind).await);
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

#[tokio::test]
#[ignore = "nightly: waits until a display counts as gone"]
async fn a_helper_that_a_desktop_starts_ends_quietly_with_its_display() {
    let Some(mut display) = Display::start().await else { return };
    let desk = Desk::new();
    let (_server, mut agent, mut session) = desk.agent(|_| {}).await;
    session.until_state(State::Waiting).await;
    let helper = autostarted(&desk, &display.environment(), &agent.state_dir().join("agent.sock"));
    display.press_a_key().await;
    let reason = session.until_state(State::Suspended).await;
    assert!(reason.contains("x11 of user"), "{reason}");
    display.end().await;
    assert!(assert_silent(helper).await);
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

/// An upgrade replaces the file of the program and restarts the agent. A removal leaves no file.
#[tokio::test]
async fn a_helper_that_a_desktop_starts_follows_upgrades_and_removals() {
    let Some(display) = Display::start().await else { return };
    let desk = Desk::new();
    let programs = tempfile::tempdir().expect("a directory");
    let (file, told) = (programs.path().join("pcfarm-worker"), programs.path().join("told"));
    let program = env!("CARGO_BIN_EXE_pcfarm-worker");
    for is_removal in [false, true] {
        if fs::hard_link(program, &file).is_err() {
            fs::copy(program, &file).expect("copied");
        }
        let (_server, mut agent, session) = desk.agent(|_| {}).await;
        let socket = agent.state_dir().join("agent.sock");
        let mut command = Command::new(&file);
        command.args(["session", "--autostart"]).env_clear().env("PCFARM_WORKER_SOCKET", &socket);
        command.envs(display.environment()).stdin(Stdio::null()).kill_on_drop(true);
        let helper = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        until_explained(&desk, &agent, "x11 of user").await;
        if is_removal {
            fs::remove_file(&file).expect("removed");
        } else {
            let new = programs.path().join("new");
            fs::write(&new, format!("#!/bin/sh\necho \"$@\" > {}\n", told.display())).expect("written");
            fs::set_permissions(&new, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("it may");
            fs::rename(&new, &file).expect("replaced");
        }
        agent.stop.cancel();
        drop(session);
        agent.ended().await.expect("nothing is left");
        assert!(assert_silent(helper).await);
        if !is_removal {
            assert_eq!(fs::read_to_string(&told).expect("the new program ran"), "session --autostart\n");
            fs::remove_file(&file).expect("it is there");
        }
    }
}
