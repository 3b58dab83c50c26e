//! Commands about the agent as a service of a Linux system: `install`, `uninstall`, `status` and `doctor`.

use std::path::Path;
use std::process::ExitCode;

use super::{
    Answer, Ask, DONE, Explanation, FAILED, NOT_REACHABLE, NoAnswer, Output, ask, headline, plain, show, tell_all,
};
use crate::doctor::{Report, here};
use crate::local;
use crate::platform;
pub use crate::service::install::Wishes;
use crate::service::status::Status;
use crate::settings::Asked;

/// Runs one question to servers on a runtime of its own.
fn wait_for<T>(work: impl Future<Output = T>) -> std::io::Result<T> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work))
}

pub fn install(wishes: &Wishes) -> ExitCode {
    match wait_for(crate::service::install::install(wishes)) {
        Ok(Ok(done)) => tell_all(&done),
        Ok(Err(error)) => {
            eprintln!("{error}");
            ExitCode::from(error.exit_code())
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(FAILED)
        }
    }
}

pub fn uninstall(purge: bool, root: Option<&Path>) -> ExitCode {
    match crate::service::uninstall::uninstall(root, purge) {
        Ok(done) => tell_all(&done),
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::from(FAILED)
        }
    }
}

/// Explanation of the agent of this machine, if it answers.
fn explained(asked: &Asked) -> Option<Explanation> {
    let settings = asked.settings.as_ref().ok();
    let sockets = settings.map_or_else(
        || local::candidates(Path::new(platform::SYSTEM_STATE_DIR)),
        |settings| {
            settings.socket.clone().map_or_else(|| local::candidates(&settings.state_dir), |socket| vec![socket])
        },
    );
    match ask(&sockets, &Ask::Explain) {
        Ok(Answer::Explanation(explanation)) => Some(*explanation),
        Ok(Answer::History(_) | Answer::Error(_)) | Err(_) => None,
    }
}

pub fn status(asked: &Asked, output: Output) -> ExitCode {
    let status = Status::of(asked, explained(asked));
    let code = if status.explanation.is_some() { DONE } else { NOT_REACHABLE };
    match show(&status, output, |status| plain(&status.text(headline))) {
        Ok(()) => ExitCode::from(code),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(FAILED)
        }
    }
}

pub fn doctor(asked: &Asked, output: Output) -> ExitCode {
    let explanation = explained(asked);
    let report = wait_for(here::look(asked, explanation.as_ref())).map(Report::of);
    let shown = report.map_err(NoAnswer::from).and_then(|report| {
        show(&report, output, |report| plain(&report.text()))?;
        Ok(report.exit_code())
    });
    match shown {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(FAILED)
        }
    }
}
