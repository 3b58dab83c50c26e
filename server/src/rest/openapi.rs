//! The document that describes all this, made from the code.

use super::Api;
use super::idempotency::SECRETS;
use super::problem_details::{MEDIA_TYPE, ProblemDetails, Refusal};
use crate::access::table;
use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use serde_json::Value;
use std::sync::Arc;
use utoipa::openapi::path::{HttpMethod, Operation, ParameterBuilder, ParameterIn, PathItem};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ContentBuilder, Info, License, ObjectBuilder, OpenApi, Ref, RefOr, Required, ResponseBuilder, Type,
};
use utoipa::{PartialSchema, ToSchema};

const BEARER: &str = "token";
const TOKENS: &str = "A token, of a login or made for a program. A server that nobody else reaches asks for none until there \
                      are accounts.";

pub fn heading() -> OpenApi {
    let mut info = Info::new("PC Farm", env!("CARGO_PKG_VERSION"));
    info.description = Some(
        "Jobs, problems, results and everything else of a farm. Ids are strings; times are RFC 3339 in UTC; what is not \
         there is null. Errors are RFC 9457 problem details with the field at fault."
            .to_owned(),
    );
    info.license = Some(License::new("MIT OR Apache-2.0"));
    OpenApi::new(info, utoipa::openapi::Paths::new())
}

/// Adds what holds for many operations: how they may be refused, and `Idempotency-Key`.
pub fn completed(mut document: OpenApi) -> OpenApi {
    let components = document.components.get_or_insert_default();
    let mut schemas = Vec::new();
    ProblemDetails::schemas(&mut schemas);
    components.schemas.extend(schemas);
    components.schemas.insert(ProblemDetails::name().into_owned(), ProblemDetails::schema());
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(TOKENS)).build();
    components.security_schemes.insert(BEARER.to_owned(), RefOr::T(SecurityScheme::Http(bearer)));
    for (path, item) in &mut document.paths.paths {
        for (method, operation) in operations(item) {
            complete(path, &method, operation);
        }
    }
    document
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = (HttpMethod, &mut Operation)> {
    [
        (HttpMethod::Get, &mut item.get),
        (HttpMethod::Post, &mut item.post),
        (HttpMethod::Put, &mut item.put),
        (HttpMethod::Patch, &mut item.patch),
        (HttpMethod::Delete, &mut item.delete),
    ]
    .into_iter()
    .filter_map(|(method, operation)| Some((method, operation.as_mut()?)))
}

fn complete(path: &str, method: &HttpMethod, operation: &mut Operation) {
    let mut refusals = vec!["400", "401", "403", "405", "429", "500", "503", "504"];
    if path.contains('{') || operation.request_body.is_some() {
        refusals.push("404");
    }
    if operation.request_body.is_some() {
        refusals.extend(["408", "413", "415"]);
    }
    refusals.push("422");
    if !matches!(method, HttpMethod::Get) {
        refusals.push("409");
    }
    let version = operation.parameters.iter().flatten().find_map(|parameter| match parameter {
        RefOr::T(parameter) if parameter.name == "If-Match" => Some(parameter),
        RefOr::T(_) | RefOr::Ref(_) => None,
    });
    refusals.extend(version.map(|_| "412"));
    refusals.extend(version.filter(|parameter| parameter.required == Required::True).map(|_| "428"));
    // A file of problems is loaded once by way of a submission.
    if matches!(method, HttpMethod::Post) && !path.ends_with("/problems") && !SECRETS.contains(&path) {
        let key = ParameterBuilder::new()
            .name("Idempotency-Key")
            .parameter_in(ParameterIn::Header)
            .required(Required::False)
            .description(Some("The same request with the same key is done once, and answered again for a day"))
            .schema(Some(
                ObjectBuilder::new()
                    .schema_type(Type::String)
                    .min_length(Some(1))
                    .max_length(Some(200))
                    .pattern(Some("^[!-~]{1,200}$"))
                    .build(),
            ))
            .build();
        operation.parameters.get_or_insert_default().push(RefOr::T(key));
    }
    let name = match method {
        HttpMethod::Get => "GET",
        HttpMethod::Post => "POST",
        HttpMethod::Put => "PUT",
        HttpMethod::Patch => "PATCH",
        HttpMethod::Delete => "DELETE",
        HttpMethod::Head | HttpMethod::Options | HttpMethod::Trace => "",
    };
    if table::of_route(name, path) != Some(table::Need::Nothing) {
        // Whether one may do without is the farm's to say.
        operation.security = Some(vec![SecurityRequirement::default(), SecurityRequirement::new(BEARER, [""; 0])]);
    }
    for status in refusals {
        let content = ContentBuilder::new().schema(Some(RefOr::Ref(Ref::from_schema_name("ProblemDetails")))).build();
        let meaning = Refusal::meaning(status);
        let response = ResponseBuilder::new().description(meaning).content(MEDIA_TYPE, content).build();
        operation.responses.responses.entry(status.to_owned()).or_insert(RefOr::T(response));
    }
}

/// Any value may be null: so much is said once, where the generated schemas say "one of any and null".
fn plain_any(value: &mut Value) {
    let any = value
        .get("oneOf")
        .and_then(Value::as_array)
        .and_then(|of| of.first())
        .filter(|first| first.get("$ref").and_then(Value::as_str) == Some("#/components/schemas/Json"));
    if let Some(any) = any.cloned() {
        *value = any;
    }
    match value {
        Value::Object(fields) => fields.values_mut().for_each(plain_any),
        Value::Array(values) => values.iter_mut().for_each(plain_any),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

pub fn routes(document: Arc<OpenApi>) -> Router<Api> {
    let mut json = serde_json::to_value(&*document).expect("the document is plain data");
    plain_any(&mut json);
    let json = json.to_string();
    Router::new().route("/api/v1/openapi.json", get(move || async { ([(CONTENT_TYPE, "application/json")], json) }))
}
