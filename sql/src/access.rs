//! Who may come: accounts, tokens, the credentials of workstations; and on whose behalf a connection acts.

use crate::checkout::Queries;
use deadpool_postgres::ClientWrapper;
use pcfarm_proto::ids::{JobId, WorkstationId};
use postgres_types::ToSql;
use std::collections::HashMap;
use std::time::{Duration, SystemTime};
use tokio_postgres::{Error, Row};
use uuid::Uuid;

/// Whose a token is, while it holds.
#[derive(Clone, Debug)]
pub struct TokenHolder {
    pub token_id: i64,
    pub user: String,
    pub role: String,
    pub scopes: Vec<String>,
}

/// By the SHA-256 of its secret.
pub async fn token_holder(client: &ClientWrapper, hash: &[u8]) -> Result<Option<TokenHolder>, Error> {
    let rows = client.run(include_str!("../queries/token.sql"), &[&hash]).await?;
    rows.first().map(holder_of_row).transpose()
}

/// By their ids: of those that hold.
pub async fn token_holders(client: &ClientWrapper, tokens: &[i64]) -> Result<Vec<TokenHolder>, Error> {
    let rows = client.run(include_str!("../queries/token_holders.sql"), &[&tokens]).await?;
    rows.iter().map(holder_of_row).collect()
}

fn holder_of_row(row: &Row) -> Result<TokenHolder, Error> {
    Ok(TokenHolder {
        token_id: row.try_get("token_id")?,
        user: row.try_get("user_name")?,
        role: row.try_get("role")?,
        scopes: row.try_get("scopes")?,
    })
}

/// Whether anybody is to be asked who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doors {
    /// There are accounts.
    pub people: bool,
    /// There are workstations that have certificates.
    pub workstations: bool,
}

pub async fn doors(client: &ClientWrapper) -> Result<Doors, Error> {
    let rows = client.run(include_str!("../queries/doors.sql"), &[]).await?;
    Ok(Doors { people: rows[0].try_get(0)?, workstations: rows[0].try_get(1)? })
}

/// Whether a workstation's certificates are worth anything.
pub async fn credential_holds(client: &ClientWrapper, identity: Uuid) -> Result<bool, Error> {
    client.run(include_str!("../queries/credential_holds.sql"), &[&identity]).await?[0].try_get(0)
}

/// What a user whom a server acts for sees and touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// What is its own.
    Own,
    /// Everybody's.
    All,
}

impl Rights {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Rights::Own => "own",
            Rights::All => "all",
        }
    }
}

/// From here on this connection does what that user asks for, until its pool has it again: for a connection of a pool, or
/// one that is closed afterwards, and never for one that is kept. Returns whose the job is, if there is such a job.
pub async fn act_as(
    client: &ClientWrapper,
    user: &str,
    rights: Rights,
    job: Option<JobId>,
) -> Result<Option<String>, Error> {
    client.run(include_str!("../queries/act_as.sql"), &[&user, &rights.name(), &job]).await?[0].try_get("owner")
}

/// Whose these jobs are, of those that there are.
pub async fn owners(client: &ClientWrapper, jobs: &[JobId]) -> Result<HashMap<JobId, String>, Error> {
    let rows = client.run(include_str!("../queries/owners_of_jobs.sql"), &[&jobs]).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// What an account is known by.
#[derive(Clone, Debug)]
pub struct Account {
    pub role: String,
    pub password_hash: Option<String>,
    pub disabled: bool,
}

pub async fn account(client: &ClientWrapper, user: &str) -> Result<Option<Account>, Error> {
    let rows = client.run(include_str!("../queries/account.sql"), &[&user]).await?;
    rows.first()
        .map(|row| {
            Ok(Account {
                role: row.try_get("role")?,
                password_hash: row.try_get("password_hash")?,
                disabled: row.try_get("disabled")?,
            })
        })
        .transpose()
}

pub async fn create_account(
    client: &ClientWrapper,
    user: &str,
    role: &str,
    password_hash: Option<&str>,
) -> Result<(), Error> {
    client.run(include_str!("../queries/create_account.sql"), &[&user, &role, &password_hash]).await.map(drop)
}

/// An account of role `user` under a name that nobody has. False: somebody has it.
pub async fn register_account(client: &ClientWrapper, user: &str, password_hash: Option<&str>) -> Result<bool, Error> {
    let made = client.run(include_str!("../queries/register_account.sql"), &[&user, &password_hash]).await?;
    Ok(!made.is_empty())
}

/// What is `None` stays. False: there is no such account.
pub async fn set_account(
    client: &ClientWrapper,
    user: &str,
    role: Option<&str>,
    disabled: Option<bool>,
    version: &str,
) -> Result<bool, Error> {
    changed(client, include_str!("../queries/set_account.sql"), &[&user, &role, &disabled, &version]).await
}

/// And revokes what logins gave, but for the token that asks. False: there is no such account.
pub async fn set_password(
    client: &ClientWrapper,
    user: &str,
    password_hash: Option<&str>,
    but: Option<i64>,
) -> Result<bool, Error> {
    let rows = client.run(include_str!("../queries/set_password.sql"), &[&user, &password_hash, &but]).await?;
    Ok(rows[0].try_get::<_, i64>(0)? > 0)
}

#[derive(Clone, Debug)]
pub struct AccountStatus {
    pub user: String,
    pub role: String,
    pub has_password: bool,
    pub created_at: SystemTime,
    pub disabled_at: Option<SystemTime>,
    pub tokens: i64,
    /// Of its role, and whether it is disabled.
    pub version: String,
}

/// By name, at most 10,000; or the one that is named.
pub async fn accounts(client: &ClientWrapper, user: Option<&str>) -> Result<Vec<AccountStatus>, Error> {
    let rows = client.run(include_str!("../queries/accounts.sql"), &[&user]).await?;
    rows.iter()
        .map(|row| {
            Ok(AccountStatus {
                user: row.try_get("user_name")?,
                role: row.try_get("role")?,
                has_password: row.try_get("has_password")?,
                created_at: row.try_get("created_at")?,
                disabled_at: row.try_get("disabled_at")?,
                tokens: row.try_get("tokens")?,
                version: row.try_get("version")?,
            })
        })
        .collect()
}

/// A token to be. Of its secret only the SHA-256 is known here.
#[derive(Clone, Debug)]
pub struct FreshToken<'a> {
    pub user: &'a str,
    pub name: &'a str,
    pub hash: &'a [u8],
    pub scopes: &'a [&'a str],
    pub by_login: bool,
    /// None: it does not expire, or with the token that makes it.
    pub lifetime: Option<Duration>,
    /// Its user's own token that makes it.
    pub made_by: Option<i64>,
}

/// None: the token that makes it ends before this one would.
pub async fn create_token(client: &ClientWrapper, token: &FreshToken<'_>) -> Result<Option<i64>, Error> {
    let FreshToken { user, name, hash, scopes, by_login, lifetime, made_by } = token;
    let seconds = lifetime.map(|lifetime| lifetime.as_secs_f64());
    let parameters: [&(dyn ToSql + Sync); 7] = [user, name, hash, scopes, by_login, &seconds, made_by];
    let rows = client.run(include_str!("../queries/create_token.sql"), &parameters).await?;
    rows.first().map(|row| row.try_get(0)).transpose()
}

#[derive(Clone, Debug)]
pub struct TokenStatus {
    pub token_id: i64,
    pub user: String,
    pub name: String,
    pub scopes: Vec<String>,
    pub created_at: SystemTime,
    pub expires_at: Option<SystemTime>,
    pub revoked_at: Option<SystemTime>,
    pub last_used_on: Option<String>,
}

/// The newest first, at most 1,000; `all`: also those that hold no longer.
pub async fn tokens(
    client: &ClientWrapper,
    user: Option<&str>,
    only: Option<i64>,
    all: bool,
) -> Result<Vec<TokenStatus>, Error> {
    let rows = client.run(include_str!("../queries/tokens.sql"), &[&user, &only, &all]).await?;
    rows.iter()
        .map(|row| {
            Ok(TokenStatus {
                token_id: row.try_get("token_id")?,
                user: row.try_get("user_name")?,
                name: row.try_get("name")?,
                scopes: row.try_get("scopes")?,
                created_at: row.try_get("created_at")?,
                expires_at: row.try_get("expires_at")?,
                revoked_at: row.try_get("revoked_at")?,
                last_used_on: row.try_get("last_used_on")?,
            })
        })
        .collect()
}

/// Of this user, or anybody's. False: there is no such token.
pub async fn revoke_token(client: &ClientWrapper, token: i64, of: Option<&str>) -> Result<bool, Error> {
    changed(client, include_str!("../queries/revoke_token.sql"), &[&token, &of]).await
}

pub async fn create_join_token(
    client: &ClientWrapper,
    hash: &[u8],
    lifetime: Duration,
    uses: i32,
) -> Result<i64, Error> {
    let text = include_str!("../queries/create_join_token.sql");
    client.run(text, &[&hash, &lifetime.as_secs_f64(), &uses]).await?[0].try_get(0)
}

#[derive(Clone, Debug)]
pub struct JoinTokenStatus {
    pub join_token_id: i64,
    pub created_by: String,
    pub created_at: SystemTime,
    pub expires_at: SystemTime,
    pub uses_left: i32,
    pub used: i32,
    pub revoked_at: Option<SystemTime>,
}

/// The newest first, at most 1,000.
pub async fn join_tokens(client: &ClientWrapper, only: Option<i64>) -> Result<Vec<JoinTokenStatus>, Error> {
    let rows = client.run(include_str!("../queries/join_tokens.sql"), &[&only]).await?;
    rows.iter()
        .map(|row| {
            Ok(JoinTokenStatus {
                join_token_id: row.try_get("join_token_id")?,
                created_by: row.try_get("created_by")?,
                created_at: row.try_get("created_at")?,
                expires_at: row.try_get("expires_at")?,
                uses_left: row.try_get("uses_left")?,
                used: row.try_get("used")?,
                revoked_at: row.try_get("revoked_at")?,
            })
        })
        .collect()
}

/// What a join token would do for whoever shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinTokenFate {
    LetsIn { uses_left: i32, expires_at: SystemTime },
    Revoked,
    Expired,
    UsedUp,
}

/// None: nobody has made such a token.
pub async fn join_token_fate(client: &ClientWrapper, hash: &[u8]) -> Result<Option<JoinTokenFate>, Error> {
    let rows = client.run(include_str!("../queries/join_token_fate.sql"), &[&hash]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let (uses_left, expires_at) = (row.try_get("uses_left")?, row.try_get("expires_at")?);
    Ok(Some(match (row.try_get("revoked")?, row.try_get("expired")?) {
        (true, _) => JoinTokenFate::Revoked,
        (false, true) => JoinTokenFate::Expired,
        (false, false) if uses_left < 1 => JoinTokenFate::UsedUp,
        (false, false) => JoinTokenFate::LetsIn { uses_left, expires_at },
    }))
}

pub async fn revoke_join_token(client: &ClientWrapper, token: i64) -> Result<bool, Error> {
    changed(client, include_str!("../queries/revoke_join_token.sql"), &[&token]).await
}

/// A certificate that a workstation is about to get.
#[derive(Clone, Debug)]
pub struct Issued<'a> {
    pub identity: Uuid,
    pub serial: &'a [u8],
    /// SHA-256 of the public key.
    pub key: &'a [u8],
    pub expires_at: SystemTime,
}

/// False: the join token is none, or the workstation was cut off.
pub async fn join(
    client: &ClientWrapper,
    token_hash: &[u8],
    hostname: &str,
    issued: &Issued<'_>,
) -> Result<bool, Error> {
    let Issued { identity, serial, key, expires_at } = issued;
    let text = include_str!("../queries/join_workstation.sql");
    client.run(text, &[&token_hash, identity, &hostname, serial, key, expires_at]).await?[0].try_get(0)
}

/// False: another key has joined for it, it was away for too long, or it was cut off.
pub async fn renew(client: &ClientWrapper, issued: &Issued<'_>) -> Result<bool, Error> {
    let Issued { identity, serial, key, expires_at } = issued;
    changed(client, include_str!("../queries/renew_credential.sql"), &[identity, serial, expires_at, key]).await
}

#[derive(Clone, Debug)]
pub struct Credential {
    pub identity: Uuid,
    pub hostname: String,
    pub joined_at: SystemTime,
    pub issued_at: SystemTime,
    pub expires_at: SystemTime,
    pub revoked_at: Option<SystemTime>,
    pub workstation_id: Option<WorkstationId>,
}

/// By host name, at most 20,000; or the one that is named.
pub async fn credentials(client: &ClientWrapper, only: Option<Uuid>) -> Result<Vec<Credential>, Error> {
    let rows = client.run(include_str!("../queries/credentials.sql"), &[&only]).await?;
    rows.iter()
        .map(|row| {
            Ok(Credential {
                identity: row.try_get("identity")?,
                hostname: row.try_get("hostname")?,
                joined_at: row.try_get("joined_at")?,
                issued_at: row.try_get("issued_at")?,
                expires_at: row.try_get("expires_at")?,
                revoked_at: row.try_get("revoked_at")?,
                workstation_id: row.try_get("workstation_id")?,
            })
        })
        .collect()
}

pub async fn revoke_credential(client: &ClientWrapper, identity: Uuid) -> Result<bool, Error> {
    changed(client, include_str!("../queries/revoke_credential.sql"), &[&identity]).await
}

/// Of these workstations, those whose certificates are worth nothing any more.
pub async fn revoked_credentials(client: &ClientWrapper, identities: &[Uuid]) -> Result<Vec<Uuid>, Error> {
    let rows = client.run(include_str!("../queries/revoked_credentials.sql"), &[&identities]).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

/// Whether that workstation shows certificates, and so is none without one.
pub async fn has_credential(client: &ClientWrapper, identity: Uuid) -> Result<bool, Error> {
    client.run(include_str!("../queries/has_credential.sql"), &[&identity]).await?[0].try_get(0)
}

async fn changed(client: &ClientWrapper, text: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<bool, Error> {
    let statement = client.prepare_cached(&pcfarm_faults::statement(text)).await?;
    Ok(client.execute(&statement, parameters).await? > 0)
}
