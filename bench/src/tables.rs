//! The tables of figures, one module each: what is measured, against what, and what is promised.

pub mod scale;
pub mod throughput;

use crate::context::Context;
use crate::report::Report;

/// Every table, in the order in which `all` runs them.
pub const TABLES: &[&str] = &["throughput", "scale"];

/// Measures one table.
pub async fn run(table: &'static str, context: &Context, report: &mut Report) -> anyhow::Result<()> {
    match table {
        "throughput" => throughput::run(context, report).await,
        "scale" => scale::run(context, report).await,
        _ => anyhow::bail!("there is no table {table}: there are {}, and all", TABLES.join(", ")),
    }
}
