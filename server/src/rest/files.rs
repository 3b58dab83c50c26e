//! Files by the SHA-256 of their content: put there, got, listed, let go of.

use super::extract::{Limit, Params, PathName, Who};
use super::paging::{self, Page};
use super::problem_details::{Answer, Refusal};
use super::shown::{Content, Show, Time};
use super::{Api, idempotency};
use crate::access::places::Holder;
use crate::files::{Coming, For};
use axum::Json as Body;
use axum::body::Body as Stream;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE, ETAG, LOCATION, X_CONTENT_TYPE_OPTIONS};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use pcfarm_proto::files::FileHash;
use pcfarm_proto::v1;
use pcfarm_proto::v1::file_service_server::FileService;
use serde::{Deserialize, Serialize};
use tonic::Status;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

const CURSOR: &str = "files";
const NAME_LIMIT: usize = 255;

pub fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(remove))
}

/// Those that take their time.
pub fn slow_routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(put)).routes(routes!(get))
}

/// A file as one of those sees it who have put it there
#[derive(Clone, Debug, Serialize, ToSchema)]
struct File {
    /// Of its content, in hexadecimal: its name everywhere
    sha256: String,
    bytes: u64,
    /// For people
    name: String,
    owner: String,
    put_at: Option<Time>,
    /// Whose module it is
    job_types: Vec<String>,
}

impl Show<v1::File> for File {
    fn show(from: v1::File) -> File {
        File {
            sha256: FileHash::try_from(&from.sha256[..]).map_or_else(|_| String::new(), |hash| hash.to_string()),
            bytes: from.bytes,
            name: from.name,
            owner: from.owner,
            put_at: from.put_at.map(Time::show),
            job_types: from.job_types,
        }
    }
}

fn named(PathName(text): &PathName) -> Answer<FileHash> {
    text.parse().map_err(|_| Refusal::not_found(format!("there is no file {text}: a file's name is its SHA-256")))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<Limit>,
    /// `next` of the page before
    cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
struct Listed {
    #[serde(flatten)]
    file: File,
    #[serde(skip)]
    id: i64,
}

/// Files that one has put there, the newest first; an operator sees everybody's
#[utoipa::path(get, path = "/api/v1/files", tag = "files", params(ListParams),
    responses((status = 200, body = Page<File>)))]
async fn list(State(api): State<Api>, who: Who, Params(asked): Params<ListParams>) -> Answer<Body<Page<Listed>>> {
    let limit = asked.limit.unwrap_or_default().0;
    let before = paging::id_place(CURSOR, asked.cursor.as_deref())?;
    let found = api.files.list(who.ask(v1::ListFiles { before, limit })).await?.into_inner().files;
    let items = found.into_iter().map(|file| Listed { id: file.id, file: File::show(file) }).collect();
    Ok(Body(Page::new(items, limit, CURSOR, |one: &Listed| one.id.to_string())))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PutParams {
    /// For people, such as the path it came from
    #[param(max_length = 255)]
    #[serde(default)]
    name: String,
    /// Of the content: what comes and has another is refused
    #[param(pattern = "^[0-9a-f]{64}$")]
    sha256: Option<String>,
}

/// Put a file there
///
/// At most 1 GiB. Whoever puts what is there already has it from then on, too: that is answered with 200, and what is new with 201.
#[utoipa::path(post, path = "/api/v1/files", tag = "files", params(PutParams),
    request_body(content = Content, content_type = "*/*"),
    responses((status = 201, body = File, headers(("Location" = String))), (status = 200, body = File)))]
async fn put(
    State(api): State<Api>,
    _: idempotency::Key,
    who: Who,
    Params(asked): Params<PutParams>,
    request: Request,
) -> Answer<Response> {
    if asked.name.chars().count() > NAME_LIMIT {
        return Err(Refusal::bad_request("name", "a file's name has at most 255 characters"));
    }
    let expected = asked.sha256.map(|text| text.parse::<FileHash>());
    let expected = expected.transpose().map_err(|wrong| Refusal::bad_request("sha256", wrong.to_string()))?;
    let broken = |_| Status::invalid_argument("the body ended before its end: nothing was stored");
    let coming: Coming = request.into_body().into_data_stream().map(move |piece| piece.map_err(broken)).boxed();
    let caller = who.caller()?;
    let (holder, owner) = (Holder::of(&caller, &who.peer()), caller.user().to_owned());
    let (files, whose) = (api.files.files(), For::Caller(Box::new(caller), asked.name.clone()));
    // A request that is cut off must not leave something half done on a pooled connection: it is a task of its own.
    let task = api.farm.tasks.spawn(async move { files.receive(&holder, whose, expected, coming).await });
    let put = task.await.map_err(|error| Status::internal(error.to_string()))??;
    let status = if put.repeated { StatusCode::OK } else { StatusCode::CREATED };
    let location = format!("/api/v1/files/{}", put.hash);
    let file = File {
        sha256: put.hash.to_string(),
        bytes: put.bytes.cast_unsigned(),
        name: asked.name,
        owner,
        put_at: None,
        job_types: Vec::new(),
    };
    Ok((status, [(LOCATION, location)], Body(file)).into_response())
}

/// A file's content
///
/// Of one that one has put there, or that problems of one's jobs have made. Never to be shown by a browser. The ETag is its SHA-256.
#[utoipa::path(get, path = "/api/v1/files/{sha256}", tag = "files",
    params(("sha256" = String, Path, description = "64 hexadecimal digits")),
    responses((status = 200, body = Content, content_type = "application/octet-stream")))]
async fn get(State(api): State<Api>, who: Who, name: PathName) -> Answer<Response> {
    let hash = named(&name)?;
    let mut pieces = api.files.get(who.ask(v1::GetFile { sha256: hash.0.to_vec().into() })).await?.into_inner();
    // The first says how many bytes there are.
    let first = pieces.next().await.transpose()?.unwrap_or_default();
    let headers = [
        (CONTENT_TYPE, "application/octet-stream".to_owned()),
        (CONTENT_LENGTH, first.total_bytes.to_string()),
        (CONTENT_DISPOSITION, format!("attachment; filename=\"{hash}\"")),
        (X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (ETAG, format!("\"{hash}\"")),
    ];
    let content = futures_util::stream::iter([Ok(first)]).chain(pieces).map(|piece| piece.map(|piece| piece.content));
    Ok((headers, Stream::from_stream(content)).into_response())
}

/// Let go of a file
///
/// It is one's own no more. The content goes when nobody has it and nothing refers to it.
#[utoipa::path(delete, path = "/api/v1/files/{sha256}", tag = "files",
    params(("sha256" = String, Path, description = "64 hexadecimal digits")), responses((status = 204)))]
async fn remove(State(api): State<Api>, who: Who, name: PathName) -> Answer<StatusCode> {
    let sha256 = named(&name)?.0.to_vec().into();
    api.files.remove(who.ask(v1::RemoveFile { sha256 })).await?;
    Ok(StatusCode::NO_CONTENT)
}
