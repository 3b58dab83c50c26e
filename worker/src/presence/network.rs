//! Whether the network costs by what goes over it, as NetworkManager takes it to be.
//!
//! Owns one thread with a connection to the system's bus. It asks about once a minute, and at once when something changes; nobody
//! waits for it. NetworkManager is never started for this: where it does not run nobody can tell, and where it has not answered yet that
//! is not known either.

use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt;
use zbus::Connection;
use zbus::fdo::{DBusProxy, PropertiesProxy};
use zbus::names::BusName;
use zbus::proxy::CacheProperties;

use super::signals::{self, Reading};
use crate::clock;

const SOURCE: &str = "NetworkManager";
const NAME: &str = "org.freedesktop.NetworkManager";
const PLACE: &str = "/org/freedesktop/NetworkManager";

/// Who does not answer within this does not know.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

const ASK_EVERY: Duration = Duration::from_secs(60);

/// It comes back after an upgrade, and knows the same as before.
const BELIEVED: Duration = Duration::from_secs(120);

#[zbus::proxy(
    interface = "org.freedesktop.NetworkManager",
    default_service = "org.freedesktop.NetworkManager",
    default_path = "/org/freedesktop/NetworkManager"
)]
trait NetworkManager {
    /// An NMMetered.
    #[zbus(property)]
    fn metered(&self) -> zbus::Result<u32>;
}

/// Which bus.
#[derive(Clone, Debug)]
pub enum Bus {
    System,
    #[cfg(test)]
    At(String),
}

/// What it said last; an error until it has said anything.
type Said = Arc<Mutex<Reading<signals::Network>>>;

/// The thread, until it is dropped.
pub struct Network {
    said: Said,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Network {
    /// Calls `noticed` when it knows something else than before.
    pub fn start(bus: Bus, noticed: impl Fn() + Send + 'static) -> io::Result<Network> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let nothing = Reading::new(SOURCE, clock::now(), Err("it has not answered yet".to_owned()));
        let said = Arc::new(Mutex::new(nothing));
        let (end, ended) = oneshot::channel();
        let listener = Listener { bus, said: Arc::clone(&said), noticed };
        let listen = move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = ended => {}
                    never = listener.listen() => match never {},
                }
            });
        };
        let thread = std::thread::Builder::new().name("pcfarm-network".to_owned()).spawn(listen)?;
        Ok(Network { said, end: Some(end), thread: Some(thread) })
    }

    pub fn read(&self) -> Reading<signals::Network> {
        self.said.lock().expect("nothing panics under this lock").clone()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Listener<N> {
    bus: Bus,
    said: Said,
    noticed: N,
}

impl<N: Fn()> Listener<N> {
    async fn listen(&self) -> std::convert::Infallible {
        loop {
            let Err(silence) = self.follow().await;
            self.say(match silence {
                Silence::NoAnswer => Err("it does not answer".to_owned()),
                Silence::Untold(why) => Ok(signals::Network::Untold(why)),
            });
            sleep(ASK_EVERY).await;
        }
    }

    /// Returns only why it cannot.
    async fn follow(&self) -> Result<std::convert::Infallible, Silence> {
        let bus = match &self.bus {
            Bus::System => answer(Connection::system()).await?,
            #[cfg(test)]
            Bus::At(address) => answer(zbus::connection::Builder::address(address.as_str()).build()).await?,
        };
        let names = answer(DBusProxy::new(&bus)).await?;
        let name = BusName::try_from(NAME).map_err(|error| Silence::Untold(error.to_string()))?;
        let manager = NetworkManagerProxy::builder(&bus).cache_properties(CacheProperties::No);
        let manager = answer(manager.build()).await?;
        let properties = answer(PropertiesProxy::new(&bus, NAME, PLACE)).await?;
        let mut changes = answer(properties.receive_properties_changed()).await?;
        loop {
            // Before each question, which would start it where that is how it is started.
            if !answer(async { Ok(names.name_has_owner(name.clone()).await?) }).await? {
                return Err(Silence::Untold("it does not run here".to_owned()));
            }
            self.say(Ok(judged(answer(manager.metered()).await?)));
            // A change, the end of the bus, or a minute: it is asked again.
            let _ = timeout(ASK_EVERY, changes.next()).await;
        }
    }

    /// Who has answered once and does not any more cannot tell.
    fn say(&self, says: Result<signals::Network, String>) {
        let now = clock::now();
        let is_new = {
            let mut said = self.said.lock().expect("nothing panics under this lock");
            let says = if said.says.is_ok() { Ok(says.unwrap_or_else(signals::Network::Untold)) } else { says };
            let knew = matches!(said.says, Ok(signals::Network::Metered | signals::Network::Unmetered));
            let is_lapse = matches!(says, Ok(signals::Network::Untold(_))) && knew;
            if is_lapse && now.saturating_sub(said.at) < BELIEVED {
                return;
            }
            let is_new = said.says != says;
            *said = Reading::new(SOURCE, now, says);
            is_new
        };
        if is_new {
            (self.noticed)();
        }
    }
}

/// By the numbers of NMMetered: what it has guessed counts as well.
fn judged(metered: u32) -> signals::Network {
    match metered {
        1 | 3 => signals::Network::Metered,
        2 | 4 => signals::Network::Unmetered,
        _ => signals::Network::Untold("it does not know".to_owned()),
    }
}

/// Why it is not told what the network costs.
enum Silence {
    /// Who may know it has not said so in time.
    NoAnswer,
    /// Nobody here can tell.
    Untold(String),
}

async fn answer<T>(asked: impl Future<Output = zbus::Result<T>>) -> Result<T, Silence> {
    let answered = timeout(ANSWER_WAIT, asked).await;
    answered.map_err(|_| Silence::NoAnswer)?.map_err(|error| Silence::Untold(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;

    use zbus::message::Type;
    use zbus::{MessageStream, Variant};

    use super::*;

    #[test]
    fn what_it_guesses_counts_as_well() {
        use signals::Network::{Metered, Unmetered};
        let said: Vec<_> = (0..6).map(judged).collect();
        let unknown = untold("it does not know");
        assert_eq!(said, [unknown.clone(), Metered, Unmetered, Metered, Unmetered, unknown]);
    }

    fn untold(why: &str) -> signals::Network {
        signals::Network::Untold(why.to_owned())
    }

    /// A bus of a test's own, which ends with it.
    struct Daemon {
        child: Child,
        address: String,
        _dir: tempfile::TempDir,
    }

    impl Daemon {
        /// None: it is not installed.
        fn start() -> Option<Daemon> {
            let dir = tempfile::tempdir().expect("a directory");
            let address = format!("unix:path={}", dir.path().join("bus").display());
            let mut command = Command::new("dbus-daemon");
            command.args(["--session", "--nofork", "--print-address=1", "--address", &address]);
            let Ok(mut child) = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn() else {
                eprintln!("not tested, for want of dbus-daemon");
                return None;
            };
            let mut line = String::new();
            BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("it listens");
            Some(Daemon { child, address, _dir: dir })
        }
    }

    impl Drop for Daemon {
        fn drop(&mut self) {
            let _ = (self.child.kill(), self.child.wait());
        }
    }

    /// Says what `metered` is, until it is dropped.
    async fn network_manager(address: &str, metered: Arc<AtomicU32>) -> (Connection, tokio::task::JoinSet<()>) {
        let bus = zbus::connection::Builder::address(address).build().await.expect("it answers");
        bus.request_name(NAME).await.expect("nobody has it");
        let mut calls = MessageStream::from(&bus);
        let served = bus.clone();
        let mut serving = tokio::task::JoinSet::new();
        serving.spawn(async move {
            while let Some(Ok(call)) = calls.next().await {
                let header = call.header();
                if call.message_type() == Type::MethodCall && header.member().is_some_and(|member| member == "Get") {
                    let value = Variant::from(metered.load(Ordering::SeqCst));
                    served.reply(&header, &value).await.expect("it is heard");
                }
            }
        });
        (bus, serving)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_the_network_costs_is_asked_of_networkmanager() {
        let Some(daemon) = Daemon::start() else { return };
        let start = || {
            let (sender, noticed) = mpsc::channel();
            let noticed_by = move || {
                let _ = sender.send(());
            };
            (Network::start(Bus::At(daemon.address.clone()), noticed_by).expect("a thread"), noticed)
        };
        let until = |network: &Network, noticed: &mpsc::Receiver<()>, expected: Result<signals::Network, &str>| {
            let expected = expected.map_err(str::to_owned);
            while network.read().says != expected {
                noticed.recv_timeout(Duration::from_secs(20)).unwrap_or_else(|_| panic!("{:?}", network.read()));
            }
        };
        let (network, noticed) = start();
        until(&network, &noticed, Ok(untold("it does not run here")));
        drop(network);

        // It is there, and has not said anything yet.
        let silent = zbus::connection::Builder::address(daemon.address.as_str()).build().await.expect("it answers");
        let calls = MessageStream::from(&silent);
        silent.request_name(NAME).await.expect("nobody has it");
        let (network, noticed) = start();
        assert_eq!(network.read().says, Err("it has not answered yet".to_owned()));
        until(&network, &noticed, Err("it does not answer"));
        drop((network, calls, silent));

        let metered = Arc::new(AtomicU32::new(3));
        let (bus, _serving) = network_manager(&daemon.address, Arc::clone(&metered)).await;
        let (network, noticed) = start();
        until(&network, &noticed, Ok(signals::Network::Metered));
        assert_eq!((network.read().source.as_ref(), clock::now() - network.read().at < ASK_EVERY), (SOURCE, true));
        metered.store(2, Ordering::SeqCst);
        let changed = (NAME, std::collections::HashMap::from([("Metered", Variant::from(2_u32))]), Vec::<&str>::new());
        let properties = "org.freedesktop.DBus.Properties";
        bus.emit_signal(None::<&str>, PLACE, properties, "PropertiesChanged", &changed).await.expect("it is heard");
        until(&network, &noticed, Ok(signals::Network::Unmetered));
    }

    #[test]
    fn who_has_gone_for_a_moment_is_still_believed() {
        use signals::Network::{Metered, Untold};
        let now = clock::now();
        let Some(before) = now.checked_sub(BELIEVED) else { return };
        let no_answer = || Err("it does not answer".to_owned());
        let gone = || Ok(Untold("gone".to_owned()));
        for (what, before, says, expected) in [
            ("nobody has answered yet", (now, no_answer()), no_answer(), no_answer()),
            ("gone for a moment", (now, Ok(Metered)), gone(), Ok(Metered)),
            ("no answer for a moment", (now, Ok(Metered)), no_answer(), Ok(Metered)),
            ("gone", (before, Ok(Metered)), gone(), gone()),
            ("no answer any more", (before, Ok(Metered)), no_answer(), Ok(Untold("it does not answer".to_owned()))),
            (
                "nobody can tell, and then nobody answers",
                (now, gone()),
                no_answer(),
                Ok(Untold("it does not answer".to_owned())),
            ),
        ] {
            let said = Arc::new(Mutex::new(Reading::new(SOURCE, before.0, before.1)));
            let listener = Listener { bus: Bus::System, said: Arc::clone(&said), noticed: || {} };
            listener.say(says);
            assert_eq!(said.lock().expect("no panic").says, expected, "{what}");
        }
    }

    #[test]
    fn without_a_bus_nobody_can_tell() {
        let dir = tempfile::tempdir().expect("a directory");
        let (sender, noticed) = mpsc::channel();
        let bus = Bus::At(format!("unix:path={}", dir.path().join("none").display()));
        let network = Network::start(bus, move || {
            let _ = sender.send(());
        });
        let network = network.expect("a thread");
        noticed.recv_timeout(Duration::from_secs(20)).expect("in time");
        assert!(matches!(network.read().says, Ok(signals::Network::Untold(_))), "{:?}", network.read());
    }
}
