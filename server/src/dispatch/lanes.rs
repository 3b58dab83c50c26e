//! The lanes in sight: their order of service, and for each what has been read ahead of its pointer.
//!
//! Whether that may be handed out is decided at commit.

mod read_on;

use super::choose::{Candidate, Choice, Profile, Ring, Room, Rooms, Share};
use super::convoys::{Ahead, Taken};
use super::look::Sight;
use super::refused::Refused;
use super::requirement::{RequirementId, Requirements};
use super::unreadable::Unreadable;
use crate::farm::Farm;
use crate::session::Session;
use pcfarm_faults::{Bug, planted};
use pcfarm_proto::files::announced;
use pcfarm_proto::ids::{BatchOrder, JobId, LaneId};
use pcfarm_sql::job_types::JobType;
use pcfarm_sql::lanes::{ComingProblem, OpenLane};
use pcfarm_sql::sharing;
use pcfarm_sql::submit::Fresh;
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tokio::time::Instant;

pub type LaneKey = (JobId, LaneId);

pub struct Lane {
    pub open: Arc<OpenLane>,
    candidate: Candidate,
    ahead: Ahead,
    next: BatchOrder,
    /// What is ahead goes to the end of the lane as it was when it was read.
    at_end: bool,
    /// Of a problem, on average, when not only small ones were read.
    bytes_each: Option<usize>,
    /// Most problems to read at once where they are small.
    most_small: usize,
}

/// What became of lanes since a look began: of this it knows nothing, or only a part.
#[derive(Default)]
struct Meanwhile {
    added: HashSet<LaneKey>,
    removed: HashSet<LaneKey>,
    /// Problems and weight on which was decided.
    served: HashMap<LaneKey, (Candidate, usize, u64)>,
}

#[derive(Default)]
pub struct Lanes {
    lanes: HashMap<LaneKey, Lane>,
    /// While a look is under way.
    meanwhile: Option<Meanwhile>,
    /// Those of which a hand-out was refused, until they are looked at again.
    aside: HashMap<LaneKey, Lane>,
    refused: Refused,
    ring: Ring,
    /// Problems and bytes that are read ahead of a lane at once.
    portion: (usize, usize),
    rooms: Rooms,
    /// What profiles say instead of jobs.
    priorities: HashMap<Arc<str>, i32>,
    /// Those of lanes in sight, and of some that were.
    requirements: Requirements,
    unreadable: HashMap<LaneKey, Unreadable>,
    /// Somebody would have been served but for a limit.
    short_of_room: Cell<bool>,
    looked: bool,
    /// For a planted bug alone.
    last_seen: Option<LaneId>,
}

impl Lanes {
    pub fn stale(&self) -> bool {
        !self.looked
    }

    pub fn in_sight(&self) -> usize {
        self.lanes.len()
    }

    /// The job of each.
    pub fn jobs_in_sight(&self) -> impl Iterator<Item = JobId> {
        self.lanes.keys().map(|(job, _)| *job)
    }

    /// Nothing that is remembered can be trusted.
    pub fn forget(&mut self) {
        let mut ring = std::mem::take(&mut self.ring);
        ring.clear();
        // What was found out about workstations goes by the names of these.
        let requirements = std::mem::take(&mut self.requirements);
        *self = Lanes { last_seen: self.last_seen, ring, requirements, ..Lanes::default() };
    }

    pub fn requirements(&self) -> &Requirements {
        &self.requirements
    }

    /// How many of these meet each requirement.
    pub fn count_able(&self, sessions: &[Arc<Session>]) -> HashMap<RequirementId, usize> {
        let mut able = HashMap::new();
        if self.requirements.is_empty() {
            return able;
        }
        for session in sessions {
            session.judge(&self.requirements);
            session.selection().met.iter().for_each(|id| *able.entry(*id).or_default() += 1);
        }
        able
    }

    /// What this session is to be served from.
    pub fn choose(&self, session: &Session) -> Option<Choice> {
        let selection = session.selection();
        let suits = |candidate: &Candidate| {
            let Some(largest) = selection.largest_problem else { return true };
            self.lanes.get(&key_of(candidate)).is_none_or(|lane| lane.first_payload() <= largest)
        };
        self.ring.choose(&selection, |candidate| {
            if !suits(candidate) {
                return false;
            }
            let Some(room) = self.rooms.of(candidate) else { return true };
            if self.rooms.needs_resources(candidate) && session.holds_beside(&candidate.controller) > 0 {
                return false;
            }
            // A convoy that does not fit stands in nobody's way.
            let fits = self.lanes.get(&key_of(candidate)).is_none_or(|lane| lane.first_convoy_fits(room));
            if !fits {
                self.short_of_room.set(true);
            }
            fits
        })
    }

    /// What may be handed out from it under limits; none: there is no limit.
    pub fn room(&self, choice: &Choice) -> Option<Room> {
        self.rooms.of(&choice.candidate)
    }

    /// Is there anything that is not prefetched?
    pub fn know_resources(&self) -> bool {
        self.rooms.know_resources()
    }

    /// May this be one of several checkouts of a workstation?
    pub fn may_be_prefetched(&self, choice: &Choice) -> bool {
        !self.rooms.needs_resources(&choice.candidate)
    }

    /// Takes note of what was decided on.
    pub fn charge(&mut self, choice: &Choice, taken: &Taken) {
        let Choice { candidate, .. } = choice;
        self.ring.charge(choice, taken.convoys);
        self.rooms.take(candidate, taken.problems.len(), taken.weight);
        if let Some(meanwhile) = &mut self.meanwhile {
            let served = meanwhile.served.entry(key_of(candidate)).or_insert_with(|| (candidate.clone(), 0, 0));
            (served.1, served.2) = (served.1 + taken.problems.len(), served.2 + taken.weight);
        }
    }

    /// It came to nothing.
    pub fn refund(&mut self, choice: &Choice, convoys: u32) {
        self.ring.refund(choice, convoys);
    }

    /// Did a limit keep anybody from being served since this was asked last?
    pub fn was_short_of_room(&self) -> bool {
        self.short_of_room.take()
    }

    pub fn get_mut(&mut self, key: &LaneKey) -> Option<&mut Lane> {
        self.lanes.get_mut(key)
    }

    pub fn remove(&mut self, farm: &Farm, key: &LaneKey) {
        self.out_of_sight(farm, key);
    }

    fn out_of_sight(&mut self, farm: &Farm, key: &LaneKey) -> Option<Lane> {
        let lane = self.lanes.remove(key)?;
        self.ring.remove(&lane.candidate);
        farm.maybe_over.lane_out_of_sight(key.0);
        if let Some(meanwhile) = &mut self.meanwhile {
            meanwhile.removed.insert(*key);
        }
        Some(lane)
    }

    /// Of these something was handed out.
    pub fn moved_on(&mut self, keys: impl Iterator<Item = LaneKey>) {
        keys.for_each(|key| self.refused.remove(&key));
    }

    /// When a lane that was put aside is to be looked at, after the last look.
    pub fn refused_from(&self, looked_at: Instant) -> Option<Instant> {
        self.refused.next_from(looked_at)
    }

    /// Puts aside a lane that is not where it was thought to be, with what was taken from it last: much of it may still be
    /// to come.
    pub fn set_aside(&mut self, farm: &Farm, key: &LaneKey, from: BatchOrder, problems: Vec<ComingProblem>) {
        if let Some(lane) = self.out_of_sight(farm, key) {
            self.aside.insert(*key, lane);
        }
        let now = Instant::now();
        if !self.refused.holds(key, now) {
            self.refused.add(*key, now);
        }
        if let Some(lane) = self.aside.get_mut(key) {
            lane.ahead.put_back(problems);
            lane.next = from;
        }
    }

    /// A lane that was handed out to its end leaves sight, and lets its job end soon.
    pub fn remove_if_drained(&mut self, farm: &Farm, key: &LaneKey) {
        if self.lanes.get(key).is_some_and(|lane| lane.at_end && lane.ahead.problems() == 0) {
            self.remove(farm, key);
        }
    }

    /// A look begins: what happens from now on it may not know.
    pub fn begin_look(&mut self) {
        self.meanwhile = Some(Meanwhile::default());
    }

    /// Takes in what a look has found, keeping what was read ahead where the pointer is where it was, or where it came
    /// meanwhile, and somebody is to be served from it next: memory does not grow with the jobs. False: there may be more.
    pub fn end_look(
        &mut self,
        Sight { began, open, shares }: Sight,
        is_in_trouble: impl Fn(&OpenLane) -> bool,
    ) -> bool {
        let mut is_all = true;
        let Meanwhile { added, removed, served } = self.meanwhile.take().unwrap_or_default();
        let mut before = std::mem::take(&mut self.lanes);
        self.refused.tidy(began);
        self.requirements.begin_look();
        self.share(shares);
        served.values().for_each(|(candidate, problems, weight)| self.rooms.take(candidate, *problems, *weight));
        let last_seen = self.last_seen;
        for (open, job_type) in open {
            if planted(Bug::SkipsLateLoads) && !open.came_back {
                if !before.contains_key(&(open.job_id, open.lane_id)) && Some(open.lane_id) <= last_seen {
                    continue;
                }
                self.last_seen = self.last_seen.max(Some(open.lane_id));
            }
            if is_in_trouble(&open) {
                continue;
            }
            let key = (open.job_id, open.lane_id);
            if self.aside.get(&key).is_some_and(|lane| lane.next < open.next_extraction) {
                // Another server has moved it on: nobody has locked it.
                self.refused.remove(&key);
            } else if removed.contains(&key) && !before.contains_key(&key) {
                // As far as it was known nothing is left of it, but it may have grown since: that the next look tells.
                is_all = false;
                continue;
            }
            if self.refused.holds(&key, began) {
                continue;
            }
            let known = before.remove(&key).or_else(|| self.aside.remove(&key));
            let lane = self.lane(open, &job_type, known, served.contains_key(&key));
            self.ring.add(lane.candidate.clone());
            self.lanes.insert(key, lane);
        }
        for (key, mut lane) in before.into_iter().filter(|(key, _)| added.contains(key)) {
            if !self.ring.knows(&lane.open.owner) {
                is_all = false;
                continue;
            }
            lane.candidate = self.candidate(&lane.open, lane.candidate.controller.clone());
            self.ring.add(lane.candidate.clone());
            self.lanes.insert(key, lane);
        }
        self.unreadable.retain(|key, _| self.lanes.contains_key(key) || removed.contains(key));
        self.keep_what_is_next();
        self.aside.retain(|key, _| self.refused.holds(key, began));
        self.requirements.end_look();
        self.looked = true;
        is_all
    }

    /// A lane as a look has found it, with what is known of it. `served`: also by us, since the look began.
    fn lane(&mut self, open: OpenLane, job_type: &JobType, known: Option<Lane>, served: bool) -> Lane {
        let candidate = self.candidate(&open, announced(&job_type.controller).into());
        let mut lane = Lane {
            next: open.next_extraction,
            candidate,
            ahead: Ahead::default(),
            at_end: false,
            bytes_each: None,
            most_small: usize::MAX,
            open: Arc::new(open),
        };
        let Some(known) = known else { return lane };
        (lane.bytes_each, lane.most_small) = (known.bytes_each, known.most_small);
        if known.next > lane.next && !served {
            // It was not where it was thought to be.
            return lane;
        }
        // What is visible in a lane never changes: if it is further on, another server has handed out the first of it.
        lane.next = known.next.max(lane.next);
        lane.ahead = known.ahead;
        lane.ahead.skip_to(lane.next);
        // A retry lane may have grown.
        let is_as_it_was = !lane.open.came_back && lane.open.next_insertion == known.open.next_insertion;
        lane.at_end = known.at_end && is_as_it_was;
        lane
    }

    fn share(&mut self, shares: Vec<sharing::Share>) {
        self.rooms = Rooms::default();
        self.priorities.clear();
        let mut places = Vec::new();
        for sharing::Share { owner, job_type, allocation, prohibited, room, weight, per_checkout, priority } in shares {
            let place = allocation.map(|allocation| Share { allocation, prohibited });
            match (owner, job_type) {
                (Some(owner), job_type) => {
                    let key = (owner, job_type);
                    if let (Some(room), Some(_)) = (room, &key.1) {
                        self.rooms.user_job_types.insert(key.clone(), room);
                    } else if let Some(room) = room {
                        self.rooms.users.insert(key.0.clone(), room);
                    }
                    places.extend(place.map(|place| (key, place)));
                }
                (None, Some(job_type)) => {
                    if weight.is_some() || per_checkout.is_some() {
                        self.rooms.profiles.insert(job_type.clone(), Profile { weight, per_checkout });
                    }
                    priority.map(|priority| self.priorities.insert(job_type.clone(), priority));
                    room.map(|room| self.rooms.resources.insert(job_type, room));
                }
                (None, None) => {}
            }
        }
        self.ring.set_shares(places);
    }

    /// Takes in a lane that has just been committed, whole. False: only a look can tell.
    pub fn add(&mut self, farm: &Farm, fresh: Fresh) -> bool {
        let Fresh { lane: open, problems, .. } = fresh;
        let key = (open.job_id, open.lane_id);
        let Some(job_type) = farm.job_type(&open.job_type) else { return false };
        let is_in_trouble = farm.troubles.concern(Some(open.job_id), &open.job_type);
        if is_in_trouble || self.stale() || self.lanes.contains_key(&key) || !self.ring.knows(&open.owner) {
            return false;
        }
        let candidate = self.candidate(&open, announced(&job_type.controller).into());
        self.ring.add(candidate.clone());
        let mut ahead = Ahead::default();
        ahead.extend(problems, true);
        let next = open.next_extraction;
        let (bytes_each, most_small) = (None, usize::MAX);
        let lane = Lane { next, candidate, ahead, open: Arc::new(open), at_end: true, bytes_each, most_small };
        self.lanes.insert(key, lane);
        if let Some(meanwhile) = &mut self.meanwhile {
            meanwhile.added.insert(key);
        }
        farm.maybe_over.lane_in_sight(key.0);
        true
    }

    fn candidate(&mut self, open: &OpenLane, controller: Arc<str>) -> Candidate {
        // One priority for all of a job.
        let of_type = open.of_type.as_ref().unwrap_or(&open.job_type);
        Candidate {
            job_id: open.job_id,
            lane_id: open.lane_id,
            user: open.owner.clone(),
            job_type: open.job_type.clone(),
            of_type: open.of_type.clone(),
            priority: self.priorities.get(of_type).copied().unwrap_or(open.priority),
            deadline: open.deadline,
            late: open.late,
            urgency: open.urgency,
            came_back: open.came_back,
            first: open.first,
            controller,
            requirement: open.requirement.as_ref().map(|requirement| self.requirements.note(requirement)),
        }
    }
}

fn key_of(candidate: &Candidate) -> LaneKey {
    (candidate.job_id, candidate.lane_id)
}

impl Lane {
    /// What a workstation needs to run it.
    pub fn controller(&self) -> &str {
        &self.candidate.controller
    }

    /// Where the next checkout starts.
    pub fn next(&self) -> BatchOrder {
        self.next
    }

    /// Where it is read on.
    fn end(&self) -> BatchOrder {
        self.ahead.end().unwrap_or(self.next)
    }

    /// About how many problems are still to be handed out.
    pub fn remaining(&self) -> usize {
        let ahead = self.ahead.problems();
        let orders = (self.open.next_insertion.0 - self.next.0).max(0);
        let all = self.open.next_insertion.0.max(1);
        // Orders may be sparse: problems an order on average.
        let by_orders = (self.open.problems as i128 * i128::from(orders) / i128::from(all)) as usize;
        if self.open.came_back { ahead.max(orders as usize) } else { by_orders.max(ahead) }
    }

    /// Must the next convoy be the only one in its workstation's hands?
    pub fn next_is_suspect(&self) -> bool {
        self.ahead.next_is_suspect()
    }

    /// Takes whole convoys from what is ahead. Nothing, after reading ahead: the lane is at its end.
    pub fn take(&mut self, wanted: usize, most_weight: u64, largest: u64) -> Option<Taken> {
        let taken = self.ahead.take(wanted, most_weight, largest)?;
        self.next = taken.to;
        Some(taken)
    }

    /// Bytes of the largest payload of its next convoy, as far as that is known.
    pub fn first_payload(&self) -> u64 {
        self.ahead.largest_payload(self.ahead.first_convoy())
    }

    /// Does its next convoy, as far as that is known?
    pub fn first_convoy_fits(&self, room: Room) -> bool {
        let convoy = self.ahead.first_convoy();
        if convoy == 0 { room.fits(1, 1) } else { room.fits(convoy, self.ahead.weight(convoy)) }
    }
}

#[cfg(test)]
mod tests {
    use super::read_on::tests::{lane, lanes};
    use super::*;
    use crate::dispatch::choose::Selection;
    use std::time::Duration;

    /// What a look finds that sees these lanes as they are now.
    fn sight<'a>(lanes: impl IntoIterator<Item = &'a Lane>) -> Sight {
        let job_type = Arc::new(JobType {
            name: "noop".to_owned(),
            controller: "echo".to_owned(),
            max_attempts: 3,
            time_limit: None,
            read_role: None,
            read_time_limit: Duration::from_secs(1),
            writes_back: false,
            reads: Vec::new(),
        });
        let open = lanes.into_iter().map(|lane| ((*lane.open).clone(), job_type.clone())).collect();
        Sight { began: Instant::now(), open, shares: vec![share(None)] }
    }

    /// Of the user of all jobs here.
    fn share(room: Option<u64>) -> sharing::Share {
        sharing::Share {
            owner: Some("user000".into()),
            job_type: None,
            allocation: Some(1),
            prohibited: false,
            room,
            weight: None,
            per_checkout: None,
            priority: None,
        }
    }

    fn key(n: i64) -> LaneKey {
        (JobId(n), LaneId(n))
    }

    fn anybody() -> Selection {
        Selection { controllers: ["echo".to_owned()].into(), ..Selection::default() }
    }

    fn hand_out(lanes: &mut Lanes, problems: usize) -> LaneKey {
        let choice = lanes.ring.choose(&anybody(), |_| true).expect("something is in sight");
        let lane = lanes.get_mut(&choice.lane()).expect("in sight");
        let taken = lane.take(problems, u64::MAX, u64::MAX).expect("something is ahead");
        lanes.charge(&choice, &taken);
        choice.lane()
    }

    #[test]
    fn what_is_handed_out_during_a_look_stays_handed_out() {
        let mut lanes = lanes([lane(0, 1, 100, 1_000)]);
        lanes.begin_look();
        let found = sight(lanes.lanes.values());
        assert_eq!(hand_out(&mut lanes, 10), key(1));
        lanes.end_look(found, |_| false);
        let lane = lanes.get_mut(&key(1)).expect("in sight");
        assert_eq!((lane.next(), lane.ahead.problems()), (BatchOrder(10), 90));
        assert_eq!(hand_out(&mut lanes, 10), key(1));
    }

    #[test]
    fn a_pointer_that_was_not_moved_during_a_look_is_where_that_has_found_it() {
        let mut lanes = lanes([lane(0, 1, 100, 1_000)]);
        let found = sight(lanes.lanes.values());
        hand_out(&mut lanes, 10);
        lanes.begin_look();
        lanes.end_look(found, |_| false);
        let lane = lanes.get_mut(&key(1)).expect("in sight");
        assert_eq!((lane.next(), lane.ahead.problems()), (BatchOrder(0), 0));
    }

    #[test]
    fn what_another_server_has_handed_out_is_let_go_also_when_this_one_has_handed_out_less() {
        let mut lanes = lanes([lane(0, 1, 100, 1_000)]);
        lanes.begin_look();
        let mut found = sight(lanes.lanes.values());
        found.open[0].0.next_extraction = BatchOrder(30);
        hand_out(&mut lanes, 10);
        lanes.end_look(found, |_| false);
        let lane = lanes.get_mut(&key(1)).expect("in sight");
        assert_eq!((lane.next(), lane.ahead.problems()), (BatchOrder(30), 70));
    }

    #[test]
    fn what_came_or_went_during_a_look_is_or_is_not_in_sight_after_it() {
        let mut lanes = lanes((1..=4).map(|n| lane(0, n, 100, 100)));
        lanes.begin_look();
        let found = sight(lanes.lanes.values().filter(|lane| ![2, 4].contains(&lane.open.job_id.0)));
        let meanwhile = lanes.meanwhile.as_mut().expect("a look is under way");
        // The look was too late for the first, and too early for the second.
        meanwhile.removed.insert(key(1));
        meanwhile.added.insert(key(2));
        lanes.lanes.remove(&key(1));
        assert!(!lanes.end_look(found, |_| false), "the first may have grown");
        let in_sight = |lanes: &Lanes| {
            let mut jobs: Vec<i64> = lanes.jobs_in_sight().map(|job| job.0).collect();
            jobs.sort_unstable();
            jobs
        };
        assert_eq!(in_sight(&lanes), [2, 3]);
        assert_eq!((hand_out(&mut lanes, 100), lanes.ring.lines().flatten().count()), (key(2), 2));
        lanes.begin_look();
        let found = sight(lanes.lanes.values().filter(|lane| lane.open.job_id.0 != 2));
        assert!(lanes.end_look(found, |_| false));
        assert_eq!(in_sight(&lanes), [3], "nothing is remembered of the look before");
        lanes.begin_look();
        lanes.meanwhile.as_mut().expect("a look is under way").added.insert(key(3));
        assert!(!lanes.end_look(Sight { shares: Vec::new(), ..sight([]) }, |_| false), "a user that it did not know");
        assert!(in_sight(&lanes).is_empty());
    }

    #[test]
    fn what_is_handed_out_during_a_look_counts_against_the_limits_that_it_has_found() {
        let mut lanes = lanes([lane(0, 1, 100, 1_000)]);
        lanes.begin_look();
        let mut found = sight(lanes.lanes.values());
        found.shares = vec![share(Some(15))];
        hand_out(&mut lanes, 10);
        lanes.end_look(found, |_| false);
        let choice = lanes.ring.choose(&anybody(), |_| true).expect("in sight");
        assert_eq!(lanes.room(&choice).map(|room| room.problems), Some(5));
    }
}
