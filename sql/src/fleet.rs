//! What administrators do with workstations, many at once: all of them or, if one is not there, none.

use crate::checkout::Queries;
use crate::presence::notify;
use deadpool_postgres::ClientWrapper;
use pcfarm_proto::ids::WorkstationId;
use std::time::Duration;
use tokio_postgres::Error;

/// Workstations that are not there, so that nothing was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown(pub Vec<WorkstationId>);

/// What is said of a drain.
#[derive(Clone, Debug, Default)]
pub struct Drain {
    /// Empty: nothing, or what was said before.
    pub why: String,
    /// From now on, until what is not finished is given back. None: never, or as was said before.
    pub deadline: Option<Duration>,
}

/// Asks them to finish what they hold and take no more.
pub async fn drain(
    client: &ClientWrapper,
    workstations: &[WorkstationId],
    drain: &Drain,
) -> Result<Result<(), Unknown>, Error> {
    let ids = ids(workstations);
    let seconds = drain.deadline.map(|deadline| deadline.as_secs_f64());
    let changed = client.run(include_str!("../queries/drain_workstations.sql"), &[&ids, &drain.why, &seconds]).await?;
    notify(client, "drain").await?;
    judged(client, &ids, changed.len()).await
}

/// Lets them take work again; those in quarantine if they are released.
pub async fn undrain(
    client: &ClientWrapper,
    workstations: &[WorkstationId],
    release: bool,
) -> Result<Result<(), Unknown>, Error> {
    let ids = ids(workstations);
    let changed = client.run(include_str!("../queries/undrain_workstations.sql"), &[&ids, &release]).await?;
    notify(client, "drain").await?;
    judged(client, &ids, changed.len()).await
}

/// What is to be remembered about them, instead of what was.
pub async fn note(
    client: &ClientWrapper,
    workstations: &[WorkstationId],
    note: &str,
) -> Result<Result<(), Unknown>, Error> {
    let ids = ids(workstations);
    let changed = client.run(include_str!("../queries/note_workstations.sql"), &[&ids, &note]).await?;
    judged(client, &ids, changed.len()).await
}

/// Wakes those that sleep. One that is not there, or that must not be woken, is an error of the database with a message for people.
pub async fn wake(client: &ClientWrapper, workstations: &[WorkstationId]) -> Result<(), Error> {
    client.run(include_str!("../queries/wake.sql"), &[&ids(workstations)]).await.map(drop)
}

/// Wakes those for which there is work, in the hours that administrators have set; returns how many there are.
pub async fn wake_for_work(client: &impl Queries) -> Result<i64, Error> {
    client.run(include_str!("../queries/wake_for_work.sql"), &[]).await?[0].try_get(0)
}

/// A workstation that is to be woken now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wake {
    pub workstation_id: WorkstationId,
    pub hostname: String,
    /// Its network card.
    pub card: String,
    /// Where to send.
    pub address: String,
    /// From 1.
    pub attempt: i32,
}

/// Those that this server is to try to wake now.
pub async fn claim_wakes(client: &impl Queries) -> Result<Vec<Wake>, Error> {
    let rows = client.run(include_str!("../queries/claim_wakes.sql"), &[]).await?;
    rows.iter()
        .map(|row| {
            Ok(Wake {
                workstation_id: row.try_get("workstation_id")?,
                hostname: row.try_get("hostname")?,
                card: row.try_get("card")?,
                address: row.try_get("address")?,
                attempt: row.try_get("try")?,
            })
        })
        .collect()
}

/// Removes workstations that are gone for good, with their credentials; returns what they were called. One that is not there,
/// or, unless it is forced, not dead, is an error of the database with a message for people.
pub async fn forget(
    client: &ClientWrapper,
    workstations: &[WorkstationId],
    force: bool,
) -> Result<Vec<(WorkstationId, String)>, Error> {
    let rows = client.run(include_str!("../queries/forget_workstations.sql"), &[&ids(workstations), &force]).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// Quarantines workstations that fail what others solve; returns how many there are.
pub async fn quarantine(client: &impl Queries) -> Result<i64, Error> {
    client.run(include_str!("../queries/quarantine_workstations.sql"), &[]).await?[0].try_get(0)
}

/// Notes that these workstations have had results accepted.
pub async fn note_worked(client: &impl Queries, workstations: &[WorkstationId]) -> Result<(), Error> {
    client.run(include_str!("../queries/note_worked.sql"), &[&ids(workstations)]).await.map(drop)
}

/// Workstations that one pass has reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    /// They have not worked on the days on which they could have.
    pub without_work: i64,
    /// Their agents cannot tell whether a person is present.
    pub cannot_tell: i64,
}

/// Reports workstations that do not work for long, each once.
pub async fn report_idle(client: &impl Queries) -> Result<Reported, Error> {
    let rows = client.run(include_str!("../queries/note_idle_workstations.sql"), &[]).await?;
    Ok(Reported { without_work: rows[0].try_get("without_work")?, cannot_tell: rows[0].try_get("cannot_tell")? })
}

/// Writes down what a server has measured: of each the job type, and problems a second.
pub async fn note_speeds(client: &ClientWrapper, speeds: &[(WorkstationId, String, f64)]) -> Result<(), Error> {
    let ids: Vec<i64> = speeds.iter().map(|speed| speed.0.0).collect();
    let job_types: Vec<&str> = speeds.iter().map(|speed| speed.1.as_str()).collect();
    let rates: Vec<f64> = speeds.iter().map(|speed| speed.2).collect();
    client.run(include_str!("../queries/note_speeds.sql"), &[&ids, &job_types, &rates]).await.map(drop)
}

/// Each once: what was done is counted.
fn ids(workstations: &[WorkstationId]) -> Vec<i64> {
    let mut ids: Vec<i64> = workstations.iter().map(|id| id.0).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

async fn judged(client: &ClientWrapper, ids: &Vec<i64>, changed: usize) -> Result<Result<(), Unknown>, Error> {
    if changed == ids.len() {
        return Ok(Ok(()));
    }
    let rows = client.run(include_str!("../queries/unknown_workstations.sql"), &[ids]).await?;
    let unknown = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<_>, _>>()?;
    Ok(Err(Unknown(unknown)))
}
