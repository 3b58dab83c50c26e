//! The queue in memory: what the database's statements do, each at once and whole, or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pcfarm_proto::ids::{BatchOrder, LaneId, ProblemId};
use pcfarm_sql::checkout::Closing;
use pcfarm_sql::json::RawJson;
use pcfarm_sql::lanes::ComingProblem;
use rand::RngExt;
use rand::rngs::StdRng;

use super::{HEARTBEAT, LEASE};

/// The database does not answer, or its answer is lost.
#[derive(Debug)]
pub struct Away;

/// Longer than this without a pulse, and a server is not running.
const PULSE_LIMIT: Duration = Duration::from_secs(4);

const MAX_ATTEMPTS: i32 = 4;

/// One problem of a lane, at its place.
#[derive(Clone, Debug)]
struct Row {
    problem: i64,
    order: i64,
    attempts: i32,
    alone: bool,
}

#[derive(Debug)]
struct Lane {
    rows: Vec<Row>,
    next_extraction: i64,
}

#[derive(Debug)]
struct Checkout {
    workstation: i64,
    token: u64,
    rows: Vec<Row>,
    live: bool,
    /// How it ended.
    revoked: bool,
    made: Duration,
    failed: BTreeSet<i64>,
}

#[derive(Debug)]
struct Workstation {
    instance: i64,
    session: u64,
    server: usize,
    dead: bool,
    silent_since: Option<Duration>,
}

#[derive(Debug)]
struct ServerRow {
    heard: Duration,
    hearing_since: Duration,
}

/// What became of a problem: under which checkout, and whether it was solved.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    checkout: i64,
    solved: bool,
}

#[derive(Debug, Default)]
pub struct Queue {
    pub now: Duration,
    pub away_until: Duration,
    pub replies_to_eat: u32,
    /// The last one is the retry lane.
    lanes: Vec<Lane>,
    checkouts: BTreeMap<i64, Checkout>,
    results: BTreeMap<i64, Outcome>,
    workstations: BTreeMap<i64, Workstation>,
    servers: Vec<ServerRow>,
    sessions: u64,
    problems: usize,
    /// Results that agents were told are stored: checkout and problem.
    acknowledged: BTreeSet<(i64, i64)>,
    broken: Option<String>,
    changed: bool,
}

/// Whether results were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Accepted { closed: bool },
    AlreadyAccepted,
    Revoked,
    Unknown,
}

impl Queue {
    pub fn new(random: &mut StdRng) -> Queue {
        let mut queue = Queue::default();
        let mut problem = 0;
        for _ in 0..random.random_range(1..4) {
            let convoy = random.random_range(1..8);
            let rows = (0..random.random_range(1..60))
                .map(|n| {
                    problem += 1;
                    Row { problem, order: n / convoy, attempts: 0, alone: false }
                })
                .collect();
            queue.lanes.push(Lane { rows, next_extraction: 0 });
        }
        queue.lanes.push(Lane { rows: Vec::new(), next_extraction: 0 });
        queue.problems = problem as usize;
        queue
    }

    pub fn problems(&self) -> usize {
        self.problems
    }

    pub fn checkouts(&self) -> usize {
        self.checkouts.len()
    }

    pub fn is_done(&self) -> bool {
        self.results.len() == self.problems && self.checkouts.values().all(|checkout| !checkout.live)
    }

    pub fn state(&self) -> String {
        let live: Vec<(&i64, i64)> =
            self.checkouts.iter().filter(|(_, c)| c.live).map(|(id, c)| (id, c.workstation)).collect();
        let pointers: Vec<(i64, usize)> =
            self.lanes.iter().map(|lane| (lane.next_extraction, lane.rows.len())).collect();
        format!(
            "{} of {} problems have ended, live checkouts {live:?}, pointers {pointers:?}, workstations {:?}",
            self.results.len(),
            self.problems,
            self.workstations
        )
    }

    /// One statement: it happens or it does not, and who asked may not learn which.
    pub fn call<T>(&mut self, statement: impl FnOnce(&mut Queue) -> T) -> Result<T, Away> {
        if self.now < self.away_until {
            return Err(Away);
        }
        let outcome = statement(self);
        if self.replies_to_eat > 0 {
            self.replies_to_eat -= 1;
            return Err(Away);
        }
        Ok(outcome)
    }

    // Servers and workstations

    pub fn start_server(&mut self) -> usize {
        self.servers.push(ServerRow { heard: self.now, hearing_since: self.now });
        self.servers.len() - 1
    }

    pub fn pulse(&mut self, server: usize, stalled: bool) {
        let now = self.now;
        let row = &mut self.servers[server];
        if stalled || now.saturating_sub(row.heard) > PULSE_LIMIT {
            row.hearing_since = now;
        }
        row.heard = now;
    }

    /// The workstation's connection: its session's number, and what it has live. Unless its program is another one than
    /// before, what it does not name was never received.
    pub fn connect(&mut self, workstation: i64, instance: i64, server: usize) -> (u64, BTreeMap<i64, u64>, bool) {
        self.sessions += 1;
        let session = self.sessions;
        let before = self
            .workstations
            .insert(workstation, Workstation { instance, session, server, dead: false, silent_since: None });
        let live = self.checkouts.iter().filter(|(_, c)| c.live && c.workstation == workstation);
        let live = live.map(|(&id, c)| (id, c.token)).collect();
        (session, live, before.is_none_or(|before| before.instance == instance))
    }

    pub fn mark_silent(&mut self, workstation: i64, session: u64, age: Duration) {
        let now = self.now;
        if let Some(row) = self.workstations.get_mut(&workstation).filter(|row| row.session == session) {
            row.silent_since.get_or_insert(now.saturating_sub(age));
        }
    }

    pub fn mark_heard(&mut self, workstation: i64, session: u64) {
        if let Some(row) = self.workstations.get_mut(&workstation).filter(|row| row.session == session) {
            row.silent_since = None;
        }
    }

    /// Those that name this server and are not connected to it.
    pub fn mark_unconnected(&mut self, server: usize, connected: &BTreeSet<i64>) {
        let now = self.now;
        for (id, row) in &mut self.workstations {
            if row.server == server && !connected.contains(id) && !row.dead {
                row.silent_since.get_or_insert(now);
            }
        }
    }

    pub fn is_newest(&self, workstation: i64, session: u64) -> bool {
        self.workstations.get(&workstation).is_some_and(|row| row.session == session && !row.dead)
    }

    /// What a recycler does in one pass.
    pub fn recycle(&mut self) {
        let now = self.now;
        let running = |row: &ServerRow| now.saturating_sub(row.heard) <= PULSE_LIMIT;
        let heard_for_a_lease =
            self.servers.iter().any(|row| running(row) && now.saturating_sub(row.hearing_since) >= LEASE);
        let first = self.servers.iter().filter(|row| running(row)).map(|row| row.hearing_since).min();
        if let Some(first) = first.filter(|_| heard_for_a_lease) {
            for row in self.workstations.values_mut() {
                let server = &self.servers[row.server];
                let since = match running(server) {
                    true => row.silent_since.map(|since| since.max(server.hearing_since)),
                    false => Some(row.silent_since.unwrap_or(server.heard).max(first)),
                };
                if since.is_some_and(|since| now.saturating_sub(since) > LEASE) {
                    row.dead = true;
                }
            }
        }
        let lost: Vec<i64> = self
            .checkouts
            .iter()
            .filter(|(_, c)| c.live && self.workstations.get(&c.workstation).is_none_or(|row| row.dead))
            .map(|(&id, _)| id)
            .collect();
        for id in lost {
            self.close(id, Closing::Lost);
        }
    }

    // Checkouts

    /// Lanes that have something to hand out: number, whether it is the retry lane, pointer, end, and how many problems.
    pub fn open_lanes(&self) -> Vec<(usize, bool, i64, i64, usize)> {
        let retry = self.lanes.len() - 1;
        let lanes = self.lanes.iter().enumerate().map(|(number, lane)| {
            let end = lane.rows.last().map_or(0, |row| row.order + 1);
            (number, number == retry, lane.next_extraction, end, lane.rows.len())
        });
        lanes.filter(|(_, _, next, end, _)| next < end).collect()
    }

    /// Rows from an order on, at most so many, and whether these are all.
    pub fn coming(&self, lane: usize, from: i64, limit: usize) -> (Vec<ComingProblem>, bool) {
        let rows = &self.lanes[lane].rows;
        let start = rows.partition_point(|row| row.order < from);
        let coming: Vec<ComingProblem> = rows[start..].iter().take(limit).map(|row| coming(lane, row)).collect();
        let all = coming.len() == rows.len() - start;
        (coming, all)
    }

    /// A new checkout's number, or nothing if the lane has moved on.
    pub fn check_out(
        &mut self,
        lane: usize,
        from: i64,
        to: i64,
        problems: usize,
        workstation: i64,
        token: u64,
    ) -> Option<i64> {
        if self.lanes[lane].next_extraction != from {
            return None;
        }
        self.changed = true;
        let rows: Vec<Row> =
            self.lanes[lane].rows.iter().filter(|row| (from..to).contains(&row.order)).cloned().collect();
        if rows.len() != problems {
            self.broken.get_or_insert(format!(
                "a checkout of {problems} problems from {from} to {to}, where there are {}",
                rows.len()
            ));
        }
        for row in &rows {
            if self.results.contains_key(&row.problem) {
                self.broken.get_or_insert(format!("problem {} is handed out and has ended", row.problem));
            }
            let holder =
                self.checkouts.iter().find(|(_, c)| c.live && c.rows.iter().any(|held| held.problem == row.problem));
            if let Some((id, _)) = holder {
                self.broken.get_or_insert(format!("problem {} is handed out and in checkout {id}", row.problem));
            }
        }
        self.lanes[lane].next_extraction = to;
        let id = self.checkouts.len() as i64 + 1;
        let checkout =
            Checkout { workstation, token, rows, live: true, revoked: false, made: self.now, failed: BTreeSet::new() };
        self.checkouts.insert(id, checkout);
        Some(id)
    }

    /// Results under a checkout: solved or failed. Those of other problems are refused.
    pub fn accept(&mut self, id: i64, token: u64, results: &[(i64, bool)], finished: bool) -> Verdict {
        self.changed = true;
        let Some(checkout) = self.checkouts.get_mut(&id).filter(|checkout| checkout.token == token) else {
            return Verdict::Unknown;
        };
        if !checkout.live {
            return if checkout.revoked { Verdict::Revoked } else { Verdict::AlreadyAccepted };
        }
        for &(problem, solved) in results {
            let Some(row) = checkout.rows.iter().find(|row| row.problem == problem) else {
                self.broken
                    .get_or_insert(format!("a result of problem {problem} for checkout {id}, which has not got it"));
                continue;
            };
            if solved || row.attempts + 1 >= MAX_ATTEMPTS {
                self.results.entry(problem).or_insert(Outcome { checkout: id, solved });
            } else {
                checkout.failed.insert(problem);
            }
        }
        let all = checkout.rows.iter().all(|row| self.results.contains_key(&row.problem));
        let closed = finished && all;
        if closed {
            checkout.live = false;
        } else if finished {
            self.close(id, Closing::Finished);
        }
        Verdict::Accepted { closed: finished }
    }

    /// Problems that a checkout's agent has not begun come back, while it goes on with the others.
    pub fn give_back(&mut self, id: i64, token: u64, problems: &[i64]) {
        self.changed = true;
        let Some(checkout) = self.checkouts.get_mut(&id).filter(|checkout| checkout.live && checkout.token == token)
        else {
            return;
        };
        let comes_back = |row: &Row| {
            problems.contains(&row.problem)
                && !row.alone
                && !self.results.contains_key(&row.problem)
                && !checkout.failed.contains(&row.problem)
        };
        let (back, kept): (Vec<Row>, Vec<Row>) = checkout.rows.iter().cloned().partition(comes_back);
        if kept.iter().all(|row| self.results.contains_key(&row.problem)) {
            return self.close(id, Closing::Finished);
        }
        // A result of one of them is from here on one that the checkout has not got.
        checkout.rows = kept;
        let retry = &mut self.lanes.last_mut().expect("the retry lane").rows;
        for row in back {
            let order = retry.last().map_or(0, |row| row.order + 1);
            retry.push(Row { order, ..row });
        }
    }

    /// An agent was told that what it delivered is stored.
    pub fn told(&mut self, id: i64, results: &[(i64, bool)]) {
        self.changed = true;
        self.acknowledged.extend(results.iter().filter(|(_, solved)| *solved).map(|(problem, _)| (id, *problem)));
    }

    pub fn close(&mut self, id: i64, how: Closing) {
        self.changed = true;
        let Some(checkout) = self.checkouts.get_mut(&id).filter(|checkout| checkout.live) else { return };
        checkout.live = false;
        checkout.revoked = how != Closing::Finished;
        let (rows, failed) = (checkout.rows.clone(), std::mem::take(&mut checkout.failed));
        let was_one = rows.len() == 1;
        let mut left: Vec<Row> = rows.into_iter().filter(|row| !self.results.contains_key(&row.problem)).collect();
        let lost_together = left.iter().filter(|row| !failed.contains(&row.problem)).count();
        let retry = self.lanes.len() - 1;
        let mut order = self.lanes[retry].rows.last().map_or(0, |row| row.order + 1);
        // Which go together: as SQL has it.
        left.sort_by_key(|row| how == Closing::Lost && !failed.contains(&row.problem));
        let each = lost_together.div_ceil(8).max(1);
        let (mut group, mut number) = (None, 0);
        for mut row in left {
            let has_failed = failed.contains(&row.problem);
            let lost = how == Closing::Lost && !has_failed;
            let this = match (lost, has_failed) {
                (true, _) => (2, (number / each) as i64),
                (false, true) => (1, row.problem),
                (false, false) => (0, row.order),
            };
            number += usize::from(lost);
            if has_failed || (lost && was_one && row.alone) {
                row.attempts += 1;
            }
            if row.attempts >= MAX_ATTEMPTS {
                self.results.insert(row.problem, Outcome { checkout: id, solved: false });
                continue;
            }
            row.alone = lost || (row.alone && !has_failed);
            if group.is_some_and(|before| before != this) {
                order += 1;
            }
            group = Some(this);
            row.order = order;
            self.lanes[retry].rows.push(row);
        }
    }

    pub fn revoked(&self, id: i64) -> bool {
        self.checkouts.get(&id).is_none_or(|checkout| checkout.revoked)
    }

    /// Live checkouts of a workstation that are older than two heartbeats.
    pub fn older(&self, workstation: i64) -> Vec<i64> {
        let old = |c: &Checkout| self.now.saturating_sub(c.made) > HEARTBEAT * 2;
        self.checkouts
            .iter()
            .filter(|(_, c)| c.live && c.workstation == workstation && old(c))
            .map(|(&id, _)| id)
            .collect()
    }

    // What must hold

    /// What nothing has been done to holds as before.
    pub fn check_if_changed(&mut self) -> Result<(), String> {
        if std::mem::take(&mut self.changed) { self.check() } else { Ok(()) }
    }

    fn check(&self) -> Result<(), String> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let mut places = vec![0_usize; self.problems + 1];
        for lane in &self.lanes {
            for row in lane.rows.iter().filter(|row| row.order >= lane.next_extraction) {
                places[row.problem as usize] += 1;
            }
        }
        for checkout in self.checkouts.values().filter(|checkout| checkout.live) {
            for row in checkout.rows.iter().filter(|row| !self.results.contains_key(&row.problem)) {
                places[row.problem as usize] += 1;
            }
        }
        for &problem in self.results.keys() {
            places[problem as usize] += 1;
        }
        for problem in 1..=self.problems as i64 {
            match places[problem as usize] {
                1 => {}
                0 => return Err(format!("problem {problem} is nowhere")),
                n => return Err(format!("problem {problem} is in {n} places")),
            }
        }
        for (checkout, problem) in &self.acknowledged {
            let there =
                self.results.get(problem).is_some_and(|outcome| outcome.checkout == *checkout && outcome.solved);
            if !there {
                return Err(format!(
                    "the result of problem {problem} was acknowledged under checkout {checkout} and is not there"
                ));
            }
        }
        Ok(())
    }
}

fn coming(lane: usize, row: &Row) -> ComingProblem {
    let order = BatchOrder(row.order);
    ComingProblem {
        problem_id: ProblemId(row.problem),
        batch_order: order,
        key: row.problem.to_string().into(),
        payload: RawJson::default(),
        weight: 1,
        attempts: row.attempts,
        alone: row.alone,
        grouped: false,
        home_lane: LaneId(lane as i64),
        home_order: order,
    }
}
