//! The service's commands where there is no systemd. **Not yet tested.**
//!
//! The settings stay where they are, written before by whoever installs it: the service is told their place.

use std::path::Path;

use anyhow::Context;

#[cfg(target_os = "macos")]
use super::macos as system;
#[cfg(windows)]
use super::windows as system;
use crate::agent::chain;
use crate::platform::SYSTEM_CONFIG;
use crate::settings::{Asked, Settings};
use crate::state_dir::StateDir;

/// Makes this very program a service, with these settings. Returns what was done, a line each.
pub fn install(asked: &Asked) -> anyhow::Result<Vec<String>> {
    let config = asked.config.as_deref();
    let config =
        config.with_context(|| format!("write its settings to {SYSTEM_CONFIG}, or name them with --config"))?;
    let settings: &Settings = asked.settings.as_ref().map_err(|error| anyhow::anyhow!(chain(error)))?;
    let program = std::env::current_exe().context("this program's place")?;
    let config = std::path::absolute(config).context("the settings' place")?;
    system::install(&program, &config, settings)
}

/// The settings stay.
pub fn uninstall() -> anyhow::Result<Vec<String>> {
    system::uninstall()
}

/// In the words of the service manager.
pub fn state() -> String {
    system::state().unwrap_or_else(|error| format!("{error:#}"))
}

/// Here and now, so that the token need be readable to nobody else, and is not in the settings. Without a token it has joined before, or
/// need not.
pub(super) fn join(settings: &Settings, state_dir: &Path) -> anyhow::Result<()> {
    let Some(token) = &settings.join_token else { return Ok(()) };
    let identity = StateDir::open(state_dir)?.identity;
    let credentials = Settings { state_dir: state_dir.to_owned(), ..settings.clone() }.credentials(identity);
    let endpoints = settings.endpoints()?;
    let server = endpoints.first().context("settings name a server")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(credentials.join_once(server, token)).context("joining the farm")
}

/// A directory and what is in it, if it is there.
pub(super) fn remove(dir: &Path, done: &mut Vec<String>) -> anyhow::Result<()> {
    if dir.exists() {
        std::fs::remove_dir_all(dir).with_context(|| format!("removing {}", dir.display()))?;
        done.push(format!("removed {}", dir.display()));
    }
    Ok(())
}

/// A program of the system, which is to say nothing but errors.
pub(super) fn run(program: &str, arguments: &[&std::ffi::OsStr]) -> anyhow::Result<String> {
    let output = std::process::Command::new(program).args(arguments).output().with_context(|| program.to_owned())?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    anyhow::ensure!(
        output.status.success(),
        "{program}: {}: {} {}",
        output.status,
        said(&output.stdout),
        said(&output.stderr)
    );
    Ok(said(&output.stdout))
}
