//! Accounts, tokens, join tokens and credentials, for people. A secret is in one answer, and nowhere else.

use super::status_code;
use crate::access::password::{self, Passwords};
use crate::access::{Caller, Kind, Peer, Refusal, Role, Scope, Scopes};
use crate::farm::Farm;
use deadpool_postgres::Object;
use pcfarm_proto::secrets::{JoinToken, SECRET_BYTES, Token};
use pcfarm_proto::v1::access_service_server::AccessService;
use pcfarm_proto::v1::{
    AccessToken, Account, CreateAccountRequest, CreateJoinTokenRequest, CreateTokenRequest, Credential, JoinTokenState,
    ListAccountsRequest, ListAccountsResponse, ListCredentialsRequest, ListCredentialsResponse, ListJoinTokensRequest,
    ListJoinTokensResponse, ListTokensRequest, ListTokensResponse, LoginRequest, NewJoinToken, NewToken,
    RegisterRequest, RevokeCredentialRequest, RevokeJoinTokenRequest, RevokeTokenRequest, SetAccountRequest,
    SetPasswordRequest, SetPasswordResponse, WhoAmIRequest, WhoAmIResponse,
};
use pcfarm_sql::access::{self, FreshToken};
use rand::RngExt;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::Duration;
use tonic::{Request, Response, Status};
use tracing::{error, info};
use uuid::Uuid;

const DAY: Duration = Duration::from_secs(24 * 3600);
const LOGIN_LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);
const LOGIN_LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
/// As long as a certificate of an authority: whoever wants one that does not expire says no lifetime.
const TOKEN_LONGEST: Duration = Duration::from_secs(10 * 366 * 24 * 3600);
const JOIN_LIFETIME: Duration = Duration::from_secs(3600);
const JOIN_LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);
const JOIN_USES: u32 = 10_000;
const NAME_LENGTH: usize = 100;

pub struct AccessApi {
    farm: Arc<Farm>,
    passwords: Passwords,
}

impl AccessApi {
    pub fn new(farm: Arc<Farm>) -> AccessApi {
        AccessApi { farm, passwords: Passwords::default() }
    }

    /// On which the caller acts, so that events say who did what.
    async fn client(&self, caller: &Caller) -> Result<Object, Status> {
        let client = self.farm.pool.get().await.map_err(status_code::of_pool)?;
        caller.act(&client).await?;
        Ok(client)
    }

    async fn logged_in(&self, peer: Peer, asked: LoginRequest) -> Result<Response<NewToken>, Status> {
        let LoginRequest { user, password, token_name, lifetime } = asked;
        let lifetime = bounded(lifetime, LOGIN_LONGEST)?.unwrap_or(LOGIN_LIFETIME);
        let name = if token_name.is_empty() { "login".to_owned() } else { named(token_name)? };
        let role = self.known(peer, &user, password).await?;
        let client = self.farm.pool.get().await.map_err(status_code::of_pool)?;
        let made = make(&client, &By::login(&user, lifetime), &name, role.scopes()).await?;
        info!(user, token_id = made.token.as_ref().map(|token| token.token_id), "logged in");
        Ok(Response::new(made))
    }

    /// Whose name and password these are, or who it is that has to wait before the next guess.
    async fn known(&self, peer: Peer, user: &str, password: String) -> Result<Role, Status> {
        let name = text(user)?;
        self.farm.access.brake().check(Some(name), peer.address)?;
        let client = self.farm.pool.get().await.map_err(status_code::of_pool)?;
        let account = access::account(&client, name).await.map_err(status_code::of)?;
        drop(client); // not kept while others' passwords are compared
        let (role, hash, disabled) =
            account.map_or((None, None, false), |a| (Role::from_name(&a.role), a.password_hash, a.disabled));
        // Many may have been asked before the first was found wrong.
        let may = || self.farm.access.brake().check(Some(name), peer.address);
        let is_right = self.passwords.is(password, hash, may).await.map_err(internal)??;
        match role.filter(|_| is_right && !disabled) {
            Some(role) => {
                self.farm.access.brake().succeeded(name);
                Ok(role)
            }
            None => {
                self.farm.access.brake().failed(Some(name), peer.address);
                info!(user = name, address = ?peer.address, "a wrong name or password");
                Err(Refusal::WrongPassword.into())
            }
        }
    }

    async fn registered(&self, peer: Peer, asked: RegisterRequest) -> Result<Response<NewToken>, Status> {
        if !self.farm.access.registration {
            return Err(Status::permission_denied(
                "on this farm an administrator makes accounts: `pcfarm users create` (or the setting `registration`)",
            ));
        }
        let RegisterRequest { user, password } = asked;
        // Each costs a hash and tells whether a name is taken.
        self.farm.access.brake().check(None, peer.address)?;
        self.farm.access.brake().failed(None, peer.address);
        let hash = self.hash(password).await?;
        let client = self.farm.pool.get().await.map_err(status_code::of_pool)?;
        if !access::register_account(&client, text(&user)?, hash.as_deref()).await.map_err(status_code::of)? {
            return Err(Status::already_exists(format!("the name {user} is taken: choose another")));
        }
        let made = make(&client, &By::login(&user, LOGIN_LIFETIME), "login", Role::User.scopes()).await?;
        self.farm.access.forget();
        info!(user, "registered");
        Ok(Response::new(made))
    }

    /// None of nothing: an account without a password.
    async fn hash(&self, password: String) -> Result<Option<String>, Status> {
        if password.is_empty() {
            return Ok(None);
        }
        if let Some(wrong) = password::wrong(&password) {
            return Err(Status::invalid_argument(wrong));
        }
        self.passwords.hash(password).await.map(Some).map_err(internal)
    }

    async fn change_password(
        &self,
        caller: &Caller,
        peer: Peer,
        asked: SetPasswordRequest,
    ) -> Result<Response<SetPasswordResponse>, Status> {
        let SetPasswordRequest { user, old_password, new_password } = asked;
        let user = if user.is_empty() { caller.user().to_owned() } else { user };
        let is_own = caller.acting() == Some(&user);
        if !is_own && !caller.may(Scope::Administer) {
            return Err(no_account(&user));
        }
        if is_own {
            let client = self.farm.pool.get().await.map_err(status_code::of_pool)?;
            let account = access::account(&client, text(&user)?).await.map_err(status_code::of)?;
            drop(client);
            let account = account.ok_or_else(|| no_account(&user))?;
            // A token that was stolen, or that may do less, must not become the account.
            let most = Role::from_name(&account.role).map_or(Scopes::ALL, Role::scopes);
            if account.password_hash.is_some() {
                self.known(peer, &user, old_password).await?;
            } else if caller.scopes().within(most) != most {
                return Err(Status::permission_denied(
                    "a first password needs a token that may do all that its user may: ask an administrator",
                ));
            }
        }
        let hash = self.hash(new_password).await?;
        if hash.is_none() && !caller.may(Scope::Administer) {
            return Err(Status::invalid_argument("the new password is empty"));
        }
        let but = match caller.kind() {
            Kind::Token(id) if is_own => Some(id),
            Kind::Token(_) | Kind::Workstation(_) | Kind::Anonymous => None,
        };
        let client = self.client(caller).await?;
        if !access::set_password(&client, text(&user)?, hash.as_deref(), but).await.map_err(status_code::of)? {
            return Err(no_account(&user));
        }
        self.farm.access.forget();
        Ok(Response::new(SetPasswordResponse {}))
    }

    async fn account(&self, client: &Object, user: &str) -> Result<Response<Account>, Status> {
        let found = access::accounts(client, Some(user)).await.map_err(status_code::of)?.pop();
        found.map(|one| Response::new(account(one))).ok_or_else(|| no_account(user))
    }

    async fn new_account(&self, caller: &Caller, asked: CreateAccountRequest) -> Result<Response<Account>, Status> {
        let CreateAccountRequest { user, role, password } = asked;
        let role = if role.is_empty() { Role::User } else { role_of(&role)? };
        let hash = self.hash(password).await?;
        let client = self.client(caller).await?;
        access::create_account(&client, text(&user)?, role.name(), hash.as_deref()).await.map_err(status_code::of)?;
        self.farm.access.forget();
        self.account(&client, &user).await
    }

    async fn change_account(&self, caller: &Caller, asked: SetAccountRequest) -> Result<Response<Account>, Status> {
        let SetAccountRequest { user, role, disabled, version } = asked;
        let role = if role.is_empty() { None } else { Some(role_of(&role)?) };
        let client = self.client(caller).await?;
        let changed = access::set_account(&client, text(&user)?, role.map(Role::name), disabled, &version).await;
        if !changed.map_err(status_code::of)? {
            return Err(no_account(&user));
        }
        self.farm.access.forget();
        self.account(&client, &user).await
    }

    async fn new_token(&self, caller: &Caller, asked: CreateTokenRequest) -> Result<Response<NewToken>, Status> {
        let CreateTokenRequest { user, name, scopes, lifetime } = asked;
        let (name, lifetime) = (named(name)?, bounded(lifetime, TOKEN_LONGEST)?);
        let user = self.whose(caller, user)?;
        let client = self.client(caller).await?;
        let found = access::account(&client, text(&user)?).await.map_err(status_code::of)?;
        let role = found.and_then(|found| Role::from_name(&found.role)).ok_or_else(|| no_account(&user))?;
        let wanted = if scopes.is_empty() { role.scopes().within(least(caller, role)) } else { scopes_of(&scopes)? };
        if wanted.within(role.most()) != wanted {
            let most = role.most().names().join(" and ");
            return Err(Status::invalid_argument(format!("{user} is {}: its tokens may have {most}", role.name())));
        }
        if wanted.within(least(caller, role)) != wanted {
            let has = caller.scopes().names().join(" and ");
            return Err(Status::permission_denied(format!("the token that asks has {has}, and cannot give more away")));
        }
        // What an administrator makes for others is theirs: it could have made them an account and a password as well.
        let made_by = match caller.kind() {
            Kind::Token(id) if caller.user() == user => Some(id),
            Kind::Token(_) | Kind::Workstation(_) | Kind::Anonymous => None,
        };
        let by = By { user: &user, by_login: false, lifetime, made_by };
        Ok(Response::new(make(&client, &by, &name, wanted).await?))
    }

    /// Whose tokens are meant: one's own, or, by an administrator, anybody's.
    fn whose(&self, caller: &Caller, user: String) -> Result<String, Status> {
        match caller.acting() {
            Some(own) if user.is_empty() || user == own => Ok(own.to_owned()),
            _ if user.is_empty() => Err(Status::invalid_argument("name the user whose token it is to be")),
            _ if caller.may(Scope::Administer) => Ok(user),
            _ => Err(no_account(&user)),
        }
    }

    async fn tokens(&self, caller: &Caller, asked: ListTokensRequest) -> Result<Response<ListTokensResponse>, Status> {
        let of = match (caller.may(Scope::Administer), asked.user.as_str()) {
            (true, "") => None,
            (true, user) => Some(text(user)?),
            (false, user) if user.is_empty() || user == caller.user() => Some(caller.user()),
            (false, _) => return Ok(Response::new(ListTokensResponse::default())),
        };
        let client = self.client(caller).await?;
        let found = access::tokens(&client, of, None, asked.all).await.map_err(status_code::of)?;
        Ok(Response::new(ListTokensResponse { tokens: found.into_iter().map(token).collect() }))
    }

    async fn token_revoked(&self, caller: &Caller, id: i64) -> Result<Response<AccessToken>, Status> {
        let of = (!caller.may(Scope::Administer)).then(|| caller.user());
        let id = match caller.kind() {
            Kind::Token(shown) if id == 0 => shown,
            Kind::Token(_) | Kind::Workstation(_) | Kind::Anonymous => id,
        };
        let client = self.client(caller).await?;
        let missing = || Status::not_found(format!("there is no token {id}"));
        if !access::revoke_token(&client, id, of).await.map_err(status_code::of)? {
            return Err(missing());
        }
        self.farm.access.forget();
        let found = access::tokens(&client, of, Some(id), true).await.map_err(status_code::of)?.pop();
        found.map(|one| Response::new(token(one))).ok_or_else(missing)
    }

    async fn new_join_token(
        &self,
        caller: &Caller,
        asked: CreateJoinTokenRequest,
    ) -> Result<Response<NewJoinToken>, Status> {
        let lifetime = bounded(asked.lifetime, JOIN_LONGEST)?.unwrap_or(JOIN_LIFETIME);
        let uses = match asked.uses {
            0 => 1,
            uses @ 1..=JOIN_USES => uses,
            uses => return Err(Status::invalid_argument(format!("{uses} uses: at most {JOIN_USES}"))),
        };
        let authority = self.farm.tls.as_ref().ok_or_else(no_authority)?.authority_fingerprint();
        let secret: [u8; SECRET_BYTES] = rand::rng().random();
        let client = self.client(caller).await?;
        let id = access::create_join_token(&client, &Sha256::digest(secret), lifetime, uses.cast_signed())
            .await
            .map_err(status_code::of)?;
        let state = access::join_tokens(&client, Some(id)).await.map_err(status_code::of)?.pop().map(join_token);
        Ok(Response::new(NewJoinToken { token: state, secret: JoinToken { authority, secret }.reveal() }))
    }

    async fn join_token_revoked(&self, caller: &Caller, id: i64) -> Result<Response<JoinTokenState>, Status> {
        let client = self.client(caller).await?;
        let missing = || Status::not_found(format!("there is no join token {id}"));
        if !access::revoke_join_token(&client, id).await.map_err(status_code::of)? {
            return Err(missing());
        }
        let found = access::join_tokens(&client, Some(id)).await.map_err(status_code::of)?.pop();
        found.map(|one| Response::new(join_token(one))).ok_or_else(missing)
    }

    async fn credential_revoked(&self, caller: &Caller, identity: &str) -> Result<Response<Credential>, Status> {
        let identity: Uuid =
            identity.parse().map_err(|_| Status::invalid_argument(format!("not a UUID: {identity:?}")))?;
        let client = self.client(caller).await?;
        let missing = || Status::not_found(format!("no workstation {identity} has certificates"));
        if !access::revoke_credential(&client, identity).await.map_err(status_code::of)? {
            return Err(missing());
        }
        self.farm.look_at_sessions.notify_one();
        let found = access::credentials(&client, Some(identity)).await.map_err(status_code::of)?.pop();
        found.map(|one| Response::new(credential(one))).ok_or_else(missing)
    }
}

#[tonic::async_trait]
impl AccessService for AccessApi {
    async fn login(&self, request: Request<LoginRequest>) -> Result<Response<NewToken>, Status> {
        self.logged_in(Peer::of(&request), request.into_inner()).await
    }

    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<NewToken>, Status> {
        self.registered(Peer::of(&request), request.into_inner()).await
    }

    async fn who_am_i(&self, request: Request<WhoAmIRequest>) -> Result<Response<WhoAmIResponse>, Status> {
        let caller = Caller::of(&request)?;
        let kind = match caller.kind() {
            Kind::Token(_) => "token",
            Kind::Workstation(_) => "workstation",
            Kind::Anonymous => "anonymous",
        };
        Ok(Response::new(WhoAmIResponse {
            user: caller.user().to_owned(),
            scopes: caller.scopes().names().into_iter().map(ToOwned::to_owned).collect(),
            kind: kind.to_owned(),
        }))
    }

    async fn set_password(
        &self,
        request: Request<SetPasswordRequest>,
    ) -> Result<Response<SetPasswordResponse>, Status> {
        self.change_password(&Caller::of(&request)?, Peer::of(&request), request.into_inner()).await
    }

    async fn create_account(&self, request: Request<CreateAccountRequest>) -> Result<Response<Account>, Status> {
        self.new_account(&Caller::of(&request)?, request.into_inner()).await
    }

    async fn set_account(&self, request: Request<SetAccountRequest>) -> Result<Response<Account>, Status> {
        self.change_account(&Caller::of(&request)?, request.into_inner()).await
    }

    async fn list_accounts(
        &self,
        request: Request<ListAccountsRequest>,
    ) -> Result<Response<ListAccountsResponse>, Status> {
        let client = self.client(&Caller::of(&request)?).await?;
        let found = access::accounts(&client, None).await.map_err(status_code::of)?;
        Ok(Response::new(ListAccountsResponse { accounts: found.into_iter().map(account).collect() }))
    }

    async fn create_token(&self, request: Request<CreateTokenRequest>) -> Result<Response<NewToken>, Status> {
        self.new_token(&Caller::of(&request)?, request.into_inner()).await
    }

    async fn list_tokens(&self, request: Request<ListTokensRequest>) -> Result<Response<ListTokensResponse>, Status> {
        self.tokens(&Caller::of(&request)?, request.into_inner()).await
    }

    async fn revoke_token(&self, request: Request<RevokeTokenRequest>) -> Result<Response<AccessToken>, Status> {
        self.token_revoked(&Caller::of(&request)?, request.into_inner().token_id).await
    }

    async fn create_join_token(
        &self,
        request: Request<CreateJoinTokenRequest>,
    ) -> Result<Response<NewJoinToken>, Status> {
        self.new_join_token(&Caller::of(&request)?, request.into_inner()).await
    }

    async fn list_join_tokens(
        &self,
        request: Request<ListJoinTokensRequest>,
    ) -> Result<Response<ListJoinTokensResponse>, Status> {
        let client = self.client(&Caller::of(&request)?).await?;
        let found = access::join_tokens(&client, None).await.map_err(status_code::of)?;
        Ok(Response::new(ListJoinTokensResponse { tokens: found.into_iter().map(join_token).collect() }))
    }

    async fn revoke_join_token(
        &self,
        request: Request<RevokeJoinTokenRequest>,
    ) -> Result<Response<JoinTokenState>, Status> {
        self.join_token_revoked(&Caller::of(&request)?, request.into_inner().join_token_id).await
    }

    async fn list_credentials(
        &self,
        request: Request<ListCredentialsRequest>,
    ) -> Result<Response<ListCredentialsResponse>, Status> {
        let client = self.client(&Caller::of(&request)?).await?;
        let found = access::credentials(&client, None).await.map_err(status_code::of)?;
        Ok(Response::new(ListCredentialsResponse { credentials: found.into_iter().map(credential).collect() }))
    }

    async fn revoke_credential(
        &self,
        request: Request<RevokeCredentialRequest>,
    ) -> Result<Response<Credential>, Status> {
        self.credential_revoked(&Caller::of(&request)?, &request.into_inner().identity).await
    }
}

/// What the caller can give away of what this role has: all that it has itself. Who makes administrators may make their
/// tokens, and those of agents.
fn least(caller: &Caller, role: Role) -> Scopes {
    if caller.may(Scope::Administer) { role.most() } else { caller.scopes() }
}

/// Whose a new token is, for how long, and by what.
struct By<'a> {
    user: &'a str,
    by_login: bool,
    lifetime: Option<Duration>,
    made_by: Option<i64>,
}

impl By<'_> {
    fn login(user: &str, lifetime: Duration) -> By<'_> {
        By { user, by_login: true, lifetime: Some(lifetime), made_by: None }
    }
}

async fn make(client: &Object, by: &By<'_>, name: &str, scopes: Scopes) -> Result<NewToken, Status> {
    let secret = Token(rand::rng().random());
    let hash = Sha256::digest(secret.0);
    let (scopes, &By { user, by_login, lifetime, made_by }) = (scopes.names(), by);
    let fresh = FreshToken { user, name, hash: &hash, scopes: &scopes, by_login, lifetime, made_by };
    let id = access::create_token(client, &fresh).await.map_err(status_code::of)?;
    let id = id.ok_or_else(|| {
        Status::invalid_argument(
            "the token that asks ends before that, and what it makes ends with it: ask for a shorter lifetime, or log in \
             for a token that lives longer",
        )
    })?;
    let made = access::tokens(client, None, Some(id), true).await.map_err(status_code::of)?.pop();
    Ok(NewToken { token: made.map(token), secret: secret.reveal() })
}

fn role_of(name: &str) -> Result<Role, Status> {
    let roles = "roles are user, operator and administrator";
    Role::from_name(name).ok_or_else(|| Status::invalid_argument(format!("there is no role {name:?}: {roles}")))
}

fn scopes_of(names: &[String]) -> Result<Scopes, Status> {
    let all = "scopes are submit, operate, administer and work";
    names.iter().try_fold(Scopes::NONE, |scopes, name| {
        let unknown = || Status::invalid_argument(format!("there is no scope {name:?}: {all}"));
        Ok(scopes.with(Scope::from_name(name).ok_or_else(unknown)?))
    })
}

fn named(name: String) -> Result<String, Status> {
    let length = name.chars().count();
    if (1..=NAME_LENGTH).contains(&length) && !name.chars().any(char::is_control) {
        return Ok(name);
    }
    Err(Status::invalid_argument(format!(
        "a token has a name of 1 to {NAME_LENGTH} characters, by which to know it again"
    )))
}

/// What PostgreSQL takes for text.
fn text(name: &str) -> Result<&str, Status> {
    if name.contains('\0') || name.len() > 63 {
        return Err(Status::invalid_argument("a user's name has from 1 to 63 characters, none of them NUL"));
    }
    Ok(name)
}

fn bounded(lifetime: Option<prost_types::Duration>, longest: Duration) -> Result<Option<Duration>, Status> {
    let Some(lifetime) = lifetime else { return Ok(None) };
    match Duration::try_from(lifetime) {
        Ok(lifetime) if !lifetime.is_zero() && lifetime <= longest => Ok(Some(lifetime)),
        Ok(_) | Err(_) => {
            let days = longest.as_secs() / DAY.as_secs();
            Err(Status::invalid_argument(format!("a lifetime is longer than nothing, and {days} days at most")))
        }
    }
}

fn no_account(user: &str) -> Status {
    let user: String = user.chars().take(NAME_LENGTH).collect();
    Status::not_found(format!("there is no account {user:?}"))
}

pub(super) fn no_authority() -> Status {
    Status::failed_precondition(
        "this server has no authority to join: run `pcfarm-server init`, and start it with --tls DIR",
    )
}

fn internal(failed: anyhow::Error) -> Status {
    error!(error = format!("{failed:#}"), "a call failed");
    Status::internal("this failed for a reason of the server's own: its log says more")
}

fn account(one: access::AccountStatus) -> Account {
    Account {
        user: one.user,
        role: one.role,
        has_password: one.has_password,
        created_at: Some(one.created_at.into()),
        disabled_at: one.disabled_at.map(Into::into),
        tokens: one.tokens,
        version: one.version,
    }
}

fn token(one: access::TokenStatus) -> AccessToken {
    AccessToken {
        token_id: one.token_id,
        user: one.user,
        name: one.name,
        scopes: one.scopes,
        created_at: Some(one.created_at.into()),
        expires_at: one.expires_at.map(Into::into),
        revoked_at: one.revoked_at.map(Into::into),
        last_used_on: one.last_used_on.unwrap_or_default(),
    }
}

fn join_token(one: access::JoinTokenStatus) -> JoinTokenState {
    JoinTokenState {
        join_token_id: one.join_token_id,
        created_by: one.created_by,
        created_at: Some(one.created_at.into()),
        expires_at: Some(one.expires_at.into()),
        uses_left: one.uses_left.unsigned_abs(),
        used: one.used.unsigned_abs(),
        revoked_at: one.revoked_at.map(Into::into),
    }
}

fn credential(one: access::Credential) -> Credential {
    Credential {
        identity: one.identity.to_string(),
        hostname: one.hostname,
        joined_at: Some(one.joined_at.into()),
        issued_at: Some(one.issued_at.into()),
        expires_at: Some(one.expires_at.into()),
        revoked_at: one.revoked_at.map(Into::into),
        workstation_id: one.workstation_id.map_or(0, |id| id.0),
    }
}
