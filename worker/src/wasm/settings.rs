//! What the agent's owner allows modules, as it is written.

use std::time::Duration;

use serde::Deserialize;

/// A module is one program on one core; who needs more says so.
const LARGEST_DEFAULT_MEMORY: u64 = 1 << 30;
const SMALLEST_DEFAULT_MEMORY: u64 = 64 << 20;

/// Instances that wait, at most, for each core: a core that comes back to a convoy finds its own.
pub(super) const WAITING_BY_CORE: usize = 2;

/// No module can have more: addresses have 32 bits.
const MEMORY_MIB_LIMIT: u64 = 4096;

/// The table `[wasm]` of an agent's settings.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WasmSettings {
    /// Seconds for one problem; without it only the job type's limit holds, which is for a checkout.
    pub time_limit: Option<f64>,
    /// Of one instance; there is one on each core that works on modules, and a few that wait.
    pub memory_mib: Option<u64>,
}

/// Why modules cannot be run like that.
#[derive(Debug, thiserror::Error)]
pub enum WasmError {
    #[error("time_limit is more than zero")]
    TimeLimit,
    #[error("memory_mib is 1 to {MEMORY_MIB_LIMIT}")]
    Memory,
    #[error("this machine cannot run modules: {0}")]
    Machine(String),
}

/// What each instance may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub time: Option<Duration>,
    pub memory_bytes: u64,
}

impl WasmSettings {
    /// On a machine with so much memory and so many cores for the agent.
    pub fn limits(&self, memory_bytes: u64, cores: usize) -> Result<Limits, WasmError> {
        let time = match self.time_limit.map(Duration::try_from_secs_f64) {
            None => None,
            Some(Ok(limit)) if !limit.is_zero() => Some(limit),
            Some(Ok(_) | Err(_)) => return Err(WasmError::TimeLimit),
        };
        // Those that wait for the next problem of their convoy keep what they have.
        let instances = cores.max(1) * (1 + WAITING_BY_CORE);
        let share = memory_bytes / 4 * 3 / u64::try_from(instances).unwrap_or(u64::MAX);
        let memory_bytes = match self.memory_mib {
            None => share.clamp(SMALLEST_DEFAULT_MEMORY, LARGEST_DEFAULT_MEMORY),
            Some(mib @ 1..=MEMORY_MIB_LIMIT) => mib << 20,
            Some(_) => return Err(WasmError::Memory),
        };
        Ok(Limits { time, memory_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_table_suffices_and_nonsense_is_refused() {
        let limits = |text: &str| {
            let settings: WasmSettings = toml::from_str(text).map_err(|error| error.to_string())?;
            settings.limits(16 << 30, 4).map_err(|error| error.to_string())
        };
        assert_eq!(limits(""), Ok(Limits { time: None, memory_bytes: 1 << 30 }));
        let small = WasmSettings::default().limits(8 << 30, 8).expect("a machine");
        assert!(small.memory_bytes * 8 * (1 + WAITING_BY_CORE as u64) < 8 << 30, "all together fit the machine");
        let both = Limits { time: Some(Duration::from_millis(1500)), memory_bytes: 8 << 20 };
        assert_eq!(limits("time_limit = 1.5\nmemory_mib = 8"), Ok(both));
        for (text, expected) in [
            ("time_limit = 0.0", "more than zero"),
            ("time_limit = -1.0", "more than zero"),
            ("memory_mib = 0", "1 to 4096"),
            ("memory_mib = 4097", "1 to 4096"),
            ("memory = 1", "unknown field"),
        ] {
            let error = limits(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
