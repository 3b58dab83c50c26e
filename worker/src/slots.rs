//! Slots: sessions that an agent runs beside its own, as its servers want.
//!
//! Owns which of them run. Each is a workstation to the farm, with a selection of its own; they share the agent's cores. A
//! slot that cannot run is tried again later, and keeps nobody else from working.

use std::collections::HashMap;
use std::time::Duration;

use pcfarm_proto::ids::slot_identity;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::agent::Body;
use crate::drive::drive;
use crate::inventory::Ending;

/// Most that an agent runs, whoever asks for more.
const SLOTS_LIMIT: usize = 16;

/// Before a slot that has failed is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(30);

struct Running {
    stop: CancellationToken,
    /// It has been told to end.
    ending: bool,
}

/// Runs those that are wanted until `stop` is cancelled or nobody wants any more, and then until what they hold has been
/// delivered or given back. Returns how many checkouts they left unacknowledged.
pub async fn run(mut wanted: watch::Receiver<Vec<String>>, body: &Body, stop: CancellationToken) -> usize {
    let mut tasks: JoinSet<(String, anyhow::Result<Ending>)> = JoinSet::new();
    let mut running: HashMap<String, Running> = HashMap::new();
    let mut left = 0;
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            changed = wanted.changed() => if changed.is_err() { break },
            Some(ended) = tasks.join_next() => left += note(ended, &mut running),
        }
        let names = sensible(&wanted.borrow_and_update());
        for (name, slot) in &mut running {
            if !names.contains(name) && !slot.ending {
                info!(slot = name, "slot stops");
                slot.ending = true;
                slot.stop.cancel();
            }
        }
        for name in names {
            if !running.contains_key(&name) {
                start(&name, body, &mut tasks, &mut running);
            }
        }
    }
    running.values().for_each(|slot| slot.stop.cancel());
    while let Some(ended) = tasks.join_next().await {
        left += note(ended, &mut running);
    }
    left
}

fn sensible(names: &[String]) -> Vec<String> {
    let can_be_a_file = |name: &&String| {
        (1..=63).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
    };
    names.iter().filter(can_be_a_file).take(SLOTS_LIMIT).cloned().collect()
}

fn start(
    name: &str,
    body: &Body,
    tasks: &mut JoinSet<(String, anyhow::Result<Ending>)>,
    running: &mut HashMap<String, Running>,
) {
    let stop = CancellationToken::new();
    running.insert(name.to_owned(), Running { stop: stop.clone(), ending: false });
    let setup = body.setup(slot_identity(body.state_dir.identity, name), Some(name));
    let name = name.to_owned();
    tasks.spawn(async move {
        info!(slot = name, "slot starts");
        let ended = Box::pin(drive(setup, stop.clone())).await;
        if ended.is_err() {
            stop.run_until_cancelled(tokio::time::sleep(RESTART_PAUSE)).await;
        }
        (name, ended)
    });
}

/// Takes note of one that has ended, and says how many checkouts it left.
fn note(
    ended: Result<(String, anyhow::Result<Ending>), tokio::task::JoinError>,
    running: &mut HashMap<String, Running>,
) -> usize {
    let (name, ended) = match ended {
        Ok(ended) => ended,
        // A bug, which is the whole agent's.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    running.remove(&name);
    match ended {
        Ok(Ending::Clean) => 0,
        Ok(Ending::Unacknowledged(checkouts)) => checkouts,
        Err(error) => {
            error!(slot = name, error = format!("{error:#}"), "slot failed");
            0
        }
    }
}
