//! `pcfarm job results`: every outcome of a job, streamed, so that memory does not grow with the job.

mod made;

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use pcfarm_proto::v1::{JobRequest, ProblemOutcome};
use serde::Serialize;
use serde_json::value::RawValue;
use tempfile::NamedTempFile;
use tonic::Request;

use crate::args::ResultsArgs;
use crate::exit::{self, Failure};
use crate::farm::Farm;
use crate::output::{self, Format};
use crate::results::made::Made;
use crate::{jobs, platform, text};

/// The forms that results have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Ndjson,
    Json,
    Csv,
}

impl Form {
    pub fn from_flag(flag: Option<Format>) -> Result<Form> {
        match flag {
            None | Some(Format::Ndjson) => Ok(Form::Ndjson),
            Some(Format::Json) => Ok(Form::Json),
            Some(Format::Csv) => Ok(Form::Csv),
            Some(Format::Table) => {
                Err(Failure::usage("results are written as ndjson, json or csv; `pcfarm problems JOB` has a table"))
            }
        }
    }
}

pub async fn results(farm: &Farm, args: &ResultsArgs, form: Form) -> Result<()> {
    let doing = format!("fetching the results of job {}", args.id);
    // Also tells a job that is not there before a file is made.
    let job = jobs::get(farm, args.id).await?;
    let bar = progress(args.out.is_some() || !io::stdout().is_terminal(), job.done + job.failed);
    let mut sink = Sink::create(args.out.as_deref())?;
    let mut made = args.files.as_deref().map(Made::to).transpose()?;
    let fetch = async {
        let mut client = farm.jobs();
        let call = client.results(Request::new(JobRequest { job_id: args.id.0 }));
        let mut chunks = call.await.map_err(|status| farm.refused(&doing, &status))?.into_inner();
        let mut writer = Writer::new(form, sink.writer());
        writer.start().map_err(|error| sink_error(args, error))?;
        let mut count = 0;
        while let Some(chunk) = chunks.message().await.map_err(|status| farm.refused(&doing, &status))? {
            for outcome in &chunk.outcomes {
                writer.write(outcome).map_err(|error| sink_error(args, error))?;
                if let Some(made) = &mut made {
                    made.get(farm, outcome).await?;
                }
            }
            count += chunk.outcomes.len() as i64;
            bar.inc(chunk.outcomes.len() as u64);
        }
        writer.end().map_err(|error| sink_error(args, error))?;
        Ok(count)
    };
    let count = farm.unhurried(&doing, fetch).await?;
    bar.finish_and_clear();
    sink.finish()?;
    if let Some(path) = &args.out {
        output::note(&format!("{} in {}", text::counted(count, "result"), path.display()));
    }
    if let Some(made) = made {
        output::note(&format!("{} in {}", text::counted(made.count, "file"), made.directory.display()));
    }
    Ok(())
}

fn progress(wanted: bool, total: i64) -> ProgressBar {
    if !wanted || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{wide_bar} {human_pos} of {human_len}  {per_sec}")
        .expect("the template above is valid");
    ProgressBar::new(total.unsigned_abs()).with_style(style)
}

fn sink_error(args: &ResultsArgs, error: io::Error) -> anyhow::Error {
    match &args.out {
        Some(path) => anyhow::Error::new(error).context(format!("writing {}", path.display())),
        None => exit::written::<()>(Err(error)).expect_err("an error was given"),
    }
}

/// Where results go. A file appears under its name when all of them are in it, and not before.
pub enum Sink {
    Stdout(BufWriter<io::Stdout>),
    File {
        file: BufWriter<NamedTempFile>,
        path: PathBuf,
    },
    /// A pipe or a device cannot be replaced.
    Special(BufWriter<File>),
}

impl Sink {
    pub fn create(path: Option<&Path>) -> Result<Sink> {
        let Some(path) = path else {
            return Ok(Sink::Stdout(BufWriter::with_capacity(1 << 16, io::stdout())));
        };
        let creating = || format!("creating {}", path.display());
        if std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
            let file = File::options().write(true).open(path).with_context(creating)?;
            return Ok(Sink::Special(BufWriter::new(file)));
        }
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let mut made = tempfile::Builder::new();
        platform::make_ordinary(made.prefix(".pcfarm-results-"));
        let file = made.tempfile_in(directory).with_context(creating)?;
        Ok(Sink::File { file: BufWriter::with_capacity(1 << 16, file), path: path.to_owned() })
    }

    pub fn writer(&mut self) -> &mut dyn Write {
        match self {
            Sink::Stdout(out) => out,
            Sink::File { file, .. } => file,
            Sink::Special(file) => file,
        }
    }

    pub fn finish(self) -> Result<()> {
        match self {
            Sink::Stdout(mut out) => exit::written(out.flush()),
            Sink::Special(mut file) => file.flush().context("writing the results"),
            Sink::File { file, path } => {
                let writing = || format!("writing {}", path.display());
                let file = file.into_inner().map_err(io::IntoInnerError::into_error).with_context(writing)?;
                file.as_file().sync_all().with_context(writing)?;
                file.persist(&path).map_err(|error| error.error).with_context(writing)?;
                Ok(())
            }
        }
    }
}

/// Outcomes in one of the three forms.
struct Writer<W: Write> {
    form: Form,
    out: W,
    first: bool,
}

#[derive(Serialize)]
struct OutcomeJson<'a> {
    problem_id: Option<String>,
    key: &'a str,
    outcome: &'a str,
    message: &'a str,
    result: Option<Box<RawValue>>,
}

impl<W: Write> Writer<W> {
    fn new(form: Form, out: W) -> Writer<W> {
        Writer { form, out, first: true }
    }

    fn start(&mut self) -> io::Result<()> {
        match self.form {
            Form::Ndjson => Ok(()),
            Form::Json => self.out.write_all(b"{\"outcomes\": ["),
            Form::Csv => self.out.write_all(b"problem_id,key,outcome,message,result\n"),
        }
    }

    fn write(&mut self, outcome: &ProblemOutcome) -> io::Result<()> {
        match self.form {
            Form::Ndjson => {
                serde_json::to_writer(&mut self.out, &json(outcome))?;
                self.out.write_all(b"\n")
            }
            Form::Json => {
                self.out.write_all(if self.first { b"\n" } else { b",\n" })?;
                self.first = false;
                Ok(serde_json::to_writer(&mut self.out, &json(outcome))?)
            }
            Form::Csv => {
                let mut record = csv::Writer::from_writer(&mut self.out);
                record.write_record([
                    outcome.problem_id.to_string().as_bytes(),
                    outcome.key.as_bytes(),
                    outcome.outcome.as_bytes(),
                    outcome.message.as_bytes(),
                    &outcome.result,
                ])?;
                record.flush()
            }
        }
    }

    fn end(&mut self) -> io::Result<()> {
        match self.form {
            Form::Ndjson | Form::Csv => Ok(()),
            Form::Json => self.out.write_all(b"\n]}\n"),
        }
    }
}

fn json(outcome: &ProblemOutcome) -> OutcomeJson<'_> {
    // A line break between a value's parts is JSON, but it would end a line of NDJSON.
    let compact = |raw: Box<RawValue>| {
        if !raw.get().contains('\n') {
            return raw;
        }
        let text = raw.get().replace(['\n', '\r'], " ");
        RawValue::from_string(text).unwrap_or(raw)
    };
    OutcomeJson {
        problem_id: output::id(outcome.problem_id),
        key: &outcome.key,
        outcome: &outcome.outcome,
        message: &outcome.message,
        result: output::raw(&outcome.result).map(compact),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(form: Form, outcomes: &[ProblemOutcome]) -> String {
        let mut out = Vec::new();
        let mut writer = Writer::new(form, &mut out);
        writer.start().expect("a Vec takes everything");
        for outcome in outcomes {
            writer.write(outcome).expect("a Vec takes everything");
        }
        writer.end().expect("a Vec takes everything");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn each_form_is_readable_by_its_readers() -> Result<()> {
        let outcomes = [
            ProblemOutcome {
                problem_id: 10_000_000_001,
                key: "a,\"b\"\n".into(),
                outcome: "done".into(),
                message: String::new(),
                result: b"{\n\"x\": 0.10}".as_slice().into(),
            },
            ProblemOutcome { problem_id: 2, outcome: "failed".into(), ..ProblemOutcome::default() },
        ];
        let lines = written(Form::Ndjson, &outcomes);
        assert_eq!(lines.lines().count(), 2, "{lines}");
        assert!(lines.contains(r#""result":{ "x": 0.10}"#), "{lines}");
        let document: serde_json::Value = serde_json::from_str(&written(Form::Json, &outcomes))?;
        assert_eq!(document["outcomes"][0]["problem_id"], "10000000001");
        assert_eq!(document["outcomes"][1]["result"], serde_json::Value::Null);
        let table = written(Form::Csv, &outcomes);
        let mut reader = csv::Reader::from_reader(table.as_bytes());
        let records: Vec<csv::StringRecord> = reader.records().collect::<Result<_, _>>()?;
        assert_eq!(&records[0][1], "a,\"b\"\n");
        assert_eq!(&records[1][2], "failed");
        let none: serde_json::Value = serde_json::from_str(&written(Form::Json, &[]))?;
        assert_eq!(none, serde_json::json!({"outcomes": []}));
        Ok(())
    }

    #[test]
    fn a_file_appears_only_when_complete() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("out.ndjson");
        let mut sink = Sink::create(Some(&path))?;
        sink.writer().write_all(b"line\n")?;
        drop(sink);
        assert_eq!(std::fs::read_dir(directory.path())?.count(), 0);
        let mut sink = Sink::create(Some(&path))?;
        sink.writer().write_all(b"line\n")?;
        sink.finish()?;
        assert_eq!(std::fs::read_to_string(&path)?, "line\n");
        Ok(())
    }
}
