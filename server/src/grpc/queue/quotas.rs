//! What users may load in a day or a month, as messages.

use super::super::{about_field, status_code};
use super::{one_version, only_known};
use crate::access::Caller;
use deadpool_postgres::Object;
use pcfarm_proto::v1::{ListQuotasResponse, Quota, SetQuotaRequest, UserQuotas};
use pcfarm_sql::json::RawJson;
use pcfarm_sql::usage;
use serde_json::{Map, Value, json};
use tonic::{Response, Status};

/// What can be reset.
const RESET: [&str; 2] = ["problems", "cpu_seconds"];

/// A user's name has no more bytes in the database.
const NAME_LIMIT: usize = 63;

/// Of users whom the caller sees: others are as if they were not there.
pub async fn list(
    caller: &Caller,
    client: &Object,
    users: Vec<String>,
) -> Result<Response<ListQuotasResponse>, Status> {
    if let Some(unseen) = users.iter().find(|user| !caller.sees(user) || !is_name(user)) {
        return Err(Status::not_found(format!("there is no user {unseen:?}")));
    }
    let asked = (!users.is_empty()).then_some(users.as_slice());
    let found = usage::quotas(client, asked).await.map_err(status_code::of)?;
    let message = |of: usage::UserQuotas| UserQuotas {
        user: of.user,
        quotas: of.quotas.into_iter().map(quota).collect(),
        version: of.version,
    };
    let users = found.into_iter().filter(|of| caller.sees(&of.user)).map(message).collect();
    Ok(Response::new(ListQuotasResponse { users }))
}

pub async fn set(
    caller: &Caller,
    client: &Object,
    asked: SetQuotaRequest,
) -> Result<Response<ListQuotasResponse>, Status> {
    let options = options(&asked)?;
    let SetQuotaRequest { users, period, version, .. } = asked;
    if users.is_empty() {
        return Err(Status::invalid_argument("whose quota is it? Name users"));
    }
    if let Some(wrong) = users.iter().find(|user| !is_name(user)) {
        return Err(Status::not_found(format!("a user's name has from 1 to {NAME_LIMIT} bytes, unlike {wrong:?}")));
    }
    one_version(&version, users.len())?;
    usage::set_quotas(client, &users, &period, &options, &version).await.map_err(status_code::of)?;
    list(caller, client, users).await
}

fn is_name(user: &str) -> bool {
    (1..=NAME_LIMIT).contains(&user.len())
}

/// As `pcfarm.set_quotas` takes them.
fn options(asked: &SetQuotaRequest) -> Result<RawJson, Status> {
    let mut options: Map<String, Value> = only_known(&asked.reset, &RESET)?;
    asked.problems.map(|most| options.insert("problems".to_owned(), json!(most)));
    match asked.cpu_seconds {
        Some(most) if most.is_finite() => drop(options.insert("cpu_seconds".to_owned(), json!(most))),
        Some(_) => return Err(about_field("cpu_seconds", "a number of seconds is wanted".to_owned())),
        None => {}
    }
    if options.is_empty() {
        return Err(Status::invalid_argument("nothing says what is to change"));
    }
    Ok(RawJson(Value::Object(options).to_string().into()))
}

fn quota(of: usage::Quota) -> Quota {
    let usage::Quota { period, problems, cpu_seconds, used } = of;
    Quota { period, problems, cpu_seconds, used }
}
