//! Start, run, drain: a server's life from settings to exit.

use crate::accept::{self, Connections, Incoming, Limits, Protocol};
use crate::access::{self, Access};
use crate::authority::Tls;
use crate::farm::{Farm, Parts};
use crate::files::Files;
use crate::grpc::jobs::JobsApi;
use crate::originals::Originals;
use crate::originals::kept::Store;
use crate::reads::Reads;
use crate::settings::{Database, HttpListen, Settings};
use crate::traces::Traces;
use crate::{
    alerts, clock, deliver, descriptors, dispatch, grpc, instruments, registrar, rest, schedules, upkeep, waking,
    watch, watchdog,
};
use anyhow::Context;
use deadpool_postgres::{Pool, PoolError};
use pcfarm_proto::ids::ServerId;
use pcfarm_sql::cluster::{Cluster, ClusterOptions};
use pcfarm_sql::connect::{ConnectError, Target, pooler};
use pcfarm_sql::migrate::rights;
use pcfarm_sql::pool::ServerFacts;
use pcfarm_sql::settings::DatabaseSettings;
use pcfarm_sql::{migrate, pool, presence};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

/// The embedded cluster's database.
const EMBEDDED_DATABASE: &str = "pcfarm";

/// How long connections and tasks may take to end.
const STOP_DEADLINE: Duration = Duration::from_secs(10);
const LAST_WORD_DEADLINE: Duration = Duration::from_secs(2);

/// How long to wait for a database that is not up yet.
const DATABASE_DEADLINE: Duration = Duration::from_secs(30);
const DATABASE_RETRY: Duration = Duration::from_secs(1);

/// Runs until SIGTERM or SIGINT.
pub async fn run(settings: Settings) -> anyhow::Result<()> {
    let stopping = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate()).context("watching for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("watching for SIGINT")?;
    let mut tasks = JoinSet::new();
    let stop = stopping.clone();
    // Ends with the process; a second signal ends it at once.
    tasks.spawn(async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        info!("stopping");
        stop.cancel();
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        warn!("stopping at once");
        std::process::exit(130);
    });
    let (cluster, target, passwords) = database(&settings.database).await?;
    let outcome = serve(&settings, target, passwords, stopping).await;
    if let Some(cluster) = cluster {
        cluster.stop().await.context("stopping the embedded database")?;
    }
    outcome
}

pub(crate) type Located = (Option<Cluster>, Target, crate::reads::Passwords);

pub(crate) async fn database(settings: &Database) -> anyhow::Result<Located> {
    match settings {
        Database::Embedded(directory) => {
            let cluster = Cluster::start(ClusterOptions::new(directory))
                .await
                .with_context(|| format!("starting the embedded database in {}", directory.display()))?;
            cluster.create_database_if_missing(EMBEDDED_DATABASE).await?;
            let mut config = cluster.config();
            config.dbname(EMBEDDED_DATABASE);
            info!(directory = %directory.display(), socket = %cluster.socket_directory().display(),
                adopted = cluster.was_adopted(), "embedded database runs");
            Ok((Some(cluster), config.into(), Box::new(|_| None)))
        }
        Database::Url { flag, file } => {
            let in_environment =
                ["PCFARM_DATABASE_URL", "DATABASE_URL"].iter().any(|name| std::env::var_os(name).is_some());
            let url = flag.as_ref().or(file.as_ref().filter(|_| !in_environment));
            let located = DatabaseSettings::resolve(url.map(String::as_str)).context("finding the database")?;
            for warning in &located.warnings {
                warn!("{warning}");
            }
            info!(database = %located, "database");
            let target = located.target.clone();
            Ok((None, target, Box::new(move |role| located.password_for(role))))
        }
    }
}

async fn serve(
    settings: &Settings,
    target: Target,
    passwords: crate::reads::Passwords,
    stopping: CancellationToken,
) -> anyhow::Result<()> {
    instruments::install();
    // Before anything else: what is missing is the administrator's to make.
    let tls = match &settings.tls {
        Some(files) => Some(Arc::new(Tls::load(files.clone(), settings.certificate_lifetime)?)),
        None => None,
    };
    let Some(uploads) = stopping.run_until_cancelled(Store::open(&settings.originals, &settings.outward)).await else {
        return Ok(());
    };
    let uploads = uploads?;
    let facts = prepare_database(&target, &stopping).await?;
    let mut connections = settings.connections;
    connections.total = descriptors::make_room(connections.total);
    let listeners = Listeners::open(settings)?;
    let address = listeners.grpc.local_addr().context("asking for the port")?;
    let (pool, epoch) = pool::pool_with_epoch(target.clone(), settings.pool_size, "pcfarm-server");
    let server_id = patiently(&stopping, async || register(settings, &pool, &address.to_string()).await).await?;
    let (traces, sender) = Traces::start(settings.traces.as_ref(), &settings.name, &settings.outward)?;
    let (dispatcher, events) = mpsc::channel(dispatch::EVENTS_LIMIT);
    let (acceptor, inbox) = mpsc::channel(deliver::INBOX_LIMIT);
    let (registrar, entries) = mpsc::channel(registrar::ENTRIES_LIMIT);
    let access = Arc::new(Access::new(pool.clone(), settings.asks, settings.registration));
    let farm = Farm::new(Parts {
        pool,
        access,
        tls,
        epoch,
        server_id,
        rhythm: settings.rhythm.clone(),
        dispatcher,
        acceptor,
        registrar,
        reads: Reads::new(target.clone(), passwords),
        traces,
        stopping: stopping.clone(),
    });
    patiently(&stopping, async || farm.reload_job_types().await.context("reading the job types")).await?;
    let watch = patiently(&stopping, async || clock::watch::Watch::begin(farm.clone()).await).await?;
    let mut facts = facts;
    for warning in clock::data::warnings(&farm.pool).await {
        warn!("{warning}");
        facts.warnings.push(warning);
    }
    settings.outward.warn();
    info!(%address, %server_id, lease = ?settings.rhythm.lease, heartbeat = ?settings.rhythm.heartbeat,
        checkout = ?settings.rhythm.checkout, recycler = settings.recycler, tls = farm.tls.is_some(), asks = ?settings.asks, mail = ?settings.mailer, proxy = ?settings.outward.proxies,
        traces = settings.traces.as_ref().map_or("none", |traces| traces.endpoint.as_str()), "serving");

    let mut parts = JoinSet::new();
    parts.spawn(dispatch::run(farm.clone(), events));
    parts.spawn(dispatch::spread::run(farm.clone()));
    parts.spawn(deliver::run(farm.clone(), inbox));
    parts.spawn(registrar::run(farm.clone(), entries));
    parts.spawn(watch.run());
    parts.spawn(watch::pulse(farm.clone()));
    parts.spawn(watch::sessions(farm.clone()));
    parts.spawn(access::lasting::watch(farm.access.clone(), stopping.clone()));
    parts.spawn(watch::listen(farm.clone(), pool::session_config(target, "pcfarm-server listening")));
    parts.spawn(upkeep::sweep(farm.clone()));
    parts.spawn(waking::run(farm.clone()));
    parts.spawn(alerts::run(farm.clone(), settings.mailer.clone(), settings.outward.clone()));
    if let Some(tls) = &farm.tls {
        parts.spawn(tls.clone().watch(stopping.clone()));
    }
    parts.spawn(schedules::ticker::run(farm.clone()));
    parts.spawn(schedules::loads::run(farm.clone()));
    parts.spawn(watchdog::run(farm.clone()));
    if settings.recycler {
        parts.spawn(upkeep::recycle(farm.clone()));
    }
    let mut serving = JoinSet::new();
    let jobs = Arc::new(JobsApi::new(farm.clone()));
    let files = Files::new(farm.pool.clone());
    let originals = Originals::new(farm.clone(), jobs.clone(), uploads);
    parts.spawn(originals.clone().sweep());
    let (of_grpc, of_rest) = listeners.accept(connections, &farm, &mut serving);
    if let Some(connections) = of_rest {
        let api = rest::Services::new(farm.clone(), (jobs.clone(), files.clone()), originals, facts.warnings.clone());
        serving.spawn(rest::serve(api, connections, stopping.clone()));
    }
    serving.spawn(grpc::serve::serve(farm.clone(), (jobs, files), of_grpc, facts.warnings));
    watchdog::ready(&address.to_string());
    // A part that ends before its time is a bug: stop, and let the service manager start a whole server.
    let outcome = tokio::select! {
        biased; // when all is told to stop, the parts end too
        () = stopping.cancelled() => Ok(()),
        Some(ended) = parts.join_next() => {
            error!(?ended, "a part of the server ended: stopping");
            Err(anyhow::anyhow!("a part of the server ended: {ended:?}"))
        }
        Some(served) = serving.join_next() => served.context("serving").and_then(|served| served),
    };
    stopping.cancel();
    watchdog::stopping();
    stop(&farm, parts, serving).await;
    if let Some(sender) = sender {
        sender.finish().await;
    }
    outcome
}

/// The ports, which are taken before the database is asked for anything.
struct Listeners {
    grpc: TcpListener,
    rest: Rest,
}

enum Rest {
    Nowhere,
    Same,
    At(TcpListener),
}

impl Listeners {
    fn open(settings: &Settings) -> anyhow::Result<Listeners> {
        let grpc = accept::listen(settings.listen).with_context(|| format!("listening on {}", settings.listen))?;
        let rest = match settings.http_listen {
            HttpListen::Nowhere => Rest::Nowhere,
            HttpListen::Same => Rest::Same,
            HttpListen::At(address) => {
                Rest::At(accept::listen(address).with_context(|| format!("listening on {address} for REST"))?)
            }
        };
        let of_rest = match &rest {
            Rest::Nowhere => None,
            Rest::Same => Some(&grpc),
            Rest::At(listener) => Some(listener),
        };
        if let Some(listener) = of_rest {
            info!(address = %listener.local_addr().context("asking for the port")?, "REST");
        }
        Ok(Listeners { grpc, rest })
    }

    /// Connections of gRPC and of REST, told apart among `serving` where they share a port.
    fn accept(
        self,
        limits: Limits,
        farm: &Farm,
        serving: &mut JoinSet<anyhow::Result<()>>,
    ) -> (Connections, Option<Connections>) {
        let of = |protocol, listener| -> Connections {
            Box::pin(Incoming::of(protocol, listener, limits, farm.tls.clone()))
        };
        match self.rest {
            Rest::Nowhere => (of(Protocol::Http2, self.grpc), None),
            Rest::At(rest) => (of(Protocol::Http2, self.grpc), Some(of(Protocol::Http1, rest))),
            Rest::Same => {
                let incoming = Incoming::either(self.grpc, limits, farm.tls.clone());
                let (grpc, rest, telling) = accept::apart(incoming, farm.stopping.clone());
                serving.spawn(telling);
                (grpc, Some(rest))
            }
        }
    }
}

async fn stop(farm: &Arc<Farm>, mut parts: JoinSet<()>, mut serving: JoinSet<anyhow::Result<()>>) {
    farm.tasks.close();
    let ended = async {
        farm.tasks.wait().await;
        while parts.join_next().await.is_some() {}
        while serving.join_next().await.is_some() {}
    };
    if tokio::time::timeout(STOP_DEADLINE, ended).await.is_err() {
        warn!("not everything ended in time: stopping all the same");
    }
    // Without this word it is taken to have stopped a little later.
    let last_word = async {
        if let Ok(client) = farm.pool.get().await {
            drop(presence::stop_server(&client, farm.server_id).await);
        }
    };
    drop(tokio::time::timeout(LAST_WORD_DEADLINE, last_word).await);
    farm.pool.close();
}

/// Does it again while the database is away, or goes away in the middle of it.
async fn patiently<T>(
    stopping: &CancellationToken,
    mut act: impl AsyncFnMut() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let started = tokio::time::Instant::now();
    loop {
        match act().await {
            Err(error) if started.elapsed() < DATABASE_DEADLINE && !stopping.is_cancelled() && is_away(&error) => {
                warn!(error = format!("{error:#}"), "the database does not answer: trying again");
                tokio::time::sleep(DATABASE_RETRY).await;
            }
            outcome => return outcome,
        }
    }
}

/// True if the database is out of reach, silent, starting, stopping or full, so that a retry may succeed.
fn is_away(error: &anyhow::Error) -> bool {
    if error.chain().any(|cause| cause.downcast_ref().is_some_and(ConnectError::is_lasting)) {
        return false;
    }
    let is_silent = error.chain().any(|cause| {
        matches!(cause.downcast_ref(), Some(ConnectError::Timeout { .. }))
            || matches!(cause.downcast_ref(), Some(pooler::PoolerError::Timeout { .. }))
    });
    // A hook that failed has met a database that is silent, or one that is about to be promoted.
    let busy = error
        .chain()
        .any(|cause| matches!(cause.downcast_ref(), Some(PoolError::Timeout(_) | PoolError::PostCreateHook(_))));
    let lost = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<tokio_postgres::Error>())
        .is_some_and(|error| error.code().is_none_or(|code| matches!(&code.code()[..2], "08" | "53" | "57" | "58")));
    is_silent || busy || lost
}

/// Waits for the database, checks that it keeps what it commits, brings its schema up to date.
pub(crate) async fn prepare_database(target: &Target, stopping: &CancellationToken) -> anyhow::Result<ServerFacts> {
    let target = pool::session_config(target.clone(), "pcfarm-server");
    patiently(stopping, async || {
        pooler::refuse_transaction_pooling(&target).await.context("checking the way to the database")?;
        let (mut client, _connection) = target.connect().await.context("connecting to the database")?;
        let facts = pool::check_server(&client).await.context("checking the database server")?;
        rights::check(&client).await.context("checking the rights of the login")?;
        let ran = migrate::migrate(&mut client).await.context("bringing the schema up to date")?;
        for warning in &facts.warnings {
            warn!("{warning}");
        }
        info!(version = facts.version, migrations = ran, "database is ready");
        Ok(facts)
    })
    .await
}

/// Says to the database who serves, from when on.
async fn register(settings: &Settings, pool: &Pool, address: &str) -> anyhow::Result<ServerId> {
    let client = pool.get().await.context("connecting to the database")?;
    Ok(presence::start_server(&client, &settings.name, address, env!("CARGO_PKG_VERSION")).await?)
}
