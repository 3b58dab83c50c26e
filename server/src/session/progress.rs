//! Bytes of a session's stream, whether or not they make a message yet.
//!
//! A slow link carries a message for many seconds. Its bytes prove that the workstation lives, but only for [`piece_deadline`]
//! after the last whole message. An agent cuts its messages into pieces of about a second. Bytes that trickle more slowly than on
//! any usable link must not hold a workstation's checkouts.

use hyper::body::{Body, Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tonic::codegen::http::Request;
use tonic::codegen::{Bytes, Service};
use tonic::server::NamedService;
use tonic::{Status, body};

/// Time for an agent whose link has become ten times slower in the middle of a piece.
const SHORTEST_PIECE_DEADLINE: Duration = Duration::from_secs(30);

/// Time for which bytes of an unfinished message prove a workstation alive.
pub fn piece_deadline(lease: Duration) -> Duration {
    (lease * 2).max(SHORTEST_PIECE_DEADLINE)
}

static BASE: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Time of the last byte of one stream.
#[derive(Debug, Default)]
pub struct Progress(AtomicU64);

impl Progress {
    fn came(&self) {
        self.came_at(Instant::now());
    }

    pub(super) fn came_at(&self, now: Instant) {
        let since = u64::try_from(now.saturating_duration_since(*BASE).as_micros()).unwrap_or(u64::MAX);
        self.0.store(since, Ordering::Relaxed);
    }

    /// Time of the last sign of life, given the time of the last message.
    pub fn heard(&self, message: Instant, deadline: Duration) -> Instant {
        let bytes = *BASE + Duration::from_micros(self.0.load(Ordering::Relaxed));
        heard(message, bytes, deadline)
    }
}

fn heard(message: Instant, bytes: Instant, deadline: Duration) -> Instant {
    message.max(bytes.min(message + deadline))
}

/// A service whose calls can tell when bytes of their requests came: their extensions have an `Arc<Progress>`.
#[derive(Clone)]
pub struct Watched<S>(pub S);

impl<S: NamedService> NamedService for Watched<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<body::Body>> for Watched<S>
where
    S: Service<Request<body::Body>, Error = Infallible>,
{
    type Response = S::Response;
    type Error = Infallible;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<body::Body>) -> S::Future {
        let progress = Arc::<Progress>::default();
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(progress.clone());
        self.0.call(Request::from_parts(parts, body::Body::new(Counted { body, progress })))
    }
}

struct Counted {
    body: body::Body,
    progress: Arc<Progress>,
}

impl Body for Counted {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if matches!(&polled, Poll::Ready(Some(Ok(_)))) {
            self.progress.came();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_an_unfinished_message_count_until_its_deadline() {
        let message = Instant::now();
        let after = |seconds| message + Duration::from_secs(seconds);
        let deadline = Duration::from_secs(30);
        for (bytes, expected) in [(0, 0), (7, 7), (30, 30), (31, 30), (500, 30)] {
            assert_eq!(heard(message, after(bytes), deadline), after(expected), "{bytes}");
        }
        assert_eq!(heard(after(9), message, deadline), after(9), "bytes of an earlier message prove nothing");
    }
}
