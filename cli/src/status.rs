//! `pcfarm status`: the farm at a glance.

use anyhow::Result;
use pcfarm_proto::v1::{FarmStatus, GetStatusRequest, ServerStatus};
use serde::Serialize;

use crate::farm::Farm;
use crate::output::{self, Column, Output};
use crate::text::{self, ago, cut, number};

pub async fn show(farm: &Farm, output: Output) -> Result<()> {
    let status = get(farm).await?;
    let now = jiff::Timestamp::now();
    output.print(|| json(&status), || text(&status, farm.server(), now))
}

pub async fn get(farm: &Farm) -> Result<FarmStatus> {
    let mut client = farm.status();
    farm.call("asking for the farm's status", client.get_status(farm.request(GetStatusRequest {}))).await
}

/// The one place where the farm is told in words; `top` starts with it.
pub fn text(status: &FarmStatus, server: &str, now: jiff::Timestamp) -> String {
    let mut rows = vec![
        ("server", format!("{}, version {}", cut(server, 60), cut(&status.server_version, 20))),
        ("workstations", workstations(status)),
        (
            "jobs",
            format!(
                "{} open, {} loading, {} held",
                number(status.jobs_open),
                number(status.jobs_loading),
                number(status.jobs_held)
            ),
        ),
        (
            "problems",
            format!("{} waiting, {} in progress", number(status.problems_waiting), number(status.problems_in_progress)),
        ),
    ];
    if status.refused_results > 0 {
        let refused = number(status.refused_results);
        rows.push(("refused", format!("{refused} results that came under a checkout no longer theirs")));
    }
    rows.extend(status.warnings.iter().map(|warning| ("warning", cut(warning, 400))));
    let mut text = output::fields(&rows);
    if status.servers.len() > 1 || status.servers.iter().any(|server| !server.live) {
        text.push_str("\n\n");
        text.push_str(&servers(&status.servers, now));
    }
    text
}

fn workstations(status: &FarmStatus) -> String {
    let states = [
        (status.workstations_processing, "processing"),
        (status.workstations_waiting, "waiting"),
        (status.workstations_suspended, "suspended (by a person or a rule)"),
        (status.workstations_cannot_tell, "cannot tell whether a person is present"),
        (status.workstations_draining, "draining"),
        (status.workstations_lost, "lost"),
        (status.workstations_offline, "offline"),
        (status.workstations_dead, "dead"),
    ];
    let told: Vec<String> = states
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, state)| format!("{} {state}", number(*count)))
        .collect();
    if told.is_empty() {
        return "none has connected yet".to_owned();
    }
    let mut told = format!("{}; {}", told.join(", "), text::counted(status.cores, "core"));
    if status.workstations_unheard > 0 {
        told.push_str(&format!("; {} not heard now", number(status.workstations_unheard)));
    }
    told
}

fn servers(servers: &[ServerStatus], now: jiff::Timestamp) -> String {
    let rows = servers
        .iter()
        .map(|server| {
            let heard = ago(server.heard_at.as_ref(), now);
            vec![
                server.server_id.to_string(),
                cut(&server.name, 30),
                cut(&server.address, 30),
                ago(server.started_at.as_ref(), now),
                if server.live { "live".to_owned() } else { format!("silent: last heard {heard}") },
            ]
        })
        .collect();
    let columns = [
        Column::Number("SERVER"),
        Column::Text("NAME"),
        Column::Text("ADDRESS"),
        Column::Text("STARTED"),
        Column::Reason("STATE"),
    ];
    output::table(&columns, rows, "")
}

#[derive(Serialize)]
struct StatusJson<'a> {
    server_version: &'a str,
    servers: Vec<ServerJson<'a>>,
    workstations_waiting: i64,
    workstations_processing: i64,
    workstations_suspended: i64,
    workstations_draining: i64,
    workstations_offline: i64,
    workstations_dead: i64,
    workstations_cannot_tell: i64,
    workstations_lost: i64,
    workstations_unheard: i64,
    workstations_without_work: i64,
    cores: i64,
    jobs_loading: i64,
    jobs_open: i64,
    jobs_held: i64,
    problems_waiting: i64,
    problems_in_progress: i64,
    refused_results: i64,
    warnings: &'a [String],
}

#[derive(Serialize)]
struct ServerJson<'a> {
    server_id: Option<String>,
    name: &'a str,
    address: &'a str,
    started_at: Option<String>,
    heard_at: Option<String>,
    live: bool,
}

fn json(status: &FarmStatus) -> StatusJson<'_> {
    StatusJson {
        server_version: &status.server_version,
        servers: status.servers.iter().map(server_json).collect(),
        workstations_waiting: status.workstations_waiting,
        workstations_processing: status.workstations_processing,
        workstations_suspended: status.workstations_suspended,
        workstations_draining: status.workstations_draining,
        workstations_offline: status.workstations_offline,
        workstations_dead: status.workstations_dead,
        workstations_cannot_tell: status.workstations_cannot_tell,
        workstations_lost: status.workstations_lost,
        workstations_unheard: status.workstations_unheard,
        workstations_without_work: status.workstations_without_work,
        cores: status.cores,
        jobs_loading: status.jobs_loading,
        jobs_open: status.jobs_open,
        jobs_held: status.jobs_held,
        problems_waiting: status.problems_waiting,
        problems_in_progress: status.problems_in_progress,
        refused_results: status.refused_results,
        warnings: &status.warnings,
    }
}

fn server_json(server: &ServerStatus) -> ServerJson<'_> {
    ServerJson {
        server_id: output::id(server.server_id),
        name: &server.name,
        address: &server.address,
        started_at: text::rfc3339(server.started_at.as_ref()),
        heard_at: text::rfc3339(server.heard_at.as_ref()),
        live: server.live,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workstations_are_counted_once_each_by_what_keeps_them_from_work() {
        let status = FarmStatus {
            workstations_processing: 1_200,
            workstations_suspended: 3,
            workstations_cannot_tell: 2,
            workstations_lost: 1,
            workstations_offline: 4,
            workstations_unheard: 1,
            cores: 9_600,
            ..FarmStatus::default()
        };
        assert_eq!(
            workstations(&status),
            "1,200 processing, 3 suspended (by a person or a rule), 2 cannot tell whether a person is present, 1 lost, 4 offline; \
             9,600 cores; 1 not heard now"
        );
        assert_eq!(workstations(&FarmStatus::default()), "none has connected yet");
    }
}
