//! Which problems a checkout holds, in little memory: ten thousand workstations may hold ten thousand each.

use pcfarm_proto::ids::{BatchOrder, LaneId, ProblemId};
use pcfarm_sql::checkout::Home;
use pcfarm_sql::lanes::ComingProblem;

/// The problems of a checkout.
#[derive(Debug)]
pub enum Members {
    /// Numbered without a gap, never handed out before: as loads make them.
    Dense { lane: LaneId, first: ProblemId, count: usize, convoys: Vec<Convoys>, keys: Vec<Box<str>> },
    /// Any others, in ascending id.
    Listed { problems: Vec<Listed>, keys: Vec<Box<str>> },
}

/// Consecutive convoys of the same size and consecutive batch orders; the last one may be smaller.
#[derive(Clone, Copy, Debug)]
pub struct Convoys {
    /// Place of their first problem among the members.
    first: usize,
    order: BatchOrder,
    size: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct Listed {
    pub problem_id: ProblemId,
    pub attempts: i32,
    pub home_lane: LaneId,
    pub home_order: BatchOrder,
}

/// A problem's place among the members of its checkout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(usize);

impl Members {
    /// Of what was read from a lane. Keys are kept where a write-back needs them.
    pub fn of(problems: &[ComingProblem], with_keys: bool) -> Members {
        let keys = |problems: &mut dyn Iterator<Item = &str>| match with_keys {
            true => problems.map(Box::from).collect(),
            false => Vec::new(),
        };
        let first = problems.first().map_or(ProblemId(0), |p| p.problem_id);
        let lane = problems.first().map_or(LaneId(0), |p| p.home_lane);
        let is_dense = |(n, p): (usize, &ComingProblem)| {
            p.problem_id.0 == first.0 + n as i64
                && p.attempts == 0
                && p.home_lane == lane
                && p.home_order == p.batch_order
        };
        if problems.iter().enumerate().all(is_dense) {
            let mut keys_of = problems.iter().map(|p| &*p.key);
            return Members::Dense {
                lane,
                first,
                count: problems.len(),
                convoys: runs(problems),
                keys: keys(&mut keys_of),
            };
        }
        let mut sorted: Vec<&ComingProblem> = problems.iter().collect();
        sorted.sort_unstable_by_key(|p| p.problem_id);
        let listed = |p: &&ComingProblem| Listed {
            problem_id: p.problem_id,
            attempts: p.attempts,
            home_lane: p.home_lane,
            home_order: p.home_order,
        };
        Members::Listed {
            problems: sorted.iter().map(listed).collect(),
            keys: keys(&mut sorted.iter().map(|p| &*p.key)),
        }
    }

    /// Of what the database says, in any order, with keys.
    pub fn listed(mut problems: Vec<(Listed, String)>) -> Members {
        problems.sort_unstable_by_key(|(p, _)| p.problem_id);
        let (problems, keys) = problems.into_iter().map(|(listed, key)| (listed, key.into_boxed_str())).unzip();
        Members::Listed { problems, keys }
    }

    pub fn len(&self) -> usize {
        match self {
            Members::Dense { count, .. } => *count,
            Members::Listed { problems, .. } => problems.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A write-back wants them.
    pub fn has_keys(&self) -> bool {
        match self {
            Members::Dense { keys, .. } | Members::Listed { keys, .. } => keys.len() == self.len(),
        }
    }

    /// Where a problem is, if it is of this checkout.
    pub fn find(&self, problem_id: ProblemId) -> Option<Place> {
        match self {
            Members::Dense { first, count, .. } => {
                let place = usize::try_from(problem_id.0.checked_sub(first.0)?).ok()?;
                (place < *count).then_some(Place(place))
            }
            Members::Listed { problems, .. } => {
                problems.binary_search_by_key(&problem_id, |p| p.problem_id).ok().map(Place)
            }
        }
    }

    /// Attempts used before this checkout.
    pub fn attempts(&self, place: Place) -> i32 {
        match self {
            Members::Dense { .. } => 0,
            Members::Listed { problems, .. } => problems[place.0].attempts,
        }
    }

    /// Where its row is, and its key if keys are kept.
    pub fn home(&self, place: Place) -> Home {
        let (lane, order, keys) = match self {
            Members::Dense { lane, convoys, keys, .. } => {
                let run = convoys[convoys.partition_point(|run| run.first <= place.0) - 1];
                (*lane, BatchOrder(run.order.0 + ((place.0 - run.first) / run.size) as i64), keys)
            }
            Members::Listed { problems, keys } => (problems[place.0].home_lane, problems[place.0].home_order, keys),
        };
        Home { lane, order, key: keys.get(place.0).map(|key| key.to_string()) }
    }
}

impl Place {
    pub fn index(self) -> usize {
        self.0
    }
}

fn runs(problems: &[ComingProblem]) -> Vec<Convoys> {
    let mut runs: Vec<Convoys> = Vec::new();
    let mut at = 0;
    for convoy in problems.chunk_by(|a, b| a.batch_order == b.batch_order) {
        let order = convoy[0].batch_order;
        // It goes on with the run if the run's own arithmetic names its first and its last problem.
        let goes_on = runs.last().is_some_and(|run| {
            let full = (at - run.first) % run.size == 0 && convoy.len() <= run.size;
            full && order.0 == run.order.0 + ((at - run.first) / run.size) as i64
        });
        if !goes_on {
            runs.push(Convoys { first: at, order, size: convoy.len() });
        }
        at += convoy.len();
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcfarm_sql::json::RawJson;

    fn problems(convoys: &[(i64, usize)]) -> Vec<ComingProblem> {
        let orders = convoys.iter().flat_map(|&(order, size)| std::iter::repeat_n(order, size));
        let problem = |(n, order): (usize, i64)| ComingProblem {
            problem_id: ProblemId(100 + n as i64),
            batch_order: BatchOrder(order),
            key: format!("k{n}").into(),
            payload: RawJson::default(),
            weight: 1,
            attempts: 0,
            alone: false,
            grouped: false,
            home_lane: LaneId(7),
            home_order: BatchOrder(order),
        };
        orders.enumerate().map(problem).collect()
    }

    /// Every problem is found where it is, and its neighbours outside are not.
    fn check(members: &Members, of: &[ComingProblem]) {
        assert_eq!(members.len(), of.len());
        for p in of {
            let place = members.find(p.problem_id).expect("a member");
            assert_eq!(members.attempts(place), p.attempts);
            let key = members.has_keys().then(|| p.key.to_string());
            assert_eq!(members.home(place), Home { lane: p.home_lane, order: p.home_order, key });
        }
        for id in [99, 100 + of.len() as i64, i64::MIN, i64::MAX] {
            assert_eq!(members.find(ProblemId(id)), None);
        }
    }

    #[test]
    fn loads_of_any_shape_are_dense() {
        for shape in [
            &[(0, 1), (1, 1), (2, 1)][..],
            &[(5, 3), (6, 3), (7, 2)],
            &[(5, 3), (6, 2), (7, 3), (8, 3)],
            &[(5, 2), (6, 3), (7, 3)],
            &[(5, 1), (9, 1), (10, 4), (11, 4), (20, 4)],
        ] {
            for with_keys in [true, false] {
                let problems = problems(shape);
                let members = Members::of(&problems, with_keys);
                assert!(matches!(members, Members::Dense { .. }));
                assert_eq!(members.has_keys(), with_keys);
                check(&members, &problems);
            }
        }
        let even = Members::of(&problems(&[(5, 3), (6, 3), (7, 3)]), false);
        assert!(matches!(even, Members::Dense { convoys, .. } if convoys.len() == 1));
    }

    #[test]
    fn what_came_back_is_listed() {
        let mut problems = problems(&[(0, 2), (1, 2)]);
        problems[1].attempts = 2;
        problems[2].home_lane = LaneId(9);
        problems.reverse();
        let members = Members::of(&problems, true);
        assert!(matches!(members, Members::Listed { .. }));
        check(&members, &problems);
    }
}
