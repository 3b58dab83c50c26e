//! Cutting deliveries to the bytes that a link carries in a moment: first between checkouts, returned problems and results, then
//! within a result.

use std::time::Duration;

use bytes::Bytes;
use pcfarm_proto::v1;
use pcfarm_proto::v1::problem_result::Outcome;
use prost::Message;

use super::super::held::{PART_FRAME_BYTES, fitting, frame_of, id_bytes};

/// First piece of a delivery.
#[derive(Debug)]
pub struct Split {
    pub first: v1::Delivery,
    /// Weight that the cut adds to both pieces together: both name the checkout that was cut.
    pub added: usize,
}

/// Takes off as much as fits into `piece` bytes, at least one result or returned problem. None: the delivery is no larger, or has one
/// result alone.
pub fn split(delivery: &mut v1::Delivery, piece: usize) -> Option<Split> {
    let (mut room, mut whole) = (piece, 0);
    for part in &delivery.checkouts {
        let frame = frame_of(part);
        let (count, bytes) = fitting(&part.results, room.saturating_sub(frame), false);
        if frame + bytes > room || count < part.results.len() {
            break;
        }
        room -= frame + bytes;
        whole += 1;
    }
    if whole == delivery.checkouts.len() {
        return None;
    }
    let mut first = v1::Delivery { delivery_id: 0, checkouts: delivery.checkouts.drain(..whole).collect() };
    let next = &mut delivery.checkouts[0];
    let before = frame_of(next);
    let mut added = 0;
    match cut_off(next, room, whole == 0) {
        Some(cut) => {
            added = (frame_of(&cut) + frame_of(next)).saturating_sub(before);
            first.checkouts.push(cut);
        }
        None if whole > 0 => {}
        // A part that cannot be cut goes alone.
        None if delivery.checkouts.len() > 1 => first.checkouts.push(delivery.checkouts.remove(0)),
        None => return None,
    }
    Some(Split { first, added })
}

/// Cuts off the first returned problems, for which an idle workstation waits, and then the first results. The mark of the end, and
/// all that belongs to it, stays with the last results. None: nothing can be cut off.
fn cut_off(part: &mut v1::CheckoutResults, room: usize, at_least_one: bool) -> Option<v1::CheckoutResults> {
    let mut room = room.saturating_sub(PART_FRAME_BYTES + part.give_back_reason.len());
    let mut ids = 0;
    for id in &part.given_back {
        let bytes = id_bytes(*id);
        if bytes > room && !(at_least_one && ids == 0) {
            break;
        }
        room = room.saturating_sub(bytes);
        ids += 1;
    }
    let count = if ids < part.given_back.len() {
        0
    } else {
        // The last result stays with the end.
        let (count, _) = fitting(&part.results, room, at_least_one && ids == 0);
        count.min(part.results.len().saturating_sub(1))
    };
    if ids == 0 && count == 0 {
        return None;
    }
    let busy = part.busy.and_then(|busy| Duration::try_from(busy).ok()).unwrap_or_default();
    let of_first = busy.mul_f64(count as f64 / part.results.len().max(1) as f64);
    part.busy = prost_types::Duration::try_from(busy.saturating_sub(of_first)).ok();
    let given_back: Vec<i64> = part.given_back.drain(..ids).collect();
    let give_back_reason = match (given_back.is_empty(), part.finished || !part.given_back.is_empty()) {
        (true, _) => String::new(),
        // The rest has the reason, too.
        (false, true) => part.give_back_reason.clone(),
        (false, false) => std::mem::take(&mut part.give_back_reason),
    };
    Some(v1::CheckoutResults {
        checkout_id: part.checkout_id,
        token: part.token,
        results: part.results.drain(..count).collect(),
        busy: prost_types::Duration::try_from(of_first).ok(),
        given_back,
        give_back_reason,
        ..v1::CheckoutResults::default()
    })
}

/// A result that goes ahead of its delivery in parts.
#[derive(Debug, PartialEq, Eq)]
pub struct Streaming {
    checkout_id: i64,
    problem_id: i64,
    /// The solution; or the encoded result, if there is more to it.
    content: Bytes,
    of_result: bool,
    sent: usize,
}

impl Streaming {
    /// None: the delivery has more than one result, or none.
    pub fn of(delivery: &v1::Delivery) -> Option<Streaming> {
        let [part] = delivery.checkouts.as_slice() else { return None };
        let [result] = part.results.as_slice() else { return None };
        let (content, of_result) = match (&result.outcome, &result.more) {
            (Some(Outcome::Solution(solution)), None) => (solution.clone(), false),
            _ => (result.encode_to_vec().into(), true),
        };
        let (checkout_id, problem_id) = (part.checkout_id, result.problem_id);
        // A part is never empty.
        (!content.is_empty()).then_some(Streaming { checkout_id, problem_id, content, of_result, sent: 0 })
    }

    /// The next part; none: all parts are sent.
    pub fn next(&mut self, piece: usize) -> Option<v1::ResultPart> {
        let end = self.content.len().min(self.sent + piece.max(1));
        let content = self.content.slice(self.sent..end);
        let offset = std::mem::replace(&mut self.sent, end) as u64;
        (!content.is_empty()).then_some(v1::ResultPart {
            checkout_id: self.checkout_id,
            problem_id: self.problem_id,
            offset,
            total: self.content.len() as u64,
            content,
            of_result: self.of_result,
        })
    }

    /// The delivery behind the parts of its result.
    pub fn behind(&self, delivery: &v1::Delivery) -> v1::Delivery {
        let total = self.content.len() as u64;
        let outcome = if self.of_result { Outcome::StreamedResult(total) } else { Outcome::Streamed(total) };
        let result = v1::ProblemResult { problem_id: self.problem_id, outcome: Some(outcome), more: None };
        let part = |part: &v1::CheckoutResults| v1::CheckoutResults {
            results: vec![result.clone()],
            give_back_reason: part.give_back_reason.clone(),
            given_back: part.given_back.clone(),
            ..*part
        };
        v1::Delivery { delivery_id: delivery.delivery_id, checkouts: delivery.checkouts.iter().map(part).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::held::part_bytes;
    use super::*;

    fn results(checkout_id: i64, sizes: &[usize], finished: bool) -> v1::CheckoutResults {
        let result = |(n, size): (usize, &usize)| v1::ProblemResult {
            problem_id: n as i64,
            outcome: Some(Outcome::Solution(vec![b'1'; *size].into())),
            more: None,
        };
        v1::CheckoutResults {
            checkout_id,
            results: sizes.iter().enumerate().map(result).collect(),
            finished,
            busy: prost_types::Duration::try_from(Duration::from_secs(sizes.len() as u64)).ok(),
            ..Default::default()
        }
    }

    /// Sizes of results by checkout, with a mark where one is finished.
    fn shape(delivery: &v1::Delivery) -> Vec<(i64, Vec<usize>, bool)> {
        let size = |result: &v1::ProblemResult| match &result.outcome {
            Some(Outcome::Solution(solution)) => solution.len(),
            _ => 0,
        };
        let part =
            |part: &v1::CheckoutResults| (part.checkout_id, part.results.iter().map(size).collect(), part.finished);
        delivery.checkouts.iter().map(part).collect()
    }

    #[test]
    fn deliveries_are_cut_between_results() {
        let whole = |checkouts| v1::Delivery { delivery_id: 1, checkouts };
        let split = split_weighed;
        let mut delivery = whole(vec![results(1, &[100, 100], true), results(2, &[100, 5000, 100], true)]);
        let first = split(&mut delivery, 460).expect("it is larger");
        assert_eq!(shape(&first), [(1, vec![100, 100], true), (2, vec![100], false)]);
        assert_eq!(first.checkouts[1].busy.map(|busy| busy.seconds), Some(1));
        assert_eq!(shape(&delivery), [(2, vec![5000, 100], true)]);
        let second = split(&mut delivery, 400).expect("it is larger");
        assert_eq!(shape(&second), [(2, vec![5000], false)], "one at least");
        assert_eq!(shape(&delivery), [(2, vec![100], true)]);
        assert!(split(&mut delivery, 400).is_none());
        let mut large = whole(vec![results(1, &[5000], true)]);
        assert!(split(&mut large, 400).is_none(), "a result is not cut");
        let mut empty = whole(vec![results(1, &[], true)]);
        assert!(split(&mut empty, 400).is_none());
    }

    #[test]
    fn returned_problems_go_with_the_first_piece() {
        for (finished, reason_of_last) in [(false, ""), (true, "idle")] {
            let part = v1::CheckoutResults {
                given_back: vec![7, 8],
                give_back_reason: "idle".to_owned(),
                ..results(1, &[100, 100], finished)
            };
            let mut rest = v1::Delivery { delivery_id: 1, checkouts: vec![part] };
            let first = split_weighed(&mut rest, 200).expect("it is larger").checkouts.remove(0);
            assert_eq!(
                (first.given_back, first.give_back_reason.as_str(), first.finished),
                (vec![7, 8], "idle", false)
            );
            let last = rest.checkouts.remove(0);
            assert_eq!((last.given_back, last.give_back_reason.as_str()), (vec![], reason_of_last));
            assert_eq!(last.finished, finished);
        }
    }

    /// Splits, and checks that weights add up.
    fn split_weighed(delivery: &mut v1::Delivery, piece: usize) -> Option<v1::Delivery> {
        let weight = |delivery: &v1::Delivery| delivery.checkouts.iter().map(part_bytes).sum::<usize>();
        let before = weight(delivery);
        let Split { first, added } = split(delivery, piece)?;
        assert_eq!(weight(&first) + weight(delivery), before + added);
        Some(first)
    }

    #[test]
    fn everything_that_a_delivery_carries_is_cut() {
        const PIECE: usize = 2048;
        let large = |part: v1::CheckoutResults| v1::CheckoutResults { give_back_reason: "idle".repeat(10), ..part };
        let returns =
            |ids: std::ops::Range<i64>| v1::CheckoutResults { given_back: ids.collect(), ..results(1, &[], false) };
        let fails = |n| {
            let outcome = Some(Outcome::Failure("no".repeat(400)));
            v1::ProblemResult { problem_id: n, outcome, more: None }
        };
        let ends: Vec<_> = (0..200)
            .map(|id| v1::CheckoutResults { worked: Some(v1::Worked::default()), ..large(results(id, &[], true)) })
            .collect();
        for (what, checkouts) in [
            ("returned problems", vec![large(returns(1 << 40..(1 << 40) + 9_000))]),
            (
                "returned problems and results",
                vec![large(v1::CheckoutResults {
                    finished: true,
                    results: results(1, &[900; 20], true).results,
                    ..returns(0..3_000)
                })],
            ),
            ("checkouts that end", ends),
            ("failures", vec![v1::CheckoutResults { results: (0..30).map(fails).collect(), ..results(1, &[], true) }]),
        ] {
            let (ids, number) = (
                |of: &[v1::CheckoutResults]| of.iter().map(|part| part.given_back.len()).sum::<usize>(),
                |of: &[v1::CheckoutResults]| of.iter().map(|part| part.results.len()).sum::<usize>(),
            );
            let ended = |of: &[v1::CheckoutResults]| of.iter().filter(|part| part.finished).count();
            let all = (ids(&checkouts), number(&checkouts), ended(&checkouts));
            let mut delivery = v1::Delivery { delivery_id: 1, checkouts };
            let mut came = Vec::new();
            while let Some(first) = split_weighed(&mut delivery, PIECE) {
                assert!(first.encoded_len() <= PIECE, "{what}: {}", first.encoded_len());
                came.extend(first.checkouts);
            }
            assert!(delivery.encoded_len() <= PIECE, "{what}: {}", delivery.encoded_len());
            came.extend(delivery.checkouts);
            assert_eq!((ids(&came), number(&came), ended(&came)), all, "{what}");
            let says_why = |part: &v1::CheckoutResults| part.given_back.is_empty() || !part.give_back_reason.is_empty();
            assert!(came.iter().all(says_why), "{what}");
        }
    }

    #[test]
    fn a_large_result_goes_in_parts() {
        let enqueue = vec![v1::SubmitProblem { key: "k".repeat(300), ..Default::default() }; 30];
        let more = Some(v1::More { enqueue, info: Bytes::from_static(b"{}") });
        let solution = |bytes| Some(Outcome::Solution(vec![b'1'; bytes].into()));
        for (outcome, more, of_result) in [
            (solution(9000), None, false),
            (solution(9000), more.clone(), true),
            (solution(2), more, true),
            (Some(Outcome::Failure("no".repeat(4000))), None, true),
        ] {
            let whole = v1::ProblemResult { problem_id: 7, outcome, more };
            let part = v1::CheckoutResults { results: vec![whole.clone()], ..results(1, &[], true) };
            let delivery = v1::Delivery { delivery_id: 1, checkouts: vec![part] };
            let mut streaming = Streaming::of(&delivery).expect("one result");
            let mut came = Vec::new();
            while let Some(part) = streaming.next(400) {
                assert_eq!((part.offset, part.of_result), (came.len() as u64, of_result));
                assert!(part.content.len() <= 400);
                came.extend_from_slice(&part.content);
                assert!(part.total >= came.len() as u64);
            }
            let behind = streaming.behind(&delivery);
            assert!(behind.encoded_len() < 100 && behind.checkouts[0].finished);
            let total = came.len() as u64;
            let (outcome, whole) = match &behind.checkouts[0].results[0].outcome {
                Some(outcome @ Outcome::StreamedResult(_)) => {
                    assert_eq!(v1::ProblemResult::decode(&came[..]).expect("encoded"), whole);
                    (outcome.clone(), Outcome::StreamedResult(total))
                }
                outcome => (outcome.clone().expect("an outcome"), Outcome::Streamed(total)),
            };
            assert_eq!(outcome, whole);
        }
        let two = v1::Delivery { delivery_id: 1, checkouts: vec![results(1, &[9000, 1], true)] };
        assert_eq!(Streaming::of(&two), None);
    }
}
