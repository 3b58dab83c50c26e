//! Accounts: who may come, and as what. Login and registration are here, too.

use super::Api;
use super::extract::{Document, Params, PathName, SomeVersion, Who};
use super::paging::{self, Page};
use super::problem_details::{Answer, Refusal};
use super::shown::{Show, Time, shown, tagged};
use super::tokens::Token;
use super::users::PageParams;
use axum::Json as Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use pcfarm_proto::v1;
use pcfarm_proto::v1::access_service_server::AccessService;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

const CURSOR: &str = "accounts";

pub fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(login))
        .routes(routes!(register))
        .routes(routes!(who_am_i))
        .routes(routes!(list, create))
        .routes(routes!(show, set))
        .routes(routes!(set_password))
}

/// A secret, which is not shown again
#[derive(Debug, Serialize, ToSchema)]
pub struct NewToken {
    token: Token,
    /// Send it as `Authorization: Bearer SECRET`
    secret: String,
}

pub fn made(new: v1::NewToken) -> Answer<Response> {
    let token = new.token.ok_or_else(|| Refusal::new(StatusCode::CONFLICT, "it was removed already"))?;
    Ok((StatusCode::CREATED, Body(NewToken { token: Show::show(token), secret: new.secret })).into_response())
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct LoginForm {
    user: String,
    password: String,
    /// What the token is called in lists
    token_name: Option<String>,
    /// Missing: thirty days; at most a year
    #[schema(minimum = 1, maximum = 31536000)]
    lifetime_seconds: Option<u32>,
}

pub fn lifetime(seconds: Option<u32>) -> Option<prost_types::Duration> {
    seconds.map(|seconds| prost_types::Duration { seconds: seconds.into(), nanos: 0 })
}

/// Get a token for a name and a password
#[utoipa::path(post, path = "/api/v1/login", tag = "access", request_body = LoginForm,
    responses((status = 201, body = NewToken)))]
async fn login(State(api): State<Api>, who: Who, Document(form): Document<LoginForm>) -> Answer<Response> {
    let asked = v1::LoginRequest {
        user: form.user,
        password: form.password,
        token_name: form.token_name.unwrap_or_default(),
        lifetime: lifetime(form.lifetime_seconds),
    };
    made(api.access.login(who.ask(asked)).await?.into_inner())
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RegistrationForm {
    user: String,
    password: String,
}

/// Make an account of one's own, where the server lets people have that
#[utoipa::path(post, path = "/api/v1/register", tag = "access", request_body = RegistrationForm,
    responses((status = 201, body = NewToken)))]
async fn register(State(api): State<Api>, who: Who, Document(form): Document<RegistrationForm>) -> Answer<Response> {
    let RegistrationForm { user, password } = form;
    made(api.access.register(who.ask(v1::RegisterRequest { user, password })).await?.into_inner())
}

shown! {
    /// Who the caller is taken for, and what it may do
    WhoAmI of v1::WhoAmIResponse {
        /// Null: nobody was asked
        user: Option<String>,
        scopes: Vec<String>,
        /// token, workstation or anonymous
        kind: String,
    }
    Account of v1::Account {
        user: String,
        /// user, operator or administrator
        role: String,
        has_password: bool,
        created_at: Option<Time>,
        disabled_at: Option<Time>,
        /// That hold
        tokens: i64,
    }
}

/// Who am I?
#[utoipa::path(get, path = "/api/v1/whoami", tag = "access", responses((status = 200, body = WhoAmI)))]
async fn who_am_i(State(api): State<Api>, who: Who) -> Answer<Body<WhoAmI>> {
    let found = api.access.who_am_i(who.ask(v1::WhoAmIRequest {})).await?.into_inner();
    Ok(Body(WhoAmI::show(found)))
}

/// Accounts, by name
#[utoipa::path(get, path = "/api/v1/accounts", tag = "access", params(PageParams),
    responses((status = 200, body = Page<Account>)))]
async fn list(State(api): State<Api>, who: Who, Params(asked): Params<PageParams>) -> Answer<Body<Page<Account>>> {
    let after = paging::place(CURSOR, asked.cursor.as_deref())?;
    let found = api.access.list_accounts(who.ask(v1::ListAccountsRequest {})).await?.into_inner().accounts;
    let mut accounts: Vec<Account> = Show::show(found);
    accounts.sort_by(|a, b| a.user.cmp(&b.user));
    let limit = asked.limit.unwrap_or_default().0;
    Ok(Body(Page::part(accounts, after.as_deref(), limit, CURSOR, |account| account.user.clone())))
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum AccountRole {
    User,
    Operator,
    Administrator,
}

fn role(role: Option<AccountRole>) -> String {
    match role {
        None => "",
        Some(AccountRole::User) => "user",
        Some(AccountRole::Operator) => "operator",
        Some(AccountRole::Administrator) => "administrator",
    }
    .to_owned()
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewAccount {
    user: String,
    /// Missing: user
    role: Option<AccountRole>,
    /// Missing: it has tokens alone
    password: Option<String>,
}

/// Make an account
#[utoipa::path(post, path = "/api/v1/accounts", tag = "access", request_body = NewAccount,
    responses((status = 201, body = Account)))]
async fn create(State(api): State<Api>, who: Who, Document(new): Document<NewAccount>) -> Answer<Response> {
    let asked =
        v1::CreateAccountRequest { user: new.user, role: role(new.role), password: new.password.unwrap_or_default() };
    let account = api.access.create_account(who.ask(asked)).await?.into_inner();
    Ok((StatusCode::CREATED, with_tag(account)).into_response())
}

fn with_tag(account: v1::Account) -> Response {
    let version = account.version.clone();
    tagged(Account::show(account), &version)
}

/// One account
#[utoipa::path(get, path = "/api/v1/accounts/{name}", tag = "access", params(("name" = String, Path)),
    responses((status = 200, body = Account, headers(("ETag" = String)))))]
async fn show(State(api): State<Api>, who: Who, PathName(name): PathName) -> Answer<Response> {
    let found = api.access.list_accounts(who.ask(v1::ListAccountsRequest {})).await?.into_inner().accounts;
    let account = found.into_iter().find(|account| account.user == name);
    account.map(with_tag).ok_or_else(|| Refusal::not_found(format!("there is no account {name:?}")))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct AccountChange {
    role: Option<AccountRole>,
    /// Nobody gets in with its password or its tokens
    disabled: Option<bool>,
}

/// Change an account
#[utoipa::path(patch, path = "/api/v1/accounts/{name}", tag = "access",
    params(("name" = String, Path), ("If-Match" = Option<String>, Header, description = "The ETag of what was read")),
    request_body = AccountChange, responses((status = 200, body = Account)))]
async fn set(
    State(api): State<Api>,
    who: Who,
    PathName(user): PathName,
    SomeVersion(version): SomeVersion,
    Document(change): Document<AccountChange>,
) -> Answer<Response> {
    let asked = v1::SetAccountRequest { user, role: role(change.role), disabled: change.disabled, version };
    Ok(with_tag(api.access.set_account(who.ask(asked)).await?.into_inner()))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewPassword {
    /// Of one's own account, if it has one
    old_password: Option<String>,
    /// Missing, from an administrator: none any more
    new_password: Option<String>,
}

/// Set a password: one's own, or, as an administrator, anybody's
#[utoipa::path(put, path = "/api/v1/accounts/{name}/password", tag = "access", params(("name" = String, Path)),
    request_body = NewPassword, responses((status = 204)))]
async fn set_password(
    State(api): State<Api>,
    who: Who,
    PathName(user): PathName,
    Document(new): Document<NewPassword>,
) -> Answer<StatusCode> {
    let asked = v1::SetPasswordRequest {
        user,
        old_password: new.old_password.unwrap_or_default(),
        new_password: new.new_password.unwrap_or_default(),
    };
    api.access.set_password(who.ask(asked)).await?;
    Ok(StatusCode::NO_CONTENT)
}
