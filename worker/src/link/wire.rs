//! The bytes of a connection: when any came, and whether it is still alive.
//!
//! HTTP/2's keep-alive takes a connection for dead whose pong is late, and a pong waits behind data: on a slow link that is many
//! seconds. Here every byte that comes proves the connection alive, and so does every byte that leaves a full send buffer, because
//! the server has acknowledged others. Pings only make an idle server say something.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::sleep;
use tonic::transport::{Channel, Endpoint};
use tower::Service;

use super::backlog::{Backlog, SMALL_BYTES};
use crate::clock;

/// A wait that took so much longer than planned proves nothing about the connection: this process stood still.
const STOOD_STILL: Duration = Duration::from_secs(2);

/// Signs of life of one connection. Times are [`clock::now`], which runs on while the machine sleeps.
#[derive(Debug, Default)]
pub struct Wire {
    received_us: AtomicU64,
    moved_us: AtomicU64,
    received_bytes: AtomicU64,
    /// The last write found the send buffer full.
    blocked: AtomicBool,
}

impl Wire {
    fn open() -> Arc<Wire> {
        let wire = Wire::default();
        wire.moved();
        Arc::new(wire)
    }

    /// A byte moves, or did while this process stood still.
    pub fn moved(&self) {
        self.moved_us.store(micros(clock::now()), Ordering::Relaxed);
    }

    fn received(&self, bytes: usize) {
        let now = micros(clock::now());
        self.received_us.store(now, Ordering::Relaxed);
        self.moved_us.store(now, Ordering::Relaxed);
        self.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A write that finds room proves nothing by itself: the buffer of a dead connection takes many.
    fn wrote(&self, is_pending: bool) {
        if self.blocked.swap(is_pending, Ordering::Relaxed) && !is_pending {
            self.moved();
        }
    }

    /// Time of the last byte; zero: none has come.
    pub fn received_at(&self) -> Duration {
        Duration::from_micros(self.received_us.load(Ordering::Relaxed))
    }

    pub fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }

    /// Time until no byte has moved for so long.
    pub fn until_silent(&self, limit: Duration, now: Duration) -> Duration {
        let until = Duration::from_micros(self.moved_us.load(Ordering::Relaxed)) + limit;
        until.saturating_sub(now)
    }

    /// Waits until no byte has moved for so long.
    pub async fn silent_for(&self, limit: Duration) {
        loop {
            let now = clock::now();
            let left = self.until_silent(limit, now);
            let until = now + left;
            if left.is_zero() {
                return;
            }
            sleep(left).await;
            if clock::now() > until + STOOD_STILL {
                // This process did: bytes may wait to be read.
                self.moved();
            }
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Connects to a server, and counts the connection's bytes.
pub async fn connect(endpoint: &Endpoint, wait: Duration) -> Result<(Channel, Arc<Wire>), tonic::transport::Error> {
    let wire = Wire::open();
    let mut http = HttpConnector::new();
    // tonic speaks TLS on what this returns.
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(wait));
    let counting = wire.clone();
    let connector = tower::service_fn(move |uri| {
        let (connecting, wire) = (http.call(uri), counting.clone());
        async move {
            let stream = connecting.await.map_err(io::Error::other)?.into_inner();
            limit_unsent(&stream, SMALL_BYTES);
            wire.moved();
            Ok::<_, io::Error>(TokioIo::new(Counted { stream, wire, backlog: Backlog::default() }))
        }
    });
    let channel = endpoint.connect_with_connector(connector).await?;
    Ok((channel, wire))
}

/// A system that cannot do this keeps its own limit.
fn limit_unsent(stream: &TcpStream, bytes: u32) {
    #[cfg(target_os = "linux")]
    drop(socket2::SockRef::from(stream).set_tcp_notsent_lowat(bytes));
    #[cfg(not(target_os = "linux"))]
    let _ = (stream, bytes);
}

struct Counted {
    stream: TcpStream,
    wire: Arc<Wire>,
    backlog: Backlog,
}

impl Counted {
    fn wrote(&mut self, polled: &Poll<io::Result<usize>>) {
        self.wire.wrote(polled.is_pending());
        if let Poll::Ready(Ok(bytes)) = polled
            && let Some(limit) = self.backlog.wrote(*bytes, clock::now)
        {
            limit_unsent(&self.stream, limit);
        }
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        let bytes = buffer.filled().len() - before;
        if bytes > 0 {
            self.wire.received(bytes);
        }
        polled
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(&polled);
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.wrote(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_counts_only_when_the_server_made_room_for_it() {
        let wire = Wire::default();
        wire.wrote(false);
        assert_eq!(wire.moved_us.load(Ordering::Relaxed), 0);
        wire.wrote(true);
        assert_eq!(wire.moved_us.load(Ordering::Relaxed), 0);
        wire.wrote(false);
        assert!(wire.moved_us.load(Ordering::Relaxed) > 0);
        assert_eq!(wire.received_at(), Duration::ZERO);
    }
}
