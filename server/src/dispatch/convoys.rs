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
    /// The first batch order behind them.
    pub to: BatchOrder,
    /// Whoever loses them blames the only, or the first, problem: so the workstation holds nothing else meanwhile, or an
    /// innocent one would pay for its neighbour.
    pub suspect: bool,
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

    /// Must the next convoy be the only one in its workstation's hands?
    pub fn next_is_suspect(&self) -> bool {
        let convoy = self.first_convoy();
        self.is_alone(convoy) && (convoy == 1 || self.problems[0].grouped)
    }

    /// Takes whole convoys off the front, up to `wanted` problems and at least one convoy. One that must be alone is.
    pub fn take(&mut self, wanted: usize) -> Option<Taken> {
        let suspect = self.next_is_suspect();
        let mut taken: Vec<ComingProblem> = Vec::with_capacity(wanted.min(self.problems.len()));
        let (mut bytes, mut alone) = (0, false);
        loop {
            let convoy = self.first_convoy();
            if convoy == 0 {
                break;
            }
            let convoy_bytes: usize = self.problems.range(..convoy).map(ComingProblem::bytes).sum();
            let fits = taken.len() + convoy <= wanted && bytes + convoy_bytes <= CHECKOUT_BYTES_LIMIT;
            if !taken.is_empty() && (!fits || alone || self.is_alone(convoy)) {
                break;
            }
            alone = self.is_alone(convoy);
            bytes += convoy_bytes;
            taken.extend(self.problems.drain(..convoy));
        }
        self.bytes -= bytes;
        let to = BatchOrder(taken.last()?.batch_order.0 + 1);
        Some(Taken { problems: taken, to, suspect })
    }

    /// How many problems the first convoy has.
    fn first_convoy(&self) -> usize {
        let Some(first) = self.problems.front() else { return 0 };
        self.problems.iter().take_while(|problem| problem.batch_order == first.batch_order).count()
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
            key: id.to_string(),
            payload: RawJson::default(),
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
        ahead.take(wanted).map_or_else(Vec::new, |taken| taken.problems.iter().map(|p| p.batch_order.0).collect())
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
