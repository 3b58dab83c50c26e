//! How much time of the cores a pool's threads may use while every core has a computation. Pure, but for the kernel's clocks.
//!
//! Calls wait, by and large, and what they use of the cores is not seen; but a thousand short ones a second are. Threads of the
//! scheduler's idle class take what nobody else wants, and a little more: fifty of them that want to run weigh 150 to a
//! computation's 1,024. So a pool saves up a share of the cores' time, and begins a call only when it has as much as calls have
//! used of late; what a call has used is known when it is done. Calls that come more slowly than that find it saved up and
//! notice nothing.

use std::time::{Duration, Instant};

/// Of the time of an agent's cores, what its pools may use together while all cores compute. A call costs more than
/// a pool's clock sees (interrupts, switches, handing over its problem and its result), and of computations 95 % are to be
/// kept.
pub const POOLS_SHARE: f64 = 0.015;

/// For so long a pool saves. Its threads come late where cores compute, and should find what it has not used meanwhile.
const SAVES: Duration = Duration::from_millis(100);

/// A pool that must wait waits for so long at least, and then begins several calls: each time is a switch of threads.
const PAUSE_LEAST: Duration = Duration::from_millis(4);

/// And for so long at most before it looks again: the cores may have become free.
const PAUSE_MOST: Duration = Duration::from_millis(20);

/// However much calls use: a pool saves up for one for so long at most, and owes for one no longer.
const OWES: Duration = Duration::from_millis(500);

/// What the next call will use is what calls have used, and each counts so much of that.
const NEWEST: f64 = 1.0 / 32.0;

/// Before one has been seen.
const CALL: f64 = 20e-6;

/// Of one pool.
#[derive(Debug)]
pub(super) struct Budget {
    /// Seconds of a core, and of when.
    left: f64,
    at: Instant,
    /// Seconds of a core for each second.
    rate: f64,
    /// What a call uses.
    call: f64,
}

impl Budget {
    pub fn new(rate: f64, pools: usize, now: Instant) -> Budget {
        let mut budget = Budget { left: 0.0, at: now, rate: 0.0, call: CALL };
        budget.share(rate, pools);
        budget.left = budget.most();
        budget
    }

    /// `rate`: of all pools, in seconds of a core for each second; so many have something to do.
    pub fn share(&mut self, rate: f64, pools: usize) {
        self.rate = rate / pools.max(1) as f64;
    }

    fn most(&self) -> f64 {
        (self.rate * SAVES.as_secs_f64()).max(self.next())
    }

    fn next(&self) -> f64 {
        self.call.min(self.rate * OWES.as_secs_f64())
    }

    fn earn(&mut self, now: Instant) {
        let earned = self.rate * now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + earned).clamp(-self.rate * OWES.as_secs_f64(), self.most());
        self.at = now;
    }

    /// How many calls could begin.
    pub fn calls(&mut self, now: Instant) -> usize {
        self.earn(now);
        (self.left / self.next()).max(0.0) as usize
    }

    /// Takes what a call will use, which is to be [settled](Budget::settle), or says when to look again.
    pub fn begin(&mut self, now: Instant) -> Result<f64, Duration> {
        self.earn(now);
        let next = self.next();
        if self.left >= next {
            self.left -= next;
            return Ok(next);
        }
        let missing = Duration::from_secs_f64((next - self.left) / self.rate);
        Err(missing.clamp(PAUSE_LEAST, PAUSE_MOST))
    }

    /// Nobody needs what is used: it is as if nothing were.
    pub fn free(&mut self, now: Instant) -> f64 {
        (self.left, self.at) = (self.most(), now);
        0.0
    }

    /// A call for which so much was taken has used `used`.
    pub fn settle(&mut self, taken: f64, used: Duration) {
        let used = used.as_secs_f64();
        if taken > 0.0 {
            self.left += taken - used;
        }
        self.call += (used - self.call) * NEWEST;
        self.call = self.call.max(1e-6);
    }
}

/// A thread's own time on the cores.
pub(super) struct Meter {
    last: Duration,
}

impl Meter {
    pub fn start() -> Meter {
        Meter { last: of_this_thread() }
    }

    /// Since it was looked at last.
    pub fn lap(&mut self) -> Duration {
        let now = of_this_thread();
        now.saturating_sub(std::mem::replace(&mut self.last, now))
    }
}

#[cfg(target_os = "linux")]
fn of_this_thread() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Elsewhere nobody is held back: Windows lets threads of the idle class run only where nobody else wants to.
#[cfg(not(target_os = "linux"))]
fn of_this_thread() -> Duration {
    Duration::ZERO
}

/// Whether a machine has time that nobody uses, though every core has a computation: one that waits for something itself.
#[derive(Debug, Default)]
pub(super) struct Idleness(Option<(Instant, Duration)>);

/// So much of a core, and pools are not held back.
const IDLE_CORE: f64 = 0.25;

impl Idleness {
    /// Since it was looked at last, if every core has had a computation then and has one now.
    pub fn look(&mut self, cores_compute: bool) -> bool {
        let idle = cores_compute.then(of_this_machine).flatten();
        let now = idle.map(|idle| (Instant::now(), idle));
        let is_idle = match (self.0, now) {
            (Some((before, idle_before)), Some((now, idle))) => {
                idle.saturating_sub(idle_before) > (now - before).mul_f64(IDLE_CORE)
            }
            _ => false,
        };
        self.0 = now;
        is_idle
    }
}

/// All its cores together.
#[cfg(target_os = "linux")]
fn of_this_machine() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    // Behind its name: user, nice, system, idle, waiting for disks.
    let times = stat.lines().next()?.split_ascii_whitespace().skip(4).take(2);
    let ticks: u64 = times.map(str::parse::<u64>).sum::<Result<u64, _>>().ok()?;
    Some(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

#[cfg(not(target_os = "linux"))]
fn of_this_machine() -> Option<Duration> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begins calls that use so much for a second, as soon as it may, and says how many began.
    fn begun(budget: &mut Budget, mut now: Instant, used: Duration) -> u32 {
        let end = now + Duration::from_secs(1);
        let mut begun = 0;
        while now < end {
            match budget.begin(now) {
                Ok(taken) => {
                    begun += 1;
                    budget.settle(taken, used);
                }
                Err(pause) => now += pause,
            }
        }
        begun
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_machine_tells_for_how_long_it_was_idle() {
        assert!(of_this_machine().is_some());
        let mut idleness = Idleness::default();
        assert!(!idleness.look(true) && !idleness.look(false) && !idleness.look(true), "nothing is known yet");
    }

    #[test]
    fn calls_use_their_share_and_no_more() {
        let now = Instant::now();
        for (micros, cores, pools) in [(5, 2, 1), (20, 2, 1), (20, 16, 3), (1_000, 2, 1)] {
            let mut budget = Budget::new(POOLS_SHARE * f64::from(cores), pools, now);
            let used = Duration::from_micros(micros);
            begun(&mut budget, now, used);
            let used = f64::from(begun(&mut budget, now + Duration::from_secs(1), used)) * used.as_secs_f64();
            let share = POOLS_SHARE * f64::from(cores) / pools as f64;
            assert!(used > share * 0.9 && used < share * 1.1, "{used} of {share}: {micros} µs, {cores}, {pools}");
        }
    }

    #[test]
    fn a_pool_begins_something_now_and_then_whatever_it_uses() {
        let now = Instant::now();
        let mut budget = Budget::new(POOLS_SHARE, 1, now);
        begun(&mut budget, now, Duration::from_secs(100));
        let later = begun(&mut budget, now + Duration::from_secs(1), Duration::from_secs(100));
        assert!((1..=2).contains(&later), "{later}");
    }

    #[test]
    fn what_is_not_used_is_saved_for_a_while() {
        let now = Instant::now();
        let mut budget = Budget::new(2.0 * POOLS_SHARE, 1, now);
        let mut at_once = |now| (0..1_000).take_while(|_| budget.begin(now).is_ok()).count();
        let saved = at_once(now);
        assert!((100..=200).contains(&saved), "of 20 µs each: {saved}");
        assert_eq!(at_once(now + Duration::from_secs(60)), saved);
    }
}
