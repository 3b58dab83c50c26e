//! A request to a store, signed, and tried again for a while when what was wrong may pass.

use super::Store;
use crate::outward::Outward;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, HeaderMap, RANGE, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use instant_xml::FromXml;
use pcfarm_proxy::{Connector, Limits};
use rand::RngExt;
use rusty_s3::Method;
use rusty_s3::signing::sign;
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

pub type Client = legacy::Client<HttpsConnector<Connector>, Full<Bytes>>;

const CONNECTING: Duration = Duration::from_secs(5);
/// For a part, on a slow line; and for a store that puts thousands of them together.
const ATTEMPT: Duration = Duration::from_secs(60);
/// So long a new attempt is made after the first.
const PATIENCE: Duration = Duration::from_secs(15);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// A signature holds for as long as clocks may differ by.
const SIGNED_FOR: Duration = Duration::from_secs(900);
/// Of what is not an object.
const ANSWER_BYTES: usize = 4 << 20;

/// Why the store did not do it.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("the store does not answer: {0}")]
    Unreachable(String),
    #[error("the store refuses: {} {code}: {message}", .status.as_u16())]
    Refused { status: StatusCode, code: String, message: String },
    #[error("what the store answers is not understood: {0}")]
    Strange(String),
    #[error("no keys to the store: {0}")]
    NoKeys(String),
}

#[derive(FromXml)]
#[xml(rename = "Error")]
struct Refusal {
    #[xml(rename = "Code")]
    code: String,
    #[xml(rename = "Message")]
    message: Option<String>,
}

impl Failure {
    /// The same may succeed in a while.
    pub fn may_pass(&self) -> bool {
        match self {
            Failure::Unreachable(_) => true,
            Failure::Strange(_) | Failure::NoKeys(_) => false,
            Failure::Refused { status, code, .. } => {
                let by_status = status.is_server_error() && *status != StatusCode::NOT_IMPLEMENTED;
                let by_code = ["InternalError", "SlowDown", "RequestTimeout", "ServiceUnavailable"].contains(&&**code);
                by_status || by_code || [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT].contains(status)
            }
        }
    }

    /// Neither an object nor an upload of that name; of a bucket it is another matter.
    pub fn is_not_found(&self) -> bool {
        let Failure::Refused { status, code, .. } = self else { return false };
        *status == StatusCode::NOT_FOUND && code != "NoSuchBucket"
    }

    pub fn code(&self) -> Option<&str> {
        if let Failure::Refused { code, .. } = self { Some(code) } else { None }
    }
}

pub fn strange(error: instant_xml::Error) -> Failure {
    Failure::Strange(error.to_string())
}

/// Something ended too early.
pub fn broken(error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::Unreachable(crate::outward::chain(error))
}

/// Attempts at one thing.
#[derive(Debug)]
pub struct Tries {
    since: Instant,
    pause: Duration,
}

impl Tries {
    pub fn begin() -> Tries {
        Tries { since: Instant::now(), pause: Duration::ZERO }
    }

    /// Comes back when it is time for another attempt, or with the failure if there is to be none.
    pub async fn again(&mut self, failure: Failure) -> Result<(), Failure> {
        let pause = self.pause_after(&failure, self.since.elapsed());
        let Some(pause) = pause else { return Err(failure) };
        debug!(%failure, "the store is asked again");
        let pause = pause.mul_f64(rand::rng().random_range(0.5..1.0));
        sleep(pause).await;
        Ok(())
    }

    fn pause_after(&mut self, failure: &Failure, tried_for: Duration) -> Option<Duration> {
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        (failure.may_pass() && tried_for < PATIENCE).then_some(self.pause)
    }
}

/// What is asked.
pub struct Call<'a> {
    pub method: Method,
    /// Of the object; the bucket has none.
    pub key: &'a str,
    /// By name.
    pub query: &'a [(&'a str, &'a str)],
    pub from: u64,
}

impl<'a> Call<'a> {
    pub fn of(key: &'a str) -> Call<'a> {
        Call { method: Method::Get, key, query: &[], from: 0 }
    }
}

/// What was answered.
#[derive(Debug)]
pub struct Answer {
    pub headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    /// XML. Those who take their time send spaces first.
    pub fn text(&self) -> Result<&str, Failure> {
        let text = str::from_utf8(&self.body).map_err(|error| Failure::Strange(error.to_string()))?;
        Ok(text.trim())
    }
}

pub fn client(outward: &Outward) -> Client {
    let limits = Limits { nodelay: true, connect_timeout: Some(CONNECTING), ..Limits::default() };
    legacy::Client::builder(TokioExecutor::new()).build(outward.connector(limits))
}

impl Store {
    /// Asks until there is an answer, or no hope of one.
    pub(super) async fn call(&self, call: &Call<'_>, body: Bytes) -> Result<Answer, Failure> {
        let mut tries = Tries::begin();
        loop {
            let attempt = async { whole(self.ask(call, body.clone()).await?).await };
            match timeout(ATTEMPT, attempt).await.unwrap_or_else(|_| Err(silent())) {
                Ok(answer) => return Ok(answer),
                Err(failure) => tries.again(failure).await?,
            }
        }
    }

    /// The object from this byte on. Once: whoever reads it tries again.
    pub(super) async fn open(&self, key: &str, from: u64) -> Result<Incoming, Failure> {
        let call = Call { from, ..Call::of(key) };
        let opened = timeout(ATTEMPT, self.ask(&call, Bytes::new())).await.unwrap_or_else(|_| Err(silent()))?;
        if from > 0 && opened.status() != StatusCode::PARTIAL_CONTENT {
            return Err(Failure::Strange("it sends all of an object where a part was asked for".to_owned()));
        }
        Ok(opened.into_body())
    }

    async fn ask(&self, call: &Call<'_>, body: Bytes) -> Result<Response<Incoming>, Failure> {
        let mut request = self.signed(call, body).await?;
        self.outward.authorize(&mut request);
        let target = request.uri().clone();
        let response = self.client.request(request).await.map_err(|error| broken(&error))?;
        if let Some(failure) = self.outward.failure_of_proxy(&target, response.status()) {
            return Err(Failure::Unreachable(failure));
        }
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        let said = refusal(&body).unwrap_or_else(|| Refusal {
            code: status.canonical_reason().unwrap_or_default().to_owned(),
            message: None,
        });
        Err(Failure::Refused { status, code: said.code, message: said.message.unwrap_or_default() })
    }

    async fn signed(&self, call: &Call<'_>, body: Bytes) -> Result<Request<Full<Bytes>>, Failure> {
        let keys = self.place.keys.now().await?;
        let bucket = &self.place.bucket;
        let now = jiff::Timestamp::try_from(SystemTime::now()).expect("the clock shows a time");
        let url = sign(
            &now,
            call.method,
            bucket.object_url(call.key),
            keys.key(),
            keys.secret(),
            keys.token(),
            bucket.region(),
            SIGNED_FOR.as_secs(),
            call.query.iter().copied(),
            std::iter::empty(),
        );
        let mut request = Request::builder()
            .method(call.method.to_str())
            .uri(url.as_str())
            .header(USER_AGENT, concat!("pcfarm/", env!("CARGO_PKG_VERSION")));
        if matches!(call.method, Method::Put | Method::Post) {
            // Stores insist on it, and of an empty body hyper says none.
            request = request.header(CONTENT_LENGTH, body.len());
        }
        if call.from > 0 {
            request = request.header(RANGE, format!("bytes={}-", call.from));
        }
        // The address is signed: it is not to be seen.
        request.body(Full::from(body)).map_err(|_| Failure::Strange("its address is none".to_owned()))
    }
}

async fn whole(response: Response<Incoming>) -> Result<Answer, Failure> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, ANSWER_BYTES).collect().await.map_err(|error| broken(error.as_ref()))?.to_bytes();
    // Who has begun to answer before it was done cannot say otherwise what went wrong.
    if let Some(said) = refusal(&body) {
        let message = said.message.unwrap_or_default();
        return Err(Failure::Refused { status: head.status, code: said.code, message });
    }
    Ok(Answer { headers: head.headers, body })
}

fn refusal(body: &[u8]) -> Option<Refusal> {
    instant_xml::from_str(str::from_utf8(body).ok()?.trim()).ok()
}

fn silent() -> Failure {
    Failure::Unreachable(format!("not within {} s", ATTEMPT.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, code: &str) -> Failure {
        let status = StatusCode::from_u16(status).expect("a status");
        Failure::Refused { status, code: code.to_owned(), message: String::new() }
    }

    #[test]
    fn what_may_pass_is_tried_again() {
        for (failure, again) in [
            (Failure::Unreachable(String::new()), true),
            (refused(503, "SlowDown"), true),
            (refused(500, "Internal Server Error"), true),
            (refused(200, "InternalError"), true),
            (refused(400, "RequestTimeout"), true),
            (refused(429, "Too Many Requests"), true),
            (refused(403, "AccessDenied"), false),
            (refused(404, "NoSuchBucket"), false),
            (refused(501, "NotImplemented"), false),
            (Failure::Strange(String::new()), false),
        ] {
            assert_eq!(failure.may_pass(), again, "{failure}");
        }
    }

    #[test]
    fn nobody_tries_for_ever() {
        let (mut tries, mut passed, mut count) = (Tries::begin(), Duration::ZERO, 0);
        while let Some(pause) = tries.pause_after(&refused(503, "SlowDown"), passed) {
            passed += pause;
            count += 1;
        }
        assert!((5..15).contains(&count), "{count}");
        assert!(passed >= PATIENCE && passed <= PATIENCE + LONGEST_PAUSE);
        assert_eq!(Tries::begin().pause_after(&refused(403, "AccessDenied"), Duration::ZERO), None);
    }

    #[test]
    fn a_refusal_says_why() {
        let body = b"<?xml version='1.0' encoding='UTF-8'?>\n<Error><Code>NoSuchBucket</Code><Message>The specified bucket does \
            not exist.</Message><RequestId>tx1</RequestId><BucketName>none</BucketName></Error>";
        let said = refusal(body).expect("an error");
        assert_eq!(
            (said.code.as_str(), said.message.as_deref()),
            ("NoSuchBucket", Some("The specified bucket does not exist."))
        );
        assert!(
            refusal(b"").is_none() && refusal(b"<html>Bad Gateway</html>").is_none() && refusal(b"hello").is_none()
        );
        assert!(!refused(404, "NoSuchBucket").is_not_found() && refused(404, "NoSuchKey").is_not_found());
    }
}
