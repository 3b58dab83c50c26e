//! What is handed out at all: suspended and resumed, parked and unparked.

use anyhow::Result;
use pcfarm_proto::v1::{ParkRequest, SuspendRequest};
use prost_types::Timestamp;
use serde_json::json;

use crate::args::sharing::{ParkArgs, QueueVerb};
use crate::farm::Farm;
use crate::output::Output;
use crate::text;

pub async fn run(farm: &Farm, verb: QueueVerb, output: Output) -> Result<()> {
    match verb {
        QueueVerb::Suspend { job_type, reason } => suspend(farm, job_type, reason, false, output).await,
        QueueVerb::Resume { job_type } => suspend(farm, job_type, String::new(), true, output).await,
        QueueVerb::Park(args) => park(farm, args, false, output).await,
        QueueVerb::Unpark(args) => park(farm, args, true, output).await,
    }
}

async fn suspend(farm: &Farm, job_type: Option<String>, reason: String, undo: bool, output: Output) -> Result<()> {
    let what = match &job_type {
        Some(job_type) => format!("job type {job_type}"),
        None => "the queue".to_owned(),
    };
    let request = SuspendRequest { job_type: job_type.unwrap_or_default(), reason, undo };
    let (doing, done) = if undo { ("resuming", "handed out again") } else { ("suspending", "suspended") };
    let mut client = farm.queue();
    farm.call(&format!("{doing} {what}"), client.suspend(farm.request(request))).await?;
    output.print(|| json!({"suspended": !undo}), || format!("{what} is {done}"))
}

async fn park(farm: &Farm, args: ParkArgs, undo: bool, output: Output) -> Result<()> {
    let ParkArgs { job, user, loaded_from, loaded_before } = args;
    let stamp = |time: jiff::Timestamp| Timestamp { seconds: time.as_second(), nanos: time.subsec_nanosecond() };
    let request = ParkRequest {
        job_id: job.map_or(0, |job| job.0),
        owner: user.unwrap_or_default(),
        loaded_from: loaded_from.map(stamp),
        loaded_before: loaded_before.map(stamp),
        undo,
    };
    let (doing, done) = if undo { ("unparking", "handed out again") } else { ("parking", "parked") };
    let mut client = farm.queue();
    let parked = farm.call(doing, client.park(farm.request(request))).await?;
    output.print(
        || json!({"problems": parked.problems, "parked": !undo}),
        || format!("loads of {} are {done}", text::counted(parked.problems, "problem")),
    )
}
