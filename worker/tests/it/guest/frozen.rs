//! Programs that stand still while somebody is there: what they use, what becomes of them, and that nothing stays behind.

use std::fmt::Write as _;
use std::time::Instant;

use pcfarm_proto::v1::agent_message::Message as FromAgent;
use pcfarm_worker::exec::settings::ProgramSettings;

use super::*;
use crate::farm::marked;

const PYTHON: &str = "/usr/bin/python3";

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Longer than a program takes to start and to notice something, and shorter than it stands still.
const TIME_LIMIT_SECONDS: u32 = 7;

/// Computes in two processes, of which one is in a session of its own, until it is told to end.
const SPINNER: &str = r#"
import json, os, sys
go = sys.argv[1]
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    while not os.path.exists(go):
        pass
    os.write(write, b"x")
    os._exit(0)
while not os.path.exists(go):
    pass
os.read(read, 1)
print(json.dumps("both have ended"))
"#;

/// A desk with that program, whose processes are told by a mark.
struct Spinning {
    desk: Desk,
    mark: String,
}

impl Spinning {
    fn new(mark: &str) -> Spinning {
        let desk = Desk::new();
        fs::write(desk.dir.path().join("spinner.py"), SPINNER).expect("written");
        Spinning { desk, mark: format!("{mark}-{}", std::process::id()) }
    }

    /// As the agent's file has it.
    fn program(&self) -> String {
        let dir = self.desk.dir.path();
        format!(
            "name = \"spin\"\nmode = \"one-shot\"\npath = {PYTHON:?}\nargs = [{:?}, {:?}]\nanswer = \"json\"\n\
             trusted = true\ntime_limit = {TIME_LIMIT_SECONDS}\nenv = {{ MARK = {:?} }}\n",
            dir.join("spinner.py"),
            dir.join("go"),
            self.mark
        )
    }

    fn freezes(&self) -> impl FnOnce(&mut Settings) + use<> {
        let program: ProgramSettings = toml::from_str(&self.program()).expect("a program");
        let work_dir = self.desk.dir.path().join("work");
        let mut presence = self.desk.presence();
        presence.policy.start_after = Duration::from_secs(1);
        presence.policy.resume_after = Duration::from_secs(1);
        presence.policy.on_return = OnReturn::Freeze;
        move |settings| {
            settings.programs = vec![program];
            settings.work_dir = work_dir;
            settings.supervisor = Some(env!("CARGO_BIN_EXE_pcfarm-worker").into());
            settings.presence = presence;
        }
    }

    /// An agent that is a program, with that program.
    fn start(&self, server: &Server, presence: &str) -> Child {
        let config = self.desk.config();
        let mut text = fs::read_to_string(&config).expect("just written");
        let times = format!("start_after = 1\nresume_after = 1\n{presence}");
        text = text.replace("start_after = 0.1\nresume_after = 0.1", &times);
        write!(text, "[[program]]\n{}", self.program()).expect("a text");
        let file = self.desk.dir.path().join("spinning.toml");
        fs::write(&file, text).expect("written");
        let work_dir = self.desk.dir.path().join("work");
        Command::new(env!("CARGO_BIN_EXE_pcfarm-worker"))
            .args(["--server", &server.url(), "--cores", "1", "--state-dir"])
            .arg(self.desk.dir.path().join("state"))
            .args(["--work-dir".as_ref(), work_dir.as_os_str(), "--config".as_ref(), file.as_os_str()])
            .env_remove("PCFARM_UNATTENDED")
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("the agent starts")
    }

    fn processes(&self) -> Vec<i32> {
        marked(&self.mark)
    }

    /// Nobody tells when processes start, stop or end. Somebody is at the keyboard meanwhile, if so.
    async fn until(&mut self, what: &str, somebody_types: bool, mut is_so: impl FnMut(&[i32]) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_so(&self.processes()) {
            assert!(Instant::now() < end, "not {what}: {:?}", self.processes());
            if somebody_types {
                self.desk.press_a_key();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Computing, in both processes.
    async fn begun(&mut self, session: &mut Session) {
        session.credit().await;
        session.check_out(1, "exec:spin", ["null".to_owned()]).await;
        session.until_state(State::Processing).await;
        // The launcher has the mark as well, and becomes the program.
        self.until("begun", false, |processes| processes.len() == 2 && processes.iter().all(|pid| is(*pid, "R"))).await;
    }

    async fn stands_still(&mut self) {
        self.until("standing still", true, |processes| {
            processes.len() == 2 && processes.iter().all(|pid| is(*pid, "T"))
        })
        .await;
    }
}

/// The fields of `stat` behind the name, of a process or a thread.
fn fields(task: &str) -> Vec<String> {
    let stat = fs::read_to_string(format!("/proc/{task}/stat")).unwrap_or_default();
    let behind = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    behind.split_ascii_whitespace().map(str::to_owned).collect()
}

fn is(pid: i32, state: &str) -> bool {
    fields(&pid.to_string()).first().is_some_and(|now| now == state)
}

/// In clock ticks.
fn cpu(pid: i32) -> u64 {
    fields(&pid.to_string())[11..13].iter().map(|ticks| ticks.parse::<u64>().expect("a number")).sum()
}

#[tokio::test]
async fn a_program_stands_still_and_goes_on_within_its_time() {
    let mut spinning = Spinning::new("goes-on");
    let (_server, mut agent, mut session) = spinning.desk.agent(spinning.freezes()).await;
    spinning.begun(&mut session).await;
    spinning.desk.press_a_key();
    let reason = session.until_state(State::Suspended).await;
    assert!(reason.ends_with("; what it has begun is frozen"), "{reason}");
    spinning.stands_still().await;
    let used = |spinning: &Spinning| spinning.processes().into_iter().map(cpu).sum::<u64>();
    let before = used(&spinning);
    // For longer than its time limit. The farm hears all the time that it is held.
    for _ in 0..2 {
        let beat = session.next(|message| if let FromAgent::Heartbeat(beat) = message { Some(beat) } else { None });
        let mut beat = std::pin::pin!(beat);
        let beat = loop {
            tokio::select! {
                beat = &mut beat => break beat,
                () = tokio::time::sleep(Duration::from_millis(100)) => spinning.desk.press_a_key(),
            }
        };
        assert_eq!(beat.held.iter().map(|held| held.checkout_id).collect::<Vec<_>>(), [1]);
    }
    assert_eq!(used(&spinning), before, "it has used no time");
    // Then the person leaves.
    let gave_way = session.next(|message| match message {
        FromAgent::StateChange(change) if change.state() == State::Processing => Some(change.yields),
        _ => None,
    });
    let yields = gave_way.await.expect("it was measured");
    assert!(yields.count == 1 && yields.p50_ms == yields.p99_ms, "{yields:?}");
    fs::write(spinning.desk.dir.path().join("go"), "").expect("written");
    let delivery = session.delivery().await;
    assert_eq!(outcomes(&delivery.checkouts[0]), [(1000, "\"both have ended\"".to_owned())]);
    session.acknowledge(&delivery).await;
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

#[tokio::test]
async fn whoever_returns_while_it_goes_on_is_given_way_to_again() {
    let mut spinning = Spinning::new("again");
    let (_server, mut agent, mut session) = spinning.desk.agent(spinning.freezes()).await;
    spinning.begun(&mut session).await;
    for _ in 0..3 {
        spinning.stands_still().await;
        spinning.until("going on", false, |processes| processes.iter().all(|pid| is(*pid, "R"))).await;
    }
    // An agent that stops does not wait for what stands still, and leaves nothing.
    spinning.stands_still().await;
    agent.stop.cancel();
    let delivery = session.delivery().await;
    assert!(delivery.checkouts[0].finished && delivery.checkouts[0].results.is_empty(), "{delivery:?}");
    session.acknowledge(&delivery).await;
    drop(session);
    agent.ended().await.expect("nothing is left");
    spinning.until("gone", false, <[i32]>::is_empty).await;
}

#[tokio::test]
async fn nothing_stays_stopped_when_its_agent_is_killed() {
    let mut spinning = Spinning::new("killed");
    let mut server = Server::start().await;
    let mut agent = spinning.start(&server, "on_return = \"freeze\"");
    let (mut session, _) = server.welcomed().await;
    spinning.begun(&mut session).await;
    spinning.stands_still().await;
    agent.kill().await.expect("killed");
    spinning.until("gone", false, <[i32]>::is_empty).await;
}

fn signal(process: &Child, signal: rustix::process::Signal) {
    let pid = process.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed()));
    rustix::process::kill_process(pid.expect("it runs"), signal).expect("it may");
}

/// A stopped agent sees no person, and its programs would run on beside the one who returns.
#[tokio::test]
async fn programs_stand_still_while_their_agent_is_stopped() {
    use rustix::process::Signal;
    let mut spinning = Spinning::new("agent-stopped");
    let mut server = Server::start().await;
    let agent = spinning.start(&server, "");
    let (mut session, _) = server.welcomed().await;
    spinning.begun(&mut session).await;
    let stand_still = |processes: &[i32]| processes.len() == 2 && processes.iter().all(|pid| is(*pid, "T"));
    let run = |processes: &[i32]| processes.len() == 2 && processes.iter().all(|pid| is(*pid, "R"));
    // The person stays away: the program goes on with its agent.
    signal(&agent, Signal::STOP);
    spinning.until("standing still", false, stand_still).await;
    signal(&agent, Signal::CONT);
    spinning.until("going on", false, run).await;
    // The person comes while the agent is stopped: the work is given back at once.
    signal(&agent, Signal::STOP);
    spinning.until("standing still again", false, stand_still).await;
    spinning.desk.press_a_key();
    signal(&agent, Signal::CONT);
    spinning.until("gone", true, <[i32]>::is_empty).await;
}

/// All answers of all sources are older than they may be when the agent goes on, though every source is there.
#[tokio::test]
#[ignore = "nightly: stops an agent for longer than a source may be silent"]
async fn a_long_stop_gives_back_no_work_while_the_person_stays_away() {
    use rustix::process::Signal;
    let mut spinning = Spinning::new("agent-stopped-for-long");
    let mut server = Server::start().await;
    let agent = spinning.start(&server, "");
    let (mut session, _) = server.welcomed().await;
    spinning.begun(&mut session).await;
    signal(&agent, Signal::STOP);
    tokio::time::sleep(Duration::from_secs(12)).await;
    signal(&agent, Signal::CONT);
    spinning
        .until("going on", false, |processes| processes.len() == 2 && processes.iter().all(|pid| is(*pid, "R")))
        .await;
    let suspended = tokio::time::timeout(Duration::from_secs(3), session.until_state(State::Suspended)).await;
    assert!(suspended.is_err(), "nobody came: {suspended:?}");
    assert_eq!(spinning.processes().len(), 2);
}

#[tokio::test]
async fn what_computes_has_the_idle_class_and_what_waits_has_not() {
    const IDLE: &str = "5";
    let mut spinning = Spinning::new("manners");
    let (_server, mut agent, mut session) = spinning.desk.agent(spinning.freezes()).await;
    spinning.begun(&mut session).await;
    let class = |task: &str| fields(task).get(38).cloned();
    for pid in spinning.processes() {
        assert_eq!(class(&pid.to_string()).as_deref(), Some(IDLE), "a program's process");
        let said = Command::new("ionice").args(["-p", &pid.to_string()]).output().await.expect("it is installed");
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        // None of its own: the kernel takes the one of the scheduler's class, and newer kernels say so.
        assert!(said.starts_with("idle") || said.starts_with("none"), "its disks: {said}");
    }
    let threads = fs::read_dir("/proc/self/task").expect("this is Linux").flatten();
    let mut cores = 0;
    for thread in threads {
        let Ok(name) = fs::read_to_string(thread.path().join("comm")) else { continue };
        let task = format!("self/task/{}", thread.file_name().display());
        let is_core = name.starts_with("pcfarm-core");
        cores += usize::from(is_core);
        // It may have ended meanwhile.
        let Some(class) = class(&task) else { continue };
        assert_eq!(class == IDLE, is_core, "{name}");
    }
    assert!(cores > 0);
    fs::write(spinning.desk.dir.path().join("go"), "").expect("written");
    let delivery = session.delivery().await;
    session.acknowledge(&delivery).await;
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

/// Of the threads on which modules and controllers compute, in nanoseconds.
#[cfg(feature = "wasm")]
fn cores_used() -> u64 {
    let threads = fs::read_dir("/proc/self/task").expect("this is Linux").flatten();
    let is_core = |thread: &fs::DirEntry| {
        fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.starts_with("pcfarm-core"))
    };
    let used = |thread: fs::DirEntry| {
        let times = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        times.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    threads.filter(is_core).filter_map(used).sum()
}

/// Where the module's walk from 1 leads to: of twice as many steps, each is two.
#[cfg(feature = "wasm")]
fn walked(mut steps: u64) -> u64 {
    let (mut at, mut factor, mut more) = (1_u64, 6_364_136_223_846_793_005_u64, 1_442_695_040_888_963_407_u64);
    while steps > 0 {
        if steps % 2 == 1 {
            at = at.wrapping_mul(factor).wrapping_add(more);
        }
        more = factor.wrapping_add(1).wrapping_mul(more);
        factor = factor.wrapping_mul(factor);
        steps /= 2;
    }
    at
}

#[cfg(feature = "wasm")]
#[tokio::test]
async fn a_module_stands_still_and_goes_on_to_the_right_result() {
    /// A second's worth and more: it computes when nothing else does, and other tests do.
    const STEPS: u64 = 1_000_000_000;
    let Some(module) = crate::farm::puppet_module() else { return };
    let mut desk = Desk::new();
    let mut presence = desk.presence();
    presence.policy.start_after = Duration::from_secs(1);
    presence.policy.resume_after = Duration::from_secs(1);
    presence.policy.on_return = OnReturn::Freeze;
    let work_dir = desk.dir.path().join("work");
    let (server, mut agent, mut session) = desk
        .agent(|settings| {
            settings.wasm = Some(pcfarm_worker::wasm::settings::WasmSettings::default());
            settings.work_dir = work_dir;
            settings.cores = 1;
            settings.presence = presence;
        })
        .await;
    let controller = format!("wasm:{}", server.files.put(&module));
    session.credit().await;
    // What compiles it is no core.
    session.check_out(1, &controller, [r#"{"do":"echo"}"#.to_owned()]).await;
    loop {
        let delivery = session.delivery().await;
        session.acknowledge(&delivery).await;
        if delivery.checkouts[0].finished {
            break;
        }
    }
    session.check_out(2, &controller, [format!("{{\"do\":\"walk\",\"n\":{STEPS}}}")]).await;
    let idle = cores_used();
    while cores_used() < idle + 50_000_000 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    desk.press_a_key();
    let before = cores_used();
    let reason = session.until_state(State::Suspended).await;
    assert!(reason.ends_with("; what it has begun is frozen"), "{reason}");
    // It stands still, for two heartbeats that name it, and used less than a second of a core to hear of it.
    let end = Instant::now() + PATIENCE;
    let mut still = cores_used();
    loop {
        desk.press_a_key();
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = cores_used();
        if now == still {
            break;
        }
        assert!(Instant::now() < end, "it does not stand still");
        still = now;
    }
    assert!(still - before < 1_000_000_000, "it went on for {} ms", (still - before) / 1_000_000);
    for _ in 0..2 {
        let beat = session.next(|message| if let FromAgent::Heartbeat(beat) = message { Some(beat) } else { None });
        let mut beat = std::pin::pin!(beat);
        let beat = loop {
            tokio::select! {
                beat = &mut beat => break beat,
                () = tokio::time::sleep(Duration::from_millis(100)) => desk.press_a_key(),
            }
        };
        assert_eq!(beat.held.iter().map(|held| held.checkout_id).collect::<Vec<_>>(), [2]);
    }
    assert_eq!(cores_used(), still, "it has used no time");
    // The person leaves, and it comes to what it would have come to, once.
    let delivery = session.delivery().await;
    assert_eq!(outcomes(&delivery.checkouts[0]), [(2000, (walked(STEPS) >> 33).to_string())]);
    assert!(delivery.checkouts[0].finished && delivery.checkouts.len() == 1, "{delivery:?}");
    session.acknowledge(&delivery).await;
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}
