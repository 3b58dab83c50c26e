//! `pcfarm-server init`: the farm's authority, this server's certificate, the first administrator. It can be run again: what is
//! there stays, but for the server's own certificate, and a new token.

use crate::access::Role;
use crate::authority;
use crate::run::{database, prepare_database};
use crate::settings::{Database, Init};
use anyhow::Context;
use pcfarm_proto::secrets::Token;
use pcfarm_sql::access::{self, FreshToken};
use pcfarm_sql::connect::Target;
use pcfarm_sql::migrate::rights;
use pcfarm_sql::pool;
use pcfarm_sql::settings::DatabaseSettings;
use rand::RngExt;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

/// For the first steps: people log in, and make tokens for programs.
const LIFETIME: std::time::Duration = std::time::Duration::from_secs(30 * 24 * 3600);

pub async fn run(init: Init) -> anyhow::Result<()> {
    let Init { tls, names, administrator, database: located } = init;
    let Some(tls) = tls else { return print_sql(&located) };
    let made = authority::init(&tls, &names)?;
    let what = if made.authority { "An authority and a certificate" } else { "A certificate" };
    eprintln!("{what} for {} are in {}.", names.join(", "), tls.display());
    let Some(user) = administrator else { return Ok(()) };
    let (cluster, target, _) = database(&located).await?;
    let token = first_administrator(&target, &user).await;
    if let Some(cluster) = cluster {
        cluster.stop().await.context("stopping the embedded database")?;
    }
    eprintln!(
        "User {user} is an administrator. This token of 30 days is not shown again; `pcfarm login --token` keeps it:"
    );
    println!("{}", token?.reveal());
    Ok(())
}

/// For a database server that others administer: it is not connected to.
fn print_sql(located: &Database) -> anyhow::Result<()> {
    let Database::Url { flag, .. } = located else { anyhow::bail!("a private database needs no administrator") };
    let settings = DatabaseSettings::resolve(flag.as_deref()).context("finding the database")?;
    let config = settings.target.config();
    let user = config.get_user().context("no user is named")?;
    print!("{}", rights::setup(user, config.get_dbname().unwrap_or(user)));
    Ok(())
}

async fn first_administrator(target: &Target, user: &str) -> anyhow::Result<Token> {
    prepare_database(target, &CancellationToken::new()).await?;
    let pool = pool::pool(target.clone(), 1, "pcfarm-server init");
    let client = pool.get().await.context("connecting to the database")?;
    let role = Role::Administrator;
    if access::account(&client, user).await?.is_none() {
        access::create_account(&client, user, role.name(), None).await.context("making the account")?;
    }
    access::set_account(&client, user, Some(role.name()), Some(false), "")
        .await
        .context("making it an administrator")?;
    let token = Token(rand::rng().random());
    let fresh = FreshToken {
        user,
        name: "init",
        hash: &Sha256::digest(token.0),
        scopes: &role.scopes().names(),
        by_login: true,
        lifetime: Some(LIFETIME),
        made_by: None,
    };
    access::create_token(&client, &fresh).await.context("making a token")?;
    Ok(token)
}
