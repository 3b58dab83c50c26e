//! What is done with many workstations at once: which are meant is said, asked about where that is dangerous, and done.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::{Context, Result};
use pcfarm_proto::v1::{
    DrainWorkstationsRequest, ForgetWorkstationsRequest, ForgottenWorkstation, NoteWorkstationsRequest,
    WakeWorkstationsRequest, Workstation,
};
use serde::Serialize;

use crate::args::fleet::{DrainArgs, ForgetArgs, NoteArgs, UndrainArgs, WakeArgs};
use crate::exit::Failure;
use crate::farm::Farm;
use crate::output::{self, Output};
use crate::selector::{Selector, chosen};
use crate::text::{self, counted, cut};
use crate::workstations::{self, get_all};

/// Host names that are said of many.
const NAMED: usize = 8;

pub async fn drain(farm: &Farm, args: DrainArgs, output: Output) -> Result<()> {
    let DrainArgs { chosen, deadline, now, reason, undo, yes } = args;
    if undo {
        return undrain(farm, UndrainArgs { chosen, release: false }, output).await;
    }
    let meant = meant(farm, &chosen.workstations).await?;
    if meant.len() > 1 {
        confirm(&format!("drain {}", many(&meant)), yes)?;
    }
    let deadline =
        if now { Some(prost_types::Duration::default()) } else { deadline.map(proto_duration).transpose()? };
    let request =
        DrainWorkstationsRequest { workstation_ids: ids(&meant), undo: false, reason, deadline, release: false };
    change(farm, "draining", request, output).await
}

pub async fn undrain(farm: &Farm, args: UndrainArgs, output: Output) -> Result<()> {
    let meant = meant(farm, &args.chosen.workstations).await?;
    let (undo, release) = (true, args.release);
    let request = DrainWorkstationsRequest { workstation_ids: ids(&meant), undo, release, ..Default::default() };
    change(farm, "undoing the drain of", request, output).await
}

/// A server takes so many in one call.
const AT_ONCE: usize = 1_000;

fn in_calls(ids: &[i64]) -> impl Iterator<Item = Vec<i64>> {
    ids.chunks(AT_ONCE).map(<[i64]>::to_vec)
}

/// Says what calls before this one have done, if this one fails.
fn after<T>(done: usize, call: Result<T>) -> Result<T> {
    if done == 0 {
        return call;
    }
    call.with_context(|| format!("it was done for {done} of them, and is to be done again for the others"))
}

async fn change(farm: &Farm, doing: &str, request: DrainWorkstationsRequest, output: Output) -> Result<()> {
    let doing = match request.workstation_ids.as_slice() {
        [one] => format!("{doing} workstation {one}"),
        several => format!("{doing} {} workstations", several.len()),
    };
    let (mut client, mut changed) = (farm.workstations(), Vec::new());
    for workstation_ids in in_calls(&request.workstation_ids) {
        let request = DrainWorkstationsRequest { workstation_ids, ..request.clone() };
        let call = farm.call(&doing, client.drain_workstations(farm.request(request))).await;
        changed.extend(after(changed.len(), call)?.workstations);
    }
    workstations::print(&changed, output)
}

pub async fn note(farm: &Farm, args: NoteArgs, output: Output) -> Result<()> {
    let meant = meant(farm, &args.chosen.workstations).await?;
    let (mut client, mut noted) = (farm.workstations(), Vec::new());
    for workstation_ids in in_calls(&ids(&meant)) {
        let request = NoteWorkstationsRequest { workstation_ids, note: args.text.clone() };
        let call = farm.call("noting", client.note_workstations(farm.request(request))).await;
        noted.extend(after(noted.len(), call)?.workstations);
    }
    workstations::print(&noted, output)
}

pub async fn wake(farm: &Farm, args: WakeArgs, output: Output) -> Result<()> {
    let WakeArgs { chosen, yes } = args;
    let meant = meant(farm, &chosen.workstations).await?;
    if meant.len() > 1 {
        confirm(&format!("wake {}", many(&meant)), yes)?;
    }
    let (mut client, mut woken) = (farm.workstations(), Vec::new());
    for workstation_ids in in_calls(&ids(&meant)) {
        let request = WakeWorkstationsRequest { workstation_ids };
        let call = farm.call("waking", client.wake_workstations(farm.request(request))).await;
        woken.extend(after(woken.len(), call)?.workstations);
    }
    workstations::print(&woken, output)
}

pub async fn forget(farm: &Farm, args: ForgetArgs, output: Output) -> Result<()> {
    let ForgetArgs { chosen, force, yes } = args;
    let meant = meant(farm, &chosen.workstations).await?;
    confirm(&format!("forget {}, for good", many(&meant)), yes)?;
    let (mut client, mut forgotten) = (farm.workstations(), Vec::new());
    for workstation_ids in in_calls(&ids(&meant)) {
        let request = ForgetWorkstationsRequest { workstation_ids, force };
        let call = farm.call("forgetting", client.forget_workstations(farm.request(request))).await;
        forgotten.extend(after(forgotten.len(), call)?.workstations);
    }
    output.print(
        || ForgottenJson { forgotten: forgotten.iter().map(json).collect() },
        || {
            let line = |one: &ForgottenWorkstation| {
                format!("forgot workstation {} ({})", one.workstation_id, cut(&one.hostname, 60))
            };
            forgotten.iter().map(line).collect::<Vec<_>>().join("\n")
        },
    )
}

#[derive(Serialize)]
struct ForgottenJson<'a> {
    forgotten: Vec<ForgottenOneJson<'a>>,
}

#[derive(Serialize)]
struct ForgottenOneJson<'a> {
    workstation_id: Option<String>,
    hostname: &'a str,
}

fn json(one: &ForgottenWorkstation) -> ForgottenOneJson<'_> {
    ForgottenOneJson { workstation_id: output::id(one.workstation_id), hostname: &one.hostname }
}

/// Those that these words choose. Of more than one it is said which.
pub async fn meant(farm: &Farm, words: &[String]) -> Result<Vec<Workstation>> {
    let words: Vec<Selector> = words.iter().map(|word| Selector::parse(word)).collect::<Result<_>>()?;
    let meant = chosen(&words, get_all(farm, true, u32::MAX).await?)?;
    if !words.iter().all(Selector::is_single) {
        output::note(&many(&meant));
    }
    Ok(meant)
}

/// Host names, of workstations that are still to come, too: a name that stands for itself need not be known. Slots have none of
/// their own where `slots` is false.
pub async fn hostnames(farm: &Farm, words: &[String], slots: bool) -> Result<Vec<String>> {
    let words: Vec<Selector> = words.iter().map(|word| Selector::parse(word)).collect::<Result<_>>()?;
    let (names, others): (Vec<Selector>, Vec<Selector>) =
        words.into_iter().partition(|word| matches!(word, Selector::Host(_)));
    let mut hostnames: Vec<String> = Vec::new();
    for name in names {
        let Selector::Host(name) = name else { continue };
        hostnames.push(name);
    }
    if !others.is_empty() {
        let mut all = get_all(farm, true, u32::MAX).await?;
        all.retain(|one| slots || !one.hostname.contains('#'));
        let found = chosen(&others, all)?;
        output::note(&many(&found));
        hostnames.extend(found.into_iter().map(|one| one.hostname));
    }
    hostnames.sort();
    hostnames.dedup();
    Ok(hostnames)
}

fn ids(workstations: &[Workstation]) -> Vec<i64> {
    workstations.iter().map(|one| one.workstation_id).collect()
}

fn many(workstations: &[Workstation]) -> String {
    let names: Vec<&str> = workstations.iter().map(|one| one.hostname.as_str()).collect();
    naming(&names)
}

/// `3 workstations: pc1, pc2, pc3`
fn naming(names: &[&str]) -> String {
    let mut said: Vec<String> = names.iter().take(NAMED).map(|name| cut(name, 30)).collect();
    if names.len() > NAMED {
        said.push(format!("and {} more", text::number((names.len() - NAMED) as i64)));
    }
    format!("{}: {}", counted(names.len() as i64, "workstation"), said.join(", "))
}

fn proto_duration(length: std::time::Duration) -> Result<prost_types::Duration> {
    prost_types::Duration::try_from(length).map_err(|_| Failure::usage("a deadline is less than so far away"))
}

/// Asks, where there is somebody to ask.
fn confirm(what: &str, yes: bool) -> Result<()> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failure::usage(format!("this would {what}: if that is meant, say --yes")));
    }
    let _ = write!(io::stderr(), "{what}? [y/N] ");
    let _ = io::stderr().flush();
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).context("reading the answer")?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::of(crate::exit::Exit::Failed, "nothing was done")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_are_named_by_some() {
        assert_eq!(naming(&["pc1"]), "1 workstation: pc1");
        let names: Vec<String> = (1..=10).map(|n| format!("pc{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let said = "10 workstations: pc1, pc2, pc3, pc4, pc5, pc6, pc7, pc8, and 2 more";
        assert_eq!(naming(&names), said);
        assert_eq!(naming(&["\u{1b}[2J"]), "1 workstation: \\u{1b}[2J");
    }
}
