//! What a program may touch, by Landlock: the kernel's own fence for processes without privileges.
//!
//! Owns which paths stay readable and writable. Where the kernel is too old for it, nothing is fenced and the agent's owner
//! must say so (`trusted`), or run programs as another user.
//!
//! Landlock grants and never denies, and a grant is for all beneath a directory. So that a hidden directory is left out, its
//! ancestors are granted entry by entry, without symbolic links, which lead to places that are granted as themselves.
//!
//! No kernel's Landlock keeps a process from changing modes, owners, times and attributes of what is its user's.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, Scope,
};

/// The rights that are handled. Later ones are about devices and would keep programs from terminals.
const RIGHTS: ABI = ABI::V4;

/// What nearly every program writes to.
const DEVICES: [&str; 4] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/tty"];

pub struct Fence<'a> {
    pub hidden: &'a [PathBuf],
    pub writable: &'a [PathBuf],
    /// Readable and writable even beneath what is hidden.
    pub own: &'a Path,
    pub network: bool,
}

/// What of it this kernel has: files from Linux 5.13 on, truncation by their names from 6.2, TCP from 6.7, signals from 6.12.
#[cfg_attr(not(feature = "service"), allow(dead_code, reason = "the doctor asks"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    pub files: bool,
    pub truncate: bool,
    pub tcp: bool,
    pub signals: bool,
}

#[cfg_attr(not(feature = "service"), allow(dead_code, reason = "the doctor asks"))]
pub fn kernel() -> Kernel {
    let required = || Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let truncate = required().handle_access(AccessFs::Truncate);
    let tcp = required().handle_access(AccessNet::from_all(RIGHTS));
    let signals = required().scope(Scope::Signal);
    Kernel {
        files: available(),
        truncate: truncate.and_then(Ruleset::create).is_ok(),
        tcp: tcp.and_then(Ruleset::create).is_ok(),
        signals: signals.and_then(Ruleset::create).is_ok(),
    }
}

/// Whether this kernel has it.
pub fn available() -> bool {
    static AVAILABLE: LazyLock<bool> = LazyLock::new(|| {
        let required = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
        required.handle_access(AccessFs::ReadFile).and_then(Ruleset::create).is_ok()
    });
    *AVAILABLE
}

impl Fence<'_> {
    /// Opens what it grants; nothing holds until it is closed by [`RulesetCreated::restrict_self`]. To be done while all
    /// of that can still be seen.
    pub fn build(&self) -> anyhow::Result<RulesetCreated> {
        let all = AccessFs::from_all(RIGHTS);
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(all)?
            .scope(Scope::Signal)?
            .scope(Scope::AbstractUnixSocket)?;
        if !self.network {
            ruleset = ruleset.handle_access(AccessNet::from_all(RIGHTS))?;
        }
        let mut created = ruleset.create()?;
        // Names may be listed anywhere; what is in hidden files may not be read.
        created = created.add_rule(PathBeneath::new(PathFd::new("/")?, AccessFs::ReadDir))?;
        let hidden: Vec<PathBuf> = self.hidden.iter().filter_map(|path| path.canonicalize().ok()).collect();
        for path in readable(Path::new("/"), &hidden) {
            created = grant(created, &path, AccessFs::from_read(RIGHTS))?;
        }
        for path in self.writable.iter().map(PathBuf::as_path).chain(DEVICES.map(Path::new)).chain([self.own]) {
            created = grant(created, path, all)?;
        }
        Ok(created)
    }
}

/// What cannot be opened is not granted.
fn grant(
    created: RulesetCreated,
    path: &Path,
    rights: impl Into<landlock::BitFlags<AccessFs>>,
) -> anyhow::Result<RulesetCreated> {
    let Ok(opened) = PathFd::new(path) else { return Ok(created) };
    let mut rights = rights.into();
    if !path.is_dir() {
        rights &= AccessFs::from_file(RIGHTS);
    }
    Ok(created.add_rule(PathBeneath::new(opened, rights))?)
}

/// The largest places beneath `dir` that contain nothing hidden.
fn readable(dir: &Path, hidden: &[PathBuf]) -> Vec<PathBuf> {
    if hidden.is_empty() {
        return vec![dir.to_owned()];
    }
    let mut places = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        if is_link || hidden.contains(&path) {
            continue;
        }
        if hidden.iter().any(|hidden| hidden.starts_with(&path)) {
            places.extend(readable(&path, hidden));
        } else {
            places.push(path);
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_what_is_hidden_is_readable() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().canonicalize().expect("it is there");
        for path in ["a/b/secret/key", "a/b/other", "a/c", "d"] {
            fs::create_dir_all(root.join(path)).expect("made");
        }
        std::os::unix::fs::symlink(root.join("a/b/secret"), root.join("a/way-in")).expect("made");
        let mut places = readable(&root, &[root.join("a/b/secret")]);
        places.sort();
        assert_eq!(places, [root.join("a/b/other"), root.join("a/c"), root.join("d")]);
        assert_eq!(readable(&root, &[]), [root]);
    }
}
