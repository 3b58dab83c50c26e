//! Where uploads are kept: in the database, in a directory of all servers, or in a store that speaks S3. A row says of each
//! where it is, and is there from before its first byte until after its last one has gone: whatever is left over is found by it.

use super::{NotStored, Originals};
use crate::farm::Farm;
use crate::grpc::status_code;
use crate::outward::Outward;
use crate::rest::upload::Pieces;
use crate::s3;
use anyhow::Context;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use pcfarm_sql::submissions::{self, KeptIn};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};
use tonic::Status;
use tracing::{info, warn};

/// While an upload goes elsewhere, the database hears this often that it is still coming.
const TOUCH: Duration = Duration::from_secs(60);
/// A server does not wait for its store for longer than this before it serves.
const CHECK_LIMIT: Duration = Duration::from_secs(5);
/// Objects that are removed at a time.
const REMOVING: usize = 8;

/// Where uploads are to be kept.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one of it")]
pub enum Choice {
    Database,
    /// Of all servers, if there are several.
    Directory(PathBuf),
    S3(s3::Place),
}

/// Where uploads are kept.
#[derive(Clone, Debug)]
pub enum Store {
    Database,
    Directory(PathBuf),
    S3(Arc<s3::Store>),
}

impl Store {
    /// What is missing is the administrator's to make. A store that does not answer is not: it may be back before anybody
    /// uploads anything, and all else works without it.
    pub async fn open(choice: &Choice, outward: &Outward) -> anyhow::Result<Store> {
        match choice {
            Choice::Database => Ok(Store::Database),
            Choice::Directory(directory) => {
                let made = std::fs::create_dir_all(directory);
                made.with_context(|| format!("making {} for uploads", directory.display()))?;
                Ok(Store::Directory(directory.clone()))
            }
            Choice::S3(place) => {
                if place.is_overheard() {
                    warn!(%place, "uploads go to their store unencrypted: use https");
                }
                let store = s3::Store::new(place.clone(), outward);
                match timeout(CHECK_LIMIT, store.check()).await {
                    Ok(Ok(())) => info!(%place, "the store of uploads is there"),
                    Ok(Err(failure)) if !failure.may_pass() => {
                        return Err(anyhow::anyhow!(store.advice(&failure)).context("checking the store of uploads"));
                    }
                    Ok(Err(_)) | Err(_) => warn!(
                        %place,
                        "the store of uploads does not answer: uploads are refused until it does. If it never has, check \
                         s3_endpoint"
                    ),
                }
                Ok(Store::S3(store))
            }
        }
    }

    pub fn kept_in(&self) -> KeptIn {
        match self {
            Store::Database => KeptIn::Database,
            Store::Directory(_) => KeptIn::Directory,
            Store::S3(_) => KeptIn::S3,
        }
    }

    /// Of one upload.
    pub fn most_bytes(&self) -> usize {
        match self {
            Store::Database | Store::Directory(_) => usize::MAX,
            Store::S3(_) => s3::OBJECT_BYTES_LIMIT,
        }
    }

    /// Of uploads that are in one place, which the database removes itself where it has them. What is not there is removed. In the
    /// order of their ids: of a store that does not answer no more is asked.
    pub async fn remove(&self, place: KeptIn, ids: &[i64]) -> Removed {
        let mut removals = match (place, self) {
            (KeptIn::Database, _) => stream::iter(ids).map(|id| (*id, Ok(()))).boxed(),
            (_, Store::Database) => stream::empty().boxed(),
            (_, Store::Directory(directory)) => {
                stream::iter(ids).then(async |id| (*id, remove_file(directory, *id).await)).boxed()
            }
            (_, Store::S3(store)) => {
                let remove = async |id: &i64| (*id, store.remove(&id.to_string()).await.map_err(anyhow::Error::from));
                stream::iter(ids).map(remove).buffered(REMOVING).boxed()
            }
        };
        let mut removed = Removed { gone: Vec::with_capacity(ids.len()), failed: None, away: false };
        while let Some((id, done)) = removals.next().await {
            match done {
                Ok(()) => removed.gone.push(id),
                Err(error) => {
                    removed.away = error.downcast_ref::<s3::Failure>().is_some_and(s3::Failure::may_pass);
                    removed.failed = Some((id, error));
                    if removed.away {
                        break;
                    }
                }
            }
        }
        removed
    }

    /// What was uploaded, as it came.
    pub fn pieces(&self, farm: &Farm, id: i64, kept_in: KeptIn) -> Pieces {
        match (kept_in, self) {
            (KeptIn::Database, _) => {
                let pool = farm.pool.clone();
                stream::try_unfold((pool, 0), move |(pool, number)| async move {
                    let client = pool.get().await.map_err(io::Error::other)?;
                    let piece = submissions::piece(&client, id, number).await.map_err(io::Error::other)?;
                    drop(client);
                    Ok(piece.map(|piece| (Bytes::from(piece), (pool, number + 1))))
                })
                .boxed()
            }
            (KeptIn::Directory, Store::Directory(directory)) => of_file(file(directory, id)),
            (KeptIn::S3, Store::S3(store)) => store.read(&id.to_string()),
            (KeptIn::Directory, Store::Database | Store::S3(_)) => {
                let say = "this server has no directory of uploads: start it with --originals DIR";
                stream::iter([Err(io::Error::other(say))]).boxed()
            }
            (KeptIn::S3, Store::Database | Store::Directory(_)) => {
                let say = "this server has no store of uploads: start it with --originals s3://BUCKET/PREFIX";
                stream::iter([Err(io::Error::other(say))]).boxed()
            }
        }
    }
}

async fn remove_file(directory: &Path, id: i64) -> anyhow::Result<()> {
    for path in [file(directory, id), part(directory, id)] {
        let removed = tokio::fs::remove_file(&path).await;
        let removed = removed.or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        });
        removed.with_context(|| format!("removing {}", path.display()))?;
    }
    Ok(())
}

/// What has become of uploads that were to be removed.
#[derive(Debug)]
pub struct Removed {
    pub gone: Vec<i64>,
    /// The last that could not be, and why.
    pub failed: Option<(i64, anyhow::Error)>,
    /// The store does not answer, so that nothing behind that one was tried.
    pub away: bool,
}

fn of_file(path: PathBuf) -> Pieces {
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

fn file(directory: &Path, id: i64) -> PathBuf {
    directory.join(id.to_string())
}

fn part(directory: &Path, id: i64) -> PathBuf {
    directory.join(format!("{id}.part"))
}

fn not_written(error: io::Error) -> NotStored {
    warn!(%error, "an upload could not be written");
    NotStored::Failed(Status::unavailable("the upload could not be stored: try again"))
}

fn not_taken(failure: s3::Failure) -> NotStored {
    warn!(%failure, "an upload could not be written");
    let say = if failure.may_pass() { "does not answer: try again later" } else { "refuses it: tell an administrator" };
    NotStored::Failed(Status::unavailable(format!("nothing was stored: the store of uploads {say}")))
}

/// Where an upload is written to.
pub struct Sink<'a> {
    of: &'a Originals,
    id: i64,
    touched: Instant,
    to: Target<'a>,
}

enum Target<'a> {
    Pieces { number: i32 },
    File { directory: &'a Path, file: tokio::fs::File },
    Object(s3::Writing),
}

impl<'a> Sink<'a> {
    pub async fn open(of: &'a Originals, id: i64) -> Result<Sink<'a>, NotStored> {
        let to = match &of.store {
            Store::Database => Target::Pieces { number: 0 },
            Store::Directory(directory) => {
                let file = tokio::fs::File::create(part(directory, id)).await.map_err(not_written)?;
                Target::File { directory, file }
            }
            Store::S3(store) => Target::Object(store.write(id.to_string())),
        };
        Ok(Sink { of, id, touched: Instant::now(), to })
    }

    pub async fn write(&mut self, piece: Bytes) -> Result<(), NotStored> {
        if piece.is_empty() {
            return Ok(());
        }
        match &mut self.to {
            Target::Pieces { number } => {
                let client = self.of.client().await?;
                submissions::add_piece(&client, self.id, *number, &piece).await.map_err(status_code::of)?;
                *number += 1;
                return Ok(());
            }
            Target::File { file, .. } => file.write_all(&piece).await.map_err(not_written)?,
            Target::Object(object) => object.write(&piece).await.map_err(not_taken)?,
        }
        if self.touched.elapsed() > TOUCH {
            self.touched = Instant::now();
            let client = self.of.client().await?;
            submissions::touch(&client, self.id).await.map_err(status_code::of)?;
        }
        Ok(())
    }

    /// It is there from now on, whatever loses its power.
    pub async fn finish(self) -> Result<(), NotStored> {
        match self.to {
            Target::Pieces { .. } => Ok(()),
            Target::File { directory, file: written } => {
                let there = async {
                    written.sync_all().await?;
                    tokio::fs::rename(part(directory, self.id), file(directory, self.id)).await?;
                    tokio::fs::File::open(directory).await?.sync_all().await
                };
                there.await.map_err(not_written)
            }
            Target::Object(object) => object.finish().await.map_err(not_taken),
        }
    }
}
