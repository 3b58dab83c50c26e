//! Small submissions: one statement each, which hands its problems out as well where a workstation waits for them.

use super::submission::{Wanted, in_turn};
use crate::dispatch::offers::Claim;
use crate::dispatch::{Event, take_back_unsent};
use crate::farm::Farm;
use crate::grpc::status_code;
use crate::{instruments, traces};
use deadpool_postgres::Object;
use pcfarm_proto::ids::JobId;
use pcfarm_sql::job_types::JobType;
use pcfarm_sql::lanes::ComingProblem;
use pcfarm_sql::submit::{self, Fresh, NewProblem, Small, Submitted, Target};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tonic::Status;

/// How many at a time: they wait for each other, and leave connections to others.
const AT_ONCE: usize = 4;

/// Problems that go out by the side of the database: thousands of these submissions may wait for the dispatcher.
const FRESH_BYTES: usize = 16 << 10;

/// For so long a workstation waits for what it was taken along for: a commit may wait for a standby that is away. What comes later
/// is taken back, and is anybody's.
const CLAIM_LIMIT: Duration = Duration::from_secs(1);

/// Jobs of which it is remembered what they are of.
const KNOWN_JOBS_LIMIT: usize = 1_000;

/// Takes them, so many at a time.
pub struct SmallSubmissions {
    farm: Arc<Farm>,
    turns: Arc<Semaphore>,
    /// Which of them has a line.
    line: Arc<Semaphore>,
    /// Of jobs that were submitted to, their job types.
    job_types: Mutex<HashMap<JobId, Arc<str>>>,
}

impl SmallSubmissions {
    pub fn new(farm: Arc<Farm>) -> SmallSubmissions {
        let (turns, line) = (Arc::new(Semaphore::new(AT_ONCE)), Arc::new(Semaphore::new(1)));
        SmallSubmissions { farm, turns, line, job_types: Mutex::default() }
    }

    /// Also tells the dispatcher. None: nothing was loaded, see [`submit::at_once`]. Once it has its turn and a connection it comes
    /// to its end, whoever still waits for it: what was committed must not be handed out late because a call was cancelled.
    pub async fn submitted(
        self: &Arc<Self>,
        wanted: &Arc<Wanted>,
        problems: Vec<NewProblem>,
    ) -> Result<Option<Submitted>, Status> {
        let turn = in_turn(self.turns.clone()).await?;
        let epoch = self.farm.epoch.number();
        let line = self.line.clone().try_acquire_owned().ok();
        let client = match line {
            Some(_) => self.farm.lines.take().await,
            None => self.farm.pool.get().await,
        };
        let client = client.map_err(status_code::of_pool)?;
        let (this, wanted) = (self.clone(), wanted.clone());
        let submitting = traces::carried(async move {
            let _turn = turn;
            this.submit(client, line, epoch, &wanted, &problems).await
        });
        let failed = |_| Status::internal("this submission has failed in this server");
        self.farm.tasks.spawn(submitting).await.map_err(failed)?
    }

    async fn submit(
        &self,
        client: Object,
        line: Option<OwnedSemaphorePermit>,
        epoch: u64,
        wanted: &Wanted,
        problems: &[NewProblem],
    ) -> Result<Option<Submitted>, Status> {
        let Wanted { by, target, convoy, open, .. } = wanted;
        let job_type = self.job_type_for(wanted, problems);
        let mut claim = job_type.as_ref().and_then(|job_type| Claim::of(&self.farm, job_type));
        let taker = claim.as_ref().zip(job_type.as_ref()).map(|(claim, job_type)| claim.taker(job_type));
        let small = Small { by, target, convoy: *convoy, open: *open, problems, taker };
        let began = Instant::now();
        let outcome = {
            let mut submitting = pin!(submit::at_once(&client, self.farm.server_id, &small));
            match timeout(CLAIM_LIMIT, &mut submitting).await {
                Ok(outcome) => outcome,
                Err(_) => {
                    claim = None;
                    submitting.await
                }
            }
        };
        let took = began.elapsed();
        instruments::timed("submit", began);
        // One that has refused something is as good as before.
        if line.is_some() && !client.is_closed() {
            self.farm.lines.put(client);
        }
        drop(line);
        let Some((submitted, fresh)) = outcome.map_err(status_code::of_load)? else { return Ok(None) };
        if let (Target::Job(job), Some(fresh)) = (target, &fresh) {
            self.note_type(*job, &fresh.lane.job_type);
        }
        let news = match (fresh, claim) {
            (Some(Fresh { checkout: Some(id), lane, problems }), Some(claim)) => {
                claim.ship(id, &lane, problems, took).await;
                return Ok(Some(submitted));
            }
            (Some(Fresh { checkout: Some(id), .. }), None) => {
                take_back_unsent(&self.farm, id, epoch);
                return Ok(Some(submitted));
            }
            (Some(fresh), _) if are_light(&fresh.problems) => Event::Fresh(Box::new(fresh), epoch),
            _ => Event::Work,
        };
        // It hears no notification of this. Full means that the dispatcher has been told often enough.
        drop(self.farm.dispatcher.try_send(news));
        Ok(Some(submitted))
    }

    /// Of what type they are, if that is known and a workstation may have them at once.
    fn job_type_for(&self, wanted: &Wanted, problems: &[NewProblem]) -> Option<Arc<JobType>> {
        let bytes: usize = problems.iter().map(|problem| problem.key.len() + problem.payload.0.len()).sum();
        if bytes > FRESH_BYTES || !submit::are_one_convoy(problems.len(), wanted.convoy) {
            return None;
        }
        match &wanted.target {
            Target::New { job_type, .. } if wanted.open => self.farm.job_type(job_type),
            Target::New { .. } => None,
            Target::Job(job) => self.farm.job_type(self.known_types().get(job)?),
        }
    }

    /// Of a job to which more may be submitted.
    fn note_type(&self, job: JobId, job_type: &Arc<str>) {
        let mut known = self.known_types();
        if known.len() >= KNOWN_JOBS_LIMIT {
            known.clear();
        }
        known.insert(job, job_type.clone());
    }

    fn known_types(&self) -> MutexGuard<'_, HashMap<JobId, Arc<str>>> {
        self.job_types.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn are_light(problems: &[ComingProblem]) -> bool {
    problems.iter().map(ComingProblem::bytes).sum::<usize>() <= FRESH_BYTES
}
