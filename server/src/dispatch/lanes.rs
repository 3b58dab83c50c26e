//! The lanes in sight: their order of service, and for each what has been read ahead of its pointer.
//!
//! Reading ahead needs no lock, since what is visible in a lane never changes; whether it may be handed out is decided
//! at commit.

use super::HAND_OUTS_AT_ONCE;
use super::choose::{Candidate, Choice, Profile, Ring, Room, Rooms, Share};
use super::convoys::{Ahead, Taken};
use super::reading::Reading;
use super::refused::Refused;
use super::requirement::{RequirementId, Requirements};
use super::unreadable::{Unreadable, is_of_its_data};
use crate::farm::Farm;
use crate::session::Session;
use anyhow::Context;
use deadpool_postgres::ClientWrapper;
use futures_util::future::join_all;
use pcfarm_faults::{Bug, planted};
use pcfarm_proto::files::announced;
use pcfarm_proto::ids::{BatchOrder, JobId, LaneId};
use pcfarm_sql::job_types::JobType;
use pcfarm_sql::lanes::{self, ComingProblem, OpenLane};
use pcfarm_sql::pool::Kept;
use pcfarm_sql::sharing;
use pcfarm_sql::submit::Fresh;
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tokio::time::Instant;
use tracing::error;

pub type LaneKey = (JobId, LaneId);

/// Problems and bytes that reading on is for, at least, where one lane is next; and of each where many are. The fewer there
/// are, the more often cores go from one process to another, of whose memory they have nothing in their caches.
const AHEAD_PROBLEMS: usize = 16_000;
const AHEAD_BYTES: usize = 8 << 20;
const AHEAD_BYTES_OF_ALL: usize = 64 << 20;
const AHEAD_PROBLEMS_EACH: usize = 250;
const AHEAD_PROBLEMS_OF_ALL: usize = 256_000;

/// Where somebody waits for them.
const AWAITED_PROBLEMS: usize = 4_000;

/// Of all that are read at once, so that what commits meanwhile does not wait long for it.
const AHEAD_PROBLEMS_AT_ONCE: usize = 16_000;

/// What a lane that is not next may keep of it: as much as a small submission brings.
const AHEAD_KEPT_BYTES: usize = 32 << 10;

/// Lanes that are read while a call commits.
const READ_AT_ONCE: usize = 32;

/// Lanes that may come next: as many as two calls hand out from; where many take turns, of each so many. All of them are
/// walked with every call.
const COMING: usize = 2 * HAND_OUTS_AT_ONCE;
const COMING_OF_EACH: usize = 8;

/// How many times as much as is handed out meanwhile.
const READ_ON_TIMES: usize = 2;

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

/// A lane from which is served soon.
struct Coming<'a> {
    key: LaneKey,
    lane: &'a Lane,
    /// Problems that are ahead of it in its line, up to its end or to where it is read on.
    ahead: usize,
}

#[derive(Default)]
pub struct Lanes {
    lanes: HashMap<LaneKey, Lane>,
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
        self.ring.charge(choice, taken.convoys);
        self.rooms.take(&choice.candidate, taken.problems.len(), taken.weight);
    }

    /// It came to nothing.
    pub fn refund(&mut self, choice: &Choice, convoys: u32) {
        self.ring.refund(choice, convoys);
    }

    /// Did a limit keep anybody from being served since this was asked last?
    pub fn was_short_of_room(&self) -> bool {
        self.short_of_room.take()
    }

    /// Lanes that are to be read on, the most urgent first: those that would soon end a round of decisions, which are for
    /// checkouts of so many problems, and some of the others that have less than half a portion ahead. All who take turns
    /// come to the end of theirs at the same time, unless they are read at different times.
    pub fn to_read(&self, largest: usize, handed_out: usize) -> Vec<LaneKey> {
        let (problems, bytes) = self.portion;
        let is_low = |coming: &Coming| {
            let is_half_read = coming.ahead >= problems / 2 || coming.lane.ahead.bytes() >= bytes / 2;
            !coming.lane.at_end && (!is_half_read || (coming.ahead < largest && !coming.lane.has_ahead(largest)))
        };
        // What a single checkout takes whole ends a round as soon as what is before it.
        let can_wait = |coming: &Coming| coming.ahead >= largest && coming.lane.remaining() > largest;
        let mut low: Vec<(bool, usize, LaneKey)> =
            self.coming().filter(is_low).map(|coming| (can_wait(&coming), coming.ahead, coming.key)).collect();
        low.sort_unstable();
        let others = (READ_ON_TIMES * handed_out).div_ceil(problems);
        let urgent = low.partition_point(|(can_wait, ..)| !can_wait);
        low.truncate(urgent.max(others).min(READ_AT_ONCE));
        low.into_iter().map(|(.., key)| key).collect()
    }

    /// Lanes from which is served next: the first of each that takes turns, and those behind it as far as little is before
    /// them.
    fn coming(&self) -> impl Iterator<Item = Coming<'_>> {
        let (problems, bytes) = self.portion;
        let of_each = (COMING / self.ring.lines().count().max(1)).max(COMING_OF_EACH);
        self.ring.lines().flat_map(move |line| {
            let mut before = Some((0, 0));
            line.iter().take(of_each).map_while(move |candidate| {
                let (problems_before, bytes_before) = before?;
                let key = key_of(candidate);
                let lane = self.lanes.get(&key)?;
                let to_its_end = problems_before + if lane.at_end { lane.ahead.problems() } else { lane.remaining() };
                let with_it = bytes_before + lane.ahead.bytes();
                before = (to_its_end < problems / 2 && with_it < bytes / 2).then_some((to_its_end, with_it));
                Some(Coming { key, lane, ahead: problems_before + lane.ahead.problems() })
            })
        })
    }

    /// How much of a lane is read ahead, so that memory does not grow with those who take turns.
    fn portion(&self) -> (usize, usize) {
        match self.ring.lines().count() {
            0 | 1 => (AHEAD_PROBLEMS, AHEAD_BYTES),
            many => {
                let problems = (AHEAD_PROBLEMS_OF_ALL / many).clamp(AHEAD_PROBLEMS_EACH, AHEAD_PROBLEMS);
                (problems, (AHEAD_BYTES_OF_ALL / many).clamp(AHEAD_KEPT_BYTES, AHEAD_BYTES))
            }
        }
    }

    /// Reads on in these lanes, so that what is ahead of each suffices for about so many problems. All is asked for at once,
    /// on one connection.
    pub async fn read_on(&mut self, wanted: &HashMap<LaneKey, usize>, line: &mut Kept) -> anyhow::Result<()> {
        if wanted.is_empty() {
            return Ok(());
        }
        let client = line.client().await.context("getting a connection")?;
        let (problems, bytes) = self.portion;
        let portion = (
            problems.min((AHEAD_PROBLEMS_AT_ONCE / wanted.len()).max(AHEAD_PROBLEMS_EACH)),
            bytes.min(AHEAD_BYTES_OF_ALL / wanted.len()),
        );
        let lanes = self.lanes.iter_mut().filter_map(|(key, lane)| Some((*key, lane, *wanted.get(key)?)));
        let reading = lanes.map(async |(key, lane, wanted)| {
            let at = lane.end();
            match self.unreadable.get(&key) {
                Some(unreadable) if unreadable.holds(at) => (key, at, Ok(false)),
                _ => (key, at, lane.read_ahead(client, wanted, portion).await.map(|()| true)),
            }
        });
        for (key, at, outcome) in join_all(reading).await {
            self.note_reading(key, at, outcome)?;
        }
        Ok(())
    }

    /// Reads on in one lane, of which somebody waits for so many problems.
    pub async fn read_ahead(&mut self, key: &LaneKey, line: &mut Kept, wanted: usize) -> anyhow::Result<()> {
        let client = line.client().await.context("getting a connection")?;
        let Some(lane) = self.lanes.get_mut(key) else { return Ok(()) };
        let at = lane.end();
        let (problems, bytes) = self.portion;
        let outcome = match self.unreadable.get(key) {
            Some(unreadable) if unreadable.holds(at) => Ok(false),
            _ => lane.read_ahead(client, wanted, (problems.min(AWAITED_PROBLEMS), bytes)).await.map(|()| true),
        };
        self.note_reading(*key, at, outcome)
    }

    /// Of a lane that was read on from there, or that was not tried. What one lane holds keeps nobody from the others.
    fn note_reading(&mut self, key: LaneKey, at: BatchOrder, outcome: anyhow::Result<bool>) -> anyhow::Result<()> {
        let lane = self.lanes.get_mut(&key);
        match outcome {
            Ok(true) => _ = self.unreadable.remove(&key),
            Ok(false) => lane.into_iter().for_each(|lane| lane.at_end = true),
            Err(error) if is_of_its_data(&error) => {
                let unreadable = Unreadable::again(self.unreadable.get(&key), at);
                error!(error = format!("{error:#}"), job_id = %key.0, lane_id = %key.1, batch_order = %at, pause = ?unreadable.pause,
                    "this lane cannot be read on: the others are served");
                self.unreadable.insert(key, unreadable);
                lane.into_iter().for_each(|lane| lane.at_end = true);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    pub fn get_mut(&mut self, key: &LaneKey) -> Option<&mut Lane> {
        self.lanes.get_mut(key)
    }

    pub fn remove(&mut self, farm: &Farm, key: &LaneKey) {
        if let Some(lane) = self.lanes.remove(key) {
            self.ring.remove(&lane.candidate);
            farm.lane_out_of_sight(key.0);
        }
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
        if let Some(lane) = self.lanes.remove(key) {
            self.ring.remove(&lane.candidate);
            farm.lane_out_of_sight(key.0);
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

    /// Reads which lanes there are, keeping what was read ahead where the pointer is where it was and somebody is to be
    /// served from it next: memory does not grow with the jobs.
    pub async fn look(&mut self, farm: &Arc<Farm>, line: &mut Kept) -> anyhow::Result<()> {
        let client = line.client().await?;
        let open = lanes::open_lanes(client).await.context("reading the open lanes")?;
        let shares = sharing::shares(client).await.context("reading users' shares")?;
        let mut before = std::mem::take(&mut self.lanes);
        let now = Instant::now();
        self.refused.tidy(now);
        self.requirements.begin_look();
        self.share(shares);
        let last_seen = self.last_seen;
        for open in open {
            if planted(Bug::SkipsLateLoads) && !open.came_back {
                if !before.contains_key(&(open.job_id, open.lane_id)) && Some(open.lane_id) <= last_seen {
                    continue;
                }
                self.last_seen = self.last_seen.max(Some(open.lane_id));
            }
            if farm.troubles.concern(Some(open.job_id), &open.job_type) {
                continue;
            }
            let Some(job_type) = farm.job_type(&open.job_type) else {
                // A job type younger than our copy of them.
                farm.reload_job_types().await.context("reading the job types")?;
                continue;
            };
            let key = (open.job_id, open.lane_id);
            if self.aside.get(&key).is_some_and(|lane| lane.next < open.next_extraction) {
                // Another server has moved it on: nobody has locked it.
                self.refused.remove(&key);
            }
            if self.refused.holds(&key, now) {
                continue;
            }
            let known = before.remove(&key).or_else(|| self.aside.remove(&key));
            let bytes_each = known.as_ref().and_then(|lane| lane.bytes_each);
            let most_small = known.as_ref().map_or(usize::MAX, |lane| lane.most_small);
            let (ahead, at_end) = match known {
                Some(mut lane) if lane.next <= open.next_extraction => {
                    // What is visible in a lane never changes: another server has handed out the first of it.
                    lane.ahead.skip_to(open.next_extraction);
                    // A retry lane may have grown.
                    let is_as_it_was = !open.came_back && open.next_insertion == lane.open.next_insertion;
                    (lane.ahead, lane.at_end && is_as_it_was)
                }
                _ => (Ahead::default(), false),
            };
            let candidate = self.candidate(&open, &job_type);
            self.ring.add(candidate.clone());
            let next = open.next_extraction;
            let lane = Lane { next, candidate, ahead, open: Arc::new(open), at_end, bytes_each, most_small };
            self.lanes.insert(key, lane);
        }
        self.unreadable.retain(|key, _| self.lanes.contains_key(key));
        self.portion = self.portion();
        let next: HashSet<LaneKey> = self.coming().map(|coming| coming.key).collect();
        for (key, lane) in &mut self.lanes {
            if lane.ahead.bytes() > AHEAD_KEPT_BYTES && !next.contains(key) {
                (lane.ahead, lane.at_end) = (Ahead::default(), false);
            }
        }
        self.aside.retain(|key, _| self.refused.holds(key, now));
        self.requirements.end_look();
        self.looked = true;
        farm.lanes_in_sight(self.lanes.keys().map(|key| key.0));
        Ok(())
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
        let candidate = self.candidate(&open, &job_type);
        self.ring.add(candidate.clone());
        let mut ahead = Ahead::default();
        ahead.extend(problems, true);
        let next = open.next_extraction;
        let (bytes_each, most_small) = (None, usize::MAX);
        let lane = Lane { next, candidate, ahead, open: Arc::new(open), at_end: true, bytes_each, most_small };
        self.lanes.insert(key, lane);
        farm.lane_in_sight(key.0);
        true
    }

    fn candidate(&mut self, open: &OpenLane, job_type: &JobType) -> Candidate {
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
            controller: announced(&job_type.controller).into(),
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

    /// Is enough ahead for a checkout of so many, as far as there is any?
    pub fn has_ahead(&self, wanted: usize) -> bool {
        self.at_end || self.ahead.problems() >= wanted || self.ahead.bytes() >= AHEAD_BYTES
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

    async fn read_ahead(
        &mut self,
        client: &ClientWrapper,
        wanted: usize,
        portion: (usize, usize),
    ) -> anyhow::Result<()> {
        let missing = wanted.saturating_sub(self.ahead.problems());
        let mut reading = Reading::first(missing, portion, self.most_small, self.bytes_each, self.open.came_back);
        loop {
            let coming = lanes::coming_problems(client, &self.open, reading.portion(self.end()))
                .await
                .with_context(|| format!("reading ahead in lane {} of job {}", self.open.lane_id, self.open.job_id))?;
            self.at_end = coming.to_the_end;
            let (read, by_size) = (coming.problems.len(), coming.by_size);
            self.most_small = reading.most_next(read, by_size, coming.to_the_end).unwrap_or(self.most_small);
            if by_size && read > 0 {
                self.bytes_each = Some(coming.problems.iter().map(ComingProblem::bytes).sum::<usize>() / read);
            }
            if self.ahead.extend(coming.problems, coming.to_the_end) || read == 0 {
                return Ok(());
            }
            reading = reading.more(read, by_size)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcfarm_proto::ids::ProblemId;

    /// A lane of as many problems as `of`, of which so many are ahead, from user `user` in its job.
    fn lane(user: usize, job: i64, ahead: i64, of: i64) -> Lane {
        let (job_id, lane_id, owner) = (JobId(job), LaneId(job), Arc::<str>::from(format!("user{user:03}")));
        let job_type: Arc<str> = "noop".into();
        let candidate = Candidate {
            job_id,
            lane_id,
            user: owner.clone(),
            job_type: job_type.clone(),
            of_type: None,
            controller: "echo".into(),
            requirement: None,
            priority: 0,
            deadline: None,
            late: false,
            urgency: 0,
            came_back: false,
            first: false,
        };
        let open = OpenLane {
            job_id,
            owner,
            job_name: String::new(),
            priority: 0,
            deadline: None,
            late: false,
            parameters: None,
            urgency: 0,
            lane_id,
            job_type,
            of_type: None,
            came_back: false,
            first: false,
            next_extraction: BatchOrder(0),
            next_insertion: BatchOrder(of),
            problems: of,
            has_info: false,
            has_files: false,
            problem_files: false,
            requirement: None,
            trace_parent: None,
        };
        let mut lane = Lane {
            open: Arc::new(open),
            candidate,
            ahead: Ahead::default(),
            next: BatchOrder(0),
            at_end: false,
            bytes_each: None,
            most_small: usize::MAX,
        };
        read(&mut lane, ahead);
        lane
    }

    /// What reading on by so many problems does to a lane.
    fn read(lane: &mut Lane, problems: i64) {
        let from = lane.ahead.end().unwrap_or(lane.next).0;
        let to = lane.open.next_insertion.0.min(from + problems);
        let problem = |order| ComingProblem {
            problem_id: ProblemId(order),
            batch_order: BatchOrder(order),
            key: String::new(),
            payload: pcfarm_sql::json::RawJson::default(),
            weight: 1,
            attempts: 0,
            alone: false,
            grouped: false,
            home_lane: lane.open.lane_id,
            home_order: BatchOrder(order),
        };
        lane.ahead.extend((from..to).map(problem).collect(), true);
        lane.at_end = to == lane.open.next_insertion.0;
    }

    fn lanes(all: impl IntoIterator<Item = Lane>) -> Lanes {
        let mut lanes = Lanes::default();
        for lane in all {
            lanes.ring.add(lane.candidate.clone());
            lanes.lanes.insert(key_of(&lane.candidate), lane);
        }
        lanes.portion = lanes.portion();
        lanes
    }

    #[test]
    fn the_emptiest_lanes_are_read_first_and_no_more_than_is_handed_out_twice() {
        let lanes = lanes((0..200).map(|n| lane(n, n as i64, 300 + n as i64, 1_000_000)));
        let jobs = |keys: Vec<LaneKey>| keys.into_iter().map(|(job, _)| job.0).collect::<Vec<_>>();
        assert_eq!(lanes.portion.0, 1280);
        assert_eq!(jobs(lanes.to_read(100, 1280)), [0, 1], "as much again, twice");
        assert_eq!(jobs(lanes.to_read(100, 1)), [0], "something, however little");
        assert_eq!(jobs(lanes.to_read(304, 1)), [0, 1, 2, 3], "all that would end a round");
        assert_eq!(lanes.to_read(100, 1_000_000).len(), READ_AT_ONCE);
    }

    #[test]
    fn a_lane_behind_one_that_ends_soon_is_read_before_its_turn() {
        let ends_soon = || lane(0, 1, 100, 100);
        assert!(ends_soon().at_end);
        let (first, second) = (ends_soon(), lane(0, 2, 0, 1_000_000));
        let key = key_of(&second.candidate);
        assert_eq!(lanes([first, second]).to_read(10, 100), [key]);
        let (first, second) = (lane(0, 1, 100, 1_000_000), lane(0, 2, 0, 1_000_000));
        let key = key_of(&first.candidate);
        assert_eq!(lanes([first, second]).to_read(10, 100), [key], "and not behind one that does not");
    }

    #[test]
    fn of_many_small_lanes_as_many_are_read_as_a_round_can_do_with() {
        let small = |n: i64| lane(0, n, 0, 10);
        let jobs = |keys: Vec<LaneKey>| keys.into_iter().map(|(job, _)| job.0).collect::<Vec<_>>();
        let all = lanes((0..1_000).map(small));
        assert_eq!(jobs(all.to_read(10, 10)), (0..READ_AT_ONCE as i64).collect::<Vec<_>>());
        let one_is_large = lanes((0..1_000).map(|n| if n == 3 { lane(0, n, 0, 1_000_000) } else { small(n) }));
        assert_eq!(jobs(one_is_large.to_read(10, 10)), [0, 1, 2], "none behind one that does not end soon");
        let mut half_read = lanes((0..1_000).map(small));
        for n in 0..COMING as i64 {
            read(half_read.get_mut(&(JobId(n), LaneId(n))).expect("in sight"), 10);
        }
        assert!(half_read.to_read(10, 10).is_empty(), "as many are ahead as two calls hand out from");
    }

    #[test]
    fn lanes_of_large_problems_are_read_until_there_is_no_room() {
        let mut all = lanes((0..1_000).map(|n| lane(0, n, 0, 2)));
        all.portion = (all.portion.0, 64 * size_of::<ComingProblem>());
        for n in 0..16 {
            read(all.get_mut(&(JobId(n), LaneId(n))).expect("in sight"), 2);
        }
        assert!(all.to_read(10, 10).is_empty());
    }

    /// Users of equal shares take turns in step: if their lanes were read in step, nobody could be served meanwhile.
    #[test]
    fn lanes_that_began_together_are_not_read_together() {
        const USERS: usize = 200;
        /// Rounds until they are apart.
        const FIRST: usize = 60;
        let mut lanes = lanes((0..USERS).map(|n| lane(n, n as i64, 0, 1_000_000)));
        let keys: Vec<LaneKey> = (0..USERS as i64).map(|n| (JobId(n), LaneId(n))).collect();
        let mut turn = 0;
        let mut ended_early = 0;
        for round in 0..400 {
            let mut handed_out = 0;
            while handed_out < 64 * 100 {
                let lane = lanes.get_mut(&keys[turn % USERS]).expect("in sight");
                if !lane.has_ahead(100) {
                    ended_early += usize::from(round >= FIRST);
                    break;
                }
                lane.take(100, u64::MAX, u64::MAX).expect("it has them");
                handed_out += 100;
                turn += 1;
            }
            let to_read = lanes.to_read(100, handed_out);
            let portion = lanes.portion.0.min((AHEAD_PROBLEMS_AT_ONCE / to_read.len().max(1)).max(AHEAD_PROBLEMS_EACH));
            assert!(round < FIRST || to_read.len() <= 12, "{} lanes at once in round {round}", to_read.len());
            for key in to_read {
                read(lanes.get_mut(&key).expect("in sight"), portion as i64);
            }
        }
        assert_eq!(ended_early, 0, "rounds that ended because a lane had not been read");
    }
}
