//! How slowly a body may come. Whoever sends one has a place that others wait for, and some a transaction: who trickles is
//! told so, and goes.

use super::upload::Pieces;
use axum::body::{Body, Bytes};
use futures_util::{StreamExt, stream};
use std::io;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Of all time that a body was waited for, in each such piece of it at least so much has to come. What this server needs to
/// take in what has come does not count.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    span: Duration,
    least_bytes: usize,
}

/// 4 KiB/s: slower than any line that people upload files by.
const PACE: Pace = Pace { span: Duration::from_secs(30), least_bytes: 120 << 10 };

/// 1 KiB/s: an agent's files share a link of 64 kbit/s with its results.
const AGENTS_PACE: Pace = Pace { span: Duration::from_secs(60), least_bytes: 60 << 10 };

#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the body came too slowly: at least {} KiB in {} s, please; nothing was done", .0.least_bytes >> 10, .0.span.as_secs())]
pub struct TooSlow(Pace);

/// What came in this span.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pace: Pace,
    waited: Duration,
    bytes: usize,
}

impl Span {
    pub fn of_people() -> Span {
        Span::new(PACE)
    }

    pub fn of_agents() -> Span {
        Span::new(AGENTS_PACE)
    }

    fn new(pace: Pace) -> Span {
        Span { pace, waited: Duration::ZERO, bytes: 0 }
    }

    /// How long it may still be waited for.
    pub fn left(&self) -> Duration {
        self.pace.span.saturating_sub(self.waited)
    }

    /// After so long, so much has come.
    pub fn came(&mut self, waited: Duration, bytes: usize) -> Result<(), TooSlow> {
        self.waited += waited;
        self.bytes += bytes;
        if self.waited < self.pace.span {
            return Ok(());
        }
        let came = std::mem::replace(self, Span::new(self.pace));
        if came.bytes < self.pace.least_bytes { Err(TooSlow(self.pace)) } else { Ok(()) }
    }
}

/// The pieces of a body, and an error of kind `TimedOut` in place of one that comes too slowly.
pub fn pieces(body: Body) -> Pieces {
    paced(body, PACE)
}

fn paced(body: Body, pace: Pace) -> Pieces {
    stream::unfold(Some((body.into_data_stream(), Span::new(pace))), |state| async {
        let (mut pieces, mut span) = state?;
        loop {
            let began = Instant::now();
            let next = timeout(span.left(), pieces.next()).await;
            let bytes = match &next {
                Ok(Some(Ok(piece))) => piece.len(),
                Ok(Some(Err(_)) | None) | Err(_) => 0,
            };
            // A body that has ended may have been as slow as it likes.
            if !matches!(next, Ok(None))
                && let Err(slow) = span.came(began.elapsed(), bytes)
            {
                return Some((Err(io::Error::new(io::ErrorKind::TimedOut, slow)), None));
            }
            match next {
                Err(_) => {}
                Ok(None) => return None,
                Ok(Some(Ok(piece))) => return Some((Ok::<Bytes, io::Error>(piece), Some((pieces, span)))),
                Ok(Some(Err(error))) => return Some((Err(io::Error::other(error)), None)),
            }
        }
    })
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_span_has_to_bring_its_own() {
        let (second, much) = (Duration::from_secs(1), 10 << 20);
        let mut span = Span::new(PACE);
        assert!(span.came(29 * second, 1).is_ok(), "not over yet");
        assert!(span.came(second, 1).is_err());
        let mut span = Span::new(PACE);
        assert!(span.came(30 * second, much).is_ok());
        assert!(span.came(30 * second, 1).is_err(), "what came before does not count for it");
        let mut slow_line = Span::new(PACE);
        assert!((0..100).all(|_| slow_line.came(5 * second, 20 << 10).is_ok()));
        // Messages of 16 KiB at 1.5 KiB/s.
        let mut agents = Span::of_agents();
        assert!((0..100).all(|_| agents.came(second * 32 / 3, 16 << 10).is_ok()));
        assert!(!(0..100).all(|_| agents.came(32 * second, 16 << 10).is_ok()));
    }

    async fn read(body: Body, pace: Pace) -> Result<usize, io::Error> {
        let mut pieces = paced(body, pace);
        let mut bytes = 0;
        while let Some(piece) = pieces.next().await {
            bytes += piece?.len();
        }
        Ok(bytes)
    }

    #[tokio::test]
    async fn who_trickles_is_told_so() {
        let pace = Pace { span: Duration::from_millis(50), least_bytes: 1000 };
        let trickle = stream::repeat(()).then(|()| async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            io::Result::Ok(Bytes::from_static(b"x"))
        });
        let nothing = stream::iter([Bytes::from_static(b"x")]).map(io::Result::Ok).chain(stream::pending());
        for body in [Body::from_stream(trickle), Body::from_stream(nothing)] {
            let error = read(body, pace).await.expect_err("too slow");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(error.to_string().contains("too slowly"), "{error}");
        }
        let whole = stream::iter(vec![Bytes::from(vec![b'x'; 1000]); 10]).map(io::Result::Ok);
        assert_eq!(read(Body::from_stream(whole), pace).await.expect("all of it"), 10_000);
        assert_eq!(read(Body::empty(), pace).await.expect("nothing"), 0);
    }
}
