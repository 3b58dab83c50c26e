//! The machine that figures were measured on, and how fast its disk confirms a write: without these a figure says
//! nothing.

use serde_json::{Value, json};
use std::fs::File;
use std::io::{Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

/// How long writes are timed.
const FSYNC_TIME: Duration = Duration::from_millis(500);

#[derive(Clone, Debug)]
pub struct Machine {
    pub processor: String,
    pub cores: usize,
    pub memory_bytes: u64,
    pub system: String,
    /// Version of the server that was measured on, once it is known.
    pub postgresql: Option<String>,
    /// Writes of 8 KiB that this many times a second reach the disk before the next begins.
    pub fsyncs_per_second: Option<f64>,
    pub commit: Option<String>,
    /// The day, in UTC, once it is known.
    pub date: Option<String>,
}

impl Machine {
    pub fn look(directory: &Path) -> Machine {
        let wanted = RefreshKind::nothing()
            .with_cpu(CpuRefreshKind::nothing())
            .with_memory(MemoryRefreshKind::nothing().with_ram());
        let system = System::new_with_specifics(wanted);
        Machine {
            processor: system
                .as_ref()
                .ok()
                .and_then(|s| Some(s.cpus().first()?.brand().trim().to_owned()))
                .unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: system.map_or(0, |system| system.total_memory()),
            system: System::long_os_version().unwrap_or_else(|_| std::env::consts::OS.to_owned()),
            postgresql: None,
            fsyncs_per_second: fsyncs_per_second(directory).ok(),
            commit: commit(),
            date: None,
        }
    }

    pub fn json(&self) -> Value {
        json!({
            "processor": self.processor,
            "cores": self.cores,
            "memory_bytes": self.memory_bytes,
            "system": self.system,
            "postgresql": self.postgresql,
            "fsyncs_per_second": self.fsyncs_per_second.map(f64::round),
            "pc_farm": env!("CARGO_PKG_VERSION"),
            "commit": self.commit,
            "date": self.date,
            "text": self.text(),
        })
    }

    pub fn text(&self) -> String {
        format!(
            "{} cores ({}), {:.0} GiB, {}, PostgreSQL {}, {:.0} fsyncs a second",
            self.cores,
            self.processor,
            self.memory_bytes as f64 / f64::from(1 << 30),
            self.system,
            self.postgresql.as_deref().unwrap_or("unknown"),
            self.fsyncs_per_second.unwrap_or(f64::NAN),
        )
    }

    #[cfg(test)]
    pub fn for_tests() -> Machine {
        Machine {
            processor: String::new(),
            cores: 1,
            memory_bytes: 0,
            system: String::new(),
            postgresql: None,
            fsyncs_per_second: None,
            commit: None,
            date: None,
        }
    }
}

fn fsyncs_per_second(directory: &Path) -> std::io::Result<f64> {
    let mut file: File = tempfile::tempfile_in(directory)?;
    let began = Instant::now();
    let mut writes = 0;
    while began.elapsed() < FSYNC_TIME {
        file.rewind()?;
        file.write_all(&[0; 8192])?;
        file.sync_data()?;
        writes += 1;
    }
    Ok(f64::from(writes) / began.elapsed().as_secs_f64())
}

/// Of the checkout that this was built from, if it is one; and whether that has been changed since.
fn commit() -> Option<String> {
    let mut git = std::process::Command::new("git");
    git.arg("-C").arg(crate::context::repository()).args(["describe", "--always", "--dirty", "--exclude=*"]);
    let output = git.output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
