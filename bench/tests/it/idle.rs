//! What an agent takes of a PC while nobody is there and nothing is to do: next to nothing.

use std::path::PathBuf;
use std::time::Duration;

use pcfarm_bench::desk::wakes;
use pcfarm_bench::farm::{Farm, SOON};
use pcfarm_bench::seat::Seat;

/// As farms have it.
const HEARTBEAT: Duration = Duration::from_secs(5);

const HEARTBEATS: u32 = 4;

/// By heartbeat, of all threads together: the one that looks for the person, the connection's timer, what it writes, what it hears, and
/// who carries these to the loop. A loop that polled, were it only once a second, would be more.
const WAKES: u64 = 20;

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
    // What follows its beginning.
    tokio::time::sleep(HEARTBEAT).await;
    let before = wakes(pid);
    tokio::time::sleep(HEARTBEAT * HEARTBEATS).await;
    let woken = wakes(pid).saturating_sub(before);
    println!("{} wakes in each heartbeat of {HEARTBEAT:?}", woken as f64 / f64::from(HEARTBEATS));
    assert!(woken > 0 && woken <= WAKES * u64::from(HEARTBEATS), "{woken} wakes in {HEARTBEATS} heartbeats");
}
