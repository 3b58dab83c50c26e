//! What is to be done when, and what came of it.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
use bytes::Bytes;
use pcfarm_proto::v1::schedule_definition::Target;
use pcfarm_proto::v1::{
    AppliedSchedule, ApplySchedulesRequest, CreateScheduleRequest, DeleteScheduleRequest, ExportSchedulesRequest,
    ListSchedulesRequest, NextTimesRequest, NextTimesResponse, Schedule, ScheduleDefinition, ScheduleHistoryRequest,
    ScheduleRequest, ScheduleTrigger, UpdateScheduleRequest,
};
use prost_types::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::args::schedules::{
    CatchUp, CreateScheduleArgs, DefinitionArgs, ListSchedulesArgs, NextArgs, SchedulesVerb, State, UpdateScheduleArgs,
};
use crate::exit::{Exit, Failure};
use crate::farm::Farm;
use crate::output::{self, Column, Output};
use crate::text::{self, counted, cut, number, plain};

/// Of one page; lists are read page by page.
const PAGE: u32 = 1_000;

/// Shown with a schedule.
const NEXT_SHOWN: u32 = 3;

pub async fn run(farm: &Farm, verb: SchedulesVerb, output: Output) -> Result<()> {
    match verb {
        SchedulesVerb::Create(args) => create(farm, args, output).await,
        SchedulesVerb::List(args) => list(farm, args, output).await,
        SchedulesVerb::Show(args) => show(farm, &args.schedule, output).await,
        SchedulesVerb::Update(args) => update(farm, args, output).await,
        SchedulesVerb::Enable(args) => enable(farm, &args.schedule, true, output).await,
        SchedulesVerb::Disable(args) => enable(farm, &args.schedule, false, output).await,
        SchedulesVerb::Delete { schedule, version } => {
            delete(farm, &schedule.schedule, version.unwrap_or(0), output).await
        }
        SchedulesVerb::Trigger(args) => trigger(farm, &args.schedule, output).await,
        SchedulesVerb::History { schedule, limit, before } => {
            history(farm, &schedule.schedule, limit, before.unwrap_or(0), output).await
        }
        SchedulesVerb::Next(args) => next(farm, args, output).await,
        SchedulesVerb::Export { names, owner } => export(farm, names, owner).await,
        SchedulesVerb::Apply { file, prune, dry_run } => apply(farm, &file, prune, dry_run, output).await,
    }
}

/// A name, an owner's name, or an id.
fn named(text: &str) -> ScheduleRequest {
    match (text.parse::<i64>(), text.split_once('/')) {
        (Ok(schedule_id), _) => ScheduleRequest { schedule_id, ..ScheduleRequest::default() },
        (Err(_), Some((owner, name))) => {
            ScheduleRequest { name: name.to_owned(), owner: owner.to_owned(), ..ScheduleRequest::default() }
        }
        (Err(_), None) => ScheduleRequest { name: text.to_owned(), ..ScheduleRequest::default() },
    }
}

async fn create(farm: &Farm, args: CreateScheduleArgs, output: Output) -> Result<()> {
    let CreateScheduleArgs { name, recurrence, definition, disabled } = args;
    let (mut definition, _) = said(definition)?;
    (definition.name, definition.recurrence) = (name, recurrence);
    definition.enabled = Some(!disabled);
    let request = CreateScheduleRequest { definition: Some(definition) };
    let made = farm.call("creating a schedule", farm.schedules().create(farm.request(request))).await?;
    output.print(|| schedule_json(&made), || changed(&made, "created"))
}

async fn update(farm: &Farm, args: UpdateScheduleArgs, output: Output) -> Result<()> {
    let UpdateScheduleArgs { schedule, rename, recurrence, definition, no_start, no_end, version } = args;
    let (mut definition, mut fields) = said(definition)?;
    if let Some(name) = rename {
        definition.name = name;
        fields.push("name");
    }
    if let Some(recurrence) = recurrence {
        definition.recurrence = recurrence;
        fields.push("recurrence");
    }
    // What is named and has no value is taken away.
    fields.extend(no_start.then_some("starts_at"));
    fields.extend(no_end.then_some("ends_at"));
    if fields.is_empty() {
        return Err(Failure::usage("nothing to change is named: see `pcfarm schedules update --help`"));
    }
    let request = UpdateScheduleRequest {
        schedule: Some(named(&schedule.schedule)),
        version: version.unwrap_or(0),
        definition: Some(definition),
        fields: fields.into_iter().map(str::to_owned).collect(),
    };
    let doing = format!("updating schedule {}", plain(&schedule.schedule));
    let made = farm.call(&doing, farm.schedules().update(farm.request(request))).await?;
    output.print(|| schedule_json(&made), || changed(&made, "updated"))
}

/// What was said, and which fields that is.
fn said(args: DefinitionArgs) -> Result<(ScheduleDefinition, Vec<&'static str>)> {
    let DefinitionArgs {
        zone,
        starts,
        ends,
        catch_up,
        catch_up_limit,
        jitter,
        payload,
        description,
        job,
        job_key,
        template,
    } = args;
    let mut fields = Vec::new();
    let mut has = |there: bool, field: &'static str| {
        if there {
            fields.push(field);
        }
    };
    has(zone.is_some(), "time_zone");
    has(starts.is_some(), "starts_at");
    has(ends.is_some(), "ends_at");
    has(catch_up.is_some(), "catch_up");
    has(catch_up_limit.is_some(), "catch_up_limit");
    has(jitter.is_some(), "jitter_ms");
    has(payload.is_some(), "payload");
    has(description.is_some(), "description");
    has(job.is_some() || job_key.is_some() || template.is_some(), "target");
    let stamp = |time: jiff::Timestamp| Timestamp { seconds: time.as_second(), nanos: time.subsec_nanosecond() };
    let target = match (job, job_key, template) {
        (Some(job), _, _) => Some(Target::JobId(job.0)),
        (_, Some(key), _) => Some(Target::JobKey(key)),
        (_, _, Some(template)) => Some(Target::Template(document(&template)?)),
        (None, None, None) => None,
    };
    let definition = ScheduleDefinition {
        description: description.unwrap_or_default(),
        time_zone: zone.unwrap_or_default(),
        starts_at: starts.map(stamp),
        ends_at: ends.map(stamp),
        catch_up: catch_up.map(catch_up_name).unwrap_or_default().to_owned(),
        catch_up_limit: catch_up_limit.unwrap_or(0),
        jitter_ms: jitter.map_or(0, |jitter| u64::try_from(jitter.as_millis()).unwrap_or(u64::MAX)),
        payload: payload.map_or(Ok(Bytes::new()), |payload| document(&payload))?,
        target,
        ..ScheduleDefinition::default()
    };
    Ok((definition, fields))
}

fn catch_up_name(how: CatchUp) -> &'static str {
    match how {
        CatchUp::Skip => "skip",
        CatchUp::Once => "once",
        CatchUp::All => "all",
    }
}

fn state_name(state: State) -> &'static str {
    match state {
        State::Active => "active",
        State::Disabled => "disabled",
        State::Ended => "ended",
        State::Broken => "broken",
    }
}

/// As it was given, or what a file holds.
fn document(text: &str) -> Result<Bytes> {
    match text.strip_prefix('@') {
        Some(path) => Ok(read(Path::new(path))?.into()),
        None => Ok(text.to_owned().into()),
    }
}

fn read(path: &Path) -> Result<String> {
    let mut text = String::new();
    if path == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).context("reading standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(path)
        .map_err(|error| Failure::of(Exit::NotFound, format!("reading {}: {error}", path.display())))
}

fn changed(schedule: &Schedule, how: &str) -> String {
    let definition = schedule.definition.clone().unwrap_or_default();
    let next = match text::rfc3339(schedule.next_due_at.as_ref()) {
        Some(next) => format!("comes next at {next}"),
        None => plain(&schedule.reason),
    };
    format!("schedule {} ({}) {how}: {next}", cut(&definition.name, 100), schedule.schedule_id)
}

async fn list(farm: &Farm, args: ListSchedulesArgs, output: Output) -> Result<()> {
    let ListSchedulesArgs { owner, state, prefix, job, limit } = args;
    let mut found: Vec<Schedule> = Vec::new();
    let mut request = ListSchedulesRequest {
        owner: owner.unwrap_or_default(),
        name_prefix: prefix.unwrap_or_default(),
        state: state.map(state_name).unwrap_or_default().to_owned(),
        job_id: job.map_or(0, |job| job.0),
        ..ListSchedulesRequest::default()
    };
    loop {
        let left = limit - u32::try_from(found.len()).unwrap_or(limit);
        request.limit = left.min(PAGE);
        let page = farm.call("listing schedules", farm.schedules().list(farm.request(request.clone()))).await?;
        found.extend(page.schedules);
        request.after = page.next;
        if request.after.is_empty() || found.len() >= limit as usize {
            break;
        }
    }
    output.print(|| SchedulesJson { schedules: found.iter().map(schedule_json).collect() }, || schedules(&found))
}

fn schedules(found: &[Schedule]) -> String {
    let now = jiff::Timestamp::now();
    let columns = [
        Column::Number("ID"),
        Column::Text("NAME"),
        Column::Text("OWNER"),
        Column::Text("STATE"),
        Column::Text("NEXT"),
        Column::Number("TRIGGERS"),
        Column::Reason("WHEN"),
    ];
    let row = |one: &Schedule| {
        let definition = one.definition.clone().unwrap_or_default();
        let next = one.next_due_at.as_ref().map(|due| text::ago(Some(due), now)).unwrap_or_default();
        vec![
            one.schedule_id.to_string(),
            cut(&definition.name, 24),
            cut(&one.owner, 12),
            one.state.clone(),
            next,
            number(one.triggers),
            cut(&format!("{} {}", definition.recurrence, definition.time_zone), 60),
        ]
    };
    let none = "no schedules: `pcfarm schedules create` makes one";
    output::table(&columns, found.iter().map(row).collect(), none)
}

async fn show(farm: &Farm, schedule: &str, output: Output) -> Result<()> {
    let doing = format!("showing schedule {}", plain(schedule));
    let found = farm.call(&doing, farm.schedules().get(farm.request(named(schedule)))).await?;
    let request = NextTimesRequest {
        schedule: Some(ScheduleRequest { schedule_id: found.schedule_id, ..ScheduleRequest::default() }),
        count: NEXT_SHOWN,
        ..NextTimesRequest::default()
    };
    // Of one that nobody can compute there are none.
    let next = farm.schedules().next_times(farm.request(request)).await.map(tonic::Response::into_inner);
    let next = next.unwrap_or_default();
    output.print(|| schedule_json(&found), || shown(&found, &next))
}

fn shown(schedule: &Schedule, next: &NextTimesResponse) -> String {
    let definition = schedule.definition.clone().unwrap_or_default();
    let time = |time: &Option<Timestamp>| text::rfc3339(time.as_ref()).unwrap_or_default();
    let json = |bytes: &Bytes| plain(&String::from_utf8_lossy(bytes));
    let target = match &definition.target {
        Some(Target::JobId(job)) if !schedule.job_key.is_empty() => {
            format!("a problem of job {job} ({})", plain(&schedule.job_key))
        }
        Some(Target::JobId(job)) => format!("a problem of job {job}"),
        Some(Target::JobKey(key)) => format!("a problem of job {}", plain(key)),
        Some(Target::Template(template)) => format!("a job: {}", json(template)),
        None => String::new(),
    };
    let jitter = if definition.jitter_ms == 0 { String::new() } else { format!("{} ms", definition.jitter_ms) };
    let catch_up = match definition.catch_up.as_str() {
        "all" => format!("all missed times, at most {}", definition.catch_up_limit),
        "once" => "the last missed time".to_owned(),
        _ => "nothing that was missed".to_owned(),
    };
    let active = schedule.state == "active";
    let next = next.times.iter().filter(|_| active).map(|time| local(time, &definition.time_zone));
    output::fields(&[
        ("schedule", schedule.schedule_id.to_string()),
        ("name", plain(&definition.name)),
        ("owner", plain(&schedule.owner)),
        ("description", plain(&definition.description)),
        ("state", format!("{}: {}", schedule.state, plain(&schedule.reason))),
        ("recurrence", plain(&definition.recurrence)),
        ("time zone", plain(&definition.time_zone)),
        ("starts", time(&definition.starts_at)),
        ("ends", time(&definition.ends_at)),
        ("triggers", target),
        ("payload", json(&definition.payload)),
        ("jitter", jitter),
        ("catches up", catch_up),
        ("next", next.collect::<Vec<_>>().join(", ")),
        ("last due", time(&schedule.last_due_at)),
        ("triggered", time(&schedule.last_triggered_at)),
        ("count", number(schedule.triggers)),
        ("version", schedule.version.to_string()),
        ("created", time(&schedule.created_at)),
        ("changed", time(&schedule.changed_at)),
    ])
}

/// By the clocks of its zone, with the offset that tells two of the same name apart.
fn local(time: &Timestamp, zone: &str) -> String {
    let instant = jiff::Timestamp::new(time.seconds, time.nanos);
    match (instant, jiff::tz::TimeZone::get(zone)) {
        (Ok(instant), Ok(zone)) => instant.to_zoned(zone).strftime("%a %Y-%m-%d %H:%M:%S %:z").to_string(),
        _ => text::rfc3339(Some(time)).unwrap_or_default(),
    }
}

async fn enable(farm: &Farm, schedule: &str, enabled: bool, output: Output) -> Result<()> {
    let mut client = farm.schedules();
    let request = farm.request(named(schedule));
    let how = if enabled { "enabled" } else { "disabled" };
    let doing = format!("changing schedule {}", plain(schedule));
    let made = if enabled {
        farm.call(&doing, client.enable(request)).await?
    } else {
        farm.call(&doing, client.disable(request)).await?
    };
    output.print(|| schedule_json(&made), || changed(&made, how))
}

async fn delete(farm: &Farm, schedule: &str, version: i64, output: Output) -> Result<()> {
    let request = DeleteScheduleRequest { schedule: Some(named(schedule)), version };
    let doing = format!("deleting schedule {}", plain(schedule));
    farm.call(&doing, farm.schedules().delete(farm.request(request))).await?;
    let json = || DeletedJson { deleted: schedule };
    output.print(json, || format!("schedule {} is gone; what it has enqueued stays", plain(schedule)))
}

async fn trigger(farm: &Farm, schedule: &str, output: Output) -> Result<()> {
    let doing = format!("triggering schedule {}", plain(schedule));
    let sequence = farm.call(&doing, farm.schedules().trigger(farm.request(named(schedule)))).await?.sequence;
    let json = || TriggeredJson { schedule, sequence };
    output.print(json, || {
        let name = plain(schedule);
        format!(
            "schedule {name} triggered: its trigger {sequence}; `pcfarm schedules history {name}` tells what came of it"
        )
    })
}

async fn history(farm: &Farm, schedule: &str, limit: u32, before_sequence: i64, output: Output) -> Result<()> {
    let request = ScheduleHistoryRequest { schedule: Some(named(schedule)), before_sequence, limit };
    let doing = format!("reading the history of schedule {}", plain(schedule));
    let found = farm.call(&doing, farm.schedules().history(farm.request(request))).await?.triggers;
    let columns = [
        Column::Number("NO"),
        Column::Text("DUE"),
        Column::Number("LATE"),
        Column::Text("OUTCOME"),
        Column::Number("JOB"),
        Column::Number("PROBLEM"),
        Column::Reason("WHY"),
    ];
    let row = |one: &ScheduleTrigger| {
        vec![
            number(one.sequence),
            text::rfc3339(one.due_at.as_ref()).unwrap_or_default(),
            format!("{} ms", number(one.lateness_ms)),
            if one.server_id == 0 { format!("{}, by hand", one.outcome) } else { one.outcome.clone() },
            output::id(one.job_id).unwrap_or_default(),
            output::id(one.problem_id).unwrap_or_default(),
            cut(&one.message, 200),
        ]
    };
    output.print(
        || HistoryJson { triggers: found.iter().map(trigger_json).collect() },
        || output::table(&columns, found.iter().map(row).collect(), "it has triggered nothing yet"),
    )
}

async fn next(farm: &Farm, args: NextArgs, output: Output) -> Result<()> {
    let NextArgs { schedule, recurrence, zone, count } = args;
    let definition = recurrence.map(|recurrence| ScheduleDefinition {
        recurrence,
        time_zone: zone.unwrap_or_default(),
        ..ScheduleDefinition::default()
    });
    let request = NextTimesRequest { schedule: schedule.as_deref().map(named), definition, count };
    let found = farm.call("computing next times", farm.schedules().next_times(farm.request(request))).await?;
    let json = || NextJson {
        times: found.times.iter().filter_map(|time| text::rfc3339(Some(time))).collect(),
        time_zone: &found.time_zone,
        description: &found.description,
    };
    output.print(json, || {
        let times: Vec<String> = found.times.iter().map(|time| local(time, &found.time_zone)).collect();
        let times = if times.is_empty() { "it comes no more".to_owned() } else { times.join("\n") };
        format!("{} ({})\n{times}", plain(&found.description), plain(&found.time_zone))
    })
}

async fn export(farm: &Farm, names: Vec<String>, owner: Option<String>) -> Result<()> {
    let request = ExportSchedulesRequest { owner: owner.unwrap_or_default(), names };
    let found = farm.call("exporting schedules", farm.schedules().export(farm.request(request))).await?.definitions;
    let schedules = found.iter().map(file_of).collect::<Result<Vec<_>>>()?;
    output::print_json(&FileJson { schedules })
}

async fn apply(farm: &Farm, file: &Path, prune: bool, dry_run: bool, output: Output) -> Result<()> {
    let text = read(file)?;
    let wrong = |error: serde_json::Error| Failure::usage(format!("{}: {error}", file.display()));
    let document: FileJson = serde_json::from_str(&text).map_err(wrong)?;
    let definitions = document.schedules.into_iter().map(definition_of).collect::<Result<Vec<_>>>()?;
    let request = ApplySchedulesRequest { definitions, prune, dry_run };
    let applied = farm.call("applying schedules", farm.schedules().apply(farm.request(request))).await?.applied;
    let json = || AppliedJson {
        dry_run,
        schedules: applied.iter().map(|one| (one.name.as_str(), one.action.as_str())).collect(),
    };
    output.print(json, || applied_text(&applied, dry_run))
}

fn applied_text(applied: &[AppliedSchedule], dry_run: bool) -> String {
    let mut lines: Vec<String> = applied
        .iter()
        .filter(|one| one.action != "unchanged")
        .map(|one| format!("{:<9}  {}", one.action, cut(&one.name, 80)))
        .collect();
    let unchanged = applied.len() - lines.len();
    lines.push(format!("{} unchanged", counted(unchanged as i64, "schedule")));
    if dry_run {
        lines.push("nothing was changed: this was a dry run".to_owned());
    }
    lines.join("\n")
}

/// What `export` writes and `apply` reads.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileJson {
    schedules: Vec<FileSchedule>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSchedule {
    name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    description: String,
    recurrence: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    time_zone: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    starts_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ends_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    enabled: Option<bool>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    catch_up: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    catch_up_limit: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    jitter_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    /// An id, as a string.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    job: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    job_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    template: Option<Box<RawValue>>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn file_of(definition: &ScheduleDefinition) -> Result<FileSchedule> {
    let given = |bytes: &Bytes| -> Result<Box<RawValue>> {
        let text = String::from_utf8(bytes.to_vec()).context("JSON that is no text")?;
        RawValue::from_string(text).context("what the server calls JSON")
    };
    let (mut job, mut job_key, mut template) = (None, None, None);
    match &definition.target {
        Some(Target::JobId(id)) => job = Some(id.to_string()),
        Some(Target::JobKey(key)) => job_key = Some(key.clone()),
        Some(Target::Template(text)) => template = Some(given(text)?),
        None => {}
    }
    Ok(FileSchedule {
        name: definition.name.clone(),
        description: definition.description.clone(),
        recurrence: definition.recurrence.clone(),
        time_zone: definition.time_zone.clone(),
        starts_at: text::rfc3339(definition.starts_at.as_ref()),
        ends_at: text::rfc3339(definition.ends_at.as_ref()),
        enabled: definition.enabled,
        catch_up: definition.catch_up.clone(),
        catch_up_limit: definition.catch_up_limit.into(),
        jitter_ms: definition.jitter_ms,
        payload: Some(&definition.payload).filter(|payload| !payload.is_empty()).map(given).transpose()?,
        job,
        job_key,
        template,
    })
}

fn definition_of(file: FileSchedule) -> Result<ScheduleDefinition> {
    let name = file.name;
    let wrong = |what: &str| Failure::usage(format!("schedule {name:?}: {what}"));
    let time = |text: Option<String>| -> Result<Option<Timestamp>> {
        let Some(text) = text else { return Ok(None) };
        let time: jiff::Timestamp = text.parse().map_err(|_| wrong(&format!("{text:?} is no time")))?;
        Ok(Some(Timestamp { seconds: time.as_second(), nanos: time.subsec_nanosecond() }))
    };
    let target = match (file.job, file.job_key, file.template) {
        (Some(job), None, None) => {
            Target::JobId(job.parse().map_err(|_| wrong("`job` is the id of a job, as a string"))?)
        }
        (None, Some(key), None) => Target::JobKey(key),
        (None, None, Some(template)) => Target::Template(template.get().to_owned().into()),
        _ => return Err(wrong("it needs one of job, job_key and template")),
    };
    Ok(ScheduleDefinition {
        starts_at: time(file.starts_at)?,
        ends_at: time(file.ends_at)?,
        catch_up_limit: u32::try_from(file.catch_up_limit).map_err(|_| wrong("catch_up_limit is too large"))?,
        name,
        description: file.description,
        recurrence: file.recurrence,
        time_zone: file.time_zone,
        enabled: file.enabled,
        catch_up: file.catch_up,
        jitter_ms: file.jitter_ms,
        payload: file.payload.map(|payload| payload.get().to_owned().into()).unwrap_or_default(),
        target: Some(target),
    })
}

#[derive(Serialize)]
struct SchedulesJson {
    schedules: Vec<ScheduleJson>,
}

#[derive(Serialize)]
struct ScheduleJson {
    schedule_id: String,
    owner: String,
    name: String,
    description: String,
    recurrence: String,
    time_zone: String,
    starts_at: Option<String>,
    ends_at: Option<String>,
    enabled: bool,
    catch_up: String,
    catch_up_limit: u32,
    jitter_ms: u64,
    payload: Option<Box<RawValue>>,
    job_id: Option<String>,
    job_key: Option<String>,
    template: Option<Box<RawValue>>,
    state: String,
    reason: String,
    next_due_at: Option<String>,
    next_trigger_at: Option<String>,
    last_due_at: Option<String>,
    last_triggered_at: Option<String>,
    triggers: i64,
    version: i64,
    created_at: Option<String>,
    changed_at: Option<String>,
}

fn schedule_json(one: &Schedule) -> ScheduleJson {
    let definition = one.definition.clone().unwrap_or_default();
    let time = |time: &Option<Timestamp>| text::rfc3339(time.as_ref());
    let (mut job_id, mut template) = (None, None);
    match &definition.target {
        Some(Target::JobId(job)) => job_id = output::id(*job),
        Some(Target::Template(text)) => template = output::raw(text),
        Some(Target::JobKey(_)) | None => {}
    }
    ScheduleJson {
        schedule_id: one.schedule_id.to_string(),
        owner: one.owner.clone(),
        name: definition.name,
        description: definition.description,
        recurrence: definition.recurrence,
        time_zone: definition.time_zone,
        starts_at: time(&definition.starts_at),
        ends_at: time(&definition.ends_at),
        enabled: definition.enabled.unwrap_or(true),
        catch_up: definition.catch_up,
        catch_up_limit: definition.catch_up_limit,
        jitter_ms: definition.jitter_ms,
        payload: output::raw(&definition.payload),
        job_id,
        job_key: Some(one.job_key.clone()).filter(|key| !key.is_empty()),
        template,
        state: one.state.clone(),
        reason: one.reason.clone(),
        next_due_at: time(&one.next_due_at),
        next_trigger_at: time(&one.next_trigger_at),
        last_due_at: time(&one.last_due_at),
        last_triggered_at: time(&one.last_triggered_at),
        triggers: one.triggers,
        version: one.version,
        created_at: time(&one.created_at),
        changed_at: time(&one.changed_at),
    }
}

#[derive(Serialize)]
struct DeletedJson<'a> {
    deleted: &'a str,
}

#[derive(Serialize)]
struct TriggeredJson<'a> {
    schedule: &'a str,
    sequence: i64,
}

#[derive(Serialize)]
struct HistoryJson<'a> {
    triggers: Vec<TriggerJson<'a>>,
}

#[derive(Serialize)]
struct TriggerJson<'a> {
    sequence: i64,
    due_at: Option<String>,
    triggered_at: Option<String>,
    lateness_ms: i64,
    outcome: &'a str,
    message: &'a str,
    job_id: Option<String>,
    problem_id: Option<String>,
    server_id: Option<String>,
}

fn trigger_json(one: &ScheduleTrigger) -> TriggerJson<'_> {
    TriggerJson {
        sequence: one.sequence,
        due_at: text::rfc3339(one.due_at.as_ref()),
        triggered_at: text::rfc3339(one.triggered_at.as_ref()),
        lateness_ms: one.lateness_ms,
        outcome: &one.outcome,
        message: &one.message,
        job_id: output::id(one.job_id),
        problem_id: output::id(one.problem_id),
        server_id: output::id(one.server_id),
    }
}

#[derive(Serialize)]
struct NextJson<'a> {
    times: Vec<String>,
    time_zone: &'a str,
    description: &'a str,
}

#[derive(Serialize)]
struct AppliedJson<'a> {
    dry_run: bool,
    schedules: BTreeMap<&'a str, &'a str>,
}
