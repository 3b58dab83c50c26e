//! Submissions: uploads of any size and type, stored with their hash before they are acknowledged.

use super::extract::{Document, Id, Limit, Params, PathId, Who};
use super::paging::{self, Page};
use super::problem_details::{Answer, Refusal};
use super::shown::{Content, Outcome, Show, Time};
use super::{Api, idempotency, pace, upload};
use crate::access::Caller;
use crate::grpc::status_code;
use crate::originals::{Asked, ContentForm, NotStored, ONE_PROBLEM_LIMIT, Received, hex};
use crate::traces;
use axum::Json as Body;
use axum::body::Body as Stream;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE, ETAG, LOCATION, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use pcfarm_proto::ids::JobId;
use pcfarm_proto::v1;
use pcfarm_proto::v1::job_service_server::JobService;
use pcfarm_sql::submissions;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

const CURSOR: &str = "submissions";
const PREFER: HeaderName = HeaderName::from_static("prefer");
const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// Seconds that a submission may ask to wait for its result, and how often it is looked at until it is loaded: at first.
const WAIT_LIMIT: u64 = 60;
const WAIT_POLL: Duration = Duration::from_millis(25);
const WAIT_POLL_LIMIT: Duration = Duration::from_millis(400);
/// Results that are told at once.
const FEW: usize = 100;

const CONTENT_TYPE_LENGTH: usize = 200;

pub fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(show)).routes(routes!(intake, set_intake))
}

/// Those that take their time.
pub fn slow_routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(submit)).routes(routes!(original))
}

/// An upload, and what has become of it
#[derive(Clone, Debug, Serialize, ToSchema)]
struct Submission {
    submission_id: Id,
    owner: String,
    /// stored (and not loaded yet), queued (loaded into its job), refused
    state: String,
    content_type: String,
    bytes: Option<i64>,
    /// Of what was uploaded, in hexadecimal
    sha256: Option<String>,
    job_id: Option<Id>,
    problems: Option<i64>,
    /// Why it was refused, or is not loaded yet
    message: Option<String>,
    created_at: Option<Time>,
    stored_at: Option<Time>,
    ended_at: Option<Time>,
    /// Since when the upload is kept no longer
    removed_at: Option<Time>,
    /// The job's state, of one that was waited for
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    job_state: Option<String>,
    /// Of a small one that was waited for and has ended
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    results: Option<Vec<Outcome>>,
}

impl From<submissions::Submission> for Submission {
    fn from(from: submissions::Submission) -> Submission {
        Submission {
            submission_id: Id(from.id),
            owner: from.owner,
            state: from.state,
            content_type: from.content_type,
            bytes: from.bytes,
            sha256: from.sha256.as_deref().map(hex),
            job_id: from.job_id.map(|id| Id(id.0)),
            problems: from.problems,
            message: Show::show(from.message),
            created_at: Some(Time::show(from.created_at)),
            stored_at: from.stored_at.map(Time::show),
            ended_at: from.ended_at.map(Time::show),
            removed_at: from.removed_at.map(Time::show),
            job_state: None,
            results: None,
        }
    }
}

impl Submission {
    /// As much as is known without the database.
    fn just_stored(of: Received, owner: &str, content_type: &str) -> Submission {
        Submission {
            submission_id: Id(of.id),
            owner: owner.to_owned(),
            state: "stored".to_owned(),
            content_type: content_type.to_owned(),
            bytes: Some(of.bytes),
            sha256: Some(hex(&of.sha256)),
            job_id: None,
            problems: None,
            message: None,
            created_at: None,
            stored_at: None,
            ended_at: None,
            removed_at: None,
            job_state: None,
            results: None,
        }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SubmitParams {
    /// Of the new job; with `job_type`
    #[param(min_length = 1, max_length = 200)]
    name: Option<String>,
    job_type: Option<String>,
    /// Or a job that is there
    #[param(value_type = Option<String>)]
    job_id: Option<Id>,
    title: Option<String>,
    priority: Option<i32>,
    #[param(value_type = Option<String>, format = DateTime)]
    deadline: Option<Time>,
    /// Missing: by `Content-Type` where that is NDJSON, JSON or CSV, else `one`: all of it is one problem
    #[param(inline)]
    format: Option<ContentForm>,
    /// The column or field that is the key; or, with `one`, the problem's key (missing: its SHA-256)
    #[param(max_length = 1024)]
    key: Option<String>,
    group: Option<String>,
    #[serde(default)]
    strings: bool,
    #[param(minimum = 1, maximum = 100000)]
    convoy: Option<u32>,
}

impl SubmitParams {
    fn asked(self, headers: &HeaderMap, content_type: &str, caller: &Caller) -> Answer<Asked> {
        let by_type = || {
            let media = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
            match upload::MEDIA.iter().find(|(name, _)| *name == media) {
                Some((_, upload::Format::Ndjson)) => ContentForm::Ndjson,
                Some((_, upload::Format::Json)) => ContentForm::Json,
                Some((_, upload::Format::Csv)) => ContentForm::Csv,
                None => ContentForm::One,
            }
        };
        let form = self.format.unwrap_or_else(by_type);
        if headers.contains_key("content-encoding") {
            let say = "send it as it is: the hash is of what was sent";
            return Err(Refusal::about(StatusCode::UNSUPPORTED_MEDIA_TYPE, "Content-Encoding", say));
        }
        let new = [
            ("title", self.title.map(Value::from)),
            ("priority", self.priority.map(Value::from)),
            ("deadline", self.deadline.map(|time| json!(time))),
        ];
        let options: Map<String, Value> =
            new.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
        match (&self.name, &self.job_type, self.job_id) {
            (None, None, Some(_)) if options.is_empty() => {}
            (Some(name), Some(_), None) if (1..=200).contains(&name.chars().count()) => {}
            (Some(_), Some(_), None) => {
                return Err(Refusal::bad_request("name", "a job's name has from 1 to 200 characters"));
            }
            _ => {
                let say = "name the new job and its job_type, or the job_id of one that is there: not both";
                return Err(Refusal::bad_request("job_id", say));
            }
        }
        if self.key.as_ref().is_some_and(|key| key.is_empty() || key.len() > 1024) {
            return Err(Refusal::bad_request("key", "a key has from 1 to 1024 bytes"));
        }
        Ok(Asked {
            job_id: self.job_id.map(|id| id.0),
            name: self.name,
            job_type: self.job_type,
            options,
            convoy: upload::checked_convoy(self.convoy)?,
            form,
            key: self.key,
            group: self.group,
            strings: self.strings,
            everybodys: caller.only_own().is_none(),
            trace_parent: traces::current().map(|place| place.to_string()),
        })
    }
}

/// Seconds of `Prefer: wait=10`.
fn wait_of(headers: &HeaderMap) -> Option<u64> {
    let preferences = headers.get(PREFER)?.to_str().ok()?;
    let wait = preferences.split([',', ';']).find_map(|one| one.trim().strip_prefix("wait="))?;
    wait.trim().parse::<u64>().ok().map(|seconds| seconds.min(WAIT_LIMIT))
}

/// Submit a file
///
/// It is stored, with its hash, and then acknowledged: whatever crashes, it is loaded, once, and can be fetched again. NDJSON,
/// JSON and CSV are problems; anything else is one problem, whose payload has `content_type`, `sha256`, `bytes` and
/// `text` or `base64`. With `Prefer: wait=10` the answer to a small one has its results, if they are there in time.
#[utoipa::path(post, path = "/api/v1/submissions", tag = "submissions",
    params(SubmitParams, ("Prefer" = Option<String>, Header, description = "wait=SECONDS, at most 60")),
    request_body(content = Content, content_type = "*/*"),
    responses((status = 201, body = Submission, headers(("Location" = String)))))]
async fn submit(
    State(api): State<Api>,
    key: idempotency::Key,
    who: Who,
    Params(params): Params<SubmitParams>,
    request: Request,
) -> Answer<Response> {
    let (parts, body) = request.into_parts();
    let content_type = parts.headers.get(CONTENT_TYPE).map(HeaderValue::to_str);
    let content_type = match content_type {
        None => "application/octet-stream",
        Some(Ok(text)) if !text.is_empty() && text.len() <= CONTENT_TYPE_LENGTH => text,
        Some(_) => {
            let say = format!("at most {CONTENT_TYPE_LENGTH} ASCII characters");
            return Err(Refusal::about(StatusCode::UNSUPPORTED_MEDIA_TYPE, "Content-Type", say));
        }
    };
    let caller = who.caller()?;
    let asked = params.asked(&parts.headers, content_type, &caller)?;
    let by = (&caller, &who.peer());
    let outcome = api.originals.receive(by, &asked, content_type, key.text(), pace::pieces(body)).await;
    let received = outcome.map_err(not_stored)?;
    let (id, repeated) = (received.id, received.repeated);
    let waited = wait_of(&parts.headers);
    let found = match waited {
        Some(seconds) => awaited(&api, &who, id, Instant::now() + Duration::from_secs(seconds)).await,
        None => one(&api, &who, id).await.map(Submission::from),
    };
    // It is stored, and so it is acknowledged, even if no more can be read of it now.
    let submission = found.unwrap_or_else(|_| Submission::just_stored(received, caller.user(), content_type));
    let location = format!("/api/v1/submissions/{id}");
    let mut response = (StatusCode::CREATED, [(LOCATION, location)], Body(submission)).into_response();
    let headers = response.headers_mut();
    if let Some(seconds) = waited {
        let applied = HeaderValue::from_str(&format!("wait={seconds}")).expect("digits are ASCII");
        headers.insert(PREFERENCE_APPLIED, applied);
    }
    if repeated {
        headers.insert(idempotency::REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

fn not_stored(failed: NotStored) -> Refusal {
    match failed {
        NotStored::Broken(how) => {
            Refusal::new(StatusCode::BAD_REQUEST, format!("the upload: {how}; nothing was stored"))
        }
        NotStored::TooSlow(how) => Refusal::new(StatusCode::REQUEST_TIMEOUT, how),
        NotStored::OwnFull(most) => {
            let say = format!("at most {most} uploads of one user, or of one address, at a time: wait for some to end");
            Refusal::new(StatusCode::TOO_MANY_REQUESTS, say)
        }
        NotStored::Unknown(id) => Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            format!(
                "the database does not say whether this is stored: GET /api/v1/submissions/{id} will, and with an \
                 Idempotency-Key the same request may be sent again"
            ),
        ),
        NotStored::TooLarge(ONE_PROBLEM_LIMIT) => Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!(
                "as one problem it has at most {ONE_PROBLEM_LIMIT} bytes: send problems as NDJSON, JSON or CSV, with ?format="
            ),
        ),
        NotStored::TooLarge(limit) => Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("where uploads are kept, one has at most {limit} bytes: send several"),
        ),
        NotStored::OtherUnderKey => Refusal::about(
            StatusCode::UNPROCESSABLE_ENTITY,
            "Idempotency-Key",
            "this key was used for another submission: take a new one for each",
        ),
        NotStored::Failed(status) => status.into(),
    }
}

async fn one(api: &Api, who: &Who, id: i64) -> Answer<submissions::Submission> {
    let client = api.farm.pool.get().await.map_err(status_code::of_pool)?;
    let caller = who.caller()?;
    let own = caller.only_own();
    let found = submissions::submissions(&client, None, Some(id), None, own, 1).await.map_err(status_code::of)?.pop();
    found.ok_or_else(|| Refusal::not_found(format!("there is no submission {id}")))
}

/// The submission with its results, or as it is when the time is over.
async fn awaited(api: &Api, who: &Who, id: i64, deadline: Instant) -> Answer<Submission> {
    let mut pause = WAIT_POLL;
    let job = loop {
        let found = one(api, who, id).await?;
        match found.job_id {
            Some(job) => break job,
            None if found.state == "stored" && Instant::now() < deadline => {
                if api.farm.stopping.run_until_cancelled(sleep(pause)).await.is_none() {
                    return Ok(found.into());
                }
                pause = (pause * 2).min(WAIT_POLL_LIMIT);
            }
            None => return Ok(found.into()),
        }
    };
    let left = deadline.saturating_duration_since(Instant::now());
    let ended = api.jobs.wait(&who.caller()?, Some(left), job).await;
    let submission: Submission = one(api, who, id).await?.into();
    Ok(match ended {
        Ok(job_now) => Submission {
            job_state: Some(job_now.into_inner().state),
            results: few_results(api, who, job).await?,
            ..submission
        },
        // It goes on: the job can be asked.
        Err(_) => submission,
    })
}

async fn few_results(api: &Api, who: &Who, job: JobId) -> Answer<Option<Vec<Outcome>>> {
    let mut chunks = api.jobs.results(who.ask(v1::JobRequest { job_id: job.0 })).await?.into_inner();
    let mut outcomes = Vec::new();
    while let Some(chunk) = chunks.next().await {
        outcomes.extend(chunk?.outcomes);
        if outcomes.len() > FEW {
            return Ok(None);
        }
    }
    Ok(Some(Show::show(outcomes)))
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum SubmissionState {
    Stored,
    Queued,
    Refused,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    #[param(inline)]
    state: Option<SubmissionState>,
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<Limit>,
    /// `next` of the page before
    cursor: Option<String>,
}

/// Submissions, the newest first
#[utoipa::path(get, path = "/api/v1/submissions", tag = "submissions", params(ListParams),
    responses((status = 200, body = Page<Submission>)))]
async fn list(State(api): State<Api>, who: Who, Params(asked): Params<ListParams>) -> Answer<Body<Page<Submission>>> {
    let limit = asked.limit.unwrap_or_default().0;
    let before = Some(paging::id_place(CURSOR, asked.cursor.as_deref())?).filter(|id| *id > 0);
    let caller = who.caller()?;
    let own = caller.only_own();
    let state = asked.state.map(|state| match state {
        SubmissionState::Stored => "stored",
        SubmissionState::Queued => "queued",
        SubmissionState::Refused => "refused",
    });
    let client = api.farm.pool.get().await.map_err(status_code::of_pool)?;
    let found = submissions::submissions(&client, before, None, state, own, limit).await.map_err(status_code::of)?;
    let items: Vec<Submission> = found.into_iter().map(Submission::from).collect();
    Ok(Body(Page::new(items, limit, CURSOR, |one| one.submission_id.0.to_string())))
}

/// One submission
#[utoipa::path(get, path = "/api/v1/submissions/{submission_id}", tag = "submissions",
    params(("submission_id" = Id, Path)), responses((status = 200, body = Submission)))]
async fn show(State(api): State<Api>, who: Who, PathId(id): PathId) -> Answer<Body<Submission>> {
    Ok(Body(one(&api, &who, id).await?.into()))
}

/// What was uploaded
///
/// As it came, and never to be shown by a browser. The ETag is its SHA-256.
#[utoipa::path(get, path = "/api/v1/submissions/{submission_id}/original", tag = "submissions",
    params(("submission_id" = Id, Path)),
    responses((status = 200, body = Content, content_type = "application/octet-stream")))]
async fn original(State(api): State<Api>, who: Who, PathId(id): PathId) -> Answer<Response> {
    let found = one(&api, &who, id).await?;
    let (Some(bytes), Some(sha256), None) = (found.bytes, &found.sha256, found.removed_at) else {
        return Err(Refusal::not_found(format!("the upload of submission {id} is not here, or is kept no longer")));
    };
    let headers = [
        (CONTENT_TYPE, "application/octet-stream".to_owned()),
        (CONTENT_LENGTH, bytes.to_string()),
        (CONTENT_DISPOSITION, format!("attachment; filename=\"submission-{id}\"")),
        (X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (ETAG, format!("\"{}\"", hex(sha256))),
    ];
    let pieces = api.originals.begun(id, found.kept_in).await?;
    Ok((headers, Stream::from_stream(pieces)).into_response())
}

/// Whether what is stored is loaded
#[derive(Clone, Debug, Serialize, ToSchema)]
struct Intake {
    paused: bool,
    paused_since: Option<Time>,
    reason: String,
}

#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewIntake {
    paused: bool,
    /// For people
    #[serde(default)]
    reason: String,
}

/// Whether submissions are loaded
#[utoipa::path(get, path = "/api/v1/queue/intake", tag = "queue", responses((status = 200, body = Intake)))]
async fn intake(State(api): State<Api>, _: Who) -> Answer<Body<Intake>> {
    let client = api.farm.pool.get().await.map_err(status_code::of_pool)?;
    let (since, reason) = submissions::intake(&client).await.map_err(status_code::of)?;
    Ok(Body(Intake { paused: since.is_some(), paused_since: since.map(Time::show), reason }))
}

/// Pause intake, or go on
///
/// While it is paused, submissions are stored and acknowledged, and loaded later.
#[utoipa::path(put, path = "/api/v1/queue/intake", tag = "queue", request_body = NewIntake,
    responses((status = 200, body = Intake)))]
async fn set_intake(State(api): State<Api>, who: Who, Document(new): Document<NewIntake>) -> Answer<Body<Intake>> {
    let client = api.farm.pool.get().await.map_err(status_code::of_pool)?;
    who.caller()?.act(&client).await?;
    submissions::set_intake(&client, new.paused, &new.reason).await.map_err(status_code::of)?;
    drop(client);
    intake(State(api), who).await
}
