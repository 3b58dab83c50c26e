//! Files on their way into the database and out of it, a piece at a time: memory does not grow with them, and no connection to
//! the database is held while a peer is waited for.
//!
//! What a server or a client leaves unfinished has no hash, is nobody's, and is removed within the hour. A file gets its name,
//! and whose it is, in the one transaction that is acknowledged.

use crate::access::Caller;
use crate::access::places::{Full, Holder, Place, Places};
use crate::grpc::{status_code, too_slow};
use crate::rest::pace::Span;
use bytes::{Bytes, BytesMut};
use deadpool_postgres::{Object, Pool};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, stream};
use pcfarm_faults::{CrashPoint, crash_point};
use pcfarm_proto::files::{FILE_BYTES_LIMIT, FILE_PIECE_BYTES, FileHash};
use pcfarm_proto::v1;
use pcfarm_sql::files::{self, Content, Output};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use tokio::time::Instant;
use tonic::Status;
use tracing::{info, warn};

/// Files that are on their way at a time, each way, and those of one user, workstation, or address without a token.
const UNDER_WAY: usize = 64;
const UNDER_WAY_OF_ONE: usize = 16;

/// A file's pieces, as they are sent.
pub type Pieces = BoxStream<'static, Result<v1::FilePiece, Status>>;

/// What comes of a file behind its beginning. A call that sends anything else but content there is refused.
pub type Coming = BoxStream<'static, Result<Bytes, Status>>;

/// Whose a file is that comes.
pub enum For {
    /// The caller's, by this name.
    Caller(Box<Caller>, String),
    /// A problem's.
    Problem(Output),
}

pub struct Files {
    pool: Pool,
    coming: Arc<Places>,
    going: Arc<Places>,
}

/// A file that is there now.
pub struct Put {
    pub hash: FileHash,
    pub bytes: i64,
    pub repeated: bool,
}

impl Files {
    pub fn new(pool: Pool) -> Arc<Files> {
        let places = || Places::new(UNDER_WAY, UNDER_WAY_OF_ONE);
        Arc::new(Files { pool, coming: places(), going: places() })
    }

    pub async fn client(&self) -> Result<Object, Status> {
        self.pool.get().await.map_err(status_code::of_pool)
    }

    /// From a byte on to the end; at least one piece, which says how large it is.
    pub fn send(&self, content: Content, offset: u64, holder: &Holder) -> Result<Pieces, Status> {
        let total_bytes = content.bytes.cast_unsigned();
        if offset > total_bytes {
            return Err(Status::invalid_argument(format!("the file has {total_bytes} bytes, and no byte {offset}")));
        }
        let place = taken(&self.going, holder)?;
        if offset == total_bytes {
            let last = v1::FilePiece { total_bytes, content: Bytes::new() };
            return Ok(stream::iter([Ok(last)]).boxed());
        }
        let sending = (self.pool.clone(), offset, place);
        Ok(stream::try_unfold(sending, move |(pool, at, place)| async move {
            if at == total_bytes {
                return Ok(None);
            }
            let piece_bytes = FILE_PIECE_BYTES as u64;
            let number = i32::try_from(at / piece_bytes).map_err(|_| Status::internal("a file is too large"))?;
            let client = pool.get().await.map_err(status_code::of_pool)?;
            let piece = files::piece(&client, content.file, number).await.map_err(status_code::of)?;
            drop(client);
            let mut piece = Bytes::from(piece.ok_or_else(|| Status::not_found("the file is gone"))?);
            let skipped = usize::try_from(at % piece_bytes).map_err(|_| Status::internal("a piece is too large"))?;
            let rest = piece.split_off(skipped.min(piece.len()));
            if rest.is_empty() {
                return Err(Status::data_loss("the file is not whole where it is kept"));
            }
            let next = at + rest.len() as u64;
            Ok(Some((v1::FilePiece { total_bytes, content: rest }, (pool, next, place))))
        })
        .boxed())
    }

    /// Stores what comes, whole, before it is acknowledged.
    pub async fn receive(
        &self,
        holder: &Holder,
        whose: For,
        expected: Option<FileHash>,
        pieces: Coming,
    ) -> Result<Put, Status> {
        let _place = taken(&self.coming, holder)?;
        let client = self.client().await?;
        let file = files::begin(&client).await.map_err(status_code::of)?;
        drop(client);
        let put = self.store(file, whose, expected, pieces).await;
        if put.is_err() {
            self.clear(file).await;
        }
        put
    }

    async fn store(
        &self,
        file: i64,
        whose: For,
        expected: Option<FileHash>,
        mut pieces: Coming,
    ) -> Result<Put, Status> {
        let mut span = match whose {
            For::Caller(..) => Span::of_people(),
            For::Problem(_) => Span::of_agents(),
        };
        let (mut digest, mut bytes, mut number, mut gathered) = (Sha256::new(), 0_u64, 0, BytesMut::new());
        loop {
            let began = Instant::now();
            let next = tokio::time::timeout(span.left(), pieces.next()).await;
            let came = match &next {
                Ok(Some(Ok(content))) => content.len(),
                Ok(_) | Err(_) => 0,
            };
            // A file that has ended may have been as slow as it likes.
            if !matches!(next, Ok(None)) {
                span.came(began.elapsed(), came).map_err(|slow| too_slow(&slow.to_string()))?;
            }
            let Ok(piece) = next else { continue };
            let Some(content) = piece.transpose()? else { break };
            bytes += content.len() as u64;
            if bytes > FILE_BYTES_LIMIT {
                let most = FILE_BYTES_LIMIT >> 20;
                return Err(Status::invalid_argument(format!("a file has at most {most} MiB, and this one has more")));
            }
            digest.update(&content);
            gathered.extend_from_slice(&content);
            while gathered.len() >= FILE_PIECE_BYTES {
                self.add(file, &mut number, &gathered.split_to(FILE_PIECE_BYTES)).await?;
            }
        }
        if !gathered.is_empty() {
            self.add(file, &mut number, &gathered).await?;
        }
        let hash = FileHash(digest.finalize().into());
        if let Some(expected) = expected.filter(|&expected| expected != hash) {
            return Err(Status::invalid_argument(format!("what came is not file {expected}, but {hash}")));
        }
        let bytes = bytes.cast_signed();
        let client = self.client().await?;
        let repeated = match whose {
            For::Caller(caller, name) => {
                caller.act(&client).await?;
                let whole = files::is_whole(&client, file, hash, bytes, &name).await.map_err(status_code::of)?;
                whole.ok_or_else(given_up)?
            }
            For::Problem(output) => {
                let output = Output { hash, bytes, ..output };
                if !files::output_is_whole(&client, file, &output).await.map_err(status_code::of)? {
                    return Err(not_live(&output));
                }
                false
            }
        };
        crash_point(CrashPoint::FileStored);
        info!(file = %hash, bytes, repeated, "a file was put");
        Ok(Put { hash, bytes, repeated })
    }

    /// Whether a file's content is wanted; if not, it is the problem's now.
    pub async fn offered(&self, output: &Output) -> Result<bool, Status> {
        let client = self.client().await?;
        let wanted = files::begin_output(&client, output).await.map_err(status_code::of)?;
        wanted.ok_or_else(|| not_live(output))
    }

    async fn add(&self, file: i64, number: &mut i32, piece: &[u8]) -> Result<(), Status> {
        let client = self.client().await?;
        if !files::add_piece(&client, file, *number, piece).await.map_err(status_code::of)? {
            return Err(given_up());
        }
        crash_point(CrashPoint::FilePieceStored);
        *number += 1;
        Ok(())
    }

    /// Unless it is there: whoever was not told may put it again.
    async fn clear(&self, file: i64) {
        let dropped = match self.client().await {
            Ok(client) => files::drop_unfinished(&client, file).await.map_err(status_code::of),
            Err(failed) => Err(failed),
        };
        if let Err(error) = dropped {
            warn!(file_id = file, error = error.message(), "what came of a file is removed within the hour");
        }
    }
}

fn taken(places: &Arc<Places>, holder: &Holder) -> Result<Place, Status> {
    places.try_take(holder).map_err(|full| match full {
        Full::Own(most) => Status::resource_exhausted(format!("{most} files at a time are under way: try again")),
        Full::All => Status::resource_exhausted("as many files as can be are under way here: try again"),
    })
}

fn not_live(output: &Output) -> Status {
    Status::not_found(format!("checkout {} is not live, or does not hold problem {}", output.checkout, output.problem))
}

fn given_up() -> Status {
    Status::aborted("the file took longer than an hour to come: put it again")
}

pub fn hash(bytes: &[u8]) -> Result<FileHash, Status> {
    let wrong = |_| crate::grpc::about_field("sha256", format!("a hash has 32 bytes, and this one {}", bytes.len()));
    FileHash::try_from(bytes).map_err(wrong)
}
