//! Submissions: what is uploaded is stored, whole and with its hash, before it is acknowledged, and loaded into a job
//! afterwards ([`loading`]).

pub mod kept;
mod loading;

use crate::access::places::{Full, Holder, Places};
use crate::access::{Caller, Peer};
use crate::farm::Farm;
use crate::grpc::jobs::JobsApi;
use crate::grpc::status_code;
use crate::rest::upload::Pieces;
use anyhow::Context;
use bytes::BytesMut;
use deadpool_postgres::{Object, Transaction};
use futures_util::{StreamExt, stream};
use kept::{Removed, Sink, Store};
use pcfarm_proto::PAYLOAD_BYTES_LIMIT;
use pcfarm_sql::json::RawJson;
use pcfarm_sql::submissions::{self, Ended, KeptIn};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Status};
use tracing::warn;

/// What is written at a time.
const PIECE_BYTES: usize = 1 << 20;
/// Uploads that are received at a time, and those of one user, or one address without a token.
const RECEIVING: usize = 32;
const RECEIVING_OF_ONE: usize = 8;
/// What cannot be removed by then is left to those who remove what is left, and those try again: they hold a transaction.
const CLEAR_LIMIT: Duration = Duration::from_secs(5);
const REMOVE_LIMIT: Duration = Duration::from_secs(30);
const FORGOTTEN_AT_A_TIME: i64 = 20;

/// All of it is here, and the database does not say whether it is stored: it is asked again for so long.
const UNKNOWN_LIMIT: Duration = Duration::from_secs(15);
const UNKNOWN_PAUSE: Duration = Duration::from_millis(250);

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
    /// Where it came from, if somebody wants to see its path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_parent: Option<String>,
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

/// Why an upload was not stored.
#[derive(Debug)]
pub enum NotStored {
    /// It ended before its end.
    Broken(String),
    TooSlow(String),
    /// So many at a time.
    OwnFull(usize),
    /// The database had not answered when the patience was over: this one may be stored, or not.
    Unknown(i64),
    TooLarge(usize),
    /// The key was used for another one.
    OtherUnderKey,
    Failed(Status),
}

/// An upload that is stored.
#[derive(Clone, Debug)]
pub struct Received {
    pub id: i64,
    /// It had been before, under its key.
    pub repeated: bool,
    pub sha256: Vec<u8>,
    pub bytes: i64,
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
    receiving: Arc<Places>,
    stored: Notify,
}

impl Originals {
    pub fn new(farm: Arc<Farm>, jobs: Arc<JobsApi>, store: Store) -> Arc<Originals> {
        Arc::new(Originals {
            farm,
            jobs,
            store,
            receiving: Places::new(RECEIVING, RECEIVING_OF_ONE),
            stored: Notify::new(),
        })
    }

    async fn client(&self) -> Result<deadpool_postgres::Object, Status> {
        self.farm.pool.get().await.map_err(status_code::of_pool)
    }

    /// Stores an upload.
    pub async fn receive(
        &self,
        (caller, peer): (&Caller, &Peer),
        asked: &Asked,
        content_type: &str,
        key: Option<&str>,
        pieces: Pieces,
    ) -> Result<Received, NotStored> {
        let _place = match self.receiving.try_take(&Holder::of(caller, peer)) {
            Ok(place) => place,
            Err(Full::Own(most)) => return Err(NotStored::OwnFull(most)),
            Err(Full::All) => {
                return Err(Status::unavailable("this server receives as many uploads as it can: try again").into());
            }
        };
        let told = RawJson(serde_json::to_vec(asked).map_err(|error| Status::internal(error.to_string()))?.into());
        let client = self.client().await?;
        caller.act(&client).await?;
        let begun = submissions::begin(&client, &told, content_type, self.store.kept_in(), key).await;
        let id = begun.map_err(status_code::of)?;
        drop(client);
        let most = self.store.most_bytes();
        let limit = if asked.form == ContentForm::One { ONE_PROBLEM_LIMIT.min(most) } else { most };
        let (sha256, bytes) = match self.write(id, pieces, limit).await {
            Ok(written) => written,
            Err(failed) => {
                self.clear(id).await;
                return Err(failed);
            }
        };
        let ended = self.ended(id, &sha256, bytes).await?;
        if ended != Ended::Stored {
            self.clear(id).await;
        }
        let (id, repeated) = match ended {
            Ended::Stored => {
                self.stored.notify_one();
                (id, false)
            }
            Ended::Before { id, same: true } => (id, true),
            Ended::Before { same: false, .. } => return Err(NotStored::OtherUnderKey),
            Ended::GivenUp => return Err(NotStored::Broken("it took longer than an hour to come".to_owned())),
        };
        Ok(Received { id, repeated, sha256, bytes })
    }

    /// Whether it is stored. A database that is lost on the way may have stored it: it is asked until it says so, since only
    /// that can be told.
    async fn ended(&self, id: i64, sha256: &[u8], bytes: i64) -> Result<Ended, NotStored> {
        let deadline = Instant::now() + UNKNOWN_LIMIT;
        let mut asked = false;
        loop {
            let failed = match self.client().await {
                Ok(client) => match submissions::stored(&client, id, sha256, bytes).await {
                    Ok(ended) => return Ok(ended),
                    Err(error) => {
                        asked = true;
                        status_code::of(error)
                    }
                },
                Err(failed) => failed,
            };
            if !matches!(failed.code(), Code::Unavailable | Code::Aborted | Code::DeadlineExceeded) {
                self.clear(id).await;
                return Err(failed.into());
            }
            if Instant::now() >= deadline {
                warn!(submission_id = id, "whether an upload is stored is not known here");
                return Err(if asked { NotStored::Unknown(id) } else { failed.into() });
            }
            sleep(UNKNOWN_PAUSE).await;
        }
    }

    async fn clear(&self, id: i64) {
        let dropped = timeout(CLEAR_LIMIT, self.drop_unfinished(id)).await;
        if let Err(error) = dropped.context("it takes too long").flatten() {
            warn!(submission_id = id, error = format!("{error:#}"), "an upload is removed within the hour");
        }
    }

    /// It goes only with its row, and its row only with it: it may be stored although nobody was told, and what is left is
    /// found by its row.
    async fn drop_unfinished(&self, id: i64) -> anyhow::Result<()> {
        let mut client = self.farm.pool.get().await.context("getting a connection")?;
        let transaction = begun(&mut client).await.context("beginning to drop an upload")?;
        if submissions::drop_unfinished(&transaction, id).await.context("dropping an upload")? {
            let Removed { failed, .. } = self.store.remove(self.store.kept_in(), &[id]).await;
            failed.map_or(Ok(()), |(_, error)| Err(error))?;
        }
        transaction.commit().await.context("dropping an upload")
    }

    async fn write(&self, id: i64, mut pieces: Pieces, limit: usize) -> Result<(Vec<u8>, i64), NotStored> {
        let mut sink = Sink::open(self, id).await?;
        let (mut hash, mut bytes, mut gathered) = (Sha256::new(), 0, BytesMut::new());
        loop {
            let Some(piece) = pieces.next().await else { break };
            let piece = piece.map_err(|error| match error.kind() {
                io::ErrorKind::TimedOut => NotStored::TooSlow(error.to_string()),
                _ => NotStored::Broken("it ended before its end".to_owned()),
            })?;
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
        sink.finish().await?;
        Ok((hash.finalize().to_vec(), bytes as i64))
    }

    /// What was uploaded, as it came. Who asks may be told whether the first of it is there.
    pub async fn begun(&self, id: i64, kept_in: KeptIn) -> Result<Pieces, Status> {
        let mut pieces = self.store.pieces(&self.farm, id, kept_in);
        match pieces.next().await {
            None => Ok(pieces),
            Some(Ok(first)) => Ok(stream::iter([Ok(first)]).chain(pieces).boxed()),
            Some(Err(error)) => {
                warn!(submission_id = id, %error, "an upload could not be read");
                Err(Status::unavailable("where this upload is kept, it cannot be read now: try again later"))
            }
        }
    }

    async fn forget(&self) -> anyhow::Result<()> {
        let client = self.farm.pool.get().await.context("getting a connection")?;
        pcfarm_sql::requests::forget(&client).await.context("forgetting requests")?;
        drop(client);
        self.forget_in(KeptIn::Database).await?;
        match self.store.kept_in() {
            KeptIn::Database => Ok(()),
            elsewhere => self.forget_in(elsewhere).await,
        }
    }

    /// In small steps: for as long as one takes its rows are locked, and what cannot be removed keeps back nothing behind it.
    async fn forget_in(&self, place: KeptIn) -> anyhow::Result<()> {
        let (mut behind, mut last) = (0, None);
        loop {
            let mut client = self.farm.pool.get().await.context("getting a connection")?;
            let transaction = begun(&mut client).await.context("beginning to forget uploads")?;
            let old = submissions::old(&transaction, place, behind, FORGOTTEN_AT_A_TIME).await;
            let old = old.context("finding uploads that are kept no longer")?;
            let Some(newest) = old.last() else { return last.map_or(Ok(()), Err) };
            behind = *newest;
            // What is kept elsewhere goes first: of a server that dies in between, the next one finds what is to be removed again.
            let removed = timeout(REMOVE_LIMIT, self.store.remove(place, &old)).await;
            let Removed { gone, failed, away } = removed.context("removing uploads takes too long")?;
            submissions::are_gone(&transaction, &gone).await.context("forgetting uploads")?;
            transaction.commit().await.context("forgetting uploads")?;
            if let Some((id, error)) = failed {
                last = Some(error.context(format!("removing upload {id}")));
            }
            if away {
                return last.map_or(Ok(()), Err);
            }
        }
    }
}

/// What is removed elsewhere meanwhile takes longer than a transaction of ours may be idle for.
async fn begun(client: &mut Object) -> Result<Transaction<'_>, tokio_postgres::Error> {
    let transaction = client.transaction().await?;
    transaction.batch_execute("set local idle_in_transaction_session_timeout = '60s'").await?;
    Ok(transaction)
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
