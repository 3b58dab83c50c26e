//! People's files: put, got, listed, let go of.

use super::status_code;
use crate::access::places::Holder;
use crate::access::{Caller, Peer};
use crate::farm::Farm;
use crate::files::{Coming, Files, For, Pieces, hash};
use futures_util::StreamExt;
use pcfarm_proto::files::FileHash;
use pcfarm_proto::v1;
use pcfarm_proto::v1::put_file::Part;
use pcfarm_sql::files::{self, Content, Held};
use std::sync::Arc;
use std::time::Duration;
use tonic::{Request, Response, Status, Streaming};

/// Files of a page.
const PAGE: u32 = 200;
const PAGE_LIMIT: u32 = 1000;

/// A file begins at once.
pub const BEGINNING_DEADLINE: Duration = Duration::from_secs(10);

pub struct FilesApi {
    farm: Arc<Farm>,
    files: Arc<Files>,
}

impl FilesApi {
    pub fn new(farm: Arc<Farm>, files: Arc<Files>) -> FilesApi {
        FilesApi { farm, files }
    }

    pub fn files(&self) -> Arc<Files> {
        self.files.clone()
    }

    /// One that the caller has put, or problems of the caller's jobs have made; whoever sees everybody's may have any.
    async fn seen(&self, caller: &Caller, hash: FileHash) -> Result<Content, Status> {
        let client = self.files.client().await?;
        if let Some(made) = files::made(&client, caller.only_own(), hash).await.map_err(status_code::of)? {
            return Ok(made);
        }
        drop(client);
        Ok(self.held(caller, hash).await?.content)
    }

    /// One that the caller has; of whoever sees everybody's, the newest of that content.
    async fn held(&self, caller: &Caller, hash: FileHash) -> Result<Held, Status> {
        let client = self.files.client().await?;
        let mut found = files::files(&client, caller.only_own(), None, Some(hash), 1).await.map_err(status_code::of)?;
        found.pop().ok_or_else(|| Status::not_found(format!("there is no file {hash}")))
    }
}

#[tonic::async_trait]
impl v1::file_service_server::FileService for FilesApi {
    async fn put(&self, request: Request<Streaming<v1::PutFile>>) -> Result<Response<v1::File>, Status> {
        let (caller, peer) = (Caller::of(&request)?, Peer::of(&request));
        let mut pieces = request.into_inner();
        let first = tokio::time::timeout(BEGINNING_DEADLINE, pieces.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("no file began"))??;
        let Some(v1::PutFile { part: Some(Part::Beginning(beginning)) }) = first else {
            return Err(Status::invalid_argument("the first message of a file is its beginning"));
        };
        let (files, mut named) = (self.files.clone(), v1::File { name: beginning.name.clone(), ..v1::File::default() });
        let expected = (!beginning.sha256.is_empty()).then(|| hash(&beginning.sha256)).transpose()?;
        let (holder, whose) = (Holder::of(&caller, &peer), For::Caller(Box::new(caller), beginning.name));
        let coming: Coming = pieces
            .map(|piece| match piece?.part {
                Some(Part::Content(content)) => Ok(content),
                Some(Part::Beginning(_)) | None => {
                    Err(Status::invalid_argument("behind its beginning a file has content alone"))
                }
            })
            .boxed();
        // A call that is cut off must not leave something half done on a pooled connection: it is a task of its own.
        let task = self.farm.tasks.spawn(async move { files.receive(&holder, whose, expected, coming).await });
        let put = task.await.map_err(|error| Status::internal(error.to_string()))??;
        named.sha256 = put.hash.0.to_vec().into();
        named.bytes = put.bytes.cast_unsigned();
        named.repeated = put.repeated;
        Ok(Response::new(named))
    }

    type GetStream = Pieces;

    async fn get(&self, request: Request<v1::GetFile>) -> Result<Response<Pieces>, Status> {
        let (caller, peer) = (Caller::of(&request)?, Peer::of(&request));
        let content = self.seen(&caller, hash(&request.get_ref().sha256)?).await?;
        Ok(Response::new(self.files.send(content, 0, &Holder::of(&caller, &peer))?))
    }

    async fn list(&self, request: Request<v1::ListFiles>) -> Result<Response<v1::ListFilesResponse>, Status> {
        let caller = Caller::of(&request)?;
        let (before, limit) = (request.get_ref().before, request.get_ref().limit);
        let limit = if limit == 0 { PAGE } else { limit.min(PAGE_LIMIT) };
        let client = self.files.client().await?;
        let before = Some(before).filter(|&before| before > 0);
        let found = files::files(&client, caller.only_own(), before, None, limit).await.map_err(status_code::of)?;
        Ok(Response::new(v1::ListFilesResponse { files: found.into_iter().map(shown).collect() }))
    }

    async fn remove(&self, request: Request<v1::RemoveFile>) -> Result<Response<v1::File>, Status> {
        let caller = Caller::of(&request)?;
        let held = self.held(&caller, hash(&request.get_ref().sha256)?).await?;
        let client = self.files.client().await?;
        files::let_go(&client, held.holder_id).await.map_err(status_code::of)?;
        Ok(Response::new(shown(held)))
    }
}

fn shown(held: Held) -> v1::File {
    v1::File {
        id: held.holder_id,
        sha256: held.hash.0.to_vec().into(),
        bytes: held.content.bytes.cast_unsigned(),
        name: held.name,
        owner: held.owner,
        put_at: Some(held.put_at.into()),
        job_types: held.job_types,
        repeated: false,
    }
}
