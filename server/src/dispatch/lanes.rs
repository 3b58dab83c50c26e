//! The lanes in sight: their order of service, and for each what has been read ahead of its pointer.
//!
//! Reading ahead needs no lock, since what is visible in a lane never changes; whether it may be handed out is decided
//! at commit.

use super::choose::{Candidate, Ordered};
use super::convoys::{Ahead, Taken};
use crate::farm::Farm;
use anyhow::Context;
use pcfarm_faults::{Bug, planted};
use pcfarm_proto::ids::{BatchOrder, JobId, LaneId};
use pcfarm_sql::job_types::JobType;
use pcfarm_sql::lanes::{self, OpenLane, Portion};
use pcfarm_sql::pool::Kept;
use pcfarm_sql::submit::Fresh;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tracing::error;

pub type LaneKey = (JobId, LaneId);

/// Problems and large payload that one reading ahead is for, at least.
const AHEAD_PROBLEMS: usize = 4_000;
const AHEAD_BYTES: usize = 8 << 20;

/// What a lane that is not next may keep of it: as much as a small submission brings.
const AHEAD_KEPT_BYTES: usize = 32 << 10;

/// Most problems that one reading ahead is for, unless a convoy is larger.
const AHEAD_PROBLEMS_LIMIT: usize = 20_000;

/// A convoy that is larger than this is not read: it would not fit anywhere.
const CONVOY_PROBLEMS_LIMIT: usize = 200_000;

pub struct Lane {
    pub open: OpenLane,
    candidate: Candidate,
    ahead: Ahead,
    next: BatchOrder,
    /// What is ahead goes to the end of the lane as it was when it was read.
    at_end: bool,
}

#[derive(Default)]
pub struct Lanes {
    lanes: HashMap<LaneKey, Lane>,
    ordered: Ordered,
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
        *self = Lanes { last_seen: self.last_seen, ..Lanes::default() };
    }

    /// The best of those that a workstation with these controllers can run.
    pub fn best(&self, controllers: &HashSet<String>) -> Option<LaneKey> {
        self.ordered.choose(controllers).map(key_of)
    }

    pub fn get_mut(&mut self, key: &LaneKey) -> Option<&mut Lane> {
        self.lanes.get_mut(key)
    }

    pub fn remove(&mut self, farm: &Farm, key: &LaneKey) {
        if let Some(lane) = self.lanes.remove(key) {
            self.ordered.remove(&lane.candidate);
            farm.lane_out_of_sight(key.0);
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
        let open = lanes::open_lanes(line.client().await?).await.context("reading the open lanes")?;
        let mut before = std::mem::take(&mut self.lanes);
        self.ordered = Ordered::default();
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
            let ahead = match before.remove(&key) {
                Some(lane) if lane.next == open.next_extraction => lane.ahead,
                _ => Ahead::default(),
            };
            let candidate = candidate(&open, &job_type);
            self.ordered.add(candidate.clone());
            // A retry lane may have grown.
            self.lanes.insert(key, Lane { next: open.next_extraction, candidate, ahead, open, at_end: false });
        }
        let next: HashSet<LaneKey> = self.ordered.first().map(key_of).collect();
        for (key, lane) in &mut self.lanes {
            if lane.ahead.bytes() > AHEAD_KEPT_BYTES && !next.contains(key) {
                lane.ahead = Ahead::default();
            }
        }
        self.looked = true;
        farm.lanes_in_sight(self.lanes.keys().map(|key| key.0));
        Ok(())
    }

    /// Takes in a lane that has just been committed, whole. False: only a look can tell.
    pub fn add(&mut self, farm: &Farm, fresh: Fresh) -> bool {
        let Fresh { lane: open, problems } = fresh;
        let key = (open.job_id, open.lane_id);
        let Some(job_type) = farm.job_type(&open.job_type) else { return false };
        if self.stale() || self.lanes.contains_key(&key) {
            return false;
        }
        let candidate = candidate(&open, &job_type);
        self.ordered.add(candidate.clone());
        let mut ahead = Ahead::default();
        ahead.extend(problems, true);
        self.lanes.insert(key, Lane { next: open.next_extraction, candidate, ahead, open, at_end: true });
        farm.lane_in_sight(key.0);
        true
    }
}

fn key_of(candidate: &Candidate) -> LaneKey {
    (candidate.job_id, candidate.lane_id)
}

fn candidate(open: &OpenLane, job_type: &JobType) -> Candidate {
    Candidate {
        job_id: open.job_id,
        lane_id: open.lane_id,
        priority: open.priority,
        deadline: open.deadline,
        came_back: open.came_back,
        first: open.first,
        controller: job_type.controller.clone(),
    }
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
    pub fn take(&mut self, wanted: usize) -> Option<Taken> {
        let taken = self.ahead.take(wanted)?;
        self.next = taken.to;
        Some(taken)
    }

    /// Reads on, so that what is ahead suffices for about so many problems.
    pub async fn read_ahead(&mut self, line: &mut Kept, wanted: usize) -> anyhow::Result<()> {
        let client = line.client().await.context("getting a connection")?;
        let missing = wanted.saturating_sub(self.ahead.problems());
        // One more, by which a convoy that ends there is seen to be whole.
        let mut limit = missing.clamp(AHEAD_PROBLEMS, AHEAD_PROBLEMS_LIMIT) + 1;
        let mut bytes = AHEAD_BYTES;
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
