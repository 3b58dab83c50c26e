//! Webhooks: JSON that is posted, signed as Standard Webhooks has it (<https://www.standardwebhooks.com>), so that receivers
//! check it with a library.

use super::{Failure, text};
use crate::outward::{Outward, chain};
use crate::traces::context::{Place, TRACE_PARENT};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http_body_util::Full;
use hyper::header::HeaderValue;
use hyper::{Request, StatusCode, Uri, header};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use pcfarm_proxy::{Connector, Limits, NotPublic};
use pcfarm_sql::alerts::Claimed;
use serde::Serialize;
use serde_json::value::RawValue;
use sha2::Sha256;
use std::error::Error;
use std::time::{SystemTime, UNIX_EPOCH};

pub struct Poster {
    client: Client<HttpsConnector<Connector>, Full<Bytes>>,
    outward: Outward,
}

/// What receivers get.
#[derive(Serialize)]
struct Payload<'a> {
    r#type: String,
    timestamp: String,
    data: &'a RawValue,
}

impl Poster {
    pub fn new(outward: Outward) -> Poster {
        let connector = outward.connector(Limits { reach: outward.of_webhooks(), ..Limits::default() });
        // A connection each: answers are not read to their ends.
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
        Poster { client, outward }
    }

    /// Redirects are not followed, and of the answer its status is all that counts.
    pub async fn post(&self, alert: &Claimed, secret: &str, place: Option<Place>) -> Result<(), Failure> {
        let mut request = request(alert, secret, SystemTime::now()).map_err(Failure::InVain)?;
        self.outward.authorize(&mut request);
        if let Some(value) = place.and_then(|place| HeaderValue::from_str(&place.to_string()).ok()) {
            request.headers_mut().insert(TRACE_PARENT, value);
        }
        let target = request.uri().clone();
        let answer = self.client.request(request).await.map_err(|error| Failure::Again(reason(&error)))?;
        if let Some(failure) = self.outward.failure_of_proxy(&target, answer.status()) {
            return Err(Failure::Again(failure));
        }
        match answer.status() {
            status if status.is_success() => Ok(()),
            StatusCode::GONE => Err(Failure::InVain("the receiver wants no more: 410 Gone".to_owned())),
            status => Err(Failure::Again(format!("the receiver answered {status}"))),
        }
    }
}

/// Text for the user. A refused address is told alike, however the refusal came about.
fn reason(error: &(dyn Error + 'static)) -> String {
    let refused = std::iter::successors(Some(error), |&error| error.source()).find_map(|cause| cause.downcast_ref());
    refused.map_or_else(|| chain(error), NotPublic::to_string)
}

fn request(alert: &Claimed, secret: &str, now: SystemTime) -> Result<Request<Full<Bytes>>, String> {
    let uri: Uri = alert.target.parse().map_err(|error| format!("its target is no URL: {error}"))?;
    let data: &RawValue = serde_json::from_slice(&alert.body.0).map_err(|error| format!("its body: {error}"))?;
    let payload = Payload { r#type: text::kind(&alert.what), timestamp: text::time(alert.created_at), data };
    let body = serde_json::to_string(&payload).map_err(|error| format!("its body: {error}"))?;
    let timestamp = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let signature = sign(secret, &alert.message_id, timestamp, &body)?;
    Request::post(uri)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::USER_AGENT, concat!("pcfarm/", env!("CARGO_PKG_VERSION")))
        .header("webhook-id", &alert.message_id)
        .header("webhook-timestamp", timestamp)
        .header("webhook-signature", signature)
        .body(Full::from(body))
        .map_err(|error| format!("it cannot be posted: {error}"))
}

fn sign(secret: &str, id: &str, timestamp: u64, body: &str) -> Result<String, String> {
    let key = secret.strip_prefix("whsec_").and_then(|key| STANDARD.decode(key).ok());
    let key = key.ok_or("its secret is not whsec_ and base64")?;
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).map_err(|error| error.to_string())?;
    mac.update(format!("{id}.{timestamp}.{body}").as_bytes());
    Ok(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As other implementations of Standard Webhooks test it.
    #[test]
    fn signatures_are_those_of_the_standard() {
        let signature = sign(
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            "{\"test\": 2432232314}",
        );
        assert_eq!(signature.as_deref(), Ok("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="));
        assert!(sign("whsec_?", "", 0, "").is_err() && sign("MfKQ", "", 0, "").is_err());
    }
}
