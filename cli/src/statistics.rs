//! `pcfarm statistics`: what was done in each hour.

use anyhow::Result;
use pcfarm_proto::v1::{ListStatisticsRequest, Statistic};
use prost_types::Timestamp;
use serde::Serialize;

use crate::args::StatisticsArgs;
use crate::farm::Farm;
use crate::output::{self, Column, Output};
use crate::text::{self, cut, number};

#[derive(Serialize)]
struct StatisticsJson {
    statistics: Vec<StatisticJson>,
}

#[derive(Serialize)]
struct StatisticJson {
    hour: Option<String>,
    job_type: String,
    owner: String,
    done: i64,
    failed: i64,
    requeued: i64,
}

pub async fn statistics(farm: &Farm, args: StatisticsArgs, output: Output) -> Result<()> {
    let StatisticsArgs { since, job_type, user } = args;
    let request = ListStatisticsRequest {
        since: since.map(|time| Timestamp { seconds: time.as_second(), nanos: time.subsec_nanosecond() }),
        job_type: job_type.unwrap_or_default(),
        owner: user.unwrap_or_default(),
        limit: 0,
    };
    let call = async { farm.status().list_statistics(farm.request(request)).await };
    let found = farm.call("listing statistics", call).await?.statistics;
    let columns = [
        Column::Text("HOUR"),
        Column::Text("TYPE"),
        Column::Text("USER"),
        Column::Number("DONE"),
        Column::Number("FAILED"),
        Column::Number("REQUEUED"),
    ];
    let row = |of: &Statistic| {
        let hour = text::rfc3339(of.hour.as_ref()).unwrap_or_default();
        vec![hour, cut(&of.job_type, 24), cut(&of.owner, 20), number(of.done), number(of.failed), number(of.requeued)]
    };
    output.print(
        || StatisticsJson { statistics: found.iter().map(json).collect() },
        || output::table(&columns, found.iter().map(row).collect(), "nothing was done in that time"),
    )
}

fn json(of: &Statistic) -> StatisticJson {
    StatisticJson {
        hour: text::rfc3339(of.hour.as_ref()),
        job_type: of.job_type.clone(),
        owner: of.owner.clone(),
        done: of.done,
        failed: of.failed,
        requeued: of.requeued,
    }
}
