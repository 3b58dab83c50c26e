//! Job types: how kinds of problems run.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use pcfarm_proto::v1::{DeleteJobTypeRequest, JobType, ListJobTypesRequest, SetJobTypeRequest};
use serde::Serialize;

use crate::args::types::{Length, SetTypeArgs, TypesVerb};
use crate::exit::{Exit, Failure};
use crate::farm::Farm;
use crate::files;
use crate::output::{self, Column, Output};
use crate::text::{self, cut, plain};

pub async fn run(farm: &Farm, verb: TypesVerb, output: Output) -> Result<()> {
    match verb {
        TypesVerb::List => {
            let found = types(farm, String::new()).await?;
            output.print(|| TypesJson { job_types: found.iter().map(json).collect() }, || table(&found))
        }
        TypesVerb::Show { job_type } => {
            let none = || Failure::of(Exit::NotFound, format!("there is no job type {job_type:?}"));
            let named = Some(job_type.clone()).filter(|name| !name.is_empty()).ok_or_else(none)?;
            let found = types(farm, named).await?.into_iter().next().ok_or_else(none)?;
            output.print(|| json(&found), || shown(&found))
        }
        TypesVerb::Set(mut args) => {
            if let Some(module) = &args.module {
                let module = files::upload(farm, module).await?;
                args.controller = Some(format!("wasm:{}", files::hash(&module)));
            }
            let call = async { farm.queue().set_job_type(farm.request(request(*args))).await };
            let made = farm.call("setting a job type", call).await?.job_type.unwrap_or_default();
            output.print(|| json(&made), || shown(&made))
        }
        TypesVerb::Remove { job_type, version } => {
            let request = DeleteJobTypeRequest { name: job_type.clone(), version };
            let doing = format!("removing job type {}", plain(&job_type));
            farm.call(&doing, async { farm.queue().delete_job_type(farm.request(request)).await }).await?;
            output.print(|| RemovedJson { removed: &job_type }, || format!("job type {} is gone", plain(&job_type)))
        }
    }
}

async fn types(farm: &Farm, name: String) -> Result<Vec<JobType>> {
    let call = async { farm.queue().list_job_types(farm.request(ListJobTypesRequest { name })).await };
    Ok(farm.call("listing job types", call).await?.job_types)
}

fn request(args: SetTypeArgs) -> SetJobTypeRequest {
    let lengths = [
        ("default_duration_seconds", args.duration),
        ("time_limit_seconds", args.time_limit),
        ("retry_delay_seconds", args.retry_delay),
        ("retry_delay_limit_seconds", args.retry_delay_limit),
        ("retention_seconds", args.retention),
    ];
    let mut reset: Vec<String> = lengths
        .iter()
        .filter(|(_, length)| *length == Some(Length::None))
        .map(|(name, _)| (*name).to_owned())
        .collect();
    let labels: Vec<String> = args.labels.iter().filter(|label| *label != "none").cloned().collect();
    if labels.is_empty() && !args.labels.is_empty() {
        reset.push("labels".to_owned());
    }
    let require: Vec<String> = args.require.iter().filter(|condition| *condition != "none").cloned().collect();
    if require.is_empty() && !args.require.is_empty() {
        reset.push("require".to_owned());
    }
    let seconds = |length: Option<Length>| match length {
        Some(Length::Of(length)) => Some(length.as_secs_f64()),
        Some(Length::None) | None => None,
    };
    SetJobTypeRequest {
        name: args.job_type,
        controller: args.controller,
        description: args.description,
        default_priority: args.priority,
        default_duration_seconds: seconds(args.duration),
        max_attempts: args.max_attempts,
        time_limit_seconds: seconds(args.time_limit),
        retry_delay_seconds: seconds(args.retry_delay),
        retry_delay_limit_seconds: seconds(args.retry_delay_limit),
        retry_first: args.retry_first,
        keep_results: args.keep_results,
        retention_seconds: seconds(args.retention),
        resources: args.resources.into_iter().map(|need| (need.resource, need.tokens)).collect(),
        labels,
        require,
        reset,
        anew: false,
        version: args.version,
    }
}

fn length(seconds: Option<f64>) -> String {
    let length = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    length.map(text::duration).unwrap_or_default()
}

fn needs(job_type: &JobType) -> String {
    let needs: BTreeMap<&String, &i64> = job_type.resources.iter().collect();
    needs.into_iter().map(|(name, tokens)| format!("{} ({tokens})", plain(name))).collect::<Vec<_>>().join(", ")
}

fn table(found: &[JobType]) -> String {
    let columns = [
        Column::Text("TYPE"),
        Column::Text("CONTROLLER"),
        Column::Number("PRIORITY"),
        Column::Number("ATTEMPTS"),
        Column::Text("TIME LIMIT"),
        Column::Text("NEEDS"),
        Column::Reason("DESCRIPTION"),
    ];
    let row = |one: &JobType| {
        let suspended = if one.suspended_since.is_some() { "suspended. " } else { "" };
        vec![
            cut(&one.name, 24),
            cut(&one.controller, 20),
            text::number(one.default_priority.into()),
            text::number(one.max_attempts.into()),
            length(one.time_limit_seconds),
            cut(&needs(one), 24),
            cut(&format!("{suspended}{}", one.description), 60),
        ]
    };
    let none = "no job types: `pcfarm types set NAME --controller CONTROLLER` makes one";
    output::table(&columns, found.iter().map(row).collect(), none)
}

fn shown(one: &JobType) -> String {
    let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    let reads: Vec<String> =
        one.reads.iter().map(|read| format!("{}: {}", plain(&read.name), plain(&read.query))).collect();
    let suspended = match text::rfc3339(one.suspended_since.as_ref()) {
        Some(since) => format!("since {since} {}", plain(&one.suspended_reason)).trim_end().to_owned(),
        None => String::new(),
    };
    output::fields(&[
        ("job type", plain(&one.name)),
        ("controller", plain(&one.controller)),
        ("description", plain(&one.description)),
        ("suspended", suspended),
        ("priority", one.default_priority.to_string()),
        ("duration", length(one.default_duration_seconds)),
        ("max attempts", one.max_attempts.to_string()),
        ("time limit", length(one.time_limit_seconds)),
        ("retry delay", length(one.retry_delay_seconds)),
        (
            "at most",
            if one.retry_delay_seconds.is_some() { length(Some(one.retry_delay_limit_seconds)) } else { String::new() },
        ),
        ("retries first", yes(one.retry_first)),
        ("keeps results", yes(one.keep_results)),
        ("retention", length(one.retention_seconds)),
        ("needs", needs(one)),
        ("labels", plain(&one.labels.join(", "))),
        ("requires", plain(&one.require.join(", "))),
        ("read role", plain(&one.read_role)),
        ("reads", reads.join("\n")),
        ("write role", plain(&one.write_role)),
        ("write-back", plain(&one.write_back)),
        ("version", plain(&one.version)),
    ])
}

#[derive(Serialize)]
struct TypesJson<'a> {
    job_types: Vec<TypeJson<'a>>,
}

#[derive(Serialize)]
struct TypeJson<'a> {
    name: &'a str,
    controller: &'a str,
    description: &'a str,
    default_priority: i32,
    default_duration_seconds: Option<f64>,
    max_attempts: i32,
    time_limit_seconds: Option<f64>,
    retry_delay_seconds: Option<f64>,
    retry_delay_limit_seconds: f64,
    retry_first: bool,
    keep_results: bool,
    retention_seconds: Option<f64>,
    resources: BTreeMap<&'a str, i64>,
    labels: &'a [String],
    require: &'a [String],
    read_role: Option<&'a str>,
    read_time_limit_seconds: f64,
    reads: Vec<ReadJson<'a>>,
    write_role: Option<&'a str>,
    write_back: Option<&'a str>,
    suspended_since: Option<String>,
    suspended_reason: Option<&'a str>,
    version: &'a str,
}

#[derive(Serialize)]
struct ReadJson<'a> {
    name: &'a str,
    query: &'a str,
}

#[derive(Serialize)]
struct RemovedJson<'a> {
    removed: &'a str,
}

fn some(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

fn json(one: &JobType) -> TypeJson<'_> {
    TypeJson {
        name: &one.name,
        controller: &one.controller,
        description: &one.description,
        default_priority: one.default_priority,
        default_duration_seconds: one.default_duration_seconds,
        max_attempts: one.max_attempts,
        time_limit_seconds: one.time_limit_seconds,
        retry_delay_seconds: one.retry_delay_seconds,
        retry_delay_limit_seconds: one.retry_delay_limit_seconds,
        retry_first: one.retry_first,
        keep_results: one.keep_results,
        retention_seconds: one.retention_seconds,
        resources: one.resources.iter().map(|(name, tokens)| (name.as_str(), *tokens)).collect(),
        labels: &one.labels,
        require: &one.require,
        read_role: some(&one.read_role),
        read_time_limit_seconds: one.read_time_limit_seconds,
        reads: one.reads.iter().map(|read| ReadJson { name: &read.name, query: &read.query }).collect(),
        write_role: some(&one.write_role),
        write_back: some(&one.write_back),
        suspended_since: text::rfc3339(one.suspended_since.as_ref()),
        suspended_reason: some(&one.suspended_reason),
        version: &one.version,
    }
}
