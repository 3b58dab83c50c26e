//! Cutting deliveries to the bytes that a link carries in a moment: first between results, then within a solution.

use std::time::Duration;

use pcfarm_proto::v1;
use pcfarm_proto::v1::problem_result::Outcome;

use super::super::held::fitting;
use super::only_solution;

/// Takes off the results that fit into `piece` bytes, at least one. None: the delivery is no larger.
pub fn split(delivery: &mut v1::Delivery, piece: usize) -> Option<v1::Delivery> {
    let mut first = v1::Delivery::default();
    let mut room = piece;
    let mut whole = 0;
    for part in &delivery.checkouts {
        let (count, bytes) = fitting(&part.results, room, whole == 0);
        if count < part.results.len() {
            break;
        }
        room = room.saturating_sub(bytes);
        whole += 1;
    }
    if whole == delivery.checkouts.len() {
        return None;
    }
    first.checkouts.extend(delivery.checkouts.drain(..whole));
    let cut = &mut delivery.checkouts[0];
    let (count, _) = fitting(&cut.results, room, whole == 0);
    if count > 0 {
        first.checkouts.push(cut_off(cut, count));
    }
    Some(first)
}

/// Cuts off the first results, with the returned problems: an idle workstation waits for these. The mark of the end, and all that
/// belongs to it, stays with the last results.
fn cut_off(part: &mut v1::CheckoutResults, count: usize) -> v1::CheckoutResults {
    let busy = part.busy.and_then(|busy| Duration::try_from(busy).ok()).unwrap_or_default();
    let of_first = busy.mul_f64(count as f64 / part.results.len() as f64);
    part.busy = prost_types::Duration::try_from(busy.saturating_sub(of_first)).ok();
    let given_back = std::mem::take(&mut part.given_back);
    let give_back_reason = match (given_back.is_empty(), part.finished) {
        (true, _) => String::new(),
        // The end has the reason, too.
        (false, true) => part.give_back_reason.clone(),
        (false, false) => std::mem::take(&mut part.give_back_reason),
    };
    v1::CheckoutResults {
        checkout_id: part.checkout_id,
        token: part.token,
        results: part.results.drain(..count).collect(),
        busy: prost_types::Duration::try_from(of_first).ok(),
        given_back,
        give_back_reason,
        ..v1::CheckoutResults::default()
    }
}

/// The next part of a delivery's only solution, if it is larger than a piece and not sent whole.
pub fn part(delivery: &v1::Delivery, streamed: usize, piece: usize) -> Option<v1::ResultPart> {
    let (checkout_id, result, solution) = only_solution(delivery)?;
    // A solution that has begun in parts goes on in parts, even on a link that has become faster.
    if streamed >= solution.len() || (streamed == 0 && solution.len() <= piece) {
        return None;
    }
    let end = solution.len().min(streamed + piece.max(1));
    Some(v1::ResultPart {
        checkout_id,
        problem_id: result.problem_id,
        offset: streamed as u64,
        total: solution.len() as u64,
        content: solution.slice(streamed..end),
    })
}

/// The delivery behind the parts of its solution.
pub fn without_solution(delivery: &mut v1::Delivery) {
    let results = delivery.checkouts.iter_mut().flat_map(|part| &mut part.results);
    for result in results {
        if let Some(Outcome::Solution(solution)) = &result.outcome {
            result.outcome = Some(Outcome::Streamed(solution.len() as u64));
        }
    }
}

#[cfg(test)]
mod tests {
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
        let mut delivery = whole(vec![results(1, &[100, 100], true), results(2, &[100, 5000, 100], true)]);
        let first = split(&mut delivery, 400).expect("it is larger");
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
            let first = split(&mut rest, 200).expect("it is larger").checkouts.remove(0);
            assert_eq!(
                (first.given_back, first.give_back_reason.as_str(), first.finished),
                (vec![7, 8], "idle", false)
            );
            let last = rest.checkouts.remove(0);
            assert_eq!((last.given_back, last.give_back_reason.as_str()), (vec![], reason_of_last));
            assert_eq!(last.finished, finished);
        }
    }

    #[test]
    fn a_large_solution_goes_in_parts() {
        let mut delivery = v1::Delivery { delivery_id: 1, checkouts: vec![results(1, &[1000], true)] };
        assert!(part(&delivery, 0, 1000).is_none());
        let (mut streamed, mut ends) = (0, Vec::new());
        while let Some(part) = part(&delivery, streamed, 400) {
            assert_eq!((part.offset, part.total), (streamed as u64, 1000));
            streamed += part.content.len();
            ends.push(streamed);
        }
        assert_eq!(ends, [400, 800, 1000]);
        assert!(part(&delivery, 400, 4000).is_some(), "a solution goes on in parts");
        without_solution(&mut delivery);
        assert_eq!(delivery.checkouts[0].results[0].outcome, Some(Outcome::Streamed(1000)));
    }
}
