//! Profiles: what limits job types by weekday, time of day and conditions, and the signals that those ask for.

use anyhow::Result;
use pcfarm_proto::v1::{
    Condition, DeleteProfileRequest, ListProfilesRequest, ListProfilesResponse, ListSignalsRequest,
    ListSignalsResponse, Profile, SetProfileRequest, SetSignalRequest,
};
use prost_types::Timestamp;
use serde::Serialize;

use crate::args::sharing::{Cap, ProfileArgs, ProfilesVerb, When};
use crate::exit::{Exit, Failure};
use crate::farm::Farm;
use crate::output::{self, Column, Output};
use crate::text::{self, cut};

pub async fn run(farm: &Farm, verb: ProfilesVerb, output: Output) -> Result<()> {
    let mut client = farm.queue();
    let found = match verb {
        ProfilesVerb::Signals => {
            let call = client.list_signals(farm.request(ListSignalsRequest {}));
            return show_signals(&farm.call("listing signals", call).await?, output);
        }
        ProfilesVerb::Signal { name, value, holds_for, forget: _ } => {
            let holds_for_seconds = holds_for.map(|time| time.as_secs_f64());
            let call = client.set_signal(farm.request(SetSignalRequest { name, value, holds_for_seconds }));
            return show_signals(&farm.call("setting a signal", call).await?, output);
        }
        ProfilesVerb::List { job_type } => profiles(farm, job_type, None).await?,
        ProfilesVerb::Explain { job_type, at } => {
            let found = profiles(farm, job_type.clone(), at).await?;
            return output.print(|| json(&found), || explained(&found, &job_type, at));
        }
        ProfilesVerb::Add { job_type, entry } => {
            let call = client.set_profile(farm.request(request(0, job_type, entry)?));
            farm.call("adding a profile's entry", call).await?
        }
        ProfilesVerb::Change { profile, entry } => {
            let of = profiles(farm, String::new(), None).await?.profiles;
            let Some(before) = of.into_iter().find(|one| one.profile_id == profile) else {
                return Err(Failure::of(Exit::NotFound, format!("there is no profile entry {profile}")));
            };
            let call = client.set_profile(farm.request(request(profile, before.job_type, entry)?));
            farm.call("changing a profile's entry", call).await?
        }
        ProfilesVerb::Delete { profile } => {
            let call = client
                .delete_profile(farm.request(DeleteProfileRequest { profile_id: profile, version: String::new() }));
            farm.call("deleting a profile's entry", call).await?
        }
    };
    output.print(|| json(&found), || table(&found))
}

async fn profiles(farm: &Farm, job_type: String, at: Option<jiff::Timestamp>) -> Result<ListProfilesResponse> {
    let at = at.map(|time| Timestamp { seconds: time.as_second(), nanos: time.subsec_nanosecond() });
    let call = async { farm.queue().list_profiles(farm.request(ListProfilesRequest { job_type, at })).await };
    farm.call("listing profiles", call).await
}

fn request(profile_id: i64, job_type: String, entry: ProfileArgs) -> Result<SetProfileRequest> {
    let ProfileArgs { days, from, to, zone, per_hour, per_checkout, priority, when } = entry;
    let caps = [("problems_per_hour", per_hour), ("problems_per_checkout", per_checkout), ("priority", priority)];
    let mut reset: Vec<String> =
        caps.iter().filter(|(_, cap)| *cap == Some(Cap::None)).map(|(name, _)| (*name).to_owned()).collect();
    if when.contains(&When::None) {
        reset.push("when".to_owned());
    }
    let small = |cap: Option<Cap>, name: &str| match cap {
        Some(Cap::Most(most)) => {
            i32::try_from(most).map(Some).map_err(|_| Failure::usage(format!("{name}: {most} is out of range")))
        }
        Some(Cap::None) | None => Ok(None),
    };
    Ok(SetProfileRequest {
        profile_id,
        job_type,
        weekdays: days,
        from,
        to,
        time_zone: zone,
        problems_per_hour: match per_hour {
            Some(Cap::Most(most)) => Some(most),
            Some(Cap::None) | None => None,
        },
        problems_per_checkout: small(per_checkout, "--per-checkout")?,
        priority: small(priority, "--priority")?,
        when: conditions(when),
        reset,
        version: String::new(),
    })
}

/// Bounds of one signal are one condition.
fn conditions(when: Vec<When>) -> Vec<Condition> {
    let mut conditions: Vec<Condition> = Vec::new();
    for when in when {
        let (signal, at_least, below) = match when {
            When::AtLeast(signal, least) => (signal, Some(least), None),
            When::Below(signal, limit) => (signal, None, Some(limit)),
            When::None => continue,
        };
        match conditions.iter_mut().find(|condition| condition.signal == signal) {
            Some(known) => {
                known.at_least = at_least.or(known.at_least);
                known.below = below.or(known.below);
            }
            None => conditions.push(Condition { signal, at_least, below }),
        }
    }
    conditions
}

fn window(profile: &Profile) -> String {
    let days = match profile.weekdays.len() {
        7 => "every day".to_owned(),
        _ => profile.weekdays.join(","),
    };
    let times = if profile.from == "00:00" && profile.to == "24:00" {
        String::new()
    } else {
        format!(" {} to {}", profile.from, profile.to)
    };
    format!("{days}{times}, {}", profile.time_zone)
}

fn when(profile: &Profile) -> String {
    let one = |condition: &Condition| {
        let least = condition.at_least.map(|least| format!("{}>={least}", condition.signal));
        let below = condition.below.map(|below| format!("{}<{below}", condition.signal));
        [least, below].into_iter().flatten().collect::<Vec<_>>().join(" ")
    };
    profile.when.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn table(found: &ListProfilesResponse) -> String {
    let columns = [
        Column::Number("ENTRY"),
        Column::Text("TYPE"),
        Column::Text("IN FORCE"),
        Column::Text("WHEN"),
        Column::Number("PER HOUR"),
        Column::Number("USED"),
        Column::Number("PER CHECKOUT"),
        Column::Number("PRIORITY"),
    ];
    let limit = |limit: Option<i64>| limit.map_or_else(|| "–".to_owned(), text::number);
    let rows = found.profiles.iter().map(|one| {
        let conditions = when(one);
        let of_week = window(one);
        vec![
            one.profile_id.to_string(),
            cut(&one.job_type, 20),
            if one.holds { "yes".to_owned() } else { "no".to_owned() },
            if conditions.is_empty() { of_week } else { format!("{of_week}; {conditions}") },
            limit(one.problems_per_hour),
            text::number(one.used),
            limit(one.problems_per_checkout.map(i64::from)),
            limit(one.priority.map(i64::from)),
        ]
    });
    output::table(&columns, rows.collect(), "no profiles: `pcfarm profiles add TYPE` makes an entry of one")
}

fn explained(found: &ListProfilesResponse, job_type: &str, at: Option<jiff::Timestamp>) -> String {
    let moment = at.map_or_else(|| "now".to_owned(), |time| format!("at {time}"));
    let columns = [Column::Number("ENTRY"), Column::Text("WHEN"), Column::Reason("WHY")];
    let rows = found.profiles.iter().map(|one| {
        let conditions = when(one);
        let of_week = window(one);
        vec![
            one.profile_id.to_string(),
            if conditions.is_empty() { of_week } else { format!("{of_week}; {conditions}") },
            one.reason.clone(),
        ]
    });
    let says = match found.profiles.iter().find(|one| one.holds) {
        None => format!("Nothing limits job type {job_type} {moment}: no entry of its profile holds."),
        Some(one) => {
            let limits = [
                one.problems_per_hour.map(|most| {
                    format!("{} problems an hour, of which {} are used", text::number(most), text::number(one.used))
                }),
                one.problems_per_checkout.map(|most| format!("{} a checkout", text::number(most.into()))),
                one.priority.map(|priority| format!("priority {priority}")),
            ];
            let limits: Vec<String> = limits.into_iter().flatten().collect();
            let limits = if limits.is_empty() { "no limits".to_owned() } else { limits.join(", ") };
            format!("Entry {} holds for job type {job_type} {moment}: {limits}.", one.profile_id)
        }
    };
    if found.profiles.is_empty() {
        return says;
    }
    format!("{says}\n\n{}", output::table(&columns, rows.collect(), ""))
}

fn show_signals(found: &ListSignalsResponse, output: Output) -> Result<()> {
    let now = jiff::Timestamp::now();
    let columns = [Column::Text("SIGNAL"), Column::Number("VALUE"), Column::Text("SAID"), Column::Text("KNOWN")];
    let rows = found.signals.iter().map(|one| {
        vec![
            cut(&one.name, 40),
            one.value.to_string(),
            text::ago(one.said_at.as_ref(), now),
            if one.known { "yes".to_owned() } else { "no: said too long ago".to_owned() },
        ]
    });
    let signals = SignalsJson {
        signals: found
            .signals
            .iter()
            .map(|one| SignalJson {
                name: &one.name,
                value: one.value,
                said_at: text::rfc3339(one.said_at.as_ref()),
                holds_for_seconds: one.holds_for_seconds,
                known: one.known,
            })
            .collect(),
    };
    let none = "no signals: `pcfarm profiles signal NAME VALUE` says one";
    output.print(|| signals, || output::table(&columns, rows.collect(), none))
}

#[derive(Serialize)]
struct ProfilesJson<'a> {
    profiles: Vec<ProfileJson<'a>>,
}

#[derive(Serialize)]
struct ProfileJson<'a> {
    profile_id: String,
    job_type: &'a str,
    weekdays: &'a [String],
    from: &'a str,
    to: &'a str,
    time_zone: &'a str,
    problems_per_hour: Option<i64>,
    problems_per_checkout: Option<i32>,
    priority: Option<i32>,
    when: Vec<ConditionJson<'a>>,
    holds: bool,
    reason: &'a str,
    used: i64,
}

#[derive(Serialize)]
struct ConditionJson<'a> {
    signal: &'a str,
    at_least: Option<f64>,
    below: Option<f64>,
}

#[derive(Serialize)]
struct SignalsJson<'a> {
    signals: Vec<SignalJson<'a>>,
}

#[derive(Serialize)]
struct SignalJson<'a> {
    name: &'a str,
    value: f64,
    said_at: Option<String>,
    holds_for_seconds: f64,
    known: bool,
}

fn json(found: &ListProfilesResponse) -> ProfilesJson<'_> {
    ProfilesJson {
        profiles: found
            .profiles
            .iter()
            .map(|one| ProfileJson {
                profile_id: one.profile_id.to_string(),
                job_type: &one.job_type,
                weekdays: &one.weekdays,
                from: &one.from,
                to: &one.to,
                time_zone: &one.time_zone,
                problems_per_hour: one.problems_per_hour,
                problems_per_checkout: one.problems_per_checkout,
                priority: one.priority,
                when: one.when.iter().map(condition_json).collect(),
                holds: one.holds,
                reason: &one.reason,
                used: one.used,
            })
            .collect(),
    }
}

fn condition_json(one: &Condition) -> ConditionJson<'_> {
    ConditionJson { signal: &one.signal, at_least: one.at_least, below: one.below }
}
