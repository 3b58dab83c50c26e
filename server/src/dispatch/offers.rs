//! Workstations that wait while there is nothing for them. A small submission hands its own problems to one of them, in the
//! transaction that stores these: that saves a second one, and a turn of the dispatcher.
//!
//! They are offered while the dispatcher waits, and withdrawn before it decides on anything.

use super::Event;
use super::commit::Committed;
use super::convoys::Taken;
use crate::farm::Farm;
use crate::instruments;
use crate::session::Session;
use crate::traces::path::HandOutCall;
use pcfarm_proto::files::announced;
use pcfarm_proto::ids::{BatchOrder, CheckoutId};
use pcfarm_sql::job_types::JobType;
use pcfarm_sql::lanes::{ComingProblem, OpenLane};
use pcfarm_sql::submit::Taker;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc::error::TrySendError;

#[derive(Debug, Default)]
pub struct Offers(Mutex<Offered>);

#[derive(Debug, Default)]
struct Offered {
    /// Of the database that was looked at.
    epoch: u64,
    sessions: Vec<Arc<Session>>,
}

impl Offers {
    /// Nothing is in sight for these.
    pub(super) fn offer(&self, epoch: u64, sessions: Vec<Arc<Session>>) {
        *self.lock() = Offered { epoch, sessions };
    }

    pub(super) fn withdraw(&self) {
        self.lock().sessions.clear();
    }

    /// The first that holds nothing and takes problems of this type, whoever's they are. From here on it is claimed.
    fn take(&self, epoch: u64, job_type: &JobType) -> Option<Arc<Session>> {
        let mut offered = self.lock();
        if offered.epoch != epoch {
            return None;
        }
        let controller = announced(&job_type.controller);
        // Claimed before it can be withdrawn, and so before anything else is decided for it.
        let place = offered
            .sessions
            .iter()
            .position(|session| session.selection().takes_of_anybody(&job_type.name, controller) && session.claim())?;
        Some(offered.sessions.remove(place))
    }

    fn lock(&self) -> MutexGuard<'_, Offered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A workstation that is to have what is being submitted. Dropped, it waits on, its credit unspent.
pub struct Claim {
    farm: Arc<Farm>,
    session: Arc<Session>,
    token: i64,
    since: SystemTime,
    served: bool,
}

impl Claim {
    pub fn of(farm: &Arc<Farm>, job_type: &JobType) -> Option<Claim> {
        if farm.stopping.is_cancelled() || farm.troubles.concern(None, &job_type.name.as_str().into()) {
            return None;
        }
        let session = farm.offers.take(farm.epoch.number(), job_type)?;
        Some(Claim { farm: farm.clone(), session, token: rand::random(), since: SystemTime::now(), served: false })
    }

    pub fn taker<'a>(&self, job_type: &'a JobType) -> Taker<'a> {
        let seconds = job_type.time_limit.map(|limit| limit.as_secs_f64());
        Taker { workstation_id: self.session.workstation_id, token: self.token, job_type: &job_type.name, seconds }
    }

    /// Sends what was committed as this checkout; `database`: the time that it took to commit.
    pub async fn ship(
        mut self,
        checkout_id: CheckoutId,
        lane: &OpenLane,
        problems: Vec<ComingProblem>,
        database: Duration,
    ) {
        let trace = self.farm.traces.of_checkout(lane.trace_parent.as_deref(), lane.job_id, self.token, || self.since);
        let (weight, bytes) = (problems.len() as u64, problems.iter().map(ComingProblem::bytes).sum());
        instruments::handed_out(std::iter::once(i32::try_from(weight).unwrap_or(i32::MAX)));
        let traced = trace.iter().map(|trace| trace.checkout).collect();
        let committed = Committed {
            checkout_id,
            token: self.token,
            session: self.session.clone(),
            lane,
            load: self.farm.traffic.load(&self.session.unread, bytes),
            taken: Taken { problems, bytes, convoys: 1, weight, to: BatchOrder(1), suspect: false },
            trace,
        };
        committed.ship(&self.farm, &HandOutCall { checkouts: 1, database, traced });
        self.served = true;
        // What goes to the workstation goes before what is told to others, as a rule.
        tokio::task::yield_now().await;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.session.end_claim(self.served);
        let session = self.session.clone();
        let event = if self.served { Event::Served(session) } else { Event::Credit(session) };
        if let Err(TrySendError::Full(event)) = self.farm.dispatcher.try_send(event) {
            // It may have left the queue meanwhile, and its agent does not ask again.
            let dispatcher = self.farm.dispatcher.clone();
            self.farm.tasks.spawn(async move { drop(dispatcher.send(event).await) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcfarm_proto::v1;
    use pcfarm_sql::json::RawJson;

    fn session(id: i64, controller: &str) -> Arc<Session> {
        let hello = v1::Hello { controllers: vec![controller.to_owned()], cores: 1, ..v1::Hello::default() };
        Arc::new(Session::that_waits(id, &hello))
    }

    #[test]
    fn the_first_that_is_idle_and_takes_anybodys_is_taken_once() {
        let job_type = JobType {
            name: "t".to_owned(),
            controller: "a".to_owned(),
            max_attempts: 1,
            time_limit: None,
            read_role: None,
            read_time_limit: Duration::ZERO,
            writes_back: false,
            reads: Vec::new(),
        };
        let sessions = ["a", "b", "a", "a", "a", "a"].iter().zip(1..).map(|(controller, id)| session(id, controller));
        let sessions: Vec<Arc<Session>> = sessions.collect();
        sessions[0].sending(CheckoutId(1), "a");
        sessions[2].select(Some(&RawJson(r#"{"required": ["ann"]}"#.into())));
        sessions[3].ended.cancel();
        let offers = Offers::default();
        offers.offer(7, sessions.clone());
        assert!(offers.take(8, &job_type).is_none(), "another database than was looked at");
        let taken = offers.take(7, &job_type).expect("the fifth waits");
        assert_eq!(taken.workstation_id.0, 5);
        assert!(!taken.wants_work(), "nobody else hands it anything");
        assert_eq!(offers.take(7, &job_type).map(|session| session.workstation_id.0), Some(6));
        assert!(offers.take(7, &job_type).is_none());
        taken.end_claim(false);
        assert!(taken.wants_work(), "its credit is unspent");
        offers.offer(7, sessions.clone());
        offers.withdraw();
        assert!(offers.take(7, &job_type).is_none());
    }
}
