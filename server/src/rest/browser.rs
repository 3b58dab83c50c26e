//! The page to browse the document of the API. Its files are in the program, and it needs no network.

use super::Api;
use super::problem_details::Refusal;
use axum::Router;
use axum::extract::Path;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::sync::Arc;
use utoipa_swagger_ui::Config;

/// Scripts and styles of the page's own files; nothing from elsewhere. Styles that the page's scripts set are part of it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
                      connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'";

pub fn routes() -> Router<Api> {
    let config = Arc::new(
        Config::from("/api/v1/openapi.json")
            .try_it_out_enabled(true)
            .persist_authorization(false)
            .validator_url("none"),
    );
    let page = move |path: String| {
        let config = config.clone();
        async move { file(&path, config) }
    };
    let index = page.clone();
    Router::new()
        .route("/api/docs", get(|| async { axum::response::Redirect::permanent("/api/docs/") }))
        .route("/api/docs/", get(move || index(String::new())))
        .route("/api/docs/{*path}", get(move |Path(path): Path<String>| page(path)))
}

fn file(path: &str, config: Arc<Config<'static>>) -> Response {
    match utoipa_swagger_ui::serve(path, config) {
        Ok(Some(file)) => {
            let headers = [
                (CONTENT_TYPE, file.content_type.as_str()),
                (CONTENT_SECURITY_POLICY, POLICY),
                (X_CONTENT_TYPE_OPTIONS, "nosniff"),
                (CACHE_CONTROL, "no-cache"),
            ];
            (headers, file.bytes.into_owned()).into_response()
        }
        Ok(None) | Err(_) => Refusal::not_found("there is no such page").into_response(),
    }
}
