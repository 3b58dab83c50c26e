//! Files by the hash of their content: fetched from the farm when they are needed, and kept for a while.
//!
//! Owns a directory in which every file without `.part` behind its name is whole: what is fetched is written beside its place,
//! checked, synced and renamed, so that an agent may be killed at any moment. What was used longest ago goes first when
//! there is no room. Whether a farm may be asked for a file at all is the server's to say: it wants to see the checkout.

mod claim;
mod download;
mod lazy;
#[cfg_attr(not(feature = "wasm"), allow(dead_code, reason = "only modules are looked at again"))]
mod shelf;
#[cfg(target_os = "linux")]
mod upload;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pcfarm_faults::{CrashPoint, crash_point};
use pcfarm_proto::files::FileHash;
use tokio::runtime::Handle;
use tonic::transport::Endpoint;
use tracing::{info, warn};

use crate::agent::chain;
use crate::credentials::Credentials;
use crate::platform;
use crate::work::CheckoutKey;
use claim::Claim;
use download::Download;
pub use lazy::Lazy;
use shelf::{Found, Shelf};
#[cfg(target_os = "linux")]
pub use upload::{Made, UploadError, Uploaded};

/// How often who waits asks whether it is still wanted.
const STEP: Duration = Duration::from_millis(20);

/// After what will not be better at once, so that a disk that is full does not fail a whole job in the blink of an eye.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// Why there is no file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("cancelled")]
    Cancelled,
    #[error("the farm does not give file {0}: {1}")]
    Refused(FileHash, String),
    #[error("file {hash} has {} MiB; this agent keeps at most {} MiB", bytes >> 20, limit >> 20)]
    TooLarge { hash: FileHash, bytes: u64, limit: u64 },
    #[error("file {hash} finds no room: files that are in use fill the {} MiB that this agent keeps", limit >> 20)]
    NoRoom { hash: FileHash, limit: u64 },
    #[error("the farm sent something else as file {0}")]
    OtherContent(FileHash),
    #[error("file {0} cannot be kept here: {1}")]
    Disk(FileHash, #[source] io::Error),
}

/// Where files come from.
#[derive(Clone)]
pub struct Farm {
    pub endpoints: Vec<Endpoint>,
    pub credentials: Arc<Credentials>,
    pub runtime: Handle,
}

/// The files that an agent has.
pub struct Files {
    dir: PathBuf,
    farm: Farm,
    shelf: Mutex<Shelf>,
    changed: Condvar,
    /// On what the agent has beside `dir`, too.
    _claim: Option<Claim>,
}

/// A file that stays where it is for as long as this lives.
pub struct Kept<'a> {
    files: &'a Files,
    hash: FileHash,
    path: PathBuf,
}

impl Kept<'_> {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// It is not what it was when it came: a disk has failed, or somebody has changed it.
    #[cfg(feature = "wasm")]
    pub fn spoilt(self) {
        warn!(file = %self.hash, "a file is not what it was, and is fetched again");
        self.files.shelf().forget_when_unused(self.hash);
    }
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        let mut shelf = self.files.shelf();
        if shelf.release(self.hash) {
            // Under the lock: what somebody fetches from now on is another, and stays.
            drop(fs::remove_file(&self.path));
        }
        drop(shelf);
        self.files.changed.notify_all();
    }
}

impl Files {
    /// What an agent before this one has kept in `dir` is kept, and what it was fetching is removed; so is what other agents have left
    /// beside it. Nobody else writes to `dir`.
    pub fn open(dir: PathBuf, bytes_limit: u64, farm: Farm) -> io::Result<Files> {
        make_above(&dir)?;
        let claim = Claim::of(&dir)?;
        if let Some(claim) = &claim {
            claim.remove_unclaimed();
        }
        let mut shelf = Shelf::new(bytes_limit);
        let mut found = Vec::new();
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => Some(entries),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        for entry in entries.into_iter().flatten() {
            let entry = entry?;
            match entry.file_name().to_str().map(str::parse::<FileHash>) {
                Some(Ok(hash)) => {
                    let metadata = entry.metadata()?;
                    found.push((metadata.modified()?, hash, metadata.len()));
                }
                // Of a fetch that an end has interrupted.
                Some(Err(_)) | None => fs::remove_file(entry.path())?,
            }
        }
        found.sort();
        for (_, hash, bytes) in found {
            shelf.put(hash, bytes);
        }
        let files = Files { dir, farm, shelf: Mutex::new(shelf), changed: Condvar::new(), _claim: claim };
        // Programs are fenced by what is there when they start.
        files.make_dir()?;
        // The limit may have been lowered.
        let over = files.shelf().room_for(0).unwrap_or_default();
        files.remove(&over);
        Ok(files)
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, hash: FileHash) -> PathBuf {
        self.dir.join(hash.to_string())
    }

    fn remove(&self, gone: &[FileHash]) {
        for &hash in gone {
            if let Err(error) = fs::remove_file(self.path(hash)) {
                warn!(file = %hash, %error, "a file that is not needed cannot be removed");
            }
        }
    }

    /// A file that a checkout needs; fetched, if it is not here, by whoever asks first. Not for threads of the runtime: it waits,
    /// for as long as it is wanted, for servers that are away.
    pub fn get(&self, hash: FileHash, of: CheckoutKey, cancelled: &dyn Fn() -> bool) -> Result<Kept<'_>, FileError> {
        let path = self.path(hash);
        let mut shelf = self.shelf();
        loop {
            match shelf.take(hash) {
                Found::Here => {
                    drop(shelf);
                    // For the order in which files go, across restarts; no more than a hint.
                    drop(fs::File::open(&path).and_then(|file| file.set_modified(std::time::SystemTime::now())));
                    return Ok(Kept { files: self, hash, path });
                }
                Found::Coming => {
                    if cancelled() {
                        return Err(FileError::Cancelled);
                    }
                    shelf = self.changed.wait_timeout(shelf, STEP).unwrap_or_else(PoisonError::into_inner).0;
                }
                Found::Nowhere => break,
            }
        }
        drop(shelf);
        let fetched = self.fetch(hash, of, &path, cancelled);
        match &fetched {
            Ok(bytes) => self.shelf().arrived(hash, *bytes),
            Err(_) => self.shelf().failed(hash),
        }
        self.changed.notify_all();
        match fetched {
            Ok(bytes) => {
                crash_point(CrashPoint::FileFetched);
                info!(file = %hash, bytes, "a file was fetched");
                Ok(Kept { files: self, hash, path })
            }
            Err(FileError::Cancelled) => Err(FileError::Cancelled),
            Err(error) => {
                warn!(error = %chain(&error), "a file was not fetched");
                let end = std::time::Instant::now() + FAILURE_PAUSE;
                while std::time::Instant::now() < end && !cancelled() {
                    std::thread::sleep(STEP);
                }
                Err(error)
            }
        }
    }

    #[cfg(target_os = "linux")]
    /// Sends a file that a problem has made. Not for threads of the runtime, as [`Files::get`].
    pub fn put(&self, made: &Made, file: fs::File, cancelled: &dyn Fn() -> bool) -> Result<Uploaded, UploadError> {
        upload::upload(&self.farm, made, file, cancelled)
    }

    /// Programs of other users may pass through the directory above, to their own.
    fn make_dir(&self) -> io::Result<()> {
        if self.dir.exists() {
            return Ok(());
        }
        make_above(&self.dir)?;
        fs::create_dir_all(&self.dir)?;
        platform::let_pass(&self.dir)
    }

    fn fetch(
        &self,
        hash: FileHash,
        of: CheckoutKey,
        path: &Path,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<u64, FileError> {
        let disk = |error| FileError::Disk(hash, error);
        let part = path.with_extension("part");
        let make_room = |bytes: u64| {
            let mut shelf = self.shelf();
            if bytes > shelf.bytes_limit() {
                return Err(FileError::TooLarge { hash, bytes, limit: shelf.bytes_limit() });
            }
            let gone = shelf.room_for(bytes).ok_or(FileError::NoRoom { hash, limit: shelf.bytes_limit() })?;
            shelf.reserve(hash, bytes);
            // Under the lock: nobody takes what is about to go.
            self.remove(&gone);
            Ok(())
        };
        let fetched = (|| {
            let mut download = Download::new(hash, of, &part).map_err(disk)?;
            let done = async {
                tokio::select! {
                    biased;
                    () = unwanted(cancelled) => Err(FileError::Cancelled),
                    done = download.run(&self.farm, &make_room) => done,
                }
            };
            self.farm.runtime.block_on(done)?;
            download.finish().map_err(disk)
        })();
        match fetched {
            Ok(bytes) => {
                let renamed = platform::seal(&part)
                    .and_then(|()| fs::rename(&part, path))
                    .and_then(|()| platform::sync_dir(&self.dir));
                renamed.map(|()| bytes).map_err(|error| {
                    // Nobody would know of it.
                    drop(fs::remove_file(&part));
                    drop(fs::remove_file(path));
                    disk(error)
                })
            }
            Err(error) => {
                drop(fs::remove_file(&part));
                Err(error)
            }
        }
    }
}

impl Drop for Files {
    /// Without files there is nothing to remember.
    fn drop(&mut self) {
        drop(fs::remove_dir(&self.dir));
    }
}

fn make_above(dir: &Path) -> io::Result<()> {
    if let Some(above) = dir.parent().filter(|above| !above.exists()) {
        fs::create_dir_all(above)?;
        platform::let_pass(above)?;
    }
    Ok(())
}

async fn unwanted(cancelled: &dyn Fn() -> bool) {
    while !cancelled() {
        tokio::time::sleep(STEP).await;
    }
}
