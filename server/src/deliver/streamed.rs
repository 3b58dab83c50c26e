//! Solutions that come in pieces, until the delivery that brings their results.
//!
//! A session has at most one of them at a time, and reserves room for the whole of it before it keeps a byte: sessions never wait
//! for each other with half a solution in hand.

use pcfarm_proto::SOLUTION_BYTES_LIMIT;
use pcfarm_proto::v1::problem_result::Outcome;
use pcfarm_proto::v1::{self, PartReceived};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

/// Bytes of unfinished solutions of all sessions.
const ROOM_BYTES: usize = 256 << 20;
const UNIT_BYTES: usize = 1 << 10;

/// A solution may take as long as at this rate, a quarter of 64 kbit/s, and [`GRACE`] longer.
const LEAST_BYTES_PER_SECOND: u64 = 2 << 10;
const GRACE: Duration = Duration::from_secs(60);

/// Longest wait for room. Solutions that do not progress free theirs at their deadline.
const ROOM_WAIT: Duration = Duration::from_secs(60);

/// Room for unfinished solutions, shared by all sessions of a server.
#[derive(Clone, Debug)]
pub struct Room(Arc<Semaphore>);

impl Default for Room {
    fn default() -> Room {
        Room(Arc::new(Semaphore::new(ROOM_BYTES / UNIT_BYTES)))
    }
}

impl Room {
    async fn reserve(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Status> {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).expect("a solution has at most a megabyte");
        match tokio::time::timeout(ROOM_WAIT, self.0.clone().acquire_many_owned(units)).await {
            Ok(permit) => permit.map_err(|_| Status::unavailable("this server is stopping")),
            Err(_) => Err(Status::unavailable("this server has no room for another large solution: connect again")),
        }
    }
}

/// The solution of one session that is under way.
pub struct Streamed {
    room: Room,
    unfinished: Option<Solution>,
    /// Checkout and problem of the last solution that came too slowly.
    overdue: Option<(i64, i64)>,
}

struct Solution {
    checkout_id: i64,
    problem_id: i64,
    total: usize,
    content: Vec<u8>,
    deadline: Instant,
    _room: OwnedSemaphorePermit,
}

impl Streamed {
    pub fn new(room: Room) -> Streamed {
        Streamed { room, unfinished: None, overdue: None }
    }

    /// Drops the unfinished solution if it is overdue. Called for every message of the session, so that an agent that sends only
    /// heartbeats does not hold room that others wait for. The agent may have given it up: its checkout may be revoked. Only
    /// further messages about it are wrong.
    pub fn drop_overdue(&mut self) {
        if let Some(solution) = self.unfinished.take_if(|solution| Instant::now() > solution.deadline) {
            self.overdue = Some((solution.checkout_id, solution.problem_id));
        }
    }

    fn missing(&self, of: (i64, i64), what: &str) -> Status {
        match self.overdue {
            Some(overdue) if overdue == of => Status::deadline_exceeded("a solution came too slowly"),
            _ => Status::invalid_argument(what),
        }
    }

    /// Takes a piece and returns its receipt. The storing of the delivery decides whether the checkout is live.
    pub async fn take(&mut self, part: v1::ResultPart) -> Result<PartReceived, Status> {
        let v1::ResultPart { checkout_id, problem_id, offset, total, content } = part;
        if offset == 0 {
            (self.unfinished, self.overdue) = (None, None);
            let total = usize::try_from(total).ok().filter(|total| (1..=SOLUTION_BYTES_LIMIT).contains(total));
            let total = total.ok_or_else(|| Status::invalid_argument("a solution of no byte, or of too many"))?;
            let room = self.room.reserve(total).await?;
            self.unfinished = Some(Solution {
                checkout_id,
                problem_id,
                total,
                // The room that is reserved: a vector that grows by itself takes up to twice as much.
                content: Vec::with_capacity(total),
                _room: room,
                deadline: Instant::now() + time_for(total),
            });
        }
        let of_it = |solution: &&mut Solution| (solution.checkout_id, solution.problem_id) == (checkout_id, problem_id);
        let Some(solution) = self.unfinished.as_mut().filter(of_it) else {
            return Err(self.missing((checkout_id, problem_id), "a part of a solution that has not begun"));
        };
        let is_next = usize::try_from(offset).is_ok_and(|offset| offset == solution.content.len());
        if !is_next || content.len() > solution.total - solution.content.len() {
            return Err(Status::invalid_argument("a part of a solution that is out of order, or too long"));
        }
        solution.content.extend_from_slice(&content);
        Ok(PartReceived { checkout_id, problem_id, received: solution.content.len() as u64 })
    }

    /// Puts a solution that has come whole into the delivery that brings its result.
    pub fn fill(&mut self, delivery: &mut v1::Delivery) -> Result<(), Status> {
        for results in &mut delivery.checkouts {
            for result in &mut results.results {
                let Some(Outcome::Streamed(total)) = result.outcome else { continue };
                let of_it = |solution: &Solution| {
                    (solution.checkout_id, solution.problem_id) == (results.checkout_id, result.problem_id)
                        && solution.content.len() == solution.total
                        && solution.total as u64 == total
                };
                let solution = self.unfinished.take().filter(of_it);
                let of = (results.checkout_id, result.problem_id);
                let solution = solution.ok_or_else(|| self.missing(of, "a solution whose parts have not come"))?;
                result.outcome = Some(Outcome::Solution(solution.content.into()));
            }
        }
        Ok(())
    }
}

fn time_for(total: usize) -> Duration {
    GRACE + Duration::from_secs(total as u64 / LEAST_BYTES_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn part(problem_id: i64, offset: u64, total: u64, content: &'static [u8]) -> v1::ResultPart {
        v1::ResultPart { checkout_id: 1, problem_id, offset, total, content: Bytes::from_static(content) }
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
