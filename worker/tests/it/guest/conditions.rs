//! What else keeps an agent from work, and what must not: others' load, memory that runs low, the hours of the week, a bumped desk, a
//! clock that is changed.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use pcfarm_proto::v1::WorkstationState as State;
use pcfarm_worker::Settings;
use tokio::process::Child;

use super::{Desk, PERSON, program_by};
use crate::farm::{Server, Session, outcomes};
use crate::left_out;

/// A machine of the test's own, as the kernel would tell of it: an agent, and nobody else.
struct Machine {
    proc: PathBuf,
}

impl Machine {
    fn of(desk: &Desk) -> Machine {
        let proc = desk.dir.path().join("proc");
        fs::create_dir_all(proc.join("10")).expect("made");
        std::os::unix::fs::symlink("10", proc.join("self")).expect("made");
        fs::write(proc.join("10/stat"), "10 (agent) S 1 1 1 0 -1 4194304 1 1 1 1 0 0 0 0 20 0 1 0 1 1 1")
            .expect("written");
        fs::write(proc.join("10/status"), "RssAnon:\t     100 kB\n").expect("written");
        let machine = Machine { proc };
        machine.has_used(0);
        machine.has_free(50);
        machine
    }

    /// So many hundredths of a core's second, since its start.
    fn has_used(&self, ticks: u64) {
        self.put("stat", &format!("cpu  {ticks} 0 0 4000 500 0 0 0 0 0\n"));
    }

    /// Of its memory, in hundredths.
    fn has_free(&self, percent: u64) {
        self.put("meminfo", &format!("MemTotal:  1000000 kB\nMemFree: 1 kB\nMemAvailable: {} kB\n", percent * 10_000));
    }

    /// Whole, whenever somebody reads it.
    fn put(&self, file: &str, text: &str) {
        let aside = self.proc.join("new");
        fs::write(&aside, text).expect("written");
        fs::rename(aside, self.proc.join(file)).expect("renamed");
    }
}

#[tokio::test]
#[ignore = "nightly: half a minute of load averages"]
async fn who_needs_the_cores_or_the_memory_has_them() {
    let desk = Desk::new();
    let machine = Machine::of(&desk);
    let beside_others = |settings: &mut Settings| {
        settings.presence.proc.clone_from(&machine.proc);
        settings.presence.policy.load = Some(0.3);
        settings.presence.policy.free_memory = Some(0.1);
    };
    let (_server, mut agent, mut session) = desk.agent(beside_others).await;
    // It comes late: what others do is not known at once.
    session.credit().await;
    session.check_out(1, "sleep", [r#"{"ms": 600000}"#.to_owned()]).await;
    session.until_state(State::Processing).await;
    // A compiler has begun.
    machine.has_used(100_000);
    gives_back(&mut session, "other programs use ").await;
    // As if it had never been there: how long others are remembered is the load's own test.
    machine.has_used(0);
    session.until_state(State::Waiting).await;

    session.check_out(2, "sleep", [r#"{"ms": 600000}"#.to_owned()]).await;
    session.until_state(State::Processing).await;
    machine.has_free(5);
    gives_back(&mut session, "less than 1").await;
    machine.has_free(50);
    session.until_state(State::Waiting).await;
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

/// All that was held, unfinished, and rests for a reason that begins so: the next look may have another number in it.
async fn gives_back(session: &mut Session, reason: &str) {
    let delivery = session.delivery().await;
    let part = &delivery.checkouts[0];
    assert_eq!((part.finished, part.results.len()), (true, 0));
    assert!(part.give_back_reason.starts_with(reason), "{}", part.give_back_reason);
    session.acknowledge(&delivery).await;
    let says = session.until_state(State::Suspended).await;
    assert!(says.starts_with(reason), "{says}");
}

/// Of a pointing device: it has moved a little.
fn bump(mouse: &mut fs::File) {
    let mut event = vec![0; 2 * size_of::<usize>()];
    event.extend(2_u16.to_ne_bytes());
    event.extend(0_u16.to_ne_bytes());
    event.extend(3_i32.to_ne_bytes());
    mouse.write_all(&event).expect("moved");
}

#[tokio::test]
async fn a_bumped_desk_interrupts_nothing_and_a_hand_does() {
    let desk = Desk::new();
    let mut mouse = desk.plug("event1", "A mouse", "17");
    let (_server, mut agent, mut session) = desk.agent(|_| {}).await;
    session.credit().await;
    session.check_out(1, "sleep", [r#"{"ms": 1500}"#.to_owned()]).await;
    session.until_state(State::Processing).await;
    bump(&mut mouse);
    let delivery = session.delivery().await;
    assert_eq!(outcomes(&delivery.checkouts[0]), [(1000, r#"{"ms":1500}"#.to_owned())]);
    assert_eq!(delivery.checkouts[0].give_back_reason, "");
    session.acknowledge(&delivery).await;

    // The same movement again and again is somebody.
    session.check_out(2, "sleep", [r#"{"ms": 600000}"#.to_owned()]).await;
    session.until_state(State::Processing).await;
    let moves = tokio::task::spawn_blocking(move || {
        for _ in 0..10 {
            bump(&mut mouse);
            std::thread::sleep(std::time::Duration::from_millis(400));
        }
        mouse // not unplugged: that would be somebody, too
    });
    gives_back(&mut session, PERSON).await;
    let _mouse = moves.await.expect("no panic");
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

/// An agent whose wall clock is the test's.
struct Clock {
    library: PathBuf,
    says: PathBuf,
}

impl Clock {
    /// None: nothing here moves clocks.
    fn of(desk: &Desk) -> Option<Clock> {
        let directories = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
        let library = directories.map(|dir| dir.join("faketime/libfaketimeMT.so.1")).find(|path| path.exists());
        let Some(library) = library else {
            left_out::for_want_of("libfaketime");
            return None;
        };
        let says = desk.dir.path().join("clock");
        Some(Clock { library, says })
    }

    fn set(&self, to: &str) {
        let aside = self.says.with_extension("new");
        fs::write(&aside, format!("{to}\n")).expect("written");
        fs::rename(aside, &self.says).expect("renamed");
    }

    fn agent(&self, desk: &Desk, server: &Server, config: &Path) -> Child {
        let mut command = program_by(desk, config, &["--server", &server.url(), "--cores", "1"]);
        command.env("LD_PRELOAD", &self.library).env("FAKETIME_TIMESTAMP_FILE", &self.says).env("TZ", "UTC");
        command.envs([("FAKETIME_NO_CACHE", "1"), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")]);
        command.stderr(Stdio::null()).spawn().expect("the agent starts")
    }
}

#[tokio::test]
async fn a_clock_that_is_changed_is_nobody() {
    let mut desk = Desk::new();
    let Some(clock) = Clock::of(&desk) else { return };
    clock.set("+0");
    let mut server = Server::start().await;
    let _agent = clock.agent(&desk, &server, &desk.config());
    let (mut session, _) = server.welcomed().await;
    session.credit().await;
    // It goes on through all of these, for longer than it looks away.
    for (id, (change, ms)) in (1..).zip([("+400d", 6000), ("-400d", 6000)]) {
        session.check_out(id, "sleep", [format!(r#"{{"ms": {ms}}}"#)]).await;
        session.until_state(State::Processing).await;
        clock.set(change);
        let delivery = session.delivery().await;
        let solved = (1000 * id, format!(r#"{{"ms":{ms}}}"#));
        assert_eq!(outcomes(&delivery.checkouts[0]), [solved], "{change}: {delivery:?}");
        session.acknowledge(&delivery).await;
    }
    // And a person is one, whatever the clock says.
    session.check_out(9, "sleep", [r#"{"ms": 600000}"#.to_owned()]).await;
    session.until_state(State::Processing).await;
    clock.set("+0");
    desk.press_a_key();
    gives_back(&mut session, PERSON).await;
    session.until_state(State::Waiting).await;
}

#[tokio::test]
async fn only_in_its_hours_it_works() {
    works_only_between("@2025-06-18 18:00:30", "@2025-06-19 07:00:30").await;
}

#[tokio::test]
async fn on_its_days_it_works_around_the_clock() {
    works_only_between("@2025-06-21 12:00:00", "@2025-06-23 07:00:30").await;
}

/// An agent with hours for weekdays and for weekends begins at one time of its clock and stops at the other.
async fn works_only_between(begins: &str, ends: &str) {
    let desk = Desk::new();
    let Some(clock) = Clock::of(&desk) else { return };
    let config = desk.config();
    let hours = "hours = [\"18:00-07:00\", \"sat,sun\"]\n";
    fs::File::options()
        .append(true)
        .open(&config)
        .and_then(|mut file| file.write_all(hours.as_bytes()))
        .expect("written");
    // A Wednesday at noon.
    clock.set("@2025-06-18 12:00:00");
    let mut server = Server::start().await;
    let _agent = clock.agent(&desk, &server, &config);
    let (mut session, hello) = server.welcomed().await;
    let reason = "its hours are 18:00-07:00; sat,sun";
    assert_eq!(hello.state(), State::Suspended);
    clock.set(begins);
    session.until_state(State::Waiting).await;
    clock.set(ends);
    assert_eq!(session.until_state(State::Suspended).await, reason);
}

/// A bus that never answers, and none.
#[tokio::test]
async fn nothing_begins_before_it_is_known_what_the_network_costs() {
    let desk = Desk::new();
    let config = desk.dir.path().join("unattended.toml");
    fs::write(&config, "[presence]\non_metered = false\n").expect("written");
    let bus = desk.dir.path().join("bus");
    let silent = std::os::unix::net::UnixListener::bind(&bus).expect("it listens");
    let mut server = Server::start().await;
    let url = server.url();
    let start = || {
        let mut command = program_by(&desk, &config, &["--server", &url, "--cores", "1", "--unattended"]);
        command.env("DBUS_SYSTEM_BUS_ADDRESS", format!("unix:path={}", bus.display()));
        command.stderr(Stdio::null()).spawn().expect("the agent starts")
    };
    let mut agent = start();
    let (mut session, hello) = server.welcomed().await;
    assert_eq!(hello.state(), State::Suspended);
    let mut reason = String::new();
    while !reason.ends_with("it does not answer") {
        reason = session.until_state(State::Suspended).await;
        assert!(reason.starts_with("cannot tell yet whether its network is metered: "), "{reason}");
    }
    agent.kill().await.expect("it is there");
    drop((session, silent));
    fs::remove_file(&bus).expect("it is there");

    let _agent = start();
    let (mut session, hello) = server.welcomed().await;
    if hello.state() != State::Waiting {
        session.until_state(State::Waiting).await;
    }
    session.check_out(1, "echo", ["1".to_owned()]).await;
    let delivery = session.delivery().await;
    assert_eq!(outcomes(&delivery.checkouts[0]), [(1000, "1".to_owned())]);
    session.acknowledge(&delivery).await;
}
