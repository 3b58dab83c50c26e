//! Workstations for people: listed, drained, noted and forgotten.

use super::status_code;
use crate::access::Caller;
use crate::session::Chosen;
use deadpool_postgres::{Object, Pool};
use pcfarm_proto::ids::{JobId, WorkstationId};
use pcfarm_proto::v1;
use pcfarm_proto::v1::workstation_service_server::WorkstationService;
use pcfarm_proto::v1::{
    ChangedWorkstations, DrainWorkstationsRequest, Drained, Evidence, ForgetWorkstationsRequest,
    ForgetWorkstationsResponse, ForgottenWorkstation, GetSelectionRequest, ListSlotsRequest, ListSlotsResponse,
    ListWorkstationsRequest, ListWorkstationsResponse, NoteWorkstationsRequest, Quarantine, Selection,
    SetSelectionRequest, SetSelectionResponse, SetSlotRequest, SetSlotResponse, Slot, Workstation, WorkstationCheckout,
    WorkstationSpeed, WorkstationState,
};
use pcfarm_sql::json::RawJson;
use pcfarm_sql::{access, farm, fleet, presence};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::time::Duration;
use tonic::{Request, Response, Status};

const DEFAULT_PAGE: u32 = 100;

/// Workstations in one call: what is told of each of them fits into the answer.
const AT_ONCE: usize = 1_000;

pub struct WorkstationsApi {
    pool: Pool,
}

impl WorkstationsApi {
    pub fn new(pool: Pool) -> WorkstationsApi {
        WorkstationsApi { pool }
    }

    async fn list(
        &self,
        caller: &Caller,
        asked: ListWorkstationsRequest,
    ) -> Result<Response<ListWorkstationsResponse>, Status> {
        let limit = if asked.limit == 0 { DEFAULT_PAGE } else { asked.limit };
        let after = WorkstationId(asked.after_workstation_id);
        let client = self.pool.get().await.map_err(status_code::of_pool)?;
        let mut found = farm::workstations(&client, asked.all, after, limit).await.map_err(status_code::of)?;
        hide_from(caller, &client, &mut found).await?;
        Ok(Response::new(ListWorkstationsResponse { workstations: found.into_iter().map(message).collect() }))
    }

    /// On which the caller acts, so that events say who did what.
    async fn client(&self, caller: &Caller) -> Result<Object, Status> {
        let client = self.pool.get().await.map_err(status_code::of_pool)?;
        caller.act(&client).await?;
        Ok(client)
    }

    async fn select(
        &self,
        caller: &Caller,
        asked: SetSelectionRequest,
    ) -> Result<Response<SetSelectionResponse>, Status> {
        let lists = [
            ("required", asked.required),
            ("excluded", asked.excluded),
            ("preferred", asked.preferred),
            ("job_types", asked.job_types),
            ("labels", asked.labels),
        ];
        let mut options: Map<String, Value> =
            lists.into_iter().filter_map(|(name, list)| Some((name.to_owned(), list?.names.into()))).collect();
        if let Some(bytes) = asked.largest_problem {
            options.insert("largest_problem".to_owned(), if bytes == 0 { Value::Null } else { bytes.into() });
        }
        if asked.hostnames.is_empty() || options.is_empty() {
            return Err(Status::invalid_argument("name workstations, and what they may take"));
        }
        if asked.hostnames.len() > 1 && !asked.version.is_empty() {
            return Err(Status::invalid_argument("a version is that of one workstation: name one"));
        }
        let options = RawJson(Value::Object(options).to_string().into());
        let client = self.client(caller).await?;
        presence::set_selection(&client, &asked.hostnames, &options, &asked.version).await.map_err(status_code::of)?;
        Ok(Response::new(SetSelectionResponse {}))
    }

    async fn selection(&self, hostname: String) -> Result<Response<Selection>, Status> {
        let client = self.pool.get().await.map_err(status_code::of_pool)?;
        let (selection, version) = presence::selection(&client, &hostname).await.map_err(status_code::of)?;
        let Chosen { required, excluded, preferred, job_types, labels, largest_problem } =
            serde_json::from_slice(&selection.0).map_err(|error| Status::internal(error.to_string()))?;
        let [required, excluded, preferred, job_types, labels] =
            [required, excluded, preferred, job_types, labels].map(|names| names.into_iter().collect());
        let largest_problem = largest_problem.unwrap_or_default().cast_signed();
        let found = Selection { hostname, required, excluded, preferred, job_types, labels, largest_problem, version };
        Ok(Response::new(found))
    }

    async fn set_presence(
        &self,
        caller: &Caller,
        asked: v1::SetPresenceRequest,
    ) -> Result<Response<v1::SetPresenceResponse>, Status> {
        let settings: Map<String, Value> = serde_json::from_slice(&asked.settings)
            .map_err(|error| Status::invalid_argument(format!("settings are a JSON object: {error}")))?;
        if asked.hostnames.is_empty() || settings.is_empty() {
            return Err(Status::invalid_argument("name workstations, and what their agents are to go by"));
        }
        if asked.hostnames.len() > 1 && !asked.version.is_empty() {
            return Err(Status::invalid_argument("a version is that of one workstation: name one"));
        }
        let settings = RawJson(Value::Object(settings).to_string().into());
        let client = self.client(caller).await?;
        presence::set_presence(&client, &asked.hostnames, &settings, &asked.version).await.map_err(status_code::of)?;
        Ok(Response::new(v1::SetPresenceResponse {}))
    }

    async fn presence(&self, hostname: String) -> Result<Response<v1::WantedPresence>, Status> {
        let client = self.pool.get().await.map_err(status_code::of_pool)?;
        let (wanted, version) = presence::wanted(&client, &hostname).await.map_err(status_code::of)?;
        Ok(Response::new(v1::WantedPresence { hostname, settings: wanted.0, version }))
    }

    async fn set_slot(&self, caller: &Caller, asked: SetSlotRequest) -> Result<Response<SetSlotResponse>, Status> {
        let SetSlotRequest { hostnames, name, running } = asked;
        if hostnames.is_empty() {
            return Err(Status::invalid_argument("name workstations"));
        }
        let client = self.client(caller).await?;
        presence::set_slot(&client, &hostnames, &name, running).await.map_err(status_code::of)?;
        Ok(Response::new(SetSlotResponse {}))
    }

    async fn slots(&self) -> Result<Response<ListSlotsResponse>, Status> {
        let client = self.pool.get().await.map_err(status_code::of_pool)?;
        let slots = presence::slots(&client).await.map_err(status_code::of)?;
        Ok(Response::new(ListSlotsResponse { slots: slots.into_iter().map(slot).collect() }))
    }

    async fn drain(
        &self,
        caller: &Caller,
        asked: DrainWorkstationsRequest,
    ) -> Result<Response<ChangedWorkstations>, Status> {
        let ids = named(&asked.workstation_ids)?;
        let client = self.client(caller).await?;
        let done = if asked.undo {
            fleet::undrain(&client, &ids, asked.release).await
        } else {
            let deadline = asked.deadline.map(Duration::try_from).transpose();
            let deadline = deadline.map_err(|_| Status::invalid_argument("a deadline is a time from now on"))?;
            fleet::drain(&client, &ids, &fleet::Drain { why: asked.reason, deadline }).await
        };
        changed(&client, &ids, done).await
    }

    async fn note(
        &self,
        caller: &Caller,
        asked: NoteWorkstationsRequest,
    ) -> Result<Response<ChangedWorkstations>, Status> {
        let ids = named(&asked.workstation_ids)?;
        let client = self.client(caller).await?;
        let done = fleet::note(&client, &ids, &asked.note).await;
        changed(&client, &ids, done).await
    }

    async fn wake(
        &self,
        caller: &Caller,
        asked: v1::WakeWorkstationsRequest,
    ) -> Result<Response<ChangedWorkstations>, Status> {
        let ids = named(&asked.workstation_ids)?;
        let client = self.client(caller).await?;
        let done = fleet::wake(&client, &ids).await.map(Ok);
        changed(&client, &ids, done).await
    }

    async fn forget(
        &self,
        caller: &Caller,
        asked: ForgetWorkstationsRequest,
    ) -> Result<Response<ForgetWorkstationsResponse>, Status> {
        let ids = named(&asked.workstation_ids)?;
        let client = self.client(caller).await?;
        let forgotten = fleet::forget(&client, &ids, asked.force).await.map_err(status_code::of)?;
        let workstations = forgotten
            .into_iter()
            .map(|(id, hostname)| ForgottenWorkstation { workstation_id: id.0, hostname })
            .collect();
        Ok(Response::new(ForgetWorkstationsResponse { workstations }))
    }
}

fn named(ids: &[i64]) -> Result<Vec<WorkstationId>, Status> {
    match ids.len() {
        0 => Err(Status::invalid_argument("name workstations")),
        1..=AT_ONCE => Ok(ids.iter().map(|&id| WorkstationId(id)).collect()),
        _ => Err(Status::invalid_argument(format!("name at most {AT_ONCE} workstations at once"))),
    }
}

/// What workstations hold of others, and how that failed, is nobody else's business; that they work is.
pub async fn hide_from(caller: &Caller, client: &Object, found: &mut [farm::Workstation]) -> Result<(), Status> {
    if caller.only_own().is_none() {
        return Ok(());
    }
    let evidence =
        |one: &farm::Workstation| one.quarantine.iter().flat_map(|q| &q.evidence).map(|e| JobId(e.job_id)).collect();
    let jobs: Vec<_> = found
        .iter()
        .flat_map(|one| one.holds.iter().map(|held| held.job_id).chain::<Vec<JobId>>(evidence(one)))
        .collect();
    let owners = access::owners(client, &jobs).await.map_err(status_code::of)?;
    let sees = |job: JobId| owners.get(&job).is_some_and(|owner| caller.sees(owner));
    for one in found {
        one.holds.retain(|held| sees(held.job_id));
        if let Some(quarantine) = &mut one.quarantine {
            quarantine.evidence.retain(|evidence| sees(JobId(evidence.job_id)));
        }
    }
    Ok(())
}

/// What has become of them.
async fn changed(
    client: &Object,
    ids: &[WorkstationId],
    done: Result<Result<(), fleet::Unknown>, tokio_postgres::Error>,
) -> Result<Response<ChangedWorkstations>, Status> {
    if let Err(fleet::Unknown(unknown)) = done.map_err(status_code::of)? {
        let unknown: Vec<String> = unknown.iter().map(ToString::to_string).collect();
        return Err(Status::not_found(format!("there is no workstation {}", unknown.join(", "))));
    }
    let found = farm::workstations_of(client, ids).await.map_err(status_code::of)?;
    Ok(Response::new(ChangedWorkstations { workstations: found.into_iter().map(message).collect() }))
}

#[tonic::async_trait]
impl WorkstationService for WorkstationsApi {
    async fn list_workstations(
        &self,
        request: Request<ListWorkstationsRequest>,
    ) -> Result<Response<ListWorkstationsResponse>, Status> {
        self.list(&Caller::of(&request)?, request.into_inner()).await
    }

    async fn drain_workstations(
        &self,
        request: Request<DrainWorkstationsRequest>,
    ) -> Result<Response<ChangedWorkstations>, Status> {
        self.drain(&Caller::of(&request)?, request.into_inner()).await
    }

    async fn note_workstations(
        &self,
        request: Request<NoteWorkstationsRequest>,
    ) -> Result<Response<ChangedWorkstations>, Status> {
        self.note(&Caller::of(&request)?, request.into_inner()).await
    }

    async fn forget_workstations(
        &self,
        request: Request<ForgetWorkstationsRequest>,
    ) -> Result<Response<ForgetWorkstationsResponse>, Status> {
        self.forget(&Caller::of(&request)?, request.into_inner()).await
    }

    async fn get_selection(&self, request: Request<GetSelectionRequest>) -> Result<Response<Selection>, Status> {
        self.selection(request.into_inner().hostname).await
    }

    async fn set_selection(
        &self,
        request: Request<SetSelectionRequest>,
    ) -> Result<Response<SetSelectionResponse>, Status> {
        self.select(&Caller::of(&request)?, request.into_inner()).await
    }

    async fn wake_workstations(
        &self,
        request: Request<v1::WakeWorkstationsRequest>,
    ) -> Result<Response<ChangedWorkstations>, Status> {
        self.wake(&Caller::of(&request)?, request.into_inner()).await
    }

    async fn get_presence(
        &self,
        request: Request<v1::GetPresenceRequest>,
    ) -> Result<Response<v1::WantedPresence>, Status> {
        self.presence(request.into_inner().hostname).await
    }

    async fn set_presence(
        &self,
        request: Request<v1::SetPresenceRequest>,
    ) -> Result<Response<v1::SetPresenceResponse>, Status> {
        WorkstationsApi::set_presence(self, &Caller::of(&request)?, request.into_inner()).await
    }

    async fn set_slot(&self, request: Request<SetSlotRequest>) -> Result<Response<SetSlotResponse>, Status> {
        WorkstationsApi::set_slot(self, &Caller::of(&request)?, request.into_inner()).await
    }

    async fn list_slots(&self, _: Request<ListSlotsRequest>) -> Result<Response<ListSlotsResponse>, Status> {
        self.slots().await
    }
}

pub(super) fn not_found(id: WorkstationId) -> Status {
    Status::not_found(format!("there is no workstation {id}"))
}

fn message(one: farm::Workstation) -> Workstation {
    Workstation {
        workstation_id: one.workstation_id.0,
        hostname: one.hostname,
        state: state(one.state).into(),
        since: Some(one.since.into()),
        reason: one.reason,
        cores: u32::try_from(one.cores).unwrap_or(0),
        memory_bytes: u64::try_from(one.memory_bytes).unwrap_or(0),
        system: one.system,
        agent_version: one.agent_version,
        controllers: one.controllers,
        labels: one.labels,
        system_name: one.system_name,
        arch: one.arch,
        gpus: one.gpus,
        programs: one.programs,
        selection: one.selection.unwrap_or_default(),
        holds: one.holds.into_iter().map(held).collect(),
        last_heard: one.last_heard.map(Into::into),
        server: one.server.unwrap_or_default(),
        idle_source: one.signs.idle_source,
        power: one.signs.power,
        speed: one.speed.map(speed),
        drained: one.drained.map(drained),
        quarantine: one.quarantine.map(quarantine),
        note: one.note,
        yields: one.signs.yields.map(yields),
        presence: one.signs.settings.map(|settings| presence_settings(&settings)).unwrap_or_default(),
        presence_wanted: one.presence_wanted.unwrap_or_default().0,
        asleep: one.asleep,
        can_be_woken: one.can_be_woken,
        woken: one.woken_at.map(Into::into),
        cannot_tell: one.cannot_tell,
        worked: one.worked_at.map(Into::into),
        idle_days: one.idle_days.unsigned_abs(),
    }
}

/// As [`super::agent`] has written them.
fn presence_settings(settings: &RawJson) -> Vec<v1::PresenceSetting> {
    let settings: Vec<BTreeMap<String, String>> = serde_json::from_slice(&settings.0).unwrap_or_default();
    let setting = |mut one: BTreeMap<String, String>| {
        let mut take = |name: &str| one.remove(name).unwrap_or_default();
        v1::PresenceSetting { name: take("name"), value: take("value"), by: take("by"), refused: take("refused") }
    };
    settings.into_iter().map(setting).collect()
}

fn yields(yields: presence::Yields) -> v1::Yields {
    v1::Yields {
        p50_ms: u64::try_from(yields.p50_ms).unwrap_or(0),
        p99_ms: u64::try_from(yields.p99_ms).unwrap_or(0),
        count: u32::try_from(yields.count).unwrap_or(0),
    }
}

fn speed(speed: farm::Speed) -> WorkstationSpeed {
    let farm::Speed { job_type, problems_per_second, measured_at } = speed;
    WorkstationSpeed { job_type, problems_per_second, measured_at: Some(measured_at.into()) }
}

fn quarantine(quarantine: farm::Quarantine) -> Quarantine {
    let farm::Quarantine { job_type, problems, evidence } = quarantine;
    let evidence = evidence
        .into_iter()
        .map(|farm::Evidence { job_id, problem_id, message, solved_on }| Evidence {
            job_id,
            problem_id,
            message,
            solved_on,
        })
        .collect();
    Quarantine { job_type, problems, evidence }
}

fn drained(drained: farm::Drained) -> Drained {
    let farm::Drained { by, since, why, deadline } = drained;
    Drained { by, since: Some(since.into()), why, deadline: deadline.map(Into::into) }
}

fn slot(slot: presence::Slot) -> Slot {
    let presence::Slot { hostname, name, started_at, state, selection } = slot;
    let (state, selection) = (state.unwrap_or_default(), selection.unwrap_or_default());
    Slot { hostname, name, started: Some(started_at.into()), state, selection }
}

fn state(state: farm::WorkstationState) -> WorkstationState {
    match state {
        farm::WorkstationState::Waiting => WorkstationState::Waiting,
        farm::WorkstationState::Processing => WorkstationState::Processing,
        farm::WorkstationState::Suspended => WorkstationState::Suspended,
        farm::WorkstationState::Draining => WorkstationState::Draining,
        farm::WorkstationState::Lost => WorkstationState::Lost,
        farm::WorkstationState::Offline => WorkstationState::Offline,
        farm::WorkstationState::Dead => WorkstationState::Dead,
    }
}

fn held(held: farm::Held) -> WorkstationCheckout {
    WorkstationCheckout {
        checkout_id: held.checkout_id.0,
        job_id: held.job_id.0,
        job_name: held.job_name,
        from_order: held.from_order,
        to_order: held.to_order,
        problems: held.problems,
        since: Some(held.since.into()),
    }
}
