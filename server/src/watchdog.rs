//! What a service manager is told (`sd_notify`): that this server serves, that it is not hung, that it stops. Says nothing
//! where nobody asked.
//!
//! **Hung** is a server that would do its work and cannot, though nothing outside it is to blame, so that a new process is
//! what helps: the runtime runs no tasks, the pulse, each of whose waits has a deadline, does not come round, or the
//! dispatcher or the ticker does not come round although the database has answered the pulse all the while. A database
//! that is away, stands still or is slow makes nobody hung: a new process would find the same one, and agents would all
//! have to connect again. Failures are no standstill either: a loop that fails and tries again comes round. Health checks
//! (`/readyz`, gRPC) tell of all these.

use crate::farm::Farm;
use sd_notify::NotifyState;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::MissedTickBehavior;
use tracing::{error, warn};

/// Each loop comes round in some seconds; a round has a few statements, each of which the database ends after 30 s.
const STANDSTILL: Duration = Duration::from_secs(120);

/// Beats for each of the manager's limits: one may be late.
const BEATS_A_LIMIT: u32 = 3;

/// When a loop last came round.
#[derive(Debug)]
pub struct Round(Mutex<Instant>);

impl Default for Round {
    fn default() -> Round {
        Round(Mutex::new(Instant::now()))
    }
}

impl Round {
    pub fn came(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn silent_for(&self) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

/// The loops without which a server is none.
#[derive(Debug, Default)]
pub struct Rounds {
    pub dispatcher: Round,
    pub pulse: Round,
    pub ticker: Round,
    answering: Mutex<Option<Answering>>,
}

/// Pulses that the database has taken without a failure between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answering {
    since: Instant,
    /// Beginning of the last one.
    last: Instant,
}

impl Rounds {
    /// The database has taken the pulse that began then, or has taken none.
    pub fn pulsed(&self, taken: Option<Instant>) {
        let mut answering = self.answering.lock().unwrap_or_else(PoisonError::into_inner);
        let since = answering.map(|before| before.since);
        *answering = taken.map(|last| Answering { since: since.unwrap_or_else(Instant::now), last });
    }

    /// Beginning of the last pulse. None: the last one failed, or lies further back than the limit.
    pub fn recorded(&self, limit: Duration) -> Option<Instant> {
        let answering = *self.answering.lock().unwrap_or_else(PoisonError::into_inner);
        answering.map(|answering| answering.last).filter(|last| last.elapsed() <= limit)
    }

    fn seen(&self) -> Seen {
        let answering = *self.answering.lock().unwrap_or_else(PoisonError::into_inner);
        Seen {
            dispatcher: self.dispatcher.silent_for(),
            pulse: self.pulse.silent_for(),
            ticker: self.ticker.silent_for(),
            answering_for: answering.map(|answering| answering.since.elapsed()),
        }
    }
}

/// For how long each has not come round.
#[derive(Clone, Copy, Debug)]
struct Seen {
    dispatcher: Duration,
    pulse: Duration,
    ticker: Duration,
    answering_for: Option<Duration>,
}

impl Seen {
    /// What stands still of itself.
    fn hung(&self) -> Option<&'static str> {
        let stands = |silence: Duration| silence > STANDSTILL;
        // While it waits for a database that stands still, nobody can say what a loop would do.
        let may_judge = self.answering_for.is_some_and(stands);
        match self {
            Seen { pulse, .. } if stands(*pulse) => Some("the pulse"),
            Seen { dispatcher, .. } if may_judge && stands(*dispatcher) => Some("the dispatcher"),
            Seen { ticker, .. } if may_judge && stands(*ticker) => Some("the ticker of schedules"),
            Seen { .. } => None,
        }
    }
}

/// Says to the service manager that the server is not hung, as often as it was told to, until the server stops.
pub async fn run(farm: Arc<Farm>) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return farm.stopping.cancelled().await };
    let mut tick = tokio::time::interval(limit / BEATS_A_LIMIT);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = farm.stopping.cancelled() => return,
            _ = tick.tick() => {}
        }
        let seen = farm.rounds.seen();
        match seen.hung() {
            None => tell(&[NotifyState::Watchdog]),
            Some(what) => error!(?seen, "{what} stands still: the service manager is to start a new server"),
        }
    }
}

/// It serves.
pub fn ready(address: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(&format!("serving on {address}"))]);
}

/// It has begun to stop.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        warn!(%error, ?states, "the service manager was not told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_stands_still_is_hung_unless_the_database_may_be_to_blame() {
        let well = Duration::from_secs(5);
        let late = STANDSTILL * 2;
        // Silences of the pulse, the dispatcher and the ticker; for how long the database has answered.
        let cases = [
            ((well, well, well), Some(late), None),
            ((well, late, well), Some(late), Some("the dispatcher")),
            ((well, well, late), Some(late), Some("the ticker of schedules")),
            ((late, well, well), Some(late), Some("the pulse")),
            // The pulse has a deadline for all it waits for.
            ((late, late, late), None, Some("the pulse")),
            // The database is away, or has only just come back.
            ((well, late, late), None, None),
            ((well, late, late), Some(well), None),
        ];
        for ((pulse, dispatcher, ticker), answering_for, expected) in cases {
            let seen = Seen { dispatcher, pulse, ticker, answering_for };
            assert_eq!(seen.hung(), expected, "{seen:?}");
        }
    }

    #[test]
    fn one_pulse_that_is_lost_begins_the_count_anew() {
        let rounds = Rounds::default();
        assert_eq!(rounds.seen().answering_for, None, "nothing is known yet");
        let [first, second] = [(); 2].map(|()| Instant::now());
        rounds.pulsed(Some(first));
        let since = rounds.answering.lock().expect("nobody panics").map(|answering| answering.since);
        rounds.pulsed(Some(second));
        assert_eq!(rounds.answering.lock().expect("nobody panics").map(|answering| answering.since), since);
        assert_eq!(rounds.recorded(Duration::from_secs(60)), Some(second));
        assert_eq!(rounds.recorded(Duration::ZERO), None, "too long ago");
        rounds.pulsed(None);
        assert_eq!(rounds.seen().answering_for, None);
        assert_eq!(rounds.recorded(Duration::from_secs(60)), None);
    }
}
