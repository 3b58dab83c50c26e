//! Problems by page, in problem id order. There is no index by problem id: in a lane of load, ids rise with batch orders,
//! so a page starts at a place in the dispatch index that is found by bisection; what failed, waits or is in progress has
//! an index of its own. First come places, a few numbers each; what is known of the problems there is read for those.

use super::PAGE_LIMIT;
use crate::checkout::Queries;
use crate::json::RawJson;
use deadpool_postgres::ClientWrapper;
use pcfarm_proto::ids::{CheckoutId, JobId, LaneId, ProblemId, WorkstationId};
use std::str::FromStr;
use tokio_postgres::{Error, Row};

/// Payloads and results in one page, as stored. It may be exceeded by one problem.
const PAGE_BYTES: i64 = 1 << 20;
/// The same as text, which can be many times as long.
const PAGE_TEXT_BYTES: usize = 3 << 20;
/// Places looked at together: few enough to be quick, enough that a rare state is not looked for one by one.
const PLACES_AT_ONCE: usize = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemState {
    Waiting,
    InProgress,
    Done,
    Failed,
    Cancelled,
}

impl ProblemState {
    pub fn as_str(self) -> &'static str {
        match self {
            ProblemState::Waiting => "waiting",
            ProblemState::InProgress => "in_progress",
            ProblemState::Done => "done",
            ProblemState::Failed => "failed",
            ProblemState::Cancelled => "cancelled",
        }
    }
}

/// Not the name of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a problem's state is waiting, in_progress, done, failed or cancelled")]
pub struct UnknownState;

impl FromStr for ProblemState {
    type Err = UnknownState;

    fn from_str(text: &str) -> Result<Self, UnknownState> {
        match text {
            "waiting" => Ok(ProblemState::Waiting),
            "in_progress" => Ok(ProblemState::InProgress),
            "done" => Ok(ProblemState::Done),
            "failed" => Ok(ProblemState::Failed),
            "cancelled" => Ok(ProblemState::Cancelled),
            _ => Err(UnknownState),
        }
    }
}

/// Which problems.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub job_id: JobId,
    pub state: Option<ProblemState>,
    pub key: Option<String>,
    pub after: ProblemId,
    pub limit: u32,
}

/// A problem and what became of it.
#[derive(Clone, Debug)]
pub struct ProblemStatus {
    pub problem_id: ProblemId,
    pub key: String,
    pub job_type: String,
    pub state: ProblemState,
    pub attempts: i32,
    pub message: Option<String>,
    pub checkout_id: Option<CheckoutId>,
    pub workstation_id: Option<WorkstationId>,
    pub payload: RawJson,
    pub result: Option<RawJson>,
}

/// The next problems that are wanted; none only when there are no more. A page may be shorter than its limit, where
/// payloads and results are large.
pub async fn page(client: &ClientWrapper, wanted: &Wanted) -> Result<Vec<ProblemStatus>, Error> {
    let limit = wanted.limit.min(PAGE_LIMIT) as usize;
    let mut found: Vec<ProblemStatus> = Vec::new();
    let mut bytes = 0;
    let mut after = wanted.after;
    while found.len() < limit {
        // Where some are filtered out afterwards: look at many to find a few.
        let filtered = wanted.key.is_some() || wanted.state == Some(ProblemState::Done);
        let at_once = if filtered { PLACES_AT_ONCE } else { limit - found.len() };
        let places = places(client, wanted, after, at_once).await?;
        let Some(last) = places.last() else { break };
        let problems = of_places(client, wanted.job_id, &places).await?;
        // Fewer than there are places when they are large: the next round starts behind the last one that was read.
        after = problems.last().map_or(last.problem_id, |problem| problem.problem_id);
        for problem in problems.into_iter().filter(|problem| is_wanted(problem, wanted)) {
            let size = problem.payload.0.len() + problem.result.as_ref().map_or(0, |result| result.0.len());
            if found.len() >= limit || (bytes + size > PAGE_TEXT_BYTES && !found.is_empty()) {
                return Ok(found);
            }
            bytes += size;
            found.push(problem);
        }
        if bytes as i64 >= PAGE_BYTES {
            break;
        }
    }
    Ok(found)
}

/// The places were read a moment before the rest: a problem may have moved on since.
fn is_wanted(problem: &ProblemStatus, wanted: &Wanted) -> bool {
    wanted.state.is_none_or(|state| state == problem.state) && wanted.key.as_ref().is_none_or(|key| *key == problem.key)
}

/// Where a problem's row is.
#[derive(Clone, Copy, Debug)]
struct Place {
    problem_id: ProblemId,
    lane_id: i64,
    /// None between a copy and the assignment of batch orders.
    batch_order: Option<i64>,
}

impl Place {
    fn of_row(row: &Row) -> Result<Place, Error> {
        Ok(Place {
            problem_id: row.try_get("problem_id")?,
            lane_id: row.try_get("lane_id")?,
            batch_order: row.try_get("batch_order")?,
        })
    }
}

/// Places of problems behind `after` that may be wanted, in problem id order; none if there are none.
async fn places(client: &ClientWrapper, wanted: &Wanted, after: ProblemId, limit: usize) -> Result<Vec<Place>, Error> {
    let limit = limit as i64;
    let job_id = wanted.job_id;
    let key = wanted.key.as_deref().unwrap_or("");
    let rows = match wanted.state {
        Some(ProblemState::Failed) => {
            client.run(include_str!("../../queries/problems_failed.sql"), &[&job_id, &after, &limit]).await?
        }
        Some(ProblemState::InProgress) => {
            client.run(include_str!("../../queries/problems_in_progress.sql"), &[&job_id, &after, &limit]).await?
        }
        Some(ProblemState::Waiting) => {
            let lane = lane_of(after);
            let order = locate(client, job_id, after).await?;
            let statement = include_str!("../../queries/problems_waiting.sql");
            client.run(statement, &[&job_id, &after, &lane, &order, &key, &limit]).await?
        }
        Some(ProblemState::Done) => return walk(client, wanted, after, Some(true), limit).await,
        Some(ProblemState::Cancelled) => return walk(client, wanted, after, Some(false), limit).await,
        None => return walk(client, wanted, after, None, limit).await,
    };
    rows.iter().map(Place::of_row).collect()
}

/// Lane after lane, from where `after` is.
async fn walk(
    client: &ClientWrapper,
    wanted: &Wanted,
    after: ProblemId,
    with_result: Option<bool>,
    limit: i64,
) -> Result<Vec<Place>, Error> {
    let job_id = wanted.job_id;
    let key = wanted.key.as_deref().unwrap_or("");
    let first_lane = lane_of(after);
    let mut places: Vec<Place> = Vec::new();
    if first_lane == 0 {
        let statement = include_str!("../../queries/problems_of_own_lane.sql");
        for row in client.run(statement, &[&job_id, &after, &key, &with_result, &limit]).await? {
            places.push(Place::of_row(&row)?);
        }
    }
    let mut from = LaneId(first_lane.max(1));
    loop {
        let lanes = lanes_from(client, job_id, from).await?;
        for &lane in &lanes {
            let missing = limit - places.len() as i64;
            if missing <= 0 {
                return Ok(places);
            }
            let (order, behind) =
                if lane.0 == first_lane { (locate(client, job_id, after).await?, after) } else { (-1, ProblemId(0)) };
            let statement = include_str!("../../queries/problems_of_lane.sql");
            let parameters: &[&(dyn postgres_types::ToSql + Sync)] =
                &[&job_id, &lane, &order, &behind, &key, &with_result, &missing];
            for row in client.run(statement, parameters).await? {
                places.push(Place::of_row(&row)?);
            }
        }
        match lanes.last() {
            Some(last) => from = LaneId(last.0 + 1),
            None => return Ok(places),
        }
    }
}

pub(super) async fn lanes_from(client: &ClientWrapper, job_id: JobId, from: LaneId) -> Result<Vec<LaneId>, Error> {
    let rows = client.run(include_str!("../../queries/lanes_from.sql"), &[&job_id, &from]).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

/// A batch order in the problem's lane that is not behind the problem.
async fn locate(client: &ClientWrapper, job_id: JobId, problem_id: ProblemId) -> Result<i64, Error> {
    let lane = lane_of(problem_id);
    if lane == 0 {
        return Ok(0);
    }
    let rows = client.run(include_str!("../../queries/locate_problem.sql"), &[&job_id, &lane, &problem_id]).await?;
    rows.first().map_or(Ok(0), |row| row.try_get(0))
}

/// Lane times 10^10 plus its number there.
fn lane_of(problem_id: ProblemId) -> i64 {
    problem_id.0 / 10_000_000_000
}

async fn of_places(client: &ClientWrapper, job_id: JobId, places: &[Place]) -> Result<Vec<ProblemStatus>, Error> {
    let ids: Vec<i64> = places.iter().map(|place| place.problem_id.0).collect();
    let lanes: Vec<i64> = places.iter().map(|place| place.lane_id).collect();
    let orders: Vec<Option<i64>> = places.iter().map(|place| place.batch_order).collect();
    let statement = include_str!("../../queries/problem_status.sql");
    let rows = client.run(statement, &[&job_id, &ids, &lanes, &orders, &PAGE_BYTES]).await?;
    rows.iter()
        .map(|row| {
            let state: &str = row.try_get("state")?;
            Ok(ProblemStatus {
                problem_id: row.try_get("problem_id")?,
                key: row.try_get("key")?,
                job_type: row.try_get("job_type")?,
                state: state.parse().expect("the statement makes these five"),
                attempts: row.try_get("attempts")?,
                message: row.try_get("message")?,
                checkout_id: row.try_get("checkout_id")?,
                workstation_id: row.try_get("workstation_id")?,
                payload: row.try_get("payload")?,
                result: row.try_get("result")?,
            })
        })
        .collect()
}
