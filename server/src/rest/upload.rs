//! Files of problems on their way into a job: what arrives is parsed on a thread of its own, a piece at a time, and what
//! is behind waits on the network.

use super::Api;
use super::extract::Who;
use super::problem_details::{Answer, Refusal};
use crate::grpc::jobs::Messages;
use crate::grpc::too_slow;
use axum::body::Bytes;
use futures_util::{Stream, StreamExt};
use pcfarm_intake::{ReadError, Shape, csv, json, ndjson};
use pcfarm_proto::v1::submit_request::Part;
use pcfarm_proto::v1::{SubmitEnd, SubmitHeader, SubmitProblem, SubmitProblems, SubmitRequest, SubmitResponse};
use std::io::{self, BufReader, Read};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::Status;

/// Pieces of a body that wait for the parser, and batches of problems that wait for the database. With the piece that is
/// being parsed, an upload's memory.
const PIECES_WAITING: usize = 4;
const BATCHES_WAITING: usize = 2;

const BATCH_BYTES: usize = 256 << 10;
const BATCH_PROBLEMS: usize = 2_000;

/// What a file of problems may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Ndjson,
    Json,
    Csv,
}

/// By what is said about the content.
pub const MEDIA: [(&str, Format); 5] = [
    ("application/x-ndjson", Format::Ndjson),
    ("application/ndjson", Format::Ndjson),
    ("application/jsonl", Format::Ndjson),
    ("application/json", Format::Json),
    ("text/csv", Format::Csv),
];

pub fn format_of(headers: &axum::http::HeaderMap) -> Answer<Format> {
    let name = super::extract::must_be(headers, &MEDIA.map(|(name, _)| name))?;
    let found = MEDIA.iter().find(|(known, _)| *known == name);
    Ok(found.expect("it is one of them").1)
}

pub async fn submit_all(api: &Api, who: &Who, messages: Messages) -> Answer<SubmitResponse> {
    Ok(api.jobs.submit_all(&who.caller()?, messages).await?)
}

/// Pieces of a file, wherever they come from.
pub type Pieces = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// A submission of all problems in a file.
pub fn messages(header: SubmitHeader, pieces: Pieces, format: Format, shape: Shape) -> Messages {
    let (feed, arriving) = mpsc::channel(PIECES_WAITING);
    let (sender, receiver) = mpsc::channel(BATCHES_WAITING);
    let mut tasks = JoinSet::new();
    // Ends with the file, or when the parser wants no more.
    tasks.spawn(pump(pieces, feed));
    // Ends with what it reads, or when nobody takes what it has read. What goes wrong is sent, and a panic is missed as the
    // end that a submission must have.
    tasks.spawn_blocking(move || {
        let mut batches = Batches { sender: &sender, problems: Vec::new(), bytes: 0, sent: 0 };
        if let Err(status) = read(arriving, header, format, &shape, &mut batches) {
            drop(sender.blocking_send(Err(status)));
        }
    });
    Parsed { receiver, _tasks: tasks }.boxed()
}

struct Parsed {
    receiver: mpsc::Receiver<Result<SubmitRequest, Status>>,
    _tasks: JoinSet<()>,
}

impl Stream for Parsed {
    type Item = Result<SubmitRequest, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.receiver.poll_recv(context)
    }
}

async fn pump(mut pieces: Pieces, feed: mpsc::Sender<io::Result<Bytes>>) {
    while let Some(piece) = pieces.next().await {
        let failed = piece.is_err();
        if feed.send(piece).await.is_err() || failed {
            return;
        }
    }
}

/// What arrives, for those who read.
struct Arriving {
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    piece: Bytes,
    /// Why nothing more came: readers cannot tell it from a file that is wrong.
    broken: Arc<OnceLock<(io::ErrorKind, String)>>,
}

impl Read for Arriving {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.receiver.blocking_recv() {
                None => return Ok(0),
                Some(Ok(piece)) => self.piece = piece,
                Some(Err(error)) => {
                    drop(self.broken.set((error.kind(), error.to_string())));
                    return Err(error);
                }
            }
        }
        let taken = self.piece.len().min(buffer.len());
        buffer[..taken].copy_from_slice(&self.piece.split_to(taken));
        Ok(taken)
    }
}

/// Nobody takes what is read any more: the submission has failed, and says why.
struct Gone;

struct Batches<'a> {
    sender: &'a mpsc::Sender<Result<SubmitRequest, Status>>,
    problems: Vec<SubmitProblem>,
    bytes: usize,
    sent: i64,
}

impl Batches<'_> {
    fn send(&self, part: Part) -> Result<(), Gone> {
        self.sender.blocking_send(Ok(SubmitRequest { part: Some(part) })).map_err(|_| Gone)
    }

    fn add(&mut self, problem: SubmitProblem) -> Result<(), Gone> {
        let size = problem.key.len() + problem.payload.len() + problem.group_key.len() + 16;
        if self.bytes + size > BATCH_BYTES || self.problems.len() >= BATCH_PROBLEMS {
            self.flush()?;
        }
        self.bytes += size;
        self.problems.push(problem);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Gone> {
        if self.problems.is_empty() {
            return Ok(());
        }
        self.bytes = 0;
        self.sent += self.problems.len() as i64;
        let problems = std::mem::take(&mut self.problems);
        self.send(Part::Problems(SubmitProblems { problems }))
    }
}

fn read(
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    header: SubmitHeader,
    format: Format,
    shape: &Shape,
    batches: &mut Batches<'_>,
) -> Result<(), Status> {
    let broken = Arc::default();
    let arriving = Arriving { receiver, piece: Bytes::new(), broken: Arc::clone(&broken) };
    let reader = BufReader::with_capacity(64 << 10, arriving);
    if batches.send(Part::Header(header)).is_err() {
        return Ok(());
    }
    let add = &mut |problem| batches.add(problem);
    let outcome = match format {
        Format::Ndjson => ndjson::read(reader, shape, add),
        Format::Json => json::read(reader, shape, add),
        Format::Csv => csv::read(reader, shape, add),
    };
    match (outcome, broken.get()) {
        (Ok(()), _) => {}
        (Err(ReadError::Stopped(Gone)), _) => return Ok(()),
        (Err(_), Some((io::ErrorKind::TimedOut, message))) => return Err(too_slow(message)),
        (Err(ReadError::Read(_)), _) | (Err(ReadError::Wrong { .. }), Some(_)) => {
            return Err(Status::invalid_argument("the body ended before its end: nothing was loaded"));
        }
        (Err(ReadError::Wrong { place, what }), None) => {
            return Err(Status::invalid_argument(format!("{place}: {what}; nothing was loaded")));
        }
    }
    if batches.flush().is_ok() {
        let end = Part::End(SubmitEnd { problems: batches.sent });
        drop(batches.send(end));
    }
    Ok(())
}

/// Whether a convoy can have so many problems.
pub fn checked_convoy(convoy: Option<u32>) -> Answer<u32> {
    match convoy {
        None => Ok(0),
        Some(convoy @ 1..=100_000) => Ok(convoy),
        Some(_) => Err(Refusal::bad_request("convoy", "a convoy holds from 1 to 100000 problems")),
    }
}
