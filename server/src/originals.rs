//! Submissions: what is uploaded is stored, whole and with its hash, before it is acknowledged, and loaded into a job
//! afterwards. Whatever crashes in between, what is stored is found and loaded by whichever server looks next, once: the
//! load's own transaction marks it.

use crate::access::{Caller, Scope, Scopes};
use crate::farm::Farm;
use crate::grpc::jobs::JobsApi;
use crate::grpc::status_code;
use crate::rest::upload::{self, Format, Pieces};
use anyhow::Context;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use pcfarm_intake::{Asked as Words, Shape};
use pcfarm_proto::PAYLOAD_BYTES_LIMIT;
use pcfarm_proto::ids::JobId;
use pcfarm_proto::v1::submit_request::Part;
use pcfarm_proto::v1::{SubmitEnd, SubmitHeader, SubmitProblem, SubmitProblems, SubmitRequest, SubmitResponse};
use pcfarm_sql::json::RawJson;
use pcfarm_sql::submissions::{self, Ended, KeptIn, ToLoad};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tonic::{Code, Status};
use tracing::{info, warn};

/// What is written at a time: with what is on its way, an upload's memory.
const PIECE_BYTES: usize = 1 << 20;
/// Uploads that are received at a time.
const RECEIVING: usize = 16;
/// Between two pieces.
const PAUSE_LIMIT: Duration = Duration::from_secs(60);
/// While a directory takes an upload, the database hears this often that it is still coming.
const TOUCH: Duration = Duration::from_secs(60);

/// Behind every nudge.
const LOOK: Duration = Duration::from_secs(1);
const FORGET: Duration = Duration::from_secs(60);
const POSTPONED: f64 = 15.0;

/// As one problem: base64 takes a third more, and its payload says what it is.
pub const ONE_PROBLEM_LIMIT: usize = PAYLOAD_BYTES_LIMIT / 4 * 3 - 1024;

/// What a submission is to become.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Asked {
    pub job_id: Option<i64>,
    pub name: Option<String>,
    pub job_type: Option<String>,
    #[serde(default)]
    pub options: Map<String, Value>,
    #[serde(default)]
    pub convoy: u32,
    pub form: ContentForm,
    /// Of columns or fields; or of the one problem.
    pub key: Option<String>,
    pub group: Option<String>,
    #[serde(default)]
    pub strings: bool,
    /// Whoever asked may touch what belongs to others.
    #[serde(default)]
    pub everybodys: bool,
}

/// How problems are read from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ContentForm {
    Ndjson,
    Json,
    Csv,
    /// All of it is one problem, whatever it is.
    One,
}

/// Where uploads are kept.
#[derive(Clone, Debug)]
pub enum Store {
    Database,
    /// Of all servers, if there are several.
    Directory(PathBuf),
}

/// Why an upload was not stored.
#[derive(Debug)]
pub enum NotStored {
    /// It ended before its end, or stood still.
    Broken(String),
    TooLarge(usize),
    /// The key was used for another one.
    OtherUnderKey,
    Failed(Status),
}

impl From<Status> for NotStored {
    fn from(status: Status) -> NotStored {
        NotStored::Failed(status)
    }
}

pub struct Originals {
    farm: Arc<Farm>,
    jobs: Arc<JobsApi>,
    store: Store,
    receiving: Semaphore,
    stored: Notify,
}

impl Originals {
    pub fn new(farm: Arc<Farm>, jobs: Arc<JobsApi>, store: Store) -> Arc<Originals> {
        Arc::new(Originals { farm, jobs, store, receiving: Semaphore::new(RECEIVING), stored: Notify::new() })
    }

    async fn client(&self) -> Result<deadpool_postgres::Object, Status> {
        self.farm.pool.get().await.map_err(status_code::of_pool)
    }

    /// Stores an upload. Returns the submission, and whether it had been stored before, under its key.
    pub async fn receive(
        &self,
        caller: &Caller,
        asked: &Asked,
        content_type: &str,
        key: Option<&str>,
        pieces: Pieces,
    ) -> Result<(i64, bool), NotStored> {
        let Ok(_place) = self.receiving.try_acquire() else {
            return Err(Status::unavailable("this server receives as many uploads as it can: try again").into());
        };
        let kept_in = match self.store {
            Store::Database => KeptIn::Database,
            Store::Directory(_) => KeptIn::Directory,
        };
        let told = RawJson(serde_json::to_vec(asked).map_err(|error| Status::internal(error.to_string()))?.into());
        let client = self.client().await?;
        caller.act(&client).await?;
        let begun = submissions::begin(&client, &told, content_type, kept_in, key).await;
        let id = begun.map_err(status_code::of)?;
        drop(client);
        let limit = if asked.form == ContentForm::One { ONE_PROBLEM_LIMIT } else { usize::MAX };
        let outcome = match self.write(id, pieces, limit).await {
            Ok((sha256, bytes)) => {
                let client = self.client().await?;
                submissions::stored(&client, id, &sha256, bytes).await.map_err(|error| status_code::of(error).into())
            }
            Err(failed) => Err(failed),
        };
        match outcome {
            Ok(Ended::Stored) => {
                self.stored.notify_one();
                Ok((id, false))
            }
            other => {
                if let Err(error) = self.drop_unfinished(id).await {
                    warn!(submission_id = id, error = format!("{error:#}"), "an upload is removed within the hour");
                }
                match other? {
                    Ended::Stored => Ok((id, false)),
                    Ended::GivenUp => Err(NotStored::Broken("it took longer than an hour to come".to_owned())),
                    Ended::Before { id, same: true } => Ok((id, true)),
                    Ended::Before { same: false, .. } => Err(NotStored::OtherUnderKey),
                }
            }
        }
    }

    /// Its file goes only with its row: it may be stored although nobody was told. What is left is removed within an hour.
    async fn drop_unfinished(&self, id: i64) -> anyhow::Result<()> {
        let client = self.farm.pool.get().await.context("getting a connection")?;
        let dropped = submissions::drop_unfinished(&client, id).await.context("dropping an upload")?;
        if let (true, Store::Directory(directory)) = (dropped, &self.store) {
            drop(tokio::fs::remove_file(part(directory, id)).await);
            drop(tokio::fs::remove_file(file(directory, id)).await);
        }
        Ok(())
    }

    async fn write(&self, id: i64, mut pieces: Pieces, limit: usize) -> Result<(Vec<u8>, i64), NotStored> {
        let mut sink = Sink::open(self, id).await.map_err(failed)?;
        let (mut hash, mut bytes, mut gathered) = (Sha256::new(), 0, BytesMut::new());
        loop {
            let next = timeout(PAUSE_LIMIT, pieces.next()).await;
            let next = next.map_err(|_| NotStored::Broken(format!("nothing came for {} s", PAUSE_LIMIT.as_secs())))?;
            let Some(piece) = next else { break };
            let piece = piece.map_err(|_| NotStored::Broken("it ended before its end".to_owned()))?;
            bytes += piece.len();
            if bytes > limit {
                return Err(NotStored::TooLarge(limit));
            }
            hash.update(&piece);
            gathered.extend_from_slice(&piece);
            if gathered.len() >= PIECE_BYTES {
                sink.write(gathered.split().freeze()).await?;
            }
        }
        sink.write(gathered.freeze()).await?;
        sink.finish().await.map_err(failed)?;
        Ok((hash.finalize().to_vec(), bytes as i64))
    }

    /// What was uploaded, as it came.
    pub fn pieces(&self, id: i64, kept_in: KeptIn) -> Pieces {
        match (kept_in, &self.store) {
            (KeptIn::Database, _) => {
                let pool = self.farm.pool.clone();
                stream::try_unfold((pool, 0), move |(pool, number)| async move {
                    let client = pool.get().await.map_err(io::Error::other)?;
                    let piece = submissions::piece(&client, id, number).await.map_err(io::Error::other)?;
                    drop(client);
                    Ok(piece.map(|piece| (Bytes::from(piece), (pool, number + 1))))
                })
                .boxed()
            }
            (KeptIn::Directory, Store::Directory(directory)) => {
                let path = file(directory, id);
                stream::try_unfold(None, move |open| {
                    let path = path.clone();
                    async move {
                        let mut file = match open {
                            Some(file) => file,
                            None => tokio::fs::File::open(path).await?,
                        };
                        let mut piece = BytesMut::with_capacity(64 << 10);
                        let read = file.read_buf(&mut piece).await?;
                        io::Result::Ok((read > 0).then(|| (piece.freeze(), Some(file))))
                    }
                })
                .boxed()
            }
            (KeptIn::Directory, Store::Database) => {
                let say = "this server has no directory of uploads: start it with --originals DIR";
                stream::iter([Err(io::Error::other(say))]).boxed()
            }
        }
    }

    /// Loads what is stored, soon after it was and at least every second; and removes what is kept no longer.
    pub async fn sweep(self: Arc<Originals>) {
        let mut tick = interval(LOOK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut forgot = Instant::now();
        let stopping = self.farm.stopping.clone();
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                _ = tick.tick() => {}
                () = self.stored.notified() => {}
            }
            let swept = async {
                while !stopping.is_cancelled() && self.load_next().await? {}
                if forgot.elapsed() > FORGET {
                    forgot = Instant::now();
                    self.forget().await?;
                }
                anyhow::Ok(())
            };
            if let Err(error) = swept.await {
                warn!(error = format!("{error:#}"), "loading submissions failed: trying again");
            }
        }
    }

    /// False: there is none.
    async fn load_next(&self) -> anyhow::Result<bool> {
        let client = self.farm.pool.get().await.context("getting a connection")?;
        let Some(next) = submissions::claim(&client).await.context("claiming a submission")? else { return Ok(false) };
        drop(client);
        // Cut off by the end, a load has not happened: the next server need not wait for this one.
        let outcome = self.farm.stopping.run_until_cancelled(self.load(&next)).await;
        let outcome = outcome.unwrap_or_else(|| Err(Status::cancelled("the server stops")));
        let client = self.farm.pool.get().await.context("getting a connection")?;
        match outcome {
            Ok(loaded) => {
                if loaded.repeated {
                    let job = JobId(loaded.job_id);
                    submissions::loaded(&client, next.id, job, 0).await.context("marking a submission")?;
                }
                info!(submission_id = next.id, job_id = loaded.job_id, problems = loaded.problems, "submission loaded");
            }
            Err(status) => self.not_loaded(&client, &next, &status).await.context("noting why a submission waits")?,
        }
        Ok(true)
    }

    async fn not_loaded(
        &self,
        client: &deadpool_postgres::Object,
        of: &ToLoad,
        status: &Status,
    ) -> Result<(), tokio_postgres::Error> {
        match status.code() {
            Code::InvalidArgument
            | Code::NotFound
            | Code::FailedPrecondition
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::OutOfRange => {
                info!(submission_id = of.id, "submission refused");
                submissions::refused(client, of.id, status.message()).await
            }
            Code::Cancelled => submissions::postponed(client, of.id, "", 0.0).await,
            Code::ResourceExhausted => submissions::postponed(client, of.id, status.message(), POSTPONED).await,
            code => {
                warn!(
                    submission_id = of.id,
                    ?code,
                    message = status.message(),
                    "a submission was not loaded: again later"
                );
                let seconds = f64::from(of.attempts.clamp(1, 60));
                submissions::postponed(client, of.id, status.message(), seconds).await
            }
        }
    }

    async fn load(&self, next: &ToLoad) -> Result<SubmitResponse, Status> {
        let asked: Asked =
            serde_json::from_slice(&next.asked.0).map_err(|error| Status::internal(error.to_string()))?;
        let header = SubmitHeader {
            job_id: asked.job_id.unwrap_or(0),
            name: asked.name.unwrap_or_default(),
            job_type: asked.job_type.unwrap_or_default(),
            options: if asked.job_id.is_some() {
                Bytes::new()
            } else {
                Value::Object(asked.options).to_string().into()
            },
            convoy: asked.convoy,
            open: asked.job_id.is_none(),
        };
        let failed = Arc::new(AtomicBool::new(false));
        let pieces = watched(self.pieces(next.id, next.kept_in), next.bytes, failed.clone());
        let shape =
            Shape { key: asked.key.clone(), group: asked.group, strings: asked.strings, asked: Words::Parameters };
        let messages = match asked.form {
            ContentForm::Ndjson => upload::messages(header, pieces, Format::Ndjson, shape),
            ContentForm::Json => upload::messages(header, pieces, Format::Json, shape),
            ContentForm::Csv => upload::messages(header, pieces, Format::Csv, shape),
            ContentForm::One => {
                let problem = one(next, asked.key, pieces).await?;
                let problems = SubmitProblems { problems: vec![problem] };
                let parts = [Part::Header(header), Part::Problems(problems), Part::End(SubmitEnd { problems: 1 })];
                stream::iter(parts.map(|part| Ok(SubmitRequest { part: Some(part) }))).boxed()
            }
        };
        // What is loaded is its user's, who may have lost some rights meanwhile: jobs that it does not see are not there.
        let scope = if asked.everybodys { Scope::Operate } else { Scope::Submit };
        let caller = Caller::person(&next.owner, Scopes::NONE.with(scope), 0);
        let outcome = self.jobs.submit_stored(&caller, messages, next.id).await;
        // Not the upload's fault, whatever its reader made of it.
        let unread = |status: Status| match failed.load(Ordering::Relaxed) {
            true => Status::unavailable(format!("what was stored could not be read: {}", status.message())),
            false => status,
        };
        outcome.map_err(unread)
    }

    async fn forget(&self) -> anyhow::Result<()> {
        let mut client = self.farm.pool.get().await.context("getting a connection")?;
        pcfarm_sql::requests::forget(&client).await.context("forgetting requests")?;
        // Files go first: of a server that dies in between, the next one finds what is to be removed again.
        let transaction = client.transaction().await.context("beginning to forget uploads")?;
        let gone = submissions::forget(&transaction).await.context("forgetting uploads")?;
        if let Store::Directory(directory) = &self.store {
            for id in gone {
                drop(tokio::fs::remove_file(file(directory, id)).await);
                drop(tokio::fs::remove_file(part(directory, id)).await);
            }
        }
        transaction.commit().await.context("forgetting uploads")?;
        Ok(())
    }
}

/// All of what was stored, or an error, which is remembered: readers cannot tell it from an upload that is wrong.
fn watched(pieces: Pieces, bytes: i64, failed: Arc<AtomicBool>) -> Pieces {
    stream::unfold((pieces, bytes, false), move |(mut pieces, left, over)| {
        let failed = failed.clone();
        async move {
            if over {
                return None;
            }
            let piece = match pieces.next().await {
                None if left == 0 => return None,
                None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("{left} bytes are not there"))),
                Some(piece) => piece,
            };
            let left = left - piece.as_ref().map_or(0, |piece| piece.len() as i64);
            let over = piece.is_err();
            failed.fetch_or(over, Ordering::Relaxed);
            Some((piece, (pieces, left, over)))
        }
    })
    .boxed()
}

/// All of an upload as a problem's payload: as text if it is UTF-8 that the database can store, else as base64.
async fn one(of: &ToLoad, key: Option<String>, mut pieces: Pieces) -> Result<SubmitProblem, Status> {
    let mut content = Vec::new();
    while let Some(piece) = pieces.next().await {
        content.extend_from_slice(&piece.map_err(|error| Status::unavailable(error.to_string()))?);
    }
    if content.len() as i64 != of.bytes {
        return Err(Status::unavailable("the upload is not whole where it is kept"));
    }
    let sha256 = hex(&of.sha256);
    let mut payload = json!({ "content_type": of.content_type, "sha256": sha256, "bytes": content.len() });
    let (name, value) = match String::from_utf8(content) {
        Ok(text) if !text.contains('\0') => ("text", text),
        Ok(text) => ("base64", BASE64_STANDARD.encode(text)),
        Err(binary) => ("base64", BASE64_STANDARD.encode(binary.as_bytes())),
    };
    payload[name] = Value::String(value);
    let key = key.unwrap_or_else(|| sha256.clone());
    Ok(SubmitProblem { key, payload: payload.to_string().into(), ..SubmitProblem::default() })
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn file(directory: &Path, id: i64) -> PathBuf {
    directory.join(id.to_string())
}

fn part(directory: &Path, id: i64) -> PathBuf {
    directory.join(format!("{id}.part"))
}

fn failed(error: io::Error) -> NotStored {
    warn!(%error, "an upload could not be written");
    NotStored::Failed(Status::unavailable("the upload could not be stored: try again"))
}

/// Where an upload is written to.
enum Sink<'a> {
    Database { of: &'a Originals, id: i64, number: i32 },
    File { of: &'a Originals, id: i64, directory: &'a Path, file: tokio::fs::File, touched: Instant },
}

impl<'a> Sink<'a> {
    async fn open(of: &'a Originals, id: i64) -> io::Result<Sink<'a>> {
        match &of.store {
            Store::Database => Ok(Sink::Database { of, id, number: 0 }),
            Store::Directory(directory) => {
                let file = tokio::fs::File::create(part(directory, id)).await?;
                Ok(Sink::File { of, id, directory, file, touched: Instant::now() })
            }
        }
    }

    async fn write(&mut self, piece: Bytes) -> Result<(), NotStored> {
        if piece.is_empty() {
            return Ok(());
        }
        match self {
            Sink::Database { of, id, number } => {
                let client = of.client().await?;
                submissions::add_piece(&client, *id, *number, &piece).await.map_err(status_code::of)?;
                *number += 1;
            }
            Sink::File { of, id, file, touched, .. } => {
                file.write_all(&piece).await.map_err(failed)?;
                if touched.elapsed() > TOUCH {
                    *touched = Instant::now();
                    let client = of.client().await?;
                    submissions::touch(&client, *id).await.map_err(status_code::of)?;
                }
            }
        }
        Ok(())
    }

    /// It is there from now on, whatever loses its power.
    async fn finish(self) -> io::Result<()> {
        match self {
            Sink::Database { .. } => Ok(()),
            Sink::File { id, directory, file: written, .. } => {
                written.sync_all().await?;
                tokio::fs::rename(part(directory, id), file(directory, id)).await?;
                tokio::fs::File::open(directory).await?.sync_all().await
            }
        }
    }
}
