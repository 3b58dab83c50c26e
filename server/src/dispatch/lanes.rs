//! The lanes in sight: their order of service, and for each what has been read ahead of its pointer.
//!
//! Reading ahead needs no lock, since what is visible in a lane never changes; whether it may be handed out is decided
//! at commit.

use super::choose::{self, Candidate};
use super::convoys::{self, Convoy};
use crate::farm::Farm;
use anyhow::Context;
use pcfarm_proto::ids::{BatchOrder, JobId, LaneId};
use pcfarm_sql::lanes::{self, OpenLane};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tracing::error;

pub type LaneKey = (JobId, LaneId);

/// Problems and payload that one reading ahead is for, at first.
const AHEAD_PROBLEMS: i64 = 2_000;
const AHEAD_BYTES: i64 = 8 << 20;

/// A convoy that is larger than this is not read: it would not fit anywhere.
const CONVOY_PROBLEMS_LIMIT: i64 = 200_000;

pub struct Lane {
    pub open: OpenLane,
    ahead: VecDeque<Convoy>,
    next: BatchOrder,
}

#[derive(Default)]
pub struct Lanes {
    lanes: HashMap<LaneKey, Lane>,
    ordered: Vec<Candidate>,
    looked: bool,
}

impl Lanes {
    pub fn stale(&self) -> bool {
        !self.looked
    }

    /// Nothing that is remembered can be trusted.
    pub fn forget(&mut self) {
        *self = Lanes::default();
    }

    /// The lanes in the order of service.
    pub fn candidates(&self) -> &[Candidate] {
        &self.ordered
    }

    pub fn get_mut(&mut self, key: &LaneKey) -> Option<&mut Lane> {
        self.lanes.get_mut(key)
    }

    pub fn remove(&mut self, key: &LaneKey) {
        self.lanes.remove(key);
        self.ordered.retain(|c| (c.job_id, c.lane_id) != *key);
    }

    /// Reads which lanes there are, keeping what was read ahead where the pointer is where it was.
    pub async fn look(&mut self, farm: &Arc<Farm>) -> anyhow::Result<()> {
        let client = farm.pool.get().await.context("getting a connection")?;
        let open = lanes::open_lanes(&client).await.context("reading the open lanes")?;
        let mut before = std::mem::take(&mut self.lanes);
        self.ordered.clear();
        for open in open {
            let Some(job_type) = farm.job_type(&open.job_type) else {
                // A job type younger than our copy of them.
                farm.reload_job_types().await.context("reading the job types")?;
                continue;
            };
            let key = (open.job_id, open.lane_id);
            self.ordered.push(Candidate {
                job_id: open.job_id,
                lane_id: open.lane_id,
                priority: open.priority,
                deadline: open.deadline,
                came_back: open.came_back,
                first: open.first,
                controller: job_type.controller.clone(),
            });
            let ahead = match before.remove(&key) {
                Some(lane) if lane.next == open.next_extraction => lane.ahead,
                _ => VecDeque::new(),
            };
            self.lanes.insert(key, Lane { next: open.next_extraction, ahead, open });
        }
        self.ordered.sort_by(choose::order);
        self.looked = true;
        Ok(())
    }

    /// A hand-out of this lane was refused: somebody else has moved it on, or its job is not open any more.
    pub async fn refresh(&mut self, farm: &Arc<Farm>, key: &LaneKey) -> anyhow::Result<()> {
        self.remove(key);
        self.look(farm).await
    }
}

impl Lane {
    /// Where the next checkout starts.
    pub fn next(&self) -> BatchOrder {
        self.next
    }

    /// About how many problems are still to be handed out.
    pub fn remaining(&self) -> usize {
        let ahead: usize = self.ahead.iter().map(|c| c.problems.len()).sum();
        let orders = (self.open.next_insertion.0 - self.next.0).max(0);
        let all = self.open.next_insertion.0.max(1);
        // Orders may be sparse: problems an order on average.
        let by_orders = (self.open.problems as i128 * i128::from(orders) / i128::from(all)) as usize;
        if self.open.came_back { ahead.max(orders as usize) } else { by_orders.max(ahead) }
    }

    /// Must the next convoy be alone in its workstation's hands?
    pub async fn next_is_suspect(&mut self, farm: &Arc<Farm>, wanted: usize) -> anyhow::Result<bool> {
        self.have_ahead(farm, wanted).await?;
        Ok(self.ahead.front().is_some_and(Convoy::is_suspect))
    }

    async fn have_ahead(&mut self, farm: &Arc<Farm>, wanted: usize) -> anyhow::Result<()> {
        let ahead: usize = self.ahead.iter().map(|c| c.problems.len()).sum();
        if ahead < wanted {
            self.read_ahead(farm, wanted).await?;
        }
        Ok(())
    }

    /// Takes whole convoys, reading on as needed. Nothing: the lane is at its end.
    pub async fn take(&mut self, farm: &Arc<Farm>, wanted: usize) -> anyhow::Result<Vec<Convoy>> {
        self.have_ahead(farm, wanted).await?;
        let taken = convoys::take(&mut self.ahead, wanted);
        if let Some(last) = taken.last() {
            self.next = BatchOrder(last.order.0 + 1);
        }
        Ok(taken)
    }

    async fn read_ahead(&mut self, farm: &Arc<Farm>, wanted: usize) -> anyhow::Result<()> {
        let client = farm.pool.get().await.context("getting a connection")?;
        let mut limit = AHEAD_PROBLEMS.max(2 * wanted as i64);
        let mut bytes = AHEAD_BYTES;
        loop {
            let from = self.ahead.back().map_or(self.next, |last| BatchOrder(last.order.0 + 1));
            let coming = lanes::coming_problems(&client, &self.open, from, limit, bytes)
                .await
                .with_context(|| format!("reading ahead in lane {} of job {}", self.open.lane_id, self.open.job_id))?;
            let any = !coming.problems.is_empty();
            let convoys = convoys::cut(coming.problems, coming.to_the_end);
            let nothing_whole = any && convoys.is_empty();
            self.ahead.extend(convoys);
            if !nothing_whole {
                return Ok(());
            }
            // One convoy is larger than what was asked for: ask for more.
            if limit >= CONVOY_PROBLEMS_LIMIT {
                error!(job_id = %self.open.job_id, lane_id = %self.open.lane_id, batch_order = %from,
                    "this convoy has more than {CONVOY_PROBLEMS_LIMIT} problems and cannot be handed out");
                return Ok(());
            }
            (limit, bytes) = (limit * 4, bytes * 4);
        }
    }
}
