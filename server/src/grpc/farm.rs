//! The farm at a glance, and why something in it does not run.

use super::{jobs, status_code, time, workstations};
use crate::access::Caller;
use deadpool_postgres::Pool;
use pcfarm_proto::ids::{JobId, WorkstationId};
use pcfarm_proto::v1::farm_service_server::FarmService;
use pcfarm_proto::v1::{
    AcceptClockRequest, Clock, Event, ExplainRequest, ExplainResponse, FarmStatus, GetClockRequest, GetStatusRequest,
    ListEventsRequest, ListEventsResponse, ListStatisticsRequest, ListStatisticsResponse, ListUsageRequest,
    ListUsageResponse, ServerStatus, Statistic, Usage,
};
use pcfarm_recycler::pulse_limit;
use pcfarm_sql::{events, farm, statistics, usage};
use std::time::{Duration, SystemTime};
use tonic::{Request, Response, Status};

const DEFAULT_PAGE: u32 = 100;

const DAY: Duration = Duration::from_secs(24 * 3600);
const MONTH: Duration = Duration::from_secs(30 * 24 * 3600);

pub struct FarmApi {
    pool: Pool,
    lease: Duration,
    /// What was found at start and is not as promised.
    warnings: Vec<String>,
}

impl FarmApi {
    pub fn new(pool: Pool, lease: Duration, warnings: Vec<String>) -> FarmApi {
        FarmApi { pool, lease, warnings }
    }

    async fn statistics(
        &self,
        caller: &Caller,
        asked: ListStatisticsRequest,
    ) -> Result<Response<ListStatisticsResponse>, Status> {
        let ListStatisticsRequest { since, job_type, owner, limit } = asked;
        let since = match since {
            None => SystemTime::now() - DAY,
            Some(stamp) => time(stamp).ok_or_else(|| Status::invalid_argument("a time that cannot be"))?,
        };
        let (job_type, owner) = (Some(&*job_type).filter(|t| !t.is_empty()), Some(&*owner).filter(|t| !t.is_empty()));
        let limit = if limit == 0 { statistics::PAGE_LIMIT } else { limit };
        // Of others there is nothing, whoever is asked for.
        let owner = match (caller.only_own(), owner) {
            (Some(own), Some(other)) if own != other => {
                return Ok(Response::new(ListStatisticsResponse::default()));
            }
            (Some(own), _) => Some(own),
            (None, asked) => asked,
        };
        let client = self.pool.get().await.map_err(status_code::of_pool)?;
        let found = statistics::statistics(&client, since, job_type, owner, limit).await.map_err(status_code::of)?;
        Ok(Response::new(ListStatisticsResponse { statistics: found.into_iter().map(statistic).collect() }))
    }

    async fn usage(&self, caller: &Caller, asked: ListUsageRequest) -> Result<Response<ListUsageResponse>, Status> {
        let ListUsageRequest { since, owner } = asked;
        let since = match since.as_str() {
            "" => jiff::Timestamp::try_from(SystemTime::now() - MONTH)
                .map_err(|error| Status::internal(error.to_string()))?
                .to_zoned(jiff::tz::TimeZone::UTC)
                .date(),
            text => {
                text.parse::<jiff::civil::Date>().ok().filter(|day| day.year() > 0 && text.len() == 10).ok_or_else(
                    || Status::invalid_argument(format!("since: {text:?} is not a day such as 2026-03-01")),
                )?
            }
        };
        // Of others there is nothing, whoever is asked for.
        let owner = match (caller.only_own(), Some(&*owner).filter(|owner| !owner.is_empty())) {
            (Some(own), Some(other)) if own != other => return Ok(Response::new(ListUsageResponse::default())),
            (Some(own), _) => Some(own),
            (None, asked) => asked,
        };
        let client = self.pool.get().await.map_err(status_code::of_pool)?;
        let found = usage::usage(&client, &since.to_string(), owner).await.map_err(status_code::of)?;
        let message = |of: usage::Usage| {
            let usage::Usage { day, owner, done, failed, requeued, cpu_seconds, triggers } = of;
            Usage { day, owner, done, failed, requeued, cpu_seconds, triggers }
        };
        Ok(Response::new(ListUsageResponse { usage: found.into_iter().map(message).collect() }))
    }

    async fn events(&self, caller: &Caller, asked: ListEventsRequest) -> Result<Response<ListEventsResponse>, Status> {
        let known = |stamp| time(stamp).ok_or_else(|| Status::invalid_argument("a time before 1970 or after 9999"));
        let after = match asked.after.as_str() {
            "" => None,
            place => Some(
                place
                    .parse()
                    .map_err(|_| Status::invalid_argument(format!("{place:?} is not what an answer ended at")))?,
            ),
        };
        let wanted = events::Wanted {
            job_id: (asked.job_id != 0).then_some(JobId(asked.job_id)),
            workstation_id: (asked.workstation_id != 0).then_some(WorkstationId(asked.workstation_id)),
            what: asked.what,
            since: asked.since.map(known).transpose()?,
            after,
            of_owner: caller.only_own().map(ToOwned::to_owned),
            limit: if asked.limit == 0 { DEFAULT_PAGE } else { asked.limit },
        };
        let client = self.pool.get().await.map_err(status_code::of_pool)?;
        let (found, after) = events::events(&client, &wanted).await.map_err(status_code::of)?;
        let events = found.into_iter().map(event).collect();
        Ok(Response::new(ListEventsResponse { events, after: after.to_string() }))
    }

    async fn reasons(&self, caller: &Caller, asked: ExplainRequest) -> Result<Response<ExplainResponse>, Status> {
        let ExplainRequest { job_id, workstation_id } = asked;
        let (job, workstation) = (JobId(job_id), WorkstationId(workstation_id));
        if (job_id == 0) == (workstation_id == 0) {
            return Err(Status::invalid_argument("name a job or a workstation to explain, one of them"));
        }
        let client = self.pool.get().await.map_err(status_code::of_pool)?;
        let mut reasons = if job_id != 0 {
            caller.act_on(&client, job).await?;
            let told = farm::explain_job(&client, job).await.map_err(status_code::of)?;
            told.ok_or_else(|| jobs::not_found(job))?
        } else {
            let found = farm::workstation(&client, workstation).await.map_err(status_code::of)?;
            let mut found = found.ok_or_else(|| workstations::not_found(workstation))?;
            workstations::hide_from(caller, &client, std::slice::from_mut(&mut found)).await?;
            let told = farm::explain_workstation(&client, &found).await.map_err(status_code::of)?;
            told.ok_or_else(|| workstations::not_found(workstation))?
        };
        let clock = pcfarm_sql::clock::read(&*client).await.map_err(status_code::of)?;
        if !clock.time_limits_hold
            && pcfarm_sql::clock::has_time_limits(&*client, job, workstation).await.map_err(status_code::of)?
        {
            let why = clock_reasons(&clock).join("; ");
            reasons.push(format!(
                "no checkout is revoked for its time limit, because the clock is unproven: {why}; see `pcfarm clock`"
            ));
        }
        Ok(Response::new(ExplainResponse { reasons }))
    }
}

#[tonic::async_trait]
impl FarmService for FarmApi {
    async fn get_status(&self, _: Request<GetStatusRequest>) -> Result<Response<FarmStatus>, Status> {
        let client = self.pool.get().await.map_err(status_code::of_pool)?;
        let status = farm::status(&client, pulse_limit(self.lease)).await.map_err(status_code::of)?;
        let clock = pcfarm_sql::clock::read(&*client).await.map_err(status_code::of)?;
        let mut warnings = self.warnings.clone();
        warnings.extend(clock_warning(&clock));
        Ok(Response::new(message(status, warnings)))
    }

    async fn get_clock(&self, _: Request<GetClockRequest>) -> Result<Response<Clock>, Status> {
        let client = self.pool.get().await.map_err(status_code::of_pool)?;
        let clock = pcfarm_sql::clock::read(&*client).await.map_err(status_code::of)?;
        Ok(Response::new(clock_message(clock)))
    }

    async fn accept_clock(&self, request: Request<AcceptClockRequest>) -> Result<Response<Clock>, Status> {
        let caller = Caller::of(&request)?;
        let client = self.pool.get().await.map_err(status_code::of_pool)?;
        caller.act(&client).await?;
        pcfarm_sql::clock::accept(&*client).await.map_err(status_code::of)?;
        let clock = pcfarm_sql::clock::read(&*client).await.map_err(status_code::of)?;
        Ok(Response::new(clock_message(clock)))
    }

    async fn explain(&self, request: Request<ExplainRequest>) -> Result<Response<ExplainResponse>, Status> {
        self.reasons(&Caller::of(&request)?, request.into_inner()).await
    }

    async fn list_statistics(
        &self,
        request: Request<ListStatisticsRequest>,
    ) -> Result<Response<ListStatisticsResponse>, Status> {
        self.statistics(&Caller::of(&request)?, request.into_inner()).await
    }

    async fn list_usage(&self, request: Request<ListUsageRequest>) -> Result<Response<ListUsageResponse>, Status> {
        self.usage(&Caller::of(&request)?, request.into_inner()).await
    }

    async fn list_events(&self, request: Request<ListEventsRequest>) -> Result<Response<ListEventsResponse>, Status> {
        self.events(&Caller::of(&request)?, request.into_inner()).await
    }
}

fn statistic(of: statistics::Statistic) -> Statistic {
    let statistics::Statistic { hour, job_type, owner, done, failed, requeued } = of;
    Statistic { hour: Some(hour.into()), job_type, owner, done, failed, requeued }
}

fn event(event: events::Event) -> Event {
    Event {
        event_id: event.event_id,
        happened_at: Some(event.happened_at.into()),
        who: event.who,
        program: event.program,
        what: event.what,
        job_id: event.job_id.map_or(0, |id| id.0),
        workstation_id: event.workstation_id.map_or(0, |id| id.0),
        subject: event.subject.unwrap_or_default(),
        details: event.details.0,
    }
}

/// Warning for administrators while the clock is unproven.
fn clock_warning(clock: &pcfarm_sql::clock::Clock) -> Option<String> {
    if clock.proven {
        return None;
    }
    let reasons = clock_reasons(clock).join("; ");
    Some(format!(
        "the clock is unproven: {reasons}. Nothing is removed for its age until it is proven; see `pcfarm clock`"
    ))
}

fn clock_reasons(clock: &pcfarm_sql::clock::Clock) -> Vec<String> {
    let mut reasons = Vec::new();
    if let (false, Some(checked)) = (clock.watched, clock.checked_at) {
        let at = told(checked);
        reasons.push(if checked < clock.now {
            format!("no server has looked at the clock since {at}")
        } else {
            format!("the last look of a server at the clock, of {at}, lies in the future")
        });
    }
    if clock.step_until.is_some() {
        let step = clock.step_seconds.unwrap_or_default();
        let to = if step > 0.0 { "ahead" } else { "back" };
        reasons.push(format!("the database's clock stepped {:.0} s {to}", step.abs()));
    }
    if clock.difference_until.is_some() {
        let difference = clock.difference_seconds.unwrap_or_default();
        let how = if difference > 0.0 { "ahead of" } else { "behind" };
        let server = clock.difference_server.map_or(0, |server| server.0);
        reasons.push(format!("the database's clock is {:.0} s {how} the clock of server {server}", difference.abs()));
    }
    if let (Some(_), Some(newest)) = (clock.stored_until, clock.newest) {
        reasons.push(format!(
            "the newest stored time, {}, was a day or more away from the time of a server's start",
            told(newest)
        ));
    }
    reasons
}

fn told(time: std::time::SystemTime) -> String {
    jiff::Timestamp::try_from(time).map_or_else(|_| "another age".to_owned(), |at| at.to_string())
}

fn clock_message(clock: pcfarm_sql::clock::Clock) -> Clock {
    let until = [clock.step_until, clock.difference_until, clock.stored_until];
    Clock {
        proven: clock.proven,
        reasons: clock_reasons(&clock),
        now: Some(clock.now.into()),
        checked_at: clock.checked_at.map(Into::into),
        unproven_since: clock.unproven_since.map(Into::into),
        proven_at: until.into_iter().flatten().max().map(Into::into),
        accepted_by: clock.accepted_by.unwrap_or_default(),
        accepted_at: clock.accepted_at.map(Into::into),
    }
}

fn message(status: farm::Status, mut warnings: Vec<String>) -> FarmStatus {
    warnings.extend(warnings_of_workstations(&status));
    for server in status.servers.iter().filter(|server| !server.live) {
        warnings.push(format!("server {} ({}) stopped without a word: is it running?", server.server_id, server.name));
    }
    FarmStatus {
        server_version: env!("CARGO_PKG_VERSION").to_owned(),
        servers: status.servers.into_iter().map(server).collect(),
        workstations_waiting: status.workstations_waiting,
        workstations_processing: status.workstations_processing,
        workstations_suspended: status.workstations_suspended,
        workstations_draining: status.workstations_draining,
        workstations_dead: status.workstations_dead,
        workstations_offline: status.workstations_offline,
        workstations_cannot_tell: status.workstations_cannot_tell,
        workstations_lost: status.workstations_lost,
        workstations_unheard: status.workstations_unheard,
        workstations_without_work: status.workstations_without_work,
        cores: status.cores,
        jobs_loading: status.jobs_loading,
        jobs_open: status.jobs_open,
        jobs_held: status.jobs_held,
        problems_waiting: status.problems_waiting,
        problems_in_progress: status.problems_in_progress,
        refused_results: status.refused_results,
        warnings,
    }
}

/// Workstations that do not work for a reason of their own.
fn warnings_of_workstations(status: &farm::Status) -> Vec<String> {
    let mut warnings = Vec::new();
    match status.workstations_cannot_tell {
        0 => {}
        1 => warnings.push(
            "1 workstation cannot tell whether a person is present, and does not work: `pcfarm workstations` shows why".to_owned(),
        ),
        several => warnings.push(format!(
            "{several} workstations cannot tell whether a person is present, and do not work: `pcfarm workstations` shows why"
        )),
    }
    match status.workstations_without_work {
        0 => {}
        1 => warnings.push(
            "1 workstation has not worked for long, though it could have: `pcfarm events --what 'workstation without work'` names it"
                .to_owned(),
        ),
        several => warnings.push(format!(
            "{several} workstations have not worked for long, though they could have: `pcfarm events --what 'workstation without \
             work'` names them"
        )),
    }
    warnings
}

fn server(server: farm::Server) -> ServerStatus {
    ServerStatus {
        server_id: server.server_id.0,
        name: server.name,
        address: server.address,
        started_at: Some(server.started_at.into()),
        heard_at: Some(server.heard_at.into()),
        live: server.live,
    }
}
