//! What a server does now and then, each step repeatable: ends empty jobs, recycles, folds counts.

mod ending;
pub mod maybe_over;

use crate::farm::Farm;
use anyhow::Context;
use ending::Ending;
use pcfarm_faults::{CrashPoint, crash_point};
use pcfarm_sql::pool::Lines;
use pcfarm_sql::{files, fleet, profiles, upkeep};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, MissedTickBehavior};
use tracing::{info, warn};

const RECYCLE: Duration = Duration::from_secs(1);

/// What nudges a sweep is about to hand out or has just accepted, and what was just submitted will be: that goes first, but a
/// sweep waits no longer than this until nothing of it is under way.
const SWEEP_DELAY: Duration = Duration::from_millis(5);
const SWEEP_PATIENCE: Duration = Duration::from_millis(50);

/// Ten thousand rows each: so many jobs and problems are forgotten in the time between two of these at most.
const FORGET_STEPS: usize = 10;

const FOLD: Duration = Duration::from_secs(10);

/// To where it has been looked for what is to be forgotten. What went is stepped over for as long as somebody has a snapshot open
/// in which it is still there.
#[derive(Debug, Default)]
struct Forgotten {
    /// Of standing jobs' problems.
    problems: upkeep::LookedTo,
    /// Of what was handed out under limits of problems by the hour.
    hand_outs: Option<SystemTime>,
}

/// Ends jobs that are empty, and tidies up.
pub async fn sweep(farm: Arc<Farm>) {
    let mut ending = Ending::new(farm.clone());
    let mut folded = Instant::now();
    let mut forgotten = Forgotten::default();
    loop {
        tokio::select! {
            () = farm.stopping.cancelled() => return,
            () = tokio::time::sleep_until(ending.due()) => {}
            () = farm.maybe_over.changed() => {}
        }
        quiet(&farm.lines).await;
        let pause = ending.sweep().await;
        if folded.elapsed() > FOLD {
            folded = Instant::now();
            if let Err(error) = tidy(&farm, &mut forgotten).await {
                warn!(error = format!("{error:#}"), "tidying up failed: trying again");
            }
        }
        farm.stopping.run_until_cancelled(tokio::time::sleep(pause)).await;
    }
}

/// Returns when nothing is being submitted, handed out or accepted, or when that has been waited for long enough.
async fn quiet(lines: &Lines) {
    let until = Instant::now() + SWEEP_PATIENCE;
    while let Some(left) = SWEEP_DELAY.checked_sub(lines.quiet_for())
        && Instant::now() < until
    {
        tokio::time::sleep(left).await;
    }
}

/// Folds counts, and analyses after large loads that have not done so. Says the signals that it knows, and forgets what is
/// old: of standing jobs' problems those behind the lane to which the last time came.
async fn tidy(farm: &Farm, forgotten: &mut Forgotten) -> anyhow::Result<()> {
    let client = farm.pool.get().await.context("getting a connection")?;
    // Only what has grown is folded: of jobs that are over there may be very many.
    let counted = upkeep::count_progress(&*client).await.context("counting progress")?;
    upkeep::count_triggers(&*client).await.context("counting triggers of schedules")?;
    upkeep::fold_progress(&*client, &counted).await.context("folding progress")?;
    upkeep::forget_statistics(&*client).await.context("forgetting old statistics")?;
    crash_point(CrashPoint::ProgressFolded);
    upkeep::analyze_problems(&*client).await.context("analysing after a large load")?;
    upkeep::note_nowhere(&*client).await.context("looking for jobs that nothing can run")?;
    let quarantined =
        fleet::quarantine(&*client).await.context("looking for workstations that fail what others solve")?;
    if quarantined > 0 {
        warn!(quarantined, "workstations that fail what others solve were quarantined");
    }
    note_speeds(farm, &client).await.context("noting speeds")?;
    note_idle(farm, &client).await.context("reporting workstations that do not work")?;
    profiles::sample_signals(&client).await.context("sampling signals")?;
    profiles::put_hand_outs_right(&*client).await.context("putting right what was handed out by a wrong clock")?;
    for _ in 0..FORGET_STEPS {
        let until = profiles::forget_hand_outs(&*client, forgotten.hand_outs).await;
        let Some(until) = until.context("forgetting how much was handed out")? else { break };
        forgotten.hand_outs = Some(until);
    }
    for _ in 0..FORGET_STEPS {
        if upkeep::forget_old_job(&*client).await.context("forgetting old jobs")? == 0 {
            break;
        }
    }
    for _ in 0..FORGET_STEPS {
        if files::forget(&client).await.context("forgetting files")? == 0 {
            break;
        }
    }
    for _ in 0..FORGET_STEPS {
        let (looked_to, _) =
            upkeep::forget_old_problems(&*client, forgotten.problems).await.context("forgetting old problems")?;
        forgotten.problems = looked_to;
        if looked_to.is_none() {
            break;
        }
    }
    Ok(())
}

/// Notes which workstations of this server have worked, and reports workstations of the farm that have not worked for long.
async fn note_idle(farm: &Farm, client: &deadpool_postgres::Object) -> Result<(), tokio_postgres::Error> {
    let worked: Vec<_> = farm.sessions().iter().filter(|s| s.take_worked()).map(|s| s.workstation_id).collect();
    if !worked.is_empty() {
        fleet::note_worked(&**client, &worked).await?;
    }
    let reported = fleet::report_idle(&**client).await?;
    if reported != fleet::Reported::default() {
        let fleet::Reported { without_work, cannot_tell } = reported;
        warn!(without_work, cannot_tell, "workstations do not work: events name them");
    }
    Ok(())
}

/// For people: of its own workstations, those whose speed has changed.
async fn note_speeds(farm: &Farm, client: &deadpool_postgres::Object) -> Result<(), tokio_postgres::Error> {
    let sessions = farm.sessions();
    let speed = |session: &Arc<crate::session::Session>| {
        session.take_speed().map(|(job_type, rate)| (session.workstation_id, job_type, rate))
    };
    let changed: Vec<_> = sessions.iter().filter_map(speed).collect();
    if changed.is_empty() {
        return Ok(());
    }
    let noted = fleet::note_speeds(client, &changed).await;
    if noted.is_err() {
        sessions.iter().for_each(|session| session.forget_speed());
    }
    noted
}

/// Recycles every second; of several servers one does it at a time. A task of its own, so that what blocks it blocks
/// nothing else.
pub async fn recycle(farm: Arc<Farm>) {
    let mut tick = tokio::time::interval(RECYCLE);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = farm.stopping.cancelled() => return,
            _ = tick.tick() => {}
        }
        match pcfarm_recycler::recycle(&farm.pool, farm.rhythm.lease).await {
            Ok(recycled) if recycled.revoked > 0 || recycled.dead > 0 => {
                info!(
                    dead = recycled.dead,
                    revoked = recycled.revoked,
                    requeued = recycled.requeued,
                    failed = recycled.failed,
                    skipped = recycled.skipped,
                    "recycled"
                );
            }
            Ok(_) => {}
            Err(error) => warn!(error = format!("{:#}", anyhow::Error::from(error)), "recycling failed: trying again"),
        }
    }
}
