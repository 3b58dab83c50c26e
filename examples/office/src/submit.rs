//! The submitting side of a file of enrolments: through the queue, or line by line as a page of the office's would.

use crate::enrolment::Facts;
use crate::file::{Lines, Pieces, Refused};
use crate::statements;
use anyhow::Context;
use serde::Serialize;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use tokio_postgres::{Client, Statement};

/// What was done.
#[derive(Debug, Serialize)]
pub struct Queued {
    pub upload: i64,
    pub job: i64,
    pub pieces: u32,
}

/// Puts the file into the queue, in one transaction. Of the file no more than a piece is in memory.
pub async fn queued(client: &mut Client, path: &Path, submitter: &str) -> anyhow::Result<Queued> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let transaction = client.transaction().await?;
    let text = "insert into office.upload (file_name, submitter) values ($1, $2) returning upload_id";
    let upload: i64 = transaction.query_one(text, &[&name, &submitter]).await.context("naming the upload")?.get(0);
    let text = "insert into office.upload_piece (upload_id, piece, first_line, text) values ($1, $2, $3, $4)";
    let insert = transaction.prepare(text).await?;
    let mut pieces = 0;
    for piece in Pieces::new(BufReader::new(file)) {
        let piece = piece.with_context(|| format!("reading {}", path.display()))?;
        pieces += 1;
        let (number, first_line) = (i32::try_from(pieces)?, i32::try_from(piece.first_line)?);
        transaction.execute(&insert, &[&upload, &number, &first_line, &piece.text]).await.context("storing a piece")?;
    }
    anyhow::ensure!(pieces > 0, "{} is empty", path.display());
    let job = transaction.query_one("select office.submit_upload($1)", &[&upload]).await.context("enqueuing")?.get(0);
    transaction.commit().await.context("committing")?;
    Ok(Queued { upload, job, pieces })
}

/// What was done, as the page that answers would have it.
#[derive(Debug, Serialize)]
pub struct Direct {
    pub enrolled: u32,
    pub refused: Vec<Refused>,
}

/// Judges and enrols every line, a transaction each. It holds the file, as a page holds what was sent to it, and what it
/// will answer.
pub async fn direct(client: &mut Client, path: &Path) -> anyhow::Result<Direct> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let mut done = Direct { enrolled: 0, refused: Vec::new() };
    let lines = match Lines::new(&text, 1, None) {
        Ok(lines) => lines,
        Err(header) => return Ok(Direct { refused: vec![header], ..done }),
    };
    let facts = client.prepare(statements::DIRECT_FACTS).await?;
    let enrol = client.prepare(statements::DIRECT_ENROL).await?;
    for line in lines {
        let refused = match line {
            Ok(line) => {
                let refused = enrol_one(client, [&facts, &enrol], &line.person, &line.course).await;
                let refused = refused.with_context(|| format!("enrolling line {}", line.line))?;
                refused.map(|refused| Refused { line: line.line, refused })
            }
            Err(refused) => Some(refused),
        };
        done.enrolled += u32::from(refused.is_none());
        done.refused.extend(refused);
    }
    Ok(done)
}

/// Why it was refused, if it was.
async fn enrol_one(
    client: &mut Client,
    [facts, enrol]: [&Statement; 2],
    person: &str,
    course: &str,
) -> anyhow::Result<Option<String>> {
    let transaction = client.transaction().await?;
    let row = transaction.query_one(facts, &[&person, &course]).await?;
    let facts = Facts {
        person_exists: row.get("person_exists"),
        course_exists: row.get("course_exists"),
        is_full: row.get("is_full"),
        is_enrolled: row.get("is_enrolled"),
    };
    let refused = facts.against(person, course);
    if refused.is_none() {
        transaction.execute(enrol, &[&person, &course]).await?;
    }
    transaction.commit().await?;
    Ok(refused)
}
