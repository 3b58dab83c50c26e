//! What health checks are told: a server whose ticker is silent is not well, and whoever watches over it may start another.

use crate::farm::Farm;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tracing::{info, warn};

const LOOK: Duration = Duration::from_secs(1);

/// The whole server's name among services.
const WHOLE: &str = "";

/// Until the server stops.
pub async fn watch(farm: Arc<Farm>, reporter: HealthReporter) {
    let mut tick = tokio::time::interval(LOOK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut healthy = true;
    loop {
        tokio::select! {
            () = farm.stopping.cancelled() => return,
            _ = tick.tick() => {}
        }
        if farm.ticking.is_healthy() == healthy {
            continue;
        }
        healthy = !healthy;
        if healthy {
            info!("ticks again: serving");
            reporter.set_service_status(WHOLE, ServingStatus::Serving).await;
        } else {
            let seconds = farm.ticking.silent_for().as_secs();
            warn!(seconds, "no tick: not serving, as health checks are told");
            reporter.set_service_status(WHOLE, ServingStatus::NotServing).await;
        }
    }
}
