//! Has times computed again that a wrong clock wrote: part by part, in batches that each commit by themselves.

use pcfarm_sql::clock::{self, PARTS, PUT_RIGHT_AT_ONCE};
use std::time::{Duration, Instant};
use tracing::warn;

use crate::farm::Farm;

/// How often wrong times are looked for without a step: another server may have seen it, and stopped.
const PAUSE: Duration = Duration::from_secs(60);
/// A repair that takes longer goes on after the next look.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Default)]
pub struct Repair {
    /// None: a repair is due.
    done_at: Option<Instant>,
    /// The next search looks at every time that may be wrong, and not at the plain cases alone.
    is_thorough: bool,
    /// The part to go on with.
    next: usize,
}

impl Repair {
    /// Asks for a thorough repair, because the clock has stepped, may have stepped before this server's first look, or is behind no more.
    pub fn ask(&mut self) {
        *self = Repair { is_thorough: true, ..Repair::default() };
    }

    /// Repairs, if it is time. A part that fails keeps no other part waiting, and nothing here keeps a server from starting: what is
    /// not repaired now is repaired later.
    pub async fn run_if_due(&mut self, farm: &Farm) {
        if self.done_at.is_some_and(|at| at.elapsed() <= PAUSE) {
            return;
        }
        match tokio::time::timeout(PATIENCE, self.run(farm)).await {
            Ok(Ok(())) => {
                *self = Repair { done_at: Some(Instant::now()), ..Repair::default() };
            }
            Ok(Err(error)) => warn!(error = format!("{error:#}"), "cannot compute wrong times again: trying again"),
            Err(_) => {}
        }
    }

    async fn run(&mut self, farm: &Farm) -> anyhow::Result<()> {
        let client = farm.pool.get().await?;
        while let Some(part) = PARTS.get(self.next) {
            let changed = match clock::put_right(&*client, part, self.is_thorough).await {
                Ok(changed) => changed,
                Err(error) if error.as_db_error().is_some() => {
                    warn!(part, error = %error, "cannot compute wrong times again: trying again in a minute");
                    0
                }
                Err(error) => return Err(error.into()),
            };
            if changed > 0 {
                warn!(part, changed, "times that a wrong clock had written were computed again");
            }
            // A whole batch: there may be more.
            if changed < i64::from(PUT_RIGHT_AT_ONCE) {
                self.next += 1;
            }
        }
        Ok(())
    }
}
