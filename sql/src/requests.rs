//! Requests that must be done once: who has begun one, and what was answered.

use crate::checkout::Queries;
use deadpool_postgres::ClientWrapper;
use pcfarm_proto::ids::ServerId;
use tokio_postgres::Error;

/// A request's key, its user's, and who does it.
#[derive(Clone, Debug)]
pub struct Id {
    pub owner: String,
    pub key: String,
    pub server_id: ServerId,
}

/// An answer that is kept.
#[derive(Clone, Debug)]
pub struct Kept {
    pub status: i32,
    pub media: Option<String>,
    pub location: Option<String>,
    pub etag: Option<String>,
    pub body: Vec<u8>,
}

#[derive(Clone, Debug)]
pub enum Claim {
    /// It is for the caller to do it.
    New,
    /// Somebody is at it.
    Running,
    /// The key belongs to another request.
    Different,
    Answered(Kept),
}

pub async fn claim(client: &ClientWrapper, id: &Id, digest: &[u8]) -> Result<Claim, Error> {
    let statement = include_str!("../queries/claim_request.sql");
    let rows = client.run(statement, &[&id.owner, &id.key, &digest, &id.server_id]).await?;
    let row = &rows[0];
    Ok(match row.try_get("outcome")? {
        "new" => Claim::New,
        "different" => Claim::Different,
        "answered" => Claim::Answered(Kept {
            status: row.try_get("status")?,
            media: row.try_get("media")?,
            location: row.try_get("location")?,
            etag: row.try_get("etag")?,
            body: row.try_get("body")?,
        }),
        _ => Claim::Running,
    })
}

pub async fn answered(client: &ClientWrapper, id: &Id, kept: &Kept) -> Result<(), Error> {
    let statement = include_str!("../queries/answer_request.sql");
    let Kept { status, media, location, etag, body } = kept;
    client.run(statement, &[&id.owner, &id.key, &id.server_id, status, media, location, etag, body]).await.map(drop)
}

/// It was not done: whoever asks next does it.
pub async fn released(client: &ClientWrapper, id: &Id) -> Result<(), Error> {
    let statement = include_str!("../queries/release_request.sql");
    client.run(statement, &[&id.owner, &id.key, &id.server_id]).await.map(drop)
}

/// Removes those of yesterday; at most 10,000.
pub async fn forget(client: &ClientWrapper) -> Result<(), Error> {
    client.run(include_str!("../queries/forget_requests.sql"), &[]).await.map(drop)
}
