//! Spans of calls, gRPC and REST: each goes on with its caller's trace, or begins one.

use super::context::{TRACE_PARENT, TraceParent};
use super::{Span, SpanKind, Traces};
use tonic::Code;
use tonic::codegen::http::HeaderMap;

/// What people and their programs call. What agents, watchers and reflection ask all day is nobody's submission.
const SERVICES: &str = "pcfarm.v1.";
const OF_AGENTS: [&str; 2] = ["pcfarm.v1.AgentService", "pcfarm.v1.JoinService"];
const ROUTES: &str = "/api/v1/";

fn caller(headers: &HeaderMap) -> Option<TraceParent> {
    let mut values = headers.get_all(TRACE_PARENT).iter();
    let first = values.next()?;
    // Of two nobody knows which is meant: the standard has neither count.
    values.next().is_none().then_some(())?;
    TraceParent::read(first.to_str().ok()?)
}

/// A gRPC call; `path`: `/package.Service/Method`.
pub fn of_method(traces: &Traces, path: &str, headers: &HeaderMap) -> Span {
    let Some((service, method)) = path.strip_prefix('/').and_then(|path| path.split_once('/')) else {
        return Span::default();
    };
    if !traces.are_on() || !service.starts_with(SERVICES) || OF_AGENTS.contains(&service) {
        return Span::default();
    }
    let mut span = traces.begin(format!("{service}/{method}"), SpanKind::Server, caller(headers));
    span.set("rpc.system", "grpc").set("rpc.service", service.to_owned()).set("rpc.method", method.to_owned());
    span
}

/// How it ended, if its head says so: what fails while it streams does not.
pub fn answered(span: &mut Span, headers: &HeaderMap) {
    let code = headers.get("grpc-status").map_or(Code::Ok, |status| Code::from_bytes(status.as_bytes()));
    span.set("rpc.grpc.status_code", i64::from(i32::from(code)));
    if is_fault(code) {
        span.failed(code.description());
    }
}

/// The server's, not the caller's.
fn is_fault(code: Code) -> bool {
    matches!(code, Code::Unknown | Code::DeadlineExceeded | Code::Internal | Code::Unavailable | Code::DataLoss)
}

/// A REST request; `route` is the router's, without what is in a path.
pub fn of_route(traces: &Traces, method: &'static str, route: &str, headers: &HeaderMap) -> Span {
    if !traces.are_on() || !route.starts_with(ROUTES) {
        return Span::default();
    }
    let mut span = traces.begin(format!("{method} {route}"), SpanKind::Server, caller(headers));
    span.set("http.request.method", method).set("http.route", route.to_owned());
    span
}

/// What was answered.
pub fn answered_with(span: &mut Span, status: u16) {
    span.set("http.response.status_code", i64::from(status));
    if status >= 500 {
        span.failed(status.to_string());
    }
}
