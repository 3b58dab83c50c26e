//! `pcfarm clock`: whether the database's clock is proven, and accepting it.

use anyhow::Result;
use pcfarm_proto::v1::{AcceptClockRequest, Clock, GetClockRequest};
use serde::Serialize;

use crate::farm::Farm;
use crate::output::{self, Output};
use crate::text::{self, cut};

pub async fn show(farm: &Farm, output: Output) -> Result<()> {
    let mut client = farm.status();
    let clock = farm.call("asking for the clock", client.get_clock(farm.request(GetClockRequest {}))).await?;
    output.print(|| json(&clock), || told(&clock))
}

pub async fn accept(farm: &Farm, output: Output) -> Result<()> {
    let mut client = farm.status();
    let clock = farm.call("accepting the clock", client.accept_clock(farm.request(AcceptClockRequest {}))).await?;
    output.print(|| json(&clock), || told(&clock))
}

fn time(time: Option<&prost_types::Timestamp>) -> String {
    text::rfc3339(time).unwrap_or_else(|| "never".to_owned())
}

fn told(clock: &Clock) -> String {
    let mut rows = vec![
        ("clock", if clock.proven { "proven" } else { "unproven: nothing is removed for its age" }.to_owned()),
        ("database's time", time(clock.now.as_ref())),
        ("looked at", time(clock.checked_at.as_ref())),
    ];
    if !clock.proven {
        if clock.unproven_since.is_some() {
            rows.push(("unproven since", time(clock.unproven_since.as_ref())));
            rows.push((
                "proven again",
                format!("{}, without another step; or by `pcfarm clock accept`", time(clock.proven_at.as_ref())),
            ));
        }
        rows.extend(clock.reasons.iter().map(|reason| ("reason", cut(reason, 400))));
    }
    if clock.accepted_at.is_some() {
        let by = cut(&clock.accepted_by, 63);
        rows.push(("accepted", format!("{} by {by}", time(clock.accepted_at.as_ref()))));
    }
    output::fields(&rows)
}

#[derive(Serialize)]
struct ClockJson<'a> {
    proven: bool,
    now: Option<String>,
    checked_at: Option<String>,
    unproven_since: Option<String>,
    proven_at: Option<String>,
    reasons: &'a [String],
    accepted_by: Option<&'a str>,
    accepted_at: Option<String>,
}

fn json(clock: &Clock) -> ClockJson<'_> {
    ClockJson {
        proven: clock.proven,
        now: text::rfc3339(clock.now.as_ref()),
        checked_at: text::rfc3339(clock.checked_at.as_ref()),
        unproven_since: text::rfc3339(clock.unproven_since.as_ref()),
        proven_at: text::rfc3339(clock.proven_at.as_ref()),
        reasons: &clock.reasons,
        accepted_by: Some(&*clock.accepted_by).filter(|by| !by.is_empty()),
        accepted_at: text::rfc3339(clock.accepted_at.as_ref()),
    }
}
