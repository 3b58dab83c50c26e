//! Users, their limits and quotas, resources, job types, profiles, what is suspended and what is parked.

mod job_types;
mod profiles;
mod quotas;

use super::{status_code, time};
use crate::access::Caller;
use deadpool_postgres::{Object, Pool};
use pcfarm_proto::ids::JobId;
use pcfarm_proto::v1::queue_service_server::QueueService;
use pcfarm_proto::v1::{
    DeleteJobTypeRequest, DeleteJobTypeResponse, DeleteProfileRequest, Limits, ListJobTypesRequest,
    ListJobTypesResponse, ListProfilesRequest, ListProfilesResponse, ListQuotasRequest, ListQuotasResponse,
    ListResourcesRequest, ListResourcesResponse, ListSignalsRequest, ListSignalsResponse, ListUsersRequest,
    ListUsersResponse, ParkRequest, ParkResponse, Resource, ResourceNeed, SetJobTypeRequest, SetJobTypeResponse,
    SetLimitsRequest, SetProfileRequest, SetQuotaRequest, SetResourceRequest, SetSignalRequest, SuspendRequest,
    SuspendResponse, User, UserJobType,
};
use pcfarm_sql::json::RawJson;
use pcfarm_sql::sharing::{self, Loads};
use serde_json::{Map, Value, json};
use std::time::SystemTime;
use tonic::{Request, Response, Status};

/// What limits can be reset.
const LIMITS: [&str; 3] = ["queue_limit", "concurrency", "allocation"];

pub struct QueueApi {
    pool: Pool,
}

impl QueueApi {
    pub fn new(pool: Pool) -> QueueApi {
        QueueApi { pool }
    }

    /// On which the caller acts, so that events say who did what.
    async fn client(&self, caller: &Caller) -> Result<Object, Status> {
        let client = self.pool.get().await.map_err(status_code::of_pool)?;
        caller.act(&client).await?;
        Ok(client)
    }

    async fn limit(&self, caller: &Caller, asked: SetLimitsRequest) -> Result<Response<ListUsersResponse>, Status> {
        let options = options(&asked)?;
        let client = self.client(caller).await?;
        let SetLimitsRequest { users: names, job_type, version, .. } = asked;
        one_version(&version, names.len())?;
        let done = match (names.is_empty(), job_type.is_empty()) {
            (true, true) => sharing::set_default_limits(&client, &options, &version).await,
            (false, true) => sharing::set_users(&client, &names, &options, &version).await,
            (false, false) => sharing::set_users_of_type(&client, &names, &job_type, &options, &version).await,
            (true, false) => {
                let wanted = "limits of a job type are a user's: name users";
                return Err(Status::invalid_argument(wanted));
            }
        };
        done.map_err(status_code::of)?;
        users(caller, &client).await
    }

    async fn park_loads(&self, caller: &Caller, asked: ParkRequest) -> Result<Response<ParkResponse>, Status> {
        let ParkRequest { job_id, owner, loaded_from, loaded_before, undo } = asked;
        let loads = Loads {
            job: (job_id != 0).then_some(JobId(job_id)),
            owner: (!owner.is_empty()).then_some(owner),
            loaded_from: known(loaded_from)?,
            loaded_before: known(loaded_before)?,
        };
        let client = self.client(caller).await?;
        let problems = sharing::park(&client, &loads, !undo).await.map_err(status_code::of)?;
        Ok(Response::new(ParkResponse { problems }))
    }
}

#[tonic::async_trait]
impl QueueService for QueueApi {
    async fn list_users(&self, request: Request<ListUsersRequest>) -> Result<Response<ListUsersResponse>, Status> {
        let caller = Caller::of(&request)?;
        users(&caller, &self.client(&caller).await?).await
    }

    async fn set_limits(&self, request: Request<SetLimitsRequest>) -> Result<Response<ListUsersResponse>, Status> {
        self.limit(&Caller::of(&request)?, request.into_inner()).await
    }

    async fn list_resources(
        &self,
        request: Request<ListResourcesRequest>,
    ) -> Result<Response<ListResourcesResponse>, Status> {
        let caller = Caller::of(&request)?;
        resources(&self.client(&caller).await?).await
    }

    async fn set_resource(
        &self,
        request: Request<SetResourceRequest>,
    ) -> Result<Response<ListResourcesResponse>, Status> {
        let caller = Caller::of(&request)?;
        let SetResourceRequest { name, tokens, description, version } = request.into_inner();
        let client = self.client(&caller).await?;
        sharing::set_resource(&client, &name, tokens, &description, &version).await.map_err(status_code::of)?;
        resources(&client).await
    }

    async fn suspend(&self, request: Request<SuspendRequest>) -> Result<Response<SuspendResponse>, Status> {
        let caller = Caller::of(&request)?;
        let SuspendRequest { job_type, reason, undo } = request.into_inner();
        let job_type = (!job_type.is_empty()).then_some(job_type.as_str());
        let client = self.client(&caller).await?;
        let done = match undo {
            true => sharing::resume(&client, job_type).await,
            false => sharing::suspend(&client, job_type, &reason).await,
        };
        done.map_err(status_code::of)?;
        Ok(Response::new(SuspendResponse {}))
    }

    async fn park(&self, request: Request<ParkRequest>) -> Result<Response<ParkResponse>, Status> {
        self.park_loads(&Caller::of(&request)?, request.into_inner()).await
    }

    async fn list_profiles(
        &self,
        request: Request<ListProfilesRequest>,
    ) -> Result<Response<ListProfilesResponse>, Status> {
        let caller = Caller::of(&request)?;
        let ListProfilesRequest { job_type, at } = request.into_inner();
        profiles::list(&self.client(&caller).await?, &job_type, known(at)?).await
    }

    async fn set_profile(&self, request: Request<SetProfileRequest>) -> Result<Response<ListProfilesResponse>, Status> {
        let caller = Caller::of(&request)?;
        profiles::set(&self.client(&caller).await?, request.into_inner()).await
    }

    async fn delete_profile(
        &self,
        request: Request<DeleteProfileRequest>,
    ) -> Result<Response<ListProfilesResponse>, Status> {
        let caller = Caller::of(&request)?;
        profiles::delete(&self.client(&caller).await?, request.into_inner()).await
    }

    async fn list_signals(
        &self,
        request: Request<ListSignalsRequest>,
    ) -> Result<Response<ListSignalsResponse>, Status> {
        let caller = Caller::of(&request)?;
        profiles::signals(&self.client(&caller).await?).await
    }

    async fn set_signal(&self, request: Request<SetSignalRequest>) -> Result<Response<ListSignalsResponse>, Status> {
        let caller = Caller::of(&request)?;
        profiles::set_signal(&self.client(&caller).await?, request.into_inner()).await
    }

    async fn list_job_types(
        &self,
        request: Request<ListJobTypesRequest>,
    ) -> Result<Response<ListJobTypesResponse>, Status> {
        let caller = Caller::of(&request)?;
        job_types::list(&caller, &self.client(&caller).await?, &request.into_inner().name).await
    }

    async fn set_job_type(&self, request: Request<SetJobTypeRequest>) -> Result<Response<SetJobTypeResponse>, Status> {
        let caller = Caller::of(&request)?;
        job_types::set(&caller, &self.client(&caller).await?, request.into_inner()).await
    }

    async fn delete_job_type(
        &self,
        request: Request<DeleteJobTypeRequest>,
    ) -> Result<Response<DeleteJobTypeResponse>, Status> {
        let caller = Caller::of(&request)?;
        job_types::delete(&self.client(&caller).await?, request.into_inner()).await
    }

    async fn list_quotas(&self, request: Request<ListQuotasRequest>) -> Result<Response<ListQuotasResponse>, Status> {
        let caller = Caller::of(&request)?;
        quotas::list(&caller, &self.client(&caller).await?, request.into_inner().users).await
    }

    async fn set_quota(&self, request: Request<SetQuotaRequest>) -> Result<Response<ListQuotasResponse>, Status> {
        let caller = Caller::of(&request)?;
        quotas::set(&caller, &self.client(&caller).await?, request.into_inner()).await
    }
}

/// A version is that of one thing.
fn one_version(version: &str, users: usize) -> Result<(), Status> {
    if version.is_empty() || users <= 1 {
        return Ok(());
    }
    Err(Status::invalid_argument("a version is that of one user: name one"))
}

/// What is to be reset, as nulls.
fn only_known(reset: &[String], known: &[&str]) -> Result<Map<String, Value>, Status> {
    if let Some(unknown) = reset.iter().find(|name| !known.contains(&name.as_str())) {
        let known = known.join(", ");
        return Err(Status::invalid_argument(format!("{unknown:?} cannot be reset: {known} can")));
    }
    Ok(reset.iter().map(|name| (name.clone(), Value::Null)).collect())
}

fn known(stamp: Option<prost_types::Timestamp>) -> Result<Option<SystemTime>, Status> {
    let known = |stamp| time(stamp).ok_or_else(|| Status::invalid_argument("a time before 1970 or after 9999"));
    stamp.map(known).transpose()
}

/// As `pcfarm.set_user` takes them.
fn options(asked: &SetLimitsRequest) -> Result<RawJson, Status> {
    let Limits { queue_limit, concurrency, allocation } = asked.limits.unwrap_or_default();
    let mut options = only_known(&asked.reset, &LIMITS)?;
    for (name, value) in LIMITS.iter().zip([queue_limit, concurrency, allocation]) {
        value.map(|value| options.insert((*name).to_owned(), json!(value)));
    }
    asked.prohibited.map(|prohibited| options.insert("prohibited".to_owned(), json!(prohibited)));
    if options.is_empty() {
        return Err(Status::invalid_argument("nothing says what is to change"));
    }
    Ok(RawJson(Value::Object(options).to_string().into()))
}

async fn users(caller: &Caller, client: &Object) -> Result<Response<ListUsersResponse>, Status> {
    let (defaults, version) = sharing::default_limits(client).await.map_err(status_code::of)?;
    let users = sharing::users(client).await.map_err(status_code::of)?;
    Ok(Response::new(ListUsersResponse {
        defaults: Some(limits(defaults)),
        users: users.into_iter().filter(|user| caller.sees(&user.name)).map(user).collect(),
        version,
    }))
}

fn user(user: sharing::User) -> User {
    User {
        name: user.name,
        limits: Some(limits(user.limits)),
        prohibited: user.prohibited,
        waiting: user.waiting,
        in_progress: user.in_progress,
        open_jobs: user.open_jobs,
        job_types: user
            .job_types
            .into_iter()
            .map(|(job_type, own)| UserJobType { job_type, limits: Some(limits(own)) })
            .collect(),
        version: user.version,
    }
}

fn limits(limits: sharing::Limits) -> Limits {
    let sharing::Limits { queue_limit, concurrency, allocation } = limits;
    Limits { queue_limit, concurrency, allocation }
}

async fn resources(client: &Object) -> Result<Response<ListResourcesResponse>, Status> {
    let resources = sharing::resources(client).await.map_err(status_code::of)?;
    Ok(Response::new(ListResourcesResponse {
        resources: resources
            .into_iter()
            .map(|resource| Resource {
                name: resource.name,
                tokens: resource.tokens,
                in_use: resource.in_use,
                description: resource.description,
                needs: resource.needs.into_iter().map(|(job_type, tokens)| ResourceNeed { job_type, tokens }).collect(),
                version: resource.version,
            })
            .collect(),
    }))
}
