//! Servers: their sessions and their memory of lanes. Whom to serve, how much, and where to cut is decided by the code that
//! runs in a server.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::time::Duration;

use pcfarm_proto::idle_heartbeat;
use pcfarm_proto::ids::{BatchOrder, JobId, LaneId};
use pcfarm_proto::v1;
use pcfarm_proto::v1::agent_message::Message as Out;
use pcfarm_proto::v1::problem_result::Outcome;
use pcfarm_proto::v1::server_message::Message as In;
use pcfarm_server::dispatch::choose::{Candidate, Ring, Selection};
use pcfarm_server::dispatch::convoys::Ahead;
use pcfarm_server::dispatch::size::{self, Situation, Speed};
use pcfarm_sql::checkout::Closing;
use rand::RngExt;

use super::queue::{Away, Queue, Verdict};
use super::{Connection, HEARTBEAT, Happening, LEASE, World};

const TICK: Duration = Duration::from_secs(1);
/// A server asks a workstation to return problems in one of so many ticks.
const ASKS: u32 = 8;
const STALL: Duration = Duration::from_secs(4);
const CREDIT_LIMIT: u32 = 32;
const RESTART_MS: std::ops::Range<u64> = 500..30_000;

/// Problems read ahead at a time: few, so that convoys are cut.
const AHEAD: usize = 9;

struct Session {
    connection: usize,
    number: u64,
    cores: u32,
    prefetch: Option<usize>,
    credit: u32,
    leaving: bool,
    heard: Duration,
    silent: bool,
    sequence: u64,
    sent: BTreeMap<i64, (Duration, u64)>,
    alone: BTreeSet<i64>,
    /// What the last heartbeat said: when it came, what was read, what is held.
    report: Option<(Duration, u64, BTreeSet<i64>)>,
    speed: Option<Speed>,
}

struct Lane {
    candidate: Candidate,
    ahead: Ahead,
    next: i64,
    end: i64,
    problems: usize,
    at_end: bool,
}

pub struct Server {
    pub runs: bool,
    pub life: u32,
    pub frozen_until: Duration,
    row: usize,
    ticked: Duration,
    stalled: bool,
    sessions: BTreeMap<i64, Session>,
    /// None: nothing that is remembered can be trusted.
    lanes: Option<BTreeMap<usize, Lane>>,
    /// Deliveries that have not been stored, in order.
    inbox: VecDeque<(usize, v1::Delivery)>,
}

impl Server {
    pub fn new(queue: &mut Queue, now: Duration) -> Server {
        Server {
            runs: true,
            life: 0,
            frozen_until: Duration::ZERO,
            row: queue.start_server(),
            ticked: now,
            stalled: false,
            sessions: BTreeMap::new(),
            lanes: None,
            inbox: VecDeque::new(),
        }
    }

    fn session_of(&self, connection: usize) -> Option<i64> {
        self.sessions.iter().find(|(_, session)| session.connection == connection).map(|(&workstation, _)| workstation)
    }
}

fn candidate(lane: usize, came_back: bool) -> Candidate {
    Candidate {
        of_type: None,
        job_id: JobId(1),
        lane_id: LaneId(lane as i64),
        user: "user".into(),
        job_type: "echo".into(),
        priority: 0,
        deadline: None,
        late: false,
        urgency: 0,
        came_back,
        first: false,
        controller: "echo".into(),
        requirement: None,
    }
}

impl World {
    pub(super) fn crash_server(&mut self, server: usize) {
        if !self.servers[server].runs {
            return;
        }
        let (row, life) = (self.servers[server].row, self.servers[server].life);
        let of_it = |c: &Connection| c.open && c.server == server && c.server_life == life;
        let open: Vec<usize> = (0..self.connections.len()).filter(|&c| of_it(&self.connections[c])).collect();
        open.into_iter().for_each(|connection| self.cut(connection));
        self.servers[server] = Server {
            runs: false,
            life: life + 1,
            frozen_until: Duration::ZERO,
            row,
            ticked: self.now,
            stalled: false,
            sessions: BTreeMap::new(),
            lanes: None,
            inbox: VecDeque::new(),
        };
        let after = self.some_ms(RESTART_MS);
        self.later(after, Happening::StartServer { server });
    }

    pub(super) fn start_server(&mut self, server: usize) {
        let Ok(row) = self.queue.call(Queue::start_server) else {
            return self.later(TICK, Happening::StartServer { server });
        };
        let (now, life) = (self.now, self.servers[server].life);
        let one = &mut self.servers[server];
        (one.runs, one.row, one.ticked) = (true, row, now);
        self.later(TICK, Happening::Tick { server, life });
    }

    pub(super) fn server_learns(&mut self, connection: usize) {
        let Connection { server, server_life: life, .. } = self.connections[connection];
        if self.servers[server].life != life {
            return;
        }
        if self.servers[server].frozen_until > self.now {
            return self.again(self.servers[server].frozen_until, Happening::ServerLearns { connection });
        }
        let Some(workstation) = self.servers[server].session_of(connection) else { return };
        let session = self.servers[server].sessions.remove(&workstation).expect("just found");
        let age = self.now.saturating_sub(session.heard);
        drop(self.queue.call(|queue| queue.mark_silent(workstation, session.number, age)));
    }

    pub(super) fn server_hears(&mut self, connection: usize, message: Out) {
        let Connection { server, server_life: life, open, .. } = self.connections[connection];
        if !open || self.servers[server].life != life || !self.servers[server].runs {
            return;
        }
        if self.servers[server].frozen_until > self.now {
            return self.again(
                self.servers[server].frozen_until,
                Happening::ToServer { connection, message: Box::new(message) },
            );
        }
        if let Out::Hello(hello) = message {
            if self.welcome(server, connection, &hello).is_err() {
                self.cut(connection);
            }
            return;
        }
        let now = self.now;
        let Some(workstation) = self.servers[server].session_of(connection) else { return };
        let session = self.servers[server].sessions.get_mut(&workstation).expect("just found");
        session.heard = now;
        if std::mem::take(&mut session.silent) {
            let number = session.number;
            if self.queue.call(|queue| queue.mark_heard(workstation, number)).is_err() {
                session.silent = true;
            }
        }
        match message {
            Out::Hello(_) => {}
            Out::Credit(credit) => session.credit = (session.credit + credit.checkouts).min(CREDIT_LIMIT),
            Out::Heartbeat(beat) => {
                let held = beat.held.iter().map(|held| held.checkout_id).collect();
                session.report = Some((now, beat.last_sequence, held));
            }
            // Simulated agents have no pools, and the simulated Welcome offers no parts.
            Out::Intake(_) | Out::Equipment(_) | Out::ResultPart(_) | Out::StoredRequest(_) => {}
            // The inventory says no goodbye: the driver does.
            Out::Goodbye(_) => {}
            Out::StateChange(change) => session.leaving = change.state() == v1::WorkstationState::Draining,
            Out::Delivery(delivery) => self.servers[server].inbox.push_back((connection, delivery)),
        }
        self.accept(server);
        self.dispatch(server);
    }

    /// Registers, settles what is held, and says so.
    fn welcome(&mut self, server: usize, connection: usize, hello: &v1::Hello) -> Result<(), Away> {
        let (workstation, instance) =
            (hello.identity.parse().expect("a number"), hello.instance.parse().expect("a number"));
        let row = self.servers[server].row;
        let (number, live, same_instance) = self.queue.call(|queue| queue.connect(workstation, instance, row))?;
        let held: BTreeMap<i64, u64> = hello.held.iter().map(|held| (held.checkout_id, held.token)).collect();
        let missing: Vec<i64> =
            live.iter().filter(|(id, token)| held.get(id) != Some(token)).map(|(&id, _)| id).collect();
        let how = if same_instance { Closing::Unreceived } else { Closing::Lost };
        if !missing.is_empty() {
            self.queue.call(|queue| missing.iter().for_each(|&id| queue.close(id, how)))?;
        }
        let gone: BTreeSet<i64> =
            held.iter().filter(|(id, token)| live.get(id) != Some(token)).map(|(&id, _)| id).collect();
        let now = self.now;
        let before = self.servers[server].sessions.insert(
            workstation,
            Session {
                connection,
                number,
                cores: hello.cores,
                prefetch: hello.prefetch.map(|prefetch| prefetch as usize),
                credit: 0,
                leaving: hello.state() == v1::WorkstationState::Draining,
                heard: now,
                silent: false,
                sequence: 0,
                sent: held.keys().filter(|id| !gone.contains(id)).map(|&id| (id, (now, 0))).collect(),
                alone: BTreeSet::new(),
                report: None,
                speed: None,
            },
        );
        if let Some(before) = before {
            self.cut(before.connection);
        }
        let length = |length: Duration| prost_types::Duration::try_from(length).ok();
        let revoked = gone
            .iter()
            .map(|&checkout_id| v1::Revocation {
                checkout_id,
                reason: "it is not this workstation's any more".to_owned(),
            })
            .collect();
        let welcome = v1::Welcome {
            workstation_id: workstation,
            lease: length(LEASE),
            heartbeat: length(HEARTBEAT),
            revoked,
            ..v1::Welcome::default()
        };
        self.send_down(connection, In::Welcome(welcome));
        Ok(())
    }

    /// Stores what has been delivered, in order, as far as the database answers.
    fn accept(&mut self, server: usize) {
        while let Some((connection, delivery)) = self.servers[server].inbox.front().cloned() {
            let mut verdicts = Vec::new();
            for part in &delivery.checkouts {
                let results: Vec<(i64, bool)> = part
                    .results
                    .iter()
                    .map(|result| (result.problem_id, matches!(result.outcome, Some(Outcome::Solution(_)))))
                    .collect();
                let (id, token, finished) = (part.checkout_id, part.token, part.finished);
                let Ok(verdict) = self.queue.call(|queue| queue.accept(id, token, &results, finished)) else { return };
                if !part.given_back.is_empty() && verdict == (Verdict::Accepted { closed: false }) {
                    let back = &part.given_back;
                    if self.queue.call(|queue| queue.give_back(id, token, back)).is_err() {
                        return;
                    }
                }
                verdicts.push((part.clone(), results, verdict));
            }
            self.servers[server].inbox.pop_front();
            let mut answers = Vec::new();
            for (part, results, verdict) in verdicts {
                let id = part.checkout_id;
                if let Some(workstation) = self.servers[server].session_of(connection) {
                    let session = self.servers[server].sessions.get_mut(&workstation).expect("just found");
                    let busy = part.busy.and_then(|busy| Duration::try_from(busy).ok());
                    if let Some(busy) = busy.filter(|_| part.finished) {
                        session.speed = size::updated(session.speed, results.len(), busy, session.cores);
                    }
                    if verdict != (Verdict::Accepted { closed: false }) {
                        session.sent.remove(&id);
                        session.alone.remove(&id);
                    }
                }
                let word = match verdict {
                    Verdict::Accepted { .. } => v1::Verdict::Accepted,
                    Verdict::AlreadyAccepted => v1::Verdict::AlreadyAccepted,
                    Verdict::Revoked => v1::Verdict::Revoked,
                    Verdict::Unknown => v1::Verdict::Unknown,
                };
                if matches!(word, v1::Verdict::Accepted | v1::Verdict::AlreadyAccepted) {
                    self.queue.told(id, &results);
                }
                answers.push(v1::CheckoutVerdict { checkout_id: id, verdict: word.into(), ..Default::default() });
            }
            let ack = v1::DeliveryAck { delivery_id: delivery.delivery_id, verdicts: answers, took: None };
            self.send_down(connection, In::DeliveryAck(ack));
        }
    }

    pub(super) fn tick(&mut self, server: usize, life: u32) {
        if self.servers[server].life != life {
            return;
        }
        if self.servers[server].frozen_until > self.now {
            return self.again(self.servers[server].frozen_until, Happening::Tick { server, life });
        }
        let now = self.now;
        if now.saturating_sub(self.servers[server].ticked) > STALL {
            self.servers[server].stalled = true;
            self.servers[server].sessions.values_mut().for_each(|session| session.heard = now);
        }
        self.servers[server].ticked = now;
        // Each of these may find the database away, and is done again with the next tick.
        drop(self.beat(server));
        drop(self.look(server));
        drop(self.queue.call(Queue::recycle));
        if let Ok(lanes) = self.queue.call(|queue| queue.open_lanes()) {
            self.remember(server, lanes);
        }
        self.accept(server);
        self.dispatch(server);
        self.ask_for_unbegun(server);
        self.later(TICK, Happening::Tick { server, life });
    }

    /// Asks some of its workstations to return problems, as if others were idle.
    fn ask_for_unbegun(&mut self, server: usize) {
        let sessions = self.servers[server].sessions.values();
        let held: Vec<(usize, Vec<i64>)> =
            sessions.map(|session| (session.connection, session.sent.keys().copied().collect())).collect();
        for (connection, checkouts) in held {
            if !checkouts.is_empty() && self.one_in(ASKS) {
                let whole_convoys = self.one_in(2);
                let returnable = |checkout_id| v1::Returnable { checkout_id, whole_convoys };
                let checkouts = checkouts.into_iter().map(returnable).collect();
                self.send_down(connection, In::GiveBack(v1::GiveBack { checkouts, problems: 20 }));
            }
        }
    }

    fn beat(&mut self, server: usize) -> Result<(), Away> {
        let (row, stalled, now) = (self.servers[server].row, self.servers[server].stalled, self.now);
        self.queue.call(|queue| queue.pulse(row, stalled))?;
        self.servers[server].stalled = false;
        let (holding, idle) = (HEARTBEAT.mul_f64(1.5), idle_heartbeat(HEARTBEAT, LEASE).mul_f64(1.5));
        for (&workstation, session) in &mut self.servers[server].sessions {
            let age = now.saturating_sub(session.heard);
            let since = |sent: Duration| now.saturating_sub(sent.max(session.heard));
            if age > idle || session.sent.values().any(|(sent, _)| since(*sent) > holding) {
                session.silent = true;
                self.queue.call(|queue| queue.mark_silent(workstation, session.number, age))?;
            }
        }
        Ok(())
    }

    fn look(&mut self, server: usize) -> Result<(), Away> {
        let row = self.servers[server].row;
        let connected: BTreeSet<i64> = self.servers[server].sessions.keys().copied().collect();
        self.queue.call(|queue| queue.mark_unconnected(row, &connected))?;
        for &workstation in &connected {
            let session = &self.servers[server].sessions[&workstation];
            let (connection, number) = (session.connection, session.number);
            let held: Vec<i64> = session.sent.keys().copied().collect();
            let gone =
                self.queue.call(|queue| held.into_iter().filter(|&id| queue.revoked(id)).collect::<Vec<i64>>())?;
            let unreceived: Vec<i64> = {
                let older = self.queue.call(|queue| queue.older(workstation))?;
                let session = &self.servers[server].sessions[&workstation];
                older.into_iter().filter(|&id| never_received(session, id)).collect()
            };
            if !unreceived.is_empty() {
                self.queue.call(|queue| unreceived.iter().for_each(|&id| queue.close(id, Closing::Unreceived)))?;
            }
            let session = self.servers[server].sessions.get_mut(&workstation).expect("it is connected");
            for id in gone.iter().chain(&unreceived) {
                if session.sent.remove(id).is_some() && unreceived.contains(id) {
                    session.credit += 1;
                }
                session.alone.remove(id);
            }
            let revoked: Vec<v1::Revocation> = gone
                .iter()
                .chain(&unreceived)
                .map(|&checkout_id| v1::Revocation { checkout_id, reason: "revoked".to_owned() })
                .collect();
            if !revoked.is_empty() {
                self.send_down(connection, In::Revoke(v1::Revoke { revoked }));
            }
            if !self.queue.call(|queue| queue.is_newest(workstation, number))? {
                self.cut(connection);
            }
        }
        Ok(())
    }

    /// Lanes as they are, with what was read ahead where the pointer is where it was.
    fn remember(&mut self, server: usize, open: Vec<(usize, bool, i64, i64, usize)>) {
        let mut before = self.servers[server].lanes.take().unwrap_or_default();
        let lane = |(number, came_back, next, end, problems): (usize, bool, i64, i64, usize)| {
            let ahead = match before.remove(&number) {
                Some(lane) if lane.next == next => lane.ahead,
                _ => Ahead::default(),
            };
            (number, Lane { candidate: candidate(number, came_back), ahead, next, end, problems, at_end: false })
        };
        self.servers[server].lanes = Some(open.into_iter().map(lane).collect());
    }

    /// Hands out until nobody wants anything or nothing is left.
    fn dispatch(&mut self, server: usize) {
        let slot = Selection { controllers: HashSet::from(["echo".to_owned()]), ..Selection::default() };
        loop {
            if self.servers[server].lanes.is_none() {
                let Ok(lanes) = self.queue.call(|queue| queue.open_lanes()) else { return };
                self.remember(server, lanes);
            }
            let lanes = self.servers[server].lanes.as_ref().expect("just read");
            let mut ring = Ring::default();
            lanes.values().for_each(|lane| ring.add(lane.candidate.clone()));
            let Some(choice) = ring.choose(&slot, |_| true) else { return };
            let number = choice.candidate.lane_id.0 as usize;
            let mut wanting: Vec<i64> = self.servers[server]
                .sessions
                .iter()
                .filter(|(_, session)| session.credit > 0 && !session.leaving && session.alone.is_empty())
                .map(|(&workstation, _)| workstation)
                .collect();
            if wanting.is_empty() {
                return;
            }
            let first = self.random.random_range(0..wanting.len());
            wanting.rotate_left(first);
            if !wanting.into_iter().any(|workstation| self.serve(server, number, workstation)) {
                return;
            }
        }
    }

    /// A checkout of this lane for this workstation. False: not now.
    fn serve(&mut self, server: usize, number: usize, workstation: i64) -> bool {
        let workstations = self.servers[server].sessions.len();
        let Server { sessions, lanes, .. } = &mut self.servers[server];
        let (Some(session), Some(lane)) =
            (sessions.get_mut(&workstation), lanes.as_mut().and_then(|lanes| lanes.get_mut(&number)))
        else {
            return false;
        };
        let situation = Situation {
            aim: Duration::from_secs(15),
            limit: 1000,
            cores: session.cores,
            measured: session.speed,
            remaining: lane.problems,
            elsewhere: 0,
            workstations,
            time_limit: None,
            ahead: None,
        };
        let wanted = size::wanted(&situation);
        let in_hand = session.sent.len();
        if !size::has_room(&situation, in_hand, session.prefetch, wanted) {
            return false;
        }
        let mut limit = wanted.max(AHEAD) + 1;
        while !lane.at_end && lane.ahead.problems() < wanted {
            let from = lane.ahead.end().map_or(lane.next, |end| end.0);
            let Ok((rows, all)) = self.queue.call(|queue| queue.coming(number, from, limit)) else {
                self.servers[server].lanes = None;
                return false;
            };
            lane.at_end = all;
            if !lane.ahead.extend(rows, all) {
                limit *= 4;
            }
        }
        if lane.ahead.next_is_suspect() && in_hand > 0 {
            return false;
        }
        let from = lane.next;
        let Some(taken) = lane.ahead.take(wanted, u64::MAX, u64::MAX) else {
            self.servers[server].lanes.as_mut().expect("it is there").remove(&number);
            return true;
        };
        let BatchOrder(to) = taken.to;
        lane.next = to;
        if lane.at_end && lane.ahead.problems() == 0 && to < lane.end {
            lane.at_end = false;
        }
        let (token, count) = (self.random.random(), taken.problems.len());
        let made = self.queue.call(|queue| queue.check_out(number, from, to, count, workstation, token));
        let Ok(Some(id)) = made else {
            // Somebody was faster, or nobody knows.
            self.servers[server].lanes = None;
            return made.is_ok();
        };
        let now = self.now;
        let session = self.servers[server].sessions.get_mut(&workstation).expect("it is connected");
        session.credit -= 1;
        session.sequence += 1;
        session.sent.insert(id, (now, session.sequence));
        if taken.suspect {
            session.alone.insert(id);
        }
        let problem = |coming: &pcfarm_sql::lanes::ComingProblem| v1::Problem {
            problem_id: coming.problem_id.0,
            attempt: coming.attempts.unsigned_abs() + 1,
            ..v1::Problem::default()
        };
        let message = v1::Checkout {
            checkout_id: id,
            token,
            controller: "echo".to_owned(),
            problems: taken.problems.iter().map(problem).collect(),
            sequence: session.sequence,
            ..v1::Checkout::default()
        };
        let connection = session.connection;
        self.send_down(connection, In::Checkout(message));
        true
    }
}

/// As a server's session has it: a heartbeat that came well after a checkout was sent, from an agent that had read as far,
/// does not name it.
fn never_received(session: &Session, id: i64) -> bool {
    let Some((at, read, held)) = &session.report else { return false };
    if held.contains(&id) {
        return false;
    }
    session.sent.get(&id).is_none_or(|(sent, sequence)| read >= sequence && *at > *sent + HEARTBEAT * 2)
}
