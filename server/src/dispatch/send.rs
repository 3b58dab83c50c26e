//! Sending a committed checkout to its agent: related reads, then parts that fit a message.

use super::commit::Committed;
use crate::deliver::Delivered;
use crate::farm::{Farm, Held};
use crate::members::Members;
use crate::outgoing::{Load, Outgoing};
use crate::reads::Related;
use crate::session::Session;
use crate::traces::path::CheckoutTrace;
use pcfarm_faults::{CrashPoint, crash_point};
use pcfarm_proto::files::announced;
use pcfarm_proto::ids::{CheckoutId, JobId};
use pcfarm_proto::v1;
use pcfarm_proto::{MESSAGE_BYTES_LIMIT, PART_BYTES_TARGET};
use pcfarm_sql::job_types::JobType;
use pcfarm_sql::jobs;
use pcfarm_sql::json::RawJson;
use pcfarm_sql::lanes::ComingProblem;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tracing::debug;

/// A committed checkout on its way.
pub struct Shipment {
    checkout_id: CheckoutId,
    token: i64,
    session: Arc<Session>,
    job_type: Arc<JobType>,
    header: v1::Checkout,
    problems: Vec<ComingProblem>,
    load: Arc<Load>,
    suspect: bool,
    has_info: bool,
    has_files: bool,
    trace: Option<Box<CheckoutTrace>>,
}

impl Shipment {
    pub(super) fn new(committed: Committed<'_>, job_type: Arc<JobType>) -> Shipment {
        let Committed { checkout_id, token, session, lane, taken, load, trace } = committed;
        let first = &taken.problems[0];
        let header = v1::Checkout {
            checkout_id: checkout_id.0,
            token: token.cast_unsigned(),
            job_id: lane.job_id.0,
            job_name: lane.job_name.clone(),
            job_type: lane.job_type.to_string(),
            controller: job_type.controller.clone(),
            parameters: lane.parameters.clone().unwrap_or_default().0,
            time_limit: job_type.time_limit.and_then(|limit| prost_types::Duration::try_from(limit).ok()),
            one_by_one: first.alone && first.grouped,
            traced: trace.is_some(),
            problem_files: lane.problem_files,
            ..v1::Checkout::default()
        };
        Shipment {
            has_info: lane.has_info,
            has_files: lane.has_files,
            checkout_id,
            token,
            session,
            job_type,
            header,
            problems: taken.problems,
            load,
            suspect: taken.suspect,
            trace,
        }
    }

    /// Makes the checkout known to those who will ask about it, before anything can come back.
    pub fn announce(&self, farm: &Farm) {
        let controller = announced(&self.job_type.controller);
        let of = (self.job_type.name.as_str(), controller);
        self.session.announce(self.checkout_id, of, self.problems.len(), self.suspect);
        farm.remember(
            self.checkout_id,
            Held {
                token: self.token,
                job_id: JobId(self.header.job_id),
                job_type: self.job_type.name.clone(),
                workstation_id: self.session.workstation_id,
                members: Members::of(&self.problems, self.job_type.writes_back),
                trace: self.trace.clone(),
            },
        );
    }
}

/// Reads what is related and sends the checkout. If the connection ends meanwhile, what was not received comes back:
/// the agent says what it holds when it connects again.
pub async fn send(farm: Arc<Farm>, mut shipment: Shipment) {
    let mut problems: Vec<v1::Problem> = std::mem::take(&mut shipment.problems).into_iter().map(message).collect();
    let session = shipment.session.clone();
    let mut span = farm.traces.under(shipment.trace.as_ref().map(|trace| trace.checkout), "send");
    let began = Instant::now();
    let mut related = tokio::select! {
        related = farm.reads.related(&shipment.job_type, &problems, &shipment.load) => related,
        () = session.ended.cancelled() => return span.failed(NOT_SENT),
    };
    span.set("pcfarm.related_reads.seconds", began.elapsed().as_secs_f64());
    leave_out(&mut problems, &related.left_out);
    for problem in &problems {
        if problem.payload.len() > TEXT_LIMIT {
            let message = format!("the payload has {} bytes as text, too many for a message", problem.payload.len());
            related.failures.insert(problem.problem_id, message);
        }
    }
    if shipment.has_info {
        match tokio::time::timeout(INFO_DEADLINE, info(&farm, &shipment)).await.unwrap_or_else(|late| Err(late.into()))
        {
            Ok(info) => shipment.header.info = info.unwrap_or_default().0,
            Err(error) => {
                let message = format!("its job's info was not read: {error:#}");
                related.failures.extend(problems.iter().map(|problem| (problem.problem_id, message.clone())));
            }
        }
    }
    if shipment.has_files {
        match tokio::time::timeout(INFO_DEADLINE, files(&farm, &shipment)).await.unwrap_or_else(|late| Err(late.into()))
        {
            Ok(files) => shipment.header.files = files,
            Err(error) => {
                let message = format!("its job's files were not read: {error:#}");
                related.failures.extend(problems.iter().map(|problem| (problem.problem_id, message.clone())));
            }
        }
    }
    if !related.failures.is_empty() || problems.is_empty() {
        problems.retain(|p| !related.failures.contains_key(&p.problem_id));
        fail(&farm, &shipment, &related, problems.is_empty()).await;
    }
    if problems.is_empty() {
        return span.failed("no problem is left of it");
    }
    // An agent that held nothing does not know how much of its lease is left.
    session.say_word(|| farm.recorded());
    match send_parts(&shipment, problems, related.reads).await {
        Sending::Whole { sequence } => {
            session.sent(shipment.checkout_id, sequence);
            crash_point(CrashPoint::CheckOutSent);
        }
        Sending::Disconnected => span.failed(NOT_SENT),
        Sending::Revoked { unseen } => {
            if unseen {
                // Its agent knows nothing of it, and goes on asking for as many.
                session.add_credit(1);
                drop(farm.dispatcher.send(super::Event::Credit(session)).await);
            } else {
                // What it has read of it may have come after the word that it is revoked, if there was any.
                session.revoke(shipment.checkout_id, "it was over before all of it was sent".to_owned());
            }
            span.failed("it was over before all of it was sent");
        }
    }
}

/// Of what is left out there is no result when its agent is done: it comes back, at no cost. So does what is behind it in its
/// convoy, as it may depend on it.
fn leave_out(problems: &mut Vec<v1::Problem>, left_out: &HashSet<i64>) {
    let mut cut = HashSet::new();
    problems.retain(|problem| {
        if left_out.contains(&problem.problem_id) {
            cut.insert(problem.batch_order);
        }
        !cut.contains(&problem.batch_order)
    });
}

/// How sending a checkout has ended.
enum Sending {
    /// With the message of this number.
    Whole {
        sequence: u64,
    },
    Disconnected,
    /// The session has it no more, and nobody is to work on it. Unseen: no part of it has gone out.
    Revoked {
        unseen: bool,
    },
}

const NOT_SENT: &str = "the agent's connection has ended";

/// Longest that reading a job's info, or what files it has, may take.
const INFO_DEADLINE: Duration = Duration::from_secs(10);

async fn info(farm: &Farm, shipment: &Shipment) -> anyhow::Result<Option<RawJson>> {
    let client = farm.pool.get().await?;
    Ok(jobs::info(&client, JobId(shipment.header.job_id)).await?)
}

async fn files(farm: &Farm, shipment: &Shipment) -> anyhow::Result<Vec<v1::JobFile>> {
    let client = farm.pool.get().await?;
    let files = pcfarm_sql::files::of_job(&client, JobId(shipment.header.job_id)).await?;
    Ok(files.into_iter().map(|(name, hash)| v1::JobFile { name, sha256: hash.0.to_vec().into() }).collect())
}

fn message(problem: ComingProblem) -> v1::Problem {
    v1::Problem {
        problem_id: problem.problem_id.0,
        batch_order: problem.batch_order.0,
        key: problem.key.into_bytes(),
        payload: problem.payload.0,
        attempt: problem.attempts.unsigned_abs() + 1,
    }
}

/// Problems whose reads failed have failed, with the read's message.
async fn fail(farm: &Farm, shipment: &Shipment, related: &Related, all: bool) {
    let results = related
        .failures
        .iter()
        .map(|(&problem_id, message)| v1::ProblemResult {
            problem_id,
            outcome: Some(v1::problem_result::Outcome::Failure(message.clone())),
            more: None,
        })
        .collect();
    let delivery = v1::Delivery {
        delivery_id: 0,
        checkouts: vec![v1::CheckoutResults {
            checkout_id: shipment.checkout_id.0,
            token: shipment.token.cast_unsigned(),
            results,
            finished: all,
            give_back_reason: String::new(),
            busy: None,
            worked: None,
            given_back: Vec::new(),
        }],
    };
    let delivered = Delivered::new(farm, shipment.session.clone(), delivery, false);
    if all {
        shipment.session.add_credit(1);
    }
    if farm.acceptor.send(delivered).await.is_err() {
        debug!("the server is stopping");
    }
    if all {
        drop(farm.dispatcher.send(super::Event::Credit(shipment.session.clone())).await);
    }
}

/// Most that an agent may take to read one part.
const SEND_DEADLINE: Duration = Duration::from_secs(60);

/// Related rows first, so that a problem never arrives before its data.
async fn send_parts(shipment: &Shipment, problems: Vec<v1::Problem>, reads: Vec<v1::RelatedRead>) -> Sending {
    let mut sequence = 0;
    let mut parts = parts_of(problems, reads).into_iter().peekable();
    shipment.load.begin();
    while let Some((problems, related)) = parts.next() {
        if !shipment.session.has(shipment.checkout_id) {
            return Sending::Revoked { unseen: sequence == 0 };
        }
        sequence = shipment.session.next_sequence();
        let message =
            v1::Checkout { more: parts.peek().is_some(), problems, related, sequence, ..shipment.header.clone() };
        let message = v1::ServerMessage { message: Some(v1::server_message::Message::Checkout(message)) };
        match tokio::time::timeout(SEND_DEADLINE, shipment.session.out.send(Outgoing::part_of(&shipment.load, message)))
            .await
        {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Sending::Disconnected,
            Err(_) => {
                shipment.session.end(tonic::Status::deadline_exceeded("the agent does not read what it asked for"));
                return Sending::Disconnected;
            }
        }
    }
    Sending::Whole { sequence }
}

/// Numbers can be much longer as text than they are in the database: what does not fit a message is not sent.
const TEXT_LIMIT: usize = MESSAGE_BYTES_LIMIT / 2;

type Part = (Vec<v1::Problem>, Vec<v1::RelatedRead>);

/// Cuts a checkout into parts of about [`PART_BYTES_TARGET`].
fn parts_of(problems: Vec<v1::Problem>, reads: Vec<v1::RelatedRead>) -> Vec<Part> {
    let size = |problem: &v1::Problem| problem.payload.len() + problem.key.len() + 32;
    if reads.is_empty() && problems.iter().map(size).sum::<usize>() <= PART_BYTES_TARGET {
        return vec![(problems, reads)];
    }
    let mut parts: Vec<Part> = vec![Part::default()];
    let mut bytes = 0;
    let mut room_for = |size: usize, parts: &mut Vec<Part>| {
        if bytes > 0 && bytes + size > PART_BYTES_TARGET {
            parts.push(Part::default());
            bytes = 0;
        }
        bytes += size;
    };
    for read in reads {
        // A read without rows is there all the same: the controller may ask for it.
        let mut name = Some(read.name.clone());
        for row in read.rows {
            room_for(row.row.len() + row.key.as_ref().map_or(0, String::len) + 16, &mut parts);
            let part = parts.last_mut().expect("there is always a part");
            match part.1.last_mut().filter(|last| last.name == read.name) {
                Some(last) => last.rows.push(row),
                None => part.1.push(v1::RelatedRead { name: read.name.clone(), rows: vec![row] }),
            }
            name = None;
        }
        if let Some(name) = name {
            parts.last_mut().expect("there is always a part").1.push(v1::RelatedRead { name, rows: Vec::new() });
        }
    }
    for problem in problems {
        room_for(size(&problem), &mut parts);
        parts.last_mut().expect("there is always a part").0.push(problem);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_keep_order_and_size() {
        let problem = |n: usize| v1::Problem {
            problem_id: n as i64,
            payload: vec![b' '; PART_BYTES_TARGET / 3].into(),
            ..v1::Problem::default()
        };
        let row = |n: usize| v1::RelatedRow { key: Some(n.to_string()), row: vec![b' '; PART_BYTES_TARGET / 3].into() };
        let reads = vec![
            v1::RelatedRead { name: "empty".to_owned(), rows: Vec::new() },
            v1::RelatedRead { name: "rows".to_owned(), rows: (0..4).map(row).collect() },
        ];
        let parts = parts_of((0..5).map(problem).collect(), reads);
        let ids: Vec<i64> = parts.iter().flat_map(|part| &part.0).map(|p| p.problem_id).collect();
        assert_eq!(ids, [0, 1, 2, 3, 4]);
        let rows: usize = parts.iter().flat_map(|part| &part.1).map(|read| read.rows.len()).sum();
        assert_eq!(rows, 4);
        assert_eq!(parts[0].1[0].name, "empty");
        assert!(parts.len() >= 4, "{} parts", parts.len());
    }

    #[test]
    fn what_is_behind_one_that_is_left_out_waits_with_it() {
        let problem = |id| v1::Problem { problem_id: id, batch_order: id / 3, ..v1::Problem::default() };
        let mut problems: Vec<v1::Problem> = (0..9).map(problem).collect();
        leave_out(&mut problems, &[1, 8].into());
        assert_eq!(problems.iter().map(|p| p.problem_id).collect::<Vec<_>>(), [0, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn a_small_checkout_is_one_message() {
        assert_eq!(parts_of(vec![v1::Problem::default()], Vec::new()).len(), 1);
    }
}
