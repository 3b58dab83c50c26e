//! State of the database's clock, and repair of the times that a wrong clock wrote.

use crate::checkout::Queries;
use pcfarm_proto::ids::{JobId, ServerId, WorkstationId};
use std::time::SystemTime;
use tokio_postgres::{Error, Row};

/// Decision of the servers about the clock, which is unproven while any of the three deadlines is set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    pub step_until: Option<SystemTime>,
    pub difference_until: Option<SystemTime>,
    pub stored_until: Option<SystemTime>,
    /// The last step, and the last difference from a server's clock, for people.
    pub step_seconds: Option<f64>,
    pub difference_seconds: Option<f64>,
    pub difference_server: Option<ServerId>,
    /// The newest stored time that a server found at its first look.
    pub newest: Option<SystemTime>,
    /// A difference up to this, and a newest time up to that, have been accepted.
    pub tolerated_seconds: f64,
    pub accepted_newest: Option<SystemTime>,
    /// The clock has stepped ahead by so many seconds, from a time of the clock before to a time of the present clock.
    pub stepped_at: Option<SystemTime>,
    pub stepped_to: Option<SystemTime>,
    pub stepped_seconds: f64,
    /// Sum of the steps since the clock was proven last.
    pub moved_seconds: f64,
}

impl State {
    pub fn is_proven(&self) -> bool {
        self.step_until.is_none() && self.difference_until.is_none() && self.stored_until.is_none()
    }
}

/// One look at the clock.
#[derive(Clone, Debug)]
pub struct Looked {
    pub state: State,
    /// The database's time.
    pub now: SystemTime,
    /// The look before, of any server.
    pub checked_at: Option<SystemTime>,
    pub difference_server_runs: bool,
    /// The newest stored times, if the caller wants them and anything is stored: of all, and of those until now.
    pub newest: Option<SystemTime>,
    pub newest_until_now: Option<SystemTime>,
}

/// Reads the state and the time, and locks the state's row until the transaction ends.
pub async fn look(client: &impl Queries, server: ServerId, with_newest: bool) -> Result<Looked, Error> {
    let rows = client.run(include_str!("../queries/clock_state.sql"), &[&server, &with_newest]).await?;
    let row = &rows[0];
    Ok(Looked {
        state: state(row)?,
        now: row.try_get("now")?,
        checked_at: row.try_get("checked_at")?,
        difference_server_runs: row.try_get("difference_server_runs")?,
        newest: row.try_get("newest_of_all")?,
        newest_until_now: row.try_get("newest_until_now")?,
    })
}

fn state(row: &Row) -> Result<State, Error> {
    Ok(State {
        step_until: row.try_get("step_until")?,
        difference_until: row.try_get("difference_until")?,
        stored_until: row.try_get("stored_until")?,
        step_seconds: row.try_get("step_seconds")?,
        difference_seconds: row.try_get("difference_seconds")?,
        difference_server: row.try_get("difference_server")?,
        newest: row.try_get("newest")?,
        tolerated_seconds: row.try_get("tolerated_seconds")?,
        accepted_newest: row.try_get("accepted_newest")?,
        stepped_at: row.try_get("stepped_at")?,
        stepped_to: row.try_get("stepped_to")?,
        stepped_seconds: row.try_get("stepped_seconds")?,
        moved_seconds: row.try_get("moved_seconds")?,
    })
}

/// Writes the state and the time of the look, which is the time that the state was decided by.
pub async fn set(client: &impl Queries, state: &State, looked_at: SystemTime) -> Result<(), Error> {
    let State { step_until, difference_until, stored_until, .. } = state;
    client
        .run(
            include_str!("../queries/set_clock_state.sql"),
            &[
                step_until,
                difference_until,
                stored_until,
                &state.step_seconds,
                &state.difference_seconds,
                &state.difference_server,
                &state.newest,
                &state.tolerated_seconds,
                &state.accepted_newest,
                &state.stepped_at,
                &state.stepped_to,
                &state.stepped_seconds,
                &state.moved_seconds,
                &looked_at,
            ],
        )
        .await?;
    Ok(())
}

/// Parts of the tables in which a clock that was ahead may have written times for which the farm would wait.
pub const PARTS: [&str; 12] = [
    "checkouts",
    "workstations",
    "delayed",
    "loads",
    "submissions",
    "wakes",
    "alerts",
    "digests",
    "records",
    "signals",
    "files",
    "tokens",
];

/// Rows that [`put_right`] changes in one transaction.
pub const PUT_RIGHT_AT_ONCE: i32 = 1000;

/// Computes times of one part again that a clock that was ahead has written: at most [`PUT_RIGHT_AT_ONCE`]. Returns how many; none while
/// the clock is behind. A search that is not thorough finds failed problems only when they wait longer than any job type would let them.
pub async fn put_right(client: &impl Queries, part: &str, thorough: bool) -> Result<i64, Error> {
    let query = include_str!("../queries/put_clock_right.sql");
    client.run(query, &[&part, &PUT_RIGHT_AT_ONCE, &thorough]).await?[0].try_get(0)
}

/// Bounds the times of heartbeats and of silence by the present time.
pub async fn put_leases_right(client: &impl Queries) -> Result<(), Error> {
    client.run(include_str!("../queries/put_leases_right.sql"), &[]).await?;
    Ok(())
}

/// The clock as people see it.
#[derive(Clone, Debug)]
pub struct Clock {
    pub now: SystemTime,
    /// Rows are removed for their age.
    pub proven: bool,
    /// A server has looked within a minute.
    pub watched: bool,
    /// Checkouts are revoked for their time limits.
    pub time_limits_hold: bool,
    pub checked_at: Option<SystemTime>,
    pub unproven_since: Option<SystemTime>,
    pub step_until: Option<SystemTime>,
    pub difference_until: Option<SystemTime>,
    pub stored_until: Option<SystemTime>,
    pub step_seconds: Option<f64>,
    pub difference_seconds: Option<f64>,
    pub difference_server: Option<ServerId>,
    pub newest: Option<SystemTime>,
    pub accepted_by: Option<String>,
    pub accepted_at: Option<SystemTime>,
}

pub async fn read(client: &impl Queries) -> Result<Clock, Error> {
    let rows = client.run(include_str!("../queries/read_clock.sql"), &[]).await?;
    let row = &rows[0];
    Ok(Clock {
        now: row.try_get("now")?,
        proven: row.try_get("proven")?,
        watched: row.try_get("watched")?,
        time_limits_hold: row.try_get("time_limits_hold")?,
        checked_at: row.try_get("checked_at")?,
        unproven_since: row.try_get("unproven_since")?,
        step_until: row.try_get("step_until")?,
        difference_until: row.try_get("difference_until")?,
        stored_until: row.try_get("stored_until")?,
        step_seconds: row.try_get("step_seconds")?,
        difference_seconds: row.try_get("difference_seconds")?,
        difference_server: row.try_get("difference_server")?,
        newest: row.try_get("newest")?,
        accepted_by: row.try_get("accepted_by")?,
        accepted_at: row.try_get("accepted_at")?,
    })
}

/// Returns whether this job or this workstation has live checkouts with a time limit. Id 0: not asked for.
pub async fn has_time_limits(client: &impl Queries, job: JobId, workstation: WorkstationId) -> Result<bool, Error> {
    client.run(include_str!("../queries/has_time_limits.sql"), &[&job, &workstation]).await?[0].try_get(0)
}

pub async fn accept(client: &impl Queries) -> Result<(), Error> {
    client.run(include_str!("../queries/accept_clock.sql"), &[]).await?;
    Ok(())
}

/// Offset of a zone from UTC at an instant, in seconds, by PostgreSQL's rules; none for an unknown zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneOffset {
    pub zone: String,
    pub at: i64,
    pub seconds: Option<i64>,
}

/// Time zones of schedules, of digests and of the database itself.
pub async fn zones_in_use(client: &impl Queries) -> Result<Vec<String>, Error> {
    let rows = client.run(include_str!("../queries/zones_in_use.sql"), &[]).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

/// Offsets of zones at instants (seconds since 1970).
pub async fn zone_offsets(client: &impl Queries, at: &[(String, i64)]) -> Result<Vec<ZoneOffset>, Error> {
    let (zones, instants): (Vec<&str>, Vec<i64>) = at.iter().map(|(zone, at)| (zone.as_str(), *at)).unzip();
    let rows = client.run(include_str!("../queries/time_zone_offsets.sql"), &[&zones, &instants]).await?;
    rows.iter()
        .map(|row| {
            Ok(ZoneOffset { zone: row.try_get("name")?, at: row.try_get("at")?, seconds: row.try_get("seconds")? })
        })
        .collect()
}

/// A collation whose version has changed since indexes were built with it.
#[derive(Clone, Debug)]
pub struct ChangedCollation {
    pub name: String,
    pub recorded: Option<String>,
    pub actual: Option<String>,
    /// The statement that records the new version.
    pub refresh: String,
}

pub async fn changed_collations(client: &impl Queries) -> Result<Vec<ChangedCollation>, Error> {
    let rows = client.run(include_str!("../queries/changed_collations.sql"), &[]).await?;
    rows.iter()
        .map(|row| {
            Ok(ChangedCollation {
                name: row.try_get("name")?,
                recorded: row.try_get("recorded")?,
                actual: row.try_get("actual")?,
                refresh: row.try_get("refresh")?,
            })
        })
        .collect()
}
