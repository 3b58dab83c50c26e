//! Which agents use a working directory, and what those have left in it that do no more.
//!
//! Owns a locked file beside each agent's directories. Agents may share a working directory; one whose state directory is gone never
//! comes back, and would leave all that it kept for ever. Nothing is removed whose name is not an agent's.
//!
//! ```text
//! work_dir/IDENTITY.lock     locked by that agent, and removed when it ends
//!          IDENTITY.files/   what it keeps of the farm's files
//!          IDENTITY/         where its programs work, and IDENTITY.left-N/ what could not be removed of that
//! ```

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tracing::{info, warn};
use uuid::Uuid;

const LOCK: &str = "lock";
const FILES: &str = "files";

/// How long another agent may take to remove what it finds unused: only then is an agent's own lock not free.
const PATIENCE: Duration = Duration::from_secs(20);
const BETWEEN_TRIES: Duration = Duration::from_millis(10);

/// An agent's directories are its own until this is dropped.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    _lock: File,
}

impl Claim {
    /// Waits, if it must. None if the file system has no locks: nobody can tell there who uses what, and nothing is removed.
    pub fn of(files_dir: &Path) -> io::Result<Option<Claim>> {
        let end = Instant::now() + PATIENCE;
        let path = files_dir.with_extension(LOCK);
        loop {
            match try_claim(&path) {
                Ok(claim) => return Ok(Some(claim)),
                Err(TryLockError::WouldBlock) if Instant::now() < end => std::thread::sleep(BETWEEN_TRIES),
                Err(TryLockError::WouldBlock) => return Err(io::Error::other("another agent uses it")),
                Err(TryLockError::Error(error)) if !are_missing(&error) => return Err(error),
                Err(TryLockError::Error(error)) => {
                    warn!(path = %path.display(), %error, "what other agents have left cannot be told from what they use");
                    return Ok(None);
                }
            }
        }
    }

    /// Removes what agents have left beside this one's directories that do not run.
    pub fn remove_unclaimed(&self) {
        let Some(work_dir) = self.path.parent() else { return };
        for identity in identities(work_dir) {
            let lock = work_dir.join(format!("{identity}.{LOCK}"));
            if lock == self.path {
                continue;
            }
            let Ok(_claim) = try_claim(&lock) else { continue };
            match remove(work_dir, &identity) {
                Ok(()) => info!(identity, "removed what an agent has left that does not run"),
                Err(error) => warn!(identity, %error, "what an agent has left cannot be removed"),
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Who waits for it sees that it is another file then.
        drop(fs::remove_file(&self.path));
    }
}

/// Whether the file system has no locks at all.
fn are_missing(error: &io::Error) -> bool {
    const NO_LOCKS: i32 = 37; // ENOLCK, which has no kind
    error.kind() == io::ErrorKind::Unsupported || (cfg!(target_os = "linux") && error.raw_os_error() == Some(NO_LOCKS))
}

fn try_claim(path: &Path) -> Result<Claim, TryLockError> {
    let lock = File::options().create(true).truncate(false).write(true).open(path).map_err(TryLockError::Error)?;
    lock.try_lock()?;
    // Whoever had it before may have removed it meanwhile.
    if !is_at(&lock, path) {
        return Err(TryLockError::WouldBlock);
    }
    Ok(Claim { path: path.to_owned(), _lock: lock })
}

#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;

    let id = |metadata: &fs::Metadata| (metadata.dev(), metadata.ino());
    matches!((file.metadata(), fs::metadata(path)), (Ok(file), Ok(there)) if id(&file) == id(&there))
}

#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

/// Of the agents that have left something.
fn identities(work_dir: &Path) -> BTreeSet<String> {
    let of = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let (identity, kind) = name.split_once('.')?;
        // As an agent writes it, and no other UUID.
        let is_agents = identity.parse::<Uuid>().is_ok_and(|uuid| uuid.to_string() == identity);
        (is_agents && [LOCK, FILES].contains(&kind)).then(|| identity.to_owned())
    };
    fs::read_dir(work_dir).into_iter().flatten().flatten().filter_map(of).collect()
}

fn remove(work_dir: &Path, identity: &str) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    crate::exec::directory::remove(&work_dir.join(identity))?;
    match fs::remove_dir_all(work_dir.join(format!("{identity}.{FILES}"))) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_agent_uses_is_removed_and_what_others_use_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let [own, other, gone, killed] = [1_u128, 2, 3, 4].map(|n| Uuid::from_u128(n).to_string());
        let make = |name: &str| {
            fs::create_dir_all(dir.path().join(name)).expect("made");
            fs::write(dir.path().join(name).join("file"), "content").expect("written");
        };
        for identity in [&own, &other, &gone] {
            make(&format!("{identity}.files"));
        }
        make(&killed);
        make(&format!("{killed}.left-2"));
        fs::write(dir.path().join(format!("{killed}.lock")), "").expect("written");
        // Nobody knows whose these are.
        let strangers = [Uuid::from_u128(5).to_string(), "AAAAAAAA-0000-0000-0000-000000000000.files".to_owned()];
        strangers.iter().for_each(|name| make(name));

        let others =
            Claim::of(&dir.path().join(format!("{other}.files"))).expect("it is free").expect("there are locks");
        let claim = Claim::of(&dir.path().join(format!("{own}.files"))).expect("it is free").expect("there are locks");
        claim.remove_unclaimed();
        let names = || -> BTreeSet<String> {
            let entries = fs::read_dir(dir.path()).expect("it is there").flatten();
            entries.map(|entry| entry.file_name().into_string().expect("text")).collect()
        };
        let [own_files, other_files] = [&own, &other].map(|identity| format!("{identity}.files"));
        let [own_lock, other_lock] = [&own, &other].map(|identity| format!("{identity}.lock"));
        let mut left = BTreeSet::from([own_files, own_lock, other_files.clone(), other_lock.clone()]);
        left.extend(strangers);
        #[cfg(not(target_os = "linux"))]
        left.extend([killed.clone(), format!("{killed}.left-2")]);
        assert_eq!(names(), left);

        drop(others);
        claim.remove_unclaimed();
        left.remove(&other_files);
        left.remove(&other_lock);
        assert_eq!(names(), left);
    }

    #[test]
    fn a_lock_that_was_removed_meanwhile_is_nobodys() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.lock");
        let first = try_claim(&path).expect("it is free");
        assert!(matches!(try_claim(&path), Err(TryLockError::WouldBlock)));
        let waiting = File::options().write(true).open(&path).expect("it is there");
        drop(first);
        assert!(!is_at(&waiting, &path));
        let _second = try_claim(&path).expect("it is free");
        assert!(!is_at(&waiting, &path), "it is another file");
    }
}
