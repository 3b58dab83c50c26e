//! A PC that its user suspends: logind announces the sleep, and the farm hears of it first.
//!
//! The bus is `dbus-daemon`. logind is a few lines here, since no test may put this machine to sleep.

use std::fs;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::time::Duration;

use pcfarm_proto::v1;
use pcfarm_proto::v1::WorkstationState as State;
use pcfarm_proto::v1::agent_message::Message as FromAgent;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use zbus::message::Type;
use zbus::{Connection, Fd, Message, MessageStream};

use super::{Desk, quick_and_long};
use crate::farm::Session;
use crate::left_out;

const NAME: &str = "org.freedesktop.login1";
const PLACE: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
const REASON: &str = "asleep: its system goes to sleep";
const PATIENCE: Duration = Duration::from_secs(30);

/// Arguments of a call for an inhibitor.
#[derive(Debug, PartialEq)]
struct Asked {
    what: String,
    mode: String,
}

/// An inhibitor that a program holds until the other end of its pipe is closed.
struct Inhibitor(OwnedFd);

impl Inhibitor {
    fn is_held(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 1]) != Ok(0)
    }

    async fn released(&self) {
        let wait = async {
            while self.is_held() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("it is released");
    }
}

struct Logind {
    bus: Connection,
    inhibitors: mpsc::Receiver<(Asked, Inhibitor)>,
    _daemon: Child,
    _serving: JoinSet<()>,
}

impl Logind {
    /// On a bus where the agent of this desk looks for it. None: `dbus-daemon` is not there.
    async fn start(desk: &Desk) -> Option<Logind> {
        let socket = desk.presence().run.join("dbus/system_bus_socket");
        fs::create_dir_all(socket.parent().expect("it has one")).expect("made");
        let address = format!("unix:path={}", socket.display());
        let mut command = Command::new("dbus-daemon");
        command.args(["--session", "--nofork", "--address", &address]).stdin(Stdio::null()).stdout(Stdio::null());
        let Ok(daemon) = command.stderr(Stdio::null()).kill_on_drop(true).spawn() else {
            left_out::for_want_of("dbus-daemon");
            return None;
        };
        let connected = async {
            loop {
                match zbus::connection::Builder::address(address.as_str()).build().await {
                    Ok(bus) => return bus,
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        };
        let bus = tokio::time::timeout(PATIENCE, connected).await.expect("it answers in time");
        let (told, inhibitors) = mpsc::channel(8);
        let (mut calls, served) = (MessageStream::from(&bus), bus.clone());
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            while let Some(Ok(call)) = calls.next().await {
                if let Some(asked) = inhibit(&served, &call).await {
                    let _ = told.send(asked).await;
                }
            }
        });
        bus.request_name(NAME).await.expect("it is free");
        Some(Logind { bus, inhibitors, _daemon: daemon, _serving: serving })
    }

    async fn inhibitor(&mut self) -> (Asked, Inhibitor) {
        tokio::time::timeout(PATIENCE, self.inhibitors.recv()).await.expect("in time").expect("it serves")
    }

    async fn announce(&self, starts: bool) {
        let told = self.bus.emit_signal(None::<&str>, PLACE, MANAGER, "PrepareForSleep", &starts);
        told.await.expect("it is heard");
    }
}

async fn inhibit(bus: &Connection, call: &Message) -> Option<(Asked, Inhibitor)> {
    let header = call.header();
    if call.message_type() != Type::MethodCall || header.member().is_none_or(|member| member != "Inhibit") {
        return None;
    }
    let body = call.body();
    let (what, _who, _why, mode): (String, String, String, String) = body.deserialize().expect("four texts");
    let flags = rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK;
    let (ours, theirs) = rustix::pipe::pipe_with(flags).expect("a pipe");
    bus.reply(&header, &Fd::from(theirs)).await.expect("it is heard");
    Some((Asked { what, mode }, Inhibitor(ours)))
}

async fn change(session: &mut Session, is_wanted: impl Fn(&v1::StateChange) -> bool) -> v1::StateChange {
    let wanted = |message| match message {
        FromAgent::StateChange(change) if is_wanted(&change) => Some(change),
        _ => None,
    };
    session.next(wanted).await
}

#[tokio::test]
async fn a_pc_that_its_user_suspends_is_asleep_and_gives_its_work_back() {
    let mut desk = Desk::new();
    let Some(mut logind) = Logind::start(&desk).await else { return };
    let (_server, mut agent, mut session) = desk.agent(|_| {}).await;
    let (asked, inhibitor) = logind.inhibitor().await;
    assert_eq!(asked, Asked { what: "sleep".to_owned(), mode: "delay".to_owned() });
    session.credit().await;
    session.check_out(1, "sleep", quick_and_long()).await;
    session.until_state(State::Processing).await;

    logind.announce(true).await;
    let (mut given_back, mut asleep) = (None, None);
    while given_back.is_none() || asleep.is_none() {
        match session.any().await.expect("the agent is there") {
            FromAgent::Delivery(delivery) => {
                let reason = delivery.checkouts[0].give_back_reason.clone();
                given_back = Some(reason).filter(|reason| !reason.is_empty());
                session.acknowledge(&delivery).await;
            }
            FromAgent::StateChange(change) if change.asleep => asleep = Some(change),
            _ => {}
        }
    }
    assert_eq!(given_back.as_deref(), Some(REASON));
    let asleep = asleep.expect("just told");
    assert_eq!((asleep.state(), &*asleep.reason), (State::Suspended, REASON));
    inhibitor.released().await;
    // A person who closes the lid may touch a key: the PC sleeps all the same.
    desk.press_a_key();
    let told = tokio::time::timeout(Duration::from_secs(2), change(&mut session, |change| !change.asleep)).await;
    assert!(told.is_err(), "{told:?}");

    // After the sleep the agent delays the next one.
    logind.announce(false).await;
    let awake = change(&mut session, |change| !change.asleep).await;
    let (_, inhibitor) = logind.inhibitor().await;
    assert!(inhibitor.is_held());
    if awake.state() != State::Waiting {
        session.until_state(State::Waiting).await;
    }
    session.check_out(2, "echo", ["1".to_owned()]).await;
    let delivery = session.delivery().await;
    assert_eq!(crate::farm::outcomes(&delivery.checkouts[0]), [(2000, "1".to_owned())]);
    session.acknowledge(&delivery).await;
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

#[tokio::test]
async fn a_sleep_does_not_wait_for_a_server_that_does_not_answer() {
    let desk = Desk::new();
    let Some(mut logind) = Logind::start(&desk).await else { return };
    let (_server, mut agent, mut session) = desk.agent(|_| {}).await;
    let (_, inhibitor) = logind.inhibitor().await;
    session.credit().await;
    session.check_out(1, "sleep", quick_and_long()).await;
    session.until_state(State::Processing).await;
    logind.announce(true).await;
    // No delivery is acknowledged meanwhile.
    inhibitor.released().await;
    logind.announce(false).await;
    let (mut deliveries, mut has_slept) = (Vec::new(), false);
    loop {
        match session.any().await.expect("the agent is there") {
            FromAgent::Delivery(delivery) => deliveries.push(delivery),
            FromAgent::StateChange(change) if change.asleep => has_slept = true,
            FromAgent::StateChange(_) if has_slept => break,
            _ => {}
        }
    }
    assert!(deliveries.iter().any(|delivery| delivery.checkouts[0].give_back_reason == REASON), "{deliveries:?}");
    for delivery in &deliveries {
        session.acknowledge(delivery).await;
    }
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}

#[tokio::test]
async fn a_bus_that_is_lost_in_a_sleep_ends_it_for_the_agent() {
    let desk = Desk::new();
    let Some(mut logind) = Logind::start(&desk).await else { return };
    let (_server, mut agent, mut session) = desk.agent(|_| {}).await;
    let (_, inhibitor) = logind.inhibitor().await;
    session.until_state(State::Waiting).await;
    logind.announce(true).await;
    change(&mut session, |change| change.asleep).await;
    inhibitor.released().await;
    drop(logind);
    change(&mut session, |change| !change.asleep).await;
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
}
