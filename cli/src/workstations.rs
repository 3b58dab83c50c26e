//! Workstations: what they do and why, and what they may take.

mod wide;

use anyhow::Result;
use jiff::{Timestamp, Zoned};
use pcfarm_proto::ids::WorkstationId;
use pcfarm_proto::v1::{
    Drained, Evidence, ListWorkstationsRequest, Names, PresenceSetting, Quarantine, SetSelectionRequest, Workstation,
    WorkstationCheckout, WorkstationSpeed, WorkstationState, Yields,
};
use serde::Serialize;

use crate::args::{SelectArgs, WorkstationsArgs};
use crate::farm::Farm;
use crate::fleet;
use crate::output::{self, Column, Output};
use crate::selector::{Selector, chosen};
use crate::text::{self, ago, cut, plain};

/// What a page asks for; the server's own default.
const PAGE: u32 = 100;

pub async fn list(farm: &Farm, args: &WorkstationsArgs, output: Output) -> Result<()> {
    let mut workstations = match args.workstations.as_slice() {
        [] => get_all(farm, args.all, args.limit).await?,
        words => {
            let words: Vec<Selector> = words.iter().map(|word| Selector::parse(word)).collect::<Result<_>>()?;
            chosen(&words, get_all(farm, true, u32::MAX).await?)?
        }
    };
    workstations.truncate(args.limit as usize);
    if workstations.len() >= args.limit as usize {
        output::note(&format!("only the first {}: --limit shows more", args.limit));
    }
    let now = jiff::Timestamp::now();
    output.print(
        || WorkstationsJson { workstations: workstations.iter().map(json).collect() },
        || match (args.facts, args.wide) {
            (true, _) => facts(&workstations),
            (false, true) => wide::wide(&workstations, none(args.all), output::whole_width(), now),
            (false, false) => table(&workstations, args.all, now),
        },
    )
}

/// What requirements look at.
fn facts(workstations: &[Workstation]) -> String {
    let columns = [
        Column::Number("ID"),
        Column::Text("HOST"),
        Column::Number("CORES"),
        Column::Number("MEMORY"),
        Column::Text("SYSTEM"),
        Column::Text("GPUS"),
        Column::Text("PROGRAMS"),
        Column::Reason("LABELS"),
    ];
    let row = |one: &Workstation| {
        vec![
            one.workstation_id.to_string(),
            cut(&one.hostname, 20),
            text::number(one.cores.into()),
            text::bytes(one.memory_bytes),
            cut(format!("{} {}", one.system_name, one.arch).trim(), 16),
            cut(&one.gpus.join(", "), 24),
            cut(&one.programs.join(", "), 24),
            plain(&one.labels.join(", ")),
        ]
    };
    output::table(&columns, workstations.iter().map(row).collect(), "no workstations; --all shows dead ones")
}

/// Workstations in id order, page by page.
pub async fn get_all(farm: &Farm, all: bool, limit: u32) -> Result<Vec<Workstation>> {
    let mut found: Vec<Workstation> = Vec::new();
    while found.len() < limit as usize {
        let request = ListWorkstationsRequest {
            all,
            limit: PAGE.min(limit - found.len() as u32),
            after_workstation_id: found.last().map_or(0, |one| one.workstation_id),
        };
        let mut client = farm.workstations();
        let call = client.list_workstations(farm.request(request));
        let page = farm.call("listing workstations", call).await?;
        if page.workstations.is_empty() {
            break;
        }
        found.extend(page.workstations);
    }
    Ok(found)
}

/// A workstation by its id or, when it is the only one with it, its host name.
pub async fn find(farm: &Farm, name: &str) -> Result<WorkstationId> {
    if let Ok(id) = name.parse::<WorkstationId>() {
        return Ok(id);
    }
    let one = chosen(&[Selector::Host(name.to_owned())], get_all(farm, true, u32::MAX).await?)?.remove(0);
    Ok(WorkstationId(one.workstation_id))
}

pub async fn select(farm: &Farm, args: SelectArgs, output: Output) -> Result<()> {
    let SelectArgs { hostnames, require, exclude, prefer, job_types, labels, largest } = args;
    let hostnames = fleet::hostnames(farm, &hostnames, true).await?;
    let names = |given: Vec<String>| match given.as_slice() {
        [] => None,
        [none] if none == "none" => Some(Names::default()),
        _ => Some(Names { names: given }),
    };
    let request = SetSelectionRequest {
        hostnames: hostnames.clone(),
        required: names(require),
        excluded: names(exclude),
        preferred: names(prefer),
        job_types: names(job_types),
        labels: names(labels),
        largest_problem: largest,
        version: String::new(),
    };
    let mut client = farm.workstations();
    farm.call("selecting", client.set_selection(farm.request(request))).await?;
    let all = get_all(farm, true, u32::MAX).await?;
    let chosen: Vec<Workstation> = all.into_iter().filter(|one| hostnames.contains(&one.hostname)).collect();
    let takes = |one: &Workstation| match one.selection.as_str() {
        "" => "whatever it can run".to_owned(),
        selection => plain(selection),
    };
    let columns = [Column::Text("WORKSTATION"), Column::Text("LABELS"), Column::Reason("TAKES")];
    let rows = chosen.iter().map(|one| vec![cut(&one.hostname, 30), cut(&one.labels.join(","), 20), takes(one)]);
    let none = "no workstation of that name has connected yet: it will find its selection when it does";
    output.print(
        || WorkstationsJson { workstations: chosen.iter().map(json).collect() },
        || output::table(&columns, rows.collect(), none),
    )
}

/// The same as a document, with whatever is said of them for people.
pub fn print_as(workstations: &[Workstation], output: Output, text: impl FnOnce() -> String) -> Result<()> {
    output.print(|| WorkstationsJson { workstations: workstations.iter().map(json).collect() }, text)
}

/// What has become of workstations that something was done with.
pub fn print(changed: &[Workstation], output: Output) -> Result<()> {
    let now = jiff::Timestamp::now();
    output.print(
        || WorkstationsJson { workstations: changed.iter().map(json).collect() },
        || match changed {
            [one] => {
                let (id, host) = (one.workstation_id, cut(&one.hostname, 60));
                format!("workstation {id} ({host}) is {}: {}", shown_state(one), cut(&why(one), 400))
            }
            several => table(several, true, now),
        },
    )
}

pub fn table(workstations: &[Workstation], all: bool, now: jiff::Timestamp) -> String {
    if let Some(width) = output::narrow().filter(|_| !workstations.is_empty()) {
        return workstations.iter().map(|one| narrow(one, width, now)).collect();
    }
    let mut columns = vec![
        (Column::Number("ID"), workstations.iter().map(|one| one.workstation_id.to_string()).collect::<Vec<_>>()),
        (Column::Text("HOST"), workstations.iter().map(|one| cut(&one.hostname, 24)).collect()),
        (Column::Text("STATE"), workstations.iter().map(|one| shown_state(one).to_owned()).collect()),
        (Column::Text("SINCE"), workstations.iter().map(|one| ago(one.since.as_ref(), now)).collect()),
        (Column::Number("SPEED"), workstations.iter().map(|one| speed(one.speed.as_ref())).collect()),
    ];
    let mut remarks = Vec::new();
    // What is the same of all is said once; what differs has a column as long as there is room.
    for (heading, what, value) in ASIDES {
        let values: Vec<String> = workstations.iter().map(value).collect();
        let of_all = values.first().filter(|first| values.iter().all(|value| value == *first));
        match of_all {
            Some(same) if same == NOTHING => {}
            Some(same) => remarks.push(format!("{what} {same}")),
            None if output::has_room(&columns, &values) => columns.push((Column::Text(heading), values)),
            None => remarks.push(format!("{what} several: --wide shows them")),
        }
    }
    let reasons = workstations.iter().map(|one| cut(&why(one), 160)).collect();
    columns.push((Column::Reason("REASON"), reasons));
    let rows = (0..workstations.len())
        .map(|row| columns.iter_mut().map(|column| std::mem::take(&mut column.1[row])).collect());
    let rows: Vec<Vec<String>> = rows.collect();
    let headings: Vec<Column> = columns.iter().map(|column| column.0).collect();
    let table = output::table(&headings, rows, none(all));
    if remarks.is_empty() { table } else { format!("{table}\n\n{}", cut(&remarks.join("; "), 100)) }
}

fn none(all: bool) -> &'static str {
    if all { "no workstation has connected yet" } else { "no workstations; --all shows dead ones" }
}

/// Where a table has no room: a line, and the rest below it.
fn narrow(one: &Workstation, width: usize, now: jiff::Timestamp) -> String {
    let (id, host) = (one.workstation_id, cut(&one.hostname, width / 2));
    let asides = ASIDES.iter().map(|(_, what, value)| (what, value(one))).filter(|(_, value)| value != NOTHING);
    let asides: Vec<String> = asides.map(|(what, value)| format!("{what} {value}")).collect();
    let first =
        format!("{id} {host} {}, {}, {}", shown_state(one), ago(one.since.as_ref(), now), speed(one.speed.as_ref()));
    let mut text = output::wrapped(&first, "", width);
    text.push_str(&output::wrapped(&cut(&why(one), 160), "    ", width));
    text.push_str(&output::wrapped(&asides.join("; "), "    ", width));
    text
}

/// Of an aside that is not known.
const NOTHING: &str = "–";

/// Heading, how it is said of all, and what it is of one.
type Aside = (&'static str, &'static str, fn(&Workstation) -> String);

const ASIDES: [Aside; 4] = [
    ("IDLE BY", "idle by:", |one| or_nothing(&one.idle_source, 14)),
    ("POWER", "power:", |one| or_nothing(&one.power, 8)),
    ("GAVE WAY", "gave way (p50/p99):", |one| gave_way(one.yields.as_ref())),
    ("AGENT", "agent:", |one| or_nothing(&one.agent_version, 12)),
];

fn or_nothing(text: &str, limit: usize) -> String {
    if text.is_empty() { NOTHING.to_owned() } else { cut(text, limit) }
}

/// The median and the 99th percentile, from an input to the moment when nothing of its agent computed any more.
fn gave_way(yields: Option<&Yields>) -> String {
    yields.map_or_else(|| NOTHING.to_owned(), |yields| format!("{}/{} ms", yields.p50_ms, yields.p99_ms))
}

/// Problems in the largest unit of time in which there is at least one.
fn speed(speed: Option<&WorkstationSpeed>) -> String {
    let Some(speed) = speed.filter(|speed| speed.problems_per_second.is_finite()) else { return NOTHING.to_owned() };
    let rate = speed.problems_per_second;
    let units = [("s", 1.0), ("min", 60.0), ("h", 3_600.0), ("day", 86_400.0)];
    let (unit, seconds) = units.into_iter().find(|(_, seconds)| rate * seconds >= 1.0).unwrap_or(("day", 86_400.0));
    let many = rate * seconds;
    if many >= 10.0 { format!("{}/{unit}", text::number(many as i64)) } else { format!("{many:.1}/{unit}") }
}

/// Why it is in its state, what it holds, and what is to be remembered.
fn why(one: &Workstation) -> String {
    let mut why = vec![one.reason.clone()];
    if one.state() == WorkstationState::Offline && !one.asleep {
        why[0].push_str(&since(one, &Zoned::now()));
    }
    match holds(&one.holds) {
        None => {}
        Some(held) => match told_of_holding(&one.reason) {
            Some((before, verb)) => why[0] = format!("{before}{verb} {held}"),
            None => why.push(format!("holds {held}")),
        },
    }
    if one.idle_days > 0 {
        why.push(format!("has not worked on {} on which it could have", text::counted(one.idle_days.into(), "day")));
    }
    if !one.note.is_empty() {
        why.push(format!("note: {}", one.note));
    }
    why.retain(|part| !part.is_empty());
    why.join("; ")
}

/// ` at 07:02` by the clock on the wall, with the date unless it is today's.
fn since(one: &Workstation, now: &Zoned) -> String {
    let since = one.since.as_ref().and_then(|since| Timestamp::new(since.seconds, since.nanos).ok());
    let Some(since) = since.map(|since| since.to_zoned(now.time_zone().clone())) else { return String::new() };
    let format = if since.date() == now.date() { "%H:%M" } else { "%F %H:%M" };
    format!(" at {}", since.strftime(format))
}

/// A server's words for a workstation that holds something, where its agent gives no reason: the verb and the rest. Silence of the agent
/// may be told before them.
const HOLDING: [(&str, &str); 2] = [("crunches", " what it holds"), ("holds", " what it had")];

/// Splits a reason that ends with a server's words: the words before, and the verb.
fn told_of_holding(reason: &str) -> Option<(&str, &'static str)> {
    HOLDING.iter().find_map(|(verb, rest)| Some((reason.strip_suffix(rest)?.strip_suffix(verb)?, *verb)))
}

/// `200 of job 7`, and how many jobs more.
fn holds(held: &[WorkstationCheckout]) -> Option<String> {
    let mut jobs = std::collections::BTreeMap::<i64, i64>::new();
    for checkout in held {
        let problems = jobs.entry(checkout.job_id).or_default();
        *problems = problems.saturating_add(checkout.problems);
    }
    let mut each = jobs.iter().map(|(job, problems)| format!("{} of job {job}", text::number(*problems)));
    let first = each.next()?;
    Some(if each.len() == 0 { first } else { format!("{first}, +{}", each.len()) })
}

/// For people, whom it matters whether something is wrong.
fn shown_state(workstation: &Workstation) -> &'static str {
    match state(workstation) {
        "offline" if workstation.asleep => "asleep",
        state => state,
    }
}

fn state(workstation: &Workstation) -> &'static str {
    match workstation.state() {
        WorkstationState::Unspecified => "unknown",
        WorkstationState::Waiting => "waiting",
        WorkstationState::Processing => "processing",
        WorkstationState::Suspended => "suspended",
        WorkstationState::Draining => "draining",
        WorkstationState::Lost => "lost",
        WorkstationState::Offline => "offline",
        WorkstationState::Dead => "dead",
    }
}

#[derive(Serialize)]
struct WorkstationsJson<'a> {
    workstations: Vec<WorkstationJson<'a>>,
}

#[derive(Serialize)]
struct WorkstationJson<'a> {
    workstation_id: Option<String>,
    hostname: &'a str,
    state: &'static str,
    since: Option<String>,
    reason: &'a str,
    cores: u32,
    memory_bytes: u64,
    system: &'a str,
    system_name: &'a str,
    arch: &'a str,
    gpus: &'a [String],
    programs: &'a [String],
    agent_version: &'a str,
    controllers: &'a [String],
    labels: &'a [String],
    selection: &'a str,
    holds: Vec<CheckoutJson<'a>>,
    last_heard: Option<String>,
    server: &'a str,
    idle_source: Option<&'a str>,
    power: Option<&'a str>,
    speed: Option<SpeedJson<'a>>,
    drained: Option<DrainedJson<'a>>,
    quarantine: Option<QuarantineJson<'a>>,
    note: Option<&'a str>,
    yields: Option<YieldsJson>,
    presence: Vec<SettingJson<'a>>,
    presence_wanted: Option<serde_json::Value>,
    asleep: bool,
    can_be_woken: bool,
    woken: Option<String>,
    cannot_tell: bool,
    worked: Option<String>,
    idle_days: u32,
}

#[derive(Serialize)]
struct SettingJson<'a> {
    name: &'a str,
    value: &'a str,
    by: &'a str,
    refused: Option<&'a str>,
}

#[derive(Serialize)]
struct YieldsJson {
    p50_ms: u64,
    p99_ms: u64,
    count: u32,
}

#[derive(Serialize)]
struct SpeedJson<'a> {
    job_type: &'a str,
    problems_per_second: f64,
    measured_at: Option<String>,
}

#[derive(Serialize)]
struct QuarantineJson<'a> {
    job_type: &'a str,
    problems: i64,
    evidence: Vec<EvidenceJson<'a>>,
}

#[derive(Serialize)]
struct EvidenceJson<'a> {
    job_id: Option<String>,
    problem_id: Option<String>,
    message: &'a str,
    solved_on: Option<String>,
}

#[derive(Serialize)]
struct DrainedJson<'a> {
    by: &'a str,
    since: Option<String>,
    why: Option<&'a str>,
    deadline: Option<String>,
}

#[derive(Serialize)]
struct CheckoutJson<'a> {
    checkout_id: Option<String>,
    job_id: Option<String>,
    job_name: &'a str,
    from_order: String,
    to_order: String,
    problems: i64,
    since: Option<String>,
}

fn json(one: &Workstation) -> WorkstationJson<'_> {
    WorkstationJson {
        workstation_id: output::id(one.workstation_id),
        hostname: &one.hostname,
        state: state(one),
        since: text::rfc3339(one.since.as_ref()),
        reason: &one.reason,
        cores: one.cores,
        memory_bytes: one.memory_bytes,
        system: &one.system,
        system_name: &one.system_name,
        arch: &one.arch,
        gpus: &one.gpus,
        programs: &one.programs,
        agent_version: &one.agent_version,
        controllers: &one.controllers,
        labels: &one.labels,
        selection: &one.selection,
        holds: one.holds.iter().map(checkout_json).collect(),
        last_heard: text::rfc3339(one.last_heard.as_ref()),
        server: &one.server,
        idle_source: given(&one.idle_source),
        power: given(&one.power),
        speed: one.speed.as_ref().map(speed_json),
        drained: one.drained.as_ref().map(drained_json),
        quarantine: one.quarantine.as_ref().map(quarantine_json),
        note: given(&one.note),
        yields: one.yields.map(|Yields { p50_ms, p99_ms, count }| YieldsJson { p50_ms, p99_ms, count }),
        presence: one.presence.iter().map(setting_json).collect(),
        presence_wanted: serde_json::from_slice(&one.presence_wanted).ok(),
        asleep: one.asleep,
        can_be_woken: one.can_be_woken,
        woken: text::rfc3339(one.woken.as_ref()),
        cannot_tell: one.cannot_tell,
        worked: text::rfc3339(one.worked.as_ref()),
        idle_days: one.idle_days,
    }
}

fn given(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

fn setting_json(one: &PresenceSetting) -> SettingJson<'_> {
    SettingJson { name: &one.name, value: &one.value, by: &one.by, refused: given(&one.refused) }
}

fn speed_json(speed: &WorkstationSpeed) -> SpeedJson<'_> {
    SpeedJson {
        job_type: &speed.job_type,
        problems_per_second: speed.problems_per_second,
        measured_at: text::rfc3339(speed.measured_at.as_ref()),
    }
}

fn quarantine_json(quarantine: &Quarantine) -> QuarantineJson<'_> {
    let Quarantine { job_type, problems, evidence } = quarantine;
    QuarantineJson { job_type, problems: *problems, evidence: evidence.iter().map(evidence_json).collect() }
}

fn evidence_json(one: &Evidence) -> EvidenceJson<'_> {
    EvidenceJson {
        job_id: output::id(one.job_id),
        problem_id: output::id(one.problem_id),
        message: &one.message,
        solved_on: output::id(one.solved_on),
    }
}

fn drained_json(drained: &Drained) -> DrainedJson<'_> {
    DrainedJson {
        by: &drained.by,
        since: text::rfc3339(drained.since.as_ref()),
        why: given(&drained.why),
        deadline: text::rfc3339(drained.deadline.as_ref()),
    }
}

fn checkout_json(checkout: &WorkstationCheckout) -> CheckoutJson<'_> {
    CheckoutJson {
        checkout_id: output::id(checkout.checkout_id),
        job_id: output::id(checkout.job_id),
        job_name: &checkout.job_name,
        from_order: checkout.from_order.to_string(),
        to_order: checkout.to_order.to_string(),
        problems: checkout.problems,
        since: text::rfc3339(checkout.since.as_ref()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(job_id: i64, problems: i64) -> WorkstationCheckout {
        WorkstationCheckout { job_id, problems, ..WorkstationCheckout::default() }
    }

    #[test]
    fn what_is_held_is_told_by_job() {
        let cases = [
            ("no work for it", "", vec![], "no work for it"),
            ("crunches what it holds", "", vec![held(7, 1_000), held(7, 500)], "crunches 1,500 of job 7"),
            (
                "connection lost 12 s ago; holds what it had",
                "",
                vec![held(7, 2)],
                "connection lost 12 s ago; holds 2 of job 7",
            ),
            (
                "last heard 12 s ago; holds what it had",
                "",
                vec![held(7, 2), held(8, 2)],
                "last heard 12 s ago; holds 2 of job 7, +1",
            ),
            (
                "connection lost 12 s ago; was draining: new memory",
                "",
                vec![held(7, 2)],
                "connection lost 12 s ago; was draining: new memory; holds 2 of job 7",
            ),
            (
                "waits for a licence",
                "",
                vec![held(9, 1), held(7, 2), held(8, 3)],
                "waits for a licence; holds 2 of job 7, +2",
            ),
            ("drained by ana", "fan", vec![held(7, 1)], "drained by ana; holds 1 of job 7; note: fan"),
        ];
        for (reason, note, holds, expected) in cases {
            let (reason, note) = (reason.to_owned(), note.to_owned());
            assert_eq!(why(&Workstation { reason, note, holds, ..Workstation::default() }), expected);
        }
    }

    #[test]
    fn an_offline_workstation_shows_when_it_stopped() {
        let now: Zoned = "2026-11-29T09:00:00+01:00[Europe/Berlin]".parse().expect("a time");
        for (at, expected) in [("2026-11-29T06:02:00Z", " at 07:02"), ("2026-11-27T17:30:00Z", " at 2026-11-27 18:30")]
        {
            let at: Timestamp = at.parse().expect("a time");
            let since = Some(prost_types::Timestamp { seconds: at.as_second(), nanos: 0 });
            assert_eq!(super::since(&Workstation { since, ..Workstation::default() }, &now), expected);
        }
    }

    #[test]
    fn a_narrow_terminal_is_not_overrun() {
        let one = Workstation {
            workstation_id: 7,
            hostname: "lab-7".to_owned(),
            state: WorkstationState::Draining.into(),
            reason: "drained by ana: new memory".to_owned(),
            power: "mains".to_owned(),
            ..Workstation::default()
        };
        let text = narrow(&one, 30, jiff::Timestamp::UNIX_EPOCH);
        assert_eq!(text, "7 lab-7 draining, never, –\n    drained by ana: new memory\n    power: mains\n");
        assert!(text.lines().all(|line| line.chars().count() <= 30));
    }

    #[test]
    fn speeds_are_of_a_useful_time() {
        let cases = [(12_345.6, "12,345/s"), (3.21, "3.2/s"), (0.5, "30/min"), (0.01, "36/h"), (0.0001, "8.6/day")];
        for (problems_per_second, expected) in cases {
            let measured = WorkstationSpeed { problems_per_second, ..WorkstationSpeed::default() };
            assert_eq!(speed(Some(&measured)), expected);
        }
        assert_eq!(speed(None), "–");
        let endless = WorkstationSpeed { problems_per_second: f64::INFINITY, ..WorkstationSpeed::default() };
        assert_eq!(speed(Some(&endless)), "–");
    }

    #[test]
    fn what_is_the_same_of_all_is_said_once() {
        let one = |id: i64, power: &str, version: &str| Workstation {
            workstation_id: id,
            hostname: format!("pc{id}"),
            state: WorkstationState::Waiting.into(),
            reason: "no work for it".to_owned(),
            idle_source: "evdev".to_owned(),
            power: power.to_owned(),
            agent_version: version.to_owned(),
            ..Workstation::default()
        };
        let text = table(&[one(1, "mains", "0.1.0"), one(2, "battery", "0.1.0")], true, jiff::Timestamp::UNIX_EPOCH);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("POWER") && !lines[0].contains("AGENT") && !lines[0].contains("IDLE"), "{text}");
        assert!(lines[2].contains("battery"), "{text}");
        assert_eq!(lines[4], "idle by: evdev; agent: 0.1.0");
    }

    #[test]
    fn the_table_fits_and_is_harmless() {
        let hostile = Workstation {
            workstation_id: i64::MAX,
            hostname: "\u{1b}[31mpc\u{202e}".repeat(30),
            state: 99, // a state of a later version
            reason: "\r\nHTTP/1.1 200 OK".repeat(30),
            cores: u32::MAX,
            memory_bytes: u64::MAX,
            holds: vec![held(i64::MAX, i64::MAX), held(1, 1)],
            ..Workstation::default()
        };
        let text = table(&[hostile], true, jiff::Timestamp::UNIX_EPOCH);
        assert!(!text.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}'), "{text:?}");
        for line in text.lines() {
            assert!(line.chars().count() <= usize::from(output::WIDTH), "{line}");
        }
        assert!(text.contains("unknown"), "{text}");
    }
}
