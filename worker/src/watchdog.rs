//! What a service manager is told (`sd_notify`, on Linux): that this agent runs, that it is not hung, that it stops. Says nothing
//! where nobody asked, and nothing for an agent inside another program, which speaks for itself.
//!
//! **Hung** is an agent whose loop does not come round, or that no longer looks for its person: the former is of no use, and
//! the latter would work while somebody is there. A farm that is away makes nobody hung.

use std::pin::pin;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use tracing::{error, warn};

use crate::platform::manager;
use crate::presence::Desk;

/// Who looks every few seconds, and has not for so long, does not look.
const STANDSTILL: Duration = Duration::from_secs(30);

/// Beats for each of the manager's limits: two may be late.
const BEATS_A_LIMIT: u32 = 4;

/// What goodbyes may take beyond the grace that running work has.
const GOODBYES: Duration = Duration::from_secs(30);

/// What may wait to be said: more is not said at all.
const UNSAID: usize = 8;

enum Said {
    Ready,
    Beat,
    /// And how long it may take.
    Stopping(Duration),
}

/// Whoever manages this process. It is spoken to on a thread of its own: a manager that does not listen keeps nobody waiting, and
/// the person at the keyboard least of all.
#[derive(Clone)]
pub struct Manager(Option<SyncSender<Said>>);

impl Manager {
    /// Of an agent that is a program of its own.
    pub fn of_program() -> Manager {
        if !manager::listens() {
            return Manager(None);
        }
        let (sender, receiver) = sync_channel(UNSAID);
        // Ends with the last who could say something.
        let speaks = std::thread::Builder::new().name("pcfarm-notify".to_owned()).spawn(move || {
            receiver.iter().for_each(|said| tell(&said));
        });
        match speaks {
            Ok(_) => Manager(Some(sender)),
            Err(error) => {
                warn!(%error, "the service manager is told nothing");
                Manager(None)
            }
        }
    }

    /// Of one inside another program.
    pub fn nobody() -> Manager {
        Manager(None)
    }

    fn say(&self, said: Said) {
        if let Some(sender) = &self.0 {
            let _ = sender.try_send(said); // it hears the next one, or does not hear
        }
    }

    /// It runs, with settings that make sense.
    pub fn ready(&self) {
        self.say(Said::Ready);
    }

    /// It has begun to stop: running work has this long.
    pub fn stopping(&self, grace: Duration) {
        self.say(Said::Stopping(grace + GOODBYES));
    }
}

fn tell(said: &Said) {
    let told = match said {
        Said::Ready => manager::ready(),
        Said::Beat => manager::beat(),
        Said::Stopping(limit) => manager::stopping(*limit),
    };
    if let Err(error) = told {
        warn!(%error, "the service manager was not told");
    }
}

/// Beats as often as the manager was promised, in rounds that are made anyway if there are enough of them.
pub struct Watchdog {
    manager: Manager,
    /// Between two beats; none: nobody listens.
    every: Option<Duration>,
    beaten: Option<Instant>,
    /// Whoever watches for the person, once somebody does.
    desk: Option<Desk>,
}

impl Watchdog {
    pub fn new(manager: Manager) -> Watchdog {
        let limit = manager.0.as_ref().and_then(|_| manager::limit());
        Watchdog { manager, every: limit.map(|limit| limit / BEATS_A_LIMIT), beaten: None, desk: None }
    }

    pub fn minding(self, desk: Desk) -> Watchdog {
        Watchdog { desk: Some(desk), ..self }
    }

    /// A wait that is not longer than a beat.
    pub fn at_most(&self, wait: Duration) -> Duration {
        self.every.map_or(wait, |every| wait.min(every))
    }

    /// The loop has come round.
    pub fn beat(&mut self) {
        let Some(every) = self.every else { return };
        if self.beaten.is_some_and(|beaten| beaten.elapsed() < every) {
            return;
        }
        self.beaten = Some(Instant::now());
        let silence = self.desk.as_ref().map_or(Duration::ZERO, Desk::not_looked_for);
        if silence > STANDSTILL {
            error!(?silence, "nobody looks for the person any more: the service manager is to start a new agent");
        } else {
            self.manager.say(Said::Beat);
        }
    }

    /// Beats while something else is waited for.
    pub async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            self.beat();
            let pause = self.at_most(Duration::MAX);
            tokio::select! {
                done = &mut work => return done,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}
