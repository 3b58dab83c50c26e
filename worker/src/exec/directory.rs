//! Where programs work: directories of their own, and nothing of them is left.
//!
//! ```text
//! work_dir/IDENTITY/        the agent's; emptied when it starts, since a killed agent cleans nothing
//!   3/                      a program's on one core; what runs as the agent's user may make things in here, where there is no fence
//!     home/                 where a fed program works, while it runs; a one-shot program works in its problem's
//!     40000000001/          a problem's, while it is in hand
//! ```

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::warn;

use crate::exec::plan::User;
use crate::exec::settings::Mode;
use crate::exec::space;

/// Others may pass through, and see nothing.
const PASSAGE: u32 = 0o711;
const OWN: u32 = 0o700;

/// Most directories that could not be removed and are put aside.
const ASIDE: u32 = 9;

/// The working directories of one agent, until it is dropped.
#[derive(Debug)]
pub struct Area {
    base: PathBuf,
    next: AtomicU64,
}

impl Area {
    /// Removes what an agent before this one has left there; what cannot be removed is put aside, and tried again the next time.
    /// Nobody else may use `base`.
    pub fn open(base: &Path) -> io::Result<Area> {
        if let Err(error) = remove(base) {
            warn!(path = %base.display(), %error, "put aside");
            aside(base).find_map(|to| fs::rename(base, to).ok()).ok_or(error)?;
        }
        if let Some(above) = base.parent().filter(|above| !above.exists()) {
            fs::create_dir_all(above)?;
            fs::set_permissions(above, Permissions::from_mode(PASSAGE))?;
        }
        make(base, PASSAGE, None)?;
        Ok(Area { base: base.canonicalize()?, next: AtomicU64::new(1) })
    }

    pub fn path(&self) -> &Path {
        &self.base
    }

    /// Directories of a program that runs as `user`.
    pub fn place(&self, user: Option<User>, mode: Mode) -> io::Result<Place> {
        let path = self.base.join(self.next.fetch_add(1, Ordering::Relaxed).to_string());
        make(&path, PASSAGE, None)?;
        let place = Place { path, user };
        if mode == Mode::Fed {
            make(&place.home(), OWN, user)?;
        }
        Ok(place)
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        discard(&self.base);
    }
}

/// Removes an agent's directories that nobody uses; what was put aside as far as that can be.
pub fn remove(base: &Path) -> io::Result<()> {
    aside(base).filter(|left| left.exists()).for_each(|left| discard(&left));
    space::remove(base)
}

fn aside(base: &Path) -> impl Iterator<Item = PathBuf> {
    (1..=ASIDE).map(move |n| base.with_extension(format!("left-{n}")))
}

#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    user: Option<User>,
}

impl Place {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn home(&self) -> PathBuf {
        self.path.join("home")
    }

    /// Whether nothing is in it: what a problem leaves here would be in the next one's way, and for it to read.
    pub fn is_empty(&self) -> bool {
        fs::read_dir(&self.path).is_ok_and(|mut entries| entries.next().is_none())
    }

    /// A directory for a problem, until it is dropped.
    pub fn problem(&self, name: &str) -> io::Result<ProblemDir> {
        let path = self.path.join(name);
        make(&path, OWN, self.user)?;
        Ok(ProblemDir(path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        discard(&self.path);
    }
}

#[derive(Debug)]
pub struct ProblemDir(PathBuf);

impl ProblemDir {
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ProblemDir {
    fn drop(&mut self) {
        discard(&self.0);
    }
}

/// An error if there is one already: nothing is taken for ours that another has made.
fn make(path: &Path, mode: u32, owner: Option<User>) -> io::Result<()> {
    let failed = |error: io::Error| io::Error::new(error.kind(), format!("making {}: {error}", path.display()));
    DirBuilder::new().mode(mode).create(path).map_err(failed)?;
    // Whatever the umask is.
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed)?;
    if let Some(User { uid, gid }) = owner {
        lchown(path, Some(uid), Some(gid)).map_err(failed)?;
    }
    Ok(())
}

fn discard(path: &Path) {
    if let Err(error) = space::remove(path) {
        warn!(path = %path.display(), %error, "a program's directory cannot be removed; it is when the agent starts again");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_stays_however_it_was_left() {
        let dir = tempfile::tempdir().expect("a directory");
        let base = dir.path().join("work/agent");
        fs::create_dir_all(base.join("9/home")).expect("made");
        fs::write(base.join("9/home/left"), "by an agent that was killed").expect("written");
        let outside = dir.path().join("outside");
        fs::write(&outside, "not ours").expect("written");

        let area = Area::open(&base).expect("it can be made");
        assert_eq!(fs::read_dir(&base).expect("it is there").count(), 0);
        let once = area.place(None, Mode::OneShot).expect("made");
        assert!(once.is_empty());
        fs::write(once.path().join("left"), "by a problem").expect("written");
        assert!(!once.is_empty());
        drop(once);
        let place = area.place(None, Mode::Fed).expect("made");
        let problem = place.problem("7").expect("made");
        assert!(place.problem("7").is_err(), "a directory was taken that was there");
        let closed = problem.path().join("a/b");
        fs::create_dir_all(&closed).expect("made");
        std::os::unix::fs::symlink(&outside, closed.join("link")).expect("made");
        std::os::unix::fs::symlink(dir.path(), closed.join("up")).expect("made");
        fs::set_permissions(&closed, Permissions::from_mode(0o000)).expect("ours");
        fs::set_permissions(problem.path(), Permissions::from_mode(0o000)).expect("ours");
        drop(problem);
        assert_eq!(fs::read_dir(place.path()).expect("it is there").count(), 1, "only its home is left");
        drop(place);
        drop(area);
        assert!(!base.exists() && outside.exists());
    }
}
