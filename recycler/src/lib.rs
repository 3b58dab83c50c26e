//! The recycler: finds dead workstations and overdue checkouts and puts what they had not finished back on the
//! queue. It takes no hint: it reads what is, does one bounded batch and says what it did. Any number may be
//! started; one works at a time, and one that dies or hangs is in nobody's way.
//!
//! It never decides by its own clock: the lease is measured by the database's, and only while some server could
//! have heard the workstation.

use deadpool_postgres::{Pool, PoolError};
use pcfarm_faults::{CrashPoint, crash_point};
use pcfarm_proto::ids::CheckoutId;
use pcfarm_sql::checkout::{self, Closing};
use pcfarm_sql::clock;
use pcfarm_sql::upkeep::{self, Loss, LostCheckout};
use std::time::Duration;
use tokio_postgres::error::SqlState;
use tracing::{info, warn};

/// How long a workstation may be silent.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(20);

/// A server that has not pulsed for this long is taken to have stopped. Well below any lease: what could not be written
/// for less than this must not make a workstation look silent for a lease.
pub fn pulse_limit(lease: Duration) -> Duration {
    (lease / 2).min(Duration::from_secs(4))
}

/// Checkouts that are closed in one statement. Few, so that one that is locked delays few.
const CLOSED_AT_ONCE: usize = 50;

/// What one pass did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recycled {
    /// Another recycler was at work, so this one did nothing.
    pub passed: bool,
    pub dead: usize,
    pub revoked: usize,
    pub requeued: i64,
    /// Problems whose attempts were used up.
    pub failed: i64,
    /// Checkouts that could not be closed, mostly since somebody has them locked; they come up again.
    pub skipped: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("getting a connection to the database")]
    Connect(#[from] PoolError),
    #[error("recycling")]
    Database(#[from] tokio_postgres::Error),
}

/// One pass.
pub async fn recycle(pool: &Pool, lease: Duration) -> Result<Recycled, Error> {
    let mut guard = pool.get().await?;
    // Held to the end of the pass, so that recyclers take turns; all work commits on another connection, piece by
    // piece. The lock is the transaction's: it cannot outlive this process.
    let turn = guard.transaction().await?;
    if !upkeep::lock_recycler(&turn).await? {
        return Ok(Recycled { passed: true, ..Recycled::default() });
    }
    let client = pool.get().await?;
    // Times in the future delay the death of some workstations at most, so an error here keeps nothing else waiting.
    if let Err(error) = clock::put_leases_right(&*client).await {
        if error.as_db_error().is_none() {
            return Err(error.into());
        }
        warn!(error = %error, "cannot correct leases that lie in the future: trying again next time");
    }
    let mut recycled = Recycled::default();
    for (workstation_id, hostname) in
        upkeep::declare_dead(&*client, lease.as_secs_f64(), pulse_limit(lease).as_secs_f64()).await?
    {
        info!(%workstation_id, hostname, "workstation declared dead: not heard of for the lease");
        recycled.dead += 1;
    }
    if recycled.dead > 0 {
        crash_point(CrashPoint::WorkstationsDeclaredDead);
    }
    let mut after = CheckoutId(0);
    loop {
        let lost = upkeep::lost_checkouts(&*client, after, lease.as_secs_f64()).await?;
        let Some(last) = lost.last() else { break };
        after = last.checkout_id;
        for group in by_reason(&lost) {
            revoke(&client, group, &mut recycled).await?;
        }
    }
    // An error here says that the turn was over already.
    drop(turn.rollback().await);
    Ok(recycled)
}

/// Runs of checkouts with the same workstation and reason: they are closed together.
fn by_reason(lost: &[LostCheckout]) -> impl Iterator<Item = &[LostCheckout]> {
    lost.chunk_by(|a, b| (a.workstation_id, a.loss) == (b.workstation_id, b.loss))
        .flat_map(|group| group.chunks(CLOSED_AT_ONCE))
}

async fn revoke(
    client: &deadpool_postgres::Object,
    group: &[LostCheckout],
    recycled: &mut Recycled,
) -> Result<(), Error> {
    match revoke_together(client, group, recycled).await {
        Err(error) if error.as_db_error().is_some() && group.len() > 1 => {
            for one in group.chunks(1) {
                match revoke_together(client, one, recycled).await {
                    Err(error) if error.as_db_error().is_some() => skip(&one[0], &error, recycled),
                    outcome => outcome?,
                }
            }
            Ok(())
        }
        Err(error) if error.as_db_error().is_some() => {
            skip(&group[0], &error, recycled);
            Ok(())
        }
        outcome => Ok(outcome?),
    }
}

/// What cannot be closed now, whatever the reason, must not keep the others from being closed.
fn skip(lost: &LostCheckout, error: &tokio_postgres::Error, recycled: &mut Recycled) {
    warn!(checkout_id = %lost.checkout_id, locked = is_lock_timeout(error), error = %error,
        "a lost checkout could not be closed: trying again next time");
    recycled.skipped += 1;
}

async fn revoke_together(
    client: &deadpool_postgres::Object,
    group: &[LostCheckout],
    recycled: &mut Recycled,
) -> Result<(), tokio_postgres::Error> {
    let ids: Vec<CheckoutId> = group.iter().map(|lost| lost.checkout_id).collect();
    let why = reason(&group[0]);
    let how = match group[0].loss {
        Loss::Dead | Loss::Overdue => Closing::Lost,
        // An agent that ended in good order gives back at no cost.
        Loss::Forgotten | Loss::Offline => Closing::Unreceived,
    };
    for closed in checkout::close(&**client, &ids, how, &why).await? {
        info!(
            checkout_id = %closed.checkout_id, workstation_id = %closed.workstation_id, job_id = %closed.job_id,
            requeued = closed.requeued, failed = closed.failed, why, "checkout revoked"
        );
        recycled.revoked += 1;
        recycled.requeued += i64::from(closed.requeued);
        recycled.failed += i64::from(closed.failed);
    }
    crash_point(CrashPoint::CheckoutsRevoked);
    Ok(())
}

/// What a problem's message says when its checkout was lost.
fn reason(lost: &LostCheckout) -> String {
    let LostCheckout { workstation_id, hostname, .. } = lost;
    match lost.loss {
        Loss::Dead => {
            format!("lost with workstation {workstation_id} ({hostname}), which was not heard of for the lease")
        }
        Loss::Offline => format!("left by workstation {workstation_id} ({hostname}), whose agent has ended"),
        Loss::Forgotten => "its workstation was forgotten".to_owned(),
        Loss::Overdue => {
            format!("revoked from workstation {workstation_id} ({hostname}): the job type's time limit was over")
        }
    }
}

fn is_lock_timeout(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE)
}
