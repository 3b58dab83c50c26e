//! Identities that are found on two machines: copies of a disk image or of a state directory.
//!
//! The database decides who is refused. This turns a refusal into advice for the PC's owner and into an event for the
//! administrator, once a day for each copy.

use crate::farm::Farm;
use crate::session::Session;
use pcfarm_proto::v1;
use pcfarm_sql::json::RawJson;
use pcfarm_sql::presence::{self, Introduction, MachineDigest, Refusal, Refused};
use serde_json::{Value, json};
use std::time::Duration;
use tonic::Status;
use tracing::warn;
use uuid::Uuid;

/// A copy that retries is news once in this time.
const NEWS_EVERY: Duration = Duration::from_secs(86_400);

/// An agent that asks to be registered, as far as a refusal needs it.
pub struct Newcomer {
    hostname: String,
    machine: Option<MachineDigest>,
}

impl Newcomer {
    pub fn of(who: &Introduction) -> Newcomer {
        Newcomer { hostname: who.hostname.clone(), machine: who.machine }
    }
}

/// Takes the report of a copy that shows the certificate of its original because it has none of its own. It changes nothing but
/// events.
pub async fn reported(farm: &Farm, who: &Introduction) -> Status {
    let known = async {
        let client = farm.pool.get().await?;
        anyhow::Ok(presence::workstation_of(&client, who.identity).await?)
    };
    match known.await {
        Ok(Some((workstation_id, session))) => {
            let refused = Refused { workstation_id, why: Refusal::AnotherMachine, session, answered: false };
            refuse(farm, refused, &Newcomer::of(who)).await
        }
        Ok(None) => Status::already_exists("this is a copy of a workstation that the farm does not know any more"),
        Err(error) => Status::unavailable(format!("cannot look up the original of this copy: {error:#}")),
    }
}

/// Records the refusal and returns its status.
pub async fn refuse(farm: &Farm, refused: Refused, newcomer: &Newcomer) -> Status {
    let Refused { workstation_id, why, .. } = refused;
    let (outcome, advice) = match why {
        Refusal::AnotherMachine => (
            "refused: the identity belongs to another machine",
            "this identity belongs to another machine, so this state directory is a copy: `pcfarm-worker identity new` gives this \
             PC an identity of its own; if its hardware was replaced, `pcfarm-worker identity keep` binds the identity to it",
        ),
        Refusal::InUse => (
            "refused: bound anew while the agent on the other machine is connected",
            "this identity was bound to this machine, and an agent is connected from the machine to which it was bound before: \
             stop that one, or give this PC an identity of its own by `pcfarm-worker identity new`",
        ),
        Refusal::NoMachine => (
            "refused: the newcomer does not say on which machine it runs",
            "this identity belongs to a machine whose agent is connected, and this agent does not say on which machine it runs: \
             install the current version, or give it a state directory of its own",
        ),
        Refusal::TwoAgents => (
            "refused: another agent is connected from a machine that looks the same",
            "another agent is connected with this workstation's identity from a machine that cannot be told apart from this one: \
             `pcfarm-worker identity new` gives this PC an identity of its own",
        ),
    };
    warn!(%workstation_id, hostname = newcomer.hostname, outcome, "an identity is used on two machines");
    let machine = newcomer.machine.map(|digest| digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    let details = json!({"copy": newcomer.hostname, "outcome": outcome, "machine": machine});
    note(farm, refused.workstation_id, details, Some(NEWS_EVERY)).await;
    Status::already_exists(advice)
}

/// Records that a workstation has found a copied identity and made one of its own, once.
pub async fn note_own_identity(farm: &Farm, session: &Session, hello: &v1::Hello) {
    let cloned_from = hello.rebinding.as_ref().map_or("", |rebinding| &rebinding.cloned_from);
    let Ok(cloned_from) = cloned_from.parse::<Uuid>() else { return };
    let details = json!({
        "copy": session.workstation_id.to_string(),
        "cloned_from": cloned_from.to_string(),
        "outcome": "it has an identity of its own",
    });
    note(farm, session.workstation_id, details, None).await;
}

/// Records an event about a copy. A failure to do so refuses no agent.
async fn note(farm: &Farm, workstation: pcfarm_proto::ids::WorkstationId, details: Value, every: Option<Duration>) {
    let details = RawJson(details.to_string().into());
    let noted = async {
        let client = farm.pool.get().await?;
        presence::note_clone(&client, workstation, &details, every).await?;
        anyhow::Ok(())
    };
    if let Err(error) = noted.await {
        warn!(%workstation, error = format!("{error:#}"), "cannot record a copied identity");
    }
}
