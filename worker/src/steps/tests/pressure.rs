//! Dependencies that are slow, out or full, and what goes on beside them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::{Latch, ended, ones, rig, until, until_empty};
use crate::Agent;
use crate::builtin::Echo;
use crate::controller::{Controller, Problem};
use crate::steps::{Dependency, Next, Readiness, Step, StepController, Steps, Wait};
use crate::trial::Rig;

/// Asks a database that answers when the test says so.
struct Asking {
    database: Dependency,
    latch: Latch,
    /// Its first step is a computation.
    thinks_first: bool,
}

const THINK: Step<u32> = Step::named("think");
const ASK: Step<u32> = Step::named("ask");

impl StepController for Asking {
    const NAME: &'static str = "asking";
    type Payload = u32;
    type Solution = u32;

    fn steps(&self, steps: &mut Steps<Self>) {
        if self.thinks_first {
            steps.first(THINK).then(ASK).run(|_, _, n| Ok(Next::step(ASK, n)));
            steps.step(ASK).uses(&self.database).run(Self::ask);
        } else {
            steps.first(ASK).uses(&self.database).run(Self::ask);
        }
    }
}

impl Asking {
    fn ask(&self, _: &Problem<'_, ()>, n: u32) -> anyhow::Result<Next<u32>> {
        self.latch.pass();
        Ok(Next::solved(n))
    }
}

#[test]
fn the_cores_go_on_while_a_dependency_is_out() {
    for thinks_first in [false, true] {
        let latch = Latch::default();
        let database = Dependency::bounded("database", 3).queue(5);
        let asking = Asking { database, latch: latch.clone(), thinks_first };
        let mut rig = rig(Agent::new().controller(Echo).steps(asking), 2);
        let first = rig.check_out("asking", ones(100));
        latch.until_waiting(3);
        // Not one of those has been answered, and none will be before this is done.
        let second = rig.check_out("echo", ones(5_000));
        assert!(ended(&mut rig, 5_000).iter().all(|ended| ended.checkout == second), "thinks first: {thinks_first}");
        let third = rig.check_out("asking", ones(10));
        let fourth = rig.check_out("echo", ones(1_000));
        assert!(ended(&mut rig, 1_000).iter().all(|ended| ended.checkout == fourth));
        // What there is no room for waits in its checkout.
        until(|| rig.pools()[0].queued == 5);
        let pool = &rig.pools()[0];
        assert_eq!((pool.busy, pool.taken, pool.places, pool.most_threads), (3, 8, 8, 3));
        assert_eq!((rig.untaken(first), rig.untaken(third)), (92, 10));
        assert_eq!(rig.held_up("asking").as_deref(), Some("asking waits for database, which serves 3 at a time"));
        assert_eq!(rig.held_up("echo"), None);
        latch.open();
        let rest = ended(&mut rig, 110);
        assert_eq!(rest.iter().filter(|ended| ended.checkout == first).count(), 100);
        assert!(rest.iter().all(|ended| ended.outcome == Ok(serde_json::json!(1))));
        assert_eq!(latch.most_waiting(), 3, "never more than it serves");
        until_empty(&rig);
    }
}

#[test]
fn what_is_revoked_is_not_begun_and_leaves_its_room_to_others() {
    let latch = Latch::default();
    let asking =
        Asking { database: Dependency::bounded("database", 2).queue(4), latch: latch.clone(), thinks_first: false };
    let mut rig = rig(Agent::new().steps(asking), 1);
    let revoked = rig.check_out("asking", ones(50));
    latch.until_waiting(2);
    rig.cancel(revoked);
    // The two that are deaf keep their threads, and their places.
    let next = rig.check_out("asking", ones(3));
    until(|| rig.pools()[0].taken == 5);
    let pool = &rig.pools()[0];
    assert_eq!((pool.busy, pool.queued), (2, 3));
    latch.open();
    assert!(ended(&mut rig, 3).iter().all(|ended| ended.checkout == next));
    until_empty(&rig);
    assert_eq!(rig.pools()[0].served, 2 + 3, "and nothing else was run");
    assert!(rig.try_next().is_none());
}

/// Uses something that may be out, and then waits without a thread.
struct Patient {
    service: Dependency,
    ready: Readiness,
    is_up: Arc<AtomicBool>,
    tries: Arc<AtomicUsize>,
    at_most: Option<Duration>,
}

impl StepController for Patient {
    const NAME: &'static str = "patient";
    type Payload = u32;
    type Solution = u32;

    fn steps(&self, steps: &mut Steps<Self>) {
        steps.first(ASK).uses(&self.service).run(|patient, _, n| {
            patient.tries.fetch_add(1, Ordering::SeqCst);
            if patient.is_up.load(Ordering::SeqCst) {
                return Ok(Next::solved(n));
            }
            let wait = Wait::until(&patient.ready);
            Ok(Next::wait(patient.at_most.map_or(wait.clone(), |time| wait.at_most(time)), ASK, n))
        });
    }
}

fn patient(at_most: Option<Duration>) -> (Patient, Readiness, Arc<AtomicBool>, Arc<AtomicUsize>) {
    let (ready, is_up, tries) = (Readiness::new(), Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let service = Dependency::bounded("service", 2).queue(10);
    let patient =
        Patient { service, ready: ready.clone(), is_up: Arc::clone(&is_up), tries: Arc::clone(&tries), at_most };
    (patient, ready, is_up, tries)
}

#[test]
fn a_step_waits_without_a_thread_until_its_dependency_is_ready() {
    let (patient, ready, is_up, tries) = patient(None);
    let mut rig = rig(Agent::new().controller(Echo).steps(patient), 1);
    let checkout = rig.check_out("patient", ones(30));
    until(|| rig.waiting() == 12 && rig.pools()[0].busy == 0);
    assert_eq!((tries.load(Ordering::SeqCst), rig.untaken(checkout), ready.waiting()), (12, 18, 12));
    rig.check_out("echo", ones(100));
    ended(&mut rig, 100);
    is_up.store(true, Ordering::SeqCst);
    ready.set_ready();
    assert!(ended(&mut rig, 30).iter().all(|ended| ended.checkout == checkout && ended.outcome.is_ok()));
    assert_eq!(tries.load(Ordering::SeqCst), 30 + 12, "each that waited was tried once more");
    until_empty(&rig);
}

#[test]
fn a_wait_ends_by_itself_if_it_may() {
    let (patient, ready, is_up, tries) = patient(Some(Duration::from_millis(1)));
    let mut rig = rig(Agent::new().steps(patient), 1);
    rig.check_out("patient", ones(3));
    until(|| tries.load(Ordering::SeqCst) > 30);
    is_up.store(true, Ordering::SeqCst);
    assert!(ended(&mut rig, 3).iter().all(|ended| ended.outcome.is_ok()));
    until_empty(&rig);
    assert_eq!(ready.waiting(), 0, "nobody is told in vain");
}

#[test]
fn a_wait_is_bounded_by_the_time_limit() {
    let (patient, ready, _, _) = patient(None);
    let mut rig = rig(Agent::new().steps(patient), 1);
    rig.check_out_within("patient", ones(20), Some(Duration::from_millis(20)));
    for ended in ended(&mut rig, 20) {
        assert_eq!(ended.outcome, Err("it waited for step ask until its time limit of 20ms was over".to_owned()));
    }
    until_empty(&rig);
    assert_eq!(ready.waiting(), 0);
}

#[test]
fn those_who_wait_are_dropped_when_their_checkout_is_revoked() {
    let (patient, ready, is_up, tries) = patient(None);
    let mut rig = rig(Agent::new().steps(patient), 1);
    let revoked = rig.check_out("patient", ones(30));
    until(|| rig.waiting() == 12);
    rig.cancel(revoked);
    until_empty(&rig);
    assert_eq!((ready.waiting(), tries.load(Ordering::SeqCst)), (0, 12));
    is_up.store(true, Ordering::SeqCst);
    ready.set_ready();
    let next = rig.check_out("patient", ones(5));
    assert!(ended(&mut rig, 5).iter().all(|ended| ended.checkout == next));
    assert_eq!(tries.load(Ordering::SeqCst), 12 + 5);
}

/// Nobody has said that it is out again, as one forgets to.
#[test]
fn who_waits_for_what_is_ready_pauses_and_keeps_its_time_limit() {
    const LIMIT: Duration = Duration::from_millis(500);
    let (patient, ready, _, tries) = patient(None);
    ready.set_ready();
    let mut rig = rig(Agent::new().steps(patient), 1);
    rig.check_out_within("patient", ones(2), Some(LIMIT));
    for ended in ended(&mut rig, 2) {
        assert_eq!(ended.outcome, Err(format!("it waited for step ask until its time limit of {LIMIT:?} was over")));
    }
    // At once, and after 5, 10, 20, 40, 80, 160 ms.
    let tries = tries.load(Ordering::SeqCst);
    assert!((4..=2 * 9).contains(&tries), "{tries}");
    until_empty(&rig);
}

#[test]
fn who_waits_for_what_is_ready_goes_on_when_it_is_so() {
    let (patient, ready, is_up, tries) = patient(Some(Duration::from_secs(3_600)));
    ready.set_ready();
    let mut rig = rig(Agent::new().steps(patient), 1);
    rig.check_out("patient", ones(3));
    until(|| tries.load(Ordering::SeqCst) >= 3 * 3);
    is_up.store(true, Ordering::SeqCst);
    assert!(ended(&mut rig, 3).iter().all(|ended| ended.outcome.is_ok()));
    until_empty(&rig);
}

/// Waits for what never comes, once it has passed the latch.
struct Late {
    service: Dependency,
    latch: Latch,
    never: Readiness,
}

impl StepController for Late {
    const NAME: &'static str = "late";
    type Payload = u32;
    type Solution = u32;

    fn steps(&self, steps: &mut Steps<Self>) {
        steps.first(ASK).uses(&self.service).run(|late, _, n| {
            late.latch.pass();
            Ok(Next::wait(Wait::until(&late.never), ASK, n))
        });
    }
}

#[test]
fn a_step_that_waits_after_its_checkout_was_revoked_is_dropped() {
    let (latch, never) = (Latch::default(), Readiness::new());
    let late = Late { service: Dependency::bounded("service", 2), latch: latch.clone(), never: never.clone() };
    let mut rig = rig(Agent::new().steps(late), 1);
    let revoked = rig.check_out("late", ones(2));
    latch.until_waiting(2);
    rig.cancel(revoked);
    latch.open();
    until_empty(&rig);
    assert_eq!(never.waiting(), 0);
}

#[test]
fn who_is_out_again_is_waited_for_again() {
    let ready = Readiness::new();
    ready.set_ready();
    assert!(ready.is_ready());
    ready.set_out();
    assert!(!ready.is_ready());
}

#[test]
fn an_agent_that_ends_waits_for_nobody() {
    let latch = Latch::default();
    let database = Dependency::bounded("database", 2);
    let (patient, ..) = patient(None);
    let agent = Agent::new().steps(Asking { database, latch: latch.clone(), thinks_first: false }).steps(patient);
    let mut rig = rig(agent, 1);
    rig.check_out("asking", ones(50));
    rig.check_out("patient", ones(50));
    latch.until_waiting(2);
    until(|| rig.waiting() == 12);
    drop(rig);
    // Those who hang return to nobody.
    latch.open();
}

/// Computes until it is told to stop.
struct Busy(Arc<AtomicBool>);

impl Controller for Busy {
    const NAME: &'static str = "busy";
    type Payload = u32;
    type Solution = u32;

    fn solve(&self, problem: &Problem<'_, u32>) -> anyhow::Result<u32> {
        while !self.0.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
        Ok(*problem.payload())
    }
}

/// However little of the cores pools may use, and though threads wait for that: nothing is forgotten.
#[test]
fn a_pool_that_is_held_back_serves_all_the_same() {
    let (latch, enough) = (Latch::default(), Arc::new(AtomicBool::new(false)));
    latch.open();
    let asking = Asking { database: Dependency::bounded("database", 4), latch, thinks_first: false };
    let agent = Agent::new().controller(Busy(Arc::clone(&enough))).steps(asking).pools_share(0.001);
    let mut rig = rig(agent, 1);
    let busy = rig.check_out("busy", ones(1));
    until(|| rig.untaken(busy) == 0);
    let asked = rig.check_out("asking", ones(60));
    assert!(ended(&mut rig, 60).iter().all(|ended| ended.checkout == asked));
    enough.store(true, Ordering::Relaxed);
    assert_eq!(rig.next().checkout, busy);
    until_empty(&rig);
}

/// One pool is behind another one, and is slow.
struct Behind {
    front: Dependency,
    back: Dependency,
    latch: Latch,
}

const FRONT: Step<u32> = Step::named("front");
const BACK: Step<u32> = Step::named("back");

impl StepController for Behind {
    const NAME: &'static str = "behind";
    type Payload = u32;
    type Solution = u32;

    fn steps(&self, steps: &mut Steps<Self>) {
        steps.first(FRONT).uses(&self.front).then(BACK).run(|_, _, n| Ok(Next::step(BACK, n)));
        steps.step(BACK).uses(&self.back).run(|behind, _, n| {
            behind.latch.pass();
            Ok(Next::solved(n))
        });
    }
}

/// What stands behind a slow dependency takes no room before others.
#[test]
fn a_bottleneck_behind_a_pool_leaves_that_pool_to_others() {
    let (behind, open) = (Latch::default(), Latch::default());
    open.open();
    let front = Dependency::bounded("front", 2).queue(2);
    let back = Dependency::bounded("back", 1).queue(50);
    let asking = Asking { database: front.clone(), latch: open, thinks_first: false };
    let mut rig = rig(Agent::new().steps(Behind { front, back, latch: behind.clone() }).steps(asking), 1);
    let slow = rig.check_out("behind", ones(200));
    until(|| rig.pools().iter().any(|pool| pool.name == "back" && pool.taken == 51));
    let quick = rig.check_out("asking", ones(500));
    assert!(ended(&mut rig, 500).iter().all(|ended| ended.checkout == quick));
    assert_eq!(rig.held_up("behind").as_deref(), Some("behind waits for back, which serves 1 at a time"));
    behind.open();
    assert!(ended(&mut rig, 200).iter().all(|ended| ended.checkout == slow));
    until_empty(&rig);
}

/// A pool that may grow does not at once: what it has serves first.
#[test]
fn a_pool_begins_with_its_least_size() {
    let latch = Latch::default();
    let database = Dependency::bounded("database", 2).up_to(10).queue(5);
    let mut rig = rig(Agent::new().steps(Asking { database, latch: latch.clone(), thinks_first: false }), 1);
    rig.check_out("asking", ones(30));
    latch.until_waiting(2);
    assert_eq!(rig.pools()[0].places, 15);
    latch.open();
    ended(&mut rig, 30);
}

/// Serves so many at a time, each for a few milliseconds.
struct Serving {
    database: Dependency,
    places: Arc<(Mutex<usize>, Condvar)>,
}

impl StepController for Serving {
    const NAME: &'static str = "serving";
    type Payload = u32;
    type Solution = u32;

    fn steps(&self, steps: &mut Steps<Self>) {
        steps.first(ASK).uses(&self.database).run(|serving, _, n| {
            let (places, freed) = &*serving.places;
            let full = places.lock().expect("no panic here");
            *freed.wait_while(full, |free| *free == 0).expect("no panic here") -= 1;
            std::thread::sleep(Duration::from_millis(5));
            *places.lock().expect("no panic here") += 1;
            freed.notify_one();
            Ok(Next::solved(n))
        });
    }
}

/// With work for as long as is measured.
fn serving(places: usize) -> Rig {
    let database = Dependency::bounded("database", 2).up_to(10).queue(20);
    let serving = Serving { database, places: Arc::new((Mutex::new(places), Condvar::new())) };
    let mut rig = rig(Agent::new().steps(serving), 1);
    rig.check_out("serving", ones(1_000_000));
    rig
}

#[test]
fn a_pool_grows_while_that_helps() {
    let mut rig = serving(10);
    while rig.pools()[0].most_threads < 8 {
        rig.next();
    }
}

#[test]
fn a_pool_that_grew_in_vain_goes_back() {
    let mut rig = serving(2);
    while rig.pools()[0].most_threads < 3 {
        rig.next();
    }
    while rig.pools()[0].size > 2 {
        rig.next();
    }
}
