//! Whoever touches something gets the desk, whichever source knows of it, and a source that breaks stands for a person: on whole
//! farms, with work that computes and another workstation that takes up what was interrupted.
//!
//! How quickly it happens is measured by table `yields`: here only that it does.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use pcfarm_bench::desk::{SPINS, Tree, spins_until};
use pcfarm_bench::farm::{Farm, LONG, SOON, Server, executable_path};
use pcfarm_bench::left_out;
use pcfarm_bench::program::Program;
use pcfarm_bench::seat::{Seat, missing};
use serde_json::{Value, json};

/// Whoever touches nothing for so long has left: what is looked for meanwhile is found, however busy the machine is.
const AWAY: Duration = Duration::from_secs(6);

const ONE: &str = "select 'one' as key, '{}'::jsonb as payload";

/// A farm, a desk that computes whenever nobody is there, and another workstation.
struct Scene {
    farm: Farm,
    server: Server,
    seat: Seat,
    agent: Program,
    helper: Option<Program>,
    other: Program,
}

impl Scene {
    /// The agent of the desk runs, and knows by this source alone that nobody is there. The other workstation does not run yet.
    async fn with(seat: fn(&Farm) -> io::Result<Seat>) -> Scene {
        let farm = Farm::new().await;
        // There is one attempt: whatever goes back at no cost leaves it.
        farm.job_type("spin", "exec:spin", json!({"max_attempts": 1})).await;
        let server = farm.serving("a", &[]).await;
        let seat = seat(&farm).expect("somebody can sit there");
        let program = spins_until(&farm.path("go"));
        let config = seat.desk.config(AWAY, seat.trust(), &program).expect("written");
        let mut agent = self::agent(&farm, &server, "desk", &config).environment("PCFARM_UNATTENDED", "false");
        let others = farm.path("other.toml");
        std::fs::write(&others, program).expect("written");
        let other = self::agent(&farm, &server, "other", &others);
        agent.start();
        let helper = seat.helper(&farm, &farm.path("desk.state").join("agent.sock"));
        let mut scene = Scene { farm, server, seat, agent, helper, other };
        if scene.helper.is_some() {
            scene.desk_knows_nothing().await;
        }
        scene.start_helper();
        scene
    }

    fn start_helper(&mut self) {
        if let Some(helper) = &mut self.helper {
            helper.start();
        }
    }

    /// The farm says that of this workstation.
    async fn is(&self, hostname: &str, what: &str) {
        let there =
            format!("select exists (select from pcfarm.workstation_status where hostname = '{hostname}' and {what})");
        self.farm.until(SOON, &there).await;
    }

    /// The desk has work, and its agent a core. Returns what to watch that by.
    async fn desk_computes(&self) -> Tree {
        self.is("desk", &format!("state = 'processing' and idle_source like '{}%'", self.seat.source())).await;
        Tree::that_uses(self.agent.pid().expect("it runs"), SPINS, SOON).await.expect("it computes")
    }

    /// It gives way: nothing computes there, and nothing is held.
    async fn desk_rests(&self, mut tree: Tree, why: &str) {
        let quiet = tokio::task::spawn_blocking(move || tree.until_quiet(SOON)).await.expect("no panic");
        assert!(quiet < SOON / 2, "it goes on computing");
        self.is("desk", &format!("state = 'suspended' and checkouts = 0 and reason like '{why}'")).await;
    }

    /// It rests, for nobody can tell whether somebody is there; and says which source fails, to whoever asks.
    async fn desk_knows_nothing(&self) {
        self.is("desk", "state = 'suspended' and reason like 'no source can tell%' and idle_source = 'none'").await;
        let explained = self.explained().await;
        self.names_what_fails(&explained["reasons"][0]);
        let mut command = Command::new(executable_path("pcfarm"));
        command.args(["--server", &self.server.url(), "workstations", "desk", "--output", "json"]);
        let listed = answered(command).await;
        let desk = &listed["workstations"][0];
        assert_eq!((&desk["state"], &desk["idle_source"]), (&json!("suspended"), &json!("none")), "{desk}");
        self.names_what_fails(&desk["reason"]);
    }

    /// A helper that is gone cannot be named: only that nobody else knows anything.
    fn names_what_fails(&self, reason: &Value) {
        let reason = reason.as_str().expect("text");
        let source = self.helper.is_none().then(|| format!("{}: ", self.seat.source()));
        assert!(reason.starts_with("no source can tell"), "{reason}");
        assert!(source.is_none_or(|source| reason.contains(&source)), "{reason}");
    }

    async fn explained(&self) -> Value {
        let mut command = Command::new(executable_path("pcfarm-worker"));
        command.arg("--socket").arg(self.farm.path("desk.state").join("agent.sock"));
        command.args(["explain", "--output", "json"]);
        answered(command).await
    }

    /// A new problem, which needs a core until [`Scene::may_end`].
    async fn submit(&self) -> pcfarm_proto::ids::JobId {
        drop(std::fs::remove_file(self.go()));
        self.farm.submit("spin", ONE, 1).await
    }

    fn go(&self) -> PathBuf {
        self.farm.path("go")
    }

    async fn is_solved_by_the_other(&self, job: pcfarm_proto::ids::JobId) {
        self.is("other", "state = 'processing'").await;
        std::fs::write(self.go(), "").expect("written");
        assert_eq!(self.farm.ended(job, LONG).await, "done", "what went back has cost no attempt");
    }

    async fn checkouts_of_the_desk(&self) -> i64 {
        let text = "select count(*) from pcfarm.checkout c join pcfarm.workstation w using (workstation_id) where w.hostname = 'desk'";
        self.farm.number(text).await
    }
}

fn agent(farm: &Farm, server: &Server, name: &str, config: &Path) -> Program {
    farm.program(name, "pcfarm-worker")
        .arguments(["--server", &server.url(), "--cores", "1", "--hostname", name, "--prefetch", "0"])
        .arguments(["--config".as_ref(), config.as_os_str()])
        .arguments(["--state-dir".as_ref(), farm.path(&format!("{name}.state")).as_os_str()])
        .arguments(["--work-dir".as_ref(), farm.path(&format!("{name}.work")).as_os_str()])
}

/// The document that a command writes.
async fn answered(mut command: Command) -> Value {
    command.stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await.expect("no panic").expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr)))
}

/// What is judged of a desk, from the first input to the last source.
async fn a_desk_is_its_persons(seat: fn(&Farm) -> io::Result<Seat>) {
    let mut scene = Scene::with(seat).await;
    let job = scene.submit().await;
    let tree = scene.desk_computes().await;
    scene.other.start();
    scene.is("other", "state = 'waiting'").await;

    // Somebody comes: the other workstation goes on, and the desk begins again when that person has left.
    scene.seat.press_a_key().expect("pressed");
    scene.desk_rests(tree, &format!("its person is here%({}%", scene.seat.source())).await;
    scene.is_solved_by_the_other(job).await;
    scene.is("desk", "state = 'waiting'").await;
    scene.other.terminate();
    scene.other.ended(SOON).await;

    // Its helper dies.
    let job = scene.submit().await;
    let mut tree = scene.desk_computes().await;
    if let Some(helper) = &mut scene.helper {
        helper.kill();
        scene.desk_rests(tree, "no source can tell%").await;
        scene.desk_knows_nothing().await;
        scene.start_helper();
        tree = scene.desk_computes().await;
    }

    // The source itself breaks. From now on the desk does nothing more, whatever there is to do.
    scene.seat.break_down().expect("it breaks");
    scene.desk_rests(tree, "no source can tell%").await;
    scene.desk_knows_nothing().await;
    let checkouts = scene.checkouts_of_the_desk().await;
    scene.other.start();
    scene.is_solved_by_the_other(job).await;
    scene.desk_knows_nothing().await;
    assert_eq!(scene.checkouts_of_the_desk().await, checkouts, "it has begun again");
    assert_eq!(scene.farm.number("select count(*) from pcfarm.failed_attempt").await, 0);
    scene.farm.check(&[]).await;
}

/// If not, the test says so, and is none.
fn are_there(programs: &[&'static str]) -> bool {
    let missing = missing(programs);
    if !missing.is_empty() {
        left_out::for_want_of(&missing.join(", "));
    }
    missing.is_empty()
}

#[tokio::test]
#[ignore = "nightly: several absences of a person, each with its idle time"]
async fn a_desk_with_an_input_device_is_its_persons() {
    a_desk_is_its_persons(Seat::keyboard).await;
}

#[tokio::test]
#[ignore = "nightly: several absences of a person, each with its idle time"]
async fn a_desk_with_a_virtual_input_device_is_its_persons() {
    match std::fs::File::options().write(true).open("/dev/uinput") {
        Ok(_) => a_desk_is_its_persons(Seat::virtual_keyboard).await,
        Err(error) => left_out::here(&format!("no input device can be made here: /dev/uinput: {error}")),
    }
}

#[tokio::test]
#[ignore = "nightly: several absences of a person, each with its idle time"]
async fn a_bare_console_is_its_persons() {
    a_desk_is_its_persons(Seat::console).await;
}

#[tokio::test]
#[ignore = "nightly: several absences of a person, each with its idle time"]
async fn a_session_of_x11_is_its_persons() {
    if are_there(Seat::X11_WANTS) {
        a_desk_is_its_persons(Seat::x11).await;
    }
}

#[tokio::test]
#[ignore = "nightly: several absences of a person, each with its idle time"]
async fn a_session_of_wayland_is_its_persons() {
    if are_there(Seat::WAYLAND_WANTS) {
        a_desk_is_its_persons(Seat::wayland).await;
    }
}
