//! The page to browse the document of the API, of a server that was built without the feature `api-browser`: it says where the
//! document is.

use super::Api;
use super::problem_details::Refusal;
use crate::missing::API_BROWSER;
use axum::Router;
use axum::routing::get;

pub fn routes() -> Router<Api> {
    let page = || async { Refusal::not_found(format!("{API_BROWSER}. /api/v1/openapi.json describes the API")) };
    Router::new().route("/api/docs", get(page)).route("/api/docs/", get(page)).route("/api/docs/{*path}", get(page))
}
