//! What `--keep` leaves running, and how `--stop` ends it: a note in the user's own state directory.
//!
//! Process ids are given out anew and directories in /tmp are anybody's, so nothing in the note is believed unseen: a
//! process is signalled only if it runs one of the farm's programs, a directory removed only if it is a demo's and ours.

use super::farm::{self, PROGRAMS};
use anyhow::{Context, Result, bail, ensure};
use pcfarm_sql::cluster::{Cluster, ClusterOptions};
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, geteuid, kill_process, test_kill_process};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What a demo's directory is called, before the random part.
pub const DIRECTORY_PREFIX: &str = "pcfarm-demo-";

const STATE_DIRECTORY: &str = "pcfarm-demo";
const NOTE: &str = "kept.json";

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    pub pids: Vec<i32>,
    /// Where the programs are that these processes run.
    pub programs: PathBuf,
    pub directory: PathBuf,
}

impl Kept {
    /// Refuses to overwrite the note of another farm.
    pub(super) fn write(&self) -> Result<()> {
        self.write_to(&note()?)
    }

    fn write_to(&self, note: &Path) -> Result<()> {
        let text = serde_json::to_vec(self)?;
        let mut file = match File::options().write(true).create_new(true).mode(0o600).open(note) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(already_kept(note)),
            Err(error) => return Err(error).with_context(|| format!("creating {}", note.display())),
        };
        let written = file.write_all(&text);
        if written.is_err() {
            drop(fs::remove_file(note));
        }
        written.with_context(|| format!("writing {}", note.display()))
    }

    fn read_from(note: &Path) -> Result<Kept> {
        let follow_no_link = i32::try_from(OFlags::NOFOLLOW.bits())?;
        let mut file = match File::options().read(true).custom_flags(follow_no_link).open(note) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => bail!("nothing was left running by --keep"),
            Err(error) => return Err(error).with_context(|| format!("opening {}", note.display())),
        };
        let about = file.metadata()?;
        ensure!(about.is_file() && is_ours(&about), "{} is not a file of ours: not believed", note.display());
        let mut text = Vec::new();
        file.read_to_end(&mut text).with_context(|| format!("reading {}", note.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("reading {}", note.display()))
    }
}

/// An error if an earlier farm is still kept, or if this one could not be written down.
pub fn can_keep() -> Result<()> {
    let note = note()?;
    if note.symlink_metadata().is_ok() {
        return Err(already_kept(&note));
    }
    Ok(())
}

/// Stops what an earlier `--keep` left running.
pub async fn stop() -> Result<()> {
    let note = note()?;
    let kept = Kept::read_from(&note)?;
    let there = is_demo_directory(&kept.directory)?;
    for pid in &kept.pids {
        stop_process(*pid, &kept.programs).await;
    }
    let cluster = kept.directory.join("postgres");
    if there && cluster.exists() {
        Cluster::start(ClusterOptions::new(cluster)).await?.stop().await?;
    }
    if there {
        let removed = fs::remove_dir_all(&kept.directory);
        removed.with_context(|| format!("removing {}", kept.directory.display()))?;
    }
    fs::remove_file(&note).with_context(|| format!("removing {}", note.display()))?;
    super::say("Stopped; nothing is left running.");
    Ok(())
}

fn already_kept(note: &Path) -> anyhow::Error {
    anyhow::anyhow!(
        "an earlier --keep left a farm running ({} tells of it): `scripts/demo --stop` ends it",
        note.display()
    )
}

fn note() -> Result<PathBuf> {
    let from = |variable| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let parent = match geteuid().is_root() {
        true => PathBuf::from("/var/lib"),
        false => from("XDG_STATE_HOME")
            .or_else(|| from("HOME").map(|home| home.join(".local/state")))
            .context("neither HOME nor XDG_STATE_HOME says where to write down what is left running")?,
    };
    Ok(private_directory(&parent.join(STATE_DIRECTORY))?.join(NOTE))
}

/// Makes it for us alone; refuses one that is somebody else's.
fn private_directory(path: &Path) -> Result<&Path> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
    }
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("creating {}", path.display()));
        }
        _ => (),
    }
    let about = path.symlink_metadata().with_context(|| format!("looking at {}", path.display()))?;
    ensure!(about.is_dir() && is_ours(&about), "{} is not a directory of ours", path.display());
    if about.mode() & 0o777 != 0o700 {
        fs::set_permissions(path, Permissions::from_mode(0o700))
            .with_context(|| format!("making {} private", path.display()))?;
    }
    Ok(path)
}

fn is_ours(about: &fs::Metadata) -> bool {
    about.uid() == geteuid().as_raw()
}

/// Whether it is still there; an error if it is not what a demo makes.
fn is_demo_directory(path: &Path) -> Result<bool> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    ensure!(path.is_absolute() && name.starts_with(DIRECTORY_PREFIX), "{} is not a demo's directory", path.display());
    match path.symlink_metadata() {
        Ok(about) => {
            ensure!(about.is_dir() && is_ours(&about), "{} is not a directory of ours", path.display());
            Ok(true)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("looking at {}", path.display())),
    }
}

/// SIGTERM, and SIGKILL when that takes too long.
async fn stop_process(raw: i32, programs: &Path) {
    let Some(pid) = Pid::from_raw(raw).filter(|_| raw > 0) else { return };
    let started = Instant::now();
    let mut told = false;
    while runs_ours(pid, programs) {
        if !told {
            // Gone in the meantime is as good.
            let _ = kill_process(pid, Signal::TERM);
            told = true;
        } else if started.elapsed() > farm::STOP_DEADLINE {
            let _ = kill_process(pid, Signal::KILL);
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Whether the process is still the one that was left: its number may be another's by now.
fn runs_ours(pid: Pid, programs: &Path) -> bool {
    if Path::new("/proc/self/exe").symlink_metadata().is_err() {
        return test_kill_process(pid).is_ok();
    }
    fs::read_link(format!("/proc/{}/exe", pid.as_raw_nonzero())).is_ok_and(|program| is_program(&program, programs))
}

/// A program that was built anew since shows as deleted.
fn is_program(program: &Path, programs: &Path) -> bool {
    let name = program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let name = name.strip_suffix(" (deleted)").unwrap_or(name);
    PROGRAMS.contains(&name) && program.parent() == Some(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_farms_own_programs_are_signalled() {
        let is_ours = |program: &str| is_program(Path::new(program), Path::new("/src/target/release"));
        assert!(is_ours("/src/target/release/pcfarm-server"));
        assert!(is_ours("/src/target/release/airline-agent (deleted)"));
        assert!(!is_ours("/usr/bin/pcfarm-server"));
        assert!(!is_ours("/src/target/release/pcfarm"));
        let this = Pid::from_raw(i32::try_from(std::process::id()).expect("a process id")).expect("not zero");
        assert!(!Path::new("/proc/self/exe").exists() || !runs_ours(this, Path::new("/src/target/release")));
    }

    #[test]
    fn only_a_demos_directory_is_removed() {
        let temporary = tempfile::tempdir().expect("a directory");
        let demo = temporary.path().join("pcfarm-demo-x");
        assert!(!is_demo_directory(&demo).expect("a demo's name"));
        fs::create_dir(&demo).expect("a directory");
        assert!(is_demo_directory(&demo).expect("a demo's directory"));
        assert!(is_demo_directory(temporary.path()).is_err());
        assert!(is_demo_directory(Path::new("pcfarm-demo-x")).is_err());
        let link = temporary.path().join("pcfarm-demo-link");
        std::os::unix::fs::symlink(&demo, &link).expect("a link");
        assert!(is_demo_directory(&link).is_err());
    }

    #[test]
    fn a_note_is_private_and_never_overwritten() {
        let temporary = tempfile::tempdir().expect("a directory");
        let state = temporary.path().join("state/pcfarm-demo");
        let note = private_directory(&state).expect("a private directory").join(NOTE);
        assert_eq!(state.metadata().expect("it is there").mode() & 0o777, 0o700);
        assert!(Kept::read_from(&note).is_err());
        let kept = Kept { pids: vec![7], programs: "/src".into(), directory: "/tmp/pcfarm-demo-x".into() };
        kept.write_to(&note).expect("the first");
        let error = kept.write_to(&note).expect_err("the second");
        assert!(error.to_string().contains("scripts/demo --stop"), "{error}");
        assert_eq!(Kept::read_from(&note).expect("ours").pids, [7]);
        let link = state.join("link");
        std::os::unix::fs::symlink(&note, &link).expect("a link");
        assert!(Kept::read_from(&link).is_err());
    }
}
