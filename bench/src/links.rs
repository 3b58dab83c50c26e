//! Links between an agent and its server as they are outside a laboratory: slow, far, lossy, behind a NAT that forgets.
//!
//! The agent runs in a network namespace of its own, behind a `veth` whose ends `tc tbf` holds to a rate. nftables loses packets on
//! both ends. The kernel has no `netem`, so a relay in front of the server delays bytes. All of it needs root.

pub mod namespace;
pub mod relay;

use crate::farm::Server;
use namespace::Namespace;
use relay::Relay;
use std::time::Duration;

/// Rate, delay and loss of a link, in each direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shape {
    /// Rate; none: no limit but the machine's.
    pub kbit: Option<u64>,
    /// Added to the round trip.
    pub delay: Duration,
    pub loss_percent: u32,
}

/// A link that is up until it is dropped.
pub struct Link {
    pub namespace: Namespace,
    relay: Relay,
}

impl Link {
    /// Between a namespace and this server.
    pub async fn up(shape: Shape, server: &Server) -> anyhow::Result<Link> {
        let namespace = Namespace::new()?;
        if let Some(kbit) = shape.kbit {
            namespace.limit(kbit)?;
        }
        if shape.loss_percent > 0 {
            namespace.lose(shape.loss_percent)?;
        }
        let relay = Relay::start(namespace.outside(), server.port, shape.delay).await?;
        Ok(Link { namespace, relay })
    }

    /// The server's address as the namespace sees it.
    pub fn url(&self) -> String {
        format!("http://{}", self.relay.address())
    }

    pub fn relay(&self) -> &Relay {
        &self.relay
    }
}
