//! The tables of figures, one module each: what is measured, against what, and what is promised.

pub mod convoys;
pub mod depth;
pub mod efficiency;
pub mod enrolment;
pub mod fairness;
pub mod latency;
pub mod links;
pub mod load;
pub mod peers;
pub mod pools;
pub mod programs;
pub mod recovery;
pub mod replicas;
pub mod scale;
pub mod schedules;
pub mod snapshot;
pub mod throughput;
pub mod yields;

use crate::context::Context;
use crate::report::Report;

/// Every table, in the order in which `all` runs them.
pub const TABLES: &[&str] = &[
    "throughput",
    "depth",
    "snapshot",
    "latency",
    "load",
    "efficiency",
    "scale",
    "peers",
    "convoys",
    "recovery",
    "fairness",
    "enrolment",
    "schedules",
    "replicas",
    "pools",
    "programs",
    "yields",
    "links",
];

/// Those of the queue itself: the others are of what has been built around it.
pub const QUEUE: &[&str] =
    &["throughput", "depth", "snapshot", "latency", "load", "efficiency", "scale", "peers", "convoys"];

/// Measures one table.
pub async fn run(table: &'static str, context: &Context, report: &mut Report) -> anyhow::Result<()> {
    match table {
        "throughput" => throughput::run(context, report).await,
        "depth" => depth::run(context, report).await,
        "snapshot" => snapshot::run(context, report).await,
        "latency" => latency::run(context, report).await,
        "load" => load::run(context, report).await,
        "efficiency" => efficiency::run(context, report).await,
        "scale" => scale::run(context, report).await,
        "peers" => peers::run(context, report).await,
        "convoys" => convoys::run(context, report).await,
        "recovery" => recovery::run(context, report).await,
        "fairness" => fairness::run(context, report).await,
        "enrolment" => enrolment::run(context, report).await,
        "schedules" => schedules::run(context, report).await,
        "replicas" => replicas::run(context, report).await,
        "pools" => pools::run(context, report).await,
        "programs" => programs::run(context, report).await,
        "links" => links::run(context, report).await,
        "yields" => yields::run(context, report).await,
        _ => anyhow::bail!("there is no table {table}: there are {}, and all", TABLES.join(", ")),
    }
}
