//! The ticker: claims what is due, computes what comes next, writes it down and enqueues in one transaction of four
//! statements at most, however many schedules are due. It sleeps until the next due time, and never for long; a schedule
//! that is created or moved nearer wakes it by a notification.

use super::far::Far;
use super::plan::{Definition, Done, Plan, timestamp};
use crate::farm::Farm;
use crate::traces::{Span, SpanKind};
use anyhow::Context;
use jiff::Timestamp;
use pcfarm_faults::{CrashPoint, crash_point};
use pcfarm_proto::ids::ScheduleId;
use pcfarm_sql::pool::Kept;
use pcfarm_sql::schedules::{self, Due, Looked, Outcome, Tick, Ticked};
use rayon::iter::{IntoParallelIterator, IntoParallelRefIterator, ParallelIterator};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{debug, info, warn};

/// Longest between two ticks: behind every notification there is this.
const LONGEST_SLEEP: Duration = Duration::from_secs(5);

/// Between two ticks, so that what is due about then shares a transaction. It is what a trigger is late by at most, when
/// nothing else is to do.
const GATHER: Duration = Duration::from_millis(100);

/// Schedules of one transaction: enough that they share its cost, and few enough that the first need not wait for the
/// last when all are due at once, nor other servers for this one.
const CLAIM_LIMIT: i64 = 4_000;

/// What was not seen by a look that saw all: rows that a transaction wrote, but had not committed, or that a server had
/// claimed that then died. Those of so long before are read again with each tick, all older ones with a full look.
const OVERLAP: Duration = Duration::from_secs(2);

/// Under an open snapshot a full look reads all that was ever due since; so it is the rarer, the longer it takes.
const FULL_LOOK: Duration = Duration::from_secs(5);
const FULL_LOOK_FACTOR: u32 = 20;

/// After a failure, with the database or without.
const RETRY: Duration = Duration::from_millis(500);

/// A tick that takes longer is given up; what it has claimed is free then.
const PATIENCE: Duration = Duration::from_secs(15);

/// Definitions that are remembered: some hundred bytes each.
const KNOWN_LIMIT: usize = 200_000;

const FORGET: Duration = Duration::from_secs(30);

/// How long history is kept.
pub const HISTORY: Duration = Duration::from_secs(7 * 86_400);

/// Ticks until the server stops.
pub async fn run(farm: Arc<Farm>) {
    let computing = rayon::ThreadPoolBuilder::new()
        // As many as there are cores, which is rayon's own choice: they compute some milliseconds in a second.
        .thread_name(|n| format!("schedules-{n}"))
        .build()
        .expect("threads can be started");
    let mut ticker = Ticker {
        farm: farm.clone(),
        computing: Arc::new(computing),
        line: Kept::new(farm.pool.clone()),
        known: HashMap::new(),
        seen: Seen::default(),
        epoch: farm.epoch.number(),
        forgot: Instant::now(),
        far: Far::default(),
    };
    loop {
        farm.rounds.ticker.came();
        let began = Instant::now();
        let tick = tokio::time::timeout(PATIENCE, ticker.tick()).await;
        let pause = match tick.unwrap_or_else(|_| Err(anyhow::anyhow!("it took longer than {} s", PATIENCE.as_secs())))
        {
            Ok(pause) => {
                farm.ticking.ticked();
                if let Err(error) = ticker.forget().await {
                    warn!(error = format!("{error:#}"), "old triggers were not forgotten: trying again");
                    ticker.line.let_go();
                }
                if let Err(error) = ticker.far.look(&mut ticker.line).await {
                    warn!(error = format!("{error:#}"), "cannot look for schedules that sleep too long: trying again");
                    ticker.line.let_go();
                }
                pause
            }
            Err(error) => {
                warn!(error = format!("{error:#}"), "a tick failed: what was due then is due still");
                ticker.line.let_go();
                ticker.seen = Seen::default();
                RETRY
            }
        };
        // A pause that a notification cannot cut short, unless there is more to do than fits into a tick.
        let gathering = if pause.is_zero() { pause } else { GATHER.saturating_sub(began.elapsed()) };
        tokio::select! {
            () = farm.stopping.cancelled() => return,
            () = tokio::time::sleep(gathering) => {}
        }
        tokio::select! {
            () = farm.stopping.cancelled() => return,
            () = tokio::time::sleep(pause.saturating_sub(gathering)) => {}
            () = farm.ticking.wake.notified() => {}
        }
    }
}

struct Ticker {
    farm: Arc<Farm>,
    computing: Arc<rayon::ThreadPool>,
    line: Kept,
    /// By schedule, with the version that each is of.
    known: HashMap<ScheduleId, (i64, Result<Arc<Definition>, String>)>,
    seen: Seen,
    /// Of the database that this is about.
    epoch: u64,
    forgot: Instant,
    far: Far,
}

/// Up to when everything that was due has been looked at.
#[derive(Default)]
struct Seen {
    to: Option<SystemTime>,
    full_look_from: Option<Instant>,
}

impl Seen {
    /// Where to look from; nothing: everywhere.
    fn floor(&self) -> Option<SystemTime> {
        let full = self.full_look_from.is_none_or(|from| Instant::now() >= from);
        if full { None } else { self.to.and_then(|to| to.checked_sub(OVERLAP)) }
    }

    /// A look saw everything up to then.
    fn all(&mut self, to: SystemTime, floor: Option<SystemTime>, took: Duration) {
        self.to = Some(to);
        if floor.is_none() {
            self.full_look_from = Some(Instant::now() + FULL_LOOK.max(took * FULL_LOOK_FACTOR));
        }
    }

    fn until_full_look(&self) -> Duration {
        self.full_look_from.map_or(Duration::ZERO, |from| from.saturating_duration_since(Instant::now()))
    }
}

impl Ticker {
    /// Triggers what is due. Returns how long to sleep, if nothing happens.
    async fn tick(&mut self) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let tick = Tick::begin(&mut self.line).await.context("getting a connection")?;
        if self.epoch != self.farm.epoch.number() {
            // Another database: what was read from the one before need not be true of it.
            self.epoch = self.farm.epoch.number();
            self.known.clear();
            self.seen = Seen::default();
        }
        let floor = self.seen.floor();
        let (due, looked) = tick.claim(floor, CLAIM_LIMIT).await.context("claiming what is due")?;
        let took = began.elapsed();
        crash_point(CrashPoint::SchedulesClaimed);
        let Some(Looked { now, to }) = looked else {
            tick.commit().await.context("ending a tick without work")?;
            return self.rest(floor, took).await;
        };
        let span = self.farm.traces.begin("schedules", SpanKind::Internal, None);
        let unknown: Vec<ScheduleId> = due
            .iter()
            .filter(|due| self.known.get(&due.schedule_id).is_none_or(|(version, _)| *version != due.version))
            .map(|due| due.schedule_id)
            .collect();
        if !unknown.is_empty() {
            if self.known.len() > KNOWN_LIMIT {
                self.known.clear();
            }
            // All of what is due, should it have been forgotten just now.
            let wanted = if self.known.is_empty() { due.iter().map(|due| due.schedule_id).collect() } else { unknown };
            let read = tick.definitions(&wanted).await.context("reading definitions")?;
            let parse = move || -> Vec<_> {
                let of = |schedule: schedules::Schedule| {
                    let definition = Definition::of(&schedule).map(Arc::new).map_err(|error| error.to_string());
                    (schedule.schedule_id, (schedule.version, definition))
                };
                read.into_par_iter().map(of).collect()
            };
            self.known.extend(compute(&self.computing, parse).await?);
        }
        let mut broken = Vec::new();
        let mut to_plan = Vec::new();
        for due in due {
            match self.known.get(&due.schedule_id) {
                Some((version, Ok(definition))) if *version == due.version => to_plan.push((due, definition.clone())),
                Some((version, Err(error))) if *version == due.version => {
                    broken.push((due.schedule_id, error.clone()));
                }
                // Its row says another version than its definition: a check tells such a thing.
                other => {
                    warn!(schedule_id = %due.schedule_id, found = other.is_some(), "a schedule without its definition")
                }
            }
        }
        let claimed = to_plan.len() + broken.len();
        let at = timestamp(now)?;
        let outcomes = compute(&self.computing, move || plan_all(&to_plan, at)).await?;
        let place = span.place().map(|place| place.to_string());
        let writing = Instant::now();
        let ticked = tick.write(self.farm.server_id, &outcomes, place.as_deref()).await.context("triggering")?;
        let write = writing.elapsed();
        if !broken.is_empty() {
            tick.break_off(&broken).await.context("noting what cannot be triggered")?;
            warn!(schedules = ?broken, "schedules that nobody can compute");
        }
        crash_point(CrashPoint::SchedulesTriggered);
        tick.commit().await.context("committing a tick")?;
        crash_point(CrashPoint::TickCommitted);
        if place.is_some() {
            trace(
                span,
                &Traced { ticked, claimed, late: lateness(&outcomes, now), took: began.elapsed(), claim: took, write },
            );
        }
        self.tell(ticked, claimed, began.elapsed());
        self.seen.all(to, floor, took);
        // There may be more at once. Else what comes next is asked when nothing was due.
        Ok(if claimed as i64 >= CLAIM_LIMIT { Duration::ZERO } else { GATHER })
    }

    fn tell(&self, ticked: Ticked, claimed: usize, took: Duration) {
        let Ticked { triggered, refused, postponed } = ticked;
        let ms = took.as_millis() as u64;
        debug!(claimed, triggered, refused, postponed, ms, "ticked");
        if refused > 0 {
            warn!(refused, "schedules whose triggers were refused: their history says why");
        }
    }

    /// Now and then, however much is due.
    async fn forget(&mut self) -> anyhow::Result<()> {
        if self.forgot.elapsed() > FORGET {
            self.forgot = Instant::now();
            let client = self.line.client().await.context("getting a connection")?;
            let forgotten = schedules::forget_ticks(client, HISTORY).await.context("forgetting old triggers")?;
            if forgotten > 0 {
                info!(forgotten, "old ticks forgotten");
            }
        }
        Ok(())
    }

    /// Nothing is due, or another server has it.
    async fn rest(&mut self, floor: Option<SystemTime>, took: Duration) -> anyhow::Result<Duration> {
        let client = self.line.client().await.context("getting a connection")?;
        let (now, next) = schedules::next_wake(&**client, floor).await.context("asking what is due next")?;
        self.seen.all(now, floor, took);
        let until = next.map_or(LONGEST_SLEEP, |next| next.duration_since(now).unwrap_or(Duration::ZERO));
        Ok(until.min(self.seen.until_full_look()).clamp(GATHER, LONGEST_SLEEP))
    }
}

/// What is told of a tick that is traced.
struct Traced {
    ticked: Ticked,
    claimed: usize,
    /// The latest trigger.
    late: Duration,
    took: Duration,
    claim: Duration,
    write: Duration,
}

fn trace(mut span: Span, of: &Traced) {
    span.set("pcfarm.schedules.due", of.claimed as i64)
        .set("pcfarm.schedules.triggered", of.ticked.triggered)
        .set("pcfarm.schedules.refused", of.ticked.refused)
        .set("pcfarm.schedules.postponed", of.ticked.postponed)
        .set("pcfarm.lateness.seconds", of.late.as_secs_f64())
        .set("pcfarm.database.claim_schedules.seconds", of.claim.as_secs_f64())
        .set("pcfarm.database.trigger_schedules.seconds", of.write.as_secs_f64());
    if let Some(began) = SystemTime::now().checked_sub(of.took) {
        drop(span.since(began));
    }
}

fn lateness(outcomes: &[Outcome], now: SystemTime) -> Duration {
    let first = outcomes.iter().filter_map(|outcome| outcome.triggers.first());
    first.filter_map(|due| now.duration_since(*due).ok()).max().unwrap_or_default()
}

fn plan_all(due: &[(Due, Arc<Definition>)], now: Timestamp) -> Vec<Outcome> {
    due.par_iter()
        .map(|(due, definition)| {
            let read = |time: Option<SystemTime>| time.and_then(|time| timestamp(time).ok());
            let early = due.early.iter().filter_map(|time| timestamp(*time).ok()).collect();
            let done = Done { last: read(due.last_due_at), early };
            let Plan { triggers, due: next, wake } = definition.plan(read(due.due_at), &done, now);
            let time = |time: Timestamp| SystemTime::from(time);
            // In the past only if there is more to catch up with: then as soon as may be, and never out of sight.
            let wake = wake.map(|wake| time(wake.max(now)));
            Outcome {
                due: due.clone(),
                triggers: triggers.into_iter().map(time).collect(),
                next_due: next.map(time),
                next_wake: wake,
            }
        })
        .collect()
}

/// On rayon's threads, while tokio's wait for others.
async fn compute<T: Send + 'static>(
    pool: &rayon::ThreadPool,
    work: impl FnOnce() -> T + Send + 'static,
) -> anyhow::Result<T> {
    let (done, outcome) = oneshot::channel();
    pool.spawn(move || drop(done.send(work())));
    outcome.await.context("computing next times")
}
