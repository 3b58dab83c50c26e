//! Looks at the database's clock every few seconds, and writes what that means.

use super::repair::Repair;
use super::verdict::{Look, Observation, decide, gone_back, is_behind, signed_seconds, step};
use crate::farm::Farm;
use anyhow::Context;
use pcfarm_sql::clock::{self, Looked};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::time::MissedTickBehavior;
use tokio_postgres::error::SqlState;
use tracing::{info, warn};

/// Pause between two looks. A look vouches for a minute (pcfarm.clock_is_proven), so that some may fail.
const LOOK: Duration = Duration::from_secs(5);
/// A look that takes longer is given up; the next one compares with the last that came to its end.
const PATIENCE: Duration = Duration::from_secs(15);
/// A smaller step has written no time that the repair would change.
const REPAIR_SECONDS: f64 = 1.0;

pub struct Watch {
    farm: Arc<Farm>,
    /// The monotonic clock counts from here.
    began: Instant,
    last: Option<Look>,
    repair: Repair,
    /// False also until the first look: a clock that is behind would take right times for wrong ones.
    may_repair: bool,
    was_proven: bool,
}

impl Watch {
    /// Takes the first look before the server accepts connections: rows stored afterwards say nothing about the time before.
    pub async fn begin(farm: Arc<Farm>) -> anyhow::Result<Watch> {
        let mut watch = Watch {
            farm,
            began: Instant::now(),
            last: None,
            repair: Repair::default(),
            may_repair: false,
            was_proven: true,
        };
        match watch.look().await {
            // A transaction that holds the row keeps no server from starting. The clock counts as unproven after a minute.
            Err(error) if is_locked(&error) => {
                warn!(
                    error = format!("{error:#}"),
                    "another transaction holds the state of the clock: going on without it"
                );
            }
            outcome => outcome.context("looking at the database's clock")?,
        }
        watch.repair_if_due().await;
        Ok(watch)
    }

    /// Looks until the server stops.
    pub async fn run(mut self) {
        let mut tick = tokio::time::interval(LOOK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let stopping = self.farm.stopping.clone();
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                _ = tick.tick() => {}
            }
            let look = tokio::time::timeout(PATIENCE, self.look()).await;
            if let Err(error) = look.unwrap_or_else(|_| Err(anyhow::anyhow!("the database does not answer"))) {
                warn!(error = format!("{error:#}"), "cannot look at the database's clock: trying again");
            }
            self.repair_if_due().await;
        }
    }

    async fn repair_if_due(&mut self) {
        if self.may_repair {
            self.repair.run_if_due(&self.farm).await;
        }
    }

    async fn look(&mut self) -> anyhow::Result<()> {
        let server = self.farm.server_id;
        let mut client = self.farm.pool.get().await.context("getting a connection")?;
        let transaction = client.transaction().await.context("beginning a look")?;
        let asked = self.began.elapsed();
        let looked = clock::look(&transaction, server, self.last.is_none()).await.context("reading the clock")?;
        let look = Look { database: looked.now, asked, answered: self.began.elapsed() };
        let seen = self.observation(&looked, &look);
        let state = decide(&looked.state, &seen);
        clock::set(&transaction, &state, looked.now).await.context("writing what is known of the clock")?;
        transaction.commit().await.context("ending a look")?;
        self.last = Some(look);
        if seen.step != 0.0 && state.step_seconds == Some(seen.step) {
            warn!(seconds = seen.step, "the database's clock has stepped");
            // Due times that were computed by the clock before.
            self.farm.ticking.wake.notify_one();
        }
        self.tell(state.is_proven());
        let may_repair = !is_behind(&state);
        if seen.is_first || seen.step.abs() > REPAIR_SECONDS || may_repair && !self.may_repair {
            self.repair.ask();
        }
        if !may_repair && (self.may_repair || seen.is_first) {
            warn!(
                seconds = -state.moved_seconds,
                "the database's clock is probably behind: no stored time is corrected until it is back or proven"
            );
        }
        self.may_repair = may_repair;
        Ok(())
    }

    fn observation(&self, looked: &Looked, look: &Look) -> Observation {
        Observation {
            server: self.farm.server_id,
            now: looked.now,
            checked_at: looked.checked_at,
            is_first: self.last.is_none(),
            is_next: self.last.is_some_and(|last| looked.checked_at == Some(last.database)),
            step: self.last.as_ref().map_or_else(|| gone_back(looked.checked_at, looked.now), |last| step(last, look)),
            difference: signed_seconds(SystemTime::now(), looked.now),
            difference_server_runs: looked.difference_server_runs,
            newest: looked.newest,
            newest_until_now: looked.newest_until_now,
        }
    }

    fn tell(&mut self, is_proven: bool) {
        match (self.was_proven, is_proven) {
            (true, false) => warn!("the clock is unproven: nothing is removed for its age; see `pcfarm clock`"),
            (false, true) => info!("the clock is proven"),
            (true, true) | (false, false) => {}
        }
        self.was_proven = is_proven;
    }
}

fn is_locked(error: &anyhow::Error) -> bool {
    let code = error.chain().find_map(|cause| cause.downcast_ref::<tokio_postgres::Error>()?.code());
    code == Some(&SqlState::LOCK_NOT_AVAILABLE)
}
