//! Storing results: as few transactions as they fit, and what cannot be stored is found by halves and fails alone.

use super::accept::Place;
use super::batch::{self, Batch};
use super::{RESULTS_AT_ONCE, SLOW_AT_ONCE};
use crate::farm::Farm;
use crate::instruments;
use deadpool_postgres::ClientWrapper;
use pcfarm_faults::{CrashPoint, crash_point};
use pcfarm_proto::ids::{CheckoutId, ProblemId};
use pcfarm_sql::checkout::{self, Acceptance, Home, Verdict};
use pcfarm_sql::job_types::JobType;
use std::collections::HashMap;
use tokio::time::Instant;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;
use tracing::debug;

/// Each slow result among n takes log2(n) timeouts to find: enough for two of them.
const TIMEOUTS_PER_HALVING: u32 = 2;

/// Stores one job type's results.
pub(super) async fn store(
    farm: &Farm,
    job_type: &JobType,
    batch: &mut Batch,
    place: Place,
) -> anyhow::Result<Vec<Verdict>> {
    let mut verdicts = Vec::new();
    if job_type.writes_back {
        // An administrator's SQL runs there: the connection is reset before anybody else has it.
        let client = farm.pool.get().await?;
        for acceptance in batch.acceptances(SLOW_AT_ONCE) {
            verdicts.extend(store_one(farm, &client, job_type, acceptance, place).await?);
        }
        return Ok(verdicts);
    }
    let line = farm.lines.take().await?;
    let at_once = if batch.brings_more() { SLOW_AT_ONCE } else { RESULTS_AT_ONCE };
    for acceptance in batch.acceptances(at_once) {
        verdicts.extend(store_one(farm, &line, job_type, acceptance, place).await?);
    }
    farm.lines.put(line);
    Ok(verdicts)
}

async fn store_one(
    farm: &Farm,
    client: &ClientWrapper,
    job_type: &JobType,
    mut acceptance: Acceptance,
    place: Place,
) -> anyhow::Result<Vec<Verdict>> {
    let began = Instant::now();
    let error = match checkout::accept(client, &job_type.name, &acceptance).await {
        Ok(verdicts) => {
            instruments::timed("accept", began);
            instruments::accepted(verdicts.iter().map(|verdict| verdict.accepted));
            return Ok(verdicts);
        }
        Err(error) if is_data_error(&error) => error,
        // A write-back that takes too long is split like one that fails; so is what many problems bring, one after the other.
        Err(error)
            if is_timeout(&error)
                && place == Place::Aside
                && (job_type.writes_back || acceptance.solved.iter().any(|solved| solved.more.is_some())) =>
        {
            error
        }
        Err(error) => return Err(error.into()),
    };
    debug!(%error, "a result cannot be stored: looking for it");
    let home = |checkout: CheckoutId, problem: ProblemId| -> Option<Home> {
        let members = &farm.recall(checkout)?.members;
        Some(members.home(members.find(problem)?))
    };
    if batch::refuse(&mut acceptance, home, batch::not_json) > 0 {
        // Most likely that was all.
        match checkout::accept(client, &job_type.name, &acceptance).await {
            Err(error) if is_data_error(&error) || (is_timeout(&error) && place == Place::Aside) => {}
            outcome => return Ok(outcome?),
        }
    }
    let timeouts = match place {
        Place::Line => 0,
        Place::Aside => TIMEOUTS_PER_HALVING * usize::BITS.saturating_sub(acceptance.solved.len().leading_zeros()),
    };
    store_by_halves(client, &job_type.name, acceptance, home, timeouts).await
}

/// Each piece in a transaction of its own, and nothing closed before all are in: closing is left to the caller, which
/// reads what is there. After so many pieces that take too long, the others that do have failed as a whole.
async fn store_by_halves(
    client: &ClientWrapper,
    job_type: &str,
    mut acceptance: Acceptance,
    home: impl Fn(CheckoutId, ProblemId) -> Option<Home>,
    mut timeouts_left: u32,
) -> anyhow::Result<Vec<Verdict>> {
    acceptance.checkouts.iter_mut().for_each(|checkout| checkout.closing = false);
    let may_take_long = timeouts_left > 0;
    let mut left = vec![acceptance];
    let mut totals: HashMap<CheckoutId, Verdict> = HashMap::new();
    let mut first = true;
    while let Some(mut piece) = left.pop() {
        let error = match checkout::accept(client, job_type, &piece).await {
            Ok(verdicts) => {
                if std::mem::take(&mut first) {
                    // Said once.
                    left.iter_mut()
                        .flat_map(|piece| &mut piece.checkouts)
                        .for_each(|checkout| checkout.busy_seconds = 0.0);
                }
                add_up(&mut totals, verdicts);
                crash_point(CrashPoint::HalfOfResultsCommitted);
                continue;
            }
            Err(error) if is_timeout(&error) && may_take_long => error,
            Err(error) if is_data_error(&error) => error,
            Err(error) => return Err(error.into()),
        };
        let is_too_long = is_timeout(&error);
        let is_last = is_too_long && timeouts_left == 0;
        timeouts_left = timeouts_left.saturating_sub(u32::from(is_too_long));
        match piece.solved.len() {
            0 => return Err(error.into()),
            problems if problems == 1 || is_last => {
                let message = format!("the solution cannot be stored: {}", reason(&error));
                if batch::refuse(&mut piece, &home, |_| Some(message.clone())) == 0 {
                    return Err(error.into());
                }
                left.push(piece);
            }
            problems => {
                let second = Acceptance {
                    solved: piece.solved.split_off(problems / 2),
                    checkouts: piece.checkouts.clone(),
                    failed: Vec::new(),
                };
                left.extend([second, piece]);
            }
        }
    }
    Ok(totals.into_values().collect())
}

fn add_up(totals: &mut HashMap<CheckoutId, Verdict>, verdicts: Vec<Verdict>) {
    for verdict in verdicts {
        totals
            .entry(verdict.checkout_id)
            .and_modify(|total| {
                total.accepted += verdict.accepted;
                total.refused += verdict.refused;
            })
            .or_insert(verdict);
    }
}

fn reason(error: &Error) -> String {
    match error.as_db_error() {
        // What else that constraint is about is right whatever an agent sends.
        Some(said) if said.constraint() == Some("done_or_failed") => {
            "it takes more than 1 MiB in the database, where numbers take more room than their text".to_owned()
        }
        Some(said) => said.message().to_owned(),
        None => error.to_string(),
    }
}

fn is_timeout(error: &Error) -> bool {
    error.code() == Some(&SqlState::QUERY_CANCELED)
}

/// Class 22 is about values, and 23514 a CHECK's word on a value's size; 54 is a limit that a value exceeds.
fn is_data_error(error: &Error) -> bool {
    let Some(code) = error.code() else {
        // A value that could not even be sent.
        return !error.is_closed() && error.as_db_error().is_none() && error.to_string().contains("serializing");
    };
    code.code().starts_with("22") || code.code().starts_with("54") || *code == SqlState::CHECK_VIOLATION
}
