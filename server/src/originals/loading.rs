//! Stored submissions on their way into jobs: several at a time, and none for long because of another owner's, or of a large
//! one. Whatever crashes, what is stored is found and loaded by whichever server looks next, once: a server claims what it
//! loads for a short time, says again and again that it is still at it, and the load's own transaction checks the claim and
//! marks the submission.

use super::{Asked, ContentForm, Originals, hex};
use crate::access::{Caller, Scope, Scopes};
use crate::rest::upload::{self, Format, Pieces};
use crate::traces;
use anyhow::Context;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use deadpool_postgres::Object;
use futures_util::{StreamExt, stream};
use pcfarm_intake::{Asked as Words, Shape};
use pcfarm_proto::ids::JobId;
use pcfarm_proto::v1::submit_request::Part;
use pcfarm_proto::v1::{SubmitEnd, SubmitHeader, SubmitProblem, SubmitProblems, SubmitRequest, SubmitResponse};
use pcfarm_sql::submissions::{self, Attempt, Room, ToLoad};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::{Id, JoinSet};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};
use tracing::{info, warn};

/// Behind every nudge.
const LOOK: Duration = Duration::from_secs(1);
const FORGET: Duration = Duration::from_secs(60);
const POSTPONED: f64 = 15.0;

/// At a time, on this server. Each has a connection of its own, so they are few; and large ones (`is_large` in the schema)
/// have places of their own, so that they leave the others theirs.
const SMALL: usize = 4;
const LARGE: usize = 2;
/// Of an owner, on all servers.
const OF_AN_OWNER: usize = 2;

/// A server that has not said for so long that it loads something has stopped: another one begins anew.
const LEASE: Duration = Duration::from_secs(15);
const RENEW: Duration = Duration::from_secs(5);

/// A load under way.
struct Running {
    attempt: Attempt,
    is_large: bool,
    /// Somebody else has taken it over.
    lost: CancellationToken,
}

impl Originals {
    /// Loads what is stored, soon after it was and at least every second; and removes what is kept no longer.
    pub async fn sweep(self: Arc<Originals>) {
        tokio::join!(self.clone().load_all(), self.forget_all());
    }

    async fn load_all(self: Arc<Originals>) {
        let (mut look, mut renew) = (interval(LOOK), interval(RENEW));
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        renew.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut running: HashMap<Id, Running> = HashMap::new();
        let mut loads = JoinSet::new();
        let stopping = self.farm.stopping.clone();
        loop {
            tokio::select! {
                () = stopping.cancelled() => break,
                _ = look.tick() => {}
                () = self.stored.notified() => {}
                // One that panicked is tried again when its claim has run out.
                Some(ended) = loads.join_next_with_id() => {
                    running.remove(&ended.map_or_else(|panicked| panicked.id(), |(id, ())| id));
                }
                _ = renew.tick() => {
                    if let Err(error) = self.renew(&running).await {
                        warn!(error = format!("{error:#}"), "claims of submissions were not renewed: trying again");
                    }
                    continue;
                }
            }
            match self.claim(&running).await {
                Ok(claimed) => {
                    for next in claimed {
                        let lost = CancellationToken::new();
                        let (attempt, is_large) = (next.attempt, next.is_large);
                        // It logs what goes wrong; the claim that it leaves behind runs out.
                        let load = loads.spawn(self.clone().load_claimed(next, lost.clone()));
                        running.insert(load.id(), Running { attempt, is_large, lost });
                    }
                }
                Err(error) => warn!(error = format!("{error:#}"), "looking for submissions failed: trying again"),
            }
        }
        // Each gives back what it has claimed.
        while loads.join_next().await.is_some() {}
    }

    async fn claim(&self, running: &HashMap<Id, Running>) -> anyhow::Result<Vec<ToLoad>> {
        let large = running.values().filter(|load| load.is_large).count();
        let room = Room {
            small: SMALL.saturating_sub(running.len() - large),
            large: LARGE.saturating_sub(large),
            of_an_owner: OF_AN_OWNER,
        };
        if room.small + room.large == 0 {
            return Ok(Vec::new());
        }
        let client = self.farm.pool.get().await.context("getting a connection")?;
        submissions::claim(&client, room, self.farm.server_id, LEASE).await.context("claiming submissions")
    }

    async fn renew(&self, running: &HashMap<Id, Running>) -> anyhow::Result<()> {
        if running.is_empty() {
            return Ok(());
        }
        let attempts: Vec<Attempt> = running.values().map(|load| load.attempt).collect();
        let client = self.farm.pool.get().await.context("getting a connection")?;
        let lost = submissions::renew(&client, &attempts, LEASE).await.context("renewing claims")?;
        running.values().filter(|load| lost.contains(&load.attempt.id)).for_each(|load| load.lost.cancel());
        Ok(())
    }

    async fn load_claimed(self: Arc<Originals>, next: ToLoad, lost: CancellationToken) {
        let outcome = tokio::select! {
            // Cut off by the end, a load has not happened: the next server need not wait for this one.
            () = self.farm.stopping.cancelled() => Err(Status::cancelled("the server stops")),
            () = lost.cancelled() => {
                warn!(submission_id = next.attempt.id, "another server has taken a submission over");
                return;
            }
            outcome = self.load(&next) => outcome,
        };
        if let Err(error) = self.note(&next, outcome).await {
            let error = format!("{error:#}");
            warn!(submission_id = next.attempt.id, error, "what became of a submission was not noted");
        }
    }

    async fn note(&self, of: &ToLoad, outcome: Result<SubmitResponse, Status>) -> anyhow::Result<()> {
        let id = of.attempt.id;
        let client = self.farm.pool.get().await.context("getting a connection")?;
        match outcome {
            Ok(loaded) => {
                if loaded.repeated {
                    submissions::loaded(&client, of.attempt, JobId(loaded.job_id), 0).await?;
                }
                info!(submission_id = id, job_id = loaded.job_id, problems = loaded.problems, "submission loaded");
                Ok(())
            }
            Err(status) => not_loaded(&client, of.attempt, &status).await.context("noting why a submission waits"),
        }
    }

    async fn load(&self, next: &ToLoad) -> Result<SubmitResponse, Status> {
        let asked: Asked =
            serde_json::from_slice(&next.asked.0).map_err(|error| Status::internal(error.to_string()))?;
        let place = self.farm.traces.kept(asked.trace_parent.as_deref());
        let mut span = self.farm.traces.under(place, "load");
        span.set("pcfarm.submission.id", next.attempt.id)
            .set("pcfarm.submission.bytes", next.bytes)
            .set("pcfarm.attempt", i64::from(next.attempt.number));
        let outcome = traces::within(&mut span, self.load_as_asked(next, asked)).await;
        match &outcome {
            Ok(loaded) => {
                span.set("pcfarm.job.id", loaded.job_id).set("pcfarm.problems", loaded.problems);
            }
            Err(status) => span.failed(status.message().to_owned()),
        }
        outcome
    }

    async fn load_as_asked(&self, next: &ToLoad, asked: Asked) -> Result<SubmitResponse, Status> {
        let header = SubmitHeader {
            job_id: asked.job_id.unwrap_or(0),
            name: asked.name.unwrap_or_default(),
            job_type: asked.job_type.unwrap_or_default(),
            options: if asked.job_id.is_some() {
                Bytes::new()
            } else {
                Value::Object(asked.options).to_string().into()
            },
            convoy: asked.convoy,
            open: asked.job_id.is_none(),
        };
        let failed = Arc::new(AtomicBool::new(false));
        let pieces = watched(self.store.pieces(&self.farm, next.attempt.id, next.kept_in), next.bytes, failed.clone());
        let shape =
            Shape { key: asked.key.clone(), group: asked.group, strings: asked.strings, asked: Words::Parameters };
        let messages = match asked.form {
            ContentForm::Ndjson => upload::messages(header, pieces, Format::Ndjson, shape),
            ContentForm::Json => upload::messages(header, pieces, Format::Json, shape),
            ContentForm::Csv => upload::messages(header, pieces, Format::Csv, shape),
            ContentForm::One => {
                let problem = one(next, asked.key, pieces).await?;
                let problems = SubmitProblems { problems: vec![problem] };
                let parts = [Part::Header(header), Part::Problems(problems), Part::End(SubmitEnd { problems: 1 })];
                stream::iter(parts.map(|part| Ok(SubmitRequest { part: Some(part) }))).boxed()
            }
        };
        // What is loaded is its user's, who may have lost some rights meanwhile: jobs that it does not see are not there.
        let scope = if asked.everybodys { Scope::Operate } else { Scope::Submit };
        let caller = Caller::person(&next.owner, Scopes::NONE.with(scope), 0);
        let outcome = self.jobs.submit_stored(&caller, messages, next.attempt).await;
        // Not the upload's fault, whatever its reader made of it.
        let unread = |status: Status| match failed.load(Ordering::Relaxed) {
            true => Status::unavailable(format!("what was stored could not be read: {}", status.message())),
            false => status,
        };
        outcome.map_err(unread)
    }

    async fn forget_all(&self) {
        let mut tick = interval(FORGET);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.farm.stopping.run_until_cancelled(tick.tick()).await.is_some() {
            if let Err(error) = self.forget().await {
                warn!(error = format!("{error:#}"), "what is kept no longer was not removed: trying again");
            }
        }
    }
}

async fn not_loaded(client: &Object, of: Attempt, status: &Status) -> Result<(), tokio_postgres::Error> {
    match status.code() {
        Code::InvalidArgument
        | Code::NotFound
        | Code::FailedPrecondition
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::OutOfRange => {
            info!(submission_id = of.id, "submission refused");
            submissions::refused(client, of, status.message()).await
        }
        Code::Cancelled => submissions::postponed(client, of, "", 0.0).await,
        Code::ResourceExhausted => submissions::postponed(client, of, status.message(), POSTPONED).await,
        code => {
            warn!(submission_id = of.id, ?code, message = status.message(), "a submission was not loaded: again later");
            submissions::postponed(client, of, status.message(), f64::from(of.number.clamp(1, 60))).await
        }
    }
}

/// All of what was stored, or an error, which is remembered: readers cannot tell it from an upload that is wrong.
fn watched(pieces: Pieces, bytes: i64, failed: Arc<AtomicBool>) -> Pieces {
    stream::unfold((pieces, bytes, false), move |(mut pieces, left, over)| {
        let failed = failed.clone();
        async move {
            if over {
                return None;
            }
            let piece = match pieces.next().await {
                None if left == 0 => return None,
                None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("{left} bytes are not there"))),
                Some(piece) => piece,
            };
            let left = left - piece.as_ref().map_or(0, |piece| piece.len() as i64);
            let over = piece.is_err();
            failed.fetch_or(over, Ordering::Relaxed);
            Some((piece, (pieces, left, over)))
        }
    })
    .boxed()
}

/// All of an upload as a problem's payload: as text if it is UTF-8 that the database can store, else as base64.
async fn one(of: &ToLoad, key: Option<String>, mut pieces: Pieces) -> Result<SubmitProblem, Status> {
    let mut content = Vec::new();
    while let Some(piece) = pieces.next().await {
        content.extend_from_slice(&piece.map_err(|error| Status::unavailable(error.to_string()))?);
    }
    if content.len() as i64 != of.bytes {
        return Err(Status::unavailable("the upload is not whole where it is kept"));
    }
    let sha256 = hex(&of.sha256);
    let mut payload = json!({ "content_type": of.content_type, "sha256": sha256, "bytes": content.len() });
    let (name, value) = match String::from_utf8(content) {
        Ok(text) if !text.contains('\0') => ("text", text),
        Ok(text) => ("base64", BASE64_STANDARD.encode(text)),
        Err(binary) => ("base64", BASE64_STANDARD.encode(binary.as_bytes())),
    };
    payload[name] = Value::String(value);
    let key = key.unwrap_or_else(|| sha256.clone());
    Ok(SubmitProblem { key, payload: payload.to_string().into(), ..SubmitProblem::default() })
}
