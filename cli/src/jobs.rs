//! Jobs: listed, shown, created, and moved from state to state.

use anyhow::Result;
use pcfarm_proto::ids::JobId;
use pcfarm_proto::v1::submit_request::Part;
use pcfarm_proto::v1::{
    Conditions, GetJobRequest, Job, JobRequest, Lane, ListJobsRequest, SetInfoRequest, SubmitEnd, SubmitHeader,
    SubmitRequest, SubmitResponse, UpdateJobRequest,
};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::args::{CreateArgs, InfoArgs, JobOptions, JobsArgs, RequireArgs};
use crate::exit::Failure;
use crate::farm::Farm;
use crate::output::{self, Column, Output};
use crate::text::{self, ago, cut, number, percent, plain};

/// What a page asks for; the server's own default.
const PAGE: u32 = 100;

pub async fn list(farm: &Farm, args: &JobsArgs, output: Output) -> Result<()> {
    let jobs = get_all(farm, args.all, args.limit).await?;
    if jobs.len() >= args.limit as usize {
        output::note(&format!("only the newest {}: --limit shows more", args.limit));
    }
    let now = jiff::Timestamp::now();
    output.print(|| JobsJson { jobs: jobs.iter().map(json).collect() }, || table(&jobs, args.all, now))
}

/// Jobs from the newest, page by page.
pub async fn get_all(farm: &Farm, all: bool, limit: u32) -> Result<Vec<Job>> {
    let mut jobs: Vec<Job> = Vec::new();
    while jobs.len() < limit as usize {
        let request = ListJobsRequest {
            all,
            limit: PAGE.min(limit - jobs.len() as u32),
            before_job_id: jobs.last().map_or(0, |job| job.job_id),
        };
        let mut client = farm.jobs();
        let page = farm.call("listing jobs", client.list_jobs(farm.request(request))).await?;
        if page.jobs.is_empty() {
            break;
        }
        jobs.extend(page.jobs);
    }
    Ok(jobs)
}

pub fn table(jobs: &[Job], all: bool, now: jiff::Timestamp) -> String {
    let columns = [
        Column::Number("JOB"),
        Column::Text("NAME"),
        Column::Text("STATE"),
        Column::Number("DONE"),
        Column::Number("FAILED"),
        Column::Number("OF"),
        Column::Text("CREATED"),
        Column::Reason("REASON"),
    ];
    let rows = jobs
        .iter()
        .map(|job| {
            vec![
                job.job_id.to_string(),
                cut(&job.name, 24),
                cut(&job.state, 12),
                number(job.done),
                number(job.failed),
                number(job.problems),
                ago(job.created_at.as_ref(), now),
                cut(&job.reason, 120),
            ]
        })
        .collect();
    let none = if all { "no jobs yet" } else { "no jobs that have not ended; --all shows the others" };
    output::table(&columns, rows, none)
}

pub async fn show(farm: &Farm, id: JobId, output: Output) -> Result<()> {
    let job = get(farm, id).await?;
    output.print(|| json(&job), || detail(&job, jiff::Timestamp::now()))
}

/// What is said about a job, after merging a patch into it.
pub async fn info(farm: &Farm, args: InfoArgs, output: Output) -> Result<()> {
    let InfoArgs { id, set } = args;
    let job = match set {
        None => get(farm, id).await?,
        Some(patch) => {
            let request = farm.request(SetInfoRequest { job_id: id.0, patch: patch.into() });
            farm.call(&format!("setting the info of job {id}"), farm.jobs().set_info(request)).await?
        }
    };
    let text = match job.info.is_empty() {
        true => "nothing is said about it".to_owned(),
        false => plain(&String::from_utf8_lossy(&job.info)),
    };
    output.print(|| json(&job), || text)
}

/// Its conditions on workstations, instead of those that it had.
pub async fn require(farm: &Farm, args: RequireArgs, output: Output) -> Result<()> {
    let RequireArgs { id, conditions } = args;
    let conditions = conditions.into_iter().filter(|condition| condition != "none").collect();
    let change =
        UpdateJobRequest { job_id: id.0, require: Some(Conditions { conditions }), ..UpdateJobRequest::default() };
    let mut client = farm.jobs();
    let doing = format!("changing what job {id} requires");
    let job = farm.call(&doing, client.update_job(farm.request(change))).await?;
    output.print(|| json(&job), || line(&job))
}

pub async fn get(farm: &Farm, id: JobId) -> Result<Job> {
    let mut client = farm.jobs();
    let request = farm.request(GetJobRequest { job_id: id.0 });
    farm.call(&format!("showing job {id}"), client.get_job(request)).await
}

fn detail(job: &Job, now: jiff::Timestamp) -> String {
    let when = |time: &Option<_>| match time {
        None => String::new(),
        some => format!("{} ({})", text::rfc3339(some.as_ref()).unwrap_or_default(), ago(some.as_ref(), now)),
    };
    let mut text = output::fields(&[
        ("job", job.job_id.to_string()),
        ("name", cut(&job.name, 200)),
        ("title", cut(&job.title, 400)),
        ("type", cut(&job.job_type, 200)),
        ("owner", cut(&job.owner, 200)),
        ("state", state(job)),
        ("priority", job.priority.to_string()),
        ("deadline", when(&job.deadline)),
        ("created", when(&job.created_at)),
        ("opened", when(&job.opened_at)),
        ("ended", when(&job.ended_at)),
        ("problems", number(job.problems)),
        ("  done", format!("{} ({})", number(job.done), percent(job.done, job.problems))),
        ("  failed", number(job.failed)),
        ("  in progress", number(job.in_progress)),
        ("  waiting", number(job.waiting)),
        ("  cancelled", number(job.cancelled)),
        ("requeued", number(job.requeued)),
        ("requires", plain(&job.require.join(", "))),
        ("runs nowhere", plain(&job.without_workstation.join("\n"))),
    ]);
    if !job.info.is_empty() {
        let info = plain(&String::from_utf8_lossy(&job.info));
        text.push_str(&format!("\ninfo  {info}"));
    }
    if !job.lanes.is_empty() {
        text.push_str("\n\n");
        text.push_str(&lanes(&job.lanes));
    }
    text
}

/// A state is never told without its reason.
fn state(job: &Job) -> String {
    match job.reason.as_str() {
        "" => cut(&job.state, 20),
        reason => format!("{}: {}", cut(&job.state, 20), cut(reason, 600)),
    }
}

fn lanes(lanes: &[Lane]) -> String {
    let columns = [
        Column::Number("LANE"),
        Column::Text("KIND"),
        Column::Text("TYPE"),
        Column::Number("NEXT EXTRACTION"),
        Column::Number("NEXT INSERTION"),
        Column::Number("PROBLEMS"),
    ];
    let rows = lanes
        .iter()
        .map(|lane| {
            vec![
                lane.lane_id.to_string(),
                cut(&lane.kind, 8),
                cut(&lane.job_type, 24),
                number(lane.next_extraction),
                number(lane.next_insertion),
                number(lane.problems),
            ]
        })
        .collect();
    output::table(&columns, rows, "")
}

/// The transitions an administrator can ask for.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    Open,
    Hold,
    Release,
    Cancel,
    Retry,
}

pub async fn change(farm: &Farm, change: Change, id: JobId, output: Output) -> Result<()> {
    let job = ask(farm, change, id).await?;
    output.print(|| json(&job), || line(&job))
}

pub async fn ask(farm: &Farm, change: Change, id: JobId) -> Result<Job> {
    let mut client = farm.jobs();
    let request = farm.request(JobRequest { job_id: id.0 });
    match change {
        Change::Open => farm.call(&format!("opening job {id}"), client.open_job(request)).await,
        Change::Hold => farm.call(&format!("holding job {id}"), client.hold_job(request)).await,
        Change::Release => farm.call(&format!("releasing job {id}"), client.release_job(request)).await,
        Change::Cancel => farm.call(&format!("cancelling job {id}"), client.cancel_job(request)).await,
        Change::Retry => farm.call(&format!("retrying job {id}"), client.retry_job(request)).await,
    }
}

/// `job 7 (night) is held: by hand; release it with …`
pub fn line(job: &Job) -> String {
    format!("job {} ({}) is {}", job.job_id, cut(&job.name, 60), state(job))
}

pub async fn create(farm: &Farm, args: &CreateArgs, output: Output) -> Result<()> {
    let header = SubmitHeader {
        job_id: 0,
        name: args.name.clone(),
        job_type: args.job_type.clone(),
        options: options(&args.options)?.into(),
        convoy: 0,
        open: false,
    };
    let doing = format!("creating job `{}`", plain(&args.name));
    let mut client = farm.jobs();
    let parts = [Part::Header(header), Part::End(SubmitEnd { problems: 0 })];
    let request = farm.request(tokio_stream::iter(parts.map(|part| SubmitRequest { part: Some(part) })));
    let created = farm.call(&doing, client.submit(request)).await?;
    output.print(
        || submitted_json(&created),
        || {
            let id = created.job_id;
            if created.repeated {
                return format!("job {id} had been created under this idempotency key before");
            }
            format!(
                "job {id} is loading: fill it with `pcfarm job load FILE --job {id}`, \
             then `pcfarm job open {id}`"
            )
        },
    )
}

/// The options of `pcfarm.create_job` as one JSON object.
pub fn options(given: &JobOptions) -> Result<String> {
    let mut options = std::collections::BTreeMap::<&str, Box<RawValue>>::new();
    let mut add = |key, value: Box<RawValue>| match options.insert(key, value) {
        None => Ok(()),
        Some(_) => Err(Failure::usage(format!("option `{}` is given twice", plain(key)))),
    };
    let raw = |value: serde_json::Value| serde_json::value::to_raw_value(&value);
    if let Some(priority) = given.priority {
        add("priority", raw(priority.into())?)?;
    }
    if let Some(title) = &given.title {
        add("title", raw(title.as_str().into())?)?;
    }
    if !given.require.is_empty() {
        add("require", raw(given.require.clone().into())?)?;
    }
    if let Some(key) = &given.idempotency_key {
        add("idempotency_key", raw(key.as_str().into())?)?;
    }
    for option in &given.options {
        let (key, value) = option
            .split_once('=')
            .ok_or_else(|| Failure::usage(format!("option `{}` is not KEY=JSON", plain(option))))?;
        let value = RawValue::from_string(value.to_owned()).map_err(|_| {
            Failure::usage(format!(
                "option `{}` is not JSON: a text needs its quotes, as in --option '{}=\"text\"'",
                plain(option),
                plain(key)
            ))
        })?;
        add(key, value)?;
    }
    Ok(serde_json::to_string(&options)?)
}

#[derive(Serialize)]
pub struct SubmittedJson {
    job_id: Option<String>,
    problems: i64,
    repeated: bool,
}

pub fn submitted_json(submitted: &SubmitResponse) -> SubmittedJson {
    SubmittedJson { job_id: output::id(submitted.job_id), problems: submitted.problems, repeated: submitted.repeated }
}

#[derive(Serialize)]
struct JobsJson<'a> {
    jobs: Vec<JobJson<'a>>,
}

#[derive(Serialize)]
pub struct JobJson<'a> {
    job_id: Option<String>,
    name: &'a str,
    title: &'a str,
    job_type: &'a str,
    owner: &'a str,
    state: &'a str,
    reason: &'a str,
    priority: i32,
    deadline: Option<String>,
    created_at: Option<String>,
    opened_at: Option<String>,
    ended_at: Option<String>,
    problems: i64,
    done: i64,
    failed: i64,
    in_progress: i64,
    waiting: i64,
    cancelled: i64,
    requeued: i64,
    require: &'a [String],
    without_workstation: &'a [String],
    info: Option<Box<RawValue>>,
    lanes: Vec<LaneJson<'a>>,
}

#[derive(Serialize)]
struct LaneJson<'a> {
    lane_id: Option<String>,
    kind: &'a str,
    job_type: &'a str,
    next_extraction: String,
    next_insertion: String,
    problems: i64,
}

pub fn json(job: &Job) -> JobJson<'_> {
    JobJson {
        job_id: output::id(job.job_id),
        name: &job.name,
        title: &job.title,
        job_type: &job.job_type,
        owner: &job.owner,
        state: &job.state,
        reason: &job.reason,
        priority: job.priority,
        deadline: text::rfc3339(job.deadline.as_ref()),
        created_at: text::rfc3339(job.created_at.as_ref()),
        opened_at: text::rfc3339(job.opened_at.as_ref()),
        ended_at: text::rfc3339(job.ended_at.as_ref()),
        problems: job.problems,
        done: job.done,
        failed: job.failed,
        in_progress: job.in_progress,
        waiting: job.waiting,
        cancelled: job.cancelled,
        requeued: job.requeued,
        require: &job.require,
        without_workstation: &job.without_workstation,
        info: output::raw(&job.info),
        lanes: job.lanes.iter().map(lane_json).collect(),
    }
}

fn lane_json(lane: &Lane) -> LaneJson<'_> {
    LaneJson {
        lane_id: output::id(lane.lane_id),
        kind: &lane.kind,
        job_type: &lane.job_type,
        next_extraction: lane.next_extraction.to_string(),
        next_insertion: lane.next_insertion.to_string(),
        problems: lane.problems,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extreme() -> Job {
        Job {
            job_id: i64::MAX,
            name: "\u{1b}]0;owned\u{7}".repeat(20),
            job_type: "t".repeat(300),
            owner: "o".repeat(300),
            state: "cancelled".into(),
            reason: "by hand, because it ".repeat(100),
            priority: i32::MIN,
            problems: 1_000_000_000_000,
            done: 999_999_999_999,
            failed: 999_999_999_999,
            waiting: 999_999_999_999,
            title: "\n\n".repeat(500),
            lanes: vec![Lane {
                lane_id: i64::MAX,
                kind: "retry".into(),
                job_type: "t".repeat(300),
                next_extraction: i64::MAX,
                next_insertion: i64::MAX,
                problems: i64::MAX,
            }],
            ..Job::default()
        }
    }

    #[test]
    fn every_table_fits_and_is_harmless() {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let jobs = [extreme(), Job { job_id: 1, name: "night".into(), ..Job::default() }];
        for text in [table(&jobs, true, now), detail(&jobs[0], now), line(&jobs[1])] {
            assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
            for line in text.lines() {
                assert!(line.chars().count() <= usize::from(output::WIDTH), "{line}");
            }
        }
    }

    #[test]
    fn json_has_the_names_of_the_protocol() -> Result<()> {
        let value = serde_json::to_value(json(&extreme()))?;
        assert_eq!(value["job_id"], "9223372036854775807");
        assert_eq!(value["problems"], 1_000_000_000_000_i64);
        assert_eq!(value["deadline"], serde_json::Value::Null);
        assert_eq!(value["lanes"][0]["next_insertion"], "9223372036854775807");
        Ok(())
    }

    #[test]
    fn options_are_one_object() -> Result<()> {
        let given = JobOptions {
            priority: Some(-3),
            title: Some("\"q\"".into()),
            require: vec!["gpu".into()],
            options: vec!["parameters={\"a\":1e3}".into(), "standing=true".into()],
            idempotency_key: Some("k".into()),
        };
        assert_eq!(
            options(&given)?,
            r#"{"idempotency_key":"k","parameters":{"a":1e3},"priority":-3,"require":["gpu"],"standing":true,"title":"\"q\""}"#
        );
        for wrong in ["x", "x=abc", "priority=1"] {
            let given = JobOptions { priority: Some(1), options: vec![wrong.into()], ..JobOptions::default() };
            assert!(options(&given).is_err(), "{wrong}");
        }
        Ok(())
    }
}
