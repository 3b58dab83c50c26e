//! Spans of what passes through several hands: of jobs, and of checkouts on their way out and back. What somebody else has begun,
//! perhaps on another server that is gone, is made a span of by whoever comes to its end.

use super::context::Place;
use super::{Span, Traces};
use crate::farm::{Farm, Held};
use pcfarm_proto::ids::{CheckoutId, JobId};
use pcfarm_proto::v1;
use pcfarm_sql::checkout::{Queries, Verdict, VerdictKind};
use pcfarm_sql::upkeep;
use std::time::{Duration, SystemTime};
use tracing::warn;

/// Where a checkout belongs that is traced.
#[derive(Clone, Copy, Debug)]
pub struct CheckoutTrace {
    /// Its job's span, and its own, of which neither is there before its end.
    pub job: Place,
    pub checkout: Place,
    /// When it was decided on.
    pub since: SystemTime,
}

/// A call that handed out several checkouts.
#[derive(Debug)]
pub struct HandOutCall {
    pub checkouts: usize,
    pub database: Duration,
    /// Those of them that are traced.
    pub traced: Vec<Place>,
}

/// A transaction that stored what several deliveries brought.
#[derive(Debug)]
pub struct AcceptCall {
    pub database: Duration,
    pub traced: Vec<Place>,
}

impl Traces {
    /// Of a job, by what its row says.
    pub fn of_job(&self, trace_parent: Option<&str>, job: JobId) -> Option<Place> {
        Some(self.kept(trace_parent)?.part("job", job.0.unsigned_abs()))
    }

    /// Of a checkout, by its job's row and its token: ids repeat after a crash.
    pub fn of_checkout(
        &self,
        trace_parent: Option<&str>,
        job: JobId,
        token: i64,
        since: impl FnOnce() -> SystemTime,
    ) -> Option<Box<CheckoutTrace>> {
        let job = self.of_job(trace_parent, job)?;
        Some(Box::new(CheckoutTrace { job, checkout: job.part("checkout", token.cast_unsigned()), since: since() }))
    }

    /// It is committed.
    pub fn handed_out(&self, trace: &CheckoutTrace, problems: usize, call: &HandOutCall) {
        let mut span = self.under(Some(trace.checkout), "hand out").since(trace.since);
        span.set("pcfarm.problems", problems as i64)
            .set("pcfarm.call.checkouts", call.checkouts as i64)
            .set("pcfarm.database.check_out.seconds", call.database.as_secs_f64());
        link_others(&mut span, trace.checkout, &call.traced);
    }

    /// Its end, however it came.
    pub fn checkout_ended(&self, id: CheckoutId, held: &Held, ending: Ending<'_>) {
        let Some(trace) = &held.trace else { return };
        let mut span = self.under(Some(trace.job), "checkout").known_as(trace.checkout).since(trace.since);
        span.set("pcfarm.checkout.id", id.0)
            .set("pcfarm.job.id", held.job_id.0)
            .set("pcfarm.job.type", held.job_type.clone())
            .set("pcfarm.workstation.id", held.workstation_id.0)
            .set("pcfarm.problems", held.members.len() as i64);
        match ending {
            Ending::Accepted => {}
            Ending::GivenBack(reason) => {
                span.set("pcfarm.give_back_reason", reason.to_owned());
            }
            Ending::Revoked(reason) => span.failed(reason.to_owned()),
        }
    }

    /// What an agent says of its work: times are counted back from when that came.
    fn solved(&self, trace: &CheckoutTrace, held: &Held, worked: &v1::Worked, came: SystemTime) {
        let at =
            |ago: Option<prost_types::Duration>| came.checked_sub(ago.and_then(|ago| Duration::try_from(ago).ok())?);
        let (Some(arrived), Some(began), Some(ended)) =
            (at(worked.arrived_ago), at(worked.began_ago), at(worked.ended_ago))
        else {
            return;
        };
        let waited = began.duration_since(arrived).unwrap_or_default();
        let busy = worked.busy.and_then(|busy| Duration::try_from(busy).ok()).unwrap_or_default();
        let span = self.under(Some(trace.checkout), "solve").known_as(trace.checkout.part("solve", 0));
        let mut span = span.since(began);
        span.set("pcfarm.workstation.id", held.workstation_id.0)
            .set("pcfarm.problems", i64::from(worked.problems))
            .set("pcfarm.waited.seconds", waited.as_secs_f64())
            .set("pcfarm.busy.seconds", busy.as_secs_f64());
        span.end_at(ended);
    }
}

/// How a checkout ends.
#[derive(Clone, Copy, Debug)]
pub enum Ending<'a> {
    Accepted,
    GivenBack(&'a str),
    Revoked(&'a str),
}

fn link_others(span: &mut Span, own: Place, all: &[Place]) {
    for other in all.iter().filter(|other| **other != own) {
        span.link(*other);
    }
}

/// Records a checkout's results before the server forgets the checkout, and its end with the last of them.
pub fn delivered(
    farm: &Farm,
    (results, is_last): (&v1::CheckoutResults, bool),
    verdict: &Verdict,
    came: SystemTime,
    call: &AcceptCall,
) {
    let id = CheckoutId(results.checkout_id);
    let held = farm.recall(id).filter(|held| held.token == results.token.cast_signed());
    let Some((held, trace)) = held.as_ref().and_then(|held| Some((held, held.trace.as_ref()?))) else { return };
    let traces = &farm.traces;
    let mut span = traces.under(Some(trace.checkout), "store results").since(came);
    span.set("pcfarm.results", results.results.len() as i64)
        .set("pcfarm.results.accepted", i64::from(verdict.accepted))
        .set("pcfarm.results.refused", i64::from(verdict.refused))
        .set("pcfarm.database.accept.seconds", call.database.as_secs_f64());
    link_others(&mut span, trace.checkout, &call.traced);
    if let Some(worked) = &results.worked {
        traces.solved(trace, held, worked, came);
    }
    match verdict.kind {
        VerdictKind::Accepted if !verdict.closed || !is_last => {}
        VerdictKind::Accepted if !results.give_back_reason.is_empty() => {
            traces.checkout_ended(id, held, Ending::GivenBack(&results.give_back_reason));
        }
        VerdictKind::Accepted | VerdictKind::AlreadyAccepted => traces.checkout_ended(id, held, Ending::Accepted),
        VerdictKind::Revoked | VerdictKind::Unknown => {
            span.failed(verdict.reason.clone());
            traces.checkout_ended(id, held, Ending::Revoked(&verdict.reason));
        }
    }
}

/// Those of what was delivered that are traced.
pub fn traced<'a>(farm: &Farm, results: impl Iterator<Item = &'a v1::CheckoutResults>) -> Vec<Place> {
    let place =
        |results: &v1::CheckoutResults| Some(farm.recall(CheckoutId(results.checkout_id))?.trace.as_ref()?.checkout);
    results.filter_map(place).collect()
}

/// It was taken from its workstation, and is forgotten.
pub fn revoked(farm: &Farm, id: CheckoutId, reason: &str) {
    if let Some(held) = farm.forget(id) {
        farm.traces.checkout_ended(id, &held, Ending::Revoked(reason));
    }
}

/// Of these jobs, those that have ended. One that is retried ends again, and its span is made anew.
pub async fn jobs_ended(traces: &Traces, client: &impl Queries, jobs: &[JobId]) {
    if jobs.is_empty() || !traces.are_on() {
        return;
    }
    let ended = match upkeep::ended_traces(client, jobs).await {
        Ok(ended) => ended,
        Err(error) => {
            return warn!(error = &error as &dyn std::error::Error, "traces of jobs that ended were not made");
        }
    };
    for job in ended {
        let parent = traces.kept(Some(&job.trace_parent));
        let Some(place) = traces.of_job(Some(&job.trace_parent), job.job_id) else { continue };
        let mut span = traces.under(parent, "job").known_as(place).since(job.created_at);
        let waited = job.opened_at.and_then(|opened| opened.duration_since(job.created_at).ok()).unwrap_or_default();
        span.set("pcfarm.job.id", job.job_id.0)
            .set("pcfarm.job.name", job.name)
            .set("pcfarm.job.type", job.job_type)
            .set("pcfarm.job.state", job.state.clone())
            .set("pcfarm.job.loading.seconds", waited.as_secs_f64());
        if job.state != "done" {
            span.failed(job.state);
        }
        span.end_at(job.ended_at);
    }
}
