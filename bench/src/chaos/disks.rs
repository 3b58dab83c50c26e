//! Disks small enough to be filled.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::ensure;

/// Bytes, from large to a page.
const FILL_PIECES: [u64; 3] = [16 << 20, 256 << 10, 4 << 10];

/// Room for all that a run writes, on each of the two small disks.
const DATA_DISK_MIB: u32 = 1536;
const LOG_DISK_MIB: u32 = 512;

/// A disk of its own, small enough to be filled.
#[derive(Debug)]
pub struct SmallDisk {
    pub path: PathBuf,
}

/// Small disks for data and log, if this machine lets us mount any.
pub fn small_disks(directory: &Path) -> Result<[SmallDisk; 2], String> {
    let mount = |name: &str, mib: u32| {
        let path = directory.join(name);
        std::fs::create_dir(&path).map_err(|error| format!("making {}: {error}", path.display()))?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={mib}m,mode=0711"), "tmpfs"]).arg(&path);
        let output = mount.output().map_err(|error| format!("mount: {error}"))?;
        match output.status.success() {
            true => Ok(SmallDisk { path }),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }
    };
    Ok([mount("data-disk", DATA_DISK_MIB)?, mount("log-disk", LOG_DISK_MIB)?])
}

impl SmallDisk {
    fn filler(&self) -> PathBuf {
        self.path.join("filler")
    }

    /// Takes all of it, in ever smaller pieces: PostgreSQL takes some meanwhile.
    pub fn fill(&self) -> anyhow::Result<()> {
        let file = File::create(self.filler())?;
        let mut filled = 0;
        for piece in FILL_PIECES {
            while rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), filled, piece).is_ok() {
                filled += piece;
            }
        }
        ensure!(filled > 0, "a disk could not be filled");
        Ok(())
    }

    pub fn empty(&self) {
        drop(std::fs::remove_file(self.filler()));
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("--lazy").arg(&self.path).status());
    }
}
