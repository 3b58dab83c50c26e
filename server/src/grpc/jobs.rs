//! Jobs for people and their programs. Every call but an upload is made of single statements, so a call that is cancelled
//! leaves its connection without a transaction; an upload's has left the pool and is closed.
//!
//! Submit is an upload, piece by piece, unless what comes is complete with its first problems, few and without group
//! keys: that is one statement. Where this does not succeed, the same messages are an upload, which finds what is wrong.

use super::status_code;
use crate::dispatch::Event;
use crate::farm::Farm;
use deadpool_postgres::{Object, Pool};
use pcfarm_proto::ids::{JobId, ProblemId};
use pcfarm_proto::v1::job_service_server::JobService;
use pcfarm_proto::v1::submit_request::Part;
use pcfarm_proto::v1::{
    GetJobRequest, Job, JobRequest, Lane, ListJobsRequest, ListJobsResponse, ListProblemsRequest, ListProblemsResponse,
    ProblemOutcome, ProblemStatus, ResultChunk, SubmitHeader, SubmitProblem, SubmitRequest, SubmitResponse,
};
use pcfarm_proto::{PART_BYTES_TARGET, PAYLOAD_BYTES_LIMIT};
use pcfarm_sql::jobs::{self, problems, results};
use pcfarm_sql::json::RawJson;
use pcfarm_sql::pool::Kept;
use pcfarm_sql::submit::{self, Begun, Fresh, Loading, NewProblem, Submitted, Target};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_stream::Stream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

const DEFAULT_PAGE: u32 = 100;

/// How often a waiting call looks at its job.
const WAIT_POLL: Duration = Duration::from_millis(400);
/// A waiting call answers this long before its deadline, so that its answer arrives.
const WAIT_MARGIN: Duration = Duration::from_millis(50);

/// Each upload has a connection to the database and a transaction for itself.
const UPLOADS: usize = 8;
const TURN_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two messages of an upload, as long as its connection is slow and not gone.
const UPLOAD_PAUSE_LIMIT: Duration = Duration::from_secs(60);
/// An upload's transaction keeps the whole database from being vacuumed.
const UPLOAD_LIMIT: Duration = Duration::from_secs(4 * 3600);

/// What is submitted in one statement, and how many at a time: they wait for each other, and leave connections to others.
const SMALL_PROBLEMS: usize = 500;
const SMALL_BYTES: usize = 512 << 10;
const SMALL_AT_ONCE: usize = 4;
/// What is complete comes at once. Who sends on later is told sooner what is wrong with the job.
const SMALL_PATIENCE: Duration = Duration::from_millis(20);

const KEY_BYTES_LIMIT: usize = 1024;

/// Payload that goes to the dispatcher by the side of the database: thousands of these may wait there.
const FRESH_BYTES: usize = 8 << 10;

/// Chunks of results that wait for a slow reader.
const CHUNKS_WAITING: usize = 2;

pub struct JobsApi {
    farm: Arc<Farm>,
    pool: Pool,
    uploads: Semaphore,
    small: Semaphore,
    /// Kept for small submissions, while none has it.
    line: Mutex<Option<Kept>>,
    /// Ends the calls that take as long as their callers like.
    stopping: CancellationToken,
}

impl JobsApi {
    pub fn new(farm: Arc<Farm>) -> JobsApi {
        let (pool, stopping) = (farm.pool.clone(), farm.stopping.clone());
        let (uploads, small) = (Semaphore::new(UPLOADS), Semaphore::new(SMALL_AT_ONCE));
        JobsApi { farm, pool, uploads, small, line: Mutex::default(), stopping }
    }

    async fn client(&self) -> Result<Object, Status> {
        self.pool.get().await.map_err(status_code::of_pool)
    }

    /// What was submitted, and what the dispatcher should know of it.
    async fn submitted(&self, messages: Streaming<SubmitRequest>) -> Result<(Submitted, Event), Status> {
        let mut parts = Parts { messages, early: VecDeque::new() };
        let wanted = wanted(&mut parts).await?;
        if let Some(problems) = parts.small().await?
            && let Some((submitted, fresh)) = self.at_once(&wanted, &problems).await?
        {
            let is_light =
                |fresh: &Fresh| fresh.problems.iter().map(|p| p.payload.0.len()).sum::<usize>() <= FRESH_BYTES;
            let news = fresh.filter(is_light).map_or(Event::Work, |fresh| Event::Fresh(Box::new(fresh)));
            return Ok((submitted, news));
        }
        Ok((self.upload_in_turn(&wanted, parts).await?, Event::Work))
    }

    async fn at_once(
        &self,
        wanted: &Wanted,
        problems: &[NewProblem],
    ) -> Result<Option<(Submitted, Option<Fresh>)>, Status> {
        let _turn = in_turn(&self.small).await?;
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut line = line.unwrap_or_else(|| Kept::new(self.pool.clone()));
        let client = line.client().await.map_err(status_code::of_pool)?;
        let submitted = submit::at_once(client, &wanted.target, wanted.convoy, wanted.open, problems).await;
        *self.line.lock().unwrap_or_else(PoisonError::into_inner) = Some(line);
        submitted.map_err(status_code::of_load)
    }

    async fn upload_in_turn(&self, wanted: &Wanted, parts: Parts) -> Result<Submitted, Status> {
        let _turn = in_turn(&self.uploads).await?;
        let upload = Box::pin(upload(&self.pool, wanted, parts));
        timeout(UPLOAD_LIMIT, upload).await.unwrap_or_else(|_| {
            let hours = UPLOAD_LIMIT.as_secs() / 3600;
            Err(Status::deadline_exceeded(format!("not loaded within {hours} hours: load it in smaller parts")))
        })
    }

    async fn job(&self, client: &Object, job_id: JobId) -> Result<Response<Job>, Status> {
        let job = jobs::get(client, job_id).await.map_err(status_code::of)?;
        let job = job.ok_or_else(|| not_found(job_id))?;
        let lanes = jobs::lanes(client, job_id).await.map_err(status_code::of)?;
        Ok(Response::new(job_message(job, lanes)))
    }
}

#[tonic::async_trait]
impl JobService for JobsApi {
    async fn submit(&self, request: Request<Streaming<SubmitRequest>>) -> Result<Response<SubmitResponse>, Status> {
        let (submitted, news) = tokio::select! {
            submitted = self.submitted(request.into_inner()) => submitted?,
            () = self.stopping.cancelled() => return Err(stopping()),
        };
        // Sooner than by notification. Full means that the dispatcher has been told often enough.
        drop(self.farm.dispatcher.try_send(news));
        Ok(Response::new(SubmitResponse {
            job_id: submitted.job.0,
            problems: submitted.problems,
            repeated: submitted.repeated,
        }))
    }

    async fn list_jobs(&self, request: Request<ListJobsRequest>) -> Result<Response<ListJobsResponse>, Status> {
        let asked = request.into_inner();
        let before = (asked.before_job_id != 0).then_some(JobId(asked.before_job_id));
        let client = self.client().await?;
        let found = jobs::list(&client, asked.all, before, page(asked.limit)).await.map_err(status_code::of)?;
        Ok(Response::new(ListJobsResponse {
            jobs: found.into_iter().map(|job| job_message(job, Vec::new())).collect(),
        }))
    }

    async fn get_job(&self, request: Request<GetJobRequest>) -> Result<Response<Job>, Status> {
        self.job(&self.client().await?, JobId(request.into_inner().job_id)).await
    }

    async fn open_job(&self, request: Request<JobRequest>) -> Result<Response<Job>, Status> {
        let job_id = JobId(request.into_inner().job_id);
        let client = self.client().await?;
        jobs::open(&client, job_id).await.map_err(status_code::of)?;
        self.job(&client, job_id).await
    }

    async fn hold_job(&self, request: Request<JobRequest>) -> Result<Response<Job>, Status> {
        let job_id = JobId(request.into_inner().job_id);
        let client = self.client().await?;
        jobs::hold(&client, job_id).await.map_err(status_code::of)?;
        self.job(&client, job_id).await
    }

    async fn release_job(&self, request: Request<JobRequest>) -> Result<Response<Job>, Status> {
        let job_id = JobId(request.into_inner().job_id);
        let client = self.client().await?;
        jobs::release(&client, job_id).await.map_err(status_code::of)?;
        self.job(&client, job_id).await
    }

    async fn cancel_job(&self, request: Request<JobRequest>) -> Result<Response<Job>, Status> {
        let job_id = JobId(request.into_inner().job_id);
        let client = self.client().await?;
        jobs::cancel(&client, job_id).await.map_err(status_code::of)?;
        self.job(&client, job_id).await
    }

    async fn retry_job(&self, request: Request<JobRequest>) -> Result<Response<Job>, Status> {
        let job_id = JobId(request.into_inner().job_id);
        let client = self.client().await?;
        jobs::retry(&client, job_id).await.map_err(status_code::of)?;
        self.job(&client, job_id).await
    }

    async fn wait_job(&self, request: Request<JobRequest>) -> Result<Response<Job>, Status> {
        let deadline = call_timeout(request.metadata())
            .and_then(|limit| Instant::now().checked_add(limit.saturating_sub(WAIT_MARGIN)));
        let job_id = JobId(request.into_inner().job_id);
        loop {
            let client = self.client().await?;
            let state = jobs::state(&client, job_id).await.map_err(status_code::of)?;
            let state = state.ok_or_else(|| not_found(job_id))?;
            if state.has_ended() {
                return self.job(&client, job_id).await;
            }
            drop(client);
            let next = Instant::now() + WAIT_POLL;
            let last = deadline.filter(|deadline| *deadline < next);
            tokio::select! {
                () = tokio::time::sleep_until(last.unwrap_or(next)) => {}
                () = self.stopping.cancelled() => return Err(stopping()),
            }
            if last.is_some() {
                return Err(Status::deadline_exceeded(format!("job {job_id} is still {}", state.as_str())));
            }
        }
    }

    async fn list_problems(
        &self,
        request: Request<ListProblemsRequest>,
    ) -> Result<Response<ListProblemsResponse>, Status> {
        let asked = request.into_inner();
        let state = match asked.state.as_str() {
            "" => None,
            name => Some(
                name.parse()
                    .map_err(|unknown: problems::UnknownState| Status::invalid_argument(unknown.to_string()))?,
            ),
        };
        let job_id = JobId(asked.job_id);
        let wanted = problems::Wanted {
            job_id,
            state,
            key: (!asked.key.is_empty()).then_some(asked.key),
            after: ProblemId(asked.after_problem_id.max(0)),
            limit: page(asked.limit),
        };
        let client = self.client().await?;
        let found = problems::page(&client, &wanted).await.map_err(status_code::of)?;
        if found.is_empty() && jobs::state(&client, job_id).await.map_err(status_code::of)?.is_none() {
            return Err(not_found(job_id));
        }
        let problems = found.into_iter().map(|problem| problem_message(job_id, problem)).collect();
        Ok(Response::new(ListProblemsResponse { problems }))
    }

    type ResultsStream = Chunks;

    async fn results(&self, request: Request<JobRequest>) -> Result<Response<Chunks>, Status> {
        let job_id = JobId(request.into_inner().job_id);
        let client = self.client().await?;
        if jobs::state(&client, job_id).await.map_err(status_code::of)?.is_none() {
            return Err(not_found(job_id));
        }
        let from = results::Results::of_job(&client, job_id).await.map_err(status_code::of)?;
        Ok(Response::new(Chunks::start(self.pool.clone(), from, self.stopping.clone())))
    }
}

pub(super) fn not_found(job_id: JobId) -> Status {
    Status::not_found(format!("there is no job {job_id}"))
}

fn stopping() -> Status {
    Status::unavailable("the server is stopping: ask again")
}

fn page(limit: u32) -> u32 {
    if limit == 0 { DEFAULT_PAGE } else { limit.min(jobs::PAGE_LIMIT) }
}

/// What a call's `grpc-timeout` says: at most eight digits and a unit.
fn call_timeout(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number.checked_mul(3600)?)),
        "M" => Some(Duration::from_secs(number.checked_mul(60)?)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

async fn in_turn(turns: &Semaphore) -> Result<SemaphorePermit<'_>, Status> {
    match timeout(TURN_TIMEOUT, turns.acquire()).await {
        Ok(turn) => Ok(turn.expect("the semaphore is never closed")),
        Err(_) => Err(Status::unavailable("this server takes as many loads already as it can: try again")),
    }
}

/// What a header asks for.
struct Wanted {
    target: Target,
    convoy: Option<u32>,
    open: bool,
}

async fn wanted(parts: &mut Parts) -> Result<Wanted, Status> {
    let header = match parts.next().await? {
        Some(Part::Header(header)) => header,
        Some(Part::Problems(_) | Part::End(_)) | None => {
            return Err(Status::invalid_argument("the first message must be the header"));
        }
    };
    let (open, convoy) = (header.open, (header.convoy != 0).then_some(header.convoy));
    Ok(Wanted { target: target(header)?, convoy, open })
}

/// A call's messages. The stream's end is no sign that the client has said all: tonic reports a stream that was reset by
/// CANCEL as ended.
struct Parts {
    messages: Streaming<SubmitRequest>,
    /// Looked at already, and still to come.
    early: VecDeque<Option<Part>>,
}

impl Parts {
    async fn next(&mut self) -> Result<Option<Part>, Status> {
        match self.early.pop_front() {
            Some(part) => Ok(part),
            None => received(&mut self.messages).await,
        }
    }

    /// Everything, if it is little and nothing is wrong with it. It is still to come all the same.
    async fn small(&mut self) -> Result<Option<Vec<NewProblem>>, Status> {
        if !self.look_ahead().await? {
            return Ok(None);
        }
        let Some(Some(Part::Problems(part))) = self.early.back() else { return Ok(None) };
        let bytes: usize = part.problems.iter().map(|problem| problem.key.len() + problem.payload.len()).sum();
        let grouped = part.problems.iter().any(|problem| !problem.group_key.is_empty());
        if part.problems.len() > SMALL_PROBLEMS || bytes > SMALL_BYTES || grouped {
            return Ok(None);
        }
        let Ok(problems) = checked_all(0, part.problems.clone()) else { return Ok(None) };
        if !self.look_ahead().await? {
            return Ok(None);
        }
        let count = problems.len() as i64;
        let ended = matches!(self.early.back(), Some(Some(Part::End(end))) if end.problems == count);
        Ok(ended.then_some(problems))
    }

    /// Whether another one is there.
    async fn look_ahead(&mut self) -> Result<bool, Status> {
        let Ok(part) = timeout(SMALL_PATIENCE, received(&mut self.messages)).await else { return Ok(false) };
        self.early.push_back(part?);
        Ok(true)
    }
}

/// One job from a stream of messages. Whatever ends it early drops `Loading`, and with it all that was loaded.
async fn upload(pool: &Pool, wanted: &Wanted, parts: Parts) -> Result<Submitted, Status> {
    let client = Object::take(pool.get().await.map_err(status_code::of_pool)?);
    let begun = Loading::begin(client, &wanted.target, wanted.convoy).await;
    let loading = match begun.map_err(status_code::of_load)? {
        Begun::Repeated(job) => return Ok(Submitted { job, problems: 0, repeated: true }),
        Begun::Loading(loading) => loading,
    };
    // While the database takes one piece, the next is received and checked.
    let (sender, receiver) = mpsc::channel(1);
    let ((), loading) = tokio::try_join!(receive(parts, sender), add_all(loading, receiver))?;
    loading.finish(wanted.open).await.map_err(status_code::of_load)
}

/// Passes problems on until the client has said that they are all.
async fn receive(mut parts: Parts, sender: mpsc::Sender<Vec<NewProblem>>) -> Result<(), Status> {
    let mut arrived = 0;
    loop {
        match parts.next().await? {
            None => return Err(Status::invalid_argument("the last message must be the end: nothing was loaded")),
            Some(Part::End(end)) => return agreed(end.problems, arrived),
            Some(Part::Header(_)) => return Err(Status::invalid_argument("the header comes once, and first")),
            Some(Part::Problems(part)) => {
                let problems = checked_all(arrived, part.problems)?;
                arrived += problems.len() as i64;
                if sender.send(problems).await.is_err() {
                    return Ok(()); // the other side has failed, and says why
                }
            }
        }
    }
}

async fn add_all(
    mut loading: Box<Loading>,
    mut receiver: mpsc::Receiver<Vec<NewProblem>>,
) -> Result<Box<Loading>, Status> {
    while let Some(problems) = receiver.recv().await {
        loading.add(problems).await.map_err(status_code::of_load)?;
    }
    Ok(loading)
}

fn agreed(told: i64, arrived: i64) -> Result<(), Status> {
    if told == arrived {
        return Ok(());
    }
    Err(Status::invalid_argument(format!("the end tells of {told} problems, but {arrived} came: nothing was loaded")))
}

async fn received(messages: &mut Streaming<SubmitRequest>) -> Result<Option<Part>, Status> {
    let message = timeout(UPLOAD_PAUSE_LIMIT, messages.message()).await.map_err(|_| {
        Status::deadline_exceeded(format!("nothing came for {} s: nothing was loaded", UPLOAD_PAUSE_LIMIT.as_secs()))
    })??;
    match message {
        None => Ok(None),
        Some(SubmitRequest { part: Some(part) }) => Ok(Some(part)),
        Some(SubmitRequest { part: None }) => Err(Status::invalid_argument("an empty message")),
    }
}

fn target(header: SubmitHeader) -> Result<Target, Status> {
    if header.job_id != 0 {
        if !(header.name.is_empty() && header.job_type.is_empty() && header.options.is_empty()) {
            let either = "a header names a job by its id, or says what a new one is: not both";
            return Err(Status::invalid_argument(either));
        }
        return Ok(Target::Job(JobId(header.job_id)));
    }
    for (what, text) in [("name", &header.name), ("job type", &header.job_type)] {
        if text.contains('\0') {
            return Err(Status::invalid_argument(format!("the {what} holds a NUL character")));
        }
    }
    let options = if header.options.is_empty() { "{}".into() } else { header.options };
    let options = json(&options).map_err(|wrong| Status::invalid_argument(format!("the options: {wrong}")))?.to_owned();
    Ok(Target::New { name: header.name, job_type: header.job_type, options })
}

fn checked_all(arrived: i64, problems: Vec<SubmitProblem>) -> Result<Vec<NewProblem>, Status> {
    (arrived + 1..).zip(problems).map(|(number, problem)| checked(number, problem)).collect()
}

/// A problem that the database will take, or what is wrong with it.
fn checked(number: i64, problem: SubmitProblem) -> Result<NewProblem, Status> {
    let SubmitProblem { key, payload, group_key } = problem;
    let wrong = if key.is_empty() {
        Some("has no key".to_owned())
    } else if key.len() > KEY_BYTES_LIMIT {
        Some(format!("has a key of {} bytes, more than {KEY_BYTES_LIMIT}", key.len()))
    } else if key.contains('\0') || group_key.contains('\0') {
        Some("has a NUL character in its key or group key, which the database cannot store".to_owned())
    } else if payload.len() > PAYLOAD_BYTES_LIMIT {
        Some(format!("has a payload of {} bytes, more than {PAYLOAD_BYTES_LIMIT}", payload.len()))
    } else {
        json(&payload).err().map(|wrong| format!("has a payload that cannot be stored: {wrong}"))
    };
    match wrong {
        Some(wrong) => {
            let key: String = key.chars().take(100).collect();
            Err(Status::invalid_argument(format!("problem {number} (key {key:?}) {wrong}; nothing was loaded")))
        }
        None => {
            Ok(NewProblem { key, payload: RawJson(payload), group_key: (!group_key.is_empty()).then_some(group_key) })
        }
    }
}

/// One JSON value in UTF-8, without the escapes that `jsonb` refuses.
fn json(bytes: &[u8]) -> Result<&str, String> {
    if bytes.is_empty() {
        return Err("it is empty, and not a JSON value".to_owned());
    }
    let text = std::str::from_utf8(bytes).map_err(|wrong| format!("not UTF-8 after byte {}", wrong.valid_up_to()))?;
    serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(|wrong| format!("not JSON: {wrong}"))?;
    match unstorable_escape(text) {
        Some(escape) => Err(format!("{escape} is no character that the database can store")),
        None => Ok(text),
    }
}

/// `\u0000`, or half of a surrogate pair. The text is valid JSON, so backslashes are inside strings.
fn unstorable_escape(text: &str) -> Option<&str> {
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let escape = &rest[at..];
        if !escape.starts_with("\\u") {
            rest = &escape[2..];
            continue;
        }
        match code_unit(escape)? {
            0 | 0xDC00..=0xDFFF => return escape.get(..6),
            0xD800..=0xDBFF => {
                let low = escape[6..].starts_with("\\u").then(|| code_unit(&escape[6..])).flatten();
                if !matches!(low, Some(0xDC00..=0xDFFF)) {
                    return escape.get(..6);
                }
                rest = &escape[12..];
            }
            _ => rest = &escape[6..],
        }
    }
    None
}

fn code_unit(escape: &str) -> Option<u32> {
    u32::from_str_radix(escape.get(2..6)?, 16).ok()
}

/// A job's results on their way. Dropped with the call, which ends the task that reads them.
pub struct Chunks {
    receiver: mpsc::Receiver<Result<ResultChunk, Status>>,
    task: JoinSet<()>,
    stopping: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Chunks {
    fn start(pool: Pool, from: results::Results, stopping: CancellationToken) -> Chunks {
        let (sender, receiver) = mpsc::channel(CHUNKS_WAITING);
        let mut task = JoinSet::new();
        // Its errors are sent; a panic is told by `poll_next`, lest half of the results look like all.
        task.spawn(async move {
            if let Err(status) = send_chunks(&pool, from, &sender).await {
                drop(sender.send(Err(status)).await);
            }
        });
        Chunks { receiver, task, stopping: Box::pin(stopping.cancelled_owned()) }
    }
}

impl Stream for Chunks {
    type Item = Result<ResultChunk, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.stopping.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(stopping())));
        }
        if let Some(chunk) = std::task::ready!(self.receiver.poll_recv(context)) {
            return Poll::Ready(Some(chunk));
        }
        match std::task::ready!(self.task.poll_join_next(context)) {
            Some(Err(_)) => {
                Poll::Ready(Some(Err(Status::internal("reading results failed: the server's log says more"))))
            }
            Some(Ok(())) | None => Poll::Ready(None),
        }
    }
}

/// A connection is held for one piece at a time, never while the reader takes it.
async fn send_chunks(
    pool: &Pool,
    mut from: results::Results,
    sender: &mpsc::Sender<Result<ResultChunk, Status>>,
) -> Result<(), Status> {
    loop {
        let client = pool.get().await.map_err(status_code::of_pool)?;
        let Some(piece) = from.next(&client).await.map_err(status_code::of)? else { return Ok(()) };
        drop(client);
        for chunk in chunks(piece) {
            if sender.send(Ok(chunk)).await.is_err() {
                return Ok(()); // nobody listens any more
            }
        }
    }
}

/// Cut so that none is much larger than a part should be.
fn chunks(outcomes: Vec<results::ProblemOutcome>) -> Vec<ResultChunk> {
    let mut chunks = Vec::new();
    let mut bytes = usize::MAX;
    for outcome in outcomes {
        let outcome = outcome_message(outcome);
        let size = outcome.key.len() + outcome.message.len() + outcome.result.len() + 32;
        if bytes.saturating_add(size) > PART_BYTES_TARGET {
            chunks.push(ResultChunk::default());
            bytes = 0;
        }
        bytes += size;
        if let Some(chunk) = chunks.last_mut() {
            chunk.outcomes.push(outcome);
        }
    }
    chunks
}

fn outcome_message(outcome: results::ProblemOutcome) -> ProblemOutcome {
    let (word, message, result) = match outcome.solution {
        Ok(solution) => ("done", String::new(), solution.map(|solution| solution.0).unwrap_or_default()),
        Err(message) => ("failed", message, bytes::Bytes::new()),
    };
    ProblemOutcome { problem_id: outcome.problem_id.0, key: outcome.key, outcome: word.to_owned(), message, result }
}

fn problem_message(job_id: JobId, problem: problems::ProblemStatus) -> ProblemStatus {
    ProblemStatus {
        job_id: job_id.0,
        problem_id: problem.problem_id.0,
        key: problem.key,
        job_type: problem.job_type,
        state: problem.state.as_str().to_owned(),
        attempts: u32::try_from(problem.attempts).unwrap_or(0),
        message: problem.message.unwrap_or_default(),
        checkout_id: problem.checkout_id.map_or(0, |id| id.0),
        workstation_id: problem.workstation_id.map_or(0, |id| id.0),
        payload: problem.payload.0,
        result: problem.result.map(|result| result.0).unwrap_or_default(),
    }
}

fn job_message(job: jobs::Job, lanes: Vec<jobs::Lane>) -> Job {
    Job {
        reason: job.reason(),
        job_id: job.job_id.0,
        name: job.name,
        job_type: job.job_type,
        owner: job.owner,
        state: job.state.as_str().to_owned(),
        priority: job.priority,
        deadline: job.deadline.map(Into::into),
        created_at: Some(job.created_at.into()),
        opened_at: job.opened_at.map(Into::into),
        ended_at: job.ended_at.map(Into::into),
        problems: job.problems,
        done: job.done,
        failed: job.failed,
        in_progress: job.in_progress,
        waiting: job.waiting,
        cancelled: job.cancelled,
        requeued: job.requeued,
        lanes: lanes.into_iter().map(lane_message).collect(),
        title: job.title,
    }
}

fn lane_message(lane: jobs::Lane) -> Lane {
    Lane {
        lane_id: lane.lane_id.0,
        kind: lane.kind,
        job_type: lane.job_type,
        next_extraction: lane.next_extraction,
        next_insertion: lane.next_insertion,
        problems: lane.problems,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(key: &str, payload: &[u8]) -> SubmitProblem {
        SubmitProblem { key: key.into(), payload: payload.to_vec().into(), group_key: String::new() }
    }

    #[test]
    fn what_the_database_would_refuse_is_refused_with_its_number_and_key() {
        let long = "k".repeat(1025);
        let large = format!("\"{}\"", "x".repeat(PAYLOAD_BYTES_LIMIT));
        let cases: [(&str, &[u8], &str); 15] = [
            ("k", b"{\"a\": [1, 2.5e3, null]}", ""),
            ("k", br#""\\u0000 \ud83d\ude00 \" \u00e4""#, ""),
            ("", b"1", "no key"),
            (&long, b"1", "1025 bytes"),
            ("a\0b", b"1", "NUL"),
            ("k", b"", "empty"),
            ("k", b"{", "not JSON"),
            ("k", b"1 2", "not JSON"),
            ("k", b"\"\xff\"", "not UTF-8"),
            ("k", br#""\u0000""#, r"\u0000"),
            ("k", br#""\\\u0000""#, r"\u0000"),
            ("k", br#""\ud800""#, r"\ud800"),
            ("k", br#""\ud800\n""#, r"\ud800"),
            ("k", br#""\udc00""#, r"\udc00"),
            ("k", large.as_bytes(), "more than"),
        ];
        for (key, payload, expected) in cases {
            match checked(42, problem(key, payload)) {
                Ok(_) => assert_eq!(expected, "", "{payload:?}"),
                Err(status) => {
                    let message = status.message();
                    assert!(message.starts_with("problem 42 (key ") && message.contains(expected), "{message}");
                    assert!(!expected.is_empty(), "{message}");
                }
            }
        }
    }

    #[test]
    fn deadlines_of_calls_are_read() {
        let cases = [
            ("10S", Some(Duration::from_secs(10))),
            ("2H", Some(Duration::from_secs(7200))),
            ("1M", Some(Duration::from_secs(60))),
            ("250m", Some(Duration::from_millis(250))),
            ("99999999u", Some(Duration::from_micros(99_999_999))),
            ("5n", Some(Duration::from_nanos(5))),
            ("", None),
            ("S", None),
            ("10", None),
        ];
        for (text, expected) in cases {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", text.parse().expect("ASCII"));
            assert_eq!(call_timeout(&metadata), expected, "{text}");
        }
    }

    #[tokio::test]
    async fn results_end_with_an_error_when_the_server_stops() {
        let stopping = CancellationToken::new();
        // Somebody still reads from the database.
        let (_sender, receiver) = mpsc::channel(1);
        let mut chunks =
            Chunks { receiver, task: JoinSet::new(), stopping: Box::pin(stopping.clone().cancelled_owned()) };
        stopping.cancel();
        let last = std::future::poll_fn(|context| Pin::new(&mut chunks).poll_next(context)).await;
        let status = last.expect("more than the end").expect_err("nothing was sent");
        assert_eq!(status.code(), tonic::Code::Unavailable);
    }

    #[test]
    fn chunks_are_bounded_and_keep_their_order() {
        let outcome = |id| results::ProblemOutcome {
            problem_id: ProblemId(id),
            key: "k".into(),
            solution: Ok(Some(RawJson(vec![b' '; 300 << 10].into()))),
        };
        let cut = chunks((0..10).map(outcome).collect());
        assert_eq!(cut.iter().map(|chunk| chunk.outcomes.len()).collect::<Vec<_>>(), [3, 3, 3, 1]);
        let ids: Vec<i64> = cut.iter().flat_map(|chunk| &chunk.outcomes).map(|outcome| outcome.problem_id).collect();
        assert_eq!(ids, (0..10).collect::<Vec<i64>>());
        assert!(chunks(Vec::new()).is_empty());
    }
}
