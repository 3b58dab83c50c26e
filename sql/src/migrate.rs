//! Brings a database's schema to this build's version. Forward only; safe when several servers start at once.

pub mod rights;

use tokio_postgres::Client;

/// The migrations, in order. Each runs once, in a transaction of its own.
const MIGRATIONS: &[(&str, &str)] = &[
    ("V1__queue", include_str!("../migrations/V1__queue.sql")),
    ("V2__loading", include_str!("../migrations/V2__loading.sql")),
    ("V3__checkouts", include_str!("../migrations/V3__checkouts.sql")),
    ("V4__profiles", include_str!("../migrations/V4__profiles.sql")),
    ("V5__sharing", include_str!("../migrations/V5__sharing.sql")),
    ("V6__history", include_str!("../migrations/V6__history.sql")),
    ("V7__alerts", include_str!("../migrations/V7__alerts.sql")),
    ("V8__views", include_str!("../migrations/V8__views.sql")),
    ("V9__schedules", include_str!("../migrations/V9__schedules.sql")),
    ("V10__access", include_str!("../migrations/V10__access.sql")),
    ("V11__api", include_str!("../migrations/V11__api.sql")),
    ("V12__files", include_str!("../migrations/V12__files.sql")),
    ("V13__requirements", include_str!("../migrations/V13__requirements.sql")),
    ("V14__fleet", include_str!("../migrations/V14__fleet.sql")),
    ("V15__waking", include_str!("../migrations/V15__waking.sql")),
    ("V17__clock", include_str!("../migrations/V17__clock.sql")),
];

/// Held while migrating, so that servers which start together take turns.
const MIGRATION_LOCK: i64 = 7_402_310;

/// Why a database could not be brought to this build's version.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("migration {name} failed")]
    Migration { name: &'static str, source: tokio_postgres::Error },
    #[error("the database's schema is newer (it has {found}) than this build: install the version that made it")]
    TooNew { found: String },
    #[error(
        "migration {name} differs from the one that this database was made with: recreate the database (there is no release yet)"
    )]
    Changed { name: &'static str },
    #[error("reading which migrations the database has")]
    Read(#[from] tokio_postgres::Error),
}

/// Applies what is missing. Returns how many migrations ran.
pub async fn migrate(client: &mut Client) -> Result<usize, Error> {
    // Another server may be at it for some time; it does not wait for us.
    client.batch_execute("set lock_timeout = '10min'; set statement_timeout = '10min'").await?;
    client.execute("select pg_advisory_lock($1)", &[&MIGRATION_LOCK]).await?;
    let outcome = apply_missing(client).await;
    // The lock goes with the connection if this fails.
    client.execute("select pg_advisory_unlock($1)", &[&MIGRATION_LOCK]).await?;
    outcome
}

async fn apply_missing(client: &mut Client) -> Result<usize, Error> {
    client
        .batch_execute(
            "create schema if not exists pcfarm_migration;
             create table if not exists pcfarm_migration.applied (
                 name text primary key, fingerprint text not null, applied_at timestamptz not null default clock_timestamp())",
        )
        .await?;
    let rows = client.query("select name, fingerprint from pcfarm_migration.applied order by name", &[]).await?;
    let applied: Vec<(String, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    if let Some((found, _)) = applied.iter().find(|(name, _)| !MIGRATIONS.iter().any(|(known, _)| known == name)) {
        return Err(Error::TooNew { found: found.clone() });
    }
    let mut ran = 0;
    for &(name, text) in MIGRATIONS {
        match applied.iter().find(|(known, _)| known == name) {
            Some((_, print)) if *print == fingerprint_of(text) => continue,
            Some(_) => return Err(Error::Changed { name }),
            None => apply(client, name, text).await.map_err(|source| Error::Migration { name, source })?,
        }
        ran += 1;
    }
    Ok(ran)
}

async fn apply(client: &mut Client, name: &str, text: &str) -> Result<(), tokio_postgres::Error> {
    let transaction = client.transaction().await?;
    // Migrations may wait for running transactions longer than a request may.
    transaction.batch_execute("set local lock_timeout = '60s'; set local statement_timeout = 0").await?;
    transaction.batch_execute(text).await?;
    transaction
        .execute(
            "insert into pcfarm_migration.applied (name, fingerprint) values ($1, $2)",
            &[&name, &fingerprint_of(text)],
        )
        .await?;
    transaction.commit().await
}

/// Names the schema that this build's migrations make: templates of test databases are keyed by it.
pub fn fingerprint() -> String {
    fingerprint_of(&MIGRATIONS.iter().map(|(_, text)| *text).collect::<String>())
}

/// FNV-1a, 64 bits: tells texts apart, guards nothing.
fn fingerprint_of(text: &str) -> String {
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("{hash:016x}")
}
