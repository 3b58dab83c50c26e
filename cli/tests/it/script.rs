//! A server that answers from a script, so that the program is tested against the real protocol.

use std::net::SocketAddr;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use anyhow::Result;
use pcfarm_proto::v1::farm_service_server::{FarmService, FarmServiceServer};
use pcfarm_proto::v1::job_service_server::{JobService, JobServiceServer};
use pcfarm_proto::v1::submit_request::Part;
use pcfarm_proto::v1::workstation_service_server::{WorkstationService, WorkstationServiceServer};
use pcfarm_proto::v1::*;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, Streaming};

pub const HOSTILE: &str = "\u{1b}]0;owned\u{7}\u{202e}night\n";

/// How the request stream of a Submit came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With its last message and the right number in it: the only one that a server commits after.
    Wholly,
    InTheMiddle,
}

#[derive(Clone, Debug, Default)]
pub struct Submitted {
    pub header: SubmitHeader,
    pub problems: usize,
    pub messages: usize,
    pub largest_message: usize,
    pub first: Option<SubmitProblem>,
}

/// A Submit on its way. It is recorded however it ends, also by being dropped with its call.
struct Recording {
    state: Arc<State>,
    index: usize,
    seen: Submitted,
    ended: Ended,
}

impl Recording {
    fn begin(state: &Arc<State>) -> Recording {
        let mut submits = state.submits.lock().expect("no test panics with it");
        submits.push((Submitted::default(), None));
        Recording {
            state: state.clone(),
            index: submits.len() - 1,
            seen: Submitted::default(),
            ended: Ended::InTheMiddle,
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let Ok(mut submits) = self.state.submits.lock() {
            submits[self.index] = (std::mem::take(&mut self.seen), Some(self.ended));
        }
        self.state.submit_ended.notify_one();
    }
}

#[derive(Default)]
pub struct State {
    pub submits: Mutex<Vec<(Submitted, Option<Ended>)>>,
    pub submit_ended: Notify,
    pub looks: Mutex<u32>,
    pub drains: Mutex<Vec<DrainWorkstationsRequest>>,
}

#[derive(Clone, Default)]
pub struct Script(Arc<State>);

pub struct Farm {
    pub address: SocketAddr,
    pub state: Arc<State>,
    _server: JoinSet<()>,
}

impl Farm {
    pub async fn start() -> Result<Farm> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let script = Script::default();
        let state = script.0.clone();
        let mut server = JoinSet::new();
        server.spawn(async move {
            tonic::transport::Server::builder()
                .add_service(JobServiceServer::new(script.clone()))
                .add_service(WorkstationServiceServer::new(script.clone()))
                .add_service(FarmServiceServer::new(script))
                .serve_with_incoming(TcpListenerStream::new(listener))
                .await
                .expect("the test's server serves");
        });
        Ok(Farm { address, state, _server: server })
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pcfarm"));
        command.args(arguments).stdin(Stdio::null()).env("HOME", "/nowhere");
        command.env_remove("XDG_CONFIG_HOME").env_remove("PCFARM_CONFIG").env_remove("PCFARM_TIMEOUT");
        command.env("PCFARM_SERVER", format!("http://{}", self.address));
        command
    }

    /// Runs the program to its end, off this runtime's threads.
    pub async fn run(&self, arguments: &[&str]) -> Result<Ran> {
        let mut command = self.command(arguments);
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        Ok(Ran::from(output))
    }
}

#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Jobs 1 to 250; 7 ends with a failed problem at the third look, 8 is done; others do not exist.
pub fn job(id: i64) -> Job {
    Job {
        job_id: id,
        name: if id == 1 { HOSTILE.into() } else { format!("night-{id}") },
        job_type: "square".into(),
        owner: "ops".into(),
        state: if id == 8 { "done".into() } else { "open".into() },
        reason: "waits for a workstation with controller square".into(),
        problems: 1_234_567,
        done: 1_000,
        created_at: Some(prost_types::Timestamp { seconds: 1_700_000_000, nanos: 500_000_000 }),
        lanes: vec![Lane { lane_id: 3, kind: "load".into(), next_insertion: i64::MAX, ..Lane::default() }],
        ..Job::default()
    }
}

type Answer<T> = Result<Response<T>, Status>;

impl Script {
    fn known(&self, id: i64) -> Answer<Job> {
        match id {
            1..=250 => Ok(Response::new(job(id))),
            403 => Err(Status::permission_denied("job 403 is another user's")),
            412 => Err(Status::failed_precondition("job 412 has ended (done)")),
            _ => Err(Status::not_found(format!("there is no job {id}"))),
        }
    }
}

#[tonic::async_trait]
impl JobService for Script {
    async fn submit(&self, request: Request<Streaming<SubmitRequest>>) -> Answer<SubmitResponse> {
        let mut stream = request.into_inner();
        let mut recording = Recording::begin(&self.0);
        while let Some(message) = stream.message().await? {
            let seen = &mut recording.seen;
            let size = prost::Message::encoded_len(&message);
            match message.part {
                Some(Part::Header(header)) if header.job_type == "unknown" => {
                    return Err(Status::not_found("there is no job type 'unknown'"));
                }
                Some(Part::Header(header)) if header.job_type == "repeated" => {
                    return Ok(Response::new(SubmitResponse { job_id: 5, problems: 0, repeated: true }));
                }
                Some(Part::Header(header)) => seen.header = header,
                Some(Part::Problems(batch)) => {
                    seen.messages += 1;
                    seen.largest_message = seen.largest_message.max(size);
                    seen.problems += batch.problems.len();
                    seen.first = seen.first.take().or(batch.problems.into_iter().next());
                }
                Some(Part::End(end)) => {
                    let problems = seen.problems as i64;
                    if end.problems != problems {
                        return Err(Status::invalid_argument("problems are missing"));
                    }
                    let job_id = if seen.header.job_id == 0 { 9 } else { seen.header.job_id };
                    recording.ended = Ended::Wholly;
                    return Ok(Response::new(SubmitResponse { job_id, problems, repeated: false }));
                }
                None => return Err(Status::invalid_argument("an empty message")),
            }
        }
        Err(Status::invalid_argument("there was no end"))
    }

    async fn update_job(&self, _: Request<pcfarm_proto::v1::UpdateJobRequest>) -> Answer<Job> {
        Err(Status::unimplemented("not in this script"))
    }

    async fn list_jobs(&self, request: Request<ListJobsRequest>) -> Answer<ListJobsResponse> {
        let request = request.into_inner();
        let newest = if request.before_job_id == 0 { 250 } else { request.before_job_id - 1 };
        let jobs = (1..=newest).rev().take(request.limit.min(100) as usize).map(job).collect();
        Ok(Response::new(ListJobsResponse { jobs }))
    }

    async fn get_job(&self, request: Request<GetJobRequest>) -> Answer<Job> {
        let mut found = self.known(request.get_ref().job_id)?;
        if found.get_ref().job_id == 7 {
            let mut looks = self.0.looks.lock().expect("no test panics with it");
            *looks += 1;
            if *looks == 2 {
                return Err(Status::unavailable("the server is stopping"));
            }
            if *looks >= 3 {
                found.get_mut().state = "failed".into();
                found.get_mut().failed = 3;
            }
        }
        Ok(found)
    }

    async fn open_job(&self, request: Request<JobRequest>) -> Answer<Job> {
        self.known(request.get_ref().job_id)
    }

    async fn set_info(&self, request: Request<SetInfoRequest>) -> Answer<Job> {
        self.known(request.get_ref().job_id)
    }

    async fn hold_job(&self, request: Request<JobRequest>) -> Answer<Job> {
        self.known(request.get_ref().job_id)
    }

    async fn release_job(&self, request: Request<JobRequest>) -> Answer<Job> {
        self.known(request.get_ref().job_id)
    }

    async fn cancel_job(&self, request: Request<JobRequest>) -> Answer<Job> {
        self.known(request.get_ref().job_id)
    }

    async fn retry_job(&self, request: Request<JobRequest>) -> Answer<Job> {
        self.known(request.get_ref().job_id)
    }

    async fn wait_job(&self, _: Request<JobRequest>) -> Answer<Job> {
        Err(Status::unimplemented("the program looks instead"))
    }

    async fn list_problems(&self, request: Request<ListProblemsRequest>) -> Answer<ListProblemsResponse> {
        let request = request.into_inner();
        let problem = |problem_id| ProblemStatus {
            job_id: request.job_id,
            problem_id,
            key: HOSTILE.into(),
            state: request.state.clone(),
            payload: b"{\"x\": 1.10}".as_slice().into(),
            ..ProblemStatus::default()
        };
        let first = request.after_problem_id + 1;
        let problems = (first..=120).take(request.limit.min(100) as usize).map(problem).collect();
        Ok(Response::new(ListProblemsResponse { problems }))
    }

    type ResultsStream = tokio_stream::Iter<std::vec::IntoIter<Result<ResultChunk, Status>>>;

    async fn results(&self, request: Request<JobRequest>) -> Answer<Self::ResultsStream> {
        let outcome = |problem_id| ProblemOutcome {
            problem_id,
            key: format!("k{problem_id}"),
            outcome: "done".into(),
            result: b"{\"x\": 1.10}".as_slice().into(),
            ..ProblemOutcome::default()
        };
        let mut chunks: Vec<Result<ResultChunk, Status>> = (0..100)
            .map(|chunk| Ok(ResultChunk { outcomes: (chunk * 100..chunk * 100 + 100).map(outcome).collect() }))
            .collect();
        if request.get_ref().job_id == 99 {
            chunks.push(Err(Status::internal("the database is gone")));
        }
        Ok(Response::new(tokio_stream::iter(chunks)))
    }
}

#[tonic::async_trait]
impl WorkstationService for Script {
    async fn list_workstations(&self, request: Request<ListWorkstationsRequest>) -> Answer<ListWorkstationsResponse> {
        let all = [workstation(1, "pc1"), workstation(2, "twin"), workstation(3, "twin"), workstation(4, HOSTILE)];
        let after = request.get_ref().after_workstation_id;
        let workstations = all.into_iter().filter(|one| one.workstation_id > after).collect();
        Ok(Response::new(ListWorkstationsResponse { workstations }))
    }

    async fn drain_workstations(&self, request: Request<DrainWorkstationsRequest>) -> Answer<ChangedWorkstations> {
        let request = request.into_inner();
        let drained = |id| {
            let mut drained = workstation(id, "pc1");
            drained.set_state(if request.undo { WorkstationState::Waiting } else { WorkstationState::Draining });
            drained
        };
        let workstations = request.workstation_ids.iter().map(|&id| drained(id)).collect();
        self.0.drains.lock().expect("no test panics with it").push(request);
        Ok(Response::new(ChangedWorkstations { workstations }))
    }

    async fn note_workstations(&self, request: Request<NoteWorkstationsRequest>) -> Answer<ChangedWorkstations> {
        let NoteWorkstationsRequest { workstation_ids, note } = request.into_inner();
        let noted = |id| Workstation { note: note.clone(), ..workstation(id, "pc1") };
        Ok(Response::new(ChangedWorkstations { workstations: workstation_ids.into_iter().map(noted).collect() }))
    }

    async fn forget_workstations(
        &self,
        request: Request<ForgetWorkstationsRequest>,
    ) -> Answer<ForgetWorkstationsResponse> {
        let forgotten = |workstation_id| ForgottenWorkstation { workstation_id, hostname: HOSTILE.to_owned() };
        let workstations = request.into_inner().workstation_ids.into_iter().map(forgotten).collect();
        Ok(Response::new(ForgetWorkstationsResponse { workstations }))
    }

    async fn get_selection(&self, request: Request<GetSelectionRequest>) -> Answer<Selection> {
        Ok(Response::new(Selection { hostname: request.into_inner().hostname, ..Selection::default() }))
    }

    async fn set_selection(&self, _: Request<SetSelectionRequest>) -> Answer<SetSelectionResponse> {
        Ok(Response::new(SetSelectionResponse {}))
    }

    async fn wake_workstations(
        &self,
        _: Request<pcfarm_proto::v1::WakeWorkstationsRequest>,
    ) -> Answer<ChangedWorkstations> {
        Ok(Response::new(ChangedWorkstations::default()))
    }

    async fn get_presence(
        &self,
        request: Request<pcfarm_proto::v1::GetPresenceRequest>,
    ) -> Answer<pcfarm_proto::v1::WantedPresence> {
        let hostname = request.into_inner().hostname;
        Ok(Response::new(pcfarm_proto::v1::WantedPresence { hostname, ..Default::default() }))
    }

    async fn set_presence(
        &self,
        _: Request<pcfarm_proto::v1::SetPresenceRequest>,
    ) -> Answer<pcfarm_proto::v1::SetPresenceResponse> {
        Ok(Response::new(pcfarm_proto::v1::SetPresenceResponse {}))
    }

    async fn set_slot(&self, _: Request<SetSlotRequest>) -> Answer<SetSlotResponse> {
        Ok(Response::new(SetSlotResponse {}))
    }

    async fn list_slots(&self, _: Request<ListSlotsRequest>) -> Answer<ListSlotsResponse> {
        Ok(Response::new(ListSlotsResponse::default()))
    }
}

fn workstation(workstation_id: i64, hostname: &str) -> Workstation {
    let mut one = Workstation {
        workstation_id,
        hostname: hostname.into(),
        reason: "no job needs its controllers".into(),
        cores: 8,
        memory_bytes: 16 << 30,
        ..Workstation::default()
    };
    one.set_state(WorkstationState::Waiting);
    one
}

#[tonic::async_trait]
impl FarmService for Script {
    async fn get_clock(&self, _: Request<pcfarm_proto::v1::GetClockRequest>) -> Answer<pcfarm_proto::v1::Clock> {
        Err(Status::unimplemented("not in this script"))
    }

    async fn accept_clock(&self, _: Request<pcfarm_proto::v1::AcceptClockRequest>) -> Answer<pcfarm_proto::v1::Clock> {
        Err(Status::unimplemented("not in this script"))
    }

    async fn list_usage(&self, _: Request<ListUsageRequest>) -> Answer<ListUsageResponse> {
        Err(Status::unimplemented("not in this script"))
    }

    async fn get_status(&self, _: Request<GetStatusRequest>) -> Answer<FarmStatus> {
        Ok(Response::new(FarmStatus {
            server_version: "0.1.0".into(),
            workstations_waiting: 3,
            cores: 24,
            jobs_open: 250,
            problems_waiting: 1_234_567,
            warnings: vec![format!("fsync is off {HOSTILE}")],
            ..FarmStatus::default()
        }))
    }

    async fn explain(&self, request: Request<ExplainRequest>) -> Answer<ExplainResponse> {
        let asked = request.into_inner();
        let reasons = vec![format!("job {} workstation {}", asked.job_id, asked.workstation_id), "two".into()];
        Ok(Response::new(ExplainResponse { reasons }))
    }

    async fn list_statistics(&self, _: Request<ListStatisticsRequest>) -> Answer<ListStatisticsResponse> {
        Ok(Response::new(ListStatisticsResponse::default()))
    }

    async fn list_events(&self, _: Request<ListEventsRequest>) -> Answer<ListEventsResponse> {
        let event = Event {
            event_id: 7,
            what: HOSTILE.into(),
            who: HOSTILE.into(),
            subject: HOSTILE.into(),
            ..Event::default()
        };
        Ok(Response::new(ListEventsResponse { events: vec![event], after: "1-7".into() }))
    }
}
