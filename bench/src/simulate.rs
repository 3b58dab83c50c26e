//! The farm's decisions in a simulator: the agent's inventory, and how servers choose, size and cut what they hand out, on a
//! clock that jumps, over links that delay, cut and swallow, with a queue in memory that does what the database's does. From
//! a seed; the invariants are checked after every event.
//!
//! What is simulated by hand is thin on purpose: messages, time, crashes and the queue's transitions. What is decided is
//! decided by the code that runs in the programs.

mod agents;
mod queue;
mod servers;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use pcfarm_proto::v1::agent_message::Message as Out;
use pcfarm_proto::v1::server_message::Message as In;
use pcfarm_worker::decisions::Checkout;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use agents::Agent;
use queue::Queue;
use servers::Server;

pub const LEASE: Duration = Duration::from_secs(20);
pub const HEARTBEAT: Duration = Duration::from_secs(5);

/// Faults come until then.
const TROUBLE: Duration = Duration::from_secs(150);

/// With all faults over, everything is done by then.
const END: Duration = Duration::from_secs(1500);

/// A link takes this long in milliseconds, now and then much longer.
const DELAY_MS: std::ops::Range<u64> = 1..40;
const LONG_DELAY_MS: std::ops::Range<u64> = 500..4_000;

/// What a simulation came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Simulated {
    pub seed: u64,
    pub events: u64,
    pub faults: u64,
    pub problems: usize,
    pub checkouts: usize,
    /// Until the last problem had ended.
    pub took: Duration,
}

/// What happens at some time.
enum Happening {
    Wake {
        agent: usize,
        life: u32,
    },
    Connect {
        agent: usize,
        life: u32,
    },
    Solve {
        agent: usize,
        life: u32,
        checkout: Arc<Checkout>,
    },
    ToServer {
        connection: usize,
        message: Box<Out>,
    },
    ToAgent {
        connection: usize,
        message: Box<In>,
    },
    /// An end of a connection learns that it is over.
    AgentLearns {
        connection: usize,
    },
    ServerLearns {
        connection: usize,
    },
    Tick {
        server: usize,
        life: u32,
    },
    StartServer {
        server: usize,
    },
    Fault,
}

/// Of a connection: who, and until when what was sent takes.
struct Connection {
    agent: usize,
    /// Which life of it.
    agent_life: u32,
    server: usize,
    server_life: u32,
    open: bool,
    /// Nothing gets through until then, if it is silent.
    silent_until: Duration,
    up: Duration,
    down: Duration,
}

struct World {
    seed: u64,
    random: StdRng,
    now: Duration,
    events: u64,
    faults: u64,
    /// Number in the order of their making: those of the same time happen in that order.
    made: u64,
    current: u64,
    waiting: BinaryHeap<Reverse<(Duration, u64)>>,
    happenings: std::collections::HashMap<u64, Happening>,
    agents: Vec<Agent>,
    servers: Vec<Server>,
    connections: Vec<Connection>,
    queue: Queue,
}

/// Runs one simulation. An error says what was broken, after which event.
pub fn simulate(seed: u64) -> Result<Simulated, String> {
    let mut random = StdRng::seed_from_u64(seed);
    let (agents, servers) = (random.random_range(1..6), random.random_range(1..4));
    let queue = Queue::new(&mut random);
    let mut world = World {
        seed,
        random,
        now: Duration::from_secs(1000),
        events: 0,
        faults: 0,
        made: 0,
        current: 0,
        waiting: BinaryHeap::new(),
        happenings: std::collections::HashMap::new(),
        agents: Vec::new(),
        servers: Vec::new(),
        connections: Vec::new(),
        queue,
    };
    let began = world.now;
    world.queue.now = began;
    for server in 0..servers {
        world.servers.push(Server::new(&mut world.queue, began));
        let first = world.some_ms(0..1000);
        world.later(first, Happening::Tick { server, life: 0 });
    }
    for agent in 0..agents {
        let (number, cores) = (agent, world.random.random_range(1..5));
        world.agents.push(Agent::new(number, cores, began, &mut world.random));
        let first = world.some_ms(0..1000);
        world.later(first, Happening::Connect { agent, life: 0 });
    }
    let first = world.some_ms(0..5_000);
    world.later(first, Happening::Fault);
    while !world.queue.is_done() {
        let Some(Reverse((at, number))) = world.waiting.pop() else {
            return Err("nothing happens any more".to_owned());
        };
        let happening = world.happenings.remove(&number).expect("each is there once");
        world.current = number;
        world.now = world.now.max(at);
        world.queue.now = world.now;
        world.events += 1;
        let name = name(&happening);
        world.happen(happening);
        let context = |wrong| {
            format!(
                "seed {seed}, {:?} after the start, event {} ({name}): {wrong}",
                at.saturating_sub(began),
                world.events
            )
        };
        world.queue.check_if_changed().map_err(context)?;
        if world.now > began + END {
            return Err(context(format!("{END:?} and not done: {}", world.queue.state())));
        }
    }
    Ok(Simulated {
        seed: world.seed,
        events: world.events,
        faults: world.faults,
        problems: world.queue.problems(),
        checkouts: world.queue.checkouts(),
        took: world.now.saturating_sub(began),
    })
}

fn name(happening: &Happening) -> &'static str {
    match happening {
        Happening::Wake { .. } => "an agent wakes",
        Happening::Connect { .. } => "an agent connects",
        Happening::Solve { .. } => "an agent solves",
        Happening::ToServer { .. } => "a server hears",
        Happening::ToAgent { .. } => "an agent hears",
        Happening::AgentLearns { .. } => "an agent's connection ends",
        Happening::ServerLearns { .. } => "a server's connection ends",
        Happening::Tick { .. } => "a server's clock ticks",
        Happening::StartServer { .. } => "a server starts",
        Happening::Fault => "a fault",
    }
}

impl World {
    fn some_ms(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.random.random_range(range))
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.random.random_range(0..n) == 0
    }

    fn later(&mut self, after: Duration, happening: Happening) {
        self.at(self.now + after, happening);
    }

    fn at(&mut self, at: Duration, happening: Happening) {
        self.made += 1;
        self.waiting.push(Reverse((at, self.made)));
        self.happenings.insert(self.made, happening);
    }

    /// What happens now happens then, and before what was to happen after it.
    fn again(&mut self, at: Duration, happening: Happening) {
        self.waiting.push(Reverse((at, self.current)));
        self.happenings.insert(self.current, happening);
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Wake { agent, life } => self.wake(agent, life),
            Happening::Connect { agent, life } => self.connect(agent, life),
            Happening::Solve { agent, life, checkout } => self.solve(agent, life, checkout),
            Happening::ToServer { connection, message } => self.server_hears(connection, *message),
            Happening::ToAgent { connection, message } => self.agent_hears(connection, *message),
            Happening::AgentLearns { connection } => self.agent_learns(connection),
            Happening::ServerLearns { connection } => self.server_learns(connection),
            Happening::Tick { server, life } => self.tick(server, life),
            Happening::StartServer { server } => self.start_server(server),
            Happening::Fault => self.fault(),
        }
    }

    // Links

    /// How long a message takes, behind those that are under way.
    fn delay(&mut self) -> Duration {
        if self.one_in(200) { self.some_ms(LONG_DELAY_MS) } else { self.some_ms(DELAY_MS) }
    }

    fn send_up(&mut self, connection: usize, message: Out) {
        let delay = self.delay();
        let link = &mut self.connections[connection];
        if link.open {
            link.up = link.up.max(self.now + delay).max(link.silent_until);
            let at = link.up;
            self.at(at, Happening::ToServer { connection, message: Box::new(message) });
        }
    }

    fn send_down(&mut self, connection: usize, message: In) {
        let delay = self.delay();
        let link = &mut self.connections[connection];
        if link.open {
            link.down = link.down.max(self.now + delay).max(link.silent_until);
            let at = link.down;
            self.at(at, Happening::ToAgent { connection, message: Box::new(message) });
        }
    }

    /// What is under way is lost, and both ends learn of it, soon or late.
    fn cut(&mut self, connection: usize) {
        if !std::mem::replace(&mut self.connections[connection].open, false) {
            return;
        }
        for happening in [Happening::AgentLearns { connection }, Happening::ServerLearns { connection }] {
            // Without a word, it takes keep-alives to notice.
            let after = if self.one_in(3) { self.some_ms(5_000..15_000) } else { self.some_ms(0..50) };
            self.later(after, happening);
        }
    }

    // Faults

    fn fault(&mut self) {
        if self.now > Duration::from_secs(1000) + TROUBLE {
            return;
        }
        self.faults += 1;
        let (agent, server) =
            (self.random.random_range(0..self.agents.len()), self.random.random_range(0..self.servers.len()));
        match self.random.random_range(0..9_u32) {
            0 => self.crash_agent(agent),
            1 => {
                let frozen = self.some_ms(500..60_000);
                let until = &mut self.agents[agent].frozen_until;
                *until = (*until).max(self.now + frozen);
            }
            2 => self.stop_agent(agent),
            3 | 4 => self.crash_server(server),
            5 => {
                let frozen = self.some_ms(500..60_000);
                let until = &mut self.servers[server].frozen_until;
                *until = (*until).max(self.now + frozen);
            }
            6 => {
                let away = self.some_ms(500..50_000);
                self.queue.away_until = self.now + away;
            }
            7 => {
                let open: Vec<usize> = (0..self.connections.len()).filter(|&c| self.connections[c].open).collect();
                if let Some(&connection) = open.get(self.random.random_range(0..open.len().max(1))) {
                    if self.one_in(2) {
                        self.cut(connection);
                    } else {
                        let silent = self.some_ms(500..60_000);
                        self.connections[connection].silent_until = self.now + silent;
                    }
                }
            }
            // Commits whose replies are eaten.
            _ => self.queue.replies_to_eat += self.random.random_range(1..6),
        }
        let next = self.some_ms(500..12_000);
        self.later(next, Happening::Fault);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many as there are seeds in `PCFARM_SIMULATE_SEEDS`, or 2,000 from 1 on.
    #[test]
    fn nothing_is_lost_or_doubled_on_thousands_of_seeds() {
        let seeds: u64 = std::env::var("PCFARM_SIMULATE_SEEDS").map_or(2_000, |text| text.parse().expect("a number"));
        let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        std::thread::scope(|scope| {
            for first in 0..threads {
                scope.spawn(move || {
                    for seed in (1 + first..=seeds).step_by(threads as usize) {
                        simulate(seed).unwrap_or_else(|wrong| panic!("{wrong}"));
                    }
                });
            }
        });
    }

    #[test]
    fn a_seed_says_it_all() {
        assert_eq!(simulate(7), simulate(7));
    }
}
