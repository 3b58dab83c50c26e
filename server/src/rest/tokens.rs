//! Tokens of people and programs, tokens with which workstations join, and workstations that have.

use super::Api;
use super::accounts::{NewToken, lifetime, made};
use super::extract::{Document, Id, Params, PathId, PathName, Who};
use super::paging::Page;
use super::problem_details::{Answer, Refusal};
use super::shown::{Show, Time, shown};
use axum::Json as Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use pcfarm_proto::v1;
use pcfarm_proto::v1::access_service_server::AccessService;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(revoke))
        .routes(routes!(join_tokens, create_join_token))
        .routes(routes!(revoke_join_token))
        .routes(routes!(credentials))
        .routes(routes!(revoke_credential))
}

shown! {
    /// What a person or a program shows
    Token of v1::AccessToken {
        token_id: Id,
        user: String,
        name: String,
        /// submit, operate, administer, work; each of the first three includes those before it
        scopes: Vec<String>,
        created_at: Option<Time>,
        /// Null: never
        expires_at: Option<Time>,
        revoked_at: Option<Time>,
        /// A day; null: never
        last_used_on: Option<String>,
    }
    /// What lets workstations join
    JoinToken of v1::JoinTokenState {
        join_token_id: Id,
        created_by: String,
        created_at: Option<Time>,
        expires_at: Option<Time>,
        uses_left: u32,
        used: u32,
        revoked_at: Option<Time>,
    }
    /// A workstation that has a certificate
    Credential of v1::Credential {
        identity: String,
        hostname: String,
        joined_at: Option<Time>,
        issued_at: Option<Time>,
        expires_at: Option<Time>,
        revoked_at: Option<Time>,
        /// Null: it has not connected yet
        workstation_id: Option<Id>,
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// Missing: one's own, or, of an administrator, all
    user: Option<String>,
    /// Revoked and expired ones, too
    #[serde(default)]
    all: bool,
}

/// Tokens, the newest first, at most 1000
#[utoipa::path(get, path = "/api/v1/tokens", tag = "access", params(ListParams),
    responses((status = 200, body = Page<Token>)))]
async fn list(State(api): State<Api>, who: Who, Params(asked): Params<ListParams>) -> Answer<Body<Page<Token>>> {
    let asked = v1::ListTokensRequest { user: asked.user.unwrap_or_default(), all: asked.all };
    let items = Show::show(api.access.list_tokens(who.ask(asked)).await?.into_inner().tokens);
    Ok(Body(Page { items, next: None, total: None }))
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum TokenScope {
    Submit,
    Operate,
    Administer,
    Work,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct TokenForm {
    /// Missing: one's own
    user: Option<String>,
    name: String,
    /// None: those of the user's role
    #[serde(default)]
    scopes: Vec<TokenScope>,
    /// Missing: it does not expire
    #[schema(minimum = 1)]
    lifetime_seconds: Option<u32>,
}

/// Make a token
///
/// Its secret is in the answer, and nowhere else.
#[utoipa::path(post, path = "/api/v1/tokens", tag = "access", request_body = TokenForm,
    responses((status = 201, body = NewToken)))]
async fn create(State(api): State<Api>, who: Who, Document(form): Document<TokenForm>) -> Answer<Response> {
    let scope = |scope: TokenScope| match scope {
        TokenScope::Submit => "submit".to_owned(),
        TokenScope::Operate => "operate".to_owned(),
        TokenScope::Administer => "administer".to_owned(),
        TokenScope::Work => "work".to_owned(),
    };
    let asked = v1::CreateTokenRequest {
        user: form.user.unwrap_or_default(),
        name: form.name,
        scopes: form.scopes.into_iter().map(scope).collect(),
        lifetime: lifetime(form.lifetime_seconds),
    };
    made(api.access.create_token(who.ask(asked)).await?.into_inner())
}

/// Revoke a token, for good and everywhere
#[utoipa::path(delete, path = "/api/v1/tokens/{token_id}", tag = "access", params(("token_id" = Id, Path)),
    responses((status = 200, body = Token)))]
async fn revoke(State(api): State<Api>, who: Who, PathId(token_id): PathId) -> Answer<Body<Token>> {
    let revoked = api.access.revoke_token(who.ask(v1::RevokeTokenRequest { token_id })).await?.into_inner();
    Ok(Body(Token::show(revoked)))
}

/// Join tokens, the newest first, at most 1000
#[utoipa::path(get, path = "/api/v1/join-tokens", tag = "access", responses((status = 200, body = Page<JoinToken>)))]
async fn join_tokens(State(api): State<Api>, who: Who) -> Answer<Body<Page<JoinToken>>> {
    let found = api.access.list_join_tokens(who.ask(v1::ListJoinTokensRequest {})).await?.into_inner().tokens;
    Ok(Body(Page { items: Show::show(found), next: None, total: None }))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct JoinTokenForm {
    /// Missing: an hour; at most thirty days
    #[schema(minimum = 1, maximum = 2592000)]
    lifetime_seconds: Option<u32>,
    /// How many workstations it lets in; missing: one
    #[schema(minimum = 1)]
    uses: Option<u32>,
}

/// A secret, which is not shown again
#[derive(Serialize, ToSchema)]
struct NewJoinToken {
    token: JoinToken,
    secret: String,
}

/// Make a join token
#[utoipa::path(post, path = "/api/v1/join-tokens", tag = "access", request_body = JoinTokenForm,
    responses((status = 201, body = NewJoinToken)))]
async fn create_join_token(
    State(api): State<Api>,
    who: Who,
    Document(form): Document<JoinTokenForm>,
) -> Answer<Response> {
    let asked =
        v1::CreateJoinTokenRequest { lifetime: lifetime(form.lifetime_seconds), uses: form.uses.unwrap_or_default() };
    let new = api.access.create_join_token(who.ask(asked)).await?.into_inner();
    let token = new.token.ok_or_else(|| Refusal::new(StatusCode::CONFLICT, "it was removed already"))?;
    Ok((StatusCode::CREATED, Body(NewJoinToken { token: Show::show(token), secret: new.secret })).into_response())
}

/// Revoke a join token
#[utoipa::path(delete, path = "/api/v1/join-tokens/{join_token_id}", tag = "access",
    params(("join_token_id" = Id, Path)), responses((status = 200, body = JoinToken)))]
async fn revoke_join_token(State(api): State<Api>, who: Who, PathId(join_token_id): PathId) -> Answer<Body<JoinToken>> {
    let asked = v1::RevokeJoinTokenRequest { join_token_id };
    Ok(Body(JoinToken::show(api.access.revoke_join_token(who.ask(asked)).await?.into_inner())))
}

/// Workstations that have certificates, by host name
#[utoipa::path(get, path = "/api/v1/credentials", tag = "access", responses((status = 200, body = Page<Credential>)))]
async fn credentials(State(api): State<Api>, who: Who) -> Answer<Body<Page<Credential>>> {
    let found = api.access.list_credentials(who.ask(v1::ListCredentialsRequest {})).await?.into_inner().credentials;
    Ok(Body(Page { items: Show::show(found), next: None, total: None }))
}

/// Cut a workstation off, everywhere and for good
#[utoipa::path(delete, path = "/api/v1/credentials/{identity}", tag = "access", params(("identity" = String, Path)),
    responses((status = 200, body = Credential)))]
async fn revoke_credential(State(api): State<Api>, who: Who, PathName(identity): PathName) -> Answer<Body<Credential>> {
    let asked = v1::RevokeCredentialRequest { identity };
    Ok(Body(Credential::show(api.access.revoke_credential(who.ask(asked)).await?.into_inner())))
}
