//! The agent as a program on the machine's own `/dev`, with an idle terminal.
//!
//! Other programs of this machine may use terminals meanwhile. Each step therefore waits for the outcome, and the count of wake-ups is
//! repeated until a window of five seconds is quiet.

use std::os::fd::OwnedFd;

use super::*;

/// Wake-ups of the threads that look for the person, in five seconds.
const WAKES: u64 = 8;
const WINDOW: Duration = Duration::from_secs(5);
const WINDOWS: u32 = 8;

/// Threads of the presence part, as the kernel shortens their names.
const LOOKS: [&str; 4] = ["pcfarm-presence", "pcfarm-terminal", "pcfarm-input", "pcfarm-probes"];

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

/// By voluntary context switches.
fn wakes(process: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{process}/task")).expect("it runs").flatten();
    let of = |thread: fs::DirEntry| {
        let name = fs::read_to_string(thread.path().join("comm")).ok()?;
        let status = fs::read_to_string(thread.path().join("status")).ok()?;
        let switches = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        LOOKS.contains(&name.trim()).then(|| switches.trim().parse::<u64>().ok())?
    };
    threads.filter_map(of).sum()
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
    let mut fewest = u64::MAX;
    for _ in 0..WINDOWS {
        let (before, end) = (wakes(pid), tokio::time::Instant::now() + WINDOW);
        while tokio::time::Instant::now() < end {
            fs::read_dir("/dev/pts").expect("there are terminals").for_each(drop);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        fewest = fewest.min(wakes(pid) - before);
        if fewest <= WAKES {
            break;
        }
    }
    println!("{fewest} wake-ups in {WINDOW:?}");
    assert!(fewest > 0 && fewest <= WAKES, "{fewest} wake-ups in {WINDOW:?}");
    terminal.type_a_line();
    let reason = session.until_state(State::Suspended).await;
    assert_eq!(reason, "its person is here, or left less than 2 s ago (tty)");
    session.until_state(State::Waiting).await;
}
