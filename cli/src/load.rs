//! `pcfarm job load FILE`: problems from a file into a job, in one call that is one transaction.
//!
//! A thread reads and checks ([`input`], `pcfarm-intake`); at most a few batches wait for the network. Only a
//! file that was read to its end is followed by the message that lets the server commit.

mod input;

use std::path::Path;
use std::pin::{Pin, pin};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use pcfarm_intake::{Asked, Place, ReadError, Shape, csv, ndjson};
use pcfarm_proto::ids::JobId;
use pcfarm_proto::v1::submit_request::Part;
use pcfarm_proto::v1::{SubmitEnd, SubmitHeader, SubmitProblem, SubmitProblems, SubmitRequest, SubmitResponse};
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
    Shape { key: args.key.clone(), group: args.group.clone(), strings: args.strings, asked: Asked::Flags }
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
    let JobOptions { priority: None, title: None, require, options, idempotency_key: None } = options else {
        return Err(Failure::usage(
            "--priority, --title and --idempotency-key are for a new job: leave them out, or --job",
        ));
    };
    if !require.is_empty() {
        return Err(Failure::usage(
            "--require is for a new job: leave it out, or --job; `pcfarm job require` changes a job's",
        ));
    }
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
    let (name, bar, reader) = input.into_parts();
    let mut problems = 0;
    let mut add = |problem| {
        batches.add(problem)?;
        problems += 1;
        tell(&bar, problems);
        Ok(())
    };
    let outcome = match format {
        InputFormat::Csv => csv::read(reader, shape, &mut add),
        InputFormat::Ndjson => ndjson::read(reader, shape, &mut add),
    };
    outcome.map_err(|error| unread(&name, error))?;
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
fn unread(input: &str, error: ReadError<anyhow::Error>) -> anyhow::Error {
    let input = text::plain(input);
    match error {
        ReadError::Wrong { place: Place::Line(line), what } => anyhow::anyhow!("{input}:{line}: {what}"),
        ReadError::Wrong { place, what } => anyhow::anyhow!("{input}: {place}: {what}"),
        ReadError::Read(error) => anyhow::Error::new(error).context(format!("{input}: reading")),
        ReadError::Stopped(error) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
