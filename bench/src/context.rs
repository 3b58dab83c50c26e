//! What every table of figures needs: a durable PostgreSQL of its own, databases in it, programs around them, and disk
//! space that was looked for before it is used.

use crate::farm::Farm;
use crate::machine::Machine;
use crate::postgres;
use anyhow::{Context as _, bail, ensure};
use pcfarm_sql::cluster::{Cluster, ClusterOptions};
use pcfarm_sql::connect::{ConnectionTask, connect};
use pcfarm_sql::testing::url_of;
use std::path::{Path, PathBuf};
use tokio::sync::{Mutex, OnceCell};
use tokio_postgres::{Client, Config};

/// More than a few connections each: peers open their own pools.
const CONNECTIONS: &str = "300";

/// Kept free, whatever is measured: PostgreSQL's log may take 4 GB beside what is stored.
const DISK_RESERVE_BYTES: u64 = 6 << 30;
/// Of quick looks, which write little.
const QUICK_DISK_RESERVE_BYTES: u64 = 1 << 30;

pub struct Context {
    /// Too short to be believed: to see that it works.
    pub quick: bool,
    /// Of each table.
    pub runs: usize,
    /// Only measurements whose names have this in them, of tables that can be measured in parts.
    pub part: Option<String>,
    pub machine: Machine,
    directory: PathBuf,
    cluster: OnceCell<Cluster>,
    databases: Mutex<u32>,
}

/// One database of the cluster, until it is dropped by [`Context::drop_database`].
#[derive(Clone, Debug)]
pub struct Database {
    pub name: String,
    pub config: Config,
    pub url: String,
}

impl Database {
    pub async fn connect(&self) -> anyhow::Result<(Client, ConnectionTask)> {
        connect(&self.config).await.with_context(|| format!("connecting to {}", self.name))
    }
}

impl Context {
    /// `directory` must let an unprivileged user through when this runs as root.
    pub fn new(directory: &Path, quick: bool, runs: usize) -> Context {
        Context {
            quick,
            runs,
            part: None,
            machine: Machine::look(directory),
            directory: directory.to_owned(),
            cluster: OnceCell::new(),
            databases: Mutex::new(0),
        }
    }

    /// The full number, or the quick one.
    pub fn scaled(&self, full: u64, quick: u64) -> u64 {
        if self.quick { quick } else { full }
    }

    /// A measurement of this name is wanted.
    pub fn wants(&self, name: &str) -> bool {
        self.part.as_ref().is_none_or(|part| name.contains(part.as_str()))
    }

    /// Says what is being measured: a run takes minutes.
    pub fn progress(&self, text: &str) {
        eprintln!("… {text}");
    }

    /// Stops with a message unless so much disk is free beside a reserve.
    pub fn need_disk(&self, bytes: u64, what: &str) -> anyhow::Result<()> {
        let free = free_disk(&self.directory)?;
        let needed = bytes + self.scaled(DISK_RESERVE_BYTES, QUICK_DISK_RESERVE_BYTES);
        ensure!(
            free >= needed,
            "{what} needs {:.1} GB of disk under {}, where {:.1} GB are free: free some, or set TMPDIR to another disk",
            needed as f64 / 1e9,
            self.directory.display(),
            free as f64 / 1e9,
        );
        Ok(())
    }

    /// PostgreSQL with PC Farm's own settings for an embedded cluster, durable; started when it is first asked for.
    pub async fn cluster(&self) -> anyhow::Result<&Cluster> {
        self.cluster
            .get_or_try_init(|| async {
                check_disk(&self.directory)?;
                let options = ClusterOptions {
                    dies_with_process: true,
                    settings: vec![("max_connections".to_owned(), CONNECTIONS.to_owned())],
                    ..ClusterOptions::new(self.directory.join("postgresql"))
                };
                let cluster = Cluster::start(options).await.context("starting PostgreSQL")?;
                check_durable(&cluster.config()).await?;
                Ok(cluster)
            })
            .await
    }

    /// After a table that failed: what it has left, and perhaps broken, is nothing for the next one to be measured beside.
    pub async fn begin_anew(&mut self) -> anyhow::Result<()> {
        let Some(cluster) = self.cluster.take() else { return Ok(()) };
        if let Err(error) = cluster.stop().await {
            self.progress(&format!("PostgreSQL did not stop as it should: {error}"));
        }
        std::fs::remove_dir_all(self.directory.join("postgresql")).context("removing the databases")
    }

    /// The same again, for a measurement that hurts it.
    pub async fn cluster_of_its_own(&self) -> anyhow::Result<Cluster> {
        self.cluster_with(&[]).await
    }

    /// With settings of its own.
    pub async fn cluster_with(&self, settings: &[(&str, &str)]) -> anyhow::Result<Cluster> {
        let number = {
            let mut databases = self.databases.lock().await;
            *databases += 1;
            *databases
        };
        let options = ClusterOptions {
            dies_with_process: true,
            settings: [("max_connections", CONNECTIONS)]
                .iter()
                .chain(settings)
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            ..ClusterOptions::new(self.directory.join(format!("postgresql-{number}")))
        };
        let cluster = Cluster::start(options).await.context("starting PostgreSQL")?;
        check_durable(&cluster.config()).await?;
        Ok(cluster)
    }

    /// Looks at the machine, and notes the version of the cluster, and the day.
    pub async fn look(&mut self) -> anyhow::Result<()> {
        self.machine = Machine::look(&self.directory);
        let (client, _connection) = connect(&self.cluster().await?.config()).await?;
        let text = "select current_setting('server_version'), (now() at time zone 'UTC')::date::text";
        let row = client.query_one(text, &[]).await?;
        (self.machine.postgresql, self.machine.date) = (row.get(0), row.get(1));
        Ok(())
    }

    /// Of the postmaster, whose children are the backends.
    pub async fn postmaster(&self) -> anyhow::Result<u32> {
        let postmaster = postgres::postmaster(self.cluster().await?.directory())?;
        Ok(postmaster.as_raw_nonzero().get().unsigned_abs())
    }

    /// A new and empty database.
    pub async fn empty_database(&self) -> anyhow::Result<Database> {
        let name = {
            let mut databases = self.databases.lock().await;
            *databases += 1;
            format!("bench_{databases}")
        };
        let cluster = self.cluster().await?;
        cluster.create_database_if_missing(&name).await?;
        let mut config = cluster.config();
        config.dbname(&name);
        let url = url_of(&config);
        Ok(Database { name, config, url })
    }

    /// A new database with PC Farm's schema.
    pub async fn farm_database(&self) -> anyhow::Result<Database> {
        // What was free when the table began may have been filled since.
        self.need_disk(0, "another database")?;
        let database = self.empty_database().await?;
        let (mut client, _connection) = database.connect().await?;
        pcfarm_sql::migrate::migrate(&mut client).await.context("migrating")?;
        Ok(database)
    }

    /// Programs around a database; they end when this value goes.
    pub fn farm(&self, database: &Database) -> Farm {
        Farm::at(database.url.clone(), database.config.clone())
    }

    /// Makes room: what was measured is not needed any more.
    pub async fn drop_database(&self, database: Database) -> anyhow::Result<()> {
        let (client, _connection) = connect(&self.cluster().await?.config()).await?;
        client.batch_execute(&format!("drop database {} with (force)", database.name)).await?;
        // So that the next measurement does not pay for this one's pages.
        client.batch_execute("checkpoint").await?;
        Ok(())
    }

    /// Writes out what loading has left, so that a measurement does not pay for it.
    pub async fn settle(&self, database: &Database) -> anyhow::Result<()> {
        let (client, _connection) = database.connect().await?;
        client.batch_execute("vacuum (analyze)").await?;
        client.batch_execute("checkpoint").await?;
        Ok(())
    }

    /// Leaves these tables to [`Context::settle`], to be analysed, too. Autovacuum comes by the clock, every 15 s: one figure of
    /// a few seconds would pay for it, and the next one not.
    pub async fn turn_autovacuum_off(&self, database: &Database, tables: &[&str]) -> anyhow::Result<()> {
        let (client, _connection) = database.connect().await?;
        for table in tables {
            client.batch_execute(&format!("alter table {table} set (autovacuum_enabled = off)")).await?;
        }
        Ok(())
    }
}

fn free_disk(path: &Path) -> anyhow::Result<u64> {
    let disk = rustix::fs::statvfs(path).with_context(|| format!("asking for the free space of {}", path.display()))?;
    Ok(disk.f_bavail * disk.f_frsize)
}

/// What is written to memory is durable at no cost.
#[cfg(target_os = "linux")]
fn check_disk(path: &Path) -> anyhow::Result<()> {
    const OF_MEMORY: [rustix::fs::FsWord; 2] = [0x0102_1994, 0x8584_58f6]; // tmpfs, ramfs
    let disk = rustix::fs::statfs(path).with_context(|| format!("asking what {} is on", path.display()))?;
    if OF_MEMORY.contains(&disk.f_type) {
        bail!("{} is in memory: let TMPDIR name a directory on a disk", path.display());
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn check_disk(_path: &Path) -> anyhow::Result<()> {
    Ok(())
}

/// Figures of a PostgreSQL that may lose what it has acknowledged are worth nothing.
async fn check_durable(config: &Config) -> anyhow::Result<()> {
    let (client, _connection) = connect(config).await?;
    for setting in ["fsync", "synchronous_commit", "full_page_writes"] {
        let value: String = client.query_one("select current_setting($1)", &[&setting]).await?.get(0);
        if value != "on" {
            bail!("{setting} is {value}: figures are worth something only when it is on");
        }
    }
    Ok(())
}

/// The checkout that this runs in, or that it was built from.
pub fn repository() -> PathBuf {
    let built = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    std::env::var_os("PCFARM_BENCH_REPOSITORY").map_or_else(built, PathBuf::from)
}
