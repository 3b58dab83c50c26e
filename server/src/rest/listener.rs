//! Serving REST: how long a header may take, and how all of it ends.

use super::Api;
use crate::accept::Connections;
use crate::access::Peer;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;
use tonic::codegen::Service as _;
use tonic::transport::server::Connected as _;
use tracing::debug;

/// From the beginning of a connection, or the end of the answer before, to the end of a request's header.
const HEADER_LIMIT: Duration = Duration::from_secs(30);
const HEADER_BYTES: usize = 32 << 10;
const HEADERS: usize = 100;

/// Requests that were begun may take this long when the server stops.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// Serves until the farm stops, then lets requests end.
pub async fn serve(api: Api, mut incoming: Connections, stopping: CancellationToken) -> anyhow::Result<()> {
    let (router, _) = super::router(api);
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEADER_LIMIT).max_buf_size(HEADER_BYTES).max_headers(HEADERS);
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = stopping.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            accepted = incoming.next() => accepted,
        };
        let connection = match accepted {
            Some(Ok(connection)) => connection,
            Some(Err(_)) => continue,
            None => break,
        };
        // No certificates here: people and programs have tokens.
        let peer = Peer { workstation: None, ..connection.connect_info().peer() };
        let router = router.clone();
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(peer);
            router.clone().call(request)
        });
        let connection = graceful.watch(server.serve_connection(TokioIo::new(connection), service));
        // Whatever ends it is its client's doing, or has been logged.
        connections.spawn(async move {
            if let Err(error) = connection.await {
                debug!(error = &error as &dyn std::error::Error, "a connection ended");
            }
        });
    }
    drop(tokio::time::timeout(LAST_ANSWERS, graceful.shutdown()).await);
    Ok(())
}
