//! The policy as a table, and what must hold whatever the signals say.

use proptest::prelude::*;

use super::super::hours::LocalTime;
use super::super::signals::{Input, Noises};
use super::*;

const MINUTE: Duration = Duration::from_secs(60);

/// Long after the machine's start.
const NOW: Moment = Duration::from_secs(1_000_000);

fn policy() -> Policy {
    Policy {
        unattended: false,
        start_after: 15 * MINUTE,
        resume_after: 5 * MINUTE,
        give_back_after: 10 * MINUTE,
        on_return: OnReturn::GiveBack,
        load: Some(0.3),
        free_memory: Some(0.1),
        memory_limit: Some(8 << 30),
        on_battery: false,
        on_metered: false,
        beside_full_screen: false,
        hours: Hours::default(),
        farm_hours: Hours::default(),
        programs: vec!["game".to_owned()],
        remote: remote::Rules::of_a_desk(),
        inhibitors: inhibitors::Rules::of_a_desk(),
    }
}

fn seen(source: &'static str, at: Moment, idle: Duration) -> Reading<Input> {
    Reading::new(
        source,
        at,
        Ok(Input { last: at.saturating_sub(idle), proves: Proves::Absence, bump: None, untold: false, at_seat: false }),
    )
}

/// Nobody has been there for an hour, and nothing else is going on.
fn quiet(now: Moment) -> Signals {
    let memory = Memory { total_bytes: 16 << 30, available_bytes: 12 << 30, own_bytes: 1 << 30 };
    Signals {
        input: vec![seen("evdev", now, 60 * MINUTE)],
        noises: Noises::default(),
        notes: Vec::new(),
        woke: None,
        load: Reading::new("proc", now, Ok(0.05)),
        memory: Reading::new("proc", now, Ok(memory)),
        power: Reading::new("power_supply", now, Ok(Power::Mains)),
        programs: Reading::new("proc", now, Ok(Vec::new())),
        full_screen: vec![Reading::new("x11", now, Ok(false))],
        network: Reading::new("network", now, Ok(Network::Untold("unknown".to_owned()))),
        remote: Reading::new("logind", now, Ok(Remote::default())),
        inhibitors: Reading::new("logind", now, Ok(Vec::new())),
        told_inhibitors: Vec::new(),
        paused: None,
        time: LocalTime { weekday: 2, minute: 12 * 60 },
    }
}

fn working(since: Moment) -> State {
    State { activity: Activity::Work, since, objections: Vec::new(), interrupted: None }
}

fn kinds(state: &State) -> Vec<Kind> {
    state.objections.iter().map(|objection| objection.kind).collect()
}

/// One change to quiet signals, and what it speaks to: an agent that rests, and one that works.
#[test]
fn what_speaks_against_work() {
    type Change = fn(&mut Policy, &mut Signals);
    let table: &[(&str, Change, &[Kind], &[Kind])] = &[
        ("nothing", |_, _| {}, &[], &[]),
        ("14 minutes", |_, s| s.input = vec![seen("evdev", NOW, 14 * MINUTE)], &[Kind::Person], &[Kind::Person]),
        ("15 minutes", |_, s| s.input = vec![seen("evdev", NOW, 15 * MINUTE)], &[], &[]),
        ("the latest of all", |_, s| s.input.push(seen("x11", NOW, MINUTE)), &[Kind::Person], &[Kind::Person]),
        ("no source", |_, s| s.input.clear(), &[Kind::Unknown], &[Kind::Unknown]),
        ("a broken source", |_, s| s.input[0].says = Err("no devices".to_owned()), &[Kind::Unknown], &[Kind::Unknown]),
        ("an old source", |_, s| s.input[0].at = NOW - 3 * MINUTE, &[Kind::Unknown], &[Kind::Unknown]),
        ("an answer of 10 s ago", |_, s| s.input[0].at = NOW - ANSWER_LIMIT, &[], &[]),
        (
            "an answer of 11 s ago",
            |_, s| s.input[0].at = NOW - Duration::from_secs(11),
            &[Kind::Unknown],
            &[Kind::Unknown],
        ),
        (
            "an answer of 11 s ago, and another source",
            |_, s| {
                s.input[0].at = NOW - Duration::from_secs(11);
                s.input.push(seen("x11", NOW, 60 * MINUTE));
            },
            &[Kind::Unknown],
            &[Kind::Unknown],
        ),
        (
            "a source that does not see everybody, silent beside another",
            |_, s| {
                let mut silent = seen("x11 of user 7", NOW - MINUTE, 60 * MINUTE);
                silent.says = silent.says.map(|input| Input { proves: Proves::Presence, ..input });
                s.input.push(silent);
            },
            &[Kind::Unknown],
            &[Kind::Unknown],
        ),
        (
            "a broken source and another",
            |_, s| {
                s.input[0].says = Err("no devices".to_owned());
                s.input.push(seen("x11", NOW, 60 * MINUTE));
            },
            &[],
            &[],
        ),
        (
            "a source that does not see everybody",
            |_, s| s.input[0].says = s.input[0].says.clone().map(|input| Input { proves: Proves::Presence, ..input }),
            &[Kind::Unknown],
            &[Kind::Unknown],
        ),
        ("no source where nobody is", |p, s| (p.unattended, s.input) = (true, Vec::new()), &[], &[]),
        (
            "input where nobody is",
            |p, s| (p.unattended, s.input) = (true, vec![seen("x", NOW, Duration::ZERO)]),
            &[],
            &[],
        ),
        ("it woke", |_, s| s.woke = Some(NOW - MINUTE), &[Kind::Person], &[Kind::Person]),
        (
            "a bumped desk, as others see it",
            |_, s| {
                s.input[0].says = s.input[0].says.clone().map(|input| Input { bump: Some(NOW - MINUTE), ..input });
                s.input.push(seen("x11", NOW, MINUTE - Duration::from_millis(100)));
            },
            &[],
            &[],
        ),
        (
            "a bumped desk, and somebody a little later",
            |_, s| {
                s.input[0].says = s.input[0].says.clone().map(|input| Input { bump: Some(NOW - MINUTE), ..input });
                s.input.push(seen("x11", NOW, MINUTE - Duration::from_secs(2)));
            },
            &[Kind::Person],
            &[Kind::Person],
        ),
        ("a load of 0.29", |_, s| s.load.says = Ok(0.29), &[], &[]),
        ("a load of 0.3", |_, s| s.load.says = Ok(0.3), &[Kind::Load], &[]),
        ("a load of 0.6", |_, s| s.load.says = Ok(0.6), &[Kind::Load], &[Kind::Load]),
        ("a load that is no number", |_, s| s.load.says = Ok(f64::NAN), &[Kind::Load], &[Kind::Load]),
        ("an unknown load", |_, s| s.load.says = Err("gone".to_owned()), &[Kind::Load], &[Kind::Load]),
        ("an old load", |_, s| s.load.at = NOW - 2 * MINUTE, &[Kind::Load], &[Kind::Load]),
        ("any load", |p, s| (p.load, s.load.says) = (None, Err("gone".to_owned())), &[], &[]),
        ("12 % of memory", |_, s| memory(s).available_bytes = 2 << 30, &[Kind::Memory], &[]),
        ("6 % of memory", |_, s| memory(s).available_bytes = 1 << 30, &[Kind::Memory], &[Kind::Memory]),
        (
            "no memory at all",
            |_, s| (memory(s).total_bytes, memory(s).available_bytes) = (0, 0),
            &[Kind::Memory],
            &[Kind::Memory],
        ),
        ("unknown memory", |_, s| s.memory.says = Err("gone".to_owned()), &[Kind::Memory], &[Kind::Memory]),
        ("too much of its own", |_, s| memory(s).own_bytes = 9 << 30, &[Kind::Memory], &[Kind::Memory]),
        ("battery", |_, s| s.power.says = Ok(Power::Battery), &[Kind::Battery], &[Kind::Battery]),
        ("perhaps on battery", |_, s| s.power.says = Err("gone".to_owned()), &[Kind::Battery], &[Kind::Battery]),
        ("battery, allowed", |p, s| (p.on_battery, s.power.says) = (true, Ok(Power::Battery)), &[], &[]),
        ("metered", |_, s| s.network.says = Ok(Network::Metered), &[Kind::Metered], &[Kind::Metered]),
        ("not metered", |_, s| s.network.says = Ok(Network::Unmetered), &[], &[]),
        ("perhaps metered", |_, s| s.network.says = Err("no answer yet".to_owned()), &[Kind::Metered], &[]),
        ("metered, allowed", |p, s| (p.on_metered, s.network.says) = (true, Ok(Network::Metered)), &[], &[]),
        ("full screen", |_, s| s.full_screen[0].says = Ok(true), &[Kind::FullScreen], &[Kind::FullScreen]),
        ("full screen, nobody can tell", |_, s| s.full_screen.clear(), &[], &[]),
        ("a program", |_, s| s.programs.says = Ok(vec!["game".to_owned()]), &[Kind::Program], &[Kind::Program]),
        ("perhaps a program", |_, s| s.programs.says = Err("gone".to_owned()), &[Kind::Program], &[Kind::Program]),
        ("no list", |p, s| (p.programs, s.programs.says) = (Vec::new(), Err("gone".to_owned())), &[], &[]),
        ("hours", |p, _| p.hours = night(), &[Kind::Hours], &[Kind::Hours]),
        ("a pause", |_, s| s.paused = Some("until tomorrow".to_owned()), &[Kind::Paused], &[Kind::Paused]),
        (
            "a pause on battery",
            |_, s| (s.paused, s.power.says) = (Some("until tomorrow".to_owned()), Ok(Power::Battery)),
            &[Kind::Paused, Kind::Battery],
            &[Kind::Paused, Kind::Battery],
        ),
    ];
    for (what, change, at_rest, at_work) in table {
        let (mut policy, mut signals) = (policy(), quiet(NOW));
        change(&mut policy, &mut signals);
        let rests = decide(&policy, &signals, &State::new(NOW - MINUTE), NOW);
        assert_eq!(kinds(&rests), *at_rest, "{what}, at rest: {}", rests.reason());
        assert_eq!(rests.activity == Activity::Work, at_rest.is_empty(), "{what}, at rest");
        let works = decide(&policy, &signals, &working(NOW - 2 * MINUTE), NOW);
        if !what.contains("14 minutes") {
            assert_eq!(kinds(&works), *at_work, "{what}, at work: {}", works.reason());
            assert_eq!(works.activity == Activity::Work, at_work.is_empty(), "{what}, at work");
        }
    }
}

fn memory(signals: &mut Signals) -> &mut Memory {
    signals.memory.says.as_mut().expect("it is known")
}

fn night() -> Hours {
    Hours(vec!["18:00-07:00".parse().expect("hours")])
}

/// What somebody does, minute by minute, and what the agent does then.
#[test]
fn an_evening_at_the_office() {
    use Activity::{Finish, Rest, Work};
    // Minutes since the person's last input, at each minute from the first.
    type Evening<'a> = &'a [(u64, u64, Activity)];
    let gives_back: Evening = &[
        (0, 0, Rest),
        (14, 14, Rest),
        (15, 15, Work),
        (60, 60, Work),
        (61, 0, Rest),
        (65, 4, Rest),
        // Five minutes later it goes on.
        (66, 5, Work),
        (70, 0, Rest),
        // It has rested for longer than ten minutes: fifteen are needed again.
        (81, 5, Rest),
        (90, 14, Rest),
        (91, 15, Work),
    ];
    let finishes: Evening = &[
        (0, 60, Work),
        (1, 0, Finish),
        (5, 4, Finish),
        (6, 5, Work),
        (7, 0, Finish),
        (16, 0, Finish),
        (17, 0, Rest),
        (22, 5, Rest),
        (32, 15, Work),
    ];
    let freezes: Vec<(u64, u64, Activity)> = finishes
        .iter()
        .map(|(minute, idle, activity)| {
            (*minute, *idle, if *activity == Finish { Activity::Freeze } else { *activity })
        })
        .collect();
    for (on_return, evening) in
        [(OnReturn::GiveBack, gives_back), (OnReturn::Finish, finishes), (OnReturn::Freeze, freezes.as_slice())]
    {
        let policy = Policy { on_return, ..policy() };
        let mut state = State::new(NOW);
        for (minute, idle, expected) in evening {
            let now = NOW + *minute as u32 * MINUTE;
            let signals = Signals { input: vec![seen("evdev", now, *idle as u32 * MINUTE)], ..quiet(now) };
            state = decide(&policy, &signals, &state, now);
            assert_eq!(state.activity, *expected, "{on_return:?} after {minute} min: {}", state.reason());
        }
    }
}

/// The owner's word and memory are given way to at once, whatever else is wanted.
#[test]
fn what_frees_nothing_is_no_answer_to_a_lack_of_memory() {
    let policy = Policy { on_return: OnReturn::Finish, ..policy() };
    for change in
        [|s: &mut Signals| memory(s).available_bytes = 0, |s: &mut Signals| s.paused = Some("for 1 h".to_owned())]
    {
        let mut signals = quiet(NOW);
        change(&mut signals);
        assert_eq!(decide(&policy, &signals, &working(NOW - MINUTE), NOW).activity, Activity::Rest);
    }
}

#[test]
fn after_hours_and_pauses_nothing_settles() {
    let mut state = working(NOW);
    let paused = Signals { paused: Some("for a minute".to_owned()), ..quiet(NOW + MINUTE) };
    state = decide(&policy(), &paused, &state, NOW + MINUTE);
    assert_eq!(kinds(&state), [Kind::Paused]);
    state = decide(&policy(), &quiet(NOW + 2 * MINUTE), &state, NOW + 2 * MINUTE);
    assert_eq!(state.activity, Activity::Work, "{}", state.reason());
    let battery = Signals {
        power: Reading::new("power_supply", NOW + 3 * MINUTE, Ok(Power::Battery)),
        ..quiet(NOW + 3 * MINUTE)
    };
    state = decide(&policy(), &battery, &state, NOW + 3 * MINUTE);
    state = decide(&policy(), &quiet(NOW + 4 * MINUTE), &state, NOW + 4 * MINUTE);
    assert_eq!(kinds(&state), [Kind::Settling]);
    state = decide(&policy(), &quiet(NOW + 8 * MINUTE), &state, NOW + 8 * MINUTE);
    assert_eq!(state.activity, Activity::Work);
}

#[test]
fn the_reason_says_who_said_so() {
    let signals = Signals { input: vec![seen("evdev", NOW, MINUTE)], ..quiet(NOW) };
    let state = decide(&policy(), &signals, &State::new(NOW), NOW);
    assert_eq!(state.reason(), "its person is here, or left less than 15 min ago (evdev)");
    let broken = Reading::new("evdev", NOW, Err("no keyboard".to_owned()));
    let signals = Signals { input: vec![broken], ..quiet(NOW) };
    let state = decide(&policy(), &signals, &State::new(NOW), NOW);
    assert_eq!(
        state.reason(),
        "no source can tell whether somebody is there (evdev: no keyboard); where nobody ever is: --unattended"
    );
}

/// A mouse that jitters by one count resets the idle time of every desktop at its seat.
#[test]
fn a_desktop_that_takes_noise_for_input_is_not_believed() {
    let second = Duration::from_secs(1);
    let helper = |idle, at_seat| {
        let mut helper = seen("x11 of user 7", NOW, idle);
        helper.says = helper.says.map(|input| Input { proves: Proves::Presence, at_seat, ..input });
        helper
    };
    type Change = fn(&mut Signals);
    let table: &[(&str, Duration, bool, Change, bool)] = &[
        ("noise", second, true, |_| {}, false),
        ("noise of a minute ago", 60 * second, true, |_| {}, false),
        ("input just after it", second, true, |s| s.noises = noises(3), false),
        ("input without noise", 5 * second, true, |s| s.noises = noises(60), true),
        ("a remote session", second, false, |_| {}, true),
        ("devices that are not all seen", second, true, |s| s.input[0].says = Err("no".to_owned()), true),
        ("a source of devices that is silent", second, true, |s| s.input[0].at = NOW - Duration::from_secs(11), true),
        ("somebody at the keyboard", second, true, |s| s.input[0] = seen("evdev", NOW, Duration::from_secs(1)), true),
    ];
    fn noises(seconds_ago: u64) -> Noises {
        let mut noises = Noises::default();
        let from = NOW - Duration::from_secs(120);
        noises.add(from, NOW - Duration::from_secs(seconds_ago) + Duration::from_secs(1));
        noises
    }
    for (what, idle, at_seat, change, expected) in table {
        let mut signals = quiet(NOW);
        signals.noises = noises(1);
        signals.input.push(helper(*idle, *at_seat));
        change(&mut signals);
        let state = decide(&policy(), &signals, &State::new(NOW - 60 * MINUTE), NOW);
        assert_eq!(!state.objections.is_empty(), *expected, "{what}: {:?}", state.objections);
    }
    let mut signals = quiet(NOW);
    signals.input.push(helper(second, true));
    assert!(!may_be_noise(&signals), "no device makes noise");
    signals.noises = noises(60);
    signals.input[0].at = NOW - 4 * second;
    assert!(may_be_noise(&signals), "the devices were not looked at since");
    signals.input[0].at = NOW;
    assert!(!may_be_noise(&signals));
    assert_eq!(touched(&signals, NOW), Some(NOW - second));
}

#[test]
fn while_it_works_old_answers_of_logind_count_for_ten_seconds() {
    let second = Duration::from_secs(1);
    for (age, works, expected) in [(10, true, false), (11, true, true), (11, false, false), (61, false, true)] {
        type Old = fn(&mut Signals, Moment);
        let olds: [Old; 2] = [|s, at| s.remote.at = at, |s, at| s.inhibitors.at = at];
        for old in olds {
            let mut signals = quiet(NOW);
            old(&mut signals, NOW - age * second);
            let mut before = State::new(NOW - 60 * MINUTE);
            before.activity = if works { Activity::Work } else { Activity::Rest };
            let state = decide(&policy(), &signals, &before, NOW);
            assert_eq!(state.weightiest() == Some(Kind::Unknown), expected, "{age} {works}");
        }
    }
}

#[test]
fn only_an_agent_without_a_source_is_blind() {
    let mut signals = quiet(NOW);
    assert!(!is_blind(&policy(), &signals, NOW));
    signals.inhibitors.says = Err("no list".to_owned());
    assert!(!is_blind(&policy(), &signals, NOW), "it sees the keyboard");
    signals.input[0].says = Err("no devices".to_owned());
    assert!(is_blind(&policy(), &signals, NOW));
    assert!(!is_blind(&Policy { unattended: true, ..policy() }, &signals, NOW));
}

/// Unknown presence reaches the farm as the source `none`, which it counts apart. Every other objection leaves the sources' names.
#[test]
fn the_farm_hears_of_an_agent_that_cannot_tell_whichever_source_is_missing() {
    type Change = fn(&mut Policy, &mut Signals);
    let table: &[(&str, Change, &str)] = &[
        ("nothing", |_, _| {}, "evdev"),
        ("no source", |_, s| s.input.clear(), "none"),
        ("a helper that hangs", |_, s| s.input.push(seen("x11 of user 7", NOW - MINUTE, 60 * MINUTE)), "none"),
        ("no list of sessions", |_, s| s.remote.says = Err("/run/systemd/sessions/3: denied".to_owned()), "none"),
        ("no list of inhibitors", |_, s| s.inhibitors.says = Err("/run/systemd/inhibit/1: denied".to_owned()), "none"),
        (
            "a helper that tells no inhibitors any more",
            |_, s| s.told_inhibitors.push(Reading::new("wayland of user 7", NOW - MINUTE, Ok(Vec::new()))),
            "none",
        ),
        ("a person", |_, s| s.input[0] = seen("evdev", NOW, MINUTE), "evdev"),
        ("hours", |p, _| p.hours = Hours(vec!["mon 18:00-19:00".parse().expect("hours")]), "evdev"),
        ("battery", |_, s| s.power.says = Ok(Power::Battery), "evdev"),
        ("load", |_, s| s.load.says = Ok(9.0), "evdev"),
        ("a pause", |_, s| s.paused = Some("until Monday".to_owned()), "evdev"),
        ("no source where nobody ever is", |p, s| (p.unattended, s.input) = (true, Vec::new()), "unattended"),
        (
            "no list of inhibitors where its owner has it looked for without a person",
            |p, s| {
                p.unattended = true;
                s.inhibitors.says = Err("denied".to_owned());
            },
            "none",
        ),
    ];
    for (case, change, expected) in table {
        for before in [State::new(NOW - 60 * MINUTE), working(NOW - MINUTE)] {
            let (mut policy, mut signals) = (policy(), quiet(NOW));
            change(&mut policy, &mut signals);
            let state = decide(&policy, &signals, &before, NOW);
            assert_eq!(signs(&policy, &state, &signals, NOW).idle_source, *expected, "{case}");
            // `explain` and `doctor` on the PC say the same as the farm.
            let explained = crate::local::message::Explanation::new(&policy, &state, Some(&signals), NOW);
            assert_eq!(explained.blind, *expected == "none", "{case}");
            let unanswered = explained.blind && !is_blind(&policy, &signals, NOW);
            assert_eq!(explained.unanswered, unanswered.then(|| state.reason()), "{case}");
        }
    }
}

fn any_reading<T: Clone + std::fmt::Debug + 'static>(
    source: &'static str,
    says: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = (u64, Result<T, String>, &'static str)> {
    let says = prop_oneof![9 => says.prop_map(Ok::<T, String>), 1 => Just(Err("broken".to_owned()))];
    // Mostly fresh.
    (prop_oneof![9 => Just(0_u64), 1 => 0_u64..400], says, Just(source))
}

/// A step of a random day: how long since the one before, and what is heard then, with ages in seconds.
#[derive(Clone, Debug)]
struct Step {
    after: u64,
    idle: (u64, Result<u64, String>, &'static str),
    partial: (u64, Result<u64, String>, &'static str),
    load: (u64, Result<f64, String>, &'static str),
    power: (u64, Result<bool, String>, &'static str),
    woke: Option<u64>,
    paused: bool,
}

fn any_step() -> impl Strategy<Value = Step> {
    let idle = || prop_oneof![Just(0_u64), 0_u64..2000, 900_u64..5000];
    (
        1_u64..400,
        any_reading("evdev", idle()),
        any_reading("tty", prop_oneof![1 => 0_u64..900, 9 => 900_u64..5000]),
        any_reading("proc", prop_oneof![0.0..0.3, 0.0..2.0]),
        any_reading("power_supply", prop_oneof![9 => Just(true), 1 => Just(false)]),
        prop_oneof![9 => Just(None), 1 => (0_u64..2000).prop_map(Some)],
        prop_oneof![9 => Just(false), 1 => Just(true)],
    )
        .prop_map(|(after, idle, partial, load, power, woke, paused)| Step {
            after,
            idle,
            partial,
            load,
            power,
            woke,
            paused,
        })
}

fn signals_of(step: &Step, now: Moment) -> Signals {
    let ago = |seconds: u64| now.saturating_sub(Duration::from_secs(seconds));
    let input = |(age, says, source): &(u64, Result<u64, String>, &'static str), proves| {
        let says =
            says.clone().map(|idle| Input { last: ago(idle), proves, bump: None, untold: false, at_seat: false });
        Reading::new(source, ago(*age), says)
    };
    let power = |mains| if mains { Power::Mains } else { Power::Battery };
    Signals {
        input: vec![input(&step.idle, Proves::Absence), input(&step.partial, Proves::Presence)],
        woke: step.woke.map(ago),
        load: Reading::new("proc", ago(step.load.0), step.load.1.clone()),
        power: Reading::new("power_supply", ago(step.power.0), step.power.1.clone().map(power)),
        paused: step.paused.then(|| "for now".to_owned()),
        ..quiet(now)
    }
}

proptest! {
    /// It never works while anything speaks against it or is not known, and says why; and it never begins twice within the
    /// time that it is to rest, unless it was its owner who interrupted it.
    #[test]
    fn it_fails_closed_and_does_not_flap(
        steps in prop::collection::vec(any_step(), 1..60),
        on_return in prop_oneof![Just(OnReturn::GiveBack), Just(OnReturn::Finish), Just(OnReturn::Freeze)],
    ) {
        let policy = Policy { on_return, ..policy() };
        let mut now = NOW;
        let mut state = State::new(now);
        let mut stopped: Option<Moment> = None;
        for step in &steps {
            now += Duration::from_secs(step.after);
            let signals = signals_of(step, now);
            let before = state.clone();
            state = decide(&policy, &signals, &before, now);
            prop_assert_eq!(state.activity == Activity::Work, state.objections.is_empty());
            if state.activity == Activity::Work {
                let idle = step.idle.1.clone().expect("a broken source is no proof");
                prop_assert!(step.idle.0 <= ANSWER_LIMIT.as_secs());
                prop_assert!(idle >= 300);
                if let Ok(seen) = &step.partial.1 {
                    prop_assert!(*seen >= 300 && step.partial.0 <= ANSWER_LIMIT.as_secs());
                }
                prop_assert!(step.woke.is_none_or(|woke| woke >= 300));
                prop_assert!(matches!(step.load, (0..=60, Ok(load), _) if load < 0.6));
                prop_assert!(matches!(step.power, (0..=60, Ok(true), _)));
                prop_assert!(!step.paused);
            }
            match (before.activity == Activity::Work, state.activity == Activity::Work) {
                (true, false) => {
                    let only_paused = state.objections.iter().all(|objection| objection.kind == Kind::Paused);
                    stopped = if only_paused { None } else { Some(now) };
                }
                (false, true) => {
                    let idle = step.idle.1.clone().expect("checked above");
                    prop_assert!(stopped.is_none_or(|at| now - at >= policy.resume_after));
                    prop_assert!(idle >= 900 || before.interrupted.is_some());
                }
                (true, true) | (false, false) => {}
            }
            // Nobody works a little: what gave its work back holds nothing until it begins again.
            if before.activity == Activity::Rest {
                prop_assert!(matches!(state.activity, Activity::Rest | Activity::Work));
            }
        }
    }

    /// The clock that decides never goes back; if it did, nothing would panic.
    #[test]
    fn no_moment_makes_it_panic(before in 0_u64..10_000, now in 0_u64..10_000, steps in prop::collection::vec(any_step(), 1..5)) {
        let mut state = working(Duration::from_secs(before));
        for step in steps {
            state = decide(&policy(), &signals_of(&step, Duration::from_secs(now)), &state, Duration::from_secs(now));
        }
    }
}

/// A person who works without a terminal, or watches a film.
#[test]
fn a_person_without_input_speaks_against_work() {
    let used = |idle: Duration| remote::Use {
        what: "session 3 of alice by sshd".to_owned(),
        by: "session 3 by sshd".to_owned(),
        last: Ok(Some(NOW - idle)),
        counts_for: 120 * MINUTE,
    };
    let remote = |idle| Ok(Remote { unlisted: None, uses: vec![used(idle)] });
    let film = |hours: u32| {
        let held = inhibitors::Held { place: inhibitors::Place::Desktop, by: "a player".to_owned() };
        Reading::new("session", NOW, Ok(vec![inhibitors::Inhibitor { held, since: NOW - hours * 60 * MINUTE }]))
    };
    let told = |seconds| Reading::new("session", NOW - Duration::from_secs(seconds), Ok(Vec::new()));
    type Change<'a> = &'a dyn Fn(&mut Policy, &mut Signals);
    let table: &[(&str, Change<'_>, &[Kind])] = &[
        ("119 minutes", &|_, s| s.remote.says = remote(119 * MINUTE), &[Kind::Person]),
        ("120 minutes", &|_, s| s.remote.says = remote(120 * MINUTE), &[]),
        ("no list", &|_, s| s.remote.says = Err("broken".to_owned()), &[Kind::Unknown]),
        ("an old list", &|_, s| s.remote.at = NOW - 2 * MINUTE, &[Kind::Unknown]),
        (
            "no list, and it does not matter",
            &|p, s| (p.remote.count, s.remote.says) = (false, Err("broken".to_owned())),
            &[],
        ),
        ("a film", &|_, s| s.told_inhibitors.push(film(2)), &[Kind::Person]),
        ("a film that nobody has touched for long", &|_, s| s.told_inhibitors.push(film(5)), &[Kind::Person]),
        (
            "a player that plays on",
            &|_, s| {
                s.told_inhibitors.push(film(5));
                s.input = vec![seen("evdev", NOW, 5 * 60 * MINUTE)];
            },
            &[],
        ),
        (
            "a film, and it does not matter",
            &|p, s| {
                p.inhibitors.desktop = false;
                s.told_inhibitors.push(film(2));
            },
            &[],
        ),
        (
            "a film whose helper is silent",
            &|_, s| s.told_inhibitors.push(Reading { at: NOW - MINUTE, ..film(2) }),
            &[Kind::Person],
        ),
        ("a silent helper that told no film", &|_, s| s.told_inhibitors.push(told(11)), &[Kind::Unknown]),
        ("a helper that told no film", &|_, s| s.told_inhibitors.push(told(10)), &[]),
        (
            "a silent helper, and it does not matter",
            &|p, s| {
                (p.inhibitors.desktop, p.inhibitors.wayland) = (false, false);
                s.told_inhibitors.push(told(11));
            },
            &[],
        ),
        ("no list of inhibitors", &|_, s| s.inhibitors.says = Err("broken".to_owned()), &[Kind::Unknown]),
        (
            "the same where it does not matter",
            &|p, s| (p.inhibitors.logind, s.inhibitors.says) = (false, Err("broken".to_owned())),
            &[],
        ),
    ];
    for (what, change, expected) in table {
        let (mut policy, mut signals) = (policy(), quiet(NOW));
        change(&mut policy, &mut signals);
        for before in [State::new(NOW - MINUTE), working(NOW - MINUTE)] {
            let state = decide(&policy, &signals, &before, NOW);
            assert_eq!(kinds(&state), *expected, "{what}: {:?}", state.objections);
        }
    }
}
