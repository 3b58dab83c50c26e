//! A session of GNOME: since when nobody touched anything, by Mutter's idle monitor on the session's bus.
//!
//! Owns the connection to the bus. It asks about once a second while somebody is there; while nobody is, a watch of the monitor's
//! tells of the next touch. The bus and the monitor may hang or start again: the caller connects anew.

use std::future::Future;
use std::time::Duration;

use tokio::time::timeout;
use tokio_stream::StreamExt;
use zbus::Connection;

use super::retry::Loss;
use super::{ANSWER_WAIT, Agent, Ended, Never, SPEAK_EVERY, Sight};

pub const SOURCE: &str = "mutter";

/// While somebody is there.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// After so long somebody has paused, and a watch tells of the next touch.
const PAUSED: Duration = Duration::from_secs(5);

#[zbus::proxy(
    interface = "org.gnome.Mutter.IdleMonitor",
    default_service = "org.gnome.Mutter.IdleMonitor",
    default_path = "/org/gnome/Mutter/IdleMonitor/Core"
)]
trait IdleMonitor {
    /// Milliseconds.
    fn get_idletime(&self) -> zbus::Result<u64>;
    /// Fires at the next touch, and then never again.
    fn add_user_active_watch(&self) -> zbus::Result<u32>;
    #[zbus(signal)]
    fn watch_fired(&self, id: u32) -> zbus::Result<()>;
}

/// On a runtime of its own: whoever calls has none.
pub fn tell(agent: &mut Agent) -> Result<Never, Ended> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Ended::Session(Loss::Silent, format!("a runtime: {error}")))?;
    runtime.block_on(watch(agent))
}

async fn watch(agent: &mut Agent) -> Result<Never, Ended> {
    let bus = answer(Connection::session()).await?;
    let monitor = answer(IdleMonitorProxy::new(&bus)).await?;
    let mut fired = answer(monitor.receive_watch_fired()).await?;
    // Each is kept until it fires: the monitor would pile them up otherwise.
    let mut watch: Option<u32> = None;
    loop {
        let idle = Duration::from_millis(answer(monitor.get_idletime()).await?);
        agent.hear(&Sight { source: SOURCE, idle: Ok(idle), full_screen: None })?;
        if idle < PAUSED {
            tokio::time::sleep(ASK_EVERY).await;
            continue;
        }
        let watched = match watch {
            Some(watched) => watched,
            None => {
                let watched = *watch.insert(answer(monitor.add_user_active_watch()).await?);
                // A touch before there was a watch.
                if Duration::from_millis(answer(monitor.get_idletime()).await?) < idle {
                    continue;
                }
                watched
            }
        };
        let told = async {
            while let Some(signal) = fired.next().await {
                if signal.args().is_ok_and(|args| args.id == watched) {
                    return true;
                }
            }
            false
        };
        match timeout(SPEAK_EVERY, told).await {
            Ok(true) => watch = None,
            Ok(false) => return Err(Ended::Session(Loss::Gone, "the session's bus is gone".to_owned())),
            Err(_) => {}
        }
    }
}

async fn answer<T>(asked: impl Future<Output = zbus::Result<T>>) -> Result<T, Ended> {
    let answered = timeout(ANSWER_WAIT, asked).await;
    let silent = |_| Ended::Session(Loss::Silent, "Mutter's idle monitor does not answer".to_owned());
    let failed = |error| Ended::Session(Loss::Gone, format!("Mutter's idle monitor cannot be asked: {error}"));
    answered.map_err(silent)?.map_err(failed)
}
