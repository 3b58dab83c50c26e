//! DIR of a private cluster and what lies in it:
//!
//! ```text
//! DIR/lock           held by the one server that owns DIR; its text is that server's process id
//! DIR/data           PostgreSQL's data directory
//! DIR/data.tmp       an initdb that has not finished, or never did
//! DIR/postgresql.conf
//! DIR/log            PostgreSQL's log, seven days of it; `start.log` is what it said before it opened that
//! DIR/socket         the path of the private directory of its socket
//! ```
//!
//! As root, DIR itself stays root's, so that PostgreSQL's account cannot make root follow its links.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, OFlags, flock};

use super::account::Account;

#[derive(Debug, Clone)]
pub(super) struct Directory {
    pub path: PathBuf,
}

impl Directory {
    /// Makes DIR if it is missing; an existing one is taken as it is.
    pub fn create(path: &Path, account: Option<&Account>) -> io::Result<Directory> {
        let mode = if account.is_some() { 0o711 } else { 0o700 };
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        match fs::DirBuilder::new().mode(mode).create(path) {
            Ok(()) => fs::set_permissions(path, Permissions::from_mode(mode))?, // whatever the umask
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => (),
            Err(error) => return Err(error),
        }
        let path = path.canonicalize()?;
        Ok(Directory { path })
    }

    pub fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    pub fn unfinished_data(&self) -> PathBuf {
        self.path.join("data.tmp")
    }

    pub fn settings(&self) -> PathBuf {
        self.path.join("postgresql.conf")
    }

    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    pub fn start_log(&self) -> PathBuf {
        self.log().join("start.log")
    }

    fn socket_record(&self) -> PathBuf {
        self.path.join("socket")
    }

    /// `Ok(Err(owner))` when another process holds it. The lock goes when the process goes, however it goes.
    pub fn lock(&self) -> io::Result<Result<File, String>> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits() as i32)
            .open(self.path.join("lock"))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => (),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut owner = String::new();
                file.take(20).read_to_string(&mut owner)?;
                return Ok(Err(owner.trim().to_owned()));
            }
            Err(error) => return Err(error.into()),
        }
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())?;
        Ok(Ok(file))
    }

    /// An empty directory for PostgreSQL's account to fill.
    pub fn make_private(&self, path: &Path, account: Option<&Account>) -> io::Result<()> {
        match fs::DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => (),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            Err(error) => return Err(error),
        }
        account.map_or(Ok(()), |account| account.own(path))
    }

    pub fn write_settings(&self, text: &str) -> io::Result<()> {
        let temporary = self.path.join("postgresql.conf.tmp");
        fs::write(&temporary, text)?;
        fs::set_permissions(&temporary, Permissions::from_mode(0o644))?;
        fs::rename(&temporary, self.settings())
    }

    /// The recorded socket directory if it is still there and still private, else a new one. It is short because a
    /// socket's path is limited to about a hundred bytes, and DIR may be anywhere.
    pub fn socket_directory(&self, account: Option<&Account>) -> io::Result<PathBuf> {
        let owner = account.map_or_else(|| rustix::process::geteuid().as_raw(), |account| account.uid);
        if let Some(recorded) = self.recorded_socket_directory()
            && let Ok(metadata) = fs::symlink_metadata(&recorded)
            && metadata.is_dir()
            && metadata.uid() == owner
            && metadata.mode() & 0o077 == 0
        {
            return Ok(recorded);
        }
        // /run is root's alone and survives the cleaners of /tmp; a user's XDG_RUNTIME_DIR would go when they log out.
        let bases: &[&str] = if account.is_some() { &["/run", "/tmp"] } else { &["/tmp"] };
        let mut last_error = None;
        for base in bases {
            let made =
                tempfile::Builder::new().prefix("pcfarm-").permissions(Permissions::from_mode(0o700)).tempdir_in(base);
            match made {
                Ok(made) => {
                    if let Some(account) = account {
                        account.own(made.path())?;
                    }
                    fs::write(self.socket_record(), made.path().as_os_str().as_encoded_bytes())?;
                    return Ok(made.keep());
                }
                Err(error) => last_error = Some(error),
            }
        }
        Err(last_error.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
    }

    fn recorded_socket_directory(&self) -> Option<PathBuf> {
        let path = fs::read_to_string(self.socket_record()).ok()?;
        (!path.is_empty()).then(|| PathBuf::from(path))
    }

    /// Only what PostgreSQL makes there is removed; anything else keeps the directory.
    pub fn remove_socket_directory(&self) {
        self.remove_socket_files();
        if let Some(directory) = self.recorded_socket_directory() {
            let _ = fs::remove_dir(directory);
        }
        let _ = fs::remove_file(self.socket_record());
    }

    pub fn remove_socket_files(&self) {
        if let Some(directory) = self.recorded_socket_directory() {
            for name in [".s.PGSQL.5432", ".s.PGSQL.5432.lock"] {
                let _ = fs::remove_file(directory.join(name));
            }
        }
    }

    /// What PostgreSQL logged at a start that failed: the ends of the files written since.
    pub fn logged_since(&self, began: SystemTime) -> String {
        let began = began - Duration::from_millis(10); // file times tick more coarsely than the clock
        let mut said = String::new();
        for entry in fs::read_dir(self.log()).into_iter().flatten().flatten() {
            let written = entry.metadata().and_then(|metadata| metadata.modified());
            if written.is_ok_and(|written| written >= began) {
                said.push_str(&end_of(&entry.path()).unwrap_or_default());
            }
        }
        said
    }

    /// The major version of the data that is there, if any is.
    pub fn data_version(&self) -> io::Result<Option<String>> {
        match fs::read_to_string(self.data().join("PG_VERSION")) {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub fn pid_file(&self) -> Option<PidFile> {
        PidFile::parse(&fs::read_to_string(self.pid_file_path()).ok()?)
    }

    pub fn pid_file_path(&self) -> PathBuf {
        self.data().join("postmaster.pid")
    }
}

/// The file is PostgreSQL's account's, so a link in its place is not followed.
fn end_of(path: &Path) -> io::Result<String> {
    let mut file = File::options().read(true).custom_flags(OFlags::NOFOLLOW.bits() as i32).open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(2048)))?;
    let mut bytes = Vec::new();
    file.take(2048).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// `postmaster.pid`, as PostgreSQL has written it since version 10.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PidFile {
    pub pid: i32,
    pub started_at: u64,
    pub socket_directory: Option<PathBuf>,
    pub status: String,
}

impl PidFile {
    fn parse(text: &str) -> Option<PidFile> {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let line = |index: usize| lines.get(index).copied().unwrap_or("");
        Some(PidFile {
            pid: line(0).parse().ok().filter(|pid| *pid > 0)?,
            started_at: line(2).parse().unwrap_or(0),
            socket_directory: Some(line(4)).filter(|path| !path.is_empty()).map(PathBuf::from),
            status: line(7).to_owned(),
        })
    }

    pub fn is_alive(&self) -> bool {
        rustix::process::Pid::from_raw(self.pid).is_some_and(|pid| {
            let tried = rustix::process::test_kill_process(pid);
            matches!(tried, Ok(()) | Err(rustix::io::Errno::PERM))
        })
    }

    /// Whether that process serves `data`; `None` where the system does not tell.
    pub fn serves(&self, data: &Path) -> Option<bool> {
        let arguments = fs::read(format!("/proc/{}/cmdline", self.pid)).ok()?;
        let wanted = data.as_os_str().as_encoded_bytes();
        Some(arguments.split(|byte| *byte == 0).any(|argument| argument == wanted))
    }

    /// Whether that process is dead and only waits for its parent to take note. PostgreSQL takes it for a live one.
    pub fn is_zombie(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z'))
    }

    /// Whether it was written before this machine started, so that nothing of it can live.
    pub fn is_from_before_boot(&self) -> bool {
        let boot = fs::read_to_string("/proc/stat").ok().and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("btime "))?;
            line.trim().parse::<u64>().ok()
        });
        boot.is_some_and(|boot| self.started_at != 0 && self.started_at < boot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pid_files_are_read_whole_or_half_written() {
        let whole = "4711\n/x/data\n1700000000\n5432\n/tmp/pcfarm-a\n\n  5432001  3\nready   \n";
        let expected = PidFile {
            pid: 4711,
            started_at: 1_700_000_000,
            socket_directory: Some(PathBuf::from("/tmp/pcfarm-a")),
            status: "ready".to_owned(),
        };
        assert_eq!(PidFile::parse(whole), Some(expected));
        assert_eq!(PidFile::parse("4711\n").map(|file| file.socket_directory), Some(None));
        for text in ["", "x\n", "-3\n", "0\n"] {
            assert_eq!(PidFile::parse(text), None, "{text:?}");
        }
    }
}
