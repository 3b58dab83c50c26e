//! The dispatcher: hands out convoys to agents that have asked.
//!
//! Wait, decide, act: requests that arrive while a database call is in flight are gathered and served together by the
//! next one, and while that one is in flight, what comes after it is read ([`commit`]). What to hand out is decided
//! ([`decide`]) by pure functions ([`choose`], [`size`], [`convoys`]) over lanes held in memory; what was handed out is
//! decided by the database, whose unique key lets one server through. It never sends what has not been committed, and
//! never trusts its memory of a lane after a refusal.

pub mod choose;
mod commit;
pub mod convoys;
mod decide;
mod lanes;
mod look;
pub mod offers;
mod queue;
mod reading;
mod refused;
pub mod requirement;
mod send;
pub mod size;
pub mod spread;
mod unreadable;

use crate::farm::Farm;
use crate::session::Session;
use lanes::Lanes;
use look::Lookout;
use pcfarm_faults::{Bug, planted};
use pcfarm_sql::pool::Kept;
use pcfarm_sql::submit::Fresh;
use queue::Queue;
use requirement::RequirementId;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Status;
use tracing::warn;

pub use commit::take_back_unsent;

/// What wakes the dispatcher.
#[derive(Debug)]
pub enum Event {
    /// An agent has room.
    Credit(Arc<Session>),
    /// There may be more to hand out, or less.
    Work,
    /// Some session may take something else than before.
    Selection,
    /// Problems that this server has just committed, and the epoch in which it did.
    Fresh(Box<Fresh>, u64),
    /// A session that was handed something by a submission.
    Served(Arc<Session>),
}

/// Behind every notification there is a poll.
const POLL: Duration = Duration::from_secs(1);

/// After a limit was met that somebody had locked, no limit is waited for so long; twice as long each time that one is met again.
const IMPATIENT: Duration = Duration::from_secs(5);

/// With more lanes in sight, fresh ones wait for the next look: what they hold stays in the database meanwhile.
const FRESH_LANES_LIMIT: usize = 64;

/// Longest that an agent may read nothing of what is on its way to it, while others wait for it.
const UNREAD_DEADLINE: Duration = Duration::from_secs(60);

/// After a failure of the database.
const RETRY: Duration = Duration::from_millis(250);

/// Events that wait for the dispatcher.
pub const EVENTS_LIMIT: usize = 4096;

struct Dispatcher {
    farm: Arc<Farm>,
    lanes: Lanes,
    /// Of the database that lanes were read from.
    epoch: u64,
    waiting: Queue,
    /// Of those who are connected, how many have what a requirement wants: as of the last second.
    able: HashMap<RequirementId, usize>,
    /// Somebody may stand in a line that is not its own.
    regroup_due: bool,
    lookout: Lookout,
    /// Until then no limit is waited for that somebody has locked, and for how long that is.
    impatient: (Instant, Duration),
    /// To read ahead on while hand-outs are committed on another.
    reading: Kept,
}

/// Runs until the server stops.
pub async fn run(farm: Arc<Farm>, mut events: mpsc::Receiver<Event>) {
    let mut dispatcher = Dispatcher {
        farm: farm.clone(),
        lanes: Lanes::default(),
        epoch: farm.epoch.number(),
        waiting: Queue::default(),
        able: HashMap::new(),
        regroup_due: false,
        lookout: Lookout::new(farm.clone()),
        impatient: (Instant::now(), IMPATIENT),
        reading: Kept::planning_once(farm.pool.clone()),
    };
    let mut poll = tokio::time::interval(POLL);
    poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = farm.stopping.cancelled() => return,
            _ = poll.tick() => dispatcher.look_everywhere(),
            () = until(dispatcher.next_look()) => {}
            () = dispatcher.lookout.ended() => {}
            () = farm.traffic.has_room(), if dispatcher.is_held_up() => {}
            event = events.recv() => match event {
                Some(event) => dispatcher.note(event),
                None => return,
            },
        }
        farm.rounds.dispatcher.came();
        farm.offers.withdraw();
        while let Ok(event) = events.try_recv() {
            dispatcher.note(event);
        }
        if let Err(error) = dispatcher.serve(&mut events).await {
            warn!(error = format!("{error:#}"), "handing out failed: trying again");
            if planted(Bug::StopsHandingOut) {
                farm.stopping.cancelled().await;
                return;
            }
            dispatcher.forget();
            tokio::time::sleep(RETRY).await;
        }
        dispatcher.offer();
    }
}

impl Dispatcher {
    fn note(&mut self, event: Event) {
        match event {
            Event::Work => self.lookout.ask(),
            Event::Selection => self.regroup_due = true,
            Event::Credit(session) => self.waiting.join(session, self.lanes.requirements()),
            Event::Served(session) => self.waiting.move_last(session, self.lanes.requirements()),
            Event::Fresh(fresh, epoch) if epoch == self.epoch => self.add(*fresh),
            Event::Fresh(..) => self.lookout.ask(),
        }
    }

    /// Takes a fresh lane into sight without looking, if somebody waits for it.
    fn add(&mut self, fresh: Fresh) {
        let in_sight =
            !self.waiting.is_empty() && self.lanes.in_sight() < FRESH_LANES_LIMIT && self.lanes.add(&self.farm, fresh);
        if in_sight {
            self.lookout.put_off();
        } else {
            self.lookout.ask();
        }
    }

    /// Who waits for what there is none of may be handed what comes next by whoever brings it.
    fn offer(&self) {
        if self.lookout.is_at_rest() && !self.farm.traffic.is_full() {
            self.farm.offers.offer(self.epoch, self.waiting.first_idle());
        }
    }

    /// Sessions whose event was lost, lanes that nobody told of.
    fn look_everywhere(&mut self) {
        self.lookout.ask();
        let requirements = self.lanes.requirements();
        self.waiting.regroup(requirements);
        let sessions = self.farm.sessions();
        if self.farm.traffic.is_busy() {
            let reads_nothing = sessions.iter().filter(|session| session.unread.stands_for(UNREAD_DEADLINE));
            reads_nothing.for_each(|session| {
                session.end(Status::deadline_exceeded("the agent does not read what it asked for"))
            });
        }
        self.waiting.prune(sessions.len());
        sessions.into_iter().for_each(|session| self.waiting.join(session, requirements));
        self.able = self.lanes.count_able(&self.farm.sessions());
    }

    /// Hands out until nobody waits or nothing is left for those who do.
    async fn serve(&mut self, events: &mut mpsc::Receiver<Event>) -> anyhow::Result<()> {
        while !self.farm.stopping.is_cancelled() {
            self.farm.rounds.dispatcher.came(); // for hours on end there may be more
            if std::mem::take(&mut self.regroup_due) {
                self.waiting.regroup(self.lanes.requirements());
            }
            self.take_in().await;
            if self.lookout.is_to_begin(&self.lanes) {
                if self.waiting.is_empty() {
                    return Ok(());
                }
                self.lanes.begin_look();
                self.lookout.begin().await;
                self.take_in().await;
            }
            if self.lanes.stale() {
                return Ok(());
            }
            let decisions = self.decide().await?;
            if self.lanes.was_short_of_room() {
                self.lookout.lack_room(&self.lanes);
            }
            if decisions.is_empty() {
                return Ok(());
            }
            self.commit(decisions).await?;
            while let Ok(event) = events.try_recv() {
                self.note(event);
            }
        }
        Ok(())
    }

    /// What a look has found. If it failed, hand-outs go on by what is known: the database has the last word.
    async fn take_in(&mut self) {
        let Some(found) = self.lookout.found().await else { return };
        if self.farm.epoch.number() != self.epoch {
            // It may be of another database than what is known.
            self.forget();
            return;
        }
        let is_to_be_repeated = match found {
            Ok(sight) => {
                let known = self.lanes.requirements().version();
                let troubles = &self.farm.troubles;
                let is_all = self.lanes.end_look(sight, |open| troubles.concern(Some(open.job_id), &open.job_type));
                self.farm.maybe_over.lanes_in_sight(self.lanes.jobs_in_sight());
                if self.lanes.requirements().version() != known {
                    self.waiting.regroup(self.lanes.requirements());
                    self.able = self.lanes.count_able(&self.farm.sessions());
                }
                self.lookout.pause(&self.lanes);
                !is_all
            }
            Err(error) => {
                warn!(error = format!("{error:#}"), "looking for lanes failed: trying again");
                self.lookout.pause_for(RETRY);
                true
            }
        };
        if is_to_be_repeated {
            self.lookout.ask();
        }
    }

    /// Nothing that is remembered or being read can be trusted.
    fn forget(&mut self) {
        self.lookout.forget();
        self.lanes.forget();
        self.epoch = self.farm.epoch.number();
        self.reading.let_go();
    }

    /// Somebody waits, and not for anything that is to be handed out.
    fn is_held_up(&self) -> bool {
        !self.waiting.is_empty() && self.farm.traffic.is_full()
    }

    /// When to look again, if somebody waits.
    fn next_look(&self) -> Option<Instant> {
        if self.waiting.is_empty() { None } else { self.lookout.next(&self.lanes) }
    }
}

pub async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
