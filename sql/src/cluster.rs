//! The private cluster of `pcfarm-server --embedded DIR` and of tests: PostgreSQL's own programs on a Unix socket, with
//! nothing to install or configure by hand. It owns DIR, one server at a time; it never listens on a network, never runs
//! as root, and never touches a cluster that it did not make. A cluster outlives a killed server and is adopted by the
//! next.

mod account;
mod directory;
mod programs;
mod settings;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

use tokio_postgres::Config;
use tokio_postgres::error::SqlState;

use crate::connect::{ConnectError, connect};
use account::Account;
use directory::Directory;
pub use programs::Programs;

const PORT: u16 = 5432;
const SUPERUSER: &str = "pcfarm";
/// A crash recovery through a few gigabytes of log takes this long on an old disk.
const START_TIMEOUT: Duration = Duration::from_secs(300);
/// A fast stop writes a checkpoint; after this it is stopped hard, and recovers at the next start.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// A live process that does not serve us within this is not waited for: `pg_ctl start` then says what is wrong.
const ADOPT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a dead postmaster's parent may take to collect it.
const COLLECT_TIMEOUT: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(50);

#[derive(Debug, Clone)]
pub struct ClusterOptions {
    pub directory: PathBuf,
    /// Where `initdb` and `postgres` are, when they are not to be looked for.
    pub programs: Option<PathBuf>,
    /// Off for tests alone: nothing is synced to disk.
    pub durable: bool,
    /// For tests: PostgreSQL is stopped and `directory` is removed when this process ends, however it ends.
    pub dies_with_process: bool,
    pub start_timeout: Duration,
    /// More settings, which win over ours.
    pub settings: Vec<(String, String)>,
}

impl ClusterOptions {
    pub fn new(directory: impl Into<PathBuf>) -> ClusterOptions {
        ClusterOptions {
            directory: directory.into(),
            programs: None,
            durable: true,
            dies_with_process: false,
            start_timeout: START_TIMEOUT,
            settings: Vec::new(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error(
        "PostgreSQL's programs (initdb, postgres, pg_ctl of version {} to {}) were not found{}. Install them: \
         `apt install postgresql` on Debian and Ubuntu, `dnf install postgresql-server` on Fedora and RHEL, \
         `brew install postgresql@17` on macOS; or name a server that runs with --database-url",
        programs::SUPPORTED.start(), programs::SUPPORTED.end(), found_instead(.found)
    )]
    NoPrograms { found: Vec<Programs> },
    #[error(
        "{} was made by PostgreSQL {wanted}, whose programs were not found{}: install PostgreSQL {wanted} \
         (`apt install postgresql-{wanted}`), or move the data with pg_upgrade", path.display(), found_instead(.found)
    )]
    OtherVersion { path: PathBuf, wanted: String, found: Vec<Programs> },
    #[error("{} is in use by another server (process {owner}): stop that one, or choose another directory", path.display())]
    Owned { path: PathBuf, owner: String },
    #[error(
        "the account {account}, as which PostgreSQL runs, cannot enter {}: run `chmod o+x {}`, or choose a directory \
         such as /var/lib/pcfarm", barred.display(), barred.display()
    )]
    Barred { account: String, barred: PathBuf },
    #[error(
        "there is neither an account postgres nor nobody: PostgreSQL does not run as root; run as an ordinary user"
    )]
    NoAccount,
    #[error("{} belongs to another user: run as that user, or as root", path.display())]
    NotOurs { path: PathBuf },
    #[error("{} holds something that is not a database cluster: choose an empty directory", path.display())]
    NotACluster { path: PathBuf },
    #[error("the path {path:?} has a quote, `$`, `\\`, a backquote or a control character: choose a simpler one")]
    Path { path: PathBuf },
    #[error("cannot {doing} {}", path.display())]
    Files { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot run {}", program.display())]
    Run { program: PathBuf, source: io::Error },
    #[error("{program} failed: {}", said.trim())]
    Program { program: &'static str, said: String },
    #[error("PostgreSQL in {} did not come up within {} s; its log is in {}", path.display(), within.as_secs(), log.display())]
    NotUp {
        path: PathBuf,
        within: Duration,
        log: PathBuf,
        #[source]
        last: Option<ConnectError>,
    },
    #[error("cannot connect to the private cluster")]
    Connect(#[from] ConnectError),
    #[error("cannot create the database {name}")]
    CreateDatabase { name: String, source: tokio_postgres::Error },
    #[error("the database name {name:?} is empty, longer than 63 bytes, or has a NUL")]
    DatabaseName { name: String },
}

fn found_instead(found: &[Programs]) -> String {
    if found.is_empty() {
        return String::new();
    }
    let found: Vec<_> =
        found.iter().map(|programs| format!("{} in {}", programs.major, programs.directory.display())).collect();
    format!(" (found: version {})", found.join(", "))
}

/// A running cluster, and the lock on its directory. Dropping it lets go of the lock and leaves PostgreSQL running, to be
/// adopted; `stop` stops it. One made with `dies_with_process` is stopped and removed either way.
#[derive(Debug)]
pub struct Cluster {
    site: Site,
    socket_directory: PathBuf,
    adopted: bool,
    _guard: Option<Guard>, // before the lock: fields go in order
    _lock: File,
}

/// Everything known before PostgreSQL runs.
#[derive(Debug, Clone)]
struct Site {
    directory: Directory,
    programs: Programs,
    account: Option<Account>,
    options: ClusterOptions,
}

impl Cluster {
    /// Adopts the cluster that runs in the directory, or starts the one that is there, or makes one.
    pub async fn start(options: ClusterOptions) -> Result<Cluster, ClusterError> {
        let (site, lock) = blocking(move || Site::prepare(options)).await?;
        // Before there is anything to clean up, so that a start that fails or is cancelled leaves nothing either.
        let guard = match site.options.dies_with_process {
            true => Some(Guard::post(&site)?),
            false => None,
        };
        let deadline = Instant::now() + site.options.start_timeout;
        let (socket_directory, adopted) = match site.adopt(deadline).await? {
            Some(socket_directory) => {
                tracing::info!(directory = %site.directory.path.display(), "adopted the running private cluster");
                (socket_directory, true)
            }
            None => (site.clone().launch(deadline).await?, false),
        };
        let cluster = Cluster { site, socket_directory, adopted, _guard: guard, _lock: lock };
        Ok(cluster)
    }

    /// As the superuser, to the database `postgres`; name another with `dbname`.
    pub fn config(&self) -> Config {
        config(&self.socket_directory)
    }

    pub fn was_adopted(&self) -> bool {
        self.adopted
    }

    pub fn directory(&self) -> &Path {
        &self.site.directory.path
    }

    pub fn socket_directory(&self) -> &Path {
        &self.socket_directory
    }

    pub fn programs(&self) -> &Programs {
        &self.site.programs
    }

    pub async fn create_database_if_missing(&self, name: &str) -> Result<(), ClusterError> {
        let name = name.to_owned();
        if name.is_empty() || name.len() > 63 || name.contains('\0') {
            return Err(ClusterError::DatabaseName { name });
        }
        let (client, _connection) = connect(&self.config()).await?;
        let exists = "select from pg_catalog.pg_database where datname = $1";
        match client.query_opt(exists, &[&name]).await {
            Ok(Some(_)) => return Ok(()),
            Ok(None) => (),
            Err(source) => return Err(ClusterError::CreateDatabase { name, source }),
        }
        let statement = format!("create database \"{}\" encoding 'UTF8' template template0", name.replace('"', "\"\""));
        match client.batch_execute(&statement).await {
            Ok(()) => Ok(()),
            Err(error) if error.code() == Some(&SqlState::DUPLICATE_DATABASE) => Ok(()),
            Err(source) => Err(ClusterError::CreateDatabase { name, source }),
        }
    }

    /// Ends all sessions, writes what is left and stops; hard, when that takes too long (the next start recovers).
    pub async fn stop(self) -> Result<(), ClusterError> {
        let site = self.site.clone();
        blocking(move || {
            let stopped = site.stop();
            if stopped.is_ok() {
                site.directory.remove_socket_directory();
            }
            drop(self); // the lock is held until PostgreSQL is gone
            stopped
        })
        .await
    }

    /// For tests: kills PostgreSQL as a crash would, all of it, and waits until it is gone.
    pub async fn crash(&self) -> Result<(), ClusterError> {
        let site = self.site.clone();
        blocking(move || site.crash()).await
    }

    /// Starts PostgreSQL again after `crash`; the configuration stays valid.
    pub async fn start_again(&mut self) -> Result<(), ClusterError> {
        let deadline = Instant::now() + self.site.options.start_timeout;
        self.socket_directory = match self.site.adopt(deadline).await? {
            Some(socket_directory) => socket_directory,
            None => self.site.clone().launch(deadline).await?,
        };
        Ok(())
    }
}

fn config(socket_directory: &Path) -> Config {
    let mut config = Config::new();
    config
        .host_path(socket_directory)
        .port(PORT)
        .user(SUPERUSER)
        .dbname("postgres")
        .ssl_mode(tokio_postgres::config::SslMode::Disable)
        .connect_timeout(Duration::from_secs(5));
    config
}

/// PostgreSQL's programs and the file system are waited for off the runtime's threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ClusterError> + Send + 'static,
) -> Result<T, ClusterError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(ClusterError::Program { program: "the runtime", said: "it is shutting down".to_owned() }),
        },
    }
}

impl Site {
    /// Everything up to a data directory that can be started: lock, account, programs, initdb.
    fn prepare(options: ClusterOptions) -> Result<(Site, File), ClusterError> {
        let path = std::path::absolute(&options.directory).map_err(files("find", &options.directory))?;
        if !is_simple(&path) {
            return Err(ClusterError::Path { path });
        }
        let account = Account::choose(&path.join("data"));
        if account::we_are_root() && account.is_none() {
            return Err(ClusterError::NoAccount);
        }
        let directory = Directory::create(&path, account.as_ref()).map_err(files("make the directory", &path))?;
        if !is_simple(&directory.path) {
            return Err(ClusterError::Path { path: directory.path });
        }
        let lock = match directory.lock().map_err(files("lock", &directory.path))? {
            Ok(lock) => lock,
            Err(owner) => {
                let path = directory.path;
                return Err(ClusterError::Owned { path, owner });
            }
        };
        if let Some(account) = &account
            && let Some(barred) = account.barred_at(&directory.path)
        {
            let account = account.name.clone();
            return Err(ClusterError::Barred { account, barred });
        }
        let data = directory.data();
        let version = directory.data_version().map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => ClusterError::NotOurs { path: data.clone() },
            _ => files("read", &data)(error),
        })?;
        if version.is_none() && data.symlink_metadata().is_ok() {
            return Err(ClusterError::NotACluster { path: data });
        }
        let programs = choose_programs(&options, &data, version.as_deref())?;
        let site = Site { directory, programs, account, options };
        if version.is_none() {
            site.make_data()?;
        }
        Ok((site, lock))
    }

    /// initdb works beside the place and moves in when it is done: one killed in the middle leaves nothing to trip over.
    fn make_data(&self) -> Result<(), ClusterError> {
        let unfinished = self.directory.unfinished_data();
        if unfinished.symlink_metadata().is_ok() {
            fs::remove_dir_all(&unfinished).map_err(files("remove", &unfinished))?;
        }
        let account = self.account.as_ref();
        self.directory.make_private(&unfinished, account).map_err(files("make the directory", &unfinished))?;
        let mut initdb = self.command("initdb");
        initdb
            .arg("--pgdata")
            .arg(&unfinished)
            .args(["--username", SUPERUSER, "--encoding=UTF8", "--locale=C", "--no-instructions"])
            .args(["--auth-local=trust", "--auth-host=reject"]);
        // The socket's directory is private: who reaches the socket is PostgreSQL's account or root.
        match self.options.durable {
            true => initdb.arg("--data-checksums"),
            false => initdb.arg("--no-sync"),
        };
        check("initdb", run(&mut initdb)?)?;
        let data = self.directory.data();
        fs::rename(&unfinished, &data).map_err(files("move initdb's work to", &data))?;
        File::open(&self.directory.path)
            .and_then(|directory| directory.sync_all())
            .map_err(files("sync", &self.directory.path))
    }

    /// The socket directory of a postmaster that serves our data; `None` when there is none and one may be started.
    async fn adopt(&self, deadline: Instant) -> Result<Option<PathBuf>, ClusterError> {
        let data = self.directory.data();
        let began = Instant::now();
        loop {
            let Some(pid_file) = self.directory.pid_file().filter(|file| file.is_alive()) else {
                return Ok(None);
            };
            // PostgreSQL tells a stale file from a live one by itself, but not in two cases, where it would refuse for ever:
            // a dead process that its parent does not collect (a container's first process may not), and, after a reboot,
            // a number that now belongs to another process of its account. That its memory is in use by survivors it still
            // notices without the file.
            if pid_file.is_zombie() {
                if began.elapsed() < COLLECT_TIMEOUT {
                    tokio::time::sleep(POLL).await;
                    continue;
                }
                self.remove_locks()?;
                return Ok(None);
            }
            let ours = pid_file.serves(&data);
            if ours == Some(false) {
                if pid_file.is_from_before_boot() {
                    self.remove_locks()?;
                }
                return Ok(None);
            }
            let mut last = None;
            if let Some(socket_directory) = &pid_file.socket_directory {
                match connect(&config(socket_directory)).await {
                    Ok((client, _connection)) => {
                        let shown = client.query_one("select pg_catalog.current_setting('data_directory')", &[]);
                        if let Ok(row) = shown.await
                            && row.try_get::<_, &str>(0).is_ok_and(|shown| Path::new(shown) == data)
                        {
                            return Ok(Some(socket_directory.clone()));
                        }
                    }
                    Err(error) => last = Some(error),
                }
            }
            let limit = if ours == Some(true) { deadline } else { began + ADOPT_TIMEOUT };
            if Instant::now() >= limit {
                if ours.is_none() {
                    return Ok(None);
                }
                return Err(self.not_up(last));
            }
            tokio::time::sleep(POLL).await; // it is starting, recovering or stopping: PostgreSQL has no signal for others
        }
    }

    /// The data directory's and the socket's: both name the process.
    fn remove_locks(&self) -> Result<(), ClusterError> {
        self.directory.remove_socket_files();
        let path = self.directory.pid_file_path();
        fs::remove_file(&path).map_err(files("remove", &path))
    }

    async fn launch(self, deadline: Instant) -> Result<PathBuf, ClusterError> {
        let site = self.clone();
        let socket_directory = blocking(move || site.start_postmaster(deadline)).await?;
        loop {
            let error = match connect(&config(&socket_directory)).await {
                Ok(_) => return Ok(socket_directory),
                Err(error) => error,
            };
            if Instant::now() >= deadline {
                return Err(self.not_up(Some(error)));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    fn not_up(&self, last: Option<ConnectError>) -> ClusterError {
        ClusterError::NotUp {
            path: self.directory.path.clone(),
            within: self.options.start_timeout,
            log: self.directory.log(),
            last,
        }
    }

    fn start_postmaster(&self, deadline: Instant) -> Result<PathBuf, ClusterError> {
        let account = self.account.as_ref();
        let log = self.directory.log();
        self.directory.make_private(&log, account).map_err(files("make the directory", &log))?;
        let socket_directory = self
            .directory
            .socket_directory(account)
            .map_err(files("make a socket directory for", &self.directory.path))?;
        self.write_settings(&socket_directory)?;
        loop {
            let start_log = self.directory.start_log();
            let _ = fs::remove_file(&start_log);
            let began = SystemTime::now();
            let mut pg_ctl = self.command("pg_ctl");
            let left = deadline.saturating_duration_since(Instant::now()).as_secs().max(1);
            pg_ctl
                .args(["start", "--silent", "--wait", "--timeout", &left.to_string()])
                .arg("--pgdata")
                .arg(self.directory.data())
                .arg("--log")
                .arg(&start_log)
                .arg("--options")
                .arg(format!("-c config_file='{}'", self.directory.settings().display()));
            let output = run(&mut pg_ctl)?;
            if output.status.success() {
                return Ok(socket_directory);
            }
            let said = format!("{}{}", text_of(&output), self.directory.logged_since(began));
            // After a killed postmaster its children go within moments; until then their memory is in use.
            let orphans = said.contains("pre-existing shared memory block");
            if !orphans || Instant::now() >= deadline {
                return Err(ClusterError::Program { program: "pg_ctl start", said });
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn write_settings(&self, socket_directory: &Path) -> Result<(), ClusterError> {
        let text = settings::text(&settings::Wanted {
            socket_directory,
            log_directory: &self.directory.log(),
            durable: self.options.durable,
            wal_compression: self.wal_compression()?,
            memory: settings::memory(),
            extra: &self.options.settings,
        });
        let path = self.directory.settings();
        self.directory.write_settings(&text).map_err(files("write", &path))
    }

    /// lz4 is a choice of whoever built PostgreSQL: ask it.
    fn wal_compression(&self) -> Result<&'static str, ClusterError> {
        let mut postgres = self.command("postgres");
        postgres.arg("-D").arg(self.directory.data()).args(["-c", "wal_compression=lz4", "-C", "wal_compression"]);
        let output = run(&mut postgres)?;
        Ok(if output.status.success() { "lz4" } else { "on" })
    }

    fn stop(&self) -> Result<(), ClusterError> {
        if self.directory.pid_file().is_none() {
            return Ok(());
        }
        let fast = self.pg_ctl_stop("fast", STOP_TIMEOUT)?;
        if fast.status.success() || self.directory.pid_file().is_none() {
            return Ok(());
        }
        tracing::warn!(said = %text_of(&fast).trim(), "the private cluster did not stop in time; stopping it hard");
        check("pg_ctl stop", self.pg_ctl_stop("immediate", Duration::from_secs(10))?)
    }

    fn pg_ctl_stop(&self, mode: &str, within: Duration) -> Result<Output, ClusterError> {
        let mut pg_ctl = self.command("pg_ctl");
        pg_ctl
            .args(["stop", "--silent", "--wait", "--mode", mode])
            .args(["--timeout", &within.as_secs().to_string()])
            .arg("--pgdata")
            .arg(self.directory.data());
        run(&mut pg_ctl)
    }

    /// SIGKILL to the postmaster alone: its children notice and go, as after the kernel's out-of-memory killer.
    fn crash(&self) -> Result<(), ClusterError> {
        let Some(pid_file) = self.directory.pid_file() else {
            return Ok(());
        };
        if pid_file.serves(&self.directory.data()) == Some(false) {
            return Ok(());
        }
        let Some(pid) = rustix::process::Pid::from_raw(pid_file.pid) else {
            return Ok(());
        };
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL); // it may be gone already
        let deadline = Instant::now() + Duration::from_secs(30);
        while pid_file.is_alive() && !pid_file.is_zombie() {
            if Instant::now() >= deadline {
                return Err(self.not_up(None));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = programs::command(self.programs.path(program));
        if let Some(account) = &self.account {
            account.apply(&mut command);
        }
        command
    }
}

fn choose_programs(options: &ClusterOptions, data: &Path, version: Option<&str>) -> Result<Programs, ClusterError> {
    let found = programs::installed(options.programs.as_deref());
    let fits = |programs: &&Programs| match version {
        Some(version) => programs.major.to_string() == version,
        None => programs::SUPPORTED.contains(&programs.major),
    };
    match (found.iter().find(fits), version) {
        (Some(programs), _) => Ok(programs.clone()),
        (None, None) => Err(ClusterError::NoPrograms { found }),
        (None, Some(wanted)) => {
            Err(ClusterError::OtherVersion { path: data.to_owned(), wanted: wanted.to_owned(), found })
        }
    }
}

/// pg_ctl hands its paths to a shell between quotes.
fn is_simple(path: &Path) -> bool {
    path.to_str().is_some_and(|text| !text.contains(['"', '\'', '$', '\\', '`']) && !text.contains(char::is_control))
}

fn files<'a>(doing: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> ClusterError + 'a {
    move |source| ClusterError::Files { doing, path: path.to_owned(), source }
}

fn run(command: &mut Command) -> Result<Output, ClusterError> {
    command.output().map_err(|source| ClusterError::Run { program: PathBuf::from(command.get_program()), source })
}

fn check(program: &'static str, output: Output) -> Result<(), ClusterError> {
    match output.status.success() {
        true => Ok(()),
        false => Err(ClusterError::Program { program, said: text_of(&output) }),
    }
}

fn text_of(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A small shell that waits for the end of its input, which comes when this process ends in whatever way, and then kills
/// the cluster and removes its directory. (The kernel's own "signal when the parent dies" means the parent's *thread*.)
#[derive(Debug)]
struct Guard {
    shell: Child,
}

const GUARD: &str = r#"
read line
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null) && kill -QUIT "$pid" 2>/dev/null
tries=0
while [ -e "$1/data/postmaster.pid" ] && kill -0 "$pid" 2>/dev/null && [ "$tries" -lt 100 ]; do sleep 0.05; tries=$((tries + 1)); done
socket=$(cat "$1/socket" 2>/dev/null)
rm -rf -- "$1"
[ -n "$socket" ] && rm -rf -- "$socket"
"#;

impl Guard {
    fn post(site: &Site) -> Result<Guard, ClusterError> {
        let mut command = programs::command("/bin/sh");
        command
            .args(["-c", GUARD, "pcfarm-guard"])
            .arg(&site.directory.path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let shell =
            command.spawn().map_err(|source| ClusterError::Run { program: PathBuf::from("/bin/sh"), source })?;
        Ok(Guard { shell })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait(); // its own waits are bounded
    }
}

#[cfg(test)]
mod tests;
