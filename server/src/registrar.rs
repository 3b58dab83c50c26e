//! Records workstations that have connected, are heard again after a silence, have said goodbye, or have lost their connection.
//! When a server starts again, or was short of time, thousands of them come at once. The next database call records together all
//! that came during the last one.

pub mod contest;

use crate::farm::Farm;
use crate::grpc::status_code;
use crate::session::Session;
use pcfarm_proto::ids::{CheckoutId, WorkstationId};
use pcfarm_sql::presence::{self, Connection, Goodbye, Introduction, LiveCheckout, Refused};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tonic::Status;
use tracing::{debug, warn};
use uuid::Uuid;

/// Of a workstation that has connected: its connection, and what the database has it hold.
#[derive(Debug)]
pub struct Registered {
    pub connection: Connection,
    pub live: HashMap<CheckoutId, LiveCheckout>,
}

/// Answer to a registration: the database failed, or it refuses the identity.
pub type Outcome = Result<Result<Registered, Refused>, Status>;

type Answer = oneshot::Sender<Outcome>;

/// What is to be written down.
pub enum Entry {
    Connected {
        who: Box<Introduction>,
        came: Instant,
        answer: Answer,
    },
    /// It had been marked as silent.
    Heard(Arc<Session>),
    /// Its agent ends in good order. `recorded` is dropped without a word if that could not be written down.
    Left {
        session: Arc<Session>,
        goodbye: Goodbye,
        recorded: oneshot::Sender<()>,
    },
    Ended(Arc<Session>),
}

impl Entry {
    /// Who has connected; the answer comes when it has been written down.
    pub fn connected(who: Introduction) -> (Entry, oneshot::Receiver<Outcome>) {
        let (answer, registered) = oneshot::channel();
        (Entry::Connected { who: Box::new(who), came: Instant::now(), answer }, registered)
    }
}

/// Entries that wait; who finds no room waits with its agent.
pub const ENTRIES_LIMIT: usize = 1024;

/// Enough that what each costs is its own row, and few enough that nobody waits long for the others.
const AT_ONCE: usize = 500;

/// A goodbye whose row another transaction has locked is tried again so often, and for so long. Its agent does not wait for it.
const LOCKED_RETRY: Duration = Duration::from_millis(500);
const LOCKED_PATIENCE: Duration = Duration::from_secs(60);

/// Goodbyes that wait for locked rows.
const LOCKED_LIMIT: usize = 1024;

/// A goodbye that is to be recorded.
struct Farewell {
    session: Arc<Session>,
    goodbye: Goodbye,
    came: Instant,
}

/// Goodbyes whose rows were locked, and when they are tried again.
struct Locked {
    farewells: Vec<Farewell>,
    due: Instant,
}

impl Locked {
    fn take_due(&mut self, now: Instant) -> Vec<Farewell> {
        if now >= self.due { std::mem::take(&mut self.farewells) } else { Vec::new() }
    }

    fn keep(&mut self, farewells: Vec<Farewell>, now: Instant) {
        let is_in_time = |one: &Farewell| now.saturating_duration_since(one.came) < LOCKED_PATIENCE;
        for one in farewells {
            if is_in_time(&one) && self.farewells.len() < LOCKED_LIMIT {
                self.farewells.push(one);
                self.due = now + LOCKED_RETRY;
            } else {
                warn!(workstation_id = %one.session.workstation_id,
                    "cannot record a goodbye: the workstation's row is locked (it is dead after its lease)");
            }
        }
    }
}

/// Runs until the server stops.
pub async fn run(farm: Arc<Farm>, mut entries: mpsc::Receiver<Entry>) {
    let mut gathered = Vec::new();
    let mut locked = Locked { farewells: Vec::new(), due: Instant::now() };
    while !farm.stopping.is_cancelled() {
        // What the last round has left over goes first, with whatever waits already.
        while gathered.len() < AT_ONCE
            && let Ok(entry) = entries.try_recv()
        {
            gathered.push(entry);
        }
        if gathered.is_empty() {
            tokio::select! {
                () = farm.stopping.cancelled() => return,
                _ = entries.recv_many(&mut gathered, AT_ONCE) => {}
                () = tokio::time::sleep_until(locked.due.into()), if !locked.farewells.is_empty() => {}
            }
        }
        gathered = round(&farm, gathered, &mut locked).await;
    }
}

/// Writes these down. Returns those that must wait: an identity that came twice is two registrations, in order.
async fn round(farm: &Farm, entries: Vec<Entry>, locked: &mut Locked) -> Vec<Entry> {
    let mut left = Vec::new();
    let now = Instant::now();
    let (mut heard, mut ended, mut answers) = (Vec::new(), Vec::new(), Vec::new());
    let mut gone = locked.take_due(now);
    let mut connected = Vec::new();
    let mut identities: HashSet<Uuid> = HashSet::new();
    let mut oldest: Option<Instant> = None;
    for entry in entries {
        match entry {
            Entry::Heard(session) => heard.push(session),
            Entry::Left { session, goodbye, recorded } => {
                answers.push((session.workstation_id, recorded));
                gone.push(Farewell { session, goodbye, came: now });
            }
            Entry::Ended(session) => ended.push(session),
            Entry::Connected { who, came, answer } if identities.insert(who.identity) => {
                oldest = oldest.min(Some(came)).or(Some(came));
                connected.push((who, answer));
            }
            Entry::Connected { .. } => left.push(entry),
        }
    }
    farm.registering_since(oldest);
    if !heard.is_empty() {
        mark_heard(farm, &heard).await;
    }
    // Before the ends of their connections, which do not change an offline workstation.
    if !gone.is_empty() {
        locked.keep(mark_offline(farm, gone, answers).await, now);
    }
    if !ended.is_empty() {
        mark_ended(farm, &ended).await;
    }
    if !connected.is_empty() {
        connect(farm, connected).await;
    }
    farm.registering_since(None);
    left
}

async fn mark_heard(farm: &Farm, heard: &[Arc<Session>]) {
    let numbers: Vec<_> = heard.iter().map(|s| (s.workstation_id, s.number)).collect();
    let recorded = async {
        let client = farm.pool.get().await?;
        anyhow::Ok(presence::mark_heard(&client, &numbers).await?)
    };
    match recorded.await {
        // Each pulse takes marks back, too, until it is known that none is left.
        Ok(locked) if locked.is_empty() => {}
        Ok(locked) => debug!(workstations = locked.len(), "words after silence were not recorded: rows are locked"),
        Err(error) => {
            let error = format!("{error:#}");
            warn!(
                error,
                workstations = heard.len(),
                "words after silence were not recorded: saying so with the next word"
            );
            heard.iter().for_each(|session| session.word_unrecorded());
        }
    }
}

/// Returns goodbyes whose rows are locked. Drops the answers to those that are not recorded.
async fn mark_offline(
    farm: &Farm,
    gone: Vec<Farewell>,
    answers: Vec<(WorkstationId, oneshot::Sender<()>)>,
) -> Vec<Farewell> {
    let row = |one: &Farewell| (one.session.workstation_id, one.session.number, one.goodbye.clone());
    let rows: Vec<_> = gone.iter().map(row).collect();
    let recorded = async {
        let client = farm.pool.get().await?;
        anyhow::Ok(presence::mark_offline(&client, &rows).await?)
    };
    let locked: HashSet<WorkstationId> = match recorded.await {
        Ok(locked) => locked.into_iter().collect(),
        Err(error) => {
            let error = format!("{error:#}");
            warn!(
                error,
                workstations = rows.len(),
                "cannot record goodbyes: these workstations are dead after their leases"
            );
            return Vec::new();
        }
    };
    for (workstation_id, recorded) in answers {
        if !locked.contains(&workstation_id) {
            // An agent that has gone meanwhile does not wait for it.
            let _ = recorded.send(());
        }
    }
    gone.into_iter().filter(|one| locked.contains(&one.session.workstation_id)).collect()
}

async fn mark_ended(farm: &Farm, ended: &[Arc<Session>]) {
    let silent: Vec<_> = ended.iter().map(|s| (s.workstation_id, s.number, s.silence().as_secs_f64())).collect();
    let recorded = async {
        let client = farm.pool.get().await?;
        presence::mark_silent(&client, &silent, true).await?;
        anyhow::Ok(())
    };
    if let Err(error) = recorded.await {
        // The next look at all rows finds them.
        let error = format!("{error:#}");
        warn!(error, connections = silent.len(), "the end of connections was not recorded");
    }
}

async fn connect(farm: &Farm, connected: Vec<(Box<Introduction>, Answer)>) {
    let all: Vec<&Introduction> = connected.iter().map(|(who, _)| &**who).collect();
    match try_connect(farm, &all).await {
        Ok(registered) => {
            for ((_, answer), registered) in connected.into_iter().zip(registered) {
                // Who has gone meanwhile is missed by the look at all rows.
                drop(answer.send(Ok(registered)));
            }
        }
        Err(_) if connected.len() > 1 => {
            // Whatever it was, one agent's words must not keep the others out.
            for one in connected {
                Box::pin(connect(farm, vec![one])).await;
            }
        }
        Err(status) => {
            for (_, answer) in connected {
                drop(answer.send(Err(status.clone())));
            }
        }
    }
}

async fn try_connect(farm: &Farm, all: &[&Introduction]) -> Result<Vec<Result<Registered, Refused>>, Status> {
    let client = farm.pool.get().await.map_err(status_code::of_pool)?;
    let connections = presence::connect(&client, all, farm.server_id).await.map_err(status_code::of)?;
    let ids: Vec<WorkstationId> = connections.iter().flatten().map(|c| c.workstation_id).collect();
    let mut live: HashMap<WorkstationId, HashMap<CheckoutId, LiveCheckout>> = HashMap::new();
    for (workstation, checkout, facts) in presence::live_checkouts(&client, &ids).await.map_err(status_code::of)? {
        live.entry(workstation).or_default().insert(checkout, facts);
    }
    let mut with_checkouts = |connection: Connection| Registered {
        live: live.remove(&connection.workstation_id).unwrap_or_default(),
        connection,
    };
    Ok(connections.into_iter().map(|connection| connection.map(&mut with_checkouts)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcfarm_proto::v1;

    #[test]
    fn goodbyes_with_locked_rows_are_tried_again_for_a_while() {
        let came = Instant::now();
        let after = |seconds| came + Duration::from_secs(seconds);
        let session = Arc::new(Session::that_waits(1, &v1::Hello::default()));
        let goodbye = Goodbye { reason: "stopped in good order".to_owned(), asleep: false };
        let mut locked = Locked { farewells: Vec::new(), due: came };
        locked.keep(vec![Farewell { session: session.clone(), goodbye: goodbye.clone(), came }], came);
        assert!(locked.take_due(came).is_empty(), "not at once");
        let again = locked.take_due(after(1));
        assert_eq!(again.len(), 1);
        locked.keep(again, after(59));
        let again = locked.take_due(after(60));
        locked.keep(again, after(60));
        assert!(locked.take_due(after(61)).is_empty(), "the lease decides");
        let many = |_| Farewell { session: session.clone(), goodbye: goodbye.clone(), came };
        locked.keep((0..2 * LOCKED_LIMIT).map(many).collect(), came);
        assert_eq!(locked.take_due(after(1)).len(), LOCKED_LIMIT);
    }
}
