//! What an agent takes of a PC while nobody is there and nothing is to do: next to nothing.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcfarm_bench::desk::wakes;
use pcfarm_bench::farm::{Farm, SOON};
use pcfarm_bench::seat::Seat;

/// As farms have it.
const HEARTBEAT: Duration = Duration::from_secs(5);

const WINDOWS: usize = 7;

/// In a window of five seconds, of all threads together, as docs/workstations.md promises: probes, the look, input devices, the
/// helper's message, and by halves the heartbeat, the ping and its answer.
const WAKES: u64 = 8;

/// It looks at all that it looks at by default, and nothing of what else this machine does keeps it from work.
fn settings(farm: &Farm, seat: &Seat) -> PathBuf {
    let sys = seat.desk.dev().with_file_name("sys");
    std::fs::create_dir_all(sys.join("class/power_supply")).expect("made");
    let config = farm.path("idle.toml");
    let text = format!(
        "[presence]\nstart_after = 0.5\nresume_after = 0.5\nload = 1000\nfree_memory = 0.001\ndev = {:?}\nsys = {sys:?}\n",
        seat.desk.dev()
    );
    std::fs::write(&config, text).expect("written");
    config
}

/// A mouse, moved a little.
fn mouse(dev: &Path) -> File {
    let described = dev.with_file_name("sys").join("class/input/event1/device");
    fs::create_dir_all(described.join("capabilities")).expect("made");
    fs::write(described.join("name"), "A mouse\n").expect("written");
    fs::write(described.join("capabilities/ev"), "17\n").expect("written");
    let event = dev.join("input/event1");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &event, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
    File::options().read(true).write(true).open(event).expect("its other end")
}

fn bump(mouse: &mut File) {
    let mut event = vec![0; 2 * size_of::<usize>()];
    event.extend([2_u16.to_ne_bytes(), 0_u16.to_ne_bytes()].concat());
    event.extend(2_i32.to_ne_bytes());
    mouse.write_all(&event).expect("moved");
}

/// Speaks as the helper of an idle session does, until the agent has gone.
fn speak_as_helper(socket: &Path) {
    let mut agent = UnixStream::connect(socket).expect("the agent listens");
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

#[tokio::test]
#[ignore = "nightly: counts wake-ups over several heartbeats"]
async fn an_idle_agent_wakes_with_its_heartbeat() {
    let farm = Farm::new().await;
    let heartbeat = HEARTBEAT.as_secs().to_string();
    let server = farm.serving("a", &["--heartbeat", &heartbeat, "--lease", "20"]).await;
    let seat = Seat::keyboard(&farm).expect("a desk");
    let config = settings(&farm, &seat);
    let mut agent = farm
        .program("desk", "pcfarm-worker")
        .arguments(["--server", &server.url(), "--cores", "2", "--hostname", "desk"])
        .arguments(["--config".as_ref(), config.as_os_str()])
        .arguments(["--state-dir".as_ref(), farm.path("desk.state").as_os_str()])
        .arguments(["--work-dir".as_ref(), farm.path("desk.work").as_os_str()])
        .environment("PCFARM_UNATTENDED", "false");
    agent.start();
    farm.until(SOON, "select exists (select from pcfarm.workstation_status where state = 'waiting')").await;
    let pid = agent.pid().expect("it runs");
    let mut mouse = mouse(&seat.desk.dev());
    tokio::time::sleep(Duration::from_secs(1)).await;
    bump(&mut mouse);
    speak_as_helper(&farm.path("desk.state").join("agent.sock"));
    farm.until(SOON, "select exists (select from pcfarm.workstation_status where state = 'waiting')").await;
    // Actions that follow its beginning.
    tokio::time::sleep(HEARTBEAT * 2).await;
    let mut windows = Vec::new();
    for _ in 0..WINDOWS {
        let before = wakes(pid);
        tokio::time::sleep(HEARTBEAT).await;
        windows.push(wakes(pid).saturating_sub(before));
    }
    println!("wake-ups in each window of {HEARTBEAT:?}: {windows:?}");
    windows.sort_unstable();
    let median = windows[WINDOWS / 2];
    assert!(median > 0 && median <= WAKES, "{windows:?}");
}
