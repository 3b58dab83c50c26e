//! `pcfarm-test-cluster run -- COMMAND…` runs a command with a private PostgreSQL cluster and with
//! `PCFARM_TEST_DATABASE_URL` naming it; its exit code is the command's. The cluster goes when the command ends, when this
//! program is told to stop, and also when it is killed.

use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};

use pcfarm_sql::testing::{TEST_DATABASE_URL, cluster_for_tests, url_of};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

const USAGE: &str = "usage: pcfarm-test-cluster run -- COMMAND [ARGUMENT…]";

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let command = match arguments.as_slice() {
        [verb, dashes, command @ ..] if verb == "run" && dashes == "--" && !command.is_empty() => command,
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    let mut interrupt = signal(SignalKind::interrupt()).expect("signals can be taken");
    let mut terminate = signal(SignalKind::terminate()).expect("signals can be taken");
    let cluster = cluster_for_tests().await;
    // A signal that came meanwhile was kept: then there is nothing to run, and dropping the cluster stops it.
    tokio::select! {
        biased;
        _ = interrupt.recv() => return ExitCode::from(130),
        _ = terminate.recv() => return ExitCode::from(143),
        () = std::future::ready(()) => (),
    }
    let spawned =
        Command::new(&command[0]).args(&command[1..]).env(TEST_DATABASE_URL, url_of(&cluster.config())).spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => {
            eprintln!("pcfarm-test-cluster: cannot run {}: {error}", command[0].display());
            return ExitCode::from(127);
        }
    };
    let status = loop {
        tokio::select! {
            status = child.wait() => break status,
            _ = interrupt.recv() => (), // a terminal's Ctrl-C went to the command too: let it finish
            _ = terminate.recv() => pass_on_termination(&child),
        }
    };
    drop(cluster); // its guard stops it and removes all of it
    status.map_or(ExitCode::FAILURE, exit_code)
}

fn pass_on_termination(child: &Child) {
    let pid = child.id().and_then(|id| rustix::process::Pid::from_raw(id as i32));
    if let Some(pid) = pid {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}

/// As shells have it: 128 and the signal's number for a command that a signal ended.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
