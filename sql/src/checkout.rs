//! A checkout's life: handed out, accepted, closed. Each transition is one call, of one statement; a small acceptance
//! that turns out not to be plain is a second one.

use crate::json::RawJson;
use deadpool_postgres::ClientWrapper;
use pcfarm_faults::{Bug, planted};
use pcfarm_proto::ids::{BatchOrder, CheckoutId, JobId, LaneId, ProblemId, WorkstationId};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;

/// A checkout to be made: consecutive convoys of a lane for one workstation.
#[derive(Clone, Debug)]
pub struct HandOut {
    pub job_id: JobId,
    pub lane_id: LaneId,
    pub job_type: Arc<str>,
    pub from: BatchOrder,
    /// Exclusive.
    pub to: BatchOrder,
    pub problems: i32,
    /// What they count against limits by the hour.
    pub weight: i64,
    pub workstation_id: WorkstationId,
    pub token: i64,
    /// Seconds that the workstation has.
    pub seconds: Option<f64>,
}

/// Hands out checkouts; those of one lane are consecutive and in order, and are all made or none. Returns the id of each, or
/// none where the lane has moved on or its job is no longer open: then look at the lane again.
pub async fn check_out(client: &ClientWrapper, hand_outs: &[HandOut]) -> Result<Vec<Option<CheckoutId>>, Error> {
    let text = pcfarm_faults::statement(include_str!("../queries/check_out.sql"));
    check_out_by(client, &text, hand_outs, &[]).await
}

/// The same of checkouts that are under a limit: of each limit the first that fit are made. Where somebody has locked a limit:
/// who `waits` is told so after a second (`55P03`), and nothing is made; who does not makes the others.
pub async fn check_out_within_limits(
    client: &ClientWrapper,
    hand_outs: &[HandOut],
    waits: bool,
) -> Result<Vec<Option<CheckoutId>>, Error> {
    let text = include_str!("../queries/check_out_within_limits.sql");
    check_out_by(client, text, hand_outs, &[&column(hand_outs, |h| h.weight), &waits]).await
}

async fn check_out_by(
    client: &ClientWrapper,
    text: &str,
    hand_outs: &[HandOut],
    more: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Option<CheckoutId>>, Error> {
    if hand_outs.is_empty() {
        return Ok(Vec::new());
    }
    let statement = client.prepare_cached(text).await?;
    let (jobs, lanes) = (column(hand_outs, |h| h.job_id.0), column(hand_outs, |h| h.lane_id.0));
    let (from, to) = (column(hand_outs, |h| h.from.0), column(hand_outs, |h| h.to.0));
    let (job_types, problems) = (column(hand_outs, |h| &*h.job_type), column(hand_outs, |h| h.problems));
    let (workstations, tokens) = (column(hand_outs, |h| h.workstation_id.0), column(hand_outs, |h| h.token));
    let seconds = column(hand_outs, |h| h.seconds);
    let mut parameters: Vec<&(dyn ToSql + Sync)> =
        vec![&jobs, &lanes, &job_types, &from, &to, &problems, &workstations, &tokens, &seconds];
    parameters.extend(more);
    match client.query(&statement, &parameters).await {
        Ok(rows) => {
            // A lane of batch orders of one's own has the same number in every job.
            let mut made: HashMap<(JobId, LaneId, BatchOrder), CheckoutId> = HashMap::new();
            for row in &rows {
                made.insert((row.try_get(1)?, row.try_get(2)?, row.try_get(3)?), row.try_get(0)?);
            }
            Ok(hand_outs.iter().map(|h| made.get(&(h.job_id, h.lane_id, h.from)).copied()).collect())
        }
        // Of two that start at the same place one commits, and with the other nothing does.
        Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => Ok(vec![None; hand_outs.len()]),
        Err(error) => Err(error),
    }
}

/// Where a problem's row is and what people call it: for write-backs and failures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    pub lane: LaneId,
    pub order: BatchOrder,
    /// Where the job type has a write-back.
    pub key: Option<String>,
}

/// A solution, of a problem that is known to be of its checkout.
#[derive(Clone, Debug)]
pub struct Solved {
    /// Which of the acceptance's checkouts.
    pub checkout: usize,
    pub problem_id: ProblemId,
    /// Attempts used before this one.
    pub attempts: i32,
    pub solution: RawJson,
    /// Where the job type has a write-back, and where the problem brings more than its solution.
    pub home: Option<Box<Home>>,
    /// What it brings beside, as an object that `pcfarm.accept` takes; known to be JSON.
    pub more: Option<Box<RawJson>>,
}

/// A failed attempt.
#[derive(Clone, Debug)]
pub struct Failed {
    pub checkout: usize,
    pub problem_id: ProblemId,
    /// Attempts used before this one.
    pub attempts: i32,
    pub home_lane: LaneId,
    pub home_order: BatchOrder,
    pub message: String,
}

/// One checkout of an acceptance.
#[derive(Clone, Copy, Debug)]
pub struct Accepting {
    pub checkout_id: CheckoutId,
    pub token: i64,
    /// Close it if all its problems have results.
    pub closing: bool,
    /// What its agent has spent on these results, summed over cores.
    pub busy_seconds: f64,
}

/// Results of checkouts of one job type, to be stored in one transaction.
#[derive(Clone, Debug, Default)]
pub struct Acceptance {
    /// In ascending id.
    pub checkouts: Vec<Accepting>,
    /// In ascending id, so that transactions that store the same lock in the same order.
    pub solved: Vec<Solved>,
    pub failed: Vec<Failed>,
}

/// What became of one checkout's results.
#[derive(Clone, Debug)]
pub struct Verdict {
    pub checkout_id: CheckoutId,
    pub kind: VerdictKind,
    pub reason: String,
    pub accepted: i32,
    pub refused: i32,
    /// The checkout has been closed by this.
    pub closed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerdictKind {
    Accepted,
    AlreadyAccepted,
    Revoked,
    Unknown,
}

/// Stores results under live checkouts, runs the job type's write-back on them, counts them and closes the
/// checkouts that are complete: one transaction.
pub async fn accept(client: &ClientWrapper, job_type: &str, acceptance: &Acceptance) -> Result<Vec<Verdict>, Error> {
    let outcome = match accept_plainly(client, job_type, acceptance).await {
        Ok(None) => try_accept(client, job_type, acceptance, false).await,
        Ok(Some(verdict)) => Ok(vec![verdict]),
        Err(error) => Err(error),
    };
    match outcome {
        // Something of it is stored already: a repeated delivery.
        Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
            if planted(Bug::TakesViolationForDone) {
                return Ok(acceptance.checkouts.iter().map(taken_for_done).collect());
            }
            try_accept(client, job_type, acceptance, true).await
        }
        outcome => outcome,
    }
}

/// Solutions of one acceptance that are stored by a statement instead of a function. With more, what a call costs by itself
/// matters less than what each costs.
const FEW: usize = 100;

/// The plain case, which most small acceptances are. None: nothing was stored, and [`try_accept`] is to be asked.
async fn accept_plainly(
    client: &ClientWrapper,
    job_type: &str,
    acceptance: &Acceptance,
) -> Result<Option<Verdict>, Error> {
    let Acceptance { checkouts, solved, failed } = acceptance;
    let is_plain = |s: &Solved| s.attempts == 0 && s.home.is_none() && s.more.is_none();
    let ([checkout], []) = (&checkouts[..], &failed[..]) else { return Ok(None) };
    if !(1..=FEW).contains(&solved.len()) || !solved.iter().all(is_plain) {
        return Ok(None);
    }
    let accepted = i32::try_from(solved.len()).expect("few");
    let text = pcfarm_faults::statement(include_str!("../queries/accept_plainly.sql"));
    let statement = client.prepare_cached(&text).await?;
    #[rustfmt::skip]
    let parameters: [&(dyn ToSql + Sync); 8] = [
        &checkout.checkout_id, &checkout.token, &job_type, &checkout.closing, &accepted, &column(solved, |s| s.problem_id.0),
        &column(solved, |s| &s.solution), &checkout.busy_seconds,
    ];
    let Some(row) = client.query_opt(&statement, &parameters).await? else { return Ok(None) };
    Ok(Some(Verdict {
        checkout_id: checkout.checkout_id,
        kind: VerdictKind::Accepted,
        reason: String::new(),
        accepted,
        refused: 0,
        closed: row.try_get("closed")?,
    }))
}

fn taken_for_done(checkout: &Accepting) -> Verdict {
    let (checkout_id, kind) = (checkout.checkout_id, VerdictKind::AlreadyAccepted);
    Verdict { checkout_id, kind, reason: String::new(), accepted: 0, refused: 0, closed: false }
}

async fn try_accept(
    client: &ClientWrapper,
    job_type: &str,
    acceptance: &Acceptance,
    careful: bool,
) -> Result<Vec<Verdict>, Error> {
    let statement = client.prepare_cached(include_str!("../queries/accept.sql")).await?;
    let Acceptance { checkouts, solved, failed } = acceptance;
    let position = |checkout: usize| i32::try_from(checkout + 1).expect("an acceptance has few checkouts");
    // There may be twenty thousand, which are out of the processor's caches when they are walked again.
    let mut counts = vec![0i32; checkouts.len()];
    let mut positions = Vec::with_capacity(solved.len());
    let mut problem_ids = Vec::with_capacity(solved.len());
    let mut solutions = Vec::with_capacity(solved.len());
    let (mut any_attempt, mut any_home, mut any_more) = (false, false, false);
    for one in solved {
        counts[one.checkout] += 1;
        positions.push(position(one.checkout));
        problem_ids.push(one.problem_id.0);
        solutions.push(&one.solution);
        any_attempt |= one.attempts != 0;
        any_home |= one.home.is_some();
        any_more |= one.more.is_some();
    }
    let attempts = if any_attempt { column(solved, |s| s.attempts) } else { Vec::new() };
    // All of them, or none: where one is not known it is not asked for.
    let homes: Vec<Option<&Home>> = if any_home { column(solved, |s| s.home.as_deref()) } else { Vec::new() };
    let more = any_more.then(|| RawJson(more_of(solved).into()));
    let rows = client
        .query(
            &statement,
            &[
                &job_type,
                &column(checkouts, |c| c.checkout_id.0),
                &column(checkouts, |c| c.token),
                &column(checkouts, |c| c.closing),
                &counts,
                &positions,
                &problem_ids,
                &attempts,
                &solutions,
                &column(&homes, |h| h.and_then(|h| h.key.as_deref())),
                &column(&homes, |h| h.map(|h| h.lane.0)),
                &column(&homes, |h| h.map(|h| h.order.0)),
                &column(failed, |f| position(f.checkout)),
                &column(failed, |f| f.problem_id.0),
                &column(failed, |f| f.attempts),
                &column(failed, |f| f.home_lane.0),
                &column(failed, |f| f.home_order.0),
                &column(failed, |f| f.message.as_str()),
                &careful,
                &more,
                &column(checkouts, |c| c.busy_seconds),
            ],
        )
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Verdict {
                checkout_id: row.try_get("checkout_id")?,
                kind: match row.try_get("verdict")? {
                    "accepted" => VerdictKind::Accepted,
                    "already_accepted" => VerdictKind::AlreadyAccepted,
                    "revoked" => VerdictKind::Revoked,
                    _ => VerdictKind::Unknown,
                },
                reason: row.try_get("reason")?,
                accepted: row.try_get("accepted")?,
                refused: row.try_get("refused")?,
                closed: row.try_get("closed")?,
            })
        })
        .collect()
}

/// What solved problems bring beside their solutions, as `pcfarm.accept` takes it.
fn more_of(solved: &[Solved]) -> Vec<u8> {
    let brings: Vec<&[u8]> = solved.iter().filter_map(|solved| Some(&*solved.more.as_ref()?.0)).collect();
    [&b"["[..], &brings.join(&b","[..]), b"]"].concat()
}

/// One array parameter.
fn column<'a, T, C>(rows: &'a [T], value: impl Fn(&'a T) -> C) -> Vec<C> {
    rows.iter().map(value).collect()
}

/// Why live checkouts are closed, which decides what it costs their problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// The agent is done with them: failed attempts count, the rest comes back at no cost.
    Finished,
    /// They never arrived: all comes back at no cost.
    Unreceived,
    /// The workstation died or the time ran out.
    Lost,
}

impl Closing {
    fn as_sql(self) -> &'static str {
        match self {
            Closing::Finished => "finished",
            Closing::Unreceived => "unreceived",
            Closing::Lost => "lost",
        }
    }
}

/// A checkout that was closed, and how many of its problems went where.
#[derive(Clone, Debug)]
pub struct Closed {
    pub checkout_id: CheckoutId,
    pub workstation_id: WorkstationId,
    pub job_id: JobId,
    pub requeued: i32,
    /// Problems whose attempts are used up.
    pub failed: i32,
}

/// Closes those of the checkouts that are live and requeues what they had not finished.
pub async fn close(
    client: &impl Queries,
    checkouts: &[CheckoutId],
    how: Closing,
    why: &str,
) -> Result<Vec<Closed>, Error> {
    let ids: Vec<i64> = checkouts.iter().map(|c| c.0).collect();
    let rows = client.run(include_str!("../queries/close_checkouts.sql"), &[&ids, &how.as_sql(), &why]).await?;
    rows.iter()
        .map(|row| {
            Ok(Closed {
                checkout_id: row.try_get("checkout_id")?,
                workstation_id: row.try_get("workstation_id")?,
                job_id: row.try_get("job_id")?,
                requeued: row.try_get("requeued")?,
                failed: row.try_get("failed")?,
            })
        })
        .collect()
}

/// Puts unbegun problems of a live checkout back into the queue, at no cost, and leaves the others to its workstation. Returns
/// how many came back. Problems that the checkout does not hold are passed over.
pub async fn give_back(
    client: &impl Queries,
    checkout: CheckoutId,
    token: i64,
    problems: &[ProblemId],
    why: &str,
) -> Result<i32, Error> {
    let ids: Vec<i64> = problems.iter().map(|problem| problem.0).collect();
    let rows = client.run(include_str!("../queries/give_back.sql"), &[&checkout, &token, &ids, &why]).await?;
    rows[0].try_get(0)
}

/// A checkout of which an idle workstation could take problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Returnable {
    pub checkout_id: CheckoutId,
    /// Problems of one convoy depend on each other.
    pub whole_convoys: bool,
}

/// Returns those of these live checkouts whose problems one of these idle workstations could take, in ascending id.
pub async fn returnable(
    client: &impl Queries,
    idle: &[WorkstationId],
    checkouts: &[CheckoutId],
) -> Result<Vec<Returnable>, Error> {
    let idle: Vec<i64> = idle.iter().map(|workstation| workstation.0).collect();
    let ids: Vec<i64> = checkouts.iter().map(|checkout| checkout.0).collect();
    let rows = client.run(include_str!("../queries/returnable_checkouts.sql"), &[&idle, &ids]).await?;
    rows.iter()
        .map(|row| {
            Ok(Returnable { checkout_id: row.try_get("checkout_id")?, whole_convoys: row.try_get("whole_convoys")? })
        })
        .collect()
}

/// A connection or a transaction on one: the recycler closes checkouts inside its own.
#[expect(async_fn_in_trait, reason = "used with the two types below and nothing else")]
pub trait Queries {
    async fn run(
        &self,
        text: &str,
        parameters: &[&(dyn postgres_types::ToSql + Sync)],
    ) -> Result<Vec<tokio_postgres::Row>, Error>;
}

impl Queries for ClientWrapper {
    async fn run(
        &self,
        text: &str,
        parameters: &[&(dyn postgres_types::ToSql + Sync)],
    ) -> Result<Vec<tokio_postgres::Row>, Error> {
        let statement = self.prepare_cached(&pcfarm_faults::statement(text)).await?;
        self.query(&statement, parameters).await
    }
}

impl Queries for deadpool_postgres::Transaction<'_> {
    async fn run(
        &self,
        text: &str,
        parameters: &[&(dyn postgres_types::ToSql + Sync)],
    ) -> Result<Vec<tokio_postgres::Row>, Error> {
        let statement = self.prepare_cached(&pcfarm_faults::statement(text)).await?;
        self.query(&statement, parameters).await
    }
}

/// What the database knows of a checkout.
#[derive(Clone, Debug)]
pub struct CheckoutFacts {
    pub checkout_id: CheckoutId,
    pub token: i64,
    pub job_id: JobId,
    pub job_type: String,
    pub problems: i32,
    pub workstation_id: WorkstationId,
    pub checked_out_at: SystemTime,
    /// The job's, if that is traced.
    pub trace_parent: Option<String>,
}

pub async fn facts(client: &ClientWrapper, checkouts: &[CheckoutId]) -> Result<Vec<CheckoutFacts>, Error> {
    let ids: Vec<i64> = checkouts.iter().map(|c| c.0).collect();
    let rows = client.run(include_str!("../queries/checkout_facts.sql"), &[&ids]).await?;
    rows.iter()
        .map(|row| {
            Ok(CheckoutFacts {
                checkout_id: row.try_get("checkout_id")?,
                token: row.try_get("token")?,
                job_id: row.try_get("job_id")?,
                job_type: row.try_get("job_type")?,
                problems: row.try_get("problems")?,
                workstation_id: row.try_get("workstation_id")?,
                checked_out_at: row.try_get("checked_out_at")?,
                trace_parent: row.try_get("trace_parent")?,
            })
        })
        .collect()
}

/// One problem of a checkout.
#[derive(Clone, Debug)]
pub struct HeldProblem {
    pub checkout_id: CheckoutId,
    pub problem_id: ProblemId,
    pub attempts: i32,
    pub home_lane: LaneId,
    pub home_order: BatchOrder,
    pub key: String,
}

/// Problems that checkouts hold. The list only shrinks, by problems that are given back, and the database refuses results of
/// those. So a copy may be kept while the checkouts live.
pub async fn held_problems(client: &ClientWrapper, checkouts: &[CheckoutId]) -> Result<Vec<HeldProblem>, Error> {
    let ids: Vec<i64> = checkouts.iter().map(|c| c.0).collect();
    let rows = client.run(include_str!("../queries/held_problems.sql"), &[&ids]).await?;
    rows.iter()
        .map(|row| {
            Ok(HeldProblem {
                checkout_id: row.try_get("checkout_id")?,
                problem_id: row.try_get("problem_id")?,
                attempts: row.try_get("attempts")?,
                home_lane: row.try_get("home_lane")?,
                home_order: row.try_get("home_order")?,
                key: row.try_get("key")?,
            })
        })
        .collect()
}

/// A problem that an agent has delivered under a checkout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveredProblem {
    pub checkout_id: CheckoutId,
    pub token: i64,
    pub problem_id: ProblemId,
}

/// Problems among these whose results are stored.
pub async fn stored(
    client: &ClientWrapper,
    delivered: &[DeliveredProblem],
) -> Result<Vec<(CheckoutId, ProblemId)>, Error> {
    let checkouts: Vec<i64> = delivered.iter().map(|d| d.checkout_id.0).collect();
    let tokens: Vec<i64> = delivered.iter().map(|d| d.token).collect();
    let problems: Vec<i64> = delivered.iter().map(|d| d.problem_id.0).collect();
    let rows = client.run(include_str!("../queries/stored_results.sql"), &[&checkouts, &tokens, &problems]).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// Which of these have been revoked, and why.
pub async fn revoked(client: &ClientWrapper, checkouts: &[CheckoutId]) -> Result<Vec<(CheckoutId, String)>, Error> {
    let ids: Vec<i64> = checkouts.iter().map(|c| c.0).collect();
    let rows = client.run(include_str!("../queries/revoked_checkouts.sql"), &[&ids]).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}
