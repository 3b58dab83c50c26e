//! Schedules that sleep for longer than their recurrence says: a clock that was ahead has written their times. Each look reads the
//! schedules that wait the longest, which are the first to be wrong, and then some of the others in turn, however many there are.
//! While the clock is behind there is no look: all due times seem too late then, and earlier ones were triggered before.

use super::plan::{Definition, timestamp};
use anyhow::Context;
use jiff::Timestamp;
use pcfarm_proto::ids::ScheduleId;
use pcfarm_sql::checkout::Queries;
use pcfarm_sql::pool::Kept;
use pcfarm_sql::schedules::{self, Sooner, Waiting};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;
use tracing::warn;

const LOOK: Duration = Duration::from_secs(5);
const LOOKED_AT_ONCE: i64 = 500;

#[derive(Default)]
pub struct Far {
    looked: Option<Instant>,
    /// The place among the others to go on from.
    place: Option<(SystemTime, ScheduleId)>,
}

/// Place behind a full page; none: it was the last one.
fn behind(page: &[Waiting]) -> Option<(SystemTime, ScheduleId)> {
    page.last().filter(|_| page.len() as i64 == LOOKED_AT_ONCE).map(|last| (last.wake_at, last.schedule_id))
}

impl Far {
    /// Looks at the next ones, unless that was done just now.
    pub async fn look(&mut self, line: &mut Kept) -> anyhow::Result<()> {
        if self.looked.is_some_and(|looked| looked.elapsed() < LOOK) {
            return Ok(());
        }
        self.looked = Some(Instant::now());
        let client = line.client().await.context("getting a connection")?;
        let (now, mut waiting) = schedules::waiting_longest(&**client, None, LOOKED_AT_ONCE).await?;
        // From behind the first page again, once all have been looked at.
        let place = self.place.take().or_else(|| behind(&waiting));
        if place.is_some() {
            let (_, others) = schedules::waiting_longest(&**client, place, LOOKED_AT_ONCE).await?;
            self.place = behind(&others);
            let first: HashSet<ScheduleId> = waiting.iter().map(|of| of.schedule_id).collect();
            waiting.extend(others.into_iter().filter(|of| !first.contains(&of.schedule_id)));
        }
        let ids: Vec<ScheduleId> = waiting.iter().map(|of| of.schedule_id).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let read = schedules::definitions_of(&**client, &ids).await.context("reading definitions")?;
        let mut definitions: HashMap<ScheduleId, Definition> =
            read.iter().filter_map(|schedule| Some((schedule.schedule_id, Definition::of(schedule).ok()?))).collect();
        anchor(&**client, &mut definitions, now).await.context("correcting what intervals count from")?;
        let suspects = sooner(&waiting, &definitions, &HashMap::new(), now)?;
        if suspects.is_empty() {
            return Ok(());
        }
        let ids: Vec<ScheduleId> = suspects.iter().map(|one| one.of.schedule_id).collect();
        let early = schedules::triggered_early(&**client, &ids).await.context("reading what was triggered early")?;
        let sooner = sooner(&waiting, &definitions, &early.into_iter().collect(), now)?;
        let changed = schedules::wake_sooner(&**client, &sooner).await.context("writing their times")?;
        if changed > 0 {
            warn!(
                changed,
                "schedules slept until a time that a wrong clock had written: they wait for their next due time"
            );
        }
        Ok(())
    }
}

/// Lets the intervals of schedules count from now, if these were made or changed by a clock that was ahead.
async fn anchor(
    client: &impl Queries,
    definitions: &mut HashMap<ScheduleId, Definition>,
    now: SystemTime,
) -> anyhow::Result<()> {
    let now = timestamp(now)?;
    let ahead = definitions.iter().filter(|(_, definition)| definition.series.anchored_at > now);
    let ahead: Vec<ScheduleId> = ahead.map(|(id, _)| *id).collect();
    if ahead.is_empty() {
        return Ok(());
    }
    // Anchors are whole seconds.
    let anchor = Timestamp::from_second(now.as_second())?;
    let anchored = schedules::anchor(client, &ahead, SystemTime::from(anchor)).await?;
    // Others hold the rest, which the next look finds again.
    for id in &ahead {
        match definitions.get_mut(id).filter(|_| anchored.contains(id)) {
            Some(definition) => definition.series.anchored_at = anchor,
            None => drop(definitions.remove(id)),
        }
    }
    warn!(
        anchored = anchored.len(),
        "schedules counted from a time that a wrong clock had written: they count from now"
    );
    Ok(())
}

fn sooner(
    waiting: &[Waiting],
    definitions: &HashMap<ScheduleId, Definition>,
    early: &HashMap<ScheduleId, Vec<SystemTime>>,
    now: SystemTime,
) -> anyhow::Result<Vec<Sooner>> {
    let now = timestamp(now)?;
    let mut found = Vec::new();
    for of in waiting {
        let Some(definition) = definitions.get(&of.schedule_id) else { continue };
        let due = of.due_at.and_then(|due| timestamp(due).ok());
        // Times after the year 9999 cannot be computed with.
        let Ok(wake) = timestamp(of.wake_at) else { continue };
        let early = early.get(&of.schedule_id).cloned().unwrap_or_default();
        let times: Vec<Timestamp> = early.iter().filter_map(|due| timestamp(*due).ok()).collect();
        if let Some((due, wake)) = definition.sooner(due, wake, now, &times) {
            found.push(Sooner { of: *of, due_at: due.map(SystemTime::from), wake_at: wake.into(), early });
        }
    }
    Ok(found)
}
