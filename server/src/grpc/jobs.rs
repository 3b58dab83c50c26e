//! Jobs for people and their programs. Every call but an upload is made of single statements, so a call that is cancelled
//! leaves its connection without a transaction.

mod chunks;
mod small;
mod submission;

use super::{LOST_UPDATE, status_code, time};
use crate::access::Caller;
use crate::dispatch::Event;
use crate::farm::Farm;
use crate::problem;
use crate::traces::path;
use bytes::Bytes;
use chunks::Chunks;
use deadpool_postgres::{Object, Pool};
use futures_util::StreamExt;
use pcfarm_faults::{CrashPoint, crash_point};
use pcfarm_proto::ids::{JobId, ProblemId};
use pcfarm_proto::v1::job_service_server::JobService;
use pcfarm_proto::v1::{
    Conditions, GetJobRequest, Job, JobRequest, Lane, ListJobsRequest, ListJobsResponse, ListProblemsRequest,
    ListProblemsResponse, ProblemOutcome, ProblemStatus, SetInfoRequest, SubmitRequest, SubmitResponse,
    UpdateJobRequest,
};
use pcfarm_sql::jobs::{self, problems, results};
use pcfarm_sql::json::RawJson;
use pcfarm_sql::submissions::Attempt;
use pcfarm_sql::submit::Submitted;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;
pub use submission::Messages;
use submission::Submissions;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Request, Response, Status, Streaming};

const DEFAULT_PAGE: u32 = 100;

/// How often a waiting call looks at its job.
const WAIT_POLL: Duration = Duration::from_millis(400);
/// A waiting call answers this long before its deadline, so that its answer arrives.
const WAIT_MARGIN: Duration = Duration::from_millis(50);

pub struct JobsApi {
    farm: Arc<Farm>,
    pool: Pool,
    submissions: Submissions,
    /// Ends the calls that take as long as their callers like.
    stopping: CancellationToken,
}

impl JobsApi {
    pub fn new(farm: Arc<Farm>) -> JobsApi {
        let (pool, stopping) = (farm.pool.clone(), farm.stopping.clone());
        let submissions = Submissions::new(farm.clone());
        JobsApi { farm, submissions, pool, stopping }
    }

    /// One job from what comes, from a call or from elsewhere.
    pub async fn submit_all(&self, caller: &Caller, messages: Messages) -> Result<SubmitResponse, Status> {
        let submitted = tokio::select! {
            submitted = self.submissions.submitted(caller, messages) => submitted?,
            () = self.stopping.cancelled() => return Err(stopping()),
        };
        Ok(SubmitResponse { job_id: submitted.job.0, problems: submitted.problems, repeated: submitted.repeated })
    }

    /// A stored submission.
    pub async fn submit_stored(
        &self,
        caller: &Caller,
        messages: Messages,
        attempt: Attempt,
    ) -> Result<SubmitResponse, Status> {
        let Submitted { job, problems, repeated } = self.submissions.stored(caller, messages, attempt).await?;
        drop(self.farm.dispatcher.try_send(Event::Work));
        Ok(SubmitResponse { job_id: job.0, problems, repeated })
    }

    async fn client(&self) -> Result<Object, Status> {
        self.pool.get().await.map_err(status_code::of_pool)
    }

    /// A connection on which the caller acts, if this job is there for the caller: somebody else's is as none at all.
    async fn client_for(&self, caller: &Caller, job_id: JobId) -> Result<Object, Status> {
        let client = self.client().await?;
        caller.act_on(&client, job_id).await?;
        Ok(client)
    }

    async fn job(&self, client: &Object, job_id: JobId) -> Result<Response<Job>, Status> {
        let job = jobs::get(client, job_id).await.map_err(status_code::of)?;
        let job = job.ok_or_else(|| not_found(job_id))?;
        let lanes = jobs::lanes(client, job_id).await.map_err(status_code::of)?;
        let info = jobs::info(client, job_id).await.map_err(status_code::of)?.unwrap_or_default().0;
        let version = jobs::version(client, job_id).await.map_err(status_code::of)?.unwrap_or_default();
        Ok(Response::new(Job { info, version, ..job_message(job, lanes) }))
    }

    async fn update(&self, caller: &Caller, asked: UpdateJobRequest) -> Result<Response<Job>, Status> {
        let job_id = JobId(asked.job_id);
        let options = update_options(&asked)?;
        let client = self.client_for(caller, job_id).await?;
        if !jobs::update(&client, job_id, &asked.version, &options).await.map_err(status_code::of)? {
            let mut status = Status::aborted(format!("job {job_id} was changed meanwhile: read it again"));
            status.metadata_mut().insert(LOST_UPDATE, MetadataValue::from_static("true"));
            return Err(status);
        }
        self.job(&client, job_id).await
    }

    async fn set_info_of(&self, caller: &Caller, asked: SetInfoRequest) -> Result<Response<Job>, Status> {
        let job_id = JobId(asked.job_id);
        let patch = problem::json(&asked.patch)
            .map_err(|wrong| Status::invalid_argument(format!("the patch of a job's info: {wrong}")))?;
        let client = self.client_for(caller, job_id).await?;
        jobs::set_info(&client, job_id, &RawJson(patch.to_owned().into())).await.map_err(status_code::of)?;
        self.job(&client, job_id).await
    }

    pub async fn wait(
        &self,
        caller: &Caller,
        timeout: Option<Duration>,
        job_id: JobId,
    ) -> Result<Response<Job>, Status> {
        // Whose it is does not change while it is waited for.
        drop(self.client_for(caller, job_id).await?);
        let deadline = timeout.and_then(|limit| Instant::now().checked_add(limit.saturating_sub(WAIT_MARGIN)));
        loop {
            let client = self.client().await?;
            let state = jobs::state(&client, job_id).await.map_err(status_code::of)?;
            let state = state.ok_or_else(|| not_found(job_id))?;
            if state.has_ended() {
                return self.job(&client, job_id).await;
            }
            drop(client);
            let next = Instant::now() + WAIT_POLL;
            let last = deadline.filter(|deadline| *deadline < next);
            tokio::select! {
                () = tokio::time::sleep_until(last.unwrap_or(next)) => {}
                () = self.stopping.cancelled() => return Err(stopping()),
            }
            if last.is_some() {
                return Err(Status::deadline_exceeded(format!("job {job_id} is still {}", state.as_str())));
            }
        }
    }

    async fn problems(
        &self,
        caller: &Caller,
        asked: ListProblemsRequest,
    ) -> Result<Response<ListProblemsResponse>, Status> {
        let state = match asked.state.as_str() {
            "" => None,
            name => Some(
                name.parse()
                    .map_err(|unknown: problems::UnknownState| Status::invalid_argument(unknown.to_string()))?,
            ),
        };
        let job_id = JobId(asked.job_id);
        let wanted = problems::Wanted {
            job_id,
            state,
            key: (!asked.key.is_empty()).then_some(asked.key),
            after: ProblemId(asked.after_problem_id.max(0)),
            limit: page(asked.limit),
        };
        let client = self.client_for(caller, job_id).await?;
        let found = problems::page(&client, &wanted).await.map_err(status_code::of)?;
        if found.is_empty() && jobs::state(&client, job_id).await.map_err(status_code::of)?.is_none() {
            return Err(not_found(job_id));
        }
        let problems = found.into_iter().map(|problem| problem_message(job_id, problem)).collect();
        Ok(Response::new(ListProblemsResponse { problems }))
    }

    async fn results_of(&self, caller: &Caller, job_id: JobId) -> Result<Response<Chunks>, Status> {
        let client = self.client_for(caller, job_id).await?;
        if jobs::state(&client, job_id).await.map_err(status_code::of)?.is_none() {
            return Err(not_found(job_id));
        }
        let from = results::Results::of_job(&client, job_id).await.map_err(status_code::of)?;
        Ok(Response::new(Chunks::start(self.pool.clone(), from, self.stopping.clone())))
    }
}

// Without branches in them: LLVM 22's coverage tools end on a function that has nothing else of its own, as what this
// attribute makes of one.
#[tonic::async_trait]
impl JobService for JobsApi {
    async fn submit(&self, request: Request<Streaming<SubmitRequest>>) -> Result<Response<SubmitResponse>, Status> {
        let caller = Caller::of(&request)?;
        self.submit_all(&caller, request.into_inner().boxed()).await.map(Response::new)
    }

    async fn list_jobs(&self, request: Request<ListJobsRequest>) -> Result<Response<ListJobsResponse>, Status> {
        let caller = Caller::of(&request)?;
        let asked = request.into_inner();
        let wanted = jobs::Wanted {
            all: asked.all,
            before: (asked.before_job_id != 0).then_some(JobId(asked.before_job_id)),
            owner: caller.only_own().map(ToOwned::to_owned),
            limit: page(asked.limit),
        };
        let client = self.client().await?;
        let found = jobs::list(&client, &wanted).await.map_err(status_code::of)?;
        Ok(Response::new(ListJobsResponse {
            jobs: found.into_iter().map(|job| job_message(job, Vec::new())).collect(),
        }))
    }

    async fn get_job(&self, request: Request<GetJobRequest>) -> Result<Response<Job>, Status> {
        let caller = Caller::of(&request)?;
        let job_id = JobId(request.into_inner().job_id);
        self.job(&self.client_for(&caller, job_id).await?, job_id).await
    }

    async fn set_info(&self, request: Request<SetInfoRequest>) -> Result<Response<Job>, Status> {
        self.set_info_of(&Caller::of(&request)?, request.into_inner()).await
    }

    async fn update_job(&self, request: Request<UpdateJobRequest>) -> Result<Response<Job>, Status> {
        self.update(&Caller::of(&request)?, request.into_inner()).await
    }

    async fn open_job(&self, request: Request<JobRequest>) -> Result<Response<Job>, Status> {
        let caller = Caller::of(&request)?;
        let job_id = JobId(request.into_inner().job_id);
        let client = self.client_for(&caller, job_id).await?;
        jobs::open(&client, job_id).await.map_err(status_code::of)?;
        crash_point(CrashPoint::JobChanged);
        self.job(&client, job_id).await
    }

    async fn hold_job(&self, request: Request<JobRequest>) -> Result<Response<Job>, Status> {
        let caller = Caller::of(&request)?;
        let job_id = JobId(request.into_inner().job_id);
        let client = self.client_for(&caller, job_id).await?;
        jobs::hold(&client, job_id).await.map_err(status_code::of)?;
        crash_point(CrashPoint::JobChanged);
        self.job(&client, job_id).await
    }

    async fn release_job(&self, request: Request<JobRequest>) -> Result<Response<Job>, Status> {
        let caller = Caller::of(&request)?;
        let job_id = JobId(request.into_inner().job_id);
        let client = self.client_for(&caller, job_id).await?;
        jobs::release(&client, job_id).await.map_err(status_code::of)?;
        crash_point(CrashPoint::JobChanged);
        self.job(&client, job_id).await
    }

    async fn cancel_job(&self, request: Request<JobRequest>) -> Result<Response<Job>, Status> {
        let caller = Caller::of(&request)?;
        let job_id = JobId(request.into_inner().job_id);
        let client = self.client_for(&caller, job_id).await?;
        jobs::cancel(&client, job_id).await.map_err(status_code::of)?;
        crash_point(CrashPoint::JobChanged);
        path::jobs_ended(&self.farm.traces, &*client, &[job_id]).await;
        self.job(&client, job_id).await
    }

    async fn retry_job(&self, request: Request<JobRequest>) -> Result<Response<Job>, Status> {
        let caller = Caller::of(&request)?;
        let job_id = JobId(request.into_inner().job_id);
        let client = self.client_for(&caller, job_id).await?;
        jobs::retry(&client, job_id).await.map_err(status_code::of)?;
        crash_point(CrashPoint::JobChanged);
        self.job(&client, job_id).await
    }

    async fn wait_job(&self, request: Request<JobRequest>) -> Result<Response<Job>, Status> {
        let (caller, timeout) = (Caller::of(&request)?, call_timeout(request.metadata()));
        self.wait(&caller, timeout, JobId(request.into_inner().job_id)).await
    }

    async fn list_problems(
        &self,
        request: Request<ListProblemsRequest>,
    ) -> Result<Response<ListProblemsResponse>, Status> {
        self.problems(&Caller::of(&request)?, request.into_inner()).await
    }

    type ResultsStream = Chunks;

    async fn results(&self, request: Request<JobRequest>) -> Result<Response<Chunks>, Status> {
        self.results_of(&Caller::of(&request)?, JobId(request.into_inner().job_id)).await
    }
}

pub(crate) fn not_found(job_id: JobId) -> Status {
    Status::not_found(format!("there is no job {job_id}"))
}

fn stopping() -> Status {
    Status::unavailable("the server is stopping: ask again")
}

/// As `pcfarm.update_job` takes them.
fn update_options(asked: &UpdateJobRequest) -> Result<RawJson, Status> {
    let mut options = Map::new();
    if let Some(title) = &asked.title {
        if title.contains('\0') {
            return Err(Status::invalid_argument("the title holds a NUL character"));
        }
        options.insert("title".to_owned(), json!(title));
    }
    asked.priority.map(|priority| options.insert("priority".to_owned(), json!(priority)));
    if asked.no_deadline {
        options.insert("deadline".to_owned(), Value::Null);
    } else if let Some(deadline) = asked.deadline {
        let known = time(deadline).ok_or_else(|| Status::invalid_argument("a deadline before 1970 or after 9999"))?;
        let stamp = jiff::Timestamp::try_from(known).map_err(|wrong| Status::invalid_argument(wrong.to_string()))?;
        options.insert("deadline".to_owned(), json!(stamp.to_string()));
    }
    if let Some(Conditions { conditions }) = &asked.require {
        options.insert("require".to_owned(), json!(conditions));
    }
    if !asked.info.is_empty() {
        let info = problem::json(&asked.info)
            .map_err(|wrong| Status::invalid_argument(format!("the patch of a job's info: {wrong}")))?;
        let info: Value = serde_json::from_str(info).map_err(|wrong| Status::invalid_argument(wrong.to_string()))?;
        options.insert("info".to_owned(), info);
    }
    if options.is_empty() {
        return Err(Status::invalid_argument("nothing says what is to change"));
    }
    Ok(RawJson(Value::Object(options).to_string().into()))
}

fn page(limit: u32) -> u32 {
    if limit == 0 { DEFAULT_PAGE } else { limit.min(jobs::PAGE_LIMIT) }
}

/// What a call's `grpc-timeout` says: at most eight digits and a unit.
fn call_timeout(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number.checked_mul(3600)?)),
        "M" => Some(Duration::from_secs(number.checked_mul(60)?)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

fn outcome_message(outcome: results::ProblemOutcome) -> ProblemOutcome {
    let (word, message, result) = match outcome.solution {
        Ok(solution) => ("done", String::new(), solution.map(|solution| solution.0).unwrap_or_default()),
        Err(message) => ("failed", message, bytes::Bytes::new()),
    };
    ProblemOutcome { problem_id: outcome.problem_id.0, key: outcome.key, outcome: word.to_owned(), message, result }
}

fn problem_message(job_id: JobId, problem: problems::ProblemStatus) -> ProblemStatus {
    ProblemStatus {
        job_id: job_id.0,
        problem_id: problem.problem_id.0,
        key: problem.key,
        job_type: problem.job_type,
        state: problem.state.as_str().to_owned(),
        attempts: u32::try_from(problem.attempts).unwrap_or(0),
        message: problem.message.unwrap_or_default(),
        checkout_id: problem.checkout_id.map_or(0, |id| id.0),
        workstation_id: problem.workstation_id.map_or(0, |id| id.0),
        payload: problem.payload.0,
        result: problem.result.map(|result| result.0).unwrap_or_default(),
    }
}

fn job_message(job: jobs::Job, lanes: Vec<jobs::Lane>) -> Job {
    Job {
        reason: job.reason(),
        require: job.require,
        without_workstation: job.nowhere,
        job_id: job.job_id.0,
        name: job.name,
        job_type: job.job_type,
        owner: job.owner,
        state: job.state.as_str().to_owned(),
        priority: job.priority,
        deadline: job.deadline.map(Into::into),
        created_at: Some(job.created_at.into()),
        opened_at: job.opened_at.map(Into::into),
        ended_at: job.ended_at.map(Into::into),
        problems: job.problems,
        done: job.done,
        failed: job.failed,
        in_progress: job.in_progress,
        waiting: job.waiting,
        cancelled: job.cancelled,
        requeued: job.requeued,
        lanes: lanes.into_iter().map(lane_message).collect(),
        title: job.title,
        info: Bytes::new(),
        version: String::new(),
    }
}

fn lane_message(lane: jobs::Lane) -> Lane {
    Lane {
        lane_id: lane.lane_id.0,
        kind: lane.kind,
        job_type: lane.job_type,
        next_extraction: lane.next_extraction,
        next_insertion: lane.next_insertion,
        problems: lane.problems,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_of_calls_are_read() {
        let cases = [
            ("10S", Some(Duration::from_secs(10))),
            ("2H", Some(Duration::from_secs(7200))),
            ("1M", Some(Duration::from_secs(60))),
            ("250m", Some(Duration::from_millis(250))),
            ("99999999u", Some(Duration::from_micros(99_999_999))),
            ("5n", Some(Duration::from_nanos(5))),
            ("", None),
            ("S", None),
            ("10", None),
        ];
        for (text, expected) in cases {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", text.parse().expect("ASCII"));
            assert_eq!(call_timeout(&metadata), expected, "{text}");
        }
    }
}
