//! The agent's state directory: who it is, across restarts.
//!
//! Owns the identity file and the lock that keeps a second agent out; `binding` ties the identity to the machine. Beside them are
//! the agent's credentials and the files of presence, but no work: checkouts are lost with the agent, and the farm hands them out
//! again.

pub(crate) mod binding;

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::machine::fingerprint::Fingerprint;
use crate::platform;
use binding::Binding;

const IDENTITY_FILE: &str = "identity";
const LOCK_FILE: &str = "lock";

/// A state directory in this agent's hands, until it is dropped.
#[derive(Debug)]
pub struct StateDir {
    pub identity: Uuid,
    /// Machine to which the identity is bound, if [`StateDir::open_bound`] has opened it.
    pub(crate) binding: Binding,
    dir: PathBuf,
    _lock: File,
}

#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    #[error("another agent uses the state directory {0}: give this one its own with --state-dir")]
    InUse(PathBuf),
    #[error("{path} does not hold a UUID: remove it, and the agent becomes a new workstation")]
    BadIdentity { path: PathBuf, source: uuid::Error },
    #[error("cannot {doing} {path}")]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
}

impl StateDir {
    /// Takes the directory; makes it and an identity at the first start.
    pub fn open(dir: &Path) -> Result<StateDir, StateDirError> {
        platform::make_private_dir(dir).map_err(failed("make the state directory", dir))?;
        let lock = lock(dir)?;
        let path = dir.join(IDENTITY_FILE);
        let identity = read_identity(&path)?.map_or_else(|| make_identity(dir, &path), Ok)?;
        Ok(StateDir { identity, binding: Binding::default(), dir: dir.to_owned(), _lock: lock })
    }

    /// Takes the directory for an agent that runs on this machine, and binds its identity to it. A copy of another machine's
    /// directory gets an identity of its own.
    pub(crate) fn open_bound(dir: &Path, present: &Fingerprint) -> Result<StateDir, StateDirError> {
        platform::make_private_dir(dir).map_err(failed("make the state directory", dir))?;
        let lock = lock(dir)?;
        let (identity, binding) = binding::bind(dir, present)?;
        Ok(StateDir { identity, binding, dir: dir.to_owned(), _lock: lock })
    }

    /// Directory of a copied identity and its credentials.
    pub(crate) fn copied(&self) -> PathBuf {
        self.dir.join(binding::COPIED_DIR)
    }

    /// Whose directory it is, if it is anybody's yet. Takes nothing and makes nothing.
    pub fn peek(dir: &Path) -> Result<Option<Uuid>, StateDirError> {
        read_identity(&dir.join(IDENTITY_FILE))
    }
}

fn read_identity(path: &Path) -> Result<Option<Uuid>, StateDirError> {
    match fs::read_to_string(path) {
        Ok(text) => match text.trim().parse() {
            Ok(identity) => Ok(Some(identity)),
            Err(source) => Err(StateDirError::BadIdentity { path: path.to_owned(), source }),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", path)(error)),
    }
}

fn lock(dir: &Path) -> Result<File, StateDirError> {
    let path = dir.join(LOCK_FILE);
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(failed("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StateDirError::InUse(dir.to_owned())),
        Err(TryLockError::Error(error)) => Err(failed("lock", &path)(error)),
    }
}

/// Written aside, synced and renamed: after a crash there is a whole identity or none.
fn make_identity(dir: &Path, path: &Path) -> Result<Uuid, StateDirError> {
    let identity = Uuid::new_v4();
    let aside = dir.join(format!("{IDENTITY_FILE}.new"));
    let write = || {
        let mut file = File::create(&aside)?;
        writeln!(file, "{identity}")?;
        file.sync_all()?;
        fs::rename(&aside, path)?;
        platform::sync_dir(dir)
    };
    write().map_err(failed("write", path))?;
    Ok(identity)
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateDirError {
    let path = path.to_owned();
    move |source| StateDirError::Io { doing, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_kept_and_used_by_one_agent_at_a_time() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("agent");
        let first = StateDir::open(&path).expect("a first start");
        let second = StateDir::open(&path).expect_err("the first still runs");
        assert!(matches!(&second, StateDirError::InUse(dir) if *dir == path), "{second}");
        assert!(second.to_string().contains("--state-dir"), "{second}");
        let identity = first.identity;
        drop(first);
        assert_eq!(StateDir::open(&path).expect("a second start").identity, identity);
    }

    #[test]
    fn a_spoilt_identity_is_an_error_that_names_the_file() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        fs::write(dir.path().join(IDENTITY_FILE), "me").expect("a file");
        let error = StateDir::open(dir.path()).expect_err("no UUID");
        assert!(matches!(error, StateDirError::BadIdentity { .. }), "{error}");
        assert!(error.to_string().contains("identity"), "{error}");
    }
}
