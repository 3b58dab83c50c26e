//! What is read ahead of the lanes' pointers: of which, how much, and how much of it is kept.
//!
//! Reading ahead needs no lock, since what is visible in a lane never changes.

use super::{Lane, LaneKey, Lanes, key_of};
use crate::dispatch::convoys::Ahead;
use crate::dispatch::decide::HAND_OUTS_AT_ONCE;
use crate::dispatch::reading::Reading;
use crate::dispatch::unreadable::{TooSlow, Unreadable, is_of_its_data};
use anyhow::Context;
use deadpool_postgres::ClientWrapper;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use pcfarm_proto::ids::BatchOrder;
use pcfarm_sql::lanes::{self, ComingProblem};
use pcfarm_sql::pool::Kept;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use tracing::error;

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

/// Longest that reading on may take in all, as nobody is served meanwhile: more than a single statement may take, so that one
/// that takes too long is told from the others; less than what the watchdog takes for a hang.
const READING_DEADLINE: Duration = Duration::from_secs(60);

/// How many times as much as is handed out meanwhile.
const READ_ON_TIMES: usize = 2;

/// A lane from which is served soon.
struct Coming<'a> {
    key: LaneKey,
    lane: &'a Lane,
    /// Problems that are ahead of it in its line, up to its end or to where it is read on.
    ahead: usize,
}

impl Lanes {
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

    /// After a look: drops what is ahead of lanes that are not next, but for a little of each. Memory does not grow with the
    /// jobs.
    pub(super) fn keep_what_is_next(&mut self) {
        self.portion = self.portion();
        let next: HashSet<LaneKey> = self.coming().map(|coming| coming.key).collect();
        for (key, lane) in &mut self.lanes {
            if lane.ahead.bytes() > AHEAD_KEPT_BYTES && !next.contains(key) {
                (lane.ahead, lane.at_end) = (Ahead::default(), false);
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
        // Who is dropped here leaves them to the next look.
        let mut lanes: Vec<(LaneKey, Lane)> = wanted.keys().filter_map(|key| self.lanes.remove_entry(key)).collect();
        let mut ends: HashMap<LaneKey, BatchOrder> = lanes.iter().map(|(key, lane)| (*key, lane.end())).collect();
        let mut reading: FuturesUnordered<_> = lanes
            .iter_mut()
            .map(async |(key, lane)| {
                let outcome = match self.unreadable.get(key) {
                    Some(unreadable) if unreadable.holds(lane.end()) => Ok(false),
                    _ => lane.read_ahead(client, wanted[key], portion).await.map(|()| true),
                };
                (*key, outcome)
            })
            .collect();
        let deadline = Instant::now() + READING_DEADLINE;
        let mut outcomes = Vec::new();
        let mut failed = None;
        while let Ok(Some((key, outcome))) = timeout_at(deadline, reading.next()).await {
            match outcome {
                // The others would meet the same, one after the other.
                Err(error) if !is_of_its_data(&error) => {
                    failed = Some(error);
                    break;
                }
                outcome => outcomes.push((key, ends.remove(&key).expect("it was asked for"), outcome)),
            }
        }
        let is_late = failed.is_none() && !reading.is_empty();
        drop(reading);
        self.lanes.extend(lanes);
        for (key, at, outcome) in outcomes {
            self.note_reading(key, at, outcome)?;
        }
        if is_late {
            // One of these holds up the others, and nobody knows which: each is left for a while.
            let late = |(key, at)| (key, at, Err(anyhow::Error::new(TooSlow)));
            ends.into_iter().map(late).try_for_each(|(key, at, outcome)| self.note_reading(key, at, outcome))?;
        }
        if is_late || failed.is_some() {
            line.close();
        }
        failed.map_or(Ok(()), Err)
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
                let unreadable = match error.is::<TooSlow>() {
                    true => Unreadable::for_now(at),
                    false => Unreadable::again(self.unreadable.get(&key), at),
                };
                error!(error = format!("{error:#}"), job_id = %key.0, lane_id = %key.1, batch_order = %at, pause = ?unreadable.pause,
                    "this lane cannot be read on: the others are served");
                self.unreadable.insert(key, unreadable);
                lane.into_iter().for_each(|lane| lane.at_end = true);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl Lane {
    /// Is enough ahead for a checkout of so many, as far as there is any?
    pub fn has_ahead(&self, wanted: usize) -> bool {
        self.at_end || self.ahead.problems() >= wanted || self.ahead.bytes() >= AHEAD_BYTES
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
pub mod tests {
    use super::*;
    use crate::dispatch::choose::Candidate;
    use pcfarm_proto::ids::{JobId, LaneId, ProblemId};
    use pcfarm_sql::lanes::OpenLane;
    use std::sync::Arc;

    /// A lane of as many problems as `of`, of which so many are ahead, from user `user` in its job.
    pub fn lane(user: usize, job: i64, ahead: i64, of: i64) -> Lane {
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
            key: Default::default(),
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

    pub fn lanes(all: impl IntoIterator<Item = Lane>) -> Lanes {
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
