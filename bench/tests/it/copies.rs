//! Copied state directories and disk images, and workstations that come and go in good order: real servers and agents, each agent
//! on a machine of its own, which is a root of the file system with a machine-id and network cards.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use pcfarm_bench::farm::{Farm, LONG, SOON, Server, executable_path};
use pcfarm_bench::program::Program;
use serde_json::{Value, json};

pub const ONE_ID: &str = "0123456789abcdef0123456789abcdef";
const OTHER_ID: &str = "fedcba9876543210fedcba9876543210";

/// Machine with this machine-id and one network card.
pub fn machine(farm: &Farm, name: &str, id: &str, address: &str) -> PathBuf {
    let root = farm.path(name);
    let (card, device) = (root.join("sys/class/net/eth0"), root.join("sys/devices/pci0000:00/0000:00:1f.6"));
    [root.join("etc"), card.clone(), device.clone()].iter().for_each(|dir| fs::create_dir_all(dir).expect("made"));
    fs::write(root.join("etc/machine-id"), format!("{id}\n")).expect("written");
    for (file, text) in [("type", "1"), ("address", address), ("addr_assign_type", "0")] {
        fs::write(card.join(file), format!("{text}\n")).expect("written");
    }
    symlink(device, card.join("device")).expect("linked");
    root
}

fn agent(farm: &Farm, name: &str, server: &Server, machine: &Path) -> Program {
    farm.agent(name, &[server]).environment("PCFARM_HOST_ROOT", machine.to_owned())
}

/// Copies an agent's state directory, as a copy of the disk does.
pub fn copy_state(farm: &Farm, from: &str, to: &str) {
    let (from, to) = (farm.path(&format!("{from}.state")), farm.path(&format!("{to}.state")));
    let copied = Command::new("cp").args(["-r"]).arg(&from).arg(&to).status().expect("cp runs");
    assert!(copied.success());
}

pub fn identity(farm: &Farm, name: &str) -> String {
    fs::read_to_string(farm.path(&format!("{name}.state")).join("identity")).expect("an identity").trim().to_owned()
}

pub async fn is(farm: &Farm, hostname: &str, condition: &str) {
    let text =
        format!("select exists (select from pcfarm.workstation_status where hostname = '{hostname}' and {condition})");
    farm.until(LONG, &text).await;
}

async fn cloned(farm: &Farm) -> i64 {
    farm.number("select count(*) from pcfarm.event where what = 'workstation cloned'").await
}

/// Session of the workstation that is connected under that identity.
pub async fn session(farm: &Farm, identity: &str) -> i64 {
    farm.number(&format!(
        "select session from pcfarm.workstation where identity = '{identity}' and silent_since is null"
    ))
    .await
}

#[tokio::test]
async fn a_copied_image_gets_an_identity_of_its_own_and_the_original_stays_connected() {
    let farm = Farm::new().await;
    let server = farm.serving("a", &[]).await;
    farm.run(r#"select pcfarm.subscribe('{"events": ["workstations"], "notify": "fleet"}')"#).await;
    let desk = machine(&farm, "desk", ONE_ID, "52:54:00:00:00:01");
    let mut original = agent(&farm, "original", &server, &desk);
    original.start();
    is(&farm, "original", "state = 'waiting'").await;
    let (its_identity, its_session) = (identity(&farm, "original"), session(&farm, &identity(&farm, "original")).await);

    // Disks that are copied while it runs: on other cards, with the machine-id copied or made anew.
    let others =
        [machine(&farm, "lab", ONE_ID, "52:54:00:00:00:02"), machine(&farm, "den", OTHER_ID, "52:54:00:00:00:03")];
    let mut copies = Vec::new();
    for (name, other) in ["copy1", "copy2"].into_iter().zip(&others) {
        copy_state(&farm, "original", name);
        let mut copy = agent(&farm, name, &server, other);
        copy.start();
        is(&farm, name, "state = 'waiting'").await;
        assert_ne!(identity(&farm, name), its_identity);
        copies.push(copy);
    }
    assert_eq!(session(&farm, &its_identity).await, its_session, "the original never lost its connection");
    // The server notes it when the copy is registered.
    farm.until(SOON, "select count(*) = 2 from pcfarm.event where what = 'workstation cloned'").await;
    let named = "select count(*) from pcfarm.event where what = 'workstation cloned' and details ->> 'cloned_from' = ";
    assert_eq!(farm.number(&format!("{named}'{its_identity}'")).await, 2);
    farm.until(SOON, "select count(*) = 1 from pcfarm.alert where what = 'workstation_cloned'").await;

    // The second start of a copy is no news.
    let mut copy = copies.remove(0);
    copy.terminate();
    assert!(copy.ended(SOON).await.success());
    is(&farm, "copy1", "state = 'offline'").await;
    copy.start();
    is(&farm, "copy1", "state = 'waiting'").await;
    assert_eq!((cloned(&farm).await, session(&farm, &its_identity).await), (2, its_session));
    assert_eq!(farm.number("select count(*) from pcfarm.workstation").await, 3);
    assert!(original.runs());
}

#[tokio::test]
async fn a_copy_that_names_the_originals_identity_is_refused_and_asks_on() {
    let farm = Farm::new().await;
    let server = farm.serving("a", &[]).await;
    let desk = machine(&farm, "desk", ONE_ID, "52:54:00:00:00:01");
    let lab = machine(&farm, "lab", ONE_ID, "52:54:00:00:00:02");
    let mut original = agent(&farm, "original", &server, &desk);
    original.start();
    is(&farm, "original", "state = 'waiting'").await;
    let its_identity = identity(&farm, "original");
    let its_session = session(&farm, &its_identity).await;

    // Copied before an agent bound its identity to a machine.
    copy_state(&farm, "original", "copy");
    fs::remove_file(farm.path("copy.state").join("machine")).expect("removed");
    let mut copy = agent(&farm, "copy", &server, &lab);
    for start in 1..=2 {
        copy.start();
        let refused = format!("select {start} <= count(*) from pcfarm.event where what = 'workstation cloned'");
        if start == 1 {
            farm.until(LONG, &refused).await;
        }
        copy.says("identity new", SOON).await;
        assert!(copy.runs(), "{}", copy.log());
        copy.kill();
        // The next start is looked for in its own lines.
        fs::write(farm.path("copy.log"), "").expect("emptied");
    }
    assert_eq!(cloned(&farm).await, 1, "the same refusal is news once a day");
    assert_eq!(session(&farm, &its_identity).await, its_session);
    assert!(original.runs());

    // The copy stays refused while the original is switched off, until its owner decides.
    original.terminate();
    assert!(original.ended(SOON).await.success());
    is(&farm, "original", "state = 'offline'").await;
    copy.start();
    copy.says("identity new", SOON).await;
    copy.kill();
    let new = worker(&farm, "copy", &lab, &["identity", "new"]);
    assert!(new.contains("identity of its own"), "{new}");
    copy.start();
    is(&farm, "copy", "state = 'waiting'").await;
    assert_ne!(identity(&farm, "copy"), its_identity);
}

/// Machine with this machine-id and no network cards, as a container is.
fn container(farm: &Farm, name: &str) -> PathBuf {
    let root = farm.path(name);
    fs::create_dir_all(root.join("etc")).expect("made");
    fs::write(root.join("etc/machine-id"), format!("{ONE_ID}\n")).expect("written");
    root
}

#[tokio::test]
async fn a_copy_that_cannot_be_told_apart_is_refused_and_the_original_stays() {
    let farm = Farm::new().await;
    let [server, other] = [farm.serving("a", &[]).await, farm.serving("b", &[]).await];
    let [desk, lab] = ["desk", "lab"].map(|name| container(&farm, name));
    let mut original = agent(&farm, "original", &server, &desk);
    original.start();
    is(&farm, "original", "state = 'waiting'").await;
    let its_identity = identity(&farm, "original");
    let its_session = session(&farm, &its_identity).await;
    // At another server, which has to have the original asked, and at the original's.
    for (name, at) in [("far", &other), ("near", &server)] {
        copy_state(&farm, "original", name);
        let mut copy = agent(&farm, name, at, &lab);
        copy.start();
        copy.says("cannot be told apart", SOON).await;
        let told = format!(
            "select exists (select from pcfarm.event where what = 'workstation cloned' and details ->> 'copy' = '{name}'
                 and details ->> 'outcome' like 'refused: another agent is connected%')"
        );
        farm.until(SOON, &told).await;
        assert!(copy.runs(), "{}", copy.log());
        copy.kill();
    }
    assert_eq!(session(&farm, &its_identity).await, its_session, "the original never lost its connection");
    assert!(original.runs());

    // A crash ends the connection at once, so the agent is back at once.
    original.kill();
    original.start();
    farm.until(SOON, &connected_after(&its_identity, its_session)).await;
    assert_eq!(farm.number("select count(*) from pcfarm.event where what = 'workstation cloned'").await, 2);
}

/// Condition that a later session of this identity is connected.
fn connected_after(identity: &str, session: i64) -> String {
    format!(
        "select session > {session} and silent_since is null and state = 'waiting'
         from pcfarm.workstation where identity = '{identity}'"
    )
}

#[tokio::test]
async fn an_agent_that_does_not_answer_gives_way_to_another_instance() {
    let farm = Farm::new().await;
    // The lease would keep it for minutes.
    let flags = ["--lease", "600", "--heartbeat", "200"];
    let [server, other] = [farm.serving("a", &flags).await, farm.serving("b", &flags).await];
    let desk = container(&farm, "desk");
    let mut frozen = agent(&farm, "frozen", &server, &desk);
    frozen.start();
    is(&farm, "frozen", "state = 'waiting'").await;
    let its_identity = identity(&farm, "frozen");
    frozen.freeze();
    let mut instances = Vec::new();
    for (name, at) in [("near", &server), ("far", &other)] {
        let before = session(&farm, &its_identity).await;
        copy_state(&farm, "frozen", name);
        let mut next = agent(&farm, name, at, &desk);
        next.start();
        farm.until(SOON, &connected_after(&its_identity, before)).await;
        next.freeze();
        instances.push(next);
    }
    assert_eq!(cloned(&farm).await, 0, "a restart is no copy");
}

/// Returns the output of `pcfarm-worker` for the state directory of that agent.
fn worker(farm: &Farm, name: &str, machine: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(executable_path("pcfarm-worker"));
    command.args(["--server", "http://127.0.0.1:1", "--state-dir"]).arg(farm.path(&format!("{name}.state")));
    let output = command.args(arguments).env("PCFARM_HOST_ROOT", machine).output().expect("it runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    assert!(output.status.success(), "{}", text(output.stderr));
    text(output.stdout)
}

#[tokio::test]
async fn an_owner_who_replaced_the_card_keeps_the_identity_by_one_command() {
    let farm = Farm::new().await;
    let server = farm.serving("a", &[]).await;
    let desk = machine(&farm, "desk", ONE_ID, "52:54:00:00:00:01");
    let mut pc = agent(&farm, "pc", &server, &desk);
    pc.start();
    is(&farm, "pc", "state = 'waiting'").await;
    let its_identity = identity(&farm, "pc");
    assert!(worker(&farm, "pc", &desk, &["identity"]).contains("belongs to this machine"));
    pc.terminate();
    assert!(pc.ended(SOON).await.success());

    let mended = machine(&farm, "mended", ONE_ID, "52:54:00:00:00:09");
    assert!(worker(&farm, "pc", &mended, &["identity"]).contains("another machine"));
    let mut pc = agent(&farm, "pc", &server, &mended);
    pc.start();
    farm.until(LONG, "select count(*) = 2 from pcfarm.workstation").await;
    pc.terminate();
    assert!(pc.ended(SOON).await.success());
    worker(&farm, "pc", &mended, &["identity", "keep"]);
    pc.start();
    farm.until(LONG, &format!("select state = 'waiting' from pcfarm.workstation where identity = '{its_identity}'"))
        .await;
    assert_eq!(identity(&farm, "pc"), its_identity);
    pc.terminate();
    assert!(pc.ended(SOON).await.success());

    // From now on the old card is another machine's.
    fs::remove_file(farm.path("pc.state").join("machine")).expect("removed");
    let mut before = agent(&farm, "pc", &server, &desk);
    before.start();
    let refused = "select exists (select from pcfarm.event where what = 'workstation cloned'
        and details ->> 'outcome' like 'refused:%')";
    farm.until(LONG, refused).await;
}

#[tokio::test]
async fn a_workstation_that_stops_in_good_order_is_offline_at_once_and_never_dead() {
    let farm = Farm::new().await;
    farm.job_type("digest", "digest", json!({"max_attempts": 1})).await;
    let server = farm.serving("a", &[]).await;
    let desk = machine(&farm, "desk", ONE_ID, "52:54:00:00:00:01");
    let mut leaving = agent(&farm, "leaving", &server, &desk).arguments(["--grace", "1"]);
    leaving.start();
    let job = farm.submit_sleeps("digest", 60, 200, 20).await;
    farm.finished(job, 2, SOON).await;
    leaving.terminate();
    assert!(leaving.ended(SOON).await.success());
    // Recorded before the agent ended.
    let offline =
        "select count(*) from pcfarm.workstation_status where state = 'offline' and reason = 'stopped in good order'";
    assert_eq!(farm.number(offline).await, 1);
    assert_eq!(farm.number("select count(*) from pcfarm.checkout where ended_at is null").await, 0, "it gave all back");
    let status: Value = serde_json::from_str(&said(&farm, &server, &["status", "-o", "json"])).expect("JSON");
    assert_eq!((&status["workstations_offline"], &status["workstations_dead"]), (&json!(1), &json!(0)), "{status}");
    let shown = said(&farm, &server, &["workstations"]);
    assert!(shown.contains("offline") && shown.contains("stopped in good order at "), "{shown}");

    // The lease passes.
    tokio::time::sleep(pcfarm_bench::farm::LEASE * 2).await;
    assert_eq!(farm.number(offline).await, 1);
    assert_eq!(farm.number("select count(*) from pcfarm.event where what = 'workstation dead'").await, 0);
    leaving.start();
    assert_eq!(farm.ended(job, LONG).await, "done");
    is(&farm, "leaving", "state = 'waiting'").await;
    farm.check(&[job]).await;
}

#[tokio::test]
async fn a_lost_connection_is_shown_at_once_and_the_lease_decides() {
    let farm = Farm::new().await;
    farm.job_type("digest", "digest", json!({})).await;
    let server = farm.serving("a", &["--lease", "20"]).await;
    let mut killed = farm.working("killed", &[&server]);
    let job = farm.submit_sleeps("digest", 400, 100, 10).await;
    farm.finished(job, 2, SOON).await;
    killed.kill();
    is(
        &farm,
        "killed",
        "state = 'lost' and connection_lost and reason like 'connection lost % s ago; holds what it had'",
    )
    .await;
    let waiting = "select count(*) from pcfarm.workstation where state = 'waiting'";
    assert_eq!(farm.number(waiting).await, 1, "the lease is not over");
    assert_eq!(farm.number("select count(*) from pcfarm.event where what = 'workstation dead'").await, 0);
    let shown = said(&farm, &server, &["workstations"]);
    assert!(shown.contains(" lost ") && shown.contains("connection lost") && !shown.contains("crunches"), "{shown}");
    let listed: Value = serde_json::from_str(&said(&farm, &server, &["workstations", "-o", "json"])).expect("JSON");
    assert_eq!(listed["workstations"][0]["state"], json!("lost"), "{listed}");
    let explained = said(&farm, &server, &["explain", "workstation", "killed"]);
    assert!(explained.contains("It has been lost for ") && !explained.contains("handed out within"), "{explained}");
    let status: Value = serde_json::from_str(&said(&farm, &server, &["status", "-o", "json"])).expect("JSON");
    assert_eq!(
        (&status["workstations_lost"], &status["workstations_processing"], &status["cores"]),
        (&json!(1), &json!(0), &json!(0)),
        "{status}"
    );
    assert!(said(&farm, &server, &["status"]).contains("1 lost; 0 cores"));
    killed.start();
    is(&farm, "killed", "not connection_lost and not unheard").await;
}

fn said(farm: &Farm, server: &Server, arguments: &[&str]) -> String {
    let mut command = Command::new(farm.program("cli", "pcfarm").path());
    let output = command.args(["--server", &server.url()]).args(arguments).env("NO_COLOR", "1").output();
    let output = output.expect("the CLI runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}
