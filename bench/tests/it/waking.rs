//! PCs that go to sleep when there is nothing for them, and are woken when there is: real servers and agents, a real socket, and a
//! command that does not put this machine to sleep.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use pcfarm_bench::desk::Desk;
use pcfarm_bench::farm::{Farm, LONG, SOON, Server};
use pcfarm_bench::program::Program;
use serde_json::{Value, json};
use tokio::net::UdpSocket;
use tokio::time::timeout;

const CARD: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];

/// Whoever touches nothing for so long has left.
const AWAY: Duration = Duration::from_millis(500);

fn desk(farm: &Farm) -> Desk {
    let place = farm.path("desk");
    fs::create_dir(&place).expect("made");
    Desk::new(&place).expect("a desk")
}

/// An agent that may be woken, and sleeps by this command.
fn agent(farm: &Farm, server: &Server, desk: &Desk, sleep: &str) -> Program {
    let more = format!("[sleep]\nwake = \"52:54:00:12:34:56\"\nafter = 1\n{sleep}");
    let config = desk.config(AWAY, "", &more).expect("written");
    farm.program("desk", "pcfarm-worker")
        .arguments(["--server", &server.url(), "--cores", "1", "--hostname", "desk", "--prefetch", "0"])
        .arguments(["--config".as_ref(), config.as_os_str()])
        .arguments(["--state-dir".as_ref(), farm.path("desk.state").as_os_str()])
        .arguments(["--work-dir".as_ref(), farm.path("desk.work").as_os_str()])
        .environment("PCFARM_UNATTENDED", "false")
}

fn said(farm: &Farm, server: &Server, arguments: &[&str]) -> String {
    let mut command = Command::new(farm.program("cli", "pcfarm").path());
    let output = command.args(["--server", &server.url()]).args(arguments).env("NO_COLOR", "1").output();
    let output = output.expect("the CLI runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

async fn is(farm: &Farm, condition: &str) {
    let text = format!("select exists (select from pcfarm.workstation_status where hostname = 'desk' and {condition})");
    farm.until(LONG, &text).await;
}

/// A packet that wakes that card, and no other.
async fn wakes(socket: &UdpSocket) {
    let mut packet = [0; 200];
    let received = timeout(LONG, socket.recv(&mut packet)).await.expect("in time").expect("received");
    assert_eq!((received, &packet[..6]), (102, &[0xff; 6][..]));
    assert!(packet[6..received].chunks(6).all(|part| part == CARD), "{packet:?}");
}

async fn until_there(path: &Path) {
    while !path.exists() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn sleeps(note: &PathBuf) -> String {
    format!("command = [\"touch\", {note:?}]")
}

#[tokio::test]
#[ignore = "nightly: two deaths and a sleep of a workstation"]
async fn a_pc_is_woken_works_and_goes_to_sleep_again() {
    let farm = Farm::new().await;
    farm.job_type("sleep", "sleep", json!({"max_attempts": 1})).await;
    let servers = [farm.serving("a", &[]).await, farm.serving("b", &[]).await];
    let server = &servers[0];
    let desk = desk(&farm);
    let slept = farm.path("slept");
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
    let address = format!("wake_address={}", socket.local_addr().expect("bound"));
    let set = said(&farm, server, &["presence", "desk", "--set", &address]);
    assert!(set.contains("will hear"), "{set}");
    let mut pc = agent(&farm, server, &desk, &sleeps(&slept));
    pc.start();
    is(&farm, "state = 'waiting' and can_be_woken").await;
    is(&farm, r#"presence @> '[{"name": "wake_address", "refused": ""}]'"#).await;
    let kept = said(&farm, server, &["presence", "desk"]);
    assert!(kept.contains("wake_address") && !kept.contains("does not let"), "{kept}");

    // Switched off, and woken by an administrator: one packet, by one of two servers.
    pc.kill();
    is(&farm, "state = 'dead' and not asleep").await;
    said(&farm, server, &["wake", "desk"]);
    wakes(&socket).await;
    assert_eq!(farm.number("select tries::bigint from pcfarm.wake").await, 1);
    pc.start();
    farm.until(SOON, "select exists (select from pcfarm.event where what = 'workstation woken')").await;

    // There is nothing for it: it says that it sleeps, and does.
    is(&farm, "state = 'suspended' and asleep and reason like 'asleep: it had nothing to do%'").await;
    timeout(LONG, until_there(&slept)).await.expect("the command runs");
    pc.kill();
    is(&farm, "state = 'offline' and asleep and reason like 'asleep:%'").await;
    let shown = said(&farm, server, &["workstations"]);
    assert!(shown.contains("asleep"), "{shown}");
    let told = said(&farm, server, &["explain", "workstation", "desk"]);
    assert!(told.contains("asleep for") && told.contains("pcfarm wake"), "{told}");
    let document: Value = serde_json::from_str(&said(&farm, server, &["workstations", "-o", "json"])).expect("JSON");
    assert_eq!(document["workstations"][0]["asleep"], true, "{document}");

    // There is work, in hours in which it may be woken for that.
    farm.run("update pcfarm.workstation set woken_at = null").await;
    said(&farm, server, &["presence", "desk", "--set", "wake_hours=mon-sun"]);
    let job = farm.submit_sleeps("sleep", 5, 1, 1).await;
    wakes(&socket).await;
    pc.start();
    assert_eq!(farm.ended(job, LONG).await, "done");
    farm.check(&[]).await;
}

#[tokio::test]
async fn whoever_comes_while_the_pc_goes_to_sleep_keeps_it_awake() {
    let farm = Farm::new().await;
    let server = farm.serving("a", &[]).await;
    let mut desk = desk(&farm);
    // It asks the system, which takes its time.
    let mut pc = agent(&farm, &server, &desk, "always = true\ncommand = [\"sleep\", \"1000\"]");
    pc.start();
    is(&farm, "asleep").await;
    desk.press_a_key().expect("pressed");
    is(&farm, "state = 'suspended' and not asleep and reason like 'its person is here%'").await;
    is(&farm, "state = 'waiting'").await;
    // And when nobody has touched it for long enough, once more.
    is(&farm, "asleep").await;
    farm.check(&[]).await;
}

#[tokio::test]
async fn who_was_not_woken_stays_awake_and_who_did_not_say_how_is_not_woken() {
    let farm = Farm::new().await;
    let server = farm.serving("a", &[]).await;
    let slept = farm.path("slept");
    let config = farm.path("worker.toml");
    fs::write(&config, format!("[sleep]\nafter = 0.1\n{}\n", sleeps(&slept))).expect("written");
    let mut pc = farm
        .program("desk", "pcfarm-worker")
        .arguments(["--server", &server.url(), "--cores", "1", "--hostname", "desk", "--unattended"])
        .arguments(["--config".as_ref(), config.as_os_str()])
        .arguments(["--state-dir".as_ref(), farm.path("desk.state").as_os_str()])
        .arguments(["--work-dir".as_ref(), farm.path("desk.work").as_os_str()]);
    pc.start();
    is(&farm, "state = 'waiting' and not can_be_woken").await;
    let mut command = Command::new(farm.program("cli", "pcfarm").path());
    let refused = command.args(["--server", &server.url(), "wake", "desk"]).output().expect("the CLI runs");
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && why.contains("desk cannot be woken"), "{why}");
    // A job that takes longer than it would have waited.
    farm.job_type("sleep", "sleep", json!({})).await;
    let job = farm.submit_sleeps("sleep", 1, 500, 1).await;
    assert_eq!(farm.ended(job, LONG).await, "done");
    assert!(!slept.exists());
    farm.check(&[]).await;
}
