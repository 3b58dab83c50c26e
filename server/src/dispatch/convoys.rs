//! Convoys read ahead of a lane's pointer: kept whole, taken whole.
//!
//! Pure. A convoy, all problems of a lane that share a batch order, is here whole or not at all.

use pcfarm_proto::ids::BatchOrder;
use pcfarm_sql::lanes::ComingProblem;
use std::collections::VecDeque;

/// Payload that one checkout may carry, unless a single convoy carries more.
const CHECKOUT_BYTES_LIMIT: usize = 16 << 20;

/// Problems read ahead, in order.
#[derive(Debug, Default)]
pub struct Ahead {
    problems: VecDeque<ComingProblem>,
    bytes: usize,
}

/// Consecutive convoys for one checkout.
#[derive(Debug)]
pub struct Taken {
    pub problems: Vec<ComingProblem>,
    pub bytes: usize,
    pub convoys: u32,
    /// What they count against limits by the hour.
    pub weight: u64,
    /// The first batch order behind them.
    pub to: BatchOrder,
    /// Whoever loses them blames the only, or the first, problem: so the workstation holds nothing else meanwhile, or an
    /// innocent one would pay for its neighbour.
    pub suspect: bool,
}

/// What one convoy takes.
struct Convoy {
    /// The place behind its last problem.
    end: usize,
    bytes: usize,
    weight: u64,
    largest_payload: u64,
    alone: bool,
}

impl Ahead {
    pub fn problems(&self) -> usize {
        self.problems.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The first batch order behind what is here.
    pub fn end(&self) -> Option<BatchOrder> {
        self.problems.back().map(|last| BatchOrder(last.batch_order.0 + 1))
    }

    /// Adds rows in order. `complete` says that they go to the lane's end; otherwise the last convoy may lack rows and is
    /// left out. True if anything was whole.
    pub fn extend(&mut self, mut rows: Vec<ComingProblem>, complete: bool) -> bool {
        if !complete && let Some(cut) = rows.last().map(|last| last.batch_order) {
            let whole = rows.partition_point(|problem| problem.batch_order < cut);
            rows.truncate(whole);
        }
        self.bytes += rows.iter().map(ComingProblem::bytes).sum::<usize>();
        let any = !rows.is_empty();
        self.problems.extend(rows);
        any
    }

    /// Puts back in front what was taken last.
    pub fn put_back(&mut self, problems: Vec<ComingProblem>) {
        self.bytes += problems.iter().map(ComingProblem::bytes).sum::<usize>();
        problems.into_iter().rev().for_each(|problem| self.problems.push_front(problem));
    }

    /// Lets go of what is before this order, which somebody else has handed out.
    pub fn skip_to(&mut self, order: BatchOrder) {
        let behind = self.problems.partition_point(|problem| problem.batch_order < order);
        self.bytes -= self.problems.drain(..behind).map(|problem| problem.bytes()).sum::<usize>();
    }

    /// Must the next convoy be the only one in its workstation's hands?
    pub fn next_is_suspect(&self) -> bool {
        let convoy = self.first_convoy();
        self.is_alone(convoy) && (convoy == 1 || self.problems[0].grouped)
    }

    /// Takes whole convoys off the front, up to `wanted` problems of `most_weight` in all, none with a payload beyond
    /// `largest`, and at least one convoy. One that must be alone is.
    pub fn take(&mut self, wanted: usize, most_weight: u64, largest: u64) -> Option<Taken> {
        let suspect = self.next_is_suspect();
        let (mut problems, mut bytes, mut weight, mut convoys, mut alone) = (0, 0, 0, 0, false);
        while let Some(convoy) = self.convoy_at(problems) {
            let fits = convoy.end <= wanted
                && bytes + convoy.bytes <= CHECKOUT_BYTES_LIMIT
                && weight + convoy.weight <= most_weight
                && convoy.largest_payload <= largest;
            if problems > 0 && (!fits || alone || convoy.alone) {
                break;
            }
            alone = convoy.alone;
            bytes += convoy.bytes;
            weight += convoy.weight;
            convoys += 1;
            problems = convoy.end;
        }
        let to = BatchOrder(self.problems.get(problems.checked_sub(1)?)?.batch_order.0 + 1);
        self.bytes -= bytes;
        Some(Taken { problems: self.problems.drain(..problems).collect(), bytes, convoys, weight, to, suspect })
    }

    /// The convoy that begins at this place.
    fn convoy_at(&self, place: usize) -> Option<Convoy> {
        let order = self.problems.get(place)?.batch_order;
        let mut convoy = Convoy { end: place, bytes: 0, weight: 0, largest_payload: 0, alone: false };
        for problem in self.problems.range(place..).take_while(|problem| problem.batch_order == order) {
            convoy.end += 1;
            convoy.bytes += problem.bytes();
            convoy.weight += u64::from(problem.weight);
            convoy.largest_payload = convoy.largest_payload.max(problem.payload.0.len() as u64);
            convoy.alone |= problem.alone;
        }
        Some(convoy)
    }

    /// How many problems the first convoy has; 0 if none is here.
    pub fn first_convoy(&self) -> usize {
        let Some(first) = self.problems.front() else { return 0 };
        self.problems.iter().take_while(|problem| problem.batch_order == first.batch_order).count()
    }

    /// Of so many problems at the front.
    pub fn weight(&self, problems: usize) -> u64 {
        self.problems.range(..problems).map(|problem| u64::from(problem.weight)).sum()
    }

    /// Bytes, of so many problems at the front.
    pub fn largest_payload(&self, problems: usize) -> u64 {
        self.problems.range(..problems).map(|problem| problem.payload.0.len() as u64).max().unwrap_or(0)
    }

    fn is_alone(&self, convoy: usize) -> bool {
        self.problems.range(..convoy).any(|problem| problem.alone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcfarm_proto::ids::{LaneId, ProblemId};
    use pcfarm_sql::json::RawJson;

    fn row(id: i64, order: i64, alone: bool) -> ComingProblem {
        ComingProblem {
            problem_id: ProblemId(id),
            batch_order: BatchOrder(order),
            key: id.to_string().into(),
            payload: RawJson::default(),
            weight: 2,
            attempts: 0,
            alone,
            grouped: false,
            home_lane: LaneId(1),
            home_order: BatchOrder(order),
        }
    }

    fn ahead(orders: &[i64], complete: bool) -> Ahead {
        let mut ahead = Ahead::default();
        ahead.extend(orders.iter().enumerate().map(|(n, &order)| row(n as i64, order, false)).collect(), complete);
        ahead
    }

    fn take(ahead: &mut Ahead, wanted: usize) -> Vec<i64> {
        ahead
            .take(wanted, u64::MAX, u64::MAX)
            .map_or_else(Vec::new, |taken| taken.problems.iter().map(|p| p.batch_order.0).collect())
    }

    #[test]
    fn a_convoy_that_may_lack_rows_is_left_out() {
        assert_eq!(take(&mut ahead(&[0, 0, 5, 5, 9], false), 100), [0, 0, 5, 5]);
        assert_eq!(take(&mut ahead(&[0, 0, 5, 5, 9], true), 100), [0, 0, 5, 5, 9]);
        assert_eq!(ahead(&[0, 0, 5, 5, 9], false).end(), Some(BatchOrder(6)));
        assert!(!Ahead::default().extend(vec![row(1, 0, false), row(2, 0, false)], false), "nothing is whole");
    }

    #[test]
    fn convoys_are_taken_whole() {
        let mut ahead = ahead(&[0, 0, 1, 1, 1, 2], true);
        assert_eq!(take(&mut ahead, 4), [0, 0]);
        assert_eq!(take(&mut ahead, 1), [1, 1, 1], "at least one, however large");
        assert!(ahead.bytes() > 0);
        assert_eq!(take(&mut ahead, 100), [2]);
        assert!(take(&mut ahead, 100).is_empty());
        assert_eq!(ahead.bytes(), 0);
    }

    #[test]
    fn what_somebody_else_has_handed_out_is_let_go() {
        let mut ahead = ahead(&[0, 0, 1, 1, 1, 2, 3], true);
        let taken = ahead.take(5, u64::MAX, u64::MAX).expect("two convoys");
        ahead.put_back(taken.problems);
        ahead.skip_to(BatchOrder(1));
        assert_eq!(take(&mut ahead, 3), [1, 1, 1]);
        ahead.skip_to(BatchOrder(3));
        assert_eq!(take(&mut ahead, 100), [3]);
        assert_eq!(ahead.bytes(), 0);
    }

    #[test]
    fn weights_are_kept_to() {
        let mut ahead = ahead(&[0, 0, 1, 1, 1, 2], true);
        let mut take = |most_weight| ahead.take(100, most_weight, u64::MAX).map(|taken| (taken.convoys, taken.weight));
        assert_eq!(take(9), Some((1, 4)));
        assert_eq!(take(8), Some((2, 8)));
        assert_eq!(take(8), None);
    }

    #[test]
    fn what_must_be_alone_is_alone() {
        let mut ahead = Ahead::default();
        ahead.extend(vec![row(1, 0, false), row(2, 1, true), row(3, 2, false), row(4, 3, false)], true);
        assert!(!ahead.next_is_suspect());
        assert_eq!(take(&mut ahead, 100), [0]);
        assert!(ahead.next_is_suspect());
        assert_eq!(take(&mut ahead, 100), [1]);
        assert_eq!(take(&mut ahead, 100), [2, 3]);
    }
}
