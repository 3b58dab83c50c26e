//! What is left of a body when the answer is a refusal: read for a while, and thrown away. A client that is still writing
//! would otherwise find the connection broken, and never read what was wrong.

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::timeout;

/// Who has much more to say is cut off after all.
const TIME_LIMIT: Duration = Duration::from_secs(5);
const BYTES_LIMIT: usize = 64 << 20;

/// A body that its reader may leave.
struct Left(Arc<Mutex<Body>>);

impl HttpBody for Left {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        HttpBody::size_hint(&*self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub async fn read(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    if body.is_end_stream() {
        return next.run(Request::from_parts(parts, body)).await;
    }
    let body = Arc::new(Mutex::new(body));
    let response = next.run(Request::from_parts(parts, Body::new(Left(body.clone())))).await;
    if response.status().is_client_error() {
        let mut rest = Left(body);
        let reading = async {
            let mut read = 0;
            while let Some(Ok(frame)) = rest.frame().await {
                read += frame.data_ref().map_or(0, Bytes::len);
                if read > BYTES_LIMIT {
                    return;
                }
            }
        };
        // Whoever stands still has read all that it will.
        drop(timeout(TIME_LIMIT, reading).await);
    }
    response
}
