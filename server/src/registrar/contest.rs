//! Two agents that name one identity: the connected one stays if it is alive, and gives way if its connection is half open.
//!
//! A newcomer with another instance may be a copy, or the same agent after a restart whose old connection has not ended on the server.
//! The server that holds the session asks its agent. An answer is recorded for some seconds; without one the session ends, and the
//! newcomer takes its place. A session on another server is asked for by a notification.

use super::{Entry, Registered};
use crate::farm::Farm;
use crate::grpc::status_code;
use crate::session::Session;
use pcfarm_proto::ids::WorkstationId;
use pcfarm_sql::presence::{self, Introduction, Refused};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tonic::Status;
use tracing::{info, warn};

/// Time in which a contest is decided, the answer of another server included.
const DECIDED_WITHIN: Duration = Duration::from_secs(6);

/// Interval of attempts while it is not decided.
const AGAIN: Duration = Duration::from_millis(250);

/// Registers an agent. A refusal is final: the connected agent has answered, or the identity belongs to another machine.
pub async fn registered(farm: &Arc<Farm>, who: Introduction) -> Result<Result<Registered, Refused>, Status> {
    let until = Instant::now() + DECIDED_WITHIN;
    let mut asked = None;
    loop {
        let outcome = record(farm, who.clone()).await?;
        let Err(refused) = &outcome else { return Ok(outcome) };
        if !refused.depends_on_an_answer() {
            return Ok(outcome);
        }
        if Instant::now() > until {
            return Err(Status::unavailable(
                "an agent with this identity was connected a moment ago, and its server has not told whether it is alive",
            ));
        }
        let incumbent = (refused.workstation_id, refused.session);
        if asked != Some(incumbent) {
            ask(farm, incumbent).await?;
            asked = Some(incumbent);
        }
        sleep(AGAIN).await;
    }
}

async fn record(farm: &Farm, who: Introduction) -> Result<Result<Registered, Refused>, Status> {
    let stopping = || Status::unavailable("this server is stopping: connect to another");
    let (entry, registered) = Entry::connected(who);
    farm.registrar.send(entry).await.map_err(|_| stopping())?;
    registered.await.map_err(|_| stopping())?
}

/// Asks the agent of this session, which may be connected to another server.
async fn ask(farm: &Arc<Farm>, (workstation, number): (WorkstationId, i64)) -> Result<(), Status> {
    match farm.session(workstation).filter(|session| session.number == number) {
        Some(session) => prove(farm, &session).await,
        None => {
            let client = farm.pool.get().await.map_err(status_code::of_pool)?;
            presence::challenge(&client, workstation, number).await.map_err(status_code::of)?;
        }
    }
    Ok(())
}

/// Takes up the challenge of another server, if the session is here.
pub fn challenged(farm: &Arc<Farm>, (workstation, number): (WorkstationId, i64)) {
    if let Some(session) = farm.session(workstation).filter(|session| session.number == number) {
        let farm = farm.clone();
        farm.tasks.clone().spawn(async move { prove(&farm, &session).await });
    }
}

/// Ends a session whose agent does not answer, and records an answer.
async fn prove(farm: &Farm, session: &Session) {
    let (workstation_id, number) = (session.workstation_id, session.number);
    if !session.is_alive().await {
        info!(%workstation_id, session = number, "no sign of life from an agent whose identity another agent names: session ended");
        session
            .end(Status::unavailable("this agent did not answer while another one named its identity: connect again"));
        return;
    }
    let recorded = async {
        let client = farm.pool.get().await?;
        presence::note_answer(&client, workstation_id, number).await?;
        anyhow::Ok(())
    };
    if let Err(error) = recorded.await {
        warn!(%workstation_id, error = format!("{error:#}"), "cannot record that the connected agent is alive: the newcomer asks again");
    }
}
