//! `pcfarm job load FILE`: problems from a file into a job, in one call that is one transaction.
//!
//! A thread reads and checks ([`input`], [`csv`], [`ndjson`]); at most a few batches wait for the network. Only a
//! file that was read to its end is followed by the message that lets the server commit.

mod csv;
mod input;
mod ndjson;

use std::borrow::Cow;
use std::path::Path;
use std::pin::{Pin, pin};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use pcfarm_proto::ids::JobId;
use pcfarm_proto::v1::submit_request::Part;
use pcfarm_proto::v1::{
    SubmitDetails, SubmitEnd, SubmitHeader, SubmitProblem, SubmitProblems, SubmitRequest, SubmitResponse,
};
use prost_types::Timestamp;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::args::{InputFormat, JobOptions, LoadArgs};
use crate::exit::{Exit, Failure};
use crate::farm::Farm;
use crate::output::Output;
use crate::{jobs, text, wait};
use input::Input;

/// What a message of problems aims at: large enough to be cheap, small beside the message limit.
const BATCH_BYTES: usize = 256 << 10;
const BATCH_PROBLEMS: usize = 2_000;

/// Batches between reader and network. With the one on each side, the memory of a load.
const BATCHES_WAITING: usize = 4;

/// What is fixed before the first line is read.
struct Plan {
    header: SubmitHeader,
    /// The job was there before, so the header cannot open it.
    open_after: bool,
    format: InputFormat,
}

/// How lines become problems.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    pub key: Option<String>,
    pub group: Option<String>,
    pub strings: bool,
}

pub async fn load(farm: &Farm, args: &LoadArgs, output: Output) -> Result<()> {
    let file = args.file.as_deref().context("a file is needed")?;
    let plan = plan(args, file)?;
    let name = input::name(file);
    let doing = format!("loading {name}");
    let mut time_is_over = pin!(farm.time_is_over(&doing));
    let path = file.to_owned();
    let input = tokio::select! {
        opened = tokio::task::spawn_blocking(move || Input::open(&path)) => opened.context("opening the input")??,
        error = &mut time_is_over => return Err(error.context("nothing was loaded")),
    };
    let open_after = plan.open_after;
    let started = Instant::now();
    let bar = input.bar().clone();
    let loaded = submit(farm, &doing, plan, shape(args), input, time_is_over).await;
    bar.finish_and_clear();
    let loaded = loaded.map_err(|error| match error {
        Unloaded::Certainly(error) => error,
        Unloaded::Perhaps(error) => may_have_arrived(error, args),
    })?;
    if open_after {
        let id = JobId(loaded.job_id);
        jobs::ask(farm, jobs::Change::Open, id).await.with_context(|| {
            format!("job {id} has its {} but is not open", text::counted(loaded.problems, "new problem"))
        })?;
    }
    output.print(|| jobs::submitted_json(&loaded), || summary(&loaded, &name, args, started.elapsed()))
}

fn shape(args: &LoadArgs) -> Shape {
    Shape { key: args.key.clone(), group: args.group.clone(), strings: args.strings }
}

fn plan(args: &LoadArgs, file: &Path) -> Result<Plan> {
    let format = match args.format {
        Some(format) => format,
        None => format_of(file)?,
    };
    if args.strings && format == InputFormat::Ndjson {
        return Err(Failure::usage("--strings is for CSV; the values of NDJSON have types"));
    }
    let header = header(args)?;
    let open_after = args.job.is_some() && args.open;
    Ok(Plan { header, open_after, format })
}

fn header(args: &LoadArgs) -> Result<SubmitHeader> {
    let convoy = args.convoy.unwrap_or(0);
    if let Some(job) = args.job {
        no_options(&args.options)?;
        return Ok(SubmitHeader { job_id: job.0, convoy, ..SubmitHeader::default() });
    }
    Ok(SubmitHeader {
        job_id: 0,
        name: args.name.clone().unwrap_or_default(),
        job_type: args.job_type.clone().unwrap_or_default(),
        options: jobs::options(&args.options)?.into(),
        convoy,
        open: !args.no_open,
    })
}

/// Options are those of a new job.
pub fn no_options(options: &JobOptions) -> Result<()> {
    let JobOptions { priority: None, title: None, options, idempotency_key: None } = options else {
        return Err(Failure::usage(
            "--priority, --title and --idempotency-key are for a new job: leave them out, or --job",
        ));
    };
    if options.is_empty() {
        return Ok(());
    }
    Err(Failure::usage("--option is for a new job: leave it out, or --job"))
}

fn format_of(file: &Path) -> Result<InputFormat> {
    let name = file.to_string_lossy().to_ascii_lowercase();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    match name.rsplit_once('.') {
        Some((_, "csv")) => Ok(InputFormat::Csv),
        Some((_, "ndjson" | "jsonl")) => Ok(InputFormat::Ndjson),
        _ => Err(Failure::usage(format!(
            "{} may be CSV or NDJSON: say which with --format csv or --format ndjson",
            text::plain(&file.to_string_lossy())
        ))),
    }
}

/// A load that failed before its end was sent has loaded nothing; afterwards only an answer can tell.
enum Unloaded {
    Certainly(anyhow::Error),
    Perhaps(anyhow::Error),
}

/// One Submit call with everything that the input holds. Given up before its end is sent, it is dropped.
async fn submit(
    farm: &Farm,
    doing: &str,
    plan: Plan,
    shape: Shape,
    input: Input,
    mut time_is_over: Pin<&mut impl Future<Output = anyhow::Error>>,
) -> Result<SubmitResponse, Unloaded> {
    let (send, receive) = mpsc::channel::<SubmitRequest>(BATCHES_WAITING);
    let first = SubmitRequest { part: Some(Part::Header(plan.header)) };
    send.try_send(first).expect("the channel is empty and its receiver is here");
    let mut client = farm.jobs();
    let mut call = Box::pin(async move { client.submit(Request::new(ReceiverStream::new(receive))).await });
    let batches = Batches::new(send.clone());
    let mut reading = tokio::task::spawn_blocking(move || read(plan.format, &shape, input, batches));
    let answer = |answer: Result<Response<SubmitResponse>, Status>| {
        answer.map(Response::into_inner).map_err(|status| farm.refused(doing, &status))
    };
    let read = tokio::select! {
        // The server need not wait for the end: it may refuse, or know the idempotency key.
        answered = &mut call => return answer(answered).map_err(Unloaded::Certainly),
        read = &mut reading => read.context("reading the input").flatten(),
        error = &mut time_is_over => Err(error),
    };
    let problems = match read {
        Ok(problems) => problems,
        // The reader met a closed door before the answer behind it was seen here.
        Err(_) if send.is_closed() => {
            return tokio::select! {
                answered = call => answer(answered).map_err(Unloaded::Certainly),
                error = time_is_over => Err(Unloaded::Perhaps(error)),
            };
        }
        Err(error) => return Err(Unloaded::Certainly(error.context("nothing was loaded"))),
    };
    let answered = async {
        let end = SubmitRequest { part: Some(Part::End(SubmitEnd { problems })) };
        tokio::select! {
            answered = &mut call => return answered,
            _ = send.send(end) => drop(send),
        }
        call.await
    };
    tokio::select! {
        answered = answered => answer(answered).map_err(Unloaded::Perhaps),
        error = time_is_over => Err(Unloaded::Perhaps(error)),
    }
}

/// How many problems there were.
fn read(format: InputFormat, shape: &Shape, input: Input, mut batches: Batches) -> Result<i64> {
    match format {
        InputFormat::Csv => csv::read(input, shape, &mut |problem| batches.add(problem))?,
        InputFormat::Ndjson => ndjson::read(input, shape, &mut |problem| batches.add(problem))?,
    }
    batches.flush()?;
    Ok(batches.sent)
}

/// Gathers problems into messages.
struct Batches {
    send: mpsc::Sender<SubmitRequest>,
    problems: Vec<SubmitProblem>,
    bytes: usize,
    /// Problems in messages that were sent.
    sent: i64,
}

impl Batches {
    fn new(send: mpsc::Sender<SubmitRequest>) -> Batches {
        Batches { send, problems: Vec::new(), bytes: 0, sent: 0 }
    }

    fn add(&mut self, problem: SubmitProblem) -> Result<()> {
        let size = problem.key.len() + problem.payload.len() + problem.group_key.len() + 16;
        if self.bytes + size > BATCH_BYTES || self.problems.len() >= BATCH_PROBLEMS {
            self.flush()?;
        }
        self.bytes += size;
        self.problems.push(problem);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if self.problems.is_empty() {
            return Ok(());
        }
        self.bytes = 0;
        self.sent += self.problems.len() as i64;
        let problems = SubmitProblems { problems: std::mem::take(&mut self.problems) };
        let request = SubmitRequest { part: Some(Part::Problems(problems)) };
        self.send.blocking_send(request).context("the server has ended the call")
    }
}

/// A connection that broke after everything was sent leaves open whether it was loaded.
fn may_have_arrived(error: anyhow::Error, args: &LoadArgs) -> anyhow::Error {
    let exit = error.downcast_ref::<Failure>().map(|failure| failure.exit);
    if !matches!(exit, Some(Exit::NotReachable | Exit::TimedOut)) {
        return error;
    }
    let advice = match (args.job, &args.options.idempotency_key) {
        (_, Some(_)) => "the same command again finds out, and loads nothing twice".to_owned(),
        (Some(job), None) => format!("`pcfarm job show {job}` tells whether the problems arrived"),
        (None, None) => "`pcfarm jobs` tells whether the job is there; with --idempotency-key KEY the same \
                         command can be repeated"
            .to_owned(),
    };
    let exit = exit.unwrap_or(Exit::Failed);
    Failure::of(exit, format!("{error:#}; {advice}"))
}

fn summary(loaded: &SubmitResponse, name: &str, args: &LoadArgs, took: Duration) -> String {
    let id = loaded.job_id;
    if loaded.repeated {
        return format!("job {id} had been loaded under this idempotency key before; nothing was added");
    }
    let rate = loaded.problems as f64 / took.as_secs_f64().max(0.001);
    let next = if args.job.is_none() && args.no_open {
        format!("\nit is still loading: `pcfarm job open {id}` starts it")
    } else {
        String::new()
    };
    format!(
        "{} from {name} in job {id}, in {} ({}){next}",
        text::counted(loaded.problems, "problem"),
        text::duration(took),
        wait::per_second_text(rate)
    )
}

/// What a problem may have beside its key and payload, as a text that came with it.
const DETAILS: [&str; 5] = ["job_type", "priority", "deadline", "not_before", "weight"];

/// `get`: what the input has under that name, if anything.
fn details<'a>(get: impl Fn(&str) -> Option<Cow<'a, str>>) -> Result<Option<SubmitDetails>, String> {
    let given = |name: &str| get(name).filter(|text| !text.is_empty());
    let wrong = |name: &str, text: &str, what: &str| format!("{name} is {}, and not {what}", text::cut(text, 40));
    let time = |name: &str| {
        given(name)
            .map(|text| match text.parse::<jiff::Timestamp>() {
                Ok(time) => Ok(Timestamp { seconds: time.as_second(), nanos: time.subsec_nanosecond() }),
                Err(_) => Err(wrong(name, &text, "a time such as 2026-03-01T18:00:00Z")),
            })
            .transpose()
    };
    let priority = given("priority").map(|text| {
        text.parse::<i32>().map_err(|_| wrong("priority", &text, "a whole number from -2147483648 to 2147483647"))
    });
    let weight = given("weight").map(|text| {
        let weight = text.parse::<i32>().ok().filter(|weight| *weight > 0);
        weight.map(i32::unsigned_abs).ok_or_else(|| wrong("weight", &text, "a whole number from 1 to 2147483647"))
    });
    let details = SubmitDetails {
        job_type: given("job_type").unwrap_or_default().into_owned(),
        priority: priority.transpose()?.unwrap_or_default(),
        deadline: time("deadline")?,
        not_before: time("not_before")?,
        weight: weight.transpose()?.unwrap_or_default(),
    };
    Ok((details != SubmitDetails::default()).then_some(details))
}

/// What every reader makes sure of, whatever the form of its input.
fn checked(
    key: String,
    payload: String,
    group_key: String,
    details: Option<SubmitDetails>,
) -> Result<SubmitProblem, String> {
    if key.is_empty() {
        return Err("the key is empty: every problem needs one".to_owned());
    }
    if key.contains('\0') || group_key.contains('\0') {
        return Err("the key or group holds a NUL character, which the database cannot store".to_owned());
    }
    if payload.len() > pcfarm_proto::PAYLOAD_BYTES_LIMIT {
        return Err(format!(
            "the payload has {}, more than the {} a problem may carry",
            text::bytes(payload.len() as u64),
            text::bytes(pcfarm_proto::PAYLOAD_BYTES_LIMIT as u64)
        ));
    }
    if has_nul_escape(&payload) {
        return Err("the payload holds \\u0000, which the database cannot store".to_owned());
    }
    Ok(SubmitProblem { key, payload: payload.into_bytes().into(), group_key, details })
}

/// `\u0000` in JSON, and not the six characters after an escaped backslash.
fn has_nul_escape(json: &str) -> bool {
    json.match_indices("\\u0000").any(|(at, _)| {
        let backslashes = json.as_bytes()[..at].iter().rev().take_while(|byte| **byte == b'\\').count();
        backslashes.is_multiple_of(2)
    })
}

fn bar_style(known_size: bool) -> ProgressStyle {
    let template = if known_size {
        "{wide_bar} {bytes} of {total_bytes}  {bytes_per_sec}  {msg}"
    } else {
        "{spinner} {bytes}  {bytes_per_sec}  {msg}"
    };
    ProgressStyle::with_template(template).expect("the templates above are valid")
}

/// Tells the bar how many problems there were, now and then.
fn tell(bar: &ProgressBar, problems: u64) {
    if problems.is_multiple_of(1_000) {
        bar.set_message(text::counted(i64::try_from(problems).unwrap_or(i64::MAX), "problem"));
    }
}

/// A wrong line: where it is, what is wrong and what to do.
fn wrong(input: &str, line: u64, what: impl std::fmt::Display) -> anyhow::Error {
    anyhow::anyhow!("{}:{line}: {what}", text::plain(input))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_database_can_store_is_found() {
        let cases = [
            ("k", r#""fine""#, true),
            ("", "1", false),
            ("a\0b", "1", false),
            ("k", r#""\u0000""#, false),
            ("k", r#""\\u0000""#, true),
            ("k", r#""\\\u0000""#, false),
        ];
        for (key, payload, right) in cases {
            let problem = checked(key.to_owned(), payload.to_owned(), String::new(), None);
            assert_eq!(problem.is_ok(), right, "{key:?} {payload}");
        }
        let large = format!("\"{}\"", "x".repeat(pcfarm_proto::PAYLOAD_BYTES_LIMIT));
        assert!(checked("k".into(), large, String::new(), None).is_err());
    }

    #[test]
    fn the_name_tells_the_form() {
        let cases = [
            ("a.csv", Some(InputFormat::Csv)),
            ("A.CSV.GZ", Some(InputFormat::Csv)),
            ("dir.csv/a.ndjson", Some(InputFormat::Ndjson)),
            ("a.jsonl.gz", Some(InputFormat::Ndjson)),
            ("a.txt", None),
            ("-", None),
            ("csv", None),
        ];
        for (name, expected) in cases {
            assert_eq!(format_of(Path::new(name)).ok(), expected, "{name}");
        }
    }

    #[test]
    fn messages_stay_small() -> Result<()> {
        let (send, mut receive) = mpsc::channel(100);
        let mut batches = Batches::new(send);
        for i in 0..5_000 {
            let payload = vec![b' '; if i == 7 { 1 << 20 } else { 40 }];
            batches.add(SubmitProblem { key: i.to_string(), payload: payload.into(), ..Default::default() })?;
        }
        batches.flush()?;
        drop(batches);
        let mut problems = 0;
        while let Ok(request) = receive.try_recv() {
            assert!(prost::Message::encoded_len(&request) <= (1 << 20) + BATCH_BYTES);
            let Some(Part::Problems(batch)) = request.part else { panic!("only problems") };
            problems += batch.problems.len();
        }
        assert_eq!(problems, 5_000);
        Ok(())
    }
}
