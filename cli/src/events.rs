//! What happened, and what happens next.

use std::time::Duration;

use anyhow::Result;
use pcfarm_proto::v1::{Event, ListEventsRequest, ListEventsResponse};
use prost_types::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::args::EventsArgs;
use crate::farm::Farm;
use crate::output::{self, Column, Output};
use crate::text::{self, cut, plain};
use crate::workstations;

const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

pub async fn events(farm: &Farm, args: &EventsArgs, output: Output) -> Result<()> {
    let workstation_id = match &args.workstation {
        Some(name) => workstations::find(farm, name).await?.0,
        None => 0,
    };
    let mut request = ListEventsRequest {
        job_id: args.job.map_or(0, |job| job.0),
        workstation_id,
        what: args.what.clone(),
        since: args.since.map(|time| Timestamp { seconds: time.as_second(), nanos: time.subsec_nanosecond() }),
        after: String::new(),
        limit: args.limit,
    };
    loop {
        let found = list(farm, &request).await?;
        if !args.follow {
            return output
                .print(|| EventsJson { events: found.events.iter().map(json).collect() }, || table(&found.events));
        }
        for event in &found.events {
            // A document each: there is no last one.
            output.print(|| json(event), || line(event))?;
        }
        request.after = found.after;
        tokio::select! {
            () = tokio::time::sleep(BETWEEN_LOOKS) => {}
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
    }
}

async fn list(farm: &Farm, request: &ListEventsRequest) -> Result<ListEventsResponse> {
    let call = async { farm.status().list_events(farm.request(request.clone())).await };
    farm.call("listing events", call).await
}

fn subject(event: &Event) -> String {
    match (event.job_id, event.workstation_id) {
        (0, 0) => cut(&event.subject, 30),
        (0, id) => cut(&format!("{} ({id})", event.subject), 30),
        (id, _) => cut(format!("job {id} {}", event.subject).trim_end(), 30),
    }
}

fn details(event: &Event) -> String {
    match &*event.details {
        b"{}" | b"" => String::new(),
        details => plain(&String::from_utf8_lossy(details)),
    }
}

fn when(event: &Event) -> String {
    text::rfc3339(event.happened_at.as_ref()).unwrap_or_default()
}

fn line(event: &Event) -> String {
    [when(event), cut(&event.who, 20), cut(&event.what, 30), subject(event), details(event)]
        .join("  ")
        .trim_end()
        .to_owned()
}

fn table(events: &[Event]) -> String {
    let columns = [
        Column::Text("WHEN"),
        Column::Text("WHO"),
        Column::Text("WHAT"),
        Column::Text("OF"),
        Column::Reason("DETAILS"),
    ];
    let row =
        |event: &Event| vec![when(event), cut(&event.who, 16), cut(&event.what, 24), subject(event), details(event)];
    output::table(&columns, events.iter().map(row).collect(), "nothing of that kind has happened")
}

#[derive(Serialize)]
struct EventsJson<'a> {
    events: Vec<EventJson<'a>>,
}

#[derive(Serialize)]
struct EventJson<'a> {
    event_id: String,
    happened_at: String,
    who: &'a str,
    program: &'a str,
    what: &'a str,
    job_id: Option<String>,
    workstation_id: Option<String>,
    subject: &'a str,
    details: Option<&'a RawValue>,
}

fn json(event: &Event) -> EventJson<'_> {
    let id = |id: i64| (id != 0).then(|| id.to_string());
    EventJson {
        event_id: event.event_id.to_string(),
        happened_at: when(event),
        who: &event.who,
        program: &event.program,
        what: &event.what,
        job_id: id(event.job_id),
        workstation_id: id(event.workstation_id),
        subject: &event.subject,
        details: serde_json::from_slice(&event.details).ok(),
    }
}
