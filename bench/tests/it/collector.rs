//! A collector of traces: the real protocol, with what came in a vector.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span;
use pcfarm_bench::farm::LONG;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// A span, as far as tests look at it. Ids are in hex.
#[derive(Clone, Debug)]
pub struct Seen {
    pub name: String,
    pub trace: String,
    pub id: String,
    /// Empty: it has none.
    pub parent: String,
    /// Nanoseconds since 1970.
    pub began: u64,
    pub ended: u64,
    pub attributes: HashMap<String, String>,
    /// Ids of spans.
    #[expect(dead_code, reason = "shown by Debug when a test fails")]
    pub links: Vec<String>,
    /// Why it failed; none: it did not.
    pub failure: Option<String>,
    /// Which server says so.
    pub server: String,
}

#[derive(Default)]
struct Collected {
    spans: Mutex<Vec<Seen>>,
    /// Of all calls, what was shown with them.
    keys: Mutex<HashSet<String>>,
    more: Notify,
}

pub struct Collector {
    pub url: String,
    collected: Arc<Collected>,
    // Ends with this.
    _task: JoinSet<()>,
}

struct Service(Arc<Collected>);

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        if let Some(key) = request.metadata().get("x-key").and_then(|key| key.to_str().ok()) {
            self.0.keys.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned());
        }
        let mut spans = self.0.spans.lock().unwrap_or_else(PoisonError::into_inner);
        for of_server in request.into_inner().resource_spans {
            let resource = attributes(of_server.resource.unwrap_or_default().attributes);
            assert_eq!(resource["service.name"], "pcfarm-server");
            let server = &resource["service.instance.id"];
            spans
                .extend(of_server.scope_spans.into_iter().flat_map(|scope| scope.spans).map(|span| seen(span, server)));
        }
        self.0.more.notify_waiters();
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn seen(span: Span, server: &str) -> Seen {
    let failure = span.status.filter(|status| status.code == 2).map(|status| status.message);
    Seen {
        name: span.name,
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        began: span.start_time_unix_nano,
        ended: span.end_time_unix_nano,
        attributes: attributes(span.attributes),
        links: span.links.iter().map(|link| hex(&link.span_id)).collect(),
        failure,
        server: server.to_owned(),
    }
}

fn attributes(of: Vec<KeyValue>) -> HashMap<String, String> {
    let text = |value: KeyValue| match value.value.and_then(|value| value.value) {
        Some(any_value::Value::StringValue(text)) => text,
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        Some(any_value::Value::DoubleValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    of.into_iter().map(|value| (value.key.clone(), text(value))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Collector {
    pub async fn start() -> Collector {
        Collector::at(0).await
    }

    /// On an address that is not only this host's own.
    pub async fn on(address: IpAddr) -> Collector {
        Collector::listening((address, 0).into()).await
    }

    /// On this port.
    pub async fn at(port: u16) -> Collector {
        Collector::listening((Ipv4Addr::LOCALHOST, port).into()).await
    }

    async fn listening(address: SocketAddr) -> Collector {
        let listener = TcpListener::bind(address).await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("a port"));
        let collected = Arc::new(Collected::default());
        let service = TraceServiceServer::new(Service(collected.clone()));
        let mut task = JoinSet::new();
        task.spawn(async move {
            let serving = Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener));
            serving.await.expect("it serves");
        });
        Collector { url, collected, _task: task }
    }

    pub fn spans(&self) -> Vec<Seen> {
        self.collected.spans.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Those of a trace.
    pub fn of(&self, trace: &str) -> Vec<Seen> {
        self.spans().into_iter().filter(|span| span.trace == trace).collect()
    }

    pub fn was_shown(&self, key: &str) -> bool {
        self.collected.keys.lock().unwrap_or_else(PoisonError::into_inner).contains(key)
    }

    /// Waits until there is such a span, and returns it.
    pub async fn until(&self, what: &str, wanted: impl Fn(&Seen) -> bool) -> Seen {
        self.until_found(what, |spans| spans.into_iter().find(|span| wanted(span))).await
    }

    /// Waits until there are such spans of a trace, and returns all of it.
    pub async fn until_all(&self, what: &str, trace: &str, wanted: impl Fn(&[Seen]) -> bool) -> Vec<Seen> {
        let of_it = |spans: Vec<Seen>| spans.into_iter().filter(|span| span.trace == trace).collect::<Vec<_>>();
        self.until_found(what, |spans| Some(of_it(spans)).filter(|spans| wanted(spans))).await
    }

    async fn until_found<T>(&self, what: &str, find: impl Fn(Vec<Seen>) -> Option<T>) -> T {
        let found = async {
            loop {
                let more = self.collected.more.notified();
                if let Some(found) = find(self.spans()) {
                    return found;
                }
                more.await;
            }
        };
        timeout(LONG, found).await.unwrap_or_else(|_| panic!("{what} did not come: {:#?}", self.spans()))
    }
}
