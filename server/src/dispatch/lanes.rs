//! The lanes in sight: their order of service, and for each what has been read ahead of its pointer.
//!
//! Reading ahead needs no lock, since what is visible in a lane never changes; whether it may be handed out is decided
//! at commit.

use super::choose::{Candidate, Choice, Profile, Ring, Room, Rooms, Share};
use super::convoys::{Ahead, Taken};
use crate::farm::Farm;
use crate::session::Session;
use anyhow::Context;
use pcfarm_faults::{Bug, planted};
use pcfarm_proto::ids::{BatchOrder, JobId, LaneId};
use pcfarm_sql::job_types::JobType;
use pcfarm_sql::lanes::{self, ComingProblem, OpenLane, Portion};
use pcfarm_sql::pool::Kept;
use pcfarm_sql::sharing;
use pcfarm_sql::submit::Fresh;
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tracing::error;

pub type LaneKey = (JobId, LaneId);

/// Problems and bytes that one reading ahead is for, at least, where one lane is next; and of each where many are.
const AHEAD_PROBLEMS: usize = 4_000;
const AHEAD_BYTES: usize = 8 << 20;
const AHEAD_BYTES_OF_ALL: usize = 64 << 20;
const AHEAD_PROBLEMS_EACH: usize = 250;
const AHEAD_PROBLEMS_OF_ALL: usize = 256_000;

/// What a lane that is not next may keep of it: as much as a small submission brings.
const AHEAD_KEPT_BYTES: usize = 32 << 10;

/// Most problems that one reading ahead is for, unless a convoy is larger.
const AHEAD_PROBLEMS_LIMIT: usize = 20_000;

/// A convoy that is larger than this is not read: it would not fit anywhere.
const CONVOY_PROBLEMS_LIMIT: usize = 200_000;

pub struct Lane {
    pub open: Arc<OpenLane>,
    candidate: Candidate,
    ahead: Ahead,
    next: BatchOrder,
    /// What is ahead goes to the end of the lane as it was when it was read.
    at_end: bool,
}

#[derive(Default)]
pub struct Lanes {
    lanes: HashMap<LaneKey, Lane>,
    /// Those of which a hand-out was refused, until the next look.
    aside: HashMap<LaneKey, Lane>,
    ring: Ring,
    rooms: Rooms,
    /// What profiles say instead of jobs.
    priorities: HashMap<Arc<str>, i32>,
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
        *self = Lanes { last_seen: self.last_seen, ring, ..Lanes::default() };
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

    /// Those that may be next and have less than so many problems ahead.
    pub fn unread(&self, least: usize) -> impl Iterator<Item = LaneKey> {
        let unread = move |key: &LaneKey| self.lanes.get(key).is_some_and(|lane| !lane.has_ahead(least));
        self.ring.firsts().map(key_of).filter(move |key| unread(key))
    }

    /// How much of a lane is read ahead, so that memory does not grow with those who take turns.
    fn portion(&self) -> (usize, usize) {
        match self.ring.firsts().count() {
            0 | 1 => (AHEAD_PROBLEMS, AHEAD_BYTES),
            many => {
                let problems = (AHEAD_PROBLEMS_OF_ALL / many).clamp(AHEAD_PROBLEMS_EACH, AHEAD_PROBLEMS);
                (problems, (AHEAD_BYTES_OF_ALL / many).clamp(AHEAD_KEPT_BYTES, AHEAD_BYTES))
            }
        }
    }

    /// Reads on in a lane, so that what is ahead suffices for about so many problems.
    pub async fn read_ahead(&mut self, key: &LaneKey, line: &mut Kept, wanted: usize) -> anyhow::Result<()> {
        let portion = self.portion();
        match self.lanes.get_mut(key) {
            Some(lane) => lane.read_ahead(line, wanted, portion).await,
            None => Ok(()),
        }
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

    /// Puts aside a lane that is not where it was thought to be, with what was taken from it last: much of it may still be
    /// to come.
    pub fn set_aside(&mut self, farm: &Farm, key: &LaneKey, from: BatchOrder, problems: Vec<ComingProblem>) {
        if let Some(lane) = self.lanes.remove(key) {
            self.ring.remove(&lane.candidate);
            farm.lane_out_of_sight(key.0);
            self.aside.insert(*key, lane);
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
        self.share(shares);
        let last_seen = self.last_seen;
        for open in open {
            if planted(Bug::SkipsLateLoads) && !open.came_back {
                if !before.contains_key(&(open.job_id, open.lane_id)) && Some(open.lane_id) <= last_seen {
                    continue;
                }
                self.last_seen = self.last_seen.max(Some(open.lane_id));
            }
            let Some(job_type) = farm.job_type(&open.job_type) else {
                // A job type younger than our copy of them.
                farm.reload_job_types().await.context("reading the job types")?;
                continue;
            };
            let key = (open.job_id, open.lane_id);
            let ahead = match before.remove(&key).or_else(|| self.aside.remove(&key)) {
                Some(mut lane) if lane.next <= open.next_extraction => {
                    // What is visible in a lane never changes: another server has handed out the first of it.
                    lane.ahead.skip_to(open.next_extraction);
                    lane.ahead
                }
                _ => Ahead::default(),
            };
            let candidate = self.candidate(&open, &job_type);
            self.ring.add(candidate.clone());
            // A retry lane may have grown.
            self.lanes.insert(
                key,
                Lane { next: open.next_extraction, candidate, ahead, open: Arc::new(open), at_end: false },
            );
        }
        let next: HashSet<LaneKey> = self.ring.firsts().map(key_of).collect();
        for (key, lane) in &mut self.lanes {
            if lane.ahead.bytes() > AHEAD_KEPT_BYTES && !next.contains(key) {
                lane.ahead = Ahead::default();
            }
        }
        self.aside.clear();
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
        let Fresh { lane: open, problems } = fresh;
        let key = (open.job_id, open.lane_id);
        let Some(job_type) = farm.job_type(&open.job_type) else { return false };
        if self.stale() || self.lanes.contains_key(&key) || !self.ring.knows(&open.owner) {
            return false;
        }
        let candidate = self.candidate(&open, &job_type);
        self.ring.add(candidate.clone());
        let mut ahead = Ahead::default();
        ahead.extend(problems, true);
        let next = open.next_extraction;
        self.lanes.insert(key, Lane { next, candidate, ahead, open: Arc::new(open), at_end: true });
        farm.lane_in_sight(key.0);
        true
    }

    fn candidate(&self, open: &OpenLane, job_type: &JobType) -> Candidate {
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
            controller: job_type.controller.as_str().into(),
            labels: job_type.labels.clone(),
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

    async fn read_ahead(&mut self, line: &mut Kept, wanted: usize, portion: (usize, usize)) -> anyhow::Result<()> {
        let client = line.client().await.context("getting a connection")?;
        let missing = wanted.saturating_sub(self.ahead.problems());
        // One more, by which a convoy that ends there is seen to be whole.
        let mut limit = missing.clamp(portion.0, AHEAD_PROBLEMS_LIMIT) + 1;
        let mut bytes = portion.1;
        let mut only_small = true;
        loop {
            let from = self.ahead.end().unwrap_or(self.next);
            let portion = Portion { from, problems: limit as i64, bytes: bytes as i64, only_small };
            let coming = lanes::coming_problems(client, &self.open, portion)
                .await
                .with_context(|| format!("reading ahead in lane {} of job {}", self.open.lane_id, self.open.job_id))?;
            self.at_end = coming.to_the_end;
            let any = !coming.problems.is_empty();
            if self.ahead.extend(coming.problems, coming.to_the_end) || !any {
                return Ok(());
            }
            if only_small {
                only_small = false;
                continue;
            }
            // One convoy is larger than what was asked for: ask for more.
            if limit >= CONVOY_PROBLEMS_LIMIT {
                error!(job_id = %self.open.job_id, lane_id = %self.open.lane_id, batch_order = %from,
                    "this convoy has more than {CONVOY_PROBLEMS_LIMIT} problems and cannot be handed out");
                self.at_end = true;
                return Ok(());
            }
            (limit, bytes) = (limit * 4, bytes * 4);
        }
    }
}
