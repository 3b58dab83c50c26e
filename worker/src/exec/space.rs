//! What is beneath a program's directories: how much, and that nothing of it stays.
//!
//! Owns the walk through what a hostile program may have made: deeper than any path is long, with more levels than a process has
//! descriptors or a stack has room, closed behind itself, full of links. Everything is named from an open directory and no link
//! is followed, so that nothing outside is touched whatever moves meanwhile.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;

use crate::fed::failure::Failure;

/// Levels of directories that a program may make. Each takes a descriptor while all is counted; a path has room for more only if
/// names are short.
const LEVELS_LIMIT: usize = 200;

/// What the smallest file costs, if only as an entry in the file system's tables.
const LEAST_BYTES: u64 = 4096;

/// What `st_blocks` counts in.
const BLOCK_BYTES: u64 = 512;

/// How long what is to be removed may grow meanwhile: nobody should be left who writes there.
const REMOVAL_WAIT: Duration = Duration::from_secs(120);

/// Looks that may find nothing that they can remove.
const FRUITLESS_LOOKS: u32 = 3;

const OPEN_DIR: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Bytes on the disk beneath a directory, each file at least [`LEAST_BYTES`] and counted once; or why that cannot be known.
/// No more than `most` is counted to the end.
pub fn used(dir: &Path, most: u64) -> Result<u64, Failure> {
    let Ok(root) = fs::File::open(dir).map(OwnedFd::from) else { return Ok(0) };
    let Ok(root) = Dir::new(root) else { return Ok(0) };
    let mut linked = HashSet::new();
    let mut total = 0;
    let mut levels = vec![root];
    while let Some(dir) = levels.last_mut() {
        let Some(entry) = dir.read() else {
            levels.pop();
            continue;
        };
        // It may be gone by now, and so may the directory.
        let Ok(entry) = entry else {
            levels.pop();
            continue;
        };
        let name = entry.file_name();
        let Ok(fd) = dir.fd() else { continue };
        if is_dots(name) {
            continue;
        }
        let Ok(stat) = statat(fd, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let is_dir = FileType::from_raw_mode(stat.st_mode).is_dir();
        if !is_dir && stat.st_nlink > 1 && !linked.insert((stat.st_dev, stat.st_ino)) {
            continue;
        }
        total += on_disk(&stat).max(LEAST_BYTES);
        if total > most {
            return Ok(total);
        }
        if is_dir {
            match openat(fd, name, OFlags::RDONLY | OPEN_DIR, Mode::empty()).and_then(Dir::new) {
                Ok(_) if levels.len() >= LEVELS_LIMIT => return Err(Failure::Levels(LEVELS_LIMIT)),
                Ok(below) => levels.push(below),
                Err(Errno::ACCESS) => return Err(Failure::Unreadable),
                // It is gone, or something else by now.
                Err(_) => {}
            }
        }
    }
    Ok(total)
}

pub fn on_disk(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0) * BLOCK_BYTES
}

/// Removes a directory with all that is in it, however it was left. It is fine if there is none.
///
/// A directory that is not empty is emptied into the one that is to be removed, file by file away, and its directories one level up: so
/// two descriptors do, and every path is short, however deep it was.
pub fn remove(path: &Path) -> io::Result<()> {
    let named = |error: Errno| {
        let error = io::Error::from(error);
        io::Error::new(error.kind(), format!("removing {}: {error}", path.display()))
    };
    let base = match open_up(CWD, path) {
        Err(Errno::NOENT) => return Ok(()),
        // A link, or a file, that somebody has put in its place.
        Err(Errno::NOTDIR | Errno::LOOP) => return fs::remove_file(path),
        opened => opened.map_err(named)?,
    };
    let deadline = Instant::now() + REMOVAL_WAIT;
    let (mut next, mut fruitless) = (0, 0);
    loop {
        match unlinkat(CWD, path, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(error) => return Err(named(error)),
        }
        match empty(base.as_fd(), &mut next) {
            Ok(0) | Err(_) if fruitless >= FRUITLESS_LOOKS => return Err(named(Errno::NOTEMPTY)),
            Ok(0) | Err(_) => fruitless += 1,
            Ok(_) => fruitless = 0,
        }
        if Instant::now() >= deadline {
            return Err(named(Errno::NOTEMPTY));
        }
    }
}

/// One look at all entries of the directory that is to be removed; returns how many it has removed or emptied. `next` is the
/// number that nothing which has moved up has for its name.
fn empty(base: BorrowedFd<'_>, next: &mut u64) -> Result<usize, Errno> {
    let mut done = 0;
    for name in names(base)? {
        if !is_directory(base, &name) {
            done += usize::from(unlinkat(base, &name, AtFlags::empty()).is_ok());
            continue;
        }
        if unlinkat(base, &name, AtFlags::REMOVEDIR).is_ok() {
            done += 1;
            continue;
        }
        let Ok(below) = open_up(base, &name) else { continue };
        for inner in names(below.as_fd())? {
            let is_gone = if is_directory(below.as_fd(), &inner) {
                unlinkat(&below, &inner, AtFlags::REMOVEDIR).is_ok() || move_up(below.as_fd(), &inner, base, next)
            } else {
                unlinkat(&below, &inner, AtFlags::empty()).is_ok()
            };
            done += usize::from(is_gone);
        }
        done += usize::from(unlinkat(base, &name, AtFlags::REMOVEDIR).is_ok());
    }
    Ok(done)
}

fn move_up(from: BorrowedFd<'_>, name: &CStr, base: BorrowedFd<'_>, next: &mut u64) -> bool {
    // Who may not write to a directory may not move it: its entry for what is above it changes.
    let _ = open_up(from, name);
    // Whoever made names like ours before made less than this.
    for _ in 0..1000 {
        *next += 1;
        match renameat(from, name, base, format!("up-{next}")) {
            Ok(()) => return true,
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => {}
            Err(_) => return false,
        }
    }
    false
}

fn names(dir: BorrowedFd<'_>) -> Result<Vec<CString>, Errno> {
    // As many as one look removes: the next finds the others.
    const AT_ONCE: usize = 4096;
    let entries = Dir::read_from(dir)?.filter_map(|entry| Some(entry.ok()?.file_name().to_owned()));
    Ok(entries.filter(|name| !is_dots(name)).take(AT_ONCE).collect())
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

fn is_directory(dir: BorrowedFd<'_>, name: &CStr) -> bool {
    statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir())
}

/// Opens a directory that a program may have closed behind itself.
fn open_up(dir: BorrowedFd<'_>, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    let place = openat(dir, name, OFlags::PATH | OPEN_DIR, Mode::empty())?;
    let wanted = Mode::RWXU;
    if Mode::from_raw_mode(fstat(&place)?.st_mode) & wanted != wanted {
        // By its descriptor: no link can come between.
        let _ = rustix::fs::chmod(format!("/proc/self/fd/{}", place.as_raw_fd()), wanted);
    }
    openat(&place, c".", OFlags::RDONLY | OPEN_DIR, Mode::empty())
}

#[cfg(test)]
mod tests {
    use rustix::fs::mkdirat;

    use super::*;

    /// A chain of so many directories below `top`, made as a program would: from where it stands.
    fn dig(top: &Path, levels: usize, name: &str) {
        let mut at = OwnedFd::from(fs::File::open(top).expect("it is there"));
        for _ in 0..levels {
            mkdirat(&at, name, Mode::RWXU).expect("there is room");
            at = openat(&at, name, OFlags::RDONLY | OPEN_DIR, Mode::empty()).expect("just made");
        }
        let file = openat(&at, "bottom", OFlags::WRONLY | OFlags::CREATE, Mode::RWXU).expect("there is room");
        rustix::io::write(&file, &[1; 100_000]).expect("there is room");
    }

    #[test]
    fn no_depth_keeps_anything_from_being_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        for (levels, name) in [(20_000, "d"), (40, &*"n".repeat(250))] {
            let top = dir.path().join("top");
            fs::create_dir(&top).expect("made");
            fs::write(top.join("up-1"), "a name of ours").expect("written");
            fs::create_dir_all(top.join("up-2/full")).expect("made");
            dig(&top, levels, name);
            remove(&top).expect("it can be removed");
            assert!(!top.exists());
        }
        remove(&dir.path().join("nothing")).expect("nothing is to be done");
    }

    #[test]
    fn what_is_beyond_the_longest_path_counts() {
        let dir = tempfile::tempdir().expect("a directory");
        dig(dir.path(), 40, &"n".repeat(250));
        assert!(used(dir.path(), u64::MAX).expect("it can be counted") >= 100_000 + 40 * LEAST_BYTES);
    }

    #[test]
    fn so_many_levels_are_no_use_to_anybody() {
        let dir = tempfile::tempdir().expect("a directory");
        dig(dir.path(), LEVELS_LIMIT, "d");
        assert_eq!(used(dir.path(), u64::MAX), Err(Failure::Levels(LEVELS_LIMIT)));
    }

    #[test]
    fn a_file_counts_once_and_never_as_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("file");
        fs::write(&file, vec![1; 1 << 20]).expect("written");
        fs::hard_link(&file, dir.path().join("again")).expect("linked");
        std::os::unix::fs::symlink(&file, dir.path().join("link")).expect("linked");
        for n in 0..100 {
            fs::write(dir.path().join(n.to_string()), "").expect("written");
        }
        let counted = used(dir.path(), u64::MAX).expect("it can be counted");
        let least = (1 << 20) + 101 * LEAST_BYTES;
        assert!((least..least + (64 << 10)).contains(&counted), "{counted}");
        assert!(used(dir.path(), 10_000).expect("it can be counted") > 10_000);
    }
}
