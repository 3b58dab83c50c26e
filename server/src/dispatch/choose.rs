//! Who is served next: a pure function, without I/O or clock of its own.

use pcfarm_proto::ids::{JobId, LaneId};
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap, HashSet};
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

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Candidate) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Candidate {
    fn cmp(&self, other: &Candidate) -> Ordering {
        order(self, other)
    }
}

/// For each controller, the candidates that need it in the order of service. Each step costs the same however many jobs
/// there are, or the logarithm of that.
#[derive(Debug, Default)]
pub struct Ordered {
    by_controller: HashMap<String, BTreeSet<Candidate>>,
}

impl Ordered {
    pub fn new(candidates: Vec<Candidate>) -> Ordered {
        let mut ordered = Ordered::default();
        candidates.into_iter().for_each(|candidate| ordered.add(candidate));
        ordered
    }

    /// The first that a workstation with these controllers can run.
    pub fn choose(&self, controllers: &HashSet<String>) -> Option<&Candidate> {
        match controllers.len() <= self.by_controller.len() {
            true => controllers.iter().filter_map(|known| self.by_controller.get(known)?.first()).min(),
            false => self.first().filter(|first| controllers.contains(&first.controller)).min(),
        }
    }

    /// The first of each controller.
    pub fn first(&self) -> impl Iterator<Item = &Candidate> {
        self.by_controller.values().filter_map(BTreeSet::first)
    }

    pub fn add(&mut self, candidate: Candidate) {
        match self.by_controller.get_mut(&candidate.controller) {
            Some(candidates) => candidates.insert(candidate),
            None => self.by_controller.entry(candidate.controller.clone()).or_default().insert(candidate),
        };
    }

    pub fn remove(&mut self, candidate: &Candidate) {
        if let Some(candidates) = self.by_controller.get_mut(&candidate.controller) {
            candidates.remove(candidate);
            if candidates.is_empty() {
                self.by_controller.remove(&candidate.controller);
            }
        }
    }
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
        lanes.reverse();
        Ordered::new(lanes).by_controller["echo"].iter().map(|l| (l.job_id.0, l.lane_id.0)).collect()
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
        let airline = Candidate { controller: "airline".to_owned(), ..lane(1, 1) };
        let mut lanes = Ordered::new(vec![airline.clone(), lane(2, 2)]);
        let chosen = |lanes: &Ordered, names: &[&str]| {
            lanes.choose(&names.iter().map(|&name| name.to_owned()).collect()).map(|c| c.job_id.0)
        };
        assert_eq!(chosen(&lanes, &["echo"]), Some(2));
        assert_eq!(chosen(&lanes, &["echo", "airline", "sleep"]), Some(1));
        assert_eq!(chosen(&lanes, &[]), None);
        lanes.remove(&airline);
        assert_eq!(chosen(&lanes, &["airline"]), None);
        assert_eq!(chosen(&lanes, &["airline", "echo"]), Some(2));
    }
}
