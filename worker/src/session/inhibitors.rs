//! Programs that keep this session's screen on, as its desktop and its compositor know of them.
//!
//! Runs a thread with a connection to the session's bus, which asks the desktop every few seconds. The helper tells the agent with its
//! next message. An agent that hears of no inhibitors for ten seconds takes the session for one that hangs, so a bus that hangs
//! delays no message: its last answer holds for a minute. A session without a bus has no inhibitors.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};
use zbus::Connection;
use zbus::fdo::DBusProxy;
use zbus::names::BusName;

use super::{ANSWER_WAIT, Inhibited, SPEAK_EVERY};
use crate::presence::inhibitors::{HELD_LIMIT, Held, Place};

/// A bus that hangs for a moment does not end a film.
const BELIEVED: Duration = Duration::from_secs(60);

/// Length of a program's name. All names together fit into one message to the agent, even if every character needs an escape.
const NAME_BYTES_LIMIT: usize = 80;

/// Flag of GNOME: the session must not become idle.
const IDLE: u32 = 8;

/// Flag of KDE: the screen must stay on.
const CHANGE_SCREEN: u32 = 4;

/// Session manager of GNOME, MATE, Cinnamon and Budgie.
#[zbus::proxy(
    interface = "org.gnome.SessionManager",
    default_service = "org.gnome.SessionManager",
    default_path = "/org/gnome/SessionManager"
)]
trait SessionManager {
    fn is_inhibited(&self, flags: u32) -> zbus::Result<bool>;
    fn get_inhibitors(&self) -> zbus::Result<Vec<zbus::OwnedObjectPath>>;
}

#[zbus::proxy(interface = "org.gnome.SessionManager.Inhibitor", default_service = "org.gnome.SessionManager")]
trait SessionInhibitor {
    fn get_app_id(&self) -> zbus::Result<String>;
    fn get_flags(&self) -> zbus::Result<u32>;
}

#[zbus::proxy(
    interface = "org.kde.Solid.PowerManagement.PolicyAgent",
    default_service = "org.kde.Solid.PowerManagement.PolicyAgent",
    default_path = "/org/kde/Solid/PowerManagement/PolicyAgent"
)]
trait PolicyAgent {
    fn has_inhibition(&self, required: u32) -> zbus::Result<bool>;
    /// Names and reasons of all kinds of inhibitors.
    fn list_inhibitions(&self) -> zbus::Result<Vec<(String, String)>>;
}

/// Power manager of Xfce and others. It does not tell a screen that stays on from a machine that stays awake.
#[zbus::proxy(
    interface = "org.freedesktop.PowerManagement.Inhibit",
    default_service = "org.freedesktop.PowerManagement",
    default_path = "/org/freedesktop/PowerManagement/Inhibit"
)]
trait PowerManagement {
    fn has_inhibit(&self) -> zbus::Result<bool>;
}

/// Asks the desktop from now on, until the process ends.
pub fn start(inhibited: Arc<Inhibited>) {
    let run = move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async {
            let mut desktop = Desktop::default();
            loop {
                inhibited.by_desktop(desktop.held().await);
                sleep(SPEAK_EVERY).await;
            }
        });
    };
    // Without a thread the helper does not report inhibitors. It does the rest.
    let _ = std::thread::Builder::new().name("pcfarm-inhibitors".to_owned()).spawn(run);
}

/// Last answer of the desktop.
#[derive(Default)]
struct Desktop {
    bus: Option<Connection>,
    held: Vec<Held>,
    answered: Option<Instant>,
}

impl Desktop {
    /// Returns all inhibitors, and none while the bus has not answered for a minute.
    async fn held(&mut self) -> Vec<Held> {
        let asked = timeout(ANSWER_WAIT, self.ask()).await;
        match asked.ok().flatten() {
            Some(names) => {
                (self.held, self.answered) =
                    (names.into_iter().take(HELD_LIMIT - 1).map(held).collect(), Some(Instant::now()));
            }
            None => {
                self.bus = None;
                if self.answered.is_none_or(|answered| answered.elapsed() > BELIEVED) {
                    self.held.clear();
                }
            }
        }
        self.held.clone()
    }

    /// Returns the names of programs, or none if the bus does not answer.
    async fn ask(&mut self) -> Option<Vec<String>> {
        let bus = match &self.bus {
            Some(bus) => bus.clone(),
            None => {
                let bus = Connection::session().await.ok()?;
                self.bus.insert(bus).clone()
            }
        };
        let names = DBusProxy::new(&bus).await.ok()?;
        let mut held = Vec::new();
        // A call to a name without an owner would start a program.
        if is_owned(&names, "org.gnome.SessionManager").await? {
            held.extend(of_gnome(&bus).await.unwrap_or_default());
        }
        if is_owned(&names, "org.kde.Solid.PowerManagement.PolicyAgent").await? {
            held.extend(of_kde(&bus).await.unwrap_or_default());
        } else if is_owned(&names, "org.freedesktop.PowerManagement").await? {
            let manager = PowerManagementProxy::new(&bus).await.ok()?;
            let is_held = manager.has_inhibit().await.ok().unwrap_or(false);
            held.extend(is_held.then(|| "a program".to_owned()));
        }
        held.sort();
        held.dedup();
        Some(held)
    }
}

fn held(name: String) -> Held {
    let name = name[..name.floor_char_boundary(NAME_BYTES_LIMIT)].replace(char::is_control, " ");
    Held { place: Place::Desktop, by: if name.is_empty() { "a program".to_owned() } else { name } }
}

async fn is_owned(names: &DBusProxy<'_>, name: &'static str) -> Option<bool> {
    let name = BusName::try_from(name).ok()?;
    names.name_has_owner(name).await.ok()
}

async fn of_gnome(bus: &Connection) -> Option<Vec<String>> {
    let manager = SessionManagerProxy::new(bus).await.ok()?;
    if !manager.is_inhibited(IDLE).await.ok()? {
        return Some(Vec::new());
    }
    let mut names = Vec::new();
    for place in manager.get_inhibitors().await.ok().unwrap_or_default().into_iter().take(HELD_LIMIT) {
        let Some(inhibitor) = SessionInhibitorProxy::new(bus, place).await.ok() else { continue };
        if inhibitor.get_flags().await.ok().is_some_and(|flags| flags & IDLE != 0) {
            names.extend(inhibitor.get_app_id().await.ok());
        }
    }
    if names.is_empty() {
        names.push(String::new());
    }
    Some(names)
}

async fn of_kde(bus: &Connection) -> Option<Vec<String>> {
    let agent = PolicyAgentProxy::new(bus).await.ok()?;
    if !agent.has_inhibition(CHANGE_SCREEN).await.ok()? {
        return Some(Vec::new());
    }
    let listed = agent.list_inhibitions().await.ok().unwrap_or_default();
    let names: Vec<String> = listed.into_iter().map(|(name, _)| name).collect();
    Some(if names.is_empty() { vec![String::new()] } else { names })
}
