//! Sleep that the system announces: a person, a lid or the desktop suspends the PC.
//!
//! Owns the connection to logind on the system's bus. logind announces each sleep, and waits for programs that hold a *delay* inhibitor.
//! In that time the agent returns its problems and tells the farm, so that the farm does not take the workstation for dead. The
//! agent releases the inhibitor at once afterwards, and takes a new one after the sleep. Without a bus or without logind no sleep is
//! announced.

use std::convert::Infallible;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_stream::{Stream, StreamExt};
use tracing::{debug, info};
use zbus::fdo::DBusProxy;
use zbus::names::BusName;
use zbus::proxy::CacheProperties;
use zbus::{Connection, OwnedFd};

use crate::presence::Desk;

const NAME: &str = "org.freedesktop.login1";

/// Reason of a workstation that its system puts to sleep.
const REASON: &str = "asleep: its system goes to sleep";

/// How long a bus may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// Before a bus or a logind that is not there is looked for again.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// Time in which the word to the farm reaches the link: milliseconds, unless the machine is busy.
const MESSAGE_TIME: Duration = Duration::from_millis(300);

/// How often the agent looks whether the farm has acknowledged the returned problems.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Longest delay of a sleep. logind itself waits for 5 s by default (`InhibitDelayMaxSec=`). A person who closes the lid must not
/// notice the agent, whether or not a server answers.
const DELAY_LIMIT: Duration = Duration::from_millis(1500);

/// Time awake after which a sleep that did not come is over. Hooks of the system may take more than a minute.
const AWAKE_LIMIT: Duration = Duration::from_secs(120);

#[zbus::proxy(
    interface = "org.freedesktop.login1.Manager",
    default_service = "org.freedesktop.login1",
    default_path = "/org/freedesktop/login1"
)]
trait Manager {
    fn inhibit(&self, what: &str, who: &str, why: &str, mode: &str) -> zbus::Result<OwnedFd>;
    /// `start`: the system goes to sleep, or has woken.
    #[zbus(signal)]
    fn prepare_for_sleep(&self, start: bool) -> zbus::Result<()>;
}

/// The system's bus.
pub enum Bus {
    System,
    /// Below a `/run` in another place.
    At(String),
}

impl Bus {
    pub fn of(run: &Path) -> Bus {
        if run == Path::new("/run") {
            return Bus::System;
        }
        Bus::At(format!("unix:path={}", run.join("dbus/system_bus_socket").display()))
    }

    async fn connect(&self) -> zbus::Result<Connection> {
        match self {
            Bus::System => Connection::system().await,
            Bus::At(address) => zbus::connection::Builder::address(address.as_str()).build().await,
        }
    }
}

/// Never ends. A system whose bus or logind comes later is found within a minute.
pub async fn run(bus: Bus, desk: &Desk) -> Infallible {
    loop {
        let Err(why) = follow(&bus, desk).await;
        debug!(why, "no sleep of this PC is announced");
        sleep(RETRY_AFTER).await;
    }
}

/// Returns only the reason why no sleep is announced any more.
async fn follow(bus: &Bus, desk: &Desk) -> Result<Infallible, String> {
    let bus = answer(bus.connect()).await?;
    let names = answer(DBusProxy::new(&bus)).await?;
    let name = BusName::try_from(NAME).map_err(|error| error.to_string())?;
    // A call to a name without an owner would start a program.
    if !answer(async { Ok(names.name_has_owner(name).await?) }).await? {
        return Err("no logind runs here".to_owned());
    }
    let manager = answer(ManagerProxy::builder(&bus).cache_properties(CacheProperties::No).build()).await?;
    let announced = answer(manager.receive_prepare_for_sleep()).await?;
    let mut starts = std::pin::pin!(announced.map(|signal| signal.args().is_ok_and(|args| args.start)));
    loop {
        let inhibitor = delay(&manager).await;
        until(&mut starts, true).await?;
        info!("the system goes to sleep");
        take_leave(desk).await;
        drop(inhibitor);
        // This clock stands still while the system sleeps.
        let woken = timeout(AWAKE_LIMIT, until(&mut starts, false)).await;
        desk.system_wakes();
        woken.unwrap_or(Ok(()))?;
    }
}

/// Returns none where logind does not let this user delay a sleep. Then the word to the farm races with the sleep.
async fn delay(manager: &ManagerProxy<'_>) -> Option<OwnedFd> {
    let asked = manager.inhibit("sleep", "pcfarm-worker", "tells the farm that this PC sleeps", "delay");
    answer(asked).await.inspect_err(|why| info!(why, "cannot delay a sleep until the farm knows of it")).ok()
}

/// Gives back all work and tells the farm, for a limited time.
async fn take_leave(desk: &Desk) {
    desk.system_sleeps(REASON);
    if !desk.is_in_session() {
        return;
    }
    let told = async {
        sleep(MESSAGE_TIME).await;
        while desk.holds_anything() {
            sleep(LOOK_EVERY).await;
        }
    };
    let _ = timeout(DELAY_LIMIT, told).await;
}

async fn until(starts: &mut (impl Stream<Item = bool> + Unpin), wanted: bool) -> Result<(), String> {
    loop {
        if starts.next().await.ok_or("the system's bus is gone")? == wanted {
            return Ok(());
        }
    }
}

async fn answer<T>(asked: impl Future<Output = zbus::Result<T>>) -> Result<T, String> {
    let answered = timeout(ANSWER_WAIT, asked).await;
    answered.map_err(|_| "it does not answer".to_owned())?.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_is_delayed_for_less_than_two_seconds() {
        const { assert!(DELAY_LIMIT.as_millis() < 2000 && MESSAGE_TIME.as_millis() < DELAY_LIMIT.as_millis()) }
    }

    #[test]
    fn the_bus_is_where_the_lists_of_logind_are() {
        assert!(matches!(Bus::of(Path::new("/run")), Bus::System));
        let Bus::At(address) = Bus::of(Path::new("/host/run")) else { panic!("another place") };
        assert_eq!(address, "unix:path=/host/run/dbus/system_bus_socket");
    }
}
