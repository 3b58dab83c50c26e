//! Decides whether the database's clock is proven. Pure: a table of cases tests it.

use pcfarm_proto::ids::ServerId;
use pcfarm_sql::clock::State;
use std::time::{Duration, SystemTime};

/// A smaller step is a correction.
pub const STEP_SECONDS: f64 = 5.0;
/// The most by which the clocks of the database and of a server may differ.
pub const DIFFERENCE_SECONDS: f64 = 60.0;
/// A newest stored time that is further away from now cannot be believed.
pub const STORED_AWAY: Duration = Duration::from_secs(86_400);

/// How long the clock stays unproven after a step.
pub const AFTER_STEP: Duration = Duration::from_secs(600);
/// How long the clock stays unproven at most after a difference, or after an impossible stored time. A step begins this time
/// anew.
pub const WITHOUT_STEP: Duration = Duration::from_secs(3600);

/// One look of a server at the clock.
#[derive(Clone, Debug)]
pub struct Observation {
    pub server: ServerId,
    /// The database's time.
    pub now: SystemTime,
    /// The first look of this server. The farm may have been off before it.
    pub is_first: bool,
    /// By how many seconds more than the monotonic clock the database's clock has moved since the look before.
    pub step: f64,
    /// By how many seconds the database's clock is ahead of the server's.
    pub difference: f64,
    /// True if the server that found the last difference is alive: not stopped, and heard of within a minute.
    pub difference_server_runs: bool,
    /// The newest stored time; only at a first look.
    pub newest: Option<SystemTime>,
}

/// The state after a look.
pub fn decide(before: &State, seen: &Observation) -> State {
    let mut state = before.clone();
    let stepped = seen.step.abs() > STEP_SECONDS;
    if stepped {
        state.step_seconds = Some(seen.step);
        state.step_until = Some(seen.now + AFTER_STEP);
        // Accepted under another time.
        state.tolerated_seconds = 0.0;
    } else {
        state.step_until = left(state.step_until, AFTER_STEP, seen);
    }
    difference(&mut state, seen, stepped);
    stored(&mut state, seen, stepped);
    state
}

/// Deadline, unless it is over. A deadline further away than its period was set by a clock that was ahead, and moves to one period
/// from now. A deadline that ended before a server's first look begins again: the clock may have stepped while no server ran.
fn left(until: Option<SystemTime>, period: Duration, seen: &Observation) -> Option<SystemTime> {
    let until = until?;
    if seen.is_first && until <= seen.now {
        return Some(seen.now + period);
    }
    (until > seen.now).then(|| until.min(seen.now + period))
}

fn difference(state: &mut State, seen: &Observation, stepped: bool) {
    let size = seen.difference.abs();
    let agrees = size <= DIFFERENCE_SECONDS.max(state.tolerated_seconds);
    let own = state.difference_server.is_none_or(|server| server == seen.server) || !seen.difference_server_runs;
    if own || (!agrees && state.difference_until.is_none()) {
        state.difference_seconds = Some(seen.difference);
        state.difference_server = Some(seen.server);
    }
    if agrees && (own || state.difference_until.is_none()) {
        state.difference_until = None;
        return;
    }
    // The difference of another server is that server's to find gone. Its hour passes all the same.
    let until = match state.difference_until {
        Some(_) if !stepped => left(state.difference_until, WITHOUT_STEP, seen),
        Some(_) | None => Some(seen.now + WITHOUT_STEP),
    };
    if until.is_none() {
        // An hour without a step: the server's clock is the one that is wrong.
        state.tolerated_seconds = size.max(state.difference_seconds.unwrap_or_default().abs()) + DIFFERENCE_SECONDS;
    }
    state.difference_until = until;
}

fn stored(state: &mut State, seen: &Observation, stepped: bool) {
    if let Some(newest) = seen.newest {
        let is_ahead = newest.duration_since(seen.now).is_ok_and(|ahead| ahead >= STORED_AWAY)
            && state.accepted_newest.is_none_or(|accepted| newest > accepted);
        let is_behind = seen.now.duration_since(newest).is_ok_and(|behind| behind >= STORED_AWAY);
        state.newest = Some(newest);
        if (is_ahead || is_behind) && state.stored_until.is_none() {
            state.stored_until = Some(seen.now + WITHOUT_STEP);
            return;
        }
    }
    let was = state.stored_until;
    state.stored_until = match was {
        Some(_) if stepped => Some(seen.now + WITHOUT_STEP),
        until => left(until, WITHOUT_STEP, seen),
    };
    if was.is_some() && state.stored_until.is_none() {
        state.accepted_newest = state.newest;
    }
}

/// Returns by how much the database's clock has stepped between two looks. Each look has the database's time, and the monotonic
/// times right before the question and right after the answer. Zero, as long as the time that passed can explain the movement.
pub fn step(before: &Look, after: &Look) -> f64 {
    let moved = signed_seconds(before.database, after.database);
    let least = after.asked.saturating_sub(before.answered).as_secs_f64();
    let most = after.answered.saturating_sub(before.asked).as_secs_f64();
    if moved > most {
        moved - most
    } else if moved < least {
        moved - least
    } else {
        0.0
    }
}

/// One reading of the database's clock. The monotonic times count from the start of the process.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub database: SystemTime,
    pub asked: Duration,
    pub answered: Duration,
}

/// From one time to another, negative if the other is earlier.
pub fn signed_seconds(from: SystemTime, to: SystemTime) -> f64 {
    match to.duration_since(from) {
        Ok(later) => later.as_secs_f64(),
        Err(earlier) => -earlier.duration().as_secs_f64(),
    }
}

#[cfg(test)]
mod tests;
