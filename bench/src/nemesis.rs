//! Faults at random moments, from a seed: the same seed gives the same faults in the same order.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep};

use crate::program::Program;

/// What can befall a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Killed, and started again a little later.
    Kill(Duration),
    /// Stands still for a while.
    Freeze(Duration),
    /// Stopped in good order, and started again when it has ended.
    Restart,
}

/// Who is hit, and by what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blow {
    pub victim: usize,
    pub fault: Fault,
    pub pause: Duration,
}

/// How long a program may take to end when it is asked to.
const STOP_WAIT: Duration = Duration::from_secs(20);

/// Shortest and longest outage, in milliseconds: from less than a heartbeat to well over a lease.
const OUTAGE_MS: std::ops::Range<u64> = 50..5_000;

/// Shortest and longest time between blows, in milliseconds.
const PAUSE_MS: std::ops::Range<u64> = 100..1_500;

/// A source of blows.
#[derive(Debug)]
pub struct Nemesis {
    random: StdRng,
}

impl Nemesis {
    pub fn new(seed: u64) -> Nemesis {
        Nemesis { random: StdRng::seed_from_u64(seed) }
    }

    pub fn next_blow(&mut self, victims: usize) -> Blow {
        let outage = Duration::from_millis(self.random.random_range(OUTAGE_MS));
        Blow {
            victim: self.random.random_range(0..victims),
            fault: match self.random.random_range(0..5) {
                0 | 1 => Fault::Kill(outage),
                2 | 3 => Fault::Freeze(outage),
                _ => Fault::Restart,
            },
            pause: Duration::from_millis(self.random.random_range(PAUSE_MS)),
        }
    }

    /// Strikes for as long as it is told, then leaves everybody running. Says how many blows it dealt.
    pub async fn rage(&mut self, programs: &mut [&mut Program], length: Duration) -> usize {
        let end = Instant::now() + length;
        let mut recovering: Vec<Option<(Instant, Fault)>> = vec![None; programs.len()];
        let mut next_at = Instant::now();
        let mut blows = 0;
        while Instant::now() < end {
            if Instant::now() >= next_at {
                let blow = self.next_blow(programs.len());
                next_at = Instant::now() + blow.pause;
                if recovering[blow.victim].is_none() {
                    blows += 1;
                    recovering[blow.victim] = Some(strike(programs[blow.victim], blow.fault));
                }
            }
            for (program, recovering) in programs.iter_mut().zip(&mut recovering) {
                if recovering.is_some_and(|(at, fault)| is_over(program, at, fault)) {
                    recover(program, recovering.take().expect("just looked").1);
                }
                // An agent that its own problem or an impostor has ended is started by its owner again.
                if recovering.is_none() && !program.runs() {
                    program.start();
                }
            }
            sleep(Duration::from_millis(20)).await;
        }
        for (program, recovering) in programs.iter_mut().zip(recovering) {
            if let Some((_, fault)) = recovering {
                if fault == Fault::Restart {
                    program.ended(STOP_WAIT).await;
                }
                recover(program, fault);
            }
        }
        blows
    }
}

/// When it may recover.
fn strike(program: &mut Program, fault: Fault) -> (Instant, Fault) {
    eprintln!("{}: {fault:?}", program.name);
    let after = match fault {
        Fault::Kill(outage) => {
            program.kill();
            outage
        }
        Fault::Freeze(outage) => {
            program.freeze();
            outage
        }
        Fault::Restart => {
            program.terminate();
            Duration::ZERO
        }
    };
    (Instant::now() + after, fault)
}

fn is_over(program: &mut Program, at: Instant, fault: Fault) -> bool {
    match fault {
        Fault::Kill(_) | Fault::Freeze(_) => Instant::now() >= at,
        Fault::Restart => !program.runs(),
    }
}

fn recover(program: &mut Program, fault: Fault) {
    match fault {
        Fault::Kill(_) | Fault::Restart => program.start(),
        Fault::Freeze(_) => program.thaw(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_says_it_all() {
        let blows = |seed| {
            let mut nemesis = Nemesis::new(seed);
            (0..50).map(|_| nemesis.next_blow(7)).collect::<Vec<_>>()
        };
        assert_eq!(blows(1), blows(1));
        assert_ne!(blows(1), blows(2));
    }
}
