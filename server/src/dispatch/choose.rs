//! Who is served next: a pure function, without I/O or clock of its own.

use pcfarm_proto::ids::{JobId, LaneId};
use std::cmp::Ordering;
use std::collections::HashSet;
use std::time::SystemTime;

/// What decides a lane's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub job_id: JobId,
    pub lane_id: LaneId,
    pub priority: i32,
    pub deadline: Option<SystemTime>,
    pub came_back: bool,
    /// A retry lane that is served before the job's other lanes.
    pub first: bool,
    pub controller: String,
}

/// The order of service: priority, then earliest deadline, then the older job; within a job its load lanes in order
/// and the retry lane last, or first. The same as the views `jobs_ordered` and `problems_ordered`.
pub fn order(a: &Candidate, b: &Candidate) -> Ordering {
    b.priority
        .cmp(&a.priority)
        .then_with(|| match (a.deadline, b.deadline) {
            (Some(a), Some(b)) => a.cmp(&b),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => Ordering::Equal,
        })
        .then_with(|| a.job_id.cmp(&b.job_id))
        .then_with(|| rank(a).cmp(&rank(b)))
        .then_with(|| a.lane_id.cmp(&b.lane_id))
}

fn rank(candidate: &Candidate) -> u8 {
    match (candidate.came_back, candidate.first) {
        (true, true) => 0,
        (false, _) => 1,
        (true, false) => 2,
    }
}

/// The first of the ordered candidates that a workstation with these controllers can run.
pub fn choose<'a>(
    ordered: impl IntoIterator<Item = &'a Candidate>,
    controllers: &HashSet<String>,
) -> Option<&'a Candidate> {
    ordered.into_iter().find(|candidate| controllers.contains(&candidate.controller))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn lane(job: i64, lane: i64) -> Candidate {
        Candidate {
            job_id: JobId(job),
            lane_id: LaneId(lane),
            priority: 0,
            deadline: None,
            came_back: false,
            first: false,
            controller: "echo".to_owned(),
        }
    }

    fn ordered(mut lanes: Vec<Candidate>) -> Vec<(i64, i64)> {
        lanes.sort_by(order);
        lanes.iter().map(|l| (l.job_id.0, l.lane_id.0)).collect()
    }

    #[test]
    fn priority_then_deadline_then_age() {
        let at = |s| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(s));
        let urgent = Candidate { priority: 5, ..lane(4, 1) };
        let soon = Candidate { deadline: at(10), ..lane(3, 1) };
        let later = Candidate { deadline: at(20), ..lane(2, 1) };
        assert_eq!(ordered(vec![lane(1, 1), later, soon, urgent]), [(4, 1), (3, 1), (2, 1), (1, 1)]);
    }

    #[test]
    fn the_retry_lane_is_last_or_first() {
        let retry = Candidate { came_back: true, ..lane(1, 1) };
        assert_eq!(ordered(vec![retry.clone(), lane(1, 3), lane(1, 2)]), [(1, 2), (1, 3), (1, 1)]);
        let first = Candidate { first: true, ..retry };
        assert_eq!(ordered(vec![lane(1, 3), first, lane(1, 0)]), [(1, 1), (1, 0), (1, 3)]);
    }

    #[test]
    fn a_workstation_gets_what_it_can_run() {
        let lanes = [Candidate { controller: "airline".to_owned(), ..lane(1, 1) }, lane(2, 2)];
        let echo = HashSet::from(["echo".to_owned()]);
        assert_eq!(choose(&lanes, &echo).map(|c| c.job_id), Some(JobId(2)));
        assert_eq!(choose(&lanes, &HashSet::new()), None);
    }
}
