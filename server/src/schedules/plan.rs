//! What a schedule is to do at a given time: which of its due times are triggered, and which comes next. Pure: a table of
//! cases and random ones test it.

use super::recurrence::{Recurrence, Series, Wrong};
use jiff::{SignedDuration, Timestamp};
use pcfarm_sql::schedules::{CatchUp, Schedule};
use std::collections::VecDeque;
use std::time::SystemTime;

/// With [`CatchUp::Skip`], what is later than this was missed.
const GRACE: SignedDuration = SignedDuration::from_secs(60);

/// Triggers of one schedule in one tick: one that has a thousand to catch up with leaves room for others.
const PORTION: usize = 100;

/// Pairs of due times that are looked at for whether jitter leaves them in order.
const JITTER_LOOKS: usize = 50;

/// A schedule as the ticker needs it.
#[derive(Clone, Debug)]
pub struct Definition {
    pub series: Series,
    pub catch_up: CatchUp,
    pub catch_up_limit: usize,
    pub jitter_ms: u64,
    /// So that not all of them wait for equally long.
    pub seed: i64,
}

/// Due times of a schedule that have been triggered.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// The last one.
    pub last: Option<Timestamp>,
    /// Those in the future that a clock that was ahead triggered.
    pub early: Vec<Timestamp>,
}

impl Done {
    /// No due time up to this is triggered again. A last due time in the future is none: the clock was ahead, or is behind.
    fn floor(&self, now: Timestamp) -> Option<Timestamp> {
        self.last.filter(|last| *last <= now && !self.early.contains(last))
    }
}

/// What is to become of a schedule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Due times that are triggered now, the earliest first.
    pub triggers: Vec<Timestamp>,
    /// The next one, if any comes.
    pub due: Option<Timestamp>,
    /// When to look at it again.
    pub wake: Option<Timestamp>,
}

/// Why a schedule cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Impossible {
    #[error(transparent)]
    Wrong(#[from] Wrong),
    #[error("a time before the year 1 or after 9999")]
    Time,
    #[error("{0:?} never comes: there is no such date")]
    Never(String),
    #[error("{0:?} is in the past: it would never come")]
    Past(String),
    #[error("{recurrence:?} would first come at {first}, which is after its end")]
    EndsBefore { recurrence: String, first: Timestamp },
    #[error("a jitter of {jitter_ms} ms is not shorter than what lies between two due times ({between_ms} ms)")]
    Jitter { jitter_ms: u64, between_ms: u64 },
}

pub fn timestamp(time: SystemTime) -> Result<Timestamp, Impossible> {
    Timestamp::try_from(time).map_err(|_| Impossible::Time)
}

impl Definition {
    pub fn of(schedule: &Schedule) -> Result<Definition, Impossible> {
        let time = |time: Option<SystemTime>| time.map(timestamp).transpose();
        Ok(Definition {
            series: Series {
                recurrence: Recurrence::parse(&schedule.recurrence, &schedule.time_zone)?,
                starts_at: time(schedule.starts_at)?,
                anchored_at: timestamp(schedule.anchored_at)?,
                ends_at: time(schedule.ends_at)?,
            },
            catch_up: schedule.catch_up,
            catch_up_limit: usize::try_from(schedule.catch_up_limit).unwrap_or(1),
            jitter_ms: u64::try_from(schedule.jitter_ms).unwrap_or(0),
            seed: schedule.schedule_id.0,
        })
    }

    /// Whether it comes at all from now on, and its jitter leaves its due times in order. For definitions that somebody
    /// gives: what was possible once may be over.
    pub fn check(&self, recurrence: &str, now: Timestamp) -> Result<(), Impossible> {
        let Some(first) = self.series.after(now) else {
            let endless = Series { ends_at: None, ..self.series.clone() };
            return Err(match endless.after(now) {
                Some(first) => Impossible::EndsBefore { recurrence: recurrence.to_owned(), first },
                None if self.series.recurrence.is_once() => Impossible::Past(recurrence.to_owned()),
                None => Impossible::Never(recurrence.to_owned()),
            });
        };
        let mut before = first;
        for _ in 0..JITTER_LOOKS {
            let Some(next) = self.series.after(before) else { break };
            let between_ms = u64::try_from(next.duration_since(before).as_millis()).unwrap_or(0);
            if self.jitter_ms >= between_ms {
                return Err(Impossible::Jitter { jitter_ms: self.jitter_ms, between_ms });
            }
            before = next;
        }
        Ok(())
    }

    /// When a due time is triggered.
    pub fn wake(&self, due: Timestamp) -> Timestamp {
        if self.jitter_ms == 0 {
            return due;
        }
        // Of the schedule and the due time alone: every server says the same, however often it is asked.
        let mut mixed = (self.seed as u64) ^ (due.as_millisecond() as u64).rotate_left(32);
        for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb_u64] {
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(factor);
        }
        let later = SignedDuration::from_millis(((mixed ^ (mixed >> 31)) % (self.jitter_ms + 1)) as i64);
        due.checked_add(later).unwrap_or(due)
    }

    /// What to do at `now`; `due`: the due time that is known to come next, if one is. No due time is triggered twice: a clock that is
    /// behind for a while may have written one that was triggered before.
    pub fn plan(&self, due: Option<Timestamp>, done: &Done, now: Timestamp) -> Plan {
        let floor = done.floor(now);
        let due = due.or_else(|| self.series.first());
        let due = match (due, floor) {
            (Some(due), Some(floor)) if due <= floor => self.series.after(floor),
            (due, _) => due,
        };
        let Plan { mut triggers, due: mut next, .. } = due.map_or_else(Plan::default, |due| self.plan_from(due, now));
        triggers.retain(|due| !done.early.contains(due));
        while let Some(early) = next.filter(|next| done.early.contains(next)) {
            next = self.series.after(early);
        }
        self.next(triggers, next)
    }

    fn plan_from(&self, due: Timestamp, now: Timestamp) -> Plan {
        if self.wake(due) > now {
            return self.next(Vec::new(), Some(due));
        }
        match self.catch_up {
            CatchUp::Once => {
                let latest = self.latest(due, now);
                self.next(vec![latest], self.series.after(latest))
            }
            CatchUp::Skip => {
                let latest = self.latest(due, now);
                let missed = now.duration_since(self.wake(latest)) > GRACE;
                self.next(if missed { Vec::new() } else { vec![latest] }, self.series.after(latest))
            }
            CatchUp::All => {
                let mut next = Some(self.within_limit(due, now));
                let mut triggers = Vec::new();
                while let Some(due) = next.filter(|due| triggers.len() < PORTION && self.wake(*due) <= now) {
                    triggers.push(due);
                    next = self.series.after(due);
                }
                self.next(triggers, next)
            }
        }
    }

    /// Returns an earlier wait for a schedule that waits longer than its recurrence says, because a clock that was ahead wrote its
    /// times. `early` are due times in the future that this clock triggered; they are not triggered again. The clock as it is now must not
    /// be behind.
    pub fn sooner(
        &self,
        due: Option<Timestamp>,
        wake: Timestamp,
        now: Timestamp,
        early: &[Timestamp],
    ) -> Option<(Option<Timestamp>, Timestamp)> {
        let Some(due) = due else { return (wake > now).then_some((None, now)) };
        let mut next = if due > now { self.series.after(now) } else { None };
        while let Some(passed) = next.filter(|next| *next < due && early.contains(next)) {
            next = self.series.after(passed);
        }
        let due = next.map_or(due, |next| next.min(due));
        let expected = self.wake(due).max(now);
        (wake > expected).then_some((Some(due), expected))
    }

    fn next(&self, triggers: Vec<Timestamp>, due: Option<Timestamp>) -> Plan {
        Plan { triggers, due, wake: due.map(|due| self.wake(due)) }
    }

    /// The last due time whose jitter is over: one of the last two that have come.
    fn latest(&self, due: Timestamp, now: Timestamp) -> Timestamp {
        let latest = self.series.latest(due, now);
        if self.wake(latest) <= now {
            return latest;
        }
        // Its predecessor, as jitter keeps due times in order.
        let before = latest.saturating_sub(SignedDuration::from_nanos(1)).unwrap_or(latest);
        self.series.latest(due, before)
    }

    /// The first due time that is caught up with: of more than the limit, the first of the last ones.
    fn within_limit(&self, due: Timestamp, now: Timestamp) -> Timestamp {
        let limit = self.catch_up_limit;
        // None comes more often than each second.
        let mut window = SignedDuration::from_secs(limit as i64);
        while window < now.duration_since(due) {
            let from = now.checked_sub(window).unwrap_or(due);
            if let Some(first) = self.series.after(from).and_then(|first| self.limited(first, now)) {
                return first;
            }
            window = window.saturating_mul(2);
        }
        self.limited(due, now).unwrap_or(due)
    }

    /// Of the due times from one to `now`, the last but for the limit; none if there are fewer.
    fn limited(&self, first: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let mut last = VecDeque::new();
        let mut next = Some(first);
        while let Some(due) = next.filter(|due| *due <= now) {
            last.push_back(due);
            if last.len() > self.catch_up_limit {
                last.pop_front();
            }
            next = self.series.after(due);
        }
        if last.len() == self.catch_up_limit { last.front().copied() } else { None }
    }
}

#[cfg(test)]
mod tests;
