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

    fn takes(&self, candidate: &Candidate) -> bool {
        self.controllers.contains(&*candidate.controller)
            && (self.job_types.is_empty() || self.job_types.contains(&candidate.job_type))
            && candidate.requirement.is_none_or(|requirement| self.met.contains(&requirement))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    fn lane(user: &str, job: i64, lane: i64) -> Candidate {
        Candidate {
            of_type: None,
            job_id: JobId(job),
            lane_id: LaneId(lane),
            user: user.into(),
            job_type: "t".into(),
            controller: "echo".into(),
            requirement: None,
            priority: 0,
            deadline: None,
            late: false,
            urgency: 0,
            came_back: false,
            first: false,
        }
    }

    /// Of these requirements.
    fn meets(met: &[u64]) -> Selection {
        Selection { met: met.iter().map(|id| RequirementId(*id)).collect(), ..slot() }
    }

    fn slot_that_meets_all() -> Selection {
        meets(&[0, 1, 2])
    }

    fn slot() -> Selection {
        Selection { controllers: HashSet::from(["echo".to_owned()]), ..Selection::default() }
    }

    /// Whoever is not named has the defaults.
    fn ring(lanes: impl IntoIterator<Item = Candidate>, shares: &[(&str, Share)]) -> Ring {
        let mut ring = Ring::default();
        ring.set_shares(shares.iter().map(|(user, share)| ((Arc::from(*user), None), *share)));
        lanes.into_iter().for_each(|lane| ring.add(lane));
        ring
    }

    fn allocated(allocation: u32) -> Share {
        Share { allocation, ..Share::default() }
    }

    /// Who is served in so many turns, each of one convoy.
    fn turns(ring: &mut Ring, slot: &Selection, count: usize) -> Vec<(String, i64)> {
        (0..count)
            .filter_map(|_| {
                let choice = ring.choose(slot, |_| true)?;
                ring.charge(&choice, 1);
                Some((choice.candidate.user.to_string(), choice.candidate.job_id.0))
            })
            .collect()
    }

    fn at(seconds: u64) -> Option<SystemTime> {
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
    }

    #[test]
    fn priority_then_deadline_then_age() {
        let urgent = Candidate { priority: 5, ..lane("u", 4, 1) };
        let soon = Candidate { deadline: at(10), ..lane("u", 3, 1) };
        let late = Candidate { deadline: at(20), ..lane("u", 2, 1) };
        let mut lanes = [lane("u", 1, 1), late, soon, urgent];
        lanes.sort();
        assert_eq!(lanes.iter().map(|l| l.job_id.0).collect::<Vec<_>>(), [4, 3, 2, 1]);
    }

    #[test]
    fn within_a_job_what_is_urgent_comes_first_and_what_came_back_last_or_first() {
        let retry = Candidate { came_back: true, ..lane("u", 1, 1) };
        let urgent = Candidate { urgency: 3, ..lane("u", 1, 9) };
        let mut lanes = [retry.clone(), lane("u", 1, 3), urgent.clone(), lane("u", 1, 2)];
        lanes.sort();
        assert_eq!(lanes.iter().map(|l| l.lane_id.0).collect::<Vec<_>>(), [9, 2, 3, 1]);
        let mut lanes = [lane("u", 1, 3), urgent, Candidate { first: true, ..retry }];
        lanes.sort();
        assert_eq!(lanes.iter().map(|l| l.lane_id.0).collect::<Vec<_>>(), [9, 1, 3]);
    }

    #[test]
    fn a_late_job_takes_turns_with_the_next_one() {
        let late = Candidate { deadline: at(10), late: true, ..lane("u", 1, 1) };
        let later = Candidate { deadline: at(15), late: true, ..lane("u", 2, 1) };
        let mut ring = ring([late, later, lane("u", 3, 1), lane("u", 4, 1)], &[]);
        let jobs: Vec<i64> = turns(&mut ring, &slot(), 6).iter().map(|(_, job)| *job).collect();
        assert_eq!(jobs, [1, 2, 3, 1, 2, 3]);
    }

    #[test]
    fn what_a_slot_asks_for_is_what_it_gets() {
        let shares = [("ben", allocated(0)), ("eve", Share { prohibited: true, ..Share::default() })];
        let mut ring = ring(["ann", "ben", "eve"].map(|user| lane(user, 1, 1)), &shares);
        let names = |names: &[&str]| names.iter().map(|&name| Arc::from(name)).collect::<HashSet<Arc<str>>>();
        let mut served = |slot: Selection| turns(&mut ring, &slot, 1).pop().map(|(user, _)| user);
        assert_eq!(served(slot()).as_deref(), Some("ann"));
        assert_eq!(served(Selection { excluded: names(&["ann"]), ..slot() }), None);
        // An allocation of none and a prohibition do not apply to those who are required.
        assert_eq!(served(Selection { required: names(&["ben"]), ..slot() }).as_deref(), Some("ben"));
        assert_eq!(served(Selection { required: names(&["eve"]), ..slot() }).as_deref(), Some("eve"));
        // A preference does not lift a prohibition.
        assert_eq!(served(Selection { preferred: names(&["eve"]), ..slot() }).as_deref(), Some("ann"));
        assert_eq!(served(Selection { required: names(&["nobody"]), ..slot() }), None);
        assert_eq!(served(Selection { job_types: names(&["other"]), ..slot() }), None);
        let demanding = Candidate { requirement: Some(RequirementId(3)), ..lane("ann", 7, 7) };
        assert!(!slot().takes(&demanding) && !meets(&[2]).takes(&demanding));
        assert!(meets(&[1, 3]).takes(&demanding) && meets(&[1, 3]).takes(&lane("ann", 7, 7)));
    }

    #[test]
    fn a_preferred_user_goes_before_a_higher_priority() {
        let mut ring = ring([Candidate { priority: 9, ..lane("ann", 1, 1) }, lane("ben", 2, 1)], &[]);
        let prefers = Selection { preferred: HashSet::from(["ben".into()]), ..slot() };
        assert_eq!(turns(&mut ring, &prefers, 1)[0].0, "ben");
        assert_eq!(turns(&mut ring, &slot(), 1)[0].0, "ann");
    }

    #[test]
    fn the_tighter_of_its_types_limits_a_candidate() {
        let candidate = Candidate { of_type: Some("u".into()), ..lane("ann", 1, 1) };
        let weight = |weight| Profile { weight: Some(weight), per_checkout: None };
        let mut rooms = Rooms {
            profiles: [("t".into(), weight(9)), ("u".into(), weight(7))].into(),
            resources: [("t".into(), 4), ("u".into(), 5)].into(),
            user_job_types: [(("ann".into(), Some("u".into())), 6)].into(),
            ..Rooms::default()
        };
        assert_eq!(rooms.of(&candidate), Some(Room { problems: 4, weight: 7 }));
        assert_eq!(rooms.of(&lane("ann", 1, 1)), Some(Room { problems: 4, weight: 9 }));
        assert!(rooms.needs_resources(&candidate));
        rooms.take(&candidate, 3, 6);
        assert_eq!(rooms.of(&candidate), Some(Room { problems: 1, weight: 1 }));
        assert_eq!(rooms.user_job_types[&("ann".into(), Some("u".into()))], 3);
    }

    /// As when another server was quicker.
    #[test]
    fn what_comes_to_nothing_changes_nothing() {
        let shares = [("ann", allocated(1)), ("ben", allocated(3))];
        let mut ring = ring([lane("ann", 1, 1), lane("ben", 2, 1)], &shares);
        let mut served = [0, 0];
        for n in 0..400_u32 {
            let choice = ring.choose(&slot(), |_| true).expect("work");
            let convoys = 1 + n % 7;
            ring.charge(&choice, convoys);
            if n % 3 == 0 {
                served[usize::from(&*choice.candidate.user == "ben")] += convoys;
            } else {
                ring.refund(&choice, convoys);
            }
        }
        assert!(served[1].abs_diff(served[0] * 3) <= 21, "{served:?}");
    }

    #[test]
    fn a_large_checkout_is_paid_for_in_the_rounds_that_follow() {
        let mut ring = ring([lane("ann", 1, 1), lane("ben", 2, 1)], &[]);
        let choice = ring.choose(&slot(), |_| true).expect("work");
        ring.charge(&choice, 10);
        let other = if &*choice.candidate.user == "ann" { "ben" } else { "ann" };
        let served = turns(&mut ring, &slot(), 10);
        assert!(served.iter().all(|(user, _)| user == other), "{served:?}");
        let served = turns(&mut ring, &slot(), 10);
        assert_eq!(served.iter().filter(|(user, _)| user == other).count(), 5, "{served:?}");
    }

    proptest! {
        /// In whole rounds each user has had its allocation, and at no time more than a round away from it.
        #[test]
        fn rounds_are_shared_as_allocated(allocations in prop::collection::vec(1..6_u32, 1..12), rounds in 1..8_usize) {
            let names: Vec<String> = (0..allocations.len()).map(|n| format!("user{n}")).collect();
            let shares: Vec<(&str, Share)> =
                names.iter().map(String::as_str).zip(allocations.iter().map(|&turns| allocated(turns))).collect();
            let mut ring = ring(names.iter().zip(1..).map(|(name, job)| lane(name, job, 1)), &shares);
            let round: u32 = allocations.iter().sum();
            let warm: usize = turns(&mut ring, &slot(), round as usize).len();
            prop_assert_eq!(warm, round as usize);
            let mut had: HashMap<String, u32> = HashMap::new();
            for (user, _) in turns(&mut ring, &slot(), round as usize * rounds) {
                *had.entry(user).or_default() += 1;
            }
            for (name, allocation) in names.iter().zip(&allocations) {
                let due = allocation * rounds as u32;
                prop_assert!(had[name].abs_diff(due) <= *allocation, "{}: {} of {}", name, had[name], due);
            }
        }

        /// Whoever comes late is served within a round, however much the others have.
        #[test]
        fn nobody_waits_longer_than_a_round(
            allocations in prop::collection::vec(1..6_u32, 1..12),
            before in 0..200_usize,
            convoys in 1..40_u32,
        ) {
            let names: Vec<String> = (0..allocations.len()).map(|n| format!("user{n}")).collect();
            let shares: Vec<(&str, Share)> =
                names.iter().map(String::as_str).zip(allocations.iter().map(|&turns| allocated(turns))).collect();
            let mut ring = ring(names.iter().zip(1..).map(|(name, job)| lane(name, job, 1)), &shares);
            for _ in 0..before {
                let choice = ring.choose(&slot(), |_| true).expect("work");
                ring.charge(&choice, convoys);
            }
            ring.add(lane("late", 99, 1));
            let round = allocations.iter().sum::<u32>() as usize + 1;
            prop_assert!(turns(&mut ring, &slot(), round).iter().any(|(user, _)| user == "late"));
        }

        /// With requirements somebody is served what it meets, or nothing: never what it would not be served without them; and
        /// whoever meets all is served as if there were none.
        #[test]
        fn a_requirement_only_keeps_away(
            lanes in prop::collection::vec((0..4_usize, 0..3_i32, prop::option::of(0..3_u64)), 1..20),
            met in prop::collection::btree_set(0..3_u64, 0..4),
        ) {
            let candidates: Vec<Candidate> = lanes
                .iter()
                .zip(1..)
                .map(|((user, priority, requirement), job)| {
                    let requirement = requirement.map(RequirementId);
                    Candidate { priority: *priority, requirement, ..lane(&format!("user{user}"), job, 1) }
                })
                .collect();
            let met: Vec<u64> = met.into_iter().collect();
            let may = |candidate: &Candidate| candidate.requirement.is_none_or(|id| met.contains(&id.0));
            let chosen = ring(candidates.clone(), &[]).choose(&meets(&met), |_| true).map(|choice| choice.candidate);
            let eligible = candidates.iter().filter(|candidate| may(candidate)).cloned();
            let expected = ring(eligible, &[]).choose(&slot_that_meets_all(), |_| true).map(|choice| choice.candidate);
            prop_assert!(chosen.as_ref().is_none_or(may));
            prop_assert_eq!(chosen, expected);
            let free = candidates.iter().map(|candidate| Candidate { requirement: None, ..candidate.clone() });
            let job = |choice: Choice| choice.candidate.job_id;
            prop_assert_eq!(
                ring(candidates.clone(), &[]).choose(&slot_that_meets_all(), |_| true).map(job),
                ring(free, &[]).choose(&slot(), |_| true).map(job)
            );
        }

        /// Whatever may not run is never chosen, and what may is, if there is any.
        #[test]
        fn limits_are_kept(
            lanes in prop::collection::vec((0..5_usize, 0..3_i32, any::<bool>()), 1..30),
            rooms in prop::collection::vec(prop::option::of(0..3_u64), 5),
        ) {
            let lanes: Vec<(Candidate, bool)> = lanes
                .into_iter()
                .zip(1..)
                .map(|((user, priority, allowed), job)| {
                    (Candidate { priority, ..lane(&format!("user{user}"), job, 1) }, allowed)
                })
                .collect();
            let users: Vec<String> = (0..rooms.len()).map(|n| format!("user{n}")).collect();
            let limited = users.iter().zip(&rooms).filter_map(|(user, room)| Some((user.as_str().into(), (*room)?)));
            let limits = Rooms { users: limited.collect(), ..Rooms::default() };
            let ring = ring(lanes.iter().map(|(lane, _)| lane.clone()), &[]);
            let may_run: HashMap<JobId, bool> = lanes.iter().map(|(lane, allowed)| (lane.job_id, *allowed)).collect();
            let user_has_room = |lane: &Candidate| rooms[lane.user[4..].parse::<usize>().expect("a number")] != Some(0);
            let possible: Vec<&Candidate> =
                lanes.iter().filter(|(lane, allowed)| *allowed && user_has_room(lane)).map(|(lane, _)| lane).collect();
            let choice = ring.choose(&slot(), |lane| may_run[&lane.job_id] && limits.of(lane).is_none_or(|room| room.problems > 0));
            prop_assert_eq!(choice.is_some(), !possible.is_empty());
            if let Some(choice) = choice {
                prop_assert!(possible.contains(&&choice.candidate));
                prop_assert_eq!(Some(choice.candidate.priority), possible.iter().map(|lane| lane.priority).max());
            }
        }
    }
}
