//! `pcfarm up` where servers do not run.

use anyhow::Result;

use crate::args::UpArgs;
use crate::exit::{Exit, Failure};

pub async fn up(_: &UpArgs, _: bool) -> Result<Exit> {
    Err(Failure::usage(
        "up runs a server with a PostgreSQL of its own, which does not run on Windows: name a server by --server",
    ))
}
