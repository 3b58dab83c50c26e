//! How many files this process may have open: each connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{info, warn};

/// For the database, the log and whatever the runtime needs.
const RESERVE: usize = 128;

/// Raises the soft limit to the hard one, and says how many connections of `wanted` that leaves room for.
pub fn make_room(wanted: usize) -> usize {
    let before = getrlimit(Resource::Nofile);
    if before.current != before.maximum {
        // Not fatal: the limit that is there still holds.
        if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, ..before }) {
            warn!(%error, "the limit of open files cannot be raised to what the system allows");
        }
    }
    let limit = getrlimit(Resource::Nofile).current;
    info!(files = limit.map_or("unlimited".to_owned(), |n| n.to_string()), "open files allowed");
    let room = room(limit, wanted);
    if room < wanted {
        warn!(
            connections = room,
            wanted,
            "fewer connections than wanted: raise the hard limit of open files \
            (LimitNOFILE= of the service, ulimit -Hn of a shell)"
        );
    }
    room
}

fn room(limit: Option<u64>, wanted: usize) -> usize {
    let files = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    // However few: one that serves somebody says more than one that does not start.
    wanted.min(files.saturating_sub(RESERVE)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_the_rest() {
        assert_eq!(room(None, 12_000), 12_000);
        assert_eq!(room(Some(1 << 20), 12_000), 12_000);
        assert_eq!(room(Some(1024), 12_000), 896);
        assert_eq!(room(Some(64), 12_000), 1);
    }

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        assert!(make_room(1) == 1);
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
