//! Submissions: uploads that are stored before they are acknowledged, and loaded afterwards.

use crate::checkout::Queries;
use crate::json::RawJson;
use deadpool_postgres::ClientWrapper;
use pcfarm_proto::ids::{JobId, ServerId};
use std::time::{Duration, SystemTime};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Error, Row};

/// Where uploads are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptIn {
    Database,
    Directory,
    S3,
}

impl KeptIn {
    pub fn as_str(self) -> &'static str {
        match self {
            KeptIn::Database => "database",
            KeptIn::Directory => "directory",
            KeptIn::S3 => "s3",
        }
    }

    /// The row's CHECK admits these three.
    fn of_row(text: &str) -> KeptIn {
        match text {
            "directory" => KeptIn::Directory,
            "s3" => KeptIn::S3,
            _ => KeptIn::Database,
        }
    }
}

/// Begins to receive an upload. `asked`: a job's name, job_type, options and convoy, or a job_id, and how it is read.
pub async fn begin(
    client: &ClientWrapper,
    asked: &RawJson,
    content_type: &str,
    kept_in: KeptIn,
    idempotency_key: Option<&str>,
) -> Result<i64, Error> {
    let statement = include_str!("../queries/begin_submission.sql");
    client.run(statement, &[asked, &content_type, &kept_in.as_str(), &idempotency_key]).await?[0].try_get(0)
}

pub async fn add_piece(client: &ClientWrapper, id: i64, number: i32, content: &[u8]) -> Result<(), Error> {
    client.run(include_str!("../queries/add_piece.sql"), &[&id, &number, &content]).await.map(drop)
}

/// It is still coming.
pub async fn touch(client: &ClientWrapper, id: i64) -> Result<(), Error> {
    client.run(include_str!("../queries/touch_submission.sql"), &[&id]).await.map(drop)
}

/// What becomes of an upload that is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Stored,
    /// It took so long that it was given up.
    GivenUp,
    /// Another was acknowledged under its key: the same, or not.
    Before {
        id: i64,
        same: bool,
    },
}

/// All of it is here. Of two with one key the second waits for the first. Who has not heard the answer may ask again.
pub async fn stored(client: &ClientWrapper, id: i64, sha256: &[u8], bytes: i64) -> Result<Ended, Error> {
    let statement = include_str!("../queries/submission_stored.sql");
    let mut outcome = client.run(statement, &[&id, &sha256, &bytes]).await;
    if outcome.as_ref().is_ok_and(Vec::is_empty) {
        // It may have waited for the same one, of a connection that broke, to commit: what that did only the next one sees.
        outcome = client.run(statement, &[&id, &sha256, &bytes]).await;
    }
    match outcome {
        Ok(rows) if rows.is_empty() => Ok(Ended::GivenUp),
        Ok(_) => Ok(Ended::Stored),
        Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
            let rows = client.run(include_str!("../queries/same_submission.sql"), &[&id, &sha256]).await?;
            match rows.first() {
                Some(row) => Ok(Ended::Before { id: row.try_get(0)?, same: row.try_get(1)? }),
                None => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

/// It does not come to its end. False: it has.
pub async fn drop_unfinished(client: &impl Queries, id: i64) -> Result<bool, Error> {
    Ok(!client.run(include_str!("../queries/drop_submission.sql"), &[&id]).await?.is_empty())
}

/// An attempt to load one: what is said of it counts until somebody makes the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    pub id: i64,
    pub number: i32,
}

/// A submission that is to be loaded.
#[derive(Clone, Debug)]
pub struct ToLoad {
    pub attempt: Attempt,
    pub owner: String,
    pub asked: RawJson,
    pub content_type: String,
    pub kept_in: KeptIn,
    pub bytes: i64,
    pub is_large: bool,
    pub sha256: Vec<u8>,
}

/// How many may be claimed.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    pub small: usize,
    pub large: usize,
    /// Small ones of an owner, on all servers; of large ones it is one.
    pub of_an_owner: usize,
}

/// Those that are to be loaded next: nobody else loads them for as long as the lease, which [`renew`] renews.
pub async fn claim(
    client: &ClientWrapper,
    room: Room,
    server: ServerId,
    lease: Duration,
) -> Result<Vec<ToLoad>, Error> {
    let [small, large, each] = [room.small, room.large, room.of_an_owner].map(|count| count as i64);
    let statement = include_str!("../queries/claim_submission.sql");
    let rows = client.run(statement, &[&small, &large, &each, &server, &lease.as_secs_f64()]).await?;
    rows.iter()
        .map(|row| {
            Ok(ToLoad {
                attempt: Attempt { id: row.try_get("submission_id")?, number: row.try_get("attempts")? },
                owner: row.try_get("owner")?,
                asked: row.try_get("asked")?,
                content_type: row.try_get("content_type")?,
                kept_in: KeptIn::of_row(row.try_get("kept_in")?),
                bytes: row.try_get("bytes")?,
                is_large: row.try_get("is_large")?,
                sha256: row.try_get("sha256")?,
            })
        })
        .collect()
}

/// These attempts go on. Returns the ids of those that somebody else has made another attempt at meanwhile.
pub async fn renew(client: &ClientWrapper, attempts: &[Attempt], lease: Duration) -> Result<Vec<i64>, Error> {
    let (ids, numbers): (Vec<i64>, Vec<i32>) = attempts.iter().map(|attempt| (attempt.id, attempt.number)).unzip();
    let statement = include_str!("../queries/renew_submissions.sql");
    let rows = client.run(statement, &[&ids, &numbers, &lease.as_secs_f64()]).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

/// It was loaded before: there was such a job.
pub async fn loaded(client: &ClientWrapper, of: Attempt, job: JobId, problems: i64) -> Result<(), Error> {
    let statement = include_str!("../queries/submission_is_loaded.sql");
    client.run(statement, &[&of.id, &of.number, &job, &problems]).await.map(drop)
}

pub async fn piece(client: &ClientWrapper, id: i64, number: i32) -> Result<Option<Vec<u8>>, Error> {
    let rows = client.run(include_str!("../queries/submission_piece.sql"), &[&id, &number]).await?;
    rows.first().map(|row| row.try_get(0)).transpose()
}

pub async fn refused(client: &ClientWrapper, of: Attempt, message: &str) -> Result<(), Error> {
    client.run(include_str!("../queries/submission_refused.sql"), &[&of.id, &of.number, &message]).await.map(drop)
}

/// In so many seconds somebody may try again.
pub async fn postponed(client: &ClientWrapper, of: Attempt, message: &str, seconds: f64) -> Result<(), Error> {
    let statement = include_str!("../queries/submission_postponed.sql");
    client.run(statement, &[&of.id, &of.number, &message, &seconds]).await.map(drop)
}

/// A submission as people see it.
#[derive(Clone, Debug)]
pub struct Submission {
    pub id: i64,
    pub owner: String,
    pub asked: RawJson,
    pub content_type: String,
    pub state: String,
    pub kept_in: KeptIn,
    pub bytes: Option<i64>,
    pub sha256: Option<Vec<u8>>,
    pub job_id: Option<JobId>,
    pub problems: Option<i64>,
    pub message: String,
    pub created_at: SystemTime,
    pub stored_at: Option<SystemTime>,
    pub ended_at: Option<SystemTime>,
    pub removed_at: Option<SystemTime>,
}

/// With a smaller id than `before`, the newest first; or one of them.
pub async fn submissions(
    client: &ClientWrapper,
    before: Option<i64>,
    only: Option<i64>,
    state: Option<&str>,
    owner: Option<&str>,
    limit: u32,
) -> Result<Vec<Submission>, Error> {
    let (before, limit) = (before.unwrap_or(i64::MAX), i64::from(limit));
    let rows =
        client.run(include_str!("../queries/submissions.sql"), &[&before, &only, &state, &limit, &owner]).await?;
    rows.iter().map(of_row).collect()
}

fn of_row(row: &Row) -> Result<Submission, Error> {
    Ok(Submission {
        id: row.try_get("submission_id")?,
        owner: row.try_get("owner")?,
        asked: row.try_get("asked")?,
        content_type: row.try_get("content_type")?,
        state: row.try_get("state")?,
        kept_in: KeptIn::of_row(row.try_get("kept_in")?),
        bytes: row.try_get("bytes")?,
        sha256: row.try_get("sha256")?,
        job_id: row.try_get("job_id")?,
        problems: row.try_get("problems")?,
        message: row.try_get("message")?,
        created_at: row.try_get("created_at")?,
        stored_at: row.try_get("stored_at")?,
        ended_at: row.try_get("ended_at")?,
        removed_at: row.try_get("removed_at")?,
    })
}

/// Uploads in one place that are kept no longer, and those that nobody goes on sending, behind one: the caller's until its
/// transaction ends, which removes them from there and says so.
pub async fn old(client: &impl Queries, kept_in: KeptIn, behind: i64, limit: i64) -> Result<Vec<i64>, Error> {
    let statement = include_str!("../queries/old_uploads.sql");
    let rows = client.run(statement, &[&kept_in.as_str(), &behind, &limit]).await?;
    rows.iter().map(|row| row.try_get("submission_id")).collect()
}

/// Of those: they are there no longer; or, in the database, this removes them.
pub async fn are_gone(client: &impl Queries, ids: &[i64]) -> Result<(), Error> {
    client.run(include_str!("../queries/uploads_are_gone.sql"), &[&ids]).await.map(drop)
}

/// Since when, and why, what is stored is not loaded.
pub async fn intake(client: &ClientWrapper) -> Result<(Option<SystemTime>, String), Error> {
    let rows = client.run(include_str!("../queries/intake.sql"), &[]).await?;
    Ok((rows[0].try_get(0)?, rows[0].try_get(1)?))
}

pub async fn set_intake(client: &ClientWrapper, paused: bool, reason: &str) -> Result<(), Error> {
    client.run(include_str!("../queries/set_intake.sql"), &[&paused, &reason]).await.map(drop)
}
