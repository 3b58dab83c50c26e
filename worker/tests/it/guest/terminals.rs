//! The agent as a program on the machine's own `/dev`, with an idle terminal.
//!
//! Other programs of this machine may use terminals meanwhile. Each step therefore waits for the outcome, and wake-ups are counted in
//! windows of five seconds until the median is low enough.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use super::*;

/// Wake-ups of all threads in five seconds, as docs/workstations.md promises.
const WAKES: u64 = 8;
const WINDOW: Duration = Duration::from_secs(5);
const FEWEST_WINDOWS: usize = 3;
const WINDOWS: usize = 9;

/// A terminal of the kernel: the side that types, and the program's side.
struct Terminal {
    types: OwnedFd,
    program: File,
}

impl Terminal {
    fn open() -> Terminal {
        let flags = rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY;
        let types = rustix::pty::openpt(flags).expect("a terminal");
        rustix::pty::grantpt(&types).expect("granted");
        rustix::pty::unlockpt(&types).expect("unlocked");
        let name = rustix::pty::ptsname(&types, Vec::new()).expect("it has a name");
        let program = File::options().read(true).write(true).open(name.to_str().expect("text")).expect("opened");
        Terminal { types, program }
    }

    fn type_a_line(&mut self) {
        rustix::io::write(&self.types, b"x\n").expect("typed");
        std::io::Read::read(&mut self.program, &mut [0; 8]).expect("read");
    }
}

/// Voluntary context switches of each thread.
fn wakes(process: u32) -> BTreeMap<String, u64> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).expect("it runs").flatten();
    let of = |thread: fs::DirEntry| {
        let name = fs::read_to_string(thread.path().join("comm")).ok()?;
        let status = fs::read_to_string(thread.path().join("status")).ok()?;
        let switches = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        Some((format!("{} {}", thread.file_name().display(), name.trim()), switches.trim().parse().ok()?))
    };
    threads.filter_map(of).collect()
}

/// Wake-ups in one window, while the directory of terminals is listed. Prints those of each thread.
async fn woken(process: u32) -> u64 {
    let (before, end) = (wakes(process), tokio::time::Instant::now() + WINDOW);
    while tokio::time::Instant::now() < end {
        fs::read_dir("/dev/pts").expect("there are terminals").for_each(drop);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let more = wakes(process).into_iter().map(|(thread, now)| {
        let more = now - before.get(&thread).copied().unwrap_or_default();
        (thread, more)
    });
    let more: Vec<_> = more.filter(|(_, more)| *more > 0).collect();
    let all = more.iter().map(|(_, more)| more).sum();
    println!("{all} wake-ups in {WINDOW:?}: {more:?}");
    all
}

async fn wakes_seldom(process: u32) {
    let mut windows = Vec::new();
    while windows.len() < FEWEST_WINDOWS || (median(&windows) > WAKES && windows.len() < WINDOWS) {
        windows.push(woken(process).await);
    }
    let median = median(&windows);
    assert!(median > 0 && median <= WAKES, "{windows:?} wake-ups in windows of {WINDOW:?}");
}

fn median(windows: &[u64]) -> u64 {
    let mut sorted = windows.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

/// Speaks as the helper of an idle session does, until the agent has gone.
fn speak_as_helper(desk: &Desk) {
    let mut agent = UnixStream::connect(desk.dir.path().join("state/agent.sock")).expect("the agent listens");
    std::thread::spawn(move || {
        for since in (100_u64..).step_by(4) {
            let session = format!(r#"{{"version":1,"ask":"session","source":"x11","idle_ms":{}}}"#, since * 1000);
            let inhibitors = r#"{"version":1,"ask":"inhibitors","held":[]}"#;
            if agent.write_all(format!("{session}\n{inhibitors}\n").as_bytes()).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_secs(4));
        }
    });
}

fn settings(desk: &Desk) -> PathBuf {
    let path = desk.dir.path().join("terminals.toml");
    let text = format!(
        "[presence]\nstart_after = 2\nresume_after = 2\nload = inf\nfree_memory = 0\ntrust_terminals = true\nsys = {:?}\n",
        desk.dir.path().join("sys"),
    );
    fs::write(&path, text).expect("written");
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_terminal_of_this_machine_does_not_keep_the_agent_from_work_and_typing_does() {
    let desk = Desk::new();
    let mut terminal = Terminal::open();
    let mut server = Server::start().await;
    let config = settings(&desk);
    let agent = program_by(&desk, &config, &["--server", &server.url(), "--cores", "1"])
        .stderr(Stdio::null())
        .spawn()
        .expect("the agent starts");
    let (mut session, hello) = server.welcomed().await;
    assert_eq!(hello.state(), State::Suspended, "the agent has just begun to look");
    session.until_state(State::Waiting).await;
    let pid = agent.id().expect("it runs");
    speak_as_helper(&desk);
    wakes_seldom(pid).await;
    terminal.type_a_line();
    let reason = session.until_state(State::Suspended).await;
    assert_eq!(reason, "its person is here, or left less than 2 s ago (tty)");
    session.until_state(State::Waiting).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_agent_wakes_seldom_beside_a_mouse_that_was_used() {
    let desk = Desk::new();
    let mut mouse = desk.plug("event1", "A mouse", "17");
    let mut server = Server::start().await;
    let agent = program_by(&desk, &desk.config(), &["--server", &server.url(), "--cores", "1"])
        .stderr(Stdio::null())
        .spawn()
        .expect("the agent starts");
    let (mut session, _) = server.welcomed().await;
    session.until_state(State::Waiting).await;
    let mut moved = vec![0; 2 * size_of::<usize>()];
    moved.extend([2_u16.to_ne_bytes(), 0_u16.to_ne_bytes()].concat());
    moved.extend(2_i32.to_ne_bytes());
    mouse.write_all(&moved).expect("moved");
    speak_as_helper(&desk);
    wakes_seldom(agent.id().expect("it runs")).await;
}
