//! Ends jobs that are empty: soon, those of which this server knows that they may be; and of all others some now and then, in
//! turn, as they are emptied by SQL, by other servers, or by nobody, and what this takes must not grow with their number.

use crate::farm::Farm;
use crate::traces::path;
use anyhow::Context;
use deadpool_postgres::ClientWrapper;
use pcfarm_faults::{CrashPoint, crash_point};
use pcfarm_proto::ids::JobId;
use pcfarm_sql::pool::Kept;
use pcfarm_sql::upkeep;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{info, warn};

/// Jobs are named one by one; this often is enough.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_FACTOR: u32 = 30;
const PAUSE_LIMIT: Duration = Duration::from_secs(1);

/// Some of all jobs are looked at each second, or sooner if any may be over, but for a fiftieth of the time, unless that is too
/// rarely.
const LOOK: Duration = Duration::from_secs(1);
const LOOK_FACTOR: u32 = 50;
const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// So many jobs are looked at by one statement.
const LOOKED_AT_ONCE: usize = 2_500;

/// Jobs that end in one transaction: until it commits, nothing is loaded into them.
const ENDED_AT_ONCE: usize = 50;

pub struct Ending {
    farm: Arc<Farm>,
    line: Kept,
    turn: Turn,
    /// When what is due was moved.
    moved: Instant,
}

impl Ending {
    pub fn new(farm: Arc<Farm>) -> Ending {
        let (line, now) = (Kept::planning_once(farm.pool.clone()), Instant::now());
        Ending { farm, line, turn: Turn::new(now), moved: now }
    }

    /// When there is something to do though no job is named.
    pub fn due(&self) -> Instant {
        self.turn.due(self.farm.maybe_over.is_any()).min(self.moved + LOOK)
    }

    /// Ends what is over of the jobs that were named and, if that is due, of the next ones of all. Returns how long to pause.
    pub async fn sweep(&mut self) -> Duration {
        let began = Instant::now();
        let named = self.farm.maybe_over.take_named();
        let outcome = self.end(named.clone()).await;
        self.noted(outcome, named);
        let took = began.elapsed();

        let began = Instant::now();
        if self.turn.due(self.farm.maybe_over.is_any()) <= began {
            let outcome = self.look().await;
            self.noted(outcome, Vec::new());
            self.turn.rest(began, began.elapsed());
        }
        (took * PAUSE_FACTOR).clamp(PAUSE, PAUSE_LIMIT)
    }

    /// What did not work is tried again with the next sweep.
    fn noted(&mut self, outcome: anyhow::Result<()>, named: Vec<JobId>) {
        if let Err(error) = outcome {
            warn!(error = format!("{error:#}"), "ending jobs failed: trying again");
            self.line.let_go();
            self.farm.maybe_over.name_again(named);
        }
    }

    async fn end(&mut self, jobs: Vec<JobId>) -> anyhow::Result<()> {
        let moves = self.moved.elapsed() >= LOOK;
        if moves {
            self.moved = Instant::now();
        }
        let client = self.line.client().await.context("getting a connection")?;
        while moves && upkeep::move_due(&**client).await.context("moving what is due")? > 0 {}
        end_all(&self.farm, client, jobs).await
    }

    async fn look(&mut self) -> anyhow::Result<()> {
        let client = self.line.client().await.context("getting a connection")?;
        // Before they are looked at, so that whatever comes meanwhile is looked for again.
        self.farm.maybe_over.forget_any();
        let next = upkeep::next_jobs(&**client, self.turn.before, LOOKED_AT_ONCE).await.context("looking for jobs")?;
        self.turn.came_to(&next);
        end_all(&self.farm, client, next).await
    }
}

/// Ends those of these jobs that are over, and then those that waited for them.
async fn end_all(farm: &Farm, client: &ClientWrapper, mut jobs: Vec<JobId>) -> anyhow::Result<()> {
    while !jobs.is_empty() {
        let mut waiting = Vec::new();
        for jobs in jobs.chunks(LOOKED_AT_ONCE) {
            if let Err(error) = end_some(farm, client, jobs, &mut waiting).await {
                farm.maybe_over.name_again(waiting);
                return Err(error);
            }
        }
        waiting.sort_unstable();
        waiting.dedup();
        jobs = waiting;
    }
    Ok(())
}

/// Ends those of these jobs that are over. `waiting`: the jobs that wait for one of them.
async fn end_some(farm: &Farm, client: &ClientWrapper, jobs: &[JobId], waiting: &mut Vec<JobId>) -> anyhow::Result<()> {
    while upkeep::exhaust_lanes(client, jobs).await.context("marking exhausted lanes")? == upkeep::EXHAUSTED_AT_ONCE {}
    crash_point(CrashPoint::LanesExhausted);
    let empty = upkeep::maybe_empty_jobs(client, jobs).await.context("looking for empty jobs")?;
    for jobs in empty.chunks(ENDED_AT_ONCE) {
        let ended = upkeep::end_jobs_if_empty(client, jobs).await.context("ending jobs")?;
        for job in &ended {
            crash_point(CrashPoint::JobEnded);
            info!(job_id = %job.job_id, state = job.state, "job ended");
        }
        let ids: Vec<JobId> = ended.iter().map(|job| job.job_id).collect();
        waiting.extend(ended.into_iter().flat_map(|job| job.waiting));
        // Whose row somebody has locked was passed over.
        farm.maybe_over.name_again(jobs.iter().copied().filter(|job| !ids.contains(job)));
        path::jobs_ended(&farm.traces, client, &ids).await;
    }
    Ok(())
}

/// Whose turn it is to be looked at: of all jobs that have not ended some at a time, from the newest to the oldest.
#[derive(Debug)]
struct Turn {
    /// Those from this one on have been looked at in this round.
    before: JobId,
    looked: Instant,
    rests_until: Instant,
}

impl Turn {
    fn new(now: Instant) -> Turn {
        Turn { before: JobId(i64::MAX), looked: now, rests_until: now }
    }

    fn due(&self, any: bool) -> Instant {
        if any { self.rests_until } else { self.rests_until.max(self.looked + LOOK) }
    }

    /// These are the next ones; the oldest is followed by the newest.
    fn came_to(&mut self, jobs: &[JobId]) {
        let is_last = jobs.len() < LOOKED_AT_ONCE;
        self.before = jobs.last().filter(|_| !is_last).copied().unwrap_or(JobId(i64::MAX));
    }

    fn rest(&mut self, began: Instant, took: Duration) {
        self.looked = began;
        self.rests_until = began + took + (took * LOOK_FACTOR).clamp(PAUSE, LOOK_LIMIT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_jobs_have_their_turn_from_the_newest_to_the_oldest() {
        let mut turn = Turn::new(Instant::now());
        let ids = |from: i64, count: usize| (0..from).rev().map(JobId).take(count).collect::<Vec<_>>();
        turn.came_to(&ids(9_000, LOOKED_AT_ONCE));
        assert_eq!(turn.before, JobId(6_500));
        turn.came_to(&ids(6_500, 7));
        assert_eq!(turn.before, JobId(i64::MAX));
        turn.came_to(&[]);
        assert_eq!(turn.before, JobId(i64::MAX));
    }

    #[test]
    fn looks_take_a_fiftieth_of_the_time() {
        let now = Instant::now();
        let in_ms = |ms: u64| now + Duration::from_millis(ms);
        let mut turn = Turn::new(now);
        assert_eq!((turn.due(true), turn.due(false)), (now, in_ms(1_000)));
        turn.rest(now, Duration::from_micros(100));
        assert_eq!((turn.due(true), turn.due(false)), (in_ms(50) + Duration::from_micros(100), in_ms(1_000)));
        turn.rest(now, Duration::from_millis(10));
        assert_eq!((turn.due(true), turn.due(false)), (in_ms(510), in_ms(1_000)));
        turn.rest(now, Duration::from_millis(30));
        assert_eq!((turn.due(true), turn.due(false)), (in_ms(1_530), in_ms(1_530)));
        turn.rest(now, Duration::from_secs(9));
        assert_eq!(turn.due(true), in_ms(11_000));
    }
}
