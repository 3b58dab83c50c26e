//! Use of the CPU by a cgroup.
//!
//! Defines a use: more seconds per minute than the programs of an idle session need. The kernel counts them in each cgroup of the
//! unified hierarchy, whether or not a controller is enabled there.

use std::collections::VecDeque;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::signals::Moment;

const MINUTE: Duration = Duration::from_secs(60);

/// A minute is remembered as looks that are so far apart.
const LOOKS_APART: Duration = Duration::from_secs(5);

/// Mount point of the unified hierarchy.
pub fn hierarchy(sys: &Path) -> PathBuf {
    let unified = sys.join("fs/cgroup/unified");
    if unified.join("cgroup.controllers").exists() { unified } else { sys.join("fs/cgroup") }
}

/// Returns the use so far, or none without such a cgroup.
pub fn used(cgroup: &Path) -> Result<Option<Duration>, String> {
    let path = cgroup.join("cpu.stat");
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|error| format!("{}: {error}", path.display()))?,
    };
    let used = text.lines().find_map(|line| line.strip_prefix("usage_usec ")?.trim().parse().ok());
    used.map(|used| Some(Duration::from_micros(used))).ok_or_else(|| format!("{} makes no sense", path.display()))
}

/// Looks at one cgroup, over about a minute.
#[derive(Debug, Default)]
pub struct Meter {
    looks: VecDeque<(Moment, Duration)>,
    used: Duration,
    last: Option<Moment>,
}

impl Meter {
    /// Returns the last moment at which the cgroup had used `limit` or more within a minute. The time of any use before the first look
    /// is unknown, so that use counts as just now.
    pub fn read(&mut self, used: Duration, limit: Duration, now: Moment) -> Option<Moment> {
        let before = self.looks.front().map_or(Duration::ZERO, |(_, used)| *used);
        let is_another = used < self.used;
        if is_another || used.saturating_sub(before) >= limit {
            self.looks.clear();
            self.last = Some(now);
        }
        while self.looks.front().is_some_and(|(at, _)| now.saturating_sub(*at) >= MINUTE) {
            self.looks.pop_front();
        }
        if self.looks.back().is_none_or(|(at, _)| now.saturating_sub(*at) >= LOOKS_APART) {
            self.looks.push_back((now, used));
        }
        self.used = used;
        self.last
    }

    pub fn last(&self) -> Option<Moment> {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_so_much_within_a_minute_is_a_use() {
        let mut meter = Meter::default();
        let mut read = |at: u64, used: u64| {
            let last = meter.read(Duration::from_millis(used), Duration::from_secs(2), Duration::from_secs(at));
            last.map(|last| last.as_secs())
        };
        // A session that has just begun, and has done nothing yet.
        assert_eq!(read(1000, 300), None);
        // An idle one uses a second per minute for an hour.
        for minute in 0..60 {
            assert_eq!(read(1010 + minute * 60, 300 + minute * 1000), None, "{minute}");
        }
        // A person saves a file, whose check takes a moment.
        let (at, idle) = (1010 + 60 * 60, 300 + 59 * 1000);
        assert_eq!(read(at, idle + 900), None);
        assert_eq!(read(at + 5, idle + 2900), Some(at + 5));
        assert_eq!(read(at + 10, idle + 3000), Some(at + 5));
        assert_eq!(read(at + 70, idle + 3500), Some(at + 5));
        // A gap between two looks.
        assert_eq!(read(at + 3600, idle + 6000), Some(at + 3600));
        // Another cgroup of the same name.
        assert_eq!(read(at + 3700, 100), Some(at + 3700));
    }

    #[test]
    fn what_was_used_before_the_first_look_counts_now() {
        let now = Duration::from_secs(50);
        assert_eq!(Meter::default().read(Duration::from_secs(3), Duration::from_secs(2), now), Some(now));
        let mut often = Meter::default();
        for look in 0..500 {
            let at = now + look * Duration::from_millis(500);
            assert_eq!(often.read(look * Duration::from_millis(15), Duration::from_secs(2), at), None);
            assert!(often.looks.len() <= 13);
        }
    }

    #[test]
    fn a_cgroup_counts_what_it_used() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(used(dir.path()), Ok(None));
        fs::write(dir.path().join("cpu.stat"), "usage_usec 1500000\nuser_usec 1\n").expect("written");
        assert_eq!(used(dir.path()), Ok(Some(Duration::from_millis(1500))));
        fs::write(dir.path().join("cpu.stat"), "usage_usec -1\n").expect("written");
        assert!(used(dir.path()).is_err());
        assert_eq!(hierarchy(dir.path()), dir.path().join("fs/cgroup"));
        fs::create_dir_all(dir.path().join("fs/cgroup/unified")).expect("made");
        fs::write(dir.path().join("fs/cgroup/unified/cgroup.controllers"), "").expect("written");
        assert_eq!(hierarchy(dir.path()), dir.path().join("fs/cgroup/unified"));
    }
}
