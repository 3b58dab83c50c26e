//! Spans on their way to the collector: a queue that is bounded, and a task that empties it. A collector that is away, or slow,
//! costs spans, which are counted, and nothing else.

use super::settings::Wanted;
use crate::outward::Outward;
use anyhow::Context;
use metrics::counter;
use opentelemetry::{Key, KeyValue};
use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;
use tracing::{info, warn};

/// Longer, and the collector counts as away, whatever OTEL_EXPORTER_OTLP_TIMEOUT says.
const SEND_LIMIT: Duration = Duration::from_secs(30);

/// What a server that stops waits for its last spans to be taken.
pub const LAST_LIMIT: Duration = Duration::from_secs(3);

/// Empties the queue until told to end.
pub struct Sending {
    exporter: SpanExporter,
    queue: mpsc::Receiver<SpanData>,
    gathered: Vec<SpanData>,
    batch: usize,
    delay: Duration,
    /// All who make spans have ended.
    last: CancellationToken,
    away: bool,
}

/// What became of spans.
pub fn count(outcome: &'static str, spans: usize) {
    counter!("pcfarm_trace_spans_total", "outcome" => outcome).increment(spans as u64);
}

impl Sending {
    pub fn new(
        wanted: &Wanted,
        (server, outward): (&str, &Outward),
        queue: mpsc::Receiver<SpanData>,
        last: CancellationToken,
    ) -> anyhow::Result<Sending> {
        let mut endpoint = Endpoint::from_shared(wanted.endpoint.clone()).context("the collector's address")?;
        let mut builder = SpanExporter::builder().with_tonic().with_endpoint(&wanted.endpoint);
        if wanted.endpoint.starts_with("https://") {
            let mut tls = ClientTlsConfig::new().with_enabled_roots();
            if let Some(pem) = outward.pem() {
                tls = tls.ca_certificate(Certificate::from_pem(pem));
            }
            if let Some(file) = &wanted.certificate {
                let pem = std::fs::read(file).with_context(|| format!("reading the collector's authority {file}"))?;
                tls = tls.ca_certificate(Certificate::from_pem(pem));
            }
            builder = builder.with_tls_config(tls.clone());
            endpoint = endpoint.tls_config(tls).context("preparing TLS to the collector")?;
        }
        // The exporter's own channel knows no proxies, and has its limits and headers by variables.
        if !matches!(outward.proxies.proxy_of(endpoint.uri()), Ok(None)) {
            builder = builder.with_channel(endpoint.connect_with_connector_lazy(outward.tunnel()));
        }
        let mut exporter = builder.build().context("preparing to send traces")?;
        exporter.set_resource(&resource(server));
        Ok(Sending {
            exporter,
            queue,
            gathered: Vec::new(),
            batch: wanted.batch,
            delay: wanted.delay,
            last,
            away: false,
        })
    }

    /// Whoever wants it to end waits for that as long as it likes: [`LAST_LIMIT`].
    pub async fn run(mut self) {
        let last = self.last.clone();
        loop {
            tokio::select! {
                biased;
                () = last.cancelled() => break,
                more = self.gather() => if !more { break },
            }
            self.send().await;
        }
        self.queue.close();
        while self.queue.recv_many(&mut self.gathered, self.batch).await > 0 || !self.gathered.is_empty() {
            self.send().await;
        }
    }

    /// Some spans, soon after the first of them was there. False: no more will come. Nothing is lost if it is cut short.
    async fn gather(&mut self) -> bool {
        if self.gathered.is_empty() && self.queue.recv_many(&mut self.gathered, self.batch).await == 0 {
            return false;
        }
        let until = Instant::now() + self.delay;
        while self.gathered.len() < self.batch {
            let room = self.batch - self.gathered.len();
            match timeout_at(until, self.queue.recv_many(&mut self.gathered, room)).await {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
        }
        true
    }

    async fn send(&mut self) {
        let batch = std::mem::take(&mut self.gathered);
        let spans = batch.len();
        match timeout(SEND_LIMIT, self.exporter.export(batch)).await {
            Ok(Ok(())) => {
                count("sent", spans);
                if std::mem::take(&mut self.away) {
                    info!("the collector of traces takes spans again");
                }
            }
            Ok(Err(error)) => self.not_sent(spans, &error.to_string()),
            Err(_) => self.not_sent(spans, "it does not answer"),
        }
    }

    /// Said once, until it works again.
    fn not_sent(&mut self, spans: usize, error: &str) {
        count("not_sent", spans);
        if !std::mem::replace(&mut self.away, true) {
            warn!(
                error,
                spans,
                "spans were not sent to the collector of traces: they are lost, as others will be, until it answers"
            );
        }
    }
}

/// Who says so, unless OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say otherwise.
fn resource(server: &str) -> Resource {
    let told = Resource::builder().build();
    let is_told = |key: &'static str| {
        let value = told.get(&Key::from_static_str(key)).map(|value| value.to_string());
        value.is_some_and(|value| !value.is_empty() && !value.starts_with("unknown_service"))
    };
    let ours = [
        ("service.name", "pcfarm-server".to_owned()),
        ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("service.instance.id", server.to_owned()),
    ];
    let missing = ours.into_iter().filter(|(key, _)| !is_told(key)).map(|(key, value)| KeyValue::new(key, value));
    Resource::builder().with_attributes(missing).build()
}
