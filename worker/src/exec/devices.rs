//! Device nodes of GPUs that programs may open, beside what their settings name.
//!
//! Owns when they are looked for: at each start of a program, because a driver may be loaded or updated while the agent runs. A
//! program keeps the fence with which it started, so one that waits for its next problem is ended when the nodes have changed.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::machine;

#[derive(Debug, Default)]
pub struct Devices {
    /// Root of the file system; none: the owner's settings open no GPU to programs.
    root: Option<PathBuf>,
    known: Mutex<Vec<PathBuf>>,
}

impl Devices {
    pub fn of_gpus(root: &Path) -> Devices {
        Devices { root: Some(root.to_owned()), known: Mutex::default() }
    }

    pub fn now(&self) -> Vec<PathBuf> {
        self.root.as_deref().map(machine::gpu_nodes).unwrap_or_default()
    }

    /// True if there are other nodes than at the last call.
    pub fn have_changed(&self) -> bool {
        if self.root.is_none() {
            return false;
        }
        let now = self.now();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = *known != now;
        *known = now;
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn nodes_of_a_driver_that_is_loaded_later_are_found() {
        let root = tempfile::tempdir().expect("a directory");
        let dev = root.path().join("dev");
        fs::create_dir(&dev).expect("made");
        let devices = Devices::of_gpus(root.path());
        assert!(devices.now().is_empty() && !devices.have_changed());
        fs::write(dev.join("nvidia-uvm"), "").expect("a node");
        assert_eq!(devices.now(), [dev.join("nvidia-uvm")]);
        assert!(devices.have_changed() && !devices.have_changed());
        assert!(!Devices::default().have_changed() && Devices::default().now().is_empty());
    }
}
