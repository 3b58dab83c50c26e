//! What a request says, checked before anything is done: bodies, query parameters, ids in paths. Whatever is not known is
//! refused with its name.

use super::problem_details::Refusal;
use crate::access::{Caller, Peer};
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::header::{CONTENT_TYPE, IF_MATCH, IF_NONE_MATCH};
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap, StatusCode};
use serde::de::{DeserializeOwned, Deserializer};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::convert::Infallible;
use std::fmt;
use std::time::Duration;
use tokio::time::timeout;
use tonic::metadata::MetadataMap;
use utoipa::ToSchema;

/// Most bytes of a JSON body. Files of problems are streamed, and have no such limit.
pub const BODY_LIMIT: usize = 2 << 20;

/// What the caller's credentials were found to be, on its way to the services.
#[derive(Clone, Debug, Default)]
pub struct Who(Extensions);

impl Who {
    /// A call to a service in this process.
    pub fn ask<T>(&self, message: T) -> tonic::Request<T> {
        tonic::Request::from_parts(MetadataMap::new(), self.0.clone(), message)
    }

    /// Whose request it is.
    pub fn user(&self) -> &str {
        self.0.get::<Caller>().map_or("", Caller::user)
    }

    pub fn peer(&self) -> Peer {
        self.0.get::<Peer>().copied().unwrap_or_default()
    }

    pub fn caller(&self) -> Result<Caller, Refusal> {
        Ok(Caller::of(&self.ask(()))?)
    }
}

impl<S: Sync> FromRequestParts<S> for Who {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Who, Infallible> {
        Ok(Who(parts.extensions.clone()))
    }
}

/// A JSON body.
pub struct Document<T>(pub T);

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for Document<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, _: &S) -> Result<Document<T>, Refusal> {
        let (parts, body) = request.into_parts();
        must_be(&parts.headers, &["application/json"])?;
        let bytes = whole(body, BODY_LIMIT).await?;
        parsed(&bytes).map(Document)
    }
}

/// What comes as one of these media types, without its parameters.
pub fn must_be(headers: &HeaderMap, known: &[&'static str]) -> Result<&'static str, Refusal> {
    let given = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (media, parameters) = given.split_once(';').unwrap_or((given, ""));
    let media = media.trim().to_ascii_lowercase();
    let charset = parameters.to_ascii_lowercase().replace([' ', '"'], "");
    let other_text = charset.contains("charset=") && !charset.contains("charset=utf-8");
    match known.iter().find(|name| **name == media).filter(|_| !other_text) {
        Some(name) => Ok(name),
        None => Err(Refusal::about(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "Content-Type",
            format!("this takes {}, in UTF-8", known.join(" or ")),
        )),
    }
}

/// A body that may not be long has come by then.
const BODY_TIME: Duration = Duration::from_secs(20);

/// All of a body that may not be long.
pub async fn whole(body: Body, limit: usize) -> Result<Bytes, Refusal> {
    let read = timeout(BODY_TIME, axum::body::to_bytes(body, limit)).await.map_err(|_| {
        let say = format!("the body did not come within {} seconds; nothing was done", BODY_TIME.as_secs());
        Refusal::new(StatusCode::REQUEST_TIMEOUT, say)
    })?;
    read.map_err(|error| {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
        while let Some(error) = cause {
            if error.is::<http_body_util::LengthLimitError>() {
                let mib = limit >> 20;
                let say = format!("the body has more than {mib} MiB: send problems as a file, which is streamed");
                return Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, say);
            }
            cause = error.source();
        }
        Refusal::new(StatusCode::BAD_REQUEST, "the body ended before its end")
    })
}

/// JSON as the type has it.
pub fn parsed<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    let bad = |what: String| Refusal::new(StatusCode::BAD_REQUEST, what);
    let text = std::str::from_utf8(bytes)
        .map_err(|wrong| bad(format!("the body is not UTF-8 after byte {}", wrong.valid_up_to())))?;
    let value: Value = serde_json::from_str(text).map_err(|wrong| bad(format!("the body is not JSON: {wrong}")))?;
    if !value.is_object() {
        return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "the body must be a JSON object"));
    }
    if let Some(field) = field_with_nul(&value) {
        return Err(Refusal::unprocessable(&field, "it holds a NUL character, which cannot be stored"));
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let message = error.inner().to_string();
        let message = message.split(" at line ").next().unwrap_or(&message).to_owned();
        Refusal::unprocessable(&field_of(&path, &message), message)
    })
}

/// An unknown or missing field is named by the message, and everything else by the path.
fn field_of(path: &str, message: &str) -> String {
    let named = ["unknown field `", "missing field `", "duplicate field `"]
        .iter()
        .find_map(|start| message.strip_prefix(start)?.split('`').next());
    match (path, named) {
        ("." | "", Some(name)) => name.to_owned(),
        (path, Some(name)) if !path.ends_with(name) => format!("{path}.{name}"),
        (path, _) => path.to_owned(),
    }
}

fn field_with_nul(value: &Value) -> Option<String> {
    let below = |name: String, rest: String| if rest.is_empty() { name } else { format!("{name}.{rest}") };
    match value {
        Value::String(text) => text.contains('\0').then(String::new),
        Value::Array(values) => {
            values.iter().enumerate().find_map(|(i, value)| Some(below(i.to_string(), field_with_nul(value)?)))
        }
        Value::Object(fields) => fields.iter().find_map(|(name, value)| {
            if name.contains('\0') {
                return Some(name.replace('\0', "\\u0000"));
            }
            Some(below(name.clone(), field_with_nul(value)?))
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

/// Query parameters.
pub struct Params<T>(pub T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Params<T>, Refusal> {
        of_query(parts.uri.query().unwrap_or_default()).map(Params)
    }
}

pub fn of_query<T: DeserializeOwned>(query: &str) -> Result<T, Refusal> {
    let pairs: Vec<(String, String)> = serde_urlencoded::from_str(query)
        .map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, format!("the query: {error}")))?;
    // What is not UTF-8 has been replaced.
    let unstorable = |text: &str| text.contains(['\0', '\u{fffd}']);
    if let Some((name, _)) = pairs.iter().find(|(name, value)| unstorable(name) || unstorable(value)) {
        let name = name.replace('\0', "\\u0000");
        return Err(Refusal::bad_request(&name, "it is not UTF-8 without NUL characters"));
    }
    let deserializer = serde_urlencoded::Deserializer::new(form(query.as_bytes()));
    serde_path_to_error::deserialize(deserializer).map_err(|error| {
        let (path, message) = (error.path().to_string(), error.inner().to_string());
        Refusal::bad_request(&field_of(&path, &message), message)
    })
}

fn form(query: &[u8]) -> form_urlencoded::Parse<'_> {
    form_urlencoded::parse(query)
}

/// A number in a path. What is none names nothing.
pub struct PathId(pub i64);

impl<S: Send + Sync> FromRequestParts<S> for PathId {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<PathId, Refusal> {
        let PathName(text) = PathName::from_request_parts(parts, state).await?;
        let id = text.parse::<i64>().ok().filter(|id| *id > 0 && text.bytes().all(|byte| byte.is_ascii_digit()));
        id.map(PathId).ok_or_else(|| Refusal::not_found("an id is a number from 1 on: there is nothing here"))
    }
}

/// A name in a path.
pub struct PathName(pub String);

impl<S: Send + Sync> FromRequestParts<S> for PathName {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<PathName, Refusal> {
        let named = Path::<String>::from_request_parts(parts, state).await;
        let Path(text) = named.map_err(|_| Refusal::not_found("the path is not UTF-8: there is nothing here"))?;
        if text.contains('\0') {
            return Err(Refusal::not_found("a name holds no NUL character: there is nothing here"));
        }
        Ok(PathName(text))
    }
}

/// Two names in a path.
pub struct PathNames(pub String, pub String);

impl<S: Send + Sync> FromRequestParts<S> for PathNames {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<PathNames, Refusal> {
        let named = Path::<(String, String)>::from_request_parts(parts, state).await;
        let Path((one, other)) =
            named.map_err(|_| Refusal::not_found("the path is not UTF-8: there is nothing here"))?;
        if one.contains('\0') || other.contains('\0') {
            return Err(Refusal::not_found("a name holds no NUL character: there is nothing here"));
        }
        Ok(PathNames(one, other))
    }
}

/// How many items a page has.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[schema(value_type = u32, minimum = 1, maximum = 1000, default = 100)]
pub struct Limit(pub u32);

impl Default for Limit {
    fn default() -> Limit {
        Limit(100)
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Limit, D::Error> {
        let wrong = || serde::de::Error::custom("a page has from 1 to 1000 items");
        let text = String::deserialize(deserializer)?;
        let limit = text.parse().map_err(|_| wrong())?;
        if (1..=1000).contains(&limit) { Ok(Limit(limit)) } else { Err(wrong()) }
    }
}

/// A 64-bit id, which JSON has as a string: many programs read numbers as doubles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, ToSchema)]
#[schema(value_type = String, pattern = "^[1-9][0-9]{0,18}$", example = "42")]
pub struct Id(pub i64);

impl Serialize for Id {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Id, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Id;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an id: a number from 1 on, as a string")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Id, E> {
                let id = text.parse::<i64>().ok().filter(|id| *id > 0);
                id.filter(|id| id.to_string() == text)
                    .map(Id)
                    .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

/// The version that an update was made for, if the request says: an entity tag without its quotes.
pub fn if_match(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let Some(value) = headers.get(IF_MATCH) else { return Ok(None) };
    let wrong = || Refusal::bad_request("If-Match", "send the ETag of what was read, such as \"3f2a…\", or *");
    let text = value.to_str().map_err(|_| wrong())?.trim();
    if text == "*" {
        return Ok(Some(String::new()));
    }
    let tag = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).ok_or_else(wrong)?;
    if tag.is_empty() || tag.contains('"') || !tag.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(wrong());
    }
    Ok(Some(tag.to_owned()))
}

/// The version that a change may name: if it does, nothing is changed that is of another one. An empty one is any, and `none`
/// is that of what is not there.
pub struct SomeVersion(pub String);

impl<S: Sync> FromRequestParts<S> for SomeVersion {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<SomeVersion, Refusal> {
        let named = if_match(&parts.headers)?;
        match (named, parts.headers.get(IF_NONE_MATCH)) {
            (named, None) => Ok(SomeVersion(named.unwrap_or_default())),
            (None, Some(value)) if value == "*" => Ok(SomeVersion("none".to_owned())),
            (None, Some(_)) => Err(Refusal::bad_request("If-None-Match", "only * is understood: if there is none yet")),
            (Some(_), Some(_)) => Err(Refusal::bad_request("If-None-Match", "not together with If-Match")),
        }
    }
}

/// The version that a change must name; an empty one is any.
pub struct Version(pub String);

impl<S: Sync> FromRequestParts<S> for Version {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Version, Refusal> {
        if_match(&parts.headers)?.map(Version).ok_or_else(|| {
            Refusal::about(
                StatusCode::PRECONDITION_REQUIRED,
                "If-Match",
                "say which version this changes: the ETag of what was read, or * for any",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Wanted {
        name: String,
        #[serde(default)]
        limit: Limit,
        inner: Option<Inner>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Inner {
        id: Id,
    }

    #[test]
    fn the_field_at_fault_is_named() {
        let cases = [
            (r#"{"name": 1}"#, "name"),
            (r#"{}"#, "name"),
            (r#"{"name": "a", "nam": 1}"#, "nam"),
            (r#"{"name": "a", "inner": {"id": "x"}}"#, "inner.id"),
            (r#"{"name": "a", "inner": {"id": 1}}"#, "inner.id"),
            (r#"{"name": "a", "inner": {"it": "1"}}"#, "inner.it"),
            (r#"{"name": "a\u0000"}"#, "name"),
        ];
        for (body, field) in cases {
            let refusal = parsed::<Wanted>(body.as_bytes()).expect_err(body);
            assert!(refusal.detail().starts_with(&format!("{field}: ")), "{body}: {}", refusal.detail());
        }
        for body in ["", "{", "[1] 2", "\"\\ud800\"", "{\"name\": 1e999}"] {
            assert_eq!(parsed::<Wanted>(body.as_bytes()).expect_err(body).status(), StatusCode::BAD_REQUEST);
        }
    }

    #[test]
    fn query_parameters_are_checked() {
        let wanted = of_query::<Wanted>("name=a%20b&limit=7").expect("right");
        assert_eq!((wanted.name.as_str(), wanted.limit.0), ("a b", 7));
        for (query, field) in [
            ("name=a&limit=0", "limit"),
            ("name=a&x=1", "x"),
            ("name=%00", "name"),
            ("name=%ff", "name"),
            ("limit=1", "name"),
        ] {
            let refusal = of_query::<Wanted>(query).expect_err(query);
            assert!(refusal.detail().starts_with(&format!("{field}: ")), "{query}: {}", refusal.detail());
        }
    }

    #[test]
    fn entity_tags_are_read() {
        let headers = |text: &str| HeaderMap::from_iter([(IF_MATCH, text.parse().expect("a header"))]);
        assert_eq!(if_match(&headers("\"abc\"")).expect("right"), Some("abc".to_owned()));
        assert_eq!(if_match(&headers("*")).expect("right"), Some(String::new()));
        assert!(if_match(&headers("abc")).is_err() && if_match(&headers("\"a\", \"b\"")).is_err());
    }

    mod fuzz {
        use super::*;

        #[test]
        fn a_request() {
            bolero::check!().for_each(|bytes: &[u8]| {
                drop(parsed::<Wanted>(bytes));
                if let Ok(query) = std::str::from_utf8(bytes) {
                    drop(of_query::<Wanted>(query));
                }
            });
        }
    }
}
