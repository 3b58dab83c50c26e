//! Takes away what [`install`](super::install) has put there.
//!
//! What stays is what a person may want to keep: the settings, and the journal. Who the workstation was to the farm goes:
//! a key that nobody minds any more is nobody's to keep.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use super::install::{CA, COPIED};
use super::system::{self, Places, UNIT};

/// Returns what was done, a line each.
pub fn uninstall(root: Option<&Path>, purge: bool) -> anyhow::Result<Vec<String>> {
    let places = Places::under(root);
    if places.is_system() {
        ensure!(rustix::process::geteuid().is_root(), "only root may do this: sudo pcfarm-worker uninstall");
    }
    let packaged = places.packaged_unit();
    if packaged.is_some() {
        let gone = give_way(&places)?;
        if !gone.is_empty() {
            return Ok(gone);
        }
    }
    ensure!(
        packaged.is_none(),
        "a package brought it, and takes it away: apt remove pcfarm-worker, or apt purge pcfarm-worker"
    );
    let mut done = Vec::new();
    let is_live = places.is_system() && system::is_run_by_systemd();
    if is_live && places.unit().is_some() {
        // It finishes what it can first.
        system::systemctl(&["disable", "--now", UNIT])?;
        done.push("stopped the service".to_owned());
    }
    let program = own_program(&places);
    let mut gone = vec![places.wanted(), places.own_unit(), places.state()];
    gone.extend(["/var/cache/pcfarm-worker", "/run/pcfarm-worker"].map(|place| places.at(place)));
    gone.extend(program);
    if purge {
        gone.extend([places.drop_ins(), places.config(), places.at(CA), places.at("/etc/pcfarm/join-token")]);
    }
    for path in gone {
        if remove(&path).with_context(|| format!("removing {}", path.display()))? {
            done.push(format!("removed {}", path.display()));
        }
    }
    if is_live {
        system::systemctl(&["daemon-reload"])?;
    }
    if purge {
        // Others may have theirs in it.
        let _ = fs::remove_dir(places.at("/etc/pcfarm"));
        done.extend(remove_user(&places));
    } else if places.config().exists() {
        done.push(format!("left {}, and the journal", places.config().display()));
    }
    if done.is_empty() {
        done.push("nothing was there".to_owned());
    }
    Ok(done)
}

/// Before there was a package an installation may have put a unit and a program of its own there, which go before the package's:
/// no upgrade would ever be of use.
pub fn give_way(places: &Places) -> anyhow::Result<Vec<String>> {
    let Some(program) = own_program(places) else { return Ok(Vec::new()) };
    let mut done = Vec::new();
    for path in [places.own_unit(), program] {
        if remove(&path).with_context(|| format!("removing {}", path.display()))? {
            done.push(format!("removed {}, for there is a package", path.display()));
        }
    }
    if places.is_system() && system::is_run_by_systemd() {
        system::systemctl(&["daemon-reload"])?;
    }
    Ok(done)
}

/// The copy that an installation has made, if its unit says so.
fn own_program(places: &Places) -> Option<PathBuf> {
    let unit = fs::read_to_string(places.own_unit()).ok()?;
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart="))?;
    let program = start.split(' ').next()?;
    unit.starts_with(COPIED).then(|| places.at(program))
}

/// Whether it was there.
pub fn remove(path: &Path) -> io::Result<bool> {
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other?,
    };
    if metadata.is_dir() {
        fs::remove_dir_all(path)?
    } else {
        fs::remove_file(path)?
    }
    Ok(true)
}

pub fn remove_user(places: &Places) -> Option<String> {
    places.user()?;
    let mut command = Command::new("userdel");
    if !places.is_system() {
        command.arg("--prefix").arg(places.root());
    }
    let output = command.arg(system::USER).stdin(Stdio::null()).output();
    Some(match output {
        Ok(output) if output.status.success() => format!("removed user {}", system::USER),
        Ok(output) => format!("left user {}: {}", system::USER, String::from_utf8_lossy(&output.stderr).trim()),
        Err(error) => format!("left user {}: userdel: {error}", system::USER),
    })
}
