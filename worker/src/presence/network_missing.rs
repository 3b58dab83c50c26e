//! Whether the network is metered, in an agent that was built without the feature `desktop`: it cannot ask NetworkManager.
//!
//! Fails closed: where NetworkManager runs, its answer is unknown, and no work begins. Elsewhere no agent can tell.

use std::io;
use std::path::Path;

use super::signals::{self, Reading};
use crate::clock;
use crate::missing::DESKTOP;

const SOURCE: &str = "NetworkManager";

/// Exists while NetworkManager runs, and until the system is started again.
const RUNS: &str = "/run/NetworkManager";

/// Bus that NetworkManager would be asked on.
#[derive(Clone, Debug)]
pub enum Bus {
    System,
}

pub struct Network;

impl Network {
    pub fn start(_: Bus, _noticed: impl Fn() + Send + 'static) -> io::Result<Network> {
        Ok(Network)
    }

    pub fn read(&self) -> Reading<signals::Network> {
        // Each time: NetworkManager may start after the agent.
        Reading::new(SOURCE, clock::now(), says(Path::new(RUNS).exists()))
    }
}

fn says(runs: bool) -> Result<signals::Network, String> {
    if runs {
        return Err(format!("{DESKTOP}, or set on_metered = true"));
    }
    Ok(signals::Network::Untold("it does not run here".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_begins_where_a_network_manager_cannot_be_asked() {
        let unknown = says(true).expect_err("unknown");
        assert!(unknown.contains("`desktop`") && unknown.contains("on_metered"), "{unknown}");
        assert_eq!(says(false), Ok(signals::Network::Untold("it does not run here".to_owned())));
    }
}
