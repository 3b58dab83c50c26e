//! `pcfarm usage`: what users have had done, by day.

use anyhow::Result;
use pcfarm_proto::v1::{ListUsageRequest, Usage};
use serde::Serialize;

use crate::args::UsageArgs;
use crate::farm::Farm;
use crate::output::{self, Column, Output};
use crate::text::{cut, number};

#[derive(Serialize)]
struct UsageJson {
    usage: Vec<DayJson>,
}

#[derive(Serialize)]
struct DayJson {
    day: String,
    owner: String,
    done: i64,
    failed: i64,
    requeued: i64,
    cpu_seconds: f64,
    triggers: i64,
}

pub async fn usage(farm: &Farm, args: UsageArgs, output: Output) -> Result<()> {
    let request = ListUsageRequest {
        since: args.since.map(|day| day.to_string()).unwrap_or_default(),
        owner: args.user.unwrap_or_default(),
    };
    let call = async { farm.status().list_usage(farm.request(request)).await };
    let found = farm.call("listing usage", call).await?.usage;
    let columns = [
        Column::Text("DAY"),
        Column::Text("USER"),
        Column::Number("DONE"),
        Column::Number("FAILED"),
        Column::Number("REQUEUED"),
        Column::Number("CPU SECONDS"),
        Column::Number("TRIGGERS"),
    ];
    let row = |of: &Usage| {
        let seconds = number(of.cpu_seconds.round() as i64);
        let counts = [of.done, of.failed, of.requeued].map(number);
        [vec![of.day.clone(), cut(&of.owner, 30)], counts.to_vec(), vec![seconds, number(of.triggers)]].concat()
    };
    output.print(
        || UsageJson { usage: found.iter().map(json).collect() },
        || output::table(&columns, found.iter().map(row).collect(), "nothing was done in that time"),
    )
}

fn json(of: &Usage) -> DayJson {
    DayJson {
        day: of.day.clone(),
        owner: of.owner.clone(),
        done: of.done,
        failed: of.failed,
        requeued: of.requeued,
        cpu_seconds: of.cpu_seconds,
        triggers: of.triggers,
    }
}
