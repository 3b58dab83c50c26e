//! A service of Windows, by an account that is its alone, and the helper of each session.
//!
//! Owns that the agent's key is closed to others: its directory is the service's, the system's and the administrators'.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use pcfarm_native::windows::service::{Work, run as serve_as};
use windows_service::service::{
    ServiceAccess, ServiceAction, ServiceActionType, ServiceErrorControl, ServiceFailureActions,
    ServiceFailureResetPeriod, ServiceInfo, ServiceStartType, ServiceState, ServiceType,
};
use windows_service::service_manager::{ServiceManager, ServiceManagerAccess};

use super::elsewhere::{join, remove, run};
use crate::platform::{SYSTEM_STATE_DIR, SYSTEM_WORK_DIR, stop_service};
use crate::settings::Settings;

const NAME: &str = "pcfarm-worker";

/// An account that Windows makes for the service, which has no password and no other rights.
const ACCOUNT: &str = r"NT SERVICE\pcfarm-worker";

/// Programs that begin with each session.
const RUN_KEY: &str = r"HKLM\Software\Microsoft\Windows\CurrentVersion\Run";

/// Between the end of an agent that failed and the next.
const RESTART_AFTER: Duration = Duration::from_secs(10);

/// What goodbyes may take beyond the grace that running work has.
const GOODBYES: Duration = Duration::from_secs(30);

/// How long its removal waits for the service to stop. It may have work in hand.
const STOP_WAIT: Duration = Duration::from_secs(120);

const LOG_BYTES_LIMIT: u64 = 1 << 20;

pub fn install(program: &Path, config: &Path, settings: &Settings) -> anyhow::Result<Vec<String>> {
    let manager = ServiceManager::local_computer(
        None::<&str>,
        ServiceManagerAccess::CONNECT | ServiceManagerAccess::CREATE_SERVICE,
    );
    let manager = manager.context("only administrators may do this")?;
    let words = |words: &[&OsStr]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<OsString>>();
    let info = ServiceInfo {
        name: NAME.into(),
        display_name: "PC Farm agent".into(),
        service_type: ServiceType::OWN_PROCESS,
        start_type: ServiceStartType::AutoStart,
        error_control: ServiceErrorControl::Normal,
        executable_path: program.to_owned(),
        launch_arguments: words(&[
            "--config".as_ref(),
            config.as_os_str(),
            "--state-dir".as_ref(),
            SYSTEM_STATE_DIR.as_ref(),
            "--work-dir".as_ref(),
            SYSTEM_WORK_DIR.as_ref(),
            "serve".as_ref(),
        ]),
        dependencies: Vec::new(),
        account_name: Some(ACCOUNT.into()),
        account_password: None,
    };
    let access = ServiceAccess::CHANGE_CONFIG | ServiceAccess::START | ServiceAccess::DELETE;
    let service = manager.create_service(&info, access).context("making the service")?;
    let ready = (|| {
        let restart = ServiceAction { action_type: ServiceActionType::Restart, delay: RESTART_AFTER };
        service
            .update_failure_actions(ServiceFailureActions {
                reset_period: ServiceFailureResetPeriod::After(Duration::from_secs(86_400)),
                reboot_msg: None,
                command: None,
                actions: Some(vec![restart]),
            })
            .and_then(|()| service.set_failure_actions_on_non_crash_failures(true))
            .context("saying what becomes of an agent that fails")?;
        close_directories()?;
        join(settings, Path::new(SYSTEM_STATE_DIR))?;
        begin_with_sessions(program)?;
        service.start::<&OsStr>(&[]).context("starting the service")
    })();
    if let Err(error) = ready {
        // Nothing is half there that runs.
        let _ = service.delete();
        let _ = begin_no_more();
        return Err(error);
    }
    Ok(vec![
        format!("made and started the service {NAME}, with {}", config.display()),
        format!("each session that begins from now on has a helper: {} session", program.display()),
    ])
}

/// Where the agent keeps its key, and where it works.
fn own_directory() -> &'static Path {
    Path::new(SYSTEM_STATE_DIR).parent().expect("it has a directory above it")
}

/// To the system, the administrators and the service, and to nobody else.
fn close_directories() -> anyhow::Result<()> {
    for dir in [SYSTEM_STATE_DIR, SYSTEM_WORK_DIR] {
        std::fs::create_dir_all(dir).with_context(|| format!("making {dir}"))?;
    }
    let service = format!("{ACCOUNT}:(OI)(CI)F");
    let words = ["/inheritance:r", "/grant:r", "*S-1-5-18:(OI)(CI)F", "*S-1-5-32-544:(OI)(CI)F", &service];
    let words: Vec<&OsStr> = std::iter::once(own_directory().as_os_str()).chain(words.map(OsStr::new)).collect();
    run("icacls.exe", &words).map(drop)
}

fn begin_with_sessions(program: &Path) -> anyhow::Result<()> {
    let helper = format!("\"{}\" session", program.display());
    run("reg.exe", &["add", RUN_KEY, "/v", NAME, "/t", "REG_SZ", "/d", &helper, "/f"].map(OsStr::new)).map(drop)
}

fn begin_no_more() -> anyhow::Result<()> {
    run("reg.exe", &["delete", RUN_KEY, "/v", NAME, "/f"].map(OsStr::new)).map(drop)
}

pub fn uninstall() -> anyhow::Result<Vec<String>> {
    let manager = ServiceManager::local_computer(None::<&str>, ServiceManagerAccess::CONNECT)?;
    let access = ServiceAccess::QUERY_STATUS | ServiceAccess::STOP | ServiceAccess::DELETE;
    let service = manager.open_service(NAME, access).context("the service")?;
    if service.query_status()?.current_state != ServiceState::Stopped {
        service.stop().context("stopping the service")?;
        let until = Instant::now() + STOP_WAIT;
        while service.query_status()?.current_state != ServiceState::Stopped {
            anyhow::ensure!(
                Instant::now() < until,
                "the service {NAME} does not stop: try again, or end its process first"
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    service.delete().context("removing the service")?;
    let mut done = vec![format!("stopped and removed the service {NAME}")];
    // It may have been taken away by hand.
    if begin_no_more().is_ok() {
        done.push("sessions that begin have no helper any more".to_owned());
    }
    remove(own_directory(), &mut done)?;
    Ok(done)
}

pub fn state() -> anyhow::Result<String> {
    let manager = ServiceManager::local_computer(None::<&str>, ServiceManagerAccess::CONNECT)?;
    let access = ServiceAccess::QUERY_STATUS | ServiceAccess::QUERY_CONFIG;
    let Ok(service) = manager.open_service(NAME, access) else {
        return Ok("not installed as a service of this system".to_owned());
    };
    let (status, config) = (service.query_status()?, service.query_config()?);
    Ok(format!("{:?}, {:?}", status.current_state, config.start_type))
}

/// This process is that service, until it is told to stop.
pub fn serve(grace: Duration, work: impl FnOnce() -> ExitCode + Send + 'static) -> ExitCode {
    let run = Box::new(move || u8::from(work() != ExitCode::SUCCESS));
    let work = Work { name: NAME, run, stop: Box::new(stop_service), patience: grace + GOODBYES };
    match serve_as(work) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("only the service manager says this: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What a service says, which has no terminal: this file, and before that the one beside it.
pub struct Log {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Log {
    pub fn open() -> io::Result<Log> {
        let path = own_directory().join("agent.log");
        let file = File::options().create(true).append(true).open(&path)?;
        let bytes = file.metadata()?.len();
        Ok(Log { path, file, bytes })
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes > LOG_BYTES_LIMIT {
            // Into its own name, while it is open: as the standard library opens files, that may be done.
            let _ = std::fs::rename(&self.path, self.path.with_extension("old.log"));
            *self = Log::open()?;
        }
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
