//! Finds PostgreSQL's own programs. Distributions keep `initdb` and `postgres` out of PATH on purpose.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) const SUPPORTED: std::ops::RangeInclusive<u32> = 15..=18;

/// A directory that holds `initdb`, `postgres` and `pg_ctl` of one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Programs {
    pub directory: PathBuf,
    pub major: u32,
}

impl Programs {
    pub fn path(&self, program: &str) -> PathBuf {
        self.directory.join(program)
    }
}

/// What is installed, in order of preference: asked for, in PATH, pg_config's, the distributions' places newest first.
pub(super) fn installed(asked_for: Option<&Path>) -> Vec<Programs> {
    let directories = match asked_for {
        Some(directory) => vec![directory.to_owned()],
        None => candidates(),
    };
    let mut found: Vec<Programs> = Vec::new();
    for directory in directories {
        let known = found.iter().any(|programs| programs.directory == directory);
        if known || !["initdb", "pg_ctl"].iter().all(|name| directory.join(name).is_file()) {
            continue;
        }
        if let Some(major) = version_of(&directory.join("postgres")) {
            found.push(Programs { directory, major });
        }
    }
    found
}

fn candidates() -> Vec<PathBuf> {
    let mut directories: Vec<PathBuf> = std::env::var_os("PATH")
        .map(|path| std::env::split_paths(&path).filter(|one| one.is_absolute()).collect())
        .unwrap_or_default();
    if let Ok(output) = Command::new("pg_config").arg("--bindir").output()
        && output.status.success()
    {
        let bindir = String::from_utf8_lossy(&output.stdout);
        directories.push(PathBuf::from(bindir.trim()));
    }
    for major in SUPPORTED.rev() {
        directories.extend([
            PathBuf::from(format!("/usr/lib/postgresql/{major}/bin")), // Debian, Ubuntu
            PathBuf::from(format!("/usr/pgsql-{major}/bin")),          // Fedora and RHEL, from postgresql.org
            PathBuf::from(format!("/opt/homebrew/opt/postgresql@{major}/bin")),
            PathBuf::from(format!("/usr/local/opt/postgresql@{major}/bin")),
            PathBuf::from(format!("/home/linuxbrew/.linuxbrew/opt/postgresql@{major}/bin")),
            PathBuf::from(format!("/usr/lib/postgresql{major}/bin")), // openSUSE
            PathBuf::from(format!("/usr/libexec/postgresql{major}")), // Alpine
        ]);
    }
    directories
}

fn version_of(postgres: &Path) -> Option<u32> {
    let output = Command::new(postgres).arg("--version").output().ok()?;
    output.status.success().then(|| major_in(&output.stdout))?
}

/// `postgres (PostgreSQL) 15.14 (Debian …)`, `postgres (PostgreSQL) 18beta1`.
fn major_in(output: &[u8]) -> Option<u32> {
    let text = String::from_utf8_lossy(output);
    let version = text.split_whitespace().nth(2)?;
    let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// A command with nothing of the caller's PostgreSQL settings, terminal group or directory.
pub(super) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PG") {
            command.env_remove(name);
        }
    }
    command.env("LC_ALL", "C").current_dir("/").stdin(std::process::Stdio::null());
    use std::os::unix::process::CommandExt;
    command.process_group(0); // Ctrl-C in the terminal is for the server, which must still drain
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        let table: &[(&str, Option<u32>)] = &[
            ("postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)\n", Some(15)),
            ("postgres (PostgreSQL) 18beta1\n", Some(18)),
            ("postgres (PostgreSQL) 17\n", Some(17)),
            ("postgres (PostgreSQL) devel\n", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(major_in(text.as_bytes()), *expected, "{text}");
        }
    }
}
