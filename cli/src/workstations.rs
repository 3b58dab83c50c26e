//! Workstations: what they do and why, what they may take, and draining them.

use anyhow::Result;
use pcfarm_proto::ids::WorkstationId;
use pcfarm_proto::v1::{
    DrainWorkstationRequest, ListWorkstationsRequest, Names, SetSelectionRequest, Workstation, WorkstationCheckout,
    WorkstationState,
};
use serde::Serialize;

use crate::args::{DrainArgs, SelectArgs, WorkstationsArgs};
use crate::exit::{Exit, Failure};
use crate::farm::Farm;
use crate::output::{self, Column, Output};
use crate::text::{self, ago, cut, plain};

/// What a page asks for; the server's own default.
const PAGE: u32 = 100;

pub async fn list(farm: &Farm, args: &WorkstationsArgs, output: Output) -> Result<()> {
    let workstations = get_all(farm, args.all, args.limit).await?;
    if workstations.len() >= args.limit as usize {
        output::note(&format!("only the first {}: --limit shows more", args.limit));
    }
    let now = jiff::Timestamp::now();
    output.print(
        || WorkstationsJson { workstations: workstations.iter().map(json).collect() },
        || if args.facts { facts(&workstations) } else { table(&workstations, args.all, now) },
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
    let all = get_all(farm, true, u32::MAX).await?;
    let named: Vec<&Workstation> = all.iter().filter(|one| one.hostname == name).collect();
    match named.as_slice() {
        [one] => Ok(WorkstationId(one.workstation_id)),
        [] => Err(Failure::of(
            Exit::NotFound,
            format!("no workstation is called `{}`; `pcfarm workstations --all` lists them", plain(name)),
        )),
        several => {
            let ids: Vec<String> = several.iter().map(|one| one.workstation_id.to_string()).collect();
            Err(Failure::usage(format!(
                "several workstations are called `{}`: name one by its id, {}",
                plain(name),
                ids.join(" or ")
            )))
        }
    }
}

pub async fn select(farm: &Farm, args: SelectArgs, output: Output) -> Result<()> {
    let SelectArgs { hostnames, require, exclude, prefer, job_types, labels, largest } = args;
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

pub async fn drain(farm: &Farm, args: &DrainArgs, output: Output) -> Result<()> {
    let id = find(farm, &args.workstation).await?;
    let doing = if args.undo { "undoing the drain of" } else { "draining" };
    let request = DrainWorkstationRequest { workstation_id: id.0, undo: args.undo };
    let mut client = farm.workstations();
    let call = client.drain_workstation(farm.request(request));
    let drained = farm.call(&format!("{doing} workstation {id}"), call).await?;
    output.print(
        || json(&drained),
        || {
            let reason = match drained.reason.as_str() {
                "" => String::new(),
                reason => format!(": {}", cut(reason, 400)),
            };
            let host = cut(&drained.hostname, 60);
            format!("workstation {id} ({host}) is {}{reason}", state(&drained))
        },
    )
}

pub fn table(workstations: &[Workstation], all: bool, now: jiff::Timestamp) -> String {
    let columns = [
        Column::Number("ID"),
        Column::Text("HOST"),
        Column::Text("STATE"),
        Column::Text("SINCE"),
        Column::Number("CORES"),
        Column::Number("MEMORY"),
        Column::Text("HOLDS"),
        Column::Reason("REASON"),
    ];
    let rows = workstations
        .iter()
        .map(|one| {
            vec![
                one.workstation_id.to_string(),
                cut(&one.hostname, 24),
                state(one).to_owned(),
                ago(one.since.as_ref(), now),
                text::number(one.cores.into()),
                text::bytes(one.memory_bytes),
                holds(&one.holds),
                cut(&one.reason, 120),
            ]
        })
        .collect();
    let none = if all { "no workstation has connected yet" } else { "no workstations; --all shows dead ones" };
    output::table(&columns, rows, none)
}

/// `job 7: 200`, and how many jobs more.
fn holds(held: &[WorkstationCheckout]) -> String {
    let mut jobs = std::collections::BTreeMap::<i64, i64>::new();
    for checkout in held {
        let problems = jobs.entry(checkout.job_id).or_default();
        *problems = problems.saturating_add(checkout.problems);
    }
    let mut each = jobs.iter().map(|(job, problems)| format!("{} of job {job}", text::number(*problems)));
    match (each.next(), each.len()) {
        (None, _) => "–".to_owned(),
        (Some(one), 0) => one,
        (Some(one), more) => format!("{one}, +{more}"),
    }
}

fn state(workstation: &Workstation) -> &'static str {
    match workstation.state() {
        WorkstationState::Unspecified => "unknown",
        WorkstationState::Waiting => "waiting",
        WorkstationState::Processing => "processing",
        WorkstationState::Suspended => "suspended",
        WorkstationState::Draining => "draining",
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
            (vec![], "–"),
            (vec![held(7, 1_000), held(7, 500)], "1,500 of job 7"),
            (vec![held(9, 1), held(7, 2), held(8, 3)], "2 of job 7, +2"),
        ];
        for (checkouts, expected) in cases {
            assert_eq!(holds(&checkouts), expected);
        }
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
