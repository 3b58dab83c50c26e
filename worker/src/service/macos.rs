//! A daemon of launchd. Its user and group, `_pcfarm`, are made before, by whoever administers the Mac.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};

use super::elsewhere::{join, remove, run};
use crate::settings::Settings;

const LABEL: &str = "org.pcfarm.worker";
const SERVICE: &str = "system/org.pcfarm.worker";
const PLIST: &str = "/Library/LaunchDaemons/org.pcfarm.worker.plist";
const PLIST_TEXT: &str = include_str!("../../../deploy/macos/org.pcfarm.worker.plist");

/// As [`PLIST_TEXT`] has them.
const PROGRAM: &str = "/usr/local/bin/pcfarm-worker";
const CONFIG: &str = "/etc/pcfarm/worker.toml";
const STATE_DIR: &str = "/var/db/pcfarm-worker";
const DIRECTORIES: [&str; 2] = [STATE_DIR, "/Library/Caches/pcfarm-worker"];
const USER: &str = "_pcfarm";

pub fn install(program: &Path, config: &Path, settings: &Settings) -> anyhow::Result<Vec<String>> {
    ensure_root()?;
    for directory in DIRECTORIES {
        let words = ["-d", "-o", USER, "-m", "0700", directory].map(OsStr::new);
        run("/usr/bin/install", &words).with_context(|| format!("making {directory} for user {USER}"))?;
    }
    join(settings, Path::new(STATE_DIR))?;
    run("/usr/sbin/chown", &["-R", USER, STATE_DIR].map(OsStr::new)).context("giving it who it is")?;
    let own = |path: &Path| path.to_str().map(escaped).with_context(|| format!("{}: no text", path.display()));
    let text = PLIST_TEXT.replacen(&format!("<string>{PROGRAM}<"), &format!("<string>{}<", own(program)?), 1);
    let text = text.replacen(&format!("<string>{CONFIG}<"), &format!("<string>{}<", own(config)?), 1);
    fs::write(PLIST, text).with_context(|| format!("writing {PLIST}"))?;
    let started = run("/bin/launchctl", &["bootstrap", "system", PLIST].map(OsStr::new));
    if started.is_err() {
        let _ = fs::remove_file(PLIST);
    }
    started?;
    Ok(vec![format!("made and started {LABEL}, with {}", config.display())])
}

/// As text within XML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

pub fn uninstall() -> anyhow::Result<Vec<String>> {
    ensure_root()?;
    run("/bin/launchctl", &["bootout", SERVICE].map(OsStr::new)).context("stopping the daemon")?;
    fs::remove_file(PLIST).with_context(|| format!("removing {PLIST}"))?;
    let mut done = vec![format!("stopped and removed {LABEL}")];
    DIRECTORIES.iter().try_for_each(|directory| remove(Path::new(directory), &mut done))?;
    Ok(done)
}

pub fn state() -> anyhow::Result<String> {
    if !Path::new(PLIST).exists() {
        return Ok("not installed as a service of this system".to_owned());
    }
    let said = run("/bin/launchctl", &["print", SERVICE].map(OsStr::new))?;
    let state = said.lines().find_map(|line| line.trim().strip_prefix("state = "));
    Ok(state.unwrap_or("installed; launchd does not say more").to_owned())
}

fn ensure_root() -> anyhow::Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "only root may do this: sudo pcfarm-worker …");
    Ok(())
}
