//! Agents: what their inventory decides, done on a clock and with cores that are simulated.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pcfarm_proto::v1;
use pcfarm_proto::v1::problem_result::Outcome;
use pcfarm_proto::v1::server_message::Message as In;
use pcfarm_worker::decisions::{Action, AfterLease, Batch, Checkout, Event, Inventory, Profile, Report};
use rand::RngExt;
use rand::rngs::StdRng;

use super::{Connection, Happening, World};

const PROBLEM_MS: std::ops::Range<u64> = 20..3_000;
const RECONNECT_MS: std::ops::Range<u64> = 20..2_000;
const RESTART_MS: std::ops::Range<u64> = 100..30_000;

/// One in so many problems fails in an attempt.
const FAILS: u32 = 15;

pub struct Agent {
    number: usize,
    cores: u32,
    inventory: Inventory,
    /// Grows when its program ends; what happens to an earlier one is of no interest.
    pub life: u32,
    connection: Option<usize>,
    pub frozen_until: Duration,
    computing: Vec<Arc<Checkout>>,
    /// When it wakes by itself.
    wakes: Option<Duration>,
}

impl Agent {
    pub fn new(number: usize, cores: u32, now: Duration, random: &mut StdRng) -> Agent {
        Agent {
            number,
            cores,
            inventory: inventory(number, 0, cores, now, random),
            life: 0,
            connection: None,
            frozen_until: Duration::ZERO,
            computing: Vec::new(),
            wakes: None,
        }
    }
}

/// The identity is the agent's number, the instance its life.
fn inventory(number: usize, life: u32, cores: u32, now: Duration, random: &mut StdRng) -> Inventory {
    let hello = v1::Hello {
        identity: number.to_string(),
        instance: life.to_string(),
        controllers: vec!["echo".to_owned()],
        cores,
        prefetch: Some(1),
        ..v1::Hello::default()
    };
    let grace = Duration::from_secs(random.random_range(1..10));
    let (apart, freezable) = (BTreeSet::new(), BTreeSet::new());
    let after_lease = AfterLease::Stop;
    let profile = Profile { hello, prefetch: 1, grace, unacknowledged_bytes: 1 << 20, apart, freezable, after_lease };
    Inventory::new(profile, now)
}

impl World {
    fn is_alive(&self, agent: usize, life: u32) -> bool {
        self.agents[agent].life == life
    }

    /// Whatever happens to one that stands still happens when it goes on.
    fn is_frozen(&self, agent: usize) -> Option<Duration> {
        let until = self.agents[agent].frozen_until;
        (until > self.now).then_some(until)
    }

    pub(super) fn wake(&mut self, agent: usize, life: u32) {
        if !self.is_alive(agent, life) {
            return;
        }
        if let Some(until) = self.is_frozen(agent) {
            return self.again(until, Happening::Wake { agent, life });
        }
        if self.agents[agent].wakes.is_none_or(|wakes| wakes > self.now) {
            return;
        }
        self.agents[agent].wakes = None;
        self.act(agent);
    }

    pub(super) fn connect(&mut self, agent: usize, life: u32) {
        if !self.is_alive(agent, life) || self.agents[agent].connection.is_some() {
            return;
        }
        if let Some(until) = self.is_frozen(agent) {
            return self.again(until, Happening::Connect { agent, life });
        }
        let server = self.random.random_range(0..self.servers.len());
        if !self.servers[server].runs {
            let after = self.some_ms(RECONNECT_MS);
            return self.later(after, Happening::Connect { agent, life });
        }
        self.connections.push(Connection {
            agent,
            agent_life: life,
            server,
            server_life: self.servers[server].life,
            open: true,
            silent_until: Duration::ZERO,
            up: self.now,
            down: self.now,
        });
        self.agents[agent].connection = Some(self.connections.len() - 1);
        self.take(agent, Event::Connected);
    }

    pub(super) fn agent_hears(&mut self, connection: usize, message: In) {
        let Connection { agent, agent_life: life, open, .. } = self.connections[connection];
        if !open || !self.is_alive(agent, life) || self.agents[agent].connection != Some(connection) {
            return;
        }
        if let Some(until) = self.is_frozen(agent) {
            return self.again(until, Happening::ToAgent { connection, message: Box::new(message) });
        }
        self.take(agent, Event::Received(message));
    }

    pub(super) fn agent_learns(&mut self, connection: usize) {
        let Connection { agent, agent_life: life, .. } = self.connections[connection];
        if !self.is_alive(agent, life) || self.agents[agent].connection != Some(connection) {
            return;
        }
        if let Some(until) = self.is_frozen(agent) {
            return self.again(until, Happening::AgentLearns { connection });
        }
        self.agents[agent].connection = None;
        self.take(agent, Event::Disconnected);
        let after = self.some_ms(RECONNECT_MS);
        self.later(after, Happening::Connect { agent, life });
    }

    /// A core takes the next problem of a checkout and reports it when it is done.
    pub(super) fn solve(&mut self, agent: usize, life: u32, checkout: Arc<Checkout>) {
        if !self.is_alive(agent, life) {
            return;
        }
        if let Some(until) = self.is_frozen(agent) {
            return self.again(until, Happening::Solve { agent, life, checkout });
        }
        let Some(taken) = checkout.take() else { return };
        let (key, problem_id, first) = (checkout.key, taken.problem.problem_id, taken.first);
        if first {
            self.take(agent, Event::Computed(Report::Started(key)));
        }
        let outcome = match self.one_in(FAILS) {
            true => Outcome::Failure("no luck".to_owned()),
            false => Outcome::Solution("1".into()),
        };
        let busy = self.some_ms(PROBLEM_MS);
        let results = vec![v1::ProblemResult { problem_id, outcome: Some(outcome), more: None }];
        self.take(agent, Event::Computed(Report::Results(Batch { key, results, busy })));
        if self.is_alive(agent, life) && checkout.untaken() > 0 {
            self.later(busy, Happening::Solve { agent, life, checkout });
        }
    }

    pub(super) fn crash_agent(&mut self, agent: usize) {
        if let Some(connection) = self.agents[agent].connection.take() {
            self.cut(connection);
        }
        let (now, life) = (self.now, self.agents[agent].life + 1);
        let (number, cores) = (self.agents[agent].number, self.agents[agent].cores);
        let inventory = inventory(number, life, cores, now, &mut self.random);
        self.agents[agent] = Agent {
            number,
            cores,
            inventory,
            life,
            connection: None,
            frozen_until: Duration::ZERO,
            computing: Vec::new(),
            wakes: None,
        };
        let after = self.some_ms(RESTART_MS);
        self.later(after, Happening::Connect { agent, life });
    }

    pub(super) fn stop_agent(&mut self, agent: usize) {
        if self.is_frozen(agent).is_none() {
            self.take(agent, Event::Stop);
        }
    }

    fn take(&mut self, agent: usize, event: Event) {
        let now = self.now;
        self.agents[agent].inventory.take(now, event);
        self.act(agent);
    }

    /// Does what is decided.
    fn act(&mut self, agent: usize) {
        let now = self.now;
        let life = self.agents[agent].life;
        let mut again = false;
        // Cores have nothing in their pockets here: they report at once.
        self.agents[agent].inventory.wants_pockets_emptied(now);
        for action in self.agents[agent].inventory.settle(now, 0) {
            match action {
                Action::Send(message) => {
                    if let Some(connection) = self.agents[agent].connection {
                        self.send_up(connection, message);
                    }
                }
                Action::Compute(checkout) => {
                    self.agents[agent].computing.retain(|one| one.untaken() > 0 && one.key != checkout.key);
                    self.agents[agent].computing.push(checkout.clone());
                    let after = self.some_ms(PROBLEM_MS);
                    self.later(after, Happening::Solve { agent, life, checkout });
                }
                Action::WithdrawUnstarted => {
                    let computing = std::mem::take(&mut self.agents[agent].computing);
                    let keys =
                        computing.iter().filter(|checkout| checkout.withdraw()).map(|checkout| checkout.key).collect();
                    self.agents[agent].inventory.take(now, Event::Withdrawn(keys));
                    again = true;
                }
                Action::Reconnect => {
                    if let Some(connection) = self.agents[agent].connection {
                        self.cut(connection);
                    }
                }
                Action::Cancel(_) | Action::LimitSolutions(_) | Action::Pause(_) | Action::Replace => {}
                Action::Exit(_) => return self.crash_agent(agent),
            }
        }
        if again {
            return self.act(agent);
        }
        let due = self.agents[agent].inventory.deadline(now).max(now + Duration::from_millis(1));
        if self.agents[agent].wakes.is_none_or(|wakes| wakes > due) {
            self.agents[agent].wakes = Some(due);
            self.at(due, Happening::Wake { agent, life });
        }
    }
}
