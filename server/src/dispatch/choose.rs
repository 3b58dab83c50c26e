//! Who is served next: a pure function, without I/O or clock of its own.
//!
//! Of what a workstation may take and what may run now, users that it prefers come first, then the highest priority. Of one
//! priority, users take turns: deficit round robin (M. Shreedhar and G. Varghese, "Efficient Fair Queueing using Deficit
//! Round Robin", 1995), in which a round gives each user its allocation of turns, and a checkout costs as many turns as it
//! has convoys. Within a round the user that has had the fewest turns is next; each priority has rounds of its own. Of one user, the earliest deadline comes
//! first; jobs that are late take turns with the first that is not.

use super::requirement::RequirementId;
use pcfarm_proto::ids::{JobId, LaneId};
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

/// A lane that has something to hand out, and what decides its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub job_id: JobId,
    pub lane_id: LaneId,
    pub user: Arc<str>,
    pub job_type: Arc<str>,
    /// Its job's, where that is another.
    pub of_type: Option<Arc<str>>,
    /// As agents announce it.
    pub controller: Arc<str>,
    /// What a workstation must have; none: nothing.
    pub requirement: Option<RequirementId>,
    /// The job's, or what its type's profile says at this time.
    pub priority: i32,
    pub deadline: Option<SystemTime>,
    /// The deadline is over.
    pub late: bool,
    /// Of its problems, within the job.
    pub urgency: i32,
    pub came_back: bool,
    /// A retry lane that is served before the job's other lanes.
    pub first: bool,
}

/// The order of service within a user: priority, then earliest deadline, then the older job; within a job its lanes by
/// urgency, load lanes in order and the retry lane last, or first. The same as the views `jobs_ordered` and
/// `problems_ordered`.
pub fn order(a: &Candidate, b: &Candidate) -> Ordering {
    let by_deadline = || match (a.deadline, b.deadline) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => Ordering::Equal,
    };
    (b.priority.cmp(&a.priority))
        .then_with(by_deadline)
        .then_with(|| a.job_id.cmp(&b.job_id))
        .then_with(|| b.urgency.cmp(&a.urgency))
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

/// What a workstation's slot may take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    pub controllers: HashSet<String>,
    /// If there are any, nobody else's: it rather idles.
    pub required: HashSet<Arc<str>>,
    pub excluded: HashSet<Arc<str>>,
    /// Served first while they have work.
    pub preferred: HashSet<Arc<str>>,
    /// If there are any, no others.
    pub job_types: HashSet<Arc<str>>,
    /// Of all requirements in sight, those that it meets.
    pub met: BTreeSet<RequirementId>,
    /// Bytes of a payload at most.
    pub largest_problem: Option<u64>,
}

/// How a user is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Turns in a round; 0 takes it out of the ring.
    pub allocation: u32,
    /// Served only by those who require it by name.
    pub prohibited: bool,
}

impl Default for Share {
    fn default() -> Share {
        Share { allocation: 1, prohibited: false }
    }
}

/// What may still be handed out, where there is a limit: what a server goes by until it looks again. The database has the
/// last word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rooms {
    pub users: HashMap<Arc<str>, u64>,
    pub user_job_types: HashMap<Key, u64>,
    /// By their resources, all that need some.
    pub resources: HashMap<Arc<str>, u64>,
    /// All that have an entry which limits them now.
    pub profiles: HashMap<Arc<str>, Profile>,
}

/// What the profile of a job type leaves; none: it sets no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Weight that may still be handed out in this hour.
    pub weight: Option<u64>,
    /// Most problems of a checkout.
    pub per_checkout: Option<u64>,
}

/// What a checkout may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub problems: u64,
    /// Of all its problems.
    pub weight: u64,
}

impl Room {
    pub fn fits(&self, problems: usize, weight: u64) -> bool {
        problems as u64 <= self.problems && weight <= self.weight
    }
}

impl Rooms {
    /// None: there is no limit.
    pub fn of(&self, candidate: &Candidate) -> Option<Room> {
        if self.users.is_empty()
            && self.user_job_types.is_empty()
            && self.resources.is_empty()
            && self.profiles.is_empty()
        {
            return None;
        }
        let of_types = types(candidate).flat_map(|name| {
            let Profile { weight, per_checkout } = self.profiles.get(name).copied().unwrap_or_default();
            let own = self.user_job_types.get(&(candidate.user.clone(), Some(name.clone()))).copied();
            let problems = [own, self.resources.get(name).copied(), per_checkout].into_iter().flatten().min();
            [(problems, weight)]
        });
        let of_user = (self.users.get(&candidate.user).copied(), None);
        let (problems, weight) =
            of_types.fold(of_user, |tightest, room| (tighter(tightest.0, room.0), tighter(tightest.1, room.1)));
        (problems.is_some() || weight.is_some())
            .then(|| Room { problems: problems.unwrap_or(u64::MAX), weight: weight.unwrap_or(u64::MAX) })
    }

    /// Is anything only for those who hold nothing?
    pub fn know_resources(&self) -> bool {
        !self.resources.is_empty()
    }

    /// Does it need some of a resource? Then nothing is prefetched: what waits would hold what others could use.
    pub fn needs_resources(&self, candidate: &Candidate) -> bool {
        types(candidate).any(|name| self.resources.contains_key(name))
    }

    pub fn take(&mut self, candidate: &Candidate, problems: usize, weight: u64) {
        let less = |room: &mut u64| *room = room.saturating_sub(problems as u64);
        self.users.get_mut(&candidate.user).map(less);
        for name in types(candidate) {
            self.user_job_types.get_mut(&(candidate.user.clone(), Some(name.clone()))).map(less);
            self.resources.get_mut(name).map(less);
            if let Some(Profile { weight: Some(left), .. }) = self.profiles.get_mut(name) {
                *left = left.saturating_sub(weight);
            }
        }
    }
}

/// Those whose limits hold: its problems' and its job's.
fn types(candidate: &Candidate) -> impl Iterator<Item = &Arc<str>> {
    std::iter::once(&candidate.job_type).chain(&candidate.of_type)
}

fn tighter(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

/// By its job's type: a job has one place.
fn own_place(candidate: &Candidate) -> Key {
    let of_type = candidate.of_type.as_ref().unwrap_or(&candidate.job_type);
    (candidate.user.clone(), Some(of_type.clone()))
}

/// One place in the ring of a priority: a user, or what a user has of jobs of a type for which it has an allocation of its own.
#[derive(Debug)]
struct Place {
    lanes: BTreeSet<Candidate>,
    share: Share,
    /// Turns had. Divided by the turns of a round, it is the round in which the next one lies.
    turns: i64,
    /// The first round in which it was refused a turn, until it has caught up.
    refused_in: Option<i64>,
    /// The turn at which each of its late or contending jobs was last served.
    jobs_served: HashMap<JobId, u64>,
}

/// Those who take turns with each other, in the order of names, so that what is equal is always taken in the same order,
/// which is that of `pcfarm.jobs_ordered`.
#[derive(Debug, Default)]
struct Circle {
    places: BTreeMap<Key, Place>,
    /// The round in which the last turn was. Nobody keeps turns of rounds before.
    round: i64,
    /// How often it has been found empty, one time after the other.
    empty: u32,
}

/// All candidates, and whose turn it is. Each priority has a circle of its own: what somebody was given for being urgent
/// costs no turns among those who are not.
#[derive(Debug, Default)]
pub struct Ring {
    shares: HashMap<Key, Share>,
    /// The highest priority first.
    circles: BTreeMap<Reverse<i32>, Circle>,
    served: u64,
}

/// A user, and a job type of which it has an allocation of its own.
pub type Key = (Arc<str>, Option<Arc<str>>);

/// Who was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub candidate: Candidate,
    place: Key,
}

impl Choice {
    pub fn lane(&self) -> (JobId, LaneId) {
        (self.candidate.job_id, self.candidate.lane_id)
    }
}

impl Ring {
    pub fn add(&mut self, candidate: Candidate) {
        let key = self.key_of(&candidate);
        let share = self.shares.get(&key).copied().unwrap_or_default();
        let Circle { places, .. } = self.circles.entry(Reverse(candidate.priority)).or_default();
        places.entry(key).or_insert_with(|| Place::new(share)).lanes.insert(candidate);
    }

    pub fn remove(&mut self, candidate: &Candidate) {
        let key = self.key_of(candidate);
        let circle = self.circles.get_mut(&Reverse(candidate.priority));
        if let Some(place) = circle.and_then(|circle| circle.places.get_mut(&key)) {
            place.lanes.remove(candidate);
        }
    }

    /// Those who had turns keep what they have had.
    pub fn clear(&mut self) {
        self.circles.retain(|_, circle| {
            let is_empty = circle.places.values().all(|place| place.lanes.is_empty());
            circle.empty = if is_empty { circle.empty + 1 } else { 0 };
            circle.empty <= EMPTY_LIMIT
        });
        let places = self.circles.values_mut().flat_map(|circle| circle.places.values_mut());
        places.for_each(|place| place.lanes.clear());
    }

    /// Of a user, and of what it has of some job types: that has a place of its own from now on. All candidates must be
    /// added again after this.
    pub fn set_shares(&mut self, shares: impl IntoIterator<Item = (Key, Share)>) {
        self.clear();
        self.shares = shares.into_iter().collect();
        for circle in self.circles.values_mut() {
            circle.places.retain(|key, place| {
                let share = self.shares.get(key);
                share.map(|share| place.set(*share)).is_some()
            });
        }
    }

    fn key_of(&self, candidate: &Candidate) -> Key {
        let own = own_place(candidate);
        if self.shares.contains_key(&own) { own } else { (own.0, None) }
    }

    /// The lane that this slot is to be served from, of those that may run. Costs a few steps for each user.
    pub fn choose(&self, slot: &Selection, may_run: impl Fn(&Candidate) -> bool) -> Option<Choice> {
        let preferred = |user: &Arc<str>| slot.preferred.contains(user);
        let first = if slot.preferred.is_empty() { None } else { self.choose_of(slot, &may_run, preferred) };
        first.or_else(|| self.choose_of(slot, &may_run, |_| true))
    }

    fn choose_of(
        &self,
        slot: &Selection,
        may_run: &impl Fn(&Candidate) -> bool,
        of: impl Fn(&Arc<str>) -> bool,
    ) -> Option<Choice> {
        self.circles.values().find_map(|circle| {
            let mut best: Option<(Turn, &Key, &Candidate)> = None;
            for (key, place) in &circle.places {
                if place.lanes.is_empty() || !of(&key.0) || !slot.takes_user(&key.0, place.share) {
                    continue;
                }
                let turn = place.next_turn(circle.round);
                if best.as_ref().is_some_and(|(other, ..)| turn >= *other) {
                    continue;
                }
                let fits = |candidate: &&Candidate| slot.takes(candidate) && may_run(candidate);
                if let Some(candidate) = place.first(fits) {
                    best = Some((turn, key, candidate));
                }
            }
            let (_, place, candidate) = best?;
            Some(Choice { candidate: candidate.clone(), place: place.clone() })
        })
    }

    /// Of each that takes turns, what it would be served from, in order.
    pub fn lines(&self) -> impl Iterator<Item = &BTreeSet<Candidate>> {
        let mut seen = HashSet::new();
        let places =
            self.circles.values().flat_map(|circle| &circle.places).filter(|(_, place)| !place.lanes.is_empty());
        places.filter_map(move |(key, place)| seen.insert(key).then_some(&place.lanes))
    }

    pub fn knows(&self, user: &Arc<str>) -> bool {
        self.shares.contains_key(&(user.clone(), None))
    }

    /// Takes back what was charged for a choice that came to nothing, as when another server was quicker. Its user keeps that
    /// turn while others go on: or whoever has many would be refused many.
    pub fn refund(&mut self, choice: &Choice, convoys: u32) {
        let circle = self.circles.get_mut(&Reverse(choice.candidate.priority));
        if let Some(place) = circle.and_then(|circle| circle.places.get_mut(&choice.place)) {
            place.turns -= i64::from(convoys);
            let round = place.turns.div_euclid(place.turns_a_round());
            place.refused_in = Some(place.refused_in.map_or(round, |before| before.min(round)));
        }
    }

    /// Takes note that so many convoys of a choice were handed out.
    pub fn charge(&mut self, choice: &Choice, convoys: u32) {
        self.served += 1;
        let Some(circle) = self.circles.get_mut(&Reverse(choice.candidate.priority)) else { return };
        let Some(place) = circle.places.get_mut(&choice.place) else { return };
        let turn = place.next_turn(circle.round);
        if turn.round >= circle.round {
            circle.round = turn.round;
            place.refused_in = None;
        }
        place.turns = turn.round * place.turns_a_round() + turn.number + i64::from(convoys);
        place.jobs_served.insert(choice.candidate.job_id, self.served);
        let Place { lanes, jobs_served, .. } = place;
        if jobs_served.len() > 2 * lanes.len() + 16 {
            let jobs: HashSet<JobId> = lanes.iter().map(|lane| lane.job_id).collect();
            jobs_served.retain(|job, _| jobs.contains(job));
        }
    }
}

/// A circle in which nobody had anything this often is let go. All of its lanes may be out of sight for a moment.
const EMPTY_LIMIT: u32 = 100;

/// Most rounds of which a user keeps turns that it was refused.
const ROUNDS_KEPT: i64 = 16;

/// When somebody is next: the earliest goes first, and of one round who has had the fewest turns in it.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    round: i64,
    number: i64,
}

impl Place {
    fn new(share: Share) -> Place {
        Place { lanes: BTreeSet::new(), share, turns: 0, refused_in: None, jobs_served: HashMap::new() }
    }

    /// Its next turn stays in its round.
    fn set(&mut self, share: Share) {
        let before = self.turns_a_round();
        self.share = share;
        let after = self.turns_a_round();
        if after != before {
            self.turns = self.turns.div_euclid(before) * after + self.turns.rem_euclid(before).min(after - 1);
        }
    }

    /// Who has none is served by those who require it, a turn at a time.
    fn turns_a_round(&self) -> i64 {
        i64::from(self.share.allocation.max(1))
    }

    fn next_turn(&self, round: i64) -> Turn {
        let turns = self.turns_a_round();
        let since = self.refused_in.map_or(round, |refused| refused.clamp(round - ROUNDS_KEPT, round));
        let had = self.turns.max(since * turns);
        Turn { round: had.div_euclid(turns), number: had.rem_euclid(turns) }
    }

    /// Its first that fits; of its late jobs and the first that is not, the one that has waited longest.
    fn first(&self, fits: impl Fn(&&Candidate) -> bool) -> Option<&Candidate> {
        let mut fitting = self.lanes.iter().filter(fits);
        let first = fitting.next()?;
        if !first.late {
            return Some(first);
        }
        let served = |candidate: &Candidate| self.jobs_served.get(&candidate.job_id).copied().unwrap_or(0);
        let (mut best, mut jobs_of) = (first, first.job_id);
        for candidate in fitting {
            // Of each job its first lane.
            if candidate.job_id == jobs_of {
                continue;
            }
            jobs_of = candidate.job_id;
            if served(candidate) < served(best) {
                best = candidate;
            }
            if !candidate.late {
                break;
            }
        }
        Some(best)
    }
}

impl Selection {
    fn takes_user(&self, name: &Arc<str>, share: Share) -> bool {
        let required = self.required.contains(name);
        (required || (self.required.is_empty() && share.allocation > 0 && !share.prohibited))
            && !self.excluded.contains(name)
    }

    /// Does it take what a type's problems are, whoever has submitted them and however large they are?
    pub fn takes_of_anybody(&self, job_type: &str, controller: &str) -> bool {
        self.required.is_empty()
            && self.excluded.is_empty()
            && self.largest_problem.is_none()
            && self.controllers.contains(controller)
            && (self.job_types.is_empty() || self.job_types.contains(job_type))
    }

    fn takes(&self, candidate: &Candidate) -> bool {
        self.controllers.contains(&*candidate.controller)
            && (self.job_types.is_empty() || self.job_types.contains(&candidate.job_type))
            && candidate.requirement.is_none_or(|requirement| self.met.contains(&requirement))
    }
}

#[cfg(test)]
mod tests;
