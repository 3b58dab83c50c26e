//! What is said when something is refused: RFC 9457 problem details. The one place that turns gRPC's statuses, and what
//! is wrong with a request itself, into HTTP's.

use crate::grpc::{FIELD, LOST_UPDATE, TOO_SLOW};
use axum::Json;
use axum::http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tonic::{Code, Status};
use utoipa::ToSchema;

pub const MEDIA_TYPE: &str = "application/problem+json";

/// Seconds: what is unavailable may be back, and a limit may leave room.
const BACK_SOON: u32 = 1;
const LIMIT_PAUSE: u32 = 5;

/// Why a request was refused (RFC 9457).
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ProblemDetails {
    /// Names the kind of refusal; programs branch on this or on the status
    #[schema(example = "urn:pcfarm:not-found")]
    pub r#type: String,
    #[schema(example = "Not Found")]
    pub title: String,
    #[schema(example = 404, minimum = 400, maximum = 599)]
    pub status: u16,
    /// What was wrong and what to do, for people
    #[schema(example = "there is no job 42")]
    pub detail: String,
    /// The fields at fault, where it is about fields
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub errors: Vec<FieldError>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct FieldError {
    /// Of the body, a query parameter or a header
    #[schema(example = "limits.concurrency")]
    pub field: String,
    pub message: String,
}

/// A request that is not done, on its way out.
#[derive(Clone, Debug)]
pub struct Refusal {
    status: StatusCode,
    detail: String,
    errors: Vec<FieldError>,
    retry_after: Option<u32>,
}

pub type Answer<T> = Result<T, Refusal>;

impl Refusal {
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Refusal {
        let retry_after = match status {
            StatusCode::SERVICE_UNAVAILABLE => Some(BACK_SOON),
            StatusCode::TOO_MANY_REQUESTS => Some(LIMIT_PAUSE),
            _ => None,
        };
        Refusal { status, detail: detail.into(), errors: Vec::new(), retry_after }
    }

    /// About a query parameter or a header, or a body that is not what it says it is.
    pub fn bad_request(field: &str, message: impl Into<String>) -> Refusal {
        Refusal::about(StatusCode::BAD_REQUEST, field, message)
    }

    /// About a field of the body.
    pub fn unprocessable(field: &str, message: impl Into<String>) -> Refusal {
        Refusal::about(StatusCode::UNPROCESSABLE_ENTITY, field, message)
    }

    pub fn about(status: StatusCode, field: &str, message: impl Into<String>) -> Refusal {
        let message = message.into();
        let errors = vec![FieldError { field: field.to_owned(), message: message.clone() }];
        Refusal { errors, ..Refusal::new(status, format!("{field}: {message}")) }
    }

    pub fn not_found(detail: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::NOT_FOUND, detail)
    }

    /// What a status means here, for the document that describes all of it.
    pub fn meaning(status: &str) -> &'static str {
        match status {
            "400" => "The request is not what it should be: its query, a header, or a body that cannot be read",
            "401" => "Credentials are wanted, or are not good any more",
            "403" => "These credentials do not allow it",
            "404" => "There is no such thing, or none that you may see",
            "405" => "The method is not for this address",
            "408" => "The body came too slowly",
            "409" => "The state of things is against it, or somebody else is at it",
            "412" => "Somebody else has changed it: read it again",
            "413" => "The body is too large",
            "415" => "The body is of another type than this takes",
            "422" => "A field is not as it should be",
            "428" => "Say which version is to be changed: If-Match",
            "429" => "A limit of yours leaves no room: Retry-After",
            "500" => "The server has failed: its log says more",
            "503" => "Not just now: Retry-After",
            _ => "It took too long",
        }
    }

    pub fn retry_after(mut self, seconds: u32) -> Refusal {
        self.retry_after = Some(seconds);
        self
    }

    pub fn status(&self) -> StatusCode {
        self.status
    }

    pub fn detail(&self) -> &str {
        &self.detail
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Refusal {
        let lost_update = status.metadata().contains_key(LOST_UPDATE);
        let http = match lost_update {
            true => StatusCode::PRECONDITION_FAILED,
            false if status.metadata().contains_key(TOO_SLOW) => StatusCode::REQUEST_TIMEOUT,
            false => status_of(status.code()),
        };
        let refusal = Refusal::new(http, status.message());
        let refusal = match status.code() {
            Code::Aborted if !lost_update => refusal.retry_after(BACK_SOON),
            _ => refusal,
        };
        match status.metadata().get(FIELD).and_then(|field| field.to_str().ok()) {
            Some(field) => {
                let errors = vec![FieldError { field: field.to_owned(), message: status.message().to_owned() }];
                Refusal { errors, ..refusal }
            }
            None => refusal,
        }
    }
}

fn status_of(code: Code) -> StatusCode {
    match code {
        Code::InvalidArgument | Code::OutOfRange => StatusCode::UNPROCESSABLE_ENTITY,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::FailedPrecondition | Code::Aborted => StatusCode::CONFLICT,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::Unavailable | Code::Cancelled => StatusCode::SERVICE_UNAVAILABLE,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Ok | Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let title = self.status.canonical_reason().unwrap_or("Refused").to_owned();
        let name = title.to_ascii_lowercase().replace(' ', "-");
        let details = ProblemDetails {
            r#type: format!("urn:pcfarm:{name}"),
            title,
            status: self.status.as_u16(),
            detail: self.detail,
            errors: self.errors,
        };
        let mut response = (self.status, Json(details)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Where no route is.
pub async fn no_route() -> Refusal {
    Refusal::not_found("there is nothing at this address: /api/v1/openapi.json tells what there is")
}

/// Where a route is, but not for this method. What may be asked instead is in `Allow`, which the router adds.
pub async fn other_method(method: axum::http::Method) -> Response {
    if method == axum::http::Method::OPTIONS {
        return StatusCode::NO_CONTENT.into_response();
    }
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, format!("{method} is not for this address: {ALLOW} tells what is"))
        .into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_become_https() {
        let cases = [
            (Status::not_found("x"), 404, None),
            (Status::invalid_argument("x"), 422, None),
            (Status::resource_exhausted("x"), 429, Some("5")),
            (Status::unavailable("x"), 503, Some("1")),
            (Status::aborted("x"), 409, Some("1")),
            (Status::permission_denied("x"), 403, None),
        ];
        for (status, expected, retry) in cases {
            let response = Refusal::from(status).into_response();
            assert_eq!(response.status().as_u16(), expected);
            assert_eq!(response.headers()[CONTENT_TYPE], MEDIA_TYPE);
            assert_eq!(response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()), retry);
        }
    }

    #[test]
    fn a_lost_update_and_the_field_at_fault_are_told() {
        let mut status = Status::aborted("it has changed");
        status.metadata_mut().insert(LOST_UPDATE, "1".parse().expect("ASCII"));
        status.metadata_mut().insert(FIELD, "title".parse().expect("ASCII"));
        let refusal = Refusal::from(status);
        assert_eq!(refusal.status(), StatusCode::PRECONDITION_FAILED);
        assert_eq!(refusal.errors[0].field, "title");
    }
}
