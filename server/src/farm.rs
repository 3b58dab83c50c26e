//! What the parts of a running server share. Holds no truth: whatever is here can be read again from the database.

use crate::access::Access;
use crate::authority::Tls;
use crate::deliver::aside::Troubles;
use crate::deliver::streamed::Room;
use crate::deliver::{self, Delivered};
use crate::dispatch;
use crate::dispatch::offers::Offers;
use crate::dispatch::spread::IdleElsewhere;
use crate::members::Members;
use crate::outgoing::Traffic;
use crate::registrar;
use crate::schedules::Ticking;
use crate::session::Session;
use crate::traces::Traces;
use crate::traces::path::CheckoutTrace;
use crate::upkeep::maybe_over::MaybeOver;
use crate::watchdog::Rounds;
use deadpool_postgres::Pool;
use pcfarm_proto::ids::{CheckoutId, JobId, ServerId, WorkstationId};
use pcfarm_recycler::pulse_limit;
use pcfarm_sql::job_types::JobType;
use pcfarm_sql::pool::{Epoch, Lines};
use std::collections::HashMap;
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The farm's rhythm.
#[derive(Clone, Debug)]
pub struct Rhythm {
    /// A workstation that is silent for longer is dead.
    pub lease: Duration,
    /// How often agents say that they live.
    pub heartbeat: Duration,
    /// What one checkout should be worth.
    pub checkout: Duration,
    /// Most problems of one checkout, unless a single convoy has more.
    pub checkout_problems: usize,
}

/// A checkout and what it holds: immutable, so what is remembered of it is always right.
#[derive(Debug)]
pub struct Held {
    pub token: i64,
    pub job_id: JobId,
    pub job_type: String,
    pub workstation_id: WorkstationId,
    pub members: Members,
    /// If its job is traced.
    pub trace: Option<Box<CheckoutTrace>>,
}

pub struct Farm {
    pub pool: Pool,
    /// One for the dispatcher, [`deliver::LINES`] for the acceptor, one for small submissions; what is put aside of deliveries takes
    /// one now and then.
    pub lines: Lines,
    /// Who may do what.
    pub access: Arc<Access>,
    /// What this server shows and trusts; none: it speaks in the clear.
    pub tls: Option<Arc<Tls>>,
    pub epoch: Epoch,
    pub server_id: ServerId,
    pub rhythm: Rhythm,
    pub dispatcher: mpsc::Sender<dispatch::Event>,
    /// Whom the dispatcher has nothing for.
    pub offers: Offers,
    pub idle_elsewhere: IdleElsewhere,
    /// Checkouts on their way to agents.
    pub traffic: Arc<Traffic>,
    pub acceptor: mpsc::Sender<Delivered>,
    /// Room for solutions that come in pieces.
    pub streamed: Room,
    /// What the acceptor cannot store results of.
    pub troubles: Troubles,
    pub registrar: mpsc::Sender<registrar::Entry>,
    pub reads: crate::reads::Reads,
    pub traces: Traces,
    pub maybe_over: MaybeOver,
    /// Something is to be told.
    pub alerts: Notify,
    /// What schedules share with those who change them, and with health checks.
    pub ticking: Ticking,
    /// When the loops last came round that a server is made of.
    pub rounds: Rounds,
    /// Checkouts may have been revoked elsewhere, or workstations drained.
    pub look_at_sessions: Notify,
    pub refused_results: AtomicI64,
    pub stopping: CancellationToken,
    /// Tasks of connections; awaited at the end.
    pub tasks: TaskTracker,
    job_types: RwLock<Arc<HashMap<String, Arc<JobType>>>>,
    sessions: Mutex<Sessions>,
    /// Since when the one who is being registered has waited for it.
    registering: Mutex<Option<Instant>>,
    held: Mutex<HashMap<CheckoutId, Arc<Held>>>,
}

/// Who is connected, and how many of them have each controller.
#[derive(Default)]
struct Sessions {
    by_workstation: HashMap<WorkstationId, Arc<Session>>,
    with_controller: HashMap<String, usize>,
}

impl Sessions {
    fn insert(&mut self, session: &Arc<Session>) -> Option<Arc<Session>> {
        for controller in &session.controllers {
            *self.with_controller.entry(controller.clone()).or_default() += 1;
        }
        let before = self.by_workstation.insert(session.workstation_id, session.clone());
        before.as_ref().iter().for_each(|before| self.uncount(before));
        before
    }

    fn remove(&mut self, session: &Session) {
        if self.by_workstation.get(&session.workstation_id).is_some_and(|s| s.number == session.number) {
            self.by_workstation.remove(&session.workstation_id);
            self.uncount(session);
        }
    }

    fn uncount(&mut self, session: &Session) {
        for controller in &session.controllers {
            if let Some(count) = self.with_controller.get_mut(controller) {
                *count -= 1;
                if *count == 0 {
                    self.with_controller.remove(controller);
                }
            }
        }
    }
}

/// What a farm is built from.
pub struct Parts {
    pub pool: Pool,
    /// Who may do what.
    pub access: Arc<Access>,
    /// What this server shows and trusts; none: it speaks in the clear.
    pub tls: Option<Arc<Tls>>,
    pub epoch: Epoch,
    pub server_id: ServerId,
    pub rhythm: Rhythm,
    pub dispatcher: mpsc::Sender<dispatch::Event>,
    pub acceptor: mpsc::Sender<Delivered>,
    pub registrar: mpsc::Sender<registrar::Entry>,
    pub reads: crate::reads::Reads,
    pub traces: Traces,
    pub stopping: CancellationToken,
}

impl Farm {
    pub fn new(parts: Parts) -> Arc<Farm> {
        Arc::new(Farm {
            lines: Lines::new(parts.pool.clone(), 1 + deliver::LINES + 1),
            pool: parts.pool,
            access: parts.access,
            tls: parts.tls,
            epoch: parts.epoch,
            server_id: parts.server_id,
            rhythm: parts.rhythm,
            dispatcher: parts.dispatcher,
            offers: Offers::default(),
            idle_elsewhere: IdleElsewhere::default(),
            traffic: Arc::default(),
            streamed: Room::default(),
            acceptor: parts.acceptor,
            troubles: Troubles::default(),
            registrar: parts.registrar,
            reads: parts.reads,
            traces: parts.traces,
            maybe_over: MaybeOver::default(),
            alerts: Notify::new(),
            ticking: Ticking::default(),
            rounds: Rounds::default(),
            look_at_sessions: Notify::new(),
            refused_results: AtomicI64::new(0),
            stopping: parts.stopping,
            tasks: TaskTracker::new(),
            job_types: RwLock::default(),
            sessions: Mutex::default(),
            registering: Mutex::default(),
            held: Mutex::default(),
        })
    }

    pub fn job_type(&self, name: &str) -> Option<Arc<JobType>> {
        self.job_types.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Reads the job types again.
    pub async fn reload_job_types(&self) -> anyhow::Result<()> {
        let client = self.pool.get().await?;
        let types = pcfarm_sql::job_types::job_types(&client).await?;
        let types = types.into_iter().map(|t| (t.name.clone(), Arc::new(t))).collect();
        *self.job_types.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(types);
        Ok(())
    }

    fn lock_sessions(&self) -> std::sync::MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn sessions(&self) -> Vec<Arc<Session>> {
        self.lock_sessions().by_workstation.values().cloned().collect()
    }

    pub fn session(&self, workstation: WorkstationId) -> Option<Arc<Session>> {
        self.lock_sessions().by_workstation.get(&workstation).cloned()
    }

    pub fn registering_since(&self, came: Option<Instant>) {
        *self.registering.lock().unwrap_or_else(PoisonError::into_inner) = came;
    }

    /// How long those who connect have to wait until they are known: meanwhile their silence is not theirs.
    pub fn registering_for(&self) -> Duration {
        self.registering.lock().unwrap_or_else(PoisonError::into_inner).map_or(Duration::ZERO, |came| came.elapsed())
    }

    /// How many workstations can run it.
    pub fn workstations_with(&self, controller: &str) -> usize {
        self.lock_sessions().with_controller.get(controller).copied().unwrap_or(0)
    }

    /// Time of the last pulse in the database; none: the database does not answer.
    pub fn recorded(&self) -> Option<Instant> {
        self.rounds.recorded(pulse_limit(self.rhythm.lease))
    }

    /// Registers a connection. Returns the one that it takes over from, if that was here.
    pub fn join(&self, session: &Arc<Session>) -> Option<Arc<Session>> {
        self.lock_sessions().insert(session)
    }

    /// Takes a connection out, unless a newer one has its place already.
    pub fn leave(&self, session: &Arc<Session>) {
        self.lock_sessions().remove(session);
        self.traffic.end(&session.unread);
        let ids = session.held();
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        for id in ids {
            held.remove(&id);
        }
    }

    pub fn remember(&self, checkout: CheckoutId, held: Held) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).insert(checkout, Arc::new(held));
    }

    pub fn recall(&self, checkout: CheckoutId) -> Option<Arc<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).get(&checkout).cloned()
    }

    /// Forgets checkouts of workstations that are not connected here. What is needed of them is read again.
    pub fn forget_strangers(&self) {
        let sessions = self.lock_sessions();
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|_, held| sessions.by_workstation.contains_key(&held.workstation_id));
    }

    pub fn forget(&self, checkout: CheckoutId) -> Option<Arc<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).remove(&checkout)
    }
}
