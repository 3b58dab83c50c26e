//! A complete agent program: settings, identity, run, drain, exit code.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use pcfarm_proto::secrets::JoinToken;
use pcfarm_proto::v1;
#[cfg(target_os = "linux")]
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;
use tracing::{error, info, warn};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use uuid::Uuid;

use crate::controller::Controller;
use crate::credentials::Credentials;
use crate::drive::{Setup, drive};
use crate::entrance::Entrance;
use crate::equipment::Lookout;
#[cfg(target_os = "linux")]
use crate::exec::controller::Programs;
#[cfg(any(target_os = "linux", feature = "wasm"))]
use crate::files::{Farm, Files, Lazy};
use crate::inventory::{Ending, Profile};
use crate::local::Local;
use crate::local::message::About;
use crate::machine;
use crate::machine::fingerprint::Fingerprint;
use crate::manners::{self, Rank};
use crate::missing;
use crate::platform::{self, Stops};
use crate::pool;
use crate::presence::{Desk, Presence, Start, cores};
use crate::settings::{self, Asked, Settings, SettingsError};
use crate::sleep::{self, Wake};
use crate::slots;
use crate::solve::Controllers;
use crate::state_dir::binding::Binding;
use crate::state_dir::{StateDir, StateDirError};
use crate::steps::{Declaration, POOLS_SHARE, Running, StepController, WiringError};
use crate::watchdog::{Manager, Watchdog};

/// Tells a process that it takes the place of another, which was in a person's way, and under which name the servers know it.
const REPLACES: &str = "PCFARM_REPLACES";

/// How an agent ended that did not fail.
enum Ended {
    AsTold,
    /// Another process takes its place.
    ToBeReplaced(Successor),
}

/// What takes a process' place.
enum Successor {
    /// The same, to the servers, of an agent whose controllers do not hear that they are in a person's way.
    Same { instance: Uuid },
    /// One that begins afresh, with as many cores as the farm wants.
    Fresh,
}

/// An agent and the controllers it can run.
#[derive(Default)]
pub struct Agent {
    controllers: Controllers,
    steps: Vec<Declaration>,
    pools_share: Option<f64>,
    duplicate: Option<String>,
}

/// Why an agent ended otherwise than it was told to.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Its controllers' steps cannot work as they are declared.
    #[error(transparent)]
    Steps(#[from] WiringError),
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// It was told to stop, and no server acknowledged what it held.
    #[error("stopped with {0} checkouts unacknowledged: no server was reachable; the farm takes them back")]
    Unacknowledged(usize),
    #[error("cannot watch for the workstation's person")]
    Presence(std::io::Error),
    #[error("joining the farm: {0:#}")]
    Joining(anyhow::Error),
    #[error(transparent)]
    Failed(anyhow::Error),
}

impl AgentError {
    /// 1 failed, 2 wrong usage, 3 not reachable, 5 not allowed.
    pub fn exit_code(&self) -> u8 {
        match self {
            AgentError::StateDir(_) | AgentError::Presence(_) | AgentError::Failed(_) => 1,
            AgentError::Settings(_) | AgentError::Steps(_) => 2,
            AgentError::Unacknowledged(_) => 3,
            AgentError::Joining(_) => 5,
        }
    }
}

/// Runs an agent with one controller: reads flags, environment and file, logs to standard error, and works
/// until SIGTERM or SIGINT. `--help` tells the flags.
pub fn run(controller: impl Controller) -> ExitCode {
    Agent::new().controller(controller).run()
}

impl Agent {
    pub fn new() -> Agent {
        Agent::default()
    }

    /// Adds a controller; the agent is offered problems of all it has.
    #[must_use]
    pub fn controller<C: Controller>(mut self, controller: C) -> Agent {
        if self.names().iter().any(|name| name == C::NAME) || !self.controllers.add(controller) {
            self.duplicate = Some(C::NAME.to_owned());
        }
        self
    }

    /// Adds a controller of several [steps](crate::steps).
    #[must_use]
    pub fn steps<C: StepController>(mut self, controller: C) -> Agent {
        if self.names().iter().any(|name| name == C::NAME) {
            self.duplicate = Some(C::NAME.to_owned());
        }
        self.steps.push(Declaration::of(controller));
        self
    }

    /// How much of the cores' time the pools of [steps](crate::steps) may use together while every core has a computation: 0.015
    /// if it is not said, on Linux. A call that only waits uses some 20 µs; the more of that pools may use, the less is left to
    /// compute with. 1 holds no pool back.
    #[must_use]
    pub fn pools_share(mut self, share: f64) -> Agent {
        self.pools_share = Some(share.clamp(0.0001, 1.0));
        self
    }

    fn names(&self) -> Vec<String> {
        let mut names = self.controllers.names();
        names.extend(self.steps.iter().map(|declaration| declaration.name().to_owned()));
        names.sort();
        names
    }

    /// What it is made of, for a run without a farm; or why it cannot be run.
    pub(crate) fn parts(self, cores: usize) -> Result<(Controllers, Running), AgentError> {
        if let Some(name) = self.duplicate {
            return Err(SettingsError::DuplicateController(name).into());
        }
        if self.names().is_empty() {
            return Err(SettingsError::NoController.into());
        }
        let running = Running::start(&self.steps, cores, self.pools_share.unwrap_or(POOLS_SHARE))?;
        Ok((self.controllers, running))
    }

    /// As [`run`], with all its controllers.
    pub fn run(self) -> ExitCode {
        #[cfg(target_os = "linux")]
        crate::exec::supervise_if_asked();
        let asked = Asked::of_program();
        #[cfg(windows)]
        if matches!(asked.command, Some(crate::command::Command::Serve)) {
            log_as_service();
            return match asked.settings {
                Ok(settings) => crate::service::windows::serve(settings.grace, move || self.run_until_told(settings)),
                Err(error) => failed(&error.into()),
            };
        }
        start_logging();
        if let Some(command) = &asked.command {
            return crate::command::run(command, &asked);
        }
        match asked.settings {
            Ok(settings) => self.run_until_told(settings),
            Err(error) => failed(&error.into()),
        }
    }

    /// The program's life, when it has settings.
    #[cfg_attr(not(target_os = "linux"), allow(unused_mut, reason = "programs have a supervisor on Linux"))]
    fn run_until_told(self, mut settings: Settings) -> ExitCode {
        #[cfg(target_os = "linux")]
        {
            // This very binary, even if its file is replaced meanwhile.
            settings.supervisor = Some("/proc/self/exe".into());
        }
        #[cfg(target_os = "linux")]
        if !settings.programs.is_empty() {
            // Programs of the same user must not look into it.
            if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
                return failed(&AgentError::Failed(std::io::Error::from(error).into()));
            }
            if let Err(error) = crate::exec::orphans::adopt() {
                return failed(&AgentError::Failed(error.into()));
            }
        }
        if !settings.presence.policy.unattended {
            manners::give_precedence();
        }
        // One thread for all that waits: with each that a problem is handed on to, it waits for a core once more.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        match runtime {
            Ok(runtime) => {
                let ended = runtime.block_on(self.run_until_signalled(settings));
                runtime.shutdown_background();
                ended.unwrap_or_else(replace)
            }
            Err(error) => failed(&AgentError::Failed(error.into())),
        }
    }

    /// The first signal stops it in good order, the second at once. An error is no error, but that it is to be replaced.
    async fn run_until_signalled(self, settings: Settings) -> Result<ExitCode, Successor> {
        let mut stops = match Stops::new() {
            Ok(stops) => stops,
            Err(error) => return Ok(failed(&AgentError::Failed(error.into()))),
        };
        let stop = CancellationToken::new();
        let (grace, manager) = (settings.grace, Manager::of_program());
        let mut agent = std::pin::pin!(self.run_as(
            settings,
            stop.clone(),
            Some(Own { instance: replaced(), manager: manager.clone() })
        ));
        let ended = tokio::select! {
            ended = &mut agent => ended,
            () = stops.next() => {
                info!("told to stop; once more to stop at once");
                manager.stopping(grace);
                stop.cancel();
                tokio::select! {
                    ended = &mut agent => ended,
                    () = stops.next() => {
                        error!("stopped at once: what was held is lost to this agent, and the farm takes it back");
                        return Ok(ExitCode::FAILURE);
                    }
                }
            }
        };
        match ended {
            // A signal that comes now ends it for good.
            Ok(Ended::ToBeReplaced(successor)) if !stop.is_cancelled() => Err(successor),
            Ok(Ended::ToBeReplaced(_) | Ended::AsTold) => {
                info!("stopped");
                Ok(ExitCode::SUCCESS)
            }
            Err(error) => Ok(failed(&error)),
        }
    }

    /// Runs the agent inside another program until `stop` is cancelled, and then until what it holds has been
    /// delivered or given back. Leaves logging and signals alone.
    ///
    /// Nothing can end a controller in another program's process that does not hear that the workstation's person is back: it goes
    /// on until it returns. An agent that is a program, by [`Agent::run`], is replaced by a new process then. So it is when the farm
    /// wants it to use more or fewer cores, which holds from the next start on where it runs inside another program.
    pub async fn run_with(self, settings: Settings, stop: CancellationToken) -> Result<(), AgentError> {
        Box::pin(self.run_as(settings, stop, None)).await.map(|_| ())
    }

    async fn run_as(
        mut self,
        mut settings: Settings,
        stop: CancellationToken,
        own: Option<Own>,
    ) -> Result<Ended, AgentError> {
        let endpoints = settings.endpoints()?;
        let state_dir = StateDir::open_bound(&settings.state_dir, &Fingerprint::of_this_machine())?;
        settings.cores = cores::begin(&mut settings.presence, settings.cores, &settings.state_dir);
        let credentials = Arc::new(settings.credentials(state_dir.identity));
        #[cfg(any(target_os = "linux", feature = "wasm"))]
        let programs = {
            let place = FilesPlace::of(&settings, state_dir.identity, &endpoints, &credentials);
            self.take_in(&settings, state_dir.identity, place)?
        };
        #[cfg(not(any(target_os = "linux", feature = "wasm")))]
        let programs = Programs;
        let names = self.names();
        let (controllers, steps) = self.parts(settings.cores)?;
        note_start(&settings, state_dir.identity, &names);
        let manager = own.as_ref().map_or_else(Manager::nobody, |own| own.manager.clone());
        manager.ready();
        let mut watchdog = Watchdog::new(manager);
        let is_copy = state_dir.binding.cloned_from.is_some();
        let entering = enter(&settings, &credentials, &endpoints, is_copy);
        match watchdog.during(stop.run_until_cancelled(entering)).await {
            None => return Ok(Ended::AsTold),
            Some(entered) => entered?,
        }
        let threads =
            pool::threads(settings.cores, Rank::of(settings.presence.policy.unattended)).map_err(AgentError::Failed)?;
        let start =
            if own.as_ref().is_some_and(|own| own.instance.is_some()) { Start::Interrupted } else { Start::Fresh };
        settings.presence.own_users = own_users(&settings);
        // Its thread ends with it.
        let presence =
            Presence::start(settings.presence.clone(), &settings.state_dir, start).map_err(AgentError::Presence)?;
        let desk = presence.desk.clone();
        desk.introduce(About {
            identity: state_dir.identity.to_string(),
            hostname: settings.hostname.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            servers: settings.servers.clone(),
            gpu: settings.gpu,
            gpus: Vec::new(),
            session: None,
        });
        let watchdog = watchdog.minding(desk.clone());
        let can_be_replaced = own.is_some();
        let looks = (settings.clone(), names.clone(), desk.clone());
        let body = Body {
            equipment: Lookout::new(move || {
                let (settings, names, desk) = &looks;
                desk.found_gpus(crate::machine::gpus_explained(std::path::Path::new("/"), settings.gpu));
                equipment(settings, names)
            }),
            settings,
            state_dir,
            endpoints,
            credentials,
            threads,
            controllers,
            steps,
            names,
            instance: own.and_then(|own| own.instance).unwrap_or_else(Uuid::new_v4),
            desk,
            replace: CancellationToken::new(),
            stop: stop.clone(),
        };
        body.work(watchdog, &programs, can_be_replaced, stop).await
    }

    /// What its owner lets it run beside its own controllers: programs, and modules.
    #[cfg(any(target_os = "linux", feature = "wasm"))]
    fn take_in(&mut self, settings: &Settings, identity: Uuid, place: FilesPlace) -> Result<Programs, SettingsError> {
        let mut kept = None;
        #[cfg(target_os = "linux")]
        let programs = match settings.programs.is_empty() {
            true => Programs::default(),
            false => {
                let files = place.open_once(&mut kept)?;
                Programs::add(settings, identity, files, &mut self.controllers)?
            }
        };
        #[cfg(not(target_os = "linux"))]
        let (programs, _) = (Programs, identity);
        #[cfg(feature = "wasm")]
        if let Some(limits) = settings.wasm_limits().map_err(SettingsError::from)? {
            let files = place.open_once(&mut kept)?;
            crate::wasm::controller::add(
                files,
                settings.supervisor.clone(),
                (limits, settings.cores),
                &mut self.controllers,
            )?;
        }
        self.controllers.store = Some(Arc::new(Lazy::new(kept, Box::new(move || place.open()))));
        Ok(programs)
    }
}

/// There are none here.
#[cfg(not(target_os = "linux"))]
struct Programs;

fn note_start(settings: &Settings, identity: Uuid, controllers: &[String]) {
    info!(
        %identity,
        servers = settings.servers.join(","),
        state_dir = %settings.state_dir.display(),
        cores = settings.cores,
        hostname = settings.hostname,
        prefetch = settings.prefetch,
        grace_seconds = settings.grace.as_secs(),
        unacknowledged_bytes = settings.unacknowledged_bytes,
        controllers = controllers.join(","),
        "agent starts"
    );
    if let Some(missing) = missing::desktop().filter(|_| !settings.presence.policy.unattended) {
        warn!("sessions of a desktop are not watched: {missing}");
    }
}

/// Joins the farm, if it is to, and has a certificate that holds for a while.
async fn enter(
    settings: &Settings,
    credentials: &Credentials,
    endpoints: &[Endpoint],
    is_copy: bool,
) -> Result<(), AgentError> {
    match &settings.join_token {
        // The token may be used up. The link goes on to try, and reports the copy.
        Some(token) if is_copy && !credentials.are_there() => join_if_possible(credentials, endpoints, token).await,
        Some(token) => credentials.join(endpoints, token).await.map_err(AgentError::Joining)?,
        None => {}
    }
    credentials.renew_if_due(endpoints).await;
    Ok(())
}

async fn join_if_possible(credentials: &Credentials, endpoints: &[Endpoint], token: &JoinToken) {
    for server in endpoints {
        match credentials.join_once(server, token).await {
            Ok(()) => return info!(server = %server.uri(), "joined the farm"),
            Err(error) => {
                warn!(server = %server.uri(), error = format!("{error:#}"), "cannot join the farm with an identity of its own");
            }
        }
    }
}

/// What the sessions of an agent have in common.
pub(crate) struct Body {
    pub settings: Settings,
    pub state_dir: StateDir,
    endpoints: Vec<Endpoint>,
    credentials: Arc<Credentials>,
    threads: Arc<rayon::ThreadPool>,
    controllers: Controllers,
    steps: Running,
    /// Of all controllers.
    names: Vec<String>,
    instance: Uuid,
    desk: Desk,
    replace: CancellationToken,
    equipment: Arc<Lookout>,
    /// Cancelled when the program is to stop.
    stop: CancellationToken,
}

impl Body {
    /// For the agent itself, or for one of its slots.
    pub fn setup(&self, identity: Uuid, slot: Option<&str>) -> Setup {
        let mut hello = hello(&self.settings, identity, self.instance, self.names.clone());
        v1::Equipment { gpus: hello.gpus, programs: hello.programs } = self.equipment.known().borrow().clone();
        let binding = &self.state_dir.binding;
        hello.machine = binding.machine.digest().map(|digest| digest.to_vec().into()).unwrap_or_default();
        hello.rebinding = rebinding(binding);
        if let Some(slot) = slot {
            hello.hostname = format!("{}#{slot}", hello.hostname);
        }
        let profile = Profile {
            hello,
            prefetch: self.settings.prefetch,
            grace: self.settings.grace,
            after_lease: self.settings.after_lease,
            unacknowledged_bytes: self.settings.unacknowledged_bytes,
            apart: self.apart(),
            freezable: self.names.iter().filter(|name| can_stand_still(name)).cloned().collect(),
        };
        Setup {
            endpoints: self.endpoints.clone(),
            credentials: self.credentials.clone(),
            entrance: None,
            threads: self.threads.clone(),
            controllers: self.controllers.clone(),
            engine: Arc::clone(self.steps.engine()),
            profile,
            slots: None,
            desk: self.desk.clone(),
            wake: Wake::Never,
            watchdog: None,
            replace: self.replace.clone(),
            equipment: Arc::clone(&self.equipment),
            stop: self.stop.clone(),
        }
    }
}

impl Body {
    /// Its own session and its slots, until it is to stop or to be replaced; and whoever asks it something meanwhile.
    async fn work(
        &self,
        watchdog: Watchdog,
        programs: &Programs,
        can_be_replaced: bool,
        stop: CancellationToken,
    ) -> Result<Ended, AgentError> {
        let (slots, wanted) = watch::channel(Vec::new());
        let wake = self.settings.sleep.wake.clone();
        let setup = self.setup(self.state_dir.identity, None);
        let entrance = Entrance::new(&self.settings, &self.state_dir, self.credentials.clone());
        let entrance = Some(Arc::new(entrance));
        let setup = Setup { slots: Some(slots), wake, watchdog: Some(watchdog), entrance, ..setup };
        let ends = stop.child_token();
        // Its slots end with it: nobody is left who tells them apart.
        let working =
            async { tokio::join!(Box::pin(drive(setup, ends.clone())), slots::run(wanted, self, ends.clone())) };
        let socket = self.settings.socket.clone().unwrap_or_else(|| platform::socket(&self.settings.state_dir));
        let socket = Local::open(socket.clone(), self.desk.clone()).inspect_err(
            |error| warn!(socket = %socket.display(), %error, "nobody can ask this agent anything on this machine"),
        );
        let local = async {
            match socket {
                Ok(local) => local.serve().await,
                Err(_) => std::future::pending().await,
            }
        };
        #[cfg(target_os = "linux")]
        let idle_programs = programs.give_way(self.desk.directives());
        #[cfg(not(target_os = "linux"))]
        let idle_programs = {
            let Programs = programs;
            std::future::pending()
        };
        let starts_anew = async {
            self.desk.is_to_start_anew().await;
            info!("starts anew, with as many cores as the farm wants");
            ends.cancel();
            std::future::pending().await
        };
        let (ended, left) = tokio::select! {
            ended = working => ended,
            () = idle_programs => unreachable!("it never ends"),
            () = self.replace.cancelled(), if can_be_replaced => {
                return Ok(Ended::ToBeReplaced(Successor::Same { instance: self.instance }));
            }
            () = starts_anew, if can_be_replaced && platform::REPLACES => unreachable!("it ends with its work"),
            () = local => unreachable!("it serves for ever"),
            () = self.equipment.keep(crate::equipment::LOOK_EVERY) => unreachable!("it looks for ever"),
            never = sleep::run(self.settings.sleep.sleeps.clone(), self.desk.clone()) => match never {},
            never = sleep::announced(&self.settings.presence.run, &self.desk) => match never {},
            () = self.credentials.keep_renewing(&self.endpoints) => unreachable!("it never ends"),
        };
        match ended {
            // What no server has acknowledged the farm takes back.
            Ok(_) if ends.is_cancelled() && !stop.is_cancelled() => Ok(Ended::ToBeReplaced(Successor::Fresh)),
            Ok(Ending::Clean) if left == 0 => Ok(Ended::AsTold),
            Ok(Ending::Clean) => Err(AgentError::Unacknowledged(left)),
            Ok(Ending::Unacknowledged(checkouts)) => Err(AgentError::Unacknowledged(checkouts + left)),
            Err(error) => Err(AgentError::Failed(error)),
        }
    }

    /// Controllers that wait for pools of their own, and not for the cores.
    fn apart(&self) -> BTreeSet<String> {
        let controllers = self.steps.engine().controllers();
        controllers.filter(|(_, flow)| flow.has_pools()).map(|(name, _)| name.to_owned()).collect()
    }
}

/// Where an agent keeps the farm's files, beside the directory where its programs work: one for all who need some.
#[cfg(any(target_os = "linux", feature = "wasm"))]
struct FilesPlace {
    path: PathBuf,
    bytes_limit: u64,
    farm: Farm,
}

#[cfg(any(target_os = "linux", feature = "wasm"))]
impl FilesPlace {
    fn of(settings: &Settings, identity: Uuid, endpoints: &[Endpoint], credentials: &Arc<Credentials>) -> FilesPlace {
        // Programs have another working directory.
        let path = settings.work_dir.join(format!("{identity}.files"));
        let path = std::path::absolute(&path).unwrap_or(path);
        let runtime = tokio::runtime::Handle::current();
        let farm = Farm { endpoints: endpoints.to_vec(), credentials: Arc::clone(credentials), runtime };
        FilesPlace { path, bytes_limit: settings.files_bytes, farm }
    }

    fn open(&self) -> Result<Arc<Files>, SettingsError> {
        let files = Files::open(self.path.clone(), self.bytes_limit, self.farm.clone()).map(Arc::new);
        files.map_err(|source| SettingsError::FilesDir { path: self.path.clone(), source })
    }

    fn open_once(&self, kept: &mut Option<Arc<Files>>) -> Result<Arc<Files>, SettingsError> {
        if kept.is_none() {
            *kept = Some(self.open()?);
        }
        Ok(Arc::clone(kept.as_ref().expect("just opened")))
    }
}

/// Former machines and the copied identity, which a server needs while the farm may know the identity from another machine.
fn rebinding(binding: &Binding) -> Option<v1::Rebinding> {
    let Binding { before, cloned_from, machine: _ } = binding;
    (!before.is_empty() || cloned_from.is_some()).then(|| v1::Rebinding {
        machines_before: before.iter().map(|digest| digest.to_vec().into()).collect(),
        cloned_from: cloned_from.map(|identity| identity.to_string()).unwrap_or_default(),
    })
}

fn hello(settings: &Settings, identity: Uuid, instance: Uuid, controllers: Vec<String>) -> v1::Hello {
    v1::Hello {
        identity: identity.to_string(),
        instance: instance.to_string(),
        hostname: settings.hostname.clone(),
        cores: u32::try_from(settings.cores).unwrap_or(u32::MAX),
        memory_bytes: settings::memory_bytes(),
        system_name: machine::system_name(),
        arch: machine::arch(),
        system: sysinfo::System::long_os_version().unwrap_or_else(|_| std::env::consts::OS.to_owned()),
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        controllers,
        labels: settings.labels.clone(),
        prefetch: Some(settings.prefetch),
        gives_back: true,
        ..v1::Hello::default()
    }
}

/// The controller of modules, which is a program, too.
const WASM: &str = "wasm";

/// Programs are stopped by the kernel, and modules between two of their instructions. Nobody can stop a thread of this process
/// that computes.
fn can_stand_still(controller: &str) -> bool {
    #[cfg(target_os = "linux")]
    let is_program = controller.starts_with(crate::exec::settings::PREFIX);
    #[cfg(not(target_os = "linux"))]
    let is_program = false;
    is_program || controller == WASM
}

/// GPUs that programs may use, and programs that are there.
fn equipment(settings: &Settings, controllers: &[String]) -> v1::Equipment {
    v1::Equipment { gpus: machine::gpus(Path::new("/"), settings.gpu), programs: programs(settings, controllers) }
}

/// Accounts in which programs of the farm run and no person works.
fn own_users(settings: &Settings) -> std::collections::BTreeSet<u32> {
    #[cfg(target_os = "linux")]
    {
        let programs = settings.checked_programs().unwrap_or_default();
        let users = programs.into_iter().filter_map(|program| program.user).map(|user| user.uid);
        users.chain(crate::presence::remote::service_account()).collect()
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = settings;
        std::collections::BTreeSet::new()
    }
}

/// Of what this agent runs, that which jobs may require beside their controllers.
fn programs(settings: &Settings, controllers: &[String]) -> Vec<v1::Program> {
    let mut programs = Vec::new();
    #[cfg(not(target_os = "linux"))]
    let _ = settings;
    #[cfg(target_os = "linux")]
    for one in &settings.programs {
        let is_run = controllers.contains(&format!("{}{}", crate::exec::settings::PREFIX, one.name));
        if is_run && crate::exec::settings::installed(&one.path).is_ok() {
            programs.push(v1::Program { name: one.name.clone(), version: one.version.clone().unwrap_or_default() });
        }
    }
    if controllers.iter().any(|name| name == WASM) {
        programs.push(v1::Program { name: WASM.to_owned(), version: String::new() });
    }
    programs
}

/// Of an agent that is a program of its own, whose process can be replaced.
struct Own {
    /// In whose place it is, if it is in another's.
    instance: Option<Uuid>,
    manager: Manager,
}

fn replaced() -> Option<Uuid> {
    std::env::var(REPLACES).ok().and_then(|text| text.parse().ok())
}

/// Another process in the place of this one. If the servers know it as the same, what was on its way to it comes back as never
/// received.
fn replace(successor: Successor) -> ExitCode {
    let (instance, why) = match successor {
        Successor::Same { instance } => {
            (Some(instance.to_string()), "starting anew to end controllers that do not hear")
        }
        Successor::Fresh => (None, "starting anew with as many cores as the farm wants"),
    };
    let error = anyhow::Error::from(platform::replace_this_process(REPLACES, instance.as_deref()));
    failed(&AgentError::Failed(error.context(why)))
}

fn start_logging() {
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let lines = tracing_subscriber::fmt::layer().with_ansi(colours).with_writer(std::io::stderr);
    // A program that has its own subscriber keeps it.
    let _ = tracing_subscriber::registry().with(lines).with(log_levels()).try_init();
}

/// Levels by target, from `RUST_LOG`; `info` without it.
fn log_levels() -> Targets {
    let levels = std::env::var("RUST_LOG").ok().map(|text| text.parse::<Targets>());
    if let Some(Err(error)) = &levels {
        eprintln!("ignoring RUST_LOG: {error}; give levels by target, such as warn,pcfarm_worker=debug");
    }
    levels.and_then(Result::ok).unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO))
}

/// To a file that does not grow without a bound: nobody sees a service's standard error.
#[cfg(windows)]
fn log_as_service() {
    match crate::service::windows::Log::open() {
        Ok(log) => {
            let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(std::sync::Mutex::new(log));
            let _ = tracing_subscriber::registry().with(lines).with(log_levels()).try_init();
        }
        Err(_) => start_logging(),
    }
}

fn failed(error: &AgentError) -> ExitCode {
    error!("{}", chain(error));
    ExitCode::from(error.exit_code())
}

/// With what caused it.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
