//! Problems of pure computation: so many rounds of a mixing function, which nothing can skip. The same for the agent that
//! solves them and for the program that does it directly.

use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// What is to be done.
#[derive(Debug, Serialize, Deserialize)]
pub struct Spin {
    pub seed: u64,
    pub rounds: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Spun {
    /// In hexadecimal.
    pub digest: String,
}

impl Spin {
    pub fn solve(&self) -> Spun {
        let mut state = self.seed;
        for _ in 0..black_box(self.rounds) {
            state = mixed(state);
        }
        Spun { digest: format!("{state:016x}") }
    }
}

/// The finalizer of SplitMix64: each round needs the one before it.
fn mixed(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Rounds that take about so long on one core of this machine, by the fastest of several tries.
pub fn calibrate(duration: Duration) -> u64 {
    const ROUNDS: u64 = 2_000_000;
    let fastest = (0..9).map(|seed| {
        let began = Instant::now();
        black_box(Spin { seed, rounds: ROUNDS }.solve());
        began.elapsed()
    });
    let fastest = fastest.min().unwrap_or_default().max(Duration::from_nanos(1));
    ((ROUNDS as f64 * duration.as_secs_f64() / fastest.as_secs_f64()) as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_build_on_each_other() {
        let digest = |rounds| Spin { seed: 7, rounds }.solve().digest;
        assert_eq!(digest(0), "0000000000000007");
        assert_eq!(digest(2), format!("{:016x}", mixed(mixed(7))));
        assert!(calibrate(Duration::from_millis(1)) > 1_000);
    }
}
