//! Uploads and streams that take their time, with the real server: what one user does slowly, or loses its right to, in the
//! middle.

use crate::real::Farm;
use crate::real::http::{Client, PASSWORD, text};
use crate::real::line::Line;
use anyhow::{Result, ensure};
use serde_json::{Value, json};

/// A farm with an administrator and users of these names.
async fn farm_of(users: &[&str]) -> Result<(Farm, Client, Vec<Client>)> {
    let farm = Farm::start().await?;
    let nobody = Client::of(&farm);
    let account = |user: &str, role: &str| json!({"user": user, "role": role, "password": PASSWORD});
    nobody.json("POST", "/api/v1/accounts", account("root", "administrator")).await?.is(201)?;
    let root = nobody.login("root").await?;
    let mut clients = Vec::new();
    for user in users {
        root.json("POST", "/api/v1/accounts", account(user, "user")).await?.is(201)?;
        clients.push(nobody.login(user).await?);
    }
    Ok((farm, root, clients))
}

/// A job that is loading, whose row somebody has locked until that connection commits.
async fn locked_job(farm: &Farm, owner: &Client) -> Result<(String, tokio_postgres::Client)> {
    let made = owner.json("POST", "/api/v1/jobs", json!({"name": "x", "job_type": "echo"})).await?.is(201)?.json()?;
    let job = text(&made, "job_id")?;
    let lock = farm.database.client().await;
    lock.batch_execute(&format!("begin; select from pcfarm.job where job_id = {job} for update")).await?;
    Ok((job, lock))
}

const LOADING: &str = "select count(*) from pcfarm.submission where claimed_by is not null and owner = 'ana'";

#[tokio::test(flavor = "multi_thread")]
async fn nobodys_submission_waits_for_anothers_that_takes_long() -> Result<()> {
    let (farm, _, users) = farm_of(&["ana", "ben"]).await?;
    let [ana, ben] = &users[..] else { unreachable!("two") };
    let (job, lock) = locked_job(&farm, ana).await?;
    for key in ["a", "b", "c"] {
        let path = format!("/api/v1/submissions?job_id={job}");
        ana.post(&path, "text/csv", format!("key\n{key}\n")).await?.is(201)?;
    }
    farm.until(LOADING, 2).await?;
    // Two of hers are at it, and wait. His is loaded.
    ben.post("/api/v1/submissions?name=y&job_type=echo", "text/csv", "key\na\n").await?.is(201)?;
    farm.until("select count(*) from pcfarm.submission where state = 'queued' and owner = 'ben'", 1).await?;
    ensure!(farm.number("select count(*) from pcfarm.submission where state = 'stored' and owner = 'ana'").await? == 3);
    ensure!(farm.number(LOADING).await? <= 2);
    lock.batch_execute("commit").await?;
    farm.until("select count(*) from pcfarm.submission where state = 'queued' and owner = 'ana'", 3).await?;
    ensure!(farm.number(&format!("select count(*) from pcfarm.problem where job_id = {job}")).await? == 3);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_server_was_loading_is_loaded_soon_and_once() -> Result<()> {
    let (mut farm, _, users) = farm_of(&["ana"]).await?;
    let (job, lock) = locked_job(&farm, &users[0]).await?;
    users[0].post(&format!("/api/v1/submissions?job_id={job}"), "text/csv", "key\na\n").await?.is(201)?;
    farm.until(LOADING, 1).await?;
    farm.server.0.kill()?;
    farm.server.0.wait()?;
    farm.start_server_again().await?;
    lock.batch_execute("commit").await?;
    // Within a lease, which is shorter than this waits.
    farm.until("select count(*) from pcfarm.submission where state = 'queued' and attempts = 2", 1).await?;
    ensure!(farm.number(&format!("select count(*) from pcfarm.problem where job_id = {job}")).await? == 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_lost_its_claim_loads_nothing() -> Result<()> {
    let (farm, _, users) = farm_of(&["ana"]).await?;
    let (job, lock) = locked_job(&farm, &users[0]).await?;
    users[0].post(&format!("/api/v1/submissions?job_id={job}"), "text/csv", "key\na\n").await?.is(201)?;
    farm.until(LOADING, 1).await?;
    // Another server has taken it over, and is at it for an hour.
    let taken = "update pcfarm.submission set attempts = attempts + 1, claimed_by = 4711, \
                 next_attempt_at = clock_timestamp() + interval '1 hour'";
    farm.sql.batch_execute(taken).await?;
    lock.batch_execute("commit").await?;
    farm.until_no_upload().await?;
    ensure!(farm.number("select count(*) from pcfarm.problem").await? == 0);
    let untouched =
        "select count(*) from pcfarm.submission where state = 'stored' and claimed_by = 4711 and message = ''";
    ensure!(farm.number(untouched).await? == 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_is_acknowledged_although_the_database_was_lost_in_between() -> Result<()> {
    let (farm, _, users) = farm_of(&["ana"]).await?;
    let request = "POST /api/v1/submissions?name=x&job_type=echo";
    let mut line = Line::begin(&users[0], request, 6, "key\n").await?;
    farm.until("select count(*) from pcfarm.submission where state = 'receiving'", 1).await?;
    // The statement that stores it waits, and its connection breaks.
    let slow = "create function wait() returns trigger language plpgsql as
            'begin perform pg_advisory_xact_lock(4711); return new; end';
        create trigger wait before update on pcfarm.submission for each row when (new.state = 'stored')
            execute function wait();
        select pg_advisory_lock(4711)";
    farm.sql.batch_execute(slow).await?;
    line.send("a\n").await?;
    let storing = "from pg_locks where locktype = 'advisory' and not granted and objid = 4711 and database = (
        select oid from pg_database where datname = current_database())";
    farm.until(&format!("select count(*) {storing}"), 1).await?;
    farm.sql.batch_execute(&format!("select pg_terminate_backend(pid) {storing}")).await?;
    farm.sql.batch_execute("select pg_advisory_unlock(4711)").await?;
    let answer = line.rest().await?;
    ensure!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    farm.until("select count(*) from pcfarm.submission where state = 'queued'", 1).await?;
    ensure!(farm.number("select count(*) from pcfarm.submission").await? == 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: waits for the deadline of a slow upload"]
async fn who_trickles_leaves_places_to_others_and_is_told_to_go() -> Result<()> {
    let (farm, _, users) = farm_of(&["ana", "ben"]).await?;
    let [ana, ben] = &users[..] else { unreachable!("two") };
    let path = "/api/v1/submissions?name=x&job_type=echo";
    let made = ana.json("POST", "/api/v1/jobs", json!({"name": "x", "job_type": "echo"})).await?.is(201)?.json()?;
    let load = format!("POST /api/v1/jobs/{}/problems", text(&made, "job_id")?);
    let mut trickling = vec![Line::begin(ana, &load, 1000, "key\n").await?];
    for _ in 0..8 {
        trickling.push(Line::begin(ana, &format!("POST {path}"), 1000, "key\n").await?);
    }
    farm.until("select count(*) from pcfarm.submission where state = 'receiving'", 8).await?;
    ana.post(path, "text/csv", "key\na\n").await?.is(429)?;
    ben.post(path, "text/csv", "key\na\n").await?.is(201)?;
    // Nothing more comes.
    for line in trickling {
        let answer = line.rest().await?;
        ensure!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
        ensure!(answer.contains("application/problem+json") && answer.contains("too slowly"), "{answer}");
    }
    farm.until("select count(*) from pcfarm.submission where state = 'receiving'", 0).await?;
    ensure!(farm.number("select count(*) from pcfarm.problem where key <> 'a'").await? == 0);
    ana.post(path, "text/csv", "key\na\n").await?.is(201)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_with_the_right_to_it() -> Result<()> {
    let (farm, root, users) = farm_of(&["ana", "ben"]).await?;
    let [ana, ben] = &users[..] else { unreachable!("two") };
    let request = "GET /api/v1/events/stream";
    let mut streams = Vec::new();
    for client in [ana, ben, &root] {
        let mut line = Line::begin(client, request, 0, "").await?;
        line.until("\r\n\r\n").await?;
        streams.push(line);
    }
    let token: Value = ana.get("/api/v1/tokens").await?.is(200)?.json()?;
    let token = text(&token["items"][0], "token_id")?;
    ana.send("DELETE", &format!("/api/v1/tokens/{token}"), &[], None).await?.is(200)?;
    root.json("PATCH", "/api/v1/accounts/ben", json!({"disabled": true})).await?.is(200)?;
    let mut of_root = streams.remove(2);
    for line in streams {
        line.rest().await?;
    }
    // Another's goes on: what happens now is told there.
    farm.sql.batch_execute("select pcfarm.create_job('later-than-that', 'echo')").await?;
    root.json("POST", "/api/v1/accounts", json!({"user": "later-than-that"})).await?.is(201)?;
    of_root.until("later-than-that").await?;
    Ok(())
}
