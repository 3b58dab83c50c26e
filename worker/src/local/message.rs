//! What is said on the agent's socket.
//!
//! Owns the words of it, and how what is known is told to people.

use std::time::Duration;

use jiff::Zoned;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::presence::Desk;
use crate::presence::history::Entry;
use crate::presence::hours::gaps;
use crate::presence::inhibitors::{Held, Inhibitor};
use crate::presence::policy::{ANSWER_LIMIT, Activity, OnReturn, Policy, State, is_blind, span, touched};
use crate::presence::remote::{Remote, Rules as Remotes};
use crate::presence::signals::{Moment, Network, Power, Proves, Reading, Signals};
use crate::presence::wishes::Setting;

pub const VERSION: u32 = 1;

const WORKS: &str = "works";
const WORKS_NO_MORE: &str = "drains";

#[derive(Debug, Serialize, Deserialize)]
struct Versioned<T> {
    version: u32,
    #[serde(flatten)]
    says: T,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum Ask {
    Explain,
    History,
    Pause {
        #[serde(rename = "for")]
        wish: String,
    },
    Resume,
    /// A helper says what it sees, and gets no answer.
    Session {
        source: String,
        /// Since the session's person touched something; or `error` says why that is not known.
        idle_ms: Option<u64>,
        error: Option<String>,
        full_screen: Option<bool>,
        /// Seat of the session, if it has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seat: Option<String>,
    },
    /// A helper tells all programs that keep its session's screen on, and gets no answer.
    Inhibitors {
        held: Vec<Held>,
    },
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    Explanation(Box<Explanation>),
    History(Vec<Entry>),
    Error(String),
}

/// What an agent would do now, and why.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// `works`, `drains`, `finishes`, `freezes` or `rests`.
    pub activity: String,
    pub since_seconds: u64,
    /// Why it does not work.
    pub reasons: Vec<String>,
    /// What it goes by.
    pub policy: Vec<String>,
    /// The same by its settings, and who has said each.
    #[serde(default)]
    pub settings: Vec<Setting>,
    pub signals: Vec<Signal>,
    /// Findings about its sources: a session helper that ended, an input device that makes noise.
    #[serde(default)]
    pub notes: Vec<String>,
    /// What it computes.
    pub holds: Vec<Holds>,
    pub yields: Option<Yields>,
    /// What its disk did not take in time, and is not kept.
    #[serde(default)]
    pub not_kept: u64,
    /// The agent cannot tell whether a person is present: no source can, or one that counts does not answer.
    #[serde(default)]
    pub blind: bool,
    /// Reason why it cannot tell, if a source that counts does not answer though others do.
    #[serde(default)]
    pub unanswered: Option<String>,
    /// Who says so; nobody, if no agent runs.
    #[serde(default)]
    pub agent: Option<About>,
}

/// An agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct About {
    pub identity: String,
    pub hostname: String,
    pub version: String,
    pub servers: Vec<String>,
    /// The setting: whether programs may use them.
    #[serde(default)]
    pub gpu: bool,
    /// GPUs, each with the reason if the farm is not told of it.
    #[serde(default)]
    pub gpus: Vec<String>,
    /// None: no server has welcomed it, or none does any more.
    pub session: Option<Session>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Session {
    pub server: String,
    pub workstation_id: String,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Signal {
    pub signal: String,
    pub source: String,
    /// How old what it says is.
    pub age_seconds: f64,
    pub says: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Holds {
    pub job: String,
    pub job_type: String,
    pub problems: usize,
    pub since_seconds: u64,
}

/// From an input to the moment when no core computes. Milliseconds.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Yields {
    pub p50: u64,
    pub p99: u64,
    pub count: usize,
}

pub fn write<T: Serialize>(says: &T) -> Vec<u8> {
    let mut line = serde_json::to_vec(&Versioned { version: VERSION, says }).expect("it is made of text and numbers");
    line.push(b'\n');
    line
}

pub fn read<T: DeserializeOwned>(line: &[u8]) -> Result<T, String> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let Version { version } = serde_json::from_slice(line).map_err(|error| format!("not a message: {error}"))?;
    if version != VERSION {
        return Err(format!("version {VERSION} is spoken here, not {version}"));
    }
    let message: Versioned<T> = serde_json::from_slice(line).map_err(|error| format!("not a message: {error}"))?;
    Ok(message.says)
}

impl Explanation {
    pub fn of(desk: &Desk) -> Explanation {
        let now = clock::now();
        let (holds, agent) = (desk.holds(now), desk.about());
        let (settings, not_kept) = (desk.settings().to_vec(), desk.not_kept());
        let explanation = desk.view(|policy, state, signals, history| Explanation {
            holds,
            agent,
            settings,
            not_kept,
            yields: history.yields().map(|yields| Yields {
                p50: yields.p50_ms,
                p99: yields.p99_ms,
                count: yields.count,
            }),
            ..Explanation::new(policy, state, signals, now)
        });
        match desk.drain() {
            Some(drain) => explanation.drained(&drain, now),
            None => explanation,
        }
    }

    /// It is not its person who keeps it from work.
    fn drained(mut self, drain: &Reading<String>, now: Moment) -> Explanation {
        let says = line("drain", drain, now, String::clone);
        self.reasons.push(format!("the farm has it take no more: {}", says.says));
        self.signals.push(says);
        if self.activity == WORKS {
            WORKS_NO_MORE.clone_into(&mut self.activity);
            self.since_seconds = now.saturating_sub(drain.at).as_secs();
        }
        self
    }

    pub fn new(policy: &Policy, state: &State, signals: Option<&Signals>, now: Moment) -> Explanation {
        let activity = match state.activity {
            Activity::Work => WORKS,
            Activity::Finish => "finishes",
            Activity::Freeze => "freezes",
            Activity::Rest => "rests",
        };
        let sourceless = signals.is_some_and(|signals| is_blind(policy, signals, now));
        Explanation {
            activity: activity.to_owned(),
            since_seconds: now.saturating_sub(state.since).as_secs(),
            reasons: state.objections.iter().map(|objection| objection.text.clone()).collect(),
            policy: rules(policy),
            settings: Vec::new(),
            signals: signals.map(|signals| lines(policy, signals, now)).unwrap_or_default(),
            notes: signals.map(|signals| notes(signals, now, &Zoned::now())).unwrap_or_default(),
            holds: Vec::new(),
            yields: None,
            not_kept: 0,
            blind: state.cannot_tell() || sourceless,
            unanswered: Some(state.reason()).filter(|_| state.cannot_tell() && !sourceless),
            agent: None,
        }
    }
}

/// The policy in sentences.
fn rules(policy: &Policy) -> Vec<String> {
    let mut rules = Vec::new();
    if policy.unattended {
        rules.push("nobody sits here (unattended): input does not matter".to_owned());
    } else {
        rules.push(format!(
            "works after {} without input, after {} if interrupted less than {} before",
            span(policy.start_after),
            span(policy.resume_after.min(policy.start_after)),
            span(policy.give_back_after),
        ));
    }
    rules.push(match policy.on_return {
        OnReturn::GiveBack => "gives back at once what is not finished when it has to stop".to_owned(),
        OnReturn::Finish => {
            format!("finishes what it has begun when it has to stop, for {}", span(policy.give_back_after))
        }
        OnReturn::Freeze => format!(
            "freezes programs and modules when it has to stop, for {}; other controllers give back at once",
            span(policy.give_back_after)
        ),
    });
    rules.extend(policy.load.map(|load| format!("others use less than {load} cores before it begins")));
    rules.extend(policy.free_memory.map(|part| format!("{:.0} % of the memory stay free", part * 100.0)));
    rules.extend(policy.memory_limit.map(|bytes| format!("takes at most {} MiB of memory", bytes >> 20)));
    let matters = [
        (policy.on_battery, "on battery"),
        (policy.on_metered, "on a metered network"),
        (policy.beside_full_screen, "beside a program that fills the screen"),
    ];
    let not: Vec<&str> = matters.iter().filter(|(allowed, _)| !allowed).map(|(_, what)| *what).collect();
    if !not.is_empty() {
        rules.push(format!("does not work {}", not.join(", ")));
    }
    if !policy.programs.is_empty() {
        rules.push(format!("does not work beside {}", policy.programs.join(", ")));
    }
    if policy.remote.matter() {
        let Remotes { cpu, after, .. } = &policy.remote;
        let after = span(*after);
        rules.push(format!(
            "takes a session without a terminal for its person until {after} after it used {cpu} s of CPU in a minute"
        ));
    }
    let inhibitors = &policy.inhibitors;
    if inhibitors.logind || inhibitors.desktop || inhibitors.wayland {
        let limit = span(inhibitors.limit);
        rules.push(format!("takes a program that keeps the screen on for its person, for {limit} without input"));
    }
    if !policy.hours.0.is_empty() {
        rules.push(format!("its hours are {}", policy.hours));
    }
    if !policy.farm_hours.0.is_empty() {
        rules.push(format!("its hours, as the farm wants them, are {}", policy.farm_hours));
    }
    rules.extend(gaps::warning(&policy.hours).map(|warning| format!("WARNING: its {warning}")));
    rules.extend(gaps::warning(&policy.farm_hours).map(|warning| format!("WARNING: the farm's {warning}")));
    rules
}

fn lines(policy: &Policy, signals: &Signals, now: Moment) -> Vec<Signal> {
    let ago = |at: Moment| format!("{} ago", about(now.saturating_sub(at)));
    let mut lines = Vec::new();
    for reading in &signals.input {
        lines.push(line("input", reading, now, |input| {
            let partly = if input.proves == Proves::Presence { "; does not see everybody" } else { "" };
            let bump = input.bump.map_or_else(String::new, |bump| format!("; a bump {}", ago(bump)));
            let untold = if input.untold { "; in part only looked at" } else { "" };
            format!("last {}{partly}{untold}{bump}", ago(input.last))
        }));
    }
    if let Some(woke) = signals.woke {
        lines.push(line("waking", &Reading::new("clock", now, Ok(woke)), now, |woke| {
            format!("the machine woke {}", ago(*woke))
        }));
    }
    lines.push(line("load of others", &signals.load, now, |load| format!("{load:.2} cores")));
    lines.push(line("memory", &signals.memory, now, |memory| {
        let mib = |bytes: u64| bytes >> 20;
        format!(
            "{} of {} MiB free, {} its own",
            mib(memory.available_bytes),
            mib(memory.total_bytes),
            mib(memory.own_bytes)
        )
    }));
    lines.push(line("power", &signals.power, now, |power| match power {
        Power::Mains => "mains".to_owned(),
        Power::Battery => "battery".to_owned(),
    }));
    if !policy.programs.is_empty() {
        lines.push(line("programs", &signals.programs, now, |running| match running.as_slice() {
            [] => "none of them runs".to_owned(),
            running => running.join(", "),
        }));
    }
    for reading in &signals.full_screen {
        let says = |fills: &bool| if *fills { "a program fills it" } else { "no program fills it" }.to_owned();
        lines.push(line("screen", reading, now, says));
    }
    if signals.full_screen.is_empty() {
        let unknown: Reading<bool> = Reading::new("none", now, Err("no helper tells".to_owned()));
        lines.push(line("screen", &unknown, now, |_| String::new()));
    }
    lines.extend(remote_lines(policy, &signals.remote, now));
    lines.extend(inhibitor_lines(policy, signals, now));
    lines.push(line("network", &signals.network, now, |network| match network {
        Network::Metered => "metered".to_owned(),
        Network::Unmetered => "not metered".to_owned(),
        Network::Untold(why) => format!("unknown: {why}"),
    }));
    if !(policy.hours.0.is_empty() && policy.farm_hours.0.is_empty()) {
        let reading = Reading::new("clock on the wall", now, Ok(signals.time));
        lines.push(line("hours", &reading, now, |time| {
            let are_now = policy.hours.include(*time) && policy.farm_hours.include(*time);
            format!("it is {time}, which is {} its hours", if are_now { "within" } else { "outside" })
        }));
    }
    if let Some(until) = &signals.paused {
        lines.push(line("pause", &Reading::new("its owner", now, Ok(())), now, |()| until.clone()));
    }
    lines
}

/// Sessions without a terminal, one a line.
fn remote_lines(policy: &Policy, reading: &Reading<Remote>, now: Moment) -> Vec<Signal> {
    let one = |says: &str| line("remote", reading, now, |_| says.to_owned());
    match &reading.says {
        _ if !policy.remote.matter() => Vec::new(),
        Err(_) => vec![one("")],
        Ok(Remote { unlisted: Some(why), uses }) if uses.is_empty() => vec![one(why)],
        Ok(Remote { uses, .. }) if uses.is_empty() => vec![one("no session without a terminal")],
        Ok(Remote { uses, .. }) => {
            let says = uses.iter().map(|used| {
                let last = match &used.last {
                    Ok(None) => "not used since it is known".to_owned(),
                    Ok(Some(last)) => format!("used {} ago", about(now.saturating_sub(*last))),
                    Err(why) => format!("its use is unknown: {why}"),
                };
                let counts = if used.counts(now) { "counts" } else { "does not count" };
                format!("{}: {last}; {counts}", used.what)
            });
            says.map(|says| one(&says)).collect()
        }
    }
}

/// Programs that keep the screen on, one a line.
fn inhibitor_lines(policy: &Policy, signals: &Signals, now: Moment) -> Vec<Signal> {
    let touched = touched(signals, now);
    let lists = std::iter::once(&signals.inhibitors).filter(|_| policy.inhibitors.logind);
    let mut lines = Vec::new();
    for reading in lists.chain(&signals.told_inhibitors) {
        let Ok(all) = &reading.says else {
            lines.push(line("inhibitor", reading, now, |_| String::new()));
            continue;
        };
        let says = |inhibitor: &Inhibitor| {
            let Inhibitor { held, since } = inhibitor;
            let since = about(now.saturating_sub(*since));
            let counts = if inhibitor.counts(&policy.inhibitors, touched, now) { "counts" } else { "does not count" };
            format!("{} keeps the screen on for {since} now ({}); {counts}", held.by, held.place.name())
        };
        lines.extend(all.iter().map(|inhibitor| line("inhibitor", reading, now, |_| says(inhibitor))));
    }
    lines
}

/// Notes, and since when sources do not answer.
fn notes(signals: &Signals, now: Moment, wall: &Zoned) -> Vec<String> {
    let input = signals.input.iter().filter_map(|reading| silence(reading, now));
    let told = signals.told_inhibitors.iter().filter_map(|reading| silence(reading, now));
    let note = |(source, age): (&str, Duration)| {
        let since = wall.checked_sub(age).map_or_else(|_| about(age), |at| at.strftime("%a %F %T").to_string());
        format!("{source} has not answered since {since}: it counts as a person")
    };
    input.chain(told).map(note).chain(signals.notes.iter().cloned()).collect()
}

/// Returns the name of a source that has answered once and is silent, with the age of its last answer.
fn silence<T>(reading: &Reading<T>, now: Moment) -> Option<(&str, Duration)> {
    let is_silent = reading.says.is_ok() && reading.fresh(now, ANSWER_LIMIT).is_err();
    is_silent.then(|| (&*reading.source, now.saturating_sub(reading.at)))
}

fn line<T>(signal: &str, reading: &Reading<T>, now: Moment, says: impl Fn(&T) -> String) -> Signal {
    Signal {
        signal: signal.to_owned(),
        source: reading.source.clone().into_owned(),
        age_seconds: (now.saturating_sub(reading.at).as_secs_f64() * 10.0).round() / 10.0,
        says: match &reading.says {
            Ok(known) => says(known),
            Err(why) => format!("unknown: {why}"),
        },
    }
}

/// As people say it.
pub fn about(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presence::signals::Input;

    const NOW: Duration = Duration::from_secs(20_000);

    /// The source answered at `at`, and saw input at `last`.
    fn input(source: &'static str, at: u64, last: u64, at_seat: bool) -> Reading<Input> {
        let last = Duration::from_secs(last);
        let says = Input { last, proves: Proves::Absence, bump: None, untold: false, at_seat };
        Reading::new(source, Duration::from_secs(at), Ok(says))
    }

    fn unknown<T>(source: &'static str) -> Reading<T> {
        Reading::new(source, Moment::ZERO, Err("not asked".to_owned()))
    }

    fn signals(input: Vec<Reading<Input>>) -> Signals {
        Signals {
            input,
            noises: crate::presence::signals::Noises::default(),
            notes: Vec::new(),
            woke: None,
            load: unknown("proc"),
            memory: unknown("proc"),
            power: unknown("proc"),
            programs: unknown("proc"),
            full_screen: Vec::new(),
            network: unknown("none"),
            remote: unknown("logind"),
            inhibitors: unknown("logind"),
            told_inhibitors: Vec::new(),
            paused: None,
            time: crate::presence::hours::LocalTime { weekday: 0, minute: 0 },
        }
    }

    #[test]
    fn a_source_that_is_silent_is_named_with_its_time() {
        let told = Reading::new("session of user 7", Duration::from_secs(19_970), Ok(Vec::new()));
        let signals = Signals {
            notes: vec!["the session helper mutter of user 8 ended".to_owned()],
            told_inhibitors: vec![told],
            ..signals(vec![input("evdev", 20_000, 1, false), input("x11 of user 7", 19_970, 1, false)])
        };
        let wall = "2026-11-30T14:03:12[Europe/Berlin]".parse().expect("a time");
        let expected = [
            "x11 of user 7 has not answered since Mon 2026-11-30 14:02:42: it counts as a person",
            "session of user 7 has not answered since Mon 2026-11-30 14:02:42: it counts as a person",
            "the session helper mutter of user 8 ended",
        ];
        assert_eq!(notes(&signals, NOW, &wall), expected);
    }

    /// `explain` and the decision must agree, also on a desktop that takes a noisy mouse for a person.
    #[test]
    fn an_inhibitor_counts_in_explain_if_it_does_in_the_decision() {
        let policy = crate::presence::settings::Settings::of_a_desk().policy;
        let held = Held { place: crate::presence::inhibitors::Place::Logind, by: "a forgotten film".to_owned() };
        let limit = policy.inhibitors.limit.as_secs();
        for (what, touched_at, is_noisy, expected) in [
            ("a person was here", 20_000, false, true),
            ("a noisy mouse", 20_000, true, false),
            ("longer ago than the limit", 20_000 - limit, false, false),
        ] {
            let desktop = input("x11 of user 7", 20_000, touched_at, true);
            let mut signals = signals(vec![input("evdev", 20_000, 1, false), desktop]);
            if is_noisy {
                signals.noises.add(Duration::from_secs(19_900), NOW);
            }
            signals.inhibitors =
                Reading::new("logind", NOW, Ok(vec![Inhibitor { held: held.clone(), since: Moment::ZERO }]));
            let decided = touched(&signals, NOW);
            let says = &inhibitor_lines(&policy, &signals, NOW)[0].says;
            assert_eq!(says.ends_with("; counts"), expected, "{what}: {says}");
            assert_eq!(
                Inhibitor { held: held.clone(), since: Moment::ZERO }.counts(&policy.inhibitors, decided, NOW),
                expected
            );
        }
    }

    #[test]
    fn messages_are_what_they_say_in_their_version() {
        let said = Ask::Session {
            source: "x11".to_owned(),
            idle_ms: Some(5),
            error: None,
            full_screen: Some(true),
            seat: None,
        };
        assert_eq!(read::<Ask>(&write(&said)), Ok(said));
        assert_eq!(read::<Ask>(br#"{"version":1,"ask":"pause","for":"1h"}"#), Ok(Ask::Pause { wish: "1h".to_owned() }));
        for (line, expected) in [
            (&br#"{"version":2,"ask":"explain"}"#[..], "version 1 is spoken here, not 2"),
            (br#"{"ask":"explain"}"#, "not a message: missing field `version`"),
            (br#"{"version":1,"ask":"shutdown"}"#, "not a message: unknown variant"),
            (br#"{"version":1,"ask":"session","source":"x11","idle_ms":-1}"#, "not a message"),
            (b"\xff\n", "not a message"),
            (b"", "not a message"),
        ] {
            let error = read::<Ask>(line).expect_err("it is refused");
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
