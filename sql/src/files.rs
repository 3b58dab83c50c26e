//! Files: content by its hash, in pieces of 1 MiB, and who has put it there.

use crate::checkout::Queries;
use deadpool_postgres::ClientWrapper;
use pcfarm_proto::files::FileHash;
use pcfarm_proto::ids::{CheckoutId, JobId, ProblemId};
use std::time::SystemTime;
use tokio_postgres::{Error, Row};

/// Begins to receive a file.
pub async fn begin(client: &ClientWrapper) -> Result<i64, Error> {
    client.run(include_str!("../queries/begin_file.sql"), &[]).await?[0].try_get(0)
}

/// Pieces are numbered from 0, and all but the last have [`pcfarm_proto::files::FILE_PIECE_BYTES`]. False: it took so long that
/// the file was given up.
pub async fn add_piece(client: &ClientWrapper, file: i64, number: i32, content: &[u8]) -> Result<bool, Error> {
    let statement = include_str!("../queries/add_file_piece.sql");
    Ok(!client.run(statement, &[&file, &number, &content]).await?.is_empty())
}

/// All of it is here, and has a name. Returns whether it had been there before; none if it was given up.
pub async fn is_whole(
    client: &ClientWrapper,
    file: i64,
    hash: FileHash,
    bytes: i64,
    name: &str,
) -> Result<Option<bool>, Error> {
    let statement = include_str!("../queries/file_is_whole.sql");
    let rows = client.run(statement, &[&file, &&hash.0[..], &bytes, &name]).await?;
    rows.first().map(|row| row.try_get(0)).transpose()
}

/// What has come of it goes, unless it is whole.
pub async fn drop_unfinished(client: &ClientWrapper, file: i64) -> Result<(), Error> {
    client.run(include_str!("../queries/drop_file.sql"), &[&file]).await.map(drop)
}

/// Where its content is, and how much that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    pub file: i64,
    pub bytes: i64,
}

/// None: there is no such live checkout, or it needs no such file.
pub async fn for_checkout(
    client: &ClientWrapper,
    checkout: CheckoutId,
    token: i64,
    hash: FileHash,
) -> Result<Option<Content>, Error> {
    let statement = include_str!("../queries/file_for_checkout.sql");
    let rows = client.run(statement, &[&checkout, &token, &&hash.0[..]]).await?;
    rows.first().map(content).transpose()
}

/// A file that a problem of a checkout has made.
#[derive(Clone, Debug)]
pub struct Output {
    pub checkout: CheckoutId,
    pub token: i64,
    pub problem: ProblemId,
    pub name: String,
    pub hash: FileHash,
    pub bytes: i64,
}

/// Whether its content is to be sent; otherwise it is the problem's now. None: there is no such live checkout.
pub async fn begin_output(client: &ClientWrapper, output: &Output) -> Result<Option<bool>, Error> {
    let Output { checkout, token, problem, name, hash, bytes: _ } = output;
    let statement = include_str!("../queries/begin_output.sql");
    let rows = client.run(statement, &[checkout, token, problem, name, &&hash.0[..]]).await?;
    rows.first().map(|row| row.try_get(0).map(|there: bool| !there)).transpose()
}

/// All of it is here, and is the problem's now. False: the checkout is not live any more, or the file was given up.
pub async fn output_is_whole(client: &ClientWrapper, file: i64, output: &Output) -> Result<bool, Error> {
    let Output { checkout, token, problem, name, hash, bytes } = output;
    let statement = include_str!("../queries/output_is_whole.sql");
    let rows = client.run(statement, &[&file, checkout, token, problem, name, &&hash.0[..], bytes]).await?;
    Ok(!rows.is_empty())
}

/// A file that problems of one user, or of anybody, have made.
pub async fn made(client: &ClientWrapper, owner: Option<&str>, hash: FileHash) -> Result<Option<Content>, Error> {
    let rows = client.run(include_str!("../queries/output_by_hash.sql"), &[&owner, &&hash.0[..]]).await?;
    rows.first().map(content).transpose()
}

fn content(row: &Row) -> Result<Content, Error> {
    Ok(Content { file: row.try_get("file_id")?, bytes: row.try_get("bytes")? })
}

/// What a job's problems need: names, in order, and files.
pub async fn of_job(client: &ClientWrapper, job: JobId) -> Result<Vec<(String, FileHash)>, Error> {
    let rows = client.run(include_str!("../queries/job_files.sql"), &[&job]).await?;
    rows.iter()
        .map(|row| {
            let hash: &[u8] = row.try_get("sha256")?;
            Ok((row.try_get("name")?, FileHash::try_from(hash).expect("it refers to a file")))
        })
        .collect()
}

/// None: it has no such piece, or is gone.
pub async fn piece(client: &ClientWrapper, file: i64, number: i32) -> Result<Option<Vec<u8>>, Error> {
    let rows = client.run(include_str!("../queries/file_piece.sql"), &[&file, &number]).await?;
    rows.first().map(|row| row.try_get(0)).transpose()
}

/// A file as one of those sees it who have put it there.
#[derive(Clone, Debug)]
pub struct Held {
    pub holder_id: i64,
    pub content: Content,
    pub hash: FileHash,
    pub name: String,
    pub owner: String,
    pub put_at: SystemTime,
    /// Whose module it is.
    pub job_types: Vec<String>,
}

/// The newest first: of one user, or of all; with a smaller id than `before`; or those of one hash.
pub async fn files(
    client: &ClientWrapper,
    owner: Option<&str>,
    before: Option<i64>,
    only: Option<FileHash>,
    limit: u32,
) -> Result<Vec<Held>, Error> {
    let (before, limit) = (before.unwrap_or(i64::MAX), i64::from(limit));
    let only = only.map(|hash| hash.0.to_vec());
    let rows = client.run(include_str!("../queries/files.sql"), &[&owner, &before, &only, &limit]).await?;
    rows.iter().map(of_row).collect()
}

fn of_row(row: &Row) -> Result<Held, Error> {
    let hash: &[u8] = row.try_get("sha256")?;
    Ok(Held {
        holder_id: row.try_get("holder_id")?,
        content: content(row)?,
        hash: FileHash::try_from(hash).expect("the row's CHECK says so"),
        name: row.try_get("name")?,
        owner: row.try_get("owner")?,
        put_at: row.try_get("put_at")?,
        job_types: row.try_get("job_types")?,
    })
}

pub async fn let_go(client: &ClientWrapper, holder_id: i64) -> Result<(), Error> {
    client.run(include_str!("../queries/let_go_of_file.sql"), &[&holder_id]).await.map(drop)
}

/// Removes what nobody goes on sending, and what nothing needs any more. Returns how many, at most ten: then there may be more.
pub async fn forget(client: &ClientWrapper) -> Result<i32, Error> {
    client.run(include_str!("../queries/forget_files.sql"), &[]).await?[0].try_get(0)
}
