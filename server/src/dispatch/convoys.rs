//! Convoys read ahead of a lane's pointer: cutting rows at convoy boundaries, and taking whole convoys.
//!
//! Pure. A convoy is here whole or not at all.

use pcfarm_proto::ids::BatchOrder;
use pcfarm_sql::lanes::ComingProblem;
use std::collections::VecDeque;

/// All problems of a lane that share a batch order.
#[derive(Clone, Debug)]
pub struct Convoy {
    pub order: BatchOrder,
    pub problems: Vec<ComingProblem>,
}

impl Convoy {
    fn alone(&self) -> bool {
        self.problems.iter().any(|problem| problem.alone)
    }

    /// Whoever loses it blames its only, or its first, problem: so the workstation holds nothing else meanwhile, or an
    /// innocent one would pay for its neighbour.
    pub fn is_suspect(&self) -> bool {
        self.alone() && (self.problems.len() == 1 || self.problems[0].grouped)
    }

    fn bytes(&self) -> usize {
        self.problems.iter().map(|problem| problem.payload.0.len() + problem.key.len()).sum()
    }
}

/// Payload that one checkout may carry, unless a single convoy carries more.
const CHECKOUT_BYTES_LIMIT: usize = 16 << 20;

/// Rows in order, cut into convoys. `complete` says that the rows went to the lane's end; otherwise the last convoy
/// may lack rows and is left out.
pub fn cut(rows: Vec<ComingProblem>, complete: bool) -> VecDeque<Convoy> {
    let mut convoys: VecDeque<Convoy> = VecDeque::new();
    for problem in rows {
        match convoys.back_mut() {
            Some(convoy) if convoy.order == problem.batch_order => convoy.problems.push(problem),
            _ => convoys.push_back(Convoy { order: problem.batch_order, problems: vec![problem] }),
        }
    }
    if !complete {
        convoys.pop_back();
    }
    convoys
}

/// Takes whole convoys off the front, up to `wanted` problems and at least one convoy. One that must be alone is.
pub fn take(ahead: &mut VecDeque<Convoy>, wanted: usize) -> Vec<Convoy> {
    let mut taken: Vec<Convoy> = Vec::new();
    let (mut problems, mut bytes) = (0, 0);
    while let Some(next) = ahead.front() {
        let fits = problems + next.problems.len() <= wanted && bytes + next.bytes() <= CHECKOUT_BYTES_LIMIT;
        if !taken.is_empty() && (!fits || next.alone() || taken[0].alone()) {
            break;
        }
        problems += next.problems.len();
        bytes += next.bytes();
        taken.extend(ahead.pop_front());
    }
    taken
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

    fn rows(orders: &[i64]) -> Vec<ComingProblem> {
        orders.iter().enumerate().map(|(n, &order)| row(n as i64, order, false)).collect()
    }

    fn shape(convoys: &[Convoy]) -> Vec<(i64, usize)> {
        convoys.iter().map(|c| (c.order.0, c.problems.len())).collect()
    }

    #[test]
    fn a_convoy_that_may_lack_rows_is_left_out() {
        let cut_short: Vec<Convoy> = cut(rows(&[0, 0, 5, 5, 9]), false).into();
        assert_eq!(shape(&cut_short), [(0, 2), (5, 2)]);
        let whole: Vec<Convoy> = cut(rows(&[0, 0, 5, 5, 9]), true).into();
        assert_eq!(shape(&whole), [(0, 2), (5, 2), (9, 1)]);
    }

    #[test]
    fn convoys_are_taken_whole() {
        let mut ahead = cut(rows(&[0, 0, 1, 1, 1, 2]), true);
        assert_eq!(shape(&take(&mut ahead, 4)), [(0, 2)]);
        assert_eq!(shape(&take(&mut ahead, 1)), [(1, 3)], "at least one, however large");
        assert_eq!(shape(&take(&mut ahead, 100)), [(2, 1)]);
        assert!(take(&mut ahead, 100).is_empty());
    }

    #[test]
    fn what_must_be_alone_is_alone() {
        let mut ahead = cut(vec![row(1, 0, false), row(2, 1, true), row(3, 2, false), row(4, 3, false)], true);
        assert_eq!(shape(&take(&mut ahead, 100)), [(0, 1)]);
        assert_eq!(shape(&take(&mut ahead, 100)), [(1, 1)]);
        assert_eq!(shape(&take(&mut ahead, 100)), [(2, 1), (3, 1)]);
    }
}
