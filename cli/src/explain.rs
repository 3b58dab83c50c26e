//! `pcfarm explain`: why something is not running, and what would change that.

use anyhow::Result;
use pcfarm_proto::ids::JobId;
use pcfarm_proto::v1::{ExplainRequest, ExplainResponse};
use serde::Serialize;

use crate::farm::Farm;
use crate::output::Output;
use crate::{text, workstations};

pub async fn job(farm: &Farm, id: JobId, output: Output) -> Result<()> {
    let request = ExplainRequest { job_id: id.0, workstation_id: 0 };
    explain(farm, &format!("explaining job {id}"), request, output).await
}

pub async fn workstation(farm: &Farm, name: &str, output: Output) -> Result<()> {
    let id = workstations::find(farm, name).await?;
    let request = ExplainRequest { job_id: 0, workstation_id: id.0 };
    explain(farm, &format!("explaining workstation {id}"), request, output).await
}

async fn explain(farm: &Farm, doing: &str, request: ExplainRequest, output: Output) -> Result<()> {
    let mut client = farm.status();
    let answer = farm.call(doing, client.explain(farm.request(request))).await?;
    output.print(|| ExplainJson { reasons: &answer.reasons }, || prose(&answer))
}

#[derive(Serialize)]
struct ExplainJson<'a> {
    reasons: &'a [String],
}

fn prose(answer: &ExplainResponse) -> String {
    let reasons: Vec<String> = answer.reasons.iter().map(|reason| text::plain(reason)).collect();
    match reasons.as_slice() {
        [] => "nothing is in its way".to_owned(),
        [one] => one.clone(),
        several => several.iter().map(|reason| format!("- {reason}\n")).collect(),
    }
}
