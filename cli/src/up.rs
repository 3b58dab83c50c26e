//! `pcfarm up`: a farm on this machine, a server with a private database and some agents, until Ctrl-C.
//!
//! Whatever happens, what was started here is stopped here: agents first, so that they can give back what
//! they hold, then the server, which stops its database.

mod program;

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pcfarm_proto::v1::GetStatusRequest;
use pcfarm_proxy::Proxies;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tonic::Code;

use crate::args::UpArgs;
use crate::exit::{Exit, Failure};
use crate::farm::Farm;
use crate::output;
use crate::settings::Settings;
use crate::text;
use program::Program;

/// A database that recovers from a crash may need minutes; a first start needs a second.
const HEALTHY_TIMEOUT: Duration = Duration::from_secs(300);
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);

/// An agent finishes or gives back; a server writes its database's last checkpoint.
const WORKER_STOP_TIMEOUT: Duration = Duration::from_secs(15);
const SERVER_STOP_TIMEOUT: Duration = Duration::from_secs(75);

/// What is running, in the order in which it was started.
struct Running {
    server: Program,
    workers: Vec<Program>,
}

pub async fn up(args: &UpArgs, insecure: bool) -> Result<Exit> {
    let mut stops = Stops::new()?;
    let directory = prepare(args)?;
    let server_binary = program::find("pcfarm-server")?;
    let worker_binary = if args.workers > 0 { Some(program::find("pcfarm-worker")?) } else { None };
    let url = format!("http://{}", reachable(args.listen));
    let mut server = Program::new("server", &server_binary, &directory.join("server.log"));
    server.arg("--embedded").arg(&directory).arg("--listen").arg(args.listen.to_string());
    if insecure {
        server.arg("--insecure");
    }
    server.start()?;
    let mut running = Running { server, workers: Vec::new() };
    let outcome = run(args, &directory, &url, worker_binary.as_deref(), &mut running, &mut stops).await;
    stop(running, &mut stops).await;
    outcome
}

/// Starts agents when the server is healthy, and watches until there is a reason to stop.
async fn run(
    args: &UpArgs,
    directory: &Path,
    url: &str,
    worker_binary: Option<&Path>,
    running: &mut Running,
    stops: &mut Stops,
) -> Result<Exit> {
    output::note(&format!("starting a farm in {}", directory.display()));
    tokio::select! {
        healthy = healthy(url, &mut running.server) => healthy?,
        () = stops.next() => return Ok(Exit::Done),
    }
    if let Some(binary) = worker_binary {
        for number in 1..=args.workers {
            running.workers.push(start_worker(binary, directory, url, number)?);
        }
    }
    output::print(&welcome(args, directory, url))?;
    loop {
        tokio::select! {
            status = running.server.ended() => return Err(running.server.failure(status?)),
            () = stops.next() => return Ok(Exit::Done),
            () = tokio::time::sleep(Duration::from_secs(1)) => report_ended(&mut running.workers)?,
        }
    }
}

fn start_worker(binary: &Path, directory: &Path, url: &str, number: u16) -> Result<Program> {
    let name = format!("worker-{number}");
    let state = directory.join("workers").join(number.to_string());
    fs::create_dir_all(&state).with_context(|| format!("creating {}", state.display()))?;
    let mut worker = Program::new(&name, binary, &directory.join(format!("{name}.log")));
    // Whoever tries a farm is there, and wants to see it work.
    worker.arg("--server").arg(url).arg("--unattended").arg("--state-dir").arg(state);
    worker.start()?;
    Ok(worker)
}

/// The farm goes on without an agent that has died, but somebody is told.
fn report_ended(workers: &mut Vec<Program>) -> Result<()> {
    let mut i = 0;
    while i < workers.len() {
        match workers[i].has_ended()? {
            None => i += 1,
            Some(status) => {
                let worker = workers.remove(i);
                output::note(&format!("warning: {}", worker.failure(status)));
            }
        }
    }
    Ok(())
}

/// Asks until the server answers with its database behind it.
async fn healthy(url: &str, server: &mut Program) -> Result<()> {
    let settings = Settings {
        server: url.to_owned(),
        timeout: Some(Duration::from_secs(5)),
        token: None,
        ca: None,
        proxies: Proxies::default(),
        insecure: false,
        trace: None,
    };
    let deadline = Instant::now() + HEALTHY_TIMEOUT;
    loop {
        if let Some(status) = server.has_ended()? {
            return Err(server.failure(status));
        }
        let why = match Farm::connect(&settings).await {
            Ok(farm) => match farm.status().get_status(farm.request(GetStatusRequest {})).await {
                Ok(_) => return Ok(()),
                // Its database has told that there are accounts.
                Err(status) if status.code() == Code::Unauthenticated => return Ok(()),
                Err(status) => status.message().to_owned(),
            },
            Err(error) => error.to_string(),
        };
        if Instant::now() >= deadline {
            return Err(Failure::of(
                Exit::TimedOut,
                format!(
                    "the server is not healthy after {}: {why}. Its log: {}",
                    text::duration(HEALTHY_TIMEOUT),
                    server.log().display()
                ),
            ));
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
}

fn welcome(args: &UpArgs, directory: &Path, url: &str) -> String {
    let server = if url == crate::settings::DEFAULT_SERVER { String::new() } else { format!(" --server {url}") };
    format!(
        "A farm is at {url}, with {}. It is kept in {} (logs, too).\n\
         Say in another terminal how a kind of problem runs, load a first job, and watch:\n\n  \
         export PGHOST=$(cat {}) PGUSER=pcfarm PGDATABASE=pcfarm\n  \
         psql -c \"select pcfarm.create_job_type('first', 'echo')\"\n  \
         pcfarm{server} job load problems.csv --name first --type first\n  \
         pcfarm{server} top\n\n\
         Ctrl-C stops it.",
        text::counted(args.workers.into(), "agent"),
        directory.display(),
        directory.join("socket").display()
    )
}

/// In order and bounded; a second Ctrl-C is taken as impatience.
async fn stop(mut running: Running, stops: &mut Stops) {
    output::note("stopping");
    for worker in &running.workers {
        worker.terminate();
    }
    let deadline = Instant::now() + WORKER_STOP_TIMEOUT;
    for worker in &mut running.workers {
        worker.wait_or_kill(deadline, stops).await;
    }
    running.server.terminate();
    running.server.wait_or_kill(Instant::now() + SERVER_STOP_TIMEOUT, stops).await;
}

/// The signals that end this program: Ctrl-C, a service manager, a terminal that was closed.
pub struct Stops {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Stops {
    fn new() -> Result<Stops> {
        let signal = |kind| signal(kind).context("listening for signals");
        Ok(Stops {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

/// The farm's directory, made if it is not there; and an address that is free, because another server that
/// answers there would be taken for ours.
fn prepare(args: &UpArgs) -> Result<PathBuf> {
    if let Err(error) = TcpListener::bind(args.listen) {
        let why = match error.kind() {
            io::ErrorKind::AddrInUse => "another program listens there; choose another with --listen".to_owned(),
            _ => error.to_string(),
        };
        return Err(Failure::of(Exit::Failed, format!("cannot listen on {}: {why}", args.listen)));
    }
    let directory = match &args.dir {
        Some(directory) => directory.clone(),
        None => default_directory()?,
    };
    // Root's is entered by PostgreSQL's account, which runs without root's rights.
    let mode = if rustix::process::geteuid().is_root() { 0o711 } else { 0o700 };
    let made = fs::DirBuilder::new().recursive(true).mode(mode).create(&directory);
    made.with_context(|| format!("creating {}", directory.display()))?;
    directory.canonicalize().with_context(|| format!("opening {}", directory.display()))
}

fn default_directory() -> Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/pcfarm"));
    }
    let configured = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/share"));
    let parent = configured.filter(|path| path.is_absolute()).or(home);
    let parent = parent.ok_or_else(|| Failure::usage("there is no home directory: name one with --dir"))?;
    Ok(parent.join("pcfarm"))
}

/// What to connect to for a server that listens everywhere.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::from(std::net::Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_listens_everywhere_is_here() -> Result<()> {
        let cases = [("0.0.0.0:7070", "127.0.0.1:7070"), ("[::]:7070", "[::1]:7070"), ("10.0.0.7:1", "10.0.0.7:1")];
        for (listen, expected) in cases {
            assert_eq!(reachable(listen.parse()?).to_string(), expected);
        }
        Ok(())
    }
}
