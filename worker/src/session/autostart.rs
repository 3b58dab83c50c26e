//! A helper that the desktop starts with each session, wherever the package is installed.
//!
//! The helper never bothers the session's person. It prints nothing, ends where no agent will ever listen, and continues as the
//! new program after an upgrade.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Units that start with the system have links in these directories.
const UNITS: [&str; 4] =
    ["/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];
const WANTED: &str = "multi-user.target.wants/pcfarm-worker.service";

/// Suffix that the kernel adds to the path of a program whose file has gone.
const DELETED: &str = " (deleted)";

/// Between two attempts to reach an agent: later attempts are rarer.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// An agent may start with the system, if not now.
pub fn is_enabled() -> bool {
    UNITS.iter().any(|dir| Path::new(dir).join(WANTED).is_symlink())
}

pub fn next_wait(wait: Duration) -> Duration {
    wait.saturating_mul(2).min(LONGEST_WAIT)
}

/// Puts the program of an upgrade in the place of this process. False: the package is gone.
pub fn follow_upgrade() -> bool {
    let Some(path) = std::env::current_exe().ok().and_then(replaced) else { return true };
    if !path.is_file() {
        return false;
    }
    // Returns only if that is not possible: this program goes on.
    let _ = Command::new(path).args(std::env::args_os().skip(1)).exec();
    true
}

/// Returns the former path of a program whose file has gone.
fn replaced(program: PathBuf) -> Option<PathBuf> {
    program.to_str()?.strip_suffix(DELETED).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_whose_file_has_gone_knows_where_it_was() {
        let program = PathBuf::from("/usr/bin/pcfarm-worker");
        assert_eq!(replaced(program.clone()), None);
        assert_eq!(replaced("/usr/bin/pcfarm-worker (deleted)".into()), Some(program));
        assert!(follow_upgrade(), "this program is there");
    }

    #[test]
    fn attempts_become_rarer_up_to_a_minute() {
        let mut wait = Duration::from_secs(5);
        let waits: Vec<u64> = std::iter::repeat_with(|| {
            wait = next_wait(wait);
            wait.as_secs()
        })
        .take(5)
        .collect();
        assert_eq!(waits, [10, 20, 40, 60, 60]);
    }
}
