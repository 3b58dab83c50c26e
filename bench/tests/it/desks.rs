//! Agents on desks on a whole farm: whoever comes back gets the desk, and what was begun there is solved elsewhere; and what
//! administrators want of desks.

use pcfarm_bench::desk::{Desk, SPINS, Tree, spins_until};
use pcfarm_bench::farm::{Farm, LONG, SOON, Server};
use pcfarm_bench::program::Program;
use serde_json::json;
use std::time::Duration;

/// Whoever touches nothing for so long has left.
const AWAY: Duration = Duration::from_millis(500);

const ONE: &str = "select 'one' as key, '{}'::jsonb as payload";

fn desk(farm: &Farm) -> Desk {
    let place = farm.path("desk");
    std::fs::create_dir(&place).expect("made");
    Desk::new(&place).expect("a desk")
}

/// What the desk holds is not only handed out, but has begun.
async fn computes(farm: &Farm, agent: &Program) {
    farm.until(SOON, PROCESSING).await;
    let pid = agent.pid().expect("it runs");
    assert!(Tree::that_uses(pid, SPINS, SOON).await.is_some(), "it computes");
}

/// Somebody types there until the farm knows this of it.
async fn typing_until(farm: &Farm, desk: &mut Desk, what: &str) {
    let types = async {
        loop {
            desk.press_a_key().expect("pressed");
            tokio::time::sleep(AWAY / 5).await;
        }
    };
    tokio::select! {
        () = farm.until(SOON, what) => {}
        () = types => {}
    }
}

fn agent(farm: &Farm, server: &Server, desk: &Desk, presence: &str, more: &str) -> Program {
    let config = desk.config(AWAY, presence, more).expect("written");
    let mut agent = farm
        .program("desk", "pcfarm-worker")
        .arguments(["--server", &server.url(), "--cores", "1", "--hostname", "desk", "--prefetch", "0"])
        .arguments(["--config".as_ref(), config.as_os_str()])
        .arguments(["--state-dir".as_ref(), farm.path("desk.state").as_os_str()])
        .arguments(["--work-dir".as_ref(), farm.path("desk.work").as_os_str()])
        .environment("PCFARM_UNATTENDED", "false");
    agent.start();
    agent
}

/// A workstation without a person.
fn other(farm: &Farm, server: &Server) -> Program {
    let config = farm.path("other.toml");
    std::fs::write(&config, spins_until(&farm.path("go"))).expect("written");
    let mut other = farm
        .program("other", "pcfarm-worker")
        .arguments(["--server", &server.url(), "--cores", "1", "--hostname", "other", "--unattended"])
        .arguments(["--config".as_ref(), config.as_os_str()])
        .arguments(["--state-dir".as_ref(), farm.path("other.state").as_os_str()]);
    other.start();
    other
}

const PROCESSING: &str =
    "select exists (select from pcfarm.workstation_status where hostname = 'desk' and state = 'processing')";

#[tokio::test]
async fn what_a_person_interrupts_is_solved_elsewhere_and_the_farm_knows_how_quickly() {
    let farm = Farm::new().await;
    farm.job_type("spin", "exec:spin", json!({"max_attempts": 1})).await;
    let server = farm.serving("a", &[]).await;
    let mut desk = desk(&farm);
    let agent = agent(&farm, &server, &desk, "", &spins_until(&farm.path("go")));
    let job = farm.submit("spin", ONE, 1).await;
    computes(&farm, &agent).await;
    let told = "select exists (select from pcfarm.workstation_status where hostname = 'desk' and state = 'suspended'
        and reason like 'its person is here%' and checkouts = 0)";
    typing_until(&farm, &mut desk, told).await;
    // It costs nothing: of one attempt none is used up.
    let _other = other(&farm, &server);
    typing_until(&farm, &mut desk, &PROCESSING.replace("desk", "other")).await;
    std::fs::write(farm.path("go"), "").expect("written");
    assert_eq!(farm.ended(job, LONG).await, "done");
    let known = "select exists (select from pcfarm.workstation_status where hostname = 'desk' and state = 'waiting'
        and yields >= 1 and yield_p99_ms >= yield_p50_ms)";
    farm.until(SOON, known).await;
    farm.check(&[]).await;
}

#[tokio::test]
async fn what_is_frozen_keeps_its_checkout_beyond_the_lease() {
    let farm = Farm::new().await;
    farm.job_type("spin", "exec:spin", json!({"max_attempts": 1})).await;
    let server = farm.serving("a", &[]).await;
    let mut desk = desk(&farm);
    let agent = agent(&farm, &server, &desk, "on_return = \"freeze\"", &spins_until(&farm.path("go")));
    let job = farm.submit("spin", ONE, 1).await;
    computes(&farm, &agent).await;
    let frozen = "select exists (select from pcfarm.workstation_status where hostname = 'desk' and state = 'suspended'
        and reason like '%what it has begun is frozen' and checkouts = 1)";
    typing_until(&farm, &mut desk, frozen).await;
    // For some leases somebody types.
    let until = std::time::Instant::now() + 3 * pcfarm_bench::farm::LEASE;
    while std::time::Instant::now() < until {
        desk.press_a_key().expect("pressed");
        tokio::time::sleep(AWAY / 5).await;
    }
    assert_eq!(farm.number("select count(*) from pcfarm.checkout where ended_at is null").await, 1);
    computes(&farm, &agent).await;
    std::fs::write(farm.path("go"), "").expect("written");
    assert_eq!(farm.ended(job, LONG).await, "done");
    assert_eq!(farm.number("select count(*) from pcfarm.checkout").await, 1, "nobody else has had it");
    farm.check(&[]).await;
}

/// The frozen problem stays. Another workstation solves the rest of its convoy while a person types.
#[tokio::test]
async fn what_a_frozen_desk_has_not_begun_is_solved_elsewhere() {
    let farm = Farm::new().await;
    farm.job_type("spin", "exec:spin", json!({"max_attempts": 1})).await;
    let server = farm.serving("a", &[]).await;
    let mut desk = desk(&farm);
    let agent = agent(&farm, &server, &desk, "on_return = \"freeze\"", &spins_until(&farm.path("go")));
    let five = "select 'problem ' || g as key, '{}'::jsonb as payload from generate_series(1, 5) g";
    let job = farm.submit("spin", five, 5).await;
    computes(&farm, &agent).await;
    let frozen = "select exists (select from pcfarm.workstation_status where hostname = 'desk' and state = 'suspended'
        and reason like '%what it has begun is frozen' and checkouts = 1)";
    typing_until(&farm, &mut desk, frozen).await;
    let _other = other(&farm, &server);
    let begun = "select exists (select from pcfarm.workstation_status where hostname = 'other' and checkouts > 0)";
    typing_until(&farm, &mut desk, begun).await;
    std::fs::write(farm.path("go"), "").expect("written");
    typing_until(&farm, &mut desk, "select count(*) = 4 from pcfarm.result").await;
    assert_eq!(farm.ended(job, LONG).await, "done");
    let of_desk = "select count(*) from pcfarm.result r join pcfarm.checkout c on c.checkout_id = r.checkout_id
        join pcfarm.workstation w on w.workstation_id = c.workstation_id where w.hostname = 'desk'";
    assert_eq!(farm.number(of_desk).await, 1, "it goes on with what it has begun");
    farm.check(&[]).await;
}

#[tokio::test]
async fn a_desk_goes_by_what_the_farm_wants_as_far_as_its_owner_allows() {
    let farm = Farm::new().await;
    let server = farm.serving("a", &[]).await;
    let desk = desk(&farm);
    // Before it has ever connected.
    farm.run("select pcfarm.set_presence('{desk}', '{\"give_back_after\": 60, \"on_battery\": false}')").await;
    let _agent = agent(&farm, &server, &desk, "[presence.limits]\nload = 2", "");
    let holds = |name: &str, value: &str, by: &str, refused: &str| {
        format!(
            "select exists (select from pcfarm.workstation_status w, jsonb_array_elements(w.presence) s where w.hostname = 'desk'
                and s ->> 'name' = '{name}' and s ->> 'value' = '{value}' and s ->> 'by' = '{by}' and s ->> 'refused' like '{refused}')"
        )
    };
    farm.until(SOON, &holds("give_back_after", "60", "farm", "")).await;
    farm.until(SOON, &holds("resume_after", "0.5", "owner", "")).await;
    // While it is connected: more careful, beyond what its owner allows, and as it was.
    farm.run("select pcfarm.set_presence('{desk}', '{\"start_after\": 3600, \"give_back_after\": 700, \"hours\": [\"sat\"]}')").await;
    farm.until(SOON, &holds("start_after", "3600", "farm", "")).await;
    farm.until(
        SOON,
        &holds("give_back_after", "600", "default", "the farm wants 700; its owner lets it go as far as 600"),
    )
    .await;
    farm.until(SOON, &holds("hours", "sat", "farm", "")).await;
    let everything = "{\"start_after\": null, \"give_back_after\": null, \"hours\": null, \"on_battery\": null}";
    farm.run(&format!("select pcfarm.set_presence('{{desk}}', '{everything}')")).await;
    farm.until(SOON, &holds("start_after", "0.5", "owner", "")).await;
    farm.until(SOON, &holds("hours", "always", "default", "")).await;
    farm.check(&[]).await;
}

#[tokio::test]
async fn the_farm_lowers_the_cores_of_an_agent_which_starts_anew_with_them_and_loses_nothing() {
    let farm = Farm::new().await;
    farm.job_type("sleep", "sleep", json!({"max_attempts": 1})).await;
    let server = farm.serving("a", &[]).await;
    let mut agent = farm
        .program("desk", "pcfarm-worker")
        .arguments(["--server", &server.url(), "--cores", "3", "--hostname", "desk", "--unattended", "--grace", "1"])
        .arguments(["--state-dir".as_ref(), farm.path("desk.state").as_os_str()]);
    agent.start();
    let uses = |cores: u32, by: &str| {
        format!(
            "select exists (select from pcfarm.workstation_status w, jsonb_array_elements(w.presence) s where w.hostname = 'desk'
                and w.cores = {cores} and w.state in ('waiting', 'processing') and s ->> 'name' = 'cores'
                and s ->> 'value' = '{cores}' and s ->> 'by' = '{by}' and s ->> 'refused' = '')"
        )
    };
    farm.until(SOON, &uses(3, "owner")).await;
    let process = agent.pid();
    // Some are finished within its grace, and others are not.
    let query = "select i::text as key, jsonb_build_object('ms', case when i % 5 = 0 then 2500 else 300 end) as payload
        from generate_series(1, 20) i";
    let job = farm.submit("sleep", query, 1).await;
    farm.until(SOON, PROCESSING).await;
    farm.run("select pcfarm.set_presence('{desk}', '{\"cores\": 1}')").await;
    farm.until(SOON, &uses(1, "farm")).await;
    assert!(agent.runs() && agent.pid() == process, "another program in the same process");
    assert_eq!(farm.ended(job, LONG).await, "done");

    // Whoever is killed comes back with as many, whatever its disk has made of that.
    const ANEW: &str = "starts anew, with as many cores as the farm wants";
    for (left, again) in [("1\n", false), ("one", true)] {
        agent.kill();
        std::fs::write(farm.path("desk.state").join("cores"), left).expect("written");
        std::fs::remove_file(farm.path("desk.log")).expect("it has written something");
        agent.start();
        agent.says(if again { ANEW } else { "welcomed" }, SOON).await;
        farm.until(SOON, &uses(1, "farm")).await;
        assert_eq!(agent.log().contains(ANEW), again, "{}", agent.log());
    }
    farm.run("select pcfarm.set_presence('{desk}', '{\"cores\": null}')").await;
    farm.until(SOON, &uses(3, "owner")).await;
    farm.check(&[]).await;
}
