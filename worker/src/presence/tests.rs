//! Of the whole of it, on a desk whose devices are pipes and whose machine is a few files.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use rustix::fs::{FileType, Mode};
use tokio::time::timeout;

use super::*;
use crate::local::message::Explanation;

/// A keyboard, and enough memory.
struct Place {
    dir: tempfile::TempDir,
    keyboard: File,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().expect("a directory");
        let described = dir.path().join("sys/class/input/event0/device/capabilities");
        fs::create_dir_all(&described).expect("made");
        fs::write(described.join("ev"), "120013\n").expect("written");
        fs::create_dir_all(dir.path().join("dev/input")).expect("made");
        fs::create_dir_all(dir.path().join("proc/10")).expect("made");
        fs::create_dir(dir.path().join("state")).expect("made");
        std::os::unix::fs::symlink("10", dir.path().join("proc/self")).expect("made");
        let stat = "10 (agent) S 1 1 1 0 -1 4194304 1 1 1 1 5 2 3 4 20 0 1 0 1 1 1";
        fs::write(dir.path().join("proc/10/stat"), stat).expect("written");
        let event = dir.path().join("dev/input/event0");
        pipe(&event);
        let keyboard = File::options().read(true).write(true).open(event).expect("its other end");
        let place = Place { dir, keyboard };
        fs::write(place.meminfo(), "MemTotal: 1000 kB\nMemAvailable: 900 kB\n").expect("written");
        place
    }

    fn meminfo(&self) -> PathBuf {
        self.dir.path().join("proc/meminfo")
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// Whoever touches nothing for a tenth of a second has left, and memory matters.
    fn settings(&self) -> Settings {
        let mut settings = Settings::of_a_desk();
        (settings.dev, settings.proc) = (self.dir.path().join("dev"), self.dir.path().join("proc"));
        settings.sys = self.dir.path().join("sys");
        settings.run = self.dir.path().join("run");
        settings.policy.start_after = Duration::from_millis(100);
        settings.policy.resume_after = Duration::from_millis(100);
        (settings.policy.load, settings.policy.on_battery, settings.policy.on_metered) = (None, true, true);
        settings
    }

    fn press_a_key(&mut self) {
        let mut event = vec![0; 2 * size_of::<usize>()];
        event.extend([1_u16.to_ne_bytes(), 30_u16.to_ne_bytes()].concat());
        event.extend(1_i32.to_ne_bytes());
        self.keyboard.write_all(&event).expect("pressed");
    }
}

fn pipe(path: &Path) {
    rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
}

/// In place of a file, one that hangs whoever opens it.
struct Hangs {
    at: PathBuf,
    was: Vec<u8>,
}

impl Hangs {
    fn instead_of(at: PathBuf) -> Hangs {
        let was = fs::read(&at).unwrap_or_default();
        let aside = at.with_extension("aside");
        pipe(&aside);
        fs::rename(aside, &at).expect("it takes its place");
        Hangs { at, was }
    }
}

impl Drop for Hangs {
    fn drop(&mut self) {
        // Who hangs there goes on, and nobody hangs there again.
        let (pipe, aside) = (self.at.with_extension("pipe"), self.at.with_extension("aside"));
        fs::write(&aside, &self.was).expect("written");
        fs::rename(&self.at, &pipe).expect("it is there");
        fs::rename(aside, &self.at).expect("it takes its place");
        drop(File::options().read(true).write(true).open(pipe).expect("it opens"));
    }
}

async fn until(directives: &mut watch::Receiver<Directive>, activity: Activity) -> Directive {
    let reached = directives.wait_for(|directive| directive.activity == activity);
    timeout(Duration::from_secs(20), reached).await.expect("in time").expect("it looks").clone()
}

/// Work that is in its hands as long as this is kept.
fn begin(desk: &Desk) -> Arc<Checkout> {
    let checkout = Arc::new(Checkout::new(pcfarm_proto::v1::Checkout { checkout_id: 1, ..Default::default() }));
    desk.computes(&checkout);
    checkout
}

#[tokio::test]
async fn whoever_is_back_does_not_wait_for_probes_that_hang() {
    let mut place = Place::new();
    let presence = Presence::start(place.settings(), &place.state(), Start::Fresh).expect("it starts");
    let mut directives = presence.desk.directives();
    until(&mut directives, Activity::Work).await;
    let memory = |desk: &Desk| desk.view(|_, _, signals, _| signals.expect("it has looked").memory.clone());
    let before = memory(&presence.desk);
    let hangs = Hangs::instead_of(place.meminfo());
    // It asks again, and hangs.
    let _work = begin(&presence.desk);
    tokio::time::sleep(prober::BELIEVED + LOOK_AT_WORK_EVERY).await;
    place.press_a_key();
    let directive = until(&mut directives, Activity::Rest).await;
    assert!(directive.reason.starts_with("its person is here"), "{}", directive.reason);
    assert_eq!(memory(&presence.desk), before, "what is known of it is as old as it is");
    // But nothing begins by that.
    tokio::time::sleep(LOOK_AT_WORK_EVERY * 2).await;
    assert_eq!(directives.borrow().activity, Activity::Rest);
    drop(hangs);
    until(&mut directives, Activity::Work).await;
}

#[tokio::test]
#[ignore = "nightly: waits for deadlines of probes"]
async fn what_the_farm_wants_is_obeyed_while_probes_hang() {
    // Nothing that they are asked, something that they are, and something that they were not.
    let another_day = format!("{:?}", Zoned::now().weekday().wrapping_add(3)).to_lowercase();
    for (wanted, reason) in [
        (format!(r#"{{"hours": ["{}"]}}"#, &another_day[..3]), "its hours, as the farm wants them"),
        (r#"{"memory_limit_mib": 0}"#.to_owned(), "takes more memory than the 0 MiB"),
        (r#"{"on_battery": false}"#.to_owned(), "cannot tell whether it is on battery: not asked"),
    ] {
        let place = Place::new();
        fs::write(place.dir.path().join("proc/10/status"), "RssAnon: 1 kB\n").expect("written");
        let presence = Presence::start(place.settings(), &place.state(), Start::Fresh).expect("it starts");
        let mut directives = presence.desk.directives();
        until(&mut directives, Activity::Work).await;
        let _hangs = Hangs::instead_of(place.meminfo());
        let _work = begin(&presence.desk);
        presence.desk.want(wanted.as_bytes());
        let directive = until(&mut directives, Activity::Rest).await;
        assert!(directive.reason.starts_with(reason), "{wanted}: {}", directive.reason);
    }
}

/// A device that sysfs has not described yet hangs whoever asks for its name.
#[tokio::test]
#[ignore = "nightly: waits for deadlines of probes"]
async fn nothing_begins_while_the_watch_of_input_hangs() {
    let place = Place::new();
    let presence = Presence::start(place.settings(), &place.state(), Start::Fresh).expect("it starts");
    let mut directives = presence.desk.directives();
    until(&mut directives, Activity::Work).await;
    let pause = presence.desk.pause(1000, "1h".parse().expect("a pause")).expect("it may");
    until(&mut directives, Activity::Rest).await;
    drop(pause);
    let described = place.dir.path().join("sys/class/input/event1/device");
    fs::create_dir_all(&described).expect("made");
    fs::write(described.join("name"), "A mouse\n").expect("written");
    let hangs = Hangs::instead_of(described.join("name"));
    let mouse = place.dir.path().join("dev/input/event1");
    pipe(&mouse);
    // Without its other end it would be unplugged with every look, which is somebody.
    let _mouse = File::options().read(true).write(true).open(mouse).expect("its other end");
    let hung = "evdev: not heard of for more than 10 s";
    let explains = async {
        while !presence.desk.view(|_, state, _, _| state.objections.iter().any(|one| one.text.contains(hung))) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(Duration::from_secs(30), explains).await.expect("in time");
    presence.desk.resume(pause::Caller { number: 1000, is_administrator: false }).expect("it is theirs");
    let unknown = directives.wait_for(|directive| directive.reason.starts_with("no source can tell"));
    timeout(Duration::from_secs(20), unknown).await.expect("in time").expect("it looks");
    drop(hangs);
    until(&mut directives, Activity::Work).await;
}

#[tokio::test]
async fn whoever_types_does_not_have_all_processes_looked_through_with_every_key() {
    let mut place = Place::new();
    let presence = Presence::start(place.settings(), &place.state(), Start::Fresh).expect("it starts");
    let desk = &presence.desk;
    let mut probed = std::collections::BTreeSet::new();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..30 {
        place.press_a_key();
        tokio::time::sleep(Duration::from_millis(50)).await;
        desk.view(|_, _, signals, _| {
            let signals = signals.expect("it has looked");
            probed.insert(signals.memory.at);
            seen.insert(signals.input[0].says.as_ref().expect("it looks").last);
        });
    }
    assert!(probed.len() <= 2, "{probed:?}");
    assert!(seen.len() > 5, "{seen:?}");
}

#[tokio::test]
async fn whoever_is_back_does_not_wait_for_a_disk_that_hangs() {
    let mut place = Place::new();
    let presence = Presence::start(place.settings(), &place.state(), Start::Fresh).expect("it starts");
    let mut directives = presence.desk.directives();
    until(&mut directives, Activity::Work).await;
    let _hangs = Hangs::instead_of(place.state().join("history"));
    for _ in 0..2 {
        place.press_a_key();
        until(&mut directives, Activity::Rest).await;
        presence.desk.yielded(Duration::from_millis(7));
        until(&mut directives, Activity::Work).await;
    }
    let unkept = presence.desk.pause(1000, "1h".parse().expect("a pause")).expect("it may");
    let directive = until(&mut directives, Activity::Rest).await;
    assert!(directive.reason.starts_with("paused by its owner"), "{}", directive.reason);
    assert!(timeout(Duration::from_millis(50), unkept).await.is_err(), "the disk hangs");
    assert_eq!(presence.desk.view(|_, _, _, history| history.yields().map(|yields| yields.count)), Some(2));
}

#[tokio::test]
async fn a_process_ends_for_another_that_begins_with_as_many_cores_as_the_farm_wants() {
    let place = Place::new();
    let begin = || {
        let mut settings = place.settings();
        let used = cores::begin(&mut settings, 4, &place.state());
        (used, Presence::start(settings, &place.state(), Start::Fresh).expect("it starts"))
    };
    let says = |desk: &Desk| {
        let settings = desk.settings();
        let said = settings.iter().find(|setting| setting.name == "cores").expect("it is there");
        (said.value.clone(), said.by, said.refused.clone())
    };
    let ends = async |presence: &Presence| {
        timeout(Duration::from_secs(20), presence.desk.is_to_start_anew()).await.expect("in time");
    };
    let (used, presence) = begin();
    assert_eq!((used, says(&presence.desk)), (4, ("4".to_owned(), wishes::By::Default, String::new())));
    presence.desk.want(br#"{"cores": 2, "start_after": 60}"#);
    assert_eq!(says(&presence.desk).2, "2 from its next start on");
    ends(&presence).await;
    drop(presence);

    // It hears the same again, which is no reason to end; and then that nobody wants anything.
    let (used, presence) = begin();
    assert_eq!((used, says(&presence.desk)), (2, ("2".to_owned(), wishes::By::Farm, String::new())));
    presence.desk.want(br#"{"cores": 2, "start_after": 60}"#);
    while !presence.desk.0.disk.flush() {}
    assert!(!presence.desk.0.anew.is_cancelled());
    presence.desk.want(b"");
    ends(&presence).await;
    drop(presence);
    assert_eq!(begin().0, 4);

    // What cannot be kept ends nobody.
    fs::create_dir(place.state().join("cores")).expect("made");
    let (_, presence) = begin();
    presence.desk.want(br#"{"cores": 2}"#);
    while !presence.desk.0.disk.flush() {}
    assert!(!presence.desk.0.anew.is_cancelled());
}

#[test]
fn it_looks_closely_only_while_it_works() {
    let place = Place::new();
    let presence = Presence::start(place.settings(), &place.state(), Start::Fresh).expect("it starts");
    let mut signals = presence.desk.view(|_, _, signals, _| signals.cloned()).expect("it has looked");
    assert_eq!((rhythm(false, Some(&signals)), rhythm(true, Some(&signals))), (LOOK_AT_LATEST, LOOK_AT_WORK_EVERY));
    signals.input[0].says = signals.input[0].says.clone().map(|input| Input { untold: true, ..input });
    assert_eq!((rhythm(false, Some(&signals)), rhythm(true, Some(&signals))), (LOOK_AT_LATEST, LOOK_CLOSELY_EVERY));

    let mut computes = Computes::default();
    let at = Duration::from_secs;
    assert!(!computes.is_busy(at(100)));
    let checkout = Arc::new(Checkout::new(pcfarm_proto::v1::Checkout::default()));
    (computes.held, computes.last) = (vec![(at(100), Arc::downgrade(&checkout))], Some(at(100)));
    assert!(computes.is_busy(at(200)));
    drop(checkout);
    assert!(computes.is_busy(at(104)), "the next may follow at once");
    assert!(!computes.is_busy(at(105)));
}

#[test]
fn hours_and_a_drain_are_explained_with_their_source_and_age() {
    let place = Place::new();
    let mut settings = place.settings();
    settings.policy.hours = hours::Hours(vec!["mon-sun 0:00-24:00".parse().expect("hours")]);
    let presence = Presence::start(settings, &place.state(), Start::Fresh).expect("it starts");
    let says = |signal: &str| {
        let explanation = Explanation::of(&presence.desk);
        let found = explanation.signals.into_iter().find(|line| line.signal == signal);
        (found.map(|line| (line.source, line.says, line.age_seconds)), explanation.reasons)
    };
    let (hours, _) = says("hours");
    let (source, within, _) = hours.expect("they are there");
    assert_eq!(source, "clock on the wall");
    assert!(within.starts_with("it is ") && within.ends_with(", which is within its hours"), "{within}");
    assert_eq!(says("drain").0, None);
    presence.desk.drained(Some("new memory"));
    let (drain, reasons) = says("drain");
    let (source, says_so, age) = drain.expect("it is there");
    assert_eq!((source.as_str(), says_so.as_str()), ("the farm", "new memory"));
    assert!((0.0..20.0).contains(&age), "{age}");
    assert_eq!(reasons.last().map(String::as_str), Some("the farm has it take no more: new memory"));
    presence.desk.drained(None);
    assert_eq!(says("drain").0, None);
}

#[test]
fn an_agent_that_does_not_stop_its_work_has_no_pulse() {
    let at = Duration::from_secs;
    let state = |activity| {
        let mut state = State::new(at(100));
        state.activity = activity;
        state
    };
    for (activity, computes, now, expected) in [
        (Activity::Work, true, 200, true),
        (Activity::Finish, true, 200, true),
        (Activity::Rest, false, 200, true),
        (Activity::Rest, true, 101, true),
        (Activity::Rest, true, 102, false),
        (Activity::Freeze, true, 102, false),
    ] {
        assert_eq!(is_obeyed(&state(activity), computes, at(now)), expected, "{activity:?} {computes} {now}");
    }
}

/// No loop stops this checkout, as if the loop hung.
#[tokio::test]
async fn programs_hear_nothing_of_an_agent_whose_loop_hangs() {
    let mut place = Place::new();
    let presence = Presence::start(place.settings(), &place.state(), Start::Fresh).expect("it starts");
    let mut directives = presence.desk.directives();
    until(&mut directives, Activity::Work).await;
    let checkout = begin(&presence.desk);
    assert!(checkout.is_watched());
    let deaf = async {
        while checkout.is_watched() {
            place.press_a_key();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(Duration::from_secs(30), deaf).await.expect("in time");
    checkout.cancel();
    let obeyed = async {
        while !checkout.is_watched() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(Duration::from_secs(30), obeyed).await.expect("in time");
}

/// As after SIGSTOP: all answers are old, and all sources are there.
#[tokio::test]
async fn a_look_after_a_stop_waits_for_answers() {
    let place = Place::new();
    let mut settings = place.settings();
    settings.policy.start_after = Duration::from_millis(100);
    let presence = Presence::start(settings, &place.state(), Start::Fresh).expect("it starts");
    let desk = presence.desk.clone();
    until(&mut desk.directives(), Activity::Work).await;
    let shared = Arc::clone(&desk.0);
    drop(presence);
    let mut sources = Sources::start(place.settings(), &shared.known().policy.clone(), || {}).expect("it starts");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!shared.stood_still());
    // A source counts its own beginning as input.
    shared.known().state.since = clock::now();
    shared.known().looked = clock::awake().saturating_sub(ANSWER_LIMIT * 2);
    assert!(shared.stood_still());
    sources.make_old(ANSWER_LIMIT * 2);
    shared.look(&mut sources);
    let known = shared.known();
    assert_eq!(known.state.activity, Activity::Work, "{:?}", known.state.objections);
}

#[test]
fn explain_names_the_gpus_that_the_last_look_found() {
    let place = Place::new();
    let presence = Presence::start(place.settings(), &place.state(), Start::Fresh).expect("it starts");
    presence.desk.introduce(About {
        identity: String::new(),
        hostname: String::new(),
        version: String::new(),
        servers: Vec::new(),
        gpu: true,
        gpus: Vec::new(),
        session: None,
    });
    let gpus = || presence.desk.about().expect("it was introduced").gpus;
    assert!(gpus().is_empty(), "asking looks at nothing");
    presence.desk.found_gpus(vec!["amd card: told to the farm".to_owned()]);
    assert_eq!(gpus(), ["amd card: told to the farm"]);
}

#[tokio::test]
async fn a_sleep_of_the_system_holds_while_a_person_is_present() {
    let mut place = Place::new();
    let presence = Presence::start(place.settings(), &place.state(), Start::Fresh).expect("it starts");
    let desk = &presence.desk;
    let mut directives = desk.directives();
    until(&mut directives, Activity::Work).await;
    desk.system_sleeps("asleep: its system goes to sleep");
    let told = directives.borrow().clone();
    assert_eq!((told.activity, told.asleep, &*told.reason), (Activity::Rest, true, "asleep: its system goes to sleep"));
    let since = desk.view(|_, state, _, _| state.since);
    place.press_a_key();
    // Its person comes and leaves again.
    let has_worked_again = || desk.view(|_, state, _, _| state.activity == Activity::Work && state.since > since);
    let reached = async {
        while !has_worked_again() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(20), reached).await.expect("in time");
    // A sleep of the agent's own ends.
    desk.wakes();
    assert!(directives.borrow().asleep);
    desk.system_wakes();
    assert!(!until(&mut directives, Activity::Work).await.asleep);
    // A person keeps the PC awake that the agent puts to sleep.
    assert!(desk.falls_asleep("asleep: it had nothing to do"));
    assert!(directives.borrow().asleep);
    place.press_a_key();
    let awake = timeout(Duration::from_secs(20), directives.wait_for(|directive| !directive.asleep)).await;
    awake.expect("in time").expect("it looks");
}
