//! How large a pool should be, within its bounds: a hill climb on measured throughput. Pure.
//!
//! While problems wait for the pool, it is given a quarter more threads for a while; if it then serves at least a twentieth
//! more problems a second, it keeps them and the next trial is due, else it goes back and tries less and less often. Now
//! and then a quarter less is tried in the same way, and kept if that serves as many: what a dependency does as well with
//! fewer callers it should do with fewer. Throughput is judged only over windows in which something was always waiting:
//! a pool that has nothing to do says nothing about its size.

use std::time::Duration;

/// What a larger pool must serve more to be kept.
const GAIN: f64 = 1.05;

/// What a smaller pool may serve less and still be kept.
const LOSS: f64 = 0.98;

/// Windows between two trials: at first, and at most.
const PAUSE: u32 = 2;
const LONGEST_PAUSE: u32 = 64;

/// What a pool did in a while.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub served: u64,
    pub time: Duration,
    /// Something was waiting at its beginning and its end.
    pub saturated: bool,
}

#[derive(Debug)]
pub struct Climb {
    least: usize,
    most: usize,
    size: usize,
    trial: Option<Trial>,
    /// Windows until the next trial, and how many there will be after a vain one.
    pause: u32,
    next_pause: u32,
    try_smaller: bool,
}

#[derive(Clone, Copy, Debug)]
struct Trial {
    before: usize,
    /// What that served a second.
    rate: f64,
    /// The first window under the new size has both in it.
    settled: bool,
}

impl Climb {
    pub fn new(least: usize, most: usize) -> Climb {
        Climb { least, most, size: least, trial: None, pause: 0, next_pause: PAUSE, try_smaller: false }
    }

    pub fn size(&self) -> usize {
        self.size
    }

    /// Takes in what the pool did at its size, and returns what its size should be from now on.
    pub fn measured(&mut self, window: Window) -> usize {
        if self.least == self.most || window.time.is_zero() {
            return self.size;
        }
        if !window.saturated {
            // What was on trial was never needed.
            if let Some(trial) = self.trial.take() {
                self.size = trial.before;
            }
            return self.size;
        }
        let rate = window.served as f64 / window.time.as_secs_f64();
        match &mut self.trial {
            Some(trial) if !trial.settled => trial.settled = true,
            Some(trial) => {
                let trial = *trial;
                self.judge(trial, rate);
            }
            None if self.pause > 0 => self.pause -= 1,
            None => self.begin(rate),
        }
        self.size
    }

    fn judge(&mut self, trial: Trial, rate: f64) {
        self.trial = None;
        let grew = self.size > trial.before;
        if rate >= trial.rate * if grew { GAIN } else { LOSS } {
            (self.pause, self.next_pause, self.try_smaller) = (0, PAUSE, !grew);
            return;
        }
        self.size = trial.before;
        self.pause = self.next_pause;
        self.next_pause = (self.next_pause * 2).min(LONGEST_PAUSE);
        self.try_smaller = grew;
    }

    fn begin(&mut self, rate: f64) {
        let step = (self.size / 4).max(1);
        let larger = (self.size + step).min(self.most);
        let smaller = self.size.saturating_sub(step).max(self.least);
        let to = match self.try_smaller {
            true if smaller < self.size => smaller,
            false if larger > self.size => larger,
            true => larger,
            false => smaller,
        };
        if to != self.size {
            self.trial = Some(Trial { before: self.size, rate, settled: false });
            self.size = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A dependency that serves so many at a time, each for 10 ms, and no more with more callers.
    fn serve(climb: &mut Climb, capacity: usize, windows: usize) -> Vec<usize> {
        let window = |size: usize| Window {
            served: (size.min(capacity) * 100) as u64,
            time: Duration::from_secs(1),
            saturated: true,
        };
        (0..windows).map(|_| climb.measured(window(climb.size()))).collect()
    }

    #[test]
    fn it_grows_to_what_the_dependency_serves() {
        for capacity in [1, 7, 40, 100] {
            let mut climb = Climb::new(4, 64);
            serve(&mut climb, capacity, 300);
            let sizes = serve(&mut climb, capacity, 300);
            let typical = sizes.iter().sum::<usize>() / sizes.len();
            let best = capacity.clamp(4, 64);
            assert!(typical >= best * 9 / 10 && typical <= best * 14 / 10, "{typical} for {capacity}");
        }
    }

    #[test]
    fn a_pool_with_nothing_to_do_stays_as_it_is() {
        let mut climb = Climb::new(2, 100);
        let idle = Window { served: 10, time: Duration::from_secs(1), saturated: false };
        assert!((0..100).all(|_| climb.measured(idle) == 2));
    }

    proptest! {
        #[test]
        fn it_never_leaves_its_bounds(
            least in 1usize..20,
            more in 0usize..80,
            windows in prop::collection::vec((0u64..10_000, 0u64..2_000, any::<bool>()), 0..200),
        ) {
            let most = least + more;
            let mut climb = Climb::new(least, most);
            for (served, ms, saturated) in windows {
                let size = climb.measured(Window { served, time: Duration::from_millis(ms), saturated });
                prop_assert!((least..=most).contains(&size));
            }
        }
    }
}
