//! The agent's one loop: wait, let the inventory decide, act.
//!
//! Owns the link, the cores and the messages under way between them. It decides nothing itself.

mod alarm;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use pcfarm_faults::{CrashPoint, crash_point};
use pcfarm_proto::v1::agent_message::Message as Out;
use pcfarm_proto::v1::server_message::Message as In;
use pcfarm_proto::v1::{AgentMessage, Goodbye};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;
use tracing::warn;

use self::alarm::Alarm;
use crate::clock;
use crate::credentials::Credentials;
use crate::entrance::Entrance;
use crate::equipment::Lookout;
use crate::goodbye;
use crate::inventory::{Action, Ending, Event, Inventory, Profile};
use crate::link::{Link, LinkEvent, SILENCE_LIMIT, Stream};
use crate::pool::{Pool, Report};
use crate::presence::policy::Activity;
use crate::presence::signals::Moment;
use crate::presence::{Desk, Directive};
use crate::sleep::Wake;
use crate::solve::Controllers;
use crate::steps::Engine;
use crate::watchdog::Watchdog;

/// Messages from the server under way to the loop: the stream's window bounds what is behind them.
const LINK_EVENTS_WAITING: usize = 8;

/// Reports that one turn of the loop takes in before it decides.
const REPORTS_PER_TURN: usize = 1024;

/// How long the last messages and the end of the stream may take at exit.
const FAREWELL_WAIT: Duration = Duration::from_secs(2);

/// How often it is asked whether what is to stand still does, and for how long: what takes longer is measured when something
/// else happens.
const STILL_LOOK: Duration = Duration::from_millis(10);
const STILL_WAIT: Duration = Duration::from_secs(5);

/// A wait that took so much longer than planned proves nothing about the connection.
const STOOD_STILL: Duration = Duration::from_secs(2);

/// What an agent runs with.
pub struct Setup {
    pub endpoints: Vec<Endpoint>,
    pub credentials: Arc<Credentials>,
    /// A way into a farm that demands a certificate; a slot has none.
    pub entrance: Option<Arc<Entrance>>,
    pub threads: Arc<rayon::ThreadPool>,
    pub controllers: Controllers,
    /// What runs those of several steps, which all sessions share.
    pub engine: Arc<Engine>,
    pub profile: Profile,
    /// Where the slots go that the server wants beside this session; a slot has none.
    pub slots: Option<watch::Sender<Vec<String>>>,
    /// Whether the workstation's person lets it work.
    pub desk: Desk,
    /// Whether its servers are told how it can be woken; a slot cannot be.
    pub wake: Wake,
    /// What its service manager is told by; a slot has none.
    pub watchdog: Option<Watchdog>,
    /// Cancelled if nothing but another process can end what controllers do.
    pub replace: CancellationToken,
    pub equipment: Arc<Lookout>,
    /// The whole program stops, and not only this session.
    pub stop: CancellationToken,
}

struct Driver {
    inventory: Inventory,
    pool: Pool,
    stream: Option<Stream>,
    outgoing: VecDeque<Out>,
    slots: Option<watch::Sender<Vec<String>>>,
    desk: Desk,
    replace: CancellationToken,
    /// The input that it gives way to, until no core computes.
    giving_way: Option<Moment>,
    /// By standing still.
    freezes: bool,
    last_input: Option<Moment>,
    equipment: Arc<Lookout>,
}

/// Runs until `stop` is cancelled and what is held has been delivered or given back.
pub async fn drive(setup: Setup, stop: CancellationToken) -> anyhow::Result<Ending> {
    let (pool, mut reports) = Pool::new(setup.threads, setup.controllers, setup.engine);
    let (events, mut link_events) = mpsc::channel(LINK_EVENTS_WAITING);
    let end_link = CancellationToken::new();
    let _end_link_with_this = end_link.clone().drop_guard();
    let mut tasks = JoinSet::new();
    let link = Link::new(setup.endpoints, setup.credentials, setup.wake, events).entering_by(setup.entrance);
    tasks.spawn(link.keep_up(end_link.clone()));
    let mut driver = Driver {
        inventory: Inventory::new(setup.profile, clock::now()),
        pool,
        stream: None,
        outgoing: VecDeque::new(),
        slots: setup.slots,
        desk: setup.desk,
        replace: setup.replace,
        giving_way: None,
        freezes: false,
        last_input: None,
        equipment: setup.equipment,
    };
    let mut equipment = driver.equipment.known();
    driver.take(Event::Equipped(equipment.borrow_and_update().clone()));
    let mut watchdog = setup.watchdog;
    let mut directives = driver.desk.directives();
    driver.direct(directives.borrow_and_update().clone());
    let mut told_to_stop = false;
    let mut alarm = Alarm::default();
    let ending = loop {
        let now = clock::now();
        let until_due = driver.inventory.deadline(now).saturating_sub(now).min(driver.until_still(now));
        let until_due = until_due.min(driver.until_silent(now));
        let until_due = watchdog.as_ref().map_or(until_due, |watchdog| watchdog.at_most(until_due));
        let due = alarm.after(until_due);
        watchdog.iter_mut().for_each(Watchdog::beat);
        tokio::select! {
            biased;
            Some(ended) = tasks.join_next() => return Err(ended.map_or_else(anyhow::Error::from, |()| anyhow::anyhow!("the link to the servers ended"))),
            Some(event) = link_events.recv() => driver.hear(event),
            () = stop.cancelled(), if !told_to_stop => {
                told_to_stop = true;
                driver.take(Event::Stop);
            }
            Ok(()) = directives.changed() => {
                let directive = directives.borrow_and_update().clone();
                driver.direct(directive);
            }
            Ok(()) = equipment.changed() => {
                let seen = equipment.borrow_and_update().clone();
                driver.take(Event::Equipped(seen));
            }
            permit = room(driver.stream.as_ref()), if !driver.outgoing.is_empty() => {
                driver.send_next(permit);
                continue;
            }
            Some(report) = reports.recv() => driver.take_reports(report, &mut reports),
            () = due => {}
        }
        driver.leave_silence(now + until_due);
        if let Some(ending) = driver.act() {
            break ending;
        }
    };
    let goodbye = goodbye::of(driver.slots.is_some(), setup.stop.is_cancelled()).await;
    let _ = timeout(FAREWELL_WAIT, driver.say_farewell(goodbye, &mut link_events)).await;
    end_link.cancel();
    while let Some(ended) = tasks.join_next().await {
        ended?;
    }
    Ok(ending)
}

/// Room on the stream, or none for ever without one; nothing if its other end has gone.
async fn room(stream: Option<&Stream>) -> Option<mpsc::OwnedPermit<AgentMessage>> {
    match stream {
        Some(stream) => stream.outbound.clone().reserve_owned().await.ok(),
        None => std::future::pending().await,
    }
}

/// A heartbeat, or a credit of nothing in its place.
fn is_sign_of_life(message: &Out) -> bool {
    match message {
        Out::Heartbeat(_) => true,
        Out::Credit(credit) => credit.checkouts == 0,
        _ => false,
    }
}

impl Driver {
    fn take(&mut self, event: Event) {
        self.inventory.take(clock::now(), event);
    }

    fn direct(&mut self, directive: Directive) {
        // Each input is measured once, whatever else is said while it is given way to.
        let input = directive.input.filter(|_| directive.activity != Activity::Work);
        if std::mem::replace(&mut self.last_input, input) != input {
            // Who was not in the way does not give way.
            self.giving_way = input.filter(|_| self.pool.busy_cores() > 0);
        }
        self.freezes = directive.activity == Activity::Freeze;
        self.take(Event::Directed(directive));
    }

    fn hear(&mut self, event: LinkEvent) {
        if let (LinkEvent::Received(_), Some(stream)) = (&event, &self.stream) {
            self.inventory.message_came(stream.wire.received_bytes());
        }
        match event {
            LinkEvent::Opened(stream) => {
                self.outgoing.clear();
                self.stream = Some(stream);
                self.equipment.look_again();
                self.take(Event::Connected);
            }
            LinkEvent::Received(In::Slots(wanted)) => self.want_slots(wanted.names),
            LinkEvent::Received(In::Presence(wanted)) => self.want_presence(&wanted.wanted),
            LinkEvent::Received(message) => {
                if let In::Welcome(welcome) = &message {
                    self.want_slots(welcome.slots.clone());
                    self.want_presence(&welcome.presence);
                    self.tell_session(Some(welcome.workstation_id));
                    if welcome.woken && self.slots.is_some() {
                        self.desk.was_woken();
                    }
                }
                let may_drain = matches!(message, In::Welcome(_) | In::Drain(_));
                self.take(Event::Received(message));
                if may_drain && self.slots.is_some() {
                    self.desk.drained(self.inventory.drained_by_farm());
                }
            }
            LinkEvent::Outage => self.take(Event::Outage),
            LinkEvent::Ended => {
                self.outgoing.clear();
                self.stream = None;
                self.tell_session(None);
                self.take(Event::Disconnected);
            }
        }
    }

    /// People ask for the agent's own session, and not for its slots'.
    fn tell_session(&self, welcomed_as: Option<i64>) {
        if self.slots.is_some() {
            let session = self.stream.as_ref().zip(welcomed_as);
            self.desk.in_session(session.map(|(stream, id)| (stream.server.clone(), id)));
        }
    }

    /// Of the desk, and so by the agent's own session: its slots share it.
    fn want_presence(&self, wanted: &[u8]) {
        if self.slots.is_some() {
            self.desk.want(wanted);
        }
    }

    fn want_slots(&self, names: Vec<String>) {
        if let Some(slots) = &self.slots {
            slots.send_replace(names);
        }
    }

    fn take_reports(&mut self, first: Report, reports: &mut mpsc::Receiver<Report>) {
        self.take_report(first);
        for _ in 1..REPORTS_PER_TURN {
            let Ok(report) = reports.try_recv() else {
                return;
            };
            self.take_report(report);
        }
    }

    fn take_report(&mut self, report: Report) {
        match report {
            Report::Waiting => {
                for batch in self.pool.fetch() {
                    self.take(Event::Computed(Report::Results(batch)));
                }
            }
            Report::Started(_) | Report::Results(_) => self.take(Event::Computed(report)),
        }
    }

    fn send_next(&mut self, permit: Option<mpsc::OwnedPermit<AgentMessage>>) {
        match permit {
            Some(permit) => {
                let message = self.outgoing.pop_front();
                let delivers = matches!(message, Some(Out::Delivery(_)));
                self.inventory.posted(clock::now());
                permit.send(AgentMessage { message });
                if delivers {
                    crash_point(CrashPoint::ResultsDelivered);
                }
            }
            // The stream is ending; the link says so soon.
            None => self.outgoing.clear(),
        }
    }

    fn act(&mut self) -> Option<Ending> {
        if let Some(stream) = &self.stream {
            self.inventory.heard(stream.wire.received_at(), stream.wire.received_bytes());
        }
        if self.inventory.wants_pockets_emptied(clock::now()) {
            for batch in self.pool.empty_pockets() {
                self.take(Event::Computed(Report::Results(batch)));
            }
        }
        let held_up = self.pool.held_up();
        self.take(Event::HeldUp(held_up));
        loop {
            let mut decide_again = false;
            for action in self.inventory.settle(clock::now(), self.pool.revoked_cores()) {
                match action {
                    Action::Send(mut message) => {
                        if let Out::Hello(hello) = &mut message {
                            hello.waking = self.stream.as_ref().and_then(|stream| stream.waking.clone());
                        }
                        if is_sign_of_life(&message) {
                            // One that waits to be sent says nothing that this one does not say.
                            self.outgoing.retain(|waiting| !is_sign_of_life(waiting));
                        }
                        self.outgoing.push_back(message);
                    }
                    Action::Compute(checkout) => {
                        self.desk.computes(&checkout);
                        self.pool.compute(checkout);
                    }
                    Action::Cancel(checkout) => self.pool.cancel(&checkout),
                    Action::LimitSolutions(bytes) => self.pool.limit_solutions(bytes),
                    Action::WithdrawUnstarted => {
                        let withdrawn = self.pool.withdraw_unstarted();
                        self.take(Event::Withdrawn(withdrawn));
                        decide_again = true;
                    }
                    Action::Reconnect => {
                        self.outgoing.clear();
                        if let Some(stream) = self.stream.take() {
                            stream.give_up.cancel();
                        }
                    }
                    Action::Replace => {
                        // What does not hear ends with the process, which is now.
                        self.gave_way();
                        self.replace.cancel();
                    }
                    Action::Pause(paused) => self.pool.pause(paused),
                    Action::Exit(ending) => return Some(ending),
                }
            }
            if !decide_again {
                self.measure_giving_way();
                return None;
            }
        }
    }

    /// Time until the connection has been silent for too long.
    fn until_silent(&self, now: Moment) -> Duration {
        let limit = self.inventory.silence_limit(SILENCE_LIMIT);
        self.stream.as_ref().map_or(Duration::MAX, |stream| stream.wire.until_silent(limit, now))
    }

    /// Gives up a connection that has been silent for too long. `planned`: the latest end of the last wait.
    fn leave_silence(&mut self, planned: Moment) {
        let now = clock::now();
        let Some(stream) = &self.stream else { return };
        if now > planned.saturating_add(STOOD_STILL) {
            // This process stood still: bytes may wait to be read.
            stream.wire.moved();
        }
        let limit = self.inventory.silence_limit(SILENCE_LIMIT);
        if stream.wire.until_silent(limit, now).is_zero() {
            let (server, seconds) = (&stream.server, limit.as_secs());
            warn!(server, seconds, "connection given up: no byte has moved");
            stream.give_up.cancel();
        }
    }

    /// Nobody reports that something stands still.
    fn until_still(&self, now: Moment) -> Duration {
        let is_soon = |input: &Moment| self.freezes && now.saturating_sub(*input) < STILL_WAIT;
        self.giving_way.filter(is_soon).map_or(Duration::MAX, |_| STILL_LOOK)
    }

    fn measure_giving_way(&mut self) {
        if self.giving_way.is_some() && self.pool.busy_cores() == 0 {
            self.gave_way();
        }
    }

    fn gave_way(&mut self) {
        if let Some(input) = self.giving_way.take() {
            self.desk.yielded(clock::now().saturating_sub(input));
        }
    }

    /// Sends the remaining messages and a goodbye, closes the stream and waits for its end. The server ends it when the goodbye
    /// is recorded.
    async fn say_farewell(&mut self, goodbye: Goodbye, link_events: &mut mpsc::Receiver<LinkEvent>) {
        let Some(stream) = self.stream.take() else {
            return;
        };
        for message in self.outgoing.drain(..) {
            let _ = stream.outbound.send(AgentMessage { message: Some(message) }).await;
        }
        let _ = stream.outbound.send(AgentMessage { message: Some(Out::Goodbye(goodbye)) }).await;
        drop(stream);
        while let Some(event) = link_events.recv().await {
            if matches!(event, LinkEvent::Ended) {
                return;
            }
        }
    }
}
