//! `pcfarm-bench TABLE`: measures one table of figures, or all, and prints, draws and writes them.

use anyhow::{Context as _, bail};
use clap::Parser;
use futures_util::FutureExt;
use pcfarm_bench::context::Context;
use pcfarm_bench::report::{self, Report};
use pcfarm_bench::tables::{self, TABLES};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Measures PC Farm: one command for each table of figures, against the limit and against peers.
#[derive(Debug, Parser)]
#[command(name = "scripts/bench", version)]
struct Arguments {
    /// The table, or `all`; `results` measures nothing, and makes RESULTS.md anew of what is recorded
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(TABLES.iter().copied().chain(["all", "results"])))]
    table: String,
    /// A few seconds each, to see that it works: too short for bounds of rates and times
    #[arg(long)]
    quick: bool,
    /// Runs of each table, of which the median counts [default: 3, quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    runs: Option<u16>,
    /// Only what has this in its name, of a table that can be measured in parts: pools, scale, yields
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
    match measure(&Arguments::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("A figure is worse than its bound.");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("scripts/bench: {error:#}");
            ExitCode::FAILURE
        }
    }
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
    let wanted: Vec<&'static str> =
        TABLES.iter().copied().filter(|table| arguments.table == "all" || arguments.table == *table).collect();
    let mut kept = true;
    let mut documents: Vec<Value> = Vec::new();
    for table in wanted {
        let mut report = Report::new(table, arguments.quick);
        // What starts and watches programs is the tests' own, and panics where they would.
        let measuring = AssertUnwindSafe(tables::run(table, &context, &mut report)).catch_unwind().await;
        let outcome = measuring.unwrap_or_else(|_| bail!("it was given up, see above"));
        report.finish();
        if let Err(error) = outcome {
            if arguments.table != "all" {
                return Err(error);
            }
            // The other tables can still be measured; this one is not a success.
            eprintln!("{table}: {error:#}");
            report.skip("the rest of this table", format!("{error:#}"));
            kept = false;
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
            plots(&report, &path)?;
            write_json(&path, &document)?;
            write_results(directory)?;
        }
        documents.push(document);
    }
    if let Some(path) = &arguments.json {
        let document = if arguments.table == "all" { together(&documents) } else { documents.remove(0) };
        write_json(path, &document)?;
    }
    Ok(kept)
}

fn write_json(path: &Path, document: &Value) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(document).context("writing JSON")?;
    std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))
}

/// Makes `RESULTS.md` of the last document of each table.
fn write_results(directory: &Path) -> anyhow::Result<()> {
    let mut documents: Vec<Value> = Vec::new();
    for table in TABLES {
        let path = directory.join("results").join(format!("{table}.json"));
        if let Ok(text) = std::fs::read_to_string(&path) {
            documents.push(serde_json::from_str(&text).with_context(|| format!("reading {}", path.display()))?);
        }
    }
    let worse: String = documents
        .iter()
        .flat_map(|document| report::broken(document).into_iter().map(move |bound| (&document["table"], bound)))
        .map(|(table, bound)| format!("- {}: {bound}\n", table.as_str().unwrap_or_default()))
        .collect();
    let worse = if worse.is_empty() { "- none\n".to_owned() } else { worse };
    let pages: String = documents.iter().map(|document| format!("\n{}", report::page(document))).collect();
    let head = include_str!("results.md");
    let text = format!("{head}Worse than its bound:\n\n{worse}{pages}");
    let path = directory.join("RESULTS.md");
    std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}

/// One document for all tables; a figure's name leads with its table's.
fn together(documents: &[Value]) -> Value {
    let mut figures = serde_json::Map::new();
    for document in documents {
        let table = document["table"].as_str().unwrap_or_default();
        for (name, value) in document["figures"].as_object().into_iter().flatten() {
            figures.insert(format!("{table}.{name}"), value.clone());
        }
    }
    json!({
        "table": "all",
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
