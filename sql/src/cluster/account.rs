//! Whose a private cluster is. PostgreSQL refuses to run as root, so root hands it to an unprivileged account; anyone else
//! keeps it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The account PostgreSQL runs as, when it is not simply ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Account {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
}

pub(super) fn we_are_root() -> bool {
    rustix::process::geteuid().is_root()
}

impl Account {
    /// For root: the owner of the data that is there, else `postgres`, else `nobody`. For others: `None`, themselves.
    pub fn choose(data: &Path) -> Option<Account> {
        if !we_are_root() {
            return None;
        }
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        if let Ok(metadata) = fs::metadata(data)
            && metadata.uid() != 0
        {
            let uid = metadata.uid();
            let named = accounts(&passwd).find(|account| account.uid == uid);
            return Some(named.unwrap_or_else(|| Account { name: format!("uid {uid}"), uid, gid: metadata.gid() }));
        }
        ["postgres", "nobody"].into_iter().find_map(|name| {
            accounts(&passwd).find(|account| account.name == name && account.uid != 0).or_else(|| ask_id(name))
        })
    }

    /// Drops to this account; the standard library drops root's other groups with it.
    pub fn apply(&self, command: &mut Command) {
        command.uid(self.uid).gid(self.gid);
    }

    pub fn own(&self, path: &Path) -> io::Result<()> {
        std::os::unix::fs::lchown(path, Some(self.uid), Some(self.gid))
    }

    /// The first directory on the way to `directory` that this account cannot enter. It is tried, not computed from mode
    /// bits: access lists and security modules have a say too.
    pub fn barred_at(&self, directory: &Path) -> Option<PathBuf> {
        if self.can_enter(directory) {
            return None;
        }
        let mut ancestors: Vec<&Path> = directory.ancestors().collect();
        ancestors.reverse();
        ancestors.into_iter().find(|ancestor| !self.can_enter(ancestor)).map(Path::to_owned)
    }

    fn can_enter(&self, directory: &Path) -> bool {
        let mut command = super::programs::command("/bin/sh");
        command.args(["-c", "cd -- \"$1\"", "sh"]).arg(directory);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.apply(&mut command);
        command.status().is_ok_and(|status| status.success())
    }
}

fn accounts(passwd: &str) -> impl Iterator<Item = Account> {
    passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some(Account { name, uid, gid })
    })
}

/// Directory services know accounts that /etc/passwd does not.
fn ask_id(name: &str) -> Option<Account> {
    let number = |option: &str| -> Option<u32> {
        let output = Command::new("id").args([option, name]).output().ok()?;
        String::from_utf8(output.stdout).ok()?.trim().parse().ok()
    };
    let (uid, gid) = (number("-u")?, number("-g")?);
    let name = name.to_owned();
    (uid != 0).then_some(Account { name, uid, gid })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwd_lines_are_read() {
        let text =
            "root:x:0:0:root:/root:/bin/bash\nbroken\npostgres:x:101:104:PostgreSQL,,,:/var/lib/postgresql:/bin/bash\n";
        let found: Vec<_> = accounts(text).map(|account| (account.name, account.uid, account.gid)).collect();
        assert_eq!(found, [("root".to_owned(), 0, 0), ("postgres".to_owned(), 101, 104)]);
    }
}
