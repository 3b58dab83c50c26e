//! Results of a job, streamed: a slow reader holds up nothing but itself.

use super::Api;
use super::extract::{Id, Params, PathId, Who};
use super::problem_details::Answer;
use super::shown::{Outcome, Show};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use pcfarm_proto::v1;
use pcfarm_proto::v1::job_service_server::JobService;
use serde::Deserialize;
use std::borrow::Cow;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

const CSV_HEADER: &[u8] = b"problem_id,key,outcome,message,result\n";

/// Those that take their time.
pub fn slow_routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(results))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum ResultFormat {
    Ndjson,
    Csv,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ResultsParams {
    /// Missing: by `Accept`, else ndjson
    #[param(inline)]
    format: Option<ResultFormat>,
}

/// All results so far
///
/// In the order of problem ids; one line, or record, each. In CSV, what a spreadsheet would take for a formula gets an
/// apostrophe in front.
#[utoipa::path(get, path = "/api/v1/jobs/{job_id}/results", tag = "problems", params(("job_id" = Id, Path), ResultsParams),
    responses((status = 200, content((Outcome = "application/x-ndjson"), (String = "text/csv")))))]
async fn results(
    State(api): State<Api>,
    who: Who,
    PathId(job_id): PathId,
    Params(asked): Params<ResultsParams>,
    headers: HeaderMap,
) -> Answer<Response> {
    let accepted = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let form =
        asked.format.unwrap_or(if accepted.contains("text/csv") { ResultFormat::Csv } else { ResultFormat::Ndjson });
    let chunks = api.jobs.results(who.ask(v1::JobRequest { job_id })).await?.into_inner();
    let lines = chunks.map(move |chunk| match chunk {
        Ok(chunk) => Ok(lines(chunk.outcomes, form)),
        // The connection is cut, so that half of the results does not look like all.
        Err(status) => Err(std::io::Error::other(status)),
    });
    let (media, start) = match form {
        ResultFormat::Ndjson => ("application/x-ndjson", Bytes::new()),
        ResultFormat::Csv => ("text/csv; charset=utf-8", Bytes::from_static(CSV_HEADER)),
    };
    let start = futures_util::stream::iter((!start.is_empty()).then_some(Ok(start)));
    Ok(([(CONTENT_TYPE, media)], Body::from_stream(start.chain(lines))).into_response())
}

fn lines(outcomes: Vec<v1::ProblemOutcome>, form: ResultFormat) -> Bytes {
    let mut out = Vec::new();
    for outcome in outcomes {
        match form {
            ResultFormat::Ndjson => {
                let compact = if outcome.result.contains(&b'\n') {
                    outcome.result.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }).collect()
                } else {
                    outcome.result.clone()
                };
                let line = Outcome::show(v1::ProblemOutcome { result: compact, ..outcome });
                serde_json::to_writer(&mut out, &line).expect("a Vec takes everything");
                out.push(b'\n');
            }
            ResultFormat::Csv => {
                let result = String::from_utf8_lossy(&outcome.result);
                let cells =
                    [&outcome.problem_id.to_string(), &outcome.key, &outcome.outcome, &outcome.message, &*result];
                for (i, cell) in cells.into_iter().enumerate() {
                    if i > 0 {
                        out.push(b',');
                    }
                    push_cell(&mut out, cell);
                }
                out.push(b'\n');
            }
        }
    }
    out.into()
}

/// RFC 4180, and nothing that a spreadsheet computes: others have written these texts.
fn push_cell(out: &mut Vec<u8>, text: &str) {
    let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']) && text.parse::<f64>().is_err();
    let text: Cow<'_, str> = if formula { format!("'{text}").into() } else { text.into() };
    if text.contains([',', '"', '\n', '\r', '\'']) || text.starts_with(' ') {
        out.push(b'"');
        out.extend_from_slice(text.replace('"', "\"\"").as_bytes());
        out.push(b'"');
    } else {
        out.extend_from_slice(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_formula_is_text() {
        let cases = [
            ("plain", "plain"),
            ("-5", "-5"),
            ("-1.5e3", "-1.5e3"),
            ("=1+1", "\"'=1+1\""),
            ("@x", "\"'@x\""),
            ("-x", "\"'-x\""),
            ("a,\"b\"\n", "\"a,\"\"b\"\"\n\""),
        ];
        for (text, expected) in cases {
            let mut out = Vec::new();
            push_cell(&mut out, text);
            assert_eq!(String::from_utf8(out).expect("text"), expected);
        }
    }

    #[test]
    fn a_line_is_one_line() {
        let outcome = v1::ProblemOutcome {
            problem_id: 10_000_000_001,
            key: "k".into(),
            outcome: "done".into(),
            message: String::new(),
            result: b"{\n\"x\": 0.10}".as_slice().into(),
        };
        let line = lines(vec![outcome], ResultFormat::Ndjson);
        let expected = "{\"problem_id\":\"10000000001\",\"key\":\"k\",\"outcome\":\"done\",\"message\":null,\"result\":{ \"x\": 0.10}}\n";
        assert_eq!(line, expected);
    }
}
