//! Uploads in a store that speaks S3, with the real server and a real store.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::real::http::{Client, text};
use crate::real::line::Line;
use crate::real::{Extra, Farm, server_of};
use crate::swift::{self, BUCKET, SECRET, Swift};
use anyhow::{Context, Result, ensure};
use serde_json::json;

/// What the store takes at a time.
const PART_BYTES: usize = 8 << 20;
/// What is sent first of an upload that is to be in its second part: the server writes whole mebibytes.
const BEGINNING: usize = PART_BYTES + (3 << 20);
const SUBMIT: &str = "/api/v1/submissions?name=x&job_type=echo";
const QUEUED: &str = "select count(*) from pcfarm.submission where state = 'queued'";
const RECEIVING: &str = "select count(*) from pcfarm.submission where state = 'receiving'";

impl Farm {
    async fn pause_intake(&self, paused: bool) -> Result<()> {
        let client = Client::of(self);
        client.json("PUT", "/api/v1/queue/intake", json!({"paused": paused})).await?.is(200).map(drop)
    }

    /// Servers look at once what is to be removed.
    async fn kill_and_start(&mut self) -> Result<()> {
        self.server.0.kill()?;
        self.server.0.wait()?;
        self.start_server_again().await
    }

    /// An hour goes by.
    async fn nobody_goes_on_sending(&self) -> Result<()> {
        let older =
            "update pcfarm.submission set touched_at = touched_at - interval '2 hours' where state = 'receiving'";
        Ok(self.sql.batch_execute(older).await?)
    }
}

/// So many problems, with at least so many bytes.
fn problems(bytes: usize) -> (i64, Vec<u8>) {
    let payload = "x".repeat(10_000);
    let count = bytes / payload.len() + 1;
    let lines: String = (0..count).map(|i| format!("{{\"key\": \"k{i}\", \"payload\": \"{payload}\"}}\n")).collect();
    (count as i64, lines.into_bytes())
}

async fn submit(client: &Client, content: impl Into<Vec<u8>>) -> Result<String> {
    let stored = client.post(SUBMIT, "application/x-ndjson", content).await?.is(201)?.json()?;
    ensure!(stored["sha256"].is_string(), "{stored}");
    text(&stored, "submission_id")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_is_loaded_by_any_server_fetched_again_and_removed() -> Result<()> {
    let Some(swift) = Swift::start().await? else { return Ok(()) };
    let mut farm = Farm::start_with(swift.extra()).await?;
    farm.pause_intake(true).await?;
    let small = "{\"key\": \"a\", \"payload\": 1}\n";
    let (count, large) = problems(PART_BYTES + 1);
    let mut ids = Vec::new();
    for content in [small.as_bytes(), &large, b""] {
        ids.push(submit(&Client::of(&farm), content).await?);
    }
    let mut names: Vec<String> = ids.iter().map(|id| format!("farm/uploads/{id}")).collect();
    names.sort();
    ensure!(swift.objects().await? == names && swift.begun().await? == 0);
    ensure!(farm.number("select count(*) from pcfarm.submission_piece").await? == 0);
    farm.kill_and_start().await?;
    farm.pause_intake(false).await?;
    farm.until("select count(*) from pcfarm.submission where ended_at is not null", 3).await?;
    ensure!(farm.number("select count(*) from pcfarm.problem").await? == count + 1);
    let client = Client::of(&farm);
    for (id, content) in ids.iter().zip([small.as_bytes(), &large, b""]) {
        let original = client.get(&format!("/api/v1/submissions/{id}/original")).await?.is(200)?;
        ensure!(original.body == content, "{} bytes of {}", original.body.len(), content.len());
    }
    farm.sql.batch_execute("update pcfarm.intake set keep = interval '0'").await?;
    farm.kill_and_start().await?;
    farm.until("select count(*) from pcfarm.submission where removed_at is not null", 3).await?;
    ensure!(swift.objects().await?.is_empty());
    Client::of(&farm).get(&format!("/api/v1/submissions/{}/original", ids[1])).await?.is(404)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_upload_needs_little_memory_on_its_way() -> Result<()> {
    let Some(swift) = Swift::start().await? else { return Ok(()) };
    let farm = Farm::start_with(swift.extra()).await?;
    farm.pause_intake(true).await?;
    let client = Client::of(&farm);
    submit(&client, "{\"key\": \"a\", \"payload\": 1}\n").await?;
    let before = farm.server.peak()?;
    let (count, content) = problems(8 * PART_BYTES);
    let id = submit(&client, content.clone()).await?;
    let grown = farm.server.peak()?.saturating_sub(before);
    ensure!(grown < 4 * PART_BYTES as u64, "{} bytes took {grown} of memory on their way there", content.len());
    let original = client.get(&format!("/api/v1/submissions/{id}/original")).await?.is(200)?;
    ensure!(original.body == content);
    let grown = farm.server.peak()?.saturating_sub(before);
    ensure!(grown < 4 * PART_BYTES as u64, "{} bytes took {grown} of memory on their way back", content.len());
    farm.pause_intake(false).await?;
    farm.until(QUEUED, 2).await?;
    ensure!(farm.number("select count(*) from pcfarm.problem").await? == count + 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: waits for retries of an object store"]
async fn a_store_that_is_away_for_a_while_loses_nothing() -> Result<()> {
    let Some(mut swift) = Swift::start().await? else { return Ok(()) };
    let mut farm = Farm::start_with(swift.extra()).await?;
    farm.pause_intake(true).await?;
    let client = Client::of(&farm);
    let kept = submit(&client, "{\"key\": \"a\", \"payload\": 1}\n").await?;
    // Away in the middle of an upload, and back soon: it goes on.
    // All of it is read before its end is stored, so that there is nobody to be cut off.
    let (count, content) = problems(BEGINNING + (1 << 20));
    let content = String::from_utf8(content)?;
    let (begins, ends) = content.split_at(BEGINNING);
    let request = "POST /api/v1/submissions?format=ndjson&name=y&job_type=echo";
    let mut line = Line::begin(&client, request, content.len(), begins).await?;
    swift.until_begun(1).await?;
    swift.go_away();
    line.send(ends).await?;
    swift.go_on()?;
    let answer = line.rest().await?;
    ensure!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    // Away in the middle of another, and not back: that one is refused.
    let mut line = Line::begin(&client, request, content.len(), begins).await?;
    swift.until_begun(1).await?;
    swift.go_away();
    line.send(ends).await?;
    let answer = line.rest().await?;
    ensure!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("application/problem+json"), "{answer}");
    ensure!(answer.contains("nothing was stored") && !answer.contains(SECRET), "{answer}");
    // What is there cannot be read, and is not loaded; all else works.
    farm.pause_intake(false).await?;
    client.get(&format!("/api/v1/submissions/{kept}/original")).await?.is(503)?;
    farm.until(
        "select count(*) from pcfarm.submission where state = 'stored' and message like '%could not be read%'",
        2,
    )
    .await?;
    // A server starts without it.
    farm.kill_and_start().await?;
    ensure!(farm.number("select count(*) from pcfarm.problem").await? == 0);
    swift.go_on()?;
    farm.until(QUEUED, 2).await?;
    ensure!(farm.number("select count(*) from pcfarm.problem").await? == count + 1);
    // What was refused has left something, until it is swept.
    swift.until_begun(1).await?;
    farm.nobody_goes_on_sending().await?;
    farm.kill_and_start().await?;
    farm.until(RECEIVING, 0).await?;
    ensure!(swift.begun().await? == 0 && swift.objects().await?.len() == 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_server_left_in_the_store_is_removed() -> Result<()> {
    let Some(swift) = Swift::start().await? else { return Ok(()) };
    let mut farm = Farm::start_with(swift.extra()).await?;
    let client = Client::of(&farm);
    let request = "POST /api/v1/submissions?name=x&job_type=echo";
    // One whose object is whole, and that the database is just about to be told of.
    let slow = "create function wait() returns trigger language plpgsql as
            'begin perform pg_advisory_xact_lock(4711); return new; end';
        create trigger wait before update on pcfarm.submission for each row when (new.state = 'stored')
            execute function wait();
        select pg_advisory_lock(4711)";
    farm.sql.batch_execute(slow).await?;
    let whole = Line::begin(&client, request, 6, "key\na\n").await?;
    swift.until_objects(1).await?;
    // And one that is on its way.
    let begins = format!("key\n{}\n", "x".repeat(BEGINNING));
    let part = Line::begin(&client, request, 2 * PART_BYTES, &begins).await?;
    swift.until_begun(1).await?;
    farm.server.0.kill()?;
    farm.server.0.wait()?;
    drop((whole, part));
    let ended = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
        where datname = current_database() and application_name = 'pcfarm-server'";
    farm.number(ended).await?;
    farm.sql.batch_execute("select pg_advisory_unlock(4711)").await?;
    farm.until(RECEIVING, 2).await?;
    farm.start_server_again().await?;
    // Somebody may still be at it, for all that the next server knows.
    ensure!(swift.objects().await?.len() == 1 && swift.begun().await? == 1);
    farm.nobody_goes_on_sending().await?;
    farm.kill_and_start().await?;
    farm.until("select count(*) from pcfarm.submission", 0).await?;
    ensure!(swift.objects().await?.is_empty() && swift.begun().await? == 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_breaks_off_leaves_nothing() -> Result<()> {
    let Some(swift) = Swift::start().await? else { return Ok(()) };
    let farm = Farm::start_with(swift.extra()).await?;
    let client = Client::of(&farm);
    let begins = format!("key\n{}\n", "x".repeat(BEGINNING));
    let line = Line::begin(&client, "POST /api/v1/submissions?name=x&job_type=echo", 2 * PART_BYTES, &begins).await?;
    swift.until_begun(1).await?;
    drop(line);
    swift.until_begun(0).await?;
    farm.until("select count(*) from pcfarm.submission", 0).await?;
    ensure!(swift.objects().await?.is_empty());
    // Nor does one that is longer than a problem may be.
    client.post(SUBMIT, "application/xml", vec![b'x'; 2 << 20]).await?.is(413)?;
    farm.until("select count(*) from pcfarm.submission", 0).await?;
    ensure!(swift.objects().await?.is_empty());
    Ok(())
}

/// What a server says that does not start.
async fn refused(mut command: Command) -> Result<(Option<i32>, String)> {
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(!said.contains(SECRET) && !said.contains("another-secret") && !said.contains("Signature="), "{said}");
    Ok((output.status.code(), said))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_store_is_told_at_start() -> Result<()> {
    let Some(swift) = Swift::start().await? else { return Ok(()) };
    let database = pcfarm_sql::testing::database().await;
    let with = |name: &str, value: &str| {
        let Extra { flags, mut environment, database_url } = swift.extra();
        environment.retain(|(known, _)| known != name);
        environment.push((name.to_owned(), value.to_owned()));
        Extra { flags, environment, database_url }
    };
    let elsewhere = Extra { flags: ["--originals", "s3://nobodys"].map(str::to_owned).to_vec(), ..swift.extra() };
    for (extra, said) in [
        (with("AWS_SECRET_ACCESS_KEY", "another-secret"), "AWS_SECRET_ACCESS_KEY"),
        (with("AWS_REGION", "eu-central-1"), "AWS_REGION"),
        (elsewhere, "make the bucket nobodys"),
        (with("AWS_SHARED_CREDENTIALS_FILE", "/nowhere/keys"), "/nowhere/keys"),
    ] {
        let (code, told) = refused(server_of(&database, &extra)?).await?;
        ensure!(code == Some(1) && told.contains(said), "{code:?}, {said}: {told}");
    }
    let (code, told) = refused(server_of(&database, &with("AWS_ACCESS_KEY_ID", ""))?).await?;
    ensure!(code == Some(2) && told.contains("AWS_ACCESS_KEY_ID"), "{code:?}: {told}");
    // Keys of a file do, too; and it is read again.
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("keys");
    let keys = format!("[default]\naws_access_key_id = {}\naws_secret_access_key = {SECRET}\n", swift::KEY);
    std::fs::write(&file, &keys)?;
    let path = file.to_str().context("UTF-8")?;
    let address = format!("s3://{BUCKET}");
    let endpoint = swift.endpoint();
    let flags = ["--originals", &address, "--s3-endpoint", &endpoint, "--s3-credentials", path].map(str::to_owned);
    let farm = Farm::start_with(Extra { flags: flags.to_vec(), ..Extra::default() }).await?;
    let client = Client::of(&farm);
    submit(&client, "{\"key\": \"a\", \"payload\": 1}\n").await?;
    std::fs::write(&file, keys.replace(SECRET, "another-secret"))?;
    let refused = client.post(SUBMIT, "text/csv", "key\na\n").await?.is(503)?.text();
    ensure!(refused.contains("administrator") && !refused.contains("secret"), "{refused}");
    std::fs::write(&file, &keys)?;
    submit(&client, "{\"key\": \"b\", \"payload\": 1}\n").await?;
    farm.until("select count(*) from pcfarm.problem", 2).await?;
    tokio::time::timeout(Duration::from_secs(30), swift.until_objects(2)).await?
}
