//! All results of a job so far, in problem id order, piece by piece: each piece is one statement, so that no snapshot
//! stays open and no memory is held while a slow reader takes them.

use super::problems::lanes_from;
use crate::checkout::Queries;
use crate::json::RawJson;
use deadpool_postgres::ClientWrapper;
use pcfarm_proto::ids::{JobId, LaneId, ProblemId};
use std::collections::VecDeque;
use tokio_postgres::Error;

/// Problems looked at by one statement, and bytes of solutions as stored.
const PIECE_PROBLEMS: i64 = 1_000;
const PIECE_BYTES: i64 = 256 << 10;

/// How one problem ended.
#[derive(Clone, Debug)]
pub struct ProblemOutcome {
    pub problem_id: ProblemId,
    pub key: String,
    /// A failure's message, or the solution, where the job type keeps it.
    pub solution: Result<Option<RawJson>, String>,
}

/// A place in a job's results.
#[derive(Clone, Debug)]
pub struct Results {
    job_id: JobId,
    lanes: VecDeque<LaneId>,
    /// Behind this in the first of the lanes.
    order: i64,
    problem_id: ProblemId,
    /// Results that come later than this one were not there at the beginning.
    last: Option<ProblemId>,
}

impl Results {
    /// Before the first. That there is such a job is the caller's to check.
    pub async fn of_job(client: &ClientWrapper, job_id: JobId) -> Result<Results, Error> {
        let rows = client.run(include_str!("../../queries/last_result.sql"), &[&job_id]).await?;
        let last = rows.first().map(|row| row.try_get(0)).transpose()?;
        Ok(Results { job_id, lanes: VecDeque::from([LaneId(0)]), order: -1, problem_id: ProblemId(0), last })
    }

    /// The next ones; `None` at the end.
    pub async fn next(&mut self, client: &ClientWrapper) -> Result<Option<Vec<ProblemOutcome>>, Error> {
        let Some(last) = self.last else { return Ok(None) };
        while self.problem_id < last {
            let Some(&lane) = self.lanes.front() else { return Ok(None) };
            let outcomes = self.piece(client, lane).await?;
            match outcomes {
                Some(outcomes) if outcomes.is_empty() => {}
                Some(outcomes) => return Ok(Some(outcomes)),
                None => self.leave(client, lane).await?,
            }
        }
        Ok(None)
    }

    /// The results among the coming problems of a lane, which may be none; `None` behind its last problem.
    async fn piece(&mut self, client: &ClientWrapper, lane: LaneId) -> Result<Option<Vec<ProblemOutcome>>, Error> {
        let rows = if lane.0 == 0 {
            let statement = include_str!("../../queries/results_of_own_lane.sql");
            client.run(statement, &[&self.job_id, &self.problem_id, &PIECE_PROBLEMS, &PIECE_BYTES]).await?
        } else {
            let statement = include_str!("../../queries/results_of_lane.sql");
            let place: &[&(dyn postgres_types::ToSql + Sync)] =
                &[&self.job_id, &lane, &self.order, &self.problem_id, &PIECE_PROBLEMS, &PIECE_BYTES];
            client.run(statement, place).await?
        };
        let Some(end) = rows.last() else { return Ok(None) };
        self.order = end.try_get("batch_order")?;
        self.problem_id = end.try_get("problem_id")?;
        let mut outcomes = Vec::new();
        for row in &rows {
            let Some(failed) = row.try_get::<_, Option<bool>>("failed")? else { continue };
            outcomes.push(ProblemOutcome {
                problem_id: row.try_get("problem_id")?,
                key: row.try_get("key")?,
                solution: if failed { Err(row.try_get("message")?) } else { Ok(row.try_get("solution")?) },
            });
        }
        Ok(Some(outcomes))
    }

    async fn leave(&mut self, client: &ClientWrapper, lane: LaneId) -> Result<(), Error> {
        self.lanes.pop_front();
        self.order = -1;
        if self.lanes.is_empty() {
            self.lanes = lanes_from(client, self.job_id, LaneId(lane.0 + 1)).await?.into();
        }
        Ok(())
    }
}
