//! This process as a service of the system, which is told that it runs and tells it to stop.

#![allow(unsafe_code)] // what `define_windows_service` is made of; there is none else here

use std::ffi::OsString;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use windows_service::service::{
    ServiceControl, ServiceControlAccept, ServiceExitCode, ServiceState, ServiceStatus, ServiceType,
};
use windows_service::service_control_handler::{self, ServiceControlHandlerResult, ServiceStatusHandle};
use windows_service::{define_windows_service, service_dispatcher};

/// What a service does.
pub struct Work {
    pub name: &'static str,
    /// Until it ends, and the exit code that it ends with.
    pub run: Box<dyn FnOnce() -> u8 + Send>,
    /// Called, from another thread, when it is to end.
    pub stop: Box<dyn Fn() + Send + Sync>,
    /// How long its end may take.
    pub patience: Duration,
}

/// For a function that the system calls, and tells nothing.
static WORK: Mutex<Option<Work>> = Mutex::new(None);

/// Returns when the service has ended. An error: nobody has started this process as a service.
pub fn run(work: Work) -> windows_service::Result<()> {
    let name = work.name;
    *WORK.lock().expect("nothing panics under this lock") = Some(work);
    service_dispatcher::start(name, begin)
}

define_windows_service!(begin, serve);

fn serve(_: Vec<OsString>) {
    let Some(work) = WORK.lock().expect("nothing panics under this lock").take() else { return };
    let Work { name, run, stop, patience } = work;
    let own = Arc::new(OnceLock::<ServiceStatusHandle>::new());
    let heard = {
        let own = Arc::clone(&own);
        move |control| match control {
            ServiceControl::Stop | ServiceControl::Shutdown => {
                if let Some(own) = own.get() {
                    let _ = own.set_service_status(status(ServiceState::StopPending, 0, patience));
                }
                stop();
                ServiceControlHandlerResult::NoError
            }
            ServiceControl::Interrogate => ServiceControlHandlerResult::NoError,
            _ => ServiceControlHandlerResult::NotImplemented,
        }
    };
    // Without it nobody could ever stop this service, and the system takes it for failed.
    let Ok(registered) = service_control_handler::register(name, heard) else { return };
    let registered = *own.get_or_init(|| registered);
    let _ = registered.set_service_status(status(ServiceState::Running, 0, Duration::ZERO));
    let code = run();
    let _ = registered.set_service_status(status(ServiceState::Stopped, code, Duration::ZERO));
}

fn status(current_state: ServiceState, code: u8, wait_hint: Duration) -> ServiceStatus {
    let accepts = ServiceControlAccept::STOP | ServiceControlAccept::SHUTDOWN;
    ServiceStatus {
        service_type: ServiceType::OWN_PROCESS,
        current_state,
        controls_accepted: if current_state == ServiceState::Running { accepts } else { ServiceControlAccept::empty() },
        exit_code: if code == 0 { ServiceExitCode::NO_ERROR } else { ServiceExitCode::ServiceSpecific(code.into()) },
        checkpoint: 0,
        wait_hint,
        process_id: None,
    }
}
