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

/// A larger step ahead moves the time limits of checkouts. All servers look well within this time, so that a look before which is
/// further away is a look before the step.
pub const MOVING_SECONDS: f64 = 60.0;
/// How long steps ahead add up.
pub const ADDING_UP: Duration = Duration::from_secs(7 * 86_400);

/// A clock that is further behind than this, by the steps since it was proven, writes and repairs nothing (pcfarm.clock_is_behind).
pub const BEHIND_SECONDS: f64 = STEP_SECONDS;

/// One look of a server at the clock.
#[derive(Clone, Debug)]
pub struct Observation {
    pub server: ServerId,
    /// The database's time.
    pub now: SystemTime,
    /// Time of the look before, of any server, by the database's clock of then.
    pub checked_at: Option<SystemTime>,
    /// The first look of this server. The farm may have been off before it.
    pub is_first: bool,
    /// True if no other server has looked since the last look of this server.
    pub is_next: bool,
    /// By how many seconds more than the monotonic clock the database's clock has moved since the look before. At a first look: how far
    /// it has gone back behind the last look of any server.
    pub step: f64,
    /// By how many seconds the database's clock is ahead of the server's.
    pub difference: f64,
    /// True if the server that found the last difference is alive: not stopped, and heard of within a minute.
    pub difference_server_runs: bool,
    /// The newest stored time, and the newest until now; only at a first look.
    pub newest: Option<SystemTime>,
    pub newest_until_now: Option<SystemTime>,
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
    time_limits(&mut state, seen);
    difference(&mut state, seen, stepped);
    stored(&mut state, seen, stepped);
    moved(&mut state, seen);
    state
}

/// Returns whether the clock is probably behind: by the steps since it was proven, or by stored times. Such a clock takes right times for
/// times in the future.
pub fn is_behind(state: &State) -> bool {
    state.moved_seconds < -BEHIND_SECONDS
}

/// Adds up the steps since the clock was proven, each at the first look of any server that sees it.
fn moved(state: &mut State, seen: &Observation) {
    let since_look = seen.checked_at.map(|checked| signed_seconds(checked, seen.now));
    // The look before is as far away as the step, and not a few seconds.
    let is_new = since_look.is_none_or(|since| (since - seen.step).abs() < since.abs());
    if seen.step != 0.0 && (seen.is_next || is_new) {
        state.moved_seconds += seen.step;
    } else if seen.is_first {
        // The clock has caught up, or was corrected, while no server looked.
        let caught_up = since_look.unwrap_or_default().max(0.0);
        state.moved_seconds = state.moved_seconds.max((state.moved_seconds + caught_up).min(0.0));
        if let Some(ahead) = stored_ahead_alone(state, seen) {
            state.moved_seconds = state.moved_seconds.min(-ahead);
        }
    }
    if state.is_proven() {
        state.moved_seconds = 0.0;
    }
}

/// Returns how far the newest stored time is ahead at a first look, if nothing says that the clock as it is now has shown times of the
/// last day. A look counts as such a time.
fn stored_ahead_alone(state: &State, seen: &Observation) -> Option<f64> {
    let ahead = newest_ahead(state, seen)?;
    let until_now = seen.newest_until_now.max(seen.checked_at.filter(|checked| *checked <= seen.now));
    let is_recent = until_now.is_some_and(|at| seen.now.duration_since(at).is_ok_and(|ago| ago < STORED_AWAY));
    (!is_recent).then_some(ahead)
}

/// Returns how many seconds the newest stored time is ahead, if that is a day or more and was not accepted.
fn newest_ahead(state: &State, seen: &Observation) -> Option<f64> {
    let newest = seen.newest.filter(|newest| state.accepted_newest.is_none_or(|accepted| *newest > accepted))?;
    newest.duration_since(seen.now).ok().filter(|ahead| *ahead >= STORED_AWAY).map(|ahead| ahead.as_secs_f64())
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

/// Moves the time limits of checkouts that were handed out before a step ahead, at the first look of any server that sees it. A step
/// back takes that away again. A checkout that was handed out while the clock was ahead gets another time limit when it is back
/// (pcfarm.put_checkouts_right).
fn time_limits(state: &mut State, seen: &Observation) {
    let since_look = seen.checked_at.map_or(0.0, |checked| signed_seconds(checked, seen.now));
    if seen.step > MOVING_SECONDS && since_look > seen.step {
        let before = later(seen.now, -seen.step);
        let adds_up = state
            .stepped_to
            .zip(before)
            .is_some_and(|(to, before)| signed_seconds(to, before) < ADDING_UP.as_secs_f64());
        state.stepped_seconds = seen.step + if adds_up { state.stepped_seconds } else { 0.0 };
        state.stepped_at = before;
        state.stepped_to = Some(seen.now);
    } else if seen.step < -MOVING_SECONDS && since_look < seen.step / 2.0 {
        state.stepped_seconds = (state.stepped_seconds + seen.step).max(0.0);
        state.stepped_to = state.stepped_to.and_then(|to| later(to, seen.step));
    }
    // Otherwise the clock has gone back while no server looked.
    let is_past = state.stepped_to.is_some_and(|to| signed_seconds(to, seen.now) > -MOVING_SECONDS);
    if state.stepped_seconds == 0.0 || !is_past {
        (state.stepped_at, state.stepped_to, state.stepped_seconds) = (None, None, 0.0);
    }
}

/// A time so many seconds later, or earlier if they are negative.
fn later(time: SystemTime, seconds: f64) -> Option<SystemTime> {
    let by = Duration::try_from_secs_f64(seconds.abs()).ok()?;
    if seconds < 0.0 { time.checked_sub(by) } else { time.checked_add(by) }
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
    if seen.step.abs() >= STORED_AWAY.as_secs_f64() {
        // Times stored right before the step are that far away from now.
        state.newest = later(seen.now, -seen.step);
        state.stored_until = Some(seen.now + WITHOUT_STEP);
        return;
    }
    if let Some(newest) = seen.newest {
        let is_ahead = newest_ahead(state, seen).is_some();
        let behind = seen
            .newest_until_now
            .filter(|newest| !is_ahead && seen.now.duration_since(*newest).is_ok_and(|behind| behind >= STORED_AWAY));
        state.newest = Some(behind.unwrap_or(newest));
        if (is_ahead || behind.is_some()) && state.stored_until.is_none() {
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
        state.accepted_newest = state.accepted_newest.max(state.newest);
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

/// Returns how far the clock has gone back behind the last look of any server: zero, or a negative number of seconds. A server that starts
/// has no look of its own to compare with.
pub fn gone_back(checked_at: Option<SystemTime>, now: SystemTime) -> f64 {
    checked_at.map_or(0.0, |checked| signed_seconds(checked, now).min(0.0))
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
