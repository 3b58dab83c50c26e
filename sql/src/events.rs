//! What happened: written by the database itself, read here.

use crate::checkout::Queries;
use crate::json::RawJson;
use deadpool_postgres::ClientWrapper;
use pcfarm_proto::ids::{JobId, WorkstationId};
use std::time::SystemTime;
use tokio_postgres::Error;

/// Most that one call returns.
pub const PAGE_LIMIT: u32 = 1000;

#[derive(Clone, Debug)]
pub struct Event {
    pub event_id: i64,
    pub happened_at: SystemTime,
    /// The database role.
    pub who: String,
    pub program: String,
    pub what: String,
    pub job_id: Option<JobId>,
    pub workstation_id: Option<WorkstationId>,
    pub subject: Option<String>,
    pub details: RawJson,
}

/// Where a reader is: it has seen what a snapshot showed and, of a list that was cut, what stood before a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    seen: Option<String>,
    cut: Option<Cut>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Cut {
    /// What the list was of.
    snapshot: String,
    transaction_id: i64,
    event_id: i64,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.seen.as_deref().unwrap_or_default())?;
        match &self.cut {
            Some(Cut { snapshot, transaction_id, event_id }) => write!(f, ";{snapshot};{transaction_id};{event_id}"),
            None => Ok(()),
        }
    }
}

/// Text that is no place.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("not a place among events, as an answer ends at")]
pub struct NoPlace;

impl std::str::FromStr for Place {
    type Err = NoPlace;

    fn from_str(text: &str) -> Result<Place, NoPlace> {
        let parts: Vec<&str> = text.split(';').collect();
        if parts.iter().any(|part| part.chars().any(|c| !c.is_ascii_digit() && c != ':' && c != ',')) {
            return Err(NoPlace);
        }
        // As PostgreSQL writes one: two numbers, and a list that may be empty.
        let snapshot = |text: &str| match text.split(':').collect::<Vec<_>>()[..] {
            [from, to, _] if !from.is_empty() && !to.is_empty() => Ok(text.to_owned()),
            _ => Err(NoPlace),
        };
        let seen = |text: &str| if text.is_empty() { Ok(None) } else { snapshot(text).map(Some) };
        match parts[..] {
            [only] => Ok(Place { seen: seen(only)?, cut: None }),
            [first, of, transaction_id, event_id] => {
                let number = |text: &str| text.parse().map_err(|_| NoPlace);
                let (transaction_id, event_id) = (number(transaction_id)?, number(event_id)?);
                Ok(Place { seen: seen(first)?, cut: Some(Cut { snapshot: snapshot(of)?, transaction_id, event_id }) })
            }
            _ => Err(NoPlace),
        }
    }
}

/// Which events.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub job_id: Option<JobId>,
    pub workstation_id: Option<WorkstationId>,
    /// What they are called begins so.
    pub what: String,
    pub since: Option<SystemTime>,
    /// Where an earlier answer ended. With neither: the newest.
    pub after: Option<Place>,
    /// Of this user's jobs alone.
    pub of_owner: Option<String>,
    pub limit: u32,
}

/// Oldest first, and where to go on.
pub async fn events(client: &ClientWrapper, wanted: &Wanted) -> Result<(Vec<Event>, Place), Error> {
    let Wanted { job_id, workstation_id, what, since, after, of_owner, limit } = wanted;
    let limit = i64::from((*limit).clamp(1, PAGE_LIMIT));
    let seen = after.as_ref().and_then(|place| place.seen.clone());
    let cut = after.as_ref().and_then(|place| place.cut.as_ref());
    let of = cut.map(|cut| cut.snapshot.as_str());
    let (transaction_id, event_id) = (cut.map(|cut| cut.transaction_id), cut.map(|cut| cut.event_id));
    let text = include_str!("../queries/events.sql");
    let rows = client
        .run(text, &[job_id, workstation_id, what, since, &seen, &of, &transaction_id, &limit, &event_id, of_owner])
        .await?;
    let snapshot: String = match of {
        Some(of) => of.to_owned(),
        None => rows[0].try_get("snapshot")?,
    };
    let mut events = Vec::new();
    let mut last = None;
    for row in &rows {
        let Some(event_id) = row.try_get("event_id")? else { continue };
        last = Some((row.try_get("transaction_id")?, event_id));
        events.push(Event {
            event_id,
            happened_at: row.try_get("happened_at")?,
            who: row.try_get("who")?,
            program: row.try_get::<_, Option<String>>("program")?.unwrap_or_default(),
            what: row.try_get("what")?,
            job_id: row.try_get("job_id")?,
            workstation_id: row.try_get("workstation_id")?,
            subject: row.try_get("subject")?,
            details: row.try_get("details")?,
        });
    }
    let in_order = seen.is_some() || since.is_some() || cut.is_some();
    let place = match last {
        Some((transaction_id, event_id)) if in_order && events.len() as i64 == limit => {
            Place { seen, cut: Some(Cut { snapshot, transaction_id, event_id }) }
        }
        _ => Place { seen: Some(snapshot), cut: None },
    };
    Ok((events, place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_read_what_they_print() {
        for text in ["7:9:", "7:12:8,9", "7:9:;10:12:11;11;44", ";10:12:11;11;44", ""] {
            let place: Place = text.parse().expect(text);
            assert_eq!(place.to_string(), text);
        }
        for text in ["x", "7", "7:9", "7:9:;1:2:;3", "7:9:;1:2:;3;", "1:2:3:4", ":::", "7:9:' or true"] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }
}
