//! Results that come in pieces, until the delivery that brings them: solutions alone, or results with all that they bring.
//!
//! A session has at most one of them at a time, and reserves room for the whole of it before it keeps a byte: sessions never wait
//! for each other with half a result in hand. A result is decoded when its delivery has come, unless it enqueues too many problems:
//! a problem of two bytes takes a hundred times as many in memory.

use crate::problem::too_many;
use pcfarm_proto::v1::problem_result::Outcome;
use pcfarm_proto::v1::{self, PartReceived};
use pcfarm_proto::{ENQUEUE_LIMIT, RESULT_BYTES_LIMIT, SOLUTION_BYTES_LIMIT};
use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

/// Bytes of unfinished results of all sessions.
const ROOM_BYTES: usize = 256 << 20;
const UNIT_BYTES: usize = 1 << 10;

/// A result may take as long as at this rate, a quarter of 64 kbit/s, and [`GRACE`] longer.
const LEAST_BYTES_PER_SECOND: u64 = 2 << 10;
const GRACE: Duration = Duration::from_secs(60);

/// Longest wait for room. Results that do not progress free theirs at their deadline.
const ROOM_WAIT: Duration = Duration::from_secs(60);

/// Room for unfinished results, shared by all sessions of a server.
#[derive(Clone, Debug)]
pub struct Room(Arc<Semaphore>);

impl Default for Room {
    fn default() -> Room {
        Room(Arc::new(Semaphore::new(ROOM_BYTES / UNIT_BYTES)))
    }
}

impl Room {
    async fn reserve(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Status> {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).expect("a result has at most about a megabyte");
        match tokio::time::timeout(ROOM_WAIT, self.0.clone().acquire_many_owned(units)).await {
            Ok(permit) => permit.map_err(|_| Status::unavailable("this server is stopping")),
            Err(_) => Err(Status::unavailable("this server has no room for another large result: connect again")),
        }
    }
}

/// The result of one session that is under way.
pub struct Streamed {
    room: Room,
    unfinished: Option<Unfinished>,
    /// Checkout and problem of the last result that came too slowly.
    overdue: Option<(i64, i64)>,
}

struct Unfinished {
    checkout_id: i64,
    problem_id: i64,
    /// The pieces are an encoded result, and not a solution alone.
    of_result: bool,
    total: usize,
    content: Vec<u8>,
    deadline: Instant,
    _room: OwnedSemaphorePermit,
}

impl Streamed {
    pub fn new(room: Room) -> Streamed {
        Streamed { room, unfinished: None, overdue: None }
    }

    /// Drops the unfinished result if it is overdue. Called for every message of the session, so that an agent that sends only
    /// heartbeats does not hold room that others wait for. The agent may have given it up: its checkout may be revoked. Only
    /// further messages about it are wrong.
    pub fn drop_overdue(&mut self) {
        if let Some(unfinished) = self.unfinished.take_if(|unfinished| Instant::now() > unfinished.deadline) {
            self.overdue = Some((unfinished.checkout_id, unfinished.problem_id));
        }
    }

    fn missing(&self, of: (i64, i64), what: &str) -> Status {
        match self.overdue {
            Some(overdue) if overdue == of => Status::deadline_exceeded("a result came too slowly"),
            _ => Status::invalid_argument(what),
        }
    }

    /// Takes a piece and returns its receipt. The storing of the delivery decides whether the checkout is live.
    pub async fn take(&mut self, part: v1::ResultPart) -> Result<PartReceived, Status> {
        let v1::ResultPart { checkout_id, problem_id, offset, total, content, of_result } = part;
        if content.is_empty() {
            return Err(Status::invalid_argument("an empty part of a result"));
        }
        if offset == 0 {
            (self.unfinished, self.overdue) = (None, None);
            let limit = if of_result { RESULT_BYTES_LIMIT } else { SOLUTION_BYTES_LIMIT };
            let total = usize::try_from(total).ok().filter(|total| (1..=limit).contains(total));
            let total = total.ok_or_else(|| Status::invalid_argument("a result of no byte, or of too many"))?;
            let room = self.room.reserve(total).await?;
            self.unfinished = Some(Unfinished {
                checkout_id,
                problem_id,
                of_result,
                total,
                // The room that is reserved: a vector that grows by itself takes up to twice as much.
                content: Vec::with_capacity(total),
                _room: room,
                deadline: Instant::now() + time_for(total),
            });
        }
        let of_it = |unfinished: &&mut Unfinished| {
            (unfinished.checkout_id, unfinished.problem_id) == (checkout_id, problem_id)
                && unfinished.of_result == of_result
        };
        let Some(unfinished) = self.unfinished.as_mut().filter(of_it) else {
            return Err(self.missing((checkout_id, problem_id), "a part of a result that has not begun"));
        };
        let is_next = usize::try_from(offset).is_ok_and(|offset| offset == unfinished.content.len());
        if !is_next || content.len() > unfinished.total - unfinished.content.len() {
            return Err(Status::invalid_argument("a part of a result that is out of order, or too long"));
        }
        unfinished.content.extend_from_slice(&content);
        Ok(PartReceived { checkout_id, problem_id, received: unfinished.content.len() as u64 })
    }

    /// Puts a result that has come whole into the delivery that brings it.
    pub fn fill(&mut self, delivery: &mut v1::Delivery) -> Result<(), Status> {
        for results in &mut delivery.checkouts {
            for result in &mut results.results {
                let (total, of_result) = match result.outcome {
                    Some(Outcome::Streamed(total)) => (total, false),
                    Some(Outcome::StreamedResult(total)) => (total, true),
                    Some(Outcome::Solution(_) | Outcome::Failure(_)) | None => continue,
                };
                let of = (results.checkout_id, result.problem_id);
                let of_it = |unfinished: &Unfinished| {
                    (unfinished.checkout_id, unfinished.problem_id) == of
                        && unfinished.of_result == of_result
                        && unfinished.content.len() == unfinished.total
                        && unfinished.total as u64 == total
                };
                let whole = self.unfinished.take().filter(of_it);
                let whole = whole.ok_or_else(|| self.missing(of, "a result whose parts have not come"))?;
                if of_result {
                    *result = decoded(result.problem_id, &whole.content)?;
                } else {
                    result.outcome = Some(Outcome::Solution(whole.content.into()));
                }
            }
        }
        Ok(())
    }
}

/// Decodes a result that came in pieces. One that enqueues too many problems has failed.
fn decoded(problem_id: i64, content: &[u8]) -> Result<v1::ProblemResult, Status> {
    let wrong = || Status::invalid_argument("the parts of a result are no result");
    let problems = enqueued(content).map_err(|_| wrong())?;
    if problems > ENQUEUE_LIMIT {
        let outcome = Some(Outcome::Failure(too_many(problems)));
        return Ok(v1::ProblemResult { problem_id, outcome, more: None });
    }
    // A copy: slices would keep the whole of it in memory as long as one of them.
    let result = v1::ProblemResult::decode(content).map_err(|_| wrong())?;
    let is_whole = matches!(result.outcome, Some(Outcome::Solution(_) | Outcome::Failure(_)));
    if result.problem_id == problem_id && is_whole { Ok(result) } else { Err(wrong()) }
}

/// Number of problems that an encoded result enqueues, without memory for them.
fn enqueued(result: &[u8]) -> Result<usize, prost::DecodeError> {
    const MORE: u32 = 4;
    const ENQUEUE: u32 = 1;
    let mut problems = 0;
    each_field(result, |tag, content| {
        if tag == MORE {
            each_field(content, |tag, _| {
                problems += usize::from(tag == ENQUEUE);
                Ok(())
            })?;
        }
        Ok(())
    })?;
    Ok(problems)
}

/// Calls `field` with the tag and the content of each field that has a length.
fn each_field(
    mut message: &[u8],
    mut field: impl FnMut(u32, &[u8]) -> Result<(), prost::DecodeError>,
) -> Result<(), prost::DecodeError> {
    while !message.is_empty() {
        let (tag, wire) = decode_key(&mut message)?;
        if wire != WireType::LengthDelimited {
            skip_field(wire, tag, &mut message, DecodeContext::default())?;
            continue;
        }
        let length = usize::try_from(decode_varint(&mut message)?).unwrap_or(usize::MAX);
        // The decoder reports a field that is cut off.
        let Some((content, rest)) = message.split_at_checked(length) else { return Ok(()) };
        field(tag, content)?;
        message = rest;
    }
    Ok(())
}

fn time_for(total: usize) -> Duration {
    GRACE + Duration::from_secs(total as u64 / LEAST_BYTES_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn part(problem_id: i64, offset: u64, total: u64, content: &'static [u8]) -> v1::ResultPart {
        let content = Bytes::from_static(content);
        v1::ResultPart { checkout_id: 1, problem_id, offset, total, content, of_result: false }
    }

    fn delivery(problem_id: i64, streamed: u64) -> v1::Delivery {
        let result = v1::ProblemResult { problem_id, outcome: Some(Outcome::Streamed(streamed)), more: None };
        let results = v1::CheckoutResults { checkout_id: 1, results: vec![result], ..Default::default() };
        v1::Delivery { delivery_id: 1, checkouts: vec![results] }
    }

    #[tokio::test]
    async fn pieces_become_the_solution_of_their_delivery() {
        let room = Room::default();
        let mut streamed = Streamed::new(room.clone());
        streamed.take(part(7, 0, 3000, b"dropped")).await.expect("a beginning");
        streamed.take(part(8, 0, 4, b"12")).await.expect("another solution drops the first");
        assert_eq!(room.0.available_permits(), ROOM_BYTES / UNIT_BYTES - 1);
        let receipt = streamed.take(part(8, 2, 4, b"34")).await.expect("the rest");
        assert_eq!(receipt, PartReceived { checkout_id: 1, problem_id: 8, received: 4 });
        let mut delivery = delivery(8, 4);
        streamed.fill(&mut delivery).expect("it is whole");
        let outcome = delivery.checkouts[0].results[0].outcome.clone();
        assert_eq!(outcome, Some(Outcome::Solution(Bytes::from_static(b"1234"))));
        assert_eq!(room.0.available_permits(), ROOM_BYTES / UNIT_BYTES, "the delivery has bounds of its own");
    }

    #[tokio::test]
    async fn wrong_pieces_are_refused() {
        for (name, parts) in [
            ("no beginning", vec![part(8, 2, 4, b"34")]),
            ("a gap", vec![part(8, 0, 4, b"1"), part(8, 2, 4, b"3")]),
            ("another problem's", vec![part(8, 0, 4, b"1"), part(9, 1, 4, b"2")]),
            ("too long", vec![part(8, 0, 1, b"12")]),
            ("empty", vec![part(8, 0, 0, b"")]),
            ("an empty one", vec![part(8, 0, 4, b"1"), part(8, 1, 4, b"")]),
            ("of another kind", vec![part(8, 0, 4, b"1"), v1::ResultPart { of_result: true, ..part(8, 1, 4, b"2") }]),
            ("too large", vec![part(8, 0, SOLUTION_BYTES_LIMIT as u64 + 1, b"1")]),
            ("absurd", vec![part(8, 0, u64::MAX, b"1")]),
            ("an absurd place", vec![part(8, 0, 4, b"1"), part(8, u64::MAX, 4, b"2")]),
        ] {
            let mut streamed = Streamed::new(Room::default());
            let mut outcome = Ok(());
            for part in parts {
                outcome = outcome.and(streamed.take(part).await.map(drop));
            }
            assert!(outcome.is_err(), "{name}");
        }
        let mut streamed = Streamed::new(Room::default());
        streamed.take(part(8, 0, 4, b"123")).await.expect("a beginning");
        assert!(streamed.fill(&mut delivery(8, 4)).is_err(), "it is not whole");
        assert!(Streamed::new(Room::default()).fill(&mut delivery(8, 0)).is_err(), "nothing came");
    }

    /// Streams a result in pieces of 1,000 bytes. Returns what the server makes of the delivery behind them.
    async fn streamed(content: Vec<u8>) -> Result<v1::ProblemResult, Status> {
        let mut streamed = Streamed::new(Room::default());
        let total = content.len() as u64;
        for (n, content) in content.chunks(1000).enumerate() {
            let content = Bytes::copy_from_slice(content);
            let offset = n as u64 * 1000;
            let part = v1::ResultPart { checkout_id: 1, problem_id: 8, offset, total, content, of_result: true };
            streamed.take(part).await?;
        }
        let mut delivery = delivery(8, 0);
        delivery.checkouts[0].results[0].outcome = Some(Outcome::StreamedResult(total));
        streamed.fill(&mut delivery)?;
        Ok(delivery.checkouts.remove(0).results.remove(0))
    }

    #[tokio::test]
    async fn a_result_comes_with_all_that_it_brings() {
        let problem =
            |n: usize| v1::SubmitProblem { key: n.to_string(), payload: vec![b'1'; 1000].into(), ..Default::default() };
        let more = v1::More { enqueue: (0..300).map(problem).collect(), info: Bytes::from_static(b"{}") };
        let solution = Some(Outcome::Solution(Bytes::from_static(b"1")));
        let solved = v1::ProblemResult { problem_id: 8, outcome: solution.clone(), more: Some(more) };
        assert_eq!(streamed(solved.encode_to_vec()).await.expect("it is whole"), solved);
        let failed = v1::ProblemResult { outcome: Some(Outcome::Failure("no".repeat(2000))), more: None, ..solved };
        assert_eq!(streamed(failed.encode_to_vec()).await.expect("it is whole"), failed);
        // A solution and the problems and info with it have one limit.
        let full = Some(Outcome::Solution(vec![b'1'; SOLUTION_BYTES_LIMIT].into()));
        let full = v1::ProblemResult { outcome: full, more: None, problem_id: 8 };
        assert_eq!(streamed(full.encode_to_vec()).await.expect("it is whole"), full);
        for (what, wrong) in [
            (
                "too large",
                v1::ProblemResult {
                    outcome: Some(Outcome::Solution(vec![b'1'; RESULT_BYTES_LIMIT].into())),
                    ..full.clone()
                },
            ),
            ("of another problem", v1::ProblemResult { problem_id: 9, outcome: solution, more: None }),
            ("without an outcome", v1::ProblemResult { problem_id: 8, outcome: None, more: None }),
            ("streamed twice", v1::ProblemResult { outcome: Some(Outcome::StreamedResult(4)), ..full.clone() }),
        ] {
            let refused = streamed(wrong.encode_to_vec()).await.expect_err(what);
            assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{what}");
        }
        for wrong in [&b"\xff\xff\xff"[..], b"\x22\x7f", b"\x0b", b"\x12\x02\x31"] {
            assert_eq!(streamed(wrong.to_vec()).await.expect_err("no result").code(), tonic::Code::InvalidArgument);
        }
    }

    #[tokio::test]
    async fn a_result_that_enqueues_too_many_problems_has_failed() {
        let solution = Some(Outcome::Solution(Bytes::from_static(b"1")));
        let enqueue =
            |problems| v1::More { enqueue: vec![v1::SubmitProblem::default(); problems], ..Default::default() };
        for (problems, fails) in [(ENQUEUE_LIMIT, false), (ENQUEUE_LIMIT + 1, true), (400_000, true)] {
            // Decoders join messages that come twice, and so does the count.
            let mut content =
                v1::ProblemResult { problem_id: 8, outcome: solution.clone(), more: Some(enqueue(problems - 1)) }
                    .encode_to_vec();
            v1::ProblemResult { more: Some(enqueue(1)), ..Default::default() }.encode(&mut content).expect("room");
            let came = streamed(content).await.expect("it is whole");
            assert_eq!(matches!(came.outcome, Some(Outcome::Failure(_))), fails, "{problems}");
            assert_eq!(came.more.map_or(0, |more| more.enqueue.len()), if fails { 0 } else { problems });
        }
    }

    #[tokio::test]
    async fn a_solution_that_trickles_is_given_up() {
        let mut streamed = Streamed::new(Room::default());
        streamed.take(part(8, 0, 4, b"1")).await.expect("a beginning");
        streamed.drop_overdue();
        streamed.take(part(8, 1, 4, b"2")).await.expect("it has time");
        let end_its_time = |streamed: &mut Streamed| {
            streamed.unfinished.as_mut().expect("begun").deadline = Instant::now() - Duration::from_secs(1);
            streamed.drop_overdue();
        };
        end_its_time(&mut streamed);
        assert_eq!(streamed.room.0.available_permits(), ROOM_BYTES / UNIT_BYTES, "others have its room");
        let late = streamed.take(part(8, 2, 4, b"3")).await.expect_err("late");
        assert_eq!(late.code(), tonic::Code::DeadlineExceeded);
        assert_eq!(streamed.fill(&mut delivery(8, 4)).expect_err("late").code(), tonic::Code::DeadlineExceeded);
        // An agent whose checkout was revoked says no more of it, and goes on with others.
        streamed.take(part(9, 0, 2, b"1")).await.expect("another solution");
        end_its_time(&mut streamed);
        let mut plain = delivery(10, 0);
        plain.checkouts[0].results[0].outcome = Some(Outcome::Failure("no".to_owned()));
        streamed.fill(&mut plain).expect("it has none in parts");
        streamed.take(part(10, 0, 1, b"1")).await.expect("the next solution");
        streamed.fill(&mut delivery(10, 1)).expect("it is whole");
        assert_eq!(time_for(1 << 20), Duration::from_secs(60 + 512));
    }
}
