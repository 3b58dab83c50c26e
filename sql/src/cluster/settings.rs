//! The private cluster's postgresql settings: sized for a machine that does other things too, and durable unless a test
//! says otherwise. Written anew at each start; what an operator sets by ALTER SYSTEM wins over it.

use std::fmt::Write;
use std::path::Path;

pub(super) struct Wanted<'a> {
    pub socket_directory: &'a Path,
    pub log_directory: &'a Path,
    pub durable: bool,
    pub wal_compression: &'a str,
    pub memory: u64,
    pub extra: &'a [(String, String)],
}

const MIB: u64 = 1024 * 1024;

pub(super) fn text(wanted: &Wanted<'_>) -> String {
    let memory_mib = wanted.memory / MIB;
    // A night touches each page a few times and then never again: with more, every connection pays for mapping memory that
    // it sees once, and the system's own cache keeps the pages anyway.
    let shared_buffers = if wanted.durable { (memory_mib / 4).clamp(64, 256) } else { 64 };
    let mut settings: Vec<(&str, String)> = vec![
        ("listen_addresses", String::new()),
        ("port", super::PORT.to_string()),
        ("unix_socket_directories", wanted.socket_directory.display().to_string()),
        ("unix_socket_permissions", "0700".to_owned()),
        ("cluster_name", "pcfarm".to_owned()),
        ("max_connections", "100".to_owned()),
        ("shared_buffers", format!("{shared_buffers}MB")),
        ("effective_cache_size", format!("{}MB", (memory_mib / 2).max(128))),
        ("maintenance_work_mem", "128MB".to_owned()),
        ("work_mem", "16MB".to_owned()),
        ("random_page_cost", "1.5".to_owned()),
        ("jit", "off".to_owned()),
        ("timezone", "UTC".to_owned()),
        ("wal_compression", wanted.wal_compression.to_owned()),
        ("checkpoint_timeout", "15min".to_owned()),
        ("autovacuum", "on".to_owned()),
        // The queue's small tables turn over in seconds: look at them more often than once a minute.
        ("autovacuum_naptime", "15s".to_owned()),
    ];
    if wanted.durable {
        settings.extend([
            ("fsync", "on".to_owned()),
            ("full_page_writes", "on".to_owned()),
            ("synchronous_commit", "on".to_owned()),
            ("max_wal_size", "4GB".to_owned()),
            ("min_wal_size", "1GB".to_owned()),
        ]);
    } else {
        settings.extend([
            ("fsync", "off".to_owned()),
            ("full_page_writes", "off".to_owned()),
            ("max_wal_size", "1GB".to_owned()),
        ]);
    }
    // One file for each day of the week, begun anew when its day comes round: the log never holds more than seven days.
    settings.extend([
        ("logging_collector", "on".to_owned()),
        ("log_directory", wanted.log_directory.display().to_string()),
        ("log_filename", "postgresql-%u.log".to_owned()),
        ("log_truncate_on_rotation", "on".to_owned()),
        ("log_rotation_age", "1d".to_owned()),
        ("log_rotation_size", "0".to_owned()),
        ("log_file_mode", "0600".to_owned()),
        ("log_line_prefix", "%m [%p] %q%u@%d %a ".to_owned()),
        ("log_timezone", "UTC".to_owned()),
        ("log_lock_waits", "on".to_owned()),
        // Parameters are people's payloads.
        ("log_parameter_max_length_on_error", "0".to_owned()),
    ]);
    let mut text = String::from(
        "# Written by PC Farm at each start. To change a setting, use ALTER SYSTEM: it wins over this file.\n",
    );
    let extra = wanted.extra.iter().map(|(name, value)| (name.as_str(), value));
    for (name, value) in settings.iter().map(|(name, value)| (*name, value)).chain(extra) {
        writeln!(text, "{name} = '{}'", value.replace('\\', "\\\\").replace('\'', "''")).expect("a String takes all");
    }
    text
}

/// The machine's memory or, in a container, what it may use.
pub(super) fn memory() -> u64 {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
        let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(kib * 1024)
    });
    let container = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse().ok());
    let known = [machine, container].into_iter().flatten().min();
    known.unwrap_or(1024 * MIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_memory_and_durability() {
        let wanted = |durable, memory| Wanted {
            socket_directory: Path::new("/tmp/it's"),
            log_directory: Path::new("/log"),
            durable,
            wal_compression: "on",
            memory,
            extra: &[],
        };
        let large = text(&wanted(true, 64 * 1024 * MIB));
        assert!(large.contains("shared_buffers = '256MB'") && large.contains("fsync = 'on'"), "{large}");
        assert!(large.contains("unix_socket_directories = '/tmp/it''s'"), "{large}");
        assert!(text(&wanted(true, 512 * MIB)).contains("shared_buffers = '128MB'"));
        assert!(text(&wanted(false, 512 * MIB)).contains("fsync = 'off'"));
    }
}
