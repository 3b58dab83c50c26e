//! A call whose request stream can end in an error.
//!
//! A client of tonic has two ways to stop sending, and a server of tonic takes both for the end of what there
//! is to say: ending the stream, and dropping the call, which resets the stream with CANCEL
//! (tonic::codec::decode answers `None` to that). A load that is given up must be neither, so its body fails:
//! hyper then resets the stream with INTERNAL_ERROR, which the server sees as an error.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::transport::Channel;

/// A channel whose requests fail once the token is cancelled.
#[derive(Clone)]
pub struct Abortable {
    channel: Channel,
    abort: CancellationToken,
}

impl Abortable {
    pub fn new(channel: Channel, abort: CancellationToken) -> Abortable {
        Abortable { channel, abort }
    }
}

impl Service<http::Request<Body>> for Abortable {
    type Response = http::Response<Body>;
    type Error = tonic::transport::Error;
    type Future = <Channel as Service<http::Request<Body>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Service::poll_ready(&mut self.channel, context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let aborted = Box::pin(self.abort.clone().cancelled_owned());
        let request = request.map(|body| Body::new(AbortableBody { body, aborted }));
        Service::call(&mut self.channel, request)
    }
}

struct AbortableBody {
    body: Body,
    aborted: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl http_body::Body for AbortableBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.aborted.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(Status::aborted("given up by the sender"))));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
