//! Whether the agent may work now: a pure function of signals, settings and what was before.
//!
//! Owns every decision about the workstation's person. It fails closed: what is not known speaks against work, except where its
//! owner has said that it does not matter.
//!
//! ```text
//!            nothing speaks against it, long enough
//!   Rest ────────────────────────────────────────────► Work
//!    ▲ ▲                                                │ │ something does
//!    │ └──────── on_return = give-back ◄────────────────┘ │
//!    │   give_back_after                                  ▼
//!    └────────────────────────────────────── Finish, Freeze ──► Work, when it has ceased
//! ```

use std::time::Duration;

use super::Signs;
use super::hours::Hours;
use super::inhibitors::{self, Inhibitor};
use super::remote::{self, Remote};
use super::signals::{Input, Memory, Moment, Network, Power, Proves, Reading, Signals};

/// Age from which on an answer of a source of input is stale. Sources answer every few seconds, helpers included. A source that told
/// and is silent for longer counts as unknown, which speaks against work like a person: it may be the only one that sees a remote user.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Notes for the farm.
const NOTES_LIMIT: usize = 16;
const NOTE_BYTES_LIMIT: usize = 200;

/// The network service speaks only when something changes.
const NETWORK_AGE_LIMIT: Duration = Duration::from_secs(150);
const PROBE_AGE_LIMIT: Duration = Duration::from_secs(60);

/// While the agent works, others may use so many times what they may use before it begins: they do not drive it out by
/// what they do anyway.
const LOAD_HYSTERESIS: f64 = 2.0;

/// Before it begins, so many times what must stay free while it works: its own work takes memory.
const MEMORY_HYSTERESIS: f64 = 1.5;

/// What a source without a sense for movements makes of a bump: input, at about the same time.
const ABOUT_THE_SAME: Duration = Duration::from_millis(1250);

/// The source that sees input devices themselves.
pub const DEVICES: &str = "evdev";

/// The name of the source that the farm reads from an agent that cannot tell whether a person is present.
const CANNOT_TELL: &str = "none";

/// What the owner wants.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// There is no person: a server, or a PC in a locked room.
    pub unattended: bool,
    /// Without input for so long before work begins.
    pub start_after: Duration,
    /// The same, if it was interrupted less than `give_back_after` ago; and the least time between two beginnings.
    pub resume_after: Duration,
    /// What is not finished so long after the person has returned goes back.
    pub give_back_after: Duration,
    pub on_return: OnReturn,
    /// CPU that others may use, in cores; none: any.
    pub load: Option<f64>,
    /// Part of the memory that must stay available; none: any.
    pub free_memory: Option<f64>,
    /// What the agent and all that it starts may take; none: any.
    pub memory_limit: Option<u64>,
    pub on_battery: bool,
    pub on_metered: bool,
    pub beside_full_screen: bool,
    pub hours: Hours,
    /// Those that the farm wants, which must hold, too.
    pub farm_hours: Hours,
    /// Names of programs beside which it does not work.
    pub programs: Vec<String>,
    /// Sessions without a terminal.
    pub remote: remote::Rules,
    pub inhibitors: inhibitors::Rules,
}

/// What becomes of problems that are not finished when the person returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum OnReturn {
    /// They go back at once, for others to solve.
    #[default]
    GiveBack,
    /// Those that were begun are finished, and the rest goes back.
    Finish,
    /// Those that were begun and can stand still do, and go on when the person has left; the rest goes back at once.
    Freeze,
}

impl std::fmt::Display for OnReturn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            OnReturn::GiveBack => "give-back",
            OnReturn::Finish => "finish",
            OnReturn::Freeze => "freeze",
        })
    }
}

/// What the agent does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    Work,
    /// What was begun is finished.
    Finish,
    /// It computes nothing, and keeps what was begun.
    Freeze,
    /// It computes nothing, and has nothing.
    Rest,
}

/// Where the policy stands.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    pub activity: Activity,
    /// Since when it is so.
    pub since: Moment,
    /// What speaks against work, the weightiest first; none: nothing does.
    pub objections: Vec<Objection>,
    /// When work was interrupted last, and whether it needs to rest before it begins again.
    interrupted: Option<Interrupted>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Interrupted {
    at: Moment,
    rests: bool,
}

/// Something that speaks against work.
#[derive(Clone, Debug, PartialEq)]
pub struct Objection {
    pub kind: Kind,
    /// For people. It stays the same as long as the thing does.
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Paused,
    /// Somebody is there, or was a moment ago.
    Person,
    /// Nobody can tell whether somebody is there.
    Unknown,
    FullScreen,
    Program,
    Battery,
    Metered,
    Memory,
    Load,
    Hours,
    /// Nothing any more: it waits, so as not to begin and end all the time.
    Settling,
}

impl Kind {
    /// Whether it may come and go quickly by itself.
    fn flickers(self) -> bool {
        !matches!(self, Kind::Paused | Kind::Hours | Kind::Settling)
    }
}

/// Signs for the server. They change only with the sources and with the kind of the weightiest objection.
pub fn signs(policy: &Policy, state: &State, signals: &Signals, now: Moment) -> Signs {
    let power = match signals.power.fresh(now, PROBE_AGE_LIMIT) {
        Ok(Power::Mains) => "mains",
        Ok(Power::Battery) => "battery",
        Err(_) => "",
    };
    if policy.unattended && !state.cannot_tell() {
        return Signs { idle_source: "unattended".to_owned(), power, notes: Vec::new() };
    }
    let sees_absence =
        |reading: &&Reading<Input>| reading.fresh(now, ANSWER_LIMIT).is_ok_and(|input| input.proves == Proves::Absence);
    let mut sources: Vec<&str> =
        signals.input.iter().filter(sees_absence).map(|reading| reading.source.as_ref()).collect();
    sources.dedup();
    // The farm counts agents with this word as those that cannot tell. A source that answers does not help an agent that another
    // source leaves without an answer.
    let idle_source =
        if sources.is_empty() || state.cannot_tell() { CANNOT_TELL.to_owned() } else { sources.join(", ") };
    Signs { idle_source, power, notes: told(&signals.notes) }
}

/// Notes as the protocol bounds them.
fn told(notes: &[String]) -> Vec<String> {
    let short = |note: &String| note[..note.floor_char_boundary(NOTE_BYTES_LIMIT)].to_owned();
    notes.iter().take(NOTES_LIMIT).map(short).collect()
}

impl State {
    pub fn new(now: Moment) -> State {
        State { activity: Activity::Rest, since: now, objections: Vec::new(), interrupted: None }
    }

    /// That of an agent whose work was interrupted just before it was started anew.
    pub fn interrupted(now: Moment) -> State {
        State { interrupted: Some(Interrupted { at: now, rests: true }), ..State::new(now) }
    }

    /// The weightiest reason why it does not work; nothing if it does. What is less weighty comes and goes meanwhile.
    pub fn reason(&self) -> String {
        self.objections.first().map(|first| first.text.clone()).unwrap_or_default()
    }

    /// Nobody is there, as far as anybody can tell, and what is done there is nobody's: the PC may sleep. That it is not to work
    /// at this hour, or on battery, is no reason to stay awake.
    pub fn is_deserted(&self) -> bool {
        self.objections.iter().all(|objection| matches!(objection.kind, Kind::Hours | Kind::Battery))
    }

    pub fn weightiest(&self) -> Option<Kind> {
        self.objections.first().map(|first| first.kind)
    }

    /// Returns true if the agent does not work because no source, or not every source that counts, tells whether a person is present.
    pub fn cannot_tell(&self) -> bool {
        self.weightiest() == Some(Kind::Unknown)
    }
}

/// Where it stands now.
pub fn decide(policy: &Policy, signals: &Signals, before: &State, now: Moment) -> State {
    let mut objections = objections(policy, signals, before, now);
    let works = before.activity == Activity::Work;
    if objections.is_empty() && !works && !has_rested(policy, before, now) {
        let text = format!("works again at the earliest {} after it stopped", span(policy.resume_after));
        objections.push(Objection { kind: Kind::Settling, text });
    }
    let interrupted = match (works, objections.is_empty()) {
        (true, false) => {
            Some(Interrupted { at: now, rests: objections.iter().any(|objection| objection.kind.flickers()) })
        }
        (true, true) => None,
        (false, _) => before.interrupted,
    };
    let activity =
        if objections.is_empty() { Activity::Work } else { hold(policy, &objections, before, interrupted, now) };
    let since = if activity == before.activity { before.since } else { now };
    State { activity, since, objections, interrupted }
}

fn has_rested(policy: &Policy, before: &State, now: Moment) -> bool {
    let rests = before.interrupted.filter(|interrupted| interrupted.rests);
    rests.is_none_or(|interrupted| now.saturating_sub(interrupted.at) >= policy.resume_after)
}

/// How it does not work.
fn hold(
    policy: &Policy,
    objections: &[Objection],
    before: &State,
    interrupted: Option<Interrupted>,
    now: Moment,
) -> Activity {
    // What it gave back does not come by itself.
    if before.activity == Activity::Rest {
        return Activity::Rest;
    }
    let over = interrupted.is_none_or(|interrupted| now.saturating_sub(interrupted.at) >= policy.give_back_after);
    // Memory is freed, and the owner's word obeyed, only by letting go.
    let lets_go = objections.iter().any(|objection| matches!(objection.kind, Kind::Memory | Kind::Paused));
    match policy.on_return {
        _ if over || lets_go => Activity::Rest,
        OnReturn::GiveBack => Activity::Rest,
        OnReturn::Finish => Activity::Finish,
        OnReturn::Freeze => Activity::Freeze,
    }
}

fn objections(policy: &Policy, signals: &Signals, before: &State, now: Moment) -> Vec<Objection> {
    let works = before.activity == Activity::Work;
    let full_screen = || full_screen(&signals.full_screen, now);
    let found = [
        signals.paused.as_ref().map(|until| (Kind::Paused, format!("paused by its owner {until}"))),
        if policy.unattended { None } else { person(policy, signals, before, now) },
        remote(policy, &signals.remote, works, now),
        watching(policy, signals, works, now),
        if policy.beside_full_screen { None } else { full_screen().map(|text| (Kind::FullScreen, text)) },
        programs(policy, &signals.programs, now).map(|text| (Kind::Program, text)),
        if policy.on_battery { None } else { battery(&signals.power, now).map(|text| (Kind::Battery, text)) },
        if policy.on_metered { None } else { metered(&signals.network, works, now).map(|text| (Kind::Metered, text)) },
        memory(policy, &signals.memory, works, now).map(|text| (Kind::Memory, text)),
        load(policy, &signals.load, works, now).map(|text| (Kind::Load, text)),
        (!policy.hours.include(signals.time)).then(|| (Kind::Hours, format!("its hours are {}", policy.hours))),
        (!policy.farm_hours.include(signals.time))
            .then(|| (Kind::Hours, format!("its hours, as the farm wants them, are {}", policy.farm_hours))),
    ];
    found.into_iter().flatten().map(|(kind, text)| Objection { kind, text }).collect()
}

/// Whoever is at the keyboard, by the input that sources have seen.
fn person(policy: &Policy, signals: &Signals, before: &State, now: Moment) -> Option<(Kind, String)> {
    let (mut heard, mut useless, mut silent, mut is_proved) = (Vec::new(), Vec::new(), Vec::new(), false);
    for reading in &signals.input {
        let input = match &reading.says {
            Ok(input) => input,
            Err(why) => {
                useless.push(format!("{}: {why}", reading.source));
                continue;
            }
        };
        // Input counts, however stale the answer is.
        heard.push((&*reading.source, input));
        let why = match (reading.fresh(now, ANSWER_LIMIT), input.proves) {
            (Ok(_), Proves::Absence) => {
                is_proved = true;
                continue;
            }
            (Ok(_), Proves::Presence) => "does not see everybody".to_owned(),
            (Err(why), _) => {
                silent.push(&*reading.source);
                why
            }
        };
        // A helper that cannot tell any more has said why.
        let source = format!("{}: ", reading.source);
        if !useless.iter().any(|known: &String| known.starts_with(&source)) {
            useless.push(format!("{source}{why}"));
        }
    }
    if !is_proved {
        let useless = useless.join(", ");
        // Whoever tries it on a server looks for this word.
        let reason =
            format!("no source can tell whether somebody is there ({useless}); where nobody ever is: --unattended");
        return Some((Kind::Unknown, reason));
    }
    if !silent.is_empty() {
        let (silent, limit) = (silent.join(", "), span(ANSWER_LIMIT));
        let reason = format!("no answer for more than {limit} from {silent}: whether its person is there is unknown");
        return Some((Kind::Unknown, reason));
    }
    let bumps: Vec<_> = heard.iter().filter_map(|(source, input)| Some((*source, input.bump?))).collect();
    let is_bump = |source: &str, last: Moment| {
        bumps.iter().any(|(by, bump)| **by != *source && last.abs_diff(*bump) <= ABOUT_THE_SAME)
    };
    let sees_devices = sees_devices(signals, now);
    let is_noise = |input: &Input| sees_devices && is_noise(input, signals);
    let woke = signals.woke.map(|woke| ("the machine woke", woke));
    let soonest = policy.resume_after.min(policy.start_after);
    let is_recent = |interrupted: Interrupted| now.saturating_sub(interrupted.at) < policy.give_back_after;
    let needed = match before.activity {
        Activity::Work => soonest,
        Activity::Rest | Activity::Finish | Activity::Freeze if before.interrupted.is_some_and(is_recent) => soonest,
        Activity::Rest | Activity::Finish | Activity::Freeze => policy.start_after,
    };
    // At work the first says the same, unless what was seen just then came in late.
    let is_new = |last: Moment| before.activity == Activity::Work && last > before.since;
    let objects = |last: Moment| now.saturating_sub(last) < needed || is_new(last);
    let inputs = heard.iter().filter(|(source, input)| !is_bump(source, input.last) && !is_noise(input));
    let mut inputs = inputs.map(|(source, input)| (*source, input.last)).chain(woke);
    // The first in their order and not the latest: which of several is the latest changes with every key.
    let (source, _) = inputs.find(|(_, last)| objects(*last))?;
    Some((Kind::Person, format!("its person is here, or left less than {} ago ({source})", span(needed))))
}

/// Returns true if no source of input can tell whether a person is there.
pub fn is_blind(policy: &Policy, signals: &Signals, now: Moment) -> bool {
    let proves =
        |reading: &Reading<Input>| reading.fresh(now, ANSWER_LIMIT).is_ok_and(|input| input.proves == Proves::Absence);
    !policy.unattended && !signals.input.iter().any(proves)
}

/// The last input that a person made, as far as is known.
pub fn touched(signals: &Signals, now: Moment) -> Option<Moment> {
    let sees_devices = sees_devices(signals, now);
    let inputs = signals.input.iter().filter_map(|reading| reading.says.as_ref().ok());
    inputs.filter(|input| !(sees_devices && is_noise(input, signals))).map(|input| input.last).max()
}

/// Returns true if a source that sees the devices themselves proves absence. Only beside it may a desktop's input be taken for noise.
fn sees_devices(signals: &Signals, now: Moment) -> bool {
    let sees = |reading: &Reading<Input>| {
        let proves = |input: &Input| input.proves == Proves::Absence && !input.at_seat;
        reading.source == DEVICES && reading.fresh(now, ANSWER_LIMIT).is_ok_and(proves)
    };
    signals.input.iter().any(sees)
}

/// Returns true if a desktop tells of input that the source of input devices has not looked for: it may be noise.
pub fn may_be_noise(signals: &Signals) -> bool {
    let looked = signals.input.iter().find(|reading| reading.source == DEVICES).map(|reading| reading.at);
    let inputs = signals.input.iter().filter_map(|reading| reading.says.as_ref().ok());
    let newest = inputs.filter(|input| input.at_seat).map(|input| input.last).max();
    !signals.noises.is_empty() && newest > looked
}

/// Desktops know no noise and no ignored devices: to them every event is input. A session without a seat has no such device.
fn is_noise(input: &Input, signals: &Signals) -> bool {
    input.at_seat && signals.noises.cover(input.last, ABOUT_THE_SAME)
}

/// While work runs a person whom only logind sees is noticed as soon as others. Nothing begins by old answers anyway.
fn logind_age_limit(works: bool) -> Duration {
    if works { ANSWER_LIMIT } else { PROBE_AGE_LIMIT }
}

/// A person who works by a session without a terminal.
fn remote(policy: &Policy, reading: &Reading<Remote>, works: bool, now: Moment) -> Option<(Kind, String)> {
    if !policy.remote.matter() {
        return None;
    }
    match reading.fresh(now, logind_age_limit(works)) {
        Ok(remote) => remote.objection(now).map(|text| (Kind::Person, text)),
        Err(why) => Some((Kind::Unknown, format!("cannot tell who works here without a terminal: {why}"))),
    }
}

/// A person who touches nothing, for a program keeps the screen on.
fn watching(policy: &Policy, signals: &Signals, works: bool, now: Moment) -> Option<(Kind, String)> {
    let rules = &policy.inhibitors;
    let logind = signals.inhibitors.fresh(now, logind_age_limit(works));
    if let Err(why) = &logind
        && rules.logind
    {
        return Some((Kind::Unknown, format!("cannot tell which programs keep the screen on: {why}")));
    }
    let touched = touched(signals, now);
    let counts = |inhibitor: &&Inhibitor| inhibitor.counts(rules, touched, now);
    // A film counts, however stale the answer of its helper is.
    let told = signals.told_inhibitors.iter().filter_map(|reading| reading.says.as_ref().ok());
    if let Some(counted) = logind.ok().into_iter().chain(told).flatten().find(counts) {
        return Some((Kind::Person, counted.objection()));
    }
    if !(rules.desktop || rules.wayland) {
        return None;
    }
    let silent = signals.told_inhibitors.iter().find(|reading| reading.fresh(now, ANSWER_LIMIT).is_err())?;
    let (source, limit) = (&silent.source, span(ANSWER_LIMIT));
    let reason = format!("no answer for more than {limit} from {source}: which programs keep the screen on is unknown");
    Some((Kind::Unknown, reason))
}

fn full_screen(readings: &[Reading<bool>], now: Moment) -> Option<String> {
    let fills = |reading: &&Reading<bool>| reading.fresh(now, ANSWER_LIMIT) == Ok(&true);
    readings.iter().find(fills).map(|reading| format!("a program fills the screen ({})", reading.source))
}

fn programs(policy: &Policy, reading: &Reading<Vec<String>>, now: Moment) -> Option<String> {
    if policy.programs.is_empty() {
        return None;
    }
    match reading.fresh(now, PROBE_AGE_LIMIT) {
        Ok(running) if running.is_empty() => None,
        Ok(running) => Some(format!("{} runs", running.join(", "))),
        Err(why) => Some(format!("cannot tell which programs run: {why}")),
    }
}

fn battery(reading: &Reading<Power>, now: Moment) -> Option<String> {
    match reading.fresh(now, PROBE_AGE_LIMIT) {
        Ok(Power::Mains) => None,
        Ok(Power::Battery) => Some("on battery".to_owned()),
        Err(why) => Some(format!("cannot tell whether it is on battery: {why}")),
    }
}

/// Few can tell, so who cannot does not object. But nothing begins before that is known.
fn metered(reading: &Reading<Network>, works: bool, now: Moment) -> Option<String> {
    match &reading.says {
        Err(why) => (!works).then(|| format!("cannot tell yet whether its network is metered: {why}")),
        Ok(Network::Metered) => reading.fresh(now, NETWORK_AGE_LIMIT).ok().map(|_| "its network is metered".to_owned()),
        Ok(Network::Unmetered | Network::Untold(_)) => None,
    }
}

fn memory(policy: &Policy, reading: &Reading<Memory>, works: bool, now: Moment) -> Option<String> {
    if policy.free_memory.is_none() && policy.memory_limit.is_none() {
        return None;
    }
    let memory = match reading.fresh(now, PROBE_AGE_LIMIT) {
        Ok(memory) => memory,
        Err(why) => return Some(format!("cannot tell how much memory is free: {why}")),
    };
    if let Some(limit) = policy.memory_limit.filter(|limit| memory.own_bytes > *limit) {
        return Some(format!("takes more memory than the {} MiB that it may", limit >> 20));
    }
    let part = policy.free_memory?;
    let needed = (part * if works { 1.0 } else { MEMORY_HYSTERESIS }).min(1.0);
    let available = memory.available_bytes as f64 / memory.total_bytes.max(1) as f64;
    // Not a number is not enough.
    let enough = available >= needed;
    (!enough).then(|| format!("less than {:.0} % of the memory are free", needed * 100.0))
}

fn load(policy: &Policy, reading: &Reading<f64>, works: bool, now: Moment) -> Option<String> {
    let limit = policy.load?;
    match reading.fresh(now, PROBE_AGE_LIMIT) {
        Ok(load) => {
            let limit = limit * if works { LOAD_HYSTERESIS } else { 1.0 };
            let little = *load < limit;
            (!little).then(|| format!("other programs use {limit:.1} cores or more"))
        }
        Err(why) => Some(format!("cannot tell what other programs use: {why}")),
    }
}

/// In the largest unit that it is a whole number of.
pub fn span(time: Duration) -> String {
    match time.as_secs() {
        seconds if seconds >= 3600 && seconds % 3600 == 0 => format!("{} h", seconds / 3600),
        seconds if seconds >= 60 && seconds % 60 == 0 => format!("{} min", seconds / 60),
        _ => format!("{} s", time.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests;
