//! Who may do what: logging in, accounts, tokens, and how workstations join. Secrets come from a terminal, a file or a pipe,
//! and are printed once.

use std::io::{IsTerminal, Read, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use pcfarm_proto::secrets::Token;
use pcfarm_proto::v1::{
    AccessToken, Account, CreateAccountRequest, CreateJoinTokenRequest, CreateTokenRequest, Credential, JoinTokenState,
    ListAccountsRequest, ListCredentialsRequest, ListJoinTokensRequest, ListTokensRequest, LoginRequest,
    RegisterRequest, RevokeCredentialRequest, RevokeJoinTokenRequest, RevokeTokenRequest, SetAccountRequest,
    SetPasswordRequest, WhoAmIRequest,
};
use serde::Serialize;
use serde_json::json;

use crate::args::access::{
    CreateTokenArgs, CreateUserArgs, CredentialsVerb, JoinTokenVerb, LoginArgs, PasswordArgs, Role, TokensVerb,
};
use crate::exit::{Exit, Failure};
use crate::farm::Farm;
use crate::output::{self, Column, Output};
use crate::platform;
use crate::settings::{Settings, kept};
use crate::text::{self, cut};

pub async fn login(farm: &Farm, settings: &Settings, args: LoginArgs, output: Output) -> Result<()> {
    settings.secret_may_be_told()?;
    let LoginArgs { user, password_file, token, name, expires, register } = args;
    if token {
        return keep_token(settings, output).await;
    }
    let password = match &password_file {
        Some(file) => lines_of(file)?.remove(0),
        None if register => new_password()?,
        None => prompted(&format!("Password of {user}: "))?,
    };
    let mut client = farm.access();
    let made = if register {
        let request = RegisterRequest { user: user.clone(), password };
        farm.call("making an account", client.register(farm.request(request))).await?
    } else {
        let token_name = name.unwrap_or_else(|| format!("login {}", platform::machine_name()));
        let request = LoginRequest { user: user.clone(), password, token_name, lifetime: expires.map(lasting) };
        farm.call("logging in", client.login(farm.request(request))).await?
    };
    let file = kept::keep(farm.server(), Some(&made.secret))?;
    let expires_at = made.token.as_ref().and_then(|token| text::rfc3339(token.expires_at.as_ref()));
    output.print(
        || json!({"user": user, "server": farm.server(), "expires_at": expires_at, "kept_in": file}),
        || {
            let until = expires_at.as_deref().unwrap_or("it is revoked");
            format!("{user} is logged in to {}, until {until}. The token is kept in {}.", farm.server(), file.display())
        },
    )
}

/// A token that was made elsewhere, if the server knows it.
async fn keep_token(settings: &Settings, output: Output) -> Result<()> {
    let text = if std::io::stdin().is_terminal() { prompted("Token: ")? } else { lines_of(Path::new("-"))?.remove(0) };
    let token: Token = text.trim().parse().map_err(|wrong| Failure::usage(format!("{wrong}")))?;
    let revealed = token.reveal();
    let shown = Settings {
        token: Some(token),
        server: settings.server.clone(),
        ca: settings.ca.clone(),
        proxies: settings.proxies.clone(),
        trace: settings.trace.clone(),
        ..*settings
    };
    let farm = Farm::connect(&shown).await?;
    let mut client = farm.access();
    let who = farm.call("asking who this token is", client.who_am_i(farm.request(WhoAmIRequest {}))).await?;
    let file = kept::keep(farm.server(), Some(&revealed))?;
    output.print(
        || json!({"user": who.user, "server": farm.server(), "kept_in": file}),
        || format!("{} is logged in to {}. The token is kept in {}.", who.user, farm.server(), file.display()),
    )
}

pub async fn logout(farm: &Farm, output: Output) -> Result<()> {
    let mut client = farm.access();
    let shown = RevokeTokenRequest { token_id: 0 };
    let revoked = farm.call("revoking the token", client.revoke_token(farm.request(shown))).await;
    // One that the server does not know any more is forgotten, too.
    let unknown = |error: &anyhow::Error| error.downcast_ref::<Failure>().is_some_and(|f| f.exit == Exit::NotAllowed);
    if let Err(error) = &revoked
        && !unknown(error)
    {
        return revoked.map(drop);
    }
    kept::keep(farm.server(), None)?;
    let revoked = revoked.is_ok();
    output.print(|| json!({"revoked": revoked}), || format!("the token for {} is revoked and forgotten", farm.server()))
}

pub async fn who_am_i(farm: &Farm, output: Output) -> Result<()> {
    let mut client = farm.access();
    let who = farm.call("asking who you are", client.who_am_i(farm.request(WhoAmIRequest {}))).await?;
    output.print(
        || json!({"user": who.user, "kind": who.kind, "scopes": who.scopes}),
        || match who.kind.as_str() {
            "anonymous" => format!("nobody in particular, who may {}", who.scopes.join(" and ")),
            _ => format!("{}, who may {}", who.user, who.scopes.join(" and ")),
        },
    )
}

// Accounts -----------------------------------------------------------------------------------------------------------

pub async fn accounts(farm: &Farm, output: Output) -> Result<()> {
    let mut client = farm.access();
    let call = client.list_accounts(farm.request(ListAccountsRequest {}));
    let found = farm.call("listing accounts", call).await?.accounts;
    output.print(|| json!({"accounts": found.iter().map(account_json).collect::<Vec<_>>()}), || account_table(&found))
}

pub async fn create_user(farm: &Farm, args: CreateUserArgs, output: Output) -> Result<()> {
    let CreateUserArgs { user, role, password_file, no_password } = args;
    let password = match &password_file {
        Some(file) => lines_of(file)?.remove(0),
        None if no_password => String::new(),
        None => new_password()?,
    };
    let request = CreateAccountRequest { user, role: role_name(role).to_owned(), password };
    let mut client = farm.access();
    let made = farm.call("making an account", client.create_account(farm.request(request))).await?;
    show_account(&made, output)
}

pub async fn set_role(farm: &Farm, user: String, role: Role, output: Output) -> Result<()> {
    let request = SetAccountRequest { user, role: role_name(role).to_owned(), ..SetAccountRequest::default() };
    set_account(farm, request, output).await
}

pub async fn set_disabled(farm: &Farm, user: String, disabled: bool, output: Output) -> Result<()> {
    let request = SetAccountRequest { user, disabled: Some(disabled), ..SetAccountRequest::default() };
    set_account(farm, request, output).await
}

async fn set_account(farm: &Farm, request: SetAccountRequest, output: Output) -> Result<()> {
    let mut client = farm.access();
    let changed = farm.call("changing an account", client.set_account(farm.request(request))).await?;
    show_account(&changed, output)
}

pub async fn set_password(farm: &Farm, args: PasswordArgs, output: Output) -> Result<()> {
    let PasswordArgs { user, password_file } = args;
    let (old_password, new_password) = match (&password_file, &user) {
        (Some(file), Some(_)) => (String::new(), lines_of(file)?.remove(0)),
        (Some(file), None) => {
            let mut lines = lines_of(file)?;
            if lines.len() < 2 {
                return Err(Failure::usage("the old password and the new one are to be on a line each"));
            }
            (lines.remove(0), lines.remove(0))
        }
        (None, Some(_)) => (String::new(), new_password()?),
        (None, None) => (prompted("Old password: ")?, new_password()?),
    };
    let request = SetPasswordRequest { user: user.unwrap_or_default(), old_password, new_password };
    let mut client = farm.access();
    farm.call("setting a password", client.set_password(farm.request(request))).await?;
    output.print(|| json!({"changed": true}), || "The password is changed, and what logins gave is revoked.".to_owned())
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::User => "user",
        Role::Operator => "operator",
        Role::Administrator => "administrator",
    }
}

fn show_account(one: &Account, output: Output) -> Result<()> {
    output.print(|| account_json(one), || account_table(std::slice::from_ref(one)))
}

#[derive(Serialize)]
struct AccountJson<'a> {
    user: &'a str,
    role: &'a str,
    has_password: bool,
    tokens: i64,
    created_at: Option<String>,
    disabled_at: Option<String>,
}

fn account_json(one: &Account) -> AccountJson<'_> {
    AccountJson {
        user: &one.user,
        role: &one.role,
        has_password: one.has_password,
        tokens: one.tokens,
        created_at: text::rfc3339(one.created_at.as_ref()),
        disabled_at: text::rfc3339(one.disabled_at.as_ref()),
    }
}

fn account_table(accounts: &[Account]) -> String {
    let columns = [
        Column::Text("USER"),
        Column::Text("ROLE"),
        Column::Text("PASSWORD"),
        Column::Number("TOKENS"),
        Column::Text(""),
    ];
    let row = |one: &Account| {
        vec![
            cut(&one.user, 40),
            one.role.clone(),
            if one.has_password { "yes" } else { "none" }.to_owned(),
            text::number(one.tokens),
            if one.disabled_at.is_some() { "disabled" } else { "" }.to_owned(),
        ]
    };
    output::table(
        &columns,
        accounts.iter().map(row).collect(),
        "no accounts: whoever is on the server's machine may do everything",
    )
}

// Tokens -------------------------------------------------------------------------------------------------------------

pub async fn tokens(farm: &Farm, verb: TokensVerb, output: Output) -> Result<()> {
    match verb {
        TokensVerb::Create(args) => create_token(farm, args, output).await,
        TokensVerb::List { user, all } => {
            let request = ListTokensRequest { user: user.unwrap_or_default(), all };
            let mut client = farm.access();
            let found = farm.call("listing tokens", client.list_tokens(farm.request(request))).await?.tokens;
            output.print(|| json!({"tokens": found.iter().map(token_json).collect::<Vec<_>>()}), || token_table(&found))
        }
        TokensVerb::Revoke { id } => {
            let mut client = farm.access();
            let call = client.revoke_token(farm.request(RevokeTokenRequest { token_id: id }));
            let revoked = farm.call(&format!("revoking token {id}"), call).await?;
            output.print(|| token_json(&revoked), || format!("token {id} ({}) is revoked", text::plain(&revoked.name)))
        }
    }
}

async fn create_token(farm: &Farm, args: CreateTokenArgs, output: Output) -> Result<()> {
    let CreateTokenArgs { name, user, scope, expires } = args;
    let request =
        CreateTokenRequest { user: user.unwrap_or_default(), name, scopes: scope, lifetime: expires.map(lasting) };
    let mut client = farm.access();
    let made = farm.call("making a token", client.create_token(farm.request(request))).await?;
    let token = made.token.unwrap_or_default();
    if let Output::Table = output {
        let until = text::rfc3339(token.expires_at.as_ref()).unwrap_or_else(|| "it is revoked".to_owned());
        output::note(&format!(
            "Token {} of {} may {}, until {until}. It is not shown again:",
            token.token_id,
            text::plain(&token.user),
            token.scopes.join(" and ")
        ));
    }
    output.print(|| json!({"token": token_json(&token), "secret": made.secret}), || made.secret.clone())
}

#[derive(Serialize)]
struct TokenJson<'a> {
    token_id: Option<String>,
    user: &'a str,
    name: &'a str,
    scopes: &'a [String],
    created_at: Option<String>,
    expires_at: Option<String>,
    revoked_at: Option<String>,
    last_used_on: Option<&'a str>,
}

fn token_json(one: &AccessToken) -> TokenJson<'_> {
    TokenJson {
        token_id: output::id(one.token_id),
        user: &one.user,
        name: &one.name,
        scopes: &one.scopes,
        created_at: text::rfc3339(one.created_at.as_ref()),
        expires_at: text::rfc3339(one.expires_at.as_ref()),
        revoked_at: text::rfc3339(one.revoked_at.as_ref()),
        last_used_on: Some(one.last_used_on.as_str()).filter(|day| !day.is_empty()),
    }
}

fn token_table(tokens: &[AccessToken]) -> String {
    let columns = [
        Column::Number("ID"),
        Column::Text("USER"),
        Column::Text("NAME"),
        Column::Text("MAY"),
        Column::Text("LAST USED"),
        Column::Text("UNTIL"),
    ];
    let row = |one: &AccessToken| {
        vec![
            one.token_id.to_string(),
            cut(&one.user, 20),
            cut(&one.name, 24),
            one.scopes.join(","),
            if one.last_used_on.is_empty() { "never".to_owned() } else { one.last_used_on.clone() },
            match (&one.revoked_at, text::rfc3339(one.expires_at.as_ref())) {
                (Some(_), _) => "revoked".to_owned(),
                (None, Some(until)) => until,
                (None, None) => String::new(),
            },
        ]
    };
    output::table(&columns, tokens.iter().map(row).collect(), "no tokens")
}

// Workstations -------------------------------------------------------------------------------------------------------

pub async fn join_tokens(farm: &Farm, verb: JoinTokenVerb, output: Output) -> Result<()> {
    let mut client = farm.access();
    match verb {
        JoinTokenVerb::Create { uses, expires } => {
            let request = CreateJoinTokenRequest { lifetime: expires.map(lasting), uses };
            let made = farm.call("making a join token", client.create_join_token(farm.request(request))).await?;
            let token = made.token.unwrap_or_default();
            let server = as_others_reach_it(farm.server());
            let (command, install) = (join_command(&server, &made.secret), install_command(&server, &made.secret));
            if let Output::Table = output {
                let until = text::rfc3339(token.expires_at.as_ref()).unwrap_or_default();
                output::note(&format!(
                    "Lets {} in until {until}. On each, as a service that it installs:\n{install}\n\
                     or, without one, as the user that runs its agent:",
                    text::counted(uses.into(), "workstation")
                ));
            }
            output.print(
                || json!({"token": join_token_json(&token), "secret": made.secret, "command": command, "install": install}),
                || command.clone(),
            )
        }
        JoinTokenVerb::List => {
            let call = client.list_join_tokens(farm.request(ListJoinTokensRequest {}));
            let found = farm.call("listing join tokens", call).await?.tokens;
            output.print(
                || json!({"join_tokens": found.iter().map(join_token_json).collect::<Vec<_>>()}),
                || join_token_table(&found),
            )
        }
        JoinTokenVerb::Revoke { id } => {
            let call = client.revoke_join_token(farm.request(RevokeJoinTokenRequest { join_token_id: id }));
            let revoked = farm.call(&format!("revoking join token {id}"), call).await?;
            output.print(|| join_token_json(&revoked), || format!("join token {id} lets nobody in any more"))
        }
    }
}

/// Not by a name that leads every workstation to itself.
fn as_others_reach_it(server: &str) -> String {
    let host_is_here = ["//localhost", "//127.", "//[::1]"].iter().any(|here| server.contains(here));
    match server.rsplit_once(':').map(|(_, port)| port) {
        Some(port) if host_is_here => format!("https://{}:{port}", platform::machine_name()),
        _ => server.replacen("http://", "https://", 1),
    }
}

/// Whole: it tells the token by a variable, which only its owner reads.
fn join_command(server: &str, secret: &str) -> String {
    format!("PCFARM_JOIN_TOKEN={secret} pcfarm-worker --server {server}")
}

/// By a pipe: whoever is on the machine reads the arguments of sudo.
fn install_command(server: &str, secret: &str) -> String {
    format!("echo {secret} | sudo pcfarm-worker install --server {server} --token-file -")
}

#[derive(Serialize)]
struct JoinTokenJson<'a> {
    join_token_id: Option<String>,
    created_by: &'a str,
    created_at: Option<String>,
    expires_at: Option<String>,
    uses_left: u32,
    used: u32,
    revoked_at: Option<String>,
}

fn join_token_json(one: &JoinTokenState) -> JoinTokenJson<'_> {
    JoinTokenJson {
        join_token_id: output::id(one.join_token_id),
        created_by: &one.created_by,
        created_at: text::rfc3339(one.created_at.as_ref()),
        expires_at: text::rfc3339(one.expires_at.as_ref()),
        uses_left: one.uses_left,
        used: one.used,
        revoked_at: text::rfc3339(one.revoked_at.as_ref()),
    }
}

fn join_token_table(tokens: &[JoinTokenState]) -> String {
    let columns = [
        Column::Number("ID"),
        Column::Text("MADE BY"),
        Column::Number("USED"),
        Column::Number("LEFT"),
        Column::Text("UNTIL"),
    ];
    let row = |one: &JoinTokenState| {
        vec![
            one.join_token_id.to_string(),
            cut(&one.created_by, 30),
            one.used.to_string(),
            one.uses_left.to_string(),
            match one.revoked_at {
                Some(_) => "revoked".to_owned(),
                None => text::rfc3339(one.expires_at.as_ref()).unwrap_or_default(),
            },
        ]
    };
    output::table(&columns, tokens.iter().map(row).collect(), "no join tokens")
}

pub async fn credentials(farm: &Farm, verb: CredentialsVerb, output: Output) -> Result<()> {
    let mut client = farm.access();
    let call = client.list_credentials(farm.request(ListCredentialsRequest {}));
    let found = farm.call("listing credentials", call).await?.credentials;
    match verb {
        CredentialsVerb::List => output.print(
            || json!({"credentials": found.iter().map(credential_json).collect::<Vec<_>>()}),
            || credential_table(&found),
        ),
        CredentialsVerb::Revoke { workstation } => {
            let named: Vec<&Credential> =
                found.iter().filter(|one| one.identity == workstation || one.hostname == workstation).collect();
            let identity = match named[..] {
                [one] => one.identity.clone(),
                [] => {
                    let message = format!("no workstation {workstation} has joined: `pcfarm credentials list`");
                    return Err(Failure::of(Exit::NotFound, message));
                }
                _ => {
                    let message =
                        format!("{} workstations are called {workstation}: name one by its identity", named.len());
                    return Err(Failure::usage(message));
                }
            };
            let call = client.revoke_credential(farm.request(RevokeCredentialRequest { identity }));
            let revoked = farm.call(&format!("cutting {workstation} off"), call).await?;
            output.print(
                || credential_json(&revoked),
                || format!("{} is cut off: what it holds is handed out again", text::plain(&revoked.hostname)),
            )
        }
    }
}

#[derive(Serialize)]
struct CredentialJson<'a> {
    identity: &'a str,
    hostname: &'a str,
    workstation_id: Option<String>,
    joined_at: Option<String>,
    issued_at: Option<String>,
    expires_at: Option<String>,
    revoked_at: Option<String>,
}

fn credential_json(one: &Credential) -> CredentialJson<'_> {
    CredentialJson {
        identity: &one.identity,
        hostname: &one.hostname,
        workstation_id: output::id(one.workstation_id),
        joined_at: text::rfc3339(one.joined_at.as_ref()),
        issued_at: text::rfc3339(one.issued_at.as_ref()),
        expires_at: text::rfc3339(one.expires_at.as_ref()),
        revoked_at: text::rfc3339(one.revoked_at.as_ref()),
    }
}

fn credential_table(credentials: &[Credential]) -> String {
    let columns = [
        Column::Text("WORKSTATION"),
        Column::Text("IDENTITY"),
        Column::Text("JOINED"),
        Column::Text("CERTIFICATE UNTIL"),
    ];
    let row = |one: &Credential| {
        vec![
            cut(&one.hostname, 20),
            one.identity.clone(),
            text::rfc3339(one.joined_at.as_ref()).unwrap_or_default(),
            match one.revoked_at {
                Some(_) => "revoked".to_owned(),
                None => text::rfc3339(one.expires_at.as_ref()).unwrap_or_default(),
            },
        ]
    };
    output::table(&columns, credentials.iter().map(row).collect(), "no workstation has joined")
}

// Secrets ------------------------------------------------------------------------------------------------------------

fn lasting(length: Duration) -> prost_types::Duration {
    prost_types::Duration::try_from(length).unwrap_or_default()
}

/// At least one.
fn lines_of(file: &Path) -> Result<Vec<String>> {
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).context("reading standard input")?;
    } else {
        text = std::fs::read_to_string(file)
            .map_err(|error| Failure::usage(format!("reading a secret from {}: {error}", file.display())))?;
    }
    let lines: Vec<String> = text.lines().map(ToOwned::to_owned).collect();
    if lines.is_empty() { Err(Failure::usage("a secret was to be read, and there is none")) } else { Ok(lines) }
}

fn new_password() -> Result<String> {
    let password = prompted("New password: ")?;
    if prompted("The same again: ")? == password {
        return Ok(password);
    }
    Err(Failure::usage("these are not the same"))
}

/// From the terminal, which does not show it.
fn prompted(prompt: &str) -> Result<String> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(
            "there is no terminal to ask for a password on: --password-file - reads it from a pipe",
        ));
    }
    let _ = write!(std::io::stderr(), "{prompt}");
    let read = platform::read_silently();
    let _ = writeln!(std::io::stderr());
    Ok(read?.trim_end_matches(['\n', '\r']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_command_names_a_server_that_others_reach() {
        let here = as_others_reach_it("http://127.0.0.1:7070");
        assert!(here.starts_with("https://") && here.ends_with(":7070") && !here.contains("127.0.0.1"), "{here}");
        let there = as_others_reach_it("https://farm.example.org:7070");
        assert_eq!(
            join_command(&there, "pcfj_x"),
            "PCFARM_JOIN_TOKEN=pcfj_x pcfarm-worker --server https://farm.example.org:7070"
        );
        assert_eq!(
            install_command(&there, "pcfj_x"),
            "echo pcfj_x | sudo pcfarm-worker install --server https://farm.example.org:7070 --token-file -"
        );
    }
}
