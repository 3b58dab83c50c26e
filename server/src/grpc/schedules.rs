//! Schedules for people and their programs. What makes sense is decided here, by the same pure functions that trigger;
//! what is there is decided by the database.

mod messages;

use super::status_code;
use crate::access::{Caller, Scope};
use crate::schedules::plan::{Definition, Impossible, timestamp};
use crate::traces;
use deadpool_postgres::{Object, Pool};
use messages::{merged, message, options, portable, schedule_of, trigger_message};
use pcfarm_proto::ids::{JobId, ScheduleId};
use pcfarm_proto::v1::schedule_definition::Target;
use pcfarm_proto::v1::schedules_server::Schedules;
use pcfarm_proto::v1::{
    AppliedSchedule, ApplySchedulesRequest, ApplySchedulesResponse, CreateScheduleRequest, DeleteScheduleRequest,
    DeleteScheduleResponse, ExportSchedulesRequest, ExportSchedulesResponse, ListSchedulesRequest,
    ListSchedulesResponse, NextTimesRequest, NextTimesResponse, Schedule, ScheduleDefinition, ScheduleHistoryRequest,
    ScheduleHistoryResponse, ScheduleRequest, TriggerScheduleResponse, UpdateScheduleRequest,
};
use pcfarm_sql::checkout::Queries;
use pcfarm_sql::schedules::{self, Listed, PAGE_LIMIT, State, Wanted};
use serde_json::json;
use std::collections::HashSet;
use std::time::SystemTime;
use tonic::{Request, Response, Status};

const DEFAULT_PAGE: u32 = 100;
const DEFAULT_TIMES: u32 = 10;

/// Definitions of one call to apply: far more than fit into a message with payloads of any size.
const APPLY_LIMIT: usize = 10_000;

/// The definition's fields, by which an update says what it changes.
const FIELDS: [&str; 12] = [
    "name",
    "description",
    "recurrence",
    "time_zone",
    "starts_at",
    "ends_at",
    "enabled",
    "catch_up",
    "catch_up_limit",
    "jitter_ms",
    "payload",
    "target",
];

/// Of these, those that say when a schedule comes.
const TIMES: [&str; 6] = ["recurrence", "time_zone", "starts_at", "ends_at", "enabled", "jitter_ms"];

pub struct SchedulesApi {
    pool: Pool,
}

impl SchedulesApi {
    pub fn new(pool: Pool) -> SchedulesApi {
        SchedulesApi { pool }
    }

    /// On which the caller acts, so that events say who did what.
    async fn client(&self, caller: &Caller) -> Result<Object, Status> {
        let client = self.pool.get().await.map_err(status_code::of_pool)?;
        caller.act(&client).await?;
        Ok(client)
    }

    /// Whose schedules are meant when no owner is named: the caller's, or, where nobody was asked, whom the server is for the
    /// database, as of jobs.
    async fn owner(&self, caller: &Caller, client: &impl Queries) -> Result<(String, SystemTime), Status> {
        let (now, session_user) = schedules::clock(client).await.map_err(status_code::of)?;
        Ok((caller.acting().map_or(session_user, ToOwned::to_owned), now))
    }

    async fn find(
        &self,
        caller: &Caller,
        client: &impl Queries,
        asked: Option<ScheduleRequest>,
    ) -> Result<Listed, Status> {
        let ScheduleRequest { schedule_id, name, owner } =
            asked.ok_or_else(|| Status::invalid_argument("no schedule is named"))?;
        let mut wanted = Wanted { limit: 1, ..Wanted::default() };
        let said;
        if schedule_id != 0 {
            wanted.schedule_id = Some(ScheduleId(schedule_id));
            said = schedule_id.to_string();
        } else if name.is_empty() {
            return Err(Status::invalid_argument("a schedule is named by its id or by its name"));
        } else {
            let owner = if owner.is_empty() { self.owner(caller, client).await?.0 } else { owner };
            said = format!("{name:?} of user {owner}");
            wanted.owner = Some(owner);
            wanted.name = Some(name);
        }
        let found = schedules::list(client, &wanted).await.map_err(status_code::of)?.pop();
        // Somebody else's is as one that never was.
        let found = found.filter(|found| caller.sees(&found.schedule.owner));
        found.ok_or_else(|| Status::not_found(format!("there is no schedule {said}")))
    }

    async fn by_id(&self, caller: &Caller, client: &impl Queries, schedule_id: ScheduleId) -> Result<Listed, Status> {
        self.find(caller, client, Some(ScheduleRequest { schedule_id: schedule_id.0, ..ScheduleRequest::default() }))
            .await
    }

    async fn created(&self, caller: &Caller, definition: &ScheduleDefinition) -> Result<Schedule, Status> {
        may_load(caller, definition)?;
        let client = self.client(caller).await?;
        let (owner, now) = self.owner(caller, &*client).await?;
        let id = add(&*client, &owner, definition, now).await?;
        Ok(message(self.by_id(caller, &*client, id).await?))
    }

    async fn updated(&self, caller: &Caller, asked: UpdateScheduleRequest) -> Result<Schedule, Status> {
        let UpdateScheduleRequest { schedule, version, definition, fields } = asked;
        let definition = definition.ok_or_else(|| Status::invalid_argument("no definition is given"))?;
        may_load(caller, &definition)?;
        if let Some(unknown) = fields.iter().find(|field| !FIELDS.contains(&field.as_str())) {
            let known = FIELDS.join(", ");
            return Err(Status::invalid_argument(format!("{unknown:?} is no field of a schedule: {known}")));
        }
        let fields: Vec<&str> =
            if fields.is_empty() { FIELDS.to_vec() } else { fields.iter().map(String::as_str).collect() };
        let client = self.client(caller).await?;
        let found = self.find(caller, &*client, schedule).await?;
        let id = found.schedule.schedule_id;
        change(&*client, &found, (version != 0).then_some(version), &definition, &fields).await?;
        Ok(message(self.by_id(caller, &*client, id).await?))
    }

    async fn enabled(&self, caller: &Caller, asked: ScheduleRequest, enabled: bool) -> Result<Schedule, Status> {
        let client = self.client(caller).await?;
        let found = self.find(caller, &*client, Some(asked)).await?;
        let id = found.schedule.schedule_id;
        let definition = ScheduleDefinition { enabled: Some(enabled), ..ScheduleDefinition::default() };
        change(&*client, &found, None, &definition, &["enabled"]).await?;
        Ok(message(self.by_id(caller, &*client, id).await?))
    }

    async fn listed(&self, caller: &Caller, asked: ListSchedulesRequest) -> Result<ListSchedulesResponse, Status> {
        let ListSchedulesRequest { owner, name_prefix, state, job_id, limit, after } = asked;
        let some = |text: String| (!text.is_empty()).then_some(text);
        let state = match state.as_str() {
            "" => None,
            name => Some(State::ALL.into_iter().find(|state| state.as_str() == name).ok_or_else(|| {
                Status::invalid_argument(format!(
                    "{name:?} is no state of a schedule: active, disabled, ended or broken"
                ))
            })?),
        };
        let after = match after.as_str() {
            "" => None,
            text => Some(serde_json::from_str(text).map_err(|_| {
                Status::invalid_argument("`after` is not where a page has ended: give `next` of the answer before")
            })?),
        };
        let limit = if limit == 0 { DEFAULT_PAGE } else { limit.min(PAGE_LIMIT) };
        let owner = match (caller.only_own(), some(owner)) {
            (Some(own), Some(other)) if own != other => return Ok(ListSchedulesResponse::default()),
            (Some(own), _) => Some(own.to_owned()),
            (None, asked) => asked,
        };
        let wanted = Wanted {
            owner,
            name_prefix: some(name_prefix),
            state,
            job_id: (job_id != 0).then_some(JobId(job_id)),
            after,
            limit,
            ..Wanted::default()
        };
        let client = self.client(caller).await?;
        let found = schedules::list(&*client, &wanted).await.map_err(status_code::of)?;
        let last = found.last().filter(|_| found.len() == limit as usize);
        let next = last.map(|last| json!([last.schedule.owner, last.schedule.name]).to_string()).unwrap_or_default();
        Ok(ListSchedulesResponse { schedules: found.into_iter().map(message).collect(), next })
    }

    async fn deleted(&self, caller: &Caller, asked: DeleteScheduleRequest) -> Result<DeleteScheduleResponse, Status> {
        let client = self.client(caller).await?;
        let found = self.find(caller, &*client, asked.schedule).await?;
        let version = (asked.version != 0).then_some(asked.version);
        let gone = schedules::remove(&*client, found.schedule.schedule_id, version).await.map_err(status_code::of)?;
        if gone { Ok(DeleteScheduleResponse {}) } else { Err(lost(&found)) }
    }

    async fn triggered(&self, caller: &Caller, asked: ScheduleRequest) -> Result<TriggerScheduleResponse, Status> {
        let client = self.client(caller).await?;
        let found = self.find(caller, &*client, Some(asked)).await?;
        let place = traces::current().map(|place| place.to_string());
        let triggered = schedules::trigger_now(&*client, found.schedule.schedule_id, place.as_deref()).await;
        let sequence = triggered.map_err(status_code::of)?;
        Ok(TriggerScheduleResponse { sequence })
    }

    async fn history_of(
        &self,
        caller: &Caller,
        asked: ScheduleHistoryRequest,
    ) -> Result<ScheduleHistoryResponse, Status> {
        let client = self.client(caller).await?;
        let found = self.find(caller, &*client, asked.schedule).await?;
        let limit = if asked.limit == 0 { DEFAULT_PAGE } else { asked.limit.min(PAGE_LIMIT) };
        let before = (asked.before_sequence != 0).then_some(asked.before_sequence);
        let triggers = schedules::history(&*client, found.schedule.schedule_id, before, limit).await;
        let triggers = triggers.map_err(status_code::of)?.into_iter().map(trigger_message).collect();
        Ok(ScheduleHistoryResponse { triggers })
    }

    async fn times_of(&self, caller: &Caller, asked: NextTimesRequest) -> Result<NextTimesResponse, Status> {
        let client = self.client(caller).await?;
        let (schedule, now) = match (asked.schedule, asked.definition) {
            (None, Some(definition)) => {
                let now = self.owner(caller, &*client).await?.1;
                (schedule_of(String::new(), &definition, now)?, now)
            }
            (asked, _) => {
                let found = self.find(caller, &*client, asked).await?;
                (found.schedule, found.now)
            }
        };
        let definition = Definition::of(&schedule).map_err(impossible)?;
        let count = if asked.count == 0 { DEFAULT_TIMES } else { asked.count.min(PAGE_LIMIT) };
        let times = definition.series.times(timestamp(now).map_err(impossible)?, count as usize);
        Ok(NextTimesResponse {
            times: times.into_iter().map(|time| SystemTime::from(time).into()).collect(),
            time_zone: schedule.time_zone,
            description: definition.series.recurrence.to_string(),
        })
    }

    async fn exported(
        &self,
        caller: &Caller,
        asked: ExportSchedulesRequest,
    ) -> Result<ExportSchedulesResponse, Status> {
        let client = self.client(caller).await?;
        let owner = if asked.owner.is_empty() { self.owner(caller, &*client).await?.0 } else { asked.owner };
        if !caller.sees(&owner) {
            return Err(Status::not_found(format!("user {owner} has no schedules")));
        }
        let mut all = all_of(&*client, &owner).await?;
        if !asked.names.is_empty() {
            let wanted: HashSet<&str> = asked.names.iter().map(String::as_str).collect();
            all.retain(|one| wanted.contains(one.schedule.name.as_str()));
            let there: HashSet<&str> = all.iter().map(|one| one.schedule.name.as_str()).collect();
            if let Some(missing) = asked.names.iter().find(|name| !there.contains(name.as_str())) {
                return Err(Status::not_found(format!("there is no schedule {missing:?} of user {owner}")));
            }
        }
        Ok(ExportSchedulesResponse { definitions: all.iter().map(portable).collect() })
    }

    async fn applied(&self, caller: &Caller, asked: ApplySchedulesRequest) -> Result<ApplySchedulesResponse, Status> {
        let ApplySchedulesRequest { definitions, prune, dry_run } = asked;
        let mut names = HashSet::new();
        if let Some(twice) = definitions.iter().find(|definition| !names.insert(definition.name.as_str())) {
            return Err(Status::invalid_argument(format!("schedule {:?} is there twice", twice.name)));
        }
        definitions.iter().try_for_each(|definition| may_load(caller, definition))?;
        if definitions.len() > APPLY_LIMIT {
            return Err(Status::invalid_argument(format!("more than {APPLY_LIMIT} schedules: apply them in parts")));
        }
        let mut client = self.client(caller).await?;
        let (owner, now) = self.owner(caller, &*client).await?;
        let transaction = client.transaction().await.map_err(status_code::of)?;
        let mut applied = Vec::new();
        for definition in &definitions {
            let wanted = Wanted {
                owner: Some(owner.clone()),
                name: Some(definition.name.clone()),
                limit: 1,
                ..Wanted::default()
            };
            let found = schedules::list(&transaction, &wanted).await.map_err(status_code::of)?.pop();
            let action = match found {
                None => {
                    add(&transaction, &owner, definition, now).await.map_err(|error| named(definition, error))?;
                    "created"
                }
                Some(found) => {
                    let version = change(&transaction, &found, None, definition, &FIELDS)
                        .await
                        .map_err(|error| named(definition, error))?;
                    if version == found.schedule.version { "unchanged" } else { "updated" }
                }
            };
            applied.push(AppliedSchedule { name: definition.name.clone(), action: action.to_owned() });
        }
        if prune {
            for other in all_of(&transaction, &owner).await? {
                if names.contains(other.schedule.name.as_str()) {
                    continue;
                }
                schedules::remove(&transaction, other.schedule.schedule_id, None).await.map_err(status_code::of)?;
                applied.push(AppliedSchedule { name: other.schedule.name, action: "deleted".to_owned() });
            }
        }
        let ended = if dry_run { transaction.rollback().await } else { transaction.commit().await };
        ended.map_err(status_code::of)?;
        Ok(ApplySchedulesResponse { applied })
    }
}

/// A template's loads are SQL that runs with the rights of a job type's role: an operator's to write.
fn may_load(caller: &Caller, definition: &ScheduleDefinition) -> Result<(), Status> {
    match definition.target {
        Some(Target::Template(_)) if !caller.may(Scope::Operate) => Err(Status::permission_denied(
            "a schedule whose template loads by query reads with its job type's rights: that needs scope operate",
        )),
        _ => Ok(()),
    }
}

async fn all_of(client: &impl Queries, owner: &str) -> Result<Vec<Listed>, Status> {
    let mut all: Vec<Listed> = Vec::new();
    loop {
        let after = all.last().map(|last| (last.schedule.owner.clone(), last.schedule.name.clone()));
        let wanted = Wanted { owner: Some(owner.to_owned()), after, limit: PAGE_LIMIT, ..Wanted::default() };
        let page = schedules::list(client, &wanted).await.map_err(status_code::of)?;
        let last = page.len() < PAGE_LIMIT as usize;
        all.extend(page);
        if last {
            return Ok(all);
        }
    }
}

async fn add(
    client: &impl Queries,
    owner: &str,
    definition: &ScheduleDefinition,
    now: SystemTime,
) -> Result<ScheduleId, Status> {
    check(&schedule_of(owner.to_owned(), definition, now)?, now).map_err(|error| named(definition, error))?;
    let options = options(definition, &FIELDS)?;
    let made = schedules::add(client, Some(owner), &definition.name, &definition.recurrence, &options).await;
    made.map_err(status_code::of)
}

/// Returns the version that it has then.
async fn change(
    client: &impl Queries,
    found: &Listed,
    version: Option<i64>,
    definition: &ScheduleDefinition,
    fields: &[&str],
) -> Result<i64, Status> {
    let before = &found.schedule;
    let given = schedule_of(before.owner.clone(), definition, found.now)?;
    let after = merged(before, given, fields);
    let moved = (&after.recurrence, &after.time_zone, after.starts_at, after.ends_at, after.enabled, after.jitter_ms)
        != (&before.recurrence, &before.time_zone, before.starts_at, before.ends_at, before.enabled, before.jitter_ms);
    if moved && fields.iter().any(|field| TIMES.contains(field)) {
        check(&schedules::Schedule { anchored_at: found.now, ..after }, found.now)?;
    }
    let options = options(definition, fields)?;
    let changed = schedules::change(client, before.schedule_id, version, &options).await.map_err(status_code::of)?;
    changed.ok_or_else(|| lost(found))
}

fn lost(found: &Listed) -> Status {
    Status::aborted(format!(
        "schedule {:?} has been changed meanwhile (its version was {} when this was asked): look at it again",
        found.schedule.name, found.schedule.version
    ))
}

fn check(schedule: &schedules::Schedule, now: SystemTime) -> Result<(), Status> {
    let now = timestamp(now).map_err(impossible)?;
    let definition = Definition::of(schedule).map_err(impossible)?;
    if schedule.enabled { definition.check(&schedule.recurrence, now).map_err(impossible) } else { Ok(()) }
}

fn impossible(error: Impossible) -> Status {
    Status::invalid_argument(error.to_string())
}

/// Of several definitions, which one it is about, if it does not say so.
fn named(definition: &ScheduleDefinition, error: Status) -> Status {
    if error.message().starts_with("schedule ") {
        return error;
    }
    Status::new(error.code(), format!("schedule {:?}: {}", definition.name, error.message()))
}

#[tonic::async_trait]
impl Schedules for SchedulesApi {
    async fn create(&self, request: Request<CreateScheduleRequest>) -> Result<Response<Schedule>, Status> {
        let caller = Caller::of(&request)?;
        let definition = request.into_inner().definition.unwrap_or_default();
        self.created(&caller, &definition).await.map(Response::new)
    }

    async fn get(&self, request: Request<ScheduleRequest>) -> Result<Response<Schedule>, Status> {
        let caller = Caller::of(&request)?;
        let client = self.client(&caller).await?;
        self.find(&caller, &*client, Some(request.into_inner())).await.map(message).map(Response::new)
    }

    async fn list(&self, request: Request<ListSchedulesRequest>) -> Result<Response<ListSchedulesResponse>, Status> {
        self.listed(&Caller::of(&request)?, request.into_inner()).await.map(Response::new)
    }

    async fn update(&self, request: Request<UpdateScheduleRequest>) -> Result<Response<Schedule>, Status> {
        self.updated(&Caller::of(&request)?, request.into_inner()).await.map(Response::new)
    }

    async fn enable(&self, request: Request<ScheduleRequest>) -> Result<Response<Schedule>, Status> {
        self.enabled(&Caller::of(&request)?, request.into_inner(), true).await.map(Response::new)
    }

    async fn disable(&self, request: Request<ScheduleRequest>) -> Result<Response<Schedule>, Status> {
        self.enabled(&Caller::of(&request)?, request.into_inner(), false).await.map(Response::new)
    }

    async fn delete(
        &self,
        request: Request<DeleteScheduleRequest>,
    ) -> Result<Response<DeleteScheduleResponse>, Status> {
        self.deleted(&Caller::of(&request)?, request.into_inner()).await.map(Response::new)
    }

    async fn trigger(&self, request: Request<ScheduleRequest>) -> Result<Response<TriggerScheduleResponse>, Status> {
        self.triggered(&Caller::of(&request)?, request.into_inner()).await.map(Response::new)
    }

    async fn history(
        &self,
        request: Request<ScheduleHistoryRequest>,
    ) -> Result<Response<ScheduleHistoryResponse>, Status> {
        self.history_of(&Caller::of(&request)?, request.into_inner()).await.map(Response::new)
    }

    async fn next_times(&self, request: Request<NextTimesRequest>) -> Result<Response<NextTimesResponse>, Status> {
        self.times_of(&Caller::of(&request)?, request.into_inner()).await.map(Response::new)
    }

    async fn export(
        &self,
        request: Request<ExportSchedulesRequest>,
    ) -> Result<Response<ExportSchedulesResponse>, Status> {
        self.exported(&Caller::of(&request)?, request.into_inner()).await.map(Response::new)
    }

    async fn apply(&self, request: Request<ApplySchedulesRequest>) -> Result<Response<ApplySchedulesResponse>, Status> {
        self.applied(&Caller::of(&request)?, request.into_inner()).await.map(Response::new)
    }
}
