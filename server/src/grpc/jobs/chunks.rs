//! A job's results as a stream of chunks.

use super::{outcome_message, stopping};
use crate::grpc::status_code;
use deadpool_postgres::Pool;
use pcfarm_proto::PART_BYTES_TARGET;
use pcfarm_proto::v1::ResultChunk;
use pcfarm_sql::jobs::results;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::Stream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::Status;

/// Chunks of results that wait for a slow reader.
const CHUNKS_WAITING: usize = 2;

/// A job's results on their way. Dropped with the call, which ends the task that reads them.
pub struct Chunks {
    receiver: mpsc::Receiver<Result<ResultChunk, Status>>,
    task: JoinSet<()>,
    stopping: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Chunks {
    pub(super) fn start(pool: Pool, from: results::Results, stopping: CancellationToken) -> Chunks {
        let (sender, receiver) = mpsc::channel(CHUNKS_WAITING);
        let mut task = JoinSet::new();
        // Its errors are sent; a panic is told by `poll_next`, lest half of the results look like all.
        task.spawn(async move {
            if let Err(status) = send_chunks(&pool, from, &sender).await {
                drop(sender.send(Err(status)).await);
            }
        });
        Chunks { receiver, task, stopping: Box::pin(stopping.cancelled_owned()) }
    }
}

impl Stream for Chunks {
    type Item = Result<ResultChunk, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.stopping.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(stopping())));
        }
        if let Some(chunk) = std::task::ready!(self.receiver.poll_recv(context)) {
            return Poll::Ready(Some(chunk));
        }
        match std::task::ready!(self.task.poll_join_next(context)) {
            Some(Err(_)) => {
                Poll::Ready(Some(Err(Status::internal("reading results failed: the server's log says more"))))
            }
            Some(Ok(())) | None => Poll::Ready(None),
        }
    }
}

/// A connection is held for one piece at a time, never while the reader takes it.
async fn send_chunks(
    pool: &Pool,
    mut from: results::Results,
    sender: &mpsc::Sender<Result<ResultChunk, Status>>,
) -> Result<(), Status> {
    loop {
        let client = pool.get().await.map_err(status_code::of_pool)?;
        let Some(piece) = from.next(&client).await.map_err(status_code::of)? else { return Ok(()) };
        drop(client);
        for chunk in chunks(piece) {
            if sender.send(Ok(chunk)).await.is_err() {
                return Ok(()); // nobody listens any more
            }
        }
    }
}

/// Cut so that none is much larger than a part should be.
fn chunks(outcomes: Vec<results::ProblemOutcome>) -> Vec<ResultChunk> {
    let mut chunks = Vec::new();
    let mut bytes = usize::MAX;
    for outcome in outcomes {
        let outcome = outcome_message(outcome);
        let size = outcome.key.len() + outcome.message.len() + outcome.result.len() + 32;
        if bytes.saturating_add(size) > PART_BYTES_TARGET {
            chunks.push(ResultChunk::default());
            bytes = 0;
        }
        bytes += size;
        if let Some(chunk) = chunks.last_mut() {
            chunk.outcomes.push(outcome);
        }
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcfarm_proto::ids::ProblemId;
    use pcfarm_sql::json::RawJson;

    #[tokio::test]
    async fn results_end_with_an_error_when_the_server_stops() {
        let stopping = CancellationToken::new();
        // Somebody still reads from the database.
        let (_sender, receiver) = mpsc::channel(1);
        let mut chunks =
            Chunks { receiver, task: JoinSet::new(), stopping: Box::pin(stopping.clone().cancelled_owned()) };
        stopping.cancel();
        let last = std::future::poll_fn(|context| Pin::new(&mut chunks).poll_next(context)).await;
        let status = last.expect("more than the end").expect_err("nothing was sent");
        assert_eq!(status.code(), tonic::Code::Unavailable);
    }

    #[test]
    fn chunks_are_bounded_and_keep_their_order() {
        let outcome = |id| results::ProblemOutcome {
            problem_id: ProblemId(id),
            key: "k".into(),
            solution: Ok(Some(RawJson(vec![b' '; 300 << 10].into()))),
        };
        let cut = chunks((0..10).map(outcome).collect());
        assert_eq!(cut.iter().map(|chunk| chunk.outcomes.len()).collect::<Vec<_>>(), [3, 3, 3, 1]);
        let ids: Vec<i64> = cut.iter().flat_map(|chunk| &chunk.outcomes).map(|outcome| outcome.problem_id).collect();
        assert_eq!(ids, (0..10).collect::<Vec<i64>>());
        assert!(chunks(Vec::new()).is_empty());
    }
}
