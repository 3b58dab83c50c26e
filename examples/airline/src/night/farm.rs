//! The farm's processes: a private PostgreSQL, a server, a recycler, agents. All of them real, all of them stopped.

use super::kept::Kept;
use anyhow::{Context, Result, bail};
use pcfarm_sql::cluster::{Cluster, ClusterOptions};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};
use tokio_postgres::{Client, Config, NoTls};

/// Short, so that nobody has to wait long for the recycler; the default is 20 s.
pub const LEASE: Duration = Duration::from_secs(5);

/// What one checkout is worth: short, since a whole demo night is.
const CHECKOUT: &str = "1";

/// For a program to be up, or to end after SIGTERM.
const START_DEADLINE: Duration = Duration::from_secs(30);
pub(super) const STOP_DEADLINE: Duration = Duration::from_secs(15);

const DATABASE: &str = "pcfarm";

const SERVER: &str = "pcfarm-server";
const RECYCLER: &str = "pcfarm-recycler";
const AGENT: &str = "airline-agent";
pub(super) const PROGRAMS: [&str; 3] = [SERVER, RECYCLER, AGENT];

/// A running farm.
pub struct Farm {
    pub port: u16,
    cluster: Option<Cluster>,
    config: Config,
    server: Program,
    recycler: Program,
    agents: Vec<Program>,
    started_agents: usize,
    killed: Option<String>,
    programs: PathBuf,
    directory: PathBuf,
}

/// A child process with a log; killed when it is dropped before it has ended.
struct Program {
    name: String,
    log: PathBuf,
    child: Child,
}

impl Farm {
    /// Database, server and recycler.
    pub async fn start(programs: &Path, directory: &Path) -> Result<Farm> {
        std::fs::create_dir_all(directory).with_context(|| format!("creating {}", directory.display()))?;
        let cluster = Cluster::start(ClusterOptions::new(directory.join("postgres"))).await?;
        let started = start_on(&cluster, programs, directory).await;
        let (config, port, server, recycler) = match started {
            Ok(started) => started,
            Err(error) => {
                drop(cluster.stop().await);
                return Err(error);
            }
        };
        Ok(Farm {
            port,
            cluster: Some(cluster),
            config,
            server,
            recycler,
            agents: Vec::new(),
            started_agents: 0,
            killed: None,
            programs: programs.to_owned(),
            directory: directory.to_owned(),
        })
    }

    pub fn config(&self) -> Config {
        self.config.clone()
    }

    pub fn server_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// For `psql` and `--database-url`.
    pub fn database_url(&self) -> String {
        let socket = self.cluster.as_ref().map(|c| c.socket_directory().display().to_string()).unwrap_or_default();
        format!("postgresql:///{DATABASE}?host={socket}&user={}", self.config.get_user().unwrap_or_default())
    }

    pub fn pids(&self) -> Vec<u32> {
        self.agents.iter().chain([&self.recycler, &self.server]).filter_map(|p| p.child.id()).collect()
    }

    pub async fn client(&self) -> Result<Client> {
        let (client, connection) = self.config.connect(NoTls).await.context("connecting to the database")?;
        // It ends with the client; an error shows at the client's next statement.
        tokio::task::spawn_local(async move { drop(connection.await) });
        Ok(client)
    }

    /// Agents of one core each, as many as there are cores, and at least two.
    pub async fn start_agents(&mut self, cores: usize) -> Result<()> {
        for _ in 0..cores.max(2) {
            self.start_agent().await?;
        }
        Ok(())
    }

    pub async fn start_agent(&mut self) -> Result<()> {
        self.started_agents += 1;
        let name = format!("pc-{}", self.started_agents);
        let mut command = Command::new(self.programs.join(AGENT));
        command.args(["--server", &self.server_url(), "--cores", "1", "--unattended"]);
        command.args(["--hostname", &name, "--state-dir"]);
        command.arg(self.directory.join(&name));
        self.agents.push(spawn(command, &name, &self.directory)?);
        Ok(())
    }

    /// SIGKILL for the newest agent; returns its process id.
    pub fn kill_agent(&mut self) -> Result<u32> {
        let mut agent = self.agents.pop().context("there is no agent to kill")?;
        let pid = agent.child.id().context("the agent has ended by itself")?;
        agent.child.start_kill().context("killing the agent")?;
        self.killed = Some(agent.name);
        Ok(pid)
    }

    pub fn killed_hostname(&self) -> &str {
        self.killed.as_deref().unwrap_or_default()
    }

    /// An error if a program has ended that should not have.
    pub fn check_alive(&mut self) -> Result<()> {
        for program in self.agents.iter_mut().chain([&mut self.server, &mut self.recycler]) {
            if let Some(status) = program.child.try_wait().context("asking after a program")? {
                bail!("{} has ended ({}); its log is {}", program.name, how(status), program.log.display());
            }
        }
        Ok(())
    }

    pub async fn stop_agents(&mut self) -> Result<()> {
        self.agents.iter().for_each(terminate);
        for mut agent in std::mem::take(&mut self.agents) {
            end(&mut agent).await;
        }
        Ok(())
    }

    /// Stops everything, in order, and waits for it.
    pub async fn stop(mut self) -> Result<()> {
        self.stop_agents().await?;
        terminate(&self.recycler);
        terminate(&self.server);
        end(&mut self.recycler).await;
        end(&mut self.server).await;
        match self.cluster.take() {
            Some(cluster) => Ok(cluster.stop().await?),
            None => Ok(()),
        }
    }

    /// Writes down what runs, and lets it run; stops it if it cannot be written down.
    pub async fn leave_running(self) -> Result<()> {
        let pids = self.pids().into_iter().filter_map(|pid| i32::try_from(pid).ok()).collect();
        let kept = Kept { pids, programs: self.programs.clone(), directory: self.directory.clone() };
        if let Err(error) = kept.write() {
            self.stop().await?;
            return Err(error.context("writing down what is left running"));
        }
        for program in self.agents.into_iter().chain([self.recycler, self.server]) {
            std::mem::forget(program.child); // it would be killed when dropped
        }
        Ok(())
    }
}

type Started = (Config, u16, Program, Program);

async fn start_on(cluster: &Cluster, programs: &Path, directory: &Path) -> Result<Started> {
    cluster.create_database_if_missing(DATABASE).await?;
    let mut config = cluster.config();
    config.dbname(DATABASE);
    let url = format!(
        "postgresql:///{DATABASE}?host={}&user={}",
        cluster.socket_directory().display(),
        config.get_user().unwrap_or_default()
    );
    let port = free_port()?;
    let lease = LEASE.as_secs().to_string();
    let mut command = Command::new(programs.join(SERVER));
    command.args(["--listen", &format!("127.0.0.1:{port}"), "--lease", &lease, "--checkout-seconds", CHECKOUT]);
    command.args(["--no-recycler", "--database-url", &url]);
    let mut server = spawn(command, "server", directory)?;
    wait_until_serving(&mut server, port).await?;
    let mut command = Command::new(programs.join(RECYCLER));
    command.args(["--lease", &lease, "--every", "1", "--database-url", &url]);
    let recycler = spawn(command, "recycler", directory)?;
    Ok((config, port, server, recycler))
}

/// Nobody else takes it in the moment between; if somebody does, the server says so.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("looking for a free port")?;
    Ok(listener.local_addr()?.port())
}

/// In a process group of its own, so that Ctrl-C reaches us alone and we stop it in order.
fn spawn(mut command: Command, name: &str, directory: &Path) -> Result<Program> {
    let log = directory.join(format!("{name}.log"));
    let file = std::fs::File::create(&log).with_context(|| format!("creating {}", log.display()))?;
    let program = command.as_std().get_program().to_owned();
    let child = command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("starting {}", program.display()))?;
    Ok(Program { name: name.to_owned(), log, child })
}

async fn wait_until_serving(server: &mut Program, port: u16) -> Result<()> {
    let started = Instant::now();
    while started.elapsed() < START_DEADLINE {
        if let Some(status) = server.child.try_wait()? {
            let log = std::fs::read_to_string(&server.log).unwrap_or_default();
            bail!("the server ended ({}):\n{log}", how(status));
        }
        if tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_ok() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("the server did not start within {START_DEADLINE:?}; its log is {}", server.log.display())
}

fn terminate(program: &Program) {
    use rustix::process::{Pid, Signal, kill_process};
    let pid = program.child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // Gone already is as good.
        let _ = kill_process(pid, Signal::TERM);
    }
}

async fn end(program: &mut Program) {
    if tokio::time::timeout(STOP_DEADLINE, program.child.wait()).await.is_err() {
        drop(program.child.kill().await);
    }
}

fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "for no reason that it told".to_owned(),
    }
}
