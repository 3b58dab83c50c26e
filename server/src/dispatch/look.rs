//! When and how it is looked which lanes there are: beside the hand-outs, since of ten thousand lanes PostgreSQL needs a tenth of a
//! second to tell, and we as long to understand it.

use super::POLL;
use super::lanes::Lanes;
use crate::farm::Farm;
use anyhow::{Context, anyhow};
use pcfarm_sql::job_types::JobType;
use pcfarm_sql::lanes::{self, OpenLane};
use pcfarm_sql::pool::Kept;
use pcfarm_sql::sharing::{self, Share};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

/// Between two looks, for each lane in sight: a look at a lane takes about 10 µs of PostgreSQL's time, and as much of the
/// server's, so that however many jobs there are, looking at them takes a small part of it, and with few of them nobody waits.
/// Who finds nothing waits for [`POLL`] at most.
const PAUSE_EACH: Duration = Duration::from_micros(400);
const PAUSE_LIMIT: Duration = Duration::from_secs(5);

/// So long hand-outs wait for a look: with few lanes nothing is handed out that what has just come stands before. What takes
/// longer goes on beside them.
const AWAITED: Duration = Duration::from_millis(20);

/// How much longer a look may wait when what it would find first is known.
const FRESH_PAUSE: Duration = Duration::from_millis(5);

/// Between two looks at what limits leave, while they keep somebody from being served: at least this, and for each lane in sight.
const ROOM_PAUSE: Duration = Duration::from_millis(100);
const ROOM_PAUSE_EACH: Duration = Duration::from_micros(100);

/// A look has two statements, each of which the database ends after 30 s.
const DEADLINE: Duration = Duration::from_secs(60);

/// Which lanes have something to hand out, and how users share, not before this moment.
pub struct Sight {
    pub began: Instant,
    pub open: Vec<(OpenLane, Arc<JobType>)>,
    pub shares: Vec<Share>,
}

type Found = anyhow::Result<(Kept, Sight)>;

pub struct Lookout {
    farm: Arc<Farm>,
    /// There may be other lanes than those in sight.
    due: bool,
    /// When they may be looked at again.
    from: Instant,
    /// The same, as the last look had it.
    paused_until: Instant,
    /// The last look.
    began: Instant,
    /// When what limits leave is to be looked at again, while they keep somebody from being served.
    room_from: Option<Instant>,
    looking: Option<JoinHandle<Found>>,
    /// By the last look, until it is taken.
    found: Option<Found>,
    /// To look on, unless a look has it.
    line: Option<Kept>,
}

impl Lookout {
    pub fn new(farm: Arc<Farm>) -> Lookout {
        let now = Instant::now();
        Lookout {
            farm,
            due: true,
            from: now,
            paused_until: now,
            began: now,
            room_from: None,
            looking: None,
            found: None,
            line: None,
        }
    }

    /// There may be other lanes than those in sight.
    pub fn ask(&mut self) {
        self.due = true;
    }

    /// Something is known that has just come: what else there may be can wait a little.
    pub fn put_off(&mut self) {
        if !self.due {
            self.from = self.from.max(Instant::now() + FRESH_PAUSE);
        }
    }

    /// Somebody has found nothing.
    pub fn hurry(&mut self) {
        let from = self.began + POLL;
        self.paused_until = self.paused_until.min(from);
        self.from = self.from.min(from);
    }

    /// A limit keeps somebody from being served: others' checkouts end, too.
    pub fn lack_room(&mut self, lanes: &Lanes) {
        let pause = ROOM_PAUSE.max(pause(ROOM_PAUSE_EACH, lanes));
        self.room_from.get_or_insert_with(|| Instant::now() + pause);
    }

    /// Nothing is known to be missing.
    pub fn is_at_rest(&self) -> bool {
        !self.due && self.looking.is_none()
    }

    pub fn is_to_begin(&self, lanes: &Lanes) -> bool {
        let now = Instant::now();
        // Also when nobody lets this come to an end: what time alone changes, nobody tells of.
        let is_overdue = now > self.paused_until.max(self.began + POLL);
        self.looking.is_none() && (is_overdue || self.next(lanes).is_some_and(|from| now >= from))
    }

    /// When to look again, if somebody waits.
    pub fn next(&self, lanes: &Lanes) -> Option<Instant> {
        if self.looking.is_some() {
            return None;
        }
        // However many lanes are refused, not more often than at all of them.
        let refused_from = lanes.refused_from(self.began).map(|from| from.max(self.paused_until));
        self.due.then_some(self.from).into_iter().chain(self.room_from).chain(refused_from).min()
    }

    /// Looks, or leaves what takes longer to a task of its own: a quick look is not worth waking another thread.
    pub async fn begin(&mut self) {
        (self.due, self.began) = (false, Instant::now());
        let line = self.line.take().unwrap_or_else(|| Kept::planning_once(self.farm.pool.clone()));
        let mut looking = Box::pin(look(self.farm.clone(), self.began, line));
        match timeout(AWAITED, &mut looking).await {
            Ok(found) => self.found = Some(found),
            // What it meets is found with what it finds. Nobody waits for one that has been forgotten.
            Err(_) => self.looking = Some(self.farm.tasks.spawn(looking)),
        }
    }

    /// Waits until the look under way has ended; if none is, for good.
    pub async fn ended(&mut self) {
        let Some(looking) = &mut self.looking else { return pending().await };
        let found = looking.await.context("looking ended early").and_then(|found| found);
        (self.looking, self.found) = (None, Some(found));
    }

    /// What a look has found that has ended, once.
    pub async fn found(&mut self) -> Option<anyhow::Result<Sight>> {
        if self.looking.as_ref().is_some_and(JoinHandle::is_finished) {
            self.ended().await;
        }
        let found = self.found.take()?;
        Some(found.map(|(line, sight)| {
            self.line = Some(line);
            sight
        }))
    }

    /// After a look.
    pub fn pause(&mut self, lanes: &Lanes) {
        self.pause_for(pause(PAUSE_EACH, lanes).min(PAUSE_LIMIT));
    }

    pub fn pause_for(&mut self, pause: Duration) {
        self.from = Instant::now() + pause;
        (self.paused_until, self.room_from) = (self.from, None);
    }

    /// What is being looked at may be another database than the next one.
    pub fn forget(&mut self) {
        *self = Lookout::new(self.farm.clone());
    }
}

fn pause(each_lane: Duration, lanes: &Lanes) -> Duration {
    each_lane.saturating_mul(u32::try_from(lanes.in_sight()).unwrap_or(u32::MAX))
}

async fn look(farm: Arc<Farm>, began: Instant, mut line: Kept) -> Found {
    let found = tokio::select! {
        found = timeout(DEADLINE, look_on(&farm, &mut line)) => found.context("the database does not answer").and_then(|found| found),
        () = farm.stopping.cancelled() => Err(anyhow!("the server stops")),
    };
    match found {
        Ok((open, shares)) => Ok((line, Sight { began, open, shares })),
        Err(error) => {
            line.close();
            Err(error)
        }
    }
}

async fn look_on(farm: &Farm, line: &mut Kept) -> anyhow::Result<(Vec<(OpenLane, Arc<JobType>)>, Vec<Share>)> {
    let client = line.client().await.context("getting a connection")?;
    let open = lanes::open_lanes(client).await.context("reading the open lanes")?;
    let shares = sharing::shares(client).await.context("reading users' shares")?;
    if open.iter().any(|lane| farm.job_type(&lane.job_type).is_none()) {
        // A job type younger than our copy of them.
        farm.reload_job_types().await.context("reading the job types")?;
    }
    // One that is younger still comes with the next look.
    let with_type = |lane: OpenLane| farm.job_type(&lane.job_type).map(|job_type| (lane, job_type));
    Ok((open.into_iter().filter_map(with_type).collect(), shares))
}
