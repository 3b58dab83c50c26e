//! `Idempotency-Key`: who sends a creation again, because the answer to the first was lost, gets that answer, and nothing is
//! made twice. A key belongs to its user, and to what was asked with it.

use super::Api;
use super::extract::{BODY_LIMIT, Who, whole};
use super::problem_details::{Answer, Refusal};
use crate::originals::hex;
use crate::traces;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::{CONTENT_TYPE, ETAG, HeaderName, LOCATION};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use pcfarm_sql::requests::{self, Claim, Kept};
use sha2::{Digest, Sha256};
use std::panic::AssertUnwindSafe;
use std::time::Duration;
use tokio::sync::oneshot;

const NAME: &str = "Idempotency-Key";
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
const LENGTH_LIMIT: usize = 200;

/// Between two attempts to note an answer, while the database is away.
const NOTING_PAUSE: Duration = Duration::from_secs(1);

/// Headers of an answer that are kept with it.
const KEPT: [HeaderName; 3] = [CONTENT_TYPE, LOCATION, ETAG];

/// Whose answers have secrets.
pub const SECRETS: [&str; 4] = ["/api/v1/login", "/api/v1/register", "/api/v1/tokens", "/api/v1/join-tokens"];

/// The key of this request, if it has one.
pub struct Key {
    text: Option<String>,
    digest: Option<Digested>,
}

/// What was asked with the key, on its way to whoever does it.
#[derive(Clone, Debug)]
struct Digested(Vec<u8>);

impl Key {
    pub fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// For the job that it makes: the database sees to it that there is one, whatever crashes. It has the key for as long as
    /// there is the job, which is longer than answers are kept; so it is told what the key stands for, too.
    pub fn of_job(&self) -> Option<(String, String)> {
        let digest = self.digest.as_ref().map(|digest| hex(&digest.0)).unwrap_or_default();
        self.text.as_ref().map(|key| (format!("rest:{key}"), digest))
    }
}

impl<S: Sync> FromRequestParts<S> for Key {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Answer<Key> {
        Ok(Key { text: key(&parts.headers)?, digest: parts.extensions.get::<Digested>().cloned() })
    }
}

fn key(headers: &HeaderMap) -> Answer<Option<String>> {
    let Some(value) = headers.get(NAME) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    if text.is_empty() || text.len() > LENGTH_LIMIT || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Refusal::bad_request(NAME, format!("from 1 to {LENGTH_LIMIT} visible ASCII characters")));
    }
    Ok(Some(text.to_owned()))
}

/// Around every route: creations with a key are done once.
pub async fn once(State(api): State<Api>, who: Who, request: Request, next: Next) -> Response {
    let key = match key(request.headers()) {
        Ok(Some(key)) if *request.method() == Method::POST => key,
        Ok(_) => return next.run(request).await,
        Err(refusal) => return refusal.into_response(),
    };
    if SECRETS.contains(&request.uri().path()) {
        let say = "an answer with a secret is not kept: without this header, please";
        return Refusal::bad_request(NAME, say).into_response();
    }
    match done_once(&api, &who, key, request, next).await {
        Ok(response) => response,
        Err(refusal) => refusal.into_response(),
    }
}

async fn done_once(api: &Api, who: &Who, key: String, request: Request, next: Next) -> Answer<Response> {
    let (mut parts, body) = request.into_parts();
    let body = whole(body, BODY_LIMIT).await?;
    let digest = digest(&parts, &body);
    parts.extensions.insert(Digested(digest.clone()));
    let mine = requests::Id { owner: who.user().to_owned(), key, server_id: api.farm.server_id };
    let client = api.farm.pool.get().await.map_err(crate::grpc::status_code::of_pool)?;
    let claim = requests::claim(&client, &mine, &digest).await.map_err(crate::grpc::status_code::of)?;
    drop(client);
    match claim {
        Claim::Answered(kept) => Ok(replayed(kept)),
        Claim::Different => Err(Refusal::about(
            StatusCode::UNPROCESSABLE_ENTITY,
            NAME,
            "this key was used for another request: take a new one for each",
        )),
        Claim::Running => {
            let say = "a request with this Idempotency-Key is being done: ask again for its answer";
            Err(Refusal::new(StatusCode::CONFLICT, say).retry_after(1))
        }
        Claim::New => {
            let request = Request::from_parts(parts, Body::from(body));
            let (api, tasks) = (api.clone(), api.farm.tasks.clone());
            // Of its own, so that it comes to its end, and is noted, even when the client has gone.
            let (told, answer) = oneshot::channel();
            tasks.spawn(traces::carried(async move {
                // One that panicked is free to be tried again.
                let done = AssertUnwindSafe(next.run(request)).catch_unwind().await;
                let (response, note) = to_note(done.unwrap_or_else(|_| failed().into_response())).await;
                let mut noted = noted(&api, &mine, &note).await;
                drop(told.send(response));
                // Until then whoever asks again is told that it is being done.
                while let Err(error) = noted {
                    tracing::warn!(error, "the answer to a request with an Idempotency-Key was not kept: trying again");
                    if api.farm.stopping.run_until_cancelled(tokio::time::sleep(NOTING_PAUSE)).await.is_none() {
                        return;
                    }
                    noted = self::noted(&api, &mine, &note).await;
                }
            }));
            answer.await.map_err(|_| failed())
        }
    }
}

fn digest(parts: &Parts, body: &[u8]) -> Vec<u8> {
    let mut hash = Sha256::new();
    let media = parts.headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let target = parts.uri.path_and_query().map_or("", |target| target.as_str());
    for part in [parts.method.as_str().as_bytes(), target.as_bytes(), media, body] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().to_vec()
}

fn failed() -> Refusal {
    Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the request failed: the log says more")
}

/// The answer, and what is to be kept of it: nothing, if another attempt may have another one.
async fn to_note(response: Response) -> (Response, Option<Kept>) {
    let (parts, body) = response.into_parts();
    let Ok(body) = axum::body::to_bytes(body, BODY_LIMIT).await else {
        let refusal = Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the answer is too long to be kept");
        return (refusal.into_response(), None);
    };
    let text = |name: &HeaderName| parts.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let [media, location, etag] = KEPT.each_ref().map(text);
    let lasting = parts.status.is_success() || parts.status == StatusCode::UNPROCESSABLE_ENTITY;
    let status = i32::from(parts.status.as_u16());
    let kept = lasting.then(|| Kept { status, media, location, etag, body: body.to_vec() });
    (Response::from_parts(parts, Body::from(body)), kept)
}

async fn noted(api: &Api, mine: &requests::Id, note: &Option<Kept>) -> Result<(), String> {
    let client = api.farm.pool.get().await.map_err(|error| error.to_string())?;
    let outcome = match note {
        Some(kept) => requests::answered(&client, mine, kept).await,
        None => requests::released(&client, mine).await,
    };
    outcome.map_err(|error| error.to_string())
}

fn replayed(kept: Kept) -> Response {
    let status = u16::try_from(kept.status).ok().and_then(|status| StatusCode::from_u16(status).ok());
    let mut response = (status.unwrap_or(StatusCode::OK), Bytes::from(kept.body)).into_response();
    let headers = response.headers_mut();
    headers.remove(CONTENT_TYPE);
    for (name, value) in KEPT.into_iter().zip([kept.media, kept.location, kept.etag]) {
        if let Some(value) = value.and_then(|value| HeaderValue::from_str(&value).ok()) {
            headers.insert(name, value);
        }
    }
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
    response
}
