//! `pcfarm-bench TABLE`: measures one table of figures, or all, and prints, draws and writes them.

use anyhow::{Context as _, bail};
use clap::Parser;
use futures_util::FutureExt;
use pcfarm_bench::context::Context;
use pcfarm_bench::report::{self, Report};
use pcfarm_bench::tables::{self, QUEUE, TABLES};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

/// Measures PC Farm: one command for each table of figures, against the limit and against peers.
#[derive(Debug, Parser)]
#[command(name = "scripts/bench", version)]
struct Arguments {
    /// The table, or `all`, or `queue` for those of the queue itself; `results` measures nothing, and makes RESULTS.md anew of
    /// what is recorded
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(TABLES.iter().copied().chain(["queue", "all", "results"])))]
    table: String,
    /// A few seconds each, to see that it works: too short for bounds of rates and times
    #[arg(long)]
    quick: bool,
    /// Runs of each table, of which the median counts [default: 3, quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    runs: Option<u16>,
    /// Only what has this in its name, of a table that can be measured in parts: links, pools,
    /// scale, yields
    #[arg(long, value_name = "TEXT", conflicts_with = "record")]
    part: Option<String>,
    /// Where to write the JSON document; plots go beside it
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where to keep each table's document and plots, and make RESULTS.md of all that are there
    #[arg(long, value_name = "DIRECTORY")]
    record: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // What is stopped is dropped, and ends the programs that it has started.
    let ended = tokio::select! {
        kept = measure(&arguments) => kept,
        stopped = stopped() => stopped.and_then(|()| bail!("it was stopped")),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("A figure is worse than its bound, or a table could not be measured.");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("scripts/bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Somebody wants it to end, or its terminal is gone.
async fn stopped() -> anyhow::Result<()> {
    let mut signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()]
        .map(signal)
        .into_iter()
        .collect::<Result<Vec<_>, _>>()
        .context("waiting for signals")?;
    futures_util::future::select_all(signals.iter_mut().map(|signal| Box::pin(signal.recv()))).await;
    Ok(())
}

/// True if every promise was kept.
async fn measure(arguments: &Arguments) -> anyhow::Result<bool> {
    if arguments.table == "results" {
        write_results(arguments.record.as_deref().context("--record says where")?)?;
        return Ok(true);
    }
    let directory = tempfile::Builder::new()
        .prefix("pcfarm-bench-")
        .permissions(std::fs::Permissions::from_mode(0o711)) // PostgreSQL's account must pass through root's
        .tempdir()
        .context("making a temporary directory")?;
    let runs = arguments.runs.map_or(if arguments.quick { 1 } else { 3 }, usize::from);
    let mut context = Context::new(directory.path(), arguments.quick, runs);
    context.part.clone_from(&arguments.part);
    context.look().await?;
    println!("{}", context.machine.text());
    let wanted: Vec<&'static str> = match arguments.table.as_str() {
        "all" => TABLES.to_vec(),
        "queue" => QUEUE.to_vec(),
        one => TABLES.iter().copied().filter(|table| one == *table).collect(),
    };
    let mut kept = true;
    let mut documents: Vec<Value> = Vec::new();
    for (n, table) in wanted.iter().copied().enumerate() {
        if wanted.len() > 1 {
            // What the machine is like changes within hours.
            context.look().await?;
            context.progress(&format!("{table}, {} of {} tables", n + 1, wanted.len()));
        }
        let mut report = Report::new(table, arguments.quick);
        // What starts and watches programs is the tests' own, and panics where they would.
        let measuring = AssertUnwindSafe(tables::run(table, &context, &mut report)).catch_unwind().await;
        let outcome = measuring.unwrap_or_else(|_| bail!("it was given up, see above"));
        report.finish();
        if let Err(error) = outcome {
            if wanted.len() == 1 {
                return Err(error);
            }
            // The other tables can still be measured; this one is not a success.
            eprintln!("{table}: {error:#}");
            report.fail(&error);
            context.begin_anew().await?;
        }
        println!("\n{}", report.text());
        kept &= report.promises_kept();
        let document = report.json(&context.machine);
        if let Some(path) = &arguments.json {
            plots(&report, path)?;
        }
        if let Some(directory) = &arguments.record {
            // At once: the tables together take more than an hour.
            let path = directory.join("results").join(format!("{table}.json"));
            let measured_before = if report.has_runs() { None } else { read_json(&path)? };
            match measured_before {
                // What cannot be measured now has been once: both are told.
                Some(before) => write_json(&path, &report::tried_again(before, &document))?,
                None => {
                    plots(&report, &path)?;
                    write_json(&path, &document)?;
                }
            }
            write_results(directory)?;
        }
        documents.push(document);
    }
    if let Some(path) = &arguments.json {
        let document = if documents.len() > 1 { together(&arguments.table, &documents) } else { documents.remove(0) };
        write_json(path, &document)?;
    }
    Ok(kept)
}

fn write_json(path: &Path, document: &Value) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(document).context("writing JSON")?;
    std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))
}

/// None where there is no such file.
fn read_json(path: &Path) -> anyhow::Result<Option<Value>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
    };
    serde_json::from_str(&text).map(Some).with_context(|| format!("reading {}", path.display()))
}

/// Makes `RESULTS.md` of the last document of each table.
fn write_results(directory: &Path) -> anyhow::Result<()> {
    let mut documents: Vec<Value> = Vec::new();
    for table in TABLES {
        documents.extend(read_json(&directory.join("results").join(format!("{table}.json")))?);
    }
    let worse: String = documents
        .iter()
        .flat_map(|document| report::broken(document).into_iter().map(move |bound| (&document["table"], bound)))
        .map(|(table, bound)| format!("- {}: {bound}\n", table.as_str().unwrap_or_default()))
        .collect();
    let worse = if worse.is_empty() { "- none\n".to_owned() } else { worse };
    let pages: String = documents.iter().map(|document| format!("\n{}", report::page(document))).collect();
    let head = include_str!("results.md");
    let together = report::recorded_together(&documents);
    let text = format!("{head}{together}\n\nWorse than its bound:\n\n{worse}{pages}");
    let path = directory.join("RESULTS.md");
    std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}

/// One document for all tables; a figure's name leads with its table's.
fn together(name: &str, documents: &[Value]) -> Value {
    let mut figures = serde_json::Map::new();
    for document in documents {
        let table = document["table"].as_str().unwrap_or_default();
        for (name, value) in document["figures"].as_object().into_iter().flatten() {
            figures.insert(format!("{table}.{name}"), value.clone());
        }
    }
    json!({
        "table": name,
        "quick": documents.iter().any(|document| document["quick"] == true),
        "machine": documents.first().map(|document| &document["machine"]),
        "figures": figures,
        "tables": documents,
    })
}

fn plots(report: &Report, json: &Path) -> anyhow::Result<()> {
    for plot in report.plots() {
        let file = format!("{}-{}.svg", report.table, plot.name);
        plot.write(&json.with_file_name(file))?;
    }
    Ok(())
}
